/* sluice msl run: one kernel of a .metal file on inputs from files or made up, on the soft device with its checks, and
 * what it wrote. */
#include "cli.h"
#include "msl_value.h"

#include "sluice/gpu.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 16, MOST_CONSTANTS = 64 };
#define MOST_SOURCE (16ull << 20)
#define SECOND      1000000000ull

typedef struct msl_input {
    value_array value;
    sl_gpu_buffer *buffer; /* NULL: bound as bytes */
    bool given;
} msl_input;

typedef struct msl_run {
    const cli_args *a;
    sl_gpu *g;
    sl_gpu_library *library;
    sl_gpu_pipeline *pipeline;
    sl_gpu_pipeline_info info;
    sl_gpu_stream *stream;
    msl_input input[SL_GPU_SLOTS];
    sl_gpu_threadgroup_length lengths[SL_GPU_SLOTS];
    size_t length_count;
    sl_gpu_constant constants[MOST_CONSTANTS];
    size_t constant_count;
    uint32_t groups[3], threads[3];
    double seconds;
    sl_error err;
} msl_run;

/* ---- the command line ---- */

/* "SLOT=rest" */
static bool split_slot(const char *option, const char *text, int *slot, const char **rest, sl_error *err) {
    char *end;
    long n = strtol(text, &end, 10);
    if (end == text || *end != '=' || n < 0 || n >= SL_GPU_SLOTS)
        return sl_fail(err, SL_ERR_ARGUMENT, "--%s %s: expected SLOT=..., SLOT from 0 to %d", option, text,
                       SL_GPU_SLOTS - 1);
    *slot = (int)n;
    *rest = end + 1;
    return true;
}

/* "X", "X,Y" or "X,Y,Z" */
static bool parse_size(const char *option, const char *text, uint32_t out[3], sl_error *err) {
    const char *s = text;
    for (int i = 0; i < 3; i++)
        out[i] = 1;
    for (int i = 0; s && i < 3; i++) {
        char *end;
        unsigned long long v = strtoull(s, &end, 10);
        if (end == s || !isdigit((unsigned char)*s) || v == 0 || v > UINT32_MAX || (*end && (*end != ',' || i == 2)))
            return sl_fail(err, SL_ERR_ARGUMENT, "--%s %s: expected X, X,Y or X,Y,Z, each from 1 to %u", option, text,
                           UINT32_MAX);
        out[i] = (uint32_t)v;
        s = *end ? end + 1 : NULL;
    }
    return true;
}

static bool parse_whole(const char *text, long long least, long long most, long long *out) {
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 0);
    return end != text && !*end && !errno && *out >= least && *out <= most;
}

static bool parse_constant_value(const char *text, sl_gpu_constant *c) {
    static const struct {
        long long least, most;
    } range[] = {[SL_GPU_INT] = {INT32_MIN, INT32_MAX},
                 [SL_GPU_UINT] = {0, UINT32_MAX},
                 [SL_GPU_SHORT] = {INT16_MIN, INT16_MAX},
                 [SL_GPU_USHORT] = {0, UINT16_MAX}};
    char *end;
    long long v;
    switch (c->type) {
    case SL_GPU_FLOAT:
    case SL_GPU_HALF:
        c->value.f = strtof(text, &end);
        return end != text && !*end;
    case SL_GPU_BOOL:
        c->value.b = strcmp(text, "true") == 0 || strcmp(text, "1") == 0;
        return c->value.b || strcmp(text, "false") == 0 || strcmp(text, "0") == 0;
    default:
        if (!parse_whole(text, range[c->type].least, range[c->type].most, &v))
            return false;
        c->value.u = (uint32_t)v;
        return true;
    }
}

/* "ID=TYPE:VALUE" with a type of function constants. */
static bool parse_constant(const char *text, sl_gpu_constant *out, sl_error *err) {
    static const struct {
        const char *name;
        sl_gpu_type type;
    } names[] = {{"bool", SL_GPU_BOOL},   {"int", SL_GPU_INT},       {"uint", SL_GPU_UINT}, {"float", SL_GPU_FLOAT},
                 {"short", SL_GPU_SHORT}, {"ushort", SL_GPU_USHORT}, {"half", SL_GPU_HALF}};
    char *end;
    long id = strtol(text, &end, 10);
    const char *type = *end == '=' && isdigit((unsigned char)*text) ? end + 1 : "", *value = strchr(type, ':');
    for (size_t i = 0; value && id <= UINT16_MAX && i < SL_COUNT(names); i++) {
        if (strlen(names[i].name) != (size_t)(value - type) ||
            strncmp(names[i].name, type, (size_t)(value - type)) != 0)
            continue;
        *out = (sl_gpu_constant){.id = (int)id, .type = names[i].type};
        if (parse_constant_value(value + 1, out))
            return true;
    }
    return sl_fail(err, SL_ERR_ARGUMENT,
                   "--constant %s: expected ID=TYPE:VALUE, ID from 0 to %d, TYPE bool, int, uint, float, short, "
                   "ushort or half, a VALUE that fits",
                   text, UINT16_MAX);
}

static bool read_constants(msl_run *r) {
    r->constant_count = r->a->constants.count;
    if (r->constant_count > MOST_CONSTANTS)
        return sl_fail(&r->err, SL_ERR_ARGUMENT, "more than %d constants", MOST_CONSTANTS);
    for (size_t i = 0; i < r->constant_count; i++)
        if (!parse_constant(r->a->constants.items[i], &r->constants[i], &r->err))
            return false;
    return true;
}

static bool check_outputs(msl_run *r) {
    for (size_t i = 0; i < r->a->outputs.count; i++) {
        int slot = 0;
        const char *path = "";
        if (!split_slot("out", r->a->outputs.items[i], &slot, &path, &r->err))
            return false;
        if (!*path)
            return sl_fail(&r->err, SL_ERR_ARGUMENT, "--out %s: expected SLOT=FILE", r->a->outputs.items[i]);
        if (!r->input[slot].given)
            return sl_fail(&r->err, SL_ERR_ARGUMENT, "--out %d: there is no --arg for that slot", slot);
    }
    return true;
}

static bool read_inputs(msl_run *r) {
    for (size_t i = 0; i < r->a->inputs.count; i++) {
        int slot = 0;
        const char *rest = "";
        if (!split_slot("arg", r->a->inputs.items[i], &slot, &rest, &r->err))
            return false;
        if (r->input[slot].given)
            return sl_fail(&r->err, SL_ERR_ARGUMENT, "--arg for slot %d twice", slot);
        if (!value_read(rest, r->a->seed + (uint64_t)slot + 1, &r->input[slot].value, &r->err))
            return sl_fail_prefix(&r->err, "--arg %d", slot);
        r->input[slot].given = true;
    }
    for (size_t i = 0; i < r->a->lengths.count; i++) {
        int slot = 0;
        const char *rest = "";
        uint64_t n;
        if (!split_slot("threadgroup", r->a->lengths.items[i], &slot, &rest, &r->err))
            return false;
        if (!cli_parse_u64(rest, &n) || n == 0 || n > UINT32_MAX || r->length_count == SL_COUNT(r->lengths))
            return sl_fail(&r->err, SL_ERR_ARGUMENT, "--threadgroup %s: expected SLOT=BYTES", r->a->lengths.items[i]);
        r->lengths[r->length_count++] = (sl_gpu_threadgroup_length){slot, (uint32_t)n};
    }
    return parse_size("groups", r->a->groups ? r->a->groups : "1", r->groups, &r->err) &&
           parse_size("threads", r->a->group_threads ? r->a->group_threads : "32", r->threads, &r->err) &&
           read_constants(r) && check_outputs(r);
}

/* ---- device, library, pipeline ---- */

static bool make_pipeline(msl_run *r) {
    const char *entry = r->a->operands > 2 ? r->a->operand[2] : NULL;
    if (!entry && sl_gpu_library_count(r->library) == 1)
        entry = sl_gpu_library_entry(r->library, 0);
    if (!entry && sl_gpu_library_count(r->library) == 0)
        return sl_fail(&r->err, SL_ERR_ARGUMENT, "%s: no kernel that could run", r->a->operand[1]);
    if (!entry)
        return sl_fail(&r->err, SL_ERR_ARGUMENT, "%s has %zu kernels: name one ('sluice msl check' lists them)",
                       r->a->operand[1], sl_gpu_library_count(r->library));
    r->pipeline = sl_gpu_pipeline_new(r->library, entry, r->constants, r->constant_count, &r->err);
    if (!r->pipeline)
        return false;
    r->info.size = sizeof r->info;
    sl_gpu_pipeline_get_info(r->pipeline, &r->info);
    return true;
}

static const sl_gpu_arg *find_arg(const msl_run *r, int slot) {
    for (size_t i = 0; i < r->info.arg_count; i++)
        if (r->info.args[i].slot == slot && r->info.args[i].kind != SL_GPU_ARG_THREADGROUP)
            return &r->info.args[i];
    return NULL;
}

/* Small values for references are bound as bytes, all else as buffers. */
static bool make_buffers(msl_run *r) {
    for (int slot = 0; slot < SL_GPU_SLOTS; slot++) {
        msl_input *in = &r->input[slot];
        const sl_gpu_arg *arg = find_arg(r, slot);
        if (!in->given)
            continue;
        if (!arg)
            return sl_fail(&r->err, SL_ERR_ARGUMENT, "--arg %d: %s has no buffer at that slot", slot, r->info.entry);
        if (arg->kind == SL_GPU_ARG_BYTES && in->value.size <= SL_GPU_BYTES_MAX)
            continue;
        in->buffer = sl_gpu_alloc(r->g, in->value.size, SL_GPU_SHARED, &r->err);
        void *host = in->buffer ? sl_gpu_map(in->buffer, 0, in->value.size, SL_GPU_WRITE, &r->err) : NULL;
        if (!host)
            return false;
        memcpy(host, in->value.bytes, in->value.size);
        if (!sl_gpu_unmap(in->buffer, &r->err))
            return false;
    }
    return true;
}

static bool dispatch(msl_run *r) {
    sl_gpu_binding bindings[SL_GPU_SLOTS];
    sl_gpu_ticket ticket;
    size_t n = 0;
    for (int slot = 0; slot < SL_GPU_SLOTS; slot++) {
        const msl_input *in = &r->input[slot];
        if (!in->given)
            continue;
        bindings[n++] = in->buffer ? (sl_gpu_binding){.slot = slot, .buffer = in->buffer}
                                   : (sl_gpu_binding){.slot = slot, .bytes = in->value.bytes, .length = in->value.size};
    }
    sl_gpu_dispatch d = {.pipeline = r->pipeline,
                         .bindings = bindings,
                         .binding_count = n,
                         .lengths = r->lengths,
                         .length_count = r->length_count};
    memcpy(d.groups, r->groups, sizeof d.groups);
    memcpy(d.threads, r->threads, sizeof d.threads);
    r->stream = sl_gpu_stream_new(r->g, &r->err);
    sl_gpu_list *list = r->stream ? sl_gpu_begin(r->stream, "run", &r->err) : NULL;
    if (!list)
        return false;
    if (!sl_gpu_encode(list, &d, &r->err)) {
        sl_gpu_list_free(list);
        return false;
    }
    return sl_gpu_submit(list, &ticket, &r->err) && sl_gpu_wait(r->stream, ticket, 3600 * SECOND, &r->seconds, &r->err);
}

/* ---- results ---- */

static bool read_back(msl_run *r, msl_input *in) {
    const void *host = sl_gpu_map(in->buffer, 0, in->value.size, SL_GPU_READ, &r->err);
    if (!host)
        return false;
    memcpy(in->value.bytes, host, in->value.size);
    return sl_gpu_unmap(in->buffer, &r->err);
}

static void print_values(const char *name, int slot, const value_array *v) {
    sl_buf line = {0};
    char text[40];
    sl_buf_printf(&line, "%d %s (%s, %zu):", slot, name, value_name(v->type), v->count);
    for (size_t i = 0; i < v->count && i < SHOWN; i++) {
        value_print(v, i, text, sizeof text);
        sl_buf_printf(&line, " %s", text);
    }
    sl_buf_puts(&line, v->count > SHOWN ? " ...\n" : "\n");
    if (!line.failed)
        cli_put(line.data, line.size);
    sl_buf_free(&line);
}

static bool write_outputs(msl_run *r) {
    for (size_t i = 0; i < r->a->outputs.count; i++) {
        int slot = 0;
        const char *path = "";
        if (!split_slot("out", r->a->outputs.items[i], &slot, &path, &r->err))
            return false;
        if (!r->input[slot].buffer)
            return sl_fail(&r->err, SL_ERR_ARGUMENT, "--out %d: nothing is bound there that could be written", slot);
        if (!value_write(&r->input[slot].value, path, &r->err))
            return false;
    }
    return true;
}

static bool show_results(msl_run *r) {
    for (size_t i = 0; i < r->info.arg_count; i++) {
        const sl_gpu_arg *arg = &r->info.args[i];
        msl_input *in = arg->kind == SL_GPU_ARG_WRITE ? &r->input[arg->slot] : NULL;
        if (!in || !in->buffer)
            continue;
        if (!read_back(r, in))
            return false;
        if (r->a->outputs.count == 0)
            print_values(arg->name, arg->slot, &in->value);
    }
    if (!write_outputs(r))
        return false;
    cli_note("%s: %ux%ux%u threadgroups of %ux%ux%u threads, %.3f ms%s", r->info.entry, r->groups[0], r->groups[1],
             r->groups[2], r->threads[0], r->threads[1], r->threads[2], r->seconds * 1e3,
             r->a->no_check ? "" : ", no faults found");
    return true;
}

static void free_run(msl_run *r) {
    for (int slot = 0; slot < SL_GPU_SLOTS; slot++) {
        sl_gpu_buffer_free(r->input[slot].buffer);
        value_free(&r->input[slot].value);
    }
    sl_gpu_stream_free(r->stream);
    sl_gpu_pipeline_free(r->pipeline);
    sl_gpu_library_free(r->library);
    sl_gpu_close(r->g);
}

int cli_msl_run(const cli_args *a) {
    msl_run r = {.a = a};
    if (!read_inputs(&r)) {
        free_run(&r);
        return cli_complain(CLI_USAGE, "%s", r.err.message);
    }
    r.g = cli_msl_open(a, &r.err);
    r.library = r.g ? cli_msl_compile(r.g, a, a->operand[1], &r.err) : NULL;
    bool ok = r.library && make_pipeline(&r) && make_buffers(&r) && dispatch(&r) && show_results(&r);
    free_run(&r);
    return ok ? CLI_OK : cli_msl_report(&r.err);
}

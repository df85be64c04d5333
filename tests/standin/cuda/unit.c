/* Code generated for CUDA as a unit of the soft device: the prelude is the soft device's, the kernels' text stays as it
 * is, and an entry's parameters are fetched by a function behind it. */
#include "internal.h"

#include "gpu/texts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static gpu_device *device;
static void *stream;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_soft(void) {
    gpu_open o = {.index = -1};
    sl_error err;
    device = gpu_driver_soft.open(&o, &err);
    stream = device ? gpu_driver_soft.stream_new(device, &err) : NULL;
}

__attribute__((destructor)) static void close_soft(void) {
    if (stream)
        gpu_driver_soft.stream_free(device, stream);
    if (device)
        gpu_driver_soft.close(device);
}

/* ---- the unit ------------------------------------------------------------------------------------------------------
 */

static const char *const prelude[] = {"types.h",       "limits.h", "vector.h", "math.h",     "relational.h",
                                      "integer.h",     "matrix.h", "simd.h",   "atomic.h",   "simdgroup_matrix.h",
                                      "conditional.h", "pack.h",   "log.h",    "builtins.h", "shared.h",
                                      "kernel.h",      NULL};

/* Words of CUDA that generated code has. A threadgroup argument's parameter is its slot here. */
static const char shims[] =
    "\n#line 1 \"shims\"\n"
    "#define __global__ __attribute__((visibility(\"hidden\")))\n#define __device__\n#define __launch_bounds__(n)\n"
    "#define __forceinline__ inline\n#define __noinline__ __attribute__((noinline))\n"
    "#define MSL_VALUE(size) void *\n#define MSL_VALUE_AT(b) b\n"
    "#define MSL_THREADGROUP_SLOT_AT(slot) (::msl_unit::metal::msl_pointer{MSL_GROUP.threadgroup[slot]})\n";

static const char body_mark[] = "\nnamespace msl_unit {\nusing namespace metal;\n";

static void put_defines(const char *const *options, int count, sl_buf *out) {
    for (int i = 0; i < count; i++) {
        const char *equals = strchr(options[i], '=');
        if (strncmp(options[i], "-D", 2) == 0 && equals)
            sl_buf_printf(out, "#define %.*s %s\n", (int)(equals - options[i] - 2), options[i] + 2, equals + 1);
    }
}

static void put_text(const char *name, sl_buf *out) {
    const sl_text *t = gpu_text(name);
    sl_buf_printf(out, "\n#line 1 \"%s\"\n", name);
    sl_buf_append(out, t->bytes, t->size);
}

bool unit_make(const char *code, const char *const *options, int count, sl_buf *out) {
    const char *body = NULL;
    for (const char *p = code; (p = strstr(p, body_mark)); p++)
        body = p;
    if (!body)
        return false;
    sl_buf_puts(out, "#define SL_MSL_SOFT 1\n");
    put_text("soft_abi.h", out);
    for (int i = 0; prelude[i]; i++)
        put_text(prelude[i], out);
    sl_buf_puts(out, shims);
    put_defines(options, count, out);
    sl_buf_puts(out, body);
    return !out->failed;
}

/* ---- the entry -----------------------------------------------------------------------------------------------------
 */

static const char *option(const char *const *options, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (strncmp(options[i], name, strlen(name)) == 0)
            return options[i] + strlen(name);
    return NULL;
}

/* "void *msl_b3", "MSL_VALUE(16) msl_b0", "unsigned msl_t1", separated by commas up to the bracket. */
static bool read_parameters(const char *at, bool pointers, image_head *h) {
    while (*at != ')') {
        parameter *p = &h->parameter[h->count];
        if (h->count == CUDA_PARAMETERS)
            return false;
        if (sscanf(at, "void *msl_b%d", &p->slot) == 1)
            p->type = 'b';
        else if (sscanf(at, "MSL_VALUE(%u) msl_b%d", &p->bytes, &p->slot) == 2)
            p->type = pointers ? 'b' : 'v';
        else if (sscanf(at, "unsigned msl_t%d", &p->slot) == 1)
            p->type = 't';
        else
            return false;
        h->count++;
        at += p->bytes ? strcspn(strchr(at, ')') + 1, ",)") + (size_t)(strchr(at, ')') + 1 - at) : strcspn(at, ",)");
        at += *at == ',' ? 2 : 0;
    }
    return true;
}

static bool read_entry(const char *code, const char *const *options, int count, image_head *h) {
    const char *number = option(options, count, "-DMSL_ENTRY=");
    char opening[64];
    if (!number)
        return false;
    memcpy(h->magic, IMAGE_MAGIC, sizeof h->magic);
    snprintf(h->entry, sizeof h->entry, "msl_entry_%s", number);
    snprintf(opening, sizeof opening, ") %s(", h->entry);
    const char *at = strstr(code, opening);
    if (!at)
        return false;
    const char *bounds = at;
    while (bounds > code && strncmp(bounds, "__launch_bounds__(", 18) != 0)
        bounds--;
    h->max_threads = (uint32_t)strtoul(bounds + 18, NULL, 10);
    return read_parameters(at + strlen(opening), option(options, count, "-DMSL_POINTERS=") != NULL, h);
}

/* What the soft device asks of a unit, with a function that fetches the entry's parameters. The place of its namespace
 * is not known, but an entry is extern "C". */
static void put_tables(const image_head *h, sl_buf *out) {
    sl_buf_printf(out, "\n#line 1 \"tables\"\nextern \"C\" void %s(", h->entry);
    for (uint32_t i = 0; i < h->count; i++)
        sl_buf_printf(out, "%s%s", i ? ", " : "", h->parameter[i].type == 't' ? "unsigned" : "void *");
    sl_buf_printf(out, ");\nnamespace msl_unit {\nstatic void msl_run() { ::%s(", h->entry);
    for (uint32_t i = 0; i < h->count; i++) {
        const parameter *p = &h->parameter[i];
        if (p->type == 't')
            sl_buf_printf(out, "%s%du", i ? ", " : "", p->slot);
        else
            sl_buf_printf(out, "%sMSL_GROUP.buffer[%d]", i ? ", " : "", p->slot);
    }
    sl_buf_printf(
        out,
        "); }\nstatic const ::soft_kernel msl_kernels[] = {{\"%s\", msl_run, 0}};\n"
        "static const ::soft_module msl_module = {::SOFT_ABI, msl_kernels, 1, nullptr, 0};\n"
        "static const ::soft_module *msl_start(const ::soft_api *api) { msl_api = api; return &msl_module; }\n"
        "}\nextern \"C\" __attribute__((visibility(\"default\"))) const soft_module *soft_init(const soft_api "
        "*api) { return msl_unit::msl_start(api); }\n",
        h->entry);
}

/* ---- compiling -----------------------------------------------------------------------------------------------------
 */

/* FILE:LINE: what -> FILE(LINE): error: what, in NVRTC's words where a test asks for them. */
static void reword(const char *message, char *log, size_t size) {
    const char *colon = strchr(message, ':'), *second = colon ? strchr(colon + 1, ':') : NULL;
    char name[128];
    if (!second) {
        snprintf(log, size, "unit(1): error: %s\n", message);
        return;
    }
    if (sscanf(second, ": use of undeclared identifier '%127[^']'", name) == 1)
        snprintf(log, size, "%.*s(%.*s): error: identifier \"%s\" is undefined\n", (int)(colon - message), message,
                 (int)(second - colon - 1), colon + 1, name);
    else
        snprintf(log, size, "%.*s(%.*s): error: %s\n", (int)(colon - message), message, (int)(second - colon - 1),
                 colon + 1, second + 2);
}

static bool compile(const char *name, const sl_buf *unit, sl_buf *payload, char *log, size_t size) {
    sl_error err = {0};
    pthread_once(&once, open_soft);
    if (!stream) {
        snprintf(log, size, "unit(1): error: the soft device does not open: is clang++ there?\n");
        return false;
    }
    if (soft_compile_unit(device, name, unit->data, unit->size, false, payload, &err))
        return true;
    reword(err.message, log, size);
    return false;
}

/* All entries, without their code being looked at again: that they compile shows when one is made. */
bool unit_check(const char *name, const char *code, const char *const *options, int count, char *log, size_t size) {
    sl_buf unit = {0}, payload = {0};
    bool ok = unit_make(code, options, count, &unit);
    if (!ok)
        snprintf(log, size, "unit(1): error: not a unit\n");
    if (ok && unit.size < 480 << 10) { /* the project's own kernels are large, and known to be sound */
        sl_buf_puts(&unit, "\nextern \"C\" __attribute__((visibility(\"default\"))) const soft_module *soft_init(const "
                           "soft_api *) { return nullptr; }\n");
        ok = compile(name, &unit, &payload, log, size);
    }
    sl_buf_free(&unit);
    sl_buf_free(&payload);
    return ok;
}

bool image_make(const char *name, const char *code, const char *const *options, int count, sl_buf *out, char *log,
                size_t size) {
    image_head h = {.count = 0};
    sl_buf unit = {0}, payload = {0};
    bool ok = read_entry(code, options, count, &h) && unit_make(code, options, count, &unit);
    if (!ok)
        snprintf(log, size, "unit(1): error: no such entry, or one with parameters that are not known\n");
    if (ok) {
        put_tables(&h, &unit);
        ok = compile(name, &unit, &payload, log, size);
    }
    h.payload = payload.size;
    sl_buf_append(out, &h, sizeof h);
    sl_buf_append(out, payload.data, payload.size);
    sl_buf_free(&unit);
    sl_buf_free(&payload);
    return ok;
}

/* ---- loading, running ----------------------------------------------------------------------------------------------
 */

image *image_load(const void *bytes) {
    image *i = calloc(1, sizeof *i);
    sl_error err;
    gpu_pipeline_limits limits = {0};
    pthread_once(&once, open_soft);
    soft_faults_install(); /* cmocka puts handlers of its own in place for each test */
    memcpy(&i->head, bytes, sizeof i->head);
    if (memcmp(i->head.magic, IMAGE_MAGIC, sizeof i->head.magic) == 0 && stream)
        i->library = gpu_driver_soft.library_load(device, (const char *)bytes + sizeof i->head, i->head.payload, &err);
    msl_kernel k = {.name = i->head.entry, .entry = i->head.entry};
    if (i->library)
        i->pipeline = gpu_driver_soft.pipeline_new(device, i->library, &k, NULL, 0, &limits, &err);
    if (i->pipeline)
        return i;
    if (i->library)
        gpu_driver_soft.library_free(device, i->library);
    free(i);
    return NULL;
}

/* The shell stays, so that a launch of what is gone is seen. */
void image_free(image *i) {
    static image *gone[4096];
    static size_t count;
    pthread_mutex_lock(&lock);
    void *pipeline = i->pipeline, *library = i->library;
    i->pipeline = NULL;
    if (count < SL_COUNT(gone))
        gone[count++] = i;
    pthread_mutex_unlock(&lock);
    gpu_driver_soft.pipeline_free(device, pipeline);
    gpu_driver_soft.library_free(device, library);
}

/* A threadgroup argument is as long as the room to the next one. */
static uint32_t length_of(const uint32_t *offsets, size_t n, size_t at, uint32_t end) {
    for (size_t i = 0; i < n; i++)
        if (offsets[i] > offsets[at] && offsets[i] < end)
            end = offsets[i];
    return end - offsets[at];
}

uint32_t image_pointers(const image *i, const work *w, uint64_t out[CUDA_PARAMETERS]) {
    uint32_t at = 0, n = 0;
    for (uint32_t k = 0; k < i->head.count; k++) {
        const parameter *p = &i->head.parameter[k];
        if (p->type == 'b')
            memcpy(&out[n++], w->parameters + at, sizeof *out);
        at += p->type == 'v' ? (p->bytes + 15) / 16 * 16 : 16;
    }
    return n;
}

typedef struct launch {
    gpu_memory memory[CUDA_PARAMETERS];
    gpu_bound bound[CUDA_PARAMETERS];
    sl_gpu_threadgroup_length lengths[SL_GPU_SLOTS];
    uint32_t offsets[SL_GPU_SLOTS];
    size_t bounds, count;
} launch;

static bool bind(launch *l, const image *i, const work *w) {
    uint32_t at = 0;
    sl_error err;
    for (uint32_t k = 0; k < i->head.count; k++) {
        const parameter *p = &i->head.parameter[k];
        const uint8_t *value = w->parameters + at;
        at += p->type == 'v' ? (p->bytes + 15) / 16 * 16 : 16;
        if (p->type == 't') {
            memcpy(&l->offsets[l->count], value, 4);
            l->lengths[l->count++].slot = p->slot;
            continue;
        }
        void *address = (void *)(uintptr_t)value;
        uint64_t length = p->bytes;
        if (p->type == 'b') {
            memcpy(&address, value, sizeof address);
            length = memory_left((uintptr_t)address);
        }
        if (!length) {
            violate("%s: slot %d shows memory at %p, which is none", i->head.entry, p->slot, address);
            return false;
        }
        gpu_memory *m = &l->memory[l->bounds];
        if (!gpu_driver_soft.wrap(device, address, length, m, &err))
            return false;
        l->bound[l->bounds++] = (gpu_bound){.slot = p->slot, .memory = m, .length = m->bytes, .writes = true};
    }
    for (size_t k = 0; k < l->count; k++) {
        if (l->offsets[k] % 16 || l->offsets[k] > w->shared) {
            violate("threadgroup memory at %u of %u bytes", l->offsets[k], w->shared);
            return false;
        }
        l->lengths[k].bytes = length_of(l->offsets, l->count, k, w->shared);
    }
    return true;
}

static bool run_soft(const gpu_command *c) {
    sl_error err;
    void *submission;
    gpu_result result = {0};
    if (!gpu_driver_soft.submit(device, stream, "stand-in", c, 1, &submission, &err))
        return false;
    bool done = gpu_driver_soft.wait(device, submission, 600ull * 1000000000, &result);
    gpu_driver_soft.release(device, submission);
    return done && !result.failed;
}

bool image_run(const image *i, const work *w) {
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER; /* a stream of the soft device's has one user at a time */
    launch *l = calloc(1, sizeof *l);
    gpu_command c = {.kind = GPU_DISPATCH, .label = i->head.entry};
    if (!i->pipeline) {
        violate("%s runs after its module was unloaded", i->head.entry);
        free(l);
        return false;
    }
    bool ok = bind(l, i, w);
    c.u.dispatch.pipeline = i->pipeline;
    memcpy(c.u.dispatch.groups, w->groups, sizeof w->groups);
    memcpy(c.u.dispatch.threads, w->threads, sizeof w->threads);
    c.u.dispatch.bound = l->bound;
    c.u.dispatch.bound_count = l->bounds;
    c.u.dispatch.lengths = l->lengths;
    c.u.dispatch.length_count = l->count;
    pthread_mutex_lock(&one);
    ok = ok && run_soft(&c);
    pthread_mutex_unlock(&one);
    while (l->bounds)
        gpu_driver_soft.free(device, &l->memory[--l->bounds]);
    free(l);
    return ok;
}

/* A library's argument tables as bytes, so that loading a library needs no source.
 *
 *   u32 kernels; each: name, entry, u32 line, u32 max threads, u32 arguments; each: u32 kind, slot, least, align,
 * unused, condition, atomic, name.  u32 constants; each: u32 id, type, optional, name.  u32 kernels left out; each:
 * name, why. A name is u32 length and its bytes. Little endian, as every machine this runs on. */
#include "gpu/core.h"

#include <string.h>

enum { MOST = 1 << 16, NAME_MOST = 1 << 12, MOST_ALIGN = 256 };

static void put_u32(sl_buf *out, uint32_t v) {
    sl_buf_append(out, &v, sizeof v);
}

static void put_name(sl_buf *out, const char *s) {
    size_t n = strlen(s);
    put_u32(out, (uint32_t)n);
    sl_buf_append(out, s, n);
}

static void put_kernel(sl_buf *out, const msl_kernel *k) {
    put_name(out, k->name);
    put_name(out, k->entry);
    put_u32(out, (uint32_t)k->line);
    put_u32(out, k->max_threads);
    put_u32(out, (uint32_t)k->arg_count);
    for (size_t i = 0; i < k->arg_count; i++) {
        const msl_arg *a = &k->args[i];
        put_u32(out, a->arg.kind);
        put_u32(out, (uint32_t)a->arg.slot);
        put_u32(out, a->arg.least);
        put_u32(out, a->arg.align);
        put_u32(out, a->arg.unused);
        put_u32(out, (uint32_t)a->condition);
        put_u32(out, a->atomic);
        put_name(out, a->arg.name);
    }
}

bool gpu_table_write(const msl_module *m, sl_buf *out) {
    size_t n;
    const msl_kernel *kernels = msl_module_kernels(m, &n);
    put_u32(out, (uint32_t)n);
    for (size_t i = 0; i < n; i++)
        put_kernel(out, &kernels[i]);
    const msl_constant *constants = msl_module_constants(m, &n);
    put_u32(out, (uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        put_u32(out, (uint32_t)constants[i].id);
        put_u32(out, constants[i].type);
        put_u32(out, constants[i].optional);
        put_name(out, constants[i].name);
    }
    const msl_refusal *refused = msl_module_refusals(m, &n);
    put_u32(out, (uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        put_name(out, refused[i].host_name);
        put_name(out, refused[i].message);
    }
    return !out->failed;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct cursor {
    const uint8_t *at, *end;
    gpu_arena *arena;
    bool bad, no_memory; /* no_memory: bad for that reason */
} cursor;

static void *take(cursor *c, size_t bytes) {
    void *p = gpu_arena_take(c->arena, bytes);
    if (!p)
        c->bad = c->no_memory = true;
    return p;
}

static uint32_t get_u32(cursor *c) {
    uint32_t v = 0;
    if (c->end - c->at < (ptrdiff_t)sizeof v) {
        c->bad = true;
        return 0;
    }
    memcpy(&v, c->at, sizeof v);
    c->at += sizeof v;
    return v;
}

/* A number below `limit`. */
static uint32_t get_below(cursor *c, uint32_t limit) {
    uint32_t v = get_u32(c);
    if (v >= limit)
        c->bad = true;
    return c->bad ? 0 : v;
}

static const char *get_name(cursor *c, size_t most) {
    uint32_t n = get_below(c, (uint32_t)most + 1);
    if (c->bad || c->end - c->at < (ptrdiff_t)n || memchr(c->at, 0, n)) {
        c->bad = true;
        return "";
    }
    char *s = take(c, (size_t)n + 1);
    if (!s)
        return "";
    memcpy(s, c->at, n);
    c->at += n;
    return s;
}

/* An array's room; its elements take at least `least` bytes each, so that a false count costs no memory. */
static void *get_array(cursor *c, size_t *count, size_t elem, size_t least) {
    uint32_t n = get_below(c, MOST + 1);
    void *array = NULL;
    if (!c->bad && n > 0 && n <= (size_t)(c->end - c->at) / least)
        array = take(c, n * elem);
    if (n > 0 && !array)
        c->bad = true;
    *count = c->bad ? 0 : n;
    return array;
}

static void get_arg(cursor *c, msl_arg *a) {
    a->arg.kind = (sl_gpu_arg_kind)get_below(c, SL_GPU_ARG_THREADGROUP + 1);
    a->arg.slot = (int)get_below(c, SL_GPU_SLOTS);
    a->arg.least = get_u32(c);
    a->arg.align = get_below(c, MOST_ALIGN + 1);
    if (a->arg.align & (a->arg.align - 1))
        c->bad = true;
    a->arg.unused = get_below(c, 2);
    a->condition = (int)get_u32(c);
    a->atomic = get_below(c, 2);
    const char *name = get_name(c, sizeof a->arg.name - 1);
    memcpy(a->arg.name, name, strlen(name) + 1);
}

static void get_kernel(cursor *c, msl_kernel *k) {
    k->name = get_name(c, NAME_MOST);
    k->entry = get_name(c, NAME_MOST);
    k->line = (int)get_u32(c);
    k->max_threads = get_u32(c);
    msl_arg *args = get_array(c, &k->arg_count, sizeof *args, 32);
    k->args = args;
    for (size_t i = 0; i < k->arg_count && !c->bad; i++)
        get_arg(c, &args[i]);
}

/* Conditions name constants, which come after the kernels. */
static void check_conditions(cursor *c, const gpu_table *t) {
    for (size_t k = 0; k < t->kernel_count; k++) {
        for (size_t i = 0; i < t->kernels[k].arg_count; i++) {
            int condition = t->kernels[k].args[i].condition;
            if (condition < MSL_CONDITION_DERIVED || condition >= (int)t->constant_count)
                c->bad = true;
        }
    }
}

bool gpu_table_read(const void *bytes, size_t size, gpu_table *t, sl_error *err) {
    *t = (gpu_table){0};
    cursor c = {.at = bytes, .end = (const uint8_t *)bytes + size, .arena = &t->arena};
    t->kernels = get_array(&c, &t->kernel_count, sizeof *t->kernels, 20);
    for (size_t i = 0; i < t->kernel_count && !c.bad; i++)
        get_kernel(&c, &t->kernels[i]);
    t->constants = get_array(&c, &t->constant_count, sizeof *t->constants, 16);
    for (size_t i = 0; i < t->constant_count && !c.bad; i++) {
        t->constants[i].id = (int)get_u32(&c);
        t->constants[i].type = (sl_gpu_type)get_below(&c, SL_GPU_HALF + 1);
        t->constants[i].optional = get_below(&c, 2);
        t->constants[i].name = get_name(&c, NAME_MOST);
    }
    t->refused = get_array(&c, &t->refused_count, sizeof *t->refused, 8);
    for (size_t i = 0; i < t->refused_count && !c.bad; i++) {
        t->refused[i].host_name = get_name(&c, NAME_MOST);
        t->refused[i].message = get_name(&c, NAME_MOST);
    }
    if (!c.bad)
        check_conditions(&c, t);
    if (!c.bad && c.at == c.end)
        return true;
    size_t at = size - (size_t)(c.end - c.at);
    gpu_table_free(t);
    if (c.no_memory)
        return sl_fail(err, SL_ERR_MEMORY, "table of arguments: out of memory");
    return sl_fail(err, SL_ERR_FORMAT, "table of arguments: bad byte near offset %zu of %zu", at, size);
}

void gpu_table_free(gpu_table *t) {
    gpu_arena_free(&t->arena);
    *t = (gpu_table){0};
}

/* What is checked before a dispatch becomes a command: a driver's own checks abort the process, or there are none and
 * the results are wrong. */
#include "gpu/core.h"

#include <stdio.h>
#include <string.h>

enum { MOST_GROUPS_YZ = 65535, THREADGROUP_UNIT = 16 };
#define MOST_GROUPS_X  UINT32_C(0x7fffffff)
#define MOST_POSITIONS (UINT64_C(1) << 32) /* thread positions are 32-bit */

/* A dispatch that is being checked, and the command it becomes. */
typedef struct encoding {
    gpu_list *list;
    const sl_gpu_dispatch *d;
    gpu_pipeline *p;
    gpu_bound bound[SL_GPU_SLOTS];
    gpu_range ranges[SL_GPU_SLOTS];
    void *objects[SL_GPU_SLOTS + 1];
    sl_gpu_threadgroup_length lengths[SL_GPU_SLOTS];
    size_t bound_count, range_count, object_count, length_count;
    uint32_t given, given_lengths; /* slots, as bits */
    sl_error *err;
} encoding;

/* "kernel 'add', slot 2 'out': ..." */
static bool bad_slot(const encoding *e, int slot, const sl_gpu_arg *a, const char *fmt, ...) SL_PRINTF(4, 5);
static bool bad_slot(const encoding *e, int slot, const sl_gpu_arg *a, const char *fmt, ...) {
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return sl_fail(e->err, SL_ERR_ARGUMENT, "kernel '%s', slot %d%s%s%s: %s", e->p->entry, slot, a ? " '" : "",
                   a ? a->name : "", a ? "'" : "", what);
}

static bool bad(const encoding *e, const char *fmt, ...) SL_PRINTF(2, 3);
static bool bad(const encoding *e, const char *fmt, ...) {
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return sl_fail(e->err, SL_ERR_ARGUMENT, "kernel '%s': %s", e->p->entry, what);
}

/* ---- grid -------------------------------------------------------------------------------------------------------- */

static bool check_threads(const encoding *e) {
    const uint32_t *t = e->d->threads;
    uint64_t all = (uint64_t)t[0] * t[1];
    if (t[0] == 0 || t[1] == 0 || t[2] == 0)
        return bad(e, "a threadgroup of %u x %u x %u threads, expected at least 1 in each direction", t[0], t[1], t[2]);
    if (t[0] > e->p->limits.max_threads || t[1] > e->p->limits.max_threads || t[2] > e->p->limits.max_threads ||
        all * t[2] > e->p->limits.max_threads)
        return bad(e, "a threadgroup of %u x %u x %u = %llu threads, this pipeline allows %u (its SIMD-groups have %u)",
                   t[0], t[1], t[2], (unsigned long long)(all * t[2]), e->p->limits.max_threads,
                   e->p->limits.simd_width);
    if (all * t[2] % e->p->limits.simd_width)
        gpu_debugf(e->p->o.gpu, 1, "kernel '%s': %llu threads in a threadgroup leave a SIMD-group of %u partly empty",
                   e->p->entry, (unsigned long long)(all * t[2]), e->p->limits.simd_width);
    return true;
}

static bool check_groups(const encoding *e) {
    const uint32_t *n = e->d->groups, *t = e->d->threads;
    if (n[0] == 0 || n[1] == 0 || n[2] == 0)
        return bad(e, "a grid of %u x %u x %u threadgroups, expected at least 1 in each direction", n[0], n[1], n[2]);
    if (n[0] > MOST_GROUPS_X || n[1] > MOST_GROUPS_YZ || n[2] > MOST_GROUPS_YZ)
        return bad(e, "a grid of %u x %u x %u threadgroups, expected at most %u x %d x %d", n[0], n[1], n[2],
                   MOST_GROUPS_X, MOST_GROUPS_YZ, MOST_GROUPS_YZ);
    for (int i = 0; i < 3; i++)
        if ((uint64_t)n[i] * t[i] > MOST_POSITIONS)
            return bad(e, "%u threadgroups of %u threads in direction %c: positions are 32-bit numbers", n[i], t[i],
                       "xyz"[i]);
    return true;
}

/* ---- bindings ---------------------------------------------------------------------------------------------------- */

/* The slots that there are, for the message about one that is not. */
static const char *slot_list(const gpu_pipeline *p, char *text, size_t size) {
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < SL_GPU_SLOTS; i++)
        if (p->by_slot[i] && at + 80 < size)
            at += (size_t)snprintf(text + at, size - at, "%s%d '%s'", at ? ", " : "", i, p->by_slot[i]->name);
    return at ? text : "none";
}

/* What a slot's type needs. Where that is not known, what it is sure to need: the greatest power of two in its size, at
 * most a word; a block of bytes may need less than its size suggests, never more. */
static uint32_t alignment_of(const sl_gpu_arg *a) {
    if (a && a->align)
        return a->align;
    uint32_t least = a ? a->least : 1;
    return least % 4 == 0 ? 4 : least % 2 == 0 ? 2 : 1;
}

static bool add_bytes(encoding *e, const sl_gpu_binding *b, const sl_gpu_arg *a) {
    if (a && a->kind == SL_GPU_ARG_WRITE)
        return bad_slot(e, b->slot, a, "bytes are bound, expected a buffer: the kernel writes to it");
    if (!b->bytes)
        return bad_slot(e, b->slot, a, "neither a buffer nor bytes are bound");
    if (b->access & SL_GPU_WRITE)
        return bad_slot(e, b->slot, a, "bytes are declared as written");
    if (b->length == 0 || b->length > SL_GPU_BYTES_MAX)
        return bad_slot(e, b->slot, a, "%llu bytes, expected 1 to %d: use a buffer for more",
                        (unsigned long long)b->length, SL_GPU_BYTES_MAX);
    if (a && b->length < a->least)
        return bad_slot(e, b->slot, a, "%llu bytes, expected at least %u", (unsigned long long)b->length, a->least);
    uint8_t *copy = gpu_arena_take(&e->list->arena, (size_t)b->length);
    if (!copy)
        return sl_fail(e->err, SL_ERR_MEMORY, "kernel '%s': out of memory", e->p->entry);
    memcpy(copy, b->bytes, (size_t)b->length);
    e->bound[e->bound_count++] = (gpu_bound){.slot = b->slot, .length = b->length, .bytes = copy};
    return true;
}

/* What the dispatch does with the range: as declared, else as the table says; nothing known counts as written. */
static bool resolve_access(const encoding *e, const sl_gpu_binding *b, const sl_gpu_arg *a, bool *writes) {
    if ((unsigned)b->access > SL_GPU_READ_WRITE)
        return bad_slot(e, b->slot, a, "access %d, expected read, write or both", (int)b->access);
    *writes = b->access ? (b->access & SL_GPU_WRITE) != 0 : !a || a->kind == SL_GPU_ARG_WRITE;
    if (*writes && a && a->kind != SL_GPU_ARG_WRITE)
        return bad_slot(e, b->slot, a, "declared as written, but the kernel only reads it");
    return true;
}

static bool check_buffer(const encoding *e, const sl_gpu_binding *b, const sl_gpu_arg *a, const gpu_buffer *buffer,
                         uint64_t *length) {
    if (buffer->o.gpu != e->list->o.gpu)
        return bad_slot(e, b->slot, a, "the buffer is of another device");
    if (b->offset > buffer->size)
        return bad_slot(e, b->slot, a, "offset %llu is past the end, the buffer has %llu bytes",
                        (unsigned long long)b->offset, (unsigned long long)buffer->size);
    uint64_t room = buffer->size - b->offset;
    *length = b->length ? b->length : room;
    if (*length > room)
        return bad_slot(e, b->slot, a, "%llu bytes at offset %llu, the buffer has %llu", (unsigned long long)b->length,
                        (unsigned long long)b->offset, (unsigned long long)buffer->size);
    uint32_t least = a ? a->least : 1;
    if (*length < least)
        return bad_slot(e, b->slot, a, "%llu bytes at offset %llu, expected at least %u", (unsigned long long)*length,
                        (unsigned long long)b->offset, least);
    uint64_t at = buffer->root->m.offset + buffer->offset + b->offset;
    uint32_t align = alignment_of(a);
    return at % align == 0 || bad_slot(e, b->slot, a, "it begins at byte %llu of its memory, expected a multiple of %u",
                                       (unsigned long long)at, align);
}

static bool add_buffer(encoding *e, const sl_gpu_binding *b, const sl_gpu_arg *a) {
    sl_error why = {0};
    bool writes = false;
    uint64_t length = 0;
    gpu_buffer *buffer = gpu_take(b->buffer, GPU_BUFFER, &why);
    if (!buffer)
        return bad_slot(e, b->slot, a, "%s", why.message);
    bool ok = resolve_access(e, b, a, &writes) && check_buffer(e, b, a, buffer, &length);
    if (ok) {
        e->bound[e->bound_count++] = (gpu_bound){.slot = b->slot,
                                                 .memory = &buffer->root->m,
                                                 .offset = buffer->offset + b->offset,
                                                 .length = length,
                                                 .writes = writes};
        e->ranges[e->range_count++] = gpu_buffer_range(buffer, b->offset, length, writes);
        e->objects[e->object_count++] = gpu_hold(buffer->root);
    }
    gpu_drop(buffer);
    return ok;
}

static bool add_binding(encoding *e, const sl_gpu_binding *b) {
    if (b->slot < 0 || b->slot >= SL_GPU_SLOTS)
        return bad(e, "slot %d is bound, expected 0 to %d", b->slot, SL_GPU_SLOTS - 1);
    const sl_gpu_arg *a = e->p->by_slot[b->slot];
    if (e->given & (UINT32_C(1) << b->slot))
        return bad_slot(e, b->slot, a, "bound twice");
    e->given |= UINT32_C(1) << b->slot;
    if (e->p->tabled && !a) {
        char text[384];
        return bad_slot(e, b->slot, NULL, "bound, but the kernel has no such argument; its slots: %s",
                        slot_list(e->p, text, sizeof text));
    }
    if (a && a->unused)
        return true;
    return b->buffer ? add_buffer(e, b, a) : add_bytes(e, b, a);
}

static bool check_missing(const encoding *e) {
    for (int i = 0; i < SL_GPU_SLOTS; i++) {
        const sl_gpu_arg *a = e->p->by_slot[i];
        if (a && !a->unused && !((e->given | e->p->perhaps) & (UINT32_C(1) << i)))
            return bad_slot(e, i, a, "nothing is bound, expected %s of at least %u bytes",
                            a->kind == SL_GPU_ARG_BYTES ? "bytes or a buffer" : "a buffer", a->least);
    }
    return true;
}

/* ---- threadgroup memory ------------------------------------------------------------------------------------------ */

static const sl_gpu_arg *threadgroup_arg(const gpu_pipeline *p, int slot) {
    const sl_gpu_arg *found = NULL;
    for (size_t i = 0; i < p->arg_count; i++)
        if (p->args[i].kind == SL_GPU_ARG_THREADGROUP && p->args[i].slot == slot && (!found || found->unused))
            found = &p->args[i];
    return found;
}

static bool add_length(encoding *e, const sl_gpu_threadgroup_length *l) {
    if (l->slot < 0 || l->slot >= SL_GPU_SLOTS)
        return bad(e, "threadgroup slot %d has a length, expected 0 to %d", l->slot, SL_GPU_SLOTS - 1);
    const sl_gpu_arg *a = threadgroup_arg(e->p, l->slot);
    if (e->given_lengths & (UINT32_C(1) << l->slot))
        return bad_slot(e, l->slot, a, "its threadgroup length is given twice");
    e->given_lengths |= UINT32_C(1) << l->slot;
    if (e->p->tabled && !a)
        return bad_slot(e, l->slot, NULL, "a threadgroup length is given, but the kernel has no such argument");
    if (a && a->unused)
        return true;
    uint32_t least = a ? a->least : 1, most = e->p->o.gpu->info.max_threadgroup_memory;
    if (l->bytes < least || l->bytes > most)
        return bad_slot(e, l->slot, a, "%u bytes of threadgroup memory, expected %u to %u", l->bytes, least, most);
    e->lengths[e->length_count++] =
        (sl_gpu_threadgroup_length){l->slot, (uint32_t)sl_round_up(l->bytes, THREADGROUP_UNIT)};
    return true;
}

static bool check_lengths(const encoding *e) {
    uint64_t total = sl_round_up(e->p->limits.threadgroup_memory, THREADGROUP_UNIT);
    for (size_t i = 0; i < e->p->arg_count; i++) {
        const sl_gpu_arg *a = &e->p->args[i];
        if (a->kind == SL_GPU_ARG_THREADGROUP && !a->unused && !(e->given_lengths & (UINT32_C(1) << a->slot)))
            return bad_slot(e, a->slot, a, "its threadgroup length is not given, expected at least %u bytes", a->least);
    }
    for (size_t i = 0; i < e->length_count; i++)
        total += e->lengths[i].bytes;
    return total <= e->p->o.gpu->info.max_threadgroup_memory ||
           bad(e, "%llu bytes of threadgroup memory (%u of its own), expected at most %u", (unsigned long long)total,
               e->p->limits.threadgroup_memory, e->p->o.gpu->info.max_threadgroup_memory);
}

/* ---- encode ------------------------------------------------------------------------------------------------------ */

static bool check_dispatch(encoding *e) {
    const sl_gpu_dispatch *d = e->d;
    if (e->p->o.gpu != e->list->o.gpu)
        return bad(e, "the pipeline is of another device");
    if ((d->binding_count && !d->bindings) || (d->length_count && !d->lengths))
        return bad(e, "%zu bindings and %zu lengths, one of the lists is NULL", d->binding_count, d->length_count);
    if (!check_threads(e) || !check_groups(e))
        return false;
    for (size_t i = 0; i < d->binding_count; i++)
        if (!add_binding(e, &d->bindings[i]))
            return false;
    for (size_t i = 0; i < d->length_count; i++)
        if (!add_length(e, &d->lengths[i]))
            return false;
    return check_missing(e) && check_lengths(e);
}

static void *keep(encoding *e, const void *from, size_t bytes) {
    void *p = gpu_arena_take(&e->list->arena, bytes);
    if (p)
        memcpy(p, from, bytes);
    return p;
}

static bool add_dispatch(encoding *e) {
    const sl_gpu_dispatch *d = e->d;
    gpu_command c = {.kind = GPU_DISPATCH};
    c.label = d->label ? keep(e, d->label, strlen(d->label) + 1) : e->p->entry;
    c.u.dispatch.pipeline = e->p->driver;
    memcpy(c.u.dispatch.groups, d->groups, sizeof d->groups);
    memcpy(c.u.dispatch.threads, d->threads, sizeof d->threads);
    c.u.dispatch.bound = keep(e, e->bound, e->bound_count * sizeof *e->bound);
    c.u.dispatch.bound_count = e->bound_count;
    c.u.dispatch.lengths = keep(e, e->lengths, e->length_count * sizeof *e->lengths);
    c.u.dispatch.length_count = e->length_count;
    if (!c.label || !c.u.dispatch.bound || !c.u.dispatch.lengths)
        return sl_fail(e->err, SL_ERR_MEMORY, "kernel '%s': out of memory", e->p->entry);
    return gpu_list_add(e->list, &c, e->ranges, e->range_count, e->objects, e->object_count, e->err);
}

static bool encode(gpu_list *l, const sl_gpu_dispatch *d, sl_error *err) {
    encoding e = {.list = l, .d = d, .err = err};
    e.p = gpu_take(d->pipeline, GPU_PIPELINE, err);
    if (!e.p)
        return false;
    e.objects[e.object_count++] = e.p;
    bool ok = check_dispatch(&e) && add_dispatch(&e);
    for (size_t i = 0; i < e.object_count; i++)
        gpu_drop(e.objects[i]);
    return ok;
}

bool sl_gpu_encode(sl_gpu_list *list, const sl_gpu_dispatch *d, sl_error *err) {
    if (!d)
        return sl_fail(err, SL_ERR_ARGUMENT, "sl_gpu_encode: the dispatch is NULL");
    gpu_list *l = gpu_list_enter(list, err);
    if (!l)
        return false;
    bool ok = encode(l, d, err);
    gpu_list_leave(l);
    return ok;
}

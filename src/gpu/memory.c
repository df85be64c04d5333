/* Buffers: memory allocated or wrapped (roots), and handles to ranges of it. */
#include "gpu/core.h"

#include <stdlib.h>

bool gpu_check_range(const gpu_buffer *b, uint64_t offset, uint64_t size, const char *what, sl_error *err) {
    if (offset <= b->size && size <= b->size - offset)
        return true;
    uint64_t end;
    if (!sl_add_u64(offset, size, &end))
        end = UINT64_MAX;
    return sl_fail(err, SL_ERR_ARGUMENT, "%s: %llu bytes at offset %llu end at %llu, the buffer has %llu", what,
                   (unsigned long long)size, (unsigned long long)offset, (unsigned long long)end,
                   (unsigned long long)b->size);
}

gpu_range gpu_buffer_range(const gpu_buffer *b, uint64_t offset, uint64_t size, bool writes) {
    uint64_t begin = b->root->base + b->offset + offset;
    return (gpu_range){.space = b->root->space, .begin = begin, .end = begin + size, .root = b->root, .writes = writes};
}

/* ---- roots ------------------------------------------------------------------------------------------------------- */

static void set_space(gpu_root *r) {
    r->space = r->m.host ? NULL : r;
    r->base = (uintptr_t)r->m.host;
}

void gpu_root_destroy(gpu_root *r) {
    sl_gpu *g = r->o.gpu;
    if (r->m.handle || r->m.host)
        g->driver->free(g->device, &r->m);
    atomic_fetch_sub(&g->allocated, r->counted);
    gpu_drop(r->failure);
}

void gpu_root_poison(gpu_root *r, gpu_failure *f) {
    gpu_drop(r->failure); /* the stream still holds it: nothing is destroyed under the lock but memory of the host */
    r->failure = gpu_hold(f);
}

static gpu_buffer *buffer_of(gpu_root *r, uint64_t offset, uint64_t size, sl_error *err) {
    gpu_buffer *b = gpu_object_new(r->o.gpu, GPU_BUFFER, sizeof *b, err);
    if (b) {
        b->root = gpu_hold(r);
        b->offset = offset;
        b->size = size;
    }
    return b;
}

void gpu_buffer_destroy(gpu_buffer *b) {
    gpu_drop(b->root);
}

/* A handle to all of r, whose reference it takes. */
static sl_gpu_buffer *whole(gpu_root *r, uint64_t bytes, sl_error *err) {
    gpu_buffer *b = buffer_of(r, 0, bytes, err);
    gpu_drop(r);
    return b ? gpu_handle_new(b, err) : NULL;
}

/* ---- alloc, wrap, view ------------------------------------------------------------------------------------------- */

static bool check_bytes(const sl_gpu *g, const char *what, uint64_t bytes, sl_error *err) {
    if (!g)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: the device is NULL", what);
    if (bytes == 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: 0 bytes, expected at least 1", what);
    if (g->info.max_buffer && bytes > g->info.max_buffer)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: %llu bytes, a buffer of this device holds at most %llu", what,
                       (unsigned long long)bytes, (unsigned long long)g->info.max_buffer);
    return true;
}

static void warn_working_set(sl_gpu *g, uint64_t total) {
    if (g->info.working_set && total > g->info.working_set && !atomic_exchange(&g->warned_working_set, true))
        sl_logf(&g->log, SL_LOG_WARN, "%llu bytes are allocated, the device recommends at most %llu: expect it to slow",
                (unsigned long long)total, (unsigned long long)g->info.working_set);
}

/* What lists hold that are done is given back before an allocation fails. */
static bool driver_alloc(sl_gpu *g, uint64_t bytes, sl_gpu_memory kind, gpu_memory *m, sl_error *err) {
    sl_error first = {0};
    if (g->driver->alloc(g->device, bytes, kind, m, &first))
        return true;
    gpu_reap(g);
    *m = (gpu_memory){0};
    return g->driver->alloc(g->device, bytes, kind, m, err);
}

sl_gpu_buffer *sl_gpu_alloc(sl_gpu *g, uint64_t bytes, sl_gpu_memory kind, sl_error *err) {
    if (!check_bytes(g, "sl_gpu_alloc", bytes, err))
        return NULL;
    if (kind != SL_GPU_SHARED && kind != SL_GPU_PRIVATE)
        return sl_fail_null(err, SL_ERR_ARGUMENT, "sl_gpu_alloc: kind %d of memory is none", (int)kind);
    gpu_root *r = gpu_object_new(g, GPU_MEMORY, sizeof *r, err);
    if (!r)
        return NULL;
    if (!driver_alloc(g, bytes, kind, &r->m, err)) {
        r->m = (gpu_memory){0};
        gpu_drop(r);
        return NULL;
    }
    r->counted = bytes;
    set_space(r);
    warn_working_set(g, atomic_fetch_add(&g->allocated, bytes) + bytes);
    return whole(r, bytes, err);
}

sl_gpu_buffer *sl_gpu_wrap(sl_gpu *g, void *host, uint64_t bytes, sl_error *err) {
    if (!check_bytes(g, "sl_gpu_wrap", bytes, err))
        return NULL;
    uint64_t end;
    if (!host || !sl_add_u64((uintptr_t)host, bytes, &end))
        return sl_fail_null(err, SL_ERR_ARGUMENT, "sl_gpu_wrap: %llu bytes at address %llx are no memory",
                            (unsigned long long)bytes, (unsigned long long)(uintptr_t)host);
    gpu_root *r = gpu_object_new(g, GPU_MEMORY, sizeof *r, err);
    if (!r)
        return NULL;
    if (!g->driver->wrap(g->device, host, bytes, &r->m, err)) {
        r->m = (gpu_memory){0};
        gpu_drop(r);
        return NULL;
    }
    if (!r->m.host)
        r->m.host = host;
    set_space(r);
    return whole(r, bytes, err);
}

sl_gpu_buffer *sl_gpu_view(sl_gpu_buffer *parent, uint64_t offset, uint64_t bytes, sl_error *err) {
    gpu_buffer *p = gpu_take(parent, GPU_BUFFER, err), *b = NULL;
    if (!p)
        return NULL;
    if (bytes == 0)
        sl_fail(err, SL_ERR_ARGUMENT, "sl_gpu_view: 0 bytes, expected at least 1");
    else if (gpu_check_range(p, offset, bytes, "sl_gpu_view", err))
        b = buffer_of(p->root, p->offset + offset, bytes, err);
    gpu_drop(p);
    return b ? gpu_handle_new(b, err) : NULL;
}

void sl_gpu_buffer_free(sl_gpu_buffer *handle) {
    gpu_buffer *b = gpu_handle_end(handle, GPU_BUFFER);
    if (!b)
        return;
    gpu_mapping_end(b);
    gpu_drop(b);
}

uint64_t sl_gpu_buffer_size(const sl_gpu_buffer *handle) {
    gpu_buffer *b = gpu_take(handle, GPU_BUFFER, NULL);
    uint64_t size = b ? b->size : 0;
    gpu_drop(b);
    return size;
}

uint64_t sl_gpu_room(const sl_gpu *g) {
    return g && g->driver->room ? g->driver->room(g->device) : 0;
}

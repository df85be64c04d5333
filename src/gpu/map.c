/* The host's view of a buffer: waits for whoever uses the range, and copies where host and device share no memory. */
#include "gpu/core.h"

#include <stdlib.h>
#include <string.h>

/* ---- mapped ranges ------------------------------------------------------------------------------------------------
 */

/* False: b is mapped already. */
static bool mapping_begin(gpu_buffer *b, uint64_t offset, uint64_t size, sl_gpu_access access, void *staging) {
    sl_gpu *g = b->o.gpu;
    gpu_mapping *m = &b->map;
    pthread_mutex_lock(&g->lock);
    bool was_free = !m->buffer;
    if (was_free) {
        *m = (gpu_mapping){.buffer = b, .offset = offset, .size = size, .access = access, .staging = staging};
        m->next = g->mapped;
        if (m->next)
            m->next->prev = m;
        g->mapped = m;
    }
    pthread_mutex_unlock(&g->lock);
    return was_free;
}

static bool mapping_take(gpu_buffer *b, gpu_mapping *out) {
    sl_gpu *g = b->o.gpu;
    gpu_mapping *m = &b->map;
    pthread_mutex_lock(&g->lock);
    *out = *m;
    if (m->buffer) {
        if (m->prev)
            m->prev->next = m->next;
        else
            g->mapped = m->next;
        if (m->next)
            m->next->prev = m->prev;
        *m = (gpu_mapping){0};
    }
    pthread_mutex_unlock(&g->lock);
    return out->buffer != NULL;
}

void gpu_mapping_end(gpu_buffer *b) {
    gpu_mapping m;
    if (!mapping_take(b, &m))
        return;
    sl_logf(&b->o.gpu->log, SL_LOG_WARN, "a buffer of %llu bytes was freed while it was mapped",
            (unsigned long long)b->size);
    free(m.staging);
}

bool gpu_mapped_conflict(sl_gpu *g, const gpu_list *l, sl_error *err) {
    bool clash = false;
    uint64_t offset = 0, size = 0;
    pthread_mutex_lock(&g->lock);
    for (gpu_mapping *m = g->mapped; m && !clash; m = m->next) {
        gpu_range r = gpu_buffer_range(m->buffer, m->offset, m->size, (m->access & SL_GPU_WRITE) != 0);
        clash = gpu_uses_conflict(l, &r);
        offset = m->offset;
        size = m->size;
    }
    pthread_mutex_unlock(&g->lock);
    if (clash)
        sl_fail(err, SL_ERR_ARGUMENT, "list '%s' uses %llu bytes at offset %llu of a buffer that are still mapped",
                l->label, (unsigned long long)size, (unsigned long long)offset);
    return clash;
}

/* ---- map --------------------------------------------------------------------------------------------------------- */

/* What a failed list should have written is not read as if it had. */
static bool contents_good(gpu_buffer *b, const char *what, sl_error *err) {
    sl_gpu *g = b->o.gpu;
    pthread_mutex_lock(&g->lock);
    gpu_failure *f = b->root->failure;
    f = f && !f->recovered ? gpu_hold(f) : NULL;
    pthread_mutex_unlock(&g->lock);
    if (!f)
        return true;
    sl_fail(err, f->error.code, "%s: the buffer's contents are not what was asked for: %s", what, f->error.message);
    gpu_drop(f);
    return false;
}

/* Nobody writes b->map but map and unmap of this buffer. */
static bool is_mapped(gpu_buffer *b) {
    sl_gpu *g = b->o.gpu;
    pthread_mutex_lock(&g->lock);
    bool mapped = b->map.buffer != NULL;
    pthread_mutex_unlock(&g->lock);
    return mapped;
}

static bool check_access(const char *what, gpu_buffer *b, uint64_t offset, uint64_t size, sl_gpu_access access,
                         sl_error *err) {
    if (access < SL_GPU_READ || access > SL_GPU_READ_WRITE)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: access %d, expected read, write or both", what, (int)access);
    if (size == 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: 0 bytes, expected at least 1", what);
    return gpu_check_range(b, offset, size, what, err);
}

/* Checks and waits on behalf of the function `what`. */
static bool access_ready(const char *what, gpu_buffer *b, uint64_t offset, uint64_t size, sl_gpu_access access,
                         sl_error *err) {
    if (!check_access(what, b, offset, size, access, err))
        return false;
    if (is_mapped(b))
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: the buffer is mapped already: unmap it first", what);
    gpu_range r = gpu_buffer_range(b, offset, size, (access & SL_GPU_WRITE) != 0);
    if (!gpu_wait_users(b->o.gpu, &r, gpu_deadline(GPU_MAP_SECONDS * UINT64_C(1000000000))))
        return sl_fail(err, SL_ERR_TIMEOUT, "%s: a list that uses the range was not done after %d s", what,
                       GPU_MAP_SECONDS);
    return !(access & SL_GPU_READ) || contents_good(b, what, err);
}

static void *map_buffer(gpu_buffer *b, uint64_t offset, uint64_t size, sl_gpu_access access, sl_error *err) {
    sl_gpu *g = b->o.gpu;
    void *staging = NULL;
    if (!access_ready("sl_gpu_map", b, offset, size, access, err))
        return NULL;
    if (!b->root->m.host) {
        staging = size <= SIZE_MAX ? malloc((size_t)size) : NULL;
        if (!staging)
            return sl_fail_null(err, SL_ERR_MEMORY, "sl_gpu_map: out of memory for a copy of %llu bytes",
                                (unsigned long long)size);
        /* Also for writing only: what the host leaves alone goes back as it was. */
        if (!g->driver->read(g->device, &b->root->m, b->offset + offset, staging, size, err)) {
            free(staging);
            return NULL;
        }
    }
    if (!mapping_begin(b, offset, size, access, staging)) {
        free(staging);
        return sl_fail_null(err, SL_ERR_ARGUMENT, "sl_gpu_map: the buffer is mapped already: unmap it first");
    }
    return staging ? staging : b->root->m.host + b->offset + offset;
}

void *sl_gpu_map(sl_gpu_buffer *handle, uint64_t offset, uint64_t size, sl_gpu_access access, sl_error *err) {
    gpu_buffer *b = gpu_take(handle, GPU_BUFFER, err);
    void *p = b ? map_buffer(b, offset, size, access, err) : NULL;
    gpu_drop(b);
    return p;
}

bool sl_gpu_unmap(sl_gpu_buffer *handle, sl_error *err) {
    gpu_mapping m;
    gpu_buffer *b = gpu_take(handle, GPU_BUFFER, err);
    if (!b)
        return false;
    bool ok = mapping_take(b, &m) || sl_fail(err, SL_ERR_ARGUMENT, "sl_gpu_unmap: the buffer is not mapped");
    sl_gpu *g = b->o.gpu;
    if (ok && m.staging && (m.access & SL_GPU_WRITE))
        ok = g->driver->write(g->device, &b->root->m, b->offset + m.offset, m.staging, m.size, err);
    free(m.staging);
    gpu_drop(b);
    return ok;
}

/* ---- put, get ---------------------------------------------------------------------------------------------------- */

/* to or from is the host's; where the buffer is too (wrapped), they may overlap. */
static bool transfer(gpu_buffer *b, uint64_t offset, void *to, const void *from, uint64_t bytes, sl_error *err) {
    const sl_gpu *g = b->o.gpu;
    gpu_memory *m = &b->root->m;
    if (!m->host)
        return to ? g->driver->read(g->device, m, b->offset + offset, to, bytes, err)
                  : g->driver->write(g->device, m, b->offset + offset, from, bytes, err);
    uint8_t *here = m->host + b->offset + offset;
    memmove(to ? to : here, to ? here : from, (size_t)bytes);
    return true;
}

static bool no_memory(const char *what, uint64_t bytes, sl_error *err) {
    return sl_fail(err, SL_ERR_ARGUMENT, "%s: %llu bytes at NULL", what, (unsigned long long)bytes);
}

bool sl_gpu_put(sl_gpu_buffer *handle, uint64_t offset, const void *from, uint64_t bytes, sl_error *err) {
    gpu_buffer *b = gpu_take(handle, GPU_BUFFER, err);
    bool ok = b && (from || no_memory("sl_gpu_put", bytes, err)) &&
              access_ready("sl_gpu_put", b, offset, bytes, SL_GPU_WRITE, err) &&
              transfer(b, offset, NULL, from, bytes, err);
    gpu_drop(b);
    return ok;
}

bool sl_gpu_get(sl_gpu_buffer *handle, uint64_t offset, void *to, uint64_t bytes, sl_error *err) {
    gpu_buffer *b = gpu_take(handle, GPU_BUFFER, err);
    bool ok = b && (to || no_memory("sl_gpu_get", bytes, err)) &&
              access_ready("sl_gpu_get", b, offset, bytes, SL_GPU_READ, err) &&
              transfer(b, offset, to, NULL, bytes, err);
    gpu_drop(b);
    return ok;
}

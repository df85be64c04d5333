/* Buffers: shared and untracked; host pages wrapped without a copy; the residency set that holds them. */
#include "gpu/metal/metal.h"

#include <string.h>

/* ---- residency ----------------------------------------------------------------------------------------------------
 */

static void add_to_residency(gpu_device *d, metal_id buffer) {
    if (!d->residency)
        return;
    pthread_mutex_lock(&d->lock);
    METAL_SEND(&d->api, addAllocation, d->residency, buffer);
    d->residency_changed = true;
    pthread_mutex_unlock(&d->lock);
}

static void remove_from_residency(gpu_device *d, metal_id buffer) {
    if (!d->residency)
        return;
    pthread_mutex_lock(&d->lock);
    METAL_SEND(&d->api, removeAllocation, d->residency, buffer);
    METAL_SEND(&d->api, commit, d->residency);
    pthread_mutex_unlock(&d->lock);
}

void metal_residency_update(gpu_device *d) {
    if (!d->residency)
        return;
    pthread_mutex_lock(&d->lock);
    if (d->residency_changed) {
        METAL_SEND(&d->api, commit, d->residency);
        METAL_SEND(&d->api, requestResidency, d->residency);
        d->residency_changed = false;
    }
    pthread_mutex_unlock(&d->lock);
}

/* ---- limits -------------------------------------------------------------------------------------------------------
 */

/* Beyond the working set Metal gives memory all the same, and lists then fail or, on some systems, compute wrongly. */
static bool check_room(gpu_device *d, uint64_t bytes, sl_error *err) {
    uint64_t most = d->base.info.max_buffer, working_set = d->base.info.working_set, wanted;
    if (bytes > most)
        return sl_fail(err, SL_ERR_BUDGET, "metal: a buffer of %llu bytes; this GPU allows %llu",
                       (unsigned long long)bytes, (unsigned long long)most);
    uint64_t held = METAL_SEND(&d->api, currentAllocatedSize, d->device);
    if (working_set && (!sl_add_u64(held, bytes, &wanted) || wanted > working_set))
        return sl_fail(err, SL_ERR_BUDGET,
                       "metal: %llu bytes more than the %llu held now exceed this GPU's working set of %llu",
                       (unsigned long long)bytes, (unsigned long long)held, (unsigned long long)working_set);
    return true;
}

/* ---- buffers ------------------------------------------------------------------------------------------------------
 */

static metal_id new_buffer(gpu_device *d, uint64_t bytes, metal_uint storage, sl_error *err) {
    if (!check_room(d, bytes, err))
        return NULL;
    metal_id buffer = METAL_SEND(&d->api, newBuffer, d->device, bytes, storage | METAL_HAZARD_UNTRACKED);
    return buffer ? buffer
                  : sl_fail_null(err, SL_ERR_MEMORY, "metal: no memory for a buffer of %llu bytes",
                                 (unsigned long long)bytes);
}

static bool alloc_in_pool(gpu_device *d, uint64_t bytes, bool shared, gpu_memory *out, sl_error *err) {
    metal_id buffer = new_buffer(d, bytes, shared ? METAL_STORAGE_SHARED : METAL_STORAGE_PRIVATE, err);
    if (!buffer)
        return false;
    void *host = shared ? METAL_SEND(&d->api, contents, buffer) : NULL;
    if (shared && !host) {
        metal_release(&d->api, buffer);
        return sl_fail(err, SL_ERR_DEVICE, "metal: a shared buffer without contents");
    }
    add_to_residency(d, buffer);
    *out = (gpu_memory){.handle = buffer, .host = host, .bytes = bytes};
    return true;
}

bool metal_alloc(gpu_device *d, uint64_t bytes, sl_gpu_memory kind, gpu_memory *out, sl_error *err) {
    if (metal_in_other_process(d, err))
        return false;
    void *pool = metal_pool_push(&d->api);
    bool ok = alloc_in_pool(d, bytes, kind == SL_GPU_SHARED || d->base.info.unified, out, err);
    metal_pool_pop(&d->api, pool);
    return ok;
}

/* Metal wraps whole pages: the range is rounded out, which stays inside pages that are mapped, and the offset kept. */
static bool wrap_in_pool(gpu_device *d, void *host, uint64_t bytes, gpu_memory *out, sl_error *err) {
    uint64_t address = (uint64_t)(uintptr_t)host, begin = address / d->page * d->page, end;
    if (!sl_add_u64(address, bytes, &end) || !sl_add_u64(end, d->page - 1, &end))
        return sl_fail(err, SL_ERR_ARGUMENT, "metal: %llu bytes at %p do not fit the address space",
                       (unsigned long long)bytes, host);
    uint64_t length = end / d->page * d->page - begin;
    if (!check_room(d, length, err))
        return false;
    metal_id buffer = METAL_SEND(&d->api, newBufferNoCopy, d->device, (uint8_t *)host - (address - begin), length,
                                 METAL_STORAGE_SHARED | METAL_HAZARD_UNTRACKED, NULL);
    if (!buffer)
        return sl_fail(err, SL_ERR_MEMORY, "metal: %llu bytes at %p cannot be used in place", (unsigned long long)bytes,
                       host);
    add_to_residency(d, buffer);
    *out = (gpu_memory){.handle = buffer, .host = host, .bytes = bytes, .offset = address - begin};
    return true;
}

bool metal_wrap(gpu_device *d, void *host, uint64_t bytes, gpu_memory *out, sl_error *err) {
    if (metal_in_other_process(d, err))
        return false;
    void *pool = metal_pool_push(&d->api);
    bool ok = wrap_in_pool(d, host, bytes, out, err);
    metal_pool_pop(&d->api, pool);
    return ok;
}

void metal_free(gpu_device *d, gpu_memory *m) {
    void *pool = metal_pool_push(&d->api);
    remove_from_residency(d, m->handle);
    metal_release(&d->api, m->handle);
    metal_pool_pop(&d->api, pool);
    *m = (gpu_memory){0};
}

/* ---- memory that the host does not see ----------------------------------------------------------------------------
 */

static const uint64_t staging_bytes = 32u << 20, copy_limit_ns = 60u * 1000000000ull;

static bool run_copy(gpu_device *d, void *stream, const gpu_command *copy, sl_error *err) {
    void *submission;
    gpu_result result = {0};
    if (!metal_submit(d, stream, "copy", copy, 1, &submission, err))
        return false;
    bool done = metal_wait(d, submission, copy_limit_ns, &result);
    if (done && result.failed)
        *err = result.error;
    if (!done)
        return sl_fail(err, SL_ERR_TIMEOUT, "metal: a copy of %llu bytes did not end in %llu s",
                       (unsigned long long)copy->u.copy.bytes, (unsigned long long)(copy_limit_ns / 1000000000));
    metal_submission_release(d, submission);
    return !result.failed;
}

/* Piece by piece through a shared buffer. to or from is NULL: the other direction. */
static bool copy_pieces(gpu_device *d, gpu_memory *m, uint64_t offset, uint8_t *to, const uint8_t *from, uint64_t bytes,
                        gpu_memory *staging, void *stream, sl_error *err) {
    for (uint64_t at = 0; at < bytes; at += staging->bytes) {
        uint64_t n = bytes - at < staging->bytes ? bytes - at : staging->bytes;
        gpu_command copy = {.kind = GPU_COPY, .label = "copy"};
        copy.u.copy.to = from ? m : staging;
        copy.u.copy.from = from ? staging : m;
        copy.u.copy.to_offset = from ? offset + at : 0;
        copy.u.copy.from_offset = from ? 0 : offset + at;
        copy.u.copy.bytes = n;
        if (from)
            memcpy(staging->host, from + at, n);
        if (!run_copy(d, stream, &copy, err))
            return false;
        if (to)
            memcpy(to + at, staging->host, n);
    }
    return true;
}

static bool copy_through(gpu_device *d, gpu_memory *m, uint64_t offset, uint8_t *to, const uint8_t *from,
                         uint64_t bytes, sl_error *err) {
    gpu_memory staging;
    sl_error unasked;
    uint64_t piece = bytes < staging_bytes ? bytes : staging_bytes;
    if (!bytes)
        return true;
    if (!err)
        err = &unasked;
    if (!metal_alloc(d, piece, SL_GPU_SHARED, &staging, err))
        return false;
    void *stream = metal_stream_new(d, err);
    bool ok = stream && copy_pieces(d, m, offset, to, from, bytes, &staging, stream, err);
    if (!ok && err->code == SL_ERR_TIMEOUT)
        return false; /* the GPU may still write there: better lost than freed */
    if (stream)
        metal_stream_free(d, stream);
    metal_free(d, &staging);
    return ok;
}

bool metal_read(gpu_device *d, gpu_memory *m, uint64_t offset, void *to, uint64_t bytes, sl_error *err) {
    return copy_through(d, m, offset, to, NULL, bytes, err);
}

bool metal_write(gpu_device *d, gpu_memory *m, uint64_t offset, const void *from, uint64_t bytes, sl_error *err) {
    return copy_through(d, m, offset, NULL, from, bytes, err);
}

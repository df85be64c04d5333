/* Memory: the device's own, pinned memory of the host, pages of others that are pinned where they lie. */
#include "gpu/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

/* ---- the device's own -------------------------------------------------------------------------------------------- */

static bool fail_room(gpu_device *d, uint64_t bytes, cuda_result r, sl_error *err) {
    size_t free_bytes = 0, total = 0;
    if (r != CUDA_OUT_OF_MEMORY || d->api.memory_info(&free_bytes, &total) != CUDA_OK)
        return cuda_check(d, r, err, "%llu bytes of GPU memory", (unsigned long long)bytes);
    return sl_fail(err, SL_ERR_MEMORY, "cuda: %llu bytes of GPU memory are needed, %llu of %llu are free on %s",
                   (unsigned long long)bytes, (unsigned long long)free_bytes, (unsigned long long)total,
                   d->base.info.name);
}

bool cuda_device_bytes(gpu_device *d, uint64_t bytes, cuda_address *out, sl_error *err) {
    pthread_mutex_lock(&d->service_lock);
    cuda_result r = d->api.memory_alloc(out, bytes, d->service);
    bool ok = r == CUDA_OK ? cuda_service_finish(d, "an allocation", err) : fail_room(d, bytes, r, err);
    pthread_mutex_unlock(&d->service_lock);
    return ok;
}

/* Nothing that runs uses it: the core, or who calls, has waited. */
void cuda_device_free(gpu_device *d, cuda_address at) {
    if (!at)
        return;
    pthread_mutex_lock(&d->service_lock);
    cuda_freed(d, d->api.memory_free(at, d->service), "freeing GPU memory");
    pthread_mutex_unlock(&d->service_lock);
}

/* ---- alloc, wrap, free ---------------------------------------------------------------------------------------------
 */

static bool alloc_pinned(gpu_device *d, uint64_t bytes, cuda_memory *m, gpu_memory *out, sl_error *err) {
    void *host = NULL;
    if (!cuda_check(d, d->api.host_alloc(&host, bytes, CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED), err,
                    "%llu bytes of pinned host memory", (unsigned long long)bytes))
        return false;
    m->base = (uintptr_t)host;
    out->host = host;
    return true;
}

bool cuda_alloc(gpu_device *d, uint64_t bytes, sl_gpu_memory kind, gpu_memory *out, sl_error *err) {
    cuda_memory *m = calloc(1, sizeof *m);
    *out = (gpu_memory){.handle = m, .bytes = bytes};
    if (!m)
        return sl_fail(err, SL_ERR_MEMORY, "cuda: out of memory");
    m->kind = kind == SL_GPU_PRIVATE ? CUDA_PRIVATE : CUDA_PINNED;
    bool ok = cuda_enter(d, err);
    if (ok) {
        ok = m->kind == CUDA_PRIVATE ? cuda_device_bytes(d, bytes, &m->base, err) : alloc_pinned(d, bytes, m, out, err);
        cuda_leave(d);
    }
    if (!ok) {
        free(m);
        *out = (gpu_memory){0};
    }
    return ok;
}

bool cuda_wrap(gpu_device *d, void *host, uint64_t bytes, gpu_memory *out, sl_error *err) {
    uint64_t address = (uintptr_t)host, begin = address / d->page * d->page, end;
    if (!sl_add_u64(address, bytes, &end) || !sl_add_u64(end, d->page - 1, &end))
        return sl_fail(err, SL_ERR_ARGUMENT, "cuda: %llu bytes at %p do not fit the address space",
                       (unsigned long long)bytes, host);
    cuda_memory *m = calloc(1, sizeof *m);
    if (!m)
        return sl_fail(err, SL_ERR_MEMORY, "cuda: out of memory");
    *m = (cuda_memory){.kind = CUDA_WRAPPED,
                       .base = begin,
                       .pages = (uint8_t *)host - (address - begin),
                       .page_bytes = end / d->page * d->page - begin};
    bool ok = cuda_enter(d, err);
    if (ok) {
        ok = cuda_pages_pin(d, m->pages, m->page_bytes, err);
        cuda_leave(d);
    }
    if (!ok) {
        free(m);
        return false;
    }
    *out = (gpu_memory){.handle = m, .host = host, .bytes = bytes, .offset = address - begin};
    return true;
}

void cuda_free(gpu_device *d, gpu_memory *memory) {
    cuda_memory *m = memory->handle;
    if (m && cuda_enter_to_free(d)) {
        if (m->kind != CUDA_WRAPPED)
            atomic_fetch_add(&d->given_back, 1);
        if (m->kind == CUDA_PRIVATE)
            cuda_device_free(d, m->base);
        else if (m->kind == CUDA_PINNED)
            cuda_freed(d, d->api.host_free((void *)(uintptr_t)m->base), "freeing pinned memory");
        else
            cuda_pages_unpin(d, m->pages, m->page_bytes);
        cuda_leave(d);
    }
    free(m);
    *memory = (gpu_memory){0};
}

uint64_t cuda_room(gpu_device *d) {
    size_t left = 0, total = 0;
    if (!cuda_enter(d, NULL))
        return 0;
    bool ok = cuda_check(d, d->api.memory_info(&left, &total), NULL, "free memory of the GPU");
    cuda_leave(d);
    return ok ? left : 0;
}

/* ---- copies of the host's ------------------------------------------------------------------------------------------
 */

/* to or from is the host's. */
static bool copy(gpu_device *d, cuda_address at, void *to, const void *from, uint64_t bytes, sl_error *err) {
    if (!cuda_enter(d, err))
        return false;
    pthread_mutex_lock(&d->service_lock);
    cuda_result r =
        to ? d->api.copy_to_host(to, at, bytes, d->service) : d->api.copy_to_device(at, from, bytes, d->service);
    bool ok = cuda_check(d, r, err, "a copy of %llu bytes", (unsigned long long)bytes) &&
              cuda_service_finish(d, "a copy", err);
    pthread_mutex_unlock(&d->service_lock);
    cuda_leave(d);
    return ok;
}

bool cuda_read(gpu_device *d, gpu_memory *m, uint64_t offset, void *to, uint64_t bytes, sl_error *err) {
    return bytes == 0 || copy(d, cuda_at(m, offset), to, NULL, bytes, err);
}

bool cuda_write(gpu_device *d, gpu_memory *m, uint64_t offset, const void *from, uint64_t bytes, sl_error *err) {
    return bytes == 0 || copy(d, cuda_at(m, offset), NULL, from, bytes, err);
}

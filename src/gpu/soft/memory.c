/* Memory of the soft device: pages of this process. In checking mode they belong to a file without a name, so that each
 * dispatch can map what it binds at an address of its own. */
#include "gpu/soft/soft.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { POISON = 0xFF }; /* NaN as a float and as a half */
#define MOST_POISON (64ull << 20)

static int open_shared(uint64_t bytes) {
#if defined(__linux__)
    int fd = memfd_create("sluice-buffer", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
#else
    (void)bytes;
#endif
    return -1;
}

bool soft_alloc(gpu_device *device, uint64_t bytes, sl_gpu_memory kind, gpu_memory *out, sl_error *err) {
    soft_device *d = soft_of(device);
    (void)kind;
    if (bytes > d->base.info.max_buffer)
        return sl_fail(err, SL_ERR_MEMORY, "soft: a buffer of %llu bytes, at most %llu", (unsigned long long)bytes,
                       (unsigned long long)d->base.info.max_buffer);
    soft_memory *m = calloc(1, sizeof *m);
    if (!m)
        return sl_fail(err, SL_ERR_MEMORY, "soft: out of memory");
    m->bytes = bytes;
    m->mapped = sl_round_up(bytes ? bytes : 1, SOFT_GUARD);
    m->fd = d->checking ? open_shared(m->mapped) : -1;
    int flags = m->fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    void *p = mmap(NULL, m->mapped, PROT_READ | PROT_WRITE, flags, m->fd, 0);
    if (p == MAP_FAILED) {
        int saved = errno;
        if (m->fd >= 0)
            close(m->fd);
        free(m);
        return sl_fail_errno(err, SL_ERR_MEMORY, saved, "soft: a buffer of %llu bytes", (unsigned long long)bytes);
    }
    m->base = p;
    if (d->checking && bytes <= MOST_POISON)
        memset(p, POISON, bytes);
    *out = (gpu_memory){.handle = m, .host = m->base, .bytes = bytes};
    return true;
}

bool soft_wrap(gpu_device *d, void *host, uint64_t bytes, gpu_memory *out, sl_error *err) {
    soft_memory *m = calloc(1, sizeof *m);
    (void)d;
    if (!m)
        return sl_fail(err, SL_ERR_MEMORY, "soft: out of memory");
    *m = (soft_memory){.base = host, .bytes = bytes, .fd = -1};
    *out = (gpu_memory){.handle = m, .host = m->base, .bytes = bytes};
    return true;
}

void soft_memory_free(gpu_device *d, gpu_memory *memory) {
    soft_memory *m = memory->handle;
    (void)d;
    if (!m)
        return;
    soft_memory_forget(m);
    if (m->mapped)
        munmap(m->base, m->mapped);
    if (m->fd >= 0)
        close(m->fd);
    free(m);
    *memory = (gpu_memory){0};
}

bool soft_memory_read(gpu_device *d, gpu_memory *m, uint64_t offset, void *to, uint64_t bytes, sl_error *err) {
    (void)d;
    (void)err;
    memcpy(to, m->host + offset, bytes);
    return true;
}

bool soft_memory_write(gpu_device *d, gpu_memory *m, uint64_t offset, const void *from, uint64_t bytes, sl_error *err) {
    (void)d;
    (void)err;
    memcpy(m->host + offset, from, bytes);
    return true;
}

/* What a kernel calls, on its fibre. Each of these that waits saves itself and continues the next fibre of its
 * SIMD-group, or the scheduler. */
#include "gpu/soft/soft.h"

#include <string.h>

uint32_t soft_place_static(soft_worker *w, uint32_t size, const char *name, int line);

SOFT_ON_FIBER static const soft_thread *self(void) {
    return &soft_self()->thread;
}

SOFT_ON_FIBER static inline void wait_at(soft_fiber *f, soft_state state, int line) {
    f->state = state;
    f->line = line;
    soft_switch(&f->sp, f->next ? f->next->sp : f->worker->sp);
}

SOFT_ON_FIBER static void barrier(int flags, int line) {
    soft_fiber *f = soft_self();
    wait_at(f, SOFT_AT_BARRIER, line);
    f->threadgroup_epoch.group += (flags & SOFT_MEM_THREADGROUP) != 0;
    f->device_epoch.group += (flags & SOFT_MEM_DEVICE) != 0;
}

SOFT_ON_FIBER static void simd_barrier(int flags, int line) {
    soft_fiber *f = soft_self();
    wait_at(f, SOFT_AT_SIMD_BARRIER, line);
    f->threadgroup_epoch.simd += (flags & SOFT_MEM_THREADGROUP) != 0;
    f->device_epoch.simd += (flags & SOFT_MEM_DEVICE) != 0;
}

SOFT_ON_FIBER static const void *simd_publish(const void *value, uint32_t size, int site, uint32_t *active) {
    soft_fiber *f = soft_self();
    soft_simd *s = f->simd;
    __builtin_memcpy(s->ring[(s->generation + 1) % SOFT_RING][f->thread.lane], value, size);
    wait_at(f, SOFT_AT_SIMD, site);
    *active = s->active;
    return s->ring[s->generation % SOFT_RING];
}

/* Gives up the group with a message. */
SOFT_ON_FIBER static void fail(int line, const char *message) {
    soft_fiber *f = soft_self();
    const uint32_t *p = f->thread.group->position, *t = f->thread.position;
    soft_job_fail(f->worker->job, SL_ERR_DEVICE, "%s: line %d: %s (thread (%u,%u,%u) of threadgroup (%u,%u,%u))",
                  f->worker->job->label, line, message, t[0], t[1], t[2], p[0], p[1], p[2]);
    atomic_store(&f->worker->stop, atomic_load(&f->worker->serial));
    soft_abandon(f);
}

SOFT_ON_FIBER static void *threadgroup_static(uint32_t site, uint32_t size, const char *name, int line) {
    soft_worker *w = soft_self()->worker;
    if (site >= SOFT_MAX_SITES)
        fail(line, "too many declarations of threadgroup memory in one source");
    if (!w->site[site]) {
        uint32_t offset = soft_place_static(w, size, name, line);
        if (offset == UINT32_MAX)
            fail(line, "threadgroup memory above 32768 bytes");
        w->site[site] = offset + 1;
    }
    return w->arena + w->site[site] - 1;
}

static void ignore_hint(const volatile void *address, uint32_t size) {
    (void)address;
    (void)size;
}

static void ignore_read(const void *address, uint32_t size, const void *pc) {
    (void)address;
    (void)size;
    (void)pc;
}

static void ignore_write(void *address, uint32_t size, const void *pc) {
    (void)address;
    (void)size;
    (void)pc;
}

static void ignore_misaligned(const void *address, uint32_t alignment, const char *type, const void *pc) {
    (void)address;
    (void)alignment;
    (void)type;
    (void)pc;
}

static void ignore_beyond(int64_t index, const char *type, const void *pc) {
    (void)index;
    (void)type;
    (void)pc;
}

SOFT_ON_FIBER static void checked_hint(const volatile void *address, uint32_t size) {
    const void *at = (const void *)(uintptr_t)address, *pc = __builtin_return_address(0);
    if ((uintptr_t)address % size)
        soft_check_misaligned(at, size, "an atomic", pc);
    soft_check_access(at, size, SOFT_ATOMIC, pc);
}

static void ignore_fence(void) {}

SOFT_ON_FIBER static void checked_read(const void *address, uint32_t size, const void *pc) {
    soft_check_access(address, size, SOFT_READS, pc);
}

SOFT_ON_FIBER static void checked_write(void *address, uint32_t size, const void *pc) {
    soft_check_access(address, size, SOFT_WRITES, pc);
}

const soft_api soft_api_plain = {
    .abi = SOFT_ABI,
    .self = self,
    .barrier = barrier,
    .simd_barrier = simd_barrier,
    .simd_publish = simd_publish,
    .threadgroup_static = threadgroup_static,
    .atomic_hint = ignore_hint,
    .fail = fail,
    .read = ignore_read,
    .write = ignore_write,
    .beyond = ignore_beyond,
    .misaligned = ignore_misaligned,
    .copy_begin = soft_copy_begin,
    .copy_commit = soft_copy_commit,
    .copy_wait = soft_copy_wait,
    .fence = ignore_fence,
};

const soft_api soft_api_checked = {
    .abi = SOFT_ABI,
    .self = self,
    .barrier = barrier,
    .simd_barrier = simd_barrier,
    .simd_publish = simd_publish,
    .threadgroup_static = threadgroup_static,
    .atomic_hint = checked_hint,
    .fail = fail,
    .read = checked_read,
    .write = checked_write,
    .beyond = soft_check_beyond,
    .misaligned = soft_check_misaligned,
    .copy_begin = soft_copy_begin,
    .copy_commit = soft_copy_commit,
    .copy_wait = soft_copy_wait,
    .fence = soft_check_fence,
};

/* Memory by ranges: the device's own, pinned, registered. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct range {
    uint64_t at, bytes, mapped, serial;
    place where;
} range;

static range *ranges;
static size_t count, capacity;
static uint64_t last_serial;

static range *find(uint64_t at, place where) {
    for (size_t i = 0; i < count; i++)
        if (ranges[i].at == at && ranges[i].where == where)
            return &ranges[i];
    return NULL;
}

static bool overlaps(uint64_t at, uint64_t bytes) {
    for (size_t i = 0; i < count; i++)
        if (at < ranges[i].at + ranges[i].bytes && ranges[i].at < at + bytes)
            return true;
    return false;
}

static void add(uint64_t at, uint64_t bytes, uint64_t mapped, place where) {
    sl_grow((void **)&ranges, &capacity, count + 1, sizeof *ranges);
    ranges[count++] = (range){at, bytes, mapped, ++last_serial, where};
    control.alive++;
    *(where == DEVICE ? &control.allocated : &control.pinned) += bytes;
}

/* With the lock held. */
static bool drop(uint64_t at, place where) {
    range *r = find(at, where);
    if (!r) {
        violate("memory at %llx is freed that is none", (unsigned long long)at);
        return false;
    }
    if (queues_use(r->at, r->bytes))
        violate("memory at %llx is given back while streams have work that uses it", (unsigned long long)at);
    *(where == DEVICE ? &control.allocated : &control.pinned) -= r->bytes;
    if (r->mapped)
        munmap((void *)(uintptr_t)r->at, r->mapped);
    *r = ranges[--count];
    control.alive--;
    return true;
}

bool memory_within(uint64_t at, uint64_t bytes, place *where) {
    bool found = false;
    pthread_mutex_lock(&lock);
    *where = NOWHERE;
    for (size_t i = 0; i < count && !found; i++)
        if (at >= ranges[i].at && at + bytes <= ranges[i].at + ranges[i].bytes) {
            *where = ranges[i].where;
            found = true;
        }
    /* memory of the host that is partly pinned is refused; what is not pinned at all is the host's own */
    bool bad = !found && overlaps(at, bytes);
    pthread_mutex_unlock(&lock);
    return !bad;
}

uint64_t memory_serial(uint64_t at, uint64_t bytes) {
    uint64_t serial = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count && !serial; i++)
        if (at >= ranges[i].at && at + bytes <= ranges[i].at + ranges[i].bytes)
            serial = ranges[i].serial;
    pthread_mutex_unlock(&lock);
    return serial;
}

/* Pinned runs that meet are one to a kernel. */
uint64_t memory_left(uint64_t at) {
    uint64_t end = at;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++)
        if (end >= ranges[i].at && end < ranges[i].at + ranges[i].bytes) {
            end = ranges[i].at + ranges[i].bytes;
            i = (size_t)-1;
        }
    pthread_mutex_unlock(&lock);
    return end - at;
}

static bool is_mapped(const void *at, size_t bytes) {
    return msync((void *)((uintptr_t)at / 4096 * 4096), bytes + (uintptr_t)at % 4096, MS_ASYNC) == 0;
}

static void *map(uint64_t bytes, uint64_t *mapped) {
    *mapped = sl_round_up(bytes ? bytes : 1, 4096);
    void *p = mmap(NULL, *mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static cuda_result take(uint64_t bytes, place where, uint64_t *at) {
    uint64_t mapped;
    pthread_mutex_lock(&lock);
    bool room = where != DEVICE || bytes <= control.memory - control.allocated;
    void *p = room ? map(bytes, &mapped) : NULL;
    if (p) {
        if (bytes <= 1 << 20)
            memset(p, 0xff, bytes);
        add((uintptr_t)p, bytes, mapped, where);
    }
    pthread_mutex_unlock(&lock);
    *at = (uintptr_t)p;
    return p ? CUDA_OK : CUDA_OUT_OF_MEMORY;
}

#define ENTER(symbol)                                                                                                  \
    cuda_result entered = enter_context(symbol);                                                                       \
    if (entered != CUDA_OK)                                                                                            \
    return entered

EXPORTED cuda_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    ENTER("cuMemGetInfo_v2");
    *total = control.memory;
    *free_bytes = control.memory - control.allocated;
    return CUDA_OK;
}

EXPORTED cuda_result cuMemAllocAsync(cuda_address *to, size_t bytes, cuda_queue queue_handle) {
    ENTER("cuMemAllocAsync");
    if (!object_find(queue_handle, QUEUE))
        return INVALID_HANDLE;
    return take(bytes, DEVICE, to);
}

void memory_release(uint64_t at) {
    pthread_mutex_lock(&lock);
    drop(at, DEVICE);
    pthread_mutex_unlock(&lock);
}

/* Frees go through also where the context is broken: what is counted is what the device forgot. */
EXPORTED cuda_result cuMemFreeAsync(cuda_address at, cuda_queue queue_handle) {
    work w = {.what = FREE, .to = at};
    cuda_result r = enter("cuMemFreeAsync");
    if (r != CUDA_OK || broken) {
        memory_release(at);
        return r ? r : broken;
    }
    return queue_put(queue_handle, &w);
}

EXPORTED cuda_result cuMemHostAlloc(void **to, size_t bytes, unsigned flags) {
    ENTER("cuMemHostAlloc");
    uint64_t at;
    cuda_result r = take(bytes, PINNED, &at);
    *to = (void *)(uintptr_t)at;
    return r;
}

static cuda_result release(const char *symbol, void *at, place where) {
    cuda_result r = enter(symbol);
    pthread_mutex_lock(&lock);
    bool ok = drop((uintptr_t)at, where);
    pthread_mutex_unlock(&lock);
    return r ? r : broken ? broken : ok ? CUDA_OK : CUDA_INVALID_VALUE;
}

EXPORTED cuda_result cuMemFreeHost(void *at) {
    return release("cuMemFreeHost", at, PINNED);
}

EXPORTED cuda_result cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags) {
    ENTER("cuMemHostRegister_v2");
    if (!is_mapped(at, bytes))
        return CUDA_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    bool taken = overlaps((uintptr_t)at, bytes);
    if (!taken && bytes)
        add((uintptr_t)at, bytes, 0, REGISTERED);
    pthread_mutex_unlock(&lock);
    return taken ? CUDA_ALREADY_REGISTERED : bytes ? CUDA_OK : CUDA_INVALID_VALUE;
}

EXPORTED cuda_result cuMemHostUnregister(void *at) {
    return release("cuMemHostUnregister", at, REGISTERED);
}

EXPORTED cuda_result cuMemHostGetDevicePointer_v2(cuda_address *to, void *at, unsigned flags) {
    ENTER("cuMemHostGetDevicePointer_v2");
    *to = (uintptr_t)at;
    return CUDA_OK;
}

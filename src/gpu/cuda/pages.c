/* Pages of the host's that are pinned for the device. The driver pins a page once only and refuses what overlaps, but
 * wrapped memory may share pages (two blocks of malloc's): so runs of pages are counted, and a wrap pins what is not
 * yet. All is visible to kernels at the host's own addresses, across runs too. */
#include "gpu/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

struct cuda_page_run {
    uint64_t begin, end; /* addresses */
    uint64_t refs;
};

/* First run that ends behind `at`. */
static size_t first_behind(const gpu_device *d, uint64_t at) {
    size_t low = 0, high = d->run_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (d->runs[middle].end > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void remove_run(gpu_device *d, size_t i) {
    cuda_freed(d, d->api.host_unregister((void *)(uintptr_t)d->runs[i].begin), "unpinning memory");
    atomic_fetch_add(&d->given_back, 1);
    memmove(&d->runs[i], &d->runs[i + 1], (d->run_count - i - 1) * sizeof *d->runs);
    d->run_count--;
}

static bool insert_run(gpu_device *d, size_t i, uint64_t begin, uint64_t end, sl_error *err) {
    void *list = d->runs;
    if (!sl_grow(&list, &d->run_capacity, d->run_count + 1, sizeof *d->runs))
        return sl_fail(err, SL_ERR_MEMORY, "cuda: out of memory");
    d->runs = list;
    cuda_result r = d->api.host_register((void *)(uintptr_t)begin, end - begin, CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED);
    if (!cuda_check(d, r, err, "pinning %llu bytes of host memory (is ulimit -l large enough?)",
                    (unsigned long long)(end - begin)))
        return false;
    memmove(&d->runs[i + 1], &d->runs[i], (d->run_count - i) * sizeof *d->runs);
    d->runs[i] = (cuda_page_run){begin, end, 0};
    d->run_count++;
    return true;
}

/* Runs that overlap [begin, end) lose a reference each. */
static void drop_range(gpu_device *d, uint64_t begin, uint64_t end) {
    for (size_t i = first_behind(d, begin); i < d->run_count && d->runs[i].begin < end;) {
        if (--d->runs[i].refs == 0)
            remove_run(d, i);
        else
            i++;
    }
}

static bool pin(gpu_device *d, uint64_t begin, uint64_t end, sl_error *err) {
    uint64_t at = begin;
    for (size_t i = first_behind(d, begin); at < end; i++) {
        uint64_t gap_end = i < d->run_count && d->runs[i].begin < end ? d->runs[i].begin : end;
        if (at < gap_end && !insert_run(d, i, at, gap_end, err)) {
            drop_range(d, begin, at);
            return false;
        }
        d->runs[i].refs++;
        at = d->runs[i].end;
    }
    return true;
}

bool cuda_pages_pin(gpu_device *d, void *pages, uint64_t bytes, sl_error *err) {
    uint64_t begin = (uintptr_t)pages;
    pthread_mutex_lock(&d->page_lock);
    bool ok = pin(d, begin, begin + bytes, err);
    pthread_mutex_unlock(&d->page_lock);
    return ok;
}

void cuda_pages_unpin(gpu_device *d, void *pages, uint64_t bytes) {
    uint64_t begin = (uintptr_t)pages;
    pthread_mutex_lock(&d->page_lock);
    drop_range(d, begin, begin + bytes);
    pthread_mutex_unlock(&d->page_lock);
}

uint64_t cuda_pages_run(gpu_device *d, cuda_address at) {
    pthread_mutex_lock(&d->page_lock);
    size_t i = first_behind(d, at);
    uint64_t left = i < d->run_count && d->runs[i].begin <= at ? d->runs[i].end - at : UINT64_MAX;
    pthread_mutex_unlock(&d->page_lock);
    return left;
}

/* What this machine reads from memory per second, measured briefly. */
#include "cli.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- memory ------------------------------------------------------------------------------------------------------ */

enum { MEMORY_MOST = 256 << 20, MEMORY_LEAST = 1 << 20, MEMORY_ROUNDS = 5, GRAIN = 1 << 15, MOST_THREADS = 1024 };

uint64_t cli_spare_memory(uint64_t budget) {
    enum { SLACK = 4 << 20 }; /* stacks of threads, page tables, and by how much the measured size is off */
    uint64_t limit = sl_memory_limit(NULL), held = sl_peak_rss() + SLACK;
    if (budget > 0 && budget < limit)
        limit = budget;
    return limit > held ? limit - held : 0;
}

/* Pages of their own, so that all of them go back to the system: an allocator might keep some. */
static void *take_pages(uint64_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void give_pages(void *p, uint64_t bytes) {
    if (p)
        munmap(p, bytes);
}

/* Of the last level, as far as so many threads share it; where the system does not say, what large machines have. Of
 * the system's words the smaller one: C's may count every core's share, the kernel's is that of one group of cores. */
static uint64_t cache_bytes(int threads) {
    unsigned long long group = 0;
    long all = -1;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
    if (f && fscanf(f, "%lluK", &group) != 1)
        group = 0;
    if (f)
        fclose(f);
    group *= 1024 * (unsigned long long)threads;
#ifdef _SC_LEVEL3_CACHE_SIZE
    all = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    if (all > 0 && (group == 0 || (unsigned long long)all < group))
        group = (unsigned long long)all;
    return group > 0 ? group : 32 << 20;
}

typedef struct memory_job {
    const uint64_t *words;
    uint64_t sums[MOST_THREADS];
} memory_job;

/* Four sums, so that additions do not wait for each other: the loop is as fast as loads are. */
static void sum_words(void *ctx, int64_t begin, int64_t end, int worker) {
    memory_job *job = ctx;
    const uint64_t *w = job->words;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (int64_t i = begin; i + 32 <= end; i += 32)
        for (int64_t k = 0; k < 32; k += 4) {
            a += w[i + k];
            b += w[i + k + 1];
            c += w[i + k + 2];
            d += w[i + k + 3];
        }
    job->sums[worker] += a + b + c + d;
}

static double best_rate(memory_job *job, uint64_t bytes, sl_pool *pool) {
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < MEMORY_ROUNDS; i++) {
        uint64_t began = sl_now_ns();
        sl_pool_run(pool, (int64_t)(bytes / sizeof *job->words), GRAIN, sum_words, job);
        uint64_t took = sl_now_ns() - began;
        best = took < best ? took : best;
    }
    /* The sums must be wanted, or the loop is none. */
    if (job->sums[0] == 1)
        best++;
    return (double)bytes * 1e9 / (double)(best ? best : 1);
}

bool cli_measure_memory_rates(const int *threads, int n, uint64_t spare, double *rates, bool *beyond_caches,
                              sl_error *err) {
    uint64_t bytes = spare < MEMORY_MOST ? spare / 4096 * 4096 : MEMORY_MOST;
    bytes = bytes < MEMORY_LEAST ? MEMORY_LEAST : bytes;
    memory_job *job = calloc(1, sizeof *job);
    uint64_t *words = take_pages(bytes);
    bool ok = (job && words) || sl_fail(err, SL_ERR_MEMORY, "out of memory for measuring memory");
    if (ok) {
        memset(words, 1, bytes);
        job->words = words;
    }
    for (int i = 0; ok && i < n; i++) {
        sl_pool *pool = sl_pool_new(threads[i] < MOST_THREADS ? threads[i] : MOST_THREADS, err);
        ok = pool != NULL;
        if (ok)
            rates[i] = best_rate(job, bytes, pool);
        sl_pool_free(pool);
    }
    give_pages(words, bytes);
    free(job);
    *beyond_caches = bytes >= 2 * cache_bytes(threads[n - 1]);
    return ok;
}

bool cli_measure_memory_read(int threads, uint64_t spare, cli_machine_rates *out, sl_error *err) {
    return cli_measure_memory_rates(&threads, 1, spare, &out->memory_read, &out->beyond_caches, err);
}

/* A pool of threads for parallel loops.
 *
 * One loop at a time. The caller publishes the loop under a generation number; workers that see a new generation join,
 * take pieces from a shared counter, and report back. Within a step loops follow each other every few microseconds, so
 * a worker spins up to 50 us for the next generation before it sleeps on a condition variable; between steps it sleeps.
 */
#include "base/base.h"

#include <pthread.h>
#include <stdlib.h>

enum { SPIN_NS = 50000 };

struct sl_pool {
    int threads;
    int started; /* worker threads that exist: threads - 1 */
    pthread_t *handles;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    _Atomic uint32_t generation; /* changes when a loop is published or the pool ends */
    _Atomic int sleeping;
    _Atomic bool ending;
    /* the loop */
    sl_pool_fn fn;
    void *ctx;
    int64_t n, grain;
    _Atomic int64_t next;
    _Atomic int busy; /* workers that have not yet left the loop */
};

typedef struct worker_arg {
    sl_pool *pool;
    int index;
} worker_arg;

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_pieces(sl_pool *p, int worker) {
    for (;;) {
        int64_t begin = atomic_fetch_add_explicit(&p->next, p->grain, memory_order_relaxed);
        if (begin >= p->n)
            return;
        p->fn(p->ctx, begin, sl_min_i64(begin + p->grain, p->n), worker);
    }
}

/* Returns when the generation is no longer `seen`. */
static void await_generation(sl_pool *p, uint32_t seen) {
    uint64_t start = sl_now_ns();
    for (int i = 0; atomic_load_explicit(&p->generation, memory_order_acquire) == seen; i++) {
        relax();
        if ((i & 63) == 63 && sl_now_ns() - start > SPIN_NS)
            break;
    }
    if (atomic_load_explicit(&p->generation, memory_order_acquire) != seen)
        return;
    pthread_mutex_lock(&p->mutex);
    atomic_fetch_add(&p->sleeping, 1);
    while (atomic_load(&p->generation) == seen)
        pthread_cond_wait(&p->wake, &p->mutex);
    atomic_fetch_sub(&p->sleeping, 1);
    pthread_mutex_unlock(&p->mutex);
}

static void *worker_main(void *arg) {
    worker_arg w = *(worker_arg *)arg;
    free(arg);
    uint32_t seen = 0;
    for (;;) {
        await_generation(w.pool, seen);
        if (atomic_load(&w.pool->ending))
            return NULL;
        /* Every worker takes part in every generation, so counting up by one cannot skip a loop. */
        seen++;
        take_pieces(w.pool, w.index);
        atomic_fetch_sub_explicit(&w.pool->busy, 1, memory_order_acq_rel);
    }
}

static void publish(sl_pool *p) {
    atomic_fetch_add(&p->generation, 1);
    if (atomic_load(&p->sleeping) > 0) {
        pthread_mutex_lock(&p->mutex);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->mutex);
    }
}

static bool start_worker(sl_pool *p, int index) {
    worker_arg *w = malloc(sizeof *w);
    if (!w)
        return false;
    *w = (worker_arg){p, index};
    if (pthread_create(&p->handles[p->started], NULL, worker_main, w) != 0) {
        free(w);
        return false;
    }
    p->started++;
    return true;
}

sl_pool *sl_pool_new(int threads, sl_error *err) {
    if (threads < 1 || threads > 1024)
        return sl_fail_null(err, SL_ERR_ARGUMENT, "threads: %d, expected 1 to 1024", threads);
    sl_pool *p = calloc(1, sizeof *p);
    pthread_t *handles = calloc((size_t)threads, sizeof *handles);
    if (!p || !handles) {
        free(p);
        free(handles);
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for %d threads", threads);
    }
    p->threads = threads;
    p->handles = handles;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->wake, NULL);
    for (int i = 1; i < threads; i++) {
        if (!start_worker(p, i)) {
            sl_pool_free(p);
            return sl_fail_null(err, SL_ERR_MEMORY, "cannot start thread %d of %d", i + 1, threads);
        }
    }
    return p;
}

void sl_pool_free(sl_pool *p) {
    if (!p)
        return;
    atomic_store(&p->ending, true);
    pthread_mutex_lock(&p->mutex);
    atomic_fetch_add(&p->generation, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mutex);
    for (int i = 0; i < p->started; i++)
        pthread_join(p->handles[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mutex);
    free(p->handles);
    free(p);
}

int sl_pool_threads(const sl_pool *p) {
    return p->threads;
}

void sl_pool_run(sl_pool *p, int64_t n, int64_t grain, sl_pool_fn fn, void *ctx) {
    if (n <= 0)
        return;
    if (grain < 1)
        grain = 1;
    if (p->threads == 1 || n <= grain) {
        fn(ctx, 0, n, 0);
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    p->n = n;
    p->grain = grain;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->busy, p->started, memory_order_relaxed);
    publish(p);
    take_pieces(p, 0);
    while (atomic_load_explicit(&p->busy, memory_order_acquire) != 0)
        relax();
}

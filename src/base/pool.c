/* A pool of threads for parallel loops.
 *
 * One loop at a time. Everything that says whether there is a loop to join is one word: the loop's number, whether it
 * is open, and how many workers are inside. The caller opens a loop, workers that see a new open one join it and take
 * pieces from a shared counter; when the counter is used up the caller closes the loop and waits for those inside only:
 * a worker that woke too late finds it closed and was never waited for. Within a step loops follow each other every few
 * microseconds, so a worker spins up to 50 us for the next before it sleeps; between steps it sleeps. The caller too
 * spins no longer than that for the last pieces: with more threads than cores they need its core. */
#include "base/base.h"

#include <pthread.h>
#include <stdlib.h>

enum { SPIN_NS = 50000 };

/* state = number << 32 | OPEN | workers inside */
enum { OPEN = 1 << 16, INSIDE = OPEN - 1 };

struct sl_pool {
    int threads;
    int started; /* worker threads that exist: threads - 1 */
    pthread_t *handles;
    pthread_mutex_t mutex;
    pthread_cond_t wake, left; /* a loop was opened; the last worker left a closed one */
    _Atomic uint64_t state;
    _Atomic int sleeping;       /* workers that wait for wake */
    _Atomic bool caller_sleeps; /* waits for left */
    _Atomic bool ending;
    /* the loop, written while nobody is inside */
    sl_pool_fn fn;
    void *ctx;
    int64_t n, grain, pieces;
    _Atomic int64_t next; /* piece */
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

static uint32_t number_of(uint64_t state) {
    return (uint32_t)(state >> 32);
}

static void take_pieces(sl_pool *p, int worker) {
    for (;;) {
        int64_t piece = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (piece >= p->pieces)
            return;
        int64_t begin = piece * p->grain;
        p->fn(p->ctx, begin, p->n - begin < p->grain ? p->n : begin + p->grain, worker);
    }
}

/* Returns the state once its loop is no longer number `seen`. */
static uint64_t await_loop(sl_pool *p, uint32_t seen) {
    uint64_t start = sl_now_ns(), state;
    for (int i = 1; i % 64 || sl_now_ns() - start <= SPIN_NS; i++) {
        state = atomic_load_explicit(&p->state, memory_order_acquire);
        if (number_of(state) != seen)
            return state;
        relax();
    }
    pthread_mutex_lock(&p->mutex);
    atomic_fetch_add(&p->sleeping, 1);
    while (number_of(state = atomic_load(&p->state)) == seen)
        pthread_cond_wait(&p->wake, &p->mutex);
    atomic_fetch_sub(&p->sleeping, 1);
    pthread_mutex_unlock(&p->mutex);
    return state;
}

/* Enters the loop of `state` if it is still open. */
static bool join_loop(sl_pool *p, uint64_t state) {
    uint32_t number = number_of(state);
    while ((state & OPEN) && number_of(state) == number)
        if (atomic_compare_exchange_weak_explicit(&p->state, &state, state + 1, memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
    return false;
}

static void leave_loop(sl_pool *p) {
    uint64_t before = atomic_fetch_sub(&p->state, 1);
    bool last = !(before & OPEN) && (before & INSIDE) == 1;
    if (last && atomic_load(&p->caller_sleeps)) {
        pthread_mutex_lock(&p->mutex);
        pthread_cond_signal(&p->left);
        pthread_mutex_unlock(&p->mutex);
    }
}

static void *worker_main(void *arg) {
    worker_arg w = *(worker_arg *)arg;
    free(arg);
    uint32_t seen = 0;
    for (;;) {
        uint64_t state = await_loop(w.pool, seen);
        if (atomic_load(&w.pool->ending))
            return NULL;
        seen = number_of(state);
        if (join_loop(w.pool, state)) {
            take_pieces(w.pool, w.index);
            leave_loop(w.pool);
        }
    }
}

/* The next number, with `open` or 0; nobody is inside. */
static void publish(sl_pool *p, uint64_t open) {
    uint64_t number = number_of(atomic_load_explicit(&p->state, memory_order_relaxed));
    atomic_store(&p->state, (number + 1) << 32 | open);
    if (atomic_load(&p->sleeping) > 0) {
        pthread_mutex_lock(&p->mutex);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->mutex);
    }
}

static bool anyone_inside(sl_pool *p) {
    return atomic_load_explicit(&p->state, memory_order_acquire) & INSIDE;
}

/* Closes the loop and returns when the last worker has left it. */
static void close_loop(sl_pool *p) {
    atomic_fetch_and(&p->state, ~(uint64_t)OPEN);
    if (!anyone_inside(p))
        return;
    uint64_t start = sl_now_ns();
    for (int i = 1; i % 64 || sl_now_ns() - start <= SPIN_NS; i++) {
        relax();
        if (!anyone_inside(p))
            return;
    }
    pthread_mutex_lock(&p->mutex);
    atomic_store(&p->caller_sleeps, true);
    while (atomic_load(&p->state) & INSIDE)
        pthread_cond_wait(&p->left, &p->mutex);
    atomic_store(&p->caller_sleeps, false);
    pthread_mutex_unlock(&p->mutex);
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
    pthread_cond_init(&p->left, NULL);
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
    publish(p, 0);
    for (int i = 0; i < p->started; i++)
        pthread_join(p->handles[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->left);
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
    p->pieces = (n - 1) / grain + 1;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    publish(p, OPEN);
    take_pieces(p, 0);
    close_loop(p);
}

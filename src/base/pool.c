/* A pool of threads for parallel loops.
 *
 * One loop at a time. Everything that says whether there is a loop to join is one word: the loop's number, whether it
 * is open, and how many workers are inside. The caller opens a loop, workers that see a new open one join it and take
 * pieces; when none is left the caller closes the loop and waits for those inside only: a worker that woke too late
 * finds it closed and was never waited for.
 *
 * Each thread has a share of neighbouring pieces and takes them in ascending order, so that memory it has asked for
 * ahead is its own next piece; whoever has no piece left takes the last of another's share. Within a step loops follow
 * each other every few microseconds, so a worker spins up to 50 us for the next before it sleeps; between steps it
 * sleeps. The caller too spins no longer than that for the last pieces: with more threads than cores they need its
 * core. */
#include "base/base.h"

#include <errno.h>
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
    int64_t n, grain;
    struct share *shares; /* [threads] */
};

/* Pieces nobody has taken: begin << 32 | end. */
typedef struct share {
    _Alignas(64) _Atomic uint64_t left;
} share;

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

/* The first of a share, or its last; -1: none is left. */
static int64_t take_one(share *s, bool first) {
    uint64_t left = atomic_load_explicit(&s->left, memory_order_relaxed);
    while (left >> 32 < (uint32_t)left) {
        uint64_t rest = first ? left + (1ull << 32) : left - 1;
        if (atomic_compare_exchange_weak_explicit(&s->left, &left, rest, memory_order_relaxed, memory_order_relaxed))
            return first ? (int64_t)(left >> 32) : (int64_t)(uint32_t)left - 1;
    }
    return -1;
}

static void run_piece(sl_pool *p, int64_t piece, int worker) {
    int64_t begin = piece * p->grain;
    p->fn(p->ctx, begin, p->n - begin < p->grain ? p->n : begin + p->grain, worker);
}

static void take_pieces(sl_pool *p, int worker) {
    for (int i = 0; i < p->threads; i++) {
        share *s = &p->shares[(worker + i) % p->threads];
        for (int64_t piece; (piece = take_one(s, i == 0)) >= 0;)
            run_piece(p, piece, worker);
    }
}

/* Equal shares of all pieces, which must be fewer than 2^32. */
static void deal(sl_pool *p, int64_t pieces) {
    for (int64_t i = 0; i < p->threads; i++) {
        uint64_t begin = (uint64_t)(pieces * i / p->threads), end = (uint64_t)(pieces * (i + 1) / p->threads);
        atomic_store_explicit(&p->shares[i].left, begin << 32 | end, memory_order_relaxed);
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

/* 0, or why not, as errno says it. */
static int start_worker(sl_pool *p, int index) {
    worker_arg *w = malloc(sizeof *w);
    if (!w)
        return ENOMEM;
    *w = (worker_arg){p, index};
    int why = pthread_create(&p->handles[p->started], NULL, worker_main, w);
    if (why != 0)
        free(w);
    else
        p->started++;
    return why;
}

sl_pool *sl_pool_new(int threads, sl_error *err) {
    if (threads < 1 || threads > 1024)
        return sl_fail_null(err, SL_ERR_ARGUMENT, "threads: %d, expected 1 to 1024", threads);
    sl_pool *p = calloc(1, sizeof *p);
    pthread_t *handles = calloc((size_t)threads, sizeof *handles);
    share *shares = aligned_alloc(_Alignof(share), (size_t)threads * sizeof *shares);
    if (!p || !handles || !shares) {
        free(p);
        free(handles);
        free(shares);
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for %d threads", threads);
    }
    p->threads = threads;
    p->handles = handles;
    p->shares = shares;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->left, NULL);
    for (int i = 1; i < threads; i++) {
        int why = start_worker(p, i);
        if (why != 0) {
            sl_pool_free(p);
            sl_fail_errno(err, SL_ERR_MEMORY, why, "cannot start thread %d of %d", i + 1, threads);
            return NULL;
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
    free(p->shares);
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
    p->grain = sl_max_i64(grain, n / UINT32_MAX + 1);
    deal(p, (n - 1) / p->grain + 1);
    publish(p, OPEN);
    take_pieces(p, 0);
    close_loop(p);
}

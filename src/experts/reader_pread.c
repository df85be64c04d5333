/* The pread reader: a pool of threads, each of which reads one piece at a time. Works on every system; the depth of
 * the disk's queue is the number of threads. Threads sleep on a condition variable when there is nothing to read. */
#include "experts/reader.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { DEFAULT_THREADS = 8, MAX_THREADS = 256 };

typedef struct pread_reader {
    sl_reader base;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t work;   /* pieces to read, or the end */
    pthread_cond_t results;
    experts_jobs jobs;
    int outstanding; /* reads whose last result was not collected */
    int idle;        /* threads that wait for work */
    bool ending;
    int threads;
    pthread_t thread[MAX_THREADS];
} pread_reader;

static pread_reader *self_of(sl_reader *r) {
    return (pread_reader *)r;
}

static void read_piece(const experts_jobs *q, experts_piece *p) {
    const experts_job *j = p->job;
    for (bool over = false; !over;) {
        uint64_t at = p->begin + p->done;
        ssize_t n = pread(j->fd, j->read.dst + at, (size_t)experts_piece_ask(q, p), (off_t)(j->read.offset + at));
        over = experts_piece_advance(p, experts_piece_answer(q, p, n < 0 ? -errno : n));
    }
}

/* With the mutex held, which is let go while it reads. */
static void work_on_piece(pread_reader *r, experts_piece *p) {
    pthread_mutex_unlock(&r->mutex);
    read_piece(&r->jobs, p);
    pthread_mutex_lock(&r->mutex);
    experts_job *ended = experts_jobs_piece_over(&r->jobs, p);
    if (!ended)
        return;
    pthread_mutex_unlock(&r->mutex);
    experts_job_drop(ended);
    pthread_mutex_lock(&r->mutex);
    experts_jobs_finish(&r->jobs, ended);
    pthread_cond_signal(&r->results);
}

static void wait_work(pread_reader *r) {
    r->idle++;
    pthread_cond_wait(&r->work, &r->mutex);
    r->idle--;
}

static void *worker_main(void *arg) {
    pread_reader *r = arg;
    pthread_mutex_lock(&r->mutex);
    while (!r->ending) {
        experts_piece p;
        if (experts_jobs_next_piece(&r->jobs, sl_now_ns(), &p))
            work_on_piece(r, &p);
        else
            wait_work(r);
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

/* With the mutex held: as many threads as the reads have pieces; waking all for one read costs more than it. */
static void wake_workers(pread_reader *r, const sl_read *reads, int n) {
    uint64_t pieces = 0;
    for (int i = 0; i < n && pieces < MAX_THREADS; i++)
        pieces += (reads[i].need + r->jobs.piece_bytes - 1) / r->jobs.piece_bytes;
    for (int i = 0; i < r->idle && (uint64_t)i < pieces; i++)
        pthread_cond_signal(&r->work);
}

static bool pread_submit(sl_reader *reader, const sl_read *reads, int n, sl_error *err) {
    pread_reader *r = self_of(reader);
    pthread_mutex_lock(&r->mutex);
    bool ok = experts_jobs_add(&r->jobs, reads, n, err);
    if (ok) {
        r->outstanding += n;
        wake_workers(r, reads, n);
    }
    pthread_mutex_unlock(&r->mutex);
    return ok;
}

static void wait_results(pread_reader *r, uint64_t until) {
    if (until == UINT64_MAX) {
        pthread_cond_wait(&r->results, &r->mutex);
        return;
    }
#ifdef __APPLE__
    uint64_t ns = experts_time_left(until, sl_now_ns());
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    pthread_cond_timedwait_relative_np(&r->results, &r->mutex, &t);
#else
    struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    pthread_cond_timedwait(&r->results, &r->mutex, &t);
#endif
}

static int final_results(const sl_read_result *out, int n) {
    int final = 0;
    for (int i = 0; i < n; i++)
        final += !out[i].quarantined;
    return final;
}

static int pread_collect(sl_reader *reader, sl_read_result *out, int max, uint64_t timeout_ns) {
    pread_reader *r = self_of(reader);
    uint64_t end = experts_end_of_wait(timeout_ns);
    pthread_mutex_lock(&r->mutex);
    int n;
    for (;;) {
        uint64_t now = sl_now_ns();
        experts_jobs_expire(&r->jobs, now);
        n = experts_jobs_results(&r->jobs, out, max);
        if (n > 0 || now >= end || r->outstanding == 0)
            break;
        uint64_t deadline = experts_jobs_deadline(&r->jobs);
        wait_results(r, deadline < end ? deadline : end);
    }
    r->outstanding -= final_results(out, n);
    pthread_mutex_unlock(&r->mutex);
    return n;
}

static void pread_close(sl_reader *reader) {
    pread_reader *r = self_of(reader);
    pthread_mutex_lock(&r->mutex);
    r->ending = true;
    experts_jobs_drop_waiting(&r->jobs);
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->mutex);
    for (int i = 0; i < r->threads; i++)
        pthread_join(r->thread[i], NULL);
    pthread_cond_destroy(&r->results);
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->mutex);
    experts_jobs_free(&r->jobs);
    free(r);
}

/* Deadlines are on the monotonic clock. */
static void init_condition(pthread_cond_t *c) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
#ifndef __APPLE__
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
#endif
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

sl_reader *experts_reader_pread(const experts_reader_setup *s, sl_error *err) {
    int threads = s->depth ? s->depth : DEFAULT_THREADS;
    if (threads < 1 || threads > MAX_THREADS)
        return sl_fail_null(err, SL_ERR_ARGUMENT, "pread: %d threads, expected 1 to %d", threads, MAX_THREADS);
    pread_reader *r = calloc(1, sizeof *r);
    if (!r)
        return sl_fail_null(err, SL_ERR_MEMORY, "pread: out of memory");
    pthread_mutex_init(&r->mutex, NULL);
    init_condition(&r->work);
    init_condition(&r->results);
    r->jobs = (experts_jobs){
        .direct = s->direct, .piece_bytes = s->piece_bytes, .timeout_ns = s->timeout_ns, .faults = s->faults};
    r->base = (sl_reader){
        .name = "pread", .direct = s->direct, .submit = pread_submit, .collect = pread_collect, .close = pread_close};
    while (r->threads < threads && pthread_create(&r->thread[r->threads], NULL, worker_main, r) == 0)
        r->threads++;
    if (r->threads == 0) {
        pread_close(&r->base);
        return sl_fail_null(err, SL_ERR_MEMORY, "pread: cannot start a thread");
    }
    return &r->base;
}

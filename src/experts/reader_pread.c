/* The pread reader: a pool of threads, each of which reads one piece at a time. Works on every system; the depth of
 * the disk's queue is the number of threads. Threads sleep on a condition variable when there is nothing to read. */
#include "experts/reader.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { DEFAULT_THREADS = 8, MAX_THREADS = 256 };

/* A disk's queue and the threads that serve it. */
typedef struct lane {
    struct pread_reader *reader;
    pthread_cond_t work; /* pieces to read, or the end */
    experts_jobs jobs;
    int idle; /* threads that wait for work */
    int threads;
    pthread_t thread[MAX_THREADS];
} lane;

typedef struct pread_reader {
    sl_reader base;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t results;
    int outstanding; /* reads whose last result was not collected */
    bool ending;
    int lanes;
    lane lane[SL_READER_DISKS];
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
static void work_on_piece(lane *l, experts_piece *p) {
    pread_reader *r = l->reader;
    pthread_mutex_unlock(&r->mutex);
    read_piece(&l->jobs, p);
    pthread_mutex_lock(&r->mutex);
    experts_job *ended = experts_jobs_piece_over(&l->jobs, p);
    if (!ended)
        return;
    pthread_mutex_unlock(&r->mutex);
    experts_job_drop(ended);
    pthread_mutex_lock(&r->mutex);
    experts_jobs_finish(&l->jobs, ended);
    pthread_cond_signal(&r->results);
}

static void wait_work(lane *l) {
    l->idle++;
    pthread_cond_wait(&l->work, &l->reader->mutex);
    l->idle--;
}

static void *worker_main(void *arg) {
    lane *l = arg;
    pread_reader *r = l->reader;
    pthread_mutex_lock(&r->mutex);
    while (!r->ending) {
        experts_piece p;
        if (experts_jobs_next_piece(&l->jobs, sl_now_ns(), &p))
            work_on_piece(l, &p);
        else
            wait_work(l);
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

/* With the mutex held: as many threads as the reads have pieces; waking all for one read costs more than it. */
static void wake_workers(lane *l, const sl_read *reads, int n) {
    uint64_t pieces = 0;
    for (int i = 0; i < n && pieces < MAX_THREADS; i++)
        pieces += (reads[i].need + l->jobs.piece_bytes - 1) / l->jobs.piece_bytes;
    for (int i = 0; i < l->idle && (uint64_t)i < pieces; i++)
        pthread_cond_signal(&l->work);
}

static bool pread_submit(sl_reader *reader, const sl_read *reads, int n, sl_error *err) {
    pread_reader *r = self_of(reader);
    if (n == 0)
        return true;
    lane *l = &r->lane[reads->disk];
    pthread_mutex_lock(&r->mutex);
    bool ok = experts_jobs_add(&l->jobs, reads, n, err);
    if (ok) {
        r->outstanding += n;
        wake_workers(l, reads, n);
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

/* With the mutex held: what is over its time, then what is finished. */
static int take_results(pread_reader *r, uint64_t now, sl_read_result *out, int max) {
    int n = 0;
    for (int i = 0; i < r->lanes; i++) {
        experts_jobs_expire(&r->lane[i].jobs, now);
        n += experts_jobs_results(&r->lane[i].jobs, out + n, max - n);
    }
    return n;
}

static uint64_t next_deadline(const pread_reader *r) {
    uint64_t at = UINT64_MAX;
    for (int i = 0; i < r->lanes; i++) {
        uint64_t own = experts_jobs_deadline(&r->lane[i].jobs);
        at = own < at ? own : at;
    }
    return at;
}

static int pread_collect(sl_reader *reader, sl_read_result *out, int max, uint64_t timeout_ns) {
    pread_reader *r = self_of(reader);
    uint64_t end = experts_end_of_wait(timeout_ns);
    pthread_mutex_lock(&r->mutex);
    int n;
    for (;;) {
        uint64_t now = sl_now_ns();
        n = take_results(r, now, out, max);
        if (n > 0 || now >= end || r->outstanding == 0)
            break;
        uint64_t deadline = next_deadline(r);
        wait_results(r, deadline < end ? deadline : end);
    }
    r->outstanding -= final_results(out, n);
    pthread_mutex_unlock(&r->mutex);
    return n;
}

static void close_lane(lane *l) {
    for (int i = 0; i < l->threads; i++)
        pthread_join(l->thread[i], NULL);
    pthread_cond_destroy(&l->work);
    experts_jobs_free(&l->jobs);
}

static void pread_close(sl_reader *reader) {
    pread_reader *r = self_of(reader);
    pthread_mutex_lock(&r->mutex);
    r->ending = true;
    for (int i = 0; i < r->lanes; i++) {
        experts_jobs_drop_waiting(&r->lane[i].jobs);
        pthread_cond_broadcast(&r->lane[i].work);
    }
    pthread_mutex_unlock(&r->mutex);
    for (int i = 0; i < r->lanes; i++)
        close_lane(&r->lane[i]);
    pthread_cond_destroy(&r->results);
    pthread_mutex_destroy(&r->mutex);
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

static int thread_count(const experts_disk_setup *d) {
    return d->depth ? d->depth : DEFAULT_THREADS;
}

/* false: it has no thread. */
static bool open_lane(pread_reader *r, const experts_disk_setup *d, const experts_reader_setup *s) {
    lane *l = &r->lane[r->lanes++];
    l->reader = r;
    l->jobs = (experts_jobs){
        .direct = d->direct, .piece_bytes = d->piece_bytes, .timeout_ns = s->timeout_ns, .faults = s->faults};
    init_condition(&l->work);
    while (l->threads < thread_count(d) && pthread_create(&l->thread[l->threads], NULL, worker_main, l) == 0)
        l->threads++;
    return l->threads > 0;
}

sl_reader *experts_reader_pread(const experts_reader_setup *s, sl_error *err) {
    for (int i = 0; i < s->disks; i++) {
        int threads = thread_count(&s->disk[i]);
        if (threads < 1 || threads > MAX_THREADS)
            return sl_fail_null(err, SL_ERR_ARGUMENT, "pread: %d threads, expected 1 to %d", threads, MAX_THREADS);
    }
    pread_reader *r = calloc(1, sizeof *r);
    if (!r)
        return sl_fail_null(err, SL_ERR_MEMORY, "pread: out of memory");
    pthread_mutex_init(&r->mutex, NULL);
    init_condition(&r->results);
    r->base = (sl_reader){.name = "pread",
                          .direct = s->disk[0].direct,
                          .submit = pread_submit,
                          .collect = pread_collect,
                          .close = pread_close};
    bool ok = true;
    for (int i = 0; ok && i < s->disks; i++)
        ok = open_lane(r, &s->disk[i], s);
    if (!ok) {
        pread_close(&r->base);
        return sl_fail_null(err, SL_ERR_MEMORY, "pread: cannot start a thread");
    }
    return &r->base;
}

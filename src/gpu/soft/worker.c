/* The device's workers, and a dispatch over them.
 *
 * A dispatch is a job; the workers take its groups from one counter. The thread that dispatches waits, and meanwhile
 * watches: a group that takes more processor time than the device's limit is stopped. */
#include "gpu/soft/soft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WATCH_NS = 100 * 1000 * 1000, INSIST_NS = 5 * 1000 * 1000 };

void soft_job_fail(soft_job *job, sl_code code, const char *fmt, ...) {
    va_list args;
    char text[sizeof job->error.message];
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    pthread_mutex_lock(&job->mutex);
    if (!atomic_load(&job->failed))
        sl_fail(&job->error, code, "%s", text);
    atomic_store(&job->failed, true);
    pthread_mutex_unlock(&job->mutex);
}

/* Takes groups until none is left or one has failed. */
static void take_groups(soft_worker *w, soft_job *job) {
    w->job = job;
    while (!atomic_load_explicit(&job->failed, memory_order_relaxed)) {
        uint64_t i = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (i >= job->total)
            break;
        uint64_t group = (uint64_t)(((unsigned __int128)i * job->stride + job->first) % job->total);
        atomic_store_explicit(&w->serial, ++w->groups, memory_order_relaxed);
        bool done = soft_group_run(w, job, group);
        atomic_store_explicit(&w->serial, UINT64_MAX, memory_order_relaxed);
        if (!done)
            break;
    }
    w->job = NULL;
}

static void *worker_main(void *arg) {
    soft_worker *w = arg;
    soft_device *d = w->device;
    uint64_t seen = 0;
    soft_faults_enter(w);
    pthread_mutex_lock(&d->mutex);
    for (;;) {
        while (!d->ending && (!d->job || d->job_number == seen))
            soft_cond_wait(&d->work, &d->mutex, UINT64_MAX);
        if (d->ending)
            break;
        soft_job *job = d->job;
        seen = d->job_number;
        job->running++;
        pthread_mutex_unlock(&d->mutex);
        take_groups(w, job);
        pthread_mutex_lock(&d->mutex);
        if (--job->running == 0)
            pthread_cond_broadcast(&d->idle);
    }
    pthread_mutex_unlock(&d->mutex);
    soft_faults_leave(w);
    return NULL;
}

bool soft_workers_open(soft_device *d, sl_error *err) {
    d->workers = calloc((size_t)d->worker_count, sizeof *d->workers);
    if (!d->workers)
        return sl_fail(err, SL_ERR_MEMORY, "soft: out of memory for %d workers", d->worker_count);
    for (int i = 0; i < d->worker_count; i++) {
        soft_worker *w = &d->workers[i];
        if (!soft_worker_open(w, d, i, err))
            return false;
        atomic_store(&w->serial, UINT64_MAX);
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0)
            return sl_fail(err, SL_ERR_MEMORY, "soft: cannot start worker %d of %d", i + 1, d->worker_count);
        w->started = true;
    }
    return true;
}

void soft_workers_close(soft_device *d) {
    pthread_mutex_lock(&d->mutex);
    d->ending = true;
    pthread_cond_broadcast(&d->work);
    pthread_mutex_unlock(&d->mutex);
    for (int i = 0; d->workers && i < d->worker_count; i++) {
        if (d->workers[i].started)
            pthread_join(d->workers[i].thread, NULL);
        soft_worker_close(&d->workers[i]);
    }
    free(d->workers);
}

static uint64_t thread_cpu_ns(pthread_t thread) {
#if defined(__linux__)
    clockid_t clock;
    struct timespec t;
    if (pthread_getcpuclockid(thread, &clock) == 0 && clock_gettime(clock, &t) == 0)
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
#else
    (void)thread;
#endif
    return sl_now_ns();
}

/* Stops groups that have taken too long, or any once the submission is given up. Returns whether one was told to stop
 * and may have to be told again. */
static bool watch(soft_device *d, bool give_up) {
    bool told = false;
    for (int i = 0; i < d->worker_count; i++) {
        soft_worker *w = &d->workers[i];
        uint64_t serial = atomic_load(&w->serial);
        if (serial == UINT64_MAX)
            continue;
        uint64_t cpu = thread_cpu_ns(w->thread);
        if (serial != w->seen_serial) {
            w->seen_serial = serial;
            w->seen_cpu_ns = cpu;
        }
        if (!give_up && cpu - w->seen_cpu_ns < d->limit_ns)
            continue;
        atomic_store(&w->stop, serial);
        soft_interrupt(w);
        told = true;
    }
    return told;
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Groups ascending (seed 0), reversed (1), or in steps that meet each once. */
static void order_groups(soft_job *job, uint64_t seed) {
    job->stride = 1;
    job->first = 0;
    if (seed == 1) {
        job->stride = job->total - 1 ? job->total - 1 : 1;
        job->first = job->total - 1;
    } else if (seed > 1) {
        uint64_t r = seed * 0x9E3779B97F4A7C15u;
        job->first = (r >> 7) % job->total;
        job->stride = (r >> 20) % job->total | 1;
        while (common_divisor(job->stride, job->total) != 1)
            job->stride++;
    }
}

static bool prepare_job(soft_job *job, const gpu_command *c, sl_error *err) {
    const soft_pipeline *p = c->u.dispatch.pipeline;
    const uint32_t *groups = c->u.dispatch.groups, *threads = c->u.dispatch.threads;
    uint64_t plane, count = (uint64_t)threads[0] * threads[1];
    job->label = c->label ? c->label : p->name;
    if (!sl_mul_u64(groups[0], groups[1], &plane) || !sl_mul_u64(plane, groups[2], &job->total) || !job->total ||
        job->total > UINT64_MAX / (2 * SOFT_MAX_THREADS))
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: grid of %ux%ux%u threadgroups", job->label, groups[0], groups[1],
                       groups[2]);
    if (!count || !threads[2] || count > SOFT_MAX_THREADS || count * threads[2] > p->max_threads)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: threadgroup of %ux%ux%u threads, at most %u", job->label, threads[0],
                       threads[1], threads[2], p->max_threads);
    job->pipeline = p;
    job->command = c;
    job->run = p->kernel->run;
    for (size_t i = 0; i < c->u.dispatch.bound_count; i++) {
        const gpu_bound *b = &c->u.dispatch.bound[i];
        job->buffer[b->slot] = b->memory ? (void *)(b->memory->host + b->offset) : (void *)(uintptr_t)b->bytes;
    }
    for (size_t i = 0; i < c->u.dispatch.length_count; i++) {
        job->length[c->u.dispatch.lengths[i].slot] = c->u.dispatch.lengths[i].bytes;
        job->has_length[c->u.dispatch.lengths[i].slot] = true;
    }
    return true;
}

/* The job to all workers; returns when they have left it. */
static void run_job(soft_device *d, soft_job *job, const _Atomic bool *cancel) {
    bool insist = false;
    pthread_mutex_lock(&d->mutex);
    d->job = job;
    d->job_number++;
    pthread_cond_broadcast(&d->work);
    for (;;) {
        bool taken = atomic_load(&job->next) >= job->total || atomic_load(&job->failed);
        if (taken)
            d->job = NULL; /* workers that wake now find nothing */
        if (taken && job->running == 0)
            break;
        if (soft_cond_wait(&d->idle, &d->mutex, sl_now_ns() + (insist ? INSIST_NS : WATCH_NS)))
            continue;
        bool give_up = cancel && atomic_load(cancel);
        if (give_up) {
            pthread_mutex_unlock(&d->mutex);
            soft_job_fail(job, SL_ERR_CANCELLED, "%s: given up", job->label);
            pthread_mutex_lock(&d->mutex);
        }
        insist = watch(d, give_up);
    }
    d->job = NULL;
    pthread_mutex_unlock(&d->mutex);
}

bool soft_dispatch(soft_device *d, const gpu_command *c, const _Atomic bool *cancel, sl_error *err) {
    soft_job job = {0};
    pthread_mutex_init(&job.mutex, NULL);
    pthread_mutex_lock(&d->dispatch_mutex);
    bool ok = prepare_job(&job, c, err);
    if (ok) {
        order_groups(&job, d->seed);
        d->dispatches++;
        ok = !d->checking || soft_check_new(d, &job, err);
    }
    if (ok) {
        run_job(d, &job, cancel);
        if (job.check)
            soft_report_all(job.check, d);
        ok = !job.failed;
        if (!ok && err)
            *err = job.error;
    }
    if (job.check)
        soft_check_free(job.check);
    pthread_mutex_unlock(&d->dispatch_mutex);
    pthread_mutex_destroy(&job.mutex);
    return ok;
}

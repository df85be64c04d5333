/* The scheduler: one thread that takes in jobs, requests and calls, and runs steps while anything is ready.
 *
 * Other threads only put work on lists under the mutex and wait. The thread sleeps on a condition when nothing is
 * ready: no work, or only requests whose readers are behind. */
#include "engine/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

void engine_wake(sl_engine *e) {
    pthread_cond_signal(&e->sched.wake);
}

void engine_wait_init(pthread_cond_t *c) {
    pthread_condattr_t a;
    pthread_condattr_init(&a);
#ifndef __APPLE__
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
#endif
    pthread_cond_init(c, &a);
    pthread_condattr_destroy(&a);
}

struct timespec engine_deadline(int timeout_ms) {
    struct timespec t;
#ifdef __APPLE__
    clock_gettime(CLOCK_REALTIME, &t);
#else
    clock_gettime(CLOCK_MONOTONIC, &t);
#endif
    t.tv_sec += timeout_ms / 1000;
    t.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

bool engine_call_run(sl_engine *e, void (*fn)(void *), void *ctx) {
    engine_sched *sc = &e->sched;
    engine_call call = {.fn = fn, .ctx = ctx};
    pthread_mutex_lock(&sc->mutex);
    bool ok = sc->started && !atomic_load(&sc->ending);
    if (ok) {
        *sc->calls_end = &call;
        sc->calls_end = &call.next;
        engine_wake(e);
        while (!call.finished)
            pthread_cond_wait(&sc->finished, &sc->mutex);
    }
    pthread_mutex_unlock(&sc->mutex);
    return ok;
}

/* Mutex held; it is released around each call. */
static void run_calls(engine_sched *sc) {
    while (sc->calls) {
        engine_call *call = sc->calls;
        sc->calls = call->next;
        if (!sc->calls)
            sc->calls_end = &sc->calls;
        pthread_mutex_unlock(&sc->mutex);
        call->fn(call->ctx);
        pthread_mutex_lock(&sc->mutex);
        call->finished = true;
        pthread_cond_broadcast(&sc->finished);
    }
}

/* ---- waiting awake -----------------------------------------------------------------------------------------------
 */

/* A token on a GPU takes half a millisecond, and two threads are woken for each: while it computes the processor is
 * free to look instead of sleeping. For TOKEN_NS the caller looks for its job's end, for SOON_NS the scheduler for the
 * next token's job. */
#define TOKEN_NS UINT64_C(1000000)
#define SOON_NS  UINT64_C(50000)

static void look_for_end(const engine_job *job) {
    uint64_t began = sl_now_ns();
    while (!atomic_load(&job->finished) && sl_now_ns() - began < TOKEN_NS)
        ;
}

/* Mutex held; it is released meanwhile, so whatever came must be looked at again. */
static void look_for_job(engine_sched *sc) {
    unsigned before = atomic_load(&sc->posted);
    uint64_t began = sl_now_ns();
    pthread_mutex_unlock(&sc->mutex);
    while (atomic_load(&sc->posted) == before && sl_now_ns() - began < SOON_NS)
        ;
    pthread_mutex_lock(&sc->mutex);
}

/* ---- taking work in --------------------------------------------------------------------------------------------- */

void engine_submit_job(sl_engine *e, engine_job *job) {
    engine_sched *sc = &e->sched;
    pthread_mutex_lock(&sc->mutex);
    if (atomic_load(&sc->ending)) {
        job->failed = true;
        atomic_store(&job->finished, true);
        sl_fail(&job->error, SL_ERR_CANCELLED, "the engine is closing");
    } else {
        *sc->new_jobs_end = job;
        sc->new_jobs_end = &job->next;
        atomic_fetch_add(&sc->posted, 1);
        engine_wake(e);
    }
    if (e->vram_apart) {
        pthread_mutex_unlock(&sc->mutex);
        look_for_end(job);
        pthread_mutex_lock(&sc->mutex);
    }
    while (!atomic_load(&job->finished))
        pthread_cond_wait(&sc->finished, &sc->mutex);
    pthread_mutex_unlock(&sc->mutex);
}

void engine_submit_request(sl_engine *e, sl_request *r) {
    engine_sched *sc = &e->sched;
    pthread_mutex_lock(&sc->mutex);
    *sc->new_requests_end = r;
    sc->new_requests_end = &r->next;
    engine_wake(e);
    pthread_mutex_unlock(&sc->mutex);
}

static bool activate(engine_sched *sc, engine_run *run) {
    void *active = sc->active;
    bool ok = sl_grow(&active, &sc->active_capacity, sc->active_count + 1, sizeof *sc->active);
    sc->active = active;
    if (ok)
        sc->active[sc->active_count++] = run;
    return ok;
}

static void finish_job(engine_sched *sc, engine_job *job) {
    atomic_store(&job->finished, true);
    pthread_cond_broadcast(&sc->finished);
}

/* A job's runs all become active at once; steps take of them what fits. */
static void accept_jobs(sl_engine *e) {
    engine_sched *sc = &e->sched;
    while (sc->new_jobs) {
        engine_job *job = sc->new_jobs;
        sc->new_jobs = job->next;
        for (int32_t i = 0; i < job->run_count; i++) {
            if (activate(sc, &job->runs[i])) {
                job->running++;
                continue;
            }
            sl_error err = {0};
            sl_fail(&err, SL_ERR_MEMORY, "out of memory for %d sequences", job->run_count);
            engine_run_fail(e, &job->runs[i], &err);
            break;
        }
        if (job->running == 0)
            finish_job(sc, job);
    }
    sc->new_jobs_end = &sc->new_jobs;
}

static void accept_requests(engine_sched *sc) {
    if (sc->new_requests) {
        *sc->waiting_end = sc->new_requests;
        sc->waiting_end = sc->new_requests_end;
        sc->new_requests = NULL;
        sc->new_requests_end = &sc->new_requests;
    }
}

/* Requests become active in order of arrival, at most max_sequences at once. */
static void admit_requests(sl_engine *e) {
    engine_sched *sc = &e->sched;
    while (sc->waiting && sc->active_requests < e->max_sequences) {
        sl_request *r = sc->waiting;
        if (!activate(sc, &r->run))
            return;
        sc->active_requests++;
        sc->waiting = r->next;
        if (!sc->waiting)
            sc->waiting_end = &sc->waiting;
    }
}

/* ---- letting work go -------------------------------------------------------------------------------------------- */

static void end_cancelled(sl_request *r) {
    if (!r->run.ended && atomic_load(&r->cancelled))
        engine_request_end(r, SL_FINISH_CANCELLED, NULL);
}

static void drop_waiting_cancelled(engine_sched *sc) {
    sl_request **link = &sc->waiting;
    while (*link) {
        sl_request *r = *link;
        if (!atomic_load(&r->cancelled)) {
            link = &r->next;
            continue;
        }
        *link = r->next;
        end_cancelled(r);
        engine_request_publish(r);
    }
    sc->waiting_end = link;
}

static void let_go(engine_sched *sc, engine_run *run) {
    if (run->request) {
        sc->active_requests--;
        engine_request_publish(run->request);
    } else if (--run->job->running == 0) {
        pthread_mutex_lock(&sc->mutex);
        finish_job(sc, run->job);
        pthread_mutex_unlock(&sc->mutex);
    }
}

/* Removes runs that ended, also those of cancelled requests. No mutex held. */
static void drop_ended(engine_sched *sc) {
    size_t n = 0;
    for (size_t i = 0; i < sc->active_count; i++) {
        engine_run *run = sc->active[i];
        if (run->request)
            end_cancelled(run->request);
        if (run->ended)
            let_go(sc, run);
        else
            sc->active[n++] = run;
    }
    sc->active_count = n;
}

/* Mutex held. Whether any run may take part in a step. */
static bool mark_ready(engine_sched *sc) {
    bool any = false;
    for (size_t i = 0; i < sc->active_count; i++) {
        engine_run *run = sc->active[i];
        run->ready = !run->request || engine_request_has_room(run->request);
        any = any || run->ready;
    }
    return any;
}

/* Mutex held: whether a request that waits or is blocked was cancelled. */
static bool any_cancelled(const engine_sched *sc) {
    for (const sl_request *r = sc->waiting; r; r = r->next)
        if (atomic_load(&r->cancelled))
            return true;
    for (size_t i = 0; i < sc->active_count; i++)
        if (sc->active[i]->request && atomic_load(&sc->active[i]->request->cancelled))
            return true;
    return false;
}

static void cancel_all(sl_engine *e) {
    engine_sched *sc = &e->sched;
    sl_error err = {0};
    sl_fail(&err, SL_ERR_CANCELLED, "the engine is closing");
    for (sl_request *r = sc->waiting; r; r = r->next)
        atomic_store(&r->cancelled, true);
    for (size_t i = 0; i < sc->active_count; i++) {
        engine_run *run = sc->active[i];
        if (run->request)
            atomic_store(&run->request->cancelled, true);
        else
            engine_run_fail(e, run, &err);
    }
}

/* ---- the thread ------------------------------------------------------------------------------------------------- */

/* Mutex held. Where memory is watched, others may want it also while nothing is asked of this engine. */
static void sleep_until_woken(sl_engine *e) {
    enum { LOOK_MS = 500 };
    engine_sched *sc = &e->sched;
    if (!e->pressure.on) {
        pthread_cond_wait(&sc->wake, &sc->mutex);
        return;
    }
    struct timespec until = engine_deadline(LOOK_MS);
    if (pthread_cond_timedwait(&sc->wake, &sc->mutex, &until) != ETIMEDOUT)
        return;
    pthread_mutex_unlock(&sc->mutex);
    engine_pressure_look(e);
    pthread_mutex_lock(&sc->mutex);
}

/* Mutex held: takes in what is new, sleeps until something is ready. */
static void await_work(sl_engine *e) {
    engine_sched *sc = &e->sched;
    for (bool looked = !e->vram_apart;; looked = true) {
        run_calls(sc);
        accept_jobs(e);
        accept_requests(sc);
        admit_requests(e);
        if (mark_ready(sc) || any_cancelled(sc) || atomic_load(&sc->ending))
            return;
        engine_activity_set(&e->activity, ENGINE_IDLE, 0);
        if (!looked)
            look_for_job(sc);
        else if (!sc->calls)
            sleep_until_woken(e);
    }
}

static void *scheduler_main(void *arg) {
    sl_engine *e = arg;
    engine_sched *sc = &e->sched;
    for (bool ending = false; !ending;) {
        pthread_mutex_lock(&sc->mutex);
        await_work(e);
        ending = atomic_load(&sc->ending);
        pthread_mutex_unlock(&sc->mutex);
        if (ending)
            cancel_all(e);
        drop_waiting_cancelled(sc);
        drop_ended(sc);
        engine_kv_trim(e->kv, 1);
        if (e->state)
            engine_kv_trim(e->state, engine_state_slabs(&e->state_layout));
        if (sc->active_count)
            engine_step_run(e);
        drop_ended(sc);
    }
    engine_activity_set(&e->activity, ENGINE_IDLE, 0);
    return NULL;
}

/* ---- core ------------------------------------------------------------------------------------------------------- */

uint64_t engine_core_bytes(int32_t vocab, int32_t max_sequences) {
    return (uint64_t)engine_out_capacity(max_sequences) * (uint64_t)vocab * sizeof(float) + engine_sampler_bytes(vocab);
}

void engine_core_init(sl_engine *e) {
    engine_sched *sc = &e->sched;
    engine_activity_init(&e->activity);
    pthread_mutex_init(&sc->mutex, NULL);
    engine_wait_init(&sc->wake);
    engine_wait_init(&sc->finished);
    sc->new_jobs_end = &sc->new_jobs;
    sc->new_requests_end = &sc->new_requests;
    sc->calls_end = &sc->calls;
    sc->waiting_end = &sc->waiting;
}

bool engine_core_start(sl_engine *e, sl_error *err) {
    engine_sched *sc = &e->sched;
    if (!sl_mem_charge(e->mem, engine_sampler_bytes(e->vocab), SL_USE_SCRATCH, err))
        return false;
    e->sampler = engine_sampler_new(e->vocab, err);
    if (!e->sampler || !engine_step_init(e, err))
        return false;
    int why = pthread_create(&sc->thread, NULL, scheduler_main, e);
    sc->started = why == 0;
    return sc->started || sl_fail_errno(err, SL_ERR_MEMORY, why, "cannot start the scheduler's thread");
}

void engine_core_stop(sl_engine *e) {
    engine_sched *sc = &e->sched;
    if (sc->started) {
        pthread_mutex_lock(&sc->mutex);
        atomic_store(&sc->ending, true);
        engine_wake(e);
        pthread_mutex_unlock(&sc->mutex);
        pthread_join(sc->thread, NULL);
        sc->started = false;
    }
    if (e->mem)
        engine_step_free(e);
    engine_sampler_free(e->sampler);
    e->sampler = NULL;
    free(sc->active);
    sc->active = NULL;
}

void engine_core_destroy(sl_engine *e) {
    engine_sched *sc = &e->sched;
    engine_activity_destroy(&e->activity);
    pthread_mutex_destroy(&sc->mutex);
    pthread_cond_destroy(&sc->wake);
    pthread_cond_destroy(&sc->finished);
}

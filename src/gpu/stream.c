/* Streams: what is in flight, waiting for it, and how it ended.
 *
 * A stream's submissions end in order. Only the first is waited for in the driver, by one thread at a time (`polling`);
 * others wait for that thread. So map, called from any thread, needs no owner of the stream. */
#include "gpu/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A list that waits for an event may wait for one that a failed list was to signal: in between others are looked at. */
#define SLICE_NS (UINT64_C(20) * 1000 * 1000)
enum { MOST_DEPTH = 16 };

/* ---- life -------------------------------------------------------------------------------------------------------- */

static gpu_failure *new_failure(sl_gpu *g, sl_error *err) {
    return gpu_object_new(g, GPU_FAILURE, sizeof(gpu_failure), err);
}

static void link_stream(gpu_stream *s) {
    sl_gpu *g = s->o.gpu;
    pthread_mutex_lock(&g->lock);
    s->next = g->streams;
    if (s->next)
        s->next->prev = s;
    g->streams = s;
    pthread_mutex_unlock(&g->lock);
}

static void unlink_stream(gpu_stream *s) {
    sl_gpu *g = s->o.gpu;
    pthread_mutex_lock(&g->lock);
    if (s->prev)
        s->prev->next = s->next;
    else if (g->streams == s)
        g->streams = s->next;
    if (s->next)
        s->next->prev = s->prev;
    pthread_mutex_unlock(&g->lock);
}

sl_gpu_stream *sl_gpu_stream_new(sl_gpu *g, sl_error *err) {
    if (!g)
        return sl_fail_null(err, SL_ERR_ARGUMENT, "sl_gpu_stream_new: the device is NULL");
    if (!gpu_same_process(g, err))
        return NULL;
    gpu_stream *s = gpu_object_new(g, GPU_STREAM, sizeof *s, err);
    if (!s)
        return NULL;
    s->spare = new_failure(g, err);
    s->spans = s->spare ? calloc(GPU_SPANS, sizeof *s->spans) : NULL;
    if (s->spare && !s->spans)
        sl_fail(err, SL_ERR_MEMORY, "out of memory for a stream");
    s->driver = s->spans ? g->driver->stream_new(g->device, err) : NULL;
    if (!s->driver) {
        gpu_drop(s);
        return NULL;
    }
    link_stream(s);
    return gpu_handle_new(s, err);
}

void gpu_stream_destroy(gpu_stream *s) {
    sl_gpu *g = s->o.gpu;
    unlink_stream(s);
    if (s->driver)
        g->driver->stream_free(g->device, s->driver);
    for (size_t i = 0; i < GPU_RECORDS; i++)
        gpu_drop(s->records[i].failure);
    gpu_drop(s->failure);
    gpu_drop(s->spare);
    free(s->spans);
}

/* Ends the failed state, also for memory and events that the failure marked. */
static void forgive(gpu_stream *s) {
    sl_gpu *g = s->o.gpu;
    pthread_mutex_lock(&g->lock);
    gpu_failure *old = s->failure;
    if (old)
        old->recovered = true;
    s->failure = NULL;
    pthread_mutex_unlock(&g->lock);
    gpu_drop(old);
}

void sl_gpu_stream_free(sl_gpu_stream *handle) {
    gpu_stream *s = gpu_handle_end(handle, GPU_STREAM);
    if (!s)
        return;
    if (!gpu_stream_wait(s, UINT64_MAX, gpu_deadline(GPU_MAP_SECONDS * UINT64_C(1000000000))))
        sl_logf(&s->o.gpu->log, SL_LOG_ERROR, "a stream was freed whose work has not ended after %d s",
                GPU_MAP_SECONDS);
    forgive(s);  /* nobody is left to ask for recovery */
    gpu_drop(s); /* lists that were begun on it, or run, hold it */
}

bool gpu_stream_enter(gpu_stream *s, sl_error *err) {
    return !atomic_exchange(&s->inside, true) ||
           sl_fail(err, SL_ERR_ARGUMENT, "the stream is in use by another thread: one thread at a time");
}

void gpu_stream_leave(gpu_stream *s) {
    atomic_store(&s->inside, false);
}

/* ---- the end of a submission (under the lock) ---------------------------------------------------------------------
 */

static gpu_failure *make_failure(gpu_stream *s, const gpu_submission *sub, const sl_error *why) {
    gpu_failure *f = s->spare;
    s->spare = NULL;
    if (!f)
        return NULL;
    sl_fail(&f->error, why->code ? why->code : SL_ERR_DEVICE, "list '%s' (ticket %llu) failed: %s", sub->list->label,
            (unsigned long long)sub->ticket, why->message[0] ? why->message : "the device gives no reason");
    return f;
}

/* A list that went well is still bad when it waited for one that failed. */
static const sl_error *awaited_failure(const gpu_submission *sub) {
    for (size_t i = 0; i < sub->list->event_count; i++) {
        const struct gpu_list_event *e = &sub->list->events[i];
        const gpu_failure *f = e->event->failure;
        if (!e->signals && f && !f->recovered && e->value >= e->event->failed_value)
            return &f->error;
    }
    return NULL;
}

/* What the failed list should have written and signalled. */
static void mark_outputs(gpu_submission *sub, gpu_failure *f) {
    for (size_t i = 0; i < sub->list->use_count; i++)
        if (sub->list->uses[i].writes)
            gpu_root_poison(sub->list->uses[i].root, f);
    for (size_t i = 0; i < sub->list->event_count; i++) {
        struct gpu_list_event *e = &sub->list->events[i];
        if (!e->signals)
            continue;
        if (!e->event->failure || e->event->failure->recovered || e->value < e->event->failed_value)
            e->event->failed_value = e->value;
        gpu_drop(e->event->failure);
        e->event->failure = gpu_hold(f);
    }
}

static void add_record(gpu_stream *s, const gpu_submission *sub, gpu_failure *f) {
    gpu_record *r = &s->records[sub->ticket % GPU_RECORDS];
    gpu_drop(r->failure);
    *r = (gpu_record){sub->ticket, sub->result.end - sub->result.begin, gpu_hold(f)};
}

static void add_span(gpu_stream *s, sl_gpu_ticket ticket, const char *label, const gpu_result *r, uint32_t dispatches) {
    if (s->span_count == GPU_SPANS) {
        s->span_begin = (s->span_begin + 1) % GPU_SPANS;
        s->span_count--;
    }
    sl_gpu_span *span = &s->spans[(s->span_begin + s->span_count++) % GPU_SPANS];
    *span = (sl_gpu_span){.ticket = ticket, .begin = r->begin, .end = r->end, .dispatches = dispatches};
    snprintf(span->label, sizeof span->label, "%s", label);
}

static void add_spans(gpu_stream *s, const gpu_submission *sub) {
    if (!sub->parts)
        add_span(s, sub->ticket, sub->list->label, &sub->result, sub->list->dispatches);
    for (size_t i = 0; i < sub->part_count; i++)
        add_span(s, sub->ticket, sub->parts[i].label, &sub->parts[i].result, sub->parts[i].dispatches);
}

static void finish(gpu_stream *s, gpu_submission *sub) {
    const sl_error *awaited = awaited_failure(sub);
    s->first = sub->next;
    if (!s->first)
        s->last = NULL;
    s->done = sub->ticket;
    bool first = !s->failure && (sub->result.failed || awaited);
    if (first)
        s->failure = make_failure(s, sub, sub->result.failed ? &sub->result.error : awaited);
    /* What ran after a failed list may have used what that did not make. */
    if (s->failure)
        mark_outputs(sub, s->failure);
    sub->failure = gpu_hold(s->failure);
    sub->result.failed |= first;
    add_record(s, sub, s->failure);
    add_spans(s, sub);
}

static void after_finish(gpu_submission *sub) {
    const sl_gpu *g = sub->o.gpu;
    if (sub->failure)
        gpu_events_fail(sub);
    if (sub->failure && sub->result.failed) /* not: one that only came after it */
        sl_logf(&g->log, SL_LOG_INFO, "%s", sub->failure->error.message);
    gpu_debugf(g, 1, "list '%s' (ticket %llu) done: %.1f us", sub->list->label, (unsigned long long)sub->ticket,
               (sub->result.end - sub->result.begin) * 1e6);
    gpu_drop(sub);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static void reap_streams(sl_gpu *g, int depth);

static bool waits_for_events(const gpu_submission *sub) {
    for (size_t i = 0; i < sub->list->event_count; i++)
        if (!sub->list->events[i].signals)
            return true;
    return false;
}

/* Without the lock. True: sub is done, its result is there.
 *
 * Around lists that wait for events the other streams are looked at: one of theirs may have failed, and then its events
 * have to be raised (here, while sub still waits) and what waited for them has failed too (below, now that sub is done;
 * its signaller may itself have waited, so to some depth). */
static bool poll_driver(gpu_submission *sub, uint64_t deadline, int depth) {
    sl_gpu *g = sub->o.gpu;
    uint64_t now = sl_now_ns(), left = deadline > now ? deadline - now : 0;
    bool events = waits_for_events(sub);
    if (!sub->driver && !sub->parts)
        return true;
    if (events && left > SLICE_NS)
        left = SLICE_NS;
    bool done = sub->parts ? gpu_parts_wait(sub, gpu_deadline(left))
                           : g->driver->wait(g->device, sub->driver, left, &sub->result);
    if (events && (depth == 0 || (done && depth < MOST_DEPTH)))
        reap_streams(g, depth + 1);
    return done;
}

static bool wait_stream(gpu_stream *s, sl_gpu_ticket ticket, uint64_t deadline, int depth) {
    sl_gpu *g = s->o.gpu;
    bool in_time = true;
    pthread_mutex_lock(&g->lock);
    while (s->first && s->first->ticket <= ticket && in_time) {
        gpu_submission *sub = s->first;
        if (s->polling) {
            in_time = gpu_wait_changed(g, deadline);
            continue;
        }
        s->polling = true;
        pthread_mutex_unlock(&g->lock);
        bool done = poll_driver(sub, deadline, depth);
        pthread_mutex_lock(&g->lock);
        s->polling = false;
        if (done)
            finish(s, sub);
        else
            in_time = sl_now_ns() < deadline;
        pthread_cond_broadcast(&g->changed);
        if (done) {
            pthread_mutex_unlock(&g->lock);
            after_finish(sub);
            pthread_mutex_lock(&g->lock);
        }
    }
    bool reached = !s->first || s->first->ticket > ticket;
    pthread_mutex_unlock(&g->lock);
    return reached;
}

bool gpu_stream_wait(gpu_stream *s, sl_gpu_ticket ticket, uint64_t deadline) {
    return wait_stream(s, ticket, deadline, 0);
}

/* Each stream once; one that begins or ends meanwhile may be left out. */
static void reap_streams(sl_gpu *g, int depth) {
    gpu_stream *s, *next;
    pthread_mutex_lock(&g->lock);
    for (s = g->streams; s && !gpu_hold_live(s);)
        s = s->next;
    pthread_mutex_unlock(&g->lock);
    for (; s; s = next) {
        wait_stream(s, UINT64_MAX, 0, depth);
        pthread_mutex_lock(&g->lock);
        for (next = s->next; next && !gpu_hold_live(next);)
            next = next->next;
        pthread_mutex_unlock(&g->lock);
        gpu_drop(s);
    }
}

void gpu_reap(sl_gpu *g) {
    reap_streams(g, 1);
}

/* A stream held, and its last submission that uses the range against r; NULL: none. Under the lock. */
static gpu_stream *find_user(sl_gpu *g, const gpu_range *r, sl_gpu_ticket *ticket) {
    for (gpu_stream *s = g->streams; s; s = s->next) {
        *ticket = 0;
        for (const gpu_submission *sub = s->first; sub; sub = sub->next)
            if (gpu_uses_conflict(sub->list, r))
                *ticket = sub->ticket;
        if (*ticket && gpu_hold_live(s))
            return s;
    }
    return NULL;
}

bool gpu_wait_users(sl_gpu *g, const gpu_range *r, uint64_t deadline) {
    for (;;) {
        sl_gpu_ticket ticket;
        pthread_mutex_lock(&g->lock);
        gpu_stream *s = find_user(g, r, &ticket);
        pthread_mutex_unlock(&g->lock);
        if (!s)
            return true;
        bool ok = gpu_stream_wait(s, ticket, deadline);
        gpu_drop(s);
        if (!ok)
            return false;
    }
}

/* ---- gpu.h ------------------------------------------------------------------------------------------------------- */

/* True where there is no failure; drops it. */
static bool report(gpu_failure *f, sl_error *err) {
    if (!f)
        return true;
    sl_fail(err, f->error.code, "%s", f->error.message);
    gpu_drop(f);
    return false;
}

/* How `ticket`, which is done, ended. */
static bool outcome(gpu_stream *s, sl_gpu_ticket ticket, double *gpu_seconds, sl_error *err) {
    sl_gpu *g = s->o.gpu;
    pthread_mutex_lock(&g->lock);
    const gpu_record *r = &s->records[ticket % GPU_RECORDS];
    bool known = r->ticket == ticket;
    if (gpu_seconds)
        *gpu_seconds = known ? r->seconds : 0;
    gpu_failure *f = known ? gpu_hold(r->failure) : NULL;
    pthread_mutex_unlock(&g->lock);
    return report(f, err);
}

static bool wait_ticket(gpu_stream *s, sl_gpu_ticket ticket, uint64_t timeout_ns, double *gpu_seconds, sl_error *err) {
    if (ticket == 0 || ticket > s->given)
        return sl_fail(err, SL_ERR_ARGUMENT, "ticket %llu was never given, the stream's last is %llu",
                       (unsigned long long)ticket, (unsigned long long)s->given);
    if (!gpu_stream_wait(s, ticket, gpu_deadline(timeout_ns)))
        return sl_fail(err, SL_ERR_TIMEOUT, "ticket %llu is not done after %.3f s, it still runs",
                       (unsigned long long)ticket, (double)timeout_ns * 1e-9);
    return outcome(s, ticket, gpu_seconds, err);
}

bool sl_gpu_wait(sl_gpu_stream *handle, sl_gpu_ticket ticket, uint64_t timeout_ns, double *gpu_seconds, sl_error *err) {
    gpu_stream *s = gpu_take(handle, GPU_STREAM, err);
    bool ok = false;
    if (s && gpu_stream_enter(s, err)) {
        ok = wait_ticket(s, ticket, timeout_ns, gpu_seconds, err);
        gpu_stream_leave(s);
    }
    gpu_drop(s);
    return ok;
}

static bool synchronize(gpu_stream *s, uint64_t timeout_ns, sl_error *err) {
    sl_gpu *g = s->o.gpu;
    if (!gpu_stream_wait(s, UINT64_MAX, gpu_deadline(timeout_ns)))
        return sl_fail(err, SL_ERR_TIMEOUT, "ticket %llu is not done after %.3f s, it still runs",
                       (unsigned long long)s->given, (double)timeout_ns * 1e-9);
    pthread_mutex_lock(&g->lock);
    gpu_failure *f = gpu_hold(s->failure);
    pthread_mutex_unlock(&g->lock);
    return report(f, err);
}

bool sl_gpu_synchronize(sl_gpu_stream *handle, uint64_t timeout_ns, sl_error *err) {
    gpu_stream *s = gpu_take(handle, GPU_STREAM, err);
    bool ok = false;
    if (s && gpu_stream_enter(s, err)) {
        ok = synchronize(s, timeout_ns, err);
        gpu_stream_leave(s);
    }
    gpu_drop(s);
    return ok;
}

static bool recover(gpu_stream *s, sl_error *err) {
    sl_gpu *g = s->o.gpu;
    if (!gpu_stream_wait(s, UINT64_MAX, gpu_deadline(GPU_MAP_SECONDS * UINT64_C(1000000000))))
        return sl_fail(err, SL_ERR_TIMEOUT, "the stream's lists are not done after %d s", GPU_MAP_SECONDS);
    gpu_failure *spare = new_failure(g, err);
    if (!spare)
        return false;
    forgive(s);
    pthread_mutex_lock(&g->lock);
    if (!s->spare) {
        s->spare = spare;
        spare = NULL;
    }
    pthread_mutex_unlock(&g->lock);
    gpu_drop(spare);
    return true;
}

bool sl_gpu_stream_recover(sl_gpu_stream *handle, sl_error *err) {
    gpu_stream *s = gpu_take(handle, GPU_STREAM, err);
    bool ok = false;
    if (s && gpu_stream_enter(s, err)) {
        ok = recover(s, err);
        gpu_stream_leave(s);
    }
    gpu_drop(s);
    return ok;
}

static size_t take_spans(gpu_stream *s, sl_gpu_span *out, size_t max) {
    sl_gpu *g = s->o.gpu;
    gpu_stream_wait(s, UINT64_MAX, 0);
    pthread_mutex_lock(&g->lock);
    size_t n = s->span_count < max ? s->span_count : max;
    for (size_t i = 0; out && i < n; i++)
        out[i] = s->spans[(s->span_begin + i) % GPU_SPANS];
    s->span_begin = s->span_count = 0;
    pthread_mutex_unlock(&g->lock);
    return out ? n : 0;
}

size_t sl_gpu_spans(sl_gpu_stream *handle, sl_gpu_span *out, size_t max) {
    gpu_stream *s = gpu_take(handle, GPU_STREAM, NULL);
    size_t n = 0;
    if (s && gpu_stream_enter(s, NULL)) {
        n = take_spans(s, out, max);
        gpu_stream_leave(s);
    }
    gpu_drop(s);
    return n;
}

/* Handing lists to the device. */
#include "gpu/core.h"

#include <string.h>

/* ---- debugging: one command at a time, with its time --------------------------------------------------------------
 */

static bool run_one(gpu_stream *s, gpu_submission *sub, const gpu_command *c, sl_error *err) {
    sl_gpu *g = s->o.gpu;
    gpu_result r = {0};
    void *driver = NULL;
    if (!g->driver->submit(g->device, s->driver, c->label, c, 1, &driver, err))
        return false;
    if (g->driver->wait(g->device, driver, GPU_MAP_SECONDS * UINT64_C(1000000000), &r)) {
        g->driver->release(g->device, driver);
    } else { /* it still runs: what it uses cannot be released */
        r.failed = true;
        sl_fail(&r.error, SL_ERR_TIMEOUT, "%s is not done after %d s", c->label, GPU_MAP_SECONDS);
        gpu_hold(sub->list);
    }
    gpu_debug_command(sub->list, c, r.end - r.begin);
    if (sub->result.begin == 0)
        sub->result.begin = r.begin;
    sub->result.end = r.end;
    sub->result.failed = r.failed;
    sub->result.error = r.error;
    return true;
}

/* From level 2 on commands run one by one, so that each has a time of its own. */
static bool runs_singly(const gpu_list *l) {
    return l->o.gpu->debug >= 2 && l->event_count == 0;
}

static bool run_singly(gpu_stream *s, gpu_submission *sub, sl_error *err) {
    const gpu_list *l = sub->list;
    gpu_stream_wait(s, UINT64_MAX, gpu_deadline(GPU_MAP_SECONDS * UINT64_C(1000000000)));
    for (size_t i = 0; i < l->count && !sub->result.failed; i++) {
        if (l->commands[i].kind == GPU_BARRIER)
            gpu_debug_command(l, &l->commands[i], -1);
        else if (!run_one(s, sub, &l->commands[i], err))
            return false;
    }
    return true;
}

/* ---- submit ------------------------------------------------------------------------------------------------------ */

/* An empty list is done when all before it is; no driver sees it. */
static bool hand_over(gpu_stream *s, gpu_submission *sub, sl_error *err) {
    sl_gpu *g = s->o.gpu;
    const gpu_list *l = sub->list;
    gpu_debug_list(l, s);
    if (l->count == 0)
        return true;
    if (runs_singly(l))
        return run_singly(s, sub, err);
    for (size_t i = 0; i < l->count && g->debug >= 2; i++)
        gpu_debug_command(l, &l->commands[i], -1);
    if (sub->replay && sub->replay->driver)
        return g->driver->replay_submit(g->device, s->driver, sub->replay->driver, &sub->driver, err);
    if (l->mark_count && !sub->replay)
        return gpu_parts_submit(sub, s->driver, err);
    return g->driver->submit(g->device, s->driver, l->label, l->commands, l->count, &sub->driver, err);
}

/* What failed before is reported now: nothing runs on what a failed list should have made. */
static bool stream_good(gpu_stream *s, sl_error *err) {
    sl_gpu *g = s->o.gpu;
    gpu_stream_wait(s, UINT64_MAX, 0);
    pthread_mutex_lock(&g->lock);
    gpu_failure *f = gpu_hold(s->failure);
    pthread_mutex_unlock(&g->lock);
    if (!f)
        return true;
    sl_fail(err, f->error.code, "the stream takes no lists until it has recovered: %s", f->error.message);
    gpu_drop(f);
    return false;
}

static void enqueue(gpu_stream *s, gpu_submission *sub) {
    sl_gpu *g = s->o.gpu;
    pthread_mutex_lock(&g->lock);
    sub->ticket = ++s->given;
    if (s->last)
        s->last->next = sub;
    else
        s->first = sub;
    s->last = sub;
    pthread_mutex_unlock(&g->lock);
}

/* Devices have room for so many lists; past that the oldest is waited for. */
static bool make_room(gpu_stream *s, sl_error *err) {
    return s->given < GPU_IN_FLIGHT ||
           gpu_stream_wait(s, s->given + 1 - GPU_IN_FLIGHT, gpu_deadline(GPU_ROOM_SECONDS * UINT64_C(1000000000))) ||
           sl_fail(err, SL_ERR_TIMEOUT, "%d lists of the stream are in flight and the oldest is not done after %d s",
                   GPU_IN_FLIGHT, GPU_ROOM_SECONDS);
}

bool gpu_stream_submit(gpu_stream *s, gpu_list *l, gpu_replay *r, sl_gpu_ticket *ticket, sl_error *err) {
    sl_gpu *g = s->o.gpu;
    if (!gpu_same_process(g, err) || !make_room(s, err) || !stream_good(s, err) || gpu_mapped_conflict(g, l, err))
        return false;
    gpu_submission *sub = gpu_object_new(g, GPU_SUBMISSION, sizeof *sub, err);
    if (!sub)
        return false;
    sub->list = gpu_hold(l);
    sub->replay = gpu_hold(r);
    if (!hand_over(s, sub, err)) {
        gpu_drop(sub);
        return false;
    }
    enqueue(s, sub);
    if (ticket)
        *ticket = s->given;
    return true;
}

void gpu_submission_destroy(gpu_submission *sub) {
    sl_gpu *g = sub->o.gpu;
    if (sub->driver)
        g->driver->release(g->device, sub->driver);
    gpu_parts_free(sub);
    gpu_drop(sub->replay);
    gpu_drop(sub->list);
    gpu_drop(sub->failure);
}

bool sl_gpu_submit(sl_gpu_list *list, sl_gpu_ticket *ticket, sl_error *err) {
    gpu_list *l = gpu_list_enter(list, err);
    if (!l)
        return false;
    gpu_drop(gpu_handle_end(list, GPU_LIST));
    bool ok = gpu_stream_submit(l->stream, l, NULL, ticket, err);
    gpu_list_leave(l);
    return ok;
}

/* ---- replay ------------------------------------------------------------------------------------------------------ */

static sl_gpu_replay *keep(gpu_list *l, sl_error *err) {
    sl_gpu *g = l->o.gpu;
    if (l->event_count)
        return sl_fail_null(err, SL_ERR_UNSUPPORTED, "list '%s' has events, whose values only grow: it cannot be kept",
                            l->label);
    gpu_replay *r = gpu_object_new(g, GPU_REPLAY, sizeof *r, err);
    if (!r)
        return NULL;
    r->list = gpu_hold(l);
    if (g->driver->replay_new && l->count) {
        r->driver = g->driver->replay_new(g->device, l->commands, l->count, err);
        if (!r->driver) {
            gpu_drop(r);
            return NULL;
        }
    }
    return gpu_handle_new(r, err);
}

sl_gpu_replay *sl_gpu_keep(sl_gpu_list *list, sl_error *err) {
    gpu_list *l = gpu_list_enter(list, err);
    if (!l)
        return NULL;
    gpu_drop(gpu_handle_end(list, GPU_LIST));
    sl_gpu_replay *r = keep(l, err);
    gpu_list_leave(l);
    return r;
}

bool sl_gpu_replay_submit(sl_gpu_replay *handle, sl_gpu_ticket *ticket, sl_error *err) {
    gpu_replay *r = gpu_take(handle, GPU_REPLAY, err);
    bool ok = false;
    if (r && gpu_stream_enter(r->list->stream, err)) {
        ok = gpu_stream_submit(r->list->stream, r->list, r, ticket, err);
        gpu_stream_leave(r->list->stream);
    }
    gpu_drop(r);
    return ok;
}

void gpu_replay_destroy(gpu_replay *r) {
    sl_gpu *g = r->o.gpu;
    if (r->driver)
        g->driver->replay_free(g->device, r->driver);
    gpu_drop(r->list);
}

void sl_gpu_replay_free(sl_gpu_replay *r) {
    gpu_drop(gpu_handle_end(r, GPU_REPLAY));
}

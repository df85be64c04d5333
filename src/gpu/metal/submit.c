/* Streams; lists committed to them, waited for with time limits, and what became of them. */
#include "gpu/metal/metal.h"

#include <stdlib.h>

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static void release_stream(gpu_device *d, metal_stream *s) {
    metal_release(&d->api, s->timeline);
    metal_release(&d->api, s->fence);
    metal_release(&d->api, s->queue);
    free(s);
}

static metal_stream *stream_in_pool(gpu_device *d, sl_error *err) {
    const metal_api *api = &d->api;
    metal_stream *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail_null(err, SL_ERR_MEMORY, "metal: no memory for a stream");
    s->queue = METAL_SEND(api, newCommandQueue, d->device, METAL_LISTS_IN_FLIGHT);
    s->fence = METAL_SEND(api, newFence, d->device);
    s->timeline = METAL_SEND(api, newSharedEvent, d->device);
    if (!s->queue || !s->fence || !s->timeline) {
        release_stream(d, s);
        return sl_fail_null(err, SL_ERR_DEVICE, "metal: no command queue to be had");
    }
    if (d->residency)
        METAL_SEND(api, addResidencySet, s->queue, d->residency);
    return s;
}

/* Takes or gives back one of the streams a device may have. */
static bool count_stream(gpu_device *d, int change) {
    pthread_mutex_lock(&d->lock);
    bool ok = d->streams + change <= METAL_STREAMS;
    if (ok)
        d->streams += change;
    pthread_mutex_unlock(&d->lock);
    return ok;
}

void *metal_stream_new(gpu_device *d, sl_error *err) {
    if (metal_in_other_process(d, err))
        return NULL;
    if (!count_stream(d, 1))
        return sl_fail_null(err, SL_ERR_ARGUMENT, "metal: %d streams are open, which is the most", METAL_STREAMS);
    void *pool = metal_pool_push(&d->api);
    metal_stream *s = stream_in_pool(d, err);
    metal_pool_pop(&d->api, pool);
    if (!s)
        count_stream(d, -1);
    return s;
}

void metal_stream_free(gpu_device *d, void *stream) {
    void *pool = metal_pool_push(&d->api);
    release_stream(d, stream);
    metal_pool_pop(&d->api, pool);
    count_stream(d, -1);
}

/* ---- submission ---------------------------------------------------------------------------------------------------
 */

typedef struct submission {
    metal_stream *stream;
    metal_id buffer;
    uint64_t timeline; /* the stream's timeline reaches it when the list is done */
    const gpu_command *list;
    size_t count;
    bool ended; /* no longer in flight */
} submission;

/* Retained command buffer with the whole list in it, not committed. */
static metal_id encode_buffer(gpu_device *d, metal_stream *s, const char *label, const gpu_command *list, size_t n,
                              bool *fenced, sl_error *err) {
    const metal_api *api = &d->api;
    metal_id buffer = METAL_SEND(api, commandBuffer, s->queue);
    if (!buffer)
        return sl_fail_null(err, SL_ERR_DEVICE, "metal: no command buffer to be had");
    if (label)
        METAL_SEND(api, setLabel, buffer, metal_string(api, label));
    if (!metal_encode(d, s, buffer, list, n, fenced, err))
        return NULL;
    METAL_SEND(api, encodeSignalEvent, buffer, s->timeline, s->committed + 1);
    return METAL_SEND(api, retain, buffer);
}

static bool submit_in_pool(gpu_device *d, submission *sub, const char *label, sl_error *err) {
    metal_stream *s = sub->stream;
    bool fenced;
    metal_residency_update(d);
    sub->buffer = encode_buffer(d, s, label, sub->list, sub->count, &fenced, err);
    if (!sub->buffer)
        return false;
    METAL_SEND(&d->api, commit, sub->buffer);
    sub->timeline = ++s->committed;
    s->fence_updated |= fenced;
    atomic_fetch_add(&s->in_flight, 1);
    return true;
}

bool metal_submit(gpu_device *d, void *stream, const char *label, const gpu_command *list, size_t n, void **out,
                  sl_error *err) {
    metal_stream *s = stream;
    if (metal_in_other_process(d, err))
        return false;
    if (atomic_load(&s->in_flight) >= METAL_LISTS_IN_FLIGHT)
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "metal: %d lists of one stream are in flight, which is the most: wait for some",
                       METAL_LISTS_IN_FLIGHT);
    submission *sub = calloc(1, sizeof *sub);
    if (!sub)
        return sl_fail(err, SL_ERR_MEMORY, "metal: no memory for a submission");
    *sub = (submission){.stream = s, .list = list, .count = n};
    void *pool = metal_pool_push(&d->api);
    bool ok = submit_in_pool(d, sub, label, err);
    metal_pool_pop(&d->api, pool);
    if (!ok) {
        free(sub);
        return false;
    }
    *out = sub;
    return true;
}

/* ---- completion ---------------------------------------------------------------------------------------------------
 */

/* Metal raises no event of a list that failed: who waits for one would wait for ever. */
static void raise_events(gpu_device *d, const submission *sub) {
    for (size_t i = 0; i < sub->count; i++) {
        const gpu_command *c = &sub->list[i];
        if (c->kind == GPU_SIGNAL && METAL_SEND(&d->api, signaledValue, c->u.event.event) < c->u.event.value)
            METAL_SEND(&d->api, setSignaledValue, c->u.event.event, c->u.event.value);
    }
}

static void read_result(gpu_device *d, submission *sub, metal_uint status, gpu_result *r) {
    const metal_api *api = &d->api;
    *r = (gpu_result){.begin = METAL_SEND(api, GPUStartTime, sub->buffer),
                      .end = METAL_SEND(api, GPUEndTime, sub->buffer)};
    metal_id error = METAL_SEND(api, error, sub->buffer);
    if (status == METAL_STATUS_COMPLETED && !error)
        return;
    r->failed = true;
    metal_fail(api, &r->error, SL_ERR_DEVICE, error, "metal: the GPU failed a list");
    if (!sub->ended)
        raise_events(d, sub);
}

static void end_flight(submission *sub) {
    if (!sub->ended)
        atomic_fetch_sub(&sub->stream->in_flight, 1);
    sub->ended = true;
}

bool metal_wait(gpu_device *d, void *submitted, uint64_t timeout_ns, gpu_result *result) {
    submission *sub = submitted;
    uint64_t deadline = metal_deadline(timeout_ns);
    void *pool = metal_pool_push(&d->api);
    metal_uint status = METAL_SEND(&d->api, status, sub->buffer);
    while (status < METAL_STATUS_COMPLETED && sl_now_ns() < deadline) {
        metal_event_doze(d, sub->stream->timeline, sub->timeline, deadline);
        status = METAL_SEND(&d->api, status, sub->buffer);
    }
    bool done = status >= METAL_STATUS_COMPLETED;
    if (done) {
        read_result(d, sub, status, result);
        end_flight(sub);
    }
    metal_pool_pop(&d->api, pool);
    return done;
}

void metal_submission_release(gpu_device *d, void *submitted) {
    submission *sub = submitted;
    void *pool = metal_pool_push(&d->api);
    metal_release(&d->api, sub->buffer);
    metal_pool_pop(&d->api, pool);
    end_flight(sub);
    free(sub);
}

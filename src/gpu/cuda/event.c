/* Events: a word of pinned memory that host and device write and wait for. Streams wait and write by memory operations
 * where they can, else by functions on the host.
 *
 * The device writes a value as it is. So where the host raises an event for a list that failed, and another goes on,
 * the word may fall for a moment: everybody on the host takes the greater of word and what the host gave, and lifts it.
 */
#include "gpu/cuda/cuda.h"

#include <stdlib.h>
#include <time.h>

enum { CALL_SECONDS = 600 };

void *cuda_event_new(gpu_device *d, sl_error *err) {
    cuda_event *e = calloc(1, sizeof *e);
    void *word = NULL;
    if (!e)
        return sl_fail_null(err, SL_ERR_MEMORY, "cuda: out of memory for an event");
    bool ok = cuda_enter(d, err);
    if (ok) {
        ok = cuda_check(d, d->api.host_alloc(&word, sizeof *e->word, CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED), err,
                        "an event's word");
        cuda_leave(d);
    }
    if (!ok) {
        free(e);
        return NULL;
    }
    e->word = word;
    e->address = (uintptr_t)word;
    atomic_store(e->word, 0);
    return e;
}

void cuda_event_free(gpu_device *d, void *event) {
    cuda_event *e = event;
    if (!e)
        return;
    if (cuda_enter_to_free(d)) {
        cuda_freed(d, d->api.host_free((void *)(uintptr_t)e->address), "freeing an event");
        cuda_leave(d);
    }
    free(e);
}

static void raise(_Atomic uint64_t *word, uint64_t value) {
    uint64_t now = atomic_load(word);
    while (now < value && !atomic_compare_exchange_weak(word, &now, value))
        ;
}

bool cuda_event_signal(gpu_device *d, void *event, uint64_t value, sl_error *err) {
    cuda_event *e = event;
    raise(&e->host, value);
    raise(e->word, value);
    return true;
}

uint64_t cuda_event_value(gpu_device *d, void *event) {
    cuda_event *e = event;
    uint64_t given = atomic_load(&e->host), word = atomic_load(e->word);
    if (word < given)
        raise(e->word, given);
    return word > given ? word : given;
}

bool cuda_event_wait(gpu_device *d, void *event, uint64_t value, uint64_t timeout_ns) {
    uint64_t began = sl_now_ns(), deadline = cuda_deadline(timeout_ns);
    for (;;) {
        if (cuda_event_value(d, event) >= value)
            return true;
        uint64_t now = sl_now_ns();
        if (now >= deadline)
            return false;
        if (now - began > 500 * 1000) { /* what a layer takes is waited for without a pause: one lasts 50 us at least */
            struct timespec t = {.tv_nsec = now - began > 5 * 1000 * 1000 ? 100 * 1000 : 5 * 1000};
            nanosleep(&t, NULL);
        }
    }
}

/* ---- in a list -----------------------------------------------------------------------------------------------------
 */

/* On a thread of the driver's, which must not call it. */
static void on_host(void *user) {
    cuda_call *c = user;
    if (c->signals)
        cuda_event_signal(c->device, c->event, c->value, NULL);
    else
        cuda_event_wait(c->device, c->event, c->value, CALL_SECONDS * UINT64_C(1000000000));
}

static bool call_host(cuda_submission *s, const gpu_command *c, sl_error *err) {
    cuda_call *call = calloc(1, sizeof *call);
    gpu_device *d = s->stream->device;
    if (!call)
        return sl_fail(err, SL_ERR_MEMORY, "cuda: out of memory for an event");
    *call = (cuda_call){s->calls, d, c->u.event.event, c->u.event.value, c->kind == GPU_SIGNAL};
    s->calls = call;
    return cuda_check(d, d->api.queue_call(s->stream->queue, on_host, call), err, "an event in list '%s'", s->label);
}

bool cuda_event_encode(cuda_submission *s, const gpu_command *c, sl_error *err) {
    gpu_device *d = s->stream->device;
    cuda_event *e = c->u.event.event;
    if (cuda_event_value(d, e) >= c->u.event.value)
        return true; /* reached already */
    if (!d->words)
        return call_host(s, c, err);
    cuda_result r = c->kind == GPU_SIGNAL
                        ? d->api.queue_write_word(s->stream->queue, e->address, c->u.event.value, 0)
                        : d->api.queue_wait_word(s->stream->queue, e->address, c->u.event.value, CUDA_WAIT_AT_LEAST);
    return cuda_check(d, r, err, "an event in list '%s'", s->label);
}

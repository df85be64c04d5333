/* Streams: a thread each, which takes submissions in order. A submission is done when its last command is; after an
 * error the rest of its commands are left out, but for signals, so that nobody waits for ever. */
#include "gpu/soft/soft.h"

#include <stdlib.h>
#include <string.h>

typedef struct submission {
    struct submission *next;
    struct stream *stream;
    const gpu_command *list;
    size_t n;
    bool done;
    gpu_result result;
} submission;

typedef struct stream {
    soft_device *device;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t work, done;
    submission *first, *last;
    bool ending;
    _Atomic bool cancel;
} stream;

static bool run_command(stream *s, const gpu_command *c, sl_error *err) {
    switch (c->kind) {
    case GPU_DISPATCH:
        return soft_dispatch(s->device, c, &s->cancel, err);
    case GPU_COPY:
        memmove(c->u.copy.to->host + c->u.copy.to_offset, c->u.copy.from->host + c->u.copy.from_offset,
                c->u.copy.bytes);
        return true;
    case GPU_FILL:
        memset(c->u.fill.to->host + c->u.fill.offset, c->u.fill.value, c->u.fill.bytes);
        return true;
    case GPU_BARRIER:
        return true;
    case GPU_WAIT:
        if (!soft_event_await(c->u.event.event, c->u.event.value, &s->cancel))
            return sl_fail(err, SL_ERR_CANCELLED, "soft: given up while waiting for an event");
        return true;
    case GPU_SIGNAL:
        return soft_event_signal((gpu_device *)s->device, c->u.event.event, c->u.event.value, err);
    }
    return sl_fail(err, SL_ERR_ARGUMENT, "soft: command %d", (int)c->kind);
}

static void run_submission(stream *s, submission *b) {
    b->result.begin = (double)sl_now_ns() / 1e9;
    for (size_t i = 0; i < b->n; i++) {
        if (b->result.failed && b->list[i].kind != GPU_SIGNAL)
            continue;
        sl_error err = {0};
        if (!run_command(s, &b->list[i], &err)) {
            b->result.failed = true;
            b->result.error = err;
        }
    }
    b->result.end = (double)sl_now_ns() / 1e9;
}

static void *stream_main(void *arg) {
    stream *s = arg;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        while (!s->first && !s->ending)
            soft_cond_wait(&s->work, &s->mutex, UINT64_MAX);
        submission *b = s->first;
        if (!b)
            break;
        pthread_mutex_unlock(&s->mutex);
        run_submission(s, b);
        pthread_mutex_lock(&s->mutex);
        s->first = b->next;
        if (!s->first)
            s->last = NULL;
        b->done = true;
        pthread_cond_broadcast(&s->done);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

void *soft_stream_new(gpu_device *d, sl_error *err) {
    stream *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail_null(err, SL_ERR_MEMORY, "soft: out of memory for a stream");
    s->device = soft_of(d);
    pthread_mutex_init(&s->mutex, NULL);
    soft_cond_init(&s->work);
    soft_cond_init(&s->done);
    if (pthread_create(&s->thread, NULL, stream_main, s) == 0)
        return s;
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->done);
    pthread_mutex_destroy(&s->mutex);
    free(s);
    return sl_fail_null(err, SL_ERR_MEMORY, "soft: cannot start a stream's thread");
}

/* What it still runs or holds back is given up: its submissions end with an error. They must have been released
 * already. */
void soft_stream_free(gpu_device *d, void *p) {
    stream *s = p;
    (void)d;
    if (!s)
        return;
    pthread_mutex_lock(&s->mutex);
    s->ending = true;
    atomic_store(&s->cancel, true);
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->mutex);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->done);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

bool soft_submit(gpu_device *d, void *stream_, const char *label, const gpu_command *list, size_t n, void **out,
                 sl_error *err) {
    stream *s = stream_;
    submission *b = calloc(1, sizeof *b);
    (void)d;
    if (!b)
        return sl_fail(err, SL_ERR_MEMORY, "soft: out of memory for list %s", label ? label : "");
    *b = (submission){.stream = s, .list = list, .n = n};
    pthread_mutex_lock(&s->mutex);
    if (s->last)
        s->last->next = b;
    else
        s->first = b;
    s->last = b;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->mutex);
    *out = b;
    return true;
}

bool soft_wait(gpu_device *d, void *p, uint64_t timeout_ns, gpu_result *result) {
    submission *b = p;
    stream *s = b->stream;
    uint64_t deadline = soft_deadline(timeout_ns);
    bool in_time = true;
    (void)d;
    pthread_mutex_lock(&s->mutex);
    while (!b->done && in_time)
        in_time = soft_cond_wait(&s->done, &s->mutex, deadline);
    bool done = b->done;
    if (done)
        *result = b->result;
    pthread_mutex_unlock(&s->mutex);
    return done;
}

/* Of a submission that is done, or that will never be waited for: then what runs is waited for here. */
void soft_release(gpu_device *d, void *p) {
    gpu_result result;
    soft_wait(d, p, UINT64_MAX, &result);
    free(p);
}

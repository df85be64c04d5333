/* Streams, and what is submitted to them. A submission lies between two marks, by which its end is known and its time
 * measured; its arguments that are bytes go to the device before it in one copy. */
#include "gpu/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_ARGUMENTS = 16 << 10, FINISH_SECONDS = 60 };

/* ---- what submissions need, kept for the next ----------------------------------------------------------------------
 */

void cuda_arguments_free(gpu_device *d, cuda_arguments *a) {
    if (a->host)
        cuda_freed(d, d->api.host_free(a->host), "freeing pinned memory");
    cuda_device_free(d, a->device);
    free(a);
}

void cuda_arguments_free_all(gpu_device *d, cuda_arguments *first) {
    for (cuda_arguments *next; first; first = next) {
        next = first->next;
        cuda_arguments_free(d, first);
    }
}

static cuda_arguments *arguments_new(gpu_device *d, uint64_t bytes, sl_error *err) {
    cuda_arguments *a = calloc(1, sizeof *a);
    void *host = NULL;
    if (!a)
        return sl_fail_null(err, SL_ERR_MEMORY, "cuda: out of memory for a list");
    a->bytes = LEAST_ARGUMENTS;
    while (a->bytes < bytes)
        a->bytes *= 2;
    bool ok = cuda_check(d, d->api.host_alloc(&host, a->bytes, CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED), err,
                         "%llu bytes of pinned memory for a list's arguments", (unsigned long long)a->bytes);
    a->host = host;
    if (ok && cuda_device_bytes(d, a->bytes, &a->device, err))
        return a;
    cuda_arguments_free(d, a);
    return NULL;
}

cuda_arguments *cuda_arguments_take(cuda_stream *s, uint64_t bytes, sl_error *err) {
    pthread_mutex_lock(&s->lock);
    cuda_arguments **at = &s->arguments;
    while (*at && (*at)->bytes < bytes)
        at = &(*at)->next;
    cuda_arguments *a = *at;
    if (a) {
        *at = a->next;
        a->next = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    return a ? a : arguments_new(s->device, bytes, err);
}

void cuda_arguments_give(cuda_stream *s, cuda_arguments *a) {
    pthread_mutex_lock(&s->lock);
    a->next = s->arguments;
    s->arguments = a;
    pthread_mutex_unlock(&s->lock);
}

static bool take_mark(cuda_stream *s, cuda_mark *out, sl_error *err) {
    pthread_mutex_lock(&s->lock);
    *out = s->mark_count ? s->marks[--s->mark_count] : NULL;
    pthread_mutex_unlock(&s->lock);
    return *out || cuda_check(s->device, s->device->api.mark_new(out, 0), err, "an event");
}

static void give_mark(cuda_stream *s, cuda_mark mark) {
    if (!mark)
        return;
    pthread_mutex_lock(&s->lock);
    void *list = s->marks;
    bool kept = sl_grow(&list, &s->mark_capacity, s->mark_count + 1, sizeof *s->marks);
    s->marks = list;
    if (kept)
        s->marks[s->mark_count++] = mark;
    pthread_mutex_unlock(&s->lock);
    if (!kept)
        cuda_freed(s->device, s->device->api.mark_free(mark), "freeing an event");
}

/* ---- streams -------------------------------------------------------------------------------------------------------
 */

static void free_parts(cuda_stream *s) {
    gpu_device *d = s->device;
    cuda_graphs_free(s);
    cuda_arguments_free_all(d, s->arguments);
    cuda_arguments_free_all(d, s->retired);
    for (size_t i = 0; i < s->mark_count; i++)
        cuda_freed(d, d->api.mark_free(s->marks[i]), "freeing an event");
    if (s->last)
        cuda_freed(d, d->api.mark_free(s->last), "freeing an event");
    if (s->queue)
        cuda_freed(d, d->api.queue_free(s->queue), "freeing a stream");
}

void cuda_stream_free(gpu_device *d, void *stream) {
    cuda_stream *s = stream;
    if (!s)
        return;
    if (cuda_enter_to_free(d)) {
        free_parts(s);
        cuda_leave(d);
    }
    free(s->marks);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void *cuda_stream_new(gpu_device *d, sl_error *err) {
    cuda_stream *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail_null(err, SL_ERR_MEMORY, "cuda: out of memory for a stream");
    s->device = d;
    pthread_mutex_init(&s->lock, NULL);
    bool ok = cuda_enter(d, err);
    if (ok) {
        ok = cuda_check(d, d->api.queue_new(&s->queue, CUDA_NON_BLOCKING), err, "a stream");
        cuda_leave(d);
    }
    if (ok)
        return s;
    cuda_stream_free(d, s);
    return NULL;
}

/* ---- what a submission is made of, for messages --------------------------------------------------------------------
 */

static void describe_dispatch(const gpu_command *c, sl_buf *out) {
    const uint32_t *g = c->u.dispatch.groups, *t = c->u.dispatch.threads;
    const cuda_pipeline *p = c->u.dispatch.pipeline;
    sl_buf_printf(out, "kernel %s, %u x %u x %u threadgroups of %u x %u x %u", p->name, g[0], g[1], g[2], t[0], t[1],
                  t[2]);
    for (size_t i = 0; i < c->u.dispatch.bound_count; i++) {
        const gpu_bound *b = &c->u.dispatch.bound[i];
        if (b->memory)
            sl_buf_printf(out, ", slot %d: %llu bytes at %llx", b->slot, (unsigned long long)b->length,
                          (unsigned long long)cuda_at(b->memory, b->offset));
        else
            sl_buf_printf(out, ", slot %d: %llu bytes of its own", b->slot, (unsigned long long)b->length);
    }
}

/* CUDA does not tell which kernel it was: with one in the list it is that one. */
static void describe_kernels(const cuda_submission *s, sl_buf *out) {
    const gpu_command *first = NULL, *last = NULL;
    size_t count = 0;
    for (size_t i = 0; i < s->count; i++) {
        if (s->list[i].kind != GPU_DISPATCH)
            continue;
        first = first ? first : &s->list[i];
        last = &s->list[i];
        count++;
    }
    if (count == 1)
        describe_dispatch(first, out);
    else if (count)
        sl_buf_printf(out, "one of %zu kernels from %s to %s (SLUICE_DEBUG=2 runs them one by one)", count,
                      first->label, last->label);
    else
        sl_buf_printf(out, "no kernel");
}

/* ---- submitting ----------------------------------------------------------------------------------------------------
 */

static bool send_arguments(cuda_submission *s, sl_error *err) {
    gpu_device *d = s->stream->device;
    uint64_t bytes = cuda_argument_bytes(s->list, s->count);
    if (!bytes)
        return true;
    s->arguments = cuda_arguments_take(s->stream, bytes, err);
    if (!s->arguments)
        return false;
    cuda_arguments_fill(s->list, s->count, s->arguments->host);
    return cuda_check(d, d->api.copy_to_device(s->arguments->device, s->arguments->host, bytes, s->stream->queue), err,
                      "arguments of list '%s'", s->label);
}

static bool is_event(const gpu_command *c) {
    return c->kind == GPU_WAIT || c->kind == GPU_SIGNAL;
}

/* Commands between events, as a graph or one by one; *sent: arguments are on their way. */
static bool encode_run(cuda_submission *s, const gpu_command *list, size_t n, bool *sent, sl_error *err) {
    bool done = false;
    uint64_t at = cuda_argument_bytes(s->list, (size_t)(list - s->list));
    if (!cuda_graph_run(s->stream, list, n, &done, err))
        return false;
    if (done)
        return true;
    if (!*sent && !send_arguments(s, err))
        return false;
    *sent = true;
    return cuda_encode(s->stream, s->stream->queue, list, n, s->arguments, &at, err);
}

static bool encode_list(cuda_submission *s, sl_error *err) {
    bool sent = false;
    for (size_t i = 0; i < s->count;) {
        size_t first = i;
        while (i < s->count && !is_event(&s->list[i]))
            i++;
        if (i > first && !encode_run(s, &s->list[first], i - first, &sent, err))
            return false;
        if (i < s->count && !cuda_event_encode(s, &s->list[i++], err))
            return false;
    }
    return true;
}

/* What graphs left that were dropped before the submission's end is done with at its end. */
static void take_retired(cuda_submission *s) {
    cuda_arguments **end = &s->arguments;
    while (*end)
        end = &(*end)->next;
    *end = s->stream->retired;
    s->stream->retired = NULL;
}

/* Part of a list may run already when another part is refused: then the submission fails once that has run. */
static void fail_later(cuda_submission *s, const sl_error *why) {
    s->result.failed = true;
    s->result.error = *why;
}

/* A fault is told by whatever call comes next: a kernel that fails at once fails the end of its list. */
static void fail_end(cuda_submission *s, cuda_result r) {
    sl_buf what = {0};
    sl_error why = {0};
    describe_kernels(s, &what);
    cuda_check(s->stream->device, r, &why, "ending list '%s': %s", s->label, what.data ? what.data : "");
    sl_buf_free(&what);
    fail_later(s, &why);
}

static bool start(cuda_submission *s, cuda_exec exec, sl_error *err) {
    gpu_device *d = s->stream->device;
    sl_error why = {0};
    if (!take_mark(s->stream, &s->begin, err) || !take_mark(s->stream, &s->end, err) ||
        !cuda_check(d, d->api.mark_record(s->begin, s->stream->queue), err, "beginning list '%s'", s->label))
        return false;
    bool ok = exec ? cuda_check(d, d->api.exec_launch(exec, s->stream->queue), &why, "launching a graph")
                   : encode_list(s, &why);
    if (!ok)
        fail_later(s, &why);
    take_retired(s);
    cuda_result r = d->api.mark_record(s->end, s->stream->queue);
    if (r == CUDA_OK)
        return true;
    if (ok)
        fail_end(s, r);
    give_mark(s->stream, s->end);
    s->end = NULL;
    return true;
}

static void free_submission(cuda_submission *s) {
    give_mark(s->stream, s->begin);
    give_mark(s->stream, s->end);
    for (cuda_arguments *a = s->arguments, *next; a; a = next) {
        next = a->next;
        cuda_arguments_give(s->stream, a);
    }
    while (s->calls) {
        cuda_call *c = s->calls;
        s->calls = c->next;
        free(c);
    }
    free(s);
}

static bool submit(gpu_device *d, cuda_submission *s, cuda_exec exec, void **out, sl_error *err) {
    if (!cuda_enter(d, err)) {
        free(s);
        return false;
    }
    bool ok = start(s, exec, err);
    if (!ok)
        free_submission(s);
    else
        *out = s;
    cuda_leave(d);
    return ok;
}

bool cuda_submit(gpu_device *d, void *stream, const char *label, const gpu_command *list, size_t n, void **out,
                 sl_error *err) {
    cuda_submission *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_MEMORY, "cuda: out of memory for list '%s'", label ? label : "");
    *s = (cuda_submission){.stream = stream, .label = label ? label : "", .list = list, .count = n};
    return submit(d, s, NULL, out, err);
}

bool cuda_submit_exec(gpu_device *d, void *stream, const gpu_command *list, size_t n, cuda_exec exec, void **out,
                      sl_error *err) {
    cuda_submission *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_MEMORY, "cuda: out of memory for a kept list");
    *s = (cuda_submission){.stream = stream, .label = "kept", .list = list, .count = n};
    return submit(d, s, exec, out, err);
}

bool cuda_stream_finish(cuda_stream *s, sl_error *err) {
    gpu_device *d = s->device;
    cuda_mark mark;
    if (!take_mark(s, &mark, err))
        return false;
    bool ok = cuda_check(d, d->api.mark_record(mark, s->queue), err, "an event");
    cuda_result r = ok ? cuda_poll(d, mark, cuda_deadline(FINISH_SECONDS * UINT64_C(1000000000))) : CUDA_OK;
    give_mark(s, mark);
    if (r == CUDA_NOT_READY)
        return sl_fail(err, SL_ERR_TIMEOUT, "cuda: a stream is not done after %d s", FINISH_SECONDS);
    return ok && cuda_check(d, r, err, "finishing a stream");
}

/* ---- completion ----------------------------------------------------------------------------------------------------
 */

static void fail_list(cuda_submission *s, cuda_result r) {
    gpu_device *d = s->stream->device;
    sl_buf what = {0};
    sl_error why = {0};
    bool sticky = atomic_load(&d->lost);
    if (sticky) {
        cuda_usable(d, &why);
    } else {
        describe_kernels(s, &what);
        cuda_check(d, r, &why, "list '%s': %s", s->label, what.data ? what.data : "");
    }
    sl_buf_free(&what);
    fail_later(s, &why);
}

/* Milliseconds in single precision are exact for short times only: so times are chained from end to end. */
static void read_times(cuda_submission *s) {
    cuda_stream *q = s->stream;
    const cuda_api *a = &q->device->api;
    float before = 0, during = 0;
    if (a->mark_elapsed(&before, q->last ? q->last : q->device->origin, s->begin) != CUDA_OK ||
        a->mark_elapsed(&during, s->begin, s->end) != CUDA_OK)
        return;
    s->result.begin = q->last_end + before * 1e-3;
    s->result.end = s->result.begin + during * 1e-3;
    q->last_end = s->result.end;
    cuda_mark old = q->last;
    q->last = s->end;
    s->end = NULL;
    give_mark(q, old);
}

/* Whoever waits for what a failed list was to signal is let go on. */
static void raise_events(cuda_submission *s) {
    for (size_t i = 0; i < s->count; i++)
        if (s->list[i].kind == GPU_SIGNAL)
            cuda_event_signal(s->stream->device, s->list[i].u.event.event, s->list[i].u.event.value, NULL);
}

static void complete(cuda_submission *s, cuda_result r) {
    if (r != CUDA_OK && !s->result.failed)
        fail_list(s, r);
    else if (r == CUDA_OK && s->end)
        read_times(s);
    if (s->result.failed)
        raise_events(s);
    s->done = true;
}

/* Words that a list of another stream wrote late may have put an event back: looking at it lifts it again. */
static void lift_events(const cuda_submission *s) {
    for (size_t i = 0; i < s->count; i++)
        if (s->list[i].kind == GPU_WAIT)
            cuda_event_value(s->stream->device, s->list[i].u.event.event);
}

bool cuda_wait(gpu_device *d, void *submitted, uint64_t timeout_ns, gpu_result *result) {
    cuda_submission *s = submitted;
    if (!s->done && (!s->end || !cuda_enter_to_free(d))) {
        complete(s, CUDA_OK);
    } else if (!s->done) {
        lift_events(s);
        cuda_result r = cuda_poll(d, s->end, cuda_deadline(timeout_ns));
        if (r != CUDA_NOT_READY)
            complete(s, r);
        cuda_leave(d);
    }
    if (s->done)
        *result = s->result;
    return s->done;
}

/* Of a submission that is done; or that will never be waited for, whose end is waited for here. */
void cuda_release(gpu_device *d, void *submitted) {
    cuda_submission *s = submitted;
    gpu_result result;
    while (!s->done && !cuda_wait(d, s, UINT64_C(1000000000), &result))
        ;
    if (cuda_enter_to_free(d)) {
        free_submission(s);
        cuda_leave(d);
    }
}

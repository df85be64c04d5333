/* Events: counters that the host and lists signal and wait for. */
#include "gpu/core.h"

#include <stdlib.h>
#include <string.h>

#define SLICE_NS (UINT64_C(20) * 1000 * 1000)

sl_gpu_event *sl_gpu_event_new(sl_gpu *g, sl_error *err) {
    if (!g)
        return sl_fail_null(err, SL_ERR_ARGUMENT, "sl_gpu_event_new: the device is NULL");
    gpu_event *e = gpu_object_new(g, GPU_EVENT, sizeof *e, err);
    if (!e)
        return NULL;
    pthread_mutex_init(&e->lock, NULL);
    e->driver = g->driver->event_new(g->device, err);
    if (!e->driver) {
        gpu_drop(e);
        return NULL;
    }
    return gpu_handle_new(e, err);
}

void gpu_event_destroy(gpu_event *e) {
    sl_gpu *g = e->o.gpu;
    if (e->driver)
        g->driver->event_free(g->device, e->driver);
    gpu_drop(e->failure);
    free(e->promised);
    pthread_mutex_destroy(&e->lock);
}

void sl_gpu_event_free(sl_gpu_event *e) {
    gpu_drop(gpu_handle_end(e, GPU_EVENT));
}

/* ---- host -------------------------------------------------------------------------------------------------------- */

static uint64_t value_of(const gpu_event *e) {
    return e->o.gpu->driver->event_value(e->o.gpu->device, e->driver);
}

/* The lowest value above `now` that a list is still to signal; 0: none. */
static uint64_t next_promised(gpu_event *e, uint64_t now) {
    uint64_t next = 0;
    pthread_mutex_lock(&e->lock);
    for (size_t i = 0; i < e->promised_count && !next; i++)
        next = e->promised[i] > now ? e->promised[i] : 0;
    pthread_mutex_unlock(&e->lock);
    return next;
}

static bool signal_event(gpu_event *e, uint64_t value, sl_error *err) {
    uint64_t now = value_of(e), next = next_promised(e, now);
    if (next && value > next) /* the list would take it back */
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "event: value %llu, expected at most %llu: a list in flight raises it to that",
                       (unsigned long long)value, (unsigned long long)next);
    if (value < now || value == 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "event: value %llu, expected at least %llu: values only grow",
                       (unsigned long long)value, (unsigned long long)(now ? now : 1));
    return value == now || e->o.gpu->driver->event_signal(e->o.gpu->device, e->driver, value, err);
}

bool sl_gpu_event_signal(sl_gpu_event *handle, uint64_t value, sl_error *err) {
    gpu_event *e = gpu_take(handle, GPU_EVENT, err);
    bool ok = e && signal_event(e, value, err);
    gpu_drop(e);
    return ok;
}

uint64_t sl_gpu_event_value(const sl_gpu_event *handle) {
    gpu_event *e = gpu_take(handle, GPU_EVENT, NULL);
    uint64_t value = e ? value_of(e) : 0;
    gpu_drop(e);
    return value;
}

/* A failed list's value was raised by hand: whoever waited must know. */
static bool value_good(gpu_event *e, uint64_t value, sl_error *err) {
    sl_gpu *g = e->o.gpu;
    pthread_mutex_lock(&g->lock);
    gpu_failure *f = e->failure;
    f = f && !f->recovered && value >= e->failed_value ? gpu_hold(f) : NULL;
    pthread_mutex_unlock(&g->lock);
    if (!f)
        return true;
    sl_fail(err, f->error.code, "event: value %llu was not reached: %s", (unsigned long long)value, f->error.message);
    gpu_drop(f);
    return false;
}

static bool wait_event(gpu_event *e, uint64_t value, uint64_t timeout_ns, sl_error *err) {
    sl_gpu *g = e->o.gpu;
    uint64_t deadline = gpu_deadline(timeout_ns);
    for (;;) {
        uint64_t now = sl_now_ns(), left = deadline > now ? deadline - now : 0;
        bool reached = g->driver->event_wait(g->device, e->driver, value, left < SLICE_NS ? left : SLICE_NS);
        /* The list that was to signal may have failed, and nobody may be waiting for it. */
        gpu_reap(g);
        if (reached || value_of(e) >= value)
            return value_good(e, value, err);
        if (left == 0)
            return sl_fail(err, SL_ERR_TIMEOUT, "event: value %llu is not reached after %.3f s, it is at %llu",
                           (unsigned long long)value, (double)timeout_ns * 1e-9, (unsigned long long)value_of(e));
    }
}

bool sl_gpu_event_wait(sl_gpu_event *handle, uint64_t value, uint64_t timeout_ns, sl_error *err) {
    gpu_event *e = gpu_take(handle, GPU_EVENT, err);
    bool ok = e && wait_event(e, value, timeout_ns, err);
    gpu_drop(e);
    return ok;
}

void gpu_events_fail(const gpu_submission *sub) {
    const sl_gpu *g = sub->o.gpu;
    for (size_t i = 0; i < sub->list->event_count; i++) {
        const struct gpu_list_event *e = &sub->list->events[i];
        if (e->signals && value_of(e->event) < e->value)
            g->driver->event_signal(g->device, e->event->driver, e->value, NULL);
    }
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

/* Values that lists raise an event to grow in the order of encoding. */
static bool promise(const gpu_list *l, gpu_event *e, uint64_t value, sl_error *err) {
    uint64_t now = value_of(e);
    pthread_mutex_lock(&e->lock);
    void *list = e->promised;
    uint64_t promised = e->promised_count ? e->promised[e->promised_count - 1] : 0,
             least = promised > now ? promised : now;
    bool grows = value >= least;
    bool ok = grows && sl_grow(&list, &e->promised_capacity, e->promised_count + 1, sizeof *e->promised);
    e->promised = list;
    if (ok)
        e->promised[e->promised_count++] = value;
    pthread_mutex_unlock(&e->lock);
    if (!grows)
        return sl_fail(err, SL_ERR_ARGUMENT, "list '%s': an event signalled with %llu, which %s %llu: values only grow",
                       l->label, (unsigned long long)value, promised > now ? "lists raise to" : "is at",
                       (unsigned long long)least);
    return ok || sl_fail(err, SL_ERR_MEMORY, "list '%s': out of memory for an event", l->label);
}

static void take_back(gpu_event *e, uint64_t value) {
    size_t i = 0;
    pthread_mutex_lock(&e->lock);
    while (i < e->promised_count && e->promised[i] != value)
        i++;
    if (i < e->promised_count)
        memmove(&e->promised[i], &e->promised[i + 1], (--e->promised_count - i) * sizeof *e->promised);
    pthread_mutex_unlock(&e->lock);
}

void gpu_events_release(const gpu_list *l) {
    for (size_t i = 0; i < l->event_count; i++)
        if (l->events[i].signals)
            take_back(l->events[i].event, l->events[i].value);
}

static bool add_event(gpu_list *l, gpu_event *e, uint64_t value, bool signals, sl_error *err) {
    if (e->o.gpu != l->o.gpu)
        return sl_fail(err, SL_ERR_ARGUMENT, "list '%s': the event is of another device", l->label);
    if (value == 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "list '%s': value 0 of an event, expected at least 1", l->label);
    if (signals && !promise(l, e, value, err))
        return false;
    gpu_command c = {.kind = signals ? GPU_SIGNAL : GPU_WAIT, .label = signals ? "signal" : "wait"};
    c.u.event.event = e->driver;
    c.u.event.value = value;
    if (!gpu_list_add(l, &c, NULL, 0, (void *[]){e}, 1, err)) {
        if (signals)
            take_back(e, value);
        return false;
    }
    l->events[l->event_count++] = (struct gpu_list_event){e, value, signals};
    return true;
}

static bool encode_event(sl_gpu_list *list, sl_gpu_event *handle, uint64_t value, bool signals, sl_error *err) {
    gpu_list *l = gpu_list_enter(list, err);
    if (!l)
        return false;
    gpu_event *e = gpu_take(handle, GPU_EVENT, err);
    bool ok = e && add_event(l, e, value, signals, err);
    gpu_drop(e);
    gpu_list_leave(l);
    return ok;
}

bool sl_gpu_encode_wait(sl_gpu_list *l, sl_gpu_event *e, uint64_t value, sl_error *err) {
    return encode_event(l, e, value, false, err);
}

bool sl_gpu_encode_signal(sl_gpu_list *l, sl_gpu_event *e, uint64_t value, sl_error *err) {
    return encode_event(l, e, value, true, err);
}

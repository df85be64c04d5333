#include "engine/activity.h"

#include <stdio.h>

void engine_activity_init(engine_activity *a) {
    *a = (engine_activity){.since_ns = sl_now_ns()};
    pthread_mutex_init(&a->mutex, NULL);
}

void engine_activity_destroy(engine_activity *a) {
    pthread_mutex_destroy(&a->mutex);
}

void engine_activity_set(engine_activity *a, engine_stage stage, int32_t rows) {
    pthread_mutex_lock(&a->mutex);
    a->stage = stage;
    a->rows = rows;
    a->reading = false;
    a->since_ns = sl_now_ns();
    pthread_mutex_unlock(&a->mutex);
}

/* ---- watching the expert source --------------------------------------------------------------------------------- */

static bool watch_begin(void *self, int32_t layer, const int32_t *ids, int32_t n, sl_expert_order order,
                        sl_error *err) {
    engine_activity *a = self;
    pthread_mutex_lock(&a->mutex);
    a->layer = layer;
    a->wanted = a->outstanding = n;
    pthread_mutex_unlock(&a->mutex);
    if (a->before)
        a->before(a->before_user);
    return a->inner.begin(a->inner.self, layer, ids, n, order, err);
}

static void set_reading(engine_activity *a, bool reading, int32_t arrived) {
    pthread_mutex_lock(&a->mutex);
    a->reading = reading;
    a->outstanding -= arrived;
    a->since_ns = sl_now_ns();
    pthread_mutex_unlock(&a->mutex);
}

static int watch_next(void *self, sl_expert_view *out, int max, sl_error *err) {
    engine_activity *a = self;
    set_reading(a, true, 0);
    int n = a->inner.next(a->inner.self, out, max, err);
    set_reading(a, false, n < 0 ? 1 : n);
    return n;
}

static void watch_done(void *self, const sl_expert_view *views, int n) {
    engine_activity *a = self;
    a->inner.done(a->inner.self, views, n);
}

static void watch_end(void *self) {
    engine_activity *a = self;
    a->inner.end(a->inner.self);
}

static bool watch_peek(void *self, int32_t layer, sl_expert_peek *out) {
    engine_activity *a = self;
    return a->inner.peek(a->inner.self, layer, out);
}

static int32_t watch_resident(void *self, int32_t layer, sl_expert_view *out, int32_t max) {
    engine_activity *a = self;
    return a->inner.resident(a->inner.self, layer, out, max);
}

static uint64_t watch_generation(void *self, int32_t layer) {
    engine_activity *a = self;
    return a->inner.generation(a->inner.self, layer);
}

static bool watch_wants_guess(void *self) {
    engine_activity *a = self;
    return a->inner.wants_guess(a->inner.self);
}

static void watch_guess(void *self, const int32_t *ids, int32_t n) {
    engine_activity *a = self;
    a->inner.guess(a->inner.self, ids, n);
}

sl_expert_source engine_activity_watch(engine_activity *a, sl_expert_source inner) {
    a->inner = inner;
    return (sl_expert_source){a,
                              watch_begin,
                              watch_next,
                              watch_done,
                              watch_end,
                              inner.peek ? watch_peek : NULL,
                              inner.resident ? watch_resident : NULL,
                              inner.generation ? watch_generation : NULL,
                              inner.wants_guess ? watch_wants_guess : NULL,
                              inner.guess ? watch_guess : NULL};
}

void engine_activity_text(engine_activity *a, char *out, size_t size, uint64_t *since_ns) {
    pthread_mutex_lock(&a->mutex);
    if (a->reading)
        snprintf(out, size, "reading experts of MoE layer %d: %d of %d outstanding", a->layer, a->outstanding,
                 a->wanted);
    else if (a->stage == ENGINE_PREFILL || a->stage == ENGINE_DECODE)
        snprintf(out, size, "%s of %d %s", a->stage == ENGINE_PREFILL ? "prefill" : "decode", a->rows,
                 a->rows == 1 ? "token" : "tokens");
    else
        snprintf(out, size, "%s", a->stage == ENGINE_LOADING ? "loading weights" : "");
    if (since_ns)
        *since_ns = a->since_ns;
    pthread_mutex_unlock(&a->mutex);
}

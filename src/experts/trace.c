/* The trace: which bytes were read, in which bursts, so that a run's reads can be replayed without its compute. */
#include "experts/store.h"

void experts_trace_burst(experts_trace *t) {
    t->burst++;
}

/* Without memory the trace ends, and says so by being shorter than the count of reads. */
void experts_trace_add(experts_trace *t, const experts_area *area, int32_t layer) {
    if (!t->on)
        return;
    void *array = t->read;
    if (!sl_grow(&array, &t->capacity, t->n + 1, sizeof *t->read)) {
        t->on = false;
        return;
    }
    t->read = array;
    t->read[t->n++] = (sl_trace_read){
        .file = area->file, .burst = t->burst, .layer = layer, .offset = area->offset, .bytes = area->bytes};
}

void experts_trace_guess(experts_trace *t, experts_slot *s) {
    size_t areas = (size_t)s->reads;
    s->traced = SIZE_MAX;
    if (!t->on || t->n < areas)
        return;
    s->traced = t->n - areas;
    for (size_t i = s->traced; i < t->n; i++)
        t->read[i].guess = true;
}

/* A trace begun since has other reads in these places, or none: those that are not this layer's guesses. */
void experts_trace_used(experts_trace *t, const experts_slot *s) {
    for (size_t i = s->traced; t->on && i < t->n && t->read[i].guess && !t->read[i].used; i++) {
        if (t->read[i].layer != s->layer || t->read[i].burst != t->read[s->traced].burst)
            return;
        t->read[i].used = true;
        if (i + 1 - s->traced == (size_t)s->areas)
            return;
    }
}

void sl_experts_trace(sl_experts *e, bool on) {
    e->trace.on = on;
    e->trace.n = 0;
    e->trace.burst = -1;
}

size_t sl_experts_trace_get(const sl_experts *e, const sl_trace_read **out) {
    *out = e->trace.read;
    return e->trace.n;
}

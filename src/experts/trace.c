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

void sl_experts_trace(sl_experts *e, bool on) {
    e->trace.on = on;
    e->trace.n = 0;
    e->trace.burst = -1;
}

size_t sl_experts_trace_get(const sl_experts *e, const sl_trace_read **out) {
    *out = e->trace.read;
    return e->trace.n;
}

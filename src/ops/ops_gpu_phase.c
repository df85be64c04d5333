/* A device's phases: marks in the lists, and their spans after the step. Without being asked for there are no marks. */
#include "ops/ops_gpu.h"

#include <stdlib.h>
#include <string.h>

enum { SPANS_MOST = 4096 /* of a step: what a stream keeps */ };

static const char *const labels[GPU_PHASES] = {
    [GPU_PHASE_OTHER] = "other",     [GPU_PHASE_LINEAR] = "products",  [GPU_PHASE_ATTENTION] = "attention",
    [GPU_PHASE_DELTA] = "delta",     [GPU_PHASE_ROUTER] = "router",    [GPU_PHASE_SHARED] = "shared",
    [GPU_PHASE_EXPERTS] = "experts", [GPU_PHASE_WAIT] = "expert wait", [GPU_PHASE_HEAD] = "head"};

bool gpu_phase_mark(gpu_run *r) {
    return !r->o->spans || sl_gpu_encode_mark(r->o->list, labels[r->phase], r->err);
}

bool gpu_phase_begin(gpu_run *r, gpu_phase phase) {
    bool changes = phase != r->phase;
    r->phase = phase;
    return !changes || !r->o->list || gpu_phase_mark(r);
}

/* Norms go with what is around them: a part of their own would be measured with its overhead more than with itself. */
gpu_phase gpu_phase_of(const op *o, gpu_phase now) {
    switch (o->kind) {
    case OP_LINEAR:
    case OP_GATE_UP:
    case OP_HEAD_LINEAR:
        return GPU_PHASE_LINEAR;
    case OP_ATTENTION:
        return GPU_PHASE_ATTENTION;
    case OP_DELTA:
        return GPU_PHASE_DELTA;
    case OP_MOE:
        return GPU_PHASE_ROUTER;
    case OP_GATHER_OUTS:
    case OP_LOGITS:
        return GPU_PHASE_HEAD;
    case OP_EMBED:
        return GPU_PHASE_OTHER;
    default:
        return now;
    }
}

/* GPU_PHASES: a span that is none of ours. */
static int phase_named(const char *label) {
    int i = 0;
    while (i < GPU_PHASES && strcmp(labels[i], label) != 0)
        i++;
    return i;
}

static void book(sl_ops_gpu *o, int phase, double seconds) {
    if (phase == GPU_PHASES || !(seconds > 0))
        return;
    o->phase_ns[phase] += (uint64_t)(seconds * 1e9);
    o->times.gpu_phase_time += (uint64_t)(seconds * 1e9);
}

/* A device may begin a part while the one before it ends, and what a part with nothing but a wait in it says of its
 * begin and end is the device's secret: parts begin where those before them end, and a wait is what lies between. */
void gpu_phases_take(sl_ops_gpu *o) {
    if (!o->spans)
        return;
    size_t n = sl_gpu_spans(o->stream, o->spans, SPANS_MOST);
    sl_gpu_ticket ticket = 0;
    double end = 0;
    bool waits = false;
    for (size_t i = 0; i < n; i++) {
        const sl_gpu_span *s = &o->spans[i];
        int phase = phase_named(s->label);
        if (s->ticket != ticket) /* between lists it is the host that waits */
            end = s->begin;
        ticket = s->ticket;
        if (phase == GPU_PHASE_WAIT) {
            waits = true;
            continue;
        }
        if (waits)
            book(o, GPU_PHASE_WAIT, s->begin - end);
        waits = false;
        book(o, phase, s->end - (s->begin > end ? s->begin : end));
        end = s->end > end ? s->end : end;
    }
}

void gpu_phases_fill(const sl_ops_gpu *o, sl_ops_times *out) {
    const uint64_t *ns = o->phase_ns;
    if (!o->spans)
        return;
    out->attention = ns[GPU_PHASE_ATTENTION];
    out->delta = ns[GPU_PHASE_DELTA];
    out->linear = ns[GPU_PHASE_LINEAR];
    out->router = ns[GPU_PHASE_ROUTER];
    out->shared = ns[GPU_PHASE_SHARED];
    out->expert_compute = ns[GPU_PHASE_EXPERTS];
    out->expert_wait += ns[GPU_PHASE_WAIT]; /* beside the host's, where it reads before the device goes on */
    out->head = ns[GPU_PHASE_HEAD];
}

void gpu_set_timing(sl_ops *ops, bool on) {
    sl_ops_gpu *o = (sl_ops_gpu *)ops;
    free(o->spans);
    o->spans = on ? malloc(SPANS_MOST * sizeof *o->spans) : NULL;
    sl_gpu_spans(o->stream, NULL, 0); /* what was is not of interest */
}

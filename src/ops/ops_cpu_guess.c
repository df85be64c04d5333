/* What the next MoE layer will probably ask for: its norm and router applied to the state as it is after this layer's
 * attention, without what this layer's experts and the next attention will add. Of a long chunk some rows spread over
 * it say enough. Read ahead by whoever implements the expert source; nothing that is computed depends on it. */
#include "ops/ops_cpu.h"

/* The next MoE op over the same state, and the norm that it reads. */
static const op *next_moe(const cpu_run *r, const op *o, const op **norm) {
    const op *end = r->p->list + r->p->count;
    *norm = NULL;
    for (const op *x = o + 1; x < end; x++) {
        if (x->kind == OP_RMS_NORM)
            *norm = x;
        if (x->kind == OP_MOE)
            return *norm && (*norm)->dst.buffer == x->src.buffer && (*norm)->dst.offset == x->src.offset &&
                           x->dst.buffer == o->dst.buffer && x->dst.offset == o->dst.offset &&
                           x->src.cols == o->src.cols
                       ? x
                       : NULL;
    }
    return NULL;
}

/* Adds v to the n ascending ids unless it is there; the new n. */
static int32_t insert_id(int32_t *ids, int32_t n, int32_t v) {
    int32_t at = n;
    while (at > 0 && ids[at - 1] > v)
        at--;
    if (at > 0 && ids[at - 1] == v)
        return n;
    for (int32_t i = n; i > at; i--)
        ids[i] = ids[i - 1];
    ids[at] = v;
    return n + 1;
}

/* The rows' choices as one ascending list, in place: ids never get ahead of what is still to be read. */
static int32_t merge_choices(int32_t *chosen, int32_t pairs) {
    int32_t n = 0;
    for (int32_t i = 0; i < pairs; i++)
        n = insert_id(chosen, n, chosen[i]);
    return n;
}

void cpu_guess_next(cpu_run *r, const op *o) {
    sl_ops_cpu *c = r->o;
    cpu_scratch *s = &c->scratch;
    const sl_expert_source *src = &c->known.experts;
    const op *norm, *next;
    int32_t all = r->step->rows, rows = all < GUESS_ROWS ? all : GUESS_ROWS, hidden = o->dst.cols;
    if (!src->wants_guess || !src->wants_guess(src->self) || !(next = next_moe(r, o, &norm)))
        return;
    const float *state = view_rows(c, &o->dst), *weight = vector_of(c, &norm->u.norm.weight);
    for (int32_t i = 0; i < rows; i++)
        c->ops->rms_norm(s->rank_out + (int64_t)i * hidden, state + (int64_t)i * all / rows * o->dst.stride, weight,
                         hidden, norm->u.norm.eps);
    cpu_quantize_into(c, s->rank_out, hidden, rows, hidden, s->guess_act);
    cpu_route_guess(r, &next->u.moe, s->rank_out, hidden, rows);
    src->guess(src->self, s->guess_chosen, merge_choices(s->guess_chosen, rows * next->u.moe.top_k));
}

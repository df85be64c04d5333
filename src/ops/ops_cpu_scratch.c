/* Scratch of the CPU implementation: one span, laid out for the widest operation of a program. */
#include "ops/ops_cpu.h"

#include <string.h>

/* Hands out pieces of the span; base NULL only counts. */
typedef struct cursor {
    uint8_t *base;
    uint64_t at;
} cursor;

static void *take(cursor *c, uint64_t bytes) {
    void *p = c->base ? c->base + c->at : NULL;
    c->at += sl_round_up(bytes, 64);
    return p;
}

static uint64_t lay_out(const sl_ops_cpu *o, const scratch_extent *e, uint8_t *base, cpu_scratch *s) {
    cursor c = {base, 0};
    bool q8 = o->numeric == SL_NUMERIC_Q8;
    uint64_t rows = (uint64_t)e->rows, all_pairs = rows * (uint64_t)e->top_k;
    uint64_t inner_rows = (uint64_t)sl_max_i64(e->pairs, e->rows);
    uint64_t act_row = (uint64_t)sl_max_i64((int64_t)cpu_act_bytes(e->widest), e->head_act);
    s->act = take(&c, q8 ? rows * act_row : 0);
    s->act_inner = take(&c, q8 && e->inner ? inner_rows * cpu_act_bytes(e->inner) : 0);
    s->inner = take(&c, e->inner ? inner_rows * sl_round_up((uint64_t)e->inner, 16) * sizeof(float) : 0);
    s->inner_up = take(&c, e->inner_up ? inner_rows * sl_round_up((uint64_t)e->inner_up, 16) * sizeof(float) : 0);
    s->rank_out = take(&c, (uint64_t)e->rank_floats * sizeof(float));
    s->sum = take(&c, rows * (uint64_t)e->sum * sizeof(float));
    s->router = take(&c, rows * (uint64_t)e->experts * sizeof(float));
    s->weight = take(&c, all_pairs * sizeof(float));
    s->chosen = take(&c, all_pairs * sizeof(int32_t));
    s->pair_row = take(&c, all_pairs * sizeof(int32_t));
    s->pair_rank = take(&c, all_pairs * sizeof(int32_t));
    s->first = take(&c, (uint64_t)(e->experts + 1) * sizeof(int32_t));
    s->ids = take(&c, (uint64_t)e->experts * sizeof(int32_t));
    uint64_t guess_rows = e->experts == 0 ? 0 : rows < GUESS_ROWS ? rows : GUESS_ROWS;
    s->guess_act = take(&c, q8 ? guess_rows * cpu_act_bytes(e->sum) : 0);
    s->guess_weight = take(&c, guess_rows * (uint64_t)e->top_k * sizeof(float));
    s->guess_chosen = take(&c, guess_rows * (uint64_t)e->top_k * sizeof(int32_t));
    s->done = take(&c, all_pairs);
    s->place = take(&c, all_pairs * sizeof(int32_t));
    s->shared_out = take(&c, rows * (uint64_t)e->shared * sizeof(float));
    s->shared_gate = take(&c, rows * sizeof(float));
    s->cos_sin = take(&c, rows * (uint64_t)e->rope_dims * sizeof(float));
    s->blocks = take(&c, (rows + 1) * sizeof(int32_t));
    int64_t floats =
        sl_max_i64(sl_max_i64(e->attention_floats, e->delta_floats), sl_max_i64(e->experts, e->head_floats));
    s->thread_bytes = (uint64_t)sl_max_i64((int64_t)cpu_scratch_bytes(sl_max_i64(e->widest, e->inner)),
                                           floats * (int64_t)sizeof(float));
    s->thread_bytes = sl_round_up(s->thread_bytes, 4096);
    s->thread = take(&c, s->thread_bytes * (uint64_t)sl_pool_threads(o->pool));
    return c.at;
}

static void widen(int64_t *v, int64_t to) {
    *v = sl_max_i64(*v, to);
}

/* Kept outputs: as many pairs as rank_bytes hold, but never less than one expert with every row. */
static void measure_moe(const sl_ops_cpu *o, scratch_extent *e, int64_t rows, int64_t hidden, const sl_moe *m) {
    int64_t keep = o->rank_bytes / (hidden * (int64_t)sizeof(float));
    int64_t pairs = sl_max_i64(sl_min_i64(rows * m->top_k, keep), rows);
    widen(&e->pairs, pairs);
    widen(&e->rank_floats, pairs * hidden);
    widen(&e->sum, hidden);
    widen(&e->widest, hidden);
    widen(&e->inner, sl_moe_inner(m));
    if (cpu_moe_apart(m))
        widen(&e->inner_up, sl_moe_inner(m));
    widen(&e->experts, m->experts);
    widen(&e->top_k, m->top_k);
    if (m->shared[SL_PROJ_GATE].matrix.rows > 0) {
        widen(&e->inner, m->shared[SL_PROJ_GATE].matrix.rows);
        widen(&e->shared, hidden);
    }
}

static void measure_attention(scratch_extent *e, int32_t group, int32_t head_dim) {
    widen(&e->attention_floats, (int64_t)cpu_attention_scratch(cpu_attention_rows(group), group, head_dim));
    widen(&e->rope_dims, head_dim);
}

static void measure_delta(scratch_extent *e, const sl_delta *d) {
    widen(&e->delta_floats, (int64_t)cpu_delta_scratch(d->key_dim, d->value_dim));
}

static void measure_linear(scratch_extent *e, const op *o) {
    int64_t added = 0;
    for (int i = 0; i < o->u.linear.n; i++)
        added += o->u.linear.out[i].add ? o->u.linear.out[i].dst.cols : 0;
    widen(&e->sum, added);
    widen(&e->widest, o->src.cols);
}

static void measure_heads(scratch_extent *e, const sl_head_linear *h) {
    if (h->transposed)
        widen(&e->head_floats, (int64_t)h->in_dim * h->out_dim);
    else
        widen(&e->head_act, (int64_t)h->heads * (int64_t)cpu_act_bytes(h->in_dim));
    widen(&e->widest, h->in_dim);
}

static void measure_op(const sl_ops_cpu *o, scratch_extent *e, int64_t rows, const op *x) {
    const sl_attention *a = &x->u.attention.a;
    if (x->kind == OP_LINEAR)
        measure_linear(e, x);
    else if (x->kind == OP_HEAD_LINEAR)
        measure_heads(e, &x->u.head_linear.h);
    else if (x->kind == OP_GATE_UP || x->kind == OP_LOGITS)
        widen(&e->widest, x->src.cols);
    else if (x->kind == OP_MOE)
        measure_moe(o, e, rows, x->dst.cols, &x->u.moe);
    else if (x->kind == OP_ATTENTION)
        measure_attention(e, a->heads / a->kv_heads, a->head_dim);
    else if (x->kind == OP_DELTA)
        measure_delta(e, &x->u.delta.d);
}

/* Programs that were fitted before stay runnable: the extents only grow, until the last of them is gone. */
static scratch_extent measure(const sl_ops_cpu *o, scratch_extent e, const sl_program *p) {
    widen(&e.rows, p->max_rows);
    for (size_t i = 0; i < p->count; i++)
        measure_op(o, &e, p->max_rows, &p->list[i]);
    return e;
}

uint64_t cpu_scratch_need(const sl_ops_cpu *o, const sl_program *p) {
    scratch_extent e = measure(o, (scratch_extent){0}, p);
    cpu_scratch s = {0};
    return lay_out(o, &e, NULL, &s);
}

bool cpu_scratch_fit(sl_ops_cpu *o, const sl_program *p, sl_error *err) {
    scratch_extent e = measure(o, o->scratch.extent, p);
    cpu_scratch s = {0};
    uint64_t need = lay_out(o, &e, NULL, &s);
    if (need > o->scratch.bytes) {
        sl_mem_span_free(o->known.mem, o->scratch.span);
        o->scratch.span = NULL;
        o->scratch.bytes = 0;
        void *span = sl_mem_span(o->known.mem, need, SL_USE_SCRATCH, err);
        if (!span)
            return false;
        o->scratch.span = span;
        o->scratch.bytes = need;
    }
    o->scratch.extent = e;
    lay_out(o, &e, o->scratch.span, &o->scratch);
    return true;
}

void cpu_scratch_drop(sl_ops_cpu *o) {
    sl_mem_span_free(o->known.mem, o->scratch.span);
    o->scratch = (cpu_scratch){0};
}

void *cpu_thread_scratch(const sl_ops_cpu *o, int worker) {
    return o->scratch.thread + (uint64_t)worker * o->scratch.thread_bytes;
}

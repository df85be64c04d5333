/* Scratch of the CPU implementation: one span, laid out for the widest operation of a program. */
#include "ops/ops_cpu.h"

#include <string.h>

/* What a program needs room for. */
typedef struct extent {
    int64_t rows, hidden, widest; /* widest: columns of any source of a product */
    int64_t inner;                /* rows of gate/up: expert, shared */
    int64_t experts, top_k;
    bool shared;
    int64_t rope_dims;
    int64_t attention_floats; /* per thread */
} extent;

static int64_t pairs_kept(const extent *e) {
    if (!e->top_k)
        return 0;
    int64_t keep = RANK_SCRATCH_BYTES / (e->hidden * (int64_t)sizeof(float));
    int64_t all = e->rows * e->top_k;
    return sl_max_i64(all < keep ? all : keep, e->rows);
}

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

static uint64_t lay_out(const sl_ops_cpu *o, const extent *e, uint8_t *base, cpu_scratch *s) {
    cursor c = {base, 0};
    bool q8 = o->numeric == SL_NUMERIC_Q8;
    uint64_t rows = (uint64_t)e->rows, pairs = (uint64_t)pairs_kept(e);
    uint64_t all_pairs = rows * (uint64_t)e->top_k;
    uint64_t inner_rows = pairs > rows ? pairs : rows;
    s->act = take(&c, q8 ? rows * cpu_act_bytes(e->widest) : 0);
    s->act_inner = take(&c, q8 && e->inner ? inner_rows * cpu_act_bytes(e->inner) : 0);
    s->inner = take(&c, e->inner ? inner_rows * sl_round_up((uint64_t)e->inner, 16) * sizeof(float) : 0);
    s->rank_out = take(&c, pairs * (uint64_t)e->hidden * sizeof(float));
    s->sum = take(&c, rows * (uint64_t)e->hidden * sizeof(float));
    s->router = take(&c, rows * (uint64_t)e->experts * sizeof(float));
    s->weight = take(&c, all_pairs * sizeof(float));
    s->chosen = take(&c, all_pairs * sizeof(int32_t));
    s->pair_row = take(&c, all_pairs * sizeof(int32_t));
    s->pair_rank = take(&c, all_pairs * sizeof(int32_t));
    s->first = take(&c, (uint64_t)(e->experts + 1) * sizeof(int32_t));
    s->ids = take(&c, (uint64_t)e->experts * sizeof(int32_t));
    s->done = take(&c, all_pairs);
    s->place = take(&c, all_pairs * sizeof(int32_t));
    s->shared_out = take(&c, e->shared ? rows * (uint64_t)e->hidden * sizeof(float) : 0);
    s->shared_gate = take(&c, rows * sizeof(float));
    s->cos_sin = take(&c, rows * (uint64_t)e->rope_dims * sizeof(float));
    s->blocks = take(&c, (rows + 1) * sizeof(int32_t));
    uint64_t products = cpu_scratch_bytes(sl_max_i64(e->widest, e->inner));
    uint64_t attention = (uint64_t)e->attention_floats * sizeof(float);
    s->thread_bytes = sl_round_up(products > attention ? products : attention, 4096);
    s->thread = take(&c, s->thread_bytes * (uint64_t)sl_pool_threads(o->pool));
    return c.at;
}

static void widen(int64_t *v, int64_t to) {
    *v = sl_max_i64(*v, to);
}

static void measure_moe(extent *e, const sl_moe *m) {
    widen(&e->inner, m->proj[SL_PROJ_GATE].rows);
    widen(&e->inner, m->shared[SL_PROJ_GATE].matrix.rows);
    e->shared |= m->shared[SL_PROJ_GATE].buffer != 0 || m->shared[SL_PROJ_GATE].matrix.rows > 0;
    widen(&e->experts, m->experts);
    widen(&e->top_k, m->top_k);
}

static void measure_attention(extent *e, int32_t heads, int32_t kv_heads, int32_t head_dim) {
    widen(&e->attention_floats, (int64_t)cpu_attention_scratch(ATTENTION_ROWS, heads / kv_heads, head_dim));
    widen(&e->rope_dims, head_dim);
}

static extent measure(const sl_program *p) {
    extent e = {.rows = p->max_rows};
    for (size_t i = 0; i < p->count; i++) {
        const op *o = &p->list[i];
        if (o->kind == OP_LINEAR || o->kind == OP_GATE_UP || o->kind == OP_LOGITS || o->kind == OP_MOE)
            widen(&e.widest, o->src.cols);
        if (o->kind == OP_EMBED)
            widen(&e.hidden, o->dst.cols);
        for (int j = 0; o->kind == OP_LINEAR && j < o->u.linear.n; j++)
            if (o->u.linear.out[j].add)
                widen(&e.hidden, o->u.linear.out[j].dst.cols);
        if (o->kind == OP_MOE) {
            widen(&e.hidden, o->dst.cols);
            measure_moe(&e, &o->u.moe);
        }
        if (o->kind == OP_ATTENTION)
            measure_attention(&e, o->u.attention.a.heads, o->u.attention.a.kv_heads, o->u.attention.a.head_dim);
    }
    return e;
}

bool cpu_scratch_fit(sl_ops_cpu *o, const sl_program *p, sl_error *err) {
    extent e = measure(p);
    cpu_scratch s = {0};
    uint64_t need = lay_out(o, &e, NULL, &s);
    if (need > o->scratch.bytes) {
        sl_mem_span_free(o->mem, o->scratch.span);
        o->scratch = (cpu_scratch){0};
        void *span = sl_mem_span(o->mem, need, SL_USE_SCRATCH, err);
        if (!span)
            return false;
        o->scratch.span = span;
        o->scratch.bytes = need;
    }
    lay_out(o, &e, o->scratch.span, &o->scratch);
    return true;
}

/* Before anything is recorded the number of KV heads is not known here: one is the worst case. */
uint64_t cpu_scratch_need(const sl_ops_cpu *o, int32_t max_rows, int32_t hidden, int32_t widest, const sl_moe *moe,
                          int32_t heads, int32_t head_dim) {
    extent e = {.rows = max_rows, .hidden = hidden, .widest = widest};
    measure_attention(&e, heads, 1, head_dim);
    if (moe)
        measure_moe(&e, moe);
    cpu_scratch s = {0};
    return sl_round_up(lay_out(o, &e, NULL, &s), 4096);
}

void *cpu_thread_scratch(const sl_ops_cpu *o, int worker) {
    return o->scratch.thread + (uint64_t)worker * o->scratch.thread_bytes;
}

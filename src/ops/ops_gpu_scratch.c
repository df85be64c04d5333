/* Scratch of the GPU implementation: one span, laid out for the widest operation of a program. */
#include "ops/ops_gpu.h"

#include <string.h>

/* KV pages that the sequences of a step may have together: 4,096 is 262,144 tokens. */
enum { STEP_PAGES = 4096 };

typedef struct cursor {
    uint8_t *base; /* NULL: only counts */
    uint64_t at;
} cursor;

/* 256 bytes: what every device's bindings may be asked to be aligned to. */
static uint8_t *take(cursor *c, uint64_t bytes) {
    uint8_t *p = c->base ? c->base + c->at : NULL;
    c->at += sl_round_up(bytes, 256);
    return p;
}

/* Chunks of the delta rule that a step of so many rows has, of which a pass takes SL_DELTA_PLACES at most. */
static uint64_t delta_places(int64_t rows) {
    return (uint64_t)sl_min_i64(rows / GPU_CHUNK_ROWS, SL_DELTA_PLACES);
}

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* What batch.metal reads of rows in whole blocks, and of pairs: two halves of each value, and sums. No more than half
 * rows take where there is a chunk of some 200 of them. */
static int64_t batch_rows(const gpu_extent *e) {
    int64_t rows = sl_min_i64(e->rows, GPU_BATCH_ROWS), padded = (rows + 31) / 32 * 32;
    return e->rows < GPU_MATMUL_ROWS ? 0 : sl_max_i64(padded, (rows * e->top_k + 7) / 8 * 8);
}
static uint64_t batch_bytes(const gpu_extent *e) {
    int64_t rows = sl_min_i64(e->rows, GPU_BATCH_ROWS), pairs = (rows * e->top_k + 7) / 8 * 8;
    int64_t values = sl_max_i64((rows + 31) / 32 * 32 * e->widest, pairs * e->inner);
    return e->rows < GPU_MATMUL_ROWS ? 0 : (uint64_t)values * 4 + (uint64_t)values / 8 + 512;
}

static uint64_t lay_out(const gpu_extent *e, uint8_t *base, gpu_scratch *s) {
    cursor c = {base, 0};
    uint64_t rows = (uint64_t)e->rows, pairs = rows * (uint64_t)e->top_k, f = sizeof(float);
    uint64_t inner = (uint64_t)e->inner;
    uint64_t row_halves = rows * sl_round_up((uint64_t)e->widest, SL_HALF_PAD);
    uint64_t pair_halves = pairs * sl_round_up(inner, SL_HALF_PAD);
    s->step_bytes = gpu_step_bytes(e->rows, STEP_PAGES, e->rows * e->delta_layers);
    s->counters = take(&c, GPU_COUNTERS); /* right before the step, with which it is told */
    s->step = take(&c, s->step_bytes);
    s->table = take(&c, (uint64_t)(e->layers + 1) * (uint64_t)e->experts * SL_PARTS * sizeof(uint64_t));
    s->chosen = take(&c, pairs * sizeof(int32_t));
    s->chosen_ahead = take(&c, (uint64_t)e->layers * GPU_MATMUL_ROWS * (uint64_t)e->top_k * sizeof(int32_t));
    s->status_ahead = take(&c, (uint64_t)(e->layers * sl_max_i64(e->rows, GPU_MATMUL_ROWS)) * sizeof(int32_t));
    s->status = take(&c, rows * sizeof(int32_t));
    s->exchanged = c.at;
    s->half_bytes = larger(larger(row_halves, pair_halves) * 2, batch_bytes(e));
    s->unscale_bytes = larger(larger(pairs, rows), (uint64_t)batch_rows(e)) * f;
    s->half = take(&c, s->half_bytes);
    s->unscale = take(&c, s->unscale_bytes);
    s->partial = take(&c, GPU_SPLITS * (uint64_t)e->heads * (uint64_t)(e->head_dim + 2) * f);
    s->cos_sin = take(&c, rows * (uint64_t)e->head_dim * f + 4);
    s->router = take(&c, rows * (uint64_t)e->experts * f);
    s->weight = take(&c, pairs * f);
    s->pairs = take(&c, pairs * sizeof(int32_t));
    s->tiles = take(&c, (uint64_t)e->tiles * sizeof(sl_pair_tile));
    s->tile_count = take(&c, 2 * sizeof(uint32_t));
    s->inner = take(&c, pairs * inner * f);
    s->up = take(&c, pairs * inner * f);
    s->out = take(&c, pairs * (uint64_t)e->hidden * f);
    s->done = take(&c, pairs);
    s->shared_inner = take(&c, rows * (uint64_t)e->shared * f);
    s->shared_up = take(&c, rows * (uint64_t)e->up * f);
    s->shared_out = take(&c, rows * (uint64_t)e->hidden * f);
    s->shared_gate = take(&c, rows * f);
    s->delta_pairs = take(&c, delta_places(e->rows) * (uint64_t)e->delta_heads * SL_DELTA_PAIRS * f);
    return c.at;
}

static void widen(int64_t *v, int64_t to) {
    *v = sl_max_i64(*v, to);
}

static void measure_moe(gpu_extent *e, int64_t rows, int64_t hidden, const sl_moe *m) {
    widen(&e->experts, m->experts);
    widen(&e->top_k, m->top_k);
    widen(&e->tiles, rows * m->top_k / SL_MATMUL_TOKENS + m->experts);
    widen(&e->tiles, sl_min_i64(rows, GPU_BATCH_ROWS) * m->top_k / SL_BATCH_PAIRS + m->experts);
    widen(&e->inner, sl_moe_inner(m));
    widen(&e->hidden, hidden);
    widen(&e->widest, hidden);
    widen(&e->shared, m->shared[SL_PROJ_GATE].matrix.rows);
    widen(&e->up, m->shared[SL_PROJ_GATE].matrix.rows);
    widen(&e->widest, m->shared[SL_PROJ_GATE].matrix.rows);
}

static void measure_delta(gpu_extent *e, const sl_delta *d) {
    if (d->key_dim <= GPU_CHUNK_KEY)
        widen(&e->delta_heads, d->value_heads);
}

static void measure_op(gpu_extent *e, const sl_program *p, const op *o) {
    const sl_attention *a = &o->u.attention.a;
    if (o->kind == OP_LINEAR || o->kind == OP_GATE_UP || o->kind == OP_LOGITS) /* what may become half */
        widen(&e->widest, o->src.cols);
    if (o->kind == OP_GATE_UP)
        widen(&e->up, o->dst.stride);
    else if (o->kind == OP_MOE)
        measure_moe(e, p->max_rows, o->dst.cols, &o->u.moe);
    else if (o->kind == OP_DELTA)
        measure_delta(e, &o->u.delta.d);
    else if (o->kind == OP_ATTENTION) {
        widen(&e->heads, a->heads);
        widen(&e->head_dim, a->head_dim);
    }
}

/* Programs that were fitted before stay runnable: the extents only grow. */
static gpu_extent measure(gpu_extent e, const sl_program *p) {
    int64_t layers = 0, delta_layers = 0;
    widen(&e.rows, p->max_rows);
    for (size_t i = 0; i < p->count; i++) {
        measure_op(&e, p, &p->list[i]);
        layers += p->list[i].kind == OP_MOE;
        delta_layers += p->list[i].kind == OP_DELTA;
    }
    widen(&e.layers, layers);
    widen(&e.delta_layers, delta_layers);
    return e;
}

uint64_t gpu_scratch_need(const sl_program *p) {
    gpu_extent e = measure((gpu_extent){0}, p);
    gpu_scratch s = {0};
    return lay_out(&e, NULL, &s);
}

bool gpu_scratch_fit(sl_ops_gpu *o, const sl_program *p, sl_error *err) {
    gpu_extent e = measure(o->scratch.extent, p);
    gpu_scratch s = {0};
    uint64_t need = lay_out(&e, NULL, &s);
    if (need > o->scratch.bytes) {
        sl_mem_span_free(o->known.mem, o->scratch.span);
        gpu_regions_refresh(o);
        o->scratch.span = NULL;
        o->scratch.bytes = 0;
        void *span = sl_mem_span(o->known.mem, need, SL_USE_SCRATCH, err);
        if (!span)
            return false;
        o->scratch.span = span;
        o->scratch.bytes = need;
    }
    gpu_kept_drop(o);
    o->scratch.extent = e;
    o->scratch.epoch++;
    lay_out(&e, o->scratch.span, &o->scratch);
    memset(o->scratch.counters, 0, GPU_COUNTERS);
    return true;
}

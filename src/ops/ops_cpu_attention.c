/* Attention over paged KV: norm and rotate q and k, store k and v, then each (block of rows, kv head) is a piece of
 * work for the pool.
 *
 * Everything of a step is stored before anything is attended, so rows of one sequence see each other whatever the
 * pool's order. */
#include "ops/ops_cpu.h"

#include <math.h>
#include <string.h>

typedef struct attention_job {
    cpu_run *r;
    const sl_attention *a;
    float *q, *k, *v, *dst;
    const float *gate; /* NULL: none */
    int64_t q_stride, k_stride, v_stride, dst_stride, gate_stride;
    int64_t q_head; /* from one head of q to the next */
    const float *q_norm, *k_norm;
    const float *sinks; /* [heads]; NULL: none */
    int32_t *block_row; /* first row of each block; blocks + 1 entries */
    int32_t blocks;
} attention_job;

/* cos and sin of every row's angles, once per step: all layers share them. The angle is a float32 product, as
 * transformers computes it. */
static void fill_rope(cpu_run *r, const sl_rope *rope) {
    sl_ops_cpu *o = r->o;
    if (o->rope_of && ops_same_rotation(o->rope_of, rope))
        return;
    int32_t half = rope->dims / 2;
    for (int32_t i = 0; i < r->step->rows; i++) {
        float *c = o->scratch.cos_sin + (int64_t)i * rope->dims;
        for (int32_t j = 0; j < half; j++) {
            double angle = (float)r->step->position[i] * rope->inv_freq[j];
            c[j] = (float)cos(angle) * rope->scale;
            c[half + j] = (float)sin(angle) * rope->scale;
        }
    }
    o->rope_of = rope;
}

static uint8_t *kv_at(const sl_ops_cpu *o, const sl_step_seq *s, int32_t layer, int32_t page, int32_t head, int plane) {
    int32_t block = s->pages[page];
    uint8_t *base = o->known.kv_slabs[block / o->known.kv.blocks_per_slab] +
                    (uint64_t)(block % o->known.kv.blocks_per_slab) * o->known.kv.block_bytes;
    return base + (uint64_t)(layer * o->known.kv.planes + plane) * o->known.kv.plane_bytes +
           (uint64_t)head * SL_KV_PAGE_TOKENS * o->known.kv.head_bytes;
}

static void prepare_heads(const attention_job *j, float *x, int32_t heads, int64_t step, const float *norm,
                          const float *cos_sin) {
    const sl_attention *a = j->a;
    for (int32_t h = 0; h < heads; h++, x += step) {
        if (norm)
            j->r->o->ops->rms_norm(x, x, norm, a->head_dim, a->norm_eps);
        if (a->rope.dims)
            j->r->o->ops->rope(x + a->rope.first, a->rope.dims, a->rope.interleaved, cos_sin,
                               cos_sin + a->rope.dims / 2);
    }
}

static cpu_kv_type kv_type(const sl_ops_cpu *o) {
    static const cpu_kv_type types[] = {[SL_KV_F16] = CPU_KV_F16, [SL_KV_Q8_0] = CPU_KV_Q8_0, [SL_KV_F32] = CPU_KV_F32};
    return types[o->known.kv.format];
}

static void store_row(const attention_job *j, int64_t row) {
    const sl_ops_cpu *o = j->r->o;
    const sl_step *s = j->r->step;
    const sl_step_seq *seq = &s->seqs[s->seq[row]];
    int32_t page = s->position[row] / SL_KV_PAGE_TOKENS, slot = s->position[row] % SL_KV_PAGE_TOKENS;
    for (int32_t h = 0; h < j->a->kv_heads; h++) {
        uint64_t at = (uint64_t)slot * o->known.kv.head_bytes;
        int64_t from = (int64_t)h * j->a->head_dim;
        o->ops->kv_store(kv_at(o, seq, j->a->layer, page, h, 0) + at, j->k + row * j->k_stride + from, j->a->head_dim,
                         kv_type(o));
        if (j->a->value_dim)
            continue;
        o->ops->kv_store(kv_at(o, seq, j->a->layer, page, h, 1) + at, j->v + row * j->v_stride + from, j->a->head_dim,
                         kv_type(o));
    }
}

static void prepare_rows(void *ctx, int64_t begin, int64_t end, int worker) {
    const attention_job *j = ctx;
    for (int64_t row = begin; row < end; row++) {
        const float *cos_sin = j->r->o->scratch.cos_sin + row * j->a->rope.dims;
        prepare_heads(j, j->q + row * j->q_stride, j->a->heads, j->q_head, j->q_norm, cos_sin);
        prepare_heads(j, j->k + row * j->k_stride, j->a->kv_heads, j->a->head_dim, j->k_norm, cos_sin);
        store_row(j, row);
    }
}

/* What page() of the kernel needs. */
typedef struct page_source {
    const sl_ops_cpu *o;
    const sl_step_seq *seq;
    int32_t layer, head;
} page_source;

static void page_of(const void *ctx, int32_t index, const uint8_t **k, const uint8_t **v) {
    const page_source *p = ctx;
    *k = kv_at(p->o, p->seq, p->layer, index, p->head, 0);
    *v = p->o->known.kv.planes == 1 ? *k : kv_at(p->o, p->seq, p->layer, index, p->head, 1);
}

static void attend_blocks(void *ctx, int64_t begin, int64_t end, int worker) {
    const attention_job *j = ctx;
    const sl_attention *a = j->a;
    const sl_step *s = j->r->step;
    int32_t group = a->heads / a->kv_heads;
    for (int64_t item = begin; item < end; item++) {
        /* later blocks see more keys: the longest go first */
        int32_t block = j->blocks - 1 - (int32_t)(item / a->kv_heads), head = (int32_t)(item % a->kv_heads);
        int32_t row = j->block_row[block];
        page_source pages = {j->r->o, &s->seqs[s->seq[row]], a->layer, head};
        int64_t first_head = (int64_t)head * group, value_dim = a->value_dim ? a->value_dim : a->head_dim;
        cpu_attention c = {.q = j->q + row * j->q_stride + first_head * j->q_head,
                           .dst = j->dst + row * j->dst_stride + first_head * value_dim,
                           .q_stride = j->q_stride,
                           .q_head = j->q_head,
                           .gate = j->gate ? j->gate + row * j->gate_stride + first_head * j->q_head : NULL,
                           .gate_stride = j->gate_stride,
                           .dst_stride = j->dst_stride,
                           .rows = j->block_row[block + 1] - row,
                           .group = group,
                           .head_dim = a->head_dim,
                           .value_dim = (int32_t)value_dim,
                           .position = s->position[row],
                           .window = a->window,
                           .sinks = j->sinks ? j->sinks + head * group : NULL,
                           .scale = a->scale,
                           .type = kv_type(j->r->o),
                           .head_bytes = j->r->o->known.kv.head_bytes,
                           .page = page_of,
                           .ctx = &pages,
                           .scratch = cpu_thread_scratch(j->r->o, worker)};
        j->r->o->ops->attention(&c);
    }
}

/* Cuts the rows into blocks of one sequence and at most so many rows each; returns how many. */
static int32_t cut_blocks(const sl_step *s, int32_t most, int32_t *first) {
    int32_t n = 0;
    for (int32_t row = 0; row < s->rows; row++) {
        bool new_block = row == 0 || s->seq[row] != s->seq[row - 1] || row - first[n - 1] == most;
        if (new_block)
            first[n++] = row;
    }
    first[n] = s->rows;
    return n;
}

void cpu_run_attention(cpu_run *r, const op *o) {
    const sl_attention *a = &o->u.attention.a;
    attention_job j = {.r = r,
                       .a = a,
                       .q = view_rows(r->o, &o->src),
                       .k = view_rows(r->o, &o->u.attention.k),
                       .v = a->value_dim ? NULL : view_rows(r->o, &o->u.attention.v),
                       .dst = view_rows(r->o, &o->dst),
                       .q_stride = o->src.stride,
                       .k_stride = o->u.attention.k.stride,
                       .v_stride = o->u.attention.v.stride,
                       .dst_stride = o->dst.stride,
                       .gate = a->gate.buffer ? view_rows(r->o, &a->gate) : NULL,
                       .gate_stride = a->gate.stride,
                       .q_head = a->head_stride ? a->head_stride : a->head_dim,
                       .q_norm = vector_of(r->o, &a->q_norm),
                       .k_norm = vector_of(r->o, &a->k_norm),
                       .sinks = vector_of(r->o, &a->sinks),
                       .block_row = r->o->scratch.blocks};
    ops_spread_failures(r->step);
    fill_rope(r, &a->rope);
    j.blocks = cut_blocks(r->step, cpu_attention_rows(a->heads / a->kv_heads), j.block_row);
    sl_pool_run(r->o->pool, r->step->rows, 4, prepare_rows, &j);
    sl_pool_run(r->o->pool, (int64_t)j.blocks * a->kv_heads, 1, attend_blocks, &j);
}

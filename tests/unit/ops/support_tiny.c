#include "support_tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Where recording puts things. */
typedef struct recorder {
    tiny *t;
    rng r;
    sl_format_id format;
    sl_view residual, normed, q, k, v, mixed, ffn, out;
} recorder;

static sl_weight matrix(recorder *c, int64_t rows, int64_t cols) {
    sl_matrix m = rig_matrix(&c->t->g, &c->r, c->format, rows, cols, 0.2f, NULL);
    return rig_weight(&c->t->g, &m);
}

static sl_weight vector(recorder *c, int64_t n) {
    sl_matrix m = rig_matrix(&c->t->g, &c->r, SL_F32, 1, n, 1, NULL);
    return rig_weight(&c->t->g, &m);
}

static void record_attention(recorder *c, int32_t layer) {
    sl_weight norm = vector(c, TINY_HIDDEN), q = matrix(c, TINY_HEADS * TINY_HEAD_DIM, TINY_HIDDEN),
              k = matrix(c, TINY_KV_HEADS * TINY_HEAD_DIM, TINY_HIDDEN),
              v = matrix(c, TINY_KV_HEADS * TINY_HEAD_DIM, TINY_HIDDEN),
              o = matrix(c, TINY_HIDDEN, TINY_HEADS * TINY_HEAD_DIM), bias = vector(c, TINY_HEADS * TINY_HEAD_DIM);
    const sl_linear qkv[] = {{c->q, &q, &bias, false}, {c->k, &k, NULL, false}, {c->v, &v, NULL, false}};
    const sl_linear back = {c->residual, &o, NULL, true};
    sl_attention a = {.layer = layer,
                      .heads = TINY_HEADS,
                      .kv_heads = TINY_KV_HEADS,
                      .head_dim = TINY_HEAD_DIM,
                      .scale = 1 / sqrtf(TINY_HEAD_DIM),
                      .norm_eps = 1e-6f,
                      .rope = {.dims = layer % 2 ? TINY_HEAD_DIM : TINY_HEAD_DIM / 2,
                               .interleaved = layer % 2,
                               .inv_freq = c->t->freq[layer % 2],
                               .scale = layer == 2 ? 1.25f : 1}};
    if (layer != 1) {
        a.q_norm = vector(c, TINY_HEAD_DIM);
        a.k_norm = vector(c, TINY_HEAD_DIM);
    }
    sl_op_rms_norm(c->t->p, c->normed, c->residual, &norm, 1e-6f);
    sl_op_linear(c->t->p, c->normed, qkv, 3);
    sl_op_attention(c->t->p, c->mixed, c->q, c->k, c->v, &a);
    sl_op_linear(c->t->p, c->mixed, &back, 1);
}

static void record_experts(recorder *c, int32_t index) {
    enum { INNER = 32 };
    sl_moe m = {.layer = index,
                .experts = TINY_EXPERTS,
                .top_k = 2 + index,
                .normalize = index == 0,
                .router = matrix(c, TINY_EXPERTS, TINY_HIDDEN)};
    for (int32_t e = 0; e < TINY_EXPERTS; e++)
        for (int i = 0; i < SL_PROJ_COUNT; i++) {
            bool down = i == SL_PROJ_DOWN;
            c->t->src.matrix[index][e][i] = rig_matrix(&c->t->g, &c->r, c->format, down ? TINY_HIDDEN : INNER,
                                                       down ? INNER : TINY_HIDDEN, 0.2f, NULL);
            m.proj[i] = c->t->src.matrix[index][e][i];
        }
    if (index) {
        m.shared[SL_PROJ_GATE] = matrix(c, INNER, TINY_HIDDEN);
        m.shared[SL_PROJ_UP] = matrix(c, INNER, TINY_HIDDEN);
        m.shared[SL_PROJ_DOWN] = matrix(c, TINY_HIDDEN, INNER);
        m.shared_gate = matrix(c, 1, TINY_HIDDEN);
    }
    sl_op_moe(c->t->p, c->residual, c->normed, &m);
}

static void record_dense(recorder *c) {
    sl_weight gate = matrix(c, 96, TINY_HIDDEN), up = matrix(c, 96, TINY_HIDDEN), down = matrix(c, TINY_HIDDEN, 96);
    const sl_linear back = {c->residual, &down, NULL, true};
    sl_op_gate_up(c->t->p, c->ffn, c->normed, &gate, &up);
    sl_op_linear(c->t->p, c->ffn, &back, 1);
}

static void record(recorder *c) {
    sl_program *p = c->t->p;
    sl_weight table = matrix(c, TINY_VOCAB, TINY_HIDDEN);
    sl_op_embed(p, c->residual, &table);
    for (int32_t layer = 0; layer < TINY_LAYERS; layer++) {
        sl_op_checkpoint(p, layer);
        record_attention(c, layer);
        sl_weight norm = vector(c, TINY_HIDDEN);
        sl_op_rms_norm(p, c->normed, c->residual, &norm, 1e-6f);
        if (layer == 1)
            record_dense(c);
        else
            record_experts(c, layer / 2);
    }
    sl_weight norm = vector(c, TINY_HIDDEN);
    sl_op_gather_outs(p, c->out, c->residual);
    sl_op_rms_norm(p, c->out, c->out, &norm, 1e-6f);
    sl_op_logits(p, c->out, &table);
}

static void make_views(recorder *c, const tiny_options *o) {
    rig *g = &c->t->g;
    c->residual = rig_view(g, SL_ROWS_ALL, o->max_rows, TINY_HIDDEN, 0);
    c->normed = rig_view(g, SL_ROWS_ALL, o->max_rows, TINY_HIDDEN, 7);
    c->q = rig_view(g, SL_ROWS_ALL, o->max_rows, TINY_HEADS * TINY_HEAD_DIM, 1);
    c->k = rig_view(g, SL_ROWS_ALL, o->max_rows, TINY_KV_HEADS * TINY_HEAD_DIM, 2);
    c->v = rig_view(g, SL_ROWS_ALL, o->max_rows, TINY_KV_HEADS * TINY_HEAD_DIM, 3);
    c->mixed = rig_view(g, SL_ROWS_ALL, o->max_rows, TINY_HEADS * TINY_HEAD_DIM, 0);
    c->ffn = rig_view(g, SL_ROWS_ALL, o->max_rows, 96, 4);
    c->out = rig_view(g, SL_ROWS_OUT, o->max_outs, TINY_HIDDEN, 0);
}

/* Blocks 0 .. n - 1 in slabs, dealt out backwards; poisoned with NaN. */
static void make_kv(tiny *t, sl_kv_format format) {
    enum { SLAB = 1 << 18, BLOCKS = TINY_PAGES * TINY_SEQUENCES };
    sl_error err = {0};
    t->kv =
        (sl_kv_layout){.format = format, .layers = TINY_LAYERS, .kv_heads = TINY_KV_HEADS, .head_dim = TINY_HEAD_DIM};
    assert_true(sl_kv_layout_init(&t->kv, SLAB, &err));
    sl_ops_set_kv(t->g.ops, &t->kv);
    for (int32_t b = 0; b < BLOCKS; b += t->kv.blocks_per_slab) {
        void *slab = sl_mem_slab(t->g.mem, SL_USE_KV, &err);
        assert_non_null(slab);
        memset(slab, 0xff, SLAB);
        assert_true(sl_ops_add_kv_slab(t->g.ops, slab, &err));
    }
    for (int32_t i = 0; i < BLOCKS; i++)
        t->pages[i % TINY_SEQUENCES][i / TINY_SEQUENCES] = BLOCKS - 1 - i;
    for (int32_t i = 0; i < TINY_SEQUENCES; i++)
        t->seqs[i] = (sl_step_seq){.pages = t->pages[i], .page_count = TINY_PAGES};
}

tiny *tiny_open(const tiny_options *o) {
    tiny *t = calloc(1, sizeof *t);
    sl_error err = {0};
    if (!rig_open(&t->g, &o->rig)) {
        free(t);
        return NULL;
    }
    rig_rank_bytes(&t->g, o->rank_bytes);
    recorder c = {.t = t, .r = {4711}, .format = o->format};
    for (int i = 0; i < 2; i++) {
        t->freq[i] = rig_memory(&t->g, TINY_HEAD_DIM / 2 * sizeof(float));
        for (int k = 0; k < TINY_HEAD_DIM / 2; k++)
            t->freq[i][k] = powf(i ? 100.0f : 10000.0f, -(float)k / (TINY_HEAD_DIM / 2));
    }
    t->src.experts = TINY_EXPERTS;
    t->src.r.state = 5;
    sl_expert_source s = source_of(&t->src);
    sl_ops_set_experts(t->g.ops, &s);
    make_views(&c, o);
    t->p = sl_program_new(t->g.ops, o->max_rows, o->max_outs, &err);
    assert_non_null(t->p);
    record(&c);
    if (!sl_program_end(t->p, &err))
        fail_msg("%s", err.message);
    make_kv(t, o->kv);
    return t;
}

void tiny_close(tiny *t) {
    if (*t->src.wrong)
        fail_msg("the source says: %s", t->src.wrong);
    sl_program_free(t->p);
    rig_close(&t->g);
    free(t);
}

sl_step tiny_step(tiny *t, int32_t rows, const int32_t *token, const int32_t *seq, const int32_t *position) {
    return (sl_step){
        .rows = rows, .token = token, .seq = seq, .position = position, .seq_count = TINY_SEQUENCES, .seqs = t->seqs};
}

/* Attention: grouped queries, norms of q and k, rotation, biases, an output gate, a window, sinks. */
#include "model/bind.h"
#include "model/block.h"

#include <math.h>

typedef struct widths {
    int64_t q, kv, q_product; /* with the gate the product of q is twice as wide */
} widths;

static widths widths_of(const sl_model *m) {
    const sl_model_config *c = &m->config;
    widths w = {.q = (int64_t)c->heads * c->head_dim, .kv = (int64_t)c->kv_heads * c->head_dim};
    w.q_product = c->attn_gate ? 2 * w.q : w.q;
    return w;
}

static bool resolve(sl_model *m, int32_t layer, sl_error *err) {
    const widths w = widths_of(m);
    int64_t h = m->config.hidden;
    const expected list[] = {{ROLE_ATTN_NORM, 0, h, false},
                             {ROLE_Q, w.q_product, h, false},
                             {ROLE_K, w.kv, h, false},
                             {ROLE_V, w.kv, h, false},
                             {ROLE_O, h, w.q, false}};
    bool whole = m->arch->qk_norm == QK_NORM_WHOLE;
    const expected norms[] = {{ROLE_Q_NORM, 0, whole ? w.q : m->config.head_dim, m->qk_norm_optional},
                              {ROLE_K_NORM, 0, whole ? w.kv : m->config.head_dim, m->qk_norm_optional}};
    const expected sinks[] = {{ROLE_SINKS, 0, m->config.heads, false}};
    bool may_lack = m->biases == BIASES_OPTIONAL;
    const expected biased[] = {{ROLE_Q_BIAS, 0, w.q_product, may_lack},
                               {ROLE_K_BIAS, 0, w.kv, may_lack},
                               {ROLE_V_BIAS, 0, w.kv, may_lack},
                               {ROLE_O_BIAS, 0, h, may_lack}};
    size_t bias_count = m->biases == BIASES_NONE ? 0 : SL_COUNT(biased) - !m->arch->bias_of_o;
    resident *r = m->layers[layer].r;
    return bind_all(m, r, list, SL_COUNT(list), layer, err) && bind_all(m, r, biased, bias_count, layer, err) &&
           (!m->qk_norm || bind_all(m, r, norms, SL_COUNT(norms), layer, err)) &&
           (!m->arch->sinks || bind_all(m, r, sinks, 1, layer, err));
}

typedef struct views {
    sl_view q, k, v, mixed; /* q as the product gives it; mixed[rows][heads * head_dim] */
} views;

static views take_views(const sl_model *m, area *a) {
    const widths w = widths_of(m);
    return (views){
        .q = area_take(a, w.q_product), .k = area_take(a, w.kv), .v = area_take(a, w.kv), .mixed = area_take(a, w.q)};
}

static void take(const sl_model *m, area *a) {
    take_views(m, a);
}

/* The product of q is [query | gate] for each head: both are views of it. */
static sl_view half_of(const sl_model *m, sl_view product, int half) {
    int32_t dim = m->config.head_dim;
    product.offset += (uint64_t)half * (uint64_t)dim * sizeof(float);
    product.cols = (m->config.heads - 1) * 2 * dim + dim;
    return product;
}

/* Norms of q and k: per head within the op, or before it over all heads together. */
static void record_norms(const sl_model *m, sl_program *p, const resident *r, const views *v, sl_attention *att) {
    if (!r[ROLE_Q_NORM].tensor)
        return;
    if (m->arch->qk_norm == QK_NORM_WHOLE) {
        sl_op_rms_norm(p, v->q, v->q, &r[ROLE_Q_NORM].weight, m->config.norm_eps);
        sl_op_rms_norm(p, v->k, v->k, &r[ROLE_K_NORM].weight, m->config.norm_eps);
        return;
    }
    att->q_norm = r[ROLE_Q_NORM].weight;
    att->k_norm = r[ROLE_K_NORM].weight;
}

static void record(const sl_model *m, const recorder *rec, int32_t layer) {
    const sl_model_config *c = &m->config;
    const resident *r = m->layers[layer].r;
    area own = rec->own;
    views v = take_views(m, &own);
    const sl_linear qkv[] = {{v.q, &r[ROLE_Q].weight, block_optional(&r[ROLE_Q_BIAS]), false},
                             {v.k, &r[ROLE_K].weight, block_optional(&r[ROLE_K_BIAS]), false},
                             {v.v, &r[ROLE_V].weight, block_optional(&r[ROLE_V_BIAS]), false}};
    const sl_linear o = {rec->residual, &r[ROLE_O].weight, block_optional(&r[ROLE_O_BIAS]), true};
    sl_attention att = {
        .layer = m->layers[layer].mixer_index,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .scale = 1.0f / sqrtf((float)c->head_dim),
        .norm_eps = c->norm_eps,
        .window = m->windowed[layer] ? c->window : 0,
        .rope = {.dims = c->rope_dims,
                 .interleaved = model_is_gguf(m) && m->arch->gguf_interleaved,
                 .inv_freq = m->inv_freq,
                 .scale = m->rope_scale},
    };
    if (r[ROLE_SINKS].tensor)
        att.sinks = r[ROLE_SINKS].weight;
    if (c->attn_gate) {
        att.head_stride = 2 * c->head_dim;
        att.gate = half_of(m, v.q, 1);
    }
    sl_op_linear(rec->program, rec->normed, qkv, 3);
    record_norms(m, rec->program, r, &v, &att);
    sl_op_attention(rec->program, v.mixed, c->attn_gate ? half_of(m, v.q, 0) : v.q, v.k, v.v, &att);
    sl_op_linear(rec->program, v.mixed, &o, 1);
}

const block block_attention = {"attention", resolve, take, record};

/* The forward pass, recorded once: embedding, layers of attention and FFN or MoE, norm, head. */
#include "model/model_internal.h"

#include <math.h>

/* Activations of a step, one after the other in the scratch buffer. */
typedef struct activations {
    sl_view residual, normed; /* [rows][hidden] */
    sl_view q, k, v, mixed;   /* [rows][heads * head_dim], [rows][kv_heads * head_dim] x 2, as q */
    sl_view ffn;              /* [rows][ffn]; dense layers only */
    sl_view out;              /* [outs][hidden] */
    uint64_t bytes;
} activations;

static sl_view take(activations *a, sl_buffer buffer, sl_rows rows, int32_t max, int64_t cols) {
    sl_view v = {.buffer = buffer, .offset = a->bytes, .rows = rows, .cols = (int32_t)cols};
    v.stride = (int64_t)sl_round_up((uint64_t)cols, 16);
    a->bytes += (uint64_t)max * (uint64_t)v.stride * sizeof(float);
    return v;
}

static activations lay_out(const sl_model *m, sl_buffer buffer, int32_t max_rows, int32_t max_outs) {
    const sl_model_config *c = &m->config;
    activations a = {.bytes = 0};
    int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
    a.residual = take(&a, buffer, SL_ROWS_ALL, max_rows, c->hidden);
    a.normed = take(&a, buffer, SL_ROWS_ALL, max_rows, c->hidden);
    a.q = take(&a, buffer, SL_ROWS_ALL, max_rows, q);
    a.k = take(&a, buffer, SL_ROWS_ALL, max_rows, kv);
    a.v = take(&a, buffer, SL_ROWS_ALL, max_rows, kv);
    a.mixed = take(&a, buffer, SL_ROWS_ALL, max_rows, q);
    if (c->moe_layers < c->layers)
        a.ffn = take(&a, buffer, SL_ROWS_ALL, max_rows, c->ffn);
    a.out = take(&a, buffer, SL_ROWS_OUT, max_outs, c->hidden);
    return a;
}

uint64_t model_view_bytes(const sl_model *m, int32_t max_rows, int32_t max_outs) {
    return lay_out(m, 0, max_rows, max_outs).bytes;
}

static const sl_weight *optional(const resident *r) {
    return r->tensor ? &r->weight : NULL;
}

static void record_attention(const sl_model *m, sl_program *p, const activations *a, int32_t layer) {
    const sl_model_config *c = &m->config;
    const resident *r = m->layers[layer].r;
    const sl_linear qkv[] = {{a->q, &r[ROLE_Q].weight, optional(&r[ROLE_Q_BIAS]), false},
                             {a->k, &r[ROLE_K].weight, optional(&r[ROLE_K_BIAS]), false},
                             {a->v, &r[ROLE_V].weight, optional(&r[ROLE_V_BIAS]), false}};
    sl_attention att = {
        .layer = layer,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .scale = 1.0f / sqrtf((float)c->head_dim),
        .norm_eps = c->norm_eps,
        .rope = {.dims = c->rope_dims,
                 .interleaved = sl_ckpt_get_kind(m->ckpt) == SL_CKPT_GGUF && m->arch->gguf_interleaved,
                 .inv_freq = m->inv_freq,
                 .scale = m->rope_scale},
    };
    if (r[ROLE_Q_NORM].tensor)
        att.q_norm = r[ROLE_Q_NORM].weight;
    if (r[ROLE_K_NORM].tensor)
        att.k_norm = r[ROLE_K_NORM].weight;
    const sl_linear o = {a->residual, &r[ROLE_O].weight, optional(&r[ROLE_O_BIAS]), true};
    sl_op_rms_norm(p, a->normed, a->residual, &r[ROLE_ATTN_NORM].weight, c->norm_eps);
    sl_op_linear(p, a->normed, qkv, 3);
    sl_op_attention(p, a->mixed, a->q, a->k, a->v, &att);
    sl_op_linear(p, a->mixed, &o, 1);
}

static void record_dense(sl_program *p, const activations *a, const resident *r) {
    const sl_linear down = {a->residual, &r[ROLE_DOWN].weight, NULL, true};
    sl_op_gate_up(p, a->ffn, a->normed, &r[ROLE_GATE].weight, &r[ROLE_UP].weight);
    sl_op_linear(p, a->ffn, &down, 1);
}

static sl_moe moe_of(const sl_model *m, int32_t layer) {
    const sl_model_config *c = &m->config;
    const model_layer *l = &m->layers[layer];
    sl_moe moe = {.layer = l->moe_index,
                  .experts = c->experts,
                  .top_k = c->top_k,
                  .normalize = c->normalize_topk,
                  .router = l->r[ROLE_ROUTER].weight,
                  .proj = {l->proj[0], l->proj[1], l->proj[2]}};
    if (l->r[ROLE_SHARED_GATE].tensor) {
        for (int i = 0; i < SL_PROJ_COUNT; i++)
            moe.shared[i] = l->r[ROLE_SHARED_GATE + i].weight;
        moe.shared_gate = l->r[ROLE_SHARED_SIGMOID].weight;
    }
    return moe;
}

static void record_layer(const sl_model *m, sl_program *p, const activations *a, int32_t layer) {
    const model_layer *l = &m->layers[layer];
    sl_op_checkpoint(p, layer);
    record_attention(m, p, a, layer);
    sl_op_rms_norm(p, a->normed, a->residual, &l->r[ROLE_FFN_NORM].weight, m->config.norm_eps);
    if (l->moe) {
        sl_moe moe = moe_of(m, layer);
        sl_op_moe(p, a->residual, a->normed, &moe);
    } else
        record_dense(p, a, l->r);
}

bool model_record(sl_model *m, int32_t max_rows, int32_t max_outs, sl_error *err) {
    m->scratch = sl_ops_scratch(m->ops, model_view_bytes(m, max_rows, max_outs), err);
    if (!m->scratch)
        return false;
    m->program = sl_program_new(m->ops, max_rows, max_outs, err);
    if (!m->program)
        return false;
    activations a = lay_out(m, m->scratch, max_rows, max_outs);
    const resident *head = m->global[ROLE_HEAD].tensor ? &m->global[ROLE_HEAD] : &m->global[ROLE_EMBED];
    sl_op_embed(m->program, a.residual, &m->global[ROLE_EMBED].weight);
    for (int32_t layer = 0; layer < m->config.layers; layer++)
        record_layer(m, m->program, &a, layer);
    sl_op_gather_outs(m->program, a.out, a.residual);
    sl_op_rms_norm(m->program, a.out, a.out, &m->global[ROLE_FINAL_NORM].weight, m->config.norm_eps);
    sl_op_logits(m->program, a.out, &head->weight);
    return sl_program_end(m->program, err);
}

uint64_t sl_model_scratch_bytes(const sl_model *m, const sl_ops *ops, int32_t max_rows, int32_t max_outs) {
    const sl_model_config *c = &m->config;
    int64_t q = (int64_t)c->heads * c->head_dim, widest = c->hidden > q ? c->hidden : q;
    if (c->moe_layers < c->layers)
        widest = sl_max_i64(widest, c->ffn);
    sl_moe moe = {0};
    for (int32_t l = c->layers - 1; l >= 0; l--)
        if (m->layers[l].moe)
            moe = moe_of(m, l);
    return model_view_bytes(m, max_rows, max_outs) + sl_ops_scratch_bytes(ops, max_rows, c->hidden, (int32_t)widest,
                                                                          c->moe_layers ? &moe : NULL, c->heads,
                                                                          c->head_dim);
}

/* Routed experts and the shared one. Only the router and the shared expert are resident. */
#include "model/bind.h"
#include "model/block.h"

enum { WIDEST_SHARED = 1 << 22 };

/* GGUF files need not store the shared expert's width: its tensor has it. */
static int64_t shared_width(const sl_model *m, int32_t layer) {
    if (m->arch->shared == SHARED_PLAIN)
        return (int64_t)m->config.shared_count * m->config.expert_ffn;
    const sl_tensor *t = bind_find(m, ROLE_SHARED_GATE, layer);
    return m->config.shared_ffn ? m->config.shared_ffn : t && t->dims == 2 ? t->shape[0] : 0;
}

static bool resolve_shared(sl_model *m, int32_t layer, sl_error *err) {
    int64_t width = shared_width(m, layer), h = m->config.hidden;
    if (width < 1)
        return true; /* a configuration of size 0: no shared expert */
    if (width > WIDEST_SHARED)
        return sl_fail(err, SL_ERR_FORMAT, "%s: layer %d has a shared expert of %lld rows, at most %d expected",
                       sl_ckpt_path(m->ckpt), layer, (long long)width, WIDEST_SHARED);
    m->config.shared_ffn = (int32_t)width;
    const expected shared[] = {
        {ROLE_SHARED_GATE, width, h, false},
        {ROLE_SHARED_UP, width, h, false},
        {ROLE_SHARED_DOWN, h, width, false},
        {ROLE_SHARED_SIGMOID, 1, h, false},
    };
    size_t n = SL_COUNT(shared) - (m->arch->shared == SHARED_PLAIN); /* no gate */
    return bind_all(m, m->layers[layer].r, shared, n, layer, err);
}

/* gpt_oss: Hugging Face has those of gate and up in one tensor, in turn; MLX and GGUF have three. */
static bool resolve_biases(sl_model *m, int32_t layer, sl_error *err) {
    int64_t n = m->config.experts, inner = m->config.expert_ffn, h = m->config.hidden;
    resident *r = m->layers[layer].r;
    if (bind_find(m, ROLE_EXPERT_GATE_UP_BIAS, layer))
        return bind_alternate(m, r, ROLE_EXPERT_GATE_BIAS, ROLE_EXPERT_GATE_UP_BIAS, 0, n, inner, layer, err) &&
               bind_alternate(m, r, ROLE_EXPERT_UP_BIAS, ROLE_EXPERT_GATE_UP_BIAS, 1, n, inner, layer, err) &&
               bind_floats(m, r, ROLE_EXPERT_DOWN_BIAS, ROLE_EXPERT_DOWN_BIAS, n, h, layer, err);
    role down = bind_find(m, ROLE_EXPERT_DOWN_BIAS, layer) ? ROLE_EXPERT_DOWN_BIAS : ROLE_EXPERT_DOWN_BIAS_MLX;
    return bind_floats(m, r, ROLE_EXPERT_GATE_BIAS, ROLE_EXPERT_GATE_BIAS, n, inner, layer, err) &&
           bind_floats(m, r, ROLE_EXPERT_UP_BIAS, ROLE_EXPERT_UP_BIAS, n, inner, layer, err) &&
           bind_floats(m, r, ROLE_EXPERT_DOWN_BIAS, down, n, h, layer, err);
}

static bool resolve_router(sl_model *m, int32_t layer, sl_error *err) {
    const sl_model_config *c = &m->config;
    const expected list[] = {{ROLE_FFN_NORM, 0, c->hidden, false}, {ROLE_ROUTER, c->experts, c->hidden, false}};
    const expected bias[] = {{ROLE_ROUTER_BIAS, 0, c->experts, false}};
    /* GGUF files written before the bias was known to matter lack it. */
    const expected choice[] = {{ROLE_CHOICE_BIAS, 0, c->experts, model_is_gguf(m)}};
    resident *r = m->layers[layer].r;
    return bind_all(m, r, list, SL_COUNT(list), layer, err) &&
           (!m->arch->router_bias || bind_all(m, r, bias, 1, layer, err)) &&
           (!m->arch->choice_bias || bind_all(m, r, choice, 1, layer, err));
}

static bool resolve(sl_model *m, int32_t layer, sl_error *err) {
    return resolve_router(m, layer, err) && model_resolve_experts(m, layer, err) &&
           (m->arch->shared == SHARED_NONE || resolve_shared(m, layer, err)) &&
           (!m->arch->expert_bias || resolve_biases(m, layer, err));
}

/* The op has its own scratch. */
static void take(const sl_model *m, area *a) {
    (void)m, (void)a;
}

sl_moe block_moe_op(const sl_model *m, int32_t layer) {
    const sl_model_config *c = &m->config;
    const model_layer *l = &m->layers[layer];
    sl_moe moe = {.layer = l->moe_index,
                  .experts = c->experts,
                  .top_k = c->top_k,
                  .kind = m->arch->router,
                  .normalize = c->normalize_topk,
                  .weight_scale = c->weight_scale,
                  .groups = c->groups,
                  .top_groups = c->top_groups,
                  .swiglu_limit = c->swiglu_limit,
                  .swiglu_alpha = m->arch->swiglu_alpha,
                  .router = l->r[ROLE_ROUTER].weight,
                  .alternating = l->alternating,
                  .proj = {l->proj[0], l->proj[1], l->proj[2]}};
    if (l->r[ROLE_ROUTER_BIAS].tensor)
        moe.router_bias = l->r[ROLE_ROUTER_BIAS].weight;
    if (l->r[ROLE_CHOICE_BIAS].tensor)
        moe.choice_bias = l->r[ROLE_CHOICE_BIAS].weight;
    for (int i = 0; l->r[ROLE_EXPERT_GATE_BIAS].tensor && i < SL_PROJ_COUNT; i++)
        moe.bias[i] = l->r[ROLE_EXPERT_GATE_BIAS + i].weight;
    if (l->r[ROLE_SHARED_GATE].tensor) {
        for (int i = 0; i < SL_PROJ_COUNT; i++)
            moe.shared[i] = l->r[ROLE_SHARED_GATE + i].weight;
        if (l->r[ROLE_SHARED_SIGMOID].tensor)
            moe.shared_gate = l->r[ROLE_SHARED_SIGMOID].weight;
    }
    return moe;
}

static void record(const sl_model *m, const recorder *rec, int32_t layer) {
    sl_moe moe = block_moe_op(m, layer);
    sl_op_moe(rec->program, rec->residual, rec->normed, &moe);
}

const block block_moe = {"moe", resolve, take, record};

/* Routed experts and the shared one. Only the router and the shared expert are resident. */
#include "model/bind.h"
#include "model/block.h"

enum { WIDEST_SHARED = 1 << 22 };

/* GGUF files need not store the shared expert's width: its tensor has it. */
static int64_t shared_width(const sl_model *m, int32_t layer) {
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
    return bind_all(m, m->layers[layer].r, shared, SL_COUNT(shared), layer, err);
}

static bool resolve(sl_model *m, int32_t layer, sl_error *err) {
    const sl_model_config *c = &m->config;
    const expected list[] = {{ROLE_FFN_NORM, 0, c->hidden, false}, {ROLE_ROUTER, c->experts, c->hidden, false}};
    return bind_all(m, m->layers[layer].r, list, SL_COUNT(list), layer, err) && model_resolve_experts(m, layer, err) &&
           (!m->arch->shared_expert || resolve_shared(m, layer, err));
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

static void record(const sl_model *m, const recorder *rec, int32_t layer) {
    sl_moe moe = block_moe_op(m, layer);
    sl_op_moe(rec->program, rec->residual, rec->normed, &moe);
}

const block block_moe = {"moe", resolve, take, record};

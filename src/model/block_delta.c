/* Gated DeltaNet: a layer whose memory of what came before is one matrix per value head. */
#include "model/bind.h"
#include "model/block.h"

typedef struct widths {
    int64_t key, value, channels; /* of all heads; channels: q, k, v */
} widths;

static widths widths_of(const sl_model *m) {
    const sl_model_config *c = &m->config;
    widths w = {.key = (int64_t)c->delta_key_heads * c->delta_key_dim,
                .value = (int64_t)c->delta_value_heads * c->delta_value_dim};
    w.channels = 2 * w.key + w.value;
    return w;
}

/* qwen3_next's checkpoints have the four inputs of a key head one after the other in one matrix, and the two gates of
 * its value heads in another. */
static bool resolve_fused(sl_model *m, int32_t layer, sl_error *err) {
    const sl_model_config *c = &m->config;
    resident *r = m->layers[layer].r;
    int64_t group = c->delta_value_heads / c->delta_key_heads, values = group * c->delta_value_dim;
    row_split qkv = {c->delta_key_heads, {c->delta_key_dim, c->delta_key_dim, values, values}, 0, 3}, z = qkv;
    z.first = 3;
    z.count = 1;
    return bind_split(m, r, ROLE_DELTA_QKV, ROLE_DELTA_QKVZ, &qkv, c->hidden, layer, err) &&
           bind_split(m, r, ROLE_DELTA_Z, ROLE_DELTA_QKVZ, &z, c->hidden, layer, err);
}

static bool resolve_fused_gates(sl_model *m, int32_t layer, sl_error *err) {
    const sl_model_config *c = &m->config;
    resident *r = m->layers[layer].r;
    int64_t group = c->delta_value_heads / c->delta_key_heads;
    row_split b = {c->delta_key_heads, {group, group}, 0, 1}, a = b;
    a.first = 1;
    return bind_split(m, r, ROLE_DELTA_B, ROLE_DELTA_BA, &b, c->hidden, layer, err) &&
           bind_split(m, r, ROLE_DELTA_A, ROLE_DELTA_BA, &a, c->hidden, layer, err);
}

/* Whichever is there; where neither is, the error is to name what is usual. */
static bool is_fused(const sl_model *m, role whole, role first, int32_t layer) {
    return bind_find(m, whole, layer) || (m->arch->delta_fused && !model_is_gguf(m) && !bind_find(m, first, layer));
}

static bool resolve_inputs(sl_model *m, int32_t layer, sl_error *err) {
    const widths w = widths_of(m);
    int64_t h = m->config.hidden, heads = m->config.delta_value_heads;
    const expected inputs[] = {{ROLE_DELTA_QKV, w.channels, h, false}, {ROLE_DELTA_Z, w.value, h, false}};
    const expected gates[] = {{ROLE_DELTA_B, heads, h, false}, {ROLE_DELTA_A, heads, h, false}};
    resident *r = m->layers[layer].r;
    return (is_fused(m, ROLE_DELTA_QKVZ, ROLE_DELTA_QKV, layer)
                ? resolve_fused(m, layer, err)
                : bind_all(m, r, inputs, SL_COUNT(inputs), layer, err)) &&
           (is_fused(m, ROLE_DELTA_BA, ROLE_DELTA_B, layer) ? resolve_fused_gates(m, layer, err)
                                                            : bind_all(m, r, gates, SL_COUNT(gates), layer, err));
}

/* Raw checkpoints have [channels][1][kernel], MLX [channels][kernel][1]; one model has one of them. */
static bool check_conv_order(const sl_model *m, int32_t layer, sl_error *err) {
    const sl_tensor *t = m->layers[layer].r[ROLE_DELTA_CONV].tensor;
    bool raw = t->dims == 3 && t->shape[1] == 1;
    if (model_is_gguf(m) || raw == m->one_plus)
        return true;
    return sl_fail(
        err, SL_ERR_FORMAT,
        "%s: tensor %s has shape %lldx%lldx%lld, another order of dimensions than other layers' (their norms "
        "would differ too)",
        model_tensor_file(m, t), t->name, (long long)t->shape[0], (long long)t->shape[1], (long long)t->shape[2]);
}

static bool resolve(sl_model *m, int32_t layer, sl_error *err) {
    const widths w = widths_of(m);
    const sl_model_config *c = &m->config;
    const expected list[] = {{ROLE_ATTN_NORM, 0, c->hidden, false},
                             {ROLE_DELTA_DECAY, 0, c->delta_value_heads, false},
                             {ROLE_DELTA_DT, 0, c->delta_value_heads, false},
                             {ROLE_DELTA_NORM, 0, c->delta_value_dim, false},
                             {ROLE_DELTA_OUT, c->hidden, w.value, false}};
    resident *r = m->layers[layer].r;
    return bind_all(m, r, list, SL_COUNT(list), layer, err) &&
           bind_floats(m, r, ROLE_DELTA_CONV, ROLE_DELTA_CONV, w.channels, c->delta_kernel, layer, err) &&
           check_conv_order(m, layer, err) && resolve_inputs(m, layer, err);
}

typedef struct views {
    sl_view qkv, beta, alpha;
    sl_view z; /* and the block's result, which takes its place */
} views;

static views take_views(const sl_model *m, area *a) {
    const widths w = widths_of(m);
    int32_t heads = m->config.delta_value_heads;
    return (views){.qkv = area_take(a, w.channels),
                   .beta = area_take(a, heads),
                   .alpha = area_take(a, heads),
                   .z = area_take(a, w.value)};
}

static void take(const sl_model *m, area *a) {
    take_views(m, a);
}

sl_delta block_delta_op(const sl_model *m, int32_t layer) {
    const sl_model_config *c = &m->config;
    const resident *r = m->layers[layer].r;
    return (sl_delta){.layer = m->layers[layer].mixer_index,
                      .key_heads = c->delta_key_heads,
                      .value_heads = c->delta_value_heads,
                      .key_dim = c->delta_key_dim,
                      .value_dim = c->delta_value_dim,
                      .kernel = c->delta_kernel,
                      .conv = r[ROLE_DELTA_CONV].weight,
                      .decay = r[ROLE_DELTA_DECAY].weight,
                      .dt_bias = r[ROLE_DELTA_DT].weight,
                      .norm = r[ROLE_DELTA_NORM].weight,
                      .norm_eps = c->norm_eps,
                      .tiled = model_is_gguf(m) && m->arch->gguf_tiled};
}

static void record(const sl_model *m, const recorder *rec, int32_t layer) {
    const resident *r = m->layers[layer].r;
    area own = rec->own;
    views v = take_views(m, &own);
    sl_delta d = block_delta_op(m, layer);
    const sl_linear in[] = {{v.qkv, &r[ROLE_DELTA_QKV].weight, NULL, false},
                            {v.z, &r[ROLE_DELTA_Z].weight, NULL, false},
                            {v.beta, &r[ROLE_DELTA_B].weight, NULL, false},
                            {v.alpha, &r[ROLE_DELTA_A].weight, NULL, false}};
    const sl_linear out = {rec->residual, &r[ROLE_DELTA_OUT].weight, NULL, true};
    sl_op_linear(rec->program, rec->normed, in, 4);
    sl_op_delta(rec->program, v.z, v.qkv, v.z, v.beta, v.alpha, &d);
    sl_op_linear(rec->program, v.z, &out, 1);
}

const block block_delta = {"delta", resolve, take, record};

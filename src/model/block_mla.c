/* Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) with its key and value projections absorbed: what is kept
 * of a token is one latent and one rotated key for all heads, and queries are brought into the latent's space instead
 * of keys out of it:
 *
 *   q = Wqb norm(Wqa x) per head [nope | rope]; [c | r] = Wkva x; c = norm(c)
 *   score = (Wk^T q_nope . c + rotate(q_rope) . rotate(r)) * scale; out = Wo (Wv sum(p c)) */
#include "model/bind.h"
#include "model/block.h"

#include <math.h>

static bool resolve_query(sl_model *m, int32_t layer, sl_error *err) {
    const sl_model_config *c = &m->config;
    int64_t q = (int64_t)c->heads * (c->qk_nope + c->qk_rope), h = c->hidden;
    const expected direct[] = {{ROLE_Q, q, h, false}};
    const expected narrow[] = {
        {ROLE_Q_A, c->q_lora, h, false}, {ROLE_Q_A_NORM, 0, c->q_lora, false}, {ROLE_Q_B, q, c->q_lora, false}};
    resident *r = m->layers[layer].r;
    return c->q_lora ? bind_all(m, r, narrow, SL_COUNT(narrow), layer, err) : bind_all(m, r, direct, 1, layer, err);
}

/* GGUF files have keys' and values' parts apart, the keys' transposed, each with a dimension of heads; before that they
 * had one matrix as Hugging Face has. */
static bool resolve_latent(sl_model *m, int32_t layer, sl_error *err) {
    const sl_model_config *c = &m->config;
    const expected whole[] = {{ROLE_KV_B, (int64_t)c->heads * (c->qk_nope + c->v_dim), c->kv_lora, false}};
    resident *r = m->layers[layer].r;
    if (!bind_find(m, ROLE_K_B, layer))
        return bind_all(m, r, whole, 1, layer, err);
    return bind_stacked(m, r, ROLE_K_B, c->heads, c->kv_lora, c->qk_nope, layer, err) &&
           bind_stacked(m, r, ROLE_V_B, c->heads, c->v_dim, c->kv_lora, layer, err);
}

static bool resolve(sl_model *m, int32_t layer, sl_error *err) {
    const sl_model_config *c = &m->config;
    const expected list[] = {{ROLE_ATTN_NORM, 0, c->hidden, false},
                             {ROLE_KV_A, c->kv_lora + c->qk_rope, c->hidden, false},
                             {ROLE_KV_A_NORM, 0, c->kv_lora, false},
                             {ROLE_O, c->hidden, (int64_t)c->heads * c->v_dim, false}};
    return bind_all(m, m->layers[layer].r, list, SL_COUNT(list), layer, err) && resolve_query(m, layer, err) &&
           resolve_latent(m, layer, err);
}

typedef struct views {
    sl_view narrow;          /* [rows][q_lora] */
    sl_view q;               /* [rows][heads][nope | rope] */
    sl_view key;             /* [rows][latent | rope] */
    sl_view absorbed, mixed; /* [rows][heads][latent | rope], [rows][heads][latent] */
    sl_view values;          /* [rows][heads][value] */
} views;

static views take_views(const sl_model *m, area *a) {
    const sl_model_config *c = &m->config;
    views v = {.q = area_take(a, (int64_t)c->heads * (c->qk_nope + c->qk_rope))};
    if (c->q_lora)
        v.narrow = area_take(a, c->q_lora);
    v.key = area_take(a, c->kv_lora + c->qk_rope);
    v.absorbed = area_take(a, (int64_t)c->heads * (c->kv_lora + c->qk_rope));
    v.mixed = area_take(a, (int64_t)c->heads * c->kv_lora);
    v.values = area_take(a, (int64_t)c->heads * c->v_dim);
    return v;
}

static void take(const sl_model *m, area *a) {
    take_views(m, a);
}

static void record_query(const sl_model *m, const recorder *rec, const resident *r, const views *v) {
    const sl_linear direct = {v->q, &r[ROLE_Q].weight, NULL, false},
                    down = {v->narrow, &r[ROLE_Q_A].weight, NULL, false}, up = {v->q, &r[ROLE_Q_B].weight, NULL, false};
    if (!m->config.q_lora) {
        sl_op_linear(rec->program, rec->normed, &direct, 1);
        return;
    }
    sl_op_linear(rec->program, rec->normed, &down, 1);
    sl_op_rms_norm(rec->program, v->narrow, v->narrow, &r[ROLE_Q_A_NORM].weight, m->config.norm_eps);
    sl_op_linear(rec->program, v->narrow, &up, 1);
}

/* The key's latent part is normed where it lies. */
static void record_key(const sl_model *m, const recorder *rec, const resident *r, const views *v) {
    const sl_linear product = {v->key, &r[ROLE_KV_A].weight, NULL, false};
    sl_view latent = v->key;
    latent.cols = m->config.kv_lora;
    sl_op_linear(rec->program, rec->normed, &product, 1);
    sl_op_rms_norm(rec->program, latent, latent, &r[ROLE_KV_A_NORM].weight, m->config.norm_eps);
}

static sl_head_linear to_latent(const sl_model *m, const resident *r) {
    const sl_model_config *c = &m->config;
    bool apart = r[ROLE_K_B].tensor != NULL;
    return (sl_head_linear){.weight = apart ? &r[ROLE_K_B].weight : &r[ROLE_KV_B].weight,
                            .heads = c->heads,
                            .in_dim = c->qk_nope,
                            .out_dim = c->kv_lora,
                            .tail = c->qk_rope,
                            .rows_per_head = apart ? c->kv_lora : c->qk_nope + c->v_dim,
                            .transposed = !apart};
}

static sl_head_linear to_values(const sl_model *m, const resident *r) {
    const sl_model_config *c = &m->config;
    bool apart = r[ROLE_K_B].tensor != NULL;
    return (sl_head_linear){.weight = apart ? &r[ROLE_V_B].weight : &r[ROLE_KV_B].weight,
                            .heads = c->heads,
                            .in_dim = c->kv_lora,
                            .out_dim = c->v_dim,
                            .first_row = apart ? 0 : c->qk_nope,
                            .rows_per_head = apart ? c->v_dim : c->qk_nope + c->v_dim};
}

static void record(const sl_model *m, const recorder *rec, int32_t layer) {
    const sl_model_config *c = &m->config;
    const resident *r = m->layers[layer].r;
    area own = rec->own;
    views v = take_views(m, &own);
    const sl_linear o = {rec->residual, &r[ROLE_O].weight, NULL, true};
    const sl_head_linear absorb = to_latent(m, r), release = to_values(m, r);
    const sl_attention att = {.layer = m->layers[layer].mixer_index,
                              .heads = c->heads,
                              .kv_heads = 1,
                              .head_dim = c->kv_lora + c->qk_rope,
                              .value_dim = c->kv_lora,
                              .scale = model_attention_scale(m, c->qk_nope + c->qk_rope),
                              .norm_eps = c->norm_eps,
                              .rope = {.first = c->kv_lora,
                                       .dims = c->qk_rope,
                                       .interleaved = m->rope.interleaved,
                                       .inv_freq = m->inv_freq,
                                       .scale = m->rope_scale}};
    record_query(m, rec, r, &v);
    record_key(m, rec, r, &v);
    sl_op_head_linear(rec->program, v.absorbed, v.q, &absorb);
    sl_op_attention(rec->program, v.mixed, v.absorbed, v.key, v.key, &att);
    sl_op_head_linear(rec->program, v.values, v.mixed, &release);
    sl_op_linear(rec->program, v.values, &o, 1);
}

const block block_mla = {"mla", resolve, take, record};

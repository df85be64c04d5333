/* config.json and GGUF metadata -> sl_model_config. One table of fields names both spellings; every value is checked
 * for its type and range. */
#include "model/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* Which architectures have a field. */
typedef enum of_which { OF_ALL, OF_MOE, OF_DELTA, OF_SHARED_PLAIN, OF_SIGMOID, OF_WINDOW, OF_MLA } of_which;

/* Where a field comes from and what it may be. */
typedef struct field {
    config_key key;
    size_t offset; /* int32_t in sl_model_config */
    int64_t min, max;
    bool required;
    of_which of;
} field;

#define AT(f) offsetof(sl_model_config, f)

static const field fields[] = {
    {{"hidden_size", "embedding_length"}, AT(hidden), 1, 1 << 20, true, OF_ALL},
    {{"num_hidden_layers", "block_count"}, AT(layers), 1, 4096, true, OF_ALL},
    {{"num_nextn_predict_layers", "nextn_predict_layers"}, AT(nextn_layers), 0, 4096, false, OF_ALL},
    {{"num_attention_heads", "attention.head_count"}, AT(heads), 1, 1 << 14, true, OF_ALL},
    {{"num_key_value_heads", "attention.head_count_kv"}, AT(kv_heads), 1, 1 << 14, false, OF_ALL},
    {{"head_dim", "attention.key_length"}, AT(head_dim), 1, 4096, false, OF_ALL},
    {{"intermediate_size", "feed_forward_length"}, AT(ffn), 0, 1 << 22, false, OF_ALL},
    {{"max_position_embeddings", "context_length"}, AT(context), 1, INT32_MAX, true, OF_ALL},
    {{"num_experts", "expert_count"}, AT(experts), 1, 1 << 16, true, OF_MOE},
    {{"num_experts_per_tok", "expert_used_count"}, AT(top_k), 1, 1 << 16, true, OF_MOE},
    {{"moe_intermediate_size", "expert_feed_forward_length"}, AT(expert_ffn), 1, 1 << 22, false, OF_MOE},
    {{"shared_expert_intermediate_size", "expert_shared_feed_forward_length"},
     AT(shared_ffn),
     0,
     1 << 22,
     false,
     OF_MOE},
    {{"n_shared_experts", "expert_shared_count"}, AT(shared_count), 0, 1 << 10, false, OF_SHARED_PLAIN},
    {{"first_k_dense_replace", "leading_dense_block_count"}, AT(first_dense), 0, 4096, false, OF_SHARED_PLAIN},
    {{"n_group", "expert_group_count"}, AT(groups), 0, SL_ROUTER_GROUPS, false, OF_SIGMOID},
    {{"topk_group", "expert_group_used_count"}, AT(top_groups), 0, SL_ROUTER_GROUPS, false, OF_SIGMOID},
    {{"sliding_window", "attention.sliding_window"}, AT(window), 0, INT32_MAX, false, OF_WINDOW},
    {{"q_lora_rank", "attention.q_lora_rank"}, AT(q_lora), 0, 1 << 20, false, OF_MLA},
    {{"kv_lora_rank", "attention.kv_lora_rank"}, AT(kv_lora), 1, 1 << 14, true, OF_MLA},
    {{"qk_nope_head_dim", NULL}, AT(qk_nope), 1, 4096, true, OF_MLA},
    {{"qk_rope_head_dim", "rope.dimension_count"}, AT(qk_rope), 2, 4096, true, OF_MLA},
    {{"v_head_dim", NULL}, AT(v_dim), 1, 4096, true, OF_MLA},
    {{"linear_num_key_heads", "ssm.group_count"}, AT(delta_key_heads), 1, 1 << 14, true, OF_DELTA},
    {{"linear_num_value_heads", "ssm.time_step_rank"}, AT(delta_value_heads), 1, 1 << 14, true, OF_DELTA},
    {{"linear_key_head_dim", "ssm.state_size"}, AT(delta_key_dim), 1, 4096, true, OF_DELTA},
    {{"linear_value_head_dim", NULL}, AT(delta_value_dim), 1, 4096, true, OF_DELTA},
    {{"linear_conv_kernel_dim", "ssm.conv_kernel"}, AT(delta_kernel), 2, SL_DELTA_KERNEL, true, OF_DELTA},
};

static bool is_of(const arch *a, of_which of) {
    switch (of) {
    case OF_MOE:
        return a->moe;
    case OF_DELTA:
        return a->mixers >> MIXER_DELTA & 1;
    case OF_SHARED_PLAIN:
        return a->shared == SHARED_PLAIN;
    case OF_SIGMOID:
        return a->router == SL_ROUTER_SIGMOID;
    case OF_WINDOW:
        return a->sliding > 0;
    case OF_MLA:
        return a->mixers >> MIXER_MLA & 1;
    default:
        return true;
    }
}

static bool has_field(const sl_model *m, const config_source *s, const field *f) {
    return (s->json ? f->key.hf : f->key.gguf) != NULL && is_of(m->arch, f->of);
}

static bool read_fields(sl_model *m, const config_source *s, sl_error *err) {
    for (size_t i = 0; i < SL_COUNT(fields); i++) {
        const field *f = &fields[i];
        int64_t v = 0;
        bool found;
        if (!has_field(m, s, f))
            continue;
        if (!config_integer(s, f->key, f->min, f->max, &v, &found, err))
            return false;
        if (!found && f->required)
            return config_missing(s, f->key, err);
        *(int32_t *)(void *)((char *)&m->config + f->offset) = (int32_t)v;
    }
    return true;
}

/* GGUF counts the layers that predict further tokens among the blocks. */
static bool subtract_nextn(sl_model *m, const config_source *s, sl_error *err) {
    sl_model_config *c = &m->config;
    if (s->json || c->nextn_layers == 0)
        return true;
    if (c->nextn_layers >= c->layers)
        return sl_fail(err, SL_ERR_FORMAT, "%s: %d of %d blocks predict further tokens, fewer expected", s->file,
                       c->nextn_layers, c->layers);
    c->layers -= c->nextn_layers;
    return true;
}

/* GGUF stores the width of all value heads. */
static bool derive_delta(sl_model *m, const config_source *s, sl_error *err) {
    const config_key inner = {NULL, "ssm.inner_size"};
    sl_model_config *c = &m->config;
    int64_t width = 0;
    bool found = false;
    if (!(m->arch->mixers >> MIXER_DELTA & 1))
        return true;
    if (c->delta_value_heads % c->delta_key_heads)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: %d value heads of linear attention, a multiple of its %d key heads "
                       "expected",
                       s->file, c->delta_value_heads, c->delta_key_heads);
    if (s->json)
        return true;
    if (!config_integer(s, inner, 1, 1 << 22, &width, &found, err))
        return false;
    if (!found)
        return config_missing(s, inner, err);
    if (width % c->delta_value_heads || width / c->delta_value_heads > 4096)
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s%s is %lld, up to 4096 for each of %d value heads expected",
                       s->file, s->prefix, inner.gguf, (long long)width, c->delta_value_heads);
    c->delta_value_dim = (int32_t)(width / c->delta_value_heads);
    return true;
}

/* GGUF stores what a key and a value have, under two names: those of heads as trained end in _mla where the others are
 * those of the latent. */
static bool read_mla_sizes(sl_model *m, const config_source *s, sl_error *err) {
    static const config_key keys[2][2] = {{{NULL, "attention.key_length_mla"}, {NULL, "attention.key_length"}},
                                          {{NULL, "attention.value_length_mla"}, {NULL, "attention.value_length"}}};
    int64_t size[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        bool found = false;
        for (int k = 0; k < 2 && !found; k++)
            if (!config_integer(s, keys[i][k], 1, 8192, &size[i], &found, err))
                return false;
        if (!found)
            return config_missing(s, keys[i][1], err);
    }
    if (size[0] <= m->config.qk_rope)
        return sl_fail(err, SL_ERR_FORMAT, "%s: keys of %lld, more than the %d rotated dimensions expected", s->file,
                       (long long)size[0], m->config.qk_rope);
    m->config.qk_nope = (int32_t)size[0] - m->config.qk_rope;
    m->config.v_dim = (int32_t)size[1];
    return true;
}

/* One KV head, which is the latent. */
static bool derive_mla(sl_model *m, const config_source *s, sl_error *err) {
    sl_model_config *c = &m->config;
    if (!is_of(m->arch, OF_MLA))
        return true;
    if (!s->json && !read_mla_sizes(m, s, err))
        return false;
    if (c->qk_rope % 2)
        return sl_fail(err, SL_ERR_FORMAT, "%s: %d rotated dimensions of a head, an even number expected", s->file,
                       c->qk_rope);
    c->kv_heads = 1;
    c->head_dim = c->kv_lora + c->qk_rope;
    return true;
}

static bool derive_groups(sl_model *m, const config_source *s, sl_error *err) {
    sl_model_config *c = &m->config;
    if (c->groups <= 1) {
        c->groups = c->top_groups = 0;
        return true;
    }
    if (c->experts % c->groups || c->experts / c->groups < 2 || c->top_groups < 1 || c->top_groups > c->groups ||
        (int64_t)c->experts / c->groups * c->top_groups < c->top_k)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: %d of %d groups of %d experts for %d per token: groups of equal size and enough experts in "
                       "them expected",
                       s->file, c->top_groups, c->groups, c->experts, c->top_k);
    return true;
}

static bool derive(sl_model *m, const config_source *s, sl_error *err) {
    sl_model_config *c = &m->config;
    if (!derive_mla(m, s, err))
        return false;
    if (m->arch->ffn_of_experts && c->expert_ffn == 0)
        c->expert_ffn = c->ffn;
    if (c->kv_heads == 0)
        c->kv_heads = c->heads;
    if (c->heads % c->kv_heads)
        return sl_fail(err, SL_ERR_FORMAT, "%s: %d attention heads, a multiple of the %d KV heads expected", s->file,
                       c->heads, c->kv_heads);
    if (c->head_dim == 0) {
        if (c->hidden % c->heads)
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s: hidden size %d and no size of a head, a multiple of the %d heads expected", s->file,
                           c->hidden, c->heads);
        c->head_dim = c->hidden / c->heads;
    }
    if (m->arch->moe && c->top_k > c->experts)
        return sl_fail(err, SL_ERR_FORMAT, "%s: %d experts per token, at most the %d experts of a layer expected",
                       s->file, c->top_k, c->experts);
    return derive_groups(m, s, err) && subtract_nextn(m, s, err) && derive_delta(m, s, err);
}

/* ---- what the blocks cannot do -------------------------------------------------------------------------------------
 */

/* Fields whose one value is what the blocks do; others change the model. */
static const struct {
    config_key key;
    enum { BE_FALSE, BE_SILU, BE_NUMBER } be;
    double number;
} plain[] = {
    {{"use_sliding_window", NULL}, BE_FALSE, 0}, {{"mlp_bias", NULL}, BE_FALSE, 0},
    {{"hidden_act", NULL}, BE_SILU, 0},          {{"clip_qkv", NULL}, BE_NUMBER, 0},
    {{NULL, "logit_scale"}, BE_NUMBER, 1},       {{NULL, "embedding_scale"}, BE_NUMBER, 1},
    {{NULL, "residual_scale"}, BE_NUMBER, 1},
};

bool config_unsupported(const config_source *s, config_key key, const char *expected, sl_error *err) {
    config_wrong(s, NULL, key, expected, err);
    if (err)
        err->code = SL_ERR_UNSUPPORTED;
    return false;
}

static bool check_supported(const config_source *s, sl_error *err) {
    for (size_t i = 0; i < SL_COUNT(plain); i++) {
        bool flag = false, found = false;
        sl_str text = {"silu", 4};
        double x = plain[i].number;
        config_key key = plain[i].key;
        if (s->json ? !key.hf : !key.gguf)
            continue;
        if (plain[i].be == BE_FALSE && !config_flag(s, key, &flag, &found, err))
            return false;
        if (plain[i].be == BE_SILU && !config_text(s, NULL, key, &text, &found, err))
            return false;
        if (plain[i].be == BE_NUMBER && !config_number(s, NULL, key, 0, 1e12, &x, &found, err))
            return false;
        if (flag)
            return config_unsupported(s, key, "false (no other is supported)", err);
        if (text.n != 4 || memcmp(text.p, "silu", 4))
            return config_unsupported(s, key, "silu (no other is supported)", err);
        if (x != plain[i].number && x != 0) /* 0: not set */
            return config_unsupported(s, key, plain[i].number ? "1 (no other is supported)" : "not set", err);
    }
    return true;
}

/* ---- routers ----------------------------------------------------------------------------------------------------- */

/* A router of another kind than the architecture's would choose other experts. */
static bool check_gating(const sl_model *m, const config_source *s, sl_error *err) {
    static const int64_t numbers[] = {[SL_ROUTER_SOFTMAX] = 1, [SL_ROUTER_SIGMOID] = 2, [SL_ROUTER_SOFTMAX_CHOSEN] = 3};
    const config_key function = {NULL, "expert_gating_func"}, scoring = {"scoring_func", NULL},
                     method = {"topk_method", NULL};
    const char *name = m->arch->router == SL_ROUTER_SIGMOID ? "sigmoid" : "softmax";
    int64_t number = 0;
    sl_str text = {NULL, 0};
    bool found;
    char expected[64];
    if (!s->json) {
        snprintf(expected, sizeof expected, "%d (no other is supported)", (int)numbers[m->arch->router]);
        return config_integer(s, function, 0, 255, &number, &found, err) &&
               (number == 0 || number == numbers[m->arch->router] || config_unsupported(s, function, expected, err));
    }
    snprintf(expected, sizeof expected, "%s (no other is supported)", name);
    if (!config_text(s, NULL, scoring, &text, &found, err))
        return false;
    if (found && (text.n != strlen(name) || memcmp(text.p, name, text.n)))
        return config_unsupported(s, scoring, expected, err);
    if (!config_text(s, NULL, method, &text, &found, err))
        return false;
    return !found || (text.n == 8 && memcmp(text.p, "noaux_tc", 8) == 0) ||
           config_unsupported(s, method, "noaux_tc (no other is supported)", err);
}

/* DeepSeek's published configurations say these, and what transformers takes where one is missing (8 groups,
 * factor 2.5) is one model's and not every one's. */
static bool has_router_fields(const sl_model *m, const config_source *s, sl_error *err) {
    static const config_key keys[] = {{"n_group", NULL}, {"routed_scaling_factor", NULL}};
    double x;
    bool found = true;
    for (size_t i = 0; s->json && is_of(m->arch, OF_MLA) && i < SL_COUNT(keys); i++) {
        if (!config_number(s, NULL, keys[i], 0, 1e6, &x, &found, err))
            return false;
        if (!found)
            return config_missing(s, keys[i], err);
    }
    return true;
}

static bool read_router(sl_model *m, const config_source *s, sl_error *err) {
    const config_key scale = {"routed_scaling_factor", "expert_weights_scale"}, groups = {NULL, "expert_group_count"},
                     limit = {"swiglu_limit", NULL};
    double x = 1, clamp = 7;
    int64_t n = 1;
    bool found;
    if (!m->arch->moe)
        return true;
    if (!check_gating(m, s, err) || !has_router_fields(m, s, err) ||
        !config_number(s, NULL, scale, 0, 1e6, &x, &found, err) ||
        !config_integer(s, groups, 0, 1 << 16, &n, &found, err) ||
        (m->arch->swiglu_alpha > 0 && !config_number(s, NULL, limit, 1e-3, 1e6, &clamp, &found, err)))
        return false;
    bool scaled = m->arch->router == SL_ROUTER_SIGMOID;
    if (!scaled && x != 1 && x != 0)
        return config_unsupported(s, scale, "1 (no other is supported)", err);
    if (!scaled && n > 1)
        return config_unsupported(s, groups, "1 (no other is supported)", err);
    m->config.weight_scale = (float)x;
    m->config.swiglu_limit = m->arch->swiglu_alpha > 0 ? (float)clamp : 0;
    return true;
}

/* ---- flags and the rest --------------------------------------------------------------------------------------------
 */

static bool read_qk_norm(sl_model *m, const config_source *s, sl_error *err) {
    const config_key key = {"use_qk_norm", NULL};
    bool found, use = !m->arch->qk_norm_optional;
    m->qk_norm = m->arch->qk_norm != QK_NORM_NONE;
    m->qk_norm_optional = m->qk_norm && m->arch->qk_norm_optional && !s->json;
    if (!m->arch->qk_norm || !s->json)
        return true;
    if (!config_flag(s, key, &use, &found, err))
        return false;
    if (!use && !m->arch->qk_norm_optional)
        return config_unsupported(s, key, "true (no other is supported)", err);
    m->qk_norm = use;
    return true;
}

static bool read_flags(sl_model *m, const config_source *s, sl_error *err) {
    const config_key normalize = {"norm_topk_prob", "expert_weights_norm"}, tie = {"tie_word_embeddings", NULL},
                     gate = {"attn_output_gate", NULL};
    config_source whole = *s;
    bool found, biased = m->arch->bias_default;
    whole.json = s->top;
    whole.prefix[0] = 0;
    m->config.normalize_topk = s->json ? m->arch->normalize : m->arch->gguf_normalize;
    m->config.attn_gate = m->arch->attn_gate;
    bool asks = !s->json || !m->arch->always_normalizes;
    if ((asks && !config_flag(s, normalize, &m->config.normalize_topk, &found, err)) ||
        !config_flag(s, tie, &m->config.tied, &found, err) ||
        (s->top && !config_flag(&whole, tie, &m->config.tied, &found, err)) ||
        (m->arch->attn_gate && !config_flag(s, gate, &m->config.attn_gate, &found, err)) ||
        (m->arch->bias_field && !config_flag(s, (config_key){m->arch->bias_field, NULL}, &biased, &found, err)))
        return false;
    m->biases = !s->json ? BIASES_OPTIONAL : biased ? BIASES_REQUIRED : BIASES_NONE;
    if (is_of(m->arch, OF_MLA) && s->json && biased)
        return config_unsupported(s, (config_key){m->arch->bias_field, NULL}, "false (no other is supported)", err);
    return read_qk_norm(m, s, err);
}

static bool read_eps(sl_model *m, const config_source *s, sl_error *err) {
    const config_key key = {"rms_norm_eps", "attention.layer_norm_rms_epsilon"};
    double eps = 1e-6;
    bool found;
    if (!config_number(s, NULL, key, 0, 1, &eps, &found, err))
        return false;
    if (!found && !s->json) /* every writer of GGUF gives it: a damaged key */
        return config_missing(s, key, err);
    m->config.norm_eps = (float)eps;
    return true;
}

static bool gguf_has_experts(const config_source *s, const char *name, size_t n) {
    char key[96];
    int64_t experts = 0;
    snprintf(key, sizeof key, "%.*s.expert_count", (int)(n < 64 ? n : 64), name);
    return sl_gguf_i64(s->ckpt, key, &experts) && experts > 0;
}

/* The model's own name first; where only its text part's is known, that. */
static const arch *known_arch(const config_source *s, const char *name, size_t n) {
    const char *text = json_string_value(json_object_get(s->json, "model_type"));
    const arch *a = s->top ? arch_by_hf(name, n) : arch_by_gguf(name, n, gguf_has_experts(s, name, n));
    return a || !s->top || s->top == s->json || !text ? a : arch_by_hf(text, strlen(text));
}

static bool find_arch(sl_model *m, config_source *s, sl_error *err) {
    const config_key key = {"model_type", "general.architecture"};
    config_source whole = *s;
    char known[256];
    sl_str name;
    bool found;
    arch_list(known, sizeof known);
    whole.json = s->top;
    whole.prefix[0] = 0;
    if (!config_text(&whole, NULL, key, &name, &found, err))
        return false;
    if (!found)
        return config_missing(&whole, key, err);
    m->arch = known_arch(s, name.p, name.n);
    if (!m->arch)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: architecture '%.*s' is not supported (%s are)", s->file,
                       (int)(name.n < 64 ? name.n : 64), name.p, known);
    if (!s->json)
        snprintf(s->prefix, sizeof s->prefix, "%s.", arch_gguf(m->arch));
    m->config.arch = m->arch->name;
    return true;
}

bool model_read_config(sl_model *m, sl_error *err) {
    config_source s;
    int64_t vocab = 0;
    bool found;
    bool ok = config_source_open(&s, m->ckpt, err) && find_arch(m, &s, err) && config_check_aliases(&s, err) &&
              read_fields(m, &s, err) && derive(m, &s, err) && check_supported(&s, err) && read_flags(m, &s, err) &&
              read_router(m, &s, err) && read_eps(m, &s, err) && config_read_rope(m, &s, err) &&
              config_read_layers(m, &s, err) &&
              config_integer(&s, (config_key){"vocab_size", NULL}, 1, INT32_MAX, &vocab, &found, err);
    m->config.vocab = (int32_t)vocab; /* GGUF: known when the embedding is found */
    if (ok)
        config_unknown_keys(&s, arch_gguf(m->arch), m->unknown_keys, sizeof m->unknown_keys);
    config_source_free(&s);
    return ok;
}

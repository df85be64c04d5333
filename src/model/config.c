/* config.json and GGUF metadata -> sl_model_config. One table of fields names both spellings; every value is checked
 * for its type and range. */
#include "model/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* Which architectures have a field. */
typedef enum of_which { OF_ALL, OF_MOE, OF_DELTA } of_which;

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
    {{"linear_num_key_heads", "ssm.group_count"}, AT(delta_key_heads), 1, 1 << 14, true, OF_DELTA},
    {{"linear_num_value_heads", "ssm.time_step_rank"}, AT(delta_value_heads), 1, 1 << 14, true, OF_DELTA},
    {{"linear_key_head_dim", "ssm.state_size"}, AT(delta_key_dim), 1, 4096, true, OF_DELTA},
    {{"linear_value_head_dim", NULL}, AT(delta_value_dim), 1, 4096, true, OF_DELTA},
    {{"linear_conv_kernel_dim", "ssm.conv_kernel"}, AT(delta_kernel), 2, SL_DELTA_KERNEL, true, OF_DELTA},
};

static bool has_field(const sl_model *m, const config_source *s, const field *f) {
    bool named = s->json ? f->key.hf != NULL : f->key.gguf != NULL;
    return named && (f->of != OF_MOE || m->arch->moe) && (f->of != OF_DELTA || m->arch->mixers >> MIXER_DELTA & 1);
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

static bool derive(sl_model *m, const config_source *s, sl_error *err) {
    sl_model_config *c = &m->config;
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
    return subtract_nextn(m, s, err) && derive_delta(m, s, err);
}

/* ---- what the blocks cannot do -------------------------------------------------------------------------------------
 */

/* Fields whose one value is what the blocks do; others change the model. */
static const struct {
    config_key key;
    enum { BE_FALSE, BE_SILU, BE_NUMBER } be;
    double number;
} plain[] = {
    {{"use_sliding_window", NULL}, BE_FALSE, 0},
    {{"mlp_bias", NULL}, BE_FALSE, 0},
    {{"hidden_act", NULL}, BE_SILU, 0},
    {{NULL, "expert_gating_func"}, BE_NUMBER, 1}, /* softmax */
    {{NULL, "expert_weights_scale"}, BE_NUMBER, 1},
    {{NULL, "expert_group_count"}, BE_NUMBER, 1},
    {{NULL, "logit_scale"}, BE_NUMBER, 1},
    {{NULL, "embedding_scale"}, BE_NUMBER, 1},
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
            return config_unsupported(s, key, "1 (no other is supported)", err);
    }
    return true;
}

/* ---- flags and the rest --------------------------------------------------------------------------------------------
 */

static bool read_flags(sl_model *m, const config_source *s, sl_error *err) {
    const config_key normalize = {"norm_topk_prob", "expert_weights_norm"}, tie = {"tie_word_embeddings", NULL},
                     gate = {"attn_output_gate", NULL};
    config_source whole = *s;
    bool found, biased = m->arch->bias_default;
    whole.json = s->top;
    whole.prefix[0] = 0;
    m->config.normalize_topk = s->json ? m->arch->normalize : m->arch->gguf_normalize;
    m->config.attn_gate = m->arch->attn_gate;
    if (!config_flag(s, normalize, &m->config.normalize_topk, &found, err) ||
        !config_flag(s, tie, &m->config.tied, &found, err) ||
        (s->top && !config_flag(&whole, tie, &m->config.tied, &found, err)) ||
        (m->arch->attn_gate && !config_flag(s, gate, &m->config.attn_gate, &found, err)) ||
        !config_flag(s, (config_key){m->arch->bias_field, NULL}, &biased, &found, err))
        return false;
    m->biases = !s->json ? BIASES_OPTIONAL : biased ? BIASES_REQUIRED : BIASES_NONE;
    return true;
}

static bool read_eps(sl_model *m, const config_source *s, sl_error *err) {
    const config_key key = {"rms_norm_eps", "attention.layer_norm_rms_epsilon"};
    double eps = 1e-6;
    bool found;
    if (!config_number(s, NULL, key, 0, 1, &eps, &found, err))
        return false;
    m->config.norm_eps = (float)eps;
    return true;
}

/* The model's own name first; where only its text part's is known, that. */
static const arch *known_arch(const config_source *s, const char *name, size_t n) {
    const char *text = json_string_value(json_object_get(s->json, "model_type"));
    const arch *a = s->top ? arch_by_hf(name, n) : arch_by_gguf(name, n);
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
        snprintf(s->prefix, sizeof s->prefix, "%s.", m->arch->gguf);
    m->config.arch = m->arch->name;
    return true;
}

bool model_read_config(sl_model *m, sl_error *err) {
    config_source s;
    int64_t vocab = 0;
    bool found;
    bool ok = config_source_open(&s, m->ckpt, err) && find_arch(m, &s, err) && config_check_aliases(&s, err) &&
              read_fields(m, &s, err) && derive(m, &s, err) && check_supported(&s, err) && read_flags(m, &s, err) &&
              read_eps(m, &s, err) && config_read_rope(m, &s, err) && config_read_layers(m, &s, err) &&
              config_integer(&s, (config_key){"vocab_size", NULL}, 1, INT32_MAX, &vocab, &found, err);
    m->config.vocab = (int32_t)vocab; /* GGUF: known when the embedding is found */
    if (ok)
        config_unknown_keys(&s, m->arch->gguf, m->unknown_keys, sizeof m->unknown_keys);
    config_source_free(&s);
    return ok;
}

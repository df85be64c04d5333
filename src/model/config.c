/* config.json and GGUF metadata -> sl_model_config. One table of fields names both spellings; every value is checked
 * for its type and range. */
#include "model/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* Where a field comes from and what it may be. */
typedef struct field {
    config_key key;
    size_t offset; /* int32_t in sl_model_config */
    int64_t min, max;
    bool required, moe; /* moe: only asked of MoE architectures */
} field;

#define AT(f) offsetof(sl_model_config, f)

static const field fields[] = {
    {{"hidden_size", "embedding_length"}, AT(hidden), 1, 1 << 20, true, false},
    {{"num_hidden_layers", "block_count"}, AT(layers), 1, 4096, true, false},
    {{"num_attention_heads", "attention.head_count"}, AT(heads), 1, 1 << 14, true, false},
    {{"num_key_value_heads", "attention.head_count_kv"}, AT(kv_heads), 1, 1 << 14, false, false},
    {{"head_dim", "attention.key_length"}, AT(head_dim), 1, 4096, false, false},
    {{"intermediate_size", "feed_forward_length"}, AT(ffn), 0, 1 << 22, false, false},
    {{"max_position_embeddings", "context_length"}, AT(context), 1, INT32_MAX, true, false},
    {{"num_experts", "expert_count"}, AT(experts), 1, 1 << 16, true, true},
    {{"num_experts_per_tok", "expert_used_count"}, AT(top_k), 1, 1 << 16, true, true},
    {{"moe_intermediate_size", "expert_feed_forward_length"}, AT(expert_ffn), 1, 1 << 22, false, true},
    {{"shared_expert_intermediate_size", "expert_shared_feed_forward_length"}, AT(shared_ffn), 0, 1 << 22, false, true},
};

static bool read_fields(sl_model *m, const config_source *s, sl_error *err) {
    for (size_t i = 0; i < SL_COUNT(fields); i++) {
        const field *f = &fields[i];
        int64_t v = 0;
        bool found;
        if (f->moe && !m->arch->moe)
            continue;
        if (!config_integer(s, f->key, f->min, f->max, &v, &found, err))
            return false;
        if (!found && f->required)
            return config_missing(s, f->key, err);
        *(int32_t *)(void *)((char *)&m->config + f->offset) = (int32_t)v;
    }
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
    return true;
}

/* ---- which layers are MoE ------------------------------------------------------------------------------------------
 */

static bool read_mlp_only(sl_model *m, const config_source *s, sl_error *err) {
    config_key key = {"mlp_only_layers", NULL};
    json_t *list = json_object_get(s->json, key.hf), *v;
    size_t k;
    if (list && !json_is_null(list) && !json_is_array(list))
        return config_wrong(s, NULL, key, "a list of layers", err);
    json_array_foreach(list, k, v) {
        int64_t layer = json_is_integer(v) ? json_integer_value(v) : -1;
        if (layer < 0 || layer >= m->config.layers) {
            char expected[64];
            snprintf(expected, sizeof expected, "a list of layers from 0 to %d", m->config.layers - 1);
            return config_wrong(s, NULL, key, expected, err);
        }
        m->dense[layer] = 1;
    }
    return true;
}

static bool read_dense_layers(sl_model *m, const config_source *s, sl_error *err) {
    int64_t step = 1;
    bool found;
    m->dense = calloc((size_t)m->config.layers, 1);
    if (!m->dense)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory");
    if (!m->arch->moe) {
        memset(m->dense, 1, (size_t)m->config.layers);
        return true;
    }
    if (!s->json)
        return true; /* GGUF: decided by the tensors that are there */
    if (!config_integer(s, (config_key){"decoder_sparse_step", NULL}, 1, INT32_MAX, &step, &found, err))
        return false;
    for (int32_t i = 0; i < m->config.layers; i++)
        m->dense[i] = (i + 1) % step != 0;
    return read_mlp_only(m, s, err);
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

static bool unsupported(const config_source *s, config_key key, const char *expected, sl_error *err) {
    config_wrong(s, NULL, key, expected, err);
    if (err)
        err->code = SL_ERR_UNSUPPORTED;
    return false;
}

/* layer_types of transformers 5: each layer looks at the whole context. */
static bool check_layer_types(const config_source *s, sl_error *err) {
    config_key key = {"layer_types", NULL};
    json_t *list = s->json ? json_object_get(s->json, key.hf) : NULL, *v;
    size_t k;
    if (list && !json_is_null(list) && !json_is_array(list))
        return config_wrong(s, NULL, key, "a list of kinds of attention", err);
    json_array_foreach(list, k, v) {
        if (!json_is_string(v) || strcmp(json_string_value(v), "full_attention") != 0)
            return unsupported(s, key, "full_attention for each layer (no other is supported)", err);
    }
    return true;
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
            return unsupported(s, key, "false (no other is supported)", err);
        if (text.n != 4 || memcmp(text.p, "silu", 4))
            return unsupported(s, key, "silu (no other is supported)", err);
        if (x != plain[i].number && x != 0) /* 0: not set */
            return unsupported(s, key, "1 (no other is supported)", err);
    }
    return true;
}

/* ---- flags and the rest --------------------------------------------------------------------------------------------
 */

static bool read_flags(sl_model *m, const config_source *s, sl_error *err) {
    const config_key normalize = {"norm_topk_prob", "expert_weights_norm"}, tie = {"tie_word_embeddings", NULL};
    bool found, biased = m->arch->bias_default;
    m->config.normalize_topk = !s->json && m->arch->gguf_normalize;
    if (!config_flag(s, normalize, &m->config.normalize_topk, &found, err) ||
        !config_flag(s, tie, &m->config.tied, &found, err) ||
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

static bool find_arch(sl_model *m, config_source *s, sl_error *err) {
    const config_key key = {"model_type", "general.architecture"};
    char known[256];
    sl_str name;
    bool found;
    arch_list(known, sizeof known);
    if (!config_text(s, NULL, key, &name, &found, err))
        return false;
    if (!found)
        return config_missing(s, key, err);
    m->arch = s->json ? arch_by_hf(name.p, name.n) : arch_by_gguf(name.p, name.n);
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
              read_fields(m, &s, err) && derive(m, &s, err) && check_supported(&s, err) && check_layer_types(&s, err) &&
              read_flags(m, &s, err) && read_eps(m, &s, err) && config_read_rope(m, &s, err) &&
              read_dense_layers(m, &s, err) &&
              config_integer(&s, (config_key){"vocab_size", NULL}, 1, INT32_MAX, &vocab, &found, err);
    m->config.vocab = (int32_t)vocab; /* GGUF: known when the embedding is found */
    if (ok)
        config_unknown_keys(&s, m->arch->gguf, m->unknown_keys, sizeof m->unknown_keys);
    config_source_free(&s);
    return ok;
}

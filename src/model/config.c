/* config.json and GGUF metadata -> sl_model_config. One table of fields names both spellings; every value is checked
 * for its range. */
#include "model/model_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where a field comes from and what it may be. */
typedef struct field {
    const char *hf, *gguf; /* gguf: behind "<arch>." */
    size_t offset;         /* int32_t in sl_model_config */
    int64_t min, max;
    int64_t missing; /* value where the key is absent; -1: the key is required */
    bool moe;        /* only asked of MoE architectures */
} field;

#define AT(f) offsetof(sl_model_config, f)

static const field fields[] = {
    {"hidden_size", "embedding_length", AT(hidden), 1, 1 << 20, -1, false},
    {"num_hidden_layers", "block_count", AT(layers), 1, 4096, -1, false},
    {"num_attention_heads", "attention.head_count", AT(heads), 1, 1 << 14, -1, false},
    {"num_key_value_heads", "attention.head_count_kv", AT(kv_heads), 1, 1 << 14, 0, false},
    {"head_dim", "attention.key_length", AT(head_dim), 1, 4096, 0, false},
    {"intermediate_size", "feed_forward_length", AT(ffn), 0, 1 << 22, 0, false},
    {"max_position_embeddings", "context_length", AT(context), 1, INT32_MAX, -1, false},
    {"num_experts", "expert_count", AT(experts), 1, 1 << 16, -1, true},
    {"num_experts_per_tok", "expert_used_count", AT(top_k), 1, 1 << 16, -1, true},
    {"moe_intermediate_size", "expert_feed_forward_length", AT(expert_ffn), 1, 1 << 22, 0, true},
    {"shared_expert_intermediate_size", "expert_shared_feed_forward_length", AT(shared_ffn), 0, 1 << 22, 0, true},
};

/* The checkpoint's configuration as one thing to ask. */
typedef struct source {
    const sl_model *m;
    json_t *json; /* HF */
    const char *file;
    char prefix[64]; /* GGUF: "qwen3moe." */
} source;

static const char *where(const source *s) {
    return s->json ? "config.json" : sl_ckpt_path(s->m->ckpt);
}

static void gguf_key(const source *s, const char *key, char out[128]) {
    snprintf(out, 128, "%s%s", s->prefix, key);
}

/* 1 found, 0 absent, -1 there but not an integer. */
static int get_integer(const source *s, const char *hf, const char *gguf, int64_t *out) {
    if (s->json) {
        json_t *v = json_object_get(s->json, hf);
        if (!v || json_is_null(v))
            return 0;
        if (json_is_integer(v))
            *out = json_integer_value(v);
        return json_is_integer(v) ? 1 : -1;
    }
    char key[128];
    gguf_key(s, gguf, key);
    sl_gguf_array per_layer;
    if (sl_gguf_i64(s->m->ckpt, key, out))
        return 1;
    /* Some fields may be one number per layer; here they must all be equal. */
    if (!sl_gguf_arr(s->m->ckpt, key, &per_layer))
        return 0;
    for (uint64_t i = 0; i < per_layer.count; i++) {
        int64_t v;
        if (!sl_gguf_arr_i64(&per_layer, i, &v) || (i && v != *out))
            return -1;
        *out = v;
    }
    return per_layer.count ? 1 : -1;
}

static bool read_field(sl_model *m, const source *s, const field *f, sl_error *err) {
    int64_t v = f->missing;
    int got = get_integer(s, f->hf, f->gguf, &v);
    const char *name = s->json ? f->hf : f->gguf;
    if (got == 0 && f->missing < 0)
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s%s is missing", where(s), s->prefix, name);
    if (got < 0)
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s%s: one integer expected", where(s), s->prefix, name);
    if (got > 0 && (v < f->min || v > f->max))
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s%s is %" PRId64 ", %" PRId64 " to %" PRId64 " expected",
                       where(s), s->prefix, name, v, f->min, f->max);
    *(int32_t *)(void *)((char *)&m->config + f->offset) = (int32_t)v;
    return true;
}

/* A positive number; `missing` where absent. */
static bool get_number(const source *s, json_t *object, const char *hf, const char *gguf, double missing, double *out,
                       sl_error *err) {
    *out = missing;
    if (s->json) {
        json_t *v = object ? json_object_get(object, hf) : NULL;
        if (v && !json_is_null(v)) {
            if (!json_is_number(v))
                return sl_fail(err, SL_ERR_FORMAT, "%s: field %s: a number expected", where(s), hf);
            *out = json_number_value(v);
        }
    } else {
        char key[128];
        gguf_key(s, gguf, key);
        sl_gguf_f64(s->m->ckpt, key, out);
    }
    if (!(*out >= 0 && *out < 1e12))
        return sl_fail(err, SL_ERR_FORMAT, "%s: field %s%s is %g, a positive number expected", where(s), s->prefix,
                       s->json ? hf : gguf, *out);
    return true;
}

static bool flag(const source *s, const char *hf, bool missing) {
    json_t *v = s->json ? json_object_get(s->json, hf) : NULL;
    return json_is_boolean(v) ? json_is_true(v) : missing;
}

/* ---- rotation ------------------------------------------------------------------------------------------------------
 */

static const struct {
    const char *name;
    int type;
} rope_types[] = {{"default", ROPE_DEFAULT},
                  {"none", ROPE_DEFAULT},
                  {"linear", ROPE_LINEAR},
                  {"llama3", ROPE_LLAMA3},
                  {"yarn", ROPE_YARN}};

static bool rope_type(sl_model *m, const source *s, const char *name, size_t n, sl_error *err) {
    for (size_t i = 0; i < SL_COUNT(rope_types); i++) {
        if (strlen(rope_types[i].name) == n && memcmp(rope_types[i].name, name, n) == 0) {
            m->rope.type = rope_types[i].type;
            return true;
        }
    }
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "%s: rope scaling type '%.*s' is not supported (default, linear, llama3, yarn are)", where(s),
                   (int)n, name);
}

static bool read_rope_type(sl_model *m, const source *s, json_t *scaling, sl_error *err) {
    if (s->json) {
        json_t *t = scaling ? json_object_get(scaling, "rope_type") : NULL;
        if (!t && scaling)
            t = json_object_get(scaling, "type");
        return !json_is_string(t) || rope_type(m, s, json_string_value(t), json_string_length(t), err);
    }
    char key[128];
    sl_str name;
    gguf_key(s, "rope.scaling.type", key);
    return !sl_gguf_str(m->ckpt, key, &name) || rope_type(m, s, name.p, name.n, err);
}

static bool read_rope(sl_model *m, const source *s, sl_error *err) {
    rope_config *r = &m->rope;
    /* transformers 5 puts theta and scaling into rope_parameters; before it was rope_scaling beside rope_theta. */
    json_t *scaling = s->json ? json_object_get(s->json, "rope_parameters") : NULL;
    json_t *theta_at = scaling && json_object_get(scaling, "rope_theta") ? scaling : s->json;
    if (s->json && !json_is_object(scaling))
        scaling = json_object_get(s->json, "rope_scaling");
    if (!json_is_object(scaling))
        scaling = NULL;
    double dims = m->config.head_dim;
    if (!read_rope_type(m, s, scaling, err) ||
        !get_number(s, theta_at, "rope_theta", "rope.freq_base", 10000.0, &m->config.rope_theta, err) ||
        !get_number(s, s->json, "", "rope.dimension_count", dims, &dims, err) ||
        !get_number(s, scaling, "factor", "rope.scaling.factor", 1.0, &r->factor, err) ||
        !get_number(s, scaling, "low_freq_factor", "rope.scaling.low_freq_factor", 1.0, &r->low_freq_factor, err) ||
        !get_number(s, scaling, "high_freq_factor", "rope.scaling.high_freq_factor", 4.0, &r->high_freq_factor, err) ||
        !get_number(s, scaling, "original_max_position_embeddings", "rope.scaling.original_context_length",
                    m->config.context, &r->original_context, err) ||
        !get_number(s, scaling, "beta_fast", "rope.scaling.yarn_beta_fast", 32.0, &r->beta_fast, err) ||
        !get_number(s, scaling, "beta_slow", "rope.scaling.yarn_beta_slow", 1.0, &r->beta_slow, err) ||
        !get_number(s, scaling, "attention_factor", "rope.scaling.attn_factor", 0.0, &r->attention_factor, err))
        return false;
    if (!(dims <= m->config.head_dim) || (int32_t)dims % 2)
        return sl_fail(err, SL_ERR_FORMAT, "%s: %g rotated dimensions of a head of %d", where(s), dims,
                       m->config.head_dim);
    if (r->factor <= 0 || m->config.rope_theta <= 1 || r->high_freq_factor <= r->low_freq_factor)
        return sl_fail(err, SL_ERR_FORMAT, "%s: rope theta %g, factor %g, frequency factors %g and %g make no sense",
                       where(s), m->config.rope_theta, r->factor, r->low_freq_factor, r->high_freq_factor);
    m->config.rope_dims = (int32_t)dims;
    return true;
}

/* ---- which layers are MoE ------------------------------------------------------------------------------------------
 */

static bool read_dense_layers(sl_model *m, const source *s, sl_error *err) {
    m->dense = calloc((size_t)m->config.layers, 1);
    if (!m->dense)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory");
    if (!m->arch->moe) {
        memset(m->dense, 1, (size_t)m->config.layers);
        return true;
    }
    if (!s->json)
        return true; /* GGUF: decided by the tensors that are there */
    json_t *list = json_object_get(s->json, "mlp_only_layers");
    json_t *step_value = json_object_get(s->json, "decoder_sparse_step");
    int64_t step = json_is_integer(step_value) ? json_integer_value(step_value) : 1;
    if (step < 1)
        return sl_fail(err, SL_ERR_FORMAT, "%s: field decoder_sparse_step is %" PRId64 ", at least 1 expected",
                       where(s), step);
    for (int32_t i = 0; i < m->config.layers; i++)
        m->dense[i] = (i + 1) % step != 0;
    size_t k;
    json_t *v;
    json_array_foreach(list, k, v) {
        int64_t layer = json_is_integer(v) ? json_integer_value(v) : -1;
        if (layer < 0 || layer >= m->config.layers)
            return sl_fail(err, SL_ERR_FORMAT, "%s: field mlp_only_layers names layer %" PRId64 " of %d", where(s),
                           layer, m->config.layers);
        m->dense[layer] = 1;
    }
    return true;
}

/* ---- what the blocks cannot do
 * --------------------------------------------------------------------------------------- */

static bool check_supported(const sl_model *m, const source *s, sl_error *err) {
    if (!s->json)
        return true;
    json_t *act = json_object_get(s->json, "hidden_act");
    if (json_is_string(act) && strcmp(json_string_value(act), "silu") != 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field hidden_act is '%s', only silu is supported", where(s),
                       json_string_value(act));
    if (flag(s, "use_sliding_window", false))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field use_sliding_window is true, not supported", where(s));
    if (flag(s, "mlp_bias", false))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: field mlp_bias is true, not supported for %s", where(s),
                       m->arch->name);
    return true;
}

static bool derive(sl_model *m, const source *s, sl_error *err) {
    sl_model_config *c = &m->config;
    if (c->kv_heads == 0)
        c->kv_heads = c->heads;
    if (c->heads % c->kv_heads)
        return sl_fail(err, SL_ERR_FORMAT, "%s: %d attention heads are not a multiple of %d KV heads", where(s),
                       c->heads, c->kv_heads);
    if (c->head_dim == 0) {
        if (c->hidden % c->heads)
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s: hidden size %d is not a multiple of %d heads and no head_dim is given", where(s),
                           c->hidden, c->heads);
        c->head_dim = c->hidden / c->heads;
    }
    if (m->arch->moe && c->top_k > c->experts)
        return sl_fail(err, SL_ERR_FORMAT, "%s: %d experts per token of %d experts", where(s), c->top_k, c->experts);
    return true;
}

static bool find_arch(sl_model *m, source *s, sl_error *err) {
    char known[256];
    arch_list(known, sizeof known);
    s->json = sl_ckpt_json(m->ckpt, "config.json");
    if (s->json) {
        json_t *t = json_object_get(s->json, "model_type");
        if (!json_is_string(t))
            return sl_fail(err, SL_ERR_FORMAT, "%s/config.json: field model_type is missing", sl_ckpt_path(m->ckpt));
        m->arch = arch_by_hf(json_string_value(t));
        if (!m->arch)
            return sl_fail(err, SL_ERR_UNSUPPORTED, "%s/config.json: architecture '%s' is not supported (%s are)",
                           sl_ckpt_path(m->ckpt), json_string_value(t), known);
    } else {
        sl_str name;
        if (!sl_gguf_str(m->ckpt, "general.architecture", &name))
            return sl_fail(err, SL_ERR_FORMAT, "%s: metadata general.architecture is missing", sl_ckpt_path(m->ckpt));
        m->arch = arch_by_gguf(name.p, name.n);
        if (!m->arch)
            return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: architecture '%.*s' is not supported (%s are)",
                           sl_ckpt_path(m->ckpt), (int)(name.n < 64 ? name.n : 64), name.p, known);
        snprintf(s->prefix, sizeof s->prefix, "%s.", m->arch->gguf);
    }
    m->config.arch = m->arch->name;
    return true;
}

bool model_read_config(sl_model *m, sl_error *err) {
    source s = {.m = m};
    if (!find_arch(m, &s, err))
        return false;
    for (size_t i = 0; i < SL_COUNT(fields); i++)
        if ((!fields[i].moe || m->arch->moe) && !read_field(m, &s, &fields[i], err))
            return false;
    double eps;
    if (!derive(m, &s, err) || !check_supported(m, &s, err) || !read_rope(m, &s, err) ||
        !get_number(&s, s.json, "rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-6, &eps, err) ||
        !read_dense_layers(m, &s, err))
        return false;
    m->config.norm_eps = (float)eps;
    m->config.tied = flag(&s, "tie_word_embeddings", false);
    m->config.normalize_topk = s.json ? flag(&s, "norm_topk_prob", false) : m->arch->gguf_normalize;
    bool stored;
    char key[128];
    gguf_key(&s, "expert_weights_norm", key);
    if (!s.json && sl_gguf_bool(m->ckpt, key, &stored))
        m->config.normalize_topk = stored;
    return true;
}

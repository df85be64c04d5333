/* How positions are rotated, by configuration. Hugging Face: theta and scaling lie together in rope_parameters, in
 * older files in rope_scaling beside rope_theta. GGUF: keys below rope. and rope.scaling. */
#include "model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int type;
} rope_types[] = {{"default", ROPE_DEFAULT}, {"none", ROPE_DEFAULT},
                  {"mrope", ROPE_DEFAULT}, /* a position per dimension of space and time: for text they are equal */
                  {"linear", ROPE_LINEAR},   {"llama3", ROPE_LLAMA3},
                  {"yarn", ROPE_YARN}};

static bool rope_type(sl_model *m, const config_source *s, sl_str name, sl_error *err) {
    for (size_t i = 0; i < SL_COUNT(rope_types); i++) {
        if (strlen(rope_types[i].name) == name.n && memcmp(rope_types[i].name, name.p, name.n) == 0) {
            m->rope.type = rope_types[i].type;
            return true;
        }
    }
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "%s: rope scaling type '%.*s' is not supported (default, linear, llama3, yarn are)", s->file,
                   (int)(name.n < 64 ? name.n : 64), name.p);
}

static bool read_type(sl_model *m, const config_source *s, json_t *scaling, sl_error *err) {
    static const config_key keys[] = {{"rope_type", "rope.scaling.type"}, {"type", NULL}};
    sl_str name;
    bool found = false;
    for (size_t i = 0; i < SL_COUNT(keys) && !found; i++) {
        if ((!s->json || scaling) && !config_text(s, scaling, keys[i], &name, &found, err))
            return false;
        if (found && !rope_type(m, s, name, err))
            return false;
    }
    return true;
}

/* The object with the scaling's fields, NULL for none. Parameters per kind of layer are another architecture's. */
static bool find_scaling(const config_source *s, json_t **out, sl_error *err) {
    static const config_key keys[] = {{"rope_scaling", NULL}, {"rope_parameters", NULL}};
    *out = NULL;
    for (size_t i = 0; s->json && i < SL_COUNT(keys) && !*out; i++) {
        json_t *v = json_object_get(s->json, keys[i].hf);
        if (v && !json_is_null(v) && !json_is_object(v))
            return config_wrong(s, NULL, keys[i], "an object", err);
        *out = json_object_size(v) ? v : NULL;
    }
    const char *name;
    json_t *value;
    json_object_foreach(*out, name, value) {
        if (json_is_object(value))
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "%s: rope parameters have an object '%.64s': one rotation for all layers is supported",
                           s->file, name);
    }
    return true;
}

typedef struct rope_field {
    config_key key;
    size_t offset; /* double in rope_config */
    double min, max;
} rope_field;

#define AT(f) offsetof(rope_config, f)

/* Beside factor: only those that a file has change the value set before. */
static const rope_field rope_fields[] = {
    {{"factor", "rope.scaling.factor"}, AT(factor), 0, 1e6},
    {{"low_freq_factor", NULL}, AT(low_freq_factor), 1e-6, 1e6},
    {{"high_freq_factor", NULL}, AT(high_freq_factor), 1e-6, 1e6},
    {{"original_max_position_embeddings", "rope.scaling.original_context_length"}, AT(original_context), 1, 1e12},
    {{"beta_fast", "rope.scaling.yarn_beta_fast"}, AT(beta_fast), 0, 1e6},
    {{"beta_slow", "rope.scaling.yarn_beta_slow"}, AT(beta_slow), 0, 1e6},
    {{"attention_factor", NULL}, AT(attention_factor), 0, 1e6},
    {{NULL, "rope.scaling.attn_factor"}, AT(attention_times), 1e-6, 1e6},
    {{"mscale", NULL}, AT(mscale), 0, 1e6},
    {{"mscale_all_dim", NULL}, AT(mscale_all_dim), 0, 1e6},
};

/* Fields that Hugging Face asks for by type: 1 << type. */
static const struct {
    size_t offset;
    unsigned types;
} required[] = {{AT(factor), 1u << ROPE_LINEAR | 1u << ROPE_LLAMA3},
                {AT(low_freq_factor), 1u << ROPE_LLAMA3},
                {AT(high_freq_factor), 1u << ROPE_LLAMA3}};

static bool is_required(const sl_model *m, size_t offset) {
    for (size_t i = 0; i < SL_COUNT(required); i++)
        if (required[i].offset == offset && required[i].types & 1u << m->rope.type)
            return true;
    return false;
}

static bool read_fields(sl_model *m, const config_source *s, json_t *scaling, sl_error *err) {
    bool factor_found = false;
    for (size_t i = 0; i < SL_COUNT(rope_fields); i++) {
        const rope_field *f = &rope_fields[i];
        bool found = false;
        double *at = (double *)(void *)((char *)&m->rope + f->offset);
        if (s->json && (!scaling || !f->key.hf))
            continue;
        if (!config_number(s, scaling, f->key, f->min, f->max, at, &found, err))
            return false;
        if (s->json && !found && is_required(m, f->offset))
            return config_missing(s, f->key, err);
        factor_found |= found && f->offset == AT(factor);
    }
    /* A few configurations keep the original context outside the scaling's object, and that one counts. */
    config_key outside = {"original_max_position_embeddings", NULL};
    bool found = false;
    if (s->json && !config_number(s, NULL, outside, 1, 1e12, &m->rope.original_context, &found, err))
        return false;
    if (s->json && m->rope.type == ROPE_YARN && !factor_found)
        m->rope.factor = m->config.context / m->rope.original_context;
    if (s->json && m->rope.factor == 0)
        return config_wrong(s, scaling, rope_fields[0].key, "a number above 0", err);
    if (m->rope.factor == 0) /* in GGUF: not set */
        m->rope.factor = 1;
    return true;
}

static bool read_truncate(sl_model *m, const config_source *s, json_t *scaling, sl_error *err) {
    config_key key = {"truncate", NULL};
    json_t *v = scaling ? json_object_get(scaling, key.hf) : NULL;
    if (v && !json_is_null(v) && !json_is_boolean(v))
        return config_wrong(s, scaling, key, "true or false", err);
    m->rope.fractional = s->json ? json_is_false(v) : m->arch->yarn_fractional;
    return true;
}

/* MLA: the part of its own, rotated by neighbours unless rope_interleave says otherwise; GGUF keeps one factor of
 * yarn's. */
static bool read_latent(sl_model *m, const config_source *s, sl_error *err) {
    const config_key key = {"rope_interleave", NULL}, log = {NULL, "rope.scaling.yarn_log_multiplier"};
    double times = 0;
    bool found;
    m->rope.interleaved = true;
    m->config.rope_dims = m->config.qk_rope;
    if (!config_flag(s, key, &m->rope.interleaved, &found, err) ||
        !config_number(s, NULL, log, 0, 1e3, &times, &found, err))
        return false;
    if (!s->json) /* cos and sin are not scaled: the factors of both are the same in what was published */
        m->rope.mscale = m->rope.mscale_all_dim = times * 10;
    return true;
}

/* Rotated dimensions of a head: GGUF stores them, Hugging Face a part, beside theta or beside the object it is in. */
static bool read_dimensions(sl_model *m, const config_source *s, json_t *scaling, sl_error *err) {
    const config_key key = {"partial_rotary_factor", NULL}, count = {"rotary_dim", "rope.dimension_count"};
    const sl_model_config *c = &m->config;
    bool may = m->arch->rotary > 0, found = false;
    double part = may ? m->arch->rotary : 1, least = may ? 0 : 1;
    int64_t dims = c->head_dim;
    if (s->json && scaling && !config_number(s, scaling, key, least, 1, &part, &found, err))
        return false;
    if (s->json && !found && !config_number(s, NULL, key, least, 1, &part, &found, err))
        return false;
    if (may)
        dims = (int64_t)(c->head_dim * part);
    if (c->kv_lora)
        return read_latent(m, s, err);
    if ((may || !s->json) && !config_integer(s, count, 0, c->head_dim, &dims, &found, err))
        return false;
    if (dims % 2)
        return sl_fail(err, SL_ERR_FORMAT, "%s: %d rotated dimensions of a head, an even number expected", s->file,
                       (int)dims);
    m->config.rope_dims = (int32_t)dims;
    return true;
}

static bool read_theta(sl_model *m, const config_source *s, json_t *scaling, sl_error *err) {
    config_key key = {"rope_theta", "rope.freq_base"};
    bool found = false;
    m->config.rope_theta = 10000.0;
    if (scaling && !config_number(s, scaling, key, 1.0001, 1e12, &m->config.rope_theta, &found, err))
        return false;
    return found || config_number(s, NULL, key, 1.0001, 1e12, &m->config.rope_theta, &found, err);
}

bool config_read_rope(sl_model *m, const config_source *s, sl_error *err) {
    rope_config *r = &m->rope;
    json_t *scaling;
    *r = (rope_config){.factor = 1,
                       .low_freq_factor = 1,
                       .high_freq_factor = 4,
                       .original_context = m->config.context,
                       .beta_fast = 32,
                       .beta_slow = 1,
                       .attention_times = 1};
    if (!find_scaling(s, &scaling, err) || !read_type(m, s, scaling, err) || !read_theta(m, s, scaling, err) ||
        !read_fields(m, s, scaling, err) || !read_truncate(m, s, scaling, err) || !read_dimensions(m, s, scaling, err))
        return false;
    /* 0 stands for the default */
    r->beta_fast = r->beta_fast > 0 ? r->beta_fast : 32;
    r->beta_slow = r->beta_slow > 0 ? r->beta_slow : 1;
    if (r->type == ROPE_LLAMA3 && r->high_freq_factor <= r->low_freq_factor)
        return sl_fail(err, SL_ERR_FORMAT, "%s: field high_freq_factor is %g, more than low_freq_factor %g expected",
                       s->file, r->high_freq_factor, r->low_freq_factor);
    return true;
}

/* MLX's quantised weights: NAME.weight (u32 words of codes), NAME.scales and NAME.biases become one logical tensor.
 *
 * config.json's "quantization" says group_size, bits and mode for all modules; an entry named like a module overrides
 * it (an object, or false: not quantised). A module is quantised where its scales are in the file. Nothing is guessed:
 * bits and group from the config must agree with the three shapes. */
#include "checkpoint/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELD "quantization"

/* What MLX's library takes where an override leaves a field out. */
enum { DEFAULT_GROUP = 64, DEFAULT_BITS = 4 };

static const struct {
    int bits;
    sl_format_id format;
} affine[] = {{4, SL_AFFINE4}, {8, SL_AFFINE8}};

/* One weight on its way to a logical tensor. */
typedef struct module {
    sl_ckpt *c;
    ckpt_raws *raws;
    const char *config_path;
    const json_t *quant; /* config.json's "quantization", NULL: none */
    size_t weight;       /* its number among the raw tensors */
    const char *tensor;  /* its name */
    const json_t *own;   /* override, NULL: none */
    char *name;          /* module path: tensor without ".weight" */
    size_t scales, biases;
    int64_t bits, group;
    sl_format_id format;
} module;

/* ---- plain tensors ---------------------------------------------------------------------------------------------- */

static bool safetensors_format(const char *dtype, sl_format_id *out) {
    for (int i = 0; i < SL_FORMAT_COUNT; i++) {
        const char *name = sl_format_get((sl_format_id)i)->safetensors;
        if (name && strcmp(name, dtype) == 0) {
            *out = (sl_format_id)i;
            return true;
        }
    }
    return false;
}

static char *take_name(ckpt_raw *r) {
    char *name = r->name;
    r->name = NULL;
    return name;
}

static bool add_plain(sl_ckpt *c, ckpt_raw *r, sl_error *err) {
    sl_tensor t = {.dims = r->dims, .parts = 1, .part = {r->at}};
    if (r->dims > SL_MAX_DIMS || !safetensors_format(r->dtype->name, &t.format)) {
        ckpt_other other = {.dtype = r->dtype->name, .dims = r->dims, .file = r->at.file};
        other.name = take_name(r);
        return ckpt_add_other(c, other, err);
    }
    memcpy(t.shape, r->shape, sizeof t.shape);
    t.name = take_name(r);
    return ckpt_add_tensor(c, &t, err);
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

static bool fail_field(const module *m, const char *field, sl_error *err, sl_code code, const char *found) {
    const char *dot = m->own ? "." : "", *path = m->own ? m->name : "";
    return sl_fail(err, code, "%s: " FIELD "%s%s.%s is %s (tensor \"%s\")", m->config_path, dot, path, field, found,
                   m->tensor);
}

/* An integer of the override, of the whole model's entry where there is no override, or `absent`. */
static bool get_param(const module *m, const char *field, int64_t absent, int64_t *out, sl_error *err) {
    const json_t *v = json_object_get(m->own ? m->own : m->quant, field);
    if (!v && absent > 0) {
        *out = absent;
        return true;
    }
    if (!json_is_integer(v) || json_integer_value(v) <= 0 || json_integer_value(v) > 1 << 20) {
        return fail_field(m, field, err, SL_ERR_FORMAT, v ? "not a small positive integer" : "missing");
    }
    *out = json_integer_value(v);
    return true;
}

static bool check_mode(const module *m, sl_error *err) {
    const json_t *v = json_object_get(m->own ? m->own : m->quant, "mode");
    if (!v || (json_is_string(v) && strcmp(json_string_value(v), "affine") == 0)) {
        return true;
    }
    char found[80];
    snprintf(found, sizeof found, "\"%.30s\", expected \"affine\"", json_is_string(v) ? json_string_value(v) : "?");
    return fail_field(m, "mode", err, SL_ERR_UNSUPPORTED, found);
}

static bool find_format(module *m) {
    for (size_t i = 0; i < SL_COUNT(affine); i++) {
        if (affine[i].bits == m->bits) {
            m->format = affine[i].format;
            return true;
        }
    }
    return false;
}

static bool find_params(module *m, sl_error *err) {
    if (json_is_true(m->own)) { /* "quantise it like the rest" */
        m->own = NULL;
    }
    if (m->own && !json_is_object(m->own)) {
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: " FIELD ".%s is not an object with bits and group_size, but tensor \"%s\" is quantised",
                       m->config_path, m->name, m->tensor);
    }
    if (!check_mode(m, err) || !get_param(m, "bits", m->own ? DEFAULT_BITS : 0, &m->bits, err) ||
        !get_param(m, "group_size", m->own ? DEFAULT_GROUP : 0, &m->group, err)) {
        return false;
    }
    char found[80];
    if (!find_format(m)) {
        snprintf(found, sizeof found, "%" PRId64 ", expected 4 or 8", m->bits);
        return fail_field(m, "bits", err, SL_ERR_UNSUPPORTED, found);
    }
    if (m->group != 32 && m->group != 64 && m->group != 128) {
        snprintf(found, sizeof found, "%" PRId64 ", expected 32, 64 or 128", m->group);
        return fail_field(m, "group_size", err, SL_ERR_UNSUPPORTED, found);
    }
    return true;
}

/* ---- three parts ----------------------------------------------------------------------------------------------------
 */

static bool find_part(const module *m, const char *suffix, size_t *out, sl_error *err) {
    char *name = sl_asprintf("%s%s", m->name, suffix);
    if (!name) {
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", m->config_path);
    }
    *out = ckpt_raws_find(m->raws, name);
    free(name);
    return true;
}

static bool fail_tensor(const module *m, sl_error *err, const char *what) {
    const ckpt_raw *w = &m->raws->v[m->weight];
    return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\": %s", m->c->files[w->at.file]->path, m->tensor, what);
}

static bool need_parts(const module *m, sl_error *err) {
    const char *missing = m->scales == CKPT_NONE ? "scales" : m->biases == CKPT_NONE ? "biases" : NULL;
    if (!missing) {
        return true;
    }
    char what[64];
    snprintf(what, sizeof what, "quantised, but its .%s are missing", missing);
    return fail_tensor(m, err, what);
}

/* Scales and biases: same dtype, same shape, the weight's leading dimensions. */
static bool check_sides(const module *m, sl_format_id *side, sl_error *err) {
    const ckpt_raw *w = &m->raws->v[m->weight], *s = &m->raws->v[m->scales], *b = &m->raws->v[m->biases];
    if (!safetensors_format(s->dtype->name, side) || s->dtype != b->dtype) {
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: tensor \"%s\": scales are %s, biases %s, expected both F16, both BF16 or both F32",
                       m->c->files[s->at.file]->path, m->tensor, s->dtype->name, b->dtype->name);
    }
    if (w->dims < 2 || w->dims > SL_MAX_DIMS) {
        return fail_tensor(m, err, "quantised, but not of 2 to 4 dimensions");
    }
    if (s->dims != w->dims || b->dims != w->dims ||
        memcmp(s->shape, w->shape, sizeof(int64_t) * (size_t)(w->dims - 1)) != 0 ||
        memcmp(s->shape, b->shape, sizeof(int64_t) * (size_t)w->dims) != 0) {
        return fail_tensor(m, err, "shapes of .weight, .scales and .biases do not go together");
    }
    return true;
}

/* Columns from the packed words, checked against the groups. */
static bool find_columns(const module *m, int64_t *out, sl_error *err) {
    const ckpt_raw *w = &m->raws->v[m->weight], *s = &m->raws->v[m->scales];
    int64_t words = w->shape[w->dims - 1], groups = s->shape[s->dims - 1];
    int64_t cols = 0, grouped = 0;
    if (__builtin_mul_overflow(words, 32 / m->bits, &cols) || __builtin_mul_overflow(groups, m->group, &grouped) ||
        cols != grouped) {
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: tensor \"%s\": %" PRId64 " words of %" PRId64 "-bit codes are %" PRId64
                       " columns, but %" PRId64 " scales for groups of %" PRId64 " are %" PRId64,
                       m->c->files[w->at.file]->path, m->tensor, words, m->bits, cols, groups, m->group, grouped);
    }
    *out = cols;
    return true;
}

static bool add_affine(module *m, bool *used, sl_error *err) {
    ckpt_raw *w = &m->raws->v[m->weight];
    sl_tensor t = {.format = m->format, .group = (int32_t)m->group, .dims = w->dims, .parts = 3};
    int64_t cols = 0;
    if (!check_sides(m, &t.side, err) || !find_columns(m, &cols, err)) {
        return false;
    }
    memcpy(t.shape, w->shape, sizeof t.shape);
    t.shape[t.dims - 1] = cols;
    t.part[0] = w->at;
    t.part[1] = m->raws->v[m->scales].at;
    t.part[2] = m->raws->v[m->biases].at;
    sl_matrix matrix = {.format = t.format, .group = t.group, .side = t.side, .rows = 1, .cols = cols};
    if (cols > 0 && !sl_matrix_layout(&matrix, err)) {
        return sl_fail_prefix(err, "%s: tensor \"%s\"", m->c->files[w->at.file]->path, m->tensor);
    }
    used[m->weight] = used[m->scales] = used[m->biases] = true;
    t.name = take_name(w);
    return ckpt_add_tensor(m->c, &t, err);
}

/* ---- grouping
 * -------------------------------------------------------------------------------------------------------- */

/* A weight of unsigned words with scales beside it, or where the config says that weights are quantised. */
static bool group_words(module *m, bool *used, sl_error *err) {
    if (!m->quant) {
        if (m->scales == CKPT_NONE) {
            return true;
        }
        return sl_fail(err, SL_ERR_FORMAT, "%s: no \"" FIELD "\", but tensor \"%s\" has U32 codes and scales",
                       m->config_path, m->tensor);
    }
    return find_params(m, err) && need_parts(m, err) && add_affine(m, used, err);
}

/* A weight that is not packed must not be said to be. */
static bool check_unpacked(const module *m, sl_error *err) {
    const char *dtype = m->raws->v[m->weight].dtype->name;
    if (m->quant && (m->scales != CKPT_NONE || json_is_object(m->own) || json_is_true(m->own))) {
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\": dtype %s, expected U32 codes, since it has %s",
                       m->c->files[m->raws->v[m->weight].at.file]->path, m->tensor, dtype,
                       m->scales != CKPT_NONE ? "scales" : "an entry in config.json's " FIELD);
    }
    return true;
}

static bool group_weight(module *m, bool *used, sl_error *err) {
    const ckpt_raw *w = &m->raws->v[m->weight];
    m->tensor = w->name;
    m->name = sl_strndup(w->name, strlen(w->name) - strlen(".weight"));
    if (!m->name) {
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", m->config_path);
    }
    m->own = json_object_get(m->quant, m->name);
    bool ok = find_part(m, ".scales", &m->scales, err) && find_part(m, ".biases", &m->biases, err);
    if (ok) {
        ok = strcmp(w->dtype->name, "U32") == 0 ? group_words(m, used, err) : check_unpacked(m, err);
    }
    free(m->name);
    return ok;
}

static bool group_all(sl_ckpt *c, ckpt_raws *r, const json_t *quant, const char *config_path, bool *used,
                      sl_error *err) {
    for (size_t i = 0; i < r->count; i++) {
        if (ckpt_has_suffix(r->v[i].name, ".weight")) {
            module m = {.c = c, .raws = r, .config_path = config_path, .quant = quant, .weight = i};
            if (!group_weight(&m, used, err)) {
                return false;
            }
        }
    }
    for (size_t i = 0; i < r->count; i++) {
        if (!used[i] && !add_plain(c, &r->v[i], err)) {
            return false;
        }
    }
    return true;
}

bool mlx_group_tensors(sl_ckpt *c, ckpt_raws *r, const json_t *config, const char *config_path, sl_error *err) {
    const json_t *quant = json_object_get(config, FIELD);
    if (json_is_null(quant)) {
        quant = NULL;
    }
    if (quant && !json_is_object(quant)) {
        return sl_fail(err, SL_ERR_FORMAT, "%s: " FIELD " is not an object", config_path);
    }
    bool *used = calloc(r->count + 1, sizeof *used);
    if (!used) {
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for %zu tensors", config_path, r->count);
    }
    bool ok = group_all(c, r, quant, config_path, used, err);
    free(used);
    return ok;
}

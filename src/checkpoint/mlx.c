/* MLX's quantised weights: NAME.weight (u32 words of codes), NAME.scales and, in mode affine, NAME.biases become one
 * logical tensor.
 *
 * config.json's "quantization" says group_size, bits and mode for all modules; an entry named like a module overrides
 * it (an object, or false: not quantised). A module is quantised where its scales are in the file. Nothing is guessed:
 * bits and group from the config must agree with the shapes. */
#include "checkpoint/group.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The modes: what MLX's library takes where an override leaves a field out, and what is possible at all (0: the mode's
 * own check). */
typedef struct mode {
    const char *name;
    int64_t group, bits; /* defaults */
    bool affine;         /* any bits of the table of formats, groups of 32, 64, 128, biases; else the defaults alone */
    sl_format_id format; /* where not affine */
} mode;

static const mode modes[] = {
    {"affine", 64, 4, true, SL_FORMAT_COUNT},
    {"mxfp4", 32, 4, false, SL_MXFP4_SPLIT},
    {"nvfp4", 16, 4, false, SL_NVFP4_SPLIT},
    {"mxfp8", 32, 8, false, SL_MXFP8_SPLIT},
};

/* One weight on its way to a logical tensor. */
typedef struct module {
    group *g;
    size_t weight;      /* its number among the raw tensors */
    const char *tensor; /* its name */
    const json_t *own;  /* override, NULL: none */
    char *name;         /* module path: tensor without ".weight" */
    size_t scales, biases;
    const mode *mode;
    int64_t bits, group;
    sl_format_id format;
} module;

/* ---- parameters -------------------------------------------------------------------------------------------------- */

static bool fail_field(const module *m, const char *field, sl_error *err, sl_code code, const char *found) {
    const char *dot = m->own ? "." : "", *path = m->own ? m->name : "";
    return sl_fail(err, code, "%s: %s%s%s.%s is %s (tensor \"%s\")", m->g->config_path, m->g->field, dot, path, field,
                   found, m->tensor);
}

/* An integer of the override, of the whole model's entry where there is no override, or `absent`. */
static bool get_param(const module *m, const char *field, int64_t absent, int64_t *out, sl_error *err) {
    const json_t *v = json_object_get(m->own ? m->own : m->g->quant, field);
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

/* Without one it is affine, in an override too, whatever the whole model's is. */
static bool find_mode(module *m, sl_error *err) {
    const json_t *v = json_object_get(m->own ? m->own : m->g->quant, "mode");
    const char *name = v ? json_string_value(v) : "affine";
    for (size_t i = 0; name && i < SL_COUNT(modes); i++) {
        if (strcmp(modes[i].name, name) == 0) {
            m->mode = &modes[i];
            return true;
        }
    }
    char found[120];
    snprintf(found, sizeof found, "\"%.30s\", expected \"affine\", \"mxfp4\", \"nvfp4\" or \"mxfp8\"",
             name ? name : "?");
    return fail_field(m, "mode", err, SL_ERR_UNSUPPORTED, found);
}

static bool check_affine(module *m, sl_error *err) {
    char found[80];
    if (!sl_affine_by_bits((int)m->bits, &m->format)) {
        snprintf(found, sizeof found, "%" PRId64 ", expected 2, 3, 4, 5, 6 or 8", m->bits);
        return fail_field(m, "bits", err, SL_ERR_UNSUPPORTED, found);
    }
    if (m->group != 32 && m->group != 64 && m->group != 128) {
        snprintf(found, sizeof found, "%" PRId64 ", expected 32, 64 or 128", m->group);
        return fail_field(m, "group_size", err, SL_ERR_UNSUPPORTED, found);
    }
    return true;
}

/* A mode that leaves no choice. */
static bool check_fixed(module *m, sl_error *err) {
    char found[80];
    bool bits = m->bits != m->mode->bits;
    m->format = m->mode->format;
    if (!bits && m->group == m->mode->group) {
        return true;
    }
    snprintf(found, sizeof found, "%" PRId64 ", expected %" PRId64 " in mode %s", bits ? m->bits : m->group,
             bits ? m->mode->bits : m->mode->group, m->mode->name);
    return fail_field(m, bits ? "bits" : "group_size", err, SL_ERR_FORMAT, found);
}

static bool find_params(module *m, sl_error *err) {
    if (json_is_true(m->own)) { /* "quantise it like the rest" */
        m->own = NULL;
    }
    if (m->own && !json_is_object(m->own)) {
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: %s.%s is not an object with bits and group_size, but tensor \"%s\" is quantised",
                       m->g->config_path, m->g->field, m->name, m->tensor);
    }
    return find_mode(m, err) && get_param(m, "bits", m->own ? m->mode->bits : 0, &m->bits, err) &&
           get_param(m, "group_size", m->own ? m->mode->group : 0, &m->group, err) &&
           (m->mode->affine ? check_affine(m, err) : check_fixed(m, err));
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

static bool fail_tensor(const module *m, sl_error *err, const char *what) {
    return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\": %s", group_file(m->g, m->weight), m->tensor, what);
}

static bool need_parts(const module *m, sl_error *err) {
    const char *missing = m->scales == CKPT_NONE                      ? "scales"
                          : m->mode->affine && m->biases == CKPT_NONE ? "biases"
                                                                      : NULL;
    char what[80];
    if (missing) {
        snprintf(what, sizeof what, "quantised, but its .%s are missing", missing);
        return fail_tensor(m, err, what);
    }
    if (!m->mode->affine && m->biases != CKPT_NONE) {
        snprintf(what, sizeof what, "has .biases, but its mode is %s, which has none", m->mode->name);
        return fail_tensor(m, err, what);
    }
    return true;
}

/* Scales, and biases where there are: the dtype of the mode; both the same. */
static bool check_dtypes(const module *m, sl_format_id *side, sl_error *err) {
    const ckpt_raw *s = &m->g->raws->v[m->scales];
    if (!m->mode->affine) {
        return strcmp(s->dtype->name, "U8") == 0 ||
               sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\": scales are %s, expected U8 in mode %s",
                       group_file(m->g, m->scales), m->tensor, s->dtype->name, m->mode->name);
    }
    const ckpt_raw *b = &m->g->raws->v[m->biases];
    return (group_float_format(s->dtype->name, side) && s->dtype == b->dtype) ||
           sl_fail(err, SL_ERR_FORMAT,
                   "%s: tensor \"%s\": scales are %s, biases %s, expected both F16, both BF16 or both F32",
                   group_file(m->g, m->scales), m->tensor, s->dtype->name, b->dtype->name);
}

static bool same_shape(const ckpt_raw *a, const ckpt_raw *b, int32_t dims) {
    return a->dims == b->dims && memcmp(a->shape, b->shape, sizeof(int64_t) * (size_t)dims) == 0;
}

/* Scales and biases have the same shape, and the weight's leading dimensions. */
static bool check_shapes(const module *m, sl_error *err) {
    const ckpt_raw *w = &m->g->raws->v[m->weight], *s = &m->g->raws->v[m->scales];
    if (w->dims < 2 || w->dims > SL_MAX_DIMS) {
        return fail_tensor(m, err, "quantised, but not of 2 to 4 dimensions");
    }
    if (!same_shape(s, w, w->dims - 1) || (m->mode->affine && !same_shape(s, &m->g->raws->v[m->biases], w->dims))) {
        return fail_tensor(m, err,
                           m->mode->affine ? "shapes of .weight, .scales and .biases do not go together"
                                           : "shapes of .weight and .scales do not go together");
    }
    return true;
}

/* Columns from the packed words, checked against the groups. */
static bool find_columns(const module *m, int64_t *out, sl_error *err) {
    const ckpt_raw *w = &m->g->raws->v[m->weight], *s = &m->g->raws->v[m->scales];
    int64_t words = w->shape[w->dims - 1], groups = s->shape[s->dims - 1];
    int64_t bits = 0, grouped = 0;
    if (__builtin_mul_overflow(words, 32, &bits) || __builtin_mul_overflow(groups, m->group, &grouped) ||
        bits % m->bits != 0 || bits / m->bits != grouped) {
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: tensor \"%s\": %" PRId64 " words of %" PRId64 "-bit codes are %" PRId64
                       " columns, but %" PRId64 " scales for groups of %" PRId64 " are %" PRId64,
                       group_file(m->g, m->weight), m->tensor, words, m->bits, bits / m->bits, groups, m->group,
                       grouped);
    }
    *out = grouped;
    return true;
}

static bool add_quantised(module *m, sl_error *err) {
    const ckpt_raw *w = &m->g->raws->v[m->weight];
    sl_tensor t = {.format = m->format, .group = (int32_t)m->group, .dims = w->dims};
    int64_t cols = 0;
    if (!check_dtypes(m, &t.side, err) || !check_shapes(m, err) || !find_columns(m, &cols, err)) {
        return false;
    }
    t.parts = sl_format_get(t.format)->parts;
    memcpy(t.shape, w->shape, sizeof t.shape);
    t.shape[t.dims - 1] = cols;
    return group_add(m->g, &t, (size_t[]){m->weight, m->scales, m->biases}, NULL, err);
}

/* ---- grouping ---------------------------------------------------------------------------------------------------- */

/* A weight of unsigned words with scales beside it, or where the config says that weights are quantised. */
static bool group_words(module *m, sl_error *err) {
    if (!m->g->quant) {
        return m->scales == CKPT_NONE ||
               sl_fail(err, SL_ERR_FORMAT, "%s: no \"quantization\", but tensor \"%s\" has U32 codes and scales",
                       m->g->config_path, m->tensor);
    }
    return find_params(m, err) && need_parts(m, err) && add_quantised(m, err);
}

/* A weight that is not packed must not be said to be. */
static bool check_unpacked(const module *m, sl_error *err) {
    if (m->g->quant && (m->scales != CKPT_NONE || json_is_object(m->own) || json_is_true(m->own))) {
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\": dtype %s, expected U32 codes, since it has %s%s",
                       group_file(m->g, m->weight), m->tensor, m->g->raws->v[m->weight].dtype->name,
                       m->scales != CKPT_NONE ? "scales" : "an entry in config.json's ",
                       m->scales != CKPT_NONE ? "" : m->g->field);
    }
    return true;
}

static bool group_weight(module *m, sl_error *err) {
    const ckpt_raw *w = &m->g->raws->v[m->weight];
    size_t n = strlen(w->name) - strlen(".weight");
    m->tensor = w->name;
    m->name = sl_strndup(w->name, n);
    if (!m->name) {
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", m->g->config_path);
    }
    m->own = json_object_get(m->g->quant, m->name);
    bool ok = group_find(m->g, m->name, n, ".scales", &m->scales, err) &&
              group_find(m->g, m->name, n, ".biases", &m->biases, err);
    if (ok) {
        ok = strcmp(w->dtype->name, "U32") == 0 ? group_words(m, err) : check_unpacked(m, err);
    }
    free(m->name);
    return ok;
}

/* Next-token heads and vision encoders are put beside a text model from elsewhere, quantised otherwise than config.json
 * says of the rest. Nothing reads them. */
static bool is_beside(const char *name) {
    static const char *const begins[] = {"mtp.", "language_model.mtp.", "vision_tower.", "model.visual."};
    for (size_t i = 0; i < SL_COUNT(begins); i++) {
        if (strncmp(name, begins[i], strlen(begins[i])) == 0) {
            return true;
        }
    }
    return false;
}

bool mlx_group(group *g, sl_error *err) {
    for (size_t i = 0; i < g->raws->count; i++) {
        module m = {.g = g, .weight = i};
        const char *name = g->raws->v[i].name;
        if (ckpt_has_suffix(name, ".weight") && !is_beside(name) && !group_weight(&m, err)) {
            return false;
        }
    }
    return true;
}

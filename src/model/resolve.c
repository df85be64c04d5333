/* Binds tensors to their roles: each is looked up by the tables, its shape compared with the configuration, and laid
 * out in the resident span. */
#include "model/model_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void model_mark_used(sl_model *m, const sl_tensor *t) {
    size_t i = (size_t)(t - sl_ckpt_tensor(m->ckpt, 0));
    if (i < sl_ckpt_tensor_count(m->ckpt))
        m->used[i] = 1;
}

const char *model_tensor_file(const sl_model *m, const sl_tensor *t) {
    return sl_ckpt_file(m->ckpt, t->part[0].file)->path;
}

/* Shape a role must have: rows 0 is a vector of cols. */
typedef struct expected {
    role role;
    int64_t rows, cols;
    bool optional;
} expected;

static bool shape_error(const sl_model *m, const sl_tensor *t, int64_t rows, int64_t cols, sl_error *err) {
    char found[96] = "";
    size_t used = 0;
    for (int32_t i = 0; i < t->dims && used < sizeof found; i++)
        used += (size_t)snprintf(found + used, sizeof found - used, "%s%lld", i ? "x" : "", (long long)t->shape[i]);
    if (rows)
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s has shape %s, the configuration gives %lldx%lld",
                       model_tensor_file(m, t), t->name, found, (long long)rows, (long long)cols);
    return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s has shape %s, the configuration gives %lld",
                   model_tensor_file(m, t), t->name, found, (long long)cols);
}

static bool is_vector(const sl_tensor *t, int64_t n) {
    return (t->dims == 1 && t->shape[0] == n) || (t->dims == 2 && t->shape[0] == 1 && t->shape[1] == n);
}

/* What no writer quantises: norms, biases, and in GGUF the router. Such a format is a damaged type. */
static bool check_float(const sl_model *m, const sl_tensor *t, sl_error *err) {
    const sl_format *f = sl_format_get(t->format);
    return f->block_weights == 1 ||
           sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s is %s, a float format expected (a damaged type?)",
                   model_tensor_file(m, t), t->name, f->name);
}

static bool bind_vector(sl_model *m, resident *r, int64_t n, sl_error *err) {
    if (!is_vector(r->tensor, n))
        return shape_error(m, r->tensor, 0, n, err);
    if (!check_float(m, r->tensor, err))
        return false;
    r->vector = true;
    r->weight.matrix = (sl_matrix){.format = SL_F32, .rows = 1, .cols = n};
    return sl_matrix_layout(&r->weight.matrix, err) || sl_fail_prefix(err, "tensor %s", r->tensor->name);
}

static bool bind_matrix(sl_model *m, resident *r, int64_t rows, int64_t cols, sl_error *err) {
    const sl_tensor *t = r->tensor;
    bool row = rows == 1 && t->dims == 1 && t->shape[0] == cols;
    if (!row && (t->dims != 2 || t->shape[0] != rows || t->shape[1] != cols))
        return shape_error(m, t, rows, cols, err);
    return sl_tensor_matrix(t, &r->weight.matrix, err);
}

static bool bind(sl_model *m, resident *r, const expected *e, int32_t layer, sl_error *err) {
    char name[NAME_MAX_BYTES];
    role_name(e->role, sl_ckpt_get_kind(m->ckpt), layer, name);
    r->tensor = *name ? sl_ckpt_find(m->ckpt, name) : NULL;
    if (!r->tensor)
        return e->optional || sl_ckpt_require(m->ckpt, name, err) != NULL;
    model_mark_used(m, r->tensor);
    bool plain = e->role == ROLE_ROUTER || e->role == ROLE_SHARED_SIGMOID;
    if (plain && sl_ckpt_get_kind(m->ckpt) == SL_CKPT_GGUF && !check_float(m, r->tensor, err))
        return false;
    return e->rows ? bind_matrix(m, r, e->rows, e->cols, err) : bind_vector(m, r, e->cols, err);
}

static bool bind_all(sl_model *m, resident *slots, const expected *list, size_t n, int32_t layer, sl_error *err) {
    for (size_t i = 0; i < n; i++)
        if (!bind(m, &slots[list[i].role], &list[i], layer, err))
            return false;
    return true;
}

/* ---- roles outside layers -------------------------------------------------------------------------------------------
 */

/* The vocabulary is what the embedding has: GGUF need not store it (config.vocab is 0 then). */
static bool read_vocabulary(sl_model *m, sl_error *err) {
    char name[NAME_MAX_BYTES];
    role_name(ROLE_EMBED, sl_ckpt_get_kind(m->ckpt), 0, name);
    const sl_tensor *t = sl_ckpt_require(m->ckpt, name, err);
    if (!t)
        return false;
    if (t->dims != 2 || t->shape[0] < 1 || t->shape[0] > INT32_MAX)
        return shape_error(m, t, 1, m->config.hidden, err);
    if (m->config.vocab && m->config.vocab != t->shape[0])
        return shape_error(m, t, m->config.vocab, m->config.hidden, err);
    m->config.vocab = (int32_t)t->shape[0];
    return true;
}

static bool resolve_global(sl_model *m, sl_error *err) {
    if (!read_vocabulary(m, err))
        return false;
    int64_t h = m->config.hidden, v = m->config.vocab;
    bool gguf = sl_ckpt_get_kind(m->ckpt) == SL_CKPT_GGUF;
    const expected list[] = {
        {ROLE_EMBED, v, h, false},
        {ROLE_FINAL_NORM, 0, h, false},
        {ROLE_HEAD, v, h, gguf || m->config.tied},
        {ROLE_ROPE_FREQS, 0, m->config.rope_dims / 2, true},
    };
    if (!bind_all(m, m->global, list, SL_COUNT(list), 0, err))
        return false;
    /* A tied checkpoint may still carry lm_head.weight: transformers then uses the embedding. */
    if (!gguf && m->config.tied)
        m->global[ROLE_HEAD].tensor = NULL;
    m->config.tied = !m->global[ROLE_HEAD].tensor;
    return true;
}

/* ---- a layer
 * ---------------------------------------------------------------------------------------------------------- */

static bool resolve_attention(sl_model *m, int32_t layer, sl_error *err) {
    const sl_model_config *c = &m->config;
    int64_t h = c->hidden, q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
    const expected list[] = {{ROLE_ATTN_NORM, 0, h, false}, {ROLE_Q, q, h, false}, {ROLE_K, kv, h, false},
                             {ROLE_V, kv, h, false},        {ROLE_O, h, q, false}, {ROLE_FFN_NORM, 0, h, false}};
    const expected norms[] = {{ROLE_Q_NORM, 0, c->head_dim, false}, {ROLE_K_NORM, 0, c->head_dim, false}};
    bool may_lack = m->biases == BIASES_OPTIONAL;
    const expected biased[] = {{ROLE_Q_BIAS, 0, q, may_lack},
                               {ROLE_K_BIAS, 0, kv, may_lack},
                               {ROLE_V_BIAS, 0, kv, may_lack},
                               {ROLE_O_BIAS, 0, h, may_lack}};
    size_t bias_count = m->biases == BIASES_NONE ? 0 : SL_COUNT(biased) - !m->arch->bias_of_o;
    resident *r = m->layers[layer].r;
    return bind_all(m, r, list, SL_COUNT(list), layer, err) && bind_all(m, r, biased, bias_count, layer, err) &&
           (!m->arch->qk_norm || bind_all(m, r, norms, SL_COUNT(norms), layer, err));
}

static bool resolve_dense(sl_model *m, int32_t layer, sl_error *err) {
    const sl_model_config *c = &m->config;
    if (c->ffn < 1)
        return sl_fail(err, SL_ERR_FORMAT, "%s: layer %d is dense, but the configuration has no FFN size",
                       sl_ckpt_path(m->ckpt), layer);
    const expected list[] = {{ROLE_GATE, c->ffn, c->hidden, false},
                             {ROLE_UP, c->ffn, c->hidden, false},
                             {ROLE_DOWN, c->hidden, c->ffn, false}};
    return bind_all(m, m->layers[layer].r, list, SL_COUNT(list), layer, err);
}

/* GGUF files need not store the shared expert's width: its tensor has it. */
static int64_t shared_width(const sl_model *m, int32_t layer) {
    char name[NAME_MAX_BYTES];
    role_name(ROLE_SHARED_GATE, sl_ckpt_get_kind(m->ckpt), layer, name);
    const sl_tensor *t = sl_ckpt_find(m->ckpt, name);
    return m->config.shared_ffn ? m->config.shared_ffn : t && t->dims == 2 ? t->shape[0] : 0;
}

static bool resolve_moe(sl_model *m, int32_t layer, sl_error *err) {
    sl_model_config *c = &m->config;
    const expected router[] = {{ROLE_ROUTER, c->experts, c->hidden, false}};
    if (!bind_all(m, m->layers[layer].r, router, 1, layer, err) || !model_resolve_experts(m, layer, err))
        return false;
    if (!m->arch->shared_expert)
        return true;
    int64_t width = shared_width(m, layer);
    if (width < 1)
        return true; /* a configuration of size 0: no shared expert */
    if (width > 1 << 22)
        return sl_fail(err, SL_ERR_FORMAT, "%s: layer %d has a shared expert of %lld rows, at most %d expected",
                       sl_ckpt_path(m->ckpt), layer, (long long)width, 1 << 22);
    c->shared_ffn = (int32_t)width;
    const expected shared[] = {
        {ROLE_SHARED_GATE, width, c->hidden, false},
        {ROLE_SHARED_UP, width, c->hidden, false},
        {ROLE_SHARED_DOWN, c->hidden, width, false},
        {ROLE_SHARED_SIGMOID, 1, c->hidden, false},
    };
    return bind_all(m, m->layers[layer].r, shared, SL_COUNT(shared), layer, err);
}

/* In GGUF a layer is dense when it has a dense gate tensor. */
static bool layer_is_moe(const sl_model *m, int32_t layer) {
    char name[NAME_MAX_BYTES];
    role_name(ROLE_GATE, SL_CKPT_GGUF, layer, name);
    return !m->dense[layer] && !(sl_ckpt_get_kind(m->ckpt) == SL_CKPT_GGUF && sl_ckpt_find(m->ckpt, name));
}

static bool resolve_layer(sl_model *m, int32_t layer, sl_error *err) {
    model_layer *l = &m->layers[layer];
    l->moe = layer_is_moe(m, layer);
    l->moe_index = l->moe ? m->config.moe_layers++ : -1;
    return resolve_attention(m, layer, err) && (l->moe ? resolve_moe(m, layer, err) : resolve_dense(m, layer, err));
}

/* ---- the resident span
 * -------------------------------------------------------------------------------------------------- */

enum { WEIGHT_ALIGN = 64 };

static void place(sl_model *m, resident *r) {
    if (!r->tensor)
        return;
    const sl_matrix *x = &r->weight.matrix;
    for (int i = 0; i < (r->vector ? 1 : r->tensor->parts); i++) {
        r->weight.offset[i] = m->resident_bytes;
        m->resident_bytes = sl_round_up(m->resident_bytes + (uint64_t)x->rows * x->row_bytes[i], WEIGHT_ALIGN);
    }
}

void model_place(sl_model *m) {
    m->resident_bytes = 0;
    for (int i = 0; i < ROLE_LAYER_FIRST; i++)
        place(m, &m->global[i]);
    for (int32_t l = 0; l < m->config.layers; l++)
        for (int i = ROLE_LAYER_FIRST; i < ROLE_COUNT; i++)
            place(m, &m->layers[l].r[i]);
}

/* Every tensor of the file must have a use: one that nothing reads means that the model is not what it says. */
static bool check_unused(const sl_model *m, sl_error *err) {
    for (size_t i = 0; i < sl_ckpt_tensor_count(m->ckpt); i++) {
        const sl_tensor *t = sl_ckpt_tensor(m->ckpt, i);
        if (!m->used[i] && !tensor_ignorable(t->name))
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "%s: tensor %s has no place in architecture %s with this configuration",
                           model_tensor_file(m, t), t->name, m->arch->name);
    }
    return true;
}

static void list_formats(sl_model *m) {
    bool seen[SL_FORMAT_COUNT] = {0};
    for (size_t i = 0; i < sl_ckpt_tensor_count(m->ckpt); i++) {
        const sl_tensor *t = sl_ckpt_tensor(m->ckpt, i);
        seen[t->format] = seen[t->format] || t->dims >= 2;
    }
    /* A pack's experts are no tensors. */
    for (int32_t l = 0; l < m->config.layers; l++)
        for (int proj = 0; m->layers[l].moe && proj < SL_PROJ_COUNT; proj++)
            seen[m->layers[l].proj[proj].format] = true;
    size_t used = 0;
    for (int i = 0; i < SL_FORMAT_COUNT; i++)
        if (seen[i] && used < sizeof m->formats)
            used += (size_t)snprintf(m->formats + used, sizeof m->formats - used, "%s%s", used ? ", " : "",
                                     sl_format_get((sl_format_id)i)->name);
}

bool model_resolve(sl_model *m, sl_error *err) {
    const sl_model_config *c = &m->config;
    m->layers = calloc((size_t)c->layers, sizeof *m->layers);
    m->experts = calloc((size_t)c->layers, sizeof *m->experts);
    m->used = calloc(sl_ckpt_tensor_count(m->ckpt) + 1, 1);
    if (!m->layers || !m->experts || !m->used)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory");
    if (!resolve_global(m, err))
        return false;
    for (int32_t l = 0; l < c->layers; l++)
        if (!resolve_layer(m, l, err))
            return false;
    if (!check_unused(m, err))
        return false;
    model_place(m);
    list_formats(m);
    return true;
}

/* Where the routed experts' bytes are: extents out of whichever naming the checkpoint uses. */
#include "model/bind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const proj_names[SL_PROJ_COUNT] = {"gate", "up", "down"};

/* The naming whose gate tensor this layer has. */
static const expert_naming *find_naming(const sl_model *m, int32_t layer) {
    char name[NAME_MAX_BYTES];
    for (int i = 0; i < expert_naming_count; i++) {
        const expert_naming *n = &expert_namings[i];
        expert_name(&m->naming, n, SL_PROJ_GATE, layer, 0, name);
        if (n->kind == sl_ckpt_get_kind(m->ckpt) && sl_ckpt_find(m->ckpt, name))
            return n;
    }
    return NULL;
}

static bool no_experts(const sl_model *m, int32_t layer, sl_error *err) {
    char first[NAME_MAX_BYTES] = "";
    for (int i = 0; i < expert_naming_count && !*first; i++)
        if (expert_namings[i].kind == sl_ckpt_get_kind(m->ckpt))
            expert_name(&m->naming, &expert_namings[i], SL_PROJ_GATE, layer, 0, first);
    return sl_fail(err, SL_ERR_FORMAT, "%s: layer %d has no routed experts: tensor %s or a stacked form of it expected",
                   sl_ckpt_path(m->ckpt), layer, first);
}

/* The matrix tensor of one projection of one expert. */
static bool expert_tensor(sl_model *m, const expert_naming *n, int proj, int32_t layer, int32_t expert, sl_tensor *out,
                          sl_error *err) {
    char name[NAME_MAX_BYTES];
    expert_name(&m->naming, n, proj, layer, expert, name);
    const sl_tensor *t = sl_ckpt_require(m->ckpt, name, err);
    if (!t)
        return false;
    model_mark_used(m, t);
    *out = *t;
    if (n->stacked) {
        if (t->dims != 3 || t->shape[0] != m->config.experts)
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s: tensor %s has %d dimensions, outermost %lld; [%d experts][rows][cols] expected",
                           model_tensor_file(m, t), name, t->dims, (long long)t->shape[0], m->config.experts);
        if (!sl_tensor_slice(t, expert, out, err))
            return false;
    }
    if (n->fused && proj != SL_PROJ_DOWN && !m->arch->alternating) {
        if (out->dims != 2 || out->shape[0] % 2)
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s: tensor %s has %lld rows per expert, an even number (gate, then up) expected",
                           model_tensor_file(m, t), name, (long long)out->shape[0]);
        const sl_tensor both = *out;
        int64_t rows = both.shape[0] / 2;
        if (!sl_tensor_rows(&both, proj == SL_PROJ_GATE ? 0 : rows, rows, out, err))
            return sl_fail_prefix(err, "%s", model_tensor_file(m, t));
    }
    return true;
}

/* "AFFINE4 in groups of 64 with BF16 scales" */
static const char *layout_text(const sl_matrix *m, char out[64]) {
    const char *name = sl_format_get(m->format)->name;
    if (sl_format_is_affine(m->format) || m->format == SL_FP8)
        snprintf(out, 64, "%s in groups of %d with %s scales", name, m->group, sl_format_get(m->side)->name);
    else
        snprintf(out, 64, "%s", name);
    return out;
}

static bool same_layout(const sl_matrix *a, const sl_matrix *b) {
    return a->format == b->format && a->group == b->group && a->side == b->side && a->rows == b->rows &&
           a->cols == b->cols;
}

/* Checks an expert's matrix against the configuration and against its layer's other experts. */
static bool check_projection(sl_model *m, const sl_tensor *t, int proj, int32_t layer, int32_t expert, sl_error *err) {
    sl_model_config *c = &m->config;
    if (t->dims != 2)
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor %s: a matrix expected, %d dimensions found",
                       model_tensor_file(m, t), t->name, t->dims);
    if (c->expert_ffn == 0) /* not in the configuration: the first tensor's, which all others must then have */
        c->expert_ffn = (int32_t)sl_min_i64(t->shape[proj == SL_PROJ_DOWN], 1 << 22);
    int64_t rows = proj == SL_PROJ_DOWN ? c->hidden : c->expert_ffn,
            cols = proj == SL_PROJ_DOWN ? c->expert_ffn : c->hidden;
    if (m->layers[layer].alternating && proj == SL_PROJ_GATE)
        rows *= 2;
    if (t->shape[0] != rows || t->shape[1] != cols)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: tensor %s: %s of expert %d is %lldx%lld, the configuration gives %lldx%lld",
                       model_tensor_file(m, t), t->name, proj_names[proj], expert, (long long)t->shape[0],
                       (long long)t->shape[1], (long long)rows, (long long)cols);
    sl_matrix layout;
    char found[64], first[64];
    if (!sl_tensor_matrix(t, &layout, err))
        return false;
    if (expert > 0 && !same_layout(&layout, &m->layers[layer].proj[proj]))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: tensor %s is %s, expert 0 of the same layer is %s",
                       model_tensor_file(m, t), t->name, layout_text(&layout, found),
                       layout_text(&m->layers[layer].proj[proj], first));
    m->layers[layer].proj[proj] = layout;
    return true;
}

/* A pack says where its experts are: no tensor has to be found. */
static bool resolve_packed(sl_model *m, const sl_packed_experts *p, int32_t layer, sl_error *err) {
    sl_model_experts *e = &m->experts[m->layers[layer].moe_index];
    if (p->experts != m->config.experts)
        return sl_fail(err, SL_ERR_FORMAT, "%s: layer %d has %d experts, the configuration gives %d",
                       sl_ckpt_path(m->ckpt), layer, p->experts, m->config.experts);
    size_t n = (size_t)p->experts * SL_EXPERT_PARTS;
    sl_extent *extents = malloc(n * sizeof *extents);
    e->experts = p->experts;
    e->extent = extents;
    if (!extents)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory");
    memcpy(extents, p->extent, n * sizeof *extents);
    for (int proj = 0; proj < SL_PROJ_COUNT; proj++) {
        char name[32];
        sl_tensor t = p->proj[proj];
        snprintf(name, sizeof name, "layer %d %s", layer, proj_names[proj]);
        t.name = name;
        if (!check_projection(m, &t, proj, layer, 0, err))
            return false;
        m->expert_bytes += (uint64_t)p->experts * sl_tensor_bytes(&t);
    }
    return true;
}

bool model_resolve_experts(sl_model *m, int32_t layer, sl_error *err) {
    const sl_packed_experts *packed = sl_ckpt_packed(m->ckpt, layer);
    if (packed)
        return resolve_packed(m, packed, layer, err);
    const expert_naming *n = find_naming(m, layer);
    if (!n)
        return no_experts(m, layer, err);
    m->layers[layer].alternating = n->fused && m->arch->alternating;
    sl_model_experts *e = &m->experts[m->layers[layer].moe_index];
    sl_extent *extents = calloc((size_t)m->config.experts * SL_EXPERT_PARTS, sizeof *extents);
    e->experts = m->config.experts;
    e->extent = extents;
    if (!extents)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory");
    for (int32_t x = 0; x < m->config.experts; x++) {
        for (int proj = 0; proj < SL_PROJ_COUNT; proj++) {
            sl_tensor t;
            if (m->layers[layer].alternating && proj == SL_PROJ_UP)
                continue; /* its rows are among those of gate */
            if (!expert_tensor(m, n, proj, layer, x, &t, err) || !check_projection(m, &t, proj, layer, x, err))
                return false;
            for (int32_t i = 0; i < t.parts; i++) {
                extents[x * SL_EXPERT_PARTS + proj * 3 + i] = t.part[i];
                m->expert_bytes += t.part[i].bytes;
            }
        }
    }
    return true;
}

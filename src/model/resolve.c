/* From names to a model: every tensor bound, the resident ones laid out in one span, none left over. */
#include "model/bind.h"
#include "model/block.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- roles outside layers -------------------------------------------------------------------------------------------
 */

/* A tied checkpoint may have the head's matrix alone. */
static bool has_head_alone(const sl_model *m) {
    return !model_is_gguf(m) && m->config.tied && !bind_find(m, ROLE_EMBED, 0) && bind_find(m, ROLE_HEAD, 0);
}

/* The vocabulary is what the embedding has: GGUF need not store it (config.vocab is 0 then). */
static bool read_vocabulary(sl_model *m, sl_error *err) {
    char name[NAME_MAX_BYTES];
    role_name(&m->naming, has_head_alone(m) ? ROLE_HEAD : ROLE_EMBED, 0, name);
    const sl_tensor *t = sl_ckpt_require(m->ckpt, name, err);
    if (!t)
        return false;
    if (t->dims != 2 || t->shape[0] < 1 || t->shape[0] > INT32_MAX)
        return bind_shape_error(m, t, 1, m->config.hidden, err);
    if (m->config.vocab && m->config.vocab != t->shape[0])
        return bind_shape_error(m, t, m->config.vocab, m->config.hidden, err);
    m->config.vocab = (int32_t)t->shape[0];
    return true;
}

/* Whether norms are stored as trained, around zero, is seen by the convolution of the first delta layer: what converts
 * to MLX folds the norms and turns [channels][1][kernel] to [channels][kernel][1] in one go. (Not by whether mtp.* is
 * there: converters leave that out, or add it to what is folded.) GGUF is always folded. */
static bool find_norm_form(sl_model *m, sl_error *err) {
    char name[NAME_MAX_BYTES];
    int32_t layer = 0;
    if (model_is_gguf(m) || !m->arch->zero_centred)
        return true;
    while (layer < m->config.layers && m->mixers[layer] != MIXER_DELTA)
        layer++;
    if (layer == m->config.layers)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: no layer is linear attention: nothing tells whether its norms are w or 1 + w",
                       sl_ckpt_path(m->ckpt));
    role_name(&m->naming, ROLE_DELTA_CONV, layer, name);
    const sl_tensor *t = sl_ckpt_require(m->ckpt, name, err);
    if (!t)
        return false;
    int64_t kernel = m->config.delta_kernel;
    bool raw = t->dims == 3 && t->shape[1] == 1 && t->shape[2] == kernel,
         mlx = t->dims == 3 && t->shape[1] == kernel && t->shape[2] == 1;
    m->one_plus = raw;
    return raw || mlx ||
           bind_shape_error(m, t,
                            2 * (int64_t)m->config.delta_key_heads * m->config.delta_key_dim +
                                (int64_t)m->config.delta_value_heads * m->config.delta_value_dim,
                            kernel, err);
}

static bool resolve_global(sl_model *m, sl_error *err) {
    if (!read_vocabulary(m, err) || !find_norm_form(m, err))
        return false;
    int64_t h = m->config.hidden, v = m->config.vocab;
    bool gguf = model_is_gguf(m);
    bool head_alone = has_head_alone(m);
    const expected list[] = {
        {ROLE_EMBED, v, h, head_alone},
        {ROLE_FINAL_NORM, 0, h, false},
        {ROLE_HEAD, v, h, gguf || m->config.tied},
        {ROLE_ROPE_FREQS, 0, m->config.rope_dims / 2, true},
    };
    if (!bind_all(m, m->global, list, SL_COUNT(list), 0, err))
        return false;
    /* As transformers 5 does: a tied checkpoint that has both matrices is not tied (they would have to be read to see
     * whether they are the same, which gives the same answers), and one that has the head alone is tied to that. */
    if (head_alone) {
        m->global[ROLE_EMBED] = m->global[ROLE_HEAD];
        m->global[ROLE_HEAD].tensor = NULL;
    }
    m->config.tied = !m->global[ROLE_HEAD].tensor;
    return true;
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

/* In GGUF a layer is dense when it has a dense gate tensor. */
static bool layer_is_moe(const sl_model *m, int32_t layer) {
    return !m->dense[layer] && !(model_is_gguf(m) && bind_find(m, ROLE_GATE, layer));
}

static bool resolve_layer(sl_model *m, int32_t layer, sl_error *err) {
    model_layer *l = &m->layers[layer];
    sl_model_config *c = &m->config;
    int32_t *const counts[MIXER_COUNT] = {
        [MIXER_ATTENTION] = &c->attention_layers, [MIXER_DELTA] = &c->delta_layers, [MIXER_MLA] = &c->attention_layers};
    l->moe = layer_is_moe(m, layer);
    l->moe_index = l->moe ? c->moe_layers++ : -1;
    l->mixer = block_mixers[m->mixers[layer]];
    l->mixer_index = (*counts[m->mixers[layer]])++;
    l->ffn = l->moe ? &block_moe : &block_dense;
    return l->mixer->resolve(m, layer, err) && l->ffn->resolve(m, layer, err);
}

/* ---- the resident span --------------------------------------------------------------------------------------------
 */

enum { WEIGHT_ALIGN = 64 };

static void place(sl_model *m, resident *r) {
    if (!r->tensor)
        return;
    for (int i = 0; i < (r->vector ? 1 : r->tensor->parts); i++) {
        r->weight.offset[i] = m->resident_bytes;
        m->resident_bytes = sl_round_up(m->resident_bytes + sl_matrix_part_bytes(&r->weight.matrix, i), WEIGHT_ALIGN);
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

/* ---- what is left over ------------------------------------------------------------------------------------------- */

/* Tensors of a larger model around this one, and of its layers that predict further tokens. */
static bool is_outside(const sl_model *m, const char *name) {
    int32_t layer = name_layer(&m->naming, name);
    for (const char *const *p = m->arch->ignored; p && *p; p++)
        if (strncmp(name, *p, strlen(*p)) == 0)
            return true;
    return layer >= m->config.layers && layer < m->config.layers + m->config.nextn_layers;
}

/* Every tensor of the file must have a use: one that nothing reads means that the model is not what it says. */
static bool check_unused(const sl_model *m, sl_error *err) {
    for (size_t i = 0; i < sl_ckpt_tensor_count(m->ckpt); i++) {
        const sl_tensor *t = sl_ckpt_tensor(m->ckpt, i);
        if (!m->used[i] && !name_ignorable(t->name) && !is_outside(m, t->name))
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
        seen[t->format] = seen[t->format] || (m->used[i] && t->dims >= 2);
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
    m->naming = (naming){sl_ckpt_get_kind(m->ckpt), name_scheme_of(m->ckpt), m->arch->aliases};
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

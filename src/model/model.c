/* A model's life: open (names and shapes), load (bytes), forward. */
#include "model/model_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

sl_model *sl_model_open(const sl_ckpt *c, sl_error *err) {
    sl_model *m = calloc(1, sizeof *m);
    if (!m)
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory");
    m->ckpt = c;
    if (!model_read_config(m, err) || !model_resolve(m, err)) {
        sl_model_free(m);
        return NULL;
    }
    return m;
}

void sl_model_free(sl_model *m) {
    if (!m)
        return;
    sl_program_free(m->program);
    if (m->ops && m->weights_buffer)
        sl_ops_unwrap(m->ops, m->weights_buffer);
    if (m->mem)
        sl_mem_span_free(m->mem, m->weights);
    for (int32_t i = 0; m->experts && i < m->config.layers; i++)
        free((void *)m->experts[i].extent);
    free(m->experts);
    free(m->layers);
    free(m->mixers);
    free(m->dense);
    free(m->windowed);
    free(m->used);
    free(m->inv_freq);
    free(m);
}

const sl_model_config *sl_model_config_get(const sl_model *m) {
    return &m->config;
}

bool sl_model_set_top_k(sl_model *m, int32_t top_k, sl_error *err) {
    if (top_k == 0)
        return true;
    if (m->weights)
        return sl_fail(err, SL_ERR_ARGUMENT, "experts per token: %s is loaded already", sl_ckpt_path(m->ckpt));
    if (m->config.moe_layers == 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "experts per token: architecture %s has no routed experts", m->arch->name);
    if (top_k < 1 || top_k > m->config.experts)
        return sl_fail(err, SL_ERR_ARGUMENT, "experts per token: %d, 1 to %d expected", top_k, m->config.experts);
    m->config.top_k = top_k;
    return true;
}

uint64_t sl_model_resident_bytes(const sl_model *m) {
    return m->resident_bytes;
}
uint64_t sl_model_token_bytes(const sl_model *m) {
    const sl_matrix *embed = &m->global[ROLE_EMBED].weight.matrix;
    uint64_t unread = 0; /* all rows of the embedding but the token's, unless the head is the same matrix */
    for (int i = 0; m->global[ROLE_HEAD].tensor && i < m->global[ROLE_EMBED].tensor->parts; i++)
        unread += (uint64_t)(embed->rows - 1) * embed->row_bytes[i];
    return m->resident_bytes - unread;
}
uint64_t sl_model_expert_bytes(const sl_model *m) {
    return m->expert_bytes;
}
const char *sl_model_unknown_keys(const sl_model *m) {
    return m->unknown_keys;
}

const char *sl_model_formats(const sl_model *m) {
    return m->formats;
}

const sl_model_experts *sl_model_expert_layers(const sl_model *m, int32_t *count) {
    *count = m->config.moe_layers;
    return m->experts;
}

const sl_matrix *sl_model_expert_matrices(const sl_model *m, int32_t i, int32_t *layer) {
    int32_t l = 0;
    while (m->layers[l].moe_index != i)
        l++;
    *layer = l;
    return m->layers[l].proj;
}

bool sl_model_experts_alternate(const sl_model *m, int32_t i) {
    int32_t layer;
    sl_model_expert_matrices(m, i, &layer);
    return m->layers[layer].alternating;
}

bool sl_model_uses(const sl_model *m, size_t tensor) {
    return m->used[tensor];
}

bool sl_model_kv_layout(const sl_model *m, sl_kv_format format, sl_kv_layout *out, sl_error *err) {
    const sl_model_config *c = &m->config;
    *out = (sl_kv_layout){.format = format,
                          .layers = c->attention_layers,
                          .kv_heads = c->kv_heads,
                          .head_dim = c->head_dim,
                          .planes = c->kv_lora ? 1 : 2};
    if (format == SL_KV_Q8_0 && c->head_dim % 32)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "kv-type q8_0: head_dim %d is not a multiple of 32", c->head_dim);
    return true;
}

void sl_model_state(const sl_model *m, bool keeps, sl_state_layout *out) {
    const sl_model_config *c = &m->config;
    *out = (sl_state_layout){.layers = c->delta_layers,
                             .key_heads = c->delta_key_heads,
                             .value_heads = c->delta_value_heads,
                             .key_dim = c->delta_key_dim,
                             .value_dim = c->delta_value_dim,
                             .kernel = c->delta_kernel,
                             .keeps = keeps};
}

/* By the bits, so that many are looked at at once. */
static bool all_finite(const float *v, int32_t n) {
    const uint32_t exponent = 0x7f800000;
    uint32_t bad = 0;
    for (int32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i], sizeof bits);
        bad |= (bits & exponent) == exponent;
    }
    return !bad;
}

/* Logits that are not numbers would be sampled into fluent garbage. The row and what to suspect are named. */
static bool check_logits(const sl_model *m, const sl_step *step, sl_error *err) {
    for (int32_t i = 0; i < step->outs; i++) {
        const float *l = step->logits + (int64_t)i * m->config.vocab;
        if (step->row_failed && step->row_failed[step->out_rows[i]])
            continue;
        if (!all_finite(l, m->config.vocab))
            return sl_fail(err, SL_ERR_NUMERIC,
                           "%s: logits of token %d at position %d are not finite: damaged weights?",
                           sl_ckpt_path(m->ckpt), step->token[step->out_rows[i]], step->position[step->out_rows[i]]);
    }
    return true;
}

static bool check_tokens(const sl_model *m, const sl_step *step, sl_error *err) {
    for (int32_t i = 0; i < step->rows; i++)
        if (step->token[i] < 0 || step->token[i] >= m->config.vocab)
            return sl_fail(err, SL_ERR_ARGUMENT, "token %d of row %d: vocabulary has ids 0 to %d", step->token[i], i,
                           m->config.vocab - 1);
    return true;
}

bool sl_model_forward(sl_model *m, sl_step *step, sl_error *err) {
    if (!m->program)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: the model is not loaded", sl_ckpt_path(m->ckpt));
    return check_tokens(m, step, err) && sl_program_run(m->program, step, err) && check_logits(m, step, err);
}

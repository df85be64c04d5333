/* The forward pass, recorded once: embedding, layers of a mixer and an FFN, norm, head. */
#include "model/block.h"

/* What lies outside of blocks, and where blocks' own activations begin. */
typedef struct activations {
    recorder r;     /* without its program */
    sl_view out;    /* [outs][hidden] */
    uint64_t bytes; /* of all of it */
} activations;

/* Blocks' activations lie in one place, since one block runs at a time. */
static void take_blocks(const sl_model *m, activations *a) {
    a->bytes = a->r.own.bytes;
    for (int32_t l = 0; l < m->config.layers; l++) {
        const block *const blocks[] = {m->layers[l].mixer, m->layers[l].ffn};
        for (size_t i = 0; i < SL_COUNT(blocks); i++) {
            area own = a->r.own;
            blocks[i]->take(m, &own);
            a->bytes = own.bytes > a->bytes ? own.bytes : a->bytes;
        }
    }
}

static activations lay_out(const sl_model *m, sl_buffer buffer, int32_t max_rows, int32_t max_outs) {
    area all = {.buffer = buffer, .max_rows = max_rows}, outs = {.buffer = buffer, .max_rows = max_outs};
    activations a = {.r = {.residual = area_take(&all, m->config.hidden)}};
    a.r.normed = area_take(&all, m->config.hidden);
    outs.bytes = all.bytes;
    a.out = area_take(&outs, m->config.hidden);
    a.out.rows = SL_ROWS_OUT;
    all.bytes = outs.bytes;
    a.r.own = all;
    take_blocks(m, &a);
    return a;
}

uint64_t model_view_bytes(const sl_model *m, int32_t max_rows, int32_t max_outs) {
    return lay_out(m, 0, max_rows, max_outs).bytes;
}

static void record_layer(const sl_model *m, const recorder *r, int32_t layer) {
    const model_layer *l = &m->layers[layer];
    float eps = m->config.norm_eps;
    sl_op_checkpoint(r->program, layer);
    sl_op_rms_norm(r->program, r->normed, r->residual, &l->r[ROLE_ATTN_NORM].weight, eps);
    l->mixer->record(m, r, layer);
    sl_op_rms_norm(r->program, r->normed, r->residual, &l->r[ROLE_FFN_NORM].weight, eps);
    l->ffn->record(m, r, layer);
}

bool sl_model_accepted(const sl_model *m, const sl_ops *ops, sl_error *err) {
    const sl_model_config *c = &m->config;
    for (int32_t l = 0; l < c->layers; l++) {
        const model_layer *layer = &m->layers[l];
        bool recurs = layer->mixer == &block_delta, latent = layer->mixer == &block_mla;
        sl_attention a = {.layer = layer->mixer_index, .head_dim = c->head_dim, .value_dim = latent ? c->kv_lora : 0};
        sl_delta delta = recurs ? block_delta_op(m, l) : (sl_delta){0};
        sl_moe moe = layer->moe ? block_moe_op(m, l) : (sl_moe){0};
        if (!sl_ops_accepts(ops, recurs ? NULL : &a, layer->moe ? &moe : NULL, recurs ? &delta : NULL, err))
            return sl_fail_prefix(err, "%s", sl_ckpt_path(m->ckpt));
    }
    return true;
}

/* Records the pass over views in `scratch`; errors are kept in the program. NULL: an error. */
static sl_program *record_pass(const sl_model *m, sl_ops *ops, sl_buffer scratch, int32_t max_rows, int32_t max_outs,
                               sl_error *err) {
    sl_program *p = sl_program_new(ops, max_rows, max_outs, err);
    if (!p)
        return NULL;
    activations a = lay_out(m, scratch, max_rows, max_outs);
    a.r.program = p;
    const resident *head = m->global[ROLE_HEAD].tensor ? &m->global[ROLE_HEAD] : &m->global[ROLE_EMBED];
    sl_op_embed(p, a.r.residual, &m->global[ROLE_EMBED].weight);
    for (int32_t layer = 0; layer < m->config.layers; layer++)
        record_layer(m, &a.r, layer);
    sl_op_gather_outs(p, a.out, a.r.residual);
    sl_op_rms_norm(p, a.out, a.out, &m->global[ROLE_FINAL_NORM].weight, m->config.norm_eps);
    sl_op_logits(p, a.out, &head->weight);
    return p;
}

bool model_record(sl_model *m, int32_t max_rows, int32_t max_outs, sl_error *err) {
    m->scratch = sl_ops_scratch(m->ops, model_view_bytes(m, max_rows, max_outs), err);
    if (m->scratch)
        m->program = record_pass(m, m->ops, m->scratch, max_rows, max_outs, err);
    return m->program && sl_program_end(m->program, err);
}

static void forget_pass(sl_model *m) {
    sl_program_free(m->program);
    sl_ops_scratch_free(m->ops, m->scratch);
    m->program = NULL;
    m->scratch = 0;
}

bool sl_model_fit_rows(sl_model *m, int32_t max_rows, int32_t max_outs, sl_error *err) {
    forget_pass(m);
    if (model_record(m, max_rows, max_outs, err))
        return true;
    forget_pass(m);
    return false;
}

/* The pass is recorded as it will be run, without anything in memory, and thrown away. */
uint64_t sl_model_scratch_bytes(const sl_model *m, sl_ops *ops, int32_t max_rows, int32_t max_outs, sl_error *err) {
    sl_program *p = record_pass(m, ops, 0, max_rows, max_outs, err);
    uint64_t own = p ? sl_program_scratch_bytes(p, err) : 0;
    sl_program_free(p);
    if (own)
        return sl_round_up(model_view_bytes(m, max_rows, max_outs), 4096) + own;
    sl_fail_prefix(err, "%s", sl_ckpt_path(m->ckpt));
    return 0;
}

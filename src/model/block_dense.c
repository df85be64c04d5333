/* A dense FFN: down(silu(gate(x)) * up(x)). */
#include "model/bind.h"
#include "model/block.h"

static bool resolve(sl_model *m, int32_t layer, sl_error *err) {
    const sl_model_config *c = &m->config;
    if (c->ffn < 1)
        return sl_fail(err, SL_ERR_FORMAT, "%s: layer %d is dense, but the configuration has no FFN size",
                       sl_ckpt_path(m->ckpt), layer);
    const expected list[] = {{ROLE_FFN_NORM, 0, c->hidden, false},
                             {ROLE_GATE, c->ffn, c->hidden, false},
                             {ROLE_UP, c->ffn, c->hidden, false},
                             {ROLE_DOWN, c->hidden, c->ffn, false}};
    return bind_all(m, m->layers[layer].r, list, SL_COUNT(list), layer, err);
}

static void take(const sl_model *m, area *a) {
    area_take(a, m->config.ffn);
}

static void record(const sl_model *m, const recorder *rec, int32_t layer) {
    const resident *r = m->layers[layer].r;
    area own = rec->own;
    sl_view inner = area_take(&own, m->config.ffn);
    const sl_linear down = {rec->residual, &r[ROLE_DOWN].weight, NULL, true};
    sl_op_gate_up(rec->program, inner, rec->normed, &r[ROLE_GATE].weight, &r[ROLE_UP].weight);
    sl_op_linear(rec->program, inner, &down, 1);
}

const block block_dense = {"dense", resolve, take, record};

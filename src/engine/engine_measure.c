/* What decoding will cost, measured before anything is loaded. */
#include "engine/internal.h"

#include <string.h>

static sl_kv_format kv_format(const sl_engine *e) {
    return strcmp(e->kv_type, "q8_0") == 0 ? SL_KV_Q8_0 : strcmp(e->kv_type, "f32") == 0 ? SL_KV_F32 : SL_KV_F16;
}

bool sl_engine_measure(sl_engine *e, uint64_t memory, double seconds, sl_decode_cost *out, sl_error *err) {
    const sl_model_config *c = sl_model_config_get(e->model);
    int32_t dense = c->layers - c->moe_layers;
    sl_model_cost with = {0}, without = {0};
    sl_model_measure_options o = {.ops = {.pool = e->pool, .isa = e->isa}, .kv = kv_format(e), .room = memory};
    bool exact = strcmp(e->numeric, "exact") == 0;
    o.ops.numeric = exact ? SL_NUMERIC_EXACT : SL_NUMERIC_Q8;
    o.ops.isa = exact ? NULL : e->isa;
    o.seconds = dense > 0 && c->moe_layers > 0 ? seconds / 2 : seconds;
    if (!e->options.plan_only || e->gpu)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "decoding is measured on the CPU, before weights are loaded");
    if ((c->moe_layers > 0 && !sl_model_measure(e->model, true, &o, &with, err)) ||
        (dense > 0 && !sl_model_measure(e->model, false, &o, &without, err)))
        return false;
    sl_decode_cost all = {.dense_seconds = (c->moe_layers > 0 ? with.head : without.head) + with.layer * c->moe_layers +
                                           without.layer * dense,
                          .expert_seconds = with.experts * c->moe_layers};
    return engine_give(out, &all, sizeof all);
}

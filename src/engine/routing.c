/* sl_engine_watch_routing: what rows chose, handed on from the moe operation. */
#include "engine/internal.h"

static void watch_routed(void *self, const sl_moe *m, const sl_step *step, const int32_t *ids, const float *weights) {
    const engine_routing *w = self;
    int32_t layer;
    sl_model_expert_matrices(w->e->model, m->layer, &layer);
    sl_routing r = {.moe_layer = m->layer,
                    .moe_layers = sl_model_config_get(w->e->model)->moe_layers,
                    .layer = layer,
                    .experts = m->experts,
                    .top_k = m->top_k,
                    .rows = step->rows,
                    .tokens = step->token,
                    .positions = step->position,
                    .chosen = ids,
                    .weights = weights};
    w->fn(w->user, &r);
}

typedef struct watch_call {
    sl_engine *e;
    engine_routing routing;
    sl_error *err;
    bool ok;
} watch_call;

static void switch_watch(void *ctx) {
    watch_call *c = ctx;
    c->e->routing = c->routing;
    sl_moe_watch watch = {.self = &c->e->routing, .routed = watch_routed};
    c->ok = sl_ops_watch_moe(c->e->ops, c->routing.fn ? &watch : NULL, c->err);
}

bool sl_engine_watch_routing(sl_engine *e, void (*fn)(void *user, const sl_routing *r), void *user, sl_error *err) {
    watch_call c = {.e = e, .routing = {e, fn, user}, .err = err};
    return engine_check_open(e, err) && engine_call_run(e, switch_watch, &c) && c.ok;
}

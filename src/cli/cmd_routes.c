/* sluice routes: which experts a text used, and what a cache of them would hit. */
#include "cli.h"
#include "routing.h"

#include <stdlib.h>

static json_t *layers_json(const routing *r, const routing_layer *layers) {
    json_t *list = json_array();
    for (int l = 0; l < r->layers; l++)
        json_array_append_new(list, json_pack("{s:i, s:i, s:f, s:f, s:f}", "layer", (int)r->layer[l], "used",
                                              layers[l].used, "busiest_tenth", layers[l].busiest, "effective",
                                              layers[l].effective, "again", layers[l].again));
    return list;
}

static json_t *curve_json(const routing_curve *c) {
    json_t *list = json_array();
    for (int i = 0; i < c->count; i++)
        json_array_append_new(list, json_pack("{s:i, s:f, s:f, s:f}", "experts", c->size[i], "lru", c->lru[i], "lfu",
                                              c->lfu[i], "best", c->best[i]));
    return list;
}

static int print_json(const routing *r, const routing_curve *c, const routing_layer *layers) {
    return cli_print_json(json_pack("{s:s, s:I, s:I, s:i, s:i, s:i, s:o, s:o}", "path", r->path, "tokens",
                                    (json_int_t)r->tokens, "warmup", (json_int_t)c->warmup, "layers", r->layers,
                                    "experts", r->experts, "experts_per_token", r->top_k, "per_layer",
                                    layers_json(r, layers), "hit_rates", curve_json(c)));
}

static int print_text(const routing *r, const routing_curve *c, const routing_layer *layers) {
    printf("%zu tokens; %d layers of %d experts, %d per token\n\n", r->tokens, r->layers, r->experts, r->top_k);
    printf("layer   used   busiest tenth   effective   again in the next token\n");
    for (int l = 0; l < r->layers; l++)
        printf("%5d  %5d         %5.1f %%      %6.1f                   %5.1f %%\n", (int)r->layer[l], layers[l].used,
               100 * layers[l].busiest, layers[l].effective, 100 * layers[l].again);
    printf("\nhit rate after %zu tokens, by what fits of all layers' experts (one token asks for %d)\n\n"
           "experts   share       LRU       LFU      best\n",
           c->warmup, r->layers * r->top_k);
    for (int i = 0; i < c->count; i++)
        printf("%7d  %5.1f %%   %5.1f %%   %5.1f %%   %5.1f %%\n", c->size[i],
               100.0 * c->size[i] / (r->layers * r->experts), 100 * c->lru[i], 100 * c->lfu[i], 100 * c->best[i]);
    return CLI_OK;
}

int cli_routes(const cli_args *a) {
    sl_error err = {0};
    routing r;
    routing_curve curve;
    uint32_t *uses = NULL;
    routing_layer *layers = NULL;
    bool ok = routing_read(&r, a->operand[0], &err);
    if (ok) {
        uses = calloc((size_t)r.layers * (size_t)r.experts, sizeof *uses);
        layers = calloc((size_t)r.layers, sizeof *layers);
        ok = (uses && layers) || sl_fail(&err, SL_ERR_MEMORY, "%s: out of memory", r.path);
    }
    if (ok)
        routing_layers(&r, uses, layers);
    ok = ok && (!a->svg || cli_may_replace(a->svg, &a->operand[0], 1, &err));
    ok = ok && routing_simulate(&r, &curve, &err) && (!a->svg || routing_draw(&r, &curve, uses, a->svg, &err));
    int status = !ok ? cli_report(&err) : a->json ? print_json(&r, &curve, layers) : print_text(&r, &curve, layers);
    free(uses);
    free(layers);
    routing_free(&r);
    return status;
}

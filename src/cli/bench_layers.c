/* What each layer with experts hit, read and waited for, over all repetitions of a benchmark's decode. */
#include "bench.h"

#include <stdlib.h>

bool bench_add_layers(const sl_engine *e, bench_result *r, sl_error *err) {
    size_t n = sl_engine_get_layer_stats(e, NULL, 0);
    if (n == 0)
        return true;
    sl_layer_stats *now = calloc(n, sizeof *now);
    if (!r->layers)
        r->layers = calloc(n, sizeof *r->layers);
    bool ok = (now && r->layers) || sl_fail(err, SL_ERR_MEMORY, "out of memory for the figures of %zu layers", n);
    if (ok) {
        r->layer_count = n;
        sl_engine_get_layer_stats(e, now, n);
    }
    for (size_t i = 0; ok && i < n; i++) {
        sl_layer_stats *sum = &r->layers[i];
        sum->layer = now[i].layer;
        sum->hits += now[i].hits;
        sum->misses += now[i].misses;
        sum->bytes_read += now[i].bytes_read;
        sum->wait_ns += now[i].wait_ns;
        sum->guesses += now[i].guesses;
        sum->guesses_right += now[i].guesses_right;
    }
    free(now);
    return ok;
}

json_t *bench_layers_json(const bench_result *r) {
    json_t *list = json_array();
    for (size_t i = 0; i < r->layer_count; i++) {
        const sl_layer_stats *s = &r->layers[i];
        json_array_append_new(list, json_pack("{s:i, s:I, s:I, s:I, s:f, s:I, s:I}", "layer", s->layer, "hits",
                                              (json_int_t)s->hits, "misses", (json_int_t)s->misses, "bytes_read",
                                              (json_int_t)s->bytes_read, "wait_seconds", (double)s->wait_ns / 1e9,
                                              "read_ahead", (json_int_t)s->guesses, "read_ahead_used",
                                              (json_int_t)s->guesses_right));
    }
    return list;
}

/* Per token of all sequences together, but for rates and counts of guesses. */
void bench_print_layers(const bench_result *r) {
    double tokens = (double)bench_tokens(r) * r->repeat;
    if (r->layer_count == 0 || tokens == 0)
        return;
    printf("\nlayer   hit rate   missed    MiB read   ms waited   guessed   right\n"
           "                       (per token: missed, read, waited)\n");
    for (size_t i = 0; i < r->layer_count; i++) {
        const sl_layer_stats *s = &r->layers[i];
        double asked = (double)(s->hits + s->misses);
        printf("%5d    %5.1f %%   %6.2f   %9.3f   %9.3f   %7llu", s->layer,
               asked > 0 ? 100 * (double)s->hits / asked : 0, (double)s->misses / tokens,
               (double)s->bytes_read / 1048576 / tokens, (double)s->wait_ns / 1e6 / tokens,
               (unsigned long long)s->guesses);
        if (s->guesses)
            printf("   %3.0f %%", 100 * (double)s->guesses_right / (double)s->guesses);
        printf("\n");
    }
}

/* What each layer with experts hit, read and waited for: a table of all, or a line with those that waited most. */
#include "cli.h"

#include <stdlib.h>

bool cli_layers_add(const sl_engine *e, cli_layers *l, sl_error *err) {
    size_t n = sl_engine_get_layer_stats(e, NULL, 0);
    if (n == 0)
        return true;
    sl_layer_stats *now = calloc(n, sizeof *now);
    if (!l->of)
        l->of = calloc(n, sizeof *l->of);
    bool ok = (now && l->of) || sl_fail(err, SL_ERR_MEMORY, "out of memory for the figures of %zu layers", n);
    if (ok) {
        l->count = n;
        sl_engine_get_layer_stats(e, now, n);
    }
    for (size_t i = 0; ok && i < n; i++) {
        sl_layer_stats *sum = &l->of[i];
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

void cli_layers_free(cli_layers *l) {
    free(l->of);
    *l = (cli_layers){0};
}

json_t *cli_layers_json(const cli_layers *l) {
    json_t *list = json_array();
    for (size_t i = 0; i < l->count; i++) {
        const sl_layer_stats *s = &l->of[i];
        json_array_append_new(list, json_pack("{s:i, s:I, s:I, s:I, s:f, s:I, s:I}", "layer", s->layer, "hits",
                                              (json_int_t)s->hits, "misses", (json_int_t)s->misses, "bytes_read",
                                              (json_int_t)s->bytes_read, "wait_seconds", (double)s->wait_ns / 1e9,
                                              "read_ahead", (json_int_t)s->guesses, "read_ahead_used",
                                              (json_int_t)s->guesses_right));
    }
    return list;
}

/* In per cent; a layer that nothing was asked of has none. */
static double hit_rate(const sl_layer_stats *s) {
    double asked = (double)(s->hits + s->misses);
    return asked > 0 ? 100 * (double)s->hits / asked : 0;
}

void cli_layers_print(FILE *f, const cli_layers *l, double tokens) {
    if (l->count == 0 || tokens == 0)
        return;
    fprintf(f, "\nlayer   hit rate   missed    MiB read   ms waited   guessed   right\n"
               "                       (per token: missed, read, waited)\n");
    for (size_t i = 0; i < l->count; i++) {
        const sl_layer_stats *s = &l->of[i];
        fprintf(f, "%5d    %5.1f %%   %6.2f   %9.3f   %9.3f   %7llu", s->layer, hit_rate(s), (double)s->misses / tokens,
                (double)s->bytes_read / 1048576 / tokens, (double)s->wait_ns / 1e6 / tokens,
                (unsigned long long)s->guesses);
        if (s->guesses)
            fprintf(f, "   %3.0f %%", 100 * (double)s->guesses_right / (double)s->guesses);
        fprintf(f, "\n");
    }
}

/* ---- one line ---------------------------------------------------------------------------------------------------- */

enum { WORST = 3 };

/* The layers that waited most, at most WORST, those that did not wait left out; returns how many. */
static int find_worst(const cli_layers *l, const sl_layer_stats *worst[WORST]) {
    int n = 0;
    for (size_t i = 0; i < l->count; i++) {
        const sl_layer_stats *s = &l->of[i];
        int at = n;
        while (at > 0 && worst[at - 1]->wait_ns < s->wait_ns)
            at--;
        if (s->wait_ns == 0 || at == WORST)
            continue;
        n += n < WORST;
        for (int k = n - 1; k > at; k--)
            worst[k] = worst[k - 1];
        worst[at] = s;
    }
    return n;
}

void cli_layers_print_line(FILE *f, const cli_layers *l, double tokens) {
    const sl_layer_stats *worst[WORST];
    double least = 100, most = 0, waited = 0;
    uint64_t missed = 0;
    int asked = 0;
    for (size_t i = 0; i < l->count; i++) {
        const sl_layer_stats *s = &l->of[i];
        if (s->hits + s->misses == 0)
            continue;
        least = hit_rate(s) < least ? hit_rate(s) : least;
        most = hit_rate(s) > most ? hit_rate(s) : most;
        missed += s->misses;
        waited += (double)s->wait_ns / 1e6;
        asked++;
    }
    if (asked == 0 || tokens == 0)
        return;
    fprintf(f, "layers    %d with experts, hit rates %.1f to %.1f %%; per token %.1f read, %.2f ms waited", asked,
            least, most, (double)missed / tokens, waited / tokens);
    int n = find_worst(l, worst);
    for (int i = 0; i < n; i++)
        fprintf(f, "%s%d (%.1f %%, %.2f, %.2f ms)", i ? ", " : "; most by layer ", worst[i]->layer, hit_rate(worst[i]),
                (double)worst[i]->misses / tokens, (double)worst[i]->wait_ns / 1e6 / tokens);
    fprintf(f, "\n");
}

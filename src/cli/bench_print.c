/* A benchmark's result as a table and as JSON. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(const double *values, int n) {
    double *sorted = n > 0 ? malloc((size_t)n * sizeof *sorted) : NULL;
    if (!sorted)
        return 0;
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare);
    double m = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    free(sorted);
    return m;
}

/* A field of the windows, as numbers. */
typedef double (*window_value)(const bench_window *w);

static double value_speed(const bench_window *w) {
    return w->tokens_per_second;
}
static double value_seconds(const bench_window *w) {
    return w->seconds;
}
static double value_replay(const bench_window *w) {
    return w->replay_seconds;
}
static double value_bound(const bench_window *w) {
    return w->bound_seconds;
}
static double value_share_of_bound(const bench_window *w) {
    return w->bound_seconds > 0 ? w->bound_seconds / w->seconds : -1;
}
static double value_ideal(const bench_window *w) {
    return w->ideal_seconds;
}
static double value_share_of_ideal(const bench_window *w) {
    return w->ideal_seconds > 0 ? w->ideal_seconds / w->seconds : -1;
}
static double value_memory(const bench_window *w) {
    return w->memory_read;
}
static double value_hit_rate(const bench_window *w) {
    double asked = (double)(w->stats.expert_hits + w->stats.expert_misses);
    return asked > 0 ? (double)w->stats.expert_hits / asked : -1;
}
static double value_read(const bench_window *w) {
    return (double)w->stats.expert_bytes_read;
}
static double value_ahead(const bench_window *w) {
    return (double)w->stats.prefetch_reads;
}
static double value_ahead_used(const bench_window *w) {
    return w->stats.prefetch_reads ? (double)w->stats.prefetch_used / (double)w->stats.prefetch_reads : 0;
}
static double value_copied(const bench_window *w) {
    return (double)w->stats.vram_copied / w->seconds;
}
static double value_there(const bench_window *w) {
    double asked = (double)(w->stats.vram_hits + w->stats.vram_misses);
    return asked > 0 ? (double)w->stats.vram_hits / asked : -1;
}
static double value_from_disk(const bench_window *w) {
    return (double)w->stats.expert_bytes_read / w->seconds;
}
static double value_disk_share(const bench_window *w) {
    return w->disk_rate > 0 ? value_from_disk(w) / w->disk_rate : -1;
}
static double value_disk_rate(const bench_window *w) {
    return w->disk_rate;
}
static double value_wait(const bench_window *w) {
    return (double)w->stats.expert_wait_ns / 1e9;
}

static double prefill_speed(const bench_prefill *p) {
    return p->tokens_per_second;
}
static double prefill_share(const bench_prefill *p) {
    return p->disk_seconds > 0 ? fmax(p->disk_seconds, p->compute_seconds) / p->seconds : -1;
}
static double prefill_disk(const bench_prefill *p) {
    return p->disk_seconds > 0 ? p->disk_seconds : -1;
}
static double prefill_compute(const bench_prefill *p) {
    return p->disk_seconds > 0 ? p->compute_seconds : -1;
}
static double prefill_read(const bench_prefill *p) {
    return (double)p->stats.expert_bytes_read;
}
static double prefill_wait(const bench_prefill *p) {
    return (double)p->stats.expert_wait_ns / 1e9;
}

static double prefill_median(const bench_result *r, double (*value)(const bench_prefill *p)) {
    double *v = malloc((size_t)r->repeat * sizeof *v);
    if (!v)
        return 0;
    for (int i = 0; i < r->repeat; i++)
        v[i] = value(&r->prefill[i]);
    double m = bench_median(v, r->repeat);
    free(v);
    return m;
}

static double median_of(const bench_result *r, window_value value) {
    double *v = malloc((size_t)r->repeat * sizeof *v);
    if (!v)
        return 0;
    for (int i = 0; i < r->repeat; i++)
        v[i] = value(&r->windows[i]);
    double m = bench_median(v, r->repeat);
    free(v);
    return m;
}

/* Bytes of weights that decode read per second: those of the dense part and of the experts it asked for. */
static double weight_rate(const bench_result *r, const sl_engine_info *info) {
    return median_of(r, value_speed) * (double)(info->dense_bytes_per_token + info->bytes_per_token);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *known(double v) {
    return v >= 0 ? json_real(v) : json_null();
}

static json_t *window_json(const bench_window *w, const sl_engine_info *info) {
    const sl_stats *s = &w->stats;
    json_t *times = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "attention",
                              (double)s->time_attention_ns / 1e9, "linear", (double)s->time_linear_ns / 1e9, "router",
                              (double)s->time_router_ns / 1e9, "expert", (double)s->time_expert_ns / 1e9, "shared",
                              (double)s->time_shared_ns / 1e9, "head", (double)s->time_head_ns / 1e9, "other",
                              (double)s->time_other_ns / 1e9, "delta", (double)s->time_delta_ns / 1e9);
    return json_pack("{s:f, s:f, s:I, s:I, s:o, s:I, s:f, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o}",
                     "seconds", w->seconds, "tokens_per_second", w->tokens_per_second, "hits",
                     (json_int_t)s->expert_hits, "misses", (json_int_t)s->expert_misses, "hit_rate",
                     known(value_hit_rate(w)), "bytes_read", (json_int_t)s->expert_bytes_read, "wait_seconds",
                     value_wait(w), "evictions", (json_int_t)s->evictions, "replay_seconds", known(w->replay_seconds),
                     "causal_bound_seconds", known(w->bound_seconds), "share_of_causal_bound",
                     known(value_share_of_bound(w)), "ideal_bound_seconds", known(w->ideal_seconds),
                     "share_of_ideal_bound", known(value_share_of_ideal(w)), "memory_read_bytes_per_second",
                     known(w->memory_read), "times", times, "read_ahead", (json_int_t)s->prefetch_reads,
                     "read_ahead_used", (json_int_t)s->prefetch_used, "disks", cli_disks_json(s->disk, info));
}

/* null: the device has no memory of its own, or no experts were asked of it. */
static json_t *tiers_json(const bench_result *r) {
    if (r->copy_rate <= 0 || median_of(r, value_there) < 0)
        return json_null();
    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:o, s:o}", "slots", (json_int_t)r->windows[0].stats.vram_slots,
                     "hit_rate", median_of(r, value_there), "copied_bytes_per_second", median_of(r, value_copied),
                     "copy_limit_bytes_per_second", r->copy_rate, "share_of_copy_limit",
                     median_of(r, value_copied) / r->copy_rate, "disk_bytes_per_second", median_of(r, value_from_disk),
                     "disk_limit_bytes_per_second", known(median_of(r, value_disk_rate)), "share_of_disk_limit",
                     known(median_of(r, value_disk_share)));
}

static json_t *decode_json(const bench_result *r, const sl_engine_info *info) {
    json_t *list = json_array();
    for (int i = 0; i < r->repeat; i++)
        json_array_append_new(list, window_json(&r->windows[i], info));
    return json_pack("{s:i, s:i, s:i, s:f, s:o, s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "tokens", r->decode_tokens,
                     "sequences", r->sequences, "warmup", r->warmup, "tokens_per_second", median_of(r, value_speed),
                     "hit_rate", known(median_of(r, value_hit_rate)), "bytes_read", median_of(r, value_read),
                     "share_of_causal_bound", known(median_of(r, value_share_of_bound)), "share_of_ideal_bound",
                     known(median_of(r, value_share_of_ideal)), "memory_read_bytes_per_second",
                     known(median_of(r, value_memory)), "weight_bytes_per_second",
                     known(r->sequences == 1 ? weight_rate(r, info) : -1), "gpu_memory", tiers_json(r), "repetitions",
                     list, "layers", cli_layers_json(&r->layers));
}

static int print_json(const sl_engine *e, const bench_result *r) {
    sl_engine_info info;
    sl_stats stats = {.size = sizeof stats};
    cli_get_info(e, &info);
    sl_engine_get_stats(e, &stats);
    json_t *doc = json_pack("{s:o, s:{s:I, s:I, s:I}}", "model", cli_info_json(&info), "memory", "peak",
                            (json_int_t)stats.memory_peak, "budget", (json_int_t)info.memory, "process_peak",
                            (json_int_t)sl_peak_rss());
    if (r->prefill) {
        json_t *list = json_array();
        for (int i = 0; i < r->repeat; i++)
            json_array_append_new(list, json_real(r->prefill[i].tokens_per_second));
        json_object_set_new(doc, "prefill",
                            json_pack("{s:i, s:f, s:f, s:f, s:o, s:o, s:o, s:o}", "tokens", r->prefill_tokens,
                                      "tokens_per_second", prefill_median(r, prefill_speed), "bytes_read",
                                      prefill_median(r, prefill_read), "wait_seconds", prefill_median(r, prefill_wait),
                                      "disk_seconds", known(prefill_median(r, prefill_disk)), "compute_seconds",
                                      known(prefill_median(r, prefill_compute)), "share_of_bound",
                                      known(prefill_median(r, prefill_share)), "repetitions", list));
    }
    if (r->windows)
        json_object_set_new(doc, "decode", decode_json(r, &info));
    return cli_print_json(doc);
}

/* ---- table ------------------------------------------------------------------------------------------------------- */

static void print_setting(const sl_engine_info *i, const sl_stats *s) {
    char file[16], budget[16], peak[16], process[16];
    printf("model     %s (%s, %s, %s)\n", i->path, i->architecture, i->formats, cli_size(i->file_bytes, file));
    printf("as        numeric %s on %s, %d threads, KV %s", i->numeric, i->isa, i->threads, i->kv_type);
    if (i->experts > 0)
        printf(", %d of %d experts per token, reader %s, slots for %llu of %llu", i->experts_per_token, i->experts,
               i->reader, (unsigned long long)i->slots,
               (unsigned long long)i->experts * (unsigned long long)i->moe_layers);
    printf("%s%s", i->reader_why[0] ? "; reads " : "", i->reader_why);
    printf("%s%s\n", i->approximation[0] ? "; APPROXIMATION: " : "", i->approximation);
    cli_print_vram(stdout, "vram      ", i);
    if (i->device_why[0])
        printf("device    auto: %s (%s)\n", i->device, i->device_why);
    printf("memory    budget %s, of it at most %s counted, process peak %s\n", cli_size(i->memory, budget),
           cli_size(s->memory_peak, peak), cli_size(sl_peak_rss(), process));
}

/* How much of their limits the ways to a GPU's own memory were used: from the host's, and from the disk. */
static void print_tiers(const bench_result *r) {
    char slots[16];
    if (median_of(r, value_there) < 0)
        return;
    printf("          GPU memory: %llu slots, hit rate %.1f %%, %s copied there per token\n",
           (unsigned long long)r->windows[0].stats.vram_slots, 100 * median_of(r, value_there),
           cli_size((uint64_t)(median_of(r, value_copied) * median_of(r, value_seconds) / bench_tokens(r)), slots));
    if (median_of(r, value_copied) == 0)
        return;
    printf("          host tier: %.2f GB/s, %.1f %% of the %.2f GB/s that pinned memory was copied with\n",
           median_of(r, value_copied) / 1e9, 100 * median_of(r, value_copied) / r->copy_rate, r->copy_rate / 1e9);
    if (median_of(r, value_disk_rate) > 0)
        printf("          disk tier: %.2f GB/s, %.1f %% of the %.2f GB/s of the same reads without computing\n",
               median_of(r, value_from_disk) / 1e9, 100 * median_of(r, value_disk_share),
               median_of(r, value_disk_rate) / 1e9);
}

static void print_decode(const bench_result *r, const sl_engine_info *info) {
    char a[16];
    printf("decode    %8.2f tokens/s   %d tokens after %d", median_of(r, value_speed), r->decode_tokens, r->warmup);
    if (r->sequences > 1)
        printf(" in each of %d sequences", r->sequences);
    printf(", median of");
    for (int i = 0; i < r->repeat; i++)
        printf(" %.2f", r->windows[i].tokens_per_second);
    printf("\n");
    double memory = median_of(r, value_memory);
    if (memory >= 0)
        printf("          reads %.1f GB/s of weights, %.1f %% of the %.1f GB/s that memory was read with\n",
               weight_rate(r, info) / 1e9, 100 * weight_rate(r, info) / memory, memory / 1e9);
    if (info->experts == 0)
        return;
    if (r->copy_rate > 0)
        print_tiers(r);
    if (median_of(r, value_hit_rate) < 0) {
        printf("          all experts are in the device's memory\n");
        return;
    }
    printf("          hit rate %.1f %%, %s read per token, waited %.2f of %.2f s\n", 100 * median_of(r, value_hit_rate),
           cli_size((uint64_t)(median_of(r, value_read) / bench_tokens(r)), a), median_of(r, value_wait),
           median_of(r, value_seconds));
    cli_print_disks(stdout, r->windows[r->repeat - 1].stats.disk, info);
    if (median_of(r, value_ahead) > 0)
        printf("          %.1f experts read ahead per token, %.0f %% of them asked for\n",
               median_of(r, value_ahead) / bench_tokens(r), 100 * median_of(r, value_ahead_used));
    if (median_of(r, value_bound) > 0)
        printf("          causal bound %.2f tokens/s: decode reaches %.1f %% of it; its reads alone take %.2f s\n",
               bench_tokens(r) / median_of(r, value_bound), 100 * median_of(r, value_share_of_bound),
               median_of(r, value_replay));
    if (median_of(r, value_ideal) > 0)
        printf(
            "          ideal bound %.2f tokens/s, if nothing had to be known first (the longer of disk and compute): "
            "%.1f %%\n",
            bench_tokens(r) / median_of(r, value_ideal), 100 * median_of(r, value_share_of_ideal));
}

static void print_prefill(const bench_result *r) {
    char a[16];
    printf("prefill   %8.2f tokens/s   %d tokens, median of", prefill_median(r, prefill_speed), r->prefill_tokens);
    for (int i = 0; i < r->repeat; i++)
        printf(" %.2f", r->prefill[i].tokens_per_second);
    printf("\n");
    if (prefill_median(r, prefill_share) > 0)
        printf("          %s read, waited %.2f s; %.1f %% of what the longer of disk (%.2f s) and compute (%.2f s) "
               "allows\n",
               cli_size((uint64_t)prefill_median(r, prefill_read), a), prefill_median(r, prefill_wait),
               100 * prefill_median(r, prefill_share), prefill_median(r, prefill_disk),
               prefill_median(r, prefill_compute));
}

int bench_print(const sl_engine *e, const cli_args *a, const bench_result *r) {
    sl_engine_info info;
    sl_stats stats = {.size = sizeof stats};
    if (a->json)
        return print_json(e, r);
    cli_get_info(e, &info);
    sl_engine_get_stats(e, &stats);
    print_setting(&info, &stats);
    if (r->prefill)
        print_prefill(r);
    if (r->windows)
        print_decode(r, &info);
    if (a->per_layer)
        cli_layers_print(stdout, &r->layers, (double)bench_tokens(r) * r->repeat);
    return CLI_OK;
}

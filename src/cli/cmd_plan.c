/* sluice plan: what a memory budget will give, before loading anything.
 *
 * A token needs: the resident weights read from memory once, the experts it asks for read from memory once, and those
 * of them that are not in a slot read from the disk. Reads of a layer overlap with the computing of its hits, so a
 * token takes dense + max(disk, hits) + misses computed. The one thing that cannot be known is the hit rate: it is
 * given for two routings, one that uses all experts alike and one as skewed as trained models are found to be. */
#include "cli.h"

#include <math.h>
#include <string.h>

typedef struct forecast {
    const char *name;
    double hit_rate, disk_bytes, seconds; /* per token */
} forecast;

enum { UNIFORM, SKEWED, FORECASTS };

/* Below one token's demand an LRU would miss always; then a fixed subset stays, and serves its share of the requests.
 */
static bool below_cliff(const sl_engine_info *i) {
    return i->slots < (uint64_t)i->experts_per_token * (uint64_t)i->moe_layers;
}

static double share_of_experts(const sl_engine_info *i) {
    double all = (double)i->experts * i->moe_layers;
    return all > 0 && (double)i->slots < all ? (double)i->slots / all : 1;
}

static forecast predict(const sl_engine_info *i, const cli_machine_rates *m, int which) {
    double share = share_of_experts(i);
    forecast f = {.name = which == UNIFORM ? "all experts alike" : "skewed as trained models are"};
    f.hit_rate = which == UNIFORM || below_cliff(i) ? share : sqrt(share);
    double asked = (double)i->bytes_per_token;
    f.disk_bytes = asked * (1 - f.hit_rate);
    double dense = (double)i->dense_bytes_per_token / m->memory_read, hits = asked * f.hit_rate / m->memory_read,
           misses = f.disk_bytes / m->memory_read, disk = f.disk_bytes > 0 ? f.disk_bytes / m->disk_read : 0;
    f.seconds = dense + fmax(disk, hits) + misses;
    return f;
}

static json_t *forecast_json(const forecast *f) {
    return json_pack("{s:s, s:f, s:f, s:f}", "routing", f->name, "hit_rate", f->hit_rate, "disk_bytes_per_token",
                     f->disk_bytes, "decode_tokens_per_second", f->seconds > 0 ? 1 / f->seconds : 0.0);
}

static int print_plan_json(const sl_engine_info *i, const cli_machine_rates *m, const forecast *f) {
    json_t *list = json_array();
    for (int k = 0; k < (i->experts > 0 ? FORECASTS : 1); k++)
        json_array_append_new(list, forecast_json(&f[k]));
    return cli_print_json(json_pack("{s:o, s:{s:f, s:f, s:b}, s:b, s:o}", "model", cli_info_json(i), "machine",
                                    "memory_read_bytes_per_second", m->memory_read, "disk_read_bytes_per_second",
                                    m->disk_read, "disk_direct", m->disk_direct, "below_one_token", below_cliff(i),
                                    "forecasts", list));
}

static void print_fit(const sl_engine_info *i) {
    char a[16], b[16], c[16], d[16];
    uint64_t kv = i->kv_bytes_per_token * (uint64_t)i->context, slots = i->slots * i->bytes_per_expert;
    printf("budget    %s (least %s, full %s)\n", cli_size(i->memory, a), cli_size(i->least_memory, b),
           cli_size(i->full_memory, c));
    printf("  resident %s, scratch %s, KV up to %s for %d tokens", cli_size(i->resident_bytes, a),
           cli_size(i->scratch_bytes, b), cli_size(kv, c), i->context);
    if (i->experts > 0)
        printf(",\n  experts %s: slots for %llu of %llu", cli_size(slots, d), (unsigned long long)i->slots,
               (unsigned long long)i->experts * (unsigned long long)i->moe_layers);
    printf("\n");
}

static void print_forecast(const forecast *f, bool experts) {
    char bytes[16];
    double rate = f->seconds > 0 ? 1 / f->seconds : 0;
    if (experts)
        printf("decode    %7.2f tokens/s   hit rate %5.1f %%, %s from disk per token   if routing is %s\n", rate,
               100 * f->hit_rate, cli_size((uint64_t)f->disk_bytes, bytes), f->name);
    else
        printf("decode    %7.2f tokens/s\n", rate);
}

static void print_plan(const sl_engine_info *i, const cli_machine_rates *m, const forecast *f) {
    print_fit(i);
    printf("machine   memory reads %.1f GB/s on %d threads", m->memory_read / 1e9, i->threads);
    if (i->experts > 0)
        printf("; disk reads %.2f GB/s (%s, pieces of an expert's size)", m->disk_read / 1e9,
               m->disk_direct ? "past the page cache" : "through the page cache: may be too good");
    printf("\n");
    for (int k = 0; k < (i->experts > 0 ? FORECASTS : 1); k++)
        print_forecast(&f[k], i->experts > 0);
    if (i->experts > 0 && below_cliff(i))
        printf("warning   the slots hold less than the %d experts one token asks for: a fixed subset stays in memory\n",
               i->experts_per_token * i->moe_layers);
    if (i->approximation[0])
        printf("asked for %s (an approximation)\n", i->approximation);
    printf(
        "assumes   computing is as fast as memory is read; the weights of a token are read once; reads of a\n"
        "          layer overlap with the computing of its hits; no prefetch; a cache that has warmed up; hit rate =\n"
        "          share of experts in memory (all alike) or its square root (skewed).\n");
}

int cli_plan(const cli_args *a) {
    sl_error err = {0};
    sl_engine_info info;
    cli_machine_rates rates = {0};
    forecast forecasts[FORECASTS];
    char have[16], least[16];
    sl_engine *e = cli_open(a, true, &err);
    if (!e)
        return cli_report(&err);
    cli_get_info(e, &info);
    sl_engine_close(e);
    /* A budget that was asked for has been judged by opening; the least is named with some slack. */
    if (a->memory == 0 && info.memory < info.least_memory)
        return cli_complain(CLI_FAILED, "%s does not run in %s: the least is %s", info.path,
                            cli_size(info.memory, have), cli_size(info.least_memory, least));
    cli_status("measuring memory and disk");
    rates.memory_read = cli_measure_memory_read(info.threads, &err);
    /* An expert is three reads (gate, up, down) of about a third each. */
    bool ok = rates.memory_read > 0 &&
              (info.experts == 0 || cli_measure_disk_read(info.path, info.bytes_per_expert / 3, 8, 1.0, &rates, &err));
    cli_status_clear();
    if (!ok)
        return cli_report(&err);
    for (int k = 0; k < FORECASTS; k++)
        forecasts[k] = predict(&info, &rates, k);
    if (a->json)
        return print_plan_json(&info, &rates, forecasts);
    print_plan(&info, &rates, forecasts);
    return CLI_OK;
}

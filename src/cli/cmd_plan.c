/* sluice plan: what a memory budget will give, before loading anything.
 *
 * A token needs: the resident part computed, the experts it asks for computed, and those of them that are not in a slot
 * read from the disk. Reads of a layer overlap with the computing of its hits, so a token takes
 * dense + max(disk, hits) + misses. Computing is timed on layers of the model's shapes over zeros (sl_engine_measure);
 * where that cannot be, it is taken to be as fast as memory is read, and the speed is called a bound. The one thing
 * that cannot be known is the hit rate: it is given for two routings, one that uses all experts alike and one as skewed
 * as trained models are found to be. */
#include "cli.h"

#include <math.h>
#include <string.h>

typedef struct forecast {
    const char *name;
    double hit_rate, disk_bytes, seconds; /* per token */
} forecast;

enum { UNIFORM, SKEWED, FORECASTS };
enum { HUGE_PAGES = 8 << 20 };

typedef struct plan {
    sl_engine_info info;
    cli_machine_rates rates;
    sl_decode_cost cost;
    bool measured; /* cost is measured, else a bound */
    forecast forecast[FORECASTS];
} plan;

/* Below one token's demand an LRU would miss always; then a fixed subset stays, and serves its share of the requests.
 */
static bool below_cliff(const sl_engine_info *i) {
    return i->slots < (uint64_t)i->experts_per_token * (uint64_t)i->moe_layers;
}

static double share_of_experts(const sl_engine_info *i) {
    double all = (double)i->experts * i->moe_layers;
    return all > 0 && (double)i->slots < all ? (double)i->slots / all : 1;
}

/* What computing a token takes; false: no more than a bound is known. */
static bool cost_of_token(sl_engine *e, const sl_engine_info *i, const cli_machine_rates *m, uint64_t spare,
                          sl_decode_cost *cost) {
    *cost = (sl_decode_cost){.size = sizeof *cost};
    /* More is touched of spans that lie in huge pages than was asked for. */
    uint64_t room = spare > 2 * HUGE_PAGES ? spare - HUGE_PAGES : spare / 2;
    if (sl_engine_measure(e, room, 0.5, cost, NULL))
        return true;
    cost->dense_seconds = (double)i->dense_bytes_per_token / m->memory_read;
    cost->expert_seconds = (double)i->bytes_per_token / m->memory_read;
    return false;
}

static forecast predict(const sl_engine_info *i, const cli_machine_rates *m, const sl_decode_cost *cost, int which) {
    double share = share_of_experts(i);
    forecast f = {.name = which == UNIFORM ? "all experts alike" : "skewed as trained models are"};
    f.hit_rate = which == UNIFORM || below_cliff(i) ? share : sqrt(share);
    double asked = (double)i->bytes_per_token;
    f.disk_bytes = asked * (1 - f.hit_rate);
    double hits = cost->expert_seconds * f.hit_rate, misses = cost->expert_seconds - hits,
           disk = f.disk_bytes > 0 ? f.disk_bytes / m->disk_read : 0;
    f.seconds = cost->dense_seconds + fmax(disk, hits) + misses;
    return f;
}

static json_t *forecast_json(const forecast *f) {
    return json_pack("{s:s, s:f, s:f, s:f}", "routing", f->name, "hit_rate", f->hit_rate, "disk_bytes_per_token",
                     f->disk_bytes, "decode_tokens_per_second", f->seconds > 0 ? 1 / f->seconds : 0.0);
}

static json_t *machine_json(const plan *p) {
    return json_pack("{s:f, s:b, s:f, s:b, s:f, s:f, s:b}", "memory_read_bytes_per_second", p->rates.memory_read,
                     "memory_beyond_caches", p->rates.beyond_caches, "disk_read_bytes_per_second", p->rates.disk_read,
                     "disk_direct", p->rates.disk_direct, "dense_seconds_per_token", p->cost.dense_seconds,
                     "expert_seconds_per_token", p->cost.expert_seconds, "computing_measured", p->measured);
}

static int print_plan_json(const plan *p) {
    json_t *list = json_array();
    for (int k = 0; k < (p->info.experts > 0 ? FORECASTS : 1); k++)
        json_array_append_new(list, forecast_json(&p->forecast[k]));
    return cli_print_json(json_pack("{s:o, s:o, s:b, s:o}", "model", cli_info_json(&p->info), "machine",
                                    machine_json(p), "below_one_token", below_cliff(&p->info), "forecasts", list));
}

static void print_fit(const sl_engine_info *i) {
    char a[16], b[16], c[16], d[16], s[16];
    uint64_t kv = i->kv_bytes_per_token * (uint64_t)i->context, slots = i->slots * i->bytes_per_expert;
    printf("budget    %s (least %s, full %s)\n", cli_size(i->memory, a), cli_size(i->least_memory, b),
           cli_size(i->full_memory, c));
    printf("  resident %s, scratch %s, KV up to %s for %d tokens", cli_size(i->resident_bytes, a),
           cli_size(i->scratch_bytes, b), cli_size(kv, c), i->context);
    if (i->state_bytes_per_sequence)
        printf(", recurrent state %s per sequence", cli_size(i->state_bytes_per_sequence, s));
    if (i->experts > 0)
        printf(",\n  experts %s: slots for %llu of %llu", cli_size(slots, d), (unsigned long long)i->slots,
               (unsigned long long)i->experts * (unsigned long long)i->moe_layers);
    printf("\n");
}

static void print_forecast(const plan *p, const forecast *f) {
    char bytes[16];
    printf("decode    %s%7.2f tokens/s", p->measured ? "" : "at most ", f->seconds > 0 ? 1 / f->seconds : 0);
    if (p->info.experts > 0)
        printf("   hit rate %5.1f %%, %s from disk per token   if routing is %s", 100 * f->hit_rate,
               cli_size((uint64_t)f->disk_bytes, bytes), f->name);
    printf("\n");
}

static void print_machine(const plan *p) {
    const cli_machine_rates *m = &p->rates;
    printf("machine   memory reads %.1f GB/s on %d threads%s\n", m->memory_read / 1e9, p->info.threads,
           m->beyond_caches ? "" : " (measured within the caches, for want of memory: too good)");
    if (p->info.experts > 0)
        printf("          disk reads %.2f GB/s (%s, pieces of an expert's size)\n", m->disk_read / 1e9,
               m->disk_direct ? "past the page cache" : "through the page cache: may be too good");
    if (p->measured)
        printf("          computes a token in %.2f ms, its experts in %.2f ms of them\n",
               (p->cost.dense_seconds + p->cost.expert_seconds) * 1e3, p->cost.expert_seconds * 1e3);
}

static void print_assumptions(const plan *p) {
    printf(
        "assumes   %s;\n          reads of a layer overlap with the computing of its hits; nothing guessed ahead; a cache that "
        "has warmed\n          up; hit rate = share of experts in memory (all alike) or its square root (skewed)\n",
        p->measured ? "computing takes what layers of this shape took, a few hundred tokens into a text"
                    : "computing is as fast as memory is read, which it never quite is: an upper bound");
}

static void print_plan(const plan *p) {
    const sl_engine_info *i = &p->info;
    print_fit(i);
    print_machine(p);
    for (int k = 0; k < (i->experts > 0 ? FORECASTS : 1); k++)
        print_forecast(p, &p->forecast[k]);
    if (i->experts > 0 && below_cliff(i))
        printf("warning   the slots hold less than the %d experts one token asks for: a fixed subset stays in memory\n",
               i->experts_per_token * i->moe_layers);
    if (i->approximation[0])
        printf("asked for %s (an approximation)\n", i->approximation);
    print_assumptions(p);
}

/* All of it within what the budget leaves, one after the other. */
static bool measure(sl_engine *e, plan *p, sl_error *err) {
    enum { DEPTH = 8 };
    const sl_engine_info *i = &p->info;
    uint64_t spare = cli_spare_memory(i->memory);
    cli_status("measuring memory and disk");
    /* An expert is three reads (gate, up, down) of about a third each. */
    bool ok =
        cli_measure_memory_read(i->threads, spare, &p->rates, err) &&
        (i->experts == 0 || cli_measure_disk_read(i->path, i->bytes_per_expert / 3, DEPTH, 1.0, spare, &p->rates, err));
    cli_status("measuring a token");
    p->measured = ok && cost_of_token(e, i, &p->rates, spare, &p->cost);
    cli_status_clear();
    for (int k = 0; ok && k < FORECASTS; k++)
        p->forecast[k] = predict(i, &p->rates, &p->cost, k);
    return ok;
}

static int plan_with(sl_engine *e, const cli_args *a) {
    sl_error err = {0};
    plan p = {.rates = {0}};
    char have[16], least[16];
    cli_get_info(e, &p.info);
    /* A budget that was asked for has been judged by opening; the least is named with some slack. */
    if (a->memory == 0 && p.info.memory < p.info.least_memory)
        return cli_complain(CLI_FAILED, "%s does not run in %s: the least is %s", p.info.path,
                            cli_size(p.info.memory, have), cli_size(p.info.least_memory, least));
    if (!measure(e, &p, &err))
        return cli_report(&err);
    if (a->json)
        return print_plan_json(&p);
    print_plan(&p);
    return CLI_OK;
}

int cli_plan(const cli_args *a) {
    sl_error err = {0};
    sl_engine *e = cli_open(a, true, &err);
    if (!e)
        return cli_report(&err);
    int status = plan_with(e, a);
    sl_engine_close(e);
    return status;
}

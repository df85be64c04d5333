/* sluice plan: what a memory budget will give, before loading anything.
 *
 * A token needs: the resident part computed, the experts it asks for computed, and those of them that are not in a slot
 * read from the disk. A layer's reads are issued together and overlap with the computing of its hits and of those
 * misses that have come. Computing is timed on layers of the model's shapes over zeros (sl_engine_measure), and then
 * again with experts that come only when reads of random ones have (sl_engine_measure_reading): what small reads, short
 * bursts and threads that were asleep cost is in that. Where it cannot be, a token takes dense + sum over layers of
 * (max(its reads, its hits) + the last miss), from reads without computing; and where nothing can be timed, computing
 * is taken to be as fast as memory is read, and the speed is called a bound. The one thing that cannot be known is the
 * hit rate: it is given for two routings, one that uses all experts alike and one as skewed as trained models are found
 * to be. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct forecast {
    const char *name;
    double hit_rate, disk_bytes, seconds; /* per token */
    double disk_seconds;                  /* of its reads alone */
    double read_rate;                     /* bytes per second of them */
} forecast;

enum { UNIFORM, SKEWED, FORECASTS };
enum { HUGE_PAGES = 8 << 20 };

typedef struct plan {
    sl_engine_info info;
    cli_machine_rates rates;
    int64_t kept; /* rates.memory_read is as doctor kept it then, seconds since 1970; 0: it is measured now */
    sl_decode_cost cost;
    bool measured;         /* cost is measured, else a bound */
    bool reading_measured; /* a token with its reads is measured, too */
    forecast forecast[FORECASTS];
} plan;

/* Below one token's demand an LRU would miss always; then a fixed subset stays, and serves its share of the requests.
 */
static bool below_cliff(const sl_engine_info *i) {
    return i->slots < (uint64_t)i->experts_per_token * (uint64_t)i->moe_layers;
}

/* Below the cliff what is hit does not depend on the routing. */
static int forecasts(const sl_engine_info *i) {
    return i->experts == 0 || below_cliff(i) ? 1 : FORECASTS;
}

static double share_of_experts(const sl_engine_info *i) {
    double all = (double)i->experts * i->moe_layers;
    return all > 0 && (double)i->slots < all ? (double)i->slots / all : 1;
}

/* As doctor kept it for this machine, where that was with as many threads. */
static bool kept_memory_rate(plan *p) {
    sl_machine m = SL_MACHINE_INIT;
    sl_error err = {0};
    if (!sl_machine_look(NULL, getenv("SLUICE_SYSTEM_ROOT"), &m, &err) && err.code != SL_OK)
        cli_note("warning: %s; memory is measured anew ('sluice doctor' keeps it again)", err.message);
    for (int i = 0; i < m.rate_count; i++)
        if (m.rates[i].threads == p->info.threads) {
            p->rates.memory_read = m.rates[i].rate;
            p->rates.beyond_caches = true; /* else it is not kept */
            p->kept = m.measured;
            return true;
        }
    return false;
}

static bool find_memory_rate(plan *p, uint64_t spare, sl_error *err) {
    if (kept_memory_rate(p))
        return true;
    cli_status("measuring memory");
    return cli_measure_memory_read(p->info.threads, spare, &p->rates, err);
}

/* What computing a token takes; false: no more than a bound is known. */
static bool cost_of_token(sl_engine *e, const sl_engine_info *i, const cli_machine_rates *m, uint64_t room,
                          sl_decode_cost *cost) {
    *cost = (sl_decode_cost){.size = sizeof *cost};
    if (sl_engine_measure(e, room, 0.5, cost, NULL))
        return true;
    cost->dense_seconds = (double)i->dense_bytes_per_token / m->memory_read;
    cost->expert_seconds = (double)i->bytes_per_token / m->memory_read;
    return false;
}

/* ---- reads --------------------------------------------------------------------------------------------------------
 */

typedef struct reading {
    uint64_t area; /* bytes of memory to read to */
    uint64_t room; /* for measuring a token */
} reading;

typedef struct timed_reads {
    double tokens, seconds, bytes;
    double layers;  /* that had any */
    double overlap; /* sum over those of max(reads, hits) */
} timed_reads;

/* A token's reads. Allocated. */
static sl_trace *sample_reads(sl_engine *e, double missing, uint64_t seed, size_t *count, sl_error *err) {
    *count = sl_engine_sample_reads(e, missing, seed, NULL, 0);
    sl_trace *out = calloc(*count + 1, sizeof *out);
    if (!out)
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for a trace of %zu reads", *count);
    sl_engine_sample_reads(e, missing, seed, out, *count);
    return out;
}

/* Reads of `tokens` tokens from number `from` on, one after the other in bursts of a layer. */
static bool time_reads(sl_engine *e, const reading *how, double missing, double hit_seconds, int from, int tokens,
                       timed_reads *t, sl_error *err) {
    bool ok = true;
    *t = (timed_reads){.tokens = tokens};
    for (int k = from; ok && k < from + tokens; k++) {
        size_t n;
        sl_trace *trace = sample_reads(e, missing, (uint64_t)k, &n, err);
        cli_replay replay = {0};
        ok = trace && cli_replay_trace(e, trace, n, CLI_REPLAY_BURSTS, how->area, &replay, err);
        for (size_t b = 0; ok && b < replay.bursts; b++)
            t->overlap += fmax((double)replay.ns[b] / 1e9, hit_seconds);
        t->layers += (double)replay.bursts;
        t->seconds += (double)replay.total_ns / 1e9;
        t->bytes += (double)replay.bytes;
        cli_replay_free(&replay);
        free(trace);
    }
    return ok;
}

/* For about a second, after one token that is not counted. */
static bool forecast_reads(sl_engine *e, const reading *how, double missing, double hit_seconds, timed_reads *t,
                           sl_error *err) {
    enum { LEAST = 3, MOST = 200 };
    if (!time_reads(e, how, missing, hit_seconds, 0, 1, t, err))
        return false;
    double want = 1.0 / fmax(t->seconds, 1e-4);
    return time_reads(e, how, missing, hit_seconds, 1, want < LEAST ? LEAST : want > MOST ? MOST : (int)want, t, err);
}

static bool predict(sl_engine *e, plan *p, int which, const reading *how, sl_error *err) {
    const sl_engine_info *i = &p->info;
    double share = share_of_experts(i), layers = i->moe_layers;
    forecast *f = &p->forecast[which];
    timed_reads t;
    *f = (forecast){.name = below_cliff(i)     ? "of any kind: a fixed subset stays in memory"
                            : which == UNIFORM ? "all experts alike"
                                               : "skewed as trained models are"};
    f->hit_rate = which == UNIFORM ? share : sqrt(share);
    f->disk_bytes = (double)i->bytes_per_token * (1 - f->hit_rate);
    f->seconds = p->cost.dense_seconds;
    if (i->experts == 0)
        return true;
    double hits = p->cost.expert_seconds * f->hit_rate / layers;
    bool all = f->hit_rate >= 1; /* nothing is read: how fast reads would be is only told */
    if (!forecast_reads(e, how, all ? 1 : 1 - f->hit_rate, hits, &t, err))
        return false;
    double reading_layers = t.layers / t.tokens;
    f->read_rate = t.seconds > 0 ? t.bytes / t.seconds : 0;
    if (all) {
        f->seconds += p->cost.expert_seconds;
        return true;
    }
    f->disk_seconds = t.seconds / t.tokens;
    sl_decode_cost with = {.size = sizeof with};
    if (p->measured && sl_engine_measure_reading(e, 1 - f->hit_rate, how->room, 1.0, &with, NULL)) {
        f->seconds = with.dense_seconds + with.expert_seconds;
        p->reading_measured = true;
        return true;
    }
    f->seconds += t.overlap / t.tokens + (layers - reading_layers) * hits +
                  reading_layers * p->cost.expert_seconds / (layers * i->experts_per_token);
    return true;
}

static json_t *forecast_json(const forecast *f) {
    return json_pack("{s:s, s:f, s:f, s:f, s:f}", "routing", f->name, "hit_rate", f->hit_rate, "disk_bytes_per_token",
                     f->disk_bytes, "disk_seconds_per_token", f->disk_seconds, "decode_tokens_per_second",
                     f->seconds > 0 ? 1 / f->seconds : 0.0);
}

static json_t *machine_json(const plan *p) {
    return json_pack("{s:f, s:b, s:o, s:f, s:b, s:f, s:f, s:b, s:b}", "memory_read_bytes_per_second",
                     p->rates.memory_read, "memory_beyond_caches", p->rates.beyond_caches, "memory_kept_since",
                     p->kept ? json_integer((json_int_t)p->kept) : json_null(), "disk_read_bytes_per_second",
                     p->rates.disk_read, "disk_direct", p->rates.disk_direct, "dense_seconds_per_token",
                     p->cost.dense_seconds, "expert_seconds_per_token", p->cost.expert_seconds, "computing_measured",
                     p->measured, "reading_measured", p->reading_measured);
}

static int print_plan_json(const plan *p) {
    json_t *list = json_array();
    for (int k = 0; k < forecasts(&p->info); k++)
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
    cli_print_vram(stdout, "vram      ", i);
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
    char kept[64] = "", rate[16];
    time_t when = (time_t)p->kept;
    struct tm day;
    if (p->kept && gmtime_r(&when, &day))
        strftime(kept, sizeof kept, " (measured by doctor on %Y-%m-%d)", &day);
    printf("machine   memory reads %.1f GB/s on %d threads%s%s\n", m->memory_read / 1e9, p->info.threads, kept,
           m->beyond_caches ? "" : " (measured within the caches, for want of memory: too good)");
    if (p->info.experts > 0)
        printf("          disk reads %s (%s, as layers ask for experts)\n", sl_rate_text(m->disk_read, rate),
               m->disk_direct ? "past the page cache" : "through the page cache: may be too good");
    if (p->measured)
        printf("          computes a token in %.2f ms, its experts in %.2f ms of them\n",
               (p->cost.dense_seconds + p->cost.expert_seconds) * 1e3, p->cost.expert_seconds * 1e3);
}

static void print_assumptions(const plan *p) {
    printf("assumes   %s;\n          %s; nothing guessed ahead; a cache that has warmed\n          up; hit rate = "
           "share of "
           "experts in "
           "memory (all alike) or its square root (skewed)\n",
           p->measured ? "computing takes what layers of this shape took, a few hundred tokens into a text"
                       : "computing is as fast as memory is read, which it never quite is: an upper bound",
           p->reading_measured ? "the same with random experts read meanwhile, as many as are not in slots"
                               : "reads of a layer overlap with the computing of its hits");
}

static void print_plan(const plan *p) {
    const sl_engine_info *i = &p->info;
    print_fit(i);
    print_machine(p);
    for (int k = 0; k < forecasts(i); k++)
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
    enum { AREA = 16 << 20, BLOCK = 4096 };
    const sl_engine_info *i = &p->info;
    uint64_t spare = cli_spare_memory(i->memory);
    reading how = {.area = spare < 2 * AREA ? spare / 2 : AREA};
    how.area = how.area < 4 * BLOCK ? 4 * BLOCK : how.area;
    bool ok = find_memory_rate(p, spare, err);
    cli_status("measuring a token");
    /* More is touched of spans that lie in huge pages than was asked for. */
    how.room = spare > 2 * HUGE_PAGES ? spare - HUGE_PAGES : spare / 2;
    p->measured = ok && cost_of_token(e, i, &p->rates, how.room, &p->cost);
    cli_status("measuring the disk");
    for (int k = 0; ok && k < forecasts(&p->info); k++)
        ok = predict(e, p, k, &how, err);
    cli_status_clear();
    p->rates.disk_read = p->forecast[UNIFORM].read_rate;
    p->rates.disk_direct = strstr(i->reader, "O_DIRECT") != NULL;
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
    cli_close(a, e);
    return status;
}

/* sluice bench: prefill and decode over forced ids, and how near decode comes to what its reads allow.
 *
 * Repetitions of decode go on in one sequence, so that each sees new ids and the cache as the last one left it. After
 * each its reads are replayed without computing: causal bound = sum over layers of (dense + max(reads, hits)) + head.
 * Beside it the ideal bound: the longer of all reads at the disk's rate and all compute, as if nothing had to be known
 * before it is asked for.
 */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* RESERVE: for traces, their replay, ids and logits. ENOUGH: to measure memory and not the caches.
 * APART: how far the ids of neighbouring sequences lie from each other. */
enum { RESERVE = 20 << 20, ENOUGH = 64 << 20, WARMUP = 256, TOKENS = 128, PREFILL = 512, APART = 257 };

typedef struct bench {
    sl_engine *e;
    const cli_args *args;
    sl_engine_info info;
    int32_t *ids;
    sl_seq *seq[BENCH_SEQUENCES];
    float *logits;
    sl_input *inputs;
    bench_result r;
    uint64_t spare; /* for measuring memory */
    bool measure_memory;
} bench;

static bool interrupted(sl_error *err) {
    return cli_interrupted() && !sl_fail(err, SL_ERR_CANCELLED, "interrupted");
}

static bool decode_inputs(bench *b, const sl_input *inputs, size_t n, sl_error *err) {
    bool ok = sl_decode(b->e, inputs, n, b->logits, err);
    return !interrupted(err) && ok;
}

static bool prefill_once(bench *b, bench_prefill *out, sl_error *err) {
    sl_seq *seq = sl_seq_new(b->e, err);
    if (!seq)
        return false;
    for (int i = 0; i < b->r.prefill_tokens; i++)
        b->inputs[i] = (sl_input){seq, b->ids[i], i + 1 == b->r.prefill_tokens};
    sl_engine_reset_stats(b->e);
    uint64_t began = sl_now_ns();
    bool ok = decode_inputs(b, b->inputs, (size_t)b->r.prefill_tokens, err);
    *out = (bench_prefill){.seconds = (double)(sl_now_ns() - began) / 1e9};
    out->tokens_per_second = b->r.prefill_tokens / out->seconds;
    out->stats.size = sizeof out->stats;
    sl_engine_get_stats(b->e, &out->stats);
    sl_seq_free(seq);
    return ok;
}

static bool decode_tokens(bench *b, const char *what, int first, int n, sl_error *err) {
    sl_input input[BENCH_SEQUENCES];
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < b->r.sequences; k++)
            input[k] = (sl_input){b->seq[k], b->ids[first + i + k * APART], true};
        if (!decode_inputs(b, input, (size_t)b->r.sequences, err))
            return false;
        if (what)
            cli_progress(what, (uint64_t)i + 1, (uint64_t)n, false);
    }
    return true;
}

/* ---- the bound --------------------------------------------------------------------------------------------------- */

static double dense_ns(const sl_stats *s) {
    return (double)(s->time_attention_ns + s->time_delta_ns + s->time_linear_ns + s->time_router_ns +
                    s->time_shared_ns + s->time_other_ns);
}

static double compute_seconds(const sl_stats *s) {
    return (dense_ns(s) + (double)s->time_expert_ns + (double)s->time_head_ns) / 1e9;
}

/* Layers without misses have no burst: they take the time of their hits. */
static double bound_seconds(const bench *b, const bench_window *w, const cli_replay *replay) {
    const sl_stats *s = &w->stats;
    double asked = (double)(s->expert_hits + s->expert_misses),
           layers = (double)b->r.decode_tokens * b->info.moe_layers;
    double dense = dense_ns(s),
           hits = asked > 0 ? (double)s->time_expert_ns * (double)s->expert_hits / asked / layers : 0, sum = 0;
    for (size_t i = 0; i < replay->bursts; i++)
        sum += (double)replay->ns[i] > hits ? (double)replay->ns[i] : hits;
    if (layers > (double)replay->bursts)
        sum += (layers - (double)replay->bursts) * hits;
    return (dense + sum + (double)s->time_head_ns) / 1e9;
}

/* The reads that this run would have made without guessing: a right guess is read in its layer's burst, a wrong one not
 * at all. Returns how many. */
static size_t causal_trace(sl_trace *t, size_t n) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (t[i].guess && !t[i].used)
            continue;
        t[kept] = t[i];
        if (kept > 0 && t[kept - 1].guess && !t[kept].guess && t[kept - 1].layer == t[kept].layer) {
            int burst = t[kept].burst;
            for (size_t k = kept; k > 0 && t[k - 1].guess && t[k - 1].layer == t[kept].layer; k--)
                t[k - 1].burst = burst;
        }
        kept++;
    }
    return kept;
}

/* The run's reads again, those that it asked for. */
static bool replay_reads(const bench *b, int what, cli_replay *out, sl_error *err) {
    size_t n = sl_engine_get_trace(b->e, NULL, 0);
    sl_trace *trace = malloc((n + 1) * sizeof *trace);
    if (!trace)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a trace of %zu reads", n);
    n = causal_trace(trace, sl_engine_get_trace(b->e, trace, n));
    bool ok = cli_replay_trace(b->e, trace, n, what, 0, out, err);
    free(trace);
    return ok;
}

static double stream_seconds(const cli_replay *r) {
    return r->rate > 0 ? (double)r->bytes / r->rate : 0;
}

static bool replay_window(bench *b, bench_window *w, sl_error *err) {
    cli_replay replay = {0};
    bool ok = replay_reads(b, CLI_REPLAY_BURSTS | CLI_REPLAY_STREAM, &replay, err);
    if (ok) {
        w->replay_seconds = (double)replay.total_ns / 1e9;
        w->bound_seconds = bound_seconds(b, w, &replay);
        w->ideal_seconds = fmax(compute_seconds(&w->stats), stream_seconds(&replay));
        w->disk_rate = replay.rate;
    }
    cli_replay_free(&replay);
    return ok;
}

static bool decode_window(bench *b, int index, sl_error *err) {
    bench_window *w = &b->r.windows[index];
    int first = b->r.warmup + index * b->r.decode_tokens;
    bool replay = b->info.experts > 0 && !b->args->no_replay;
    *w = (bench_window){
        .replay_seconds = -1, .bound_seconds = -1, .ideal_seconds = -1, .disk_rate = -1, .memory_read = -1};
    sl_engine_reset_stats(b->e);
    if (replay)
        sl_engine_trace(b->e, true);
    uint64_t began = sl_now_ns();
    bool ok = decode_tokens(b, NULL, first, b->r.decode_tokens, err);
    w->seconds = (double)(sl_now_ns() - began) / 1e9;
    w->tokens_per_second = bench_tokens(&b->r) / w->seconds;
    w->stats.size = sizeof w->stats;
    sl_engine_get_stats(b->e, &w->stats);
    ok = ok && cli_layers_add(b->e, &b->r.layers, err);
    if (replay) {
        ok = ok && replay_window(b, w, err);
        sl_engine_trace(b->e, false);
    }
    if (ok && b->measure_memory) {
        cli_machine_rates rates;
        ok = cli_measure_memory_read(b->info.threads, b->spare, &rates, err);
        w->memory_read = ok ? rates.memory_read : -1;
    }
    return ok;
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/* What of a repetition's reads was asked for, at the rate that the disk has for them right after it. */
static bool prefill_bounds(bench *b, bench_prefill *p, sl_error *err) {
    cli_replay replay = {0};
    bool ok = replay_reads(b, CLI_REPLAY_STREAM, &replay, err);
    p->disk_seconds = stream_seconds(&replay);
    p->compute_seconds = compute_seconds(&p->stats);
    cli_replay_free(&replay);
    return ok;
}

static bool measure_prefill(bench *b, sl_error *err) {
    bench_prefill warm;
    bool replay = b->info.experts > 0 && !b->args->no_replay;
    b->r.prefill = calloc((size_t)b->r.repeat, sizeof *b->r.prefill);
    b->inputs = calloc((size_t)b->r.prefill_tokens, sizeof *b->inputs);
    if (!b->r.prefill || !b->inputs)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the prefill");
    cli_status("prefill: warming up");
    if (!prefill_once(b, &warm, err)) /* touches memory and code for the first time */
        return false;
    for (int i = 0; i < b->r.repeat; i++) {
        cli_status("prefill: %d of %d", i + 1, b->r.repeat);
        if (replay)
            sl_engine_trace(b->e, true);
        if (!prefill_once(b, &b->r.prefill[i], err) || (replay && !prefill_bounds(b, &b->r.prefill[i], err)))
            return false;
    }
    sl_engine_trace(b->e, false);
    return true;
}

static bool bench_decode(bench *b, sl_error *err) {
    b->r.windows = calloc((size_t)b->r.repeat, sizeof *b->r.windows);
    bool ok = (b->r.windows || sl_fail(err, SL_ERR_MEMORY, "out of memory for the decode"));
    for (int k = 0; ok && k < b->r.sequences; k++)
        ok = (b->seq[k] = sl_seq_new(b->e, err)) != NULL;
    ok = ok && decode_tokens(b, "decode: warm-up", 0, b->r.warmup, err);
    for (int i = 0; ok && i < b->r.repeat; i++) {
        cli_status("decode: %d of %d", i + 1, b->r.repeat);
        ok = decode_window(b, i, err);
    }
    for (int k = 0; k < b->r.sequences; k++)
        sl_seq_free(b->seq[k]);
    return ok;
}

static int need_ids(const bench_result *r) {
    int64_t decode = r->decode_tokens > 0 ? (int64_t)r->warmup + (int64_t)r->decode_tokens * r->repeat : 0;
    return (int)sl_min_i64(sl_max_i64(decode, r->prefill_tokens), 1 << 24);
}

/* The context that is asked for, or the model's; and how fast experts could be brought to the device, measured while
 * nothing else is there. */
static bool find_limit(const cli_args *a, int *limit, double *copy_rate, sl_error *err) {
    cli_args quiet = *a;
    sl_engine_info info;
    quiet.log_level = SL_LOG_ERROR;
    quiet.memory = quiet.vram = 0; /* is judged once the context is known */
    sl_engine *e = cli_open(&quiet, true, err);
    if (!e)
        return false;
    cli_get_info(e, &info);
    cli_close(a, e);
    *limit = a->context ? a->context : info.model_context;
    bool named = a->device && strcmp(a->device, "auto") != 0;
    *copy_rate = 0;
    return !info.vram || cli_measure_copy(named ? a->device : info.device, copy_rate, err);
}

/* What was not asked for is as usual, or as much as the context holds: then a little more than half is measured. */
static void fit_tokens(bench_result *r, const cli_args *a, int limit) {
    int usual = WARMUP + TOKENS * r->repeat;
    r->prefill_tokens = a->prefill >= 0 ? a->prefill : limit < PREFILL ? limit : PREFILL;
    r->warmup = a->warmup >= 0 ? a->warmup : WARMUP;
    r->decode_tokens = a->tokens >= 0 ? a->tokens : TOKENS;
    if (a->tokens < 0 && a->warmup < 0 && usual > limit)
        r->decode_tokens = (int)sl_min_i64(TOKENS, (int64_t)limit * 3 / 5 / r->repeat);
    else if (a->tokens < 0 && (int64_t)r->warmup + (int64_t)TOKENS * r->repeat > limit)
        r->decode_tokens = (limit - r->warmup) / r->repeat;
    r->decode_tokens = r->decode_tokens < 1 && a->tokens < 0 ? 1 : r->decode_tokens;
    int64_t left = limit - (int64_t)r->decode_tokens * r->repeat;
    if (a->warmup < 0 && r->decode_tokens > 0 && left < r->warmup)
        r->warmup = left > 0 ? (int)left : 0;
    if ((a->warmup < 0 && r->warmup < WARMUP) || (a->tokens < 0 && r->decode_tokens < TOKENS))
        cli_note("a context of %d tokens: %d are decoded %d times, after %d", limit, r->decode_tokens, r->repeat,
                 r->warmup);
}

static bool run(bench *b, cli_args *a, sl_error *err) {
    int limit;
    if (!find_limit(a, &limit, &b->r.copy_rate, err))
        return false;
    fit_tokens(&b->r, a, limit);
    if (a->context == 0) /* what is needed and no more: KV memory is memory for experts */
        a->context = (int)sl_min_i64(need_ids(&b->r), limit);
    a->whole_context = need_ids(&b->r) >= a->context;
    b->e = cli_open(a, false, err);
    if (!b->e)
        return false;
    cli_get_info(b->e, &b->info);
    int need = need_ids(&b->r);
    if (need > b->info.context)
        return sl_fail(err, SL_ERR_CONTEXT, "%d tokens are to be decoded, the context holds %d (see --ctx, --repeat)",
                       need, b->info.context);
    /* That takes memory of its own, and is the limit only where nothing is read from the disk. */
    uint64_t experts = (uint64_t)b->info.experts * (uint64_t)b->info.moe_layers,
             all = b->info.memory < b->info.full_memory ? b->info.memory : b->info.full_memory,
             mine = cli_spare_memory(0);
    b->spare = mine > all ? mine - all : 0;
    b->measure_memory = b->r.sequences == 1 && a->memory == 0 && b->info.slots >= experts && b->spare >= ENOUGH;
    b->logits = malloc((size_t)b->info.vocab * (size_t)b->r.sequences * sizeof *b->logits);
    if (!b->logits)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for logits of %d tokens", b->info.vocab);
    size_t all_ids = (size_t)need + (size_t)(b->r.sequences - 1) * APART;
    return bench_ids(b->e, a, all_ids, &b->ids, err) && (b->r.prefill_tokens == 0 || measure_prefill(b, err)) &&
           (b->r.decode_tokens == 0 || bench_decode(b, err));
}

int cli_bench(const cli_args *a) {
    sl_error err = {0};
    cli_args args = *a;
    bench b = {.args = &args};
    b.r.repeat = a->repeat;
    b.r.sequences = a->sequences;
    if (a->prefill == 0 && a->tokens == 0)
        return cli_complain(CLI_USAGE, "nothing to measure: --tokens and --prefill are both 0");
    args.reserve = RESERVE;
    cli_interrupt_begin(true);
    bool ok = run(&b, &args, &err);
    cli_interrupt_end();
    cli_status_clear();
    if (!ok)
        interrupted(&err);
    int status = ok ? bench_print(b.e, &args, &b.r) : cli_report(&err);
    if (!ok && err.code == SL_ERR_CANCELLED)
        status = CLI_INTERRUPTED;
    free(b.r.prefill);
    free(b.r.windows);
    cli_layers_free(&b.r.layers);
    free(b.ids);
    free(b.logits);
    free(b.inputs);
    cli_close(a, b.e);
    return status;
}

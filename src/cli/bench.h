/* Pieces of `sluice bench`: the ids that are forced, and what one repetition measured. */
#ifndef SL_CLI_BENCH_H
#define SL_CLI_BENCH_H

#include "cli.h"

/* At least `need` ids: from --ids (a file; "random": spread over the vocabulary), else the built-in text, repeated. */
bool bench_ids(const sl_engine *e, const cli_args *a, size_t need, int32_t **ids, sl_error *err);

/* One repetition of decode. */
typedef struct bench_window {
    double seconds, tokens_per_second;
    sl_stats stats;
    double replay_seconds; /* this window's reads without computing; < 0: not replayed */
    double bound_seconds;  /* causal bound: dense + max(reads, hits) per layer + head; < 0: not known */
    double ideal_seconds;  /* max(all reads at the disk's rate, all compute): what perfect foresight would allow */
    double disk_rate;      /* bytes per second of this window's reads, some at once; < 0: not replayed */
    double memory_read;    /* bytes per second measured beside it; < 0: not measured */
} bench_window;

/* One repetition of prefill. */
typedef struct bench_prefill {
    double seconds, tokens_per_second;
    sl_stats stats;
    /* What was read and asked for, at the disk's rate; the phases that compute, beside reads. 0: nothing was read */
    double disk_seconds, compute_seconds;
} bench_prefill;

typedef struct bench_result {
    int prefill_tokens, decode_tokens, warmup, repeat;
    int sequences;          /* each decodes decode_tokens */
    double copy_rate;       /* bytes per second to the memory of a GPU that has its own; 0: there is none */
    bench_prefill *prefill; /* [repeat]; NULL: none */
    bench_window *windows;  /* [repeat]; NULL: none */
    cli_layers layers;      /* of all windows */
} bench_result;

/* Tokens that a repetition of decode gave. */
static inline int bench_tokens(const bench_result *r) {
    return r->decode_tokens * r->sequences;
}

double bench_median(const double *values, int n);
int bench_print(const sl_engine *e, const cli_args *a, const bench_result *r);

#endif

/* The disk's part of the bounds: a run's recorded reads, made again without computing. */
#include "cli.h"

#include <stdlib.h>

enum { STREAM_READS = 1024 };

static void note_bursts(const sl_trace *trace, size_t n, cli_replay *out) {
    size_t burst = 0;
    for (size_t i = 0; i < n; i++)
        if (i == 0 || trace[i].burst != trace[i - 1].burst)
            out->layer[burst++] = trace[i].layer;
    for (size_t i = 0; i < out->bursts; i++)
        out->total_ns += out->ns[i];
}

/* The disk without the waits between bursts: some of the same reads as one. */
static bool replay_stream(const sl_engine *e, const sl_trace *trace, size_t n, uint64_t area, cli_replay *out,
                          sl_error *err) {
    size_t some = n < STREAM_READS ? n : STREAM_READS, first = (n - some) / 2, bursts = 0;
    sl_trace *one = malloc((some + 1) * sizeof *one);
    uint64_t took = 0, bytes = 0;
    if (!one)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the replay of %zu reads", some);
    for (size_t i = 0; i < some; i++) {
        one[i] = trace[first + i];
        one[i].burst = 0;
        bytes += one[i].bytes;
    }
    bool ok = sl_engine_replay(e, one, some, area, &took, &bursts, err);
    out->rate = ok && bytes && took ? (double)bytes * 1e9 / (double)took : 0;
    free(one);
    return ok;
}

bool cli_replay_trace(const sl_engine *e, const sl_trace *trace, size_t n, int what, uint64_t area, cli_replay *out,
                      sl_error *err) {
    *out = (cli_replay){.ns = calloc(n + 1, sizeof *out->ns), .layer = calloc(n + 1, sizeof *out->layer)};
    if (!out->ns || !out->layer)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the replay of %zu reads", n);
    for (size_t i = 0; i < n; i++)
        out->bytes += trace[i].bytes;
    bool ok = !(what & CLI_REPLAY_BURSTS) || sl_engine_replay(e, trace, n, area, out->ns, &out->bursts, err);
    if (ok && (what & CLI_REPLAY_BURSTS))
        note_bursts(trace, n, out);
    return ok && (!(what & CLI_REPLAY_STREAM) || replay_stream(e, trace, n, area, out, err));
}

void cli_replay_free(cli_replay *r) {
    free(r->ns);
    free(r->layer);
    *r = (cli_replay){0};
}

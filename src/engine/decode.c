/* sl_decode: tokens appended to many sequences at once, as a job of one run per sequence. Nothing is committed before
 * all of it succeeded. */
#include "engine/internal.h"

#include <stdio.h>
#include <stdlib.h>

/* Memory of one call. */
typedef struct decode_call {
    engine_job job;
    int32_t *tokens; /* [n] grouped by sequence */
    float **dest;    /* [n] in the same order */
} decode_call;

static bool check_inputs(const sl_engine *e, const sl_input *in, size_t n, const float *logits, sl_error *err) {
    if (n > INT32_MAX / 2)
        return sl_fail(err, SL_ERR_ARGUMENT, "%zu tokens in one call, at most %d expected", n, INT32_MAX / 2);
    for (size_t i = 0; i < n; i++) {
        if (in[i].token < 0 || in[i].token >= e->vocab)
            return sl_fail(err, SL_ERR_ARGUMENT, "token %d of entry %zu, expected 0 to %d", in[i].token, i,
                           e->vocab - 1);
        if (in[i].want_logits && !logits)
            return sl_fail(err, SL_ERR_ARGUMENT, "entry %zu wants logits, but there is no memory for them", i);
    }
    return true;
}

/* Claims the sequences, numbers them in order of appearance and counts their rows. */
static bool claim_sequences(sl_engine *e, decode_call *c, const sl_input *in, size_t n, sl_error *err) {
    for (size_t i = 0; i < n; i++) {
        bool first;
        if (!engine_seq_claim(e, in[i].seq, c, &first, err))
            return false;
        if (first) {
            in[i].seq->run_index = c->job.run_count++;
            in[i].seq->run_rows = 0;
        }
        if (++in[i].seq->run_rows > e->context - in[i].seq->length)
            return sl_fail(err, SL_ERR_CONTEXT, "sequence of %d tokens: at least %d more do not fit the context of %d",
                           in[i].seq->length, in[i].seq->run_rows, e->context);
    }
    return true;
}

static void release_sequences(const decode_call *c, const sl_input *in, size_t n) {
    for (size_t i = 0; i < n && in[i].seq; i++) {
        if (engine_seq_used_by(in[i].seq, c)) {
            engine_seq_drop_uncommitted(in[i].seq);
            engine_seq_release(in[i].seq);
        }
    }
}

static bool check_room(const sl_engine *e, const decode_call *c, sl_error *err) {
    char what[64];
    for (int32_t i = 0; i < c->job.run_count; i++) {
        const engine_run *run = &c->job.runs[i];
        snprintf(what, sizeof what, "%d tokens after %d in the sequence", run->count, run->base);
        if (!engine_kv_check(e, (uint64_t)run->base + (uint64_t)run->count, what, err))
            return false;
    }
    return true;
}

/* Sorts the entries into one run per sequence; order within a sequence is kept. */
static bool make_runs(const sl_engine *e, decode_call *c, const sl_input *in, size_t n, float *logits, sl_error *err) {
    c->job.runs = calloc((size_t)c->job.run_count, sizeof *c->job.runs);
    c->tokens = calloc(n, sizeof *c->tokens);
    c->dest = calloc(n, sizeof *c->dest);
    if (!c->job.runs || !c->tokens || !c->dest)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu tokens", n);
    int64_t out = 0;
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        sl_seq *s = in[i].seq;
        engine_run *run = &c->job.runs[s->run_index];
        if (!run->seq) {
            *run = (engine_run){
                .seq = s, .job = &c->job, .tokens = c->tokens + used, .dest = c->dest + used, .base = s->length};
            used += (size_t)s->run_rows;
        }
        size_t at = (size_t)(run->tokens - c->tokens) + (size_t)run->count++;
        c->tokens[at] = in[i].token;
        if (in[i].want_logits)
            c->dest[at] = logits + out++ * e->vocab;
    }
    return check_room(e, c, err);
}

static void commit_runs(const decode_call *c) {
    for (int32_t i = 0; i < c->job.run_count; i++) {
        const engine_run *run = &c->job.runs[i];
        engine_seq_commit(run->seq, run->tokens, run->count);
    }
}

bool sl_decode(sl_engine *e, const sl_input *inputs, size_t n, float *logits, sl_error *err) {
    if (!engine_check_open(e, err) || !check_inputs(e, inputs, n, logits, err))
        return false;
    if (n == 0)
        return true;
    decode_call c = {0};
    bool ok = claim_sequences(e, &c, inputs, n, err) && make_runs(e, &c, inputs, n, logits, err);
    if (ok) {
        engine_submit_job(e, &c.job);
        ok = !c.job.failed;
        if (ok)
            commit_runs(&c);
        else if (err)
            *err = c.job.error;
    }
    release_sequences(&c, inputs, n);
    free(c.job.runs);
    free(c.tokens);
    free(c.dest);
    return ok;
}

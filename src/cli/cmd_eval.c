/* sluice eval: perplexity of a text; KL divergence and top-1 agreement against a recorded reference.
 *
 * The text is cut into windows, each a fresh sequence; every row but a window's last predicts the token after it. A
 * reference brings its own tokens, in one window (reference.h). */
#include "cli.h"
#include "reference.h"
#include "routing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct tally {
    double nll;     /* sum of -log p(next token), nats */
    uint64_t next;  /* rows that have a next token */
    double kl;      /* sum of KL(reference || this) */
    uint64_t rows;  /* rows compared */
    uint64_t agree; /* of them: the same likeliest token */
    uint64_t tokens;
    reference_writer *record; /* NULL: none is written */
} tally;

/* log of the sum of exp(logits), or NaN. */
static double log_sum(const float *logits, int vocab) {
    double most = (double)logits[0], sum = 0;
    for (int i = 1; i < vocab; i++)
        most = fmax(most, (double)logits[i]);
    for (int i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - most);
    return most + log(sum);
}

static int likeliest(const float *logits, int vocab) {
    int best = 0;
    for (int i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* Rows [row, row + n) of a window of `count` ids. */
static bool tally_rows(tally *t, const int32_t *ids, size_t count, size_t row, size_t n, const float *logits, int vocab,
                       reference *ref, sl_error *err) {
    for (size_t i = 0; i < n; i++) {
        const float *l = logits + i * (size_t)vocab;
        double z = log_sum(l, vocab);
        if (!isfinite(z))
            return sl_fail(err, SL_ERR_NUMERIC, "position %zu: the logits are not finite", row + i);
        if (row + i + 1 < count) {
            t->nll += z - (double)l[ids[row + i + 1]];
            t->next++;
        }
        t->tokens++;
        if (t->record && !reference_add(t->record, l, z, err))
            return false;
        if (!ref)
            continue;
        double kl;
        int best;
        if (!reference_compare(ref, row + i, l, z, &kl, &best, err))
            return false;
        t->kl += kl;
        t->agree += best == likeliest(l, vocab);
        t->rows++;
    }
    return true;
}

typedef struct batch {
    sl_input *inputs;
    float *logits;
    size_t rows;
} batch;

/* As many rows at once as their logits fit in; taken off --memory. */
enum { LOGITS_BYTES = 16 << 20, RESERVE = LOGITS_BYTES + (8 << 20) };

static bool batch_open(batch *b, const sl_engine_info *info, sl_error *err) {
    size_t row = (size_t)info->vocab * sizeof(float);
    b->rows = LOGITS_BYTES / row;
    if (b->rows > (size_t)info->chunk)
        b->rows = (size_t)info->chunk;
    if (b->rows < 1)
        b->rows = 1;
    b->inputs = calloc(b->rows, sizeof *b->inputs);
    b->logits = malloc(b->rows * row);
    return (b->inputs && b->logits) || sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu rows of logits", b->rows);
}

static void batch_close(batch *b) {
    free(b->inputs);
    free(b->logits);
}

static bool eval_window(sl_engine *e, batch *b, int vocab, const int32_t *ids, size_t count, reference *ref, tally *t,
                        size_t total, sl_error *err) {
    sl_seq *seq = sl_seq_new(e, err);
    bool ok = seq != NULL;
    for (size_t row = 0; ok && row < count;) {
        size_t n = count - row < b->rows ? count - row : b->rows;
        cli_progress("evaluating", t->tokens, total, false);
        for (size_t i = 0; i < n; i++)
            b->inputs[i] = (sl_input){seq, ids[row + i], true};
        ok =
            sl_decode(e, b->inputs, n, b->logits, err) && tally_rows(t, ids, count, row, n, b->logits, vocab, ref, err);
        row += n;
        if (cli_interrupted())
            ok = sl_fail(err, SL_ERR_CANCELLED, "interrupted after %llu tokens", (unsigned long long)t->tokens);
    }
    cli_status_clear();
    sl_seq_free(seq);
    return ok;
}

static bool eval_ids(sl_engine *e, const int32_t *ids, size_t count, size_t window, reference *ref, const char *record,
                     tally *t, sl_error *err) {
    sl_engine_info info;
    batch b = {0};
    cli_get_info(e, &info);
    if (ref && ref->vocab != (uint32_t)info.vocab)
        return sl_fail(err, SL_ERR_FORMAT, "%s: vocabulary of %u, the model's is %d", ref->path, ref->vocab,
                       info.vocab);
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= info.vocab)
            return sl_fail(err, SL_ERR_ARGUMENT, "token %zu is %d, the vocabulary has %d", i, ids[i], info.vocab);
    bool ok = batch_open(&b, &info, err);
    if (ok && record) {
        if (window < count)
            ok = sl_fail(err, SL_ERR_ARGUMENT, "a reference is one window: %zu tokens do not fit in %zu (--tokens)",
                         count, window);
        t->record = ok ? reference_create(record, ids, count, info.vocab, err) : NULL;
        ok = ok && t->record;
    }
    for (size_t at = 0; ok && at < count; at += window) {
        size_t n = count - at < window ? count - at : window;
        if (n > 1 || count == 1)
            ok = eval_window(e, &b, info.vocab, ids + at, n, ref, t, count, err);
    }
    batch_close(&b);
    return reference_finish(t->record, ok, err) && ok;
}

/* ---- what is evaluated ------------------------------------------------------------------------------------------- */

static bool text_ids(sl_engine *e, const cli_args *a, int32_t **ids, size_t *count, sl_error *err) {
    size_t size;
    char *text = cli_read_input(a->operand[1], 1 << 30, &size, err);
    bool ok = text && sl_tokenize(e, text, size, false, true, ids, count, err);
    free(text);
    return ok;
}

/* The text, where one is named beside a reference, must be what the reference was recorded on. */
static bool check_text(sl_engine *e, const cli_args *a, const reference *ref, sl_error *err) {
    int32_t *ids = NULL;
    size_t count = 0, i = 0;
    if (!text_ids(e, a, &ids, &count, err))
        return false;
    while (i < ref->positions && i < count && ids[i] == ref->tokens[i])
        i++;
    sl_free(ids);
    return i == ref->positions || sl_fail(err, SL_ERR_FORMAT, "%s: token %zu of the reference is not the one of %s",
                                          ref->path, i, a->operand[1]);
}

static size_t clip(size_t count, int most) {
    return most > 0 && (size_t)most < count ? (size_t)most : count;
}

static bool eval_text(sl_engine *e, const cli_args *a, tally *t, sl_error *err) {
    sl_engine_info info;
    int32_t *ids = NULL;
    size_t count = 0;
    cli_get_info(e, &info);
    bool ok = text_ids(e, a, &ids, &count, err);
    count = clip(count, a->tokens);
    if (ok && count < 2)
        ok = sl_fail(err, SL_ERR_ARGUMENT, "%s: %zu tokens, perplexity needs two", a->operand[1], count);
    size_t window = a->window > 0 ? (size_t)a->window : clip(count, info.context);
    ok = ok && eval_ids(e, ids, count, window, NULL, a->record, t, err);
    sl_free(ids);
    return ok;
}

static bool eval_reference(sl_engine *e, const cli_args *a, reference *ref, tally *t, sl_error *err) {
    if (a->operands > 1 && !check_text(e, a, ref, err))
        return false;
    size_t count = clip(ref->positions, a->tokens);
    return eval_ids(e, ref->tokens, count, count, ref, a->record, t, err);
}

/* ---- result ------------------------------------------------------------------------------------------------------ */

static json_t *result_json(sl_engine *e, const cli_args *a, const tally *t) {
    double nll = t->next ? t->nll / (double)t->next : 0;
    json_t *doc = json_pack("{s:s, s:I, s:f, s:f}", "model", a->operand[0], "tokens", (json_int_t)t->tokens,
                            "nats_per_token", nll, "perplexity", exp(nll));
    if (t->rows > 0) {
        json_object_set_new(doc, "kl_mean", json_real(t->kl / (double)t->rows));
        json_object_set_new(doc, "top1_agreement", json_real((double)t->agree / (double)t->rows));
    }
    json_object_set_new(doc, "figures", cli_figures_json(e, a));
    return doc;
}

static int print_result(sl_engine *e, const cli_args *a, const tally *t) {
    if (a->json)
        return cli_print_json(result_json(e, a, t));
    double nll = t->next ? t->nll / (double)t->next : 0;
    printf("perplexity %.4f (%.5f nats per token over %llu tokens)\n", exp(nll), nll, (unsigned long long)t->next);
    if (t->rows > 0)
        printf("KL         %.6f nats, mean of KL(reference || this) over %llu rows\ntop-1      %.2f %% the same\n",
               t->kl / (double)t->rows, (unsigned long long)t->rows, 100 * (double)t->agree / (double)t->rows);
    return CLI_OK;
}

static bool check_outputs(const cli_args *a, sl_error *err) {
    const char *const others[] = {a->operand[0], a->operands > 1 ? a->operand[1] : NULL, a->reference, a->routing};
    return (!a->record || cli_may_replace(a->record, others, SL_COUNT(others), err)) &&
           (!a->routing || cli_may_replace(a->routing, others, SL_COUNT(others) - 1, err));
}

int cli_eval(const cli_args *a) {
    sl_error err = {0};
    cli_args args = *a;
    reference *ref = NULL;
    tally t = {0};
    if (!a->reference && a->operands < 2)
        return cli_complain(CLI_USAGE, "'eval' needs a FILE, or --reference");
    if (!check_outputs(a, &err))
        return cli_report(&err);
    if (a->reference) {
        ref = reference_open(a->reference, &err);
        if (!ref)
            return cli_report(&err);
        args.whole_context = args.context == 0;
        if (args.context == 0)
            args.context = (int)clip(ref->positions, a->tokens);
    } else if (args.context == 0 && args.window > 0) {
        args.context = args.window;
    }
    args.reserve = RESERVE;
    sl_engine *e = cli_open(&args, false, &err);
    cli_stop_begin();
    routing_writer *routes = e && a->routing ? routing_record(e, a->routing, &err) : NULL;
    bool ok =
        e && (routes || !a->routing) && (ref ? eval_reference(e, &args, ref, &t, &err) : eval_text(e, &args, &t, &err));
    ok = routing_finish(routes, ok, &err) && ok;
    cli_interrupt_end();
    int status = ok ? print_result(e, &args, &t) : cli_report(&err);
    if (!ok && err.code == SL_ERR_CANCELLED)
        status = cli_stop_status();
    if (ok && cli_wants_figures(a))
        cli_print_figures(stderr, e, a);
    cli_close(a, e);
    reference_close(ref);
    return status;
}

/* One request: events to standard output as they come, Ctrl-C, a word when it stalls. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t stall_ns = 2000000000u;

const char *cli_finish_name(sl_finish f) {
    static const char *const names[] = {"none", "stop", "length", "cancelled", "error"};
    return names[f];
}

void cli_answer_free(cli_answer *a) {
    sl_buf_free(&a->text);
    free(a->ids);
    json_decref(a->logprobs);
    *a = (cli_answer){0};
}

static sl_sampling sampling(const cli_args *a) {
    sl_sampling s = SL_SAMPLING_INIT;
    s.temperature = (float)a->temperature;
    s.top_k = a->top_k;
    s.top_p = (float)a->top_p;
    s.min_p = (float)a->min_p;
    s.repeat_penalty = (float)a->repeat_penalty;
    s.presence_penalty = (float)a->presence_penalty;
    s.frequency_penalty = (float)a->frequency_penalty;
    s.seed = a->seed;
    s.logit_bias = a->logit_bias.items;
    s.logit_bias_count = a->logit_bias.count;
    s.logprobs = a->logprobs;
    return s;
}

/* A piece may be half a character: what is no UTF-8 is shown as U+FFFD. */
static json_t *piece_json(const sl_engine *e, int32_t id) {
    char piece[512];
    json_t *message;
    size_t n = sl_token_text(e, id, piece, sizeof piece);
    message = cli_message("", piece, n < sizeof piece ? n : sizeof piece - 1);
    json_t *text = json_incref(json_object_get(message, "content"));
    json_decref(message);
    return text;
}

/* JSON has no infinity: a token that cannot be is null. */
static json_t *logprob_json(float v) {
    return isfinite(v) ? json_real((double)v) : json_null();
}

static void append_logprobs(const sl_engine *e, const sl_event *event, json_t *list) {
    json_t *top = json_array();
    for (int i = 0; i < event->top_count; i++)
        json_array_append_new(top, json_pack("{s:i, s:o, s:o}", "id", event->top[i].token, "text",
                                             piece_json(e, event->top[i].token), "logprob",
                                             logprob_json(event->top[i].logprob)));
    json_array_append_new(list,
                          json_pack("{s:i, s:o, s:o, s:o}", "id", event->token, "text", piece_json(e, event->token),
                                    "logprob", logprob_json(event->logprob), "top", top));
}

static bool append_event(const sl_engine *e, const sl_event *event, cli_answer *a) {
    if (event->token >= 0) {
        if (!sl_grow((void **)&a->ids, &a->capacity, a->count + 1, sizeof *a->ids))
            return sl_fail(&a->error, SL_ERR_MEMORY, "out of memory for the answer");
        a->ids[a->count++] = event->token;
        if (a->logprobs)
            append_logprobs(e, event, a->logprobs);
    }
    a->prompt_tokens = event->prompt_tokens;
    a->completion_tokens = event->completion_tokens;
    return sl_buf_append(&a->text, event->text, event->text_size) ||
           sl_fail(&a->error, SL_ERR_MEMORY, "out of memory for the answer");
}

/* When it was last said, where lines stay, what is waited for; and how long it is not said again. */
typedef struct stall_notes {
    uint64_t last_ns, pause_ns;
} stall_notes;

/* Says what the engine waits for when nothing has come for two seconds: in the status line where there is one, else in
 * lines of which each comes twice as late as the one before: a log of an hour's prefill has a dozen of them. */
static void watch_stall(const sl_engine *e, stall_notes *notes) {
    char what[256];
    uint64_t since = 0, idle = cli_idle_ns(), now = sl_now_ns();
    if (idle < stall_ns)
        return;
    sl_engine_activity(e, what, sizeof what, &since);
    if (!what[0])
        snprintf(what, sizeof what, "the engine");
    if (cli_status("waiting for %.0f s: %s", (double)idle / 1e9, what) || now - notes->last_ns < notes->pause_ns)
        return;
    cli_note("waiting for %.0f s: %s", (double)idle / 1e9, what);
    *notes = (stall_notes){now, notes->pause_ns ? 2 * notes->pause_ns : 2 * stall_ns};
}

/* Until the last event. An answer that nobody can read any more is cancelled. */
static bool follow(sl_engine *e, sl_request *r, bool stream, cli_answer *a) {
    sl_event event;
    stall_notes notes = {0};
    bool cancelled = false, ok = true;
    for (;;) {
        if (!cancelled && (cli_interrupted() || cli_stdout_broken() || !ok)) {
            sl_request_cancel(r);
            cancelled = true;
        }
        if (!sl_request_next(r, &event, 100)) {
            watch_stall(e, &notes);
            continue;
        }
        ok = ok && append_event(e, &event, a);
        if (stream && event.text_size > 0)
            cli_put(event.text, event.text_size);
        if (event.finish != SL_FINISH_NONE)
            break;
    }
    a->finish = event.finish;
    if (ok)
        a->error = event.error;
    return ok && event.finish != SL_FINISH_ERROR;
}

/* The engine speaks of budgets; here they have names. */
static void name_remedy(sl_error *err) {
    sl_error e = *err;
    if (e.code == SL_ERR_BUDGET)
        sl_fail(err, e.code, "%s (--memory; --kv-type q8_0 halves KV, another --ctx makes no room)", e.message);
}

void cli_note_full(const cli_args *a, const cli_answer *answer, const char *then) {
    if (answer->finish != SL_FINISH_LENGTH)
        return;
    if (answer->error.code == SL_ERR_BUDGET)
        cli_note("the memory budget holds no more than the %llu tokens so far: %s (see --memory)",
                 (unsigned long long)(answer->prompt_tokens + answer->completion_tokens), then);
    else if (a->max_tokens == 0)
        cli_note("the context is full: %s (see --ctx)", then);
}

bool cli_generate(sl_engine *e, const cli_args *a, sl_seq *seq, const int32_t *ids, size_t n, bool stream,
                  cli_answer *answer) {
    sl_generate_options o = SL_GENERATE_OPTIONS_INIT;
    *answer = (cli_answer){.logprobs = a->logprobs > 0 ? json_array() : NULL};
    o.prompt = ids;
    o.prompt_count = n;
    o.seq = seq;
    o.max_tokens = a->max_tokens;
    o.sampling = sampling(a);
    o.stop = a->stop.items;
    o.stop_count = a->stop.count;
    o.ignore_eos = a->ignore_eos;
    cli_touch();
    cli_show_prefill(true);
    sl_request *r = sl_generate(e, &o, &answer->error);
    if (!r) {
        answer->finish = SL_FINISH_ERROR;
        name_remedy(&answer->error);
        return false;
    }
    bool ok = follow(e, r, stream, answer);
    sl_request_free(r);
    cli_show_prefill(false);
    cli_status_clear();
    return ok;
}

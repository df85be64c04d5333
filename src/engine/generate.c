/* Generation, one token at a time, on the scheduler's thread: logits to token, token to events, and whether it goes on.
 *
 * The last token of a generation is sampled but not evaluated: the sequence then holds the prompt and all generated
 * tokens but that one. */
#include "engine/internal.h"

#include <string.h>

enum { TEXT_PER_EVENT = sizeof((sl_event *)0)->text - 1 };

/* The longest prefix of whole characters that fits an event. */
static size_t cut_text(const char *text, size_t n) {
    if (n <= TEXT_PER_EVENT)
        return n;
    size_t cut = TEXT_PER_EVENT;
    while (cut > 0 && ((unsigned char)text[cut] & 0xc0) == 0x80)
        cut--;
    return cut;
}

static void set_text(sl_event *ev, const char *text, size_t n) {
    memcpy(ev->text, text, n);
    ev->text[n] = 0;
    ev->text_size = n;
}

/* An event without text; choice NULL: it carries no token. */
static sl_event make_event(const sl_request *r, const engine_choice *choice) {
    sl_event ev = {.token = -1, .prompt_tokens = (uint64_t)r->prompt_count, .completion_tokens = r->completion};
    if (choice) {
        ev.token = choice->token;
        ev.logprob = choice->logprob;
        ev.top_count = choice->top_count;
        memcpy(ev.top, choice->top, sizeof ev.top);
    }
    return ev;
}

static bool push_event(sl_request *r, const sl_event *ev) {
    engine_sched *sc = &r->e->sched;
    pthread_mutex_lock(&sc->mutex);
    if (r->event_first > 0) {
        memmove(r->events, r->events + r->event_first, r->event_count * sizeof *r->events);
        r->event_first = 0;
    }
    void *events = r->events;
    bool ok = sl_grow(&events, &r->event_capacity, r->event_count + 1, sizeof *r->events);
    r->events = events;
    if (ok)
        r->events[r->event_count++] = *ev;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&sc->mutex);
    return ok;
}

/* Queues text, the first event with the token. Unless `last`, all of it; else all but what the last event takes, which
 * is prepared in r->last. */
static bool emit(sl_request *r, const engine_choice *choice, const sl_buf *text, bool last) {
    const char *p = text->data ? text->data : "";
    size_t left = text->size;
    for (;;) {
        size_t n = cut_text(p, left);
        sl_event ev = make_event(r, choice);
        set_text(&ev, p, n);
        p += n;
        left -= n;
        if (left == 0 && last) {
            r->last = ev;
            return true;
        }
        if (!push_event(r, &ev))
            return false;
        if (left == 0)
            return true;
        choice = NULL;
    }
}

/* The last event, with what was held back of the text. */
static void end_with(sl_request *r, const engine_choice *choice, sl_buf *text, sl_finish finish,
                     const sl_error *error) {
    sl_error failed = {0};
    if (!engine_output_finish(&r->output, text, &failed) || !emit(r, choice, text, true)) {
        r->last = make_event(r, NULL);
        finish = SL_FINISH_ERROR;
        sl_fail(&failed, SL_ERR_MEMORY, "out of memory for the events of a request");
        error = &failed;
    }
    r->last.finish = finish;
    if (error && (finish == SL_FINISH_ERROR || finish == SL_FINISH_LENGTH))
        r->last.error = *error;
    r->run.ended = true;
}

void engine_request_end(sl_request *r, sl_finish finish, const sl_error *error) {
    sl_buf text = {0};
    end_with(r, NULL, &text, finish, error);
    sl_buf_free(&text);
}

static sl_finish finish_after(const sl_request *r, int32_t token) {
    const sl_tokenizer *t = r->e->tokenizer;
    if (r->output.stopped || (!r->ignore_eos && t && sl_tokenizer_is_stop(t, token)))
        return SL_FINISH_STOP;
    bool full = r->seq->length >= r->e->context;
    return full || (r->max_tokens && r->completion >= r->max_tokens) ? SL_FINISH_LENGTH : SL_FINISH_NONE;
}

/* The sampled token becomes the next row. */
static void continue_with(sl_request *r, int32_t token) {
    r->next_token = token;
    r->run.tokens = &r->next_token;
    r->run.count = 1;
    r->run.done = 0;
    r->run.base = r->seq->length;
}

/* The text of a token, unless it ends the generation. */
static bool token_text(sl_request *r, int32_t token, sl_buf *text, sl_error *err) {
    const sl_tokenizer *t = r->e->tokenizer;
    if (!r->ignore_eos && t && sl_tokenizer_is_stop(t, token))
        return true;
    return engine_output_token(&r->output, token, text, err);
}

void engine_request_advance(sl_request *r, const float *logits) {
    engine_history h = {r->seq->tokens, r->seq->length, r->generated_from};
    engine_choice choice;
    sl_error err = {0};
    sl_buf text = {0};
    if (!engine_sample(r->e->sampler, &r->sampling, &r->rng, logits, &h, &choice, &err)) {
        engine_request_end(r, SL_FINISH_ERROR, &err);
        return;
    }
    r->completion++;
    sl_finish finish = SL_FINISH_ERROR;
    if (token_text(r, choice.token, &text, &err))
        finish = finish_after(r, choice.token);
    if (finish != SL_FINISH_NONE) {
        end_with(r, &choice, &text, finish, &err);
    } else if (emit(r, &choice, &text, false)) {
        continue_with(r, choice.token);
    } else {
        sl_fail(&err, SL_ERR_MEMORY, "out of memory for the events of a request");
        engine_request_end(r, SL_FINISH_ERROR, &err);
    }
    sl_buf_free(&text);
}

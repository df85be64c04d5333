/* A request's life as its caller sees it: checked and submitted, its bounded queue of events, its end. */
#include "engine/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making one ------------------------------------------------------------------------------------------------- */

/* KV of the prompt and, unless one token is all that is wanted, of the first token after it. */
static bool check_room(const sl_engine *e, const sl_generate_options *o, int32_t length, sl_error *err) {
    uint64_t tokens = (uint64_t)length + o->prompt_count + (o->max_tokens != 1);
    char what[80];
    snprintf(what, sizeof what, "prompt of %zu tokens after %d in the sequence", o->prompt_count, length);
    return engine_kv_check(e, tokens < (uint64_t)e->context ? tokens : (uint64_t)e->context, what, err);
}

static bool check_prompt(const sl_engine *e, const sl_generate_options *o, int32_t length, sl_error *err) {
    if (o->prompt_count > INT32_MAX || (o->prompt_count && !o->prompt))
        return sl_fail(err, SL_ERR_ARGUMENT, "prompt: %zu tokens%s", o->prompt_count, o->prompt ? "" : ", none given");
    for (size_t i = 0; i < o->prompt_count; i++)
        if (o->prompt[i] < 0 || o->prompt[i] >= e->vocab)
            return sl_fail(err, SL_ERR_ARGUMENT, "prompt: token %d at %zu, expected 0 to %d", o->prompt[i], i,
                           e->vocab - 1);
    if (o->prompt_count > (size_t)(e->context - length))
        return sl_fail(err, SL_ERR_CONTEXT, "prompt of %zu tokens after %d in the sequence: the context holds %d",
                       o->prompt_count, length, e->context);
    return check_room(e, o, length, err);
}

/* Copies the prompt; an empty one is BOS where the checkpoint begins its texts so. */
static bool copy_prompt(sl_request *r, const sl_generate_options *o, sl_error *err) {
    const sl_engine *e = r->e;
    if (!check_prompt(e, o, r->seq->length, err))
        return false;
    int32_t bos = -1;
    if (o->prompt_count == 0 && r->seq->length == 0 && e->tokenizer && sl_tokenizer_adds_bos(e->tokenizer))
        bos = sl_tokenizer_bos(e->tokenizer);
    if (o->prompt_count == 0 && (bos < 0 || bos >= e->vocab))
        return sl_fail(err, SL_ERR_ARGUMENT, "prompt: empty, at least one token expected");
    r->prompt_count = o->prompt_count ? (int32_t)o->prompt_count : 1;
    r->prompt = calloc((size_t)r->prompt_count, sizeof *r->prompt);
    if (!r->prompt)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a prompt of %zu tokens", o->prompt_count);
    r->prompt[0] = bos;
    if (o->prompt_count)
        memcpy(r->prompt, o->prompt, o->prompt_count * sizeof *r->prompt);
    return true;
}

static bool copy_sampling(sl_request *r, const sl_generate_options *o, sl_error *err) {
    if (o->sampling.size != sizeof o->sampling)
        return sl_fail(err, SL_ERR_ARGUMENT, "sampling options of %zu bytes, expected %zu: set by SL_SAMPLING_INIT",
                       o->sampling.size, sizeof o->sampling);
    if (!engine_sampling_check(&o->sampling, r->e->vocab, err))
        return false;
    r->sampling = o->sampling;
    size_t bytes = o->sampling.logit_bias_count * sizeof *r->bias;
    r->bias = malloc(bytes ? bytes : 1);
    if (!r->bias)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the logit bias");
    if (bytes)
        memcpy(r->bias, o->sampling.logit_bias, bytes);
    r->sampling.logit_bias = r->bias;
    engine_rng_seed(&r->rng, r->sampling.seed);
    return true;
}

static bool all_control(const sl_tokenizer *t, const int32_t *tokens, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (tokens[i] >= sl_tokenizer_size(t) || !sl_tokenizer_is_control(t, tokens[i]))
            return false;
    return true;
}

/* Whether nothing that shows comes before the generated text. */
static bool at_start(const sl_request *r) {
    const sl_tokenizer *t = r->e->tokenizer;
    return t && all_control(t, r->seq->tokens, r->seq->length) && all_control(t, r->prompt, r->prompt_count);
}

static bool request_fill(sl_request *r, const sl_generate_options *o, sl_error *err) {
    if (o->max_tokens < 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "max_tokens: %d, expected 0 or more", o->max_tokens);
    if (!copy_prompt(r, o, err) || !copy_sampling(r, o, err) ||
        !engine_output_init(&r->output, r->e->tokenizer, at_start(r), o->stop, o->stop_count, err))
        return false;
    r->max_tokens = (uint64_t)o->max_tokens;
    r->ignore_eos = o->ignore_eos;
    r->generated_from = r->seq->length + r->prompt_count;
    r->run = (engine_run){
        .seq = r->seq, .request = r, .tokens = r->prompt, .count = r->prompt_count, .base = r->seq->length};
    return true;
}

static void request_destroy(sl_request *r) {
    pthread_cond_destroy(&r->changed);
    engine_output_free(&r->output);
    free(r->prompt);
    free(r->bias);
    free(r->events);
    free(r);
}

static sl_request *request_alloc(sl_engine *e, sl_error *err) {
    sl_request *r = calloc(1, sizeof *r);
    if (!r)
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for a request");
    r->e = e;
    engine_wait_init(&r->changed);
    return r;
}

sl_request *sl_generate(sl_engine *e, const sl_generate_options *options, sl_error *err) {
    sl_generate_options o;
    if (!engine_check_open(e, err) ||
        !engine_copy_options(&o, sizeof o, options, offsetof(sl_generate_options, stop), "generate", err))
        return NULL;
    sl_request *r = request_alloc(e, err);
    if (!r)
        return NULL;
    r->own_seq = !o.seq;
    r->seq = o.seq ? o.seq : sl_seq_new(e, err);
    bool claimed = r->seq && engine_seq_claim(e, r->seq, r, NULL, err);
    if (claimed && request_fill(r, &o, err)) {
        engine_submit_request(e, r);
        return r;
    }
    if (claimed)
        engine_seq_release(r->seq);
    if (r->own_seq)
        sl_seq_free(r->seq);
    request_destroy(r);
    return NULL;
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

bool engine_request_has_room(const sl_request *r) {
    return r->event_count < ENGINE_EVENT_LIMIT;
}

void engine_request_publish(sl_request *r) {
    engine_seq_drop_uncommitted(r->seq);
    if (r->own_seq) {
        engine_seq_release(r->seq);
        sl_seq_free(r->seq);
        r->seq = NULL;
    }
    engine_sched *sc = &r->e->sched;
    pthread_mutex_lock(&sc->mutex);
    if (r->seq) {
        r->seq->user = NULL;
        pthread_cond_broadcast(&sc->finished);
    }
    r->ended = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&sc->mutex);
}

/* Mutex held: the oldest event, or the last one when all others were taken. */
static bool take_event(sl_request *r, sl_event *out) {
    if (r->event_count > 0) {
        *out = r->events[r->event_first++];
        if (r->event_count-- == ENGINE_EVENT_LIMIT)
            engine_wake(r->e);
        if (r->event_count == 0)
            r->event_first = 0;
        return true;
    }
    if (!r->ended || r->last_taken)
        return false;
    *out = r->last;
    return r->last_taken = true;
}

bool sl_request_next(sl_request *r, sl_event *event, int timeout_ms) {
    struct timespec until = engine_deadline(timeout_ms < 0 ? 0 : timeout_ms);
    engine_sched *sc = &r->e->sched;
    bool got, in_time = true;
    pthread_mutex_lock(&sc->mutex);
    while (!(got = take_event(r, event)) && !r->last_taken && in_time) {
        if (timeout_ms < 0)
            pthread_cond_wait(&r->changed, &sc->mutex);
        else
            in_time = pthread_cond_timedwait(&r->changed, &sc->mutex, &until) == 0;
    }
    pthread_mutex_unlock(&sc->mutex);
    return got;
}

void sl_request_cancel(sl_request *r) {
    engine_sched *sc = &r->e->sched;
    pthread_mutex_lock(&sc->mutex);
    atomic_store(&r->cancelled, true);
    engine_wake(r->e);
    pthread_mutex_unlock(&sc->mutex);
}

void sl_request_free(sl_request *r) {
    if (!r)
        return;
    sl_request_cancel(r);
    engine_sched *sc = &r->e->sched;
    pthread_mutex_lock(&sc->mutex);
    while (!r->ended)
        pthread_cond_wait(&r->changed, &sc->mutex);
    pthread_mutex_unlock(&sc->mutex);
    request_destroy(r);
}

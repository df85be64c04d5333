#include "support_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

sl_engine_options model_options_of(const char *model) {
    sl_engine_options o = SL_ENGINE_OPTIONS_INIT;
    o.model = model;
    o.memory = 1024 * MIB;
    o.threads = 2;
    o.context = 256;
    return o;
}

sl_engine *model_must_open(const sl_engine_options *o) {
    sl_error err = {0};
    sl_engine *e = sl_engine_open(o, &err);
    if (!e)
        fail_msg("%s: %s", o->model, err.message);
    return e;
}

sl_engine_info model_info_of(const sl_engine *e) {
    sl_engine_info i = {.size = sizeof i};
    assert_true(sl_engine_get_info(e, &i));
    return i;
}

sl_stats model_stats_of(const sl_engine *e) {
    sl_stats s = {.size = sizeof s};
    sl_engine_get_stats(e, &s);
    return s;
}

int32_t model_token_at(int stream, int i) {
    uint32_t x = (uint32_t)i * 2654435761u ^ (uint32_t)(stream * 40503 + 17);
    x ^= x >> 15;
    return (int32_t)(x % 256);
}

sl_seq *model_new_seq(sl_engine *e) {
    sl_error err = {0};
    sl_seq *s = sl_seq_new(e, &err);
    if (!s)
        fail_msg("%s", err.message);
    return s;
}

void model_append(sl_engine *e, sl_seq *s, int stream, int from, int to, float *out) {
    sl_input in[512];
    sl_error err = {0};
    assert_in_range(to - from, 1, 512);
    for (int i = from; i < to; i++)
        in[i - from] = (sl_input){s, model_token_at(stream, i), out && i == to - 1};
    if (!sl_decode(e, in, (size_t)(to - from), out, &err))
        fail_msg("%s", err.message);
}

sl_request *model_start(sl_engine *e, int stream, int n, int max_tokens, float temperature) {
    int32_t prompt[1024];
    sl_error err = {0};
    assert_in_range(n, 1, (int)SL_COUNT(prompt));
    sl_generate_options o = SL_GENERATE_OPTIONS_INIT;
    for (int i = 0; i < n; i++)
        prompt[i] = model_token_at(stream, i);
    o.prompt = prompt;
    o.prompt_count = (size_t)n;
    o.max_tokens = max_tokens;
    o.ignore_eos = true;
    o.sampling.temperature = temperature;
    o.sampling.seed = (uint64_t)stream;
    sl_request *r = sl_generate(e, &o, &err);
    if (!r)
        fail_msg("%s", err.message);
    return r;
}

void model_collect(sl_request *r, model_text *t) {
    memset(t, 0, sizeof *t);
    do {
        assert_true(sl_request_next(r, &t->last, 60000));
        if (t->last.token >= 0)
            t->tokens[t->count++] = t->last.token;
        assert_true(t->size + t->last.text_size < sizeof t->bytes);
        memcpy(t->bytes + t->size, t->last.text, t->last.text_size);
        t->size += t->last.text_size;
    } while (t->last.finish == SL_FINISH_NONE);
    sl_request_free(r);
}

sl_request *model_answer(sl_seq *s, int stream, int prompt, int most) {
    int32_t tokens[128];
    sl_error err = {0};
    sl_generate_options g = SL_GENERATE_OPTIONS_INIT;
    for (int i = 0; i < prompt; i++)
        tokens[i] = model_token_at(stream, i);
    g.prompt = tokens;
    g.prompt_count = (size_t)prompt;
    g.max_tokens = most;
    g.ignore_eos = true;
    g.seq = s;
    sl_request *r = sl_generate(s->e, &g, &err);
    if (!r)
        fail_msg("%s", err.message);
    return r;
}

int model_disturbed(sl_engine *e, sl_seq **s, int *at, int seqs, int calls) {
    int failed = 0;
    for (int call = 0; call < calls; call++) {
        int i = call % seqs, n = call % 7 ? 1 + call % 3 : 20;
        sl_input in[32];
        sl_error err = {0};
        for (int k = 0; k < n; k++)
            in[k] = (sl_input){s[i], model_token_at(i, at[i] + k), false};
        if (sl_decode(e, in, (size_t)n, NULL, &err)) {
            at[i] += n;
            continue;
        }
        assert_int_equal(err.code, SL_ERR_IO);
        failed++;
    }
    return failed;
}

void model_straight(sl_engine *e, const int32_t *tokens, int n, float *logits) {
    sl_input in[256];
    sl_error err = {0};
    sl_seq *s = model_new_seq(e);
    for (int i = 0; i < n; i++)
        in[i] = (sl_input){s, tokens[i], i == n - 1};
    if (!sl_decode(e, in, (size_t)n, logits, &err))
        fail_msg("%s", err.message);
    sl_seq_free(s);
}

void model_check_continues(sl_seq *s, sl_engine *undisturbed) {
    int32_t tokens[256];
    float got[MODEL_VOCAB], expected[MODEL_VOCAB];
    size_t vocab = (size_t)model_info_of(undisturbed).vocab;
    sl_error err = {0};
    int n = sl_seq_length(s);
    assert_true(vocab <= MODEL_VOCAB && n < (int)SL_COUNT(tokens));
    memcpy(tokens, sl_seq_tokens(s), (size_t)n * sizeof *tokens);
    tokens[n] = 7;
    bool ok = false;
    for (int tries = 0; tries < 200 && !ok; tries++) /* where reads fail */
        ok = sl_decode(s->e, &(sl_input){s, 7, true}, 1, got, &err);
    if (!ok)
        fail_msg("%s", err.message);
    model_straight(undisturbed, tokens, n + 1, expected);
    assert_memory_equal(got, expected, vocab * sizeof *got);
}

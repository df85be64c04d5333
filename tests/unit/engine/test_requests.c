/* Requests through the scheduler: many at once give what each gives alone; how they end; their queue of events. */
#include "support_fake.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- generation ------------------------------------------------------------------------------------------------- */

static void test_greedy_follows_the_logits(void **state) {
    int32_t t[300];
    fake *f = fake_open(&(fake_options){0});
    srand(1);
    fake_random_tokens(t, 150);
    for (int n = 1; n <= 150; n += 37) {
        sl_generate_options o = fake_prompt(t, n, 20);
        fake_result got = fake_run(f, &o);
        assert_int_equal(got.count, 20);
        assert_int_equal(got.last.finish, SL_FINISH_LENGTH);
        assert_int_equal(got.last.prompt_tokens, n);
        assert_int_equal(got.last.completion_tokens, 20);
        int32_t history[300];
        memcpy(history, t, sizeof(int32_t) * (size_t)n);
        for (int i = 0; i < 20; i++) {
            history[n + i] = fake_greedy(history, n + i);
            assert_int_equal(got.tokens[i], history[n + i]);
        }
    }
    fake_close(f);
}

static void test_sequence_holds_all_but_the_last(void **state) {
    int32_t t[20];
    fake *f = fake_open(&(fake_options){0});
    srand(2);
    fake_random_tokens(t, 20);
    sl_seq *s = sl_seq_new(&f->e, NULL);
    sl_generate_options o = fake_prompt(t, 10, 5);
    o.seq = s;
    fake_result got = fake_run(f, &o);
    assert_int_equal(sl_seq_length(s), 14);
    assert_memory_equal(sl_seq_tokens(s), t, sizeof(int32_t) * 10);
    assert_memory_equal(sl_seq_tokens(s) + 10, got.tokens, sizeof(int32_t) * 4);
    /* Going on from there is going on from the whole text. */
    int32_t history[16];
    memcpy(history, sl_seq_tokens(s), sizeof(int32_t) * 14);
    history[14] = got.tokens[4];
    history[15] = 3;
    sl_generate_options more = fake_prompt(history + 14, 2, 1);
    more.seq = s;
    fake_result next = fake_run(f, &more);
    assert_int_equal(next.tokens[0], fake_greedy(history, 16));
    sl_seq_free(s);
    fake_close(f);
}

enum { MANY = 24 };

static void many_options(sl_generate_options *o, int32_t (*prompt)[200], int i) {
    int n = i % 3 ? 1 + i * 3 : 130 + i * 2;
    *o = fake_prompt(prompt[i], n, 5 + i % 17);
    o->sampling.temperature = i % 2 ? 0.9f : 0;
    o->sampling.top_k = i % 4 == 1 ? 20 : 0;
    o->sampling.top_p = i % 4 == 3 ? 0.8f : 0;
    o->sampling.repeat_penalty = i % 5 ? 0 : 1.2f;
    o->sampling.seed = (uint64_t)i;
    o->sampling.logprobs = i % 6 ? 0 : 3;
}

/* More requests than max_sequences, with long and short prompts, beside sl_decode: the same as one by one. */
static void test_many_at_once_equal_one_by_one(void **state) {
    static int32_t prompt[MANY][200];
    static fake_result alone[MANY], together[MANY];
    sl_request *r[MANY];
    const unsigned seed = 12;
    print_message("seed %u\n", seed);
    srand(seed);
    for (int i = 0; i < MANY; i++)
        fake_random_tokens(prompt[i], 200);
    fake *f = fake_open(&(fake_options){.tokenizer = true, .slabs = 80});
    for (int i = 0; i < MANY; i++) {
        sl_generate_options o;
        many_options(&o, prompt, i);
        alone[i] = fake_run(f, &o);
    }
    fake_close(f);
    for (int chunk = 7; chunk < 200; chunk *= 5) {
        f = fake_open(&(fake_options){.tokenizer = true, .slabs = 80, .chunk = chunk, .max_sequences = 5});
        for (int i = 0; i < MANY; i++) {
            sl_generate_options o;
            many_options(&o, prompt, i);
            r[i] = fake_start(f, &o);
        }
        int32_t t[300];
        float got[FAKE_VOCAB], expected[FAKE_VOCAB];
        sl_seq *s = sl_seq_new(&f->e, NULL);
        fake_random_tokens(t, 300);
        fake_append(s, t, 300, got);
        fake_logits(t, 300, expected);
        assert_memory_equal(got, expected, sizeof got);
        sl_seq_free(s);
        for (int i = 0; i < MANY; i++) {
            fake_collect(r[i], &together[i]);
            sl_request_free(r[i]);
            assert_int_equal(together[i].count, alone[i].count);
            assert_memory_equal(together[i].tokens, alone[i].tokens, sizeof(int32_t) * (size_t)alone[i].count);
            assert_int_equal(together[i].text_size, alone[i].text_size);
            assert_memory_equal(together[i].text, alone[i].text, alone[i].text_size);
        }
        assert_true(f->mixed_steps > 0);
        assert_true(f->most_rows <= chunk + 5);
        fake_close(f);
    }
}

static void test_seeds(void **state) {
    int32_t t[4] = {1, 2, 3, 4};
    fake *f = fake_open(&(fake_options){0});
    sl_generate_options o = fake_prompt(t, 4, 40);
    o.sampling.temperature = 1.5f;
    o.sampling.seed = 77;
    fake_result a = fake_run(f, &o), b = fake_run(f, &o);
    o.sampling.seed = 78;
    fake_result c = fake_run(f, &o);
    assert_memory_equal(a.tokens, b.tokens, sizeof(int32_t) * 40);
    assert_memory_not_equal(a.tokens, c.tokens, sizeof(int32_t) * 40);
    fake_close(f);
}

/* Presence and frequency are of generated tokens: a prompt may repeat itself. */
static void test_penalties_do_not_count_the_prompt(void **state) {
    int32_t t[200];
    fake *f = fake_open(&(fake_options){0});
    srand(13);
    fake_random_tokens(t, 50);
    t[49] = fake_greedy(t, 48); /* what greedy would say is in the prompt already */
    t[48] = t[49];
    int32_t first = fake_greedy(t, 50);
    t[0] = first;
    while (fake_greedy(t, 50) != first) /* the prompt begins with what follows it */
        t[1] = (t[1] + 1) % FAKE_VOCAB;
    sl_generate_options o = fake_prompt(t, 50, 60);
    o.sampling.presence_penalty = 1000;
    fake_result got = fake_run(f, &o);
    assert_int_equal(got.tokens[0], first);
    bool seen[FAKE_VOCAB] = {false};
    for (int i = 0; i < got.count; i++) {
        assert_false(seen[got.tokens[i]]);
        seen[got.tokens[i]] = true;
    }
    fake_close(f);
}

static void test_logprobs(void **state) {
    int32_t t[4] = {9, 8, 7, 6};
    fake *f = fake_open(&(fake_options){0});
    sl_generate_options o = fake_prompt(t, 4, 1);
    o.sampling.logprobs = 5;
    fake_result a = fake_run(f, &o);
    assert_int_equal(a.last.top_count, 5);
    assert_int_equal(a.last.top[0].token, a.last.token);
    assert_true(a.last.logprob == a.last.top[0].logprob && a.last.logprob < 0);
    fake_close(f);
}

/* ---- ends ------------------------------------------------------------------------------------------------------- */

static void test_full_context_is_length(void **state) {
    int32_t t[100];
    fake *f = fake_open(&(fake_options){.context = 80});
    srand(3);
    fake_random_tokens(t, 100);
    sl_generate_options o = fake_prompt(t, 70, 0);
    fake_result got = fake_run(f, &o);
    assert_int_equal(got.last.finish, SL_FINISH_LENGTH);
    assert_int_equal(got.count, 11); /* 10 that are evaluated and one that need not be */
    o = fake_prompt(t, 80, 0);
    fake_result one = fake_run(f, &o);
    assert_int_equal(one.last.finish, SL_FINISH_LENGTH);
    assert_int_equal(one.count, 1);
    o = fake_prompt(t, 81, 0);
    sl_error err = {0};
    assert_null(sl_generate(&f->e, &o, &err));
    assert_int_equal(err.code, SL_ERR_CONTEXT);
    sl_seq *s = sl_seq_new(&f->e, NULL);
    fake_append(s, t, 50, NULL);
    o = fake_prompt(t, 31, 0);
    o.seq = s;
    assert_null(sl_generate(&f->e, &o, &err));
    assert_int_equal(err.code, SL_ERR_CONTEXT);
    assert_int_equal(sl_seq_length(s), 50);
    sl_seq_free(s);
    fake_close(f);
}

static void test_end_token(void **state) {
    int32_t t[3] = {5, 6, 7};
    fake *f = fake_open(&(fake_options){.tokenizer = true});
    int32_t eos = 271;
    assert_true(sl_tokenizer_is_stop(f->e.tokenizer, eos) || sl_tokenizer_eos(f->e.tokenizer) == eos);
    sl_logit_bias bias = {eos, 1000};
    sl_generate_options o = fake_prompt(t, 3, 4);
    o.sampling.logit_bias = &bias;
    o.sampling.logit_bias_count = 1;
    fake_result got = fake_run(f, &o);
    assert_int_equal(got.last.finish, SL_FINISH_STOP);
    assert_int_equal(got.count, 1);
    assert_int_equal(got.last.token, eos);
    assert_int_equal(got.text_size, 0); /* control tokens are not shown */
    o.ignore_eos = true;
    fake_result all = fake_run(f, &o);
    assert_int_equal(all.last.finish, SL_FINISH_LENGTH);
    assert_int_equal(all.count, 4);
    fake_close(f);
}

/* Generates with bytes forced by bias: the byte-level tokenizer has one token per byte. */
static void test_stop_string(void **state) {
    fake *f = fake_open(&(fake_options){.tokenizer = true});
    int32_t t[8];
    int32_t *ids;
    size_t n;
    srand(5);
    fake_random_tokens(t, 8);
    assert_true(sl_tokenize(&f->e, "ab", 2, false, false, &ids, &n, NULL));
    assert_true(n >= 1);
    /* Only a and b can come: the text is a string of these two, the same with and without a stop string. */
    sl_logit_bias bias[2] = {{ids[0], 1000}, {ids[n - 1], 1000}};
    sl_generate_options o = fake_prompt(t, 8, 60);
    o.sampling.logit_bias = bias;
    o.sampling.logit_bias_count = n > 1 ? 2 : 1;
    fake_result whole = fake_run(f, &o);
    assert_int_equal(whole.last.finish, SL_FINISH_LENGTH);
    assert_true(whole.text_size >= 60);
    char stop[5] = {0};
    memcpy(stop, whole.text + 20, 4);
    const char *list[] = {"never", stop};
    o.stop = list;
    o.stop_count = 2;
    fake_result got = fake_run(f, &o);
    size_t at = (size_t)(strstr(whole.text, stop) - whole.text);
    assert_int_equal(got.last.finish, SL_FINISH_STOP);
    assert_int_equal(got.text_size, at);
    assert_memory_equal(got.text, whole.text, at);
    sl_free(ids);
    fake_close(f);
}

static void test_bad_requests(void **state) {
    int32_t t[3] = {1, 2, FAKE_VOCAB};
    fake *f = fake_open(&(fake_options){0});
    sl_error err = {0};
    sl_generate_options o = fake_prompt(t, 0, 0);
    assert_null(sl_generate(&f->e, &o, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "prompt"));
    o = fake_prompt(t, 3, 0);
    assert_null(sl_generate(&f->e, &o, &err));
    assert_non_null(strstr(err.message, "272"));
    o = fake_prompt(t, 2, -1);
    assert_null(sl_generate(&f->e, &o, &err));
    o = fake_prompt(t, 2, 1);
    o.sampling.temperature = -1;
    assert_null(sl_generate(&f->e, &o, &err));
    o = fake_prompt(t, 2, 1);
    o.size = 0;
    assert_null(sl_generate(&f->e, &o, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    o = fake_prompt(t, 2, 1);
    const char *stop = "";
    o.stop = &stop;
    o.stop_count = 1;
    assert_null(sl_generate(&f->e, &o, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    fake_close(f);
}

/* ---- the queue -------------------------------------------------------------------------------------------------- */

/* Nobody reads: generation waits, others go on; then nothing is missing. */
static void test_slow_reader(void **state) {
    int32_t t[3] = {4, 5, 6};
    fake *f = fake_open(&(fake_options){0});
    sl_generate_options o = fake_prompt(t, 3, 100);
    sl_request *slow = fake_start(f, &o);
    fake_result other = fake_run(f, &o);
    assert_int_equal(other.count, 100);
    int steps = -1;
    while (steps != f->steps) { /* until it stands still */
        steps = f->steps;
        usleep(3000);
    }
    pthread_mutex_lock(&f->e.sched.mutex);
    assert_int_equal(slow->event_count, ENGINE_EVENT_LIMIT);
    pthread_mutex_unlock(&f->e.sched.mutex);
    fake_result got;
    fake_collect(slow, &got);
    assert_int_equal(got.count, 100);
    assert_memory_equal(got.tokens, other.tokens, sizeof(int32_t) * 100);
    sl_request_free(slow);
    fake_close(f);
}

static void test_next_times_out(void **state) {
    int32_t t[3] = {4, 5, 6};
    fake *f = fake_open(&(fake_options){0});
    f->hold = true;
    sl_generate_options o = fake_prompt(t, 3, 1);
    sl_request *r = fake_start(f, &o);
    sl_event ev;
    assert_false(sl_request_next(r, &ev, 0));
    assert_false(sl_request_next(r, &ev, 5));
    f->hold = false;
    assert_true(sl_request_next(r, &ev, -1));
    assert_int_equal(ev.finish, SL_FINISH_LENGTH);
    sl_request_free(r);
    fake_close(f);
}

/* A sequence is one caller's: a second use is refused, not mixed up. */
static void test_busy_sequence(void **state) {
    int32_t t[3] = {4, 5, 6};
    fake *f = fake_open(&(fake_options){0});
    sl_seq *s = sl_seq_new(&f->e, NULL);
    f->hold = true;
    sl_generate_options o = fake_prompt(t, 3, 1);
    o.seq = s;
    sl_request *r = fake_start(f, &o);
    sl_error err = {0};
    assert_null(sl_generate(&f->e, &o, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    assert_null(sl_seq_fork(s, &err));
    assert_false(sl_seq_truncate(s, 0, &err));
    assert_false(sl_decode(&f->e, &(sl_input){s, 1, false}, 1, NULL, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    f->hold = false;
    fake_result got;
    fake_collect(r, &got);
    assert_int_equal(sl_seq_length(s), 3); /* free again with the last event */
    sl_request_free(r);
    sl_seq_free(s);
    fake_close(f);
}

/* A text longer than an event holds, held back by a stop string that almost matches, comes in several events. */
static void test_long_text_in_several_events(void **state) {
    enum { N = 1500 };
    fake *f = fake_open(&(fake_options){.tokenizer = true, .context = 4096, .slabs = 64});
    int32_t *ids;
    size_t n;
    assert_true(sl_tokenize(&f->e, "a", 1, false, false, &ids, &n, NULL));
    assert_int_equal(n, 1);
    char *stop = malloc(N + 2);
    assert_non_null(stop);
    memset(stop, 'a', N);
    memcpy(stop + N, "b", 2);
    sl_logit_bias bias = {ids[0], 1000};
    const char *list[] = {stop};
    sl_generate_options o = fake_prompt(ids, 1, N - 1);
    o.sampling.logit_bias = &bias;
    o.sampling.logit_bias_count = 1;
    o.stop = list;
    o.stop_count = 1;
    sl_request *r = fake_start(f, &o);
    sl_event ev;
    size_t bytes = 0, tokens = 0, events = 0;
    do {
        assert_true(sl_request_next(r, &ev, -1));
        assert_int_equal(strlen(ev.text), ev.text_size);
        bytes += ev.text_size;
        tokens += ev.token >= 0;
        events++;
    } while (ev.finish == SL_FINISH_NONE);
    assert_int_equal(bytes, N - 1);
    assert_int_equal(tokens, N - 1);
    assert_int_equal(events, N - 1 + 1);
    sl_request_free(r);
    sl_free(ids);
    free(stop);
    fake_close(f);
}

/* ---- figures ---------------------------------------------------------------------------------------------------- */

static void test_stats_and_activity(void **state) {
    int32_t t[100];
    char text[64];
    uint64_t since;
    fake *f = fake_open(&(fake_options){0});
    fake_random_tokens(t, 100);
    sl_generate_options o = fake_prompt(t, 100, 10);
    fake_result got = fake_run(f, &o);
    sl_stats st = {.size = sizeof st};
    sl_engine_get_stats(&f->e, &st);
    assert_int_equal(st.prompt_tokens + st.decode_tokens, 109);
    assert_true(st.decode_tokens >= 9 && st.prompt_ns > 0 && st.decode_ns > 0);
    assert_true(st.kv_bytes > 0 && st.memory_peak >= st.memory_used && st.rss_peak > 0);
    sl_engine_reset_stats(&f->e);
    sl_engine_get_stats(&f->e, &st);
    assert_int_equal(st.prompt_tokens + st.decode_tokens, 0);
    f->hold = true;
    sl_request *r = fake_start(f, &o);
    fake_await(&f->holding);
    sl_engine_activity(&f->e, text, sizeof text, &since);
    assert_string_equal(text, "prefill of 64 tokens");
    assert_true(since > 0);
    f->hold = false;
    fake_collect(r, &got);
    sl_request_free(r);
    fake_close(f);
}

/* ---- memory for KV ---------------------------------------------------------------------------------------------- */

static void test_prompt_that_can_never_fit_is_refused_before_prefill(void **state) {
    int32_t t[513];
    fake *f = fake_open(&(fake_options){.slabs = 2, .context = 1024}); /* 512 tokens */
    sl_error err = {0};
    srand(31);
    fake_random_tokens(t, 513);
    sl_generate_options o = fake_prompt(t, 512, 2);
    assert_null(sl_generate(&f->e, &o, &err));
    assert_int_equal(err.code, SL_ERR_BUDGET);
    assert_non_null(strstr(err.message, "prompt of 512 tokens after 0"));
    assert_non_null(strstr(err.message, "KV of 513 tokens is needed"));
    assert_non_null(strstr(err.message, "holds 512 at most"));
    o = fake_prompt(t, 513, 1);
    assert_null(sl_generate(&f->e, &o, &err));
    assert_int_equal(err.code, SL_ERR_BUDGET);
    sl_seq *s = sl_seq_new(&f->e, NULL);
    sl_input in[513];
    for (int i = 0; i < 513; i++)
        in[i] = (sl_input){s, t[i], false};
    assert_false(sl_decode(&f->e, in, 513, NULL, &err));
    assert_int_equal(err.code, SL_ERR_BUDGET);
    assert_int_equal(f->steps, 0);
    sl_seq_free(s);
    o = fake_prompt(t, 512, 1); /* its one token is not evaluated */
    fake_result got = fake_run(f, &o);
    assert_int_equal(got.last.finish, SL_FINISH_LENGTH);
    assert_int_equal(got.last.error.code, SL_OK);
    assert_int_equal(got.count, 1);
    fake_close(f);
}

static void test_memory_that_runs_out_in_an_answer_ends_it_and_loses_nothing(void **state) {
    int32_t t[500];
    fake *f = fake_open(&(fake_options){.slabs = 2, .context = 1024});
    srand(32);
    fake_random_tokens(t, 500);
    sl_seq *s = sl_seq_new(&f->e, NULL);
    sl_generate_options o = fake_prompt(t, 500, 100);
    o.seq = s;
    fake_result got = fake_run(f, &o);
    assert_int_equal(got.last.finish, SL_FINISH_LENGTH);
    assert_int_equal(got.last.error.code, SL_ERR_BUDGET);
    assert_int_equal(got.count, 13); /* 12 of them in the sequence */
    assert_int_equal(got.last.completion_tokens, 13);
    assert_int_equal(sl_seq_length(s), 512);
    sl_seq_free(s);
    fake_close(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_follows_the_logits),
        cmocka_unit_test(test_prompt_that_can_never_fit_is_refused_before_prefill),
        cmocka_unit_test(test_memory_that_runs_out_in_an_answer_ends_it_and_loses_nothing),
        cmocka_unit_test(test_sequence_holds_all_but_the_last),
        cmocka_unit_test(test_many_at_once_equal_one_by_one),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_penalties_do_not_count_the_prompt),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_full_context_is_length),
        cmocka_unit_test(test_end_token),
        cmocka_unit_test(test_stop_string),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_next_times_out),
        cmocka_unit_test(test_busy_sequence),
        cmocka_unit_test(test_long_text_in_several_events),
        cmocka_unit_test(test_stats_and_activity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

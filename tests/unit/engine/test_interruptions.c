/* Faults and cancellation stay with the request they belong to. */
#include "support_fake.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- faults ----------------------------------------------------------------------------------------------------- */

/* One of several requests runs into a fault; the others give what they give alone. */
static void check_fault(_Atomic int32_t *knob, fake *f, sl_code code) {
    enum { N = 4 };
    int32_t t[N][40];
    sl_request *r[N];
    *knob = 200;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < 40; j++)
            t[i][j] = (i * 41 + j * 7) % 199;
    t[2][33] = 200; /* in the prompt of one of them */
    sl_logit_bias never = {200, -1e9f};
    for (int i = 0; i < N; i++) {
        sl_generate_options o = fake_prompt(t[i], 40, 12);
        o.sampling.logit_bias = &never;
        o.sampling.logit_bias_count = 1;
        r[i] = fake_start(f, &o);
    }
    for (int i = 0; i < N; i++) {
        fake_result got;
        fake_collect(r[i], &got);
        sl_request_free(r[i]);
        assert_int_equal(got.last.finish, i == 2 ? SL_FINISH_ERROR : SL_FINISH_LENGTH);
        assert_int_equal(got.count, i == 2 ? 0 : 12);
        assert_int_equal(got.last.error.code, i == 2 ? code : SL_OK);
        assert_true(i != 2 || strlen(got.last.error.message) > 10);
        int32_t history[64];
        memcpy(history, t[i], sizeof t[i]);
        for (int j = 0; j < got.count; j++) {
            float logits[FAKE_VOCAB];
            fake_logits(history, 40 + j, logits);
            logits[200] = -1e9f;
            for (int k = 0; k < FAKE_VOCAB; k++)
                assert_true(logits[k] <= logits[got.tokens[j]]);
            history[40 + j] = got.tokens[j];
        }
    }
    *knob = -1;
}

static void test_read_error_fails_its_rows_only(void **state) {
    fake *f = fake_open(&(fake_options){0});
    check_fault(&f->row_error_token, f, SL_ERR_IO);
    fake_close(f);
}

static void test_nan_fails_its_request_only(void **state) {
    fake *f = fake_open(&(fake_options){0});
    check_fault(&f->nan_token, f, SL_ERR_NUMERIC);
    fake_close(f);
}

static void test_budget_fails_its_request_only(void **state) {
    int32_t t[500];
    fake *f = fake_open(&(fake_options){.slabs = 2, .context = 1024, .max_sequences = 2});
    srand(7);
    fake_random_tokens(t, 500);
    sl_generate_options small = fake_prompt(t, 60, 60), large = fake_prompt(t, 500, 10);
    sl_request *a = fake_start(f, &small), *b = fake_start(f, &large);
    fake_result x, y;
    fake_collect(b, &y);
    fake_collect(a, &x);
    assert_int_equal(y.last.finish, SL_FINISH_ERROR);
    assert_int_equal(y.last.error.code, SL_ERR_BUDGET);
    assert_int_equal(x.last.finish, SL_FINISH_LENGTH);
    assert_int_equal(x.count, 60);
    sl_request_free(a);
    sl_request_free(b);
    /* The room is free again. */
    sl_generate_options fits = fake_prompt(t, 400, 3);
    fake_result z = fake_run(f, &fits);
    assert_int_equal(z.last.finish, SL_FINISH_LENGTH);
    fake_close(f);
}

/* ---- cancelling ------------------------------------------------------------------------------------------------- */

static void test_cancel_within_a_step(void **state) {
    int32_t t[100];
    fake *f = fake_open(&(fake_options){0});
    srand(8);
    fake_random_tokens(t, 100);
    for (int n = 1; n < 100; n += 60) {
        sl_seq *s = sl_seq_new(&f->e, NULL);
        sl_generate_options o = fake_prompt(t, n, 0);
        o.seq = s;
        f->hold = true;
        sl_request *r = fake_start(f, &o);
        fake_await(&f->holding);
        int before = f->cancelled_steps;
        sl_request_cancel(r);
        fake_result got;
        fake_collect(r, &got); /* though the step is still held: it was left within a layer */
        assert_int_equal(f->cancelled_steps, before + 1);
        assert_int_equal(got.last.finish, SL_FINISH_CANCELLED);
        sl_request_free(r);
        assert_int_equal(sl_seq_length(s), 0);
        f->hold = false;
        float got_logits[FAKE_VOCAB], expected[FAKE_VOCAB];
        fake_append(s, t, 50, got_logits); /* and the sequence is as good as before */
        fake_logits(t, 50, expected);
        assert_memory_equal(got_logits, expected, sizeof expected);
        sl_seq_free(s);
    }
    fake_close(f);
}

static void test_cancelled_prefill_does_not_cost_the_others(void **state) {
    int32_t t[200];
    fake *f = fake_open(&(fake_options){0});
    srand(9);
    fake_random_tokens(t, 200);
    sl_generate_options decoding = fake_prompt(t, 5, 30), prefill = fake_prompt(t, 200, 5);
    sl_request *a = fake_start(f, &decoding);
    sl_event ev;
    assert_true(sl_request_next(a, &ev, -1));
    int32_t history[64];
    memcpy(history, t, sizeof(int32_t) * 5);
    assert_int_equal(ev.token, history[5] = fake_greedy(history, 5));
    f->hold_above = 4;
    f->hold = true;
    sl_request *b = fake_start(f, &prefill);
    fake_await(&f->holding);
    sl_request_cancel(b);
    fake_result got;
    fake_collect(b, &got); /* the step is still held: it was left within a layer */
    assert_int_equal(got.last.finish, SL_FINISH_CANCELLED);
    sl_request_free(b);
    f->hold = false;
    fake_collect(a, &got);
    assert_int_equal(got.count, 29);
    for (int i = 0; i < 29; i++) {
        history[6 + i] = fake_greedy(history, 6 + i);
        assert_int_equal(got.tokens[i], history[6 + i]);
    }
    sl_request_free(a);
    fake_close(f);
}

static void test_cancel_while_waiting_and_freeing_early(void **state) {
    int32_t t[10] = {1, 2, 3};
    fake *f = fake_open(&(fake_options){.max_sequences = 1});
    sl_generate_options o = fake_prompt(t, 3, 0);
    f->hold = true;
    sl_request *a = fake_start(f, &o), *b = fake_start(f, &o), *c = fake_start(f, &o);
    fake_await(&f->holding);
    f->hold = false;
    sl_request_cancel(b);
    fake_result got;
    fake_collect(b, &got);
    assert_int_equal(got.last.finish, SL_FINISH_CANCELLED);
    assert_int_equal(got.count, 0);
    sl_request_free(c); /* never ran, never read */
    sl_request_free(a); /* runs, half read */
    sl_request_free(b);
    sl_request_free(NULL);
    fake_close(f);
}

static void test_closing_ends_everything(void **state) {
    int32_t t[3] = {1, 2, 3};
    fake *f = fake_open(&(fake_options){.max_sequences = 1});
    sl_generate_options o = fake_prompt(t, 3, 0);
    f->hold = true;
    sl_request *a = fake_start(f, &o), *b = fake_start(f, &o);
    fake_await(&f->holding);
    engine_core_stop(&f->e);
    fake_result got;
    fake_collect(a, &got);
    assert_int_equal(got.last.finish, SL_FINISH_CANCELLED);
    fake_collect(b, &got);
    assert_int_equal(got.last.finish, SL_FINISH_CANCELLED);
    sl_request_free(a);
    sl_request_free(b);
    fake_close(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_error_fails_its_rows_only),
        cmocka_unit_test(test_nan_fails_its_request_only),
        cmocka_unit_test(test_budget_fails_its_request_only),
        cmocka_unit_test(test_cancel_within_a_step),
        cmocka_unit_test(test_cancelled_prefill_does_not_cost_the_others),
        cmocka_unit_test(test_cancel_while_waiting_and_freeing_early),
        cmocka_unit_test(test_closing_ends_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

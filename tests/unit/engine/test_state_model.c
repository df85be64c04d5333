/* Recurrent layers of a real model, streamed: reads that fail in the middle of a step, cancellation within the layers,
 * forks, truncation and snapshots leave nothing behind that the logits would show: compared with memcmp. */
#include "support_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL GOLDEN "qwen3_5_moe"

static sl_engine_options options(int chunk) {
    sl_engine_options o = model_options_of(MODEL);
    o.chunk = chunk;
    o.max_slots = 3; /* most experts must be read */
    return o;
}

static sl_reader *with_faults(void *plan, sl_reader *inner, sl_error *err) {
    return sl_reader_fault(inner, plan, err);
}

static sl_engine *open_with(const sl_engine_options *o, sl_fault_plan *plan) {
    sl_error err = {0};
    sl_engine *e = engine_open_wrapped(o, with_faults, plan, &err);
    if (!e)
        fail_msg("%s", err.message);
    return e;
}

static void test_figures(void **state) {
    sl_engine_options o = options(64);
    sl_engine *e = model_must_open(&o);
    sl_engine_info i = model_info_of(e);
    const sl_model_config *c = sl_model_config_get(e->model);
    int values = c->delta_value_heads * c->delta_value_dim, keys = c->delta_key_heads * c->delta_key_dim;
    int state_floats = values * c->delta_key_dim + (c->delta_kernel - 1) * (2 * keys + values);
    int kept_floats = c->delta_value_heads * 16 * ((c->delta_key_dim + 15) / 16 * 16 + c->delta_value_dim + 1);
    assert_in_range(c->delta_layers, 1, c->layers - 1);
    assert_int_equal(c->attention_layers, c->layers - c->delta_layers);
    assert_int_equal(i.state_bytes_per_sequence,
                     c->delta_layers * ((state_floats * 4 + 63) / 64 * 64 + (kept_floats * 4 + 63) / 64 * 64));
    assert_int_equal(i.kv_bytes_per_token, c->attention_layers * 2 * c->kv_heads * c->head_dim * 2);
    sl_engine_close(e);
}

static void test_forks_truncation_and_snapshots(void **state) {
    sl_engine_options o = options(13), other = options(64);
    other.threads = 1;
    sl_engine *e = model_must_open(&o), *f = model_must_open(&other);
    sl_error err = {0};
    sl_seq *a = model_new_seq(e);
    model_append(e, a, 0, 0, 90, NULL);
    sl_seq *b = sl_seq_fork(a, &err);
    model_append(e, b, 1, 0, 20, NULL);
    model_check_continues(a, f);
    model_check_continues(b, f);
    void *bytes;
    size_t size;
    assert_true(sl_seq_save(b, &bytes, &size, &err));
    sl_seq *c = sl_seq_restore(f, bytes, size, &err); /* into another engine */
    if (!c)
        fail_msg("%s", err.message);
    model_check_continues(c, e);
    free(bytes);
    assert_true(sl_seq_truncate(a, 70, &err));
    model_check_continues(a, f);
    assert_true(sl_seq_truncate(b, 33, &err));
    assert_true(sl_seq_save(b, &bytes, &size, &err)); /* what it saves it evaluates first */
    sl_seq_free(c);
    c = sl_seq_restore(e, bytes, size, &err);
    assert_non_null(c);
    model_check_continues(c, f);
    model_check_continues(b, f);
    free(bytes);
    sl_seq_free(a);
    sl_seq_free(b);
    sl_seq_free(c);
    sl_engine_close(e);
    sl_engine_close(f);
}

static void test_snapshot_of_another_model(void **state) {
    sl_engine_options o = options(64), p = options(64);
    p.model = GOLDEN "qwen3_moe";
    sl_engine *e = model_must_open(&o), *f = model_must_open(&p);
    sl_error err = {0};
    sl_seq *s = model_new_seq(e);
    model_append(e, s, 0, 0, 10, NULL);
    void *bytes;
    size_t size;
    assert_true(sl_seq_save(s, &bytes, &size, &err));
    assert_null(sl_seq_restore(f, bytes, size, &err));
    assert_non_null(strstr(err.message, "of another model or numeric mode"));
    free(bytes);
    sl_seq_free(s);
    sl_engine_close(e);
    sl_engine_close(f);
}

/* Failed reads fail their rows in the middle of the layers; what is tried again gives the undisturbed bits. */
static void test_reads_that_fail(void **state) {
    sl_fault_plan plan = {.seed = 3, .error_rate = 0.02, .fail_after = -1, .fail_layer_tag = -1};
    sl_engine_options o = options(17);
    sl_engine *e = open_with(&o, &plan), *undisturbed = model_must_open(&o);
    sl_seq *s[3];
    int at[3] = {0}, failed = 0;
    for (int i = 0; i < 3; i++)
        s[i] = model_new_seq(e);
    failed = model_disturbed(e, s, at, 3, 60);
    print_message("%d of 60 calls failed\n", failed);
    assert_in_range(failed, 3, 57);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(sl_seq_length(s[i]), at[i]);
        model_check_continues(s[i], undisturbed);
        sl_seq_free(s[i]);
    }
    sl_engine_close(e);
    sl_engine_close(undisturbed);
}

/* Slow reads, and a cancellation anywhere: while a prompt or a token is within the layers, or between. */
static void test_cancelled_anywhere(void **state) {
    static model_text t;
    sl_fault_plan plan = {.delay_rate = 0.5, .delay_ns = 1000000, .fail_after = -1, .fail_layer_tag = -1};
    sl_engine_options o = options(16);
    sl_engine *e = open_with(&o, &plan), *undisturbed = model_must_open(&o);
    int cancelled = 0, within = 0;
    sl_seq *s = model_new_seq(e);
    srand(11);
    for (int i = 0; i < 24; i++) {
        if (sl_seq_length(s) > 120)
            assert_true(sl_seq_truncate(s, 10, NULL));
        int before = sl_seq_length(s);
        sl_request *r = model_answer(s, i, i % 2 ? 40 : 3, 8);
        sl_request *beside = i % 3 == 0 ? model_start(e, i, 20, 4, 0) : NULL;
        usleep((unsigned)(rand() % (i % 2 ? 30000 : 60000)));
        sl_request_cancel(r);
        model_collect(r, &t);
        if (beside)
            model_collect(beside, &t);
        cancelled++;
        within += sl_seq_length(s) > before;
        model_check_continues(s, undisturbed);
    }
    print_message("%d cancelled, %d of them after something was committed\n", cancelled, within);
    sl_seq_free(s);
    sl_engine_close(e);
    sl_engine_close(undisturbed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures),
        cmocka_unit_test(test_forks_truncation_and_snapshots),
        cmocka_unit_test(test_snapshot_of_another_model),
        cmocka_unit_test(test_reads_that_fail),
        cmocka_unit_test(test_cancelled_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The whole engine over tiny checkpoints: sequences, requests, faults of the disk. */
#include "support_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- sequences -------------------------------------------------------------------------------------------------- */

/* Straight, forked, truncated and restored: the same logits by memcmp. */
static void check_sequences(const char *model, const char *numeric, const char *kv_type) {
    sl_engine_options o = model_options_of(model);
    o.numeric = numeric;
    o.kv_type = kv_type;
    o.chunk = 48;
    sl_engine *e = model_must_open(&o);
    size_t bytes = (size_t)model_info_of(e).vocab * sizeof(float);
    float *expected = malloc(bytes), *got = malloc(bytes), *other = malloc(bytes);
    assert_true(expected && got && other);
    sl_seq *straight = model_new_seq(e);
    model_append(e, straight, 1, 0, 150, expected);

    sl_seq *a = model_new_seq(e);
    model_append(e, a, 1, 0, 100, NULL);
    sl_seq *b = sl_seq_fork(a, NULL);
    assert_non_null(b);
    model_append(e, b, 2, 100, 140, other); /* the fork writes something else over the shared page */
    model_append(e, a, 1, 100, 150, got);
    assert_memory_equal(got, expected, bytes);
    assert_true(sl_seq_truncate(b, 100, NULL));
    model_append(e, b, 1, 100, 150, got);
    assert_memory_equal(got, expected, bytes);

    void *snapshot;
    size_t size;
    assert_true(sl_seq_truncate(a, 77, NULL));
    assert_true(sl_seq_save(a, &snapshot, &size, NULL));
    sl_engine_info i = model_info_of(e);
    sl_seq_free(straight);
    sl_seq_free(a);
    sl_seq_free(b);
    sl_engine_close(e);

    e = model_must_open(&o); /* a later process */
    sl_error err = {0};
    sl_seq *r = sl_seq_restore(e, snapshot, size, &err);
    if (!r)
        fail_msg("%s", err.message);
    assert_int_equal(sl_seq_length(r), 77);
    model_append(e, r, 1, 77, 150, got);
    assert_memory_equal(got, expected, bytes);
    sl_seq_free(r);
    sl_engine_close(e);

    o.numeric = strcmp(i.numeric, "q8") == 0 ? "exact" : "q8";
    o.kv_type = i.kv_type;
    e = model_must_open(&o); /* the other numeric mode would go on differently */
    assert_null(sl_seq_restore(e, snapshot, size, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    sl_engine_close(e);
    sl_free(snapshot);
    free(expected);
    free(got);
    free(other);
}

static void test_sequences(void **state) {
    check_sequences(GOLDEN "qwen3_moe", NULL, NULL);
    check_sequences(GOLDEN "qwen3_moe", "q8", "q8_0");
    check_sequences(GOLDEN "qwen2_moe-gguf/model.gguf", "exact", NULL);
    check_sequences(GOLDEN "llama-tied", "q8", "f16");
}

static void copy_file(const char *dir, const char *name, bool change) {
    sl_error err = {0};
    size_t n;
    char *from = sl_path_join(GOLDEN "llama", name), *to = sl_path_join(dir, name);
    char *bytes = sl_read_text(from, 64 * MIB, &n, &err);
    assert_non_null(bytes);
    uint64_t header;
    memcpy(&header, bytes, sizeof header);
    for (size_t i = change ? 8 + (size_t)header : n; i < n; i += 2)
        bytes[i] ^= 1; /* the last bit of each bf16 */
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    free(bytes);
    free(from);
    free(to);
}

static void remove_file(const char *dir, const char *name) {
    char *path = sl_path_join(dir, name);
    unlink(path);
    free(path);
}

/* Two checkpoints of the same shape, tensor names and formats, trained differently, are not taken for one another. */
static void test_snapshot_of_another_checkpoint(void **state) {
    char dir[] = "/tmp/sluice-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    copy_file(dir, "config.json", false);
    copy_file(dir, "model.safetensors", true);
    sl_engine_options o = model_options_of(GOLDEN "llama"), p = model_options_of(dir);
    sl_engine *e = model_must_open(&o), *f = model_must_open(&p);
    sl_seq *s = model_new_seq(e);
    void *bytes;
    size_t size;
    sl_error err = {0};
    model_append(e, s, 0, 0, 10, NULL);
    assert_true(sl_seq_save(s, &bytes, &size, NULL));
    assert_null(sl_seq_restore(f, bytes, size, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "another model"));
    sl_free(bytes);
    sl_seq_free(s);
    sl_engine_close(e);
    sl_engine_close(f);
    remove_file(dir, "config.json");
    remove_file(dir, "model.safetensors");
    assert_int_equal(rmdir(dir), 0);
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

enum { REQUESTS = 12 };

static sl_request *start_nth(sl_engine *e, int i) {
    return model_start(e, i, 3 + (i * 37) % 170, 20 + i, i % 3 ? 0.8f : 0);
}

static void test_concurrent_requests_give_the_same_texts(void **state) {
    static model_text alone[REQUESTS], together;
    sl_request *r[REQUESTS];
    sl_engine_options o = model_options_of(GOLDEN "qwen2_moe");
    o.max_slots = 6;
    o.chunk = 64;
    sl_engine *e = model_must_open(&o);
    for (int i = 0; i < REQUESTS; i++)
        model_collect(start_nth(e, i), &alone[i]);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < REQUESTS; i++)
            r[i] = start_nth(e, i);
        for (int i = 0; i < REQUESTS; i++) {
            assert_true(model_stats_of(e).memory_peak > 0); /* while it runs */
            model_collect(r[i], &together);
            assert_int_equal(together.last.finish, SL_FINISH_LENGTH);
            assert_int_equal(together.count, 20 + i);
            assert_memory_equal(together.tokens, alone[i].tokens, sizeof(int32_t) * (size_t)together.count);
            assert_int_equal(together.size, alone[i].size);
            assert_memory_equal(together.bytes, alone[i].bytes, together.size);
        }
        sl_engine_close(e);
        o.max_sequences = 3;
        o.chunk = 17;
        e = model_must_open(&o);
    }
    sl_engine_close(e);
}

static void test_context_fills_up(void **state) {
    static model_text t;
    sl_engine_options o = model_options_of(GOLDEN "qwen3_moe");
    o.context = 70;
    sl_engine *e = model_must_open(&o);
    model_collect(model_start(e, 0, 60, 0, 0), &t);
    assert_int_equal(t.last.finish, SL_FINISH_LENGTH);
    assert_int_equal(t.count, 11);
    sl_engine_close(e);
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

static sl_reader *with_faults(void *plan, sl_reader *inner, sl_error *err) {
    return sl_reader_fault(inner, plan, err);
}

static sl_engine *open_with_faults(const sl_engine_options *o, sl_fault_plan *plan) {
    sl_error err = {0};
    sl_engine *e = engine_open_wrapped(o, with_faults, plan, &err);
    if (!e)
        fail_msg("%s", err.message);
    return e;
}

/* Reads fail now and then: a request either gives exactly its text or ends with the read's error, and the engine lives
 * on. */
static void test_read_errors_fail_only_whom_they_hit(void **state) {
    static model_text expected[REQUESTS], got;
    sl_fault_plan plan = {
        .seed = 5, .error_rate = 0.004, .delay_rate = 0.1, .delay_ns = 20000, .fail_after = -1, .fail_layer_tag = -1};
    sl_engine_options o = model_options_of(GOLDEN "qwen2_moe");
    sl_request *r[REQUESTS];
    int failed = 0, good = 0;
    o.max_slots = 4;
    sl_engine *e = model_must_open(&o);
    for (int i = 0; i < REQUESTS; i++)
        model_collect(start_nth(e, i), &expected[i]);
    sl_engine_close(e);
    e = open_with_faults(&o, &plan);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < REQUESTS; i++)
            r[i] = start_nth(e, i);
        for (int i = 0; i < REQUESTS; i++) {
            model_collect(r[i], &got);
            if (got.last.finish == SL_FINISH_ERROR) {
                assert_int_equal(got.last.error.code, SL_ERR_IO);
                assert_non_null(strstr(got.last.error.message, "model.safetensors"));
                failed++;
            } else {
                assert_int_equal(got.count, expected[i].count);
                good++;
            }
            assert_memory_equal(got.tokens, expected[i].tokens, sizeof(int32_t) * (size_t)got.count);
        }
    }
    print_message("%d requests failed, %d gave their text\n", failed, good);
    assert_true(failed > 0 && good > 0);
    sl_engine_close(e);
}

/* The file vanishes: everything from then on is an error, never text. */
static void test_vanished_file(void **state) {
    static model_text got;
    sl_fault_plan plan = {.fail_after = 20, .fail_layer_tag = -1};
    sl_engine_options o = model_options_of(GOLDEN "qwen2_moe");
    o.max_slots = 2;
    sl_engine *e = open_with_faults(&o, &plan);
    for (int i = 0; i < 3; i++) {
        model_collect(model_start(e, i, 10, 50, 0), &got);
        assert_int_equal(got.last.finish, SL_FINISH_ERROR);
        assert_int_equal(got.last.error.code, SL_ERR_IO);
    }
    sl_engine_close(e);
}

/* Slow reads: cancelling is seen at the next layer, not at the end of the prompt. */
static void test_cancel_while_reading(void **state) {
    static model_text got;
    sl_fault_plan plan = {.delay_rate = 1, .delay_ns = 60000000, .fail_after = -1, .fail_layer_tag = -1};
    sl_engine_options o = model_options_of(GOLDEN "qwen2_moe");
    o.max_slots = 2;
    sl_engine *e = open_with_faults(&o, &plan);
    sl_request *r = model_start(e, 0, 200, 1000, 0);
    char activity[128];
    do {
        usleep(500);
        sl_engine_activity(e, activity, sizeof activity, NULL);
    } while (strncmp(activity, "reading experts of MoE layer ", 29) != 0);
    sl_request_cancel(r);
    sl_engine_activity(e, activity, sizeof activity, NULL);
    bool in_first_layer = strncmp(activity, "reading experts of MoE layer 0:", 31) == 0;
    model_collect(r, &got);
    assert_int_equal(got.last.finish, SL_FINISH_CANCELLED);
    assert_int_equal(got.count, 0);
    if (in_first_layer) /* the second was not begun */
        assert_in_range(model_stats_of(e).expert_misses, 1, 8);
    sl_engine_close(e);
}

/* Also where the read never comes back: whoever cancels is not kept until its time is over, and what does not need it
 * goes on. */
static void test_cancel_while_a_read_hangs(void **state) {
    static model_text got;
    sl_engine_options o = model_options_of(GOLDEN "qwen2_moe");
    o.read_timeout = 3600;
    o.faults = "never@1:0*1,never@1:1*1,never@1:2*1,never@1:3*1,never@1:4*1,never@1:5*1,never@1:6*1,never@1:7*1";
    for (int pread = 0; pread < 2; pread++) {
        o.reader = pread ? "pread" : "auto";
        sl_engine *e = model_must_open(&o);
        sl_request *r = model_start(e, 0, pread ? 100 : 1, 1000, 0);
        char activity[128];
        do {
            usleep(2000);
            sl_engine_activity(e, activity, sizeof activity, NULL);
        } while (strncmp(activity, "reading experts of MoE layer 1", 30) != 0);
        usleep(200000); /* nothing comes */
        uint64_t begin = sl_now_ns();
        sl_request_cancel(r);
        model_collect(r, &got);
        assert_int_equal(got.last.finish, SL_FINISH_CANCELLED);
        assert_int_equal(got.count, 0);
        assert_true(sl_now_ns() - begin < 60000000000u);
        sl_engine_close(e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_snapshot_of_another_checkpoint),
        cmocka_unit_test(test_concurrent_requests_give_the_same_texts),
        cmocka_unit_test(test_context_fills_up),
        cmocka_unit_test(test_read_errors_fail_only_whom_they_hit),
        cmocka_unit_test(test_vanished_file),
        cmocka_unit_test(test_cancel_while_reading),
        cmocka_unit_test(test_cancel_while_a_read_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

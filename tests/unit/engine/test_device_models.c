/* Models with recurrent layers and with a latent for keys (MLA), streamed, with the kernels on the software device:
 * bits depend neither on how many experts are cached nor on how a prompt is cut into few rows; failed reads,
 * cancellation, forks, truncation and snapshots leave nothing behind; where every expert is in memory nobody waits. */
#include "support_model.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { VOCAB = 272, FEW = 12 /* rows of a chunk, computed in float each by itself */ };

static const char *const models[] = {GOLDEN "qwen3_5_moe", GOLDEN "deepseek_v3"};
static char cache[] = "/tmp/sluice-device-XXXXXX";

static int make_cache(void **state) {
    return mkdtemp(cache) && setenv("XDG_CACHE_HOME", cache, 1) == 0 ? 0 : -1;
}

static void empty_folder(const char *path) {
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    rmdir(path);
}

static int remove_cache(void **state) {
    char kernels[sizeof cache + 8];
    snprintf(kernels, sizeof kernels, "%s/sluice", cache);
    empty_folder(kernels);
    empty_folder(cache);
    return 0;
}

static sl_engine_options options(const char *model, int chunk, int slots) {
    sl_engine_options o = model_options_of(model);
    o.device = "soft:2";
    o.chunk = chunk;
    o.max_slots = slots;
    return o;
}

/* NULL: the machine has no compiler for the device; said loudly. */
static sl_engine *open_with(const sl_engine_options *o, sl_fault_plan *plan);

static sl_reader *with_faults(void *plan, sl_reader *inner, sl_error *err) {
    return plan ? sl_reader_fault(inner, plan, err) : inner;
}

static sl_engine *open_with(const sl_engine_options *o, sl_fault_plan *plan) {
    sl_error err = {0};
    sl_engine *e = engine_open_wrapped(o, with_faults, plan, &err);
    if (!e && strstr(err.message, "clang++")) {
        print_message("SKIP: %s\n", err.message);
        skip();
    }
    if (!e)
        fail_msg("%s", err.message);
    return e;
}

/* A prompt at once through the matrix units and one token behind it, whatever there is room for. */
static void no_bit_depends_on_the_cache_of_experts(void **state) {
    static const int slots[] = {0, 3, 7};
    for (size_t m = 0; m < SL_COUNT(models); m++)
        for (int chunk = FEW; chunk <= 48; chunk += 36) {
            float first[2][VOCAB], other[2][VOCAB];
            for (size_t i = 0; i < SL_COUNT(slots); i++) {
                sl_engine_options o = options(models[m], chunk, slots[i]);
                sl_engine *e = open_with(&o, NULL);
                sl_seq *s = model_new_seq(e);
                model_append(e, s, 0, 0, 48, i ? other[0] : first[0]);
                model_append(e, s, 0, 48, 49, i ? other[1] : first[1]);
                if (i)
                    assert_memory_equal(other, first, sizeof first);
                sl_seq_free(s);
                sl_engine_close(e);
            }
        }
}

/* In float a row's bits are its own: whatever it came with. */
static void no_bit_depends_on_how_few_rows_come_at_once(void **state) {
    for (size_t m = 0; m < SL_COUNT(models); m++) {
        sl_engine_options o = options(models[m], FEW, 0), one = options(models[m], 5, 4);
        sl_engine *e = open_with(&o, NULL), *f = open_with(&one, NULL);
        float a[VOCAB], b[VOCAB];
        sl_seq *s = model_new_seq(e), *t = model_new_seq(f);
        model_append(e, s, 3, 0, 70, a);
        model_append(f, t, 3, 0, 33, NULL);
        for (int i = 33; i < 36; i++)
            model_append(f, t, 3, i, i + 1, NULL);
        model_append(f, t, 3, 36, 70, b);
        assert_memory_equal(a, b, sizeof a);
        sl_seq_free(s);
        sl_seq_free(t);
        sl_engine_close(e);
        sl_engine_close(f);
    }
}

static void forks_truncation_and_snapshots(void **state) {
    for (size_t m = 0; m < SL_COUNT(models); m++) {
        sl_engine_options o = options(models[m], FEW, 3), other = options(models[m], 7, 0);
        sl_engine *e = open_with(&o, NULL), *f = open_with(&other, NULL);
        sl_error err = {0};
        void *bytes;
        size_t size;
        sl_seq *a = model_new_seq(e);
        model_append(e, a, 0, 0, 70, NULL);
        sl_seq *b = sl_seq_fork(a, &err);
        model_append(e, b, 1, 0, 10, NULL);
        model_check_continues(a, f);
        model_check_continues(b, f);
        assert_true(sl_seq_save(b, &bytes, &size, &err));
        sl_seq *c = sl_seq_restore(f, bytes, size, &err); /* into another engine */
        if (!c)
            fail_msg("%s", err.message);
        model_check_continues(c, e);
        free(bytes);
        assert_true(sl_seq_truncate(a, 66, &err));
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
}

/* Failed reads fail their rows in the middle of the layers; what is tried again gives the undisturbed bits. */
static void reads_that_fail(void **state) {
    for (size_t m = 0; m < SL_COUNT(models); m++) {
        sl_fault_plan plan = {.seed = 3, .error_rate = 0.04, .fail_after = -1, .fail_layer_tag = -1};
        sl_engine_options o = options(models[m], FEW, 3);
        sl_engine *e = open_with(&o, &plan), *undisturbed = open_with(&o, NULL);
        sl_seq *s[2] = {model_new_seq(e), model_new_seq(e)};
        int at[2] = {0}, failed = 0;
        failed = model_disturbed(e, s, at, 2, 40);
        print_message("%s: %d of 40 calls failed\n", models[m] + sizeof GOLDEN - 1, failed);
        assert_in_range(failed, 2, 38);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(sl_seq_length(s[i]), at[i]);
            model_check_continues(s[i], undisturbed);
            sl_seq_free(s[i]);
        }
        sl_engine_close(e);
        sl_engine_close(undisturbed);
    }
}

/* Slow reads, and a cancellation anywhere: while a prompt or a token is within the layers, or between. */
static void cancelled_anywhere(void **state) {
    static model_text t;
    for (size_t m = 0; m < SL_COUNT(models); m++) {
        sl_fault_plan plan = {.delay_rate = 0.5, .delay_ns = 1000000, .fail_after = -1, .fail_layer_tag = -1};
        sl_engine_options o = options(models[m], FEW, 3);
        sl_engine *e = open_with(&o, &plan), *undisturbed = open_with(&o, NULL);
        int within = 0;
        sl_seq *s = model_new_seq(e);
        srand(11);
        for (int i = 0; i < 10; i++) {
            int before = sl_seq_length(s);
            sl_request *r = model_answer(s, i, i % 2 ? 24 : 3, 6);
            usleep((unsigned)(rand() % (i % 2 ? 60000 : 120000)));
            sl_request_cancel(r);
            model_collect(r, &t);
            within += sl_seq_length(s) > before;
            model_check_continues(s, undisturbed);
            if (sl_seq_length(s) > 90)
                assert_true(sl_seq_truncate(s, 10, NULL));
        }
        print_message("%s: 10 cancelled, %d of them after something was committed\n", models[m] + sizeof GOLDEN - 1,
                      within);
        sl_seq_free(s);
        sl_engine_close(e);
        sl_engine_close(undisturbed);
    }
}

/* A token's layers wait for nothing but the token itself. */
static void where_every_expert_is_cached_nobody_waits(void **state) {
    for (size_t m = 0; m < SL_COUNT(models); m++) {
        sl_engine_options o = options(models[m], FEW, 0);
        o.timing = true;
        sl_engine *e = open_with(&o, NULL);
        sl_seq *s = model_new_seq(e);
        model_append(e, s, 0, 0, 100, NULL); /* all experts have been asked for */
        for (int i = 0; i < 100; i++)
            model_append(e, s, i, 0, 1, NULL);
        uint64_t misses = model_stats_of(e).expert_misses;
        sl_engine_reset_stats(e);
        for (int i = 0; i < 5; i++)
            model_append(e, s, 0, i, i + 1, NULL);
        sl_stats st = model_stats_of(e);
        print_message("%s: %llu experts read before, %llu command buffers, %llu waits\n", models[m] + sizeof GOLDEN - 1,
                      (unsigned long long)misses, (unsigned long long)st.gpu_lists, (unsigned long long)st.gpu_waits);
        assert_int_equal(st.expert_misses, 0);
        assert_int_equal(st.gpu_lists, 5);
        assert_int_equal(st.gpu_waits, 5); /* for the finished tokens */
        assert_true(st.time_attention_ns && st.time_linear_ns && st.time_router_ns && st.time_expert_ns);
        assert_true(m == 0 ? st.time_delta_ns > 0 : st.time_delta_ns == 0);
        assert_true(st.gpu_phase_ns > 0 && st.gpu_phase_ns <= st.gpu_ns);
        sl_seq_free(s);
        sl_engine_close(e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_bit_depends_on_the_cache_of_experts),
        cmocka_unit_test(no_bit_depends_on_how_few_rows_come_at_once),
        cmocka_unit_test(forks_truncation_and_snapshots),
        cmocka_unit_test(reads_that_fail),
        cmocka_unit_test(cancelled_anywhere),
        cmocka_unit_test(where_every_expert_is_cached_nobody_waits),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}

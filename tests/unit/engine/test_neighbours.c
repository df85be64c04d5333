/* Who else is being served cannot be seen in a bit: sequences that decode, or bring prompts of any length, beside
 * others have the logits and the texts that they have alone, on the CPU and on a device (soft, or SLUICE_TEST_DEVICE),
 * where few rows are computed otherwise than many. */
#include "support_model.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { VOCAB = 272, SEQS = 3, CALLS = 14, MOST_ROWS = 40 };

/* The third on the CPU only: each costs a device the compiling of its kernels. */
static const char *const models[] = {GOLDEN "qwen3_5_moe", GOLDEN "deepseek_v3", GOLDEN "gpt_oss"};
enum { DEVICE_MODELS = 2 };
static char cache[] = "/tmp/sluice-neighbours-XXXXXX";

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

static const char *device(void) {
    const char *named = getenv("SLUICE_TEST_DEVICE");
    return named && *named ? named : "soft:2";
}

static sl_engine *open_on(const char *where, const char *model, int chunk, int slots, int threads) {
    sl_engine_options o = model_options_of(model);
    o.device = where && strcmp(where, "exact") != 0 ? where : NULL;
    o.numeric = where && !o.device ? where : NULL;
    o.chunk = chunk;
    o.max_slots = slots;
    o.threads = threads;
    sl_error err = {0};
    sl_engine *e = sl_engine_open(&o, &err);
    if (!e && where && strstr(err.message, "clang++")) { /* the one thing that a machine may lack */
        print_message("SKIP: %s\n", err.message);
        skip();
    }
    if (!e)
        fail_msg("%s", err.message);
    return e;
}

/* How many rows each of the sequences brings to each call: tokens that are decoded, ends of prompts, prompts. */
typedef struct plan {
    int rows[CALLS][SEQS];
} plan;

static plan make_plan(unsigned seed) {
    static const int sizes[] = {1, 1, 1, 2, 9, 15, 16, 17, MOST_ROWS};
    plan p;
    srand(seed);
    for (int call = 0; call < CALLS; call++)
        for (int s = 0; s < SEQS; s++)
            p.rows[call][s] = sizes[(unsigned)rand() % SL_COUNT(sizes)];
    p.rows[0][0] = 20;                            /* the symptom: one sequence decodes from here on, */
    for (int call = 1; call <= CALLS / 2; call++) /* beside the prompt of another */
        p.rows[call][0] = 1, p.rows[call][1] = 18;
    return p;
}

static int add_rows(sl_input *in, sl_seq *s, int stream, int at, int n) {
    for (int i = 0; i < n; i++)
        in[i] = (sl_input){s, model_token_at(stream, at + i), i == n - 1};
    return n;
}

/* One call: rows of the sequences [from, to), which have come as far as at; the last row's logits of each. */
static void decode(sl_engine *e, sl_seq **s, const int *at, const int *rows, int from, int to, float (*out)[VOCAB]) {
    sl_input in[SEQS * MOST_ROWS];
    sl_error err = {0};
    int n = 0;
    for (int i = from; i < to; i++)
        n += add_rows(in + n, s[i], i, at[i], rows[i]);
    memset(out, 0xff, (size_t)(to - from) * sizeof *out);
    if (!sl_decode(e, in, (size_t)n, out[0], &err))
        fail_msg("%s", err.message);
}

static void check_calls(const char *where, const char *model, int chunk, unsigned seed) {
    const plan p = make_plan(seed);
    sl_engine *together = open_on(where, model, chunk, 3, 2), *alone = open_on(where, model, chunk, 0, 1);
    sl_seq *t[SEQS], *a[SEQS];
    int at[SEQS] = {0}, other = 0;
    for (int i = 0; i < SEQS; i++) {
        t[i] = model_new_seq(together);
        a[i] = model_new_seq(alone);
    }
    for (int call = 0; call < CALLS; call++) {
        float got[SEQS][VOCAB], want[SEQS][VOCAB];
        decode(together, t, at, p.rows[call], 0, SEQS, got);
        for (int i = 0; i < SEQS; i++) {
            decode(alone, a, at, p.rows[call], i, i + 1, &want[i]);
            if (memcmp(got[i], want[i], sizeof got[i]) != 0 && !other++)
                print_message("%s on %s, chunk %d, seed %u, call %d: sequence %d with %d rows has other bits beside "
                              "%d and %d\n",
                              model + sizeof GOLDEN - 1, where ? where : "cpu", chunk, seed, call, i, p.rows[call][i],
                              p.rows[call][(i + 1) % SEQS], p.rows[call][(i + 2) % SEQS]);
        }
        for (int i = 0; i < SEQS; i++) {
            at[i] += p.rows[call][i];
            if (at[i] <= 200)
                continue;
            sl_seq_free(t[i]);
            sl_seq_free(a[i]);
            t[i] = model_new_seq(together);
            a[i] = model_new_seq(alone);
            at[i] = 0;
        }
    }
    assert_int_equal(other, 0);
    for (int i = 0; i < SEQS; i++) {
        sl_seq_free(t[i]);
        sl_seq_free(a[i]);
    }
    sl_engine_close(together);
    sl_engine_close(alone);
}

static void a_token_beside_a_prompt_has_its_own_bits_in_every_call(void **state) {
    for (size_t m = 0; m < DEVICE_MODELS; m++) {
        check_calls(device(), models[m], 64, 1 + (unsigned)m);
        check_calls(device(), models[m], 24, 11 + (unsigned)m);
        check_calls(device(), models[m], 7, 21 + (unsigned)m);
    }
}

static void so_it_has_on_the_cpu(void **state) {
    for (size_t m = 0; m < SL_COUNT(models); m++) {
        check_calls(NULL, models[m], 24, 31 + (unsigned)m);
        check_calls("exact", models[m], 24, 41 + (unsigned)m);
    }
}

enum { REQUESTS = 8 };

/* Requests that come while others are being answered, more than are decoded at once. */
static void texts_do_not_show_who_else_was_served(void **state) {
    static const int prompt[REQUESTS] = {20, 100, 3, 64, 33, 1, 79, 16};
    static model_text alone[REQUESTS], got;
    for (size_t m = 0; m < DEVICE_MODELS; m++) {
        sl_engine_options o = model_options_of(models[m]);
        o.device = device();
        o.chunk = 32;
        o.max_slots = 3;
        o.max_sequences = 5;
        sl_error err = {0};
        sl_engine *e = sl_engine_open(&o, &err);
        if (!e)
            fail_msg("%s", err.message);
        for (int i = 0; i < REQUESTS; i++)
            model_collect(model_start(e, i, prompt[i], 12, 1.0f), &alone[i]);
        for (int round = 0; round < 2; round++) {
            sl_request *r[REQUESTS];
            for (int i = 0; i < REQUESTS; i++)
                r[i] = model_start(e, i, prompt[i], 12, 1.0f);
            for (int i = 0; i < REQUESTS; i++) {
                model_collect(r[i], &got);
                assert_int_equal(got.count, 12);
                assert_memory_equal(got.tokens, alone[i].tokens, 12 * sizeof got.tokens[0]);
            }
        }
        sl_engine_close(e);
    }
}

/* Asked for by name: more sequences than are computed each by itself. All of them are decoded in one step. */
static void a_device_opened_for_many_decodes_them_at_once(void **state) {
    sl_engine_options o = model_options_of(models[0]);
    sl_error err = {0};
    o.device = device();
    for (int wide = 0; wide < 2; wide++) {
        enum { N = 20 };
        float out[N][VOCAB];
        sl_seq *s[N];
        sl_input in[N];
        o.max_sequences = wide ? N : 0;
        sl_engine *e = sl_engine_open(&o, &err);
        if (!e)
            fail_msg("%s", err.message);
        for (int i = 0; i < N; i++)
            in[i] = (sl_input){s[i] = model_new_seq(e), i, true};
        sl_engine_reset_stats(e);
        assert_true(sl_decode(e, in, N, out[0], &err));
        assert_int_equal(e->times.steps - e->times_base.steps, wide ? 1 : 2);
        for (int i = 0; i < N; i++)
            sl_seq_free(s[i]);
        sl_engine_close(e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_beside_a_prompt_has_its_own_bits_in_every_call),
        cmocka_unit_test(so_it_has_on_the_cpu),
        cmocka_unit_test(texts_do_not_show_who_else_was_served),
        cmocka_unit_test(a_device_opened_for_many_decodes_them_at_once),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}

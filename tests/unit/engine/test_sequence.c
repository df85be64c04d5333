/* Sequences over pages: whatever way tokens got into one, its logits are those of a straight run. */
#include "support_fake.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static sl_seq *new_seq(fake *f) {
    sl_seq *s = sl_seq_new(&f->e, NULL);
    assert_non_null(s);
    return s;
}

/* Appends one more token and compares with the straight run over all of them. */
static void check_continues(sl_seq *s, const int32_t *tokens, int n) {
    float got[FAKE_VOCAB], expected[FAKE_VOCAB];
    assert_int_equal(sl_seq_length(s), n - 1);
    assert_memory_equal(sl_seq_tokens(s), tokens, (size_t)(n - 1) * sizeof *tokens);
    fake_append(s, tokens + n - 1, 1, got);
    fake_logits(tokens, n, expected);
    assert_memory_equal(got, expected, sizeof got);
}

static void test_any_chunking_gives_the_same(void **state) {
    int32_t t[400];
    fake *f = fake_open(&(fake_options){0});
    srand(1);
    fake_random_tokens(t, 400);
    for (int piece = 1; piece < 400; piece = piece * 3 + 1) {
        sl_seq *s = new_seq(f);
        for (int at = 0; at < 399; at += piece)
            fake_append(s, t + at, piece < 399 - at ? piece : 399 - at, NULL);
        check_continues(s, t, 400);
        sl_seq_free(s);
    }
    fake_close(f);
}

static void test_all_rows_give_logits(void **state) {
    enum { N = 300 }; /* over several chunks, straight into the caller's memory */
    int32_t t[N];
    sl_input in[N];
    fake *f = fake_open(&(fake_options){0});
    sl_seq *s = new_seq(f);
    float *got = malloc(sizeof(float) * N * FAKE_VOCAB), expected[FAKE_VOCAB];
    assert_non_null(got);
    fake_random_tokens(t, N);
    for (int i = 0; i < N; i++)
        in[i] = (sl_input){s, t[i], true};
    assert_true(sl_decode(&f->e, in, N, got, NULL));
    for (int i = 0; i < N; i++) {
        fake_logits(t, i + 1, expected);
        assert_memory_equal(got + i * FAKE_VOCAB, expected, sizeof expected);
    }
    assert_int_equal(f->steps, (N + 63) / 64);
    free(got);
    sl_seq_free(s);
    fake_close(f);
}

/* Entries of many sequences mixed, some wanting logits: rows come back in the order of the entries. */
static void test_interleaved_sequences(void **state) {
    enum { SEQS = 11, N = 500 };
    const unsigned seed = 3;
    print_message("seed %u\n", seed);
    srand(seed);
    fake *f = fake_open(&(fake_options){0});
    sl_seq *s[SEQS];
    static int32_t history[SEQS][N];
    int length[SEQS] = {0}, wanted = 0;
    sl_input in[N];
    float *got = malloc(sizeof(float) * N * FAKE_VOCAB), *expected = malloc(sizeof(float) * N * FAKE_VOCAB);
    assert_true(got && expected);
    for (int i = 0; i < SEQS; i++)
        s[i] = new_seq(f);
    for (int i = 0; i < N; i++) {
        int q = rand() % SEQS;
        in[i] = (sl_input){s[q], rand() % FAKE_VOCAB, rand() % 3 == 0};
        history[q][length[q]++] = in[i].token;
        if (in[i].want_logits)
            fake_logits(history[q], length[q], expected + wanted++ * FAKE_VOCAB);
    }
    assert_true(sl_decode(&f->e, in, N, got, NULL));
    assert_memory_equal(got, expected, sizeof(float) * (size_t)wanted * FAKE_VOCAB);
    for (int i = 0; i < SEQS; i++) {
        history[i][length[i]] = 7;
        check_continues(s[i], history[i], length[i] + 1);
        sl_seq_free(s[i]);
    }
    free(got);
    free(expected);
    fake_close(f);
}

static void test_forks_go_their_own_ways(void **state) {
    int32_t t[200], other[200];
    fake *f = fake_open(&(fake_options){0});
    srand(2);
    fake_random_tokens(t, 200);
    for (int n = 1; n < 200; n += 21) { /* inside pages and at their edges */
        if (n == 127)
            n = 128;
        sl_seq *a = new_seq(f);
        fake_append(a, t, n, NULL);
        int32_t before = engine_kv_stats_get(f->e.kv).blocks_used;
        sl_seq *b = sl_seq_fork(a, NULL);
        assert_non_null(b);
        assert_int_equal(engine_kv_stats_get(f->e.kv).blocks_used, before); /* all pages shared */
        memcpy(other, t, sizeof t);
        other[n] = (t[n] + 1) % FAKE_VOCAB;
        check_continues(b, other, n + 1);
        check_continues(a, t, n + 1);
        sl_seq *c = sl_seq_fork(b, NULL);
        sl_seq_free(b);
        other[n + 1] = 5;
        check_continues(c, other, n + 2);
        check_continues(a, t, n + 2);
        sl_seq_free(a);
        sl_seq_free(c);
    }
    fake_close(f);
}

static void test_truncate(void **state) {
    int32_t t[300], u[300];
    fake *f = fake_open(&(fake_options){0});
    srand(4);
    fake_random_tokens(t, 300);
    sl_seq *s = new_seq(f);
    fake_append(s, t, 300, NULL);
    sl_seq *fork = sl_seq_fork(s, NULL);
    for (int n = 290; n >= 0; n -= 29) {
        assert_true(sl_seq_truncate(s, n, NULL));
        assert_int_equal(sl_seq_length(s), n);
        memcpy(u, t, sizeof u);
        u[n] = (t[n] + 1) % FAKE_VOCAB; /* other tokens over pages that the fork still shares */
        check_continues(s, u, n + 1);
    }
    /* Pages past the end are given up: what is written there next is not the fork's. */
    fake_append(s, u + 1, 200, NULL);
    sl_error err = {0};
    assert_true(sl_seq_truncate(s, 0, &err));
    assert_int_equal(engine_kv_stats_get(f->e.kv).blocks_used, 5); /* the fork's */
    assert_false(sl_seq_truncate(s, 9, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    assert_false(sl_seq_truncate(s, -1, &err));
    int32_t v[301];
    memcpy(v, t, sizeof t);
    v[300] = 1;
    check_continues(fork, v, 301);
    sl_seq_free(s);
    sl_seq_free(fork);
    fake_close(f);
}

static void test_failure_appends_nothing(void **state) {
    int32_t t[200];
    fake *f = fake_open(&(fake_options){.chunk = 16});
    srand(6);
    fake_random_tokens(t, 200);
    for (int i = 0; i < 200; i++)
        t[i] = t[i] == 99 ? 98 : t[i];
    sl_seq *a = new_seq(f), *b = new_seq(f);
    fake_append(a, t, 70, NULL);
    fake_append(b, t, 10, NULL);
    int32_t used = engine_kv_stats_get(f->e.kv).blocks_used;
    for (int kind = 0; kind < 2; kind++) {
        sl_input in[130];
        float logits[FAKE_VOCAB];
        sl_error err = {0};
        *(kind ? &f->nan_token : &f->row_error_token) = 99;
        for (int i = 0; i < 130; i++)
            in[i] = (sl_input){i % 2 ? a : b, 1, i == 0};
        in[120].token = 99; /* several steps in */
        assert_false(sl_decode(&f->e, in, 130, logits, &err));
        assert_int_equal(err.code, kind ? SL_ERR_NUMERIC : SL_ERR_IO);
        f->row_error_token = f->nan_token = -1;
        assert_int_equal(sl_seq_length(a), 70 + kind);
        assert_int_equal(engine_kv_stats_get(f->e.kv).blocks_used, used);
        check_continues(a, t, 71 + kind);
        check_continues(b, t, 11 + kind);
    }
    sl_seq_free(a);
    sl_seq_free(b);
    fake_close(f);
}

static void test_argument_errors(void **state) {
    fake *f = fake_open(&(fake_options){.context = 100}), *g = fake_open(&(fake_options){0});
    sl_seq *s = new_seq(f), *foreign = new_seq(g);
    float logits[FAKE_VOCAB];
    sl_error err = {0};
    sl_input in[101];
    assert_false(sl_decode(&f->e, &(sl_input){s, FAKE_VOCAB, false}, 1, NULL, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    assert_false(sl_decode(&f->e, &(sl_input){s, -1, false}, 1, NULL, &err));
    assert_false(sl_decode(&f->e, &(sl_input){s, 0, true}, 1, NULL, &err));
    assert_false(sl_decode(&f->e, &(sl_input){NULL, 0, true}, 1, logits, &err));
    assert_false(sl_decode(&f->e, &(sl_input){foreign, 0, true}, 1, logits, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    for (int i = 0; i < 101; i++)
        in[i] = (sl_input){s, 1, false};
    assert_false(sl_decode(&f->e, in, 101, NULL, &err));
    assert_int_equal(err.code, SL_ERR_CONTEXT);
    assert_int_equal(sl_seq_length(s), 0);
    assert_true(sl_decode(&f->e, in, 100, NULL, &err)); /* exactly full */
    assert_false(sl_decode(&f->e, in, 1, NULL, &err));
    assert_int_equal(err.code, SL_ERR_CONTEXT);
    assert_true(sl_decode(&f->e, in, 0, NULL, &err));
    sl_seq_free(s);
    sl_seq_free(foreign);
    sl_seq_free(NULL);
    fake_close(f);
    fake_close(g);
}

/* The budget's KV is used up: who needs more gets an error that names sizes, the others go on. */
static void test_budget_exhausted(void **state) {
    fake *f = fake_open(&(fake_options){.slabs = 3, .cache = 2, .least_cache = 1, .context = 2048});
    int32_t t[600];
    srand(8);
    fake_random_tokens(t, 600);
    sl_seq *a = new_seq(f), *b = new_seq(f);
    fake_append(a, t, 250, NULL); /* 4 blocks: the first slab */
    fake_append(b, t, 240, NULL); /* 4 blocks more: a slab of the cache */
    assert_int_equal(f->cached, 1);
    sl_error err = {0};
    sl_input in[20];
    for (int i = 0; i < 20; i++)
        in[i] = (sl_input){b, t[240 + i], false};
    assert_false(sl_decode(&f->e, in, 20, NULL, &err));
    assert_int_equal(err.code, SL_ERR_BUDGET);
    assert_non_null(strstr(err.message, "64.00 KiB"));
    check_continues(a, t, 251);
    check_continues(b, t, 241);
    sl_seq_free(a); /* makes room */
    fake_append(b, t + 241, 100, NULL);
    check_continues(b, t, 342);
    sl_seq_free(b);
    fake_close(f);
}

/* ---- snapshots -------------------------------------------------------------------------------------------------- */

static void test_snapshot_continues(void **state) {
    int32_t t[300];
    fake *f = fake_open(&(fake_options){.slabs = 8, .cache = 6, .least_cache = 1});
    srand(9);
    fake_random_tokens(t, 300);
    for (int n = 0; n < 300; n += 43) {
        void *bytes;
        size_t size;
        sl_seq *s = new_seq(f);
        if (n)
            fake_append(s, t, n, NULL);
        assert_true(sl_seq_save(s, &bytes, &size, NULL));
        sl_seq *r = sl_seq_restore(&f->e, bytes, size, NULL);
        assert_non_null(r);
        sl_seq_free(s);
        check_continues(r, t, n + 1);
        sl_seq_free(r);
        sl_free(bytes);
    }
    fake_close(f);
}

/* The same history gives the same bytes, whatever lay in its pages before. */
static void test_snapshots_are_reproducible(void **state) {
    int32_t t[100], junk[500];
    void *bytes[2];
    size_t size[2];
    fake *f = fake_open(&(fake_options){0});
    srand(10);
    fake_random_tokens(t, 100);
    fake_random_tokens(junk, 500);
    for (int i = 0; i < 2; i++) {
        sl_seq *s = new_seq(f), *other = new_seq(f);
        fake_append(s, t, 100, NULL);
        assert_true(sl_seq_save(s, &bytes[i], &size[i], NULL));
        fake_append(other, junk, 500, NULL);
        sl_seq_free(other);
        sl_seq_free(s);
    }
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(bytes[0], bytes[1], size[0]);
    sl_free(bytes[0]);
    sl_free(bytes[1]);
    fake_close(f);
}

static void test_damaged_snapshots(void **state) {
    int32_t t[70];
    void *bytes;
    size_t size;
    fake *f = fake_open(&(fake_options){0});
    sl_seq *s = new_seq(f);
    srand(11);
    fake_random_tokens(t, 70);
    fake_append(s, t, 70, NULL);
    assert_true(sl_seq_save(s, &bytes, &size, NULL));
    uint8_t *p = bytes;
    for (size_t at = 0; at < size; at += at < 400 ? 1 : 997) {
        sl_error err = {0};
        p[at] ^= 0x41;
        assert_null(sl_seq_restore(&f->e, bytes, size, &err));
        assert_int_not_equal(err.code, SL_OK);
        assert_non_null(strstr(err.message, "snapshot"));
        p[at] ^= 0x41;
    }
    for (size_t n = 0; n < size; n += n < 100 ? 1 : 1009)
        assert_null(sl_seq_restore(&f->e, bytes, n, NULL));
    sl_seq *r = sl_seq_restore(&f->e, bytes, size, NULL);
    assert_non_null(r);
    sl_seq_free(r);
    sl_seq_free(s);
    sl_free(bytes);
    fake_close(f);
}

static void test_snapshot_of_another_model(void **state) {
    int32_t t[70];
    void *bytes;
    size_t size;
    fake *f = fake_open(&(fake_options){0}), *g = fake_open(&(fake_options){0}),
         *h = fake_open(&(fake_options){.context = 64});
    snprintf(g->e.numeric, sizeof g->e.numeric, "exact");
    sl_seq *s = new_seq(f);
    fake_random_tokens(t, 70);
    fake_append(s, t, 70, NULL);
    assert_true(sl_seq_save(s, &bytes, &size, NULL));
    sl_error err = {0};
    assert_null(sl_seq_restore(&g->e, bytes, size, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    assert_null(sl_seq_restore(&h->e, bytes, size, &err));
    assert_int_equal(err.code, SL_ERR_CONTEXT);
    sl_free(bytes);
    sl_seq_free(s);
    fake_close(f);
    fake_close(g);
    fake_close(h);
}

/* ---- threads ---------------------------------------------------------------------------------------------------- */

typedef struct worker {
    fake *f;
    unsigned seed;
    bool ok;
} worker;

/* Random operations on own sequences; each must look as if it were alone. */
static void *work(void *arg) {
    worker *w = arg;
    int32_t t[300];
    float got[FAKE_VOCAB], expected[FAKE_VOCAB];
    unsigned r = w->seed;
    sl_seq *s = sl_seq_new(&w->f->e, NULL);
    int n = 0;
    w->ok = s != NULL;
    for (int round = 0; w->ok && round < 60; round++) {
        r = r * 1103515245 + 12345;
        int k = 1 + (int)(r >> 16) % 20;
        if (n + k > 290) {
            n = (int)(r >> 8) % 200;
            w->ok = sl_seq_truncate(s, n, NULL);
        } else if (r >> 28 == 3) {
            sl_seq *fork = sl_seq_fork(s, NULL);
            sl_seq_free(s);
            s = fork;
        } else if (r >> 28 == 4) {
            void *bytes;
            size_t size;
            w->ok = sl_seq_save(s, &bytes, &size, NULL);
            sl_seq_free(s);
            s = w->ok ? sl_seq_restore(&w->f->e, bytes, size, NULL) : NULL;
            sl_free(bytes);
        }
        sl_input in[20];
        for (int i = 0; i < k; i++) {
            t[n + i] = (int32_t)((r >> (i % 13)) % FAKE_VOCAB);
            in[i] = (sl_input){s, t[n + i], i == k - 1};
        }
        w->ok = w->ok && s && sl_decode(&w->f->e, in, (size_t)k, got, NULL);
        n += k;
        fake_logits(t, n, expected);
        w->ok = w->ok && memcmp(got, expected, sizeof got) == 0;
    }
    sl_seq_free(s);
    return NULL;
}

static void test_many_threads(void **state) {
    enum { THREADS = 8 };
    fake *f = fake_open(&(fake_options){.slabs = 30, .cache = 20});
    pthread_t thread[THREADS];
    worker w[THREADS];
    for (int i = 0; i < THREADS; i++) {
        w[i] = (worker){f, (unsigned)(i * 7919 + 1), false};
        assert_int_equal(pthread_create(&thread[i], NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < THREADS; i++)
        assert_true(w[i].ok);
    fake_close(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_chunking_gives_the_same),
        cmocka_unit_test(test_all_rows_give_logits),
        cmocka_unit_test(test_interleaved_sequences),
        cmocka_unit_test(test_forks_go_their_own_ways),
        cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_failure_appends_nothing),
        cmocka_unit_test(test_argument_errors),
        cmocka_unit_test(test_budget_exhausted),
        cmocka_unit_test(test_snapshot_continues),
        cmocka_unit_test(test_snapshots_are_reproducible),
        cmocka_unit_test(test_damaged_snapshots),
        cmocka_unit_test(test_snapshot_of_another_model),
        cmocka_unit_test(test_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

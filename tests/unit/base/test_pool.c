/* The pool: every index exactly once, whatever the sizes; loops back to back and with sleeping workers; at rest it
 * sleeps. */
#include "support_base.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static sl_pool *open_pool(int threads) {
    sl_error err = {0};
    sl_pool *p = sl_pool_new(threads, &err);
    if (!p)
        fail_msg("%s", err.message);
    assert_int_equal(sl_pool_threads(p), threads);
    return p;
}

/* What a loop saw. Assertions stay out of the workers: cmocka's jump belongs to the thread of the test. */
typedef struct seen {
    int64_t n, grain;
    int threads;
    uint8_t *count;         /* [n]; plain bytes, so that TSan sees two workers at one index */
    _Atomic int inside[64]; /* calls running as worker i */
    _Atomic int bad_piece, bad_worker, pieces;
} seen;

static void look(void *ctx, int64_t begin, int64_t end, int worker) {
    seen *s = ctx;
    if (worker < 0 || worker >= s->threads || atomic_fetch_add(&s->inside[worker], 1) != 0) {
        atomic_fetch_add(&s->bad_worker, 1);
        return;
    }
    if (begin < 0 || begin >= end || end > s->n || (end != s->n && end - begin < s->grain))
        atomic_fetch_add(&s->bad_piece, 1);
    for (int64_t i = begin; i < end; i++)
        s->count[i]++;
    atomic_fetch_add(&s->pieces, 1);
    atomic_fetch_sub(&s->inside[worker], 1);
}

static void check_loop(sl_pool *p, int64_t n, int64_t grain) {
    seen s = {.n = n, .grain = grain, .threads = sl_pool_threads(p), .count = calloc((size_t)n + 1, 1)};
    sl_pool_run(p, n, grain, look, &s);
    for (int64_t i = 0; i < n; i++)
        if (s.count[i] != 1)
            fail_msg("n %lld, grain %lld, %d threads: index %lld seen %d times", (long long)n, (long long)grain,
                     s.threads, (long long)i, s.count[i]);
    assert_int_equal(s.count[n], 0);
    assert_int_equal(s.bad_piece, 0);
    assert_int_equal(s.bad_worker, 0);
    assert_int_equal(s.pieces == 0, n <= 0);
    free(s.count);
}

static void every_index_exactly_once(void **state) {
    static const int threads[] = {1, 2, 3, 5, 16};
    static const int64_t sizes[] = {0, 1, 2, 7, 63, 64, 65, 1000, 30001};
    static const int64_t grains[] = {0, 1, 3, 64, 1000000000};
    for (size_t t = 0; t < SL_COUNT(threads); t++) {
        sl_pool *p = open_pool(threads[t]);
        for (size_t i = 0; i < SL_COUNT(sizes); i++)
            for (size_t g = 0; g < SL_COUNT(grains); g++)
                check_loop(p, sizes[i], grains[g]);
        sl_pool_free(p);
    }
}

static void random_loops_in_a_row(void **state) {
    rng r = {20240611};
    print_message("seed %llu\n", (unsigned long long)r.state);
    for (int threads = 1; threads <= 4; threads++) {
        sl_pool *p = open_pool(threads);
        for (int i = 0; i < 3000; i++) {
            check_loop(p, (int64_t)rng_below(&r, 200), (int64_t)rng_below(&r, 20));
            if (i % 100 == 0)
                usleep(200); /* workers go to sleep */
        }
        sl_pool_free(p);
    }
}

static void negative_sizes_do_nothing(void **state) {
    sl_pool *p = open_pool(2);
    seen s = {.threads = 2};
    sl_pool_run(p, -1, 1, look, &s);
    sl_pool_run(p, INT64_MIN, -5, look, &s);
    assert_int_equal(s.pieces, 0);
    sl_pool_free(p);
}

typedef struct huge {
    _Atomic uint64_t sum;
    _Atomic int pieces, bad;
} huge;

static void add_length(void *ctx, int64_t begin, int64_t end, int worker) {
    huge *h = ctx;
    if (begin < 0 || end <= begin)
        atomic_fetch_add(&h->bad, 1);
    else
        atomic_fetch_add(&h->sum, (uint64_t)(end - begin));
    atomic_fetch_add(&h->pieces, 1);
}

static void the_largest_loop_does_not_overflow(void **state) {
    sl_pool *p = open_pool(3);
    for (int64_t parts = 1; parts < 9; parts++) {
        huge h = {0};
        sl_pool_run(p, INT64_MAX, INT64_MAX / parts, add_length, &h);
        assert_int_equal(h.bad, 0);
        assert_true(h.sum == INT64_MAX);
        assert_in_range(h.pieces, parts, parts + 1);
    }
    sl_pool_free(p);
}

static void slow_piece(void *ctx, int64_t begin, int64_t end, int worker) {
    uint8_t *done = ctx;
    for (int64_t i = begin; i < end; i++) {
        if (i % 3 == 1)
            usleep(2000);
        done[i] = 1;
    }
}

/* The caller runs out of pieces long before the workers end: it must wait for them, also beyond its spinning. */
static void returns_after_the_slowest_piece(void **state) {
    sl_pool *p = open_pool(4);
    for (int i = 0; i < 20; i++) {
        uint8_t done[8] = {0};
        sl_pool_run(p, sizeof done, 1, slow_piece, done);
        for (size_t k = 0; k < sizeof done; k++)
            assert_int_equal(done[k], 1);
    }
    sl_pool_free(p);
}

static void *run_elsewhere(void *arg) {
    sl_pool *p = arg;
    for (int i = 0; i < 100; i++) {
        huge h = {0};
        sl_pool_run(p, 100, 1, add_length, &h);
        if (h.sum != 100 || h.bad)
            return "lost pieces";
    }
    return NULL;
}

static void any_one_thread_may_call(void **state) {
    sl_pool *p = open_pool(3);
    for (int i = 0; i < 5; i++) {
        pthread_t t;
        void *wrong;
        assert_int_equal(pthread_create(&t, NULL, run_elsewhere, p), 0);
        assert_int_equal(pthread_join(t, &wrong), 0);
        assert_null(wrong);
        assert_null(run_elsewhere(p));
    }
    sl_pool_free(p);
}

static void opened_and_freed_unused(void **state) {
    for (int i = 0; i < 50; i++)
        sl_pool_free(open_pool(1 + i % 8));
    sl_pool_free(NULL);
}

static void thread_counts_out_of_range_are_errors(void **state) {
    static const int bad[] = {0, -1, 1025, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        sl_error err = {0};
        assert_null(sl_pool_new(bad[i], &err));
        assert_int_equal(err.code, SL_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, "1 to 1024"));
    }
}

/* Threads of this process besides the main one that are not asleep, by /proc. */
static int awake_threads(int *all) {
    DIR *d = opendir("/proc/self/task");
    int awake = 0;
    *all = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.' || atoi(e->d_name) == getpid())
            continue;
        char path[300], text[512] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", e->d_name);
        FILE *f = fopen(path, "r");
        if (f && fgets(text, sizeof text, f)) {
            const char *end = strrchr(text, ')');
            *all += 1;
            awake += end && end[2] != 'S';
        }
        if (f)
            fclose(f);
    }
    if (d)
        closedir(d);
    return awake;
}

/* No time is measured: workers that spin for ever never show as sleeping, however long one looks. */
static void idle_workers_sleep(void **state) {
    if (access("/proc/self/task", R_OK) != 0) {
        print_message("SKIP: no /proc\n");
        skip();
    }
    sl_pool *p = open_pool(4);
    int all = 0, awake = -1;
    check_loop(p, 1000, 1);
    for (int i = 0; i < 2000 && (awake = awake_threads(&all)) != 0; i++)
        usleep(5000);
    assert_true(all >= 3);
    assert_int_equal(awake, 0);
    check_loop(p, 1000, 1); /* and they wake */
    sl_pool_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_index_exactly_once),
        cmocka_unit_test(random_loops_in_a_row),
        cmocka_unit_test(negative_sizes_do_nothing),
        cmocka_unit_test(the_largest_loop_does_not_overflow),
        cmocka_unit_test(returns_after_the_slowest_piece),
        cmocka_unit_test(any_one_thread_may_call),
        cmocka_unit_test(opened_and_freed_unused),
        cmocka_unit_test(thread_counts_out_of_range_are_errors),
        cmocka_unit_test(idle_workers_sleep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

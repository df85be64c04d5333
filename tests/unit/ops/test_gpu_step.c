/* Whole steps with the kernels on the software device, beside the CPU's exact mode: logits agree, and bits depend
 * neither on which experts arrive first nor on the order in which threads run. */
#include "support_tiny.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_ROWS = 48 };

static char cache[] = "/tmp/sluice-kernels-XXXXXX"; /* compiled once for all tests here */

static int make_cache(void **state) {
    return mkdtemp(cache) ? 0 : -1;
}

static int remove_cache(void **state) {
    DIR *d = opendir(cache);
    for (struct dirent *e; d && (e = readdir(d));)
        unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    return rmdir(cache);
}

typedef struct outcome {
    float logits[MAX_ROWS][TINY_VOCAB];
    uint8_t failed[MAX_ROWS];
} outcome;

static tiny *open_on(const char *device, bool check, uint64_t seed, sl_kv_format kv, sl_format_id format) {
    return tiny_open(&(tiny_options){.rig = {.numeric = SL_NUMERIC_EXACT,
                                             .device = device,
                                             .cache_dir = cache,
                                             .check = check,
                                             .seed = seed,
                                             .threads = 2},
                                     .kv = kv,
                                     .format = format,
                                     .rank_bytes = 1 << 20,
                                     .max_rows = MAX_ROWS,
                                     .max_outs = MAX_ROWS});
}

/* n rows of sequence `seq` from `position` on, all with logits. */
static bool run_rows(tiny *t, int32_t seq, int32_t position, int32_t n, outcome *out, sl_error *err) {
    int32_t token[MAX_ROWS], seqs[MAX_ROWS], positions[MAX_ROWS], outs[MAX_ROWS];
    for (int32_t i = 0; i < n; i++) {
        token[i] = (7 * (position + i) + 3 * seq) % TINY_VOCAB;
        seqs[i] = seq;
        positions[i] = position + i;
        outs[i] = i;
    }
    sl_step s = tiny_step(t, n, token, seqs, positions);
    memset(out, 0xff, sizeof *out);
    memset(out->failed, 0, sizeof out->failed);
    s.outs = n;
    s.out_rows = outs;
    s.logits = out->logits[0];
    s.row_failed = out->failed;
    return sl_program_run(t->p, &s, err);
}

static void must_run(tiny *t, int32_t seq, int32_t position, int32_t n, outcome *out) {
    sl_error err = {0};
    if (!run_rows(t, seq, position, n, out, &err))
        fail_msg("%s", err.message);
}

/* Greatest difference of a row over the greatest logit of all n. */
static double row_distance(const outcome *a, const outcome *b, int32_t row, int32_t n) {
    double worst = 0, most = 0;
    for (int32_t i = 0; i < n; i++)
        for (int32_t v = 0; v < TINY_VOCAB; v++)
            most = fmax(most, fabs((double)b->logits[i][v]));
    for (int32_t v = 0; v < TINY_VOCAB; v++) {
        double d = fabs((double)a->logits[row][v] - (double)b->logits[row][v]);
        worst = !(d <= worst) ? d : worst; /* a NaN stays */
    }
    return worst / most;
}

/* Rows within the limit. With half tiles a router's decision between two nearly equal experts may fall the other way:
 * such a row is far off, and so are some behind it, so not all are asked for. */
static int32_t rows_within(const outcome *a, const outcome *b, int32_t n, double limit) {
    int32_t within = 0;
    for (int32_t i = 0; i < n; i++)
        within += row_distance(a, b, i, n) <= limit;
    return within;
}

/* A few rows (vector kernels) and many (matrix units), several times, of two sequences. */
static void compare(sl_kv_format kv, sl_format_id format, double few, double many) {
    static const int32_t runs[][3] = {{0, 0, 1}, {0, 1, 3}, {1, 0, 40}, {0, 4, 1}, {1, 40, 30}};
    tiny *cpu = open_on(NULL, false, 0, kv, format), *gpu = open_on("soft", false, 0, kv, format);
    if (!gpu) {
        tiny_close(cpu);
        skip();
    }
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        outcome a, b;
        must_run(cpu, runs[i][0], runs[i][1], runs[i][2], &a);
        must_run(gpu, runs[i][0], runs[i][1], runs[i][2], &b);
        bool matrix_units = runs[i][0] == 1; /* or rows behind such */
        int32_t n = runs[i][2], within = rows_within(&b, &a, n, matrix_units ? many : few);
        print_message("%s: %d of %d rows within the limit\n", sl_format_get(format)->name, within, n);
        assert_true(matrix_units ? within >= n * 3 / 4 : within == n);
    }
    tiny_close(cpu);
    tiny_close(gpu);
}

static void logits_equal_the_cpus(void **state) {
    compare(SL_KV_F32, SL_F32, 1e-5, 4e-3);
}

static void quantised_weights_and_half_kv_too(void **state) {
    compare(SL_KV_F16, SL_Q8_0, 1e-3, 4e-3);
}

static void order_of_threads_and_experts_changes_no_bit(void **state) {
    static outcome first[2], other;
    for (uint64_t seed = 0; seed < 3; seed++) {
        tiny *t = open_on("soft", false, seed, SL_KV_F16, SL_Q8_0);
        if (!t)
            skip();
        t->src.r.state = 100 + seed; /* experts arrive in another order */
        must_run(t, 0, 0, 4, seed ? &other : &first[0]);
        if (seed)
            assert_memory_equal(first[0].logits, other.logits, sizeof(float) * 4 * TINY_VOCAB);
        must_run(t, 1, 0, 40, seed ? &other : &first[1]);
        if (seed)
            assert_memory_equal(first[1].logits, other.logits, sizeof(float) * 40 * TINY_VOCAB);
        tiny_close(t);
    }
}

static uint64_t phases_of(const sl_ops_times *t) {
    return t->attention + t->delta + t->linear + t->router + t->expert_compute + t->shared + t->head;
}

/* With few rows and with many; the source here delivers at once, so nothing is waited for on the device. */
static void phases_add_up_to_no_more_than_the_device_ran(void **state) {
    static outcome plain, timed;
    tiny *t = open_on("soft", false, 0, SL_KV_F16, SL_Q8_0);
    if (!t)
        skip();
    for (int32_t rows = 3; rows <= 40; rows += 37) {
        sl_ops_times before, all;
        must_run(t, rows == 3 ? 0 : 1, 0, rows, &plain);
        sl_ops_times_get(t->g.ops, &before);
        assert_int_equal(before.gpu_phase_time, 0);
        assert_int_equal(before.attention, 0);
        sl_ops_set_timing(t->g.ops, true);
        sl_ops_times_reset(t->g.ops);
        must_run(t, rows == 3 ? 0 : 1, 0, rows, &timed);
        sl_ops_times_get(t->g.ops, &all);
        assert_memory_equal(plain.logits, timed.logits, sizeof(float) * (size_t)rows * TINY_VOCAB);
        assert_true(all.attention && all.linear && all.router && all.expert_compute && all.head);
        print_message("%llu of %llu of %llu ns\n", (unsigned long long)phases_of(&all), (unsigned long long)all.gpu_phase_time, (unsigned long long)all.gpu_time);
        assert_true(phases_of(&all) <= all.gpu_phase_time && all.gpu_phase_time <= all.gpu_time);
        assert_true(all.gpu_phase_time > all.gpu_time / 4); /* not a part of them only */
        sl_ops_set_timing(t->g.ops, false);
        sl_ops_times_reset(t->g.ops);
    }
    tiny_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_equal_the_cpus),
        cmocka_unit_test(quantised_weights_and_half_kv_too),
        cmocka_unit_test(order_of_threads_and_experts_changes_no_bit),
        cmocka_unit_test(phases_add_up_to_no_more_than_the_device_ran),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}

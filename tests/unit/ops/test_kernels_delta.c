/* Gated DeltaNet with the kernels on the software device beside the CPU's exact mode: the same operands, random and
 * odd, over several steps, outputs and states; in checking mode too. Sequences with few rows in a step go row by row,
 * those with many in chunks. */
#include "support_delta.h"

#include "kernels/args.h"

#include <math.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

/* ---- row by row -------------------------------------------------------------------------------------------------- */

static void the_delta_rule_is_the_cpus(void **state) {
    static const delta_case cases[] = {
        {2, 4, 128, 128, 4, .bias = false, .steps = {{5, 0}, {1, 3}, {1, 1}, {15, 14}}},
        {2, 4, 64, 32, 4, .tiled = true, .in_place = true, .steps = {{0, 7}, {2, 1}}},
        {1, 3, 37, 45, 2, .bias = true, .steps = {{9, 1}, {1, 1}, {0, 13}}},
        {3, 3, 16, 100, 8, .bias = true, .steps = {{3, 3}, {2, 8}}},
        {1, 2, 160, 33, 4, .steps = {{40, 3}, {1, 20}}}, /* keys too long for chunks */
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        delta_compare(&cases[i], false, 1e-4);
}

static void the_delta_rule_is_sound(void **state) {
    delta_compare(&(delta_case){2, 2, 24, 40, 3, .bias = true, .in_place = true, .steps = {{3, 2}, {1, 1}}}, true,
                  1e-4);
}

/* Their length is that of smaller ones. */
static void keys_whose_squares_overflow(void **state) {
    delta_compare(&(delta_case){2, 2, 37, 24, 4, .keys = 1e25f, .steps = {{3, 2}, {20, 1}}}, false, 1e-4);
}

/* Row by row a sequence in pieces has the bits of the sequence at once. */
static void pieces_change_no_bit(void **state) {
    static const delta_case c = {2, 4, 64, 64, 4, .bias = true, .in_place = true};
    static const int32_t cuts[][3] = {{15, 0, 0}, {7, 6, 2}};
    static float outputs[2][15][4 * 64], states[2][4 * 64 * 64];
    for (int k = 0; k < 2; k++) {
        delta_twin t;
        if (!delta_open(&t, &c, true, false))
            skip();
        for (int32_t i = 0, at = 0; i < 3; at += cuts[k][i++]) {
            int32_t n[2] = {cuts[k][i], 0}, from[2] = {at, 0};
            if (!n[0])
                continue;
            delta_run(&t, n, from);
            for (int32_t row = 0; row < n[0]; row++)
                memcpy(outputs[k][at + row], rig_row(&t.g, &t.dst, row), sizeof outputs[k][0]);
        }
        memcpy(states[k], delta_state_of(&t, 0), sizeof states[k]);
        delta_close(&t);
    }
    assert_memory_equal(outputs[0], outputs[1], sizeof outputs[0]);
    assert_memory_equal(states[0], states[1], sizeof states[0]);
}

/* ---- in chunks --------------------------------------------------------------------------------------------------- */

/* Chunks that are full, end early, have one row; after rows taken singly and before; beside a sequence with few rows.
 */
static void chunks_are_the_rule(void **state) {
    static const delta_case cases[] = {
        {2, 4, 128, 128, 4, .steps = {{100, 0}, {1, 33}, {64, 65}, {17, 16}}},
        {2, 4, 64, 32, 4, .tiled = true, .in_place = true, .steps = {{0, 97}, {31, 2}, {32, 1}}},
        {1, 3, 37, 45, 2, .bias = true, .steps = {{9, 40}, {129, 1}, {0, 30}}},
        {3, 3, 5, 7, 8, .bias = true, .steps = {{16, 70}, {63, 18}}},
        {1, 2, 126, 100, 4, .steps = {{50, 34}}},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        delta_compare(&cases[i], false, 1e-4);
}

static void chunks_are_sound(void **state) {
    delta_compare(&(delta_case){2, 2, 22, 40, 3, .bias = true, .in_place = true, .steps = {{35, 18}, {1, 33}, {16, 2}}},
                  true, 1e-4);
}

/* 320 rows of which each leaves all but a ten-thousandth of the state, or nothing, or anything between. Where nothing
 * is left, a row is q.k times its value: the norm magnifies float's rounding of a q.k that is all but 0. */
static void decays_of_all_strengths(void **state) {
    static const struct {
        delta_decay decay;
        double limit;
    } cases[] = {{DECAY_WEAK, 1e-4}, {DECAY_STRONG, 4e-4}, {DECAY_MIXED, 1e-4}};
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        delta_compare(&(delta_case){1, 2, 32, 40, 4, .decay = cases[i].decay, .steps = {{320}, {40}}}, false,
                      cases[i].limit);
}

/* More chunks than one pass takes, of one sequence and of two. */
static void passes_follow_each_other(void **state) {
    assert_true(DELTA_ROWS > SL_DELTA_PLACES * SL_DELTA_CHUNK);
    delta_compare(&(delta_case){1, 1, 16, 24, 2, .bias = true, .steps = {{1090, 3}, {1000, 80}, {40, 1056}}}, false,
                  3e-4);
}

static void values_of_a_million(void **state) {
    static const delta_decay decays[] = {DECAY_USUAL, DECAY_WEAK, DECAY_MIXED};
    for (size_t i = 0; i < SL_COUNT(decays); i++)
        delta_compare(&(delta_case){1, 2, 64, 64, 4, .decay = decays[i], .magnitude = 1e6f, .steps = {{200}, {40}}},
                      false, 1e-4);
}

typedef struct outcome {
    float rows[320][3 * 45], state[3 * 37 * 45];
} outcome;

static void run_cut(const delta_case *c, const int32_t *cuts, int count, outcome *out) {
    delta_twin t;
    if (!delta_open(&t, c, true, false))
        skip();
    for (int32_t i = 0, at = 0; i < count; at += cuts[i++]) {
        delta_run(&t, (int32_t[2]){cuts[i], 0}, (int32_t[2]){at, 0});
        for (int32_t row = 0; row < cuts[i]; row++)
            memcpy(out->rows[at + row], rig_row(&t.g, &t.dst, row), sizeof out->rows[0]);
    }
    memcpy(out->state, delta_state_of(&t, 0), sizeof out->state);
    delta_close(&t);
}

/* A prompt in steps that end between chunks has the bits of the prompt at once. */
static void steps_of_whole_chunks_change_no_bit(void **state) {
    static const delta_case c = {1, 3, 37, 45, 4, .bias = true};
    static const int32_t once[] = {320}, pieces[] = {64, 32, 160, 64};
    static outcome a, b;
    run_cut(&c, once, 1, &a);
    run_cut(&c, pieces, 4, &b);
    assert_memory_equal(a.rows, b.rows, sizeof a.rows);
    assert_memory_equal(a.state, b.state, sizeof a.state);
}

/* A row that is not a number shows in no row before it, and in all behind it. */
static void a_nan_goes_forwards_only(void **state) {
    enum { BAD = 43, N = 70, COLS = 2 * 24 };
    static const delta_case c = {1, 2, 16, 24, 2, .bias = true};
    static float rows[2][N][COLS];
    for (int k = 0; k < 2; k++) {
        delta_twin t;
        if (!delta_open(&t, &c, true, false))
            skip();
        delta_run(&t, (int32_t[2]){2, 0}, (int32_t[2]){0, 0});
        t.bad_position = k ? BAD : -1;
        delta_run(&t, (int32_t[2]){N, 0}, (int32_t[2]){2, 0});
        for (int i = 0; i < N; i++)
            memcpy(rows[k][i], rig_row(&t.g, &t.dst, i), sizeof rows[k][i]);
        delta_close(&t);
    }
    assert_memory_equal(rows[0], rows[1], (BAD - 2) * sizeof rows[0][0]);
    for (int i = BAD - 2; i < N; i++)
        for (int col = 0; col < COLS; col++)
            assert_true(isnan(rows[1][i][col]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_delta_rule_is_sound),
        cmocka_unit_test(chunks_are_sound),
        cmocka_unit_test(the_delta_rule_is_the_cpus),
        cmocka_unit_test(keys_whose_squares_overflow),
        cmocka_unit_test(pieces_change_no_bit),
        cmocka_unit_test(chunks_are_the_rule),
        cmocka_unit_test(decays_of_all_strengths),
        cmocka_unit_test(values_of_a_million),
        cmocka_unit_test(passes_follow_each_other),
        cmocka_unit_test(a_nan_goes_forwards_only),
        cmocka_unit_test(steps_of_whole_chunks_change_no_bit),
    };
    return cmocka_run_group_tests(tests, delta_cache_make, delta_cache_remove);
}

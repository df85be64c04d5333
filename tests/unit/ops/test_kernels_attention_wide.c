/* Attention of blocks of rows, of heads wider than 256 and of values that are a part of the keys, against float64 over
 * the pages' own values. */
#include "support_attention.h"

#include <setjmp.h>

#include <cmocka.h>

static const uint64_t seed = 1234567;
static kernels wide;

static void prefill_over_a_latent_is_float64s(void **state) {
    static const attention_shape shapes[] = {
        {SL_KV_F16, 2, 1, 576, 1, {1}, {0}, .values = 512},
        {SL_KV_F16, 3, 1, 576, 2, {18, 5}, {0, 60}, .values = 512},
        {SL_KV_Q8_0, 1, 1, 576, 1, {9}, {30}, .values = 512, .apart = 8},
        {SL_KV_F32, 1, 1, 576, 1, {17}, {47}, .values = 512, .sinks = true},
        {SL_KV_F16, 1, 1, 576, 1, {19}, {95}, .values = 512, .window = 3}, /* rows that see no key of a step */
        {SL_KV_F16, 1, 1, 576, 1, {16}, {48}, .values = 512, .window = 1},
        {SL_KV_F16, 1, 1, 576, 1, {6}, {90}, .values = 512, .window = 40},
    };
    rng r = {seed + 6};
    for (size_t i = 0; i < SL_COUNT(shapes); i++)
        attention_prefill(&wide, &r, &shapes[i], 0, 1);
}

static void prefill_of_a_million_stays_finite(void **state) {
    rng r = {seed + 3};
    attention_prefill(&wide, &r, &(attention_shape){SL_KV_F16, 2, 1, 576, 1, {5}, {40}, .values = 512}, 0, 1e6f);
    /* the second row's own key is the first of a step, far from the one before it, and rows behind it see no key yet */
    attention_prefill(&wide, &r, &(attention_shape){SL_KV_F16, 4, 2, 576, 1, {6}, {15}, .values = 512, .window = 2}, 0,
                      1e6f);
}

/* ---- heads of other sizes: libraries of their own, as the engine makes them -------------------------------------- */

static void heads_of_any_multiple_of_4_are_float64s(void **state) {
    static const attention_shape shapes[] = {
        {SL_KV_F16, 5, 1, 48, 1, {3}, {61}, .values = 32},
        {SL_KV_F32, 9, 1, 44, 2, {2, 17}, {20, 33}, .values = 20, .window = 9},
        {SL_KV_F16, 3, 1, 320, 1, {4}, {66}, .gate = true, .sinks = true, .apart = 8}, /* wide, of two planes */
        {SL_KV_F16, 1, 1, 576, 1, {2}, {20}, .window = 0},
    };
    rng r = {seed + 5};
    for (size_t i = 0; i < SL_COUNT(shapes); i++) {
        const attention_shape *s = &shapes[i];
        kernels k;
        assert_true(attention_open(&k, "attention_wide.metal", s));
        attention_prefill(&k, &r, s, 0, 1);
        kernels_close(&k);
    }
}

int main(void) {
    if (!kernels_open(&wide, "attention_wide.metal", NULL, 0))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_over_a_latent_is_float64s),
        cmocka_unit_test(prefill_of_a_million_stays_finite),
        cmocka_unit_test(heads_of_any_multiple_of_4_are_float64s),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&wide);
    return failed;
}

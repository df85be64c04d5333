/* attention_large.metal on the soft device: blocks of rows against float64, as attention_prefill's. */
#include "support_attention.h"

#include <setjmp.h>

#include <cmocka.h>

static const uint64_t seed = 24681012;
static kernels large;

static void blocks_are_float64s(void **state) {
    static const attention_shape shapes[] = {
        {SL_KV_F16, 2, 1, 64, 1, {1}, {0}, .window = 0},
        {SL_KV_F16, 8, 1, 64, 1, {33}, {100}, .window = 0},               /* a block for each threadgroup */
        {SL_KV_F16, 4, 2, 64, 2, {19, 5}, {0, 33}, .window = 0},          /* blocks of two sequences in one */
        {SL_KV_F16, 2, 2, 64, 3, {17, 1, 50}, {61, 130, 5}, .window = 0}, /* and of three */
        {SL_KV_F16, 3, 1, 64, 1, {40}, {30}, .window = 0},                /* two SIMD-groups have none */
        {SL_KV_F16, 10, 1, 64, 1, {3}, {64}, .window = 0},                /* more heads than are taken at a time */
        {SL_KV_F16, 2, 2, 128, 1, {17}, {50}, .window = 0},
        {SL_KV_F16, 4, 1, 128, 2, {3, 16}, {64, 15}, .window = 0},
        {SL_KV_F16, 2, 1, 256, 1, {18}, {40}, .window = 0},
        {SL_KV_F32, 1, 1, 64, 1, {7}, {30}, .window = 0},
        {SL_KV_Q8_0, 2, 1, 64, 1, {9}, {60}, .window = 0},
        {SL_KV_Q8_0, 1, 1, 256, 1, {2}, {31}, .window = 0},
        {SL_KV_F16, 4, 2, 64, 2, {19, 5}, {0, 33}, .apart = 64, .gate = true},
        {SL_KV_F16, 2, 2, 128, 1, {5}, {50}, .apart = 5, .sinks = true},
        {SL_KV_F16, 2, 1, 64, 1, {20}, {100}, .window = 50, .sinks = true},
        {SL_KV_F16, 1, 1, 64, 1, {19}, {95}, .window = 3, .gate = true}, /* rows that see no key of a step */
        {SL_KV_F16, 1, 1, 64, 1, {70}, {150}, .window = 20},             /* steps that a block does not see */
        {SL_KV_F16, 1, 1, 64, 1, {16}, {48}, .window = 1},
        {SL_KV_F16, 1, 1, 64, 1, {16}, {112}, .window = 64}, /* the last row's window begins behind a page */
        {SL_KV_F16, 1, 1, 64, 1, {6}, {10}, .window = 100},
    };
    rng r = {seed};
    for (size_t i = 0; i < SL_COUNT(shapes); i++)
        attention_prefill(&large, &r, &shapes[i], ATTENTION_LARGE, 1);
}

static void queries_of_a_million_stay_finite(void **state) {
    rng r = {seed + 1};
    attention_prefill(&large, &r, &(attention_shape){SL_KV_F16, 2, 1, 64, 1, {5}, {40}, .window = 0}, ATTENTION_LARGE,
                      1e6f);
    attention_prefill(&large, &r, &(attention_shape){SL_KV_F16, 4, 2, 64, 1, {3}, {31}, .window = 2}, ATTENTION_LARGE,
                      1e6f);
}

/* Libraries of their own, as the engine makes them. */
static void heads_of_any_multiple_of_16_are_float64s(void **state) {
    static const attention_shape shapes[] = {
        {SL_KV_F16, 4, 2, 80, 1, {3}, {62}, .window = 0},
        {SL_KV_Q8_0, 3, 1, 96, 2, {2, 1}, {40, 5}, .gate = true, .apart = 96},
        {SL_KV_F16, 2, 1, 144, 1, {2}, {70}, .window = 20, .sinks = true},
        {SL_KV_F32, 1, 1, 16, 1, {2}, {33}, .window = 0},
    };
    rng r = {seed + 2};
    for (size_t i = 0; i < SL_COUNT(shapes); i++) {
        kernels k;
        assert_true(attention_open(&k, "attention_large.metal", &shapes[i]));
        attention_prefill(&k, &r, &shapes[i], ATTENTION_LARGE, 1);
        kernels_close(&k);
    }
}

int main(void) {
    if (!kernels_open(&large, "attention_large.metal", NULL, 0))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_float64s),
        cmocka_unit_test(queries_of_a_million_stay_finite),
        cmocka_unit_test(heads_of_any_multiple_of_16_are_float64s),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&large);
    return failed;
}

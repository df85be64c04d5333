/* Attention of blocks of rows against float64 over the pages' own values. */
#include "support_attention.h"

#include <setjmp.h>

#include <cmocka.h>

static const uint64_t seed = 1234567;
static kernels prefill;

static void prefill_is_float64s(void **state) {
    static const struct {
        attention_shape s;
        int32_t at_once;
    } cases[] = {
        {{SL_KV_F16, 2, 1, 64, 1, {1}, {0}, .window = 0}, 1},
        {{SL_KV_F16, 4, 2, 64, 2, {19, 5}, {0, 33}, .window = 0}, 2},
        {{SL_KV_F16, 2, 2, 128, 1, {17}, {50}, .window = 0}, 1},
        {{SL_KV_F16, 2, 1, 128, 2, {3, 16}, {64, 15}, .window = 0}, 2},
        {{SL_KV_F16, 1, 1, 256, 1, {18}, {40}, .window = 0}, 1},
        {{SL_KV_F32, 1, 1, 64, 1, {7}, {30}, .window = 0}, 1},
        {{SL_KV_Q8_0, 2, 1, 64, 1, {9}, {60}, .window = 0}, 2},
        {{SL_KV_Q8_0, 1, 1, 256, 1, {2}, {31}, .window = 0}, 1},
        {{SL_KV_F16, 4, 2, 64, 2, {19, 5}, {0, 33}, .apart = 64, .gate = true}, 2},
        {{SL_KV_F16, 2, 2, 128, 1, {5}, {50}, .apart = 5, .sinks = true}, 1},
        {{SL_KV_F16, 2, 1, 64, 1, {20}, {100}, .window = 50, .sinks = true}, 2},
        {{SL_KV_F16, 1, 1, 64, 1, {19}, {95}, .window = 3, .gate = true}, 1}, /* rows that see no key of a step */
        {{SL_KV_F16, 1, 1, 64, 1, {16}, {48}, .window = 1}, 1},
        {{SL_KV_F16, 1, 1, 64, 1, {6}, {10}, .window = 100}, 1},
    };
    rng r = {seed + 2};
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        attention_prefill(&prefill, &r, &cases[i].s, cases[i].at_once, 1);
}

static void prefill_of_a_million_stays_finite(void **state) {
    rng r = {seed + 3};
    attention_prefill(&prefill, &r, &(attention_shape){SL_KV_F16, 2, 1, 64, 1, {5}, {40}, .window = 0}, 2, 1e6f);
    /* a row's own key is the first of a step and far above the one before it, the step's next is far above both */
    attention_prefill(&prefill, &r, &(attention_shape){SL_KV_F16, 4, 2, 64, 1, {3}, {31}, .window = 2}, 1, 1e6f);
}

/* ---- heads of other sizes: libraries of their own, as the engine makes them -------------------------------------- */

static void heads_of_any_multiple_of_4_are_float64s(void **state) {
    static const attention_shape shapes[] = {
        {SL_KV_F16, 4, 2, 80, 1, {3}, {62}, .window = 0},
        {SL_KV_Q8_0, 3, 1, 96, 2, {2, 1}, {40, 5}, .gate = true, .apart = 96},
        {SL_KV_F16, 2, 1, 192, 1, {2}, {70}, .window = 20, .sinks = true},
        {SL_KV_F32, 1, 1, 16, 1, {2}, {33}, .window = 0},
        {SL_KV_F16, 6, 2, 24, 2, {1, 3}, {70, 4}, .gate = true, .apart = 24},
        {SL_KV_F16, 2, 1, 100, 1, {5}, {31}, .sinks = true},
        {SL_KV_F16, 2, 1, 128, 1, {2}, {3}, .window = 0}, /* the widest of two heads at a time */
    };
    rng r = {seed + 5};
    for (size_t i = 0; i < SL_COUNT(shapes); i++) {
        const attention_shape *s = &shapes[i];
        kernels k;
        assert_true(attention_open(&k, "attention_prefill.metal", s));
        attention_prefill(&k, &r, s, 1, 1);
        if (s->dim <= 128 && s->heads % (2 * s->kv_heads) == 0)
            attention_prefill(&k, &r, s, 2, 1);
        kernels_close(&k);
    }
}

int main(void) {
    if (!kernels_open(&prefill, "attention_prefill.metal", NULL, 0))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_is_float64s),
        cmocka_unit_test(prefill_of_a_million_stays_finite),
        cmocka_unit_test(heads_of_any_multiple_of_4_are_float64s),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&prefill);
    return failed;
}

/* Attention of few rows, split and combined, against float64 over the pages' own values. */
#include "support_attention.h"

#include <setjmp.h>
#include <stdio.h>

#include <cmocka.h>

static const uint64_t seed = 1234567;
static kernels decode;

static void run_decode(kernels *with, rng *r, const attention_shape *s, float magnitude) {
    char entry[64];
    snprintf(entry, sizeof entry, "attention_decode_%s_%d", attention_kv_names[s->kv], s->dim);
    attention_decode(with, with, entry, SL_DECODE_HEADS(s->dim), r, s, magnitude);
}

static void decode_is_float64s(void **state) {
    static const attention_shape shapes[] = {
        {SL_KV_F16, 4, 2, 64, 1, {1}, {0}, .window = 0},
        {SL_KV_F16, 6, 2, 64, 3, {1, 1, 1}, {31, 64, 100}, .window = 0},
        {SL_KV_F16, 10, 1, 128, 1, {1}, {77}, .window = 0}, /* more heads than are taken at a time */
        {SL_KV_F16, 4, 4, 64, 1, {1}, {530}, .window = 0},  /* two splits */
        {SL_KV_F16, 6, 1, 256, 1, {2}, {69}, .window = 0},
        {SL_KV_F32, 2, 1, 64, 2, {1, 2}, {5, 126}, .window = 0},
        {SL_KV_F32, 2, 2, 128, 1, {1}, {40}, .window = 0},
        {SL_KV_F32, 4, 1, 256, 1, {1}, {33}, .window = 0},
        {SL_KV_Q8_0, 4, 2, 64, 1, {2}, {80}, .window = 0},
        {SL_KV_Q8_0, 2, 1, 128, 1, {1}, {40}, .window = 0},
        {SL_KV_Q8_0, 5, 1, 256, 1, {1}, {34}, .window = 0},
        {SL_KV_F16, 4, 2, 64, 2, {1, 2}, {70, 9}, .apart = 64, .gate = true}, /* [q | gate] per head */
        {SL_KV_F16, 3, 1, 128, 1, {2}, {40}, .apart = 3, .sinks = true},
        {SL_KV_F16, 4, 2, 64, 1, {1}, {200}, .window = 70, .sinks = true},
        {SL_KV_F16, 2, 1, 64, 1, {2}, {530}, .window = 40}, /* over two splits, which begin before it */
        {SL_KV_F16, 2, 1, 64, 1, {1}, {543}, .window = 16}, /* the first split is before it */
        {SL_KV_F16, 2, 1, 64, 2, {1, 1}, {3, 90}, .window = 1, .gate = true, .sinks = true},
        {SL_KV_F16, 2, 1, 64, 1, {1}, {551}, .window = 40}, /* the window is the second split's first tokens */
        {SL_KV_F16, 2, 1, 64, 1, {1}, {103}, .window = 40}, /* and a whole block's */
        {SL_KV_F16, 2, 1, 64, 1, {1}, {40}, .window = 40},  /* all but the first token */
        {SL_KV_F16, 2, 1, 64, 1, {1}, {39}, .window = 40},
        {SL_KV_F16, 2, 1, 64, 1, {1}, {20}, .window = 500},
        {SL_KV_F16, 9, 1, 576, 2, {1, 1}, {70, 530}, .values = 512}, /* one latent for heads in two tiles, two splits */
        {SL_KV_Q8_0, 3, 1, 576, 1, {2}, {40}, .values = 512, .apart = 4},
        {SL_KV_F32, 2, 1, 576, 1, {1}, {33}, .values = 512, .sinks = true, .window = 20},
        {SL_KV_F16, 8, 1, 64, 1, {1}, {290}, .window = 0},  /* as many heads as at once, several blocks of each */
        {SL_KV_F16, 2, 1, 64, 1, {1}, {100}, .window = 70}, /* begins with the last token of a block */
    };
    rng r = {seed};
    for (size_t i = 0; i < SL_COUNT(shapes); i++)
        run_decode(&decode, &r, &shapes[i], 1);
}

static void decode_of_a_million_stays_finite(void **state) {
    rng r = {seed + 1};
    run_decode(&decode, &r, &(attention_shape){SL_KV_F16, 4, 2, 64, 1, {1}, {70}, .window = 0}, 1e6f);
    run_decode(&decode, &r, &(attention_shape){SL_KV_F16, 2, 1, 576, 1, {1}, {70}, .values = 512}, 1e6f);
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
        {SL_KV_F16, 5, 1, 48, 1, {3}, {61}, .values = 32},
        {SL_KV_F32, 9, 1, 44, 2, {2, 17}, {20, 33}, .values = 20, .window = 9},
        {SL_KV_F16, 3, 1, 320, 1, {4}, {66}, .gate = true, .sinks = true, .apart = 8}, /* wide, of two planes */
        {SL_KV_F16, 1, 1, 576, 1, {2}, {20}, .window = 0},
    };
    rng r = {seed + 5};
    for (size_t i = 0; i < SL_COUNT(shapes); i++) {
        const attention_shape *s = &shapes[i];
        kernels k;
        assert_true(attention_open(&k, "attention_decode.metal", s));
        run_decode(&k, &r, s, 1);
        kernels_close(&k);
    }
}

int main(void) {
    if (!kernels_open(&decode, "attention_decode.metal", NULL, 0))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_is_float64s),
        cmocka_unit_test(decode_of_a_million_stays_finite),
        cmocka_unit_test(heads_of_any_multiple_of_4_are_float64s),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&decode);
    return failed;
}

/* attention_few.metal on the soft device: splits against float64, as attention_decode's, and combined by its kernel. */
#include "support_attention.h"

#include <setjmp.h>
#include <stdio.h>

#include <cmocka.h>

static const uint64_t seed = 7654321;
static kernels few, decode;

static void run(rng *r, const attention_shape *s, float magnitude) {
    char entry[64];
    snprintf(entry, sizeof entry, "attention_few_%d", s->dim);
    attention_decode(&few, &decode, entry, 8, r, s, magnitude);
}

static void splits_are_float64s(void **state) {
    static const attention_shape shapes[] = {
        {SL_KV_F16, 4, 2, 64, 1, {1}, {0}, .window = 0},
        {SL_KV_F16, 6, 2, 64, 3, {1, 1, 1}, {31, 64, 100}, .window = 0},
        {SL_KV_F16, 10, 1, 128, 1, {1}, {77}, .window = 0}, /* more heads than are taken at a time */
        {SL_KV_F16, 8, 1, 128, 1, {1}, {290}, .window = 0}, /* as many, several blocks of each SIMD-group */
        {SL_KV_F16, 4, 4, 64, 1, {1}, {530}, .window = 0},  /* two splits */
        {SL_KV_F16, 6, 1, 256, 1, {2}, {69}, .window = 0},
        {SL_KV_F16, 3, 1, 192, 1, {2}, {130}, .window = 0},
        {SL_KV_F16, 4, 2, 64, 2, {1, 2}, {70, 9}, .apart = 64, .gate = true}, /* [q | gate] per head */
        {SL_KV_F16, 3, 1, 128, 1, {2}, {40}, .apart = 3, .sinks = true},
        {SL_KV_F16, 4, 2, 64, 1, {1}, {200}, .window = 70, .sinks = true},
        {SL_KV_F16, 2, 1, 64, 1, {2}, {530}, .window = 40}, /* over two splits, which begin before it */
        {SL_KV_F16, 2, 1, 64, 1, {1}, {543}, .window = 16}, /* the first split is before it */
        {SL_KV_F16, 2, 1, 64, 1, {1}, {551}, .window = 40}, /* the window is the second split's first tokens */
        {SL_KV_F16, 2, 1, 64, 2, {1, 1}, {3, 90}, .window = 1, .gate = true, .sinks = true},
        {SL_KV_F16, 2, 1, 64, 1, {1}, {103}, .window = 40}, /* begins with a block, and a page */
        {SL_KV_F16, 2, 1, 64, 1, {1}, {100}, .window = 70}, /* with the last token of a block */
        {SL_KV_F16, 2, 1, 64, 1, {1}, {15}, .window = 0},   /* a whole block, and a token of the next */
        {SL_KV_F16, 2, 1, 64, 1, {1}, {16}, .window = 0},
        {SL_KV_F16, 2, 1, 64, 1, {1}, {20}, .window = 500},
    };
    rng r = {seed};
    for (size_t i = 0; i < SL_COUNT(shapes); i++)
        run(&r, &shapes[i], 1);
}

static void queries_of_a_million_stay_finite(void **state) {
    rng r = {seed + 1};
    run(&r, &(attention_shape){SL_KV_F16, 4, 2, 64, 1, {1}, {70}, .window = 0}, 1e6f);
    run(&r, &(attention_shape){SL_KV_F16, 2, 1, 256, 1, {1}, {40}, .window = 3}, 1e6f);
}

int main(void) {
    if (!kernels_open(&few, "attention_few.metal", NULL, 0) ||
        !kernels_open_with(&decode, "attention_decode.metal", NULL, 0,
                           "#define SL_ATTENTION_KV f16\n#define SL_ATTENTION_DIM 64\n"))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_are_float64s),
        cmocka_unit_test(queries_of_a_million_stay_finite),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&few);
    kernels_close(&decode);
    return failed;
}

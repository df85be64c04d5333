/* matmul_large.metal on the soft device: odd shapes, every format; beside matmul.metal. */
#include "support_matmul.h"

#include <setjmp.h>

#include <cmocka.h>

enum { TOKENS = 64, EVERY = 5 };

static const uint64_t seed = 27182;
static matmul_kind large = {
    "matmul_large.metal", "matmul_large", "matmul_expert_large", TOKENS, SL_LARGE_ROWS, SL_LARGE_THREADS, {0}};
static matmul_kind small = {"matmul.metal",    "matmul", "matmul_expert", SL_MATMUL_TOKENS, SL_MATMUL_ROWS,
                            SL_MATMUL_THREADS, {0}};

static void every_format_is_float64s_product(void **state) {
    rng r = {seed};
    for (size_t i = 0; i < SL_COUNT(matmul_variants); i++) {
        matmul_run(&large, &r,
                   &(matmul_case){matmul_variants[i], 1 + rng_below(&r, 70),
                                  kernel_variant_cols(&r, &matmul_variants[i], 300), 1 + rng_below(&r, 20),
                                  i % 2 ? 15 : 0, false, i % 3 == 0, 1});
        if (i % 4 == 0)
            matmul_run(&large, &r,
                       &(matmul_case){matmul_variants[i], 65 + rng_below(&r, 20),
                                      kernel_variant_cols(&r, &matmul_variants[i], 600), 33 + rng_below(&r, 20), 0,
                                      true, false, 1});
    }
}

static void values_of_a_million_stay_finite(void **state) {
    rng r = {seed + 1};
    matmul_run(&large, &r, &(matmul_case){matmul_variants[0], 9, 77, 5, 0, false, false, 1e6f});
    matmul_run(&large, &r, &(matmul_case){matmul_variants[8], 9, 256, 5, 0, false, false, 1e6f});
    matmul_run(&large, &r, &(matmul_case){matmul_variants[3], 9, 256, 5, 0, false, false, 1e-6f});
}

static void experts_are_grouped(void **state) {
    rng r = {seed + 2};
    for (size_t i = 0; i < SL_COUNT(matmul_variants); i++)
        matmul_run_grouped(&large, &r, &matmul_variants[i], 1 + rng_below(&r, 40),
                           kernel_variant_cols(&r, &matmul_variants[i], 260), 3 + rng_below(&r, 5),
                           1 + (int32_t)(i % 2), i % 2, i % 3 == 0);
    /* more pairs an expert than a tile has rows */
    matmul_run_grouped(&large, &r, &matmul_variants[3], 70, 64, 170, 2, true, true);
    matmul_run_grouped(&large, &r, &matmul_variants[8], 30, 256, 190, 2, false, false);
}

/* An element's products are added in the same order whatever the tile is, so that a device may choose by the number of
 * rows. */
static void bits_are_those_of_small_tiles(void **state) {
    for (size_t i = 0; i < MATMUL_VARIANTS; i += EVERY) {
        rng a = {seed + i}, b = a;
        matmul_case c = {
            matmul_variants[i], 140, kernel_variant_cols(&a, &matmul_variants[i], 300), 70, 3, true, true, 1};
        b = a;
        assert_int_equal(matmul_run(&small, &a, &c), matmul_run(&large, &b, &c));
        assert_int_equal(matmul_run_grouped(&small, &a, &matmul_variants[i], 133, c.cols, 100, 2, true, true),
                         matmul_run_grouped(&large, &b, &matmul_variants[i], 133, c.cols, 100, 2, true, true));
    }
}

int main(void) {
    if (!matmul_open(&large, "#define SL_LARGE_TOKENS 64\n", 1) ||
        !matmul_open(&small, "#define SL_TILE_FRAGMENTS\n", EVERY))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_is_float64s_product),
        cmocka_unit_test(values_of_a_million_stay_finite),
        cmocka_unit_test(experts_are_grouped),
        cmocka_unit_test(bits_are_those_of_small_tiles),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&large.k);
    kernels_close(&small.k);
    return failed;
}

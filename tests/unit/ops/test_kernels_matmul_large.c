/* matmul_large.metal on the soft device: odd shapes, every format, tiles of all widths. */
#include "support_matmul.h"

#include <setjmp.h>

#include <cmocka.h>

static const uint64_t seed = 27182;
/* Those that become halves without floats, and some of the others, whose way is one for all. */
static const int chosen[] = {0, 2, 3, 7, 8, 10, 11, 13, 18, 19, 23, 24, 25, 26, 27};
static matmul_kind large = {"matmul_large.metal", "matmul_large",   "matmul_expert_large", SL_LARGE_TOKENS,
                            SL_LARGE_ROWS,        SL_LARGE_THREADS, "matmul_gate_up",      {0}};
static matmul_kind thin = {"matmul_large.metal", "matmul_thin",   NULL, SL_LARGE_TOKENS,
                           SL_THIN_ROWS,         SL_THIN_THREADS, NULL, {0}};

static void every_format_is_float64s_product(void **state) {
    rng r = {seed};
    for (size_t i = 0; i < SL_COUNT(chosen); i++) {
        const kernel_variant *v = &matmul_variants[chosen[i]];
        matmul_run(&large, &r,
                   &(matmul_case){*v, 1 + rng_below(&r, 70), kernel_variant_cols(&r, &matmul_variants[chosen[i]], 300),
                                  1 + rng_below(&r, 20), i % 2 ? 15 : 0, false, i % 3 == 0, 1, 0});
        if (i % 4 == 0)
            matmul_run(&large, &r,
                       &(matmul_case){matmul_variants[chosen[i]], 129 + rng_below(&r, 20),
                                      kernel_variant_cols(&r, &matmul_variants[chosen[i]], 600), 65 + rng_below(&r, 20),
                                      0, true, false, 1, 0});
        matmul_run(&thin, &r,
                   &(matmul_case){matmul_variants[chosen[i]], 33 + rng_below(&r, 40),
                                  kernel_variant_cols(&r, &matmul_variants[chosen[i]], 300), 57 + rng_below(&r, 20), 3,
                                  false, i % 3 == 1, 1, 0});
    }
}

static void values_of_a_million_stay_finite(void **state) {
    rng r = {seed + 1};
    matmul_run(&large, &r, &(matmul_case){matmul_variants[0], 9, 77, 5, 0, false, false, 1e6f, 0});
    matmul_run(&large, &r, &(matmul_case){matmul_variants[8], 9, 256, 5, 0, false, false, 1e6f, 0});
    matmul_run(&large, &r, &(matmul_case){matmul_variants[3], 9, 256, 5, 0, false, false, 1e-6f, 0});
}

static void experts_are_grouped(void **state) {
    rng r = {seed + 2};
    for (size_t i = 0; i < SL_COUNT(chosen); i++)
        matmul_run_grouped(&large, &r, &matmul_variants[chosen[i]], 1 + rng_below(&r, 40),
                           kernel_variant_cols(&r, &matmul_variants[chosen[i]], 260), 3 + rng_below(&r, 5),
                           1 + (int32_t)(i % 2), i % 2, i % 3 == 0);
    /* more pairs an expert than a tile has rows */
    matmul_run_grouped(&large, &r, &matmul_variants[3], 140, 64, 170, 2, true, true);
    matmul_run_grouped(&large, &r, &matmul_variants[8], 30, 256, 190, 2, false, false);
}

static void gate_and_up_are_one(void **state) {
    rng r = {seed + 3};
    for (size_t i = 0; i < SL_COUNT(chosen); i++)
        matmul_run_gate_up(&large, &r, &matmul_variants[chosen[i]], 1 + rng_below(&r, 40),
                           kernel_variant_cols(&r, &matmul_variants[chosen[i]], 260), 3 + rng_below(&r, 5),
                           1 + (int32_t)(i % 2), i % 3 == 1, i % 4 == 1);
    matmul_run_gate_up(&large, &r, &matmul_variants[3], 75, 160, 100, 2, true, false);
    matmul_run_gate_up(&large, &r, &matmul_variants[11], 65, 192, 40, 2, false, true);
}

/* A row's bits depend on neither the kernel, nor how many rows there are, nor the row's place among them, so that a
 * device may choose by their number. */
static void a_rows_bits_are_its_own(void **state) {
    for (size_t i = 0; i < SL_COUNT(chosen); i += 2) {
        rng r = {seed + i};
        int64_t cols = kernel_variant_cols(&r, &matmul_variants[chosen[i]], 500);
        matmul_case c = {matmul_variants[chosen[i]], 70, cols, 140, 0, false, false, 1, 5};
        rng all = r, few = r, thinly = r;
        uint64_t bits = matmul_run(&large, &all, &c);
        assert_int_equal(bits, matmul_run(&thin, &thinly, &c));
        c.rows = 5;
        assert_int_equal(bits, matmul_run(&large, &few, &c));
    }
}

int main(void) {
    if (!matmul_open_some(&large, "", chosen, SL_COUNT(chosen)))
        return 77;
    thin.k = large.k;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_is_float64s_product),
        cmocka_unit_test(values_of_a_million_stay_finite),
        cmocka_unit_test(experts_are_grouped),
        cmocka_unit_test(gate_and_up_are_one),
        cmocka_unit_test(a_rows_bits_are_its_own),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&large.k);
    return failed;
}

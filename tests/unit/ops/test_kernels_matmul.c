/* matmul.metal on the soft device: odd shapes, every format. */
#include "support_matmul.h"

#include <setjmp.h>

#include <cmocka.h>

static const uint64_t seed = 31415;
static matmul_kind small = {
    "matmul.metal", "matmul", "matmul_expert", SL_MATMUL_TOKENS, SL_MATMUL_ROWS, SL_MATMUL_THREADS, NULL, {0}};

static void every_format_is_float64s_product(void **state) {
    rng r = {seed};
    for (size_t i = 0; i < SL_COUNT(matmul_variants); i++) {
        matmul_run(&small, &r,
                   &(matmul_case){matmul_variants[i], 1 + rng_below(&r, 70),
                                  kernel_variant_cols(&r, &matmul_variants[i], 300), 1 + rng_below(&r, 20),
                                  i % 2 ? 15 : 0, false, i % 3 == 0, 1, 0});
        if (i % 4 == 0)
            matmul_run(&small, &r,
                       &(matmul_case){matmul_variants[i], 65 + rng_below(&r, 20),
                                      kernel_variant_cols(&r, &matmul_variants[i], 600), 33 + rng_below(&r, 20), 0,
                                      true, false, 1, 0});
    }
}

static void values_of_a_million_stay_finite(void **state) {
    rng r = {seed + 1};
    matmul_run(&small, &r, &(matmul_case){matmul_variants[0], 9, 77, 5, 0, false, false, 1e6f, 0});
    matmul_run(&small, &r, &(matmul_case){matmul_variants[8], 9, 256, 5, 0, false, false, 1e6f, 0});
    matmul_run(&small, &r, &(matmul_case){matmul_variants[3], 9, 256, 5, 0, false, false, 1e-6f, 0});
}

static void experts_are_grouped(void **state) {
    rng r = {seed + 2};
    for (size_t i = 0; i < SL_COUNT(matmul_variants); i++)
        matmul_run_grouped(&small, &r, &matmul_variants[i], 1 + rng_below(&r, 40),
                           kernel_variant_cols(&r, &matmul_variants[i], 260), 3 + rng_below(&r, 5),
                           1 + (int32_t)(i % 2), i % 2, i % 3 == 0);
    matmul_run_grouped(&small, &r, &matmul_variants[3], 70, 64, 45, 2, true, true);
}

int main(void) {
    if (!matmul_open(&small, "", 1))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_is_float64s_product),
        cmocka_unit_test(values_of_a_million_stay_finite),
        cmocka_unit_test(experts_are_grouped),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&small.k);
    return failed;
}

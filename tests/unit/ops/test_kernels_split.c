/* Partial products of a matrix with few outputs, on the soft device, against float64: each split by itself where a unit
 * is 32 columns in order, all of them together in any format; splits that the columns do not fill, rows and outputs
 * that a grid has too many; a row's bits whatever rows are beside it. */
#include "support_kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 20261202;
static kernels k;

static const kernel_variant variants[] = {
    {SL_F32, 0, 0, 16}, {SL_BF16, 0, 0, 2}, {SL_Q8_0, 0, 0, 2}, {SL_Q4_K, 0, 0, 4}, {SL_AFFINE8, 64, SL_F16, 16}};

typedef struct product {
    kernel_variant v;
    int32_t out, rows;
    int64_t cols;
    uint32_t units; /* of a split */
} product;

static kernel_matrix w;
static uint16_t *x;
static float *y, *unscale;
static int64_t padded, ldy;

static uint32_t splits_of(const product *p) {
    return ((uint32_t)(p->cols + 31) / 32 + p->units - 1) / p->units;
}

static void multiply(const product *p, const char *entry) {
    uint32_t splits = splits_of(p);
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = p->rows});
    sl_split_args args = {.w = kernel_weights(&w.m),
                          .x_stride = (uint64_t)padded,
                          .y_stride = (uint64_t)ldy,
                          .split_stride = (uint64_t)(p->rows + 1) * (uint64_t)ldy,
                          .split_units = p->units};
    kernel_binding b[8] = {in(0, &args, sizeof args)};
    size_t n = 1 + kernel_bind_weights(b + 1, &w, 1, p->v.align);
    b[n++] = in(4, x, (size_t)(p->rows * padded) * 2);
    b[n++] = in(5, unscale, (size_t)p->rows * 4);
    b[n++] = out(6, y, (size_t)splits * (size_t)((p->rows + 1) * ldy) * 4);
    b[n++] = in(8, step.words, step.bytes);
    kernels_run(&k,
                &(kernel_call){.entry = entry,
                               .groups = {(uint32_t)(p->out + 63) / 64 + 1, (uint32_t)(p->rows + 31) / 32 + 1, splits},
                               .threads = {SL_MATMUL_THREADS, 1, 1},
                               .bindings = b,
                               .count = n});
    free(step.words);
}

/* Columns [first, end) of a row's product, by the size of what is summed. */
static double error_of(const product *p, int32_t i, int32_t r, double got, int64_t first, int64_t end) {
    double sum = 0, squares = 1e-30;
    for (int64_t c = first; c < end; c++) {
        double term = w.values[r * p->cols + c] * sl_f16_to_f32(x[i * padded + c]) * unscale[i];
        sum += term;
        squares += term * term;
    }
    return fabs(got - sum) / sqrt(squares);
}

static double worst_error(const product *p) {
    uint32_t splits = splits_of(p);
    bool in_order = sl_format_get(p->v.format)->block_weights == 1 && !p->v.group;
    double worst = 0;
    for (int32_t i = 0; i < p->rows; i++)
        for (int32_t r = 0; r < p->out; r++) {
            double all = 0;
            for (uint32_t s = 0; s < splits; s++) {
                double got = y[(int64_t)s * (p->rows + 1) * ldy + i * ldy + r];
                int64_t first = (int64_t)s * p->units * 32, end = first + (int64_t)p->units * 32;
                all += got;
                if (in_order)
                    worst = worse_of(worst, error_of(p, i, r, got, first, end < p->cols ? end : p->cols));
            }
            worst = worse_of(worst, error_of(p, i, r, all, 0, p->cols));
        }
    return worst;
}

static void check_untouched(const product *p) {
    for (uint32_t s = 0; s < splits_of(p); s++)
        for (int32_t i = 0; i <= p->rows; i++)
            for (int64_t c = i < p->rows ? p->out : 0; c < ldy; c++)
                assert_true(isnan(y[((int64_t)s * (p->rows + 1) + i) * ldy + c]));
}

static void run(rng *r, const product *p) {
    char entry[64];
    kernel_format f = kernel_variant_format(&p->v);
    kernel_entry(entry, sizeof entry, "split", &f);
    w = kernel_matrix_new(r, p->v.format, p->v.group, p->v.side, p->out, p->cols);
    padded = (p->cols + SL_HALF_PAD - 1) / SL_HALF_PAD * SL_HALF_PAD;
    ldy = p->out + 3;
    x = calloc((size_t)(p->rows * padded), 2);
    unscale = malloc((size_t)p->rows * 4);
    for (int32_t i = 0; i < p->rows; i++) {
        unscale[i] = i % 2 ? 0.25f : 8;
        for (int64_t c = 0; c < p->cols; c++)
            x[i * padded + c] = sl_f32_to_f16(rng_normal(r));
    }
    size_t all = (size_t)splits_of(p) * (size_t)((p->rows + 1) * ldy);
    y = kernel_poison(all);
    multiply(p, entry);
    check_untouched(p);
    kernels_result(&k, entry, worst_error(p), 1.5e-3);
    /* the last row alone */
    float *whole = y;
    uint16_t *rows = x;
    product one = *p;
    one.rows = 1;
    x = rows + (p->rows - 1) * padded;
    unscale[0] = unscale[p->rows - 1];
    y = kernel_poison(all);
    multiply(&one, entry);
    for (uint32_t s = 0; s < splits_of(p); s++)
        assert_memory_equal(y + s * 2 * ldy, whole + ((int64_t)s * (p->rows + 1) + p->rows - 1) * ldy,
                            (size_t)p->out * 4);
    free(whole);
    free(y);
    free(rows);
    free(unscale);
    kernel_matrix_free(&w);
}

static void splits_add_up_to_the_product(void **state) {
    rng r = {seed};
    for (size_t i = 0; i < SL_COUNT(variants); i++) {
        const kernel_variant *v = &variants[i];
        run(&r, &(product){*v, 5, 33, kernel_variant_cols(&r, v, 600), 8});
        run(&r, &(product){*v, 70, 3, kernel_variant_cols(&r, v, 900), 4});
    }
    run(&r, &(product){variants[0], 9, 17, 512, 8});
    run(&r, &(product){variants[0], 64, 32, 260, 8});
    run(&r, &(product){variants[1], 3, 2, 45, 2});
    run(&r, &(product){variants[1], 65, 34, 31, 8});
}

int main(void) {
    kernel_format formats[SL_COUNT(variants)];
    for (size_t i = 0; i < SL_COUNT(variants); i++)
        formats[i] = kernel_variant_format(&variants[i]);
    if (!kernels_open(&k, "split.metal", formats, SL_COUNT(variants)))
        return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(splits_add_up_to_the_product)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&k);
    return failed;
}

/* Products with few outputs, on the soft device, against float64: each kind of format, columns that fill part of a
 * SIMD-group, several SIMD-groups and several turns; rows and outputs that a grid has too many; a row's bits whatever
 * rows are beside it. */
#include "support_kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 20261201;
static kernels k;

static const kernel_variant variants[] = {{SL_F32, 0, 0, 16},          {SL_F32, 0, 0, 1},  {SL_F16, 0, 0, 2},
                                          {SL_BF16, 0, 0, 16},         {SL_Q8_0, 0, 0, 2}, {SL_Q4_K, 0, 0, 4},
                                          {SL_AFFINE8, 64, SL_F16, 16}};

typedef struct product {
    kernel_variant v;
    int32_t out, rows;
    int64_t cols;
    uint32_t simds;
    bool bias, outs;
} product;

static kernel_matrix w;
static float *x, *y, *bias;
static int64_t ldx, ldy;

static void multiply(const product *p, const char *entry) {
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = p->outs ? 1 : p->rows, .outs = p->outs ? p->rows : 0});
    sl_matvec_args args = {.w = kernel_weights(&w.m), .x_stride = (uint64_t)ldx, .y_stride = (uint64_t)ldy};
    kernel_binding b[8] = {in(0, &args, sizeof args)};
    size_t n = 1 + kernel_bind_weights(b + 1, &w, 1, p->v.align);
    b[n++] = in(4, x, (size_t)((p->rows - 1) * ldx + p->cols) * 4);
    b[n++] = out(5, y, (size_t)((p->rows + 1) * ldy) * 4);
    b[n++] = in(6, bias, (size_t)p->out * 4);
    b[n++] = in(9, step.words, step.bytes);
    sl_gpu_constant constants[2];
    size_t m = 0;
    if (p->bias)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_BIAS);
    if (p->outs)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_OUTS);
    kernels_run(&k, &(kernel_call){.entry = entry,
                                   .groups = {(uint32_t)p->out + 1, (uint32_t)p->rows + 1, 1},
                                   .threads = {32 * p->simds, 1, 1},
                                   .bindings = b,
                                   .count = n,
                                   .constants = constants,
                                   .constant_count = m});
    free(step.words);
}

static double worst_error(const product *p) {
    double *ref = malloc((size_t)p->out * sizeof *ref), *size = malloc((size_t)p->out * sizeof *size), worst = 0;
    for (int32_t i = 0; i < p->rows; i++) {
        kernel_product(&w, x + i * ldx, ref, size);
        for (int32_t r = 0; r < p->out; r++) {
            double add = p->bias ? bias[r] : 0;
            worst = worse_of(worst, fabs(y[i * ldy + r] - (ref[r] + add)) / (size[r] + fabs(add)));
        }
    }
    free(ref);
    free(size);
    return worst;
}

static void run(rng *r, const product *p) {
    char entry[64];
    kernel_format f = kernel_variant_format(&p->v);
    kernel_entry(entry, sizeof entry, "narrow", &f);
    w = kernel_matrix_new(r, p->v.format, p->v.group, p->v.side, p->out, p->cols);
    ldx = p->cols + 3;
    ldy = p->out + 2;
    x = kernel_floats(r, (size_t)(p->rows * ldx), 1);
    bias = kernel_floats(r, (size_t)p->out, 1);
    y = kernel_poison((size_t)((p->rows + 1) * ldy));
    multiply(p, entry);
    for (int32_t i = 0; i <= p->rows; i++)
        for (int64_t c = i < p->rows ? p->out : 0; c < ldy; c++)
            assert_true(isnan(y[i * ldy + c]));
    kernels_result(&k, entry, worst_error(p), 1e-5);
    /* the last row alone */
    float *all = y;
    product one = *p;
    one.rows = 1;
    float *rows = x;
    x = rows + (p->rows - 1) * ldx;
    y = kernel_poison((size_t)(2 * ldy));
    multiply(&one, entry);
    assert_memory_equal(y, all + (p->rows - 1) * ldy, (size_t)p->out * 4);
    free(y);
    free(all);
    free(rows);
    free(bias);
    kernel_matrix_free(&w);
}

static void few_outputs_are_float64s_and_a_rows_own(void **state) {
    rng r = {seed};
    for (size_t i = 0; i < SL_COUNT(variants); i++) {
        const kernel_variant *v = &variants[i];
        run(&r, &(product){*v, 5, 3, kernel_variant_cols(&r, v, 300), 1, .bias = true});
        run(&r, &(product){*v, 1, 2, kernel_variant_cols(&r, v, 2100), 1, .outs = true});
        run(&r, &(product){*v, 3, 2, kernel_variant_cols(&r, v, 5000), 3, .bias = i % 2});
        run(&r, &(product){*v, 2, 2, 2048, 2, .bias = false});
    }
    run(&r, &(product){variants[0], 2, 2, 8192 + 512, 8, .bias = false});
    run(&r, &(product){variants[1], 2, 2, 1, 1, .bias = true});
}

int main(void) {
    kernel_format formats[SL_COUNT(variants)];
    for (size_t i = 0; i < SL_COUNT(variants); i++)
        formats[i] = kernel_variant_format(&variants[i]);
    if (!kernels_open(&k, "narrow.metal", formats, SL_COUNT(variants)))
        return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(few_outputs_are_float64s_and_a_rows_own)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&k);
    return failed;
}

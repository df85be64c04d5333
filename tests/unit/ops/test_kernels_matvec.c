/* Products of quantised matrices with few rows, on the soft device, against float64: every format at every alignment
 * that has a variant, odd shapes, bytes at odd addresses; the fused forms; large values; rows that the step does not
 * have. */
#include "support_kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 20261130;
static kernels k;

/* One alignment per format, all three where addresses differ most. */
static const kernel_variant variants[] = {
    {SL_F32, 0, 0, 16},           {SL_F32, 0, 0, 1},
    {SL_F16, 0, 0, 16},           {SL_BF16, 0, 0, 2},
    {SL_Q4_0, 0, 0, 2},           {SL_Q4_1, 0, 0, 4},
    {SL_Q5_0, 0, 0, 2},           {SL_Q5_1, 0, 0, 2},
    {SL_Q8_0, 0, 0, 2},           {SL_Q8_0, 0, 0, 1},
    {SL_Q4_K, 0, 0, 16},          {SL_Q4_K, 0, 0, 4},
    {SL_Q4_K, 0, 0, 2},           {SL_Q5_K, 0, 0, 16},
    {SL_Q6_K, 0, 0, 2},           {SL_AFFINE4, 64, SL_BF16, 16},
    {SL_AFFINE4, 32, SL_F16, 4},  {SL_AFFINE4, 128, SL_F32, 1},
    {SL_AFFINE8, 64, SL_F16, 16}, {SL_AFFINE8, 32, SL_BF16, 1},
    {SL_AFFINE2, 64, SL_BF16, 4}, {SL_AFFINE3, 32, SL_F16, 4},
    {SL_AFFINE3, 64, SL_BF16, 1}, {SL_AFFINE5, 64, SL_F32, 4},
    {SL_AFFINE6, 128, SL_F16, 4}, {SL_Q2_K, 0, 0, 4},
    {SL_Q2_K, 0, 0, 1},           {SL_Q3_K, 0, 0, 2},
    {SL_IQ4_NL, 0, 0, 2},         {SL_IQ4_XS, 0, 0, 4},
    {SL_MXFP4, 0, 0, 1},          {SL_NVFP4_SPLIT, 0, 0, 4},
    {SL_MXFP8_SPLIT, 0, 0, 4},    {SL_MXFP4_SPLIT, 0, 0, 16},
    {SL_FP8, 128, SL_F32, 4},     {SL_FP8, 128, SL_BF16, 1},
    {SL_NVFP4, 0, 0, 4},          {SL_TQ2_0, 0, 0, 2},
    {SL_IQ2_XXS, 0, 0, 2},        {SL_IQ2_XS, 0, 0, 2},
    {SL_IQ2_S, 0, 0, 1},          {SL_IQ3_XXS, 0, 0, 2},
    {SL_IQ3_S, 0, 0, 2},          {SL_IQ1_S, 0, 0, 2},
    {SL_IQ1_M, 0, 0, 1},          {SL_TQ1_0, 0, 0, 2},
};

typedef struct matvec_case {
    kernel_variant v;
    int64_t out, cols;
    int32_t rows, extra; /* extra: rows of the grid that the step does not have */
    bool add, bias, fma, outs;
    float magnitude;
} matvec_case;

static double worst_error(const kernel_matrix *w, const matvec_case *c, const float *x, int64_t ldx, const float *y,
                          int64_t ldy, const float *before, const float *bias) {
    double *ref = malloc((size_t)c->out * sizeof *ref), *size = malloc((size_t)c->out * sizeof *size), worst = 0;
    for (int32_t i = 0; i < c->rows; i++) {
        kernel_product(w, x + i * ldx, ref, size);
        for (int64_t r = 0; r < c->out; r++) {
            double add = (c->add ? before[i * ldy + r] : 0) + (c->bias ? bias[r] : 0);
            double e = fabs(y[i * ldy + r] - (ref[r] + add)) / (size[r] + fabs(add));
            worst = worse_of(worst, e);
        }
    }
    free(ref);
    free(size);
    return worst;
}

static void check_untouched(const float *y, const float *before, int64_t ldy, const matvec_case *c) {
    for (int32_t i = 0; i < c->rows + c->extra; i++)
        for (int64_t r = i < c->rows ? c->out : 0; r < ldy; r++)
            assert_memory_equal(&y[i * ldy + r], &before[i * ldy + r], 4);
}

static void run_matvec(rng *r, const matvec_case *c) {
    kernel_matrix w = kernel_matrix_new(r, c->v.format, c->v.group, c->v.side, c->out, c->cols);
    kernel_format f = kernel_variant_format(&c->v);
    assert_int_equal(w.m.row_bytes[0] % (uint64_t)f.align, 0);
    int32_t grid = c->rows + c->extra;
    int64_t ldx = c->cols + 3, ldy = c->out + 5;
    float *x = kernel_floats(r, (size_t)(grid * ldx), c->magnitude), *bias = kernel_floats(r, (size_t)c->out, 1);
    float *before = c->add ? kernel_floats(r, (size_t)(grid * ldy), 1) : kernel_poison((size_t)(grid * ldy));
    float *y = malloc((size_t)(grid * ldy) * 4);
    memcpy(y, before, (size_t)(grid * ldy) * 4);
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = c->outs ? 1 : c->rows, .outs = c->outs ? c->rows : 0});
    sl_matvec_args args = {.w = kernel_weights(&w.m), .x_stride = (uint64_t)ldx, .y_stride = (uint64_t)ldy};
    kernel_binding b[8] = {{.slot = 0, .data = &args, .bytes = sizeof args}};
    size_t n = 1 + kernel_bind_weights(b + 1, &w, 1, c->v.align);
    b[n++] = (kernel_binding){.slot = 4, .data = x, .bytes = (size_t)(grid * ldx) * 4};
    b[n++] = (kernel_binding){.slot = 5, .data = y, .bytes = (size_t)(grid * ldy) * 4, .out = true};
    b[n++] = (kernel_binding){.slot = 6, .data = bias, .bytes = (size_t)c->out * 4};
    b[n++] = (kernel_binding){.slot = 9, .data = step.words, .bytes = step.bytes};
    sl_gpu_constant constants[3];
    size_t m = 0;
    if (c->add)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_ADD);
    if (c->bias)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_BIAS);
    if (c->outs)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_OUTS);
    char entry[64];
    kernel_entry(entry, sizeof entry, c->fma ? "matvec_fma" : "matvec", &f);
    kernel_call call = {.entry = entry,
                        .groups = {(uint32_t)(c->out + SL_MATVEC_ROWS - 1) / SL_MATVEC_ROWS, (uint32_t)grid, 1},
                        .threads = {SL_MATVEC_THREADS, 1, 1},
                        .bindings = b,
                        .count = n,
                        .constants = constants,
                        .constant_count = m};
    kernels_run(&k, &call);
    check_untouched(y, before, ldy, c);
    kernels_result(&k, entry, worst_error(&w, c, x, ldx, y, ldy, before, bias), 1e-5);
    free(x);
    free(y);
    free(before);
    free(bias);
    free(step.words);
    kernel_matrix_free(&w);
}

static void every_format_is_float64s_product(void **state) {
    rng r = {seed};
    for (size_t i = 0; i < SL_COUNT(variants); i++)
        for (int shape = 0; shape < 3; shape++) {
            matvec_case c = {.v = variants[i],
                             .out = 1 + rng_below(&r, 27),
                             .cols = kernel_variant_cols(&r, &variants[i], shape == 0 ? 256 : 1600),
                             .rows = 1 + rng_below(&r, 3),
                             .extra = shape == 1,
                             .add = shape == 1,
                             .bias = shape == 2,
                             .outs = shape == 2,
                             .magnitude = 1};
            run_matvec(&r, &c);
        }
}

static void values_of_a_million_stay_finite(void **state) {
    rng r = {seed + 1};
    for (size_t i = 0; i < SL_COUNT(variants); i += 3)
        run_matvec(&r, &(matvec_case){.v = variants[i], .out = 9, .cols = 768, .rows = 1, .magnitude = 1e6f});
}

static void the_fma_form_gives_the_same(void **state) {
    rng r = {seed + 2};
    for (size_t i = 0; i < SL_COUNT(variants); i++)
        if (variants[i].align == 16 && variants[i].group)
            for (int shape = 0; shape < 3; shape++)
                run_matvec(&r, &(matvec_case){.v = variants[i],
                                              .out = 1 + rng_below(&r, 20),
                                              .cols = kernel_variant_cols(&r, &variants[i], 1200),
                                              .rows = 2,
                                              .bias = shape == 1,
                                              .fma = true,
                                              .magnitude = 1});
}

/* ---- gate and up ------------------------------------------------------------------------------------------------- */

static void run_gate_up(rng *r, const kernel_variant *v, int64_t out, int64_t cols, int32_t rows, float magnitude) {
    kernel_matrix gate = kernel_matrix_new(r, v->format, v->group, v->side, out, cols);
    kernel_matrix up = kernel_matrix_new(r, v->format, v->group, v->side, out, cols);
    kernel_format f = kernel_variant_format(v);
    float *x = kernel_floats(r, (size_t)(rows * cols), magnitude), *h = kernel_poison((size_t)(rows * out));
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = rows});
    sl_matvec_args args = {.w = kernel_weights(&gate.m), .x_stride = (uint64_t)cols, .y_stride = (uint64_t)out};
    kernel_binding b[10] = {{.slot = 0, .data = &args, .bytes = sizeof args}};
    size_t n = 1 + kernel_bind_weights(b + 1, &gate, 1, v->align);
    n += kernel_bind_weights(b + n, &up, 6, v->align);
    b[n++] = (kernel_binding){.slot = 4, .data = x, .bytes = (size_t)(rows * cols) * 4};
    b[n++] = (kernel_binding){.slot = 5, .data = h, .bytes = (size_t)(rows * out) * 4, .out = true};
    b[n++] = (kernel_binding){.slot = 9, .data = step.words, .bytes = step.bytes};
    char entry[64];
    kernel_entry(entry, sizeof entry, "gate_up", &f);
    kernel_call call = {.entry = entry,
                        .groups = {(uint32_t)(out + SL_MATVEC_ROWS - 1) / SL_MATVEC_ROWS, (uint32_t)rows + 1, 1},
                        .threads = {SL_MATVEC_THREADS, 1, 1},
                        .bindings = b,
                        .count = n};
    kernels_run(&k, &call);
    double *g = malloc((size_t)out * 8), *u = malloc((size_t)out * 8), *size = malloc((size_t)out * 8);
    double *size_u = malloc((size_t)out * 8), worst = 0;
    for (int32_t i = 0; i < rows; i++) {
        kernel_product(&gate, x + i * cols, g, size);
        kernel_product(&up, x + i * cols, u, size_u);
        for (int64_t j = 0; j < out; j++) {
            double ref = g[j] / (1 + exp(-g[j])) * u[j];
            double e = fabs(h[i * out + j] - ref) / (fabs(ref) + (1 + size[j]) * size_u[j]);
            worst = worse_of(worst, e);
        }
    }
    kernels_result(&k, entry, worst, 1e-5);
    free(g);
    free(u);
    free(size);
    free(size_u);
    free(x);
    free(h);
    free(step.words);
    kernel_matrix_free(&gate);
    kernel_matrix_free(&up);
}

static void gate_and_up_are_fused(void **state) {
    rng r = {seed + 3};
    for (size_t i = 0; i < SL_COUNT(variants); i++)
        run_gate_up(&r, &variants[i], 1 + rng_below(&r, 21), kernel_variant_cols(&r, &variants[i], 900),
                    1 + rng_below(&r, 2), i % 5 == 4 ? 1e6f : 1);
}

int main(void) {
    kernel_format formats[SL_COUNT(variants)];
    for (size_t i = 0; i < SL_COUNT(variants); i++)
        formats[i] = kernel_variant_format(&variants[i]);
    if (!kernels_open(&k, "matvec.metal", formats, SL_COUNT(variants)))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_is_float64s_product),
        cmocka_unit_test(values_of_a_million_stay_finite),
        cmocka_unit_test(the_fma_form_gives_the_same),
        cmocka_unit_test(gate_and_up_are_fused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&k);
    return failed;
}

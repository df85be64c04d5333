/* Operations on rows: embedding (the bits of quant/'s dequantiser), gather, silu * up, RMSNorm against the CPU and
 * float64, half rows for the matrix units. */
#include "support_kernels.h"

#include "cpu/cpu_ops.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 4711;
static kernels k;

typedef struct variant {
    sl_format_id format;
    int32_t group;
    sl_format_id side;
} variant;

static const variant variants[] = {
    {SL_F32, 0, 0},           {SL_F16, 0, 0},
    {SL_BF16, 0, 0},          {SL_Q4_0, 0, 0},
    {SL_Q4_1, 0, 0},          {SL_Q5_0, 0, 0},
    {SL_Q5_1, 0, 0},          {SL_Q8_0, 0, 0},
    {SL_Q4_K, 0, 0},          {SL_Q5_K, 0, 0},
    {SL_Q6_K, 0, 0},          {SL_AFFINE4, 64, SL_BF16},
    {SL_AFFINE8, 32, SL_F16}, {SL_AFFINE5, 64, SL_BF16},
    {SL_Q2_K, 0, 0},          {SL_Q3_K, 0, 0},
    {SL_IQ4_XS, 0, 0},        {SL_MXFP4, 0, 0},
    {SL_MXFP4_SPLIT, 0, 0},   {SL_FP8, 128, SL_F16},
    {SL_NVFP4, 0, 0},
};

/* Everything at odd addresses: variant 1 reads any. */
static kernel_format format_of(const variant *v) {
    sl_matrix m = {.format = v->format, .group = v->group, .side = v->side, .rows = 1, .cols = 256};
    assert_true(sl_matrix_layout(&m, NULL));
    return kernel_format_of(&m, (uint64_t[3]){1, 1, 1});
}

static kernel_binding words(const kernel_step *s, int slot) {
    return (kernel_binding){.slot = slot, .data = s->words, .bytes = s->bytes};
}

/* ---- embed ------------------------------------------------------------------------------------------------------- */

static void embed_one(rng *r, const variant *v, int64_t cols) {
    enum { ROWS = 3, TABLE = 7 };
    kernel_matrix w = kernel_matrix_new(r, v->format, v->group, v->side, TABLE, cols);
    kernel_format f = format_of(v);
    int32_t token[ROWS] = {rng_below(r, TABLE), TABLE - 1, 0};
    int64_t stride = cols + 3;
    float *dst = kernel_poison((size_t)(ROWS + 1) * (size_t)stride), *row = malloc((size_t)cols * 4);
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = ROWS, .token = token});
    sl_embed_args args = {.w = kernel_weights(&w.m), .dst_stride = (uint64_t)stride};
    kernel_binding b[6] = {in(0, &args, sizeof args)};
    for (int i = 0; i < 3; i++) {
        b[1 + i] = in(1 + i, w.m.part[i], kernel_matrix_bytes(&w, i));
        b[1 + i].offset = 1;
        b[1 + i].same_as = i && !w.m.part[i] ? 1 : 0;
    }
    b[4] = out(4, dst, (size_t)(ROWS + 1) * (size_t)stride * 4);
    b[5] = words(&step, 5);
    char entry[64];
    kernel_entry(entry, sizeof entry, "embed", &f);
    kernels_run(&k, &(kernel_call){
                        .entry = entry, .groups = {2, ROWS + 1, 1}, .threads = {32, 1, 1}, .bindings = b, .count = 6});
    for (int i = 0; i < ROWS + 1; i++)
        for (int64_t c = 0; c < stride; c++) {
            if (c == 0 && i < ROWS)
                sl_format_get(v->format)->dequantize(&w.m, token[i], 0, cols, row);
            if (i < ROWS && c < cols)
                assert_true(dst[i * stride + c] == row[c]);
            else
                assert_true(isnan(dst[i * stride + c]));
        }
    kernels_result(&k, entry, 0, 0);
    free(dst);
    free(row);
    free(step.words);
    kernel_matrix_free(&w);
}

static void embedding_has_the_dequantisers_values(void **state) {
    rng r = {seed};
    for (size_t i = 0; i < SL_COUNT(variants); i++) {
        int64_t unit =
            variants[i].group ? variants[i].group : (int64_t)sl_format_get(variants[i].format)->block_weights;
        embed_one(&r, &variants[i], unit);
        embed_one(&r, &variants[i], unit * (1 + rng_below(&r, (int32_t)(900 / unit))));
    }
}

/* ---- gather, silu ------------------------------------------------------------------------------------------------ */

static void gather_takes_the_rows_that_want_logits(void **state) {
    enum { ROWS = 5, OUTS = 2, COLS = 77 };
    rng r = {seed + 1};
    float *src = kernel_floats(&r, ROWS * COLS, 1), *dst = kernel_poison((OUTS + 1) * COLS);
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = ROWS, .outs = OUTS, .out_row = (int32_t[]){1, 4}});
    sl_rows_args args = {.src_stride = COLS, .dst_stride = COLS, .cols = COLS, .per_row = 1};
    kernel_binding b[] = {in(0, &args, sizeof args), in(1, src, ROWS * COLS * 4), out(2, dst, (OUTS + 1) * COLS * 4),
                          words(&step, 3)};
    kernels_run(
        &k, &(kernel_call){
                .entry = "gather_outs", .groups = {OUTS + 1, 1, 1}, .threads = {64, 1, 1}, .bindings = b, .count = 4});
    assert_memory_equal(dst, src + COLS, COLS * 4);
    assert_memory_equal(dst + COLS, src + 4 * COLS, COLS * 4);
    assert_true(isnan(dst[OUTS * COLS]));
    kernels_result(&k, "gather_outs", 0, 0);
    free(src);
    free(dst);
    free(step.words);
}

enum { CLAMPED = 1 };
#define LIMIT 0.8f
#define ALPHA 1.7f

static double silu_product(double gate, double up, int how) {
    if (how != CLAMPED)
        return gate / (1 + exp(-gate)) * up;
    gate = fmin(gate, LIMIT);
    return gate / (1 + exp(-ALPHA * gate)) * (fmax(fmin(up, LIMIT), -LIMIT) + 1);
}

static void silu_times_up(rng *r, int32_t rows, int32_t per_row, int32_t cols, float magnitude, int how) {
    size_t n = (size_t)(rows * per_row * cols);
    float *gate = kernel_floats(r, n, magnitude), *up = kernel_floats(r, n, magnitude), *h = malloc(n * 4);
    memcpy(h, gate, n * 4);
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = rows});
    sl_rows_args args = {.src_stride = (uint64_t)cols,
                         .dst_stride = (uint64_t)cols,
                         .cols = (uint32_t)cols,
                         .per_row = (uint32_t)per_row,
                         .limit = LIMIT,
                         .alpha = ALPHA};
    sl_gpu_constant clamped = KERNEL_TRUE(SL_FC_CLAMP);
    kernel_binding b[] = {in(0, &args, sizeof args), in(1, up, n * 4), out(2, h, n * 4), words(&step, 3)};
    kernels_run(&k, &(kernel_call){.entry = "silu_mul",
                                   .groups = {2, (uint32_t)(rows * per_row) + 1, 1},
                                   .threads = {32, 1, 1},
                                   .bindings = b,
                                   .count = 4,
                                   .constants = &clamped,
                                   .constant_count = how == CLAMPED});
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double ref = silu_product(gate[i], up[i], how);
        double e = fabs(h[i] - ref) / (fabs(ref) + 1e-30);
        worst = fabs(ref) < 1e-30 ? worst : worse_of(worst, e);
        assert_true(isfinite(h[i]));
    }
    kernels_result(&k, how == CLAMPED ? "silu_mul (clamped)" : "silu_mul", worst, 1e-5);
    free(gate);
    free(up);
    free(h);
    free(step.words);
}

/* Half rows of what was computed in float: to the bit, given the row. */
static void check_half_row(const float *row, int32_t cols, int32_t padded, const uint16_t *half, float unscale) {
    float m = 0, scale = 1;
    for (int32_t c = 0; c < cols; c++)
        m = fmaxf(m, fabsf(row[c]));
    uint32_t bits;
    memcpy(&bits, &m, 4);
    int exponent = 268 - (int)(bits >> 23);
    bits = (uint32_t)(exponent < 1 ? 1 : exponent > 253 ? 253 : exponent) << 23;
    memcpy(&scale, &bits, 4);
    assert_true(unscale == 1 / scale);
    for (int32_t c = 0; c < padded; c++)
        assert_int_equal(half[c], c < cols ? sl_f32_to_f16(row[c] * scale) : 0);
}

/* silu_half against silu_mul and what to_half makes of that. */
static void silu_to_half(rng *r, int32_t rows, int32_t per_row, int32_t cols, uint32_t threads, int how) {
    int32_t padded = (cols + SL_HALF_PAD - 1) / SL_HALF_PAD * SL_HALF_PAD;
    size_t n = (size_t)(rows * per_row * cols), all = (size_t)(rows * per_row);
    float *gate = kernel_floats(r, n, 2), *up = kernel_floats(r, n, 2), *h = malloc(n * 4),
          *unscale = kernel_poison(all + 1);
    uint16_t *half = malloc((all + 1) * (size_t)padded * 2);
    memcpy(h, gate, n * 4);
    memset(half, 0xff, (all + 1) * (size_t)padded * 2);
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = rows});
    sl_rows_args args = {.src_stride = (uint64_t)cols,
                         .dst_stride = (uint64_t)cols,
                         .cols = (uint32_t)cols,
                         .padded = (uint32_t)padded,
                         .per_row = (uint32_t)per_row,
                         .limit = LIMIT,
                         .alpha = ALPHA};
    sl_rows_args half_args = args;
    half_args.dst_stride = (uint64_t)padded;
    sl_gpu_constant clamped = KERNEL_TRUE(SL_FC_CLAMP);
    kernel_binding b[] = {in(0, &args, sizeof args), in(1, up, n * 4), out(2, h, n * 4), words(&step, 3)};
    kernel_binding b2[] = {
        in(0, &half_args, sizeof half_args), in(1, up, n * 4), out(2, half, (all + 1) * (size_t)padded * 2),
        out(3, unscale, (all + 1) * 4),      words(&step, 4),  out(5, gate, n * 4)};
    kernel_call one = {.entry = "silu_mul",
                       .groups = {2, (uint32_t)all, 1},
                       .threads = {32, 1, 1},
                       .bindings = b,
                       .count = 4,
                       .constants = &clamped,
                       .constant_count = how == CLAMPED};
    kernels_run(&k, &one);
    kernel_call two = one;
    two.entry = "silu_half";
    two.groups[0] = (uint32_t)all + 1;
    two.groups[1] = 1;
    two.threads[0] = threads;
    two.bindings = b2;
    two.count = 6;
    kernels_run(&k, &two);
    for (size_t i = 0; i < all; i++)
        check_half_row(h + i * (size_t)cols, cols, padded, half + i * (size_t)padded, unscale[i]);
    assert_true(isnan(unscale[all]));
    assert_int_equal(half[all * (size_t)padded], 0xffff);
    kernels_result(&k, "silu_half", 0, 0);
    free(gate);
    free(up);
    free(h);
    free(half);
    free(unscale);
    free(step.words);
}

static void silu_half_is_silu_mul_made_half(void **state) {
    rng r = {seed + 5};
    silu_to_half(&r, 3, 1, 101, 32, 0);
    silu_to_half(&r, 2, 4, 33, 64, 0);
    silu_to_half(&r, 2, 2, 555, 32, 0); /* more than registers hold */
    silu_to_half(&r, 1, 3, 300, 96, CLAMPED);
}

static void silu_mul_is_float64s(void **state) {
    rng r = {seed + 2};
    silu_times_up(&r, 3, 1, 101, 2, 0);
    silu_times_up(&r, 2, 4, 33, 2, 0);
    silu_times_up(&r, 1, 1, 7, 1e6f, 0);
    silu_times_up(&r, 2, 2, 45, 2, CLAMPED);
}

/* ---- norm -------------------------------------------------------------------------------------------------------- */

static void norm_rows(rng *r, int32_t rows, int32_t cols, uint32_t threads, float magnitude, bool in_place,
                      bool halved) {
    int64_t stride = cols + 1;
    int32_t padded = (cols + SL_HALF_PAD - 1) / SL_HALF_PAD * SL_HALF_PAD;
    uint16_t *half = malloc((size_t)(rows + 1) * (size_t)padded * 2);
    float *unscale = kernel_poison((size_t)rows + 1);
    memset(half, 0xff, (size_t)(rows + 1) * (size_t)padded * 2);
    size_t n = (size_t)(rows * stride);
    float *src = kernel_floats(r, n, magnitude), *dst = kernel_poison(n), *weight = kernel_floats(r, (size_t)cols, 1);
    float *ref = malloc((size_t)cols * 4), *kept = malloc(n * 4);
    for (int32_t i = 0; i < rows;
         i++) /* what lies between rows is not looked at; infinity alone would be scaled away */
        src[i * stride + cols] = i % 3 == 0 ? INFINITY : i % 3 == 1 ? 100 * magnitude : 0;
    memcpy(kept, src, n * 4);
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = rows});
    sl_rows_args args = {.src_stride = (uint64_t)stride,
                         .dst_stride = (uint64_t)stride,
                         .cols = (uint32_t)cols,
                         .padded = (uint32_t)padded,
                         .eps = 1e-6f,
                         .per_row = 1};
    size_t used = (n - 1) * 4; /* what lies behind the last row is out of bounds */
    kernel_binding b[] = {in(0, &args, sizeof args),
                          in(1, src, used),
                          out(2, dst, n * 4),
                          in(3, weight, (size_t)cols * 4),
                          words(&step, 4),
                          out(5, half, (size_t)(rows + 1) * (size_t)padded * 2),
                          out(6, unscale, (size_t)(rows + 1) * 4)};
    sl_gpu_constant constant = KERNEL_TRUE(SL_FC_HALF);
    if (in_place) {
        b[1] = out(1, src, used);
        b[2].same_as = 1;
    }
    kernels_run(&k, &(kernel_call){.entry = "rms_norm",
                                   .groups = {(uint32_t)rows + 1, 1, 1},
                                   .threads = {threads, 1, 1},
                                   .bindings = b,
                                   .count = 7,
                                   .constants = &constant,
                                   .constant_count = halved});
    float *got = in_place ? src : dst;
    double worst = 0;
    for (int32_t i = 0; i < rows; i++) {
        cpu_ops_get("scalar")->rms_norm(ref, kept + i * stride, weight, cols, 1e-6f);
        for (int32_t c = 0; c < cols; c++) {
            double e = fabs(got[i * stride + c] - ref[c]) / (fabs(ref[c]) + 1e-30);
            worst = worse_of(worst, e);
        }
        if (halved)
            check_half_row(got + i * stride, cols, padded, half + (size_t)i * (size_t)padded, unscale[i]);
    }
    assert_true(isnan(unscale[halved ? rows : 0]));
    assert_int_equal(half[halved ? rows * padded : 0], 0xffff);
    kernels_result(&k, halved ? "rms_norm (and half rows)" : "rms_norm", worst, 1e-5);
    free(half);
    free(unscale);
    free(src);
    free(dst);
    free(kept);
    free(ref);
    free(weight);
    free(step.words);
}

static void rms_norm_is_the_cpus(void **state) {
    rng r = {seed + 3};
    norm_rows(&r, 3, 1, 32, 1, false, false);
    norm_rows(&r, 2, 77, 32, 1, false, false);
    norm_rows(&r, 2, 515, 128, 3, true, false);
    norm_rows(&r, 1, 1024, 256, 1e-3f, false, false);
    norm_rows(&r, 2, 301, 96, 1e6f, false, false);
    norm_rows(&r, 2, 301, 96, 1e30f, false, false); /* squares overflow */
    norm_rows(&r, 3, 20, 32, 1e30f, false, false);
    norm_rows(&r, 3, 1, 32, 1e30f, false, false);
    norm_rows(&r, 2, 515, 32, 1, true, false); /* more than registers hold */
    norm_rows(&r, 2, 515, 32, 1e30f, false, true);
    norm_rows(&r, 3, 77, 32, 1, true, true);
    norm_rows(&r, 2, 640, 64, 1e-3f, true, true);
    norm_rows(&r, 2, 256, 32, 1, false, true);
}

/* ---- half rows --------------------------------------------------------------------------------------------------- */

static void half_rows(rng *r, int32_t rows, int32_t cols, float magnitude) {
    int32_t padded = (cols + SL_HALF_PAD - 1) / SL_HALF_PAD * SL_HALF_PAD;
    size_t n = (size_t)(rows * cols), m = (size_t)(rows * padded);
    float *src = kernel_floats(r, n, magnitude), *unscale = kernel_poison((size_t)rows + 1);
    for (int32_t i = 0; i < rows; i++) /* rows of very different sizes */
        for (int32_t c = 0; c < cols; c++)
            src[i * cols + c] *= powf(10, (float)(3 * i));
    memset(src, 0, (size_t)cols * 4); /* a row of zeros */
    uint16_t *dst = malloc(m * 2);
    memset(dst, 0xff, m * 2);
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = rows});
    sl_rows_args args = {.src_stride = (uint64_t)cols,
                         .dst_stride = (uint64_t)padded,
                         .cols = (uint32_t)cols,
                         .padded = (uint32_t)padded,
                         .per_row = 1};
    kernel_binding b[] = {in(0, &args, sizeof args), in(1, src, n * 4), out(2, dst, m * 2),
                          out(3, unscale, (size_t)(rows + 1) * 4), words(&step, 4)};
    kernels_run(&k, &(kernel_call){.entry = "to_half",
                                   .groups = {(uint32_t)rows + 1, 1, 1},
                                   .threads = {32, 1, 1},
                                   .bindings = b,
                                   .count = 5});
    double worst = 0;
    for (int32_t i = 0; i < rows; i++) {
        double largest = 0;
        for (int32_t c = 0; c < cols; c++)
            largest = fmax(largest, fabs(src[i * cols + c]));
        for (int32_t c = 0; c < padded; c++) {
            double v = (double)sl_f16_to_f32(dst[i * padded + c]) * unscale[i], x = c < cols ? src[i * cols + c] : 0;
            double e = fabs(v - x) / (largest + 1e-30);
            worst = worse_of(worst, e);
        }
    }
    assert_true(isnan(unscale[rows]));
    kernels_result(&k, "to_half", worst, 0.5 / 1024);
    free(src);
    free(dst);
    free(unscale);
    free(step.words);
}

static void half_rows_keep_every_size(void **state) {
    rng r = {seed + 4};
    half_rows(&r, 4, 33, 1);
    half_rows(&r, 2, 301, 3);
    half_rows(&r, 2, 96, 1e6f);
    half_rows(&r, 3, 5, 1e-30f);
    half_rows(&r, 2, 200, 1e35f);
}

int main(void) {
    kernel_format formats[SL_COUNT(variants)];
    for (size_t i = 0; i < SL_COUNT(variants); i++)
        formats[i] = format_of(&variants[i]);
    if (!kernels_open(&k, "rows.metal", formats, SL_COUNT(variants)))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_has_the_dequantisers_values),
        cmocka_unit_test(gather_takes_the_rows_that_want_logits),
        cmocka_unit_test(silu_mul_is_float64s),
        cmocka_unit_test(silu_half_is_silu_mul_made_half),
        cmocka_unit_test(rms_norm_is_the_cpus),
        cmocka_unit_test(half_rows_keep_every_size),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&k);
    return failed;
}

/* Products through fragments in registers, against float64: every format that has them, tiles of several threadgroups
 * and more of them than sums are kept, columns beyond what is kept of x, values of any size; the fused forms; experts.
 */
#include "support_kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 20261201;
static kernels k;

static const kernel_variant variants[] = {
    {SL_AFFINE4, 64, SL_F16, 16}, {SL_AFFINE4, 64, SL_BF16, 16}, {SL_Q4_0, 0, 0, 2},
    {SL_Q4_K, 0, 0, 16},          {SL_MXFP4, 0, 0, 1},           {SL_MXFP4_SPLIT, 0, 0, 16},
};
enum { VARIANTS = SL_COUNT(variants), EXPERTS = KERNEL_EXPERTS, THREADS = SL_FEW_THREADS };

typedef struct few_case {
    const kernel_variant *v;
    int64_t out, cols;
    int32_t rows, extra; /* extra: rows of the grid that the step does not have */
    uint32_t groups;
    bool add, bias, gate_up;
    float magnitude;
} few_case;

static void entry_of(char entry[64], const char *kernel, const kernel_variant *v) {
    kernel_format f = kernel_variant_format(v);
    snprintf(entry, 64, "%s_%s", kernel, f.name);
}

/* Units without values, and one value that dwarfs the rest of its unit. */
static float *activations(rng *r, int32_t rows, int64_t cols, float magnitude) {
    float *x = kernel_floats(r, (size_t)(rows * cols), magnitude);
    for (int32_t i = 0; i < rows; i++) {
        memset(x + i * cols + 32 * rng_below(r, (int32_t)(cols / 32)), 0, 32 * sizeof *x);
        x[i * cols + rng_below(r, (int32_t)cols)] *= 30;
    }
    return x;
}

static double row_error(const few_case *c, const kernel_matrix *w, const kernel_matrix *up, const float *x,
                        const float *got, const float *before, const float *bias) {
    double *a = malloc((size_t)c->out * 8), *b = malloc((size_t)c->out * 8), *sa = malloc((size_t)c->out * 8);
    double *sb = malloc((size_t)c->out * 8), worst = 0;
    kernel_product(w, x, a, sa);
    kernel_product(up, x, b, sb);
    for (int64_t i = 0; i < c->out; i++) {
        double add = (c->add ? before[i] : 0) + (c->bias ? bias[i] : 0);
        double ref = c->gate_up ? a[i] / (1 + exp(-a[i])) * b[i] : a[i] + add;
        double e = fabs(got[i] - ref) / (c->gate_up ? fabs(ref) + (1 + sa[i]) * sb[i] : sa[i] + fabs(add));
        worst = worse_of(worst, e);
    }
    free(a);
    free(b);
    free(sa);
    free(sb);
    return worst;
}

static void run_few(rng *r, const few_case *c) {
    kernel_matrix w = kernel_matrix_new(r, c->v->format, c->v->group, c->v->side, c->out, c->cols);
    kernel_matrix up = kernel_matrix_new(r, c->v->format, c->v->group, c->v->side, c->out, c->cols);
    int32_t grid = c->rows + c->extra;
    size_t n = (size_t)(grid * c->out);
    float *x = activations(r, grid, c->cols, c->magnitude), *bias = kernel_floats(r, (size_t)c->out, 1);
    float *before = c->add ? kernel_floats(r, n, 1) : kernel_poison(n), *y = malloc(n * 4);
    memcpy(y, before, n * 4);
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = c->rows});
    sl_matvec_args args = {.w = kernel_weights(&w.m), .x_stride = (uint64_t)c->cols, .y_stride = (uint64_t)c->out};
    kernel_binding b[12] = {in(0, &args, sizeof args)};
    size_t count = 1 + kernel_bind_weights(b + 1, &w, 1, 16);
    b[count++] = in(4, x, (size_t)(grid * c->cols) * 4);
    b[count++] = out(5, y, n * 4);
    b[count++] = in(9, step.words, step.bytes);
    if (c->gate_up)
        count += kernel_bind_weights(b + count, &up, 6, 16);
    else
        b[count++] = in(6, bias, (size_t)c->out * 4);
    sl_gpu_constant constants[2];
    size_t m = 0;
    if (c->add)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_ADD);
    if (c->bias)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_BIAS);
    char entry[64];
    entry_of(entry, c->gate_up ? "few_gate_up" : "few", c->v);
    kernels_run(&k, &(kernel_call){.entry = entry,
                                   .groups = {c->groups, (uint32_t)grid, 1},
                                   .threads = {THREADS, 1, 1},
                                   .bindings = b,
                                   .count = count,
                                   .constants = constants,
                                   .constant_count = m});
    double worst = 0;
    for (int32_t i = 0; i < c->rows; i++) {
        double e = row_error(c, &w, &up, x + i * c->cols, y + i * c->out, before + i * c->out, bias);
        worst = worse_of(worst, e);
    }
    assert_memory_equal(y + c->rows * c->out, before + c->rows * c->out, (size_t)(c->extra * c->out) * 4);
    kernels_result(&k, entry, worst, 1e-5);
    free(x);
    free(y);
    free(before);
    free(bias);
    free(step.words);
    kernel_matrix_free(&w);
    kernel_matrix_free(&up);
}

/* Columns: one SIMD-group's, two, three and all four of them busy, more than x has room for, twice its room. */
static const int64_t widths[] = {256, 512, 768, 1024, 1792, 2048, 2304, 4096};

static void every_format_is_float64s_product(void **state) {
    rng r = {seed};
    for (size_t i = 0; i < SL_COUNT(widths); i++)
        run_few(&r, &(few_case){.v = &variants[i % VARIANTS],
                                .out = 16 * (1 + rng_below(&r, 5)),
                                .cols = widths[i],
                                .rows = 1 + rng_below(&r, 2),
                                .extra = i % 3 == 1,
                                .groups = 1 + (uint32_t)rng_below(&r, 4),
                                .add = i % 3 == 1,
                                .bias = i % 3 == 2,
                                .magnitude = 1});
}

static void values_of_any_size_are_as_exact(void **state) {
    static const float magnitude[] = {1e-25f, 1e-6f, 1e5f, 1e20f};
    rng r = {seed + 1};
    for (size_t i = 0; i < SL_COUNT(magnitude); i++)
        run_few(&r, &(few_case){.v = &variants[2 * i % VARIANTS],
                                .out = 16,
                                .cols = 512,
                                .rows = 1,
                                .groups = 1,
                                .magnitude = magnitude[i]});
}

/* A scale of 2^120 times values of 2^-110: what lies between must not overflow. */
static void large_scales_of_small_values_stay_finite(void **state) {
    rng r = {seed + 7};
    kernel_matrix w = kernel_matrix_new(&r, SL_MXFP4, 0, 0, 16, 256);
    uint8_t *bytes = (uint8_t *)(uintptr_t)w.m.part[0];
    float *x = kernel_floats(&r, 256, ldexpf(1, -110)), y[16], row[256];
    double sum, squares, worst = 0;
    for (uint64_t i = 0; i < kernel_matrix_bytes(&w, 0); i += 17)
        bytes[i] = 127 + 120;
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = 1});
    sl_matvec_args args = {.w = kernel_weights(&w.m), .x_stride = 256, .y_stride = 16};
    kernel_binding b[8] = {in(0, &args, sizeof args)};
    size_t count = 1 + kernel_bind_weights(b + 1, &w, 1, 16);
    memset(y, 0xff, sizeof y);
    b[count++] = in(4, x, 256 * 4);
    b[count++] = out(5, y, sizeof y);
    b[count++] = in(6, x, 16 * 4);
    b[count++] = in(9, step.words, step.bytes);
    kernels_run(
        &k, &(kernel_call){
                .entry = "few_mxfp4", .groups = {1, 1, 1}, .threads = {THREADS, 1, 1}, .bindings = b, .count = count});
    for (int i = 0; i < 16; i++) {
        sl_format_get(SL_MXFP4)->dequantize(&w.m, i, 0, 256, row);
        sum = squares = 0;
        for (int c = 0; c < 256; c++) {
            sum += (double)row[c] * x[c];
            squares += (double)row[c] * x[c] * row[c] * x[c];
        }
        double e = fabs(y[i] - sum) / sqrt(squares);
        worst = worse_of(worst, e);
    }
    kernels_result(&k, "few_mxfp4", worst, 1e-5);
    free(x);
    free(step.words);
    kernel_matrix_free(&w);
}

/* One tile, and a last panel of x that some SIMD-groups have no part in: what they copied ahead would be read from
 * behind W. */
static void a_last_panel_is_not_full(void **state) {
    static const int64_t cols[] = {2304, 2560};
    rng r = {seed + 8};
    for (size_t i = 0; i < SL_COUNT(cols); i++)
        run_few(&r, &(few_case){.v = &variants[i], .out = 16, .cols = cols[i], .rows = 1, .groups = 1, .magnitude = 1});
}

static void more_tiles_than_sums_are_kept(void **state) {
    rng r = {seed + 2};
    for (int gate_up = 0; gate_up < 2; gate_up++)
        run_few(&r, &(few_case){.v = &variants[gate_up ? 3 : 0],
                                .out = gate_up ? 16 * 9 : 16 * 18,
                                .cols = 256,
                                .rows = 1,
                                .groups = 1,
                                .bias = !gate_up,
                                .gate_up = gate_up,
                                .magnitude = 1});
}

static void gate_and_up_are_fused(void **state) {
    rng r = {seed + 3};
    for (size_t i = 0; i < VARIANTS; i++)
        run_few(&r, &(few_case){.v = &variants[i],
                                .out = 16 * (1 + rng_below(&r, 3)),
                                .cols = widths[(i + 1) % SL_COUNT(widths)],
                                .rows = 1,
                                .extra = i == 1,
                                .groups = 2,
                                .gate_up = true,
                                .magnitude = 1});
}

/* The same bits from any number of threadgroups, as a grid is the host's choice. */
static void the_grid_does_not_show(void **state) {
    rng r = {seed + 4};
    kernel_matrix w = kernel_matrix_new(&r, SL_Q4_0, 0, 0, 16 * 7, 768);
    float *x = kernel_floats(&r, 768, 1), *first = NULL;
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = 1});
    sl_matvec_args args = {.w = kernel_weights(&w.m), .x_stride = 768, .y_stride = 112};
    for (uint32_t groups = 1; groups <= 9; groups += 2) {
        float *y = kernel_poison(112);
        kernel_binding b[8] = {in(0, &args, sizeof args)};
        size_t count = 1 + kernel_bind_weights(b + 1, &w, 1, 16);
        b[count++] = in(4, x, 768 * 4);
        b[count++] = out(5, y, 112 * 4);
        b[count++] = in(6, x, 112 * 4);
        b[count++] = in(9, step.words, step.bytes);
        kernels_run(&k, &(kernel_call){.entry = "few_q4_0",
                                       .groups = {groups, 1, 1},
                                       .threads = {THREADS, 1, 1},
                                       .bindings = b,
                                       .count = count});
        if (first) {
            assert_memory_equal(y, first, 112 * 4);
            free(y);
        } else
            first = y;
    }
    free(first);
    free(x);
    free(step.words);
    kernel_matrix_free(&w);
}

/* ---- experts ----------------------------------------------------------------------------------------------------- */

typedef struct expert_case {
    const kernel_variant *v;
    int64_t out, cols;
    bool gate_up, aborted, bias, clamp;
} expert_case;

enum { PAIRS = 7, TOP_K = 2, ROWS = 3 }; /* the last pair is of a row that the step does not have */

static void run_experts(rng *r, const expert_case *c) {
    static const int32_t chosen[PAIRS + 1] = {2, 0, KERNEL_ABSENT, 2, EXPERTS, -1, 0, 0};
    kernel_matrix w[EXPERTS], up[EXPERTS];
    for (int e = 0; e < EXPERTS; e++) {
        w[e] = kernel_matrix_new(r, c->v->format, c->v->group, c->v->side, c->out, c->cols);
        up[e] = kernel_matrix_new(r, c->v->format, c->v->group, c->v->side, c->out, c->cols);
    }
    kernel_experts m = {0};
    kernel_experts_add(&m, w, c->gate_up ? 0 : 2, 16);
    if (c->gate_up)
        kernel_experts_add(&m, up, 1, 16);
    float *x = activations(r, PAIRS, c->cols, 1), *y = kernel_poison((size_t)(PAIRS * c->out));
    float *bias = kernel_floats(r, (size_t)(EXPERTS * c->out), 1),
          *up_bias = kernel_floats(r, (size_t)(EXPERTS * c->out), 1);
    uint8_t done[PAIRS] = {0};
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = ROWS});
    ((sl_step_head *)(void *)step.words)->aborted = c->aborted;
    sl_expert_args args = {.w = kernel_weights(&w[0].m),
                           .x_stride = (uint64_t)c->cols,
                           .y_stride = (uint64_t)c->out,
                           .experts = EXPERTS,
                           .top_k = TOP_K,
                           .projection = 2,
                           .per_pair = 1,
                           .limit = 0.5f,
                           .alpha = 1.5f};
    kernel_binding b[] = {in(0, &args, sizeof args),
                          in(1, m.table, sizeof m.table),
                          in(2, chosen, sizeof chosen),
                          in(3, x, (size_t)(PAIRS * c->cols) * 4),
                          out(4, y, (size_t)(PAIRS * c->out) * 4),
                          in(6, step.words, step.bytes),
                          in(7, bias, (size_t)(EXPERTS * c->out) * 4),
                          in(SL_SLAB_FIRST, m.slab[0], m.bytes[0]),
                          in(SL_SLAB_FIRST + 1, m.slab[1], m.bytes[1]),
                          c->gate_up ? in(8, up_bias, (size_t)(EXPERTS * c->out) * 4) : out(5, done, sizeof done)};
    sl_gpu_constant constants[2];
    size_t n = 0;
    if (!c->gate_up)
        constants[n++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_LEAVES);
    if (c->bias)
        constants[n++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_BIAS);
    if (c->clamp)
        constants[n++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_CLAMP);
    char entry[64];
    entry_of(entry, c->gate_up ? "few_expert_gate_up" : "few_expert_matvec", c->v);
    kernels_run(&k, &(kernel_call){.entry = entry,
                                   .groups = {2, PAIRS, 1},
                                   .threads = {THREADS, 1, 1},
                                   .bindings = b,
                                   .count = SL_COUNT(b),
                                   .constants = constants,
                                   .constant_count = n,
                                   .slabs = true});
    double worst = 0;
    for (int32_t p = 0; p < PAIRS; p++) {
        bool there = chosen[p] >= 0 && chosen[p] < EXPERTS && chosen[p] != KERNEL_ABSENT;
        bool computed = p < ROWS * TOP_K && there && !c->aborted;
        assert_int_equal(done[p], computed && !c->gate_up);
        for (int64_t i = 0; !computed && i < c->out; i++)
            assert_true(isnan(y[p * c->out + i]));
        int32_t e = chosen[p];
        if (computed)
            worst = worse_of(worst, kernel_expert_error(&w[e], &up[e], x + (c->gate_up ? p / TOP_K : p) * c->cols,
                                                        c->bias ? bias + e * c->out : NULL,
                                                        c->bias ? up_bias + e * c->out : NULL, c->gate_up,
                                                        c->clamp ? 0.5 : 0, 1.5, y + p * c->out));
    }
    kernels_result(&k, entry, worst, 1e-5);
    free(x);
    free(y);
    free(bias);
    free(up_bias);
    free(step.words);
    kernel_experts_free(&m);
    for (int e = 0; e < EXPERTS; e++) {
        kernel_matrix_free(&w[e]);
        kernel_matrix_free(&up[e]);
    }
}

static void experts_are_float64s(void **state) {
    rng r = {seed + 5};
    for (size_t i = 0; i < VARIANTS; i++)
        run_experts(&r, &(expert_case){.v = &variants[i],
                                       .out = 16 * (1 + rng_below(&r, 3)),
                                       .cols = widths[i % 4],
                                       .gate_up = i % 2,
                                       .bias = i % 3 == 1,
                                       .clamp = i == 1});
    run_experts(&r, &(expert_case){.v = &variants[5], .out = 32, .cols = 256, .gate_up = true});
}

static void an_aborted_step_computes_nothing(void **state) {
    rng r = {seed + 6};
    for (int gate_up = 0; gate_up < 2; gate_up++)
        run_experts(&r, &(expert_case){.v = &variants[2], .out = 16, .cols = 256, .gate_up = gate_up, .aborted = true});
}

int main(void) {
    if (!kernels_open(&k, "few.metal", NULL, 0))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_is_float64s_product), cmocka_unit_test(large_scales_of_small_values_stay_finite),
        cmocka_unit_test(values_of_any_size_are_as_exact),  cmocka_unit_test(a_last_panel_is_not_full),
        cmocka_unit_test(more_tiles_than_sums_are_kept),    cmocka_unit_test(gate_and_up_are_fused),
        cmocka_unit_test(the_grid_does_not_show),           cmocka_unit_test(experts_are_float64s),
        cmocka_unit_test(an_aborted_step_computes_nothing),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&k);
    return failed;
}

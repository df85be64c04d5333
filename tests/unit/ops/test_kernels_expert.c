/* Projections of routed experts through the expert table: against float64, every format; experts that are absent, hits
 * and misses in two passes, a step that was aborted. */
#include "support_kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 777;
static kernels k;

enum { EXPERTS = KERNEL_EXPERTS, ABSENT = KERNEL_ABSENT };

static const kernel_variant variants[] = {
    {SL_F32, 0, 0, 4},           {SL_F16, 0, 0, 16},           {SL_BF16, 0, 0, 2},    {SL_Q4_0, 0, 0, 2},
    {SL_Q4_1, 0, 0, 2},          {SL_Q5_0, 0, 0, 2},           {SL_Q5_1, 0, 0, 4},    {SL_Q8_0, 0, 0, 2},
    {SL_Q4_K, 0, 0, 2},          {SL_Q5_K, 0, 0, 4},           {SL_Q6_K, 0, 0, 1},    {SL_AFFINE4, 64, SL_BF16, 16},
    {SL_AFFINE8, 32, SL_F16, 1}, {SL_AFFINE2, 64, SL_BF16, 4}, {SL_Q3_K, 0, 0, 2},    {SL_MXFP4, 0, 0, 1},
    {SL_MXFP4_SPLIT, 0, 0, 16},  {SL_FP8, 128, SL_BF16, 4},    {SL_IQ2_XXS, 0, 0, 2},
};

typedef struct expert_case {
    const kernel_variant *v;
    int64_t out, cols;
    int32_t rows, top_k;
    bool gate_up;          /* else: down */
    bool aborted, invalid; /* invalid: the first and the last pair chose what is no expert */
    float magnitude;
    bool biased, clamped; /* clamped: SwiGLU within LIMIT instead of SiLU */
} expert_case;

#define LIMIT 0.7f
#define ALPHA 1.7f

static void choose(rng *r, const expert_case *c, int32_t *chosen) {
    for (int32_t i = 0; i < c->rows; i++) {
        int32_t first = (i + rng_below(r, 2)) % (EXPERTS - c->top_k + 1);
        for (int32_t j = 0; j < c->top_k; j++)
            chosen[i * c->top_k + j] = first + j;
    }
    if (c->invalid) {
        chosen[0] = EXPERTS;
        chosen[c->rows * c->top_k - 1] = -1;
    }
}

/* Error of one pair's row, relative to the size of its rounding errors. */
static double pair_error(const expert_case *c, const kernel_matrix *w, const kernel_matrix *up, const float *x,
                         const float *bias, const float *up_bias, const float *got) {
    double *a = malloc((size_t)c->out * 8), *b = malloc((size_t)c->out * 8), *sa = malloc((size_t)c->out * 8);
    double *sb = malloc((size_t)c->out * 8), worst = 0;
    kernel_product(w, x, a, sa);
    kernel_product(up, x, b, sb);
    for (int64_t i = 0; i < c->out; i++) {
        a[i] += c->biased ? bias[i] : 0;
        b[i] += c->biased ? up_bias[i] : 0;
        double ref = c->gate_up ? kernel_swiglu(a[i], b[i], c->clamped ? LIMIT : 0, ALPHA) : a[i];
        double e = fabs(got[i] - ref) / (c->gate_up ? fabs(ref) + (1 + sa[i]) * sb[i] : sa[i]);
        worst = worse_of(worst, e);
    }
    free(a);
    free(b);
    free(sa);
    free(sb);
    return worst;
}

static void run_experts(rng *r, const expert_case *c) {
    kernel_matrix w[EXPERTS], up[EXPERTS];
    for (int e = 0; e < EXPERTS; e++) {
        w[e] = kernel_matrix_new(r, c->v->format, c->v->group, c->v->side, c->out, c->cols);
        up[e] = kernel_matrix_new(r, c->v->format, c->v->group, c->v->side, c->out, c->cols);
    }
    kernel_format f = kernel_variant_format(c->v);
    kernel_experts m = {0};
    kernel_experts_add(&m, w, c->gate_up ? 0 : 2, c->v->align);
    if (c->gate_up)
        kernel_experts_add(&m, up, 1, c->v->align);
    int32_t n = c->rows * c->top_k, x_rows = c->gate_up ? c->rows : n;
    int32_t *chosen = malloc((size_t)n * 4);
    choose(r, c, chosen);
    float *x = kernel_floats(r, (size_t)(x_rows * c->cols), c->magnitude);
    float *bias = kernel_floats(r, (size_t)(EXPERTS * c->out), 0.2f);
    float *up_bias = kernel_floats(r, (size_t)(EXPERTS * c->out), 0.2f);
    float *y = kernel_poison((size_t)((n + c->top_k) * c->out));
    uint8_t *done = calloc((size_t)n, 1);
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = c->rows});
    ((sl_step_head *)(void *)step.words)->aborted = c->aborted;
    sl_expert_args args = {.w = kernel_weights(&w[0].m),
                           .x_stride = (uint64_t)c->cols,
                           .y_stride = (uint64_t)c->out,
                           .experts = EXPERTS,
                           .top_k = (uint32_t)c->top_k,
                           .projection = 2,
                           .per_pair = 1,
                           .limit = LIMIT,
                           .alpha = ALPHA};
    kernel_binding b[] = {in(0, &args, sizeof args),
                          in(1, m.table, sizeof m.table),
                          in(2, chosen, (size_t)n * 4),
                          in(3, x, (size_t)(x_rows * c->cols) * 4),
                          out(4, y, (size_t)((n + c->top_k) * c->out) * 4),
                          in(6, step.words, step.bytes),
                          in(7, bias, (size_t)(EXPERTS * c->out) * 4),
                          in(SL_SLAB_FIRST, m.slab[0], m.bytes[0]),
                          in(SL_SLAB_FIRST + 1, m.slab[1], m.bytes[1]),
                          c->gate_up ? in(8, up_bias, (size_t)(EXPERTS * c->out) * 4) : out(5, done, (size_t)n)};
    sl_gpu_constant constants[2];
    size_t set = 0;
    if (!c->gate_up)
        constants[set++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_LEAVES);
    if (c->gate_up && c->clamped)
        constants[set++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_CLAMP);
    if (c->biased)
        constants[set++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_BIAS);
    char entry[64];
    kernel_entry(entry, sizeof entry, c->gate_up ? "expert_gate_up" : "expert_matvec", &f);
    kernels_run(&k, &(kernel_call){.entry = entry,
                                   .groups = {(uint32_t)(c->out + SL_MATVEC_ROWS - 1) / SL_MATVEC_ROWS,
                                              (uint32_t)(n + c->top_k), 1},
                                   .threads = {SL_MATVEC_THREADS, 1, 1},
                                   .bindings = b,
                                   .count = SL_COUNT(b),
                                   .constants = constants,
                                   .constant_count = set,
                                   .slabs = true});
    double worst = 0;
    for (int32_t p = 0; p < n + c->top_k; p++) {
        bool there = p < n && chosen[p] >= 0 && chosen[p] < EXPERTS && chosen[p] != ABSENT;
        bool computed = there && !c->aborted;
        const float *got = y + p * c->out;
        if (p < n)
            assert_int_equal(done[p], computed && !c->gate_up);
        for (int64_t i = 0; !computed && i < c->out; i++)
            assert_true(isnan(got[i]));
        double e = computed
                       ? pair_error(c, &w[chosen[p]], &up[chosen[p]], x + (c->gate_up ? p / c->top_k : p) * c->cols,
                                    bias + chosen[p] * c->out, up_bias + chosen[p] * c->out, got)
                       : 0;
        worst = worse_of(worst, e);
    }
    kernels_result(&k, entry, worst, 1e-5);
    free(chosen);
    free(x);
    free(bias);
    free(up_bias);
    free(y);
    free(done);
    free(step.words);
    kernel_experts_free(&m);
    for (int e = 0; e < EXPERTS; e++) {
        kernel_matrix_free(&w[e]);
        kernel_matrix_free(&up[e]);
    }
}

static void every_format_is_float64s(void **state) {
    rng r = {seed};
    for (size_t i = 0; i < SL_COUNT(variants); i++)
        for (int gate_up = 0; gate_up < 2; gate_up++)
            run_experts(&r, &(expert_case){.v = &variants[i],
                                           .out = 1 + rng_below(&r, 19),
                                           .cols = kernel_variant_cols(&r, &variants[i], 600),
                                           .rows = 3,
                                           .top_k = 1 + (int32_t)(i % 2),
                                           .gate_up = gate_up,
                                           .magnitude = i % 4 == 3 ? 1e6f : 1});
}

static void biases_are_the_experts_own(void **state) {
    rng r = {seed + 3};
    for (int i = 0; i < 4; i++)
        run_experts(&r, &(expert_case){.v = &variants[3],
                                       .out = 9 + i,
                                       .cols = 64,
                                       .rows = 3,
                                       .top_k = 2,
                                       .gate_up = i & 1,
                                       .biased = true,
                                       .clamped = i > 1,
                                       .magnitude = 1});
}

static void an_aborted_step_computes_nothing(void **state) {
    rng r = {seed + 1};
    run_experts(&r, &(expert_case){&variants[3], 9, 64, 2, 2, false, true, false, .magnitude = 1});
    run_experts(&r, &(expert_case){&variants[3], 9, 64, 2, 2, true, true, false, .magnitude = 1});
}

static void what_is_no_expert_is_left_alone(void **state) {
    rng r = {seed + 2};
    run_experts(&r, &(expert_case){&variants[3], 9, 64, 3, 1, false, false, true, .magnitude = 1});
    run_experts(&r, &(expert_case){&variants[3], 9, 64, 3, 1, true, false, true, .magnitude = 1});
}

int main(void) {
    kernel_format formats[SL_COUNT(variants)];
    for (size_t i = 0; i < SL_COUNT(variants); i++)
        formats[i] = kernel_variant_format(&variants[i]);
    if (!kernels_open(&k, "expert.metal", formats, SL_COUNT(variants)))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_is_float64s),
        cmocka_unit_test(biases_are_the_experts_own),
        cmocka_unit_test(an_aborted_step_computes_nothing),
        cmocka_unit_test(what_is_no_expert_is_left_alone),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&k);
    return failed;
}

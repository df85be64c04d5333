/* A matrix for each head on the soft device against float64: plain and turned, few rows and many, every kind of format,
 * odd shapes; tails are copied and nothing else is written. */
#include "support_kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 20261130;
static kernels k;

/* A format of each way that columns lie in units. */
static const kernel_variant variants[] = {
    {SL_F32, 0, 0, 4},
    {SL_BF16, 0, 0, 16},
    {SL_F16, 0, 0, 1},
    {SL_Q8_0, 0, 0, 2},
    {SL_Q4_K, 0, 0, 16},
    {SL_Q6_K, 0, 0, 2},
    {SL_AFFINE4, 64, SL_BF16, 16},
    {SL_FP8, 128, SL_F32, 4},
};

typedef struct heads_case {
    kernel_variant v;
    bool turned, many;
    int32_t heads, in, out, tail, first, behind; /* behind: rows of a head's matrix that are not its own */
    int32_t rows, extra;                         /* extra: rows of the grid that the step does not have */
    float magnitude;
} heads_case;

typedef struct operands {
    kernel_matrix w;
    float *x, *y;
    int32_t in_cols, out_cols;
    int64_t ldx, ldy;
} operands;

static operands make_operands(rng *r, const heads_case *c) {
    operands o = {.in_cols = c->in + c->tail, .out_cols = c->out + c->tail};
    int64_t per_head = c->first + (c->turned ? c->in : c->out) + c->behind, grid = c->rows + c->extra;
    o.w = kernel_matrix_new(r, c->v.format, c->v.group, c->v.side, c->heads * per_head, c->turned ? c->out : c->in);
    o.ldx = c->heads * o.in_cols + 3;
    o.ldy = c->heads * o.out_cols + 5;
    o.x = kernel_floats(r, (size_t)(grid * o.ldx), c->magnitude);
    for (int64_t i = 0; i < grid * o.ldx; i++) /* what lies behind a vector has no say in its scale */
        if (i % o.ldx >= c->heads * o.in_cols || i % o.ldx % o.in_cols >= c->in)
            o.x[i] *= 1e20f;
    o.y = kernel_poison((size_t)(grid * o.ldy));
    return o;
}

static void free_operands(operands *o) {
    free(o->x);
    free(o->y);
    kernel_matrix_free(&o->w);
}

/* Element (out, in) of the head's matrix. */
static double element(const heads_case *c, const operands *o, int32_t head, int32_t out, int32_t in) {
    int64_t row = head * (c->first + (c->turned ? c->in : c->out) + c->behind) + c->first + (c->turned ? in : out);
    return o->w.values[row * o->w.m.cols + (c->turned ? out : in)];
}

/* The largest error of a head, relative to the root of the sum of squared products; its tail is x's. */
static double head_error(const heads_case *c, const operands *o, int32_t row, int32_t head) {
    const float *x = o->x + row * o->ldx + head * o->in_cols, *y = o->y + row * o->ldy + head * o->out_cols;
    double worst = 0;
    for (int32_t j = 0; j < c->out; j++) {
        double sum = 0, size = 0;
        for (int32_t i = 0; i < c->in; i++) {
            double p = element(c, o, head, j, i) * (double)x[i];
            sum += p;
            size += p * p;
        }
        double e = size > 0 ? fabs(y[j] - sum) / sqrt(size) : fabs(y[j]);
        worst = worse_of(worst, e);
    }
    assert_memory_equal(y + c->out, x + c->in, (size_t)c->tail * sizeof *x);
    return worst;
}

static void check(const char *entry, const heads_case *c, const operands *o) {
    double worst = 0;
    for (int32_t row = 0; row < c->rows; row++)
        for (int32_t head = 0; head < c->heads; head++) {
            double e = head_error(c, o, row, head);
            worst = worse_of(worst, e);
        }
    kernels_result(&k, entry, worst, c->many ? 2e-3 : 1e-5);
    for (int32_t row = 0; row < c->rows + c->extra; row++)
        for (int64_t i = row < c->rows ? c->heads * o->out_cols : 0; i < o->ldy; i++)
            assert_true(isnan(o->y[row * o->ldy + i])); /* as it was */
}

static void set_grid(kernel_call *call, const heads_case *c) {
    uint32_t units = (uint32_t)(c->out + 31) / 32, grid = (uint32_t)(c->rows + c->extra);
    uint32_t across = c->many ? (c->turned ? (units + 1) / 2 : (uint32_t)(c->out + SL_MATMUL_ROWS - 1) / SL_MATMUL_ROWS)
                              : (c->turned ? (units + SL_TURNED_UNITS - 1) / SL_TURNED_UNITS
                                           : (uint32_t)(c->out + SL_MATVEC_ROWS - 1) / SL_MATVEC_ROWS);
    call->groups[0] = across;
    call->groups[1] = c->many ? (grid + SL_MATMUL_TOKENS - 1) / SL_MATMUL_TOKENS : grid;
    call->groups[2] = (uint32_t)c->heads;
    call->threads[0] = c->many ? SL_MATMUL_THREADS : c->turned ? SL_TURNED_THREADS : SL_MATVEC_THREADS;
    call->threads[1] = call->threads[2] = 1;
}

static void run(rng *r, const heads_case *c) {
    operands o = make_operands(r, c);
    kernel_format f = kernel_variant_format(&c->v);
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = c->rows});
    int32_t per_head = c->first + (c->turned ? c->in : c->out) + c->behind, grid = c->rows + c->extra;
    sl_heads_args args = {.w = kernel_weights(&o.w.m),
                          .x_stride = (uint64_t)o.ldx,
                          .y_stride = (uint64_t)o.ldy,
                          .in_dim = (uint32_t)c->in,
                          .out_dim = (uint32_t)c->out,
                          .tail = (uint32_t)c->tail,
                          .first_row = (uint32_t)c->first,
                          .rows_per_head = (uint32_t)per_head};
    kernel_binding b[7] = {in(0, &args, sizeof args)};
    size_t n = 1 + kernel_bind_weights(b + 1, &o.w, 1, c->v.align);
    b[n++] = in(4, o.x, (size_t)(grid * o.ldx) * 4);
    b[n++] = out(5, o.y, (size_t)(grid * o.ldy) * 4);
    b[n++] = in(6, step.words, step.bytes);
    char kernel[32], entry[64];
    snprintf(kernel, sizeof kernel, "heads_%s%s",
             c->many     ? "matmul"
             : c->turned ? "turned"
                         : "matvec",
             c->many && c->turned ? "_turned" : "");
    kernel_entry(entry, sizeof entry, kernel, &f);
    kernel_call call = {.entry = entry, .bindings = b, .count = n};
    set_grid(&call, c);
    kernels_run(&k, &call);
    check(entry, c, &o);
    free(step.words);
    free_operands(&o);
}

static heads_case random_case(rng *r, const kernel_variant *v, bool turned, bool many) {
    int32_t cols = (int32_t)kernel_variant_cols(r, v, v->format == SL_F32 ? 150 : 300), rows = 1 + rng_below(r, 75);
    return (heads_case){.v = *v,
                        .turned = turned,
                        .many = many,
                        .heads = 1 + rng_below(r, 3),
                        .in = turned ? rows : cols,
                        .out = turned ? cols : rows,
                        .tail = rng_below(r, 2) ? 1 + rng_below(r, 70) : 0,
                        .first = rng_below(r, 3),
                        .behind = rng_below(r, 3),
                        .rows = many ? 1 + rng_below(r, 40) : 1 + rng_below(r, 3),
                        .extra = rng_below(r, 2),
                        .magnitude = 1};
}

static void every_head_is_float64s_product(void **state) {
    rng r = {seed};
    for (size_t i = 0; i < SL_COUNT(variants); i++)
        for (int kind = 0; kind < 4; kind++) {
            heads_case c = random_case(&r, &variants[i], kind & 1, kind & 2);
            run(&r, &c);
        }
}

/* The latent's space and values of DeepSeek-V3, two of its heads. */
static void real_widths_are_float64s_product(void **state) {
    rng r = {seed + 1};
    for (int many = 0; many < 2; many++) {
        run(&r, &(heads_case){.v = variants[1],
                              .turned = true,
                              .many = many,
                              .heads = 2,
                              .in = 128,
                              .out = 512,
                              .tail = 64,
                              .behind = 128,
                              .rows = many ? 33 : 1,
                              .magnitude = 1});
        run(&r, &(heads_case){.v = variants[1],
                              .many = many,
                              .heads = 2,
                              .in = 512,
                              .out = 128,
                              .first = 128,
                              .rows = many ? 33 : 1,
                              .magnitude = 1});
    }
}

static void values_of_a_million_stay_finite(void **state) {
    rng r = {seed + 2};
    for (int kind = 0; kind < 8; kind++) {
        heads_case c = random_case(&r, &variants[kind & 4 ? 3 : 0], kind & 1, kind & 2);
        c.magnitude = 1e6f;
        run(&r, &c);
        c.magnitude = 1e-6f;
        run(&r, &c);
    }
}

int main(void) {
    kernel_format formats[SL_COUNT(variants)];
    for (size_t i = 0; i < SL_COUNT(variants); i++)
        formats[i] = kernel_variant_format(&variants[i]);
    if (!kernels_open(&k, "heads.metal", formats, SL_COUNT(variants)))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_head_is_float64s_product),
        cmocka_unit_test(real_widths_are_float64s_product),
        cmocka_unit_test(values_of_a_million_stay_finite),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&k);
    return failed;
}

#include "support_matmul.h"

#include <xxhash.h>

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const kernel_variant matmul_variants[MATMUL_VARIANTS] = {
    {SL_F32, 0, 0, 1},           {SL_F16, 0, 0, 2},
    {SL_BF16, 0, 0, 16},         {SL_Q4_0, 0, 0, 2},
    {SL_Q4_1, 0, 0, 4},          {SL_Q5_0, 0, 0, 2},
    {SL_Q5_1, 0, 0, 4},          {SL_Q8_0, 0, 0, 2},
    {SL_Q4_K, 0, 0, 16},         {SL_Q5_K, 0, 0, 4},
    {SL_Q6_K, 0, 0, 2},          {SL_AFFINE4, 64, SL_BF16, 16},
    {SL_AFFINE8, 32, SL_F16, 4}, {SL_AFFINE3, 64, SL_BF16, 4},
    {SL_AFFINE6, 32, SL_F16, 1}, {SL_Q2_K, 0, 0, 4},
    {SL_Q3_K, 0, 0, 2},          {SL_IQ4_XS, 0, 0, 4},
    {SL_MXFP4_SPLIT, 0, 0, 4},   {SL_FP8, 128, SL_F32, 4},
    {SL_NVFP4, 0, 0, 4},         {SL_IQ3_S, 0, 0, 2},
    {SL_TQ1_0, 0, 0, 2},         {SL_MXFP4, 0, 0, 1},
    {SL_AFFINE4, 32, SL_F16, 1}, {SL_Q4_0, 0, 0, 1},
    {SL_Q4_K, 0, 0, 2},          {SL_AFFINE4, 64, SL_F32, 16},
};

bool matmul_open(matmul_kind *kind, const char *defines, size_t n) {
    kernel_format formats[MATMUL_VARIANTS];
    size_t count = 0;
    for (size_t i = 0; i < MATMUL_VARIANTS; i += n)
        formats[count++] = kernel_variant_format(&matmul_variants[i]);
    return kernels_open_with(&kind->k, kind->file, formats, count, defines);
}

bool matmul_open_some(matmul_kind *kind, const char *defines, const int *chosen, size_t n) {
    kernel_format formats[MATMUL_VARIANTS];
    for (size_t i = 0; i < n; i++)
        formats[i] = kernel_variant_format(&matmul_variants[chosen[i]]);
    return kernels_open_with(&kind->k, kind->file, formats, n, defines);
}

/* Half rows with their scales, made here as to_half makes them. */
typedef struct half_rows {
    uint16_t *x;
    float *unscale;
    int64_t stride, rows;
} half_rows;

static half_rows half_of(const float *x, int64_t rows, int64_t cols) {
    half_rows h = {.stride = (cols + SL_HALF_PAD - 1) / SL_HALF_PAD * SL_HALF_PAD, .rows = rows};
    h.x = calloc((size_t)(rows * h.stride), 2);
    h.unscale = malloc((size_t)rows * 4);
    for (int64_t i = 0; i < rows; i++) {
        float largest = 0;
        for (int64_t c = 0; c < cols; c++)
            largest = fmaxf(largest, fabsf(x[i * cols + c]));
        int e;
        frexpf(largest, &e);
        for (int64_t c = 0; c < cols; c++)
            h.x[i * h.stride + c] = sl_f32_to_f16(ldexpf(x[i * cols + c], 15 - e));
        h.unscale[i] = ldexpf(1, e - 15);
    }
    return h;
}

static void half_free(half_rows *h) {
    free(h->x);
    free(h->unscale);
}

/* ---- dense ------------------------------------------------------------------------------------------------------- */

static void check_rows(matmul_kind *kind, const char *entry, const kernel_matrix *w, const matmul_case *c,
                       const float *x, const float *y, const float *before, const float *bias, int64_t ldy) {
    double *ref = malloc((size_t)c->out * 8), *size = malloc((size_t)c->out * 8), worst = 0;
    for (int32_t i = 0; i < c->rows + c->extra; i++) {
        kernel_product(w, x + i * c->cols, ref, size);
        for (int64_t r = 0; r < ldy; r++) {
            if (i >= c->rows || r >= c->out) {
                assert_memory_equal(&y[i * ldy + r], &before[i * ldy + r], 4);
                continue;
            }
            double add = (c->add ? before[i * ldy + r] : 0) + (c->bias ? bias[r] : 0);
            double e = fabs(y[i * ldy + r] - (ref[r] + add)) / (size[r] + fabs(add));
            worst = worse_of(worst, e);
        }
    }
    kernels_result(&kind->k, entry, worst, 2e-3);
    free(ref);
    free(size);
}

uint64_t matmul_run(matmul_kind *kind, rng *r, const matmul_case *c) {
    kernel_matrix w = kernel_matrix_new(r, c->v.format, c->v.group, c->v.side, c->out, c->cols);
    kernel_format f = kernel_variant_format(&c->v);
    int64_t rows = c->rows + c->extra, ldy = c->out + 3;
    float *x = kernel_floats(r, (size_t)(rows * c->cols), c->magnitude), *bias = kernel_floats(r, (size_t)c->out, 1);
    half_rows h = half_of(x, rows, c->cols);
    float *y = c->add ? kernel_floats(r, (size_t)(rows * ldy), 1) : kernel_poison((size_t)(rows * ldy));
    float *before = malloc((size_t)(rows * ldy) * 4);
    memcpy(before, y, (size_t)(rows * ldy) * 4);
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = c->rows});
    sl_matmul_args args = {.w = kernel_weights(&w.m), .x_stride = (uint64_t)h.stride, .y_stride = (uint64_t)ldy};
    kernel_binding b[9] = {in(0, &args, sizeof args)};
    size_t n = 1 + kernel_bind_weights(b + 1, &w, 1, c->v.align);
    b[n++] = in(4, h.x, (size_t)(rows * h.stride) * 2);
    b[n++] = in(5, h.unscale, (size_t)rows * 4);
    b[n++] = out(6, y, (size_t)(rows * ldy) * 4);
    b[n++] = in(7, bias, (size_t)c->out * 4);
    b[n++] = in(8, step.words, step.bytes);
    sl_gpu_constant constants[2];
    size_t m = 0;
    if (c->add)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_ADD);
    if (c->bias)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_BIAS);
    char entry[64];
    kernel_entry(entry, sizeof entry, kind->dense, &f);
    kernels_run(&kind->k, &(kernel_call){.entry = entry,
                                         .groups = {(uint32_t)(c->out + kind->rows - 1) / kind->rows,
                                                    (uint32_t)(rows + kind->tokens - 1) / kind->tokens, 1},
                                         .threads = {kind->threads, 1, 1},
                                         .bindings = b,
                                         .count = n,
                                         .constants = constants,
                                         .constant_count = m});
    check_rows(kind, entry, &w, c, x, y, before, bias, ldy);
    uint64_t bits = XXH3_64bits(y, (size_t)((c->hashed ? c->hashed : rows) * ldy) * 4);
    free(x);
    free(y);
    free(before);
    free(bias);
    free(step.words);
    half_free(&h);
    kernel_matrix_free(&w);
    return bits;
}

/* ---- grouped by expert ------------------------------------------------------------------------------------------- */

enum { EXPERTS = KERNEL_EXPERTS, ABSENT = KERNEL_ABSENT };

/* Pairs of `rows` rows with `top_k` experts each, listed by expert with tiles, as group_pairs lists them. */
static uint32_t list_pairs(const matmul_kind *kind, rng *r, int32_t rows, int32_t top_k, int32_t *chosen,
                           int32_t *pairs, sl_pair_tile *tiles) {
    uint32_t at = 0, tile = 0;
    for (int32_t i = 0; i < rows; i++) {
        int32_t first = (i + rng_below(r, 2)) % (EXPERTS - top_k + 1);
        for (int32_t j = 0; j < top_k; j++)
            chosen[i * top_k + j] = first + j;
    }
    for (int32_t e = 0; e < EXPERTS; e++) {
        uint32_t first = at;
        for (int32_t i = 0; i < rows * top_k; i++)
            if (chosen[i] == e)
                pairs[at++] = i;
        for (uint32_t f = first; f < at; f += kind->tokens)
            tiles[tile++] = (sl_pair_tile){e, f, at < f + kind->tokens ? at : f + kind->tokens, 0};
    }
    return tile;
}

typedef struct grouped_case {
    const kernel_variant *v;
    int64_t out, cols;
    int32_t rows, top_k;
    bool down, gate_up /* both, else the up projection */, biased, clamped;
} grouped_case;

enum { GATE = 0, UP = 1, DOWN = 2 };
#define LIMIT 0.7f
#define ALPHA 1.7f

/* Of one pair's row, by the size of what is summed: w or gate (with their biases), and up. */
static double pair_error(const grouped_case *c, const kernel_matrix *w, const kernel_matrix *up, const float *x,
                         const float *bias, const float *up_bias, const float *got) {
    double *a = malloc((size_t)c->out * 8), *b = malloc((size_t)c->out * 8), *sa = malloc((size_t)c->out * 8);
    double *sb = malloc((size_t)c->out * 8), worst = 0;
    kernel_product(w, x, a, sa);
    kernel_product(up, x, b, sb);
    for (int64_t i = 0; i < c->out; i++) {
        double add = c->biased ? bias[i] : 0, size = sa[i] + fabs(add), ref = a[i] + add;
        if (c->gate_up) {
            ref = kernel_swiglu(ref, b[i] + (c->biased ? up_bias[i] : 0), c->clamped ? LIMIT : 0, ALPHA);
            size = fabs(ref) + (1 + size) * (sb[i] + fabs(add));
        }
        worst = worse_of(worst, fabs(got[i] - ref) / size);
    }
    free(a);
    free(b);
    free(sa);
    free(sb);
    return worst;
}

static uint64_t run_grouped(matmul_kind *kind, rng *r, const grouped_case *c) {
    kernel_matrix w[EXPERTS], up[EXPERTS];
    for (int e = 0; e < EXPERTS; e++) {
        w[e] = kernel_matrix_new(r, c->v->format, c->v->group, c->v->side, c->out, c->cols);
        up[e] = kernel_matrix_new(r, c->v->format, c->v->group, c->v->side, c->out, c->cols);
    }
    kernel_format f = kernel_variant_format(c->v);
    int32_t n = c->rows * c->top_k, projection = c->down ? DOWN : c->gate_up ? GATE : UP;
    int32_t *chosen = malloc((size_t)n * 4), *pairs = malloc((size_t)n * 4);
    sl_pair_tile tiles[32];
    assert_true(n / (int32_t)kind->tokens + EXPERTS <= (int32_t)SL_COUNT(tiles));
    uint32_t counts[2] = {list_pairs(kind, r, c->rows, c->top_k, chosen, pairs, tiles), (uint32_t)n};
    kernel_experts m = {0};
    kernel_experts_add(&m, w, projection, c->v->align);
    if (c->gate_up)
        kernel_experts_add(&m, up, UP, c->v->align);
    int64_t x_rows = c->down ? n : c->rows;
    float *x = kernel_floats(r, (size_t)(x_rows * c->cols), 1), *y = kernel_poison((size_t)(n * c->out));
    float *bias = kernel_floats(r, (size_t)(EXPERTS * c->out), 1);
    float *up_bias = kernel_floats(r, (size_t)(EXPERTS * c->out), 1);
    half_rows h = half_of(x, x_rows, c->cols);
    uint8_t *done = calloc((size_t)n, 1);
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = c->rows});
    sl_expert_args args = {.w = kernel_weights(&w[0].m),
                           .x_stride = (uint64_t)h.stride,
                           .y_stride = (uint64_t)c->out,
                           .experts = EXPERTS,
                           .top_k = (uint32_t)c->top_k,
                           .projection = (uint32_t)projection,
                           .per_pair = c->down,
                           .limit = LIMIT,
                           .alpha = ALPHA};
    kernel_binding b[] = {in(0, &args, sizeof args),
                          in(1, m.table, sizeof m.table),
                          in(2, tiles, sizeof tiles),
                          in(3, pairs, (size_t)n * 4),
                          in(4, h.x, (size_t)(x_rows * h.stride) * 2),
                          in(5, h.unscale, (size_t)x_rows * 4),
                          out(6, y, (size_t)(n * c->out) * 4),
                          in(8, step.words, step.bytes),
                          in(9, counts, sizeof counts),
                          in(10, bias, (size_t)(EXPERTS * c->out) * 4),
                          in(SL_SLAB_FIRST, m.slab[0], m.bytes[0]),
                          in(SL_SLAB_FIRST + 1, m.slab[1], m.bytes[1]),
                          c->gate_up ? in(11, up_bias, (size_t)(EXPERTS * c->out) * 4) : out(7, done, (size_t)n)};
    sl_gpu_constant constants[3];
    size_t count = 0;
    if (c->down)
        constants[count++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_LEAVES);
    if (c->biased)
        constants[count++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_BIAS);
    if (c->clamped)
        constants[count++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_CLAMP);
    char entry[64];
    uint32_t rows = c->gate_up ? kind->rows / 2 : kind->rows; /* of each matrix */
    kernel_entry(entry, sizeof entry, c->gate_up ? kind->gate_up : kind->grouped, &f);
    kernels_run(&kind->k, &(kernel_call){.entry = entry,
                                         .groups = {(uint32_t)(c->out + rows - 1) / rows, counts[0] + 1, 1},
                                         .threads = {kind->threads, 1, 1},
                                         .bindings = b,
                                         .count = SL_COUNT(b),
                                         .constants = constants,
                                         .constant_count = count,
                                         .slabs = true});
    double worst = 0;
    for (int32_t place = 0; place < n; place++) {
        int32_t pair = pairs[place], e = chosen[pair];
        const float *got = y + (c->down ? pair : place) * c->out;
        assert_int_equal(done[pair], c->down && e != ABSENT);
        for (int64_t i = 0; e == ABSENT && i < c->out; i++)
            assert_true(isnan(got[i]));
        if (e != ABSENT)
            worst = worse_of(worst, pair_error(c, &w[e], &up[e], x + (c->down ? place : pair / c->top_k) * c->cols,
                                               bias + e * c->out, up_bias + e * c->out, got));
    }
    kernels_result(&kind->k, entry, worst, 2e-3);
    uint64_t bits = XXH3_64bits(y, (size_t)(n * c->out) * 4);
    free(chosen);
    free(pairs);
    free(x);
    free(y);
    free(bias);
    free(up_bias);
    free(done);
    free(step.words);
    kernel_experts_free(&m);
    half_free(&h);
    for (int e = 0; e < EXPERTS; e++) {
        kernel_matrix_free(&w[e]);
        kernel_matrix_free(&up[e]);
    }
    return bits;
}

uint64_t matmul_run_grouped(matmul_kind *kind, rng *r, const kernel_variant *v, int64_t out_rows, int64_t cols,
                            int32_t rows, int32_t top_k, bool down, bool biased) {
    return run_grouped(
        kind, r,
        &(grouped_case){
            .v = v, .out = out_rows, .cols = cols, .rows = rows, .top_k = top_k, .down = down, .biased = biased});
}

uint64_t matmul_run_gate_up(matmul_kind *kind, rng *r, const kernel_variant *v, int64_t out_rows, int64_t cols,
                            int32_t rows, int32_t top_k, bool biased, bool clamped) {
    return run_grouped(kind, r,
                       &(grouped_case){.v = v,
                                       .out = out_rows,
                                       .cols = cols,
                                       .rows = rows,
                                       .top_k = top_k,
                                       .gate_up = true,
                                       .biased = biased,
                                       .clamped = clamped});
}

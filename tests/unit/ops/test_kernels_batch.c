/* Products of a batch of rows through batch.metal on the soft device, against float64: every format, tiles and rows
 * that are not whole, any share of columns; values of any size; experts by tiles of pairs. */
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
    {SL_AFFINE4, 64, SL_F16, 16}, {SL_AFFINE4, 64, SL_BF16, 16}, {SL_Q4_0, 0, 0, 2},
    {SL_Q4_K, 0, 0, 16},          {SL_MXFP4, 0, 0, 1},           {SL_MXFP4_SPLIT, 0, 0, 16},
};
enum { VARIANTS = SL_COUNT(variants), EXPERTS = KERNEL_EXPERTS };

/* ---- rows of x as products read them ----------------------------------------------------------------------------- */

typedef struct lines {
    uint8_t *x;
    float *sums, *unscale;
    size_t x_bytes, sum_bytes, unscale_bytes;
} lines;

/* rows of the step of grid that there are; grid: a multiple of 8 */
static lines lines_new(const kernel_variant *v, const float *x, int32_t rows, int32_t grid, int64_t cols, bool low) {
    size_t n = (size_t)(grid * cols);
    lines l = {.x_bytes = n * (low ? 4 : 2), .sum_bytes = n / 64 * 8, .unscale_bytes = (size_t)grid * 4};
    l.x = (uint8_t *)kernel_poison(l.x_bytes / 4);
    l.sums = kernel_poison(l.sum_bytes / 4);
    l.unscale = kernel_poison((size_t)grid);
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = rows});
    sl_rows_args args = {.src_stride = (uint64_t)cols, .cols = (uint32_t)cols, .per_row = 1};
    kernel_binding b[] = {
        in(0, &args, sizeof args),   in(1, x, (size_t)(rows * cols) * 4), out(2, l.x, l.x_bytes),
        out(3, l.sums, l.sum_bytes), out(4, l.unscale, l.unscale_bytes),  in(5, step.words, step.bytes)};
    kernel_format f = kernel_variant_format(v);
    char entry[64];
    snprintf(entry, sizeof entry, "batch_lines_%s%s", low ? "low_" : "", f.name);
    kernels_run(&k, &(kernel_call){.entry = entry,
                                   .groups = {(uint32_t)grid, 1, 1},
                                   .threads = {SL_BATCH_LINE_THREADS, 1, 1},
                                   .bindings = b,
                                   .count = SL_COUNT(b)});
    free(step.words);
    return l;
}

static void lines_free(lines *l) {
    free(l->x);
    free(l->sums);
    free(l->unscale);
}

/* Units without values, and one value that dwarfs the rest of its row. */
static float *activations(rng *r, int32_t rows, int64_t cols, float magnitude) {
    float *x = kernel_floats(r, (size_t)(rows * cols), magnitude);
    for (int32_t i = 0; i < rows; i++) {
        memset(x + i * cols + 32 * rng_below(r, (int32_t)(cols / 32)), 0, 32 * sizeof *x);
        x[i * cols + rng_below(r, (int32_t)cols)] *= 30;
    }
    return x;
}

/* ---- dense ------------------------------------------------------------------------------------------------------- */

typedef struct batch_case {
    const kernel_variant *v;
    int64_t out, cols;
    int32_t rows;
    int t, n;
    uint32_t groups;
    bool add, bias;
    float magnitude;
} batch_case;

/* Returns y [rows][out]. */
static float *run_batch(const batch_case *c, const kernel_matrix *w, const float *x, const float *before,
                        const float *bias) {
    int32_t grid = (c->rows + 8 * c->n - 1) / (8 * c->n) * 8 * c->n;
    lines l = lines_new(c->v, x, c->rows, grid, c->cols, false);
    size_t bytes = (size_t)(grid * c->out) * 4;
    float *y = malloc(bytes);
    memcpy(y, before, bytes);
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = c->rows});
    sl_matvec_args args = {.w = kernel_weights(&w->m), .y_stride = (uint64_t)c->out};
    kernel_binding b[12] = {in(0, &args, sizeof args)};
    size_t count = 1 + kernel_bind_weights(b + 1, w, 1, 16);
    b[count++] = in(4, l.x, l.x_bytes);
    b[count++] = in(5, l.sums, l.sum_bytes);
    b[count++] = in(6, l.unscale, l.unscale_bytes);
    b[count++] = out(7, y, bytes);
    b[count++] = in(8, bias, (size_t)c->out * 4);
    b[count++] = in(9, step.words, step.bytes);
    sl_gpu_constant constants[2];
    size_t m = 0;
    if (c->add)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_ADD);
    if (c->bias)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_BIAS);
    kernel_format f = kernel_variant_format(c->v);
    char entry[64];
    snprintf(entry, sizeof entry, "batch_t%d_n%d_%s", c->t, c->n, f.name);
    kernels_run(&k, &(kernel_call){.entry = entry,
                                   .groups = {c->groups, (uint32_t)(grid / (8 * c->n)), 1},
                                   .threads = {SL_BATCH_THREADS, 1, 1},
                                   .bindings = b,
                                   .count = count,
                                   .constants = constants,
                                   .constant_count = m});
    assert_memory_equal(y + c->rows * c->out, before + c->rows * c->out, (size_t)((grid - c->rows) * c->out) * 4);
    double *ref = malloc((size_t)c->out * 8), *size = malloc((size_t)c->out * 8), worst = 0;
    for (int32_t i = 0; i < c->rows; i++) {
        kernel_product(w, x + i * c->cols, ref, size);
        for (int64_t o = 0; o < c->out; o++) {
            double add = (c->add ? before[i * c->out + o] : 0) + (c->bias ? bias[o] : 0);
            double e = fabs(y[i * c->out + o] - (ref[o] + add)) / (size[o] + fabs(add));
            worst = worse_of(worst, e);
        }
    }
    kernels_result(&k, entry, worst, 1e-3);
    free(ref);
    free(size);
    free(step.words);
    lines_free(&l);
    return y;
}

static void run_random(rng *r, const batch_case *c) {
    kernel_matrix w = kernel_matrix_new(r, c->v->format, c->v->group, c->v->side, c->out, c->cols);
    size_t room = (size_t)((c->rows + 32) * c->out);
    float *x = activations(r, c->rows, c->cols, c->magnitude), *bias = kernel_floats(r, (size_t)c->out, 1);
    float *before = c->add ? kernel_floats(r, room, 1) : kernel_poison(room);
    free(run_batch(c, &w, x, before, bias));
    free(x);
    free(bias);
    free(before);
    kernel_matrix_free(&w);
}

/* Columns: one SIMD-group's, two's, three's, all four's, and more than a ring holds. */
static const int64_t widths[] = {256, 512, 768, 1024, 1792, 2560};

static void every_format_is_float64s_product(void **state) {
    rng r = {seed};
    for (size_t i = 0; i < VARIANTS; i++)
        for (int n = 2; n <= 4; n += 2) {
            int t = 1 + (int)(i + (size_t)n / 2) % 2;
            int64_t tiles = 1 + rng_below(&r, 3);
            run_random(&r, &(batch_case){.v = &variants[i],
                                         .out = 16 * tiles,
                                         .cols = widths[(i + (size_t)n) % SL_COUNT(widths)],
                                         .rows = n == 2 ? 9 + rng_below(&r, 8) : 17 + rng_below(&r, 18),
                                         .t = t,
                                         .n = n,
                                         .groups = (uint32_t)((tiles + t - 1) / t),
                                         .add = i % 3 == 1,
                                         .bias = i % 3 == 2,
                                         .magnitude = 1});
        }
}

/* A threadgroup's SIMD-groups share the columns of one lot of tiles, of two, of none. */
static void any_grid_is_float64s_product(void **state) {
    rng r = {seed + 1};
    for (uint32_t groups = 1; groups <= 3; groups++)
        run_random(&r, &(batch_case){.v = &variants[2 * groups - 1],
                                     .out = 16 * 7,
                                     .cols = 768,
                                     .rows = 11,
                                     .t = groups == 1 ? 2 : 1,
                                     .n = 2,
                                     .groups = groups == 1 ? 1 : 2 * groups - 1 + (groups == 2),
                                     .magnitude = 1});
}

static void values_of_any_size_stay_finite(void **state) {
    static const float magnitude[] = {1e-25f, 1e-6f, 1e6f, 1e20f};
    rng r = {seed + 2};
    for (size_t i = 0; i < SL_COUNT(magnitude); i++)
        run_random(&r, &(batch_case){.v = &variants[i + (i > 0)],
                                     .out = 16,
                                     .cols = 512,
                                     .rows = 9,
                                     .t = 1,
                                     .n = 2,
                                     .groups = 1,
                                     .magnitude = magnitude[i]});
}

/* A row's bits are the same beside any others, however many blocks are taken at once. */
static void a_row_does_not_see_others(void **state) {
    rng r = {seed + 3};
    for (size_t i = 1; i < VARIANTS; i += 2) {
        kernel_matrix w = kernel_matrix_new(&r, variants[i].format, variants[i].group, variants[i].side, 48, 1280);
        float *x = activations(&r, 21, 1280, 1), *before = kernel_poison(48 * 64), *bias = kernel_floats(&r, 48, 1);
        batch_case c = {&variants[i], 48, 1280, 21, 2, 4, 2, false, false, 1};
        float *all = run_batch(&c, &w, x, before, bias);
        c.rows = 3;
        c.n = 2;
        float *last = run_batch(&c, &w, x + 18 * 1280, before, bias);
        assert_memory_equal(all + 18 * 48, last, 3 * 48 * 4);
        c.t = 1;
        c.groups = 3;
        float *narrow = run_batch(&c, &w, x + 18 * 1280, before, bias);
        assert_memory_equal(narrow, last, 3 * 48 * 4);
        free(all);
        free(last);
        free(narrow);
        free(x);
        free(before);
        free(bias);
        kernel_matrix_free(&w);
    }
}

/* ---- experts ----------------------------------------------------------------------------------------------------- */

typedef struct expert_case {
    const kernel_variant *v;
    int64_t out, cols;
    bool gate_up, aborted, bias, clamp;
} expert_case;

enum { TOP_K = 2, ROWS = 13, LISTED = ROWS * TOP_K };

/* Expert 0 has 11 pairs (two tiles), the absent one 4, expert 2 the rest: a whole tile and part of one. */
static uint32_t list_pairs(int32_t *pairs, int32_t *expert, sl_pair_tile *tiles) {
    uint32_t at = 0, count = 0;
    for (int32_t e = 0; e < EXPERTS; e++) {
        uint32_t first = at;
        for (int32_t p = 0; p < LISTED; p++) {
            int32_t of = p % 2 == 0 && p < 22 ? 0 : p % 6 == 1 ? KERNEL_ABSENT : 2;
            if (of == e) {
                expert[at] = e;
                pairs[at++] = p;
            }
        }
        for (uint32_t f = first; f < at; f += SL_BATCH_PAIRS)
            tiles[count++] = (sl_pair_tile){e, f, f + SL_BATCH_PAIRS < at ? f + SL_BATCH_PAIRS : at, 0};
    }
    assert_int_equal(at, LISTED);
    return count;
}

static void run_experts(rng *r, const expert_case *c) {
    kernel_matrix w[EXPERTS], up[EXPERTS];
    for (int e = 0; e < EXPERTS; e++) {
        w[e] = kernel_matrix_new(r, c->v->format, c->v->group, c->v->side, c->out, c->cols);
        up[e] = kernel_matrix_new(r, c->v->format, c->v->group, c->v->side, c->out, c->cols);
    }
    kernel_experts m = {0};
    kernel_experts_add(&m, w, c->gate_up ? 0 : 2, 16);
    if (c->gate_up)
        kernel_experts_add(&m, up, 1, 16);
    int32_t pairs[LISTED], expert[LISTED], rows = c->gate_up ? ROWS : LISTED;
    sl_pair_tile tiles[8];
    uint32_t counts[2] = {list_pairs(pairs, expert, tiles), LISTED};
    float *x = activations(r, rows, c->cols, 1), *y = kernel_poison((size_t)(LISTED * c->out));
    float *bias = kernel_floats(r, (size_t)(EXPERTS * c->out), 1),
          *up_bias = kernel_floats(r, (size_t)(EXPERTS * c->out), 1);
    lines l = lines_new(c->v, x, rows, (rows + 7) / 8 * 8, c->cols, true);
    uint8_t done[LISTED] = {0};
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = ROWS});
    ((sl_step_head *)(void *)step.words)->aborted = c->aborted;
    sl_expert_args args = {.w = kernel_weights(&w[0].m),
                           .y_stride = (uint64_t)c->out,
                           .experts = EXPERTS,
                           .top_k = TOP_K,
                           .projection = 2,
                           .per_pair = !c->gate_up,
                           .limit = 0.5f,
                           .alpha = 1.5f};
    kernel_binding b[] = {in(0, &args, sizeof args),
                          in(1, m.table, sizeof m.table),
                          in(2, tiles, sizeof tiles),
                          in(3, pairs, sizeof pairs),
                          in(4, l.x, l.x_bytes),
                          in(5, l.sums, l.sum_bytes),
                          in(6, l.unscale, l.unscale_bytes),
                          out(7, y, (size_t)(LISTED * c->out) * 4),
                          in(9, step.words, step.bytes),
                          in(10, counts, sizeof counts),
                          in(11, bias, (size_t)(EXPERTS * c->out) * 4),
                          in(SL_SLAB_FIRST, m.slab[0], m.bytes[0]),
                          in(SL_SLAB_FIRST + 1, m.slab[1], m.bytes[1]),
                          c->gate_up ? in(12, up_bias, (size_t)(EXPERTS * c->out) * 4) : out(8, done, sizeof done)};
    sl_gpu_constant constants[3];
    size_t n = 0;
    if (!c->gate_up)
        constants[n++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_LEAVES);
    if (c->bias)
        constants[n++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_BIAS);
    if (c->clamp)
        constants[n++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_CLAMP);
    kernel_format f = kernel_variant_format(c->v);
    char entry[64];
    snprintf(entry, sizeof entry, "%s_%s", c->gate_up ? "batch_expert_gate_up" : "batch_expert", f.name);
    int64_t a_group = (c->gate_up ? 16 : 32) * (c->cols == 256 ? 4 : c->cols == 512 ? 2 : 1);
    kernels_run(&k, &(kernel_call){.entry = entry,
                                   .groups = {(uint32_t)((c->out + a_group - 1) / a_group), counts[0] + 1, 1},
                                   .threads = {SL_BATCH_THREADS, 1, 1},
                                   .bindings = b,
                                   .count = SL_COUNT(b),
                                   .constants = constants,
                                   .constant_count = n,
                                   .slabs = true});
    double worst = 0;
    for (int32_t i = 0; i < LISTED; i++) {
        int32_t e = expert[i], pair = pairs[i];
        bool computed = e != KERNEL_ABSENT && !c->aborted;
        const float *got = y + (c->gate_up ? i : pair) * c->out;
        assert_int_equal(done[pair], computed && !c->gate_up);
        for (int64_t o = 0; !computed && o < c->out; o++)
            assert_true(isnan(got[o]));
        if (computed)
            worst = worse_of(worst, kernel_expert_error(&w[e], &up[e], x + (c->gate_up ? pair / TOP_K : i) * c->cols,
                                                        c->bias ? bias + e * c->out : NULL,
                                                        c->bias ? up_bias + e * c->out : NULL, c->gate_up,
                                                        c->clamp ? 0.5 : 0, 1.5, got));
    }
    kernels_result(&k, entry, worst, 2e-5); /* 1.2e-5 on an H200, whose units add in an order of their own */
    lines_free(&l);
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
        for (int gate_up = 0; gate_up < 2; gate_up++)
            run_experts(&r, &(expert_case){.v = &variants[i],
                                           .out = 16 * (1 + rng_below(&r, 3)),
                                           .cols = widths[(i + (size_t)gate_up) % 4],
                                           .gate_up = gate_up,
                                           .bias = i % 3 == 1,
                                           .clamp = i == 1});
}

static void an_aborted_step_computes_nothing(void **state) {
    rng r = {seed + 6};
    for (int gate_up = 0; gate_up < 2; gate_up++)
        run_experts(&r, &(expert_case){.v = &variants[2], .out = 16, .cols = 256, .gate_up = gate_up, .aborted = true});
}

int main(void) {
    if (!kernels_open(&k, "batch.metal", NULL, 0))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_is_float64s_product),
        cmocka_unit_test(any_grid_is_float64s_product),
        cmocka_unit_test(values_of_any_size_stay_finite),
        cmocka_unit_test(a_row_does_not_see_others),
        cmocka_unit_test(experts_are_float64s),
        cmocka_unit_test(an_aborted_step_computes_nothing),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&k);
    return failed;
}

/* Promise: in mode q8 the products have the same bits on every instruction set, for every number of rows and every cut
 * of the work; they stay within the quantisation error of mode exact, which stays within rounding of float64; nothing
 * reads past the end of a matrix. */
#include "support_matrix.h"

#include "cpu/cpu_math.h"
#include "cpu/cpu_matmul.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 20240611;

/* ---- activations ---- */

typedef struct acts {
    float *x;
    int64_t rows, cols, ldx;
    void *q;
} acts;

static void *aligned_new(uint64_t bytes) {
    void *p = aligned_alloc(64, (size_t)sl_round_up(bytes ? bytes : 64, 64));
    assert_non_null(p);
    memset(p, 0xff, (size_t)bytes); /* NaN, where read as floats */
    return p;
}

static acts acts_new(rng *r, int64_t rows, int64_t cols, float magnitude) {
    acts a = {.rows = rows, .cols = cols, .ldx = cols + rng_below(r, 3)};
    a.x = malloc((size_t)(rows * a.ldx) * sizeof(float));
    for (int64_t i = 0; i < rows * a.ldx; i++) {
        a.x[i] = rng_normal(r) * magnitude;
    }
    a.q = aligned_new(cpu_act_bytes(cols) * (uint64_t)rows);
    return a;
}

static void acts_quantize(const cpu_kernels *k, acts *a) {
    k->quantize(a->x, a->ldx, a->rows, a->cols, a->q);
}

static void acts_free(acts *a) {
    free(a->x);
    free(a->q);
}

static cpu_rows rows_of(const acts *a, int64_t n, const int32_t *index) {
    return (cpu_rows){.cols = a->cols, .n = n, .x = a->x, .ldx = a->ldx, .q = a->q, .index = index};
}

/* ---- comparing ---- */

static bool same_float(float a, float b) {
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static void check_equal(const char *what, const sl_matrix *w, const float *got, const float *expected, int64_t n,
                        int64_t ld) {
    for (int64_t i = 0; i < n * ld; i++) {
        if (!same_float(got[i], expected[i])) {
            fail_msg("%s %s %d x %d group %d, n %d: y[%d][%d] = %a, expected %a", what, sl_format_get(w->format)->name,
                     (int)w->rows, (int)w->cols, (int)w->group, (int)n, (int)(i / ld), (int)(i % ld), (double)got[i],
                     (double)expected[i]);
        }
    }
}

static float *poisoned(int64_t n) {
    float *p = malloc((size_t)n * sizeof(float));
    memset(p, 0xcd, (size_t)n * sizeof(float));
    return p;
}

/* Every set of this machine, scalar first. */
static int kernel_sets(const cpu_kernels *out[CPU_ISA_COUNT]) {
    int n = 0;
    for (int i = 0; i < CPU_ISA_COUNT; i++) {
        const cpu_kernels *k = cpu_kernels_get((cpu_isa)i);
        if (k) {
            out[n++] = k;
        }
    }
    return n;
}

/* One shape of weight: a format, and for affine its group and type of scales. */
typedef struct variant {
    sl_format_id format, side;
    int32_t group;
} variant;

/* Every row of the table of formats. */
static variant variants[SL_FORMAT_COUNT * 4];
static size_t variant_count;

static void variants_fill(void) {
    static const variant affine[] = {{0, SL_F16, 32}, {0, SL_BF16, 64}, {0, SL_F32, 128}, {0, SL_F16, 64}};
    static const sl_format_id sides[] = {SL_F32, SL_F16, SL_BF16};
    for (int f = 0; f < SL_FORMAT_COUNT; f++) {
        size_t n = sl_format_is_affine((sl_format_id)f) ? SL_COUNT(affine) : f == SL_FP8 ? SL_COUNT(sides) : 1;
        for (size_t i = 0; i < n; i++) {
            variant v =
                n == SL_COUNT(affine) ? affine[i] : (variant){0, f == SL_FP8 ? sides[i] : 0, f == SL_FP8 ? 128 : 0};
            v.format = (sl_format_id)f;
            variants[variant_count++] = v;
        }
    }
}

/* In mode q8 activations stay f32. */
static bool keeps_floats(const sl_matrix *w) {
    return !cpu_has_integers(w);
}

static test_matrix variant_matrix(rng *r, const variant *v, int64_t rows, int64_t cols, scale_kind kind) {
    return test_matrix_new(r, v->format, rows, cols, v->group, v->side, kind);
}

/* ---- tests ---- */

/* y of scalar code, one row of activations at a time: what everything is compared with. */
static void reference(const test_matrix *w, const acts *a, int64_t n, const int32_t *index, float *y, int64_t ldy) {
    const cpu_kernels *scalar = cpu_kernels_get(CPU_SCALAR);
    void *scratch = aligned_new(cpu_scratch_bytes(a->cols));
    for (int64_t i = 0; i < n; i++) {
        int32_t at = index ? index[i] : (int32_t)i;
        cpu_rows one = rows_of(a, 1, &at);
        scalar->matmul(&w->m, 0, w->m.rows, &one, y + i * ldy, ldy, scratch);
    }
    free(scratch);
}

/* The same through k, in row ranges cut at random places. */
static void cut_matmul(rng *r, const cpu_kernels *k, const test_matrix *w, const cpu_rows *in, float *y, int64_t ldy) {
    void *scratch = aligned_new(cpu_scratch_bytes(in->cols));
    for (int64_t row = 0; row < w->m.rows;) {
        int64_t end = rng_below(r, 2) ? w->m.rows : row + 1 + rng_below(r, w->m.rows - row);
        k->matmul(&w->m, row, end, in, y, ldy, scratch);
        row = end;
    }
    free(scratch);
}

static void check_shape(rng *r, const variant *v, int64_t rows, int64_t cols, int64_t n, scale_kind kind,
                        float magnitude) {
    const cpu_kernels *sets[CPU_ISA_COUNT];
    test_matrix w = variant_matrix(r, v, rows, cols, kind);
    int64_t stored = n + rng_below(r, 5), ldy = rows + rng_below(r, 3);
    acts a = acts_new(r, stored, cols, magnitude);
    int32_t *index = rng_below(r, 2) ? malloc((size_t)n * sizeof *index) : NULL;
    for (int64_t i = 0; index && i < n; i++) {
        index[i] = (int32_t)rng_below(r, stored);
    }
    acts_quantize(cpu_kernels_get(CPU_SCALAR), &a);
    float *expected = poisoned(n * ldy);
    reference(&w, &a, n, index, expected, ldy);
    for (int s = kernel_sets(sets); s-- > 0;) {
        float *y = poisoned(n * ldy);
        acts_quantize(sets[s], &a);
        cpu_rows in = rows_of(&a, n, index);
        cut_matmul(r, sets[s], &w, &in, y, ldy);
        check_equal(sets[s]->name, &w.m, y, expected, n, ldy);
        free(y);
    }
    free(expected);
    free(index);
    acts_free(&a);
    test_matrix_free(&w);
}

static void every_set_gives_the_scalar_bits(void **state) {
    rng r = {seed};
    for (size_t v = 0; v < variant_count; v++) {
        for (int round = 0; round < 12; round++) {
            int64_t cols = test_cols(&r, variants[v].format, variants[v].group, round % 3 ? 700 : 1800);
            int64_t n = round < 4 ? 1 + round : 1 + rng_below(&r, 70);
            check_shape(&r, &variants[v], 1 + rng_below(&r, 75), cols, n, SCALES_PLAIN, 1.0f);
        }
    }
}

/* The sizes at which kernels change path, for the formats that matter most. */
static void edges_of_tiles_give_the_scalar_bits(void **state) {
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 31, 32, 33};
    rng r = {seed + 1};
    for (size_t v = 0; v < variant_count; v++) {
        for (size_t s = 0; s < SL_COUNT(sizes); s++) {
            int64_t cols = test_cols(&r, variants[v].format, variants[v].group, 260);
            check_shape(&r, &variants[v], sizes[rng_below(&r, SL_COUNT(sizes))], cols, sizes[s], SCALES_PLAIN, 1.0f);
        }
    }
}

static void extreme_numbers_give_the_scalar_bits(void **state) {
    static const float magnitudes[] = {1e30f, 1e-30f, 1e-38f, 1e-44f, 3e37f, 0};
    rng r = {seed + 2};
    for (size_t v = 0; v < variant_count; v++) {
        for (size_t m = 0; m < SL_COUNT(magnitudes); m++) {
            int64_t cols = test_cols(&r, variants[v].format, variants[v].group, 520);
            check_shape(&r, &variants[v], 1 + rng_below(&r, 40), cols, 1 + rng_below(&r, 9), SCALES_EXTREME,
                        magnitudes[m]);
        }
    }
}

static void quantized_rows_have_the_same_bytes(void **state) {
    static const float special[] = {0,        -0.0f,    1e-45f, 0x1p-101f, 0x1p-100f, 1e30f,
                                    -3.4e38f, INFINITY, NAN,    0.5f,      127,       -127};
    const cpu_kernels *sets[CPU_ISA_COUNT];
    rng r = {seed + 3};
    int count = kernel_sets(sets);
    for (int round = 0; round < 300; round++) {
        acts a = acts_new(&r, 1, 1 + rng_below(&r, 600), powf(10, (float)rng_below(&r, 60) - 30));
        for (int64_t k = round % 3 ? 0 : rng_below(&r, 5); k > 0; k--) {
            a.x[rng_below(&r, a.cols)] = special[rng_below(&r, SL_COUNT(special))];
        }
        acts_quantize(sets[0], &a);
        for (int s = 1; s < count; s++) {
            acts b = {.x = a.x, .rows = 1, .cols = a.cols, .ldx = a.ldx, .q = aligned_new(cpu_act_bytes(a.cols))};
            acts_quantize(sets[s], &b);
            const uint8_t *p = a.q, *q = b.q;
            for (uint64_t i = 0; i < cpu_act_bytes(a.cols); i++) {
                if (p[i] != q[i]) {
                    fail_msg("%s, %d columns: byte %d is %d, expected %d", sets[s]->name, (int)a.cols, (int)i, q[i],
                             p[i]);
                }
            }
            free(b.q);
        }
        acts_free(&a);
    }
}

/* The arrays of a quantised row against their definition. */
static void quantized_rows_follow_the_definition(void **state) {
    rng r = {seed + 4};
    acts a = acts_new(&r, 1, 77, 3.0f);
    acts_quantize(cpu_kernels_get(CPU_SCALAR), &a);
    cpu_act q = cpu_act_row(a.q, a.cols, 0);
    for (int64_t b = 0; b < cpu_act_blocks(a.cols); b++) {
        float amax = 0;
        int32_t sum = 0, half = 0;
        for (int64_t k = 32 * b; k < 32 * b + 32; k++) {
            amax = k < a.cols ? fmaxf(amax, fabsf(a.x[k])) : amax;
            sum += q.q[k];
            half += k % 32 < 16 ? q.q[k] : 0;
            assert_int_equal(q.even_odd[32 * b + k % 32 / 2 + 16 * (k & 1)], q.q[k]);
        }
        for (int64_t k = 32 * b; k < 32 * b + 32; k++) {
            float x = k < a.cols ? a.x[k] : 0;
            assert_int_equal(q.q[k], amax > 0 ? (int)nearbyintf(x * (127.0f / amax)) : 0);
        }
        assert_true(same_float(q.d[b], amax / 127.0f));
        assert_true(same_float(q.xs[b], q.d[b] * (float)sum));
        assert_int_equal(q.neg8[b], -8 * sum);
        assert_int_equal(q.neg16[b], -16 * sum);
        assert_int_equal(q.neg128[b], -128 * sum);
        assert_int_equal(q.neg32[2 * b], -32 * half);
        assert_int_equal(q.neg32[2 * b + 1], -32 * (sum - half));
    }
    acts_free(&a);
}

/* A NaN or an infinity among the activations makes the whole row of y NaN, and no other row. */
static void not_finite_activations_show(void **state) {
    const cpu_kernels *sets[CPU_ISA_COUNT];
    rng r = {seed + 5};
    for (int s = kernel_sets(sets); s-- > 0;) {
        for (size_t v = 0; v < variant_count; v++) {
            if (cpu_is_float(variants[v].format)) {
                continue;
            }
            for (int64_t n = 2; n <= 8; n += 6) {
                test_matrix w = variant_matrix(&r, &variants[v], 5, 256, SCALES_PLAIN);
                acts a = acts_new(&r, n, 256, 1);
                a.x[rng_below(&r, 256)] = s & 1 ? NAN : -INFINITY;
                acts_quantize(sets[s], &a);
                float *y = poisoned(n * 5);
                cpu_rows in = rows_of(&a, n, NULL);
                cut_matmul(&r, sets[s], &w, &in, y, 5);
                for (int64_t i = 0; i < n * 5; i++) {
                    assert_true(i < 5 ? isnan(y[i]) : isfinite(y[i]));
                }
                free(y);
                acts_free(&a);
                test_matrix_free(&w);
            }
        }
    }
}

static void gate_up_is_two_products_and_silu(void **state) {
    const cpu_kernels *sets[CPU_ISA_COUNT];
    rng r = {seed + 6};
    int count = kernel_sets(sets);
    for (size_t v = 0; v < variant_count; v++) {
        for (int round = 0; round < 4; round++) {
            int64_t rows = 1 + rng_below(&r, 150), n = round ? 1 + rng_below(&r, 40) : 1;
            int64_t cols = test_cols(&r, variants[v].format, variants[v].group, 520), ld = rows + 1;
            test_matrix gate = variant_matrix(&r, &variants[v], rows, cols, SCALES_PLAIN);
            test_matrix up = variant_matrix(&r, &variants[v], rows, cols, SCALES_PLAIN);
            acts a = acts_new(&r, n, cols, 1);
            acts_quantize(sets[0], &a);
            float *g = poisoned(n * ld), *u = poisoned(n * ld);
            reference(&gate, &a, n, NULL, g, ld);
            reference(&up, &a, n, NULL, u, ld);
            for (int64_t i = 0; i < n; i++) {
                for (int64_t k = 0; k < rows; k++) {
                    g[i * ld + k] = cpu_silu(g[i * ld + k]) * u[i * ld + k];
                }
            }
            void *scratch = aligned_new(cpu_scratch_bytes(cols));
            for (int s = 0; s < count; s++) {
                float *h = poisoned(n * ld);
                cpu_rows in = rows_of(&a, n, NULL);
                int64_t cut = rng_below(&r, rows);
                sets[s]->gate_up(&gate.m, &up.m, 0, cut, &in, h, ld, scratch);
                sets[s]->gate_up(&gate.m, &up.m, cut, rows, &in, h, ld, scratch);
                check_equal(sets[s]->name, &gate.m, h, g, n, ld);
                free(h);
            }
            free(scratch);
            free(g);
            free(u);
            acts_free(&a);
            test_matrix_free(&gate);
            test_matrix_free(&up);
        }
    }
}

/* Row `row` of w, dequantised. */
static float *weights_of(const test_matrix *w, int64_t row) {
    float *out = malloc((size_t)w->m.cols * sizeof(float));
    sl_format_get(w->m.format)->dequantize(&w->m, row, 0, w->m.cols, out);
    return out;
}

/* exact: within rounding of a plain double sum. q8: within half a step of every activation, times the weights'
 * magnitudes. */
static void check_errors(const test_matrix *w, const acts *a, int64_t n, const float *exact, const float *q8) {
    cpu_act q;
    for (int64_t row = 0; row < w->m.rows; row++) {
        float *weights = weights_of(w, row);
        for (int64_t i = 0; i < n; i++) {
            double sum = 0, magnitude = 0, bound = 0;
            q = cpu_act_row(a->q, a->cols, i);
            for (int64_t k = 0; k < w->m.cols; k++) {
                double product = (double)weights[k] * (double)a->x[i * a->ldx + k];
                sum += product;
                magnitude += fabs(product);
                bound += fabs((double)weights[k]) * 0.501 * (double)q.d[k / 32];
            }
            double e = exact[i * w->m.rows + row], g = q8[i * w->m.rows + row];
            bool near = fabs(e - sum) <= 1e-12 * magnitude + fabs(sum) * 6e-8;
            near = near && fabs(g - sum) <= (keeps_floats(&w->m) ? 0 : bound) + 1e-5 * magnitude;
            if (!near) {
                fail_msg("%s %d x %d: exact %a, q8 %a, expected %a", sl_format_get(w->m.format)->name, (int)w->m.rows,
                         (int)w->m.cols, e, g, sum);
            }
        }
        free(weights);
    }
}

static void results_are_near_float64(void **state) {
    const cpu_kernels *exact = cpu_kernels_named("exact"), *best = cpu_kernels_named(NULL);
    rng r = {seed + 7};
    assert_non_null(exact);
    for (size_t v = 0; v < variant_count; v++) {
        for (int round = 0; round < 3; round++) {
            int64_t rows = 1 + rng_below(&r, 20), n = 1 + rng_below(&r, 40);
            int64_t cols = test_cols(&r, variants[v].format, variants[v].group, 900);
            test_matrix w = variant_matrix(&r, &variants[v], rows, cols, SCALES_PLAIN);
            acts a = acts_new(&r, n, cols, 2);
            acts_quantize(best, &a);
            cpu_rows in = rows_of(&a, n, NULL);
            float *e = poisoned(n * rows), *g = poisoned(n * rows);
            cut_matmul(&r, exact, &w, &in, e, rows);
            cut_matmul(&r, best, &w, &in, g, rows);
            check_errors(&w, &a, n, e, g);
            free(e);
            free(g);
            acts_free(&a);
            test_matrix_free(&w);
        }
    }
}

static void exact_gate_up_is_two_products_and_silu(void **state) {
    const cpu_kernels *exact = cpu_kernels_named("exact");
    rng r = {seed + 8};
    test_matrix gate = test_matrix_new(&r, SL_Q4_0, 70, 96, 0, 0, SCALES_PLAIN);
    test_matrix up = test_matrix_new(&r, SL_Q6_K, 70, 256, 0, 0, SCALES_PLAIN);
    test_matrix up96 = test_matrix_new(&r, SL_Q8_0, 70, 96, 0, 0, SCALES_PLAIN);
    acts a = acts_new(&r, 3, 96, 1);
    cpu_rows in = {.cols = 96, .n = 3, .x = a.x, .ldx = a.ldx};
    float g[3 * 70], u[3 * 70], h[3 * 70];
    exact->matmul(&gate.m, 0, 70, &in, g, 70, NULL);
    exact->matmul(&up96.m, 0, 70, &in, u, 70, NULL);
    exact->gate_up(&gate.m, &up96.m, 0, 70, &in, h, 70, NULL);
    for (int i = 0; i < 210; i++) {
        assert_true(same_float(h[i], cpu_silu(g[i]) * u[i]));
    }
    acts_free(&a);
    test_matrix_free(&gate);
    test_matrix_free(&up);
    test_matrix_free(&up96);
}

static void silu_is_accurate(void **state) {
    for (float x = -30; x < 30; x += 0.0137f) {
        double exact = (double)x / (1 + exp(-(double)x));
        assert_true(fabs((double)cpu_silu(x) - exact) <= 5e-7 * fabs(exact) + 1e-12);
        assert_true(fabs((double)cpu_sigmoid(x) - 1 / (1 + exp(-(double)x))) <= 5e-7);
    }
    assert_true(cpu_silu(1e30f) == 1e30f);
    assert_true(fabsf(cpu_silu(-1e30f)) < 1e-6f);
    assert_true(isnan(cpu_silu(NAN)));
}

static void sets_are_found_by_name(void **state) {
    assert_string_equal(cpu_kernels_named("scalar")->name, "scalar");
    assert_string_equal(cpu_kernels_named("exact")->name, "exact");
    assert_null(cpu_kernels_named("abacus"));
    assert_ptr_equal(cpu_kernels_named(NULL), cpu_kernels_get(cpu_isa_best()));
    printf("best set of this machine: %s; seed %llu\n", cpu_kernels_named(NULL)->name, (unsigned long long)seed);
}

int main(void) {
    variants_fill();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_are_found_by_name),
        cmocka_unit_test(silu_is_accurate),
        cmocka_unit_test(quantized_rows_follow_the_definition),
        cmocka_unit_test(quantized_rows_have_the_same_bytes),
        cmocka_unit_test(every_set_gives_the_scalar_bits),
        cmocka_unit_test(edges_of_tiles_give_the_scalar_bits),
        cmocka_unit_test(extreme_numbers_give_the_scalar_bits),
        cmocka_unit_test(not_finite_activations_show),
        cmocka_unit_test(gate_up_is_two_products_and_silu),
        cmocka_unit_test(results_are_near_float64),
        cmocka_unit_test(exact_gate_up_is_two_products_and_silu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

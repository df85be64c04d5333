/* Promise: sl_requantize is never worse than the rule from the range, and clearly better on weights as models have
 * them; codes are the best for the scale and bias as stored; the same bytes everywhere. */
#include "quant/quant.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 6, COLS = 384, N = ROWS * COLS };

static const int widths[] = {2, 3, 4, 5, 6, 8};
static const sl_format_id sides[] = {SL_F16, SL_BF16, SL_F32};

typedef enum kind { NORMAL, HEAVY_TAILED, OUTLIERS, ONE_SIDED, CONSTANT, TINY, KINDS } kind;

static uint64_t next_random(uint64_t *s) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static float uniform(uint64_t *s) {
    return (float)(next_random(s) >> 40) * 0x1p-24f;
}

/* The sum of twelve: good enough for a bell, and the same on every machine. */
static float normal(uint64_t *s) {
    float sum = -6;
    for (int i = 0; i < 12; i++) {
        sum += uniform(s);
    }
    return sum;
}

static float weight(uint64_t *s, kind k) {
    float v = normal(s);
    switch (k) {
    case HEAVY_TAILED:
        return 0.02f * v / (0.2f + uniform(s) * uniform(s));
    case OUTLIERS:
        return uniform(s) < 0.02f ? 0.3f * v : 0.02f * v;
    case ONE_SIDED:
        return 0.1f + 0.01f * v * v;
    case CONSTANT:
        return 0.0371f;
    case TINY:
        return v * 1e-6f;
    default:
        return 0.02f * v;
    }
}

typedef struct packed {
    uint8_t codes[N], scales[N / 8], biases[N / 8];
} packed;

/* The weighted error in double, of what dequantisation gives. */
static double error_of(int bits, int group, sl_format_id side, const packed *p, const float *w,
                       const float *importance) {
    sl_matrix m = {.group = group, .side = side, .rows = ROWS, .cols = COLS};
    assert_true(sl_affine_by_bits(bits, &m.format));
    assert_true(sl_matrix_layout(&m, NULL));
    m.part[0] = p->codes;
    m.part[1] = p->scales;
    m.part[2] = p->biases;
    double sum = 0;
    for (int r = 0; r < ROWS; r++) {
        float back[COLS];
        sl_format_get(m.format)->dequantize(&m, r, 0, COLS, back);
        for (int i = 0; i < COLS; i++) {
            double miss = (double)back[i] - (double)w[r * COLS + i];
            sum += (importance ? (double)importance[i] : 1) * miss * miss;
        }
    }
    return sum;
}

/* Shares of the range's error that are left, summed over kinds for the report and the bound. */
typedef struct tally {
    double log_ratio[9];
    int n[9];
} tally;

static void compare(uint64_t *seed, kind k, bool weighted, tally *t) {
    static float w[N], importance[COLS];
    static packed range, found;
    for (int i = 0; i < N; i++) {
        w[i] = weight(seed, k);
    }
    for (int i = 0; i < COLS; i++) {
        float v = normal(seed);
        importance[i] = i % 50 == 49 ? 0 : v * v * v * v;
    }
    const float *imp = weighted ? importance : NULL;
    for (size_t b = 0; b < SL_COUNT(widths); b++) {
        for (int group = 32; group <= 128; group *= 2) {
            for (size_t s = 0; s < SL_COUNT(sides); s++) {
                sl_affine_quantize(w, N, widths[b], group, sides[s], range.codes, range.scales, range.biases);
                memset(&found, 0xa5, sizeof found);
                double said = sl_requantize(widths[b], group, sides[s], ROWS, COLS, w, imp, found.codes, found.scales,
                                            found.biases);
                double was = error_of(widths[b], group, sides[s], &range, w, imp);
                double is = error_of(widths[b], group, sides[s], &found, w, imp);
                if (!(is <= was)) {
                    fail_msg("%d bits, group %d, kind %d: error %g, from the range %g", widths[b], group, (int)k, is,
                             was);
                }
                assert_true(fabs(said - is) <= 1e-4 * is + 1e-30);
                if (k <= OUTLIERS) {
                    t->log_ratio[widths[b]] += log(is / was);
                    t->n[widths[b]]++;
                }
            }
        }
    }
}

static void expect_ratio(const tally *t, int bits, double most) {
    double ratio = exp(t->log_ratio[bits] / t->n[bits]);
    print_message("%d bits: %.3f of the error from the range\n", bits, ratio);
    assert_true(ratio < most);
}

static void never_worse_than_the_range(void **state) {
    uint64_t seed = 0x9e3779b97f4a7c15;
    tally t = {0};
    for (int round = 0; round < 3; round++) {
        for (int k = 0; k < KINDS; k++) {
            compare(&seed, (kind)k, false, &t);
        }
    }
    expect_ratio(&t, 2, 0.75);
    expect_ratio(&t, 3, 0.8);
    expect_ratio(&t, 4, 0.85);
    expect_ratio(&t, 8, 0.95);
}

static void importance_is_used(void **state) {
    uint64_t seed = 0xd1342543de82ef95;
    tally t = {0};
    for (int round = 0; round < 3; round++) {
        for (int k = 0; k < KINDS; k++) {
            compare(&seed, (kind)k, true, &t);
        }
    }
    expect_ratio(&t, 2, 0.5);
    expect_ratio(&t, 3, 0.5);
    expect_ratio(&t, 4, 0.5);
}

/* No other code of the stored scale and bias is nearer, but for the rounding of the comparison. */
static void codes_are_the_nearest(void **state) {
    uint64_t seed = 77;
    static float w[N];
    static packed p;
    for (int i = 0; i < N; i++) {
        w[i] = weight(&seed, HEAVY_TAILED);
    }
    sl_requantize(3, 64, SL_BF16, ROWS, COLS, w, NULL, p.codes, p.scales, p.biases);
    for (int i = 0; i < N; i++) {
        uint16_t s16, b16;
        memcpy(&s16, p.scales + i / 64 * 2, 2);
        memcpy(&b16, p.biases + i / 64 * 2, 2);
        float scale = sl_bf16_to_f32(s16), bias = sl_bf16_to_f32(b16), least = INFINITY;
        int eight = p.codes[i / 8 * 3] | p.codes[i / 8 * 3 + 1] << 8 | p.codes[i / 8 * 3 + 2] << 16;
        float chosen = fabsf((float)(eight >> 3 * (i % 8) & 7) * scale + bias - w[i]);
        for (int q = 0; q < 8; q++) {
            least = fminf(least, fabsf((float)q * scale + bias - w[i]));
        }
        assert_true(chosen <= least + 1e-6f * fabsf(scale));
    }
}

static uint64_t fnv(const void *bytes, size_t n, uint64_t hash) {
    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3;
    }
    return hash;
}

/* Rows are independent: all at once or one at a time, the same bytes; the hash holds them on every machine. */
static void bytes_are_the_same_everywhere(void **state) {
    uint64_t seed = 2024, hash = 0;
    static float w[N], importance[COLS];
    static packed whole, rows;
    for (int i = 0; i < N; i++) {
        w[i] = weight(&seed, OUTLIERS);
    }
    for (int i = 0; i < COLS; i++) {
        importance[i] = uniform(&seed);
    }
    for (size_t b = 0; b < SL_COUNT(widths); b++) {
        int bits = widths[b];
        memset(&whole, 0, sizeof whole);
        memset(&rows, 0, sizeof rows);
        sl_requantize(bits, 64, SL_F16, ROWS, COLS, w, importance, whole.codes, whole.scales, whole.biases);
        for (int r = 0; r < ROWS; r++) {
            sl_requantize(bits, 64, SL_F16, 1, COLS, w + r * COLS, importance, rows.codes + r * COLS * bits / 8,
                          rows.scales + r * COLS / 64 * 2, rows.biases + r * COLS / 64 * 2);
        }
        assert_memory_equal(&whole, &rows, sizeof rows);
        hash = fnv(&whole, sizeof whole, hash);
    }
    assert_int_equal(hash, 0x9c5c9bfd0d424559);
}

static void what_is_not_finite_is_told(void **state) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    float w[64];
    uint8_t codes[32], scales[8], biases[8];
    for (size_t k = 0; k < SL_COUNT(bad); k++) {
        for (int i = 0; i < 64; i++) {
            w[i] = (float)i;
        }
        assert_true(isfinite(sl_requantize(4, 32, SL_F16, 1, 64, w, NULL, codes, scales, biases)));
        w[40] = bad[k];
        assert_true(isnan(sl_requantize(4, 32, SL_F16, 1, 64, w, NULL, codes, scales, biases)));
    }
    w[40] = 1e7f; /* more than a half can be */
    assert_false(isfinite(sl_requantize(4, 32, SL_F16, 1, 64, w, NULL, codes, scales, biases)));
    assert_true(isfinite(sl_requantize(4, 32, SL_BF16, 1, 64, w, NULL, codes, scales, biases)));
}

/* A group whose columns are never used is stored as if all counted the same. */
static void importance_of_zero(void **state) {
    uint64_t seed = 5;
    static float w[N], zeros[COLS];
    static packed a, b;
    for (int i = 0; i < N; i++) {
        w[i] = weight(&seed, NORMAL);
    }
    double error = sl_requantize(2, 128, SL_F32, ROWS, COLS, w, zeros, a.codes, a.scales, a.biases);
    sl_requantize(2, 128, SL_F32, ROWS, COLS, w, NULL, b.codes, b.scales, b.biases);
    assert_true(error == 0);
    assert_memory_equal(&a, &b, sizeof a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(never_worse_than_the_range), cmocka_unit_test(importance_is_used),
        cmocka_unit_test(codes_are_the_nearest),      cmocka_unit_test(bytes_are_the_same_everywhere),
        cmocka_unit_test(what_is_not_finite_is_told), cmocka_unit_test(importance_of_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

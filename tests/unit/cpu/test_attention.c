/* Promise: attention and KV pages have the same bits on every instruction set and for every cut of the rows, stay
 * within float's rounding of float64 over the stored values, read nothing that was not stored, and let a NaN through.
 */
#include "support_matrix.h"

#include "cpu/cpu_ops.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 20240613;

static const cpu_ops *isas[4];
static int isa_count;

static int set_up(void **state) {
    static const char *const names[] = {"scalar", "avx2", "avx512", "neon"};
    for (size_t i = 0; i < SL_COUNT(names); i++)
        if (cpu_ops_get(names[i]))
            isas[isa_count++] = cpu_ops_get(names[i]);
    print_message("seed %llu, %d instruction sets\n", (unsigned long long)seed, isa_count);
    return 0;
}

/* ---- KV ---------------------------------------------------------------------------------------------------------- */

static uint64_t head_bytes(cpu_kv_type type, int32_t head_dim) {
    return type == CPU_KV_F32   ? 4u * (uint64_t)head_dim
           : type == CPU_KV_F16 ? 2u * (uint64_t)head_dim
                                : (uint64_t)head_dim / 32 * 34;
}

/* What a stored head means, by the formats' definitions. */
static void expand(double *out, const uint8_t *p, int32_t head_dim, cpu_kv_type type) {
    for (int32_t i = 0; i < head_dim; i++) {
        float f;
        uint16_t h;
        if (type == CPU_KV_F32) {
            memcpy(&f, p + 4 * i, 4);
            out[i] = f;
        } else if (type == CPU_KV_F16) {
            memcpy(&h, p + 2 * i, 2);
            out[i] = sl_f16_to_f32(h);
        } else {
            memcpy(&h, p + i / 32 * 34, 2);
            out[i] = (double)sl_f16_to_f32(h) * (int8_t)p[i / 32 * 34 + 2 + i % 32];
        }
    }
}

static const char *const type_names[] = {[CPU_KV_F16] = "f16", [CPU_KV_Q8_0] = "q8_0", [CPU_KV_F32] = "f32"};

static void check_store(rng *r, int32_t head_dim, cpu_kv_type type, float magnitude) {
    size_t bytes = head_bytes(type, head_dim);
    float *x = guarded_new((size_t)head_dim * sizeof *x);
    uint8_t *out = guarded_new(bytes), *first = malloc(bytes);
    double *back = malloc((size_t)head_dim * sizeof *back);
    for (int32_t i = 0; i < head_dim; i++)
        x[i] = rng_normal(r) * magnitude;
    for (int k = 0; k < isa_count; k++) {
        memset(out, 0xff, bytes);
        isas[k]->kv_store(out, x, head_dim, type);
        if (k == 0)
            memcpy(first, out, bytes);
        assert_memory_equal(out, first, bytes);
        expand(back, out, head_dim, type);
        for (int32_t i = 0; i < head_dim; i++) {
            double amax = 0;
            for (int32_t j = i / 32 * 32; j < head_dim && j < i / 32 * 32 + 32; j++)
                amax = fmax(amax, fabs((double)x[j]));
            /* half a step of the format, plus half of the smallest half-precision number (a scale may round to it) */
            double bound = type == CPU_KV_F32   ? 0
                           : type == CPU_KV_F16 ? fabs((double)x[i]) * 0x1p-11 + 0x1p-25
                                                : amax * (0.5 / 127 + 0x1p-11 + 1e-6) + 127 * 0x1p-25;
            if (!(fabs(back[i] - x[i]) <= bound))
                fail_msg("%s of %d, %s: %g stored as %g", type_names[type], (int)head_dim, isas[k]->name, x[i],
                         back[i]);
        }
    }
    guarded_free(x, (size_t)head_dim * sizeof *x);
    guarded_free(out, bytes);
    free(first);
    free(back);
}

static void stored_heads_are_near(void **state) {
    rng r = {seed};
    static const float magnitudes[] = {1, 1e-3f, 1e-6f, 1e-40f, 1e3f, 0};
    for (size_t m = 0; m < SL_COUNT(magnitudes); m++) {
        for (int32_t d = 1; d <= 257; d += d < 40 ? 1 : 31) {
            check_store(&r, d, CPU_KV_F32, magnitudes[m]);
            check_store(&r, d, CPU_KV_F16, magnitudes[m]);
        }
        for (int32_t d = 32; d <= 256; d += 32)
            check_store(&r, d, CPU_KV_Q8_0, magnitudes[m]);
    }
}

/* A number that the format cannot hold must not become another one. */
static void stored_nans_stay(void **state) {
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int k = 0; k < isa_count; k++) {
        for (int type = 0; type <= CPU_KV_F32; type++) {
            for (int at = 0; at < 64; at++) {
                float x[64];
                uint8_t out[256];
                double back[64];
                for (int i = 0; i < 64; i++)
                    x[i] = (float)i;
                x[at] = bad[at % 4];
                isas[k]->kv_store(out, x, 64, (cpu_kv_type)type);
                expand(back, out, 64, (cpu_kv_type)type);
                assert_false(isfinite(back[at]));
            }
            float huge[32];
            uint8_t out[128];
            double back[32];
            for (int i = 0; i < 32; i++)
                huge[i] = 1e30f;
            isas[k]->kv_store(out, huge, 32, (cpu_kv_type)type);
            expand(back, out, 32, (cpu_kv_type)type);
            for (int i = 0; i < 32; i++)
                assert_true(type == CPU_KV_F32 ? back[i] == huge[i] : !isfinite(back[i]));
        }
    }
}

/* ---- a sequence -------------------------------------------------------------------------------------------------- */

enum { MAX_PAGES = 24, GAP = 5 };

typedef struct sequence {
    int32_t tokens, head_dim, group, rows; /* the last `rows` tokens are asked for */
    cpu_kv_type type;
    float scale;
    int32_t value_dim;  /* head_dim, or less: values are the first columns of the keys */
    int32_t window;     /* 0: none */
    const float *sinks; /* [group]; NULL: none */
    uint8_t *k[MAX_PAGES], *v[MAX_PAGES];
    float *q;        /* [rows][group * head_dim] */
    double *kf, *vf; /* [tokens][head_dim], what is stored */
} sequence;

static size_t plane_bytes(const sequence *s) {
    return CPU_KV_PAGE * head_bytes(s->type, s->head_dim);
}

static void page_of(const void *ctx, int32_t index, const uint8_t **k, const uint8_t **v) {
    const sequence *s = ctx;
    *k = s->k[index];
    *v = s->value_dim < s->head_dim ? s->k[index] : s->v[index];
}

typedef float (*value_fn)(rng *r, int32_t token, int32_t i, bool is_v);

static float any_value(rng *r, int32_t token, int32_t i, bool is_v) {
    return rng_normal(r) * 2;
}

static void store_token(const sequence *s, int32_t token, const float *x, bool is_v) {
    uint8_t *plane = is_v ? s->v[token / CPU_KV_PAGE] : s->k[token / CPU_KV_PAGE];
    uint8_t *at = plane + (size_t)(token % CPU_KV_PAGE) * head_bytes(s->type, s->head_dim);
    isas[0]->kv_store(at, x, s->head_dim, s->type);
    expand((is_v ? s->vf : s->kf) + (size_t)token * (size_t)s->head_dim, at, s->head_dim, s->type);
}

static sequence sequence_new(rng *r, int32_t tokens, int32_t rows, int32_t group, int32_t head_dim, cpu_kv_type type,
                             value_fn value) {
    sequence s = {.tokens = tokens, .head_dim = head_dim, .group = group, .rows = rows, .type = type};
    s.value_dim = head_dim;
    s.scale = 1 / sqrtf((float)head_dim);
    for (int32_t p = 0; p * CPU_KV_PAGE < tokens; p++) {
        s.k[p] = guarded_new(plane_bytes(&s));
        s.v[p] = guarded_new(plane_bytes(&s));
        memset(s.k[p], 0xff, plane_bytes(&s)); /* NaN in every format */
        memset(s.v[p], 0xff, plane_bytes(&s));
    }
    size_t n = (size_t)tokens * (size_t)head_dim;
    s.kf = malloc(n * sizeof *s.kf);
    s.vf = malloc(n * sizeof *s.vf);
    float *x = malloc((size_t)head_dim * sizeof *x);
    for (int32_t t = 0; t < 2 * tokens; t++) {
        for (int32_t i = 0; i < head_dim; i++)
            x[i] = value(r, t / 2, i, t % 2);
        store_token(&s, t / 2, x, t % 2);
    }
    free(x);
    size_t q = (size_t)rows * (size_t)group * (size_t)head_dim;
    s.q = guarded_new(q * sizeof *s.q);
    for (size_t i = 0; i < q; i++)
        s.q[i] = rng_normal(r) * 2;
    return s;
}

static void sequence_free(sequence *s) {
    for (int32_t p = 0; p < MAX_PAGES && s->k[p]; p++) {
        guarded_free(s->k[p], plane_bytes(s));
        guarded_free(s->v[p], plane_bytes(s));
    }
    guarded_free(s->q, (size_t)s->rows * (size_t)s->group * (size_t)s->head_dim * sizeof *s->q);
    free(s->kf);
    free(s->vf);
}

/* Rows [row, row + n) in one call. out: [rows][group * head_dim]. */
static void attend(const cpu_ops *ops, const sequence *s, int32_t row, int32_t n, float *out) {
    int64_t width = (int64_t)s->group * s->value_dim, q_width = (int64_t)s->group * s->head_dim;
    uint64_t need = cpu_attention_scratch(n, s->group, s->head_dim);
    float *scratch = guarded_new(need * sizeof *scratch), *dst = malloc((size_t)(n * (width + GAP)) * sizeof *dst);
    memset(scratch, 0xff, need * sizeof *scratch);
    memset(dst, 0xff, (size_t)(n * (width + GAP)) * sizeof *dst);
    cpu_attention a = {.q = s->q + row * q_width,
                       .dst = dst,
                       .q_stride = q_width,
                       .dst_stride = width + GAP,
                       .rows = n,
                       .group = s->group,
                       .head_dim = s->head_dim,
                       .value_dim = s->value_dim,
                       .position = s->tokens - s->rows + row,
                       .window = s->window,
                       .sinks = s->sinks,
                       .scale = s->scale,
                       .type = s->type,
                       .head_bytes = head_bytes(s->type, s->head_dim),
                       .page = page_of,
                       .ctx = s,
                       .scratch = scratch};
    ops->attention(&a);
    for (int32_t i = 0; i < n; i++) {
        memcpy(out + (row + i) * width, dst + i * (width + GAP), (size_t)width * sizeof *out);
        for (int32_t g = 0; g < GAP; g++) {
            uint32_t bits;
            memcpy(&bits, dst + i * (width + GAP) + width + g, 4);
            assert_int_equal(bits, UINT32_MAX);
        }
    }
    guarded_free(scratch, need * sizeof *scratch);
    free(dst);
}

/* One query in float64. spread: the sum of absolute values that rounding errors are measured by. */
static void attend_exactly(const sequence *s, int32_t row, int32_t g, double *out, double *spread) {
    int32_t d = s->head_dim, n = s->tokens - s->rows + row + 1;
    int32_t first = s->window && n > s->window ? n - s->window : 0;
    const float *q = s->q + ((int64_t)row * s->group + g) * d;
    double *p = malloc((size_t)n * sizeof *p), max = s->sinks ? s->sinks[g] : -INFINITY, sum = 0, roundings = 0;
    for (int32_t t = first; t < n; t++) {
        double dot = 0, size = 0;
        for (int32_t i = 0; i < d; i++) {
            dot += q[i] * s->kf[(int64_t)t * d + i];
            size += fabs(q[i] * s->kf[(int64_t)t * d + i]);
        }
        p[t] = dot * s->scale;
        max = fmax(max, p[t]);
        roundings = fmax(roundings, size * s->scale);
    }
    sum = s->sinks ? exp(s->sinks[g] - max) : 0;
    for (int32_t t = first; t < n; t++)
        sum += p[t] = exp(p[t] - max);
    *spread = 0;
    const double *values = s->value_dim < d ? s->kf : s->vf;
    for (int32_t i = 0; i < s->value_dim; i++)
        out[i] = 0;
    for (int32_t t = first; t < n; t++)
        for (int32_t i = 0; i < s->value_dim; i++) {
            out[i] += p[t] / sum * values[(int64_t)t * d + i];
            *spread = fmax(*spread, fabs(values[(int64_t)t * d + i]));
        }
    *spread *= 8 + roundings;
    free(p);
}

static void check_against_float64(const sequence *s, const float *out, double *worst) {
    double *expected = malloc((size_t)s->head_dim * sizeof *expected), spread;
    for (int32_t row = 0; row < s->rows; row++) {
        for (int32_t g = 0; g < s->group; g++) {
            attend_exactly(s, row, g, expected, &spread);
            for (int32_t i = 0; i < s->value_dim; i++) {
                float got = out[((int64_t)row * s->group + g) * s->value_dim + i];
                double error = fabs(got - expected[i]) / (spread * FLT_EPSILON);
                *worst = fmax(*worst, error);
                if (!(error <= 1))
                    fail_msg("%s, %d tokens, head_dim %d, row %d: %.9g, float64 has %.9g (%.2g of what is allowed)",
                             type_names[s->type], (int)s->tokens, (int)s->head_dim, (int)row, got, expected[i], error);
            }
        }
    }
    free(expected);
}

static size_t out_floats(const sequence *s) {
    return (size_t)s->rows * (size_t)s->group * (size_t)s->value_dim;
}

/* Every set, in one call and cut at random: the same bits; the first also against float64. */
static void check_sequence(rng *r, const sequence *s, double *worst) {
    size_t n = out_floats(s);
    float *first = malloc(n * sizeof *first), *out = malloc(n * sizeof *out);
    attend(isas[0], s, 0, s->rows, first);
    check_against_float64(s, first, worst);
    for (int k = 0; k < isa_count; k++) {
        for (int cut = 0; cut < 2; cut++) {
            memset(out, 0xff, n * sizeof *out);
            for (int32_t row = 0, take; row < s->rows; row += take) {
                take = cut ? 1 + (int32_t)rng_below(r, s->rows - row) : s->rows;
                attend(isas[k], s, row, take, out);
            }
            if (memcmp(out, first, n * sizeof *out))
                fail_msg("%s, %s, %d tokens, %d rows, group %d, head_dim %d%s: other bits than scalar in one call",
                         isas[k]->name, type_names[s->type], (int)s->tokens, (int)s->rows, (int)s->group,
                         (int)s->head_dim, cut ? ", cut" : "");
        }
    }
    free(first);
    free(out);
}

static void any_length_and_shape(void **state) {
    rng r = {seed + 1};
    double worst = 0;
    static const int32_t lengths[] = {1,   2,   15,  16,  17,  62,  63,  64,   65,   66,   127,
                                      128, 129, 511, 512, 513, 575, 577, 1023, 1024, 1025, 1100};
    static const int32_t dims[] = {64, 128, 80, 96, 256};
    for (size_t i = 0; i < SL_COUNT(lengths); i++) {
        for (int type = 0; type <= CPU_KV_F32; type++) {
            int32_t most = lengths[i] < 16 ? lengths[i] : 16;
            int32_t rows = 1 + (int32_t)rng_below(&r, most), group = 1 + (int32_t)rng_below(&r, 9);
            int32_t head_dim = type == CPU_KV_Q8_0 ? 32 * (1 + (int32_t)rng_below(&r, 8))
                               : rng_below(&r, 2)  ? dims[rng_below(&r, SL_COUNT(dims))]
                                                   : 1 + 2 * (int32_t)rng_below(&r, 129);
            if (lengths[i] > 200 && head_dim > 100)
                group = 1;
            sequence s = sequence_new(&r, lengths[i], rows, group, head_dim, (cpu_kv_type)type, any_value);
            check_sequence(&r, &s, &worst);
            sequence_free(&s);
        }
    }
    print_message("largest error %.2f of what is allowed\n", worst);
}

/* Also windows that begin in the middle of a page, are longer than the sequence, or leave whole pages out; what is
 * before a window may be anything. */
static void windows_and_sinks(void **state) {
    rng r = {seed + 7};
    double worst = 0;
    static const int32_t windows[] = {1, 2, 17, 63, 64, 65, 128, 200, 512, 5000};
    for (size_t i = 0; i < 3 * SL_COUNT(windows); i++) {
        int32_t tokens = 1 + (int32_t)rng_below(&r, 900), rows = 1 + (int32_t)rng_below(&r, 16);
        rows = rows < tokens ? rows : tokens;
        float sinks[4];
        sequence s = sequence_new(&r, tokens, rows, 1 + (int32_t)rng_below(&r, 4), 32 * (1 + (int32_t)rng_below(&r, 3)),
                                  (cpu_kv_type)(i % 3), any_value);
        for (int g = 0; g < s.group; g++)
            sinks[g] = rng_normal(&r) * 4;
        s.window = i % 5 ? windows[i % SL_COUNT(windows)] : 0;
        s.sinks = i % 2 ? sinks : NULL;
        int32_t unseen = s.window ? tokens - rows - s.window + 1 : 0;
        for (int32_t t = 0; t < unseen; t++) /* NaN */
            memset(s.k[t / CPU_KV_PAGE] + (size_t)(t % CPU_KV_PAGE) * head_bytes(s.type, s.head_dim), 0xff,
                   head_bytes(s.type, s.head_dim));
        check_sequence(&r, &s, &worst);
        sequence_free(&s);
    }
    print_message("largest error %.2f of what is allowed\n", worst);
}

/* MLA: one plane is keys and, its first columns, values; many queries share it. */
static void values_within_the_keys(void **state) {
    rng r = {seed + 8};
    double worst = 0;
    static const int32_t dims[][2] = {{576, 512}, {96, 64}, {64, 32}, {160, 130}, {80, 1}};
    for (size_t i = 0; i < 3 * SL_COUNT(dims); i++) {
        int32_t tokens = 1 + (int32_t)rng_below(&r, 200), rows = tokens < 3 ? tokens : 3;
        int32_t head_dim = dims[i % SL_COUNT(dims)][0];
        cpu_kv_type type = head_dim % 32 ? CPU_KV_F16 : (cpu_kv_type)(i / SL_COUNT(dims));
        sequence s = sequence_new(&r, tokens, rows, head_dim > 500 ? 5 : 33, head_dim, type, any_value);
        s.value_dim = dims[i % SL_COUNT(dims)][1];
        check_sequence(&r, &s, &worst);
        sequence_free(&s);
    }
    print_message("largest error %.2f of what is allowed\n", worst);
}

static void every_head_dim_and_group(void **state) {
    rng r = {seed + 2};
    double worst = 0;
    for (int32_t d = 1; d <= 257; d += 2) {
        sequence s = sequence_new(&r, 20 + (int32_t)rng_below(&r, 60), 2, 1 + d % 9, d,
                                  rng_below(&r, 2) ? CPU_KV_F16 : CPU_KV_F32, any_value);
        check_sequence(&r, &s, &worst);
        sequence_free(&s);
    }
}

/* ---- extremes ---------------------------------------------------------------------------------------------------- */

static float k_by_token(rng *r, int32_t token, int32_t i, bool is_v) {
    return is_v ? (float)token : (token == 70 ? 1.0f : -1.0f);
}

static float equal_keys(rng *r, int32_t token, int32_t i, bool is_v) {
    return is_v ? (float)(token % 2) : -1.0f;
}

static float huge_values(rng *r, int32_t token, int32_t i, bool is_v) {
    return is_v ? (token % 2 ? 1e30f : -5e29f) : 0.5f;
}

static void fill_q(sequence *s, float v) {
    for (size_t i = 0; i < out_floats(s); i++)
        s->q[i] = v;
}

static void expect_all(const sequence *s, double value, double bound) {
    float *out = malloc(out_floats(s) * sizeof *out);
    for (int k = 0; k < isa_count; k++) {
        attend(isas[k], s, 0, s->rows, out);
        for (size_t i = 0; i < out_floats(s); i++)
            if (!(fabs(out[i] - value) <= bound))
                fail_msg("%s: %g, expected %g", isas[k]->name, out[i], value);
    }
    free(out);
}

static void extreme_scores(void **state) {
    rng r = {seed + 3};
    static const float magnitudes[] = {1e30f, 3e34f, 1e4f};
    static const int32_t lengths[] = {80, 600, 1100};
    for (size_t l = 0; l < SL_COUNT(lengths); l++) {
        for (size_t m = 0; m < SL_COUNT(magnitudes); m++) {
            /* one score far above all others: exactly its value; the others may be -1e30 or lower */
            sequence s = sequence_new(&r, lengths[l], 1, 2, 48, CPU_KV_F32, k_by_token);
            fill_q(&s, magnitudes[m]);
            expect_all(&s, 70, 0);
            sequence_free(&s);
            /* all equally huge, of either sign: the mean */
            s = sequence_new(&r, lengths[l], 1, 2, 48, CPU_KV_F32, equal_keys);
            fill_q(&s, magnitudes[m]);
            expect_all(&s, 0.5, 1e-6);
            fill_q(&s, -magnitudes[m]);
            expect_all(&s, 0.5, 1e-6);
            fill_q(&s, 0);
            expect_all(&s, 0.5, 1e-6);
            sequence_free(&s);
        }
        sequence s = sequence_new(&r, lengths[l], 1, 2, 48, CPU_KV_F32, huge_values);
        expect_all(&s, 2.5e29, 1e24);
        sequence_free(&s);
    }
}

/* Rows that attend the token get NaN; the rows before it are not touched by it. */
static void a_nan_is_seen_by_whoever_attends_it(void **state) {
    rng r = {seed + 4};
    for (int type = 0; type <= CPU_KV_F32; type++) {
        for (int round = 0; round < 24; round++) {
            int32_t tokens = 20 + (int32_t)rng_below(&r, round % 2 ? 100 : 1000), rows = 8;
            sequence s = sequence_new(&r, tokens, rows, 1, 32, (cpu_kv_type)type, any_value);
            int32_t at = round % 3 ? (int32_t)rng_below(&r, tokens) : tokens - 1 - (int32_t)rng_below(&r, rows);
            float x[32];
            for (int i = 0; i < 32; i++)
                x[i] = rng_normal(&r);
            x[rng_below(&r, 32)] = NAN;
            store_token(&s, at, x, round % 4 < 2);
            float out[8 * 32];
            for (int k = 0; k < isa_count; k++) {
                attend(isas[k], &s, 0, rows, out);
                for (int32_t row = 0; row < rows; row++) {
                    bool attends = tokens - rows + row >= at, nan = false;
                    for (int i = 0; i < 32; i++)
                        nan |= isnan(out[row * 32 + i]);
                    if (nan != attends)
                        fail_msg("%s, %s: NaN in %s of token %d, row at %d is %s", isas[k]->name, type_names[type],
                                 round % 4 < 2 ? "V" : "K", (int)at, (int)(tokens - rows + row), nan ? "NaN" : "not");
                }
            }
            sequence_free(&s);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stored_heads_are_near),  cmocka_unit_test(stored_nans_stay),
        cmocka_unit_test(any_length_and_shape),   cmocka_unit_test(windows_and_sinks),
        cmocka_unit_test(values_within_the_keys), cmocka_unit_test(every_head_dim_and_group),
        cmocka_unit_test(extreme_scores),         cmocka_unit_test(a_nan_is_seen_by_whoever_attends_it),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}

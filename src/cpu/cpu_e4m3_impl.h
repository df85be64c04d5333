/* Matrix products with FP8 and MXFP8 weights: float codes of 8 bits whose scales serve 128 or 32 columns. Included by
 * cpu_float_impl.h, which holds what products of other floats share with it. */
#ifndef SL_CPU_E4M3_IMPL_H
#define SL_CPU_E4M3_IMPL_H

#include "cpu/cpu_matmul.h"
#include "cpu/cpu_sixteen.h"
#include "quant/quant_bits.h"

#include <math.h>

/* Rows of W and of activations at a time: for one row of activations as many chains of additions as keep the units
 * busy, for more as many sums as there are registers. */
#if defined(__AVX512F__)
enum { E4M3_ROWS = 8, E4M3_PAIR = 4, E4M3_ROWS_MANY = 4, E4M3_ACTS = 4 };
#else
enum { E4M3_ROWS = 2, E4M3_PAIR = 1, E4M3_ROWS_MANY = 2, E4M3_ACTS = 2 };
#endif

/* Scales are made floats 16 at a time. */
enum { E4M3_SCALES = 16, E4M3_CODES = 64 };

V_INLINE int64_t e4m3_group(sl_format_id f) {
    return f == SL_FP8 ? 128 : 32;
}

/* 256 times scales that are powers of two (values of codes are a 256th); 255 is NaN. */
V_INLINE void e8m0_times_256(const uint8_t e[E4M3_SCALES], float *out) {
#if defined(__AVX512F__)
    __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)e)), bits = _mm512_slli_epi32(v, 23);
    bits = _mm512_mask_mov_epi32(bits, _mm512_testn_epi32_mask(v, v), _mm512_set1_epi32(0x00400000));
    bits =
        _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(v, _mm512_set1_epi32(255)), _mm512_set1_epi32(0x7fc00000));
    _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(256.0f)));
#else
    for (int i = 0; i < E4M3_SCALES; i++) {
        const uint32_t v = e[i], usual = v == 0 ? 0x00400000u : v << 23;
        out[i] = quant_float_of(v == 255 ? 0x7fc00000u : usual) * 256.0f;
    }
#endif
}

/* 256 times scales first .. first + n - 1 of the row of scales at p, n <= 16. */
V_INLINE void e4m3_scales(sl_format_id f, const sl_matrix *m, const uint8_t *p, int64_t first, int64_t n, float *out) {
    if (f == SL_MXFP8_SPLIT) {
        uint8_t e[E4M3_SCALES] = {0};
        if (n == E4M3_SCALES) {
            memcpy(e, p + first, E4M3_SCALES);
        } else {
            memcpy(e, p + first, (size_t)n);
        }
        e8m0_times_256(e, out);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *at = p + (m->side == SL_F32 ? 4 : 2) * (first + i);
        out[i] = (m->side == SL_F32   ? quant_f32(at)
                  : m->side == SL_F16 ? sl_f16_to_f32(quant_u16(at))
                                      : sl_bf16_to_f32(quant_u16(at))) *
                 256.0f;
    }
}

/* ---- 64 codes to floats: a 256th of their values ---- */

#if defined(__AVX512VBMI__)
/* The two upper bytes of a float are all that a code's value needs: both come from tables of 128. */
#define E4M3_HIGH(a) (char)((a) == 0 ? 0 : (a) < 4 ? 0x37 : (a) == 127 ? 0x7f : 0x38 + ((a) >> 4))
#define E4M3_LOW(a)                                                                                                    \
    (char)((a) == 127           ? 0xc0                                                                                 \
           : (a) >= 8           ? ((a) << 4 & 0xff)                                                                    \
           : (a) > 4            ? ((a)-4) << 5                                                                         \
           : (a) < 4 && (a) > 1 ? ((a) << 6) & 0xff                                                                    \
                                : 0)
#define E4M3_FOUR(F, a)    F(a), F((a) + 1), F((a) + 2), F((a) + 3)
#define E4M3_SIXTEEN(F, a) E4M3_FOUR(F, a), E4M3_FOUR(F, (a) + 4), E4M3_FOUR(F, (a) + 8), E4M3_FOUR(F, (a) + 12)
#define E4M3_TABLE(F, a)                                                                                               \
    ((__m512i)(__v64qi){E4M3_SIXTEEN(F, a), E4M3_SIXTEEN(F, (a) + 16), E4M3_SIXTEEN(F, (a) + 32),                      \
                        E4M3_SIXTEEN(F, (a) + 48)})
/* Codes in the order in which unpacking bytes to words, and taking the lower and then the upper words of 32-bit lanes,
 * brings them to that of columns. */
#define E4M3_LANE(a)                                                                                                   \
    (a), (a) + 16, (a) + 1, (a) + 17, (a) + 2, (a) + 18, (a) + 3, (a) + 19, (a) + 32, (a) + 48, (a) + 33, (a) + 49,    \
        (a) + 34, (a) + 50, (a) + 35, (a) + 51

/* Tables in registers: the barrier keeps the compiler from loading constants again for each use, which costs more loads
 * than codes and activations do. */
typedef struct e4m3_tables {
    __m512i order, high[2], low[2];
} e4m3_tables;

V_INLINE e4m3_tables e4m3_tables_load(void) {
    e4m3_tables t = {(__m512i)(__v64qi){E4M3_LANE(0), E4M3_LANE(4), E4M3_LANE(8), E4M3_LANE(12)},
                     {E4M3_TABLE(E4M3_HIGH, 0), E4M3_TABLE(E4M3_HIGH, 64)},
                     {E4M3_TABLE(E4M3_LOW, 0), E4M3_TABLE(E4M3_LOW, 64)}};
    __asm__("" : "+v"(t.order), "+v"(t.high[0]), "+v"(t.high[1]), "+v"(t.low[0]), "+v"(t.low[1]));
    return t;
}

V_INLINE void e4m3_decode(const e4m3_tables *t, const uint8_t *p, sixteen out[4]) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    __m512i codes = _mm512_permutexvar_epi8(t->order, _mm512_loadu_si512(p));
    __m512i high = _mm512_permutex2var_epi8(t->high[0], codes, t->high[1]);
    __m512i low = _mm512_permutex2var_epi8(t->low[0], codes, t->low[1]);
    high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8((char)0x80), 0xf8); /* | sign */
    __m512i first = _mm512_unpacklo_epi8(low, high), second = _mm512_unpackhi_epi8(low, high);
    out[0] = (v16)_mm512_slli_epi32(first, 16);
    out[1] = (v16)_mm512_and_si512(first, upper);
    out[2] = (v16)_mm512_slli_epi32(second, 16);
    out[3] = (v16)_mm512_and_si512(second, upper);
}
#else
typedef struct e4m3_tables {
    char none;
} e4m3_tables;

V_INLINE e4m3_tables e4m3_tables_load(void) {
    return (e4m3_tables){0};
}

V_INLINE void e4m3_decode(const e4m3_tables *t, const uint8_t *p, sixteen out[4]) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        out[j] = sixteen_load_e4m3(p + 16 * j);
    }
}
#endif

/* ---- sums ---- */

/* R rows from `row` on, and what has been summed of their products with A rows of activations. */
typedef struct e4m3_rows {
    const uint8_t *codes, *side[8];
    uint64_t stride;
    float scale[8][E4M3_SCALES];
    sixteen sum[8][4];
} e4m3_rows;

/* The whole columns k .. k + n - 1, n = 64 for MXFP8, 128 for FP8; `at`: k's scale. P rows side by side: their chains
 * of additions are what a core waits for. */
V_INLINE void e4m3_step(sl_format_id f, int R, int P, int A, const e4m3_tables *tables, e4m3_rows *rows, int64_t k,
                        int64_t at, const float *const *x) {
    const int steps = f == SL_FP8 ? 2 : 1;
#pragma GCC unroll 8
    for (int r = 0; r < R; r += P) {
        sixteen t[4][4], w[4][4];
#pragma GCC unroll 2
        for (int step = 0; step < steps; step++) {
            const int64_t c = k + E4M3_CODES * step;
#pragma GCC unroll 4
            for (int p = 0; p < P; p++) {
                e4m3_decode(tables, rows->codes + (uint64_t)(r + p) * rows->stride + c, w[p]);
            }
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                const bool first = f == SL_FP8 ? step == 0 && j == 0 : j % 2 == 0;
                const bool last = f == SL_FP8 ? step == 1 && j == 3 : j % 2 == 1;
                const int64_t scale = at + (f == SL_FP8 ? 0 : j / 2);
#pragma GCC unroll 4
                for (int a = 0; a < A; a++) {
                    const sixteen v = sixteen_load((const uint8_t *)(x[a] + c + 16 * j));
#pragma GCC unroll 4
                    for (int p = 0; p < P; p++) {
                        t[p][a] = sixteen_fma(v, w[p][j], first ? sixteen_zero() : t[p][a]);
                        if (last) {
                            sixteen *sum = &rows->sum[r + p][a];
                            *sum = sixteen_fma(t[p][a], sixteen_set(rows->scale[r + p][scale]), *sum);
                        }
                    }
                }
            }
        }
    }
}

/* Columns k .. end - 1, a scale's or fewer, where a row ends. */
V_INLINE void e4m3_rest(int R, int A, e4m3_rows *rows, int64_t k, int64_t end, int64_t at, const float *const *x) {
    for (int r = 0; r < R; r++) {
        const uint8_t *w = rows->codes + (uint64_t)r * rows->stride;
        for (int a = 0; a < A; a++) {
            sixteen t = sixteen_zero();
            int64_t c = k;
            for (; c + 16 <= end; c += 16) {
                t = sixteen_fma(sixteen_load((const uint8_t *)(x[a] + c)), sixteen_load_e4m3(w + c), t);
            }
            float p[16];
            sixteen_store(p, t);
            for (int i = 0; c + i < end; i++) {
                p[i] = fmaf(x[a][c + i], quant_e4m3(w[c + i]) * 0x1p-8f, p[i]);
            }
            rows->sum[r][a] =
                sixteen_fma(sixteen_load((const uint8_t *)p), sixteen_set(rows->scale[r][at]), rows->sum[r][a]);
        }
    }
}

/* out[k][a] = row `row` + k of m times row a of A rows of activations, k < R */
V_INLINE void e4m3_block(sl_format_id f, int R, int A, const sl_matrix *m, int64_t row, const float *const *x,
                         float out[8][4]) {
    const int64_t cols = m->cols, group = e4m3_group(f), step = f == SL_FP8 ? 128 : E4M3_CODES;
    const e4m3_tables tables = e4m3_tables_load();
    e4m3_rows rows = {.codes = m->part[0] + (uint64_t)row * m->row_bytes[0], .stride = m->row_bytes[0]};
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        int64_t side = f == SL_FP8 ? quant_fp8_scale_row(m, row + r) : row + r;
        rows.side[r] = m->part[1] + (uint64_t)side * m->row_bytes[1];
#pragma GCC unroll 4
        for (int a = 0; a < A; a++) {
            rows.sum[r][a] = sixteen_zero();
        }
    }
    for (int64_t first = 0; first < cols; first += E4M3_SCALES * group) {
        const int64_t end = sl_min_i64(cols, first + E4M3_SCALES * group);
        for (int r = 0; r < R; r++) {
            e4m3_scales(f, m, rows.side[r], first / group, (end - first + group - 1) / group, rows.scale[r]);
        }
        int64_t k = first;
        for (; k + step <= end; k += step) {
            for (int64_t i = 0; A == 1 && i < R * step; i += 64) { /* as float_prefetch */
                __builtin_prefetch(rows.codes + R * k + 16384 + i);
            }
            e4m3_step(f, R, A == 1 && R % E4M3_PAIR == 0 ? E4M3_PAIR : 1, A, &tables, &rows, k, (k - first) / group, x);
        }
        for (; k < end; k += group) {
            e4m3_rest(R, A, &rows, k, sl_min_i64(end, k + group), (k - first) / group, x);
        }
    }
    for (int r = 0; r < R; r++) {
        for (int a = 0; a < A; a++) {
            float p[16];
            sixteen_store(p, rows.sum[r][a]);
            out[r][a] = v16_sum(v16_load(p));
        }
    }
}

#endif

/* Matrix products with F32, F16 and BF16 weights, written once on 16-wide vectors and compiled by each instruction
 * set's file. One vector of partial sums per (row of W, row of activations); as many are held at a time as there are
 * registers, so that a weight is loaded and converted once per FLOAT_ACTS rows of activations. */
#ifndef SL_CPU_FLOAT_IMPL_H
#define SL_CPU_FLOAT_IMPL_H

#include "cpu/cpu_math.h"
#include "cpu/cpu_matmul.h"
#include "quant/quant_bits.h"

#include <math.h>

#if defined(__AVX512F__)
enum { FLOAT_ROWS = 4, FLOAT_ACTS = 4 };
#else
enum { FLOAT_ROWS = 2, FLOAT_ACTS = 2 };
#endif

/* 16 lanes. Where no register holds them all they are named parts: compilers keep a 64-byte vector, or an array of
 * parts, in memory. */
#if defined(__AVX512F__)
typedef v16 sixteen;

V_INLINE sixteen sixteen_zero(void) {
    return v16_set(0.0f);
}
V_INLINE sixteen sixteen_load(const uint8_t *p) {
    return (v16)_mm512_loadu_ps(p);
}
V_INLINE void sixteen_store(float *p, sixteen v) {
    v16_store(p, v);
}
/* a * b + c, one rounding */
V_INLINE sixteen sixteen_fma(sixteen a, sixteen b, sixteen c) {
    return (v16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
V_INLINE sixteen sixteen_load_f16(const uint8_t *p) {
    return v16_load_f16(p);
}
V_INLINE sixteen sixteen_load_bf16(const uint8_t *p) {
    __m256i h = _mm256_loadu_si256((const __m256i *)p);
    return (v16)_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

#elif defined(__FMA__)
typedef struct sixteen {
    __m256 a, b;
} sixteen;

V_INLINE sixteen sixteen_zero(void) {
    return (sixteen){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
V_INLINE sixteen sixteen_load(const uint8_t *p) {
    return (sixteen){_mm256_loadu_ps((const float *)p), _mm256_loadu_ps((const float *)(p + 32))};
}
V_INLINE void sixteen_store(float *p, sixteen v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
V_INLINE sixteen sixteen_fma(sixteen x, sixteen y, sixteen z) {
    return (sixteen){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
V_INLINE __m128i eight_halves(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)p);
}
V_INLINE sixteen sixteen_load_f16(const uint8_t *p) {
    return (sixteen){_mm256_cvtph_ps(eight_halves(p)), _mm256_cvtph_ps(eight_halves(p + 16))};
}
V_INLINE __m256 eight_bf16(const uint8_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight_halves(p)), 16));
}
V_INLINE sixteen sixteen_load_bf16(const uint8_t *p) {
    return (sixteen){eight_bf16(p), eight_bf16(p + 16)};
}

#elif defined(__ARM_NEON)
typedef struct sixteen {
    float32x4_t a, b, c, d;
} sixteen;

V_INLINE sixteen sixteen_zero(void) {
    float32x4_t z = vdupq_n_f32(0);
    return (sixteen){z, z, z, z};
}
V_INLINE float32x4_t four_floats(const uint8_t *p) {
    return vreinterpretq_f32_u8(vld1q_u8(p));
}
V_INLINE sixteen sixteen_load(const uint8_t *p) {
    return (sixteen){four_floats(p), four_floats(p + 16), four_floats(p + 32), four_floats(p + 48)};
}
V_INLINE void sixteen_store(float *p, sixteen v) {
    vst1q_f32(p, v.a);
    vst1q_f32(p + 4, v.b);
    vst1q_f32(p + 8, v.c);
    vst1q_f32(p + 12, v.d);
}
V_INLINE sixteen sixteen_fma(sixteen x, sixteen y, sixteen z) {
    return (sixteen){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
                     vfmaq_f32(z.d, x.d, y.d)};
}
V_INLINE float32x4_t four_f16(const uint8_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
V_INLINE sixteen sixteen_load_f16(const uint8_t *p) {
    return (sixteen){four_f16(p), four_f16(p + 8), four_f16(p + 16), four_f16(p + 24)};
}
V_INLINE float32x4_t four_bf16(const uint8_t *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}
V_INLINE sixteen sixteen_load_bf16(const uint8_t *p) {
    return (sixteen){four_bf16(p), four_bf16(p + 8), four_bf16(p + 16), four_bf16(p + 24)};
}

#else
typedef struct sixteen {
    float v[16];
} sixteen;

V_INLINE sixteen sixteen_zero(void) {
    return (sixteen){{0}};
}
V_INLINE sixteen sixteen_load(const uint8_t *p) {
    sixteen out;
    memcpy(&out, p, sizeof out);
    return out;
}
V_INLINE void sixteen_store(float *p, sixteen v) {
    memcpy(p, &v, sizeof v);
}
V_INLINE sixteen sixteen_fma(sixteen a, sixteen b, sixteen c) {
    for (int i = 0; i < 16; i++) {
        c.v[i] = fmaf(a.v[i], b.v[i], c.v[i]);
    }
    return c;
}
V_INLINE sixteen sixteen_load_f16(const uint8_t *p) {
    sixteen out;
    for (int i = 0; i < 16; i++) {
        out.v[i] = sl_f16_to_f32(quant_u16(p + 2 * i));
    }
    return out;
}
V_INLINE sixteen sixteen_load_bf16(const uint8_t *p) {
    sixteen out;
    for (int i = 0; i < 16; i++) {
        out.v[i] = sl_bf16_to_f32(quant_u16(p + 2 * i));
    }
    return out;
}
#endif

V_INLINE int64_t weight_bytes(sl_format_id f) {
    return f == SL_F32 ? 4 : 2;
}

V_INLINE sixteen load_weights(sl_format_id f, const uint8_t *p) {
    return f == SL_F32 ? sixteen_load(p) : f == SL_F16 ? sixteen_load_f16(p) : sixteen_load_bf16(p);
}

V_INLINE float weight_at(sl_format_id f, const uint8_t *p) {
    return f == SL_F32 ? quant_f32(p) : f == SL_F16 ? sl_f16_to_f32(quant_u16(p)) : sl_bf16_to_f32(quant_u16(p));
}

/* Asks for what a row-by-row reader of W reaches 16 KiB later (rows are contiguous; R of them are read side by side):
 * without it a core gets half of the memory's bandwidth. */
V_INLINE void float_prefetch(sl_format_id f, int R, const uint8_t *w, int64_t k) {
    const uint8_t *p = w + R * k * weight_bytes(f) + 16384;
    for (int64_t i = 0; i < R * 16 * weight_bytes(f); i += 64) {
        __builtin_prefetch(p + i);
    }
}

/* R rows of W (each `stride` bytes after the one before) times A rows of activations. */
V_INLINE void float_block(sl_format_id f, int R, int A, const uint8_t *w, uint64_t stride, const float *const *x,
                          int64_t cols, float out[4][4]) {
    sixteen sum[4][4];
    int64_t k = 0;
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
        for (int a = 0; a < A; a++) {
            sum[r][a] = sixteen_zero();
        }
    }
    for (; k + 16 <= cols; k += 16) {
        sixteen xv[4];
        if (A == 1) {
            float_prefetch(f, R, w, k);
        }
#pragma GCC unroll 4
        for (int a = 0; a < A; a++) {
            xv[a] = sixteen_load((const uint8_t *)(x[a] + k));
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            sixteen wv = load_weights(f, w + (uint64_t)r * stride + k * weight_bytes(f));
#pragma GCC unroll 4
            for (int a = 0; a < A; a++) {
                sum[r][a] = sixteen_fma(xv[a], wv, sum[r][a]);
            }
        }
    }
    for (int r = 0; r < R; r++) {
        for (int a = 0; a < A; a++) {
            float p[16];
            sixteen_store(p, sum[r][a]);
            for (int64_t t = k; t < cols; t++) {
                p[t - k] = fmaf(x[a][t], weight_at(f, w + (uint64_t)r * stride + t * weight_bytes(f)), p[t - k]);
            }
            out[r][a] = v16_sum(v16_load(p));
        }
    }
}

/* y[a * ldy + k] = row r + k of W times row i + a of in, k < R, a < A. */
V_INLINE void float_store(sl_format_id f, int R, int A, const sl_matrix *w, int64_t r, const cpu_rows *in, int64_t i,
                          float *y, int64_t ldy) {
    const float *x[4];
    float out[4][4];
    for (int a = 0; a < A; a++) {
        x[a] = cpu_rows_x(in, i + a);
    }
    float_block(f, R, A, w->part[0] + (uint64_t)r * w->row_bytes[0], w->row_bytes[0], x, w->cols, out);
    for (int a = 0; a < A; a++) {
        for (int k = 0; k < R; k++) {
            y[a * ldy + k] = out[k][a];
        }
    }
}

/* y[i * ldy + r - row0], i0 <= i < i1 */
V_INLINE void float_rows(sl_format_id f, const sl_matrix *w, int64_t row0, int64_t row1, const cpu_rows *in, int64_t i0,
                         int64_t i1, float *y, int64_t ldy) {
    int64_t r = row0, i = i0;
    for (; r + FLOAT_ROWS <= row1; r += FLOAT_ROWS) {
        for (i = i0; i + FLOAT_ACTS <= i1; i += FLOAT_ACTS) {
            float_store(f, FLOAT_ROWS, FLOAT_ACTS, w, r, in, i, y + i * ldy + r - row0, ldy);
        }
        for (; i < i1; i++) {
            float_store(f, FLOAT_ROWS, 1, w, r, in, i, y + i * ldy + r - row0, ldy);
        }
    }
    for (; r < row1; r++) {
        for (i = i0; i < i1; i++) {
            float_store(f, 1, 1, w, r, in, i, y + i * ldy + r - row0, ldy);
        }
    }
}

/* Panels of 32 x 32 rows, so that one of W and one of activations stay in the second cache level. */
V_INLINE void float_panels(sl_format_id f, const sl_matrix *w, int64_t row0, int64_t row1, const cpu_rows *in, float *y,
                           int64_t ldy) {
    enum { PANEL = 32 };
    int64_t step = in->n > 1 ? PANEL : row1 - row0;
    for (int64_t r = row0; r < row1; r += step) {
        for (int64_t i = 0; i < in->n; i += PANEL) {
            float_rows(f, w, r, sl_min_i64(r + step, row1), in, i, sl_min_i64(i + PANEL, in->n), y + r - row0, ldy);
        }
    }
}

static void cpu_matmul_float(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_rows *in, float *y,
                             int64_t ldy) {
    switch (w->format) {
    case SL_F16:
        float_panels(SL_F16, w, row0, row1, in, y, ldy);
        break;
    case SL_BF16:
        float_panels(SL_BF16, w, row0, row1, in, y, ldy);
        break;
    default:
        float_panels(SL_F32, w, row0, row1, in, y, ldy);
    }
}

#endif

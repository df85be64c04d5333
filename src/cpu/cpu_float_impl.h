/* Matrix products with F32, F16, BF16, FP8 and MXFP8 weights, written once on 16-wide vectors and compiled by each
 * instruction set's file. One vector of partial sums per (row of W, row of activations); as many are held at a time as
 * there are registers, so that a weight is loaded and converted once per FLOAT_ACTS rows of activations. */
#ifndef SL_CPU_FLOAT_IMPL_H
#define SL_CPU_FLOAT_IMPL_H

#include "cpu/cpu_e4m3_impl.h"
#include "cpu/cpu_math.h"
#include "cpu/cpu_matmul.h"
#include "cpu/cpu_sixteen.h"
#include "quant/quant_bits.h"

#include <math.h>

#if defined(__AVX512F__)
enum { FLOAT_ROWS = 4, FLOAT_ACTS = 4 };
#else
enum { FLOAT_ROWS = 2, FLOAT_ACTS = 2 };
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

/* R rows of m, from `row` on, times A rows of activations. */
V_INLINE void float_block(sl_format_id f, int R, int A, const sl_matrix *m, int64_t row, const float *const *x,
                          float out[8][4]) {
    const uint64_t stride = m->row_bytes[0];
    const uint8_t *w = m->part[0] + (uint64_t)row * stride;
    const int64_t cols = m->cols;
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
    float out[8][4];
    for (int a = 0; a < A; a++) {
        x[a] = cpu_rows_x(in, i + a);
    }
    if (cpu_is_e4m3(f)) {
        e4m3_block(f, R, A, w, r, x, out);
    } else {
        float_block(f, R, A, w, r, x, out);
    }
    for (int a = 0; a < A; a++) {
        for (int k = 0; k < R; k++) {
            y[a * ldy + k] = out[k][a];
        }
    }
}

/* y[i * ldy + r - row0], i0 <= i < i1, R rows of W and up to A rows of activations at a time. */
V_INLINE void float_rows_by(sl_format_id f, int R, int A, const sl_matrix *w, int64_t row0, int64_t row1,
                            const cpu_rows *in, int64_t i0, int64_t i1, float *y, int64_t ldy) {
    int64_t r = row0, i = i0;
    for (; r + R <= row1; r += R) {
        for (i = i0; A > 1 && i + A <= i1; i += A) {
            float_store(f, R, A, w, r, in, i, y + i * ldy + r - row0, ldy);
        }
        for (; i < i1; i++) {
            float_store(f, R, 1, w, r, in, i, y + i * ldy + r - row0, ldy);
        }
    }
    for (; r < row1; r++) {
        for (i = i0; i < i1; i++) {
            float_store(f, 1, 1, w, r, in, i, y + i * ldy + r - row0, ldy);
        }
    }
}

V_INLINE void float_rows(sl_format_id f, const sl_matrix *w, int64_t row0, int64_t row1, const cpu_rows *in, int64_t i0,
                         int64_t i1, float *y, int64_t ldy) {
    if (!cpu_is_e4m3(f)) {
        float_rows_by(f, FLOAT_ROWS, FLOAT_ACTS, w, row0, row1, in, i0, i1, y, ldy);
    } else if (i1 - i0 < E4M3_ACTS) {
        float_rows_by(f, E4M3_ROWS, 1, w, row0, row1, in, i0, i1, y, ldy);
    } else {
        float_rows_by(f, E4M3_ROWS_MANY, E4M3_ACTS, w, row0, row1, in, i0, i1, y, ldy);
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
    case SL_FP8:
        float_panels(SL_FP8, w, row0, row1, in, y, ldy);
        break;
    case SL_MXFP8_SPLIT:
        float_panels(SL_MXFP8_SPLIT, w, row0, row1, in, y, ldy);
        break;
    default:
        float_panels(SL_F32, w, row0, row1, in, y, ldy);
    }
}

#endif

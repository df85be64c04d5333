/* cpu: matrix products of quantised weights with rows of activations, on the instruction sets of this machine.
 *
 * y[i][r] = sum over k of x[i][k] * W[r][k]: W is any sl_matrix (quant/quant.h), read in its file's own bytes at any
 * address and never past the end of a row. One row (decode) streams the weights; many rows (prefill) share a tile of
 * unpacked weights: the bits of y do not depend on which, nor on n, on the other rows, on how callers cut the row
 * range, or on the instruction set.
 *
 * May include: quant, base. Called by ops. Other operations of the forward pass: cpu_ops.h.
 *
 * Mode q8, activations. Each row is cut into blocks of 32, the last padded with zeros. amax = max |x| of the block;
 * d = amax / 127; q = x * (127 / amax) rounded to nearest even, an int8 in -127..127; xs = d * (float)(sum of q).
 * A block with amax < 2^-100 counts as zeros. A block that holds a NaN or an infinity gets d = xs = NaN and q = 0: its
 * row of y is NaN, never a plausible number.
 *
 * Mode q8, weights. 32 codes of a row times 32 q make one exact integer I_b, constant offsets of codes and integer
 * scales of half blocks included. Codes that stand for values are these int8 values: IQ4's, doubled ones of MXFP4,
 * signed rows of grids (IQ2, IQ3), 8 * row +- 1 (IQ1). s_b and m_b are scale and bias of the block in f32:
 *     Q4_0, Q5_0, Q8_0, IQ4_NL, TQ        s = d
 *     Q6_K, Q3_K                          s = d, halves * sc
 *     Q2_K                                s = d, halves * sc; M_b below
 *     IQ4_XS                              s = d * sc
 *     MXFP4                               s = 2^(e - 128)
 *     IQ2_XXS, IQ1_S; IQ3_XXS; IQ3_S      s = (d / 8; d / 4; d) * (2 * sc + 1)
 *     IQ2_XS, IQ2_S, IQ1_M                s = d / 8, halves * (2 * sc + 1)
 *     Q4_1, Q5_1, affine                  s = d (scale), m = m (bias)
 *     Q4_K, Q5_K                          s = d * sc, m = -(dmin * min)
 *
 * Mode q8, sum. Four partial sums from +0, blocks b ascending, b into number b mod 4:
 *     a = fma(s_b * d_b, (float)I_b, a), then, for formats with a bias, a = fma(m_b, xs_b, a)
 * (Q2_K: a = fma(dmin * d_b, (float)M_b, a), M_b the exact integer - sum over both halves of min * (sum of q);
 * NVFP4: for each half h of the block a = fma(s_h * d_b, (float)I_h, a), s_h half of the scale, codes doubled as
 * MXFP4's),
 * and y = (a0 + a2) + (a1 + a3). Why so: a matvec reduces the integers of 4 rows x 4 blocks to one 16-lane vector and
 * does the f32 work on that; a tile has rows as lanes and walks the blocks by b mod 4. Both give these bits.
 *
 * Mode q8, F32, F16, BF16, FP8, MXFP8 weights. Activations stay f32 (codes that are floats have no integer form). 16
 * partial sums p[k mod 16] = fma(x_k, w_k, p), k ascending, folded in halves: p[j] += p[j + 8] for j < 8, then + 4, +
 * 2,
 * + 1. FP8 and MXFP8: over the 128 or 32 columns of a scale t[k mod 16] = fma(x_k, code_k / 256, t) from +0, then p =
 * fma(t, 256 * scale, p). NVFP4_SPLIT whose columns are not whole blocks of 32: as F32, dequantised.
 *
 * Mode exact (scalar code, the oracle; any format). f32 activations and dequantised weights, 8 partial sums by k mod 8
 * in double, folded in halves, rounded to f32 once.
 *
 * Equal bits are promised for finite input; where a NaN appears it appears everywhere, but its payload may differ. */
#ifndef SL_CPU_H
#define SL_CPU_H

#include "quant/quant.h"

typedef enum cpu_isa {
    CPU_SCALAR,
    CPU_AVX2,   /* with FMA and F16C */
    CPU_AVX512, /* F, BW, VL, DQ, VBMI, VNNI */
    CPU_NEON,   /* with dot products */
    CPU_ISA_COUNT
} cpu_isa;

/* Speed is best where ranges of rows given to threads begin and end at multiples of this. */
enum { CPU_ROW_GRAIN = 32 };

/* n rows of activations, as the products read them. */
typedef struct cpu_rows {
    int64_t cols;
    int64_t n;
    const float *x; /* f32 rows at x + r * ldx: read in mode exact and where activations stay f32; else may be NULL */
    int64_t ldx;
    const void *q; /* rows made by `quantize`, 64-byte aligned: read where activations are integers; else may be NULL */
    const int32_t *index; /* row i of y is made from row index[i] of x and q; NULL: from row i */
} cpu_rows;

typedef struct cpu_kernels {
    const char *name; /* "scalar", "avx2", "avx512", "neon"; "exact" */
    /* n rows of x (stride ldx floats) to q: cpu_act_bytes(cols) bytes each, 64-byte aligned. Does nothing in mode
     * exact. */
    void (*quantize)(const float *x, int64_t ldx, int64_t n, int64_t cols, void *q);
    /* y[i * ldy + r] for r in [row0, row1), 0 <= i < in->n. scratch: cpu_scratch_bytes(cols), 64-byte aligned, one per
     * thread. */
    void (*matmul)(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_rows *in, float *y, int64_t ldy,
                   void *scratch);
    /* h[i * ldh + r] = silu(gate row r . x) * (up row r . x); same sizes, formats may differ; the bits of two matmuls
     * and cpu_silu. */
    void (*gate_up)(const sl_matrix *gate, const sl_matrix *up, int64_t row0, int64_t row1, const cpu_rows *in,
                    float *h, int64_t ldh, void *scratch);
} cpu_kernels;

/* NULL: this build or machine has no such instruction set. */
const cpu_kernels *cpu_kernels_get(cpu_isa isa);
cpu_isa cpu_isa_best(void);
/* By name, "scalar" .. "neon" and "exact"; NULL is the best of this machine. */
const cpu_kernels *cpu_kernels_named(const char *name);

/* Bytes of one quantised row of activations (a multiple of 64). */
uint64_t cpu_act_bytes(int64_t cols);
/* Bytes of scratch for products with matrices of up to `cols` columns. */
uint64_t cpu_scratch_bytes(int64_t cols);

#endif

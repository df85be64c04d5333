/* cpu_tile_impl: a tile times rows of activations, the part that is the same on every instruction set. Included by
 * cpu_tile_*.c, which before it define
 *     TILE_LANES                        floats of a vector; a tile has TILE_ROWS / TILE_LANES vectors of rows
 *     tile_i, tile_f                    vectors of 32-bit integers and floats
 *     tile_zero() tile_set(float) tile_load(float *) tile_store(float *, v) tile_add(a, b) tile_mul(a, b)
 *     tile_fma(a, b, c) = a * b + c     tile_float(tile_i)
 *     tile_pairs(int16_t *p, int32_t pair)  sums of products of 16-bit pairs; `pair` is the same for all lanes
 *     tile_sums(f, record, A, x, offsets, b, acc)    I_b of all rows and A rows of activations
 *     tile_half(f, h, record, A, x, offsets, b, acc) I_h, of its half h (formats with pairs) */
#ifndef SL_CPU_TILE_IMPL_H
#define SL_CPU_TILE_IMPL_H

#include "cpu/cpu_tile.h"

/* The same of formats whose halves have scales of their own. */
CPU_INLINE void add_pairs(sl_format_id f, const record *t, int A, const uint8_t *const x[], const act_offsets *o,
                          int64_t b, tile_f sum[TILE_VECTORS][CPU_TILE_ACTS]) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        const float *scale = h ? t->u.bias : t->scale;
        tile_i acc[TILE_VECTORS][CPU_TILE_ACTS];
        tile_half(f, h, t, A, x, o, b, acc);
#pragma GCC unroll 8
        for (int a = 0; a < A; a++) {
            tile_f d = tile_set(float_at(x[a] + o->d + 4 * b));
#pragma GCC unroll 4
            for (int v = 0; v < TILE_VECTORS; v++) {
                tile_f s = tile_mul(tile_load(scale + TILE_LANES * v), d);
                sum[v][a] = tile_fma(s, tile_float(acc[v][a]), sum[v][a]);
            }
        }
    }
}

/* The record's block b times A rows of activations, which begin at x, added to sum. */
CPU_INLINE void add_block(sl_format_id f, const record *t, int A, const uint8_t *const x[], const act_offsets *o,
                          int64_t b, tile_f sum[TILE_VECTORS][CPU_TILE_ACTS]) {
    if (cpu_has_pairs(f)) {
        add_pairs(f, t, A, x, o, b, sum);
        return;
    }
    tile_i acc[TILE_VECTORS][CPU_TILE_ACTS];
    tile_sums(f, t, A, x, o, b, acc);
#pragma GCC unroll 8
    for (int a = 0; a < A; a++) {
        tile_f d = tile_set(float_at(x[a] + o->d + 4 * b)), xs = tile_set(float_at(x[a] + o->xs + 4 * b));
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++) {
            tile_f s = tile_mul(tile_load(t->scale + TILE_LANES * v), d);
            sum[v][a] = tile_fma(s, tile_float(acc[v][a]), sum[v][a]);
            if (cpu_has_bias(f)) {
                sum[v][a] = tile_fma(tile_load(t->u.bias + TILE_LANES * v), xs, sum[v][a]);
            }
            if (f == SL_Q2_K) {
                tile_f m = tile_mul(tile_load(t->u.minima.dmin + TILE_LANES * v), d);
                tile_i minima = tile_pairs(t->u.minima.min[TILE_LANES * v], half_sums_at(x[a] + o->neg32 + 8 * b));
                sum[v][a] = tile_fma(m, tile_float(minima), sum[v][a]);
            }
        }
    }
}

/* Partial sum c of every output, stored (add false) or added to what is at out. Returns the tile's next class. */
CPU_INLINE const uint8_t *add_class(sl_format_id f, const uint8_t *t, int64_t blocks, int c, int A,
                                    const uint8_t *const x[], const act_offsets *o, bool add, float *out,
                                    cpu_ahead *ahead) {
    tile_f sum[TILE_VECTORS][CPU_TILE_ACTS];
#pragma GCC unroll 8
    for (int a = 0; a < A; a++) {
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++) {
            sum[v][a] = tile_zero();
        }
    }
    for (int64_t b = c; b < blocks; b += 4, t += record_bytes(f)) {
        cpu_ahead_touch(ahead);
        add_block(f, (const record *)t, A, x, o, b, sum);
    }
#pragma GCC unroll 8
    for (int a = 0; a < A; a++) {
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++) {
            float *to = out + a * TILE_ROWS + TILE_LANES * v;
            tile_store(to, add ? tile_add(tile_load(to), sum[v][a]) : sum[v][a]);
        }
    }
    return t;
}

CPU_INLINE void mul_acts(sl_format_id f, int A, const void *tile, const cpu_rows *in, int64_t i, float *out,
                         cpu_ahead *ahead) {
    static const int order[4] = {0, 2, 1, 3};
    _Alignas(64) float odd[CPU_TILE_ACTS * TILE_ROWS];
    const int64_t blocks = in->cols / 32;
    const act_offsets o = offsets_for(f, in->cols);
    const uint8_t *x[CPU_TILE_ACTS], *t = tile;
    for (int a = 0; a < A; a++) {
        x[a] = (const uint8_t *)in->q + cpu_rows_at(in, i + a) * cpu_act_blocks(in->cols) * CPU_ACT_BLOCK;
    }
    for (int k = 0; k < 4; k++) {
        t = add_class(f, t, blocks, order[k], A, x, &o, k & 1, k < 2 ? out : odd, ahead);
    }
    for (int k = 0; k < A * TILE_ROWS; k += TILE_LANES) {
        tile_store(out + k, tile_add(tile_load(out + k), tile_load(odd + k)));
    }
}

/* A function for each format and number of activations: they are long, and compilers (sanitizers above all) take more
 * than linear time. */
typedef void tile_mul_fn(const void *tile, const cpu_rows *in, int64_t i, float *out, cpu_ahead *ahead);

#if defined(CPU_FEW_FUNCTIONS)
#define MUL_BODY(name, f)                                                                                              \
    static __attribute__((noinline)) void mul_##name(int A, const void *tile, const cpu_rows *in, int64_t i,           \
                                                     float *out, cpu_ahead *ahead) {                                   \
        mul_acts(f, A, tile, in, i, out, ahead);                                                                       \
    }
#define MUL_ACTS(name, f, A, tile, in, i, out, ahead) mul_##name(A, tile, in, i, out, ahead)
#else
#define MUL_BODY(name, f)
#define MUL_ACTS(name, f, A, tile, in, i, out, ahead) mul_acts(f, A, tile, in, i, out, ahead)
#endif
#define MUL(name, f, A)                                                                                                \
    static void mul_##name##_##A(const void *tile, const cpu_rows *in, int64_t i, float *out, cpu_ahead *ahead) {      \
        MUL_ACTS(name, f, A, tile, in, i, out, ahead);                                                                 \
    }

#define PACK(name, f)                                                                                                  \
    static void pack_##name(const sl_matrix *w, int64_t row0, int64_t rows, void *tile, void *scratch) {               \
        pack_format(f, w, row0, rows, tile, scratch);                                                                  \
    }
#define PACK_ALL                                                                                                       \
    PACK(q4_0, SL_Q4_0)                                                                                                \
    PACK(q4_1, SL_Q4_1)                                                                                                \
    PACK(q5_0, SL_Q5_0)                                                                                                \
    PACK(q5_1, SL_Q5_1)                                                                                                \
    PACK(q8_0, SL_Q8_0)                                                                                                \
    PACK(q4_k, SL_Q4_K)                                                                                                \
    PACK(q5_k, SL_Q5_K)                                                                                                \
    PACK(q6_k, SL_Q6_K)                                                                                                \
    PACK(affine4, SL_AFFINE4)                                                                                          \
    PACK(affine8, SL_AFFINE8)                                                                                          \
    PACK(affine2, SL_AFFINE2)                                                                                          \
    PACK(affine3, SL_AFFINE3)                                                                                          \
    PACK(affine5, SL_AFFINE5)                                                                                          \
    PACK(affine6, SL_AFFINE6)                                                                                          \
    PACK(q2_k, SL_Q2_K)                                                                                                \
    PACK(q3_k, SL_Q3_K)                                                                                                \
    PACK(iq4_nl, SL_IQ4_NL)                                                                                            \
    PACK(iq4_xs, SL_IQ4_XS)                                                                                            \
    PACK(mxfp4, SL_MXFP4)                                                                                              \
    PACK(mxfp4_split, SL_MXFP4_SPLIT)                                                                                  \
    PACK(tq2_0, SL_TQ2_0)                                                                                              \
    PACK(iq2_xxs, SL_IQ2_XXS)                                                                                          \
    PACK(iq2_xs, SL_IQ2_XS)                                                                                            \
    PACK(iq2_s, SL_IQ2_S)                                                                                              \
    PACK(iq3_xxs, SL_IQ3_XXS)                                                                                          \
    PACK(iq3_s, SL_IQ3_S)                                                                                              \
    PACK(iq1_s, SL_IQ1_S)                                                                                              \
    PACK(iq1_m, SL_IQ1_M)                                                                                              \
    PACK(nvfp4, SL_NVFP4)                                                                                              \
    PACK(nvfp4_split, SL_NVFP4_SPLIT)                                                                                  \
    PACK(tq1_0, SL_TQ1_0)                                                                                              \
    static cpu_tile_pack_fn *const packers[SL_FORMAT_COUNT] = {                                                        \
        [SL_Q4_0] = pack_q4_0,       [SL_Q4_1] = pack_q4_1,                                                            \
        [SL_Q5_0] = pack_q5_0,       [SL_Q5_1] = pack_q5_1,                                                            \
        [SL_Q8_0] = pack_q8_0,       [SL_Q4_K] = pack_q4_k,                                                            \
        [SL_Q5_K] = pack_q5_k,       [SL_Q6_K] = pack_q6_k,                                                            \
        [SL_AFFINE4] = pack_affine4, [SL_AFFINE8] = pack_affine8,                                                      \
        [SL_AFFINE2] = pack_affine2, [SL_AFFINE3] = pack_affine3,                                                      \
        [SL_AFFINE5] = pack_affine5, [SL_AFFINE6] = pack_affine6,                                                      \
        [SL_Q2_K] = pack_q2_k,       [SL_Q3_K] = pack_q3_k,                                                            \
        [SL_IQ4_NL] = pack_iq4_nl,   [SL_IQ4_XS] = pack_iq4_xs,                                                        \
        [SL_MXFP4] = pack_mxfp4,     [SL_MXFP4_SPLIT] = pack_mxfp4_split,                                              \
        [SL_TQ2_0] = pack_tq2_0,     [SL_IQ2_XXS] = pack_iq2_xxs,                                                      \
        [SL_IQ2_XS] = pack_iq2_xs,   [SL_IQ2_S] = pack_iq2_s,                                                          \
        [SL_IQ3_XXS] = pack_iq3_xxs, [SL_IQ3_S] = pack_iq3_s,                                                          \
        [SL_IQ1_S] = pack_iq1_s,     [SL_IQ1_M] = pack_iq1_m,                                                          \
        [SL_NVFP4] = pack_nvfp4,     [SL_NVFP4_SPLIT] = pack_nvfp4_split,                                              \
        [SL_TQ1_0] = pack_tq1_0,                                                                                       \
    };

#endif

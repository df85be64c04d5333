/* NEON with dot products: products with many rows of activations, in tiles (cpu_tile.h) of 8 rows of W. A dot
 * instruction takes 4 columns of 4 rows, and by its lane 4 of the 16 columns of activations in a register. */
#include "cpu/cpu_tile_neon.h"

#include "cpu/cpu_neon.h"

enum { TILE_ROWS = 8, TILE_LANES = 4, TILE_VECTORS = TILE_ROWS / TILE_LANES };

#include "cpu/cpu_tile.h"

/* ---- packing ----
 * 4 rows x 4 blocks at a time. */

enum { PACK_ROWS = 4 };

/* v[row], lane k to v[k], lane row */
CPU_INLINE void transpose_words(uint32x4_t v[4]) {
    uint32x4_t a = vtrn1q_u32(v[0], v[1]), b = vtrn2q_u32(v[0], v[1]);
    uint32x4_t c = vtrn1q_u32(v[2], v[3]), d = vtrn2q_u32(v[2], v[3]);
    v[0] = vreinterpretq_u32_u64(vtrn1q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(c)));
    v[1] = vreinterpretq_u32_u64(vtrn1q_u64(vreinterpretq_u64_u32(b), vreinterpretq_u64_u32(d)));
    v[2] = vreinterpretq_u32_u64(vtrn2q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(c)));
    v[3] = vreinterpretq_u32_u64(vtrn2q_u64(vreinterpretq_u64_u32(b), vreinterpretq_u64_u32(d)));
}

/* Block j of 4 rows' quads to rows row .. row + 3 of t. */
CPU_INLINE void pack_block(sl_format_id f, const quad q[PACK_ROWS], int j, record *t, int64_t row) {
    uint32x4_t lo[PACK_ROWS], hi[PACK_ROWS];
    for (int r = 0; r < PACK_ROWS; r++) {
        codes c = load_codes(f, &q[r], j);
        lo[r] = vreinterpretq_u32_u8(c.lo);
        hi[r] = vreinterpretq_u32_u8(c.hi);
        if (cpu_has_halves(f)) {
            uint64_t sub = quad_half_scales(f, &q[r]) >> 16 * j;
            t->u.sub[0][row + r] = (int8_t)sub;
            t->u.sub[1][row + r] = (int8_t)(sub >> 8);
        }
        if (f == SL_Q2_K) {
            uint64_t both = quad_q2_k_scales(&q[r]) >> 16 * j;
            t->u.minima.min[row + r][0] = (int16_t)(both >> 4 & 15);
            t->u.minima.min[row + r][1] = (int16_t)(both >> 12 & 15);
        }
    }
    transpose_words(lo);
    transpose_words(hi);
    for (int k = 0; k < 4; k++) {
        vst1q_u8(t->code[k][row], vreinterpretq_u8_u32(lo[k]));
        vst1q_u8(t->code[k + 4][row], vreinterpretq_u8_u32(hi[k]));
    }
}

/* v[row], lane b to `offset` of record b, n of which exist. */
CPU_INLINE void pack_values(const float32x4_t v[PACK_ROWS], uint8_t *const at[4], int64_t offset, int n) {
    uint32x4_t w[PACK_ROWS];
    for (int r = 0; r < PACK_ROWS; r++) {
        w[r] = vreinterpretq_u32_f32(v[r]);
    }
    transpose_words(w);
    for (int b = 0; b < n; b++) {
        vst1q_u32((uint32_t *)(at[b] + offset), w[b]);
    }
}

/* Blocks b .. b + n - 1 of rows row[0..3] of w to the records at `at`, from row `to` of the tile on. */
CPU_INLINE void pack_quads(sl_format_id f, const sl_matrix *w, const int64_t row[PACK_ROWS], int64_t b, int half, int n,
                           uint8_t *const at[4], int64_t to) {
    quad q[PACK_ROWS];
    float32x4_t s[PACK_ROWS], m[PACK_ROWS];
    for (int r = 0; r < PACK_ROWS; r++) {
        q[r] = quad_at(f, w, w->part[0] + (uint64_t)row[r] * w->row_bytes[0], b, half, w->cols / 32 - 1);
        scales v = load_scales(f, w, &q[r], row[r]);
        s[r] = v.s;
        m[r] = v.m;
    }
    pack_values(s, at, (int64_t)offsetof(record, scale) + 4 * to, n);
    if (has_second(f)) {
        pack_values(m, at, (int64_t)offsetof(record, u) + 4 * to, n);
    }
    for (int j = 0; j < n; j++) {
        pack_block(f, q, j, (record *)at[j], to);
    }
}

CPU_INLINE void pack_format(sl_format_id f, const sl_matrix *w, int64_t row0, int64_t rows, uint8_t *tile,
                            void *scratch) {
    const int64_t blocks = w->cols / 32, size = record_bytes(f);
    for (int64_t g = 0; g < TILE_ROWS; g += PACK_ROWS) {
        int64_t row[PACK_ROWS];
        uint8_t *at[4];
        for (int r = 0; r < PACK_ROWS; r++) {
            /* The last row again where there are no more: its lanes are multiplied and not read. */
            row[r] = sl_min_i64(row0 + g + r, row0 + rows - 1);
        }
        for (int c = 0; c < 4; c++) {
            at[c] = tile + class_start(blocks, c) * size;
        }
        for (int64_t b = 0; b < blocks; b += 4) {
            int half = quad_is_half(f) ? (int)(b / 4 & 1) : 0;
            pack_quads(f, w, row, b, half, (int)sl_min_i64(4, blocks - b), at, g);
            for (int c = 0; c < 4; c++) {
                at[c] += size;
            }
        }
    }
}

/* ---- multiplying ---- */

typedef int32x4_t tile_i;
typedef float32x4_t tile_f;

CPU_INLINE tile_f tile_zero(void) {
    return vdupq_n_f32(0);
}
CPU_INLINE tile_f tile_set(float v) {
    return vdupq_n_f32(v);
}
CPU_INLINE tile_f tile_load(const float *p) {
    return vld1q_f32(p);
}
CPU_INLINE void tile_store(float *p, tile_f v) {
    vst1q_f32(p, v);
}
CPU_INLINE tile_f tile_add(tile_f a, tile_f b) {
    return vaddq_f32(a, b);
}
CPU_INLINE tile_f tile_mul(tile_f a, tile_f b) {
    return vmulq_f32(a, b);
}
CPU_INLINE tile_f tile_fma(tile_f a, tile_f b, tile_f c) {
    return vfmaq_f32(c, a, b);
}
CPU_INLINE tile_f tile_float(tile_i v) {
    return vcvtq_f32_s32(v);
}

CPU_INLINE tile_i tile_pairs(const int16_t *p, int32_t pair) {
    return pair_sums(vld1q_s16(p), vreinterpretq_s16_s32(vdupq_n_s32(pair)));
}

/* Columns 4 * (j + lane) .. + 3, for a constant lane. */
#define DOT_LANE(lane)                                                                                                 \
    do {                                                                                                               \
        int8x16_t w0 = vreinterpretq_s8_u8(vld1q_u8(t->code[j + lane][0]));                                            \
        int8x16_t w1 = vreinterpretq_s8_u8(vld1q_u8(t->code[j + lane][4]));                                            \
        _Pragma("GCC unroll 4") for (int a = 0; a < A; a++) {                                                          \
            acc[0][a] = vdotq_laneq_s32(acc[0][a], w0, v[a], lane);                                                    \
            acc[1][a] = vdotq_laneq_s32(acc[1][a], w1, v[a], lane);                                                    \
        }                                                                                                              \
    } while (0)

/* The 16 columns from 4 * j on, added to acc. */
CPU_INLINE void dot_sixteen(const record *t, int j, int A, const uint8_t *const x[], int64_t at,
                            tile_i acc[TILE_VECTORS][CPU_TILE_ACTS]) {
    int8x16_t v[CPU_TILE_ACTS_NEON];
#pragma GCC unroll 4
    for (int a = 0; a < A; a++) {
        v[a] = vreinterpretq_s8_u8(vld1q_u8(x[a] + at + 4 * j));
    }
    DOT_LANE(0);
    DOT_LANE(1);
    DOT_LANE(2);
    DOT_LANE(3);
}

CPU_INLINE void sums_q6_k(const record *t, int A, const uint8_t *const x[], const act_offsets *o, int64_t b,
                          tile_i acc[TILE_VECTORS][CPU_TILE_ACTS]) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        tile_i half[TILE_VECTORS][CPU_TILE_ACTS];
#pragma GCC unroll 4
        for (int a = 0; a < A; a++) {
            half[0][a] = half[1][a] = vdupq_n_s32(0);
        }
        dot_sixteen(t, 4 * h, A, x, o->q + 32 * b, half);
#pragma GCC unroll 2
        for (int v = 0; v < TILE_VECTORS; v++) {
            int32x4_t sub = vld1q_s32(t->u.sub[h] + TILE_LANES * v);
#pragma GCC unroll 4
            for (int a = 0; a < A; a++) {
                acc[v][a] = h == 0 ? vmulq_s32(half[v][a], sub) : vmlaq_s32(acc[v][a], half[v][a], sub);
            }
        }
    }
}

CPU_INLINE void tile_sums(sl_format_id f, const record *t, int A, const uint8_t *const x[], const act_offsets *o,
                          int64_t b, tile_i acc[TILE_VECTORS][CPU_TILE_ACTS]) {
    if (f == SL_Q6_K) { /* its codes are stored less their offset */
        sums_q6_k(t, A, x, o, b, acc);
        return;
    }
#pragma GCC unroll 4
    for (int a = 0; a < A; a++) {
        int32_t start = 0;
        if (f == SL_Q4_0 || f == SL_Q5_0) {
            start = int_at(x[a] + o->init + 4 * b);
        } else if (f == SL_AFFINE8) { /* codes less 128: the sum of activations 128 times, which is stored negated */
            start = -int_at(x[a] + o->init + 4 * b);
        }
        acc[0][a] = acc[1][a] = vdupq_n_s32(start);
    }
    dot_sixteen(t, 0, A, x, o->q + 32 * b, acc);
    dot_sixteen(t, 4, A, x, o->q + 32 * b, acc);
}

CPU_INLINE void tile_half(sl_format_id f, int h, const record *t, int A, const uint8_t *const x[], const act_offsets *o,
                          int64_t b, tile_i acc[TILE_VECTORS][CPU_TILE_ACTS]) {
#pragma GCC unroll 4
    for (int a = 0; a < A; a++) {
        acc[0][a] = acc[1][a] = vdupq_n_s32(0);
    }
    dot_sixteen(t, 4 * h, A, x, o->q + 32 * b, acc);
}

#include "cpu/cpu_tile_impl.h"

/* ---- by format and number of activations ---- */

PACK_ALL

void cpu_tile_pack_neon(const sl_matrix *w, int64_t row0, int64_t rows, void *tile, void *scratch) {
    packers[w->format](w, row0, rows, tile, scratch);
}

#define MULS(name, f) MUL_BODY(name, f) MUL(name, f, 1) MUL(name, f, 2) MUL(name, f, 3) MUL(name, f, 4)
#define NAMES(name)                                                                                                    \
    { mul_##name##_1, mul_##name##_2, mul_##name##_3, mul_##name##_4 }

MULS(q4_0, SL_Q4_0)
MULS(q5_0, SL_Q5_0)
MULS(q8_0, SL_Q8_0) /* signed codes */
MULS(q6_k, SL_Q6_K)
MULS(affine4, SL_AFFINE4)
MULS(affine8, SL_AFFINE8)
MULS(q2_k, SL_Q2_K)
MULS(nvfp4, SL_NVFP4)
MULS(biased, SL_Q4_1) /* every other format: codes without offset in column order, and a bias */

static tile_mul_fn *const multipliers[SL_FORMAT_COUNT][CPU_TILE_ACTS_NEON] = {
    [SL_Q4_0] = NAMES(q4_0),       [SL_Q4_1] = NAMES(biased),      [SL_Q5_0] = NAMES(q5_0),
    [SL_Q5_1] = NAMES(biased),     [SL_Q8_0] = NAMES(q8_0),        [SL_Q4_K] = NAMES(biased),
    [SL_Q5_K] = NAMES(biased),     [SL_Q6_K] = NAMES(q6_k),        [SL_AFFINE4] = NAMES(affine4),
    [SL_AFFINE8] = NAMES(affine8), [SL_AFFINE2] = NAMES(biased),   [SL_AFFINE3] = NAMES(biased),
    [SL_AFFINE5] = NAMES(biased),  [SL_AFFINE6] = NAMES(biased),   [SL_Q2_K] = NAMES(q2_k),
    [SL_Q3_K] = NAMES(q6_k),       [SL_IQ4_NL] = NAMES(q8_0),      [SL_IQ4_XS] = NAMES(q8_0),
    [SL_MXFP4] = NAMES(q8_0),      [SL_MXFP4_SPLIT] = NAMES(q8_0), [SL_TQ2_0] = NAMES(q8_0),
    [SL_IQ2_XXS] = NAMES(q8_0),    [SL_IQ2_XS] = NAMES(q6_k),      [SL_IQ2_S] = NAMES(q6_k),
    [SL_IQ3_XXS] = NAMES(q8_0),    [SL_IQ3_S] = NAMES(q8_0),       [SL_IQ1_S] = NAMES(q8_0),
    [SL_IQ1_M] = NAMES(q6_k),      [SL_NVFP4] = NAMES(nvfp4),      [SL_NVFP4_SPLIT] = NAMES(nvfp4),
    [SL_TQ1_0] = NAMES(q8_0),
};

void cpu_tile_mul_neon(const sl_matrix *w, const void *tile, const cpu_rows *in, int64_t i, int64_t acts, float *out,
                       cpu_ahead *ahead) {
    multipliers[w->format][acts - 1](tile, in, i, out, ahead);
}

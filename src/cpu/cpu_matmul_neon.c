/* NEON with dot products: activations to int8, and the product of a matrix with
 * one row of activations.
 *
 * A row is walked in quads (cpu_quad.h): 32 codes are two vectors of signed
 * bytes, each multiplied with 16 activations by one dot instruction; the four
 * sums of four blocks are added pairwise to one vector of four. */
#include "cpu/cpu_float_impl.h"
#include "cpu/cpu_neon.h"
#include "cpu/cpu_tile_neon.h"

/* Rows of activations that share the unpacked codes. */
enum { ACTS = 4 };

/* ---- activations ---- */

CPU_INLINE uint32_t block_amax(const float *x) {
    uint32x4_t m = vdupq_n_u32(0);
    for (int i = 0; i < 32; i += 4) {
        m = vmaxq_u32(m, vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + i)), vdupq_n_u32(0x7fffffff)));
    }
    return vmaxvq_u32(m);
}

/* 16 values to int8, nearest, ties to even. */
CPU_INLINE int8x16_t round_sixteen(const float *x, float scale) {
    int16x4_t v[4];
    for (int i = 0; i < 4; i++) {
        v[i] = vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), scale)));
    }
    return vcombine_s8(vmovn_s16(vcombine_s16(v[0], v[1])), vmovn_s16(vcombine_s16(v[2], v[3])));
}

/* One block of 32 values to its place. */
CPU_INLINE void quantize_block(const float *x, const cpu_act *out, int64_t at) {
    uint32_t amax = block_amax(x);
    float d = 0;
    int8x16_t lo = vdupq_n_s8(0), hi = lo;
    if (amax >= CPU_BITS_INFINITE) {
        d = quant_float_of(0x7fc00000);
    } else if (amax >= CPU_BITS_LEAST) {
        float inverse = 127.0f / quant_float_of(amax);
        d = quant_float_of(amax) / 127.0f;
        lo = round_sixteen(x, inverse);
        hi = round_sixteen(x + 16, inverse);
    }
    vst1q_s8((int8_t *)out->q + 32 * at, lo);
    vst1q_s8((int8_t *)out->q + 32 * at + 16, hi);
    vst1q_s8((int8_t *)out->even_odd + 32 * at, vuzp1q_s8(lo, hi));
    vst1q_s8((int8_t *)out->even_odd + 32 * at + 16, vuzp2q_s8(lo, hi));
    int32_t half0 = vaddlvq_s8(lo), half1 = vaddlvq_s8(hi), sum = half0 + half1;
    ((float *)out->d)[at] = d;
    ((float *)out->xs)[at] = d * (float)sum;
    ((int32_t *)out->neg8)[at] = -8 * sum;
    ((int32_t *)out->neg16)[at] = -16 * sum;
    ((int32_t *)out->neg128)[at] = -128 * sum;
    ((int32_t *)out->neg32)[2 * at] = -32 * half0;
    ((int32_t *)out->neg32)[2 * at + 1] = -32 * half1;
}

static void quantize_row(const float *x, int64_t cols, void *q) {
    cpu_act out = cpu_act_row(q, cols, 0);
    int64_t b = 0;
    for (; 32 * b + 32 <= cols; b++) {
        quantize_block(x + 32 * b, &out, b);
    }
    for (; b < cpu_act_blocks(cols); b++) {
        float rest[32] = {0};
        if (32 * b < cols) {
            memcpy(rest, x + 32 * b, (size_t)(cols - 32 * b) * sizeof *x);
        }
        quantize_block(rest, &out, b);
    }
}

/* ---- integers ---- */

/* What the integers of a quad take from the weights: shared by rows of activations. */
typedef struct quad_codes {
    codes block[4];
    uint64_t sub;     /* formats with halves: the eight scales, a byte each */
    int16x8_t minima; /* Q2_K */
} quad_codes;

CPU_INLINE quad_codes load_quad(sl_format_id f, const quad *q) {
    quad_codes c = {.sub = cpu_has_halves(f) ? quad_half_scales(f, q) : 0,
                    .minima = f == SL_Q2_K ? load_minima(q) : vdupq_n_s16(0)};
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        c.block[j] = load_codes(f, q, j);
    }
    return c;
}

/* Four integers whose sum is I_b of block j, but for constant offsets. */
CPU_INLINE int32x4_t block_sums(sl_format_id f, const quad_codes *c, int j, const int8_t *x) {
    const int32x4_t zero = vdupq_n_s32(0);
    int8x16_t lo = vreinterpretq_s8_u8(c->block[j].lo), hi = vreinterpretq_s8_u8(c->block[j].hi);
    if (!cpu_has_halves(f)) {
        return vdotq_s32(vdotq_s32(zero, lo, vld1q_s8(x)), hi, vld1q_s8(x + 16));
    }
    int32x4_t v = vmulq_n_s32(vdotq_s32(zero, lo, vld1q_s8(x)), (int8_t)(c->sub >> 16 * j));
    return vmlaq_n_s32(v, vdotq_s32(zero, hi, vld1q_s8(x + 16)), (int8_t)(c->sub >> (16 * j + 8)));
}

/* I_b of the four blocks from b on. */
CPU_INLINE int32x4_t quad_integers(sl_format_id f, const quad_codes *c, const cpu_act *a, int64_t b) {
    const int8_t *x = (f == SL_AFFINE4 ? a->even_odd : a->q) + 32 * b;
    int32x4_t v[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        v[j] = block_sums(f, c, j, x + 32 * j);
    }
    int32x4_t sum = vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]));
    if (quad_offsets(f, a)) {
        return vaddq_s32(sum, vld1q_s32(quad_offsets(f, a) + b));
    }
    return f == SL_AFFINE8 ? vsubq_s32(sum, vld1q_s32(a->neg128 + b)) : sum;
}

/* Signed codes: I_h of half h of the four blocks from b on. */
CPU_INLINE int32x4_t quad_half(const quad_codes *c, const cpu_act *a, int64_t b, int h) {
    int32x4_t v[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        int8x16_t w = vreinterpretq_s8_u8(h ? c->block[j].hi : c->block[j].lo);
        v[j] = vdotq_s32(vdupq_n_s32(0), w, vld1q_s8(a->q + 32 * (b + j) + 16 * h));
    }
    return vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]));
}

/* ---- the product ---- */

/* sum[k] += the quad from block b on times row k of n rows of activations. */
CPU_INLINE void add_quad(sl_format_id f, const sl_matrix *w, const quad *q, int64_t row, const cpu_act *a, int n,
                         int64_t b, float32x4_t *sum) {
    scales s = load_scales(f, w, q, row);
    quad_codes c = load_quad(f, q);
#pragma GCC unroll 4
    for (int k = 0; k < n; k++) {
        if (cpu_has_pairs(f)) {
            float32x4_t d = vld1q_f32(a[k].d + b);
            sum[k] = vfmaq_f32(sum[k], vmulq_f32(s.s, d), vcvtq_f32_s32(quad_half(&c, &a[k], b, 0)));
            sum[k] = vfmaq_f32(sum[k], vmulq_f32(s.m, d), vcvtq_f32_s32(quad_half(&c, &a[k], b, 1)));
            continue;
        }
        float32x4_t i = vcvtq_f32_s32(quad_integers(f, &c, &a[k], b));
        sum[k] = vfmaq_f32(sum[k], vmulq_f32(s.s, vld1q_f32(a[k].d + b)), i);
        sum[k] = cpu_has_bias(f) ? vfmaq_f32(sum[k], s.m, vld1q_f32(a[k].xs + b)) : sum[k];
        if (f == SL_Q2_K) {
            float32x4_t minima = vcvtq_f32_s32(pair_sums(c.minima, minus_half_sums(a[k].neg32 + 2 * b)));
            sum[k] = vfmaq_f32(sum[k], vmulq_f32(s.m, vld1q_f32(a[k].d + b)), minima);
        }
    }
}

/* The last one to three blocks: partial sums of blocks that do not exist stay
 * as they are. */
CPU_INLINE void add_rest(sl_format_id f, const sl_matrix *w, const uint8_t *p, int64_t row, const cpu_act *a, int n,
                         int64_t b, float32x4_t *sum) {
    static const uint32_t lane[4] = {0, 1, 2, 3};
    const int64_t blocks = w->cols / 32;
    uint32x4_t there = vcltq_u32(vld1q_u32(lane), vdupq_n_u32((uint32_t)(blocks - b)));
    quad q = quad_at(f, w, p, b, 0, blocks - 1);
    float32x4_t all[ACTS];
    memcpy(all, sum, (size_t)n * sizeof *sum);
    add_quad(f, w, &q, row, a, n, b, all);
    for (int k = 0; k < n; k++) {
        sum[k] = vbslq_f32(there, all[k], sum[k]);
    }
}

CPU_INLINE float fold(float32x4_t sum) {
    float32x2_t v = vadd_f32(vget_low_f32(sum), vget_high_f32(sum));
    return vget_lane_f32(v, 0) + vget_lane_f32(v, 1);
}

/* y[k * ldy] = row `row` of w times a[k], k < n. */
CPU_INLINE void dot_row(sl_format_id f, const sl_matrix *w, int64_t row, const cpu_act *a, int n, float *y,
                        int64_t ldy) {
    const uint8_t *p = w->part[0] + (uint64_t)row * w->row_bytes[0];
    const int64_t blocks = w->cols / 32, turn = 4 * quad_per_turn(f);
    float32x4_t sum[ACTS];
    int64_t b = 0;
#pragma GCC unroll 4
    for (int k = 0; k < n; k++) {
        sum[k] = vdupq_n_f32(0);
    }
    for (; b + turn <= blocks; b += turn) {
        quad_prefetch(f, p, b);
#pragma GCC unroll 2
        for (int h = 0; h < quad_per_turn(f); h++) {
            quad q = quad_at(f, w, p, b + 4 * h, h, b + turn);
            add_quad(f, w, &q, row, a, n, b + 4 * h, sum);
        }
    }
    if (!quad_is_half(f) && b < blocks) {
        add_rest(f, w, p, row, a, n, b, sum);
    }
#pragma GCC unroll 4
    for (int k = 0; k < n; k++) {
        y[k * ldy] = fold(sum[k]);
    }
}

/* n is 1 or ACTS. */
typedef void matvec_fn(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_act *a, int n, float *y, int64_t ldy);

#if defined(CPU_FEW_FUNCTIONS)
#define DOT_ROWS(f, w, row0, row1, a, n, y, ldy)                                                                       \
    for (int64_t r = row0; r < row1; r++) {                                                                            \
        dot_row(f, w, r, a, n, y + r - row0, ldy);                                                                     \
    }
#else
#define DOT_ROWS(f, w, row0, row1, a, n, y, ldy)                                                                       \
    for (int64_t r = row0; n == 1 && r < row1; r++) {                                                                  \
        dot_row(f, w, r, a, 1, y + r - row0, ldy);                                                                     \
    }                                                                                                                  \
    for (int64_t r = row0; n == ACTS && r < row1; r++) {                                                               \
        dot_row(f, w, r, a, ACTS, y + r - row0, ldy);                                                                  \
    }
#endif
#define MATVEC(name, f)                                                                                                \
    static void matvec_##name(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_act *a, int n, float *y,       \
                              int64_t ldy) {                                                                           \
        DOT_ROWS(f, w, row0, row1, a, n, y, ldy)                                                                       \
    }
MATVEC(q4_0, SL_Q4_0)
MATVEC(q4_1, SL_Q4_1)
MATVEC(q5_0, SL_Q5_0)
MATVEC(q5_1, SL_Q5_1)
MATVEC(q8_0, SL_Q8_0)
MATVEC(q4_k, SL_Q4_K)
MATVEC(q5_k, SL_Q5_K)
MATVEC(q6_k, SL_Q6_K)
MATVEC(affine4, SL_AFFINE4)
MATVEC(affine8, SL_AFFINE8)
MATVEC(affine2, SL_AFFINE2)
MATVEC(affine3, SL_AFFINE3)
MATVEC(affine5, SL_AFFINE5)
MATVEC(affine6, SL_AFFINE6)
MATVEC(q2_k, SL_Q2_K)
MATVEC(q3_k, SL_Q3_K)
MATVEC(iq4_nl, SL_IQ4_NL)
MATVEC(iq4_xs, SL_IQ4_XS)
MATVEC(mxfp4, SL_MXFP4)
MATVEC(mxfp4_split, SL_MXFP4_SPLIT)
MATVEC(nvfp4, SL_NVFP4)
MATVEC(nvfp4_split, SL_NVFP4_SPLIT)
MATVEC(tq1_0, SL_TQ1_0)
MATVEC(tq2_0, SL_TQ2_0)
MATVEC(iq2_xxs, SL_IQ2_XXS)
MATVEC(iq2_xs, SL_IQ2_XS)
MATVEC(iq2_s, SL_IQ2_S)
MATVEC(iq3_xxs, SL_IQ3_XXS)
MATVEC(iq3_s, SL_IQ3_S)
MATVEC(iq1_s, SL_IQ1_S)
MATVEC(iq1_m, SL_IQ1_M)

static matvec_fn *const matvecs[SL_FORMAT_COUNT] = {
    [SL_Q4_0] = matvec_q4_0,       [SL_Q4_1] = matvec_q4_1,
    [SL_Q5_0] = matvec_q5_0,       [SL_Q5_1] = matvec_q5_1,
    [SL_Q8_0] = matvec_q8_0,       [SL_Q4_K] = matvec_q4_k,
    [SL_Q5_K] = matvec_q5_k,       [SL_Q6_K] = matvec_q6_k,
    [SL_AFFINE4] = matvec_affine4, [SL_AFFINE8] = matvec_affine8,
    [SL_AFFINE2] = matvec_affine2, [SL_AFFINE3] = matvec_affine3,
    [SL_AFFINE5] = matvec_affine5, [SL_AFFINE6] = matvec_affine6,
    [SL_Q2_K] = matvec_q2_k,       [SL_Q3_K] = matvec_q3_k,
    [SL_IQ4_NL] = matvec_iq4_nl,   [SL_IQ4_XS] = matvec_iq4_xs,
    [SL_MXFP4] = matvec_mxfp4,     [SL_MXFP4_SPLIT] = matvec_mxfp4_split,
    [SL_TQ2_0] = matvec_tq2_0,     [SL_IQ2_XXS] = matvec_iq2_xxs,
    [SL_IQ2_XS] = matvec_iq2_xs,   [SL_IQ2_S] = matvec_iq2_s,
    [SL_IQ3_XXS] = matvec_iq3_xxs, [SL_IQ3_S] = matvec_iq3_s,
    [SL_IQ1_S] = matvec_iq1_s,     [SL_IQ1_M] = matvec_iq1_m,
    [SL_NVFP4] = matvec_nvfp4,     [SL_NVFP4_SPLIT] = matvec_nvfp4_split,
    [SL_TQ1_0] = matvec_tq1_0,
};

static void matvec(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_rows *in, int64_t i, float *y,
                   void *scratch) {
    cpu_act a = cpu_rows_act(in, i);
    matvecs[w->format](w, row0, row1, &a, 1, y, 0);
}

static int64_t matvec_many(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_rows *in, int64_t i, float *y,
                           int64_t ldy, void *scratch) {
    cpu_act a[ACTS];
    int n = in->n - i >= ACTS ? ACTS : 1;
    for (int k = 0; k < n; k++) {
        a[k] = cpu_rows_act(in, i + k);
    }
    matvecs[w->format](w, row0, row1, a, n, y, ldy);
    return n;
}

const cpu_matmul_isa cpu_matmul_neon = {
    .name = "neon",
    .quantize_row = quantize_row,
    .matvec = matvec,
    .matvec_many = matvec_many,
    .pack = cpu_tile_pack_neon,
    .mul = cpu_tile_mul_neon,
    .tile_rows = 8,
    .tile_acts = CPU_TILE_ACTS_NEON,
    .tile_from = 6,
    .matmul_float = cpu_matmul_float,
    .silu_mul = v16_silu_mul,
};

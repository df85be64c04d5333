/* cpu_neon: how the NEON kernels read codes and scales of every quantised format, by quads (cpu_quad.h). Private to
 * cpu_*_neon.c. */
#ifndef SL_CPU_NEON_H
#define SL_CPU_NEON_H

#include "cpu/cpu_grid.h"

#include <arm_neon.h>

/* ---- codes ---- */

typedef struct codes {
    uint8x16_t lo, hi; /* columns 0..15, 16..31 (AFFINE4: even, odd) */
} codes;

CPU_INLINE codes load_pair(const uint8_t *p) {
    return (codes){vld1q_u8(p), vld1q_u8(p + 16)};
}

CPU_INLINE codes nibbles(const uint8_t *p) {
    uint8x16_t v = vld1q_u8(p);
    return (codes){vandq_u8(v, vdupq_n_u8(15)), vshrq_n_u8(v, 4)};
}

CPU_INLINE codes either(codes a, codes b) {
    return (codes){vorrq_u8(a.lo, b.lo), vorrq_u8(a.hi, b.hi)};
}

CPU_INLINE codes xor_each(codes c, uint8_t bits) {
    return (codes){veorq_u8(c.lo, vdupq_n_u8(bits)), veorq_u8(c.hi, vdupq_n_u8(bits))};
}

/* Each byte shifted left by n, right where n < 0; then masked. */
CPU_INLINE codes shift_mask(codes c, int n, uint8_t mask) {
    int8x16_t by = vdupq_n_s8((int8_t)n);
    return (codes){vandq_u8(vshlq_u8(c.lo, by), vdupq_n_u8(mask)), vandq_u8(vshlq_u8(c.hi, by), vdupq_n_u8(mask))};
}

/* 16 where one of the 16 bits at p is set. */
CPU_INLINE uint8x16_t high_sixteen(const uint8_t *p) {
    const uint8x8_t bit = vcreate_u8(0x8040201008040201);
    uint8x16_t bytes = vcombine_u8(vdup_n_u8(p[0]), vdup_n_u8(p[1]));
    return vandq_u8(vtstq_u8(bytes, vcombine_u8(bit, bit)), vdupq_n_u8(16));
}

/* Bit i of the word at p is bit 4 of code i. */
CPU_INLINE codes high_word(const uint8_t *p) {
    return (codes){high_sixteen(p), high_sixteen(p + 2)};
}

CPU_INLINE codes codes_k(sl_format_id f, const uint8_t *p, int run) {
    codes low = load_pair(p + (f == SL_Q5_K ? 48 : 16) + 32 * (run / 2));
    codes c = shift_mask(low, -4 * (run & 1), 15);
    return f == SL_Q4_K ? c : either(c, shift_mask(load_pair(p + 16), 4 - run, 16));
}

/* Less 32. */
CPU_INLINE codes codes_q6_k(const uint8_t *p, int run) {
    codes c = shift_mask(load_pair(quad_q6_low(p, run)), -4 * (run >> 1 & 1), 15);
    c = either(c, shift_mask(load_pair(quad_q6_high(p, run)), 4 - 2 * (run & 3), 0x30));
    return (codes){vsubq_u8(c.lo, vdupq_n_u8(32)), vsubq_u8(c.hi, vdupq_n_u8(32))};
}

/* Nibbles in their order, low ones first. */
CPU_INLINE codes nibble_pairs(const uint8_t *p) {
    codes c = nibbles(p);
    return (codes){vzip1q_u8(c.lo, c.hi), vzip2q_u8(c.lo, c.hi)};
}

CPU_INLINE codes values_of(const int8_t value[16], codes c) {
    uint8x16_t table = vreinterpretq_u8_s8(vld1q_s8(value));
    return (codes){vqtbl1q_u8(table, c.lo), vqtbl1q_u8(table, c.hi)};
}

/* Q2_K: times the half's scale, 45 at most. */
CPU_INLINE codes codes_q2_k(const uint8_t *p, int run) {
    codes c = shift_mask(load_pair(p + 16 + 32 * (run / 4)), -2 * (run & 3), 3);
    return (codes){vmulq_u8(c.lo, vdupq_n_u8(p[2 * run] & 15)), vmulq_u8(c.hi, vdupq_n_u8(p[2 * run + 1] & 15))};
}

/* Less 4. */
CPU_INLINE codes codes_q3_k(const uint8_t *p, int run) {
    codes c = shift_mask(load_pair(p + 32 + 32 * (run / 4)), -2 * (run & 3), 3);
    c = either(c, shift_mask(load_pair(p), 2 - run, 4));
    return (codes){vsubq_u8(c.lo, vdupq_n_u8(4)), vsubq_u8(c.hi, vdupq_n_u8(4))};
}

/* Eight codes of a stream (low bits first) that begins at byte `base` of v: each lies in a window of 16 bits. */
#define STREAM_WINDOW(bits, base, i) (uint8_t)((base) + (bits) * (i) / 8), (uint8_t)((base) + (bits) * (i) / 8 + 1)
#define STREAM_RIGHT(bits, i)        (int16_t)(-((bits) * (i) % 8))

CPU_INLINE uint8x8_t stream_eight(int bits, int base, uint8x16_t v) {
    const uint8_t pick[16] = {STREAM_WINDOW(bits, base, 0), STREAM_WINDOW(bits, base, 1), STREAM_WINDOW(bits, base, 2),
                              STREAM_WINDOW(bits, base, 3), STREAM_WINDOW(bits, base, 4), STREAM_WINDOW(bits, base, 5),
                              STREAM_WINDOW(bits, base, 6), STREAM_WINDOW(bits, base, 7)};
    const int16_t right[8] = {STREAM_RIGHT(bits, 0), STREAM_RIGHT(bits, 1), STREAM_RIGHT(bits, 2),
                              STREAM_RIGHT(bits, 3), STREAM_RIGHT(bits, 4), STREAM_RIGHT(bits, 5),
                              STREAM_RIGHT(bits, 6), STREAM_RIGHT(bits, 7)};
    uint16x8_t windows = vreinterpretq_u16_u8(vqtbl1q_u8(v, vld1q_u8(pick)));
    return vand_u8(vmovn_u16(vshlq_u16(windows, vld1q_s16(right))), vdup_n_u8((uint8_t)((1 << bits) - 1)));
}

/* Codes of 2, 3, 5 or 6 bits: one stream of 4 * bits bytes. */
CPU_INLINE codes codes_stream(int bits, const uint8_t *p) {
    const int base = 2 * bits - (bits == 5 ? 4 : bits == 6 ? 8 : 0); /* of codes 16..31 in hi */
    uint8x16_t lo, hi;
    if (bits >= 5) {
        lo = vld1q_u8(p);
        hi = vld1q_u8(p + 2 * bits - base);
    } else {
        lo = hi = vcombine_u8(vld1_u8(p), bits == 3 ? vcreate_u8(quant_u32(p + 8)) : vdup_n_u8(0));
    }
    return (codes){vcombine_u8(stream_eight(bits, 0, lo), stream_eight(bits, bits, lo)),
                   vcombine_u8(stream_eight(bits, base, hi), stream_eight(bits, base + bits, hi))};
}

CPU_INLINE codes codes_tq2_0(const uint8_t *p, int run) {
    codes c = shift_mask(load_pair(p + 32 * (run / 4)), -2 * (run & 3), 3);
    return (codes){vsubq_u8(c.lo, vdupq_n_u8(1)), vsubq_u8(c.hi, vdupq_n_u8(1))};
}

/* NVFP4's 32 codes at p: of each 8 bytes the low nibbles are eight weights, the high ones the next eight. */
CPU_INLINE codes codes_nvfp4(const uint8_t *p) {
    codes c = nibbles(p);
    uint64x2_t lo = vreinterpretq_u64_u8(c.lo), hi = vreinterpretq_u64_u8(c.hi);
    return values_of(quant_e2m1_doubled,
                     (codes){vreinterpretq_u8_u64(vzip1q_u64(lo, hi)), vreinterpretq_u8_u64(vzip2q_u64(lo, hi))});
}

/* Digit `digit` of TQ1_0's bytes, less 1: byte times 3^digit modulo 256 is a fraction of 256, in thirds. */
CPU_INLINE uint8x16_t tq1_0_digits(uint8x16_t v, int digit) {
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    v = vmulq_u8(v, vdupq_n_u8(power[digit]));
    return vsubq_u8(vdupq_n_u8(255), vaddq_u8(vcgtq_u8(v, vdupq_n_u8(85)), vcgtq_u8(v, vdupq_n_u8(170))));
}

/* The last 16 weights are digits 0 to 3 of four bytes. */
CPU_INLINE uint8x16_t tq1_0_tail(const uint8_t *p) {
    static const uint8_t power[16] = {1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27};
    return vmulq_u8(vreinterpretq_u8_u32(vdupq_n_u32(quant_u32(p))), vld1q_u8(power));
}

CPU_INLINE codes codes_tq1_0(const uint8_t *p, int run) {
    if (run < 5) {
        return (codes){tq1_0_digits(vld1q_u8(p), run), tq1_0_digits(vld1q_u8(p + 16), run)};
    }
    uint8x16_t v = vld1q_u8(p + 32);
    return run < 7 ? (codes){tq1_0_digits(v, 2 * run - 10), tq1_0_digits(v, 2 * run - 9)}
                   : (codes){tq1_0_digits(v, 4), tq1_0_digits(tq1_0_tail(p + 48), 0)};
}

/* All ones where one of 16 bits is set. */
CPU_INLINE uint8x16_t byte_mask(uint32_t bits) {
    const uint8x8_t bit = vcreate_u8(0x8040201008040201);
    return vtstq_u8(vcombine_u8(vdup_n_u8((uint8_t)bits), vdup_n_u8((uint8_t)(bits >> 8))), vcombine_u8(bit, bit));
}

CPU_INLINE uint8x16_t two_rows(const uint64_t *rows) {
    return vcombine_u8(vcreate_u8(rows[0]), vcreate_u8(rows[1]));
}

CPU_INLINE uint8x16_t negate_where(uint8x16_t v, uint8x16_t minus) {
    return vsubq_u8(veorq_u8(v, minus), minus);
}

CPU_INLINE codes codes_grid(sl_format_id f, const uint8_t *p, int run) {
    grid_block g = grid_read(f, p, run);
    codes c = {two_rows(g.row), two_rows(g.row + 2)};
    if (grid_is_ternary(f)) {
        return (codes){vaddq_u8(vshlq_n_u8(c.lo, 3), two_rows(g.add)),
                       vaddq_u8(vshlq_n_u8(c.hi, 3), two_rows(g.add + 2))};
    }
    return (codes){negate_where(c.lo, byte_mask(g.signs)), negate_where(c.hi, byte_mask(g.signs >> 16))};
}

/* The 32 codes of block j, to be read as signed: less 32 for Q6_K, 4 for Q3_K, 128 for AFFINE8; times the half's scale
 * for Q2_K. */
CPU_INLINE codes load_codes(sl_format_id f, const quad *q, int j) {
    const uint8_t *p = q->p[j];
    switch (f) {
    case SL_Q4_0:
        return nibbles(p + 2);
    case SL_Q4_1:
        return nibbles(p + 4);
    case SL_Q5_0:
        return either(nibbles(p + 6), high_word(p + 2));
    case SL_Q5_1:
        return either(nibbles(p + 8), high_word(p + 4));
    case SL_Q8_0:
        return load_pair(p + 2);
    case SL_Q4_K:
    case SL_Q5_K:
        return codes_k(f, p, 4 * q->half + j);
    case SL_Q6_K:
        return codes_q6_k(p, 4 * q->half + j);
    case SL_AFFINE4:
        return nibbles(p);
    case SL_AFFINE8:
        return xor_each(load_pair(p), 0x80);
    case SL_Q2_K:
        return codes_q2_k(p, 4 * q->half + j);
    case SL_Q3_K:
        return codes_q3_k(p, 4 * q->half + j);
    case SL_IQ4_NL:
        return values_of(quant_iq4_values, nibbles(p + 2));
    case SL_IQ4_XS:
        return values_of(quant_iq4_values, nibbles(p + 8 + 16 * (4 * q->half + j)));
    case SL_MXFP4:
        return values_of(quant_e2m1_doubled, nibbles(p + 1));
    case SL_MXFP4_SPLIT:
        return values_of(quant_e2m1_doubled, nibble_pairs(p));
    case SL_NVFP4:
        return codes_nvfp4(p + 4 + 16 * (j & 1));
    case SL_NVFP4_SPLIT:
        return values_of(quant_e2m1_doubled, nibble_pairs(p));
    case SL_TQ1_0:
        return codes_tq1_0(p, 4 * q->half + j);
    case SL_TQ2_0:
        return codes_tq2_0(p, 4 * q->half + j);
    default:
        if (cpu_is_grid(f)) {
            return codes_grid(f, p, 4 * q->half + j);
        }
        return codes_stream(cpu_stream_bits(f), p);
    }
}

/* Q2_K: the minima of the quad's half blocks, four blocks of two. */
CPU_INLINE int16x8_t load_minima(const quad *q) {
    return vreinterpretq_s16_u16(vmovl_u8(vshr_n_u8(vcreate_u8(quad_q2_k_scales(q)), 4)));
}

/* The negated sums of activations of the half blocks of four blocks: -32 times each is at p. */
CPU_INLINE int16x8_t minus_half_sums(const int32_t *p) {
    return vcombine_s16(vmovn_s32(vshrq_n_s32(vld1q_s32(p), 5)), vmovn_s32(vshrq_n_s32(vld1q_s32(p + 4), 5)));
}

/* Sums of products of pairs. */
CPU_INLINE int32x4_t pair_sums(int16x8_t a, int16x8_t b) {
    return vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
}

/* ---- scales ---- */

typedef struct scales {
    float32x4_t s, m; /* m of Q2_K: dmin; of NVFP4: the second halves' scales */
} scales;

CPU_INLINE float32x4_t halves(uint64_t words) {
    return vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(words)));
}

CPU_INLINE float half_at(const uint8_t *p) {
    return vgetq_lane_f32(halves(quant_u16(p)), 0);
}

CPU_INLINE uint32x4_t wide_bytes(uint32_t bytes) {
    return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes))));
}

CPU_INLINE float32x4_t scaled_bytes(float scale, uint32_t bytes) {
    return vmulq_n_f32(vcvtq_f32_u32(wide_bytes(bytes)), scale);
}

/* quant_e8m0_half of four bytes; `split`: NaN for 255. */
CPU_INLINE float32x4_t four_e8m0(uint32_t bytes, bool split) {
    uint32x4_t e = wide_bytes(bytes);
    uint32x4_t usual = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
    uint32x4_t least = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
    uint32x4_t v = vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), least, usual);
    uint32x4_t none = vandq_u32(vceqq_u32(e, vdupq_n_u32(255)), vdupq_n_u32(split ? 0x7fc00000 : 0));
    return vreinterpretq_f32_u32(vorrq_u32(v, none));
}

/* Half of e4m3 scales that are 16-bit numbers; `split`: they have signs and NaN, else those bits mean what
 * quant_nvfp4_half says. */
CPU_INLINE float32x4_t four_e4m3_half(uint16x4_t v, bool split) {
    const uint16x4_t top = vdup_n_u16(0x7f);
    uint16x4_t h = vshl_n_u16(vand_u16(v, top), 7);
    if (split) {
        uint16x4_t nan = vceq_u16(vand_u16(v, top), top);
        h = vorr_u16(h, vshl_n_u16(vand_u16(v, vdup_n_u16(0x80)), 8));
        h = vorr_u16(h, vand_u16(nan, vdup_n_u16(0x7e00)));
    } else {
        h = vbic_u16(h, vceq_u16(v, top));
    }
    return vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(h)), 128.0f); /* of these bits: a 256th of the scale */
}

/* Of two bytes a block. */
CPU_INLINE scales four_pairs(uint64_t pairs, bool split) {
    uint16x4_t v = vcreate_u16(pairs);
    return (scales){four_e4m3_half(vand_u16(v, vdup_n_u16(0xff)), split), four_e4m3_half(vshr_n_u16(v, 8), split)};
}

CPU_INLINE float32x4_t scales_iq4_xs(const quad *q) {
    int32x4_t n = vsubq_s32(vreinterpretq_s32_u32(wide_bytes(quad_iq4_xs_scales(q))), vdupq_n_s32(32));
    return vmulq_n_f32(vcvtq_f32_s32(n), half_at(q->p[0]));
}

CPU_INLINE float32x4_t side_four(const sl_matrix *w, const quad *q, int part, int64_t row) {
    const uint8_t *p = w->part[part] + (uint64_t)row * w->row_bytes[part];
    float out[4];
    switch (w->side) {
    case SL_F16:
        return halves(quad_group_words(q, p));
    case SL_BF16:
        return vreinterpretq_f32_u32(vshll_n_u16(vcreate_u16(quad_group_words(q, p)), 16));
    default:
        quad_group_floats(q, p, out);
        return vld1q_f32(out);
    }
}

CPU_INLINE scales load_scales(sl_format_id f, const sl_matrix *w, const quad *q, int64_t row) {
    const float32x4_t none = vdupq_n_f32(0);
    switch (f) {
    case SL_Q4_0:
    case SL_Q5_0:
    case SL_Q8_0:
        return (scales){halves(quad_words(q, 0)), none};
    case SL_Q4_1:
    case SL_Q5_1:
        return (scales){halves(quad_words(q, 0)), halves(quad_words(q, 2))};
    case SL_Q6_K:
        return (scales){vdupq_n_f32(half_at(q->p[0] + 208)), none};
    case SL_Q4_K:
    case SL_Q5_K: {
        quad_k k = quad_k_scales(q);
        return (scales){scaled_bytes(half_at(q->p[0]), k.scale), vnegq_f32(scaled_bytes(half_at(q->p[0] + 2), k.min))};
    }
    case SL_Q2_K:
        return (scales){vdupq_n_f32(half_at(q->p[0] + 80)), vdupq_n_f32(half_at(q->p[0] + 82))};
    case SL_Q3_K:
        return (scales){vdupq_n_f32(half_at(q->p[0] + 108)), none};
    case SL_NVFP4:
        return four_pairs(quad_pairs(f, q, NULL), false);
    case SL_NVFP4_SPLIT:
        return four_pairs(quad_pairs(f, q, w->part[1] + (uint64_t)row * w->row_bytes[1]), true);
    case SL_TQ1_0:
        return (scales){vdupq_n_f32(half_at(q->p[0] + 52)), none};
    case SL_TQ2_0:
        return (scales){vdupq_n_f32(half_at(q->p[0] + 64)), none};
    case SL_IQ2_XS:
    case SL_IQ2_S:
    case SL_IQ1_M:
        return (scales){vdupq_n_f32(grid_unit(f, q->p[0])), none};
    case SL_IQ2_XXS:
    case SL_IQ3_XXS:
    case SL_IQ3_S:
    case SL_IQ1_S:
        return (scales){scaled_bytes(grid_unit(f, q->p[0]), grid_scales(f, q)), none};
    case SL_IQ4_NL:
        return (scales){halves(quad_words(q, 0)), none};
    case SL_IQ4_XS:
        return (scales){scales_iq4_xs(q), none};
    case SL_MXFP4:
        return (scales){four_e8m0(quad_bytes(q, 0), false), none};
    case SL_MXFP4_SPLIT:
        return (scales){four_e8m0(quad_group_bytes(q, w->part[1] + (uint64_t)row * w->row_bytes[1]), true), none};
    default:
        return (scales){side_four(w, q, 1, row), side_four(w, q, 2, row)};
    }
}

#endif

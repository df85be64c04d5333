/* cpu_neon: how the NEON kernels read codes and scales of every quantised format, by quads (cpu_quad.h). Private to
 * cpu_*_neon.c. */
#ifndef SL_CPU_NEON_H
#define SL_CPU_NEON_H

#include "cpu/cpu_quad.h"

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

/* The 32 codes of block j, to be read as signed: less 32 for Q6_K, less 128 for
 * AFFINE8. */
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
    default:
        return xor_each(load_pair(p), 0x80);
    }
}

/* ---- scales ---- */

typedef struct scales {
    float32x4_t s, m;
} scales;

CPU_INLINE float32x4_t halves(uint64_t words) {
    return vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(words)));
}

CPU_INLINE float half_at(const uint8_t *p) {
    return vgetq_lane_f32(halves(quant_u16(p)), 0);
}

CPU_INLINE float32x4_t scaled_bytes(float scale, uint32_t bytes) {
    uint32x4_t v = vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes))));
    return vmulq_n_f32(vcvtq_f32_u32(v), scale);
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
    default:
        return (scales){side_four(w, q, 1, row), side_four(w, q, 2, row)};
    }
}

#endif

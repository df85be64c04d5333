/* quant_bits: reading little-endian fields of blocks, whose bytes have no alignment. Private to quant and cpu. */
#ifndef SL_QUANT_BITS_H
#define SL_QUANT_BITS_H

#include "quant/quant.h"

#include <stdint.h>
#include <string.h>

static inline uint16_t quant_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint32_t quant_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float quant_f32(const uint8_t *p) {
    float v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float quant_float_of(uint32_t bits) {
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static inline uint32_t quant_bits_of(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* The 6-bit scale and minimum of sub-block j (0..7) of a Q4_K or Q5_K block; s is its 12 bytes of packed scales: the
 * low six bits of bytes 0..3 and 4..7 hold scales and minima of 0..3; for 4..7 the low four bits are in bytes 8..11,
 * the high two in bytes 0..7. */
static inline void quant_k_scale_min(const uint8_t *s, int j, uint8_t *scale, uint8_t *min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (uint8_t)((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4));
        *min = (uint8_t)((s[j + 4] >> 4) | ((s[j] >> 6) << 4));
    }
}

/* The scale of half run j (0..15) of a Q3_K block, -32..31; s is its 12 bytes: the low four bits are in the low (j < 8)
 * or high half of byte j % 8, the high two are bits 2 * (j / 4).. of byte 8 + j % 4. */
static inline int quant_q3_k_scale(const uint8_t *s, int j) {
    return ((s[j & 7] >> (j < 8 ? 0 : 4) & 15) | (s[8 + (j & 3)] >> 2 * (j / 4) & 3) << 4) - 32;
}

/* The scale of sub-block j (0..7) of an IQ4_XS block, -32..31; p is the block: d f16, u16 of high two bits, 4 bytes of
 * low four bits. */
static inline int quant_iq4_xs_scale(const uint8_t *p, int j) {
    return ((p[4 + j / 2] >> 4 * (j & 1) & 15) | (quant_u16(p + 2) >> 2 * j & 3) << 4) - 32;
}

/* 2^(e - 128): half of an e8m0 scale, as GGUF reads it (for doubled codes). */
static inline float quant_e8m0_half(uint8_t e) {
    return quant_float_of(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

/* 2^(e - 127); 255 is NaN. */
static inline float quant_e8m0(uint8_t e) {
    return quant_float_of(e == 0 ? 0x00400000u : e == 255 ? 0x7fc00000u : (uint32_t)e << 23);
}

/* e4m3 without infinities: 0x7f and 0xff are NaN. */
static inline float quant_e4m3(uint8_t v) {
    uint32_t sign = (uint32_t)(v & 0x80) << 24, a = v & 0x7f;
    if (a < 8) { /* subnormal or zero: exact */
        return quant_float_of(sign | quant_bits_of((float)a * 0x1p-9f));
    }
    return quant_float_of(sign | (a == 0x7f ? 0x7fc00000u : (a << 20) + (120u << 23)));
}

/* Half of a scale of GGUF's NVFP4 (for doubled codes): e4m3 without sign, 0x7f is zero. */
static inline float quant_nvfp4_half(uint8_t v) {
    return (v & 0x7f) == 0x7f ? (v == 0x7f ? 0 : 240) : quant_e4m3(v & 0x7f) * 0.5f;
}

/* Element `index` of a row of part 1 or 2, of type m->side. */
static inline float quant_side_at(const sl_matrix *m, int part, int64_t part_row, int64_t index) {
    const uint8_t *p = m->part[part] + (uint64_t)part_row * m->row_bytes[part];
    switch (m->side) {
    case SL_F16:
        return sl_f16_to_f32(quant_u16(p + 2 * index));
    case SL_BF16:
        return sl_bf16_to_f32(quant_u16(p + 2 * index));
    default:
        return quant_f32(p + 4 * index);
    }
}

/* The row of scales that row `row` of an FP8 matrix has, and its scale at a column. */
static inline int64_t quant_fp8_scale_row(const sl_matrix *m, int64_t row) {
    return (m->row_in_block + row) / m->group;
}

static inline float quant_fp8_scale(const sl_matrix *m, int64_t row, int64_t col) {
    return quant_side_at(m, 1, quant_fp8_scale_row(m, row), col / m->group);
}

/* Eight codes of b bits, b bytes: code k is v >> b * k, for MLX packs all its widths as one stream, low bits first. */
static inline uint64_t quant_eight_codes(const uint8_t *p, int b) {
    uint64_t v = 0;
    memcpy(&v, p, (size_t)b);
    return v;
}

/* IQ4_NL's and IQ4_XS's values of a code. */
static const int8_t quant_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* Twice the value of an e2m1 code (MXFP4). */
static const int8_t quant_e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

#endif

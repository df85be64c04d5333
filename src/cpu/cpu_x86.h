/* cpu_x86: how AVX2 and AVX-512 kernels alike read the codes and scales of the formats that came after the first ones,
 * by quads (cpu_quad.h). Private to cpu_*_avx2.c and cpu_*_avx512.c. */
#ifndef SL_CPU_X86_H
#define SL_CPU_X86_H

#include "cpu/cpu_grid.h"

#include <immintrin.h>

CPU_INLINE __m256i load256(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}

CPU_INLINE __m128i load128(const void *p) {
    return _mm_loadu_si128((const __m128i *)p);
}

/* ---- codes ---- */

/* 16 packed bytes: low nibbles in the low half. */
CPU_INLINE __m256i nibbles256(const uint8_t *p) {
    __m128i v = load128(p);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(v, 4), v), _mm256_set1_epi8(15));
}

/* The same in the order of the nibbles, low ones first. */
CPU_INLINE __m256i nibble_pairs(const uint8_t *p) {
    __m256i v = _mm256_cvtepu8_epi16(load128(p));
    return _mm256_and_si256(_mm256_or_si256(v, _mm256_slli_epi16(v, 4)), _mm256_set1_epi8(15));
}

CPU_INLINE __m256i values_of(const int8_t value[16], __m256i codes) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(value)), codes);
}

/* Q2_K: two bits times the half's scale, 45 at most: 16-bit products of two codes do not carry. */
CPU_INLINE __m256i codes_q2_k(const uint8_t *p, int run) {
    const __m256i each = _mm256_set_m128i(_mm_set1_epi16((short)0x8001), _mm_set1_epi16((short)0x8000));
    __m256i v = _mm256_srli_epi16(load256(p + 16 + 32 * (run / 4)), 2 * (run & 3));
    __m256i scale = _mm256_and_si256(_mm256_set1_epi16((short)quant_u16(p + 2 * run)), _mm256_set1_epi8(15));
    return _mm256_mullo_epi16(_mm256_and_si256(v, _mm256_set1_epi8(3)), _mm256_shuffle_epi8(scale, each));
}

/* Q3_K: plus 32, as Q6_K's. */
CPU_INLINE __m256i codes_q3_k(const uint8_t *p, int run) {
    __m256i low = _mm256_srli_epi16(load256(p + 32 + 32 * (run / 4)), 2 * (run & 3)), high = load256(p);
    high = run < 2 ? _mm256_slli_epi16(high, 2 - run) : _mm256_srli_epi16(high, run - 2);
    low = _mm256_and_si256(low, _mm256_set1_epi8(3));
    high = _mm256_and_si256(high, _mm256_set1_epi8(4));
    return _mm256_add_epi8(_mm256_or_si256(low, high), _mm256_set1_epi8(28));
}

/* Codes of 2, 3, 5 or 6 bits, one stream of 4 * bits bytes, low bits first. Each code lies in two bytes at most, a
 * window of 16 bits, which is shifted left so that the code begins at bit 8: odd codes stay there. */
#define WINDOW(bits, base, i) (char)((base) + (bits) * (i) / 8), (char)((base) + (bits) * (i) / 8 + 1)
#define WINDOWS(bits, base, i)                                                                                         \
    WINDOW(bits, base, i), WINDOW(bits, base, (i) + 2), WINDOW(bits, base, (i) + 4), WINDOW(bits, base, (i) + 6),      \
        WINDOW(bits, base, (i) + 8), WINDOW(bits, base, (i) + 10), WINDOW(bits, base, (i) + 12),                       \
        WINDOW(bits, base, (i) + 14)
#define SHIFT(bits, i) (short)(1 << (8 - (bits) * (i) % 8))
#define SHIFTS(bits, i)                                                                                                \
    SHIFT(bits, i), SHIFT(bits, (i) + 2), SHIFT(bits, (i) + 4), SHIFT(bits, (i) + 6), SHIFT(bits, (i) + 8),            \
        SHIFT(bits, (i) + 10), SHIFT(bits, (i) + 12), SHIFT(bits, (i) + 14)

CPU_INLINE __m256i codes_stream(int bits, const uint8_t *p) {
    __m128i lo, hi; /* codes 0..15 from byte 0 of lo, 16..31 from byte `base` of hi */
    const int base = 2 * bits - (bits == 5 ? 4 : bits == 6 ? 8 : 0);
    if (bits >= 5) {
        lo = load128(p);
        hi = load128(p + 2 * bits - base);
    } else {
        lo = _mm_loadl_epi64((const __m128i *)p);
        lo = bits == 3 ? _mm_insert_epi32(lo, (int)quant_u32(p + 8), 2) : lo;
        hi = lo;
    }
    __m256i v = _mm256_set_m128i(hi, lo);
    const __m256i even = _mm256_setr_epi8(WINDOWS(bits, 0, 0), WINDOWS(bits, base, 0));
    const __m256i odd = _mm256_setr_epi8(WINDOWS(bits, 0, 1), WINDOWS(bits, base, 1));
    __m256i e = _mm256_mullo_epi16(_mm256_shuffle_epi8(v, even), _mm256_setr_epi16(SHIFTS(bits, 0), SHIFTS(bits, 0)));
    __m256i o = _mm256_mullo_epi16(_mm256_shuffle_epi8(v, odd), _mm256_setr_epi16(SHIFTS(bits, 1), SHIFTS(bits, 1)));
    __m256i both = _mm256_or_si256(_mm256_srli_epi16(e, 8), _mm256_and_si256(o, _mm256_set1_epi16((short)0xff00)));
    return _mm256_and_si256(both, _mm256_set1_epi8((char)((1 << bits) - 1)));
}

CPU_INLINE __m256i codes_tq2_0(const uint8_t *p, int run) {
    __m256i v = _mm256_srli_epi16(load256(p + 32 * (run / 4)), 2 * (run & 3));
    return _mm256_sub_epi8(_mm256_and_si256(v, _mm256_set1_epi8(3)), _mm256_set1_epi8(1));
}

/* NVFP4's 32 codes at p: of each 8 bytes the low nibbles are eight weights, the high ones the next eight. */
CPU_INLINE __m256i codes_nvfp4(const uint8_t *p) {
    __m256i v = _mm256_permute4x64_epi64(_mm256_castsi128_si256(load128(p)), 0x50); /* each 8 bytes twice */
    v = _mm256_blend_epi32(v, _mm256_srli_epi16(v, 4), 0xcc);
    return values_of(quant_e2m1_doubled, _mm256_and_si256(v, _mm256_set1_epi8(15)));
}

/* Digit `digit` of TQ1_0's bytes, less 1: byte times 3^digit modulo 256 is a fraction of 256, in thirds. */
CPU_INLINE __m256i tq1_0_digits(__m256i v, int digit) {
    for (int i = 0; i < digit; i++) {
        v = _mm256_add_epi8(v, _mm256_add_epi8(v, v));
    }
    const __m256i sign = _mm256_set1_epi8((char)0x80);
    v = _mm256_xor_si256(v, sign);
    __m256i above = _mm256_add_epi8(_mm256_cmpgt_epi8(v, _mm256_set1_epi8(85 - 128)),
                                    _mm256_cmpgt_epi8(v, _mm256_set1_epi8(170 - 128)));
    return _mm256_sub_epi8(_mm256_set1_epi8(-1), above);
}

/* A digit of 16 bytes, then another one. */
CPU_INLINE __m256i tq1_0_pair(__m128i lo, int lo_digit, __m128i hi, int hi_digit) {
    return _mm256_permute2x128_si256(tq1_0_digits(_mm256_castsi128_si256(lo), lo_digit),
                                     tq1_0_digits(_mm256_castsi128_si256(hi), hi_digit), 0x20);
}

/* The last 16 weights are digits 0 to 3 of four bytes. */
CPU_INLINE __m128i tq1_0_tail(const uint8_t *p) {
    uint32_t v = quant_u32(p), each[4];
    for (int i = 0; i < 4; i++) {
        each[i] = v;
        uint32_t even = (v & 0x00ff00ff) * 3 & 0x00ff00ff, odd = (v >> 8 & 0x00ff00ff) * 3 & 0x00ff00ff;
        v = even | odd << 8;
    }
    return _mm_setr_epi32((int)each[0], (int)each[1], (int)each[2], (int)each[3]);
}

CPU_INLINE __m256i codes_tq1_0(const uint8_t *p, int run) {
    if (run < 5) {
        return tq1_0_digits(load256(p), run);
    }
    __m128i v = load128(p + 32);
    return run < 7 ? tq1_0_pair(v, 2 * run - 10, v, 2 * run - 9) : tq1_0_pair(v, 4, tq1_0_tail(p + 48), 0);
}

/* All ones where bit i of `bits` is set. */
CPU_INLINE __m256i byte_mask(uint32_t bits) {
    const __m256i pick = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), pick);
    return _mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit);
}

CPU_INLINE __m256i codes_grid(sl_format_id f, const uint8_t *p, int run) {
    grid_block g = grid_read(f, p, run);
    __m256i v = _mm256_setr_epi64x((int64_t)g.row[0], (int64_t)g.row[1], (int64_t)g.row[2], (int64_t)g.row[3]);
    if (grid_is_ternary(f)) {
        __m256i add = _mm256_setr_epi64x((int64_t)g.add[0], (int64_t)g.add[1], (int64_t)g.add[2], (int64_t)g.add[3]);
        v = _mm256_add_epi8(_mm256_and_si256(_mm256_slli_epi16(v, 3), _mm256_set1_epi8((char)0xf8)), add);
    } else {
        __m256i minus = byte_mask(g.signs);
        v = _mm256_sub_epi8(_mm256_xor_si256(v, minus), minus);
    }
    return cpu_has_halves(f) ? _mm256_add_epi8(v, _mm256_set1_epi8(64)) : v;
}

/* The 32 codes of block j, in the order of columns: signed bytes where cpu_is_signed; unsigned else: plus 32 for Q3_K
 * and 64 for grids, times the half's scale for Q2_K. */
CPU_INLINE __m256i unpack_codes(sl_format_id f, const quad *q, int j) {
    const uint8_t *p = q->p[j];
    switch (f) {
    case SL_Q2_K:
        return codes_q2_k(p, 4 * q->half + j);
    case SL_Q3_K:
        return codes_q3_k(p, 4 * q->half + j);
    case SL_IQ4_NL:
        return values_of(quant_iq4_values, nibbles256(p + 2));
    case SL_IQ4_XS:
        return values_of(quant_iq4_values, nibbles256(p + 8 + 16 * (4 * q->half + j)));
    case SL_MXFP4:
        return values_of(quant_e2m1_doubled, nibbles256(p + 1));
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

/* What codes of formats with halves have been raised by, as a power of two times what cpu_act.neg32 takes off. */
CPU_INLINE int raised_by(sl_format_id f) {
    return cpu_is_grid(f) ? 1 : 0;
}

/* Q2_K: the minima of the quad's half blocks, 16 bits each, four blocks of two. */
CPU_INLINE __m128i unpack_minima(const quad *q) {
    __m128i v = _mm_srli_epi16(_mm_cvtsi64_si128((int64_t)quad_q2_k_scales(q)), 4);
    return _mm_cvtepu8_epi16(_mm_and_si128(v, _mm_set1_epi8(15)));
}

/* The negated sums of activations of the half blocks of four blocks, 16 bits each: -32 times each is at p. */
CPU_INLINE __m128i minus_half_sums(const int32_t *p) {
    return _mm_packs_epi32(_mm_srai_epi32(load128(p), 5), _mm_srai_epi32(load128(p + 4), 5));
}

/* ---- scales of four blocks ---- */

typedef struct scales4 {
    __m128 s, m; /* m of NVFP4: the second halves' scales */
} scales4;

CPU_INLINE __m128 four_halves(uint64_t words) {
    return _mm_cvtph_ps(_mm_cvtsi64_si128((int64_t)words));
}

CPU_INLINE __m128 half_over(const uint8_t *p) {
    return _mm_set1_ps(_cvtsh_ss(quant_u16(p)));
}

/* quant_e8m0_half of four bytes. */
CPU_INLINE __m128 four_e8m0(uint32_t bytes) {
    __m128i e = _mm_cvtepu8_epi32(_mm_cvtsi32_si128((int)bytes));
    __m128i usual = _mm_slli_epi32(_mm_sub_epi32(e, _mm_set1_epi32(1)), 23);
    __m128i least = _mm_sllv_epi32(_mm_set1_epi32(0x00200000), e);
    return _mm_castsi128_ps(_mm_blendv_epi8(least, usual, _mm_cmpgt_epi32(e, _mm_set1_epi32(1))));
}

/* The same, but NaN for 255. */
CPU_INLINE __m128 four_e8m0_split(uint32_t bytes) {
    __m128i e = _mm_cvtepu8_epi32(_mm_cvtsi32_si128((int)bytes));
    __m128i none = _mm_cmpeq_epi32(e, _mm_set1_epi32(255));
    return _mm_or_ps(four_e8m0(bytes), _mm_castsi128_ps(_mm_and_si128(none, _mm_set1_epi32(0x7fc00000))));
}

/* Half of e4m3 scales that are 16-bit numbers; `split`: they have signs and NaN, else those bits mean what
 * quant_nvfp4_half says. */
CPU_INLINE __m128 four_e4m3_half(__m128i v, bool split) {
    __m128i h = _mm_slli_epi16(_mm_and_si128(v, _mm_set1_epi16(0x7f)), 7), top = _mm_set1_epi16(0x7f);
    if (split) {
        __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(v, top), top);
        h = _mm_or_si128(h, _mm_slli_epi16(_mm_and_si128(v, _mm_set1_epi16(0x80)), 8));
        h = _mm_or_si128(h, _mm_and_si128(nan, _mm_set1_epi16(0x7e00)));
    } else {
        h = _mm_andnot_si128(_mm_cmpeq_epi16(v, top), h);
    }
    return _mm_mul_ps(_mm_cvtph_ps(h), _mm_set1_ps(128.0f)); /* halves of these bits are a 256th of the scale */
}

/* Of two bytes a block. */
CPU_INLINE scales4 four_pairs(uint64_t pairs, bool split) {
    __m128i v = _mm_cvtsi64_si128((int64_t)pairs);
    return (scales4){four_e4m3_half(_mm_and_si128(v, _mm_set1_epi16(0xff)), split),
                     four_e4m3_half(_mm_srli_epi16(v, 8), split)};
}

/* Of formats without arrays of scales; of Q2_K m is dmin. */
CPU_INLINE scales4 unpack_scales(sl_format_id f, const quad *q) {
    switch (f) {
    case SL_Q2_K:
        return (scales4){half_over(q->p[0] + 80), half_over(q->p[0] + 82)};
    case SL_Q3_K:
        return (scales4){.s = half_over(q->p[0] + 108)};
    case SL_IQ4_NL:
        return (scales4){.s = four_halves(quad_words(q, 0))};
    case SL_MXFP4:
        return (scales4){.s = four_e8m0(quad_bytes(q, 0))};
    case SL_NVFP4:
        return four_pairs(quad_pairs(f, q, NULL), false);
    case SL_TQ1_0:
        return (scales4){.s = half_over(q->p[0] + 52)};
    case SL_TQ2_0:
        return (scales4){.s = half_over(q->p[0] + 64)};
    case SL_IQ2_XS:
    case SL_IQ2_S:
    case SL_IQ1_M:
        return (scales4){.s = _mm_set1_ps(grid_unit(f, q->p[0]))};
    case SL_IQ2_XXS:
    case SL_IQ3_XXS:
    case SL_IQ3_S:
    case SL_IQ1_S: {
        __m128i n = _mm_cvtepu8_epi32(_mm_cvtsi32_si128((int)grid_scales(f, q)));
        return (scales4){.s = _mm_mul_ps(_mm_set1_ps(grid_unit(f, q->p[0])), _mm_cvtepi32_ps(n))};
    }
    default: { /* IQ4_XS */
        __m128i v = _mm_cvtepu8_epi32(_mm_cvtsi32_si128((int)quad_iq4_xs_scales(q)));
        __m128 n = _mm_cvtepi32_ps(_mm_sub_epi32(v, _mm_set1_epi32(32)));
        return (scales4){.s = _mm_mul_ps(half_over(q->p[0]), n)};
    }
    }
}

#endif

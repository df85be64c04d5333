/* cpu_grid_avx512: codes of the formats whose codes choose rows of a grid (IQ1 to IQ3), many at a time. Private to
 * cpu_*_avx512.c.
 *
 * A row of a grid has few values, so that all of it fits 16 bits (quant_*_codes), and 64 rows a pair of vectors: one
 * permutation looks 32 rows up among 64, and masks choose between such results by the upper bits of the index. The two
 * or three bits of each weight are then spread to bytes and become values by one more permutation. */
#ifndef SL_CPU_GRID_AVX512_H
#define SL_CPU_GRID_AVX512_H

#include "cpu/cpu_x86.h"

typedef struct codes {
    __m512i lo, hi;
} codes;

CPU_INLINE __m512i load512(const void *p) {
    return _mm512_loadu_si512(p);
}

#define BYTE_RUN(a)                                                                                                    \
    (a), (a) + 1, (a) + 2, (a) + 3, (a) + 4, (a) + 5, (a) + 6, (a) + 7, (a) + 8, (a) + 9, (a) + 10, (a) + 11,          \
        (a) + 12, (a) + 13, (a) + 14, (a) + 15

/* ---- looking up: word i of the result is table[word i of the index] ---- */

CPU_INLINE __mmask32 index_bit(__m512i index, int bit) {
    return _mm512_test_epi16_mask(index, _mm512_set1_epi16((short)(1 << bit)));
}

CPU_INLINE __m512i rows_128(const uint16_t *table, __m512i index) {
    __m512i a = _mm512_permutex2var_epi16(load512(table), index, load512(table + 32));
    __m512i b = _mm512_permutex2var_epi16(load512(table + 64), index, load512(table + 96));
    return _mm512_mask_blend_epi16(index_bit(index, 6), a, b);
}

CPU_INLINE __m512i rows_256(const uint16_t *table, __m512i index) {
    return _mm512_mask_blend_epi16(index_bit(index, 7), rows_128(table, index), rows_128(table + 128, index));
}

CPU_INLINE __m512i rows_512(const uint16_t *table, __m512i index) {
    return _mm512_mask_blend_epi16(index_bit(index, 8), rows_256(table, index), rows_256(table + 256, index));
}

CPU_INLINE __m512i rows_1024(const uint16_t *table, __m512i index) {
    return _mm512_mask_blend_epi16(index_bit(index, 9), rows_512(table, index), rows_512(table + 512, index));
}

CPU_INLINE __m512i rows_2048(const uint16_t *table, __m512i index) {
    return _mm512_mask_blend_epi16(index_bit(index, 10), rows_1024(table, index), rows_1024(table + 1024, index));
}

/* ---- indices ---- */

/* Rows have eight weights, 32 of them in 256. */
CPU_INLINE bool grid_has_eights(sl_format_id f) {
    return cpu_is_grid(f) && f != SL_IQ3_XXS && f != SL_IQ3_S;
}

/* Bytes at p as words, with `above` over them. */
CPU_INLINE __m512i index_words(const uint8_t *p, __m512i above) {
    return _mm512_or_si512(_mm512_cvtepu8_epi16(load256(p)), _mm512_slli_epi16(above, 8));
}

/* 32 words of the lowest `bits` bits at `first + step * i` of the 64 bits of high. */
CPU_INLINE __m512i bit_fields(__m256i high, __m256i at, int bits) {
    __m256i v = _mm256_multishift_epi64_epi8(at, high);
    return _mm512_cvtepu8_epi16(_mm256_and_si256(v, _mm256_set1_epi8((char)((1 << bits) - 1))));
}

#define EVERY(a, n)                                                                                                    \
    (char)(a), (char)((a) + (n)), (char)((a) + 2 * (n)), (char)((a) + 3 * (n)), (char)((a) + 4 * (n)),                 \
        (char)((a) + 5 * (n)), (char)((a) + 6 * (n)), (char)((a) + 7 * (n))

CPU_INLINE __m256i over_quads(uint64_t v) {
    return _mm256_set1_epi64x((int64_t)v);
}

CPU_INLINE uint64_t u64_at(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* IQ1_S: bits 0..2, 3..5, 6..8 and 9..11 of the 16 of each run. */
CPU_INLINE __m512i iq1_s_high(const uint8_t *p) {
    const __m256i at = _mm256_set1_epi64x(0x1916131009060300);
    const __m256i each = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    __m256i v = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(load128(p + 34)), each);
    return bit_fields(v, at, 3);
}

/* Codes of the 32 rows of the 256 weights at p, a word each. Layouts: quant_dequantize_grid.c. */
CPU_INLINE __m512i grid_eights(sl_format_id f, const uint8_t *p) {
    const __m256i twos = _mm256_setr_epi8(EVERY(0, 2), EVERY(16, 2), EVERY(32, 2), EVERY(48, 2));
    const __m256i fours = _mm256_setr_epi8(EVERY(0, 4), EVERY(32, 4), EVERY(0, 4), EVERY(32, 4));
    switch (f) {
    case SL_IQ2_XXS: {
        const __m512i first = _mm512_castsi256_si512(_mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
        __m512i bytes = _mm512_permutexvar_epi32(first, load512(p + 2));
        return rows_256(quant_iq2xxs_codes, _mm512_cvtepu8_epi16(_mm512_castsi512_si256(bytes)));
    }
    case SL_IQ2_XS:
        return rows_512(quant_iq2xs_codes, load512(p + 2));
    case SL_IQ2_S:
        return rows_1024(quant_iq2s_codes, index_words(p + 2, bit_fields(over_quads(u64_at(p + 66)), twos, 2)));
    case SL_IQ1_S:
        return rows_2048(quant_iq1s_codes, index_words(p + 2, iq1_s_high(p)));
    default: { /* IQ1_M */
        uint64_t a = u64_at(p + 32), b = u64_at(p + 40);
        __m256i high = _mm256_setr_epi64x((int64_t)a, (int64_t)a, (int64_t)b, (int64_t)b);
        return rows_2048(quant_iq1s_codes, index_words(p, bit_fields(high, fours, 3)));
    }
    }
}

/* IQ3: rows have four weights, 32 of them in a step. */
CPU_INLINE __m512i grid_fours(sl_format_id f, const uint8_t *p, int step) {
    __m512i index = _mm512_cvtepu8_epi16(load256(p + 2 + 32 * step));
    if (f == SL_IQ3_XXS) {
        return rows_256(quant_iq3xxs_codes, index);
    }
    const __mmask32 high = quant_u32(p + 66 + 4 * step);
    return rows_512(quant_iq3s_codes, _mm512_or_si512(index, _mm512_maskz_set1_epi16(high, 256)));
}

/* ---- signs ---- */

/* Eight signs from the lower seven bits of each byte. */
CPU_INLINE __m512i all_eight(__m512i sevens) {
    return _mm512_permutex2var_epi8(load512(quant_iq_signs), sevens, load512(quant_iq_signs + 64));
}

/* Signs of the 16 times eight weights of a step, a byte each, the k-th at byte `at_signs(f, step, k)`. */
CPU_INLINE __m512i grid_sign_bytes(sl_format_id f, const uint8_t *p, int step) {
    const __m512i high = _mm512_set1_epi64(0x3d362f28352e2720), low = _mm512_set1_epi64(0x150e0700150e0700);
    switch (f) {
    case SL_IQ2_XXS: /* the upper 32 bits of 64 */
        return all_eight(_mm512_multishift_epi64_epi8(high, load512(p + 2)));
    case SL_IQ2_XS:
        return all_eight(_mm512_srli_epi16(load512(p + 2), 9));
    case SL_IQ2_S:
        return _mm512_castsi256_si512(load256(p + 34));
    case SL_IQ3_XXS:
        return all_eight(_mm512_multishift_epi64_epi8(low, _mm512_cvtepu32_epi64(load256(p + 66))));
    default: /* IQ3_S */
        return _mm512_castsi256_si512(load256(p + 74));
    }
}

CPU_INLINE int at_signs(sl_format_id f, int step, int k) {
    const int group = 16 * step + k;
    return f == SL_IQ2_XS ? 2 * group : f == SL_IQ2_XXS || f == SL_IQ3_XXS ? 8 * (group / 4) + group % 4 : group;
}

#define EIGHT_TIMES(a) (char)(a), (char)(a), (char)(a), (char)(a), (char)(a), (char)(a), (char)(a), (char)(a)

/* Which of the step's 64 weights of lo (part 0) or hi are negative. */
CPU_INLINE __mmask64 grid_minus(sl_format_id f, __m512i signs, int step, int part) {
    const __m512i bit = _mm512_set1_epi64((int64_t)0x8040201008040201);
    const int k = 2 * part;
    const __m512i each =
        (__m512i)(__v64qi){EIGHT_TIMES(at_signs(f, step, k)),      EIGHT_TIMES(at_signs(f, step, k + 1)),
                           EIGHT_TIMES(at_signs(f, step, k + 4)),  EIGHT_TIMES(at_signs(f, step, k + 5)),
                           EIGHT_TIMES(at_signs(f, step, k + 8)),  EIGHT_TIMES(at_signs(f, step, k + 9)),
                           EIGHT_TIMES(at_signs(f, step, k + 12)), EIGHT_TIMES(at_signs(f, step, k + 13))};
    return _mm512_test_epi8_mask(_mm512_permutexvar_epi8(each, signs), bit);
}

/* ---- values ---- */

/* What codes are raised by. */
CPU_INLINE int grid_raise(sl_format_id f) {
    return cpu_has_halves(f) ? 64 : 128;
}

/* The format's values by code, raised, for every index of 64: upper bits of an index mean nothing. */
CPU_INLINE __m512i grid_values(sl_format_id f) {
    const int r = grid_raise(f);
    const uint64_t eight = f == SL_IQ3_XXS      ? 0x3e342c241c140c04
                           : f == SL_IQ3_S      ? 0x0f0d0b0907050301
                           : grid_is_ternary(f) ? 0x000800f8000800f8
                                                : 0x002b1908002b1908;
    return _mm512_add_epi8(_mm512_set1_epi64((int64_t)eight), _mm512_set1_epi8((char)r));
}

/* Codes of the rows of lo or hi to raised values. */
CPU_INLINE __m512i spread_rows(sl_format_id f, __m512i rows, int step, int part) {
    if (grid_has_eights(f)) { /* the row of each 64-bit lane */
        const short g = (short)(16 * step + 2 * part);
#define FOUR_TIMES(a) (short)(a), (short)(a), (short)(a), (short)(a)
        const __m512i each =
            (__m512i)(__v32hi){FOUR_TIMES(g),     FOUR_TIMES(g + 1), FOUR_TIMES(g + 4),  FOUR_TIMES(g + 5),
                               FOUR_TIMES(g + 8), FOUR_TIMES(g + 9), FOUR_TIMES(g + 12), FOUR_TIMES(g + 13)};
        const __m512i twos = _mm512_set1_epi64(0x0e0c0a0806040200);
        __m512i v = _mm512_multishift_epi64_epi8(twos, _mm512_permutexvar_epi16(each, rows));
        return _mm512_permutexvar_epi8(v, grid_values(f));
    }
    const int d = 2 * part; /* two rows, 32 bits, for each 64-bit lane */
    const __m512i each = _mm512_setr_epi32(d, d, d + 1, d + 1, d + 4, d + 4, d + 5, d + 5, d + 8, d + 8, d + 9, d + 9,
                                           d + 12, d + 12, d + 13, d + 13);
    const __m512i threes = _mm512_set1_epi64(0x1916131009060300);
    __m512i v = _mm512_multishift_epi64_epi8(threes, _mm512_permutexvar_epi32(each, rows));
    return _mm512_permutexvar_epi8(v, grid_values(f));
}

/* IQ1: 8 * row raised, less or plus 1 by the bit at `bit` of the word of each run (IQ1_S) or by those of the nibbles of
 * each half run (IQ1_M). */
CPU_INLINE __m512i add_direction(sl_format_id f, __m512i v, const uint8_t *p, int step, int part) {
    __mmask64 down;
    if (f == SL_IQ1_S) { /* the top bits of the words of four runs, over 16 columns each */
        const __m512i each =
            (__m512i)(__v8di){0x0101010101010101, 0x0101010101010101, 0x0303030303030303, 0x0303030303030303,
                              0x0505050505050505, 0x0505050505050505, 0x0707070707070707, 0x0707070707070707};
        __m512i words = _mm512_broadcast_i64x2(_mm_loadl_epi64((const __m128i *)(p + 34 + 8 * step)));
        down = _mm512_movepi8_mask(_mm512_shuffle_epi8(words, each));
    } else { /* bits 3 and 7 of one byte for each half run */
        const int64_t at = (int64_t)0x0101010101010101 * part, low = 0x0808080808080808;
        const int64_t high = (int64_t)0x8080808080808080, two = 0x0202020202020202;
        const __m512i each =
            (__m512i)(__v8di){at, at, at + two, at + two, at + 2 * two, at + 2 * two, at + 3 * two, at + 3 * two};
        __m512i bytes = _mm512_broadcast_i64x2(_mm_loadl_epi64((const __m128i *)(p + 32 + 8 * step)));
        down = _mm512_test_epi8_mask(_mm512_shuffle_epi8(bytes, each),
                                     (__m512i)(__v8di){low, high, low, high, low, high, low, high});
    }
    return _mm512_add_epi8(v, _mm512_mask_blend_epi8(down, _mm512_set1_epi8(1), _mm512_set1_epi8(-1)));
}

/* The scales 2 * n + 1 of the step's first (part 0) or second half blocks, over the lanes of their blocks: n has four
 * bits, one after the other, or (IQ1_M) three, four times in 16. Rotated so that it lies at bit 1. */
CPU_INLINE __m512i grid_half_scales(sl_format_id f, const uint8_t *p, int step, int part) {
    const bool three = f == SL_IQ1_M;
    const int s = (three ? 3 : 4) * part + 31, a = three ? 6 : 8, b = 16, c = three ? 22 : 24;
    const __m512i right = _mm512_setr_epi32(s, s, s, s, s + a, s + a, s + a, s + a, s + b, s + b, s + b, s + b, s + c,
                                            s + c, s + c, s + c);
    const int64_t at = three ? 48 : f == SL_IQ2_XS ? 66 : 74;
    __m512i v = _mm512_rorv_epi32(_mm512_set1_epi32((int)quant_u32(p + at + 4 * step)), right);
    return _mm512_or_si512(_mm512_and_si512(v, _mm512_set1_epi32(three ? 14 : 30)), _mm512_set1_epi32(1));
}

/* Step `step` of the unit at p, whose grid_eights are head; raised. */
CPU_INLINE codes codes_grid_step(sl_format_id f, const uint8_t *p, __m512i head, int step) {
    __m512i rows = grid_has_eights(f) ? head : grid_fours(f, p, step);
    codes c = {spread_rows(f, rows, step, 0), spread_rows(f, rows, step, 1)};
    if (grid_is_ternary(f)) {
        return (codes){add_direction(f, c.lo, p, step, 0), add_direction(f, c.hi, p, step, 1)};
    }
    const __m512i twice = _mm512_set1_epi8((char)(2 * grid_raise(f))), signs = grid_sign_bytes(f, p, step);
    c.lo = _mm512_mask_sub_epi8(c.lo, grid_minus(f, signs, step, 0), twice, c.lo);
    c.hi = _mm512_mask_sub_epi8(c.hi, grid_minus(f, signs, step, 1), twice, c.hi);
    return c;
}

#endif

/* cpu_avx512: how the AVX-512 kernels read every quantised format. Private to cpu_*_avx512.c.
 *
 * All formats are brought to one shape, the step: 4 rows x 4 blocks. Of a row, `codes` are two vectors, lo and hi:
 * 128-bit lane b holds the codes of columns 0..15 (lo) and 16..31 (hi) of block b, as unsigned bytes (MLX 4-bit: even
 * and odd columns). Scales are one vector of 16 floats, lane 4 * block + row. The format is a compile-time constant in
 * every call, so that the switches vanish. */
#ifndef SL_CPU_AVX512_H
#define SL_CPU_AVX512_H

#include "cpu/cpu_grid_avx512.h"

/* ---- geometry ---- */

/* A unit is what a format's scales are read for at once: one step, or the two of a 256-weight block. */
CPU_INLINE int unit_steps(sl_format_id f) {
    return quad_per_turn(f);
}

CPU_INLINE int64_t unit_bytes(sl_format_id f) {
    return quad_block_bytes(f) * (quad_is_half(f) ? 1 : 4);
}

enum { UNIT_BYTES_MAX = 210 };

/* ---- codes ---- */

/* What is made of a row's unit once for its steps. Grids of eight weights: the 32 rows' codes. Q4_0, Q4_1 and IQ4_NL
 * take codes and scales from the same first 64 bytes of a unit. Unaligned loads of 64 bytes are
 * what limits the kernels (one per cycle), so these are done once: the barrier keeps the compiler from folding a load
 * into each use. */
CPU_INLINE __m512i load_head(sl_format_id f, const uint8_t *p) {
    if (grid_has_eights(f)) {
        return grid_eights(f, p);
    }
    if (f != SL_Q4_0 && f != SL_Q4_1 && f != SL_IQ4_NL) {
        return _mm512_setzero_si512();
    }
    __m512i v = load512(p);
    __asm__("" : "+v"(v));
    return v;
}

CPU_INLINE __m512i two_halves(const uint8_t *a, const uint8_t *b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load256(a)), load256(b), 1);
}

CPU_INLINE codes nibbles(__m512i packed) {
    const __m512i mask = _mm512_set1_epi8(15);
    return (codes){_mm512_and_si512(packed, mask), _mm512_and_si512(_mm512_srli_epi16(packed, 4), mask)};
}

/* Word indices that bring 8 words from each of four starts into the lanes. */
#define WORD_RUN(a)           (a), (a) + 1, (a) + 2, (a) + 3, (a) + 4, (a) + 5, (a) + 6, (a) + 7
#define WORD_RUNS(a, b, c, d) ((__m512i)(__v32hi){WORD_RUN(a), WORD_RUN(b), WORD_RUN(c), WORD_RUN(d)})

/* The 16 code bytes of each of 4 blocks; the one that is outside the 64 bytes that hold the others is loaded alone. */
CPU_INLINE __m512i packed_q4_0(const uint8_t *p, __m512i head) {
    __m512i v = _mm512_permutexvar_epi16(WORD_RUNS(1, 10, 19, 0), head);
    return _mm512_mask_broadcast_i32x4(v, 0xf000, load128(p + 56));
}

CPU_INLINE __m512i packed_q4_1(const uint8_t *p, __m512i head) {
    __m512i v = _mm512_permutexvar_epi16(WORD_RUNS(2, 12, 22, 0), head);
    return _mm512_mask_broadcast_i32x4(v, 0xf000, load128(p + 64));
}

CPU_INLINE __m512i packed_q5_0(const uint8_t *p) {
    __m512i v = _mm512_permutexvar_epi16(WORD_RUNS(0, 2, 13, 24), load512(p + 24));
    return _mm512_mask_broadcast_i32x4(v, 0x000f, load128(p + 6));
}

CPU_INLINE __m512i packed_q5_1(const uint8_t *p) {
    __m512i v = _mm512_permutexvar_epi16(WORD_RUNS(0, 0, 12, 24), load512(p + 32));
    return _mm512_mask_broadcast_i32x4(v, 0x000f, load128(p + 8));
}

/* Adds 16 where `bits` has a bit of `select`. */
CPU_INLINE __m512i add_sixteen(__m512i v, __m512i bits, __m512i select) {
    return _mm512_mask_add_epi8(v, _mm512_test_epi8_mask(bits, select), v, _mm512_set1_epi8(16));
}

/* Bit i of block b's 32-bit word of high bits, at p + stride * b, is bit 4 of its column i. */
CPU_INLINE codes add_high_words(codes c, const uint8_t *p, int64_t stride) {
    const __m512i bit = _mm512_set1_epi64((int64_t)0x8040201008040201);
    const __m512i pick =
        (__m512i)(__v8di){0x0000000000000000, 0x0101010101010101, 0x0404040404040404, 0x0505050505050505,
                          0x0808080808080808, 0x0909090909090909, 0x0c0c0c0c0c0c0c0c, 0x0d0d0d0d0d0d0d0d};
    __m128i words = _mm_setr_epi32((int)quant_u32(p), (int)quant_u32(p + stride), (int)quant_u32(p + 2 * stride),
                                   (int)quant_u32(p + 3 * stride));
    __m512i w = _mm512_castsi128_si512(words);
    c.lo = add_sixteen(c.lo, _mm512_permutexvar_epi8(pick, w), bit);
    c.hi = add_sixteen(c.hi, _mm512_permutexvar_epi8(_mm512_add_epi8(pick, _mm512_set1_epi8(2)), w), bit);
    return c;
}

/* Lane order of a pair of vectors: index of 128-bit lane in a (0..3), in b (4..7). */
#define LANE(i)                 2 * (i), 2 * (i) + 1
#define LANES(a, b, i, j, k, l) _mm512_permutex2var_epi64(a, (__m512i)(__v8di){LANE(i), LANE(j), LANE(k), LANE(l)}, b)

/* a = blocks 0 and 1 whole, b = blocks 2 and 3 */
CPU_INLINE codes from_whole(__m512i a, __m512i b) {
    return (codes){LANES(a, b, 0, 2, 4, 6), LANES(a, b, 1, 3, 5, 7)};
}

/* Low nibbles are blocks 0 and 2, high ones 1 and 3. */
CPU_INLINE codes from_pairs(codes c) {
    return (codes){LANES(c.lo, c.hi, 0, 4, 2, 6), LANES(c.lo, c.hi, 1, 5, 3, 7)};
}

CPU_INLINE codes codes_q8_0(const uint8_t *p) {
    const __m512i flip = _mm512_set1_epi8((char)0x80); /* to unsigned, offset 128 */
    codes c = from_whole(two_halves(p + 2, p + 36), two_halves(p + 70, p + 104));
    return (codes){_mm512_xor_si512(c.lo, flip), _mm512_xor_si512(c.hi, flip)};
}

CPU_INLINE __m512i per_half(int a, int b) {
    return _mm512_inserti64x4(_mm512_set1_epi8((char)a), _mm256_set1_epi8((char)b), 1);
}

CPU_INLINE codes codes_q5_k(const uint8_t *p, int step) {
    codes c = nibbles(load512(p + 48 + 64 * step));
    __m512i high = _mm512_broadcast_i64x4(load256(p + 16));
    c.lo = add_sixteen(c.lo, high, step ? per_half(16, 64) : per_half(1, 4));
    c.hi = add_sixteen(c.hi, high, step ? per_half(32, 128) : per_half(2, 8));
    return from_pairs(c);
}

CPU_INLINE codes codes_q6_k(const uint8_t *p, int step) {
    const __m512i left = _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(2), 1);
    const __m512i right = _mm512_inserti64x4(_mm512_set1_epi16(0), _mm256_set1_epi16(2), 1);
    const __m512i mask = _mm512_set1_epi8(0x30);
    codes c = nibbles(load512(p + 64 * step));
    __m512i high = _mm512_broadcast_i64x4(load256(p + 128 + 32 * step));
    c.lo = _mm512_or_si512(c.lo, _mm512_and_si512(_mm512_sllv_epi16(high, left), mask));
    c.hi = _mm512_or_si512(c.hi, _mm512_and_si512(_mm512_srlv_epi16(high, right), mask));
    return from_whole(c.lo, c.hi); /* runs 0, 1 and 2, 3 */
}

/* Codes of 2, 3, 5 or 6 bits, four blocks in one stream: eight of them are brought to each 64-bit lane, and spread. */
#define STREAM_BYTES(at) (at), (at) + 1, (at) + 2, (at) + 3, (at) + 4, (at) + 5, (at) + 6, (at) + 7
#define STREAM(bits, at)                                                                                               \
    ((__m512i)(__v64qi){STREAM_BYTES((char)(at)), STREAM_BYTES((char)((at) + (bits))),                                 \
                        STREAM_BYTES((char)((at) + 4 * (bits))), STREAM_BYTES((char)((at) + 5 * (bits))),              \
                        STREAM_BYTES((char)((at) + 8 * (bits))), STREAM_BYTES((char)((at) + 9 * (bits))),              \
                        STREAM_BYTES((char)((at) + 12 * (bits))), STREAM_BYTES((char)((at) + 13 * (bits)))})

CPU_INLINE __m512i spread_stream(int bits, __m512i a, __m512i b, __m512i pick) {
    const uint64_t shifts = 0x0706050403020100u * (uint64_t)bits;
    __m512i v = bits < 5 ? _mm512_permutexvar_epi8(pick, a) : _mm512_permutex2var_epi8(a, pick, b);
    v = _mm512_multishift_epi64_epi8(_mm512_set1_epi64((int64_t)shifts), v);
    return _mm512_and_si512(v, _mm512_set1_epi8((char)((1 << bits) - 1)));
}

CPU_INLINE codes codes_stream_four(int bits, const uint8_t *p) {
    __m512i a, b = _mm512_setzero_si512();
    if (bits == 2) {
        a = _mm512_castsi256_si512(load256(p));
    } else if (bits == 3) {
        a = _mm512_inserti32x4(_mm512_castsi256_si512(load256(p)), load128(p + 32), 2);
    } else {
        a = load512(p);
        b = bits == 5 ? _mm512_castsi128_si512(load128(p + 64)) : _mm512_castsi256_si512(load256(p + 64));
    }
    return (codes){spread_stream(bits, a, b, STREAM(bits, 0)), spread_stream(bits, a, b, STREAM(bits, 2 * bits))};
}

/* A step of the unit at p as a quad. */
CPU_INLINE quad unit_quad(sl_format_id f, const uint8_t *p, int step) {
    const int64_t n = quad_is_half(f) ? 0 : quad_block_bytes(f);
    if (f == SL_NVFP4) { /* two blocks of 64 */
        return (quad){.p = {p, p, p + 36, p + 36}};
    }
    return (quad){.p = {p, p + n, p + 2 * n, p + 3 * n}, .half = step};
}

/* The 4-bit codes of formats that stand for values, as packed in the file, 16 bytes of each of 4 blocks. */
CPU_INLINE bool has_values(sl_format_id f) {
    return f == SL_IQ4_NL || f == SL_IQ4_XS || f == SL_MXFP4 || f == SL_MXFP4_SPLIT || cpu_has_pairs(f);
}

CPU_INLINE __m512i packed_values(sl_format_id f, const uint8_t *p, __m512i head, int step) {
    switch (f) {
    case SL_IQ4_NL:
        return packed_q4_0(p, head);
    case SL_IQ4_XS:
        return load512(p + 8 + 64 * step);
    case SL_MXFP4: {
        const __m512i pick = (__m512i)(__v64qi){BYTE_RUN(1), BYTE_RUN(18), BYTE_RUN(35), BYTE_RUN(0)};
        return _mm512_mask_broadcast_i32x4(_mm512_permutexvar_epi8(pick, load512(p)), 0xf000, load128(p + 52));
    }
    case SL_NVFP4:
        return two_halves(p + 4, p + 40);
    default:
        return load512(p);
    }
}

/* Plus 128. */
CPU_INLINE codes codes_values(sl_format_id f, const uint8_t *p, __m512i head, int step) {
    const bool iq4 = f == SL_IQ4_NL || f == SL_IQ4_XS;
    const __m512i value = _mm512_xor_si512(_mm512_broadcast_i32x4(load128(iq4 ? quant_iq4_values : quant_e2m1_doubled)),
                                           _mm512_set1_epi8((char)0x80));
    codes c = nibbles(packed_values(f, p, head, step));
    if (f == SL_MXFP4_SPLIT || f == SL_NVFP4_SPLIT) { /* even and odd columns */
        c = (codes){_mm512_unpacklo_epi8(c.lo, c.hi), _mm512_unpackhi_epi8(c.lo, c.hi)};
    } else if (f == SL_NVFP4) { /* columns 0..7 and 16..23, the eight behind each */
        c = (codes){_mm512_unpacklo_epi64(c.lo, c.hi), _mm512_unpackhi_epi64(c.lo, c.hi)};
    }
    return (codes){_mm512_shuffle_epi8(value, c.lo), _mm512_shuffle_epi8(value, c.hi)};
}

/* Two-bit codes of four runs: lane b is bits 2b.. of the 16 bytes at p. */
CPU_INLINE __m512i two_bit_runs(const uint8_t *p) {
    const __m512i right = (__m512i)(__v8di){0,
                                            0,
                                            0x0002000200020002,
                                            0x0002000200020002,
                                            0x0004000400040004,
                                            0x0004000400040004,
                                            0x0006000600060006,
                                            0x0006000600060006};
    return _mm512_and_si512(_mm512_srlv_epi16(_mm512_broadcast_i32x4(load128(p)), right), _mm512_set1_epi8(3));
}

/* The half blocks' scales, four bits each, in the 16-bit lanes of their block. */
CPU_INLINE __m512i q2_k_scales(__m512i eight, int half) {
    const __m512i each =
        (__m512i)(__v8di){(int64_t)0x8000800080008000, (int64_t)0x8000800080008000, (int64_t)0x8002800280028002,
                          (int64_t)0x8002800280028002, (int64_t)0x8004800480048004, (int64_t)0x8004800480048004,
                          (int64_t)0x8006800680068006, (int64_t)0x8006800680068006};
    return _mm512_shuffle_epi8(eight, half ? _mm512_or_si512(each, _mm512_set1_epi16(1)) : each);
}

CPU_INLINE codes codes_q2_k_step(const uint8_t *p, int step) {
    uint64_t both;
    memcpy(&both, p + 8 * step, sizeof both);
    __m512i scales = _mm512_and_si512(_mm512_set1_epi64((int64_t)both), _mm512_set1_epi8(15));
    const uint8_t *q = p + 16 + 32 * step;
    return (codes){_mm512_mullo_epi16(two_bit_runs(q), q2_k_scales(scales, 0)),
                   _mm512_mullo_epi16(two_bit_runs(q + 16), q2_k_scales(scales, 1))};
}

/* Plus 32. */
CPU_INLINE __m512i q3_k_half(const uint8_t *low, const uint8_t *high, int step) {
    const __m512i bit =
        (__m512i)(__v8di){0x0101010101010101, 0x0101010101010101, 0x0202020202020202, 0x0202020202020202,
                          0x0404040404040404, 0x0404040404040404, 0x0808080808080808, 0x0808080808080808};
    __m512i v = _mm512_add_epi8(two_bit_runs(low), _mm512_set1_epi8(28));
    __mmask64 set =
        _mm512_test_epi8_mask(_mm512_broadcast_i32x4(load128(high)), step ? _mm512_slli_epi16(bit, 4) : bit);
    return _mm512_mask_add_epi8(v, set, v, _mm512_set1_epi8(4));
}

CPU_INLINE codes codes_q3_k_step(const uint8_t *p, int step) {
    const uint8_t *q = p + 32 + 32 * step;
    return (codes){q3_k_half(q, p, step), q3_k_half(q + 16, p + 16, step)};
}

/* Digits of TQ1_0's bytes in base three, plus 127: bytes times powers of three (in words: the same for two bytes)
 * modulo 256 are fractions of 256, in thirds. */
CPU_INLINE __m512i tq1_0_digits512(__m512i v, __m512i power) {
    const __m512i even = _mm512_set1_epi16(0x00ff);
    __m512i lo = _mm512_mullo_epi16(_mm512_and_si512(v, even), power);
    __m512i hi = _mm512_mullo_epi16(_mm512_andnot_si512(even, v), power);
    v = _mm512_ternarylogic_epi32(lo, hi, even, 0xe4 /* lo where even, else hi */);
    const __m512i one = _mm512_set1_epi8(1);
    __m512i out = _mm512_set1_epi8(127);
    out = _mm512_mask_add_epi8(out, _mm512_cmpgt_epu8_mask(v, _mm512_set1_epi8(85)), out, one);
    return _mm512_mask_add_epi8(out, _mm512_cmpgt_epu8_mask(v, _mm512_set1_epi8((char)170)), out, one);
}

#define OVER_LANE(a) (a) * 0x0001000100010001, (a)*0x0001000100010001

CPU_INLINE codes codes_tq1_0_step(const uint8_t *p, int step) {
    const __m512i powers = (__m512i)(__v8di){OVER_LANE(1), OVER_LANE(3), OVER_LANE(9), OVER_LANE(27)};
    __m512i lo = _mm512_broadcast_i32x4(load128(p)), hi = _mm512_broadcast_i32x4(load128(p + 16));
    if (step == 0) {
        return (codes){tq1_0_digits512(lo, powers), tq1_0_digits512(hi, powers)};
    }
    /* The fifth digits of both; digits 0, 2, 4 and 1, 3 of 16 bytes; four digits of four bytes. */
    const __m512i low = (__m512i)(__v8di){OVER_LANE(81), OVER_LANE(1), OVER_LANE(9), OVER_LANE(81)};
    const __m512i high =
        (__m512i)(__v8di){OVER_LANE(81), OVER_LANE(3), OVER_LANE(27), 0x0003000300010001, 0x001b001b00090009};
    __m512i middle = _mm512_broadcast_i32x4(load128(p + 32));
    lo = _mm512_mask_mov_epi32(lo, 0xfff0, middle);
    hi = _mm512_mask_mov_epi32(hi, 0x0ff0, middle);
    hi = _mm512_mask_set1_epi32(hi, 0xf000, (int)quant_u32(p + 48));
    return (codes){tq1_0_digits512(lo, low), tq1_0_digits512(hi, high)};
}

/* Block by block; signed codes plus 128. */
CPU_INLINE codes unpack_step(sl_format_id f, const uint8_t *p, int step) {
    quad q = unit_quad(f, p, step);
    __m512i a = _mm512_inserti64x4(_mm512_castsi256_si512(unpack_codes(f, &q, 0)), unpack_codes(f, &q, 1), 1);
    __m512i b = _mm512_inserti64x4(_mm512_castsi256_si512(unpack_codes(f, &q, 2)), unpack_codes(f, &q, 3), 1);
    codes c = from_whole(a, b);
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    return cpu_is_signed(f) ? (codes){_mm512_xor_si512(c.lo, flip), _mm512_xor_si512(c.hi, flip)} : c;
}

/* Step `step` of the unit at p with head `head`. */
CPU_INLINE codes load_codes(sl_format_id f, const uint8_t *p, __m512i head, int step) {
    switch (f) {
    case SL_Q4_0:
        return nibbles(packed_q4_0(p, head));
    case SL_Q4_1:
        return nibbles(packed_q4_1(p, head));
    case SL_Q5_0:
        return add_high_words(nibbles(packed_q5_0(p)), p + 2, 22);
    case SL_Q5_1:
        return add_high_words(nibbles(packed_q5_1(p)), p + 4, 24);
    case SL_Q8_0:
        return codes_q8_0(p);
    case SL_Q4_K:
        return from_pairs(nibbles(load512(p + 16 + 64 * step)));
    case SL_Q5_K:
        return codes_q5_k(p, step);
    case SL_Q6_K:
        return codes_q6_k(p, step);
    case SL_AFFINE4:
        return nibbles(load512(p));
    case SL_AFFINE8:
        return from_whole(load512(p), load512(p + 64));
    case SL_Q2_K:
        return codes_q2_k_step(p, step);
    case SL_Q3_K:
        return codes_q3_k_step(p, step);
    case SL_TQ1_0:
        return codes_tq1_0_step(p, step);
    default:
        return cpu_stream_bits(f) ? codes_stream_four(cpu_stream_bits(f), p)
               : has_values(f)    ? codes_values(f, p, head, step)
               : cpu_is_grid(f)   ? codes_grid_step(f, p, head, step)
                                  : unpack_step(f, p, step);
    }
}

#endif

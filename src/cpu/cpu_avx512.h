/* cpu_avx512: how the AVX-512 kernels read every quantised format. Private to cpu_*_avx512.c.
 *
 * All formats are brought to one shape, the step: 4 rows x 4 blocks. Of a row, `codes` are two vectors, lo and hi:
 * 128-bit lane b holds the codes of columns 0..15 (lo) and 16..31 (hi) of block b, as unsigned bytes (MLX 4-bit: even
 * and odd columns). Scales are one vector of 16 floats, lane 4 * block + row. The format is a compile-time constant in
 * every call, so that the switches vanish. */
#ifndef SL_CPU_AVX512_H
#define SL_CPU_AVX512_H

#include "cpu/cpu_x86.h"

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

typedef struct codes {
    __m512i lo, hi;
} codes;

CPU_INLINE __m512i load512(const void *p) {
    return _mm512_loadu_si512(p);
}

/* Q4_0, Q4_1 and IQ4_NL take codes and scales from the same first 64 bytes of a unit. Unaligned loads of 64 bytes are
 * what limits the kernels (one per cycle), so these are done once: the barrier keeps the compiler from folding a load
 * into each use. */
CPU_INLINE __m512i load_head(sl_format_id f, const uint8_t *p) {
    if (f != SL_Q4_0 && f != SL_Q4_1 && f != SL_IQ4_NL) {
        return _mm512_setzero_si512();
    }
    __m512i v = load512(p);
    __asm__("" : "+v"(v));
    return v;
}

CPU_INLINE codes nibbles(__m512i packed) {
    const __m512i mask = _mm512_set1_epi8(15);
    return (codes){_mm512_and_si512(packed, mask), _mm512_and_si512(_mm512_srli_epi16(packed, 4), mask)};
}

#define BYTE_RUN(a)                                                                                                    \
    (a), (a) + 1, (a) + 2, (a) + 3, (a) + 4, (a) + 5, (a) + 6, (a) + 7, (a) + 8, (a) + 9, (a) + 10, (a) + 11,          \
        (a) + 12, (a) + 13, (a) + 14, (a) + 15

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

CPU_INLINE __m512i two_halves(const uint8_t *a, const uint8_t *b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load256(a)), load256(b), 1);
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
    return (quad){.p = {p, p + n, p + 2 * n, p + 3 * n}, .half = step};
}

/* The 4-bit codes of formats that stand for values, as packed in the file, 16 bytes of each of 4 blocks. */
CPU_INLINE bool has_values(sl_format_id f) {
    return f == SL_IQ4_NL || f == SL_IQ4_XS || f == SL_MXFP4 || f == SL_MXFP4_SPLIT;
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
    default:
        return load512(p);
    }
}

/* Plus 128. */
CPU_INLINE codes codes_values(sl_format_id f, const uint8_t *p, __m512i head, int step) {
    const bool mxfp4 = f == SL_MXFP4 || f == SL_MXFP4_SPLIT;
    const __m512i value = _mm512_xor_si512(
        _mm512_broadcast_i32x4(load128(mxfp4 ? quant_e2m1_doubled : quant_iq4_values)), _mm512_set1_epi8((char)0x80));
    codes c = nibbles(packed_values(f, p, head, step));
    if (f == SL_MXFP4_SPLIT) { /* even and odd columns */
        c = (codes){_mm512_unpacklo_epi8(c.lo, c.hi), _mm512_unpackhi_epi8(c.lo, c.hi)};
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
    default:
        return cpu_stream_bits(f) ? codes_stream_four(cpu_stream_bits(f), p)
               : has_values(f)    ? codes_values(f, p, head, step)
                                  : unpack_step(f, p, step);
    }
}

/* ---- scales ---- */

typedef struct scales {
    __m512 s, m;    /* m of Q2_K: dmin */
    __m512i minima; /* Q2_K: of the two halves, 16 bits each */
} scales;

/* Words a, b, c, d of each row's head, as floats in [4][row] order. */
CPU_INLINE __m512 halves_within(const __m512i head[4], int a, int b, int c, int d) {
    const __m512i pick =
        (__m512i)(__v32hi){(short)a, (short)a, (short)a, (short)a, (short)b, (short)b, (short)b, (short)b,
                           (short)c, (short)c, (short)c, (short)c, (short)d, (short)d, (short)d, (short)d};
    __m512i v = _mm512_permutexvar_epi16(pick, head[0]);
    v = _mm512_mask_permutexvar_epi16(v, 0x2222, pick, head[1]);
    v = _mm512_mask_permutexvar_epi16(v, 0x4444, pick, head[2]);
    v = _mm512_mask_permutexvar_epi16(v, 0x8888, pick, head[3]);
    return _mm512_cvtph_ps(_mm512_castsi512_si256(v));
}

CPU_INLINE long long four_words(const uint8_t *p, int64_t stride) {
    return (long long)((uint64_t)quant_u16(p) | (uint64_t)quant_u16(p + stride) << 16 |
                       (uint64_t)quant_u16(p + 2 * stride) << 32 | (uint64_t)quant_u16(p + 3 * stride) << 48);
}

/* The same for halves `stride` bytes apart. */
CPU_INLINE __m512 halves_apart(const uint8_t *const p[4], int64_t at, int64_t stride) {
    const __m256i transpose = _mm256_setr_epi16(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m256i v = _mm256_setr_epi64x(four_words(p[0] + at, stride), four_words(p[1] + at, stride),
                                   four_words(p[2] + at, stride), four_words(p[3] + at, stride));
    return _mm512_cvtph_ps(_mm256_permutexvar_epi16(transpose, v));
}

/* Bytes [row][4] to [4][row]. */
CPU_INLINE __m128i transpose_bytes(__m128i v) {
    return _mm_shuffle_epi8(v, _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
}

CPU_INLINE __m512 scaled_bytes(__m128 per_row, __m128i bytes) {
    return _mm512_mul_ps(_mm512_broadcast_f32x4(per_row),
                         _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(transpose_bytes(bytes))));
}

/* Q4_K and Q5_K: 4 rows' headers {d, dmin, 12 bytes} are transposed to words by row, and unpacked 4 sub-blocks at a
 * time. */
CPU_INLINE void scales_k(const uint8_t *const p[4], scales out[2]) {
    const __m128i low6 = _mm_set1_epi8(63), low4 = _mm_set1_epi8(15), bits45 = _mm_set1_epi8(0x30);
    __m128i ab = _mm_unpacklo_epi32(load128(p[0]), load128(p[1])),
            cd = _mm_unpacklo_epi32(load128(p[2]), load128(p[3]));
    __m128i ef = _mm_unpackhi_epi32(load128(p[0]), load128(p[1])),
            gh = _mm_unpackhi_epi32(load128(p[2]), load128(p[3]));
    __m128i head = _mm_unpacklo_epi64(ab, cd), w0 = _mm_unpackhi_epi64(ab, cd);
    __m128i w1 = _mm_unpacklo_epi64(ef, gh), w2 = _mm_unpackhi_epi64(ef, gh);
    __m128i words = _mm_shuffle_epi8(head, _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    __m256 both = _mm256_cvtph_ps(words);
    __m128 d = _mm256_castps256_ps128(both);
    __m128 minus_dmin = _mm_xor_ps(_mm256_extractf128_ps(both, 1), _mm_set1_ps(-0.0f));
    __m128i sc1 = _mm_or_si128(_mm_and_si128(w2, low4), _mm_and_si128(_mm_srli_epi16(w0, 2), bits45));
    __m128i min1 =
        _mm_or_si128(_mm_and_si128(_mm_srli_epi16(w2, 4), low4), _mm_and_si128(_mm_srli_epi16(w1, 2), bits45));
    out[0] =
        (scales){.s = scaled_bytes(d, _mm_and_si128(w0, low6)), .m = scaled_bytes(minus_dmin, _mm_and_si128(w1, low6))};
    out[1] = (scales){.s = scaled_bytes(d, sc1), .m = scaled_bytes(minus_dmin, min1)};
}

/* The half `at` bytes into each row's block. */
CPU_INLINE __m512 half_of_rows(const uint8_t *const p[4], int64_t at) {
    __m128i h = _mm_setr_epi16((short)quant_u16(p[0] + at), (short)quant_u16(p[1] + at), (short)quant_u16(p[2] + at),
                               (short)quant_u16(p[3] + at), 0, 0, 0, 0);
    return _mm512_broadcast_f32x4(_mm_cvtph_ps(h));
}

/* A byte of each block of a step, rows by quads, as integers in [4][row] order. */
CPU_INLINE __m512i bytes_of_rows(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    return _mm512_cvtepu8_epi32(transpose_bytes(_mm_setr_epi32((int)a, (int)b, (int)c, (int)d)));
}

CPU_INLINE __m512 scales_iq4_xs(const uint8_t *const p[4], int step) {
    quad q[4] = {unit_quad(SL_IQ4_XS, p[0], step), unit_quad(SL_IQ4_XS, p[1], step), unit_quad(SL_IQ4_XS, p[2], step),
                 unit_quad(SL_IQ4_XS, p[3], step)};
    __m512i n = bytes_of_rows(quad_iq4_xs_scales(&q[0]), quad_iq4_xs_scales(&q[1]), quad_iq4_xs_scales(&q[2]),
                              quad_iq4_xs_scales(&q[3]));
    return _mm512_mul_ps(half_of_rows(p, 0), _mm512_cvtepi32_ps(_mm512_sub_epi32(n, _mm512_set1_epi32(32))));
}

CPU_INLINE __m128 grid_units(sl_format_id f, const uint8_t *const p[4]) {
    return _mm_setr_ps(grid_unit(f, p[0]), grid_unit(f, p[1]), grid_unit(f, p[2]), grid_unit(f, p[3]));
}

CPU_INLINE __m512 scales_grid(sl_format_id f, const uint8_t *const p[4], int step) {
    quad q[4] = {unit_quad(f, p[0], step), unit_quad(f, p[1], step), unit_quad(f, p[2], step),
                 unit_quad(f, p[3], step)};
    __m512i n =
        bytes_of_rows(grid_scales(f, &q[0]), grid_scales(f, &q[1]), grid_scales(f, &q[2]), grid_scales(f, &q[3]));
    return _mm512_mul_ps(_mm512_broadcast_f32x4(grid_units(f, p)), _mm512_cvtepi32_ps(n));
}

/* As four_e8m0. */
CPU_INLINE __m512 scales_mxfp4(const uint8_t *const p[4]) {
    quad q[4] = {unit_quad(SL_MXFP4, p[0], 0), unit_quad(SL_MXFP4, p[1], 0), unit_quad(SL_MXFP4, p[2], 0),
                 unit_quad(SL_MXFP4, p[3], 0)};
    __m512i e = bytes_of_rows(quad_bytes(&q[0], 0), quad_bytes(&q[1], 0), quad_bytes(&q[2], 0), quad_bytes(&q[3], 0));
    __m512i usual = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    __mmask16 least = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(usual, least, _mm512_set1_epi32(0x00200000), e));
}

CPU_INLINE __m512i minima_q2_k(const uint8_t *const p[4], int step) {
    const __m256i transpose = _mm256_setr_epi16(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    long long v[4];
    for (int r = 0; r < 4; r++) {
        memcpy(&v[r], p[r] + 8 * step, sizeof v[r]);
    }
    __m256i both = _mm256_permutexvar_epi16(transpose, _mm256_setr_epi64x(v[0], v[1], v[2], v[3]));
    return _mm512_cvtepu8_epi16(_mm256_and_si256(_mm256_srli_epi16(both, 4), _mm256_set1_epi8(15)));
}

/* Scales (and biases where the format has them) of the unit at p[row]; not of formats with panels. */
CPU_INLINE void load_scales(sl_format_id f, const uint8_t *const p[4], const __m512i head[4], scales out[2]) {
    switch (f) {
    case SL_Q4_0:
    case SL_IQ4_NL:
        out[0].s = halves_within(head, 0, 9, 18, 27);
        break;
    case SL_Q4_1:
        out[0].s = halves_within(head, 0, 10, 20, 30);
        out[0].m = halves_within(head, 1, 11, 21, 31);
        break;
    case SL_Q5_0:
        out[0].s = halves_apart(p, 0, 22);
        break;
    case SL_Q5_1:
        out[0].s = halves_apart(p, 0, 24);
        out[0].m = halves_apart(p, 2, 24);
        break;
    case SL_Q8_0:
        out[0].s = halves_apart(p, 0, 34);
        break;
    case SL_Q6_K:
    case SL_Q3_K:
        out[0].s = out[1].s = half_of_rows(p, f == SL_Q6_K ? 208 : 108);
        break;
    case SL_Q2_K:
        out[0].s = out[1].s = half_of_rows(p, 80);
        out[0].m = out[1].m = half_of_rows(p, 82);
        out[0].minima = minima_q2_k(p, 0);
        out[1].minima = minima_q2_k(p, 1);
        break;
    case SL_TQ2_0:
        out[0].s = out[1].s = half_of_rows(p, 64);
        break;
    case SL_IQ2_XS:
    case SL_IQ2_S:
    case SL_IQ1_M:
        out[0].s = out[1].s = _mm512_broadcast_f32x4(grid_units(f, p));
        break;
    case SL_IQ2_XXS:
    case SL_IQ3_XXS:
    case SL_IQ3_S:
    case SL_IQ1_S:
        out[0].s = scales_grid(f, p, 0);
        out[1].s = scales_grid(f, p, 1);
        break;
    case SL_IQ4_XS:
        out[0].s = scales_iq4_xs(p, 0);
        out[1].s = scales_iq4_xs(p, 1);
        break;
    case SL_MXFP4:
        out[0].s = scales_mxfp4(p);
        break;
    default:
        scales_k(p, out);
    }
}

/* ---- scales and biases in arrays of their own ----
 * Converted once per 4 rows into a panel in scratch, [group][row]: a cache line of them serves many steps. */

CPU_INLINE bool has_panel(sl_format_id f) {
    return cpu_is_affine(f) || f == SL_MXFP4_SPLIT;
}

typedef struct panel {
    float *s, *m;
} panel;

/* The k-th panel in scratch. */
CPU_INLINE panel panel_at(void *scratch, int64_t cols, int k) {
    char *p = (char *)scratch + 2 * (uint64_t)k * cpu_panel_bytes(cols);
    return (panel){(float *)p, (float *)(p + cpu_panel_bytes(cols))};
}

CPU_INLINE float side_one(sl_format_id side, const uint8_t *p, int64_t g) {
    return side == SL_F16    ? _cvtsh_ss(quant_u16(p + 2 * g))
           : side == SL_BF16 ? quant_float_of((uint32_t)quant_u16(p + 2 * g) << 16)
                             : quant_f32(p + 4 * g);
}

CPU_INLINE __m128 side_four(sl_format_id side, const uint8_t *p, int64_t g) {
    switch (side) {
    case SL_F16:
        return _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(p + 2 * g)));
    case SL_BF16:
        return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)(p + 2 * g))), 16));
    default:
        return _mm_loadu_ps((const float *)(p + 4 * g));
    }
}

CPU_INLINE void panel_fill_side(sl_format_id side, const uint8_t *const p[4], int64_t groups, float *out) {
    int64_t g = 0;
    for (; g + 4 <= groups; g += 4, out += 16) {
        __m128 a = side_four(side, p[0], g), b = side_four(side, p[1], g), c = side_four(side, p[2], g),
               d = side_four(side, p[3], g);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        _mm_storeu_ps(out, a);
        _mm_storeu_ps(out + 4, b);
        _mm_storeu_ps(out + 8, c);
        _mm_storeu_ps(out + 12, d);
    }
    for (; g < groups; g++) {
        for (int r = 0; r < 4; r++) {
            *out++ = side_one(side, p[r], g);
        }
    }
}

CPU_INLINE void panel_fill_e8m0(const uint8_t *const p[4], int64_t groups, float *out) {
    int64_t g = 0;
    for (; g + 4 <= groups; g += 4, out += 16) {
        __m128 a = four_e8m0_split(quant_u32(p[0] + g)), b = four_e8m0_split(quant_u32(p[1] + g)),
               c = four_e8m0_split(quant_u32(p[2] + g)), d = four_e8m0_split(quant_u32(p[3] + g));
        _MM_TRANSPOSE4_PS(a, b, c, d);
        _mm_storeu_ps(out, a);
        _mm_storeu_ps(out + 4, b);
        _mm_storeu_ps(out + 8, c);
        _mm_storeu_ps(out + 12, d);
    }
    for (; g < groups; g++) {
        for (int r = 0; r < 4; r++) {
            *out++ = quant_e8m0(p[r][g]) * 0.5f;
        }
    }
}

/* Fills out from part `part` of rows row[0..3] of w. */
CPU_INLINE void panel_fill(const sl_matrix *w, const int64_t row[4], int part, float *out) {
    const uint8_t *p[4];
    int64_t groups = w->cols / w->group;
    for (int r = 0; r < 4; r++) {
        p[r] = w->part[part] + (uint64_t)row[r] * w->row_bytes[part];
    }
    if (w->format == SL_MXFP4_SPLIT) {
        panel_fill_e8m0(p, groups, out);
        return;
    }
    switch (w->side) {
    case SL_F16:
        panel_fill_side(SL_F16, p, groups, out);
        break;
    case SL_BF16:
        panel_fill_side(SL_BF16, p, groups, out);
        break;
    default:
        panel_fill_side(SL_F32, p, groups, out);
    }
}

CPU_INLINE void panel_fill_all(const sl_matrix *w, const int64_t row[4], panel p) {
    panel_fill(w, row, 1, p.s);
    if (w->format != SL_MXFP4_SPLIT) {
        panel_fill(w, row, 2, p.m);
    }
}

/* Which of the floats from a step's first group on a lane takes. */
CPU_INLINE __m512i panel_index(int32_t group) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i block = _mm512_srli_epi32(lane, 2), row = _mm512_and_si512(lane, _mm512_set1_epi32(3));
    int shift = group == 32 ? 0 : group == 64 ? 1 : 2;
    return _mm512_add_epi32(_mm512_slli_epi32(_mm512_srl_epi32(block, _mm_cvtsi32_si128(shift)), 2), row);
}

CPU_INLINE scales panel_scales(sl_format_id f, panel p, __m512i index, int64_t step, int32_t group) {
    int64_t at = step * (128 / group) * 4;
    scales out = {.s = _mm512_permutexvar_ps(index, _mm512_loadu_ps(p.s + at))};
    if (cpu_has_bias(f)) {
        out.m = _mm512_permutexvar_ps(index, _mm512_loadu_ps(p.m + at));
    }
    return out;
}

/* ---- rows ---- */

/* Four rows of W (the last valid one repeated) and a place for what is left of them behind whole units. */
typedef struct four_rows {
    const uint8_t *p[4];
    int64_t row[4];
} four_rows;

CPU_INLINE four_rows four_rows_at(const sl_matrix *w, int64_t r, int64_t end) {
    four_rows f;
    for (int k = 0; k < 4; k++) {
        f.row[k] = r + k < end ? r + k : end - 1;
        f.p[k] = w->part[0] + (uint64_t)f.row[k] * w->row_bytes[0];
    }
    return f;
}

typedef struct rest {
    uint8_t bytes[4][UNIT_BYTES_MAX + 14];
} rest;

/* Copies `bytes` bytes of each row to r, behind them zeros, and lets p point there: kernels read whole units. */
CPU_INLINE void copy_rest(const uint8_t *p[4], int64_t bytes, rest *r) {
    memset(r, 0, sizeof *r);
    for (int k = 0; k < 4; k++) {
        memcpy(r->bytes[k], p[k], (size_t)bytes);
        p[k] = r->bytes[k];
    }
}

#endif

/* cpu_avx2: how the AVX2 kernels read codes and scales of every quantised format, by quads (cpu_quad.h). Private to
 * cpu_*_avx2.c. */
#ifndef SL_CPU_AVX2_H
#define SL_CPU_AVX2_H

#include "cpu/cpu_x86.h"

/* ---- codes ---- */

CPU_INLINE __m256i sixteen_where(__m256i bits, __m256i select) {
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bits, select), select), _mm256_set1_epi8(16));
}

/* Bit i of the word at p is bit 4 of code i. */
CPU_INLINE __m256i high_word(const uint8_t *p) {
    const __m256i pick = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)quant_u32(p)), pick);
    return sixteen_where(bytes, _mm256_set1_epi64x((int64_t)0x8040201008040201));
}

CPU_INLINE __m256i codes_k(sl_format_id f, const uint8_t *p, int run) {
    __m256i v = load256(p + (f == SL_Q5_K ? 48 : 16) + 32 * (run / 2));
    v = _mm256_and_si256(_mm256_srli_epi16(v, 4 * (run & 1)), _mm256_set1_epi8(15));
    return f == SL_Q4_K ? v : _mm256_or_si256(v, sixteen_where(load256(p + 16), _mm256_set1_epi8((char)(1 << run))));
}

CPU_INLINE __m256i codes_q6_k(const uint8_t *p, int run) {
    __m256i low = _mm256_srli_epi16(load256(quad_q6_low(p, run)), 4 * (run >> 1 & 1)),
            high = load256(quad_q6_high(p, run));
    high = (run & 3) == 3   ? _mm256_srli_epi16(high, 2)
           : (run & 3) == 2 ? high
                            : _mm256_slli_epi16(high, 4 - 2 * (run & 3));
    return _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(15)), _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
}

/* The 32 codes of block j: unsigned, those of Q3_K plus 32; signed where cpu_is_signed, and less 128 for AFFINE8; even
 * columns first for AFFINE4. */
CPU_INLINE __m256i load_codes(sl_format_id f, const quad *q, int j) {
    const uint8_t *p = q->p[j];
    switch (f) {
    case SL_Q4_0:
        return nibbles256(p + 2);
    case SL_Q4_1:
        return nibbles256(p + 4);
    case SL_Q5_0:
        return _mm256_or_si256(nibbles256(p + 6), high_word(p + 2));
    case SL_Q5_1:
        return _mm256_or_si256(nibbles256(p + 8), high_word(p + 4));
    case SL_Q8_0:
        return load256(p + 2);
    case SL_Q4_K:
    case SL_Q5_K:
        return codes_k(f, p, 4 * q->half + j);
    case SL_Q6_K:
        return codes_q6_k(p, 4 * q->half + j);
    case SL_AFFINE4:
        return nibbles256(p);
    case SL_AFFINE8:
        return _mm256_xor_si256(load256(p), _mm256_set1_epi8((char)0x80));
    default:
        return unpack_codes(f, q, j);
    }
}

/* ---- scales ---- */

typedef scales4 scales;

CPU_INLINE __m128 scaled_bytes(const uint8_t *half, uint32_t bytes) {
    __m128i v = _mm_cvtepu8_epi32(_mm_cvtsi32_si128((int)bytes));
    return _mm_mul_ps(half_over(half), _mm_cvtepi32_ps(v));
}

CPU_INLINE __m128 side_four(const sl_matrix *w, const quad *q, int part, int64_t row) {
    const uint8_t *p = w->part[part] + (uint64_t)row * w->row_bytes[part];
    float out[4];
    switch (w->side) {
    case SL_F16:
        return four_halves(quad_group_words(q, p));
    case SL_BF16:
        return _mm_castsi128_ps(
            _mm_unpacklo_epi16(_mm_setzero_si128(), _mm_cvtsi64_si128((int64_t)quad_group_words(q, p))));
    default:
        quad_group_floats(q, p, out);
        return _mm_loadu_ps(out);
    }
}

CPU_INLINE scales load_scales(sl_format_id f, const sl_matrix *w, const quad *q, int64_t row) {
    switch (f) {
    case SL_Q4_0:
    case SL_Q5_0:
    case SL_Q8_0:
        return (scales){.s = four_halves(quad_words(q, 0))};
    case SL_Q4_1:
    case SL_Q5_1:
        return (scales){four_halves(quad_words(q, 0)), four_halves(quad_words(q, 2))};
    case SL_Q6_K:
        return (scales){.s = half_over(q->p[0] + 208)};
    case SL_Q4_K:
    case SL_Q5_K: {
        quad_k k = quad_k_scales(q);
        return (scales){scaled_bytes(q->p[0], k.scale),
                        _mm_xor_ps(scaled_bytes(q->p[0] + 2, k.min), _mm_set1_ps(-0.0f))};
    }
    case SL_MXFP4_SPLIT:
        return (scales){.s = four_e8m0_split(quad_group_bytes(q, w->part[1] + (uint64_t)row * w->row_bytes[1]))};
    case SL_NVFP4_SPLIT:
        return four_pairs(quad_pairs(f, q, w->part[1] + (uint64_t)row * w->row_bytes[1]), true);
    default:
        return cpu_is_affine(f) ? (scales){side_four(w, q, 1, row), side_four(w, q, 2, row)} : unpack_scales(f, q);
    }
}

#endif

/* cpu_scales_avx512: scales and biases of four rows at a time, and where rows begin and end. Private to cpu_*_avx512.c.
 */
#ifndef SL_CPU_SCALES_AVX512_H
#define SL_CPU_SCALES_AVX512_H

#include "cpu/cpu_avx512.h"

/* ---- scales ---- */

typedef struct scales {
    __m512 s, m;    /* m of Q2_K: dmin; of NVFP4: the second halves' scales */
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

/* Word first + stride * block of each of four vectors, in [4][row] order. */
CPU_INLINE __m512i words_within(const __m512i v[4], int first, int stride) {
    const int a = first, b = first + stride, c = first + 2 * stride, d = first + 3 * stride;
    const __m512i pick = _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d);
    __m512i out = _mm512_permutexvar_epi32(pick, v[0]);
    out = _mm512_mask_permutexvar_epi32(out, 0x2222, pick, v[1]);
    out = _mm512_mask_permutexvar_epi32(out, 0x4444, pick, v[2]);
    return _mm512_mask_permutexvar_epi32(out, 0x8888, pick, v[3]);
}

/* The numbers n of the scales 2 * n + 1 of a step, 32-bit numbers in [4][row] order. */
CPU_INLINE __m512i grid_numbers(sl_format_id f, const uint8_t *const p[4], int step) {
    __m512i v[4];
    switch (f) {
    case SL_IQ2_XXS: /* the top four bits of the second half of each 64 */
    case SL_IQ3_XXS: /* of each 32 */
        for (int r = 0; r < 4; r++) {
            v[r] = f == SL_IQ2_XXS ? load512(p[r] + 2) : _mm512_castsi256_si512(load256(p[r] + 66));
        }
        v[0] = f == SL_IQ2_XXS ? words_within(v, 8 * step + 1, 2) : words_within(v, 4 * step, 1);
        return _mm512_srli_epi32(v[0], 28);
    case SL_IQ3_S: { /* four bits each */
        const __m512i right = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
        __m128i rows = _mm_setr_epi32(quant_u16(p[0] + 106 + 2 * step), quant_u16(p[1] + 106 + 2 * step),
                                      quant_u16(p[2] + 106 + 2 * step), quant_u16(p[3] + 106 + 2 * step));
        return _mm512_and_si512(_mm512_srlv_epi32(_mm512_broadcast_i32x4(rows), right), _mm512_set1_epi32(15));
    }
    default: { /* IQ1_S: bits 12 to 14 of each 16 */
        const __m256i transpose = _mm256_setr_epi16(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        __m256i rows = _mm256_setr_epi64x((int64_t)u64_at(p[0] + 34 + 8 * step), (int64_t)u64_at(p[1] + 34 + 8 * step),
                                          (int64_t)u64_at(p[2] + 34 + 8 * step), (int64_t)u64_at(p[3] + 34 + 8 * step));
        v[0] = _mm512_cvtepu16_epi32(_mm256_permutexvar_epi16(transpose, rows));
        return _mm512_and_si512(_mm512_srli_epi32(v[0], 12), _mm512_set1_epi32(7));
    }
    }
}

CPU_INLINE __m512 scales_grid(sl_format_id f, const uint8_t *const p[4], int step) {
    __m512i n = grid_numbers(f, p, step);
    n = _mm512_add_epi32(_mm512_add_epi32(n, n), _mm512_set1_epi32(1));
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

/* As four_e4m3_half, of bytes as 32-bit numbers. */
CPU_INLINE __m512 e4m3_half(__m512i bytes, bool split) {
    __m256i v = _mm512_cvtepi32_epi16(bytes), top = _mm256_set1_epi16(0x7f);
    __m256i h = _mm256_slli_epi16(_mm256_and_si256(v, top), 7);
    __mmask16 special = _mm256_cmpeq_epi16_mask(split ? _mm256_and_si256(v, top) : v, top);
    if (split) {
        h = _mm256_or_si256(h, _mm256_slli_epi16(_mm256_and_si256(v, _mm256_set1_epi16(0x80)), 8));
        h = _mm256_mask_mov_epi16(h, special, _mm256_set1_epi16(0x7e00));
    } else {
        h = _mm256_mask_mov_epi16(h, special, _mm256_setzero_si256());
    }
    return _mm512_mul_ps(_mm512_cvtph_ps(h), _mm512_set1_ps(128.0f));
}

/* NVFP4: pairs of scales of each row's four blocks. */
CPU_INLINE scales scales_nvfp4(const uint8_t *const p[4]) {
    const __m256i transpose = _mm256_setr_epi16(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m256i v = _mm256_setr_epi32((int)quant_u32(p[0]), (int)quant_u32(p[0] + 36), (int)quant_u32(p[1]),
                                  (int)quant_u32(p[1] + 36), (int)quant_u32(p[2]), (int)quant_u32(p[2] + 36),
                                  (int)quant_u32(p[3]), (int)quant_u32(p[3] + 36));
    __m512i pairs = _mm512_cvtepu16_epi32(_mm256_permutexvar_epi16(transpose, v));
    return (scales){.s = e4m3_half(_mm512_and_si512(pairs, _mm512_set1_epi32(0xff)), false),
                    .m = e4m3_half(_mm512_srli_epi32(pairs, 8), false)};
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
    case SL_NVFP4:
        out[0] = scales_nvfp4(p);
        break;
    case SL_TQ1_0:
    case SL_TQ2_0:
        out[0].s = out[1].s = half_of_rows(p, f == SL_TQ1_0 ? 52 : 64);
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
    return cpu_is_affine(f) || f == SL_MXFP4_SPLIT || f == SL_NVFP4_SPLIT;
}

typedef struct panel {
    float *s, *m; /* m of NVFP4: the second halves' scales */
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

/* Pairs of blocks' scales: to s and m. */
CPU_INLINE void panel_fill_pairs(const uint8_t *const p[4], int64_t blocks, panel out) {
    const __m256i transpose = _mm256_setr_epi16(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    int64_t b = 0;
    for (; b + 4 <= blocks; b += 4) {
        __m256i v = _mm256_setr_epi64x((int64_t)u64_at(p[0] + 2 * b), (int64_t)u64_at(p[1] + 2 * b),
                                       (int64_t)u64_at(p[2] + 2 * b), (int64_t)u64_at(p[3] + 2 * b));
        __m512i pairs = _mm512_cvtepu16_epi32(_mm256_permutexvar_epi16(transpose, v));
        _mm512_storeu_ps(out.s + 4 * b, e4m3_half(_mm512_and_si512(pairs, _mm512_set1_epi32(0xff)), true));
        _mm512_storeu_ps(out.m + 4 * b, e4m3_half(_mm512_srli_epi32(pairs, 8), true));
    }
    for (; b < blocks; b++) {
        uint64_t one = (uint64_t)quant_u16(p[0] + 2 * b) | (uint64_t)quant_u16(p[1] + 2 * b) << 16 |
                       (uint64_t)quant_u16(p[2] + 2 * b) << 32 | (uint64_t)quant_u16(p[3] + 2 * b) << 48;
        scales4 v = four_pairs(one, true);
        _mm_storeu_ps(out.s + 4 * b, v.s);
        _mm_storeu_ps(out.m + 4 * b, v.m);
    }
}

/* Columns that a scale of a panel serves. */
CPU_INLINE int32_t panel_group(const sl_matrix *w) {
    return w->format == SL_NVFP4_SPLIT ? 32 : w->group;
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
    if (w->format == SL_NVFP4_SPLIT) {
        const uint8_t *pairs[4];
        for (int r = 0; r < 4; r++) {
            pairs[r] = w->part[1] + (uint64_t)row[r] * w->row_bytes[1];
        }
        panel_fill_pairs(pairs, w->cols / 32, p);
        return;
    }
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
    if (cpu_has_bias(f) || cpu_has_pairs(f)) {
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

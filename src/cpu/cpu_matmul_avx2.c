/* AVX2 with FMA and F16C: activations to int8, and the product of a matrix with one or four rows of them.
 *
 * A row is walked in quads (cpu_quad.h): 32 codes are one vector of unsigned bytes, whose products with 32 activations
 * are summed in pairs to 16 bits, then to eight 32-bit sums, and those of four blocks to one vector of four. Pairs
 * cannot saturate: codes of up to six bits give at most 2 * 63 * 127; codes of eight are taken as signed, their
 * magnitudes of at most 128 against activations that bear their signs: 2 * 128 * 127 < 2^15. */
#include "cpu/cpu_avx2.h"
#include "cpu/cpu_float_impl.h"
#include "cpu/cpu_tile_avx2.h"

/* Rows of activations that share the unpacked codes. */
enum { ACTS = 4 };

/* ---- activations ---- */

CPU_INLINE uint32_t block_amax(const float *x) {
    __m256i m = _mm256_setzero_si256();
    for (int i = 0; i < 32; i += 8) {
        m = _mm256_max_epu32(m, _mm256_and_si256(load256(x + i), _mm256_set1_epi32(0x7fffffff)));
    }
    __m128i v = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    v = _mm_max_epu32(v, _mm_shuffle_epi32(v, 0x4e));
    v = _mm_max_epu32(v, _mm_shuffle_epi32(v, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(v);
}

CPU_INLINE __m256i round_eight(const float *x, __m256 inverse) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
}

/* 32 values to int8, in order. */
CPU_INLINE __m256i round_block(const float *x, float scale) {
    __m256 inverse = _mm256_set1_ps(scale);
    __m256i lo = _mm256_packs_epi32(round_eight(x, inverse), round_eight(x + 8, inverse));
    __m256i hi = _mm256_packs_epi32(round_eight(x + 16, inverse), round_eight(x + 24, inverse));
    __m256i v = _mm256_packs_epi16(lo, hi); /* four at a time: 0, 2, 4, 6 in the low half, then the odd */
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

CPU_INLINE int32_t sum_of_four(__m128i v) {
    v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
    v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1));
    return _mm_cvtsi128_si32(v);
}

/* One block of 32 values to its place. */
CPU_INLINE void quantize_block(const float *x, const cpu_act *out, int64_t at) {
    uint32_t amax = block_amax(x);
    float d = 0;
    __m256i q = _mm256_setzero_si256();
    if (amax >= CPU_BITS_INFINITE) {
        d = quant_float_of(0x7fc00000);
    } else if (amax >= CPU_BITS_LEAST) {
        d = quant_float_of(amax) / 127.0f;
        q = round_block(x, 127.0f / quant_float_of(amax));
    }
    const __m256i split =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    __m256i eo = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(q, split), 0xd8);
    _mm256_store_si256((__m256i *)(out->q + 32 * at), q);
    _mm256_store_si256((__m256i *)(out->even_odd + 32 * at), eo);
    __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
    int32_t half0 = sum_of_four(_mm256_castsi256_si128(sums)), half1 = sum_of_four(_mm256_extracti128_si256(sums, 1));
    int32_t sum = half0 + half1;
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

/* Sums of pairs of products, 16 bits. */
CPU_INLINE __m256i pair_sums(sl_format_id f, __m256i codes, __m256i x) {
    if (cpu_is_signed(f) || f == SL_AFFINE8) {
        return _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
    }
    return _mm256_maddubs_epi16(codes, x);
}

/* The two scales of block j's halves over them, of the quad's eight in both halves of `sub`. */
CPU_INLINE __m256i sub_scales(__m256i sub, int j) {
    __m256i lo = _mm256_set1_epi16((short)((4 * j + 1) << 8 | 4 * j)), two = _mm256_set1_epi16(0x0202);
    return _mm256_shuffle_epi8(sub, _mm256_add_epi8(lo, _mm256_inserti128_si256(two, _mm_setzero_si128(), 0)));
}

/* What the integers of a quad take from the weights: shared by rows of
 * activations. */
typedef struct quad_codes {
    __m256i block[4];
    __m256i sub;    /* formats with halves: the eight scales, 16 bits each, in both halves */
    __m128i minima; /* Q2_K */
} quad_codes;

CPU_INLINE quad_codes load_quad(sl_format_id f, const quad *q) {
    quad_codes c = {.sub = _mm256_setzero_si256(), .minima = _mm_setzero_si128()};
    if (cpu_has_halves(f)) {
        __m128i bytes = _mm_cvtsi64_si128((int64_t)quad_half_scales(f, q));
        c.sub = _mm256_broadcastsi128_si256(_mm_cvtepi8_epi16(bytes));
    }
    if (f == SL_Q2_K) {
        c.minima = unpack_minima(q);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        c.block[j] = load_codes(f, q, j);
    }
    return c;
}

/* Of each block of the quad, the sums of the first halves in the low half, of the second ones in the high half. */
CPU_INLINE __m256i quad_halves(sl_format_id f, const quad_codes *c, const cpu_act *a, int64_t b) {
    const int8_t *x = (f == SL_AFFINE4 ? a->even_odd : a->q) + 32 * b;
    __m256i v[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m256i pairs = pair_sums(f, c->block[j], load256(x + 32 * j));
        v[j] = _mm256_madd_epi16(pairs, cpu_has_halves(f) ? sub_scales(c->sub, j) : _mm256_set1_epi16(1));
    }
    return _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
}

/* I_b of the four blocks from b on. */
CPU_INLINE __m128i quad_integers(sl_format_id f, const quad_codes *c, const cpu_act *a, int64_t b) {
    __m256i h = quad_halves(f, c, a, b);
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    if (quad_offsets(f, a)) {
        return _mm_add_epi32(sum, load128(quad_offsets(f, a) + b));
    }
    if (f == SL_AFFINE8) {
        return _mm_sub_epi32(sum, load128(a->neg128 + b));
    }
    if (cpu_has_halves(f)) {
        __m256i eight = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(c->sub));
        __m256i off = _mm256_mullo_epi32(eight, _mm256_slli_epi32(load256(a->neg32 + 2 * b), raised_by(f)));
        return _mm_add_epi32(sum, _mm_hadd_epi32(_mm256_castsi256_si128(off), _mm256_extracti128_si256(off, 1)));
    }
    return sum;
}

/* ---- the product ---- */

/* sum[k] += the quad from block b on times row k of n rows of activations. */
CPU_INLINE void add_quad(sl_format_id f, const sl_matrix *w, const quad *q, int64_t row, const cpu_act *a, int n,
                         int64_t b, __m128 *sum) {
    scales s = load_scales(f, w, q, row);
    quad_codes c = load_quad(f, q);
#pragma GCC unroll 4
    for (int k = 0; k < n; k++) {
        if (cpu_has_pairs(f)) {
            __m256 h = _mm256_cvtepi32_ps(quad_halves(f, &c, &a[k], b));
            __m128 d = _mm_load_ps(a[k].d + b);
            sum[k] = _mm_fmadd_ps(_mm_mul_ps(s.s, d), _mm256_castps256_ps128(h), sum[k]);
            sum[k] = _mm_fmadd_ps(_mm_mul_ps(s.m, d), _mm256_extractf128_ps(h, 1), sum[k]);
            continue;
        }
        __m128 i = _mm_cvtepi32_ps(quad_integers(f, &c, &a[k], b));
        sum[k] = _mm_fmadd_ps(_mm_mul_ps(s.s, _mm_load_ps(a[k].d + b)), i, sum[k]);
        sum[k] = cpu_has_bias(f) ? _mm_fmadd_ps(s.m, _mm_load_ps(a[k].xs + b), sum[k]) : sum[k];
        if (f == SL_Q2_K) {
            __m128 minima = _mm_cvtepi32_ps(_mm_madd_epi16(c.minima, minus_half_sums(a[k].neg32 + 2 * b)));
            sum[k] = _mm_fmadd_ps(_mm_mul_ps(s.m, _mm_load_ps(a[k].d + b)), minima, sum[k]);
        }
    }
}

/* The last one to three blocks: partial sums of blocks that do not exist stay
 * as they are. */
CPU_INLINE void add_rest(sl_format_id f, const sl_matrix *w, const uint8_t *p, int64_t row, const cpu_act *a, int n,
                         int64_t b, __m128 *sum) {
    const int64_t blocks = w->cols / 32;
    __m128i there = _mm_cmplt_epi32(_mm_setr_epi32(0, 1, 2, 3), _mm_set1_epi32((int)(blocks - b)));
    quad q = quad_at(f, w, p, b, 0, blocks - 1);
    __m128 all[ACTS];
    memcpy(all, sum, (size_t)n * sizeof *sum);
    add_quad(f, w, &q, row, a, n, b, all);
    for (int k = 0; k < n; k++) {
        sum[k] = _mm_blendv_ps(sum[k], all[k], _mm_castsi128_ps(there));
    }
}

CPU_INLINE float fold(__m128 sum) {
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

/* y[k * ldy] = row `row` of w times a[k], k < n. */
CPU_INLINE void dot_row(sl_format_id f, const sl_matrix *w, int64_t row, const cpu_act *a, int n, float *y,
                        int64_t ldy) {
    const uint8_t *p = w->part[0] + (uint64_t)row * w->row_bytes[0];
    const int64_t blocks = w->cols / 32, turn = 4 * quad_per_turn(f);
    __m128 sum[ACTS];
    int64_t b = 0;
#pragma GCC unroll 4
    for (int k = 0; k < n; k++) {
        sum[k] = _mm_setzero_ps();
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

const cpu_matmul_isa cpu_matmul_avx2 = {
    .name = "avx2",
    .quantize_row = quantize_row,
    .matvec = matvec,
    .matvec_many = matvec_many,
    .pack = cpu_tile_pack_avx2,
    .mul = cpu_tile_mul_avx2,
    .tile_rows = 16,
    .tile_acts = CPU_TILE_ACTS_AVX2,
    .tile_from = 6,
    .matmul_float = cpu_matmul_float,
    .silu_mul = v16_silu_mul,
};

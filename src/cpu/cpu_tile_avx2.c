/* AVX2: products with many rows of activations, in tiles (cpu_tile.h) of 16 rows of W.
 *
 * Products of unsigned codes with signed activations are summed in pairs to 16 bits, and those sums as far as they fit:
 * 8 of 4-bit codes (8 * 2 * 15 * 127 < 2^15), 4 of 5-bit, 2 of 6-bit ones. Codes of 8 bits are signed; their magnitudes
 * are multiplied with activations that bear their signs, and each pair is widened. */
#include "cpu/cpu_tile_avx2.h"

#include "cpu/cpu_avx2.h"

enum { TILE_ROWS = 16, TILE_LANES = 8, TILE_VECTORS = TILE_ROWS / TILE_LANES };

#include "cpu/cpu_tile.h"

/* ---- packing ----
 * 8 rows x 4 blocks at a time. */

enum { PACK_ROWS = 8 };

/* v[row], 32-bit word j to v[j], word row */
CPU_INLINE void transpose_words(__m256i v[8]) {
    __m256i t[8];
    for (int i = 0; i < 8; i += 4) {
        __m256i a = _mm256_unpacklo_epi32(v[i], v[i + 1]), b = _mm256_unpackhi_epi32(v[i], v[i + 1]);
        __m256i c = _mm256_unpacklo_epi32(v[i + 2], v[i + 3]), d = _mm256_unpackhi_epi32(v[i + 2], v[i + 3]);
        t[i] = _mm256_unpacklo_epi64(a, c);
        t[i + 1] = _mm256_unpackhi_epi64(a, c);
        t[i + 2] = _mm256_unpacklo_epi64(b, d);
        t[i + 3] = _mm256_unpackhi_epi64(b, d);
    }
    for (int j = 0; j < 4; j++) {
        v[j] = _mm256_permute2x128_si256(t[j], t[j + 4], 0x20);
        v[j + 4] = _mm256_permute2x128_si256(t[j], t[j + 4], 0x31);
    }
}

/* Block j of 8 rows' quads to rows row .. row + 7 of t. */
CPU_INLINE void pack_block(sl_format_id f, const quad q[PACK_ROWS], int j, record *t, int64_t row) {
    __m256i v[PACK_ROWS];
    for (int r = 0; r < PACK_ROWS; r++) {
        v[r] = load_codes(f, &q[r], j);
        if (cpu_has_halves(f)) {
            uint64_t sub = quad_half_scales(f, &q[r]) >> 16 * j;
            t->u.sub[0][row + r] = (int8_t)sub;
            t->u.sub[1][row + r] = (int8_t)(sub >> 8);
        }
        if (f == SL_Q2_K) {
            uint64_t both = quad_q2_k_scales(&q[r]) >> 16 * j;
            t->u.minima.min[row + r][0] = (int16_t)(both >> 4 & 15);
            t->u.minima.min[row + r][1] = (int16_t)(both >> 12 & 15);
        }
    }
    transpose_words(v);
    for (int k = 0; k < 8; k++) {
        _mm256_store_si256((__m256i *)t->code[k][row], v[k]);
    }
}

/* v[row], lane b to `offset` of record b, n of which exist. */
CPU_INLINE void pack_values(__m128 v[PACK_ROWS], uint8_t *const at[4], int64_t offset, int n) {
    for (int r = 0; r < PACK_ROWS; r += 4) {
        _MM_TRANSPOSE4_PS(v[r], v[r + 1], v[r + 2], v[r + 3]);
        for (int b = 0; b < n; b++) {
            _mm_store_ps((float *)(at[b] + offset) + r, v[r + b]);
        }
    }
}

/* Blocks b .. b + n - 1 of rows row[0..7] of w to the records at `at`, from row `to` of the tile on. */
CPU_INLINE void pack_quads(sl_format_id f, const sl_matrix *w, const int64_t row[PACK_ROWS], int64_t b, int half, int n,
                           uint8_t *const at[4], int64_t to) {
    quad q[PACK_ROWS];
    __m128 s[PACK_ROWS], m[PACK_ROWS];
    for (int r = 0; r < PACK_ROWS; r++) {
        q[r] = quad_at(f, w, w->part[0] + (uint64_t)row[r] * w->row_bytes[0], b, half, w->cols / 32 - 1);
        scales v = load_scales(f, w, &q[r], row[r]);
        s[r] = v.s;
        m[r] = has_second(f) ? v.m : _mm_setzero_ps();
    }
    pack_values(s, at, (int64_t)offsetof(record, scale) + 4 * to, n);
    if (has_second(f)) {
        pack_values(m, at, (int64_t)offsetof(record, u) + 4 * to, n);
    }
    for (int j = 0; j < n; j++) {
        pack_block(f, q, j, (record *)at[j], to);
    }
}

CPU_INLINE void pack_format(sl_format_id f, const sl_matrix *w, int64_t row0, int64_t rows, uint8_t *tile,
                            void *scratch) {
    const int64_t blocks = w->cols / 32, size = record_bytes(f);
    for (int64_t g = 0; g < TILE_ROWS; g += PACK_ROWS) {
        int64_t row[PACK_ROWS];
        uint8_t *at[4];
        for (int r = 0; r < PACK_ROWS; r++) {
            /* The last row again where there are no more: its lanes are multiplied and not read. */
            row[r] = sl_min_i64(row0 + g + r, row0 + rows - 1);
        }
        for (int c = 0; c < 4; c++) {
            at[c] = tile + class_start(blocks, c) * size;
        }
        for (int64_t b = 0; b < blocks; b += 4) {
            if (b + 4 > blocks) {
                pack_quads(f, w, row, b, 0, (int)(blocks - b), at, g);
            } else if (quad_is_half(f) && b & 4) {
                pack_quads(f, w, row, b, 1, 4, at, g);
            } else {
                pack_quads(f, w, row, b, 0, 4, at, g);
            }
            for (int c = 0; c < 4; c++) {
                at[c] += size;
            }
        }
    }
}

/* ---- multiplying ---- */

typedef __m256i tile_i;
typedef __m256 tile_f;

CPU_INLINE tile_f tile_zero(void) {
    return _mm256_setzero_ps();
}
CPU_INLINE tile_f tile_set(float v) {
    return _mm256_set1_ps(v);
}
CPU_INLINE tile_f tile_load(const float *p) {
    return _mm256_load_ps(p);
}
CPU_INLINE void tile_store(float *p, tile_f v) {
    _mm256_store_ps(p, v);
}
CPU_INLINE tile_f tile_add(tile_f a, tile_f b) {
    return _mm256_add_ps(a, b);
}
CPU_INLINE tile_f tile_mul(tile_f a, tile_f b) {
    return _mm256_mul_ps(a, b);
}
CPU_INLINE tile_f tile_fma(tile_f a, tile_f b, tile_f c) {
    return _mm256_fmadd_ps(a, b, c);
}
CPU_INLINE tile_f tile_float(tile_i v) {
    return _mm256_cvtepi32_ps(v);
}

CPU_INLINE tile_i tile_pairs(const int16_t *p, int32_t pair) {
    return _mm256_madd_epi16(load256(p), _mm256_set1_epi32(pair));
}

/* How many groups of 4 columns are summed in 16 bits; 0: none, the codes are signed bytes. Those of grids with halves
 * are below 64 + 44. */
CPU_INLINE int narrow_groups(sl_format_id f) {
    return f == SL_IQ2_XS                                        ? 1
           : f == SL_Q8_0 || f == SL_AFFINE8 || cpu_has_pairs(f) ? 0
           : f == SL_Q6_K || f == SL_AFFINE6 || f == SL_Q2_K     ? 2
           : f == SL_Q5_0 || f == SL_Q5_1                        ? 4
                                                                 : 8;
}

CPU_INLINE __m256i widen(__m256i pairs) {
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/* v, computed here and now: gcc would turn a chain of additions into a tree, whose leaves do not fit the registers. */
CPU_INLINE __m256i in_order(__m256i v) {
    __asm__("" : "+x"(v));
    return v;
}

/* Groups from .. to - 1, whose pairs of products fit 16 bits together, added to acc. */
CPU_INLINE void dot_narrow(const record *t, int from, int to, int A, const uint8_t *const x[], int64_t at,
                           tile_i acc[TILE_VECTORS][CPU_TILE_ACTS]) {
    __m256i pairs[TILE_VECTORS][CPU_TILE_ACTS];
#pragma GCC unroll 8
    for (int j = from; j < to; j++) {
        __m256i w0 = load256(t->code[j][0]), w1 = load256(t->code[j][8]);
#pragma GCC unroll 8
        for (int a = 0; a < A; a++) {
            __m256i v = _mm256_set1_epi32(int_at(x[a] + at + 4 * j));
            __m256i p0 = _mm256_maddubs_epi16(w0, v), p1 = _mm256_maddubs_epi16(w1, v);
            pairs[0][a] = j == from ? p0 : in_order(_mm256_add_epi16(pairs[0][a], p0));
            pairs[1][a] = j == from ? p1 : in_order(_mm256_add_epi16(pairs[1][a], p1));
        }
    }
#pragma GCC unroll 8
    for (int a = 0; a < A; a++) {
        acc[0][a] = _mm256_add_epi32(acc[0][a], widen(pairs[0][a]));
        acc[1][a] = _mm256_add_epi32(acc[1][a], widen(pairs[1][a]));
    }
}

/* Signed codes of columns 4 * from .. 4 * to - 1. */
CPU_INLINE void dot_signed(const record *t, int from, int to, int A, const uint8_t *const x[], int64_t at,
                           tile_i acc[TILE_VECTORS][CPU_TILE_ACTS]) {
#pragma GCC unroll 8
    for (int j = from; j < to; j++) {
        __m256i w0 = load256(t->code[j][0]), w1 = load256(t->code[j][8]);
        __m256i m0 = _mm256_abs_epi8(w0), m1 = _mm256_abs_epi8(w1);
#pragma GCC unroll 8
        for (int a = 0; a < A; a++) {
            __m256i v = _mm256_set1_epi32(int_at(x[a] + at + 4 * j));
            __m256i p0 = _mm256_maddubs_epi16(m0, _mm256_sign_epi8(v, w0));
            __m256i p1 = _mm256_maddubs_epi16(m1, _mm256_sign_epi8(v, w1));
            acc[0][a] = in_order(_mm256_add_epi32(acc[0][a], widen(p0)));
            acc[1][a] = in_order(_mm256_add_epi32(acc[1][a], widen(p1)));
        }
    }
}

/* From the integers at `at`, times 2^up. */
CPU_INLINE void start_at(int A, const uint8_t *const x[], int64_t at, int up, tile_i acc[TILE_VECTORS][CPU_TILE_ACTS]) {
#pragma GCC unroll 8
    for (int a = 0; a < A; a++) {
        acc[0][a] = acc[1][a] = _mm256_set1_epi32(int_at(x[a] + at) * (1 << up));
    }
}

CPU_INLINE void sums_halves(sl_format_id f, const record *t, int A, const uint8_t *const x[], const act_offsets *o,
                            int64_t b, tile_i acc[TILE_VECTORS][CPU_TILE_ACTS]) {
    __m256i half[TILE_VECTORS][CPU_TILE_ACTS];
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        start_at(A, x, o->init + 8 * b + 4 * h, raised_by(f), half);
#pragma GCC unroll 4
        for (int j = 4 * h; j < 4 * h + 4; j += narrow_groups(f)) {
            dot_narrow(t, j, j + narrow_groups(f), A, x, o->q + 32 * b, half);
        }
#pragma GCC unroll 2
        for (int v = 0; v < TILE_VECTORS; v++) {
            __m256i sub = load256(t->u.sub[h] + TILE_LANES * v);
#pragma GCC unroll 8
            for (int a = 0; a < A; a++) {
                __m256i scaled = _mm256_mullo_epi32(half[v][a], sub);
                acc[v][a] = h == 0 ? scaled : _mm256_add_epi32(acc[v][a], scaled);
            }
        }
    }
}

CPU_INLINE void tile_sums(sl_format_id f, const record *t, int A, const uint8_t *const x[], const act_offsets *o,
                          int64_t b, tile_i acc[TILE_VECTORS][CPU_TILE_ACTS]) {
    if (cpu_has_halves(f)) {
        sums_halves(f, t, A, x, o, b, acc);
        return;
    }
#pragma GCC unroll 8
    for (int a = 0; a < A; a++) {
        __m256i start = _mm256_setzero_si256();
        if (f == SL_Q4_0 || f == SL_Q5_0) {
            start = _mm256_set1_epi32(int_at(x[a] + o->init + 4 * b));
        } else if (f == SL_AFFINE8) { /* codes less 128: the sum of activations 128 times, which is stored negated */
            start = _mm256_sub_epi32(start, _mm256_set1_epi32(int_at(x[a] + o->init + 4 * b)));
        }
        acc[0][a] = acc[1][a] = start;
    }
    if (narrow_groups(f) == 0) {
        dot_signed(t, 0, 8, A, x, o->q + 32 * b, acc);
        return;
    }
#pragma GCC unroll 4
    for (int j = 0; j < 8; j += narrow_groups(f)) {
        dot_narrow(t, j, j + narrow_groups(f), A, x, o->q + 32 * b, acc);
    }
}

CPU_INLINE void tile_half(sl_format_id f, int h, const record *t, int A, const uint8_t *const x[], const act_offsets *o,
                          int64_t b, tile_i acc[TILE_VECTORS][CPU_TILE_ACTS]) {
#pragma GCC unroll 8
    for (int a = 0; a < A; a++) {
        acc[0][a] = acc[1][a] = _mm256_setzero_si256();
    }
    dot_signed(t, 4 * h, 4 * h + 4, A, x, o->q + 32 * b, acc);
}

#include "cpu/cpu_tile_impl.h"

/* ---- by format and number of activations ---- */

PACK_ALL

void cpu_tile_pack_avx2(const sl_matrix *w, int64_t row0, int64_t rows, void *tile, void *scratch) {
    packers[w->format](w, row0, rows, tile, scratch);
}

#define MULS(name, f) MUL_BODY(name, f) MUL(name, f, 1) MUL(name, f, 2) MUL(name, f, 3) MUL(name, f, 4)
#define NAMES(name)                                                                                                    \
    { mul_##name##_1, mul_##name##_2, mul_##name##_3, mul_##name##_4 }

MULS(q4_0, SL_Q4_0)
MULS(q4_1, SL_Q4_1) /* biased codes of up to four bits in the order of columns */
MULS(q5_0, SL_Q5_0)
MULS(q5_1, SL_Q5_1) /* of five */
MULS(affine6, SL_AFFINE6)
MULS(q8_0, SL_Q8_0)     /* signed codes */
MULS(q6_k, SL_Q6_K)     /* halves, codes plus 32 */
MULS(iq2_xs, SL_IQ2_XS) /* halves, codes plus 64 */
MULS(q2_k, SL_Q2_K)
MULS(affine4, SL_AFFINE4)
MULS(affine8, SL_AFFINE8)
MULS(nvfp4, SL_NVFP4)

static tile_mul_fn *const multipliers[SL_FORMAT_COUNT][CPU_TILE_ACTS_AVX2] = {
    [SL_Q4_0] = NAMES(q4_0),       [SL_Q4_1] = NAMES(q4_1),        [SL_Q5_0] = NAMES(q5_0),
    [SL_Q5_1] = NAMES(q5_1),       [SL_Q8_0] = NAMES(q8_0),        [SL_Q4_K] = NAMES(q4_1),
    [SL_Q5_K] = NAMES(q5_1),       [SL_Q6_K] = NAMES(q6_k),        [SL_AFFINE4] = NAMES(affine4),
    [SL_AFFINE8] = NAMES(affine8), [SL_AFFINE2] = NAMES(q4_1),     [SL_AFFINE3] = NAMES(q4_1),
    [SL_AFFINE5] = NAMES(q5_1),    [SL_AFFINE6] = NAMES(affine6),  [SL_Q2_K] = NAMES(q2_k),
    [SL_Q3_K] = NAMES(q6_k),       [SL_IQ4_NL] = NAMES(q8_0),      [SL_IQ4_XS] = NAMES(q8_0),
    [SL_MXFP4] = NAMES(q8_0),      [SL_MXFP4_SPLIT] = NAMES(q8_0), [SL_TQ2_0] = NAMES(q8_0),
    [SL_IQ2_XXS] = NAMES(q8_0),    [SL_IQ2_XS] = NAMES(iq2_xs),    [SL_IQ2_S] = NAMES(iq2_xs),
    [SL_IQ3_XXS] = NAMES(q8_0),    [SL_IQ3_S] = NAMES(q8_0),       [SL_IQ1_S] = NAMES(q8_0),
    [SL_IQ1_M] = NAMES(iq2_xs),    [SL_NVFP4] = NAMES(nvfp4),      [SL_NVFP4_SPLIT] = NAMES(nvfp4),
    [SL_TQ1_0] = NAMES(q8_0),
};

void cpu_tile_mul_avx2(const sl_matrix *w, const void *tile, const cpu_rows *in, int64_t i, int64_t acts, float *out,
                       cpu_ahead *ahead) {
    multipliers[w->format][acts - 1](tile, in, i, out, ahead);
}

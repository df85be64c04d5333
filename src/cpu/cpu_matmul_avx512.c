/* AVX-512: activations to int8, and the product of a matrix with one row of activations.
 *
 * The matvec does 4 rows x 4 blocks at a time: two dot instructions (64 products each) per row, a 4 x 4 transpose and
 * add of the integers, and one multiply and one or two fused multiply-adds for 16 sums: about 3 vector instructions per
 * block of 32 weights, a quarter of what the cores can do in the time that memory needs to bring the block. */
#include "cpu/cpu_float_impl.h"
#include "cpu/cpu_scales_avx512.h"
#include "cpu/cpu_tile_avx512.h"

/* ---- activations ---- */

/* Four blocks at a time, as the reductions of four cost as much as one. */

CPU_INLINE __m512i magnitude(__m512 v) {
    return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
}

/* Bits of the greatest magnitude of each block; x[2b], x[2b + 1] are block b. */
CPU_INLINE __m128i four_amax(const __m512 x[8]) {
    __m512i m[4];
    for (int b = 0; b < 4; b++) {
        m[b] = _mm512_max_epu32(magnitude(x[2 * b]), magnitude(x[2 * b + 1]));
    }
    __m512i ab = _mm512_max_epu32(_mm512_unpacklo_epi32(m[0], m[1]), _mm512_unpackhi_epi32(m[0], m[1]));
    __m512i cd = _mm512_max_epu32(_mm512_unpacklo_epi32(m[2], m[3]), _mm512_unpackhi_epi32(m[2], m[3]));
    __m512i all = _mm512_max_epu32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    __m256i half = _mm256_max_epu32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    return _mm_max_epu32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

/* d of each block, and what its values are multiplied with: both as cpu.h says for blocks that are not finite or zero.
 */
CPU_INLINE __m128 four_scales(__m128i amax, __m128 *inverse) {
    __mmask8 huge = _mm_cmpge_epu32_mask(amax, _mm_set1_epi32((int)CPU_BITS_INFINITE));
    __mmask8 usual = _mm_cmpge_epu32_mask(amax, _mm_set1_epi32((int)CPU_BITS_LEAST)) & (__mmask8)~huge;
    __m128 a = _mm_castsi128_ps(amax), top = _mm_set1_ps(127.0f);
    *inverse = _mm_maskz_div_ps(usual, top, a);
    return _mm_mask_blend_ps(huge, _mm_maskz_div_ps(usual, a, top), _mm_set1_ps(quant_float_of(0x7fc00000)));
}

/* Values times inverse, rounded, 16 bytes; zeros where inverse is zero, whatever the values. */
CPU_INLINE __m128i round_half(__m512 x, __m512 inverse) {
    __mmask16 usual = _mm512_cmp_ps_mask(inverse, _mm512_setzero_ps(), _CMP_NEQ_OQ);
    return _mm512_cvtepi32_epi8(_mm512_maskz_cvtps_epi32(usual, _mm512_mul_ps(x, inverse)));
}

/* One block to its place: 32 codes in both orders. */
CPU_INLINE __m256i store_codes(__m128i lo, __m128i hi, const cpu_act *out, int64_t b) {
    const __m128i split = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    __m128i l = _mm_shuffle_epi8(lo, split), h = _mm_shuffle_epi8(hi, split);
    __m256i q = _mm256_set_m128i(hi, lo);
    _mm256_store_si256((__m256i *)(out->q + 32 * b), q);
    _mm256_store_si256((__m256i *)(out->even_odd + 32 * b),
                       _mm256_set_m128i(_mm_unpackhi_epi64(l, h), _mm_unpacklo_epi64(l, h)));
    return q;
}

/* The sum of each 128-bit lane's bytes in all of its 32-bit lanes. */
CPU_INLINE __m512i lane_sums(__m256i a, __m256i b) {
    __m512i q = _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
    __m512i v = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), q);
    v = _mm512_add_epi32(v, _mm512_shuffle_epi32(v, _MM_PERM_BADC));
    return _mm512_add_epi32(v, _mm512_shuffle_epi32(v, _MM_PERM_CDAB));
}

CPU_INLINE void store_sums(__m512i ab, __m512i cd, __m128 d, const cpu_act *out, int64_t b) {
    const __m512i each = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 0, 0, 0, 0, 0, 0, 0);
    __m256i half = _mm512_castsi512_si256(_mm512_permutex2var_epi32(ab, each, cd)); /* [block][half] */
    __m256i pair = _mm256_add_epi32(half, _mm256_srli_epi64(half, 32));
    __m128i sum = _mm256_cvtepi64_epi32(pair), zero = _mm_setzero_si128();
    _mm_store_ps((float *)out->d + b, d);
    _mm_store_ps((float *)out->xs + b, _mm_mul_ps(d, _mm_cvtepi32_ps(sum)));
    _mm_store_si128((__m128i *)(out->neg8 + b), _mm_sub_epi32(zero, _mm_slli_epi32(sum, 3)));
    _mm_store_si128((__m128i *)(out->neg16 + b), _mm_sub_epi32(zero, _mm_slli_epi32(sum, 4)));
    _mm_store_si128((__m128i *)(out->neg128 + b), _mm_sub_epi32(zero, _mm_slli_epi32(sum, 7)));
    _mm256_store_si256((__m256i *)(out->neg32 + 2 * b),
                       _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(half, 5)));
}

/* Blocks b .. b + 3 from their 128 values. */
CPU_INLINE void quantize_four(const __m512 x[8], const cpu_act *out, int64_t b) {
    __m128 inverse, d = four_scales(four_amax(x), &inverse);
    __m512 inverses = _mm512_castps128_ps512(inverse);
    __m256i q[4];
    for (int k = 0; k < 4; k++) {
        __m512 v = _mm512_permutexvar_ps(_mm512_set1_epi32(k), inverses);
        q[k] = store_codes(round_half(x[2 * k], v), round_half(x[2 * k + 1], v), out, b + k);
    }
    store_sums(lane_sums(q[0], q[1]), lane_sums(q[2], q[3]), d, out, b);
}

CPU_INLINE __mmask16 first_lanes(int64_t n) {
    return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
}

/* Values at .. at + 15 of the row, zeros behind its end. */
CPU_INLINE __m512 load_part(const float *x, int64_t at, int64_t cols) {
    return at < cols ? _mm512_maskz_loadu_ps(first_lanes(cols - at), x + at) : _mm512_setzero_ps();
}

static void quantize_row(const float *x, int64_t cols, void *q) {
    cpu_act out = cpu_act_row(q, cols, 0);
    __m512 v[8];
    int64_t b = 0;
    for (; 32 * b + 128 <= cols; b += 4) {
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) {
            v[k] = _mm512_loadu_ps(x + 32 * b + 16 * k);
        }
        quantize_four(v, &out, b);
    }
    for (; b < cpu_act_blocks(cols); b += 4) {
        for (int k = 0; k < 8; k++) {
            v[k] = load_part(x, 32 * b + 16 * k, cols);
        }
        quantize_four(v, &out, b);
    }
}

/* ---- one step ---- */

/* What a step takes from the activations: codes as the weights' lo and hi, constants of four blocks over the four lanes
 * of each. */
typedef struct step_x {
    __m512i lo, hi;
    __m512i init_lo, init_hi;
    __m512 d, xs;
    __m512i half_sums; /* Q2_K: negated, of each block's halves, 16 bits each */
} step_x;

CPU_INLINE __m512i lane_block(void) {
    return _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
}

/* Four values, one per block, to the first lane of each block. */
CPU_INLINE __m512i in_first_lanes(const int32_t *p) {
    return _mm512_maskz_permutexvar_epi32(0x1111, lane_block(), _mm512_castsi128_si512(load128(p)));
}

CPU_INLINE __m512 over_lanes(const float *p) {
    return _mm512_permutexvar_ps(lane_block(), _mm512_castps128_ps512(_mm_load_ps(p)));
}

CPU_INLINE step_x load_x(sl_format_id f, const cpu_act *a, int64_t b) {
    const int8_t *q = (f == SL_AFFINE4 ? a->even_odd : a->q) + 32 * b;
    codes c = from_whole(load512(q), load512(q + 64));
    step_x x = {.lo = c.lo, .hi = c.hi, .d = over_lanes(a->d + b)};
    x.init_lo = x.init_hi = _mm512_setzero_si512();
    if (f == SL_Q4_0) {
        x.init_lo = in_first_lanes(a->neg8 + b);
    } else if (f == SL_Q5_0) {
        x.init_lo = in_first_lanes(a->neg16 + b);
    } else if (cpu_has_pairs(f)) { /* codes are raised by 128, four times what neg32 takes off */
        __m512i v = _mm512_castsi256_si512(_mm256_slli_epi32(load256(a->neg32 + 2 * b), 2));
        __m512i two = _mm512_slli_epi32(lane_block(), 1);
        x.init_lo = _mm512_maskz_permutexvar_epi32(0x1111, two, v);
        x.init_hi = _mm512_maskz_permutexvar_epi32(0x1111, _mm512_add_epi32(two, _mm512_set1_epi32(1)), v);
    } else if (cpu_is_signed(f)) {
        x.init_lo = in_first_lanes(a->neg128 + b);
    } else if (cpu_has_halves(f)) {
        __m256i off = _mm256_slli_epi32(load256(a->neg32 + 2 * b), (unsigned)raised_by(f));
        __m512i v = _mm512_castsi256_si512(off), two = _mm512_slli_epi32(lane_block(), 1);
        x.init_lo = _mm512_maskz_permutexvar_epi32(0x1111, two, v);
        x.init_hi = _mm512_maskz_permutexvar_epi32(0x1111, _mm512_add_epi32(two, _mm512_set1_epi32(1)), v);
    }
    if (cpu_has_bias(f)) {
        x.xs = over_lanes(a->xs + b);
    }
    if (f == SL_Q2_K) {
        x.half_sums = _mm512_permutexvar_epi32(lane_block(), _mm512_castsi128_si512(minus_half_sums(a->neg32 + 2 * b)));
    }
    return x;
}

/* What a step takes from one row of W: codes, and the scales of each block's two halves over its lanes. */
typedef struct step_w {
    codes c;
    __m512i sub_lo, sub_hi;
} step_w;

CPU_INLINE step_w load_w(sl_format_id f, const uint8_t *p, __m512i head, int step) {
    step_w w = {.c = load_codes(f, p, head, step)};
    if (cpu_is_grid(f) && cpu_has_halves(f)) {
        w.sub_lo = grid_half_scales(f, p, step, 0);
        w.sub_hi = grid_half_scales(f, p, step, 1);
    } else if (cpu_has_halves(f)) {
        quad q = unit_quad(f, p, step);
        __m128i bytes = _mm_cvtsi64_si128((int64_t)quad_half_scales(f, &q));
        __m512i sub = _mm512_castsi256_si512(_mm256_cvtepi8_epi32(bytes)), two = _mm512_slli_epi32(lane_block(), 1);
        w.sub_lo = _mm512_permutexvar_epi32(two, sub);
        w.sub_hi = _mm512_permutexvar_epi32(_mm512_add_epi32(two, _mm512_set1_epi32(1)), sub);
    }
    return w;
}

/* The integer sums of one row: the four lanes of block b add up to I_b. */
CPU_INLINE __m512i row_sums(sl_format_id f, const step_w *w, const step_x *x) {
    if (!cpu_has_halves(f)) {
        return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(x->init_lo, w->c.lo, x->lo), w->c.hi, x->hi);
    }
    return _mm512_add_epi32(_mm512_mullo_epi32(_mm512_dpbusd_epi32(x->init_lo, w->c.lo, x->lo), w->sub_lo),
                            _mm512_mullo_epi32(_mm512_dpbusd_epi32(x->init_hi, w->c.hi, x->hi), w->sub_hi));
}

/* Lane 4 * block + row = sum of that block's lanes of that row. */
CPU_INLINE __m512i add_transposed(__m512i a, __m512i b, __m512i c, __m512i d) {
    __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

/* The same of formats whose halves have scales of their own. */
CPU_INLINE __m512 add_pairs(const step_w w[4], const scales *s, const step_x *x, __mmask16 lanes, __m512 sum) {
    __m512i lo = add_transposed(
        _mm512_dpbusd_epi32(x->init_lo, w[0].c.lo, x->lo), _mm512_dpbusd_epi32(x->init_lo, w[1].c.lo, x->lo),
        _mm512_dpbusd_epi32(x->init_lo, w[2].c.lo, x->lo), _mm512_dpbusd_epi32(x->init_lo, w[3].c.lo, x->lo));
    __m512i hi = add_transposed(
        _mm512_dpbusd_epi32(x->init_hi, w[0].c.hi, x->hi), _mm512_dpbusd_epi32(x->init_hi, w[1].c.hi, x->hi),
        _mm512_dpbusd_epi32(x->init_hi, w[2].c.hi, x->hi), _mm512_dpbusd_epi32(x->init_hi, w[3].c.hi, x->hi));
    sum = _mm512_mask3_fmadd_ps(_mm512_mul_ps(s->s, x->d), _mm512_cvtepi32_ps(lo), sum, lanes);
    return _mm512_mask3_fmadd_ps(_mm512_mul_ps(s->m, x->d), _mm512_cvtepi32_ps(hi), sum, lanes);
}

CPU_INLINE __m512 add_step(sl_format_id f, const step_w w[4], const scales *s, const step_x *x, __mmask16 lanes,
                           __m512 sum) {
    if (cpu_has_pairs(f)) {
        return add_pairs(w, s, x, lanes, sum);
    }
    __m512i i =
        add_transposed(row_sums(f, &w[0], x), row_sums(f, &w[1], x), row_sums(f, &w[2], x), row_sums(f, &w[3], x));
    sum = _mm512_mask3_fmadd_ps(_mm512_mul_ps(s->s, x->d), _mm512_cvtepi32_ps(i), sum, lanes);
    if (f == SL_Q2_K) {
        __m512 minima = _mm512_cvtepi32_ps(_mm512_madd_epi16(s->minima, x->half_sums));
        sum = _mm512_mask3_fmadd_ps(_mm512_mul_ps(s->m, x->d), minima, sum, lanes);
    }
    return cpu_has_bias(f) ? _mm512_mask3_fmadd_ps(s->m, x->xs, sum, lanes) : sum;
}

/* ---- the product ---- */

/* How far ahead of the reader memory is asked for: rows are short, and the hardware's own streams stop at their ends.
 * Measured on one core of a Zen 5 server, cold Q4_0 in GB/s: none 22, 4 KiB 34, 8 KiB 40, 16 KiB 43, plain reading 44.
 */
enum { PREFETCH_AHEAD = 16384 };

/* Rows of activations that share the unpacked codes, at most. */
enum { MATVEC_ACTS = 4 };

CPU_INLINE void prefetch_lines(const uint8_t *p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *)p + i, _MM_HINT_T0);
    }
}

/* Scales and biases of the rows whose codes are being asked for. */
CPU_INLINE void prefetch_sides(const sl_matrix *w, int64_t row) {
    row += PREFETCH_AHEAD / (int64_t)w->row_bytes[0] + 4;
    for (int p = 1; p < 3 && w->row_bytes[p]; p++) {
        prefetch_lines(w->part[p] + (uint64_t)row * w->row_bytes[p], (int64_t)(4 * w->row_bytes[p]));
    }
}

/* y[0..3] = (a0 + a2) + (a1 + a3) of each row */
CPU_INLINE __m128 fold(__m512 sum) {
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

/* Unit u of four rows at p times A rows of activations, added to sum; lanes of blocks that do not exist are left alone.
 */
CPU_INLINE void add_unit(sl_format_id f, int A, const sl_matrix *m, const uint8_t *const p[4], int64_t u,
                         const cpu_act *a, panel sides, __m512i index, __mmask16 lanes, __m512 *sum) {
    __m512i head[4] = {load_head(f, p[0]), load_head(f, p[1]), load_head(f, p[2]), load_head(f, p[3])};
    scales s[2];
    if (has_panel(f)) {
        s[0] = panel_scales(f, sides, index, u, panel_group(m));
    } else {
        load_scales(f, p, head, s);
    }
#pragma GCC unroll 2
    for (int k = 0; k < unit_steps(f); k++) {
        step_w w[4] = {load_w(f, p[0], head[0], k), load_w(f, p[1], head[1], k), load_w(f, p[2], head[2], k),
                       load_w(f, p[3], head[3], k)};
#pragma GCC unroll 4
        for (int i = 0; i < A; i++) {
            step_x x = load_x(f, &a[i], 4 * (u * unit_steps(f) + k));
            sum[i] = add_step(f, w, &s[k], &x, lanes, sum[i]);
        }
    }
}

/* y[i][0..3] = four rows times a[i], i < A */
CPU_INLINE void dot_four(sl_format_id f, int A, const sl_matrix *w, const four_rows *rows, const cpu_act *a,
                         panel sides, __m128 *y) {
    const int64_t blocks = w->cols / 32, units = blocks / (4 * unit_steps(f));
    const int64_t left = blocks - 4 * unit_steps(f) * units;
    const __m512i index = has_panel(f) ? panel_index(panel_group(w)) : _mm512_setzero_si512();
    __m512 sum[MATVEC_ACTS] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    rest bytes;
    if (has_panel(f)) {
        panel_fill_all(w, rows->row, sides);
        prefetch_sides(w, rows->row[0]);
    }
    for (int64_t u = 0; u < units + (left > 0); u++) {
        const int64_t at = u * unit_bytes(f);
        const uint8_t *p[4] = {rows->p[0] + at, rows->p[1] + at, rows->p[2] + at, rows->p[3] + at};
        prefetch_lines(rows->p[0] + 4 * at + PREFETCH_AHEAD, 4 * unit_bytes(f));
        __mmask16 lanes = 0xffff;
        if (u == units) {
            copy_rest(p, left * unit_bytes(f) / 4, &bytes);
            lanes = (__mmask16)((1 << 4 * left) - 1);
        }
        add_unit(f, A, w, p, u, a, sides, index, lanes, sum);
    }
    for (int i = 0; i < A; i++) {
        y[i] = fold(sum[i]);
    }
}

CPU_INLINE void matvec_format(sl_format_id f, int A, const sl_matrix *w, int64_t row0, int64_t row1, const cpu_act *a,
                              float *y, int64_t ldy, void *scratch) {
    panel sides = panel_at(scratch, w->cols, 0);
    prefetch_lines(w->part[0] + (uint64_t)row0 * w->row_bytes[0],
                   sl_min_i64(PREFETCH_AHEAD, (row1 - row0) * (int64_t)w->row_bytes[0]));
    for (int64_t r = row0; r < row1; r += 4) {
        four_rows rows = four_rows_at(w, r, row1);
        __m128 v[MATVEC_ACTS];
        dot_four(f, A, w, &rows, a, sides, v);
        for (int i = 0; i < A; i++) {
            _mm_mask_storeu_ps(y + i * ldy + r - row0, (__mmask8)first_lanes(row1 - r), v[i]);
        }
    }
}

/* ---- by format and number of activations ---- */

typedef void matvec_fn(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_act *a, float *y, int64_t ldy,
                       void *scratch);

#define MATVEC(name, f, A)                                                                                             \
    static void matvec_##name##_##A(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_act *a, float *y,        \
                                    int64_t ldy, void *scratch) {                                                      \
        matvec_format(f, A, w, row0, row1, a, y, ldy, scratch);                                                        \
    }
#define MATVECS_ALL(name, f) MATVEC(name, f, 1) MATVEC(name, f, 2) MATVEC(name, f, 4)
#define NAMES(name)                                                                                                    \
    { matvec_##name##_1, matvec_##name##_2, NULL, matvec_##name##_4 }
/* Unpacking costs more than multiplying: less to compile. */
#define MATVECS_SOME(name, f) MATVEC(name, f, 1) MATVEC(name, f, 4)
#if defined(CPU_FEW_FUNCTIONS)
#define MATVECS(name, f)                                                                                               \
    static __attribute__((noinline)) void matvec_##name(int A, const sl_matrix *w, int64_t row0, int64_t row1,         \
                                                        const cpu_act *a, float *y, int64_t ldy, void *scratch) {      \
        matvec_format(f, A, w, row0, row1, a, y, ldy, scratch);                                                        \
    }                                                                                                                  \
    MATVEC_OF(name, 1) MATVEC_OF(name, 2) MATVEC_OF(name, 4)
#define MATVEC_OF(name, A)                                                                                             \
    static inline void matvec_##name##_##A(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_act *a, float *y, \
                                           int64_t ldy, void *scratch) {                                               \
        matvec_##name(A, w, row0, row1, a, y, ldy, scratch);                                                           \
    }
#define MATVECS_FEW MATVECS
#define NAMES_FEW   NAMES
#else
#define MATVECS     MATVECS_ALL
#define MATVECS_FEW MATVECS_SOME
#define NAMES_FEW(name)                                                                                                \
    { matvec_##name##_1, NULL, NULL, matvec_##name##_4 }
#endif

MATVECS(q4_0, SL_Q4_0)
MATVECS(q4_1, SL_Q4_1)
MATVECS(q5_0, SL_Q5_0)
MATVECS(q5_1, SL_Q5_1)
MATVECS(q8_0, SL_Q8_0)
MATVECS(q4_k, SL_Q4_K)
MATVECS(q5_k, SL_Q5_K)
MATVECS(q6_k, SL_Q6_K)
MATVECS(affine4, SL_AFFINE4)
MATVECS(affine8, SL_AFFINE8)
MATVECS(affine2, SL_AFFINE2)
MATVECS(affine3, SL_AFFINE3)
MATVECS(affine5, SL_AFFINE5)
MATVECS(affine6, SL_AFFINE6)
MATVECS(q2_k, SL_Q2_K)
MATVECS(q3_k, SL_Q3_K)
MATVECS(iq4_nl, SL_IQ4_NL)
MATVECS(iq4_xs, SL_IQ4_XS)
MATVECS(mxfp4, SL_MXFP4)
MATVECS(mxfp4_split, SL_MXFP4_SPLIT)
MATVECS_FEW(nvfp4, SL_NVFP4)
MATVECS_FEW(nvfp4_split, SL_NVFP4_SPLIT)
MATVECS_FEW(tq1_0, SL_TQ1_0)
MATVECS_FEW(tq2_0, SL_TQ2_0)
MATVECS_FEW(iq2_xxs, SL_IQ2_XXS)
MATVECS_FEW(iq2_xs, SL_IQ2_XS)
MATVECS_FEW(iq2_s, SL_IQ2_S)
MATVECS_FEW(iq3_xxs, SL_IQ3_XXS)
MATVECS_FEW(iq3_s, SL_IQ3_S)
MATVECS_FEW(iq1_s, SL_IQ1_S)
MATVECS_FEW(iq1_m, SL_IQ1_M)

static matvec_fn *const matvecs[SL_FORMAT_COUNT][MATVEC_ACTS] = {
    [SL_Q4_0] = NAMES(q4_0),           [SL_Q4_1] = NAMES(q4_1),
    [SL_Q5_0] = NAMES(q5_0),           [SL_Q5_1] = NAMES(q5_1),
    [SL_Q8_0] = NAMES(q8_0),           [SL_Q4_K] = NAMES(q4_k),
    [SL_Q5_K] = NAMES(q5_k),           [SL_Q6_K] = NAMES(q6_k),
    [SL_AFFINE4] = NAMES(affine4),     [SL_AFFINE8] = NAMES(affine8),
    [SL_AFFINE2] = NAMES(affine2),     [SL_AFFINE3] = NAMES(affine3),
    [SL_AFFINE5] = NAMES(affine5),     [SL_AFFINE6] = NAMES(affine6),
    [SL_Q2_K] = NAMES(q2_k),           [SL_Q3_K] = NAMES(q3_k),
    [SL_IQ4_NL] = NAMES(iq4_nl),       [SL_IQ4_XS] = NAMES(iq4_xs),
    [SL_MXFP4] = NAMES(mxfp4),         [SL_MXFP4_SPLIT] = NAMES(mxfp4_split),
    [SL_TQ2_0] = NAMES_FEW(tq2_0),     [SL_IQ2_XXS] = NAMES_FEW(iq2_xxs),
    [SL_IQ2_XS] = NAMES_FEW(iq2_xs),   [SL_IQ2_S] = NAMES_FEW(iq2_s),
    [SL_IQ3_XXS] = NAMES_FEW(iq3_xxs), [SL_IQ3_S] = NAMES_FEW(iq3_s),
    [SL_IQ1_S] = NAMES_FEW(iq1_s),     [SL_IQ1_M] = NAMES_FEW(iq1_m),
    [SL_NVFP4] = NAMES_FEW(nvfp4),     [SL_NVFP4_SPLIT] = NAMES_FEW(nvfp4_split),
    [SL_TQ1_0] = NAMES_FEW(tq1_0),
};

static void matvec(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_rows *in, int64_t i, float *y,
                   void *scratch) {
    cpu_act a = cpu_rows_act(in, i);
    matvecs[w->format][0](w, row0, row1, &a, y, 0, scratch);
}

static int64_t matvec_many(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_rows *in, int64_t i, float *y,
                           int64_t ldy, void *scratch) {
    int64_t n = sl_min_i64(in->n - i, MATVEC_ACTS);
    cpu_act a[MATVEC_ACTS];
    while (!matvecs[w->format][n - 1]) {
        n--;
    }
    for (int64_t k = 0; k < n; k++) {
        a[k] = cpu_rows_act(in, i + k);
    }
    matvecs[w->format][n - 1](w, row0, row1, a, y, ldy, scratch);
    return n;
}

static void silu_mul(float *h, const float *gate, const float *up, int64_t n) {
    v16_silu_mul(h, gate, up, n);
}

const cpu_matmul_isa cpu_matmul_avx512 = {
    .name = "avx512",
    .quantize_row = quantize_row,
    .matvec = matvec,
    .matvec_many = matvec_many,
    .pack = cpu_tile_pack_avx512,
    .mul = cpu_tile_mul_avx512,
    .tile_rows = CPU_TILE_ROWS,
    .tile_acts = 6,
    .tile_from = 11,
    .matmul_float = cpu_matmul_float,
    .silu_mul = silu_mul,
};

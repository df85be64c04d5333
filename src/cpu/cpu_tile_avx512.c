/* AVX-512: products with many rows of activations, in tiles (cpu_tile.h) of 32 rows of W.
 *
 * Per block of 32 columns, 32 rows and 6 rows of activations: 96 dot instructions of 64 products, 48 others on the same
 * two pipes at most, 80 loads. Measured on a Zen 5 server: 96 products per cycle and core of the 128 that the dot
 * instructions alone would reach. */
#include "cpu/cpu_tile_avx512.h"

#include "cpu/cpu_scales_avx512.h"

enum { TILE_ROWS = 32, TILE_LANES = 16, TILE_VECTORS = TILE_ROWS / TILE_LANES };

#include "cpu/cpu_tile.h"

/* ---- packing ----
 * 16 rows x 4 blocks at a time, so that whole cache lines of a record are written. */

enum { HALF_ROWS = 16 };

/* 16 rows of W (the last valid one repeated: its lanes are multiplied and not read) and, for formats with panels,
 * their scales. */
typedef struct source {
    four_rows rows[HALF_ROWS / 4];
    panel sides[HALF_ROWS / 4];
    __m512i index;
    int32_t group;
} source;

CPU_INLINE void source_init(sl_format_id f, source *src, const sl_matrix *w, int64_t row0, int64_t end, void *scratch) {
    for (int g = 0; g < HALF_ROWS / 4; g++) {
        src->rows[g] = four_rows_at(w, sl_min_i64(row0 + 4 * g, end - 1), end);
        if (has_panel(f)) {
            src->sides[g] = panel_at(scratch, w->cols, g);
            panel_fill_all(w, src->rows[g].row, src->sides[g]);
        }
    }
    src->index = has_panel(f) ? panel_index(panel_group(w)) : _mm512_setzero_si512();
    src->group = panel_group(w);
}

/* 4 x 4 transpose of 128-bit lanes: out[l] = lane l of each. */
CPU_INLINE void transpose_lanes(__m512i a, __m512i b, __m512i c, __m512i d, __m512i out[4]) {
    __m512i ab0 = _mm512_shuffle_i64x2(a, b, 0x44), ab2 = _mm512_shuffle_i64x2(a, b, 0xee);
    __m512i cd0 = _mm512_shuffle_i64x2(c, d, 0x44), cd2 = _mm512_shuffle_i64x2(c, d, 0xee);
    out[0] = _mm512_shuffle_i64x2(ab0, cd0, 0x88);
    out[1] = _mm512_shuffle_i64x2(ab0, cd0, 0xdd);
    out[2] = _mm512_shuffle_i64x2(ab2, cd2, 0x88);
    out[3] = _mm512_shuffle_i64x2(ab2, cd2, 0xdd);
}

/* v[row], 128-bit lane l, 32-bit word j to out(j)[l], word row. */
CPU_INLINE void transpose_words(__m512i v[HALF_ROWS]) {
    for (int g = 0; g < HALF_ROWS; g += 4) {
        __m512i a = _mm512_unpacklo_epi32(v[g], v[g + 1]), b = _mm512_unpackhi_epi32(v[g], v[g + 1]);
        __m512i c = _mm512_unpacklo_epi32(v[g + 2], v[g + 3]), d = _mm512_unpackhi_epi32(v[g + 2], v[g + 3]);
        v[g] = _mm512_unpacklo_epi64(a, c);
        v[g + 1] = _mm512_unpackhi_epi64(a, c);
        v[g + 2] = _mm512_unpacklo_epi64(b, d);
        v[g + 3] = _mm512_unpackhi_epi64(b, d);
    }
}

CPU_INLINE void store_columns(uint8_t *at, int columns, __m512i v) {
    _mm512_store_si512(at + columns * (int)sizeof(((record *)0)->code[0]), v);
}

/* Codes of 16 rows, one byte each: lane b of v[row] has 16 columns, from 4 * first on, of block b. */
CPU_INLINE void pack_bytes(__m512i v[HALF_ROWS], uint8_t *const at[4], int first) {
    transpose_words(v);
    for (int j = 0; j < 4; j++) {
        __m512i block[4];
        transpose_lanes(v[j], v[4 + j], v[8 + j], v[12 + j], block);
        for (int b = 0; b < 4; b++) {
            store_columns(at[b], first + j, block[b]);
        }
    }
}

/* Codes of 16 rows, two to a byte, as they are in the file: split after the transpose, which has half the work. Q4_K
 * has two blocks in the halves of its bytes, the others the halves of one block. */
CPU_INLINE void pack_nibbles(sl_format_id f, __m512i v[HALF_ROWS], uint8_t *const at[4]) {
    transpose_words(v);
    for (int j = 0; j < 4; j++) {
        __m512i lane[4];
        transpose_lanes(v[j], v[4 + j], v[8 + j], v[12 + j], lane);
        for (int l = 0; l < 4; l++) {
            codes c = nibbles(lane[l]);
            bool pairs = f == SL_Q4_K;
            store_columns(at[pairs ? l & 2 : l], pairs ? j + 4 * (l & 1) : j, c.lo);
            store_columns(at[pairs ? (l & 2) + 1 : l], pairs ? j + 4 * (l & 1) : j + 4, c.hi);
        }
    }
}

CPU_INLINE bool is_packed(sl_format_id f) {
    return f == SL_Q4_0 || f == SL_Q4_1 || f == SL_Q4_K || f == SL_AFFINE4;
}

CPU_INLINE __m512i load_packed(sl_format_id f, const uint8_t *p, __m512i head, int step) {
    return f == SL_Q4_0   ? packed_q4_0(p, head)
           : f == SL_Q4_1 ? packed_q4_1(p, head)
           : f == SL_Q4_K ? load512(p + 16 + 64 * step)
                          : load512(p);
}

/* Codes of one step of 16 rows: packed nibbles in lo, or bytes in lo and hi. */
typedef struct step_codes {
    __m512i lo[HALF_ROWS], hi[HALF_ROWS];
} step_codes;

CPU_INLINE void load_step(sl_format_id f, const uint8_t *const p[4], const __m512i head[4], int step, __m512i lo[4],
                          __m512i hi[4]) {
    for (int r = 0; r < 4; r++) {
        if (is_packed(f)) {
            lo[r] = load_packed(f, p[r], head[r], step);
        } else {
            codes c = load_codes(f, p[r], head[r], step);
            lo[r] = c.lo;
            hi[r] = c.hi;
        }
    }
}

CPU_INLINE void pack_codes(sl_format_id f, step_codes *c, uint8_t *const at[4]) {
    if (is_packed(f)) {
        pack_nibbles(f, c->lo, at);
    } else {
        pack_bytes(c->lo, at, 0);
        pack_bytes(c->hi, at, 4);
    }
}

/* Values of 4 blocks x 16 rows, given as [block][4 rows] four times, to `offset` of each block's record. */
CPU_INLINE void pack_values(const __m512i v[4], uint8_t *const at[4], int64_t offset) {
    __m512i block[4];
    transpose_lanes(v[0], v[1], v[2], v[3], block);
    for (int b = 0; b < 4; b++) {
        _mm512_store_si512(at[b] + offset, block[b]);
    }
}

/* The 8 bytes of half blocks' scales per row and step, [row][block][half], to [half][block][row] as 32-bit integers. */
CPU_INLINE void pack_sub_scales(sl_format_id f, const uint8_t *const p[HALF_ROWS], int step, uint8_t *const at[4]) {
    const __m256i order = _mm256_setr_epi8(0, 8, 16, 24, 2, 10, 18, 26, 4, 12, 20, 28, 6, 14, 22, 30, 1, 9, 17, 25, 3,
                                           11, 19, 27, 5, 13, 21, 29, 7, 15, 23, 31);
    __m512i half[2][4];
    for (int g = 0; g < 4; g++) {
        long long v[4];
        for (int r = 0; r < 4; r++) {
            quad q = unit_quad(f, p[4 * g + r], step);
            v[r] = (long long)quad_half_scales(f, &q);
        }
        __m256i bytes = _mm256_permutexvar_epi8(order, _mm256_setr_epi64x(v[0], v[1], v[2], v[3]));
        half[0][g] = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes));
        half[1][g] = _mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1));
    }
    pack_values(half[0], at, (int64_t)offsetof(record, u));
    pack_values(half[1], at, (int64_t)offsetof(record, u) + TILE_ROWS * 4);
}

/* One unit of 16 rows at p to the records at `first` (and those `size` behind them for a second step). */
CPU_INLINE void pack_unit(sl_format_id f, const source *src, const uint8_t *const p[HALF_ROWS], int64_t u,
                          uint8_t *const first[4], int64_t size) {
    __m512i s[2][4], m[2][4], minima[2][4];
    step_codes c[2];
    for (int g = 0; g < 4; g++) {
        const uint8_t *const *q = p + 4 * g;
        __m512i head[4] = {load_head(f, q[0]), load_head(f, q[1]), load_head(f, q[2]), load_head(f, q[3])};
        scales sc[2];
        if (!has_panel(f)) {
            load_scales(f, q, head, sc);
        } else {
            sc[0] = panel_scales(f, src->sides[g], src->index, u, src->group);
        }
#pragma GCC unroll 2
        for (int k = 0; k < unit_steps(f); k++) {
            s[k][g] = _mm512_castps_si512(sc[k].s);
            m[k][g] = has_second(f) ? _mm512_castps_si512(sc[k].m) : _mm512_setzero_si512();
            minima[k][g] = f == SL_Q2_K ? sc[k].minima : _mm512_setzero_si512();
            load_step(f, q, head, k, c[k].lo + 4 * g, c[k].hi + 4 * g);
        }
    }
    for (int k = 0; k < unit_steps(f); k++) {
        uint8_t *at[4] = {first[0] + k * size, first[1] + k * size, first[2] + k * size, first[3] + k * size};
        pack_values(s[k], at, (int64_t)offsetof(record, scale));
        if (has_second(f)) {
            pack_values(m[k], at, (int64_t)offsetof(record, u));
        }
        if (f == SL_Q2_K) {
            pack_values(minima[k], at, (int64_t)offsetof(record, u.minima.min));
        }
        if (cpu_has_halves(f)) {
            pack_sub_scales(f, p, k, at);
        }
        pack_codes(f, &c[k], at);
    }
}

/* 16 rows of W from row0 on (those before end exist) to the lanes of the tile that begin at tile. A last unit that is
 * not whole is read from a copy, and its blocks that do not exist are written to a sink. */
CPU_INLINE void pack_half(sl_format_id f, const sl_matrix *w, int64_t row0, int64_t end, uint8_t *tile, void *scratch) {
    const int64_t blocks = w->cols / 32, units = blocks / (4 * unit_steps(f)), size = record_bytes(f);
    const int left = (int)(blocks - 4 * unit_steps(f) * units);
    _Alignas(64) uint8_t sink[sizeof(record)];
    uint8_t *at[4];
    const uint8_t *p[HALF_ROWS];
    rest bytes[HALF_ROWS / 4];
    source src;
    source_init(f, &src, w, row0, end, scratch);
    for (int c = 0; c < 4; c++) {
        at[c] = tile + class_start(blocks, c) * size;
    }
    for (int64_t u = 0; u < units + (left > 0); u++) {
        for (int r = 0; r < HALF_ROWS; r++) {
            p[r] = src.rows[r / 4].p[r % 4] + u * unit_bytes(f);
        }
        if (u == units) {
            for (int g = 0; g < HALF_ROWS / 4; g++) {
                copy_rest(p + 4 * g, left * unit_bytes(f) / 4, &bytes[g]);
            }
            for (int c = left; c < 4; c++) {
                at[c] = sink;
            }
        }
        pack_unit(f, &src, p, u, at, size);
        for (int c = 0; c < 4; c++) {
            at[c] += unit_steps(f) * size;
        }
    }
}

CPU_INLINE void pack_format(sl_format_id f, const sl_matrix *w, int64_t row0, int64_t rows, uint8_t *tile,
                            void *scratch) {
    for (int64_t r = 0; r < TILE_ROWS; r += HALF_ROWS) {
        pack_half(f, w, row0 + r, row0 + rows, tile + 4 * r, scratch);
    }
}

/* ---- multiplying ---- */

typedef __m512i tile_i;
typedef __m512 tile_f;

CPU_INLINE tile_f tile_zero(void) {
    return _mm512_setzero_ps();
}
CPU_INLINE tile_f tile_set(float v) {
    return _mm512_set1_ps(v);
}
CPU_INLINE tile_f tile_load(const float *p) {
    return _mm512_load_ps(p);
}
CPU_INLINE void tile_store(float *p, tile_f v) {
    _mm512_store_ps(p, v);
}
CPU_INLINE tile_f tile_add(tile_f a, tile_f b) {
    return _mm512_add_ps(a, b);
}
CPU_INLINE tile_f tile_mul(tile_f a, tile_f b) {
    return _mm512_mul_ps(a, b);
}
CPU_INLINE tile_f tile_fma(tile_f a, tile_f b, tile_f c) {
    return _mm512_fmadd_ps(a, b, c);
}
CPU_INLINE tile_f tile_float(tile_i v) {
    return _mm512_cvtepi32_ps(v);
}

CPU_INLINE tile_i tile_pairs(const int16_t *p, int32_t pair) {
    return _mm512_madd_epi16(load512(p), _mm512_set1_epi32(pair));
}

/* Sums of columns 4 * from .. 4 * to - 1 of the record's block, added to acc. */
CPU_INLINE void dot_columns(const record *t, int from, int to, int A, const uint8_t *const x[], int64_t at,
                            tile_i acc[TILE_VECTORS][CPU_TILE_ACTS]) {
#pragma GCC unroll 8
    for (int j = from; j < to; j++) {
        __m512i w0 = _mm512_load_si512(t->code[j][0]), w1 = _mm512_load_si512(t->code[j][16]);
#pragma GCC unroll 8
        for (int a = 0; a < A; a++) {
            __m512i v = _mm512_set1_epi32(int_at(x[a] + at + 4 * j));
            acc[0][a] = _mm512_dpbusd_epi32(acc[0][a], w0, v);
            acc[1][a] = _mm512_dpbusd_epi32(acc[1][a], w1, v);
        }
    }
}

/* From the integers at `at`, times 2^up. */
CPU_INLINE void start_at(int A, const uint8_t *const x[], int64_t at, int up, tile_i acc[TILE_VECTORS][CPU_TILE_ACTS]) {
#pragma GCC unroll 8
    for (int a = 0; a < A; a++) {
        acc[0][a] = acc[1][a] = _mm512_set1_epi32(int_at(x[a] + at) * (1 << up));
    }
}

CPU_INLINE void sums_halves(sl_format_id f, const record *t, int A, const uint8_t *const x[], const act_offsets *o,
                            int64_t b, tile_i acc[TILE_VECTORS][CPU_TILE_ACTS]) {
    __m512i first[TILE_VECTORS][CPU_TILE_ACTS];
    start_at(A, x, o->init + 8 * b, raised_by(f), first);
    dot_columns(t, 0, 4, A, x, o->q + 32 * b, first);
    start_at(A, x, o->init + 8 * b + 4, raised_by(f), acc);
    dot_columns(t, 4, 8, A, x, o->q + 32 * b, acc);
#pragma GCC unroll 2
    for (int v = 0; v < TILE_VECTORS; v++) {
        __m512i s0 = _mm512_load_si512(t->u.sub[0] + 16 * v), s1 = _mm512_load_si512(t->u.sub[1] + 16 * v);
#pragma GCC unroll 8
        for (int a = 0; a < A; a++) {
            acc[v][a] = _mm512_add_epi32(_mm512_mullo_epi32(first[v][a], s0), _mm512_mullo_epi32(acc[v][a], s1));
        }
    }
}

CPU_INLINE void tile_sums(sl_format_id f, const record *t, int A, const uint8_t *const x[], const act_offsets *o,
                          int64_t b, tile_i acc[TILE_VECTORS][CPU_TILE_ACTS]) {
    if (cpu_has_halves(f)) {
        sums_halves(f, t, A, x, o, b, acc);
        return;
    }
    bool offset = f == SL_Q4_0 || f == SL_Q5_0 || f == SL_Q8_0;
#pragma GCC unroll 8
    for (int a = 0; a < A; a++) {
        acc[0][a] = acc[1][a] = offset ? _mm512_set1_epi32(int_at(x[a] + o->init + 4 * b)) : _mm512_setzero_si512();
    }
    dot_columns(t, 0, 8, A, x, o->q + 32 * b, acc);
}

CPU_INLINE void tile_half(sl_format_id f, int h, const record *t, int A, const uint8_t *const x[], const act_offsets *o,
                          int64_t b, tile_i acc[TILE_VECTORS][CPU_TILE_ACTS]) {
    start_at(A, x, o->neg32 + 8 * b + 4 * h, 2, acc); /* codes are raised by 128, four times what neg32 takes off */
    dot_columns(t, 4 * h, 4 * h + 4, A, x, o->q + 32 * b, acc);
}

#include "cpu/cpu_tile_impl.h"

/* ---- by format and number of activations ---- */

PACK_ALL

void cpu_tile_pack_avx512(const sl_matrix *w, int64_t row0, int64_t rows, void *tile, void *scratch) {
    packers[w->format](w, row0, rows, tile, scratch);
}

#define MUL_4(name, f) MUL_BODY(name, f) MUL(name, f, 1) MUL(name, f, 2) MUL(name, f, 3) MUL(name, f, 4)
#define MUL_6(name, f) MUL_4(name, f) MUL(name, f, 5) MUL(name, f, 6)
#define NAMES_4(name)  mul_##name##_1, mul_##name##_2, mul_##name##_3, mul_##name##_4
#define NAMES_6(name)  NAMES_4(name), mul_##name##_5, mul_##name##_6

MUL_6(q4_0, SL_Q4_0)
MUL_6(q5_0, SL_Q5_0)
MUL_6(q8_0, SL_Q8_0) /* signed codes */
MUL_4(q6_k, SL_Q6_K) /* needs a third more registers */
MUL_4(iq2_xs, SL_IQ2_XS)
MUL_4(q2_k, SL_Q2_K)
MUL_6(nvfp4, SL_NVFP4)
MUL_6(affine4, SL_AFFINE4)
MUL_6(biased, SL_Q4_1) /* every other format: codes without offset in column order, and a bias */

static tile_mul_fn *const multipliers[SL_FORMAT_COUNT][6] = {
    [SL_Q4_0] = {NAMES_6(q4_0)},      [SL_Q4_1] = {NAMES_6(biased)},      [SL_Q5_0] = {NAMES_6(q5_0)},
    [SL_Q5_1] = {NAMES_6(biased)},    [SL_Q8_0] = {NAMES_6(q8_0)},        [SL_Q4_K] = {NAMES_6(biased)},
    [SL_Q5_K] = {NAMES_6(biased)},    [SL_Q6_K] = {NAMES_4(q6_k)},        [SL_AFFINE4] = {NAMES_6(affine4)},
    [SL_AFFINE8] = {NAMES_6(biased)}, [SL_AFFINE2] = {NAMES_6(biased)},   [SL_AFFINE3] = {NAMES_6(biased)},
    [SL_AFFINE5] = {NAMES_6(biased)}, [SL_AFFINE6] = {NAMES_6(biased)},   [SL_Q2_K] = {NAMES_4(q2_k)},
    [SL_Q3_K] = {NAMES_4(q6_k)},      [SL_IQ4_NL] = {NAMES_6(q8_0)},      [SL_IQ4_XS] = {NAMES_6(q8_0)},
    [SL_MXFP4] = {NAMES_6(q8_0)},     [SL_MXFP4_SPLIT] = {NAMES_6(q8_0)}, [SL_TQ2_0] = {NAMES_6(q8_0)},
    [SL_IQ2_XXS] = {NAMES_6(q8_0)},   [SL_IQ2_XS] = {NAMES_4(iq2_xs)},    [SL_IQ2_S] = {NAMES_4(iq2_xs)},
    [SL_IQ3_XXS] = {NAMES_6(q8_0)},   [SL_IQ3_S] = {NAMES_6(q8_0)},       [SL_IQ1_S] = {NAMES_6(q8_0)},
    [SL_IQ1_M] = {NAMES_4(iq2_xs)},   [SL_NVFP4] = {NAMES_6(nvfp4)},      [SL_NVFP4_SPLIT] = {NAMES_6(nvfp4)},
    [SL_TQ1_0] = {NAMES_6(q8_0)},
};

void cpu_tile_mul_avx512(const sl_matrix *w, const void *tile, const cpu_rows *in, int64_t i, int64_t acts, float *out,
                         cpu_ahead *ahead) {
    int64_t first = multipliers[w->format][acts - 1] ? acts : acts / 2;
    multipliers[w->format][first - 1](tile, in, i, out, ahead);
    if (first < acts) {
        multipliers[w->format][acts - first - 1](tile, in, i + first, out + first * TILE_ROWS, ahead);
    }
}

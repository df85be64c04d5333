/* AVX-512: products with many rows of activations. 32 rows of W are unpacked once into a tile of bytes whose lanes are
 * rows; each dot instruction multiplies 4 columns of 16 rows with 4 columns of one row of activations, broadcast.
 *
 * Per block of 32 columns, 32 rows and 6 rows of activations: 96 dot instructions, 48 others on the same two pipes at
 * most, 80 loads.
 *
 * The tile is an array of records in the order in which the sums of cpu.h are made: all blocks b with b mod 4 = 0, then
 * 2, 1, 3. */
#include "cpu/cpu_tile_avx512.h"

#include "cpu/cpu_avx512.h"

/* One block of 32 rows. Codes: 4 columns of a row are one 32-bit lane. */
typedef struct record {
    uint8_t code[8][CPU_TILE_ROWS][4];
    float scale[CPU_TILE_ROWS];
    union {
        float bias[CPU_TILE_ROWS];
        int32_t sub[2][CPU_TILE_ROWS]; /* Q6_K: scales of the half blocks */
    } u;
} record;

/* What of a record a format needs; records lie this far apart. */
CPU_INLINE int64_t record_bytes(sl_format_id f) {
    int64_t base = (int64_t)offsetof(record, u);
    return f == SL_Q6_K ? base + 2 * CPU_TILE_ROWS * 4 : cpu_has_bias(f) ? base + CPU_TILE_ROWS * 4 : base;
}

_Static_assert(sizeof(record) <= CPU_TILE_BLOCK, "the scratch is sized for CPU_TILE_BLOCK bytes per block");

/* Number of blocks with b mod 4 = c, and where block b is in the tile. */
CPU_INLINE int64_t class_blocks(int64_t blocks, int c) {
    return (blocks + 3 - c) / 4;
}

CPU_INLINE int64_t class_start(int64_t blocks, int c) {
    int64_t n0 = class_blocks(blocks, 0), n1 = class_blocks(blocks, 1), n2 = class_blocks(blocks, 2);
    return c == 0 ? 0 : c == 2 ? n0 : c == 1 ? n0 + n2 : n0 + n2 + n1;
}

/* ---- packing ----
 * 16 rows x 4 blocks at a time, so that whole cache lines of a record are written. */

enum { HALF_ROWS = 16 };

/* 16 rows of W (the last valid one repeated: its lanes are multiplied and not read) and, for affine formats, their
 * scales. */
typedef struct source {
    four_rows rows[HALF_ROWS / 4];
    panel sides[HALF_ROWS / 4];
    __m512i index;
    int32_t group;
} source;

CPU_INLINE void source_init(sl_format_id f, source *src, const sl_matrix *w, int64_t row0, int64_t end, void *scratch) {
    for (int g = 0; g < HALF_ROWS / 4; g++) {
        src->rows[g] = four_rows_at(w, sl_min_i64(row0 + 4 * g, end - 1), end);
        if (cpu_is_affine(f)) {
            src->sides[g] = panel_at(scratch, w->cols, g);
            panel_fill(w, src->rows[g].row, 1, src->sides[g].s);
            panel_fill(w, src->rows[g].row, 2, src->sides[g].m);
        }
    }
    src->index = cpu_is_affine(f) ? panel_index(w->group) : _mm512_setzero_si512();
    src->group = w->group;
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

/* Q6_K's 8 bytes of sub-scales per row and step, [row][block][half], to [half][block][row] as 32-bit integers. */
CPU_INLINE void pack_sub_scales(const uint8_t *const p[HALF_ROWS], int step, uint8_t *const at[4]) {
    const __m256i order = _mm256_setr_epi8(0, 8, 16, 24, 2, 10, 18, 26, 4, 12, 20, 28, 6, 14, 22, 30, 1, 9, 17, 25, 3,
                                           11, 19, 27, 5, 13, 21, 29, 7, 15, 23, 31);
    __m512i half[2][4];
    for (int g = 0; g < 4; g++) {
        long long v[4];
        for (int r = 0; r < 4; r++) {
            memcpy(&v[r], p[4 * g + r] + 192 + 8 * step, sizeof v[r]);
        }
        __m256i bytes = _mm256_permutexvar_epi8(order, _mm256_setr_epi64x(v[0], v[1], v[2], v[3]));
        half[0][g] = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes));
        half[1][g] = _mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1));
    }
    pack_values(half[0], at, (int64_t)offsetof(record, u));
    pack_values(half[1], at, (int64_t)offsetof(record, u) + CPU_TILE_ROWS * 4);
}

/* One unit of 16 rows at p to the records at `first` (and those `size` behind them for a second step). */
CPU_INLINE void pack_unit(sl_format_id f, const source *src, const uint8_t *const p[HALF_ROWS], int64_t u,
                          uint8_t *const first[4], int64_t size) {
    __m512i s[2][4], m[2][4];
    step_codes c[2];
    for (int g = 0; g < 4; g++) {
        const uint8_t *const *q = p + 4 * g;
        __m512i head[4] = {load_head(f, q[0]), load_head(f, q[1]), load_head(f, q[2]), load_head(f, q[3])};
        scales sc[2];
        if (!cpu_is_affine(f)) {
            load_scales(f, q, head, sc);
        } else {
            sc[0] = panel_scales(src->sides[g], src->index, u, src->group);
        }
        for (int k = 0; k < unit_steps(f); k++) {
            s[k][g] = _mm512_castps_si512(sc[k].s);
            m[k][g] = cpu_has_bias(f) ? _mm512_castps_si512(sc[k].m) : _mm512_setzero_si512();
            load_step(f, q, head, k, c[k].lo + 4 * g, c[k].hi + 4 * g);
        }
    }
    for (int k = 0; k < unit_steps(f); k++) {
        uint8_t *at[4] = {first[0] + k * size, first[1] + k * size, first[2] + k * size, first[3] + k * size};
        pack_values(s[k], at, (int64_t)offsetof(record, scale));
        if (cpu_has_bias(f)) {
            pack_values(m[k], at, (int64_t)offsetof(record, u));
        }
        if (f == SL_Q6_K) {
            pack_sub_scales(p, k, at);
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
    for (int64_t r = 0; r < CPU_TILE_ROWS; r += HALF_ROWS) {
        pack_half(f, w, row0 + r, row0 + rows, tile + 4 * r, scratch);
    }
}

/* ---- multiplying ---- */

/* Where in a quantised row of activations, in bytes from its start, the arrays that a format reads begin. */
typedef struct act_offsets {
    int64_t q, d, xs, init;
} act_offsets;

CPU_INLINE act_offsets offsets_for(sl_format_id f, int64_t cols) {
    int64_t n = cpu_act_blocks(cols);
    int64_t init = f == SL_Q4_0   ? CPU_ACT_NEG8
                   : f == SL_Q5_0 ? CPU_ACT_NEG16
                   : f == SL_Q8_0 ? CPU_ACT_NEG128
                                  : CPU_ACT_NEG32;
    return (act_offsets){f == SL_AFFINE4 ? n * CPU_ACT_EVEN_ODD : 0, n * CPU_ACT_D, n * CPU_ACT_XS, n * init};
}

CPU_INLINE bool has_offset(sl_format_id f) {
    return f == SL_Q4_0 || f == SL_Q5_0 || f == SL_Q8_0;
}

CPU_INLINE int32_t int_at(const uint8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Sums of columns 4 * from .. 4 * to - 1 of the record's block, added to acc. */
CPU_INLINE void dot_columns(const record *t, int from, int to, int A, const uint8_t *const x[], int64_t at,
                            __m512i acc[2][CPU_TILE_ACTS]) {
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

CPU_INLINE void start_at(int A, const uint8_t *const x[], int64_t at, __m512i acc[2][CPU_TILE_ACTS]) {
#pragma GCC unroll 8
    for (int a = 0; a < A; a++) {
        acc[0][a] = acc[1][a] = _mm512_set1_epi32(int_at(x[a] + at));
    }
}

/* The integers I_b of the record's block b, 32 rows x A rows of activations. */
CPU_INLINE void block_sums(sl_format_id f, const record *t, int A, const uint8_t *const x[], const act_offsets *o,
                           int64_t b, __m512i acc[2][CPU_TILE_ACTS]) {
    if (f != SL_Q6_K) {
#pragma GCC unroll 8
        for (int a = 0; a < A; a++) {
            acc[0][a] = acc[1][a] =
                has_offset(f) ? _mm512_set1_epi32(int_at(x[a] + o->init + 4 * b)) : _mm512_setzero_si512();
        }
        dot_columns(t, 0, 8, A, x, o->q + 32 * b, acc);
        return;
    }
    __m512i first[2][CPU_TILE_ACTS];
    start_at(A, x, o->init + 8 * b, first);
    dot_columns(t, 0, 4, A, x, o->q + 32 * b, first);
    start_at(A, x, o->init + 8 * b + 4, acc);
    dot_columns(t, 4, 8, A, x, o->q + 32 * b, acc);
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) {
        __m512i s0 = _mm512_load_si512(t->u.sub[0] + 16 * v), s1 = _mm512_load_si512(t->u.sub[1] + 16 * v);
#pragma GCC unroll 8
        for (int a = 0; a < A; a++) {
            acc[v][a] = _mm512_add_epi32(_mm512_mullo_epi32(first[v][a], s0), _mm512_mullo_epi32(acc[v][a], s1));
        }
    }
}

CPU_INLINE void add_block(sl_format_id f, const record *t, int A, const uint8_t *const x[], const act_offsets *o,
                          int64_t b, __m512 sum[2][CPU_TILE_ACTS]) {
    __m512i acc[2][CPU_TILE_ACTS];
    block_sums(f, t, A, x, o, b, acc);
#pragma GCC unroll 8
    for (int a = 0; a < A; a++) {
        __m512 d = _mm512_castsi512_ps(_mm512_set1_epi32(int_at(x[a] + o->d + 4 * b)));
        __m512 xs = _mm512_castsi512_ps(_mm512_set1_epi32(int_at(x[a] + o->xs + 4 * b)));
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            __m512 s = _mm512_mul_ps(_mm512_load_ps(t->scale + 16 * v), d);
            sum[v][a] = _mm512_fmadd_ps(s, _mm512_cvtepi32_ps(acc[v][a]), sum[v][a]);
            if (cpu_has_bias(f)) {
                sum[v][a] = _mm512_fmadd_ps(_mm512_load_ps(t->u.bias + 16 * v), xs, sum[v][a]);
            }
        }
    }
}

/* Partial sum c of every output, stored (add false) or added to what is at out. Returns the tile's next class. */
CPU_INLINE const uint8_t *add_class(sl_format_id f, const uint8_t *t, int64_t blocks, int c, int A,
                                    const uint8_t *const x[], const act_offsets *o, bool add, float *out,
                                    cpu_ahead *ahead) {
    __m512 sum[2][CPU_TILE_ACTS];
#pragma GCC unroll 8
    for (int a = 0; a < A; a++) {
        sum[0][a] = sum[1][a] = _mm512_setzero_ps();
    }
    for (int64_t b = c; b < blocks; b += 4, t += record_bytes(f)) {
        cpu_ahead_touch(ahead);
        add_block(f, (const record *)t, A, x, o, b, sum);
    }
#pragma GCC unroll 8
    for (int a = 0; a < A; a++) {
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            float *to = out + a * CPU_TILE_ROWS + 16 * v;
            _mm512_store_ps(to, add ? _mm512_add_ps(_mm512_load_ps(to), sum[v][a]) : sum[v][a]);
        }
    }
    return t;
}

CPU_INLINE void mul_acts(sl_format_id f, int A, const void *tile, const cpu_rows *in, int64_t i, float *out,
                         cpu_ahead *ahead) {
    static const int order[4] = {0, 2, 1, 3};
    _Alignas(64) float odd[CPU_TILE_ACTS * CPU_TILE_ROWS];
    const int64_t blocks = in->cols / 32;
    const act_offsets o = offsets_for(f, in->cols);
    const uint8_t *x[CPU_TILE_ACTS], *t = tile;
    for (int a = 0; a < A; a++) {
        x[a] = (const uint8_t *)in->q + cpu_rows_at(in, i + a) * cpu_act_blocks(in->cols) * CPU_ACT_BLOCK;
    }
    for (int k = 0; k < 4; k++) {
        t = add_class(f, t, blocks, order[k], A, x, &o, k & 1, k < 2 ? out : odd, ahead);
    }
    for (int k = 0; k < A * CPU_TILE_ROWS; k += 16) {
        _mm512_store_ps(out + k, _mm512_add_ps(_mm512_load_ps(out + k), _mm512_load_ps(odd + k)));
    }
}

/* ---- by format and number of activations ----
 * A function each: they are long, and compilers (sanitizers above all) take more than linear time. */

#define PACK(name, f)                                                                                                  \
    static void pack_##name(const sl_matrix *w, int64_t row0, int64_t rows, void *tile, void *scratch) {               \
        pack_format(f, w, row0, rows, tile, scratch);                                                                  \
    }
PACK(q4_0, SL_Q4_0)
PACK(q4_1, SL_Q4_1)
PACK(q5_0, SL_Q5_0)
PACK(q5_1, SL_Q5_1)
PACK(q8_0, SL_Q8_0)
PACK(q4_k, SL_Q4_K)
PACK(q5_k, SL_Q5_K)
PACK(q6_k, SL_Q6_K)
PACK(affine4, SL_AFFINE4)
PACK(affine8, SL_AFFINE8)

static cpu_tile_pack_fn *const packers[SL_FORMAT_COUNT] = {
    [SL_Q4_0] = pack_q4_0,       [SL_Q4_1] = pack_q4_1,       [SL_Q5_0] = pack_q5_0, [SL_Q5_1] = pack_q5_1,
    [SL_Q8_0] = pack_q8_0,       [SL_Q4_K] = pack_q4_k,       [SL_Q5_K] = pack_q5_k, [SL_Q6_K] = pack_q6_k,
    [SL_AFFINE4] = pack_affine4, [SL_AFFINE8] = pack_affine8,
};

void cpu_tile_pack_avx512(const sl_matrix *w, int64_t row0, int64_t rows, void *tile, void *scratch) {
    packers[w->format](w, row0, rows, tile, scratch);
}

typedef void mul_fn(const void *tile, const cpu_rows *in, int64_t i, float *out, cpu_ahead *ahead);

#define MUL(name, f, A)                                                                                                \
    static void mul_##name##_##A(const void *tile, const cpu_rows *in, int64_t i, float *out, cpu_ahead *ahead) {      \
        mul_acts(f, A, tile, in, i, out, ahead);                                                                       \
    }
#define MUL_UP_TO_4(name, f) MUL(name, f, 1) MUL(name, f, 2) MUL(name, f, 3) MUL(name, f, 4)
#define MUL_UP_TO_6(name, f) MUL_UP_TO_4(name, f) MUL(name, f, 5) MUL(name, f, 6)
#define NAMES_4(name)        mul_##name##_1, mul_##name##_2, mul_##name##_3, mul_##name##_4
#define NAMES_6(name)        NAMES_4(name), mul_##name##_5, mul_##name##_6

MUL_UP_TO_6(q4_0, SL_Q4_0)
MUL_UP_TO_6(q5_0, SL_Q5_0)
MUL_UP_TO_6(q8_0, SL_Q8_0)
MUL_UP_TO_4(q6_k, SL_Q6_K) /* needs a third more registers */
MUL_UP_TO_6(affine4, SL_AFFINE4)
MUL_UP_TO_6(biased, SL_Q4_1) /* every other format: codes without offset in column order, and a bias */

static mul_fn *const multipliers[SL_FORMAT_COUNT][6] = {
    [SL_Q4_0] = {NAMES_6(q4_0)},      [SL_Q4_1] = {NAMES_6(biased)}, [SL_Q5_0] = {NAMES_6(q5_0)},
    [SL_Q5_1] = {NAMES_6(biased)},    [SL_Q8_0] = {NAMES_6(q8_0)},   [SL_Q4_K] = {NAMES_6(biased)},
    [SL_Q5_K] = {NAMES_6(biased)},    [SL_Q6_K] = {NAMES_4(q6_k)},   [SL_AFFINE4] = {NAMES_6(affine4)},
    [SL_AFFINE8] = {NAMES_6(biased)},
};

void cpu_tile_mul_avx512(const sl_matrix *w, const void *tile, const cpu_rows *in, int64_t i, int64_t acts, float *out,
                         cpu_ahead *ahead) {
    int64_t first = multipliers[w->format][acts - 1] ? acts : acts / 2;
    multipliers[w->format][first - 1](tile, in, i, out, ahead);
    if (first < acts) {
        multipliers[w->format][acts - first - 1](tile, in, i + first, out + first * CPU_TILE_ROWS, ahead);
    }
}

/* cpu_matmul: what the driver of the matrix products (cpu_matmul.c) and the instruction sets agree on. Private to cpu.
 *
 * An instruction set brings a matvec (rows of W times one row of activations), and may bring a tile: up to `tile_rows`
 * rows of W unpacked into scratch once, then multiplied with up to `tile_acts` rows of activations at a time. */
#ifndef SL_CPU_MATMUL_H
#define SL_CPU_MATMUL_H

#include "cpu/cpu.h"

#include <string.h>

/* Sanitizers take minutes for functions with many loads: there the numbers of rows of activations that have unrolled
 * functions of their own share one that has loops, and inlining is the compiler's affair. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CPU_FEW_FUNCTIONS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer) ||          \
    __has_feature(undefined_behavior_sanitizer)
#define CPU_FEW_FUNCTIONS 1
#endif
#endif

#if defined(CPU_FEW_FUNCTIONS)
#define CPU_INLINE static __attribute__((unused))
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* loops that are asked to be unrolled and now cannot */
#endif
#else
#define CPU_INLINE static inline __attribute__((always_inline, unused))
#endif

enum {
    CPU_TILE_ROWS = 32, /* at most */
    CPU_TILE_ACTS = 8   /* at most */
};

/* ---- a quantised row of activations ----
 * Structure of arrays; every array holds whole groups of 16 blocks, zeros behind the last, and is 64-byte aligned. */

typedef struct cpu_act {
    const int8_t *q; /* [blocks][32] */
    const int8_t
        *even_odd;   /* [blocks][32]: q of even columns, then of odd: MLX's 4-bit codes are nibbles in that order */
    const float *d;  /* [blocks] */
    const float *xs; /* [blocks] d * (float)(sum of q) */
    /* Constant offsets of codes, as integers: -offset * (sum of q) for codes stored with that offset. */
    const int32_t *neg8;   /* [blocks] */
    const int32_t *neg16;  /* [blocks] */
    const int32_t *neg128; /* [blocks] */
    const int32_t *neg32;  /* [blocks][2]: of each half block, for Q6_K */
} cpu_act;

/* Bytes of each array per block, in the order of cpu_act, and where each begins. */
enum {
    CPU_ACT_EVEN_ODD = 32,
    CPU_ACT_D = 64,
    CPU_ACT_XS = 68,
    CPU_ACT_NEG8 = 72,
    CPU_ACT_NEG16 = 76,
    CPU_ACT_NEG128 = 80,
    CPU_ACT_NEG32 = 84,
    CPU_ACT_BLOCK = 92
};

CPU_INLINE int64_t cpu_blocks(int64_t cols) {
    return (cols + 31) / 32;
}

/* Blocks that a quantised row has room for. */
CPU_INLINE int64_t cpu_act_blocks(int64_t cols) {
    return (cpu_blocks(cols) + 15) / 16 * 16;
}

CPU_INLINE cpu_act cpu_act_row(const void *q, int64_t cols, int64_t row) {
    int64_t n = cpu_act_blocks(cols);
    const char *p = (const char *)q + row * n * CPU_ACT_BLOCK;
    return (cpu_act){
        .q = (const int8_t *)p,
        .even_odd = (const int8_t *)(p + n * CPU_ACT_EVEN_ODD),
        .d = (const float *)(p + n * CPU_ACT_D),
        .xs = (const float *)(p + n * CPU_ACT_XS),
        .neg8 = (const int32_t *)(p + n * CPU_ACT_NEG8),
        .neg16 = (const int32_t *)(p + n * CPU_ACT_NEG16),
        .neg128 = (const int32_t *)(p + n * CPU_ACT_NEG128),
        .neg32 = (const int32_t *)(p + n * CPU_ACT_NEG32),
    };
}

CPU_INLINE int64_t cpu_rows_at(const cpu_rows *in, int64_t i) {
    return in->index ? in->index[i] : i;
}

CPU_INLINE cpu_act cpu_rows_act(const cpu_rows *in, int64_t i) {
    return cpu_act_row(in->q, in->cols, cpu_rows_at(in, i));
}

CPU_INLINE const float *cpu_rows_x(const cpu_rows *in, int64_t i) {
    return in->x + cpu_rows_at(in, i) * in->ldx;
}

/* ---- quantising ---- */

/* amax's bits from which on a block is not finite, and below which it counts as zeros (2^-100). */
#define CPU_BITS_INFINITE 0x7f800000u
#define CPU_BITS_LEAST    0x0d800000u

/* ---- formats ---- */

/* Codes are floats of 8 bits, with scales for whole blocks of columns. */
CPU_INLINE bool cpu_is_e4m3(sl_format_id f) {
    return f == SL_FP8 || f == SL_MXFP8_SPLIT;
}

/* Activations stay f32. */
CPU_INLINE bool cpu_is_float(sl_format_id f) {
    return f == SL_F32 || f == SL_F16 || f == SL_BF16 || cpu_is_e4m3(f);
}

CPU_INLINE bool cpu_is_affine(sl_format_id f) {
    return f == SL_AFFINE4 || f == SL_AFFINE8 || f == SL_AFFINE2 || f == SL_AFFINE3 || f == SL_AFFINE5 ||
           f == SL_AFFINE6;
}

/* Bits of a code of the affine formats whose codes straddle bytes or share them by more than two; else 0. */
CPU_INLINE int cpu_stream_bits(sl_format_id f) {
    return f == SL_AFFINE2 ? 2 : f == SL_AFFINE3 ? 3 : f == SL_AFFINE5 ? 5 : f == SL_AFFINE6 ? 6 : 0;
}

CPU_INLINE bool cpu_has_bias(sl_format_id f) {
    return f == SL_Q4_1 || f == SL_Q5_1 || f == SL_Q4_K || f == SL_Q5_K || cpu_is_affine(f);
}

/* The two halves of a block of 32 have integer scales of their own. */
CPU_INLINE bool cpu_has_halves(sl_format_id f) {
    return f == SL_Q6_K || f == SL_Q3_K || f == SL_IQ2_XS || f == SL_IQ2_S || f == SL_IQ1_M;
}

/* The two halves of a block have scales of their own that are no integers. */
CPU_INLINE bool cpu_has_pairs(sl_format_id f) {
    return f == SL_NVFP4 || f == SL_NVFP4_SPLIT;
}

/* Codes choose rows of a grid. */
CPU_INLINE bool cpu_is_grid(sl_format_id f) {
    return f == SL_IQ2_XXS || f == SL_IQ2_XS || f == SL_IQ2_S || f == SL_IQ3_XXS || f == SL_IQ3_S || f == SL_IQ1_S ||
           f == SL_IQ1_M;
}

/* Codes are signed bytes of any value. */
CPU_INLINE bool cpu_is_signed(sl_format_id f) {
    return f == SL_Q8_0 || f == SL_IQ4_NL || f == SL_IQ4_XS || f == SL_MXFP4 || f == SL_MXFP4_SPLIT || f == SL_TQ2_0 ||
           f == SL_TQ1_0 || cpu_has_pairs(f) || (cpu_is_grid(f) && !cpu_has_halves(f));
}

/* Its products take int8 activations: where columns are whole blocks of 32, as they are but in NVFP4_SPLIT. */
CPU_INLINE bool cpu_has_integers(const sl_matrix *w) {
    return !cpu_is_float(w->format) && w->cols % 32 == 0;
}

/* ---- instruction sets ---- */

/* Weights that are packed next: asked for, a few cache lines per block, while the tile before is multiplied. Packing
 * cold weights takes four times as long as packing what has arrived. */
typedef struct cpu_ahead {
    struct {
        const uint8_t *at, *end;
    } span[6]; /* parts of one or two matrices */
    int spans, now;
    int lines; /* per block */
} cpu_ahead;

CPU_INLINE void cpu_ahead_touch(cpu_ahead *a) {
    for (int k = 0; k < a->lines && a->now < a->spans; k++) {
        __builtin_prefetch(a->span[a->now].at, 0, 2);
        a->span[a->now].at += 64;
        a->now += a->span[a->now].at >= a->span[a->now].end;
    }
}

/* y[r - row0] = row r of w times row i of in, rows row0 .. row1 - 1. scratch as in cpu_kernels. */
typedef void cpu_matvec_fn(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_rows *in, int64_t i, float *y,
                           void *scratch);
/* The same for as many rows i, i + 1, .. of in as the set does at once (at most all): y[k * ldy + r - row0]; returns
 * how many that was. */
typedef int64_t cpu_matvec_many_fn(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_rows *in, int64_t i,
                                   float *y, int64_t ldy, void *scratch);
/* Unpacks rows row0 .. row0 + rows - 1 (rows <= tile_rows) into tile, cpu_tile_bytes. */
typedef void cpu_tile_pack_fn(const sl_matrix *w, int64_t row0, int64_t rows, void *tile, void *scratch);
/* out[a][tile_rows] = the tile's rows times rows i .. i + acts - 1 of in; lanes beyond the packed rows are anything.
 * Calls cpu_ahead_touch once per block. */
typedef void cpu_tile_mul_fn(const sl_matrix *w, const void *tile, const cpu_rows *in, int64_t i, int64_t acts,
                             float *out, cpu_ahead *ahead);

typedef struct cpu_matmul_isa {
    const char *name;
    void (*quantize_row)(const float *x, int64_t cols, void *q);
    cpu_matvec_fn *matvec;           /* quantised formats */
    cpu_matvec_many_fn *matvec_many; /* NULL: matvec is called for each */
    cpu_tile_pack_fn *pack;          /* quantised formats; NULL: this set has no tile */
    cpu_tile_mul_fn *mul;
    int64_t tile_rows, tile_acts;
    int64_t tile_from; /* least number of rows of activations for which the tile is faster */
    /* Float formats: y[i * ldy + r - row0] for all rows i of in. */
    void (*matmul_float)(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_rows *in, float *y, int64_t ldy);
    void (*silu_mul)(float *h, const float *gate, const float *up, int64_t n);
} cpu_matmul_isa;

extern const cpu_matmul_isa cpu_matmul_scalar, cpu_matmul_avx2, cpu_matmul_avx512, cpu_matmul_neon;

/* Mode exact: y[i * ldy + r - row0]. */
void cpu_matmul_exact(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_rows *in, float *y, int64_t ldy);

/* The greatest record a tile keeps per block, for 32 rows: 32 codes, scale, bias or two integer sub-scales. */
enum { CPU_TILE_BLOCK = CPU_TILE_ROWS * (32 + 4 + 8) };

CPU_INLINE uint64_t cpu_tile_bytes(int64_t cols) {
    return (uint64_t)cpu_act_blocks(cols) * CPU_TILE_BLOCK;
}

/* Scales and biases of 4 rows of an affine matrix, as f32: [group][4 rows], readable up to a multiple of 16 blocks. */
CPU_INLINE uint64_t cpu_panel_bytes(int64_t cols) {
    return (uint64_t)(cpu_act_blocks(cols) + 16) * 4 * sizeof(float);
}

#endif

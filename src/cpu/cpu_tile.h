/* cpu_tile: the layout of a tile. Private to cpu_tile_*.c, which define TILE_ROWS before.
 *
 * Rows of W are unpacked once, to bytes whose lanes are rows: 4 columns of a row are one 32-bit lane, which a dot
 * instruction multiplies with 4 columns of one row of activations, the same for all lanes. The tile is an array of
 * records, one per block, in the order in which the sums of cpu.h are made: all blocks b with b mod 4 = 0, then 2,
 * 1, 3.
 */
#ifndef SL_CPU_TILE_H
#define SL_CPU_TILE_H

#include "cpu/cpu_matmul.h"

typedef struct record {
    uint8_t code[8][TILE_ROWS][4]; /* [column / 4][row][column % 4] */
    float scale[TILE_ROWS];
    union {
        float bias[TILE_ROWS];     /* NVFP4: the second half's scale */
        int32_t sub[2][TILE_ROWS]; /* formats with halves: their scales */
        struct {
            float dmin[TILE_ROWS];
            int16_t min[TILE_ROWS][2];
        } minima; /* Q2_K */
    } u;
} record;

_Static_assert(sizeof(record) <= (size_t)CPU_TILE_BLOCK, "scratch is sized for CPU_TILE_BLOCK");

/* What of a record a format needs; records lie this far apart. */
CPU_INLINE int64_t record_bytes(sl_format_id f) {
    int64_t base = (int64_t)offsetof(record, u);
    return cpu_has_halves(f) || f == SL_Q2_K     ? base + 2 * TILE_ROWS * 4
           : cpu_has_bias(f) || cpu_has_pairs(f) ? base + TILE_ROWS * 4
                                                 : base;
}

/* Number of blocks b with b mod 4 = c, and the index of the first one's record. */
CPU_INLINE int64_t class_blocks(int64_t blocks, int c) {
    return (blocks + 3 - c) / 4;
}

CPU_INLINE int64_t class_start(int64_t blocks, int c) {
    int64_t n0 = class_blocks(blocks, 0), n1 = class_blocks(blocks, 1), n2 = class_blocks(blocks, 2);
    return c == 0 ? 0 : c == 2 ? n0 : c == 1 ? n0 + n2 : n0 + n2 + n1;
}

/* Where in a quantised row of activations, in bytes from its start, the arrays that a format reads begin. */
typedef struct act_offsets {
    int64_t q, d, xs;
    int64_t init; /* the format's constant offset times sums of q */
    int64_t neg32;
} act_offsets;

CPU_INLINE act_offsets offsets_for(sl_format_id f, int64_t cols) {
    int64_t n = cpu_act_blocks(cols);
    int64_t init = f == SL_Q4_0        ? CPU_ACT_NEG8
                   : f == SL_Q5_0      ? CPU_ACT_NEG16
                   : cpu_has_halves(f) ? CPU_ACT_NEG32
                                       : CPU_ACT_NEG128;
    return (act_offsets){f == SL_AFFINE4 ? n * CPU_ACT_EVEN_ODD : 0, n * CPU_ACT_D, n * CPU_ACT_XS, n * init,
                         n * CPU_ACT_NEG32};
}

/* What lies where biases do: them, dmin, the second half's scale. */
CPU_INLINE bool has_second(sl_format_id f) {
    return cpu_has_bias(f) || f == SL_Q2_K || cpu_has_pairs(f);
}

CPU_INLINE int32_t int_at(const uint8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

CPU_INLINE float float_at(const uint8_t *p) {
    float v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The negated sums of activations of a block's halves as 16-bit numbers, -32 times each of which is at p. */
CPU_INLINE int32_t half_sums_at(const uint8_t *p) {
    return (int32_t)((uint32_t)(int_at(p) / 32) & 0xffff) | (int32_t)((uint32_t)(int_at(p + 4) / 32) << 16);
}

#endif

/* cpu_grid: the quads (cpu_quad.h) of formats whose codes choose rows of a grid (quant/quant_grids.h): four rows of
 * eight bytes for a block of 32. Private to cpu_x86.h and cpu_neon.h. */
#ifndef SL_CPU_GRID_H
#define SL_CPU_GRID_H

#include "cpu/cpu_quad.h"
#include "quant/quant_grids.h"

typedef struct grid_block {
    uint64_t row[4]; /* magnitudes; IQ1: -1, 0, 1 */
    uint32_t signs;  /* bit i: weight i is negative */
    uint64_t add[4]; /* IQ1: 1 or -1 in every byte, for values are 8 * row + add */
} grid_block;

CPU_INLINE bool grid_is_ternary(sl_format_id f) {
    return f == SL_IQ1_S || f == SL_IQ1_M;
}

/* Signs of 32 weights from four times seven bits. */
CPU_INLINE uint32_t grid_signs(uint32_t sevens) {
    return (uint32_t)quant_iq_signs[sevens & 127] | (uint32_t)quant_iq_signs[sevens >> 7 & 127] << 8 |
           (uint32_t)quant_iq_signs[sevens >> 14 & 127] << 16 | (uint32_t)quant_iq_signs[sevens >> 21 & 127] << 24;
}

CPU_INLINE uint64_t grid_pair(const uint32_t *grid, uint32_t a, uint32_t b) {
    return (uint64_t)grid[a] | (uint64_t)grid[b] << 32;
}

CPU_INLINE uint64_t grid_direction(uint32_t down) {
    return down ? 0xffffffffffffffff : 0x0101010101010101;
}

/* Run `run` of 32 weights of the block at p. Layouts: quant_dequantize_grid.c. */
CPU_INLINE grid_block grid_read(sl_format_id f, const uint8_t *p, int run) {
    grid_block g = {.signs = 0};
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        const uint8_t *two = p + 2 + 8 * run + 2 * k;
        uint32_t high;
        switch (f) {
        case SL_IQ2_XXS:
            g.row[k] = quant_iq2xxs_grid[p[2 + 8 * run + k]];
            break;
        case SL_IQ2_XS:
            g.row[k] = quant_iq2xs_grid[quant_u16(two) & 511];
            g.signs |= (uint32_t)quant_iq_signs[quant_u16(two) >> 9] << 8 * k;
            break;
        case SL_IQ2_S:
            g.row[k] = quant_iq2s_grid[p[2 + 4 * run + k] | (p[66 + run] >> 2 * k & 3) << 8];
            break;
        case SL_IQ3_XXS:
            g.row[k] = grid_pair(quant_iq3xxs_grid, two[0], two[1]);
            break;
        case SL_IQ3_S:
            high = (uint32_t)p[66 + run] >> 2 * k;
            g.row[k] = grid_pair(quant_iq3s_grid, two[0] | (high & 1) << 8, two[1] | (high >> 1 & 1) << 8);
            break;
        case SL_IQ1_S:
            high = quant_u16(p + 34 + 2 * run);
            g.row[k] = quant_iq1s_grid[p[2 + 4 * run + k] | (high >> 3 * k & 7) << 8];
            g.add[k] = grid_direction(high >> 15);
            break;
        default: /* IQ1_M */
            high = (uint32_t)p[32 + 2 * run + k / 2] >> 4 * (k & 1);
            g.row[k] = quant_iq1s_grid[p[4 * run + k] | (high & 7) << 8];
            g.add[k] = grid_direction(high >> 3 & 1);
        }
    }
    switch (f) {
    case SL_IQ2_XXS:
        g.signs = grid_signs(quant_u32(p + 6 + 8 * run));
        break;
    case SL_IQ2_S:
        g.signs = quant_u32(p + 34 + 4 * run);
        break;
    case SL_IQ3_XXS:
        g.signs = grid_signs(quant_u32(p + 66 + 4 * run));
        break;
    case SL_IQ3_S:
        g.signs = quant_u32(p + 74 + 4 * run);
        break;
    default:
        break;
    }
    return g;
}

/* The quad's four scales, a byte each, of formats with one for 32 weights: 2 * n + 1. */
CPU_INLINE uint32_t grid_scales(sl_format_id f, const quad *q) {
    const uint8_t *p = q->p[0];
    uint32_t n = 0;
    if (f == SL_IQ3_S) {
        n = quant_u16(p + 106 + 2 * q->half);
        n = (n | n << 8) & 0x00ff00ff;
        n = (n | n << 4) & 0x0f0f0f0f;
    } else {
        for (int j = 0; j < 4; j++) {
            int run = 4 * q->half + j;
            uint32_t one = f == SL_IQ2_XXS   ? p[9 + 8 * run] >> 4
                           : f == SL_IQ3_XXS ? p[69 + 4 * run] >> 4
                                             : p[35 + 2 * run] >> 4 & 7; /* IQ1_S */
            n |= one << 8 * j;
        }
    }
    return 2 * n + 0x01010101;
}

/* What those scales, or those of half blocks, are multiplied with. */
CPU_INLINE float grid_unit(sl_format_id f, const uint8_t *p) {
    uint16_t half = quant_u16(p);
    if (f == SL_IQ1_M) {
        half = (uint16_t)(p[49] >> 4 | (p[51] & 0xf0) | (p[53] & 0xf0) << 4 | (p[55] & 0xf0) << 8);
    }
    return sl_f16_to_f32(half) * (f == SL_IQ3_S ? 1.0f : f == SL_IQ3_XXS ? 0.25f : 0.125f);
}

#endif

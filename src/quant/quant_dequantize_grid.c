/* Exact dequantisers of GGUF's formats whose codes choose a row of a grid: 256 weights a block, in 32 groups of eight.
 */
#include "quant/quant_bits.h"
#include "quant/quant_grids.h"
#include "quant/quant_rows.h"

enum { K = 256 };

static float f16_at(const uint8_t *p) {
    return sl_f16_to_f32(quant_u16(p));
}

/* n weights of a grid's row: (scale * value), negative where its bit is set. */
static void put_signed(uint64_t row, int n, float scale, uint32_t signs, float *out) {
    for (int i = 0; i < n; i++) {
        float w = scale * (float)(int)(row >> 8 * i & 255);
        out[i] = signs >> i & 1 ? -w : w;
    }
}

/* d f16; for 32 weights u32: four rows of the grid, u32: four times seven bits of signs, scale in the high four bits.
 * w = d * (0.5 + scale) * 0.25 * value */
void quant_dequantize_iq2_xxs(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / K; b++, p += 66) {
        for (int g = 0; g < 32; g++, out += 8) {
            const uint8_t *q = p + 2 + 8 * (g / 4);
            uint32_t high = quant_u32(q + 4);
            float scale = f16_at(p) * (0.5f + (float)(high >> 28)) * 0.25f;
            put_signed(quant_iq2xxs_grid[q[g % 4]], 8, scale, quant_iq_signs[high >> 7 * (g % 4) & 127], out);
        }
    }
}

/* d f16; for eight weights u16: row of the grid in the low nine bits, signs in the others; four bits of scale for each
 * 16 weights. */
void quant_dequantize_iq2_xs(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / K; b++, p += 74) {
        for (int g = 0; g < 32; g++, out += 8) {
            uint32_t q = quant_u16(p + 2 + 2 * g);
            float scale = f16_at(p) * (0.5f + (float)(p[66 + g / 4] >> 4 * (g / 2 % 2) & 15)) * 0.25f;
            put_signed(quant_iq2xs_grid[q & 511], 8, scale, quant_iq_signs[q >> 9], out);
        }
    }
}

/* d f16, 32 low bytes of rows, 32 bytes of signs, 8 bytes with two high bits for each row, scales as in IQ2_XS. */
void quant_dequantize_iq2_s(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / K; b++, p += 82) {
        for (int g = 0; g < 32; g++, out += 8) {
            int at = p[2 + g] | (p[66 + g / 4] >> 2 * (g % 4) & 3) << 8;
            float scale = f16_at(p) * (0.5f + (float)(p[74 + g / 4] >> 4 * (g / 2 % 2) & 15)) * 0.25f;
            put_signed(quant_iq2s_grid[at], 8, scale, p[34 + g], out);
        }
    }
}

/* d f16, 64 rows of four weights, for each 32 weights u32 of signs and scale as in IQ2_XXS.
 * w = d * (0.5 + scale) * 0.5 * value */
void quant_dequantize_iq3_xxs(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / K; b++, p += 98) {
        for (int g = 0; g < 32; g++, out += 8) {
            uint32_t high = quant_u32(p + 66 + 4 * (g / 4));
            float scale = f16_at(p) * (0.5f + (float)(high >> 28)) * 0.5f;
            uint32_t signs = quant_iq_signs[high >> 7 * (g % 4) & 127];
            put_signed(quant_iq3xxs_grid[p[2 + 2 * g]], 4, scale, signs, out);
            put_signed(quant_iq3xxs_grid[p[3 + 2 * g]], 4, scale, signs >> 4, out + 4);
        }
    }
}

/* d f16, 64 low bytes of rows, 8 bytes of a high bit for each row, 32 bytes of signs, four bits of scale for each 32
 * weights. w = d * (1 + 2 * scale) * value */
void quant_dequantize_iq3_s(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / K; b++, p += 110) {
        for (int g = 0; g < 32; g++, out += 8) {
            int high = p[66 + g / 4] >> 2 * (g % 4) & 3, signs = p[74 + g];
            float scale = f16_at(p) * (float)(1 + 2 * (p[106 + g / 8] >> 4 * (g / 4 % 2) & 15));
            put_signed(quant_iq3s_grid[p[2 + 2 * g] | (high & 1) << 8], 4, scale, (uint32_t)signs, out);
            put_signed(quant_iq3s_grid[p[3 + 2 * g] | (high >> 1) << 8], 4, scale, (uint32_t)signs >> 4, out + 4);
        }
    }
}

/* Eight of -1, 0, 1, all moved by an eighth. */
static void put_moved(uint64_t row, float scale, bool down, float *out) {
    for (int i = 0; i < 8; i++) {
        out[i] = scale * ((float)(int8_t)(row >> 8 * i & 255) + (down ? -0.125f : 0.125f));
    }
}

/* d f16, 32 low bytes of rows, for each 32 weights u16: three high bits for each of four rows, three bits of scale, the
 * direction. w = d * (1 + 2 * scale) * (value +- 1/8) */
void quant_dequantize_iq1_s(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / K; b++, p += 50) {
        for (int g = 0; g < 32; g++, out += 8) {
            uint32_t high = quant_u16(p + 34 + 2 * (g / 4));
            float scale = f16_at(p) * (float)(2 * (high >> 12 & 7) + 1);
            put_moved(quant_iq1s_grid[p[2 + g] | (high >> 3 * (g % 4) & 7) << 8], scale, high >> 15, out);
        }
    }
}

/* 32 low bytes of rows, four bits for each row (three high bits, direction), four u16: three bits of scale for each 16
 * weights; their high four bits are d's f16. */
void quant_dequantize_iq1_m(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / K; b++, p += 56) {
        uint32_t half = 0;
        for (int i = 0; i < 4; i++) {
            half |= (uint32_t)(quant_u16(p + 48 + 2 * i) >> 12) << 4 * i;
        }
        float d = sl_f16_to_f32((uint16_t)half);
        for (int g = 0; g < 32; g++, out += 8) {
            int high = p[32 + g / 2] >> 4 * (g % 2) & 15;
            int scale = quant_u16(p + 48 + 2 * (g / 8)) >> 3 * (g / 2 % 4) & 7;
            put_moved(quant_iq1s_grid[p[g] | (high & 7) << 8], d * (float)(2 * scale + 1), high >> 3, out);
        }
    }
}

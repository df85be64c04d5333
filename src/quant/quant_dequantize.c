/* Exact dequantisers of the float formats and GGUF's 32-weight blocks of integers. The order and the number of
 * roundings are part of the formats' definition: tests compare bits with Python's gguf package. */
#include "quant/quant_bits.h"
#include "quant/quant_rows.h"

#include <string.h>

void quant_dequantize_f32(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    memcpy(out, quant_block_at(m, row, col0), (size_t)n * sizeof(float));
}

void quant_dequantize_f16(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t i = 0; i < n; i++) {
        out[i] = sl_f16_to_f32(quant_u16(p + 2 * i));
    }
}

void quant_dequantize_bf16(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t i = 0; i < n; i++) {
        out[i] = sl_bf16_to_f32(quant_u16(p + 2 * i));
    }
}

/* d f16, 16 bytes: weight i in the low four bits of byte i, weight i + 16 in its high four. w = d * (q - 8) */
void quant_dequantize_q4_0(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / 32; b++, p += 18, out += 32) {
        float d = sl_f16_to_f32(quant_u16(p));
        for (int i = 0; i < 16; i++) {
            out[i] = d * (float)((p[2 + i] & 15) - 8);
            out[i + 16] = d * (float)((p[2 + i] >> 4) - 8);
        }
    }
}

/* d f16, m f16, 16 bytes as in Q4_0. w = d * q + m */
void quant_dequantize_q4_1(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / 32; b++, p += 20, out += 32) {
        float d = sl_f16_to_f32(quant_u16(p));
        float min = sl_f16_to_f32(quant_u16(p + 2));
        for (int i = 0; i < 16; i++) {
            out[i] = d * (float)(p[4 + i] & 15) + min;
            out[i + 16] = d * (float)(p[4 + i] >> 4) + min;
        }
    }
}

/* Code i (0..31) of a 5-bit block: low bits as in Q4_0, bit 4 is bit i of the 32-bit word `high`. */
static int five_bits(const uint8_t *low, uint32_t high, int i) {
    int q = i < 16 ? low[i] & 15 : low[i - 16] >> 4;
    return q | (int)(high >> i & 1) << 4;
}

/* d f16, high bits u32, 16 bytes. w = d * (q - 16) */
void quant_dequantize_q5_0(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / 32; b++, p += 22, out += 32) {
        float d = sl_f16_to_f32(quant_u16(p));
        uint32_t high = quant_u32(p + 2);
        for (int i = 0; i < 32; i++) {
            out[i] = d * (float)(five_bits(p + 6, high, i) - 16);
        }
    }
}

/* d f16, m f16, high bits u32, 16 bytes. w = d * q + m */
void quant_dequantize_q5_1(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / 32; b++, p += 24, out += 32) {
        float d = sl_f16_to_f32(quant_u16(p));
        float min = sl_f16_to_f32(quant_u16(p + 2));
        uint32_t high = quant_u32(p + 4);
        for (int i = 0; i < 32; i++) {
            out[i] = d * (float)five_bits(p + 8, high, i) + min;
        }
    }
}

/* d f16, 32 int8. w = d * q */
void quant_dequantize_q8_0(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / 32; b++, p += 34, out += 32) {
        float d = sl_f16_to_f32(quant_u16(p));
        for (int i = 0; i < 32; i++) {
            out[i] = d * (float)(int8_t)p[2 + i];
        }
    }
}

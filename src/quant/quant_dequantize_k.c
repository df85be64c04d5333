/* Exact dequantisers of GGUF's 256-weight blocks ("K" formats). */
#include "quant/quant_bits.h"
#include "quant/quant_rows.h"

enum { K = 256 };

/* 16 bytes of scale (low four bits) and minimum (high) per 16 weights, 64 bytes, d f16, dmin f16. Run r (0..7) of 32
 * weights is bits 2 * (r & 3).. of bytes 32 * (r / 4).. w = (d * scale) * q - dmin * min */
void quant_dequantize_q2_k(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / K; b++, p += 84) {
        float d = sl_f16_to_f32(quant_u16(p + 80));
        float dmin = sl_f16_to_f32(quant_u16(p + 82));
        for (int half = 0; half < 16; half++, out += 16) {
            float scale = d * (float)(p[half] & 15);
            float min = dmin * (float)(p[half] >> 4);
            const uint8_t *q = p + 16 + 32 * (half / 8) + 16 * (half & 1);
            for (int i = 0; i < 16; i++) {
                out[i] = scale * (float)(q[i] >> (half & 6) & 3) - min;
            }
        }
    }
}

/* 32 bytes of high bits (bit r of byte i is bit 2 of weight i of run r, inverted as a sign: q - 4 where it is 0), 64
 * bytes of low bits as in Q2_K, 12 bytes of 6-bit scales, d f16. w = (d * (scale - 32)) * q */
void quant_dequantize_q3_k(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / K; b++, p += 110) {
        float d = sl_f16_to_f32(quant_u16(p + 108));
        for (int half = 0; half < 16; half++, out += 16) {
            float scale = d * (float)quant_q3_k_scale(p + 96, half);
            const uint8_t *high = p + 16 * (half & 1);
            const uint8_t *low = p + 32 + 32 * (half / 8) + 16 * (half & 1);
            for (int i = 0; i < 16; i++) {
                int q = (low[i] >> (half & 6) & 3) - (high[i] >> half / 2 & 1 ? 0 : 4);
                out[i] = scale * (float)q;
            }
        }
    }
}

/* d f16, dmin f16, 12 bytes of 6-bit scales and minima, 128 bytes: sub-blocks 2j and 2j+1 are the low and high four
 * bits of bytes 32j..32j+31. w = (d * scale) * q - dmin * min */
void quant_dequantize_q4_k(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / K; b++, p += 144) {
        float d = sl_f16_to_f32(quant_u16(p));
        float dmin = sl_f16_to_f32(quant_u16(p + 2));
        for (int j = 0; j < 8; j++, out += 32) {
            uint8_t sc, mn;
            quant_k_scale_min(p + 4, j, &sc, &mn);
            float scale = d * (float)sc;
            float min = dmin * (float)mn;
            const uint8_t *q = p + 16 + 32 * (j / 2);
            for (int i = 0; i < 32; i++) {
                out[i] = scale * (float)(q[i] >> 4 * (j & 1) & 15) - min;
            }
        }
    }
}

/* As Q4_K with 32 bytes of high bits before the low ones: bit j of byte i is bit 4 of weight i of sub-block j. */
void quant_dequantize_q5_k(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / K; b++, p += 176) {
        float d = sl_f16_to_f32(quant_u16(p));
        float dmin = sl_f16_to_f32(quant_u16(p + 2));
        for (int j = 0; j < 8; j++, out += 32) {
            uint8_t sc, mn;
            quant_k_scale_min(p + 4, j, &sc, &mn);
            float scale = d * (float)sc;
            float min = dmin * (float)mn;
            const uint8_t *high = p + 16;
            const uint8_t *low = p + 48 + 32 * (j / 2);
            for (int i = 0; i < 32; i++) {
                int q = (low[i] >> 4 * (j & 1) & 15) | (high[i] >> j & 1) << 4;
                out[i] = scale * (float)q - min;
            }
        }
    }
}

/* 128 bytes of low four bits, 64 bytes of high two bits, 16 int8 scales (one per 16 weights), d f16. Each half of 128
 * weights has four runs of 32: run r takes its low bits from bytes 32 * (r & 1).. (low or high half of the byte by r >>
 * 1), its high bits from bits 2r of the half's 32 high bytes. w = (d * scale) * (q - 32) */
void quant_dequantize_q6_k(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / K; b++, p += 210) {
        float d = sl_f16_to_f32(quant_u16(p + 208));
        for (int run = 0; run < 8; run++, out += 32) {
            int half = run / 4, r = run % 4;
            const uint8_t *low = p + 64 * half + 32 * (r & 1);
            const uint8_t *high = p + 128 + 32 * half;
            for (int i = 0; i < 32; i++) {
                int q = (low[i] >> 4 * (r >> 1) & 15) | (high[i] >> 2 * r & 3) << 4;
                float scale = d * (float)(int8_t)p[192 + 2 * run + i / 16];
                out[i] = scale * (float)(q - 32);
            }
        }
    }
}

/* Five digits of base three in a byte: the first is the highest of q * 3 / 256. */
static float digit(uint8_t packed, int k) {
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    return (float)(((uint8_t)(packed * power[k]) * 3 >> 8) - 1);
}

/* 48 bytes of five digits, 4 bytes of four, d f16. Digit k of bytes 0..31 is weights 32k.., of bytes 32..47 weights 160
 * + 16k.., of the last four weights 240 + 4k... w = d * (digit - 1) */
void quant_dequantize_tq1_0(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / K; b++, p += 54, out += K) {
        float d = sl_f16_to_f32(quant_u16(p + 52));
        for (int i = 0; i < K; i++) {
            int at = i < 160 ? i % 32 : i < 240 ? 32 + (i - 160) % 16 : 48 + (i - 240) % 4;
            int k = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
            out[i] = d * digit(p[at], k);
        }
    }
}

/* 64 bytes of two-bit codes in runs as in Q2_K, d f16. w = d * (q - 1) */
void quant_dequantize_tq2_0(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / K; b++, p += 66) {
        float d = sl_f16_to_f32(quant_u16(p + 64));
        for (int run = 0; run < 8; run++, out += 32) {
            const uint8_t *q = p + 32 * (run / 4);
            for (int i = 0; i < 32; i++) {
                out[i] = d * (float)((q[i] >> 2 * (run & 3) & 3) - 1);
            }
        }
    }
}

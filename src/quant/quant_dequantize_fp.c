/* Exact dequantisers of formats whose codes are small floats. */
#include "quant/quant_bits.h"
#include "quant/quant_rows.h"

/* e8m0, 16 bytes: weight i in the low four bits of byte i, i + 16 in its high ones. w = 2^(e - 128) * (2 * value). As
 * in GGUF's own code minus zero is plus zero and e = 255 is an ordinary power. */
void quant_dequantize_mxfp4(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / 32; b++, p += 17, out += 32) {
        float half = quant_e8m0_half(p[0]);
        for (int i = 0; i < 16; i++) {
            out[i] = half * (float)quant_e2m1_doubled[p[1 + i] & 15];
            out[i + 16] = half * (float)quant_e2m1_doubled[p[1 + i] >> 4];
        }
    }
}

/* Weights 2i and 2i + 1 are the low and high four bits of byte i; minus zero stays. */
static void put_e2m1(const uint8_t *p, int64_t n, float scale, float *out) {
    static const float value[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6, /* */
                                    -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    for (int64_t i = 0; i < n / 2; i++) {
        out[2 * i] = scale * value[p[i] & 15];
        out[2 * i + 1] = scale * value[p[i] >> 4];
    }
}

/* The scale bytes of a row, from the one that serves col0. */
static const uint8_t *scales_at(const sl_matrix *m, int64_t row, int64_t col0) {
    return m->part[1] + (uint64_t)row * m->row_bytes[1] + col0 / m->group;
}

/* w = 2^(e - 127) * value */
void quant_dequantize_mxfp4_split(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0), *e = scales_at(m, row, col0);
    for (int64_t b = 0; b < n / 32; b++) {
        put_e2m1(p + 16 * b, 32, quant_e8m0(e[b]), out + 32 * b);
    }
}

/* w = scale * value */
void quant_dequantize_nvfp4_split(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0), *s = scales_at(m, row, col0);
    for (int64_t b = 0; b < n / 16; b++) {
        put_e2m1(p + 8 * b, 16, quant_e4m3(s[b]), out + 16 * b);
    }
}

/* w = 2^(e - 127) * code */
void quant_dequantize_mxfp8_split(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0), *e = scales_at(m, row, col0);
    for (int64_t i = 0; i < n; i++) {
        out[i] = quant_e8m0(e[i / 32]) * quant_e4m3(p[i]);
    }
}

void quant_dequantize_fp8(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t i = 0; i < n; i++) {
        out[i] = quant_e4m3(p[i]) * quant_fp8_scale(m, row, col0 + i);
    }
}

/* 4 scales e4m3 (their sign is not read, 0x7f is zero), 4 times 8 bytes: weights i and i + 8 of 16 are the low and high
 * four bits of byte i. w = scale / 2 * (2 * value) */
void quant_dequantize_nvfp4(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / 64; b++, p += 36) {
        for (int j = 0; j < 4; j++, out += 16) {
            float half = quant_nvfp4_half(p[j]);
            for (int i = 0; i < 8; i++) {
                out[i] = half * (float)quant_e2m1_doubled[p[4 + 8 * j + i] & 15];
                out[i + 8] = half * (float)quant_e2m1_doubled[p[4 + 8 * j + i] >> 4];
            }
        }
    }
}

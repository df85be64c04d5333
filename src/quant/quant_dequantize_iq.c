/* Exact dequantisers of GGUF's formats whose codes are looked up in a table of values. */
#include "quant/quant_bits.h"
#include "quant/quant_rows.h"

/* 32 weights: i in the low four bits of byte i, i + 16 in its high ones. */
static void put_values(const uint8_t *q, float scale, float *out) {
    for (int i = 0; i < 16; i++) {
        out[i] = scale * (float)quant_iq4_values[q[i] & 15];
        out[i + 16] = scale * (float)quant_iq4_values[q[i] >> 4];
    }
}

/* d f16, 16 bytes. w = d * value[q] */
void quant_dequantize_iq4_nl(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / 32; b++, p += 18, out += 32) {
        put_values(p + 2, sl_f16_to_f32(quant_u16(p)), out);
    }
}

/* d f16, 2 + 4 bytes of 6-bit scales, 128 bytes: eight sub-blocks as in IQ4_NL. w = (d * (scale - 32)) * value[q] */
void quant_dequantize_iq4_xs(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t b = 0; b < n / 256; b++, p += 136) {
        float d = sl_f16_to_f32(quant_u16(p));
        for (int j = 0; j < 8; j++, out += 32) {
            put_values(p + 8 + 16 * j, d * (float)quant_iq4_xs_scale(p, j), out);
        }
    }
}

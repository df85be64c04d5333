/* Exact dequantisers of MLX's affine groups: w = f32(q) * f32(scale) + f32(bias), rounded twice. */
#include "quant/quant_bits.h"
#include "quant/quant_rows.h"

static inline void affine(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out, int bits) {
    const uint8_t *p = quant_block_at(m, row, col0);
    for (int64_t c = 0; c < n; c += 32) {
        float scale = quant_side_at(m, 1, row, (col0 + c) / m->group);
        float bias = quant_side_at(m, 2, row, (col0 + c) / m->group);
        for (int eight = 0; eight < 4; eight++, p += bits) {
            uint64_t codes = quant_eight_codes(p, bits);
            for (int k = 0; k < 8; k++) {
                *out++ = (float)(int)(codes >> bits * k & ((1u << bits) - 1)) * scale + bias;
            }
        }
    }
}

#define AFFINE(bits)                                                                                                   \
    void quant_dequantize_affine##bits(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out) {         \
        affine(m, row, col0, n, out, bits);                                                                            \
    }

AFFINE(2)
AFFINE(3)
AFFINE(4)
AFFINE(5)
AFFINE(6)
AFFINE(8)

/* quant_rows: the functions that fill the table of formats; private to quant. All have the contract of sl_format's
 * fields. */
#ifndef SL_QUANT_ROWS_H
#define SL_QUANT_ROWS_H

#include "quant/quant.h"

#include <string.h>

typedef void quant_dequantize_fn(const sl_matrix *m, int64_t row, int64_t col0, int64_t n, float *out);
typedef void quant_quantize_fn(const float *x, int64_t n, void *out);

quant_dequantize_fn quant_dequantize_f32, quant_dequantize_f16, quant_dequantize_bf16;
quant_dequantize_fn quant_dequantize_q4_0, quant_dequantize_q4_1, quant_dequantize_q5_0, quant_dequantize_q5_1;
quant_dequantize_fn quant_dequantize_q8_0, quant_dequantize_q4_k, quant_dequantize_q5_k, quant_dequantize_q6_k;
quant_dequantize_fn quant_dequantize_q2_k, quant_dequantize_q3_k, quant_dequantize_iq4_nl, quant_dequantize_iq4_xs;
quant_dequantize_fn quant_dequantize_mxfp4, quant_dequantize_mxfp4_split, quant_dequantize_fp8;
quant_dequantize_fn quant_dequantize_nvfp4_split, quant_dequantize_mxfp8_split;
quant_dequantize_fn quant_dequantize_iq2_xxs, quant_dequantize_iq2_xs, quant_dequantize_iq2_s;
quant_dequantize_fn quant_dequantize_iq3_xxs, quant_dequantize_iq3_s, quant_dequantize_iq1_s, quant_dequantize_iq1_m;
quant_dequantize_fn quant_dequantize_tq1_0, quant_dequantize_tq2_0, quant_dequantize_nvfp4;
quant_dequantize_fn quant_dequantize_affine2, quant_dequantize_affine3, quant_dequantize_affine4;
quant_dequantize_fn quant_dequantize_affine5, quant_dequantize_affine6, quant_dequantize_affine8;

quant_quantize_fn quant_quantize_f32, quant_quantize_f16, quant_quantize_bf16;
quant_quantize_fn quant_quantize_q4_0, quant_quantize_q4_1, quant_quantize_q5_0, quant_quantize_q5_1;
quant_quantize_fn quant_quantize_q8_0, quant_quantize_mxfp4;

/* Where column col0 of a row begins in part 0. */
const uint8_t *quant_block_at(const sl_matrix *m, int64_t row, int64_t col0);

/* ---- what quantisers share ---- */

static inline void quant_put_u16(uint8_t *p, uint16_t v) {
    memcpy(p, &v, sizeof v);
}

/* trunc(v) held within 0..top; NaN is 0. */
static inline uint8_t quant_code_of(float v, int top) {
    return v >= (float)top ? (uint8_t)top : v > 0 ? (uint8_t)v : 0;
}

static inline void quant_range_of(const float *x, int64_t n, float *min, float *max) {
    *min = *max = x[0];
    for (int64_t i = 1; i < n; i++) {
        *min = x[i] < *min ? x[i] : *min;
        *max = x[i] > *max ? x[i] : *max;
    }
}

#endif

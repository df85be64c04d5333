/* Quantisers: the float formats, GGUF's 32-weight blocks (bit for bit as its reference quantiser for finite input),
 * MLX's affine groups. Input that would overflow (scales of subnormal blocks, NaN) gives some codes in range, never
 * undefined behaviour. */
#include "quant/quant_bits.h"
#include "quant/quant_rows.h"

#include <math.h>
#include <string.h>

void quant_quantize_f32(const float *x, int64_t n, void *out) {
    memcpy(out, x, (size_t)n * sizeof(float));
}

static void put_u16(uint8_t *p, uint16_t v) {
    memcpy(p, &v, sizeof v);
}

void quant_quantize_f16(const float *x, int64_t n, void *out) {
    for (int64_t i = 0; i < n; i++) {
        put_u16((uint8_t *)out + 2 * i, sl_f32_to_f16(x[i]));
    }
}

void quant_quantize_bf16(const float *x, int64_t n, void *out) {
    for (int64_t i = 0; i < n; i++) {
        put_u16((uint8_t *)out + 2 * i, sl_f32_to_bf16(x[i]));
    }
}

/* trunc(v) held within 0..top; NaN is 0. */
static uint8_t code_of(float v, int top) {
    return v >= (float)top ? (uint8_t)top : v > 0 ? (uint8_t)v : 0;
}

/* The element of greatest magnitude, with its sign (the first of equals). */
static float signed_extreme(const float *x) {
    float extreme = 0, magnitude = 0;
    for (int i = 0; i < 32; i++) {
        if (fabsf(x[i]) > magnitude) {
            magnitude = fabsf(x[i]);
            extreme = x[i];
        }
    }
    return extreme;
}

static void range_of(const float *x, int64_t n, float *min, float *max) {
    *min = *max = x[0];
    for (int64_t i = 1; i < n; i++) {
        *min = x[i] < *min ? x[i] : *min;
        *max = x[i] > *max ? x[i] : *max;
    }
}

/* Codes 0..top around the offset (top + 1) / 2; returns the scale. */
static float symmetric_codes(const float *x, int top, uint8_t *codes) {
    float offset = (float)((top + 1) / 2);
    float d = signed_extreme(x) / -offset;
    float inverse = d != 0 ? 1.0f / d : 0;
    for (int i = 0; i < 32; i++) {
        codes[i] = code_of(x[i] * inverse + (offset + 0.5f), top);
    }
    return d;
}

/* Codes 0..top above the minimum. */
static float offset_codes(const float *x, int top, uint8_t *codes, float *min) {
    float max;
    range_of(x, 32, min, &max);
    float d = (max - *min) / (float)top;
    float inverse = d != 0 ? 1.0f / d : 0;
    for (int i = 0; i < 32; i++) {
        codes[i] = code_of((x[i] - *min) * inverse + 0.5f, top);
    }
    return d;
}

static void put_low_bits(const uint8_t *codes, uint8_t *out) {
    for (int i = 0; i < 16; i++) {
        out[i] = (uint8_t)((codes[i] & 15) | (codes[i + 16] & 15) << 4);
    }
}

static void put_high_bits(const uint8_t *codes, uint8_t *out) {
    uint32_t high = 0;
    for (int i = 0; i < 32; i++) {
        high |= (uint32_t)(codes[i] >> 4) << i;
    }
    memcpy(out, &high, sizeof high);
}

void quant_quantize_q4_0(const float *x, int64_t n, void *out) {
    uint8_t codes[32], *p = out;
    for (int64_t b = 0; b < n / 32; b++, x += 32, p += 18) {
        put_u16(p, sl_f32_to_f16(symmetric_codes(x, 15, codes)));
        put_low_bits(codes, p + 2);
    }
}

void quant_quantize_q4_1(const float *x, int64_t n, void *out) {
    uint8_t codes[32], *p = out;
    for (int64_t b = 0; b < n / 32; b++, x += 32, p += 20) {
        float min;
        put_u16(p, sl_f32_to_f16(offset_codes(x, 15, codes, &min)));
        put_u16(p + 2, sl_f32_to_f16(min));
        put_low_bits(codes, p + 4);
    }
}

void quant_quantize_q5_0(const float *x, int64_t n, void *out) {
    uint8_t codes[32], *p = out;
    for (int64_t b = 0; b < n / 32; b++, x += 32, p += 22) {
        put_u16(p, sl_f32_to_f16(symmetric_codes(x, 31, codes)));
        put_high_bits(codes, p + 2);
        put_low_bits(codes, p + 6);
    }
}

void quant_quantize_q5_1(const float *x, int64_t n, void *out) {
    uint8_t codes[32], *p = out;
    for (int64_t b = 0; b < n / 32; b++, x += 32, p += 24) {
        float min;
        put_u16(p, sl_f32_to_f16(offset_codes(x, 31, codes, &min)));
        put_u16(p + 2, sl_f32_to_f16(min));
        put_high_bits(codes, p + 4);
        put_low_bits(codes, p + 8);
    }
}

void quant_quantize_q8_0(const float *x, int64_t n, void *out) {
    uint8_t *p = out;
    for (int64_t b = 0; b < n / 32; b++, x += 32, p += 34) {
        float d = fabsf(signed_extreme(x)) / 127.0f;
        float inverse = d != 0 ? 1.0f / d : 0;
        put_u16(p, sl_f32_to_f16(d));
        for (int i = 0; i < 32; i++) {
            float v = roundf(x[i] * inverse); /* half away from zero */
            p[2 + i] = (uint8_t)(int8_t)(v >= 127 ? 127 : v > -127 ? v : v <= -127 ? -127 : 0);
        }
    }
}

/* ---- MLX affine ---- */

static float put_side(float v, sl_format_id side, uint8_t *base, int64_t index) {
    uint8_t *p = base + index * (side == SL_F32 ? 4 : 2);
    switch (side) {
    case SL_F16:
        put_u16(p, sl_f32_to_f16(v));
        return sl_f16_to_f32(sl_f32_to_f16(v));
    case SL_BF16:
        put_u16(p, sl_f32_to_bf16(v));
        return sl_bf16_to_f32(sl_f32_to_bf16(v));
    default:
        memcpy(p, &v, sizeof v);
        return v;
    }
}

/* The scale is stretched so that the end of the range that is larger in magnitude is met exactly by a whole code, and
 * zero too. */
static void affine_scale_bias(const float *x, int group, int top, float *scale, float *bias) {
    float min, max;
    range_of(x, group, &min, &max);
    bool low_end = fabsf(min) > fabsf(max);
    float s = fmaxf((max - min) / (float)top, 1e-7f);
    s = low_end ? s : -s;
    float edge = low_end ? min : max;
    float q0 = rintf(edge / s);
    *scale = q0 != 0 ? edge / q0 : s;
    *bias = q0 != 0 ? edge : 0;
}

void quant_put_eight(const uint8_t q[8], int bits, uint8_t *out) {
    uint64_t v = 0;
    for (int k = 0; k < 8; k++) {
        v |= (uint64_t)q[k] << bits * k;
    }
    memcpy(out, &v, (size_t)bits);
}

void sl_affine_quantize(const float *x, int64_t n, int bits, int group, sl_format_id side, void *codes, void *scales,
                        void *biases) {
    int top = (1 << bits) - 1;
    uint8_t *out = codes;
    for (int64_t g = 0; g < n / group; g++, x += group) {
        float scale, bias;
        affine_scale_bias(x, group, top, &scale, &bias);
        scale = put_side(scale, side, scales, g);
        bias = put_side(bias, side, biases, g);
        for (int i = 0; i < group; i += 8, out += bits) {
            uint8_t q[8];
            for (int k = 0; k < 8; k++) {
                q[k] = code_of(rintf((x[i + k] - bias) / scale), top);
            }
            quant_put_eight(q, bits, out);
        }
    }
}

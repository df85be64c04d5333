/* Quantisers: the float formats, GGUF's 32-weight blocks (bit for bit as its reference quantiser for finite input).
 * Input that would overflow (scales of subnormal blocks, NaN) gives some codes in range, never
 * undefined behaviour. */
#include "quant/quant_bits.h"
#include "quant/quant_rows.h"

#include <math.h>
#include <string.h>

void quant_quantize_f32(const float *x, int64_t n, void *out) {
    memcpy(out, x, (size_t)n * sizeof(float));
}

void quant_quantize_f16(const float *x, int64_t n, void *out) {
    for (int64_t i = 0; i < n; i++) {
        quant_put_u16((uint8_t *)out + 2 * i, sl_f32_to_f16(x[i]));
    }
}

void quant_quantize_bf16(const float *x, int64_t n, void *out) {
    for (int64_t i = 0; i < n; i++) {
        quant_put_u16((uint8_t *)out + 2 * i, sl_f32_to_bf16(x[i]));
    }
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

/* Codes 0..top around the offset (top + 1) / 2; returns the scale. */
static float symmetric_codes(const float *x, int top, uint8_t *codes) {
    float offset = (float)((top + 1) / 2);
    float d = signed_extreme(x) / -offset;
    float inverse = d != 0 ? 1.0f / d : 0;
    for (int i = 0; i < 32; i++) {
        codes[i] = quant_code_of(x[i] * inverse + (offset + 0.5f), top);
    }
    return d;
}

/* Codes 0..top above the minimum. */
static float offset_codes(const float *x, int top, uint8_t *codes, float *min) {
    float max;
    quant_range_of(x, 32, min, &max);
    float d = (max - *min) / (float)top;
    float inverse = d != 0 ? 1.0f / d : 0;
    for (int i = 0; i < 32; i++) {
        codes[i] = quant_code_of((x[i] - *min) * inverse + 0.5f, top);
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
        quant_put_u16(p, sl_f32_to_f16(symmetric_codes(x, 15, codes)));
        put_low_bits(codes, p + 2);
    }
}

void quant_quantize_q4_1(const float *x, int64_t n, void *out) {
    uint8_t codes[32], *p = out;
    for (int64_t b = 0; b < n / 32; b++, x += 32, p += 20) {
        float min;
        quant_put_u16(p, sl_f32_to_f16(offset_codes(x, 15, codes, &min)));
        quant_put_u16(p + 2, sl_f32_to_f16(min));
        put_low_bits(codes, p + 4);
    }
}

void quant_quantize_q5_0(const float *x, int64_t n, void *out) {
    uint8_t codes[32], *p = out;
    for (int64_t b = 0; b < n / 32; b++, x += 32, p += 22) {
        quant_put_u16(p, sl_f32_to_f16(symmetric_codes(x, 31, codes)));
        put_high_bits(codes, p + 2);
        put_low_bits(codes, p + 6);
    }
}

void quant_quantize_q5_1(const float *x, int64_t n, void *out) {
    uint8_t codes[32], *p = out;
    for (int64_t b = 0; b < n / 32; b++, x += 32, p += 24) {
        float min;
        quant_put_u16(p, sl_f32_to_f16(offset_codes(x, 31, codes, &min)));
        quant_put_u16(p + 2, sl_f32_to_f16(min));
        put_high_bits(codes, p + 4);
        put_low_bits(codes, p + 8);
    }
}

void quant_quantize_q8_0(const float *x, int64_t n, void *out) {
    uint8_t *p = out;
    for (int64_t b = 0; b < n / 32; b++, x += 32, p += 34) {
        float d = fabsf(signed_extreme(x)) / 127.0f;
        float inverse = d != 0 ? 1.0f / d : 0;
        quant_put_u16(p, sl_f32_to_f16(d));
        for (int i = 0; i < 32; i++) {
            float v = roundf(x[i] * inverse); /* half away from zero */
            p[2 + i] = (uint8_t)(int8_t)(v >= 127 ? 127 : v > -127 ? v : v <= -127 ? -127 : 0);
        }
    }
}

/* The code whose value is nearest to x, the first of equals. */
static uint8_t nearest_e2m1(float x, float half) {
    uint8_t best = 0;
    float least = fabsf(x);
    for (uint8_t q = 1; q < 16; q++) {
        float miss = fabsf(half * (float)quant_e2m1_doubled[q] - x);
        if (miss < least) {
            least = miss;
            best = q;
        }
    }
    return best;
}

/* The power of two that brings the largest magnitude to 4..8, of which 6 is the last value. */
void quant_quantize_mxfp4(const float *x, int64_t n, void *out) {
    uint8_t *p = out;
    for (int64_t b = 0; b < n / 32; b++, x += 32, p += 17) {
        float magnitude = fabsf(signed_extreme(x));
        float e = magnitude > 0 ? floorf(log2f(magnitude)) + 125.0f : 0;
        p[0] = quant_code_of(e, 254);
        for (int i = 0; i < 16; i++) {
            p[1 + i] = (uint8_t)(nearest_e2m1(x[i], quant_e8m0_half(p[0])) |
                                 nearest_e2m1(x[i + 16], quant_e8m0_half(p[0])) << 4);
        }
    }
}

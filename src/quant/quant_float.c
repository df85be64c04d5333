/* Conversions between f32 and the two 16-bit float types, on bits, so that every machine gives the same. */
#include "quant/quant.h"
#include "quant/quant_bits.h"

float sl_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31;
    uint32_t mantissa = h & 0x3ff;
    if (exponent == 0) {
        /* Subnormal or zero: mantissa * 2^-24 is exact in f32. */
        return quant_float_of(sign | quant_bits_of((float)mantissa * 0x1p-24f));
    }
    if (exponent == 31) {
        return quant_float_of(sign | 0x7f800000 | mantissa << 13);
    }
    return quant_float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t sl_f32_to_f16(float f) {
    uint32_t bits = quant_bits_of(f);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t a = bits & 0x7fffffff;
    if (a > 0x7f800000) {
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff)); /* NaN, made quiet */
    }
    if (a >= 0x477ff000) {
        return sign | 0x7c00; /* 65520 and above round to infinity */
    }
    if (a < 0x38800000) {
        /* Below 2^-14: adding 0.5 leaves the multiple of 2^-24, rounded to even, in the low bits of the sum. */
        float rounded = quant_float_of(a) + 0.5f;
        return (uint16_t)(sign | (quant_bits_of(rounded) - 0x3f000000));
    }
    uint32_t even = (a >> 13) & 1;
    return (uint16_t)(sign | ((a - (112u << 23) + 0xfff + even) >> 13));
}

float sl_bf16_to_f32(uint16_t h) {
    return quant_float_of((uint32_t)h << 16);
}

uint16_t sl_f32_to_bf16(float f) {
    uint32_t bits = quant_bits_of(f);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return (uint16_t)(bits >> 16 | 64); /* NaN, made quiet */
    }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

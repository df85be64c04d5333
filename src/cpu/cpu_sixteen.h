/* cpu_sixteen: 16 lanes of floats with fused multiply-add, one rounding on every instruction set (the scalar build
 * calls fmaf): for kernels whose order of additions is written with fma. May include: cpu_vec.h. */
#ifndef SL_CPU_SIXTEEN_H
#define SL_CPU_SIXTEEN_H

#include "cpu/cpu_vec.h"
#include "quant/quant_bits.h"

#include <math.h>

#if defined(__F16C__)
/* 16 e4m3 codes, sign-extended, to f16 of a 256th of their value, for the exponents' offsets differ by 8. Subnormal
 * codes are subnormal halves; NaN's seven ones carry into the half's exponent and make it NaN. */
V_INLINE __m256i halves_e4m3(__m256i v) {
    v = _mm256_and_si256(_mm256_slli_epi16(v, 7), _mm256_set1_epi16((short)0xbf80));
    __m256i carry = _mm256_add_epi16(v, _mm256_set1_epi16(0x80));
    return _mm256_or_si256(v, _mm256_and_si256(carry, _mm256_set1_epi16(0x4000)));
}
#endif

/* Where no register holds them all they are named parts: compilers keep a 64-byte vector, or an array of
 * parts, in memory. */
#if defined(__AVX512F__)
typedef v16 sixteen;

V_INLINE sixteen sixteen_zero(void) {
    return v16_set(0.0f);
}
V_INLINE sixteen sixteen_load(const uint8_t *p) {
    return (v16)_mm512_loadu_ps(p);
}
V_INLINE void sixteen_store(float *p, sixteen v) {
    v16_store(p, v);
}
/* a * b + c, one rounding */
V_INLINE sixteen sixteen_fma(sixteen a, sixteen b, sixteen c) {
    return (v16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
V_INLINE sixteen sixteen_set(float x) {
    return v16_set(x);
}
V_INLINE sixteen sixteen_mul(sixteen a, sixteen b) {
    return a * b;
}
V_INLINE sixteen sixteen_add(sixteen a, sixteen b) {
    return a + b;
}
V_INLINE sixteen sixteen_load_f16(const uint8_t *p) {
    return v16_load_f16(p);
}
V_INLINE sixteen sixteen_load_bf16(const uint8_t *p) {
    __m256i h = _mm256_loadu_si256((const __m256i *)p);
    return (v16)_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
V_INLINE sixteen sixteen_load_e4m3(const uint8_t *p) {
    __m256i v = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
    return (v16)_mm512_cvtph_ps(halves_e4m3(v));
}
V_INLINE sixteen sixteen_scale(sixteen v, float by) {
    return v * v16_set(by);
}

#elif defined(__FMA__)
typedef struct sixteen {
    __m256 a, b;
} sixteen;

V_INLINE sixteen sixteen_zero(void) {
    return (sixteen){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
V_INLINE sixteen sixteen_load(const uint8_t *p) {
    return (sixteen){_mm256_loadu_ps((const float *)p), _mm256_loadu_ps((const float *)(p + 32))};
}
V_INLINE void sixteen_store(float *p, sixteen v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
V_INLINE sixteen sixteen_fma(sixteen x, sixteen y, sixteen z) {
    return (sixteen){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
V_INLINE sixteen sixteen_set(float x) {
    return (sixteen){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
V_INLINE sixteen sixteen_mul(sixteen x, sixteen y) {
    return (sixteen){x.a * y.a, x.b * y.b};
}
V_INLINE sixteen sixteen_add(sixteen x, sixteen y) {
    return (sixteen){x.a + y.a, x.b + y.b};
}
V_INLINE __m128i eight_halves(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)p);
}
V_INLINE sixteen sixteen_load_f16(const uint8_t *p) {
    return (sixteen){_mm256_cvtph_ps(eight_halves(p)), _mm256_cvtph_ps(eight_halves(p + 16))};
}
V_INLINE __m256 eight_bf16(const uint8_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight_halves(p)), 16));
}
V_INLINE sixteen sixteen_load_bf16(const uint8_t *p) {
    return (sixteen){eight_bf16(p), eight_bf16(p + 16)};
}
V_INLINE sixteen sixteen_load_e4m3(const uint8_t *p) {
    __m256i h = halves_e4m3(_mm256_cvtepi8_epi16(eight_halves(p)));
    return (sixteen){_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
V_INLINE sixteen sixteen_scale(sixteen v, float by) {
    return (sixteen){_mm256_mul_ps(v.a, _mm256_set1_ps(by)), _mm256_mul_ps(v.b, _mm256_set1_ps(by))};
}

#elif defined(__ARM_NEON)
typedef struct sixteen {
    float32x4_t a, b, c, d;
} sixteen;

V_INLINE sixteen sixteen_zero(void) {
    float32x4_t z = vdupq_n_f32(0);
    return (sixteen){z, z, z, z};
}
V_INLINE float32x4_t four_floats(const uint8_t *p) {
    return vreinterpretq_f32_u8(vld1q_u8(p));
}
V_INLINE sixteen sixteen_load(const uint8_t *p) {
    return (sixteen){four_floats(p), four_floats(p + 16), four_floats(p + 32), four_floats(p + 48)};
}
V_INLINE void sixteen_store(float *p, sixteen v) {
    vst1q_f32(p, v.a);
    vst1q_f32(p + 4, v.b);
    vst1q_f32(p + 8, v.c);
    vst1q_f32(p + 12, v.d);
}
V_INLINE sixteen sixteen_fma(sixteen x, sixteen y, sixteen z) {
    return (sixteen){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
                     vfmaq_f32(z.d, x.d, y.d)};
}
V_INLINE sixteen sixteen_set(float x) {
    float32x4_t v = vdupq_n_f32(x);
    return (sixteen){v, v, v, v};
}
V_INLINE sixteen sixteen_mul(sixteen x, sixteen y) {
    return (sixteen){x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d};
}
V_INLINE sixteen sixteen_add(sixteen x, sixteen y) {
    return (sixteen){x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d};
}
V_INLINE float32x4_t four_f16(const uint8_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
V_INLINE sixteen sixteen_load_f16(const uint8_t *p) {
    return (sixteen){four_f16(p), four_f16(p + 8), four_f16(p + 16), four_f16(p + 24)};
}
V_INLINE float32x4_t four_bf16(const uint8_t *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}
V_INLINE sixteen sixteen_load_bf16(const uint8_t *p) {
    return (sixteen){four_bf16(p), four_bf16(p + 8), four_bf16(p + 16), four_bf16(p + 24)};
}
/* As halves_e4m3. */
V_INLINE uint16x8_t eight_e4m3(uint8x8_t bytes) {
    uint16x8_t v = vshlq_n_u16(vreinterpretq_u16_s16(vmovl_s8(vreinterpret_s8_u8(bytes))), 7);
    v = vandq_u16(v, vdupq_n_u16(0xbf80));
    return vorrq_u16(v, vandq_u16(vaddq_u16(v, vdupq_n_u16(0x80)), vdupq_n_u16(0x4000)));
}
V_INLINE float32x4_t four_wide(uint16x4_t h) {
    return vcvt_f32_f16(vreinterpret_f16_u16(h));
}
V_INLINE sixteen sixteen_load_e4m3(const uint8_t *p) {
    uint16x8_t lo = eight_e4m3(vld1_u8(p)), hi = eight_e4m3(vld1_u8(p + 8));
    return (sixteen){four_wide(vget_low_u16(lo)), four_wide(vget_high_u16(lo)), four_wide(vget_low_u16(hi)),
                     four_wide(vget_high_u16(hi))};
}
V_INLINE sixteen sixteen_scale(sixteen v, float by) {
    return (sixteen){vmulq_n_f32(v.a, by), vmulq_n_f32(v.b, by), vmulq_n_f32(v.c, by), vmulq_n_f32(v.d, by)};
}

#else
typedef struct sixteen {
    float v[16];
} sixteen;

V_INLINE sixteen sixteen_zero(void) {
    return (sixteen){{0}};
}
V_INLINE sixteen sixteen_load(const uint8_t *p) {
    sixteen out;
    memcpy(&out, p, sizeof out);
    return out;
}
V_INLINE void sixteen_store(float *p, sixteen v) {
    memcpy(p, &v, sizeof v);
}
V_INLINE sixteen sixteen_fma(sixteen a, sixteen b, sixteen c) {
    for (int i = 0; i < 16; i++) {
        c.v[i] = fmaf(a.v[i], b.v[i], c.v[i]);
    }
    return c;
}
V_INLINE sixteen sixteen_set(float x) {
    sixteen out;
    for (int i = 0; i < 16; i++) {
        out.v[i] = x;
    }
    return out;
}
V_INLINE sixteen sixteen_mul(sixteen x, sixteen y) {
    for (int i = 0; i < 16; i++) {
        x.v[i] = x.v[i] * y.v[i];
    }
    return x;
}
V_INLINE sixteen sixteen_add(sixteen x, sixteen y) {
    for (int i = 0; i < 16; i++) {
        x.v[i] = x.v[i] + y.v[i];
    }
    return x;
}
V_INLINE sixteen sixteen_load_f16(const uint8_t *p) {
    sixteen out;
    for (int i = 0; i < 16; i++) {
        out.v[i] = sl_f16_to_f32(quant_u16(p + 2 * i));
    }
    return out;
}
V_INLINE sixteen sixteen_load_bf16(const uint8_t *p) {
    sixteen out;
    for (int i = 0; i < 16; i++) {
        out.v[i] = sl_bf16_to_f32(quant_u16(p + 2 * i));
    }
    return out;
}
V_INLINE sixteen sixteen_load_e4m3(const uint8_t *p) {
    sixteen out;
    for (int i = 0; i < 16; i++) {
        out.v[i] = quant_e4m3(p[i]) * 0x1p-8f;
    }
    return out;
}
V_INLINE sixteen sixteen_scale(sixteen v, float by) {
    for (int i = 0; i < 16; i++) {
        v.v[i] *= by;
    }
    return v;
}
#endif

#endif

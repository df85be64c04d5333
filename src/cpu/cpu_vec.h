/* A vector of 16 floats for kernels written once: the compiler lowers it to the instruction set of the file that
 * includes this. Only separate multiplies and adds (no fma): the bits are the same on every set. */
#ifndef SL_CPU_VEC_H
#define SL_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "quant/quant.h"

#pragma GCC diagnostic ignored "-Wpsabi"

typedef float v16 __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));
typedef float v8 __attribute__((vector_size(32)));
typedef float v4 __attribute__((vector_size(16)));

#define V_INLINE static inline __attribute__((always_inline, unused))

V_INLINE v16 v16_load(const float *p) {
    v16 v;
    memcpy(&v, p, sizeof v);
    return v;
}

V_INLINE void v16_store(float *p, v16 v) {
    memcpy(p, &v, sizeof v);
}

V_INLINE v16 v16_set(float x) {
    return (v16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

/* The first n (0..15) floats of p, zeros behind. */
V_INLINE v16 v16_load_part(const float *p, int n) {
    v16 v = {0};
    memcpy(&v, p, (size_t)n * sizeof *p);
    return v;
}

/* 16 lanes to 4, upper half added to lower. Shuffles, not copies through memory: those would keep the caller's sums
 * there for its whole loop. */
V_INLINE v4 v16_fold(v16 v) {
    v8 a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
           __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    return __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
}

/* Sum of lanes: 16 -> 8 -> 4 -> 2 -> 1, upper half added to lower. */
V_INLINE float v16_sum(v16 v) {
    v4 b = v16_fold(v);
    return (b[0] + b[2]) + (b[1] + b[3]);
}

/* v16_sum of four vectors at once: the same additions, with the four results side by side. */
V_INLINE v4 v16_sum4(v16 a, v16 b, v16 c, v16 d) {
    v4 x = v16_fold(a), y = v16_fold(b), z = v16_fold(c), w = v16_fold(d);
    v4 xy02 = __builtin_shufflevector(x, y, 0, 4, 2, 6), xy13 = __builtin_shufflevector(x, y, 1, 5, 3, 7);
    v4 zw02 = __builtin_shufflevector(z, w, 0, 4, 2, 6), zw13 = __builtin_shufflevector(z, w, 1, 5, 3, 7);
    v4 even = __builtin_shufflevector(xy02, zw02, 0, 1, 4, 5) + __builtin_shufflevector(xy02, zw02, 2, 3, 6, 7);
    v4 odd = __builtin_shufflevector(xy13, zw13, 0, 1, 4, 5) + __builtin_shufflevector(xy13, zw13, 2, 3, 6, 7);
    return even + odd;
}

V_INLINE v16 v16_select(v16i mask, v16 a, v16 b) {
    return (v16)(((v16i)a & mask) | ((v16i)b & ~mask));
}
/* b where one of both is NaN. */
V_INLINE v16 v16_max(v16 a, v16 b) {
    return v16_select(a > b, a, b);
}
V_INLINE v16 v16_min(v16 a, v16 b) {
    return v16_select(a < b, a, b);
}

/* The greatest lane; with a NaN among them any lane. */
V_INLINE float v16_max_lane(v16 v) {
    v = v16_max(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    v = v16_max(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
    v = v16_max(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    v = v16_max(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
    return v[0];
}

/* 16 half floats, exact. */
V_INLINE v16 v16_load_f16(const uint8_t *p) {
#if defined(__AVX512F__)
    return (v16)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__F16C__)
    v16 v;
    __m256 lo = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
    __m256 hi = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 16)));
    memcpy(&v, &lo, sizeof lo);
    memcpy((char *)&v + sizeof lo, &hi, sizeof hi);
    return v;
#else
    uint16_t h[16];
    v16 v;
    memcpy(h, p, sizeof h);
    for (int i = 0; i < 16; i++)
        v[i] = sl_f16_to_f32(h[i]);
    return v;
#endif
}

/* exp(x) for x <= 88, to about 2 ulp; exp(88) above; 0 below -87 (no denormals); NaN for NaN. Range reduction by the
 * magic-number trick, then a degree-6 polynomial. */
V_INLINE v16 v16_exp(v16 x) {
    const v16 magic = v16_set(12582912.0f);
    const v16 low = v16_set(-87.0f), high = v16_set(88.0f);
    v16i under = x < low;
    v16 c = v16_max(low, v16_min(high, x)); /* in this order of operands a NaN passes through */
    v16 t = c * v16_set(1.44269504f) + magic;
    v16 n = t - magic;
    v16 r = (c - n * v16_set(0.693359375f)) - n * v16_set(-2.12194440e-4f);
    v16 p = v16_set(1.0f / 720);
    p = p * r + v16_set(1.0f / 120);
    p = p * r + v16_set(1.0f / 24);
    p = p * r + v16_set(1.0f / 6);
    p = p * r + v16_set(0.5f);
    p = p * r + v16_set(1.0f);
    p = p * r + v16_set(1.0f);
    v16i e = ((v16i)t - (v16i)magic + 127) << 23;
    v16 y = p * (v16)e;
    return v16_select(under, v16_set(0.0f), y);
}

#endif

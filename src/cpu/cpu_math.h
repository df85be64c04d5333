/* cpu_math: activation functions shared by the matmul kernels and the other operations, on the 16-wide vectors of
 * cpu_vec.h, so that their bits are the same on every instruction set. May include: cpu_vec.h. */
#ifndef SL_CPU_MATH_H
#define SL_CPU_MATH_H

#include "cpu/cpu_vec.h"

/* x / (1 + exp(-x)) */
V_INLINE v16 v16_silu(v16 x) {
    return x / (v16_set(1.0f) + v16_exp(-x));
}

/* 1 / (1 + exp(-x)) */
V_INLINE v16 v16_sigmoid(v16 x) {
    return v16_set(1.0f) / (v16_set(1.0f) + v16_exp(-x));
}

V_INLINE float cpu_exp(float x) {
    return v16_exp(v16_set(x))[0];
}

V_INLINE float cpu_silu(float x) {
    return v16_silu(v16_set(x))[0];
}

V_INLINE float cpu_sigmoid(float x) {
    return v16_sigmoid(v16_set(x))[0];
}

/* h[i] = silu(gate[i]) * up[i]; h may be gate or up. */
V_INLINE void v16_silu_mul(float *h, const float *gate, const float *up, int64_t n) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16_store(h + i, v16_silu(v16_load(gate + i)) * v16_load(up + i));
    }
    if (i < n) {
        v16 part = v16_silu(v16_load_part(gate + i, (int)(n - i))) * v16_load_part(up + i, (int)(n - i));
        memcpy(h + i, &part, (size_t)(n - i) * sizeof *h);
    }
}

/* h[i] = g * sigmoid(alpha * g) * (u + 1), g = min(gate[i], limit), u = up[i] within limit; NaN stays NaN; h may be
 * gate.
 */
V_INLINE void v16_clamped_swiglu(float *h, const float *gate, const float *up, int64_t n, float alpha, float limit) {
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i] > limit ? limit : gate[i];
        float u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
        h[i] = g * cpu_sigmoid(alpha * g) * (u + 1.0f);
    }
}

/* x[i] *= sigmoid(gate[i]) */
V_INLINE void v16_sigmoid_mul(float *x, const float *gate, int64_t n) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16_store(x + i, v16_load(x + i) * v16_sigmoid(v16_load(gate + i)));
    }
    if (i < n) {
        v16 part = v16_load_part(x + i, (int)(n - i)) * v16_sigmoid(v16_load_part(gate + i, (int)(n - i)));
        memcpy(x + i, &part, (size_t)(n - i) * sizeof *x);
    }
}

#endif

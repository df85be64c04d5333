// dot: rows of weights times one row of x, by one SIMD-group. Each lane takes every 32nd unit of the row: it reads the
// unit's x once for R rows of weights, sums codes times x in float4 lanes, and applies scale and bias to the run's sum:
// s * acc + (b - offset * s) * sum(x). The lanes' sums meet in simd_sum.
#ifndef SL_KERNELS_DOT_H
#define SL_KERNELS_DOT_H

#include "blocks_gguf.h"

enum { DOT_ROWS = 4 };

struct x_unit {
    float4 low[4], high[4];
    float2 sum; // of each run
};

inline float add4(float4 v) {
    return (v.x + v.y) + (v.z + v.w);
}

// Four columns; x has the alignment of a float.
inline float4 load_x4(device const float *x) {
    return float4(*(device const packed_float4 *)x);
}

// Beyond the last column: zeros.
inline float4 load_x4_upto(device const float *x, uint c, uint cols) {
    if (c + 4 <= cols)
        return load_x4(x + c);
    float4 v = float4(0.0f);
    for (uint j = 0; j < 4; j++)
        v[j] = c + j < cols ? x[c + j] : 0.0f;
    return v;
}

template <typename F> inline void load_x(thread x_unit &q, device const float *x, uint u, uint cols) {
    uint c = F::column(u);
    float4 low = float4(0.0f), high = float4(0.0f);
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        q.low[i] = F::plain ? load_x4_upto(x, c + 4 * i, cols) : load_x4(x + c + 4 * i);
        q.high[i] = F::plain ? load_x4_upto(x, c + 16 + 4 * i, cols) : load_x4(x + c + F::gap + 4 * i);
        low += q.low[i];
        high += q.high[i];
    }
    q.sum = float2(add4(low), add4(high));
}

template <typename F> inline float unit_dot(thread const typename F::unit &q, thread const x_unit &x) {
    float4 low = float4(0.0f), high = float4(0.0f);
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        low = fma(F::low(q, i), x.low[i], low);
        high = fma(F::high(q, i), x.high[i], high);
    }
    if (F::plain)
        return add4(low + high);
    float2 s = F::scale(q), b = fma(float2(-F::offset), s, F::bias(q));
    float2 sums = fma(s, float2(add4(low), add4(high)), b * x.sum);
    return sums.x + sums.y;
}

// The other form, for comparison: fma(code, s * x, b * x) weight by weight.
template <typename F> inline float unit_dot_fma(thread const typename F::unit &q, thread const x_unit &x) {
    float2 s = F::scale(q), b = F::bias(q);
    float4 low = float4(0.0f), high = float4(0.0f);
    float offset = F::offset;
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        low += fma(F::low(q, i) - offset, s.x * x.low[i], b.x * x.low[i]);
        high += fma(F::high(q, i) - offset, s.y * x.high[i], b.y * x.high[i]);
    }
    return add4(low + high);
}

// acc[m * R + r] = row (row0 + r) of w[m] times x, the same in every lane; M matrices of one shape share the loads of
// x.
template <typename F, int R, int M, bool FMA>
inline void dot_rows(thread float (&acc)[M * R], thread const weights *w, uint row0, device const float *x, uint lane) {
    weight_row rows[M * R];
#pragma unroll
    for (int i = 0; i < M * R; i++) {
        rows[i] = row_at(w[i / R], row0 + uint(i % R));
        acc[i] = 0.0f;
    }
    uint units = unit_count(w[0]);
    for (uint u = lane; u < units; u += SL_SIMD) {
        x_unit xu;
        load_x<F>(xu, x, u, w[0].cols);
#pragma unroll
        for (int i = 0; i < M * R; i++) {
            typename F::unit q;
            F::load(q, rows[i], u, w[0]);
            acc[i] += FMA ? unit_dot_fma<F>(q, xu) : unit_dot<F>(q, xu);
        }
    }
#pragma unroll
    for (int i = 0; i < M * R; i++)
        acc[i] = simd_sum(acc[i]);
}

// Lane r's value of acc.
template <int R> inline float pick_row(thread const float *acc, uint lane) {
    float v = acc[0];
#pragma unroll
    for (int r = 1; r < R; r++)
        v = lane == uint(r) ? acc[r] : v;
    return v;
}

#endif

// row: a threadgroup that has a row: its columns in registers, sums and maxima over all threads, the norm.
#ifndef SL_KERNELS_ROW_H
#define SL_KERNELS_ROW_H

#include "step.h"

enum { ROW_VALUES = 8 /* columns of a thread: its own, and every `threads`th on */, NORM_SUMS = 3 };

struct place { // of a thread
    uint at, count, lane, simd, simds;
};

// All threads call it and get the same; shared[32] of its own for each call.
inline float group_sum(float v, threadgroup float *shared, thread const place &p) {
    v = simd_sum(v);
    if (p.lane == 0)
        shared[p.simd] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return simd_sum(p.lane < p.simds ? shared[p.lane] : 0.0f);
}

// Of values >= 0.
inline float group_max(float v, threadgroup float *shared, thread const place &p) {
    v = simd_max(v);
    if (p.lane == 0)
        shared[p.simd] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return simd_max(p.lane < p.simds ? shared[p.lane] : 0.0f);
}

// ---- a row in registers --------------------------------------------------------------------------------------------

inline void load_row(thread float *v, device const float *from, uint cols, thread const place &p) {
#pragma unroll
    for (uint i = 0; i < ROW_VALUES; i++) {
        uint c = p.at + i * p.count;
        v[i] = c < cols ? from[c] : 0.0f;
    }
}

inline float larger(float m, float v) {
    return fabs(v) > m ? fabs(v) : m;
}

// The first column of this thread that is not in registers.
inline uint beyond(thread const place &p) {
    return p.at + ROW_VALUES * p.count;
}

// to = v / sqrt(mean(v^2) + eps) * weight, also left in v; rest: the row in memory, of which columns beyond registers
// are read (to may be rest). shared[NORM_SUMS][32].
inline void put_norm(device float *to, thread float *v, device const float *rest, device const float *weight, uint cols,
                     float eps, threadgroup float (*shared)[32], thread const place &p) {
    float w[ROW_VALUES], sum = 0.0f, largest = 1.0f;
    load_row(w, weight, cols, p);
#pragma unroll
    for (uint i = 0; i < ROW_VALUES; i++)
        sum = fma(v[i], v[i], sum);
    for (uint c = beyond(p); c < cols; c += p.count)
        sum = fma(rest[c], rest[c], sum);
    sum = group_sum(sum, shared[0], p);
    // squares that leave float's range (or NaN and infinities): scaled down by the largest first
    if (!(sum <= FLT_MAX)) {
        float m = 0.0f;
        for (uint i = 0; i < ROW_VALUES; i++)
            m = larger(m, v[i]);
        for (uint c = beyond(p); c < cols; c += p.count)
            m = larger(m, rest[c]);
        largest = group_max(m, shared[1], p);
        sum = 0.0f;
        for (uint i = 0; i < ROW_VALUES; i++) {
            v[i] = v[i] / largest;
            sum = fma(v[i], v[i], sum);
        }
        for (uint c = beyond(p); c < cols; c += p.count)
            sum = fma(rest[c] / largest, rest[c] / largest, sum);
        sum = group_sum(sum, shared[2], p);
    }
    float inv = 1.0f / sqrt(sum / float(cols) + eps / largest / largest);
#pragma unroll
    for (uint i = 0; i < ROW_VALUES; i++) {
        uint c = p.at + i * p.count;
        v[i] = v[i] * inv * w[i];
        if (c < cols)
            to[c] = v[i];
    }
    for (uint c = beyond(p); c < cols; c += p.count)
        to[c] = rest[c] / largest * inv * weight[c];
}

#endif

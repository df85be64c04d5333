// tile: the only door to the matrix units. A fragment is 16 x 16, half x half -> float, held by a SIMD-group as 2 x 2
// matrices of 8 x 8; a product of fragments is eight of the hardware's. How elements lie in lanes is the device's own
// affair: rows are asked of the hardware (tile_rows), never assumed. Metal's functions take references that are not
// const, so these do too.
#ifndef SL_KERNELS_TILE_H
#define SL_KERNELS_TILE_H

#include <metal_simdgroup_matrix>
#include "step.h"

// A row of D columns in whole fragments, and how many of them each SIMD-group has when they are dealt out to four;
// those behind the last column do not exist.
template <uint D> constexpr uint tile_padded() {
    return (D + 15) / 16 * 16;
}
template <uint D> constexpr uint tiles_each() {
    return (D + 63) / 64;
}
template <uint D> inline bool has_tile(uint simd, uint n) {
    return D % 64 == 0 || 16 * (simd * tiles_each<D>() + n) < D;
}

#ifndef SL_TILE_FRAGMENTS

struct tile_half {
    simdgroup_half8x8 m[2][2];
};
struct tile_float {
    simdgroup_float8x8 m[2][2];
};

inline void tile_zero(thread tile_float &t) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        t.m[i >> 1][i & 1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
}

// t[r][c] = p[r * stride + c], for the left factor
inline void tile_load(thread tile_half &t, threadgroup const half *p, uint stride) {
#pragma unroll
    for (uint i = 0; i < 4; i++)
        simdgroup_load(t.m[i >> 1][i & 1], p + (i >> 1) * 8 * stride + (i & 1) * 8, stride);
}

// The same for the right factor of a product.
inline void tile_load_right(thread tile_half &t, threadgroup const half *p, uint stride) {
    tile_load(t, p, stride);
}

// t[r][c] = p[c * stride + r], for the right factor
inline void tile_load_transposed(thread tile_half &t, threadgroup const half *p, uint stride) {
#pragma unroll
    for (uint i = 0; i < 4; i++)
        simdgroup_load(t.m[i >> 1][i & 1], p + (i & 1) * 8 * stride + (i >> 1) * 8, stride, ulong2(0, 0), true);
}

// acc += a b
inline void tile_mma(thread tile_float &acc, thread tile_half &a, thread tile_half &b) {
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            simdgroup_multiply_accumulate(acc.m[i >> 1][i & 1], a.m[i >> 1][k], b.m[k][i & 1], acc.m[i >> 1][i & 1]);
}

inline void tile_store(thread tile_float &t, threadgroup float *p, uint stride) {
#pragma unroll
    for (uint i = 0; i < 4; i++)
        simdgroup_store(t.m[i >> 1][i & 1], p + (i >> 1) * 8 * stride + (i & 1) * 8, stride);
}

// Row map: factors of the rows that this lane's elements lie in.
struct tile_rows {
    simdgroup_float8x8 m[2];
};

// spread[r * stride + c] = factor of row r for c < 8: read as a matrix it puts each factor where the row's elements
// are.
inline void tile_rows_load(thread tile_rows &f, threadgroup const float *spread, uint stride) {
    simdgroup_load(f.m[0], spread, stride);
    simdgroup_load(f.m[1], spread + 8 * stride, stride);
}

// t[r][c] *= factor[r]
inline void tile_scale_rows(thread tile_float &t, thread tile_rows &f) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        t.m[i >> 1][i & 1].thread_elements()[0] *= f.m[i >> 1].thread_elements()[0];
        t.m[i >> 1][i & 1].thread_elements()[1] *= f.m[i >> 1].thread_elements()[1];
    }
}

#else // the host says that the device has fragments in registers: on an H200 matmul.metal is then 3 to 4.5 times as
      // fast (256 rows an expert, 768 x 2048: 104 TFLOP/s instead of 23 in affine 4 bit, 78 of 22 in Q4_K, 57 of 19 in
      // Q4_0)

struct tile_half {
    uint4 w;
};
struct tile_float {
    float4 m[2]; // columns 0-7, 8-15
};

inline void tile_zero(thread tile_float &t) {
    t.m[0] = t.m[1] = float4(0.0f);
}

inline void tile_load(thread tile_half &t, threadgroup const half *p, uint stride) {
    t.w = simdgroup_load_a(p, stride);
}
inline void tile_load_right(thread tile_half &t, threadgroup const half *p, uint stride) {
    t.w = simdgroup_load_b(p, stride);
}
inline void tile_load_transposed(thread tile_half &t, threadgroup const half *p, uint stride) {
    t.w = simdgroup_load_b_turned(p, stride);
}

inline void tile_mma(thread tile_float &acc, thread tile_half &a, thread tile_half &b) {
    acc.m[0] = simdgroup_mma_16x8x16(acc.m[0], a.w, b.w.xy);
    acc.m[1] = simdgroup_mma_16x8x16(acc.m[1], a.w, b.w.zw);
}

inline void tile_store(thread tile_float &t, threadgroup float *p, uint stride) {
    simdgroup_store_c(t.m[0], t.m[1], p, stride);
}

struct tile_rows {
    float2 f; // of rows r, r + 8
};
inline void tile_rows_load(thread tile_rows &f, threadgroup const float *spread, uint stride) {
    f.f = simdgroup_rows_c(spread, stride);
}
inline void tile_scale_rows(thread tile_float &t, thread tile_rows &f) {
    float4 by = float4(f.f.x, f.f.x, f.f.y, f.f.y);
    t.m[0] *= by;
    t.m[1] *= by;
}

#endif
#endif

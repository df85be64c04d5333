// multiply: tiles of products with many rows of x on the matrix units. Weights become half in threadgroup memory as
// scale * code + bias; a step along the columns is two units of blocks.h (32 weights each, in two runs), and x is read
// at the same columns, in whatever order the format has them.
#ifndef SL_KERNELS_MULTIPLY_H
#define SL_KERNELS_MULTIPLY_H

#include "dot.h"
#include "tile.h"

enum {
    TILE_COLS = 64,
    TILE_STRIDE = TILE_COLS + 8, // halves; other banks for other rows
    W_TILE = SL_MATMUL_TOKENS * TILE_STRIDE,
    TILE_HALVES = W_TILE + SL_MATMUL_ROWS * TILE_STRIDE,
    OUT_STRIDE = 68
};

// Halves of x and W of a step; at the end the tile of y, as floats.
struct tile_memory {
    alignas(16) half at[TILE_HALVES];
};

// A unit as 32 halves.
template <typename F> inline void stage_unit(threadgroup half *to, thread const typename F::unit &q) {
    float2 s = F::scale(q), b = fma(float2(-F::offset), s, F::bias(q));
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        float4 low = F::low(q, i), high = F::high(q, i);
        if (!F::plain) {
            low = fma(low, float4(s.x), float4(b.x));
            high = fma(high, float4(s.y), float4(b.y));
        }
        *(threadgroup half4 *)(to + 4 * i) = half4(low);
        *(threadgroup half4 *)(to + 16 + 4 * i) = half4(high);
    }
}

inline void stage_nothing(threadgroup half *to) {
    for (uint i = 0; i < 8; i++)
        *(threadgroup half4 *)(to + 4 * i) = half4(0.0h);
}

// A unit of a row, none: zeros.
template <typename F>
inline void stage_weights(threadgroup half *to, thread const weight_row &row, uint u, thread const weights &w) {
    if (u >= unit_count(w)) {
        stage_nothing(to);
        return;
    }
    typename F::unit q;
    F::load(q, row, u, w);
    stage_unit<F>(to, q);
}

// A row of x in half, padded with zeros; or in float, to be made half with a scale. null: none.
struct half_row {
    device const half *at;
};
struct float_row {
    device const float *at;
    float scale;
    uint cols;
};

// One run of x, at the columns that the format has there; no row, or no such unit: zeros.
template <typename F>
inline void load_run(thread uint4 (&v)[2], thread const half_row &x, uint u, uint run, uint units) {
    v[0] = v[1] = uint4(0);
    if (x.at && u < units) {
        device const uint4 *from = (device const uint4 *)(x.at + F::column(u) + run * F::gap);
        v[0] = from[0];
        v[1] = from[1];
    }
}

inline uint4 two_halves(float4 a, float4 b) {
    uint2 low = as_type<uint2>(half4(a)), high = as_type<uint2>(half4(b));
    return uint4(low.x, low.y, high.x, high.y);
}

// 16 columns from c on; beyond the last: zeros.
inline void load_floats(thread uint4 (&v)[2], thread const float_row &x, uint c) {
#pragma unroll
    for (uint i = 0; i < 2; i++, c += 8)
        v[i] = two_halves(load_x4_upto(x.at, c, x.cols) * x.scale, load_x4_upto(x.at, c + 4, x.cols) * x.scale);
}

template <typename F>
inline void load_run(thread uint4 (&v)[2], thread const float_row &x, uint u, uint run, uint units) {
    v[0] = v[1] = uint4(0);
    if (x.at && u < units)
        load_floats(v, x, F::column(u) + run * F::gap);
}

// acc[j] of a SIMD-group's 16 rows of x by 32 of W (or columns, where W lies turned) += what is staged
template <bool TURNED>
inline void multiply_staged(thread tile_float *acc, threadgroup const half *x_tile, threadgroup const half *w_tile) {
#pragma unroll
    for (uint k = 0; k < TILE_COLS; k += 16) {
        tile_half x, wt;
        tile_load(x, x_tile + k, TILE_STRIDE);
#pragma unroll
        for (uint j = 0; j < 2; j++) {
            if (TURNED)
                tile_load_right(wt, w_tile + k * TILE_STRIDE + j * 16, TILE_STRIDE);
            else
                tile_load_transposed(wt, w_tile + j * 16 * TILE_STRIDE + k, TILE_STRIDE);
            tile_mma(acc[j], x, wt);
        }
    }
}

// The SIMD-groups' sums as a tile [32][64] in memory, floats.
inline threadgroup const float *put_tile(threadgroup tile_memory &memory, thread tile_float *acc, uint simd) {
    threadgroup float *y = (threadgroup float *)memory.at;
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (uint j = 0; j < 2; j++)
        tile_store(acc[j], y + (simd & 1) * 16 * OUT_STRIDE + (simd >> 1) * 32 + j * 16, OUT_STRIDE);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return y;
}

// y tile [32][64] = x rows . W rows, in memory as floats; x_row: this thread's row of x (thread / 4).
template <typename F, typename X>
inline threadgroup const float *multiply_tile(threadgroup tile_memory &memory, thread const weights &w, uint w_row,
                                              thread const X &x_row, uint thread_at, uint simd) {
    uint x_part = thread_at & 3, w_part = thread_at & 1;
    threadgroup uint4 *x_to = (threadgroup uint4 *)(memory.at + (thread_at >> 2) * TILE_STRIDE + x_part * 16);
    threadgroup half *w_to = memory.at + W_TILE + (thread_at >> 1) * TILE_STRIDE + w_part * 32;
    weight_row row = row_at(w, w_row + (thread_at >> 1));
    threadgroup const half *x_tile = memory.at + (simd & 1) * 16 * TILE_STRIDE;
    threadgroup const half *w_tile = memory.at + W_TILE + (simd >> 1) * 32 * TILE_STRIDE;
    tile_float acc[2];
    tile_zero(acc[0]);
    tile_zero(acc[1]);
    uint units = unit_count(w);
    for (uint u = 0; u < units; u += 2) {
        uint4 xv[2];
        load_run<F>(xv, x_row, u + (x_part >> 1), x_part & 1, units);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        x_to[0] = xv[0];
        x_to[1] = xv[1];
        stage_weights<F>(w_to, row, u + w_part, w);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        multiply_staged<false>(acc, x_tile, w_tile);
    }
    return put_tile(memory, acc, simd);
}

// y tile [32][64] = x rows . W[first ..] for the columns of units unit and unit + 1 (column_of): W lies with the
// columns of x as its rows, so many as x has.
template <typename F>
inline threadgroup const float *multiply_turned(threadgroup tile_memory &memory, thread const weights &w, uint first,
                                                uint unit, thread const float_row &x, uint thread_at, uint simd) {
    uint x_part = thread_at & 3, w_part = thread_at & 1;
    threadgroup uint4 *x_to = (threadgroup uint4 *)(memory.at + (thread_at >> 2) * TILE_STRIDE + x_part * 16);
    threadgroup half *w_to = memory.at + W_TILE + (thread_at >> 1) * TILE_STRIDE + w_part * 32;
    threadgroup const half *x_tile = memory.at + (simd & 1) * 16 * TILE_STRIDE;
    threadgroup const half *w_tile = memory.at + W_TILE + (simd >> 1) * 32;
    tile_float acc[2];
    tile_zero(acc[0]);
    tile_zero(acc[1]);
    for (uint k = 0; k < x.cols; k += TILE_COLS) {
        uint4 xv[2];
        xv[0] = xv[1] = uint4(0);
        if (x.at)
            load_floats(xv, x, k + 16 * x_part);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        x_to[0] = xv[0];
        x_to[1] = xv[1];
        uint r = k + (thread_at >> 1); // beyond the last: no unit
        weight_row row = row_at(w, first + r);
        stage_weights<F>(w_to, row, r < x.cols ? unit + w_part : unit_count(w), w);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        multiply_staged<true>(acc, x_tile, w_tile);
    }
    return put_tile(memory, acc, simd);
}

// The column of W that place c of such a tile is.
template <typename F> inline uint column_of(uint unit, uint c) {
    return F::column(unit + (c >> 5)) + (c >> 4 & 1) * F::gap + (c & 15);
}

#endif

// matmul_large: as matmul.metal, with tiles of 128 (or 64) rows of x by 128 rows of W, for devices whose matrix units
// multiply fragments that lie in registers: an NVIDIA GPU, and soft for tests.
//
//   matmul_large_<format>_a<align>         as matmul_<format>_a<align>
//   matmul_expert_large_<format>_a<align>  as matmul_expert_<format>_a<align>; tiles are of SL_LARGE_TOKENS pairs
//
// Geometry: threadgroup (256) = 2 x 4 SIMD-groups, each half of the tile's rows of x by 32 of W; grid (ceil(W.rows /
// 128), ceil(rows / SL_LARGE_TOKENS)) or (.., tiles). A step along the columns is two units of blocks.h. The next
// step's bytes of x and of W are loaded into registers while this one's are multiplied, and become halves in
// threadgroup memory after it. Fragments of 16 rows of x that do not exist are not multiplied. Threadgroup memory
// 144 * (128 + SL_LARGE_TOKENS): 36 KiB, or 27 with 64.
//
// Bytes: W once per SL_LARGE_TOKENS rows of x, x once per 128 rows of W. Operations: 2 per weight and row on the matrix
// units; to unpack a weight about 3 per SL_LARGE_TOKENS rows.
//
// Slots: of matmul.metal.
#ifndef SL_TILE_FRAGMENTS
#define SL_TILE_FRAGMENTS
#endif
#include "multiply.h"

SL_SWITCH(fc_add, SL_FC_ADD)
SL_SWITCH(fc_bias, SL_FC_BIAS)
SL_SWITCH(fc_leaves, SL_FC_LEAVES)

#ifndef SL_LARGE_TOKENS
#define SL_LARGE_TOKENS 64
#endif

enum {
    TOKENS = SL_LARGE_TOKENS,
    ROWS = SL_LARGE_ROWS,
    FRAGMENTS = TOKENS / 32, // of a SIMD-group's rows of x
    RUNS = TOKENS / 64       // of 16 columns of x that a thread loads at once
};

struct large_memory {
    alignas(16) half x[TOKENS * TILE_STRIDE];
    alignas(16) half w[ROWS * TILE_STRIDE];
};

// What a thread takes of a step: its runs of x and its unit of W.
template <typename F> struct large_step {
    uint4 x[RUNS][2];
    typename F::unit w;
    bool there; // the unit
};

template <typename F>
inline void load_step(thread large_step<F> &s, thread const half_row *x, thread const weight_row &row,
                      thread const weights &w, uint u, uint thread_at) {
    uint units = unit_count(w), mine = u + (thread_at & 1);
#pragma unroll
    for (uint i = 0; i < RUNS; i++)
        load_run<F>(s.x[i], x[i], u + (thread_at >> 1 & 1), thread_at & 1, units);
    s.there = mine < units;
    if (s.there)
        F::load(s.w, row, mine, w);
}

template <typename F>
inline void put_step(threadgroup large_memory &m, thread const large_step<F> &s, uint thread_at) {
#pragma unroll
    for (uint i = 0; i < RUNS; i++) {
        threadgroup uint4 *to =
            (threadgroup uint4 *)(m.x + ((thread_at >> 2) + 64 * i) * TILE_STRIDE + (thread_at & 3) * 16);
        to[0] = s.x[i][0];
        to[1] = s.x[i][1];
    }
    threadgroup uint4 *to = (threadgroup uint4 *)(m.w + (thread_at >> 1) * TILE_STRIDE + (thread_at & 1) * 32);
    float2 scale = s.there ? F::scale(s.w) : float2(0.0f);
    float2 b = s.there ? fma(float2(-F::offset), scale, F::bias(s.w)) : float2(0.0f);
#pragma unroll
    for (uint i = 0; i < 4; i += 2) {
        float4 v[4] = {F::low(s.w, i), F::low(s.w, i + 1), F::high(s.w, i), F::high(s.w, i + 1)};
#pragma unroll
        for (uint k = 0; k < 4; k++) {
            if (!F::plain)
                v[k] = fma(v[k], float4(k < 2 ? scale.x : scale.y), float4(k < 2 ? b.x : b.y));
            else if (!s.there)
                v[k] = float4(0.0f);
        }
        to[i / 2] = two_halves(v[0], v[1]);
        to[2 + i / 2] = two_halves(v[2], v[3]);
    }
}

// acc[i][j] += 16 rows of x (i) by 16 of W (j), for i < count; ALL: count is FRAGMENTS.
template <bool ALL>
inline void multiply_large(thread tile_float (&acc)[FRAGMENTS][2], threadgroup const half *x, threadgroup const half *w,
                           uint count) {
#pragma unroll
    for (uint k = 0; k < TILE_COLS; k += 16) {
        tile_half wt[2], xt;
        tile_load_transposed(wt[0], w + k, TILE_STRIDE);
        tile_load_transposed(wt[1], w + 16 * TILE_STRIDE + k, TILE_STRIDE);
#pragma unroll
        for (uint i = 0; i < FRAGMENTS; i++) {
            if (!ALL && i >= count)
                break;
            tile_load(xt, x + i * 16 * TILE_STRIDE + k, TILE_STRIDE);
            tile_mma(acc[i][0], xt, wt[0]);
            tile_mma(acc[i][1], xt, wt[1]);
        }
    }
}

// x: this thread's rows of x, (thread / 4) + 64 i of the tile. count: fragments of this SIMD-group that exist.
template <typename F>
inline void large_product(threadgroup large_memory &m, thread tile_float (&acc)[FRAGMENTS][2], thread const weights &w,
                          uint w_row, thread const half_row *x, uint count, uint thread_at, uint simd) {
    weight_row row = row_at(w, w_row + (thread_at >> 1));
    threadgroup const half *x_tile = m.x + (simd & 1) * (TOKENS / 2) * TILE_STRIDE;
    threadgroup const half *w_tile = m.w + (simd >> 1) * 32 * TILE_STRIDE;
#pragma unroll
    for (uint i = 0; i < FRAGMENTS; i++) {
        tile_zero(acc[i][0]);
        tile_zero(acc[i][1]);
    }
    uint units = unit_count(w);
    large_step<F> s;
    load_step(s, x, row, w, 0, thread_at);
    for (uint u = 0; u < units; u += 2) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        put_step(m, s, thread_at);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (u + 2 < units)
            load_step(s, x, row, w, u + 2, thread_at);
        if (count == FRAGMENTS)
            multiply_large<true>(acc, x_tile, w_tile, count);
        else
            multiply_large<false>(acc, x_tile, w_tile, count);
    }
}

// Fragments of a SIMD-group's half that have one of `rows` rows.
inline uint fragments_of(uint rows, uint simd) {
    uint first = (simd & 1) * (TOKENS / 2);
    return rows > first ? min((rows - first + 15) / 16, uint(FRAGMENTS)) : 0;
}

// A lane's elements of a product: row 16 i + r and 8 below of this SIMD-group's, columns 16 j + 8 k + 2 q and the next.
template <typename F>
[[kernel, max_total_threads_per_threadgroup(256)]] void
matmul_large(constant sl_matmul_args &a [[buffer(0)]], device const uchar *codes [[buffer(1)]],
             device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
             device const half *x [[buffer(4)]], device const float *unscale [[buffer(5)]],
             device float *y [[buffer(6)]], device const float *bias [[buffer(7)]], device const int *step [[buffer(8)]],
             uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
             uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup large_memory m;
    uint rows = step_rows(step), first = group.y * TOKENS, w_row = group.x * ROWS;
    if (first >= rows || w_row >= a.w.rows)
        return;
    weights w = make_weights(a.w, codes, scales, biases);
    half_row x_row[RUNS];
#pragma unroll
    for (uint i = 0; i < RUNS; i++) {
        uint mine = first + (thread_at >> 2) + 64 * i;
        x_row[i].at = mine < rows ? x + ulong(mine) * a.x_stride : nullptr;
    }
    tile_float acc[FRAGMENTS][2];
    large_product<F>(m, acc, w, w_row, x_row, fragments_of(rows - first, simd), thread_at, simd);
    uint row = first + (simd & 1) * (TOKENS / 2) + (lane >> 2), out = w_row + (simd >> 1) * 32 + 2 * (lane & 3);
#pragma unroll
    for (uint i = 0; i < 2 * FRAGMENTS; i++) {
        uint r = row + 8 * i;
        if (r >= rows)
            continue;
        float by = unscale[r];
        device float *to = y + ulong(r) * a.y_stride;
#pragma unroll
        for (uint n = 0; n < 8; n++) {
            uint c = out + 8 * (n >> 1) + (n & 1);
            if (c >= w.rows)
                continue;
            float v = acc[i >> 1][n >> 2].m[n >> 1 & 1][2 * (i & 1) + (n & 1)] * by;
            if (fc_add)
                v = to[c] + v;
            if (fc_bias)
                v = v + bias[c];
            to[c] = v;
        }
    }
}

typedef device const uchar *slab_pointer;

// Where a pair of the list is read from and written to: its place in the list, or as args say.
inline uint source_of(constant sl_expert_args &a, uint place, uint pair) {
    return a.per_pair ? place : pair / a.top_k;
}

template <typename F>
[[kernel, max_total_threads_per_threadgroup(256)]] void
matmul_expert_large(constant sl_expert_args &a [[buffer(0)]], device const ulong *table [[buffer(1)]],
                    device const sl_pair_tile *tiles [[buffer(2)]], device const int *pairs [[buffer(3)]],
                    device const half *x [[buffer(4)]], device const float *unscale [[buffer(5)]],
                    device float *y [[buffer(6)]], device uchar *done [[buffer(7)]], device const int *step [[buffer(8)]],
                    device const uint *tile_count [[buffer(9)]], device const float *bias [[buffer(10)]],
                    SL_SLAB_PARAMS(device const uchar *), uint3 group [[threadgroup_position_in_grid]],
                    uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                    uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup large_memory m;
    uint w_row = group.x * ROWS;
    if (group.y >= tile_count[0] || w_row >= a.w.rows)
        return;
    uint first = tiles[group.y].first, end = tiles[group.y].end, expert = uint(tiles[group.y].expert);
    device const ulong *entry = table + ulong(expert) * SL_PARTS + 3 * a.projection;
    if (!sl_present(entry[0]))
        return;
    const slab_list<slab_pointer> slabs = SL_SLABS;
    device const uchar *codes = sl_at(slabs, entry[0]);
    weights w = make_weights(a.w, codes, sl_present(entry[1]) ? sl_at(slabs, entry[1]) : codes,
                             sl_present(entry[2]) ? sl_at(slabs, entry[2]) : codes);
    half_row x_row[RUNS];
#pragma unroll
    for (uint i = 0; i < RUNS; i++) {
        uint mine = first + (thread_at >> 2) + 64 * i;
        x_row[i].at = mine < end ? x + ulong(source_of(a, mine, uint(pairs[mine]))) * a.x_stride : nullptr;
    }
    tile_float acc[FRAGMENTS][2];
    large_product<F>(m, acc, w, w_row, x_row, fragments_of(end - first, simd), thread_at, simd);
    uint row = first + (simd & 1) * (TOKENS / 2) + (lane >> 2), out = w_row + (simd >> 1) * 32 + 2 * (lane & 3);
#pragma unroll
    for (uint i = 0; i < 2 * FRAGMENTS; i++) {
        uint place = row + 8 * i;
        if (place >= end)
            continue;
        uint pair = uint(pairs[place]);
        float by = unscale[source_of(a, place, pair)];
        device float *to = y + ulong(fc_leaves ? pair : place) * a.y_stride;
#pragma unroll
        for (uint n = 0; n < 8; n++) {
            uint c = out + 8 * (n >> 1) + (n & 1);
            if (c >= w.rows)
                continue;
            float v = acc[i >> 1][n >> 2].m[n >> 1 & 1][2 * (i & 1) + (n & 1)] * by;
            if (fc_bias)
                v = v + bias[ulong(expert) * a.w.rows + c];
            to[c] = v;
            if (fc_leaves && c == 0)
                done[pair] = 1;
        }
    }
}

#define X(format, align)                                                                                               \
    SL_KERNEL("matmul_large_" #format "_a" #align, matmul_large, format_##format<align>)                               \
    SL_KERNEL("matmul_expert_large_" #format "_a" #align, matmul_expert_large, format_##format<align>)
SL_FORMATS(X)
#undef X

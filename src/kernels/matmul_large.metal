// matmul_large: as matmul.metal, for devices whose matrix units multiply fragments that lie in registers and that copy
// to threadgroup memory ahead of time: an NVIDIA GPU, and soft for tests.
//
//   matmul_large_<format>_a<align>         as matmul_<format>_a<align>
//   matmul_thin_<format>_a<align>          the same with fewer rows of W a threadgroup, where there would be too few of
//                                          those
//   matmul_expert_large_<format>_a<align>  as matmul_expert_<format>_a<align>; tiles are of SL_LARGE_TOKENS pairs
//   matmul_gate_up_<format>_a<align>       y = silu(x G^T) * (x U^T) of experts; gate and up are of one format and shape
//
// W never lies in threadgroup memory: lane 4 r + q of a SIMD-group has units 4 s + q (32 weights each) of rows r and r +
// 8 of each 16, loads the next step's while it multiplies this one's, and makes halves of them eight columns at a time,
// which are the left factor of a product as they are. x, the right one, lies in threadgroup memory, where lanes read the
// same columns of token r in pieces of 16 bytes. So the columns of a product's k are spread over W as its units are,
// which shows in nothing but the order of addition: steps of 128 columns, in a step eight columns of each of four units at
// a time, two products of 16 columns. It is the same for all four kernels and any number of rows.
//
// Geometry: a tile is 64 (SL_LARGE_TOKENS) rows of x by 128 of W: four SIMD-groups (128 threads), each 32 of W; thin:
// by 32 of W, two (64 threads), each 16; gate_up: by 64 of both, each SIMD-group 16 of both. Grid (ceil(W.rows / 128,
// 32 or 64), ceil(rows / 64)) or (.., tiles). Sixteen rows of x that do not exist are not multiplied. Threadgroup memory
// 32 KiB: two steps of x, of which one is copied while the other is multiplied; a token's 16 pieces lie in another
// order, so that 8 lanes that read at once find other banks.
//
// Bytes: W once per 64 rows of x, x once per 128 (32, 64) rows of W. Operations: 2 per weight and row on the matrix
// units; to unpack a weight, see unpack.h, once per 64 rows of x.
//
// Measured on an H200, TFLOP/s, where fragments that stay in registers reach 635: W of 4096 x 4096 and as many rows of x
// 281 (Q4_0), 275 (affine 4 bit), 238 (MXFP4); 256 rows for each of 64 experts of 768 x 2048 248, 246; 32 for each of
// 128 162, 152, 131, which is 1.1 to 1.4 TB/s of weights. Nothing alone is what limits it: of 489 us 434 are left without
// unpacking, 444 without copies of x, 397 without loads of W, 479 without reads of x, 462 without the barrier. SIMD-groups
// of 16 rows of W instead of 32: 725 us.
//
// Slots: of matmul.metal; matmul_gate_up: 11 bias of up.
#ifndef SL_TILE_FRAGMENTS
#define SL_TILE_FRAGMENTS
#endif
#include "unpack.h"

SL_SWITCH(fc_add, SL_FC_ADD)
SL_SWITCH(fc_bias, SL_FC_BIAS)
SL_SWITCH(fc_leaves, SL_FC_LEAVES)
SL_SWITCH(fc_clamp, SL_FC_CLAMP)

enum {
    TOKENS = SL_LARGE_TOKENS,
    EIGHTS = TOKENS / 8, // of a tile: 8
    STEP_COLS = 128,
    PIECES = STEP_COLS / 8 // of 16 bytes, of a token
};

struct large_memory {
    uint4 x[2][TOKENS * PIECES];
};

// Where piece n of token t lies.
template <typename F> inline uint piece_at(uint t, uint n) {
    return t * PIECES + (n ^ (t & 1) ^ (n >> 3) << (F::gap == 16 ? 1 : 2));
}

// A thread's share of x: pieces (thread % 8) and 8 more of every (THREADS / 8)th token of the tile, of which there are
// `tokens`; at[i]: their rows, at the next step's columns.
template <uint THREADS> struct x_rows {
    device const half *at[8 * TOKENS / THREADS];
    uint tokens, left; // left: columns from there on, padded
};

// Behind the last column W is zero: any of the row's own values will do.
template <typename F, uint THREADS>
inline void copy_x(threadgroup uint4 *to, thread x_rows<THREADS> &x, uint thread_at) {
    uint n = thread_at & 7, last = x.left - 8, c = min(8 * n, last), d = min(8 * n + 64, last);
#pragma unroll
    for (uint i = 0; i < 8 * TOKENS / THREADS; i++) {
        uint t = (thread_at >> 3) + i * (THREADS / 8);
        if (t < (x.tokens + 15) / 16 * 16) {
            copy_begin<16>(to + piece_at<F>(t, n), x.at[i] + c);
            copy_begin<16>(to + piece_at<F>(t, n + 8), x.at[i] + d);
        }
        x.at[i] += STEP_COLS;
    }
    x.left -= STEP_COLS;
}

// Rows of W of a SIMD-group: [2 m] are lanes' r, [2 m + 1] 8 below, of the m-th 16.
template <typename F, uint M>
inline void load_units(thread typename unpacked<F>::raw (&raw)[2 * M], thread const weight_row (&rows)[2 * M], uint u,
                       thread const weights &w) {
#pragma unroll
    for (uint i = 0; i < 2 * M; i++)
        unpacked<F>::load(raw[i], rows[i], u, w);
}

// acc[m][j] += 16 rows of W times 8 tokens, for j < N. x: the step's. Four j at a time, so that products that wait for
// each other are far enough apart; without a branch, so that weights are unpacked between them.
template <typename F, uint M, uint N>
inline void multiply_step(thread float4 (&acc)[M][EIGHTS], thread typename unpacked<F>::unit (&unit)[2 * M],
                          threadgroup const uint4 *x, uint r, uint q) {
    constexpr uint T = N < 4 ? N : N == 6 ? 3 : 4;
#pragma unroll
    for (uint k = 0; k < 4; k++) {
        const uint c = k >> 1 | (k & 1) << 1; // of the lower run and of the upper in turn: they have bytes in common
        uint4 w[2 * M];
#pragma unroll
        for (uint i = 0; i < 2 * M; i++)
            w[i] = unpacked<F>::eight(unit[i], c);
        threadgroup const uint4 *at =
            x + piece_at<F>(r, (F::column(q) >> 3) + (c >> 1) * (F::gap / 8) + (c & 1));
#pragma unroll
        for (uint first = 0; first < N; first += T) {
            uint4 b[T];
#pragma unroll
            for (uint j = 0; j < T; j++)
                b[j] = at[(first + j) * 8 * PIECES];
#pragma unroll
            for (uint j = 0; j < T; j++)
#pragma unroll
                for (uint m = 0; m < M; m++)
                    acc[m][first + j] = simdgroup_mma_16x8x16(
                        acc[m][first + j], uint4(w[2 * m].x, w[2 * m + 1].x, w[2 * m].y, w[2 * m + 1].y), b[j].xy);
#pragma unroll
            for (uint j = 0; j < T; j++)
#pragma unroll
                for (uint m = 0; m < M; m++)
                    acc[m][first + j] = simdgroup_mma_16x8x16(
                        acc[m][first + j], uint4(w[2 * m].z, w[2 * m + 1].z, w[2 * m].w, w[2 * m + 1].w), b[j].zw);
        }
    }
}

// All threads of the group take part.
template <typename F, uint M, uint THREADS>
inline void large_product(threadgroup large_memory &memory, thread float4 (&acc)[M][EIGHTS],
                          thread const weight_row (&rows)[2 * M], thread const weights &w, thread x_rows<THREADS> &x,
                          uint thread_at) {
    const uint lane = thread_at & 31, r = lane >> 2, q = lane & 3, pairs = (x.tokens + 15) / 16;
    const uint units = unit_count(w), steps = (units + 3) / 4;
#pragma unroll
    for (uint m = 0; m < M; m++)
#pragma unroll
        for (uint j = 0; j < EIGHTS; j++)
            acc[m][j] = float4(0.0f);
    typedef typename unpacked<F>::raw raw_unit;
    typedef typename unpacked<F>::unit w_unit;
    raw_unit raw[2 * M];
    copy_x<F, THREADS>(memory.x[0], x, thread_at);
    copy_commit();
    if (unpacked<F>::ahead)
        load_units<F, M>(raw, rows, q, w);
    for (uint s = 0; s < steps; s++) {
        if (!unpacked<F>::ahead)
            load_units<F, M>(raw, rows, 4 * s + q, w);
        copy_wait<0>();
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (s + 1 < steps)
            copy_x<F, THREADS>(memory.x[(s + 1) & 1], x, thread_at);
        copy_commit();
        w_unit unit[2 * M];
#pragma unroll
        for (uint i = 0; i < 2 * M; i++)
            unpacked<F>::unpack(unit[i], raw[i], 4 * s + q < units);
        if (unpacked<F>::ahead && s + 1 < steps)
            load_units<F, M>(raw, rows, 4 * s + 4 + q, w);
        threadgroup const uint4 *at = memory.x[s & 1];
        if (pairs == 1)
            multiply_step<F, M, 2>(acc, unit, at, r, q);
        else if (pairs == 2)
            multiply_step<F, M, 4>(acc, unit, at, r, q);
        else if (pairs == 3)
            multiply_step<F, M, 6>(acc, unit, at, r, q);
        else
            multiply_step<F, M, 8>(acc, unit, at, r, q);
    }
}

// ---- dense ---------------------------------------------------------------------------------------------------------

// A lane's elements of acc[m][j]: rows 16 m + r and 8 below of W, tokens 8 j + 2 q and the next: x, y and z, w.
template <uint M>
inline void put_dense(thread float4 (&acc)[M][EIGHTS], device float *y, ulong stride, device const float *unscale,
                      device const float *bias, uint first, uint rows, uint out, uint w_rows, uint q) {
#pragma unroll
    for (uint j = 0; j < EIGHTS; j++)
#pragma unroll
        for (uint k = 0; k < 2; k++) {
            uint t = first + 8 * j + 2 * q + k;
            if (t >= rows)
                continue;
            float by = unscale[t];
            device float *to = y + ulong(t) * stride;
#pragma unroll
            for (uint i = 0; i < 2 * M; i++) {
                uint c = out + 8 * i;
                if (c >= w_rows)
                    continue;
                float v = acc[i >> 1][j][2 * (i & 1) + k] * by;
                if (fc_add)
                    v = to[c] + v;
                if (fc_bias)
                    v = v + bias[c];
                to[c] = v;
            }
        }
}

template <uint THREADS>
inline x_rows<THREADS> dense_rows(device const half *x, ulong stride, uint first, uint rows, uint cols,
                                  uint thread_at) {
    x_rows<THREADS> v;
    v.tokens = min(rows - first, uint(TOKENS));
    v.left = (cols + SL_HALF_PAD - 1) / SL_HALF_PAD * SL_HALF_PAD;
#pragma unroll
    for (uint i = 0; i < 8 * TOKENS / THREADS; i++)
        v.at[i] = x + ulong(min(first + (thread_at >> 3) + i * (THREADS / 8), rows - 1)) * stride;
    return v;
}

// SIMD-groups of 16 M rows of W each.
template <typename F, uint M, uint THREADS>
inline void multiply_dense(threadgroup large_memory &memory, constant sl_matmul_args &a, thread const weights &w,
                           device const half *x, device const float *unscale, device float *y,
                           device const float *bias, uint rows, uint2 group, uint thread_at) {
    uint first = group.y * TOKENS, lane = thread_at & 31;
    uint out = group.x * (M * THREADS / 2) + (thread_at >> 5) * (16 * M) + (lane >> 2);
    weight_row of[2 * M];
#pragma unroll
    for (uint i = 0; i < 2 * M; i++)
        of[i] = row_at(w, out + 8 * i);
    ulong y_stride = a.y_stride;
    x_rows<THREADS> from = dense_rows<THREADS>(x, a.x_stride, first, rows, w.cols, thread_at);
    float4 acc[M][EIGHTS];
    large_product<F, M, THREADS>(memory, acc, of, w, from, thread_at);
    put_dense<M>(acc, y, y_stride, unscale, bias, first, rows, out, w.rows, lane & 3);
}

template <typename F>
[[kernel, max_total_threads_per_threadgroup(128)]] void
matmul_large(constant sl_matmul_args &a [[buffer(0)]], device const uchar *codes [[buffer(1)]],
             device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
             device const half *x [[buffer(4)]], device const float *unscale [[buffer(5)]],
             device float *y [[buffer(6)]], device const float *bias [[buffer(7)]], device const int *step [[buffer(8)]],
             uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]]) {
    threadgroup large_memory memory;
    uint rows = step_rows(step);
    if (group.y * TOKENS >= rows || group.x * SL_LARGE_ROWS >= a.w.rows)
        return;
    weights w = make_weights(a.w, codes, scales, biases);
    multiply_dense<F, 2, SL_LARGE_THREADS>(memory, a, w, x, unscale, y, bias, rows, group.xy, thread_at);
}

template <typename F>
[[kernel, max_total_threads_per_threadgroup(64)]] void
matmul_thin(constant sl_matmul_args &a [[buffer(0)]], device const uchar *codes [[buffer(1)]],
              device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
              device const half *x [[buffer(4)]], device const float *unscale [[buffer(5)]],
              device float *y [[buffer(6)]], device const float *bias [[buffer(7)]],
              device const int *step [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
              uint thread_at [[thread_index_in_threadgroup]]) {
    threadgroup large_memory memory;
    uint rows = step_rows(step);
    if (group.y * TOKENS >= rows || group.x * SL_THIN_ROWS >= a.w.rows)
        return;
    weights w = make_weights(a.w, codes, scales, biases);
    multiply_dense<F, 1, SL_THIN_THREADS>(memory, a, w, x, unscale, y, bias, rows, group.xy, thread_at);
}

// ---- experts -------------------------------------------------------------------------------------------------------

typedef device const uchar *slab_pointer;

// Where a pair of the list is read from and written to: its place in the list, or as args say.
inline uint source_of(constant sl_expert_args &a, uint place, uint pair) {
    return a.per_pair ? place : pair / a.top_k;
}

inline weights expert_weights(constant sl_expert_args &a, thread const slab_list<slab_pointer> &slabs,
                              device const ulong *entry) {
    device const uchar *codes = sl_at(slabs, entry[0]);
    return make_weights(a.w, codes, sl_present(entry[1]) ? sl_at(slabs, entry[1]) : codes,
                        sl_present(entry[2]) ? sl_at(slabs, entry[2]) : codes);
}

inline x_rows<SL_LARGE_THREADS> pair_rows(constant sl_expert_args &a, device const half *x, device const int *pairs,
                                          uint first, uint end, uint thread_at) {
    x_rows<SL_LARGE_THREADS> v;
    v.tokens = min(end - first, uint(TOKENS));
    v.left = (a.w.cols + SL_HALF_PAD - 1) / SL_HALF_PAD * SL_HALF_PAD;
#pragma unroll
    for (uint i = 0; i < 8 * TOKENS / SL_LARGE_THREADS; i++) {
        uint place = min(first + (thread_at >> 3) + i * (SL_LARGE_THREADS / 8), end - 1);
        v.at[i] = x + ulong(source_of(a, place, uint(pairs[place]))) * a.x_stride;
    }
    return v;
}

template <typename F>
[[kernel, max_total_threads_per_threadgroup(128)]] void
matmul_expert_large(constant sl_expert_args &a [[buffer(0)]], device const ulong *table [[buffer(1)]],
                    device const sl_pair_tile *tiles [[buffer(2)]], device const int *pairs [[buffer(3)]],
                    device const half *x [[buffer(4)]], device const float *unscale [[buffer(5)]],
                    device float *y [[buffer(6)]], device uchar *done [[buffer(7)]], device const int *step [[buffer(8)]],
                    device const uint *tile_count [[buffer(9)]], device const float *bias [[buffer(10)]],
                    SL_SLAB_PARAMS(device const uchar *), uint3 group [[threadgroup_position_in_grid]],
                    uint thread_at [[thread_index_in_threadgroup]]) {
    threadgroup large_memory memory;
    uint w_row = group.x * SL_LARGE_ROWS;
    if (group.y >= tile_count[0] || w_row >= a.w.rows)
        return;
    uint first = tiles[group.y].first, end = tiles[group.y].end, expert = uint(tiles[group.y].expert);
    device const ulong *entry = table + ulong(expert) * SL_PARTS + 3 * a.projection;
    if (!sl_present(entry[0]))
        return;
    const slab_list<slab_pointer> slabs = SL_SLABS;
    weights w = expert_weights(a, slabs, entry);
    uint lane = thread_at & 31, out = w_row + (thread_at >> 5) * 32 + (lane >> 2);
    weight_row of[4];
#pragma unroll
    for (uint i = 0; i < 4; i++)
        of[i] = row_at(w, out + 8 * i);
    x_rows<SL_LARGE_THREADS> from = pair_rows(a, x, pairs, first, end, thread_at);
    float4 acc[2][EIGHTS];
    large_product<F, 2, SL_LARGE_THREADS>(memory, acc, of, w, from, thread_at);
#pragma unroll
    for (uint j = 0; j < EIGHTS; j++)
#pragma unroll
        for (uint k = 0; k < 2; k++) {
            uint place = first + 8 * j + 2 * (lane & 3) + k;
            if (place >= end)
                continue;
            uint pair = uint(pairs[place]);
            float by = unscale[source_of(a, place, pair)];
            device float *to = y + ulong(fc_leaves ? pair : place) * a.y_stride;
#pragma unroll
            for (uint i = 0; i < 4; i++) {
                uint c = out + 8 * i;
                if (c >= w.rows)
                    continue;
                float v = acc[i >> 1][j][2 * (i & 1) + k] * by;
                if (fc_bias)
                    v = v + bias[ulong(expert) * w.rows + c];
                to[c] = v;
                if (fc_leaves && c == 0)
                    done[pair] = 1;
            }
        }
}

template <typename F>
[[kernel, max_total_threads_per_threadgroup(128)]] void
matmul_gate_up(constant sl_expert_args &a [[buffer(0)]], device const ulong *table [[buffer(1)]],
               device const sl_pair_tile *tiles [[buffer(2)]], device const int *pairs [[buffer(3)]],
               device const half *x [[buffer(4)]], device const float *unscale [[buffer(5)]],
               device float *y [[buffer(6)]], device const int *step [[buffer(8)]],
               device const uint *tile_count [[buffer(9)]], device const float *gate_bias [[buffer(10)]],
               device const float *up_bias [[buffer(11)]], SL_SLAB_PARAMS(device const uchar *),
               uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]]) {
    threadgroup large_memory memory;
    uint w_row = group.x * (SL_LARGE_ROWS / 2);
    if (group.y >= tile_count[0] || w_row >= a.w.rows)
        return;
    uint first = tiles[group.y].first, end = tiles[group.y].end, expert = uint(tiles[group.y].expert);
    device const ulong *entry = table + ulong(expert) * SL_PARTS;
    if (!sl_present(entry[0]))
        return;
    const slab_list<slab_pointer> slabs = SL_SLABS;
    weights gate = expert_weights(a, slabs, entry), up = expert_weights(a, slabs, entry + 3);
    uint lane = thread_at & 31, out = w_row + (thread_at >> 5) * 16 + (lane >> 2);
    weight_row of[4];
#pragma unroll
    for (uint i = 0; i < 2; i++) {
        of[i] = row_at(gate, out + 8 * i);
        of[2 + i] = row_at(up, out + 8 * i);
    }
    x_rows<SL_LARGE_THREADS> from = pair_rows(a, x, pairs, first, end, thread_at);
    float4 acc[2][EIGHTS];
    large_product<F, 2, SL_LARGE_THREADS>(memory, acc, of, gate, from, thread_at);
#pragma unroll
    for (uint j = 0; j < EIGHTS; j++)
#pragma unroll
        for (uint k = 0; k < 2; k++) {
            uint place = first + 8 * j + 2 * (lane & 3) + k;
            if (place >= end)
                continue;
            float by = unscale[source_of(a, place, uint(pairs[place]))];
            device float *to = y + ulong(place) * a.y_stride;
#pragma unroll
            for (uint i = 0; i < 2; i++) {
                uint c = out + 8 * i;
                if (c >= gate.rows)
                    continue;
                float g = acc[0][j][2 * i + k] * by, u = acc[1][j][2 * i + k] * by;
                if (fc_bias) {
                    g = g + gate_bias[ulong(expert) * gate.rows + c];
                    u = u + up_bias[ulong(expert) * gate.rows + c];
                }
                to[c] = fc_clamp ? clamped_swiglu(g, u, a.limit, a.alpha) : silu(g) * u;
            }
        }
}

#define X(format, align)                                                                                               \
    SL_KERNEL("matmul_large_" #format "_a" #align, matmul_large, format_##format<align>)                               \
    SL_KERNEL("matmul_thin_" #format "_a" #align, matmul_thin, format_##format<align>)                             \
    SL_KERNEL("matmul_expert_large_" #format "_a" #align, matmul_expert_large, format_##format<align>)                 \
    SL_KERNEL("matmul_gate_up_" #format "_a" #align, matmul_gate_up, format_##format<align>)
SL_FORMATS(X)
#undef X

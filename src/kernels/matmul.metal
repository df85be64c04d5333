// matmul: y[i][r] = x[i] . W[r] for many rows of x (prefill), on the matrix units.
//
//   matmul_<format>_a<align>         y = or += x W^T (+ bias)
//   matmul_expert_<format>_a<align>  the same grouped by expert: tiles of (row, rank) pairs that chose one expert
//                                    (group_pairs of moe.metal), weights through the expert table; pairs whose expert
//                                    is absent are left to another pass
//
// x is half with a power-of-two scale per row (to_half of rows.metal); weights become half in threadgroup memory as
// scale * code + bias (a matrix with values beyond half's 65504 is none that a model has); products are summed in float.
//
// Geometry: threadgroup (128) = 2 x 2 SIMD-groups, a tile of 32 rows of x by 64 rows of W, each SIMD-group 16 by 32;
// grid (ceil(W.rows / 64), ceil(rows / 32)) or (ceil(W.rows / 64), tiles). A step along the columns is two units of
// blocks.h (32 weights each, in two runs); x is read at the same columns, in whatever order the format has them.
// Threadgroup memory 14 KiB.
//
// Bytes: W once per 32 rows of x, x once per 64 rows of W. Operations: 2 per weight and row on the matrix units; to
// unpack a weight about 3 per 32 rows.
//
// Slots of matmul: 1 codes, 2 scales, 3 biases, 4 x, 5 unscale[rows], 6 y, 7 bias[W.rows], 8 step.
//
// Of matmul_expert: 1 table, 2 tiles, 3 pairs[list], 4 x, 5 unscale, 6 y[pair or place], 7 done[pairs], 8 step, 9
// counts of group_pairs, 15..30 slabs.
#include "multiply.h"

SL_SWITCH(fc_add, SL_FC_ADD)
SL_SWITCH(fc_bias, SL_FC_BIAS)
SL_SWITCH(fc_leaves, SL_FC_LEAVES)

template <typename F>
[[kernel, max_total_threads_per_threadgroup(128)]] void
matmul(constant sl_matmul_args &a [[buffer(0)]], device const uchar *codes [[buffer(1)]],
       device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
       device const half *x [[buffer(4)]], device const float *unscale [[buffer(5)]], device float *y [[buffer(6)]],
       device const float *bias [[buffer(7)]], device const int *step [[buffer(8)]],
       uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
       uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup tile_memory memory;
    uint rows = step_rows(step), first = group.y * SL_MATMUL_TOKENS, w_row = group.x * SL_MATMUL_ROWS;
    if (first >= rows || w_row >= a.w.rows)
        return;
    weights w = make_weights(a.w, codes, scales, biases);
    uint mine = first + (thread_at >> 2);
    half_row x_row = {mine < rows ? x + ulong(mine) * a.x_stride : nullptr};
    threadgroup const float *tile = multiply_tile<F>(memory, w, w_row, x_row, thread_at, simd);
    uint count = min(rows - first, uint(SL_MATMUL_TOKENS)), r = thread_at & 63, out = w_row + r;
    if (out >= w.rows)
        return;
    for (uint i = thread_at >> 6; i < count; i += 2) {
        float v = tile[i * OUT_STRIDE + r] * unscale[first + i];
        device float *to = y + ulong(first + i) * a.y_stride + out;
        if (fc_add)
            v = *to + v;
        if (fc_bias)
            v = v + bias[out];
        *to = v;
    }
}

typedef device const uchar *slab_pointer;

// Where a pair of the list is read from and written to: its place in the list, or as args say.
inline uint source_of(constant sl_expert_args &a, uint place, uint pair) {
    return a.per_pair ? place : pair / a.top_k;
}

template <typename F>
[[kernel, max_total_threads_per_threadgroup(128)]] void
matmul_expert(constant sl_expert_args &a [[buffer(0)]], device const ulong *table [[buffer(1)]],
              device const sl_pair_tile *tiles [[buffer(2)]], device const int *pairs [[buffer(3)]],
              device const half *x [[buffer(4)]], device const float *unscale [[buffer(5)]],
              device float *y [[buffer(6)]], device uchar *done [[buffer(7)]], device const int *step [[buffer(8)]],
              device const uint *tile_count [[buffer(9)]], device const float *bias [[buffer(10)]],
              SL_SLAB_PARAMS(device const uchar *),
              uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
              uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup tile_memory memory;
    uint w_row = group.x * SL_MATMUL_ROWS;
    if (group.y >= tile_count[0] || w_row >= a.w.rows)
        return;
    uint first = tiles[group.y].first, end = tiles[group.y].end;
    device const ulong *entry = table + ulong(uint(tiles[group.y].expert)) * SL_PARTS + 3 * a.projection;
    if (!sl_present(entry[0]))
        return;
    const slab_list<slab_pointer> slabs = SL_SLABS;
    device const uchar *codes = sl_at(slabs, entry[0]);
    weights w = make_weights(a.w, codes, sl_present(entry[1]) ? sl_at(slabs, entry[1]) : codes,
                             sl_present(entry[2]) ? sl_at(slabs, entry[2]) : codes);
    uint mine = first + (thread_at >> 2);
    half_row x_row = {mine < end ? x + ulong(source_of(a, mine, uint(pairs[mine]))) * a.x_stride : nullptr};
    threadgroup const float *tile = multiply_tile<F>(memory, w, w_row, x_row, thread_at, simd);
    uint count = end - first, r = thread_at & 63, out = w_row + r;
    if (out >= w.rows)
        return;
    for (uint i = thread_at >> 6; i < count; i += 2) {
        uint place = first + i, pair = uint(pairs[place]);
        float v = tile[i * OUT_STRIDE + r] * unscale[source_of(a, place, pair)];
        if (fc_bias)
            v = v + bias[ulong(uint(tiles[group.y].expert)) * a.w.rows + out];
        y[ulong(fc_leaves ? pair : place) * a.y_stride + out] = v;
        if (fc_leaves && out == 0)
            done[pair] = 1;
    }
}

#define X(format, align)                                                                                               \
    SL_KERNEL("matmul_" #format "_a" #align, matmul, format_##format<align>)                                           \
    SL_KERNEL("matmul_expert_" #format "_a" #align, matmul_expert, format_##format<align>)
SL_FORMATS(X)
#undef X

// split: a product with few outputs and many rows of x (a router's logits) on the matrix units, divided among threadgroups
// along the columns, too; who reads the partial results adds them.
//
//   split_<format>_a<align>   y[s][i][r] = x[i] . W[r] over the columns of the units s * split_units and on
//
// Geometry: a tile of 32 rows of x by 64 of W for each split, as in matmul.metal: grid (ceil(W.rows / 64),
// ceil(rows / 32), splits), threadgroup (128). A step's weights and x are loaded while the one before is multiplied.
// Where a split begins depends on W alone, so neither do a row's bits depend on other rows. Threadgroup memory 14 KiB.
//
// Bytes: W once per 32 rows of x, x once per 64 rows of W, y once per split. Slots: 1 codes, 2 scales, 3 biases, 4 x
// (half rows), 5 unscale[rows], 6 y, 8 step.
#include "multiply.h"

template <typename F>
[[kernel, max_total_threads_per_threadgroup(128)]] void
split(constant sl_split_args &a [[buffer(0)]], device const uchar *codes [[buffer(1)]],
      device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
      device const half *x [[buffer(4)]], device const float *unscale [[buffer(5)]], device float *y [[buffer(6)]],
      device const int *step [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
      uint thread_at [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup tile_memory memory;
    uint rows = step_rows(step), first = group.y * SL_MATMUL_TOKENS, w_row = group.x * SL_MATMUL_ROWS;
    weights w = make_weights(a.w, codes, scales, biases);
    uint begin = group.z * a.split_units, end = min(begin + a.split_units, unit_count(w));
    if (first >= rows || w_row >= w.rows || begin >= end)
        return;
    uint mine = first + (thread_at >> 2), x_part = thread_at & 3, w_part = thread_at & 1;
    half_row x_row = {mine < rows ? x + ulong(mine) * a.x_stride : nullptr};
    weight_row row = row_at(w, w_row + (thread_at >> 1));
    threadgroup uint4 *x_to = (threadgroup uint4 *)(memory.at + (thread_at >> 2) * TILE_STRIDE + x_part * 16);
    threadgroup half *w_to = memory.at + W_TILE + (thread_at >> 1) * TILE_STRIDE + w_part * 32;
    threadgroup const half *x_tile = memory.at + (simd & 1) * 16 * TILE_STRIDE;
    threadgroup const half *w_tile = memory.at + W_TILE + (simd >> 1) * 32 * TILE_STRIDE;
    tile_float acc[2];
    tile_zero(acc[0]);
    tile_zero(acc[1]);
    uint4 xv[2];
    typename F::unit q;
    load_run<F>(xv, x_row, begin + (x_part >> 1), x_part & 1, end);
    if (begin + w_part < end)
        F::load(q, row, begin + w_part, w);
    for (uint u = begin; u < end; u += 2) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        x_to[0] = xv[0];
        x_to[1] = xv[1];
        if (u + w_part < end)
            stage_unit<F>(w_to, q);
        else
            stage_nothing(w_to);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        load_run<F>(xv, x_row, u + 2 + (x_part >> 1), x_part & 1, end);
        if (u + 2 + w_part < end)
            F::load(q, row, u + 2 + w_part, w);
        multiply_staged<false>(acc, x_tile, w_tile);
    }
    threadgroup const float *tile = put_tile(memory, acc, simd);
    uint count = min(rows - first, uint(SL_MATMUL_TOKENS)), r = thread_at & 63, out = w_row + r;
    if (out >= w.rows)
        return;
    device float *to = y + ulong(group.z) * a.split_stride + out;
    for (uint i = thread_at >> 6; i < count; i += 2)
        to[ulong(first + i) * a.y_stride] = tile[i * OUT_STRIDE + r] * unscale[first + i];
}

#define X(format, align) SL_KERNEL("split_" #format "_a" #align, split, format_##format<align>)
SL_FORMATS(X)
#undef X

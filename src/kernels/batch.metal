// batch: products of 16 to 64 rows of x that decode, through batch.h (what for is said there), and of experts with the
// pairs that chose them.
//
//   batch_lines_<format>            rows of x as batch.h reads them: halves scaled by a power of two of their row, ...
//   batch_lines_low_<format>        and what halves do not hold of them
//   batch_t<T>_n<N>_<format>        y = or += x W^T (+ bias): T tiles of 16 rows of W, N blocks of 8 rows of x
//   batch_expert_gate_up_<format>   h[place] = act(gate) * up of the pairs of a tile (of 8 at most, of moe.metal)
//   batch_expert_<format>           y[pair] = down of them, and done[pair] = 1
//
// Formats and what they ask of matrices: of few.metal.
//
// Geometry: batch_lines: grid (rows, a multiple of 8), threadgroup (256); rows that the step does not have become
// zeros. The others: threadgroup (128) = 4 SIMD-groups, of which 4, 2 or 1 share the columns of 16 T rows of W: as many
// as the grid leaves, which is (1, 2 or 4 times 16 T rows of W each, ceil(rows / 8 N)); or (W.rows / 16 for gate_up and
// / 32 for down, times 4, 2, 1 for 1, 2, more chunks, tiles). Bytes: W once per 8 N rows of x, x once per 16 T rows of
// W (from cache), with LOW twice. Operations per weight: 0.6 integer to make a half, N / 16 of a fragment's product.
// Threadgroup memory 27 and 18 KiB (T 1 and 2), or 36 where SL_BATCH_LOTS is 4.
//
// Slots of batch_lines: 1 x, 2 lines, 3 sums[rows][pairs], 4 unscale[rows], 5 step.
// Of batch: 1 codes, 2 scales, 3 biases, 4 lines, 5 sums, 6 unscale, 7 y, 8 bias[W.rows], 9 step.
// Of batch_expert: 1 table, 2 tiles, 3 pairs[list], 4 lines, 5 sums, 6 unscale, 7 h or y, 8 done[pairs], 9 step, 10
// counts of group_pairs, 11 bias, 12 up_bias, 15..30 slabs.
#include "batch.h"

SL_SWITCH(fc_add, SL_FC_ADD)
SL_SWITCH(fc_bias, SL_FC_BIAS)
SL_SWITCH(fc_leaves, SL_FC_LEAVES)
SL_SWITCH(fc_clamp, SL_FC_CLAMP)

// ---- x -------------------------------------------------------------------------------------------------------------

enum { LINE_SIMDS = SL_BATCH_LINE_THREADS / SL_SIMD };

// The largest value of a row; all threads take part.
inline float largest_of(threadgroup float *most, device const float *x, uint cols, uint thread_at, uint lane,
                        uint simd) {
    float m = 0.0f;
    for (uint c = 4 * thread_at; c < cols; c += 4 * SL_BATCH_LINE_THREADS)
        m = max(m, few_max(float4(*(device const packed_float4 *)(x + c))));
    m = simd_max(m);
    if (lane == 0)
        most[simd] = m;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < LINE_SIMDS; i++)
        m = max(m, most[i]);
    return m;
}

// A lane takes a word of a pair of units: item = 8 pair + 4 word + quarter.
template <typename W, bool LOW>
[[kernel, max_total_threads_per_threadgroup(SL_BATCH_LINE_THREADS)]] void
batch_lines(constant sl_rows_args &a [[buffer(0)]], device const float *x [[buffer(1)]],
            device uint4 *lines [[buffer(2)]], device float2 *sums [[buffer(3)]], device float *unscale [[buffer(4)]],
            device const int *step [[buffer(5)]], uint row [[threadgroup_position_in_grid]],
            uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
            uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup float most[LINE_SIMDS];
    bool there = row < step_rows(step) * a.per_row;
    device const float *from = x + (there ? ulong(row) * a.src_stride : 0);
    float up = half_scale(largest_of(most, from, a.cols, thread_at, lane, simd));
    uint pairs = a.cols / 64;
    device uint4 *to = lines + batch_x_at(row, pairs, LOW);
    for (uint item = thread_at; item < 8 * pairs; item += SL_BATCH_LINE_THREADS) {
        uint pair = item >> 3, word = item >> 2 & 1, q = item & 3;
        // in order: eight columns of a unit; else four of each of two runs
        uint at =
            W::sequence ? 64 * pair + 32 * word + 8 * q : W::column(2 * pair) + (W::gap == 16 ? 32 : 16) * word + 4 * q;
        float4 f = float4(*(device const packed_float4 *)(from + at));
        float4 g = float4(*(device const packed_float4 *)(from + at + (W::sequence ? 4 : W::gap)));
        f = there ? f * up : float4(0.0f);
        g = there ? g * up : float4(0.0f);
        if (!LOW) { // biases meet what codes meet
            f = float4(half4(f));
            g = float4(half4(g));
        }
        float first = few_add(f), second = few_add(g);
        if (W::gap == 16)
            first = second = first + second;
        first += simd_shuffle_xor(first, 1);
        second += simd_shuffle_xor(second, 1);
        first += simd_shuffle_xor(first, 2);
        second += simd_shuffle_xor(second, 2);
        float other = simd_shuffle_xor(first, 4), other_second = simd_shuffle_xor(second, 4);
        float4 c = few_rest(f), d = few_rest(g);
        float4 factor = float4(1.0f, W::sequence ? W::second : 1.0f, 1.0f, W::sequence ? W::second : 1.0f);
        float all = W::sequence ? 1.0f : W::second;
        device uint4 *p = to + ulong(pair) * (LOW ? 128 : 64) + 32 * word + q;
        p[0] = batch_halves<W>(f * factor, g * (W::sequence ? factor : float4(all)));
        if (LOW)
            p[64] = batch_halves<W>(c * factor, d * (W::sequence ? factor : float4(all)));
        if (q == 0 && word == 0) {
            // parts: one of all, or one a word, or one a run
            float2 s = W::parts == 1  ? float2(first + other)
                       : W::gap == 16 ? float2(first, other)
                                      : float2(first + other, second + other_second);
            sums[ulong(row) * pairs + pair] = s * (W::centre != 0.0f ? W::centre / W::unit : 1.0f / W::unit);
        }
    }
    if (thread_at == 0)
        unscale[row] = W::unit / up;
}

// ---- dense ---------------------------------------------------------------------------------------------------------

template <uint T>
inline void batch_tile(thread batch_tiles<T> &tiles, uint t, thread const weights &w, device const uchar *side,
                       uint first) {
    uint row = min(first, w.rows - 16); // beyond the last: what is read exists, and is not kept
    tiles.codes[t] = w.codes + ulong(row) * w.row_bytes;
    tiles.side[t] = side + ulong(row) * w.side_bytes;
}

template <typename W, uint T, uint N>
[[kernel, max_total_threads_per_threadgroup(SL_BATCH_THREADS)]] void
batch(constant sl_matvec_args &a [[buffer(0)]], device const uchar *codes [[buffer(1)]],
      device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
      device const uint4 *lines [[buffer(4)]], device const float2 *sums [[buffer(5)]],
      device const float *unscale [[buffer(6)]], device float *y [[buffer(7)]], device const float *bias [[buffer(8)]],
      device const int *step [[buffer(9)]], uint3 group [[threadgroup_position_in_grid]],
      uint3 groups [[threadgroups_per_grid]], uint thread_at [[thread_index_in_threadgroup]],
      uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup batch_memory<T, N> m;
    weights w = make_weights(a.w, codes, scales, biases);
    const uint each = (w.rows + 16 * T * groups.x - 1) / (16 * T * groups.x);
    const uint shift = batch_shift_of(each), share = 1u << shift, tiles = BATCH_SIMDS >> shift;
    const uint first_row = group.y * 8 * N, first_out = group.x * tiles * 16 * T, pairs = w.cols / 64;
    batch_tiles<T> mine;
    mine.row_bytes = uint(w.row_bytes);
#pragma unroll
    for (uint t = 0; t < T; t++)
        batch_tile<T>(mine, t, w, W::side(w, lane), first_out + ((simd >> shift) * T + t) * 16);
    batch_rows<N> rows;
#pragma unroll
    for (uint n = 0; n < N; n++) {
        uint block = first_row + 8 * n, at = block + 2 * (lane & 3);
        batch_row<N, false>(rows, n, lines, sums, pairs, block + (lane >> 2), at, at + 1, lane & 3);
    }
    float4 acc[T][N];
    batch_product<W, T, N, false>(acc, m.at + simd * batch_stages<T>() * T * FEW_SLOT, mine, rows, w.cols / SL_FEW_COLS,
                                  simd & (share - 1), share, lane);
    batch_put<T, N>(m, acc, lane, simd);
    uint count = step_rows(step);
    for (uint i = thread_at; i < tiles * 16 * T * 8 * N; i += SL_BATCH_THREADS) {
        uint tile_row = i % (16 * T), x_row = i / (16 * T) % (8 * N), tile = i / (16 * T * 8 * N);
        uint out = first_out + tile * 16 * T + tile_row, row = first_row + x_row;
        if (row >= count || out >= w.rows)
            continue;
        float v = batch_sum<T, N>(m, tile << shift, share, x_row, tile_row) * unscale[row];
        device float *to = y + ulong(row) * a.y_stride + out;
        if (fc_add)
            v = *to + v;
        if (fc_bias)
            v = v + bias[out];
        *to = v;
    }
}

// ---- experts -------------------------------------------------------------------------------------------------------

typedef device const uchar *slab_pointer;

// Projection p of an expert, which is there.
inline weights batch_expert_of(constant sl_expert_args &a, device const ulong *entry,
                               thread const slab_list<slab_pointer> &slabs) {
    device const uchar *codes = sl_at(slabs, entry[0]);
    return make_weights(a.w, codes, sl_present(entry[1]) ? sl_at(slabs, entry[1]) : codes,
                        sl_present(entry[2]) ? sl_at(slabs, entry[2]) : codes);
}

// Row of x of a place of the list.
inline uint batch_source(constant sl_expert_args &a, device const int *pairs, uint place) {
    return a.per_pair ? place : uint(pairs[place]) / a.top_k;
}

// Of a tile's places, those beyond the last as the last.
inline batch_rows<1> batch_places(constant sl_expert_args &a, device const uint4 *lines, device const float2 *sums,
                                  device const int *pairs, uint first, uint end, uint lane) {
    uint q = lane & 3, last = end - 1;
    batch_rows<1> rows;
    batch_row<1, true>(rows, 0, lines, sums, a.w.cols / 64, batch_source(a, pairs, min(first + (lane >> 2), last)),
                       batch_source(a, pairs, min(first + 2 * q, last)),
                       batch_source(a, pairs, min(first + 2 * q + 1, last)), q);
    return rows;
}

template <typename W>
[[kernel, max_total_threads_per_threadgroup(SL_BATCH_THREADS)]] void
batch_expert_gate_up(constant sl_expert_args &a [[buffer(0)]], device const ulong *table [[buffer(1)]],
                     device const sl_pair_tile *tiles [[buffer(2)]], device const int *pairs [[buffer(3)]],
                     device const uint4 *lines [[buffer(4)]], device const float2 *sums [[buffer(5)]],
                     device const float *unscale [[buffer(6)]], device float *h [[buffer(7)]],
                     device const int *step [[buffer(9)]], device const uint *tile_count [[buffer(10)]],
                     device const float *bias [[buffer(11)]], device const float *up_bias [[buffer(12)]],
                     SL_SLAB_PARAMS(device const uchar *), uint3 group [[threadgroup_position_in_grid]],
                     uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                     uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup batch_memory<2, 1> m;
    if (group.y >= tile_count[0] || step_aborted(step))
        return;
    uint first = tiles[group.y].first, end = tiles[group.y].end, id = uint(tiles[group.y].expert);
    device const ulong *entry = table + ulong(id) * SL_PARTS;
    if (!sl_present(entry[0]) || !sl_present(entry[3]))
        return;
    const slab_list<slab_pointer> slabs = SL_SLABS;
    weights gate = batch_expert_of(a, entry, slabs), up = batch_expert_of(a, entry + 3, slabs);
    const uint shift = batch_shift(a.w.cols), share = 1u << shift, several = BATCH_SIMDS >> shift;
    const uint first_out = group.x * several * 16, mine = first_out + (simd >> shift) * 16;
    batch_tiles<2> w;
    w.row_bytes = uint(a.w.row_bytes);
    batch_tile<2>(w, 0, gate, W::side(gate, lane), mine);
    batch_tile<2>(w, 1, up, W::side(up, lane), mine);
    float4 acc[2][1];
    batch_product<W, 2, 1, true>(acc, m.at + simd * batch_stages<2>() * 2 * FEW_SLOT, w,
                                 batch_places(a, lines, sums, pairs, first, end, lane), a.w.cols / SL_FEW_COLS,
                                 simd & (share - 1), share, lane);
    batch_put<2, 1>(m, acc, lane, simd);
    for (uint i = thread_at; i < several * 16 * (end - first); i += SL_BATCH_THREADS) {
        uint r = i & 15, tile = i / 16 % several, x_row = i / (16 * several), place = first + x_row;
        uint out = first_out + 16 * tile + r;
        if (out >= a.w.rows)
            continue;
        float by = unscale[batch_source(a, pairs, place)];
        float g = batch_sum<2, 1>(m, tile << shift, share, x_row, r) * by;
        float u = batch_sum<2, 1>(m, tile << shift, share, x_row, 16 + r) * by;
        if (fc_bias) {
            g += bias[ulong(id) * a.w.rows + out];
            u += up_bias[ulong(id) * a.w.rows + out];
        }
        h[ulong(place) * a.y_stride + out] = fc_clamp ? clamped_swiglu(g, u, a.limit, a.alpha) : silu(g) * u;
    }
}

template <typename W>
[[kernel, max_total_threads_per_threadgroup(SL_BATCH_THREADS)]] void
batch_expert(constant sl_expert_args &a [[buffer(0)]], device const ulong *table [[buffer(1)]],
             device const sl_pair_tile *tiles [[buffer(2)]], device const int *pairs [[buffer(3)]],
             device const uint4 *lines [[buffer(4)]], device const float2 *sums [[buffer(5)]],
             device const float *unscale [[buffer(6)]], device float *y [[buffer(7)]], device uchar *done [[buffer(8)]],
             device const int *step [[buffer(9)]], device const uint *tile_count [[buffer(10)]],
             device const float *bias [[buffer(11)]], SL_SLAB_PARAMS(device const uchar *),
             uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
             uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup batch_memory<2, 1> m;
    if (group.y >= tile_count[0] || step_aborted(step))
        return;
    uint first = tiles[group.y].first, end = tiles[group.y].end, id = uint(tiles[group.y].expert);
    device const ulong *entry = table + ulong(id) * SL_PARTS + 3 * a.projection;
    if (!sl_present(entry[0]))
        return;
    const slab_list<slab_pointer> slabs = SL_SLABS;
    weights down = batch_expert_of(a, entry, slabs);
    const uint shift = batch_shift(a.w.cols), share = 1u << shift, several = BATCH_SIMDS >> shift;
    const uint first_out = group.x * several * 32, mine = first_out + (simd >> shift) * 32;
    batch_tiles<2> w;
    w.row_bytes = uint(a.w.row_bytes);
    batch_tile<2>(w, 0, down, W::side(down, lane), mine);
    batch_tile<2>(w, 1, down, W::side(down, lane), mine + 16);
    float4 acc[2][1];
    batch_product<W, 2, 1, true>(acc, m.at + simd * batch_stages<2>() * 2 * FEW_SLOT, w,
                                 batch_places(a, lines, sums, pairs, first, end, lane), a.w.cols / SL_FEW_COLS,
                                 simd & (share - 1), share, lane);
    batch_put<2, 1>(m, acc, lane, simd);
    for (uint i = thread_at; i < several * 32 * (end - first); i += SL_BATCH_THREADS) {
        uint r = i & 31, tile = i / 32 % several, x_row = i / (32 * several), place = first + x_row;
        uint out = first_out + 32 * tile + r, pair = uint(pairs[place]);
        if (out >= a.w.rows)
            continue;
        float v = batch_sum<2, 1>(m, tile << shift, share, x_row, r) * unscale[batch_source(a, pairs, place)];
        if (fc_bias)
            v += bias[ulong(id) * a.w.rows + out];
        y[ulong(pair) * a.y_stride + out] = v;
        if (fc_leaves && out == 0)
            done[pair] = 1;
    }
}

// What is instantiated: the formats that the host defines SL_FEW_FORMATS to be, or all.
#ifndef SL_FEW_FORMATS
#define SL_FEW_FORMATS(X) X(affine4_f16) X(affine4_bf16) X(q4_0) X(q4_k) X(mxfp4) X(mxfp4_split)
#endif
#define X(format)                                                                                                      \
    SL_KERNEL("batch_lines_" #format, batch_lines, few_##format, false)                                                \
    SL_KERNEL("batch_lines_low_" #format, batch_lines, few_##format, true)                                             \
    SL_KERNEL("batch_t1_n2_" #format, batch, few_##format, 1, 2)                                                       \
    SL_KERNEL("batch_t2_n2_" #format, batch, few_##format, 2, 2)                                                       \
    SL_KERNEL("batch_t1_n4_" #format, batch, few_##format, 1, 4)                                                       \
    SL_KERNEL("batch_t2_n4_" #format, batch, few_##format, 2, 4)                                                       \
    SL_KERNEL("batch_expert_gate_up_" #format, batch_expert_gate_up, few_##format)                                     \
    SL_KERNEL("batch_expert_" #format, batch_expert, few_##format)
SL_FEW_FORMATS(X)
#undef X

// few: products of W with rows of x, each by itself, through few.h (what for is said there).
//
//   few_<format>                   as matvec_<format>
//   few_gate_up_<format>           as gate_up_<format>
//   few_expert_gate_up_<format>    as expert_gate_up_<format> of expert.metal
//   few_expert_matvec_<format>     as expert_matvec_<format>
//
// Formats: affine4_f16, affine4_bf16 (groups of 64), q4_0, q4_k, mxfp4, mxfp4_split. Rows are a multiple of 16, columns of
// 256. Codes and their rows begin at multiples of 16 (mxfp4: 8), scales and biases and their rows at multiples of 8.
//
// Geometry: threadgroup (128) = 4 SIMD-groups, any number of threadgroups over the tiles of 16 rows; grid (those, rows of x
// or pairs). Bytes: W once per row of x. Operations per weight: 0.6 integer to make a half, 1/256 of a fragment's product.
// Threadgroup memory 31 KiB, or 41 where SL_FEW_PANEL is 128.
//
// Slots: of matvec.metal and expert.metal.
#include "few.h"

SL_SWITCH(fc_add, SL_FC_ADD)
SL_SWITCH(fc_bias, SL_FC_BIAS)
SL_SWITCH(fc_leaves, SL_FC_LEAVES)
SL_SWITCH(fc_clamp, SL_FC_CLAMP)

// Tiles that are left from `first` on, FEW_TILES / M at most.
template <uint M> inline uint few_count(thread const few_shape &s, uint first, uint stride) {
    uint n = 0;
    while (n < FEW_TILES / M && first + n * stride < s.tiles)
        n++;
    return n;
}

template <typename W>
[[kernel, max_total_threads_per_threadgroup(128)]] void
few(constant sl_matvec_args &a [[buffer(0)]], device const uchar *codes [[buffer(1)]],
    device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
    device const float *x [[buffer(4)]], device float *y [[buffer(5)]], device const float *bias [[buffer(6)]],
    device const int *step [[buffer(9)]], uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]], uint thread_at [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup few_memory m;
    weights w = make_weights(a.w, codes, scales, biases);
    const few_shape s = few_shape_of(w);
    for (uint first = group.x; first < s.tiles; first += FEW_TILES * groups.x) {
        uint count = few_count<1>(s, first, groups.x);
        if (first != group.x)
            threadgroup_barrier(mem_flags::mem_threadgroup);
        few_product<W, 1>(m, &w, x + ulong(group.y) * a.x_stride, first, groups.x, count, lane, simd);
        if (group.y >= step_rows(step)) // asked only here: W need not wait for the answer
            return;
        for (uint i = thread_at; i < 16 * count; i += 32 * FEW_SIMDS) {
            float v = few_sum(m, s, i >> 4, i & 15);
            uint out = 16 * (first + (i >> 4) * groups.x) + (i & 15);
            device float *to = y + ulong(group.y) * a.y_stride + out;
            if (fc_add)
                v = *to + v;
            if (fc_bias)
                v = v + bias[out];
            *to = v;
        }
    }
}

template <typename W>
[[kernel, max_total_threads_per_threadgroup(128)]] void
few_gate_up(constant sl_matvec_args &a [[buffer(0)]], device const uchar *codes [[buffer(1)]],
            device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
            device const float *x [[buffer(4)]], device float *h [[buffer(5)]],
            device const uchar *up_codes [[buffer(6)]], device const uchar *up_scales [[buffer(7)]],
            device const uchar *up_biases [[buffer(8)]], device const int *step [[buffer(9)]],
            uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
            uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
            uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup few_memory m;
    weights w[2] = {make_weights(a.w, codes, scales, biases), make_weights(a.w, up_codes, up_scales, up_biases)};
    const few_shape s = few_shape_of(w[0]);
    for (uint first = group.x; first < s.tiles; first += FEW_TILES / 2 * groups.x) {
        uint count = few_count<2>(s, first, groups.x);
        if (first != group.x)
            threadgroup_barrier(mem_flags::mem_threadgroup);
        few_product<W, 2>(m, w, x + ulong(group.y) * a.x_stride, first, groups.x, count, lane, simd);
        if (group.y >= step_rows(step))
            return;
        for (uint i = thread_at; i < 16 * count; i += 32 * FEW_SIMDS) {
            uint t = i >> 4, row = i & 15;
            h[ulong(group.y) * a.y_stride + 16 * (first + t * groups.x) + row] =
                silu(few_sum(m, s, 2 * t, row)) * few_sum(m, s, 2 * t + 1, row);
        }
    }
}

typedef device const uchar *slab_pointer;

// Projection p of an expert, which is there.
inline weights few_expert(constant sl_expert_args &a, device const ulong *entry, thread const slab_list<slab_pointer> &slabs) {
    device const uchar *codes = sl_at(slabs, entry[0]);
    return make_weights(a.w, codes, sl_present(entry[1]) ? sl_at(slabs, entry[1]) : codes,
                        sl_present(entry[2]) ? sl_at(slabs, entry[2]) : codes);
}

template <typename W>
[[kernel, max_total_threads_per_threadgroup(128)]] void
few_expert_gate_up(constant sl_expert_args &a [[buffer(0)]], device const ulong *table [[buffer(1)]],
                   device const int *chosen [[buffer(2)]], device const float *x [[buffer(3)]],
                   device float *h [[buffer(4)]], device const int *step [[buffer(6)]],
                   device const float *bias [[buffer(7)]], device const float *up_bias [[buffer(8)]],
                   SL_SLAB_PARAMS(device const uchar *), uint3 group [[threadgroup_position_in_grid]],
                   uint3 groups [[threadgroups_per_grid]], uint thread_at [[thread_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup few_memory m;
    uint pair = group.y;
    if (pair >= step_rows(step) * a.top_k || step_aborted(step))
        return;
    int id = chosen[pair];
    device const ulong *entry = table + ulong(uint(id)) * SL_PARTS;
    if (id < 0 || uint(id) >= a.experts || !sl_present(entry[0]) || !sl_present(entry[3]))
        return;
    const slab_list<slab_pointer> slabs = SL_SLABS;
    weights w[2] = {few_expert(a, entry, slabs), few_expert(a, entry + 3, slabs)};
    const few_shape s = few_shape_of(w[0]);
    for (uint first = group.x; first < s.tiles; first += FEW_TILES / 2 * groups.x) {
        uint count = few_count<2>(s, first, groups.x);
        if (first != group.x)
            threadgroup_barrier(mem_flags::mem_threadgroup);
        few_product<W, 2>(m, w, x + ulong(pair / a.top_k) * a.x_stride, first, groups.x, count, lane, simd);
        for (uint i = thread_at; i < 16 * count; i += 32 * FEW_SIMDS) {
            uint t = i >> 4, row = i & 15, out = 16 * (first + t * groups.x) + row;
            float gate = few_sum(m, s, 2 * t, row), up = few_sum(m, s, 2 * t + 1, row);
            if (fc_bias) {
                gate += bias[ulong(uint(id)) * a.w.rows + out];
                up += up_bias[ulong(uint(id)) * a.w.rows + out];
            }
            h[ulong(pair) * a.y_stride + out] =
                fc_clamp ? clamped_swiglu(gate, up, a.limit, a.alpha) : silu(gate) * up;
        }
    }
}

template <typename W>
[[kernel, max_total_threads_per_threadgroup(128)]] void
few_expert_matvec(constant sl_expert_args &a [[buffer(0)]], device const ulong *table [[buffer(1)]],
                  device const int *chosen [[buffer(2)]], device const float *x [[buffer(3)]],
                  device float *y [[buffer(4)]], device uchar *done [[buffer(5)]], device const int *step [[buffer(6)]],
                  device const float *bias [[buffer(7)]], SL_SLAB_PARAMS(device const uchar *),
                  uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
                  uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                  uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup few_memory m;
    uint pair = group.y;
    if (pair >= step_rows(step) * a.top_k || step_aborted(step))
        return;
    int id = chosen[pair];
    device const ulong *entry = table + ulong(uint(id)) * SL_PARTS + 3 * a.projection;
    if (id < 0 || uint(id) >= a.experts || !sl_present(entry[0]))
        return;
    const slab_list<slab_pointer> slabs = SL_SLABS;
    weights w = few_expert(a, entry, slabs);
    const few_shape s = few_shape_of(w);
    device const float *from = x + ulong(a.per_pair ? pair : pair / a.top_k) * a.x_stride;
    for (uint first = group.x; first < s.tiles; first += FEW_TILES * groups.x) {
        uint count = few_count<1>(s, first, groups.x);
        if (first != group.x)
            threadgroup_barrier(mem_flags::mem_threadgroup);
        few_product<W, 1>(m, &w, from, first, groups.x, count, lane, simd);
        for (uint i = thread_at; i < 16 * count; i += 32 * FEW_SIMDS) {
            float v = few_sum(m, s, i >> 4, i & 15);
            uint out = 16 * (first + (i >> 4) * groups.x) + (i & 15);
            y[ulong(pair) * a.y_stride + out] = fc_bias ? v + bias[ulong(uint(id)) * a.w.rows + out] : v;
            if (fc_leaves && out == 0)
                done[pair] = 1;
        }
    }
}

// What is instantiated: the formats that the host defines SL_FEW_FORMATS to be, or all.
#ifndef SL_FEW_FORMATS
#define SL_FEW_FORMATS(X) X(affine4_f16) X(affine4_bf16) X(q4_0) X(q4_k) X(mxfp4) X(mxfp4_split)
#endif
#define X(format)                                                                                                      \
    SL_KERNEL("few_" #format, few, few_##format)                                                                       \
    SL_KERNEL("few_gate_up_" #format, few_gate_up, few_##format)                                                       \
    SL_KERNEL("few_expert_gate_up_" #format, few_expert_gate_up, few_##format)                                         \
    SL_KERNEL("few_expert_matvec_" #format, few_expert_matvec, few_##format)
SL_FEW_FORMATS(X)
#undef X

// expert: projections of routed experts for few rows (decode), weights through the expert table.
//
//   expert_gate_up_<format>_a<align>  h[pair] = silu(x[row of pair] G^T) * (x[row of pair] U^T), or the clamped SwiGLU;
//                                     both products may have biases, as may the one below
//   expert_matvec_<format>_a<align>   y[pair] = x W^T with one projection; x by pair (down) or by its row (gate or up
//                                     alone, where their formats differ); with SL_FC_LEAVES it sets done[pair]
//
// A pair is (row, rank), numbered row * top_k + rank. The table holds, per expert and part, slab << 56 | (offset + 1);
// an expert that is absent from it is left to another pass over another snapshot, so hits and misses may be computed
// apart: each writes its own rows of y, and nothing depends on the order.
//
// Geometry: threadgroup (64) = 2 SIMD-groups x 4 rows of W; grid (ceil(W.rows / 8), rows * top_k).
//
// Bytes: the expert's part once per pair. Operations as in matvec.
//
// Slots: 1 table[experts][9], 2 chosen[rows][top_k], 3 x, 4 h or y, 5 done[pairs] (bytes), 6 step, 7 bias of the gate
// or of the one projection [experts][W.rows], 8 bias of up, 15..30 slabs.
#include "dot.h"

SL_SWITCH(fc_leaves, SL_FC_LEAVES)
SL_SWITCH(fc_bias, SL_FC_BIAS)
SL_SWITCH(fc_clamp, SL_FC_CLAMP)

typedef device const uchar *slab_pointer;

// Projection p of an expert; false: absent.
inline bool expert_weights(thread weights &w, constant sl_expert_args &a, device const ulong *table, int id, uint p,
                           thread const slab_list<slab_pointer> &slabs) {
    if (id < 0 || uint(id) >= a.experts)
        return false;
    device const ulong *entry = table + ulong(id) * SL_PARTS + 3 * p;
    if (!sl_present(entry[0]))
        return false;
    device const uchar *codes = sl_at(slabs, entry[0]);
    device const uchar *scales = sl_present(entry[1]) ? sl_at(slabs, entry[1]) : codes;
    device const uchar *biases = sl_present(entry[2]) ? sl_at(slabs, entry[2]) : codes;
    w = make_weights(a.w, codes, scales, biases);
    return true;
}

template <typename F>
[[kernel, max_total_threads_per_threadgroup(64)]] void
expert_gate_up(constant sl_expert_args &a [[buffer(0)]], device const ulong *table [[buffer(1)]],
               device const int *chosen [[buffer(2)]], device const float *x [[buffer(3)]],
               device float *h [[buffer(4)]], device const int *step [[buffer(6)]],
               device const float *bias [[buffer(7)]], device const float *up_bias [[buffer(8)]],
               SL_SLAB_PARAMS(device const uchar *), uint3 group [[threadgroup_position_in_grid]],
               uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    uint pair = group.y, row = group.x * SL_MATVEC_ROWS + simd * DOT_ROWS;
    if (pair >= step_rows(step) * a.top_k || row >= a.w.rows || step_aborted(step))
        return;
    const slab_list<slab_pointer> slabs = SL_SLABS;
    weights w[2];
    if (!expert_weights(w[0], a, table, chosen[pair], 0, slabs) ||
        !expert_weights(w[1], a, table, chosen[pair], 1, slabs))
        return;
    float acc[2 * DOT_ROWS];
    dot_rows<F, DOT_ROWS, 2, false>(acc, w, row, x + ulong(pair / a.top_k) * a.x_stride, lane);
    uint out = row + lane;
    if (lane < DOT_ROWS && out < a.w.rows) {
        float gate = pick_row<DOT_ROWS>(acc, lane), up = pick_row<DOT_ROWS>(acc + DOT_ROWS, lane);
        if (fc_bias) {
            gate += bias[ulong(uint(chosen[pair])) * a.w.rows + out];
            up += up_bias[ulong(uint(chosen[pair])) * a.w.rows + out];
        }
        h[ulong(pair) * a.y_stride + out] =
            fc_clamp ? clamped_swiglu(gate, up, a.limit, a.alpha) : silu(gate) * up;
    }
}

template <typename F>
[[kernel, max_total_threads_per_threadgroup(64)]] void
expert_matvec(constant sl_expert_args &a [[buffer(0)]], device const ulong *table [[buffer(1)]],
              device const int *chosen [[buffer(2)]], device const float *x [[buffer(3)]],
              device float *y [[buffer(4)]], device uchar *done [[buffer(5)]], device const int *step [[buffer(6)]],
              device const float *bias [[buffer(7)]],
              SL_SLAB_PARAMS(device const uchar *), uint3 group [[threadgroup_position_in_grid]],
              uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    uint pair = group.y, row = group.x * SL_MATVEC_ROWS + simd * DOT_ROWS;
    if (pair >= step_rows(step) * a.top_k || row >= a.w.rows || step_aborted(step))
        return;
    const slab_list<slab_pointer> slabs = SL_SLABS;
    weights w;
    if (!expert_weights(w, a, table, chosen[pair], a.projection, slabs))
        return;
    float acc[DOT_ROWS];
    dot_rows<F, DOT_ROWS, 1, false>(acc, &w, row, x + ulong(a.per_pair ? pair : pair / a.top_k) * a.x_stride, lane);
    uint out = row + lane;
    if (lane < DOT_ROWS && out < a.w.rows) {
        float v = pick_row<DOT_ROWS>(acc, lane);
        y[ulong(pair) * a.y_stride + out] = fc_bias ? v + bias[ulong(uint(chosen[pair])) * a.w.rows + out] : v;
    }
    if (fc_leaves && out == 0)
        done[pair] = 1;
}

#define X(format, align)                                                                                               \
    SL_KERNEL("expert_gate_up_" #format "_a" #align, expert_gate_up, format_##format<align>)                           \
    SL_KERNEL("expert_matvec_" #format "_a" #align, expert_matvec, format_##format<align>)
SL_FORMATS(X)
#undef X

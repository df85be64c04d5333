// narrow: products with few outputs (a router's logits, a shared expert's gate), which kernels with several outputs a
// threadgroup leave to a handful of threadgroups.
//
//   narrow_<format>_a<align>   y[i][r] = x[i] . W[r] (+ bias), in float
//
// Geometry: a threadgroup for each output and row of x, grid (W.rows, rows of x), threadgroup (32 for every 1024 columns,
// 256 at most): each lane has a unit of 32 weights (blocks.h) of every 32 * its SIMD-groups, so that all of W is asked for
// at once. Sums: a lane's units in order, the lanes' by simd_sum, the SIMD-groups' by simd_sum.
//
// Bytes: W once per row of x, and x once per output (from cache). Slots: 1 codes, 2 scales, 3 biases, 4 x, 5 y, 6
// bias[W.rows], 9 step.
#include "dot.h"

SL_SWITCH(fc_bias, SL_FC_BIAS)

template <typename F>
[[kernel, max_total_threads_per_threadgroup(256)]] void
narrow(constant sl_matvec_args &a [[buffer(0)]], device const uchar *codes [[buffer(1)]],
       device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
       device const float *x [[buffer(4)]], device float *y [[buffer(5)]], device const float *bias [[buffer(6)]],
       device const int *step [[buffer(9)]], uint3 group [[threadgroup_position_in_grid]],
       uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
       uint simds [[simdgroups_per_threadgroup]]) {
    threadgroup float part[SL_NARROW_SIMDS];
    if (group.y >= step_rows(step) || group.x >= a.w.rows)
        return;
    weights w = make_weights(a.w, codes, scales, biases);
    weight_row row = row_at(w, group.x);
    device const float *from = x + ulong(group.y) * a.x_stride;
    float acc = 0.0f;
    for (uint u = simd * SL_SIMD + lane; u < unit_count(w); u += simds * SL_SIMD) {
        typename F::unit q;
        F::load(q, row, u, w);
        x_unit xu;
        load_x<F>(xu, from, u, w.cols);
        acc += unit_dot<F>(q, xu);
    }
    acc = simd_sum(acc);
    if (lane == 0)
        part[simd] = acc;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd != 0)
        return;
    acc = simd_sum(lane < simds ? part[lane] : 0.0f);
    if (lane == 0)
        y[ulong(group.y) * a.y_stride + group.x] = fc_bias ? acc + bias[group.x] : acc;
}

#define X(format, align) SL_KERNEL("narrow_" #format "_a" #align, narrow, format_##format<align>)
SL_FORMATS(X)
#undef X

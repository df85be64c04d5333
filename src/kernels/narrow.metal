// narrow: products with few outputs (a router's logits, a shared expert's gate), which kernels with several outputs a
// threadgroup leave to a handful of threadgroups.
//
//   narrow_<format>_a<align>   y[i][r] = x[i] . W[r] (+ bias), in float
//
// Geometry: a threadgroup for each output and row of x, grid (W.rows, rows of x), threadgroup (32 for every 1024 columns,
// 256 at most): each lane has a unit of 32 weights (blocks.h) of every 32 * its SIMD-groups, so that all of W is asked for
// at once; plain formats in another order of columns, in which lanes read side by side. Sums: a lane's units in order,
// the lanes' by simd_sum, the SIMD-groups' by simd_sum.
//
// Bytes: W once per row of x, and x once per output (from cache). Slots: 1 codes, 2 scales, 3 biases, 4 x, 5 y, 6
// bias[W.rows], 9 step.
#include "dot.h"

SL_SWITCH(fc_bias, SL_FC_BIAS)

// ---- a lane's columns ----------------------------------------------------------------------------------------------

// Of a unit as blocks.h has it.
template <typename F> struct lane_columns {
    static uint units(thread const weights &w) { return unit_count(w); }
    static void take_x(thread x_unit &q, device const float *x, uint u, uint cols) { load_x<F>(q, x, u, cols); }
    static void take_w(thread typename F::unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        F::load(q, row, u, w);
    }
};

// Of 1024 columns that 32 units of a plain format have together: 8 times four, 128 apart.
inline uint side_by_side(uint u, uint i) {
    return u / SL_SIMD * 1024 + 128 * i + 4 * (u % SL_SIMD);
}

template <typename F> struct plain_columns {
    static uint units(thread const weights &w) { return (w.cols + 1023) / 1024 * SL_SIMD; }
    static void take_x(thread x_unit &q, device const float *x, uint u, uint cols) {
#pragma unroll
        for (uint i = 0; i < 4; i++) {
            q.low[i] = load_x4_upto(x, side_by_side(u, i), cols);
            q.high[i] = load_x4_upto(x, side_by_side(u, i + 4), cols);
        }
    }
    static void take_w(thread plain_unit &q, thread const weight_row &row, uint u, thread const weights &w) {
#pragma unroll
        for (uint i = 0; i < 8; i++) {
            uint c = side_by_side(u, i);
            if (c + 4 <= w.cols)
                q.v[i] = F::four(row.codes, c);
            else
                for (uint j = 0; j < 4; j++)
                    q.v[i][j] = c + j < w.cols ? F::one(row.codes, c + j) : 0.0f;
        }
    }
};

template <int A> struct plain_f32 {
    static float one(device const uchar *p, uint c) { return as_type<float>(load32<A>(p + 4 * ulong(c))); }
    static float4 four(device const uchar *p, uint c) { return as_type<float4>(load128<A>(p + 4 * ulong(c))); }
};
template <int A, typename F> struct plain_16 {
    static float one(device const uchar *p, uint c) { return F::wide(load16<A>(p + 2 * ulong(c))); }
    static float4 four(device const uchar *p, uint c) {
        uint low = load32<A>(p + 2 * ulong(c)), high = load32<A>(p + 2 * ulong(c) + 4);
        return float4(F::wide(low & 0xffffu), F::wide(low >> 16), F::wide(high & 0xffffu), F::wide(high >> 16));
    }
};
template <int A> struct lane_columns<format_f32<A>> : plain_columns<plain_f32<A>> {};
template <int A> struct lane_columns<format_f16<A>> : plain_columns<plain_16<A, format_f16<A>>> {};
template <int A> struct lane_columns<format_bf16<A>> : plain_columns<plain_16<A, format_bf16<A>>> {};

// ---- the kernel ----------------------------------------------------------------------------------------------------

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
    for (uint u = simd * SL_SIMD + lane; u < lane_columns<F>::units(w); u += simds * SL_SIMD) {
        typename F::unit q;
        x_unit xu;
        lane_columns<F>::take_w(q, row, u, w);
        lane_columns<F>::take_x(xu, from, u, w.cols);
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

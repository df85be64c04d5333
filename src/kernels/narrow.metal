// narrow: products with few outputs (a router's logits, a shared expert's gate), which kernels with several outputs a
// threadgroup leave to a handful of threadgroups.
//
//   narrow_<format>_a<align>   y[i][r] = x[i] . W[r] (+ bias), in float; with NORM of x / sqrt(mean(x^2) + eps) * weight
//                              instead of x, which is also left at normed
//
// Geometry: a threadgroup for each output and row of x, grid (W.rows, rows of x), threadgroup (32 for every 1024 columns,
// 256 at most): each lane has a unit of 32 weights (blocks.h) of every 32 * its SIMD-groups, so that all of W is asked for
// at once; plain formats in another order of columns, in which lanes read side by side. With NORM every threadgroup sums
// the squares for itself: the row is in cache, and a kernel less waits for another. Sums: a lane's units in order, the
// lanes' by simd_sum, the SIMD-groups' by simd_sum.
//
// Bytes: W once per row of x, and x once per output (from cache). Slots: 1 codes, 2 scales, 3 biases, 4 x, 5 y, 6
// bias[W.rows], 7 weight[cols], 8 normed, 9 step.
#include "dot.h"

SL_SWITCH(fc_bias, SL_FC_BIAS)
SL_SWITCH(fc_norm, SL_FC_NORM)

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

// ---- sums ----------------------------------------------------------------------------------------------------------

struct narrow_row {
    device const float *x, *weight;
    weight_row row;
    uint first, stride; // unit of this lane, and from one to its next
};

// x / largest times the norm's weight instead of x; returns the sum of the squares before that.
template <typename F, bool SCALED>
inline float to_norm(thread x_unit &x, thread const narrow_row &r, uint u, uint cols, float largest) {
    x_unit by;
    lane_columns<F>::take_x(by, r.weight, u, cols);
    float4 squares = float4(0.0f), low = float4(0.0f), high = float4(0.0f);
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        float4 a = SCALED ? x.low[i] / largest : x.low[i], b = SCALED ? x.high[i] / largest : x.high[i];
        squares = fma(a, a, squares);
        squares = fma(b, b, squares);
        x.low[i] = a * by.low[i];
        x.high[i] = b * by.high[i];
        low += x.low[i];
        high += x.high[i];
    }
    x.sum = float2(add4(low), add4(high));
    return add4(squares);
}

// {product, squares} of this lane's columns
template <typename F, bool SCALED>
inline float2 narrow_sums(thread const narrow_row &r, thread const weights &w, float largest) {
    float2 sums = float2(0.0f);
    for (uint u = r.first; u < lane_columns<F>::units(w); u += r.stride) {
        typename F::unit q;
        x_unit x;
        lane_columns<F>::take_w(q, r.row, u, w);
        lane_columns<F>::take_x(x, r.x, u, w.cols);
        if (fc_norm)
            sums.y += to_norm<F, SCALED>(x, r, u, w.cols, largest);
        sums.x += unit_dot<F>(q, x);
    }
    return sums;
}

// Over the threadgroup; part[SL_NARROW_SIMDS] of its own for each call.
inline float2 over_group(float2 v, threadgroup float2 *part, uint lane, uint simd, uint simds) {
    v = float2(simd_sum(v.x), fc_norm ? simd_sum(v.y) : 0.0f);
    if (lane == 0)
        part[simd] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    v = lane < simds ? part[lane] : float2(0.0f);
    return float2(simd_sum(v.x), fc_norm ? simd_sum(v.y) : 0.0f);
}

inline float largest_of(device const float *x, uint cols, threadgroup float *part, uint lane, uint simd, uint simds) {
    float m = 0.0f;
    for (uint c = simd * SL_SIMD + lane; c < cols; c += simds * SL_SIMD)
        m = fabs(x[c]) > m ? fabs(x[c]) : m;
    m = simd_max(m);
    if (lane == 0)
        part[simd] = m;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return simd_max(lane < simds ? part[lane] : 0.0f);
}

// ---- the kernel ----------------------------------------------------------------------------------------------------

template <typename F>
[[kernel, max_total_threads_per_threadgroup(256)]] void
narrow(constant sl_narrow_args &a [[buffer(0)]], device const uchar *codes [[buffer(1)]],
       device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
       device const float *x [[buffer(4)]], device float *y [[buffer(5)]], device const float *bias [[buffer(6)]],
       device const float *weight [[buffer(7)]], device float *normed [[buffer(8)]],
       device const int *step [[buffer(9)]], uint3 group [[threadgroup_position_in_grid]],
       uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
       uint simds [[simdgroups_per_threadgroup]]) {
    threadgroup float2 part[2][SL_NARROW_SIMDS];
    threadgroup float most[SL_NARROW_SIMDS];
    if (group.y >= step_rows(step) || group.x >= a.w.rows)
        return;
    weights w = make_weights(a.w, codes, scales, biases);
    uint thread_at = simd * SL_SIMD + lane;
    narrow_row r = {x + ulong(group.y) * a.x_stride, weight, row_at(w, group.x), thread_at, simds * SL_SIMD};
    float largest = 1.0f, inv = 1.0f;
    float2 sums = over_group(narrow_sums<F, false>(r, w, largest), part[0], lane, simd, simds);
    if (fc_norm) {
        if (!(sums.y <= FLT_MAX)) { // as rms_norm does it
            largest = largest_of(r.x, w.cols, most, lane, simd, simds);
            sums = over_group(narrow_sums<F, true>(r, w, largest), part[1], lane, simd, simds);
        }
        inv = 1.0f / sqrt(sums.y / float(w.cols) + a.eps / largest / largest);
        for (uint c = thread_at; c < w.cols && group.x == 0; c += simds * SL_SIMD)
            normed[ulong(group.y) * a.normed_stride + c] = r.x[c] / largest * inv * weight[c];
    }
    float v = sums.x * inv;
    if (thread_at == 0)
        y[ulong(group.y) * a.y_stride + group.x] = fc_bias ? v + bias[group.x] : v;
}

#define X(format, align) SL_KERNEL("narrow_" #format "_a" #align, narrow, format_##format<align>)
SL_FORMATS(X)
#undef X

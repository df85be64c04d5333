// matvec: y[i][r] = x[i] . W[r]: W quantised in its file's bytes, few rows of x (decode).
//
//   matvec_<format>_a<align>      y = or += x W^T (+ bias)
//   matvec_fma_<format>_a<align>  the same by fma(code, s * x, b * x), affine only: measured beside the above
//   gate_up_<format>_a<align>     h = silu(x G^T) * (x U^T), G and U of one format and shape
//
// Geometry: threadgroup (64) = 2 SIMD-groups x 4 rows of W; grid (ceil(W.rows / 8), rows of x). A lane takes 32 weights
// of 4 rows at a time, so x is read once per 4 rows, from cache.
//
// Bytes: W once per row of x (0.56 per weight for 4 bits in groups of 64). Operations per weight of 4 bits: 1.5 integer
// (shift, and-or), 1 fma; per run of 16: 2 fma.
//
// Slots: 1 codes, 2 scales, 3 biases, 4 x, 5 y, 6 bias[W.rows] (gate_up: 6..8 the parts of U), 9 step.
#include "dot.h"

SL_SWITCH(fc_add, SL_FC_ADD)
SL_SWITCH(fc_bias, SL_FC_BIAS)

template <typename F, bool FMA>
inline void matvec_body(constant sl_matvec_args &a, device const uchar *codes, device const uchar *scales,
                        device const uchar *biases, device const float *x, device float *y, device const float *bias,
                        device const int *step, uint3 group, uint lane, uint simd) {
    uint row = group.x * SL_MATVEC_ROWS + simd * DOT_ROWS;
    if (group.y >= step_rows(step) || row >= a.w.rows)
        return;
    weights w = make_weights(a.w, codes, scales, biases);
    float acc[DOT_ROWS];
    dot_rows<F, DOT_ROWS, 1, FMA>(acc, &w, row, x + ulong(group.y) * a.x_stride, lane);
    uint out = row + lane;
    if (lane >= DOT_ROWS || out >= w.rows)
        return;
    float v = pick_row<DOT_ROWS>(acc, lane);
    device float *to = y + ulong(group.y) * a.y_stride + out;
    if (fc_add)
        v = *to + v;
    if (fc_bias)
        v = v + bias[out];
    *to = v;
}

template <typename F>
[[kernel, max_total_threads_per_threadgroup(64)]] void
matvec(constant sl_matvec_args &a [[buffer(0)]], device const uchar *codes [[buffer(1)]],
       device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
       device const float *x [[buffer(4)]], device float *y [[buffer(5)]], device const float *bias [[buffer(6)]],
       device const int *step [[buffer(9)]], uint3 group [[threadgroup_position_in_grid]],
       uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    matvec_body<F, false>(a, codes, scales, biases, x, y, bias, step, group, lane, simd);
}

template <typename F>
[[kernel, max_total_threads_per_threadgroup(64)]] void
matvec_fma(constant sl_matvec_args &a [[buffer(0)]], device const uchar *codes [[buffer(1)]],
           device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
           device const float *x [[buffer(4)]], device float *y [[buffer(5)]], device const float *bias [[buffer(6)]],
           device const int *step [[buffer(9)]], uint3 group [[threadgroup_position_in_grid]],
           uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    matvec_body<F, true>(a, codes, scales, biases, x, y, bias, step, group, lane, simd);
}

template <typename F>
[[kernel, max_total_threads_per_threadgroup(64)]] void
gate_up(constant sl_matvec_args &a [[buffer(0)]], device const uchar *codes [[buffer(1)]],
        device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
        device const float *x [[buffer(4)]], device float *h [[buffer(5)]], device const uchar *up_codes [[buffer(6)]],
        device const uchar *up_scales [[buffer(7)]], device const uchar *up_biases [[buffer(8)]],
        device const int *step [[buffer(9)]], uint3 group [[threadgroup_position_in_grid]],
        uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    uint row = group.x * SL_MATVEC_ROWS + simd * DOT_ROWS;
    if (group.y >= step_rows(step) || row >= a.w.rows)
        return;
    weights w[2] = {make_weights(a.w, codes, scales, biases), make_weights(a.w, up_codes, up_scales, up_biases)};
    float acc[2 * DOT_ROWS];
    dot_rows<F, DOT_ROWS, 2, false>(acc, w, row, x + ulong(group.y) * a.x_stride, lane);
    uint out = row + lane;
    if (lane < DOT_ROWS && out < a.w.rows)
        h[ulong(group.y) * a.y_stride + out] =
            silu(pick_row<DOT_ROWS>(acc, lane)) * pick_row<DOT_ROWS>(acc + DOT_ROWS, lane);
}

#define X(format, align)                                                                                               \
    SL_KERNEL("matvec_" #format "_a" #align, matvec, format_##format<align>)                                           \
    SL_KERNEL("gate_up_" #format "_a" #align, gate_up, format_##format<align>)
SL_FORMATS(X)
#undef X

#ifndef SL_FMA_FORMATS
#define SL_FMA_FORMATS(X) X(affine4_f16, 16) X(affine4_bf16, 16) X(affine8_f16, 16) X(affine8_bf16, 16)
#endif
#define X(format, align) SL_KERNEL("matvec_fma_" #format "_a" #align, matvec_fma, format_##format<align>)
SL_FMA_FORMATS(X)
#undef X

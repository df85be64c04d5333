// rows: operations on rows that read each element about once. One threadgroup per row; sizes of threadgroups are the
// host's choice, multiples of 32.
//
//   embed_<format>_a<align>  dst[i] = row token[i] of the table, exactly as quant/ dequantises it; grid (any, rows), a
//                            thread takes 32 weights; bytes: the row. Slots: 1..3 table's parts, 4 dst, 5 step
//   gather_outs   dst[i] = src[out_row[i]]; grid (outs); 8 bytes per element. Slots: 1 src, 2 dst, 3 step
//   silu_mul      dst = silu(dst) * src; grid (any, rows * per_row); 12 bytes. Slots: 1 src, 2 dst, 3 step
//   rms_norm      dst = src / sqrt(mean(src^2) + eps) * weight; grid (rows); 16 bytes, 2 fma and 2 multiplications.
//                 dst may be src. Slots: 1 src, 2 dst, 3 weight[cols], 4 step
//   to_half       half rows for the matrix units: dst = half(src * 2^e) with the row's largest in [2^14, 2^15), so
//                 that neither 1e6 nor 1e-6 leaves half's range; unscale[row] = 2^-e; zeros from cols to padded; grid
//                 (rows * per_row); 10 bytes. Slots: 1 src, 2 dst, 3 unscale, 4 step
#include "blocks_gguf.h"

SL_SWITCH(fc_clamp, SL_FC_CLAMP)

// ---- sums and maxima over a threadgroup ----------------------------------------------------------------------------

// All threads call it and get the same; shared[32]. Lanes of unused SIMD-groups count as zero.
inline float group_sum(float v, threadgroup float *shared, uint simd, uint lane, uint simds) {
    v = simd_sum(v);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0)
        shared[simd] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return simd_sum(lane < simds ? shared[lane] : 0.0f);
}

// Of values >= 0.
inline float group_max(float v, threadgroup float *shared, uint simd, uint lane, uint simds) {
    v = simd_max(v);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0)
        shared[simd] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return simd_max(lane < simds ? shared[lane] : 0.0f);
}

// ---- embed ---------------------------------------------------------------------------------------------------------

// Two roundings, as in quant/: scale * code, + bias.
template <typename F> inline void put_run(device float *dst, uint c, uint cols, float scale, float bias, float4 codes) {
    float offset = F::offset;
    float4 v = codes;
    if (!F::plain)
        v = scale * (codes - offset) + bias;
    for (uint j = 0; j < 4; j++)
        if (c + j < cols)
            dst[c + j] = v[j];
}

template <typename F>
[[kernel]] void embed(constant sl_embed_args &a [[buffer(0)]], device const uchar *codes [[buffer(1)]],
                      device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
                      device float *dst [[buffer(4)]], device const int *step [[buffer(5)]],
                      uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
                      uint3 thread_at [[thread_position_in_threadgroup]], uint3 threads [[threads_per_threadgroup]]) {
    if (group.y >= step_rows(step))
        return;
    weights w = make_weights(a.w, codes, scales, biases);
    weight_row row = row_at(w, uint(step_token(step, group.y)));
    device float *to = dst + ulong(group.y) * a.dst_stride;
    uint units = unit_count(w);
    for (uint u = group.x * threads.x + thread_at.x; u < units; u += groups.x * threads.x) {
        typename F::unit q;
        F::load(q, row, u, w);
        float2 s = F::scale(q), b = F::bias(q);
        uint c = F::column(u);
        for (uint i = 0; i < 4; i++) {
            put_run<F>(to, c + 4 * i, w.cols, s.x, b.x, F::low(q, i));
            put_run<F>(to, c + F::gap + 4 * i, w.cols, s.y, b.y, F::high(q, i));
        }
    }
}

#define X(format, align) SL_KERNEL("embed_" #format "_a" #align, embed, format_##format<align>)
SL_FORMATS(X)
#undef X

// ---- copies and products -------------------------------------------------------------------------------------------

[[kernel]] void gather_outs(constant sl_rows_args &a [[buffer(0)]], device const float *src [[buffer(1)]],
                            device float *dst [[buffer(2)]], device const int *step [[buffer(3)]],
                            uint group [[threadgroup_position_in_grid]],
                            uint thread_at [[thread_position_in_threadgroup]],
                            uint threads [[threads_per_threadgroup]]) {
    if (group >= uint(step_head(step).outs))
        return;
    uint row = uint(step[step_head(step).out_row + group]);
    for (uint c = thread_at; c < a.cols; c += threads)
        dst[ulong(group) * a.dst_stride + c] = src[ulong(row) * a.src_stride + c];
}

[[kernel]] void silu_mul(constant sl_rows_args &a [[buffer(0)]], device const float *src [[buffer(1)]],
                         device float *dst [[buffer(2)]], device const int *step [[buffer(3)]],
                         uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
                         uint3 thread_at [[thread_position_in_threadgroup]],
                         uint3 threads [[threads_per_threadgroup]]) {
    if (group.y >= step_rows(step) * a.per_row)
        return;
    device const float *from = src + ulong(group.y) * a.src_stride;
    device float *to = dst + ulong(group.y) * a.dst_stride;
    for (uint c = group.x * threads.x + thread_at.x; c < a.cols; c += groups.x * threads.x)
        to[c] = fc_clamp ? clamped_swiglu(to[c], from[c], a.limit, a.alpha) : silu(to[c]) * from[c];
}

// ---- norm ----------------------------------------------------------------------------------------------------------

[[kernel]] void rms_norm(constant sl_rows_args &a [[buffer(0)]], device const float *src [[buffer(1)]],
                         device float *dst [[buffer(2)]], device const float *weight [[buffer(3)]],
                         device const int *step [[buffer(4)]], uint group [[threadgroup_position_in_grid]],
                         uint thread_at [[thread_position_in_threadgroup]], uint threads [[threads_per_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
                         uint simds [[simdgroups_per_threadgroup]]) {
    threadgroup float shared[32];
    if (group >= step_rows(step))
        return;
    device const float *from = src + ulong(group) * a.src_stride;
    device float *to = dst + ulong(group) * a.dst_stride;
    float sum = 0.0f, largest = 1.0f;
    for (uint c = thread_at; c < a.cols; c += threads)
        sum = fma(from[c], from[c], sum);
    sum = group_sum(sum, shared, simd, lane, simds);
    // squares that leave float's range (or NaN and infinities): scaled down by the largest first
    if (!(sum <= FLT_MAX)) {
        float m = 0.0f;
        for (uint c = thread_at; c < a.cols; c += threads)
            m = fabs(from[c]) > m ? fabs(from[c]) : m;
        largest = group_max(m, shared, simd, lane, simds);
        sum = 0.0f;
        for (uint c = thread_at; c < a.cols; c += threads)
            sum = fma(from[c] / largest, from[c] / largest, sum);
        sum = group_sum(sum, shared, simd, lane, simds);
    }
    float inv = 1.0f / sqrt(sum / float(a.cols) + a.eps / largest / largest);
    for (uint c = thread_at; c < a.cols; c += threads)
        to[c] = from[c] / largest * inv * weight[c];
}

// ---- half rows -----------------------------------------------------------------------------------------------------

[[kernel]] void to_half(constant sl_rows_args &a [[buffer(0)]], device const float *src [[buffer(1)]],
                        device half *dst [[buffer(2)]], device float *unscale [[buffer(3)]],
                        device const int *step [[buffer(4)]], uint group [[threadgroup_position_in_grid]],
                        uint thread_at [[thread_position_in_threadgroup]], uint threads [[threads_per_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
                        uint simds [[simdgroups_per_threadgroup]]) {
    threadgroup float shared[32];
    if (group >= step_rows(step) * a.per_row)
        return;
    device const float *from = src + ulong(group) * a.src_stride;
    device half *to = dst + ulong(group) * a.dst_stride;
    float m = 0.0f;
    for (uint c = thread_at; c < a.cols; c += threads)
        m = fabs(from[c]) > m ? fabs(from[c]) : m;
    float scale = half_scale(group_max(m, shared, simd, lane, simds));
    for (uint c = thread_at; c < a.padded; c += threads)
        to[c] = c < a.cols ? half(from[c] * scale) : half(0.0f);
    if (thread_at == 0)
        unscale[group] = 1.0f / scale;
}

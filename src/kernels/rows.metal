// rows: operations on rows that read each element about once. One threadgroup per row; sizes of threadgroups are the
// host's choice, multiples of 32.
//
//   embed_<format>_a<align>  dst[i] = row token[i] of the table, exactly as quant/ dequantises it; grid (any, rows), a
//                            thread takes 32 weights; bytes: the row. Slots: 1..3 table's parts, 4 dst, 5 step
//   gather_outs   dst[i] = src[out_row[i]]; grid (outs); 8 bytes per element. Slots: 1 src, 2 dst, 3 step
//   silu_mul      dst = silu(dst) * src; grid (any, rows * per_row); 12 bytes. Slots: 1 src, 2 dst, 3 step
//   silu_half     half(silu(gate) * src) as to_half makes it; grid (rows * per_row); 10 bytes. Slots: 1 src, 2 dst,
//                 3 unscale, 4 step, 5 gate
//   rms_norm      dst = src / sqrt(mean(src^2) + eps) * weight; grid (rows); 12 bytes, 1 fma and 2 multiplications.
//                 dst may be src. Where HALF is given also what to_half would make of dst (2 bytes more).
//                 Slots: 1 src, 2 dst, 3 weight[cols], 4 step, 5 half rows, 6 unscale
//   to_half       half rows for the matrix units: dst = half(src * 2^e) with the row's largest in [2^14, 2^15), so
//                 that neither 1e6 nor 1e-6 leaves half's range; unscale[row] = 2^-e; zeros from cols to padded; grid
//                 (rows * per_row); 6 bytes. Slots: 1 src, 2 dst, 3 unscale, 4 step
//
// The last three keep a row in registers, ROW_VALUES columns a thread, so that it is read once; what is wider is read
// again. A row is a chain of latencies: as many threads as leave few columns each.
#include "blocks_gguf.h"
#include "row.h"

SL_SWITCH(fc_clamp, SL_FC_CLAMP)
SL_SWITCH(fc_half, SL_FC_HALF)

// ---- half rows in registers -----------------------------------------------------------------------------------------

// Half rows of v and, beyond, of what is in memory.
inline void put_half(device half *to, device float *unscale, thread const float *v, device const float *rest, uint cols,
                     uint padded, threadgroup float *shared, thread const place &p) {
    float m = 0.0f;
#pragma unroll
    for (uint i = 0; i < ROW_VALUES; i++)
        m = larger(m, v[i]);
    for (uint c = beyond(p); c < cols; c += p.count)
        m = larger(m, rest[c]);
    float scale = half_scale(group_max(m, shared, p));
#pragma unroll
    for (uint i = 0; i < ROW_VALUES; i++) {
        uint c = p.at + i * p.count;
        if (c < padded)
            to[c] = c < cols ? half(v[i] * scale) : half(0.0f);
    }
    for (uint c = beyond(p); c < padded; c += p.count)
        to[c] = c < cols ? half(rest[c] * scale) : half(0.0f);
    if (p.at == 0)
        *unscale = 1.0f / scale;
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

inline float gated(constant sl_rows_args &a, float gate, float up) {
    return fc_clamp ? clamped_swiglu(gate, up, a.limit, a.alpha) : silu(gate) * up;
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
        to[c] = gated(a, to[c], from[c]);
}

[[kernel]] void silu_half(constant sl_rows_args &a [[buffer(0)]], device const float *src [[buffer(1)]],
                          device half *dst [[buffer(2)]], device float *unscale [[buffer(3)]],
                          device const int *step [[buffer(4)]], device float *gate [[buffer(5)]],
                          uint group [[threadgroup_position_in_grid]],
                          uint thread_at [[thread_position_in_threadgroup]],
                          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                          uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]) {
    threadgroup float shared[32];
    place p = {thread_at, threads, lane, simd, simds};
    if (group >= step_rows(step) * a.per_row)
        return;
    device const float *up = src + ulong(group) * a.src_stride;
    device float *mine = gate + ulong(group) * a.src_stride;
    float v[ROW_VALUES], u[ROW_VALUES];
    load_row(v, mine, a.cols, p);
    load_row(u, up, a.cols, p);
#pragma unroll
    for (uint i = 0; i < ROW_VALUES; i++)
        v[i] = p.at + i * p.count < a.cols ? gated(a, v[i], u[i]) : 0.0f;
    for (uint c = beyond(p); c < a.cols; c += threads)
        mine[c] = gated(a, mine[c], up[c]);
    put_half(dst + ulong(group) * a.dst_stride, unscale + group, v, mine, a.cols, a.padded, shared, p);
}

// ---- norm ----------------------------------------------------------------------------------------------------------

[[kernel]] void rms_norm(constant sl_rows_args &a [[buffer(0)]], device const float *src [[buffer(1)]],
                         device float *dst [[buffer(2)]], device const float *weight [[buffer(3)]],
                         device const int *step [[buffer(4)]], device half *halves [[buffer(5)]],
                         device float *unscale [[buffer(6)]], uint group [[threadgroup_position_in_grid]],
                         uint thread_at [[thread_position_in_threadgroup]], uint threads [[threads_per_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
                         uint simds [[simdgroups_per_threadgroup]]) {
    threadgroup float shared[NORM_SUMS + 1][32];
    place p = {thread_at, threads, lane, simd, simds};
    if (group >= step_rows(step))
        return;
    device const float *from = src + ulong(group) * a.src_stride;
    device float *to = dst + ulong(group) * a.dst_stride;
    float v[ROW_VALUES];
    load_row(v, from, a.cols, p);
    put_norm(to, v, from, weight, a.cols, a.eps, shared, p);
    if (fc_half)
        put_half(halves + ulong(group) * a.padded, unscale + group, v, to, a.cols, a.padded, shared[NORM_SUMS], p);
}

// ---- half rows -----------------------------------------------------------------------------------------------------

[[kernel]] void to_half(constant sl_rows_args &a [[buffer(0)]], device const float *src [[buffer(1)]],
                        device half *dst [[buffer(2)]], device float *unscale [[buffer(3)]],
                        device const int *step [[buffer(4)]], uint group [[threadgroup_position_in_grid]],
                        uint thread_at [[thread_position_in_threadgroup]], uint threads [[threads_per_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
                        uint simds [[simdgroups_per_threadgroup]]) {
    threadgroup float shared[32];
    place p = {thread_at, threads, lane, simd, simds};
    if (group >= step_rows(step) * a.per_row)
        return;
    device const float *from = src + ulong(group) * a.src_stride;
    float v[ROW_VALUES];
    load_row(v, from, a.cols, p);
    put_half(dst + ulong(group) * a.dst_stride, unscale + group, v, from, a.cols, a.padded, shared, p);
}

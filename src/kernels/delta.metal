// delta: Gated DeltaNet between a layer's input products and its output product (formulas: ops.h, sl_delta).
//
//   delta_conv     x = silu(causal convolution of every channel + bias), in place; the last kernel - 1 inputs stay in the
//                  sequence's state. A thread per channel goes over the rows of a sequence: grid (channels / 64, runs),
//                  threadgroup (64); 8 bytes and 2 * kernel operations per element.
//   delta_prepare  q and k to length 1 per head, q times 1 / sqrt(key_dim), in place. One SIMD-group per head:
//                  grid (2 * key_heads, rows), threadgroup (32); 12 bytes per element.
//   delta_<key_dim>  the recurrence: S = g S + k (b (v - g S^T k))^T, o = S^T q over the rows of a sequence that has
//                  fewer than long_rows (more: delta_chunk.metal); o takes v's place. A threadgroup (128 = 4 SIMD-groups)
//                  keeps 32 columns of a head's state in registers, a quarter of the key dimensions in each SIMD-group:
//                  grid (value_dim / 32, value_heads, runs). Bytes: the state read and written once per step, x once;
//                  operations: 6 per element of the state and row. Two barriers a row. Sums over key dimensions:
//                  ascending within a quarter, then the quarters, ascending.
//   delta_finish   dst = norm(o) * weight * silu(z) per head. One SIMD-group: grid (value_heads, rows), threadgroup (32).
//
// x: [row][q of all key heads | k of all key heads | v of all value heads]. The recurrence's order of addition depends
// on the number of rows in no way.
//
// Slots of conv: 1 x, 2 weight[channels][kernel], 3 bias[channels], 4 step, 15..30 slabs (written). Of prepare: 1 x,
// 2 step. Of the recurrence: 1 x, 2 beta, 3 alpha, 4 decay, 5 dt_bias, 6 step, 15..30 slabs (written). Of finish: 1 x,
// 2 z, 3 dst, 4 weight[value_dim], 5 step.
#include "delta.h"

SL_SWITCH(fc_bias, SL_FC_BIAS)
SL_SWITCH(fc_in_place, SL_FC_IN_PLACE)

enum { TAPS = 8, QUARTERS = 4 };

// ---- convolution ---------------------------------------------------------------------------------------------------

// Taps are right-aligned: of a narrower convolution the first are zeros, and so are their inputs.
[[kernel, max_total_threads_per_threadgroup(64)]] void
delta_conv(constant sl_delta_args &a [[buffer(0)]], device float *x [[buffer(1)]],
           device const float *weight [[buffer(2)]], device const float *bias [[buffer(3)]],
           device const int *step [[buffer(4)]], SL_SLAB_PARAMS(device uchar *),
           uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]]) {
    uint run = group.y, channel = group.x * 64 + thread_at, none = TAPS - a.width;
    if (run >= uint(step_head(step).runs) || channel >= a.channels)
        return;
    const slab_list<device uchar *> slabs = SL_SLABS;
    uint first = run_first(step, run), end = run_first(step, run + 1);
    device float *kept = run_state(slabs, step, run, a.layer) + a.conv_offset / 4 + channel;
    bool fresh = step_position(step, first) == 0;
    float tap[TAPS], in[TAPS];
#pragma unroll
    for (uint t = 0; t < TAPS; t++) {
        tap[t] = t >= none ? weight[ulong(channel) * a.width + (t - none)] : 0.0f;
        in[t] = t >= none && t < TAPS - 1 && !fresh ? kept[ulong(t - none) * a.channels] : 0.0f;
    }
    for (uint row = first; row < end; row++) {
        device float *at = x + ulong(row) * a.x_stride + channel;
        in[TAPS - 1] = *at;
        float sum = 0.0f;
#pragma unroll
        for (uint t = 0; t < TAPS; t++)
            sum = fma(tap[t], in[t], sum);
        *at = silu(fc_bias ? sum + bias[channel] : sum);
#pragma unroll
        for (uint t = 0; t + 1 < TAPS; t++)
            in[t] = in[t + 1];
    }
#pragma unroll
    for (uint t = 0; t + 1 < TAPS; t++)
        if (t >= none)
            kept[ulong(t - none) * a.channels] = in[t];
}

// ---- lengths -------------------------------------------------------------------------------------------------------

[[kernel, max_total_threads_per_threadgroup(32)]] void
delta_prepare(constant sl_delta_args &a [[buffer(0)]], device float *x [[buffer(1)]],
              device const int *step [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
              uint lane [[thread_index_in_simdgroup]]) {
    if (group.y >= uint(step_head(step).rows))
        return;
    device float *head = x + ulong(group.y) * a.x_stride + ulong(group.x) * a.key_dim;
    float sum = 0.0f;
    for (uint i = lane; i < a.key_dim; i += SL_SIMD)
        sum = fma(head[i], head[i], sum);
    float largest = 1.0f, least = 1e-6f;
    sum = simd_sum(sum);
    if (!(sum <= FLT_MAX)) { // squares that leave float's range: scaled down by the largest first
        float m = 0.0f;
        for (uint i = lane; i < a.key_dim; i += SL_SIMD)
            m = fabs(head[i]) > m ? fabs(head[i]) : m;
        largest = simd_max(m);
        sum = least = 0.0f;
        for (uint i = lane; i < a.key_dim; i += SL_SIMD)
            sum = fma(head[i] / largest, head[i] / largest, sum);
        sum = simd_sum(sum);
    }
    float inv = 1.0f / sqrt(sum + least);
    if (group.x < a.key_heads)
        inv *= 1.0f / sqrt(float(a.key_dim));
    for (uint i = lane; i < a.key_dim; i += SL_SIMD)
        head[i] = head[i] / largest * inv;
}

// ---- recurrence ----------------------------------------------------------------------------------------------------

template <uint K>
[[kernel, max_total_threads_per_threadgroup(128)]] void
delta(constant sl_delta_args &a [[buffer(0)]], device float *x [[buffer(1)]], device const float *beta [[buffer(2)]],
      device const float *alpha [[buffer(3)]], device const float *decay [[buffer(4)]],
      device const float *dt_bias [[buffer(5)]], device const int *step [[buffer(6)]],
      SL_SLAB_PARAMS(device uchar *), uint3 group [[threadgroup_position_in_grid]],
      uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    constexpr uint each = (K + QUARTERS - 1) / QUARTERS;
    threadgroup float kvs[128];
    threadgroup float sums[128];
    uint run = group.z, head = group.y, column = group.x * SL_SIMD + lane;
    if (run >= uint(step_head(step).runs))
        return;
    const slab_list<device uchar *> slabs = SL_SLABS;
    uint first = run_first(step, run), end = run_first(step, run + 1), i0 = simd * each;
    if (end - first >= a.long_rows)
        return;
    uint key_head = key_head_of(a, head);
    bool mine = column < a.value_dim, fresh = step_position(step, first) == 0;
    device float *state = run_state(slabs, step, run, a.layer) + ulong(head) * K * a.value_dim + column;
    float s[each], rate = decay[head], bias = dt_bias[head];
#pragma unroll
    for (uint i = 0; i < each; i++)
        s[i] = mine && !fresh && i0 + i < K ? state[ulong(i0 + i) * a.value_dim] : 0.0f;
    for (uint row = first; row < end; row++) {
        device float *at = x + ulong(row) * a.x_stride;
        device const float *q = at + ulong(key_head) * K + i0, *k = q + ulong(a.key_heads) * K;
        device float *v = at + 2ul * a.key_heads * K + ulong(head) * a.value_dim + column;
        float g = decay_of(rate, bias, alpha[ulong(row) * a.alpha_stride + head]);
        float b = sigmoid(beta[ulong(row) * a.beta_stride + head]), kv = 0.0f, o = 0.0f;
        float value = mine ? *v : 0.0f;
#pragma unroll
        for (uint i = 0; i < each; i++)
            if (i0 + i < K)
                kv = fma(k[i], s[i], kv);
        kvs[simd * SL_SIMD + lane] = kv;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        kv = ((kvs[lane] + kvs[lane + 32]) + kvs[lane + 64]) + kvs[lane + 96];
        float update = b * fma(-g, kv, value);
#pragma unroll
        for (uint i = 0; i < each; i++) {
            if (i0 + i < K) {
                s[i] = fma(k[i], update, s[i] * g);
                o = fma(q[i], s[i], o);
            }
        }
        sums[simd * SL_SIMD + lane] = o;
        threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device); // all have read v
        if (simd == 0 && mine)
            *v = ((sums[lane] + sums[lane + 32]) + sums[lane + 64]) + sums[lane + 96];
    }
#pragma unroll
    for (uint i = 0; i < each; i++)
        if (mine && i0 + i < K)
            state[ulong(i0 + i) * a.value_dim] = s[i];
}

// What is instantiated: 128, or what the host defines SL_DELTA_KEY to be (up to 256).
#ifndef SL_DELTA_KEY
#define SL_DELTA_KEY 128
#endif
#define SL_DELTA(key)     SL_KERNEL("delta_" #key, delta, key)
#define SL_DELTA_ONE(key) SL_DELTA(key)
SL_DELTA_ONE(SL_DELTA_KEY)

// ---- gated norm ----------------------------------------------------------------------------------------------------

// z may be dst (fc_in_place).
[[kernel, max_total_threads_per_threadgroup(32)]] void
delta_finish(constant sl_delta_args &a [[buffer(0)]], device const float *x [[buffer(1)]],
             device const float *z [[buffer(2)]], device float *dst [[buffer(3)]],
             device const float *weight [[buffer(4)]], device const int *step [[buffer(5)]],
             uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    uint row = group.y, head = group.x;
    if (row >= uint(step_head(step).rows))
        return;
    device const float *o =
        x + ulong(row) * a.x_stride + 2ul * a.key_heads * a.key_dim + ulong(head) * a.value_dim;
    device float *to = dst + ulong(row) * a.dst_stride + ulong(head) * a.value_dim;
    device const float *by = fc_in_place ? to : z + ulong(row) * a.z_stride + ulong(head) * a.value_dim;
    float sum = 0.0f;
    for (uint c = lane; c < a.value_dim; c += SL_SIMD)
        sum = fma(o[c], o[c], sum);
    float inv = 1.0f / sqrt(simd_sum(sum) / float(a.value_dim) + a.norm_eps);
    for (uint c = lane; c < a.value_dim; c += SL_SIMD)
        to[c] = o[c] * inv * weight[c] * silu(by[c]);
}

// attention_prepare: what comes before attention.
//
//   rope_table               cos_sin[row][dims]: cos of the row's angles, then sin; angle = position * inv_freq[i], a
//                            float product; all layers of a rotation share it. Grid (rows), any threads.
//                            Slots: 1 inv_freq[dims / 2], 2 cos_sin, 3 step
//   attention_prepare_<kv>   q and k normed per head and rotated, in place; k and v appended to the pages. One
//                            SIMD-group per head: grid (heads + planes * kv_heads, rows), threadgroup (32); about 12
//                            bytes and 6 operations per element. The rotation takes rope_dims of a head from
//                            rope_first on, pairs (i, i + dims / 2) or, interleaved, (2i, 2i + 1). v is not read
//                            where pages have one plane.
//                            Slots: 1 q, 2 k, 3 v, 4 q_norm, 5 k_norm, 6 cos_sin, 7 step, 15..30 slabs (written)
#include "prepare.h"

[[kernel]] void rope_table(constant sl_attention_args &a [[buffer(0)]], device const float *inv_freq [[buffer(1)]],
                           device float *cos_sin [[buffer(2)]], device const int *step [[buffer(3)]],
                           uint group [[threadgroup_position_in_grid]],
                           uint thread_at [[thread_position_in_threadgroup]],
                           uint threads [[threads_per_threadgroup]]) {
    if (group >= uint(step_head(step).rows))
        return;
    float position = float(step_position(step, group));
    uint half_dims = a.rope_dims / 2;
    device float *to = cos_sin + ulong(group) * a.rope_dims;
    for (uint i = thread_at; i < half_dims; i += threads) {
        float angle = position * inv_freq[i];
        to[i] = precise::cos(angle) * a.rope_scale;
        to[half_dims + i] = precise::sin(angle) * a.rope_scale;
    }
}

// One head in place.
inline void prepare_head(device float *x, device const float *weight, bool norm, constant sl_attention_args &a,
                         device const float *cos_sin, uint lane) {
    float inv = norm ? head_inverse(x, a.head_dim, a.eps, lane) : 1.0f;
    simdgroup_barrier(mem_flags::mem_device); // all have read before anyone writes
    uint dims = fc_rope ? a.rope_dims : 0, pairs = dims / 2;
    uint stride = fc_interleaved ? 2 : 1, apart = fc_interleaved ? 1 : pairs;
    for (uint i = lane; i < pairs; i += SL_SIMD) {
        uint d = a.rope_first + i * stride;
        float c = cos_sin[i], s = cos_sin[pairs + i];
        float u = normed(x, weight, d, norm, inv), v = normed(x, weight, d + apart, norm, inv);
        x[d] = u * c - v * s;
        x[d + apart] = v * c + u * s;
    }
    for (uint d = lane; norm && d < a.head_dim; d += SL_SIMD)
        if (d - a.rope_first >= dims) // before them or behind
            x[d] = normed(x, weight, d, norm, inv);
    simdgroup_barrier(mem_flags::mem_device);
}

template <typename KV>
[[kernel, max_total_threads_per_threadgroup(32)]] void
attention_prepare(constant sl_attention_args &a [[buffer(0)]], device float *q [[buffer(1)]],
                  device float *k [[buffer(2)]], device const float *v [[buffer(3)]],
                  device const float *q_norm [[buffer(4)]], device const float *k_norm [[buffer(5)]],
                  device const float *cos_sin [[buffer(6)]], device const int *step [[buffer(7)]],
                  SL_SLAB_PARAMS(device uchar *), uint3 group [[threadgroup_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {
    uint row = group.y, head = group.x;
    if (row >= uint(step_head(step).rows))
        return;
    device const float *rotation = cos_sin + ulong(row) * a.rope_dims;
    if (head < a.heads) {
        device float *x = q + ulong(row) * a.q_stride + ulong(head) * a.head_stride;
        prepare_head(x, q_norm, fc_norm_q, a, rotation, lane);
        return;
    }
    head -= a.heads;
    bool value = head >= a.kv_heads;
    head -= value ? a.kv_heads : 0;
    if (!value)
        prepare_head(k + ulong(row) * a.k_stride + ulong(head) * a.head_dim, k_norm, fc_norm_k, a, rotation, lane);
    device const float *from = value ? v + ulong(row) * a.v_stride : k + ulong(row) * a.k_stride;
    from += ulong(head) * a.head_dim;
    const slab_list<device uchar *> slabs = SL_SLABS;
    uint position = uint(step_position(step, row));
    ulong block = page_block(step_pages(step, row), position);
    device uchar *to = page_at(a, slabs, block, head, value ? value_plane(a) : KV_K) + (position % SL_KV_PAGE) * a.head_bytes;
    for (uint d = lane; d < a.head_dim; d += SL_SIMD)
        KV::store(to, d, from[d]);
}

#define X(kv) SL_KERNEL("attention_prepare_" #kv, attention_prepare, kv_##kv)
SL_KV_FORMATS(X)
#undef X

// attention_decode: few rows attend over their paged keys and values.
//
//   attention_decode_<kv>_<head_dim>  partial results of splits of 512 tokens, cut at absolute positions
//   attention_combine                 splits merged in ascending order, the sink last, times sigmoid(gate):
//                                     dst[row][heads * value_dim]
//
// head_dim: any multiple of 4 up to 576. Values have as many dimensions, or are the first value_dim of the keys, in
// pages of one plane (MLA: 576 and 512, one kv head for all query heads).
//
// One threadgroup (128 = 4 SIMD-groups) serves SL_DECODE_HEADS (8; 4 for heads of 129 to 256) query heads of a kv head
// for one split: grid (splits, kv_heads * tiles of its query heads, rows); splits beyond the row's position, or before
// its window, return at once. Blocks of 32 tokens go round the SIMD-groups, which keep running softmaxes of their own
// and merge at the end, ascending: no barrier in between. Scores: 4 lanes per token share its key, 16 bytes each; then a
// lane per token for the softmax; then a lane per 4 dimensions for the values. So the order of addition depends on
// positions only.
//
// Bytes: K and V once per 8 (4) query heads of a kv head. Operations: 2 per dimension of keys and of values, token and
// query head. Threadgroup memory: 24 KiB; 30 KiB at 576.
//
// partial: [row][head][split][value_dim + 2], the last two maximum and sum; sum 0 is empty.
//
// Slots of decode: 1 q, 2 partial, 3 step, 15..30 slabs. Of combine, grid (heads, rows): 1 partial, 2 dst, 3 step,
// 4 gate, 5 sinks[heads].
#include "pages.h"

SL_SWITCH(fc_gate, SL_FC_GATE)
SL_SWITCH(fc_sinks, SL_FC_SINKS)

enum { SIMDS = SL_ATTENTION_THREADS / SL_SIMD, BLOCK = 32 };

// Memory of a threadgroup over keys of D and values of V dimensions, H heads at a time.
template <uint D, uint V, uint H> struct decode_memory {
    static constant constexpr uint merged = V <= 256 ? H : 1; // heads whose sums are there at once
    float4 q[H * D / 4];
    float p[SIMDS][H][BLOCK]; // scores, then their exponentials
    float4 acc[SIMDS][merged][V / 4];
    float max[SIMDS][H], sum[SIMDS][H];
};

// Running softmax of H heads over a SIMD-group's tokens; a lane holds dimensions 4 * lane + 128 * i.
template <uint V, uint H> struct running {
    static constant constexpr uint parts = (V + 127) / 128;
    float max[H], sum[H];
    float4 acc[H][parts];
};

// scores[h][t] of a block's tokens: lane = token * 4 + quarter, 8 tokens at a time.
template <uint D, uint H, typename KV>
inline void block_scores(threadgroup float (&scores)[H][BLOCK], threadgroup const float4 *q, device const uchar *k,
                         ulong head_bytes, uint tokens, float scale, uint lane) {
    uint quarter = lane & 3;
    for (uint t0 = 0; t0 < BLOCK; t0 += 8) {
        uint t = t0 + (lane >> 2);
        device const uchar *key = k + ulong(min(t, tokens - 1)) * head_bytes;
        float dot[H];
#pragma unroll
        for (uint h = 0; h < H; h++)
            dot[h] = 0.0f;
        for (uint d = 4 * quarter; d < D; d += 16) {
            float4 kv = KV::load4(key, d);
#pragma unroll
            for (uint h = 0; h < H; h++) {
                float4 m = q[(h * D + d) / 4] * kv;
                dot[h] += (m.x + m.y) + (m.z + m.w);
            }
        }
#pragma unroll
        for (uint h = 0; h < H; h++) {
            float s = dot[h] + simd_shuffle_xor(dot[h], 1);
            s += simd_shuffle_xor(s, 2);
            if (quarter == 0)
                scores[h][t] = s * scale;
        }
    }
}

// Takes the scores of the block's tokens [begin, tokens) into the running softmax and leaves their exponentials.
template <uint V, uint H>
inline void block_softmax(threadgroup float (&p)[H][BLOCK], thread running<V, H> &r, uint begin, uint tokens,
                          uint lane) {
    bool seen = lane >= begin && lane < tokens;
#pragma unroll
    for (uint h = 0; h < H; h++) {
        float first = p[h][begin], s = seen ? p[h][lane] : first;
        float m = simd_max(s);
        float max = r.sum[h] != 0.0f && r.max[h] > m ? r.max[h] : m;
        float keep = r.sum[h] != 0.0f ? exp(r.max[h] - max) : 0.0f;
        float e = seen ? exp(s - max) : 0.0f;
        r.sum[h] = r.sum[h] * keep + simd_sum(e);
        r.max[h] = max;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        p[h][lane] = e;
#pragma unroll
        for (uint i = 0; i < running<V, H>::parts; i++)
            r.acc[h][i] *= keep;
    }
}

template <uint V, uint H, typename KV>
inline void block_values(threadgroup const float (&p)[H][BLOCK], thread running<V, H> &r, device const uchar *v,
                         ulong head_bytes, uint begin, uint tokens, uint lane) {
    for (uint t = begin; t < tokens; t++) {
#pragma unroll
        for (uint i = 0; i < running<V, H>::parts; i++) {
            uint d = 4 * lane + 128 * i;
            if (d < V) {
                float4 value = KV::load4(v + t * head_bytes, d);
#pragma unroll
                for (uint h = 0; h < H; h++)
                    r.acc[h][i] = fma(float4(p[h][t]), value, r.acc[h][i]);
            }
        }
    }
}

// total <- total + part, for one value of the head; keeps are computed by the caller.
struct merge_factors {
    float max, total, part;
};

inline merge_factors merge(float max, float sum, float part_max) {
    merge_factors f;
    f.max = sum != 0.0f && max > part_max ? max : part_max;
    f.total = sum != 0.0f ? exp(max - f.max) : 0.0f;
    f.part = exp(part_max - f.max);
    return f;
}

// SIMD-groups' results of head h, whose sums are at `place`, in ascending order to `to`.
template <uint D, uint V, uint H>
inline void put_split(threadgroup const decode_memory<D, V, H> &m, uint h, uint place, device float *to,
                      uint thread_at) {
    for (uint d = thread_at; d < V; d += SL_ATTENTION_THREADS) {
        float max = 0.0f, sum = 0.0f, acc = 0.0f;
        for (uint s = 0; s < SIMDS; s++) {
            if (m.sum[s][h] == 0.0f)
                continue;
            merge_factors f = merge(max, sum, m.max[s][h]);
            acc = acc * f.total + m.acc[s][place][d / 4][d % 4] * f.part;
            sum = sum * f.total + m.sum[s][h] * f.part;
            max = f.max;
        }
        to[d] = acc;
        if (d == 0) {
            to[V] = max;
            to[V + 1] = sum;
        }
    }
}

template <uint D, uint V, uint H, typename KV>
[[kernel, max_total_threads_per_threadgroup(128)]] void
attention_decode(constant sl_attention_args &a [[buffer(0)]], device const float *q [[buffer(1)]],
                 device float *partial [[buffer(2)]], device const int *step [[buffer(3)]],
                 SL_SLAB_PARAMS(device const uchar *), uint3 group [[threadgroup_position_in_grid]],
                 uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                 uint simd [[simdgroup_index_in_threadgroup]]) {
    typedef decode_memory<D, V, H> memory;
    static_assert(sizeof(memory) <= 32768, "threadgroup memory");
    static_assert(D % 4 == 0 && V % 4 == 0, "heads of a multiple of 4");
    threadgroup memory m;
    uint heads = a.heads / a.kv_heads, tiles = (heads + H - 1) / H;
    uint row = group.z, kv_head = group.y / tiles, first_head = group.y % tiles * H;
    uint begin = group.x * SL_ATTENTION_SPLIT;
    if (row >= uint(step_head(step).rows) || begin > uint(step_position(step, row)))
        return;
    uint seen = window_first(a, uint(step_position(step, row)));
    if (begin + SL_ATTENTION_SPLIT <= seen)
        return;
    const slab_list<device const uchar *> slabs = SL_SLABS;
    device const int *pages = step_pages(step, row);
    uint end = min(begin + uint(SL_ATTENTION_SPLIT), uint(step_position(step, row)) + 1);
    uint head = kv_head * heads + first_head, count = min(heads - first_head, H);
    ulong head_bytes = a.head_bytes, stride = a.head_stride;
    float scale = a.scale;
    device const float *from = q + ulong(row) * a.q_stride + ulong(head) * a.head_stride;
    for (uint i = thread_at; i < H * D / 4; i += SL_ATTENTION_THREADS)
        m.q[i] = 4 * i < count * D ? float4(*(device const packed_float4 *)(from + 4 * i / D * stride + 4 * i % D))
                                   : float4(0.0f);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    running<V, H> r;
#pragma unroll
    for (uint h = 0; h < H; h++) {
        r.max[h] = r.sum[h] = 0.0f;
#pragma unroll
        for (uint i = 0; i < running<V, H>::parts; i++)
            r.acc[h][i] = float4(0.0f);
    }
    for (uint t = begin + simd * BLOCK; t < end; t += SIMDS * BLOCK) {
        if (t + BLOCK <= seen)
            continue;
        ulong block = page_block(pages, t);
        uint tokens = min(end - t, uint(BLOCK)), first = seen > t ? seen - t : 0;
        ulong inside = ulong(t % SL_KV_PAGE) * head_bytes;
        block_scores<D, H, KV>(m.p[simd], m.q, page_at(a, slabs, block, kv_head, KV_K) + inside, head_bytes, tokens,
                               scale, lane);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        block_softmax<V, H>(m.p[simd], r, first, tokens, lane);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        block_values<V, H, KV>(m.p[simd], r, page_at(a, slabs, block, kv_head, value_plane(a)) + inside, head_bytes,
                               first, tokens, lane);
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (lane == 0) {
#pragma unroll
        for (uint h = 0; h < H; h++) {
            m.max[simd][h] = r.max[h];
            m.sum[simd][h] = r.sum[h];
        }
    }
    constexpr uint merged = memory::merged;
#pragma unroll
    for (uint h = 0; h < H; h += merged) {
#pragma unroll
        for (uint j = 0; j < merged; j++) {
#pragma unroll
            for (uint i = 0; i < running<V, H>::parts; i++)
                if (4 * lane + 128 * i < V)
                    m.acc[simd][j][lane + 32 * i] = r.acc[h + j][i];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint j = 0; j < merged && h + j < count; j++) {
            ulong place = (ulong(row) * a.heads + head + h + j) * a.splits + group.x;
            put_split<D, V, H>(m, h + j, j, partial + place * (V + 2), thread_at);
        }
        if (h + merged < H)
            threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

#define SL_DECODE(kv, dim, values)                                                                                     \
    SL_KERNEL("attention_decode_" #kv "_" #dim, attention_decode, dim, values, SL_DECODE_HEADS(dim), kv_##kv)
#ifdef SL_ATTENTION_DIM
#ifndef SL_ATTENTION_VALUES
#define SL_ATTENTION_VALUES SL_ATTENTION_DIM
#endif
#define SL_DECODE_ONE(kv, dim, values) SL_DECODE(kv, dim, values)
#define X(kv)                          SL_DECODE_ONE(kv, SL_ATTENTION_DIM, SL_ATTENTION_VALUES)
#else
#define X(kv) SL_DECODE(kv, 64, 64) SL_DECODE(kv, 128, 128) SL_DECODE(kv, 256, 256) SL_DECODE(kv, 576, 512)
#endif
SL_KV_FORMATS(X)
#undef X

// Splits merged in ascending order: what each counts for is known before the sums begin, a lane for each of 32.
[[kernel]] void attention_combine(constant sl_attention_args &a [[buffer(0)]],
                                  device const float *partial [[buffer(1)]], device float *dst [[buffer(2)]],
                                  device const int *step [[buffer(3)]], device const float *gate [[buffer(4)]],
                                  device const float *sinks [[buffer(5)]], uint3 group [[threadgroup_position_in_grid]],
                                  uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
                                  uint simds [[simdgroups_per_threadgroup]]) {
    uint row = group.y, head = group.x, dim = a.value_dim;
    if (row >= uint(step_head(step).rows))
        return;
    uint position = uint(step_position(step, row)), splits = position / SL_ATTENTION_SPLIT + 1;
    uint first = window_first(a, position) / SL_ATTENTION_SPLIT;
    device const float *from = partial + (ulong(row) * a.heads + head) * a.splits * (dim + 2);
    float top = from[ulong(first) * (dim + 2) + dim];
    for (uint s = first + lane; s < splits; s += SL_SIMD)
        top = max(top, from[ulong(s) * (dim + 2) + dim]);
    top = simd_max(top);
    float by = 1.0f, more = 0.0f;
    if (fc_sinks) {
        sink_factors f = sink_join(top, sinks[head]);
        by = f.keep;
        more = f.gain;
    }
    for (uint first_dim = simd * SL_SIMD; first_dim < dim; first_dim += simds * SL_SIMD) {
        uint d = min(first_dim + lane, dim - 1);
        float sum = 0.0f, acc = 0.0f;
        for (uint s = first; s < splits; s += SL_SIMD) {
            uint mine = min(s + lane, splits - 1), n = min(splits - s, uint(SL_SIMD));
            device const float *p = from + ulong(mine) * (dim + 2) + dim;
            float factor = exp(p[0] - top);
            sum += s + lane < splits ? p[1] * factor : 0.0f;
#pragma unroll 8
            for (uint i = 0; i < n; i++)
                acc = fma(from[ulong(s + i) * (dim + 2) + d], simd_shuffle(factor, ushort(i)), acc);
        }
        float v = acc * by / (simd_sum(sum) * by + more);
        if (first_dim + lane < dim) {
            float g = fc_gate ? sigmoid(gate[ulong(row) * a.gate_stride + ulong(head) * a.head_stride + d]) : 1.0f;
            dst[ulong(row) * a.dst_stride + ulong(head) * dim + d] = v * g;
        }
    }
}

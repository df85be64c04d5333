// attention_decode: few rows attend over their paged keys and values.
//
//   attention_decode_<kv>_<head_dim>  partial results of splits of 512 tokens, cut at absolute positions
//   attention_combine                 splits merged in ascending order, the sink last, times sigmoid(gate):
//                                     dst[row][heads * head_dim]
//
// head_dim: any multiple of 16 up to 256.
//
// One threadgroup (128 = 4 SIMD-groups) serves all query heads of a kv head for one split: grid (splits, kv_heads,
// rows); splits beyond the row's position, or before its window, return at once. Heads are taken 8 (4 above 128) at a
// time. Blocks of 32 tokens
// go round the SIMD-groups, which keep running softmaxes of their own and merge at the end, ascending: no barrier in
// between. Scores: 4 lanes per token share its key, 16 bytes each; then a lane per token for the softmax; then a lane
// per 4 dimensions for the values. So the order of addition depends on positions only.
//
// Bytes: K and V once per 8 (4) query heads of a kv head. Operations: 4 per dimension, token and query head.
// Threadgroup memory: 24 KiB.
//
// partial: [row][head][split][head_dim + 2], the last two maximum and sum; sum 0 is empty.
//
// Slots of decode: 1 q, 2 partial, 3 step, 15..30 slabs. Of combine, grid (heads, rows): 1 partial, 2 dst, 3 step,
// 4 gate, 5 sinks[heads].
#include "pages.h"

SL_SWITCH(fc_gate, SL_FC_GATE)
SL_SWITCH(fc_sinks, SL_FC_SINKS)

enum { SIMDS = SL_ATTENTION_THREADS / SL_SIMD, BLOCK = 32 };

// Memory of a threadgroup over D dimensions and H heads at a time.
template <uint D, uint H> struct decode_memory {
    float4 q[H * D / 4];
    float p[SIMDS][H][BLOCK]; // scores, then their exponentials
    float4 acc[SIMDS][H][D / 4];
    float max[SIMDS][H], sum[SIMDS][H];
};

// Running softmax of H heads over a SIMD-group's tokens; a lane holds dimensions 4 * lane + 128 * i.
template <uint D, uint H> struct running {
    static constant constexpr uint parts = (D + 127) / 128;
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
template <uint D, uint H>
inline void block_softmax(threadgroup float (&p)[H][BLOCK], thread running<D, H> &r, uint begin, uint tokens,
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
        for (uint i = 0; i < running<D, H>::parts; i++)
            r.acc[h][i] *= keep;
    }
}

template <uint D, uint H, typename KV>
inline void block_values(threadgroup const float (&p)[H][BLOCK], thread running<D, H> &r, device const uchar *v,
                         ulong head_bytes, uint begin, uint tokens, uint lane) {
    for (uint t = begin; t < tokens; t++) {
#pragma unroll
        for (uint i = 0; i < running<D, H>::parts; i++) {
            uint d = 4 * lane + 128 * i;
            if (d < D) {
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

// SIMD-groups' results in ascending order to `to`.
template <uint D, uint H>
inline void put_split(threadgroup const decode_memory<D, H> &m, uint h, device float *to, uint thread_at) {
    for (uint d = thread_at; d < D; d += SL_ATTENTION_THREADS) {
        float max = 0.0f, sum = 0.0f, acc = 0.0f;
        for (uint s = 0; s < SIMDS; s++) {
            if (m.sum[s][h] == 0.0f)
                continue;
            merge_factors f = merge(max, sum, m.max[s][h]);
            acc = acc * f.total + m.acc[s][h][d / 4][d % 4] * f.part;
            sum = sum * f.total + m.sum[s][h] * f.part;
            max = f.max;
        }
        to[d] = acc;
        if (d == 0) {
            to[D] = max;
            to[D + 1] = sum;
        }
    }
}

template <uint D, uint H, typename KV>
[[kernel, max_total_threads_per_threadgroup(128)]] void
attention_decode(constant sl_attention_args &a [[buffer(0)]], device const float *q [[buffer(1)]],
                 device float *partial [[buffer(2)]], device const int *step [[buffer(3)]],
                 SL_SLAB_PARAMS(device const uchar *), uint3 group [[threadgroup_position_in_grid]],
                 uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                 uint simd [[simdgroup_index_in_threadgroup]]) {
    typedef decode_memory<D, H> memory;
    static_assert(sizeof(memory) <= 32768, "threadgroup memory");
    threadgroup memory m;
    uint row = group.z, kv_head = group.y, begin = group.x * SL_ATTENTION_SPLIT;
    if (row >= uint(step_head(step).rows) || begin > uint(step_position(step, row)))
        return;
    uint seen = window_first(a, uint(step_position(step, row)));
    if (begin + SL_ATTENTION_SPLIT <= seen)
        return;
    const slab_list<device const uchar *> slabs = SL_SLABS;
    device const int *pages = step_pages(step, row);
    uint end = min(begin + uint(SL_ATTENTION_SPLIT), uint(step_position(step, row)) + 1);
    uint heads = a.heads / a.kv_heads;
    ulong head_bytes = a.head_bytes, stride = a.head_stride;
    float scale = a.scale;
    for (uint h0 = 0; h0 < heads; h0 += H) {
        uint head = kv_head * heads + h0, count = min(heads - h0, H);
        // nobody reads q behind the last barrier of the loop, and acc is written behind the next
        device const float *from = q + ulong(row) * a.q_stride + ulong(head) * a.head_stride;
        for (uint i = thread_at; i < H * D / 4; i += SL_ATTENTION_THREADS)
            m.q[i] = 4 * i < count * D ? float4(*(device const packed_float4 *)(from + 4 * i / D * stride + 4 * i % D))
                                       : float4(0.0f);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        running<D, H> r;
#pragma unroll
        for (uint h = 0; h < H; h++) {
            r.max[h] = r.sum[h] = 0.0f;
#pragma unroll
            for (uint i = 0; i < running<D, H>::parts; i++)
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
            block_softmax<D, H>(m.p[simd], r, first, tokens, lane);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            block_values<D, H, KV>(m.p[simd], r, page_at(a, slabs, block, kv_head, KV_V) + inside, head_bytes, first,
                                   tokens, lane);
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
#pragma unroll
        for (uint h = 0; h < H; h++) {
#pragma unroll
            for (uint i = 0; i < running<D, H>::parts; i++)
                if (4 * lane + 128 * i < D)
                    m.acc[simd][h][lane + 32 * i] = r.acc[h][i];
            if (lane == 0) {
                m.max[simd][h] = r.max[h];
                m.sum[simd][h] = r.sum[h];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint h = 0; h < count; h++) {
            ulong place = (ulong(row) * a.heads + head + h) * a.splits + group.x;
            put_split<D, H>(m, h, partial + place * (D + 2), thread_at);
        }
    }
}

// Heads at a time: their queries and sums share the threadgroup's memory.
#define SL_DECODE(kv, dim)                                                                                             \
    SL_KERNEL("attention_decode_" #kv "_" #dim, attention_decode, dim, (dim <= 128 ? 8 : 4), kv_##kv)
#ifdef SL_ATTENTION_DIM
#define SL_DECODE_ONE(kv, dim) SL_DECODE(kv, dim)
#define X(kv)                  SL_DECODE_ONE(kv, SL_ATTENTION_DIM)
#else
#define X(kv) SL_DECODE(kv, 64) SL_DECODE(kv, 128) SL_DECODE(kv, 256)
#endif
SL_KV_FORMATS(X)
#undef X

[[kernel]] void attention_combine(constant sl_attention_args &a [[buffer(0)]],
                                  device const float *partial [[buffer(1)]], device float *dst [[buffer(2)]],
                                  device const int *step [[buffer(3)]], device const float *gate [[buffer(4)]],
                                  device const float *sinks [[buffer(5)]], uint3 group [[threadgroup_position_in_grid]],
                                  uint3 thread_at [[thread_position_in_threadgroup]],
                                  uint3 threads [[threads_per_threadgroup]]) {
    uint row = group.y, head = group.x, dim = a.head_dim;
    if (row >= uint(step_head(step).rows))
        return;
    uint position = uint(step_position(step, row)), splits = position / SL_ATTENTION_SPLIT + 1;
    uint first = window_first(a, position) / SL_ATTENTION_SPLIT;
    device const float *from = partial + (ulong(row) * a.heads + head) * a.splits * (dim + 2);
    device float *to = dst + ulong(row) * a.dst_stride + ulong(head) * dim;
    device const float *by = gate + ulong(row) * a.gate_stride + ulong(head) * a.head_stride;
    for (uint d = thread_at.x; d < dim; d += threads.x) {
        float max = 0.0f, sum = 0.0f, acc = 0.0f;
        for (uint s = first; s < splits; s++) {
            device const float *p = from + ulong(s) * (dim + 2);
            merge_factors f = merge(max, sum, p[dim]);
            acc = acc * f.total + p[d] * f.part;
            sum = sum * f.total + p[dim + 1] * f.part;
            max = f.max;
        }
        if (fc_sinks) {
            sink_factors f = sink_join(max, sinks[head]);
            acc = acc * f.keep;
            sum = sum * f.keep + f.gain;
        }
        float v = acc * (1.0f / sum);
        to[d] = fc_gate ? v * sigmoid(by[d]) : v;
    }
}

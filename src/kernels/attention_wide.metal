// attention_wide: prefill attention for heads wider than 256, and for values that are the first dimensions of the keys
// (MLA: keys of 576, values of 512, one kv head for all query heads).
//
//   attention_wide_<kv>_<head_dim>  dst[row][heads * value_dim], times sigmoid(gate)
//
// head_dim: any multiple of 4 up to 576.
//
// A threadgroup (128 = 4 SIMD-groups) takes a block of up to 16 rows of one sequence for one query head: grid (heads,
// blocks), and goes over the keys 16 at a time with a running softmax per query, as attention_prefill does. The keys of
// a step lie in threadgroup memory whole; each SIMD-group has a quarter of the dimensions, of q and of O, in registers:
// scores are four partial products, added in order of the dimensions. Where pages have one plane the values are in the
// memory of the keys already, so a latent is read once per 16 queries.
//
// Threadgroup memory: 32 * D of K or V, 5888 of S and P: 24 KiB at 576.
//
// Bytes: keys (and values, where they are apart) once per 16 queries. Operations: 2 per dimension of keys and of values,
// key and query, on the matrix units.
//
// Slots: 1 q, 2 dst, 3 step, 4 gate, 5 sinks[heads], 15..30 slabs.
#include "pages.h"
#include "tile.h"

SL_SWITCH(fc_gate, SL_FC_GATE)
SL_SWITCH(fc_sinks, SL_FC_SINKS)

enum {
    ROWS = SL_ATTENTION_ROWS,
    KEYS = 16,
    SIMDS = SL_ATTENTION_THREADS / SL_SIMD,
    S_STRIDE = KEYS + 4,
    P_STRIDE = KEYS + 8,
    QUERIES = ROWS / SIMDS // softmaxes of a SIMD-group
};

template <uint D> struct wide_memory {
    static constant constexpr uint stride = tile_padded<D>() + 8; // halves; other banks for other rows
    half4 kv[KEYS * stride / 4];       // q first, then K or V of a step
    float s[SIMDS][ROWS * S_STRIDE];   // partial scores; in the first, factors eight times; at the end fragments of O
    half p[ROWS * P_STRIDE];
    float unscale[ROWS];
};

// Queries to half, a SIMD-group per query; rows that do not exist are zeros.
template <uint D>
inline void stage_queries(threadgroup wide_memory<D> &m, constant sl_attention_args &a, device const float *q,
                          uint first, uint rows, uint head, uint simd, uint lane) {
    for (uint i = simd; i < ROWS; i += SIMDS) {
        device const float *from = q + ulong(first + min(i, rows - 1)) * a.q_stride + ulong(head) * a.head_stride;
        float largest = 0.0f;
        for (uint d = lane; d < D; d += SL_SIMD)
            largest = fabs(from[d]) > largest ? fabs(from[d]) : largest;
        float scale = half_scale(simd_max(largest));
        for (uint d = lane; d < tile_padded<D>() / 4; d += SL_SIMD)
            m.kv[i * (wide_memory<D>::stride / 4) + d] =
                i < rows && 4 * d < D ? half4(float4(*(device const packed_float4 *)(from + 4 * d)) * scale)
                                      : half4(0.0h);
        if (lane == 0)
            m.unscale[i] = a.scale / scale;
    }
}

// KEYS tokens of K or V; tokens behind the last are zeros, for their memory may hold anything.
template <uint D, typename KV>
inline void stage_tokens(threadgroup wide_memory<D> &m, device const uchar *from, ulong head_bytes, uint tokens,
                         uint thread_at) {
    constexpr uint quads = tile_padded<D>() / 4;
    for (uint i = thread_at; i < KEYS * quads; i += SL_ATTENTION_THREADS) {
        uint t = i / quads, d = i % quads * 4;
        m.kv[t * (wide_memory<D>::stride / 4) + d / 4] =
            t < tokens && d < D ? KV::load4_half(from + t * head_bytes, d) : half4(0.0h);
    }
}

// This SIMD-group's fragments of q.
template <uint D>
inline void load_queries(threadgroup const wide_memory<D> &m, thread tile_half *q, uint simd) {
    threadgroup const half *from = (threadgroup const half *)m.kv + simd * tiles_each<D>() * 16;
#pragma unroll
    for (uint n = 0; n < tiles_each<D>(); n++)
        if (has_tile<D>(simd, n))
            tile_load(q[n], from + n * 16, wide_memory<D>::stride);
}

// The part of S = Q K^T that comes of this SIMD-group's dimensions.
template <uint D> inline void score_part(threadgroup wide_memory<D> &m, thread tile_half *q, uint simd) {
    threadgroup const half *k = (threadgroup const half *)m.kv + simd * tiles_each<D>() * 16;
    tile_float s;
    tile_zero(s);
#pragma unroll
    for (uint n = 0; n < tiles_each<D>(); n++) {
        if (!has_tile<D>(simd, n))
            continue;
        tile_half kt;
        tile_load_transposed(kt, k + n * 16, wide_memory<D>::stride);
        tile_mma(s, q[n], kt);
    }
    tile_store(s, m.s[simd], S_STRIDE);
}

// Running softmax of the queries simd, simd + 4, ...: a lane per key, the upper half of the lanes idle. Leaves P, and
// factors in place of the first scores.
template <uint D>
inline void softmax_rows(threadgroup wide_memory<D> &m, constant sl_attention_args &a, thread float *max,
                         thread float *sum, uint first_key, uint position, uint simd, uint lane) {
    uint key = lane % KEYS;
#pragma unroll
    for (uint j = 0; j < QUERIES; j++) {
        uint i = simd + j * SIMDS, at = i * S_STRIDE + key;
        uint begin = window_first(a, position + i); // causal, and in the window; a row may see none of these keys
        bool seen = lane < KEYS && first_key + key <= position + i && first_key + key >= begin;
        uint one = begin > first_key ? begin - first_key : 0; // a lane that sees its key, if any does
        bool any = first_key + one <= position + i && one < KEYS;
        float v = (((m.s[0][at] + m.s[1][at]) + m.s[2][at]) + m.s[3][at]) * m.unscale[i];
        float other = simd_shuffle(v, ushort(any ? one : 0)), largest = simd_max(seen ? v : other);
        float top = sum[j] != 0.0f && (!any || max[j] > largest) ? max[j] : largest;
        float keep = sum[j] != 0.0f ? exp(max[j] - top) : 0.0f;
        half e = seen ? half(exp(v - top)) : half(0.0f);
        sum[j] = sum[j] * keep + simd_sum(float(e));
        max[j] = top;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        if (lane < KEYS)
            m.p[i * P_STRIDE + key] = e;
        if (lane < 8)
            m.s[0][i * S_STRIDE + lane] = keep;
    }
}

// O = factors * O + P V: this SIMD-group's fragments of 16 queries by 16 dimensions.
template <uint D, uint V>
inline void value_tiles(threadgroup wide_memory<D> &m, thread tile_float *o, uint simd) {
    threadgroup const half *v = (threadgroup const half *)m.kv + simd * tiles_each<V>() * 16;
    tile_rows keep;
    tile_half p;
    tile_rows_load(keep, m.s[0], S_STRIDE);
    tile_load(p, m.p, P_STRIDE);
#pragma unroll
    for (uint n = 0; n < tiles_each<V>(); n++) {
        if (!has_tile<V>(simd, n))
            continue;
        tile_half vt;
        tile_scale_rows(o[n], keep);
        tile_load_right(vt, v + n * 16, wide_memory<D>::stride);
        tile_mma(o[n], p, vt);
    }
}

template <uint D, uint V, typename KV>
[[kernel, max_total_threads_per_threadgroup(128)]] void
attention_wide(constant sl_attention_args &a [[buffer(0)]], device const float *q [[buffer(1)]],
               device float *dst [[buffer(2)]], device const int *step [[buffer(3)]],
               device const float *gate [[buffer(4)]], device const float *sinks [[buffer(5)]],
               SL_SLAB_PARAMS(device const uchar *), uint3 group [[threadgroup_position_in_grid]],
               uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
               uint simd [[simdgroup_index_in_threadgroup]]) {
    typedef wide_memory<D> memory;
    static_assert(sizeof(memory) <= 32768, "threadgroup memory");
    static_assert(D % 4 == 0 && V % 4 == 0, "heads of a multiple of 4");
    threadgroup memory m;
    if (group.y >= uint(step_head(step).blocks))
        return;
    device const int *block_row = step + step_head(step).block_row + group.y;
    uint first = uint(block_row[0]), rows = uint(block_row[1]) - first, head = group.x;
    uint kv_head = head / (a.heads / a.kv_heads), position = uint(step_position(step, first));
    const slab_list<device const uchar *> slabs = SL_SLABS;
    device const int *pages = step_pages(step, first);
    uint end = position + rows; // keys that any row sees
    tile_half queries[tiles_each<D>()];
    tile_float o[tiles_each<V>()];
    float max[QUERIES], sum[QUERIES];
#pragma unroll
    for (uint i = 0; i < tiles_each<V>(); i++)
        tile_zero(o[i]);
#pragma unroll
    for (uint i = 0; i < QUERIES; i++)
        max[i] = sum[i] = 0.0f;
    stage_queries<D>(m, a, q, first, rows, head, simd, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    load_queries<D>(m, queries, simd);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint t = window_first(a, position) / KEYS * KEYS; t < end; t += KEYS) {
        ulong block = page_block(pages, t);
        uint tokens = min(end - t, uint(KEYS));
        ulong inside = ulong(t % SL_KV_PAGE) * a.head_bytes;
        stage_tokens<D, KV>(m, page_at(a, slabs, block, kv_head, KV_K) + inside, a.head_bytes, tokens, thread_at);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        score_part<D>(m, queries, simd);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        softmax_rows<D>(m, a, max, sum, t, position, simd, lane);
        if (a.planes > 1)
            stage_tokens<D, KV>(m, page_at(a, slabs, block, kv_head, value_plane(a)) + inside, a.head_bytes, tokens,
                                thread_at);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        value_tiles<D, V>(m, o, simd);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
#pragma unroll
    for (uint j = 0; j < QUERIES; j++) {
        sink_factors f = {1.0f, 0.0f};
        if (fc_sinks)
            f = sink_join(max[j], sinks[head]);
        if (lane == 0)
            m.unscale[simd + j * SIMDS] = f.keep / (sum[j] * f.keep + f.gain);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // O goes out fragment by fragment, each SIMD-group through memory of its own
    threadgroup float *out = m.s[simd];
#pragma unroll
    for (uint n = 0; n < tiles_each<V>(); n++) {
        if (!has_tile<V>(simd, n))
            continue;
        tile_store(o[n], out, S_STRIDE);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        uint d = (simd * tiles_each<V>() + n) * 16 + lane % 16;
        for (uint r = lane / 16; r < rows && d < V; r += SL_SIMD / 16) {
            float v = out[r * S_STRIDE + lane % 16] * m.unscale[r];
            if (fc_gate)
                v *= sigmoid(gate[ulong(first + r) * a.gate_stride + ulong(head) * a.head_stride + d]);
            dst[ulong(first + r) * a.dst_stride + ulong(head) * V + d] = v;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}

#define SL_WIDE(kv, dim, values) SL_KERNEL("attention_wide_" #kv "_" #dim, attention_wide, dim, values, kv_##kv)
#ifdef SL_ATTENTION_DIM
#ifndef SL_ATTENTION_VALUES
#define SL_ATTENTION_VALUES SL_ATTENTION_DIM
#endif
#define SL_WIDE_ONE(kv, dim, values) SL_WIDE(kv, dim, values)
#define X(kv)                        SL_WIDE_ONE(kv, SL_ATTENTION_DIM, SL_ATTENTION_VALUES)
#else
#define X(kv) SL_WIDE(kv, 576, 512)
#endif
SL_KV_FORMATS(X)
#undef X

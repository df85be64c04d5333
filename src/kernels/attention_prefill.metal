// attention_prefill: many consecutive rows of a sequence attend over its paged keys and values, on the matrix units.
//
//   attention_prefill_<kv>_<head_dim>_<heads>  dst[row][heads * head_dim], times sigmoid(gate)
//
// head_dim: any multiple of 4 up to 256, taken as one of 16 with zeros behind. Wider heads, and values that are a part of
// the keys: attention_wide.metal.
//
// A threadgroup (128 = 4 SIMD-groups) takes a block of up to 16 rows of one sequence (listed in the step buffer) for
// HEADS query heads of one kv head, which share what is staged: grid (heads / HEADS, blocks). It goes over the keys 32
// at a time with a running softmax per query: S = Q K^T and O += P V are products of 16x16 fragments (half in, float
// out). q is half with a power of two per query taken out; P lies in 0..1; K and V are as stored. Each SIMD-group keeps
// a quarter of the dimensions of O, in whole fragments (of a head of 80, two each but for the last). Keys before all
// rows' windows are left out.
//
// Threadgroup memory: 32 * D * HEADS of Q, 64 * D of K or V, 3584 * HEADS of S and P: 27 KiB at head_dim 256.
//
// Bytes: K and V once per 16 * HEADS queries. Operations: 4 per dimension, key and query, on the matrix units.
//
// Slots: 1 q, 2 dst, 3 step, 4 gate, 5 sinks[heads], 15..30 slabs.
#include "pages.h"
#include "tile.h"

SL_SWITCH(fc_gate, SL_FC_GATE)
SL_SWITCH(fc_sinks, SL_FC_SINKS)

enum {
    ROWS = SL_ATTENTION_ROWS,
    KEYS = 32,
    SIMDS = SL_ATTENTION_THREADS / SL_SIMD,
    S_STRIDE = KEYS + 4,
    P_STRIDE = KEYS + 8
};

template <uint D, uint HEADS> struct prefill_memory {
    static constant constexpr uint padded = tile_padded<D>();
    half4 q[HEADS * ROWS * padded / 4];
    half4 kv[KEYS * padded / 4];      // K, then V, of a step; at the end a part of O
    float s[HEADS * ROWS * S_STRIDE]; // scores; then, per row, factors eight times: how much the sums so far count
    half p[HEADS * ROWS * P_STRIDE];
    float unscale[HEADS * ROWS];
};

// Queries to half, a SIMD-group per query; rows that do not exist are zeros.
template <uint D, uint HEADS>
inline void stage_queries(threadgroup prefill_memory<D, HEADS> &m, constant sl_attention_args &a, device const float *q,
                          uint first, uint rows, uint head, uint simd, uint lane) {
    for (uint i = simd; i < HEADS * ROWS; i += SIMDS) {
        uint r = i % ROWS, h = i / ROWS;
        device const float *from = q + ulong(first + min(r, rows - 1)) * a.q_stride + ulong(head + h) * a.head_stride;
        float largest = 0.0f;
        for (uint d = lane; d < D; d += SL_SIMD)
            largest = fabs(from[d]) > largest ? fabs(from[d]) : largest;
        float scale = half_scale(simd_max(largest));
        for (uint d = lane; d < tile_padded<D>() / 4; d += SL_SIMD)
            m.q[i * (tile_padded<D>() / 4) + d] =
                r < rows && 4 * d < D ? half4(float4(*(device const packed_float4 *)(from + 4 * d)) * scale) : half4(0.0h);
        if (lane == 0)
            m.unscale[i] = a.scale / scale;
    }
}

// KEYS tokens of K or V; tokens behind the last are zeros, for their memory may hold anything.
template <uint D, typename KV>
inline void stage_tokens(threadgroup half4 *to, device const uchar *from, ulong head_bytes, uint tokens,
                         uint thread_at) {
    constexpr uint quads = tile_padded<D>() / 4;
    for (uint i = thread_at; i < KEYS * quads; i += SL_ATTENTION_THREADS) {
        uint t = i / quads, d = i % quads * 4;
        to[i] = t < tokens && d < D ? KV::load4_half(from + t * head_bytes, d) : half4(0.0h);
    }
}

// S = Q K^T: fragments of 16 queries by 16 keys, dealt out to the SIMD-groups.
template <uint D, uint HEADS> inline void score_tiles(threadgroup prefill_memory<D, HEADS> &m, uint simd) {
    for (uint f = simd; f < HEADS * (KEYS / 16); f += SIMDS) {
        uint h = f / (KEYS / 16), key = f % (KEYS / 16) * 16;
        constexpr uint stride = tile_padded<D>();
        threadgroup const half *q = (threadgroup const half *)m.q + h * ROWS * stride;
        threadgroup const half *k = (threadgroup const half *)m.kv + key * stride;
        tile_float s;
        tile_zero(s);
        for (uint d = 0; d < D; d += 16) {
            tile_half qt, kt;
            tile_load(qt, q + d, stride);
            tile_load_transposed(kt, k + d, stride);
            tile_mma(s, qt, kt);
        }
        tile_store(s, m.s + h * ROWS * S_STRIDE + key, S_STRIDE);
    }
}

// Running softmax of the queries simd, simd + 4, ...: a lane per key. Leaves P, and factors in place of the scores.
template <uint D, uint HEADS>
inline void softmax_rows(threadgroup prefill_memory<D, HEADS> &m, constant sl_attention_args &a, thread float *max,
                         thread float *sum, uint first_key, uint position, uint simd, uint lane) {
#pragma unroll
    for (uint j = 0; j < HEADS * ROWS / SIMDS; j++) {
        uint i = simd + j * SIMDS, r = i % ROWS;
        threadgroup float *s = m.s + i * S_STRIDE;
        uint begin = window_first(a, position + r); // causal, and in the window; a row may see none of these keys
        bool seen = first_key + lane <= position + r && first_key + lane >= begin;
        uint one = begin > first_key ? begin - first_key : 0; // a lane that sees its key, if any does
        bool any = first_key + one <= position + r && one < KEYS;
        float v = s[lane] * m.unscale[i];
        float largest = simd_max(seen ? v : s[any ? one : 0] * m.unscale[i]);
        float top = sum[j] != 0.0f && (!any || max[j] > largest) ? max[j] : largest;
        float keep = sum[j] != 0.0f ? exp(max[j] - top) : 0.0f;
        half e = seen ? half(exp(v - top)) : half(0.0f);
        sum[j] = sum[j] * keep + simd_sum(float(e));
        max[j] = top;
        m.p[i * P_STRIDE + lane] = e;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        if (lane < 8)
            s[lane] = keep;
    }
}

// O = factors * O + P V: this SIMD-group's fragments of 16 queries by 16 dimensions.
template <uint D, uint HEADS>
inline void value_tiles(threadgroup prefill_memory<D, HEADS> &m, thread tile_float *o, uint simd) {
    threadgroup const half *v = (threadgroup const half *)m.kv + simd * tiles_each<D>() * 16;
#pragma unroll
    for (uint h = 0; h < HEADS; h++) {
        tile_rows keep;
        tile_rows_load(keep, m.s + h * ROWS * S_STRIDE, S_STRIDE);
#pragma unroll
        for (uint n = 0; n < tiles_each<D>(); n++) {
            if (!has_tile<D>(simd, n))
                continue;
            thread tile_float &t = o[h * tiles_each<D>() + n];
            tile_scale_rows(t, keep);
            for (uint k = 0; k < KEYS; k += 16) {
                tile_half pt, vt;
                tile_load(pt, m.p + h * ROWS * P_STRIDE + k, P_STRIDE);
                tile_load_right(vt, v + k * tile_padded<D>() + n * 16, tile_padded<D>());
                tile_mma(t, pt, vt);
            }
        }
    }
}

template <uint D, uint HEADS, typename KV>
[[kernel, max_total_threads_per_threadgroup(128)]] void
attention_prefill(constant sl_attention_args &a [[buffer(0)]], device const float *q [[buffer(1)]],
                  device float *dst [[buffer(2)]], device const int *step [[buffer(3)]],
                  device const float *gate [[buffer(4)]], device const float *sinks [[buffer(5)]],
                  SL_SLAB_PARAMS(device const uchar *), uint3 group [[threadgroup_position_in_grid]],
                  uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                  uint simd [[simdgroup_index_in_threadgroup]]) {
    typedef prefill_memory<D, HEADS> memory;
    static_assert(sizeof(memory) <= 32768, "threadgroup memory");
    static_assert(D % 4 == 0, "heads of a multiple of 4");
    threadgroup memory m;
    if (group.y >= uint(step_head(step).blocks))
        return;
    device const int *block_row = step + step_head(step).block_row + group.y;
    uint first = uint(block_row[0]), rows = uint(block_row[1]) - first, head = group.x * HEADS;
    uint kv_head = head / (a.heads / a.kv_heads), position = uint(step_position(step, first));
    const slab_list<device const uchar *> slabs = SL_SLABS;
    device const int *pages = step_pages(step, first);
    uint end = position + rows; // keys that any row sees
    constexpr uint tiles = HEADS * tiles_each<D>();
    constexpr uint queries = HEADS * ROWS / SIMDS;
    tile_float o[tiles];
    float max[queries], sum[queries];
#pragma unroll
    for (uint i = 0; i < tiles; i++)
        tile_zero(o[i]);
#pragma unroll
    for (uint i = 0; i < queries; i++)
        max[i] = sum[i] = 0.0f;
    stage_queries<D, HEADS>(m, a, q, first, rows, head, simd, lane);
    for (uint t = window_first(a, position) / KEYS * KEYS; t < end; t += KEYS) {
        ulong block = page_block(pages, t);
        uint tokens = min(end - t, uint(KEYS));
        ulong inside = ulong(t % SL_KV_PAGE) * a.head_bytes;
        stage_tokens<D, KV>(m.kv, page_at(a, slabs, block, kv_head, KV_K) + inside, a.head_bytes, tokens, thread_at);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        score_tiles<D, HEADS>(m, simd);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        softmax_rows<D, HEADS>(m, a, max, sum, t, position, simd, lane);
        stage_tokens<D, KV>(m.kv, page_at(a, slabs, block, kv_head, value_plane(a)) + inside, a.head_bytes, tokens, thread_at);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        value_tiles<D, HEADS>(m, o, simd);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    // O goes out through the memory of K and V, one head's 16 rows by half of the dimensions at a time
#pragma unroll
    for (uint j = 0; j < queries; j++) {
        uint i = simd + j * SIMDS;
        sink_factors f = {1.0f, 0.0f};
        if (fc_sinks)
            f = sink_join(max[j], sinks[head + i / ROWS]);
        if (lane == 0)
            m.unscale[i] = f.keep / (sum[j] * f.keep + f.gain);
    }
    threadgroup float *out = (threadgroup float *)m.kv;
    for (uint h = 0; h < HEADS; h++) {
#pragma unroll
        for (uint n = 0; n < tiles_each<D>(); n++)
            if (has_tile<D>(simd, n))
                tile_store(o[h * tiles_each<D>() + n], out + (simd * tiles_each<D>() + n) * 16, memory::padded);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = thread_at; i < rows * D; i += SL_ATTENTION_THREADS) {
            float v = out[i / D * memory::padded + i % D] * m.unscale[h * ROWS + i / D];
            if (fc_gate)
                v *= sigmoid(gate[ulong(first + i / D) * a.gate_stride + ulong(head + h) * a.head_stride + i % D]);
            dst[ulong(first + i / D) * a.dst_stride + ulong(head + h) * D + i % D] = v;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

#define SL_PREFILL(kv, dim, heads)                                                                                     \
    SL_KERNEL("attention_prefill_" #kv "_" #dim "_" #heads, attention_prefill, dim, heads, kv_##kv)
#ifdef SL_ATTENTION_DIM
#define SL_PREFILL_ONE(kv, dim, heads) SL_PREFILL(kv, dim, heads)
#if SL_ATTENTION_DIM <= 128
#define X(kv) SL_PREFILL_ONE(kv, SL_ATTENTION_DIM, 1) SL_PREFILL_ONE(kv, SL_ATTENTION_DIM, 2)
#else
#define X(kv) SL_PREFILL_ONE(kv, SL_ATTENTION_DIM, 1)
#endif
#else
#define X(kv)                                                                                                          \
    SL_PREFILL(kv, 64, 1) SL_PREFILL(kv, 64, 2) SL_PREFILL(kv, 128, 1) SL_PREFILL(kv, 128, 2) SL_PREFILL(kv, 256, 1)
#endif
SL_KV_FORMATS(X)
#undef X

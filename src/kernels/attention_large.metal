// attention_large: as attention_prefill, for devices whose matrix units multiply fragments that lie in registers and that
// copy to threadgroup memory ahead of time: an NVIDIA GPU, and soft for tests. Metal has neither, and there scores must
// go through threadgroup memory to be seen by lanes.
//
//   attention_large_<kv>_<head_dim>  dst[row][heads * head_dim], times sigmoid(gate)
//
// head_dim: a multiple of 16 up to 256.
//
// A threadgroup (256 = 8 SIMD-groups) takes blocks of up to 16 rows (listed in the step buffer) for query heads of one
// kv head, a block and a head for each SIMD-group: as many heads as divide the kv head's and are at most 8 (H), and
// 8 / H blocks one after the other in the list. Grid (heads / H, ceil(blocks / (8 / H))); the last blocks come first, for
// they see the most keys. It goes over the keys 64 (32 from head_dim 144 on; half of them where threadgroup
// memory is small) at a time; blocks of different sequences
// one after the other. Queries, scores, exponentials and O never leave the registers: what a product leaves in a lane is
// what the next one wants there. While scores are made the values are on their way, while values are multiplied the next
// keys. q is half with a power of two per query taken out; exponentials are halves, and their sums those of the halves.
//
// Threadgroup memory: 4 * keys * (head_dim + 8): 34 KiB at 128, 33 at 256; half of it on soft.
//
// Bytes: K and V once per threadgroup's queries, at most 128. Operations: 4 per dimension, key and query, on the matrix
// units.
//
// Slots: of attention_prefill.metal.
#ifndef SL_TILE_FRAGMENTS
#define SL_TILE_FRAGMENTS
#endif
#include "pages.h"
#include "tile.h"

SL_SWITCH(fc_gate, SL_FC_GATE)
SL_SWITCH(fc_sinks, SL_FC_SINKS)

enum { ROWS = SL_ATTENTION_ROWS, SIMDS = SL_ATTENTION_LARGE_THREADS / SL_SIMD, PAIR = 0x3c003c00 /* two halves, 1 */ };

// Bytes of threadgroup memory; the host's to define.
#ifndef SL_ATTENTION_ROOM
#define SL_ATTENTION_ROOM 32768
#endif

template <uint D> struct large_size {
    static constant constexpr uint stride = D + 8; // halves; other banks for other keys
    static constant constexpr uint most = D <= 128 ? 64 : 32, keys = 4 * most * stride <= SL_ATTENTION_ROOM ? most : most / 2;
};

template <uint D> struct large_memory {
    alignas(16) half k[large_size<D>::keys * large_size<D>::stride];
    alignas(16) half v[large_size<D>::keys * large_size<D>::stride];
};

// A SIMD-group's rows of a block, for one head. Lane 4 r + c holds what belongs to rows r and r + 8.
struct large_rows {
    uint first, rows, position, head; // rows: 0 where there is no block for it
};

// What they see of the keys of a pass, and how far the lane's two rows have come.
template <uint D> struct large_running {
    tile_half q[D / 16];
    tile_float o[D / 16];
    float4 sum; // of exponentials: x of row r, z of r + 8
    float2 top, by; // the greatest score so far; what makes scores of products, in powers of 2
};

template <uint D>
inline void load_queries(thread large_running<D> &x, thread const large_rows &b, constant sl_attention_args &a,
                         device const float *q, uint lane) {
    float2 scale;
    device const float *from[2];
#pragma unroll
    for (uint i = 0; i < 2; i++) {
        uint r = min((lane >> 2) + 8 * i, max(b.rows, 1u) - 1);
        from[i] = q + ulong(b.first + r) * a.q_stride + ulong(b.head) * a.head_stride + 2 * (lane & 3);
        float most = 0.0f;
#pragma unroll
        for (uint d = 0; d < D; d += 8) {
            float2 v = fabs(float2(from[i][d], from[i][d + 1]));
            most = v.x > most ? v.x : most;
            most = v.y > most ? v.y : most;
        }
        most = max(most, simd_shuffle_xor(most, 1));
        scale[i] = half_scale(max(most, simd_shuffle_xor(most, 2)));
        x.by[i] = a.scale / scale[i] * M_LOG2E_F;
    }
#pragma unroll
    for (uint n = 0; n < D / 16; n++) {
        uint w[4];
#pragma unroll
        for (uint k = 0; k < 4; k++) {
            device const float *p = from[k & 1] + 16 * n + 8 * (k >> 1);
            bool there = (lane >> 2) + 8 * (k & 1) < b.rows;
            half2 v = there ? half2(float2(p[0], p[1]) * scale[k & 1]) : half2(0.0h);
            w[k] = as_type<uint>(v);
        }
        x.q[n].w = uint4(w[0], w[1], w[2], w[3]);
    }
}

// Keys or values of a step's tokens [low, high); zeros for others, whose memory may hold anything.
template <uint D, typename KV>
inline void stage_tokens(threadgroup half *to, device const uchar *from, ulong head_bytes, uint low, uint high,
                         uint thread_at) {
    constexpr uint pieces = D / 8, all = large_size<D>::keys * pieces, threads = SL_ATTENTION_LARGE_THREADS;
    bool whole = low == 0 && high >= large_size<D>::keys;
#pragma unroll
    for (uint n = 0; n < (all + threads - 1) / threads; n++) {
        uint i = thread_at + n * threads, t = i / pieces, d = i % pieces * 8;
        threadgroup half *piece = to + t * large_size<D>::stride + d;
        device const uchar *token = from + t * head_bytes;
        if (all % threads != 0 && i >= all)
            break;
        if (!whole && (t < low || t >= high))
            *(threadgroup uint4 *)piece = uint4(0);
        else if (KV::halves)
            copy_begin<16>(piece, token + 2 * d);
        else {
            ((threadgroup half4 *)piece)[0] = KV::load4_half(token, d);
            ((threadgroup half4 *)piece)[1] = KV::load4_half(token, d + 4);
        }
    }
    copy_commit();
}

// Scores of the step's keys, as products.
template <uint D>
inline void make_scores(thread tile_float (&s)[large_size<D>::keys / 16], thread large_running<D> &x,
                        threadgroup const half *k) {
    constexpr uint tiles = large_size<D>::keys / 16, stride = large_size<D>::stride;
#pragma unroll
    for (uint j = 0; j < tiles; j++)
        tile_zero(s[j]);
#pragma unroll
    for (uint n = 0; n < D / 16; n++)
#pragma unroll
        for (uint j = 0; j < tiles; j++) {
            tile_half kt;
            tile_load_transposed(kt, k + j * 16 * stride + n * 16, stride);
            tile_mma(s[j], x.q[n], kt);
        }
}

// Does row i of the lane's two see the key of its place n of a step? t: the step's first key.
inline bool sees_key(constant sl_attention_args &a, thread const large_rows &b, uint t, uint i, uint n, uint lane) {
    uint row = b.position + (lane >> 2) + 8 * i, key = t + 8 * (n >> 1) + 2 * (lane & 3) + (n & 1);
    return key <= row && key >= window_first(a, row);
}

// The scores of keys that a row does not see become less than all others.
template <uint TILES>
inline void hide_scores(thread tile_float (&s)[TILES], constant sl_attention_args &a, thread const large_rows &b, uint t,
                        uint lane) {
#pragma unroll
    for (uint i = 0; i < 2; i++)
#pragma unroll
        for (uint n = 0; n < 4 * TILES; n++)
            if (!sees_key(a, b, t, i, n, lane))
                s[n >> 2].m[n >> 1 & 1][2 * i + (n & 1)] = -FLT_MAX;
}

// And their exponentials 0, whatever came of them.
template <uint TILES>
inline void hide_exponentials(thread tile_half (&p)[TILES], constant sl_attention_args &a, thread const large_rows &b,
                              uint t, uint lane) {
#pragma unroll
    for (uint i = 0; i < 2; i++)
#pragma unroll
        for (uint n = 0; n < 4 * TILES; n++)
            if (!sees_key(a, b, t, i, n, lane))
                p[n >> 2].w[2 * (n >> 1 & 1) + i] &= (n & 1) != 0 ? 0x0000ffffu : 0xffff0000u;
}

// Takes scores into the running softmax; they become exponentials, as the left factors of the values.
template <uint D>
inline void take_scores(thread large_running<D> &x, thread const tile_float (&s)[large_size<D>::keys / 16],
                        thread tile_half (&p)[large_size<D>::keys / 16]) {
    constexpr uint tiles = large_size<D>::keys / 16;
    float2 keep;
#pragma unroll
    for (uint i = 0; i < 2; i++) {
        float top = -FLT_MAX;
#pragma unroll
        for (uint n = 0; n < 4 * tiles; n++)
            top = max(top, s[n >> 2].m[n >> 1 & 1][2 * i + (n & 1)]);
        top = max(top, simd_shuffle_xor(top, 1));
        top = max(top, simd_shuffle_xor(top, 2));
        top = max(top == -FLT_MAX ? top : top * x.by[i], x.top[i]);
        keep[i] = fast::exp2(x.top[i] - top);
        x.top[i] = top;
    }
#pragma unroll
    for (uint j = 0; j < tiles; j++)
#pragma unroll
        for (uint k = 0; k < 4; k++) { // k & 1: row r + 8, k >> 1: columns 8 further
            float2 e;
#pragma unroll
            for (uint n = 0; n < 2; n++)
                e[n] = fast::exp2(fma(s[j].m[k >> 1][2 * (k & 1) + n], x.by[k & 1], -x.top[k & 1]));
            p[j].w[k] = as_type<uint>(half2(e));
        }
    if (simd_any(keep.x != 1.0f || keep.y != 1.0f)) {
        float4 by = float4(keep.x, keep.x, keep.y, keep.y);
        x.sum *= by;
#pragma unroll
        for (uint n = 0; n < D / 16; n++) {
            x.o[n].m[0] *= by;
            x.o[n].m[1] *= by;
        }
    }
}

// O += P V
template <uint D>
inline void add_values(thread large_running<D> &x, thread tile_half (&p)[large_size<D>::keys / 16],
                       threadgroup const half *v) {
    constexpr uint stride = large_size<D>::stride;
#pragma unroll
    for (uint j = 0; j < large_size<D>::keys / 16; j++) {
        x.sum = simdgroup_mma_16x8x16(x.sum, p[j].w, uint2(PAIR, PAIR));
#pragma unroll
        for (uint n = 0; n < D / 16; n++) {
            tile_half vt;
            tile_load_right(vt, v + j * 16 * stride + n * 16, stride);
            tile_mma(x.o[n], p[j], vt);
        }
    }
}

template <uint D>
inline void put_rows(thread const large_running<D> &x, thread const large_rows &b, constant sl_attention_args &a,
                     device float *dst, device const float *gate, device const float *sinks, uint lane) {
#pragma unroll
    for (uint i = 0; i < 2; i++) {
        uint r = (lane >> 2) + 8 * i;
        if (r >= b.rows)
            continue;
        sink_factors f = {1.0f, 0.0f};
        if (fc_sinks)
            f = sink_join(x.top[i] * M_LN2_F, sinks[b.head]);
        float by = f.keep / (x.sum[2 * i] * f.keep + f.gain);
        ulong at = ulong(b.first + r);
        device float *to = dst + at * a.dst_stride + ulong(b.head) * D + 2 * (lane & 3);
        device const float *g = gate + at * a.gate_stride + ulong(b.head) * a.head_stride + 2 * (lane & 3);
#pragma unroll
        for (uint n = 0; n < D / 4; n++) {
            uint c = 8 * (n >> 1) + (n & 1);
            float v = x.o[n >> 2].m[n >> 1 & 1][2 * i + (n & 1)] * by;
            to[c] = fc_gate ? v * sigmoid(g[c]) : v;
        }
    }
}

// Query heads of a kv head that a threadgroup takes.
inline uint large_heads(constant sl_attention_args &a) {
    uint h = SIMDS, all = a.heads / a.kv_heads;
    while (all % h != 0)
        h--;
    return h;
}

template <uint D, typename KV>
[[kernel, max_total_threads_per_threadgroup(SL_ATTENTION_LARGE_THREADS)]] void
attention_large(constant sl_attention_args &a [[buffer(0)]], device const float *q [[buffer(1)]],
                device float *dst [[buffer(2)]], device const int *step [[buffer(3)]],
                device const float *gate [[buffer(4)]], device const float *sinks [[buffer(5)]],
                SL_SLAB_PARAMS(device const uchar *), uint3 group [[threadgroup_position_in_grid]],
                uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                uint simd [[simdgroup_index_in_threadgroup]]) {
    constexpr uint KEYS = large_size<D>::keys;
    static_assert(D % 16 == 0 && D <= 256, "heads of a multiple of 16");
    threadgroup large_memory<D> m;
    uint heads = large_heads(a), each = SIMDS / heads, blocks = uint(step_head(step).blocks);
    uint parts = (blocks + each - 1) / each;
    if (group.y >= parts)
        return;
    const slab_list<device const uchar *> slabs = SL_SLABS;
    ulong apart = value_plane(a) * a.plane_bytes; // from keys to their values
    device const int *block_row = step + step_head(step).block_row;
    device const int *seqs = step + step_head(step).seq;
    uint at = (parts - 1 - group.y) * each, behind = min(at + each, blocks), mine = at + simd / heads;
    large_rows b;
    b.head = group.x * heads + simd % heads;
    uint kv_head = group.x * heads / (a.heads / a.kv_heads);
    while (at < behind) { // blocks of one sequence
        uint first = uint(block_row[at]), next = at + 1;
        while (next < behind && seqs[block_row[next]] == seqs[first])
            next++;
        bool there = mine >= at && mine < next;
        b.first = there ? uint(block_row[mine]) : first;
        b.rows = there ? uint(block_row[mine + 1]) - b.first : 0;
        b.position = uint(step_position(step, b.first));
        uint begin = window_first(a, uint(step_position(step, first)));
        uint end = uint(step_position(step, first)) + uint(block_row[next]) - first; // keys that any row sees
        uint own = window_first(a, b.position), own_end = b.position + b.rows;
        device const int *pages = step_pages(step, first);
        large_running<D> x;
        load_queries(x, b, a, q, lane);
        x.sum = float4(0.0f);
        x.top = float2(-FLT_MAX);
#pragma unroll
        for (uint n = 0; n < D / 16; n++)
            tile_zero(x.o[n]);
        uint t = begin / KEYS * KEYS;
        device const uchar *keys = page_at(a, slabs, page_block(pages, t), kv_head, KV_K) + t % SL_KV_PAGE * a.head_bytes;
        threadgroup_barrier(mem_flags::mem_threadgroup); // the values of the sequence before have been read
        stage_tokens<D, KV>(m.k, keys, a.head_bytes, max(begin, t) - t, end - t, thread_at);
        for (; t < end; t += KEYS) {
            bool sees = t < own_end && t + KEYS > own, more = t + KEYS < end;
            bool part = t + KEYS > b.position + 1 || t < window_first(a, b.position + ROWS);
            tile_float s[KEYS / 16];
            tile_half p[KEYS / 16];
            ulong then = more ? page_block(pages, t + KEYS) : 0;
            copy_wait<0>();
            threadgroup_barrier(mem_flags::mem_threadgroup); // keys are there, values have been read
            stage_tokens<D, KV>(m.v, keys + apart, a.head_bytes, max(begin, t) - t, end - t, thread_at);
            if (sees) {
                make_scores(s, x, m.k);
                if (part)
                    hide_scores(s, a, b, t, lane);
                take_scores(x, s, p);
                if (part)
                    hide_exponentials(p, a, b, t, lane);
            }
            if (more)
                keys = page_at(a, slabs, then, kv_head, KV_K) + (t + KEYS) % SL_KV_PAGE * a.head_bytes;
            copy_wait<0>();
            threadgroup_barrier(mem_flags::mem_threadgroup); // values are there, keys have been read
            if (more)
                stage_tokens<D, KV>(m.k, keys, a.head_bytes, 0, end - t - KEYS, thread_at);
            if (sees)
                add_values(x, p, m.v);
        }
        put_rows(x, b, a, dst, gate, sinks, lane);
        at = next;
    }
}

#define SL_LARGE(kv, dim) SL_KERNEL("attention_large_" #kv "_" #dim, attention_large, dim, kv_##kv)
#ifdef SL_ATTENTION_DIM
#define SL_LARGE_ONE(kv, dim) SL_LARGE(kv, dim)
#define X(kv)                 SL_LARGE_ONE(kv, SL_ATTENTION_DIM)
#else
#define X(kv) SL_LARGE(kv, 64) SL_LARGE(kv, 128) SL_LARGE(kv, 256)
#endif
SL_KV_FORMATS(X)
#undef X

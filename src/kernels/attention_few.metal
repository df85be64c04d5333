// attention_few: few rows attend over their paged keys and values, for devices whose matrix units multiply fragments that
// lie in registers (simdgroup_mma_16x8x16) and whose threadgroups see what others wrote behind a fence: an NVIDIA GPU,
// and soft for tests. Metal has none of the first.
//
//   attention_few_<head_dim>  dst[row][heads * head_dim], times sigmoid(gate)
//
// Keys and values are halves, both of head_dim, a multiple of 64 up to 256. Where SL_FC_PREPARE is set it does what
// attention_prepare does, too: then every row is of a sequence of its own, and q and k stay as they are in memory.
//
// One threadgroup (SL_FEW_SIMDS SIMD-groups) serves up to SL_FEW_HEADS (8) query heads of a kv head for some pages of
// what the row sees: grid (splits, kv_heads * tiles of its query heads, rows). The splits that a row has are its own
// (few_splits): none up to SL_FEW_WHOLE pages, else as many as there may be, of SL_FEW_PAGES pages at least; the rest
// return at once. Blocks of 16 tokens go
// round the SIMD-groups, which keep running softmaxes of their own and merge at the end, ascending. A threadgroup that
// is the last one of a row's kv head to be done (counters) merges what the splits left, in ascending order.
//
// A product may take its dimensions and tokens in any order, so a lane loads 16 bytes of a key, of two tokens' or of
// four's values, and calls them what the fragment wants there: neither passes through threadgroup memory. A fragment has
// 16 rows and a kv head at most 8 queries here: the upper rows have q as halves, with a power of two per head taken out,
// the lower ones what halves cannot hold of it; the same with the exponentials. Their sums are exact to float.
//
// Bytes: K and V once per 8 query heads of a kv head. Operations: 2 products of fragments per 16 tokens and 8
// dimensions. Threadgroup memory: 40 * head_dim * SIMDS in slot 0, 36 * head_dim beside it.
//
// partial: [row of the launch][head][splits][head_dim + 4]: maximum and sum are behind the values. counters: [row of the launch][groups of y], 0
// before and after.
//
// Slots: 1 q, 2 partial, 3 step, 4 gate, 5 sinks[heads], 6 k, 7 v, 8 q_norm, 9 k_norm, 10 cos_sin, 11 dst, 12 counters,
// 15..30 slabs (written). Lane 4 r + c: r is a head, or a token, or eight dimensions; see below.
#include "prepare.h"

SL_SWITCH(fc_gate, SL_FC_GATE)
SL_SWITCH(fc_sinks, SL_FC_SINKS)
SL_SWITCH(fc_prepare, SL_FC_PREPARE)

// The host's to define, by what the device's threadgroup memory holds; these are soft's.
#ifndef SL_FEW_SIMDS
#define SL_FEW_SIMDS 2
#endif
// A row that sees no more pages is not split; another's splits have so many at least.
#ifndef SL_FEW_WHOLE
#define SL_FEW_WHOLE 4
#endif
#ifndef SL_FEW_PAGES
#define SL_FEW_PAGES 1
#endif

enum {
    SIMDS = SL_FEW_SIMDS,
    STEP = SL_FEW_SIMDS * 16, // tokens from a SIMD-group's block to its next
    THREADS = SIMDS * SL_SIMD,
    BLOCK = 16,
    HEADS = SL_FEW_HEADS,
    RUN = 20 // floats from 16 dimensions to the next: other banks
};

template <uint D> struct few_memory {
    uint4 q[D / 16][SL_SIMD]; // a lane's fragments
    half own[2][D];           // the row's own key and value
    float unscale[HEADS];
    float max[SIMDS][HEADS], sum[SIMDS][HEADS];
    uint last;
};

// Keys and values go to registers so many dimensions at a time.
template <uint D> struct few_size {
    static constant constexpr uint chunk = D % 128 == 0 ? 128 : 64, chunks = D / chunk;
    static constant constexpr uint head = D / 16 * RUN; // floats of a head's result in the memory of slot 0
};

// Running softmax of head r over a SIMD-group's tokens. acc[8 * g + t]: x and z are the two halves' sums of dimension
// 64 g + 16 c + t, y and w those of the dimension 8 further.
template <uint D> struct few_running {
    float max, sum; // sum: of this lane's tokens
    float4 acc[D / 8];
};

typedef device uchar *few_bytes;

inline uint4 load_piece(few_bytes p) {
    return *(device const uint4 *)p;
}
inline uint4 load_piece(threadgroup const uchar *p) {
    return *(threadgroup const uint4 *)p;
}

inline uint few_halves(float a, float b) {
    return as_type<uint>(half2(half(a), half(b)));
}
inline float few_rest(float a) {
    return a - float(half(a));
}
inline uint low_halves(uint a, uint b) {
    return (a & 0xffffu) | b << 16;
}
inline uint high_halves(uint a, uint b) {
    return a >> 16 | (b & 0xffff0000u);
}

// ---- queries, and the row's own key and value ---------------------------------------------------------------------

// A head by a SIMD-group, a lane for every 32nd dimension. Step 2 j + s of the scores multiplies dimensions 32 j + 8 c +
// 4 s and the next three.
template <uint D>
inline void stage_query(threadgroup few_memory<D> &m, constant sl_attention_args &a, device const float *q,
                        device const float *weight, device const float *cos_sin, bool there, uint head, uint lane) {
    float v[D / SL_SIMD], largest = 0.0f;
    float inv = fc_prepare && fc_norm_q ? head_inverse(q, D, a.eps, lane) : 1.0f;
#pragma unroll
    for (uint i = 0; i < D / SL_SIMD; i++) {
        uint d = lane + SL_SIMD * i;
        v[i] = fc_prepare ? prepared(q, weight, d, fc_norm_q, inv, a, cos_sin) : q[d];
        v[i] = there ? v[i] : 0.0f;
        largest = fabs(v[i]) > largest ? fabs(v[i]) : largest;
    }
    float scale = half_scale(simd_max(largest));
    if (lane == 0)
        m.unscale[head] = a.scale / scale;
#pragma unroll
    for (uint i = 0; i < D / SL_SIMD; i++) {
        threadgroup half *to = (threadgroup half *)&m.q[2 * i + (lane >> 2 & 1)][4 * head + (lane >> 3)] +
                               (lane & 1) + (lane & 2) * 2;
        to[0] = half(v[i] * scale);
        to[2] = half(few_rest(v[i] * scale));
    }
}

// The row's key (plane 0) or value: from the page, or new and to the page where `keep`. It is a block of its own either
// way, so that the bits are the same.
template <uint D>
inline void stage_own(threadgroup few_memory<D> &m, constant sl_attention_args &a, device const float *from,
                      device const float *weight, device const float *cos_sin, few_bytes page, uint plane, bool keep,
                      uint lane) {
    bool norm = fc_prepare && plane == 0 && fc_norm_k;
    float inv = norm ? head_inverse(from, D, a.eps, lane) : 1.0f;
#pragma unroll
    for (uint i = 0; i < D / SL_SIMD; i++) {
        uint d = lane + SL_SIMD * i;
        half v = !fc_prepare ? *(device const half *)(page + 2 * d)
                 : plane == 0 ? half(prepared(from, weight, d, norm, inv, a, cos_sin))
                              : half(from[d]);
        m.own[plane][d] = v;
        if (fc_prepare && keep)
            *(device half *)(page + 2 * d) = v;
    }
}

// ---- blocks -------------------------------------------------------------------------------------------------------

// Takes the scores of tokens first..end - 1 of a block's into the running softmax. Returns the exponentials' fragment.
template <uint D>
inline uint4 take_scores(thread few_running<D> &r, float4 s, uint first, uint end, uint lane) {
    uint t = 2 * (lane & 3);
    bool4 seen = bool4(t >= first && t < end, t + 1 >= first && t + 1 < end, t + 8 >= first && t + 8 < end,
                       t + 9 >= first && t + 9 < end);
    float top = r.max;
#pragma unroll
    for (uint i = 0; i < 4; i++)
        top = seen[i] && !(s[i] <= top) ? s[i] : top;
    top = max(top, simd_shuffle_xor(top, 1));
    top = max(top, simd_shuffle_xor(top, 2));
    float keep = exp(r.max - top);
    float4 e = exp(s - top);
    e = select(float4(0.0f), e, seen);
    r.sum = r.sum * keep + ((e.x + e.y) + (e.z + e.w));
    r.max = top;
    if (simd_any(keep != 1.0f)) {
#pragma unroll
        for (uint i = 0; i < D / 8; i++)
            r.acc[i] *= keep;
    }
    return uint4(few_halves(e.x, e.y), few_halves(few_rest(e.x), few_rest(e.y)), few_halves(e.z, e.w),
                 few_halves(few_rest(e.z), few_rest(e.w)));
}

// The keys of tokens r and r + 8 of a block: 16 bytes of each 64. at: their offsets, of this lane's quarter.
template <uint C, typename P>
inline void load_keys(thread uint4 (&k)[2][C / 32], P keys, thread const uint *at) {
#pragma unroll
    for (uint i = 0; i < 2; i++)
#pragma unroll
        for (uint j = 0; j < C / 32; j++)
            k[i][j] = load_piece(keys + at[i] + 64 * j);
}

// Scores of head r and tokens 2c, 2c + 1 (x, y) and the two behind 8 more (z, w), as sums of both halves.
template <uint D, uint C>
inline void add_scores(thread float4 (&s)[2], threadgroup const few_memory<D> &m, thread const uint4 (&k)[2][C / 32],
                       uint first, uint lane) {
#pragma unroll
    for (uint j = 0; j < C / 32; j++) {
        uint4 a = m.q[first + 2 * j][lane], b = m.q[first + 2 * j + 1][lane];
#pragma unroll
        for (uint i = 0; i < 2; i++) {
            s[i] = simdgroup_mma_16x8x16(s[i], a, k[i][j].xy);
            s[i] = simdgroup_mma_16x8x16(s[i], b, k[i][j].zw);
        }
    }
}

// The values of four tokens: dimensions 64 g + 8 r and the next seven.
template <uint C, typename P>
inline void load_values(thread uint4 (&v)[4][C / 64], P values, thread const uint *at) {
#pragma unroll
    for (uint i = 0; i < 4; i++)
#pragma unroll
        for (uint g = 0; g < C / 64; g++)
            v[i][g] = load_piece(values + at[i] + 128 * g);
}

// acc += e times the values
template <uint C>
inline void add_values(thread float4 *acc, uint4 e, thread const uint4 (&v)[4][C / 64]) {
#pragma unroll
    for (uint g = 0; g < C / 64; g++)
#pragma unroll
        for (uint w = 0; w < 4; w++) {
            uint4 t = uint4(v[0][g][w], v[1][g][w], v[2][g][w], v[3][g][w]);
            thread float4 *to = acc + 8 * g + 2 * w;
            to[0] = simdgroup_mma_16x8x16(to[0], e, uint2(low_halves(t.x, t.y), low_halves(t.z, t.w)));
            to[1] = simdgroup_mma_16x8x16(to[1], e, uint2(high_halves(t.x, t.y), high_halves(t.z, t.w)));
        }
}

// A block's tokens: where a key's 16 bytes are of two of them, the values' of four.
template <typename P> struct few_block {
    P keys, values;
    uint key[2], value[4]; // offsets
};

// Tokens t..t + 15 of a page; those that are not of [first, end) are read as the nearest one that is, for their memory
// may hold anything.
inline few_block<few_bytes> block_at(constant sl_attention_args &a, thread const slab_list<few_bytes> &slabs,
                                     ulong block, uint t, uint first, uint end, uint kv_head, uint lane) {
    few_block<few_bytes> x;
    x.keys = page_at(a, slabs, block, kv_head, KV_K);
    x.values = page_at(a, slabs, block, kv_head, value_plane(a));
    uint low = max(first, t) - t, high = min(end - t, uint(BLOCK)) - 1, head_bytes = uint(a.head_bytes);
    uint inside = t % SL_KV_PAGE, row = lane >> 2, pair = 2 * (lane & 3);
#pragma unroll
    for (uint i = 0; i < 2; i++)
        x.key[i] = (inside + clamp(row + 8 * i, low, high)) * head_bytes + 16 * (lane & 3);
#pragma unroll
    for (uint i = 0; i < 4; i++)
        x.value[i] = (inside + clamp(pair + (i & 1) + 8 * (i >> 1), low, high)) * head_bytes + 16 * row;
    return x;
}

// The row's own token, as a block of it alone.
template <uint D>
inline few_block<threadgroup const uchar *> own_block(threadgroup const few_memory<D> &m, uint lane) {
    few_block<threadgroup const uchar *> x;
    x.keys = (threadgroup const uchar *)m.own[0];
    x.values = (threadgroup const uchar *)m.own[1];
#pragma unroll
    for (uint i = 0; i < 2; i++)
        x.key[i] = 16 * (lane & 3);
#pragma unroll
    for (uint i = 0; i < 4; i++)
        x.value[i] = 16 * (lane >> 2);
    return x;
}

// Takes a block whose first chunk of keys is there; `next`'s are loaded while its values are multiplied.
template <uint D, typename P, typename N>
inline void take_block(thread few_running<D> &r, threadgroup const few_memory<D> &m,
                       thread uint4 (&k)[2][few_size<D>::chunk / 32], thread const few_block<P> &now,
                       thread const few_block<N> &next, float unscale, uint first, uint end, uint lane) {
    constexpr uint C = few_size<D>::chunk;
    float4 s[2] = {float4(0.0f), float4(0.0f)};
    uint4 v[4][C / 64];
    load_values<C>(v, now.values, now.value);
    add_scores<D, C>(s, m, k, 0, lane);
#pragma unroll
    for (uint c = 1; c < few_size<D>::chunks; c++) {
        load_keys<C>(k, now.keys + 2 * C * c, now.key);
        add_scores<D, C>(s, m, k, c * (C / 16), lane);
    }
    load_keys<C>(k, next.keys, next.key);
    float4 both = float4(s[0].x + s[0].z, s[0].y + s[0].w, s[1].x + s[1].z, s[1].y + s[1].w) * unscale;
    uint4 e = take_scores(r, both, first, end, lane);
    add_values<C>(r.acc, e, v);
#pragma unroll
    for (uint c = 1; c < few_size<D>::chunks; c++) {
        load_values<C>(v, now.values + 2 * C * c, now.value);
        add_values<C>(r.acc + c * (C / 8), e, v);
    }
}

// ---- results ------------------------------------------------------------------------------------------------------

// SIMD-groups' results to threadgroup memory: [simd][head][dimension, 16 in a run].
template <uint D>
inline void leave_results(threadgroup few_memory<D> &m, threadgroup float4 *room, thread const few_running<D> &r,
                          uint simd, uint lane) {
    float sum = r.sum + simd_shuffle_xor(r.sum, 1);
    sum += simd_shuffle_xor(sum, 2);
    if ((lane & 3) == 0) {
        m.max[simd][lane >> 2] = r.max;
        m.sum[simd][lane >> 2] = sum;
    }
    threadgroup float4 *own = room + ((simd * HEADS + (lane >> 2)) * few_size<D>::head + RUN * (lane & 3)) / 4;
#pragma unroll
    for (uint g = 0; g < D / 64; g++)
#pragma unroll
        for (uint t = 0; t < 8; t += 4) {
            thread const float4 *v = r.acc + 8 * g + t;
            own[RUN * g + t / 4] = float4(v[0].x + v[0].z, v[1].x + v[1].z, v[2].x + v[2].z, v[3].x + v[3].z);
            own[RUN * g + 2 + t / 4] = float4(v[0].y + v[0].w, v[1].y + v[1].w, v[2].y + v[2].w, v[3].y + v[3].w);
        }
}

struct few_sums {
    float4 acc;
    float top, sum;
};

// Four dimensions of head h, of all SIMD-groups in ascending order.
template <uint D>
inline few_sums merge_simds(threadgroup const few_memory<D> &m, threadgroup const float4 *room, uint h, uint quad) {
    few_sums x = {float4(0.0f), m.max[0][h], 0.0f};
    for (uint s = 1; s < SIMDS; s++)
        x.top = max(x.top, m.max[s][h]);
    for (uint s = 0; s < SIMDS; s++) {
        float f = exp(m.max[s][h] - x.top);
        x.sum += m.sum[s][h] * f;
        x.acc += room[((s * HEADS + h) * few_size<D>::head + RUN * (quad >> 2)) / 4 + (quad & 3)] * f;
    }
    return x;
}

struct few_result {
    device float *dst;        // the row's
    device const float *gate; // of the row
    device const float *sinks;
};

template <uint D>
inline void put_result(thread const few_result &to, constant sl_attention_args &a, thread const few_sums &x, uint head,
                       uint quad) {
    sink_factors f = {1.0f, 0.0f};
    if (fc_sinks)
        f = sink_join(x.top, to.sinks[head]);
    float4 v = x.acc * f.keep / (x.sum * f.keep + f.gain);
    if (fc_gate) {
        device const float *g = to.gate + ulong(head) * a.head_stride + 4 * quad;
        v *= float4(sigmoid(g[0]), sigmoid(g[1]), sigmoid(g[2]), sigmoid(g[3]));
    }
    *(device packed_float4 *)(to.dst + ulong(head) * D + 4 * quad) = packed_float4(v);
}

// What the splits left of `count` heads, in ascending order. factors: [head][splits].
template <uint D>
inline void merge_splits(threadgroup few_memory<D> &m, threadgroup float *factors, constant sl_attention_args &a,
                         device const float *partial, uint splits, uint head, uint count, thread const few_result &to,
                         uint simd, uint lane) {
    constexpr uint each = D + 4;
    for (uint h = simd; h < count; h += SIMDS) {
        device const float *tail = partial + ulong(h) * a.splits * each + D;
        float top = tail[0], sum = 0.0f;
        for (uint s = lane; s < splits; s += SL_SIMD)
            top = max(top, tail[s * each]);
        top = simd_max(top);
        for (uint s = lane; s < splits; s += SL_SIMD) {
            float f = exp(tail[s * each] - top);
            factors[h * splits + s] = f;
            sum += tail[s * each + 1] * f;
        }
        sum = simd_sum(sum);
        if (lane == 0) {
            m.max[0][h] = top;
            m.sum[0][h] = sum;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = simd * SL_SIMD + lane; i < count * (D / 4); i += THREADS) {
        uint h = i / (D / 4), quad = i % (D / 4);
        device const float *from = partial + ulong(h) * a.splits * each + 4 * quad;
        few_sums x = {float4(0.0f), m.max[0][h], m.sum[0][h]};
#pragma unroll 8
        for (uint s = 0; s < splits; s++)
            x.acc += *(device const float4 *)(from + s * each) * factors[h * splits + s];
        put_result<D>(to, a, x, head + h, quad);
    }
}

// ---- the kernel ---------------------------------------------------------------------------------------------------

// The splits of a row that sees `pages` pages, so many each.
struct few_split {
    uint pages, count;
};

inline few_split few_splits(uint pages, uint most) {
    uint each = pages <= SL_FEW_WHOLE ? pages : max(uint(SL_FEW_PAGES), (pages + most - 1) / most);
    few_split s = {each, (pages + each - 1) / each};
    return s;
}

template <uint D>
[[kernel, max_total_threads_per_threadgroup(SL_FEW_SIMDS * 32)]] void
attention_few(constant sl_attention_args &a [[buffer(0)]], device const float *q [[buffer(1)]],
              device float *partial [[buffer(2)]], device const int *step [[buffer(3)]],
              device const float *gate [[buffer(4)]], device const float *sinks [[buffer(5)]],
              device const float *k [[buffer(6)]], device const float *v [[buffer(7)]],
              device const float *q_norm [[buffer(8)]], device const float *k_norm [[buffer(9)]],
              device const float *cos_sin [[buffer(10)]], device float *dst [[buffer(11)]],
              device atomic_uint *counters [[buffer(12)]], SL_SLAB_PARAMS(device uchar *),
              threadgroup uint4 *room [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
              uint3 groups [[threadgroups_per_grid]], uint thread_at [[thread_index_in_threadgroup]],
              uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup few_memory<D> m;
    uint heads = a.heads / a.kv_heads, tiles = (heads + HEADS - 1) / HEADS;
    uint place = group.z, row = a.first_row + place, kv_head = group.y / tiles, tile = group.y % tiles, head = kv_head * heads + tile * HEADS;
    uint count = min((kv_head + 1) * heads - head, uint(HEADS));
    if (row >= uint(step_head(step).rows))
        return;
    uint position = uint(step_position(step, row)), first = window_first(a, position);
    few_split split = few_splits(position / SL_KV_PAGE - first / SL_KV_PAGE + 1, a.splits);
    if (group.x >= split.count)
        return;
    bool last = group.x + 1 == split.count; // has the row's own token
    uint begin = (first / SL_KV_PAGE + group.x * split.pages) * SL_KV_PAGE;
    uint end = last ? position : begin + split.pages * SL_KV_PAGE;
    end = end > first ? end : 0; // nothing but its own token
    device const int *pages = step_pages(step, row);
    const slab_list<few_bytes> slabs = SL_SLABS;
    uint t = max(begin, first / BLOCK * BLOCK) + BLOCK * simd;
    uint4 key[2][few_size<D>::chunk / 32];
    few_block<few_bytes> now;
    ulong then = 0; // the page of the block after that
    if (t < end) {
        now = block_at(a, slabs, page_block(pages, t), t, first, end, kv_head, lane);
        load_keys<few_size<D>::chunk>(key, now.keys, now.key);
        then = page_block(pages, min(t + STEP, end - 1));
    }
    device const float *angles = cos_sin + ulong(row) * a.rope_dims;
    for (uint h = simd; h < HEADS; h += SIMDS)
        stage_query(m, a, q + ulong(row) * a.q_stride + ulong(head + min(h, count - 1)) * a.head_stride, q_norm, angles,
                    h < count, h, lane);
    if (last)
        for (uint plane = SIMDS - 1 - simd; plane < 2; plane += SIMDS) {
            ulong own = page_block(pages, position);
            few_bytes page = page_at(a, slabs, own, kv_head, plane) + ulong(position % SL_KV_PAGE) * a.head_bytes;
            device const float *from = plane == 0 ? k + ulong(row) * a.k_stride : v + ulong(row) * a.v_stride;
            stage_own(m, a, from + ulong(kv_head) * D, k_norm, angles, page, plane, tile == 0, lane);
        }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    few_running<D> r;
    r.max = -INFINITY;
    r.sum = 0.0f;
#pragma unroll
    for (uint i = 0; i < D / 8; i++)
        r.acc[i] = float4(0.0f);
    float unscale = m.unscale[lane >> 2];
    for (; t < end; t += STEP) {
        // behind the last block: one token, which costs little
        few_block<few_bytes> next = block_at(a, slabs, then, min(t + STEP, end - 1), first, end, kv_head, lane);
        then = page_block(pages, min(t + 2 * STEP, end - 1));
        take_block(r, m, key, now, next, unscale, max(first, t) - t, min(end - t, uint(BLOCK)), lane);
        now = next;
    }
    if (last && simd == 0) {
        few_block<threadgroup const uchar *> own = own_block(m, lane);
        load_keys<few_size<D>::chunk>(key, own.keys, own.key);
        take_block(r, m, key, own, own, unscale, 0, 1, lane);
    }
    leave_results(m, (threadgroup float4 *)room, r, simd, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    few_result to = {dst + ulong(row) * a.dst_stride, gate + ulong(row) * a.gate_stride, sinks};
    device float *left = partial + (ulong(place) * a.heads + head) * a.splits * (D + 4);
    for (uint i = thread_at; i < count * (D / 4); i += THREADS) {
        uint h = i / (D / 4), quad = i % (D / 4);
        few_sums x = merge_simds(m, (threadgroup const float4 *)room, h, quad);
        if (split.count == 1) {
            put_result<D>(to, a, x, head + h, quad);
            continue;
        }
        device float *at = left + (ulong(h) * a.splits + group.x) * (D + 4);
        *(device float4 *)(at + 4 * quad) = x.acc;
        if (quad == 0)
            *(device float2 *)(at + D) = float2(x.top, x.sum);
    }
    if (split.count == 1)
        return;
    device atomic_uint *counter = counters + place * groups.y + group.y;
    threadgroup_barrier(mem_flags::mem_device);
    if (thread_at == 0) {
        atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
        uint before = atomic_fetch_add_explicit(counter, 1u, memory_order_relaxed);
        m.last = before + 1 == split.count ? 1 : 0;
        if (m.last != 0)
            atomic_store_explicit(counter, 0u, memory_order_relaxed);
        atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    if (m.last != 0)
        merge_splits(m, (threadgroup float *)room, a, left, split.count, head, count, to, simd, lane);
}

#ifdef SL_ATTENTION_DIM
#define SL_FEW_ONE(dim) SL_KERNEL("attention_few_" #dim, attention_few, dim)
#define SL_FEW_DIM(dim) SL_FEW_ONE(dim)
SL_FEW_DIM(SL_ATTENTION_DIM)
#else
SL_KERNEL("attention_few_64", attention_few, 64)
SL_KERNEL("attention_few_128", attention_few, 128)
SL_KERNEL("attention_few_192", attention_few, 192)
SL_KERNEL("attention_few_256", attention_few, 256)
#endif

// attention_few: as attention_decode, for devices whose matrix units multiply fragments that lie in registers
// (simdgroup_mma_16x8x16): an NVIDIA GPU, and soft for tests. Metal has none.
//
//   attention_few_<head_dim>  partial results of splits of 512 tokens, cut at absolute positions
//
// Keys and values are halves, both of head_dim, a multiple of 64 up to 256.
//
// One threadgroup (128 = 4 SIMD-groups) serves up to SL_FEW_HEADS (8) query heads of a kv head for one split: grid (splits, kv_heads *
// tiles of its query heads, rows). Blocks of 16 tokens go round the SIMD-groups, which keep running softmaxes of their
// own and merge at the end, ascending. Neither keys nor values pass through threadgroup memory: a product may take its
// dimensions and tokens in any order, so a lane loads 16 bytes of a key, of two tokens' or of four's values, and calls
// them what the fragment wants there. A fragment has 16 rows and a kv head at most 8 queries here: the upper rows have
// q as halves, with a power of two per head taken out, the lower ones what halves cannot hold of it; the same with the
// exponentials. Their sums are exact to float.
//
// Bytes: K and V once per 8 query heads of a kv head. Operations: 2 products of fragments per 16 tokens and 8
// dimensions. Threadgroup memory: 8 KiB and 32 * head_dim.
//
// partial and slots: of attention_decode.metal. Lane 4 r + q: r is a head, or a token, or eight dimensions; see below.
#include "pages.h"

enum { SIMDS = SL_ATTENTION_THREADS / SL_SIMD, BLOCK = 16, HEADS = SL_FEW_HEADS, SLICE = 64 };

template <uint D> struct few_memory {
    uint4 q[D / 16][SL_SIMD]; // a lane's fragments
    float acc[SIMDS][HEADS][SLICE];
    float max[SIMDS][HEADS], sum[SIMDS][HEADS];
};

// Keys and values go to registers so many dimensions at a time.
template <uint D> struct few_size {
    static constant constexpr uint chunk = D % 128 == 0 ? 128 : 64, chunks = D / chunk;
};

// Running softmax of head r over a SIMD-group's tokens. acc[8 * g + t]: x and z are the two halves' sums of dimension
// 64 g + 16 q + t, y and w those of the dimension 8 further.
template <uint D> struct few_running {
    float max, sum; // sum: of this lane's tokens
    float4 acc[D / 8];
};

typedef device const uchar *few_bytes;

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

// Step 2 j + s of the scores multiplies dimensions 32 j + 8 q + 4 s and the next three. Returns what undoes the power
// of two of head r.
template <uint D>
inline float stage_queries(threadgroup few_memory<D> &m, device const float *q, uint stride, uint count, uint simd,
                           uint lane) {
    device const float *from = q + ulong(min(lane >> 2, count - 1)) * stride + 8 * (lane & 3);
    float largest = 0.0f;
#pragma unroll
    for (uint i = 0; i < D / 16; i++) {
        float4 v = fabs(float4(*(device const packed_float4 *)(from + 32 * (i >> 1) + 4 * (i & 1))));
        float top = max(max(v.x, v.y), max(v.z, v.w));
        largest = top > largest ? top : largest;
    }
    largest = max(largest, simd_shuffle_xor(largest, 1));
    float scale = half_scale(max(largest, simd_shuffle_xor(largest, 2)));
    for (uint i = simd; i < D / 16; i += SIMDS) {
        float4 v = float4(*(device const packed_float4 *)(from + 32 * (i >> 1) + 4 * (i & 1)));
        v = (lane >> 2) < count ? v * scale : float4(0.0f);
        m.q[i][lane] = uint4(few_halves(v.x, v.y), few_halves(few_rest(v.x), few_rest(v.y)), few_halves(v.z, v.w),
                             few_halves(few_rest(v.z), few_rest(v.w)));
    }
    return 1.0f / scale;
}

// The keys of tokens r and r + 8 of a block: 16 bytes of each 64. at: their offsets, of this lane's quarter.
template <uint C>
inline void load_keys(thread uint4 (&k)[2][C / 32], few_bytes keys, thread const uint *at) {
#pragma unroll
    for (uint i = 0; i < 2; i++)
#pragma unroll
        for (uint j = 0; j < C / 32; j++)
            k[i][j] = *(device const uint4 *)(keys + at[i] + 64 * j);
}

// Scores of head r and tokens 2q, 2q + 1 (x, y) and the two behind 8 more (z, w), as sums of both halves.
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

// The values of four tokens: dimensions 64 g + 8 r and the next seven.
template <uint C> inline void load_values(thread uint4 (&v)[4][C / 64], few_bytes values, thread const uint *at) {
#pragma unroll
    for (uint i = 0; i < 4; i++)
#pragma unroll
        for (uint g = 0; g < C / 64; g++)
            v[i][g] = *(device const uint4 *)(values + at[i] + 128 * g);
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

// What a SIMD-group's blocks are: tokens begin + 16 * simd + 64 * i, one in each page of the split.
struct few_blocks {
    uint first, end; // tokens that the row sees
    uint2 entry;     // of the split's page `lane`
};

// Tokens t..t + 15: where a key's 16 bytes are of two of them, the values' of four. Those that the row does not see are
// read as the nearest one that it does, for their memory may hold anything.
struct few_block {
    few_bytes keys, values;
    uint key[2], value[4]; // offsets
};

inline few_block block_at(constant sl_attention_args &a, thread const slab_list<few_bytes> &slabs,
                          thread const few_blocks &b, uint t, uint kv_head, uint begin, uint head_bytes, uint lane) {
    few_block x;
    ushort page = ushort((t - begin) / SL_KV_PAGE);
    ulong block = ulong(simd_shuffle(b.entry.x, page)) | ulong(simd_shuffle(b.entry.y, page)) << 32;
    x.keys = page_at(a, slabs, block, kv_head, KV_K);
    x.values = page_at(a, slabs, block, kv_head, value_plane(a));
    uint low = max(b.first, t) - t, high = min(b.end - t, uint(BLOCK)) - 1;
    uint inside = t % SL_KV_PAGE, row = lane >> 2, pair = 2 * (lane & 3);
#pragma unroll
    for (uint i = 0; i < 2; i++)
        x.key[i] = (inside + clamp(row + 8 * i, low, high)) * head_bytes + 16 * (lane & 3);
#pragma unroll
    for (uint i = 0; i < 4; i++)
        x.value[i] = (inside + clamp(pair + (i & 1) + 8 * (i >> 1), low, high)) * head_bytes + 16 * row;
    return x;
}

// SIMD-groups' results in ascending order to the heads' partial results.
template <uint D>
inline void put_results(threadgroup few_memory<D> &m, thread const few_running<D> &r, device float *to, ulong apart,
                        uint count, uint simd, uint thread_at, uint lane) {
    float sum = r.sum + simd_shuffle_xor(r.sum, 1);
    sum += simd_shuffle_xor(sum, 2);
    if ((lane & 3) == 0) {
        m.max[simd][lane >> 2] = r.max;
        m.sum[simd][lane >> 2] = sum;
    }
#pragma unroll
    for (uint g = 0; g < D / SLICE; g++) {
        threadgroup float *own = &m.acc[simd][lane >> 2][16 * (lane & 3)];
#pragma unroll
        for (uint t = 0; t < 8; t++) {
            float4 v = r.acc[8 * g + t];
            own[t] = v.x + v.z;
            own[t + 8] = v.y + v.w;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = thread_at; i < count * SLICE; i += SL_ATTENTION_THREADS) {
            uint h = i / SLICE, d = i % SLICE;
            float top = m.max[0][h], all = 0.0f, acc = 0.0f;
            for (uint s = 1; s < SIMDS; s++)
                top = max(top, m.max[s][h]);
            for (uint s = 0; s < SIMDS; s++) {
                float f = exp(m.max[s][h] - top);
                all += m.sum[s][h] * f;
                acc += m.acc[s][h][d] * f;
            }
            device float *head = to + ulong(h) * apart;
            head[SLICE * g + d] = acc;
            if (SLICE * g + d == 0) {
                head[D] = top;
                head[D + 1] = all;
            }
        }
        if (g + 1 < D / SLICE)
            threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

template <uint D>
[[kernel, max_total_threads_per_threadgroup(128)]] void
attention_few(constant sl_attention_args &a [[buffer(0)]], device const float *q [[buffer(1)]],
              device float *partial [[buffer(2)]], device const int *step [[buffer(3)]],
              SL_SLAB_PARAMS(device const uchar *), uint3 group [[threadgroup_position_in_grid]],
              uint thread_at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
              uint simd [[simdgroup_index_in_threadgroup]]) {
    constexpr uint C = few_size<D>::chunk;
    threadgroup few_memory<D> m;
    uint heads = a.heads / a.kv_heads, tiles = (heads + HEADS - 1) / HEADS;
    uint row = group.z, kv_head = group.y / tiles, head = kv_head * heads + group.y % tiles * HEADS;
    uint begin = group.x * SL_ATTENTION_SPLIT, count = min((kv_head + 1) * heads - head, uint(HEADS));
    if (row >= uint(step_head(step).rows) || begin > uint(step_position(step, row)))
        return;
    few_blocks b;
    b.first = window_first(a, uint(step_position(step, row)));
    b.end = min(begin + uint(SL_ATTENTION_SPLIT), uint(step_position(step, row)) + 1);
    if (b.end <= b.first)
        return;
    device const int *pages = step_pages(step, row);
    ulong mine = begin + SL_KV_PAGE * lane < b.end ? page_block(pages, begin + SL_KV_PAGE * lane) : 0;
    b.entry = uint2(uint(mine), uint(mine >> 32));
    const slab_list<few_bytes> slabs = SL_SLABS;
    float unscale = a.scale * stage_queries(m, q + ulong(row) * a.q_stride + ulong(head) * a.head_stride, a.head_stride,
                                            count, simd, lane);
    few_running<D> r;
    r.max = -INFINITY;
    r.sum = 0.0f;
#pragma unroll
    for (uint i = 0; i < D / 8; i++)
        r.acc[i] = float4(0.0f);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint head_bytes = uint(a.head_bytes), t = begin + BLOCK * simd;
    while (t < b.end && t + BLOCK <= b.first)
        t += SL_KV_PAGE;
    few_block now = block_at(a, slabs, b, min(t, b.end - 1), kv_head, begin, head_bytes, lane);
    uint4 k[2][C / 32], v[4][C / 64];
    load_keys<C>(k, now.keys, now.key);
    for (; t < b.end; t += SL_KV_PAGE) {
        float4 s[2] = {float4(0.0f), float4(0.0f)};
        load_values<C>(v, now.values, now.value);
        add_scores<D, C>(s, m, k, 0, lane);
#pragma unroll
        for (uint c = 1; c < few_size<D>::chunks; c++) {
            load_keys<C>(k, now.keys + 2 * C * c, now.key);
            add_scores<D, C>(s, m, k, c * (C / 16), lane);
        }
        // the next keys are under way while these values are multiplied
        few_block next = block_at(a, slabs, b, min(t + SL_KV_PAGE, b.end - 1), kv_head, begin, head_bytes, lane);
        load_keys<C>(k, next.keys, next.key);
        float4 both = float4(s[0].x + s[0].z, s[0].y + s[0].w, s[1].x + s[1].z, s[1].y + s[1].w) * unscale;
        uint4 p = take_scores(r, both, max(b.first, t) - t, min(b.end - t, uint(BLOCK)), lane);
        add_values<C>(r.acc, p, v);
#pragma unroll
        for (uint c = 1; c < few_size<D>::chunks; c++) {
            load_values<C>(v, now.values + 2 * C * c, now.value);
            add_values<C>(r.acc + c * (C / 8), p, v);
        }
        now = next;
    }
    ulong place = (ulong(row) * a.heads + head) * a.splits + group.x;
    put_results(m, r, partial + place * (D + 2), ulong(a.splits) * (D + 2), count, simd, thread_at, lane);
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

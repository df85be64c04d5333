// batch: products of several rows of x (a batch of sequences that decode) with rows of W in the formats of few.h, for
// devices whose matrix units multiply fragments that lie in registers. W is read once and unpacked once for all of
// them.
//
// x is prepared once for all products that read it (batch_lines): halves in the order in which lanes take them as right
// factors, so that a load of 16 bytes a lane is two fragments and nothing of x passes through threadgroup memory; and
// the sums of x that biases are multiplied with. A SIMD-group takes chunks (few.h) of T tiles of 16 rows of W, whose
// bytes are copied verbatim to a ring of its own. Codes become halves by bits, without scales: the products of a part
// of 32 or 64 columns are summed by the matrix units, and scaled in float. What is rounded is x alone, to half with a
// power of two of its row; where LOW, what half does not hold of x is multiplied, too, and nothing is rounded.
//
// Order of addition: columns of a part, parts and chunks of a SIMD-group, SIMD-groups that share a tile; the same for
// any number of rows.
#ifndef SL_KERNELS_BATCH_H
#define SL_KERNELS_BATCH_H

#include "few.h"

// Tiles of a chunk that a SIMD-group's ring holds: what fits in 32 KiB, unless the host knows of more.
#ifndef SL_BATCH_LOTS
#define SL_BATCH_LOTS 3
#endif

enum { BATCH_SIMDS = SL_BATCH_THREADS / SL_SIMD, BATCH_PAIRS = SL_FEW_COLS / 64 };

template <uint T> constexpr uint batch_stages() {
    return SL_BATCH_LOTS / T;
}

// The ring; at the end the SIMD-groups' sums [SIMD-group][row of x][row of W + padding], floats.
template <uint T, uint N> struct batch_memory {
    static constant constexpr uint ring = BATCH_SIMDS * batch_stages<T>() * T * FEW_SLOT; // of 16 bytes each
    static constant constexpr uint stride = 16 * T + 4;                                   // other banks for other rows
    static constant constexpr uint sums = BATCH_SIMDS * N * 8 * stride / 4;
    uint4 at[ring > sums ? ring : sums];
};

// ---- x -------------------------------------------------------------------------------------------------------------

// A lane's x of a pair of units: a word's four halves of each product, as {first, first, second, second}.
template <bool LOW> struct batch_pair { uint4 high[2], low[LOW ? 2 : 1]; };

// Rows of x as a lane sees them: of block n its right factors' row (lane / 4), and the sums of the rows that its
// results are of (2 (lane % 4) and the next).
template <uint N> struct batch_rows {
    device const uint4 *x[N];
    device const float2 *sums[N][2];
};

// Of rows in a block of eight.
inline ulong batch_x_at(uint row, uint pairs, bool low) {
    return ulong(row >> 3) * pairs * (low ? 128 : 64) + 4 * (row & 7);
}

template <uint N, bool LOW>
inline void batch_row(thread batch_rows<N> &rows, uint n, device const uint4 *x, device const float2 *sums, uint pairs,
                      uint of_x, uint of_first, uint of_second, uint q) {
    rows.x[n] = x + batch_x_at(of_x, pairs, LOW) + q;
    rows.sums[n][0] = sums + ulong(of_first) * pairs;
    rows.sums[n][1] = sums + ulong(of_second) * pairs;
}

template <uint N, bool LOW>
inline void batch_load(thread batch_pair<LOW> (&b)[N], thread const batch_rows<N> &rows, uint pair) {
#pragma unroll
    for (uint n = 0; n < N; n++) {
        device const uint4 *p = rows.x[n] + pair * (LOW ? 128 : 64);
        b[n].high[0] = p[0];
        b[n].high[1] = p[32];
        if (LOW) {
            b[n].low[0] = p[64];
            b[n].low[LOW ? 1 : 0] = p[96];
        }
    }
}

// Of a quarter of a unit, for the format's order: a, b as in few.h.
template <typename W> inline uint4 batch_halves(float4 a, float4 b) {
    if (W::sequence)
        return uint4(few_pair(a.x, b.x), few_pair(a.z, b.z), few_pair(a.y, b.y), few_pair(a.w, b.w));
    return uint4(few_pair(a.x, a.z), few_pair(a.y, a.w), few_pair(b.x, b.z), few_pair(b.y, b.w));
}

// ---- products ------------------------------------------------------------------------------------------------------

// Tiles of a SIMD-group: their rows' codes and what copy_side reads.
template <uint T> struct batch_tiles {
    device const uchar *codes[T], *side[T];
    uint row_bytes;
};

template <typename W, uint T>
inline void batch_copy(threadgroup uint4 *to, thread const batch_tiles<T> &w, uint chunk, uint lane) {
#pragma unroll
    for (uint t = 0; t < T; t++) {
        threadgroup uchar *slot = (threadgroup uchar *)to + t * 16 * FEW_SLOT;
        device const uchar *codes = w.codes[t] + chunk * W::chunk_bytes;
#pragma unroll
        for (uint i = 0; i < (16 * W::pieces + 31) / 32; i++) {
            uint at = lane + 32 * i;
            if (W::pieces % 2 == 0 || at < 16 * W::pieces)
                copy_begin<W::piece>(slot + at / W::pieces * FEW_SLOT + at % W::pieces * W::piece,
                                     codes + ulong(at / W::pieces) * w.row_bytes + at % W::pieces * W::piece);
        }
        W::copy_side(slot, w.side[t], chunk, lane);
    }
}

// acc[n] (rows r and r + 8 of a tile by rows of x 2q, 2q + 1) += a pair's products; p: row r of the tile in the ring.
// start: what parts begin with.
template <typename W, uint N, bool LOW>
inline void batch_multiply(thread float4 (&acc)[N], thread batch_pair<LOW> (&b)[N], thread const float4 (&sum)[N],
                           few_slot p, thread const few_scales *scales, uint pair, uint lane) {
    const uint q = lane & 3, from = (lane & ~3u) | pair;
    uint2 w0 = W::words(p, pair, q), w1 = W::words(p + 8 * FEW_SLOT, pair, q);
    float4 part[W::parts][N];
#pragma unroll
    for (uint k = 0; k < W::parts; k++)
#pragma unroll
        for (uint n = 0; n < N; n++) {
            float2 s = k ? sum[n].zw : sum[n].xy; // already times the centre
            part[k][n] = W::centre != 0.0f ? float4(s.x, s.y, s.x, s.y) : float4(0.0f);
        }
#pragma unroll
    for (uint i = 0; i < 2; i++) {
        uint4 h0 = W::halves(w0[i]), h1 = W::halves(w1[i]);
        uint4 first = uint4(h0.x, h1.x, h0.y, h1.y), second = uint4(h0.z, h1.z, h0.w, h1.w);
#pragma unroll
        for (uint n = 0; n < N; n++) {
            thread float4 &f = part[W::part(i, 0)][n];
            f = simdgroup_mma_16x8x16(f, first, b[n].high[i].xy);
            if (LOW)
                f = simdgroup_mma_16x8x16(f, first, b[n].low[LOW ? i : 0].xy);
            thread float4 &g = part[W::part(i, 1)][n];
            g = simdgroup_mma_16x8x16(g, second, b[n].high[i].zw);
            if (LOW)
                g = simdgroup_mma_16x8x16(g, second, b[n].low[LOW ? i : 0].zw);
        }
    }
#pragma unroll
    for (uint k = 0; k < W::parts; k++) {
        float s0 = simd_shuffle(scales[0].scale[k], from), s1 = simd_shuffle(scales[1].scale[k], from);
        float b0 = W::biased ? simd_shuffle(scales[0].bias[k], from) : 0.0f;
        float b1 = W::biased ? simd_shuffle(scales[1].bias[k], from) : 0.0f;
#pragma unroll
        for (uint n = 0; n < N; n++) {
            acc[n] = fma(part[k][n], float4(s0, s0, s1, s1), acc[n]);
            float2 s = k ? sum[n].zw : sum[n].xy;
            if (W::biased)
                acc[n] = fma(float4(s.x, s.y, s.x, s.y), float4(b0, b0, b1, b1), acc[n]);
        }
    }
}

// acc[t][n] = products of T tiles with N blocks of rows, over chunks slice, slice + step, ...
template <typename W, uint T, uint N, bool LOW>
inline void batch_product(thread float4 (&acc)[T][N], threadgroup uint4 *ring, thread const batch_tiles<T> &w,
                          thread const batch_rows<N> &rows, uint chunks, uint slice, uint step, uint lane) {
    constexpr uint bytes16 = T * FEW_SLOT, stages = batch_stages<T>();
#pragma unroll
    for (uint t = 0; t < T; t++)
#pragma unroll
        for (uint n = 0; n < N; n++)
            acc[t][n] = float4(0.0f);
    uint ahead = slice, stage = 0;
#pragma unroll
    for (uint i = 0; i < stages; i++, ahead += step) {
        if (ahead < chunks)
            batch_copy<W, T>(ring + i * bytes16, w, ahead, lane);
        copy_commit();
    }
    for (uint chunk = slice; chunk < chunks; chunk += step, ahead += step) {
        batch_pair<LOW> b[N];
        batch_load<N, LOW>(b, rows, chunk * BATCH_PAIRS);
        copy_wait<stages - 1>();
        simdgroup_barrier(mem_flags::mem_threadgroup);
        few_slot p = (few_slot)(ring + stage * bytes16) + (lane >> 2) * FEW_SLOT;
        few_scales scales[T][2];
#pragma unroll
        for (uint t = 0; t < T; t++) {
            scales[t][0] = W::scales(p + t * 16 * FEW_SLOT, lane & 3);
            scales[t][1] = W::scales(p + (t * 16 + 8) * FEW_SLOT, lane & 3);
        }
#pragma unroll
        for (uint pair = 0; pair < BATCH_PAIRS; pair++) {
            batch_pair<LOW> next[N];
            float4 sum[N];
            uint at = chunk * BATCH_PAIRS + pair;
#pragma unroll
            for (uint n = 0; n < N; n++) {
                sum[n] = float4(0.0f);
                if (W::biased || W::centre != 0.0f) {
                    float2 u = rows.sums[n][0][at], v = rows.sums[n][1][at];
                    sum[n] = float4(u.x, v.x, u.y, v.y);
                }
            }
            if (pair + 1 < BATCH_PAIRS)
                batch_load<N, LOW>(next, rows, at + 1);
#pragma unroll
            for (uint t = 0; t < T; t++)
                batch_multiply<W, N, LOW>(acc[t], b, sum, p + t * 16 * FEW_SLOT, scales[t], pair, lane);
            if (pair + 1 < BATCH_PAIRS)
#pragma unroll
                for (uint n = 0; n < N; n++)
                    b[n] = next[n];
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        if (ahead < chunks)
            batch_copy<W, T>(ring + stage * bytes16, w, ahead, lane);
        copy_commit();
        stage = stage + 1 < stages ? stage + 1 : 0;
    }
}

// log2 of how many SIMD-groups share a tile's columns, so that no more of them than chunks do.
inline uint batch_shift(uint cols) {
    uint chunks = cols / SL_FEW_COLS;
    return chunks > 2 ? 2 : chunks - 1;
}

// The same where a threadgroup has so many tiles.
inline uint batch_shift_of(uint tiles) {
    return tiles > 2 ? 0 : tiles > 1 ? 1 : 2;
}

// The SIMD-groups' sums go to memory, behind all products.
template <uint T, uint N>
inline void batch_put(threadgroup batch_memory<T, N> &m, thread float4 (&acc)[T][N], uint lane, uint simd) {
    threadgroup float *to =
        (threadgroup float *)m.at + simd * N * 8 * m.stride + 2 * (lane & 3) * m.stride + (lane >> 2);
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (uint t = 0; t < T; t++)
#pragma unroll
        for (uint n = 0; n < N; n++) {
            threadgroup float *p = to + n * 8 * m.stride + 16 * t;
            p[0] = acc[t][n].x;
            p[m.stride] = acc[t][n].y;
            p[8] = acc[t][n].z;
            p[m.stride + 8] = acc[t][n].w;
        }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// A sum of SIMD-groups first, first + 1, ... in their order.
template <uint T, uint N>
inline float batch_sum(threadgroup const batch_memory<T, N> &m, uint first, uint count, uint x_row, uint w_row) {
    threadgroup const float *p = (threadgroup const float *)m.at + (first * N * 8 + x_row) * m.stride + w_row;
    float v = p[0];
    for (uint i = 1; i < count; i++)
        v += p[i * N * 8 * m.stride];
    return v;
}

#endif

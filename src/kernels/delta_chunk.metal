// delta_chunk: the delta rule over many rows of a sequence (prefill), 32 at a time.
//
//   delta_pairs_<key_dim>  what of a chunk does not depend on the state: with D[i][j] = the product of g over (j, i],
//   for
//                          j <= i,  L[i][j] = b_i D k_i.k_j (j < i),  T = (1 + L)^-1 diag(b),  B[i][j] = D q_i.k_j; and
//                          the decays from the chunk's start and to its end. Grid (SL_DELTA_PLACES, value_heads),
//                          threadgroup (128).
//   delta_chunk_<key_dim>  U = T (V - g K S),  O = g Q S + B U,  S = g_end S + (w K)^T U, chunk after chunk; o takes
//   v's
//                          place. A threadgroup (128) keeps 32 columns of a head's state in threadgroup memory: grid
//                          (value_dim / 32, value_heads, runs).
//
// It is the recurrence of delta.metal for runs of at least long_rows rows. All in float, decays as products of factors
// below 1 (differences of summed logarithms cancel; quotients overflow), triangular: a row sees no row behind it, not
// even times zero. Why not the matrix units: halves of the state cost 1e-3, and where q and k are all but orthogonal,
// 2e-2 of the row that the norm then makes as long as the others.
//
// Operations per row and head, in multiply-adds: 3 per element of the state, 32 * (2 key_dim + 2 value_dim) for the
// chunk's own pairs, 512 for T: 1.3 times the state's 3 at 128 x 128; the recurrence has 4, and twice their loads. 32
// rows: with 64 the pairs alone are as much as 2 per element. Bytes: the state read and written once per
// SL_DELTA_PLACES chunks, q and k once per 32 columns of values, 268 of pairs per row. Four barriers a chunk.
//
// Threadgroup memory: 4.5 KiB; 24 KiB at 128 key dimensions.
//
// Chunks are numbered over all long runs of a step; a pass works on SL_DELTA_PLACES of them from `place` on, and the
// state goes from pass to pass through memory.
//
// Slots of pairs: 1 x, 2 beta, 3 alpha, 4 decay, 5 dt_bias, 6 step, 7 pairs (written). Of chunk: 1 x, 2 pairs, 3 step,
// 15..30 slabs (written). Pairs of a chunk and head: T, B [32][32], then the decays: from the start [32], to the end
// [32].
#include "delta.h"

enum {
    CHUNK = SL_DELTA_CHUNK,
    L_STRIDE = CHUNK + 1,
    PAIRS_B = CHUNK * CHUNK,
    PAIRS_START = 2 * CHUNK * CHUNK,
    PAIRS_END = PAIRS_START + CHUNK
};

inline uint chunks_of(constant sl_delta_args &a, uint rows) {
    return rows >= a.long_rows ? (rows + CHUNK - 1) / CHUNK : 0;
}

// Rows [first, first + rows) of a chunk; rows 0: there is none.
struct chunk_rows {
    uint first, rows;
};

inline chunk_rows chunk_at(constant sl_delta_args &a, device const int *step, uint place) {
    chunk_rows c = {0, 0};
    uint runs = uint(step_head(step).runs);
    for (uint run = 0; run < runs; run++) {
        uint first = run_first(step, run), rows = run_first(step, run + 1) - first, chunks = chunks_of(a, rows);
        if (place < chunks) {
            c.first = first + place * CHUNK;
            c.rows = min(rows - place * CHUNK, uint(CHUNK));
            return c;
        }
        place -= chunks;
    }
    return c;
}

inline device const float *pairs_at(constant sl_delta_args &a, device const float *pairs, uint place, uint head) {
    return pairs + (ulong(place) * a.value_heads + head) * SL_DELTA_PAIRS;
}

// ---- pairs ---------------------------------------------------------------------------------------------------------

struct pairs_memory {
    float l[CHUNK * L_STRIDE];
    float g[CHUNK], b[CHUNK];
};

// sum += a . b over four
inline float dot_on(float4 a, float4 b, float sum) {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

// Products of keys and queries of two rows with four keys, over a head of K.
template <uint K> struct products {
    float kk[2][4], qk[2][4];

    void add(device const float *q, device const float *k, ulong stride, uint row, uint column, uint last) {
        ulong row0 = min(row, last) * stride, row1 = min(row + 1, last) * stride;
#pragma unroll
        for (uint i = 0; i < 4; i++)
            kk[0][i] = kk[1][i] = qk[0][i] = qk[1][i] = 0.0f;
        for (uint d = 0; d + 4 <= K; d += 4) {
            float4 k0 = *(device const packed_float4 *)(k + row0 + d);
            float4 k1 = *(device const packed_float4 *)(k + row1 + d);
            float4 q0 = *(device const packed_float4 *)(q + row0 + d);
            float4 q1 = *(device const packed_float4 *)(q + row1 + d);
#pragma unroll
            for (uint i = 0; i < 4; i++) {
                float4 other = *(device const packed_float4 *)(k + min(column + i, last) * stride + d);
                kk[0][i] = dot_on(k0, other, kk[0][i]);
                kk[1][i] = dot_on(k1, other, kk[1][i]);
                qk[0][i] = dot_on(q0, other, qk[0][i]);
                qk[1][i] = dot_on(q1, other, qk[1][i]);
            }
        }
        for (uint d = K / 4 * 4; d < K; d++) {
#pragma unroll
            for (uint i = 0; i < 4; i++) {
                float other = k[min(column + i, last) * stride + d];
                kk[0][i] = fma(k[row0 + d], other, kk[0][i]);
                kk[1][i] = fma(k[row1 + d], other, kk[1][i]);
                qk[0][i] = fma(q[row0 + d], other, qk[0][i]);
                qk[1][i] = fma(q[row1 + d], other, qk[1][i]);
            }
        }
    }
};

// A column of T, a lane each: rows from the top, in registers.
inline void solve(threadgroup const pairs_memory &m, device float *t, uint lane) {
    float x[CHUNK];
#pragma unroll
    for (uint i = 0; i < CHUNK; i++) {
        float even = 0.0f, odd = 0.0f;
#pragma unroll
        for (uint j = 0; j + 1 < i; j += 2) {
            even = fma(m.l[i * L_STRIDE + j], x[j], even);
            odd = fma(m.l[i * L_STRIDE + j + 1], x[j + 1], odd);
        }
        if (i % 2 == 1)
            even = fma(m.l[i * L_STRIDE + i - 1], x[i - 1], even);
        x[i] = i < lane ? 0.0f : i == lane ? 1.0f : -(even + odd);
        t[i * CHUNK + lane] = x[i] * m.b[lane];
    }
}

template <uint K>
[[kernel, max_total_threads_per_threadgroup(128)]] void
delta_pairs(constant sl_delta_args &a [[buffer(0)]], device const float *x [[buffer(1)]],
            device const float *beta [[buffer(2)]], device const float *alpha [[buffer(3)]],
            device const float *decay [[buffer(4)]], device const float *dt_bias [[buffer(5)]],
            device const int *step [[buffer(6)]], device float *pairs [[buffer(7)]],
            uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
            uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup pairs_memory m;
    uint head = group.y;
    chunk_rows c = chunk_at(a, step, a.place + group.x);
    if (c.rows == 0)
        return;
    device float *out = pairs + (ulong(group.x) * a.value_heads + head) * SL_DELTA_PAIRS;
    device const float *q = x + ulong(c.first) * a.x_stride + ulong(key_head_of(a, head)) * K;
    device const float *k = q + ulong(a.key_heads) * K;
    if (thread_at < CHUNK) { // rows that are not there change nothing
        ulong row = c.first + min(thread_at, c.rows - 1);
        bool there = thread_at < c.rows;
        m.g[thread_at] = there ? decay_of(decay[head], dt_bias[head], alpha[row * a.alpha_stride + head]) : 1.0f;
        m.b[thread_at] = there ? sigmoid(beta[row * a.beta_stride + head]) : 0.0f;
    }
    uint row = thread_at / 8 * 2, column = thread_at % 8 * 4;
    products<K> p;
    if (column <= row + 1)
        p.add(q, k, a.x_stride, row, column, c.rows - 1);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (column <= row + 1) {
#pragma unroll
        for (uint i = 0; i < 4; i++) {
            float d = 1.0f;
            for (uint j = column + i + 1; j <= row; j++)
                d *= m.g[j];
            if (column + i < row)
                m.l[row * L_STRIDE + column + i] = m.b[row] * d * p.kk[0][i];
            if (column + i <= row) {
                out[PAIRS_B + row * CHUNK + column + i] = d * p.qk[0][i];
                d *= m.g[row + 1];
                m.l[(row + 1) * L_STRIDE + column + i] = m.b[row + 1] * d * p.kk[1][i];
            }
            if (column + i <= row + 1)
                out[PAIRS_B + (row + 1) * CHUNK + column + i] = d * p.qk[1][i];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd == 0)
        solve(m, out, lane);
    if (simd == 1) {
        float start = 1.0f, end = 1.0f;
        for (uint i = 0; i <= lane; i++)
            start *= m.g[i];
        for (uint i = lane + 1; i < CHUNK; i++)
            end *= m.g[i];
        out[PAIRS_START + lane] = start;
        out[PAIRS_END + lane] = end;
    }
}

// ---- chunks --------------------------------------------------------------------------------------------------------

// Columns of a head are taken four by four, rows of a chunk two by two: thread / 8 and thread % 8.
template <uint K> struct chunk_memory {
    float4 s[K * 8];
    float4 r[CHUNK * 8]; // values less what the state has for them
    float4 u[CHUNK * 8];
};

struct two_rows {
    float4 x[2];
};

// acc += a pair of a row's numbers times rows of the state
inline void add_rows(thread two_rows &acc, float x0, float x1, float4 s) {
    acc.x[0] = fma(float4(x0), s, acc.x[0]);
    acc.x[1] = fma(float4(x1), s, acc.x[1]);
}

// K S and Q S for two rows and four columns.
template <uint K>
inline void read_state(thread two_rows &ks, thread two_rows &qs, threadgroup const float4 *s, device const float *q,
                       device const float *k, ulong row0, ulong row1) {
    ks.x[0] = ks.x[1] = qs.x[0] = qs.x[1] = float4(0.0f);
    for (uint d = 0; d + 4 <= K; d += 4) {
        float4 k0 = *(device const packed_float4 *)(k + row0 + d), k1 = *(device const packed_float4 *)(k + row1 + d);
        float4 q0 = *(device const packed_float4 *)(q + row0 + d), q1 = *(device const packed_float4 *)(q + row1 + d);
#pragma unroll
        for (uint i = 0; i < 4; i++) {
            float4 v = s[(d + i) * 8];
            add_rows(ks, k0[i], k1[i], v);
            add_rows(qs, q0[i], q1[i], v);
        }
    }
    for (uint d = K / 4 * 4; d < K; d++) {
        add_rows(ks, k[row0 + d], k[row1 + d], s[d * 8]);
        add_rows(qs, q[row0 + d], q[row1 + d], s[d * 8]);
    }
}

// acc += rows `row` and row + 1 of a lower triangle times what lies in memory, by ascending column; row is even.
inline void add_triangle(thread two_rows &acc, device const float *t, threadgroup const float4 *from, uint row) {
    device const float *t0 = t + row * CHUNK, *t1 = t0 + CHUNK;
    for (uint j = 0; j <= row; j++)
        add_rows(acc, t0[j], t1[j], from[j * 8]);
    acc.x[1] = fma(float4(t1[row + 1]), from[(row + 1) * 8], acc.x[1]);
}

// Four columns of a row of x; those that are not there are zeros.
inline float4 load_values(device const float *v, uint columns) {
    float4 x(0.0f);
#pragma unroll
    for (uint i = 0; i < 4; i++)
        if (i < columns)
            x[i] = v[i];
    return x;
}

inline void store_values(device float *v, float4 x, uint columns) {
#pragma unroll
    for (uint i = 0; i < 4; i++)
        if (i < columns)
            v[i] = x[i];
}

// S = left S + (w K)^T U: four rows of the state at a time.
template <uint K>
inline void write_state(threadgroup float4 *s, threadgroup const float4 *u, device const float *k, ulong stride,
                        device const float *pairs, uint rows, uint group) {
    float left = pairs[PAIRS_START + CHUNK - 1];
    for (uint d = group * 4; d < K; d += 64) {
        float4 acc[4];
        bool whole = d + 4 <= K;
#pragma unroll
        for (uint i = 0; i < 4; i++)
            acc[i] = d + i < K ? s[(d + i) * 8] * left : float4(0.0f);
        for (uint j = 0; j < rows; j++) {
            device const float *key = k + j * stride + d;
            float4 x = u[j * 8] * pairs[PAIRS_END + j],
                   by = whole ? float4(*(device const packed_float4 *)key) : load_values(key, K - d);
#pragma unroll
            for (uint i = 0; i < 4; i++)
                acc[i] = fma(float4(by[i]), x, acc[i]);
        }
#pragma unroll
        for (uint i = 0; i < 4; i++)
            if (d + i < K)
                s[(d + i) * 8] = acc[i];
    }
}

template <uint K>
[[kernel, max_total_threads_per_threadgroup(128)]] void
delta_chunk(constant sl_delta_args &a [[buffer(0)]], device float *x [[buffer(1)]],
            device const float *pairs [[buffer(2)]], device const int *step [[buffer(3)]],
            SL_SLAB_PARAMS(device uchar *), uint3 group [[threadgroup_position_in_grid]],
            uint thread_at [[thread_index_in_threadgroup]]) {
    typedef chunk_memory<K> memory;
    static_assert(sizeof(memory) <= 32768, "threadgroup memory");
    threadgroup memory m;
    uint run = group.z, head = group.y, place = 0;
    if (run >= uint(step_head(step).runs))
        return;
    for (uint i = 0; i < run; i++)
        place += chunks_of(a, run_first(step, i + 1) - run_first(step, i));
    uint first = run_first(step, run), end = run_first(step, run + 1), chunks = chunks_of(a, end - first);
    // of the run's chunks, those of this pass
    uint begin = a.place > place ? a.place - place : 0;
    uint stop = a.place + SL_DELTA_PLACES > place ? min(chunks, a.place + SL_DELTA_PLACES - place) : 0;
    if (begin >= stop)
        return;
    const slab_list<device uchar *> slabs = SL_SLABS;
    uint row = thread_at / 8 * 2, quad = thread_at % 8, column = group.x * 32 + quad * 4;
    uint columns = column < a.value_dim ? min(a.value_dim - column, 4u) : 0;
    bool fresh = begin == 0 && step_position(step, first) == 0;
    device float *state = run_state(slabs, step, run, a.layer) + ulong(head) * K * a.value_dim + column;
    for (uint d = thread_at / 8; d < K; d += 16)
        m.s[d * 8 + quad] = load_values(state + ulong(d) * a.value_dim, fresh ? 0 : columns);
    for (uint chunk = begin; chunk < stop; chunk++) {
        uint from = first + chunk * CHUNK, rows = min(end - from, uint(CHUNK));
        device const float *t = pairs_at(a, pairs, place + chunk - a.place, head);
        device const float *q = x + ulong(from) * a.x_stride + ulong(key_head_of(a, head)) * K;
        device const float *k = q + ulong(a.key_heads) * K;
        device float *v = x + ulong(from) * a.x_stride + 2ul * a.key_heads * K + ulong(head) * a.value_dim + column;
        ulong row0 = min(row, rows - 1) * a.x_stride, row1 = min(row + 1, rows - 1) * a.x_stride;
        float g0 = t[PAIRS_START + row], g1 = t[PAIRS_START + row + 1];
        two_rows ks, qs, u;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        read_state<K>(ks, qs, m.s + quad, q, k, row0, row1);
        m.r[row * 8 + quad] = fma(float4(-g0), ks.x[0], load_values(v + row0, row < rows ? columns : 0));
        m.r[(row + 1) * 8 + quad] = fma(float4(-g1), ks.x[1], load_values(v + row1, row + 1 < rows ? columns : 0));
        threadgroup_barrier(mem_flags::mem_threadgroup);
        u.x[0] = u.x[1] = float4(0.0f);
        add_triangle(u, t, m.r + quad, row);
        m.u[row * 8 + quad] = u.x[0];
        m.u[(row + 1) * 8 + quad] = u.x[1];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        qs.x[0] *= g0;
        qs.x[1] *= g1;
        add_triangle(qs, t + PAIRS_B, m.u + quad, row);
        if (row < rows)
            store_values(v + row0, qs.x[0], columns);
        if (row + 1 < rows)
            store_values(v + row1, qs.x[1], columns);
        write_state<K>(m.s + quad, m.u + quad, k, a.x_stride, t, rows, thread_at / 8);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint d = thread_at / 8; d < K; d += 16)
        store_values(state + ulong(d) * a.value_dim, m.s[d * 8 + quad], columns);
}

// What is instantiated: as in delta.metal, but no more than threadgroup memory holds.
#ifndef SL_DELTA_KEY
#define SL_DELTA_KEY 128
#endif
#define SL_DELTA(key)     SL_KERNEL("delta_pairs_" #key, delta_pairs, key) SL_KERNEL("delta_chunk_" #key, delta_chunk, key)
#define SL_DELTA_ONE(key) SL_DELTA(key)
SL_DELTA_ONE(SL_DELTA_KEY)

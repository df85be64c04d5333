// heads: a matrix for each head (MLA's way into the latent's space and out of it): of every row, heads vectors of
// in_dim + tail become heads vectors of out_dim + tail: y = W x, then the tail as it is.
//
//   heads_matvec_<format>_a<align>   few rows; W [out_dim][in_dim]. Threadgroup (64) = 2 SIMD-groups x 4 rows of W; grid
//                                    (ceil(out_dim / 8), rows, heads)
//   heads_turned_<format>_a<align>   few rows; W [in_dim][out_dim], y = W^T x. Threadgroup (128) = 8 slices of the rows of
//                                    W by 16 units of its columns, a thread each; slices are added in order. Grid
//                                    (ceil(units / 16), rows, heads); 16 KiB
//   heads_matmul_<format>_a<align>   many rows, on the matrix units, as matmul.metal does it; x becomes half with a power
//                                    of two per row and head here: it would need too much memory as a whole. Grid
//                                    (ceil(out_dim / 64), ceil(rows / 32), heads), threadgroup (128)
//   heads_matmul_turned_...          the same with W [in_dim][out_dim]: grid (ceil(units / 2), ceil(rows / 32), heads)
//
// Matrices lie one below the other, rows_per_head rows each; W begins at first_row of them. A unit is 32 columns of a
// row (blocks.h).
//
// Bytes: few rows: W once per row of x; many: once per 32 rows. Operations: 1 fma per weight and row (turned: 2).
//
// Slots: 1 codes, 2 scales, 3 biases, 4 x, 5 y, 6 step.
#include "multiply.h"

// This head's vectors of row `row`, and its matrix's first row.
inline device const float *head_x(constant sl_heads_args &a, device const float *x, uint row, uint head) {
    return x + ulong(row) * a.x_stride + ulong(head) * (a.in_dim + a.tail);
}
inline device float *head_y(constant sl_heads_args &a, device float *y, uint row, uint head) {
    return y + ulong(row) * a.y_stride + ulong(head) * (a.out_dim + a.tail);
}
inline uint head_row(constant sl_heads_args &a, uint head) {
    return head * a.rows_per_head + a.first_row;
}

inline void copy_tail(constant sl_heads_args &a, device const float *x, device float *y, uint thread_at, uint threads) {
    for (uint i = thread_at; i < a.tail; i += threads)
        y[a.out_dim + i] = x[a.in_dim + i];
}

// ---- few rows ------------------------------------------------------------------------------------------------------

template <typename F>
[[kernel, max_total_threads_per_threadgroup(64)]] void
heads_matvec(constant sl_heads_args &a [[buffer(0)]], device const uchar *codes [[buffer(1)]],
             device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
             device const float *x [[buffer(4)]], device float *y [[buffer(5)]], device const int *step [[buffer(6)]],
             uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
             uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    uint row = group.x * SL_MATVEC_ROWS + simd * DOT_ROWS, head = group.z;
    if (group.y >= step_rows(step))
        return;
    weights w = make_weights(a.w, codes, scales, biases);
    device const float *from = head_x(a, x, group.y, head);
    device float *to = head_y(a, y, group.y, head);
    float acc[DOT_ROWS];
    dot_rows<F, DOT_ROWS, 1, false>(acc, &w, head_row(a, head) + row, from, lane);
    if (lane < DOT_ROWS && row + lane < a.out_dim)
        to[row + lane] = pick_row<DOT_ROWS>(acc, lane);
    if (group.x == 0)
        copy_tail(a, from, to, thread_at, SL_MATVEC_THREADS);
}

enum { SLICES = SL_TURNED_THREADS / SL_TURNED_UNITS };

// The sums of a slice: eight times four columns of each unit.
struct turned_memory {
    float4 sum[SLICES][SL_TURNED_UNITS][8];
};

// sum += x * weights of a unit
template <typename F>
inline void add_unit(thread float4 *sum, thread const weight_row &row, uint u, thread const weights &w, float x) {
    typename F::unit q;
    F::load(q, row, u, w);
    float2 s = F::scale(q), b = fma(float2(-F::offset), s, F::bias(q));
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        float4 low = F::low(q, i), high = F::high(q, i);
        if (!F::plain) {
            low = fma(low, float4(s.x), float4(b.x));
            high = fma(high, float4(s.y), float4(b.y));
        }
        sum[i] = fma(low, float4(x), sum[i]);
        sum[4 + i] = fma(high, float4(x), sum[4 + i]);
    }
}

template <typename F>
[[kernel, max_total_threads_per_threadgroup(128)]] void
heads_turned(constant sl_heads_args &a [[buffer(0)]], device const uchar *codes [[buffer(1)]],
             device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
             device const float *x [[buffer(4)]], device float *y [[buffer(5)]], device const int *step [[buffer(6)]],
             uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]]) {
    threadgroup turned_memory m;
    uint place = thread_at % SL_TURNED_UNITS, slice = thread_at / SL_TURNED_UNITS, head = group.z;
    uint first_unit = group.x * SL_TURNED_UNITS;
    if (group.y >= step_rows(step))
        return;
    weights w = make_weights(a.w, codes, scales, biases);
    device const float *from = head_x(a, x, group.y, head);
    device float *to = head_y(a, y, group.y, head);
    float4 sum[8] = {};
    for (uint k = slice; k < a.in_dim && first_unit + place < unit_count(w); k += SLICES) {
        weight_row r = row_at(w, head_row(a, head) + k);
        add_unit<F>(sum, r, first_unit + place, w, from[k]);
    }
#pragma unroll
    for (uint i = 0; i < 8; i++)
        m.sum[slice][place][i] = sum[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint part = thread_at % 8, at = thread_at / 8, c = F::column(first_unit + at) + (part & 3) * 4;
    c += part < 4 ? 0 : F::gap;
    float4 total = m.sum[0][at][part];
    for (uint i = 1; i < SLICES; i++)
        total += m.sum[i][at][part];
    for (uint j = 0; j < 4; j++)
        if (c + j < a.out_dim)
            to[c + j] = total[j];
    if (group.x == 0)
        copy_tail(a, from, to, thread_at, SL_TURNED_THREADS);
}

// ---- many rows -----------------------------------------------------------------------------------------------------

struct heads_memory {
    tile_memory tile;
    float unscale[SL_MATMUL_TOKENS];
};

// This thread's row of x, a quarter of which it looks at for the scale.
inline float_row scaled_row(threadgroup heads_memory &m, constant sl_heads_args &a, device const float *x, uint row,
                            uint rows, uint head, uint thread_at) {
    float_row r = {head_x(a, x, min(row, rows - 1), head), 1.0f, a.in_dim};
    float largest = 0.0f;
    for (uint c = thread_at & 3; c < a.in_dim; c += 4)
        largest = fabs(r.at[c]) > largest ? fabs(r.at[c]) : largest;
    largest = max(largest, simd_shuffle_xor(largest, 1));
    largest = max(largest, simd_shuffle_xor(largest, 2));
    r.scale = half_scale(largest);
    if ((thread_at & 3) == 0)
        m.unscale[thread_at >> 2] = 1.0f / r.scale;
    return r;
}

inline void copy_tails(constant sl_heads_args &a, device const float *x, device float *y, uint first, uint count,
                       uint head, uint thread_at) {
    for (uint i = 0; i < count; i++)
        copy_tail(a, head_x(a, x, first + i, head), head_y(a, y, first + i, head), thread_at, SL_MATMUL_THREADS);
}

template <typename F>
[[kernel, max_total_threads_per_threadgroup(128)]] void
heads_matmul(constant sl_heads_args &a [[buffer(0)]], device const uchar *codes [[buffer(1)]],
             device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
             device const float *x [[buffer(4)]], device float *y [[buffer(5)]], device const int *step [[buffer(6)]],
             uint3 group [[threadgroup_position_in_grid]], uint thread_at [[thread_index_in_threadgroup]],
             uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup heads_memory m;
    uint rows = step_rows(step), first = group.y * SL_MATMUL_TOKENS, head = group.z, w_row = group.x * SL_MATMUL_ROWS;
    if (first >= rows)
        return;
    weights w = make_weights(a.w, codes, scales, biases);
    uint count = min(rows - first, uint(SL_MATMUL_TOKENS)), c = thread_at & 63, out = w_row + c;
    float_row x_row = scaled_row(m, a, x, first + (thread_at >> 2), rows, head, thread_at);
    threadgroup const float *tile =
        multiply_tile<F>(m.tile, w, head_row(a, head) + w_row, x_row, thread_at, simd);
    for (uint i = thread_at >> 6; i < count && out < a.out_dim; i += 2)
        head_y(a, y, first + i, head)[out] = tile[i * OUT_STRIDE + c] * m.unscale[i];
    if (group.x == 0)
        copy_tails(a, x, y, first, count, head, thread_at);
}

template <typename F>
[[kernel, max_total_threads_per_threadgroup(128)]] void
heads_matmul_turned(constant sl_heads_args &a [[buffer(0)]], device const uchar *codes [[buffer(1)]],
                    device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
                    device const float *x [[buffer(4)]], device float *y [[buffer(5)]],
                    device const int *step [[buffer(6)]], uint3 group [[threadgroup_position_in_grid]],
                    uint thread_at [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup heads_memory m;
    uint rows = step_rows(step), first = group.y * SL_MATMUL_TOKENS, head = group.z, unit = group.x * 2;
    if (first >= rows)
        return;
    weights w = make_weights(a.w, codes, scales, biases);
    uint count = min(rows - first, uint(SL_MATMUL_TOKENS)), c = thread_at & 63, out = column_of<F>(unit, c);
    float_row x_row = scaled_row(m, a, x, first + (thread_at >> 2), rows, head, thread_at);
    threadgroup const float *tile = multiply_turned<F>(m.tile, w, head_row(a, head), unit, x_row, thread_at, simd);
    for (uint i = thread_at >> 6; i < count && out < a.out_dim; i += 2)
        head_y(a, y, first + i, head)[out] = tile[i * OUT_STRIDE + c] * m.unscale[i];
    if (group.x == 0)
        copy_tails(a, x, y, first, count, head, thread_at);
}

#define X(format, align)                                                                                               \
    SL_KERNEL("heads_matvec_" #format "_a" #align, heads_matvec, format_##format<align>)                               \
    SL_KERNEL("heads_turned_" #format "_a" #align, heads_turned, format_##format<align>)                               \
    SL_KERNEL("heads_matmul_" #format "_a" #align, heads_matmul, format_##format<align>)                               \
    SL_KERNEL("heads_matmul_turned_" #format "_a" #align, heads_matmul_turned, format_##format<align>)
SL_FORMATS(X)
#undef X

/* simdgroup_matrix.h: 8 x 8 matrices spread over a SIMD-group, two elements a lane.
 *
 * Lane l holds row 4 * (l / 16) + (l / 2) % 4, columns 4 * (l / 8 % 2) + 2 * (l % 2) and the next, which is how Apple's
 * GPUs hold them and kernels that look at thread_elements() expect. On cuda a product of half or bfloat goes through
 * mma.m16n8k8 (the lower 8 rows unused) with the lanes permuted, a product of floats through shuffles in full
 * precision. Products are added to the accumulator in the order of k on soft; the matrix units' own order is theirs. */
namespace msl_unit {
namespace metal {

MSL_C uint msl_row(uint lane) {
    return (lane >> 4 & 1u) * 4u + (lane >> 1 & 3u);
}
MSL_C uint msl_column(uint lane) {
    return (lane >> 3 & 1u) * 4u + (lane & 1u) * 2u;
}
/* The lane that holds (row, column) and the next column; column is even. */
MSL_C uint msl_holder(uint row, uint column) {
    return (row >> 2) << 4 | (column >> 2) << 3 | (row & 3u) << 1 | (column >> 1 & 1u);
}

template <class T, int C, int R = C> struct simdgroup_matrix {
    static_assert(C == 8 && R == 8, "simdgroup_matrix is 8 x 8");
    typedef vec<T, 2> storage_type;
    vec<T, 2> msl_e;
    simdgroup_matrix() = default;
    /* The diagonal. */
    template <class S, enable_if_t<msl_info<S>::scalar, int> = 0> MSL_M explicit simdgroup_matrix(S s) {
        uint l = msl_lane(), r = msl_row(l), c = msl_column(l);
        msl_e = vec<T, 2>(r == c ? T(s) : T(0), r == c + 1u ? T(s) : T(0));
    }
    MSL_M vec<T, 2> &thread_elements() { return msl_e; }
    MSL_M const vec<T, 2> &thread_elements() const { return msl_e; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int C = 8, int R = C> MSL_I simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T v) {
    simdgroup_matrix<T, C, R> m;
    m.msl_e = vec<T, 2>(v);
    return m;
}
template <class T, int C = 8, int R = C> MSL_I simdgroup_matrix<T, C, R> make_diagonal_simdgroup_matrix(T v) {
    return simdgroup_matrix<T, C, R>(v);
}

template <class T, class P>
MSL_I void simdgroup_load(simdgroup_matrix<T, 8, 8> &d, const P *p, ulong elements_per_row = 8,
                          ulong2 origin = ulong2(0), bool transposed = false) {
    static_assert(is_same_v<remove_cv_t<P>, T>, "simdgroup_load: the pointer's type is not the matrix's");
    uint l = msl_lane();
    ulong r = msl_row(l), c = msl_column(l);
    p += origin.y * elements_per_row + origin.x;
    if (transposed)
        d.msl_e = vec<T, 2>(p[c * elements_per_row + r], p[(c + 1) * elements_per_row + r]);
    else
        d.msl_e = vec<T, 2>(p[r * elements_per_row + c], p[r * elements_per_row + c + 1]);
}
template <class T, class P>
MSL_I void simdgroup_store(const simdgroup_matrix<T, 8, 8> &s, P *p, ulong elements_per_row = 8,
                           ulong2 origin = ulong2(0), bool transposed = false) {
    static_assert(is_same_v<P, T>, "simdgroup_store: the pointer's type is not the matrix's");
    uint l = msl_lane();
    ulong r = msl_row(l), c = msl_column(l);
    p += origin.y * elements_per_row + origin.x;
    p[transposed ? c * elements_per_row + r : r * elements_per_row + c] = s.msl_e.x;
    p[transposed ? (c + 1) * elements_per_row + r : r * elements_per_row + c + 1] = s.msl_e.y;
}

/* c + a . b as floats, this lane's two elements. */
template <class A, class B>
MSL_I float2 msl_product(const simdgroup_matrix<A, 8, 8> &a, const simdgroup_matrix<B, 8, 8> &b, float2 c, int line) {
    struct both {
        vec<A, 2> a;
        vec<B, 2> b;
    };
    msl_shared<both> s = msl_publish(both{a.msl_e, b.msl_e}, line);
#ifndef SL_MSL_CUDA
    if (s.active != 0xffffffffu)
        msl_api->fail(line, "SIMD-group function under divergence: a product of matrices needs all 32 lanes");
#endif
    uint row = msl_row(s.lane), column = msl_column(s.lane);
    MSL_UNROLL for (uint k = 0; k < 8; k += 2) {
        vec<A, 2> x = s[msl_holder(row, k)].a;
        vec<B, 2> y = s[msl_holder(k, column)].b, z = s[msl_holder(k + 1, column)].b;
        c.x += float(x.x) * float(y.x);
        c.y += float(x.x) * float(y.y);
        c.x += float(x.y) * float(z.x);
        c.y += float(x.y) * float(z.y);
    }
    return c;
}
#ifdef SL_MSL_CUDA
template <class T> MSL_I uint msl_pair(vec<T, 2> v) {
    return (uint)v.x.msl_v | (uint)v.y.msl_v << 16;
}
/* mma's lanes go row * 4 + column / 2; of b they hold rows 2 * (l % 4) and the next, column l / 4. */
template <class T>
MSL_I float2 msl_mma(const simdgroup_matrix<T, 8, 8> &a, const simdgroup_matrix<T, 8, 8> &b, float2 c) {
    constexpr uint all = 0xffffffffu;
    const uint l = msl_lane(), row = l >> 2, column = (l & 3u) * 2u;
    const uint from = msl_holder(row, column), back = msl_row(l) * 4u + msl_column(l) / 2u;
    uint x = ::__shfl_sync(all, msl_pair(a.msl_e), (int)from), y = msl_pair(b.msl_e);
    uint y0 = ::__shfl_sync(all, y, (int)msl_holder(column, row & 6u));
    uint y1 = ::__shfl_sync(all, y, (int)msl_holder(column + 1u, row & 6u));
    y = row & 1u ? y0 >> 16 | (y1 & 0xffff0000u) : (y0 & 0xffffu) | y1 << 16;
    float c0 = ::__shfl_sync(all, c.x, (int)from), c1 = ::__shfl_sync(all, c.y, (int)from), d0, d1, u0, u1;
    if constexpr (is_same_v<T, half>)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%9};"
                     : "=f"(d0), "=f"(d1), "=f"(u0), "=f"(u1)
                     : "r"(x), "r"(0), "r"(y), "f"(c0), "f"(c1), "f"(0.0f));
    else
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%9};"
                     : "=f"(d0), "=f"(d1), "=f"(u0), "=f"(u1)
                     : "r"(x), "r"(0), "r"(y), "f"(c0), "f"(c1), "f"(0.0f));
    return float2(::__shfl_sync(all, d0, (int)back), ::__shfl_sync(all, d1, (int)back));
}
#endif

template <class D, class A, class B, class C>
MSL_I void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8> &d, const simdgroup_matrix<A, 8, 8> &a,
                                         const simdgroup_matrix<B, 8, 8> &b, const simdgroup_matrix<C, 8, 8> &c,
                                         MSL_LINE) {
    float2 f(c.msl_e.x, c.msl_e.y);
#ifdef SL_MSL_CUDA
    if constexpr (is_same_v<A, B> && !is_same_v<A, float>)
        f = msl_mma(a, b, f);
    else
#endif
        f = msl_product(a, b, f, MSL_AT);
    d.msl_e = vec<D, 2>(f.x, f.y);
}
template <class D, class A, class B>
MSL_I void simdgroup_multiply(simdgroup_matrix<D, 8, 8> &d, const simdgroup_matrix<A, 8, 8> &a,
                              const simdgroup_matrix<B, 8, 8> &b, MSL_LINE) {
    simdgroup_matrix<float, 8, 8> zero;
    zero.msl_e = float2(0.0f);
#ifdef SL_MSL_CUDA
    simdgroup_multiply_accumulate(d, a, b, zero);
#else
    simdgroup_multiply_accumulate(d, a, b, zero, MSL_AT);
#endif
}
template <class T>
MSL_I simdgroup_matrix<T, 8, 8> operator*(const simdgroup_matrix<T, 8, 8> &a, const simdgroup_matrix<T, 8, 8> &b) {
    simdgroup_matrix<T, 8, 8> d;
    simdgroup_multiply(d, a, b);
    return d;
}

/* ---- fragments in registers -------------------------------------------------------------------------------------- */

/* c + a . b: 16 x 16 times 16 x 8, halves, summed in float; not in Metal. Lane l = 4 r + q holds of a the columns 2q
 * and 2q + 1 of rows r (word x) and r + 8 (y), and columns 2q + 8, 2q + 9 of the same rows (z, w); of b, column r: rows
 * 2q, 2q + 1 (x) and 2q + 8, 2q + 9 (y); of c, columns 2q, 2q + 1 of rows r (x, y) and r + 8 (z, w). All lanes take
 * part. */
#ifdef SL_MSL_CUDA
MSL_I float4 simdgroup_mma_16x8x16(float4 c, uint4 a, uint2 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c.x), "+f"(c.y), "+f"(c.z), "+f"(c.w)
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
    return c;
}
#else
MSL_I float msl_dot_halves(float c, uint a, uint b) {
    c += float(msl_bits<half>(ushort(a & 0xffffu))) * float(msl_bits<half>(ushort(b & 0xffffu)));
    return c + float(msl_bits<half>(ushort(a >> 16))) * float(msl_bits<half>(ushort(b >> 16)));
}
/* Kernels have hundreds of these unrolled: a function is compiled in a fraction of the time. */
static __attribute__((noinline, unused)) float4 simdgroup_mma_16x8x16(float4 c, uint4 a, uint2 b, MSL_LINE) {
    struct both {
        uint4 a;
        uint2 b;
    };
    msl_shared<both> s = msl_publish(both{a, b}, MSL_AT);
    const uint row = s.lane & ~3u, column = (s.lane & 3u) * 8u;
    for (uint k = 0; k < 4; k++) {
        const uint4 x = s[row + k].a;
        const uint2 y = s[column + k].b, z = s[column + 4 + k].b;
        c.x = msl_dot_halves(msl_dot_halves(c.x, x.x, y.x), x.z, y.y);
        c.y = msl_dot_halves(msl_dot_halves(c.y, x.x, z.x), x.z, z.y);
        c.z = msl_dot_halves(msl_dot_halves(c.z, x.y, y.x), x.w, y.y);
        c.w = msl_dot_halves(msl_dot_halves(c.w, x.y, z.x), x.w, z.y);
    }
    return c;
}
#endif

/* Such fragments in threadgroup memory; p and stride are multiples of 8 halves. a[r][c] = p[r * stride + c]; of b the
 * columns 0-7 are x, y of the result and 8-15 are z, w: b[r][c] = p[r * stride + c], or turned p[c * stride + r]. */
#ifdef SL_MSL_CUDA
template <bool TURN> MSL_I uint4 msl_load_matrices(const half *p) {
    uint4 v;
    unsigned at = (unsigned)::__cvta_generic_to_shared(p);
    if constexpr (TURN)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(at)
                     : "memory");
    return v;
}
MSL_I uint4 simdgroup_load_a(const half *p, uint stride) {
    const uint l = msl_lane();
    return msl_load_matrices<false>(p + (l & 15u) * stride + (l >> 4) * 8u);
}
MSL_I uint4 simdgroup_load_b(const half *p, uint stride) {
    const uint l = msl_lane();
    return msl_load_matrices<true>(p + (l & 15u) * stride + (l >> 4) * 8u);
}
MSL_I uint4 simdgroup_load_b_turned(const half *p, uint stride) {
    const uint l = msl_lane();
    return msl_load_matrices<false>(p + ((l & 7u) + (l >> 4) * 8u) * stride + (l >> 3 & 1u) * 8u);
}
#else
MSL_I uint msl_halves(const half *low, const half *high) {
    return uint(low->msl_v) | uint(high->msl_v) << 16;
}
MSL_I uint4 simdgroup_load_a(const half *p, uint stride) {
    const uint l = msl_lane();
    p += (l >> 2) * stride + (l & 3u) * 2u;
    const half *low = p + 8 * stride;
    return uint4(msl_halves(p, p + 1), msl_halves(low, low + 1), msl_halves(p + 8, p + 9),
                 msl_halves(low + 8, low + 9));
}
MSL_I uint4 simdgroup_load_b(const half *p, uint stride) {
    const uint l = msl_lane();
    p += (l & 3u) * 2u * stride + (l >> 2);
    const half *low = p + 8 * stride;
    return uint4(msl_halves(p, p + stride), msl_halves(low, low + stride), msl_halves(p + 8, p + stride + 8),
                 msl_halves(low + 8, low + stride + 8));
}
MSL_I uint4 simdgroup_load_b_turned(const half *p, uint stride) {
    const uint l = msl_lane();
    p += (l >> 2) * stride + (l & 3u) * 2u;
    const half *low = p + 8 * stride;
    return uint4(msl_halves(p, p + 1), msl_halves(p + 8, p + 9), msl_halves(low, low + 1),
                 msl_halves(low + 8, low + 9));
}
#endif
/* p[r * stride + c] = c0 for columns 0-7, c1 for 8-15. */
MSL_I void simdgroup_store_c(float4 c0, float4 c1, float *p, uint stride) {
    const uint l = msl_lane();
    p += (l >> 2) * stride + (l & 3u) * 2u;
    float *low = p + 8 * stride;
    p[0] = c0.x, p[1] = c0.y, p[8] = c1.x, p[9] = c1.y;
    low[0] = c0.z, low[1] = c0.w, low[8] = c1.z, low[9] = c1.w;
}
/* p[r * stride] of the rows that this lane holds of such a product. */
MSL_I float2 simdgroup_rows_c(const float *p, uint stride) {
    const uint r = msl_lane() >> 2;
    return float2(p[r * stride], p[(r + 8u) * stride]);
}

/* ---- halves in words ----------------------------------------------------------------------------------------------
 */

/* Not in Metal. fma_halves: a * b + c for both halves of a word, each rounded once. permute_bytes: byte i of the result
 * is the one of a (0-3) and b (4-7) that bits 4i to 4i + 2 of `which` name; with bit 4i + 3 its sign, eight times. */
#ifdef SL_MSL_CUDA
MSL_I uint fma_halves(uint a, uint b, uint c) {
    uint r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
MSL_I uint permute_bytes(uint a, uint b, uint which) {
    uint r; /* __byte_perm leaves the fourth bits out */
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(which));
    return r;
}
#else
MSL_I uint msl_fma_half(uint a, uint b, uint c) {
    half r = fma(msl_bits<half>(ushort(a)), msl_bits<half>(ushort(b)), msl_bits<half>(ushort(c)));
    return r.msl_v;
}
static __attribute__((noinline, unused)) uint fma_halves(uint a, uint b, uint c) {
    return msl_fma_half(a & 0xffffu, b & 0xffffu, c & 0xffffu) | msl_fma_half(a >> 16, b >> 16, c >> 16) << 16;
}
static __attribute__((noinline, unused)) uint permute_bytes(uint a, uint b, uint which) {
    ulong both = ulong(b) << 32 | a;
    uint r = 0;
    for (uint i = 0; i < 4; i++) {
        uint n = which >> 4 * i & 15u, byte = uint(both >> 8 * (n & 7u)) & 255u;
        r |= (n & 8u ? (byte & 128u ? 255u : 0u) : byte) << 8 * i;
    }
    return r;
}
#endif

/* ---- copies that run ahead --------------------------------------------------------------------------------------- */

/* Not in Metal. A thread begins copies of 4, 8 or 16 bytes (both addresses multiples of that) from device to
 * threadgroup memory and closes what it began as one lot (copy_commit); copy_wait<N> returns once all but its latest N
 * lots are there. Others see them behind the next barrier. On soft a copy is made at once or, with an odd seed, at the
 * wait. */
#ifdef SL_MSL_CUDA
template <uint N> MSL_I void copy_begin(void *to, const void *from) {
    static_assert(N == 4 || N == 8 || N == 16, "a copy is of 4, 8 or 16 bytes");
    unsigned at = (unsigned)::__cvta_generic_to_shared(to);
    if constexpr (N == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(N) : "memory");
}
MSL_I void copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <uint N> MSL_I void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#else
template <uint N> MSL_I void copy_begin(void *to, const void *from) {
    static_assert(N == 4 || N == 8 || N == 16, "a copy is of 4, 8 or 16 bytes");
    if (msl_api->copy_begin(to, from, N))
        return;
    for (uint i = 0; i < N / 4; i++)
        ((uint *)to)[i] = ((const uint *)from)[i];
}
MSL_I void copy_commit() {
    msl_api->copy_commit();
}
template <uint N> MSL_I void copy_wait() {
    msl_api->copy_wait(N);
}
#endif

} // namespace metal
} // namespace msl_unit

/* integer.h: <metal_integer>, and max, min, clamp of integers: one overload per type and vectors of it. */
namespace msl_unit {
namespace metal {

/* A type with twice the digits, for sums and products. */
template <class T> struct msl_wide : type_identity<conditional_t<is_signed<T>::value, long, ulong>> {};
template <> struct msl_wide<long> : type_identity<__int128> {};
template <> struct msl_wide<ulong> : type_identity<unsigned __int128> {};
template <class T> using msl_wide_t = typename msl_wide<T>::type;
template <class T> constexpr int msl_digits = sizeof(T) * 8;

template <class T> MSL_C T msl_saturated(msl_wide_t<T> v) {
    constexpr msl_wide_t<T> high = numeric_limits<T>::max(), low = numeric_limits<T>::min();
    return T(v > high ? high : v < low ? low : v);
}
#ifdef SL_MSL_CUDA
/* In constant expressions, where there are no intrinsics. */
MSL_C uint msl_count_zeros(ulong u, int digits, bool leading) {
    uint n = 0;
    while ((int)n < digits && !(u >> (leading ? digits - 1 - (int)n : (int)n) & 1))
        n++;
    return n;
}
MSL_C uint msl_count_ones(ulong u) {
    uint n = 0;
    for (; u; u &= u - 1)
        n++;
    return n;
}
#endif
template <class T> MSL_C T msl_clz(T a) {
    typedef make_unsigned_t<T> U;
    U u = U(a);
    if (!u)
        return T(msl_digits<T>);
#ifdef SL_MSL_CUDA
    if (__builtin_is_constant_evaluated())
        return T(msl_count_zeros(u, msl_digits<T>, true));
    if constexpr (sizeof(T) == 8)
        return T(::__clzll((long long)u));
    else
        return T(::__clz((int)u) - (32 - msl_digits<T>));
#else
    if constexpr (sizeof(T) == 8)
        return T(__builtin_clzl(u));
    else
        return T(__builtin_clz(u) - (32 - msl_digits<T>));
#endif
}
template <class T> MSL_C T msl_ctz(T a) {
    typedef make_unsigned_t<T> U;
    U u = U(a);
    if (!u)
        return T(msl_digits<T>);
#ifdef SL_MSL_CUDA
    if (__builtin_is_constant_evaluated())
        return T(msl_count_zeros(u, msl_digits<T>, false));
    return T(::__ffsll((long long)u) - 1);
#else
    return T(__builtin_ctzl((ulong)u));
#endif
}
template <class T> MSL_C T msl_popcount(T a) {
#ifdef SL_MSL_CUDA
    if (__builtin_is_constant_evaluated())
        return T(msl_count_ones(ulong(make_unsigned_t<T>(a))));
    if constexpr (sizeof(T) == 8)
        return T(::__popcll((unsigned long long)a));
    else
        return T(::__popc((uint)make_unsigned_t<T>(a)));
#else
    return T(__builtin_popcountl((ulong)make_unsigned_t<T>(a)));
#endif
}
template <class T> MSL_C T msl_reverse(T a) {
    ulong u = ulong(make_unsigned_t<T>(a));
#ifdef SL_MSL_CUDA
    u = ::__brevll(u);
#else
    u = __builtin_bitreverse64(u);
#endif
    return T(make_unsigned_t<T>(u >> (64 - msl_digits<T>)));
}
template <class T> MSL_C T msl_rotate(T a, T n) {
    typedef make_unsigned_t<T> U;
    U u = U(a);
    uint k = uint(U(n)) & (msl_digits<T> - 1);
    return k ? T(U(u << k | u >> (msl_digits<T> - k))) : a;
}
template <class T> MSL_C T msl_absdiff(T a, T b) {
    typedef make_unsigned_t<T> U;
    return T(a < b ? U(U(b) - U(a)) : U(U(a) - U(b)));
}

#define MSL_I1(name, ...)                                                                                              \
    struct msl_i_##name {                                                                                              \
        template <class T> MSL_MC T operator()(T a) const { return T(__VA_ARGS__); }                                   \
    };                                                                                                                 \
    MSL_EACH_INT(MSL_I1_OF, name)
#define MSL_I2(name, ...)                                                                                              \
    struct msl_i_##name {                                                                                              \
        template <class T> MSL_MC T operator()(T a, T b) const {                                                       \
            typedef msl_wide_t<T> W;                                                                                   \
            return (void)W(0), T(__VA_ARGS__);                                                                         \
        }                                                                                                              \
    };                                                                                                                 \
    MSL_EACH_INT(MSL_I2_OF, name)
#define MSL_I3(name, ...)                                                                                              \
    struct msl_i_##name {                                                                                              \
        template <class T> MSL_MC T operator()(T a, T b, T c) const {                                                  \
            typedef msl_wide_t<T> W;                                                                                   \
            return (void)W(0), T(__VA_ARGS__);                                                                         \
        }                                                                                                              \
    };                                                                                                                 \
    MSL_EACH_INT(MSL_I3_OF, name)
#define MSL_EACH_INT(X, name)                                                                                          \
    X(name, char) X(name, uchar) X(name, short) X(name, ushort) X(name, int) X(name, uint) X(name, long) X(name, ulong)
#define MSL_I1_OF(name, T)                                                                                             \
    MSL_C T name(T a) {                                                                                                \
        return msl_i_##name{}(a);                                                                                      \
    }
#define MSL_I2_OF(name, T)                                                                                             \
    MSL_C T name(T a, T b) {                                                                                           \
        return msl_i_##name{}(a, b);                                                                                   \
    }
#define MSL_I3_OF(name, T)                                                                                             \
    MSL_C T name(T a, T b, T c) {                                                                                      \
        return msl_i_##name{}(a, b, c);                                                                                \
    }
/* Vectors of integers. */
#define MSL_IV1(name)                                                                                                  \
    template <class A, class V = msl_vec_t<A>, msl_if_int<typename msl_info<V>::element> = 0>                          \
    MSL_C V name(const A &a) {                                                                                         \
        return msl_map<V>(msl_i_##name{}, a);                                                                          \
    }
#define MSL_IV2(name)                                                                                                  \
    template <class A, class B, class V = msl_vmix_t<A, B>, msl_if_int<typename msl_info<V>::element> = 0>             \
    MSL_C V name(const A &a, const B &b) {                                                                             \
        return msl_map<V>(msl_i_##name{}, V(a), V(b));                                                                 \
    }
#define MSL_IV3(name)                                                                                                  \
    template <class A, class B, class C, class V = msl_vmix3_t<A, B, C>,                                               \
              msl_if_int<typename msl_info<V>::element> = 0>                                                           \
    MSL_C V name(const A &a, const B &b, const C &c) {                                                                 \
        return msl_map<V>(msl_i_##name{}, V(a), V(b), V(c));                                                           \
    }
#define MSL_INT1(name, ...) MSL_I1(name, __VA_ARGS__) MSL_IV1(name)
#define MSL_INT2(name, ...) MSL_I2(name, __VA_ARGS__) MSL_IV2(name)
#define MSL_INT3(name, ...) MSL_I3(name, __VA_ARGS__) MSL_IV3(name)

MSL_INT1(abs, a < 0 ? make_unsigned_t<T>(0) - make_unsigned_t<T>(a) : make_unsigned_t<T>(a))
MSL_INT1(clz, msl_clz(a))
MSL_INT1(ctz, msl_ctz(a))
MSL_INT1(popcount, msl_popcount(a))
MSL_INT1(reverse_bits, msl_reverse(a))
MSL_INT2(absdiff, msl_absdiff(a, b))
MSL_INT2(addsat, msl_saturated<T>(W(a) + W(b)))
MSL_INT2(subsat, is_signed<T>::value ? msl_saturated<T>(W(a) - W(b)) : a < b ? T(0) : T(a - b))
MSL_INT2(hadd, (W(a) + W(b)) >> 1)
MSL_INT2(rhadd, (W(a) + W(b) + 1) >> 1)
MSL_INT2(max, a < b ? b : a)
MSL_INT2(min, b < a ? b : a)
MSL_INT2(mulhi, (W(a) * W(b)) >> msl_digits<T>)
MSL_INT2(rotate, msl_rotate(a, b))
MSL_INT3(clamp, a<b ? b : a> c ? c : a)
MSL_INT3(madhi, T((W(a) * W(b)) >> msl_digits<T>) + make_unsigned_t<T>(c))
MSL_INT3(madsat, msl_saturated<T>(W(a) * W(b) + W(c)))
MSL_INT3(max3, a < b ? (b < c ? c : b) : (a < c ? c : a))
MSL_INT3(min3, b < a ? (c < b ? c : b) : (c < a ? c : a))
MSL_INT3(median3, a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b))

MSL_C int mul24(int a, int b) {
    return int(uint(a << 8 >> 8) * uint(b << 8 >> 8));
}
MSL_C uint mul24(uint a, uint b) {
    return (a & 0xffffffu) * (b & 0xffffffu);
}
MSL_C int mad24(int a, int b, int c) {
    return int(uint(mul24(a, b)) + uint(c));
}
MSL_C uint mad24(uint a, uint b, uint c) {
    return mul24(a, b) + c;
}
template <class T, int N, enable_if_t<is_same_v<T, int> || is_same_v<T, uint>, int> = 0>
MSL_C vec<T, N> mul24(vec<T, N> a, vec<T, N> b) {
    vec<T, N> r(0);
    for (int i = 0; i < N; i++)
        r[i] = mul24(a[i], b[i]);
    return r;
}
template <class T, int N, enable_if_t<is_same_v<T, int> || is_same_v<T, uint>, int> = 0>
MSL_C vec<T, N> mad24(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
    vec<T, N> r(0);
    for (int i = 0; i < N; i++)
        r[i] = mad24(a[i], b[i], c[i]);
    return r;
}

/* Bits [offset, offset + bits) of a, sign-extended where T is signed. */
template <class T, msl_if_int<T> = 0> MSL_C T extract_bits(T a, uint offset, uint bits) {
    typedef make_unsigned_t<T> U;
    if (bits == 0)
        return T(0);
    uint up = msl_digits<T> - bits - offset;
    return T(T(U(U(a) << up)) >> (msl_digits<T> - bits));
}
template <class T, msl_if_int<T> = 0> MSL_C T insert_bits(T base, T insert, uint offset, uint bits) {
    typedef make_unsigned_t<T> U;
    if (bits == 0)
        return base;
    U mask = U(U(U(~U(0)) >> (msl_digits<T> - bits)) << offset);
    return T(U((U(base) & U(~mask)) | (U(U(insert) << offset) & mask)));
}
template <class T, int N> MSL_C vec<T, N> extract_bits(vec<T, N> a, uint offset, uint bits) {
    vec<T, N> r(0);
    for (int i = 0; i < N; i++)
        r[i] = extract_bits(a[i], offset, bits);
    return r;
}
template <class T, int N> MSL_C vec<T, N> insert_bits(vec<T, N> a, vec<T, N> b, uint offset, uint bits) {
    vec<T, N> r(0);
    for (int i = 0; i < N; i++)
        r[i] = insert_bits(a[i], b[i], offset, bits);
    return r;
}

} // namespace metal
} // namespace msl_unit

/* builtins.h: the compiler's own names behind Metal's functions, for sources that extend the library with them (as
 * those that bring mathematics for their own bfloat do). The last argument of the mathematical ones asks for fast
 * mathematics: every answer here is the precise one. */
namespace msl_unit {
namespace metal {

#define __METAL_MAYBE_FAST_MATH__ false
#define __METAL_FAST_MATH__       false
#define __METAL_PRECISE_MATH__    false

#define MSL_BUILTIN_1(name, f)                                                                                         \
    MSL_I float __metal_##name(float x, bool) {                                                                        \
        return f(x);                                                                                                   \
    }
#define MSL_BUILTIN_2(name, f)                                                                                         \
    MSL_I float __metal_##name(float x, float y, bool) {                                                               \
        return f(x, y);                                                                                                \
    }
#define MSL_BUILTIN_3(name, f)                                                                                         \
    MSL_I float __metal_##name(float x, float y, float z, bool = false) {                                              \
        return f(x, y, z);                                                                                             \
    }
MSL_BUILTIN_1(fabs, fabs)
MSL_BUILTIN_1(acos, acos)
MSL_BUILTIN_1(acosh, acosh)
MSL_BUILTIN_1(asin, asin)
MSL_BUILTIN_1(asinh, asinh)
MSL_BUILTIN_1(atan, atan)
MSL_BUILTIN_1(atanh, atanh)
MSL_BUILTIN_1(ceil, ceil)
MSL_BUILTIN_1(cos, cos)
MSL_BUILTIN_1(cosh, cosh)
MSL_BUILTIN_1(cospi, cospi)
MSL_BUILTIN_1(exp, exp)
MSL_BUILTIN_1(exp2, exp2)
MSL_BUILTIN_1(exp10, exp10)
MSL_BUILTIN_1(floor, floor)
MSL_BUILTIN_1(fract, fract)
MSL_BUILTIN_1(log, log)
MSL_BUILTIN_1(log2, log2)
MSL_BUILTIN_1(log10, log10)
MSL_BUILTIN_1(rint, rint)
MSL_BUILTIN_1(round, round)
MSL_BUILTIN_1(rsqrt, rsqrt)
MSL_BUILTIN_1(sin, sin)
MSL_BUILTIN_1(sinh, sinh)
MSL_BUILTIN_1(sinpi, sinpi)
MSL_BUILTIN_1(sqrt, sqrt)
MSL_BUILTIN_1(tan, tan)
MSL_BUILTIN_1(tanh, tanh)
MSL_BUILTIN_1(tanpi, tanpi)
MSL_BUILTIN_1(trunc, trunc)
MSL_BUILTIN_2(atan2, atan2)
MSL_BUILTIN_2(fmax, fmax)
MSL_BUILTIN_2(fmin, fmin)
MSL_BUILTIN_2(fmod, fmod)
MSL_BUILTIN_2(pow, pow)
MSL_BUILTIN_2(powr, powr)
MSL_BUILTIN_3(fma, fma)
MSL_BUILTIN_3(fmax3, max3)
MSL_BUILTIN_3(fmin3, min3)
MSL_BUILTIN_3(fmedian3, median3)
MSL_I float __metal_divide(float x, float y, bool) {
    return x / y;
}
MSL_I float __metal_nextafter(float x, float y) {
    return nextafter(x, y);
}
MSL_I float __metal_ldexp(float x, int k, bool) {
    return ldexp(x, k);
}
MSL_I float __metal_frexp(float x, int *e) {
    return frexp(x, *e);
}

#define MSL_BUILTIN_SIMD_1(name)                                                                                       \
    template <class T> MSL_I T __metal_##name(T x) {                                                                   \
        return name(x);                                                                                                \
    }
#define MSL_BUILTIN_SIMD_2(name)                                                                                       \
    template <class T> MSL_I T __metal_##name(T x, ushort n) {                                                         \
        return name(x, n);                                                                                             \
    }
MSL_BUILTIN_SIMD_1(simd_sum)
MSL_BUILTIN_SIMD_1(simd_product)
MSL_BUILTIN_SIMD_1(simd_max)
MSL_BUILTIN_SIMD_1(simd_min)
MSL_BUILTIN_SIMD_1(simd_prefix_exclusive_sum)
MSL_BUILTIN_SIMD_1(simd_prefix_inclusive_sum)
MSL_BUILTIN_SIMD_1(simd_prefix_exclusive_product)
MSL_BUILTIN_SIMD_1(simd_prefix_inclusive_product)
MSL_BUILTIN_SIMD_2(simd_broadcast)
MSL_BUILTIN_SIMD_2(simd_shuffle)
MSL_BUILTIN_SIMD_2(simd_shuffle_xor)
MSL_BUILTIN_SIMD_2(simd_shuffle_up)
MSL_BUILTIN_SIMD_2(simd_shuffle_down)
MSL_BUILTIN_SIMD_2(simd_shuffle_rotate_up)
MSL_BUILTIN_SIMD_2(simd_shuffle_rotate_down)
/* On floats the operation does not exist; sources that name it for a type of their own never call it. */
MSL_I float __metal_simd_xor(float x) {
    return x;
}
template <class T> MSL_I T __metal_simd_shuffle_and_fill_up(T x, T fill, ushort n, ushort modulo) {
    return simd_shuffle_and_fill_up(x, fill, n, modulo);
}
template <class T> MSL_I T __metal_simd_shuffle_and_fill_down(T x, T fill, ushort n, ushort modulo) {
    return simd_shuffle_and_fill_down(x, fill, n, modulo);
}
MSL_I ushort __metal_get_thread_index_in_simdgroup(ushort) {
    return (ushort)msl_lane();
}
/* Traits that sources ask: lanes of a vector; whether simd_sum and its kin take a type. */
template <class T> struct vec_elements { static constexpr uint value = msl_info<T>::size; };
template <class T> struct __is_valid_simdgroup_type : bool_constant<is_arithmetic<T>::value && sizeof(T) < 8> {};
template <> struct __is_valid_simdgroup_type<bool> : bool_constant<false> {};
template <class T, int N> struct __is_valid_simdgroup_type<vec<T, N>> : __is_valid_simdgroup_type<T> {};

MSL_I ushort __metal_get_simdgroup_size(ushort) {
    return 32;
}

/* A float function that a source has for its own types is called with half too. Metal finds the one of float; here,
 * where half is a class, nothing would tell it from the source's other classes. */
template <class T, enable_if_t<is_same_v<T, half>, int> = 0> MSL_I float log1p(T x) {
    return MSL_B(log1pf)(float(x));
}

/* What a texture is used for: a tag of templates where there are no textures. */
enum class access { sample, read, write, read_write };

/* <metal_assert>: asserts nothing, as where Metal validates no shaders. */
template <class T> MSL_C void assert(const T &) {}

} // namespace metal
} // namespace msl_unit

/* clang's, in sources that count bits in constant expressions, or turn words. */
#ifdef SL_MSL_CUDA
namespace msl_unit {
namespace metal {
MSL_I ulong msl_swap_bytes(ulong x) {
    return (ulong)::__byte_perm((uint)x, 0, 0x0123) << 32 | ::__byte_perm((uint)(x >> 32), 0, 0x0123);
}
} // namespace metal
} // namespace msl_unit
#define __builtin_ctz(x)        ((int)::msl_unit::metal::msl_ctz((::msl_unit::metal::uint)(x)))
#define __builtin_ctzl(x)       ((int)::msl_unit::metal::msl_ctz((::msl_unit::metal::ulong)(x)))
#define __builtin_clz(x)        ((int)::msl_unit::metal::msl_clz((::msl_unit::metal::uint)(x)))
#define __builtin_clzl(x)       ((int)::msl_unit::metal::msl_clz((::msl_unit::metal::ulong)(x)))
#define __builtin_popcount(x)   ((int)::msl_unit::metal::msl_popcount((::msl_unit::metal::uint)(x)))
#define __builtin_popcountl(x)  ((int)::msl_unit::metal::msl_popcount((::msl_unit::metal::ulong)(x)))
#define __builtin_unreachable() __trap()
#define __builtin_clzll(x)      __builtin_clzl(x)
#define __builtin_ctzll(x)      __builtin_ctzl(x)
#define __builtin_popcountll(x) __builtin_popcountl(x)
#define __builtin_bswap16(x)    ((::msl_unit::metal::ushort)(::__byte_perm((::msl_unit::metal::uint)(x), 0, 0x4401)))
#define __builtin_bswap32(x)    (::__byte_perm((::msl_unit::metal::uint)(x), 0, 0x0123))
#define __builtin_bswap64(x)    (::msl_unit::metal::msl_swap_bytes((::msl_unit::metal::ulong)(x)))
#define __builtin_rotateleft8(x, n)                                                                                    \
    (::msl_unit::metal::msl_rotate((::msl_unit::metal::uchar)(x), (::msl_unit::metal::uchar)(n)))
#define __builtin_rotateleft16(x, n)                                                                                   \
    (::msl_unit::metal::msl_rotate((::msl_unit::metal::ushort)(x), (::msl_unit::metal::ushort)(n)))
#define __builtin_rotateleft32(x, n)                                                                                   \
    (::msl_unit::metal::msl_rotate((::msl_unit::metal::uint)(x), (::msl_unit::metal::uint)(n)))
#define __builtin_rotateleft64(x, n)                                                                                   \
    (::msl_unit::metal::msl_rotate((::msl_unit::metal::ulong)(x), (::msl_unit::metal::ulong)(n)))
#define __builtin_rotateright32(x, n) __builtin_rotateleft32(x, 0u - (::msl_unit::metal::uint)(n))
#define __builtin_rotateright64(x, n) __builtin_rotateleft64(x, 0ul - (::msl_unit::metal::ulong)(n))
#define __builtin_bitreverse32(x)     (::msl_unit::metal::msl_reverse((::msl_unit::metal::uint)(x)))
#define __builtin_bitreverse64(x)     (::msl_unit::metal::msl_reverse((::msl_unit::metal::ulong)(x)))
#endif

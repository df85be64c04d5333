/* types.h: first part of the prelude, Metal's standard library for translated kernels. Integers, half, bfloat, as_type,
 * type traits.
 *
 * The prelude is C++17 for two back ends: soft (clang, host) and cuda (NVRTC or nvcc, sm_90; no host headers). A unit
 * defines SL_MSL_SOFT or SL_MSL_CUDA and holds the parts in the order types, limits, vector, math, relational, integer,
 * matrix, simd, atomic, simdgroup_matrix, kernel. What kernels may use lies in namespace metal; names that begin with
 * msl_ or MSL_ are the prelude's own. Everything is constexpr that Metal allows in a constant's initialiser. */
#if !defined(SL_MSL_SOFT) && !defined(SL_MSL_CUDA)
#error "the prelude needs SL_MSL_SOFT or SL_MSL_CUDA"
#endif

#ifdef SL_MSL_CUDA
#pragma nv_diag_suppress 186 /* an unsigned value compared with zero, in templates */
#pragma nv_diag_suppress 177 /* declared but not used */
#define _Static_assert static_assert
#define __extension__
#define MSL_FN            __device__
#define MSL_I             static __device__ __forceinline__
#define MSL_M             __device__ __forceinline__ /* member functions */
#define MSL_COPY          ::memcpy
#define MSL_CONSTANT_DATA static __device__ constexpr const
#else
#define MSL_FN
#define MSL_I             static inline __attribute__((always_inline, unused))
#define MSL_M             inline __attribute__((always_inline))
#define MSL_COPY          __builtin_memcpy
#define MSL_CONSTANT_DATA static const
#undef offsetof
#define offsetof __builtin_offsetof
static const soft_api *msl_api; /* set by the unit's soft_init */
#endif
#define MSL_C      MSL_I constexpr
#define MSL_MC     MSL_M constexpr
#define MSL_UNROLL _Pragma("unroll")

/* Address spaces, erased. */
#define MSL_DEVICE
#define MSL_CONSTANT
#define MSL_THREAD
#define MSL_THREADGROUP

#ifdef SL_MSL_CUDA
#ifdef __CUDACC_RTC__
#define __builtin_offsetof(T, member) ((::msl_unit::metal::size_t)__INTADDR__(&((T *)0)->member))
#define offsetof __builtin_offsetof
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
typedef long intptr_t;
#else
#include <stddef.h>
#include <stdint.h>
#endif
#endif

/* User code lies in msl_unit with `using namespace metal`: so its names hide the host compiler's float4, max, exp. */
namespace msl_unit {
namespace metal {

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef decltype(sizeof 0) size_t;
typedef decltype((char *)0 - (char *)0) ptrdiff_t;
using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::int8_t;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
using ::uint8_t;

/* ---- <metal_type_traits> ----------------------------------------------------------------------------------------- */

template <class T, T V> struct integral_constant {
    static constexpr T value = V;
    typedef T value_type;
    typedef integral_constant type;
    MSL_MC operator T() const { return V; }
    MSL_MC T operator()() const { return V; }
};
template <bool B> using bool_constant = integral_constant<bool, B>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;

template <bool C, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool C, class T = void> using enable_if_t = typename enable_if<C, T>::type;
template <bool C, class A, class B> struct conditional { typedef A type; };
template <class A, class B> struct conditional<false, A, B> { typedef B type; };
template <bool C, class A, class B> using conditional_t = typename conditional<C, A, B>::type;
template <class...> using msl_void_t = void;
template <class T> struct type_identity { typedef T type; };
template <class T> using type_identity_t = typename type_identity<T>::type;

#define MSL_TRAIT(name)     template <class T> constexpr bool name##_v = name<T>::value;
#define MSL_TRANSFORM(name) template <class T> using name##_t = typename name<T>::type;

template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};
template <class A, class B> constexpr bool is_same_v = is_same<A, B>::value;

template <class T> struct remove_const : type_identity<T> {};
template <class T> struct remove_const<const T> : type_identity<T> {};
template <class T> struct remove_volatile : type_identity<T> {};
template <class T> struct remove_volatile<volatile T> : type_identity<T> {};
template <class T> struct remove_cv : remove_const<typename remove_volatile<T>::type> {};
template <class T> struct remove_reference : type_identity<T> {};
template <class T> struct remove_reference<T &> : type_identity<T> {};
template <class T> struct remove_reference<T &&> : type_identity<T> {};
template <class T> struct remove_pointer : type_identity<T> {};
template <class T> struct remove_pointer<T *> : type_identity<T> {};
template <class T> struct remove_pointer<T *const> : type_identity<T> {};
template <class T> struct remove_extent : type_identity<T> {};
template <class T> struct remove_extent<T[]> : type_identity<T> {};
template <class T, size_t N> struct remove_extent<T[N]> : type_identity<T> {};
template <class T> struct add_const : type_identity<const T> {};
template <class T> struct add_pointer : type_identity<typename remove_reference<T>::type *> {};
template <class T> struct add_lvalue_reference : type_identity<T &> {};
template <> struct add_lvalue_reference<void> : type_identity<void> {};
template <class T> struct add_rvalue_reference : type_identity<T &&> {};
template <> struct add_rvalue_reference<void> : type_identity<void> {};
template <class T> using remove_cvref_t = typename remove_cv<typename remove_reference<T>::type>::type;
template <class T> struct remove_cvref : type_identity<remove_cvref_t<T>> {};
/* Address spaces are erased before these could see them. */
template <class T> struct remove_addrspace : type_identity<T> {};
MSL_TRANSFORM(remove_const)
MSL_TRANSFORM(remove_volatile)
MSL_TRANSFORM(remove_cv)
MSL_TRANSFORM(remove_reference)
MSL_TRANSFORM(remove_pointer)
MSL_TRANSFORM(remove_extent)
MSL_TRANSFORM(add_const)
MSL_TRANSFORM(add_pointer)
MSL_TRANSFORM(add_lvalue_reference)
MSL_TRANSFORM(add_rvalue_reference)
MSL_TRANSFORM(remove_addrspace)
template <class T> typename add_rvalue_reference<T>::type declval() noexcept;

template <class T> struct decay {
    typedef typename remove_reference<T>::type msl_u;
    template <class U> static U msl_f(U);
    typedef decltype(msl_f(declval<msl_u>())) type;
};
MSL_TRANSFORM(decay)

struct half;
struct bfloat;

template <class T> struct msl_int : false_type {};
#define MSL_INT(T)                                                                                                     \
    template <> struct msl_int<T> : true_type {};
MSL_INT(bool)
MSL_INT(char)
MSL_INT(signed char)
MSL_INT(unsigned char)
MSL_INT(short)
MSL_INT(unsigned short)
MSL_INT(int)
MSL_INT(unsigned int)
MSL_INT(long)
MSL_INT(unsigned long)
MSL_INT(long long)
MSL_INT(unsigned long long)
template <class T> struct msl_16 : bool_constant<is_same_v<T, half> || is_same_v<T, bfloat>> {};
template <class T> struct is_integral : msl_int<typename remove_cv<T>::type> {};
template <class T>
struct is_floating_point : bool_constant<is_same_v<remove_cv_t<T>, float> || is_same_v<remove_cv_t<T>, double> ||
                                         msl_16<remove_cv_t<T>>::value> {};
template <class T> struct is_arithmetic : bool_constant<is_integral<T>::value || is_floating_point<T>::value> {};
template <class T> struct is_void : is_same<remove_cv_t<T>, void> {};
template <class T> struct is_const : false_type {};
template <class T> struct is_const<const T> : true_type {};
template <class T> struct is_volatile : false_type {};
template <class T> struct is_volatile<volatile T> : true_type {};
template <class T> struct is_pointer : false_type {};
template <class T> struct is_pointer<T *> : true_type {};
template <class T> struct is_pointer<T *const> : true_type {};
template <class T> struct is_lvalue_reference : false_type {};
template <class T> struct is_lvalue_reference<T &> : true_type {};
template <class T> struct is_rvalue_reference : false_type {};
template <class T> struct is_rvalue_reference<T &&> : true_type {};
template <class T>
struct is_reference : bool_constant<is_lvalue_reference<T>::value || is_rvalue_reference<T>::value> {};
template <class T> struct is_array : false_type {};
template <class T> struct is_array<T[]> : true_type {};
template <class T, size_t N> struct is_array<T[N]> : true_type {};
template <class T> struct is_enum : bool_constant<__is_enum(T)> {};
template <class T> struct is_class : bool_constant<__is_class(T) && !msl_16<remove_cv_t<T>>::value> {};
template <class T> struct is_union : bool_constant<__is_union(T)> {};
template <class T>
struct is_scalar : bool_constant<is_arithmetic<T>::value || is_pointer<T>::value || is_enum<T>::value> {};
template <class T> struct is_trivially_copyable : bool_constant<__is_trivially_copyable(T)> {};
template <class A, class B> struct is_base_of : bool_constant<__is_base_of(A, B)> {};
template <class A, class B> constexpr bool is_base_of_v = is_base_of<A, B>::value;
struct msl_convert {
    template <class B> static true_type f(B);
    template <class B> static false_type f(...);
};
template <class A, class B> struct is_convertible : decltype(msl_convert::template f<B>(declval<A>())) {};
template <class A, class B> constexpr bool is_convertible_v = is_convertible<A, B>::value;
template <class T> struct is_signed : bool_constant<is_floating_point<T>::value> {};
template <> struct is_signed<char> : bool_constant<(char(-1) < char(0))> {};
template <> struct is_signed<signed char> : true_type {};
template <> struct is_signed<short> : true_type {};
template <> struct is_signed<int> : true_type {};
template <> struct is_signed<long> : true_type {};
template <> struct is_signed<long long> : true_type {};
template <class T> struct is_unsigned : bool_constant<is_integral<T>::value && !is_signed<T>::value> {};
MSL_TRAIT(is_integral)
MSL_TRAIT(is_floating_point)
MSL_TRAIT(is_arithmetic)
MSL_TRAIT(is_void)
MSL_TRAIT(is_const)
MSL_TRAIT(is_volatile)
MSL_TRAIT(is_pointer)
MSL_TRAIT(is_lvalue_reference)
MSL_TRAIT(is_rvalue_reference)
MSL_TRAIT(is_reference)
MSL_TRAIT(is_array)
MSL_TRAIT(is_enum)
MSL_TRAIT(is_class)
MSL_TRAIT(is_union)
MSL_TRAIT(is_scalar)
MSL_TRAIT(is_signed)
MSL_TRAIT(is_unsigned)
MSL_TRAIT(is_trivially_copyable)

template <class T> struct make_signed : type_identity<T> {};
template <class T> struct make_unsigned : type_identity<T> {};
#define MSL_SIGNED(S, U)                                                                                               \
    template <> struct make_signed<U> : type_identity<S> {};                                                           \
    template <> struct make_unsigned<S> : type_identity<U> {};
MSL_SIGNED(char, uchar)
MSL_SIGNED(short, ushort)
MSL_SIGNED(int, uint)
MSL_SIGNED(long, ulong)
template <> struct make_unsigned<signed char> : type_identity<uchar> {};
MSL_TRANSFORM(make_signed)
MSL_TRANSFORM(make_unsigned)

template <class...> struct conjunction : true_type {};
template <class A, class... B>
struct conjunction<A, B...> : conditional_t<bool(A::value), conjunction<B...>, false_type> {};
template <class...> struct disjunction : false_type {};
template <class A, class... B>
struct disjunction<A, B...> : conditional_t<bool(A::value), true_type, disjunction<B...>> {};
template <class A> struct negation : bool_constant<!A::value> {};
template <class... A> using _conjunction = conjunction<A...>;
template <class... A> using _disjunction = disjunction<A...>;
template <class A> using _negation = negation<A>;
template <class... A> constexpr bool conjunction_v = conjunction<A...>::value;
template <class... A> constexpr bool disjunction_v = disjunction<A...>::value;
template <class A> constexpr bool negation_v = negation<A>::value;

template <class T> MSL_C T &&forward(remove_reference_t<T> &x) noexcept {
    return static_cast<T &&>(x);
}
template <class T> MSL_C T &&forward(remove_reference_t<T> &&x) noexcept {
    return static_cast<T &&>(x);
}
template <class T> MSL_C remove_reference_t<T> &&move(T &&x) noexcept {
    return static_cast<remove_reference_t<T> &&>(x);
}
template <class T> MSL_C void swap(T &a, T &b) {
    T t = a;
    a = b;
    b = t;
}

/* <metal_uniform>: a promise that all threads hold the same value. */
template <class T> using uniform = T;
template <class T> MSL_C T make_uniform(T v) {
    return v;
}

template <class T, T... I> struct integer_sequence {
    static constexpr size_t size() { return sizeof...(I); }
};
template <size_t... I> using index_sequence = integer_sequence<size_t, I...>;
template <size_t N, size_t... I> struct msl_sequence : msl_sequence<N - 1, N - 1, I...> {};
template <size_t... I> struct msl_sequence<0, I...> : type_identity<index_sequence<I...>> {};
template <size_t N> using make_index_sequence = typename msl_sequence<N>::type;

template <class To, class From> MSL_C To msl_bits(From f) {
    static_assert(sizeof(To) == sizeof(From), "as_type needs types of equal size");
    return __builtin_bit_cast(To, f);
}

/* ---- half and bfloat --------------------------------------------------------------------------------------------- */

/* Conversions by integers: in constant expressions, and where the processor has none. */
MSL_C ushort msl_half_from(float f) {
    uint u = msl_bits<uint>(f), sign = u >> 16 & 0x8000u, m = u & 0x7fffffffu;
    if (m > 0x7f800000u)
        return (ushort)(sign | 0x7e00u | (m >> 13 & 0x3ffu));
    if (m >= 0x47800000u) /* 65536 and more; what lies between rounds up by carry below */
        return (ushort)(sign | 0x7c00u);
    if (m < 0x38800000u) { /* subnormal or zero: units of 2^-24 */
        uint e = m >> 23;
        if (e < 102)
            return (ushort)sign;
        uint k = (m & 0x7fffffu) | 0x800000u, s = 126 - e;
        uint q = k >> s, rest = k & ((1u << s) - 1), tie = 1u << (s - 1);
        return (ushort)(sign | (q + (rest > tie || (rest == tie && (q & 1)))));
    }
    uint r = m + 0xfffu + (m >> 13 & 1);
    return (ushort)(sign | ((r - 0x38000000u) >> 13));
}
MSL_C float msl_half_to(ushort h) {
    uint sign = (uint)(h & 0x8000u) << 16, e = h >> 10 & 31u, m = h & 0x3ffu;
    if (e == 31)
        return msl_bits<float>(sign | 0x7f800000u | m << 13 | (m ? 0x400000u : 0u));
    if (e)
        return msl_bits<float>(sign | ((e + 112) << 23 | m << 13));
    float f = (float)m * 5.9604644775390625e-8f;
    return sign ? -f : f;
}
MSL_C ushort msl_bfloat_from(float f) {
    uint u = msl_bits<uint>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (ushort)(u >> 16 | 64u);
    return (ushort)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

#ifdef SL_MSL_CUDA
MSL_I ushort msl_half_native(float f) {
    ushort h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
MSL_I float msl_float_native(ushort h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
MSL_I ushort msl_bfloat_native(float f) {
    ushort h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
#elif defined(__F16C__) || defined(__aarch64__)
MSL_I ushort msl_half_native(float f) {
    return __builtin_bit_cast(ushort, (__fp16)f);
}
MSL_I float msl_float_native(ushort h) {
    return (float)__builtin_bit_cast(__fp16, h);
}
MSL_I ushort msl_bfloat_native(float f) {
    return msl_bfloat_from(f);
}
#else
MSL_I ushort msl_half_native(float f) {
    return msl_half_from(f);
}
MSL_I float msl_float_native(ushort h) {
    return msl_half_to(h);
}
MSL_I ushort msl_bfloat_native(float f) {
    return msl_bfloat_from(f);
}
#endif

/* An integer as a float from which rounding to bfloat is rounding of the integer: what is shifted out is kept as one
 * sticky bit. (half needs no such care: what float cannot hold is beyond half's range.) */
template <class I> MSL_C float msl_sticky(I i) {
    bool negative = i < I(0);
    unsigned long long m = negative ? 0ull - (unsigned long long)i : (unsigned long long)i;
    float scale = negative ? -1.0f : 1.0f;
    while (m >> 24) {
        m = m >> 1 | (m & 1);
        scale *= 2.0f;
    }
    return (float)m * scale;
}

template <class T> using msl_if_int = enable_if_t<msl_int<T>::value || __is_enum(T), int>;

#define MSL_ASSIGN16(T, op)                                                                                            \
    template <class O> MSL_MC T &operator op##=(O o) {                                                                 \
        return *this = T(*this op o);                                                                                  \
    }
#define MSL_BODY16(T)                                                                                                  \
    MSL_ASSIGN16(T, +)                                                                                                 \
    MSL_ASSIGN16(T, -)                                                                                                 \
    MSL_ASSIGN16(T, *)                                                                                                 \
    MSL_ASSIGN16(T, /)                                                                                                 \
    MSL_MC T &operator++() {                                                                                           \
        return *this = T(float(*this) + 1.0f);                                                                         \
    }                                                                                                                  \
    MSL_MC T &operator--() {                                                                                           \
        return *this = T(float(*this) - 1.0f);                                                                         \
    }                                                                                                                  \
    MSL_MC T operator++(int) {                                                                                         \
        T t = *this;                                                                                                   \
        ++*this;                                                                                                       \
        return t;                                                                                                      \
    }                                                                                                                  \
    MSL_MC T operator--(int) {                                                                                         \
        T t = *this;                                                                                                   \
        --*this;                                                                                                       \
        return t;                                                                                                      \
    }

/* A class that converts to T itself is taken by T's copy constructor; another that converts to float goes through it.
 */
template <class C, class T, class = void> struct msl_converts_to : false_type {};
template <class C, class T>
struct msl_converts_to<C, T, msl_void_t<decltype(declval<C &>().operator T())>> : true_type {};
template <class C, class T>
using msl_if_float_class = enable_if_t<__is_class(remove_cvref_t<C>) && !msl_16<remove_cvref_t<C>>::value &&
                                           !msl_converts_to<C, T>::value && is_convertible<C, float>::value,
                                       int>;
template <class F> using msl_if_plain_float = enable_if_t<is_same_v<F, float> || is_same_v<F, double>, int>;
template <class T, class U> using msl_if_same = enable_if_t<is_same_v<T, U>, int>;

struct half {
    ushort msl_v;
    half() = default;
    template <class F, msl_if_plain_float<F> = 0>
    MSL_MC half(F f) : msl_v(__builtin_is_constant_evaluated() ? msl_half_from((float)f) : msl_half_native((float)f)) {}
    template <class I, msl_if_int<I> = 0> MSL_MC half(I i) : half((float)i) {}
    template <class B, msl_if_same<B, bfloat> = 0> MSL_MC explicit half(B b) : half(float(b)) {}
    template <class C, msl_if_float_class<C, half> = 0> MSL_MC explicit half(C &&c) : half(float(c)) {}
    MSL_MC operator float() const {
        return __builtin_is_constant_evaluated() ? msl_half_to(msl_v) : msl_float_native(msl_v);
    }
    MSL_BODY16(half)
};

struct bfloat {
    ushort msl_v;
    bfloat() = default;
    template <class F, msl_if_plain_float<F> = 0>
    MSL_MC explicit bfloat(F f)
        : msl_v(__builtin_is_constant_evaluated() ? msl_bfloat_from((float)f) : msl_bfloat_native((float)f)) {}
    template <class I, msl_if_int<I> = 0> MSL_MC bfloat(I i) : bfloat(sizeof(I) < 4 ? (float)i : msl_sticky(i)) {}
    template <class H, msl_if_same<H, half> = 0> MSL_MC explicit bfloat(H h) : bfloat(float(h)) {}
    template <class C, msl_if_float_class<C, bfloat> = 0> MSL_MC explicit bfloat(C &&c) : bfloat(float(c)) {}
    MSL_MC operator float() const { return msl_bits<float>((uint)msl_v << 16); }
    MSL_BODY16(bfloat)
};

/* The type of A op B where one of them is half or bfloat: with itself or an integer it stays, else float. */
template <class A, class B, class = void> struct msl_mix {};
template <class T> struct msl_mix<T, T, enable_if_t<msl_16<T>::value>> : type_identity<T> {};
template <class T, class I>
struct msl_mix<T, I, enable_if_t<msl_16<T>::value && msl_int<I>::value>> : type_identity<T> {};
template <class T, class I>
struct msl_mix<I, T, enable_if_t<msl_16<T>::value && msl_int<I>::value>> : type_identity<T> {};
template <class T> struct msl_mix<T, float, enable_if_t<msl_16<T>::value>> : type_identity<float> {};
template <class T> struct msl_mix<float, T, enable_if_t<msl_16<T>::value>> : type_identity<float> {};
template <class T> struct msl_mix<T, double, enable_if_t<msl_16<T>::value>> : type_identity<float> {};
template <class T> struct msl_mix<double, T, enable_if_t<msl_16<T>::value>> : type_identity<float> {};
template <> struct msl_mix<half, bfloat> : type_identity<float> {};
template <> struct msl_mix<bfloat, half> : type_identity<float> {};
template <class A, class B> using msl_mix_t = typename msl_mix<A, B>::type;

/* One rounding from a float result is exact for these four: float has more than twice the digits plus two. */
#define MSL_OP16(op)                                                                                                   \
    template <class A, class B, class R = msl_mix_t<A, B>> MSL_C R operator op(A a, B b) {                             \
        return R(float(R(a)) op float(R(b)));                                                                          \
    }
#define MSL_CMP16(op)                                                                                                  \
    template <class A, class B, class R = msl_mix_t<A, B>> MSL_C bool operator op(A a, B b) {                          \
        return float(R(a)) op float(R(b));                                                                             \
    }
MSL_OP16(+)
MSL_OP16(-)
MSL_OP16(*)
MSL_OP16(/)
MSL_CMP16(<)
MSL_CMP16(>)
MSL_CMP16(<=)
MSL_CMP16(>=)
MSL_CMP16(==)
MSL_CMP16(!=)
MSL_C half operator+(half a) {
    return a;
}
MSL_C bfloat operator+(bfloat a) {
    return a;
}
MSL_C half operator-(half a) {
    a.msl_v ^= 0x8000;
    return a;
}
MSL_C bfloat operator-(bfloat a) {
    a.msl_v ^= 0x8000;
    return a;
}

} // namespace metal
} // namespace msl_unit

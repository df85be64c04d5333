/* math.h: <metal_math>, <metal_common>, <metal_relational>, <metal_geometric>.
 *
 * A function of half, bfloat or of their vectors is the float function with its result rounded once. metal::f and
 * metal::precise::f are the same here: fast math is off unless a kernel says fast::f, which on cuda is the hardware's
 * approximation where there is one and on soft the same function again. Overloads are one per type, as in Metal: mixing
 * types in max(x, 0) stays an error. The bfloat ones are templates, so that sources may bring their own. */
#ifdef SL_MSL_CUDA
#define MSL_B(f) ::f
#else
#define MSL_B(f) __builtin_##f
#endif

#define M_E_F         2.71828182845904523536f
#define M_LOG2E_F     1.44269504088896340736f
#define M_LOG10E_F    0.434294481903251827651f
#define M_LN2_F       0.693147180559945309417f
#define M_LN10_F      2.30258509299404568402f
#define M_PI_F        3.14159265358979323846f
#define M_PI_2_F      1.57079632679489661923f
#define M_PI_4_F      0.785398163397448309616f
#define M_1_PI_F      0.318309886183790671538f
#define M_2_PI_F      0.636619772367581343076f
#define M_2_SQRTPI_F  1.12837916709551257390f
#define M_SQRT2_F     1.41421356237309504880f
#define M_SQRT1_2_F   0.707106781186547524401f
#define M_E_H         (metal::half(2.71828182845904523536f))
#define M_LOG2E_H     (metal::half(1.44269504088896340736f))
#define M_LOG10E_H    (metal::half(0.434294481903251827651f))
#define M_LN2_H       (metal::half(0.693147180559945309417f))
#define M_LN10_H      (metal::half(2.30258509299404568402f))
#define M_PI_H        (metal::half(3.14159265358979323846f))
#define M_PI_2_H      (metal::half(1.57079632679489661923f))
#define M_PI_4_H      (metal::half(0.785398163397448309616f))
#define M_1_PI_H      (metal::half(0.318309886183790671538f))
#define M_2_PI_H      (metal::half(0.636619772367581343076f))
#define M_2_SQRTPI_H  (metal::half(1.12837916709551257390f))
#define M_SQRT2_H     (metal::half(1.41421356237309504880f))
#define M_SQRT1_2_H   (metal::half(0.707106781186547524401f))
#define M_E_BF        (metal::bfloat(2.71828182845904523536f))
#define M_LOG2E_BF    (metal::bfloat(1.44269504088896340736f))
#define M_LOG10E_BF   (metal::bfloat(0.434294481903251827651f))
#define M_LN2_BF      (metal::bfloat(0.693147180559945309417f))
#define M_LN10_BF     (metal::bfloat(2.30258509299404568402f))
#define M_PI_BF       (metal::bfloat(3.14159265358979323846f))
#define M_PI_2_BF     (metal::bfloat(1.57079632679489661923f))
#define M_PI_4_BF     (metal::bfloat(0.785398163397448309616f))
#define M_1_PI_BF     (metal::bfloat(0.318309886183790671538f))
#define M_2_PI_BF     (metal::bfloat(0.636619772367581343076f))
#define M_2_SQRTPI_BF (metal::bfloat(1.12837916709551257390f))
#define M_SQRT2_BF    (metal::bfloat(1.41421356237309504880f))
#define M_SQRT1_2_BF  (metal::bfloat(0.707106781186547524401f))

#undef FLT_MAX
#undef FLT_MIN
#undef FLT_EPSILON
#undef FLT_DIG
#undef FLT_MANT_DIG
#undef FLT_RADIX
#undef FLT_MAX_EXP
#undef FLT_MIN_EXP
#undef FLT_MAX_10_EXP
#undef FLT_MIN_10_EXP
#define FLT_DIG        6
#define FLT_MANT_DIG   24
#define FLT_MAX_EXP    128
#define FLT_MIN_EXP    (-125)
#define FLT_MAX_10_EXP 38
#define FLT_MIN_10_EXP (-37)
#define FLT_RADIX      2
#define FLT_MAX        3.402823466385288598e+38f
#define FLT_MIN        1.175494350822287508e-38f
#define FLT_EPSILON    1.1920928955078125e-7f
#define HALF_DIG       3
#define HALF_MANT_DIG  11
#define HALF_MAX_EXP   16
#define HALF_MIN_EXP   (-13)
#define HALF_RADIX     2
#define HALF_MAX       (metal::half(65504.0f))
#define HALF_MIN       (metal::half(6.103515625e-5f))
#define HALF_EPSILON   (metal::half(9.765625e-4f))
#undef CHAR_BIT
#undef SCHAR_MAX
#undef SCHAR_MIN
#undef UCHAR_MAX
#undef CHAR_MAX
#undef CHAR_MIN
#undef SHRT_MAX
#undef SHRT_MIN
#undef USHRT_MAX
#undef INT_MAX
#undef INT_MIN
#undef UINT_MAX
#undef LONG_MAX
#undef LONG_MIN
#undef ULONG_MAX
#define CHAR_BIT  8
#define SCHAR_MAX 127
#define SCHAR_MIN (-128)
#define UCHAR_MAX 255
#define CHAR_MAX  127
#define CHAR_MIN  (-128)
#define SHRT_MAX  32767
#define SHRT_MIN  (-32768)
#define USHRT_MAX 65535
#define INT_MAX   2147483647
#define INT_MIN   (-2147483647 - 1)
#define UINT_MAX  4294967295u
#define LONG_MAX  9223372036854775807l
#define LONG_MIN  (-9223372036854775807l - 1)
#define ULONG_MAX 18446744073709551615ul

#define FP_ILOGB0   (-2147483647 - 1)
#define FP_ILOGBNAN (-2147483647 - 1)

namespace msl_unit {
namespace metal {

template <class T> using msl_if_bf = enable_if_t<is_same_v<T, bfloat>, int>;

/* The vector type of three mixed operands. */
template <class A, class B, class C, class = void> struct msl_vmix3 {};
template <class A, class B, class C>
struct msl_vmix3<A, B, C, enable_if_t<msl_is_vec<A>>> : msl_vmix<msl_vmix_t<A, B>, C> {};
template <class A, class B, class C>
struct msl_vmix3<A, B, C, enable_if_t<!msl_is_vec<A> && msl_is_vec<B>>> : msl_vmix<msl_vmix_t<A, B>, C> {};
template <class A, class B, class C>
struct msl_vmix3<A, B, C, enable_if_t<msl_info<A>::scalar && msl_info<B>::scalar && msl_is_vec<C>>> : msl_info<C> {};
template <class A, class B, class C> using msl_vmix3_t = typename msl_vmix3<A, B, C>::type;
/* Only vectors of floating types. */
template <class V> using msl_if_fv = enable_if_t<is_floating_point<typename msl_info<V>::element>::value, int>;

/* ---- functions of one, two and three floats ---------------------------------------------------------------------- */

/* MSL_Fn(name, expression in float a, b, c): for float, half, bfloat and vectors of them. */
#define MSL_F1(name, ...)                                                                                              \
    struct msl_f_##name {                                                                                              \
        template <class T> MSL_M T operator()(T va) const {                                                            \
            float a = float(va);                                                                                       \
            return T(__VA_ARGS__);                                                                                     \
        }                                                                                                              \
    };                                                                                                                 \
    MSL_I float name(float a) {                                                                                        \
        return msl_f_##name{}(a);                                                                                      \
    }                                                                                                                  \
    MSL_I half name(half a) {                                                                                          \
        return msl_f_##name{}(a);                                                                                      \
    }                                                                                                                  \
    template <class T, msl_if_bf<T> = 0> MSL_I T name(T a) {                                                           \
        return msl_f_##name{}(a);                                                                                      \
    }                                                                                                                  \
    template <class A, class V = msl_vec_t<A>, msl_if_fv<V> = 0> MSL_I V name(const A &a) {                            \
        return msl_map<V>(msl_f_##name{}, a);                                                                          \
    }
#define MSL_F2(name, ...)                                                                                              \
    struct msl_f_##name {                                                                                              \
        template <class T> MSL_M T operator()(T va, T vb) const {                                                      \
            float a = float(va), b = float(vb);                                                                        \
            return T(__VA_ARGS__);                                                                                     \
        }                                                                                                              \
    };                                                                                                                 \
    MSL_I float name(float a, float b) {                                                                               \
        return msl_f_##name{}(a, b);                                                                                   \
    }                                                                                                                  \
    MSL_I half name(half a, half b) {                                                                                  \
        return msl_f_##name{}(a, b);                                                                                   \
    }                                                                                                                  \
    template <class T, msl_if_bf<T> = 0> MSL_I T name(T a, T b) {                                                      \
        return msl_f_##name{}(a, b);                                                                                   \
    }                                                                                                                  \
    template <class A, class B, class V = msl_vmix_t<A, B>, msl_if_fv<V> = 0> MSL_I V name(const A &a, const B &b) {   \
        return msl_map<V>(msl_f_##name{}, V(a), V(b));                                                                 \
    }
#define MSL_F3(name, ...)                                                                                              \
    struct msl_f_##name {                                                                                              \
        template <class T> MSL_M T operator()(T va, T vb, T vc) const {                                                \
            float a = float(va), b = float(vb), c = float(vc);                                                         \
            return T(__VA_ARGS__);                                                                                     \
        }                                                                                                              \
    };                                                                                                                 \
    MSL_I float name(float a, float b, float c) {                                                                      \
        return msl_f_##name{}(a, b, c);                                                                                \
    }                                                                                                                  \
    MSL_I half name(half a, half b, half c) {                                                                          \
        return msl_f_##name{}(a, b, c);                                                                                \
    }                                                                                                                  \
    template <class T, msl_if_bf<T> = 0> MSL_I T name(T a, T b, T c) {                                                 \
        return msl_f_##name{}(a, b, c);                                                                                \
    }                                                                                                                  \
    template <class A, class B, class C, class V = msl_vmix3_t<A, B, C>, msl_if_fv<V> = 0>                             \
    MSL_I V name(const A &a, const B &b, const C &c) {                                                                 \
        return msl_map<V>(msl_f_##name{}, V(a), V(b), V(c));                                                           \
    }

/* Float helpers that the expressions use. A NaN operand of min and max gives way to the other. */
#ifdef SL_MSL_CUDA
MSL_I float msl_fmax(float a, float b) {
    return ::fmaxf(a, b);
}
MSL_I float msl_fmin(float a, float b) {
    return ::fminf(a, b);
}
MSL_I float msl_sinpi(float a) {
    return ::sinpif(a);
}
MSL_I float msl_cospi(float a) {
    return ::cospif(a);
}
#else
MSL_I float msl_fmax(float a, float b) {
    return a < b || a != a ? b : a;
}
MSL_I float msl_fmin(float a, float b) {
    return b < a || a != a ? b : a;
}
/* The remainder by 2 is exact. */
MSL_I float msl_sinpi(float a) {
    double r = a - 2.0 * __builtin_rint(a * 0.5), t = r > 0.5 ? 1.0 - r : r < -0.5 ? -1.0 - r : r;
    return (float)__builtin_sin(3.14159265358979323846 * t);
}
MSL_I float msl_cospi(float a) {
    double r = __builtin_fabs(a - 2.0 * __builtin_rint(a * 0.5));
    return (float)__builtin_sin(3.14159265358979323846 * (0.5 - r));
}
#endif
#ifdef SL_MSL_CUDA
MSL_I float msl_exp10(float a) {
    return ::exp10f(a);
}
#else
MSL_I float msl_exp10(float a) {
    return (float)__builtin_pow(10.0, a);
}
#endif
MSL_I float msl_sign(float a) {
    return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a == 0.0f ? a : 0.0f;
}
MSL_I float msl_clamp(float x, float low, float high) {
    return msl_fmin(msl_fmax(x, low), high);
}
MSL_I float msl_fract(float a) {
    return msl_fmin(a - MSL_B(floorf)(a), 0.999999940395355224609375f);
}
MSL_I float msl_smooth(float low, float high, float x) {
    float t = msl_clamp((x - low) / (high - low), 0.0f, 1.0f);
    return t * t * (3.0f - 2.0f * t);
}
MSL_I float msl_median(float a, float b, float c) {
    return msl_fmax(msl_fmin(a, b), msl_fmin(msl_fmax(a, b), c));
}

/* Those of which there may be a fast form. */
#define MSL_MATH(EXP, EXP2, EXP10, LOG, LOG2, LOG10, SIN, COS, TAN, POW, DIV, RSQRT)                                   \
    MSL_F1(acos, MSL_B(acosf)(a))                                                                                      \
    MSL_F1(acosh, MSL_B(acoshf)(a))                                                                                    \
    MSL_F1(asin, MSL_B(asinf)(a))                                                                                      \
    MSL_F1(asinh, MSL_B(asinhf)(a))                                                                                    \
    MSL_F1(atan, MSL_B(atanf)(a))                                                                                      \
    MSL_F1(atanh, MSL_B(atanhf)(a))                                                                                    \
    MSL_F1(ceil, MSL_B(ceilf)(a))                                                                                      \
    MSL_F1(cos, COS)                                                                                                   \
    MSL_F1(cosh, MSL_B(coshf)(a))                                                                                      \
    MSL_F1(cospi, msl_cospi(a))                                                                                        \
    MSL_F1(exp, EXP)                                                                                                   \
    MSL_F1(exp2, EXP2)                                                                                                 \
    MSL_F1(exp10, EXP10)                                                                                               \
    MSL_F1(fabs, MSL_B(fabsf)(a))                                                                                      \
    MSL_F1(floor, MSL_B(floorf)(a))                                                                                    \
    MSL_F1(fract, msl_fract(a))                                                                                        \
    MSL_F1(log, LOG)                                                                                                   \
    MSL_F1(log2, LOG2)                                                                                                 \
    MSL_F1(log10, LOG10)                                                                                               \
    MSL_F1(rint, MSL_B(rintf)(a))                                                                                      \
    MSL_F1(round, MSL_B(roundf)(a))                                                                                    \
    MSL_F1(rsqrt, RSQRT)                                                                                               \
    MSL_F1(saturate, msl_clamp(a, 0.0f, 1.0f))                                                                         \
    MSL_F1(sign, msl_sign(a))                                                                                          \
    MSL_F1(sin, SIN)                                                                                                   \
    MSL_F1(sinh, MSL_B(sinhf)(a))                                                                                      \
    MSL_F1(sinpi, msl_sinpi(a))                                                                                        \
    MSL_F1(sqrt, MSL_B(sqrtf)(a))                                                                                      \
    MSL_F1(tan, TAN)                                                                                                   \
    MSL_F1(tanh, MSL_B(tanhf)(a))                                                                                      \
    MSL_F1(tanpi, msl_sinpi(a) / msl_cospi(a))                                                                         \
    MSL_F1(trunc, MSL_B(truncf)(a))                                                                                    \
    MSL_F2(atan2, MSL_B(atan2f)(a, b))                                                                                 \
    MSL_F2(copysign, MSL_B(copysignf)(a, b))                                                                           \
    MSL_F2(divide, DIV)                                                                                                \
    MSL_F2(fdim, MSL_B(fdimf)(a, b))                                                                                   \
    MSL_F2(fmax, msl_fmax(a, b))                                                                                       \
    MSL_F2(fmin, msl_fmin(a, b))                                                                                       \
    MSL_F2(fmod, MSL_B(fmodf)(a, b))                                                                                   \
    MSL_F2(max, msl_fmax(a, b))                                                                                        \
    MSL_F2(min, msl_fmin(a, b))                                                                                        \
    MSL_F2(pow, POW)                                                                                                   \
    MSL_F2(powr, POW)                                                                                                  \
    MSL_F2(step, b < a ? 0.0f : 1.0f)                                                                                  \
    MSL_F3(clamp, msl_clamp(a, b, c))                                                                                  \
    MSL_F3(fmax3, msl_fmax(a, msl_fmax(b, c)))                                                                         \
    MSL_F3(fmin3, msl_fmin(a, msl_fmin(b, c)))                                                                         \
    MSL_F3(fmedian3, msl_median(a, b, c))                                                                              \
    MSL_F3(max3, msl_fmax(a, msl_fmax(b, c)))                                                                          \
    MSL_F3(min3, msl_fmin(a, msl_fmin(b, c)))                                                                          \
    MSL_F3(median3, msl_median(a, b, c))                                                                               \
    MSL_F3(mix, a + (b - a) * c)                                                                                       \
    MSL_F3(smoothstep, msl_smooth(a, b, c))                                                                            \
    MSL_F1(abs, MSL_B(fabsf)(a))                                                                                       \
    MSL_SINCOS
/* The sine, and the cosine through a reference. */
#define MSL_SINCOS                                                                                                     \
    template <class T, enable_if_t<is_floating_point<T>::value || msl_is_vec<T>, int> = 0> MSL_I T sincos(T a, T &c) { \
        c = cos(a);                                                                                                    \
        return sin(a);                                                                                                 \
    }

#define MSL_EXACT_MATH                                                                                                 \
    MSL_MATH(MSL_B(expf)(a), MSL_B(exp2f)(a), msl_exp10(a), MSL_B(logf)(a), MSL_B(log2f)(a), MSL_B(log10f)(a),         \
             MSL_B(sinf)(a), MSL_B(cosf)(a), MSL_B(tanf)(a), MSL_B(powf)(a, b), a / b, 1.0f / MSL_B(sqrtf)(a))
namespace precise {
MSL_EXACT_MATH
}
namespace fast {
#ifdef SL_MSL_CUDA
MSL_MATH(::__expf(a), ::exp2f(a), ::__exp10f(a), ::__logf(a), ::__log2f(a), ::__log10f(a), ::__sinf(a), ::__cosf(a),
         ::__tanf(a), ::__powf(a, b), ::__fdividef(a, b), ::rsqrtf(a))
#else
MSL_EXACT_MATH
#endif
} // namespace fast
MSL_EXACT_MATH

/* ---- fma: rounded once ------------------------------------------------------------------------------------------- */

#ifdef SL_MSL_CUDA
MSL_I float fma(float a, float b, float c) {
    return ::fmaf(a, b, c);
}
MSL_I half fma(half a, half b, half c) {
    half r;
    asm("fma.rn.f16 %0, %1, %2, %3;" : "=h"(r.msl_v) : "h"(a.msl_v), "h"(b.msl_v), "h"(c.msl_v));
    return r;
}
template <class T, msl_if_bf<T> = 0> MSL_I T fma(T a, T b, T c) {
    T r;
    asm("fma.rn.bf16 %0, %1, %2, %3;" : "=h"(r.msl_v) : "h"(a.msl_v), "h"(b.msl_v), "h"(c.msl_v));
    return r;
}
#else
MSL_I float fma(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
/* a * b + c (a * b exact in double) as a float rounded to odd, from which a second rounding to fewer digits is as good
 * as the first. */
MSL_I float msl_fma_odd(float a, float b, float c) {
    double p = (double)a * b, s = p + c, t = s - p, low = (p - (s - t)) + (c - t);
    if (s - s != 0.0)
        return (float)s;
    ulong bits = msl_bits<ulong>(s);
    if (low != 0.0 && !(bits & 1))
        s = msl_bits<double>((low > 0.0) == (s > 0.0) ? bits + 1 : bits - 1);
    float f = (float)s;
    if ((double)f == s)
        return f;
    uint u = msl_bits<uint>(f);
    if (__builtin_fabs((double)f) > __builtin_fabs(s))
        u--;
    return msl_bits<float>(u | 1);
}
MSL_I half fma(half a, half b, half c) {
    return half(msl_fma_odd(a, b, c));
}
template <class T, msl_if_bf<T> = 0> MSL_I T fma(T a, T b, T c) {
    return T(msl_fma_odd(a, b, c));
}
#endif
struct msl_fma {
    template <class T> MSL_M T operator()(T a, T b, T c) const { return fma(a, b, c); }
};
template <class A, class B, class C, class V = msl_vmix3_t<A, B, C>> MSL_I V fma(const A &a, const B &b, const C &c) {
    return msl_map<V>(msl_fma{}, V(a), V(b), V(c));
}
namespace precise {
using metal::fma;
}
namespace fast {
using metal::fma;
}

/* ---- parts of a number ------------------------------------------------------------------------------------------- */

template <class T> using msl_if_float = enable_if_t<is_floating_point<T>::value, int>;

MSL_I float msl_ldexp(float a, int e) {
    return MSL_B(ldexpf)(a, e);
}
template <class T, msl_if_float<T> = 0> MSL_I T ldexp(T a, int e) {
    return T(msl_ldexp(float(a), e));
}
template <class T, int N> MSL_I vec<T, N> ldexp(vec<T, N> a, vec<int, N> e) {
    vec<T, N> r(0);
    MSL_UNROLL for (int i = 0; i < N; i++) r[i] = ldexp(a[i], e[i]);
    return r;
}
template <class T, int N> MSL_I vec<T, N> ldexp(vec<T, N> a, int e) {
    return ldexp(a, vec<int, N>(e));
}

template <class T, msl_if_float<T> = 0> MSL_I T frexp(T a, int &e) {
    e = 0;
    return T(MSL_B(frexpf)(float(a), &e));
}
template <class T, int N> MSL_I vec<T, N> frexp(vec<T, N> a, vec<int, N> &e) {
    vec<T, N> r(0);
    MSL_UNROLL for (int i = 0; i < N; i++) r[i] = frexp(a[i], e[i]);
    return r;
}
template <class T, msl_if_float<T> = 0> MSL_I T modf(T a, T &whole) {
    float t = MSL_B(truncf)(float(a)), f = float(a) - t;
    whole = T(t);
    return T(MSL_B(copysignf)(t - t != 0.0f && float(a) == float(a) ? 0.0f : f, float(a)));
}
template <class T, int N> MSL_I vec<T, N> modf(vec<T, N> a, vec<T, N> &whole) {
    vec<T, N> r(0);
    MSL_UNROLL for (int i = 0; i < N; i++) r[i] = modf(a[i], whole[i]);
    return r;
}
template <class T, msl_if_float<T> = 0> MSL_I int ilogb(T a) {
    float x = float(a);
    return x == 0.0f || x != x ? FP_ILOGB0 : x - x != 0.0f ? INT_MAX : MSL_B(ilogbf)(x);
}
template <class T, int N> MSL_I vec<int, N> ilogb(vec<T, N> a) {
    vec<int, N> r(0);
    MSL_UNROLL for (int i = 0; i < N; i++) r[i] = ilogb(a[i]);
    return r;
}

/* Steps of the type's own bits. */
template <class T, class U> MSL_I T msl_next(T a, T b) {
    if (a != a || b != b)
        return a != a ? a : b;
    if (a == b)
        return b;
    constexpr U sign = U(U(1) << (sizeof(U) * 8 - 1));
    U u = msl_bits<U>(a);
    if (!(u & ~sign))
        return msl_bits<T>(U(1 | (msl_bits<U>(b) & sign)));
    return msl_bits<T>(U((a < b) == !(u & sign) ? u + 1 : u - 1));
}
MSL_I float nextafter(float a, float b) {
    return msl_next<float, uint>(a, b);
}
MSL_I half nextafter(half a, half b) {
    return msl_next<half, ushort>(a, b);
}
template <class T, msl_if_bf<T> = 0> MSL_I T nextafter(T a, T b) {
    return msl_next<T, ushort>(a, b);
}
template <class T, int N> MSL_I vec<T, N> nextafter(vec<T, N> a, vec<T, N> b) {
    vec<T, N> r(0);
    MSL_UNROLL for (int i = 0; i < N; i++) r[i] = nextafter(a[i], b[i]);
    return r;
}

#define MSL_ALSO(ns)                                                                                                   \
    namespace ns {                                                                                                     \
    using metal::frexp;                                                                                                \
    using metal::ilogb;                                                                                                \
    using metal::ldexp;                                                                                                \
    using metal::modf;                                                                                                 \
    using metal::nextafter;                                                                                            \
    }
MSL_ALSO(precise)
MSL_ALSO(fast)

/* ---- relational -------------------------------------------------------------------------------------------------- */

/* By bits: these hold under fast math too. */
#define MSL_TEST(name, ...)                                                                                            \
    struct msl_t_##name {                                                                                              \
        template <class T> MSL_M bool operator()(T v) const {                                                          \
            uint u = msl_bits<uint>(float(v)), a = u & 0x7fffffffu;                                                    \
            (void)a;                                                                                                   \
            return __VA_ARGS__;                                                                                        \
        }                                                                                                              \
    };                                                                                                                 \
    template <class T, msl_if_float<T> = 0> MSL_I bool name(T v) {                                                     \
        return msl_t_##name{}(v);                                                                                      \
    }                                                                                                                  \
    template <class A, class V = msl_vec_t<A>> MSL_I vec<bool, msl_info<V>::size> name(const A &v) {                   \
        return msl_map<vec<bool, msl_info<V>::size>>(msl_t_##name{}, v);                                               \
    }
MSL_TEST(isfinite, a < 0x7f800000u)
MSL_TEST(isinf, a == 0x7f800000u)
MSL_TEST(isnan, a > 0x7f800000u)
MSL_TEST(isnormal, a < 0x7f800000u && a >= (is_same_v<T, half> ? 0x38800000u : 0x00800000u))
MSL_TEST(signbit, u >> 31 != 0)
template <class A, class B> MSL_I auto isordered(A a, B b) -> decltype(isnan(a)) {
    return !isnan(a) && !isnan(b);
}
template <class A, class B> MSL_I auto isunordered(A a, B b) -> decltype(isnan(a)) {
    return isnan(a) || isnan(b);
}

MSL_C bool any(bool a) {
    return a;
}
MSL_C bool all(bool a) {
    return a;
}
template <class A, class V = msl_vec_t<A>> MSL_C bool any(const A &v) {
    bool r = false;
    for (int i = 0; i < msl_info<V>::size; i++)
        r = r || bool(v[i]);
    return r;
}
template <class A, class V = msl_vec_t<A>> MSL_C bool all(const A &v) {
    bool r = true;
    for (int i = 0; i < msl_info<V>::size; i++)
        r = r && bool(v[i]);
    return r;
}

#define MSL_SELECT(T)                                                                                                  \
    MSL_C T select(T a, T b, bool c) {                                                                                 \
        return c ? b : a;                                                                                              \
    }
MSL_SELECT(bool)
MSL_SELECT(char)
MSL_SELECT(uchar)
MSL_SELECT(short)
MSL_SELECT(ushort)
MSL_SELECT(int)
MSL_SELECT(uint)
MSL_SELECT(long)
MSL_SELECT(ulong)
MSL_SELECT(half)
MSL_SELECT(float)
template <class T, msl_if_bf<T> = 0> MSL_C T select(T a, T b, bool c) {
    return c ? b : a;
}
struct msl_select {
    template <class T> MSL_MC T operator()(T a, T b, bool c) const { return c ? b : a; }
};
template <class A, class B, class C, class V = msl_vmix_t<A, B>> MSL_C V select(const A &a, const B &b, const C &c) {
    return msl_map<V>(msl_select{}, V(a), V(b), vec<bool, msl_info<V>::size>(c));
}

/* ---- geometric --------------------------------------------------------------------------------------------------- */

template <class A, class B, class V = msl_vmix_t<A, B>>
MSL_C typename msl_info<V>::element dot(const A &a, const B &b) {
    V x(a), y(b);
    typename msl_info<V>::element r = x.x * y.x;
    r = r + x.y * y.y;
    if constexpr (msl_info<V>::size > 2)
        r = r + x.z * y.z;
    if constexpr (msl_info<V>::size > 3)
        r = r + x.w * y.w;
    return r;
}
template <class A, class B, class V = msl_vmix_t<A, B>> MSL_C V cross(const A &a, const B &b) {
    V x(a), y(b);
    return V(x.y * y.z - x.z * y.y, x.z * y.x - x.x * y.z, x.x * y.y - x.y * y.x);
}
#define MSL_GEOMETRY                                                                                                   \
    template <class A, class V = msl_vec_t<A>> MSL_I auto length_squared(const A &a) {                                 \
        return metal::dot(a, a);                                                                                       \
    }                                                                                                                  \
    template <class A, class V = msl_vec_t<A>> MSL_I auto length(const A &a) {                                         \
        typedef typename msl_info<V>::element T;                                                                       \
        float s = 0.0f;                                                                                                \
        for (int i = 0; i < msl_info<V>::size; i++)                                                                    \
            s += float(a[i]) * float(a[i]);                                                                            \
        return T(MSL_B(sqrtf)(s));                                                                                     \
    }                                                                                                                  \
    template <class A, class B, class V = msl_vmix_t<A, B>> MSL_I auto distance(const A &a, const B &b) {              \
        return length(V(V(a) - V(b)));                                                                                 \
    }                                                                                                                  \
    template <class A, class B, class V = msl_vmix_t<A, B>> MSL_I auto distance_squared(const A &a, const B &b) {      \
        return length_squared(V(V(a) - V(b)));                                                                         \
    }                                                                                                                  \
    template <class A, class V = msl_vec_t<A>> MSL_I V normalize(const A &a) {                                         \
        float s = 0.0f;                                                                                                \
        for (int i = 0; i < msl_info<V>::size; i++)                                                                    \
            s += float(a[i]) * float(a[i]);                                                                            \
        V r(0);                                                                                                        \
        s = 1.0f / MSL_B(sqrtf)(s);                                                                                    \
        for (int i = 0; i < msl_info<V>::size; i++)                                                                    \
            r[i] = typename msl_info<V>::element(float(a[i]) * s);                                                     \
        return r;                                                                                                      \
    }
namespace precise {
MSL_GEOMETRY
using metal::cross;
using metal::dot;
} // namespace precise
namespace fast {
MSL_GEOMETRY
using metal::cross;
using metal::dot;
} // namespace fast
MSL_GEOMETRY
template <class V> MSL_I V faceforward(V n, V i, V reference) {
    return dot(reference, i) < 0.0f ? n : -n;
}
template <class V> MSL_I V reflect(V i, V n) {
    return i - n * (dot(n, i) * 2.0f);
}
template <class T, int N> MSL_I vec<T, N> refract(vec<T, N> i, vec<T, N> n, T eta) {
    float d = float(dot(n, i)), e = float(eta), k = 1.0f - e * e * (1.0f - d * d);
    return k < 0.0f ? vec<T, N>(0) : vec<T, N>(i * eta - n * T(e * d + MSL_B(sqrtf)(k)));
}

} // namespace metal
} // namespace msl_unit

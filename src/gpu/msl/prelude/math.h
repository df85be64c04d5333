/* math.h: <metal_math>, <metal_common>.
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
/* The sine, and the cosine through a reference. In parentheses they are those of this namespace: nothing is looked for
 * beside the arguments' type. */
#define MSL_SINCOS                                                                                                     \
    template <class T, enable_if_t<is_floating_point<T>::value || msl_is_vec<T>, int> = 0> MSL_I T sincos(T a, T &c) { \
        c = (cos)(a);                                                                                                  \
        return (sin)(a);                                                                                               \
    }

#define MSL_EXACT_MATH                                                                                                 \
    MSL_MATH(MSL_B(expf)(a), MSL_B(exp2f)(a), msl_exp10(a), MSL_B(logf)(a), MSL_B(log2f)(a), MSL_B(log10f)(a),         \
             MSL_B(sinf)(a), MSL_B(cosf)(a), MSL_B(tanf)(a), MSL_B(powf)(a, b), a / b, 1.0f / MSL_B(sqrtf)(a))
namespace precise {
MSL_EXACT_MATH
}
namespace fast {
#ifdef SL_MSL_CUDA
MSL_I float msl_exp2(float a) { /* one instruction: results below 2^-126 are 0 */
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
    return r;
}
MSL_MATH(::__expf(a), msl_exp2(a), ::__exp10f(a), ::__logf(a), ::__log2f(a), ::__log10f(a), ::__sinf(a), ::__cosf(a),
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
using ::msl_unit::metal::fma;
}
namespace fast {
using ::msl_unit::metal::fma;
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
template <class T, msl_if_float<T> = 0> MSL_I T frexp(T a, int *e) {
    return frexp(a, *e);
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
    using ::msl_unit::metal::frexp;                                                                                    \
    using ::msl_unit::metal::ilogb;                                                                                    \
    using ::msl_unit::metal::ldexp;                                                                                    \
    using ::msl_unit::metal::modf;                                                                                     \
    using ::msl_unit::metal::nextafter;                                                                                \
    }
MSL_ALSO(precise)
MSL_ALSO(fast)

} // namespace metal
} // namespace msl_unit

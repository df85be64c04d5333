/* relational.h: <metal_relational>, <metal_geometric>. */
namespace msl_unit {
namespace metal {

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
        return ::msl_unit::metal::dot(a, a);                                                                           \
    }                                                                                                                  \
    template <class A, class V = msl_vec_t<A>> MSL_I auto length(const A &a) {                                         \
        typedef typename msl_info<V>::element T;                                                                       \
        float s = 0.0f;                                                                                                \
        for (int i = 0; i < msl_info<V>::size; i++)                                                                    \
            s += float(a[i]) * float(a[i]);                                                                            \
        return T(MSL_B(sqrtf)(s));                                                                                     \
    }                                                                                                                  \
    template <class A, class B, class V = msl_vmix_t<A, B>> MSL_I auto distance(const A &a, const B &b) {              \
        return (length)(V(V(a) - V(b)));                                                                               \
    }                                                                                                                  \
    template <class A, class B, class V = msl_vmix_t<A, B>> MSL_I auto distance_squared(const A &a, const B &b) {      \
        return (length_squared)(V(V(a) - V(b)));                                                                       \
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
using ::msl_unit::metal::cross;
using ::msl_unit::metal::dot;
} // namespace precise
namespace fast {
MSL_GEOMETRY
using ::msl_unit::metal::cross;
using ::msl_unit::metal::dot;
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
#define MSL_ALSO_GEOMETRY(ns)                                                                                          \
    namespace ns {                                                                                                     \
    using ::msl_unit::metal::faceforward;                                                                              \
    using ::msl_unit::metal::reflect;                                                                                  \
    using ::msl_unit::metal::refract;                                                                                  \
    }
MSL_ALSO_GEOMETRY(precise)
MSL_ALSO_GEOMETRY(fast)

} // namespace metal
} // namespace msl_unit

/* vector.h: vec<T, 2 | 3 | 4>, packed_vec, their operators, swizzles.
 *
 * The translator writes a swizzle that is read as v.MSL_SW(0, 2) and one that is assigned to as v.MSL_SW_SET(0, 2);
 * single components are members. Operators take any mix of one vector (or packed vector) with a scalar or with a vector
 * of the same kind; a scalar is converted to the vector's element type. */
#define MSL_SW(...)     template msl_sw<__VA_ARGS__>()
#define MSL_SW_SET(...) template msl_set<__VA_ARGS__>()

namespace msl_unit {
namespace metal {

template <class T, int N> struct vec;
template <class T, int N> struct packed_vec;

/* ---- which types mix --------------------------------------------------------------------------------------------- */

template <class A> struct msl_info {
    static constexpr int size = 1;
    static constexpr bool scalar = msl_int<A>::value || is_floating_point<A>::value || is_enum<A>::value;
};
template <class T, int N> struct msl_info<vec<T, N>> {
    typedef vec<T, N> type;
    typedef T element;
    static constexpr int size = N;
    static constexpr bool scalar = false;
};
template <class T, int N> struct msl_info<packed_vec<T, N>> : msl_info<vec<T, N>> {};
/* The vector type of a vector or packed vector; no type for others. */
template <class A> using msl_vec_t = typename msl_info<A>::type;
template <class A> constexpr bool msl_is_vec = (msl_info<A>::size > 1);

/* The vector type of A op B. */
template <class A, class B, class = void> struct msl_vmix {};
template <class A, class B>
struct msl_vmix<A, B, enable_if_t<msl_is_vec<A> && msl_is_vec<B> && is_same_v<msl_vec_t<A>, msl_vec_t<B>>>>
    : type_identity<msl_vec_t<A>> {};
template <class A, class B>
struct msl_vmix<A, B, enable_if_t<msl_is_vec<A> && msl_info<B>::scalar>> : type_identity<msl_vec_t<A>> {};
template <class A, class B>
struct msl_vmix<A, B, enable_if_t<msl_info<A>::scalar && msl_is_vec<B>>> : type_identity<msl_vec_t<B>> {};
template <class A, class B> using msl_vmix_t = typename msl_vmix<A, B>::type;

/* ---- assignment to several components ---------------------------------------------------------------------------- */

template <class T, int... I> struct msl_lvalue {
    typedef vec<T, sizeof...(I)> V;
    T *p; /* the first component */
    MSL_M V get() const { return V(p[I]...); }
    MSL_M operator V() const { return get(); }
    MSL_M V operator=(const V &v) const {
        int k = 0;
        ((p[I] = v[k++]), ...);
        return v;
    }
    MSL_M V operator=(const msl_lvalue &o) const { return *this = o.get(); }
    template <int... J> MSL_M V operator=(const msl_lvalue<T, J...> &o) const { return *this = o.get(); }
#define MSL_LV(op)                                                                                                     \
    template <class O> MSL_M V operator op##=(const O &o) const {                                                      \
        return *this = V(get() op o);                                                                                  \
    }
    MSL_LV(+)
    MSL_LV(-)
    MSL_LV(*)
    MSL_LV(/)
    MSL_LV(%)
    MSL_LV(&)
    MSL_LV(|)
    MSL_LV(^)
    MSL_LV(<<)
    MSL_LV(>>)
    MSL_M V operator++() const {
        return *this = V(get() + T(1));
    }
    MSL_M V operator--() const {
        return *this = V(get() - T(1));
    }
    MSL_M V operator++(int) const {
        V v = get();
        *this = V(v + T(1));
        return v;
    }
    MSL_M V operator--(int) const {
        V v = get();
        *this = V(v - T(1));
        return v;
    }
};

/* ---- the types --------------------------------------------------------------------------------------------------- */

/* Components of a constructor's mixed arguments, in order. */
template <class T, int N> struct msl_list {
    T e[N];
    int n;
    template <class A> MSL_MC void add(const A &a) {
        if constexpr (msl_is_vec<A>) {
            for (int i = 0; i < msl_info<A>::size; i++)
                e[n++] = T(a[i]);
        } else
            e[n++] = T(a);
    }
    template <class... A> MSL_MC msl_list(const A &...a) : e{}, n(0) { (add(a), ...); }
};
template <int N, class... A>
constexpr bool msl_mixed = (sizeof...(A) > 1 && sizeof...(A) < N && (msl_info<A>::size + ... + 0) == N);
template <int N, class... A> constexpr bool msl_plain = (sizeof...(A) == N && (!msl_is_vec<A> && ...));

#define MSL_MEMBER_ASSIGN(V, op)                                                                                       \
    template <class O> MSL_MC V &operator op##=(const O &o) {                                                          \
        return *this = V(*this op o);                                                                                  \
    }
#define MSL_VEC_BODY(V, T, N)                                                                                          \
    V() = default;                                                                                                     \
    template <class... A, enable_if_t<msl_mixed<N, A...>, int> = 0>                                                    \
    MSL_MC V(const A &...a) : V(msl_list<T, N>(a...)) {}                                                               \
    MSL_MC T &operator[](int i) {                                                                                      \
        return __builtin_is_constant_evaluated() ? msl_at(i) : (&x)[i];                                                \
    }                                                                                                                  \
    MSL_MC const T &operator[](int i) const {                                                                          \
        return __builtin_is_constant_evaluated() ? const_cast<V *>(this)->msl_at(i) : (&x)[i];                         \
    }                                                                                                                  \
    template <int... I> MSL_MC vec<T, sizeof...(I)> msl_sw() const {                                                   \
        return vec<T, sizeof...(I)>((*this)[I]...);                                                                    \
    }                                                                                                                  \
    template <int... I> MSL_M msl_lvalue<T, I...> msl_set() {                                                          \
        return msl_lvalue<T, I...>{&x};                                                                                \
    }                                                                                                                  \
    MSL_MEMBER_ASSIGN(V, +)                                                                                            \
    MSL_MEMBER_ASSIGN(V, -)                                                                                            \
    MSL_MEMBER_ASSIGN(V, *)                                                                                            \
    MSL_MEMBER_ASSIGN(V, /)                                                                                            \
    MSL_MEMBER_ASSIGN(V, %)                                                                                            \
    MSL_MEMBER_ASSIGN(V, &)                                                                                            \
    MSL_MEMBER_ASSIGN(V, |)                                                                                            \
    MSL_MEMBER_ASSIGN(V, ^)                                                                                            \
    MSL_MEMBER_ASSIGN(V, <<)                                                                                           \
    MSL_MEMBER_ASSIGN(V, >>)                                                                                           \
    MSL_MC V &operator++() {                                                                                           \
        return *this += T(1);                                                                                          \
    }                                                                                                                  \
    MSL_MC V &operator--() {                                                                                           \
        return *this -= T(1);                                                                                          \
    }                                                                                                                  \
    MSL_MC V operator++(int) {                                                                                         \
        V v = *this;                                                                                                   \
        ++*this;                                                                                                       \
        return v;                                                                                                      \
    }                                                                                                                  \
    MSL_MC V operator--(int) {                                                                                         \
        V v = *this;                                                                                                   \
        --*this;                                                                                                       \
        return v;                                                                                                      \
    }
#define MSL_SPLAT(V) template <class S, enable_if_t<msl_info<S>::scalar, int> = 0> MSL_MC V(S s)

#define MSL_BODY2(V, T)                                                                                                \
    union {                                                                                                            \
        T x, r;                                                                                                        \
    };                                                                                                                 \
    union {                                                                                                            \
        T y, g;                                                                                                        \
    };                                                                                                                 \
    MSL_SPLAT(V) : x(T(s)), y(T(s)) {}                                                                                 \
    template <class A, class B, enable_if_t<msl_plain<2, A, B>, int> = 0>                                              \
    MSL_MC V(const A &a, const B &b) : x(T(a)), y(T(b)) {}                                                             \
    MSL_MC V(const msl_list<T, 2> &l) : x(l.e[0]), y(l.e[1]) {}                                                        \
    MSL_MC T &msl_at(int i) {                                                                                          \
        return i ? y : x;                                                                                              \
    }                                                                                                                  \
    MSL_VEC_BODY(V, T, 2)
#define MSL_BODY3(V, T)                                                                                                \
    union {                                                                                                            \
        T x, r;                                                                                                        \
    };                                                                                                                 \
    union {                                                                                                            \
        T y, g;                                                                                                        \
    };                                                                                                                 \
    union {                                                                                                            \
        T z, b;                                                                                                        \
    };                                                                                                                 \
    MSL_SPLAT(V) : x(T(s)), y(T(s)), z(T(s)) {}                                                                        \
    template <class A, class B, class C, enable_if_t<msl_plain<3, A, B, C>, int> = 0>                                  \
    MSL_MC V(const A &a_, const B &b_, const C &c_) : x(T(a_)), y(T(b_)), z(T(c_)) {}                                  \
    MSL_MC V(const msl_list<T, 3> &l) : x(l.e[0]), y(l.e[1]), z(l.e[2]) {}                                             \
    MSL_MC T &msl_at(int i) {                                                                                          \
        return i == 0 ? x : i == 1 ? y : z;                                                                            \
    }                                                                                                                  \
    MSL_VEC_BODY(V, T, 3)
#define MSL_BODY4(V, T)                                                                                                \
    union {                                                                                                            \
        T x, r;                                                                                                        \
    };                                                                                                                 \
    union {                                                                                                            \
        T y, g;                                                                                                        \
    };                                                                                                                 \
    union {                                                                                                            \
        T z, b;                                                                                                        \
    };                                                                                                                 \
    union {                                                                                                            \
        T w, a;                                                                                                        \
    };                                                                                                                 \
    MSL_SPLAT(V) : x(T(s)), y(T(s)), z(T(s)), w(T(s)) {}                                                               \
    template <class A, class B, class C, class D, enable_if_t<msl_plain<4, A, B, C, D>, int> = 0>                      \
    MSL_MC V(const A &a_, const B &b_, const C &c_, const D &d_) : x(T(a_)), y(T(b_)), z(T(c_)), w(T(d_)) {}           \
    MSL_MC V(const msl_list<T, 4> &l) : x(l.e[0]), y(l.e[1]), z(l.e[2]), w(l.e[3]) {}                                  \
    MSL_MC T &msl_at(int i) {                                                                                          \
        return i == 0 ? x : i == 1 ? y : i == 2 ? z : w;                                                               \
    }                                                                                                                  \
    MSL_VEC_BODY(V, T, 4)

#define MSL_CONVERT2                                                                                                   \
    MSL_MC explicit vec(const vec<U, 2> &o) : x(T(o.x)), y(T(o.y)) {}
#define MSL_CONVERT3                                                                                                   \
    MSL_MC explicit vec(const vec<U, 3> &o) : x(T(o.x)), y(T(o.y)), z(T(o.z)) {}
#define MSL_CONVERT4                                                                                                   \
    MSL_MC explicit vec(const vec<U, 4> &o) : x(T(o.x)), y(T(o.y)), z(T(o.z)), w(T(o.w)) {}
#define MSL_VEC(N, ALIGN)                                                                                              \
    template <class T> struct alignas(ALIGN * sizeof(T)) vec<T, N> {                                                   \
        MSL_BODY##N(vec, T) template <class U, enable_if_t<!is_same_v<U, T>, int> = 0> MSL_CONVERT##N                  \
    };                                                                                                                 \
    template <class T> struct packed_vec<T, N> {                                                                       \
        MSL_BODY##N(packed_vec, T) MSL_MC packed_vec(const vec<T, N> &v) : packed_vec(msl_list<T, N>(v)) {}            \
        template <class U, enable_if_t<!is_same_v<U, T>, int> = 0>                                                     \
        MSL_MC explicit packed_vec(const vec<U, N> &v) : packed_vec(msl_list<T, N>(v)) {}                              \
        MSL_MC operator vec<T, N>() const { return vec<T, N>(msl_list<T, N>(*this)); }                                 \
        template <class U, enable_if_t<!is_same_v<U, T>, int> = 0> MSL_MC explicit operator vec<U, N>() const {        \
            return vec<U, N>(msl_list<U, N>(*this));                                                                   \
        }                                                                                                              \
    };
MSL_VEC(2, 2)
MSL_VEC(3, 4)
MSL_VEC(4, 4)

#define MSL_NAMES(T, name)                                                                                             \
    typedef vec<T, 2> name##2;                                                                                         \
    typedef vec<T, 3> name##3;                                                                                         \
    typedef vec<T, 4> name##4;                                                                                         \
    typedef packed_vec<T, 2> packed_##name##2;                                                                         \
    typedef packed_vec<T, 3> packed_##name##3;                                                                         \
    typedef packed_vec<T, 4> packed_##name##4;
MSL_NAMES(bool, bool)
MSL_NAMES(char, char)
MSL_NAMES(uchar, uchar)
MSL_NAMES(short, short)
MSL_NAMES(ushort, ushort)
MSL_NAMES(int, int)
MSL_NAMES(uint, uint)
MSL_NAMES(long, long)
MSL_NAMES(ulong, ulong)
MSL_NAMES(half, half)
MSL_NAMES(bfloat, bfloat)
MSL_NAMES(float, float)

/* ---- operators --------------------------------------------------------------------------------------------------- */

/* Calls f on the components of vectors a, b, c. */
template <class R, class F, class A> MSL_C R msl_map(F f, const A &a) {
    if constexpr (msl_info<R>::size == 2)
        return R(f(a.x), f(a.y));
    else if constexpr (msl_info<R>::size == 3)
        return R(f(a.x), f(a.y), f(a.z));
    else
        return R(f(a.x), f(a.y), f(a.z), f(a.w));
}
template <class R, class F, class A, class B> MSL_C R msl_map(F f, const A &a, const B &b) {
    if constexpr (msl_info<R>::size == 2)
        return R(f(a.x, b.x), f(a.y, b.y));
    else if constexpr (msl_info<R>::size == 3)
        return R(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z));
    else
        return R(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w));
}
template <class R, class F, class A, class B, class C> MSL_C R msl_map(F f, const A &a, const B &b, const C &c) {
    if constexpr (msl_info<R>::size == 2)
        return R(f(a.x, b.x, c.x), f(a.y, b.y, c.y));
    else if constexpr (msl_info<R>::size == 3)
        return R(f(a.x, b.x, c.x), f(a.y, b.y, c.y), f(a.z, b.z, c.z));
    else
        return R(f(a.x, b.x, c.x), f(a.y, b.y, c.y), f(a.z, b.z, c.z), f(a.w, b.w, c.w));
}

#define MSL_VOP(name, op)                                                                                              \
    struct msl_##name {                                                                                                \
        template <class T> MSL_MC T operator()(T a, T b) const { return T(a op b); }                                   \
    };                                                                                                                 \
    template <class A, class B, class V = msl_vmix_t<A, B>> MSL_C V operator op(const A &a, const B &b) {              \
        return msl_map<V>(msl_##name{}, V(a), V(b));                                                                   \
    }
MSL_VOP(plus, +)
MSL_VOP(minus, -)
MSL_VOP(times, *)
MSL_VOP(divide, /)
MSL_VOP(modulo, %)
MSL_VOP(and, &)
MSL_VOP(or, |)
MSL_VOP(xor, ^)

/* The count of a shift may be of another integer type. */
#define MSL_VSHIFT(name, op)                                                                                           \
    struct msl_##name {                                                                                                \
        template <class T, class U> MSL_MC T operator()(T a, U b) const { return T(a op b); }                          \
    };                                                                                                                 \
    template <class A, class B, enable_if_t<msl_is_vec<A> && msl_is_vec<B>, int> = 0>                                  \
    MSL_C msl_vec_t<A> operator op(const A &a, const B &b) {                                                           \
        return msl_map<msl_vec_t<A>>(msl_##name{}, a, b);                                                              \
    }                                                                                                                  \
    template <class A, class B, enable_if_t<msl_is_vec<A> && msl_info<B>::scalar, int> = 0>                            \
    MSL_C msl_vec_t<A> operator op(const A &a, const B &b) {                                                           \
        return msl_map<msl_vec_t<A>>(msl_##name{}, a, vec<B, msl_info<A>::size>(b));                                   \
    }                                                                                                                  \
    template <class A, class B, enable_if_t<msl_info<A>::scalar && msl_is_vec<B>, int> = 0>                            \
    MSL_C msl_vec_t<B> operator op(const A &a, const B &b) {                                                           \
        return msl_map<msl_vec_t<B>>(msl_##name{}, msl_vec_t<B>(a), b);                                                \
    }
MSL_VSHIFT(left, <<)
MSL_VSHIFT(right, >>)

#define MSL_VCMP(name, op)                                                                                             \
    struct msl_##name {                                                                                                \
        template <class T> MSL_MC bool operator()(T a, T b) const { return a op b; }                                   \
    };                                                                                                                 \
    template <class A, class B, class V = msl_vmix_t<A, B>>                                                            \
    MSL_C vec<bool, msl_info<V>::size> operator op(const A &a, const B &b) {                                           \
        return msl_map<vec<bool, msl_info<V>::size>>(msl_##name{}, V(a), V(b));                                        \
    }
MSL_VCMP(less, <)
MSL_VCMP(greater, >)
MSL_VCMP(less_equal, <=)
MSL_VCMP(greater_equal, >=)
MSL_VCMP(equal, ==)
MSL_VCMP(not_equal, !=)
MSL_VCMP(both, &&)
MSL_VCMP(either, ||)

struct msl_negative {
    template <class T> MSL_MC T operator()(T a) const { return T(-a); }
};
struct msl_inverse {
    template <class T> MSL_MC T operator()(T a) const { return T(~a); }
};
struct msl_not {
    template <class T> MSL_MC bool operator()(T a) const { return !a; }
};
template <class A, class V = msl_vec_t<A>> MSL_C V operator+(const A &a) {
    return a;
}
template <class A, class V = msl_vec_t<A>> MSL_C V operator-(const A &a) {
    return msl_map<V>(msl_negative{}, a);
}
template <class A, class V = msl_vec_t<A>> MSL_C V operator~(const A &a) {
    return msl_map<V>(msl_inverse{}, a);
}
template <class A, class V = msl_vec_t<A>> MSL_C vec<bool, msl_info<V>::size> operator!(const A &a) {
    return msl_map<vec<bool, msl_info<V>::size>>(msl_not{}, a);
}

template <class To, class From> MSL_C To as_type(From f) {
    return msl_bits<To>(f);
}

/* ---- array, pair ------------------------------------------------------------------------------------------------- */

template <class T, size_t N> struct array {
    T msl_e[N ? N : 1];
    MSL_MC T &operator[](size_t i) { return msl_e[i]; }
    MSL_MC const T &operator[](size_t i) const { return msl_e[i]; }
    MSL_MC T *data() { return msl_e; }
    MSL_MC const T *data() const { return msl_e; }
    MSL_MC T *begin() { return msl_e; }
    MSL_MC T *end() { return msl_e + N; }
    MSL_MC const T *begin() const { return msl_e; }
    MSL_MC const T *end() const { return msl_e + N; }
    MSL_MC T &front() { return msl_e[0]; }
    MSL_MC T &back() { return msl_e[N - 1]; }
    MSL_FN static constexpr size_t size() { return N; }
    MSL_FN static constexpr size_t max_size() { return N; }
    MSL_FN static constexpr bool empty() { return N == 0; }
    MSL_MC void fill(const T &v) {
        for (size_t i = 0; i < N; i++)
            msl_e[i] = v;
    }
};
template <class A, class B> struct pair {
    A first;
    B second;
};
template <class A, class B> MSL_C pair<A, B> make_pair(A a, B b) {
    return pair<A, B>{a, b};
}

} // namespace metal
} // namespace msl_unit

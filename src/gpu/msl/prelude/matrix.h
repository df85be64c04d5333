/* matrix.h: matrix<T, C, R> with C columns of R rows, as Metal stores them. */
namespace msl_unit {
namespace metal {

template <class T, int C, int R> struct matrix {
    typedef vec<T, R> V;
    V columns[C];
    matrix() = default;
    /* The diagonal. */
    template <class S, enable_if_t<msl_info<S>::scalar, int> = 0> MSL_MC explicit matrix(S s) : columns{} {
        for (int c = 0; c < C; c++)
            for (int r = 0; r < R; r++)
                columns[c][r] = c == r ? T(s) : T(0);
    }
    /* By columns, which may be lists in braces. */
    template <int N = C, enable_if_t<N == 2, int> = 0> MSL_MC matrix(const V &a, const V &b) : columns{a, b} {}
    template <int N = C, enable_if_t<N == 3, int> = 0>
    MSL_MC matrix(const V &a, const V &b, const V &c) : columns{a, b, c} {}
    template <int N = C, enable_if_t<N == 4, int> = 0>
    MSL_MC matrix(const V &a, const V &b, const V &c, const V &d) : columns{a, b, c, d} {}
    /* By elements, column after column. */
    template <class... A, enable_if_t<sizeof...(A) == C * R && (msl_info<A>::scalar && ...), int> = 0>
    MSL_MC matrix(const A &...a) : columns{} {
        const T e[] = {T(a)...};
        for (int i = 0; i < C * R; i++)
            columns[i / R][i % R] = e[i];
    }
    template <class U, enable_if_t<!is_same_v<U, T>, int> = 0>
    MSL_MC explicit matrix(const matrix<U, C, R> &m) : columns{} {
        for (int c = 0; c < C; c++)
            columns[c] = V(m.columns[c]);
    }
    MSL_MC V &operator[](int c) { return columns[c]; }
    MSL_MC const V &operator[](int c) const { return columns[c]; }
};

#define MSL_MATRIX(C, R)                                                                                               \
    typedef matrix<float, C, R> float##C##x##R;                                                                        \
    typedef matrix<half, C, R> half##C##x##R;                                                                          \
    typedef matrix<bfloat, C, R> bfloat##C##x##R;
MSL_MATRIX(2, 2)
MSL_MATRIX(2, 3)
MSL_MATRIX(2, 4)
MSL_MATRIX(3, 2)
MSL_MATRIX(3, 3)
MSL_MATRIX(3, 4)
MSL_MATRIX(4, 2)
MSL_MATRIX(4, 3)
MSL_MATRIX(4, 4)

#define MSL_MATRIX_OP(op)                                                                                              \
    template <class T, int C, int R> MSL_C matrix<T, C, R> operator op(matrix<T, C, R> a, const matrix<T, C, R> &b) {  \
        for (int c = 0; c < C; c++)                                                                                    \
            a.columns[c] = a.columns[c] op b.columns[c];                                                               \
        return a;                                                                                                      \
    }                                                                                                                  \
    template <class T, int C, int R>                                                                                   \
    MSL_C matrix<T, C, R> &operator op##=(matrix<T, C, R> &a, const matrix<T, C, R> &b) {                              \
        return a = a op b;                                                                                             \
    }
MSL_MATRIX_OP(+)
MSL_MATRIX_OP(-)
template <class T, int C, int R> MSL_C matrix<T, C, R> operator-(matrix<T, C, R> a) {
    for (int c = 0; c < C; c++)
        a.columns[c] = -a.columns[c];
    return a;
}
template <class T, int C, int R> MSL_C bool operator==(const matrix<T, C, R> &a, const matrix<T, C, R> &b) {
    bool same = true;
    for (int c = 0; c < C; c++)
        same = same && all(a.columns[c] == b.columns[c]);
    return same;
}
template <class T, int C, int R> MSL_C bool operator!=(const matrix<T, C, R> &a, const matrix<T, C, R> &b) {
    return !(a == b);
}
template <class T, int C, int R, class S, enable_if_t<msl_info<S>::scalar, int> = 0>
MSL_C matrix<T, C, R> operator*(matrix<T, C, R> a, S s) {
    for (int c = 0; c < C; c++)
        a.columns[c] = a.columns[c] * T(s);
    return a;
}
template <class T, int C, int R, class S, enable_if_t<msl_info<S>::scalar, int> = 0>
MSL_C matrix<T, C, R> operator*(S s, const matrix<T, C, R> &a) {
    return a * s;
}
template <class T, int C, int R, class S, enable_if_t<msl_info<S>::scalar, int> = 0>
MSL_C matrix<T, C, R> &operator*=(matrix<T, C, R> &a, S s) {
    return a = a * s;
}
/* Column vector on the right, row vector on the left. */
template <class T, int C, int R> MSL_C vec<T, R> operator*(const matrix<T, C, R> &m, vec<T, C> v) {
    vec<T, R> r = m.columns[0] * v[0];
    for (int c = 1; c < C; c++)
        r = r + m.columns[c] * v[c];
    return r;
}
template <class T, int C, int R> MSL_C vec<T, C> operator*(vec<T, R> v, const matrix<T, C, R> &m) {
    vec<T, C> r(0);
    for (int c = 0; c < C; c++)
        r[c] = dot(v, m.columns[c]);
    return r;
}
template <class T, int K, int R, int C>
MSL_C matrix<T, C, R> operator*(const matrix<T, K, R> &a, const matrix<T, C, K> &b) {
    matrix<T, C, R> m(T(0));
    for (int c = 0; c < C; c++)
        m.columns[c] = a * b.columns[c];
    return m;
}
template <class T, int C, int R> MSL_C matrix<T, C, R> &operator*=(matrix<T, C, R> &a, const matrix<T, C, C> &b) {
    return a = a * b;
}
template <class T, int C, int R> MSL_C matrix<T, R, C> transpose(const matrix<T, C, R> &a) {
    matrix<T, R, C> t(T(0));
    for (int c = 0; c < C; c++)
        for (int r = 0; r < R; r++)
            t.columns[r][c] = a.columns[c][r];
    return t;
}
template <class T> MSL_C T determinant(const matrix<T, 2, 2> &m) {
    return T(m[0][0] * m[1][1] - m[1][0] * m[0][1]);
}
template <class T> MSL_C T determinant(const matrix<T, 3, 3> &m) {
    return dot(m[0], cross(m[1], m[2]));
}
/* By the 2 x 2 minors of the first two columns and those of the last two. */
template <class T> MSL_C T determinant(const matrix<T, 4, 4> &m) {
    const vec<T, 4> &a = m.columns[0], &b = m.columns[1], &c = m.columns[2], &d = m.columns[3];
    T s0 = a.x * b.y - a.y * b.x, s1 = a.x * b.z - a.z * b.x, s2 = a.x * b.w - a.w * b.x;
    T s3 = a.y * b.z - a.z * b.y, s4 = a.y * b.w - a.w * b.y, s5 = a.z * b.w - a.w * b.z;
    T t0 = c.z * d.w - c.w * d.z, t1 = c.y * d.w - c.w * d.y, t2 = c.y * d.z - c.z * d.y;
    T t3 = c.x * d.w - c.w * d.x, t4 = c.x * d.z - c.z * d.x, t5 = c.x * d.y - c.y * d.x;
    return s0 * t0 - s1 * t1 + s2 * t2 + s3 * t3 - s4 * t4 + s5 * t5;
}

} // namespace metal
} // namespace msl_unit

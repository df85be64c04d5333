// Namespaces, templates and address spaces as libraries of kernels use them; compiled, not run.
#include <metal_stdlib>
namespace lib {
namespace metal { // hides the library's own name
constant constexpr unsigned deepest = 4;
template <typename T> ::metal::enable_if_t<::metal::is_floating_point_v<T>, T> larger(T a, T b) {
    return ::metal::isnan(a) ? NAN : ::metal::max(a, b);
}
template <typename T> ::metal::enable_if_t<::metal::is_integral_v<T>, T> larger(T a, T b) { return a < b ? b : a; }
template <typename T> constexpr constant bool is_pair = ::metal::is_same_v<T, float2> || ::metal::is_same_v<T, half2>;
template <typename T, ::metal::enable_if_t<sizeof(T) < 8, bool> = true> inline T widest(T a) { return a; }
template <typename T, ::metal::enable_if_t<sizeof(T) == 8, bool> = true> inline T widest(T a) { return a + 1; }
template <typename T> inline T offset(thread T at[deepest], constant long *strides) { return at[0] * T(strides[0]); }
template <typename T> inline constant T &at(constant void *p, long n) {
    return *reinterpret_cast<constant T *>(static_cast<constant char *>(p) + n);
}
template <typename T> inline device T &at(device void *p, long n) {
    return *reinterpret_cast<device T *>(static_cast<device char *>(p) + n);
}
template <typename F, typename... A> using result = decltype(::metal::declval<F>()(::metal::declval<A>()...));
template <typename T, typename F> kernel void map(device result<F, T> *y [[buffer(0)]], constant T *x [[buffer(1)]],
                                                  constant long *strides, uint i [[thread_position_in_grid]]) {
    F f;
    int where[deepest] = {int(i)};
    y[i] = f(larger(x[offset(where, strides)], at<T>(x, 0)));
}
} // namespace metal
} // namespace lib
using namespace metal;
using namespace lib::metal;
#define unary(name, expression)                                                                                        \
    struct name##_of {                                                                                                 \
        template <typename T> inline T operator()(const T x) { return T(expression); }                                 \
        template <> inline float operator()(const float x) { return expression; }                                      \
    }
unary(root, sqrt(float(x)));
unary(half_of, x / 2);
#define map_kernel(name, T)                                                                                            \
    static_assert(::metal::is_same_v<T, ::lib::metal::result<name##_of, T>>, #name);                                   \
    template [[host_name("map_" #name "_" #T)]] kernel void ::lib::metal::map<T, name##_of>(                           \
        device T *, constant T *, constant long *, uint)
map_kernel(root, float);
map_kernel(root, half);
map_kernel(half_of, int);

template <typename T> struct pointed;
template <typename T> struct pointed<device T *> { using type = T; };
template <typename T> struct pointed<threadgroup T *> { using type = T; };
template <typename T> struct pointed<constant T *> { using type = T; };
template <typename T> struct keyed {
    uint key;
    T value;
    constexpr keyed<T>() threadgroup = default;
    constexpr keyed<T>() thread = default;
    constexpr keyed<T>(uint k, T v) : key(k), value(v) {}
    T get() const thread { return value; }
    T get() const device { return value; }
    T get() const threadgroup { return value; }
    operator float() const thread { return float(value); }
    operator float() const device { return float(value); }
};
template <> struct metal::numeric_limits<keyed<int>> { static constexpr int low = -7; };
template <typename T> constexpr bool operator<(keyed<T> a, keyed<T> b) { return a.value < b.value; }
template <typename T, int N, typename F> struct reducer {
    threadgroup T *shared;
    reducer(threadgroup T shared[N]) { this->shared = shared; }
    T operator()(T v, uint lane) {
        shared[lane] = v;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        _Pragma("clang loop unroll(full)") for (ushort s = N / 2; s > 0; s >>= 1) {
            if (lane < s)
                shared[lane] = F::apply(shared[lane], shared[lane + s]);
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        return shared[0];
    }
};
struct least {
    template <typename T> static T apply(T a, T b) { return b < a ? b : a; }
};
kernel void reduce(device const float *x, device float *y, uint lane [[thread_index_in_threadgroup]]) {
    using pair = keyed<float>;
    threadgroup pair shared[32], one;
    threadgroup typename pointed<device float *>::type last;
    reducer<pair, 32, least> r(shared);
    pair v = r(pair{lane, x[lane]}, lane);
    one = v;
    last = v.get() + one.value;
    y[0] = last + numeric_limits<keyed<int>>::low + widest(1) + widest(1l);
}
template <typename B, short N, void (*unpack)(device const B *, short, thread half4 &)>
kernel void rows(device const B *x, device float *y, threadgroup char *bytes [[threadgroup(0)]],
                 ushort2 i [[thread_position_in_grid]]) {
    half4 v;
    unpack(x, N, v);
    threadgroup half *h = (threadgroup half *)(bytes + 16);
    h[i.x] = v.w;
    y[i.x] = h[i.y] > 0.5h ? v.x : 0;
}
struct block { half scale; uchar codes[16]; };
void unpack_block(device const block *b, short n, thread half4 &v) { v = b->scale * half4(b->codes[n]); }
typedef decltype(rows<block, 2, unpack_block>) rows_t;
template [[host_name("rows_block")]] kernel rows_t rows<block, 2, unpack_block>;

constant bool with_bias [[function_constant(0)]];
constant int width_given [[function_constant(1)]];
constant int width = is_function_constant_defined(width_given) ? width_given : 4;
constant bool wide = width > 2 && !with_bias;
kernel void constants(device float *y [[buffer(0)]], device const float *bias [[buffer(1), function_constant(with_bias)]],
                      constant float (&table)[4] [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    y[i] = table[i & 3] * width;
    if (with_bias)
        y[i] += bias[i];
    if (wide)
        y[i] = 0;
}
/* arguments that the instance's parameters say */
template <typename T, typename U, int N = 3> kernel void deduced(device const vec<T, 4> *a [[buffer(0)]], constant U &b [[buffer(1)]], device T *r [[buffer(2)]], uint i [[thread_position_in_grid]]) { r[i] = a[i].x + b + N; }
template [[host_name("deduced_float")]] kernel void deduced(device const vec<float, 4> *, constant unsigned char &, device float *, uint);
template [[host_name("deduced_half")]] kernel void deduced(const device vec<half, 4> *a [[buffer(0)]], constant long &b [[buffer(1)]], device half *r [[buffer(2)]], uint i [[thread_position_in_grid]]);
template [[host_name("deduced_int")]] kernel void deduced<int>(device const int4 *, constant int &, device int *, uint);

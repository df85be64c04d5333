/* What the kernels use of Metal's library, as declarations for clang's C++ for OpenCL, which keeps address spaces: a
 * device pointer given where a threadgroup pointer is expected is an error there, as it is in Metal. Nothing is
 * computed. Read by test_kernels_spaces only. */
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define device      __global
#define threadgroup __local
#define thread      __private
#define nullptr     0
#define FLT_MAX     3.4e38f

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef int int32_t;
typedef uint uint32_t;
typedef ulong uint64_t;
typedef long int64_t;

template <class T> struct vector2 {
    T x, y;
    vector2() = default;
    vector2(T a) : x(a), y(a) {}
    vector2(T a, T b) : x(a), y(b) {}
    template <class U> explicit vector2(vector2<U> v) : x(v.x), y(v.y) {}
};
template <class T> struct vector3 {
    T x, y, z;
    vector3() = default;
    vector3(T a) : x(a), y(a), z(a) {}
    vector3(T a, T b, T c) : x(a), y(b), z(c) {}
};
template <class T> struct alignas(4 * sizeof(T)) vector4 {
    T x, y, z, w;
    vector4() = default;
    vector4(T a) : x(a), y(a), z(a), w(a) {}
    vector4(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
    template <class U> explicit vector4(vector4<U> v) : x(v.x), y(v.y), z(v.z), w(v.w) {}
    __private T &operator[](uint i) __private { return x; }
    T operator[](uint i) const __private { return x; }
    T operator[](uint i) const __local { return x; }
};
template <class T> struct packed4 {
    T x, y, z, w;
    operator vector4<T>() const __global { return vector4<T>(x, y, z, w); }
};
typedef vector4<float> float4;
typedef vector4<uint> uint4;
typedef vector4<half> half4;
typedef vector4<char> char4;
typedef vector2<float> float2;
typedef vector2<uint> uint2;
typedef vector2<ulong> ulong2;
typedef vector3<uint> uint3;
typedef packed4<float> packed_float4;

#define OPERATOR(V, op)                                                                                                \
    template <class T> V<T> operator op(V<T> a, V<T> b) { return a; }                                                  \
    template <class T> V<T> operator op(V<T> a, T b) { return a; }                                                     \
    template <class T> V<T> operator op(T a, V<T> b) { return b; }
OPERATOR(vector4, +)
OPERATOR(vector4, -)
OPERATOR(vector4, *)
OPERATOR(vector4, &)
OPERATOR(vector4, |)
OPERATOR(vector2, +)
OPERATOR(vector2, -)
OPERATOR(vector2, *)
template <class T> vector2<T> operator-(vector2<T> a) { return a; }
template <class T, class U> void operator+=(thread vector4<T> &a, U b) {}
template <class T, class U> void operator*=(thread vector4<T> &a, U b) {}

template <class To, class From> To as_type(From f) { return To(); }
float fma(float a, float b, float c);
float2 fma(float2 a, float2 b, float2 c);
float4 fma(float4 a, float4 b, float4 c);
float exp(float x);
float log(float x);
float sqrt(float x);
float fabs(float x);
float rint(float x);
namespace precise {
float cos(float x);
float sin(float x);
}
#define COMPARED(T)                                                                                                    \
    T min(T a, T b);                                                                                                   \
    T max(T a, T b);                                                                                                   \
    T clamp(T x, T a, T b);
COMPARED(int)
COMPARED(uint)
COMPARED(float)
#define LANES(T)                                                                                                       \
    T simd_sum(T x);                                                                                                   \
    T simd_max(T x);                                                                                                   \
    T simd_min(T x);                                                                                                   \
    T simd_broadcast_first(T x);                                                                                       \
    T simd_shuffle_xor(T x, ushort mask);                                                                              \
    T simd_shuffle(T x, ushort lane);
LANES(int)
LANES(uint)
LANES(float)
ulong simd_ballot(bool x);
bool simd_all(bool x);
uint popcount(uint x);
enum memory_order { memory_order_relaxed };
void atomic_store_explicit(threadgroup atomic_uint *p, uint v, memory_order o);
uint atomic_load_explicit(threadgroup atomic_uint *p, memory_order o);
uint atomic_fetch_add_explicit(threadgroup atomic_uint *p, uint v, memory_order o);
enum class mem_flags { mem_none, mem_device, mem_threadgroup };
mem_flags operator|(mem_flags a, mem_flags b);
void threadgroup_barrier(mem_flags f);
void simdgroup_barrier(mem_flags f);
bool is_function_constant_defined(bool b);

template <class T> struct matrix8 {
    vector2<T> e;
    thread T *thread_elements() thread { return 0; }
};
typedef matrix8<float> simdgroup_float8x8;
typedef matrix8<half> simdgroup_half8x8;
template <class T, int R, int C> matrix8<T> make_filled_simdgroup_matrix(T v) { return matrix8<T>(); }
template <class T>
void simdgroup_load(thread matrix8<T> &m, device const T *p, ulong stride, ulong2 at = ulong2(0, 0), bool t = false) {}
template <class T>
void simdgroup_load(thread matrix8<T> &m, threadgroup const T *p, ulong stride, ulong2 at = ulong2(0, 0),
                    bool t = false) {}
// references that are not const, as Metal has them
template <class T> void simdgroup_store(thread matrix8<T> &m, threadgroup T *p, ulong stride) {}
void simdgroup_multiply_accumulate(thread simdgroup_float8x8 &d, thread simdgroup_half8x8 &a,
                                   thread simdgroup_half8x8 &b, thread simdgroup_float8x8 &c) {}

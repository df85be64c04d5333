#include <metal_stdlib>
using namespace metal;
#define N 4
#define CAT(a, b) a##b
#define inst(n, ...) template [[host_name("f_" #n)]] [[kernel]] decltype(f<__VA_ARGS__>) f<__VA_ARGS__>;
constant bool has [[function_constant(0)]];
constant int twice = is_function_constant_defined(has) ? 2 : N;
constexpr constant static float table[N] = {1.0, 2h, 0x1p3, .5};
enum { A = 1, B };
struct P { uint n; float3 v; union { half2 h; uint u; }; };
template <typename T> struct S { T a[B]; T get() const device { return a[0]; } T get() const constant { return a[0]; } };
template <typename T, int K = 2> kernel void f(device const T *x [[buffer(0)]], device T *y, constant P &p [[buffer(1)]],
    device int *o [[buffer(3), function_constant(has)]], threadgroup T *t [[threadgroup(0)]],
    uint2 g [[thread_position_in_grid]], ushort l [[thread_index_in_simdgroup]]) {
    threadgroup T s[N][K], u;
    float4 v = float4(x[g.x]);
    v.xy = v.zw + 1.0h;
    #pragma unroll
    for (int i = 0; i < K; i++) y[i] = has ? v.x : T(table[i]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
inst(f32, float) inst(f16, half, 3)
kernel void CAT(g, N)(texture2d<float> t) {}

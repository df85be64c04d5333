#include <metal_stdlib>
using namespace metal;
kernel void k2(device uint *a [[buffer(0)]], device float *f [[buffer(1)]], device half *h [[buffer(2)]], device atomic_uint *c [[buffer(3)]], device atomic_int *ci [[buffer(4)]], device atomic_float *cf [[buffer(5)]], device atomic<ulong> *cu [[buffer(6)]], uint i [[thread_position_in_grid]], ushort l [[thread_index_in_simdgroup]]) {
    uint x = a[i];
    x = popcount(x) + clz(x) + ctz(x) + extract_bits(x, 3, 4) + insert_bits(x, 5u, 3, 4) + reverse_bits(x) + rotate(x, 3u) + mulhi(x, x) + mad24(x, x, x) + mul24(x, x) + addsat(x, x) + subsat(x, x) + hadd(x, x) + rhadd(x, x) + absdiff(x, x) + madhi(x, x, x) + madsat(x, x, x);
    x += max3(x, x, x) + min3(x, 1u, 2u) + median3(x, x, x) + clamp(x, 0u, 9u);
    float y = f[i], z, w; int e;
    y = fmin3(y, y, y) + fmax3(y, y, y) + fmedian3(y, y, y) + ldexp(y, 3) + frexp(y, e) + modf(y, z) + sincos(y, w) + copysign(y, z) + nextafter(y, z) + ilogb(y) + powr(y, z) + exp10(y) + fdim(y, z) + trunc(y) + rint(y) + round(y) + sign(y) + step(y, z) + smoothstep(0.0f, 1.0f, y) + mix(y, z, 0.5f) + saturate(y) + fract(y) + tanpi(y) + sinpi(y) + cospi(y) + precise::sin(y) + fast::exp(y) + fast::pow(y, z) + precise::sqrt(y) + rsqrt(y) + fma(y, y, y) + fmod(y, z) + asinh(y) + acosh(y) + atanh(y) + sinh(y) + cosh(y) + tan(y) + exp2(y) + log2(y) + log10(y) + atan(y) + fmax(y, z) + fmin(y, z) + fabs(y) + abs(y);
    float3 v = float3(y), q = float3(z);
    y += dot(v, q) + length(v) + length_squared(v) + distance(v, q) + distance_squared(v, q) + cross(v, q).x + normalize(v).x + fast::normalize(v).y + reflect(v, q).x + refract(v, q, 1.3f).y + faceforward(v, q, v).z + all(v > q) + any(v < q) + select(v, q, v > q).x + determinant(float3x3(v, q, v)) + transpose(float2x2(1.0)).columns[0].x;
    x += pack_float_to_unorm4x8(float4(y)) + pack_float_to_snorm2x16(float2(y)) + as_type<uint>(y) + pack_half_to_unorm4x8(half4(1)) ;
    float4 un = unpack_unorm4x8_to_float(x); half4 uh = unpack_unorm4x8_to_half(x); float2 u2 = unpack_snorm2x16_to_float(x);
    atomic_fetch_or_explicit(c, 1u, memory_order_relaxed); atomic_fetch_xor_explicit(c, 1u, memory_order_relaxed); atomic_fetch_and_explicit(c, 1u, memory_order_relaxed);
    atomic_fetch_min_explicit(c, 1u, memory_order_relaxed); atomic_fetch_max_explicit(ci, 1, memory_order_relaxed); atomic_fetch_sub_explicit(ci, 1, memory_order_relaxed);
    uint old = 0; atomic_compare_exchange_weak_explicit(c, &old, 5u, memory_order_relaxed, memory_order_relaxed); atomic_exchange_explicit(c, 3u, memory_order_relaxed);
    atomic_fetch_add_explicit(cf, y, memory_order_relaxed); atomic_max_explicit(cu, 5ul, memory_order_relaxed); atomic_min_explicit(cu, (ulong)5, memory_order_relaxed);
    atomic_store_explicit(cf, 1.0f, memory_order_relaxed); float r = atomic_load_explicit(cf, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup); threadgroup_barrier(mem_flags::mem_texture);
    simdgroup_barrier(mem_flags::mem_none); atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst);
    y += simd_shuffle_and_fill_up(y, z, 1) + simd_shuffle_and_fill_down(y, z, 1) + simd_shuffle_rotate_up(y, 1) + simd_shuffle_rotate_down(y, 1) + simd_shuffle_up(y, 1) + simd_shuffle_xor(y, 3) + simd_prefix_exclusive_sum(y) + simd_prefix_inclusive_product(y) + simd_broadcast_first(y) + simd_broadcast(y, 3) + simd_product(y) + quad_sum(y) + quad_broadcast(y, 1) + quad_shuffle_xor(y, 1) + quad_max(y);
    x += simd_is_first() + simd_and(x) + simd_or(x) + simd_xor(x) + (uint)(simd_vote::vote_t)simd_ballot(x > 3) + simd_all(x > 3) + simd_any(x > 2) + (uint)ulong(simd_active_threads_mask());
    h[i] = half(y) + un.x + uh.y + u2.x + half(r);
    a[i] = x + isnan(y) + isinf(y) + isfinite(y) + signbit(y) + isnormal(y) + isunordered(y, z) + l;
    f[i] = y;
}
kernel void k3(device float *b0 [[buffer(0)]], device float *b1, uint i [[thread_position_in_grid]]) { b0[i] = b1[i]; }
struct Args { device float *a [[id(0)]]; constant float *b [[id(1)]]; uint n [[id(2)]]; };
kernel void k4(constant Args &args [[buffer(0)]], uint i [[thread_position_in_grid]]) { if (i < args.n) args.a[i] = args.b[i] * 2; }
template <typename T, int N> struct Tile { threadgroup T *p; Tile(threadgroup T *q) : p(q) {} T get(int i) const { return p[i % N]; } };
constant float A = 1, B = 2.5;
constant constexpr float2 C = float2(1, 2), D[2] = {float2(1), float2(2)};
kernel void k5(device float *o, uint3 t [[thread_position_in_threadgroup]], uint3 n [[threads_per_threadgroup]], uint w [[thread_execution_width]], uint sg [[simdgroups_per_threadgroup]], threadgroup float *s [[threadgroup(0)]]) {
    Tile<float, 4> tile(s);
    array<float, 3> z = {1, 2, 3};
    for (float v : z) o[0] += v;
    auto f = [&](float x) { return x * A + B + C.x + D[1].y; };
    for (int r = 0; r < 2; r++) { threadgroup float loc[8]; loc[t.x & 7] = f(r); threadgroup_barrier(mem_flags::mem_threadgroup); o[t.x] += loc[0]; }
    o[t.x] += tile.get(t.x) + z.size() + w + sg + n.x;
    struct L { float a, b; } l = {.a = 1, .b = 2};
    o[1] = l.a + l.b;
    switch (t.x) { case 0: { o[2] = 1; break; } default: o[2] = 3; }
    do { o[3]++; } while (o[3] < 4);
    const uint g = sizeof(float4) + sizeof(packed_float3) + alignof(float3);
    o[4] = g + 1e3 + .5 + 2. + 0x1p3 + 1u + 'a' + true;
    float4x4 m = float4x4(1.0); m[3].xyz = float3(1); m[0][1] = 2; float3x3 m3(m[0].xyz, m[1].xyz, m[2].xyz); o[5] = (m * m)[0].x + m3[1].y;
    half3 hh = half3(float3(1, 2, 3)); hh *= 2.0h; o[6] = hh.x + float(hh.y) * 2; hh.xy = hh.yx; bool3 bb = hh > half3(1); o[7] = bb.x ? 1 : 2;
    int4 ii = int4(float4(1.5)); ii = ii << 2; ii = (ii & 3) | ~ii; o[8] = ii.x % 3; uchar4 uc = uchar4(ii); o[9] = uc.w; ushort2 us(1, 2); us += ushort2(3); o[10] = us.x;
    long ll = 5; ulong2 u2 = ulong2(1, 2); o[11] = ll + u2.y; ptrdiff_t pd = &o[3] - &o[1]; size_t sz = 4; o[12] = pd + sz; intptr_t ip = (intptr_t)o; o[13] = ip & 1;
}
[[kernel, max_total_threads_per_threadgroup(64)]] void k6(device float *o [[buffer(0)]], uint i [[thread_position_in_grid]]) { o[i] = numeric_limits<float>::max() + numeric_limits<half>::infinity() + FLT_EPSILON + HALF_MAX + M_PI_H + MAXFLOAT + HUGE_VALF + INFINITY + NAN + INT_MAX + UINT_MAX + SHRT_MAX + CHAR_BIT + M_E_F + M_SQRT2_F + M_1_PI_F; }
kernel void k7(device MTLDispatchThreadgroupsIndirectArguments &a [[buffer(0)]], device MTLDrawPrimitivesIndirectArguments *d [[buffer(1)]]) { a.threadgroupsPerGrid[0] = 1; d->vertexCount = 3; d->instanceCount = 1; d->vertexStart = 0; d->baseInstance = 0; }
const uint3 place [[thread_position_in_threadgroup]];
constant const uint total [[threads_per_grid]];
template <typename T> struct tensor { constant uint &n; device T *data; tensor(constant uint &m, device T *d) : n(m), data(d) {} device T &at(uint i) { return data[i < n ? i : 0]; } };
template <typename T> struct k8_args { tensor<T> out; tensor<const half> in; threadgroup T *t; device atomic_uint *count; };
template <typename T> kernel void k8(k8_args<T> a, uint i [[thread_position_in_grid]]) { a.t[place.x] = T(a.in.at(i)); threadgroup_barrier(mem_flags::mem_threadgroup); a.out.at(i) = a.t[place.x] + T(total); atomic_fetch_add_explicit(a.count, 1, memory_order_relaxed); }
template [[host_name("k8_float")]] kernel void k8<float>(k8_args<float>, uint);
template [[host_name("k8_half2")]] kernel void k8<half2>(k8_args<half2>, uint);
/* names of positions that parameters and variables hide */
const uint3 spot [[thread_position_in_threadgroup]];
const uint2 width [[threads_per_threadgroup]];
uint spot_plus(uint spot) { return spot + width.x; }
uint spot_or(device const uint *width, uint n) { if (n) { uint spot = width[0]; return spot; } return spot.y * spot.x; }
kernel void negation(device uint *o) { o[0] = 1; } /* a name of the library, too */
kernel void k9(device uint *o [[buffer(0)]], uint2 spot [[thread_position_in_grid]]) { for (uint width = 0; width < 2; width++) o[width] = spot.y; o[3] = width.y + spot_plus(2) + spot_or(o, 1); }
template <typename T, int N = 2> T total_of(const device T *p) { T s = T(0); for (int i = 0; i < N; i++) s += p[i]; return s; }
template <typename T, int N> T total_of(const threadgroup T *p) { T s = T(0); for (int i = 0; i < N; i++) s += p[i]; return s; }
constant float3x3 unit = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
kernel void k10(device float *o, device uint *u, threadgroup float *t) {
    os_log log("a", "b"); log.log_error("%d", 3); os_log_default.log("x"); assert(o[0] > 0);
    uint2 m = mul24(uint2(u[0]), uint2(3)); int3 n = mad24(int3(1), int3(2), int3(3));
    o[0] = total_of(o) + total_of<float, 4>(t) + fast::distance(float2(1), float2(o[1])) + precise::distance_squared(float3(1), float3(2)) + m.y + n.z + (unit * float3(1)).y;
    u[1] = pack_float_to_srgb_unorm4x8(float4(o[0])) + pack_half_to_unorm565(half3(1)) + pack_half_to_unorm10a2(half4(o[0]));
    o[2] = unpack_unorm4x8_srgb_to_float(u[1]).x + unpack_unorm565_to_float(3).y + unpack_unorm10a2_to_half(u[2]).z;
    float2x2 q{{1, 2}, {3, 4}}; o[3] = q[1].x;
}
/* forms of kernels and of what they call */
template <typename T, access a> struct buffer_of; template <typename T> struct buffer_of<T, access::read> { constant T *p; };
template <typename T> struct buffer_of<T, access::read_write> { void put(uint i, T v) { p[i] = v; } device T *p; };
struct stage { buffer_of<float4, access::read_write> b; };
[[visible]] float twice(float x) { return x * 2; }
struct place_of { uint2 at [[thread_position_in_grid]]; device float *o; ushort lane [[thread_index_in_simdgroup]]; constant uint &n; uint3 group [[threadgroup_position_in_grid]]; };
kernel void k11 [[max_total_threads_per_threadgroup(64)]] (place_of in, constant stage &s) { in.o[in.at.x] = twice(in.n + in.lane) + in.group.y + (__UINT32_MAX__ >> 31) + __CHAR_BIT__ + __FLT_MAX__; ((stage)s).b.put(in.at.y, float4(1)); }
kernel void k12(device float *o) { float a[8] = {[0 ... 7] = -INFINITY}; half c[4] = {[0 ... 4 - 1] = 1.0h}; o[0] = a[1] + c[2]; }

#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#pragma METAL fp math_mode(safe)
using namespace metal;
uint LOCAL_ID [[thread_position_in_threadgroup]];
uint3 GLOBAL_ID [[thread_position_in_grid]];
constant float INVALID = -1.0e30f;
constant float3 c3 = float3(1, 2, 3);
constant float4x4 M4 = float4x4(float4(1,0,0,0), float4(0,1,0,0), float4(0,0,1,0), float4(0,0,0,1));
constant float2 pts[] = { float2(0,1), {1, 2} };
constant int lut[2][4] = {{1,2,3,4},{5,6,7,8}};
static constant float sx = 1;
constant const float pi = 3.14;
const constant float ca[3] = {1, 2, 3};
constexpr constant uint N1 = 3, N2 = 4;
constant half hh = 1.5h;
constant half2 hp[2] = {half2(1.h, 2.h), half2(0.5h)};
constant uchar bytes[16] = {0x1, 'a', 0b11};
typedef struct { float x; float2 xy; packed_float3 p; } S;
enum class Mode : uint { A, B = 5 };
enum { BUF_A = 2, BUF_B };
struct Q { S s[2]; int n; Mode m; };
template <typename T> struct Box { T v; Box() thread = default; Box(T x) : v(x) {} T get() const thread { return v; } T get() const device { return v; } thread T &ref() thread { return v; } Box operator+(Box o) const { return Box(v + o.v); } };
inline float2 cmul(float2 a, float2 b) { return float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
inline void swap_(thread float &a, thread float &b) { float t = a; a = b; b = t; }
inline void swap_(threadgroup float &a, threadgroup float &b) { float t = a; a = b; b = t; }
inline int ATOMIC_ADD(device int* dest, int value) { return atomic_fetch_add_explicit((device atomic_int*) dest, value, memory_order_relaxed); }
static float fsum(thread const float *a, int n) { float s = 0; for (int i = 0; i < n; ++i) s += a[i]; return s; }
kernel void k1(device float *a [[buffer(BUF_A)]], constant Q &q [[buffer(BUF_B)]], device atomic_uint *cnt, const uint3 gid [[ thread_position_in_grid ]], uint2 tpg [[threads_per_threadgroup]]) {
  float4 v = float4(a[0], a[1], a[2], a[3]);
  v.xy = v.yx; v.zw += float2(1); v.rgb *= 2.0; v.x++; float3 w = v.xyz; w = w.zyx; v = v.wzyx; float2 f2 = (float2)(3.0f); half h = v.x; h = h * 2 + 1; h += 0.5h; short s = 3; h = s;
  S local; local.xy = f2; local.x = 1; local.p = w; w = local.p; w += local.p * 2.0;
  thread float *p = &v.x; float arr[4] = {1, 2, 3, 4}; float s2 = fsum(arr, 4) + v[2] + v[q.n];
  float4x4 m = M4 * 2.0f; float4 t = m * v; m[1] = t; m[0][2] = 3; float3x3 r = float3x3(1.0f); w = r * w;
  uint u = as_type<uint>(s2); u = popcount(u) ^ clz(u) | ctz(u); u = select(u, 1u, u > 3); bool4 b4 = v > t; if (any(b4) && !all(b4)) u = 0; v = select(v, t, b4);
  atomic_fetch_add_explicit(cnt, 1, memory_order_relaxed); atomic_store_explicit(cnt + 1, u, memory_order_relaxed);
  auto lam = [&](float z) { return z * 2; }; s2 = lam(s2);
  threadgroup float tg[64], tg2[2][8]; threadgroup atomic_int ai; threadgroup S ts; threadgroup float4 *t4 = (threadgroup float4 *)tg;
  if (LOCAL_ID == 0) { atomic_store_explicit(&ai, 0, memory_order_relaxed); ts.x = 1; tg2[1][2] = 4; swap_(tg[0], tg[1]); swap_(arr[0], arr[1]); }
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  t4[0] = v; tg[gid.x % 64] = s2; Box<float> bx(2.0); bx.ref() = 3; s2 += (bx + bx).get();
  switch (q.m) { case Mode::A: a[0] = 1; break; case Mode::B: { a[1] = 2; } break; default: break; }
  a[GLOBAL_ID.x] = s2 + float(u) + tg[3] + c3.y + pts[1].y + lut[1][2] + ca[2] + float(hh) + hp[1].x + bytes[2] + sx + pi + N1 + N2 + INVALID + ts.x + *p + tg2[1][2];
  a[1] = fma(a[0], 2, 1.0); a[2] = max(a[0], 0.0f) + clamp(a[1], 0.0f, 1.0f) + mix(1.0f, 2.0f, 0.5f) + saturate(a[0]) + precise::exp(a[1]) + fast::log(a[2]) + powr(a[1], 2.0f) + rsqrt(2.0f) + sign(-1.0f) + fract(1.5f) + length(w) + dot(w, w) + distance(w, w) + normalize(w).x + cross(w, w).y + step(0.5f, a[0]) + smoothstep(0.0f, 1.0f, a[0]);
  int i = mulhi(3, 4) + abs(-3) + min(1, 2) + max3(1, 2, 3) + madsat(1, 2, 3) + absdiff(1, 4); a[3] = i + rotate(3u, 2u) + reverse_bits(3u) + extract_bits(7u, 1, 2) + insert_bits(1u, 2u, 3, 4);
  uint2 c = uint2(gid.xy); a[4] = c.x + c.y + tpg.x; array<float, 3> ar = {1, 2, 3}; a[5] = ar[1];  ATOMIC_ADD((device int *)a, 2);
  a[7] = q.n > 3 ? h : 0; a[8] = q.n > 3 ? h : s2; a[9] = (q.n < 3) ? 1.0h : h * 2.0f; half hz = q.n ? h : half(0); float fz = q.n ? hz : (half)1; a[10] = fz;
  a[11] = cmul({1, 2}, float2(3)).x; float2 z2{1, 2}; z2 = {3, 4}; float3 z3 = {z2, 1}; a[12] = z3.z; ushort4 us = ushort4(1, 2, 3, 4); us.xy <<= 1; us >>= 1; a[13] = us.x; a[14] = isnan(a[3]) || isinf(a[2]) ? NAN : INFINITY; a[15] = FLT_MAX + M_PI_F + INT_MAX + UINT_MAX + HALF_MAX;
}
kernel void k2(device half *A, device half *B, device float *C, uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_float8x8 acc0(0.0f), acc = make_filled_simdgroup_matrix<float, 8, 8>(0.f); simdgroup_half8x8 a, b; simdgroup_matrix<half, 8, 8> c(0.0h);
  simdgroup_load(a, A, 8); simdgroup_load(b, B, 8, ulong2(0, 0), true); simdgroup_multiply_accumulate(acc, a, b, acc); simdgroup_multiply(acc0, a, b); simdgroup_store(acc, C, 8); acc.thread_elements()[0] = 1;
  simdgroup_barrier(mem_flags::mem_none); float s = simd_sum(C[lane]); s = simd_max(s) + simd_shuffle_xor(s, 1) + simd_shuffle_down(s, 2) + simd_broadcast(s, 0) + simd_broadcast_first(s) + simd_prefix_exclusive_sum(s) + quad_sum(s) + quad_broadcast(s, 1); simd_vote vt = simd_ballot(s > 0); C[0] = s + simd_any(s > 0) + simd_all(s < 1) + (uint)(ulong)vt; bool f = simd_is_first();  C[1] = f;
}
struct soft_kernel { int soft_api; };
constant bool msl_wanted [[function_constant(7)]];
kernel void soft_threshold(device int *a, device soft_kernel *k) { threadgroup int msl_own[4]; msl_own[0] = k->soft_api; a[0] = msl_wanted ? msl_own[0] : 1; }
kernel void msl_named(device int *a) { int MSL_FN = 2; a[0] = MSL_FN; }

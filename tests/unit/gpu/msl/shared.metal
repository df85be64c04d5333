#include <metal_stdlib>
#include <simd/simd.h>
#include <metal_logging>
using namespace metal;
#ifdef __METAL_VERSION__
#define NS_ENUM(_type, _name) enum _name : _type _name; enum _name : _type
typedef metal::int32_t EnumBackingType;
#define NSInteger metal::int32_t
#endif
typedef NS_ENUM(EnumBackingType, BufferIndex) { BufferIndexA = 0, BufferIndexB = 1 };
typedef NS_ENUM(NSInteger, TextureIndex) { TextureIndexColor = 0 };
typedef enum Axis { AxisX = 0, AxisY } Axis;
struct Uniforms { matrix_float4x4 m; vector_float3 v; vector_float2 w; vector_uint2 size; simd_float4 q; simd_float3x3 r; simd_uint2 s; simd::float4 t; simd::float3 u; simd::uint2 z; };
typedef struct { packed_float3 p; float pad; } Vtx;
enum class Mode : uint { none = 0, one };
kernel void k1(device float4 *a [[buffer(BufferIndexA)]], constant Uniforms &u [[buffer(BufferIndexB)]], device Vtx *vs [[buffer(2)]], uint2 gid [[thread_position_in_grid]], uint2 gs [[threads_per_grid]]) {
    float4 p = u.m * float4(u.v, 1.0);
    p.xyz = u.r * p.xyz;
    p += u.q + u.t;
    Mode m = Mode::one;
    if (m == Mode::one) p.w += 1;
    if (gid.x >= u.size.x || gid.y >= u.s.y) return;
    vs[gid.x].p = packed_float3(p.xyz);
    float3 n = float3(vs[gid.x].p);
    a[gid.y * gs.x + gid.x] = float4(n, u.w.x + u.u.y + u.z.x);
    vs[gid.x].p.x = 2;
    vs[gid.x].p[1] = 3;
    vs[gid.x].p += 1.0;
}

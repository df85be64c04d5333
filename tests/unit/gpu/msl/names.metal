#include <metal_logging>
#include <metal_stdlib>
#include <simd/simd.h>
using namespace metal;
constant os_log subsystem("a.b", "c");
/* Names of the library that kernels seldom use: each must be there for every type that has it. */
kernel void names(device float *o [[buffer(0)]], device uint *u [[buffer(1)]], device half *h [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
    float2 a = float2(o[i]), b = float2(o[i + 1]), c;
    o[0] = fast::distance(a, b) + precise::distance(a, b) + fast::distance_squared(a, b) + fast::length(a);
    o[1] = fast::reflect(a, b).x + precise::refract(a, b, 1.5f).y + fast::faceforward(a, b, a).x + fast::normalize(a).x;
    o[2] = precise::distance_squared(a, b) + fast::sincos(a, c).x + precise::sincos(o[i], o[i + 1]) + fast::cross(float3(a, 1), float3(b, 2)).z;
    u[0] = mul24(uint3(u[i]), uint3(3)).x + mad24(uint2(u[i]), uint2(5), uint2(7)).y;
    int4 s = mul24(int4(-3), int4(u[i]));
    u[1] = uint(s.w) + mad24(s, s, s).x;
    u[2] = pack_float_to_srgb_unorm4x8(float4(a, b)) + pack_half_to_srgb_unorm4x8(half4(1)) + pack_half_to_unorm10a2(half4(0.5h)) + pack_float_to_unorm565(float3(a, 1)) + pack_half_to_unorm565(half3(1));
    o[3] = unpack_unorm4x8_srgb_to_float(u[i]).x + unpack_unorm4x8_srgb_to_half(u[i]).y + unpack_unorm10a2_to_half(u[i]).z + unpack_unorm565_to_float(ushort(u[i])).x + unpack_unorm565_to_half(ushort(u[i])).z;
    o[4] = FLT_DECIMAL_DIG + HALF_DECIMAL_DIG + HALF_MAX_10_EXP + HALF_MIN_10_EXP + float(MAXBFLOAT) + float(HUGE_VALBF) + BFLT_MANT_DIG + float(BFLT_EPSILON) + UINT8_MAX + INT16_MIN + UINT32_MAX + INT64_MAX + SIZE_MAX + __FLT_MAX__ + __INT_MAX__;
    simd::packed_float3 p = {1, 2, 3};
    simd_packed_float4 q = float4(a, b);
    simd::bool2 t = a < b;
    simd_bool f = t.x;
    o[5] = p.y + q.z + f;
    if (i == 0) {
        os_log_default.log("%u of %f", i, o[0]);
        os_log_default.log_debug("debug");
        metal::os_log_default.log_info("info %d", int(i));
        subsystem.log_error("error %u", u[0]);
        subsystem.log_fault("fault");
    }
    h[i] = half(o[0]);
}

/* pack.h: vectors to and from integers of 8, 10 and 16 bits a component, the first lowest: unorm is [0, 1], snorm
 * [-1, 1]; rounded to nearest even, NaN is 0. */
namespace msl_unit {
namespace metal {

MSL_I float msl_norm(float x, float low, float steps) {
    return isnan(x) ? 0.0f : rint(clamp(x, low, 1.0f) * steps);
}
/* bits of component i, which are `width` from `at` on. */
MSL_I uint msl_put_unorm(float x, uint width, uint at) {
    return (uint)msl_norm(x, 0.0f, (float)((1u << width) - 1u)) << at;
}
MSL_I uint msl_put_snorm(float x, uint width, uint at) {
    return ((uint)(int)msl_norm(x, -1.0f, (float)((1u << (width - 1u)) - 1u)) & ((1u << width) - 1u)) << at;
}
MSL_I float msl_get_unorm(uint x, uint width, uint at) {
    uint steps = (1u << width) - 1u;
    return (float)(x >> at & steps) / (float)steps;
}
MSL_I float msl_get_snorm(uint x, uint width, uint at) {
    int v = (int)(x << (32u - width - at)) >> (32u - width);
    return max((float)v / (float)((1u << (width - 1u)) - 1u), -1.0f);
}

#define MSL_PACK(T, kind)                                                                                              \
    MSL_I uint pack_##T##_to_##kind##4x8(T##4 v) {                                                                     \
        return msl_put_##kind((float)v.x, 8, 0) | msl_put_##kind((float)v.y, 8, 8) |                                   \
               msl_put_##kind((float)v.z, 8, 16) | msl_put_##kind((float)v.w, 8, 24);                                  \
    }                                                                                                                  \
    MSL_I uint pack_##T##_to_##kind##2x16(T##2 v) {                                                                    \
        return msl_put_##kind((float)v.x, 16, 0) | msl_put_##kind((float)v.y, 16, 16);                                 \
    }                                                                                                                  \
    MSL_I T##4 unpack_##kind##4x8_to_##T(uint x) {                                                                     \
        return T##4((T)msl_get_##kind(x, 8, 0), (T)msl_get_##kind(x, 8, 8), (T)msl_get_##kind(x, 8, 16),               \
                    (T)msl_get_##kind(x, 8, 24));                                                                      \
    }                                                                                                                  \
    MSL_I T##2 unpack_##kind##2x16_to_##T(uint x) {                                                                    \
        return T##2((T)msl_get_##kind(x, 16, 0), (T)msl_get_##kind(x, 16, 16));                                        \
    }
MSL_PACK(float, unorm)
MSL_PACK(float, snorm)
MSL_PACK(half, unorm)
MSL_PACK(half, snorm)
#undef MSL_PACK

MSL_I uint pack_float_to_unorm10a2(float4 v) {
    return msl_put_unorm(v.x, 10, 0) | msl_put_unorm(v.y, 10, 10) | msl_put_unorm(v.z, 10, 20) |
           msl_put_unorm(v.w, 2, 30);
}
MSL_I float4 unpack_unorm10a2_to_float(uint x) {
    return float4(msl_get_unorm(x, 10, 0), msl_get_unorm(x, 10, 10), msl_get_unorm(x, 10, 20), msl_get_unorm(x, 2, 30));
}

} // namespace metal
} // namespace msl_unit

/* pack.h: vectors to and from integers of 2 to 16 bits a component, the first lowest (565 alone has it highest): unorm
 * is [0, 1], snorm [-1, 1]; rounded to nearest even, NaN is 0. srgb: x, y and z by the curve of sRGB. */
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

MSL_I float msl_to_srgb(float x) {
    x = saturate(isnan(x) ? 0.0f : x);
    return x < 0.0031308f ? x * 12.92f : 1.055f * pow(x, 1.0f / 2.4f) - 0.055f;
}
MSL_I float msl_from_srgb(float x) {
    return x <= 0.04045f ? x / 12.92f : pow((x + 0.055f) / 1.055f, 2.4f);
}

#define MSL_PACK(T)                                                                                                    \
    MSL_I uint pack_##T##_to_srgb_unorm4x8(T##4 v) {                                                                   \
        return msl_put_unorm(msl_to_srgb((float)v.x), 8, 0) | msl_put_unorm(msl_to_srgb((float)v.y), 8, 8) |           \
               msl_put_unorm(msl_to_srgb((float)v.z), 8, 16) | msl_put_unorm((float)v.w, 8, 24);                       \
    }                                                                                                                  \
    MSL_I T##4 unpack_unorm4x8_srgb_to_##T(uint x) {                                                                   \
        return T##4((T)msl_from_srgb(msl_get_unorm(x, 8, 0)), (T)msl_from_srgb(msl_get_unorm(x, 8, 8)),                \
                    (T)msl_from_srgb(msl_get_unorm(x, 8, 16)), (T)msl_get_unorm(x, 8, 24));                            \
    }                                                                                                                  \
    MSL_I T##4 unpack_srgb_unorm4x8_to_##T(uint x) {                                                                   \
        return unpack_unorm4x8_srgb_to_##T(x);                                                                         \
    }                                                                                                                  \
    MSL_I uint pack_##T##_to_unorm10a2(T##4 v) {                                                                       \
        return msl_put_unorm((float)v.x, 10, 0) | msl_put_unorm((float)v.y, 10, 10) |                                  \
               msl_put_unorm((float)v.z, 10, 20) | msl_put_unorm((float)v.w, 2, 30);                                   \
    }                                                                                                                  \
    MSL_I T##4 unpack_unorm10a2_to_##T(uint x) {                                                                       \
        return T##4((T)msl_get_unorm(x, 10, 0), (T)msl_get_unorm(x, 10, 10), (T)msl_get_unorm(x, 10, 20),              \
                    (T)msl_get_unorm(x, 2, 30));                                                                       \
    }                                                                                                                  \
    MSL_I ushort pack_##T##_to_unorm565(T##3 v) {                                                                      \
        return (ushort)(msl_put_unorm((float)v.x, 5, 11) | msl_put_unorm((float)v.y, 6, 5) |                           \
                        msl_put_unorm((float)v.z, 5, 0));                                                              \
    }                                                                                                                  \
    MSL_I T##3 unpack_unorm565_to_##T(ushort x) {                                                                      \
        return T##3((T)msl_get_unorm(x, 5, 11), (T)msl_get_unorm(x, 6, 5), (T)msl_get_unorm(x, 5, 0));                 \
    }
MSL_PACK(float)
MSL_PACK(half)
#undef MSL_PACK

} // namespace metal
} // namespace msl_unit

/* shared.h: names of <simd/simd.h> and of the API's structs, for headers that a source shares with its host program. */
namespace msl_unit {
namespace metal {

#define MSL_SHARED(T)                                                                                                  \
    typedef T##2 vector_##T##2, simd_##T##2;                                                                           \
    typedef T##3 vector_##T##3, simd_##T##3;                                                                           \
    typedef T##4 vector_##T##4, simd_##T##4;                                                                           \
    namespace simd {                                                                                                   \
    using metal::T##2;                                                                                                 \
    using metal::T##3;                                                                                                 \
    using metal::T##4;                                                                                                 \
    }
MSL_SHARED(char)
MSL_SHARED(uchar)
MSL_SHARED(short)
MSL_SHARED(ushort)
MSL_SHARED(int)
MSL_SHARED(uint)
MSL_SHARED(long)
MSL_SHARED(ulong)
MSL_SHARED(half)
MSL_SHARED(float)
MSL_SHARED(bool)
#undef MSL_SHARED
typedef bool simd_bool;

#define MSL_SHARED(T)                                                                                                  \
    typedef packed_##T##2 simd_packed_##T##2;                                                                          \
    typedef packed_##T##4 simd_packed_##T##4;                                                                          \
    namespace simd {                                                                                                   \
    using metal::packed_##T##2;                                                                                        \
    using metal::packed_##T##3;                                                                                        \
    using metal::packed_##T##4;                                                                                        \
    }
MSL_SHARED(char)
MSL_SHARED(uchar)
MSL_SHARED(short)
MSL_SHARED(ushort)
MSL_SHARED(int)
MSL_SHARED(uint)
MSL_SHARED(half)
MSL_SHARED(float)
#undef MSL_SHARED

#define MSL_SHARED(T, C, R)                                                                                            \
    typedef T##C##x##R matrix_##T##C##x##R, simd_##T##C##x##R;                                                         \
    namespace simd {                                                                                                   \
    using metal::T##C##x##R;                                                                                           \
    }
#define MSL_SHARED_ALL(T)                                                                                              \
    MSL_SHARED(T, 2, 2)                                                                                                \
    MSL_SHARED(T, 2, 3)                                                                                                \
    MSL_SHARED(T, 2, 4)                                                                                                \
    MSL_SHARED(T, 3, 2)                                                                                                \
    MSL_SHARED(T, 3, 3)                                                                                                \
    MSL_SHARED(T, 3, 4)                                                                                                \
    MSL_SHARED(T, 4, 2)                                                                                                \
    MSL_SHARED(T, 4, 3)                                                                                                \
    MSL_SHARED(T, 4, 4)
MSL_SHARED_ALL(half)
MSL_SHARED_ALL(float)
#undef MSL_SHARED_ALL
#undef MSL_SHARED

struct MTLDispatchThreadgroupsIndirectArguments {
    uint threadgroupsPerGrid[3];
};
struct MTLDispatchThreadsIndirectArguments {
    uint threadsPerGrid[3], threadsPerThreadgroup[3];
};
struct MTLStageInRegionIndirectArguments {
    uint stageInOrigin[3], stageInSize[3];
};
struct MTLDrawPrimitivesIndirectArguments {
    uint vertexCount, instanceCount, vertexStart, baseInstance;
};
struct MTLDrawIndexedPrimitivesIndirectArguments {
    uint indexCount, instanceCount, indexStart;
    int baseVertex;
    uint baseInstance;
};
struct MTLDrawPatchIndirectArguments {
    uint patchCount, instanceCount, patchStart, baseInstance;
};

} // namespace metal
} // namespace msl_unit

/* kernel.h: last part of the prelude: what the translator writes around user code.
 *
 * - User code lies between MSL_USER_BEGIN and MSL_USER_END, entries and tables too.
 * - MSL_THREADGROUP_ARRAY(site, T, name, [2][3], line) and MSL_THREADGROUP_VAR(site, T, name, line) declare threadgroup
 *   storage in a kernel's body; the type is one name.
 * - In an entry on soft MSL_BUFFER(i) is any pointer, MSL_REFERENCE(i) any reference, MSL_THREADGROUP_SLOT(i) the
 *   pointer to dynamic threadgroup memory. On cuda buffers are parameters and dynamic threadgroup memory starts at
 *   MSL_CUDA_DYNAMIC.
 * - MSL_<attribute> is a position or size: it converts to any integer and to vectors of two or three. */
#define MSL_USER_BEGIN                                                                                                 \
    namespace msl_unit {                                                                                               \
    using namespace metal;
#define MSL_USER_END }

namespace msl_unit {
namespace metal {

struct msl_pointer {
    void *p;
    template <class T> MSL_M operator T *() const { return (T *)p; }
};
struct msl_reference {
    void *p;
    template <class T> MSL_M operator T &() const { return *(T *)p; }
};
/* What lies in N bytes of the entry's own. */
template <int N> struct msl_value_reference {
    void *p;
    template <class T> MSL_M operator T &() const {
        static_assert(sizeof(T) <= N, "an argument is larger than was worked out for it");
        return *(T *)p;
    }
};
/* A struct of pointers and references (which are pointers in memory), and of structs of these. */
template <int N> struct msl_members {
    void *p[N];
    template <class T> MSL_M operator T() const {
        static_assert(sizeof(T) == sizeof p, "an argument's struct may have pointers and references alone as members");
        return *(const T *)(const void *)p;
    }
};
struct msl_position {
    uint v[3];
    template <class T, msl_if_int<T> = 0> MSL_M operator T() const { return (T)v[0]; }
    template <class T> MSL_M operator vec<T, 2>() const { return vec<T, 2>(v[0], v[1]); }
    template <class T> MSL_M operator vec<T, 3>() const { return vec<T, 3>(v[0], v[1], v[2]); }
};
/* One in a list of members, where no number may be narrowed. */
MSL_I msl_position msl_member(msl_position p) {
    return p;
}
MSL_I msl_position msl_member(uint v) {
    return {{v, 0, 0}};
}

} // namespace metal
} // namespace msl_unit

#ifdef SL_MSL_CUDA
/* Arguments that are bytes are parameters themselves, where kernels read them without a load from memory first; or, for
 * who binds a buffer to such a slot, pointers. */
#ifdef MSL_POINTERS
#define MSL_VALUE(size) void *
#define MSL_VALUE_AT(b) b
#else
namespace msl_unit {
namespace metal {
template <int N> struct __align__(16) msl_value {
    unsigned char msl_bytes[N];
};
} // namespace metal
} // namespace msl_unit
#define MSL_VALUE(size) const __grid_constant__ ::msl_unit::metal::msl_value<size>
#define MSL_VALUE_AT(b) (void *)&b
#endif
#define MSL_THREADGROUP_ARRAY(site, T, name, dims, line) __shared__ __align__(16) T name dims
#define MSL_THREADGROUP_VAR(site, T, name, line)         __shared__ __align__(16) T name
extern __shared__ __align__(16) unsigned char msl_dynamic[];
#define MSL_CUDA_DYNAMIC                msl_dynamic
#define MSL_THREADGROUP_SLOT_AT(offset) (::msl_unit::metal::msl_pointer{msl_dynamic + (offset)})
#define MSL_3(x, y, z)                  (::msl_unit::metal::msl_position{{x, y, z}})
#define MSL_thread_position_in_grid                                                                                    \
    MSL_3(blockIdx.x *blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y,                                 \
          blockIdx.z * blockDim.z + threadIdx.z)
#define MSL_thread_position_in_threadgroup MSL_3(threadIdx.x, threadIdx.y, threadIdx.z)
#define MSL_threadgroup_position_in_grid   MSL_3(blockIdx.x, blockIdx.y, blockIdx.z)
#define MSL_threads_per_threadgroup        MSL_3(blockDim.x, blockDim.y, blockDim.z)
#define MSL_threadgroups_per_grid          MSL_3(gridDim.x, gridDim.y, gridDim.z)
#define MSL_threads_per_grid               MSL_3(gridDim.x *blockDim.x, gridDim.y *blockDim.y, gridDim.z *blockDim.z)
#define MSL_INDEX                          (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z))
#define MSL_COUNT                          (blockDim.x * blockDim.y * blockDim.z)
#define MSL_thread_index_in_simdgroup      (MSL_INDEX & 31u)
#define MSL_simdgroup_index_in_threadgroup (MSL_INDEX >> 5)
#else
namespace msl_unit {
namespace metal {
/* An argument that its function constant leaves out may still be read (not used) on the way: there it finds zeros, as
 * on Apple's GPUs. */
alignas(64) static unsigned char msl_zeros[4096];
MSL_I void *msl_bound(void *p) {
    return p ? p : msl_zeros;
}
} // namespace metal
} // namespace msl_unit
#define MSL_THREADGROUP_ARRAY(site, T, name, dims, line)                                                               \
    typedef T msl_t_##name dims;                                                                                       \
    msl_t_##name &name = *(msl_t_##name *)msl_api->threadgroup_static(site, sizeof(msl_t_##name), #name, line)
#define MSL_THREADGROUP_VAR(site, T, name, line)                                                                       \
    typedef T msl_t_##name;                                                                                            \
    msl_t_##name &name = *(msl_t_##name *)msl_api->threadgroup_static(site, sizeof(msl_t_##name), #name, line)
#define MSL_SELF                (*msl_api->self())
#define MSL_GROUP               (*msl_api->self()->group)
#define MSL_BUFFER(i)           (::msl_unit::metal::msl_pointer{::msl_unit::metal::msl_bound(MSL_GROUP.buffer[i])})
#define MSL_REFERENCE(i)        (::msl_unit::metal::msl_reference{::msl_unit::metal::msl_bound(MSL_GROUP.buffer[i])})
#define MSL_THREADGROUP_SLOT(i) (::msl_unit::metal::msl_pointer{MSL_GROUP.threadgroup[i]})
#define MSL_3(a)                (::msl_unit::metal::msl_position{{a[0], a[1], a[2]}})
#define MSL_3_TIMES(a, b, c)                                                                                           \
    (::msl_unit::metal::msl_position{{a[0] * b[0] + c[0], a[1] * b[1] + c[1], a[2] * b[2] + c[2]}})
#define MSL_thread_position_in_grid        MSL_3_TIMES(MSL_GROUP.position, MSL_GROUP.threads, MSL_SELF.position)
#define MSL_thread_position_in_threadgroup MSL_3(MSL_SELF.position)
#define MSL_threadgroup_position_in_grid   MSL_3(MSL_GROUP.position)
#define MSL_threads_per_threadgroup        MSL_3(MSL_GROUP.threads)
#define MSL_threadgroups_per_grid          MSL_3(MSL_GROUP.groups)
#define MSL_NOTHING                        ((const ::msl_unit::metal::uint[3]){0, 0, 0})
#define MSL_threads_per_grid               MSL_3_TIMES(MSL_GROUP.groups, MSL_GROUP.threads, MSL_NOTHING)
#define MSL_INDEX                          (MSL_SELF.index)
#define MSL_COUNT                          (MSL_GROUP.thread_count)
#define MSL_thread_index_in_simdgroup      (MSL_SELF.lane)
#define MSL_simdgroup_index_in_threadgroup (MSL_SELF.simdgroup)
#endif
#define MSL_thread_index_in_threadgroup         MSL_INDEX
#define MSL_thread_index_in_quadgroup           (MSL_INDEX & 3u)
#define MSL_quadgroup_index_in_threadgroup      (MSL_INDEX >> 2)
#define MSL_simdgroups_per_threadgroup          ((MSL_COUNT + 31u) / 32u)
#define MSL_quadgroups_per_threadgroup          ((MSL_COUNT + 3u) / 4u)
#define MSL_threads_per_simdgroup               32u
#define MSL_thread_execution_width              32u
#define MSL_dispatch_threads_per_threadgroup    MSL_threads_per_threadgroup
#define MSL_dispatch_simdgroups_per_threadgroup MSL_simdgroups_per_threadgroup
#define MSL_dispatch_quadgroups_per_threadgroup MSL_quadgroups_per_threadgroup
/* Grids start at zero. */
#define MSL_grid_origin (::msl_unit::metal::msl_position{{0, 0, 0}})
#define MSL_grid_size   MSL_threads_per_grid

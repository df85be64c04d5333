/* simd.h: barriers and SIMD-group functions: <metal_simdgroup>, <metal_quadgroup>, the barriers of <metal_compute>.
 *
 * A SIMD-group has 32 lanes. Reductions of a full group run as an xor butterfly (16, 8, 4, 2, 1), those of a part of it
 * over the active lanes in ascending order, prefixes as a doubling scan or likewise: the same order, so the same bits,
 * on soft and on cuda. On soft every lane publishes its value through the runtime and computes what it needs of the
 * others'. */
#ifdef SL_MSL_CUDA
#define MSL_LINE int = 0
#define MSL_AT   0
#else
#define MSL_LINE int msl_line = __builtin_LINE()
#define MSL_AT   msl_line
#endif

namespace msl_unit {
namespace metal {

enum class mem_flags {
    mem_none = 0,
    mem_device = 1,
    mem_threadgroup = 2,
    mem_device_and_threadgroup = 3,
    mem_texture = 4,
    mem_threadgroup_imageblock = 8,
    mem_object_data = 16
};
MSL_C mem_flags operator|(mem_flags a, mem_flags b) {
    return mem_flags(int(a) | int(b));
}
MSL_C mem_flags operator&(mem_flags a, mem_flags b) {
    return mem_flags(int(a) & int(b));
}
enum memory_order {
    memory_order_relaxed,
    memory_order_acquire,
    memory_order_release,
    memory_order_acq_rel,
    memory_order_seq_cst
};
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };

/* ---- back end: barriers, lanes and what other lanes hold --------------------------------------------------------- */

#ifdef SL_MSL_CUDA
MSL_I void threadgroup_barrier(mem_flags, thread_scope = thread_scope_threadgroup) {
    ::__syncthreads();
}
MSL_I void simdgroup_barrier(mem_flags, thread_scope = thread_scope_simdgroup) {
    ::__syncwarp();
}
MSL_I uint msl_lane() {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31u;
}
/* What the lanes of a group gave: any of them can be asked for, by all at once. */
template <class T> struct msl_shared {
    uint w[(sizeof(T) + 3) / 4];
    uint active, lane;
    MSL_M T operator[](uint from) const {
        uint r[(sizeof(T) + 3) / 4];
        MSL_UNROLL for (uint i = 0; i < (sizeof(T) + 3) / 4; i++) r[i] = ::__shfl_sync(0xffffffffu, w[i], (int)from);
        T t;
        MSL_COPY(&t, r, sizeof t);
        return t;
    }
};
/* Lanes that have left the kernel count as arrived, so who is active after the barrier are all that are left. */
template <class T> MSL_I msl_shared<T> msl_publish(const T &v, int) {
    msl_shared<T> s;
    ::__syncwarp();
    s.active = ::__activemask();
    s.lane = msl_lane();
    s.w[(sizeof(T) + 3) / 4 - 1] = 0;
    MSL_COPY(s.w, &v, sizeof v);
    return s;
}
#else
MSL_I void threadgroup_barrier(mem_flags f, thread_scope = thread_scope_threadgroup, MSL_LINE) {
    msl_api->barrier(int(f) & 3, msl_line);
}
MSL_I void simdgroup_barrier(mem_flags f, thread_scope = thread_scope_simdgroup, MSL_LINE) {
    msl_api->simd_barrier(int(f) & 3, msl_line);
}
MSL_I uint msl_lane() {
    return msl_api->self()->lane;
}
template <class T> struct msl_shared {
    const unsigned char *all;
    uint active, lane;
    MSL_M T operator[](uint from) const {
        T t;
        MSL_COPY(&t, all + SOFT_LANE_BYTES * (from & 31u), sizeof t);
        return t;
    }
};
template <class T> MSL_I msl_shared<T> msl_publish(const T &v, int line) {
    static_assert(sizeof(T) <= SOFT_LANE_BYTES, "too large for a SIMD-group function");
    msl_shared<T> s;
    s.lane = msl_lane();
    s.all = (const unsigned char *)msl_api->simd_publish(&v, sizeof v, line, &s.active);
    return s;
}
#endif
template <class T> MSL_I bool msl_has(const msl_shared<T> &s, uint lane) {
    return lane < 32u && (s.active >> lane & 1u);
}
/* What lane `from` gave, or else where it is not active. */
template <class T> MSL_I T msl_from(const msl_shared<T> &s, uint from, T otherwise) {
    T t = s[from & 31u];
    return msl_has(s, from) ? t : otherwise;
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

struct msl_op_sum {
    template <class T> MSL_M T operator()(T a, T b) const { return T(a + b); }
};
struct msl_op_product {
    template <class T> MSL_M T operator()(T a, T b) const { return T(a * b); }
};
struct msl_op_max {
    template <class T> MSL_M T operator()(T a, T b) const { return max(a, b); }
};
struct msl_op_min {
    template <class T> MSL_M T operator()(T a, T b) const { return min(a, b); }
};
struct msl_op_and {
    template <class T> MSL_M T operator()(T a, T b) const { return T(a & b); }
};
struct msl_op_or {
    template <class T> MSL_M T operator()(T a, T b) const { return T(a | b); }
};
struct msl_op_xor {
    template <class T> MSL_M T operator()(T a, T b) const { return T(a ^ b); }
};

/* Words of a whole group: one instruction from sm_80 on, of whichever lanes are active. */
template <class Op, class T> struct msl_redux {
    static constexpr bool has = false;
    MSL_M static T of(uint, T v) { return v; }
};
#if defined SL_MSL_CUDA && defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 800
#define MSL_REDUX(op, type, name)                                                                                      \
    template <> struct msl_redux<msl_op_##op, type> {                                                                  \
        static constexpr bool has = true;                                                                              \
        MSL_M static type of(uint active, type v) { return type(::name(active, v)); }                                  \
    };
MSL_REDUX(sum, int, __reduce_add_sync)
MSL_REDUX(sum, uint, __reduce_add_sync)
MSL_REDUX(max, int, __reduce_max_sync)
MSL_REDUX(max, uint, __reduce_max_sync)
MSL_REDUX(min, int, __reduce_min_sync)
MSL_REDUX(min, uint, __reduce_min_sync)
MSL_REDUX(and, uint, __reduce_and_sync)
MSL_REDUX(or, uint, __reduce_or_sync)
MSL_REDUX(xor, uint, __reduce_xor_sync)
#undef MSL_REDUX
#endif

/* Over the lanes [base, base + WIDTH) of a group. */
template <uint WIDTH, class Op, class T> MSL_I T msl_reduce(Op op, T v, int line) {
    msl_shared<T> s = msl_publish(v, line);
    if constexpr (WIDTH == 32u && msl_redux<Op, T>::has)
        return msl_redux<Op, T>::of(s.active, v);
    const uint base = s.lane & ~(WIDTH - 1u);
    const uint all = WIDTH == 32u ? 0xffffffffu : ((1u << (WIDTH & 31u)) - 1u) << base;
    if ((s.active & all) == all && (WIDTH == 32u || s.active == 0xffffffffu)) {
#ifdef SL_MSL_CUDA
        MSL_UNROLL for (uint o = WIDTH / 2; o; o >>= 1) {
            MSL_COPY(s.w, &v, sizeof v);
            v = op(v, s[s.lane ^ o]);
        }
        return v;
#else
        T t[WIDTH];
        for (uint i = 0; i < WIDTH; i++)
            t[i] = s[base + i];
        for (uint o = WIDTH / 2; o; o >>= 1)
            for (uint i = 0; i < o; i++)
                t[i] = op(t[i], t[i + o]);
        return t[0];
#endif
    }
    bool some = false;
    T r = v;
    for (uint i = 0; i < 32u; i++) {
        T t = s[i];
        if ((i & ~(WIDTH - 1u)) == base && msl_has(s, i)) {
            r = some ? op(r, t) : t;
            some = true;
        }
    }
    return r;
}
/* Lane i gets op over the active lanes up to i; exclusive: before i, neutral in the first. */
template <uint WIDTH, class Op, class T> MSL_I T msl_scan(Op op, T v, T neutral, bool exclusive, int line) {
    msl_shared<T> s = msl_publish(v, line);
    const uint first = s.lane & ~(WIDTH - 1u), at = s.lane - first;
    if (s.active != 0xffffffffu) {
        bool some = false;
        T r = neutral;
        for (uint i = 0; i < WIDTH; i++) {
            T t = s[first + i];
            if ((exclusive ? i < at : i <= at) && msl_has(s, first + i)) {
                r = some ? op(r, t) : t;
                some = true;
            }
        }
        return r;
    }
#ifdef SL_MSL_CUDA
    MSL_UNROLL for (uint o = 1; o < WIDTH; o <<= 1) {
        MSL_COPY(s.w, &v, sizeof v);
        T t = s[(s.lane - o) & 31u];
        if (at >= o)
            v = op(t, v);
    }
    MSL_COPY(s.w, &v, sizeof v);
    T before = s[(s.lane - 1u) & 31u];
    return !exclusive ? v : at ? before : neutral;
#else
    T t[WIDTH];
    for (uint i = 0; i < WIDTH; i++)
        t[i] = s[first + i];
    for (uint o = 1; o < WIDTH; o <<= 1)
        for (uint i = WIDTH - 1; i >= o; i--)
            t[i] = op(t[i - o], t[i]);
    return !exclusive ? t[at] : at ? t[at - 1] : neutral;
#endif
}

#define MSL_REDUCE(name)                                                                                               \
    template <class T> MSL_I T simd_##name(T v, MSL_LINE) {                                                            \
        return msl_reduce<32>(msl_op_##name{}, v, MSL_AT);                                                             \
    }                                                                                                                  \
    template <class T> MSL_I T quad_##name(T v, MSL_LINE) {                                                            \
        return msl_reduce<4>(msl_op_##name{}, v, MSL_AT);                                                              \
    }
MSL_REDUCE(sum)
MSL_REDUCE(product)
MSL_REDUCE(max)
MSL_REDUCE(min)
MSL_REDUCE(and)
MSL_REDUCE(or)
MSL_REDUCE(xor)

#define MSL_PREFIX(group, WIDTH, name, neutral)                                                                        \
    template <class T> MSL_I T group##_prefix_inclusive_##name(T v, MSL_LINE) {                                        \
        return msl_scan<WIDTH>(msl_op_##name{}, v, T(neutral), false, MSL_AT);                                         \
    }                                                                                                                  \
    template <class T> MSL_I T group##_prefix_exclusive_##name(T v, MSL_LINE) {                                        \
        return msl_scan<WIDTH>(msl_op_##name{}, v, T(neutral), true, MSL_AT);                                          \
    }
MSL_PREFIX(simd, 32, sum, 0)
MSL_PREFIX(simd, 32, product, 1)
MSL_PREFIX(quad, 4, sum, 0)
MSL_PREFIX(quad, 4, product, 1)

/* ---- shuffles ---------------------------------------------------------------------------------------------------- */

/* name(v, n): the value of the lane that `expr` in lane l and n (unsigned) says; beyond the group one's own. */
#define MSL_SHUFFLE(group, WIDTH, name, ...)                                                                           \
    template <class T> MSL_I T group##_##name(T v, ushort msl_n, MSL_LINE) {                                           \
        msl_shared<T> s = msl_publish(v, MSL_AT);                                                                      \
        const uint n = msl_n, base = s.lane & ~(WIDTH - 1u), l = s.lane - base;                                        \
        uint from = (__VA_ARGS__);                                                                                     \
        (void)l, (void)n;                                                                                              \
        return msl_from(s, from < WIDTH ? base + from : 32u, v);                                                       \
    }
#define MSL_SHUFFLES(group, WIDTH)                                                                                     \
    MSL_SHUFFLE(group, WIDTH, shuffle, n)                                                                              \
    MSL_SHUFFLE(group, WIDTH, broadcast, n)                                                                            \
    MSL_SHUFFLE(group, WIDTH, shuffle_xor, l ^ n)                                                                      \
    MSL_SHUFFLE(group, WIDTH, shuffle_up, l - n)                                                                       \
    MSL_SHUFFLE(group, WIDTH, shuffle_down, l + n)                                                                     \
    MSL_SHUFFLE(group, WIDTH, shuffle_rotate_up, (l - n) & (WIDTH - 1u))                                               \
    MSL_SHUFFLE(group, WIDTH, shuffle_rotate_down, (l + n) & (WIDTH - 1u))                                             \
    /* Lanes in segments of `modulo`; what would come from beyond a segment comes from the fill's other end. */        \
    template <class T> MSL_I T group##_shuffle_and_fill_up(T v, T fill, ushort n, ushort modulo = WIDTH, MSL_LINE) {   \
        msl_shared<T> s = msl_publish(v, MSL_AT), f = msl_publish(fill, MSL_AT);                                       \
        uint m = modulo, at = s.lane & (m - 1u), from = (s.lane & ~(m - 1u)) + ((at - n) & (m - 1u));                  \
        T a = s[from], b = f[from];                                                                                    \
        return at >= n ? a : b;                                                                                        \
    }                                                                                                                  \
    template <class T> MSL_I T group##_shuffle_and_fill_down(T v, T fill, ushort n, ushort modulo = WIDTH, MSL_LINE) { \
        msl_shared<T> s = msl_publish(v, MSL_AT), f = msl_publish(fill, MSL_AT);                                       \
        uint m = modulo, at = s.lane & (m - 1u), from = (s.lane & ~(m - 1u)) + ((at + n) & (m - 1u));                  \
        T a = s[from], b = f[from];                                                                                    \
        return at + n < m ? a : b;                                                                                     \
    }
MSL_SHUFFLES(simd, 32)
MSL_SHUFFLES(quad, 4)

/* ---- votes ------------------------------------------------------------------------------------------------------- */

MSL_I uint msl_ballot(bool b, uint &active, int line) {
#ifdef SL_MSL_CUDA
    (void)line;
    ::__syncwarp();
    active = ::__activemask();
    return ::__ballot_sync(0xffffffffu, b) & active;
#else
    msl_shared<uchar> s = msl_publish<uchar>(uchar(b), line);
    uint r = 0;
    for (uint i = 0; i < 32u; i++)
        r |= (uint)(s.all[SOFT_LANE_BYTES * i] & 1) << i;
    active = s.active;
    return r & active;
#endif
}
template <uint WIDTH> struct msl_vote {
    typedef conditional_t<WIDTH == 32u, ulong, uint> vote_t;
    vote_t msl_v;
    msl_vote() = default;
    MSL_MC explicit msl_vote(vote_t v) : msl_v(v) {}
    MSL_MC explicit operator vote_t() const { return msl_v; }
    template <class I, enable_if_t<msl_int<I>::value && !is_same_v<I, vote_t>, int> = 0>
    MSL_MC explicit operator I() const {
        return I(msl_v);
    }
    MSL_MC bool any() const { return msl_v != 0; }
    MSL_MC bool all() const { return uint(msl_v) == (WIDTH == 32u ? 0xffffffffu : (1u << (WIDTH & 31u)) - 1u); }
    MSL_MC bool operator==(msl_vote o) const { return msl_v == o.msl_v; }
    MSL_MC bool operator!=(msl_vote o) const { return msl_v != o.msl_v; }
};
typedef msl_vote<32> simd_vote;
typedef msl_vote<4> quad_vote;

#define MSL_VOTES(group, WIDTH, bits)                                                                                  \
    MSL_I group##_vote group##_ballot(bool b, MSL_LINE) {                                                              \
        uint active, r = msl_ballot(b, active, MSL_AT);                                                                \
        return group##_vote(bits(r));                                                                                  \
    }                                                                                                                  \
    MSL_I group##_vote group##_active_threads_mask(MSL_LINE) {                                                         \
        uint active;                                                                                                   \
        msl_ballot(true, active, MSL_AT);                                                                              \
        return group##_vote(bits(active));                                                                             \
    }                                                                                                                  \
    MSL_I bool group##_any(bool b, MSL_LINE) {                                                                         \
        uint active, r = msl_ballot(b, active, MSL_AT);                                                                \
        return bits(r) != 0;                                                                                           \
    }                                                                                                                  \
    MSL_I bool group##_all(bool b, MSL_LINE) {                                                                         \
        uint active, r = msl_ballot(b, active, MSL_AT);                                                                \
        return bits(r) == bits(active);                                                                                \
    }                                                                                                                  \
    MSL_I bool group##_is_first(MSL_LINE) {                                                                            \
        uint active;                                                                                                   \
        msl_ballot(true, active, MSL_AT);                                                                              \
        return (msl_lane() & (WIDTH - 1u)) == ctz(bits(active));                                                       \
    }                                                                                                                  \
    MSL_I bool group##_is_helper_thread() {                                                                            \
        return false;                                                                                                  \
    }                                                                                                                  \
    template <class T> MSL_I T group##_broadcast_first(T v, MSL_LINE) {                                                \
        msl_shared<T> s = msl_publish(v, MSL_AT);                                                                      \
        return s[(s.lane & ~(WIDTH - 1u)) + ctz(bits(s.active))];                                                      \
    }
MSL_I uint msl_simd_bits(uint m) {
    return m;
}
MSL_I uint msl_quad_bits(uint m) {
    return m >> (msl_lane() & 28u) & 15u;
}
MSL_VOTES(simd, 32, msl_simd_bits)
MSL_VOTES(quad, 4, msl_quad_bits)

} // namespace metal
} // namespace msl_unit

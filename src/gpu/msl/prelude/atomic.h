/* atomic.h: <metal_atomic>. Every order is at least what the kernel asked for: relaxed stays relaxed, the rest is
 * sequentially consistent. */
namespace msl_unit {
namespace metal {

template <class T> struct atomic { T msl_v; };
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<long> atomic_long;
typedef atomic<ulong> atomic_ulong;
typedef atomic<float> atomic_float;
typedef atomic<bool> atomic_bool;

/* The integer that holds a T's bits. */
template <class T>
using msl_word = conditional_t<sizeof(T) == 1, uchar,
                               conditional_t<sizeof(T) == 2, ushort, conditional_t<sizeof(T) == 4, uint, ulong>>>;
template <class T> MSL_I T *msl_address(const volatile atomic<T> *a) {
    return const_cast<T *>(&a->msl_v);
}

#ifdef SL_MSL_CUDA
MSL_I void msl_atomic_begin(const volatile void *, uint, memory_order o) {
    if (o != memory_order_relaxed)
        ::__threadfence();
}
MSL_I bool msl_cas(uint *p, uint &expected, uint v) {
    uint e = expected;
    expected = ::atomicCAS(p, e, v);
    return expected == e;
}
MSL_I bool msl_cas(ulong *p, ulong &expected, ulong v) {
    ulong e = expected;
    expected = (ulong)::atomicCAS((unsigned long long *)p, (unsigned long long)e, (unsigned long long)v);
    return expected == e;
}
/* A byte or two within their aligned word. */
template <class W> MSL_I bool msl_cas_part(W *p, W &expected, W v) {
    uint *word = (uint *)((uintptr_t)p & ~(uintptr_t)3), shift = (uint)((uintptr_t)p & 3) * 8;
    uint mask = (uint)(W)~W(0) << shift, old = *(volatile uint *)word;
    for (;;) {
        W now = (W)((old & mask) >> shift);
        if (now != expected) {
            expected = now;
            return false;
        }
        if (msl_cas(word, old, (old & ~mask) | (uint)v << shift))
            return true;
    }
}
MSL_I bool msl_cas(uchar *p, uchar &expected, uchar v) {
    return msl_cas_part(p, expected, v);
}
MSL_I bool msl_cas(ushort *p, ushort &expected, ushort v) {
    return msl_cas_part(p, expected, v);
}
template <class W> MSL_I W msl_load(W *p, memory_order) {
    return *(const volatile W *)p;
}
MSL_I void atomic_thread_fence(mem_flags, memory_order, thread_scope s = thread_scope_device) {
    if (s == thread_scope_device)
        ::__threadfence();
    else
        ::__threadfence_block();
}
#else
MSL_I void msl_atomic_begin(const volatile void *p, uint size, memory_order) {
    if (msl_api->atomic_hint)
        msl_api->atomic_hint(p, size);
}
template <class W> MSL_I bool msl_cas(W *p, W &expected, W v) {
    return __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
template <class W> MSL_I W msl_load(W *p, memory_order o) {
    return o == memory_order_relaxed ? __atomic_load_n(p, __ATOMIC_RELAXED) : __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
MSL_I void atomic_thread_fence(mem_flags flags, memory_order, thread_scope s = thread_scope_device) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (msl_api->fence && s == thread_scope_device && (int(flags) & int(mem_flags::mem_device)))
        msl_api->fence();
}
#endif

template <class T> MSL_I T atomic_load_explicit(const volatile atomic<T> *a, memory_order o) {
    T *p = msl_address(a);
    msl_atomic_begin(p, sizeof *p, o);
    return msl_bits<T>(msl_load((msl_word<T> *)p, o));
}
/* Changes the value to f(value, v) and returns what it was. */
template <class T, class F> MSL_I T msl_change(const volatile atomic<T> *a, T v, memory_order o, F f) {
    typedef msl_word<T> W;
    T *p = msl_address(a);
    msl_atomic_begin(p, sizeof *p, o);
    W old = msl_load((W *)p, memory_order_relaxed);
    while (!msl_cas((W *)p, old, msl_bits<W>(f(msl_bits<T>(old), v)))) {
    }
    return msl_bits<T>(old);
}
struct msl_op_exchange {
    template <class T> MSL_M T operator()(T, T b) const { return b; }
};
struct msl_op_subtract {
    template <class T> MSL_M T operator()(T a, T b) const { return T(a - b); }
};

/* Where the hardware has the operation it is one instruction. */
template <class T> constexpr bool msl_atomic_int = msl_int<T>::value && sizeof(T) >= 4;
#ifdef SL_MSL_CUDA
template <class T> struct msl_device_word {
    typedef conditional_t<sizeof(T) == 4, T, conditional_t<is_signed<T>::value, long long, unsigned long long>> type;
    typedef conditional_t<sizeof(T) == 4, T, unsigned long long> bits; /* add, and, or, xor, exchange: unsigned only */
};
#define MSL_FETCH(name, op, has, word, cuda, builtin)                                                                  \
    template <class T>                                                                                                 \
    MSL_I T atomic_fetch_##name##_explicit(const volatile atomic<T> *a, type_identity_t<T> v, memory_order o) {        \
        if constexpr (has) {                                                                                           \
            typedef typename msl_device_word<T>::word W;                                                               \
            msl_atomic_begin(nullptr, 0, o);                                                                           \
            return T(::cuda((W *)msl_address(a), W(v)));                                                               \
        } else                                                                                                         \
            return msl_change(a, v, o, msl_op_##op{});                                                                 \
    }
#else
#define MSL_FETCH(name, op, has, word, cuda, builtin)                                                                  \
    template <class T>                                                                                                 \
    MSL_I T atomic_fetch_##name##_explicit(const volatile atomic<T> *a, type_identity_t<T> v, memory_order o) {        \
        return msl_change(a, v, o, msl_op_##op{});                                                                     \
    }
#endif
MSL_FETCH(add, sum, msl_atomic_int<T> || sizeof(T) == 4, bits, atomicAdd, add)
MSL_FETCH(and, and, msl_atomic_int<T>, bits, atomicAnd, and)
MSL_FETCH(or, or, msl_atomic_int<T>, bits, atomicOr, or)
MSL_FETCH(xor, xor, msl_atomic_int<T>, bits, atomicXor, xor)
MSL_FETCH(max, max, msl_atomic_int<T>, type, atomicMax, max)
MSL_FETCH(min, min, msl_atomic_int<T>, type, atomicMin, min)
template <class T>
MSL_I T atomic_fetch_sub_explicit(const volatile atomic<T> *a, type_identity_t<T> v, memory_order o) {
    if constexpr (msl_atomic_int<T>)
        return atomic_fetch_add_explicit(a, T(make_unsigned_t<T>(0) - make_unsigned_t<T>(v)), o);
    else
        return msl_change(a, v, o, msl_op_subtract{});
}
template <class T> MSL_I T atomic_exchange_explicit(const volatile atomic<T> *a, type_identity_t<T> v, memory_order o) {
    return msl_change(a, v, o, msl_op_exchange{});
}
template <class T> MSL_I void atomic_store_explicit(const volatile atomic<T> *a, type_identity_t<T> v, memory_order o) {
    msl_change(a, v, o, msl_op_exchange{});
}
template <class T>
MSL_I bool atomic_compare_exchange_weak_explicit(const volatile atomic<T> *a, T *expected, type_identity_t<T> v,
                                                 memory_order o, memory_order) {
    typedef msl_word<T> W;
    T *p = msl_address(a);
    msl_atomic_begin(p, sizeof *p, o);
    W e = msl_bits<W>(*expected);
    bool done = msl_cas((W *)p, e, msl_bits<W>(v));
    *expected = msl_bits<T>(e);
    return done;
}
/* Without a result: of ulong only, in Metal. */
template <class T> MSL_I void atomic_max_explicit(const volatile atomic<T> *a, type_identity_t<T> v, memory_order o) {
    atomic_fetch_max_explicit(a, v, o);
}
template <class T> MSL_I void atomic_min_explicit(const volatile atomic<T> *a, type_identity_t<T> v, memory_order o) {
    atomic_fetch_min_explicit(a, v, o);
}

} // namespace metal
} // namespace msl_unit

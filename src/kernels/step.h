// step: the step buffer as kernels read it, slabs, and small helpers. Included by every kernel file.
#ifndef SL_KERNELS_STEP_H
#define SL_KERNELS_STEP_H

#include <metal_stdlib>
#include "args.h"
using namespace metal;

// Names an instantiation: SL_KERNEL("name", function, template arguments)
#define SL_KERNEL(name, function, ...)                                                                                 \
    template [[host_name(name)]] [[kernel]] decltype(function<__VA_ARGS__>) function<__VA_ARGS__>;

// A function constant that is false unless given.
#define SL_SWITCH(name, id)                                                                                            \
    constant bool name##_given [[function_constant(id)]];                                                              \
    constant bool name = is_function_constant_defined(name##_given) && name##_given;

SL_SWITCH(fc_outs, SL_FC_OUTS)

inline device const sl_step_head &step_head(device const int *step) {
    return *(device const sl_step_head *)step;
}

// Rows of the step that a grid over rows has work for.
inline uint step_rows(device const int *step) {
    return uint(fc_outs ? step_head(step).outs : step_head(step).rows);
}

inline int step_token(device const int *step, uint row) {
    return step[step_head(step).token + row];
}
inline int step_position(device const int *step, uint row) {
    return step[step_head(step).position + row];
}

// Page table of the sequence of a row.
inline device const int *step_pages(device const int *step, uint row) {
    int seq = step[step_head(step).seq + row];
    return step + step[step_head(step).page_first + uint(seq)];
}

// True for all lanes of a SIMD-group or none, even if the host should write while it is read.
inline bool step_aborted(device const int *step) {
    return simd_broadcast_first(step_head(step).aborted) != 0;
}

// 2^e that brings m >= 0 into [2^14, 2^15), for a row to become half; bounded so that 2^-e is a normal number too.
inline float half_scale(float m) {
    int exponent = int(as_type<uint>(m) >> 23 & 255);
    return as_type<float>(uint(clamp(268 - exponent, 1, 253)) << 23);
}

inline float silu(float x) {
    return x / (1.0f + exp(-x));
}
inline float sigmoid(float x) {
    return 1.0f / (1.0f + exp(-x));
}

// gpt_oss: the gate clamped from above and the linear part on both sides, which is then one more.
inline float clamped_swiglu(float gate, float up, float limit, float alpha) {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return gate * sigmoid(alpha * gate) * (up + 1.0f);
}

// ---- slabs --------------------------------------------------------------------------------------------------------

// Memory of experts or KV, bound in pieces; P is `device const uchar *` or `device uchar *`.
template <typename P> struct slab_list { P at[SL_SLAB_COUNT]; };

#define SL_SLAB_PARAMS(P)                                                                                              \
    P slab0 [[buffer(15)]], P slab1 [[buffer(16)]], P slab2 [[buffer(17)]], P slab3 [[buffer(18)]],                    \
        P slab4 [[buffer(19)]], P slab5 [[buffer(20)]], P slab6 [[buffer(21)]], P slab7 [[buffer(22)]],                \
        P slab8 [[buffer(23)]], P slab9 [[buffer(24)]], P slab10 [[buffer(25)]], P slab11 [[buffer(26)]],              \
        P slab12 [[buffer(27)]], P slab13 [[buffer(28)]], P slab14 [[buffer(29)]], P slab15 [[buffer(30)]]
#define SL_SLABS                                                                                                       \
    {                                                                                                                  \
        {                                                                                                              \
            slab0, slab1, slab2, slab3, slab4, slab5, slab6, slab7, slab8, slab9, slab10, slab11, slab12, slab13,      \
                slab14, slab15                                                                                         \
        }                                                                                                              \
    }

// A chain of selects: an array in registers cannot be indexed by a variable.
template <typename P> inline P slab_base(thread const slab_list<P> &slabs, uint index) {
    P base = slabs.at[0];
#pragma unroll
    for (uint i = 1; i < SL_SLAB_COUNT; i++)
        base = index == i ? slabs.at[i] : base;
    return base;
}

// The one place where an entry of the expert table becomes an address: slab << 56 | (offset + 1); 0 is absent (asked
// for with sl_present).
inline bool sl_present(ulong entry) {
    return entry != 0;
}
inline device const uchar *sl_at(thread const slab_list<device const uchar *> &slabs, ulong entry) {
    return slab_base(slabs, uint(entry >> 56)) + ((entry & 0x00ffffffffffffffUL) - 1);
}

#endif

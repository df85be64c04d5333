// pages: KV pages as kernels see them (sl_kv_layout of ops.h): 64 tokens of K and of V per layer and kv head, in blocks
// that lie in slabs; a page table per sequence lists them. An entry is two words, the lower one first: slab << 56 |
// offset of the block, as in the table of experts.
#ifndef SL_KERNELS_PAGES_H
#define SL_KERNELS_PAGES_H

#include "step.h"

enum { KV_K };

// The plane of the values, which may be the keys' own.
inline uint value_plane(constant sl_attention_args &a) {
    return a.planes - 1;
}

// The block that holds position t of a sequence with this page table.
inline ulong page_block(device const int *pages, uint t) {
    device const uint *entry = (device const uint *)pages + 2 * (t / SL_KV_PAGE);
    return ulong(entry[0]) | ulong(entry[1]) << 32;
}

// A page of a kv head.
template <typename P>
inline P page_at(constant sl_attention_args &a, thread const slab_list<P> &slabs, ulong block, uint head, uint plane) {
    return slab_base(slabs, uint(block >> 56)) + (block & 0x00ffffffffffffffUL) +
           ulong(a.layer * a.planes + plane) * a.plane_bytes + ulong(head) * SL_KV_PAGE * a.head_bytes;
}

// The first position that a row at `position` sees.
inline uint window_first(constant sl_attention_args &a, uint position) {
    return a.window && position >= a.window ? position + 1 - a.window : 0;
}

// What is left of the sums when the sink joins them: factors of the values and of their sum, and what the sum gains.
struct sink_factors {
    float keep, gain;
};

inline sink_factors sink_join(float max, float sink) {
    float top = sink > max ? sink : max;
    sink_factors f = {exp(max - top), exp(sink - top)};
    return f;
}

// Formats of a head's values: four from dimension d on, one stored by a SIMD-group (lane = dimension mod 32).
struct kv_f16 {
    static constant constexpr bool halves = true; // they lie there as halves
    static float4 load4(device const uchar *p, uint d) { return float4(*(device const half4 *)(p + 2 * d)); }
    static half4 load4_half(device const uchar *p, uint d) { return *(device const half4 *)(p + 2 * d); }
    static void store(device uchar *p, uint d, float v) { *(device half *)(p + 2 * d) = half(v); }
};

// Blocks of a half scale and 32 int8, 34 bytes: only 2-aligned.
struct kv_q8_0 {
    static constant constexpr bool halves = false;
    static float4 load4(device const uchar *p, uint d) {
        device const uchar *b = p + 34 * (d >> 5);
        device const ushort *q = (device const ushort *)(b + 2 + (d & 31));
        float scale = float(*(device const half *)b);
        return scale * float4(as_type<char4>(uint(q[0]) | uint(q[1]) << 16));
    }
    static half4 load4_half(device const uchar *p, uint d) { return half4(load4(p, d)); }
    // A block with a NaN or an infinity gets a NaN as its scale; below 2^-100 the reciprocal would overflow.
    static void store(device uchar *p, uint d, float v) {
        float bad = simd_sum(v - v), amax = simd_max(fabs(v));
        bool plain = bad == 0.0f && amax >= 7.8886091e-31f;
        device uchar *b = p + 34 * (d >> 5);
        b[2 + (d & 31)] = uchar(plain ? int(rint(v * (127.0f / amax))) : 0);
        if ((d & 31) == 0)
            *(device half *)b = half(bad == 0.0f ? amax / 127.0f : bad);
    }
};

struct kv_f32 {
    static constant constexpr bool halves = false;
    static float4 load4(device const uchar *p, uint d) { return *(device const float4 *)(p + 4 * d); }
    static half4 load4_half(device const uchar *p, uint d) { return half4(load4(p, d)); }
    static void store(device uchar *p, uint d, float v) { *(device float *)(p + 4 * d) = v; }
};

// What is instantiated: all formats and the usual dimensions, or what the host defines in front of the source:
// SL_ATTENTION_KV (f16, q8_0, f32), SL_ATTENTION_DIM (a multiple of 4 up to SL_ATTENTION_DIM_MAX; of 32 with q8_0) and,
// where values are a part of the keys, SL_ATTENTION_VALUES, a multiple of 4 no more than that.
#ifdef SL_ATTENTION_KV
#define SL_KV_ONE(X, kv) X(kv)
#define SL_KV_FORMATS(X) SL_KV_ONE(X, SL_ATTENTION_KV)
#else
#define SL_KV_FORMATS(X) X(f16) X(q8_0) X(f32)
#endif

#endif

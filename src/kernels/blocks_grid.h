// blocks_grid: GGUF's formats whose codes choose rows of a grid, as formats of blocks.h. Layouts stand beside the
// dequantisers in quant/. The host puts before the source the grids of the formats that a model has:
// constant uint grid_<format>[], a row's bytes in order, and SL_GRID_<format>.
#ifndef SL_KERNELS_BLOCKS_GRID_H
#define SL_KERNELS_BLOCKS_GRID_H

#include "blocks.h"

// 32 weights as bytes of 128 + value.
struct grid_unit {
    uint bits[8];
    float2 scale;
};

struct grid_common {
    static constant constexpr bool plain = false;
    static constant constexpr uint gap = 16;
    static constant constexpr float offset = 384.0f;
    typedef grid_unit unit;
    static uint column(uint u) { return 32 * u; }
    static float4 low(thread const unit &q, uint w) { return codes8(q.bits[w]); }
    static float4 high(thread const unit &q, uint w) { return codes8(q.bits[4 + w]); }
    static float2 scale(thread const unit &q) { return q.scale; }
    static float2 bias(thread const unit &q) { return float2(0.0f); }
};

// Four magnitudes (none is zero), negative where their bit of s is set, plus 128.
inline uint signed_bytes(uint m, uint s) {
    uint ones = (s & 15) * 0x00204081u & 0x01010101u;
    return ((m ^ ones * 255u) + ones) ^ 0x80808080u;
}

// Eight signs from seven bits: their number is even.
inline uint even_signs(uint seven) {
    return seven | (0x6996u >> ((seven ^ seven >> 4) & 15) & 1) << 7; // the word is the parity of four bits
}

// Eight weights, the k-th of four, from row `at` of a grid of eight.
inline void put_eight(thread grid_unit &q, uint k, constant uint *grid, uint at, uint s) {
    q.bits[2 * k] = signed_bytes(grid[2 * at], s);
    q.bits[2 * k + 1] = signed_bytes(grid[2 * at + 1], s >> 4);
}

// From two rows of a grid of four.
inline void put_four_four(thread grid_unit &q, uint k, constant uint *grid, uint a, uint b, uint s) {
    q.bits[2 * k] = signed_bytes(grid[a], s);
    q.bits[2 * k + 1] = signed_bytes(grid[b], s >> 4);
}

// The same as bytes of 16 + value, which are small.
struct moved_common : grid_common {
    static constant constexpr float offset = 80.0f;
    static float4 low(thread const unit &q, uint w) { return codes6(q.bits[w], q.bits[w] >> 4); }
    static float4 high(thread const unit &q, uint w) { return codes6(q.bits[4 + w], q.bits[4 + w] >> 4); }
};

// Eight of 8 * row + 1 or - 1; a row's bytes are -1, 0, 1.
inline void put_moved(thread grid_unit &q, uint k, constant uint *grid, uint at, bool down) {
    for (uint i = 0; i < 2; i++) {
        uint v = ((grid[2 * at + i] << 3 & 0xf8f8f8f8u) ^ 0x80808080u) - 0x70707070u;
        q.bits[2 * k + i] = down ? v - 0x01010101u : v + 0x01010101u;
    }
}

inline float odd(uint n) {
    return float(2 * n + 1);
}

#ifdef SL_GRID_iq2_xxs
template <int A> struct format_iq2_xxs : grid_common {
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 66 * ulong(u >> 3), *at = p + 2 + 8 * (u & 7);
        uint rows = load32<A>(at), high = load32<A>(at + 4);
        for (uint k = 0; k < 4; k++)
            put_eight(q, k, grid_iq2_xxs, rows >> 8 * k & 255, even_signs(high >> 7 * k & 127));
        q.scale = float2(half_bits(load16<A>(p)) * 0.125f * odd(high >> 28));
    }
};
#endif

#ifdef SL_GRID_iq2_xs
template <int A> struct format_iq2_xs : grid_common {
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 74 * ulong(u >> 3), *at = p + 2 + 8 * (u & 7);
        for (uint k = 0; k < 4; k++) {
            uint v = load16<A>(at + 2 * k);
            put_eight(q, k, grid_iq2_xs, v & 511, even_signs(v >> 9));
        }
        uint s = p[66 + (u & 7)];
        q.scale = half_bits(load16<A>(p)) * 0.125f * float2(odd(s & 15), odd(s >> 4));
    }
};
#endif

#ifdef SL_GRID_iq2_s
template <int A> struct format_iq2_s : grid_common {
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 82 * ulong(u >> 3), *at = p + 2 + 4 * (u & 7);
        uint high = p[66 + (u & 7)], s = p[74 + (u & 7)];
        for (uint k = 0; k < 4; k++)
            put_eight(q, k, grid_iq2_s, at[k] | (high >> 2 * k & 3) << 8, at[32 + k]);
        q.scale = half_bits(load16<A>(p)) * 0.125f * float2(odd(s & 15), odd(s >> 4));
    }
};
#endif

#ifdef SL_GRID_iq3_xxs
template <int A> struct format_iq3_xxs : grid_common {
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 98 * ulong(u >> 3), *at = p + 2 + 8 * (u & 7);
        uint high = load32<A>(p + 66 + 4 * (u & 7));
        for (uint k = 0; k < 4; k++)
            put_four_four(q, k, grid_iq3_xxs, at[2 * k], at[2 * k + 1], even_signs(high >> 7 * k & 127));
        q.scale = float2(half_bits(load16<A>(p)) * 0.25f * odd(high >> 28));
    }
};
#endif

#ifdef SL_GRID_iq3_s
template <int A> struct format_iq3_s : moved_common { // magnitudes are at most 15
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 110 * ulong(u >> 3), *at = p + 2 + 8 * (u & 7);
        uint j = u & 7, high = p[66 + j], s = uint(p[106 + (j >> 1)]) >> 4 * (j & 1) & 15;
        for (uint k = 0; k < 4; k++)
            put_four_four(q, k, grid_iq3_s, at[2 * k] | (high >> 2 * k & 1) << 8,
                          at[2 * k + 1] | (high >> (2 * k + 1) & 1) << 8, p[74 + 4 * j + k]);
        for (uint k = 0; k < 8; k++)
            q.bits[k] -= 0x70707070u;
        q.scale = float2(half_bits(load16<A>(p)) * odd(s));
    }
};
#endif

#ifdef SL_GRID_iq1_s
template <int A> struct format_iq1_s : moved_common {
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 50 * ulong(u >> 3), *at = p + 2 + 4 * (u & 7);
        uint high = load16<A>(p + 34 + 2 * (u & 7));
        for (uint k = 0; k < 4; k++)
            put_moved(q, k, grid_iq1_s, at[k] | (high >> 3 * k & 7) << 8, high >> 15);
        q.scale = float2(half_bits(load16<A>(p)) * 0.125f * odd(high >> 12 & 7));
    }
};
#endif

#ifdef SL_GRID_iq1_m
template <int A> struct format_iq1_m : moved_common {
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 56 * ulong(u >> 3), *at = p + 4 * (u & 7);
        uint j = u & 7, high = load16<A>(p + 32 + 2 * j), s = load16<A>(p + 48 + 2 * (j >> 1)) >> 6 * (j & 1);
        for (uint k = 0; k < 4; k++)
            put_moved(q, k, grid_iq1_m, at[k] | (high >> 4 * k & 7) << 8, high >> (4 * k + 3) & 1);
        uint d = uint(p[49]) >> 4 | (p[51] & 0xf0u) | (p[53] & 0xf0u) << 4 | (p[55] & 0xf0u) << 8;
        q.scale = half_bits(d) * 0.125f * float2(odd(s & 7), odd(s >> 3 & 7));
    }
};
#endif

#endif

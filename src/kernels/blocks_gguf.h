// blocks_gguf: GGUF's blocks as formats of blocks.h. Layouts stand beside the dequantisers in quant/.
#ifndef SL_KERNELS_BLOCKS_GGUF_H
#define SL_KERNELS_BLOCKS_GGUF_H

#include "blocks.h"
#include "blocks_grid.h"

// ---- blocks of 32 --------------------------------------------------------------------------------------------------

struct block32_unit {
    uint4 bits;
    uint fifth; // the 32 fifth bits
    float scale, bias;
};

struct block32_common {
    static constant constexpr bool plain = false;
    static constant constexpr uint gap = 16;
    typedef block32_unit unit;
    static uint column(uint u) { return 32 * u; }
    static float2 scale(thread const unit &q) { return float2(q.scale); }
    static float2 bias(thread const unit &q) { return float2(q.bias); }
};

// Low codes in the low four bits of 16 bytes, high codes in the high four.
struct nibbles : block32_common {
    static float4 low(thread const unit &q, uint w) { return codes4(q.bits[w]); }
    static float4 high(thread const unit &q, uint w) { return codes4(q.bits[w] >> 4); }
};

struct nibbles_fifth : block32_common {
    static uint4 fifth(uint h) { return uint4(h << 22, h << 21, h << 20, h << 19); }
    static float4 low(thread const unit &q, uint w) { return codes5(q.bits[w], fifth(q.fifth >> 4 * w)); }
    static float4 high(thread const unit &q, uint w) { return codes5(q.bits[w] >> 4, fifth(q.fifth >> (16 + 4 * w))); }
};

// d, 16 bytes: w = d * (q - 8)
template <int A> struct format_q4_0 : nibbles {
    static constant constexpr float offset = 24.0f;
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 18 * ulong(u);
        q.scale = half_bits(load16<A>(p));
        q.bias = 0.0f;
        q.bits = load128<(A > 2 ? 2 : A)>(p + 2);
    }
};

// d, m, 16 bytes: w = d * q + m
template <int A> struct format_q4_1 : nibbles {
    static constant constexpr float offset = 16.0f;
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 20 * ulong(u);
        uint d = load32<A>(p);
        q.scale = half_bits(d);
        q.bias = half_bits(d >> 16);
        q.bits = load128<(A > 4 ? 4 : A)>(p + 4);
    }
};

// d, fifth bits, 16 bytes: w = d * (q - 16)
template <int A> struct format_q5_0 : nibbles_fifth {
    static constant constexpr float offset = 48.0f;
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 22 * ulong(u);
        q.scale = half_bits(load16<A>(p));
        q.bias = 0.0f;
        q.fifth = load32<(A > 2 ? 2 : A)>(p + 2);
        q.bits = load128<(A > 2 ? 2 : A)>(p + 6);
    }
};

// d, m, fifth bits, 16 bytes: w = d * q + m
template <int A> struct format_q5_1 : nibbles_fifth {
    static constant constexpr float offset = 32.0f;
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 24 * ulong(u);
        uint d = load32<A>(p);
        q.scale = half_bits(d);
        q.bias = half_bits(d >> 16);
        q.fifth = load32<A>(p + 4);
        q.bits = load128<(A > 4 ? 4 : A)>(p + 8);
    }
};

// d, 16 bytes: w = d * value[q]
template <int A> struct format_iq4_nl : block32_common {
    static constant constexpr float offset = 0.0f;
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 18 * ulong(u);
        q.scale = half_bits(load16<A>(p));
        q.bias = 0.0f;
        q.bits = load128<(A > 2 ? 2 : A)>(p + 2);
    }
    static float4 low(thread const unit &q, uint w) { return values4(values_iq4, q.bits[w]); }
    static float4 high(thread const unit &q, uint w) { return values4(values_iq4, q.bits[w] >> 4); }
};

// e, 16 bytes: w = 2^(e - 127) * value[q]
template <int A> struct format_mxfp4 : block32_common {
    static constant constexpr float offset = 0.0f;
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 17 * ulong(u);
        q.scale = e8m0(p[0]);
        q.bias = 0.0f;
        q.bits = load128<1>(p + 1);
    }
    static float4 low(thread const unit &q, uint w) { return values4(values_e2m1, q.bits[w]); }
    static float4 high(thread const unit &q, uint w) { return values4(values_e2m1, q.bits[w] >> 4); }
};

struct q8_0_unit {
    uint4 bits[2];
    float scale;
};

// d, 32 int8: w = d * q; with the sign bit flipped a byte is q + 128
template <int A> struct format_q8_0 {
    static constant constexpr bool plain = false;
    static constant constexpr uint gap = 16;
    static constant constexpr float offset = 384.0f;
    typedef q8_0_unit unit;
    static uint column(uint u) { return 32 * u; }
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 34 * ulong(u);
        q.scale = half_bits(load16<A>(p));
        q.bits[0] = load128<(A > 2 ? 2 : A)>(p + 2);
        q.bits[1] = load128<(A > 2 ? 2 : A)>(p + 18);
    }
    static float4 low(thread const unit &q, uint w) { return codes8(q.bits[0][w] ^ 0x80808080u); }
    static float4 high(thread const unit &q, uint w) { return codes8(q.bits[1][w] ^ 0x80808080u); }
    static float2 scale(thread const unit &q) { return float2(q.scale); }
    static float2 bias(thread const unit &q) { return float2(0.0f); }
};

// ---- blocks of 256: eight units, 16 bytes of low bits each ---------------------------------------------------------

// Scales and minima of sub-blocks 2j (.x) and 2j + 1 (.y), 6 bits each, from 12 bytes at s.
template <int A> inline void k_scale_min(device const uchar *s, uint j, thread uint2 &scale, thread uint2 &minimum) {
    uint a = load16<A>(s + 2 * (j & 1)), b = load16<A>(s + 4 + 2 * (j & 1)), c = load16<A>(s + 8 + 2 * (j & 1));
    uint sc = j < 2 ? a & 0x3f3fu : (c & 0x0f0fu) | (a & 0xc0c0u) >> 2;
    uint mn = j < 2 ? b & 0x3f3fu : (c >> 4 & 0x0f0fu) | (b & 0xc0c0u) >> 2;
    scale = uint2(sc & 255, sc >> 8);
    minimum = uint2(mn & 255, mn >> 8);
}

struct k_unit {
    uint4 bits, high;
    uint shift; // of the high bits of the lower run
    float2 scale, bias;
};

struct k_common {
    static constant constexpr bool plain = false;
    typedef k_unit unit;
    static float2 scale(thread const unit &q) { return q.scale; }
    static float2 bias(thread const unit &q) { return q.bias; }
};

// Unit u of a block: sub-blocks 2j and 2j + 1, their columns 16h..16h+15; j = u / 2 % 4, h = u % 2.
template <int A> inline void load_k_scales(thread k_unit &q, device const uchar *block, uint j) {
    uint d = load32<A>(block);
    uint2 sc, mn;
    k_scale_min<A>(block + 4, j, sc, mn);
    q.scale = half_bits(d) * float2(sc);
    q.bias = -(half_bits(d >> 16) * float2(mn));
}

inline uint k_column(uint u) {
    return (u >> 3) * 256 + ((u >> 1) & 3) * 64 + (u & 1) * 16;
}

template <int A> struct format_q4_k : k_common {
    static constant constexpr uint gap = 32;
    static constant constexpr float offset = 16.0f;
    static uint column(uint u) { return k_column(u); }
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 144 * ulong(u >> 3);
        load_k_scales<A>(q, p, (u >> 1) & 3);
        q.bits = load128<A>(p + 16 + 16 * (u & 7));
    }
    static float4 low(thread const unit &q, uint w) { return codes4(q.bits[w]); }
    static float4 high(thread const unit &q, uint w) { return codes4(q.bits[w] >> 4); }
};

template <int A> struct format_q5_k : k_common {
    static constant constexpr uint gap = 32;
    static constant constexpr float offset = 32.0f;
    static uint column(uint u) { return k_column(u); }
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 176 * ulong(u >> 3);
        uint j = (u >> 1) & 3;
        load_k_scales<A>(q, p, j);
        q.shift = 2 * j;
        q.high = load128<A>(p + 16 + 16 * (u & 1));
        q.bits = load128<A>(p + 48 + 16 * (u & 7));
    }
    static uint4 fifth(uint h) { return uint4(h << 22, h << 14, h << 6, h >> 2); }
    static float4 low(thread const unit &q, uint w) { return codes5(q.bits[w], fifth(q.high[w] >> q.shift)); }
    static float4 high(thread const unit &q, uint w) {
        return codes5(q.bits[w] >> 4, fifth(q.high[w] >> (q.shift + 1)));
    }
};

// Unit u of a block: half n = u / 4 % 2, runs r and r + 2 with r = u / 2 % 2, their columns 16h..16h+15 with h = u % 2.
template <int A> struct format_q6_k : k_common {
    static constant constexpr uint gap = 64;
    static constant constexpr float offset = 96.0f;
    static uint column(uint u) { return (u >> 3) * 256 + ((u >> 2) & 1) * 128 + ((u >> 1) & 1) * 32 + (u & 1) * 16; }
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        constexpr int B = A > 2 ? 2 : A;
        device const uchar *p = row.codes + 210 * ulong(u >> 3);
        uint n = (u >> 2) & 1, r = (u >> 1) & 1, h = u & 1;
        float d = half_bits(load16<B>(p + 208));
        device const uchar *scales = p + 192 + 8 * n + 2 * r + h;
        q.shift = 2 * r;
        q.bits = load128<B>(p + 16 * (u & 7));
        q.high = load128<B>(p + 128 + 32 * n + 16 * h);
        q.scale = d * float2(float(as_type<char>(scales[0])), float(as_type<char>(scales[4])));
        q.bias = float2(0.0f);
    }
    static float4 low(thread const unit &q, uint w) { return codes6(q.bits[w], q.high[w] >> q.shift); }
    static float4 high(thread const unit &q, uint w) { return codes6(q.bits[w] >> 4, q.high[w] >> (q.shift + 4)); }
};

// Units as k_column: runs 2j and 2j + 1 of 32 weights, two bits of the same bytes each.
inline uint2 two_bit_at(uint u) {
    return uint2((u >> 2) & 1, 4 * ((u >> 1) & 1)); // half of the block, shift of the lower run
}

// 16 x {scale, minimum} of four bits, 64 bytes, d, dmin: w = d * scale * q - dmin * minimum
template <int A> struct format_q2_k : k_common {
    static constant constexpr uint gap = 32;
    static constant constexpr float offset = 4.0f;
    static uint column(uint u) { return k_column(u); }
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 84 * ulong(u >> 3);
        device const uchar *s = p + 4 * ((u >> 1) & 3) + (u & 1);
        uint2 at = two_bit_at(u);
        uint a = s[0], b = s[2];
        uint d = load32<A>(p + 80);
        q.shift = at.y;
        q.bits = load128<A>(p + 16 + 32 * at.x + 16 * (u & 1));
        q.scale = half_bits(d) * float2(float(a & 15), float(b & 15));
        q.bias = -(half_bits(d >> 16) * float2(float(a >> 4), float(b >> 4)));
    }
    static float4 low(thread const unit &q, uint w) { return codes2(q.bits[w] >> q.shift); }
    static float4 high(thread const unit &q, uint w) { return codes2(q.bits[w] >> (q.shift + 2)); }
};

// 32 bytes of third bits, 64 bytes, 16 scales of six bits, d: w = d * (scale - 32) * (q - 4)
template <int A> struct format_q3_k : k_common {
    static constant constexpr uint gap = 32;
    static constant constexpr float offset = 12.0f;
    static uint column(uint u) { return k_column(u); }
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 110 * ulong(u >> 3);
        uint2 at = two_bit_at(u);
        uint h = u & 1, run = 2 * ((u >> 1) & 3);
        device const uchar *s = p + 96 + at.y + h, *t = p + 104 + h;
        uint a = (uint(s[0]) >> 4 * at.x & 15) | (uint(t[0]) >> run & 3) << 4;
        uint b = (uint(s[2]) >> 4 * at.x & 15) | (uint(t[2]) >> run & 3) << 4;
        uint4 high = load128<A>(p + 16 * h);
        q.shift = at.y;
        q.bits = load128<A>(p + 32 + 32 * at.x + 16 * h);
        q.high = uint4(high.x >> run, high.y >> run, high.z >> run, high.w >> run);
        q.scale = half_bits(load16<A>(p + 108)) * float2(float(a) - 32.0f, float(b) - 32.0f);
        q.bias = float2(0.0f);
    }
    static float4 low(thread const unit &q, uint w) { return codes3(q.bits[w] >> q.shift, q.high[w]); }
    static float4 high(thread const unit &q, uint w) { return codes3(q.bits[w] >> (q.shift + 2), q.high[w] >> 1); }
};

// 64 bytes, d: w = d * (q - 1)
template <int A> struct format_tq2_0 : k_common {
    static constant constexpr uint gap = 32;
    static constant constexpr float offset = 5.0f;
    static uint column(uint u) { return k_column(u); }
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 66 * ulong(u >> 3);
        uint2 at = two_bit_at(u);
        q.shift = at.y;
        q.bits = load128<A>(p + 32 * at.x + 16 * (u & 1));
        q.scale = float2(half_bits(load16<A>(p + 64)));
        q.bias = float2(0.0f);
    }
    static float4 low(thread const unit &q, uint w) { return codes2(q.bits[w] >> q.shift); }
    static float4 high(thread const unit &q, uint w) { return codes2(q.bits[w] >> (q.shift + 2)); }
};

struct tq1_0_unit {
    uint4 low, high; // bytes 0, 1, 2
    float scale;
};

// Digits of base 3 in the four bytes of a word: byte * power mod 256, times 3 / 256.
inline uint digits3(uint w, uint power) {
    uint even = (((w & 0x00ff00ffu) * power & 0x00ff00ffu) * 3) >> 8 & 0x00ff00ffu;
    uint odd = (((w >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu) * 3) >> 8 & 0x00ff00ffu;
    return even | odd << 8;
}

inline uint4 digits3(uint4 w, uint power) {
    return uint4(digits3(w.x, power), digits3(w.y, power), digits3(w.z, power), digits3(w.w, power));
}

// 3^k, k <= 4
inline uint power3(uint k) {
    return (k & 1 ? 3u : 1u) * (k & 2 ? 9u : 1u) * (k & 4 ? 81u : 1u);
}

// 32 bytes of five runs of 32 weights, 16 of five runs of 16, 4 of four runs of 4, d: w = d * (digit - 1)
template <int A> struct format_tq1_0 {
    static constant constexpr bool plain = false;
    static constant constexpr uint gap = 16;
    static constant constexpr float offset = 5.0f;
    typedef tq1_0_unit unit;
    static uint column(uint u) { return 32 * u; }
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 54 * ulong(u >> 3);
        uint j = u & 7, run = 2 * j - 10; // of the runs of 16
        q.scale = half_bits(load16<A>(p + 52));
        q.low = digits3(load128<A>(p + (j < 5 ? 0 : 32)), power3(j < 5 ? j : run));
        if (j < 7) {
            q.high = digits3(load128<A>(p + (j < 5 ? 16 : 32)), power3(j < 5 ? j : run + 1));
        } else {
            uint last = load32<A>(p + 48);
            q.high = uint4(digits3(last, 1), digits3(last, 3), digits3(last, 9), digits3(last, 27));
        }
    }
    static float4 low(thread const unit &q, uint w) { return codes2(q.low[w]); }
    static float4 high(thread const unit &q, uint w) { return codes2(q.high[w]); }
    static float2 scale(thread const unit &q) { return float2(q.scale); }
    static float2 bias(thread const unit &q) { return float2(0.0f); }
};

// d, 16 bits of high scale bits, 4 bytes of low ones, 128 bytes as in IQ4_NL: w = d * (scale - 32) * value[q]
template <int A> struct format_iq4_xs : block32_common {
    static constant constexpr float offset = 0.0f;
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 136 * ulong(u >> 3);
        uint j = u & 7, d = load32<A>(p);
        uint scale = (uint(p[4 + (j >> 1)]) >> 4 * (j & 1) & 15) | (d >> (16 + 2 * j) & 3) << 4;
        q.scale = half_bits(d) * (float(scale) - 32.0f);
        q.bias = 0.0f;
        q.bits = load128<A>(p + 8 + 16 * j);
    }
    static float4 low(thread const unit &q, uint w) { return values4(values_iq4, q.bits[w]); }
    static float4 high(thread const unit &q, uint w) { return values4(values_iq4, q.bits[w] >> 4); }
};

// 4 scales e4m3 without sign, 4 x 8 bytes of 16 weights: w = scale * value[q]
struct nvfp4_unit {
    uint4 bits;
    float2 scale;
};

inline float nvfp4_scale(uint v) {
    return v == 0x7fu ? 0.0f : (v & 0x7fu) == 0x7fu ? 480.0f : e4m3(v & 0x7fu);
}

template <int A> struct format_nvfp4 {
    static constant constexpr bool plain = false;
    static constant constexpr uint gap = 16;
    static constant constexpr float offset = 0.0f;
    typedef nvfp4_unit unit;
    static uint column(uint u) { return 32 * u; }
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        device const uchar *p = row.codes + 36 * ulong(u >> 1);
        q.scale = float2(nvfp4_scale(p[2 * (u & 1)]), nvfp4_scale(p[2 * (u & 1) + 1]));
        q.bits = load128<A>(p + 4 + 16 * (u & 1));
    }
    static float4 low(thread const unit &q, uint w) { return values4(values_e2m1, q.bits[w & 1] >> 4 * (w >> 1)); }
    static float4 high(thread const unit &q, uint w) {
        return values4(values_e2m1, q.bits[2 + (w & 1)] >> 4 * (w >> 1));
    }
    static float2 scale(thread const unit &q) { return q.scale; }
    static float2 bias(thread const unit &q) { return float2(0.0f); }
};

// ---- what is instantiated ------------------------------------------------------------------------------------------

// X(name, alignment): the host defines the ones a model has before the source; without, all.
#ifndef SL_FORMATS
// clang-format off
#ifdef SL_GRID_iq1_m
#define SL_GRID_FORMATS(X)                                                                                             \
    X(iq2_xxs, 2) X(iq2_xxs, 1) X(iq2_xs, 2) X(iq2_xs, 1) X(iq2_s, 2) X(iq2_s, 1) X(iq3_xxs, 2) X(iq3_xxs, 1)          \
    X(iq3_s, 2) X(iq3_s, 1) X(iq1_s, 2) X(iq1_s, 1) X(iq1_m, 2) X(iq1_m, 1)
#else
#define SL_GRID_FORMATS(X)
#endif
#define SL_FORMATS(X)                                                                                                  \
    X(f32, 16) X(f32, 4) X(f32, 1) X(f16, 16) X(f16, 2) X(f16, 1) X(bf16, 16) X(bf16, 2) X(bf16, 1)                    \
    X(affine4_f16, 16) X(affine4_f16, 4) X(affine4_f16, 1) X(affine4_bf16, 16) X(affine4_bf16, 4) X(affine4_bf16, 1)   \
    X(affine4_f32, 16) X(affine4_f32, 4) X(affine4_f32, 1) X(affine8_f16, 16) X(affine8_f16, 4) X(affine8_f16, 1)      \
    X(affine8_bf16, 16) X(affine8_bf16, 4) X(affine8_bf16, 1) X(affine8_f32, 16) X(affine8_f32, 4) X(affine8_f32, 1)   \
    X(q4_0, 2) X(q4_0, 1) X(q4_1, 4) X(q4_1, 2) X(q4_1, 1) X(q5_0, 2) X(q5_0, 1) X(q5_1, 4) X(q5_1, 2) X(q5_1, 1)      \
    X(q8_0, 2) X(q8_0, 1) X(q4_k, 16) X(q4_k, 4) X(q4_k, 2) X(q4_k, 1) X(q5_k, 16) X(q5_k, 4) X(q5_k, 2) X(q5_k, 1)    \
    X(q6_k, 2) X(q6_k, 1) X(affine2_f16, 4) X(affine2_f16, 1) X(affine2_bf16, 4) X(affine2_bf16, 1) X(affine2_f32, 4)  \
    X(affine2_f32, 1) X(affine3_f16, 4) X(affine3_f16, 1) X(affine3_bf16, 4) X(affine3_bf16, 1) X(affine3_f32, 4)      \
    X(affine3_f32, 1) X(affine5_f16, 4) X(affine5_f16, 1) X(affine5_bf16, 4) X(affine5_bf16, 1) X(affine5_f32, 4)      \
    X(affine5_f32, 1) X(affine6_f16, 4) X(affine6_f16, 1) X(affine6_bf16, 4) X(affine6_bf16, 1) X(affine6_f32, 4)      \
    X(affine6_f32, 1) X(q2_k, 4) X(q2_k, 2) X(q2_k, 1) X(q3_k, 2) X(q3_k, 1) X(iq4_nl, 2) X(iq4_nl, 1) X(iq4_xs, 4)    \
    X(iq4_xs, 2) X(iq4_xs, 1) X(mxfp4, 1) X(mxfp4_split, 16) X(mxfp4_split, 4) X(mxfp4_split, 1) X(fp8_f16, 4)         \
    X(fp8_f16, 1) X(fp8_bf16, 4) X(fp8_bf16, 1) X(fp8_f32, 4) X(fp8_f32, 1) X(nvfp4, 4) X(nvfp4, 2) X(nvfp4, 1)        \
    X(tq2_0, 2) X(tq2_0, 1) X(nvfp4_split, 4) X(nvfp4_split, 1) X(mxfp8_split, 4) X(mxfp8_split, 1) X(tq1_0, 2)        \
    X(tq1_0, 1) SL_GRID_FORMATS(X)
// clang-format on
#endif

#endif

// blocks: rows of weights of every format of quant/, read 32 weights at a time.
//
// A unit is what a lane takes at once: two runs of 16 columns, `gap` columns apart, so that the low and the high halves
// of a block's bytes belong to one lane; w = scale * (code - offset) + bias for each run. Codes become floats by bits,
// without a conversion: a power of two with the code in the mantissa below it, as_type<float>(2^k | code) = 2^k + code;
// `offset` takes the 2^k (and the format's own offset) back, once per run through the sum of x.
//
// A format is a struct with: gap, offset, plain (no scale, any number of columns), struct unit, column(u) (of the lower
// run), load(unit, row, u, weights), low/high(unit, w) = codes 4w..4w+3 of a run, + offset, scale(unit), bias(unit).
// Template argument A: what every address in a row's bytes is a multiple of (16, 4, 2 or 1); see blocks_align in the
// host's code.
#ifndef SL_KERNELS_BLOCKS_H
#define SL_KERNELS_BLOCKS_H

#include "step.h"

// ---- bytes at any address ------------------------------------------------------------------------------------------

template <int A> inline uint load16(device const uchar *p) {
    if (A >= 2)
        return *(device const ushort *)p;
    return uint(p[0]) | uint(p[1]) << 8;
}

template <int A> inline uint load32(device const uchar *p) {
    if (A >= 4)
        return *(device const uint *)p;
    return load16<A>(p) | load16<A>(p + 2) << 16;
}

template <int A> inline uint4 load128(device const uchar *p) {
    if (A >= 16)
        return *(device const uint4 *)p;
    return uint4(load32<A>(p), load32<A>(p + 4), load32<A>(p + 8), load32<A>(p + 12));
}

inline float half_bits(uint bits) {
    return float(as_type<half>(ushort(bits & 0xffffu)));
}

// ---- a matrix and its rows -----------------------------------------------------------------------------------------

struct weights {
    device const uchar *codes, *scales, *biases;
    ulong row_bytes, side_bytes;
    uint rows, cols, group_shift;
    uint side_first, side_shift; // row r's scales are row (side_first + r) >> side_shift of their array
};

struct weight_row {
    device const uchar *codes, *scales, *biases;
};

inline weights make_weights(constant sl_weights_args &a, device const uchar *codes, device const uchar *scales,
                            device const uchar *biases) {
    weights w = {codes,  scales, biases,        a.row_bytes,          a.side_bytes,
                 a.rows, a.cols, a.group_shift, a.side_rows & 0xffff, a.side_rows >> 16};
    return w;
}

// Beyond the last row: the last, so that what is read exists (the result is not kept).
inline weight_row row_at(thread const weights &w, uint row) {
    ulong r = min(row, w.rows - 1);
    ulong side = (r + w.side_first) >> w.side_shift;
    weight_row p = {w.codes + r * w.row_bytes, w.scales + side * w.side_bytes, w.biases + side * w.side_bytes};
    return p;
}

inline uint unit_count(thread const weights &w) {
    return (w.cols + 31) / 32;
}

// ---- four codes of a word as floats --------------------------------------------------------------------------------

// 4 bits: 16 + code, from bits 0-3, 8-11, 16-19, 24-27
inline float4 codes4(uint w) {
    uint4 b = uint4(w << 19, w << 11, w << 3, w >> 5) & 0x00780000u;
    return as_type<float4>(b | 0x41800000u);
}

// 4 bits: 16 + code, from bits 0-3, 4-7, 8-11, 12-15
inline float4 codes4_sequence(uint w) {
    uint4 b = uint4(w << 19, w << 15, w << 11, w << 7) & 0x00780000u;
    return as_type<float4>(b | 0x41800000u);
}

// 5 bits: 32 + code; high: the fifth bits where `fifth` bits 22 are
inline float4 codes5(uint w, uint4 fifth) {
    uint4 b = uint4(w << 18, w << 10, w << 2, w >> 6) & 0x003c0000u;
    return as_type<float4>(b | (fifth & 0x00400000u) | 0x42000000u);
}

// 6 bits: 64 + code; high: bits 0-1, 8-9, 16-17, 24-25 of h
inline float4 codes6(uint w, uint h) {
    uint4 low = uint4(w << 17, w << 9, w << 1, w >> 7) & 0x001e0000u;
    uint4 high = uint4(h << 21, h << 13, h << 5, h >> 3) & 0x00600000u;
    return as_type<float4>(low | high | 0x42800000u);
}

// 8 bits: 256 + byte
inline float4 codes8(uint w) {
    uint4 b = uint4(w << 15, w << 7, w >> 1, w >> 9) & 0x007f8000u;
    return as_type<float4>(b | 0x43800000u);
}

// 2 bits: 4 + code, from bits 0-1, 8-9, 16-17, 24-25
inline float4 codes2(uint w) {
    uint4 b = uint4(w << 21, w << 13, w << 5, w >> 3) & 0x00600000u;
    return as_type<float4>(b | 0x40800000u);
}

// 3 bits: 8 + code; low two bits as codes2, the third at bits 0, 8, 16, 24 of h
inline float4 codes3(uint w, uint h) {
    uint4 low = uint4(w << 20, w << 12, w << 4, w >> 4) & 0x00300000u;
    uint4 high = uint4(h << 22, h << 14, h << 6, h >> 2) & 0x00400000u;
    return as_type<float4>(low | high | 0x41000000u);
}

// B bits (2, 3, 5 or 6): 2^B + code, from bits 0.., B.., 2B.., 3B..
template <int B> inline float4 codes_sequence(uint w) {
    uint last = B == 6 ? w >> 1 : w << (B == 6 ? 0 : 23 - 4 * B);
    uint4 b = uint4(w << (23 - B), w << (23 - 2 * B), w << (23 - 3 * B), last) & (((1u << B) - 1) << (23 - B));
    return as_type<float4>(b | uint(127 + B) << 23);
}

// Values that codes of four bits stand for: of IQ4_NL, and of e2m1.
constant float values_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constant float values_e2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};

// Codes at bits 0-3, 8-11, 16-19, 24-27
inline float4 values4(constant float *value, uint w) {
    return float4(value[w & 15], value[w >> 8 & 15], value[w >> 16 & 15], value[w >> 24 & 15]);
}

// Codes at bits 0-3, 4-7, 8-11, 12-15
inline float4 values4_sequence(constant float *value, uint w) {
    return float4(value[w & 15], value[w >> 4 & 15], value[w >> 8 & 15], value[w >> 12 & 15]);
}

// 2^(e - 127); of 0 that is less than floats that are never flushed: 0
inline float e8m0(uint e) {
    return as_type<float>(e << 23);
}

// e4m3 without infinities: 0x7f is NaN
inline float e4m3(uint v) {
    uint a = v & 0x7fu;
    float f = a < 8 ? float(a) * 0x1p-9f : as_type<float>(a == 0x7fu ? 0x7fc00000u : (a << 20) + (120u << 23));
    return v & 0x80u ? -f : f;
}

// ---- F32, F16, BF16: any number of columns -------------------------------------------------------------------------

struct plain_unit {
    float4 v[8];
};

// What the three share; LOAD is the format's reader of one element and of four.
struct plain_format {
    static constant constexpr bool plain = true;
    static constant constexpr uint gap = 16;
    static constant constexpr float offset = 0.0f;
    typedef plain_unit unit;
    static uint column(uint u) { return 32 * u; }
    static float4 low(thread const unit &q, uint w) { return q.v[w]; }
    static float4 high(thread const unit &q, uint w) { return q.v[4 + w]; }
    static float2 scale(thread const unit &q) { return float2(1.0f); }
    static float2 bias(thread const unit &q) { return float2(0.0f); }
};

template <int A> struct format_f32 : plain_format {
    static float one(device const uchar *p, uint i) { return as_type<float>(load32<A>(p + 4 * ulong(i))); }
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        uint c = 32 * u;
        for (uint i = 0; i < 8; i++, c += 4) {
            if (c + 4 <= w.cols)
                q.v[i] = as_type<float4>(load128<A>(row.codes + 4 * ulong(c)));
            else
                for (uint j = 0; j < 4; j++)
                    q.v[i][j] = c + j < w.cols ? one(row.codes, c + j) : 0.0f;
        }
    }
};

// 16-bit elements: F::wide(bits) is what one means.
template <int A, typename F> inline void load_plain16(thread plain_unit &q, device const uchar *p, uint u, uint cols) {
    uint c = 32 * u;
    for (uint i = 0; i < 8; i += 2, c += 8) {
        if (c + 8 <= cols) {
            uint4 b = load128<A>(p + 2 * ulong(c));
            q.v[i] = float4(F::wide(b.x & 0xffffu), F::wide(b.x >> 16), F::wide(b.y & 0xffffu), F::wide(b.y >> 16));
            q.v[i + 1] = float4(F::wide(b.z & 0xffffu), F::wide(b.z >> 16), F::wide(b.w & 0xffffu), F::wide(b.w >> 16));
        } else {
            for (uint j = 0; j < 8; j++)
                q.v[i + j / 4][j & 3] = c + j < cols ? F::wide(load16<A>(p + 2 * ulong(c + j))) : 0.0f;
        }
    }
}

template <int A> struct format_f16 : plain_format {
    static float wide(uint bits) { return half_bits(bits); }
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        load_plain16<A, format_f16<A>>(q, row.codes, u, w.cols);
    }
};

template <int A> struct format_bf16 : plain_format {
    static float wide(uint bits) { return as_type<float>(bits << 16); }
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        load_plain16<A, format_bf16<A>>(q, row.codes, u, w.cols);
    }
};

// ---- scales in arrays of their own ---------------------------------------------------------------------------------

struct side_f32 {
    template <int A> static float at(device const uchar *p, uint i) {
        return as_type<float>(load32<A>(p + 4 * ulong(i)));
    }
};
struct side_f16 {
    template <int A> static float at(device const uchar *p, uint i) { return half_bits(load16<A>(p + 2 * ulong(i))); }
};
struct side_bf16 {
    template <int A> static float at(device const uchar *p, uint i) {
        return as_type<float>(load16<A>(p + 2 * ulong(i)) << 16);
    }
};

// e4m3 codes, 128 x 128 of which share a scale: floats once they are scaled
template <int A, typename S> struct format_fp8 : plain_format {
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        uint c = 32 * u;
        float scale = S::template at<(A > 1 ? 4 : 1)>(row.scales, c >> w.group_shift);
        for (uint i = 0; i < 8; i++, c += 4) {
            uint b = 0;
            if (c + 4 <= w.cols)
                b = load32<A>(row.codes + c);
            else
                for (uint j = 0; c + j < w.cols; j++)
                    b |= uint(row.codes[c + j]) << 8 * j;
            q.v[i] = float4(e4m3(b & 255), e4m3(b >> 8 & 255), e4m3(b >> 16 & 255), e4m3(b >> 24)) * scale;
        }
    }
};

// ---- affine: w = q * scale + bias per group, scales and biases in arrays of their own ------------------------------

struct affine_common {
    static constant constexpr bool plain = false;
    static constant constexpr uint gap = 16;
    static uint column(uint u) { return 32 * u; }
};

struct affine4_unit {
    uint4 bits;
    float scale, bias;
};
struct affine8_unit {
    uint4 bits[2];
    float scale, bias;
};

// Codes low bits first. A: of the codes; the sides are taken as aligned to their elements unless A is 1.
template <int A, typename S> struct format_affine4 : affine_common {
    static constant constexpr float offset = 16.0f;
    typedef affine4_unit unit;
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        uint g = 32 * u >> w.group_shift;
        q.bits = load128<A>(row.codes + 16 * ulong(u));
        q.scale = S::template at<(A > 1 ? 4 : 1)>(row.scales, g);
        q.bias = S::template at<(A > 1 ? 4 : 1)>(row.biases, g);
    }
    static float4 low(thread const unit &q, uint w) { return codes4_sequence(q.bits[w >> 1] >> 16 * (w & 1)); }
    static float4 high(thread const unit &q, uint w) { return codes4_sequence(q.bits[2 + (w >> 1)] >> 16 * (w & 1)); }
    static float2 scale(thread const unit &q) { return float2(q.scale); }
    static float2 bias(thread const unit &q) { return float2(q.bias); }
};

template <int A, typename S> struct format_affine8 : affine_common {
    static constant constexpr float offset = 256.0f;
    typedef affine8_unit unit;
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        uint g = 32 * u >> w.group_shift;
        q.bits[0] = load128<A>(row.codes + 32 * ulong(u));
        q.bits[1] = load128<A>(row.codes + 32 * ulong(u) + 16);
        q.scale = S::template at<(A > 1 ? 4 : 1)>(row.scales, g);
        q.bias = S::template at<(A > 1 ? 4 : 1)>(row.biases, g);
    }
    static float4 low(thread const unit &q, uint w) { return codes8(q.bits[0][w]); }
    static float4 high(thread const unit &q, uint w) { return codes8(q.bits[1][w]); }
    static float2 scale(thread const unit &q) { return float2(q.scale); }
    static float2 bias(thread const unit &q) { return float2(q.bias); }
};

// Codes of 2, 3, 5 or 6 bits that straddle words: B words, low bits first.
template <int B> struct stream_unit {
    uint bits[B + 1]; // the last is none
    float scale, bias;
};

template <int A, typename S, int B> struct format_stream : affine_common {
    static constant constexpr float offset = float(1 << B);
    typedef stream_unit<B> unit;
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        uint g = 32 * u >> w.group_shift;
        device const uchar *p = row.codes + 4 * B * ulong(u);
#pragma unroll
        for (int i = 0; i < B; i++)
            q.bits[i] = load32<A>(p + 4 * i);
        q.bits[B] = 0;
        q.scale = S::template at<(A > 1 ? 4 : 1)>(row.scales, g);
        q.bias = S::template at<(A > 1 ? 4 : 1)>(row.biases, g);
    }
    // Four codes from bit `at` on.
    static float4 codes(thread const unit &q, uint at) {
        uint i = at >> 5, s = at & 31;
        uint low = q.bits[i] >> s, high = s ? q.bits[i + 1] << (32 - s) : 0;
        return codes_sequence<B>(low | high);
    }
    static float4 low(thread const unit &q, uint w) {
        return codes(q, 4 * B * w);
    }
    static float4 high(thread const unit &q, uint w) {
        return codes(q, 16 * B + 4 * B * w);
    }
    static float2 scale(thread const unit &q) {
        return float2(q.scale);
    }
    static float2 bias(thread const unit &q) {
        return float2(q.bias);
    }
};

// MXFP4 with scales in an array of their own (MLX): nibbles in order, an e8m0 byte for 32 columns.
struct mxfp4_unit {
    uint4 bits;
    float scale;
};

template <int A> struct format_mxfp4_split : affine_common {
    static constant constexpr float offset = 0.0f;
    typedef mxfp4_unit unit;
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        q.bits = load128<A>(row.codes + 16 * ulong(u));
        q.scale = e8m0(row.scales[u]);
    }
    static float4 low(thread const unit &q, uint w) {
        return values4_sequence(values_e2m1, q.bits[w >> 1] >> 16 * (w & 1));
    }
    static float4 high(thread const unit &q, uint w) {
        return values4_sequence(values_e2m1, q.bits[2 + (w >> 1)] >> 16 * (w & 1));
    }
    static float2 scale(thread const unit &q) { return float2(q.scale); }
    static float2 bias(thread const unit &q) { return float2(0.0f); }
};

// NVFP4 likewise, an e4m3 byte for 16 columns: floats once they are scaled, for rows may end with half a unit.
template <int A> struct format_nvfp4_split : plain_format {
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        uint c = 32 * u;
        for (uint i = 0; i < 8; i++, c += 4) {
            q.v[i] = float4(0.0f);
            if (c < w.cols)
                q.v[i] = values4_sequence(values_e2m1, load16<A>(row.codes + (c >> 1))) * e4m3(row.scales[c >> 4]);
        }
    }
};

// MXFP8: e4m3 codes, an e8m0 byte for 32 columns; floats once they are scaled.
template <int A> struct format_mxfp8_split : plain_format {
    static void load(thread unit &q, thread const weight_row &row, uint u, thread const weights &w) {
        float scale = e8m0(row.scales[u]);
        for (uint i = 0; i < 8; i++) {
            uint b = load32<A>(row.codes + 32 * ulong(u) + 4 * i);
            q.v[i] = float4(e4m3(b & 255), e4m3(b >> 8 & 255), e4m3(b >> 16 & 255), e4m3(b >> 24)) * scale;
        }
    }
};

template <int A> using format_affine2_f16 = format_stream<A, side_f16, 2>;
template <int A> using format_affine2_bf16 = format_stream<A, side_bf16, 2>;
template <int A> using format_affine2_f32 = format_stream<A, side_f32, 2>;
template <int A> using format_affine3_f16 = format_stream<A, side_f16, 3>;
template <int A> using format_affine3_bf16 = format_stream<A, side_bf16, 3>;
template <int A> using format_affine3_f32 = format_stream<A, side_f32, 3>;
template <int A> using format_affine5_f16 = format_stream<A, side_f16, 5>;
template <int A> using format_affine5_bf16 = format_stream<A, side_bf16, 5>;
template <int A> using format_affine5_f32 = format_stream<A, side_f32, 5>;
template <int A> using format_affine6_f16 = format_stream<A, side_f16, 6>;
template <int A> using format_affine6_bf16 = format_stream<A, side_bf16, 6>;
template <int A> using format_affine6_f32 = format_stream<A, side_f32, 6>;
template <int A> using format_fp8_f16 = format_fp8<A, side_f16>;
template <int A> using format_fp8_bf16 = format_fp8<A, side_bf16>;
template <int A> using format_fp8_f32 = format_fp8<A, side_f32>;
template <int A> using format_affine4_f16 = format_affine4<A, side_f16>;
template <int A> using format_affine4_bf16 = format_affine4<A, side_bf16>;
template <int A> using format_affine4_f32 = format_affine4<A, side_f32>;
template <int A> using format_affine8_f16 = format_affine8<A, side_f16>;
template <int A> using format_affine8_bf16 = format_affine8<A, side_bf16>;
template <int A> using format_affine8_f32 = format_affine8<A, side_f32>;

#endif

// unpack: units of W (32 weights of a row, blocks.h) as halves in a lane's registers, eight columns at a time, for
// matmul_large.metal. What a unit is made of is loaded (raw) before it is needed, then becomes what its columns are
// made from (unit).
//
// Formats of four bits do without floats: a byte of codes with 0x64 above it is the half 1024 + byte, from which one
// fused multiply-add makes the exact code of a nibble and another the weight, for two weights at once: two instructions
// a weight, where the way through floats takes about five. On an H200 that way took longer than the products. Scales
// that are no halves (bfloat, or products of two scales) are rounded to half first, but for Q4_K's, whose integers stay
// exact; weights are rounded to half in any case.
#ifndef SL_KERNELS_UNPACK_H
#define SL_KERNELS_UNPACK_H

#include "multiply.h"

// The low or the high half of a word, twice.
inline uint twice_low(uint v) {
    return permute_bytes(v, 0, 0x1010);
}
inline uint twice_high(uint v) {
    return permute_bytes(v, 0, 0x3232);
}
inline uint half_twice(float v) {
    uint h = as_type<ushort>(half(v));
    return h | h << 16;
}
inline uint shift_words(uint low, uint high, uint shift) {
    return uint((ulong(high) << 32 | low) >> shift);
}

// ---- any format: by way of floats ----------------------------------------------------------------------------------

template <typename F> struct unpacked {
    static constant constexpr bool ahead = false; // what is loaded takes too many registers to be kept for a step
    typedef typename F::unit raw;
    struct unit {
        uint4 at[4];
    };
    static void load(thread raw &q, thread const weight_row &row, uint u, thread const weights &w) {
        if (u < unit_count(w))
            F::load(q, row, u, w);
    }
    static void unpack(thread unit &to, thread const raw &q, bool there) {
        float2 scale = F::scale(q), b = fma(float2(-F::offset), scale, F::bias(q));
#pragma unroll
        for (uint i = 0; i < 4; i += 2) {
            float4 v[4] = {F::low(q, i), F::low(q, i + 1), F::high(q, i), F::high(q, i + 1)};
#pragma unroll
            for (uint k = 0; k < 4; k++)
                if (!F::plain)
                    v[k] = fma(v[k], float4(k < 2 ? scale.x : scale.y), float4(k < 2 ? b.x : b.y));
            to.at[i / 2] = there ? two_halves(v[0], v[1]) : uint4(0);
            to.at[2 + i / 2] = there ? two_halves(v[2], v[3]) : uint4(0);
        }
    }
    static uint4 eight(thread const unit &q, uint c) {
        return q.at[c];
    }
};

// ---- four bits -----------------------------------------------------------------------------------------------------

// {0x64, code byte} twice, of bytes i and k.
inline uint bytes_above_1024(uint w, uint i, uint k) {
    return permute_bytes(w, 0x64646464u, 0x4040u | i | k << 8);
}

// Eight columns in order in a word: pairs are the nibbles of a byte. v * scale + bias
inline uint4 eight_in_order(uint w, uint scale, uint bias) {
    uint4 v;
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        uint codes = bytes_above_1024(w, i, i) & 0xfff0ff0fu;                        // 1024 + low, 1024 + 16 high
        v[i] = fma_halves(fma_halves(codes, 0x2c003c00u, 0xd400e400u), scale, bias); // 1, 1/16; -1024, -64
    }
    return v;
}

struct in_order4_raw {
    uint4 bits;
    uint scale, bias;
};
struct in_order4_unit {
    uint4 bits;
    uint scale, bias; // halves, twice
};

// affine, scales of S; S::half_of(bits): as a half, twice
struct side_halves_f16 {
    static uint twice(uint bits) { return bits | bits << 16; }
};
struct side_halves_bf16 {
    static uint twice(uint bits) { return half_twice(as_type<float>(bits << 16)); }
};

template <int A, typename S> struct unpacked_affine4 {
    static constant constexpr bool ahead = true;
    typedef in_order4_raw raw;
    typedef in_order4_unit unit;
    static void load(thread raw &q, thread const weight_row &row, uint u, thread const weights &w) {
        q.bits = uint4(0);
        q.scale = q.bias = 0;
        if (u < unit_count(w)) {
            uint g = 32 * u >> w.group_shift;
            q.bits = load128<A>(row.codes + 16 * ulong(u));
            q.scale = load16<(A > 1 ? 2 : 1)>(row.scales + 2 * ulong(g));
            q.bias = load16<(A > 1 ? 2 : 1)>(row.biases + 2 * ulong(g));
        }
    }
    static void unpack(thread unit &to, thread const raw &q, bool there) {
        to.bits = q.bits;
        to.scale = S::twice(q.scale);
        to.bias = S::twice(q.bias);
    }
    static uint4 eight(thread const unit &q, uint c) { return eight_in_order(q.bits[c], q.scale, q.bias); }
};
template <int A> struct unpacked<format_affine4<A, side_f16>> : unpacked_affine4<A, side_halves_f16> {};
template <int A> struct unpacked<format_affine4<A, side_bf16>> : unpacked_affine4<A, side_halves_bf16> {};

// Four columns of the lower run in the low nibbles of a word's bytes, and of the upper run in the high ones:
// 1024 + code or 1024 + 16 code becomes v * first + second, then v * scale + bias.
struct run_terms {
    uint first, second, scale, bias;
};
inline uint4 eight_of_run(uint a, uint b, bool high, thread const run_terms &t) {
    uint4 v = uint4(bytes_above_1024(a, 0, 1), bytes_above_1024(a, 2, 3), bytes_above_1024(b, 0, 1),
                    bytes_above_1024(b, 2, 3));
    v &= high ? 0xfff0fff0u : 0xff0fff0fu;
#pragma unroll
    for (uint i = 0; i < 4; i++)
        v[i] = fma_halves(fma_halves(v[i], t.first, t.second), t.scale, t.bias);
    return v;
}

// 18 bytes at an even address: four words and, behind or before them, the half of another.
struct q4_0_raw {
    uint4 words;
    uint other, shift;
};
struct q4_0_unit {
    uint4 bits;
    uint scale;
};
template <int A> struct unpacked<format_q4_0<A>> {
    static constant constexpr bool ahead = true;
    typedef q4_0_raw raw;
    typedef q4_0_unit unit;
    static void load(thread raw &q, thread const weight_row &row, uint u, thread const weights &w) {
        q.words = uint4(0);
        q.other = q.shift = 0;
        if (u < unit_count(w)) {
            device const uchar *p = row.codes + 18 * ulong(u);
            if (A > 1) {
                uint odd = uint(ulong(p)) & 2;
                q.shift = 16 - 8 * odd;
                q.words = load128<4>(p + odd);
                q.other = load16<2>(p + (odd ? 0 : 16));
            } else {
                q.other = load16<1>(p);
                q.words = load128<1>(p + 2);
            }
        }
    }
    static void unpack(thread unit &to, thread const raw &q, bool there) {
        to.bits = uint4(shift_words(q.words.x, q.words.y, q.shift), shift_words(q.words.y, q.words.z, q.shift),
                        shift_words(q.words.z, q.words.w, q.shift), shift_words(q.words.w, q.other, q.shift));
        to.scale = twice_low(q.shift ? q.words.x : q.other);
    }
    static uint4 eight(thread const unit &q, uint c) {
        run_terms low = {0x3c003c00u, 0xe408e408u, q.scale, 0};  // 1, -1032
        run_terms high = {0x2c002c00u, 0xd480d480u, q.scale, 0}; // 1/16, -72
        uint n = 2 * (c & 1);
        return eight_of_run(q.bits[n], q.bits[n + 1], c > 1, c > 1 ? high : low);
    }
};

// d * (sc * q) - dmin * m: sc * q is an integer below 1024, made from the code in one step.
struct q4_k_raw {
    uint4 head, bits;
};
struct q4_k_unit {
    uint4 bits;
    uint d, scales, minima; // d twice; of both runs
};
template <int A> struct unpacked<format_q4_k<A>> {
    static constant constexpr bool ahead = true;
    typedef q4_k_raw raw;
    typedef q4_k_unit unit;
    static void load(thread raw &q, thread const weight_row &row, uint u, thread const weights &w) {
        q.head = q.bits = uint4(0);
        if (u < unit_count(w)) {
            device const uchar *p = row.codes + 144 * ulong(u >> 3);
            q.head = load128<A>(p);
            q.bits = load128<A>(p + 16 + 16 * (u & 7));
            // the unit's sub-blocks: theirs of 12 bytes to the low ends
            uint j = u >> 1 & 3, shift = 16 * (j & 1), a = q.head.y >> shift, b = q.head.z >> shift;
            uint c = q.head.w >> shift;
            q.head.y = j < 2 ? a & 0x3f3fu : (c & 0x0f0fu) | (a & 0xc0c0u) >> 2;
            q.head.z = j < 2 ? b & 0x3f3fu : (c >> 4 & 0x0f0fu) | (b & 0xc0c0u) >> 2;
        }
    }
    static void unpack(thread unit &to, thread const raw &q, bool there) {
        to.bits = q.bits;
        to.d = twice_low(q.head.x);
        float m = -half_bits(q.head.x >> 16);
        half2 minima = half2(half(m * float(q.head.z & 255)), half(m * float(q.head.z >> 8)));
        half2 scales = half2(half(float(q.head.y & 255)), half(float(q.head.y >> 8)));
        to.minima = as_type<uint>(minima);
        to.scales = as_type<uint>(scales);
    }
    static uint4 eight(thread const unit &q, uint c) {
        uint scale = c > 1 ? twice_high(q.scales) : twice_low(q.scales);
        uint sixteenth = fma_halves(scale, 0x2c002c00u, 0);
        run_terms t = {c > 1 ? sixteenth : scale, fma_halves(c > 1 ? sixteenth : scale, 0xe400e400u, 0), q.d,
                       c > 1 ? twice_high(q.minima) : twice_low(q.minima)};
        uint n = 2 * (c & 1);
        return eight_of_run(q.bits[n], q.bits[n + 1], c > 1, t);
    }
};

// ---- e2m1 ----------------------------------------------------------------------------------------------------------

// The high bytes of four values as halves (the low ones are 0); the codes are the low 16 bits of w.
inline uint e2m1_bytes(uint w) {
    uint size = permute_bytes(0x3e3c3800u, 0x46444240u, w & 0x7777u);
    return (permute_bytes(0x80808080u, 0x80808080u, w) << 1 & 0x80808080u) | size; // 0x80 or 0xff
}

// 2^(e - 127) as a half, twice
inline uint e8m0_halves(uint e) {
    return half_twice(e8m0(min(e, 142u)));
}

struct e2m1_unit {
    uint4 bits;
    uint scale;
};

template <int A> struct unpacked<format_mxfp4_split<A>> {
    static constant constexpr bool ahead = true;
    typedef e2m1_unit raw; // scale: the byte
    typedef e2m1_unit unit;
    static void load(thread raw &q, thread const weight_row &row, uint u, thread const weights &w) {
        q.bits = uint4(0);
        q.scale = 0;
        if (u < unit_count(w)) {
            q.bits = load128<A>(row.codes + 16 * ulong(u));
            q.scale = row.scales[u];
        }
    }
    static void unpack(thread unit &to, thread const raw &q, bool there) {
        to.bits = q.bits;
        to.scale = e8m0_halves(q.scale);
    }
    static uint4 eight(thread const unit &q, uint c) {
        uint w = q.bits[c], a = e2m1_bytes(w), b = e2m1_bytes(w >> 16);
        return uint4(
            fma_halves(permute_bytes(a, 0, 0x1404), q.scale, 0), fma_halves(permute_bytes(a, 0, 0x3424), q.scale, 0),
            fma_halves(permute_bytes(b, 0, 0x1404), q.scale, 0), fma_halves(permute_bytes(b, 0, 0x3424), q.scale, 0));
    }
};

// 17 bytes at any address: the codes are cut out of five words, but at a row's ends, where those might not exist.
struct mxfp4_raw {
    uint4 words;
    uint last, scale, shift;
};
template <int A> struct unpacked<format_mxfp4<A>> {
    static constant constexpr bool ahead = true;
    typedef mxfp4_raw raw;
    typedef e2m1_unit unit;
    static void load(thread raw &q, thread const weight_row &row, uint u, thread const weights &w) {
        q.words = uint4(0);
        q.last = q.scale = q.shift = 0;
        uint units = unit_count(w);
        if (u < units) {
            device const uchar *p = row.codes + 17 * ulong(u);
            q.scale = p[0];
            if (u == 0 || u + 1 == units)
                q.words = load128<1>(p + 1);
            else {
                uint past = uint(ulong(p + 1)) & 3;
                q.words = load128<4>(p + 1 - past);
                q.last = load32<4>(p + 17 - past);
                q.shift = 8 * past;
            }
        }
    }
    static void unpack(thread unit &to, thread const raw &q, bool there) {
        to.bits = uint4(shift_words(q.words.x, q.words.y, q.shift), shift_words(q.words.y, q.words.z, q.shift),
                        shift_words(q.words.z, q.words.w, q.shift), shift_words(q.words.w, q.last, q.shift));
        to.scale = e8m0_halves(q.scale);
    }
    static uint4 eight(thread const unit &q, uint c) {
        uint4 v;
        uint n = 2 * (c & 1);
#pragma unroll
        for (uint i = 0; i < 4; i++) {
            uint codes = e2m1_bytes(q.bits[n + (i >> 1)] >> 16 * (i & 1));
            v[i] = fma_halves(permute_bytes(codes, 0, c > 1 ? 0x3414 : 0x2404), q.scale, 0);
        }
        return v;
    }
};

#endif

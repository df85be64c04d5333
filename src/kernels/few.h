// few: products of one row of x with rows of W of about 4 bits, for devices whose matrix units multiply fragments that
// lie in registers (simdgroup_mma_16x8x16) and that copy to threadgroup memory ahead of time (copy_begin): an NVIDIA
// GPU, and soft for tests. Metal has neither. Measured on an H200 beside matvec.metal, which is limited there by its
// three instructions per weight and by loads of 2 bytes, as shares of the bandwidth of reading: 72 % instead of 11
// (affine 4 bit, 66 MB a matrix), 65 of 11 (Q4_0), 64 of 19 (Q4_K), 53 of 8 (MXFP4); at 4096 x 4096 34 % instead of 9,
// 8, 14, 28 of 7, where a plain kernel that reads as much reaches 52.
//
// A SIMD-group takes chunks of 16 rows of W by 256 columns. Their bytes are copied verbatim, in pieces of 16 (8), to a
// ring of its own; so it does not matter at which odd addresses a format's blocks begin. Lane 4 r + q then holds units
// (of 32 columns) 2 q and 2 q + 1 of rows r and r + 8. Codes become halves by bits: as subnormal numbers, code * 2^-24
// or 2^-20, they need one instruction for two weights. The fragment of x has 8 columns, two for each quarter q of the
// lanes: x as high halves and what is missing as low ones, with zeros where k belongs to other quarters. So the product
// gives each lane the sums of its own units with its own x, exact to float, which it scales with its own scales.
//
// x of FEW_PANEL units at a time lies in threadgroup memory in that form, each unit scaled by a power of two.
// Order of addition: units of a chunk, chunks of a SIMD-group, quarters, SIMD-groups; the same for any grid.
#ifndef SL_KERNELS_FEW_H
#define SL_KERNELS_FEW_H

#include "blocks_gguf.h"

// Units of x in threadgroup memory: what fits in 32 KiB, unless the host knows of more.
#ifndef SL_FEW_PANEL
#define SL_FEW_PANEL 64
#endif

enum {
    FEW_CHUNK = 8,  // units that are copied at once, of 16 rows
    FEW_SLOT = 144, // bytes for a row of a chunk: other banks for other rows
    FEW_STAGES = 2, // chunks of a SIMD-group's ring
    FEW_SIMDS = 4,  // SIMD-groups
    FEW_PANEL = SL_FEW_PANEL,
    FEW_X = 9,     // uint4 of a unit of x: 4 high, 4 low, then {factor, sum of the first product's x, of the second's}
    FEW_TILES = 16 // tiles of 16 rows whose sums are kept
};

struct few_memory {
    uint4 x[FEW_PANEL * FEW_X];
    uint4 zero[FEW_X + 4];
    uint4 ring[FEW_SIMDS][FEW_STAGES][16 * FEW_SLOT / 16];
    float part[FEW_TILES][FEW_SIMDS][16];
};

// Two units of a row.
struct few_unit {
    uint4 bits[2];
    float2 scale[2], bias; // of the two products; bias: of both units
};

typedef threadgroup const uchar *few_slot;

// What batch.h reads of a chunk: 64 columns (a pair of units) at a time, of which the four lanes of a row take a word
// of each unit (or run). Their sums make one or two parts (part(word, product)), each with its scale and bias.
struct few_scales {
    float2 scale, bias; // of the parts
};

inline uint2 few_words_in_order(few_slot p, uint pair, uint q) {
    p += 32 * pair + 4 * q;
    return uint2(*(threadgroup const uint *)p, *(threadgroup const uint *)(p + 16));
}

// ---- formats -------------------------------------------------------------------------------------------------------
//
// A word has eight codes, four for each of two products. sequence: they are eight columns in order (the first product's
// even, the second's odd), else four columns of the lower run and four of the upper.
// halves(w): pairs of the first product (x, y) and of the second (z, w).
// column, gap: as in blocks.h. unit, second: what the sum of the first product is multiplied with, and the second's
// besides. pieces of `piece` bytes make chunk_bytes of a row of a chunk; side, copy_side: what lies in an array of its
// own. For batch.h: parts, part, words, scales; biased: there are biases; centre: what is added to all codes.

struct few_nibbles {
    static constant constexpr float unit = 0x1p24f, second = 0x1p-4f;
    static uint4 halves(uint w) {
        uint v = w >> 8;
        return uint4(w & 0x000f000fu, v & 0x000f000fu, w & 0x00f000f0u, v & 0x00f000f0u);
    }
};

// A sign and three bits of a float without the bias of its exponent: subnormals fit, too.
struct few_e2m1 {
    static constant constexpr float unit = 0x1p14f, second = 1.0f;
    static uint4 halves(uint w) {
        uint a = (w << 12 & 0x80008000u) | (w << 9 & 0x0e000e00u), b = (w << 4 & 0x80008000u) | (w << 1 & 0x0e000e00u);
        uint c = (w << 8 & 0x80008000u) | (w << 5 & 0x0e000e00u), d = (w & 0x80008000u) | (w >> 3 & 0x0e000e00u);
        return uint4(a, b, c, d);
    }
};

// Runs one after the other.
struct few_in_order {
    static constant constexpr uint gap = 16;
    static uint column(uint u) { return 32 * u; }
};

// Each unit has a scale and no bias.
struct few_by_unit {
    static constant constexpr uint parts = 2;
    static constant constexpr bool biased = false;
    static uint part(uint word, uint product) { return word; }
};
struct few_not_centred {
    static constant constexpr float centre = 0.0f;
};

struct few_in_block { // scales lie in the blocks
    static device const uchar *side(thread const weights &w, uint lane) { return w.codes; }
    static void copy_side(threadgroup uchar *to, device const uchar *from, uint chunk, uint lane) {}
};

inline uint funnel(uint low, uint high, uint shift) {
    return uint((ulong(high) << 32 | low) >> shift);
}

template <typename S> inline float few_side(uint bits);
template <> inline float few_side<side_f16>(uint bits) {
    return half_bits(bits);
}
template <> inline float few_side<side_bf16>(uint bits) {
    return as_type<float>(bits << 16);
}

// Groups of 64 columns: four scales in a chunk, a lane's two units have one.
template <typename S> struct few_affine4 : few_nibbles, few_in_order {
    static constant constexpr bool sequence = true;
    static constant constexpr uint pieces = 8, piece = 16, chunk_bytes = 128;
    static device const uchar *side(thread const weights &w, uint lane) {
        return (lane & 1 ? w.biases : w.scales) + ulong(lane >> 1) * w.side_bytes;
    }
    static void copy_side(threadgroup uchar *to, device const uchar *from, uint chunk, uint lane) {
        copy_begin<8>(to + (lane >> 1) * FEW_SLOT + 128 + 8 * (lane & 1), from + 8 * chunk);
    }
    static void decode(thread few_unit &e, few_slot p, uint q) {
        e.bits[0] = *(threadgroup const uint4 *)(p + 32 * q);
        e.bits[1] = *(threadgroup const uint4 *)(p + 32 * q + 16);
        float s = few_side<S>(*(threadgroup const ushort *)(p + 128 + 2 * q));
        e.scale[0] = e.scale[1] = float2(s, s * second);
        e.bias = float2(few_side<S>(*(threadgroup const ushort *)(p + 136 + 2 * q)));
    }
    static float2 bias(thread const few_unit &e, uint p) { return e.bias; }

    static constant constexpr uint parts = 1;
    static constant constexpr bool biased = true;
    static constant constexpr float centre = 0.0f;
    static uint part(uint word, uint product) { return 0; }
    static uint2 words(few_slot p, uint pair, uint q) { return few_words_in_order(p, pair, q); }
    static few_scales scales(few_slot p, uint pair) {
        few_scales v = {float2(few_side<S>(*(threadgroup const ushort *)(p + 128 + 2 * pair))),
                        float2(few_side<S>(*(threadgroup const ushort *)(p + 136 + 2 * pair)))};
        return v;
    }
};

struct few_mxfp4_split : few_e2m1, few_in_order, few_by_unit, few_not_centred {
    static constant constexpr bool sequence = true;
    static constant constexpr uint pieces = 8, piece = 16, chunk_bytes = 128;
    static device const uchar *side(thread const weights &w, uint lane) {
        return w.scales + ulong(lane & 15) * w.side_bytes;
    }
    static void copy_side(threadgroup uchar *to, device const uchar *from, uint chunk, uint lane) {
        if (lane < 16)
            copy_begin<8>(to + lane * FEW_SLOT + 128, from + 8 * chunk);
    }
    static void decode(thread few_unit &e, few_slot p, uint q) {
        e.bits[0] = *(threadgroup const uint4 *)(p + 32 * q);
        e.bits[1] = *(threadgroup const uint4 *)(p + 32 * q + 16);
        uint s = *(threadgroup const ushort *)(p + 128 + 2 * q);
        e.scale[0] = float2(e8m0(s & 255));
        e.scale[1] = float2(e8m0(s >> 8));
    }
    static float2 bias(thread const few_unit &e, uint p) { return float2(0.0f); }

    static uint2 words(few_slot p, uint pair, uint q) { return few_words_in_order(p, pair, q); }
    static few_scales scales(few_slot p, uint pair) {
        uint s = *(threadgroup const ushort *)(p + 128 + 2 * pair);
        few_scales v = {float2(e8m0(s & 255), e8m0(s >> 8)), float2(0.0f)};
        return v;
    }
};

// A chunk is a block: both units of a lane have the scales of sub-blocks 2q and 2q + 1.
struct few_q4_k : few_nibbles, few_in_block {
    static constant constexpr bool sequence = false;
    static constant constexpr uint gap = 32;
    static uint column(uint u) { return k_column(u); }
    static constant constexpr uint pieces = 9, piece = 16, chunk_bytes = 144;
    static void decode(thread few_unit &e, few_slot p, uint q) {
        uint4 head = *(threadgroup const uint4 *)p;
        e.bits[0] = *(threadgroup const uint4 *)(p + 16 + 32 * q);
        e.bits[1] = *(threadgroup const uint4 *)(p + 32 + 32 * q);
        uint shift = 16 * (q & 1), a = head.y >> shift, b = head.z >> shift, c = head.w >> shift;
        uint sc = q < 2 ? a & 0x3f3fu : (c & 0x0f0fu) | (a & 0xc0c0u) >> 2;
        uint mn = q < 2 ? b & 0x3f3fu : (c >> 4 & 0x0f0fu) | (b & 0xc0c0u) >> 2;
        float4 f = codes8(sc | mn << 16) - 256.0f;
        float d = half_bits(head.x), m = -half_bits(head.x >> 16);
        e.scale[0] = e.scale[1] = float2(d * f.x, d * second * f.y);
        e.bias = float2(m * f.z, m * f.w);
    }
    static float2 bias(thread const few_unit &e, uint p) { return e.bias; }

    static constant constexpr uint parts = 2;
    static constant constexpr bool biased = true;
    static constant constexpr float centre = 0.0f;
    static uint part(uint word, uint product) { return product; }
    static uint2 words(few_slot p, uint pair, uint q) {
        p += 16 + 32 * pair + 4 * q;
        return uint2(*(threadgroup const uint *)p, *(threadgroup const uint *)(p + 16));
    }
    static few_scales scales(few_slot p, uint pair) {
        few_unit e;
        decode(e, p, pair);
        few_scales v = {float2(e.scale[0].x, e.scale[0].y / second), e.bias};
        return v;
    }
};

// Blocks of 18 bytes: a lane's two begin at a word.
struct few_q4_0 : few_nibbles, few_in_order, few_in_block, few_by_unit {
    static constant constexpr bool sequence = false;
    static constant constexpr uint pieces = 9, piece = 16, chunk_bytes = 144;
    static void decode(thread few_unit &e, few_slot p, uint q) {
        threadgroup const uint *v = (threadgroup const uint *)(p + 36 * q);
        uint a = v[0], b = v[1], c = v[2], d = v[3], f = v[4];
        e.bits[0] = uint4(funnel(a, b, 16), funnel(b, c, 16), funnel(c, d, 16), funnel(d, f, 16));
        e.bits[1] = uint4(v[5], v[6], v[7], v[8]);
        float s = half_bits(a), t = half_bits(f >> 16);
        e.scale[0] = float2(s, s * second);
        e.scale[1] = float2(t, t * second);
    }
    static float2 bias(thread const few_unit &e, uint p) { return float2(-8.0f * e.scale[p].x); }

    static constant constexpr float centre = -8.0f;
    static uint2 words(few_slot p, uint pair, uint q) {
        threadgroup const uint *v = (threadgroup const uint *)(p + 36 * pair) + q;
        return uint2(funnel(v[0], v[1], 16), v[5]);
    }
    static few_scales scales(few_slot p, uint pair) {
        threadgroup const uint *v = (threadgroup const uint *)(p + 36 * pair);
        few_scales s = {float2(half_bits(v[0]), half_bits(v[4] >> 16)), float2(0.0f)};
        return s;
    }
};

// Blocks of 17 bytes, at any address.
struct few_mxfp4 : few_e2m1, few_in_order, few_in_block, few_by_unit, few_not_centred {
    static constant constexpr bool sequence = false;
    static constant constexpr uint pieces = 17, piece = 8, chunk_bytes = 136;
    static void decode(thread few_unit &e, few_slot p, uint q) {
#pragma unroll
        for (uint i = 0; i < 2; i++) {
            uint from = 34 * q + 17 * i + 1, shift = 8 * (from & 3);
            threadgroup const uint *v = (threadgroup const uint *)(p + (from & ~3u));
            uint a = v[0], b = v[1], c = v[2], d = v[3], f = v[shift ? 4 : 3];
            e.bits[i] = uint4(funnel(a, b, shift), funnel(b, c, shift), funnel(c, d, shift), funnel(d, f, shift));
            e.scale[i] = float2(e8m0(p[from - 1]));
        }
    }
    static float2 bias(thread const few_unit &e, uint p) {
        return float2(0.0f);
    }

    static uint2 words(few_slot p, uint pair, uint q) {
        uint2 w;
#pragma unroll
        for (uint i = 0; i < 2; i++) {
            uint from = 34 * pair + 17 * i + 1 + 4 * q, shift = 8 * (from & 3);
            threadgroup const uint *v = (threadgroup const uint *)(p + (from & ~3u));
            w[i] = funnel(v[0], v[shift ? 1 : 0], shift);
        }
        return w;
    }
    static few_scales scales(few_slot p, uint pair) {
        few_scales s = {float2(e8m0(p[34 * pair]), e8m0(p[34 * pair + 17])), float2(0.0f)};
        return s;
    }
};

typedef few_affine4<side_f16> few_affine4_f16;
typedef few_affine4<side_bf16> few_affine4_bf16;

// ---- x -------------------------------------------------------------------------------------------------------------

// Eight columns: a quarter of a unit, of which four lanes in a row take one.
struct few_eight {
    float4 a, b;
};

inline float few_max(float4 v) {
    return max(max(fabs(v.x), fabs(v.y)), max(fabs(v.z), fabs(v.w)));
}
inline float few_add(float4 v) {
    return (v.x + v.y) + (v.z + v.w);
}
inline uint few_pair(float a, float b) {
    return as_type<uint>(half2(half(a), half(b)));
}
inline float4 few_rest(float4 v) {
    return v - float4(half4(v));
}

template <typename W> inline few_eight few_load(device const float *x, uint u, uint quarter) {
    device const float *p = x + W::column(u) + (quarter >> 1) * W::gap + (quarter & 1) * 8;
    few_eight v = {float4(*(device const packed_float4 *)p), float4(*(device const packed_float4 *)(p + 4))};
    return v;
}

// Puts a unit in place; its largest value lands in [2^14, 2^15), where half's low parts are no subnormals.
template <typename W> inline void few_put(threadgroup uint4 *at, few_eight v, uint quarter) {
    float top = max(few_max(v.a), few_max(v.b)), sum = few_add(v.a) + few_add(v.b);
    top = max(top, simd_shuffle_xor(top, 1));
    top = max(top, simd_shuffle_xor(top, 2));
    sum += simd_shuffle_xor(sum, 1);
    float other = simd_shuffle_xor(sum, 2);
    uint exponent = clamp(as_type<uint>(top) >> 23, 30u, 230u);
    float up = as_type<float>((127 + 14 + 127 - exponent) << 23), down = as_type<float>((exponent - 14) << 23);
    float4 a = v.a * up, b = v.b * up, c = few_rest(a), d = few_rest(b);
    if (W::sequence) {
        at[quarter] = uint4(few_pair(a.x, b.x), few_pair(a.z, b.z), few_pair(a.y, b.y), few_pair(a.w, b.w));
        at[4 + quarter] = uint4(few_pair(c.x, d.x), few_pair(c.z, d.z), few_pair(c.y, d.y), few_pair(c.w, d.w));
    } else {
        threadgroup uint2 *to = (threadgroup uint2 *)at + 4 * (quarter & 1) + (quarter >> 1);
        to[0] = uint2(few_pair(a.x, a.z), few_pair(a.y, a.w));
        to[2] = uint2(few_pair(b.x, b.z), few_pair(b.y, b.w));
        to[8] = uint2(few_pair(c.x, c.z), few_pair(c.y, c.w));
        to[10] = uint2(few_pair(d.x, d.z), few_pair(d.y, d.w));
    }
    if (quarter == 0) {
        float first = W::sequence ? sum + other : sum; // a sequence's runs have one bias
        at[8] =
            uint4(as_type<uint>(down * W::unit), as_type<uint>(first), as_type<uint>(W::sequence ? 0.0f : other), 0u);
    }
}

// ---- products ------------------------------------------------------------------------------------------------------

// Row 8 i + r of a chunk (e[i]) times x; at: the lane's first unit of x, from: its halves, or zeros.
template <typename W>
inline float2 few_multiply(threadgroup const uint4 *at, threadgroup const uint4 *from, thread const few_unit *e) {
    float2 acc = float2(0.0f);
#pragma unroll
    for (uint p = 0; p < 2; p++) {
        float4 first = float4(0.0f), second = float4(0.0f);
#pragma unroll
        for (uint k = 0; k < 4; k++) {
            uint4 b = from[p * FEW_X + k], h0 = W::halves(e[0].bits[p][k]), h1 = W::halves(e[1].bits[p][k]);
            first = simdgroup_mma_16x8x16(first, uint4(h0.x, h1.x, h0.y, h1.y), b.xy);
            second = simdgroup_mma_16x8x16(second, uint4(h0.z, h1.z, h0.w, h1.w), b.zw);
        }
        float4 f = as_type<float4>(at[p * FEW_X + 8]);
        float2 s0 = float2(first.x + first.y, first.z + first.w), s1 = float2(second.x + second.y, second.z + second.w);
#pragma unroll
        for (uint i = 0; i < 2; i++) {
            // factor and scale first: their product is of the result's size, which that of scale and sum need not be
            float2 s = e[i].scale[p] * f.x, b = W::bias(e[i], p);
            acc[i] += fma(s.x, s0[i], fma(s.y, s1[i], fma(b.x, f.y, b.y * f.z)));
        }
    }
    return acc;
}

// The SIMD-groups that share a tile: 1, 2 or 4 of them, by columns.
struct few_shape {
    uint chunks, tiles, shift; // shift: log2 of how many they are
};

inline few_shape few_shape_of(thread const weights &w) {
    uint chunks = w.cols / (32 * FEW_CHUNK);
    few_shape s = {chunks, w.rows / 16, chunks > 2 ? 2u : chunks - 1};
    return s;
}

// Where a SIMD-group's copies have got to: tiles of a threadgroup are first, first + stride, ...; t counts them.
template <typename W, uint M> struct few_cursor {
    uint offset[(16 * W::pieces + 31) / 32]; // of this lane's pieces from a chunk's first byte
    uint t, chunk, matrix, panel, end, stage;
};

template <typename W, uint M>
inline few_cursor<W, M> few_begin(thread const weights &w, thread const few_shape &s, bool works, uint lane, uint sub,
                                  uint slice) {
    few_cursor<W, M> c;
#pragma unroll
    for (uint i = 0; i < (16 * W::pieces + 31) / 32; i++) {
        uint at = lane + 32 * i;
        c.offset[i] = at / W::pieces * uint(w.row_bytes) + at % W::pieces * W::piece;
    }
    c.t = sub;
    c.chunk = slice;
    c.matrix = c.stage = 0;
    c.panel = works ? 0 : s.chunks;
    c.end = min(s.chunks, uint(FEW_PANEL / FEW_CHUNK));
    return c;
}

// Begins the copy of the next chunk, or of nothing.
template <typename W, uint M>
inline void few_next(thread few_cursor<W, M> &c, threadgroup uint4 (&ring)[FEW_STAGES][16 * FEW_SLOT / 16],
                     thread const weights *w, thread const few_shape &s, uint first, uint stride, uint count, uint lane,
                     uint sub, uint slice) {
    if (c.panel < s.chunks) {
        threadgroup uchar *to = (threadgroup uchar *)ring[c.stage];
        bool second = M == 2 && c.matrix == 1; // by selection: an array in registers cannot be indexed by a variable
        ulong row = 16 * ulong(first + c.t * stride);
        device const uchar *codes =
            (second ? w[M - 1].codes : w[0].codes) + row * w[0].row_bytes + c.chunk * W::chunk_bytes;
        device const uchar *side = second ? W::side(w[M - 1], lane) : W::side(w[0], lane);
#pragma unroll
        for (uint i = 0; i < (16 * W::pieces + 31) / 32; i++) {
            uint at = lane + 32 * i;
            if (W::pieces % 2 == 0 || at < 16 * W::pieces)
                copy_begin<W::piece>(to + at / W::pieces * FEW_SLOT + at % W::pieces * W::piece, codes + c.offset[i]);
        }
        W::copy_side(to, side + row * w[0].side_bytes, c.chunk, lane);
        c.stage ^= 1;
        c.chunk += 1u << s.shift;
        if (c.chunk >= c.end) {
            if (++c.matrix == M) {
                c.matrix = 0;
                c.t += FEW_SIMDS >> s.shift;
            }
            if (c.t >= count) {
                c.t = sub;
                c.panel += FEW_PANEL / FEW_CHUNK;
                c.end = min(s.chunks, c.panel + FEW_PANEL / FEW_CHUNK);
                if (c.panel + slice >= s.chunks)
                    c.panel = s.chunks;
            }
            c.chunk = c.panel + slice;
        }
    }
    copy_commit();
}

// part[t * M + matrix] = SIMD-groups' shares of the sums of tile first + t * stride, t < count (at most FEW_TILES / M).
// All of a threadgroup's threads take part, and can read part behind it.
template <typename W, uint M>
inline void few_product(threadgroup few_memory &m, thread const weights *w, device const float *x, uint first,
                        uint stride, uint count, uint lane, uint simd) {
    const uint r = lane >> 2, q = lane & 3, thread_at = 32 * simd + lane;
    const few_shape s = few_shape_of(w[0]);
    const uint slice = simd & ((1u << s.shift) - 1), sub = simd >> s.shift;
    // x before W: it is needed first
    constexpr uint mine = 4 * FEW_PANEL / (32 * FEW_SIMDS);
    few_eight v[mine];
    uint here = min(s.chunks * FEW_CHUNK, uint(FEW_PANEL));
#pragma unroll
    for (uint i = 0; i < mine; i++)
        if (thread_at + i * 32 * FEW_SIMDS < 4 * here)
            v[i] = few_load<W>(x, (thread_at + i * 32 * FEW_SIMDS) >> 2, lane & 3);
    few_cursor<W, M> next = few_begin<W, M>(w[0], s, sub < count && slice < s.chunks, lane, sub, slice);
#pragma unroll
    for (uint i = 0; i < FEW_STAGES; i++)
        few_next<W, M>(next, m.ring[simd], w, s, first, stride, count, lane, sub, slice);
    if (thread_at < FEW_X + 4)
        m.zero[thread_at] = uint4(0u);
    uint stage = 0;
    for (uint panel = 0; panel < s.chunks; panel += FEW_PANEL / FEW_CHUNK) {
        if (panel) {
            here = min((s.chunks - panel) * FEW_CHUNK, uint(FEW_PANEL));
            threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
            for (uint i = 0; i < mine; i++)
                if (thread_at + i * 32 * FEW_SIMDS < 4 * here)
                    v[i] = few_load<W>(x, panel * FEW_CHUNK + ((thread_at + i * 32 * FEW_SIMDS) >> 2), lane & 3);
        }
#pragma unroll
        for (uint i = 0; i < mine; i++)
            if (thread_at + i * 32 * FEW_SIMDS < 4 * here)
                few_put<W>(m.x + ((thread_at + i * 32 * FEW_SIMDS) >> 2) * FEW_X, v[i], lane & 3);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        threadgroup const uint4 *x_at = m.x + 2 * q * FEW_X;
        for (uint t = sub; t < count; t += FEW_SIMDS >> s.shift)
#pragma unroll
            for (uint k = 0; k < M; k++) {
                float2 acc = float2(0.0f);
                for (uint chunk = slice; chunk < here / FEW_CHUNK; chunk += 1u << s.shift) {
                    copy_wait<FEW_STAGES - 1>();
                    simdgroup_barrier(mem_flags::mem_threadgroup);
                    few_unit e[2];
                    few_slot p = (few_slot)m.ring[simd][stage] + r * FEW_SLOT;
                    W::decode(e[0], p, q);
                    W::decode(e[1], p + 8 * FEW_SLOT, q);
                    simdgroup_barrier(mem_flags::mem_threadgroup);
                    stage ^= 1;
                    few_next<W, M>(next, m.ring[simd], w, s, first, stride, count, lane, sub, slice);
                    threadgroup const uint4 *at = x_at + chunk * FEW_CHUNK * FEW_X;
                    acc += few_multiply<W>(at, (r >> 1) == q ? at + 4 * (r & 1) : m.zero, e);
                }
                acc += float2(simd_shuffle_xor(acc.x, 1), simd_shuffle_xor(acc.y, 1));
                acc += float2(simd_shuffle_xor(acc.x, 2), simd_shuffle_xor(acc.y, 2));
                if (q < 2) {
                    threadgroup float &to = m.part[t * M + k][slice][8 * q + r];
                    to = (panel ? to : 0.0f) + (q ? acc.y : acc.x);
                }
            }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// A row's sum, over the SIMD-groups in their order.
inline float few_sum(threadgroup const few_memory &m, thread const few_shape &s, uint tile, uint row) {
    float v = m.part[tile][0][row];
    for (uint i = 1; i < 1u << s.shift; i++)
        v += m.part[tile][i][row];
    return v;
}

#endif

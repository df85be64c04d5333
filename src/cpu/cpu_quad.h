/* cpu_quad: how products that take one row of weights at a time walk it: in quads of four blocks, whose four integer
 * sums, scales and partial sums are the lanes of one 128-bit vector. Private to cpu_matmul_avx2.c and
 * cpu_matmul_neon.c. The format is a compile-time constant in every call, so that the switches vanish. */
#ifndef SL_CPU_QUAD_H
#define SL_CPU_QUAD_H

#include "cpu/cpu_matmul.h"
#include "quant/quant_bits.h"

/* Blocks of 256 weights are two quads, which share a header. */
CPU_INLINE bool quad_is_half(sl_format_id f) {
    return f == SL_Q4_K || f == SL_Q5_K || f == SL_Q6_K || f == SL_Q2_K || f == SL_Q3_K || f == SL_IQ4_XS ||
           f == SL_TQ1_0 || f == SL_TQ2_0 || cpu_is_grid(f);
}

/* Quads whose codes one loop turn reads. */
CPU_INLINE int quad_per_turn(sl_format_id f) {
    return quad_is_half(f) ? 2 : 1;
}

/* Bytes of a block: of 256 weights where quads are halves of it; else of 32. */
CPU_INLINE int64_t quad_block_bytes(sl_format_id f) {
    switch (f) {
    case SL_Q4_0:
        return 18;
    case SL_Q4_1:
        return 20;
    case SL_Q5_0:
        return 22;
    case SL_Q5_1:
        return 24;
    case SL_Q8_0:
        return 34;
    case SL_Q4_K:
        return 144;
    case SL_Q5_K:
        return 176;
    case SL_Q6_K:
        return 210;
    case SL_Q2_K:
        return 84;
    case SL_Q3_K:
        return 110;
    case SL_IQ4_NL:
    case SL_NVFP4: /* half of one of 64 */
        return 18;
    case SL_IQ4_XS:
        return 136;
    case SL_MXFP4:
        return 17;
    case SL_TQ1_0:
        return 54;
    case SL_TQ2_0:
    case SL_IQ2_XXS:
        return 66;
    case SL_IQ2_XS:
        return 74;
    case SL_IQ2_S:
        return 82;
    case SL_IQ3_XXS:
        return 98;
    case SL_IQ3_S:
        return 110;
    case SL_IQ1_S:
        return 50;
    case SL_IQ1_M:
        return 56;
    case SL_AFFINE2:
        return 8;
    case SL_AFFINE3:
        return 12;
    case SL_AFFINE5:
        return 20;
    case SL_AFFINE6:
        return 24;
    case SL_AFFINE4:
    case SL_MXFP4_SPLIT:
    case SL_NVFP4_SPLIT:
        return 16;
    default:
        return 32;
    }
}

/* Blocks b .. b + 3 of a row; those behind the row's last are read as the last. */
typedef struct quad {
    const uint8_t *p[4]; /* of each block's bytes; of halves, all four the 256-weight block; of NVFP4, where its four
                            scales begin */
    int half;            /* 0, 1: which half of it */
    int64_t group[4];    /* where scales are an array of their own */
} quad;

CPU_INLINE quad quad_at(sl_format_id f, const sl_matrix *w, const uint8_t *row, int64_t b, int half, int64_t last) {
    quad q = {.half = half};
    for (int j = 0; j < 4; j++) {
        int64_t at = sl_min_i64(b + j, last);
        q.p[j] = f == SL_NVFP4 ? row + at / 2 * 36 : row + (quad_is_half(f) ? b / 8 : at) * quad_block_bytes(f);
        q.group[j] = cpu_is_affine(f)                             ? at >> __builtin_ctz((unsigned)w->group / 32)
                     : f == SL_MXFP4_SPLIT || f == SL_NVFP4_SPLIT ? at
                                                                  : 0;
    }
    return q;
}

/* The half words `at` bytes into each block. */
CPU_INLINE uint64_t quad_words(const quad *q, int64_t at) {
    return (uint64_t)quant_u16(q->p[0] + at) | (uint64_t)quant_u16(q->p[1] + at) << 16 |
           (uint64_t)quant_u16(q->p[2] + at) << 32 | (uint64_t)quant_u16(q->p[3] + at) << 48;
}

/* The bytes `at` bytes into each block. */
CPU_INLINE uint32_t quad_bytes(const quad *q, int64_t at) {
    return (uint32_t)q->p[0][at] | (uint32_t)q->p[1][at] << 8 | (uint32_t)q->p[2][at] << 16 |
           (uint32_t)q->p[3][at] << 24;
}

/* The same of an array with an element per group. */
CPU_INLINE uint32_t quad_group_bytes(const quad *q, const uint8_t *p) {
    return (uint32_t)p[q->group[0]] | (uint32_t)p[q->group[1]] << 8 | (uint32_t)p[q->group[2]] << 16 |
           (uint32_t)p[q->group[3]] << 24;
}

CPU_INLINE uint64_t quad_group_words(const quad *q, const uint8_t *p) {
    return (uint64_t)quant_u16(p + 2 * q->group[0]) | (uint64_t)quant_u16(p + 2 * q->group[1]) << 16 |
           (uint64_t)quant_u16(p + 2 * q->group[2]) << 32 | (uint64_t)quant_u16(p + 2 * q->group[3]) << 48;
}

CPU_INLINE void quad_group_floats(const quad *q, const uint8_t *p, float out[4]) {
    for (int j = 0; j < 4; j++) {
        out[j] = quant_f32(p + 4 * q->group[j]);
    }
}

/* Q4_K, Q5_K: the quad's four 6-bit scales and minima, a byte each. Layout: quant_k_scale_min. */
typedef struct quad_k {
    uint32_t scale, min;
} quad_k;

CPU_INLINE quad_k quad_k_scales(const quad *q) {
    const uint32_t low6 = 0x3f3f3f3f, low4 = 0x0f0f0f0f, bits45 = 0x30303030;
    uint32_t w0 = quant_u32(q->p[0] + 4), w1 = quant_u32(q->p[0] + 8), w2 = quant_u32(q->p[0] + 12);
    if (!q->half) {
        return (quad_k){w0 & low6, w1 & low6};
    }
    return (quad_k){(w2 & low4) | (w0 >> 2 & bits45), (w2 >> 4 & low4) | (w1 >> 2 & bits45)};
}

/* IQ4_XS: the quad's four scales, a byte each, 0..63. Layout: quant_iq4_xs_scale. */
CPU_INLINE uint32_t quad_iq4_xs_scales(const quad *q) {
    uint32_t low = quant_u16(q->p[0] + 4 + 2 * q->half), high = q->p[0][2 + q->half];
    low = (low | low << 8) & 0x00ff00ff;
    high = (high | high << 12) & 0x000f000f;
    return ((low | low << 4) & 0x0f0f0f0f) | ((high | high << 6) & 0x03030303) << 4;
}

/* NVFP4: the scales of the quad's eight half blocks, two bytes for each block; part: of an array of them. */
CPU_INLINE uint64_t quad_pairs(sl_format_id f, const quad *q, const uint8_t *part) {
    if (f == SL_NVFP4_SPLIT) {
        return quad_group_words(q, part);
    }
    return (uint64_t)quant_u16(q->p[0]) | (uint64_t)quant_u16(q->p[1] + 2) << 16 | (uint64_t)quant_u16(q->p[2]) << 32 |
           (uint64_t)quant_u16(q->p[3] + 2) << 48;
}

/* The signed scales of the quad's eight half blocks, a byte each. Q3_K's layout: quant_q3_k_scale. */
CPU_INLINE uint64_t quad_half_scales(sl_format_id f, const quad *q) {
    const uint8_t *p = q->p[0];
    uint64_t v;
    if (f == SL_Q6_K) {
        memcpy(&v, p + 192 + 8 * q->half, sizeof v);
        return v;
    }
    if (f == SL_IQ2_XS || f == SL_IQ2_S) { /* 2 * n + 1 of four bits each */
        v = quant_u32(p + (f == SL_IQ2_XS ? 66 : 74) + 4 * q->half);
        v = (v | v << 16) & 0x0000ffff0000ffff;
        v = (v | v << 8) & 0x00ff00ff00ff00ff;
        return 2 * ((v | v << 4) & 0x0f0f0f0f0f0f0f0f) + 0x0101010101010101;
    }
    if (f == SL_IQ1_M) { /* of three bits, four in 16 */
        v = (uint64_t)quant_u16(p + 48 + 4 * q->half) | (uint64_t)quant_u16(p + 50 + 4 * q->half) << 32;
        v = (v & 0x003f0000003f) | (v & 0x0fc000000fc0) << 10;
        return 2 * ((v & 0x0007000700070007) | (v & 0x0038003800380038) << 5) + 0x0101010101010101;
    }
    memcpy(&v, p + 96, sizeof v);
    uint32_t high = quant_u32(p + 104) >> 4 * q->half;
    v = v >> 4 * q->half & 0x0f0f0f0f0f0f0f0f;
    v |= (uint64_t)(high & 0x03030303) << 4 | (uint64_t)(high >> 2 & 0x03030303) << 36;
    return (v + 0x6060606060606060) ^ 0x8080808080808080; /* less 32: no byte carries */
}

/* Q2_K: scales (low four bits) and minima (high) of the quad's eight half blocks, a byte each. */
CPU_INLINE uint64_t quad_q2_k_scales(const quad *q) {
    uint64_t v;
    memcpy(&v, q->p[0] + 8 * q->half, sizeof v);
    return v;
}

/* Where the 32 low bytes of run `run` of a Q6_K block begin, and how far its bits are shifted there. */
CPU_INLINE const uint8_t *quad_q6_low(const uint8_t *p, int run) {
    return p + 64 * (run / 4) + 32 * (run & 1);
}
CPU_INLINE const uint8_t *quad_q6_high(const uint8_t *p, int run) {
    return p + 128 + 32 * (run / 4);
}

/* The constant offset of a format's codes, times the sums of activations; NULL: none, or inside the integers. */
CPU_INLINE const int32_t *quad_offsets(sl_format_id f, const cpu_act *a) {
    return f == SL_Q4_0 ? a->neg8 : f == SL_Q5_0 ? a->neg16 : NULL;
}

/* Rows are short and the hardware's own streams stop at their ends, so memory is asked for ahead. */
enum { QUAD_PREFETCH_AHEAD = 8192 };

CPU_INLINE void quad_prefetch(sl_format_id f, const uint8_t *row, int64_t b) {
    const uint8_t *p = row + (quad_is_half(f) ? b / 8 : b) * quad_block_bytes(f);
    for (int64_t i = 0; i < quad_block_bytes(f) * (quad_is_half(f) ? 1 : 4); i += 64) {
        __builtin_prefetch(p + QUAD_PREFETCH_AHEAD + i);
    }
}

#endif

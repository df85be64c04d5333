/* The matrix products in plain C: the numbers of cpu.h in their simplest form. Every other instruction set is compared
 * with this one bit for bit. */
#include "cpu/cpu_float_impl.h"
#include "cpu/cpu_grid.h"
#include "cpu/cpu_matmul.h"
#include "quant/quant_bits.h"

/* ---- activations ---- */

/* Nearest integer, ties to even, of |v| < 2^22: the sum has no bits below one. */
static int32_t round_even(float v) {
    return (int32_t)(quant_bits_of(v + 12582912.0f) - quant_bits_of(12582912.0f));
}

/* One block: its 32 codes; returns d. n values (1..32) of x, the rest are zeros. */
static float quantize_block(const float *x, int64_t n, int8_t *q) {
    uint32_t amax = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t a = quant_bits_of(x[i]) & 0x7fffffff;
        amax = a > amax ? a : amax;
    }
    memset(q, 0, 32);
    if (amax >= CPU_BITS_INFINITE) {
        return quant_float_of(0x7fc00000);
    }
    if (amax < CPU_BITS_LEAST) {
        return 0;
    }
    float inverse = 127.0f / quant_float_of(amax);
    for (int64_t i = 0; i < n; i++) {
        q[i] = (int8_t)round_even(x[i] * inverse);
    }
    return quant_float_of(amax) / 127.0f;
}

static void quantize_row(const float *x, int64_t cols, void *out) {
    cpu_act a = cpu_act_row(out, cols, 0);
    memset(out, 0, cpu_act_bytes(cols));
    for (int64_t b = 0; b < cpu_blocks(cols); b++) {
        int8_t *q = (int8_t *)a.q + 32 * b, *eo = (int8_t *)a.even_odd + 32 * b;
        float d = quantize_block(x + 32 * b, sl_min_i64(cols - 32 * b, 32), q);
        int32_t half[2] = {0, 0};
        for (int i = 0; i < 32; i++) {
            eo[i / 2 + 16 * (i & 1)] = q[i];
            half[i / 16] += q[i];
        }
        int32_t sum = half[0] + half[1];
        ((float *)a.d)[b] = d;
        ((float *)a.xs)[b] = d * (float)sum;
        ((int32_t *)a.neg8)[b] = -8 * sum;
        ((int32_t *)a.neg16)[b] = -16 * sum;
        ((int32_t *)a.neg128)[b] = -128 * sum;
        ((int32_t *)a.neg32)[2 * b] = -32 * half[0];
        ((int32_t *)a.neg32)[2 * b + 1] = -32 * half[1];
    }
}

/* ---- weights ---- */

/* 32 weights: code[i] * scale + bias. Integer scales of half blocks are in the codes; Q2_K: - bias * min[half]; NVFP4:
 * bias is the second half's scale. */
typedef struct block {
    int32_t code[32];
    float scale, bias;
    int32_t min[2];
} block;

static void nibbles(const uint8_t *p, int32_t *code) {
    for (int i = 0; i < 16; i++) {
        code[i] = p[i] & 15;
        code[i + 16] = p[i] >> 4;
    }
}

static void add_high_bits(uint32_t high, int32_t *code) {
    for (int i = 0; i < 32; i++) {
        code[i] += (int32_t)(high >> i & 1) << 4;
    }
}

static void add_offset(int32_t offset, int32_t *code) {
    for (int i = 0; i < 32; i++) {
        code[i] += offset;
    }
}

static float f16_at(const uint8_t *p) {
    return sl_f16_to_f32(quant_u16(p));
}

/* Sub-block j of a Q4_K or Q5_K block at p; low is where its 4-bit codes begin, high its high bits or NULL. */
static void k_sub_block(const uint8_t *p, int j, const uint8_t *low, const uint8_t *high, block *out) {
    uint8_t sc, min;
    quant_k_scale_min(p + 4, j, &sc, &min);
    out->scale = f16_at(p) * (float)sc;
    out->bias = -(f16_at(p + 2) * (float)min);
    for (int i = 0; i < 32; i++) {
        out->code[i] = low[32 * (j / 2) + i] >> 4 * (j & 1) & 15;
        out->code[i] += high ? (high[i] >> j & 1) << 4 : 0;
    }
}

static void q6_k_run(const uint8_t *p, int run, block *out) {
    const uint8_t *low = p + 64 * (run / 4) + 32 * (run & 1), *high = p + 128 + 32 * (run / 4);
    out->scale = f16_at(p + 208);
    for (int i = 0; i < 32; i++) {
        int32_t q = (low[i] >> 4 * (run >> 1 & 1) & 15) | (high[i] >> 2 * (run & 3) & 3) << 4;
        out->code[i] = (q - 32) * (int8_t)p[192 + 2 * run + i / 16];
    }
}

/* Run `run` of a block of Q2_K or Q3_K: bits 2 * (run % 4).. of the 32 bytes that half of the block has at q. */
static int two_bits(const uint8_t *q, int run, int i) {
    return q[32 * (run / 4) + i] >> 2 * (run & 3) & 3;
}

static void q2_k_run(const uint8_t *p, int run, block *out) {
    const uint8_t *s = p + 2 * run;
    out->scale = f16_at(p + 80);
    out->bias = f16_at(p + 82);
    out->min[0] = s[0] >> 4;
    out->min[1] = s[1] >> 4;
    for (int i = 0; i < 32; i++) {
        out->code[i] = two_bits(p + 16, run, i) * (s[i / 16] & 15);
    }
}

static void q3_k_run(const uint8_t *p, int run, block *out) {
    out->scale = f16_at(p + 108);
    for (int i = 0; i < 32; i++) {
        int32_t q = two_bits(p + 32, run, i) - (p[i] >> run & 1 ? 0 : 4);
        out->code[i] = q * quant_q3_k_scale(p + 96, 2 * run + i / 16);
    }
}

/* Codes are numbers of values; in the order of nibbles(). */
static void values_of(const int8_t *value, int32_t *code) {
    for (int i = 0; i < 32; i++) {
        code[i] = value[code[i]];
    }
}

static void iq4_xs_run(const uint8_t *p, int run, block *out) {
    out->scale = f16_at(p) * (float)quant_iq4_xs_scale(p, run);
    nibbles(p + 8 + 16 * run, out->code);
    values_of(quant_iq4_values, out->code);
}

static void tq2_0_run(const uint8_t *p, int run, block *out) {
    out->scale = f16_at(p + 64);
    for (int i = 0; i < 32; i++) {
        out->code[i] = two_bits(p, run, i) - 1;
    }
}

static void grid_run(sl_format_id f, const uint8_t *p, int run, block *out) {
    const quad q = {.p = {p, p, p, p}, .half = run / 4};
    const int j = run % 4;
    grid_block g = grid_read(f, p, run);
    uint64_t halves = cpu_has_halves(f) ? quad_half_scales(f, &q) >> 16 * j : 0x0101;
    out->scale = grid_unit(f, p) * (cpu_has_halves(f) ? 1.0f : (float)(grid_scales(f, &q) >> 8 * j & 255));
    for (int i = 0; i < 32; i++) {
        int32_t v = (int8_t)(g.row[i / 8] >> 8 * (i % 8));
        v = grid_is_ternary(f) ? 8 * v + (int8_t)g.add[i / 8] : g.signs >> i & 1 ? -v : v;
        out->code[i] = v * (int8_t)(halves >> 8 * (i / 16));
    }
}

/* TQ1_0: digits of base three, five to a byte, and four in each of the last bytes. Those of byte i of a group of n
 * bytes are weights i, i + n, .. of the group; three groups of 32, 16 and 4 bytes. */
static int tq1_0_digit(uint8_t v, int digit) {
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    return (uint8_t)(v * power[digit]) * 3 >> 8;
}

static void tq1_0_run(const uint8_t *p, int run, block *out) {
    out->scale = f16_at(p + 52);
    for (int i = 0; i < 32; i++) {
        int at = 32 * run + i, tail = at - 240, middle = at - 160;
        out->code[i] = (tail >= 0     ? tq1_0_digit(p[48 + tail % 4], tail / 4)
                        : middle >= 0 ? tq1_0_digit(p[32 + middle % 16], middle / 16)
                                      : tq1_0_digit(p[i], run)) -
                       1;
    }
}

/* 64 weights at p: scales, then 8 bytes for each 16. */
static void nvfp4_block(const uint8_t *p, int half, block *out) {
    out->scale = quant_nvfp4_half(p[2 * half]);
    out->bias = quant_nvfp4_half(p[2 * half + 1]);
    for (int i = 0; i < 32; i++) {
        uint8_t v = p[4 + 16 * half + 8 * (i / 16) + i % 8];
        out->code[i] = quant_e2m1_doubled[i % 16 < 8 ? v & 15 : v >> 4];
    }
}

static void nvfp4_split_block(const sl_matrix *w, int64_t row, int64_t b, const uint8_t *p, block *out) {
    const uint8_t *s = w->part[1] + (uint64_t)row * w->row_bytes[1] + 2 * (uint64_t)b;
    out->scale = quant_e4m3(s[0]) * 0.5f;
    out->bias = quant_e4m3(s[1]) * 0.5f;
    for (int i = 0; i < 32; i++) {
        out->code[i] = quant_e2m1_doubled[p[i / 2] >> 4 * (i & 1) & 15];
    }
}

static void mxfp4_split_block(const sl_matrix *w, int64_t row, int64_t b, const uint8_t *p, block *out) {
    uint8_t e = w->part[1][(uint64_t)row * w->row_bytes[1] + (uint64_t)b];
    out->scale = quant_e8m0(e) * 0.5f;
    for (int i = 0; i < 32; i++) {
        out->code[i] = quant_e2m1_doubled[p[i / 2] >> 4 * (i & 1) & 15];
    }
}

static void affine_block(const sl_matrix *w, int64_t row, int64_t b, const uint8_t *p, block *out) {
    int bits = sl_format_get(w->format)->bits;
    out->scale = quant_side_at(w, 1, row, 32 * b / w->group);
    out->bias = quant_side_at(w, 2, row, 32 * b / w->group);
    for (int i = 0; i < 32; i++) {
        out->code[i] = (int32_t)(quant_eight_codes(p + i / 8 * bits, bits) >> bits * (i & 7)) & ((1 << bits) - 1);
    }
}

/* Block b of a row, in the order of columns. */
static void block_read(const sl_matrix *w, int64_t row, int64_t b, block *out) {
    const sl_format *f = sl_format_get(w->format);
    const uint8_t *p =
        w->part[0] + (uint64_t)row * w->row_bytes[0] + (uint64_t)(32 * b / f->block_weights) * f->block_bytes;
    switch (w->format) {
    case SL_Q4_0:
        out->scale = f16_at(p);
        nibbles(p + 2, out->code);
        add_offset(-8, out->code);
        break;
    case SL_Q4_1:
        out->scale = f16_at(p);
        out->bias = f16_at(p + 2);
        nibbles(p + 4, out->code);
        break;
    case SL_Q5_0:
        out->scale = f16_at(p);
        nibbles(p + 6, out->code);
        add_high_bits(quant_u32(p + 2), out->code);
        add_offset(-16, out->code);
        break;
    case SL_Q5_1:
        out->scale = f16_at(p);
        out->bias = f16_at(p + 2);
        nibbles(p + 8, out->code);
        add_high_bits(quant_u32(p + 4), out->code);
        break;
    case SL_Q8_0:
        out->scale = f16_at(p);
        for (int i = 0; i < 32; i++) {
            out->code[i] = (int8_t)p[2 + i];
        }
        break;
    case SL_Q4_K:
        k_sub_block(p, (int)(b & 7), p + 16, NULL, out);
        break;
    case SL_Q5_K:
        k_sub_block(p, (int)(b & 7), p + 48, p + 16, out);
        break;
    case SL_Q6_K:
        q6_k_run(p, (int)(b & 7), out);
        break;
    case SL_Q2_K:
        q2_k_run(p, (int)(b & 7), out);
        break;
    case SL_Q3_K:
        q3_k_run(p, (int)(b & 7), out);
        break;
    case SL_IQ4_NL:
        out->scale = f16_at(p);
        nibbles(p + 2, out->code);
        values_of(quant_iq4_values, out->code);
        break;
    case SL_IQ4_XS:
        iq4_xs_run(p, (int)(b & 7), out);
        break;
    case SL_MXFP4:
        out->scale = quant_e8m0_half(p[0]);
        nibbles(p + 1, out->code);
        values_of(quant_e2m1_doubled, out->code);
        break;
    case SL_MXFP4_SPLIT:
        mxfp4_split_block(w, row, b, p, out);
        break;
    case SL_NVFP4:
        nvfp4_block(p, (int)(b & 1), out);
        break;
    case SL_NVFP4_SPLIT:
        nvfp4_split_block(w, row, b, p, out);
        break;
    case SL_TQ1_0:
        tq1_0_run(p, (int)(b & 7), out);
        break;
    case SL_TQ2_0:
        tq2_0_run(p, (int)(b & 7), out);
        break;
    case SL_IQ2_XXS:
    case SL_IQ2_XS:
    case SL_IQ2_S:
    case SL_IQ3_XXS:
    case SL_IQ3_S:
    case SL_IQ1_S:
    case SL_IQ1_M:
        grid_run(w->format, p, (int)(b & 7), out);
        break;
    default:
        affine_block(w, row, b, p, out);
    }
}

static int32_t dot_codes(const block *blk, const int8_t *q, int from, int to) {
    int32_t sum = 0;
    for (int i = from; i < to; i++) {
        sum += blk->code[i] * q[i];
    }
    return sum;
}

static float dot_row(const sl_matrix *w, int64_t row, const cpu_act *a) {
    float part[4] = {0, 0, 0, 0};
    bool biased = cpu_has_bias(w->format);
    for (int64_t b = 0; b < w->cols / 32; b++) {
        block blk;
        block_read(w, row, b, &blk);
        const int8_t *q = a->q + 32 * b;
        float *p = &part[b & 3];
        if (cpu_has_pairs(w->format)) {
            *p = fmaf(blk.scale * a->d[b], (float)dot_codes(&blk, q, 0, 16), *p);
            *p = fmaf(blk.bias * a->d[b], (float)dot_codes(&blk, q, 16, 32), *p);
            continue;
        }
        *p = fmaf(blk.scale * a->d[b], (float)dot_codes(&blk, q, 0, 32), *p);
        if (biased) {
            *p = fmaf(blk.bias, a->xs[b], *p);
        } else if (w->format == SL_Q2_K) {
            int32_t minima = (blk.min[0] * a->neg32[2 * b] + blk.min[1] * a->neg32[2 * b + 1]) / 32;
            *p = fmaf(blk.bias * a->d[b], (float)minima, *p);
        }
    }
    return (part[0] + part[2]) + (part[1] + part[3]);
}

static void matvec(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_rows *in, int64_t i, float *y,
                   void *scratch) {
    cpu_act a = cpu_rows_act(in, i);
    for (int64_t r = row0; r < row1; r++) {
        y[r - row0] = dot_row(w, r, &a);
    }
}

const cpu_matmul_isa cpu_matmul_scalar = {
    .name = "scalar",
    .quantize_row = quantize_row,
    .matvec = matvec,
    .matmul_float = cpu_matmul_float,
    .silu_mul = v16_silu_mul,
};

/* ---- mode exact ---- */

enum { EXACT_CHUNK = 256, EXACT_ROWS = 32 };

/* part[k mod 8] += w * x, in double: the products are exact. */
static void exact_add(const float *w, const float *x, int64_t n, double part[8]) {
    int64_t k = 0;
    for (; k + 8 <= n; k += 8) {
        for (int j = 0; j < 8; j++) {
            part[j] += (double)w[k + j] * (double)x[k + j];
        }
    }
    for (; k < n; k++) {
        part[k & 7] += (double)w[k] * (double)x[k];
    }
}

static float exact_fold(const double p[8]) {
    return (float)(((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7])));
}

/* y[i * ldy] = one row of w times row i0 + i of in, i < n <= EXACT_ROWS; the weights are dequantised a chunk at a time.
 */
static void exact_row(const sl_matrix *w, int64_t row, const cpu_rows *in, int64_t i0, int64_t n, float *y,
                      int64_t ldy) {
    double part[EXACT_ROWS][8] = {{0}};
    float chunk[EXACT_CHUNK];
    for (int64_t k = 0; k < w->cols; k += EXACT_CHUNK) {
        int64_t len = sl_min_i64(EXACT_CHUNK, w->cols - k);
        sl_format_get(w->format)->dequantize(w, row, k, len, chunk);
        for (int64_t i = 0; i < n; i++) {
            exact_add(chunk, cpu_rows_x(in, i0 + i) + k, len, part[i]);
        }
    }
    for (int64_t i = 0; i < n; i++) {
        y[i * ldy] = exact_fold(part[i]);
    }
}

void cpu_matmul_exact(const sl_matrix *w, int64_t row0, int64_t row1, const cpu_rows *in, float *y, int64_t ldy) {
    for (int64_t i = 0; i < in->n; i += EXACT_ROWS) {
        for (int64_t r = row0; r < row1; r++) {
            exact_row(w, r, in, i, sl_min_i64(EXACT_ROWS, in->n - i), y + i * ldy + r - row0, ldy);
        }
    }
}

/* Convolution and delta rule of cpu_ops.h, included by cpu_ops_impl.h.
 *
 * The delta rule works on up to CPU_DELTA_ROWS rows at a time: their q and k are normalised once, then a slice of the
 * state's columns goes over all rows while it stays in the first cache level. Columns do not depend on each other, so
 * the width of a slice is a matter of registers only. */
#ifndef SL_CPU_DELTA_IMPL_H
#define SL_CPU_DELTA_IMPL_H

#include "cpu/cpu_math.h"
#include "cpu/cpu_sixteen.h"

/* ---- convolution ------------------------------------------------------------------------------------------------- */

enum {
    CONV_SLICE = 256 /* channels at a time: their taps and the rows between two uses stay in the first cache level */
};

/* One slice: input rows before the first, and the taps with channels side by side. Only as many of either as there are
 * are filled, and of channels sixteens: one row may be all there is to do. */
typedef struct conv_slice {
    float before[CPU_CONV_KERNEL - 1][CONV_SLICE];
    float tap[CPU_CONV_KERNEL][CONV_SLICE];
    float bias[CONV_SLICE];
    int32_t n; /* channels of it */
} conv_slice;

/* to[0, n) = from, then zeros up to a multiple of 16; from NULL: zeros */
static void conv_put(float *to, const float *from, int32_t n) {
    int32_t kept = from ? n : 0, all = (n + 15) / 16 * 16;
    if (from)
        memcpy(to, from, (size_t)n * sizeof *to);
    memset(to + kept, 0, (size_t)(all - kept) * sizeof *to);
}

/* Taps of sixteen channels. */
static void conv_turn(conv_slice *s, const float *weight, int32_t i, int32_t n, int32_t kernel) {
    for (int32_t t = 0; t < kernel; t++)
        for (int32_t c = 0; c < 16; c++)
            s->tap[t][i + c] = c < n ? weight[c * kernel + t] : 0.0f;
}

V_INLINE v4 v4_load(const float *p) {
    v4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The same of all sixteen with four taps each: four by four, which every instruction set can turn in registers. */
V_INLINE void conv_turn_four(conv_slice *s, const float *weight, int32_t i) {
    for (int32_t j = 0; j < 16; j += 4) {
        v4 a = v4_load(weight + 4 * j), b = v4_load(weight + 4 * j + 4);
        v4 c = v4_load(weight + 4 * j + 8), d = v4_load(weight + 4 * j + 12);
        v4 ab01 = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab23 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
        v4 cd01 = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd23 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
        v4 turned[4] = {
            __builtin_shufflevector(ab01, cd01, 0, 1, 4, 5), __builtin_shufflevector(ab01, cd01, 2, 3, 6, 7),
            __builtin_shufflevector(ab23, cd23, 0, 1, 4, 5), __builtin_shufflevector(ab23, cd23, 2, 3, 6, 7)};
        for (int32_t t = 0; t < 4; t++)
            memcpy(s->tap[t] + i + j, &turned[t], sizeof turned[t]);
    }
}

static void conv_load(const cpu_conv *c, int32_t channel, conv_slice *s) {
    s->n = c->channels - channel < CONV_SLICE ? c->channels - channel : CONV_SLICE;
    for (int32_t t = 0; t + 1 < c->kernel; t++)
        conv_put(s->before[t], c->fresh ? NULL : c->state + t * c->state_stride + channel, s->n);
    conv_put(s->bias, c->bias ? c->bias + channel : NULL, s->n);
    for (int32_t i = 0; i < s->n; i += 16) {
        const float *weight = c->weight + (int64_t)(channel + i) * c->kernel;
        if (c->kernel == 4 && s->n - i >= 16)
            conv_turn_four(s, weight, i);
        else
            conv_turn(s, weight, i, s->n - i, c->kernel);
    }
}

/* Input row r, counted from the first row of the step; below 0 from before it. */
V_INLINE const float *conv_row(const cpu_conv *c, const conv_slice *s, int32_t channel, int64_t r) {
    return r < 0 ? s->before[r + c->kernel - 1] : c->x + r * c->x_stride + channel;
}

static void conv_keep(const cpu_conv *c, const conv_slice *s, int32_t channel) {
    for (int32_t t = 0; t + 1 < c->kernel; t++)
        memcpy(c->state + t * c->state_stride + channel, conv_row(c, s, channel, c->rows - (c->kernel - 1) + t),
               (size_t)s->n * sizeof(float));
}

/* Sixteen channels from `i` of the slice; in: the inputs of each tap. */
V_INLINE void conv_sixteen(const conv_slice *s, const float *const *in, int32_t i, int32_t kernel, float *out) {
    sixteen sum = sixteen_mul(sixteen_load((const uint8_t *)(s->tap[0] + i)), sixteen_load((const uint8_t *)in[0]));
    for (int32_t t = 1; t < kernel; t++)
        sum = sixteen_fma(sixteen_load((const uint8_t *)(s->tap[t] + i)), sixteen_load((const uint8_t *)in[t]), sum);
    sixteen_store(out, sixteen_add(sum, sixteen_load((const uint8_t *)(s->bias + i))));
    v16_store(out, v16_silu(v16_load(out)));
}

/* The last channels of a row, fewer than 16. */
static void conv_rest(const conv_slice *s, const float *const *row, int32_t i, int32_t kernel, float *to) {
    float in[CPU_CONV_KERNEL][16] = {{0}}, out[16];
    const float *at[CPU_CONV_KERNEL] = {0};
    for (int32_t t = 0; t < kernel; t++)
        at[t] = memcpy(in[t], row[t] + i, (size_t)(s->n - i) * sizeof **in);
    conv_sixteen(s, at, i, kernel, out);
    memcpy(to + i, out, (size_t)(s->n - i) * sizeof *out);
}

/* Rows descend, so that each still finds the inputs before it. */
V_INLINE void conv_rows(const cpu_conv *c, const conv_slice *s, int32_t channel, int32_t kernel) {
    for (int64_t r = c->rows; r-- > 0;) {
        const float *row[CPU_CONV_KERNEL] = {0}, *in[CPU_CONV_KERNEL] = {0};
        float *to = c->x + r * c->x_stride + channel;
        int32_t i = 0;
        for (int32_t t = 0; t < kernel; t++)
            row[t] = conv_row(c, s, channel, r - (kernel - 1) + t);
        for (; i + 16 <= s->n; i += 16) {
            for (int32_t t = 0; t < kernel; t++)
                in[t] = row[t] + i;
            conv_sixteen(s, in, i, kernel, to + i);
        }
        if (i < s->n)
            conv_rest(s, row, i, kernel, to);
    }
}

static void conv(const cpu_conv *c) {
    conv_slice s;
    for (int32_t channel = 0; channel < c->channels; channel += CONV_SLICE) {
        conv_load(c, channel, &s);
        conv_keep(c, &s, channel);
        if (c->kernel == 4)
            conv_rows(c, &s, channel, 4);
        else
            conv_rows(c, &s, channel, c->kernel);
    }
}

/* ---- delta rule -------------------------------------------------------------------------------------------------- */

#if defined(__AVX512F__)
enum { DELTA_WIDE = 4 };
#else
enum { DELTA_WIDE = 2 };
#endif

/* Up to CPU_DELTA_ROWS rows. */
typedef struct delta_rows {
    float *q, *k, *o; /* [rows][key_dim] x 2, [rows][value_dim] */
    float *g, *b;     /* [rows] */
    int32_t n;
} delta_rows;

/* As rms_norm_huge. */
static void l2_norm_huge(float *dst, const float *src, int32_t n, float scale) {
    float max = largest_magnitude(src, n), sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += src[i] / max * (src[i] / max);
    float inv = 1.0f / sqrtf(sum);
    for (int32_t i = 0; i < n; i++)
        dst[i] = src[i] / max * inv * scale;
}

/* dst = src * scale / sqrt(sum src^2 + 1e-6) */
static void l2_norm(float *dst, const float *src, int32_t n, float scale) {
    float sum = sum_of_squares(src, n);
    if (!(sum <= FLT_MAX)) {
        l2_norm_huge(dst, src, n, scale);
        return;
    }
    float inv = 1.0f / sqrtf(sum + 1e-6f);
    for (int32_t i = 0; i < n; i++)
        dst[i] = src[i] * inv * scale;
}

static void delta_prepare(const cpu_delta *d, int32_t first, delta_rows *b) {
    float scale = 1.0f / sqrtf((float)d->key_dim);
    b->n = d->rows - first < CPU_DELTA_ROWS ? d->rows - first : CPU_DELTA_ROWS;
    for (int32_t i = 0; i < b->n; i++) {
        int64_t row = first + i, at = (int64_t)i * d->key_dim;
        double g, beta;
        l2_norm(b->q + at, d->q + row * d->x_stride, d->key_dim, scale);
        l2_norm(b->k + at, d->k + row * d->x_stride, d->key_dim, 1.0f);
        cpu_delta_gates(d->decay, d->dt_bias, d->alpha[row * d->alpha_stride], d->beta[row * d->beta_stride], &g,
                        &beta);
        b->g[i] = (float)g;
        b->b[i] = (float)beta;
    }
}

/* W times 16 columns of the state over one row. */
V_INLINE void delta_wide(int W, float *s, int64_t stride, const float *q, const float *k, const float *v, float *o,
                         float g, float beta, int32_t key_dim) {
    sixteen even[DELTA_WIDE], odd[DELTA_WIDE], d[DELTA_WIDE], decay = sixteen_set(g);
#pragma GCC unroll 4
    for (int u = 0; u < W; u++)
        even[u] = odd[u] = sixteen_zero();
    int32_t i = 0;
    for (; i + 1 < key_dim; i += 2) {
        const float *row = s + i * stride;
        sixteen k0 = sixteen_set(k[i]), k1 = sixteen_set(k[i + 1]);
#pragma GCC unroll 4
        for (int u = 0; u < W; u++) {
            even[u] = sixteen_fma(k0, sixteen_load((const uint8_t *)(row + 16 * u)), even[u]);
            odd[u] = sixteen_fma(k1, sixteen_load((const uint8_t *)(row + stride + 16 * u)), odd[u]);
        }
    }
    for (int u = 0; i < key_dim && u < W; u++)
        even[u] = sixteen_fma(sixteen_set(k[i]), sixteen_load((const uint8_t *)(s + i * stride + 16 * u)), even[u]);
#pragma GCC unroll 4
    for (int u = 0; u < W; u++) {
        sixteen kv = sixteen_add(even[u], odd[u]), value = sixteen_load((const uint8_t *)(v + 16 * u));
        d[u] = sixteen_mul(sixteen_set(beta), sixteen_fma(sixteen_set(-g), kv, value));
        even[u] = odd[u] = sixteen_zero();
    }
    for (i = 0; i < key_dim; i++) {
        float *row = s + i * stride;
        sixteen key = sixteen_set(k[i]), query = sixteen_set(q[i]);
#pragma GCC unroll 4
        for (int u = 0; u < W; u++) {
            sixteen x = sixteen_mul(sixteen_load((const uint8_t *)(row + 16 * u)), decay);
            x = sixteen_fma(key, d[u], x);
            sixteen_store(row + 16 * u, x);
            if (i % 2 == 0)
                even[u] = sixteen_fma(query, x, even[u]);
            else
                odd[u] = sixteen_fma(query, x, odd[u]);
        }
    }
#pragma GCC unroll 4
    for (int u = 0; u < W; u++)
        sixteen_store(o + 16 * u, sixteen_add(even[u], odd[u]));
}

/* One column, as above. */
static void delta_column(float *s, int64_t stride, const float *q, const float *k, float v, float *o, float g,
                         float beta, int32_t key_dim) {
    float sum[2] = {0, 0};
    for (int32_t i = 0; i < key_dim; i++)
        sum[i % 2] = fmaf(k[i], s[i * stride], sum[i % 2]);
    float d = beta * fmaf(-g, sum[0] + sum[1], v);
    sum[0] = sum[1] = 0;
    for (int32_t i = 0; i < key_dim; i++) {
        float x = fmaf(k[i], d, s[i * stride] * g);
        s[i * stride] = x;
        sum[i % 2] = fmaf(q[i], x, sum[i % 2]);
    }
    *o = sum[0] + sum[1];
}

/* Columns [c, c + n) of the state over the rows, n being 16 * W or fewer than 16. */
V_INLINE void delta_slice(int W, const cpu_delta *d, const delta_rows *b, int32_t first, int32_t c, int32_t n) {
    for (int32_t i = 0; i < b->n; i++) {
        const float *q = b->q + (int64_t)i * d->key_dim, *k = b->k + (int64_t)i * d->key_dim;
        const float *v = d->v + (first + i) * d->x_stride + c;
        float *o = b->o + (int64_t)i * d->value_dim + c, *s = d->state + c;
        if (W)
            delta_wide(W, s, d->value_dim, q, k, v, o, b->g[i], b->b[i], d->key_dim);
        else
            for (int32_t j = 0; j < n; j++)
                delta_column(s + j, d->value_dim, q, k, v[j], o + j, b->g[i], b->b[i], d->key_dim);
    }
}

static void delta_columns(const cpu_delta *d, const delta_rows *b, int32_t first) {
    int32_t c = 0;
    for (; c + 16 * DELTA_WIDE <= d->value_dim; c += 16 * DELTA_WIDE)
        delta_slice(DELTA_WIDE, d, b, first, c, 16 * DELTA_WIDE);
    for (; c + 16 <= d->value_dim; c += 16)
        delta_slice(1, d, b, first, c, 16);
    if (c < d->value_dim)
        delta_slice(0, d, b, first, c, d->value_dim - c);
}

/* dst = rms_norm(o) * silu(z); z may be dst */
static void delta_finish(const cpu_delta *d, const delta_rows *b, int32_t first) {
    for (int32_t i = 0; i < b->n; i++) {
        float *o = b->o + (int64_t)i * d->value_dim;
        rms_norm(o, o, d->norm, d->value_dim, d->norm_eps);
        v16_silu_mul(d->dst + (first + i) * d->dst_stride, d->z + (first + i) * d->z_stride, o, d->value_dim);
    }
}

static void delta(const cpu_delta *d) {
    int64_t keys = (int64_t)CPU_DELTA_ROWS * d->key_dim;
    delta_rows b = {.q = d->scratch, .k = d->scratch + keys, .o = d->scratch + 2 * keys};
    b.g = b.o + (int64_t)CPU_DELTA_ROWS * d->value_dim;
    b.b = b.g + CPU_DELTA_ROWS;
    if (d->fresh)
        memset(d->state, 0, (size_t)d->key_dim * (size_t)d->value_dim * sizeof(float));
    for (int32_t first = 0; first < d->rows; first += CPU_DELTA_ROWS) {
        delta_prepare(d, first, &b);
        delta_columns(d, &b, first);
        delta_finish(d, &b, first);
    }
}

#endif

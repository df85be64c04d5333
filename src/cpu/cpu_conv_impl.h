/* The convolution of cpu_ops.h, included by cpu_ops_impl.h. */
#ifndef SL_CPU_CONV_IMPL_H
#define SL_CPU_CONV_IMPL_H

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

#endif

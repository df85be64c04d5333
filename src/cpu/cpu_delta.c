/* What of the delta rule is the same on every instruction set: its gates, and the oracle in double. */
#include "cpu/cpu_ops.h"

#include <math.h>
#include <string.h>

/* log(1 + exp(x)) without overflow; NaN stays NaN. */
static double softplus(double x) {
    return x > 40 ? x : log1p(exp(x));
}

void cpu_delta_gates(float decay, float dt_bias, float alpha, float beta, double *g, double *b) {
    *g = exp((double)decay * softplus((double)alpha + dt_bias));
    *b = 1 / (1 + exp(-(double)beta));
}

static double silu(double x) {
    return x / (1 + exp(-x));
}

/* ---- convolution ------------------------------------------------------------------------------------------------- */

/* Input of one channel, row r; below 0 from before the first. */
static double conv_input(const cpu_conv *c, const float *before, int32_t channel, int64_t r) {
    return r < 0 ? before[r + c->kernel - 1] : c->x[r * c->x_stride + channel];
}

static void conv_channel(const cpu_conv *c, int32_t channel) {
    float before[CPU_CONV_KERNEL - 1] = {0}, after[CPU_CONV_KERNEL - 1];
    int32_t past = c->kernel - 1;
    for (int32_t t = 0; t < past && !c->fresh; t++)
        before[t] = c->state[t * c->state_stride + channel];
    for (int32_t t = 0; t < past; t++)
        after[t] = (float)conv_input(c, before, channel, c->rows - past + t);
    for (int64_t r = c->rows; r-- > 0;) {
        double sum = c->bias ? c->bias[channel] : 0;
        for (int32_t t = 0; t < c->kernel; t++)
            sum += c->weight[(int64_t)channel * c->kernel + t] * conv_input(c, before, channel, r - past + t);
        c->x[r * c->x_stride + channel] = (float)silu(sum);
    }
    for (int32_t t = 0; t < past; t++)
        c->state[t * c->state_stride + channel] = after[t];
}

void cpu_conv_exact(const cpu_conv *c) {
    for (int32_t channel = 0; channel < c->channels; channel++)
        conv_channel(c, channel);
}

/* ---- delta rule -------------------------------------------------------------------------------------------------- */

/* 1 / sqrt(sum x^2 + 1e-6) */
static double inverse_length(const float *x, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return 1 / sqrt(sum + 1e-6);
}

/* One row of the head; o goes to scratch in double. */
static void delta_row(const cpu_delta *d, int64_t row, double *o) {
    const float *q = d->q + row * d->x_stride, *k = d->k + row * d->x_stride, *v = d->v + row * d->x_stride;
    double g, beta, k_scale = inverse_length(k, d->key_dim);
    double q_scale = inverse_length(q, d->key_dim) / sqrt(d->key_dim);
    cpu_delta_gates(d->decay, d->dt_bias, d->alpha[row * d->alpha_stride], d->beta[row * d->beta_stride], &g, &beta);
    for (int32_t c = 0; c < d->value_dim; c++) {
        float *s = d->state + c;
        double kv = 0;
        for (int32_t i = 0; i < d->key_dim; i++)
            kv += k[i] * k_scale * s[(int64_t)i * d->value_dim];
        double update = beta * (v[c] - g * kv);
        o[c] = 0;
        for (int32_t i = 0; i < d->key_dim; i++) {
            float *x = &s[(int64_t)i * d->value_dim];
            *x = (float)(*x * g + k[i] * k_scale * update);
            o[c] += q[i] * q_scale * *x;
        }
    }
}

static void finish_row(const cpu_delta *d, int64_t row, const double *o) {
    double sum = 0;
    for (int32_t c = 0; c < d->value_dim; c++)
        sum += o[c] * o[c];
    double inv = 1 / sqrt(sum / d->value_dim + (double)d->norm_eps);
    for (int32_t c = 0; c < d->value_dim; c++)
        d->dst[row * d->dst_stride + c] = (float)(o[c] * inv * d->norm[c] * silu(d->z[row * d->z_stride + c]));
}

void cpu_delta_exact(const cpu_delta *d) {
    double *o = (double *)(void *)d->scratch; /* 64-byte aligned, larger than two floats a value */
    if (d->position == 0)
        memset(d->state, 0, (size_t)d->key_dim * (size_t)d->value_dim * sizeof(float));
    for (int64_t row = 0; row < d->rows; row++) {
        delta_row(d, row, o);
        finish_row(d, row, o);
    }
}

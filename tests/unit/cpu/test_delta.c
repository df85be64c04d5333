/* Promise: convolution and delta rule have the same bits on every instruction set and however rows are cut into calls,
 * stay within float's rounding of float64, row by row and in the chunked form, and let a NaN through. */
#include "support_matrix.h"

#include "cpu/cpu_ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 20261130;

/* Those of this machine; the first is scalar. */
static const cpu_ops *isas[4];
static int isa_count;

static int set_up(void **state) {
    static const char *const names[] = {"scalar", "avx2", "avx512", "neon"};
    for (size_t i = 0; i < SL_COUNT(names); i++)
        if (cpu_ops_get(names[i]))
            isas[isa_count++] = cpu_ops_get(names[i]);
    print_message("seed %llu, %d instruction sets\n", (unsigned long long)seed, isa_count);
    return 0;
}

static float *floats(rng *r, int64_t n, float magnitude) {
    float *x = malloc((size_t)(n ? n : 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = rng_normal(r) * magnitude;
    return x;
}

static float *copy(const float *x, int64_t n) {
    float *y = malloc((size_t)n * sizeof *y);
    memcpy(y, x, (size_t)n * sizeof *y);
    return y;
}

static void same_bits(const float *a, const float *b, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a))
            fail_msg("%s: element %lld of %lld is %a, %a expected", what, (long long)i, (long long)n, a[i], b[i]);
}

static double silu(double x) {
    return x / (1 + exp(-x));
}

/* ---- convolution ------------------------------------------------------------------------------------------------- */

typedef struct conv_case {
    int32_t rows, channels, kernel;
    int64_t stride;
    bool biased, fresh;
    float *x, *state, *weight, *bias;
} conv_case;

static conv_case conv_new(rng *r, int32_t rows, int32_t channels, int32_t kernel, bool biased, bool fresh) {
    conv_case c = {rows, channels, kernel, channels + 3, biased, fresh, NULL, NULL, NULL, NULL};
    c.x = floats(r, rows * c.stride, 2);
    c.state = floats(r, (kernel - 1) * c.stride, 2);
    c.weight = floats(r, (int64_t)channels * kernel, 0.7f);
    c.bias = floats(r, channels, 1);
    return c;
}

static void conv_free(conv_case *c) {
    free(c->x);
    free(c->state);
    free(c->weight);
    free(c->bias);
}

static cpu_conv conv_call(const conv_case *c, float *x, float *state, int32_t first, int32_t rows) {
    return (cpu_conv){.x = x + first * c->stride,
                      .x_stride = c->stride,
                      .state = state,
                      .state_stride = c->stride,
                      .weight = c->weight,
                      .bias = c->biased ? c->bias : NULL,
                      .rows = rows,
                      .channels = c->channels,
                      .kernel = c->kernel,
                      .fresh = c->fresh && first == 0};
}

/* Input of the case by row, the state's below 0. */
static double conv_input(const conv_case *c, int64_t row, int32_t channel) {
    if (row >= 0)
        return c->x[row * c->stride + channel];
    return c->fresh ? 0 : c->state[(row + c->kernel - 1) * c->stride + channel];
}

static void conv_check(const conv_case *c, const float *x, const float *state, double bound) {
    for (int32_t ch = 0; ch < c->channels; ch++) {
        for (int32_t row = 0; row < c->rows; row++) {
            double sum = c->biased ? c->bias[ch] : 0, size = fabs(sum);
            for (int32_t t = 0; t < c->kernel; t++) {
                double term = c->weight[(int64_t)ch * c->kernel + t] * conv_input(c, row - c->kernel + 1 + t, ch);
                sum += term;
                size += fabs(term);
            }
            if (!(fabs(x[row * c->stride + ch] - silu(sum)) <= bound * (size + 1)))
                fail_msg("conv of %d: row %d channel %d is %g, expected %g", c->kernel, row, ch,
                         x[row * c->stride + ch], silu(sum));
        }
        for (int32_t t = 0; t < c->kernel - 1; t++)
            assert_true(state[t * c->stride + ch] == (float)conv_input(c, c->rows - c->kernel + 1 + t, ch));
    }
}

/* What lies between the rows stays as it was. */
static void conv_gaps(const conv_case *c, const float *x, const float *state) {
    for (int32_t row = 0; row < c->rows; row++)
        same_bits(x + row * c->stride + c->channels, c->x + row * c->stride + c->channels, 3, "gap of rows");
    for (int32_t t = 0; t < c->kernel - 1; t++)
        same_bits(state + t * c->stride + c->channels, c->state + t * c->stride + c->channels, 3, "gap of state");
}

static void conv_case_check(rng *r, const conv_case *c) {
    int64_t n = c->rows * c->stride, m = (c->kernel - 1) * c->stride;
    float *first = NULL, *first_state = NULL;
    for (int k = -1; k < isa_count; k++) {
        float *x = copy(c->x, n), *state = copy(c->state, m);
        cpu_conv call = conv_call(c, x, state, 0, c->rows);
        if (k < 0)
            cpu_conv_exact(&call);
        else
            isas[k]->conv(&call);
        conv_check(c, x, state, k < 0 ? 1e-7 : 2e-6);
        conv_gaps(c, x, state);
        if (k == 0) {
            first = copy(x, n);
            first_state = copy(state, m);
        } else if (k > 0) {
            same_bits(x, first, n, isas[k]->name);
            same_bits(state, first_state, m, isas[k]->name);
        }
        free(x);
        free(state);
    }
    float *x = copy(c->x, n), *state = copy(c->state, m);
    for (int32_t at = 0, step; at < c->rows; at += step) {
        step = 1 + (int32_t)rng_below(r, c->rows - at);
        cpu_conv call = conv_call(c, x, state, at, step);
        isas[isa_count - 1]->conv(&call);
    }
    same_bits(x, first, n, "conv in pieces");
    same_bits(state, first_state, m, "conv's state in pieces");
    free(x);
    free(state);
    free(first);
    free(first_state);
}

static void convolution_is_right(void **state) {
    rng r = {seed};
    for (int i = 0; i < 120; i++) {
        int32_t rows = 1 + (int32_t)rng_below(&r, i % 3 ? 6 : 40), channels = 1 + (int32_t)rng_below(&r, 150);
        int32_t kernel = 2 + (int32_t)rng_below(&r, CPU_CONV_KERNEL - 1);
        conv_case c = conv_new(&r, rows, channels, kernel, i % 2, i % 5 == 0);
        conv_case_check(&r, &c);
        conv_free(&c);
    }
}

/* ---- delta rule -------------------------------------------------------------------------------------------------- */

typedef struct delta_case {
    int32_t rows, key_dim, value_dim;
    bool fresh;
    int32_t position;                           /* of the first row; 0 where it is fresh */
    int64_t stride;                             /* of all operands */
    float *x, *z, *state, *norm, *beta, *alpha; /* x: q | k | v */
    float decay, dt_bias;
} delta_case;

static delta_case delta_new(rng *r, int32_t rows, int32_t key_dim, int32_t value_dim, bool fresh) {
    delta_case c = {.rows = rows, .key_dim = key_dim, .value_dim = value_dim, .fresh = fresh};
    c.position = fresh ? 0 : 1 + rng_below(r, 3 * CPU_DELTA_ROWS);
    c.stride = 2 * key_dim + value_dim + 5;
    c.x = floats(r, rows * c.stride, 1);
    c.z = floats(r, rows * c.stride, 2);
    c.beta = floats(r, rows * c.stride, 2);
    c.alpha = floats(r, rows * c.stride, 2);
    c.state = floats(r, (int64_t)key_dim * value_dim, 0.5f);
    c.norm = floats(r, value_dim, 1);
    c.decay = -0.05f - fabsf(rng_normal(r)) * 0.3f;
    c.dt_bias = rng_normal(r);
    return c;
}

static void delta_free(delta_case *c) {
    free(c->x);
    free(c->z);
    free(c->beta);
    free(c->alpha);
    free(c->state);
    free(c->norm);
}

/* What a call leaves: the state, then what it kept. */
static int64_t state_floats(const delta_case *c) {
    return (int64_t)c->key_dim * c->value_dim + (int64_t)cpu_delta_kept(c->key_dim, c->value_dim);
}

static float *kept_of(const delta_case *c, float *state) {
    return state + (int64_t)c->key_dim * c->value_dim;
}

/* The case's state, and rows kept that leave it as it is: nothing is added, nothing decays. */
static void begin_state(const delta_case *c, float *state) {
    int64_t n = (int64_t)c->key_dim * c->value_dim, all = state_floats(c);
    memcpy(state, c->state, (size_t)n * sizeof *state);
    for (int64_t i = n; i < all; i++)
        state[i] = c->fresh ? NAN : i < all - CPU_DELTA_ROWS ? 0 : 1;
}

/* The state after the case's last row, from that at its chunk's start and the rows kept since. */
static void whole_state(const delta_case *c, const float *state, double *out) {
    int32_t keys = (c->key_dim + 15) / 16 * 16, rows = (c->position + c->rows - 1) % CPU_DELTA_ROWS + 1;
    const float *k = state + (int64_t)c->key_dim * c->value_dim, *u = k + (int64_t)CPU_DELTA_ROWS * keys;
    const float *g = u + (int64_t)CPU_DELTA_ROWS * c->value_dim;
    for (int32_t a = 0; a < c->key_dim; a++)
        for (int32_t j = 0; j < c->value_dim; j++) {
            double s = state[(int64_t)a * c->value_dim + j];
            for (int32_t i = 0; i < rows; i++)
                s = s * g[i] + (double)k[i * keys + a] * u[(int64_t)i * c->value_dim + j];
            out[(int64_t)a * c->value_dim + j] = s;
        }
}

static cpu_delta delta_call(const delta_case *c, float *dst, float *state, float *scratch, int32_t first,
                            int32_t rows) {
    int64_t at = first * c->stride;
    return (cpu_delta){.q = c->x + at,
                       .k = c->x + at + c->key_dim,
                       .v = c->x + at + 2 * c->key_dim,
                       .x_stride = c->stride,
                       .z = c->z + at,
                       .z_stride = c->stride,
                       .beta = c->beta + at,
                       .alpha = c->alpha + at,
                       .beta_stride = c->stride,
                       .alpha_stride = c->stride,
                       .dst = dst + at,
                       .dst_stride = c->stride,
                       .state = state,
                       .kept = kept_of(c, state),
                       .decay = c->decay,
                       .dt_bias = c->dt_bias,
                       .norm = c->norm,
                       .norm_eps = 1e-6f,
                       .rows = rows,
                       .key_dim = c->key_dim,
                       .value_dim = c->value_dim,
                       .position = c->position + first,
                       .scratch = scratch};
}

/* What the rule makes of a case, in float64. */
typedef struct result {
    double *dst;   /* [rows][value_dim] */
    double *state; /* [key_dim][value_dim] */
} result;

static result result_new(const delta_case *c) {
    result out = {malloc((size_t)c->rows * (size_t)c->value_dim * sizeof(double)),
                  malloc((size_t)c->key_dim * (size_t)c->value_dim * sizeof(double))};
    for (int64_t i = 0; i < (int64_t)c->key_dim * c->value_dim; i++)
        out.state[i] = c->fresh ? 0 : c->state[i];
    return out;
}

static void result_free(result *r) {
    free(r->dst);
    free(r->state);
}

/* q (scaled) and k of a row, normalised. */
static void normalised(const delta_case *c, int32_t row, double *q, double *k) {
    const float *x = c->x + row * c->stride;
    double qq = 0, kk = 0;
    for (int32_t i = 0; i < c->key_dim; i++) {
        qq += (double)x[i] * x[i];
        kk += (double)x[c->key_dim + i] * x[c->key_dim + i];
    }
    for (int32_t i = 0; i < c->key_dim; i++) {
        q[i] = x[i] / sqrt(qq + 1e-6) / sqrt(c->key_dim);
        k[i] = x[c->key_dim + i] / sqrt(kk + 1e-6);
    }
}

static double log_decay(const delta_case *c, int32_t row) {
    double a = (double)c->alpha[row * c->stride] + c->dt_bias;
    return c->decay * (a > 30 ? a : log1p(exp(a)));
}

static double beta_of(const delta_case *c, int32_t row) {
    return 1 / (1 + exp(-(double)c->beta[row * c->stride]));
}

static double value_of(const delta_case *c, int32_t row, int32_t j) {
    return c->x[row * c->stride + 2 * c->key_dim + j];
}

static void gated_norm(const delta_case *c, int32_t row, double *o) {
    double sum = 0;
    for (int32_t j = 0; j < c->value_dim; j++)
        sum += o[j] * o[j];
    for (int32_t j = 0; j < c->value_dim; j++)
        o[j] = o[j] / sqrt(sum / c->value_dim + 1e-6) * c->norm[j] * silu(c->z[row * c->stride + j]);
}

/* Row after row, as the formulas of ops.h read. */
static result recurrent(const delta_case *c) {
    result out = result_new(c);
    double *q = malloc((size_t)c->key_dim * sizeof *q), *k = malloc((size_t)c->key_dim * sizeof *k);
    for (int32_t row = 0; row < c->rows; row++) {
        double *o = out.dst + (int64_t)row * c->value_dim, decay = exp(log_decay(c, row));
        normalised(c, row, q, k);
        for (int32_t j = 0; j < c->value_dim; j++) {
            double *s = out.state + j, seen = 0;
            for (int32_t i = 0; i < c->key_dim; i++) {
                s[(int64_t)i * c->value_dim] *= decay;
                seen += k[i] * s[(int64_t)i * c->value_dim];
            }
            o[j] = 0;
            for (int32_t i = 0; i < c->key_dim; i++) {
                s[(int64_t)i * c->value_dim] += k[i] * beta_of(c, row) * (value_of(c, row, j) - seen);
                o[j] += q[i] * s[(int64_t)i * c->value_dim];
            }
        }
        gated_norm(c, row, o);
    }
    free(q);
    free(k);
    return out;
}

enum { CHUNK = 64 };

/* n rows from `first` at once, in the chunked form: with G the running sum of log decays,
 *   u solves (I + L) u = beta (v - exp(G) k^T S),  L[i][j] = beta_i exp(G_i - G_j) k_i.k_j for j < i
 *   o = exp(G) q^T S + sum over j <= i of exp(G_i - G_j) q_i.k_j u_j,  S = exp(G_n) S + sum exp(G_n - G_j) k_j u_j^T */
static void chunk_of(const delta_case *c, int32_t first, int32_t n, result *out) {
    int32_t d = c->key_dim, m = c->value_dim;
    double *q = malloc((size_t)n * (size_t)d * sizeof *q), *k = malloc((size_t)n * (size_t)d * sizeof *k);
    double *u = malloc((size_t)n * (size_t)m * sizeof *u), sum[CHUNK];
    for (int32_t i = 0; i < n; i++) {
        normalised(c, first + i, q + i * d, k + i * d);
        sum[i] = (i ? sum[i - 1] : 0) + log_decay(c, first + i);
    }
    for (int32_t i = 0; i < n; i++)
        for (int32_t col = 0; col < m; col++) {
            double *o = out->dst + (int64_t)(first + i) * m, x = value_of(c, first + i, col), y = 0;
            for (int32_t a = 0; a < d; a++) {
                x -= exp(sum[i]) * k[i * d + a] * out->state[(int64_t)a * m + col];
                y += exp(sum[i]) * q[i * d + a] * out->state[(int64_t)a * m + col];
            }
            for (int32_t j = 0; j < i; j++) {
                double kk = 0, qk = 0;
                for (int32_t a = 0; a < d; a++) {
                    kk += k[i * d + a] * k[j * d + a];
                    qk += q[i * d + a] * k[j * d + a];
                }
                x -= exp(sum[i] - sum[j]) * kk * u[j * m + col];
                y += exp(sum[i] - sum[j]) * qk * u[j * m + col];
            }
            u[i * m + col] = beta_of(c, first + i) * x;
            for (int32_t a = 0; a < d; a++)
                y += q[i * d + a] * k[i * d + a] * u[i * m + col];
            o[col] = y;
        }
    for (int32_t a = 0; a < d; a++)
        for (int32_t col = 0; col < m; col++) {
            double *s = out->state + (int64_t)a * m + col;
            *s *= exp(sum[n - 1]);
            for (int32_t j = 0; j < n; j++)
                *s += exp(sum[n - 1] - sum[j]) * k[j * d + a] * u[j * m + col];
        }
    for (int32_t i = 0; i < n; i++)
        gated_norm(c, first + i, out->dst + (int64_t)(first + i) * m);
    free(q);
    free(k);
    free(u);
}

static result chunked(const delta_case *c) {
    result out = result_new(c);
    for (int32_t at = 0; at < c->rows; at += CHUNK)
        chunk_of(c, at, c->rows - at < CHUNK ? c->rows - at : CHUNK, &out);
    return out;
}

/* oracle: its state is whole as it is. */
static void compare(const delta_case *c, const float *dst, const float *state, const result *expected, double bound,
                    bool oracle, const char *what) {
    double *whole = malloc((size_t)c->key_dim * (size_t)c->value_dim * sizeof *whole);
    if (!oracle)
        whole_state(c, state, whole);
    for (int64_t i = 0; oracle && i < (int64_t)c->key_dim * c->value_dim; i++)
        whole[i] = state[i];
    for (int32_t row = 0; row < c->rows; row++)
        for (int32_t j = 0; j < c->value_dim; j++) {
            double e = expected->dst[(int64_t)row * c->value_dim + j], got = dst[row * c->stride + j];
            if (!(fabs(got - e) <= bound * (fabs(e) + 4)))
                fail_msg("%s %d x %d: row %d, value %d is %.9g, expected %.9g", what, c->key_dim, c->value_dim, row, j,
                         got, e);
        }
    for (int64_t i = 0; i < (int64_t)c->key_dim * c->value_dim; i++)
        if (!(fabs(whole[i] - expected->state[i]) <= bound * (fabs(expected->state[i]) + 1)))
            fail_msg("%s %d x %d: state %lld is %.9g, expected %.9g", what, c->key_dim, c->value_dim, (long long)i,
                     whole[i], expected->state[i]);
    free(whole);
}

typedef void (*delta_fn)(const cpu_delta *d);

/* dst and state of a call, or of several over pieces of the rows. */
static void run_delta(rng *r, const delta_case *c, delta_fn fn, bool pieces, float *dst, float *state) {
    float *scratch = aligned_alloc(64, sl_round_up(cpu_delta_scratch(c->key_dim, c->value_dim) * sizeof(float), 64));
    for (int64_t i = 0; i < c->rows * c->stride; i++)
        dst[i] = NAN;
    begin_state(c, state);
    for (int32_t at = 0, step; at < c->rows; at += step) {
        step = pieces ? 1 + (int32_t)rng_below(r, c->rows - at) : c->rows;
        cpu_delta call = delta_call(c, dst, state, scratch, at, step);
        fn(&call);
    }
    free(scratch);
}

static void delta_case_check(rng *r, const delta_case *c) {
    int64_t n = c->rows * c->stride, m = state_floats(c);
    float *dst = malloc((size_t)n * sizeof *dst), *state = malloc((size_t)m * sizeof *state);
    float *first = NULL, *first_state = NULL;
    result expected = recurrent(c);
    run_delta(r, c, cpu_delta_exact, false, dst, state);
    compare(c, dst, state, &expected, 2e-6, true, "exact");
    for (int k = 0; k < isa_count; k++) {
        run_delta(r, c, isas[k]->delta, false, dst, state);
        compare(c, dst, state, &expected, 2e-5, false, isas[k]->name);
        if (k == 0) {
            first = copy(dst, n);
            first_state = copy(state, m);
        }
        same_bits(dst, first, n, isas[k]->name);
        same_bits(state, first_state, m, isas[k]->name);
        run_delta(r, c, isas[k]->delta, true, dst, state);
        same_bits(dst, first, n, "delta in pieces");
        same_bits(state, first_state, m, "delta's state in pieces");
    }
    result_free(&expected);
    free(dst);
    free(state);
    free(first);
    free(first_state);
}

static void delta_is_right(void **state) {
    static const int32_t sizes[] = {1, 2, 3, 7, 15, 16, 17, 31, 33, 48, 63, 64, 65, 100, 128, 129};
    rng r = {seed};
    for (int i = 0; i < 60; i++) {
        int32_t key = sizes[rng_below(&r, SL_COUNT(sizes))], value = sizes[rng_below(&r, SL_COUNT(sizes))];
        delta_case c = delta_new(&r, 1 + (int32_t)rng_below(&r, i % 4 ? 5 : 40), key, value, i % 3 == 0);
        delta_case_check(&r, &c);
        delta_free(&c);
    }
    delta_case real = delta_new(&r, 19, 128, 128, false);
    delta_case_check(&r, &real);
    delta_free(&real);
}

static void chunked_form_is_the_same(void **state) {
    rng r = {seed + 1};
    static const int32_t rows[] = {1, 63, 64, 65, 200};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        delta_case c = delta_new(&r, rows[i], 16, 24, i % 2);
        int64_t n = c.rows * c.stride;
        float *dst = malloc((size_t)n * sizeof *dst), *s = malloc((size_t)state_floats(&c) * sizeof *s);
        result expected = chunked(&c);
        run_delta(&r, &c, isas[isa_count - 1]->delta, false, dst, s);
        compare(&c, dst, s, &expected, 1e-4, false, "chunked");
        result_free(&expected);
        free(dst);
        free(s);
        delta_free(&c);
    }
}

/* z and dst are one memory in the forward pass. */
static void delta_over_its_gate(void **state) {
    rng r = {seed + 2};
    delta_case c = delta_new(&r, 21, 33, 70, true);
    int64_t n = c.rows * c.stride, m = state_floats(&c);
    float *dst = malloc((size_t)n * sizeof *dst), *s = malloc((size_t)m * sizeof *s);
    float *scratch = aligned_alloc(64, sl_round_up(cpu_delta_scratch(c.key_dim, c.value_dim) * sizeof(float), 64));
    for (int k = -1; k < isa_count; k++) {
        delta_fn fn = k < 0 ? cpu_delta_exact : isas[k]->delta;
        run_delta(&r, &c, fn, false, dst, s);
        float *z = copy(c.z, n);
        cpu_delta call = delta_call(&c, z, s, scratch, 0, c.rows);
        call.z = z;
        fn(&call);
        for (int32_t row = 0; row < c.rows; row++) {
            same_bits(z + row * c.stride, dst + row * c.stride, c.value_dim, "delta over z");
            same_bits(z + row * c.stride + c.value_dim, c.z + row * c.stride + c.value_dim, c.stride - c.value_dim,
                      "gap");
        }
        free(z);
    }
    free(scratch);
    free(dst);
    free(s);
    delta_free(&c);
}

static void gates_of_extremes(void **state) {
    double g, b;
    cpu_delta_gates(-2, 0, 1e30f, 1e30f, &g, &b);
    assert_true(g == 0 && b == 1);
    cpu_delta_gates(-2, 0, -1e30f, -1e30f, &g, &b);
    assert_true(g == 1 && b == 0);
    cpu_delta_gates(-0.5f, 0, 1000, 0, &g, &b);
    assert_true(fabs(g - exp(-500.0)) <= 1e-12 * exp(-500.0) && b == 0.5);
    cpu_delta_gates(-3, 1, -30, 0, &g, &b);
    assert_true(g < 1 && fabs(1 - g - 3 * exp(-29.0)) < 2e-16);
    cpu_delta_gates(-1, 0, NAN, 0, &g, &b);
    assert_true(isnan(g));
    cpu_delta_gates(-1, 0, 0, NAN, &g, &b);
    assert_true(isnan(b));
}

/* A NaN or an infinity never gives a number that looks well; numbers whose squares overflow do. */
static void bad_numbers_pass_through(void **state) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    rng r = {seed + 3};
    for (int k = -1; k < isa_count; k++) {
        for (int i = 0; i < 12; i++) {
            delta_case c = delta_new(&r, 4, 20, 40, true);
            float *dst = malloc((size_t)(c.rows * c.stride) * sizeof *dst),
                  *s = malloc((size_t)state_floats(&c) * sizeof *s);
            float *operand[] = {c.x, c.x + 20, c.x + 40, c.z};
            operand[i % 4][c.stride + 7] = bad[i / 4];
            run_delta(&r, &c, k < 0 ? cpu_delta_exact : isas[k]->delta, false, dst, s);
            for (int j = 0; j < 40; j++) {
                assert_true(isfinite(dst[j]));
                if (i % 4 < 3)
                    assert_true(isnan(dst[c.stride + j]));
                if (i % 4 == 1) /* the state holds it */
                    assert_true(isnan(dst[2 * c.stride + j]));
            }
            assert_false(isfinite(dst[c.stride + 7]));
            free(dst);
            free(s);
            delta_free(&c);
        }
        delta_case c = delta_new(&r, 3, 20, 40, true);
        for (int i = 0; i < 40; i++)
            c.x[c.stride + i] *= 1e25f;
        result expected = recurrent(&c);
        float *dst = malloc((size_t)(c.rows * c.stride) * sizeof *dst),
              *s = malloc((size_t)state_floats(&c) * sizeof *s);
        run_delta(&r, &c, k < 0 ? cpu_delta_exact : isas[k]->delta, false, dst, s);
        compare(&c, dst, s, &expected, 2e-5, k < 0, "huge q and k");
        result_free(&expected);
        free(dst);
        free(s);
        delta_free(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolution_is_right),     cmocka_unit_test(delta_is_right),
        cmocka_unit_test(chunked_form_is_the_same), cmocka_unit_test(delta_over_its_gate),
        cmocka_unit_test(gates_of_extremes),        cmocka_unit_test(bad_numbers_pass_through),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}

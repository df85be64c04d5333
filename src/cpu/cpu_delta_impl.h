/* The delta rule of cpu_ops.h in chunks, included by cpu_ops_impl.h.
 *
 * A chunk is CPU_DELTA_ROWS rows that begin at a multiple of it in the sequence. The state stays what it was at the
 * chunk's start; what a row added is kept beside it as its key and its update u, and with the decays since the start
 * every row of the chunk reads
 *   S_i = G_i S + sum over j <= i of D_ij k_j u_j^T,   G_i = g_0 .. g_i,   D_ij = g_(j+1) .. g_i
 * The next chunk's first row folds them into the state. So a row's formula, and the order of its sums, is the same
 * whether it comes alone or with all of its chunk: alone it reads the state once and writes a row instead of reading
 * and writing the state; together, rows share what is loaded of the state. The decays are products of factors below 1:
 * nothing cancels or overflows.
 *
 * Columns of the state do not depend on each other, so how many are taken at a time is a matter of registers only. */
#ifndef SL_CPU_DELTA_IMPL_H
#define SL_CPU_DELTA_IMPL_H

#include "cpu/cpu_sixteen.h"

enum { DELTA_C = CPU_DELTA_ROWS };

/* How many rows and sixteens of columns read the state at a time: what registers hold. */
#if defined(__AVX512F__)
enum { READ_ROWS = 4, READ_WIDE = 2, ALONE_WIDE = 4, ALONE_KEYS = 8, FOLD_KEYS = 4, FOLD_WIDE = 4 };
#elif defined(__AVX2__)
enum { READ_ROWS = 2, READ_WIDE = 1, ALONE_WIDE = 2, ALONE_KEYS = 4, FOLD_KEYS = 4, FOLD_WIDE = 1 };
#else
enum { READ_ROWS = 2, READ_WIDE = 1, ALONE_WIDE = 1, ALONE_KEYS = 4, FOLD_KEYS = 4, FOLD_WIDE = 1 };
#endif
enum { DELTA_SLICE = 16 * ALONE_WIDE };

/* A chunk at work: [DELTA_C] rows each, of which those before `first` were there already. */
typedef struct delta_chunk {
    const cpu_delta *d;
    int32_t first, end;                   /* rows of the chunk that this call brings */
    int64_t row;                          /* of the call, that is row 0 of the chunk */
    int32_t keys;                         /* stride of q and k */
    float *q, *k;                         /* [keys]; zeros behind key_dim */
    float *u, *g;                         /* [value_dim]; one */
    float *o;                             /* [value_dim] */
    float *ks;                            /* [2][value_dim], of a row by itself */
    float (*kk)[DELTA_C], (*qk)[DELTA_C]; /* D_ij k_i.k_j, D_ij q_i.k_j */
    float b[DELTA_C], left[DELTA_C];      /* left: of the state before the chunk */
} delta_chunk;

/* ---- a row by itself --------------------------------------------------------------------------------------------- */

/* As rms_norm_huge. */
static void l2_norm_huge(float *dst, const float *src, int32_t n, float scale) {
    float max = largest_magnitude(src, n), sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += src[i] / max * (src[i] / max);
    float inv = 1.0f / sqrtf(sum);
    for (int32_t i = 0; i < n; i++)
        dst[i] = src[i] / max * inv * scale;
}

/* dst = src * scale / sqrt(sum src^2 + 1e-6), then zeros up to a multiple of 16 */
static void l2_norm(float *dst, const float *src, int32_t n, float scale) {
    float sum = sum_of_squares(src, n);
    memset(dst + n, 0, (size_t)(sl_round_up((uint64_t)n, 16) - (uint64_t)n) * sizeof *dst);
    if (!(sum <= FLT_MAX)) {
        l2_norm_huge(dst, src, n, scale);
        return;
    }
    float inv = 1.0f / sqrtf(sum + 1e-6f);
    for (int32_t i = 0; i < n; i++)
        dst[i] = src[i] * inv * scale;
}

static void delta_prepare(delta_chunk *c) {
    const cpu_delta *d = c->d;
    float scale = 1.0f / sqrtf((float)d->key_dim);
    for (int32_t i = c->first; i < c->end; i++) {
        int64_t row = c->row + i, at = (int64_t)i * c->keys;
        double g, beta;
        l2_norm(c->q + at, d->q + row * d->x_stride, d->key_dim, scale);
        l2_norm(c->k + at, d->k + row * d->x_stride, d->key_dim, 1.0f);
        cpu_delta_gates(d->decay, d->dt_bias, d->alpha[row * d->alpha_stride], d->beta[row * d->beta_stride], &g,
                        &beta);
        c->g[i] = (float)g;
        c->b[i] = (float)beta;
    }
}

/* ---- rows with rows ---------------------------------------------------------------------------------------------- */

V_INLINE v16 v16_of(sixteen x) {
    float f[16];
    sixteen_store(f, x);
    return v16_load(f);
}

/* k_i and q_i times k_j and the key after it: 16 partial sums by the key dimension mod 16 each, folded as v16_sum. */
static void delta_dots(const float *k, const float *q, const float *key, int32_t keys, float dots[4]) {
    sixteen sum[4] = {sixteen_zero(), sixteen_zero(), sixteen_zero(), sixteen_zero()};
    for (int32_t a = 0; a < keys; a += 16) {
        sixteen ka = sixteen_load((const uint8_t *)(k + a)), qa = sixteen_load((const uint8_t *)(q + a));
        sixteen one = sixteen_load((const uint8_t *)(key + a)), two = sixteen_load((const uint8_t *)(key + keys + a));
        sum[0] = sixteen_fma(ka, one, sum[0]);
        sum[1] = sixteen_fma(ka, two, sum[1]);
        sum[2] = sixteen_fma(qa, one, sum[2]);
        sum[3] = sixteen_fma(qa, two, sum[3]);
    }
    v4 all = v16_sum4(v16_of(sum[0]), v16_of(sum[1]), v16_of(sum[2]), v16_of(sum[3]));
    memcpy(dots, &all, sizeof all);
}

/* since[j] = D_ij, of row i from that of the row before it. */
static void delta_decay(float since[DELTA_C], int32_t i, float g) {
    for (int32_t j = 0; j < DELTA_C; j++)
        since[j] = since[j] * g;
    since[i] = 1.0f;
}

static void delta_pairs(delta_chunk *c) {
    float since[DELTA_C] = {0}, left = 1.0f;
    for (int32_t i = 0; i < c->end; i++) {
        delta_decay(since, i, c->g[i]);
        left = left * c->g[i];
        c->left[i] = left;
        for (int32_t j = 0; j <= i && i >= c->first; j += 2) {
            float dots[4];
            delta_dots(c->k + (int64_t)i * c->keys, c->q + (int64_t)i * c->keys, c->k + (int64_t)j * c->keys, c->keys,
                       dots);
            for (int32_t t = 0; t < 2; t++) { /* a key behind the row is whatever is there, and not read */
                c->kk[i][j + t] = dots[t] * since[j + t];
                c->qk[i][j + t] = dots[2 + t] * since[j + t];
            }
        }
    }
}

/* ---- rows with the state ----------------------------------------------------------------------------------------- */

/* ks, qs [R][slice]: R rows of k and q times W * 16 columns of the state, key dimensions ascending. */
V_INLINE void delta_read(int R, int W, const delta_chunk *c, int32_t row, const float *s, float *ks, float *qs) {
    sixteen k_sum[READ_ROWS][ALONE_WIDE], q_sum[READ_ROWS][ALONE_WIDE];
    const float *k = c->k + (int64_t)row * c->keys, *q = c->q + (int64_t)row * c->keys;
    int64_t stride = c->d->value_dim;
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int w = 0; w < W; w++)
            k_sum[r][w] = q_sum[r][w] = sixteen_zero();
    for (int32_t a = 0; a < c->d->key_dim; a++, s += stride) {
        sixteen x[ALONE_WIDE];
#pragma GCC unroll 4
        for (int w = 0; w < W; w++)
            x[w] = sixteen_load((const uint8_t *)(s + 16 * w));
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            sixteen ka = sixteen_set(k[r * c->keys + a]), qa = sixteen_set(q[r * c->keys + a]);
#pragma GCC unroll 4
            for (int w = 0; w < W; w++) {
                k_sum[r][w] = sixteen_fma(ka, x[w], k_sum[r][w]);
                q_sum[r][w] = sixteen_fma(qa, x[w], q_sum[r][w]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) {
            sixteen_store(ks + r * DELTA_SLICE + 16 * w, k_sum[r][w]);
            sixteen_store(qs + r * DELTA_SLICE + 16 * w, q_sum[r][w]);
        }
}

/* The same of one column. */
static void delta_read_one(const delta_chunk *c, int32_t row, const float *s, float *ks, float *qs) {
    const float *k = c->k + (int64_t)row * c->keys, *q = c->q + (int64_t)row * c->keys;
    float k_sum = 0, q_sum = 0;
    for (int32_t a = 0; a < c->d->key_dim; a++) {
        k_sum = fmaf(k[a], s[(int64_t)a * c->d->value_dim], k_sum);
        q_sum = fmaf(q[a], s[(int64_t)a * c->d->value_dim], q_sum);
    }
    *ks = k_sum;
    *qs = q_sum;
}

/* u = b (v - (left ks + sum of kk u)), o = left qs + sum of qk u, for W * 16 columns of row i. */
V_INLINE void delta_row(int W, delta_chunk *c, int32_t i, int32_t column, const float *ks, const float *qs) {
    int64_t stride = c->d->value_dim;
    const float *v = c->d->v + (c->row + i) * c->d->x_stride + column;
    float *u = c->u + column;
    sixteen seen[ALONE_WIDE], o[ALONE_WIDE], left = sixteen_set(c->left[i]);
#pragma GCC unroll 4
    for (int w = 0; w < W; w++) {
        seen[w] = sixteen_mul(left, sixteen_load((const uint8_t *)(ks + 16 * w)));
        o[w] = sixteen_mul(left, sixteen_load((const uint8_t *)(qs + 16 * w)));
    }
    for (int32_t j = 0; j < i; j++) {
        sixteen kk = sixteen_set(c->kk[i][j]), qk = sixteen_set(c->qk[i][j]);
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) {
            sixteen x = sixteen_load((const uint8_t *)(u + j * stride + 16 * w));
            seen[w] = sixteen_fma(kk, x, seen[w]);
            o[w] = sixteen_fma(qk, x, o[w]);
        }
    }
    sixteen beta = sixteen_set(c->b[i]), minus = sixteen_set(-1.0f), own = sixteen_set(c->qk[i][i]);
#pragma GCC unroll 4
    for (int w = 0; w < W; w++) {
        sixteen x = sixteen_fma(minus, seen[w], sixteen_load((const uint8_t *)(v + 16 * w)));
        x = sixteen_mul(beta, x);
        sixteen_store(u + i * stride + 16 * w, x);
        sixteen_store(c->o + i * stride + column + 16 * w, sixteen_fma(own, x, o[w]));
    }
}

/* The same of one column. */
static void delta_row_one(delta_chunk *c, int32_t i, int32_t column, float ks, float qs) {
    int64_t stride = c->d->value_dim;
    float *u = c->u + column, seen = c->left[i] * ks, o = c->left[i] * qs;
    for (int32_t j = 0; j < i; j++) {
        seen = fmaf(c->kk[i][j], u[j * stride], seen);
        o = fmaf(c->qk[i][j], u[j * stride], o);
    }
    u[i * stride] = c->b[i] * fmaf(-1.0f, seen, c->d->v[(c->row + i) * c->d->x_stride + column]);
    c->o[i * stride + column] = fmaf(c->qk[i][i], u[i * stride], o);
}

/* Columns [column, column + 16 * W) of the new rows; rows that come together share loads of the state. */
V_INLINE void delta_slice(int W, delta_chunk *c, int32_t column) {
    float ks[DELTA_C][DELTA_SLICE], qs[DELTA_C][DELTA_SLICE];
    const float *s = c->d->state + column;
    int32_t i = c->first;
    for (; i + READ_ROWS <= c->end; i += READ_ROWS)
        for (int32_t w = 0; w < W; w += READ_WIDE) {
            if (W % READ_WIDE == 0)
                delta_read(READ_ROWS, READ_WIDE, c, i, s + 16 * w, &ks[i][16 * w], &qs[i][16 * w]);
            else
                delta_read(READ_ROWS, 1, c, i, s + 16 * w, &ks[i][16 * w], &qs[i][16 * w]);
        }
    for (; i < c->end; i++)
        delta_read(1, W, c, i, s, ks[i], qs[i]);
    for (i = c->first; i < c->end; i++)
        delta_row(W, c, i, column, ks[i], qs[i]);
}

/* ks, qs += N rows of the state times their numbers of k and q. */
V_INLINE void delta_read_keys(int N, const float *k, const float *q, const float *s, int64_t stride, int32_t columns,
                              float *ks, float *qs) {
    sixteen ka[ALONE_KEYS], qa[ALONE_KEYS];
#pragma GCC unroll 8
    for (int t = 0; t < N; t++) {
        ka[t] = sixteen_set(k[t]);
        qa[t] = sixteen_set(q[t]);
    }
    for (int32_t column = 0; column < columns; column += 16) {
        sixteen k_sum = sixteen_load((const uint8_t *)(ks + column));
        sixteen q_sum = sixteen_load((const uint8_t *)(qs + column));
#pragma GCC unroll 8
        for (int t = 0; t < N; t++) {
            sixteen x = sixteen_load((const uint8_t *)(s + t * stride + column));
            k_sum = sixteen_fma(ka[t], x, k_sum);
            q_sum = sixteen_fma(qa[t], x, q_sum);
        }
        sixteen_store(ks + column, k_sum);
        sixteen_store(qs + column, q_sum);
    }
}

/* ks, qs [value_dim rounded down to 16] of one row: the state goes by once, in the order of memory. */
static void delta_read_alone(const delta_chunk *c, int32_t row, float *ks, float *qs) {
    const float *k = c->k + (int64_t)row * c->keys, *q = c->q + (int64_t)row * c->keys;
    int32_t n = c->d->value_dim / 16 * 16, a = 0;
    int64_t stride = c->d->value_dim;
    memset(ks, 0, (size_t)n * sizeof *ks);
    memset(qs, 0, (size_t)n * sizeof *qs);
    for (; a + ALONE_KEYS <= c->d->key_dim; a += ALONE_KEYS)
        delta_read_keys(ALONE_KEYS, k + a, q + a, c->d->state + a * stride, stride, n, ks, qs);
    for (; a < c->d->key_dim; a++)
        delta_read_keys(1, k + a, q + a, c->d->state + a * stride, stride, n, ks, qs);
}

static void delta_columns(delta_chunk *c) {
    int32_t column = 0, n = c->d->value_dim;
    if (c->end - c->first == 1) {
        float *ks = c->ks, *qs = ks + n;
        delta_read_alone(c, c->first, ks, qs);
        for (; column + DELTA_SLICE <= n; column += DELTA_SLICE)
            delta_row(ALONE_WIDE, c, c->first, column, ks + column, qs + column);
        for (; column + 16 <= n; column += 16)
            delta_row(1, c, c->first, column, ks + column, qs + column);
    }
    for (; column + DELTA_SLICE <= n; column += DELTA_SLICE)
        delta_slice(ALONE_WIDE, c, column);
    for (; column + 16 <= n; column += 16)
        delta_slice(1, c, column);
    for (; column < n; column++)
        for (int32_t i = c->first; i < c->end; i++) {
            float ks, qs;
            delta_read_one(c, i, c->d->state + column, &ks, &qs);
            delta_row_one(c, i, column, ks, qs);
        }
}

/* dst = rms_norm(o) * silu(z); z may be dst */
static void delta_finish(const delta_chunk *c) {
    const cpu_delta *d = c->d;
    for (int32_t i = c->first; i < c->end; i++) {
        float *o = c->o + (int64_t)i * d->value_dim;
        rms_norm(o, o, d->norm, d->value_dim, d->norm_eps);
        v16_silu_mul(d->dst + (c->row + i) * d->dst_stride, d->z + (c->row + i) * d->z_stride, o, d->value_dim);
    }
}

/* ---- the end of a chunk ------------------------------------------------------------------------------------------ */

/* D rows of the state and W * 16 columns: S = left S, then the chunk's rows in their order. */
V_INLINE void delta_fold_tile(int D, int W, const delta_chunk *c, const float *u, int64_t u_stride, int32_t a,
                              int32_t column, float left) {
    sixteen sum[FOLD_KEYS][FOLD_WIDE], decay = sixteen_set(left);
    float *s = c->d->state + (int64_t)a * c->d->value_dim + column;
    int64_t stride = c->d->value_dim;
#pragma GCC unroll 4
    for (int t = 0; t < D; t++)
#pragma GCC unroll 4
        for (int w = 0; w < W; w++)
            sum[t][w] = sixteen_mul(sixteen_load((const uint8_t *)(s + t * stride + 16 * w)), decay);
    for (int32_t j = 0; j < DELTA_C; j++) {
        sixteen x[FOLD_WIDE];
#pragma GCC unroll 4
        for (int w = 0; w < W; w++)
            x[w] = sixteen_load((const uint8_t *)(u + j * u_stride + 16 * w));
#pragma GCC unroll 4
        for (int t = 0; t < D; t++) {
            sixteen key = sixteen_set(c->k[(int64_t)j * c->keys + a + t]);
#pragma GCC unroll 4
            for (int w = 0; w < W; w++)
                sum[t][w] = sixteen_fma(key, x[w], sum[t][w]);
        }
    }
#pragma GCC unroll 4
    for (int t = 0; t < D; t++)
#pragma GCC unroll 4
        for (int w = 0; w < W; w++)
            sixteen_store(s + t * stride + 16 * w, sum[t][w]);
}

V_INLINE void delta_fold_slice(int W, const delta_chunk *c, int32_t column, const float *since, float left) {
    float u[DELTA_C][16 * FOLD_WIDE];
    for (int32_t j = 0; j < DELTA_C; j++)
        for (int w = 0; w < W; w++)
            sixteen_store(
                &u[j][16 * w],
                sixteen_mul(sixteen_load((const uint8_t *)(c->u + (int64_t)j * c->d->value_dim + column + 16 * w)),
                            sixteen_set(since[j])));
    int32_t a = 0;
    for (; a + FOLD_KEYS <= c->d->key_dim; a += FOLD_KEYS)
        delta_fold_tile(FOLD_KEYS, W, c, u[0], 16 * FOLD_WIDE, a, column, left);
    for (; a < c->d->key_dim; a++)
        delta_fold_tile(1, W, c, u[0], 16 * FOLD_WIDE, a, column, left);
}

static void delta_fold_one(const delta_chunk *c, int32_t column, const float *since, float left) {
    int64_t stride = c->d->value_dim;
    for (int32_t a = 0; a < c->d->key_dim; a++) {
        float *s = c->d->state + a * stride + column, sum = *s * left;
        for (int32_t j = 0; j < DELTA_C; j++)
            sum = fmaf(c->k[(int64_t)j * c->keys + a], c->u[j * stride + column] * since[j], sum);
        *s = sum;
    }
}

/* The rows of the chunk before this one go into the state. */
static void delta_fold(const delta_chunk *c) {
    float since[DELTA_C] = {0}, left = 1.0f;
    for (int32_t i = 0; i < DELTA_C; i++) {
        delta_decay(since, i, c->g[i]);
        left = left * c->g[i];
    }
    int32_t column = 0, n = c->d->value_dim;
    for (; column + 16 * FOLD_WIDE <= n; column += 16 * FOLD_WIDE)
        delta_fold_slice(FOLD_WIDE, c, column, since, left);
    for (; column + 16 <= n; column += 16)
        delta_fold_slice(1, c, column, since, left);
    for (; column < n; column++)
        delta_fold_one(c, column, since, left);
}

static void delta(const cpu_delta *d) {
    delta_chunk c = {.d = d, .keys = (int32_t)sl_round_up((uint64_t)d->key_dim, 16), .q = d->scratch, .k = d->kept};
    c.u = c.k + (int64_t)DELTA_C * c.keys;
    c.g = c.u + (int64_t)DELTA_C * d->value_dim;
    c.o = c.q + (int64_t)DELTA_C * c.keys;
    c.ks = c.o + (int64_t)DELTA_C * d->value_dim;
    c.kk = (float(*)[DELTA_C])(c.ks + 2 * (int64_t)d->value_dim);
    c.qk = c.kk + DELTA_C;
    for (int32_t done = 0; done < d->rows; done += c.end - c.first) {
        int32_t position = d->position + done;
        c.first = position % DELTA_C;
        c.row = done - c.first;
        c.end = d->rows - c.row < DELTA_C ? (int32_t)(d->rows - c.row) : DELTA_C;
        if (position == 0)
            memset(d->state, 0, (size_t)d->key_dim * (size_t)d->value_dim * sizeof(float));
        else if (c.first == 0)
            delta_fold(&c);
        delta_prepare(&c);
        delta_pairs(&c);
        delta_columns(&c);
        delta_finish(&c);
    }
}

#endif

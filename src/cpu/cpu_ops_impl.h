/* The kernels of cpu_ops.h, included by one file per instruction set with CPU_OPS_NAME and CPU_OPS_TABLE defined.
 *
 * Orders of addition, the same everywhere: sums over a vector go into 16 lanes by index mod 16 and then v16_sum;
 * attention scores per key alike; softmax over the keys of a page in 16 lanes by token mod 16; values are added in
 * ascending token order; pages of one 512-token split online in ascending order, splits merged in ascending order. So a
 * row's result depends on nothing but its own sequence.
 *
 * A NaN or an infinity in the input comes out as NaN, never as a plausible number: comparisons are written so that they
 * let it through. */
#include "cpu/cpu_math.h"
#include "cpu/cpu_ops.h"
#include "cpu/cpu_vec.h"

#include <float.h>
#include <math.h>

static v16 load_upto(const float *p, int64_t n) {
    return n >= 16 ? v16_load(p) : v16_load_part(p, (int)n);
}

static float sum_of_squares(const float *x, int32_t n) {
    v16 acc = v16_set(0);
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 v = v16_load(x + i);
        acc = acc + v * v;
    }
    if (i < n) {
        v16 v = v16_load_part(x + i, n - i);
        acc = acc + v * v;
    }
    return v16_sum(acc);
}

static float largest_magnitude(const float *x, int32_t n) {
    float m = 0;
    for (int32_t i = 0; i < n; i++)
        m = fabsf(x[i]) > m ? fabsf(x[i]) : m;
    return m;
}

/* Of numbers whose squares leave float's range (or of NaN and infinities): scaled down by the largest first. */
static void rms_norm_huge(float *dst, const float *src, const float *weight, int32_t n, float eps) {
    float max = largest_magnitude(src, n), sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += src[i] / max * (src[i] / max);
    float inv = 1.0f / sqrtf(sum / (float)n + eps / max / max);
    for (int32_t i = 0; i < n; i++)
        dst[i] = src[i] / max * inv * weight[i];
}

static void rms_norm(float *dst, const float *src, const float *weight, int32_t n, float eps) {
    float sum = sum_of_squares(src, n);
    if (!(sum <= FLT_MAX)) {
        rms_norm_huge(dst, src, weight, n, eps);
        return;
    }
    float inv = 1.0f / sqrtf(sum / (float)n + eps);
    for (int32_t i = 0; i < n; i++)
        dst[i] = src[i] * inv * weight[i];
}

static void rope(float *x, int32_t dims, bool interleaved, const float *cos, const float *sin) {
    int32_t half = dims / 2;
    int32_t step = interleaved ? 2 : 1, far = interleaved ? 1 : half;
    for (int32_t i = 0; i < half; i++) {
        float a = x[i * step], b = x[i * step + far];
        x[i * step] = a * cos[i] - b * sin[i];
        x[i * step + far] = b * cos[i] + a * sin[i];
    }
}

static void add(float *dst, const float *src, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        dst[i] = dst[i] + src[i];
}

static void axpy(float *dst, const float *src, float w, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        dst[i] = dst[i] + src[i] * w;
}

/* ---- KV pages ------------------------------------------------------------------------------------------------------
 */

/* A block that holds a NaN or an infinity gets a NaN as its scale. Below 2^-100 (a scale of 0 in half precision anyway)
 * the reciprocal would overflow. */
static void store_q8(uint8_t *dst, const float *x) {
    float amax = 0, finite = 0;
    for (int i = 0; i < 32; i++) {
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
        finite += x[i] - x[i];
    }
    bool plain = finite == 0 && amax >= 0x1p-100f;
    float d = finite == 0 ? amax / 127.0f : NAN, id = plain ? 127.0f / amax : 0.0f;
    uint16_t h = sl_f32_to_f16(d);
    memcpy(dst, &h, 2);
    for (int i = 0; i < 32; i++)
        dst[2 + i] = plain ? (uint8_t)(int8_t)lrintf(x[i] * id) : 0;
}

static void kv_store(uint8_t *dst, const float *x, int32_t head_dim, cpu_kv_type type) {
    if (type == CPU_KV_F32) {
        memcpy(dst, x, (size_t)head_dim * 4);
        return;
    }
    if (type == CPU_KV_Q8_0) {
        for (int32_t i = 0; i < head_dim; i += 32)
            store_q8(dst + i / 32 * 34, x + i);
        return;
    }
    for (int32_t i = 0; i < head_dim; i++) {
        uint16_t h = sl_f32_to_f16(x[i]);
        memcpy(dst + 2 * i, &h, 2);
    }
}

static void expand_q8(float *out, const uint8_t *p, int32_t head_dim) {
    for (int32_t b = 0; b < head_dim / 32; b++, p += 34, out += 32) {
        uint16_t h;
        memcpy(&h, p, 2);
        float d = sl_f16_to_f32(h);
        for (int i = 0; i < 32; i++)
            out[i] = d * (float)(int8_t)p[2 + i];
    }
}

static void expand_f16(float *out, const uint8_t *p, int32_t head_dim) {
    int32_t i = 0;
    for (; i + 16 <= head_dim; i += 16)
        v16_store(out + i, v16_load_f16(p + 2 * i));
    for (; i < head_dim; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        out[i] = sl_f16_to_f32(h);
    }
}

/* The first n tokens of a page plane as floats [n][head_dim]; f32 pages are used as they are. */
static const float *expand_page(float *out, const uint8_t *plane, int32_t n, const cpu_attention *a) {
    if (a->type == CPU_KV_F32)
        return (const float *)(const void *)plane;
    for (int32_t t = 0; t < n; t++) {
        const uint8_t *p = plane + (uint64_t)t * a->head_bytes;
        if (a->type == CPU_KV_Q8_0)
            expand_q8(out + (int64_t)t * a->head_dim, p, a->head_dim);
        else
            expand_f16(out + (int64_t)t * a->head_dim, p, a->head_dim);
    }
    return out;
}

/* ---- attention -----------------------------------------------------------------------------------------------------
 */

/* Running softmax of one query: maximum, sum of exponentials (0: nothing added yet; the maximum itself adds 1),
 * weighted sum of values. */
typedef struct partial {
    float max, sum;
    float *acc;
} partial;

static float dot(const float *a, const float *b, int32_t n) {
    v16 acc = v16_set(0);
    int32_t i = 0;
    for (; i + 16 <= n; i += 16)
        acc = acc + v16_load(a + i) * v16_load(b + i);
    if (i < n)
        acc = acc + v16_load_part(a + i, n - i) * v16_load_part(b + i, n - i);
    return v16_sum(acc);
}

/* s[i][t] = scale * dot(q[i], k[t]) for Q queries whose rows of q are q_head apart: four keys at once share the loads
 * of q and the sum over lanes, two queries share those of k. */
V_INLINE void scores_of(int Q, float *s, const float *q, int64_t q_head, const float *k, int32_t tokens, int32_t dim,
                        float scale) {
    int32_t t = 0;
    for (; t + 4 <= tokens && dim % 16 == 0; t += 4) {
        const float *row = k + (int64_t)t * dim;
        v16 sum[2][4] = {{{0}}};
        for (int32_t i = 0; i < dim; i += 16)
#pragma GCC unroll 4
            for (int u = 0; u < 4; u++) {
                v16 key = v16_load(row + (int64_t)u * dim + i);
#pragma GCC unroll 2
                for (int c = 0; c < Q; c++)
                    sum[c][u] = sum[c][u] + v16_load(q + c * q_head + i) * key;
            }
#pragma GCC unroll 2
        for (int c = 0; c < Q; c++) {
            v4 four = v16_sum4(sum[c][0], sum[c][1], sum[c][2], sum[c][3]) * (v4){scale, scale, scale, scale};
            memcpy(s + c * CPU_KV_PAGE + t, &four, sizeof four);
        }
    }
    for (; t < tokens; t++)
        for (int c = 0; c < Q; c++)
            s[c * CPU_KV_PAGE + t] = dot(q + c * q_head, k + (int64_t)t * dim, dim) * scale;
}

/* acc[i] = acc[i] * keep[i] + sum over tokens of p[i][t] * v[t] for Q queries, tokens ascending. Blocks of 64
 * dimensions stay in registers over the tokens. */
V_INLINE void accumulate_values(int Q, float *const *acc, const float *keep, const float *p, const float *v,
                                int32_t tokens, int32_t dim, int32_t stride) {
    int32_t i = 0;
    for (; i + 64 <= dim; i += 64) {
        v16 sum[2][4];
        for (int c = 0; c < Q; c++)
            for (int u = 0; u < 4; u++)
                sum[c][u] = v16_load(acc[c] + i + 16 * u) * v16_set(keep[c]);
        for (int32_t t = 0; t < tokens; t++) {
            const float *row = v + (int64_t)t * stride + i;
#pragma GCC unroll 4
            for (int u = 0; u < 4; u++) {
                v16 value = v16_load(row + 16 * u);
#pragma GCC unroll 2
                for (int c = 0; c < Q; c++)
                    sum[c][u] = sum[c][u] + v16_set(p[c * CPU_KV_PAGE + t]) * value;
            }
        }
        for (int c = 0; c < Q; c++)
            for (int u = 0; u < 4; u++)
                v16_store(acc[c] + i + 16 * u, sum[c][u]);
    }
    for (; i < dim; i++)
        for (int c = 0; c < Q; c++) {
            float a = acc[c][i] * keep[c];
            for (int32_t t = 0; t < tokens; t++)
                a = a + p[c * CPU_KV_PAGE + t] * v[(int64_t)t * stride + i];
            acc[c][i] = a;
        }
}

static float exp_one(float x) {
    return v16_exp(v16_set(x))[0];
}

/* s[0..n) -> exp(s - max); returns the sum in 16 lanes. */
static float exponentials(float *s, int32_t n, float max) {
    v16 acc = v16_set(0);
    for (int32_t i = 0; i < n; i += 16) {
        v16 e = v16_exp(load_upto(s + i, n - i) - v16_set(max));
        if (n - i < 16) {
            v16i lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
            v16i limit = (v16i){0} + (n - i);
            e = v16_select(lane < limit, e, v16_set(0));
            float tail[16];
            v16_store(tail, e);
            memcpy(s + i, tail, (size_t)(n - i) * sizeof *s);
        } else
            v16_store(s + i, e);
        acc = acc + e;
    }
    return v16_sum(acc);
}

static float maximum(const float *x, int32_t n) {
    float m = x[0];
    int32_t i = 0;
    if (n >= 16) {
        v16 lanes = v16_load(x);
        for (i = 16; i + 16 <= n; i += 16)
            lanes = v16_max(lanes, v16_load(x + i));
        m = v16_max_lane(lanes);
    }
    for (; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

/* Takes tokens scores s into the running softmax, which leaves their exponentials there; returns what the sums so far
 * are to be multiplied with. */
static float take_scores(partial *st, float *s, int32_t tokens) {
    float m = maximum(s, tokens);
    float max = st->sum != 0 && st->max > m ? st->max : m;
    float keep = st->sum != 0 ? exp_one(st->max - max) : 0.0f;
    st->sum = st->sum * keep + exponentials(s, tokens, max);
    st->max = max;
    return keep;
}

/* total <- total + part; part is emptied. */
static void merge(partial *total, partial *part, int32_t dim) {
    if (part->sum != 0) {
        float max = total->sum != 0 && total->max > part->max ? total->max : part->max;
        float kt = total->sum != 0 ? exp_one(total->max - max) : 0.0f, kp = exp_one(part->max - max);
        for (int32_t i = 0; i < dim; i++)
            total->acc[i] = total->acc[i] * kt + part->acc[i] * kp;
        total->sum = total->sum * kt + part->sum * kp;
        total->max = max;
    }
    part->sum = 0;
    memset(part->acc, 0, (size_t)dim * sizeof *part->acc);
}

/* Scratch: K tile, V tile, scores, then per query {total, part} accumulators and their max and sum. */
typedef struct scratch_map {
    float *k, *v, *s, *acc, *state;
} scratch_map;

enum { STATE_FLOATS = 16 }; /* per query: max and sum of total, of part; a cache line */

static scratch_map map_scratch(const cpu_attention *a) {
    scratch_map m;
    int64_t tile = (int64_t)CPU_KV_PAGE * a->head_dim, queries = (int64_t)a->rows * a->group;
    m.k = a->scratch;
    m.v = m.k + tile;
    m.s = m.v + tile;
    m.acc = m.s + (int64_t)a->group * CPU_KV_PAGE;
    m.state = m.acc + queries * 2 * a->head_dim;
    memset(m.acc, 0, (size_t)(queries * (2 * a->head_dim + STATE_FLOATS)) * sizeof(float));
    return m;
}

static partial load_partial(const scratch_map *m, const cpu_attention *a, int64_t query, int which) {
    float *s = m->state + query * STATE_FLOATS + which * 2;
    return (partial){s[0], s[1], m->acc + (query * 2 + which) * a->head_dim};
}

static void save_partial(const scratch_map *m, int64_t query, int which, const partial *p) {
    float *s = m->state + query * STATE_FLOATS + which * 2;
    s[0] = p->max;
    s[1] = p->sum;
}

/* Asks for part i of n of the next page's K and V, so that they come from memory while this page is computed: the
 * hardware does not look past a page's end. */
static void prefetch_part(const cpu_attention *a, const uint8_t *const plane[2], int64_t i, int64_t n) {
    int64_t bytes = CPU_KV_PAGE * (int64_t)a->head_bytes, end = bytes * (i + 1) / n;
    for (int p = 0; p < 2; p++)
        for (int64_t at = bytes * i / n / 64 * 64; at < end; at += 64)
            __builtin_prefetch(plane[p] + at, 0, 2);
}

static int64_t head_step(const cpu_attention *a) {
    return a->q_head ? a->q_head : a->head_dim;
}

/* One row's queries over a page: all scores while the keys are in the nearest cache, then all values. */
static void attend_row(const cpu_attention *a, const scratch_map *m, int32_t r, const float *k, const float *v,
                       int32_t tokens) {
    const float *q = a->q + r * a->q_stride;
    int64_t q_head = head_step(a);
    int32_t g = 0;
    for (; g + 2 <= a->group; g += 2)
        scores_of(2, m->s + g * CPU_KV_PAGE, q + g * q_head, q_head, k, tokens, a->head_dim, a->scale);
    if (g < a->group)
        scores_of(1, m->s + g * CPU_KV_PAGE, q + g * q_head, q_head, k, tokens, a->head_dim, a->scale);
    for (g = 0; g < a->group; g += 2) {
        float *acc[2], keep[2];
        int n = g + 2 <= a->group ? 2 : 1;
        for (int c = 0; c < n; c++) {
            int64_t query = (int64_t)r * a->group + g + c;
            partial part = load_partial(m, a, query, 1);
            keep[c] = take_scores(&part, m->s + (g + c) * CPU_KV_PAGE, tokens);
            acc[c] = part.acc;
            save_partial(m, query, 1, &part);
        }
        if (n == 2)
            accumulate_values(2, acc, keep, m->s + g * CPU_KV_PAGE, v, tokens, a->value_dim, a->head_dim);
        else
            accumulate_values(1, acc, keep, m->s + g * CPU_KV_PAGE, v, tokens, a->value_dim, a->head_dim);
    }
}

/* The first position that row r sees. */
static int32_t first_seen(const cpu_attention *a, int32_t r) {
    return a->window > 0 && a->position + r >= a->window ? a->position + r + 1 - a->window : 0;
}

static void attend_page(const cpu_attention *a, const scratch_map *m, int32_t page, int32_t last) {
    const uint8_t *kp, *vp, *next[2];
    int32_t first = page * CPU_KV_PAGE;
    int32_t filled = (int32_t)sl_min_i64(CPU_KV_PAGE, a->position + a->rows - first);
    a->page(a->ctx, page, &kp, &vp);
    const float *k = expand_page(m->k, kp, filled, a);
    const float *v = vp == kp ? k : expand_page(m->v, vp, filled, a);
    if (page < last)
        a->page(a->ctx, page + 1, &next[0], &next[1]);
    for (int32_t r = 0; r < a->rows; r++) {
        int32_t tokens = (int32_t)sl_min_i64(CPU_KV_PAGE, a->position + r + 1 - first);
        int32_t from = (int32_t)sl_max_i64(0, first_seen(a, r) - first);
        if (page < last)
            prefetch_part(a, next, r, a->rows);
        if (tokens > from)
            attend_row(a, m, r, k + (int64_t)from * a->head_dim, v + (int64_t)from * a->head_dim, tokens - from);
    }
}

static void merge_split(const cpu_attention *a, const scratch_map *m) {
    for (int64_t query = 0; query < (int64_t)a->rows * a->group; query++) {
        partial total = load_partial(m, a, query, 0), part = load_partial(m, a, query, 1);
        merge(&total, &part, a->value_dim);
        save_partial(m, query, 0, &total);
        save_partial(m, query, 1, &part);
    }
}

/* A sink is one more score in the softmax, taken last. */
static void take_sink(partial *total, float sink, int32_t dim) {
    float max = total->max > sink ? total->max : sink, keep = exp_one(total->max - max);
    total->sum = total->sum * keep + exp_one(sink - max);
    for (int32_t i = 0; i < dim; i++)
        total->acc[i] = total->acc[i] * keep;
}

static void attention(const cpu_attention *a) {
    scratch_map m = map_scratch(a);
    int32_t last = (a->position + a->rows - 1) / CPU_KV_PAGE;
    for (int32_t page = first_seen(a, 0) / CPU_KV_PAGE; page <= last; page++) {
        attend_page(a, &m, page, last);
        if (page == last || (page + 1) % (CPU_KV_SPLIT / CPU_KV_PAGE) == 0)
            merge_split(a, &m);
    }
    for (int32_t r = 0; r < a->rows; r++)
        for (int32_t g = 0; g < a->group; g++) {
            partial total = load_partial(&m, a, (int64_t)r * a->group + g, 0);
            if (a->sinks)
                take_sink(&total, a->sinks[g], a->value_dim);
            float inv = 1.0f / total.sum;
            float *dst = a->dst + r * a->dst_stride + (int64_t)g * a->value_dim;
            for (int32_t i = 0; i < a->value_dim; i++)
                dst[i] = total.acc[i] * inv;
            if (a->gate)
                v16_sigmoid_mul(dst, a->gate + r * a->gate_stride + g * head_step(a), a->head_dim);
        }
}

static float softmax_numerators(float *x, int32_t n) {
    return exponentials(x, n, maximum(x, n));
}

static bool all_finite(const float *x, int64_t n) {
    v16i bad = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 v = v16_load(x + i);
        v16 z = v - v; /* NaN for infinities and NaN */
        bad |= z != z;
    }
    for (; i < n; i++)
        bad[0] |= x[i] - x[i] != 0;
    for (int j = 0; j < 16; j++)
        if (bad[j])
            return false;
    return true;
}

#include "cpu/cpu_conv_impl.h"
#include "cpu/cpu_delta_impl.h"

const cpu_ops CPU_OPS_TABLE = {.name = CPU_OPS_NAME,
                               .rms_norm = rms_norm,
                               .rope = rope,
                               .add = add,
                               .axpy = axpy,
                               .kv_store = kv_store,
                               .attention = attention,
                               .conv = conv,
                               .delta = delta,
                               .softmax_numerators = softmax_numerators,
                               .all_finite = all_finite};

/* Quantisers to MLX's affine groups: its own rule (from the range), and a search for the least error. */
#include "quant/quant_bits.h"
#include "quant/quant_rows.h"

#include <math.h>

/* 2^23: added to 0 .. 2^22 it leaves the nearest integer, ties to even, in the low bits of the sum. */
#define ROUND 8388608.0f

/* ---- storing ----------------------------------------------------------------------------------------------------- */

/* v as a side type can hold it. */
static float as_stored(float v, sl_format_id side) {
    switch (side) {
    case SL_F16:
        return sl_f16_to_f32(sl_f32_to_f16(v));
    case SL_BF16:
        return sl_bf16_to_f32(sl_f32_to_bf16(v));
    default:
        return v;
    }
}

static void put_side(float v, sl_format_id side, uint8_t *base, int64_t index) {
    switch (side) {
    case SL_F16:
        quant_put_u16(base + 2 * index, sl_f32_to_f16(v));
        break;
    case SL_BF16:
        quant_put_u16(base + 2 * index, sl_f32_to_bf16(v));
        break;
    default:
        memcpy(base + 4 * index, &v, sizeof v);
    }
}

/* Held within the codes before rounding, so that all of it is arithmetic without branches; NaN is 0. */
static void put_codes(const float *x, int group, int bits, float scale, float bias, uint8_t *out) {
    float top = (float)((1 << bits) - 1);
    for (int i = 0; i < group; i += 8, out += bits) {
        uint32_t q[8];
        uint64_t eight = 0;
        for (int k = 0; k < 8; k++) {
            float v = (x[i + k] - bias) / scale;
            v = v > 0 ? v : 0;
            v = v < top ? v : top;
            q[k] = quant_bits_of(v + ROUND) - quant_bits_of(ROUND);
        }
        for (int k = 0; k < 8; k++) {
            eight |= (uint64_t)q[k] << bits * k;
        }
        memcpy(out, &eight, (size_t)bits);
    }
}

/* ---- from the range ---------------------------------------------------------------------------------------------- */

/* The scale is stretched so that the end of the range that is larger in magnitude is met exactly by a whole code, and
 * zero too. */
static void range_scale_bias(const float *x, int group, int top, sl_format_id side, float *scale, float *bias) {
    float min, max;
    quant_range_of(x, group, &min, &max);
    bool low_end = fabsf(min) > fabsf(max);
    float s = fmaxf((max - min) / (float)top, 1e-7f);
    s = low_end ? s : -s;
    float edge = low_end ? min : max;
    float q0 = rintf(edge / s);
    *scale = as_stored(q0 != 0 ? edge / q0 : s, side);
    *bias = as_stored(q0 != 0 ? edge : 0, side);
}

void sl_affine_quantize(const float *x, int64_t n, int bits, int group, sl_format_id side, void *codes, void *scales,
                        void *biases) {
    for (int64_t g = 0; g < n / group; g++, x += group) {
        float scale, bias;
        range_scale_bias(x, group, (1 << bits) - 1, side, &scale, &bias);
        put_side(scale, side, scales, g);
        put_side(bias, side, biases, g);
        put_codes(x, group, bits, scale, bias, (uint8_t *)codes + g * group / 8 * bits);
    }
}

/* ---- by search --------------------------------------------------------------------------------------------------- */

/* What one pass over the group gives for a scale and bias: the error, and the sums that a fit for these codes needs. */
typedef struct trial {
    float error, q, qq, qx;
} trial;

typedef struct search search;
typedef trial try_fn(const search *s, float scale, float bias);

/* One group on its way to a scale and bias; all values that are tried are as stored. */
struct search {
    try_fn *try_codes;
    const float *x, *weight;
    bool weighted; /* weights are not all 1 */
    int group, top;
    sl_format_id side;
    double sum_w, sum_wx; /* of weight, of weight * x */
    float scale, bias;    /* the best so far */
    float error;
};

/* Vectors of the compiler's own: on loops over arrays of sums it spills, and takes up to three times as long. The lanes
 * and their order are the same on every machine, so the bits are. */
typedef float lanes __attribute__((vector_size(32)));
typedef int32_t mask __attribute__((vector_size(32)));

#define INLINE static inline __attribute__((always_inline))

INLINE lanes load(const float *p) {
    lanes v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE lanes choose(mask m, lanes a, lanes b) {
    return (lanes)((m & (mask)a) | (~m & (mask)b));
}

INLINE float add_lanes(lanes v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

INLINE trial try_with_lanes(const search *s, float scale, float bias) {
    lanes error = {0}, sum_q = {0}, sum_qq = {0}, sum_qx = {0}, zero = {0};
    lanes top = zero + (float)s->top;
    float inverse = 1.0f / scale;
    for (int i = 0; i < s->group; i += 8) {
        lanes x = load(s->x + i), w = load(s->weight + i);
        lanes v = (x - bias) * inverse;
        v = choose(v < top, v, top);
        v = choose(v > zero, v, zero);
        lanes q = (v + ROUND) - ROUND;
        lanes miss = x - (q * scale + bias);
        lanes wq = w * q;
        error += w * (miss * miss);
        sum_q += wq;
        sum_qq += wq * q;
        sum_qx += wq * x;
    }
    return (trial){add_lanes(error), add_lanes(sum_q), add_lanes(sum_qq), add_lanes(sum_qx)};
}

static trial try_plain(const search *s, float scale, float bias) {
    return try_with_lanes(s, scale, bias);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static trial try_avx2(const search *s, float scale, float bias) {
    return try_with_lanes(s, scale, bias);
}

static try_fn *best_try(void) {
    return __builtin_cpu_supports("avx2") ? try_avx2 : try_plain;
}
#else
static try_fn *best_try(void) {
    return try_plain;
}
#endif

/* Tries a pair; keeps it if it is better by more than sums in float can be wrong. */
static bool keep(search *s, float scale, float bias, trial *t) {
    *t = s->try_codes(s, scale, bias);
    bool better = t->error < s->error * (1 - 1e-5f);
    if (better) {
        s->scale = scale;
        s->bias = bias;
        s->error = t->error;
    }
    return better;
}

/* The pair of least error for the codes of a trial: the bias after the scale has been rounded. False: all codes are the
 * same. */
static bool refit(const search *s, const trial *t, float *scale, float *bias) {
    double det = s->sum_w * (double)t->qq - (double)t->q * (double)t->q;
    if (!(det > 1e-9 * s->sum_w * (double)t->qq)) {
        return false;
    }
    *scale = as_stored((float)((s->sum_w * (double)t->qx - (double)t->q * s->sum_wx) / det), s->side);
    *bias = as_stored((float)((s->sum_wx - (double)*scale * (double)t->q) / s->sum_w), s->side);
    return *scale != 0;
}

/* From a pair: codes, the best pair for them, their codes, .. while it gets better. */
static void descend(search *s, float scale, float bias, int most) {
    float before = INFINITY;
    for (int i = 0; i < most && scale != 0; i++) {
        trial t;
        keep(s, scale, bias, &t);
        if (!(t.error < before * (1 - 1e-3f)) || !refit(s, &t, &scale, &bias)) {
            return;
        }
        before = t.error;
    }
}

/* What share of the range is cut off at the two ends, where a descent begins. Few codes want more cut off, and so
 * do ends whose columns count little. */
static const struct {
    float low, high;
} cuts[] = {{0, 0},         {0.03f, 0.03f}, {0.07f, 0.07f}, {0.12f, 0.12f}, {0.2f, 0.2f},
            {0.28f, 0.28f}, {0, 0.15f},     {0.15f, 0},     {0, 0.35f},     {0.35f, 0}};

/* How many of them: with more codes the later ones find next to nothing. */
static int cuts_tried(const search *s) {
    int most = (int)SL_COUNT(cuts);
    return s->top >= 255 ? 2 : s->top >= 31 ? 4 : s->top >= 15 && !s->weighted ? 6 : most;
}

static float next_stored(float v, sl_format_id side, int steps) {
    uint32_t unit = side == SL_BF16 ? 1u << 16 : side == SL_F16 ? 1u << 13 : 1u << 6;
    return as_stored(quant_float_of(quant_bits_of(v) + (uint32_t)steps * unit), side);
}

/* Neighbours of the best pair: a rounded scale is wrong by up to half a code at the far end of eight bits. */
static void polish(search *s) {
    for (int step = -1; step <= 1; step += 2) {
        float scale = next_stored(s->scale, s->side, step);
        trial t = s->try_codes(s, scale, s->bias);
        keep(s, scale, as_stored((float)((s->sum_wx - (double)scale * (double)t.q) / s->sum_w), s->side), &t);
        keep(s, s->scale, next_stored(s->bias, s->side, step), &t);
    }
}

static void search_group(search *s) {
    float min, max;
    quant_range_of(s->x, s->group, &min, &max);
    s->error = s->try_codes(s, s->scale, s->bias).error;
    for (int i = 0, n = cuts_tried(s); i < n; i++) {
        float low = min + cuts[i].low * (max - min), high = max - cuts[i].high * (max - min);
        descend(s, as_stored((high - low) / (float)s->top, s->side), as_stored(low, s->side), 5);
    }
    if (s->scale != 0 && isfinite(s->scale)) {
        polish(s);
    }
}

/* Sums of the weights; all zero: as if all were one. */
static void weigh(search *s, const float *importance, const float *ones) {
    s->weight = importance ? importance : ones;
    s->weighted = importance != NULL;
    for (int round = 0; round < 2; round++) {
        s->sum_w = s->sum_wx = 0;
        for (int i = 0; i < s->group; i++) {
            s->sum_w += (double)s->weight[i];
            s->sum_wx += (double)s->weight[i] * (double)s->x[i];
        }
        if (s->sum_w > 0) {
            return;
        }
        s->weight = ones;
        s->weighted = false;
    }
}

static bool all_finite(const float *x, int n) {
    float probe = 0;
    for (int i = 0; i < n; i++) {
        probe += x[i] * 0.0f;
    }
    return probe == 0;
}

double sl_requantize(int bits, int group, sl_format_id side, int64_t rows, int64_t cols, const float *w,
                     const float *importance, void *codes, void *scales, void *biases) {
    float ones[128];
    for (int i = 0; i < 128; i++) {
        ones[i] = 1;
    }
    double error = 0;
    try_fn *try = best_try();
    for (int64_t g = 0; g < rows * (cols / group); g++, w += group) {
        search s = {.try_codes = try, .x = w, .group = group, .top = (1 << bits) - 1, .side = side};
        range_scale_bias(w, group, s.top, side, &s.scale, &s.bias);
        weigh(&s, importance ? importance + g % (cols / group) * group : NULL, ones);
        search_group(&s);
        error += !all_finite(w, group) ? NAN : s.weight == ones && importance ? 0 : (double)s.error;
        put_side(s.scale, side, scales, g);
        put_side(s.bias, side, biases, g);
        put_codes(w, group, bits, s.scale, s.bias, (uint8_t *)codes + g * group / 8 * bits);
    }
    return error;
}

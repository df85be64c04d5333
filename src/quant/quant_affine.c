/* Quantisers to MLX's affine groups: its own rule (from the range), and a search for the least error. */
#include "quant/quant_bits.h"
#include "quant/quant_rows.h"

#include <math.h>

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

static void put_codes(const float *x, int group, int bits, float scale, float bias, uint8_t *out) {
    int top = (1 << bits) - 1;
    for (int i = 0; i < group; i += 8, out += bits) {
        uint64_t eight = 0;
        for (int k = 0; k < 8; k++) {
            eight |= (uint64_t)quant_code_of(rintf((x[i + k] - bias) / scale), top) << bits * k;
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

/* One group on its way to a scale and bias; all values that are tried are as stored. */
typedef struct search {
    const float *x, *weight;
    int group, top;
    sl_format_id side;
    double sum_w, sum_wx; /* of weight, of weight * x */
    float scale, bias;    /* the best so far */
    float error;
} search;

/* What one pass over the group gives for a scale and bias: the error, and the sums that a fit for these codes needs. */
typedef struct trial {
    float error, q, qq, qx;
} trial;

static float add_lanes(const float v[8]) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

/* Eight sums side by side, so that compilers make vectors of them; x is read, and q held, as floats. */
static trial try_codes(const search *s, float scale, float bias) {
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest integer, ties to even */
    float error[8] = {0}, q1[8] = {0}, q2[8] = {0}, qx[8] = {0};
    float inverse = 1.0f / scale, top = (float)s->top;
    for (int i = 0; i < s->group; i += 8) {
        const float *x = s->x + i, *w = s->weight + i;
        for (int k = 0; k < 8; k++) {
            float v = (x[k] - bias) * inverse;
            v = v < top ? v : top;
            v = v > 0 ? v : 0;
            float q = (v + round) - round;
            float miss = x[k] - (q * scale + bias);
            float wq = w[k] * q;
            error[k] += w[k] * (miss * miss);
            q1[k] += wq;
            q2[k] += wq * q;
            qx[k] += wq * x[k];
        }
    }
    return (trial){add_lanes(error), add_lanes(q1), add_lanes(q2), add_lanes(qx)};
}

/* Tries a pair; keeps it if it is better by more than sums in float can be wrong. */
static bool keep(search *s, float scale, float bias, trial *t) {
    *t = try_codes(s, scale, bias);
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

/* What share of the range is cut off at the two ends, where a descent begins. Few codes want more cut off. */
static const struct {
    float low, high;
} cuts[] = {{0, 0},         {0.03f, 0.03f}, {0.07f, 0.07f}, {0.12f, 0.12f}, {0.2f, 0.2f},
            {0.28f, 0.28f}, {0, 0.15f},     {0.15f, 0},     {0, 0.35f},     {0.35f, 0}};

static float next_stored(float v, sl_format_id side, int steps) {
    uint32_t unit = side == SL_BF16 ? 1u << 16 : side == SL_F16 ? 1u << 13 : 1u << 6;
    return as_stored(quant_float_of(quant_bits_of(v) + (uint32_t)steps * unit), side);
}

/* Neighbours of the best pair: a rounded scale is wrong by up to half a code at the far end of eight bits. */
static void polish(search *s) {
    for (int step = -1; step <= 1; step += 2) {
        float scale = next_stored(s->scale, s->side, step);
        trial t = try_codes(s, scale, s->bias);
        keep(s, scale, as_stored((float)((s->sum_wx - (double)scale * (double)t.q) / s->sum_w), s->side), &t);
        keep(s, s->scale, next_stored(s->bias, s->side, step), &t);
    }
}

static void search_group(search *s) {
    float min, max;
    quant_range_of(s->x, s->group, &min, &max);
    s->error = try_codes(s, s->scale, s->bias).error;
    int n = s->top >= 255 ? 2 : s->top >= 31 ? 4 : (int)SL_COUNT(cuts);
    for (int i = 0; i < n; i++) {
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
    for (int64_t g = 0; g < rows * (cols / group); g++, w += group) {
        search s = {.x = w, .group = group, .top = (1 << bits) - 1, .side = side};
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

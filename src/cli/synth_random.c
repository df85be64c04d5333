/* Random weights, made as codes and scales at once: a normal distribution through quantisation gives normally
 * distributed codes, so drawing the codes saves the way over floats (14 billion of them in the benchmark's shape). */
#include "synth.h"

#include <math.h>
#include <string.h>

enum {
    PIECE = 1 << 15 /* elements per stream of random numbers; a multiple of every block */
};
static const double code_deviation = 2.7; /* in sixteenths of the codes' range: 3 deviations reach the ends */

uint64_t synth_next(uint64_t *state) {
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static uint64_t stream(const synth_random *r, uint64_t index, uint64_t piece, uint64_t salt) {
    uint64_t s = r->seed * 0x9E3779B97F4A7C15u + index;
    s = synth_next(&s) + piece;
    s = synth_next(&s) + salt;
    return synth_next(&s);
}

/* The normal distribution's inverse, by bisection: it is asked 4096 times. */
static double normal_inverse(double p) {
    double low = -8, high = 8;
    for (int i = 0; i < 60; i++) {
        double mid = (low + high) / 2;
        if (0.5 * erfc(-mid / sqrt(2.0)) < p)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* Codes of equal steps around the middle. */
static uint8_t step_code(const synth_random *r, double v) {
    double code = floor(r->center + v / r->step + 0.5);
    return (uint8_t)(code < 0 ? 0 : code > 2 * r->center - 1 ? 2 * r->center - 1 : code);
}

/* The e2m1 code whose value is nearest to v / r->step. */
static uint8_t e2m1_code(const synth_random *r, double v) {
    static const double value[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    uint8_t best = 0;
    for (uint8_t i = 1; i < 8; i++)
        if (fabs(fabs(v / r->step) - value[i]) < fabs(fabs(v / r->step) - value[best]))
            best = i;
    return (uint8_t)(best | (v < 0 ? 8 : 0));
}

/* ---- blocks without a quantiser ---------------------------------------------------------------------------------- */

/* Where their halves are: the scale, and what multiplies the minima (0: there are none). All other bytes are random. */
typedef struct block_kind {
    sl_format_id format;
    int scale, min;
} block_kind;

static const block_kind block_kinds[] = {{SL_Q2_K, 80, 82}, {SL_Q3_K, 108, 0}, {SL_Q4_K, 0, 2},    {SL_Q5_K, 0, 2},
                                         {SL_Q6_K, 208, 0}, {SL_IQ4_NL, 0, 0}, {SL_IQ4_XS, 0, 0},  {SL_IQ2_XXS, 0, 0},
                                         {SL_IQ2_XS, 0, 0}, {SL_IQ2_S, 0, 0},  {SL_IQ3_XXS, 0, 0}, {SL_IQ3_S, 0, 0},
                                         {SL_IQ1_S, 0, 0}};

static const block_kind *block_kind_of(sl_format_id format) {
    for (size_t i = 0; i < SL_COUNT(block_kinds); i++)
        if (block_kinds[i].format == format)
            return &block_kinds[i];
    return NULL;
}

bool synth_has_blocks(sl_format_id format) {
    return sl_format_get(format)->ggml_type >= 0 && (sl_format_get(format)->quantize || block_kind_of(format));
}

static void random_block(const block_kind *k, uint64_t *state, double scale, double min, uint8_t *out) {
    uint32_t bytes = sl_format_get(k->format)->block_bytes;
    for (uint32_t i = 0; i < bytes; i += 8) {
        uint64_t x = synth_next(state);
        memcpy(out + i, &x, bytes - i < 8 ? bytes - i : 8);
    }
    uint16_t halves[2] = {sl_f32_to_f16((float)scale), sl_f32_to_f16((float)min)};
    memcpy(out + k->scale, &halves[0], 2);
    if (k->min)
        memcpy(out + k->min, &halves[1], 2);
}

/* Mean and deviation of random blocks' weights. */
static void measure_blocks(const block_kind *k, double scale, double min, double *mean, double *deviation) {
    enum { BLOCKS = 64, MOST_BYTES = 256, MOST = 256 };
    const sl_format *f = sl_format_get(k->format);
    uint64_t state = 1;
    double sum = 0, squares = 0;
    for (int b = 0; b < BLOCKS; b++) {
        uint8_t block[MOST_BYTES];
        float w[MOST];
        sl_matrix m = {.format = k->format, .rows = 1, .cols = f->block_weights, .part = {block}};
        random_block(k, &state, scale, min, block);
        f->dequantize(&m, 0, 0, m.cols, w);
        for (int64_t i = 0; i < m.cols; i++) {
            sum += (double)w[i];
            squares += (double)w[i] * (double)w[i];
        }
    }
    double n = BLOCKS * (double)f->block_weights;
    *mean = sum / n;
    *deviation = sqrt(squares / n - *mean * *mean);
}

static void find_unit(synth_random *r, sl_format_id format) {
    const block_kind *k = block_kind_of(format);
    double scaled, minima, deviation;
    if (!k)
        return;
    measure_blocks(k, 1, 0, &scaled, &deviation);
    if (k->min) {
        measure_blocks(k, 0, 1, &minima, &deviation);
        r->ratio = -scaled / minima;
    }
    measure_blocks(k, 1, r->ratio, &scaled, &deviation);
    r->unit = 1 / deviation;
}

bool synth_random_open(synth_random *r, uint64_t seed, sl_format_id format, sl_error *err) {
    bool affine = sl_format_is_affine(format), e2m1 = format == SL_MXFP4_SPLIT;
    *r = (synth_random){.seed = seed, .bits = affine ? sl_format_get(format)->bits : 4};
    r->center = 1 << (r->bits - 1);
    r->step = e2m1 ? 0.5 : 8 / (code_deviation * r->center);
    for (size_t i = 0; i < SL_COUNT(r->code); i++) {
        double v = normal_inverse(((double)i + 0.5) / SL_COUNT(r->code));
        r->code[i] = e2m1 ? e2m1_code(r, v) : step_code(r, v);
    }
    find_unit(r, format);
    r->pool = sl_pool_new(sl_cpu_count(), err);
    return r->pool != NULL;
}

void synth_random_close(synth_random *r) {
    sl_pool_free(r->pool);
    r->pool = NULL;
}

/* n codes of four bits, two a byte, low half first; n is even. One random word gives four (12 bits each, 16 unused). */
static void fill_nibbles(const synth_random *r, uint64_t *state, int64_t n, uint8_t *out) {
    for (int64_t i = 0; i + 4 <= n; i += 4) {
        uint64_t x = synth_next(state);
        out[i / 2] = (uint8_t)(r->code[x & 4095] | r->code[(x >> 12) & 4095] << 4);
        out[i / 2 + 1] = (uint8_t)(r->code[(x >> 24) & 4095] | r->code[(x >> 36) & 4095] << 4);
    }
}

/* Of other widths: a stream of bits, eight codes at a time. */
static void fill_stream(const synth_random *r, uint64_t *state, int64_t n, uint8_t *out) {
    for (int64_t i = 0; i + 8 <= n; i += 8, out += r->bits) {
        uint64_t x[2] = {synth_next(state), synth_next(state)}, eight = 0;
        for (int k = 0; k < 8; k++)
            eight |= (uint64_t)r->code[x[k / 4] >> 12 * (k % 4) & 4095] << r->bits * k;
        memcpy(out, &eight, (size_t)r->bits);
    }
}

/* A factor between 0.75 and 1.25: scales differ from block to block as those of trained weights do. */
static double jitter(uint64_t x) {
    return 0.75 + (double)(x >> 11) / 9007199254740992.0 * 0.5;
}

static double uniform(uint64_t *state) {
    return ((double)(synth_next(state) >> 11) + 0.5) / 9007199254740992.0;
}

typedef struct fill {
    const synth_random *r;
    uint64_t index;
    int64_t first, n; /* elements (affine: groups) */
    double mean, deviation;
    uint8_t *bytes;
    uint16_t *scales, *biases;
    float *floats;
    const sl_format *format;
    const block_kind *kind;
} fill;

/* Pieces of the tensor, not of the call, have the streams: a tensor is the same however it is cut. `first` is a
 * multiple of PIECE; the last piece may be short. */
static int64_t piece_end(const fill *f, int64_t piece) {
    return sl_min_i64((piece + 1) * PIECE, f->n);
}

static void q4_0_pieces(void *ctx, int64_t begin, int64_t end, int worker) {
    const fill *f = ctx;
    for (int64_t p = begin; p < end; p++) {
        uint64_t state = stream(f->r, f->index, (uint64_t)(f->first / PIECE + p), 1);
        for (int64_t i = p * PIECE; i < piece_end(f, p); i += 32) {
            uint8_t *block = f->bytes + i / 32 * 18;
            uint16_t scale = sl_f32_to_f16((float)(f->deviation * f->r->step * jitter(synth_next(&state))));
            memcpy(block, &scale, 2);
            fill_nibbles(f->r, &state, 32, block + 2);
        }
    }
}

static void code_pieces(void *ctx, int64_t begin, int64_t end, int worker) {
    const fill *f = ctx;
    for (int64_t p = begin; p < end; p++) {
        uint64_t state = stream(f->r, f->index, (uint64_t)(f->first / PIECE + p), 1);
        int64_t n = piece_end(f, p) - p * PIECE;
        uint8_t *out = f->bytes + p * PIECE / 8 * f->r->bits;
        if (f->r->bits == 4)
            fill_nibbles(f->r, &state, n, out);
        else
            fill_stream(f->r, &state, n, out);
    }
}

static void affine_pieces(void *ctx, int64_t begin, int64_t end, int worker) {
    const fill *f = ctx;
    for (int64_t p = begin; p < end; p++) {
        uint64_t state = stream(f->r, f->index, (uint64_t)(f->first / PIECE + p), 2);
        for (int64_t i = p * PIECE; i < piece_end(f, p); i++) {
            float scale = (float)(f->deviation * f->r->step * jitter(synth_next(&state)));
            f->scales[i] = sl_f32_to_bf16(scale);
            f->biases[i] = sl_f32_to_bf16((float)-f->r->center * sl_bf16_to_f32(f->scales[i]));
        }
    }
}

/* One of the two powers around the scale, so that it is met on the average. */
static void power_pieces(void *ctx, int64_t begin, int64_t end, int worker) {
    const fill *f = ctx;
    int exponent;
    double over = 2 * frexp(f->deviation * f->r->step, &exponent) - 1; /* 0 .. 1: how far towards the next */
    for (int64_t p = begin; p < end; p++) {
        uint64_t state = stream(f->r, f->index, (uint64_t)(f->first / PIECE + p), 2);
        for (int64_t i = p * PIECE; i < piece_end(f, p); i++)
            f->bytes[i] = (uint8_t)(127 + exponent - (uniform(&state) < over ? 0 : 1));
    }
}

static float normal(const fill *f, uint64_t *state) {
    const double turn = 6.283185307179586;
    return (float)(f->mean + f->deviation * sqrt(-2 * log(uniform(state))) * cos(turn * uniform(state)));
}

static void float_pieces(void *ctx, int64_t begin, int64_t end, int worker) {
    const fill *f = ctx;
    for (int64_t p = begin; p < end; p++) {
        uint64_t state = stream(f->r, f->index, (uint64_t)(f->first / PIECE + p), 1);
        for (int64_t i = p * PIECE; i < piece_end(f, p); i++)
            f->floats[i] = normal(f, &state);
    }
}

/* Blocks of any format with a quantiser. */
static void block_pieces(void *ctx, int64_t begin, int64_t end, int worker) {
    const fill *f = ctx;
    enum { SOME = 256 };
    float x[SOME];
    for (int64_t p = begin; p < end; p++) {
        uint64_t state = stream(f->r, f->index, (uint64_t)(f->first / PIECE + p), 1);
        for (int64_t at = p * PIECE; at < piece_end(f, p); at += SOME) {
            int64_t n = sl_min_i64(SOME, piece_end(f, p) - at);
            for (int64_t i = 0; i < n; i++)
                x[i] = normal(f, &state);
            f->format->quantize(x, n, f->bytes + at / f->format->block_weights * f->format->block_bytes);
        }
    }
}

static void random_pieces(void *ctx, int64_t begin, int64_t end, int worker) {
    const fill *f = ctx;
    for (int64_t p = begin; p < end; p++) {
        uint64_t state = stream(f->r, f->index, (uint64_t)(f->first / PIECE + p), 1);
        for (int64_t at = p * PIECE; at < piece_end(f, p); at += f->format->block_weights) {
            double scale = f->deviation * f->r->unit * jitter(synth_next(&state));
            random_block(f->kind, &state, scale, scale * f->r->ratio,
                         f->bytes + at / f->format->block_weights * f->format->block_bytes);
        }
    }
}

static void run(synth_random *r, fill *f, sl_pool_fn fn) {
    f->r = r;
    sl_pool_run(r->pool, (f->n + PIECE - 1) / PIECE, 1, fn, f);
}

void synth_fill_blocks(synth_random *r, sl_format_id format, uint64_t index, int64_t first, int64_t n, double deviation,
                       uint8_t *out) {
    fill f = {.index = index, .first = first, .n = n, .deviation = deviation, .bytes = out};
    f.format = sl_format_get(format);
    f.kind = block_kind_of(format);
    run(r, &f, format == SL_Q4_0 ? q4_0_pieces : f.kind ? random_pieces : block_pieces);
}

void synth_fill_codes(synth_random *r, uint64_t index, int64_t first, int64_t n, uint8_t *out) {
    fill f = {.index = index, .first = first, .n = n, .bytes = out};
    run(r, &f, code_pieces);
}

void synth_fill_affine(synth_random *r, uint64_t index, int64_t first, int64_t n, double deviation, uint16_t *scales,
                       uint16_t *biases) {
    fill f = {.index = index, .first = first, .n = n, .deviation = deviation, .scales = scales, .biases = biases};
    run(r, &f, affine_pieces);
}

void synth_fill_powers(synth_random *r, uint64_t index, int64_t first, int64_t n, double deviation, uint8_t *scales) {
    fill f = {.index = index, .first = first, .n = n, .deviation = deviation, .bytes = scales};
    run(r, &f, power_pieces);
}

void synth_fill_float(synth_random *r, uint64_t index, int64_t first, int64_t n, double mean, double deviation,
                      float *out) {
    fill f = {.index = index, .first = first, .n = n, .mean = mean, .deviation = deviation, .floats = out};
    run(r, &f, float_pieces);
}

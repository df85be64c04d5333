/* Random weights, made as codes and scales at once: a normal distribution through quantisation gives normally
 * distributed codes, so drawing the codes saves the way over floats (14 billion of them in the benchmark's shape). */
#include "synth.h"

#include <math.h>
#include <string.h>

enum {
    PIECE = 1 << 15 /* elements per stream of random numbers; a multiple of every block */
};
static const double code_deviation = 2.7; /* in steps of a 4-bit code: 3 deviations reach the ends */

/* splitmix64. */
static uint64_t next(uint64_t *state) {
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static uint64_t stream(const synth_random *r, uint64_t index, uint64_t piece, uint64_t salt) {
    uint64_t s = r->seed * 0x9E3779B97F4A7C15u + index;
    s = next(&s) + piece;
    s = next(&s) + salt;
    return next(&s);
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

bool synth_random_open(synth_random *r, uint64_t seed, sl_error *err) {
    *r = (synth_random){.seed = seed};
    for (size_t i = 0; i < SL_COUNT(r->nibble); i++) {
        double code = floor(8 + code_deviation * normal_inverse(((double)i + 0.5) / SL_COUNT(r->nibble)) + 0.5);
        r->nibble[i] = (uint8_t)(code < 0 ? 0 : code > 15 ? 15 : code);
    }
    r->pool = sl_pool_new(sl_cpu_count(), err);
    return r->pool != NULL;
}

void synth_random_close(synth_random *r) {
    sl_pool_free(r->pool);
    r->pool = NULL;
}

/* n codes, two a byte, low half first; n is even. One random word gives four (12 bits each, 16 unused). */
static void fill_nibbles(const synth_random *r, uint64_t *state, int64_t n, uint8_t *out) {
    for (int64_t i = 0; i + 4 <= n; i += 4) {
        uint64_t x = next(state);
        out[i / 2] = (uint8_t)(r->nibble[x & 4095] | r->nibble[(x >> 12) & 4095] << 4);
        out[i / 2 + 1] = (uint8_t)(r->nibble[(x >> 24) & 4095] | r->nibble[(x >> 36) & 4095] << 4);
    }
}

/* A factor between 0.75 and 1.25: scales differ from block to block as those of trained weights do. */
static double jitter(uint64_t x) {
    return 0.75 + (double)(x >> 11) / 9007199254740992.0 * 0.5;
}

static double uniform(uint64_t *state) {
    return ((double)(next(state) >> 11) + 0.5) / 9007199254740992.0;
}

typedef struct fill {
    const synth_random *r;
    uint64_t index;
    int64_t first, n; /* elements (affine: groups) */
    double mean, deviation;
    uint8_t *bytes;
    uint16_t *scales, *biases;
    float *floats;
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
            uint16_t scale = sl_f32_to_f16((float)(f->deviation / code_deviation * jitter(next(&state))));
            memcpy(block, &scale, 2);
            fill_nibbles(f->r, &state, 32, block + 2);
        }
    }
}

static void code_pieces(void *ctx, int64_t begin, int64_t end, int worker) {
    const fill *f = ctx;
    for (int64_t p = begin; p < end; p++) {
        uint64_t state = stream(f->r, f->index, (uint64_t)(f->first / PIECE + p), 1);
        fill_nibbles(f->r, &state, piece_end(f, p) - p * PIECE, f->bytes + p * PIECE / 2);
    }
}

static void affine_pieces(void *ctx, int64_t begin, int64_t end, int worker) {
    const fill *f = ctx;
    for (int64_t p = begin; p < end; p++) {
        uint64_t state = stream(f->r, f->index, (uint64_t)(f->first / PIECE + p), 2);
        for (int64_t i = p * PIECE; i < piece_end(f, p); i++) {
            float scale = (float)(f->deviation / code_deviation * jitter(next(&state)));
            f->scales[i] = sl_f32_to_bf16(scale);
            f->biases[i] = sl_f32_to_bf16(-8.0f * sl_bf16_to_f32(f->scales[i]));
        }
    }
}

static void float_pieces(void *ctx, int64_t begin, int64_t end, int worker) {
    const fill *f = ctx;
    const double turn = 6.283185307179586;
    for (int64_t p = begin; p < end; p++) {
        uint64_t state = stream(f->r, f->index, (uint64_t)(f->first / PIECE + p), 1);
        for (int64_t i = p * PIECE; i < piece_end(f, p); i++)
            f->floats[i] =
                (float)(f->mean + f->deviation * sqrt(-2 * log(uniform(&state))) * cos(turn * uniform(&state)));
    }
}

static void run(synth_random *r, fill *f, sl_pool_fn fn) {
    f->r = r;
    sl_pool_run(r->pool, (f->n + PIECE - 1) / PIECE, 1, fn, f);
}

void synth_fill_q4_0(synth_random *r, uint64_t index, int64_t first, int64_t n, double deviation, uint8_t *out) {
    fill f = {.index = index, .first = first, .n = n, .deviation = deviation, .bytes = out};
    run(r, &f, q4_0_pieces);
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

void synth_fill_float(synth_random *r, uint64_t index, int64_t first, int64_t n, double mean, double deviation,
                      float *out) {
    fill f = {.index = index, .first = first, .n = n, .mean = mean, .deviation = deviation, .floats = out};
    run(r, &f, float_pieces);
}

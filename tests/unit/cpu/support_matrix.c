#include "support_matrix.h"

#include <setjmp.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

uint32_t rng_next(rng *r) {
    r->state += 0x9e3779b97f4a7c15u;
    uint64_t z = r->state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

int64_t rng_below(rng *r, int64_t n) {
    return (int64_t)(rng_next(r) % (uint64_t)n);
}

float rng_normal(rng *r) {
    float sum = 0;
    for (int i = 0; i < 6; i++) {
        sum += (float)(rng_next(r) >> 8) * 0x1p-24f - 0.5f;
    }
    return sum * 1.4142135f;
}

enum { PAGE = 65536 }; /* the largest page size in use */

static size_t guarded_size(size_t bytes) {
    return (bytes + PAGE - 1) / PAGE * PAGE + PAGE;
}

void *guarded_new(size_t bytes) {
    size_t size = guarded_size(bytes);
    char *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(base != MAP_FAILED);
    assert_int_equal(mprotect(base + size - PAGE, PAGE, PROT_NONE), 0);
    return base + size - PAGE - bytes;
}

void guarded_free(void *p, size_t bytes) {
    size_t size = guarded_size(bytes);
    assert_int_equal(munmap((char *)p + bytes + PAGE - size, size), 0);
}

/* Byte offsets of the f16 fields of a block, -1: no more. A format that is not here begins with its only one. */
static const int half_fields[SL_FORMAT_COUNT][2] = {
    [SL_Q4_0] = {0, -1},   [SL_Q4_1] = {0, 2},          [SL_Q5_0] = {0, -1},         [SL_Q5_1] = {0, 2},
    [SL_Q8_0] = {0, -1},   [SL_Q4_K] = {0, 2},          [SL_Q5_K] = {0, 2},          [SL_Q6_K] = {208, -1},
    [SL_Q2_K] = {80, 82},  [SL_Q3_K] = {108, -1},       [SL_MXFP4] = {-1, -1},       [SL_MXFP4_SPLIT] = {-1, -1},
    [SL_FP8] = {-1, -1},   [SL_NVFP4] = {-1, -1},       [SL_IQ1_M] = {-1, -1},       [SL_TQ1_0] = {52, -1},
    [SL_TQ2_0] = {64, -1}, [SL_NVFP4_SPLIT] = {-1, -1}, [SL_MXFP8_SPLIT] = {-1, -1},
};

static float random_scale(rng *r, scale_kind kind) {
    static const float extreme[] = {0, -0.0f, 0x1p-24f, -0x1p-15f, 0x1p-14f, 1, -65504, 65504, 0.3f};
    if (kind == SCALES_EXTREME && rng_below(r, 2)) {
        return extreme[rng_below(r, SL_COUNT(extreme))];
    }
    return rng_normal(r) * 0.01f;
}

static void put_value(uint8_t *p, sl_format_id type, float v) {
    uint16_t h = type == SL_F16 ? sl_f32_to_f16(v) : sl_f32_to_bf16(v);
    if (type == SL_F32) {
        memcpy(p, &v, sizeof v);
    } else {
        memcpy(p, &h, sizeof h);
    }
}

static void fill_values(rng *r, uint8_t *p, size_t bytes, sl_format_id type, scale_kind kind) {
    size_t size = type == SL_F32 ? 4 : 2;
    for (size_t i = 0; i < bytes; i += size) {
        put_value(p + i, type, random_scale(r, kind));
    }
}

/* e8m0 */
static uint8_t random_exponent(rng *r, scale_kind kind) {
    return (uint8_t)(kind == SCALES_EXTREME && rng_below(r, 2) ? rng_below(r, 255) : 110 + rng_below(r, 20));
}

/* e4m3 */
static uint8_t no_nan(uint8_t v) {
    return (v & 0x7f) == 0x7f ? v ^ 1 : v;
}

static void fill_blocks(rng *r, uint8_t *p, size_t bytes, sl_format_id f, scale_kind kind) {
    for (size_t i = 0; i < bytes; i++) {
        p[i] = (uint8_t)rng_next(r);
    }
    for (size_t i = 0; i < bytes && f == SL_MXFP8_SPLIT; i++) {
        p[i] = no_nan(p[i]);
    }
    if (sl_format_is_affine(f)) {
        return;
    }
    for (size_t b = 0; b < bytes; b += sl_format_get(f)->block_bytes) {
        for (int k = 0; k < 2 && half_fields[f][k] >= 0; k++) {
            put_value(p + b + half_fields[f][k], SL_F16, random_scale(r, kind));
        }
        if (f == SL_MXFP4) {
            p[b] = random_exponent(r, kind);
        } else if (f == SL_FP8) {
            p[b] = no_nan(p[b]);
        } else if (f == SL_IQ1_M) {
            p[b + 55] &= 0xbf; /* its f16 in pieces: below 2 */
        }
    }
}

test_matrix test_matrix_new(rng *r, sl_format_id format, int64_t rows, int64_t cols, int32_t group, sl_format_id side,
                            scale_kind kind) {
    test_matrix t = {.m = {.format = format, .group = group, .side = side, .rows = rows, .cols = cols}};
    sl_error err;
    if (!sl_matrix_layout(&t.m, &err)) {
        fail_msg("%s", err.message);
    }
    t.m.row_in_block = format == SL_FP8 ? (int32_t)rng_below(r, 128) : 0;
    for (int p = 0; p < 3; p++) {
        t.bytes[p] = (size_t)sl_matrix_part_bytes(&t.m, p);
        if (t.bytes[p] == 0) {
            continue;
        }
        uint8_t *bytes = guarded_new(t.bytes[p]);
        if (p > 0 && sl_format_get(format)->group) {
            for (size_t i = 0; i < t.bytes[p]; i++) {
                bytes[i] = format == SL_NVFP4_SPLIT ? no_nan((uint8_t)rng_next(r)) : random_exponent(r, kind);
            }
        } else if (p > 0) {
            fill_values(r, bytes, t.bytes[p], side, kind);
        } else if (format == SL_F32 || format == SL_F16 || format == SL_BF16) {
            fill_values(r, bytes, t.bytes[p], format, kind);
        } else {
            fill_blocks(r, bytes, t.bytes[p], format, kind);
        }
        t.m.part[p] = bytes;
    }
    return t;
}

void test_matrix_free(test_matrix *t) {
    for (int p = 0; p < 3; p++) {
        if (t->bytes[p]) {
            guarded_free((void *)t->m.part[p], t->bytes[p]);
        }
    }
}

int64_t test_cols(rng *r, sl_format_id format, int32_t group, int64_t max) {
    int64_t unit = sl_format_get(format)->block_weights;
    unit = sl_format_is_affine(format) ? group : unit;
    return unit * (1 + rng_below(r, sl_max_i64(max / unit, 1)));
}

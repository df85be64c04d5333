/* Promise: dequantisation is bit for bit what Python's gguf package (MLX: the published formula) gives, quantisation
 * what GGUF's reference quantiser gives. Vectors: tests/golden/quant, written by tools/golden/make_quant_vectors.py. */
#include "quant/quant.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>

#include <cmocka.h>

/* Where the vectors are; SL_QUANT_VECTORS names others (tests/e2e/test_formats_reference.py makes them). */
static const char *golden = SL_SOURCE_DIR "/tests/golden/quant";

/* One vector file, its parts at odd addresses so that alignment is never relied on. */
typedef struct vector {
    sl_matrix m;
    uint8_t *storage[3];
    uint32_t part_bytes[3];
    float *floats;
} vector;

static sl_format_id format_named(const char *name) {
    for (int i = 0; i < SL_FORMAT_COUNT; i++) {
        if (strcmp(sl_format_get((sl_format_id)i)->name, name) == 0) {
            return (sl_format_id)i;
        }
    }
    fail_msg("no format \"%s\"", name);
    return SL_FORMAT_COUNT;
}

static void read_exactly(FILE *f, void *out, size_t n) {
    assert_int_equal(fread(out, 1, n, f), n);
}

static uint32_t read_u32(FILE *f) {
    uint32_t v;
    read_exactly(f, &v, sizeof v);
    return v;
}

static vector vector_read(const char *file) {
    vector v = {0};
    char path[1024], magic[4], name[17] = "", side[17] = "";
    snprintf(path, sizeof path, "%s/%s", golden, file);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    read_exactly(f, magic, 4);
    assert_memory_equal(magic, "SLQ1", 4);
    read_exactly(f, name, 16);
    v.m.format = format_named(name);
    v.m.group = (int32_t)read_u32(f);
    read_exactly(f, side, 16);
    v.m.side = side[0] ? format_named(side) : SL_F32;
    v.m.rows = read_u32(f);
    v.m.cols = read_u32(f);
    for (int p = 0; p < 3; p++) {
        v.part_bytes[p] = read_u32(f);
    }
    sl_error err;
    assert_true(sl_matrix_layout(&v.m, &err));
    for (int p = 0; p < 3; p++) {
        assert_int_equal(v.part_bytes[p], sl_matrix_part_bytes(&v.m, p));
        v.storage[p] = malloc(v.part_bytes[p] + 1);
        read_exactly(f, v.storage[p] + 1, v.part_bytes[p]);
        v.m.part[p] = v.storage[p] + 1;
    }
    v.floats = malloc((size_t)(v.m.rows * v.m.cols) * sizeof(float));
    read_exactly(f, v.floats, (size_t)(v.m.rows * v.m.cols) * sizeof(float));
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
    return v;
}

static void vector_free(vector *v) {
    for (int p = 0; p < 3; p++) {
        free(v->storage[p]);
    }
    free(v->floats);
}

static void check_dequantize(const char *file) {
    vector v = vector_read(file);
    const sl_format *f = sl_format_get(v.m.format);
    size_t cols = (size_t)v.m.cols;
    float *out = malloc(cols * sizeof(float));
    for (int64_t row = 0; row < v.m.rows; row++) {
        const float *expected = v.floats + (size_t)row * cols;
        memset(out, 0xa5, cols * sizeof(float));
        f->dequantize(&v.m, row, 0, v.m.cols, out);
        for (size_t i = 0; i < cols; i++) {
            if (memcmp(&out[i], &expected[i], sizeof(float)) != 0) {
                fail_msg("%s row %d column %zu: %a, expected %a", file, (int)row, i, (double)out[i],
                         (double)expected[i]);
            }
        }
        /* A piece from the middle: one block, nothing written beyond it. */
        size_t block = f->block_weights, at = cols / block / 2 * block;
        memset(out, 0xa5, cols * sizeof(float));
        f->dequantize(&v.m, row, (int64_t)at, (int64_t)block, out);
        assert_memory_equal(out, expected + at, block * sizeof(float));
        for (const uint8_t *p = (uint8_t *)(out + block); p < (uint8_t *)(out + cols); p++) {
            assert_int_equal(*p, 0xa5);
        }
    }
    free(out);
    vector_free(&v);
}

static void check_quantize(const char *file) {
    vector v = vector_read(file);
    uint8_t *out = malloc(v.part_bytes[0]);
    memset(out, 0xa5, v.part_bytes[0]);
    sl_format_get(v.m.format)->quantize(v.floats, v.m.rows * v.m.cols, out);
    for (size_t i = 0; i < v.part_bytes[0]; i++) {
        if (out[i] != v.m.part[0][i]) {
            fail_msg("%s byte %zu: %d, expected %d", file, i, out[i], v.m.part[0][i]);
        }
    }
    free(out);
    vector_free(&v);
}

static int each_vector(const char *prefix, void (*check)(const char *file)) {
    DIR *dir = opendir(golden);
    assert_non_null(dir);
    int n = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (strncmp(e->d_name, prefix, strlen(prefix)) == 0) {
            check(e->d_name);
            n++;
        }
    }
    closedir(dir);
    return n;
}

static void dequantize_equals_python(void **state) {
    /* 23 block formats of GGUF, three float formats, affine: 2 widths x 3 groups x 3 side types, 4 widths x 4;
     * mxfp4_split, nvfp4_split, mxfp8_split; fp8 with scales of two types */
    assert_int_equal(each_vector("dequantize_", check_dequantize), 23 + 3 + 18 + 16 + 3 + 2);
}

static void quantize_equals_python(void **state) {
    assert_int_equal(each_vector("quantize_", check_quantize), 8);
}

/* Every half against its definition in doubles. */
static void f16_to_f32_is_exact(void **state) {
    for (uint32_t h = 0; h < 65536; h++) {
        int exponent = (int)(h >> 10 & 31), mantissa = (int)(h & 1023);
        float got = sl_f16_to_f32((uint16_t)h);
        if (exponent == 31) {
            assert_true(mantissa ? isnan(got) : isinf(got));
            continue;
        }
        double value = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
        float expected = (float)(h & 0x8000 ? -value : value);
        assert_memory_equal(&got, &expected, sizeof got);
        assert_int_equal(sl_f32_to_f16(got), h);
    }
}

/* Between neighbouring halves: below, at and above the middle. */
static void f32_to_f16_rounds_to_even(void **state) {
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float low = sl_f16_to_f32((uint16_t)h), high = sl_f16_to_f32((uint16_t)(h + 1));
        float middle = (float)(((double)low + (double)high) / 2);
        uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        assert_int_equal(sl_f32_to_f16(middle), even);
        assert_int_equal(sl_f32_to_f16(-middle), even | 0x8000);
        assert_int_equal(sl_f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(sl_f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
    }
    assert_int_equal(sl_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(sl_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(sl_f32_to_f16(-1e30f), 0xfc00);
    assert_int_equal(sl_f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(sl_f32_to_f16(NAN) & 0x7e00, 0x7e00);
    assert_int_equal(sl_f32_to_f16(1e-45f), 0);
}

static void bf16_rounds_to_even(void **state) {
    assert_int_equal(sl_f32_to_bf16(1.0f), 0x3f80);
    assert_int_equal(sl_f32_to_bf16(0x1.01p0f), 0x3f80); /* tie, down to even */
    assert_int_equal(sl_f32_to_bf16(0x1.03p0f), 0x3f82); /* tie, up to even */
    assert_int_equal(sl_f32_to_bf16(3.4e38f), 0x7f80);
    assert_int_equal(sl_f32_to_bf16(NAN) & 0x7fc0, 0x7fc0);
    for (uint32_t h = 0; h < 0x7f80; h++) {
        assert_int_equal(sl_f32_to_bf16(sl_bf16_to_f32((uint16_t)h)), h);
    }
}

static uint32_t next_random(uint32_t *s) {
    return *s = *s * 1664525u + 1013904223u;
}

static const int widths[] = {2, 3, 4, 5, 6, 8};

/* What affine codes, scales and biases of one row stand for. */
static void affine_read(int bits, int group, sl_format_id side, int64_t cols, const void *codes, const void *scales,
                        const void *biases, float *out) {
    sl_matrix m = {.group = group, .side = side, .rows = 1, .cols = cols, .part = {codes, scales, biases}};
    assert_true(sl_affine_by_bits(bits, &m.format));
    assert_true(sl_matrix_layout(&m, NULL));
    sl_format_get(m.format)->dequantize(&m, 0, 0, cols, out);
}

/* Half a step is the rounding; stretching the scale to meet one end and zero costs up to half a step more at the other
 * end. */
static void affine_quantize_round_trips(void **state) {
    uint32_t seed = 7;
    float x[256], back[256];
    uint8_t codes[256], scales[32], biases[32];
    for (int i = 0; i < 256; i++) {
        x[i] = ((float)(next_random(&seed) >> 8) * 0x1p-24f - 0.3f) * (i < 128 ? 4.0f : 0.01f);
    }
    for (size_t w = 0; w < SL_COUNT(widths); w++) {
        for (int group = 32; group <= 128; group *= 2) {
            sl_affine_quantize(x, 256, widths[w], group, SL_F32, codes, scales, biases);
            affine_read(widths[w], group, SL_F32, 256, codes, scales, biases, back);
            for (int i = 0; i < 256; i++) {
                float step;
                memcpy(&step, scales + 4 * (i / group), 4);
                assert_true(fabsf(back[i] - x[i]) <= fabsf(step) * 1.01f);
            }
        }
    }
}

/* Subnormals, huge values and NaN may give poor codes but no undefined behaviour (UBSan) and no write out of bounds. */
static void quantize_survives_extremes(void **state) {
    static const float extremes[] = {0, -0.0f, 1e-45f, -1e-45f, 1e-39f, 3.4e38f, -3.4e38f, INFINITY, -INFINITY, NAN, 1};
    uint32_t seed = 11;
    for (int round = 0; round < 200; round++) {
        float x[128];
        uint8_t out[256 * 4 + 4], scales[16], biases[16];
        for (int i = 0; i < 128; i++) {
            x[i] = extremes[(next_random(&seed) >> 16) % (round % 10 + 2)];
        }
        for (int id = 0; id < SL_FORMAT_COUNT; id++) {
            const sl_format *f = sl_format_get((sl_format_id)id);
            if (f->quantize && f->block_weights <= 128) {
                size_t size = 128 / f->block_weights * f->block_bytes;
                memset(out, 0x5a, sizeof out);
                f->quantize(x, 128, out);
                assert_int_equal(out[size], 0x5a);
            }
        }
        for (size_t w = 0; w < SL_COUNT(widths); w++) {
            memset(out, 0x5a, sizeof out);
            sl_affine_quantize(x, 128, widths[w], 32, SL_F16, out, scales, biases);
            assert_int_equal(out[16 * widths[w]], 0x5a);
            sl_requantize(widths[w], 32, SL_F16, 1, 128, x, NULL, out, scales, biases);
            assert_int_equal(out[16 * widths[w]], 0x5a);
        }
    }
}

static void layout_checks_shapes(void **state) {
    sl_error err;
    sl_matrix m = {.format = SL_Q4_K, .rows = 3, .cols = 512};
    assert_true(sl_matrix_layout(&m, &err));
    assert_int_equal(m.row_bytes[0], 288);
    m.cols = 288;
    assert_false(sl_matrix_layout(&m, &err));
    assert_string_equal(err.message, "Q4_K with 288 columns, expected a multiple of 256");
    m = (sl_matrix){.format = SL_F32, .rows = INT64_MAX / 2, .cols = INT64_MAX / 2};
    assert_false(sl_matrix_layout(&m, &err));
    m = (sl_matrix){.format = SL_F32, .rows = 1, .cols = 0};
    assert_false(sl_matrix_layout(&m, &err));
    m = (sl_matrix){.format = SL_AFFINE4, .group = 64, .side = SL_BF16, .rows = 2, .cols = 128};
    assert_true(sl_matrix_layout(&m, &err));
    assert_int_equal(m.row_bytes[0], 64);
    assert_int_equal(m.row_bytes[1], 4);
    assert_int_equal(m.row_bytes[2], 4);
    m.group = 48;
    assert_false(sl_matrix_layout(&m, &err));
    m.group = 128;
    m.side = SL_Q4_0;
    assert_false(sl_matrix_layout(&m, &err));
    m.side = SL_F16;
    m.cols = 192;
    assert_false(sl_matrix_layout(&m, &err));
}

static void table_finds_ggml_types(void **state) {
    sl_format_id id;
    for (int i = 0; i < SL_FORMAT_COUNT; i++) {
        const sl_format *f = sl_format_get((sl_format_id)i);
        if (f->ggml_type >= 0) {
            assert_ptr_equal(sl_format_by_ggml_type(f->ggml_type, &id), f);
            assert_int_equal(id, i);
            assert_string_equal(sl_ggml_type_name(f->ggml_type), f->name);
        }
    }
    assert_null(sl_format_by_ggml_type(24, &id));
    assert_string_equal(sl_ggml_type_name(24), "I8");
    assert_null(sl_format_by_ggml_type(-1, &id));
    assert_null(sl_ggml_type_name(-1));
    assert_null(sl_ggml_type_name(4));
    assert_null(sl_ggml_type_name(99999));
}

static void table_finds_names(void **state) {
    sl_format_id id;
    for (int i = 0; i < SL_FORMAT_COUNT; i++) {
        const sl_format *f = sl_format_get((sl_format_id)i);
        assert_ptr_equal(sl_format_by_name(f->name, &id), f); /* so that no two have the same name */
        assert_int_equal(id, i);
        assert_true(f->parts >= 1 && f->parts <= 3);
        assert_int_equal(f->parts == 3, sl_format_is_affine((sl_format_id)i));
        if (f->bits) {
            assert_true(sl_affine_by_bits(f->bits, &id));
            assert_int_equal(id, i);
            assert_int_equal(f->block_bytes, f->block_weights * (uint32_t)f->bits / 8);
        }
    }
    assert_non_null(sl_format_by_name("q2_k", &id));
    assert_int_equal(id, SL_Q2_K);
    assert_null(sl_format_by_name("Q2", &id));
    assert_null(sl_format_by_name("", &id));
    assert_false(sl_affine_by_bits(0, &id));
    assert_false(sl_affine_by_bits(1, &id));
    assert_false(sl_affine_by_bits(7, &id));
}

static void layout_of_separate_scales(void **state) {
    sl_error err;
    sl_matrix m = {.format = SL_MXFP4_SPLIT, .rows = 3, .cols = 96};
    assert_true(sl_matrix_layout(&m, &err));
    assert_int_equal(m.group, 32);
    assert_int_equal(m.row_bytes[0], 48);
    assert_int_equal(m.row_bytes[1], 3);
    assert_int_equal(m.row_bytes[2], 0);
    m.cols = 48;
    assert_false(sl_matrix_layout(&m, &err));
    assert_string_equal(err.message, "mxfp4_split with 48 columns, expected a multiple of 32");
    m = (sl_matrix){.format = SL_NVFP4_SPLIT, .rows = 3, .cols = 48};
    assert_true(sl_matrix_layout(&m, &err));
    assert_int_equal(m.row_bytes[0], 24);
    assert_int_equal(m.row_bytes[1], 3);
    m = (sl_matrix){.format = SL_FP8, .group = 128, .side = SL_F32, .rows = 257, .cols = 129};
    assert_true(sl_matrix_layout(&m, &err));
    assert_int_equal(m.row_bytes[0], 129);
    assert_int_equal(m.row_bytes[1], 8);
    assert_int_equal(sl_matrix_part_bytes(&m, 0), 257 * 129);
    assert_int_equal(sl_matrix_part_bytes(&m, 1), 3 * 8);
    assert_int_equal(sl_matrix_part_bytes(&m, 2), 0);
    m.group = 64;
    assert_false(sl_matrix_layout(&m, &err));
    assert_string_equal(err.message, "fp8 block of 64 rows and columns, expected 128");
    m.group = 128;
    m.side = SL_FP8;
    assert_false(sl_matrix_layout(&m, &err));
}

/* Any two of an FP8 matrix's views of rows agree with the whole, wherever its blocks begin. */
static void views_of_fp8_keep_their_scales(void **state) {
    enum { ROWS = 300, COLS = 130 };
    uint32_t seed = 3;
    uint8_t *codes = malloc(ROWS * COLS);
    float scales[3 * 2], whole[COLS], part[COLS];
    for (int i = 0; i < ROWS * COLS; i++) {
        codes[i] = (uint8_t)(next_random(&seed) >> 24) & 0x77;
    }
    for (int i = 0; i < 6; i++) {
        scales[i] = (float)(i + 1);
    }
    sl_matrix m = {.format = SL_FP8, .group = 128, .side = SL_F32, .rows = ROWS, .cols = COLS};
    m.part[0] = codes;
    m.part[1] = (const uint8_t *)scales;
    assert_true(sl_matrix_layout(&m, NULL));
    static const int64_t begins[] = {0, 1, 127, 128, 129, 200, 256};
    for (size_t a = 0; a < SL_COUNT(begins); a++) {
        for (int64_t second = 0; second < 40; second += 13) {
            sl_matrix v = sl_matrix_rows(&m, begins[a], ROWS - begins[a]);
            v = sl_matrix_rows(&v, second, v.rows - second);
            assert_int_equal(sl_matrix_part_bytes(&v, 1), (3 - (begins[a] + second) / 128) * 8);
            for (int64_t r = 0; r < v.rows; r += 7) {
                sl_format_get(SL_FP8)->dequantize(&m, begins[a] + second + r, 0, COLS, whole);
                sl_format_get(SL_FP8)->dequantize(&v, r, 0, COLS, part);
                assert_memory_equal(whole, part, sizeof whole);
            }
        }
    }
    free(codes);
}

static void alternating_rows(void **state) {
    uint8_t codes[5 * 32], scales[5 * 2];
    for (int i = 0; i < 160; i++) {
        codes[i] = (uint8_t)(i * 37);
    }
    for (int i = 0; i < 10; i++) {
        scales[i] = (uint8_t)(120 + i);
    }
    sl_matrix m = {.format = SL_MXFP4_SPLIT, .rows = 5, .cols = 64, .part = {codes, scales}};
    assert_true(sl_matrix_layout(&m, NULL));
    sl_matrix even = sl_matrix_every(&m, 0, 2), odd = sl_matrix_every(&m, 1, 2);
    assert_int_equal(even.rows, 3);
    assert_int_equal(odd.rows, 2);
    float whole[64], part[64];
    for (int r = 0; r < 5; r++) {
        sl_format_get(m.format)->dequantize(&m, r, 0, 64, whole);
        sl_format_get(m.format)->dequantize(r % 2 ? &odd : &even, r / 2, 0, 64, part);
        assert_memory_equal(whole, part, sizeof whole);
    }
}

static void rows_view_moves_every_part(void **state) {
    uint8_t codes[256], scales[32], biases[32];
    sl_matrix m = {
        .format = SL_AFFINE8, .group = 32, .side = SL_F16, .rows = 4, .cols = 64, .part = {codes, scales, biases}};
    assert_true(sl_matrix_layout(&m, NULL));
    sl_matrix v = sl_matrix_rows(&m, 3, 1);
    assert_int_equal(v.rows, 1);
    assert_ptr_equal(v.part[0], codes + 192);
    assert_ptr_equal(v.part[1], scales + 12);
    assert_ptr_equal(v.part[2], biases + 12);
}

int main(void) {
    golden = getenv("SL_QUANT_VECTORS") ? getenv("SL_QUANT_VECTORS") : golden;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dequantize_equals_python),   cmocka_unit_test(quantize_equals_python),
        cmocka_unit_test(f16_to_f32_is_exact),        cmocka_unit_test(f32_to_f16_rounds_to_even),
        cmocka_unit_test(bf16_rounds_to_even),        cmocka_unit_test(affine_quantize_round_trips),
        cmocka_unit_test(quantize_survives_extremes), cmocka_unit_test(layout_checks_shapes),
        cmocka_unit_test(table_finds_ggml_types),     cmocka_unit_test(table_finds_names),
        cmocka_unit_test(layout_of_separate_scales),  cmocka_unit_test(views_of_fp8_keep_their_scales),
        cmocka_unit_test(alternating_rows),           cmocka_unit_test(rows_view_moves_every_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

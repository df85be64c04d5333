/* MLX-quantised weights: three tensors become one, and config and shapes must agree. */
#include "support_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One quantised module "m": weight of 3 x 8 words, scales and biases of 3 x 1: 64 columns at 4 bits, group 64. */
typedef struct triple {
    const char *weight_dtype, *weight_shape;
    int weight_bytes;
    const char *scales_dtype, *scales_shape; /* NULL: left out */
    int scales_bytes;
    const char *biases_dtype, *biases_shape;
    int biases_bytes;
} triple;

static const triple good = {"U32", "[3,8]", 96, "BF16", "[3,1]", 6, "BF16", "[3,1]", 6};

static void add(sl_buf *b, const char *name, const char *dtype, const char *shape, int bytes, int *at) {
    if (dtype) {
        sl_buf_printf(b, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%d,%d]}", b->size > 1 ? "," : "",
                      name, dtype, shape, *at, *at + bytes);
        *at += bytes;
    }
}

static char *triple_dir(const char *config, const triple *t) {
    char *dir = make_dir();
    sl_buf b = {0};
    int at = 0;
    sl_buf_puts(&b, "{");
    add(&b, "norm.weight", "F32", "[2]", 8, &at);
    add(&b, "m.weight", t->weight_dtype, t->weight_shape, t->weight_bytes, &at);
    add(&b, "m.scales", t->scales_dtype, t->scales_shape, t->scales_bytes, &at);
    add(&b, "m.biases", t->biases_dtype, t->biases_shape, t->biases_bytes, &at);
    sl_buf_puts(&b, "}");
    write_text(dir, "config.json", config);
    safetensors_file(dir, "model.safetensors", b.data, (size_t)at);
    sl_buf_free(&b);
    return dir;
}

static sl_ckpt *open_triple(const char *config, const triple *t, sl_error *err) {
    char *dir = triple_dir(config, t);
    *err = poisoned();
    sl_ckpt *c = sl_ckpt_open(dir, err);
    remove_dir(dir);
    return c;
}

static void fails(const char *config, const triple *t, sl_code code, const char *one, const char *two) {
    sl_error err;
    sl_ckpt *c = open_triple(config, t, &err);
    if (c) {
        fail_msg("opened, expected \"%s\"", one);
    }
    expect_error(&err, code, one, two, NULL);
}

#define Q4 "{\"quantization\": {\"group_size\": 64, \"bits\": 4}}"

static void three_become_one(void **state) {
    sl_error err;
    sl_ckpt *c = open_triple(Q4, &good, &err);
    assert_non_null(c);
    assert_int_equal(sl_ckpt_tensor_count(c), 2);
    assert_int_equal(sl_ckpt_bytes(c), 8 + 96 + 12);
    assert_null(sl_ckpt_find(c, "m.scales"));
    assert_null(sl_ckpt_find(c, "m.biases"));
    const sl_tensor *t = sl_ckpt_find(c, "m.weight");
    assert_int_equal(t->format, SL_AFFINE4);
    assert_int_equal(t->group, 64);
    assert_int_equal(t->side, SL_BF16);
    assert_int_equal(t->dims, 2);
    assert_int_equal(t->shape[0], 3);
    assert_int_equal(t->shape[1], 64);
    assert_int_equal(t->parts, 3);
    assert_int_equal(t->part[0].bytes, 96);
    assert_int_equal(t->part[1].offset, t->part[0].offset + 96);
    assert_int_equal(t->part[2].offset, t->part[1].offset + 6);
    sl_matrix m;
    assert_true(sl_tensor_matrix(t, &m, &err));
    assert_int_equal(m.row_bytes[0], 32);
    assert_int_equal(m.row_bytes[1], 2);
    assert_int_equal(m.row_bytes[2], 2);
    assert_int_equal(sl_ckpt_find(c, "norm.weight")->format, SL_F32);
    sl_ckpt_close(c);
}

static void overrides(void **state) {
    static const triple wide = {"U32", "[3,16]", 192, "F16", "[3,2]", 12, "F16", "[3,2]", 12};
    static const struct {
        const char *config;
        sl_format_id format;
        int group, cols;
    } rows[] = {
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"m\":{\"group_size\":32,\"bits\":8}}}", SL_AFFINE8, 32, 64},
        {"{\"quantization\":{\"group_size\":32,\"bits\":8,\"m\":{}}}", SL_AFFINE4, 64, 128}, /* the library's own */
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"m\":true}}", SL_AFFINE4, 64, 128},
        {"{\"quantization\":{\"group_size\":64,\"bits\":2,\"m\":{\"bits\":4,\"mode\":\"affine\"}}}", SL_AFFINE4, 64,
         128},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"mode\":\"affine\",\"n\":false}}", SL_AFFINE4, 64, 128},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        sl_error err;
        sl_ckpt *c = open_triple(rows[i].config, &wide, &err);
        if (!c) {
            fail_msg("%s", err.message);
        }
        const sl_tensor *t = sl_ckpt_find(c, "m.weight");
        assert_int_equal(t->format, rows[i].format);
        assert_int_equal(t->group, rows[i].group);
        assert_int_equal(t->shape[1], rows[i].cols);
        assert_int_equal(t->side, SL_F16);
        sl_ckpt_close(c);
    }
}

/* All widths: words of 3, 5 and 6 bits hold codes that cross their boundaries. */
static void every_width(void **state) {
    static const int widths[] = {2, 3, 4, 5, 6, 8};
    for (size_t i = 0; i < SL_COUNT(widths); i++) {
        char config[100], shape[16];
        int words = 128 * widths[i] / 32;
        snprintf(config, sizeof config, "{\"quantization\":{\"group_size\":128,\"bits\":%d}}", widths[i]);
        snprintf(shape, sizeof shape, "[3,%d]", words);
        triple t = {"U32", shape, 12 * words, "F32", "[3,1]", 12, "F32", "[3,1]", 12};
        sl_error err;
        sl_ckpt *c = open_triple(config, &t, &err);
        if (!c) {
            fail_msg("%s", err.message);
        }
        sl_matrix m;
        const sl_tensor *w = sl_ckpt_find(c, "m.weight");
        assert_int_equal(sl_format_get(w->format)->bits, widths[i]);
        assert_int_equal(w->shape[1], 128);
        assert_true(sl_tensor_matrix(w, &m, &err));
        sl_ckpt_close(c);
    }
}

static const triple mxfp4 = {"U32", "[3,8]", 96, "U8", "[3,2]", 6, NULL, "", 0};

static void mode_mxfp4(void **state) {
    static const char *const configs[] = {
        "{\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\"}}",
        "{\"quantization\":{\"group_size\":64,\"bits\":8,\"m\":{\"mode\":\"mxfp4\"}}}",
        "{\"quantization\":{\"group_size\":64,\"bits\":8,\"m\":{\"mode\":\"mxfp4\",\"bits\":4,\"group_size\":32}}}",
    };
    for (size_t i = 0; i < SL_COUNT(configs); i++) {
        sl_error err;
        sl_ckpt *c = open_triple(configs[i], &mxfp4, &err);
        if (!c) {
            fail_msg("%s", err.message);
        }
        const sl_tensor *t = sl_ckpt_find(c, "m.weight");
        assert_int_equal(t->format, SL_MXFP4_SPLIT);
        assert_int_equal(t->parts, 2);
        assert_int_equal(t->shape[0], 3);
        assert_int_equal(t->shape[1], 64);
        assert_int_equal(t->part[1].offset, t->part[0].offset + 96);
        sl_matrix m;
        assert_true(sl_tensor_matrix(t, &m, &err));
        assert_int_equal(m.row_bytes[0], 32);
        assert_int_equal(m.row_bytes[1], 2);
        sl_ckpt_close(c);
    }
}

/* Modes that say bits and group themselves. */
static void modes_nvfp4_and_mxfp8(void **state) {
    static const triple nvfp4 = {"U32", "[3,8]", 96, "U8", "[3,4]", 12, NULL, "", 0};
    static const triple mxfp8 = {"U32", "[3,16]", 192, "U8", "[3,2]", 6, NULL, "", 0};
    static const struct {
        const char *config;
        const triple *t;
        sl_format_id format;
    } rows[] = {
        {"{\"quantization\":{\"group_size\":16,\"bits\":4,\"mode\":\"nvfp4\"}}", &nvfp4, SL_NVFP4_SPLIT},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"m\":{\"mode\":\"nvfp4\"}}}", &nvfp4, SL_NVFP4_SPLIT},
        {"{\"quantization\":{\"group_size\":32,\"bits\":8,\"mode\":\"mxfp8\"}}", &mxfp8, SL_MXFP8_SPLIT},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        sl_error err;
        sl_ckpt *c = open_triple(rows[i].config, rows[i].t, &err);
        if (!c) {
            fail_msg("%s", err.message);
        }
        const sl_tensor *t = sl_ckpt_find(c, "m.weight");
        sl_matrix m;
        assert_int_equal(t->format, rows[i].format);
        assert_int_equal(t->shape[1], 64);
        assert_true(sl_tensor_matrix(t, &m, &err));
        sl_ckpt_close(c);
    }
}

/* In a model of mode mxfp4 an override without a mode is affine, as in MLX's own library. */
static void override_without_mode_is_affine(void **state) {
    sl_error err;
    sl_ckpt *c = open_triple("{\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\",\"m\":{\"bits\":4}}}",
                             &good, &err);
    if (!c) {
        fail_msg("%s", err.message);
    }
    assert_int_equal(sl_ckpt_find(c, "m.weight")->format, SL_AFFINE4);
    sl_ckpt_close(c);
}

static void mxfp4_that_does_not_fit(void **state) {
    static const struct {
        triple t;
        const char *one, *two;
    } rows[] = {
        {{"U32", "[3,8]", 96, NULL, "", 0, NULL, "", 0}, "\"m.weight\"", ".scales are missing"},
        {{"U32", "[3,8]", 96, "BF16", "[3,2]", 12, NULL, "", 0},
         "\"m.weight\"",
         "scales are BF16, expected U8 in mode mxfp4"},
        {{"U32", "[3,8]", 96, "U8", "[2,3]", 6, NULL, "", 0},
         "\"m.weight\"",
         "shapes of .weight and .scales do not go together"},
        {{"U32", "[3,8]", 96, "U8", "[3,1]", 3, NULL, "", 0},
         "8 words of 4-bit codes are 64 columns",
         "1 scales for groups of 32"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        fails("{\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\"}}", &rows[i].t, SL_ERR_FORMAT,
              rows[i].one, rows[i].two);
    }
}

/* MLX writes its parameters twice; where a method of Hugging Face's is named beside them, MLX's own field counts. */
static void names_of_the_field(void **state) {
    static const char *const configs[] = {
        "{\"quantization_config\":{\"group_size\":64,\"bits\":4}}",
        "{\"quantization\":null,\"quantization_config\":{\"group_size\":64,\"bits\":4}}",
        "{\"quantization\":{\"group_size\":64,\"bits\":4},\"quantization_config\":{\"quant_method\":\"fp8\"}}",
        "{\"quantization\":{\"group_size\":64,\"bits\":4,\"quant_method\":\"x\"}}",
        "{\"text_config\":{\"quantization\":{\"group_size\":64,\"bits\":4}}}",
    };
    for (size_t i = 0; i < SL_COUNT(configs); i++) {
        sl_error err;
        sl_ckpt *c = open_triple(configs[i], &good, &err);
        if (!c) {
            fail_msg("%s: %s", configs[i], err.message);
        }
        assert_int_equal(sl_ckpt_find(c, "m.weight")->format, SL_AFFINE4);
        sl_ckpt_close(c);
    }
}

/* Experts stacked: [experts][rows][words]; a slice is one expert with its three parts. */
static void stacked_experts(void **state) {
    static const triple stacked = {"U32", "[5,3,16]", 960, "F32", "[5,3,2]", 120, "F32", "[5,3,2]", 120};
    sl_error err;
    sl_ckpt *c = open_triple("{\"quantization\":{\"group_size\":64,\"bits\":4}}", &stacked, &err);
    assert_non_null(c);
    const sl_tensor *t = sl_ckpt_find(c, "m.weight");
    assert_int_equal(t->dims, 3);
    assert_int_equal(t->shape[2], 128);
    sl_tensor e;
    assert_true(sl_tensor_slice(t, 4, &e, &err));
    assert_int_equal(e.dims, 2);
    assert_int_equal(e.shape[0], 3);
    assert_int_equal(e.shape[1], 128);
    assert_int_equal(e.part[0].offset, t->part[0].offset + 4 * 192);
    assert_int_equal(e.part[0].bytes, 192);
    assert_int_equal(e.part[1].offset, t->part[1].offset + 4 * 24);
    assert_int_equal(e.part[2].offset, t->part[2].offset + 4 * 24);
    assert_int_equal(e.part[2].bytes, 24);
    sl_matrix m;
    assert_true(sl_tensor_matrix(&e, &m, &err));
    assert_int_equal(m.row_bytes[1], 8);
    sl_ckpt_close(c);
}

static void config_that_cannot_be(void **state) {
    static const struct {
        const char *config;
        sl_code code;
        const char *one;
    } rows[] = {
        {"{}", SL_ERR_FORMAT, "no \"quantization\", but tensor \"m.weight\" has U32 codes and scales"},
        {"{\"quantization\":null}", SL_ERR_FORMAT, "no \"quantization\""},
        {"{\"quantization\":4}", SL_ERR_FORMAT, "quantization is not an object"},
        {"{\"quantization\":{\"bits\":4}}", SL_ERR_FORMAT, "quantization.group_size is missing (tensor \"m.weight\")"},
        {"{\"quantization\":{\"group_size\":64}}", SL_ERR_FORMAT, "quantization.bits is missing (tensor \"m.weight\")"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":\"4\"}}", SL_ERR_FORMAT,
         "quantization.bits is not a small positive integer"},
        {"{\"quantization\":{\"group_size\":-64,\"bits\":4}}", SL_ERR_FORMAT,
         "group_size is not a small positive integer"},
        {"{\"quantization\":{\"group_size\":9007199254740993,\"bits\":4}}", SL_ERR_FORMAT, "not a small positive"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":1}}", SL_ERR_UNSUPPORTED,
         "quantization.bits is 1, expected 2, 3, 4, 5, 6 or 8 (tensor \"m.weight\")"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":7}}", SL_ERR_UNSUPPORTED, "quantization.bits is 7"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":1048576}}", SL_ERR_UNSUPPORTED, "quantization.bits is 1048576"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"m\":{\"bits\":16}}}", SL_ERR_UNSUPPORTED,
         "quantization.m.bits is 16, expected 2, 3, 4, 5, 6 or 8 (tensor \"m.weight\")"},
        {"{\"quantization_config\":{\"group_size\":64,\"bits\":4,\"m\":{\"bits\":16}}}", SL_ERR_UNSUPPORTED,
         "quantization_config.m.bits is 16"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"mode\":\"nvfp5\"}}", SL_ERR_UNSUPPORTED,
         "quantization.mode is \"nvfp5\", expected \"affine\", \"mxfp4\", \"nvfp4\" or \"mxfp8\" (tensor "
         "\"m.weight\")"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"m\":{\"mode\":\"mxfp9\"}}}", SL_ERR_UNSUPPORTED,
         "quantization.m.mode is \"mxfp9\""},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"mode\":7}}", SL_ERR_UNSUPPORTED,
         "quantization.mode is \"?\""},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"m\":false}}", SL_ERR_FORMAT,
         "quantization.m is not an object with bits and group_size, but tensor \"m.weight\" is quantised"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"m\":[1]}}", SL_ERR_FORMAT,
         "quantization.m is not an object"},
        {"{\"quantization\":{\"group_size\":16,\"bits\":4}}", SL_ERR_UNSUPPORTED,
         "quantization.group_size is 16, expected 32, 64 or 128 (tensor \"m.weight\")"},
        {"{\"quantization\":{\"group_size\":32,\"bits\":4}}", SL_ERR_FORMAT,
         "tensor \"m.weight\": 8 words of 4-bit codes are 64 columns, but 1 scales for groups of 32 are 32"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":8}}", SL_ERR_FORMAT, "8 words of 8-bit codes are 32 columns"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":2}}", SL_ERR_FORMAT, "8 words of 2-bit codes are 128 columns"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":3}}", SL_ERR_FORMAT, "8 words of 3-bit codes are 85 columns"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":5}}", SL_ERR_FORMAT, "8 words of 5-bit codes are 51 columns"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":6}}", SL_ERR_FORMAT, "8 words of 6-bit codes are 42 columns"},
        {"{\"quantization\":{\"group_size\":32,\"bits\":8,\"mode\":\"mxfp4\"}}", SL_ERR_FORMAT,
         "quantization.bits is 8, expected 4 in mode mxfp4 (tensor \"m.weight\")"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":4,\"mode\":\"mxfp4\"}}", SL_ERR_FORMAT,
         "quantization.group_size is 64, expected 32 in mode mxfp4"},
        {"{\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\"}}", SL_ERR_FORMAT,
         "tensor \"m.weight\": has .biases, but its mode is mxfp4, which has none"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        fails(rows[i].config, &good, rows[i].code, rows[i].one, rows[i].code == SL_ERR_FORMAT ? "" : "config.json: ");
    }
}

static void parts_that_do_not_fit(void **state) {
    static const struct {
        triple t;
        const char *one, *two;
    } rows[] = {
        {{"U32", "[3,8]", 96, NULL, "", 0, "BF16", "[3,1]", 6}, "\"m.weight\"", ".scales are missing"},
        {{"U32", "[3,8]", 96, NULL, "", 0, NULL, "", 0}, "\"m.weight\"", ".scales are missing"},
        {{"U32", "[3,8]", 96, "BF16", "[3,1]", 6, NULL, "", 0}, "\"m.weight\"", ".biases are missing"},
        {{"U32", "[3,8]", 96, "BF16", "[3,1]", 6, "F16", "[3,1]", 6}, "scales are BF16, biases F16", "\"m.weight\""},
        {{"U32", "[3,8]", 96, "I16", "[3,1]", 6, "I16", "[3,1]", 6}, "scales are I16", "expected both F16"},
        {{"U32", "[3,8]", 96, "BF16", "[2,1]", 4, "BF16", "[2,1]", 4}, "\"m.weight\"", "do not go together"},
        {{"U32", "[3,8]", 96, "BF16", "[3,1]", 6, "BF16", "[1,3]", 6}, "\"m.weight\"", "do not go together"},
        {{"U32", "[3,8]", 96, "BF16", "[3]", 6, "BF16", "[3]", 6}, "\"m.weight\"", "do not go together"},
        {{"U32", "[8]", 32, "BF16", "[1]", 2, "BF16", "[1]", 2}, "\"m.weight\"", "not of 2 to 4 dimensions"},
        {{"U32", "[1,1,1,1,8]", 32, "BF16", "[1,1,1,1,1]", 2, "BF16", "[1,1,1,1,1]", 2}, "\"m.weight\"", "2 to 4"},
        {{"F32", "[3,8]", 96, "BF16", "[3,1]", 6, "BF16", "[3,1]", 6}, "dtype F32, expected U32 codes", "has scales"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        fails(Q4, &rows[i].t, SL_ERR_FORMAT, rows[i].one, rows[i].two);
    }
}

static void override_for_a_weight_that_is_not_packed(void **state) {
    static const triple plain = {"F32", "[3,8]", 96, NULL, "", 0, NULL, "", 0};
    fails("{\"quantization\":{\"group_size\":64,\"bits\":4,\"m\":{\"bits\":8,\"group_size\":64}}}", &plain,
          SL_ERR_FORMAT, "tensor \"m.weight\": dtype F32, expected U32 codes",
          "an entry in config.json's quantization");
    sl_error err;
    sl_ckpt *c = open_triple("{\"quantization\":{\"group_size\":64,\"bits\":4,\"m\":false}}", &plain, &err);
    assert_non_null(c);
    assert_int_equal(sl_ckpt_find(c, "m.weight")->format, SL_F32);
    sl_ckpt_close(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_become_one),
        cmocka_unit_test(overrides),
        cmocka_unit_test(stacked_experts),
        cmocka_unit_test(config_that_cannot_be),
        cmocka_unit_test(parts_that_do_not_fit),
        cmocka_unit_test(override_for_a_weight_that_is_not_packed),
        cmocka_unit_test(every_width),
        cmocka_unit_test(mode_mxfp4),
        cmocka_unit_test(mxfp4_that_does_not_fit),
        cmocka_unit_test(override_without_mode_is_affine),
        cmocka_unit_test(names_of_the_field),
        cmocka_unit_test(modes_nvfp4_and_mxfp8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

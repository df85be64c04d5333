/* Hugging Face's FP8 with block scales and gpt_oss's MXFP4: several tensors become one, and config and shapes must
 * agree. */
#include "support_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One tensor of the file; ended by one without a name. */
typedef struct entry {
    const char *name, *dtype, *shape;
    int bytes;
} entry;

static sl_ckpt *open_entries(const char *config, const entry *e, sl_error *err) {
    char *dir = make_dir();
    sl_buf b = {0};
    int at = 0;
    sl_buf_puts(&b, "{");
    for (; e->name; e++) {
        sl_buf_printf(&b, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%d,%d]}", b.size > 1 ? "," : "",
                      e->name, e->dtype, e->shape, at, at + e->bytes);
        at += e->bytes;
    }
    sl_buf_puts(&b, "}");
    write_text(dir, "config.json", config);
    safetensors_file(dir, "model.safetensors", b.data, (size_t)at);
    sl_buf_free(&b);
    *err = poisoned();
    sl_ckpt *c = sl_ckpt_open(dir, err);
    remove_dir(dir);
    return c;
}

static sl_ckpt *opens(const char *config, const entry *e) {
    sl_error err;
    sl_ckpt *c = open_entries(config, e, &err);
    if (!c) {
        fail_msg("%s", err.message);
    }
    return c;
}

static void fails(const char *config, const entry *e, sl_code code, const char *one, const char *two) {
    sl_error err;
    if (open_entries(config, e, &err)) {
        fail_msg("opened, expected \"%s\"", one);
    }
    expect_error(&err, code, one, two, NULL);
}

#define FP8                                                                                                            \
    "{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],"                              \
    "\"modules_to_not_convert\":[\"lm_head\"]}}"

static void fp8_with_block_scales(void **state) {
    static const entry entries[] = {{"m.weight", "F8_E4M3", "[130,200]", 26000},
                                    {"m.weight_scale_inv", "BF16", "[2,2]", 8},
                                    {"lm_head.weight", "BF16", "[2,4]", 16},
                                    {"s", "F8_E4M3", "[2,256,3]", 1536}, /* stacked, and no ".weight" */
                                    {"s_scale_inv", "F32", "[2,2,1]", 16},
                                    {0}};
    sl_ckpt *c = opens(FP8, entries);
    assert_int_equal(sl_ckpt_tensor_count(c), 3);
    assert_int_equal(sl_ckpt_find(c, "lm_head.weight")->format, SL_BF16);
    assert_null(sl_ckpt_find(c, "m.weight_scale_inv"));
    const sl_tensor *t = sl_ckpt_find(c, "m.weight"), *s = sl_ckpt_find(c, "s");
    assert_int_equal(t->format, SL_FP8);
    assert_int_equal(t->group, 128);
    assert_int_equal(t->side, SL_BF16);
    assert_int_equal(t->parts, 2);
    assert_int_equal(t->part[1].offset, t->part[0].offset + 26000);
    assert_int_equal(sl_tensor_bytes(t), 26008);
    sl_matrix m;
    sl_error err;
    assert_true(sl_tensor_matrix(t, &m, &err));
    assert_int_equal(m.row_bytes[1], 4);
    sl_tensor expert, up;
    assert_true(sl_tensor_slice(s, 1, &expert, &err));
    assert_int_equal(expert.part[0].offset, s->part[0].offset + 768);
    assert_int_equal(expert.part[1].offset, s->part[1].offset + 8);
    assert_true(sl_tensor_rows(&expert, 128, 128, &up, &err)); /* gate and up fused */
    assert_int_equal(up.part[0].offset, expert.part[0].offset + 384);
    assert_int_equal(up.part[0].bytes, 384);
    assert_int_equal(up.part[1].offset, expert.part[1].offset + 4);
    assert_int_equal(up.part[1].bytes, 4);
    assert_true(sl_tensor_matrix(&up, &m, &err));
    assert_false(sl_tensor_rows(&expert, 64, 64, &up, &err));
    expect_error(&err, SL_ERR_UNSUPPORTED, "tensor \"s\": fp8 rows from 64, expected from a multiple of 128", NULL);
    assert_false(sl_tensor_rows(&expert, 128, 129, &up, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "rows 128 to 256 of 256", NULL);
    sl_ckpt_close(c);
}

static void fp8_that_does_not_fit(void **state) {
    static const entry no_scale[] = {{"m.weight", "F8_E4M3", "[3,4]", 12}, {0}};
    static const entry wrong_shape[] = {
        {"m.weight", "F8_E4M3", "[129,4]", 516}, {"m.weight_scale_inv", "F32", "[1,1]", 4}, {0}};
    static const entry wrong_dims[] = {
        {"m.weight", "F8_E4M3", "[3,4]", 12}, {"m.weight_scale_inv", "F32", "[1]", 4}, {0}};
    static const entry per_tensor[] = {
        {"m.weight", "F8_E4M3", "[3,4]", 12}, {"m.weight_scale_inv", "F32", "[]", 4}, {0}};
    static const entry a_vector[] = {{"m.weight", "F8_E4M3", "[4]", 4}, {"m.weight_scale_inv", "F32", "[1]", 4}, {0}};
    static const entry wrong_dtype[] = {
        {"m.weight", "F8_E4M3", "[3,4]", 12}, {"m.weight_scale_inv", "F8_E8M0", "[1,1]", 1}, {0}};
    static const struct {
        const char *config;
        const entry *e;
        sl_code code;
        const char *one, *two;
    } rows[] = {
        {FP8, no_scale, SL_ERR_FORMAT, "tensor \"m.weight\": dtype F8_E4M3, but \"m.weight_scale_inv\" is missing", ""},
        {FP8, wrong_shape, SL_ERR_FORMAT, "tensor \"m.weight_scale_inv\": shape [1, 1], expected a scale for each",
         "of \"m.weight\", shape [129, 4]"},
        {FP8, wrong_dims, SL_ERR_FORMAT, "\"m.weight_scale_inv\": shape [1]", "shape [3, 4]"},
        {FP8, per_tensor, SL_ERR_FORMAT, "\"m.weight_scale_inv\": shape []", "shape [3, 4]"},
        {FP8, a_vector, SL_ERR_FORMAT, "\"m.weight_scale_inv\": shape [1]", "shape [4]"},
        {FP8, wrong_dtype, SL_ERR_UNSUPPORTED, "tensor \"m.weight_scale_inv\": dtype F8_E8M0",
         "expected F32, F16 or BF16 scales"},
        {"{\"quantization_config\":{\"quant_method\":\"fp8\"}}", no_scale, SL_ERR_UNSUPPORTED,
         "config.json: ", "quantization_config.weight_block_size is missing, expected [128,128]"},
        {"{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[1,128]}}", no_scale,
         SL_ERR_UNSUPPORTED, "config.json: ", "weight_block_size is [1,128], expected [128,128]"},
        {"{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":null}}", no_scale,
         SL_ERR_UNSUPPORTED, "config.json: ", "weight_block_size is null, expected [128,128]"},
        {"{\"quantization_config\":[1]}", no_scale, SL_ERR_FORMAT,
         "config.json: ", "quantization_config is not an object"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        fails(rows[i].config, rows[i].e, rows[i].code, rows[i].one, rows[i].two);
    }
}

/* Without the method it is a tensor that only its use makes an error. */
static void fp8_without_its_method(void **state) {
    static const entry entries[] = {{"m.weight", "F8_E4M3", "[3,4]", 12}, {"n.weight", "F32", "[1]", 4}, {0}};
    static const char *const configs[] = {"{}", "{\"quantization_config\":{\"quant_method\":\"other\"}}"};
    for (size_t i = 0; i < SL_COUNT(configs); i++) {
        sl_error err = poisoned();
        sl_ckpt *c = opens(configs[i], entries);
        assert_int_equal(sl_ckpt_tensor_count(c), 1);
        assert_null(sl_ckpt_require(c, "m.weight", &err));
        expect_error(&err, SL_ERR_UNSUPPORTED, "tensor \"m.weight\": dtype F8_E4M3 is not built in", NULL);
        err = poisoned();
        assert_null(sl_ckpt_require(c, "o.weight", &err));
        expect_error(&err, i ? SL_ERR_UNSUPPORTED : SL_ERR_FORMAT, "\"o.weight\" is missing",
                     i ? "quant_method \"other\" is not built in" : "has 2 others", NULL);
        sl_ckpt_close(c);
    }
}

#define MXFP4 "{\"quantization_config\":{\"quant_method\":\"mxfp4\",\"modules_to_not_convert\":[\"lm_head\"]}}"

static void mxfp4_blocks_and_scales(void **state) {
    static const entry entries[] = {{"e.gate_up_proj_blocks", "U8", "[5,4,3,16]", 960},
                                    {"e.gate_up_proj_scales", "U8", "[5,4,3]", 60},
                                    {"e.gate_up_proj_bias", "BF16", "[5,4]", 40},
                                    {0}};
    sl_ckpt *c = opens(MXFP4, entries);
    assert_int_equal(sl_ckpt_tensor_count(c), 2);
    assert_int_equal(sl_ckpt_find(c, "e.gate_up_proj_bias")->format, SL_BF16);
    const sl_tensor *t = sl_ckpt_find(c, "e.gate_up_proj");
    assert_non_null(t);
    assert_int_equal(t->format, SL_MXFP4_SPLIT);
    assert_int_equal(t->dims, 3);
    assert_int_equal(t->shape[0], 5);
    assert_int_equal(t->shape[1], 4);
    assert_int_equal(t->shape[2], 96);
    assert_int_equal(t->shape[3], 0);
    sl_tensor e;
    sl_matrix m;
    sl_error err;
    assert_true(sl_tensor_slice(t, 2, &e, &err));
    assert_int_equal(e.part[0].offset, t->part[0].offset + 2 * 192);
    assert_int_equal(e.part[1].offset, t->part[1].offset + 2 * 12);
    assert_true(sl_tensor_matrix(&e, &m, &err));
    assert_int_equal(m.row_bytes[0], 48);
    assert_int_equal(m.row_bytes[1], 3);
    sl_ckpt_close(c);
}

static void mxfp4_that_does_not_fit(void **state) {
    static const entry no_scales[] = {{"e_blocks", "U8", "[5,4,3,16]", 960}, {0}};
    static const entry eight[] = {{"e_blocks", "U8", "[5,4,3,8]", 480}, {"e_scales", "U8", "[5,4,3]", 60}, {0}};
    static const entry flat[] = {{"e_blocks", "U8", "[4,16]", 64}, {"e_scales", "U8", "[4]", 4}, {0}};
    static const entry deep[] = {{"e_blocks", "U8", "[1,1,1,1,16]", 16}, {"e_scales", "U8", "[1,1,1,1]", 1}, {0}};
    static const entry other[] = {{"e_blocks", "U8", "[5,4,3,16]", 960}, {"e_scales", "U8", "[5,3,4]", 60}, {0}};
    static const entry words[] = {{"e_blocks", "U32", "[1,1,16]", 64}, {"e_scales", "U8", "[1,1]", 1}, {0}};
    static const entry taken[] = {
        {"e", "F32", "[1]", 4}, {"e_blocks", "U8", "[5,4,3,16]", 960}, {"e_scales", "U8", "[5,4,3]", 60}, {0}};
    static const struct {
        const entry *e;
        const char *one, *two;
    } rows[] = {
        {no_scales, "tensor \"e_blocks\" has no _scales beside it", ""},
        {eight, "tensor \"e_blocks\": shape [5, 4, 3, 8], expected [.., rows, groups, 16]", ""},
        {flat, "tensor \"e_blocks\": shape [4, 16]", "expected [.., rows, groups, 16]"},
        {deep, "tensor \"e_blocks\": shape [1, 1, 1, 1, 16]", ""},
        {other, "tensor \"e_scales\": shape [5, 3, 4], expected that of \"e_blocks\", [5, 4, 3, 16], without the last",
         ""},
        {words, "tensor \"e_blocks\": dtype U32, its scales U8, expected both U8", ""},
        {taken, "tensor \"e\" is in", ""},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        fails(MXFP4, rows[i].e, SL_ERR_FORMAT, rows[i].one, rows[i].two);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp8_with_block_scales),   cmocka_unit_test(fp8_that_does_not_fit),
        cmocka_unit_test(fp8_without_its_method),  cmocka_unit_test(mxfp4_blocks_and_scales),
        cmocka_unit_test(mxfp4_that_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Hugging Face directories: single file and shards, side files, tensors of types that no weight has. */
#include "support_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ENTRY(name, dtype, shape, begin, end)                                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static void fails_to_open(const char *dir, sl_code code, const char *one, const char *two, const char *three) {
    sl_error err = poisoned();
    assert_null(sl_ckpt_open(dir, &err));
    expect_error(&err, code, one, two, three, NULL);
}

static sl_ckpt *open_ok(const char *dir) {
    sl_error err = poisoned();
    sl_ckpt *c = sl_ckpt_open(dir, &err);
    if (!c) {
        fail_msg("%s", err.message);
    }
    return c;
}

static void single_file(void **state) {
    char *dir = make_dir();
    write_text(dir, "config.json", "{\"hidden_size\": 8, \"eps\": 1e-6}");
    write_text(dir, "generation_config.json", "{\"eos_token_id\": [1, 2]}");
    write_text(dir, "tokenizer.json", "not parsed here");
    write_text(dir, "model.safetensors.index.json", "a leftover that nobody reads");
    safetensors_file(dir, "model.safetensors",
                     "{" ENTRY("w", "BF16", "[2,3]", 0, 12) "," ENTRY("experts", "F16", "[4,2,1]", 12, 28) "}", 28);
    sl_ckpt *c = open_ok(dir);
    assert_int_equal(sl_ckpt_get_kind(c), SL_CKPT_HF);
    assert_int_equal(sl_ckpt_file_count(c), 1);
    assert_int_equal(sl_ckpt_bytes(c), 28);
    const sl_tensor *w = sl_ckpt_find(c, "w"), *e = sl_ckpt_find(c, "experts");
    assert_int_equal(w->format, SL_BF16);
    assert_int_equal(w->dims, 2);
    assert_int_equal(w->shape[1], 3);
    assert_int_equal(e->format, SL_F16);
    assert_int_equal(sl_tensor_elements(e), 8);
    uint8_t first = 0;
    sl_error err;
    assert_true(sl_file_read(sl_ckpt_file(c, 0), e->part[0].offset, &first, 1, &err));
    assert_int_equal(first, 12);
    assert_int_equal(json_integer_value(json_object_get(sl_ckpt_json(c, "config.json"), "hidden_size")), 8);
    assert_int_equal(json_array_size(json_object_get(sl_ckpt_json(c, "generation_config.json"), "eos_token_id")), 2);
    assert_null(sl_ckpt_json(c, "tokenizer_config.json"));
    assert_null(sl_ckpt_json(c, "tokenizer.json"));
    size_t n = 0;
    char *text = sl_ckpt_text(c, "tokenizer.json", &n, &err);
    assert_string_equal(text, "not parsed here");
    assert_int_equal(n, strlen(text));
    free(text);
    err = poisoned();
    assert_null(sl_ckpt_text(c, "chat_template.jinja", &n, &err));
    assert_int_equal(err.code, SL_OK);
    assert_null(sl_ckpt_text(c, "../secret", &n, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "\"../secret\" is not the plain name of a file", NULL);
    sl_str s;
    assert_false(sl_gguf_str(c, "general.architecture", &s));
    assert_int_equal(sl_gguf_key_count(c), 0);
    sl_ckpt_close(c);
    remove_dir(dir);
}

/* Position ids, masks, FP8 weights, convolutions of five dimensions: there, but only asking for them is an error. */
static void types_that_no_weight_has(void **state) {
    char *dir = make_dir();
    write_text(dir, "config.json", "{}");
    safetensors_file(
        dir, "model.safetensors",
        "{" ENTRY("ids", "I64", "[1]", 0, 8) "," ENTRY("mask", "BOOL", "[2]", 8, 10) "," ENTRY(
            "fp8", "F8_E4M3", "[2]", 10, 12) "," ENTRY("words.weight", "U32", "[1]", 12,
                                                       16) "," ENTRY("conv", "F32", "[1,1,1,1,1]", 16,
                                                                     20) "," ENTRY("w", "F32", "[]", 20, 24) "}",
        24);
    sl_ckpt *c = open_ok(dir);
    assert_int_equal(sl_ckpt_tensor_count(c), 1);
    assert_int_equal(sl_ckpt_bytes(c), 4);
    assert_int_equal(sl_ckpt_find(c, "w")->dims, 0);
    assert_int_equal(sl_tensor_elements(sl_ckpt_find(c, "w")), 1);
    assert_null(sl_ckpt_find(c, "ids"));
    sl_error err = poisoned();
    assert_null(sl_ckpt_require(c, "fp8", &err));
    expect_error(&err, SL_ERR_UNSUPPORTED, "model.safetensors: tensor \"fp8\": dtype F8_E4M3", NULL);
    assert_null(sl_ckpt_require(c, "conv", &err));
    expect_error(&err, SL_ERR_UNSUPPORTED, "tensor \"conv\": 5 dimensions, expected at most 4", NULL);
    assert_null(sl_ckpt_require(c, "absent", &err));
    expect_error(&err, SL_ERR_FORMAT, dir, "tensor \"absent\" is missing", "has 6 others", NULL);
    sl_ckpt_close(c);
    write_text(dir, "config.json", "{\"quantization_config\": {\"quant_method\": \"gptq\"}}");
    c = open_ok(dir);
    assert_null(sl_ckpt_require(c, "absent", &err));
    expect_error(&err, SL_ERR_UNSUPPORTED, "tensor \"absent\" is missing", "quant_method \"gptq\"", NULL);
    sl_ckpt_close(c);
    remove_dir(dir);
}

/* ---- shards ---- */

static const char index_text[] = "{\"metadata\":{\"total_size\":12},\"weight_map\":{"
                                 "\"a\":\"model-00001-of-00002.safetensors\","
                                 "\"b\":\"model-00002-of-00002.safetensors\","
                                 "\"c\":\"model-00002-of-00002.safetensors\"}}";

static char *sharded_dir(void) {
    char *dir = make_dir();
    write_text(dir, "config.json", "{}");
    write_text(dir, "model.safetensors.index.json", index_text);
    safetensors_file(dir, "model-00001-of-00002.safetensors", "{" ENTRY("a", "F32", "[1]", 0, 4) "}", 4);
    safetensors_file(dir, "model-00002-of-00002.safetensors",
                     "{" ENTRY("b", "F32", "[1]", 0, 4) "," ENTRY("c", "F32", "[1]", 4, 8) "}", 8);
    return dir;
}

static void shards(void **state) {
    char *dir = sharded_dir();
    sl_ckpt *c = open_ok(dir);
    assert_int_equal(sl_ckpt_file_count(c), 2);
    assert_int_equal(sl_ckpt_tensor_count(c), 3);
    const sl_tensor *t = sl_ckpt_find(c, "c");
    uint8_t first = 0;
    sl_error err;
    assert_true(sl_file_read(sl_ckpt_file(c, t->part[0].file), t->part[0].offset, &first, 1, &err));
    assert_int_equal(first, 4);
    assert_int_not_equal(t->part[0].file, sl_ckpt_find(c, "a")->part[0].file);
    sl_ckpt_close(c);
    remove_dir(dir);
}

static void missing_shard(void **state) {
    char *dir = sharded_dir();
    unlink(in_dir(dir, "model-00001-of-00002.safetensors"));
    fails_to_open(dir, SL_ERR_IO, "model-00001-of-00002.safetensors: shard is missing", "for tensor \"a\"",
                  "model.safetensors.index.json");
    remove_dir(dir);
}

static void shards_that_contradict_the_index(void **state) {
    char *dir = sharded_dir();
    safetensors_file(dir, "model-00001-of-00002.safetensors", "{" ENTRY("other", "F32", "[1]", 0, 4) "}", 4);
    fails_to_open(dir, SL_ERR_FORMAT, "model-00001-of-00002.safetensors: tensor \"a\" is not in it", "index", "");
    safetensors_file(dir, "model-00001-of-00002.safetensors",
                     "{" ENTRY("a", "F32", "[1]", 0, 4) "," ENTRY("b", "F32", "[1]", 4, 8) "}", 8);
    fails_to_open(dir, SL_ERR_FORMAT, "tensor \"b\" is in ", "model-00002-of-00002.safetensors",
                  "model-00001-of-00002.safetensors");
    remove_dir(dir);
}

static void bad_index(void **state) {
    static const struct {
        const char *text, *one, *two;
    } rows[] = {
        {"{", "invalid JSON", ""},
        {"{}", "no \"weight_map\" object", ""},
        {"{\"weight_map\":[]}", "no \"weight_map\" object", ""},
        {"{\"weight_map\":{\"a\":1}}", "weight_map: tensor \"a\" has no file name", ""},
        {"{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}", "duplicate object key", ""},
        {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", "tensor \"a\" is in \"../x.safetensors\"", "plain name"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "tensor \"a\" is in \"/etc/passwd\"", "plain name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "tensor \"a\" is in \"..\"", "plain name"},
        {"{\"weight_map\":{\"a\":\"x\\\\y\"}}", "tensor \"a\" is in \"x\\y\"", "plain name"},
        {"{\"weight_map\":{\"a\":\"\"}}", "tensor \"a\" is in \"\"", "plain name"},
    };
    char *dir = sharded_dir();
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        write_text(dir, "model.safetensors.index.json", rows[i].text);
        fails_to_open(dir, SL_ERR_FORMAT, "model.safetensors.index.json: ", rows[i].one, rows[i].two);
    }
    remove_dir(dir);
}

/* ---- side files ---- */

static void no_weights(void **state) {
    char *dir = make_dir();
    write_text(dir, "config.json", "{}");
    fails_to_open(dir, SL_ERR_IO, dir, "neither model.safetensors nor model.safetensors.index.json is there", "");
    remove_dir(dir);
}

static void bad_side_files(void **state) {
    char *dir = make_dir();
    safetensors_file(dir, "model.safetensors", "{}", 0);
    fails_to_open(dir, SL_ERR_IO, "config.json: file is missing", "", "");
    write_text(dir, "config.json", "");
    fails_to_open(dir, SL_ERR_FORMAT, "config.json: line 1", "invalid JSON", "");
    write_text(dir, "config.json", "{\"a\": 1,\n\"b\": }");
    fails_to_open(dir, SL_ERR_FORMAT, "config.json: line 2", "invalid JSON", "");
    write_text(dir, "config.json", "[1]");
    fails_to_open(dir, SL_ERR_FORMAT, "config.json: JSON array at the top, expected an object", "", "");
    char *bomb = malloc(100001);
    memset(bomb, '[', 100000);
    bomb[100000] = 0;
    memcpy(bomb, "{\"a\":", 5);
    write_text(dir, "config.json", bomb);
    free(bomb);
    fails_to_open(dir, SL_ERR_FORMAT, "config.json: ", "maximum parsing depth", "");
    write_text(dir, "config.json", "{}");
    write_text(dir, "tokenizer_config.json", "{\"x\"");
    fails_to_open(dir, SL_ERR_FORMAT, "tokenizer_config.json: ", "invalid JSON", "");
    remove_dir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_file), cmocka_unit_test(types_that_no_weight_has),
        cmocka_unit_test(shards),      cmocka_unit_test(missing_shard),
        cmocka_unit_test(bad_index),   cmocka_unit_test(shards_that_contradict_the_index),
        cmocka_unit_test(no_weights),  cmocka_unit_test(bad_side_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

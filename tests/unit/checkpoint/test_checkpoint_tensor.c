/* Arithmetic on tensors, the name table, JSON beyond the standard. */
#include "support_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tensors ---- */

static sl_tensor q4_stack(void) {
    return (sl_tensor){.name = "experts",
                       .format = SL_Q4_0,
                       .dims = 3,
                       .shape = {7, 5, 96},
                       .parts = 1,
                       .part = {{.file = 2, .offset = 1000, .bytes = 7 * 5 * 3 * 18}}};
}

static void slices(void **state) {
    sl_tensor t = q4_stack(), out, row;
    sl_error err = poisoned();
    memset(&out, 0xa5, sizeof out);
    assert_true(sl_tensor_slice(&t, 6, &out, &err));
    assert_int_equal(out.dims, 2);
    assert_int_equal(out.shape[0], 5);
    assert_int_equal(out.shape[1], 96);
    assert_int_equal(out.shape[2], 0);
    assert_int_equal(out.part[0].file, 2);
    assert_int_equal(out.part[0].bytes, 270);
    assert_int_equal(out.part[0].offset, 1000 + 6 * 270);
    assert_true(sl_tensor_slice(&out, 1, &row, &err));
    assert_int_equal(row.dims, 1);
    assert_int_equal(row.part[0].bytes, 54);
    assert_int_equal(row.part[0].offset, 1000 + 6 * 270 + 54);
    assert_false(sl_tensor_slice(&row, 0, &out, &err));
    expect_error(&err, SL_ERR_FORMAT, "tensor \"experts\": 1 dimensions, expected at least 2", NULL);
    assert_false(sl_tensor_slice(&t, 7, &out, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "tensor \"experts\": slice 7, expected 0 to 6", NULL);
    assert_false(sl_tensor_slice(&t, -1, &out, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "slice -1", NULL);
    t.part[0].bytes++;
    assert_false(sl_tensor_slice(&t, 0, &out, &err));
    expect_error(&err, SL_ERR_FORMAT, "tensor \"experts\": 1891 bytes do not divide into 7 slices", NULL);
}

static void matrices(void **state) {
    sl_tensor t = q4_stack(), slice;
    sl_matrix m;
    sl_error err = poisoned();
    assert_false(sl_tensor_matrix(&t, &m, &err));
    expect_error(&err, SL_ERR_FORMAT, "tensor \"experts\": 3 dimensions, expected a matrix or a vector", NULL);
    assert_true(sl_tensor_slice(&t, 0, &slice, &err));
    memset(&m, 0xa5, sizeof m);
    assert_true(sl_tensor_matrix(&slice, &m, &err));
    assert_int_equal(m.rows, 5);
    assert_int_equal(m.cols, 96);
    assert_int_equal(m.row_bytes[0], 54);
    assert_null(m.part[0]);
    assert_null(m.part[2]);
    slice.shape[0] = 4;
    assert_false(sl_tensor_matrix(&slice, &m, &err));
    expect_error(&err, SL_ERR_FORMAT, "tensor \"experts\": part 0 has 270 bytes, expected 216 (4 rows of 54)", NULL);
    slice.shape[1] = 95;
    assert_false(sl_tensor_matrix(&slice, &m, &err));
    expect_error(&err, SL_ERR_FORMAT, "tensor \"experts\": Q4_0 with 95 columns", NULL);
    sl_tensor v = {.name = "bias", .format = SL_F32, .dims = 1, .shape = {3}, .parts = 1, .part = {{.bytes = 12}}};
    assert_true(sl_tensor_matrix(&v, &m, &err));
    assert_int_equal(m.rows, 1);
    assert_int_equal(m.cols, 3);
    v.dims = 0;
    assert_false(sl_tensor_matrix(&v, &m, &err));
    expect_error(&err, SL_ERR_FORMAT, "tensor \"bias\": 0 dimensions", NULL);
}

static void sizes(void **state) {
    sl_tensor t = q4_stack();
    assert_int_equal(sl_tensor_elements(&t), 7 * 5 * 96);
    assert_int_equal(sl_tensor_bytes(&t), 1890);
    t.parts = 3;
    t.part[1].bytes = 10;
    t.part[2].bytes = 20;
    assert_int_equal(sl_tensor_bytes(&t), 1920);
}

/* ---- names ---- */

static void many_names(void **state) {
    enum { COUNT = 5000 };
    static char text[COUNT][32];
    ckpt_names t = {0};
    assert_int_equal(ckpt_names_find(&t, "x", 1), CKPT_NONE);
    for (size_t i = 0; i < COUNT; i++) {
        snprintf(text[i], sizeof text[i], "%.*s%zu", (int)(i % 17), "aaaaaaaaaaaaaaaa", i);
        assert_int_equal(ckpt_names_find(&t, text[i], strlen(text[i])), CKPT_NONE);
        assert_true(ckpt_names_add(&t, text[i], strlen(text[i]), i));
    }
    assert_true(ckpt_names_add(&t, "", 0, COUNT));
    assert_int_equal(t.count, COUNT + 1);
    for (size_t i = 0; i < COUNT; i++) {
        char copy[32];
        memcpy(copy, text[i], sizeof copy);
        assert_int_equal(ckpt_names_find(&t, copy, strlen(copy)), i);
    }
    assert_int_equal(ckpt_names_find(&t, "x", 0), COUNT);
    assert_int_equal(ckpt_names_find(&t, "x", 1), CKPT_NONE);
    ckpt_names_free(&t);
}

/* ---- JSON ---- */

static json_t *parse(const char *text) {
    sl_error err = poisoned();
    json_t *root = ckpt_json_parse(text, strlen(text), "x.json", &err);
    if (!root) {
        fail_msg("%s", err.message);
    }
    return root;
}

static void what_python_writes(void **state) {
    json_t *root =
        parse("{\"a\": NaN, \"b\": [0.5, -Infinity, Infinity], \"big\": 1000000000000000019884624838656,"
              "\"neg\": -1000000000000000019884624838656, \"eps\": 1e-06, \"n\": 123456789012345678,"
              "\"s\": \"NaN \\\" 11111111111111111111 Infinity\", \"nul\": \"a\\u0000b\", \"dup\": 1, \"dup\": 2}");
    assert_true(json_is_null(json_object_get(root, "a")));
    assert_int_equal(json_array_size(json_object_get(root, "b")), 3);
    assert_true(json_is_null(json_array_get(json_object_get(root, "b"), 1)));
    assert_true(json_real_value(json_object_get(root, "big")) == 1000000000000000019884624838656.0);
    assert_true(json_real_value(json_object_get(root, "neg")) == -1000000000000000019884624838656.0);
    assert_true(json_real_value(json_object_get(root, "eps")) == 1e-6);
    assert_int_equal(json_integer_value(json_object_get(root, "n")), 123456789012345678);
    assert_string_equal(json_string_value(json_object_get(root, "s")), "NaN \" 11111111111111111111 Infinity");
    assert_int_equal(json_string_length(json_object_get(root, "nul")), 3);
    assert_int_equal(json_integer_value(json_object_get(root, "dup")), 2);
    json_decref(root);
}

static void what_is_no_json(void **state) {
    static const char *const texts[] = {"",           "{",    "{\"a",          "{\"a\":Nan}", "{\"a\":-}",
                                        "{\"a\":+1}", "{} x", "{\"a\":1e999}", "\xff"};
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        sl_error err = poisoned();
        assert_null(ckpt_json_parse(texts[i], strlen(texts[i]), "x.json", &err));
        expect_error(&err, SL_ERR_FORMAT, "x.json: line 1", "invalid JSON", NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices),     cmocka_unit_test(matrices),           cmocka_unit_test(sizes),
        cmocka_unit_test(many_names), cmocka_unit_test(what_python_writes), cmocka_unit_test(what_is_no_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

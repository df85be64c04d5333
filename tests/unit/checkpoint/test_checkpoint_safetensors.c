/* safetensors headers: what they give, and every way they can be wrong. */
#include "support_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parses 8 + header of a file with data_bytes of data. */
static sl_safetensors *parse(const char *header, uint64_t data_bytes, sl_error *err) {
    sl_buf b = {0};
    put_u64(&b, strlen(header));
    put(&b, header, strlen(header));
    sl_safetensors *s =
        sl_safetensors_parse((const uint8_t *)b.data, b.size, b.size + data_bytes, "x.safetensors", err);
    sl_buf_free(&b);
    return s;
}

static void entries_in_order_of_their_bytes(void **state) {
    sl_error err = poisoned();
    const char *header = "{\"__metadata__\":{\"format\":\"pt\"},"
                         "\"late\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[20,32]},"
                         "\"ids\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[12,20]},"
                         "\"early\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
                         "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[12,12]}}  ";
    sl_safetensors *s = parse(header, 32, &err);
    assert_non_null(s);
    static const char *const names[] = {"early", "empty", "ids", "late"};
    assert_int_equal(s->count, 4);
    assert_int_equal(s->data_offset, 8 + strlen(header));
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(s->tensors[i].name, names[i]);
    }
    const ckpt_raw *late = &s->tensors[3];
    assert_string_equal(late->dtype->name, "BF16");
    assert_int_equal(late->dims, 2);
    assert_int_equal(late->shape[0], 2);
    assert_int_equal(late->shape[1], 3);
    assert_int_equal(late->at.offset, s->data_offset + 20);
    assert_int_equal(late->at.bytes, 12);
    assert_int_equal(s->tensors[2].dims, 0);
    assert_int_equal(s->tensors[2].at.bytes, 8);
    assert_int_equal(s->tensors[1].at.bytes, 0);
    sl_safetensors_free(s);
}

static void no_tensors_at_all(void **state) {
    sl_error err = poisoned();
    sl_safetensors *s = parse("{}", 0, &err);
    assert_non_null(s);
    assert_int_equal(s->count, 0);
    sl_safetensors_free(s);
}

#define T(dtype, shape, offsets) "{\"t\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void what_is_wrong_is_said(void **state) {
    static const struct {
        const char *header;
        uint64_t data;
        sl_code code;
        const char *one, *two;
    } rows[] = {
        {"", 0, SL_ERR_FORMAT, "invalid JSON", "line 1"},
        {"[]", 0, SL_ERR_FORMAT, "array at the top, expected an object", ""},
        {"{\"t\":", 0, SL_ERR_FORMAT, "invalid JSON", ""},
        {"{\"t\":1}", 0, SL_ERR_FORMAT, "tensor \"t\": its entry is not a JSON object", ""},
        {"{\"t\":{}}", 0, SL_ERR_FORMAT, "tensor \"t\": no \"dtype\" string", ""},
        {"{\"t\":{},\"t\":{}}", 0, SL_ERR_FORMAT, "duplicate object key", ""},
        {T("F31", "[1]", "[0,4]"), 4, SL_ERR_UNSUPPORTED, "tensor \"t\": unknown dtype \"F31\"", ""},
        {T("F32", "3", "[0,4]"), 4, SL_ERR_FORMAT, "tensor \"t\": no \"shape\" array", ""},
        {T("F32", "[-1]", "[0,4]"), 4, SL_ERR_FORMAT, "tensor \"t\": \"shape\" holds something other", ""},
        {T("F32", "[1.0]", "[0,4]"), 4, SL_ERR_FORMAT, "tensor \"t\": \"shape\" holds something other", ""},
        {T("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, SL_ERR_FORMAT, "9 dimensions, expected at most 8", "\"t\""},
        {T("F32", "[99999999999999999999]", "[0,4]"), 4, SL_ERR_FORMAT, "invalid JSON: too big integer", ""},
        {T("F32", "[4611686018427387904,4611686018427387904]", "[0,4]"), 4, SL_ERR_FORMAT, "\"t\"",
         "overflows 64 bits"},
        {T("F4", "[3]", "[0,2]"), 2, SL_ERR_FORMAT, "tensor \"t\": shape does not fill whole bytes", ""},
        {T("F32", "[1]", "[0]"), 4, SL_ERR_FORMAT, "tensor \"t\": \"data_offsets\" is not [begin, end]", ""},
        {T("F32", "[1]", "[0,4,8]"), 4, SL_ERR_FORMAT, "tensor \"t\": \"data_offsets\" is not [begin, end]", ""},
        {T("F32", "[1]", "[4,0]"), 4, SL_ERR_FORMAT, "tensor \"t\": \"data_offsets\" is not [begin, end]", ""},
        {T("F32", "[1]", "[-4,0]"), 4, SL_ERR_FORMAT, "tensor \"t\": \"data_offsets\" is not [begin, end]", ""},
        {T("F32", "[1]", "[\"0\",4]"), 4, SL_ERR_FORMAT, "tensor \"t\": \"data_offsets\" is not [begin, end]", ""},
        {T("F32", "[2]", "[0,8]"), 7, SL_ERR_FORMAT, "\"t\": ends at data offset 8", "the file has 7 bytes of data"},
        {T("F32", "[2]", "[0,4]"), 4, SL_ERR_FORMAT, "\"t\": 4 bytes at data offset 0, expected 8", "as F32"},
        {T("F32", "[1]", "[4,8]"), 8, SL_ERR_FORMAT, "\"t\": begins at data offset 4, expected 0 (a gap)", ""},
        {T("F32", "[1]", "[0,4]"), 9, SL_ERR_FORMAT, "end at data offset 4, but the file has 9 bytes of data", ""},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[4,9]}}",
         9, SL_ERR_FORMAT, "tensor \"b\": begins at data offset 4, inside tensor \"a\" that ends at 5", ""},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        sl_error err = poisoned();
        assert_null(parse(rows[i].header, rows[i].data, &err));
        expect_error(&err, rows[i].code, "x.safetensors: ", rows[i].one, rows[i].two, NULL);
    }
}

static void absurd_header_lengths(void **state) {
    static const struct {
        uint64_t length, file_size;
        const char *one, *two;
    } rows[] = {
        {UINT64_MAX, 1000, "offset 0: header length 18446744073709551615", "expected at most 100000000"},
        {100000001, 1ull << 40, "offset 0: header length 100000001", "safetensors"},
        {993, 1000, "offset 8: header of 993 bytes", "the file ends at 1000"},
        {992, 1000, "16 bytes of a header of 1000", ""},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        sl_buf b = {0};
        put_u64(&b, rows[i].length), put_u64(&b, 0);
        sl_error err = poisoned();
        assert_null(sl_safetensors_parse((uint8_t *)b.data, 16, rows[i].file_size, "x.safetensors", &err));
        expect_error(&err, SL_ERR_FORMAT, "x.safetensors: ", rows[i].one, rows[i].two, NULL);
        sl_buf_free(&b);
    }
}

static void nesting_bomb(void **state) {
    enum { DEPTH = 1000000 };
    char *bomb = malloc(DEPTH + 1);
    memset(bomb, '[', DEPTH);
    bomb[DEPTH] = 0;
    memcpy(bomb, "{\"t\":", 5);
    sl_error err = poisoned();
    assert_null(parse(bomb, 0, &err));
    expect_error(&err, SL_ERR_FORMAT, "x.safetensors: ", "maximum parsing depth", NULL);
    free(bomb);
}

/* Through the open directory, so that what is read from disk is checked too. */
static void truncated_at_every_byte(void **state) {
    char *dir = make_dir();
    const char *header = "{\"a\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[0,8]},"
                         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}";
    sl_buf b = {0};
    put_u64(&b, strlen(header)), put(&b, header, strlen(header));
    gguf_data(&b, 1, 12);
    write_text(dir, "config.json", "{}");
    for (size_t n = 0; n <= b.size; n++) {
        write_file(dir, "model.safetensors", b.data, n);
        sl_error err = poisoned();
        sl_ckpt *c = sl_ckpt_open(dir, &err);
        assert_int_equal(c != NULL, n == b.size);
        if (!c) {
            expect_error(&err, SL_ERR_FORMAT, "model.safetensors: ", n < 8 ? "expected at least 8" : "(truncated?)",
                         NULL);
        }
        sl_ckpt_close(c);
    }
    sl_buf_free(&b);
    remove_dir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_in_order_of_their_bytes),
        cmocka_unit_test(no_tensors_at_all),
        cmocka_unit_test(what_is_wrong_is_said),
        cmocka_unit_test(absurd_header_lengths),
        cmocka_unit_test(nesting_bomb),
        cmocka_unit_test(truncated_at_every_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

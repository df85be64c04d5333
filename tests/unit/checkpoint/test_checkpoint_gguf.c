/* GGUF headers: every value type, every accessor, and every way a header can be wrong. */
#include "support_checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sl_gguf *parse_ok(const sl_buf *b) {
    sl_error err = poisoned();
    sl_gguf *g = parse_buf(b, &err);
    if (!g) {
        fail_msg("%s", err.message);
    }
    return g;
}

/* The buffer must not parse; frees it. */
static void parse_fails(sl_buf *b, sl_code code, const char *one, const char *two, const char *three) {
    sl_error err = poisoned();
    assert_null(parse_buf(b, &err));
    expect_error(&err, code, "x.gguf: ", one, two, three, NULL);
    sl_buf_free(b);
}

static void put_double(sl_buf *b, double v) {
    uint64_t bits;
    memcpy(&bits, &v, 8);
    put_u64(b, bits);
}

static void put_float(sl_buf *b, float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    put_u32(b, bits);
}

/* ---- values ---- */

static void all_scalars(sl_buf *b) {
    gguf_begin(b, 3, 0, 13);
    gguf_key(b, "u8", GGUF_U8), put_u8(b, 200);
    gguf_key(b, "i8", GGUF_I8), put_u8(b, 0x80);
    gguf_key(b, "u16", GGUF_U16), put(b, "\xff\xfe", 2);
    gguf_key(b, "i16", GGUF_I16), put(b, "\xfe\xff", 2);
    gguf_key(b, "u32", GGUF_U32), put_u32(b, 4000000000u);
    gguf_key(b, "i32", GGUF_I32), put_u32(b, (uint32_t)-7);
    gguf_key(b, "f32", GGUF_F32), put_float(b, 0.1f);
    gguf_key(b, "yes", GGUF_BOOL), put_u8(b, 1);
    gguf_key(b, "no", GGUF_BOOL), put_u8(b, 0);
    gguf_key(b, "text", GGUF_STRING), put_u64(b, 3), put(b, "a\0b", 3);
    gguf_key(b, "u64", GGUF_U64), put_u64(b, UINT64_MAX);
    gguf_key(b, "i64", GGUF_I64), put_u64(b, (uint64_t)INT64_MIN);
    gguf_key(b, "f64", GGUF_F64), put_double(b, 1e300);
}

static void scalars_by_every_accessor(void **state) {
    static const struct {
        const char *key;
        bool is_i64, is_f64;
        int64_t i;
        double f;
    } rows[] = {
        {"u8", true, true, 200, 200},
        {"i8", true, true, -128, -128},
        {"u16", true, true, 65279, 65279},
        {"i16", true, true, -2, -2},
        {"u32", true, true, 4000000000, 4000000000.0},
        {"i32", true, true, -7, -7},
        {"f32", false, true, 0, (double)0.1f},
        {"yes", true, false, 1, 0},
        {"no", true, false, 0, 0},
        {"text", false, false, 0, 0},
        {"u64", false, true, 0, 18446744073709551615.0},
        {"i64", true, true, INT64_MIN, -9223372036854775808.0},
        {"f64", false, true, 0, 1e300},
        {"absent", false, false, 0, 0},
    };
    sl_buf b = {0};
    all_scalars(&b);
    sl_gguf *g = parse_ok(&b);
    assert_int_equal(g->kv_count, 13);
    for (size_t r = 0; r < SL_COUNT(rows); r++) {
        int64_t i = 0x5555;
        double f = -77;
        assert_int_equal(gguf_get_i64(g, rows[r].key, &i), rows[r].is_i64);
        assert_int_equal(gguf_get_f64(g, rows[r].key, &f), rows[r].is_f64);
        assert_true(!rows[r].is_i64 || i == rows[r].i);
        assert_true(!rows[r].is_f64 || f == rows[r].f);
    }
    bool yes = false, no = true;
    assert_true(gguf_get_bool(g, "yes", &yes) && yes);
    assert_true(gguf_get_bool(g, "no", &no) && !no);
    assert_false(gguf_get_bool(g, "u8", &no));
    sl_str s = {0};
    assert_true(gguf_get_str(g, "text", &s));
    assert_int_equal(s.n, 3);
    assert_memory_equal(s.p, "a\0b", 3);
    assert_false(gguf_get_str(g, "u8", &s));
    sl_gguf_array a;
    assert_false(gguf_get_arr(g, "u8", &a));
    sl_gguf_free(g);
    sl_buf_free(&b);
}

static void arrays(void **state) {
    sl_buf b = {0};
    gguf_begin(&b, 2, 0, 5);
    gguf_key(&b, "strings", GGUF_ARRAY), put_u32(&b, GGUF_STRING), put_u64(&b, 3);
    put_str(&b, "one"), put_str(&b, ""), put_str(&b, "three");
    gguf_key(&b, "i16", GGUF_ARRAY), put_u32(&b, GGUF_I16), put_u64(&b, 3), put(&b, "\x01\0\xff\xff\0\x80", 6);
    gguf_key(&b, "f32", GGUF_ARRAY), put_u32(&b, GGUF_F32), put_u64(&b, 2), put_float(&b, -2.5f), put_float(&b, 3);
    gguf_key(&b, "none", GGUF_ARRAY), put_u32(&b, GGUF_U64), put_u64(&b, 0);
    gguf_key(&b, "nested", GGUF_ARRAY), put_u32(&b, GGUF_ARRAY), put_u64(&b, 2);
    put_u32(&b, GGUF_U8), put_u64(&b, 2), put(&b, "\x07\x08", 2);
    put_u32(&b, GGUF_STRING), put_u64(&b, 1), put_str(&b, "deep");
    sl_gguf *g = parse_ok(&b);
    sl_gguf_array a;
    int64_t i = 0;
    double f = 0;
    assert_true(gguf_get_arr(g, "strings", &a));
    assert_int_equal(a.type, GGUF_STRING);
    assert_int_equal(a.count, 3);
    assert_int_equal(a.strings[1].n, 0);
    assert_int_equal(a.strings[2].n, 5);
    assert_memory_equal(a.strings[2].p, "three", 5);
    assert_false(sl_gguf_arr_i64(&a, 0, &i));
    assert_false(sl_gguf_arr_f64(&a, 0, &f));
    assert_true(gguf_get_arr(g, "i16", &a));
    assert_true(sl_gguf_arr_i64(&a, 1, &i) && i == -1);
    assert_true(sl_gguf_arr_i64(&a, 2, &i) && i == -32768);
    assert_true(sl_gguf_arr_f64(&a, 0, &f) && f == 1);
    assert_false(sl_gguf_arr_i64(&a, 3, &i));
    assert_false(sl_gguf_arr_f64(&a, UINT64_MAX, &f));
    assert_true(gguf_get_arr(g, "f32", &a));
    assert_true(sl_gguf_arr_f64(&a, 0, &f) && f == -2.5);
    assert_false(sl_gguf_arr_i64(&a, 0, &i));
    assert_true(gguf_get_arr(g, "none", &a) && a.count == 0);
    assert_false(sl_gguf_arr_i64(&a, 0, &i));
    assert_true(gguf_get_arr(g, "nested", &a));
    assert_int_equal(a.type, GGUF_ARRAY);
    assert_int_equal(a.count, 2);
    assert_false(sl_gguf_arr_i64(&a, 0, &i));
    assert_false(gguf_get_i64(g, "i16", &i));
    sl_gguf_free(g);
    sl_buf_free(&b);
}

/* ---- tensors ---- */

/* Two tensors, Q4_0 of 3 x 64 and F32 of 5, at alignment 64. */
static void small_model(sl_buf *b) {
    gguf_begin(b, 3, 2, 2);
    gguf_key_str(b, "general.architecture", "test");
    gguf_key_u32(b, "general.alignment", 64);
    gguf_info(b, "q", 2, 0, (uint64_t[]){64, 3, 0});
    gguf_info(b, "f", 0, 128, (uint64_t[]){5, 0});
    gguf_data(b, 64, 148);
}

static void tensors_of_a_small_model(void **state) {
    sl_buf b = {0};
    small_model(&b);
    sl_gguf *g = parse_ok(&b);
    assert_int_equal(g->alignment, 64);
    assert_int_equal(g->data_offset, b.size - 148);
    assert_int_equal(g->tensor_count, 2);
    const gguf_tensor *q = &g->tensors[0], *f = &g->tensors[1];
    assert_int_equal(q->dims, 2);
    assert_int_equal(q->shape[0], 3); /* outermost first */
    assert_int_equal(q->shape[1], 64);
    assert_int_equal(q->format, SL_Q4_0);
    assert_int_equal(q->bytes, 3 * 2 * 18);
    assert_int_equal(q->offset, g->data_offset);
    assert_int_equal(f->dims, 1);
    assert_int_equal(f->shape[0], 5);
    assert_int_equal(f->bytes, 20);
    assert_int_equal(f->offset, g->data_offset + 128);
    sl_gguf_free(g);
    sl_buf_free(&b);
}

/* A file that ends at any byte before its last is refused, by the parser and from disk; never read past. */
static void truncated_at_every_byte(void **state) {
    char *dir = make_dir();
    sl_buf b = {0};
    small_model(&b);
    for (size_t n = 0; n < b.size; n++) {
        uint8_t *exact = malloc(n + 1); /* so that a sanitizer sees a read past the end */
        memcpy(exact, b.data, n);
        sl_error err = poisoned();
        assert_null(sl_gguf_parse(exact, n, n, "x.gguf", &err));
        expect_error(&err, SL_ERR_FORMAT, "x.gguf: ", "the file ends at", NULL);
        free(exact);
        write_file(dir, "t.gguf", b.data, n);
        err = poisoned();
        assert_null(sl_ckpt_open(in_dir(dir, "t.gguf"), &err));
        expect_error(&err, SL_ERR_FORMAT, "t.gguf: ", "the file ends at", NULL);
    }
    sl_buf_free(&b);
    remove_dir(dir);
}

static void header_longer_than_given(void **state) {
    sl_buf b = {0};
    small_model(&b);
    sl_error err = poisoned();
    assert_null(sl_gguf_parse((const uint8_t *)b.data, 30, b.size, "x.gguf", &err));
    expect_error(&err, SL_ERR_FORMAT, "needs at least 32 bytes, 30 given", NULL);
    sl_buf_free(&b);
}

/* ---- what is wrong ---- */

static void wrong_beginnings(void **state) {
    static const struct {
        const char *bytes;
        sl_code code;
        const char *one, *two;
    } rows[] = {
        {"ggjt\3\0\0\0................", SL_ERR_FORMAT, "offset 0: magic 67 67 6a 74", "expected 47 47 55 46"},
        {"GGUF\1\0\0\0................", SL_ERR_UNSUPPORTED, "GGUF version 1", "expected 2 or 3"},
        {"GGUF\4\0\0\0................", SL_ERR_UNSUPPORTED, "GGUF version 4", "expected 2 or 3"},
        {"GGUF\0\0\0\0................", SL_ERR_UNSUPPORTED, "GGUF version 0", "expected 2 or 3"},
        {"GGUF\0\0\0\3................", SL_ERR_UNSUPPORTED, "big-endian", "offset 4"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        sl_buf b = {0};
        put(&b, rows[i].bytes, 24);
        parse_fails(&b, rows[i].code, rows[i].one, rows[i].two, "");
    }
}

static void absurd_counts(void **state) {
    sl_buf b = {0};
    gguf_begin(&b, 3, UINT64_MAX, 0);
    parse_fails(&b, SL_ERR_FORMAT, "offset 8: 18446744073709551615 tensors",
                "the file ends at 24 and can hold at most 0", "");
    gguf_begin(&b, 3, 0, UINT64_MAX / 2);
    parse_fails(&b, SL_ERR_FORMAT, "offset 16: 9223372036854775807 keys", "the file ends at 24 and can hold at most 0",
                "");
    gguf_begin(&b, 3, 0, 1);
    put_u64(&b, UINT64_MAX), put(&b, "keykey", 6);
    parse_fails(&b, SL_ERR_FORMAT, "offset 32: key needs 18446744073709551615 bytes", "the file ends at 38", "");
    gguf_begin(&b, 3, 0, 1);
    gguf_key(&b, "s", GGUF_STRING), put_u64(&b, 1ull << 40);
    parse_fails(&b, SL_ERR_FORMAT, "value of key \"s\" needs 1099511627776 bytes", "the file ends at 45", "");
    gguf_begin(&b, 3, 0, 1);
    gguf_key(&b, "a", GGUF_ARRAY), put_u32(&b, GGUF_U64), put_u64(&b, 1ull << 62);
    parse_fails(&b, SL_ERR_FORMAT, "value of key \"a\": array is too long", "4611686018427387904", "");
    gguf_begin(&b, 3, 0, 1);
    gguf_key(&b, "a", GGUF_ARRAY), put_u32(&b, GGUF_STRING), put_u64(&b, UINT64_MAX / 4);
    parse_fails(&b, SL_ERR_FORMAT, "value of key \"a\": array is too long", "4611686018427387903", "");
    gguf_begin(&b, 3, 0, 1);
    gguf_key(&b, "a", GGUF_ARRAY), put_u32(&b, GGUF_STRING), put_u64(&b, 1ull << 40);
    parse_fails(&b, SL_ERR_FORMAT, "value of key \"a\" needs 8796093022208 bytes", "the file ends at", "");
    gguf_begin(&b, 3, 0, 1);
    gguf_key(&b, "a", GGUF_ARRAY), put_u32(&b, GGUF_ARRAY), put_u64(&b, UINT64_MAX);
    parse_fails(&b, SL_ERR_FORMAT, "value of key \"a\" needs 4 bytes", "the file ends at", "");
}

static void bad_keys_and_values(void **state) {
    sl_buf b = {0};
    gguf_begin(&b, 3, 0, 1);
    gguf_key(&b, "k", 13), put_u64(&b, 0);
    parse_fails(&b, SL_ERR_FORMAT, "offset 33: value of key \"k\": expected a type from 0 to 12, found 13", "", "");
    gguf_begin(&b, 3, 0, 1);
    gguf_key(&b, "k", GGUF_ARRAY), put_u32(&b, 99), put_u64(&b, 1), put_u64(&b, 0);
    parse_fails(&b, SL_ERR_FORMAT, "offset 37: value of key \"k\": expected an element type", "found 99", "");
    gguf_begin(&b, 3, 0, 1);
    gguf_key(&b, "k", GGUF_BOOL), put_u8(&b, 2);
    parse_fails(&b, SL_ERR_FORMAT, "offset 37: value of key \"k\": expected 0 or 1 for a bool, found 2", "", "");
    gguf_begin(&b, 3, 0, 1);
    gguf_key(&b, "k", GGUF_ARRAY), put_u32(&b, GGUF_BOOL), put_u64(&b, 2), put(&b, "\1\xff", 2);
    parse_fails(&b, SL_ERR_FORMAT, "offset 50: value of key \"k\": expected 0 or 1 for a bool, found 255", "", "");
    gguf_begin(&b, 3, 0, 2);
    gguf_key_u32(&b, "twice", 1), gguf_key_u32(&b, "twice", 1);
    parse_fails(&b, SL_ERR_FORMAT, "value of key \"twice\": duplicate key", "offset 45", "");
    gguf_begin(&b, 3, 0, 1);
    gguf_key_u32(&b, "", 1), put_u64(&b, 0);
    parse_fails(&b, SL_ERR_FORMAT, "offset 24: key of 0 bytes, expected 1 to 65535", "", "");
    gguf_begin(&b, 3, 0, 1);
    put_u64(&b, 3), put(&b, "a\0b", 3), put_u64(&b, 0);
    parse_fails(&b, SL_ERR_FORMAT, "offset 24: key of 3 bytes", "none of them zero", "");
    gguf_begin(&b, 3, 0, 1);
    put_u64(&b, 65536);
    for (int i = 0; i < 65536 / 8 + 4; i++) {
        put(&b, "abcdefgh", 8);
    }
    parse_fails(&b, SL_ERR_FORMAT, "key of 65536 bytes", "expected 1 to 65535", "");
}

static void nesting_bomb(void **state) {
    sl_buf b = {0};
    gguf_begin(&b, 3, 0, 1);
    gguf_key(&b, "deep", GGUF_ARRAY);
    for (int i = 0; i < 100000; i++) {
        put_u32(&b, GGUF_ARRAY), put_u64(&b, 1);
    }
    parse_fails(&b, SL_ERR_FORMAT, "value of key \"deep\": arrays in arrays, more than 4", "", "");
}

static void bad_alignment(void **state) {
    static const uint32_t values[] = {0, 3, 48, 1u << 31};
    for (size_t i = 0; i < SL_COUNT(values); i++) {
        sl_buf b = {0};
        char found[64];
        snprintf(found, sizeof found, "value %" PRIu32 ",", values[i]);
        gguf_begin(&b, 3, 0, 1);
        gguf_key_u32(&b, "general.alignment", values[i]);
        parse_fails(&b, SL_ERR_FORMAT, "general.alignment", found, "power of two");
    }
    sl_buf b = {0};
    gguf_begin(&b, 3, 0, 1);
    gguf_key(&b, "general.alignment", GGUF_U64), put_u64(&b, 32);
    parse_fails(&b, SL_ERR_FORMAT, "general.alignment", "type 10", "u32");
}

static void one_tensor(sl_buf *b, uint32_t type, uint64_t offset, const uint64_t *shape) {
    gguf_begin(b, 3, 1, 0);
    gguf_info(b, "t", type, offset, shape);
    gguf_data(b, 32, 4096);
}

static void bad_tensors(void **state) {
    sl_buf b = {0};
    one_tensor(&b, 9, 0, (uint64_t[]){256, 0});
    parse_fails(&b, SL_ERR_UNSUPPORTED, "tensor \"t\": type 9 (Q8_1)", "not built in", "offset 45");
    one_tensor(&b, 4, 0, (uint64_t[]){256, 0});
    parse_fails(&b, SL_ERR_UNSUPPORTED, "tensor \"t\": type 4 (unknown)", "", "");
    one_tensor(&b, UINT32_MAX, 0, (uint64_t[]){256, 0});
    parse_fails(&b, SL_ERR_UNSUPPORTED, "tensor \"t\": type 4294967295 (unknown)", "", "");
    one_tensor(&b, 2, 0, (uint64_t[]){33, 2, 0});
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"t\": rows of 33 weights", "multiple of 32 for Q4_0", "");
    one_tensor(&b, 12, 0, (uint64_t[]){128, 0});
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"t\": rows of 128 weights", "multiple of 256 for Q4_K", "");
    one_tensor(&b, 0, 16, (uint64_t[]){1, 0});
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"t\": data offset 16, expected a multiple of 32", "offset 49", "");
    one_tensor(&b, 0, 4096, (uint64_t[]){1, 0});
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"t\": 4 bytes at 64 + 4096", "the file ends at 4160", "");
    one_tensor(&b, 0, UINT64_MAX - 31, (uint64_t[]){1, 0});
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"t\": 4 bytes at 64 + 18446744073709551584", "", "");
    one_tensor(&b, 0, 0, (uint64_t[]){1025, 0});
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"t\": 4100 bytes at 64 + 0", "the file ends at 4160", "");
    one_tensor(&b, 0, 0, (uint64_t[]){1ull << 32, 1ull << 32, 0});
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"t\": shape overflows 64 bits", "", "");
    one_tensor(&b, 0, 0, (uint64_t[]){1ull << 62, 0});
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"t\": elements overflow 64 bits", "", "");
    one_tensor(&b, 0, 0, (uint64_t[]){UINT64_MAX, 0});
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"t\": dimension of size 18446744073709551615", "", "");
    one_tensor(&b, 0, 0, (uint64_t[]){0});
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"t\": dimensions: 0, expected 1 to 4", "", "");
    one_tensor(&b, 0, 0, (uint64_t[]){1, 1, 1, 1, 1, 0});
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"t\": dimensions: 5, expected 1 to 4", "", "");
    gguf_begin(&b, 3, 1, 0);
    put_str(&b, "t"), put_u32(&b, 1), put_u64(&b, 0), put_u32(&b, 0), put_u64(&b, 0);
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"t\": dimension of size 0", "offset 37", "");
}

static void tensors_of_types(sl_buf *b, const char *second, uint32_t one, uint32_t two, uint64_t offset, size_t bytes) {
    gguf_begin(b, 3, 2, 0);
    gguf_info(b, "first", one, 0, (uint64_t[]){9, 0});
    gguf_info(b, second, two, offset, (uint64_t[]){1, 0});
    gguf_data(b, 32, bytes);
}

static void two_tensors(sl_buf *b, const char *second, uint64_t offset) {
    tensors_of_types(b, second, 0, 0, offset, 68);
}

static void duplicate_and_overlapping(void **state) {
    sl_buf b = {0};
    two_tensors(&b, "first", 64);
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"first\": duplicate name", "", "");
    two_tensors(&b, "second", 32);
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"second\": begins at 160, inside tensor \"first\" that ends at 164", "",
                "");
    two_tensors(&b, "second", 0);
    parse_fails(&b, SL_ERR_FORMAT, "begins at 128, inside tensor", "", "");
    two_tensors(&b, "second", 64);
    sl_gguf_free(parse_ok(&b));
    sl_buf_free(&b);
}

/* F32 that became F16 leaves a gap behind the tensor; so does an offset that grew. The file ends with its last tensor,
 * or with the padding behind it. */
static void flipped_type_leaves_a_gap(void **state) {
    sl_buf b = {0};
    tensors_of_types(&b, "second", 1, 0, 64, 68);
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"second\": begins at 192, expected 160",
                "where tensor \"first\" ends (a damaged type, shape or offset?)", "");
    two_tensors(&b, "second", 96);
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"second\": 4 bytes at 128 + 96", "the file ends at 196", "");
    tensors_of_types(&b, "second", 0, 0, 96, 128);
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"second\": begins at 224, expected 192", "", "");
    one_tensor(&b, 0, 32, (uint64_t[]){1, 0});
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"t\": begins at 96, expected 64, where the header ends", "", "");
    tensors_of_types(&b, "second", 0, 0, 64, 97);
    parse_fails(&b, SL_ERR_FORMAT, "tensor \"second\": the last one, ends at 196, but the file ends at 225", "", "");
    tensors_of_types(&b, "second", 0, 0, 64, 96);
    sl_gguf_free(parse_ok(&b));
    sl_buf_free(&b);
}

/* A name of 60,000 control bytes still leaves the numbers in the message. */
static void hostile_name_keeps_the_line_useful(void **state) {
    sl_buf b = {0};
    gguf_begin(&b, 3, 1, 0);
    put_u64(&b, 60000);
    for (int i = 0; i < 60000; i++) {
        put_u8(&b, '\n');
    }
    put_u32(&b, 9), put_u64(&b, 0), put_u64(&b, 0);
    parse_fails(&b, SL_ERR_FORMAT, "dimensions: 9, expected 1 to 4", "\\x0a", "");
}

/* ---- from disk ---- */

static void open_from_disk(void **state) {
    char *dir = make_dir();
    sl_buf b = {0};
    small_model(&b);
    write_file(dir, "m", b.data, b.size); /* found by its magic, not by its name */
    sl_error err = poisoned();
    sl_ckpt *c = sl_ckpt_open(in_dir(dir, "m"), &err);
    assert_non_null(c);
    assert_int_equal(sl_ckpt_get_kind(c), SL_CKPT_GGUF);
    assert_string_equal(sl_ckpt_path(c), in_dir(dir, "m"));
    assert_int_equal(sl_ckpt_file_count(c), 1);
    assert_string_equal(sl_ckpt_file(c, 0)->path, in_dir(dir, "m"));
    assert_null(sl_ckpt_file(c, 1));
    assert_null(sl_ckpt_file(c, -1));
    assert_int_equal(sl_ckpt_bytes(c), 108 + 20);
    assert_int_equal(sl_ckpt_tensor_count(c), 2);
    assert_null(sl_ckpt_tensor(c, 2));
    const sl_tensor *f = sl_ckpt_find(c, "f");
    assert_ptr_equal(f, sl_ckpt_tensor(c, 1));
    assert_int_equal(f->part[0].file, 0);
    assert_int_equal(f->parts, 1);
    uint8_t first = 0;
    assert_true(sl_file_read(sl_ckpt_file(c, 0), f->part[0].offset, &first, 1, &err));
    assert_int_equal(first, 128);
    assert_null(sl_ckpt_find(c, "none"));
    assert_null(sl_ckpt_require(c, "none", &err));
    expect_error(&err, SL_ERR_FORMAT, in_dir(dir, "m"), "tensor \"none\" is missing", "2 others", NULL);
    assert_ptr_equal(sl_ckpt_require(c, "f", &err), f);
    sl_str s;
    int64_t i = 0;
    double d;
    bool yes;
    sl_gguf_array a;
    assert_true(sl_gguf_str(c, "general.architecture", &s) && s.n == 4 && memcmp(s.p, "test", 4) == 0);
    assert_true(sl_gguf_i64(c, "general.alignment", &i) && i == 64);
    assert_true(sl_gguf_f64(c, "general.alignment", &d) && d == 64);
    assert_false(sl_gguf_bool(c, "general.alignment", &yes));
    assert_false(sl_gguf_arr(c, "general.alignment", &a));
    assert_int_equal(sl_gguf_key_count(c), 2);
    assert_int_equal(sl_gguf_key(c, 1).n, strlen("general.alignment"));
    assert_int_equal(sl_gguf_key(c, 2).n, 0);
    assert_null(sl_ckpt_json(c, "config.json"));
    size_t n = 7;
    err = poisoned();
    assert_null(sl_ckpt_text(c, "tokenizer.json", &n, &err));
    assert_int_equal(err.code, SL_OK);
    assert_int_equal(n, 0);
    sl_ckpt_close(c);
    sl_buf_free(&b);
    remove_dir(dir);
}

/* A header of several megabytes is read in growing pieces; strings stay right after the trimming. */
static void long_header(void **state) {
    enum { TOKENS = 150000 };
    char *dir = make_dir();
    sl_buf b = {0};
    gguf_begin(&b, 3, 1, 2);
    gguf_key(&b, "tokens", GGUF_ARRAY), put_u32(&b, GGUF_STRING), put_u64(&b, TOKENS);
    for (int i = 0; i < TOKENS; i++) {
        char token[32];
        snprintf(token, sizeof token, "token-%d", i);
        put_str(&b, token);
    }
    gguf_key_str(&b, "after", "end");
    gguf_info(&b, "t", 0, 0, (uint64_t[]){3, 0});
    size_t header = b.size;
    gguf_data(&b, 32, 12);
    assert_true(header > 2000000);
    write_file(dir, "long.gguf", b.data, b.size);
    sl_error err = poisoned();
    sl_ckpt *c = sl_ckpt_open(in_dir(dir, "long.gguf"), &err);
    assert_non_null(c);
    sl_gguf_array a;
    sl_str s;
    assert_true(sl_gguf_arr(c, "tokens", &a) && a.count == TOKENS);
    assert_int_equal(a.strings[149999].n, 12);
    assert_memory_equal(a.strings[149999].p, "token-149999", 12);
    assert_true(sl_gguf_str(c, "after", &s) && s.n == 3 && memcmp(s.p, "end", 3) == 0);
    assert_int_equal(sl_ckpt_find(c, "t")->part[0].offset, b.size - 12);
    sl_ckpt_close(c);
    sl_buf_free(&b);
    remove_dir(dir);
}

static void no_such_file(void **state) {
    sl_error err = poisoned();
    assert_null(sl_ckpt_open("/nonexistent/x.gguf", &err));
    expect_error(&err, SL_ERR_IO, "/nonexistent/x.gguf", "No such file", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars_by_every_accessor),
        cmocka_unit_test(arrays),
        cmocka_unit_test(tensors_of_a_small_model),
        cmocka_unit_test(truncated_at_every_byte),
        cmocka_unit_test(header_longer_than_given),
        cmocka_unit_test(wrong_beginnings),
        cmocka_unit_test(absurd_counts),
        cmocka_unit_test(bad_keys_and_values),
        cmocka_unit_test(nesting_bomb),
        cmocka_unit_test(bad_alignment),
        cmocka_unit_test(bad_tensors),
        cmocka_unit_test(duplicate_and_overlapping),
        cmocka_unit_test(flipped_type_leaves_a_gap),
        cmocka_unit_test(hostile_name_keeps_the_line_useful),
        cmocka_unit_test(open_from_disk),
        cmocka_unit_test(long_header),
        cmocka_unit_test(no_such_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

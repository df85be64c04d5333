/* The writers, read back by the readers; and files that never appear unless they are whole. */
#include "support_checkpoint.h"

#include "checkpoint/gguf_write.h"
#include "checkpoint/safetensors_write.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static uint8_t pattern(size_t i) {
    return (uint8_t)(i * 37 + (i >> 8) + 11);
}

/* n bytes of the pattern from `at` on, given in pieces of odd sizes. */
static bool stream(void *w, bool (*data)(void *, const void *, size_t), size_t at, size_t n) {
    static const size_t pieces[] = {1, 7, 1000, 64, 1500000};
    bool ok = true;
    for (size_t done = 0, i = 0; ok && done < n; i++) {
        size_t k = pieces[i % SL_COUNT(pieces)] < n - done ? pieces[i % SL_COUNT(pieces)] : n - done;
        uint8_t *p = malloc(k);
        for (size_t j = 0; j < k; j++) {
            p[j] = pattern(at + done + j);
        }
        ok = data(w, p, k);
        free(p);
        done += k;
    }
    return ok;
}

static bool gguf_bytes(void *w, const void *p, size_t n) {
    return sl_gguf_writer_data(w, p, n);
}

static bool safetensors_bytes(void *w, const void *p, size_t n) {
    return sl_safetensors_writer_data(w, p, n);
}

static void expect_pattern(const sl_ckpt *c, const sl_extent *e, size_t at) {
    uint8_t *p = malloc(e->bytes + 1);
    sl_error err;
    assert_true(sl_file_read(sl_ckpt_file(c, e->file), e->offset, p, e->bytes, &err));
    for (size_t i = 0; i < e->bytes; i++) {
        assert_int_equal(p[i], pattern(at + i));
    }
    free(p);
}

static sl_ckpt *open_ok(const char *path) {
    sl_error err = poisoned();
    sl_ckpt *c = sl_ckpt_open(path, &err);
    if (!c) {
        fail_msg("%s", err.message);
    }
    return c;
}

/* ---- GGUF ---- */

static void write_metadata(sl_gguf_writer *w) {
    assert_true(sl_gguf_writer_str(w, "general.architecture", "te\0st", 5));
    assert_true(sl_gguf_writer_int(w, "i8", GGUF_I8, -128));
    assert_true(sl_gguf_writer_int(w, "u16", GGUF_U16, 65535));
    assert_true(sl_gguf_writer_int(w, "u32", GGUF_U32, 4294967295));
    assert_true(sl_gguf_writer_int(w, "i64", GGUF_I64, INT64_MIN));
    assert_true(sl_gguf_writer_int(w, "u64", GGUF_U64, INT64_MAX));
    assert_true(sl_gguf_writer_int(w, "yes", GGUF_BOOL, 1));
    assert_true(sl_gguf_writer_float(w, "f32", GGUF_F32, 0.5));
    assert_true(sl_gguf_writer_float(w, "f64", GGUF_F64, 0.1));
    assert_true(sl_gguf_writer_strs(w, "strs", (sl_str[]){{"a", 1}, {"", 0}, {"xyz", 3}}, 3));
    assert_true(sl_gguf_writer_ints(w, "ints", GGUF_I32, (int64_t[]){-1, 0, INT32_MAX}, 3));
    assert_true(sl_gguf_writer_floats(w, "floats", GGUF_F32, (double[]){1.5, -2}, 2));
    assert_true(sl_gguf_writer_ints(w, "none", GGUF_I32, NULL, 0));
}

static void expect_metadata(const sl_ckpt *c) {
    static const struct {
        const char *key;
        int64_t v;
    } ints[] = {{"i8", -128}, {"u16", 65535}, {"u32", 4294967295}, {"i64", INT64_MIN}, {"u64", INT64_MAX}, {"yes", 1}};
    sl_str s;
    int64_t v;
    double f;
    bool b;
    sl_gguf_array a;
    assert_true(sl_gguf_str(c, "general.architecture", &s) && s.n == 5 && memcmp(s.p, "te\0st", 5) == 0);
    for (size_t i = 0; i < SL_COUNT(ints); i++) {
        assert_true(sl_gguf_i64(c, ints[i].key, &v) && v == ints[i].v);
    }
    assert_true(sl_gguf_bool(c, "yes", &b) && b);
    assert_true(sl_gguf_f64(c, "f32", &f) && f == 0.5);
    assert_true(sl_gguf_f64(c, "f64", &f) && f == 0.1);
    assert_true(sl_gguf_arr(c, "strs", &a) && a.count == 3 && a.strings[2].n == 3);
    assert_memory_equal(a.strings[2].p, "xyz", 3);
    assert_true(sl_gguf_arr(c, "ints", &a) && a.count == 3 && a.type == GGUF_I32);
    assert_true(sl_gguf_arr_i64(&a, 2, &v) && v == INT32_MAX);
    assert_true(sl_gguf_arr(c, "floats", &a) && sl_gguf_arr_f64(&a, 1, &f) && f == -2);
    assert_true(sl_gguf_arr(c, "none", &a) && a.count == 0);
    assert_int_equal(sl_gguf_key_count(c), 13);
}

static void gguf_round_trip(void **state) {
    char *dir = make_dir();
    const char *path = in_dir(dir, "out.gguf");
    sl_error err = poisoned();
    sl_gguf_writer *w = sl_gguf_writer_new(path, &err);
    assert_non_null(w);
    write_metadata(w);
    assert_true(sl_gguf_writer_tensor(w, "experts", SL_Q4_0, 3, (int64_t[]){5, 3, 64}));
    assert_true(sl_gguf_writer_tensor(w, "bias", SL_F32, 1, (int64_t[]){3}));
    assert_true(sl_gguf_writer_tensor(w, "big", SL_BF16, 2, (int64_t[]){1033, 1021}));
    assert_true(stream(w, gguf_bytes, 0, 540));
    assert_true(stream(w, gguf_bytes, 1, 12));
    assert_true(stream(w, gguf_bytes, 2, 2ul * 1033 * 1021));
    assert_false(sl_path_exists(path));
    assert_true(sl_path_exists(in_dir(dir, "out.gguf.part")));
    assert_true(sl_gguf_writer_finish(w, &err));
    assert_false(sl_gguf_writer_finish(w, &err));
    sl_gguf_writer_free(w);
    assert_true(sl_path_exists(path));
    assert_false(sl_path_exists(in_dir(dir, "out.gguf.part")));
    sl_ckpt *c = open_ok(path);
    expect_metadata(c);
    assert_int_equal(sl_ckpt_tensor_count(c), 3);
    assert_int_equal(sl_ckpt_file(c, 0)->size % 32, 0);
    const sl_tensor *e = sl_ckpt_find(c, "experts"), *big = sl_ckpt_find(c, "big");
    assert_int_equal(e->dims, 3);
    assert_int_equal(e->shape[0], 5);
    assert_int_equal(e->shape[2], 64);
    assert_int_equal(big->shape[0], 1033);
    expect_pattern(c, &e->part[0], 0);
    expect_pattern(c, &sl_ckpt_find(c, "bias")->part[0], 1);
    expect_pattern(c, &big->part[0], 2);
    sl_ckpt_close(c);
    remove_dir(dir);
}

static void gguf_without_tensors(void **state) {
    char *dir = make_dir();
    sl_error err = poisoned();
    sl_gguf_writer *w = sl_gguf_writer_new(in_dir(dir, "v.gguf"), &err);
    assert_true(sl_gguf_writer_int(w, "k", GGUF_U32, 1));
    assert_true(sl_gguf_writer_finish(w, &err));
    sl_gguf_writer_free(w);
    sl_ckpt *c = open_ok(in_dir(dir, "v.gguf"));
    assert_int_equal(sl_gguf_key_count(c), 1);
    sl_ckpt_close(c);
    remove_dir(dir);
}

/* ---- safetensors ---- */

static void safetensors_round_trip(void **state) {
    char *dir = make_dir();
    const char *path = in_dir(dir, "model.safetensors");
    sl_error err = poisoned();
    sl_safetensors_writer *w = sl_safetensors_writer_new(path, &err);
    assert_non_null(w);
    assert_true(sl_safetensors_writer_meta(w, "format", "mlx"));
    assert_true(sl_safetensors_writer_tensor(w, "m.weight", "U32", 3, (int64_t[]){3, 5, 16}));
    assert_true(sl_safetensors_writer_tensor(w, "m.scales", "BF16", 3, (int64_t[]){3, 5, 2}));
    assert_true(sl_safetensors_writer_tensor(w, "m.biases", "BF16", 3, (int64_t[]){3, 5, 2}));
    assert_true(sl_safetensors_writer_tensor(w, "empty", "F32", 2, (int64_t[]){0, 4}));
    assert_true(sl_safetensors_writer_tensor(w, "scalar", "F32", 0, NULL));
    assert_true(stream(w, safetensors_bytes, 0, 960));
    assert_true(stream(w, safetensors_bytes, 1, 60));
    assert_true(stream(w, safetensors_bytes, 2, 60));
    assert_true(stream(w, safetensors_bytes, 3, 4));
    assert_false(sl_path_exists(path));
    assert_true(sl_safetensors_writer_finish(w, &err));
    sl_safetensors_writer_free(w);
    write_text(dir, "config.json", "{\"quantization\":{\"group_size\":64,\"bits\":4}}");
    sl_ckpt *c = open_ok(dir);
    const sl_tensor *m = sl_ckpt_find(c, "m.weight");
    assert_int_equal(m->format, SL_AFFINE4);
    assert_int_equal(m->shape[2], 128);
    assert_int_equal(m->part[0].offset % 8, 0);
    for (int i = 0; i < 3; i++) {
        expect_pattern(c, &m->part[i], (size_t)i);
    }
    assert_int_equal(sl_ckpt_find(c, "empty")->part[0].bytes, 0);
    expect_pattern(c, &sl_ckpt_find(c, "scalar")->part[0], 3);
    sl_ckpt_close(c);
    remove_dir(dir);
}

/* ---- misuse ---- */

enum misuse {
    TOO_MUCH,
    TOO_LITTLE,
    NO_DATA,
    CROSSING,
    TWICE,
    LATE,
    BAD_ROWS,
    BAD_SHAPE,
    OVERFLOW,
    BAD_FORMAT,
    LONG_NAME,
    KEY_TWICE,
    KEY_LATE,
    KEY_UNFIT,
    KEY_FLOAT,
    MISUSES
};

static void misuse_gguf(sl_gguf_writer *w, enum misuse m) {
    static const char bytes[64];
    int64_t shape[] = {2, 32}, huge[] = {INT64_MAX / 2, 32}, none[] = {0, 32}, odd[] = {2, 33};
    char name[100] = {0};
    memset(name, 'n', 64);
    sl_gguf_writer_tensor(w, "t", SL_Q4_0, 2, shape);
    sl_gguf_writer_tensor(w, "u", SL_Q4_0, 2, shape);
    sl_gguf_writer_int(w, "k", GGUF_U8, 1);
    switch (m) {
    case TOO_MUCH:
        sl_gguf_writer_data(w, bytes, 36), sl_gguf_writer_data(w, bytes, 36), sl_gguf_writer_data(w, bytes, 1);
        break;
    case TOO_LITTLE:
        sl_gguf_writer_data(w, bytes, 36), sl_gguf_writer_data(w, bytes, 35);
        break;
    case NO_DATA:
        break;
    case CROSSING:
        sl_gguf_writer_data(w, bytes, 37);
        break;
    case TWICE:
        sl_gguf_writer_tensor(w, "t", SL_F32, 2, shape);
        break;
    case LATE:
        sl_gguf_writer_data(w, bytes, 1), sl_gguf_writer_tensor(w, "v", SL_F32, 2, shape);
        break;
    case BAD_ROWS:
        sl_gguf_writer_tensor(w, "v", SL_Q4_0, 2, odd);
        break;
    case BAD_SHAPE:
        sl_gguf_writer_tensor(w, "v", SL_Q4_0, 2, none);
        break;
    case OVERFLOW:
        sl_gguf_writer_tensor(w, "v", SL_Q4_0, 2, huge);
        break;
    case BAD_FORMAT:
        sl_gguf_writer_tensor(w, "v", SL_AFFINE4, 2, shape);
        break;
    case LONG_NAME:
        sl_gguf_writer_tensor(w, name, SL_Q4_0, 2, shape);
        break;
    case KEY_TWICE:
        sl_gguf_writer_int(w, "k", GGUF_U8, 1);
        break;
    case KEY_LATE:
        sl_gguf_writer_data(w, bytes, 1), sl_gguf_writer_int(w, "l", GGUF_U8, 1);
        break;
    case KEY_UNFIT:
        sl_gguf_writer_int(w, "l", GGUF_U8, 256);
        break;
    case KEY_FLOAT:
        sl_gguf_writer_float(w, "l", GGUF_U8, 1);
        break;
    case MISUSES:
        break;
    }
}

static void misuse_leaves_no_file(void **state) {
    static const char *const messages[MISUSES] = {
        [TOO_MUCH] = "1 bytes of data after the last tensor",
        [TOO_LITTLE] = "tensor \"u\": 35 bytes of data, expected 36",
        [NO_DATA] = "tensor \"t\": 0 bytes of data, expected 36",
        [CROSSING] = "tensor \"t\": 37 bytes of data after 0, expected 36 in all",
        [TWICE] = "tensor \"t\": declared twice",
        [LATE] = "tensor \"v\": declared after the first data",
        [BAD_ROWS] = "tensor \"v\": rows of 33, expected a multiple of 32 for Q4_0",
        [BAD_SHAPE] = "tensor \"v\": dimension 0 is 0",
        [OVERFLOW] = "tensor \"v\": dimension 1 is 32, expected more than 0 and no overflow",
        [BAD_FORMAT] = "tensor \"v\": GGUF has no affine4",
        [LONG_NAME] = "name is empty or too long",
        [KEY_TWICE] = "key \"k\": empty, too long, given twice",
        [KEY_LATE] = "given after the first data",
        [KEY_UNFIT] = "key \"l\": 256 does not fit type 0",
        [KEY_FLOAT] = "key \"l\": type 0 is not f32 or f64",
    };
    char *dir = make_dir();
    write_text(dir, "x.gguf", "old");
    for (int m = 0; m < MISUSES; m++) {
        sl_error err = poisoned();
        sl_gguf_writer *w = sl_gguf_writer_new(in_dir(dir, "x.gguf"), &err);
        assert_non_null(w);
        misuse_gguf(w, (enum misuse)m);
        assert_false(sl_gguf_writer_finish(w, &err));
        expect_error(&err, SL_ERR_ARGUMENT, "x.gguf: ", messages[m], NULL);
        assert_false(sl_gguf_writer_data(w, "", 1)); /* and it stays failed */
        sl_gguf_writer_free(w);
        assert_false(sl_path_exists(in_dir(dir, "x.gguf.part")));
        size_t n;
        char *old = sl_read_text(in_dir(dir, "x.gguf"), 100, &n, &err);
        assert_string_equal(old, "old");
        free(old);
    }
    remove_dir(dir);
}

static void safetensors_misuse(void **state) {
    static const struct {
        const char *name, *dtype;
        int dims;
        int64_t shape[2];
        const char *message;
    } rows[] = {
        {"t", "F31", 1, {1, 1}, "tensor \"t\": cannot write dtype \"F31\""},
        {"t", "F4", 1, {1, 1}, "tensor \"t\": cannot write dtype \"F4\""},
        {"t", "F32", 9, {1, 1}, "tensor \"t\": 9 dimensions"},
        {"t", "F32", 2, {1, -1}, "tensor \"t\": dimension 1 is -1"},
        {"t", "F32", 2, {INT64_MAX, INT64_MAX}, "tensor \"t\": dimension 0 is 9223372036854775807"},
        {"", "F32", 1, {1, 1}, "name is empty"},
        {"\xff", "F32", 1, {1, 1}, "name is not UTF-8"},
    };
    char *dir = make_dir();
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        sl_error err = poisoned();
        sl_safetensors_writer *w = sl_safetensors_writer_new(in_dir(dir, "x"), &err);
        assert_false(sl_safetensors_writer_tensor(w, rows[i].name, rows[i].dtype, rows[i].dims, rows[i].shape));
        assert_false(sl_safetensors_writer_finish(w, &err));
        expect_error(&err, SL_ERR_ARGUMENT, "/x: ", rows[i].message, NULL);
        sl_safetensors_writer_free(w);
        assert_false(sl_path_exists(in_dir(dir, "x")));
    }
    remove_dir(dir);
}

/* ---- the system says no ---- */

static void no_such_directory(void **state) {
    sl_error err = poisoned();
    assert_null(sl_gguf_writer_new("/nonexistent/x.gguf", &err));
    expect_error(&err, SL_ERR_IO, "/nonexistent/x.gguf.part: cannot create", "No such file", NULL);
    assert_null(sl_safetensors_writer_new("/nonexistent/x", &err));
    sl_gguf_writer_free(NULL);
    sl_safetensors_writer_free(NULL);
}

static void two_writers_of_one_path(void **state) {
    char *dir = make_dir();
    sl_error err = poisoned();
    sl_gguf_writer *first = sl_gguf_writer_new(in_dir(dir, "x.gguf"), &err);
    assert_null(sl_gguf_writer_new(in_dir(dir, "x.gguf"), &err));
    expect_error(&err, SL_ERR_IO, "x.gguf: another process is writing it", NULL);
    assert_true(sl_path_exists(in_dir(dir, "x.gguf.part"))); /* the first one's is still there */
    assert_true(sl_gguf_writer_finish(first, &err));
    sl_gguf_writer_free(first);
    write_text(dir, "x.gguf.part",
               "what a killed writer left, longer than the new file will be: "
               "................................................................");
    sl_gguf_writer *second = sl_gguf_writer_new(in_dir(dir, "x.gguf"), &err);
    assert_true(sl_gguf_writer_finish(second, &err));
    sl_gguf_writer_free(second);
    sl_ckpt *c = open_ok(in_dir(dir, "x.gguf"));
    assert_int_equal(sl_ckpt_file(c, 0)->size, 32);
    sl_ckpt_close(c);
    remove_dir(dir);
}

/* A disk that is full, played by a limit on the size of files. */
static void disk_full(void **state) {
    char *dir = make_dir();
    sl_error err = poisoned();
    struct rlimit old, small = {.rlim_cur = 1 << 20};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    sl_gguf_writer *w = sl_gguf_writer_new(in_dir(dir, "x.gguf"), &err);
    assert_true(sl_gguf_writer_tensor(w, "t", SL_F32, 1, (int64_t[]){1000000}));
    assert_false(stream(w, gguf_bytes, 0, 4000000));
    assert_false(sl_gguf_writer_finish(w, &err));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    expect_error(&err, SL_ERR_IO, "x.gguf.part: write failed", "File too large", NULL);
    sl_gguf_writer_free(w);
    assert_false(sl_path_exists(in_dir(dir, "x.gguf")));
    assert_false(sl_path_exists(in_dir(dir, "x.gguf.part")));
    remove_dir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_round_trip),         cmocka_unit_test(gguf_without_tensors),
        cmocka_unit_test(safetensors_round_trip),  cmocka_unit_test(misuse_leaves_no_file),
        cmocka_unit_test(safetensors_misuse),      cmocka_unit_test(no_such_directory),
        cmocka_unit_test(two_writers_of_one_path), cmocka_unit_test(disk_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

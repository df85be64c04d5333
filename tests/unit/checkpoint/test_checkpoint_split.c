/* Split GGUF files: any shard opens all of them, and what does not belong together is refused. */
#include "support_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[3] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"};

static void put_u16(sl_buf *b, uint16_t v) {
    put_u8(b, (uint8_t)v);
    put_u8(b, (uint8_t)(v >> 8));
}

/* One shard with one tensor (the first also with the model's metadata). */
static void write_shard(const char *dir, const char *file, uint16_t no, uint16_t count, uint32_t total,
                        const char *tensor) {
    sl_buf b = {0};
    gguf_begin(&b, 3, 1, no == 0 ? 4 : 3);
    if (no == 0) {
        gguf_key_str(&b, "general.architecture", "test");
    }
    gguf_key(&b, "split.no", GGUF_U16), put_u16(&b, no);
    gguf_key(&b, "split.count", GGUF_U16), put_u16(&b, count);
    gguf_key(&b, "split.tensors.count", GGUF_I32), put_u32(&b, total);
    gguf_info(&b, tensor, 0, 0, (uint64_t[]){(uint64_t)no + 1, 0});
    gguf_data(&b, 32, 4 * ((size_t)no + 1));
    write_file(dir, file, b.data, b.size);
    sl_buf_free(&b);
}

static char *split_dir(void) {
    char *dir = make_dir();
    write_shard(dir, names[0], 0, 3, 3, "a");
    write_shard(dir, names[1], 1, 3, 3, "b");
    write_shard(dir, names[2], 2, 3, 3, "c");
    return dir;
}

static void fails(const char *dir, const char *file, sl_code code, const char *one, const char *two,
                  const char *three) {
    sl_error err = poisoned();
    assert_null(sl_ckpt_open(in_dir(dir, file), &err));
    expect_error(&err, code, one, two, three, NULL);
}

static void any_shard_opens_all(void **state) {
    char *dir = split_dir();
    for (int i = 0; i < 3; i++) {
        sl_error err = poisoned();
        sl_ckpt *c = sl_ckpt_open(in_dir(dir, names[i]), &err);
        assert_non_null(c);
        assert_int_equal(sl_ckpt_file_count(c), 3);
        assert_int_equal(sl_ckpt_tensor_count(c), 3);
        assert_int_equal(sl_ckpt_bytes(c), 4 + 8 + 12);
        for (int f = 0; f < 3; f++) {
            const sl_tensor *t = sl_ckpt_find(c, (const char *[]){"a", "b", "c"}[f]);
            assert_int_equal(t->part[0].file, f);
            assert_string_equal(sl_ckpt_file(c, f)->path, in_dir(dir, names[f]));
            assert_int_equal(t->shape[0], f + 1);
        }
        sl_str s;
        assert_true(sl_gguf_str(c, "general.architecture", &s) && s.n == 4);
        sl_ckpt_close(c);
    }
    remove_dir(dir);
}

static void missing_shards(void **state) {
    for (int gone = 0; gone < 3; gone++) {
        char *dir = split_dir();
        unlink(in_dir(dir, names[gone]));
        char what[64];
        snprintf(what, sizeof what, "%s: shard %d of 3 is missing", names[gone], gone + 1);
        fails(dir, names[(gone + 1) % 3], SL_ERR_IO, what, names[(gone + 1) % 3], "needs it");
        remove_dir(dir);
    }
}

static void shards_that_do_not_belong(void **state) {
    char *dir = split_dir();
    write_shard(dir, names[1], 0, 3, 3, "b");
    fails(dir, names[0], SL_ERR_FORMAT, "m-00002-of-00003.gguf: split.no 0, split.count 3, expected 1 and 3", "", "");
    write_shard(dir, names[1], 1, 4, 3, "b");
    fails(dir, names[0], SL_ERR_FORMAT, "m-00002-of-00003.gguf: split.no 1, split.count 4, expected 1 and 3", "", "");
    write_shard(dir, names[1], 1, 3, 3, "a");
    fails(dir, names[0], SL_ERR_FORMAT, "m-00002-of-00003.gguf: tensor \"a\" is in ", names[0], "too");
    write_shard(dir, names[1], 1, 3, 3, "b");
    write_shard(dir, names[0], 0, 3, 5, "a");
    fails(dir, names[0], SL_ERR_FORMAT, "the shards hold 3 tensors, expected split.tensors.count 5", "", "");
    write_shard(dir, names[0], 3, 3, 3, "a");
    fails(dir, names[0], SL_ERR_FORMAT, "split.no 3, split.count 3, expected 0 <= no < count", "", "");
    write_shard(dir, names[0], 0, 3, 3, "a");
    write_shard(dir, "renamed.gguf", 0, 3, 3, "a");
    fails(dir, "renamed.gguf", SL_ERR_FORMAT, "renamed.gguf: is shard 1 of 3", "\"-00001-of-00003.gguf\"", "");
    remove_dir(dir);
}

static void truncated_shard(void **state) {
    char *dir = split_dir();
    assert_int_equal(truncate(in_dir(dir, names[2]), 100), 0);
    fails(dir, names[0], SL_ERR_FORMAT, "m-00003-of-00003.gguf: ", "the file ends at 100", "");
    remove_dir(dir);
}

/* A file that says it is one of one needs no number in its name. */
static void one_of_one(void **state) {
    char *dir = make_dir();
    write_shard(dir, "whole.gguf", 0, 1, 1, "a");
    sl_error err = poisoned();
    sl_ckpt *c = sl_ckpt_open(in_dir(dir, "whole.gguf"), &err);
    assert_non_null(c);
    sl_ckpt_close(c);
    remove_dir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_shard_opens_all),
        cmocka_unit_test(missing_shards),
        cmocka_unit_test(shards_that_do_not_belong),
        cmocka_unit_test(truncated_shard),
        cmocka_unit_test(one_of_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

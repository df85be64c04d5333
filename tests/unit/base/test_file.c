/* Files: exact reads, and what happens with files that are not what they should be. */
#include "support_base.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static int set_up(void **state) {
    *state = dir_new();
    return 0;
}

static int tear_down(void **state) {
    dir_remove(*state);
    return 0;
}

static uint8_t *pattern(size_t n) {
    uint8_t *p = malloc(n + 1);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(i * 7 + i / 251);
    return p;
}

static void open_fails(const char *path, const char *why) {
    sl_error err = {0};
    sl_file *f = sl_file_open(path, &err);
    assert_null(f);
    assert_int_equal(err.code, SL_ERR_IO);
    if (!strstr(err.message, path) || !strstr(err.message, why))
        fail_msg("'%s' names not both %s and '%s'", err.message, path, why);
    assert_null(sl_read_text(path, 1 << 20, NULL, &err));
    assert_non_null(strstr(err.message, path));
}

static void what_is_no_readable_file_is_refused(void **state) {
    char *missing = sl_path_join(*state, "missing"), *fifo = sl_path_join(*state, "fifo"),
         *loop = sl_path_join(*state, "loop"), *dangling = sl_path_join(*state, "dangling");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(symlink(loop, loop), 0);
    assert_int_equal(symlink(missing, dangling), 0);
    open_fails(missing, "No such file");
    open_fails(*state, "not a regular file");
    open_fails(fifo, "not a regular file"); /* nobody writes to it: opening must not wait */
    open_fails(loop, "symbolic links");
    open_fails(dangling, "a symbolic link to a file that is not there");
    open_fails("/dev/null", "not a regular file");
    open_fails("", "No such file");
    free(missing);
    free(fifo);
    free(loop);
    free(dangling);
}

static void an_unreadable_file_is_refused(void **state) {
    char *path = dir_write(*state, "secret", "x", 1);
    assert_int_equal(chmod(path, 0), 0);
    /* root reads everything: be somebody else for the while */
    bool root = geteuid() == 0;
    if (root) {
        assert_int_equal(chmod(*state, 0755), 0);
        assert_int_equal(seteuid(65534), 0);
    }
    open_fails(path, "Permission denied");
    if (root)
        assert_int_equal(seteuid(0), 0);
    free(path);
}

static void reads_give_the_bytes(void **state) {
    enum { SIZE = 70001 };
    uint8_t *bytes = pattern(SIZE), *out = malloc(SIZE + 1);
    char *path = dir_write(*state, "data", bytes, SIZE);
    sl_error err = {0};
    sl_file *f = sl_file_open(path, &err);
    assert_non_null(f);
    assert_string_equal(f->path, path);
    assert_int_equal(f->size, SIZE);
    assert_true(f->direct_align >= 512 && f->direct_align <= 4096);
    rng r = {11};
    print_message("seed %llu\n", (unsigned long long)r.state);
    for (int i = 0; i < 300; i++) {
        uint64_t at = rng_below(&r, SIZE + 1), n = rng_below(&r, SIZE + 1 - at);
        memset(out, 0xee, SIZE + 1);
        assert_true(sl_file_read(f, at, out, n, &err));
        assert_memory_equal(out, bytes + at, n);
        assert_int_equal(out[n], 0xee);
        sl_file_drop(f, at, n);
    }
    sl_file_close(f);
    sl_file_close(NULL);
    free(path);
    free(bytes);
    free(out);
}

static void the_direct_descriptor_reads_the_same_file(void **state) {
    enum { SIZE = 65536 };
    uint8_t *bytes = pattern(SIZE);
    char *path = dir_write(*state, "direct", bytes, SIZE);
    sl_file *f = sl_file_open(path, NULL);
    assert_non_null(f);
    if (f->direct_fd >= 0) {
        void *out = NULL;
        assert_int_equal(posix_memalign(&out, 4096, SIZE), 0);
        assert_int_equal(pread(f->direct_fd, out, f->direct_align, f->direct_align), f->direct_align);
        assert_memory_equal(out, bytes + f->direct_align, f->direct_align);
        free(out);
    } else
        print_message("SKIP: no O_DIRECT on this file system\n");
    sl_file_close(f);
    free(path);
    free(bytes);
}

static void past_the_end_is_an_error_that_says_where(void **state) {
    uint8_t out[64];
    char *path = dir_write(*state, "short", "0123456789", 10);
    sl_file *f = sl_file_open(path, NULL);
    sl_error err = {0};
    assert_true(sl_file_read(f, 10, out, 0, &err));
    assert_false(sl_file_read(f, 4, out, 7, &err));
    assert_int_equal(err.code, SL_ERR_FORMAT);
    assert_non_null(strstr(err.message, path));
    assert_non_null(strstr(err.message, "file ends at 10, 7 bytes at offset 4 expected"));
    assert_false(sl_file_read(f, 11, out, 1, &err));
    /* Offsets that no file has. */
    static const uint64_t far[] = {1ull << 62, INT64_MAX, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < SL_COUNT(far); i++) {
        err = (sl_error){0};
        assert_false(sl_file_read(f, far[i], out, 64, &err));
        assert_true(err.code == SL_ERR_IO || err.code == SL_ERR_FORMAT);
        assert_non_null(strstr(err.message, path));
    }
    /* Cut while it is open. */
    assert_int_equal(truncate(path, 3), 0);
    assert_false(sl_file_read(f, 0, out, 10, &err));
    assert_non_null(strstr(err.message, "file ends at 3"));
    assert_false(sl_file_read(f, 8, out, 2, &err));
    assert_non_null(strstr(err.message, "file ends at 3, 2 bytes at offset 8 expected"));
    sl_file_close(f);
    free(path);
}

static void texts_have_a_limit(void **state) {
    char *path = dir_write(*state, "text", "ab\0cd", 5), *empty = dir_write(*state, "empty", "", 0);
    sl_error err = {0};
    size_t size = 99;
    char *text = sl_read_text(path, 5, &size, &err);
    assert_non_null(text);
    assert_int_equal(size, 5);
    assert_memory_equal(text, "ab\0cd\0", 6);
    free(text);
    size = 99;
    assert_null(sl_read_text(path, 4, &size, &err));
    assert_int_equal(err.code, SL_ERR_FORMAT);
    assert_non_null(strstr(err.message, path));
    assert_non_null(strstr(err.message, "5 bytes, at most 4 expected"));
    assert_int_equal(size, 99);
    text = sl_read_text(empty, 0, &size, &err);
    assert_string_equal(text, "");
    assert_int_equal(size, 0);
    free(text);
    text = sl_read_text(empty, 0, NULL, &err);
    assert_string_equal(text, "");
    free(text);
    free(path);
    free(empty);
}

/* A sparse file of 1 TiB must not be allocated before it is refused. */
static void a_huge_text_is_refused_unread(void **state) {
    char *path = dir_write(*state, "huge", "", 0);
    if (truncate(path, (off_t)1 << 40) == 0) {
        sl_error err = {0};
        assert_null(sl_read_text(path, 1 << 20, NULL, &err));
        assert_int_equal(err.code, SL_ERR_FORMAT);
        assert_int_equal(truncate(path, 0), 0);
    } else
        print_message("SKIP: no sparse file of 1 TiB here\n");
    free(path);
}

static void paths(void **state) {
    char *file = dir_write(*state, "sub/file", "", 0), *sub = sl_path_join(*state, "sub");
    assert_true(sl_path_exists(file));
    assert_false(sl_path_is_dir(file));
    assert_true(sl_path_exists(sub));
    assert_true(sl_path_is_dir(sub));
    char *a = sl_path_join("a", "b"), *b = sl_path_join("a/", "b"), *c = sl_path_join("", "b");
    assert_string_equal(a, "a/b");
    assert_string_equal(b, "a/b");
    assert_string_equal(c, "/b");
    free(a);
    free(b);
    free(c);
    free(file);
    free(sub);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_readable_file_is_refused),
        cmocka_unit_test(an_unreadable_file_is_refused),
        cmocka_unit_test(reads_give_the_bytes),
        cmocka_unit_test(the_direct_descriptor_reads_the_same_file),
        cmocka_unit_test(past_the_end_is_an_error_that_says_where),
        cmocka_unit_test(texts_have_a_limit),
        cmocka_unit_test(a_huge_text_is_refused_unread),
        cmocka_unit_test(paths),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

/* A small file that is replaced: whole whenever the writer is killed, by however many at once, and nothing piles up
 * beside it. */
#include "support_base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 3000 };

static int set_up(void **state) {
    *state = dir_new();
    return 0;
}

static int tear_down(void **state) {
    dir_remove(*state);
    return 0;
}

static int names_in(const char *dir) {
    DIR *d = opendir(dir);
    assert_non_null(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static bool write_letter(const char *path, char letter, sl_error *err) {
    char bytes[BYTES];
    memset(bytes, letter, sizeof bytes);
    return sl_replace_file(path, bytes, 1 + (size_t)(letter - 'a') * 100, err);
}

/* All of it is one letter, and as long as that letter's file is. */
static void check_whole(const char *path) {
    size_t n = 0;
    sl_error err = {0};
    char *text = sl_read_text(path, BYTES, &n, &err);
    if (!text)
        fail_msg("%s", err.message);
    assert_in_range(text[0], 'a', 'z');
    assert_int_equal(n, 1 + (text[0] - 'a') * 100);
    assert_int_equal(strspn(text, (char[]){text[0], 0}), n);
    free(text);
}

static void write_for_ever(const char *path) {
    for (int i = 0;; i++)
        write_letter(path, (char)('a' + i % 26), NULL);
}

static pid_t start_writer(const char *path) {
    pid_t p = fork();
    assert_true(p >= 0);
    if (p == 0)
        write_for_ever(path);
    return p;
}

static void end_writer(pid_t p) {
    assert_int_equal(kill(p, SIGKILL), 0);
    assert_int_equal(waitpid(p, NULL, 0), p);
}

static unsigned start_seed(const char *name) {
    const char *given = getenv("SL_TEST_SEED");
    unsigned seed = given ? (unsigned)strtoul(given, NULL, 0) : (unsigned)sl_now_ns();
    printf("%s: seed %u\n", name, seed);
    return seed;
}

static void folders_are_made_and_nothing_stays_beside_it(void **state) {
    sl_error err = {0};
    char *path = sl_asprintf("%s/not/there/yet", (char *)*state), *folder = sl_asprintf("%s/not/there", (char *)*state);
    for (char c = 'a'; c < 'e'; c++) {
        assert_true(write_letter(path, c, &err));
        check_whole(path);
        assert_int_equal(names_in(folder), 1);
    }
    assert_true(sl_replace_file(path, "", 0, &err));
    free(folder);
    free(path);
}

static void killed_writers_leave_it_whole_and_one_file_at_most(void **state) {
    enum { KILLS = 40 };
    const char *dir = *state;
    sl_error err = {0};
    char *path = sl_path_join(dir, "kept");
    srand(start_seed(__func__));
    assert_true(write_letter(path, 'a', &err));
    for (int i = 0; i < KILLS; i++) {
        pid_t writer = start_writer(path);
        usleep((unsigned)(rand() % 10000));
        end_writer(writer);
        check_whole(path);
        assert_in_range(names_in(dir), 1, 2);
    }
    assert_true(write_letter(path, 'b', &err)); /* what was left is taken over */
    check_whole(path);
    assert_int_equal(names_in(dir), 1);
    free(path);
}

static void several_writers_at_once_do_not_mix(void **state) {
    enum { WRITERS = 4, LOOKS = 200, KILLS = 5 };
    const char *dir = *state;
    sl_error err = {0};
    char *path = sl_path_join(dir, "kept");
    pid_t writer[WRITERS];
    srand(start_seed(__func__));
    assert_true(write_letter(path, 'a', &err));
    for (int k = 0; k < KILLS; k++) {
        for (int i = 0; i < WRITERS; i++)
            writer[i] = start_writer(path);
        for (int i = 0; i < LOOKS; i++)
            check_whole(path);
        if (!write_letter(path, 'c', &err)) /* comes through among them */
            fail_msg("%s", err.message);
        for (int i = 0; i < WRITERS; i++)
            end_writer(writer[i]);
        check_whole(path);
        assert_in_range(names_in(dir), 1, 2);
    }
    free(path);
}

/* What lies under the name of the file in the making is written to only if it is this user's own plain file. */
static void what_others_put_there_is_left_alone(void **state) {
    const char *dir = *state;
    sl_error err = {0};
    char *path = sl_path_join(dir, "kept"), *part = sl_path_join(dir, "kept.sluice-part");
    char *victim = dir_write(dir, "victim", "unharmed", 8);
    for (int i = 0; i < 4; i++) {
        if (i == 0)
            assert_int_equal(symlink(victim, part), 0);
        else if (i == 1)
            assert_int_equal(link(victim, part), 0);
        else if (i == 2)
            assert_int_equal(mkfifo(part, 0600), 0); /* is not waited for */
        else
            assert_int_equal(mkdir(part, 0700), 0);
        if (!write_letter(path, (char)('a' + i), &err))
            fail_msg("%d: %s", i, err.message);
        check_whole(path);
        assert_int_equal(names_in(dir), 3); /* nothing of ours beside it */
        assert_int_equal(i == 3 ? rmdir(part) : unlink(part), 0);
        char *text = sl_read_text(victim, 100, NULL, &err);
        assert_string_equal(text, "unharmed");
        free(text);
    }
    free(victim);
    free(part);
    free(path);
}

static void a_writer_that_never_ends_is_not_waited_for_for_ever(void **state) {
    const char *dir = *state;
    sl_error err = {0};
    char *path = sl_path_join(dir, "kept"), *part = dir_write(dir, "kept.sluice-part", "x", 1);
    assert_true(sl_replace_file(path, "old", 3, &err));
    int fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_false(sl_replace_file(path, "new", 3, &err));
    assert_non_null(strstr(err.message, path));
    assert_non_null(strstr(err.message, strerror(EBUSY)));
    close(fd);
    assert_true(sl_replace_file(path, "new", 3, &err));
    assert_int_equal(names_in(dir), 1);
    free(part);
    free(path);
}

static void links_are_followed_and_what_is_no_plain_file_stays(void **state) {
    const char *dir = *state;
    sl_error err = {0};
    struct stat st;
    char *file = dir_write(dir, "file", "old", 3), *link = sl_path_join(dir, "link"), *fifo = sl_path_join(dir, "fifo");
    assert_int_equal(symlink("file", link), 0);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_true(write_letter(link, 'c', &err));
    check_whole(file);
    assert_true(lstat(link, &st) == 0 && S_ISLNK(st.st_mode));
    assert_false(write_letter(fifo, 'c', &err));
    assert_non_null(strstr(err.message, "not a plain file"));
    assert_true(lstat(fifo, &st) == 0 && S_ISFIFO(st.st_mode));
    assert_int_equal(unlink(link), 0);
    assert_int_equal(symlink("nowhere", link), 0);
    assert_false(write_letter(link, 'c', &err));
    assert_non_null(strstr(err.message, link));
    assert_int_equal(names_in(dir), 3);
    free(fifo);
    free(link);
    free(file);
}

static void where_nothing_can_be_written_it_says_so(void **state) {
    const char *dir = *state;
    sl_error err = {0};
    char *file = dir_write(dir, "file", "x", 1), *below = sl_path_join(file, "kept"), *over = sl_path_join(dir, "over");
    assert_false(sl_replace_file(below, "a", 1, &err));
    assert_non_null(strstr(err.message, below));
    assert_int_equal(mkdir(over, 0700), 0);
    assert_false(sl_replace_file(over, "a", 1, &err)); /* a directory is in its place */
    assert_non_null(strstr(err.message, over));
    assert_int_equal(names_in(dir), 2);
    free(over);
    free(below);
    free(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(folders_are_made_and_nothing_stays_beside_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(killed_writers_leave_it_whole_and_one_file_at_most, set_up, tear_down),
        cmocka_unit_test_setup_teardown(several_writers_at_once_do_not_mix, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_others_put_there_is_left_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_writer_that_never_ends_is_not_waited_for_for_ever, set_up, tear_down),
        cmocka_unit_test_setup_teardown(links_are_followed_and_what_is_no_plain_file_stays, set_up, tear_down),
        cmocka_unit_test_setup_teardown(where_nothing_can_be_written_it_says_so, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

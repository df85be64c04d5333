/* Errors and log lines: one printable line whatever the arguments held. */
#include "support_base.h"

#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check_message(const char *argument, const char *expected) {
    sl_error err;
    memset(&err, 0x5a, sizeof err);
    assert_false(sl_fail(&err, SL_ERR_FORMAT, "%s", argument));
    assert_int_equal(err.code, SL_ERR_FORMAT);
    assert_string_equal(err.message, expected);
}

static void what_a_terminal_could_obey_is_escaped(void **state) {
    static const struct {
        const char *argument, *expected;
    } cases[] = {
        {"plain ASCII ~", "plain ASCII ~"},
        {"", ""},
        {"two\nlines\r\n", "two\\x0alines\\x0d\\x0a"},
        {"\x1b[31mred", "\\x1b[31mred"},
        {"\x7f\x01\t", "\\x7f\\x01\\x09"},
        {"caf\xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80", "caf\xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80"},
        {"\xc2\x9b", "\\xc2\\x9b"},              /* CSI in one byte's code point */
        {"a\xe2\x80\xa8z", "a\\xe2\\x80\\xa8z"}, /* line separator */
        {"\xe2\x80\xae"
         "abc\xe2\x81\xa6",
         "\\xe2\\x80\\xaeabc\\xe2\\x81\\xa6"}, /* right to left, isolate */
        {"\xff\xfe", "\\xff\\xfe"},
        {"\xc0\x80", "\\xc0\\x80"},          /* overlong */
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"}, /* surrogate */
        {"cut \xe6\xbc", "cut \\xe6\\xbc"},
        {"100% %s %n", "100% %s %n"},
        {"back\\slash", "back\\slash"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        check_message(cases[i].argument, cases[i].expected);
}

static void check_line(const char *line, size_t size) {
    size_t n = strlen(line);
    assert_true(n < size);
    for (size_t i = 0; i < n;) {
        int32_t cp;
        int len = sl_utf8_decode(line + i, n - i, &cp);
        assert_true(cp >= 0x20 && !(cp >= 0x7f && cp < 0xa0));
        i += (size_t)len;
    }
}

static void random_bytes_make_one_printable_line(void **state) {
    rng r = {3};
    print_message("seed %llu\n", (unsigned long long)r.state);
    for (int i = 0; i < 3000; i++) {
        char bytes[1600];
        size_t n = rng_below(&r, i % 3 ? 40 : sizeof bytes);
        for (size_t k = 0; k < n; k++)
            bytes[k] = (char)(1 + rng_below(&r, 255));
        bytes[n] = 0;
        sl_error err;
        memset(&err, 0x5a, sizeof err);
        sl_fail(&err, SL_ERR_IO, "%s", bytes);
        check_line(err.message, sizeof err.message);
        sl_fail_prefix(&err, "%s", bytes);
        check_line(err.message, sizeof err.message);
        sl_fail_errno(&err, SL_ERR_IO, ENOENT, "%s", bytes);
        check_line(err.message, sizeof err.message);
    }
}

static void long_messages_are_cut_between_characters(void **state) {
    for (size_t n = 900; n < 1100; n++) {
        char text[1200];
        memset(text, 'x', n);
        strcpy(text + n, "\xe6\xbc\xa2\x01\xe6\xbc\xa2 and more that does not fit, and more, and more, and more");
        sl_error err;
        sl_fail(&err, SL_ERR_IO, "%s", text);
        check_line(err.message, sizeof err.message);
        assert_true(strlen(err.message) >= 900);
        assert_memory_equal(err.message, text, 900);
    }
}

static void the_systems_reason_stands_at_the_end(void **state) {
    sl_error err;
    assert_false(sl_fail_errno(&err, SL_ERR_IO, ENOENT, "%s: cannot open", "/a/b"));
    assert_string_equal(err.message, "/a/b: cannot open: No such file or directory");
    char *path = malloc(5001);
    memset(path, 'p', 5000);
    path[5000] = 0;
    sl_fail_errno(&err, SL_ERR_IO, EACCES, "%s: cannot open", path);
    check_line(err.message, sizeof err.message);
    const char *end = ": Permission denied";
    assert_string_equal(err.message + strlen(err.message) - strlen(end), end);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    sl_fail_errno(&err, SL_ERR_IO, 987654, "x");
    assert_non_null(strstr(err.message, "987654"));
    free(path);
}

static void prefixes_go_before(void **state) {
    sl_error err;
    sl_fail(&err, SL_ERR_FORMAT, "found %d\n", 3);
    assert_false(sl_fail_prefix(&err, "tensor %s", "a\tb"));
    assert_false(sl_fail_prefix(&err, "%s", "file"));
    assert_string_equal(err.message, "file: tensor a\\x09b: found 3\\x0a"); /* escaped once */
    assert_int_equal(err.code, SL_ERR_FORMAT);
    for (int i = 0; i < 300; i++)
        sl_fail_prefix(&err, "level %d \xe6\xbc\xa2", i);
    check_line(err.message, sizeof err.message);
    assert_memory_equal(err.message, "level 299 ", 10);
}

static void the_message_may_be_an_argument_of_the_next(void **state) {
    sl_error err;
    sl_fail(&err, SL_ERR_FORMAT, "inner");
    sl_fail(&err, SL_ERR_IO, "outer (%s)", err.message);
    assert_string_equal(err.message, "outer (inner)");
    sl_fail_prefix(&err, "%s", err.message);
    assert_string_equal(err.message, "outer (inner): outer (inner)");
}

static void nobody_need_want_the_error(void **state) {
    assert_false(sl_fail(NULL, SL_ERR_IO, "%d", 1));
    assert_false(sl_fail_errno(NULL, SL_ERR_IO, ENOENT, "%d", 1));
    assert_false(sl_fail_prefix(NULL, "%d", 1));
    assert_null(sl_fail_null(NULL, SL_ERR_IO, "%d", 1));
}

typedef struct lines {
    int count;
    sl_log_level level;
    char last[2000];
} lines;

static void keep_line(void *user, sl_log_level level, const char *line) {
    lines *l = user;
    l->count++;
    l->level = level;
    snprintf(l->last, sizeof l->last, "%s", line);
}

static void the_log_takes_what_its_level_allows(void **state) {
    lines l = {0};
    sl_log log = {keep_line, &l, SL_LOG_INFO};
    sl_logf(&log, SL_LOG_DEBUG, "not this");
    assert_int_equal(l.count, 0);
    sl_logf(&log, SL_LOG_INFO, "%s\x1b", "a\nb");
    assert_int_equal(l.count, 1);
    assert_string_equal(l.last, "a\\x0ab\\x1b");
    sl_logf(&log, SL_LOG_ERROR, "%2000s", "x");
    assert_int_equal(l.count, 2);
    assert_int_equal(l.level, SL_LOG_ERROR);
    check_line(l.last, sizeof l.last);
    sl_log silent = {0};
    sl_logf(&silent, SL_LOG_ERROR, "nobody listens");
    sl_logf(NULL, SL_LOG_ERROR, "nobody listens");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_terminal_could_obey_is_escaped),
        cmocka_unit_test(random_bytes_make_one_printable_line),
        cmocka_unit_test(long_messages_are_cut_between_characters),
        cmocka_unit_test(the_systems_reason_stands_at_the_end),
        cmocka_unit_test(prefixes_go_before),
        cmocka_unit_test(the_message_may_be_an_argument_of_the_next),
        cmocka_unit_test(nobody_need_want_the_error),
        cmocka_unit_test(the_log_takes_what_its_level_allows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

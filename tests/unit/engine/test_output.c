/* Text as it is shown: characters whole, stop strings never, the same however the bytes were cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/output.h"

typedef struct output_test {
    engine_output o;
    sl_buf text;
} output_test;

static void begin(output_test *t, const char *const *stop, size_t n) {
    sl_error err = {0};
    t->text = (sl_buf){0};
    if (!engine_output_init(&t->o, NULL, false, stop, n, &err))
        fail_msg("%s", err.message);
}

static void push(output_test *t, const char *bytes, size_t n) {
    assert_true(engine_output_bytes(&t->o, bytes, n, &t->text, NULL));
}

static void expect_text(const output_test *t, const char *text) {
    assert_string_equal(t->text.data ? t->text.data : "", text);
}

static void finish(output_test *t) {
    assert_true(engine_output_finish(&t->o, &t->text, NULL));
}

static void end(output_test *t) {
    engine_output_free(&t->o);
    sl_buf_free(&t->text);
}

/* ---- characters ------------------------------------------------------------------------------------------------- */

static void test_characters_are_held_until_whole(void **state) {
    output_test t;
    begin(&t, NULL, 0);
    push(&t, "a\xf0\x9f", 3);
    expect_text(&t, "a");
    push(&t, "\x98", 1);
    expect_text(&t, "a");
    push(&t, "\x80z\xe2\x82", 4);
    expect_text(&t, "a\xf0\x9f\x98\x80z");
    finish(&t);
    expect_text(&t, "a\xf0\x9f\x98\x80z\xef\xbf\xbd");
    end(&t);
}

#define R "\xef\xbf\xbd"

/* Expected texts are those of Python's bytes.decode("utf-8", "replace"). */
static void test_invalid_bytes_become_replacement_characters(void **state) {
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        {"\x80", R},
        {"\xc0\xaf", R R},             /* overlong */
        {"\xe0\x80\xaf", R R R},       /* overlong */
        {"\xed\xa0\x80", R R R},       /* surrogate */
        {"\xf4\x90\x80\x80", R R R R}, /* above 10FFFF */
        {"\xf5x", R "x"},
        {"\xf1\x80\x80y", R "y"}, /* three bytes that could have been a character: one */
        {"\xe1\x80\xe2\x82\xac", R "\xe2\x82\xac"},
        {"\xf0\x90\x8d\xf0\x90\x8d\x88", R "\xf0\x90\x8d\x88"},
        {"\xc3\x28", R "("},
        {"\xf0\x9f\x98", R},
        {"ok\xff\xfe", "ok" R R},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        for (int whole = 0; whole < 2; whole++) {
            output_test t;
            begin(&t, NULL, 0);
            size_t n = strlen(cases[i].bytes);
            for (size_t k = 0; k < n; k += whole ? n : 1)
                push(&t, cases[i].bytes + k, whole ? n : 1);
            finish(&t);
            expect_text(&t, cases[i].text);
            end(&t);
        }
    }
}

static void assert_valid_utf8(const sl_buf *b) {
    for (size_t i = 0; i < b->size;) {
        int32_t cp;
        i += (size_t)sl_utf8_decode(b->data + i, b->size - i, &cp);
        assert_true(cp >= 0);
    }
}

static size_t random_bytes(char *out, size_t max, bool text) {
    size_t n = (size_t)rand() % max;
    for (size_t i = 0; i < n; i++)
        out[i] = text ? "aab\xc3\xa9"[rand() % 5] : (char)(rand() % 4 ? 0x80 + rand() % 128 : rand() % 128);
    return n;
}

/* What comes out depends on the bytes alone, and is valid at every moment. */
static void test_cuts_do_not_matter(void **state) {
    const unsigned seed = 4711;
    static const char *const stop[] = {"aba", "b\xc3\xa9", "bb", "abaab\xc3\xa9\xc3\xa9"};
    print_message("seed %u\n", seed);
    srand(seed);
    for (int round = 0; round < 5000; round++) {
        char bytes[40];
        bool text = round % 2;
        size_t n = random_bytes(bytes, sizeof bytes, text), stops = text ? (size_t)rand() % 5 : 0;
        output_test whole, cut;
        begin(&whole, stop, stops);
        begin(&cut, stop, stops);
        push(&whole, bytes, n);
        finish(&whole);
        for (size_t at = 0; at < n;) {
            size_t k = 1 + (size_t)rand() % 4;
            k = k < n - at ? k : n - at;
            push(&cut, bytes + at, k);
            assert_valid_utf8(&cut.text);
            at += k;
        }
        finish(&cut);
        assert_int_equal(whole.o.stopped, cut.o.stopped);
        assert_int_equal(whole.text.size, cut.text.size);
        assert_memory_equal(whole.text.data, cut.text.data, whole.text.size);
        for (size_t i = 0; i < stops; i++)
            assert_null(whole.text.data ? strstr(whole.text.data, stop[i]) : NULL);
        end(&whole);
        end(&cut);
    }
}

/* ---- stop strings ----------------------------------------------------------------------------------------------- */

static void test_stop_string_over_many_tokens(void **state) {
    output_test t;
    static const char *const stop[] = {"</answer>"};
    begin(&t, stop, 1);
    push(&t, "x <", 3);
    expect_text(&t, "x ");
    push(&t, "/ans", 4);
    expect_text(&t, "x ");
    push(&t, "wer", 3);
    push(&t, "> more", 6);
    expect_text(&t, "x ");
    assert_true(t.o.stopped);
    push(&t, "nothing", 7);
    finish(&t);
    expect_text(&t, "x ");
    end(&t);
}

static void test_what_was_no_stop_string_comes_out(void **state) {
    output_test t;
    static const char *const stop[] = {"aab"};
    begin(&t, stop, 1);
    push(&t, "aaa", 3);
    expect_text(&t, "a"); /* the last two may begin one */
    push(&t, "c", 1);
    expect_text(&t, "aaac");
    push(&t, "aa", 2);
    expect_text(&t, "aaac");
    finish(&t);
    expect_text(&t, "aaacaa");
    assert_false(t.o.stopped);
    end(&t);
}

static void test_first_complete_stop_string_wins(void **state) {
    output_test t;
    static const char *const stop[] = {"bcde", "cd", "d"};
    begin(&t, stop, 3);
    push(&t, "abcde", 5); /* "cd" and "d" are complete at the same byte: the longer one is cut */
    expect_text(&t, "ab");
    assert_true(t.o.stopped);
    end(&t);
}

static void test_bad_stop_strings(void **state) {
    engine_output o;
    sl_error err = {0};
    const char *empty[] = {"a", ""};
    assert_false(engine_output_init(&o, NULL, false, empty, 2, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    const char *many[ENGINE_MAX_STOPS + 1];
    for (size_t i = 0; i < SL_COUNT(many); i++)
        many[i] = "x";
    assert_false(engine_output_init(&o, NULL, false, many, SL_COUNT(many), &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
}

/* A long stop string that almost matches everywhere must not cost its length per byte. */
static void test_long_stop_string_is_linear(void **state) {
    size_t n = 20000;
    char *stop = malloc(n + 2), *text = malloc(50 * n);
    assert_non_null(stop);
    assert_non_null(text);
    memset(stop, 'a', n);
    memcpy(stop + n, "b", 2);
    memset(text, 'a', 50 * n);
    const char *list[] = {stop};
    output_test t;
    begin(&t, list, 1);
    for (size_t i = 0; i < 50 * n; i += n)
        push(&t, text + i, n);
    assert_int_equal(t.text.size, 49 * n);
    push(&t, "b", 1);
    assert_true(t.o.stopped);
    assert_int_equal(t.text.size, 49 * n);
    end(&t);
    free(stop);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_characters_are_held_until_whole),
        cmocka_unit_test(test_invalid_bytes_become_replacement_characters),
        cmocka_unit_test(test_cuts_do_not_matter),
        cmocka_unit_test(test_stop_string_over_many_tokens),
        cmocka_unit_test(test_what_was_no_stop_string_comes_out),
        cmocka_unit_test(test_first_complete_stop_string_wins),
        cmocka_unit_test(test_bad_stop_strings),
        cmocka_unit_test(test_long_stop_string_is_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

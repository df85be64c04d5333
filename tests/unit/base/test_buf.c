/* Growable buffers, arrays and strings. */
#include "support_base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void appends_add_up(void **state) {
    rng r = {5};
    print_message("seed %llu\n", (unsigned long long)r.state);
    enum { MOST = 1 << 16 };
    char *expected = malloc(MOST + 600);
    size_t n = 0;
    sl_buf b = {0};
    while (n < MOST) {
        char piece[512];
        size_t len = rng_below(&r, sizeof piece);
        for (size_t i = 0; i < len; i++)
            piece[i] = (char)('a' + rng_below(&r, 26));
        piece[len < sizeof piece ? len : sizeof piece - 1] = 0;
        switch (rng_below(&r, 3)) {
        case 0:
            assert_true(sl_buf_append(&b, piece, len));
            break;
        case 1:
            assert_true(sl_buf_puts(&b, piece));
            break;
        default:
            assert_true(sl_buf_printf(&b, "%.*s", (int)len, piece));
        }
        memcpy(expected + n, piece, len);
        n += len;
        assert_int_equal(b.size, n);
        assert_true(b.capacity > n);
        assert_int_equal(b.data[n], 0);
    }
    assert_memory_equal(b.data, expected, n);
    size_t size = 99;
    char *taken = sl_buf_take(&b, &size);
    assert_int_equal(size, n);
    assert_memory_equal(taken, expected, n);
    assert_null(b.data);
    free(taken);
    free(expected);
}

static void bytes_of_any_value(void **state) {
    sl_buf b = {0};
    assert_true(sl_buf_append(&b, "a\0b", 3));
    assert_true(sl_buf_append(&b, NULL, 0));
    assert_true(sl_buf_printf(&b, "%s", ""));
    assert_int_equal(b.size, 3);
    assert_memory_equal(b.data, "a\0b\0", 4);
    sl_buf_clear(&b);
    assert_int_equal(b.size, 0);
    assert_string_equal(b.data, "");
    sl_buf_free(&b);
    sl_buf_free(&b);
    sl_buf_clear(&b);
    assert_null(b.data);
}

static void an_empty_buffer_gives_an_empty_string(void **state) {
    sl_buf b = {0};
    size_t size = 7;
    char *s = sl_buf_take(&b, &size);
    assert_string_equal(s, "");
    assert_int_equal(size, 0);
    free(s);
    s = sl_buf_take(&b, NULL);
    assert_string_equal(s, "");
    free(s);
}

static void a_failed_append_stays_failed(void **state) {
    sl_buf b = {0};
    assert_true(sl_buf_puts(&b, "kept"));
    assert_false(sl_buf_append(&b, "", SIZE_MAX)); /* size overflows: nothing is copied */
    assert_true(b.failed);
    assert_false(sl_buf_puts(&b, "more"));
    assert_false(sl_buf_printf(&b, "%d", 1));
    assert_string_equal(b.data, "kept");
    size_t size = 7;
    assert_null(sl_buf_take(&b, &size));
    assert_null(b.data);
    assert_false(b.failed);
    assert_true(sl_buf_puts(&b, "again"));
    assert_false(sl_buf_append(&b, "", SIZE_MAX / 2 + 1)); /* doubling cannot reach it */
    sl_buf_clear(&b);
    assert_true(sl_buf_puts(&b, "ok"));
    assert_string_equal(b.data, "ok");
    sl_buf_free(&b);
}

static void arrays_double_and_keep_what_they_hold(void **state) {
    void *array = NULL;
    size_t capacity = 0, grown = 0;
    for (size_t n = 1; n < 5000; n++) {
        size_t before = capacity;
        assert_true(sl_grow(&array, &capacity, n, sizeof(uint64_t)));
        assert_true(capacity >= n);
        grown += capacity != before;
        ((uint64_t *)array)[n - 1] = n * 31;
    }
    assert_in_range(grown, 1, 12);
    for (size_t i = 0; i < 4999; i++)
        assert_int_equal(((uint64_t *)array)[i], (i + 1) * 31);
    static const size_t absurd[] = {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 8 + 1, PTRDIFF_MAX / 8 + 1};
    void *old = array;
    size_t old_capacity = capacity;
    for (size_t i = 0; i < SL_COUNT(absurd); i++) {
        assert_false(sl_grow(&array, &capacity, absurd[i], sizeof(uint64_t)));
        assert_ptr_equal(array, old);
        assert_int_equal(capacity, old_capacity);
    }
    assert_int_equal(((uint64_t *)array)[0], 31);
    free(array);
}

static void copies_of_strings(void **state) {
    char *a = sl_strdup("text"), *b = sl_strndup("text", 2), *c = sl_asprintf("%s-%05d", "x", 42), *d = sl_strdup("");
    assert_string_equal(a, "text");
    assert_string_equal(b, "te");
    assert_string_equal(c, "x-00042");
    assert_string_equal(d, "");
    free(a);
    free(b);
    free(c);
    free(d);
}

static void sizes_that_overflow_are_seen(void **state) {
    uint64_t v = 1;
    assert_true(sl_mul_u64(1ull << 32, (1ull << 32) - 1, &v));
    assert_int_equal(v, ((1ull << 32) - 1) << 32);
    assert_false(sl_mul_u64(1ull << 32, 1ull << 32, &v));
    assert_false(sl_mul_u64(UINT64_MAX, 2, &v));
    assert_true(sl_mul_u64(UINT64_MAX, 0, &v));
    assert_int_equal(v, 0);
    assert_true(sl_add_u64(UINT64_MAX - 5, 5, &v));
    assert_true(v == UINT64_MAX);
    assert_false(sl_add_u64(UINT64_MAX, 1, &v));
    assert_int_equal(sl_round_up(0, 64), 0);
    assert_int_equal(sl_round_up(1, 64), 64);
    assert_int_equal(sl_round_up(64, 64), 64);
    assert_int_equal(sl_round_up(10, 3), 12);
    assert_int_equal(sl_min_i64(-3, 2), -3);
    assert_int_equal(sl_max_i64(-3, 2), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends_add_up),
        cmocka_unit_test(bytes_of_any_value),
        cmocka_unit_test(an_empty_buffer_gives_an_empty_string),
        cmocka_unit_test(a_failed_append_stays_failed),
        cmocka_unit_test(arrays_double_and_keep_what_they_hold),
        cmocka_unit_test(copies_of_strings),
        cmocka_unit_test(sizes_that_overflow_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

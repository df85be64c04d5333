/* The few functions of cmocka that the tests of base, quant and cpu use, for the cross build, which has no cmocka:
 * same names and meaning; a failed assertion ends its test. */
#ifndef STAND_IN_CMOCKA_H
#define STAND_IN_CMOCKA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
    int (*setup)(void **state), (*teardown)(void **state);
};

#define cmocka_unit_test(f)                                                                                            \
    { #f, f, NULL, NULL }
#define cmocka_unit_test_setup_teardown(f, setup, teardown)                                                            \
    { #f, f, setup, teardown }
#define cmocka_run_group_tests(tests, setup, teardown)                                                                 \
    stand_in_run(tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)

int stand_in_run(const struct CMUnitTest *tests, size_t n, int (*setup)(void **), int (*teardown)(void **));
void stand_in_fail(const char *file, int line, const char *format, ...) __attribute__((noreturn, format(printf, 3, 4)));
void stand_in_skip(void) __attribute__((noreturn));
void stand_in_string(const char *file, int line, const char *a, const char *b);
void stand_in_integer(const char *file, int line, const char *what, uintmax_t a, uintmax_t b);
void stand_in_range(const char *file, int line, const char *what, uintmax_t v, uintmax_t low, uintmax_t high);
void print_message(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define STAND_IN_CHECK(ok, text)                                                                                       \
    do {                                                                                                               \
        if (!(ok)) {                                                                                                   \
            stand_in_fail(__FILE__, __LINE__, "%s", text);                                                             \
        }                                                                                                              \
    } while (0)

#define fail_msg(...)                stand_in_fail(__FILE__, __LINE__, __VA_ARGS__)
#define skip()                       stand_in_skip()
#define assert_true(c)               STAND_IN_CHECK(c, #c)
#define assert_false(c)              STAND_IN_CHECK(!(c), "not " #c)
#define assert_null(p)               STAND_IN_CHECK((p) == NULL, #p " is not NULL")
#define assert_non_null(p)           STAND_IN_CHECK((p) != NULL, #p " is NULL")
#define assert_ptr_equal(a, b)       STAND_IN_CHECK((const void *)(a) == (const void *)(b), #a " != " #b)
#define assert_memory_equal(a, b, n) STAND_IN_CHECK(memcmp(a, b, n) == 0, #a " != " #b)
#define assert_string_equal(a, b)    stand_in_string(__FILE__, __LINE__, a, b)
#define assert_int_equal(a, b)       stand_in_integer(__FILE__, __LINE__, #a " != " #b, (uintmax_t)(a), (uintmax_t)(b))
#define assert_in_range(v, low, high)                                                                                  \
    stand_in_range(__FILE__, __LINE__, #v, (uintmax_t)(v), (uintmax_t)(low), (uintmax_t)(high))

#endif

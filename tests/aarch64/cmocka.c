/* The stand-in for cmocka of the cross build. */
#include <cmocka.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

enum { PASSED, FAILED, SKIPPED };

static jmp_buf after_test;

void stand_in_fail(const char *file, int line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("%s:%d: ", file, line);
    vprintf(format, args);
    printf("\n");
    va_end(args);
    longjmp(after_test, FAILED);
}

void stand_in_skip(void) {
    longjmp(after_test, SKIPPED);
}

void stand_in_string(const char *file, int line, const char *a, const char *b) {
    if (strcmp(a, b) != 0) {
        stand_in_fail(file, line, "\"%s\" != \"%s\"", a, b);
    }
}

void stand_in_integer(const char *file, int line, const char *what, uintmax_t a, uintmax_t b) {
    if (a != b) {
        stand_in_fail(file, line, "%s: %ju != %ju", what, a, b);
    }
}

void stand_in_range(const char *file, int line, const char *what, uintmax_t v, uintmax_t low, uintmax_t high) {
    if (v < low || v > high) {
        stand_in_fail(file, line, "%s: %ju is not in %ju .. %ju", what, v, low, high);
    }
}

void print_message(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
}

int stand_in_run(const struct CMUnitTest *tests, size_t n, int (*setup)(void **), int (*teardown)(void **)) {
    static const char *const words[] = {"passed", "FAILED", "skipped"};
    void *state = NULL;
    volatile int failed = 0;
    if (setup && setup(&state) != 0) {
        printf("set-up FAILED\n");
        return 1;
    }
    for (volatile size_t i = 0; i < n; i++) {
        void *volatile of_test = state;
        int result = setjmp(after_test);
        if (result == PASSED && (!tests[i].setup || tests[i].setup((void **)&of_test) == 0))
            tests[i].run((void **)&of_test);
        else if (result == PASSED)
            result = FAILED;
        if (tests[i].teardown && tests[i].teardown((void **)&of_test) != 0)
            result = FAILED;
        failed += result == FAILED;
        printf("%s %s\n", words[result], tests[i].name);
        fflush(stdout);
    }
    if (teardown && teardown(&state) != 0) {
        printf("tear-down FAILED\n");
        return 1;
    }
    printf("%zu tests, %d failed\n", n, failed);
    return failed;
}

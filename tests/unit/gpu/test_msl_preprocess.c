/* The translator's preprocessor: what a source says after it. */
#include "gpu/msl/token.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const char *include_dirs[1];
static size_t include_count;

/* Tokens of the preprocessed source joined by spaces, pragmas in angles; NULL with *err. */
static char *preprocess(const char *text, sl_error *err) {
    msl_options o = {.name = "t.metal", .include_dirs = include_dirs, .include_count = include_count};
    msl_source s = {.options = &o, .err = err};
    msl_tokens t = {0};
    sl_buf b = {0};
    *err = (sl_error){0};
    bool ok = msl_preprocess(&s, text, strlen(text), &t);
    sl_buf_puts(&b, "");
    for (size_t i = 0; ok && t.at[i].kind != MSL_END; i++)
        sl_buf_printf(&b, t.at[i].kind == MSL_PRAGMA ? "%s<%.*s>" : "%s%.*s", i ? " " : "", (int)t.at[i].size,
                      t.at[i].text);
    free(t.at);
    msl_arena_free(&s.arena);
    char *joined = ok ? sl_buf_take(&b, NULL) : NULL;
    sl_buf_free(&b);
    return joined;
}

static void check(const char *text, const char *expected) {
    sl_error err;
    char *got = preprocess(text, &err);
    if (!got)
        fail_msg("%s: %s", text, err.message);
    assert_string_equal(got, expected);
    free(got);
}

static void check_error(const char *text, const char *expected) {
    sl_error err;
    char *got = preprocess(text, &err);
    if (got)
        fail_msg("%s gave %s", text, got);
    if (!strstr(err.message, expected))
        fail_msg("%s: got '%s', expected '%s'", text, err.message, expected);
    assert_int_equal(err.code, SL_ERR_COMPILE);
}

static void object_macros_expand_and_stop_at_themselves(void **state) {
    (void)state;
    check("#define A B\n#define B C\nA B C", "C C C");
    check("#define A A + B\n#define B A\nA B", "A + A A + B");
    check("#define A x\n#undef A\nA", "A");
    check("#define f(x) x\nf", "f");
    check("#define EMPTY\nEMPTY a EMPTY", "a");
}

static void function_macros_take_arguments(void **state) {
    (void)state;
    check("#define add(a, b) ((a) + (b))\nadd(1, add(2, 3))", "( ( 1 ) + ( ( ( 2 ) + ( 3 ) ) ) )");
    check("#define f(a, b) a b\nf((1, 2), 3)", "( 1 , 2 ) 3");
    check("#define f() x\nf() f ( )", "x x");
    check("#define f(a) [a]\n#define g f\ng(1) g\n(2)", "[ 1 ] [ 2 ]");
    check("#define neg(x) -x\nneg(-1)", "- - 1");
    check("#define id(x) x\n#define E id(\nE 1)", "1");
}

static void arguments_are_expanded_but_not_where_joined(void **state) {
    (void)state;
    check("#define N 4\n#define cat(a, b) a##b\ncat(float, N)", "floatN");
    check("#define N 4\n#define cat(a, b) a##b\n#define xcat(a, b) cat(a, b)\nxcat(float, N)", "float4");
    check("#define N 4\n#define s(x) #x\n#define xs(x) s(x)\ns(N) xs(N)", "\"N\" \"4\"");
    check("#define s(x) #x\ns(a  +  \"q\\n\")", "\"a + \\\"q\\\\n\\\"\"");
    check("#define c(a, b) a##b\nc(,x) c(x,) c(,)", "x x");
    check("#define k(n, t) template [[host_name(\"k_\" #n)]] kernel decltype(f<t>) f<t>;\nk(f32, float)",
          "template [ [ host_name ( \"k_\" \"f32\" ) ] ] kernel decltype ( f < float > ) f < float > ;");
}

static void variadic_macros_pass_the_rest(void **state) {
    (void)state;
    check("#define v(...) f(__VA_ARGS__)\nv() v(1) v(1, (2, 3))", "f ( ) f ( 1 ) f ( 1 , ( 2 , 3 ) )");
    check("#define v(a, ...) f(a, ##__VA_ARGS__)\nv(1) v(1, 2)", "f ( 1 ) f ( 1 , 2 )");
    check("#define v(a, ...) f(a __VA_OPT__(,) __VA_ARGS__)\nv(1) v(1, 2)", "f ( 1 ) f ( 1 , 2 )");
    check("#define inst(name, ...) name<__VA_ARGS__>\ninst(f, int, 3)", "f < int , 3 >");
}

static void conditions_choose_lines(void **state) {
    (void)state;
    check("#if 1 + 1 == 2 && !defined(X)\na\n#else\nb\n#endif", "a");
    check("#define X 0\n#if X\na\n#elif defined X && __METAL_VERSION__ >= 300\nb\n#else\nc\n#endif", "b");
    check("#ifdef X\n#if 1\na\n#endif\n#else\nb\n#endif", "b");
    check("#ifndef X\n#if 0\n#error no\n#elif 1 ? 2 : 0\na\n#elif 1\nb\n#endif\n#endif", "a");
    check("#if (1 << 4 | 3) != 19 || 0x10 % 7 - 2\nbad\n#else\ngood\n#endif", "good");
    check("#if UNKNOWN || __has_include(<nothing.h>)\na\n#endif\nb", "b");
    check("#ifdef __METAL__\nm\n#endif", "m");
}

static void pragmas_are_kept(void **state) {
    (void)state;
    check("#pragma unroll(4)\nfor", "<unroll(4)> for");
    check("#define U _Pragma(\"clang loop unroll(full)\")\nU for", "<clang loop unroll(full)> for");
    check("#pragma once\nx", "x");
}

static void lines_survive_continuation_and_comments(void **state) {
    (void)state;
    sl_error err;
    check("#define A 1 \\\n + 2\nA /* x\n */ b // c\nd", "1 + 2 b d");
    assert_null(preprocess("#define A \\\n\\\n x\n\n#error here", &err));
    assert_string_equal(err.message, "t.metal:5: #error here");
}

static void errors_name_file_and_line(void **state) {
    (void)state;
    check_error("\n#if 1\nx", "t.metal:2: #if is not closed");
    check_error("#endif", "t.metal:1: #endif without #if");
    check_error("#else", "#else without #if");
    check_error("#if 1\n#else\n#else\n#endif", "t.metal:3: #else after #else");
    check_error("#if 1 +\n#endif", "t.metal:1: condition of #if is not an integer expression");
    check_error("#if 1/0\n#endif", "condition of #if");
    check_error("#define f(a) a\nf(1, 2)", "t.metal:2: too many arguments for macro f");
    check_error("#define f(a, b) a\nf(1)", "macro f takes 2 arguments, not 1");
    check_error("#define f(a) a\nf(1", "arguments of macro f are not closed");
    check_error("\"abc", "string is not closed");
    check_error("a\n/* b", "comment is not closed");
    check_error("#frobnicate", "directive #frobnicate is unknown");
    check_error("#include \"nowhere.h\"", "t.metal:1: included file nowhere.h is not found");
}

static void line_directives_move_lines(void **state) {
    (void)state;
    check("#line 40\n__LINE__\n\n__LINE__ #line 7 \"x.h\"", "40 42 # line 7 \"x.h\"");
    check("#define N 9\n#line N \"x.h\"\n__LINE__\n#line 3\n__LINE__ __LINE__", "9 3 3");
    check("# 12 \"a\" 1 3\n__LINE__\n#if 0\n#line x\n#endif\n__LINE__", "12 16");
    check_error("#line 5 \"dir/x.metal\"\n\n#error no", "dir/x.metal:6: #error no");
    check_error("a\n#line 100\n#if 1", "t.metal:100: #if is not closed");
    check_error("#line 2147483647\n\n\n#error far", ":2147483647: #error far");
    check_error("\n#line x", "t.metal:2: #line needs a number below 2^31");
    check_error("#line 3 4", "#line needs a number below 2^31, then nothing or a \"file\"");
    check_error("#line 99999999999", "#line needs a number");
    check_error("#line", "#line needs a number");
}

static void hostile_macros_end(void **state) {
    (void)state;
    sl_buf b = {0};
    sl_buf_puts(&b, "#define m0 x x x x x x x x\n");
    for (int i = 1; i < 24; i++)
        sl_buf_printf(&b, "#define m%d m%d m%d m%d m%d\n", i, i - 1, i - 1, i - 1, i - 1);
    sl_buf_puts(&b, "m23\n");
    check_error(b.data, "tokens");
    sl_buf_clear(&b);
    sl_buf_puts(&b, "#define f(x) x\n");
    for (int i = 0; i < 5000; i++)
        sl_buf_puts(&b, "f(");
    check_error(b.data, "t.metal:2:");
    sl_buf_clear(&b);
    for (int i = 0; i < 5000; i++)
        sl_buf_puts(&b, "#if 1\n");
    check_error(b.data, "#if is nested too deep");
    sl_buf_clear(&b);
    sl_buf_puts(&b, "#if ");
    for (int i = 0; i < 5000; i++)
        sl_buf_puts(&b, "(");
    sl_buf_puts(&b, "\n#endif");
    check_error(b.data, "condition of #if");
    sl_buf_free(&b);
}

static void write_file(const char *dir, const char *name, const char *text) {
    char *path = sl_path_join(dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    free(path);
}

static void includes_are_found_beside_and_in_dirs(void **state) {
    (void)state;
    char dir[] = "/tmp/sl_msl_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *sub = sl_path_join(dir, "sub");
    assert_int_equal(mkdir(sub, 0700), 0);
    write_file(dir, "a.h", "#pragma once\n#include \"sub/b.h\"\na\n");
    write_file(sub, "b.h", "#include \"c.h\"\nb\n");
    write_file(sub, "c.h", "#ifndef C\n#define C\nc\n#endif\n");
    write_file(dir, "self.h", "#include \"self.h\"\n");
    include_dirs[0] = dir;
    include_count = 1;
    check("#include <metal_stdlib>\n#include \"a.h\"\n#include <a.h>\n#include \"sub/c.h\"\nend", "c b a end");
    check("#define H \"a.h\"\n#include H\nend", "c b a end");
    check_error("#include \"self.h\"\n", "#include is nested too deep");
    write_file(dir, "e.h", "\n\n#error x\n");
    check_error("#include \"e.h\"\n", "/e.h:3: #error x");
    include_count = 0;
    static const char *const files[] = {"a.h", "sub/b.h", "sub/c.h", "self.h", "e.h"};
    for (size_t i = 0; i < SL_COUNT(files); i++) {
        char *path = sl_path_join(dir, files[i]);
        unlink(path);
        free(path);
    }
    rmdir(sub);
    rmdir(dir);
    free(sub);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(object_macros_expand_and_stop_at_themselves),
        cmocka_unit_test(function_macros_take_arguments),
        cmocka_unit_test(arguments_are_expanded_but_not_where_joined),
        cmocka_unit_test(variadic_macros_pass_the_rest),
        cmocka_unit_test(conditions_choose_lines),
        cmocka_unit_test(pragmas_are_kept),
        cmocka_unit_test(lines_survive_continuation_and_comments),
        cmocka_unit_test(errors_name_file_and_line),
        cmocka_unit_test(line_directives_move_lines),
        cmocka_unit_test(hostile_macros_end),
        cmocka_unit_test(includes_are_found_beside_and_in_dirs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

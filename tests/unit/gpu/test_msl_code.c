/* The translator's code: that it says what the source said, and that clang++ takes it, and nvcc where there is one. */
#include "gpu/msl/msl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char *translate(const char *name, const char *text, msl_target target) {
    msl_options o = {.name = name, .target = target};
    sl_error err = {0};
    msl_module *m = msl_translate(text, strlen(text), &o, &err);
    if (!m)
        fail_msg("%s", err.message);
    char *code = sl_strdup(msl_module_code(m, NULL));
    msl_module_free(m);
    return code;
}

/* The unit's user part with white space made single, holds `expected`. */
static void check(const char *text, const char *expected) {
    char *code = translate("t.metal", text, MSL_SOFT),
         *user = strstr(code, "\nnamespace msl_unit {\nusing namespace metal;\n");
    assert_non_null(user);
    char *to = user;
    for (char *p = user; *p; p++)
        if (!strchr(" \n", *p) || (to > user && to[-1] != ' '))
            *to++ = *p == '\n' ? ' ' : *p;
    *to = 0;
    if (!strstr(user, expected))
        fail_msg("%s\nbecame %s\nwhich lacks %s", text, user, expected);
    free(code);
}

static void literals_are_float_half_and_bfloat(void **state) {
    (void)state;
    check("float f() { return 1.0 + 1e-3 + .5 + 2.f + 3 + 0x1p3 + 0x1f + 1u; }",
          "return 1.0f + 1e-3f + .5f + 2.f + 3 + 0x1p3f + 0x1f + 1u ;");
    check("half f() { return 1.0h + 2h + 1.5H; }", "return half(1.0f) + half(2.0f) + half(1.5f) ;");
    check("bfloat f() { return 1.5bf; }", "return bfloat(1.5f) ;");
}

static void swizzles_are_read_and_assigned(void **state) {
    (void)state;
    check(
        "void f(float4 v) { v.xy = v.wz; v.rgb *= 2; p->xyz; v.x = s.f(); }",
        "v . MSL_SW_SET(0,1) = v . MSL_SW(3,2) ; v . MSL_SW_SET(0,1,2) *= 2 ; p -> MSL_SW(0,1,2) ; v . x = s . f ( )");
    check("struct S { float2 xy; };", "enable_if_t<A == 0 && B == 1, int> = 0> MSL_FN auto &msl_set() { return xy; }");
}

static void address_spaces_are_erased_and_overloads_kept_once(void **state) {
    (void)state;
    check("void f(device const float *a, constant int *b, threadgroup char *c, thread uint &d) {}",
          "MSL_FN void f ( const float * a , const int * b , char * c , uint & d ) { }");
    check("int g(device int *p) { return *p; } int g(threadgroup int *q) { return *q; } int h();",
          "MSL_FN int g ( int * p ) { return * p ; }");
    check("struct S { int f() const device { return 1; } int f() const thread { return 1; } int g; };",
          "struct S { MSL_FN int f ( ) const { return 1 ; } int g ; } ;");
    check("struct S { S(int a) thread : x(a) {} S(int a) constant : x(a) {} int x; };",
          "struct S { MSL_FN S ( int a ) : x ( a ) { } int x ; } ;");
}

static void threadgroup_storage_is_declared_in_bodies(void **state) {
    (void)state;
    check("kernel void f(device int *o) { threadgroup vec<float, 4> a[2][N], b; threadgroup int *p = q; }",
          "typedef vec < float , 4 > msl_tg_0; MSL_THREADGROUP_ARRAY(0, msl_tg_0, a, [( 2 )] [( N )] , 1); "
          "MSL_THREADGROUP_VAR(1, msl_tg_0, b , 1); int * p = q ; }");
}

static void pragmas_and_attributes(void **state) {
    (void)state;
    check(
        "void f() {\n#pragma unroll\nfor (;;) {}\n#pragma unroll(4)\nfor (;;) {}\n_Pragma(\"clang loop unroll(full)\") "
        "for (;;) {}\n#pragma clang loop unroll(disable)\nfor (;;) {}\n#pragma METAL fp contract(off)\n}",
        "_Pragma(\"unroll\") for ( ; ; ) { } _Pragma(\"unroll 4\") for ( ; ; ) { } _Pragma(\"unroll\") for ( ; ; ) { } "
        "_Pragma(\"unroll 1\") for ( ; ; ) { } }");
}

static void reserved_and_global_names(void **state) {
    (void)state;
    check("int msl_x; int f(int MSL_FN) { return ::g(::metal::h) + a::b; }",
          "int user_msl_x ; MSL_FN int f ( int user_MSL_FN ) { return ::msl_unit:: g ( ::msl_unit:: metal :: h ) + a "
          ":: b ;");
}

static void kernel_and_coherent_are_names_too(void **state) {
    (void)state;
    check("kernel void f(device const float *kernel [[buffer(0)]], device float *o, uint i "
          "[[thread_position_in_grid]]) { o[i] = kernel[i] * kernel[0]; float coherent = 1; o[0] = coherent; }",
          "MSL_FN void f ( const float * kernel , float * o , uint i ) { o [ i ] = kernel [ i ] * kernel [ 0 ] ; float "
          "coherent = 1 ; o [ 0 ] = coherent ; }");
    check("kernel [[max_total_threads_per_threadgroup(32)]] void f(coherent device int *a) {}",
          "MSL_FN void f ( int * a ) { }");
}

static void packing_is_kept(void **state) {
    (void)state;
    check("struct [[gnu::packed]] S { uchar a; float b; };",
          "struct __attribute__((packed)) S { uchar a ; float b ; } ;");
    check("#pragma pack(push, 1)\nstruct S { uchar a; float b; };\n#pragma pack(pop)\n#pragma mark x\n",
          "_Pragma(\"pack(push, 1)\") struct S { uchar a ; float b ; } ; _Pragma(\"pack(pop)\") ");
}

static void enums_of_headers_that_a_host_shares(void **state) {
    (void)state;
    check("typedef enum A : metal::int32_t A; enum A : metal::int32_t { a, b = 4 }; float x[b];",
          "enum A : metal :: int32_t ; enum A : metal :: int32_t { a , b = 4 } ; float x [ b ] ;");
    check("typedef enum A : int B; B x;", "enum A : int ; typedef A B; B x ;");
}

/* An entry's own parameters: dynamic threadgroup memory 0 beside buffer 0. */
static void entries_on_cuda_take_what_their_kernel_does(void **state) {
    (void)state;
    char *code = translate("t.metal",
                           "kernel void f(device float *a [[buffer(0)]], threadgroup float *s [[threadgroup(0)]], "
                           "threadgroup int *t [[threadgroup(1)]]) {}",
                           MSL_CUDA);
    if (!strstr(code, "msl_entry_0(void *msl_b0, unsigned msl_t0, unsigned msl_t1)"))
        fail_msg("%s", strstr(code, "msl_entry_0"));
    free(code);
}

/* ---- compilers --------------------------------------------------------------------------------------------------- */

static char *read_source(const char *name) {
    char *path = sl_asprintf("%s/tests/unit/gpu/msl/%s", SL_SOURCE_DIR, name);
    sl_error err = {0};
    char *text = sl_read_text(path, 1 << 20, NULL, &err);
    if (!text)
        fail_msg("%s", err.message);
    free(path);
    return text;
}

/* What `compiler` says of code, in a file of that suffix; *status: its exit status. */
static char *compile(const char *compiler, const char *suffix, const char *code, int *status) {
    char *path = sl_asprintf("/tmp/sl_msl_code_%d%s", (int)getpid(), suffix);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(code, f);
    assert_int_equal(fclose(f), 0);
    char *command = sl_asprintf("%s %s 2>&1", compiler, path);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    sl_buf out = {0};
    char part[4096];
    size_t n;
    while ((n = fread(part, 1, sizeof part, p)) > 0)
        sl_buf_append(&out, part, n);
    *status = pclose(p);
    sl_buf_puts(&out, "");
    unlink(path);
    free(path);
    free(command);
    return sl_buf_take(&out, NULL);
}

static const char *const sources[] = {"idioms.metal", "templates.metal", "shared.metal", "library.metal",
                                      "shapes.metal", "names.metal",     "forms.metal"};

static bool have(const char *compiler) {
    char *command = sl_asprintf("command -v %s >/dev/null 2>&1", compiler);
    bool found = system(command) == 0;
    free(command);
    if (!found)
        printf("SKIP: no %s here: generated code is not compiled with it\n", compiler);
    return found;
}

static const char clang[] = "clang++ -std=c++17 -fsyntax-only -ffp-contract=off -w";

static void clang_takes_what_kernels_say(void **state) {
    (void)state;
    for (size_t i = 0; i < SL_COUNT(sources) && have("clang++"); i++) {
        char *text = read_source(sources[i]), *code = translate(sources[i], text, MSL_SOFT);
        int status;
        char *said = compile(clang, ".cpp", code, &status);
        if (status != 0)
            fail_msg("%.2000s", said);
        free(said);
        free(code);
        free(text);
    }
}

static void errors_of_the_compiler_name_the_sources_line(void **state) {
    (void)state;
    if (!have("clang++"))
        return;
    char *code = translate("dir/my.metal",
                           "#define M(x) \\\n  x\n\n/* c\n */ kernel void f(device int *a) {\n  a[0] = 1;\n"
                           "  M(a[0] = undeclared_name;)\n}\n",
                           MSL_SOFT);
    int status;
    char *said = compile(clang, ".cpp", code, &status);
    assert_int_not_equal(status, 0);
    if (!strstr(said, "dir/my.metal:7:"))
        fail_msg("%.2000s", said);
    free(said);
    free(code);
}

static void nvcc_takes_what_kernels_say(void **state) {
    (void)state;
    bool asked = getenv("SLUICE_TEST_NVCC") != NULL;
    if (!asked)
        printf("SKIP: nvcc is slow: set SLUICE_TEST_NVCC to compile generated code with it\n");
    for (size_t i = 0; i < SL_COUNT(sources) && asked && have("nvcc"); i++) {
        char *text = read_source(sources[i]), *code = translate(sources[i], text, MSL_CUDA);
        int status;
        char *said = compile("nvcc -std=c++20 -arch=sm_90 --expt-relaxed-constexpr -fmad=false -w -ptx -o /dev/null",
                             ".cu", code, &status);
        if (status != 0)
            fail_msg("%.2000s", said);
        free(said);
        free(code);
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(literals_are_float_half_and_bfloat),
        cmocka_unit_test(swizzles_are_read_and_assigned),
        cmocka_unit_test(address_spaces_are_erased_and_overloads_kept_once),
        cmocka_unit_test(threadgroup_storage_is_declared_in_bodies),
        cmocka_unit_test(pragmas_and_attributes),
        cmocka_unit_test(reserved_and_global_names),
        cmocka_unit_test(kernel_and_coherent_are_names_too),
        cmocka_unit_test(packing_is_kept),
        cmocka_unit_test(enums_of_headers_that_a_host_shares),
        cmocka_unit_test(entries_on_cuda_take_what_their_kernel_does),
        cmocka_unit_test(clang_takes_what_kernels_say),
        cmocka_unit_test(errors_of_the_compiler_name_the_sources_line),
        cmocka_unit_test(nvcc_takes_what_kernels_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The translator's tables: which kernels a source has, what they are given, and what is refused. */
#include "gpu/msl/msl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static msl_module *translate(const char *text, msl_target target) {
    msl_options o = {.name = "t.metal", .target = target};
    sl_error err = {0};
    msl_module *m = msl_translate(text, strlen(text), &o, &err);
    if (!m)
        fail_msg("%s\n%s", err.message, text);
    return m;
}

static void check_error(const char *text, const char *expected) {
    msl_options o = {.name = "t.metal", .target = MSL_SOFT};
    sl_error err = {0};
    msl_module *m = msl_translate(text, strlen(text), &o, &err);
    msl_module_free(m);
    if (m || !strstr(err.message, expected))
        fail_msg("%s\ngave '%s', expected '%s'", text, err.message, expected);
}

/* The table as text: name(kind slot least name, ..)threads; kinds R W B T. */
static char *describe(const msl_module *m) {
    sl_buf b = {0};
    size_t n;
    const msl_kernel *k = msl_module_kernels(m, &n);
    sl_buf_puts(&b, "");
    for (size_t i = 0; i < n; i++) {
        sl_buf_printf(&b, "%s%s(", i ? " " : "", k[i].name);
        for (size_t j = 0; j < k[i].arg_count; j++) {
            const msl_arg *a = &k[i].args[j];
            sl_buf_printf(&b, "%s%c%d %u %s", j ? ", " : "", "RWBT"[a->arg.kind], a -> arg.slot, a->arg.least,
                          a->arg.name);
            if (a->condition != -1)
                sl_buf_printf(&b, "?%d", a->condition);
        }
        sl_buf_printf(&b, ")%u", k[i].max_threads);
    }
    return sl_buf_take(&b, NULL);
}

static void check(const char *text, const char *expected) {
    static const msl_target targets[] = {MSL_TABLE, MSL_SOFT, MSL_CUDA};
    for (size_t i = 0; i < SL_COUNT(targets); i++) {
        msl_module *m = translate(text, targets[i]);
        char *got = describe(m);
        assert_string_equal(got, expected);
        size_t size;
        const char *code = msl_module_code(m, &size);
        assert_int_equal(size, strlen(code));
        assert_true((size == 0) == (targets[i] == MSL_TABLE));
        free(got);
        msl_module_free(m);
    }
}

static void arguments_have_kind_slot_and_least_bytes(void **state) {
    (void)state;
    check("kernel void f(device const float4 *a [[buffer(2)]], device half *b [[buffer(0)]], constant int &n "
          "[[buffer(1)]], constant float *t [[buffer(7)]], threadgroup float *s [[threadgroup(1)]], uint i "
          "[[thread_position_in_grid]]) {}",
          "f(W0 2 b, B1 4 n, R2 16 a, R7 4 t, T1 4 s)0");
    check("[[kernel]] [[max_total_threads_per_threadgroup(128)]] void f(const device uchar *a [[buffer(0)]]) {}",
          "f(R0 1 a)128");
    check("kernel void f(device const float *const a [[buffer(0)]]) [[max_total_threads_per_threadgroup(64 * 2)]] {}",
          "f(R0 4 a)128");
    check("kernel void f(device atomic_uint &n [[buffer(3)]], constant float (&m)[4] [[buffer(30)]]) {}",
          "f(W3 4 n, B30 16 m)0");
}

static void indices_are_enumerators_of_classes_and_casts(void **state) {
    (void)state;
    check(
        "enum class A : int { x, y = 4 }; namespace n { constant int z = 6; } kernel void f(device int *a "
        "[[buffer(int(A::y))]], device int *b [[buffer(static_cast<uint>(A::x))]], device int *c [[buffer((int)A::y + "
        "1)]], device int *d [[buffer(n::z)]], device int *e [[buffer(uchar(258))]]) {}",
        "f(W0 4 b, W2 4 e, W4 4 a, W5 4 c, W6 4 d)0");
    check_error("enum class A { x = 1 }; enum class B { y = 2 }; kernel void f(device int *a [[buffer(int(A::y))]]) {}",
                "index of a is no number");
    check_error("struct S { static constexpr constant int n = 1; }; struct T : S {}; kernel void f(device int *a "
                "[[buffer(T::n)]]) {}",
                "index of a is no number");
}

static void sizes_under_a_pragma_are_unknown(void **state) {
    (void)state;
    check("#pragma pack(1)\nstruct A { uchar a; float b; };\n#pragma pack()\nstruct B { uchar a; float b; };\n"
          "kernel void f(constant A &a [[buffer(0)]], constant B &b [[buffer(1)]]) {}",
          "f(B0 1 a, B1 8 b)0");
    check_error("typedef float f4 __attribute__((ext_vector_type(4)));", "vec<T, n>");
}

/* Parameters of the entry on cuda: a value where the size is known, else a pointer. */
static void check_parameters(const char *text, const char *expected) {
    msl_module *m = translate(text, MSL_CUDA);
    size_t size;
    const char *code = msl_module_code(m, &size), *at = strstr(code, "msl_entry_0(");
    assert_non_null(at);
    at += strlen("msl_entry_0(");
    if (strncmp(at, expected, strlen(expected)) != 0 || at[strlen(expected)] != ')')
        fail_msg("%s\ngave '%.200s'", text, at);
    msl_module_free(m);
}

static void only_arguments_of_known_size_are_values(void **state) {
    (void)state;
    check_parameters(
        "struct A { uchar a; float b[4]; }; kernel void f(constant A &a, device int *b, constant uint &c) {}",
        "MSL_VALUE(32) msl_b0, void *msl_b1, MSL_VALUE(16) msl_b2");
    check_parameters("#pragma pack(1)\nstruct A { uchar a; float b[8]; };\n#pragma pack()\n"
                     "kernel void f(constant A &a, constant uint &b) {}",
                     "void *msl_b0, MSL_VALUE(16) msl_b1");
    check_parameters("struct A { float b[8]; }; kernel void f(constant decltype(A().b) &a, constant uchar &b) {}",
                     "void *msl_b0, MSL_VALUE(16) msl_b1");
    check_parameters("template <class T> struct A { T a[8]; }; template <class T> kernel void f(constant A<T> &a) {}\n"
                     "template [[host_name(\"g\")]] kernel void f(constant A<float> &);",
                     "MSL_VALUE(32) msl_b0");
    check_parameters("kernel void f(constant float (&a)[512], constant float (&b)[513]) {}",
                     "MSL_VALUE(2048) msl_b0, void *msl_b1");
}

static void types_that_a_host_shares_have_sizes(void **state) {
    (void)state;
    check("typedef enum Slot { first = 2, second } Slot; typedef enum M : uchar { m } M; "
          "struct S { matrix_float4x4 a; vector_float3 b; simd_float2 c; simd::uint2 d; M e; Slot f; }; "
          "kernel void f(constant S &s [[buffer(second)]], device MTLDrawIndexedPrimitivesIndirectArguments *d "
          "[[buffer(first)]]) {}",
          "f(W2 20 d, B3 112 s)0");
}

static void arguments_without_index_take_the_next_free_slot(void **state) {
    (void)state;
    check("kernel void f(device float *a, device float *b [[buffer(0)]], constant uint &c, threadgroup half *s, "
          "threadgroup half *t [[threadgroup(0)]], uint2 g [[thread_position_in_grid]], device int *d) {}",
          "f(W0 4 b, W1 4 a, B2 4 c, W3 4 d, T0 2 t, T1 2 s)0");
}

static void members_of_structs_passed_by_value_are_arguments(void **state) {
    (void)state;
    check("struct A { device float2 *y [[buffer(2)]]; constant uint &n; threadgroup half *t; int sum() const { return "
          "n; } };\n"
          "kernel void f(A a, device int *b, uint i [[thread_position_in_grid]]) {}",
          "f(B0 4 n, W1 4 b, W2 8 y, T0 2 t)0");
    check(
        "template <uint N> struct layout { uint at[N]; };\n"
        "template <typename T, uint N> struct tensor {\n"
        "    constant layout<N> &l; device T *data;\n"
        "    tensor(constant layout<N> &_l, device T *d) : l(_l), data(d) {}\n"
        "    device T &at(uint i) { return data[i * l.at[0]]; }\n"
        "};\n"
        "template <typename T> struct args { tensor<T, 2> out; tensor<const half, 3> in; constant uint &n; };\n"
        "using floats = args<float>;\n"
        "template <typename T> kernel void f(args<T> a, uint2 i [[thread_position_in_grid]]) {}\n"
        "template [[host_name(\"f2\")]] kernel void f<float2>(args<float2>, uint2);\n"
        "kernel void g(constant int &x, floats a) { a.out.at(0) = a.in.at(1) + a.n; }",
        "f2(B0 8 l, W1 8 data, B2 12 l, W3 2 data, B4 4 n)0 g(B0 4 x, B1 8 l, W2 4 data, B3 12 l, W4 2 data, B5 4 n)0");
    check("struct A { uint2 at [[thread_position_in_grid]]; device float2 *p; ushort lane "
          "[[thread_index_in_simdgroup]]; };\n"
          "kernel void f(A a, device int *b) {}",
          "f(W0 8 p, W1 4 b)0");
    check_error("struct A { device float *p; int n; };\nkernel void f(A a) {}",
                "t.metal:1: an argument's struct may have pointers, references and positions alone");
    check("struct A { device float *p, *q [[buffer(5)]]; constant uint3 &n, &m; };\nkernel void f(A a) {}",
          "f(W0 4 p, B1 16 n, B2 16 m, W5 4 q)0");
    check_error("struct A { device float *p, **q; constant int &r, *s; };\nkernel void f(A a) {}",
                "t.metal:1: member of a kernel's argument");
    check_error("struct A {};\nkernel void f(A a) {}", "t.metal:2: an argument's struct has no members");
    check_error("union A { device float *p; };\nkernel void f(A a) {}", "parameter a is neither a buffer nor");
    check_error("struct A { A a; A b; A c; A d; A e; A f; A g; A h; device int *p; };\nkernel void f(A a) {}",
                "t.metal:1: ");
}

static void only_what_has_a_known_size_goes_by_value(void **state) {
    (void)state;
    msl_module *m = translate("struct A { float4 x[4]; }; struct B : A { float y[8]; };\n"
                              "kernel void f(constant A &a, constant B &b, constant char &c, constant float *d) {}",
                              MSL_TABLE);
    const msl_kernel *k = msl_module_find(m, "f");
    assert_int_equal(k->arg_count, 4);
    static const uint32_t bytes[] = {64, 0, 16, 0};
    for (size_t i = 0; i < SL_COUNT(bytes); i++)
        assert_int_equal(msl_value_bytes(k, i), bytes[i]);
    msl_module_free(m);
}

static void sizes_of_structs_follow_the_language(void **state) {
    (void)state;
    check("struct P { uchar a; float3 b; half c[3]; packed_float3 d; uint64_t e; };\n"
          "kernel void f(constant P &p [[buffer(0)]]) {}",
          "f(B0 64 p)0");
    check("#define N 32\nconstant int K = N * 2;\ntypedef struct { half d; uint8_t q[N / 2 + K]; } block;\n"
          "typedef block other; kernel void f(device const other *b [[buffer(0)]]) {}",
          "f(R0 82 b)0");
    check("constant int K = 8; struct b { union { struct { half d, m; }; half2 dm; }; uint8_t s[12]; struct I { "
          "int x; }; struct { I i; char c; } t[2]; };\nkernel void f(device b *p, device b (*q)[K], device "
          "__unknown *r) {}",
          "f(W0 32 p, W1 256 q, W2 1 r)0");
    check("enum { A = 3, B }; struct __attribute__((packed)) S { char a; int q[B]; device float *p; };\n"
          "union U { S s[2]; float4x4 m; }; kernel void f(device U *p, device metal::array<half3, 5> *q) {}",
          "f(W0 64 p, W1 40 q)0");
    check("template <typename T, int N> struct V { T v[N]; int f() { return N; } static constexpr constant int k = 2; "
          "};\n"
          "template <typename T> kernel void f(device V<T, 3> *p, device T *q) {}\n"
          "template [[host_name(\"fh\")]] kernel void f<half>(device V<half, 3> *p, device half *q);\n"
          "template [[host_name(\"fl\")]] kernel decltype(f<long>) f<long>;",
          "fh(W0 6 p, W1 2 q)0 fl(W0 24 p, W1 8 q)0");
}

static void kernels_are_instantiated_in_every_way(void **state) {
    (void)state;
    check("template <typename T, int N = 2> [[kernel]] void f(device T *a [[buffer(0)]]) {}\n"
          "typedef decltype(f<float, 4>) f_t;\n"
          "template [[host_name(\"a\")]] [[kernel]] decltype(f<half>) f<half>;\n"
          "template [[host_name(\"b\")]] kernel f_t f<float, 4>;\n"
          "template [[host_name(\"c\")]] [[kernel]] [[max_total_threads_per_threadgroup(32)]] void f<char>(device char "
          "*a [[buffer(0)]]);",
          "a(W0 2 a)0 b(W0 4 a)0 c(W0 1 a)32");
    check("template <typename T, typename U, int N = 2> kernel void f(device const vec<T, 4> *a, constant U &b) {}\n"
          "template [[host_name(\"h\")]] kernel void f(const device vec<half, 4> *, constant uint3 &);\n"
          "template [[host_name(\"i\")]] kernel void f<char>(device const char4 *, constant unsigned char &);",
          "h(R0 8 a, B1 16 b)0 i(R0 4 a, B1 1 b)0");
    check("template <typename T> kernel void f(device T *a) {}\n"
          "#define inst(n, t) template [[host_name(\"f_\" #n)]] [[kernel]] decltype(f<t>) f<t>;\n"
          "#define all(x) x(f32, float) x(bf16, bfloat)\nall(inst)",
          "f_f32(W0 4 a)0 f_bf16(W0 2 a)0");
    check("[[host_name(\"x.y\")]] kernel void f(device int *a) {} namespace n { kernel void g(device int *a) {} }\n"
          "template <typename T> void h(T t) {} template void h<int>(int);",
          "x.y(W0 4 a)0 g(W0 4 a)0");
    check("template <typename T> kernel void f(device T *a) {}\ntemplate <> kernel void f<half>(device half *a) {}\n"
          "kernel void never(device int *);\n",
          "f(W0 2 a)0");
    check("kernel void soft_x(device int *a) {} kernel void msl_x(device int *a) {}", "soft_x(W0 4 a)0 msl_x(W0 4 a)0");
    check("template <typename T, void (*op)(device T *, thread T &)> kernel void f(device T *a) { T t; op(a, t); }\n"
          "void g(device int *a, thread int &b) { *a = b; }\n"
          "template [[host_name(\"k\")]] kernel decltype(f<int, g>) f<int, g>;",
          "k(W0 4 a)0");
}

static void threadgroup_memory_is_summed(void **state) {
    (void)state;
    msl_module *m =
        translate("constant int rows = 4;\n"
                  "kernel void a(device int *x) { threadgroup float4 s[rows][2]; threadgroup half one; }\n"
                  "template <typename T, int N> kernel void b(device T *x) { using V = vec<T, 2>; constexpr int wide = "
                  "N * 2 + 1;\n"
                  "  threadgroup V s[wide]; if (N) { threadgroup T t[N], u; } }\n"
                  "template [[host_name(\"b\")]] kernel decltype(b<half, 8>) b<half, 8>;\n"
                  "kernel void c(device int *x) { threadgroup unknown s[2]; }\nkernel void d(device int *x) {}\n"
                  "kernel void e(device int *x) { threadgroup int *p; { const int n = 2; } { const int n = 3; "
                  "threadgroup int s[n]; } }",
                  MSL_TABLE);
    static const uint32_t expected[] = {128 + 16, 80 + 16 + 16, 0, 0, 0};
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    for (size_t i = 0; i < SL_COUNT(names); i++)
        assert_int_equal(msl_module_find(m, names[i])->threadgroup_memory, expected[i]);
    msl_module_free(m);
}

static void function_constants_make_arguments_optional(void **state) {
    (void)state;
    const char *text =
        "constant bool has [[function_constant(5)]];\nconstant int n [[function_constant(2 + 1)]];\n"
        "constant int m = is_function_constant_defined(n) ? n * 2 : 7;\nconstant bool both = has && m > 3;\n"
        "constant uchar c [[function_constant(9)]];\n"
        "kernel void f(device int *a [[buffer(0)]], device int *b [[buffer(1), function_constant(has)]],\n"
        "device int *d [[buffer(2)]] [[function_constant(both)]]) {}";
    check(text, "f(W0 4 a, W1 4 b?0, W2 4 d?-2)0");
    msl_module *m = translate(text, MSL_SOFT);
    size_t n;
    const msl_constant *c = msl_module_constants(m, &n);
    assert_int_equal(n, 3);
    assert_int_equal(c[0].id, 5);
    assert_int_equal(c[0].type, SL_GPU_BOOL);
    assert_false(c[0].optional);
    assert_int_equal(c[1].id, 3);
    assert_int_equal(c[1].type, SL_GPU_INT);
    assert_true(c[1].optional);
    assert_string_equal(c[2].name, "c");
    assert_int_equal(c[2].type, SL_GPU_UINT);
    msl_module_free(m);
}

static void what_is_not_supported_is_refused_by_name(void **state) {
    (void)state;
    check_error("kernel void f(texture2d<float> t [[texture(0)]]) {}", "t.metal:1: kernel f: textures are not");
    check_error("void g(sampler s) {}\nkernel void f(device int *a) { g(s); }", "t.metal:1: kernel f: samplers");
    check_error("kernel void f(device int *a, visible_function_table<int()> t) {}", "visible functions are not");
    check_error("kernel void f(device int *a) { raytracing::ray r; }", "ray tracing is not supported");
    check_error("kernel void f(device int *a) { tensor<device half, dextents<int, 2>> t; }", "tensor operations are");
    check_error("kernel void f(device int *a) {\n double d; }", "t.metal:2: double is not a type of Metal");
    check_error("struct S { virtual void f(); };", "virtual functions are not part of Metal");
    check_error("void f() { throw 1; }", "exceptions are not part of Metal");
    check_error("void f() { goto x; }", "goto");
    check_error("kernel void f(device int *a) { int *p = new int; }", "new is not part of Metal");
}

static void pointers_stay_in_their_address_space(void **state) {
    (void)state;
    static const char functions[] = "void fill_row(threadgroup float *p) {}\nvoid copy_row(device float *p, int n) {}\n"
                                    "void copy_row(threadgroup float *p, int n) {}\n"
                                    "template <typename T> void any_row(T p) {}\n";
    static const struct {
        const char *statement, *error; /* NULL: fine */
    } cases[] = {
        {"fill_row(s); copy_row(x, 1); copy_row(s + 1, 2); copy_row(&s[2], 1); any_row(c); any_row(x);", NULL},
        {"threadgroup float *q = s; device const float *d = x + 3; { device float *s = x; copy_row(s, 1); }", NULL},
        {"fill_row(x);", "t.metal:5: x is a device pointer; fill_row wants one of threadgroup"},
        {"fill_row(&x[1]);", "x is a device pointer; fill_row wants one of threadgroup"},
        {"copy_row(c + 1, 1);", "c is a constant pointer; copy_row wants one of"},
        {"threadgroup float *q = x;", "x is a device pointer; q wants one of threadgroup"},
        {"device float *q = s + 1;", "s is a threadgroup pointer; q wants one of device"},
        {"device float4 *q = (device float4 *)x + 1; q = (device float4 *)(x + 4); "
         "q = reinterpret_cast<device float4 *>(&x[4]); threadgroup half4 *h = (threadgroup half4 *)s;",
         NULL},
        {"float y = *(device int *)x; uint64_t n = (uint64_t)x; thread float *t = (thread float *)&y; "
         "device float *r = (device float *)n; { constant float *n = (constant float *)c; }",
         NULL},
        {"threadgroup half *h = (threadgroup half *)x;",
         "t.metal:5: x is a device pointer: Metal has no cast of it to"},
        {"float y = *(const device float *)(c + 1);", "c is a constant pointer: Metal has no cast of it to device"},
        {"float y = ((thread float *)&s[1])[0];", "s is a threadgroup pointer: Metal has no cast of it to thread"},
        {"auto y = reinterpret_cast<threadgroup int *>(x + 1);", "x is a device pointer: Metal has no cast of it to"},
        {"auto y = static_cast<const device float *>(c);", "c is a constant pointer: Metal has no cast of it to"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        char *text = sl_asprintf("%skernel void f(device float *x, constant float *c) { threadgroup float s[4]; %s }",
                                 functions, cases[i].statement);
        if (cases[i].error)
            check_error(text, cases[i].error);
        else
            msl_module_free(translate(text, MSL_TABLE));
        free(text);
    }
    check_error("\nint factorial(int n) { return n < 2 ? 1 : n * factorial(n - 1); }",
                "t.metal:2: factorial calls itself: recursion is not part of Metal");
    msl_module_free(translate("struct my {}; float exp(my x) { return exp(1.0); }", MSL_TABLE));
}

static void pointers_to_functions_are_parameters_only(void **state) {
    (void)state;
    static const char functions[] = "float half_of(float x) { return x / 2; }\n"
                                    "float with(float x, float (*op)(float)) { return op(x); }\n"
                                    "template <float (*op)(float)> float by(float x) { return op(x); }\n"
                                    "typedef float (*operation)(float);\nusing another = float (*)(float);\n"
                                    "template <operation op> float by_type(float x) { return op(x); }\n"
                                    "float named(float x, operation op) { return op(x); }\n"
                                    "struct S { float operator()(float x) { return x; } };\n";
    static const struct {
        const char *text, *name; /* NULL: fine */
    } cases[] = {
        {"kernel void f(device float *x) { *x = with(*x, half_of) + by<half_of>(*x) + by_type<half_of>(1); }", NULL},
        {"kernel void f(device float *x) { S s; thread S *p = &s; float y = 2 * (*p)(1); (*p)(y); x[0] = named(y, "
         "half_of); }",
         NULL},
        {"kernel void f(device float *x) { threadgroup float t[2][4]; threadgroup float (*p)[4] = t; x[0] = p[1][0]; }",
         NULL},
        {"kernel void f(device float *x) {\n float (*op)(float) = half_of; *x = op(*x); }", "t.metal:10: op is"},
        {"kernel void f(device float *x) { thread float *(*op)(thread float *, int); }", "t.metal:9: op is"},
        {"kernel void f(device float *x) { vec<float, 4> (*op[2])(float); }", "op is"},
        {"struct T { int n; float (*op)(float); };", "op is"},
        {"constant float (*table[])(float) = {half_of};", "table is"},
        {"kernel void f(device float *x) { operation op = half_of; *x = op(*x); }", "op is"},
        {"struct T { const another ops[2]; };", "ops is"},
        {"kernel void f(device float *x) { auto op = half_of; *x = op(*x); }", "op is"},
        {"kernel void f(device float *x) { const auto op = &half_of; *x = op(*x); }", "op is"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        char *text = sl_asprintf("%s%s", functions, cases[i].text);
        char *error = sl_asprintf("%s a pointer to a function: Metal has no such variables", cases[i].name);
        if (cases[i].name)
            check_error(text, error);
        else
            msl_module_free(translate(text, MSL_TABLE));
        free(text);
        free(error);
    }
}

static void functions_have_no_static_variables_but_constants(void **state) {
    (void)state;
    static const char error[] = " is a static variable of a function: Metal has none but constants";
    static const struct {
        const char *body, *name; /* NULL: fine */
    } cases[] = {
        {"static constant float t[] = {1, 2}; constexpr static constant int n = 2; *x = int(t[n - 1]);", NULL},
        {"static constexpr int n = 2; struct S { static int twice(int i) { return 2 * i; } }; *x = S::twice(n);", NULL},
        {"static_assert(true, \"\"); *x = 1;", NULL},
        {"\n static int calls = 0; *x = calls++;", "t.metal:3: calls"},
        {"if (*x) { static const float t[2] = {1, 2}; *x = int(t[0]); }", "t"},
        {"const static int n{3}; *x = n;", "n"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        char *text =
            sl_asprintf("static int own(int i) { return i; }\nkernel void f(device int *x) { %s }", cases[i].body);
        char *said = sl_asprintf("%s%s", cases[i].name, error);
        if (cases[i].name)
            check_error(text, said);
        else
            msl_module_free(translate(text, MSL_TABLE));
        free(text);
        free(said);
    }
}

static void other_kernels_of_a_source_stay(void **state) {
    (void)state;
    const char *text = "struct V { float4 p [[position]]; };\nvertex V v(uint i [[vertex_id]]) { V x; return x; }\n"
                       "fragment float4 p(V x [[stage_in]], texture2d<float> t [[texture(0)]]) { return x.p; }\n"
                       "float4 load(texture2d<float> t) { return 0; }\n"
                       "kernel void a(device int *x) { *x = 1; }\n"
                       "kernel void b(texture2d<float> t, device int *x) { load(t); }\n"
                       "kernel void c(device int *x) { load(x); }";
    check(text, "a(W0 4 x)0");
    msl_module *m = translate(text, MSL_TABLE);
    assert_non_null(msl_module_find(m, "a"));
    assert_null(msl_module_find(m, "b"));
    assert_null(msl_module_refused(m, "a"));
    assert_string_equal(msl_module_refused(m, "b"), "t.metal:6: kernel b: textures are not supported");
    assert_non_null(msl_module_refused(m, "c"));
    msl_module_free(m);
    m = translate("struct S { device float *p; };\nconstant S &constant s [[buffer(0)]];\n"
                  "kernel void a(device int *x) { *x = 1; }\nkernel void b(uint i) { s.p[0] = 1; }",
                  MSL_TABLE);
    assert_non_null(msl_module_find(m, "a"));
    assert_string_equal(msl_module_refused(m, "b"), "t.metal:2: kernel b: bindings of program scope are not supported");
    msl_module_free(m);
    m = translate("#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n#include <metal_raytracing>\n"
                  "using namespace mpp::tensor_ops;\nusing namespace metal::raytracing;\n"
                  "void copy(device int *a) __asm(\"air.copy\");\nkernel void a(device int *x) { *x = 1; }\n"
                  "kernel void b(device int *x) { copy(x); }\n"
                  "kernel void c(device int *x) { constexpr auto d = matmul2d_descriptor(8, 8, 8); }",
                  MSL_TABLE);
    assert_non_null(msl_module_find(m, "a"));
    assert_string_equal(msl_module_refused(m, "b"), "t.metal:5: kernel b: inline assembly is not supported");
    assert_string_equal(msl_module_refused(m, "c"), "t.metal:8: kernel c: tensor operations are not supported");
    msl_module_free(m);
}

static void errors_name_file_and_line(void **state) {
    (void)state;
    check_error("kernel void f(device int *a\n", "t.metal:1: '(' is not closed");
    check_error("\n}", "t.metal:2: '}' without its '{'");
    check_error("kernel void f(\ndevice int *a [[buffer(31)]]) {}", "t.metal:2: index of a is no number from 0 to 30");
    check_error("int i;\nfor (i = 0; i < 4; i++) { i = 2; }", "t.metal:2: 'for' stands outside of a function");
    check_error("kernel void f(int a) {}", "parameter a is neither a buffer nor has an attribute");
    check_error("kernel void f(uint a [[vertex_id]]) {}", "attribute [[vertex_id]] of a kernel's parameter");
    check_error("kernel void f(device int *a [[buffer(1)]], device int *b [[buffer(1)]]) {}", "a and b have the same");
    check_error("kernel void f(int *a) {}", "points into no address space");
    check_error("template [[host_name(\"x\")]] kernel decltype(f<int>) f<int>;", "unknown kernel f");
    check_error("kernel void f(device int *a) {}\nkernel void f(device float *a) {}",
                "t.metal:2: two kernels are called f");
    check_error("constant float4 x [[function_constant(1)]];", "function constant x: its type is not supported");
    check_error("constant int x [[function_constant(y)]];", "function_constant needs a number");
    check_error("int g(device int *p) { return *p; }\nint g(threadgroup int *p) { return *p + 1; }",
                "t.metal:2: g differs from the one of line 1 in address space only");
    check_error("kernel void f(device int *a) { threadgroup int x = 3; }", "x cannot have an initialiser");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments_have_kind_slot_and_least_bytes),
        cmocka_unit_test(indices_are_enumerators_of_classes_and_casts),
        cmocka_unit_test(sizes_under_a_pragma_are_unknown),
        cmocka_unit_test(only_arguments_of_known_size_are_values),
        cmocka_unit_test(types_that_a_host_shares_have_sizes),
        cmocka_unit_test(arguments_without_index_take_the_next_free_slot),
        cmocka_unit_test(members_of_structs_passed_by_value_are_arguments),
        cmocka_unit_test(only_what_has_a_known_size_goes_by_value),
        cmocka_unit_test(sizes_of_structs_follow_the_language),
        cmocka_unit_test(kernels_are_instantiated_in_every_way),
        cmocka_unit_test(threadgroup_memory_is_summed),
        cmocka_unit_test(function_constants_make_arguments_optional),
        cmocka_unit_test(what_is_not_supported_is_refused_by_name),
        cmocka_unit_test(pointers_stay_in_their_address_space),
        cmocka_unit_test(pointers_to_functions_are_parameters_only),
        cmocka_unit_test(functions_have_no_static_variables_but_constants),
        cmocka_unit_test(other_kernels_of_a_source_stay),
        cmocka_unit_test(errors_name_file_and_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The prelude's mathematics against double precision: floats on random bits and within each function's domain, halves
 * on all 65,536 patterns, vectors against scalars bit for bit, the precise and fast forms. */
#include "support_prelude.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 20000, HALVES = 65536 };

static double ref_clamp(double x, double a, double b) {
    return fmin(fmax(x, a), b);
}
static double ref_exp10(double x) {
    return pow(10.0, x);
}
static double ref_rsqrt(double x) {
    return 1.0 / sqrt(x);
}
static double ref_saturate(double x) {
    return fmin(fmax(x, 0.0), 1.0);
}
static double ref_sign(double x) {
    return x > 0 ? 1 : x < 0 ? -1 : 0;
}
static double ref_step(double e, double x) {
    return x < e ? 0 : 1;
}
static double ref_divide(double a, double b) {
    return a / b;
}
static double ref_max3(double a, double b, double c) {
    return fmax(a, fmax(b, c));
}
static double ref_min3(double a, double b, double c) {
    return fmin(a, fmin(b, c));
}
static double ref_fract(double a) {
    return fmin(a - floor(a), 0x1.fffffep-1);
}
static double ref_median3(double a, double b, double c) {
    return fmax(fmin(a, b), fmin(fmax(a, b), c));
}
static double ref_sinpi(double a) {
    double r = remainder(a, 2.0);
    return sin(M_PI * (fabs(r) > 0.5 ? copysign(1.0 - fabs(r), r) : r));
}
static double ref_cospi(double a) {
    return sin(M_PI * (0.5 - fabs(remainder(a, 2.0))));
}
static double ref_tanpi(double a) {
    return ref_sinpi(a) / ref_cospi(a);
}

typedef struct function {
    const char *name;
    int arity;
    double ulps;      /* of float; 0: exact */
    double low, high; /* where accuracy is measured; beyond it only that NaN stays NaN */
    double (*f1)(double), (*f2)(double, double), (*f3)(double, double, double);
} function;

#define F1_(name, ulps, low, high, f)                                                                                  \
    { name, 1, ulps, low, high, f, NULL, NULL }
#define F2_(name, ulps, low, high, f)                                                                                  \
    { name, 2, ulps, low, high, NULL, f, NULL }
#define F3_(name, ulps, low, high, f)                                                                                  \
    { name, 3, ulps, low, high, NULL, NULL, f }
#define F1(...) F1_(__VA_ARGS__) /* once more, so that ANY is two arguments */
#define F2(...) F2_(__VA_ARGS__)
#define F3(...) F3_(__VA_ARGS__)
#define ANY     -HUGE_VAL, HUGE_VAL
static const function functions[] = {
    F1("acos", 2, -1, 1, acos),
    F1("acosh", 3, 1, HUGE_VAL, acosh),
    F1("asin", 2, -1, 1, asin),
    F1("asinh", 3, ANY, asinh),
    F1("atan", 2, ANY, atan),
    F1("atanh", 3, -1, 1, atanh),
    F1("ceil", 0, ANY, ceil),
    F1("cos", 2, ANY, cos),
    F1("cosh", 3, ANY, cosh),
    F1("cospi", 1, ANY, ref_cospi),
    F1("exp", 2, ANY, exp),
    F1("exp2", 2, ANY, exp2),
    F1("exp10", 1, ANY, ref_exp10),
    F1("fabs", 0, ANY, fabs),
    F1("abs", 0, ANY, fabs),
    F1("floor", 0, ANY, floor),
    F1("fract", 1, -1e6, 1e6, ref_fract),
    F1("log", 2, 0, HUGE_VAL, log),
    F1("log2", 2, 0, HUGE_VAL, log2),
    F1("log10", 2, 0, HUGE_VAL, log10),
    F1("rint", 0, ANY, rint),
    F1("round", 0, ANY, round),
    F1("rsqrt", 1.5, 0, HUGE_VAL, ref_rsqrt),
    F1("saturate", 0, ANY, ref_saturate),
    F1("sign", 0, ANY, ref_sign),
    F1("sin", 2, ANY, sin),
    F1("sinh", 3, ANY, sinh),
    F1("sinpi", 1, ANY, ref_sinpi),
    F1("sqrt", 0.5, 0, HUGE_VAL, sqrt),
    F1("tan", 2, ANY, tan),
    F1("tanh", 3, ANY, tanh),
    F1("tanpi", 4, -1e6, 1e6, ref_tanpi),
    F1("trunc", 0, ANY, trunc),
    F2("atan2", 2, ANY, atan2),
    F2("copysign", 0, ANY, copysign),
    F2("divide", 0.5, ANY, ref_divide),
    F2("fdim", 0.5, ANY, fdim),
    F2("fmax", 0, ANY, fmax),
    F2("fmin", 0, ANY, fmin),
    F2("fmod", 0, ANY, fmod),
    F2("max", 0, ANY, fmax),
    F2("min", 0, ANY, fmin),
    F2("pow", 2, 0, HUGE_VAL, pow),
    F2("powr", 2, 0, HUGE_VAL, pow),
    F2("step", 0, ANY, ref_step),
    F3("clamp", 0, ANY, ref_clamp),
    F3("fma", 0.5, ANY, fma),
    F3("fmax3", 0, ANY, ref_max3),
    F3("max3", 0, ANY, ref_max3),
    F3("fmin3", 0, ANY, ref_min3),
    F3("min3", 0, ANY, ref_min3),
    F3("fmedian3", 0, ANY, ref_median3),
    F3("median3", 0, ANY, ref_median3),
};

static const char template_text[] =
    "template <class T, class R> static T as(R x) { static_assert(is_same_v<T, R>, \"type of the result\"); return x; "
    "}\n"
    "#define EACH(name, space, ...) \\\n"
    "extern \"C\" void f_##name##_##space(const float *A, const float *B, const float *C, float *O, size_t n) { \\\n"
    "    for (size_t i = 0; i < n; i++) { float a = A[i], b = B[i], c = C[i]; (void)b; (void)c; O[i] = "
    "as<float>(space::__VA_ARGS__); } } \\\n"
    "extern \"C\" void h_##name##_##space(const half *A, const half *B, const half *C, half *O, size_t n) { \\\n"
    "    for (size_t i = 0; i < n; i++) { half a = A[i], b = B[i], c = C[i]; (void)b; (void)c; O[i] = "
    "as<half>(space::__VA_ARGS__); } } \\\n"
    "extern \"C\" void b_##name##_##space(const bfloat *A, const bfloat *B, const bfloat *C, bfloat *O, size_t n) { "
    "\\\n"
    "    for (size_t i = 0; i < n; i++) { bfloat a = A[i], b = B[i], c = C[i]; (void)b; (void)c; O[i] = "
    "as<bfloat>(space::__VA_ARGS__); } } \\\n"
    "extern \"C\" void v_##name##_##space(const float *A, const float *B, const float *C, float *O, size_t n) { \\\n"
    "    for (size_t i = 0; i + 4 <= n; i += 4) { float4 a = *(const packed_float4 *)(A + i), b = *(const "
    "packed_float4 *)(B + i), \\\n"
    "        c = *(const packed_float4 *)(C + i); (void)b; (void)c; *(packed_float4 *)(O + i) = "
    "as<float4>(space::__VA_ARGS__); } }\n";

static void *library;
static sl_buf body;

static int build(void **state) {
    (void)state;
    static const char *const calls[] = {"", "(a)", "(a, b)", "(a, b, c)"};
    sl_buf_puts(&body, template_text);
    for (size_t i = 0; i < SL_COUNT(functions); i++)
        for (int s = 0; s < 3; s++) {
            static const char *const spaces[] = {"metal", "precise", "fast"};
            sl_buf_printf(&body, "EACH(%s, %s, %s%s)\n", functions[i].name, spaces[s], functions[i].name,
                          calls[functions[i].arity]);
        }
    library = prelude_load(body.data);
    return 0;
}

typedef void (*apply)(const void *, const void *, const void *, void *, size_t);

static apply find(const char *kind, const char *name, const char *space) {
    char full[64];
    snprintf(full, sizeof full, "%s_%s_%s", kind, name, space);
    apply f;
    *(void **)&f = prelude_function(library, full);
    return f;
}

static double reference(const function *f, double a, double b, double c) {
    return f->arity == 1 ? f->f1(a) : f->arity == 2 ? f->f2(a, b) : f->f3(a, b, c);
}

/* Distance of got from want in steps of a type with that many digits and least exponent, as a rounded result may be. */
static double steps(double got, double want, int digits, int least, double most) {
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got) ? 0 : HUGE_VAL;
    if (got == want || (isinf(got) && fabs(want) >= most && signbit(got) == signbit(want)))
        return 0;
    if (isinf(got) || isinf(want))
        return fabs(isinf(got) ? want : got) >= most * (1 - ldexp(1, -digits)) ? 1 : HUGE_VAL;
    int e;
    frexp(want, &e);
    return fabs(got - want) / ldexp(1, (e < least ? least : e) - digits);
}

static float half_value(uint16_t h) {
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : HUGE_VAL) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return (float)(h >> 15 ? -v : v);
}

static bool measured(const function *f, double a) {
    return isnan(a) || (a >= f->low && a <= f->high);
}

static void floats(const function *f) {
    static float a[COUNT], b[COUNT], c[COUNT], o[COUNT], v[COUNT], p[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        bool wild = i % 2 == 0;
        a[i] = wild ? prelude_random_float() : (float)((double)(int32_t)prelude_random() * 0x1p-31 * 20);
        b[i] = wild ? prelude_random_float() : (float)((double)(int32_t)prelude_random() * 0x1p-31 * 20);
        c[i] = wild ? prelude_random_float() : (float)((double)(int32_t)prelude_random() * 0x1p-31 * 20);
        o[i] = v[i] = p[i] = 12345;
    }
    find("f", f->name, "metal")(a, b, c, o, COUNT);
    find("v", f->name, "metal")(a, b, c, v, COUNT);
    find("f", f->name, "precise")(a, b, c, p, COUNT);
    assert_memory_equal(o, v, sizeof o);
    assert_memory_equal(o, p, sizeof o);
    find("f", f->name, "fast")(a, b, c, p, COUNT);
    assert_memory_equal(o, p, sizeof o);
    double worst = 0;
    for (size_t i = 0; i < COUNT; i++) {
        double want = reference(f, a[i], b[i], c[i]), d = steps(o[i], want, 24, -125, 0x1.ffffffp127);
        if (!measured(f, a[i]))
            continue;
        if (!(d <= f->ulps))
            fail_msg("%s(%a, %a, %a) = %a, not %a: %g steps", f->name, a[i], b[i], c[i], o[i], want, d);
        worst = d > worst ? d : worst;
    }
    printf("  %-9s worst %.3f of %.1f steps\n", f->name, worst, f->ulps);
}

static void halves(const function *f) {
    static uint16_t a[HALVES], b[HALVES], c[HALVES], o[HALVES];
    for (size_t i = 0; i < HALVES; i++) {
        a[i] = (uint16_t)i;
        b[i] = (uint16_t)prelude_random();
        c[i] = (uint16_t)prelude_random();
        o[i] = 0x5555;
    }
    find("h", f->name, "metal")(a, b, c, o, HALVES);
    for (size_t i = 0; i < HALVES; i++) {
        double x = half_value(a[i]), want = reference(f, x, half_value(b[i]), half_value(c[i]));
        double d = steps(half_value(o[i]), want, 11, -13, 65520);
        if (measured(f, x) && !(d <= (f->ulps == 0 ? 0 : 0.5 + (f->ulps - 0.5) * 0x1p-13)))
            fail_msg("%s(half %a, %a, %a) = %a, not %a: %g steps", f->name, x, half_value(b[i]), half_value(c[i]),
                     half_value(o[i]), want, d);
    }
}

static float bfloat_value(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static void bfloats(const function *f) {
    static uint16_t a[HALVES], b[HALVES], c[HALVES], o[HALVES];
    for (size_t i = 0; i < HALVES; i++) {
        a[i] = (uint16_t)i;
        b[i] = (uint16_t)prelude_random();
        c[i] = (uint16_t)prelude_random();
        o[i] = 0x5555;
    }
    find("b", f->name, "metal")(a, b, c, o, HALVES);
    for (size_t i = 0; i < HALVES; i++) {
        double x = bfloat_value(a[i]), want = reference(f, x, bfloat_value(b[i]), bfloat_value(c[i]));
        double d = steps(bfloat_value(o[i]), want, 8, -125, 0x1.ffp127);
        if (measured(f, x) && !(d <= (f->ulps == 0 ? 0 : 0.5 + (f->ulps - 0.5) * 0x1p-16 + 0x1p-7)))
            fail_msg("%s(bfloat %a, %a, %a) = %a, not %a: %g steps", f->name, x, bfloat_value(b[i]), bfloat_value(c[i]),
                     bfloat_value(o[i]), want, d);
    }
}

static void test_functions_of_floats(void **state) {
    (void)state;
    if (!library)
        skip();
    for (size_t i = 0; i < SL_COUNT(functions); i++)
        floats(&functions[i]);
}

static void test_functions_of_halves(void **state) {
    (void)state;
    if (!library)
        skip();
    for (size_t i = 0; i < SL_COUNT(functions); i++)
        halves(&functions[i]);
}

static void test_functions_of_bfloats(void **state) {
    (void)state;
    if (!library)
        skip();
    for (size_t i = 0; i < SL_COUNT(functions); i++)
        bfloats(&functions[i]);
}

static void test_all_of_it_compiles_for_sm_90(void **state) {
    (void)state;
    bool there = prelude_compile_cuda_body(body.data, "math");
    sl_buf_free(&body);
    if (!there)
        skip();
}

/* Vectors in bytes and words, against the same arithmetic in double; every pattern of a component comes back. */
static void test_packed_vectors(void **state) {
    static const char packs[] =
        "extern \"C\" void pack(const float *x, uint *o) {\n  float4 v(x[0], x[1], x[2], x[3]);\n"
        "  o[0] = pack_float_to_unorm4x8(v); o[1] = pack_float_to_snorm4x8(v);\n"
        "  o[2] = pack_float_to_unorm2x16(float2(x[0], x[1])); o[3] = pack_float_to_snorm2x16(float2(x[0], x[1]));\n"
        "  o[4] = pack_float_to_unorm10a2(v); o[5] = pack_half_to_unorm4x8(half4(v)); }\n"
        "extern \"C\" void again(uint x, uint *o) {\n  o[0] = pack_float_to_unorm4x8(unpack_unorm4x8_to_float(x));\n"
        "  o[1] = pack_float_to_unorm2x16(unpack_unorm2x16_to_float(x));\n"
        "  o[2] = pack_float_to_unorm10a2(unpack_unorm10a2_to_float(x));\n"
        "  o[3] = pack_float_to_snorm4x8(unpack_snorm4x8_to_float(x)) ^ x;\n"
        "  o[4] = (uint)(unpack_snorm4x8_to_float(0x80u).x == -1.0f && unpack_snorm2x16_to_float(0x7fff8000u).y == "
        "1.0f && unpack_unorm4x8_to_half(0xff000000u).w == half(1.0f)); }\n";
    (void)state;
    void *packing = prelude_load(packs);
    if (!packing)
        return;
    void (*pack)(const float *, uint32_t *);
    void (*again)(uint32_t, uint32_t *);
    *(void **)&pack = prelude_function(packing, "pack");
    *(void **)&again = prelude_function(packing, "again");
    for (int n = 0; n < COUNT; n++) {
        float x[4];
        uint32_t got[6], want[6] = {0};
        for (int i = 0; i < 4; i++)
            x[i] = n % 4 ? (float)((double)(prelude_random() % 4001) / 2000.0 - 1.0) : prelude_random_float();
        for (int i = 0; i < 4; i++) {
            double v = isnan(x[i]) ? 0.0 : x[i], u = fmin(fmax(v, 0.0), 1.0), s = fmin(fmax(v, -1.0), 1.0);
            want[0] |= (uint32_t)rint((float)(u * 255.0)) << 8 * i;
            want[1] |= ((uint32_t)(int32_t)rint((float)(s * 127.0)) & 255) << 8 * i;
            if (i < 2)
                want[2] |= (uint32_t)rint((float)(u * 65535.0)) << 16 * i;
            if (i < 2)
                want[3] |= ((uint32_t)(int32_t)rint((float)(s * 32767.0)) & 65535) << 16 * i;
            want[4] |= (uint32_t)rint((float)(u * (i < 3 ? 1023.0 : 3.0))) << 10 * i;
        }
        pack(x, got);
        for (int k = 0; k < 5; k++)
            if (got[k] != want[k])
                fail_msg("form %d of (%g, %g, %g, %g): %08x, expected %08x", k, x[0], x[1], x[2], x[3], got[k],
                         want[k]);
        uint32_t bits = (uint32_t)prelude_random(), same[5];
        again(bits, same);
        for (int k = 0; k < 3; k++)
            assert_int_equal(same[k], bits);
        for (int i = 0; i < 4; i++) /* -128 is -1 too, and comes back as -127 */
            assert_true((same[3] >> 8 * i & 255) == (((bits >> 8 * i & 255) == 128) ? 1u : 0u));
        assert_int_equal(same[4], 1);
    }
    prelude_unload(packing);
}

static double to_srgb(double x) {
    return x < 0.0031308 ? 12.92 * x : 1.055 * pow(x, 1 / 2.4) - 0.055;
}

/* Colours: the curve of sRGB on x, y, z and not on w; five, six and five bits from the top. */
static void test_packed_colours(void **state) {
    static const char packs[] =
        "extern \"C\" void pack(const float *x, uint *o) {\n  float4 v(x[0], x[1], x[2], x[3]); half4 h(v);\n"
        "  o[0] = pack_float_to_srgb_unorm4x8(v); o[1] = pack_float_to_unorm565(float3(x[0], x[1], x[2]));\n"
        "  o[2] = pack_half_to_unorm10a2(h) == pack_float_to_unorm10a2(float4(h)) &&\n"
        "         pack_half_to_srgb_unorm4x8(h) == pack_float_to_srgb_unorm4x8(float4(h)); }\n"
        "extern \"C\" void again(uint x, uint *o) {\n"
        "  o[0] = pack_float_to_srgb_unorm4x8(unpack_unorm4x8_srgb_to_float(x));\n"
        "  o[1] = pack_float_to_unorm565(unpack_unorm565_to_float(ushort(x)));\n"
        "  o[2] = pack_half_to_unorm565(unpack_unorm565_to_half(ushort(x)));\n"
        "  o[3] = pack_half_to_unorm10a2(unpack_unorm10a2_to_half(x)); }\n";
    (void)state;
    void *packing = prelude_load(packs);
    if (!packing)
        return;
    void (*pack)(const float *, uint32_t *);
    void (*again)(uint32_t, uint32_t *);
    *(void **)&pack = prelude_function(packing, "pack");
    *(void **)&again = prelude_function(packing, "again");
    for (int n = 0; n < COUNT; n++) {
        float x[4];
        uint32_t got[3], bits = (uint32_t)prelude_random(), same[4];
        for (int i = 0; i < 4; i++)
            x[i] = (float)((double)(prelude_random() % 4001) / 3000.0 - 0.2);
        pack(x, got);
        for (int i = 0; i < 4; i++) {
            double u = fmin(fmax(x[i], 0.0), 1.0), v = (i < 3 ? to_srgb(u) : u) * 255;
            assert_true(fabs((got[0] >> 8 * i & 255) - v) < 0.501);
        }
        const int at[3] = {11, 5, 0}, most[3] = {31, 63, 31};
        for (int i = 0; i < 3; i++)
            assert_true(fabs((got[1] >> at[i] & most[i]) - fmin(fmax(x[i], 0.0), 1.0) * most[i]) < 0.501);
        assert_int_equal(got[1] >> 16, 0);
        assert_int_equal(got[2], 1);
        again(bits, same);
        assert_int_equal(same[0], bits);
        assert_int_equal(same[1], bits & 0xffff);
        assert_int_equal(same[2], bits & 0xffff);
        assert_int_equal(same[3], bits);
    }
    prelude_unload(packing);
}

/* What fast:: and precise:: say of vectors is what their plain forms say; products of 24 bits, by component. */
static void test_fast_geometry_and_24_bits(void **state) {
    static const char body_of[] =
        "extern \"C\" uint geometry(const float *x) {\n  float3 a(x[0], x[1], x[2]), b(x[3], x[4], x[5]), c, d;\n"
        "  return (fast::distance(a, b) == distance(a, b)) + 2 * (precise::distance_squared(a, b) == "
        "distance_squared(a, b)) +\n"
        "         4 * all(fast::reflect(a, b) == reflect(a, b)) + 8 * all(fast::sincos(a, c) == sin(a)) +\n"
        "         16 * all(precise::sincos(a, d) == sin(a)) + 32 * all(c == cos(a)) + 64 * all(d == cos(a)); }\n"
        "extern \"C\" uint product(uint x, uint y) {\n  uint2 u = mul24(uint2(x, y), uint2(y, 3)); int2 s = "
        "mad24(int2(x, "
        "y), int2(-3, 5), int2(7, 9));\n"
        "  return (u.x == mul24(x, y)) + 2 * (u.y == mul24(y, 3u)) + 4 * (s.x == mad24(int(x), -3, 7)) + 8 * (s.y == "
        "mad24(int(y), 5, 9)); }\n";
    (void)state;
    void *unit = prelude_load(body_of);
    if (!unit)
        return;
    uint32_t (*geometry)(const float *), (*product)(uint32_t, uint32_t);
    *(void **)&geometry = prelude_function(unit, "geometry");
    *(void **)&product = prelude_function(unit, "product");
    for (int n = 0; n < 1000; n++) {
        float x[6];
        for (int i = 0; i < 6; i++)
            x[i] = (float)((double)(prelude_random() % 4001) / 200.0 - 10.0);
        assert_int_equal(geometry(x), 127);
        assert_int_equal(product((uint32_t)prelude_random(), (uint32_t)prelude_random()), 15);
    }
    prelude_unload(unit);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_colours),
        cmocka_unit_test(test_fast_geometry_and_24_bits),
        cmocka_unit_test(test_functions_of_floats),
        cmocka_unit_test(test_functions_of_halves),
        cmocka_unit_test(test_functions_of_bfloats),
        cmocka_unit_test(test_packed_vectors),
        cmocka_unit_test(test_all_of_it_compiles_for_sm_90),
    };
    return cmocka_run_group_tests(tests, build, NULL);
}

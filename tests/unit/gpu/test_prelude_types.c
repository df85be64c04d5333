/* The prelude's types: half and bfloat (conversion of all patterns, one exact rounding per operation, the type of every
 * mix), vectors, packed vectors, swizzles, matrices, integers, as_type, traits and limits. */
#include "support_prelude.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { HALVES = 65536, COUNT = 300000 };

static const char body[] =
    /* Types of mixes, checked while compiling. */
    "#define SAME(T, ...) static_assert(is_same_v<T, decltype(__VA_ARGS__)>, #__VA_ARGS__)\n"
    "SAME(half, half() + half()); SAME(half, half() * 2); SAME(half, 2u - half()); SAME(half, half() / short(1)); "
    "SAME(float, half() + 1.0f);\n"
    "SAME(float, 1.0f * bfloat()); SAME(bfloat, bfloat() + bfloat()); SAME(bfloat, bfloat() * 3); SAME(float, half() * "
    "bfloat());\n"
    "SAME(bool, half() < 1); SAME(bool, 1.0f == bfloat()); SAME(half, -half()); SAME(half4, half4() * half()); "
    "SAME(half4, half4() * 2.0f);\n"
    "SAME(float4, float4() + 1); SAME(float4, packed_float4() * float4()); SAME(float3, packed_float3() + 1.0f); "
    "SAME(bool4, float4() < 0.0f);\n"
    "SAME(uint2, uint2() << 3); SAME(uchar4, uchar4() + uchar4()); SAME(uint4, uint4() >> uint4()); SAME(bool2, "
    "!bool2()); SAME(int3, -int3());\n"
    "SAME(float2, float4().MSL_SW(3, 0)); SAME(float, dot(float4(), float4())); SAME(half, dot(half2(), half2())); "
    "SAME(float2, float3x2() * float3());\n"
    "SAME(float3, float2() * float3x2()); SAME(float4x4, float4x4() * float4x4()); SAME(float2x3, "
    "transpose(float3x2())); SAME(half4x4, half4x4() * 2.0f);\n"
    "SAME(float4, max(float4(), 0.0f)); SAME(int4, clamp(int4(), 0, 3)); SAME(half, select(half(), half(), true)); "
    "SAME(uint, popcount(1u));\n"
    "#define ARMS(a, b) (true ? (msl_arm<decltype((a)), decltype((b))>)(a) : (msl_arm<decltype((b)), "
    "decltype((a))>)(b))\n"
    "SAME(float, ARMS(half(), 1.0f)); SAME(half, ARMS(half(), 0)); SAME(half, ARMS(half(), half())); SAME(int, ARMS(1, "
    "2));\n"
    "SAME(bfloat, ARMS(1, bfloat())); SAME(float, ARMS(half(), bfloat())); static int lvalue; SAME(int &, "
    "(ARMS(lvalue, lvalue)));\n"
    /* Sizes and alignments. */
    "#define LAYOUT(T, size, align) static_assert(sizeof(T) == size && alignof(T) == align, #T)\n"
    "LAYOUT(half, 2, 2); LAYOUT(bfloat, 2, 2); LAYOUT(float2, 8, 8); LAYOUT(float3, 16, 16); LAYOUT(float4, 16, 16); "
    "LAYOUT(half3, 8, 8);\n"
    "LAYOUT(uchar3, 4, 4); LAYOUT(bool4, 4, 4); LAYOUT(long3, 32, 32); LAYOUT(packed_float3, 12, 4); "
    "LAYOUT(packed_half3, 6, 2);\n"
    "LAYOUT(packed_uchar4, 4, 1); LAYOUT(float3x3, 48, 16); LAYOUT(half4x4, 32, 8); LAYOUT(float2x4, 32, 16); "
    "LAYOUT(float4x2, 32, 8);\n"
    /* Constants. */
    "constexpr half constant_half = half(0.1f); static_assert(as_type<ushort>(constant_half) == 0x2e66, \"rounded\");\n"
    "constexpr float4 constant_vec = float4(float2(1, 2), 3, 4) * 2.0f; static_assert(constant_vec.z == 6 && "
    "constant_vec[3] == 8, \"\");\n"
    "static_assert(as_type<uint>(INFINITY) == 0x7f800000u && as_type<ushort>(bfloat(-2.0f)) == 0xc000, \"\");\n"
    "static_assert(numeric_limits<half>::max() == 65504.0f && numeric_limits<int>::min() == INT_MIN && "
    "numeric_limits<ulong>::max() == ULONG_MAX, \"\");\n"
    "static_assert(numeric_limits<uchar>::max() == 255 && numeric_limits<short>::lowest() == -32768 && "
    "numeric_limits<float>::lowest() == -FLT_MAX, \"\");\n"
    "static_assert(is_same_v<float, conditional_t<is_floating_point_v<half>, float, int>> && "
    "is_same_v<remove_cv_t<const volatile int>, int>, \"\");\n"
    "static_assert(is_integral_v<ushort> && !is_integral_v<half> && is_arithmetic_v<bfloat> && is_signed_v<half> && "
    "is_unsigned_v<bool>, \"\");\n"
    "static_assert(is_convertible_v<int, half> && !is_convertible_v<float4, half> && is_same_v<make_unsigned_t<long>, "
    "ulong>, \"\");\n"
    "template <class T, enable_if_t<is_same<T, half>::value, bool> = true> constexpr int which(T) { return 1; }\n"
    "template <class T, enable_if_t<!is_same<T, half>::value, bool> = true> constexpr int which(T) { return 2; }\n"
    "static_assert(which(half(1.0f)) == 1 && which(1.0f) == 2, \"\");\n"
    /* half and bfloat, called from the test. */
    "extern \"C\" void half_to(const half *h, float *f, size_t n) { for (size_t i = 0; i < n; i++) f[i] = h[i]; }\n"
    "extern \"C\" void half_to_integers(const ushort *h, float *f, size_t n) { for (size_t i = 0; i < n; i++) f[i] = "
    "msl_half_to(h[i]); }\n"
    "extern \"C\" void half_from(const float *f, half *h, size_t n) { for (size_t i = 0; i < n; i++) h[i] = f[i]; }\n"
    "extern \"C\" void half_from_integers(const float *f, ushort *h, size_t n) { for (size_t i = 0; i < n; i++) h[i] = "
    "msl_half_from(f[i]); }\n"
    "extern \"C\" void bfloat_to(const bfloat *h, float *f, size_t n) { for (size_t i = 0; i < n; i++) f[i] = h[i]; }\n"
    "extern \"C\" void bfloat_from(const float *f, bfloat *h, size_t n) { for (size_t i = 0; i < n; i++) h[i] = "
    "bfloat(f[i]); }\n"
    "extern \"C\" void half_int(const long *f, half *h, size_t n) { for (size_t i = 0; i < n; i++) h[i] = f[i]; }\n"
    "extern \"C\" void bfloat_int(const long *f, bfloat *h, size_t n) { for (size_t i = 0; i < n; i++) h[i] = f[i]; }\n"
    "#define OPS(T) extern \"C\" void ops_##T(const T *a, const T *b, const T *c, T (*o)[6], size_t n) { for (size_t i "
    "= 0; i < n; i++) { \\\n"
    "    o[i][0] = a[i] + b[i]; o[i][1] = a[i] - b[i]; o[i][2] = a[i] * b[i]; o[i][3] = a[i] / b[i]; o[i][4] = "
    "fma(a[i], b[i], c[i]); \\\n"
    "    T t = a[i]; t += b[i]; t *= 2; t -= 1.0f; t /= T(3.0f); o[i][5] = t; } }\n"
    "OPS(half) OPS(bfloat)\n"
    /* Checks that run inside; 0 or the line that failed. */
    "#define CHECK(...) do { if (!(__VA_ARGS__)) return __LINE__; } while (0)\n"
    "extern \"C\" int vectors(float one) {\n"
    "    float4 v(1, 2, 3, 4); v *= one;\n"
    "    CHECK(all(v.MSL_SW(3, 2, 1, 0) == float4(4, 3, 2, 1)) && all(v.MSL_SW(1, 1) == 2));\n"
    "    v.MSL_SW_SET(0, 1) = v.MSL_SW(1, 0); CHECK(all(v == float4(2, 1, 3, 4)));\n"
    "    v.MSL_SW_SET(2, 0, 3) += float3(10, 20, 30); CHECK(all(v == float4(22, 1, 13, 34)));\n"
    "    v.MSL_SW_SET(0, 3) *= 2.0f; v.MSL_SW_SET(1, 2)++; --v.MSL_SW_SET(1, 2); CHECK(all(v == float4(44, 1, 13, "
    "68)));\n"
    "    v.x = 1; v.b = 7; v[3] = 9; v.g++; CHECK(all(v == float4(1, 2, 7, 9)) && v.a == 9 && v.z == 7);\n"
    "    CHECK(all(float4(float3(1, 2, 3), 4) == float4(1, float3(2, 3, 4))) && all(float4(float2(1, 2), float2(3, 4)) "
    "== float4(1, float2(2, 3), 4)));\n"
    "    CHECK(all(float4(5) == 5) && all(int3(float3(-1.7f, 2.7f, 0)) == int3(-1, 2, 0)) && all(bool2(float2(0, 3)) "
    "== bool2(false, true)));\n"
    "    uchar4 u(250, 1, 2, 3); u += uchar4(10); CHECK(u.x == 4); u <<= 1; CHECK(u.x == 8 && u.w == 26); u ^= "
    "uchar4(255); CHECK(u.x == 247);\n"
    "    packed_float3 p(1, 2, 3); p.MSL_SW_SET(0, 1) = float2(5, 6); p += 1.0f; float3 q = p; CHECK(all(q == "
    "float3(6, 7, 4)) && p[2] == 4);\n"
    "    packed_half4 ph = half4(1, 2, 3, 4); half4 hh = ph; CHECK(hh.w == 4.0f && float4(ph).y == 2.0f);\n"
    "    CHECK(any(float4(0, 0, 1, 0) != 0.0f) && !all(bool3(true, true, false)) && !any(bool2(false)));\n"
    "    CHECK(all(select(int3(1), int3(2), bool3(false, true, false)) == int3(1, 2, 1)) && select(3, 4, one > 0) == "
    "4);\n"
    "    CHECK(all((int4(7, -7, 7, -7) % 4) == int4(3, -3, 3, -3)) && all((int2(5) / int2(2, -2)) == int2(2, -2)));\n"
    "    CHECK(all((bool2(true, false) && bool2(true)) == bool2(true, false)) && all((bool2(false) || bool2(true, "
    "false)) == bool2(true, false)));\n"
    "    CHECK(all(cross(float3(1, 0, 0), float3(0, 1, 0)) == float3(0, 0, 1)) && length(float2(3, 4)) == 5 && "
    "distance(float3(1), float3(1, 1, 3)) == 2);\n"
    "    CHECK(all(normalize(float2(0, 4)) == float2(0, 1)) && dot(half4(1, 2, 3, 4), half4(1)) == 10.0f && "
    "length_squared(float3(1, 2, 3)) == 14);\n"
    "    CHECK(all(mix(float2(0, 10), float2(10, 20), 0.25f) == float2(2.5f, 12.5f)) && smoothstep(0.0f, 2.0f, 1.0f) "
    "== 0.5f);\n"
    "    CHECK(all(reflect(float2(1, -1), float2(0, 1)) == float2(1, 1)));\n"
    "    CHECK(all(refract(float2(0, -1), float2(0, 1), 0.5f) == float2(0, -1)) && all(faceforward(float2(1, 2), "
    "float2(0, 1), float2(0, 1)) == float2(-1, -2)));\n"
    "    CHECK(distance_squared(float2(1, 1), float2(4, 5)) == 25 && all(ldexp(float2(1, 3), int2(2, -1)) == float2(4, "
    "1.5f)));\n"
    "    CHECK(all(fma(float2(2), float2(3, 4), 1.0f) == float2(7, 9)) && all(clamp(float3(-1, 0.5f, 2), 0.0f, 1.0f) "
    "== float3(0, 0.5f, 1)));\n"
    "    array<int, 3> a = {{1, 2, 3}}; CHECK(a[1] == 2 && a.size() == 3);\n"
    "    int e; CHECK(frexp(12.0f, e) == 0.75f && e == 4 && ldexp(0.75f, 4) == 12 && frexp(half(3.0f), e) == 0.75f && "
    "e == 2);\n"
    "    float w; CHECK(modf(-3.25f, w) == -0.25f && w == -3 && modf(INFINITY, w) == 0 && w == INFINITY && ilogb(9.0f) "
    "== 3);\n"
    "    half hw; CHECK(modf(half(2.5f), hw) == 0.5f && hw == 2.0f && nextafter(1.0f, 2.0f) == 1.0f + FLT_EPSILON && "
    "nextafter(0.0f, -1.0f) < 0);\n"
    "    float c; CHECK(sincos(0.5f, c) == sin(0.5f) && c == cos(0.5f));\n"
    "    CHECK(isnan(NAN) && isinf(-INFINITY) && isfinite(half(1.0f)) && !isnormal(1e-40f) && signbit(-0.0f) && "
    "isnormal(half(1.0f)) && !isnormal(half(1e-6f)));\n"
    "    CHECK(isunordered(NAN, 1.0f) && isordered(1.0f, 2.0f) && all(isnan(float2(NAN, 1)) == bool2(true, false)));\n"
    "    return 0; }\n"
    "extern \"C\" int matrices(float one) {\n"
    "    float2x3 m(float3(1, 2, 3), float3(4, 5, 6)); m *= one; float3x2 t = transpose(m);\n"
    "    CHECK(t[0].y == 4 && t[2].x == 3 && m[1][2] == 6); CHECK(all(m * float2(1, 10) == float3(41, 52, 63)) && "
    "all(float3(1) * m == float2(6, 15)));\n"
    "    float2x2 p = t * m; CHECK(p[0].x == 14 && p[0].y == 32 && p[1].x == 32 && p[1].y == 77 && determinant(p) == "
    "54);\n"
    "    float3x3 d(2, 0, 0, 1, 3, 0, 5, 6, 4); CHECK(determinant(d) == 24 && (d - d) == float3x3(0.0f) && -d != d);\n"
    "    float4x4 q(1, 2, 3, 4, 5, 6, 7, 8, 2, 6, 4, 8, 3, 1, 1, 2); CHECK(determinant(q) == 72 && float4x4(1.0f) * q "
    "== q);\n"
    "    half4x4 h(2.0f); half4 r = h * half4(1, 2, 3, 4); CHECK(r.w == 8.0f && float4x4(h)[3][3] == 2.0f && (h * "
    "h)[0][0] == 4.0f);\n"
    "    return 0; }\n"
    "extern \"C\" int casts(float one) {\n"
    "    CHECK(as_type<uint>(one) == 0x3f800000u && as_type<float2>(0x4000000040400000ul).x == 3 && "
    "as_type<half2>(0x3c004000u).y == 1.0f);\n"
    "    CHECK(as_type<uchar4>(0x04030201u).z == 3 && as_type<uint4>(float4(1)).w == 0x3f800000u && "
    "as_type<ushort>(half(1.0f)) == 0x3c00);\n"
    "    CHECK(as_type<ulong>(uint2(1, 2)) == 0x200000001ul && as_type<char>(uchar(255)) == -1 && "
    "as_type<bfloat2>(0x3f804000u).x == 2.0f);\n"
    "    return 0; }\n"
    "template <class T, class W> int integer(T a, T b, T c, uint o, uint w) {\n"
    "    typedef make_unsigned_t<T> U; const W high = numeric_limits<T>::max(), low = numeric_limits<T>::min(); const "
    "int digits = sizeof(T) * 8;\n"
    "    W s = W(a) + b, d = W(a) - b, p = W(a) * b, x = W(a) * b + c;\n"
    "    CHECK(addsat(a, b) == T(s > high ? high : s < low ? low : s) && subsat(a, b) == T(d > high ? high : d < low ? "
    "low : d));\n"
    "    CHECK(madsat(a, b, c) == T(x > high ? high : x < low ? low : x)); CHECK(mulhi(a, b) == T(p >> digits) && "
    "madhi(a, b, c) == T((p >> digits) + c));\n"
    "    CHECK(hadd(a, b) == T(s >> 1) && rhadd(a, b) == T((s + 1) >> 1)); CHECK(absdiff(a, b) == T(d < 0 ? -d : d) && "
    "abs(a) == T(W(a) < 0 ? -W(a) : W(a)));\n"
    "    int n = 0, lead = 0, trail = 0; U r = 0; for (int i = 0; i < digits; i++) { n += U(a) >> i & 1; r = U(r | "
    "U(U(a) >> i & 1) << (digits - 1 - i)); }\n"
    "    while (lead < digits && !(U(a) >> (digits - 1 - lead) & 1)) lead++; while (trail < digits && !(U(a) >> trail "
    "& 1)) trail++;\n"
    "    CHECK(popcount(a) == T(n) && clz(a) == T(lead) && ctz(a) == T(trail) && reverse_bits(a) == T(r));\n"
    "    U k = U(b) % digits; CHECK(rotate(a, b) == T(k ? U(U(a) << k | U(a) >> (digits - k)) : U(a)));\n"
    "    o %= digits; w %= digits - o + 1; T e = 0; U f = U(a); for (uint i = 0; i < w; i++) { e = T(e | T(U(U(a) >> "
    "(o + i) & 1) << i)); f = U((f & ~(U(1) << (o + i))) | U(U(b) >> i & 1) << (o + i)); }\n"
    "    if (is_signed_v<T> && w && w < (uint)digits && (U(e) >> (w - 1) & 1)) e = T(U(e) | U(U(~U(0)) << w));\n"
    "    CHECK(extract_bits(a, o, w) == e && insert_bits(a, b, o, w) == T(f));\n"
    "    CHECK(max(a, b) == (a > b ? a : b) && min(a, b) == (a < b ? a : b) && max3(a, b, c) == max(max(a, b), c) && "
    "min3(a, b, c) == min(min(a, b), c));\n"
    "    CHECK(median3(a, b, c) == max(min(a, b), min(max(a, b), c)) && clamp(a, min(b, c), max(b, c)) == min(max(a, "
    "min(b, c)), max(b, c)));\n"
    "    vec<T, 3> va(a, b, c), vb(c, a, b); CHECK(all(addsat(va, vb) == vec<T, 3>(addsat(a, c), addsat(b, a), "
    "addsat(c, b))) && all(max(va, b) == vec<T, 3>(max(a, b), b, max(c, b))));\n"
    "    CHECK(all(popcount(va) == vec<T, 3>(popcount(a), popcount(b), popcount(c))) && all(abs(va) == vec<T, "
    "3>(abs(a), abs(b), abs(c))));\n"
    "    return 0; }\n"
    "extern \"C\" int integers(ulong a, ulong b, ulong c, uint o, uint w) {\n"
    "    int e; if ((e = integer<char, long>(a, b, c, o, w)) || (e = integer<uchar, long>(a, b, c, o, w)) || (e = "
    "integer<short, long>(a, b, c, o, w)) ||\n"
    "        (e = integer<ushort, long>(a, b, c, o, w)) || (e = integer<int, long>(a, b, c, o, w)) || (e = "
    "integer<uint, __int128>(a, b, c, o, w)) ||\n"
    "        (e = integer<long, __int128>(a, b, c, o, w))) return e;\n"
    "    CHECK(mulhi(a, b) == ulong((unsigned __int128)a * b >> 64) && addsat(a, b) == (a + b < a ? ~0ul : a + b) && "
    "subsat(a, b) == (a < b ? 0 : a - b));\n"
    "    CHECK(absdiff(a, b) == (a < b ? b - a : a - b) && hadd(a, b) == (a & b) + ((a ^ b) >> 1) && popcount(a) == "
    "ulong(__builtin_popcountl(a)));\n"
    "    uint x = a, y = b, z = c; CHECK(mul24(x, y) == (x & 0xffffff) * (y & 0xffffff) && mad24(x, y, z) == mul24(x, "
    "y) + z);\n"
    "    CHECK(mul24(-5, 7) == -35 && mad24(-5, 7, 5) == -30);\n"
    "    return 0; }\n";

static void *library;

static int build(void **state) {
    (void)state;
    library = prelude_load(body);
    return 0;
}

#define FUNCTION(result, name, ...)                                                                                    \
    result (*name)(__VA_ARGS__);                                                                                       \
    *(void **)&name = prelude_function(library, #name)

/* ---- half and bfloat --------------------------------------------------------------------------------------------- */

static double half_value(uint16_t h) {
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : HUGE_VAL) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h >> 15 ? -v : v;
}

static double bfloat_value(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Rounds to nearest even: a type with `digits`, least exponent `least` (frexp's) and bias. sticky: v was rounded to
 * odd. */
static uint16_t round_to(double v, int digits, int least, int bits) {
    uint16_t sign = signbit(v) ? 0x8000 : 0, infinity = (uint16_t)(((1 << bits) - 1) << (digits - 1));
    if (isnan(v))
        return (uint16_t)(infinity | 1 << (digits - 2));
    int e;
    frexp(v, &e);
    int unit = (e < least ? least : e) - digits;
    double n = nearbyint(ldexp(fabs(v), -unit)); /* in units of the last place */
    if (n == ldexp(1, digits)) {
        n = ldexp(1, digits - 1);
        unit++;
    }
    if (isinf(v) || unit + digits > 2 - least + 1)
        return sign | infinity;
    if (n < ldexp(1, digits - 1))
        return sign | (uint16_t)n;
    return sign | (uint16_t)((unit + digits - least + 1) << (digits - 1) | ((int)n & ((1 << (digits - 1)) - 1)));
}
static uint16_t to_half(double v) {
    return round_to(v, 11, -13, 5);
}
static uint16_t to_bfloat(double v) {
    return round_to(v, 8, -125, 8);
}

static bool same16(uint16_t a, uint16_t b, double (*value)(uint16_t)) {
    return a == b || (isnan(value(a)) && isnan(value(b)));
}

static void test_all_halves_become_floats(void **state) {
    (void)state;
    if (!library)
        skip();
    FUNCTION(void, half_to, const void *, float *, size_t);
    FUNCTION(void, half_to_integers, const void *, float *, size_t);
    FUNCTION(void, bfloat_to, const void *, float *, size_t);
    static uint16_t h[HALVES];
    static float f[HALVES], g[HALVES], b[HALVES];
    for (size_t i = 0; i < HALVES; i++)
        h[i] = (uint16_t)i;
    half_to(h, f, HALVES);
    half_to_integers(h, g, HALVES);
    bfloat_to(h, b, HALVES);
    for (size_t i = 0; i < HALVES; i++) {
        float want = (float)half_value(h[i]), other = (float)bfloat_value(h[i]);
        if (isnan(want) ? !isnan(f[i]) || !isnan(g[i]) : memcmp(&f[i], &want, 4) || memcmp(&g[i], &want, 4))
            fail_msg("half %04zx is %a by the processor, %a by integers, not %a", i, f[i], g[i], want);
        assert_true(isnan(other) ? isnan(b[i]) : memcmp(&b[i], &other, 4) == 0);
    }
}

/* Every half, its neighbours' midpoints and the floats beside these, and random floats. */
static void test_floats_become_halves(void **state) {
    (void)state;
    if (!library)
        skip();
    FUNCTION(void, half_from, const float *, void *, size_t);
    FUNCTION(void, half_from_integers, const float *, void *, size_t);
    FUNCTION(void, bfloat_from, const float *, void *, size_t);
    static float f[COUNT];
    static uint16_t h[COUNT], g[COUNT], b[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        double at = half_value((uint16_t)(i / 4)), next = half_value((uint16_t)(i / 4 + 1));
        float middle = (float)((at + next) / 2);
        f[i] = i >= 4 * HALVES ? prelude_random_float()
               : i % 4 == 0    ? (float)at
               : i % 4 == 1    ? middle
                               : nextafterf(middle, i % 4 == 2 ? HUGE_VALF : -HUGE_VALF);
    }
    half_from(f, h, COUNT);
    half_from_integers(f, g, COUNT);
    bfloat_from(f, b, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        uint16_t want = to_half(f[i]), other = to_bfloat(f[i]);
        if (!same16(h[i], want, half_value) || !same16(g[i], want, half_value))
            fail_msg("%a is half %04x by the processor, %04x by integers, not %04x", f[i], h[i], g[i], want);
        if (!same16(b[i], other, bfloat_value))
            fail_msg("%a is bfloat %04x, not %04x", f[i], b[i], other);
    }
}

static void test_integers_round_once(void **state) {
    (void)state;
    if (!library)
        skip();
    FUNCTION(void, half_int, const long *, void *, size_t);
    FUNCTION(void, bfloat_int, const long *, void *, size_t);
    static long n[COUNT];
    static uint16_t h[COUNT], b[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        n[i] = (long)prelude_random() >> (prelude_random() % 64);
    half_int(n, h, COUNT);
    bfloat_int(n, b, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        /* Exact in double but for a sticky bit far below the last place. */
        long odd = (n[i] >> 11) * 2048 | ((n[i] & 2047) != 0) << 11;
        double v = n[i] > -(1l << 53) && n[i] < 1l << 53 ? (double)n[i] : (double)odd;
        if (h[i] != to_half(v) || b[i] != to_bfloat(v))
            fail_msg("%ld is half %04x, bfloat %04x, not %04x, %04x", n[i], h[i], b[i], to_half(v), to_bfloat(v));
    }
}

/* a * b + c rounded to odd in double, so that rounding again is right. */
static double odd_fma(double a, double b, double c) {
    double p = a * b, s = p + c, t = s - p, low = (p - (s - t)) + (c - t);
    uint64_t u;
    memcpy(&u, &s, sizeof u);
    if (isfinite(s) && low != 0 && !(u & 1)) {
        u += (low > 0) == (s > 0) ? 1 : (uint64_t)-1;
        memcpy(&s, &u, sizeof s);
    }
    return s;
}

typedef void (*ops)(const void *, const void *, const void *, void *, size_t);

static void operations(ops f, double (*value)(uint16_t), uint16_t (*to)(double), const char *name) {
    static uint16_t a[COUNT], b[COUNT], c[COUNT], o[COUNT][6];
    for (size_t i = 0; i < COUNT; i++) {
        a[i] = (uint16_t)(i < HALVES ? i : prelude_random());
        b[i] = (uint16_t)prelude_random();
        c[i] = (uint16_t)prelude_random();
        if (i % 3 == 0) /* near a's magnitude, where sums cancel */
            b[i] = (uint16_t)(a[i] ^ (prelude_random() & 0x87ff));
    }
    f(a, b, c, o, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        double x = value(a[i]), y = value(b[i]), z = value(c[i]);
        uint16_t t = to(value(to(x + y)) * 2); /* each step rounded; with a float the operation is float's */
        t = to((float)(value(t) - 1.0));
        const double w[5] = {x + y, x - y, x * y, x / y, odd_fma(x, y, z)};
        for (int k = 0; k < 5; k++)
            if (!same16(o[i][k], to(w[k]), value))
                fail_msg("%s %a %c %a, %a = %04x, not %04x", name, x, "+-*/f"[k], y, z, o[i][k], to(w[k]));
        if (!same16(o[i][5], to(value(t) / 3), value))
            fail_msg("%s compound assignments of %a and %a: %04x, not %04x", name, x, y, o[i][5], to(value(t) / 3));
    }
}

static void test_operations_round_once(void **state) {
    (void)state;
    if (!library)
        skip();
    FUNCTION(void, ops_half, const void *, const void *, const void *, void *, size_t);
    FUNCTION(void, ops_bfloat, const void *, const void *, const void *, void *, size_t);
    operations(ops_half, half_value, to_half, "half");
    operations(ops_bfloat, bfloat_value, to_bfloat, "bfloat");
}

/* ---- checks that run inside -------------------------------------------------------------------------------------- */

static void check_inside(const char *name) {
    if (!library)
        skip();
    int (*f)(float);
    *(void **)&f = prelude_function(library, name);
    int line = f(1.0f);
    if (line)
        fail_msg("%s: line %d of the body", name, line);
}

static void test_vectors(void **state) {
    (void)state;
    check_inside("vectors");
}

static void test_matrices(void **state) {
    (void)state;
    check_inside("matrices");
}

static void test_as_type(void **state) {
    (void)state;
    check_inside("casts");
}

static void test_integers(void **state) {
    (void)state;
    if (!library)
        skip();
    FUNCTION(int, integers, uint64_t, uint64_t, uint64_t, uint32_t, uint32_t);
    for (int i = 0; i < 30000; i++) {
        uint64_t v[3];
        for (int k = 0; k < 3; k++)
            v[k] = i % 4 == 0 ? (uint64_t)0 - prelude_random() % 3 : prelude_random() >> (prelude_random() % 64);
        if (i % 16 == 1)
            v[0] = 0x8080000080008000ull | (uint64_t)1 << 63;
        uint32_t o = (uint32_t)prelude_random(), w = (uint32_t)prelude_random();
        int line = integers(v[0], v[1], v[2], o, w);
        if (line)
            fail_msg("line %d of the body with %llx %llx %llx %u %u", line, (unsigned long long)v[0],
                     (unsigned long long)v[1], (unsigned long long)v[2], o, w);
    }
}

static void test_all_of_it_compiles_for_sm_90(void **state) {
    (void)state;
    if (!prelude_compile_cuda_body(body, "types"))
        skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_halves_become_floats),
        cmocka_unit_test(test_floats_become_halves),
        cmocka_unit_test(test_integers_round_once),
        cmocka_unit_test(test_operations_round_once),
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_matrices),
        cmocka_unit_test(test_as_type),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_all_of_it_compiles_for_sm_90),
    };
    return cmocka_run_group_tests(tests, build, NULL);
}

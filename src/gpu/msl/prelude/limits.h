/* limits.h: the macros of <metal_math>, <metal_limits>: numbers, and the ranges of types.
 *
 * They are seen by generated code only: a source's own #ifdef is answered by the translator's preprocessor. */
#undef INFINITY
#undef NAN
#undef HUGE_VALF
#undef HUGE_VALH
#undef MAXFLOAT
#undef assert
#define INFINITY   (::msl_unit::metal::msl_bits<float>(0x7f800000u))
#define NAN        (::msl_unit::metal::msl_bits<float>(0x7fc00000u))
#define HUGE_VALF  INFINITY
#define HUGE_VALH  (::msl_unit::metal::half(INFINITY))
#define MAXFLOAT   3.402823466e+38f
#define MAXHALF    (::msl_unit::metal::half(65504.0f))
#define HUGE_VALBF (::msl_unit::metal::bfloat(INFINITY))
#define MAXBFLOAT  (::msl_unit::metal::msl_bits<::msl_unit::metal::bfloat>((::msl_unit::metal::ushort)0x7f7f))

#define M_E_F         2.71828182845904523536f
#define M_LOG2E_F     1.44269504088896340736f
#define M_LOG10E_F    0.434294481903251827651f
#define M_LN2_F       0.693147180559945309417f
#define M_LN10_F      2.30258509299404568402f
#define M_PI_F        3.14159265358979323846f
#define M_PI_2_F      1.57079632679489661923f
#define M_PI_4_F      0.785398163397448309616f
#define M_1_PI_F      0.318309886183790671538f
#define M_2_PI_F      0.636619772367581343076f
#define M_2_SQRTPI_F  1.12837916709551257390f
#define M_SQRT2_F     1.41421356237309504880f
#define M_SQRT1_2_F   0.707106781186547524401f
#define M_E_H         (::msl_unit::metal::half(2.71828182845904523536f))
#define M_LOG2E_H     (::msl_unit::metal::half(1.44269504088896340736f))
#define M_LOG10E_H    (::msl_unit::metal::half(0.434294481903251827651f))
#define M_LN2_H       (::msl_unit::metal::half(0.693147180559945309417f))
#define M_LN10_H      (::msl_unit::metal::half(2.30258509299404568402f))
#define M_PI_H        (::msl_unit::metal::half(3.14159265358979323846f))
#define M_PI_2_H      (::msl_unit::metal::half(1.57079632679489661923f))
#define M_PI_4_H      (::msl_unit::metal::half(0.785398163397448309616f))
#define M_1_PI_H      (::msl_unit::metal::half(0.318309886183790671538f))
#define M_2_PI_H      (::msl_unit::metal::half(0.636619772367581343076f))
#define M_2_SQRTPI_H  (::msl_unit::metal::half(1.12837916709551257390f))
#define M_SQRT2_H     (::msl_unit::metal::half(1.41421356237309504880f))
#define M_SQRT1_2_H   (::msl_unit::metal::half(0.707106781186547524401f))
#define M_E_BF        (::msl_unit::metal::bfloat(2.71828182845904523536f))
#define M_LOG2E_BF    (::msl_unit::metal::bfloat(1.44269504088896340736f))
#define M_LOG10E_BF   (::msl_unit::metal::bfloat(0.434294481903251827651f))
#define M_LN2_BF      (::msl_unit::metal::bfloat(0.693147180559945309417f))
#define M_LN10_BF     (::msl_unit::metal::bfloat(2.30258509299404568402f))
#define M_PI_BF       (::msl_unit::metal::bfloat(3.14159265358979323846f))
#define M_PI_2_BF     (::msl_unit::metal::bfloat(1.57079632679489661923f))
#define M_PI_4_BF     (::msl_unit::metal::bfloat(0.785398163397448309616f))
#define M_1_PI_BF     (::msl_unit::metal::bfloat(0.318309886183790671538f))
#define M_2_PI_BF     (::msl_unit::metal::bfloat(0.636619772367581343076f))
#define M_2_SQRTPI_BF (::msl_unit::metal::bfloat(1.12837916709551257390f))
#define M_SQRT2_BF    (::msl_unit::metal::bfloat(1.41421356237309504880f))
#define M_SQRT1_2_BF  (::msl_unit::metal::bfloat(0.707106781186547524401f))

#undef FLT_MAX
#undef FLT_MIN
#undef FLT_EPSILON
#undef FLT_DIG
#undef FLT_DECIMAL_DIG
#undef FLT_MANT_DIG
#undef FLT_RADIX
#undef FLT_MAX_EXP
#undef FLT_MIN_EXP
#undef FLT_MAX_10_EXP
#undef FLT_MIN_10_EXP
#define FLT_DIG          6
#define FLT_DECIMAL_DIG  9
#define FLT_MANT_DIG     24
#define FLT_MAX_EXP      128
#define FLT_MIN_EXP      (-125)
#define FLT_MAX_10_EXP   38
#define FLT_MIN_10_EXP   (-37)
#define FLT_RADIX        2
#define FLT_MAX          3.402823466385288598e+38f
#define FLT_MIN          1.175494350822287508e-38f
#define FLT_EPSILON      1.1920928955078125e-7f
#define HALF_DIG         3
#define HALF_MANT_DIG    11
#define HALF_DECIMAL_DIG 5
#define HALF_MAX_10_EXP  4
#define HALF_MIN_10_EXP  (-4)
#define HALF_MAX_EXP     16
#define HALF_MIN_EXP     (-13)
#define HALF_RADIX       2
#define HALF_MAX         (::msl_unit::metal::half(65504.0f))
#define HALF_MIN         (::msl_unit::metal::half(6.103515625e-5f))
#define HALF_EPSILON     (::msl_unit::metal::half(9.765625e-4f))
#define BFLT_DIG         2
#define BFLT_DECIMAL_DIG 4
#define BFLT_MANT_DIG    8
#define BFLT_MAX_10_EXP  38
#define BFLT_MIN_10_EXP  (-37)
#define BFLT_MAX_EXP     128
#define BFLT_MIN_EXP     (-125)
#define BFLT_RADIX       2
#define BFLT_MAX         MAXBFLOAT
#define BFLT_MIN         (::msl_unit::metal::bfloat(1.175494350822287508e-38f))
#define BFLT_EPSILON     (::msl_unit::metal::bfloat(7.8125e-3f))
#undef CHAR_BIT
#undef SCHAR_MAX
#undef SCHAR_MIN
#undef UCHAR_MAX
#undef CHAR_MAX
#undef CHAR_MIN
#undef SHRT_MAX
#undef SHRT_MIN
#undef USHRT_MAX
#undef INT_MAX
#undef INT_MIN
#undef UINT_MAX
#undef LONG_MAX
#undef LONG_MIN
#undef ULONG_MAX
#define CHAR_BIT  8
#define SCHAR_MAX 127
#define SCHAR_MIN (-128)
#define UCHAR_MAX 255
#define CHAR_MAX  127
#define CHAR_MIN  (-128)
#define SHRT_MAX  32767
#define SHRT_MIN  (-32768)
#define USHRT_MAX 65535
#define INT_MAX   2147483647
#define INT_MIN   (-2147483647 - 1)
#define UINT_MAX  4294967295u
#define LONG_MAX  9223372036854775807l
#define LONG_MIN  (-9223372036854775807l - 1)
#define ULONG_MAX 18446744073709551615ul
#ifdef __CUDACC_RTC__
#define INT8_MAX        SCHAR_MAX
#define INT8_MIN        SCHAR_MIN
#define UINT8_MAX       UCHAR_MAX
#define INT16_MAX       SHRT_MAX
#define INT16_MIN       SHRT_MIN
#define UINT16_MAX      USHRT_MAX
#define INT32_MAX       INT_MAX
#define INT32_MIN       INT_MIN
#define UINT32_MAX      UINT_MAX
#define INT64_MAX       LONG_MAX
#define INT64_MIN       LONG_MIN
#define UINT64_MAX      ULONG_MAX
#define SIZE_MAX        ULONG_MAX
#define PTRDIFF_MAX     LONG_MAX
#define PTRDIFF_MIN     LONG_MIN
#define __FLT_MAX__     FLT_MAX
#define __FLT_MIN__     FLT_MIN
#define __FLT_EPSILON__ FLT_EPSILON
#define __INT_MAX__     INT_MAX
#define __SCHAR_MAX__   SCHAR_MAX
#define __SHRT_MAX__    SHRT_MAX
#define __LONG_MAX__    LONG_MAX
#define __CHAR_BIT__    CHAR_BIT
#endif

#define FP_ILOGB0   (-2147483647 - 1)
#define FP_ILOGBNAN (-2147483647 - 1)

namespace msl_unit {
namespace metal {

/* ---- numeric_limits ---------------------------------------------------------------------------------------------- */

/* The name behind numeric_limits, which sources specialise for types of their own. */
template <class T> struct _numeric_limits_impl { static constexpr bool is_specialized = false; };
template <class T> struct numeric_limits : _numeric_limits_impl<T> {};
template <class T, int DIGITS, bool SIGNED> struct msl_int_limits {
    static constexpr bool is_specialized = true, is_signed = SIGNED, is_integer = true, is_exact = true;
    static constexpr bool has_infinity = false, has_quiet_NaN = false, has_signaling_NaN = false, is_bounded = true;
    static constexpr bool is_modulo = !SIGNED, is_iec559 = false;
    static constexpr int digits = DIGITS, digits10 = DIGITS * 301 / 1000, radix = 2, max_digits10 = 0;
    static constexpr int min_exponent = 0, min_exponent10 = 0, max_exponent = 0, max_exponent10 = 0;
    MSL_FN static constexpr T max() { return T(((T(1) << (DIGITS - 1)) - 1) * 2 + 1); }
    MSL_FN static constexpr T min() { return SIGNED ? T(-max() - 1) : T(0); }
    MSL_FN static constexpr T lowest() { return min(); }
    MSL_FN static constexpr T epsilon() { return T(0); }
    MSL_FN static constexpr T round_error() { return T(0); }
    MSL_FN static constexpr T infinity() { return T(0); }
    MSL_FN static constexpr T quiet_NaN() { return T(0); }
    MSL_FN static constexpr T signaling_NaN() { return T(0); }
    MSL_FN static constexpr T denorm_min() { return T(0); }
};
template <> struct _numeric_limits_impl<bool> : msl_int_limits<bool, 1, false> {
    MSL_FN static constexpr bool max() { return true; }
    MSL_FN static constexpr bool min() { return false; }
    MSL_FN static constexpr bool lowest() { return false; }
};
template <> struct _numeric_limits_impl<char> : msl_int_limits<char, 7, true> {};
template <> struct _numeric_limits_impl<signed char> : msl_int_limits<signed char, 7, true> {};
template <> struct _numeric_limits_impl<uchar> : msl_int_limits<uchar, 8, false> {};
template <> struct _numeric_limits_impl<short> : msl_int_limits<short, 15, true> {};
template <> struct _numeric_limits_impl<ushort> : msl_int_limits<ushort, 16, false> {};
template <> struct _numeric_limits_impl<int> : msl_int_limits<int, 31, true> {};
template <> struct _numeric_limits_impl<uint> : msl_int_limits<uint, 32, false> {};
template <> struct _numeric_limits_impl<long> : msl_int_limits<long, 63, true> {};
template <> struct _numeric_limits_impl<ulong> : msl_int_limits<ulong, 64, false> {};
template <> struct _numeric_limits_impl<long long> : msl_int_limits<long long, 63, true> {};
template <> struct _numeric_limits_impl<unsigned long long> : msl_int_limits<unsigned long long, 64, false> {};

template <class T, class U, int DIGITS, int MIN_EXP, int MAX_EXP, int DIGITS10, int MAX_DIGITS10, U MAX, U MIN, U EPS,
          U INF, U QNAN>
struct msl_float_limits {
    static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false;
    static constexpr bool has_infinity = true, has_quiet_NaN = true, has_signaling_NaN = true, is_bounded = true;
    static constexpr bool is_modulo = false, is_iec559 = true;
    static constexpr int digits = DIGITS, digits10 = DIGITS10, radix = 2, max_digits10 = MAX_DIGITS10;
    static constexpr int min_exponent = MIN_EXP, max_exponent = MAX_EXP;
    static constexpr int min_exponent10 = (MIN_EXP - 1) * 301 / 1000, max_exponent10 = MAX_EXP * 301 / 1000;
    MSL_FN static constexpr T max() { return msl_bits<T>(MAX); }
    MSL_FN static constexpr T min() { return msl_bits<T>(MIN); }
    MSL_FN static constexpr T lowest() { return -max(); }
    MSL_FN static constexpr T epsilon() { return msl_bits<T>(EPS); }
    MSL_FN static constexpr T round_error() { return T(0.5f); }
    MSL_FN static constexpr T infinity() { return msl_bits<T>(INF); }
    MSL_FN static constexpr T quiet_NaN() { return msl_bits<T>(QNAN); }
    MSL_FN static constexpr T signaling_NaN() { return msl_bits<T>(QNAN); }
    MSL_FN static constexpr T denorm_min() { return msl_bits<T>(U(1)); }
};
template <>
struct _numeric_limits_impl<float> : msl_float_limits<float, uint, 24, -125, 128, 6, 9, 0x7f7fffffu, 0x00800000u,
                                                      0x34000000u, 0x7f800000u, 0x7fc00000u> {};
template <>
struct _numeric_limits_impl<half>
    : msl_float_limits<half, ushort, 11, -13, 16, 3, 5, 0x7bff, 0x0400, 0x1400, 0x7c00, 0x7e00> {};
template <>
struct _numeric_limits_impl<bfloat>
    : msl_float_limits<bfloat, ushort, 8, -125, 128, 2, 4, 0x7f7f, 0x0080, 0x3c00, 0x7f80, 0x7fc0> {};
template <class T> struct numeric_limits<const T> : numeric_limits<T> {};

} // namespace metal
} // namespace msl_unit

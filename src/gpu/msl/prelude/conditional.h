/* conditional.h: what the translator makes of `c ? a : b` in units that know 16-bit floats: both arms are cast to
 * msl_arm<decltype((arm)), decltype(other)>. half and bfloat convert to float and back, so C++ would find the arms
 * ambiguous. The common type is taken where one of both is a 16-bit float and the other another number; 0 beside a
 * pointer becomes a null pointer; a number that is const becomes a value (naming it must not need its address); every
 * other arm stays what it is, an lvalue an lvalue. */
namespace msl_unit {
namespace metal {

template <class T> struct msl_rank { static constexpr int value = -1; };
#define MSL_RANK(T, n)                                                                                                 \
    template <> struct msl_rank<T> { static constexpr int value = n; };
MSL_RANK(bool, 0)
MSL_RANK(char, 0)
MSL_RANK(signed char, 0)
MSL_RANK(unsigned char, 0)
MSL_RANK(short, 0)
MSL_RANK(unsigned short, 0)
MSL_RANK(int, 0)
MSL_RANK(unsigned, 0)
MSL_RANK(long, 0)
MSL_RANK(unsigned long, 0)
MSL_RANK(half, 1)
MSL_RANK(bfloat, 2)
MSL_RANK(float, 4)

/* A: the arm's type with its reference; T, O: both arms' bare types; t, o: their ranks. */
template <class A, class T, class O, int t, int o> struct msl_arm_type { typedef A type; };
#define MSL_ARM(t, o, result)                                                                                          \
    template <class A, class T, class O> struct msl_arm_type<A, T, O, t, o> { typedef result type; };
MSL_ARM(0, 1, half)
MSL_ARM(0, 2, bfloat)
MSL_ARM(1, 2, float)
MSL_ARM(2, 1, float)
MSL_ARM(1, 4, float)
MSL_ARM(2, 4, float)
template <class A, class O> struct msl_arm_type<A, int, O *, 0, -1> { typedef O *type; };
template <class T, class O, int o> struct msl_arm_type<const T &, T, O, 0, o> { typedef T type; };
template <class O, int o> struct msl_arm_type<const float &, float, O, 4, o> { typedef float type; };
template <class T, class O> struct msl_arm_type<const T &, T, O, 0, 1> { typedef half type; };
template <class T, class O> struct msl_arm_type<const T &, T, O, 0, 2> { typedef bfloat type; };
template <class A, class O, class T = remove_cvref_t<A>, class U = remove_cvref_t<O>>
using msl_arm = typename msl_arm_type<A, T, U, msl_rank<T>::value, msl_rank<U>::value>::type;

} // namespace metal
} // namespace msl_unit

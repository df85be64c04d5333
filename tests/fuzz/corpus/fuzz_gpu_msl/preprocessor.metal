#define E(x, ...) #x x ## __VA_ARGS__ __VA_OPT__(,) E(x)
#if defined(E) && (1 ? 2 : 3) << 2 > 7
E(a, b)
#elif 0
#else
#endif
#define F(a, b...) a , ## b
F(1) F(1, F(2, 3))
_Pragma("unroll") /* c */ // d \
continued
#include "nowhere"

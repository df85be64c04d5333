/* Tests of the prelude of translated kernels: C++ text is compiled behind it with clang++ and loaded; the functions in
 * it are called directly, or by up to 32 threads that stand for the lanes of a SIMD-group. Neither the translator nor
 * the soft device takes part. */
#ifndef SUPPORT_PRELUDE_H
#define SUPPORT_PRELUDE_H

#include "base/base.h"

/* Parts of the prelude, in order; ended by NULL. */
extern const char *const prelude_parts[];

/* The prelude for soft or cuda, and MSL_USER_BEGIN: append user code and "\nMSL_USER_END\n". */
void prelude_begin(sl_buf *unit, bool cuda);

/* Compiles body (functions declared extern "C") behind the prelude for soft; NULL: no clang++ here (said loudly). A
 * body that does not compile fails the test. */
void *prelude_load(const char *body);
/* The function of that name; fails the test when there is none. */
void *prelude_function(void *library, const char *name);
void prelude_unload(void *library);

/* Compiles for sm_90 with NVRTC; syntax: its front end only. A unit that does not compile fails the test with the
 * compiler's first lines. False: no NVRTC here (said loudly). */
bool prelude_compile_cuda(const char *unit, const char *name, bool syntax);
/* The same of a body behind the prelude. */
bool prelude_compile_cuda_body(const char *body, const char *name);

/* Runs f(arg) once per lane of `lanes` (bits) at the same time; lane l returns from the kernel early, before any
 * SIMD-group function, where f says so. */
void prelude_run_lanes(void (*f)(void *), void *arg, uint32_t lanes);

/* Deterministic random numbers; the seed is printed. */
uint64_t prelude_random(void);
float prelude_random_float(void); /* any bits: infinities, NaN, denormals often */

#endif

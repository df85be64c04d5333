/* Tests of the soft device below the core: kernels are C++ of the shape the translator gives them, written by hand, so
 * that what is tested here does not depend on it. */
#ifndef SUPPORT_SOFT_H
#define SUPPORT_SOFT_H

#include "gpu/soft/soft.h"

/* Before each kernel's text: soft_abi.h and the few words the tests use. */
extern const char support_soft_prelude[];

/* ThreadSanitizer holds signals back until a thread sleeps: then a loop without barriers cannot be stopped. */
#if defined(__SANITIZE_THREAD__)
#define SUPPORT_STOPS_LOOPS 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SUPPORT_STOPS_LOOPS 0
#endif
#endif
#ifndef SUPPORT_STOPS_LOOPS
#define SUPPORT_STOPS_LOOPS 1
#endif

typedef struct soft_rig {
    gpu_device *device;
    void *stream;
    void *library, *pipeline;
    sl_error error; /* of the last step that failed */
    char log[1 << 16];
    msl_kernel kernel;
} soft_rig;

/* False: no clang++ here, the test is to be skipped (said loudly). */
bool soft_rig_open(soft_rig *r, int threads, bool check, uint64_t seed);
void soft_rig_close(soft_rig *r);
/* Compiles `body` as t.metal and makes a pipeline of its kernel `k`; fails the test if that fails. */
void soft_rig_kernel(soft_rig *r, const char *body, const msl_arg *args, size_t arg_count);
/* The same, for kernels that must not compile: the error. */
bool soft_rig_compiles(soft_rig *r, const char *body);

typedef struct soft_run {
    uint32_t groups[3], threads[3]; /* zeros count as 1 */
    gpu_bound bound[8];
    size_t bound_count;
    sl_gpu_threadgroup_length lengths[4];
    size_t length_count;
} soft_run;

/* Submits one dispatch and waits; false: r->error says why. */
bool soft_rig_run(soft_rig *r, const soft_run *run);
gpu_memory soft_rig_memory(soft_rig *r, uint64_t bytes);

#endif

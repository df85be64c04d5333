/* The stand-in for NVIDIA's driver and NVRTC on systems without them: one shared library with the entry points that
 * src/gpu/cuda looks up (SLUICE_CUDA_LIBRARY and SLUICE_NVRTC_LIBRARY name it). Code generated for CUDA runs on the
 * soft device: the prelude is replaced, the rest is compiled as it is.
 *
 * It does as the driver does where that bites: kernels, copies and words of a stream happen later, in order, on a
 * thread of its own; pinned memory is read when a copy runs, not when it is asked for; memory is known by what it was
 * allocated or pinned as, and a copy across two such runs is refused; a copy, a fill or a word, also one that a graph
 * has taken down, fails where its memory was given back since, even if other memory lies there now; kernels see no
 * memory but what is allocated or pinned, and fail beyond it; a kernel's fault breaks the context for good; nearly
 * every call wants a current context. What is freed twice, used after its free or given back while work uses it, and
 * what the host changes under a copy of its own, is counted as a violation (SLUICE_STANDIN_CUDA: the first is said on
 * stderr).
 *
 * Tests find the control structure by dlsym: cuda_control *cuda_standin(void). */
#ifndef CUDA_STANDIN_H
#define CUDA_STANDIN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct cuda_control {
    /* the machine; set before the device is opened */
    int driver_version, devices, major, minor, nvrtc_major;
    uint64_t memory; /* of the GPU */
    bool words;      /* 64-bit stream memory operations */
    bool no_host_pointer;
    const char *missing; /* an entry point this driver does not have */

    /* faults */
    const char *fail_call; /* by symbol: its calls are counted from now on */
    int fail_at;           /* the call that fails, from 1; 0: none */
    int fail_result;
    _Atomic bool hang; /* streams do not go on while it is set */

    /* what was seen, counted by every thread that calls */
    _Atomic long alive;             /* objects and memory not freed */
    _Atomic long violations, calls; /* calls: of fail_call */
    char violation[256];            /* the last */
    _Atomic long launches, graph_launches, graphs, copies, compiled, syntax_checks, pointer_forms;
    _Atomic uint64_t allocated, pinned; /* bytes now */
} cuda_control;

/* A program that does not know of us is set by the variable SLUICE_STANDIN_CUDA: memory, driver, devices, major, nvrtc,
 * fail (a symbol), at, result, as NAME=VALUE between commas; say=1: it says at the end what it has counted. */
cuda_control *cuda_standin(void);
/* Settings and faults to their defaults, counters to zero (but for alive); a broken context is whole again. */
void cuda_standin_reset(void);

#endif

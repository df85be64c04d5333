/* The metal device on its stand-in (tests/standin): opening it, its built-in kernels, and whether it left anything. */
#ifndef SUPPORT_METAL_H
#define SUPPORT_METAL_H

#include "gpu/device.h"

#include "../../standin/standin.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* False, and says so, where these tests cannot run: on a Mac there is Metal itself, which no test injects faults into.
 */
bool metal_has_stand_in(void);
enum { METAL_SKIPPED = 77 };

/* A cmocka set-up: loads the stand-in, points the device at it and resets both. Where there is none the device is
 * Metal itself. */
int metal_reset(void **state);
/* A tear-down: nothing is alive, no rule was broken, nothing was sent to nil. */
int metal_left_clean(void **state);
extern standin_control *metal; /* of the loaded stand-in; NULL: there is none */
/* A function of the stand-in; converts to any pointer to a function by memcpy. */
void *metal_symbol(const char *name);

/* A device with a library of built-in kernels and a stream. */
typedef struct metal_rig {
    gpu_device *d;
    void *library, *stream;
} metal_rig;

#define METAL_BUILTIN                                                                                                  \
    "// standin: builtin\n"                                                                                            \
    "kernel void add_one(device uint *x) {}\nkernel void scale(device float *x, constant float2 &by) {}\n"             \
    "kernel void move(device uint *x) {}\nkernel void constants(device uint *x) {}\n"                                  \
    "kernel void sizes(device uint *x) {}\nkernel void faults(device uint *x) {}\n"

gpu_device *metal_open_device(const gpu_open *o); /* o NULL: the defaults */
void *metal_load(gpu_device *d, const char *source, sl_error *err);
void *metal_pipeline(gpu_device *d, void *library, const char *name, gpu_pipeline_limits *limits, sl_error *err);
metal_rig metal_rig_open(void);
void metal_rig_close(metal_rig *r);
gpu_memory metal_memory(gpu_device *d, uint64_t bytes);

/* Submits and waits; false with the error of either. */
bool metal_run(metal_rig *r, const gpu_command *list, size_t n, sl_error *err);
/* A dispatch of one group of `threads`; bound lives as long as the command. */
gpu_command metal_dispatch(void *pipeline, uint32_t threads, const gpu_bound *bound, size_t bounds);

#endif

/* msl: Metal Shading Language to C++ for clang (soft device) and for NVRTC (cuda), and the table of a source's kernels.
 *
 * Works on tokens after its own preprocessor: ours and other people's compute kernels. What is outside its subset
 * (textures, tensor operations, ray tracing, visible functions) is an error that names it and its line. May include:
 * base. Called by the gpu core, the soft device, and `sluice msl`. */
#ifndef SL_MSL_H
#define SL_MSL_H

#include "base/base.h"
#include "sluice/gpu.h"

typedef enum msl_target {
    MSL_TABLE, /* argument tables and checks only, no code (metal compiles the source itself) */
    MSL_SOFT,
    MSL_CUDA
} msl_target;

typedef struct msl_options {
    const char *name; /* for messages and #line */
    const sl_gpu_define *defines;
    size_t define_count;
    const char *const *include_dirs;
    size_t include_count;
    msl_target target;
    int language; /* __METAL_VERSION__ as 310; 0: 310 */
} msl_options;

/* A function constant of the source. */
typedef struct msl_constant {
    int id;
    sl_gpu_type type;
    const char *name;
    bool optional; /* the source asks is_function_constant_defined */
} msl_constant;

enum { MSL_CONDITION_DERIVED = -2 };

/* condition of an optional argument: the index of a bool constant in msl_module_constants; -1: always there;
 * MSL_CONDITION_DERIVED: it depends on a constant that is worked out from function constants, so it may be bound or not
 */
typedef struct msl_arg {
    sl_gpu_arg arg;
    int condition;
    bool atomic; /* written by atomics only counts as written */
    bool sized;  /* arg.least is its type's size; else that is not known here */
} msl_arg;

typedef struct msl_kernel {
    const char *name;  /* host name: what a pipeline is made of */
    const char *entry; /* symbol in the generated code */
    int line;
    const msl_arg *args; /* buffers by slot, then threadgroup memory */
    size_t arg_count;
    uint32_t max_threads;        /* [[max_total_threads_per_threadgroup]]; 0: not said */
    uint32_t threadgroup_memory; /* bytes that its body declares; 0: none, or not known from the source alone */
} msl_kernel;

/* A kernel that was left out, because it uses textures, say: a source's other kernels are translated all the same. */
typedef struct msl_refusal {
    const char *host_name, *message;
} msl_refusal;

typedef struct msl_module msl_module;

/* source: n bytes. NULL on error: FILE:LINE: what. */
msl_module *msl_translate(const char *source, size_t n, const msl_options *options, sl_error *err);
void msl_module_free(msl_module *m);
/* The generated translation unit, complete (prelude included), NUL-terminated; "" for MSL_TABLE. */
const char *msl_module_code(const msl_module *m, size_t *size);
const msl_kernel *msl_module_kernels(const msl_module *m, size_t *count);
const msl_constant *msl_module_constants(const msl_module *m, size_t *count);
const msl_kernel *msl_module_find(const msl_module *m, const char *name);
const msl_refusal *msl_module_refusals(const msl_module *m, size_t *count);
/* On cuda argument `arg` of the table is passed by value, as a block of so many bytes (a multiple of 16); 0: it is a
 * pointer. With MSL_POINTERS defined all are pointers. */
uint32_t msl_value_bytes(const msl_kernel *k, size_t arg);
/* Why the kernel of that name was left out; NULL: it was not. */
const char *msl_module_refused(const msl_module *m, const char *name);

#endif

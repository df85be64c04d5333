/* Private to ops and its tests: the kernels' source as the devices compile it, and which variant of a kernel a matrix
 * needs. The kernels themselves are src/kernels/, what they take src/kernels/args.h. */
#ifndef SL_OPS_KERNELS_H
#define SL_OPS_KERNELS_H

#include "base/base.h"
#include "quant/quant.h"

/* A format as kernels are instantiated for it: "affine4_bf16", 16. */
typedef struct kernel_format {
    char name[24];
    int align; /* all addresses of a row's bytes are multiples of it: 16, 4, 2, 1 */
    bool few;  /* few.metal has it too, for this shape at these addresses */
} kernel_format;

/* Are there kernels for this format? */
bool kernel_format_has(sl_format_id f);

/* The variant for a matrix whose parts begin at addresses (offsets in buffers that begin at pages) of which `alignment`
 * holds the largest power of two that divides them, 16 at most. Also an expert's projection: the least over all. */
kernel_format kernel_format_of(const sl_matrix *m, const uint64_t address[3]);

/* "matvec", {"q4_k", 16} -> "matvec_q4_k_a16" */
void kernel_entry(char *out, size_t size, const char *kernel, const kernel_format *f);

/* "few_gate_up", {"q4_k"} -> "few_gate_up_q4_k" */
void kernel_few_entry(char *out, size_t size, const char *kernel, const kernel_format *f);

/* attention_few.metal: SIMD-groups for heads of so many dimensions where kernels have `room` bytes of threadgroup
 * memory; what it is to be given in slot 0. */
typedef struct kernel_few_attention {
    uint32_t simds, bytes;
} kernel_few_attention;
kernel_few_attention kernel_few_attention_of(int32_t head_dim, uint32_t room);
/* Splits that each row may have at most, the same for every number of rows up to SL_GPU_FEW_ROWS and for every one
 * beyond; rows of a launch. */
typedef struct kernel_few_plan {
    uint32_t splits, rows;
} kernel_few_plan;
kernel_few_plan kernel_few_plan_of(int32_t rows, int32_t heads, int32_t kv_heads);
/* Query heads and blocks of rows of a threadgroup of attention_large.metal. */
typedef struct kernel_large_attention {
    uint32_t heads, blocks;
} kernel_large_attention;
kernel_large_attention kernel_large_attention_of(int32_t heads, int32_t kv_heads);

/* Text of src/kernels/<file> with what it includes of that folder in place, so that it compiles without include paths;
 * instantiated for the given formats only (n 0: for all). Allocated; NULL on error. */
char *kernel_source(const char *file, const kernel_format *formats, size_t n, size_t *size, sl_error *err);

#endif

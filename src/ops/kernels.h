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

/* Text of src/kernels/<file> with what it includes of that folder in place, so that it compiles without include paths;
 * instantiated for the given formats only (n 0: for all). Allocated; NULL on error. */
char *kernel_source(const char *file, const kernel_format *formats, size_t n, size_t *size, sl_error *err);

#endif

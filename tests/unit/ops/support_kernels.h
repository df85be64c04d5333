/* Kernels on the soft device for tests: one library, run in three orders of threads and in checking mode; the four must
 * give the same bits and the last no report. */
#ifndef SUPPORT_KERNELS_H
#define SUPPORT_KERNELS_H

#include "kernels/args.h"
#include "ops/kernels.h"
#include "sluice/gpu.h"
#include "support_ops.h"

enum { KERNEL_DEVICES = 4 }; /* seeds 0, 1, 2; checking */

typedef struct kernels {
    int devices;
    sl_gpu *gpu[KERNEL_DEVICES];
    sl_gpu_library *library[KERNEL_DEVICES];
    double compile_seconds;
    /* worst error of each kernel, printed at the end */
    struct {
        char name[64];
        int shapes;
        double worst;
    } results[128];
    int result_count;
} kernels;

/* Compiles src/kernels/<file> for the formats. Prints SKIP and returns false where there is no compiler. */
bool kernels_open(kernels *k, const char *file, const kernel_format *formats, size_t n);
/* The same with lines of definitions in front, as the engine puts them. */
bool kernels_open_with(kernels *k, const char *file, const kernel_format *formats, size_t n, const char *defines);
/* And with more kernels behind the file, which may be one that only others include. */
bool kernels_open_text(kernels *k, const char *file, const kernel_format *formats, size_t n, const char *defines,
                       const char *behind);
/* Prints the table. */
void kernels_close(kernels *k);

/* What is bound to a slot: `bytes` at data, at `offset` (0..15) of a page, so that addresses may be odd. Between device
 * runs an output starts from the bytes that data had. */
typedef struct kernel_binding {
    int slot;
    void *data;
    size_t bytes;
    bool out;
    uint32_t offset;
    int same_as; /* slot whose buffer this one shares, 0: none */
} kernel_binding;

static inline kernel_binding in(int slot, const void *data, size_t bytes) {
    return (kernel_binding){.slot = slot, .data = (void *)data, .bytes = bytes};
}

static inline kernel_binding out(int slot, void *data, size_t bytes) {
    return (kernel_binding){.slot = slot, .data = data, .bytes = bytes, .out = true};
}

typedef struct kernel_call {
    const char *entry;
    uint32_t groups[3], threads[3];
    const kernel_binding *bindings;
    size_t count;
    const sl_gpu_constant *constants;
    size_t constant_count;
    sl_gpu_threadgroup_length lengths[2];
    size_t length_count;
    bool slabs; /* slots 15..30 that no binding names get the lowest one that is named */
} kernel_call;

void kernels_run(kernels *k, const kernel_call *c);

#define KERNEL_TRUE(ID)                                                                                                \
    { .id = (ID), .type = SL_GPU_BOOL, .value.b = true }

/* Books an error relative to the size of the result and fails above `limit`; NaN fails. */
void kernels_result(kernels *k, const char *name, double error, double limit);

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* Random matrix of any format, with what it means. values: [rows][cols] */
typedef struct kernel_matrix {
    sl_matrix m;
    double *values;
} kernel_matrix;
kernel_matrix kernel_matrix_new(rng *r, sl_format_id format, int32_t group, sl_format_id side, int64_t rows,
                                int64_t cols);
void kernel_matrix_free(kernel_matrix *w);
uint64_t kernel_matrix_bytes(const kernel_matrix *w, int part);
sl_weights_args kernel_weights(const sl_matrix *m);

/* A format, as tests list the variants they run. */
typedef struct kernel_variant {
    sl_format_id format;
    int32_t group;
    sl_format_id side;
    int align;
} kernel_variant;
/* Its name as kernels have it. */
kernel_format kernel_variant_format(const kernel_variant *v);
/* A random number of columns, about most at most, that the format can have at this alignment. */
int64_t kernel_variant_cols(rng *r, const kernel_variant *v, int64_t most);
/* Parts of w at slots first, first + 1, first + 2; returns 3. */
size_t kernel_bind_weights(kernel_binding *b, const kernel_matrix *w, int first, int align);

/* Experts' projections verbatim in two slabs, and the table that says where. */
enum { KERNEL_EXPERTS = 3, KERNEL_ABSENT = 1 /* this expert is not there */ };
typedef struct kernel_experts {
    uint8_t *slab[2];
    size_t bytes[2];
    uint64_t table[KERNEL_EXPERTS * SL_PARTS];
} kernel_experts;
void kernel_experts_add(kernel_experts *m, const kernel_matrix w[KERNEL_EXPERTS], int projection, int align);
void kernel_experts_free(kernel_experts *m);

/* n floats of about `magnitude`. */
float *kernel_floats(rng *r, size_t n, float magnitude);
/* n floats that are NaN, for outputs. */
float *kernel_poison(size_t n);

/* y[i][r] = x . W, and the size its rounding errors are measured by, sqrt of the sum of squared products. */
void kernel_product(const kernel_matrix *w, const float *x, double *y, double *size);

/* silu(gate) * up; or, with a limit, what gpt_oss has: both clamped, silu with alpha, up + 1. */
double kernel_swiglu(double gate, double up, double limit, double alpha);
/* The same for a row of an expert; NULL biases: none; gate_up: of w and up together. Relative to 1 + its rounding
 * errors' size. */
double kernel_expert_error(const kernel_matrix *w, const kernel_matrix *up, const float *x, const float *bias,
                           const float *up_bias, bool gate_up, double limit, double alpha, const float *got);

/* ---- the step buffer --------------------------------------------------------------------------------------------- */

typedef struct kernel_step {
    int32_t *words;
    size_t bytes;
} kernel_step;

typedef struct kernel_rows {
    int32_t rows, outs, seqs;
    const int32_t *token, *seq, *position, *out_row; /* NULL: zeros */
    int32_t pages_per_seq;
    const int32_t *pages; /* [seqs][pages_per_seq] */
    int32_t per_slab;     /* blocks of */
    uint64_t block_bytes;
} kernel_rows;
kernel_step kernel_step_new(const kernel_rows *r);

#endif

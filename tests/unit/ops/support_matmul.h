/* Products with many rows on the matrix units, dense and grouped by expert, against float64: for the tests of the
 * kernels of matmul.metal and matmul_large.metal, which are told apart by what they are called and by their tiles. */
#ifndef SUPPORT_MATMUL_H
#define SUPPORT_MATMUL_H

#include "support_kernels.h"

typedef struct matmul_kind {
    const char *file, *dense, *grouped; /* entries without their format */
    uint32_t tokens, rows, threads;     /* of a tile */
    const char *gate_up;                /* an entry whose tile is half as many rows of two matrices; NULL: none */
    kernels k;
} matmul_kind;

enum { MATMUL_VARIANTS = 28 };
extern const kernel_variant matmul_variants[MATMUL_VARIANTS];

/* For every n-th variant. False: no compiler. defines: in front of the source. */
bool matmul_open(matmul_kind *kind, const char *defines, size_t n);
/* For the chosen ones. */
bool matmul_open_some(matmul_kind *kind, const char *defines, const int *chosen, size_t n);

typedef struct matmul_case {
    kernel_variant v;
    int64_t out, cols;
    int32_t rows, extra;
    bool add, bias;
    float magnitude;
    int32_t hashed; /* the first rows, whose bits are returned; 0: all */
} matmul_case;

/* y within 2e-3 of the size of what is summed; rows behind the step's and columns behind the last are left alone.
 * Returns a hash of y's bits. */
uint64_t matmul_run(matmul_kind *kind, rng *r, const matmul_case *c);

/* down: rows of x are the list's places and y goes to pairs, done is set; else x by row, y by place. An expert is
 * absent: its pairs stay as they were. */
uint64_t matmul_run_grouped(matmul_kind *kind, rng *r, const kernel_variant *v, int64_t out_rows, int64_t cols,
                            int32_t rows, int32_t top_k, bool down, bool biased);

/* The same of silu(gate) * up, or the clamped SwiGLU. */
uint64_t matmul_run_gate_up(matmul_kind *kind, rng *r, const kernel_variant *v, int64_t out_rows, int64_t cols,
                            int32_t rows, int32_t top_k, bool biased, bool clamped);

#endif

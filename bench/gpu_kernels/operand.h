/* Random matrices of a format on the device. */
#ifndef BENCH_OPERAND_H
#define BENCH_OPERAND_H

#include "bench.h"
#include "kernels/args.h"
#include "ops/kernels.h"
#include "quant/quant.h"

typedef struct subject {
    const char *name;
    sl_format_id format, side;
    int32_t group;
    uint64_t align; /* of what matvec.metal has */
} subject;

enum { SUBJECTS = 5 };
extern const subject bench_subjects[SUBJECTS];

/* One shape of one format on the device. */
typedef struct operand {
    sl_matrix m;
    kernel_format f;
    uint8_t *part[3];           /* the host's; all matrices hold the same numbers */
    sl_gpu_buffer *weights;     /* n copies, each part of each at a multiple of 256 */
    uint64_t at[3], apart, all; /* a matrix's parts; from a matrix to the next; bytes of weights read for one */
    int n;                      /* matrices */
    float *x, *y;
    sl_gpu_buffer *x_at, *y_at, *step_at;
} operand;

/* n matrices [rows][cols] of --mib in total at least, x [cols] and room for each one's y. */
operand operand_new(bench *b, const subject *s, int64_t rows, int64_t cols, int n);
void operand_free(operand *o);
/* The k-th matrix' parts at slots 1, 2, 3. */
void operand_bind(const operand *o, int k, sl_gpu_binding bind[3]);

/* worst, or e where that is more or no number. */
static inline double operand_worse(double worst, double e) {
    return e <= worst || worst != worst ? worst : e;
}

#endif

/* Attention over paged memory for tests of its kernels: operands, and what float64 makes of the pages' own values.
 * Sequences share slabs, their blocks are in no order, and memory behind the last token is NaN. */
#ifndef SUPPORT_ATTENTION_H
#define SUPPORT_ATTENTION_H

#include "cpu/cpu_ops.h"
#include "support_kernels.h"

enum { ATTENTION_LAYER = 1 /* of two */, ATTENTION_LARGE = -1 };

extern const char *const attention_kv_names[]; /* by sl_kv_format */
cpu_kv_type attention_cpu_type(sl_kv_format f);

typedef struct attention_shape {
    sl_kv_format kv;
    int32_t heads, kv_heads, dim;
    int32_t seqs, rows[3], position[3]; /* of the first row of each sequence */
    int32_t window, apart;              /* apart: what lies between two heads of q, and of the gate */
    bool gate, sinks;
    int32_t values; /* > 0: they are the first dimensions of the keys, and pages have one plane */
} attention_shape;

/* Operands of one step over paged memory. */
typedef struct attention {
    attention_shape s;
    sl_kv_layout layout;
    int32_t rows, pages_per_seq, slabs;
    int32_t *pages, seq[96], position[96];
    uint8_t *slab[8];
    uint64_t slab_bytes;
    kernel_step step;
    float *q, *gate, *sinks;
    size_t q_count;
} attention;

int32_t attention_values(const attention_shape *s);
int32_t attention_stride(const attention *a); /* from a head of q to the next */

/* filled: tokens of every sequence up to its last row are there; else up to its first row's predecessor. */
attention attention_new(rng *r, const attention_shape *s, bool filled, float magnitude);
void attention_free(attention *a);

sl_attention_args attention_args(const attention *a);
/* Bindings; how many. The result's: the gate and the sinks, at slots 4 and 5. */
size_t attention_slabs(kernel_binding *b, const attention *a, bool written);
size_t attention_result(kernel_binding *b, const attention *a);
size_t attention_constants(sl_gpu_constant *c, const attention *a);

/* A token's keys (plane 0) or values of a kv head. */
const uint8_t *attention_token(const attention *a, int32_t seq, int32_t t, int32_t head, int plane);
/* Keys that no row's window reaches may as well not be there: their memory holds NaN. */
void attention_forget(const attention *a, int32_t keep_from);
/* Worst error of a row's head, by the root of the mean square of what it should be. */
double attention_error(const attention *a, const float *dst);

/* A kernel of splits, of so many query heads at once, then attention_combine: within 1e-5 of float64, or 1e-3 where q
 * is large. */
void attention_decode(kernels *with, kernels *combine, const char *entry, int32_t at_once, rng *r,
                      const attention_shape *s, float magnitude);

/* Rows in blocks, at_once query heads by a threadgroup; 0: the kernel of wide heads and of values within the keys;
 * ATTENTION_LARGE: attention_large.metal.
 * Results of q as large as a million are only finite. */
void attention_prefill(kernels *with, rng *r, const attention_shape *s, int32_t at_once, float magnitude);

/* The file's kernels for this shape alone, as the engine compiles them. */
bool attention_open(kernels *k, const char *file, const attention_shape *s);

#endif

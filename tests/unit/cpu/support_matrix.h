/* Random matrices and activations for the tests of cpu: every format, any shape, bytes that end where a page without
 * access begins. */
#ifndef SUPPORT_MATRIX_H
#define SUPPORT_MATRIX_H

#include "cpu/cpu.h"

typedef struct rng {
    uint64_t state;
} rng;

uint32_t rng_next(rng *r);
int64_t rng_below(rng *r, int64_t n); /* 0 .. n - 1 */
float rng_normal(rng *r);             /* roughly normal, mean 0, deviation 1 */

/* Memory whose last byte is the last of its page, the next page being inaccessible. */
void *guarded_new(size_t bytes);
void guarded_free(void *p, size_t bytes);

typedef struct test_matrix {
    sl_matrix m;
    size_t bytes[3];
} test_matrix;

typedef enum scale_kind { SCALES_PLAIN /* about 0.01 */, SCALES_EXTREME /* zeros, subnormals, largest */ } scale_kind;

/* group and side are used by affine formats and FP8 (group 128). Every part ends at a guard page, so that reading one
 * byte past the end traps; starts are at odd addresses for most shapes. */
test_matrix test_matrix_new(rng *r, sl_format_id format, int64_t rows, int64_t cols, int32_t group, sl_format_id side,
                            scale_kind kind);
void test_matrix_free(test_matrix *t);

/* A random number of columns that the format can have, at most about max. */
int64_t test_cols(rng *r, sl_format_id format, int32_t group, int64_t max);

#endif

/* Operations on random operands for the tests of ops: weights and views in host memory, experts from a source that
 * checks how it is used and misbehaves on request. */
#ifndef SUPPORT_OPS_H
#define SUPPORT_OPS_H

#include "ops/ops.h"

typedef struct rng {
    uint64_t state;
} rng;

uint32_t rng_next(rng *r);
int32_t rng_below(rng *r, int32_t n); /* 0 .. n - 1 */
float rng_normal(rng *r);             /* roughly normal, mean 0, deviation 1 */

/* ---- operands ---------------------------------------------------------------------------------------------------- */

typedef struct rig {
    sl_mem *mem;
    sl_pool *pool;
    sl_gpu *gpu; /* NULL: the CPU */
    sl_ops *ops;
    bool aligned;  /* matrices lie at multiples of 16, else at odd addresses */
    void **blocks; /* freed with it */
    size_t block_count, block_capacity;
} rig;

typedef struct rig_options {
    sl_numeric numeric;
    const char *isa;
    int threads;
    uint64_t budget;       /* 0: plenty */
    const char *device;    /* NULL: the CPU; else a device of gpu.h */
    bool scattered;        /* a device's slabs are not gathered */
    const char *cache_dir; /* of compiled kernels */
    bool check;            /* soft: checking mode */
    uint64_t seed;         /* soft: order of threads */
} rig_options;

/* The device that tests of the kernels use: `soft`, or what SLUICE_TEST_DEVICE names, so that all of them can be run on
 * a GPU. */
const char *rig_device(const char *soft);

/* The larger of two errors; what was NaN once stays so: an output that nobody wrote is one. */
double worse_of(double worst, double error);

/* False where the machine has no such instruction set or device. */
bool rig_open(rig *g, const rig_options *o);
void rig_close(rig *g);
/* Zeroed memory that lives as long as the rig. */
void *rig_memory(rig *g, size_t bytes);

/* Expert outputs kept by rank up to this many bytes; 0: experts come in ascending order. Before a program is ended. */
void rig_rank_bytes(rig *g, int64_t bytes);

/* A view of fresh memory with a row stride of cols + pad; the memory is poisoned with NaN. */
sl_view rig_view(rig *g, sl_rows rows, int32_t max_rows, int32_t cols, int32_t pad);
float *rig_row(const rig *g, const sl_view *v, int32_t row);

/* Random matrix in the format's own bytes (odd address), with what it means as doubles in *values ([rows][cols],
 * unless NULL). magnitude: of the weights. */
sl_matrix rig_matrix(rig *g, rng *r, sl_format_id format, int64_t rows, int64_t cols, float magnitude, double **values);
sl_weight rig_weight(rig *g, const sl_matrix *m);

/* n random floats as a weight of one row. */
sl_weight rig_vector(rig *g, rng *r, int64_t n);

/* Greatest difference of a row's numbers over the root of the mean of their squares; a NaN stays. */
double rig_row_error(const float *got, const float *want, int32_t n);
/* The worst of the first `rows` rows of two views. */
double rig_view_error(const rig *a, const sl_view *got, const rig *b, const sl_view *want, int32_t rows);

/* ---- experts ----------------------------------------------------------------------------------------------------- */

enum { MAX_EXPERTS = 128, MAX_LAYERS = 4 };

/* What the source does with an expert. */
typedef enum expert_fate { FATE_DELIVER, FATE_FAIL, FATE_DROP, FATE_TWICE } expert_fate;

typedef struct source {
    int32_t experts;
    sl_matrix matrix[MAX_LAYERS][MAX_EXPERTS][SL_PROJ_COUNT];
    uint8_t fate[MAX_LAYERS][MAX_EXPERTS];
    rng r;        /* order and sizes of what is handed out */
    int most;     /* at a time; 0: random */
    bool reverse; /* where the order is free; else random */
    bool begin_fails, too_many;
    int32_t extra; /* > 0: an expert id that nobody asked for is delivered first */
    /* what happened */
    int32_t layer, n, at, open;
    int32_t ids[MAX_EXPERTS], order[MAX_EXPERTS];
    bool begun, repeated;
    int begins, ends, dones;
    sl_expert_order last_order;
    char wrong[128];                               /* how the contract was broken; "" */
    uint8_t *copies[MAX_EXPERTS][SL_EXPERT_PARTS]; /* handed out, spoilt when done */
} source;

sl_expert_source source_of(source *s);

#endif

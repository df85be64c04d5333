/* A model loaded from a checkpoint with all its experts in memory and one growing KV, for tests of model and ops
 * without the engine. */
#ifndef SUPPORT_FIXTURE_H
#define SUPPORT_FIXTURE_H

#include "model/model.h"

typedef struct fixture {
    sl_ckpt *ckpt;
    sl_model *model;
    sl_mem *mem;
    sl_pool *pool;
    sl_gpu *gpu; /* NULL: the CPU */
    sl_ops *ops;
    sl_kv_layout kv;
    int32_t *pages; /* page tables of `sequences` sequences, page_count each */
    int32_t page_count, sequences;
    sl_state_layout state;
    int32_t *blocks; /* of recurrent state, `state.layers` of each sequence */
    struct all_experts *experts;
} fixture;

typedef struct fixture_options {
    const char *path;
    sl_numeric numeric;
    sl_kv_format kv;
    const char *isa;
    const char *device, *cache_dir; /* NULL: the CPU; of compiled kernels */
    int threads, max_rows, sequences, context;
    bool reverse;        /* experts are handed out in descending order where the order is free */
    int32_t fail_expert; /* >= 0: this expert of MoE layer 0 cannot be read */
} fixture_options;

/* NULL: err is filled. */
fixture *fixture_open(const fixture_options *o, sl_error *err);
void fixture_close(fixture *f);

/* Runs rows tokens[i] of sequence seq[i] at position[i]; logits of all rows. */
bool fixture_run(fixture *f, const int32_t *tokens, const int32_t *seq, const int32_t *position, int32_t rows,
                 float *logits, uint8_t *failed, sl_error *err);

#endif

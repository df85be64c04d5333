/* A forward pass of random weights with every kind of operation: embedding, layers of attention and experts, one dense
 * layer, head. KV blocks are handed out in an order that is not the sequences' own. */
#ifndef SUPPORT_TINY_H
#define SUPPORT_TINY_H

#include "support_ops.h"

enum {
    TINY_LAYERS = 3, /* MoE, dense, MoE */
    TINY_HIDDEN = 64,
    TINY_HEADS = 4,
    TINY_KV_HEADS = 2,
    TINY_HEAD_DIM = 64,
    TINY_VOCAB = 50,
    TINY_EXPERTS = 8,
    TINY_PAGES = 4, /* per sequence */
    TINY_SEQUENCES = 4
};

typedef struct tiny_options {
    rig_options rig;
    sl_kv_format kv;
    sl_format_id format; /* of matrices */
    int64_t rank_bytes;  /* 0: experts in ascending order */
    int32_t max_rows, max_outs;
} tiny_options;

typedef struct tiny {
    rig g;
    source src;
    sl_program *p;
    sl_kv_layout kv;
    int32_t pages[TINY_SEQUENCES][TINY_PAGES];
    sl_step_seq seqs[TINY_SEQUENCES];
    float *freq[2]; /* two rotations, layers alternate */
} tiny;

/* NULL where the machine has no such instruction set. */
tiny *tiny_open(const tiny_options *o);
void tiny_close(tiny *t);

/* A step of rows (token, seq, position); all arrays belong to the caller. */
sl_step tiny_step(tiny *t, int32_t rows, const int32_t *token, const int32_t *seq, const int32_t *position);

#endif

/* Private to model: what layers are made of. A layer is a norm, a mixer, a norm and an FFN, each of the last added to
 * the residual stream; a block is one way to do a mixer or an FFN. A new architecture is a row of arch.c over these;
 * what it needs beside them is a further block, not a branch in one. */
#ifndef SL_MODEL_BLOCK_H
#define SL_MODEL_BLOCK_H

#include "model/model_internal.h"

/* Activations are laid one behind the other. Layers follow each other, so all blocks begin at the same place. */
typedef struct area {
    sl_buffer buffer;
    uint64_t bytes; /* taken so far */
    int32_t max_rows;
} area;

sl_view area_take(area *a, int64_t cols); /* of max_rows rows */

/* The pass being recorded. */
typedef struct recorder {
    sl_program *program;
    sl_view residual, normed; /* [rows][hidden]; a block reads normed and adds to residual */
    area own;                 /* where a block's activations begin */
} recorder;

typedef struct block {
    const char *name;
    /* Binds the block's tensors of a layer, the norm before it included. */
    bool (*resolve)(sl_model *m, int32_t layer, sl_error *err);
    /* Takes from the area what record will take. */
    void (*take)(const sl_model *m, area *a);
    void (*record)(const sl_model *m, const recorder *r, int32_t layer);
} block;

extern const block block_attention, block_delta, block_mla; /* mixers */
extern const block block_dense, block_moe;                  /* FFNs */

/* By kind of mixer. */
extern const block *const block_mixers[MIXER_COUNT];

/* As ops wants them; NULL: the tensor is absent. */
const sl_weight *block_optional(const resident *r);
sl_moe block_moe_op(const sl_model *m, int32_t layer);
/* Of layer index `layer` among delta layers. */
sl_delta block_delta_op(const sl_model *m, int32_t layer);

#endif

/* The arithmetic of a GPU's own memory: what must fit there, what is left for experts.
 *
 *   limit >= resident weights + scratch and logits + slabs { KV, recurrent state of one sequence } + expert slots
 *
 * Pure numbers in, numbers out; device.c measures the input. */
#ifndef SL_ENGINE_VRAM_H
#define SL_ENGINE_VRAM_H

#include "base/base.h"

typedef struct engine_vram_input {
    const char *device; /* "NVIDIA H200", for messages */
    uint64_t room;      /* free there now */
    uint64_t share;     /* of it, what may be taken without being asked */
    uint64_t asked;     /* 0: as much as that */
    uint64_t weights, scratch;
    uint64_t slab_bytes, least_slab; /* the least there could be; KV and state lie in such pieces, blocks whole */
    uint64_t kv_block, context_blocks, state_block, state_blocks; /* state_block 0: the model has none */
    uint64_t slot_bytes, slots;                                   /* of an expert; of all of them, 0: a dense model */
    uint64_t least_slots;                                         /* one token's of a layer */
} engine_vram_input;

typedef struct engine_vram {
    uint64_t limit;       /* bytes that may be taken; 0: the device has no memory of its own */
    uint64_t least, full; /* that run; that hold every expert */
    uint64_t keep;        /* for KV and state, before experts take the rest */
    uint64_t slots;       /* experts that have room then */
} engine_vram;

/* The largest slab with which it runs, and KV grows by small shares; of the sizes least << i. */
uint64_t engine_vram_slab(const engine_vram_input *in, uint64_t least, uint64_t most);
/* Fills out, also where it is too small: false, SL_ERR_BUDGET, the message names what needs how much. */
bool engine_vram_plan(const engine_vram_input *in, engine_vram *out, sl_error *err);

#endif

/* The arithmetic of the memory budget: what must fit, what is left for experts, how large a slab should be.
 *
 *   budget >= process (code, libraries, tables, stacks) + the caller's reserve + page tables + resident weights +
 * scratch
 *             + slabs { KV, recurrent state of one sequence, expert slots }
 *
 * Pure numbers in, numbers out; engine_open.c measures the input. */
#ifndef SL_ENGINE_PLAN_H
#define SL_ENGINE_PLAN_H

#include "base/base.h"

enum { ENGINE_SLAB_SIZES = 11 }; /* 64 KiB << i */

typedef struct engine_plan_input {
    uint64_t process;       /* what the process holds already, outside the budgeted allocator */
    uint64_t later;         /* what it will hold beside that: stacks, queues, small tables */
    uint64_t reserve;       /* what the caller takes for itself */
    uint64_t resident;      /* weights */
    uint64_t scratch;       /* of a step, with logits and sampler */
    uint64_t scratch_least; /* with the smallest chunk that would be chosen; 0: as scratch */
    uint64_t kv_block;      /* bytes of a KV block */
    int32_t context_blocks;
    uint64_t state_block; /* bytes of a block of recurrent state, state_blocks of which are one sequence's; 0: none */
    int32_t state_blocks;
    uint64_t most_slab; /* larger slabs are not made where smaller ones are possible; 0: any */
    bool whole_context; /* no budget runs that cannot hold all of them */
    /* Routed experts; layers 0: a dense model. */
    int32_t layers, experts, top_k;
    const uint64_t *slot_bytes;                /* [layers] */
    uint64_t least_experts[ENGINE_SLAB_SIZES]; /* bytes of the least expert store for each slab size, 0: impossible */
} engine_plan_input;

typedef struct engine_plan {
    uint64_t least, suggested, full; /* budgets: least that runs, good, everything resident */
    uint64_t budget;
    uint64_t slab_bytes;                 /* 0: the budget is below the least */
    uint64_t charge;                     /* of the budget for what is not allocated from it */
    uint64_t least_experts;              /* bytes of slabs that stay the experts' whatever KV needs */
    uint64_t kv_blocks, least_kv_blocks; /* that fit when the experts keep their least; under the least budget */
    uint64_t slots; /* experts that fit beside KV: of a whole context, of a quarter of the room at most */
} engine_plan;

static inline uint64_t engine_slab_size(int i) {
    return (uint64_t)(64 << 10) << i;
}

/* Fills out; false: SL_ERR_BUDGET, the message names the least budget in bytes and in human units; SL_ERR_UNSUPPORTED:
 * an expert or a KV block is larger than any slab. out is complete but for slab_bytes where only the budget is too
 * small. */
bool engine_plan_make(const engine_plan_input *in, uint64_t budget, engine_plan *out, sl_error *err);

/* The smallest slab that holds an expert and the blocks; 0: none does. */
uint64_t engine_plan_least_slab(const engine_plan_input *in);

/* Bytes this process holds in memory now. */
uint64_t engine_resident_now(void);

#endif

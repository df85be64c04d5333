/* The pool of KV blocks: 64 tokens each, cut out of slabs of the budgeted allocator, counted by references so that
 * forked sequences share full pages. A second pool of the same kind holds recurrent state (state.h).
 *
 * Blocks are taken and released by any thread; slabs come and go only on the scheduler's thread between steps, because
 * what runs the steps knows them by index (block b lies in slab b / blocks_per_slab) and because room for a slab may
 * have to be taken from the expert cache. A block's bytes are written only by a step of the one sequence that holds it
 * alone. */
#ifndef SL_ENGINE_KV_POOL_H
#define SL_ENGINE_KV_POOL_H

#include "base/base.h"
#include "ops/ops.h"

typedef struct engine_kv engine_kv;

typedef struct engine_kv_options {
    sl_mem *mem;         /* borrowed */
    sl_kv_layout layout; /* derived fields set for mem's slabs; for state only block_bytes and blocks_per_slab */
    bool state;          /* blocks of recurrent state, as errors call them */
    /* The list of slabs changed. appended: the only change is one more at the end. A place whose slab was given back
     * holds some other live slab: no block of it is in use. */
    bool (*place)(void *user, void *const *slabs, int32_t count, bool appended, sl_error *err);
    /* Makes another holder of slabs free some; returns how many were freed. May be NULL. */
    int (*reclaim)(void *user, int slabs);
    void *user;
} engine_kv_options;

typedef struct engine_kv_stats {
    int32_t slabs, empty_slabs, blocks_used, blocks_free;
} engine_kv_stats;

/* Takes the first slab, which stays to the end: one block can always be had. */
engine_kv *engine_kv_new(const engine_kv_options *o, sl_error *err);
void engine_kv_free(engine_kv *kv);

/* Takes n free blocks, one reference each; all or none. Does not grow. Any thread. */
bool engine_kv_take(engine_kv *kv, int32_t *blocks, int32_t n);
void engine_kv_ref(engine_kv *kv, const int32_t *blocks, int32_t n);
void engine_kv_unref(engine_kv *kv, const int32_t *blocks, int32_t n);
bool engine_kv_shared(engine_kv *kv, int32_t block); /* more than one reference */
uint8_t *engine_kv_block(engine_kv *kv, int32_t block);
const sl_kv_layout *engine_kv_layout(const engine_kv *kv);
engine_kv_stats engine_kv_stats_get(engine_kv *kv);

/* Takes slabs until n blocks are free. SL_ERR_BUDGET names the sizes. Scheduler's thread, between steps. */
bool engine_kv_grow(engine_kv *kv, int32_t n, sl_error *err);
/* Takes n blocks, growing the pool where they are missing. As grow. */
bool engine_kv_obtain(engine_kv *kv, int32_t *blocks, int32_t n, sl_error *err);
/* Gives empty slabs back, all but `spare` of them and never the last slab. Scheduler's thread, between steps. */
void engine_kv_trim(engine_kv *kv, int32_t spare);

#endif

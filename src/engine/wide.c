/* Wide steps: a long prompt that has the engine to itself comes in larger chunks while experts stream.
 *
 * A chunk reads every expert that its rows choose, which is nearly all of them, whatever its size: four times the rows
 * in one chunk are a quarter of the reading. But a step's scratch grows with its rows, and what it takes is slots that
 * decoding would hit. So there is scratch for the usual chunk only; for a prompt of more it is exchanged for larger
 * scratch, which takes slabs from the expert cache, and for the usual one again when the next step needs no more.
 * Nobody else's latency suffers: while any sequence decodes, or waits for its reader, chunks stay as they are. On the
 * CPU a row's bits do not depend on the chunk; on a device they do, and none of this is done. */
#include "engine/internal.h"

enum { WIDE_ROWS = 2048, ROWS_GRAIN = 64 };

/* With more rows computing takes longer than reading did on every disk measured, and a step is waited for by whoever
 * comes meanwhile. */
int32_t engine_wide_most(const sl_engine *e) {
    bool may = !e->options.chunk && !e->gpu && sl_model_config_get(e->model)->moe_layers > 0;
    int32_t most = e->context < WIDE_ROWS ? e->context : WIDE_ROWS;
    return may && most > e->chunk ? most : 0;
}

/* ---- room --------------------------------------------------------------------------------------------------------
 */

static uint64_t unused(const sl_engine *e) {
    uint64_t used = 0, budget = sl_mem_budget(e->mem);
    for (int i = 0; i < SL_USE_COUNT; i++)
        used += sl_mem_used(e->mem, (sl_use)i);
    return used < budget ? budget - used : 0;
}

static uint64_t scratch_of(sl_engine *e, int32_t chunk) {
    return sl_model_scratch_bytes(e->model, e->ops, chunk + e->max_sequences, e->max_outs, NULL);
}

/* Whether slots can do without `more` bytes of scratch: beside their least, and what the sequence needs for its next
 * rows, half of what they have stays theirs. */
static bool has_room(sl_engine *e, int32_t rows, uint64_t more) {
    sl_experts_stats x;
    sl_experts_stats_get(e->experts, &x);
    uint64_t held = x.slot_bytes + unused(e), least = e->plan.least_experts, slab = sl_mem_slab_bytes(e->mem);
    uint64_t kv = sl_round_up((uint64_t)rows * e->kv_token_bytes, slab) + slab;
    uint64_t state = (uint64_t)e->state_layout.layers * e->state_layout.block_bytes;
    return held >= least + kv + state && more <= (held - least - kv - state) / 2;
}

/* ---- exchanging scratch -------------------------------------------------------------------------------------------
 */

/* more: bytes that it takes beyond those given back. */
static bool exchange(sl_engine *e, int32_t chunk, uint64_t more) {
    uint64_t slab = sl_mem_slab_bytes(e->mem), left = unused(e);
    sl_error err;
    if (more > left)
        sl_experts_shrink(e->experts, (int)((more - left + slab - 1) / slab));
    bool ok = sl_model_fit_rows(e->model, chunk + e->max_sequences, e->max_outs, &err);
    e->fitted = ok ? chunk : 0;
    return ok;
}

/* Scratch for the usual chunk. */
static void go_back(sl_engine *e) {
    if (e->fitted != e->chunk)
        exchange(e, e->chunk, e->fitted ? 0 : scratch_of(e, e->chunk));
}

static bool fit(sl_engine *e, int32_t chunk) {
    bool fits = chunk <= e->fitted;
    uint64_t now = fits || !e->fitted ? 0 : scratch_of(e, e->fitted), more = fits ? 0 : scratch_of(e, chunk) - now;
    return has_room(e, chunk, more) && (fits || exchange(e, chunk, more));
}

/* ---- whose turn it is ---------------------------------------------------------------------------------------------
 */

/* Rows of the one prompt that is there; 0: it is not alone, or there is none. */
static int32_t rows_alone(sl_engine *e) {
    engine_run *only = NULL;
    for (size_t i = 0; i < e->sched.active_count; i++) {
        engine_run *run = e->sched.active[i];
        if (run->ended)
            continue;
        if (only)
            return 0;
        only = run;
    }
    return only && only->ready && !only->alone ? engine_run_remaining(only) : 0;
}

static bool streams(const sl_engine *e) {
    const sl_model_config *c = sl_model_config_get(e->model);
    return e->plan.slots < (uint64_t)c->moe_layers * (uint64_t)c->experts;
}

/* Equal chunks, none of more rows than there can be scratch for. */
int32_t engine_wide_chunk(sl_engine *e) {
    if (!e->wide_most)
        return e->chunk;
    int32_t rows = streams(e) ? rows_alone(e) : 0;
    for (int32_t most = e->wide_most; rows > e->chunk && most > e->chunk; most /= 2) {
        int32_t chunks = (rows + most - 1) / most, each = (rows + chunks - 1) / chunks;
        int32_t chunk = (int32_t)sl_round_up((uint64_t)each, ROWS_GRAIN);
        chunk = chunk < most ? chunk : most;
        if (chunk > e->chunk && fit(e, chunk))
            return chunk;
    }
    go_back(e);
    return e->chunk;
}

/* The slots as a device sees them that is given a token's work before it is known which experts that wants. */
#include "experts/store.h"

#include <string.h>

enum { MOST_ALIGNED = 16 };

/* A part's address is its file offset modulo 64 (layout.c). */
uint32_t experts_layer_align(const sl_expert_layer *l) {
    uint64_t bits = MOST_ALIGNED;
    for (int64_t i = 0; i < (int64_t)l->experts * SL_EXPERT_PARTS; i++)
        if (l->extent[i].bytes)
            bits |= l->extent[i].offset;
    return (uint32_t)(bits & -bits);
}

/* Enters the memory that a slab lies in; false: no room for it, or of another size. */
static bool see_slab(sl_experts *e, const experts_slab *b) {
    void *base;
    uint64_t bytes;
    if (!sl_mem_find(e->mem, b->base, &base, &bytes))
        return false;
    for (int32_t i = 0; i < e->seen.blocks; i++)
        if (e->seen.block[i] == base)
            return true;
    if (e->seen.blocks == SL_PEEK_BLOCKS || (e->seen.blocks && bytes != e->seen.block_bytes))
        return false;
    e->seen.block[e->seen.blocks++] = base;
    e->seen.block_bytes = bytes;
    return true;
}

/* The memory of the slabs in use, in order of their numbers; none where it is in more pieces than fit. */
static void list_blocks(sl_experts *e) {
    if (e->seen.at == e->slab_moves + 1)
        return;
    e->seen.at = e->slab_moves + 1;
    e->seen.blocks = 0;
    for (size_t i = 0; i < e->slab_capacity; i++) {
        if (e->slab[i] && e->slab[i]->cls >= 0 && !see_slab(e, e->slab[i])) {
            e->seen.blocks = 0;
            return;
        }
    }
}

/* Slots that a layer of a class may have at once: where there are several, slabs of the others can be taken, but for
 * one with a read that never ended. */
static int32_t slots_for(const sl_experts *e, int32_t cls, bool all_resident) {
    if (e->classes == 1 || all_resident)
        return e->slots - e->timed_out;
    if (e->max_slots) /* not of slabs alone */
        return 0;
    return (int32_t)sl_min_i64((int64_t)(e->slabs - e->timed_out) * e->cls[cls].per_slab, INT32_MAX);
}

bool experts_peek(void *self, int32_t layer, sl_expert_peek *out) {
    sl_experts *e = self;
    *out = (sl_expert_peek){0};
    if (layer < 0 || layer >= e->layers || e->it.running)
        return false;
    out->align = e->layer[layer].align;
    out->all_resident = e->in_flight == 0 && atomic_load(&e->count.slots_used) == e->experts;
    bool settled = experts_cache_settle(e);
    list_blocks(e);
    out->blocks = e->seen.blocks;
    out->block_bytes = e->seen.block_bytes;
    memcpy(out->block, e->seen.block, sizeof out->block);
    if (out->blocks == 0)
        return true;
    /* Reads ahead move experts on their own; a store that could still grow would put experts where nobody looks. */
    if (!e->prefetch && settled)
        out->holds = slots_for(e, e->layer[layer].cls, out->all_resident);
    return true;
}

int32_t experts_resident(void *self, int32_t layer, sl_expert_view *out, int32_t max) {
    const sl_experts *e = self;
    int32_t n = 0;
    for (int32_t id = 0; layer >= 0 && layer < e->layers && id < e->layer[layer].experts && n < max; id++) {
        const experts_slot *s = e->layer[layer].slot[id];
        if (!s || s->state != EXPERTS_CACHED)
            continue;
        out[n].id = id;
        out[n].slot = experts_slot_number(s);
        for (int p = 0; p < SL_EXPERT_PARTS; p++)
            out[n].part[p] = s->part[p] == EXPERTS_NO_PART ? NULL : s->base + s->part[p];
        n++;
    }
    return n;
}

/* Both only grow. */
uint64_t experts_generation(void *self, int32_t layer) {
    const sl_experts *e = self;
    return layer < 0 || layer >= e->layers ? 0 : e->layer[layer].moves + e->slab_moves + 1;
}

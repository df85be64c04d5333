/* Reading ahead while the disk would be idle: the experts that the previous token chose in the next layer.
 *
 * A guess must cost nothing that was certain: it is made once per layer, only when no read is awaited, into free slots
 * or those of the least recent experts, never one of the layer it is for or another guess still to be used, and it
 * takes at most a share of the slots. A guess that fails is forgotten; whoever asks for the expert then reads it. */
#include "experts/store.h"

#include <string.h>

/* A guess pins its slot until it is read: leave most for what is asked for. */
enum { SHARE = 4 };

void experts_prefetch_note(sl_experts *e, int32_t layer, const int32_t *ids, int32_t n) {
    experts_layer *l = &e->layer[layer];
    if (!e->prefetch)
        return;
    l->previous_count = n <= e->previous_max ? n : 0;
    memcpy(l->previous, ids, (size_t)l->previous_count * sizeof *ids);
}

static experts_slot *claim_cold(sl_experts *e, int32_t layer) {
    int32_t cls = e->layer[layer].cls;
    experts_slot *s = experts_cache_claim(e, cls, EXPERTS_TAKE_FREE);
    if (s)
        return s;
    s = experts_policy_victim(e, cls);
    if (!s || s->layer == layer || s->prefetched)
        return NULL;
    experts_cache_evict(e, s);
    return s;
}

/* false: no further guess has a place. */
static bool guess(sl_experts *e, int32_t layer, int32_t expert) {
    experts_layer *l = &e->layer[layer];
    experts_layout layout;
    if (!experts_layout_make(&e->files, &l->extent[(size_t)expert * SL_EXPERT_PARTS], &layout, NULL) ||
        !experts_fetch_reserve(e))
        return false;
    experts_slot *s = claim_cold(e, layer);
    if (!s)
        return false;
    experts_fetch_add(e, s, layer, expert, &layout);
    s->prefetched = true;
    experts_add(&e->count.prefetch_reads, 1);
    return true;
}

void experts_prefetch_run(sl_experts *e) {
    experts_iteration *it = &e->it;
    if (!e->prefetch || it->prefetched || it->order != SL_ORDER_READY || it->waiting > 0 || e->in_flight > 0)
        return;
    it->prefetched = true;
    int32_t layer = (it->layer + 1) % e->layers, left = e->slots / SHARE;
    const experts_layer *l = &e->layer[layer];
    for (int32_t i = 0; i < l->previous_count && left > 0; i++) {
        if (l->slot[l->previous[i]])
            continue;
        if (!guess(e, layer, l->previous[i]))
            break;
        left--;
    }
    experts_fetch_submit(e);
}

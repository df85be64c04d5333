/* Which expert leaves the cache, and where one that was just used is put in line.
 *
 * LRU: recency beats frequency on fine-grained MoE. But where one pass over the model asks for more experts than there
 * are slots (a long prefill chunk, or a cache below one token's demand) each expert would be evicted just before it is
 * asked for again, and plain LRU hits nothing at all. Then experts read in the pass are put at the cold end, where the
 * next read replaces them, and those already there stay and are hit in every pass. One in HOT_EVERY is put at the hot
 * end all the same, so that the staying set follows the text (bimodal insertion, Qureshi et al., ISCA 2007). */
#include "experts/store.h"

enum { HOT_EVERY = 32, STALE_PASSES = 2 };

bool experts_policy_thrashes(const sl_experts *e) {
    return e->demand > e->slots;
}

static bool goes_cold(sl_experts *e, const experts_slot *s) {
    return s->fresh && experts_policy_thrashes(e) && ++e->cold % HOT_EVERY != 0;
}

void experts_policy_keep(sl_experts *e, experts_slot *s) {
    experts_class *c = &e->cls[s->slab->cls];
    bool cold = goes_cold(e, s);
    s->fresh = false;
    s->used = cold ? 0 : e->clock;
    if (cold)
        experts_list_push_last(&c->recent, &s->link);
    else
        experts_list_push_first(&c->recent, &s->link);
}

void experts_policy_take(sl_experts *e, experts_slot *s) {
    experts_list_remove(&e->cls[s->slab->cls].recent, &s->link);
}

experts_slot *experts_policy_victim(const sl_experts *e, int32_t cls) {
    return (experts_slot *)e->cls[cls].recent.last;
}

uint64_t experts_policy_age(const sl_experts *e, const experts_slot *victim) {
    if (victim->used)
        return victim->used;
    /* At the cold end the victim's own age says nothing. What was not used in whole passes over the model is stale; a
     * pass moves the clock by its demand. */
    uint64_t stale = STALE_PASSES * (uint64_t)e->demand;
    return e->clock > stale ? e->clock - stale : 0;
}

/* Which expert leaves the cache, and where one that was just used is put in line.
 *
 * LRU, the default: one line, the least recently used goes. But where one pass over the model asks for more experts
 * than there are slots (a long prefill chunk, or a cache below one token's demand) each expert would be evicted just
 * before it is asked for again, and plain LRU hits nothing at all. Then experts read in the pass are put at the cold
 * end, where the next read replaces them, and those already there stay and are hit in every pass. One in HOT_EVERY is
 * put at the hot end all the same, so that the staying set follows the text (bimodal insertion, Qureshi et al., ISCA
 * 2007).
 *
 * LFU: uses are counted per expert, cached or not, and halved every HALF_PASSES passes. A line for each rank of counts
 * (exact up to 15, then eight to a power of two); the victim is the oldest of the lowest rank. A sweep larger than the
 * cache needs no rule of its own: what is new has the lowest rank. Halving moves whole lines, because all counts of a
 * rank halve into the same rank. So claiming and evicting take the same time however many slots there are. */
#include "experts/store.h"

enum { HOT_EVERY = 32, STALE_PASSES = 2, HALF_PASSES = 256, MOST_USES = 1023 };

bool experts_policy_thrashes(const sl_experts *e) {
    return e->demand > e->slots;
}

/* 0..63, like a small floating-point number: three bits behind the leading one. */
static int32_t rank_of(int32_t uses) {
    int32_t shift = uses < 16 ? 0 : 28 - __builtin_clz((unsigned)uses);
    return uses < 16 ? uses : 8 * shift + (uses >> shift);
}

/* Of the count halved. */
static int32_t rank_halved(int32_t rank) {
    return rank < 16 ? rank / 2 : rank - 8;
}

static int32_t rank_in(const sl_experts *e, const experts_slot *s) {
    return e->policy == SL_POLICY_LFU ? rank_of(e->layer[s->layer].uses[s->expert]) : 0;
}

static void count_use(sl_experts *e, experts_slot *s) {
    if (!s->asked)
        return;
    size_t key = (size_t)(&e->layer[s->layer].slot[s->expert] - e->table);
    if (e->policy == SL_POLICY_LFU)
        e->uses[key] += e->uses[key] < MOST_USES;
    if (e->heat)
        e->heat[key] += e->heat[key] < UINT32_MAX;
}

static bool goes_cold(sl_experts *e, const experts_slot *s) {
    return e->policy == SL_POLICY_LRU && s->fresh && experts_policy_thrashes(e) && ++e->cold % HOT_EVERY != 0;
}

void experts_policy_keep(sl_experts *e, experts_slot *s) {
    experts_class *c = &e->cls[s->slab->cls];
    bool cold = goes_cold(e, s);
    count_use(e, s);
    s->fresh = s->asked = false;
    s->used = cold ? 0 : e->clock;
    int32_t rank = rank_in(e, s);
    c->ranks |= UINT64_C(1) << rank;
    if (cold)
        experts_list_push_last(&c->line[rank], &s->link);
    else
        experts_list_push_first(&c->line[rank], &s->link);
}

void experts_policy_take(sl_experts *e, experts_slot *s) {
    experts_list_remove(&e->cls[s->slab->cls].line[rank_in(e, s)], &s->link);
}

experts_slot *experts_policy_victim(sl_experts *e, int32_t cls) {
    experts_class *c = &e->cls[cls];
    while (c->ranks) {
        experts_link *last = c->line[__builtin_ctzll(c->ranks)].last;
        if (last)
            return (experts_slot *)last;
        c->ranks &= c->ranks - 1;
    }
    return NULL;
}

static void halve_lines(experts_class *c) {
    c->ranks = 0;
    for (int32_t r = 0; r < EXPERTS_RANKS; r++) {
        experts_list line = c->line[r], *to = &c->line[rank_halved(r)];
        c->line[r] = (experts_list){0};
        experts_list_join(to, &line); /* those of the higher rank go later */
        c->ranks |= to->first ? UINT64_C(1) << rank_halved(r) : 0;
    }
}

void experts_policy_pass(sl_experts *e) {
    if (e->policy != SL_POLICY_LFU || ++e->passes < HALF_PASSES)
        return;
    e->passes = 0;
    for (uint64_t i = 0; i < e->experts; i++)
        e->uses[i] /= 2;
    for (int32_t i = 0; i < e->classes; i++)
        halve_lines(&e->cls[i]);
}

uint64_t experts_policy_age(const sl_experts *e, const experts_slot *victim) {
    if (victim->used)
        return victim->used;
    /* At the cold end the victim's own age says nothing. What was not used in whole passes over the model is stale; a
     * pass moves the clock by its demand. */
    uint64_t stale = STALE_PASSES * (uint64_t)e->demand;
    return e->clock > stale ? e->clock - stale : 0;
}

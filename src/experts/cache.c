/* The pool of slots: slabs taken from the budget, cut into slots of one class, claimed and evicted in O(1).
 *
 * A class without a free slot first grows by a slab, then evicts its own oldest expert, unless a whole slab of another
 * class was not used for even longer: then it takes that slab. So slabs follow demand when layers differ in size. */
#include "experts/store.h"

#include <stdlib.h>

/* A slot's number: its slab's and its place there. */
enum { PLACE_BITS = 14, MAX_SLABS = 1 << (31 - PLACE_BITS) };

_Static_assert((64 << 20) / EXPERTS_SLOT_ALIGN <= 1 << PLACE_BITS, "slots of the largest slab");

int32_t experts_slot_number(const experts_slot *s) {
    return (s->slab->number << PLACE_BITS) | (int32_t)(s - s->slab->slot);
}

experts_slot *experts_slot_numbered(const sl_experts *e, int32_t number) {
    int32_t slab = number >> PLACE_BITS, place = number & ((1 << PLACE_BITS) - 1);
    if (slab < 0 || (size_t)slab >= e->slab_capacity || !e->slab[slab] || place >= e->slab[slab]->slots)
        return NULL;
    return &e->slab[slab]->slot[place];
}

/* ---- pins ------------------------------------------------------------------------------------------------------- */

static void pin(sl_experts *e, experts_slab *b) {
    if (b->pinned++ == 0)
        experts_list_remove(&e->recent_slabs, &b->link);
}

static void unpin(sl_experts *e, experts_slab *b) {
    if (--b->pinned == 0) {
        b->used = e->clock;
        experts_list_push_first(&e->recent_slabs, &b->link);
    }
}

void experts_cache_pin(sl_experts *e, experts_slot *s) {
    experts_policy_take(e, s);
    pin(e, s->slab);
}

void experts_cache_release(sl_experts *e, experts_slot *s) {
    s->item = -1;
    e->clock++;
    experts_policy_keep(e, s);
    unpin(e, s->slab);
}

void experts_cache_free(sl_experts *e, experts_slot *s) {
    s->item = -1;
    s->state = EXPERTS_FREE;
    experts_list_push_first(&e->cls[s->slab->cls].free, &s->link);
    unpin(e, s->slab);
}

static void forget(sl_experts *e, experts_slot *s) {
    e->layer[s->layer].slot[s->expert] = NULL;
    e->layer[s->layer].moves++;
    experts_sub(&e->count.slots_used, 1);
    experts_add(&e->count.evictions, 1);
}

void experts_cache_evict(sl_experts *e, experts_slot *s) {
    experts_cache_pin(e, s);
    forget(e, s);
    s->state = EXPERTS_FREE;
}

/* ---- slabs ------------------------------------------------------------------------------------------------------ */

/* The first free place in the array of slabs, which grows as needed; -1: no memory. */
static int32_t slab_place(sl_experts *e) {
    size_t i = 0, old = e->slab_capacity;
    while (i < old && e->slab[i])
        i++;
    if (i >= MAX_SLABS)
        return -1;
    if (i == old) {
        void *array = e->slab;
        if (!sl_grow(&array, &e->slab_capacity, old + 1, sizeof *e->slab))
            return -1;
        e->slab = array;
        for (size_t k = old; k < e->slab_capacity; k++)
            e->slab[k] = NULL;
    }
    return (int32_t)i;
}

/* One more slab of the budget, spare. */
static experts_slab *add_slab(sl_experts *e, sl_error *err) {
    int32_t place = slab_place(e);
    experts_slab *b = calloc(1, sizeof *b);
    if (place < 0 || !b) {
        free(b);
        return sl_fail_null(err, SL_ERR_MEMORY, "expert slots: out of memory");
    }
    b->base = sl_mem_slab(e->mem, SL_USE_SLOTS, err);
    if (!b->base) {
        free(b);
        return NULL;
    }
    b->number = place;
    b->cls = -1;
    e->slab[place] = b;
    e->slabs++;
    experts_add(&e->count.slabs, 1);
    if (e->reader->add_memory)
        e->reader->add_memory(e->reader, b->base, e->slab_bytes);
    experts_list_push_last(&e->spare_slabs, &b->link);
    return b;
}

/* Cuts a spare slab into slots of a class. */
static bool carve(sl_experts *e, experts_slab *b, int32_t cls) {
    experts_class *c = &e->cls[cls];
    int32_t n = c->per_slab;
    if (e->max_slots && n > e->max_slots - e->slots)
        n = e->max_slots - e->slots;
    b->slot = n > 0 ? calloc((size_t)n, sizeof *b->slot) : NULL;
    if (!b->slot)
        return false;
    experts_list_remove(&e->spare_slabs, &b->link);
    b->cls = cls;
    e->slab_moves++;
    b->slots = n;
    b->used = 0;
    for (int32_t i = 0; i < n; i++) {
        b->slot[i].slab = b;
        b->slot[i].base = b->base + (uint64_t)i * c->slot_bytes;
        b->slot[i].item = -1;
        experts_list_push_last(&c->free, &b->slot[i].link);
    }
    experts_list_push_last(&e->recent_slabs, &b->link);
    e->slots += n;
    c->slots += (uint64_t)n;
    experts_add(&e->count.slots, (uint64_t)n);
    return true;
}

/* Empties a slab without pinned slots and makes it spare. */
static void uncarve(sl_experts *e, experts_slab *b) {
    experts_class *c = &e->cls[b->cls];
    for (int32_t i = 0; i < b->slots; i++) {
        experts_slot *s = &b->slot[i];
        if (s->state == EXPERTS_CACHED) {
            experts_policy_take(e, s);
            forget(e, s);
        } else {
            experts_list_remove(&c->free, &s->link);
        }
    }
    experts_list_remove(&e->recent_slabs, &b->link);
    experts_list_push_last(&e->spare_slabs, &b->link);
    e->slots -= b->slots;
    c->slots -= (uint64_t)b->slots;
    experts_sub(&e->count.slots, (uint64_t)b->slots);
    free(b->slot);
    b->slot = NULL;
    b->slots = 0;
    b->cls = -1;
    e->slab_moves++;
}

static void drop_spare(sl_experts *e, experts_slab *b) {
    experts_list_remove(&e->spare_slabs, &b->link);
    if (e->reader && e->reader->remove_memory)
        e->reader->remove_memory(e->reader, b->base);
    sl_mem_slab_free(e->mem, b->base);
    e->slab[b->number] = NULL;
    e->slabs--;
    experts_sub(&e->count.slabs, 1);
    free(b);
}

bool experts_cache_reserve(sl_experts *e, sl_error *err) {
    while (e->slabs < e->least_slabs) {
        if (!add_slab(e, err))
            return sl_fail_prefix(err, "expert slots: the least are %d slabs of %llu bytes", e->least_slabs,
                                  (unsigned long long)e->slab_bytes);
    }
    return true;
}

void experts_cache_close(sl_experts *e) {
    for (size_t i = 0; i < e->slab_capacity; i++) {
        if (e->slab[i]) {
            sl_mem_slab_free(e->mem, e->slab[i]->base);
            free(e->slab[i]->slot);
            free(e->slab[i]);
        }
    }
    free(e->slab);
}

/* ---- claiming --------------------------------------------------------------------------------------------------- */

static experts_slot *take_free(sl_experts *e, int32_t cls) {
    experts_slot *s = (experts_slot *)experts_list_pop_first(&e->cls[cls].free);
    if (s)
        pin(e, s->slab);
    return s;
}

bool experts_cache_grow(sl_experts *e, int32_t cls) {
    experts_slab *b = NULL;
    if (!e->max_slots || e->slots < e->max_slots) {
        b = (experts_slab *)e->spare_slabs.first;
        if (!b && e->slabs < e->max_slabs)
            b = add_slab(e, NULL);
    }
    e->full = !b || !carve(e, b, cls);
    return !e->full;
}

/* The class that lacks most of its slots; -1: every expert can have one. */
static int32_t class_in_want(const sl_experts *e) {
    int32_t most = -1;
    for (int32_t i = 0; i < e->classes; i++) {
        const experts_class *c = &e->cls[i], *m = most >= 0 ? &e->cls[most] : NULL;
        if (c->slots < c->experts && (!m || c->slots * m->experts < m->slots * c->experts))
            most = i;
    }
    return most;
}

bool experts_cache_settle(sl_experts *e) {
    int32_t cls = class_in_want(e);
    while (!e->full && cls >= 0 && experts_cache_grow(e, cls))
        cls = class_in_want(e);
    return e->full || cls < 0;
}

/* The slab of another class that was not used since before the class's own victim was; NULL: there is none. */
static experts_slab *slab_to_steal(const sl_experts *e, int32_t cls, const experts_slot *victim) {
    experts_slab *oldest = (experts_slab *)e->recent_slabs.last;
    if (!oldest || oldest->cls == cls)
        return NULL;
    return !victim || oldest->used < experts_policy_age(e, victim) ? oldest : NULL;
}

static experts_slot *take_occupied(sl_experts *e, int32_t cls) {
    experts_slot *victim = experts_policy_victim(e, cls);
    experts_slab *stolen = slab_to_steal(e, cls, victim);
    if (stolen) {
        uncarve(e, stolen);
        if (carve(e, stolen, cls))
            return take_free(e, cls);
    }
    if (victim)
        experts_cache_evict(e, victim);
    return victim;
}

experts_slot *experts_cache_claim(sl_experts *e, int32_t cls, experts_effort effort) {
    experts_slot *s = take_free(e, cls);
    if (!s && effort >= EXPERTS_TAKE_GROWN && experts_cache_grow(e, cls))
        s = take_free(e, cls);
    if (!s && effort == EXPERTS_TAKE_ANY)
        s = take_occupied(e, cls);
    return s;
}

/* ---- giving back ------------------------------------------------------------------------------------------------ */

/* A spare slab, made by emptying the oldest one where need be; reads in flight are waited for, timed-out ones not. */
static experts_slab *slab_to_give(sl_experts *e) {
    e->full = false;
    for (;;) {
        experts_slab *b = (experts_slab *)e->spare_slabs.first;
        if (b)
            return b;
        b = (experts_slab *)e->recent_slabs.last;
        if (b)
            uncarve(e, b);
        else if (e->awaited > 0)
            experts_fetch_wait(e);
        else
            return NULL;
    }
}

int sl_experts_shrink(sl_experts *e, int slabs) {
    int given = 0;
    experts_fetch_poll(e);
    while (given < slabs && e->slabs > e->least_slabs) {
        experts_slab *b = slab_to_give(e);
        if (!b)
            break;
        drop_spare(e, b);
        given++;
    }
    return given;
}

int sl_experts_cap(sl_experts *e, uint64_t bytes) {
    uint64_t slabs = bytes / e->slab_bytes;
    e->max_slabs = slabs < (uint64_t)e->cap_slabs ? (int32_t)slabs : e->cap_slabs;
    if (e->max_slabs < e->least_slabs)
        e->max_slabs = e->least_slabs;
    e->full = false;
    return e->slabs > e->max_slabs ? sl_experts_shrink(e, e->slabs - e->max_slabs) : 0;
}

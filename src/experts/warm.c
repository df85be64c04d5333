/* Starting warm: the experts that earlier runs asked for most are read before the first step.
 *
 * The hottest are chosen, as many as there are slots, and read in the order in which they lie in the files, a few at a
 * time. Then they are put in line by their heat, so that the least hot of them leave first. A read that fails here is
 * no error: whoever asks for the expert reads it again. */
#include "experts/store.h"

#include <stdlib.h>

enum { BATCH = 16 };

typedef struct warm_expert {
    uint32_t uses;
    int32_t layer, expert, file;
    uint64_t offset;
} warm_expert;

static int hotter_first(const void *a, const void *b) {
    const warm_expert *x = a, *y = b;
    if (x->uses != y->uses)
        return x->uses < y->uses ? 1 : -1;
    return x->layer != y->layer ? (x->layer > y->layer) - (x->layer < y->layer)
                                : (x->expert > y->expert) - (x->expert < y->expert);
}

static int as_in_files(const void *a, const void *b) {
    const warm_expert *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* All that were used, hottest first. */
static size_t list_used(const sl_experts *e, const uint32_t *uses, warm_expert *out) {
    size_t n = 0;
    for (int32_t l = 0; l < e->layers; l++) {
        for (int32_t x = 0; x < e->layer[l].experts; x++, uses++) {
            const sl_extent *ext = &e->layer[l].extent[(size_t)x * SL_EXPERT_PARTS];
            int32_t p = 0;
            while (p < SL_EXPERT_PARTS - 1 && !ext[p].bytes)
                p++;
            if (*uses)
                out[n++] = (warm_expert){*uses, l, x, ext[p].file, ext[p].offset};
        }
    }
    qsort(out, n, sizeof *out, hotter_first);
    return n;
}

/* The first that have slots, which are taken slab by slab as they are found to be needed. */
static size_t keep_fitting(sl_experts *e, warm_expert *list, size_t n) {
    size_t kept = 0;
    uint64_t *taken = calloc((size_t)e->classes, sizeof *taken);
    for (size_t i = 0; taken && i < n; i++) {
        int32_t cls = e->layer[list[i].layer].cls;
        while (taken[cls] == e->cls[cls].slots && experts_cache_grow(e, cls))
            ;
        if (taken[cls] == e->cls[cls].slots)
            continue;
        taken[cls]++;
        list[kept++] = list[i];
    }
    free(taken);
    return kept;
}

static bool read_one(sl_experts *e, const warm_expert *w) {
    experts_layer *l = &e->layer[w->layer];
    experts_layout layout;
    if (l->slot[w->expert])
        return true;
    if (!experts_layout_make(&e->files, &l->extent[(size_t)w->expert * SL_EXPERT_PARTS], &layout, NULL) ||
        !experts_fetch_reserve(e))
        return false;
    experts_slot *s = experts_cache_claim(e, l->cls, EXPERTS_TAKE_FREE);
    if (s)
        experts_fetch_add(e, s, w->layer, w->expert, &layout);
    return s != NULL;
}

static void read_all(sl_experts *e, const warm_expert *list, size_t n, sl_warm_progress progress, void *user) {
    for (size_t i = 0; i < n; i++) {
        bool go_on = read_one(e, &list[i]);
        if ((i + 1) % BATCH == 0 || i + 1 == n || !go_on) {
            experts_fetch_submit(e);
            while (e->awaited > (go_on && i + 1 < n ? BATCH : 0))
                experts_fetch_wait(e);
            if (progress)
                progress(user, i + 1, n);
        }
        if (!go_on)
            return;
    }
}

/* The coldest first, so that it is the next to go. */
static size_t put_in_line(sl_experts *e, const warm_expert *list, size_t n) {
    size_t there = 0;
    for (size_t i = n; i-- > 0;) {
        experts_slot *s = e->layer[list[i].layer].slot[list[i].expert];
        if (!s || s->state != EXPERTS_CACHED)
            continue;
        there++;
        experts_cache_pin(e, s);
        s->fresh = false;
        experts_cache_release(e, s);
    }
    return there;
}

/* What was hot before is hot in the counts of this run too. */
static void seed_counts(sl_experts *e, const uint32_t *uses) {
    enum { SEED = 255 };
    uint32_t most = 1;
    for (uint64_t i = 0; i < e->experts; i++)
        most = uses[i] > most ? uses[i] : most;
    for (uint64_t i = 0; e->uses && i < e->experts; i++)
        e->uses[i] = (uint16_t)((uint64_t)uses[i] * SEED / most);
}

int64_t sl_experts_warm(sl_experts *e, const uint32_t *uses, sl_warm_progress progress, void *user) {
    warm_expert *hot = calloc(e->experts, sizeof *hot), *ordered = calloc(e->experts, sizeof *ordered);
    size_t n = 0;
    if (hot && ordered && !e->it.running && atomic_load(&e->count.slots_used) == 0) {
        seed_counts(e, uses);
        n = keep_fitting(e, hot, list_used(e, uses, hot));
        for (size_t i = 0; i < n; i++)
            ordered[i] = hot[i];
        qsort(ordered, n, sizeof *ordered, as_in_files);
        read_all(e, ordered, n, progress, user);
        n = put_in_line(e, hot, n);
    }
    free(hot);
    free(ordered);
    return (int64_t)n;
}

uint64_t sl_experts_heat(const sl_experts *e, const uint32_t **uses) {
    *uses = e->heat;
    return e->experts;
}

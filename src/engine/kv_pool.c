/* KV blocks: per slab a stack of free blocks, per block a count of references. The lowest slab with a free block
 * serves first, so that the later ones run empty and can go back to the expert cache. */
#include "engine/kv_pool.h"

#include "engine/units.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { NO_BLOCK = -1 };

typedef struct kv_slab {
    uint8_t *base; /* NULL: given back, its numbers wait for a new slab */
    int32_t free_blocks;
    int32_t first_free; /* block number; linked through block.next */
} kv_slab;

typedef struct kv_block {
    int32_t refs;
    int32_t next; /* free ones: the next free block of the slab */
} kv_block;

struct engine_kv {
    engine_kv_options o;
    int32_t per_slab;
    pthread_mutex_t mutex;
    kv_slab *slabs;
    kv_block *blocks; /* [slab_count * per_slab] */
    size_t slab_capacity, block_capacity;
    int32_t slab_count;
    int32_t live_slabs; /* with a base */
    int32_t free_total, used_total;
};

engine_kv *engine_kv_new(const engine_kv_options *o, sl_error *err) {
    engine_kv *kv = calloc(1, sizeof *kv);
    if (!kv)
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for the KV pool");
    kv->o = *o;
    kv->per_slab = o->layout.blocks_per_slab;
    pthread_mutex_init(&kv->mutex, NULL);
    if (!engine_kv_grow(kv, 1, err)) {
        engine_kv_free(kv);
        return NULL;
    }
    return kv;
}

void engine_kv_free(engine_kv *kv) {
    if (!kv)
        return;
    for (int32_t i = 0; i < kv->slab_count; i++)
        sl_mem_slab_free(kv->o.mem, kv->slabs[i].base);
    pthread_mutex_destroy(&kv->mutex);
    free(kv->slabs);
    free(kv->blocks);
    free(kv);
}

/* With the mutex held and a free block in slab s. */
static int32_t pop_block(engine_kv *kv, int32_t s) {
    int32_t b = kv->slabs[s].first_free;
    kv->slabs[s].first_free = kv->blocks[b].next;
    kv->slabs[s].free_blocks--;
    kv->free_total--;
    kv->used_total++;
    kv->blocks[b].refs = 1;
    return b;
}

static void push_block(engine_kv *kv, int32_t b) {
    kv_slab *s = &kv->slabs[b / kv->per_slab];
    kv->blocks[b] = (kv_block){.refs = 0, .next = s->first_free};
    s->first_free = b;
    s->free_blocks++;
    kv->free_total++;
}

bool engine_kv_take(engine_kv *kv, int32_t *blocks, int32_t n) {
    pthread_mutex_lock(&kv->mutex);
    bool ok = kv->free_total >= n;
    for (int32_t s = 0, got = 0; ok && got < n; s++)
        while (got < n && kv->slabs[s].free_blocks > 0)
            blocks[got++] = pop_block(kv, s);
    pthread_mutex_unlock(&kv->mutex);
    return ok;
}

void engine_kv_ref(engine_kv *kv, const int32_t *blocks, int32_t n) {
    pthread_mutex_lock(&kv->mutex);
    for (int32_t i = 0; i < n; i++)
        kv->blocks[blocks[i]].refs++;
    pthread_mutex_unlock(&kv->mutex);
}

void engine_kv_unref(engine_kv *kv, const int32_t *blocks, int32_t n) {
    pthread_mutex_lock(&kv->mutex);
    for (int32_t i = 0; i < n; i++) {
        if (--kv->blocks[blocks[i]].refs == 0) {
            kv->used_total--;
            push_block(kv, blocks[i]);
        }
    }
    pthread_mutex_unlock(&kv->mutex);
}

bool engine_kv_shared(engine_kv *kv, int32_t block) {
    pthread_mutex_lock(&kv->mutex);
    bool shared = kv->blocks[block].refs > 1;
    pthread_mutex_unlock(&kv->mutex);
    return shared;
}

uint8_t *engine_kv_block(engine_kv *kv, int32_t block) {
    pthread_mutex_lock(&kv->mutex);
    uint8_t *base = kv->slabs[block / kv->per_slab].base;
    pthread_mutex_unlock(&kv->mutex);
    return base + (uint64_t)(block % kv->per_slab) * kv->o.layout.block_bytes;
}

const sl_kv_layout *engine_kv_layout(const engine_kv *kv) {
    return &kv->o.layout;
}

engine_kv_stats engine_kv_stats_get(engine_kv *kv) {
    pthread_mutex_lock(&kv->mutex);
    engine_kv_stats st = {.slabs = kv->live_slabs, .blocks_used = kv->used_total, .blocks_free = kv->free_total};
    for (int32_t i = 0; i < kv->slab_count; i++)
        st.empty_slabs += kv->slabs[i].base && kv->slabs[i].free_blocks == kv->per_slab;
    pthread_mutex_unlock(&kv->mutex);
    return st;
}

/* ---- slabs: the scheduler's thread only ------------------------------------------------------------------------- */

/* Hands the list of slabs to what runs the steps; places without a slab show the first live one. */
static bool place_slabs(engine_kv *kv, bool appended, sl_error *err) {
    if (!kv->o.place)
        return true;
    void **list = calloc((size_t)kv->slab_count + 1, sizeof *list);
    if (!list)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the list of KV slabs");
    void *any = NULL;
    for (int32_t i = 0; i < kv->slab_count && !any; i++)
        any = kv->slabs[i].base;
    for (int32_t i = 0; i < kv->slab_count; i++)
        list[i] = kv->slabs[i].base ? kv->slabs[i].base : any;
    bool ok = kv->o.place(kv->o.user, list, kv->slab_count, appended, err);
    free(list);
    return ok;
}

/* A slab from the budget, from another holder where the budget is spent. */
static void *take_slab(engine_kv *kv, int32_t missing, sl_error *err) {
    for (;;) {
        sl_error e = {0};
        void *base = sl_mem_slab(kv->o.mem, SL_USE_KV, &e);
        if (base)
            return base;
        if (e.code != SL_ERR_BUDGET) {
            if (err)
                *err = e;
            return NULL;
        }
        if (!kv->o.reclaim || kv->o.reclaim(kv->o.user, 1) < 1)
            break;
    }
    char need[32], held[32], budget[32], what[64];
    uint64_t slab = sl_mem_slab_bytes(kv->o.mem);
    if (kv->o.state)
        snprintf(what, sizeof what, "recurrent state of one more sequence");
    else
        snprintf(what, sizeof what, "KV of %lld more tokens", (long long)missing * SL_KV_PAGE_TOKENS);
    sl_fail(err, SL_ERR_BUDGET,
            "%s needs another slab of %s, %s of KV%s are held and nothing can be freed in the memory budget of %s",
            what, engine_size_text(need, sizeof need, slab),
            engine_size_text(held, sizeof held, sl_mem_used(kv->o.mem, SL_USE_KV)), kv->o.state ? " and state" : "",
            engine_size_text(budget, sizeof budget, sl_mem_budget(kv->o.mem)));
    return NULL;
}

/* The number a new slab gets: a place that was given back, else one at the end. -1: no memory for the tables. */
static int32_t free_place(engine_kv *kv) {
    for (int32_t i = 0; i < kv->slab_count; i++)
        if (!kv->slabs[i].base)
            return i;
    if ((int64_t)(kv->slab_count + 1) * kv->per_slab > INT32_MAX)
        return -1;
    void *slabs = kv->slabs, *blocks = kv->blocks;
    size_t need = (size_t)kv->slab_count + 1;
    bool ok = sl_grow(&slabs, &kv->slab_capacity, need, sizeof *kv->slabs);
    kv->slabs = slabs;
    ok = ok && sl_grow(&blocks, &kv->block_capacity, need * (size_t)kv->per_slab, sizeof *kv->blocks);
    kv->blocks = blocks;
    if (!ok)
        return -1;
    kv->slabs[kv->slab_count] = (kv_slab){.first_free = NO_BLOCK};
    return kv->slab_count;
}

/* Puts a slab's blocks on its free stack, lowest on top. */
static void open_slab(engine_kv *kv, int32_t s, void *base) {
    kv->slabs[s] = (kv_slab){.base = base, .first_free = NO_BLOCK};
    for (int32_t i = kv->per_slab; i-- > 0;)
        push_block(kv, s * kv->per_slab + i);
    kv->live_slabs++;
}

static bool add_slab(engine_kv *kv, int32_t missing, sl_error *err) {
    void *base = take_slab(kv, missing, err);
    if (!base)
        return false;
    pthread_mutex_lock(&kv->mutex);
    int32_t s = free_place(kv);
    bool appended = s == kv->slab_count;
    if (s >= 0) {
        kv->slabs[s].base = base;
        kv->slab_count += appended;
    }
    pthread_mutex_unlock(&kv->mutex);
    if (s < 0) {
        sl_mem_slab_free(kv->o.mem, base);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the table of KV blocks");
    }
    bool placed = place_slabs(kv, appended, err);
    pthread_mutex_lock(&kv->mutex);
    if (placed)
        open_slab(kv, s, base);
    else
        kv->slabs[s].base = NULL;
    pthread_mutex_unlock(&kv->mutex);
    if (!placed)
        sl_mem_slab_free(kv->o.mem, base);
    return placed;
}

bool engine_kv_grow(engine_kv *kv, int32_t n, sl_error *err) {
    for (;;) {
        int32_t missing = n - engine_kv_stats_get(kv).blocks_free;
        if (missing <= 0)
            return true;
        if (!add_slab(kv, missing, err))
            return false;
    }
}

bool engine_kv_obtain(engine_kv *kv, int32_t *blocks, int32_t n, sl_error *err) {
    while (!engine_kv_take(kv, blocks, n)) /* another thread may be faster in taking what was grown */
        if (!engine_kv_grow(kv, n, err))
            return false;
    return true;
}

/* With the mutex held: an empty slab that may go, highest first, or -1. */
static int32_t find_empty(engine_kv *kv, int32_t spare) {
    int32_t empty = 0, last = -1;
    for (int32_t i = 0; i < kv->slab_count; i++) {
        if (kv->slabs[i].base && kv->slabs[i].free_blocks == kv->per_slab) {
            empty++;
            last = i;
        }
    }
    return empty > spare && kv->live_slabs > 1 ? last : -1;
}

void engine_kv_trim(engine_kv *kv, int32_t spare) {
    for (;;) {
        pthread_mutex_lock(&kv->mutex);
        int32_t s = find_empty(kv, spare);
        void *base = s < 0 ? NULL : kv->slabs[s].base;
        if (base) {
            kv->slabs[s] = (kv_slab){.first_free = NO_BLOCK};
            kv->free_total -= kv->per_slab;
            kv->live_slabs--;
        }
        pthread_mutex_unlock(&kv->mutex);
        /* A list that could not be handed over leaves the old pointer in a place without blocks: nothing reads it. */
        if (!base)
            return;
        place_slabs(kv, false, NULL);
        sl_mem_slab_free(kv->o.mem, base);
    }
}

/* See state.h. */
#include "engine/state.h"

#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

static bool place_state(void *user, void *const *slabs, int32_t count, bool appended, sl_error *err) {
    sl_engine *e = user;
    if (!e->ops)
        return true;
    if (!appended)
        sl_ops_set_state(e->ops, &e->state_layout);
    for (int32_t i = appended ? count - 1 : 0; i < count; i++)
        if (!sl_ops_add_state_slab(e->ops, slabs[i], err))
            return false;
    return true;
}

static int reclaim_slabs(void *user, int slabs) {
    sl_engine *e = user;
    return e->experts ? sl_experts_shrink(e->experts, slabs) : 0;
}

bool engine_state_open(sl_engine *e, sl_error *err) {
    if (e->state_layout.layers == 0)
        return true;
    if (!sl_state_layout_init(&e->state_layout, sl_mem_slab_bytes(e->mem), err))
        return false;
    if (e->ops)
        sl_ops_set_state(e->ops, &e->state_layout);
    engine_kv_options o = {
        .mem = e->mem,
        .layout = {.block_bytes = e->state_layout.block_bytes, .blocks_per_slab = e->state_layout.blocks_per_slab},
        .state = true,
        .place = place_state,
        .reclaim = reclaim_slabs,
        .user = e};
    e->state = engine_kv_new(&o, err);
    return e->state != NULL;
}

uint64_t engine_state_bytes(const sl_state_layout *l) {
    return (uint64_t)l->layers * l->block_bytes;
}

int32_t engine_state_slabs(const sl_state_layout *l) {
    return l->layers ? (l->layers + l->blocks_per_slab - 1) / l->blocks_per_slab : 0;
}

uint8_t *engine_state_block(const sl_seq *s, int32_t i) {
    return engine_kv_block(s->e->state, s->state[i]);
}

/* Blocks of a fork's origin, or of a fork, are left to the other. */
static void own_blocks(sl_seq *s, int32_t *fresh) {
    const sl_state_layout *l = &s->e->state_layout;
    for (int32_t i = 0; i < l->layers && s->state_at > 0; i++)
        memcpy(engine_kv_block(s->e->state, fresh[i]), engine_state_block(s, i), (size_t)l->used_bytes);
    engine_kv_unref(s->e->state, s->state, l->layers);
    memcpy(s->state, fresh, (size_t)l->layers * sizeof *fresh);
}

static bool is_own(const sl_seq *s) {
    return s->state && !engine_kv_shared(s->e->state, s->state[0]);
}

/* ---- the mark ---------------------------------------------------------------------------------------------------- */

static void drop_mark(sl_seq *s) {
    if (s->mark)
        engine_kv_unref(s->e->state, s->mark, s->e->state_layout.layers);
    free(s->mark);
    s->mark = NULL;
    s->mark_at = 0;
}

void engine_state_mark(sl_seq *s) {
    size_t n = (size_t)s->e->state_layout.layers;
    if (!s->e->state || !s->state || s->state_at == 0 || (s->mark && s->mark_at == s->state_at))
        return;
    drop_mark(s);
    s->mark = malloc(n * sizeof *s->mark);
    if (!s->mark)
        return; /* then there is none */
    memcpy(s->mark, s->state, n * sizeof *s->mark);
    engine_kv_ref(s->e->state, s->mark, (int32_t)n);
    s->mark_at = s->state_at;
}

void engine_state_lose(sl_seq *s) {
    int32_t layers = s->e->state_layout.layers;
    s->state_at = 0;
    if (!s->mark)
        return;
    engine_kv_unref(s->e->state, s->state, layers);
    memcpy(s->state, s->mark, (size_t)layers * sizeof *s->state);
    engine_kv_ref(s->e->state, s->state, layers);
    s->state_at = s->mark_at;
}

/* ---- use --------------------------------------------------------------------------------------------------------- */

/* The mark is given up where there is no room for both. */
static bool obtain(sl_seq *s, int32_t *fresh, int32_t layers, sl_error *err) {
    sl_error e = {0};
    if (engine_kv_obtain(s->e->state, fresh, layers, &e))
        return true;
    if (err)
        *err = e;
    if (e.code == SL_ERR_BUDGET)
        drop_mark(s);
    return false;
}

bool engine_state_prepare(sl_seq *s, sl_error *err) {
    engine_kv *pool = s->e->state;
    if (!pool || is_own(s))
        return true;
    int32_t layers = s->e->state_layout.layers, *fresh = calloc((size_t)layers, sizeof *fresh);
    if (!fresh)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a table of %d blocks of state", layers);
    bool ok = obtain(s, fresh, layers, err);
    if (!ok && is_own(s)) { /* now that the mark is gone */
        free(fresh);
        return true;
    }
    if (ok && !s->state) {
        s->state = fresh;
        s->state_at = 0;
        return true;
    }
    if (ok)
        own_blocks(s, fresh);
    free(fresh);
    return ok;
}

int32_t engine_state_next(sl_seq *s, int32_t target) {
    if (!s->e->state)
        return target;
    if (s->mark && s->mark_at > target)
        drop_mark(s);
    if (s->state_at > target)
        engine_state_lose(s);
    return s->state_at;
}

bool engine_state_share(sl_seq *to, const sl_seq *from, sl_error *err) {
    if (!from->state)
        return true;
    size_t n = (size_t)from->e->state_layout.layers;
    to->state = malloc(n * sizeof *to->state);
    if (!to->state)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a table of %zu blocks of state", n);
    memcpy(to->state, from->state, n * sizeof *to->state);
    engine_kv_ref(to->e->state, to->state, (int32_t)n);
    to->state_at = from->state_at;
    return true;
}

void engine_state_free(sl_seq *s) {
    drop_mark(s);
    if (s->state)
        engine_kv_unref(s->e->state, s->state, s->e->state_layout.layers);
    free(s->state);
    s->state = NULL;
    s->state_at = 0;
}

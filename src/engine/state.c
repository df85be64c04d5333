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
static bool own_blocks(sl_seq *s, int32_t *fresh, sl_error *err) {
    const sl_state_layout *l = &s->e->state_layout;
    for (int32_t i = 0; i < l->layers && s->state_at > 0; i++)
        if (!engine_copy_block(s->e, engine_kv_block(s->e->state, fresh[i]), engine_state_block(s, i), l->used_bytes,
                               err)) {
            engine_kv_unref(s->e->state, fresh, l->layers);
            return false;
        }
    engine_kv_unref(s->e->state, s->state, l->layers);
    memcpy(s->state, fresh, (size_t)l->layers * sizeof *fresh);
    return true;
}

static bool is_own(const sl_seq *s) {
    return s->state && !engine_kv_shared(s->e->state, s->state[0]);
}

/* ---- the mark ---------------------------------------------------------------------------------------------------- */

/* Mutex held: the mark's blocks, which are the caller's now. */
static int32_t *unlink_mark(sl_seq *s) {
    int32_t *mark = s->mark;
    if (!mark)
        return NULL;
    if (s->previous_marked)
        s->previous_marked->next_marked = s->next_marked;
    else
        s->e->marked = s->next_marked;
    if (s->next_marked)
        s->next_marked->previous_marked = s->previous_marked;
    s->mark = NULL;
    s->next_marked = s->previous_marked = NULL;
    return mark;
}

static void link_mark(sl_seq *s, int32_t *mark, int32_t at) {
    s->mark = mark;
    s->mark_at = at;
    s->next_marked = s->e->marked;
    if (s->next_marked)
        s->next_marked->previous_marked = s;
    s->e->marked = s;
}

static void free_mark(sl_engine *e, int32_t *mark) {
    if (mark)
        engine_kv_unref(e->state, mark, e->state_layout.layers);
    free(mark);
}

/* Gives up a mark that is behind `target`. */
static void drop_mark(sl_seq *s, int32_t target) {
    pthread_mutex_lock(&s->e->sched.mutex);
    int32_t *mark = s->mark && s->mark_at > target ? unlink_mark(s) : NULL;
    pthread_mutex_unlock(&s->e->sched.mutex);
    free_mark(s->e, mark);
}

/* Gives up the oldest mark of all; false: there is none. */
static bool drop_oldest_mark(sl_engine *e) {
    pthread_mutex_lock(&e->sched.mutex);
    sl_seq *oldest = e->marked;
    while (oldest && oldest->next_marked)
        oldest = oldest->next_marked;
    int32_t *mark = oldest ? unlink_mark(oldest) : NULL;
    pthread_mutex_unlock(&e->sched.mutex);
    free_mark(e, mark);
    return mark != NULL;
}

int engine_state_reclaim(sl_engine *e) {
    if (!e->state)
        return 0;
    int32_t before = engine_kv_stats_get(e->state).slabs, freed = 0;
    do {
        engine_kv_trim(e->state, 0);
        freed = before - engine_kv_stats_get(e->state).slabs;
    } while (freed == 0 && drop_oldest_mark(e));
    return freed;
}

void engine_state_mark(sl_seq *s) {
    size_t n = (size_t)s->e->state_layout.layers;
    if (!s->e->state || !s->state || s->state_at == 0)
        return;
    drop_mark(s, -1);
    int32_t *mark = malloc(n * sizeof *mark);
    if (!mark)
        return; /* then there is none */
    memcpy(mark, s->state, n * sizeof *mark);
    engine_kv_ref(s->e->state, mark, (int32_t)n);
    pthread_mutex_lock(&s->e->sched.mutex);
    link_mark(s, mark, s->state_at);
    pthread_mutex_unlock(&s->e->sched.mutex);
}

void engine_state_lose(sl_seq *s) {
    int32_t layers = s->e->state_layout.layers;
    s->state_at = 0;
    if (!s->state)
        return;
    pthread_mutex_lock(&s->e->sched.mutex);
    if (s->mark) {
        engine_kv_ref(s->e->state, s->mark, layers);
        engine_kv_unref(s->e->state, s->state, layers);
        memcpy(s->state, s->mark, (size_t)layers * sizeof *s->state);
        s->state_at = s->mark_at;
    }
    pthread_mutex_unlock(&s->e->sched.mutex);
}

/* ---- use --------------------------------------------------------------------------------------------------------- */

/* Blocks for a state, at the cost of marks where memory is short. May leave s with a state of its own instead. */
static bool obtain(sl_seq *s, int32_t *fresh, int32_t layers, sl_error *err) {
    for (;;) {
        sl_error e = {0};
        if (engine_kv_obtain(s->e->state, fresh, layers, &e))
            return true;
        if (e.code != SL_ERR_BUDGET || !drop_oldest_mark(s->e) || is_own(s)) {
            if (err)
                *err = e;
            return false;
        }
    }
}

bool engine_state_prepare(sl_seq *s, sl_error *err) {
    engine_kv *pool = s->e->state;
    if (!pool || is_own(s))
        return true;
    int32_t layers = s->e->state_layout.layers, *fresh = calloc((size_t)layers, sizeof *fresh);
    if (!fresh)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a table of %d blocks of state", layers);
    bool ok = obtain(s, fresh, layers, err);
    if (!ok && is_own(s)) { /* now that its mark is gone */
        free(fresh);
        return true;
    }
    if (ok && !s->state) {
        s->state = fresh;
        s->state_at = 0;
        return true;
    }
    ok = ok && own_blocks(s, fresh, err);
    free(fresh);
    return ok;
}

int32_t engine_state_next(sl_seq *s, int32_t target) {
    if (!s->e->state)
        return target;
    drop_mark(s, target);
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
    drop_mark(s, -1);
    if (s->state)
        engine_kv_unref(s->e->state, s->state, s->e->state_layout.layers);
    free(s->state);
    s->state = NULL;
    s->state_at = 0;
}

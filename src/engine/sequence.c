/* Sequences: token history, a table of KV pages, blocks of recurrent state.
 *
 * A fork shares every page with its origin, the last partial one too: whoever first appends to that one copies it
 * (engine_seq_prepare), so a fork costs no memory until it goes its own way, and truncation needs no copy at all. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

static int32_t pages_of(int32_t tokens) {
    return (tokens + SL_KV_PAGE_TOKENS - 1) / SL_KV_PAGE_TOKENS;
}

static sl_seq *seq_alloc(sl_engine *e, sl_error *err) {
    sl_seq *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for a sequence");
    s->e = e;
    return s;
}

sl_seq *sl_seq_new(sl_engine *e, sl_error *err) {
    return engine_check_open(e, err) ? seq_alloc(e, err) : NULL;
}

/* ---- claims ----------------------------------------------------------------------------------------------------- */

bool engine_seq_claim(sl_engine *e, sl_seq *s, const void *user, bool *first, sl_error *err) {
    if (!s || s->e != e)
        return sl_fail(err, SL_ERR_ARGUMENT, "sequence: %s, expected one of this engine",
                       s ? "it belongs to another engine" : "none given");
    pthread_mutex_lock(&e->sched.mutex);
    const void *before = s->user;
    if (!before)
        s->user = user;
    pthread_mutex_unlock(&e->sched.mutex);
    if (first)
        *first = !before;
    return !before || before == user ||
           sl_fail(err, SL_ERR_ARGUMENT, "sequence: another call or a request is using it");
}

bool engine_seq_used_by(sl_seq *s, const void *user) {
    pthread_mutex_lock(&s->e->sched.mutex);
    bool yes = s->user == user;
    pthread_mutex_unlock(&s->e->sched.mutex);
    return yes;
}

void engine_seq_release(sl_seq *s) {
    pthread_mutex_lock(&s->e->sched.mutex);
    s->user = NULL;
    pthread_cond_broadcast(&s->e->sched.finished);
    pthread_mutex_unlock(&s->e->sched.mutex);
}

void sl_seq_free(sl_seq *s) {
    if (!s)
        return;
    engine_sched *sc = &s->e->sched;
    pthread_mutex_lock(&sc->mutex);
    while (s->user)
        pthread_cond_wait(&sc->finished, &sc->mutex);
    pthread_mutex_unlock(&sc->mutex);
    engine_kv_unref(s->e->kv, s->pages, s->page_count);
    engine_state_free(s);
    free(s->pages);
    free(s->tokens);
    free(s);
}

int sl_seq_length(const sl_seq *s) {
    pthread_mutex_lock(&s->e->sched.mutex);
    int n = s->length;
    pthread_mutex_unlock(&s->e->sched.mutex);
    return n;
}

const int32_t *sl_seq_tokens(const sl_seq *s) {
    return s->tokens;
}

/* ---- growing ---------------------------------------------------------------------------------------------------- */

static bool reserve_tokens(sl_seq *s, int32_t n, sl_error *err) {
    void *tokens = s->tokens;
    bool ok = sl_grow(&tokens, &s->token_capacity, (size_t)n, sizeof *s->tokens);
    s->tokens = tokens;
    return ok || sl_fail(err, SL_ERR_MEMORY, "out of memory for %d tokens", n);
}

static bool reserve_pages(sl_seq *s, int32_t n, sl_error *err) {
    void *pages = s->pages;
    bool ok = sl_grow(&pages, &s->page_capacity, (size_t)n, sizeof *s->pages);
    s->pages = pages;
    return ok || sl_fail(err, SL_ERR_MEMORY, "out of memory for a page table of %d pages", n);
}

bool engine_copy_block(sl_engine *e, uint8_t *to, uint8_t *from, uint64_t bytes, sl_error *err) {
    if (!sl_ops_pull(e->ops, from, bytes, err))
        return false;
    memcpy(to, from, (size_t)bytes);
    return sl_ops_push(e->ops, to, bytes, err);
}

/* A page shared with a fork becomes this sequence's own. */
static bool own_page(sl_seq *s, int32_t page, sl_error *err) {
    int32_t old = s->pages[page], fresh;
    if (!engine_kv_shared(s->e->kv, old))
        return true;
    if (!engine_kv_obtain(s->e->kv, &fresh, 1, err))
        return false;
    if (!engine_copy_block(s->e, engine_kv_block(s->e->kv, fresh), engine_kv_block(s->e->kv, old),
                           engine_kv_layout(s->e->kv)->block_bytes, err)) {
        engine_kv_unref(s->e->kv, &fresh, 1);
        return false;
    }
    engine_kv_unref(s->e->kv, &old, 1);
    s->pages[page] = fresh;
    return true;
}

bool engine_seq_prepare(sl_seq *s, int32_t from, int32_t to, sl_error *err) {
    int32_t need = pages_of(to);
    if (!reserve_tokens(s, to, err) || !reserve_pages(s, need, err) || !engine_state_prepare(s, err))
        return false;
    for (int32_t page = from / SL_KV_PAGE_TOKENS; page < s->page_count && page < need; page++)
        if (!own_page(s, page, err))
            return false;
    int32_t more = need - s->page_count;
    if (more <= 0)
        return true;
    if (!engine_kv_obtain(s->e->kv, s->pages + s->page_count, more, err))
        return false;
    s->page_count = need;
    return true;
}

void engine_seq_commit(sl_seq *s, const int32_t *tokens, int32_t n) {
    pthread_mutex_lock(&s->e->sched.mutex);
    memcpy(s->tokens + s->length, tokens, (size_t)n * sizeof *tokens);
    s->length += n;
    pthread_mutex_unlock(&s->e->sched.mutex);
}

void engine_seq_drop_uncommitted(sl_seq *s) {
    int32_t keep = pages_of(s->length);
    if (s->page_count <= keep)
        return;
    engine_kv_unref(s->e->kv, s->pages + keep, s->page_count - keep);
    s->page_count = keep;
}

/* ---- fork, truncate --------------------------------------------------------------------------------------------- */

static bool copy_history(sl_seq *to, const sl_seq *from, sl_error *err) {
    int32_t pages = pages_of(from->length);
    if (!reserve_tokens(to, from->length, err) || !reserve_pages(to, pages, err))
        return false;
    if (from->length)
        memcpy(to->tokens, from->tokens, (size_t)from->length * sizeof *to->tokens);
    if (pages)
        memcpy(to->pages, from->pages, (size_t)pages * sizeof *to->pages);
    if (!engine_state_share(to, from, err))
        return false;
    engine_kv_ref(to->e->kv, to->pages, pages);
    to->length = from->length;
    to->page_count = pages;
    return true;
}

sl_seq *sl_seq_fork(const sl_seq *s, sl_error *err) {
    sl_seq *origin = (sl_seq *)s;
    if (!engine_seq_claim(s->e, origin, &origin, NULL, err))
        return NULL;
    sl_seq *fork = seq_alloc(s->e, err);
    if (fork && !copy_history(fork, s, err)) {
        sl_seq_free(fork);
        fork = NULL;
    }
    engine_seq_release(origin);
    return fork;
}

bool sl_seq_truncate(sl_seq *s, int length, sl_error *err) {
    if (!engine_seq_claim(s->e, s, &s, NULL, err))
        return false;
    bool ok = length >= 0 && length <= s->length;
    if (ok) {
        pthread_mutex_lock(&s->e->sched.mutex);
        s->length = length;
        pthread_mutex_unlock(&s->e->sched.mutex);
        engine_seq_drop_uncommitted(s);
        engine_state_next(s, length);
    } else {
        sl_fail(err, SL_ERR_ARGUMENT, "truncation to %d tokens, expected 0 to %d", length, s->length);
    }
    engine_seq_release(s);
    return ok;
}

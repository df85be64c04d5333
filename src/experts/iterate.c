/* The step's iterator over one layer's experts: begin, next, done, end.
 *
 * begin claims every expert that is cached already, then gives slots to the missing ones, ascending, and submits their
 * reads in one batch. Where slots run out the rest waits; done gives slots back and the next reads go out at once.
 * READY order hands out what is ready, first come first served: hits, then reads as they arrive. ASCENDING order hands
 * out by id, and reads ahead in that order. When all are hits nothing here makes a system call.
 *
 * ASCENDING keeps hits claimed for their turn. If they hold so many slots that fewer than two are left for misses, the
 * hits with the highest ids are given up: with two slots one expert is read while another is computed. In a sweep
 * larger than the cache the read-ahead is limited: each slot more in the window is an expert less that stays. */
#include "experts/store.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_WINDOW = 2, WINDOW_SHARE = 4 };
#define WINDOW_BYTES (64u << 20) /* in flight or waiting for compute; more than any disk needs to be busy */

static experts_layer *layer_of(sl_experts *e) {
    return &e->layer[e->it.layer];
}

/* ---- items ------------------------------------------------------------------------------------------------------ */

static void queue_item(experts_iteration *it, int32_t i) {
    if (it->order == SL_ORDER_READY)
        it->queue[it->queue_tail++] = i;
}

static void await_slot(experts_iteration *it, int32_t i) {
    it->item[i].state = EXPERTS_ITEM_WAITING;
    it->item[i].slot = NULL;
    it->waiting++;
    if (i < it->issue)
        it->issue = i;
}

static void fail_item(sl_experts *e, int32_t i, const sl_error *why) {
    experts_item *item = &e->it.item[i];
    item->state = EXPERTS_ITEM_FAILED;
    item->slot = NULL;
    item->error = malloc(sizeof *item->error);
    if (item->error) {
        *item->error = *why;
        sl_fail_prefix(item->error, "layer %d expert %d", layer_of(e)->number, item->id);
    }
    queue_item(&e->it, i);
}

void experts_item_ready(sl_experts *e, experts_slot *s) {
    experts_iteration *it = &e->it;
    it->item[s->item].state = EXPERTS_ITEM_READY;
    if (it->kept <= s->item)
        it->kept = s->item + 1;
    queue_item(it, s->item);
}

void experts_item_failed(sl_experts *e, experts_slot *s, const sl_error *why) {
    experts_iteration *it = &e->it;
    int32_t i = s->item;
    s->item = -1;
    if (!it->item[i].hit)
        it->missing--;
    /* A read that another iteration or a guess began may have failed for reasons of its own: read again. */
    if (s->adopted) {
        experts_sub(&e->count.hits, 1);
        experts_sub(&layer_of(e)->count.hits, 1);
        await_slot(it, i);
        return;
    }
    fail_item(e, i, why);
}

/* The item's expert is cached, or on its way because of an earlier iteration or a guess. */
static void claim_found(sl_experts *e, int32_t i, experts_slot *s) {
    experts_item *item = &e->it.item[i];
    experts_add(&e->count.hits, 1);
    experts_add(&layer_of(e)->count.hits, 1);
    experts_add(&e->count.prefetch_used, s->prefetched);
    experts_add(&layer_of(e)->count.prefetch_used, s->prefetched);
    if (s->prefetched)
        experts_trace_used(&e->trace, s);
    s->prefetched = false;
    s->asked = true;
    s->item = i;
    item->slot = s;
    item->hit = true;
    if (s->state == EXPERTS_CACHED) {
        experts_cache_pin(e, s);
        experts_item_ready(e, s);
    } else {
        s->adopted = true;
        item->state = EXPERTS_ITEM_READING;
    }
}

/* ---- slots for misses ------------------------------------------------------------------------------------------- */

static int32_t sweep_window(const sl_experts *e, int32_t cls) {
    int64_t want = (int64_t)(WINDOW_BYTES / e->cls[cls].slot_bytes);
    return (int32_t)sl_max_i64(LEAST_WINDOW, sl_min_i64(want, e->slots / WINDOW_SHARE));
}

/* Everything waits for this item: it must get a slot if any can be had. */
static bool is_next(const experts_iteration *it, int32_t i) {
    return it->order == SL_ORDER_READY || i == it->cursor;
}

/* Whether a further miss may push out an expert that is cached. */
static bool may_evict(const sl_experts *e, int32_t i, int32_t cls) {
    return is_next(&e->it, i) || !experts_policy_thrashes(e) || e->it.missing < sweep_window(e, cls);
}

/* Whether a miss may take the slot of an expert that is ready ahead of its turn. */
static bool may_give_up(const experts_iteration *it, int32_t i) {
    return it->order == SL_ORDER_ASCENDING && (it->missing < LEAST_WINDOW || is_next(it, i));
}

/* Releases the highest item after i that is ready ahead of its turn; false: there is none. */
static bool give_up_after(sl_experts *e, int32_t i) {
    experts_iteration *it = &e->it;
    while (it->kept > i + 1) {
        experts_item *item = &it->item[--it->kept];
        if (item->state != EXPERTS_ITEM_READY)
            continue;
        experts_cache_release(e, item->slot);
        if (item->hit) {
            experts_sub(&e->count.hits, 1);
            experts_sub(&layer_of(e)->count.hits, 1);
        } else {
            it->missing--;
        }
        await_slot(it, it->kept);
        return true;
    }
    return false;
}

static experts_slot *claim_for_miss(sl_experts *e, int32_t i) {
    int32_t cls = layer_of(e)->cls;
    experts_slot *s = experts_cache_claim(e, cls, EXPERTS_TAKE_GROWN);
    if (s || !may_evict(e, i, cls))
        return s;
    s = experts_cache_claim(e, cls, EXPERTS_TAKE_ANY);
    if (!s && may_give_up(&e->it, i) && give_up_after(e, i))
        s = experts_cache_claim(e, cls, EXPERTS_TAKE_ANY);
    return s;
}

static bool read_item(sl_experts *e, int32_t i) {
    experts_item *item = &e->it.item[i];
    experts_layout layout;
    sl_error why;
    if (!experts_layout_make(&e->files, &layer_of(e)->extent[(size_t)item->id * SL_EXPERT_PARTS], &layout, &why)) {
        fail_item(e, i, &why);
        return true;
    }
    experts_slot *s = experts_fetch_reserve(e) ? claim_for_miss(e, i) : NULL;
    if (!s)
        return false;
    experts_add(&e->count.misses, 1);
    experts_add(&layer_of(e)->count.misses, 1);
    experts_fetch_add(e, s, e->it.layer, item->id, &layout);
    s->asked = true;
    s->item = i;
    item->slot = s;
    item->hit = false;
    item->state = EXPERTS_ITEM_READING;
    e->it.missing++;
    return true;
}

/* Gives slots to items that wait for one, as far as there are slots, and submits the reads. */
static void issue(sl_experts *e) {
    experts_iteration *it = &e->it;
    for (; it->waiting > 0 && it->issue < it->n; it->issue++) {
        int32_t i = it->issue;
        if (it->item[i].state != EXPERTS_ITEM_WAITING)
            continue;
        experts_slot *s = layer_of(e)->slot[it->item[i].id];
        if (s)
            claim_found(e, i, s);
        else if (!read_item(e, i))
            break;
        it->waiting--;
    }
    experts_fetch_submit(e);
}

/* ---- begin ------------------------------------------------------------------------------------------------------ */

static bool check_begin(const sl_experts *e, int32_t layer, const int32_t *ids, int32_t n, sl_error *err) {
    if (e->it.running)
        return sl_fail(err, SL_ERR_ARGUMENT, "experts: layer %d begun before layer %d was ended", layer, e->it.layer);
    if (layer < 0 || layer >= e->layers || n < 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "experts: %d experts of layer %d, the model has %d layers", n, layer,
                       e->layers);
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= e->layer[layer].experts || (i > 0 && ids[i] <= ids[i - 1]))
            return sl_fail(err, SL_ERR_ARGUMENT, "experts: layer %d: id %d at %d, ascending below %d expected", layer,
                           ids[i], i, e->layer[layer].experts);
    }
    return true;
}

static bool start_iteration(experts_iteration *it, int32_t layer, const int32_t *ids, int32_t n, sl_expert_order order,
                            sl_error *err) {
    void *items = it->item, *queue = it->queue;
    bool ok = sl_grow(&items, &it->item_capacity, (size_t)n, sizeof *it->item);
    it->item = items;
    ok = ok && sl_grow(&queue, &it->queue_capacity, (size_t)n, sizeof *it->queue);
    it->queue = queue;
    if (!ok)
        return sl_fail(err, SL_ERR_MEMORY, "experts: out of memory for %d of layer %d", n, layer);
    it->running = true;
    it->layer = layer;
    it->order = order;
    it->n = it->waiting = n;
    it->queue_head = it->queue_tail = it->cursor = it->given = it->issue = it->missing = it->kept = 0;
    it->prefetched = false;
    for (int32_t i = 0; i < n; i++)
        it->item[i] = (experts_item){.id = ids[i], .state = EXPERTS_ITEM_WAITING};
    return true;
}

/* All hits are claimed before the first miss looks for a slot: none is evicted by it. */
static void claim_hits(sl_experts *e) {
    experts_iteration *it = &e->it;
    for (int32_t i = 0; i < it->n; i++) {
        experts_slot *s = layer_of(e)->slot[it->item[i].id];
        if (s) {
            claim_found(e, i, s);
            it->waiting--;
        }
    }
}

static bool begin(void *self, int32_t layer, const int32_t *ids, int32_t n, sl_expert_order order, sl_error *err) {
    sl_experts *e = self;
    if (!check_begin(e, layer, ids, n, err))
        return false;
    experts_fetch_poll(e);
    if (!start_iteration(&e->it, layer, ids, n, order, err))
        return false;
    experts_layer *l = layer_of(e);
    e->demand += n - l->demand;
    if (layer == 0)
        experts_policy_pass(e);
    if (layer == 0 && order == SL_ORDER_READY)
        experts_prefetch_pass(e);
    l->demand = n;
    claim_hits(e);
    issue(e);
    experts_prefetch_run(e);
    experts_warn_small(e);
    return true;
}

/* ---- next ------------------------------------------------------------------------------------------------------- */

static void set_view(const experts_item *item, sl_expert_view *out) {
    const experts_slot *s = item->slot;
    out->id = item->id;
    out->slot = experts_slot_number(s);
    for (int p = 0; p < SL_EXPERT_PARTS; p++)
        out->part[p] = s->part[p] == EXPERTS_NO_PART ? NULL : s->base + s->part[p];
}

/* The item next in order, or -1: none is ready or failed. */
static int32_t next_item(const experts_iteration *it) {
    if (it->order == SL_ORDER_READY)
        return it->queue_head < it->queue_tail ? it->queue[it->queue_head] : -1;
    if (it->cursor == it->n)
        return -1;
    experts_item_state state = it->item[it->cursor].state;
    return state == EXPERTS_ITEM_READY || state == EXPERTS_ITEM_FAILED ? it->cursor : -1;
}

static void step_past(experts_iteration *it) {
    it->given++;
    if (it->order == SL_ORDER_READY)
        it->queue_head++;
    else
        it->cursor++;
}

static int report_failure(experts_iteration *it, experts_item *item, sl_expert_view *out, sl_error *err) {
    memset(out, 0, sizeof *out);
    out->id = item->id;
    out->slot = -1;
    if (err && item->error)
        *err = *item->error;
    else
        sl_fail(err, SL_ERR_MEMORY, "layer %d expert %d: failed, and out of memory to say why", it->layer, item->id);
    free(item->error);
    item->error = NULL;
    item->state = EXPERTS_ITEM_OVER;
    return -1;
}

/* As many as are ready in order, up to a failed one; -1: the first is one. */
static int hand_out(experts_iteration *it, sl_expert_view *out, int max, sl_error *err) {
    int n = 0;
    for (int32_t i; n < max && (i = next_item(it)) >= 0; n++) {
        experts_item *item = &it->item[i];
        bool failed = item->state == EXPERTS_ITEM_FAILED;
        if (failed && n > 0)
            break;
        step_past(it);
        if (failed)
            return report_failure(it, item, out, err);
        item->state = EXPERTS_ITEM_OUT;
        set_view(item, &out[n]);
    }
    return n;
}

/* Nothing that could free a slot is under way: the next expert cannot be had. */
static void fail_stuck(sl_experts *e) {
    experts_iteration *it = &e->it;
    int32_t i = it->issue, held = 0;
    if (i >= it->n || it->item[i].state != EXPERTS_ITEM_WAITING)
        return;
    for (int32_t k = 0; k < it->n; k++)
        held += it->item[k].state == EXPERTS_ITEM_OUT;
    sl_error why;
    sl_fail(&why, SL_ERR_MEMORY, "no slot is free: of %d, %d are in use by this step and %d wait for reads timed out",
            e->slots, held, e->timed_out);
    fail_item(e, i, &why);
    it->waiting--;
}

/* Nobody waits for the step any more. Reads go on as after an early end. */
static void stop_waiting(sl_experts *e) {
    experts_iteration *it = &e->it;
    sl_error why;
    sl_fail(&why, SL_ERR_CANCELLED, "cancelled while it was read");
    for (int32_t i = 0; i < it->n; i++) {
        experts_item *item = &it->item[i];
        if (item->state == EXPERTS_ITEM_READING) {
            item->slot->item = -1;
            it->missing -= !item->hit;
            fail_item(e, i, &why);
        } else if (item->state == EXPERTS_ITEM_WAITING) {
            it->waiting--;
            fail_item(e, i, &why);
        }
    }
}

static int next(void *self, sl_expert_view *out, int max, sl_error *err) {
    sl_experts *e = self;
    experts_iteration *it = &e->it;
    if (!it->running || max <= 0)
        return 0;
    for (;;) {
        experts_fetch_poll(e);
        int n = hand_out(it, out, max, err);
        if (n == 0 && it->waiting > 0) {
            issue(e);
            n = hand_out(it, out, max, err);
        }
        if (n != 0 || it->given == it->n) {
            experts_prefetch_run(e);
            return n;
        }
        if (e->awaited == 0)
            fail_stuck(e);
        else if (!experts_fetch_wait(e))
            stop_waiting(e);
    }
}

/* ---- done, end -------------------------------------------------------------------------------------------------- */

static void release_item(sl_experts *e, experts_item *item) {
    if (!item->hit)
        e->it.missing--;
    experts_cache_release(e, item->slot);
    item->slot = NULL;
    item->state = EXPERTS_ITEM_OVER;
}

static void done(void *self, const sl_expert_view *views, int n) {
    sl_experts *e = self;
    experts_iteration *it = &e->it;
    for (int i = 0; i < n; i++) {
        experts_slot *s = experts_slot_numbered(e, views[i].slot);
        if (it->running && s && s->item >= 0 && s->expert == views[i].id && it->item[s->item].state == EXPERTS_ITEM_OUT)
            release_item(e, &it->item[s->item]);
    }
    if (it->running && it->waiting > 0) {
        experts_fetch_poll(e);
        issue(e);
    }
}

/* Reads of an iteration that stops early go on; their experts are cached when they arrive. */
static void let_go(sl_experts *e, experts_item *item) {
    switch (item->state) {
    case EXPERTS_ITEM_READY:
    case EXPERTS_ITEM_OUT:
        release_item(e, item);
        break;
    case EXPERTS_ITEM_READING:
        item->slot->item = -1;
        break;
    case EXPERTS_ITEM_FAILED:
        free(item->error);
        item->error = NULL;
        break;
    case EXPERTS_ITEM_WAITING:
    case EXPERTS_ITEM_OVER:
        break;
    }
}

static void end(void *self) {
    sl_experts *e = self;
    experts_iteration *it = &e->it;
    if (!it->running)
        return;
    for (int32_t i = 0; i < it->n; i++)
        let_go(e, &it->item[i]);
    it->running = false;
    it->waiting = 0;
    experts_fetch_poll(e);
    experts_prefetch_run(e);
}

sl_expert_source sl_experts_source(sl_experts *e) {
    return (sl_expert_source){.self = e,
                              .begin = begin,
                              .next = next,
                              .done = done,
                              .end = end,
                              .peek = experts_peek,
                              .resident = experts_resident,
                              .generation = experts_generation,
                              .wants_guess = experts_wants_guess,
                              .guess = experts_take_guess};
}

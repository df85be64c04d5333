/* Fetching: the reads of claimed slots go to the reader in one batch; results turn slots into cached experts.
 *
 * A result's tag is the slot. An expert fails with its first failed read; its slot is dead until the last result of
 * all its reads is in, because until then the kernel may write to it. */
#include "experts/store.h"

#define STOP_NS 50000000u /* a wait is interrupted so often to ask whether anybody still waits for it */

bool experts_fetch_reserve(sl_experts *e) {
    void *array = e->batch.read;
    if (!sl_grow(&array, &e->batch.capacity, (size_t)e->batch.n + SL_EXPERT_PARTS, sizeof *e->batch.read))
        return false;
    e->batch.read = array;
    return true;
}

static void add_read(sl_experts *e, experts_slot *s, const experts_area *a) {
    if (e->batch.n == 0)
        experts_trace_burst(&e->trace);
    experts_trace_add(&e->trace, a, s->layer);
    experts_add(&e->count.reads, 1);
    experts_add(&e->count.read_bytes, a->bytes);
    experts_add(&e->layer[s->layer].count.read_bytes, a->bytes);
    e->batch.read[e->batch.n++] = (sl_read){.file = e->file[a->file],
                                            .offset = a->offset,
                                            .bytes = a->bytes,
                                            .dst = s->base + a->at,
                                            .need = a->need,
                                            .tag = s};
}

void experts_fetch_add(sl_experts *e, experts_slot *s, int32_t layer, int32_t expert, const experts_layout *layout) {
    s->layer = layer;
    s->expert = expert;
    s->state = EXPERTS_READING;
    s->fresh = true;
    s->prefetched = s->asked = s->adopted = s->timed_out = false;
    s->reads = s->areas = layout->areas;
    for (int p = 0; p < SL_EXPERT_PARTS; p++)
        s->part[p] = layout->part[p];
    e->layer[layer].slot[expert] = s;
    experts_add(&e->count.slots_used, 1);
    for (int i = 0; i < layout->areas; i++)
        add_read(e, s, &layout->area[i]);
}

/* The slot holds nothing that could be used; it is freed when its reads are over. */
static void slot_failed(sl_experts *e, experts_slot *s, const sl_error *why) {
    if (s->state != EXPERTS_READING)
        return;
    s->state = EXPERTS_DEAD;
    e->layer[s->layer].slot[s->expert] = NULL;
    experts_sub(&e->count.slots_used, 1);
    if (s->item >= 0)
        experts_item_failed(e, s, why);
}

/* A file that is written to under a running program would give another model's bytes without any error. What came is
 * the old file's if that is looked at after it came: once for each collect. */
static bool files_unchanged(sl_experts *e, const experts_slot *s, sl_error *why) {
    const sl_extent *ext = &e->layer[s->layer].extent[(size_t)s->expert * SL_EXPERT_PARTS];
    for (int p = 0; p < SL_EXPERT_PARTS; p++) {
        int32_t f = ext[p].file;
        if (ext[p].bytes == 0 || e->looked_at[f] == e->looks)
            continue;
        if (!sl_file_unchanged(e->file[f], why))
            return false;
        e->looked_at[f] = e->looks;
    }
    return true;
}

static void slot_over(sl_experts *e, experts_slot *s) {
    sl_error why;
    if (s->state == EXPERTS_READING && !(files_unchanged(e, s, &why) && experts_sum_matches(e, s, &why)))
        slot_failed(e, s, &why);
    if (s->state == EXPERTS_DEAD) {
        e->timed_out -= s->timed_out;
        experts_cache_free(e, s);
        return;
    }
    s->state = EXPERTS_CACHED;
    e->layer[s->layer].moves++;
    if (s->item >= 0)
        experts_item_ready(e, s);
    else
        experts_cache_release(e, s);
}

static void read_timed_out(sl_experts *e, experts_slot *s) {
    if (s->timed_out)
        return;
    s->timed_out = true;
    e->timed_out++;
    e->awaited -= s->reads;
}

static void take_result(sl_experts *e, const sl_read_result *r) {
    experts_slot *s = r->tag;
    if (!r->ok)
        slot_failed(e, s, &r->error);
    if (r->quarantined) {
        read_timed_out(e, s);
        return;
    }
    e->in_flight--;
    e->awaited -= !s->timed_out;
    if (--s->reads == 0)
        slot_over(e, s);
}

static int take_results(sl_experts *e, uint64_t timeout_ns) {
    int n = e->reader->collect(e->reader, e->results, EXPERTS_RESULTS, timeout_ns);
    e->looks++;
    for (int i = 0; i < n; i++)
        take_result(e, &e->results[i]);
    return n;
}

void experts_fetch_poll(sl_experts *e) {
    while (e->in_flight > 0 && take_results(e, 0) == EXPERTS_RESULTS)
        ;
}

bool experts_fetch_wait(sl_experts *e) {
    uint64_t begin = sl_now_ns();
    bool asks = e->stop && e->it.running, stopped = false;
    while (take_results(e, asks ? STOP_NS : UINT64_MAX) == 0 && asks && !stopped)
        stopped = e->stop(e->stop_user);
    uint64_t waited = sl_now_ns() - begin;
    experts_add(&e->count.wait_ns, waited);
    if (e->it.running)
        experts_add(&e->layer[e->it.layer].count.wait_ns, waited);
    return !stopped;
}

static void fail_batch(sl_experts *e, const sl_error *why) {
    for (int32_t i = 0; i < e->batch.n; i++) {
        experts_slot *s = e->batch.read[i].tag;
        slot_failed(e, s, why);
        if (--s->reads == 0)
            slot_over(e, s);
    }
}

void experts_fetch_submit(sl_experts *e) {
    if (e->batch.n == 0)
        return;
    sl_error why;
    if (e->reader->submit(e->reader, e->batch.read, e->batch.n, &why)) {
        e->in_flight += e->batch.n;
        e->awaited += e->batch.n;
    } else {
        fail_batch(e, &why);
    }
    e->batch.n = 0;
}

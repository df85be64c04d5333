/* A step given to the device whole, before anybody knows which experts it will want.
 *
 * Per MoE layer the list routes, raises `routed`, computes the shared expert and those experts that a first table shows
 * (what was in slots when the layer before was served), raises `computed`, waits for `delivered`, computes those of a
 * second table (what had to be read), and combines. The host follows: when a layer is routed it claims that layer's
 * experts, reads what is missing, fills the second table and the next layer's first one, and raises `delivered`; where
 * experts are copied to the device's own memory, the stream that copies them raises it behind the last. So the device
 * waits only where something is read, and then has the layer's other experts to do; where every expert of the model is
 * in memory, there are no events and no second tables, and nobody waits.
 *
 * Why what the device reads does not change under it: an expert of a first table that a row chose is claimed before
 * anything is evicted for its layer, and nothing is evicted between the table's making and that claim; claims of a
 * layer are given back when the next one is routed, behind everything that read them. Steps of few rows, whose
 * experts all fit the slots; of many only where every expert is in the device's own memory. */
#include "ops/ops_gpu.h"

#include <stdlib.h>
#include <string.h>

#define SLICE_NS (100ull * 1000 * 1000) /* how often a wait looks whether the list has failed */

typedef struct gpu_ahead {
    gpu_run *r;
    sl_expert_peek peek; /* of the first layer; blocks and slots are the same for all */
    uint64_t first_tick; /* of the step's first MoE layer */
    int32_t layers;      /* MoE layers of the program */
    sl_gpu_ticket ticket;
    sl_gpu_list *copying; /* copies of the layer's last experts, not yet submitted */
    sl_gpu_ticket copied; /* the last list of copies; 0: none */
    bool sent;            /* some of the layer's have been submitted */
    bool open;            /* an iteration is */
    /* What the first tables show, by index: they are written anew only when that has changed. */
    struct known_table {
        int32_t layer;
        uint64_t generation; /* 0: nothing that is known of */
    } * known;
    uint64_t epoch; /* scratch.epoch when they were written */
    sl_expert_view views[GPU_EXPERTS];
} ahead;

/* ---- may it be done ---------------------------------------------------------------------------------------------- */

static bool layer_fits(const gpu_run *r, const sl_moe *m, sl_expert_peek *peek) {
    const sl_expert_source *src = &r->o->known.experts;
    int64_t most = sl_min_i64((int64_t)r->step->rows * m->top_k, m->experts);
    bool few = r->step->rows < GPU_MATMUL_ROWS;
    if (!src->peek(src->self, m->layer, peek))
        return false;
    if (!r->o->tier)
        return few && peek->blocks > 0 && most <= peek->holds && (peek->all_resident || !r->o->serial);
    peek->all_resident = gpu_tier_complete(r->o);
    return peek->all_resident || (few && !r->o->serial && most <= peek->holds && most <= gpu_tier_slots(r->o));
}

static bool fits(ahead *a) {
    const gpu_run *r = a->r;
    const sl_expert_source *src = &r->o->known.experts;
    if (!src->peek || !src->resident)
        return false;
    for (size_t i = 0; i < r->p->count; i++) {
        sl_expert_peek peek;
        if (r->p->list[i].kind != OP_MOE)
            continue;
        if (!layer_fits(r, &r->p->list[i].u.moe, a->layers ? &peek : &a->peek))
            return false;
        a->layers++;
    }
    return a->layers > 0 && a->layers <= r->o->scratch.extent.layers;
}

static bool make_events(sl_ops_gpu *o, sl_error *err) {
    sl_gpu_event **events[] = {&o->routed, &o->delivered, &o->computed};
    for (size_t i = 0; i < SL_COUNT(events); i++) {
        if (!*events[i])
            *events[i] = sl_gpu_event_new(o->gpu, err);
        if (!*events[i])
            return false;
    }
    return true;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

/* The first table of MoE layer `index`; the second one, which all layers share, at TABLE_SECOND. */
enum { TABLE_SECOND = -1 };

static uint8_t *table_at(const ahead *a, int32_t index) {
    const gpu_scratch *s = &a->r->o->scratch;
    uint64_t bytes = (uint64_t)s->extent.experts * SL_PARTS * sizeof(uint64_t);
    return s->table + (uint64_t)(index + 1) * bytes;
}

/* Rows that a layer's status has room for. */
static uint64_t rows_kept(const ahead *a) {
    return (uint64_t)sl_max_i64(a->r->step->rows, GPU_MATMUL_ROWS);
}

/* A layer of the step; the choice of few rows stays until the step is over. */
static gpu_moe moe_at(const ahead *a, const op *o, int32_t index) {
    const gpu_scratch *s = &a->r->o->scratch;
    gpu_moe x = gpu_moe_of(a->r, o);
    if (!x.many)
        x.chosen = s->chosen_ahead + (uint64_t)index * GPU_MATMUL_ROWS * (uint64_t)s->extent.top_k * sizeof(int32_t);
    x.status = s->status_ahead + (uint64_t)index * rows_kept(a) * sizeof(int32_t);
    return x;
}

/* A pass over a table of the layer, with the slots' memory bound in the order of peek. */
static bool make_pass(ahead *a, gpu_moe *x, int32_t table, gpu_pass *p) {
    sl_expert_peek peek;
    const sl_expert_source *src = &a->r->o->known.experts;
    *p = (gpu_pass){.x = x, .table = table_at(a, table)};
    if (a->r->o->tier) {
        gpu_pass_aligned(p);
        return true;
    }
    for (int32_t i = 0; i < a->peek.blocks; i++) {
        p->slab[i] = gpu_span_of(a->r->o, a->peek.block[i], a->peek.block_bytes, a->r->err);
        if (!p->slab[i].buffer)
            return false;
    }
    p->slabs = a->peek.blocks;
    if (!src->peek(src->self, x->m->layer, &peek))
        return sl_fail(a->r->err, SL_ERR_IO, "MoE layer %d: its slots cannot be seen", x->m->layer);
    for (int i = 0; i < SL_PROJ_COUNT; i++)
        p->format[i] = gpu_moe_format(x->m, i, peek.align);
    return true;
}

/* Enters one expert; its block is one of peek's. */
static bool enter(ahead *a, const sl_moe *m, int32_t table, const sl_expert_view *v) {
    uint64_t entry[SL_PARTS] = {0};
    for (int i = 0; i < SL_PARTS; i++) {
        gpu_part part = gpu_moe_part(m, v, i);
        int32_t b = 0;
        if (!part.base)
            continue;
        while (b < a->peek.blocks && (uintptr_t)part.base - (uintptr_t)a->peek.block[b] >= a->peek.block_bytes)
            b++;
        if (b == a->peek.blocks)
            return sl_fail(a->r->err, SL_ERR_IO, "MoE layer %d: expert %d lies outside the slots", m->layer, v->id);
        uint64_t offset = (uint64_t)(part.base - (const uint8_t *)a->peek.block[b]) + part.skip;
        entry[i] = (uint64_t)b << 56 | (offset + 1);
    }
    memcpy(table_at(a, table) + (uint64_t)v->id * sizeof entry, entry, sizeof entry);
    return true;
}

/* The same of the device's own slots. */
static void show_tier(ahead *a, const sl_moe *m, int32_t index) {
    for (int32_t id = 0; id < m->experts; id++) {
        uint64_t entry[SL_PARTS];
        if (gpu_tier_find(a->r->o, m, id, false, entry))
            memcpy(table_at(a, index) + (uint64_t)id * sizeof entry, entry, sizeof entry);
    }
}

static uint64_t generation_of(const ahead *a, const sl_moe *m) {
    const sl_expert_source *src = &a->r->o->known.experts;
    if (a->r->o->tier)
        return gpu_tier_generation(a->r->o, m->layer);
    return src->generation ? src->generation(src->self, m->layer) : 0;
}

/* The first table of a layer: what is in slots now. */
static bool show_resident(ahead *a, const sl_moe *m, int32_t index) {
    const sl_expert_source *src = &a->r->o->known.experts;
    struct known_table now = {m->layer, generation_of(a, m)};
    struct known_table *known = &a->known[index];
    if (now.generation && known->generation == now.generation && known->layer == now.layer)
        return true;
    known->generation = 0;
    memset(table_at(a, index), 0, gpu_table_bytes(m));
    bool tier = a->r->o->tier != NULL;
    int32_t n = tier ? 0 : src->resident(src->self, m->layer, a->views, GPU_EXPERTS);
    for (int32_t i = 0; i < n; i++)
        if (!enter(a, m, index, &a->views[i]))
            return false;
    if (tier)
        show_tier(a, m, index);
    *known = now;
    a->r->o->times.gpu_tables++;
    return !a->peek.all_resident || gpu_push(a->r, table_at(a, index), gpu_table_bytes(m));
}

/* Does the layer's first table show the expert? Where all are in memory nobody asks for others. */
static bool is_shown(const ahead *a, int32_t index, int32_t id) {
    uint64_t entry;
    memcpy(&entry, table_at(a, index) + (uint64_t)id * SL_PARTS * sizeof entry, sizeof entry);
    return a->peek.all_resident || entry != 0;
}

/* The list of what tables show is as long as the program has layers, and forgotten when tables move. */
static bool keep_known(ahead *a) {
    uint64_t epoch = a->r->o->scratch.epoch;
    if (a->known && a->epoch == epoch)
        return true;
    free(a->known);
    a->known = calloc((size_t)a->r->o->scratch.extent.layers, sizeof *a->known);
    a->epoch = epoch;
    return a->known != NULL;
}

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

static bool encode_meeting(ahead *a, uint64_t tick) {
    sl_ops_gpu *o = a->r->o;
    return sl_gpu_encode_signal(o->list, o->computed, tick, a->r->err) && gpu_phase_begin(a->r, GPU_PHASE_WAIT) &&
           sl_gpu_encode_wait(o->list, o->delivered, tick, a->r->err);
}

/* The table as the host has left it when the list comes here. */
static bool tell_table(ahead *a, const gpu_moe *x, int32_t table) {
    return gpu_push(a->r, table_at(a, table), gpu_table_bytes(x->m));
}

/* What was chosen goes to the host at once, where it has to follow. */
static bool encode_routing(ahead *a, gpu_moe *x, int32_t index, uint64_t tick) {
    sl_ops_gpu *g = a->r->o;
    if (!gpu_phase_begin(a->r, GPU_PHASE_ROUTER) || !gpu_moe_route(x))
        return false;
    return a->peek.all_resident ||
           (gpu_pull(a->r, x->chosen, (uint64_t)x->rows * (uint64_t)x->m->top_k * sizeof(int32_t)) &&
            sl_gpu_encode_signal(g->list, g->routed, tick, a->r->err) && tell_table(a, x, index));
}

static bool encode_second(ahead *a, gpu_moe *x, uint64_t tick) {
    gpu_pass second;
    return a->peek.all_resident || (encode_meeting(a, tick) && tell_table(a, x, TABLE_SECOND) &&
                                    make_pass(a, x, TABLE_SECOND, &second) && gpu_pass_encode(&second));
}

static bool encode_moe(ahead *a, const op *o, int32_t index) {
    gpu_moe x = moe_at(a, o, index);
    gpu_pass first;
    uint64_t tick = a->first_tick + (uint64_t)index;
    return encode_routing(a, &x, index, tick) && (!has_weight(&x.m->shared[SL_PROJ_GATE]) || gpu_moe_shared(&x)) &&
           make_pass(a, &x, index, &first) && gpu_pass_encode(&first) && encode_second(a, &x, tick) &&
           gpu_moe_combine(&x);
}

/* What the host looks at when the step is over. */
static bool encode_results(ahead *a) {
    return gpu_pull(a->r, a->r->o->scratch.status_ahead, (uint64_t)a->layers * rows_kept(a) * sizeof(int32_t));
}

static bool encode_step(ahead *a) {
    const gpu_run *r = a->r;
    int32_t index = 0;
    for (size_t i = 0; i < r->p->count; i++) {
        const op *x = &r->p->list[i];
        if (gpu_op_is_idle(r, x))
            continue;
        if (!(x->kind == OP_MOE ? encode_moe(a, x, index++) : gpu_encode_op(a->r, x)))
            return false;
    }
    return encode_results(a);
}

/* ---- following --------------------------------------------------------------------------------------------------- */

/* Until the layer is routed; false: the list has failed or takes too long. */
static bool await_routed(ahead *a, uint64_t tick) {
    sl_ops_gpu *o = a->r->o;
    sl_error late;
    uint64_t began = sl_now_ns();
    bool there = false;
    while (!there && sl_now_ns() - began < GPU_TIMEOUT_NS) {
        there = sl_gpu_event_wait(o->routed, tick, SLICE_NS, &late);
        if (!there && !sl_gpu_wait(o->stream, a->ticket, 0, NULL, &late) && late.code != SL_ERR_TIMEOUT) {
            if (a->r->err)
                *a->r->err = late;
            return false;
        }
    }
    o->times.router += sl_now_ns() - began;
    return there || sl_fail(a->r->err, SL_ERR_TIMEOUT, "the device did not route within its time");
}

/* Claims of the layer before are over: everything that read them lies before what has just been routed. */
static void close_iteration(ahead *a) {
    const sl_expert_source *src = &a->r->o->known.experts;
    if (a->open)
        src->end(src->self);
    a->open = false;
}

static bool submit_copies(ahead *a) {
    sl_gpu_list *l = a->copying;
    a->copying = NULL;
    a->sent = true;
    return sl_gpu_submit(l, &a->copied, a->r->err);
}

/* Those that the first table shows need not be asked for. */
static int32_t without_shown(ahead *a, gpu_moe *x, int32_t *ids, int32_t n) {
    int32_t left = 0;
    if (!a->r->o->tier || a->peek.all_resident)
        return n;
    gpu_tier_pass(a->r->o);
    for (int32_t i = 0; i < n; i++) {
        uint64_t entry[SL_PARTS];
        if (gpu_tier_find(a->r->o, x->m, ids[i], true, entry))
            x->asked[ids[i]] = false;
        else
            ids[left++] = ids[i];
    }
    return left;
}

/* Copies of n views begin at once, but for the layer's last: behind those `delivered` is raised (raise_delivered). */
static bool copy_there(ahead *a, const gpu_moe *x, int n) {
    sl_ops_gpu *o = a->r->o;
    a->copying = gpu_tier_list(o, a->r->err);
    if (!a->copying || !gpu_tier_enter(o, a->copying, x->m, a->views, n, table_at(a, TABLE_SECOND), a->r->err))
        return false;
    return x->wanted == 0 || submit_copies(a);
}

/* All that the layer's rows want, read where needed; what the first table does not show goes into the second. */
static bool deliver(ahead *a, gpu_moe *x, int32_t index, bool *waited) {
    const sl_expert_source *src = &a->r->o->known.experts;
    *waited = false;
    while (a->open) {
        sl_error why = {0};
        int n = src->next(src->self, a->views, GPU_EXPERTS, &why);
        if (n == 0)
            return x->wanted == 0 || sl_fail(a->r->err, SL_ERR_IO, "MoE layer %d: %d experts were never delivered",
                                             x->m->layer, x->wanted);
        if (n > GPU_EXPERTS || !gpu_moe_awaited(x, a->views, n < 0 ? 1 : n))
            return false;
        if (n < 0) {
            if (!gpu_moe_fail_rows(x, a->views[0].id, &why))
                return false;
            continue;
        }
        if (a->r->o->tier && !a->peek.all_resident) {
            *waited = true;
            if (!copy_there(a, x, n))
                return false;
            continue;
        }
        for (int i = 0; i < n; i++) {
            if (is_shown(a, index, a->views[i].id))
                continue;
            *waited = true;
            if (!enter(a, x->m, TABLE_SECOND, &a->views[i]))
                return false;
        }
    }
    return true;
}

/* The layer is served once all copies are there; without any, now. */
static bool raise_delivered(ahead *a, uint64_t tick) {
    sl_ops_gpu *o = a->r->o;
    if (!a->copying && !a->sent)
        return sl_gpu_event_signal(o->delivered, tick, a->r->err);
    if (!a->copying)
        a->copying = gpu_tier_list(o, a->r->err);
    return a->copying && sl_gpu_encode_signal(a->copying, o->delivered, tick, a->r->err) && submit_copies(a);
}

static void count_wait(ahead *a, uint64_t tick, uint64_t ns) {
    sl_ops_gpu *o = a->r->o;
    o->times.gpu_waits++;
    o->times.gpu_wait_time += ns;
    o->times.gpu_hidden_waits += sl_gpu_event_value(o->computed) < tick;
}

static bool begin_layer(ahead *a, gpu_moe *x) {
    const sl_expert_source *src = &a->r->o->known.experts;
    int32_t ids[GPU_EXPERTS], n = gpu_moe_wanted(x, ids);
    close_iteration(a);
    n = n > 0 ? without_shown(a, x, ids, n) : n;
    x->wanted = n;
    if (n == 0)
        return true;
    if (n < 0 || !src->begin(src->self, x->m->layer, ids, n, SL_ORDER_READY, a->r->err))
        return false;
    a->open = true;
    return true;
}

/* Serves one layer; next: the MoE layer behind it, NULL: none. */
static bool serve(ahead *a, const op *o, const op *next, int32_t index) {
    gpu_run *r = a->r;
    gpu_moe x = moe_at(a, o, index);
    uint64_t tick = a->first_tick + (uint64_t)index;
    bool waited = false;
    if (!await_routed(a, tick))
        return false;
    if (r->step->cancelled && r->step->cancelled(r->step->user))
        return sl_fail(r->err, SL_ERR_CANCELLED, "cancelled in MoE layer %d", x.m->layer);
    uint64_t began = sl_now_ns();
    memset(table_at(a, TABLE_SECOND), 0, gpu_table_bytes(x.m));
    a->sent = false;
    if (!begin_layer(a, &x) || !deliver(a, &x, index, &waited) || (next && !show_resident(a, &next->u.moe, index + 1)))
        return false;
    uint64_t ns = sl_now_ns() - began;
    if (!r->o->spans) /* else the device's own wait counts */
        r->o->times.expert_wait += ns;
    if (waited)
        count_wait(a, tick, ns);
    return raise_delivered(a, tick);
}

static const op *moe_behind(const sl_program *p, size_t *at) {
    while (*at < p->count && p->list[*at].kind != OP_MOE)
        ++*at;
    return *at < p->count ? &p->list[(*at)++] : NULL;
}

static bool follow(ahead *a) {
    size_t at = 0;
    const op *o = moe_behind(a->r->p, &at);
    for (int32_t index = 0; o; index++) {
        const op *next = moe_behind(a->r->p, &at);
        if (!serve(a, o, next, index))
            return false;
        o = next;
    }
    sl_ops_gpu *g = a->r->o; /* the copies are over by then: this asks whether they failed */
    return gpu_await(a->r, a->ticket) &&
           (!a->copied || sl_gpu_wait(g->copies, a->copied, GPU_TIMEOUT_NS, NULL, a->r->err));
}

/* Everything is in memory: claims, which order what is kept, are made when the step is over. */
static bool look_back(ahead *a) {
    size_t at = 0;
    bool waited;
    if (!gpu_await(a->r, a->ticket))
        return false;
    for (int32_t index = 0; index < a->layers && !a->r->o->tier; index++) {
        gpu_moe x = moe_at(a, moe_behind(a->r->p, &at), index);
        if (!begin_layer(a, &x) || !deliver(a, &x, index, &waited))
            return false;
    }
    return true;
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

/* Tables of what is in slots: of every layer where nothing moves, else of the first. */
static bool show_first(ahead *a) {
    size_t at = 0;
    for (int32_t index = 0; index < a->layers && (index == 0 || a->peek.all_resident); index++)
        if (!show_resident(a, &moe_behind(a->r->p, &at)->u.moe, index))
            return false;
    return true;
}

/* The device must not wait for ever, whatever went wrong: it is let through, and told that nothing counts. */
static void let_through(ahead *a) {
    sl_ops_gpu *o = a->r->o;
    sl_error ignored;
    ((sl_step_head *)(void *)o->scratch.step)->aborted = 1;
    sl_gpu_list_free(a->copying);
    a->copying = NULL;
    if (a->copied) /* what a list is yet to raise the event to is raised by it first */
        sl_gpu_wait(o->copies, a->copied, GPU_TIMEOUT_NS, NULL, &ignored);
    sl_gpu_event_signal(o->delivered, a->first_tick + (uint64_t)a->layers - 1, &ignored);
    if (a->ticket)
        sl_gpu_wait(o->stream, a->ticket, GPU_TIMEOUT_NS, NULL, &ignored);
}

static bool check_layers(ahead *a) {
    size_t at = 0;
    for (int32_t index = 0; index < a->layers; index++) {
        const op *o = moe_behind(a->r->p, &at);
        gpu_moe x = moe_at(a, o, index);
        if (!gpu_check_status(a->r, x.m->layer, x.status))
            return false;
    }
    return true;
}

bool gpu_ahead_possible(gpu_run *r) {
    sl_ops_gpu *o = r->o;
    sl_error ignored;
    if (!o->ahead)
        o->ahead = calloc(1, sizeof *o->ahead);
    if (!o->ahead)
        return false;
    ahead *a = o->ahead;
    a->r = r;
    a->layers = 0;
    a->ticket = a->copied = 0;
    a->open = false;
    a->first_tick = o->tick + 1;
    return fits(a) && keep_known(a) && make_events(o, &ignored);
}

void gpu_ahead_free(sl_ops_gpu *o) {
    if (o->ahead)
        free(o->ahead->known);
    free(o->ahead);
}

/* A kept list of the same step is given again; else one is encoded. */
static bool give_step(ahead *a) {
    gpu_run *r = a->r;
    bool done = false, may_keep = a->peek.all_resident && gpu_kept_possible(r);
    if (may_keep && !gpu_kept_replay(r, &a->ticket, &done))
        return false;
    if (done)
        return true;
    if (!gpu_list_begin(r) || !encode_step(a))
        return false;
    return may_keep ? gpu_kept_submit(r, &a->ticket) : gpu_submit_now(r, &a->ticket);
}

bool gpu_run_ahead(gpu_run *r) {
    sl_ops_gpu *o = r->o;
    ahead *a = o->ahead;
    o->tick += (uint64_t)a->layers;
    bool ok = show_first(a) && give_step(a);
    ok = ok && (a->peek.all_resident ? look_back(a) : follow(a));
    if (!ok)
        let_through(a);
    close_iteration(a);
    return ok && check_layers(a);
}

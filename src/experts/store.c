/* The store: opening (layers, slot classes, the least memory), closing, statistics. */
#include "experts/store.h"
#include "experts/reader.h"

#include <stdlib.h>
#include <string.h>

/* A decode iteration of a few rows asks for a few times top_k; more is not worth remembering. */
enum { LEAST_SLOTS = 2 };

static int32_t least_slots(int32_t top_k) {
    return top_k > LEAST_SLOTS ? top_k : LEAST_SLOTS;
}

int32_t experts_least_slabs(uint64_t slot_bytes, uint64_t slab_bytes, int32_t top_k) {
    uint64_t per_slab = slot_bytes ? slab_bytes / slot_bytes : 0;
    return per_slab ? (int32_t)(((uint64_t)least_slots(top_k) + per_slab - 1) / per_slab) : 0;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static bool check_options(const sl_experts_options *o, sl_error *err) {
    if (o->layer_count < 1 || o->top_k < 1 || o->max_slots < 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "experts: %d layers, top_k %d, at most %d slots", o->layer_count, o->top_k,
                       o->max_slots);
    if (o->max_slots && o->max_slots < least_slots(o->top_k))
        return sl_fail(err, SL_ERR_ARGUMENT, "experts: %d slots, at least %d expected", o->max_slots,
                       least_slots(o->top_k));
    for (int32_t i = 0; i < o->layer_count; i++) {
        if (o->layers[i].experts < 1)
            return sl_fail(err, SL_ERR_ARGUMENT, "experts: layer %d has %d experts", i, o->layers[i].experts);
    }
    return true;
}

static bool copy_files(sl_experts *e, const experts_files *files, sl_error *err) {
    e->file = malloc(sizeof *e->file * (size_t)(files->count > 0 ? files->count : 1));
    e->looked_at = calloc((size_t)files->count + 1, sizeof *e->looked_at);
    if (!e->file || !e->looked_at)
        return sl_fail(err, SL_ERR_MEMORY, "experts: out of memory");
    for (int32_t i = 0; i < files->count; i++) {
        e->file[i] = files->file[i];
        if (experts_file_direct(e->file[i], files->direct))
            continue;
        experts_file_prepare(e->file[i]);
        if (files->direct)
            sl_logf(&e->log, SL_LOG_INFO, "%s: its file system has no O_DIRECT, read through the page cache",
                    e->file[i]->path);
    }
    e->files = (experts_files){e->file, files->count, files->direct};
    return true;
}

static bool alloc_layers(sl_experts *e, const sl_experts_options *o, sl_error *err) {
    uint64_t experts = 0;
    for (int32_t i = 0; i < o->layer_count; i++)
        experts += (uint64_t)o->layers[i].experts;
    size_t layers = (size_t)o->layer_count;
    for (int32_t i = 0; o->prefetch != SL_PREFETCH_OFF && i < o->layer_count; i++)
        e->guess.max = o->layers[i].experts > e->guess.max ? o->layers[i].experts : e->guess.max;
    e->layer = calloc(layers, sizeof *e->layer);
    e->cls = calloc(layers, sizeof *e->cls);
    e->table = calloc(experts, sizeof(experts_slot *));
    e->results = malloc(EXPERTS_RESULTS * sizeof *e->results);
    e->guess.id = calloc((size_t)e->guess.max + 1, sizeof *e->guess.id);
    if (o->learn && !(e->heat = calloc(experts, sizeof *e->heat)))
        return sl_fail(err, SL_ERR_MEMORY, "experts: out of memory to count uses of %llu", (unsigned long long)experts);
    if (o->policy == SL_POLICY_LFU && !(e->uses = calloc(experts, sizeof *e->uses)))
        return sl_fail(err, SL_ERR_MEMORY, "experts: out of memory to count uses of %llu", (unsigned long long)experts);
    if (!e->layer || !e->cls || !e->table || !e->results || !e->guess.id)
        return sl_fail(err, SL_ERR_MEMORY, "experts: out of memory for a table of %llu", (unsigned long long)experts);
    return true;
}

/* The class of slots of that size, new if need be. */
static int32_t class_for(sl_experts *e, uint64_t slot_bytes) {
    for (int32_t i = 0; i < e->classes; i++) {
        if (e->cls[i].slot_bytes == slot_bytes)
            return i;
    }
    e->cls[e->classes].slot_bytes = slot_bytes;
    e->cls[e->classes].per_slab = (int32_t)(e->slab_bytes / slot_bytes);
    return e->classes++;
}

static bool open_layer(sl_experts *e, int32_t i, const sl_expert_layer *from, bool verify, uint64_t *bytes,
                       sl_error *err) {
    experts_layer *l = &e->layer[i];
    if (!experts_layer_slot_bytes(&e->files, from, bytes, err))
        return sl_fail_prefix(err, "layer %d", from->number);
    if (*bytes > e->slab_bytes)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "layer %d: an expert needs a slot of %llu bytes, a slab has %llu",
                       from->number, (unsigned long long)*bytes, (unsigned long long)e->slab_bytes);
    if (verify && !from->sum)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "layer %d: there are no checksums to compare reads with: only packs have them", from->number);
    l->extent = from->extent;
    l->sum = verify ? from->sum : NULL;
    l->experts = from->experts;
    l->number = from->number;
    l->align = experts_layer_align(from);
    e->experts += (uint64_t)from->experts;
    return true;
}

static bool open_layers(sl_experts *e, const sl_experts_options *o, sl_error *err) {
    experts_slot **table = e->table;
    uint64_t *bytes = calloc((size_t)o->layer_count, sizeof *bytes);
    bool ok = bytes || sl_fail(err, SL_ERR_MEMORY, "experts: out of memory for %d layers", o->layer_count);
    for (int32_t i = 0; ok && i < o->layer_count; i++) {
        e->layer[i].slot = table;
        e->layer[i].uses = e->uses ? e->uses + (table - e->table) : NULL;
        table += o->layers[i].experts;
        ok = open_layer(e, i, &o->layers[i], o->verify, &bytes[i], err);
    }
    e->layers = ok ? o->layer_count : 0;
    sl_experts_share_slots(bytes, e->layers);
    for (int32_t i = 0; i < e->layers; i++) {
        e->layer[i].cls = class_for(e, bytes[i]);
        e->cls[e->layer[i].cls].experts += (uint64_t)e->layer[i].experts;
    }
    free(bytes);
    return ok;
}

static bool set_limits(sl_experts *e, const sl_experts_options *o, sl_error *err) {
    uint64_t most = 0;
    for (int32_t i = 0; i < e->classes; i++)
        most = e->cls[i].slot_bytes > most ? e->cls[i].slot_bytes : most;
    e->least_slabs = experts_least_slabs(most, e->slab_bytes, o->top_k);
    e->max_slabs = INT32_MAX;
    if (o->max_bytes && o->max_bytes / e->slab_bytes < INT32_MAX)
        e->max_slabs = (int32_t)(o->max_bytes / e->slab_bytes);
    if (e->max_slabs < e->least_slabs)
        return sl_fail(err, SL_ERR_BUDGET, "experts: %llu bytes for slots, %d of %llu bytes need at least %llu",
                       (unsigned long long)o->max_bytes, least_slots(o->top_k), (unsigned long long)most,
                       (unsigned long long)((uint64_t)e->least_slabs * e->slab_bytes));
    e->cap_slabs = e->max_slabs;
    e->max_slots = o->max_slots;
    return true;
}

static bool open_store(sl_experts *e, const sl_experts_options *o, const experts_files *files, sl_error *err) {
    return check_options(o, err) && copy_files(e, files, err) && alloc_layers(e, o, err) && open_layers(e, o, err) &&
           set_limits(e, o, err) && experts_cache_reserve(e, err);
}

sl_experts *experts_open(const sl_experts_options *o, const experts_files *files, sl_error *err) {
    sl_experts *e = calloc(1, sizeof *e);
    if (!e) {
        o->reader->close(o->reader);
        return sl_fail_null(err, SL_ERR_MEMORY, "experts: out of memory");
    }
    e->mem = o->mem;
    e->slab_bytes = sl_mem_slab_bytes(o->mem);
    e->reader = o->reader;
    e->log = o->log;
    e->top_k = o->top_k;
    e->stop = o->stop;
    e->stop_user = o->stop_user;
    e->policy = o->policy;
    experts_prefetch_open(e, o->prefetch);
    e->trace.burst = -1;
    if (!open_store(e, o, files, err)) {
        sl_experts_close(e);
        return NULL;
    }
    return e;
}

void sl_experts_close(sl_experts *e) {
    if (!e)
        return;
    e->prefetch = SL_PREFETCH_OFF;
    sl_experts_source(e).end(e);
    /* First the reader, which waits for what is in flight: until then the kernel writes to the slabs. */
    e->reader->close(e->reader);
    experts_cache_close(e);
    free(e->it.item);
    free(e->it.queue);
    free(e->batch.read);
    free(e->trace.read);
    free(e->guess.id);
    free(e->results);
    free(e->table);
    free(e->uses);
    free(e->heat);
    free(e->cls);
    free(e->layer);
    free(e->file);
    free(e->looked_at);
    free(e);
}

/* ---- statistics ------------------------------------------------------------------------------------------------- */

/* Below one token's demand the cache serves a part of the experts only: say so once, it costs most of the speed. */
void experts_warn_small(sl_experts *e) {
    if (e->told_small || e->it.order != SL_ORDER_READY || !e->full || !experts_policy_thrashes(e) ||
        e->it.layer != e->layers - 1)
        return;
    e->told_small = true;
    sl_logf(&e->log, SL_LOG_WARN,
            "expert cache: fewer slots than the %lld experts a step asks for; a part of them is kept, the rest is read "
            "in every step",
            (long long)e->demand);
}

static uint64_t load(const _Atomic uint64_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void sl_experts_stats_get(const sl_experts *e, sl_experts_stats *out) {
    const experts_counters *c = &e->count;
    *out = (sl_experts_stats){.hits = load(&c->hits),
                              .misses = load(&c->misses),
                              .reads = load(&c->reads),
                              .read_bytes = load(&c->read_bytes),
                              .prefetch_reads = load(&c->prefetch_reads),
                              .prefetch_used = load(&c->prefetch_used),
                              .wait_ns = load(&c->wait_ns),
                              .evictions = load(&c->evictions),
                              .slots = load(&c->slots),
                              .slots_used = load(&c->slots_used),
                              .slot_bytes = load(&c->slabs) * e->slab_bytes};
}

void sl_experts_stats_reset(sl_experts *e) {
    experts_counters *c = &e->count;
    _Atomic uint64_t *counts[] = {&c->hits,           &c->misses,        &c->reads,   &c->read_bytes,
                                  &c->prefetch_reads, &c->prefetch_used, &c->wait_ns, &c->evictions};
    for (size_t i = 0; i < SL_COUNT(counts); i++)
        atomic_store_explicit(counts[i], 0, memory_order_relaxed);
}

void sl_experts_layers_get(const sl_experts *e, sl_experts_layer_stats *out, int32_t n) {
    for (int32_t i = 0; i < n && i < e->layers; i++) {
        const experts_layer_counters *c = &e->layer[i].count;
        out[i] = (sl_experts_layer_stats){.hits = load(&c->hits),
                                          .misses = load(&c->misses),
                                          .read_bytes = load(&c->read_bytes),
                                          .wait_ns = load(&c->wait_ns),
                                          .prefetch_reads = load(&c->prefetch_reads),
                                          .prefetch_used = load(&c->prefetch_used)};
    }
}

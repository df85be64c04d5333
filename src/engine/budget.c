/* The memory budget of an engine that opens: what it needs is measured, the chunk follows where it may, and plan.c
 * divides the rest. */
#include "engine/internal.h"

#include "engine/units.h"

#include <stdlib.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

enum { LEAST_CHUNK = 32 };

void engine_set_chunk(sl_engine *e, int32_t chunk) {
    e->chunk = chunk < e->context ? chunk : e->context;
    e->max_rows = e->chunk + e->max_sequences;
    e->max_outs = e->max_rows;
    e->fitted = e->chunk;
    e->wide_most = engine_wide_most(e);
}

sl_ops *engine_open_ops(sl_engine *e, sl_mem *mem, const engine_numerics *n, sl_error *err) {
    if (e->gpu)
        return sl_ops_gpu_new(e->gpu, mem, err);
    sl_ops_cpu_options o = {.pool = e->pool, .mem = mem, .numeric = n->numeric, .isa = e->options.isa};
    return sl_ops_cpu_new(&o, err);
}

/* Memory the process will hold that no allocator counts: touched stacks, queues, tables of the expert store, and what
 * the kernel keeps for it (1.4 to 2 MiB in a memory cgroup). */
static uint64_t later_bytes(const sl_engine *e) {
    const sl_model_config *c = sl_model_config_get(e->model);
    uint64_t threads = (uint64_t)e->threads + 10;
    return (2 << 20) + threads * (64 << 10) + (uint64_t)c->moe_layers * (uint64_t)c->experts * 256 +
           (uint64_t)(e->max_rows + e->wide_most) * 128 + (uint64_t)e->max_sequences * (64 << 10);
}

/* The model's expert layers as the store wants them. */
static bool list_experts(sl_engine *e, int32_t *n, sl_error *err) {
    const sl_model_experts *x = sl_model_expert_layers(e->model, n);
    free(e->expert_layers);
    e->expert_layers = calloc((size_t)*n + 1, sizeof *e->expert_layers);
    for (int32_t i = 0; e->expert_layers && i < *n; i++) {
        int32_t layer = 0;
        sl_model_expert_matrices(e->model, i, &layer);
        const sl_packed_experts *packed = sl_ckpt_packed(e->ckpt, layer);
        e->expert_layers[i] = (sl_expert_layer){x[i].experts, x[i].extent, packed ? packed->sum : NULL, layer};
    }
    return e->expert_layers || sl_fail(err, SL_ERR_MEMORY, "out of memory for %d expert layers", *n);
}

static bool measure_experts(sl_engine *e, bool direct, engine_plan_input *in, uint64_t **slot_bytes, sl_error *err) {
    int32_t n;
    if (!list_experts(e, &n, err))
        return false;
    *slot_bytes = calloc((size_t)n + 1, sizeof **slot_bytes);
    if (!*slot_bytes)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %d expert layers", n);
    for (int32_t i = 0; i < n; i++) {
        (*slot_bytes)[i] = sl_experts_slot_bytes(&e->expert_layers[i], e->ckpt, direct);
        if ((*slot_bytes)[i] == 0)
            return sl_fail(err, SL_ERR_FORMAT, "%s: experts of MoE layer %d: an extent lies outside its file", e->path,
                           i);
    }
    sl_experts_share_slots(*slot_bytes, n);
    in->layers = n;
    in->experts = n ? e->expert_layers[0].experts : 0;
    in->top_k = sl_model_config_get(e->model)->top_k;
    in->slot_bytes = *slot_bytes;
    for (int i = 0; n && i < ENGINE_SLAB_SIZES; i++)
        in->least_experts[i] =
            sl_experts_least_bytes(e->expert_layers, n, e->ckpt, in->top_k, direct, engine_slab_size(i));
    return true;
}

/* Scratch is known to the implementation of ops alone, which wants an allocator: one that is thrown away. */
static bool measure_scratch(sl_engine *e, const engine_numerics *n, uint64_t *bytes, sl_error *err) {
    sl_mem *mem = sl_mem_new(UINT64_MAX / 2, engine_slab_size(0), err);
    sl_ops *ops = mem ? engine_open_ops(e, mem, n, err) : NULL;
    *bytes = ops ? sl_model_scratch_bytes(e->model, ops, e->max_rows, e->max_outs, err) : 0;
    if (ops)
        snprintf(e->isa, sizeof e->isa, "%s", sl_ops_isa(ops));
    sl_ops_free(ops);
    sl_mem_free(mem);
    return *bytes != 0;
}

/* Scratch of a step with this chunk, and what goes with it. */
static bool measure_chunk(sl_engine *e, const engine_numerics *n, int32_t chunk, uint64_t *bytes, sl_error *err) {
    engine_set_chunk(e, chunk);
    if (!measure_scratch(e, n, bytes, err))
        return false;
    *bytes += engine_core_bytes(e->vocab, e->max_sequences);
    return true;
}

/* Halves the chunk where the options leave it open; false: it is at its least. */
static bool shrink_chunk(sl_engine *e, const engine_numerics *n, engine_plan_input *in) {
    if (e->options.chunk || e->gpu || e->chunk <= LEAST_CHUNK)
        return false;
    int32_t half = e->chunk / 2 > LEAST_CHUNK ? e->chunk / 2 : LEAST_CHUNK;
    return measure_chunk(e, n, half, &in->scratch, NULL);
}

/* What may be taken without asking: three quarters of what there is, and not what others hold at the moment. */
static uint64_t spare_memory(const sl_engine *e) {
    sl_memory_state s;
    sl_memory_look(e->pressure.root, &s);
    uint64_t share = s.total / 4 * 3, low = engine_pressure_low(s.total, engine_slab_size(0));
    return s.room > low && s.room - low < share ? s.room - low : share;
}

static uint64_t memory_limit(const sl_engine *e) {
    sl_memory_state s;
    sl_memory_look(e->pressure.root, &s);
    return s.total;
}

/* Chooses the chunk where the options leave it open: a small budget should go to experts rather than to scratch. On the
 * CPU a row's bits do not depend on it. */
static bool choose_chunk(sl_engine *e, const engine_numerics *n, engine_plan_input *in, sl_error *err) {
    enum { SCRATCH_SHARE = 8 };
    uint64_t budget = e->options.memory ? e->options.memory : spare_memory(e);
    int32_t chunk = e->chunk;
    /* On a GPU a row's bits depend on the chunk, which therefore does not follow the memory. */
    if (e->gpu)
        return measure_chunk(e, n, chunk, &in->scratch, err);
    if (!e->options.chunk && !measure_chunk(e, n, LEAST_CHUNK, &in->scratch_least, err))
        return false;
    if (!measure_chunk(e, n, chunk, &in->scratch, err))
        return false;
    while (in->scratch > budget / SCRATCH_SHARE && shrink_chunk(e, n, in))
        ;
    return true;
}

static uint64_t default_budget(const engine_plan *p, uint64_t share, uint64_t limit) {
    return share < p->least && p->least <= limit ? p->least : share;
}

/* Fills e->plan. */
static bool make_plan(sl_engine *e, const engine_plan_input *in, sl_error *err) {
    uint64_t limit = memory_limit(e), share = spare_memory(e);
    sl_error ignored = {0};
    char asked[32], may[32];
    if (e->options.memory) {
        if (e->options.memory > limit)
            sl_logf(&e->log, SL_LOG_WARN,
                    "memory: a budget of %s is more than the %s this process may use: as much as asked for will be "
                    "used, and the system may end it",
                    engine_size_text(asked, sizeof asked, e->options.memory), engine_size_text(may, sizeof may, limit));
        return engine_plan_make(in, e->options.memory, &e->plan, err);
    }
    engine_plan_make(in, share, &e->plan, &ignored);
    return engine_plan_make(in, default_budget(&e->plan, share, limit), &e->plan, err);
}

/* A default budget that is too small is no error where nothing is to run: info is asked for the least. */
static bool only_too_small(const sl_engine *e, const sl_error *err) {
    return e->options.plan_only && !e->options.memory && err->code == SL_ERR_BUDGET;
}

bool engine_plan_budget(sl_engine *e, const engine_numerics *n, bool direct, sl_kv_layout *kv, sl_error *err) {
    engine_plan_input in = {0};
    uint64_t *slot_bytes = NULL;
    if (!choose_chunk(e, n, &in, err) || !sl_model_kv_layout(e->model, n->kv, kv, err) ||
        !sl_kv_layout_init(kv, engine_slab_size(ENGINE_SLAB_SIZES - 1), err))
        return false;
    sl_model_state(e->model, sl_state_keeps(e->gpu != NULL, n->numeric == SL_NUMERIC_EXACT), &e->state_layout);
    if (e->state_layout.layers && !sl_state_layout_init(&e->state_layout, engine_slab_size(ENGINE_SLAB_SIZES - 1), err))
        return false;
#ifdef __GLIBC__
    malloc_trim(0); /* what reading headers and tokenizer left behind is not needed */
#endif
    /* It differs a little from run to run; figures that are named should not. */
    in.process = sl_round_up(engine_resident_now(), 1 << 20);
    in.reserve = e->options.reserve;
    in.whole_context = e->options.whole_context;
    in.later = later_bytes(e);
    in.resident = sl_model_resident_bytes(e->model);
    in.kv_block = kv->block_bytes;
    in.state_block = e->state_layout.block_bytes;
    in.state_blocks = e->state_layout.layers;
    in.context_blocks = (e->context + SL_KV_PAGE_TOKENS - 1) / SL_KV_PAGE_TOKENS;
    bool ok = measure_experts(e, direct, &in, &slot_bytes, err);
    in.most_slab = engine_device_most_slab(e, &in);
    if (ok) {
        /* What is called the least runs: where the chunk's scratch is what does not fit, a smaller one will. */
        while (!(ok = make_plan(e, &in, err)) && e->plan.budget >= e->plan.least && shrink_chunk(e, n, &in))
            ;
        ok = ok || only_too_small(e, err);
    }
    ok = ok && engine_device_plan(e, &in, err);
    e->scratch_bytes = in.scratch;
    for (int32_t i = 0; slot_bytes && i < in.layers; i++)
        e->slot_bytes = slot_bytes[i] > e->slot_bytes ? slot_bytes[i] : e->slot_bytes;
    free(slot_bytes);
    if (e->options.max_slots && e->plan.slots > (uint64_t)e->options.max_slots)
        e->plan.slots = (uint64_t)e->options.max_slots;
    e->kv_token_bytes = (uint64_t)kv->layers * (uint64_t)kv->planes * (uint64_t)kv->kv_heads * kv->head_bytes;
    return ok;
}

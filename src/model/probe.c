/* How long one decoded token takes where nothing is read from the disk, before the model is loaded: the forward pass of
 * some of its layers, recorded and run as ever, over weights that are all zero. Times do not depend on the values, but
 * they do on where the bytes come from, so as many layers and experts are laid out as the room allows, up to more than
 * caches hold. */
#include "model/model_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    BEYOND_CACHES = 256 << 20,
    POSITION = 384,     /* tokens that are attended to */
    ROUNDING = 6 << 20, /* spans and slabs begin at huge pages */
    LARGEST_SLAB = 64 << 20,
    LONGEST_PATTERN = 8, /* layers */
    LEAST_STEPS = 3,
    MOST_STEPS = 1000,
    WARMUP_STEPS = 3
};

typedef struct probe_layer {
    uint64_t base, slot,
        part[SL_EXPERT_PARTS]; /* of its experts: place of the first, bytes of each, of a part in one */
    bool has[SL_EXPERT_PARTS];
} probe_layer;

typedef struct probe {
    sl_model m; /* the model with fewer layers; weights, experts and KV are the probe's */
    probe_layer *layer;
    int32_t *state;        /* blocks of recurrent state, one per delta layer */
    int32_t spare;         /* experts laid out per layer, >= top_k */
    uint64_t expert_bytes; /* of all of them */
    uint8_t *experts;
    uint64_t turn; /* steps that were run: each takes other experts */
    int32_t now, count, given, ids[SL_PROBE_TOP_K];
    const sl_measure_reads *reads; /* NULL: every expert is there */
    int32_t there;                 /* of the running layer's: hits, then those that have come */
} probe;

/* ---- experts: there, or as if they were read -----------------------------------------------------------------------
 * What is computed with are always the probe's zeros; those that are read only come when the read does. */

static bool begin(void *self, int32_t layer, const int32_t *ids, int32_t n, sl_expert_order order, sl_error *err) {
    probe *p = self;
    (void)order;
    if (n > SL_PROBE_TOP_K)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%d experts at once", n);
    memcpy(p->ids, ids, (size_t)n * sizeof *ids);
    p->now = layer;
    p->count = n;
    p->given = 0;
    int32_t missing = p->reads ? p->reads->begin(p->reads->self, n, err) : 0;
    p->there = n - missing;
    return missing >= 0;
}

static int next(void *self, sl_expert_view *out, int max, sl_error *err) {
    probe *p = self;
    const probe_layer *l = &p->layer[p->now];
    int n = 0;
    if (p->given == p->there && p->there < p->count) {
        int32_t came = p->reads->wait(p->reads->self, p->count - p->there, err);
        if (came <= 0) {
            out[0].id = p->ids[p->given];
            p->there = ++p->given;
            return -1;
        }
        p->there += came;
    }
    for (; n < max && p->given < p->there; n++, p->given++) {
        uint64_t place = (p->turn * (uint64_t)p->count + (uint64_t)p->given) % (uint64_t)p->spare;
        out[n] = (sl_expert_view){.id = p->ids[p->given], .slot = (int32_t)place};
        for (int i = 0; i < SL_EXPERT_PARTS; i++)
            out[n].part[i] = l->has[i] ? p->experts + l->base + place * l->slot + l->part[i] : NULL;
    }
    return n;
}

static void done(void *self, const sl_expert_view *views, int n) {
    (void)self, (void)views, (void)n;
}

static void end(void *self) {
    (void)self;
}

/* ---- layout -------------------------------------------------------------------------------------------------------
 */

/* Puts the experts of layer i of the probe, as those of MoE layer `index`, behind what is there. */
static void place_experts(probe *p, int32_t i, int32_t index) {
    probe_layer *l = &p->layer[i];
    *l = (probe_layer){.base = p->expert_bytes};
    for (int k = 0; k < SL_EXPERT_PARTS; k++) {
        uint64_t bytes = p->m.experts[index].extent[k].bytes;
        l->has[k] = bytes > 0;
        l->part[k] = l->slot;
        l->slot = sl_round_up(l->slot + bytes, 64);
    }
    p->expert_bytes += l->slot * (uint64_t)p->spare;
}

/* The embedding of a model whose head is another matrix is read one row of. */
static void shorten_embedding(sl_model *m) {
    if (m->global[ROLE_HEAD].tensor)
        m->global[ROLE_EMBED].weight.matrix.rows = 1;
}

/* How many layers of a kind (with experts or without) each mixer has. */
static void count_mixers(const sl_model *m, bool moe, int32_t count[MIXER_COUNT]) {
    memset(count, 0, MIXER_COUNT * sizeof *count);
    for (int32_t l = 0; l < m->config.layers; l++)
        if (m->layers[l].moe == moe)
            count[m->mixers[l]]++;
}

/* Adds layer `l` of the model to those of the probe. */
static void add_layer(probe *p, const sl_model *from, int32_t l, int32_t *const mixer_layers[MIXER_COUNT]) {
    sl_model_config *c = &p->m.config;
    model_layer *to = &p->m.layers[c->layers];
    *to = from->layers[l];
    to->mixer_index = (*mixer_layers[from->mixers[l]])++;
    if (to->moe) {
        place_experts(p, c->layers, to->moe_index);
        to->moe_index = c->moe_layers++;
    }
    c->layers++;
}

/* `n` layers of one kind out of those of `from`: of each mixer its share, evenly, and `spare` experts in each. */
static void lay_out(probe *p, const sl_model *from, bool moe, int32_t n, int32_t spare) {
    int32_t all[MIXER_COUNT], seen[MIXER_COUNT] = {0}, taken[MIXER_COUNT] = {0}, kind = 0;
    sl_model_config *c = &p->m.config;
    int32_t *const mixer_layers[MIXER_COUNT] = {&c->attention_layers, &c->delta_layers, &c->attention_layers};
    count_mixers(from, moe, all);
    for (int i = 0; i < MIXER_COUNT; i++)
        kind += all[i];
    p->spare = spare;
    p->expert_bytes = 0;
    memcpy(p->m.global, from->global, sizeof p->m.global);
    shorten_embedding(&p->m);
    c->layers = c->moe_layers = c->attention_layers = c->delta_layers = 0;
    for (int32_t l = 0; l < from->config.layers; l++) {
        int mix = from->mixers[l];
        if (from->layers[l].moe != moe)
            continue;
        int64_t share = ((int64_t)all[mix] * n + kind - 1) / kind; /* rounded up: at least one */
        if (taken[mix] < share && (int64_t)seen[mix] * share / all[mix] >= taken[mix]) {
            add_layer(p, from, l, mixer_layers);
            taken[mix]++;
        }
        seen[mix]++;
    }
    model_place(&p->m);
}

static int32_t common_divisor(int32_t a, int32_t b) {
    while (b) {
        int32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The fewest layers that have the model's proportion of mixers, where that is a handful; else 1. */
static int32_t pattern(const sl_model *from, bool moe) {
    int32_t all[MIXER_COUNT], common = 0, sum = 0;
    count_mixers(from, moe, all);
    for (int i = 0; i < MIXER_COUNT; i++) {
        common = common_divisor(all[i], common);
        sum += all[i];
    }
    return common && sum / common <= LONGEST_PATTERN ? sum / common : 1;
}

static bool init_layouts(sl_kv_layout *kv, sl_state_layout *state, uint64_t slab, sl_error *err) {
    return sl_kv_layout_init(kv, slab, err) && (state->layers == 0 || sl_state_layout_init(state, slab, err));
}

/* One sequence's KV and recurrent state, in slabs of one size; 0: an error. */
static uint64_t slab_bytes(const probe *p, sl_kv_format format, sl_kv_layout *kv, sl_state_layout *state,
                           sl_error *err) {
    uint64_t slab = 64 << 10;
    sl_model_state(&p->m, sl_state_keeps(false, false), state);
    if (!sl_model_kv_layout(&p->m, format, kv, err))
        return 0;
    kv->layers = kv->layers ? kv->layers : 1;
    if (!init_layouts(kv, state, LARGEST_SLAB, err))
        return 0;
    uint64_t blocks = POSITION / SL_KV_PAGE_TOKENS + 1;
    while (slab < blocks * kv->block_bytes || slab < state->block_bytes)
        slab *= 2;
    return slab <= LARGEST_SLAB && init_layouts(kv, state, slab, err) ? slab : 0;
}

static uint64_t state_slabs(const sl_state_layout *s) {
    return s->layers ? ((uint64_t)s->layers + (uint64_t)s->blocks_per_slab - 1) / (uint64_t)s->blocks_per_slab : 0;
}

/* UINT64_MAX: it cannot be recorded. */
static uint64_t probe_bytes(const probe *p, sl_ops *ops, sl_kv_format format, sl_error *err) {
    sl_kv_layout kv;
    sl_state_layout state;
    uint64_t slab = slab_bytes(p, format, &kv, &state, NULL), scratch = sl_model_scratch_bytes(&p->m, ops, 1, 1, err);
    if (!scratch)
        return UINT64_MAX;
    return p->m.resident_bytes + p->expert_bytes + (slab ? slab * (1 + state_slabs(&state)) : 0) + scratch + ROUNDING;
}

/* As many layers as fit, at least one of each mixer; then as many experts. */
static bool choose_layout(probe *p, const sl_model *from, bool moe, sl_ops *ops, sl_kv_format format, uint64_t room,
                          sl_error *err) {
    int32_t kind = moe ? from->config.moe_layers : from->config.layers - from->config.moe_layers,
            unit = pattern(from, moe), n = kind / unit, least = moe ? from->config.top_k : 0,
            experts = from->config.experts;
    lay_out(p, from, moe, unit, least);
    uint64_t one = probe_bytes(p, ops, format, err), most = one + BEYOND_CACHES;
    if (one == UINT64_MAX)
        return false;
    if (one > room)
        return sl_fail(err, SL_ERR_BUDGET, "%llu bytes are needed to measure %d layers", (unsigned long long)one,
                       p->m.config.layers);
    most = most < room ? most : room;
    for (;; n = n > 8 ? n * 7 / 8 : n - 1) {
        lay_out(p, from, moe, n * unit, least);
        if (n == 1 || probe_bytes(p, ops, format, NULL) <= most)
            break;
    }
    for (int32_t spare = experts; moe && spare > least; spare = spare * 3 / 4) {
        lay_out(p, from, moe, n * unit, spare);
        if (probe_bytes(p, ops, format, NULL) <= most)
            return true;
    }
    lay_out(p, from, moe, n * unit, least);
    return true;
}

/* ---- memory -------------------------------------------------------------------------------------------------------
 */

static void *touched(sl_mem *mem, uint64_t bytes, sl_use use, sl_error *err) {
    void *p = sl_mem_span(mem, bytes, use, err);
    if (p)
        memset(p, 0, bytes);
    return p;
}

static bool take_memory(probe *p, sl_mem *mem, sl_ops *ops, sl_error *err) {
    sl_model *m = &p->m;
    m->mem = mem;
    m->ops = ops;
    m->weights = touched(mem, m->resident_bytes, SL_USE_WEIGHTS, err);
    m->weights_buffer = m->weights ? sl_ops_wrap(ops, m->weights, m->resident_bytes, err) : 0;
    if (!m->weights_buffer)
        return false;
    for (int i = 0; i < ROLE_LAYER_FIRST; i++)
        m->global[i].weight.buffer = m->global[i].tensor ? m->weights_buffer : 0;
    for (int32_t l = 0; l < m->config.layers; l++)
        for (int i = ROLE_LAYER_FIRST; i < ROLE_COUNT; i++)
            m->layers[l].r[i].weight.buffer = m->layers[l].r[i].tensor ? m->weights_buffer : 0;
    if (p->expert_bytes && !(p->experts = touched(mem, p->expert_bytes, SL_USE_SLOTS, err)))
        return false;
    return model_rope_frequencies(m, NULL, err) && model_record(m, 1, 1, err);
}

static void *zero_slab(sl_mem *mem, sl_error *err) {
    void *slab = sl_mem_slab(mem, SL_USE_KV, err);
    if (slab)
        memset(slab, 0, sl_mem_slab_bytes(mem));
    return slab;
}

static bool take_sequence(const probe *p, sl_mem *mem, sl_ops *ops, const sl_kv_layout *kv,
                          const sl_state_layout *state, sl_error *err) {
    void *slab = zero_slab(mem, err);
    if (!slab)
        return false;
    sl_ops_set_kv(p->m.ops, kv);
    if (!sl_ops_add_kv_slab(ops, slab, err))
        return false;
    if (state->layers)
        sl_ops_set_state(p->m.ops, state);
    for (uint64_t i = 0; i < state_slabs(state); i++)
        if (!(slab = zero_slab(mem, err)) || !sl_ops_add_state_slab(ops, slab, err))
            return false;
    return true;
}

/* ---- time ---------------------------------------------------------------------------------------------------------
 */

static bool run_step(probe *p, float *logits, double *took, sl_error *err) {
    int32_t pages[POSITION / SL_KV_PAGE_TOKENS + 1],
        zero = 0, position = p->m.config.context <= POSITION ? p->m.config.context - 1 : POSITION;
    for (int32_t i = 0; i < (int32_t)SL_COUNT(pages); i++)
        pages[i] = i;
    sl_step_seq seq = {.pages = pages, .page_count = (int32_t)SL_COUNT(pages), .state = p->state};
    sl_step step = {.rows = 1,
                    .token = &zero,
                    .seq = &zero,
                    .position = &position,
                    .seq_count = 1,
                    .seqs = &seq,
                    .outs = 1,
                    .out_rows = &zero,
                    .logits = logits};
    uint64_t began = sl_now_ns();
    bool ok = sl_model_forward(&p->m, &step, err);
    *took = (double)(sl_now_ns() - began) / 1e9;
    p->turn++;
    return ok;
}

/* The mean, as a speed over many tokens is one. */
static bool time_steps(probe *p, double seconds, sl_model_cost *out, sl_error *err) {
    float *logits = malloc((size_t)p->m.config.vocab * sizeof *logits);
    double took, all = 0;
    int n = 0;
    bool ok = logits || sl_fail(err, SL_ERR_MEMORY, "out of memory for logits");
    for (int i = 0; ok && i < WARMUP_STEPS; i++)
        ok = run_step(p, logits, &took, err);
    sl_ops_times_reset(p->m.ops);
    for (; ok && n < MOST_STEPS && (n < LEAST_STEPS || all < seconds); n++) {
        ok = run_step(p, logits, &took, err);
        all += took;
    }
    if (ok) {
        sl_ops_times t;
        sl_ops_times_get(p->m.ops, &t);
        out->head = (double)t.head / 1e9 / n;
        out->experts = (double)(t.expert_compute + t.expert_wait) / 1e9 / n / p->m.config.layers;
        out->layer = (all / n - out->head) / p->m.config.layers - out->experts;
    }
    free(logits);
    return ok;
}

/* Frees what is the probe's; the rest of p->m belongs to the model. */
static void close_probe(probe *p) {
    sl_program_free(p->m.program);
    if (p->m.weights_buffer)
        sl_ops_unwrap(p->m.ops, p->m.weights_buffer);
    free(p->m.inv_freq);
    free(p->m.layers);
    free(p->layer);
    free(p->state);
    free(p);
}

static probe *new_probe(const sl_model *m, sl_error *err) {
    probe *p = calloc(1, sizeof *p);
    if (p) {
        p->m = *m;
        p->m.inv_freq = NULL;
        p->m.layers = calloc((size_t)m->config.layers, sizeof *p->m.layers);
        p->layer = calloc((size_t)m->config.layers, sizeof *p->layer);
        p->state = calloc((size_t)m->config.layers, sizeof *p->state);
    }
    for (int32_t i = 0; p && p->state && i < m->config.layers; i++)
        p->state[i] = i;
    if (p && p->m.layers && p->layer && p->state)
        return p;
    if (p)
        close_probe(p);
    return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for measuring");
}

/* The allocator is made for this layout, since KV must lie in one slab. */
static bool measure_in(probe *p, sl_ops *ops, sl_mem *mem, const sl_kv_layout *kv, const sl_state_layout *state,
                       double seconds, sl_model_cost *out, sl_error *err) {
    sl_expert_source source = {.self = p, .begin = begin, .next = next, .done = done, .end = end};
    sl_ops_set_experts(ops, &source);
    return take_memory(p, mem, ops, err) && take_sequence(p, mem, ops, kv, state, err) &&
           time_steps(p, seconds, out, err);
}

bool sl_model_measure(const sl_model *m, bool moe, const sl_model_measure_options *o, sl_model_cost *out,
                      sl_error *err) {
    sl_kv_layout kv;
    sl_state_layout state;
    if (m->weights || m->config.top_k > SL_PROBE_TOP_K)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "a model that is loaded, or with %d experts per token",
                       m->config.top_k);
    probe *p = new_probe(m, err);
    if (p)
        p->reads = moe ? o->reads : NULL;
    sl_mem *small = p ? sl_mem_new(o->room, 64 << 10, err) : NULL;
    sl_ops_cpu_options options = o->ops;
    options.mem = small;
    sl_ops *ops = small ? sl_ops_cpu_new(&options, err) : NULL;
    bool ok = ops && choose_layout(p, m, moe, ops, o->kv, o->room, err);
    uint64_t slab = ok ? slab_bytes(p, o->kv, &kv, &state, err) : 0;
    sl_ops_free(ops);
    sl_mem_free(small);
    sl_mem *mem = slab ? sl_mem_new(o->room, slab, err) : NULL;
    options.mem = mem;
    ops = mem ? sl_ops_cpu_new(&options, err) : NULL;
    ok = ops && measure_in(p, ops, mem, &kv, &state, o->seconds, out, err);
    if (p)
        close_probe(p);
    sl_ops_free(ops);
    sl_mem_free(mem);
    return ok;
}

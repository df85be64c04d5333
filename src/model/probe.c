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
    int32_t spare;         /* experts laid out per layer, >= top_k */
    uint64_t expert_bytes; /* of all of them */
    uint8_t *experts;
    uint64_t turn; /* steps that were run: each takes other experts */
    int32_t now, count, given, ids[SL_PROBE_TOP_K];
} probe;

/* ---- experts: always there ----------------------------------------------------------------------------------------
 */

static bool begin(void *self, int32_t layer, const int32_t *ids, int32_t n, sl_expert_order order, sl_error *err) {
    probe *p = self;
    (void)order;
    if (n > SL_PROBE_TOP_K)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%d experts at once", n);
    memcpy(p->ids, ids, (size_t)n * sizeof *ids);
    p->now = layer;
    p->count = n;
    p->given = 0;
    return true;
}

static int next(void *self, sl_expert_view *out, int max, sl_error *err) {
    probe *p = self;
    const probe_layer *l = &p->layer[p->now];
    int n = 0;
    (void)err;
    for (; n < max && p->given < p->count; n++, p->given++) {
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

/* `n` layers of one kind, evenly out of those of `from`, and `spare` experts in each. */
static void lay_out(probe *p, const sl_model *from, bool moe, int32_t kind, int32_t n, int32_t spare) {
    int32_t taken = 0, seen = 0;
    p->spare = spare;
    p->expert_bytes = 0;
    memcpy(p->m.global, from->global, sizeof p->m.global);
    shorten_embedding(&p->m);
    for (int32_t l = 0; l < from->config.layers; l++) {
        if (from->layers[l].moe != moe)
            continue;
        if (taken < n && (int64_t)seen * n / kind >= taken) {
            p->m.layers[taken] = from->layers[l];
            if (moe) {
                place_experts(p, taken, from->layers[l].moe_index);
                p->m.layers[taken].moe_index = taken;
            }
            taken++;
        }
        seen++;
    }
    p->m.config.layers = taken;
    p->m.config.moe_layers = moe ? taken : 0;
    model_place(&p->m);
}

static uint64_t kv_bytes(const probe *p, sl_kv_format format, sl_kv_layout *kv, sl_error *err) {
    uint64_t slab = 64 << 10;
    if (!sl_model_kv_layout(&p->m, format, kv, err) || !sl_kv_layout_init(kv, 64 << 20, err))
        return 0;
    uint64_t blocks = POSITION / SL_KV_PAGE_TOKENS + 1;
    while (slab < blocks * kv->block_bytes)
        slab *= 2;
    return slab <= 64 << 20 && sl_kv_layout_init(kv, slab, err) ? slab : 0;
}

static uint64_t probe_bytes(const probe *p, const sl_ops *ops, sl_kv_format format) {
    sl_kv_layout kv;
    return p->m.resident_bytes + p->expert_bytes + kv_bytes(p, format, &kv, NULL) +
           sl_model_scratch_bytes(&p->m, ops, 1, 1) + ROUNDING;
}

/* As many layers as fit, at least one; then as many experts. */
static bool choose_layout(probe *p, const sl_model *from, bool moe, const sl_ops *ops, sl_kv_format format,
                          uint64_t room, sl_error *err) {
    int32_t kind = moe ? from->config.moe_layers : from->config.layers - from->config.moe_layers, n = kind,
            least = moe ? from->config.top_k : 0, experts = from->config.experts;
    lay_out(p, from, moe, kind, 1, least);
    uint64_t one = probe_bytes(p, ops, format), most = one + BEYOND_CACHES;
    if (one > room)
        return sl_fail(err, SL_ERR_BUDGET, "%llu bytes are needed to measure one layer", (unsigned long long)one);
    most = most < room ? most : room;
    for (;; n = n > 8 ? n * 7 / 8 : n - 1) {
        lay_out(p, from, moe, kind, n, least);
        if (n == 1 || probe_bytes(p, ops, format) <= most)
            break;
    }
    for (int32_t spare = experts; moe && spare > least; spare = spare * 3 / 4) {
        lay_out(p, from, moe, kind, n, spare);
        if (probe_bytes(p, ops, format) <= most)
            return true;
    }
    lay_out(p, from, moe, kind, n, least);
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

static bool take_kv(const probe *p, sl_mem *mem, sl_ops *ops, const sl_kv_layout *kv, sl_error *err) {
    void *slab = sl_mem_slab(mem, SL_USE_KV, err);
    if (!slab)
        return false;
    memset(slab, 0, sl_mem_slab_bytes(mem));
    sl_ops_set_kv(p->m.ops, kv);
    return sl_ops_add_kv_slab(ops, slab, err);
}

/* ---- time ---------------------------------------------------------------------------------------------------------
 */

static bool run_step(probe *p, float *logits, double *took, sl_error *err) {
    int32_t pages[POSITION / SL_KV_PAGE_TOKENS + 1],
        zero = 0, position = p->m.config.context <= POSITION ? p->m.config.context - 1 : POSITION;
    for (int32_t i = 0; i < (int32_t)SL_COUNT(pages); i++)
        pages[i] = i;
    sl_step_seq seq = {.pages = pages, .page_count = (int32_t)SL_COUNT(pages)};
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
    free(p);
}

static probe *new_probe(const sl_model *m, sl_error *err) {
    probe *p = calloc(1, sizeof *p);
    if (p) {
        p->m = *m;
        p->m.inv_freq = NULL;
        p->m.layers = calloc((size_t)m->config.layers, sizeof *p->m.layers);
        p->layer = calloc((size_t)m->config.layers, sizeof *p->layer);
    }
    if (p && p->m.layers && p->layer)
        return p;
    if (p)
        close_probe(p);
    return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for measuring");
}

/* The allocator is made for this layout, since KV must lie in one slab. */
static bool measure_in(probe *p, sl_ops *ops, sl_mem *mem, const sl_kv_layout *kv, double seconds, sl_model_cost *out,
                       sl_error *err) {
    sl_expert_source source = {.self = p, .begin = begin, .next = next, .done = done, .end = end};
    sl_ops_set_experts(ops, &source);
    return take_memory(p, mem, ops, err) && take_kv(p, mem, ops, kv, err) && time_steps(p, seconds, out, err);
}

bool sl_model_measure(const sl_model *m, bool moe, const sl_model_measure_options *o, sl_model_cost *out,
                      sl_error *err) {
    sl_kv_layout kv;
    if (m->weights || m->config.top_k > SL_PROBE_TOP_K)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "a model that is loaded, or with %d experts per token",
                       m->config.top_k);
    probe *p = new_probe(m, err);
    sl_mem *small = p ? sl_mem_new(o->room, 64 << 10, err) : NULL;
    sl_ops_cpu_options options = o->ops;
    options.mem = small;
    sl_ops *ops = small ? sl_ops_cpu_new(&options, err) : NULL;
    bool ok = ops && choose_layout(p, m, moe, ops, o->kv, o->room, err);
    uint64_t slab = ok ? kv_bytes(p, o->kv, &kv, err) : 0;
    sl_ops_free(ops);
    sl_mem_free(small);
    sl_mem *mem = slab ? sl_mem_new(o->room, slab, err) : NULL;
    options.mem = mem;
    ops = mem ? sl_ops_cpu_new(&options, err) : NULL;
    ok = ops && measure_in(p, ops, mem, &kv, o->seconds, out, err);
    if (p)
        close_probe(p);
    sl_ops_free(ops);
    sl_mem_free(mem);
    return ok;
}

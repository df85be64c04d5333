#include "support_fixture.h"

#include <stdlib.h>
#include <string.h>

/* Every routed expert read into memory: an expert source without a cache. */
typedef struct all_experts {
    uint8_t ***part; /* [layer][expert * SL_EXPERT_PARTS + part] */
    int32_t layers, experts;
    bool reverse;
    int32_t fail_expert;
    int32_t layer, n, next;
    const int32_t *ids;
    sl_expert_order order;
    bool failed;
} all_experts;

static bool begin(void *self, int32_t layer, const int32_t *ids, int32_t n, sl_expert_order order, sl_error *err) {
    all_experts *a = self;
    a->layer = layer;
    a->ids = ids;
    a->n = n;
    a->next = 0;
    a->order = order;
    a->failed = false;
    return true;
}

/* At most three at a time, so that a step needs several rounds. */
static int next(void *self, sl_expert_view *out, int max, sl_error *err) {
    all_experts *a = self;
    int n = 0;
    while (n < max && n < 3 && a->next < a->n) {
        int32_t id = a->reverse && a->order == SL_ORDER_READY ? a->ids[a->n - 1 - a->next] : a->ids[a->next];
        if (a->layer == 0 && id == a->fail_expert) {
            if (n > 0)
                return n;
            a->next++;
            out[0].id = id;
            sl_fail(err, SL_ERR_IO, "expert %d: injected", id);
            return -1;
        }
        out[n].id = id;
        out[n].slot = id;
        for (int p = 0; p < SL_EXPERT_PARTS; p++)
            out[n].part[p] = a->part[a->layer][id * SL_EXPERT_PARTS + p];
        a->next++;
        n++;
    }
    return n;
}

static void done(void *self, const sl_expert_view *views, int n) {}
static void end(void *self) {}

static all_experts *read_experts(const sl_ckpt *c, const sl_model *m, const fixture_options *o) {
    all_experts *a = calloc(1, sizeof *a);
    const sl_model_experts *e = sl_model_expert_layers(m, &a->layers);
    a->part = calloc((size_t)a->layers + 1, sizeof *a->part);
    a->reverse = o->reverse;
    a->fail_expert = o->fail_expert;
    for (int32_t l = 0; l < a->layers; l++) {
        a->experts = e[l].experts;
        a->part[l] = calloc((size_t)e[l].experts * SL_EXPERT_PARTS, sizeof **a->part);
        for (int i = 0; i < e[l].experts * SL_EXPERT_PARTS; i++) {
            const sl_extent *x = &e[l].extent[i];
            if (!x->bytes)
                continue;
            a->part[l][i] = malloc(x->bytes);
            sl_file_read(sl_ckpt_file(c, x->file), x->offset, a->part[l][i], x->bytes, NULL);
        }
    }
    return a;
}

static void free_experts(all_experts *a) {
    for (int32_t l = 0; a && l < a->layers; l++) {
        for (int i = 0; i < a->experts * SL_EXPERT_PARTS; i++)
            free(a->part[l][i]);
        free(a->part[l]);
    }
    if (a)
        free(a->part);
    free(a);
}

static bool set_up_kv(fixture *f, const fixture_options *o, sl_error *err) {
    if (!sl_model_kv_layout(f->model, o->kv, &f->kv, err) || !sl_kv_layout_init(&f->kv, sl_mem_slab_bytes(f->mem), err))
        return false;
    sl_ops_set_kv(f->ops, &f->kv);
    f->sequences = o->sequences;
    f->page_count = (o->context + SL_KV_PAGE_TOKENS - 1) / SL_KV_PAGE_TOKENS;
    int32_t blocks = f->page_count * f->sequences;
    f->pages = malloc((size_t)blocks * sizeof *f->pages);
    /* Blocks in an order that is not the sequences' own: page tables must be followed. */
    for (int32_t i = 0; i < blocks; i++)
        f->pages[i] = blocks - 1 - i;
    for (int32_t b = 0; b < blocks; b += f->kv.blocks_per_slab) {
        void *slab = sl_mem_slab(f->mem, SL_USE_KV, err);
        if (!slab)
            return false;
        memset(slab, 0xff, sl_mem_slab_bytes(f->mem)); /* NaN: what was never stored must not be read */
        if (!sl_ops_add_kv_slab(f->ops, slab, err))
            return false;
    }
    return true;
}

/* Blocks of recurrent state, handed out from the end, full of NaN: a sequence begins from zeros. */
static bool set_up_state(fixture *f, const fixture_options *o, sl_error *err) {
    sl_model_state(f->model, sl_state_keeps(f->gpu != NULL, o->numeric == SL_NUMERIC_EXACT), &f->state);
    if (f->state.layers == 0)
        return true;
    if (!sl_state_layout_init(&f->state, sl_mem_slab_bytes(f->mem), err))
        return false;
    sl_ops_set_state(f->ops, &f->state);
    int32_t blocks = f->state.layers * f->sequences;
    f->blocks = malloc((size_t)blocks * sizeof *f->blocks);
    for (int32_t i = 0; i < blocks; i++)
        f->blocks[i] = blocks - 1 - i;
    for (int32_t b = 0; b < blocks; b += f->state.blocks_per_slab) {
        void *slab = sl_mem_slab(f->mem, SL_USE_KV, err);
        if (!slab)
            return false;
        memset(slab, 0xff, sl_mem_slab_bytes(f->mem));
        if (!sl_ops_add_state_slab(f->ops, slab, err))
            return false;
    }
    return true;
}

static bool open_ops(fixture *f, const fixture_options *o, sl_error *err) {
    sl_ops_cpu_options ops = {.pool = f->pool, .mem = f->mem, .numeric = o->numeric, .isa = o->isa};
    sl_gpu_options gpu = SL_GPU_OPTIONS_INIT;
    gpu.device = o->device;
    gpu.cache_dir = o->cache_dir;
    if (!o->device)
        f->ops = sl_ops_cpu_new(&ops, err);
    else if ((f->gpu = sl_gpu_open(&gpu, err)))
        f->ops = sl_ops_gpu_new(f->gpu, f->mem, err);
    return f->ops != NULL;
}

static bool open_all(fixture *f, const fixture_options *o, sl_error *err) {
    f->ckpt = sl_ckpt_open(o->path, err);
    f->model = f->ckpt ? sl_model_open(f->ckpt, err) : NULL;
    f->mem = f->model ? sl_mem_new_gathered(512u << 20, 1u << 20, SL_GPU_PIECES, err) : NULL;
    f->pool = f->mem ? sl_pool_new(o->threads, err) : NULL;
    if (!f->pool)
        return false;
    if (!open_ops(f, o, err))
        return false;
    f->experts = read_experts(f->ckpt, f->model, o);
    sl_expert_source source = {.self = f->experts, .begin = begin, .next = next, .done = done, .end = end};
    sl_ops_set_experts(f->ops, &source);
    return set_up_kv(f, o, err) && set_up_state(f, o, err) &&
           sl_model_load(f->model, f->mem, f->ops, o->max_rows, o->max_rows, NULL, NULL, err);
}

fixture *fixture_open(const fixture_options *o, sl_error *err) {
    fixture *f = calloc(1, sizeof *f);
    if (open_all(f, o, err))
        return f;
    fixture_close(f);
    return NULL;
}

void fixture_close(fixture *f) {
    if (!f)
        return;
    sl_model_free(f->model);
    sl_ops_free(f->ops);
    sl_gpu_close(f->gpu);
    sl_pool_free(f->pool);
    sl_mem_free(f->mem);
    sl_ckpt_close(f->ckpt);
    free_experts(f->experts);
    free(f->pages);
    free(f->blocks);
    free(f);
}

bool fixture_run(fixture *f, const int32_t *tokens, const int32_t *seq, const int32_t *position, int32_t rows,
                 float *logits, uint8_t *failed, sl_error *err) {
    sl_step_seq *seqs = calloc((size_t)f->sequences, sizeof *seqs);
    int32_t *outs = malloc((size_t)rows * sizeof *outs);
    for (int32_t i = 0; i < f->sequences; i++)
        seqs[i] = (sl_step_seq){f->pages + i * f->page_count, f->page_count,
                                f->blocks ? f->blocks + i * f->state.layers : NULL};
    for (int32_t i = 0; i < rows; i++)
        outs[i] = i;
    sl_step step = {.rows = rows,
                    .token = tokens,
                    .seq = seq,
                    .position = position,
                    .seq_count = f->sequences,
                    .seqs = seqs,
                    .outs = rows,
                    .out_rows = outs,
                    .logits = logits,
                    .row_failed = failed};
    bool ok = sl_model_forward(f->model, &step, err);
    free(seqs);
    free(outs);
    return ok;
}

/* What decoding will cost, measured before anything is loaded. */
#include "engine/internal.h"
#include "engine/random.h"
#include "experts/experts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- reads ------------------------------------------------------------------------------------------------------ */

enum { BLOCK = 4096, HUGE_PAGE = 2 << 20, RESULTS = 8 };

/* Experts chosen at random are read as the store would, to places that nobody looks at. */
typedef struct reads {
    sl_engine *e;
    sl_reader *reader;
    uint8_t *area;
    uint64_t slot; /* bytes of an expert's place, of which there are top_k */
    double missing;
    uint64_t random;
    int32_t layer;                   /* the next one's number */
    int32_t pending[SL_PROBE_TOP_K]; /* reads of each expert that are under way */
} reads;

/* Expert number k of the layer, to its place. */
static bool read_expert(reads *r, int32_t layer, int32_t k, sl_error *err) {
    sl_trace_read what[SL_EXPERT_PARTS];
    sl_read list[SL_EXPERT_PARTS];
    const sl_expert_layer *l = &r->e->expert_layers[layer];
    int32_t expert = (int32_t)(engine_random(&r->random) % (uint64_t)l->experts);
    int32_t n = sl_experts_reads_of(l, r->e->ckpt, expert, r->reader->direct, what);
    uint64_t at = (uint64_t)k * r->slot;
    for (int32_t i = 0; i < n; i++) {
        const sl_file *f = sl_ckpt_file(r->e->ckpt, what[i].file);
        uint64_t left = f->size - what[i].offset;
        list[i] = (sl_read){.file = f,
                            .offset = what[i].offset,
                            .bytes = what[i].bytes,
                            .dst = r->area + at,
                            .need = what[i].bytes < left ? what[i].bytes : left,
                            .tag = &r->pending[k]};
        at += sl_round_up(what[i].bytes, BLOCK);
    }
    r->pending[k] = n;
    return n > 0 && r->reader->submit(r->reader, list, n, err);
}

static int32_t begin_reads(void *self, int32_t n, sl_error *err) {
    reads *r = self;
    int32_t missing = 0, layer = r->layer++ % sl_model_config_get(r->e->model)->moe_layers;
    for (int32_t i = 0; i < n; i++)
        if (engine_random_unit(&r->random) < r->missing && !read_expert(r, layer, missing++, err))
            return -1;
    return missing;
}

static int32_t wait_reads(void *self, int32_t max, sl_error *err) {
    reads *r = self;
    sl_read_result got[RESULTS];
    int32_t came = 0;
    while (came == 0) {
        int n = r->reader->collect(r->reader, got, RESULTS, UINT64_MAX);
        if (n <= 0)
            return sl_fail(err, SL_ERR_IO, "no read is under way, %d experts are waited for", max), -1;
        for (int i = 0; i < n; i++) {
            if (!got[i].ok) {
                *err = got[i].error;
                return -1;
            }
            came += --*(int32_t *)got[i].tag == 0;
        }
    }
    return came;
}

static void close_reads(reads *r) {
    if (r->reader)
        r->reader->close(r->reader);
    free(r->area);
    r->area = NULL;
    r->reader = NULL;
}

/* Takes at most half of *memory, and that off it. */
static bool open_reads(reads *r, sl_engine *e, double missing, uint64_t *memory, sl_error *err) {
    const sl_model_config *c = sl_model_config_get(e->model);
    *r = (reads){.e = e, .missing = missing, .random = 1, .slot = sl_round_up(e->slot_bytes, BLOCK)};
    r->slot += SL_EXPERT_PARTS * BLOCK;
    uint64_t bytes = sl_round_up(r->slot * (uint64_t)c->top_k, HUGE_PAGE);
    void *area = NULL;
    if (bytes > *memory / 2)
        return sl_fail(err, SL_ERR_BUDGET, "%llu bytes are needed to read a token's experts to",
                       (unsigned long long)bytes);
    if (posix_memalign(&area, HUGE_PAGE, bytes) != 0)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for reads of experts");
#ifdef MADV_HUGEPAGE
    madvise(area, bytes, MADV_HUGEPAGE); /* as the engine's slabs: reads to small pages are more requests */
#endif
    memset(area, 0, bytes);
    r->area = area;
    *memory -= bytes;
    r->reader = engine_open_reader(e, false, NULL, NULL, err);
    if (r->reader && r->reader->add_memory)
        r->reader->add_memory(r->reader, area, bytes);
    if (!r->reader)
        close_reads(r);
    return r->reader != NULL;
}

/* ---- time ------------------------------------------------------------------------------------------------------- */

static sl_kv_format kv_format(const sl_engine *e) {
    return strcmp(e->kv_type, "q8_0") == 0 ? SL_KV_Q8_0 : strcmp(e->kv_type, "f32") == 0 ? SL_KV_F32 : SL_KV_F16;
}

static bool measure(sl_engine *e, const sl_measure_reads *how, uint64_t memory, double seconds, sl_decode_cost *out,
                    sl_error *err) {
    const sl_model_config *c = sl_model_config_get(e->model);
    int32_t dense = c->layers - c->moe_layers;
    sl_model_cost with = {0}, without = {0};
    sl_model_measure_options o = {
        .ops = {.pool = e->pool, .isa = e->isa}, .kv = kv_format(e), .room = memory, .reads = how};
    bool exact = strcmp(e->numeric, "exact") == 0;
    o.ops.numeric = exact ? SL_NUMERIC_EXACT : SL_NUMERIC_Q8;
    o.ops.isa = exact ? NULL : e->isa;
    o.seconds = dense > 0 && c->moe_layers > 0 ? seconds / 2 : seconds;
    if ((c->moe_layers > 0 && !sl_model_measure(e->model, true, &o, &with, err)) ||
        (dense > 0 && !sl_model_measure(e->model, false, &o, &without, err)))
        return false;
    sl_decode_cost all = {.dense_seconds = (c->moe_layers > 0 ? with.head : without.head) + with.layer * c->moe_layers +
                                           without.layer * dense,
                          .expert_seconds = with.experts * c->moe_layers};
    return engine_give(out, &all, sizeof all);
}

static bool can_measure(const sl_engine *e, sl_error *err) {
    return (e->options.plan_only && !e->gpu) ||
           sl_fail(err, SL_ERR_UNSUPPORTED, "decoding is measured on the CPU, before weights are loaded");
}

bool sl_engine_measure(sl_engine *e, uint64_t memory, double seconds, sl_decode_cost *out, sl_error *err) {
    return can_measure(e, err) && measure(e, NULL, memory, seconds, out, err);
}

bool sl_engine_measure_reading(sl_engine *e, double missing, uint64_t memory, double seconds, sl_decode_cost *out,
                               sl_error *err) {
    const sl_model_config *c = sl_model_config_get(e->model);
    reads r;
    if (!can_measure(e, err))
        return false;
    if (c->moe_layers == 0 || c->top_k > SL_PROBE_TOP_K)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "nothing is read of a model with %d layers of experts, %d per token",
                       c->moe_layers, c->top_k);
    if (!open_reads(&r, e, missing, &memory, err))
        return false;
    sl_measure_reads how = {&r, begin_reads, wait_reads};
    bool ok = measure(e, &how, memory, seconds, out, err);
    close_reads(&r);
    return ok;
}

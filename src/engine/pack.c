/* sl_pack: a model's tensors and experts, as the model part finds them, go to the pack's writer; calibration runs the
 * model over a text and watches what its experts are multiplied with. */
#include "engine/internal.h"

#include "checkpoint/pack.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { DEFAULT_GROUP = 64, CALIBRATION_CONTEXT = 2048, CALIBRATION_STEP = 128, DEFAULT_CALIBRATION = 65536 };

_Static_assert((int)SL_PACK_PARTS == (int)SL_EXPERT_PARTS, "an expert's parts");

typedef struct packing {
    sl_pack_options o;
    char *path;
    sl_ckpt *ckpt;
    sl_model *model;
    sl_pool *pool;
    size_t *tensors;
    size_t tensor_count;
    sl_pack_layer *layers;
    sl_extent **own; /* [layers] extents that are not the model's, NULL: they are */
    int32_t layer_count;
    sl_pack_writer *writer;
    float *importance; /* per layer [hidden], then [ffn] */
    size_t importance_count;
} packing;

/* ---- what goes in -------------------------------------------------------------------------------------------------
 */

typedef struct span {
    int32_t file;
    uint64_t begin, end;
} span;

static int by_place(const void *a, const void *b) {
    const span *x = a, *y = b;
    return x->file != y->file ? (x->file > y->file) - (x->file < y->file)
                              : (x->begin > y->begin) - (x->begin < y->begin);
}

/* Where the experts' bytes are, sorted. */
static span *expert_spans(const packing *p, size_t *count) {
    size_t n = 0;
    for (int32_t i = 0; i < p->layer_count; i++)
        n += (size_t)p->layers[i].experts * SL_PACK_PARTS;
    span *v = calloc(n + 1, sizeof *v);
    *count = 0;
    for (int32_t i = 0; v && i < p->layer_count; i++)
        for (int32_t k = 0; k < p->layers[i].experts * SL_PACK_PARTS; k++) {
            const sl_extent *x = &p->layers[i].extent[k];
            if (x->bytes)
                v[(*count)++] = (span){x->file, x->offset, x->offset + x->bytes};
        }
    if (v)
        qsort(v, *count, sizeof *v, by_place);
    return v;
}

static bool holds_experts(const sl_tensor *t, const span *v, size_t n) {
    for (int32_t i = 0; i < t->parts; i++) {
        span part = {t->part[i].file, t->part[i].offset, t->part[i].offset + t->part[i].bytes};
        size_t low = 0, high = n; /* the first span that does not begin before the part */
        while (low < high) {
            size_t mid = (low + high) / 2;
            if (by_place(&v[mid], &part) < 0)
                low = mid + 1;
            else
                high = mid;
        }
        if ((low < n && v[low].file == part.file && v[low].begin < part.end) ||
            (low > 0 && v[low - 1].file == part.file && v[low - 1].end > part.begin))
            return true;
    }
    return false;
}

/* The tensors that the model reads and that are not the experts'. */
static bool choose_tensors(packing *p, sl_error *err) {
    size_t n = sl_ckpt_tensor_count(p->ckpt), spans;
    span *v = expert_spans(p, &spans);
    p->tensors = calloc(n + 1, sizeof *p->tensors);
    bool ok = (v && p->tensors) || sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", p->path);
    for (size_t i = 0; ok && i < n; i++)
        if (sl_model_uses(p->model, i) && !holds_experts(sl_ckpt_tensor(p->ckpt, i), v, spans))
            p->tensors[p->tensor_count++] = i;
    free(v);
    return ok;
}

/* A projection's layout as a tensor of two dimensions, its rows one after the other. Where they are not so in the
 * source (gate and up may alternate), stride says how far apart. */
static bool matrix_tensor(const sl_matrix *m, sl_tensor *out, uint64_t stride[3], sl_error *err) {
    sl_matrix whole = *m;
    if (!sl_matrix_layout(&whole, err))
        return false;
    *out = (sl_tensor){.name = "",
                       .format = m->format,
                       .group = m->group,
                       .side = m->side,
                       .dims = 2,
                       .shape = {m->rows, m->cols},
                       .parts = sl_format_get(m->format)->parts};
    for (int32_t i = 0; i < out->parts; i++) {
        out->part[i].bytes = sl_matrix_part_bytes(&whole, i);
        stride[i] = m->row_bytes[i] == whole.row_bytes[i] ? 0 : m->row_bytes[i];
    }
    return true;
}

/* Gate and up that alternate in one matrix become two, each with every second row of its extents. */
static bool separate(sl_pack_layer *l, sl_matrix m[SL_PROJ_COUNT], sl_extent **own, sl_error *err) {
    size_t n = (size_t)l->experts * SL_PACK_PARTS;
    *own = malloc(n * sizeof **own);
    if (!*own)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %d experts", l->experts);
    memcpy(*own, l->extent, n * sizeof **own);
    for (size_t i = 0; i < n; i++) {
        size_t part = i % SL_PACK_PARTS;
        if (part >= 3 || !l->extent[i].bytes)
            continue;
        uint64_t row = m[SL_PROJ_GATE].row_bytes[part];
        (*own)[i].bytes -= row;
        (*own)[i + 3] = (sl_extent){l->extent[i].file, l->extent[i].offset + row, l->extent[i].bytes - row};
    }
    l->extent = *own;
    m[SL_PROJ_GATE] = m[SL_PROJ_UP] = sl_matrix_every(&m[SL_PROJ_GATE], 0, 2);
    return true;
}

static bool choose_layer(const packing *p, int32_t i, const sl_model_experts *e, sl_extent **own, sl_error *err) {
    sl_pack_layer *l = &p->layers[i];
    sl_matrix m[SL_PROJ_COUNT];
    memcpy(m, sl_model_expert_matrices(p->model, i, &l->layer), sizeof m);
    l->experts = e->experts;
    l->extent = e->extent;
    bool ok = m[SL_PROJ_UP].rows > 0 || separate(l, m, own, err);
    for (int proj = 0; ok && proj < SL_PROJ_COUNT; proj++)
        ok = matrix_tensor(&m[proj], &l->proj[proj], l->stride[proj], err);
    return ok || sl_fail_prefix(err, "layer %d", l->layer);
}

static bool choose_layers(packing *p, sl_error *err) {
    const sl_model_experts *e = sl_model_expert_layers(p->model, &p->layer_count);
    if (p->layer_count == 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: has no routed experts: a pack would gain nothing", p->path);
    p->layers = calloc((size_t)p->layer_count, sizeof *p->layers);
    p->own = calloc((size_t)p->layer_count, sizeof *p->own);
    if (!p->layers || !p->own)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", p->path);
    for (int32_t i = 0; i < p->layer_count; i++)
        if (!choose_layer(p, i, &e[i], &p->own[i], err))
            return false;
    return true;
}

/* ---- calibration ---------------------------------------------------------------------------------------------------
 */

/* Sums of squares per column, in double, and of how many rows. */
typedef struct calibration {
    const packing *p;
    double *sum;    /* as importance */
    size_t *begin;  /* [layers] where a layer's values begin */
    uint64_t *rows; /* [layers][2] */
} calibration;

static void watch_inputs(void *self, const sl_moe *m, bool inner, const float *x, int64_t stride, int32_t rows,
                         int32_t cols) {
    calibration *c = self;
    double *sum = c->sum + c->begin[m->layer] + (inner ? c->p->layers[m->layer].proj[0].shape[1] : 0);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t i = 0; i < cols; i++)
            sum[i] += (double)x[r * stride + i] * (double)x[r * stride + i];
    c->rows[2 * m->layer + inner] += (uint64_t)rows;
}

static size_t layer_values(const sl_pack_layer *l) {
    return (size_t)(l->proj[0].shape[1] + l->proj[2].shape[1]);
}

static bool calibration_open(calibration *c, packing *p, sl_error *err) {
    *c = (calibration){.p = p};
    c->begin = calloc((size_t)p->layer_count, sizeof *c->begin);
    c->rows = calloc((size_t)p->layer_count * 2, sizeof *c->rows);
    c->sum = calloc(p->importance_count, sizeof *c->sum);
    size_t at = 0;
    for (int32_t i = 0; c->begin && i < p->layer_count; i++) {
        c->begin[i] = at;
        at += layer_values(&p->layers[i]);
    }
    return (c->begin && c->rows && c->sum) || sl_fail(err, SL_ERR_MEMORY, "out of memory for the calibration");
}

static void calibration_close(calibration *c) {
    free(c->begin);
    free(c->rows);
    free(c->sum);
}

/* Mean squares. A column that never was anything but zero does not matter; a little keeps it from being free. */
static void take_means(const calibration *c, packing *p) {
    for (int32_t i = 0; i < p->layer_count; i++) {
        size_t hidden = (size_t)p->layers[i].proj[0].shape[1], n = layer_values(&p->layers[i]);
        for (int inner = 0; inner < 2; inner++) {
            size_t from = c->begin[i] + (inner ? hidden : 0), to = c->begin[i] + (inner ? n : hidden);
            double rows = (double)(c->rows[2 * i + inner] ? c->rows[2 * i + inner] : 1), mean = 0;
            for (size_t k = from; k < to; k++)
                mean += c->sum[k] / rows / (double)(to - from);
            for (size_t k = from; k < to; k++)
                p->importance[k] = (float)(mean > 0 ? c->sum[k] / rows / mean + 1e-3 : 1);
        }
    }
}

static bool report_progress(const packing *p, sl_pack_stage stage, uint64_t done, uint64_t total, sl_error *err) {
    return !p->o.progress || p->o.progress(p->o.progress_user, stage, done, total) ||
           sl_fail(err, SL_ERR_CANCELLED, "%s: stopped", p->o.out);
}

/* Runs the model over the ids in windows of the engine's context. */
static bool run_text(const packing *p, sl_engine *e, const int32_t *ids, size_t count, sl_error *err) {
    sl_input in[CALIBRATION_STEP];
    size_t context = (size_t)e->context;
    sl_seq *seq = NULL;
    bool ok = true;
    for (size_t at = 0, n; ok && at < count; at += n) {
        if (at % context == 0) {
            sl_seq_free(seq);
            seq = sl_seq_new(e, err);
        }
        n = context - at % context;
        n = n < CALIBRATION_STEP ? n : CALIBRATION_STEP;
        n = n < count - at ? n : count - at;
        for (size_t i = 0; i < n; i++)
            in[i] = (sl_input){.seq = seq, .token = ids[at + i]};
        ok = seq && report_progress(p, SL_PACK_CALIBRATE, at, count, err) && sl_decode(e, in, n, NULL, err);
    }
    sl_seq_free(seq);
    return ok && report_progress(p, SL_PACK_CALIBRATE, count, count, err);
}

typedef struct watch_call {
    sl_engine *e;
    const sl_moe_watch *watch;
    sl_error *err;
    bool ok;
} watch_call;

static void switch_watch(void *ctx) {
    watch_call *c = ctx;
    c->ok = sl_ops_watch_moe(c->e->ops, c->watch, c->err);
}

static size_t calibration_tokens(const sl_pack_options *o) {
    return o->calibration_tokens > 0 ? (size_t)o->calibration_tokens : DEFAULT_CALIBRATION;
}

/* As much of the text as may have so many tokens: the rest need not be read by the tokenizer. */
static size_t calibration_bytes(const sl_pack_options *o) {
    const size_t most = calibration_tokens(o) * 32;
    return o->calibration_size <= most ? o->calibration_size : sl_utf8_complete(o->calibration, most);
}

static bool run_calibration(packing *p, calibration *c, sl_error *err) {
    sl_engine_options o = SL_ENGINE_OPTIONS_INIT;
    o.model = p->path;
    o.memory = p->o.memory;
    o.threads = p->o.threads;
    o.context = sl_model_config_get(p->model)->context < CALIBRATION_CONTEXT ? 0 : CALIBRATION_CONTEXT;
    o.max_sequences = 1;
    o.log = p->o.log;
    o.log_level = p->o.log_level;
    o.log_user = p->o.log_user;
    sl_engine *e = sl_engine_open(&o, err);
    int32_t *ids = NULL;
    size_t count = 0;
    sl_moe_watch watch = {.self = c, .inputs = watch_inputs};
    watch_call call = {.e = e, .watch = &watch, .err = err};
    bool ok = e && sl_tokenize(e, p->o.calibration, calibration_bytes(&p->o), false, true, &ids, &count, err) &&
              (count > 0 || sl_fail(err, SL_ERR_ARGUMENT, "the calibration text has no tokens"));
    if (ok && count > calibration_tokens(&p->o)) {
        sl_logf(&e->log, SL_LOG_WARN, "calibrating with the first %zu tokens of the text", calibration_tokens(&p->o));
        count = calibration_tokens(&p->o);
    }
    ok = ok && engine_call_run(e, switch_watch, &call) && call.ok && run_text(p, e, ids, count, err);
    sl_engine_close(e);
    sl_free(ids);
    return ok;
}

/* Importance from the text, or what an interrupted pack kept of it. */
static bool calibrate(packing *p, sl_error *err) {
    calibration c = {0};
    for (int32_t i = 0; i < p->layer_count; i++)
        p->importance_count += layer_values(&p->layers[i]);
    p->importance = calloc(p->importance_count, sizeof *p->importance);
    if (!p->importance)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the calibration");
    if (sl_pack_load_importance(p->writer, p->importance, p->importance_count, err))
        return true;
    bool ok = calibration_open(&c, p, err) && run_calibration(p, &c, err);
    if (ok) {
        take_means(&c, p);
        ok = sl_pack_save_importance(p->writer, p->importance, p->importance_count, err);
    }
    calibration_close(&c);
    return ok;
}

/* ---- the whole ----------------------------------------------------------------------------------------------------
 */

static bool on_write(void *user, uint64_t done, uint64_t total) {
    return report_progress(user, SL_PACK_WRITE, done, total, NULL);
}

static bool check_options(const sl_pack_options *o, sl_error *err) {
    if (!o->model || !*o->model || !o->out || !*o->out)
        return sl_fail(err, SL_ERR_ARGUMENT, "pack: a model and a target expected");
    if (o->bits != 0 && o->bits != 2 && o->bits != 3 && o->bits != 4 && o->bits != 8)
        return sl_fail(err, SL_ERR_ARGUMENT, "pack: %d bits, expected 2, 3, 4 or 8", o->bits);
    if (o->group != 0 && o->group != 32 && o->group != 64 && o->group != 128)
        return sl_fail(err, SL_ERR_ARGUMENT, "pack: groups of %d, expected 32, 64 or 128", o->group);
    if (!o->bits && (o->group || o->calibration))
        return sl_fail(err, SL_ERR_ARGUMENT, "pack: %s is of experts that are requantised (bits)",
                       o->group ? "a group" : "a calibration");
    return true;
}

static sl_pack_affine affine_of(const sl_pack_options *o) {
    sl_pack_affine a = {.bits = o->bits, .group = o->bits ? o->group ? o->group : DEFAULT_GROUP : 0};
    if (o->calibration)
        a.calibration =
            XXH3_64bits_withSeed(o->calibration, o->calibration_size, (XXH64_hash_t)o->calibration_tokens) | 1;
    return a;
}

static bool open_source(packing *p, sl_error *err) {
    p->path = sl_model_locate(p->o.model, err);
    p->ckpt = p->path ? sl_ckpt_open(p->path, err) : NULL;
    p->model = p->ckpt ? sl_model_open(p->ckpt, err) : NULL;
    return p->model && choose_layers(p, err) && choose_tensors(p, err);
}

static bool open_writer(packing *p, sl_error *err) {
    p->pool = sl_pool_new(p->o.threads > 0 ? p->o.threads : sl_cpu_count(), err);
    sl_pack_job job = {.source = p->ckpt,
                       .out = p->o.out,
                       .tensors = p->tensors,
                       .tensor_count = p->tensor_count,
                       .layers = p->layers,
                       .layer_count = (size_t)p->layer_count,
                       .affine = affine_of(&p->o),
                       .pool = p->pool,
                       .progress = on_write,
                       .user = p};
    p->writer = p->pool ? sl_pack_writer_open(&job, err) : NULL;
    return p->writer != NULL;
}

static void fill_result(const packing *p, sl_pack_result *r) {
    sl_pack_state state = sl_pack_writer_state(p->writer);
    *r = (sl_pack_result){.resumed = state == SL_PACK_RESUMED,
                          .was_complete = state == SL_PACK_COMPLETE,
                          .bytes = sl_pack_writer_total(p->writer),
                          .source_bytes = sl_model_expert_bytes(p->model),
                          .layers = p->layer_count,
                          .experts = p->layers[0].experts};
    for (size_t i = 0; i < p->tensor_count; i++)
        r->source_bytes += sl_tensor_bytes(sl_ckpt_tensor(p->ckpt, p->tensors[i]));
}

bool sl_pack(const sl_pack_options *options, sl_pack_result *result, sl_error *err) {
    packing p = {0};
    bool ok = engine_copy_options(&p.o, sizeof p.o, options, offsetof(sl_pack_options, bits), "pack", err) &&
              check_options(&p.o, err) && open_source(&p, err) && open_writer(&p, err);
    if (ok && p.o.calibration && sl_pack_writer_state(p.writer) != SL_PACK_COMPLETE)
        ok = calibrate(&p, err);
    ok = ok && sl_pack_writer_run(p.writer, p.importance, err);
    if (ok && result) {
        sl_pack_result all;
        fill_result(&p, &all);
        engine_give(result, &all, sizeof all);
    }
    sl_pack_writer_close(p.writer);
    sl_pool_free(p.pool);
    sl_model_free(p.model);
    sl_ckpt_close(p.ckpt);
    for (int32_t i = 0; p.own && i < p.layer_count; i++)
        free(p.own[i]);
    free(p.own);
    free(p.importance);
    free(p.layers);
    free(p.tensors);
    free(p.path);
    return ok;
}

bool sl_pack_verify(const char *path, bool (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                    uint64_t *damaged, sl_error *err) {
    uint64_t count = 0;
    bool ok = sl_ckpt_verify_pack(path, progress, user, &count, err);
    if (damaged)
        *damaged = count;
    return ok;
}

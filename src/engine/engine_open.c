/* Opening an engine: options, checkpoint, model, tokenizer; the budget (budget.c); then weights, expert store and
 * scheduler. */
#include "engine/internal.h"

#include "engine/units.h"

#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_CONTEXT = 4096,
    DEFAULT_CHUNK = 512,
    DEFAULT_SEQUENCES = 16,
    MAX_CHUNK = 1 << 16,
    MAX_SEQUENCES = 4096,
    MAX_THREADS = 1024,
    MAX_TIMEOUT = 24 * 3600, /* seconds */
};

/* ---- options ---------------------------------------------------------------------------------------------------- */

bool engine_copy_options(void *to, size_t to_size, const void *from, size_t least, const char *name, sl_error *err) {
    size_t size = 0;
    if (from)
        memcpy(&size, from, sizeof size);
    if (size < least || size > (1 << 16))
        return sl_fail(err, SL_ERR_ARGUMENT, "%s options of %zu bytes, expected %zu: set by the _INIT macro", name,
                       size, to_size);
    memset(to, 0, to_size);
    memcpy(to, from, size < to_size ? size : to_size);
    return true;
}

static bool in_range(const char *name, int value, int most, sl_error *err) {
    return (value >= 0 && value <= most) ||
           sl_fail(err, SL_ERR_ARGUMENT, "%s: %d, expected 1 to %d, or 0 for the default", name, value, most);
}

/* The index of text in a list of names; NULL is the first. */
static bool choose(const char *name, const char *text, const char *const *names, int count, int *out, sl_error *err) {
    sl_buf all = {0};
    for (*out = 0; *out < count; (*out)++)
        if (!text || strcmp(text, names[*out]) == 0)
            return true;
    for (int i = 0; i < count; i++)
        sl_buf_printf(&all, "%s%s", i ? ", " : "", names[i]);
    sl_fail(err, SL_ERR_ARGUMENT, "%s: \"%s\", expected one of %s", name, text, all.data ? all.data : "");
    sl_buf_free(&all);
    return false;
}

static bool check_options(const sl_engine_options *o, sl_error *err) {
    if (!o->model || !*o->model)
        return sl_fail(err, SL_ERR_ARGUMENT, "model: none given");
    return in_range("threads", o->threads, MAX_THREADS, err) && in_range("context", o->context, INT32_MAX / 2, err) &&
           in_range("chunk", o->chunk, MAX_CHUNK, err) &&
           in_range("max_sequences", o->max_sequences, MAX_SEQUENCES, err) &&
           (o->reserve < UINT64_MAX / 4 ||
            sl_fail(err, SL_ERR_ARGUMENT, "reserve: %llu bytes", (unsigned long long)o->reserve)) &&
           ((o->read_timeout >= 0 && o->read_timeout <= MAX_TIMEOUT) ||
            sl_fail(err, SL_ERR_ARGUMENT, "read_timeout: %g seconds, up to %d expected, or 0 for the default",
                    o->read_timeout, MAX_TIMEOUT)) &&
           in_range("read_depth", o->read_depth, 4096, err) && in_range("max_slots", o->max_slots, INT32_MAX, err) &&
           in_range("experts_per_token", o->experts_per_token, INT32_MAX, err);
}

/* Sizes of steps and sequences, from options and model. */
static bool set_sizes(sl_engine *e, sl_error *err) {
    const sl_engine_options *o = &e->options;
    const sl_model_config *c = sl_model_config_get(e->model);
    e->vocab = c->vocab;
    e->context = o->context ? o->context : c->context < DEFAULT_CONTEXT ? c->context : DEFAULT_CONTEXT;
    if (e->context > c->context)
        return sl_fail(err, SL_ERR_ARGUMENT, "context: %d tokens, this model was made for at most %d", e->context,
                       c->context);
    e->max_sequences = o->max_sequences ? o->max_sequences : DEFAULT_SEQUENCES;
    e->threads = o->threads ? o->threads : sl_cpu_count();
    engine_set_chunk(e, o->chunk ? o->chunk : DEFAULT_CHUNK);
    return true;
}

/* ---- model and text --------------------------------------------------------------------------------------------- */

static bool has_tokenizer(const sl_ckpt *c) {
    sl_str kind;
    if (sl_ckpt_get_kind(c) == SL_CKPT_GGUF)
        return sl_gguf_str(c, "tokenizer.ggml.model", &kind);
    char *path = sl_path_join(sl_ckpt_path(c), "tokenizer.json");
    bool yes = path && sl_path_exists(path);
    free(path);
    return yes;
}

/* A checkpoint without a tokenizer can still be used with ids; a broken tokenizer is an error. */
static bool open_tokenizer(sl_engine *e, sl_error *err) {
    if (!has_tokenizer(e->ckpt)) {
        sl_fail(&e->no_tokenizer, SL_ERR_TEXT, "%s: no tokenizer.json and no tokenizer in GGUF metadata", e->path);
        return true;
    }
    e->tokenizer = sl_tokenizer_open(e->ckpt, err);
    if (e->tokenizer && sl_tokenizer_size(e->tokenizer) > e->vocab)
        sl_logf(&e->log, SL_LOG_WARN, "%s: the tokenizer has %d tokens, the model %d: the rest cannot be used", e->path,
                sl_tokenizer_size(e->tokenizer), e->vocab);
    return e->tokenizer != NULL;
}

static bool open_model(sl_engine *e, sl_error *err) {
    e->path = sl_model_locate(e->options.model, err);
    if (!e->path)
        return false;
    e->ckpt = sl_ckpt_open(e->path, err);
    if (!e->ckpt)
        return false;
    e->model = sl_model_open(e->ckpt, err);
    if (!e->model)
        return false;
    if (sl_model_unknown_keys(e->model)[0])
        sl_logf(&e->log, SL_LOG_WARN, "%s: keys that are not understood and not used (damaged?): %s", e->path,
                sl_model_unknown_keys(e->model));
    int32_t usual = sl_model_config_get(e->model)->top_k;
    if (!sl_model_set_top_k(e->model, e->options.experts_per_token, err))
        return false;
    int32_t now = sl_model_config_get(e->model)->top_k;
    if (now != usual)
        snprintf(e->approximation, sizeof e->approximation, "%d experts per token instead of %d", now, usual);
    const char *note = sl_ckpt_pack_note(e->ckpt);
    if (*note) {
        size_t used = strlen(e->approximation);
        snprintf(e->approximation + used, sizeof e->approximation - used, "%s%s", used ? ", " : "", note);
    }
    snprintf(e->formats, sizeof e->formats, "%s", sl_model_formats(e->model));
    return set_sizes(e, err) && open_tokenizer(e, err);
}

/* ---- numerics --------------------------------------------------------------------------------------------------- */

static bool choose_numerics(sl_engine *e, engine_numerics *out, sl_error *err) {
    static const char *const modes[] = {"q8", "exact"};
    static const char *const kinds[] = {"f16", "q8_0", "f32"};
    static const sl_kv_format formats[] = {SL_KV_F16, SL_KV_Q8_0, SL_KV_F32};
    int mode, kind;
    if (!choose("numeric", e->options.numeric, modes, SL_COUNT(modes), &mode, err))
        return false;
    const char *wanted = e->options.kv_type ? e->options.kv_type : mode == 1 ? "f32" : "f16";
    if (!choose("kv_type", wanted, kinds, SL_COUNT(kinds), &kind, err))
        return false;
    *out = (engine_numerics){mode == 1 ? SL_NUMERIC_EXACT : SL_NUMERIC_Q8, formats[kind]};
    if (e->gpu && (mode == 1 || e->options.isa))
        return sl_fail(err, SL_ERR_ARGUMENT, "numeric exact and isa are of the CPU: device %s computes in its own way",
                       e->options.device);
    snprintf(e->numeric, sizeof e->numeric, "%s", e->gpu ? "gpu" : modes[mode]);
    snprintf(e->kv_type, sizeof e->kv_type, "%s", kinds[kind]);
    return true;
}

/* ---- reader ----------------------------------------------------------------------------------------------------- */

static sl_reader *open_reader(sl_engine *e, engine_wrap_reader wrap, void *user, sl_error *err) {
    static const char *const kinds[] = {"auto", "uring", "pread"};
    static const sl_reader_kind values[] = {SL_READER_AUTO, SL_READER_URING, SL_READER_PREAD};
    int kind;
    static const char *const guesses[] = {"auto", "off", "router"};
    static const sl_prefetch prefetch[] = {SL_PREFETCH_AUTO, SL_PREFETCH_OFF, SL_PREFETCH_ROUTER};
    int guess;
    if (!choose("prefetch", e->options.prefetch, guesses, SL_COUNT(guesses), &guess, err))
        return NULL;
    e->prefetch = prefetch[guess];
    if (!engine_choose_policy(e, err))
        return NULL;
    if (e->gpu) { /* which is given work before anybody could guess, and counts on slots that stay */
        if (e->prefetch == SL_PREFETCH_ROUTER)
            return sl_fail_null(err, SL_ERR_ARGUMENT, "prefetch router is of the CPU: device %s does not guess",
                                e->options.device);
        e->prefetch = SL_PREFETCH_OFF;
    }
    if (!choose("reader", e->options.reader, kinds, SL_COUNT(kinds), &kind, err))
        return NULL;
    if (!engine_choose_reading(e, values[kind], err) || !engine_faults_open(e, err))
        return NULL;
    sl_reader *r = engine_open_reader(e, true, wrap, user, err);
    if (r)
        snprintf(e->reader_name, sizeof e->reader_name, "%s, %s%s", r->name, r->direct ? "O_DIRECT" : "buffered",
                 e->mirror ? ", 2 disks" : "");
    return r;
}

/* ---- loading ---------------------------------------------------------------------------------------------------- */

static void load_progress(void *user, uint64_t done, uint64_t total) {
    sl_engine *e = user;
    engine_activity_set(&e->activity, ENGINE_LOADING, 0);
    if (e->options.progress)
        e->options.progress(e->options.progress_user, SL_STAGE_LOAD, done, total);
}

/* What runs the steps knows slabs by index and only adds; any other change is told it from the beginning. */
static bool place_kv(void *user, void *const *slabs, int32_t count, bool appended, sl_error *err) {
    sl_engine *e = user;
    int32_t from = appended ? count - 1 : 0;
    if (!appended)
        sl_ops_set_kv(e->ops, &e->kv_layout);
    for (int32_t i = from; i < count; i++)
        if (!sl_ops_add_kv_slab(e->ops, slabs[i], err))
            return false;
    return true;
}

static int reclaim_slabs(void *user, int slabs) {
    sl_engine *e = user;
    int freed = e->experts ? sl_experts_shrink(e->experts, slabs) : 0;
    return freed ? freed : engine_state_reclaim(e);
}

static bool open_kv(sl_engine *e, sl_error *err) {
    if (!sl_kv_layout_init(&e->kv_layout, e->plan.slab_bytes, err))
        return false;
    sl_ops_set_kv(e->ops, &e->kv_layout);
    engine_kv_options o = {
        .mem = e->mem, .layout = e->kv_layout, .place = place_kv, .reclaim = reclaim_slabs, .user = e};
    e->kv = engine_kv_new(&o, err);
    return e->kv != NULL;
}

/* A step of a long prompt takes seconds: memory is looked at between its layers too. */
static void look_before_layer(void *user) {
    engine_pressure_look(user);
}

/* Takes the reader, also on failure. */
static bool open_experts(sl_engine *e, sl_reader *reader, sl_error *err) {
    sl_experts_options o = {.ckpt = e->ckpt,
                            .layers = e->expert_layers,
                            .layer_count = sl_model_config_get(e->model)->moe_layers,
                            .top_k = sl_model_config_get(e->model)->top_k,
                            .mem = e->mem,
                            .max_slots = e->options.max_slots,
                            .reader = reader,
                            .prefetch = e->prefetch,
                            .policy = e->policy,
                            .learn = e->options.warm || e->options.hot_list,
                            .verify = e->options.verify_reads,
                            .stop = engine_step_is_over,
                            .stop_user = e,
                            .log = e->log};
    e->layers_base = calloc((size_t)o.layer_count, sizeof *e->layers_base);
    e->experts = sl_experts_open(&o, err); /* which owns the reader from here on */
    if (!e->experts || !e->layers_base)
        return e->experts && sl_fail(err, SL_ERR_MEMORY, "out of memory for %d expert layers", o.layer_count);
    e->mirror_reader = e->mirror ? reader : NULL;
    e->pressure.on = e->options.memory == 0 && !e->gpu;
    if (e->pressure.on) {
        e->activity.before = look_before_layer;
        e->activity.before_user = e;
    }
    sl_expert_source source = engine_activity_watch(&e->activity, sl_experts_source(e->experts));
    sl_ops_set_experts(e->ops, &source);
    engine_warm_open(e);
    return true;
}

static bool model_forward(void *self, sl_step *step, sl_error *err) {
    return sl_model_forward(self, step, err);
}

static bool load(sl_engine *e, const engine_numerics *n, sl_error *err) {
    e->mem = e->gpu ? sl_mem_new_gathered(e->plan.budget, e->plan.slab_bytes, SL_GPU_PIECES, err)
                    : sl_mem_new(e->plan.budget, e->plan.slab_bytes, err);
    if (!e->mem || !sl_mem_charge(e->mem, e->plan.charge, SL_USE_OTHER, err))
        return false;
    e->ops = engine_open_ops(e, e->mem, n, err);
    if (!e->ops)
        return false;
    sl_ops_set_timing(e->ops, e->options.timing);
    sl_ops_set_vram(e->ops, &(sl_ops_vram){.limit = e->vram.limit, .keep = e->vram.keep});
    engine_activity_set(&e->activity, ENGINE_LOADING, 0);
    engine_touch_ahead(e);
    return sl_model_load(e->model, e->mem, e->ops, e->max_rows, e->max_outs, load_progress, e, err) &&
           open_kv(e, err) && engine_state_open(e, err);
}

static void log_opened(const sl_engine *e) {
    char budget[32], slab[32], vram[32];
    if (e->vram_apart)
        sl_logf(&e->log, SL_LOG_INFO, "%s: GPU memory %s, room for %llu expert slots there", e->path,
                engine_size_text(vram, sizeof vram, e->vram.limit), (unsigned long long)e->vram.slots);
    sl_logf(&e->log, SL_LOG_INFO,
            "%s: budget %s, slabs of %s, room for %llu expert slots; numeric %s on %s, %d threads", e->path,
            engine_size_text(budget, sizeof budget, e->plan.budget),
            engine_size_text(slab, sizeof slab, e->plan.slab_bytes), (unsigned long long)e->plan.slots, e->numeric,
            e->isa, e->threads);
    if (e->few_rows && e->max_sequences > e->few_rows)
        sl_logf(&e->log, SL_LOG_INFO,
                "%s: where more than %d sequences decode at once, their tokens are computed in half tiles: other bits "
                "than alone",
                e->path, e->few_rows);
    if (e->approximation[0])
        sl_logf(&e->log, SL_LOG_WARN, "%s: approximation asked for: %s", e->path, e->approximation);
}

/* A device computes only so many rows each by itself: as many sequences are decoded at once, unless asked otherwise. */
static void set_few_rows(sl_engine *e) {
    e->few_rows = e->gpu ? SL_GPU_FEW_ROWS : 0;
    if (!e->options.max_sequences)
        e->max_sequences = e->gpu ? SL_GPU_FEW_ROWS : DEFAULT_SEQUENCES;
    engine_set_chunk(e, e->chunk);
}

/* What must be known before memory is taken; the reader is opened first, because what slots need depends on it. */
static bool plan_all(sl_engine *e, engine_numerics *n, sl_reader **reader, engine_wrap_reader wrap, void *user,
                     sl_error *err) {
    bool moe = sl_model_config_get(e->model)->moe_layers > 0;
    if (!choose_numerics(e, n, err))
        return false;
    set_few_rows(e);
    *reader = moe ? open_reader(e, wrap, user, err) : NULL;
    if (moe && !*reader)
        return false;
    bool ok = engine_plan_budget(e, n, *reader && (*reader)->direct, &e->kv_layout, err);
    if (!ok && *reader)
        (*reader)->close(*reader);
    return ok;
}

static bool open_rest(sl_engine *e, engine_wrap_reader wrap, void *user, sl_error *err) {
    engine_numerics n;
    sl_reader *reader = NULL;
    sl_error why = {0};
    if (!sl_model_config_get(e->model)->moe_layers && e->options.faults)
        return sl_fail(err, SL_ERR_ARGUMENT, "faults: %s has no experts that could be read wrongly", e->path);
    if (!sl_model_config_get(e->model)->moe_layers && e->options.mirror)
        sl_logf(&e->log, SL_LOG_WARN, "mirror: %s is dense: nothing of it is read while it runs", e->path);
    e->pool = sl_pool_new(e->threads, err);
    if (!e->pool || !engine_device_open(e, err))
        return false;
    if (!plan_all(e, &n, &reader, wrap, user, &why) &&
        !(engine_device_decline(e, why.message) && plan_all(e, &n, &reader, wrap, user, &why))) {
        if (err)
            *err = why;
        return false;
    }
    bool ok = e->options.plan_only || load(e, &n, err);
    if (reader && (!ok || e->options.plan_only))
        reader->close(reader);
    if (!ok || e->options.plan_only)
        return ok;
    if (reader && !open_experts(e, reader, err))
        return false;
    e->forward = (engine_forward){model_forward, e->model};
    if (!engine_core_start(e, err))
        return false;
    log_opened(e);
    return true;
}

static bool copy_root(sl_engine *e, sl_error *err) {
    if (e->options.system_root)
        e->pressure.root = sl_strdup(e->options.system_root);
    return !e->options.system_root || e->pressure.root || sl_fail(err, SL_ERR_MEMORY, "out of memory");
}

sl_engine *engine_open_wrapped(const sl_engine_options *o, engine_wrap_reader wrap, void *user, sl_error *err) {
    sl_engine *e = calloc(1, sizeof *e);
    if (!e)
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for an engine");
    engine_core_init(e);
    pthread_mutex_init(&e->templates.mutex, NULL);
    bool ok =
        engine_copy_options(&e->options, sizeof e->options, o, offsetof(sl_engine_options, memory), "engine", err);
    e->log = (sl_log){e->options.log, e->options.log_user, e->options.log_level};
    e->pressure.cap = UINT64_MAX;
    ok = ok && copy_root(e, err) && check_options(&e->options, err) && open_model(e, err) &&
         open_rest(e, wrap, user, err);
    /* The strings are the caller's. */
    e->options.model = e->options.kv_type = e->options.numeric = e->options.isa = e->options.reader =
        e->options.device = e->options.prefetch = e->options.cache = e->options.hot_list = e->options.system_root =
            e->options.direct = e->options.calibration = e->options.faults = e->options.mirror = NULL;
    if (ok)
        return e;
    sl_engine_close(e);
    return NULL;
}

sl_engine *sl_engine_open(const sl_engine_options *options, sl_error *err) {
    return engine_open_wrapped(options, NULL, NULL, err);
}

void sl_engine_close(sl_engine *e) {
    if (!e)
        return;
    engine_core_stop(e);
    engine_warm_close(e);
    sl_experts_close(e->experts);
    engine_kv_free(e->state);
    engine_kv_free(e->kv);
    sl_model_free(e->model);
    sl_ops_free(e->ops);
    sl_gpu_close(e->gpu);
    sl_mem_free(e->mem);
    sl_pool_free(e->pool);
    sl_tokenizer_free(e->tokenizer);
    for (size_t i = 0; i < SL_COUNT(e->templates.compiled); i++)
        sl_template_free(e->templates.compiled[i]);
    sl_mirror_close(e->mirror);
    sl_ckpt_close(e->ckpt);
    pthread_mutex_destroy(&e->templates.mutex);
    engine_core_destroy(e);
    free(e->expert_layers);
    free(e->layers_base);
    free(e->fault_places);
    free(e->path);
    free(e->pressure.root);
    free(e);
}

bool engine_check_open(const sl_engine *e, sl_error *err) {
    return e->sched.started ||
           sl_fail(err, SL_ERR_ARGUMENT, "the engine was opened with plan_only: no weights are loaded");
}

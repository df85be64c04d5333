/* What an engine is and what it has done: info, statistics, the trace of reads. */
#include "engine/internal.h"
#include "engine/random.h"

#include "experts/experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *sl_version(void) {
    return SLUICE_VERSION;
}

bool engine_give(void *to, const void *from, size_t from_size) {
    size_t size;
    memcpy(&size, to, sizeof size);
    if (size < sizeof size)
        return false;
    size_t n = size < from_size ? size : from_size;
    memcpy((char *)to + sizeof size, (const char *)from + sizeof size, n - sizeof size);
    return true;
}

static void fill_model(const sl_engine *e, sl_engine_info *i) {
    const sl_model_config *c = sl_model_config_get(e->model);
    snprintf(i->path, sizeof i->path, "%s", e->path);
    snprintf(i->container, sizeof i->container, "%s%s", sl_ckpt_is_pack(e->ckpt) ? "pack of " : "",
             sl_ckpt_get_kind(e->ckpt) == SL_CKPT_GGUF ? "gguf" : "safetensors");
    snprintf(i->architecture, sizeof i->architecture, "%s", c->arch);
    i->layers = c->layers;
    i->linear_layers = c->delta_layers;
    i->moe_layers = c->moe_layers;
    i->hidden = c->hidden;
    i->heads = c->heads;
    i->kv_heads = c->kv_heads;
    i->head_dim = c->head_dim;
    i->vocab = c->vocab;
    i->model_context = c->context;
    i->experts = c->moe_layers ? c->experts : 0;
    i->experts_per_token = c->moe_layers ? c->top_k : 0;
    i->file_bytes = sl_ckpt_bytes(e->ckpt);
    for (int k = 0; k < sl_ckpt_file_count(e->ckpt); k++)
        i->disk_bytes += sl_ckpt_file(e->ckpt, k)->size;
    i->resident_bytes = sl_model_resident_bytes(e->model);
    i->expert_bytes = sl_model_expert_bytes(e->model);
    i->dense_bytes_per_token = sl_model_token_bytes(e->model);
    if (i->experts)
        i->bytes_per_token = i->expert_bytes / (uint64_t)i->experts * (uint64_t)i->experts_per_token;
}

static void fill_settings(const sl_engine *e, sl_engine_info *i) {
    snprintf(i->formats, sizeof i->formats, "%s", e->formats);
    snprintf(i->numeric, sizeof i->numeric, "%s", e->numeric);
    snprintf(i->isa, sizeof i->isa, "%s", e->isa);
    snprintf(i->reader, sizeof i->reader, "%s", e->reader_name);
    const sl_reader_options *r = &e->reading.disk[0];
    snprintf(i->reader_why, sizeof i->reader_why, "%s", e->reading.why[0]);
    i->read_depth = r->depth;
    i->read_piece = r->piece_bytes;
    i->read_direct = i->reader[0] && !r->buffered;
    if (e->mirror)
        snprintf(i->mirror, sizeof i->mirror, "%s", sl_mirror_directory(e->mirror));
    snprintf(i->kv_type, sizeof i->kv_type, "%s", e->kv_type);
    snprintf(i->approximation, sizeof i->approximation, "%s", e->approximation);
    i->context = e->context;
    i->threads = e->threads;
    i->chunk = e->chunk;
    i->bytes_per_expert = e->slot_bytes;
    i->scratch_bytes = e->scratch_bytes;
    i->kv_bytes_per_token = e->kv_token_bytes;
    i->least_memory = e->plan.least;
    i->suggested_memory = e->plan.suggested;
    i->full_memory = e->plan.full;
    i->memory = e->plan.budget;
    i->slots = e->plan.slots;
    i->kv_tokens = engine_kv_room(e);
    i->least_kv_tokens = e->plan.least_kv_blocks * SL_KV_PAGE_TOKENS;
    i->state_bytes_per_sequence = engine_state_bytes(&e->state_layout);
    engine_device_name(e, i->device, sizeof i->device);
    snprintf(i->device_why, sizeof i->device_why, "%s", e->device_why);
    i->vram = e->vram.limit;
    i->least_vram = e->vram.least;
    i->full_vram = e->vram.full;
    i->free_vram = e->vram_room;
    i->vram_slots = e->vram.slots;
}

bool sl_engine_get_info(const sl_engine *e, sl_engine_info *info) {
    sl_engine_info all = {0};
    fill_model(e, &all);
    fill_settings(e, &all);
    return engine_give(info, &all, sizeof all);
}

/* ---- statistics ------------------------------------------------------------------------------------------------- */

static void fill_memory(const sl_engine *e, sl_stats *s) {
    s->rss_peak = sl_peak_rss();
    s->memory_budget = e->plan.budget;
    s->memory_given_back = atomic_load(&e->pressure.given);
    if (!e->mem)
        return;
    s->memory_used = sl_mem_used(e->mem, SL_USE_COUNT);
    s->memory_peak = sl_mem_peak(e->mem);
    s->weights_bytes = sl_mem_used(e->mem, SL_USE_WEIGHTS);
    s->slots_bytes = sl_mem_used(e->mem, SL_USE_SLOTS);
    s->kv_bytes = sl_mem_used(e->mem, SL_USE_KV);
    s->scratch_bytes = sl_mem_used(e->mem, SL_USE_SCRATCH);
}

static void fill_experts(const sl_engine *e, sl_stats *s) {
    if (!e->experts)
        return;
    const sl_experts_stats *b = &e->experts_base;
    sl_experts_stats x;
    sl_experts_stats_get(e->experts, &x);
    s->expert_hits = x.hits - b->hits;
    s->expert_misses = x.misses - b->misses;
    s->expert_bytes_read = x.read_bytes - b->read_bytes;
    s->expert_wait_ns = x.wait_ns - b->wait_ns;
    s->evictions = x.evictions - b->evictions;
    s->prefetch_reads = x.prefetch_reads - b->prefetch_reads;
    s->prefetch_used = x.prefetch_used - b->prefetch_used;
}

static void fill_disks(const sl_engine *e, sl_stats *s) {
    for (int i = 0; e->mirror_reader && i < SL_READER_DISKS; i++) {
        sl_mirror_stats x;
        sl_mirror_stats_get(e->mirror_reader, i, &x);
        s->disk[i] = (sl_disk_stats){.reads = x.reads - e->disk_base[i].reads,
                                     .bytes = x.bytes - e->disk_base[i].bytes,
                                     .rate = x.rate,
                                     .dropped = x.dropped};
    }
}

static void fill_steps(const sl_engine *e, sl_stats *s) {
    const engine_counters *c = &e->counters, *b = &e->counters_base;
    const sl_ops_times *t = &e->times, *u = &e->times_base;
    s->prompt_tokens = c->prompt_tokens - b->prompt_tokens;
    s->prompt_ns = c->prompt_ns - b->prompt_ns;
    s->decode_tokens = c->decode_tokens - b->decode_tokens;
    s->decode_ns = c->decode_ns - b->decode_ns;
    s->time_attention_ns = t->attention - u->attention;
    s->time_linear_ns = t->linear - u->linear;
    s->time_router_ns = t->router - u->router;
    s->time_expert_ns = t->expert_compute - u->expert_compute;
    s->time_shared_ns = t->shared - u->shared;
    s->time_head_ns = t->head - u->head;
    s->time_other_ns = t->other - u->other;
    s->time_delta_ns = t->delta - u->delta;
    s->time_expert_wait_ns = t->expert_wait - u->expert_wait;
    s->gpu_phase_ns = t->gpu_phase_time - u->gpu_phase_time;
    s->gpu_lists = t->gpu_lists - u->gpu_lists;
    s->gpu_ns = t->gpu_time - u->gpu_time;
    s->gpu_waits = t->gpu_waits - u->gpu_waits;
    s->gpu_wait_ns = t->gpu_wait_time - u->gpu_wait_time;
    s->gpu_hidden_waits = t->gpu_hidden_waits - u->gpu_hidden_waits;
    s->vram_used = t->vram;
    s->vram_peak = t->vram_peak;
    s->vram_slots = t->vram_slots;
    s->vram_hits = t->vram_hits - u->vram_hits;
    s->vram_misses = t->vram_misses - u->vram_misses;
    s->vram_copied = t->vram_copied - u->vram_copied;
}

void sl_engine_get_stats(const sl_engine *e, sl_stats *stats) {
    pthread_mutex_t *mutex = (pthread_mutex_t *)&e->sched.mutex;
    sl_stats all = {0};
    fill_memory(e, &all);
    pthread_mutex_lock(mutex);
    fill_experts(e, &all);
    fill_disks(e, &all);
    fill_steps(e, &all);
    pthread_mutex_unlock(mutex);
    engine_give(stats, &all, sizeof all);
}

/* The parts below keep counting; what they had counted is remembered, so that no counter is written by two threads. */
void sl_engine_reset_stats(sl_engine *e) {
    pthread_mutex_lock(&e->sched.mutex);
    e->counters_base = e->counters;
    e->times_base = e->times;
    if (e->experts)
        sl_experts_stats_get(e->experts, &e->experts_base);
    for (int i = 0; e->mirror_reader && i < SL_READER_DISKS; i++)
        sl_mirror_stats_get(e->mirror_reader, i, &e->disk_base[i]);
    if (e->experts)
        sl_experts_layers_get(e->experts, e->layers_base, sl_model_config_get(e->model)->moe_layers);
    pthread_mutex_unlock(&e->sched.mutex);
}

size_t sl_engine_get_layer_stats(const sl_engine *e, sl_layer_stats *out, size_t max) {
    pthread_mutex_t *mutex = (pthread_mutex_t *)&e->sched.mutex;
    int32_t layers = e->experts ? sl_model_config_get(e->model)->moe_layers : 0;
    sl_experts_layer_stats *x = layers && max ? calloc((size_t)layers, sizeof *x) : NULL;
    if (!x)
        return (size_t)layers;
    pthread_mutex_lock(mutex);
    sl_experts_layers_get(e->experts, x, layers);
    for (int32_t i = 0; i < layers && (size_t)i < max; i++) {
        const sl_experts_layer_stats *b = &e->layers_base[i];
        int32_t number = 0;
        sl_model_expert_matrices(e->model, i, &number);
        out[i] = (sl_layer_stats){.layer = number,
                                  .hits = x[i].hits - b->hits,
                                  .misses = x[i].misses - b->misses,
                                  .bytes_read = x[i].read_bytes - b->read_bytes,
                                  .wait_ns = x[i].wait_ns - b->wait_ns,
                                  .guesses = x[i].prefetch_reads - b->prefetch_reads,
                                  .guesses_right = x[i].prefetch_used - b->prefetch_used};
    }
    pthread_mutex_unlock(mutex);
    free(x);
    return (size_t)layers;
}

void sl_engine_activity(const sl_engine *e, char *out, size_t size, uint64_t *since_ns) {
    engine_activity_text((engine_activity *)&e->activity, out, size, since_ns);
}

/* ---- trace: the store's list grows on the scheduler's thread, so it is read there ------------------------------- */

typedef struct trace_call {
    sl_engine *e;
    bool on;
    sl_trace *out;
    size_t max, count;
} trace_call;

static void switch_trace(void *ctx) {
    trace_call *c = ctx;
    sl_experts_trace(c->e->experts, c->on);
}

void sl_engine_trace(sl_engine *e, bool on) {
    trace_call c = {.e = e, .on = on};
    if (e->experts)
        engine_call_run(e, switch_trace, &c);
}

static void copy_trace(void *ctx) {
    trace_call *c = ctx;
    const sl_trace_read *reads = NULL;
    c->count = sl_experts_trace_get(c->e->experts, &reads);
    for (size_t i = 0; i < c->count && i < c->max; i++)
        c->out[i] = (sl_trace){.path = sl_ckpt_file(c->e->ckpt, reads[i].file)->path,
                               .burst = reads[i].burst,
                               .layer = reads[i].layer,
                               .offset = reads[i].offset,
                               .bytes = reads[i].bytes,
                               .guess = reads[i].guess,
                               .used = reads[i].used};
}

size_t sl_engine_get_trace(sl_engine *e, sl_trace *out, size_t max) {
    trace_call c = {.e = e, .out = out, .max = out ? max : 0};
    if (e->experts)
        engine_call_run(e, copy_trace, &c);
    return c.count;
}

/* ---- reads as they would be ------------------------------------------------------------------------------------- */

typedef struct sample {
    const sl_engine *e;
    sl_trace *out;
    size_t max, count;
    bool direct;
} sample;

static void sample_expert(sample *s, int32_t layer, int32_t expert) {
    sl_trace_read read[SL_EXPERT_PARTS];
    int32_t n = sl_experts_reads_of(&s->e->expert_layers[layer], s->e->ckpt, expert, s->direct, read);
    for (int32_t i = 0; i < n; i++, s->count++)
        if (s->count < s->max)
            s->out[s->count] = (sl_trace){.path = sl_ckpt_file(s->e->ckpt, read[i].file)->path,
                                          .burst = layer,
                                          .layer = layer,
                                          .offset = read[i].offset,
                                          .bytes = read[i].bytes};
}

size_t sl_engine_sample_reads(const sl_engine *e, double missing, uint64_t seed, sl_trace *out, size_t max) {
    const sl_model_config *c = sl_model_config_get(e->model);
    sample s = {.e = e, .out = out, .max = out ? max : 0, .direct = strstr(e->reader_name, "O_DIRECT") != NULL};
    for (int32_t l = 0; e->expert_layers && l < c->moe_layers; l++) {
        const int32_t experts = e->expert_layers[l].experts;
        int32_t left = c->top_k < experts ? c->top_k : experts;
        /* Each expert in turn, with the chance that it is one of those still to be chosen. */
        for (int32_t i = 0; i < experts && left > 0; i++) {
            if (engine_random(&seed) % (uint64_t)(experts - i) >= (uint64_t)left)
                continue;
            left--;
            if (engine_random_unit(&seed) < missing)
                sample_expert(&s, l, i);
        }
    }
    return s.count;
}

/* What runs the steps: which device, why, and how much of its memory. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- which ------------------------------------------------------------------------------------------------------ */

static bool is_cpu(const char *device) {
    return !device || strcmp(device, "cpu") == 0;
}

static sl_gpu *open_named(const sl_engine *e, const char *name, sl_error *err) {
    sl_gpu_options o = SL_GPU_OPTIONS_INIT;
    o.device = name;
    o.log = e->options.log;
    o.log_user = e->options.log_user;
    o.log_level = e->options.log_level;
    return sl_gpu_open(&o, err);
}

/* Shapes that there are no kernels for are known before anything is read. */
static bool takes_model(const sl_engine *e, sl_gpu *gpu, sl_error *err) {
    sl_mem *mem = sl_mem_new(UINT64_MAX / 2, 1 << 20, err);
    sl_ops *ops = mem ? sl_ops_gpu_new(gpu, mem, err) : NULL;
    bool ok = ops && sl_model_accepted(e->model, ops, err);
    sl_ops_free(ops);
    sl_mem_free(mem);
    return ok;
}

static void add_reason(sl_engine *e, const char *name, const char *why) {
    size_t used = strlen(e->device_why);
    snprintf(e->device_why + used, sizeof e->device_why - used, "%s%s: %s", used ? "; " : "", name, why);
}

/* NULL: the reason is noted. */
static sl_gpu *try_device(sl_engine *e, const char *name) {
    sl_error why = {0};
    sl_gpu *gpu = open_named(e, name, &why);
    if (gpu && takes_model(e, gpu, &why))
        return gpu;
    sl_gpu_close(gpu);
    add_reason(e, name, why.message);
    return NULL;
}

/* Metal, then CUDA; the CPU where there is neither, where the model is none for them, or where the options are of the
 * CPU alone. Never soft: it is for tests. */
static void choose_device(sl_engine *e) {
    const sl_engine_options *o = &e->options;
    if ((o->numeric && strcmp(o->numeric, "exact") == 0) || o->isa) {
        snprintf(e->device_why, sizeof e->device_why, "numeric exact and isa are of the CPU alone");
        return;
    }
    e->gpu = try_device(e, "metal");
    if (!e->gpu)
        e->gpu = try_device(e, "cuda");
    if (!e->gpu)
        return;
    sl_gpu_info info = {.size = sizeof info};
    sl_gpu_get_info(e->gpu, &info);
    snprintf(e->device_why, sizeof e->device_why, "%s is here", info.name);
}

void engine_device_name(const sl_engine *e, char *out, size_t size) {
    sl_gpu_info info = {.size = sizeof info};
    if (e->gpu)
        sl_gpu_get_info(e->gpu, &info);
    snprintf(out, size, "%s", e->gpu ? info.device : "cpu");
}

static void log_choice(const sl_engine *e) {
    char name[32];
    engine_device_name(e, name, sizeof name);
    sl_logf(&e->log, SL_LOG_INFO, "device auto: %s (%s)", name, e->device_why);
}

bool engine_device_open(sl_engine *e, sl_error *err) {
    const sl_engine_options *o = &e->options;
    e->device_auto = o->device && strcmp(o->device, "auto") == 0;
    if (e->device_auto)
        choose_device(e);
    else if (!is_cpu(o->device) && (!(e->gpu = open_named(e, o->device, err)) || !takes_model(e, e->gpu, err)))
        return false;
    sl_gpu_info info = {.size = sizeof info};
    if (e->gpu)
        sl_gpu_get_info(e->gpu, &info);
    e->vram_apart = e->gpu && !info.unified;
    if (e->device_auto)
        log_choice(e);
    if (!o->vram || e->vram_apart || e->device_auto)
        return true;
    if (!e->gpu)
        return sl_fail(err, SL_ERR_ARGUMENT, "vram: the CPU has no memory of its own: memory is the ceiling of all");
    return sl_fail(err, SL_ERR_ARGUMENT, "vram: device %s shares the host's memory: memory is the ceiling of all",
                   info.device);
}

bool engine_device_decline(sl_engine *e, const char *why) {
    char name[32];
    if (!e->device_auto || !e->gpu)
        return false;
    engine_device_name(e, name, sizeof name);
    sl_gpu_close(e->gpu);
    e->gpu = NULL;
    e->vram_apart = false;
    e->vram = (engine_vram){0};
    e->device_why[0] = 0;
    add_reason(e, name, why);
    log_choice(e);
    return true;
}

/* ---- how much of its memory -------------------------------------------------------------------------------------- */

static void measure_experts(const sl_engine *e, engine_vram_input *in) {
    const sl_model_config *c = sl_model_config_get(e->model);
    for (int32_t i = 0; i < c->moe_layers; i++) {
        int32_t layer;
        const sl_matrix *proj = sl_model_expert_matrices(e->model, i, &layer);
        uint64_t bytes = sl_ops_vram_slot(proj, sl_model_experts_alternate(e->model, i));
        in->slot_bytes = bytes > in->slot_bytes ? bytes : in->slot_bytes;
    }
    in->slots = (uint64_t)c->moe_layers * (uint64_t)c->experts;
    in->least_slots = (uint64_t)c->top_k;
}

static engine_vram_input measure(sl_engine *e, const engine_plan_input *plan, sl_gpu_info *info) {
    sl_gpu_get_info(e->gpu, info);
    e->vram_room = sl_gpu_room(e->gpu);
    engine_vram_input in = {.device = info->name,
                            .room = e->vram_room,
                            .share = sl_ops_vram_share(e->vram_room),
                            .asked = e->options.vram,
                            .weights = plan->resident,
                            .scratch = plan->scratch,
                            .kv_block = plan->kv_block,
                            .context_blocks = (uint64_t)plan->context_blocks,
                            .state_block = plan->state_block,
                            .state_blocks = (uint64_t)plan->state_blocks};
    measure_experts(e, &in);
    return in;
}

uint64_t engine_device_most_slab(sl_engine *e, const engine_plan_input *plan) {
    sl_gpu_info info = {.size = sizeof info};
    if (!e->vram_apart)
        return 0;
    engine_vram_input in = measure(e, plan, &info);
    uint64_t least = engine_plan_least_slab(plan);
    return least ? engine_vram_slab(&in, least, engine_slab_size(ENGINE_SLAB_SIZES - 1)) : 0;
}

bool engine_device_plan(sl_engine *e, const engine_plan_input *plan, sl_error *err) {
    sl_gpu_info info = {.size = sizeof info};
    sl_error why = {0};
    if (!e->vram_apart)
        return true;
    engine_vram_input in = measure(e, plan, &info);
    in.least_slab = engine_plan_least_slab(plan);
    in.slab_bytes = e->plan.slab_bytes ? e->plan.slab_bytes : in.least_slab;
    if (engine_vram_plan(&in, &e->vram, &why) || (e->options.plan_only && !in.asked && !e->device_auto))
        return true; /* info is asked for the least, too */
    if (err)
        *err = why;
    return false;
}

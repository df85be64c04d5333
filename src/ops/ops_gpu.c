/* The GPU implementation: the table, and the loop that encodes a program's operations. See ops_gpu.h. */
#include "ops/ops_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sl_ops_gpu *self(sl_ops *ops) {
    return (sl_ops_gpu *)ops;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static sl_buffer gpu_ops_wrap(sl_ops *ops, void *base, uint64_t bytes, sl_error *err) {
    sl_ops_gpu *o = self(ops);
    sl_buffer b = ops_memory_wrap(&o->known, base, bytes, err);
    if (b && !gpu_remember(o, base, bytes, err)) {
        ops_memory_unwrap(&o->known, b);
        return 0;
    }
    return b;
}

static void gpu_ops_unwrap(sl_ops *ops, sl_buffer b) {
    sl_ops_gpu *o = self(ops);
    if (b && b < o->known.buffer_count)
        gpu_forget(o, o->known.buffers[b].base);
    ops_memory_unwrap(&o->known, b);
}

static sl_buffer gpu_ops_scratch(sl_ops *ops, uint64_t bytes, sl_error *err) {
    return ops_memory_scratch(&self(ops)->known, bytes, err);
}

static void gpu_ops_set_kv(sl_ops *ops, const sl_kv_layout *layout) {
    sl_ops_gpu *o = self(ops);
    if (layout->format != o->known.kv.format || layout->head_dim != o->known.kv.head_dim)
        gpu_libraries_drop(o); /* they are for one kind */
    ops_memory_set_kv(&o->known, layout);
    gpu_slabs_forget(o, &o->kv);
}

static bool gpu_ops_add_kv_slab(sl_ops *ops, void *slab, sl_error *err) {
    sl_ops_gpu *o = self(ops);
    return ops_memory_add_kv_slab(&o->known, slab, err) &&
           (o->apart || gpu_remember(o, slab, (uint64_t)o->known.kv.blocks_per_slab * o->known.kv.block_bytes, err));
}

static void gpu_ops_set_state(sl_ops *ops, const sl_state_layout *layout) {
    sl_ops_gpu *o = self(ops);
    if (layout->key_dim != o->known.state.key_dim)
        gpu_libraries_drop(o); /* they are for one size */
    ops_memory_set_state(&o->known, layout);
    gpu_slabs_forget(o, &o->state);
}

static bool gpu_ops_add_state_slab(sl_ops *ops, void *slab, sl_error *err) {
    sl_ops_gpu *o = self(ops);
    return ops_memory_add_state_slab(&o->known, slab, err) &&
           (o->apart ||
            gpu_remember(o, slab, (uint64_t)o->known.state.blocks_per_slab * o->known.state.block_bytes, err));
}

/* Other experts: nothing of the old ones' is of use. */
static void gpu_ops_set_experts(sl_ops *ops, const sl_expert_source *source) {
    self(ops)->known.experts = *source;
    self(ops)->scratch.epoch++;
    gpu_tier_free(self(ops));
}

/* ---- preparing --------------------------------------------------------------------------------------------------- */

static bool add_weight(sl_ops_gpu *o, const sl_weight *w, sl_error *err) {
    const void *part[3];
    if (!has_weight(w))
        return true;
    for (int i = 0; i < 3; i++)
        part[i] = w->matrix.row_bytes[i] ? gpu_at(o, w->buffer, w->offset[i]) : NULL;
    return gpu_format_add(o, &w->matrix, part, err);
}

/* The sizes that kernels are made for. */
static bool accepts(const sl_attention *a, const sl_moe *m, const sl_delta *d, sl_error *err) {
    if (a && (a->head_dim % 4 != 0 || a->value_dim % 4 != 0 || a->head_dim > SL_ATTENTION_DIM_MAX))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "attention layer %d: heads of %d, values of %d on a GPU: multiples of 4 up to %d expected",
                       a->layer, a->head_dim, a->value_dim ? a->value_dim : a->head_dim, SL_ATTENTION_DIM_MAX);
    if (m && m->experts > GPU_EXPERTS)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "MoE layer %d: %d experts on a GPU: at most %d expected", m->layer,
                       m->experts, GPU_EXPERTS);
    return !d || gpu_check_delta(d, err);
}

static bool add_moe(sl_ops_gpu *o, const sl_moe *m, sl_error *err) {
    bool ok = accepts(NULL, m, NULL, err) && add_weight(o, &m->router, err) && add_weight(o, &m->shared_gate, err);
    for (int i = 0; ok && i < SL_PROJ_COUNT; i++) {
        sl_matrix proj = gpu_moe_matrix(m, i);
        ok = add_weight(o, &m->shared[i], err) && gpu_format_add(o, &proj, NULL, err);
    }
    return ok;
}

static bool add_attention(sl_ops_gpu *o, const sl_attention *a, sl_error *err) {
    if (!accepts(a, NULL, NULL, err))
        return false;
    if (a->value_dim != o->value_dim)
        gpu_libraries_drop(o); /* they are for one kind */
    o->value_dim = a->value_dim;
    return true;
}

static bool add_op(sl_ops_gpu *o, const op *x, sl_error *err) {
    bool ok = true;
    switch (x->kind) {
    case OP_EMBED:
        return add_weight(o, &x->u.embed.table, err);
    case OP_LINEAR:
        for (int i = 0; ok && i < x->u.linear.n; i++)
            ok = add_weight(o, &x->u.linear.out[i].weight, err);
        return ok;
    case OP_GATE_UP:
        return add_weight(o, &x->u.gate_up.gate, err) && add_weight(o, &x->u.gate_up.up, err);
    case OP_MOE:
        return add_moe(o, &x->u.moe, err);
    case OP_LOGITS:
        return add_weight(o, &x->u.logits.head, err);
    case OP_ATTENTION:
        return add_attention(o, &x->u.attention.a, err);
    case OP_DELTA:
        return accepts(NULL, NULL, &x->u.delta.d, err);
    case OP_HEAD_LINEAR:
        return add_weight(o, &x->u.head_linear.weight, err);
    default:
        return true;
    }
}

static bool gpu_prepare(sl_ops *ops, sl_program *p, sl_error *err) {
    sl_ops_gpu *o = self(ops);
    if (!ops_check_program(&o->known, p, err))
        return false;
    for (size_t i = 0; i < p->count; i++)
        if (!add_op(o, &p->list[i], err))
            return false;
    return gpu_scratch_fit(o, p, err) && gpu_bring_program(o, p, err);
}

static void gpu_discard(sl_ops *ops, sl_program *p) {
    gpu_kept_drop(self(ops)); /* another program may come to lie where it lay */
}

static uint64_t gpu_scratch_bytes_for(const sl_ops *ops, const sl_program *p) {
    return gpu_scratch_need(p);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static uint64_t logits_bytes(const gpu_run *r, const op *o) {
    return (uint64_t)r->step->outs * (uint64_t)o->u.logits.head.matrix.rows * sizeof(float);
}

static bool encode_op(gpu_run *r, const op *o) {
    switch (o->kind) {
    case OP_EMBED:
        return gpu_run_embed(r, o);
    case OP_RMS_NORM:
        return gpu_run_norm(r, o);
    case OP_LINEAR:
        return gpu_run_linear(r, o);
    case OP_GATE_UP:
        return gpu_run_gate_up(r, o);
    case OP_ATTENTION:
        ops_spread_failures(r->step);
        return gpu_run_attention(r, o);
    case OP_DELTA:
        ops_spread_failures(r->step);
        return gpu_run_delta(r, o);
    case OP_HEAD_LINEAR:
        return gpu_run_head_linear(r, o);
    case OP_MOE:
        return gpu_run_moe(r, o);
    case OP_GATHER_OUTS:
        return gpu_run_gather(r, o);
    case OP_LOGITS:
        return gpu_run_logits(r, o) && gpu_pull(r, r->step->logits, logits_bytes(r, o));
    case OP_CHECKPOINT:
        if (r->step->cancelled && r->step->cancelled(r->step->user))
            return sl_fail(r->err, SL_ERR_CANCELLED, "cancelled at layer %d", o->u.checkpoint.layer);
        return true;
    }
    return false;
}

bool gpu_encode_op(gpu_run *r, const op *o) {
    bool ok = gpu_phase_begin(r, gpu_phase_of(o, r->phase)) && encode_op(r, o);
    gpu_half_keep(r, o);
    return ok;
}

bool gpu_op_is_idle(const gpu_run *r, const op *o) {
    bool for_outs = o->kind == OP_GATHER_OUTS || (o->kind != OP_EMBED && o->src.rows == SL_ROWS_OUT);
    return for_outs && r->step->outs == 0;
}

static bool encode_all(gpu_run *r) {
    for (size_t i = 0; i < r->p->count; i++)
        if (!gpu_op_is_idle(r, &r->p->list[i]) && !gpu_encode_op(r, &r->p->list[i]))
            return false;
    return gpu_finish(r) && gpu_check_combined(r);
}

/* Where logits go may be memory of a caller's own. */
static bool wrap_logits(gpu_run *r, bool on) {
    for (size_t i = 0; i < r->p->count; i++) {
        const op *x = &r->p->list[i];
        if (x->kind != OP_LOGITS || !r->step->outs)
            continue;
        uint64_t bytes = logits_bytes(r, x);
        if (!on) {
            gpu_out_end(r->o);
            gpu_forget(r->o, r->step->logits);
        } else if (!gpu_remember(r->o, r->step->logits, bytes, r->err) || !gpu_out_begin(r, r->step->logits, bytes)) {
            return false;
        }
    }
    return true;
}

/* Whatever was begun is waited for: nothing may write to memory that changes hands after a failed step. */
static void abandon(sl_ops_gpu *o) {
    sl_error ignored;
    sl_gpu_list_free(o->list);
    o->list = NULL;
    sl_gpu_stream *streams[] = {o->stream, o->copies};
    bool sound = true;
    for (size_t i = 0; i < SL_COUNT(streams) && streams[i]; i++) {
        sound = sl_gpu_synchronize(streams[i], GPU_TIMEOUT_NS, &ignored) && sound;
        sl_gpu_stream_recover(streams[i], &ignored);
    }
    gpu_tier_doubt(o, sound);
}

static bool gpu_run_program(sl_ops *ops, sl_program *p, sl_step *step, sl_error *err) {
    sl_ops_gpu *o = self(ops);
    gpu_run r = {.o = o, .p = p, .step = step, .err = err, .combined = -1};
    if (!o->scratch.span)
        return sl_fail(err, SL_ERR_MEMORY, "no scratch: it did not fit the memory budget");
    gpu_regions_refresh(o);
    uint64_t began = sl_now_ns();
    if (!ops_check_step(&o->known, p, step, err) || !gpu_step_fill(&r))
        return false;
    bool ok = wrap_logits(&r, true) && gpu_tier_open(o, p, err) && gpu_tier_fill(&r) && gpu_warm(&r) &&
              (gpu_ahead_possible(&r) ? gpu_run_ahead(&r) : encode_all(&r));
    if (!ok)
        abandon(o);
    wrap_logits(&r, false);
    if (!ok)
        return false;
    gpu_phases_take(o);
    o->times.other += sl_now_ns() - began;
    o->times.steps++;
    o->times.rows += (uint64_t)step->rows;
    return true;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* What is not booked elsewhere is the rest of the step: unless asked to, the device's phases are not told apart by the
 * host's clock. */
static void gpu_times(const sl_ops *ops, sl_ops_times *out) {
    const sl_ops_gpu *o = (const sl_ops_gpu *)ops;
    *out = o->times;
    gpu_phases_fill(o, out);
    out->vram = o->taken;
    out->vram_peak = o->taken_most;
    out->vram_slots = (uint64_t)gpu_tier_slots(o);
    uint64_t booked = out->attention + out->delta + out->linear + out->router + out->expert_wait + out->expert_compute +
                      out->shared + out->head;
    out->other = out->other > booked ? out->other - booked : 0;
}

static void gpu_times_reset(sl_ops *ops) {
    self(ops)->times = (sl_ops_times){0};
    memset(self(ops)->phase_ns, 0, sizeof self(ops)->phase_ns);
}

static void gpu_set_vram(sl_ops *ops, const sl_ops_vram *v) {
    self(ops)->may = *v;
}

static const char *gpu_isa(const sl_ops *ops) {
    return ((const sl_ops_gpu *)ops)->isa;
}

static void gpu_free(sl_ops *ops) {
    sl_ops_gpu *o = self(ops);
    sl_gpu_list_free(o->list);
    gpu_kept_free(o);
    gpu_libraries_drop(o);
    free(o->pipes);
    gpu_regions_free(o);
    sl_gpu_event_free(o->routed);
    sl_gpu_event_free(o->delivered);
    sl_gpu_event_free(o->computed);
    gpu_ahead_free(o);
    sl_gpu_stream_free(o->stream);
    sl_mem_span_free(o->known.mem, o->scratch.span);
    ops_memory_clear(&o->known);
    gpu_homes_free(o);
    gpu_tier_free(o);
    sl_gpu_stream_free(o->copies);
    gpu_twin_free(o, &o->out);
    free(o->kv.entry);
    free(o->state.entry);
    free(o->formats);
    free(o->spans);
    free(o);
}

static const sl_ops_table table = {
    .prepare = gpu_prepare,
    .discard = gpu_discard,
    .run = gpu_run_program,
    .wrap = gpu_ops_wrap,
    .unwrap = gpu_ops_unwrap,
    .scratch = gpu_ops_scratch,
    .scratch_bytes = gpu_scratch_bytes_for,
    .accepts = accepts,
    .set_experts = gpu_ops_set_experts,
    .set_kv = gpu_ops_set_kv,
    .add_kv_slab = gpu_ops_add_kv_slab,
    .set_state = gpu_ops_set_state,
    .add_state_slab = gpu_ops_add_state_slab,
    .times = gpu_times,
    .times_reset = gpu_times_reset,
    .set_timing = gpu_set_timing,
    .set_vram = gpu_set_vram,
    .isa = gpu_isa,
    .pull = gpu_ops_pull,
    .push = gpu_ops_push,
    .free = gpu_free,
};

sl_ops *sl_ops_gpu_new(sl_gpu *gpu, sl_mem *mem, sl_error *err) {
    sl_gpu_info info = {.size = sizeof info};
    sl_ops_gpu *o = calloc(1, sizeof *o);
    if (!o)
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory");
    o->base.table = &table;
    o->gpu = gpu;
    o->unmapped = sl_mem_unmapped(mem);
    sl_gpu_get_info(gpu, &info);
    o->apart = !info.unified;
    o->serial = info.serial;
    pthread_mutex_init(&o->homes.lock, NULL);
    snprintf(o->isa, sizeof o->isa, "%s %s", info.device, info.family);
    o->few = strcmp(info.device, "cuda") == 0;
    o->room = info.max_threadgroup_memory;
    o->stream = ops_memory_init(&o->known, mem, err) ? sl_gpu_stream_new(gpu, err) : NULL;
    if (!o->stream) {
        gpu_free(&o->base);
        return NULL;
    }
    return &o->base;
}

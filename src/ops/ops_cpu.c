/* The native CPU implementation: memory handles, the table, and the loop over a program's operations. */
#include "ops/ops_cpu.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static sl_buffer cpu_wrap(sl_ops *ops, void *base, uint64_t bytes, sl_error *err) {
    return ops_memory_wrap(&((sl_ops_cpu *)ops)->known, base, bytes, err);
}

static void cpu_unwrap(sl_ops *ops, sl_buffer b) {
    ops_memory_unwrap(&((sl_ops_cpu *)ops)->known, b);
}

static sl_buffer cpu_scratch_buffer(sl_ops *ops, uint64_t bytes, sl_error *err) {
    return ops_memory_scratch(&((sl_ops_cpu *)ops)->known, bytes, err);
}

sl_matrix ops_matrix(const sl_ops_cpu *o, const sl_weight *w) {
    sl_matrix m = w->matrix;
    for (int i = 0; i < 3; i++)
        m.part[i] = m.row_bytes[i] ? ops_at(o, w->buffer, w->offset[i]) : NULL;
    return m;
}

static bool cpu_add_kv_slab(sl_ops *ops, void *slab, sl_error *err) {
    return ops_memory_add_kv_slab(&((sl_ops_cpu *)ops)->known, slab, err);
}

static void cpu_set_kv(sl_ops *ops, const sl_kv_layout *layout) {
    ops_memory_set_kv(&((sl_ops_cpu *)ops)->known, layout);
}

static bool cpu_add_state_slab(sl_ops *ops, void *slab, sl_error *err) {
    return ops_memory_add_state_slab(&((sl_ops_cpu *)ops)->known, slab, err);
}

static void cpu_set_state(sl_ops *ops, const sl_state_layout *layout) {
    ops_memory_set_state(&((sl_ops_cpu *)ops)->known, layout);
}

static void cpu_watch_moe(sl_ops *ops, const sl_moe_watch *watch) {
    ((sl_ops_cpu *)ops)->watch = watch ? *watch : (sl_moe_watch){0};
}

static void cpu_set_experts(sl_ops *ops, const sl_expert_source *source) {
    ((sl_ops_cpu *)ops)->known.experts = *source;
}

/* ---- small operations ------------------------------------------------------------------------------------------- */

static void embed_row(const sl_ops_cpu *o, const sl_matrix *table, int32_t token, float *dst) {
    sl_format_get(table->format)->dequantize(table, token, 0, table->cols, dst);
}

static void run_embed(cpu_run *r, const op *o) {
    sl_matrix table = ops_matrix(r->o, &o->u.embed.table);
    float *dst = view_rows(r->o, &o->dst);
    for (int32_t i = 0; i < r->step->rows; i++)
        embed_row(r->o, &table, r->step->token[i], dst + i * o->dst.stride);
}

typedef struct norm_job {
    const cpu_ops *ops;
    float *dst;
    const float *src, *weight;
    int64_t dst_stride, src_stride;
    int32_t cols;
    float eps;
} norm_job;

static void norm_rows(void *ctx, int64_t begin, int64_t end, int worker) {
    const norm_job *j = ctx;
    for (int64_t i = begin; i < end; i++)
        j->ops->rms_norm(j->dst + i * j->dst_stride, j->src + i * j->src_stride, j->weight, j->cols, j->eps);
}

static void run_norm(cpu_run *r, const op *o) {
    const sl_weight *w = &o->u.norm.weight;
    norm_job j = {r->o->ops,
                  view_rows(r->o, &o->dst),
                  view_rows(r->o, &o->src),
                  (const float *)(const void *)ops_at(r->o, w->buffer, w->offset[0]),
                  o->dst.stride,
                  o->src.stride,
                  o->src.cols,
                  o->u.norm.eps};
    sl_pool_run(r->o->pool, view_count(r->step, &o->src), 8, norm_rows, &j);
}

static void run_gather(cpu_run *r, const op *o) {
    float *dst = view_rows(r->o, &o->dst);
    const float *src = view_rows(r->o, &o->src);
    for (int32_t i = 0; i < r->step->outs; i++)
        memcpy(dst + i * o->dst.stride, src + r->step->out_rows[i] * o->src.stride, (size_t)o->src.cols * sizeof *dst);
}

/* ---- running --------------------------------------------------------------------------------------------------- */

static bool check_cancel(const cpu_run *r, int32_t layer) {
    if (r->step->cancelled && r->step->cancelled(r->step->user))
        return sl_fail(r->err, SL_ERR_CANCELLED, "cancelled at layer %d", layer);
    return true;
}

static bool run_op(cpu_run *r, const op *o) {
    switch (o->kind) {
    case OP_EMBED:
        run_embed(r, o);
        return true;
    case OP_RMS_NORM:
        run_norm(r, o);
        return true;
    case OP_LINEAR:
        cpu_run_linear(r, o);
        return true;
    case OP_HEAD_LINEAR:
        cpu_run_head_linear(r, o);
        return true;
    case OP_GATE_UP:
        cpu_run_gate_up(r, o);
        return true;
    case OP_ATTENTION:
        cpu_run_attention(r, o);
        return true;
    case OP_DELTA:
        cpu_run_delta(r, o);
        return true;
    case OP_MOE:
        return cpu_run_moe(r, o);
    case OP_GATHER_OUTS:
        run_gather(r, o);
        return true;
    case OP_LOGITS:
        cpu_run_logits(r, o);
        return true;
    case OP_CHECKPOINT:
        return check_cancel(r, o->u.checkpoint.layer);
    }
    return false;
}

/* Where an operation's time is booked; moe books its own. */
static uint64_t *time_of(sl_ops_times *t, op_kind kind) {
    switch (kind) {
    case OP_ATTENTION:
        return &t->attention;
    case OP_DELTA:
        return &t->delta;
    case OP_LINEAR:
    case OP_HEAD_LINEAR:
    case OP_GATE_UP:
        return &t->linear;
    case OP_LOGITS:
        return &t->head;
    case OP_MOE:
        return NULL;
    default:
        return &t->other;
    }
}

static bool cpu_run_program(sl_ops *ops, sl_program *p, sl_step *step, sl_error *err) {
    sl_ops_cpu *o = (sl_ops_cpu *)ops;
    cpu_run r = {o, p, step, err};
    if (!o->scratch.span)
        return sl_fail(err, SL_ERR_MEMORY, "no scratch: it did not fit the memory budget");
    if (!ops_check_step(&o->known, p, step, err))
        return false;
    o->rope_of = NULL;
    for (size_t i = 0; i < p->count; i++) {
        const op *x = &p->list[i];
        if (step->outs == 0 && (x->kind == OP_GATHER_OUTS || x->kind == OP_LOGITS))
            continue;
        uint64_t start = sl_now_ns();
        if (!run_op(&r, x))
            return false;
        uint64_t *slot = time_of(&o->times, x->kind);
        if (slot)
            *slot += sl_now_ns() - start;
    }
    o->times.steps++;
    o->times.rows += (uint64_t)step->rows;
    return true;
}

/* ---- the table ----------------------------------------------------------------------------------------------------
 */

static bool cpu_prepare(sl_ops *ops, sl_program *p, sl_error *err) {
    sl_ops_cpu *o = (sl_ops_cpu *)ops;
    if (!ops_check_program(&o->known, p, err) || !cpu_scratch_fit(o, p, err))
        return false;
    o->programs++;
    return true;
}
static void cpu_discard(sl_ops *ops, sl_program *p) {
    sl_ops_cpu *o = (sl_ops_cpu *)ops;
    if (p->ready && --o->programs == 0)
        cpu_scratch_drop(o);
}
static void cpu_scratch_buffer_free(sl_ops *ops, sl_buffer b) {
    ops_memory_scratch_free(&((sl_ops_cpu *)ops)->known, b);
}

static uint64_t cpu_scratch_bytes_for(const sl_ops *ops, const sl_program *p) {
    return cpu_scratch_need((const sl_ops_cpu *)ops, p);
}

static void cpu_times(const sl_ops *ops, sl_ops_times *out) {
    *out = ((const sl_ops_cpu *)ops)->times;
}
static void cpu_times_reset(sl_ops *ops) {
    ((sl_ops_cpu *)ops)->times = (sl_ops_times){0};
}
static const char *cpu_isa_name(const sl_ops *ops) {
    return ((const sl_ops_cpu *)ops)->kernels->name;
}

static void cpu_free(sl_ops *ops) {
    sl_ops_cpu *o = (sl_ops_cpu *)ops;
    cpu_scratch_drop(o);
    ops_memory_clear(&o->known);
    free(o->moe_products);
    free(o);
}

static const sl_ops_table table = {
    .prepare = cpu_prepare,
    .discard = cpu_discard,
    .run = cpu_run_program,
    .wrap = cpu_wrap,
    .unwrap = cpu_unwrap,
    .scratch = cpu_scratch_buffer,
    .scratch_free = cpu_scratch_buffer_free,
    .scratch_bytes = cpu_scratch_bytes_for,
    .set_experts = cpu_set_experts,
    .watch_moe = cpu_watch_moe,
    .set_kv = cpu_set_kv,
    .add_kv_slab = cpu_add_kv_slab,
    .set_state = cpu_set_state,
    .add_state_slab = cpu_add_state_slab,
    .times = cpu_times,
    .times_reset = cpu_times_reset,
    .isa = cpu_isa_name,
    .free = cpu_free,
};

sl_ops *sl_ops_cpu_new(const sl_ops_cpu_options *options, sl_error *err) {
    bool exact = options->numeric == SL_NUMERIC_EXACT;
    const cpu_kernels *kernels = cpu_kernels_named(exact ? "exact" : options->isa);
    const cpu_ops *ops = cpu_ops_get(options->isa);
    if (!kernels || !ops)
        return sl_fail_null(err, SL_ERR_ARGUMENT, "instruction set '%s' is not available on this machine",
                            options->isa ? options->isa : "default");
    sl_ops_cpu *o = calloc(1, sizeof *o);
    if (!o)
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory");
    *o = (sl_ops_cpu){.base = {&table},
                      .moe_products = calloc(2 * MOE_READY, sizeof(product)),
                      .pool = options->pool,
                      .kernels = kernels,
                      .ops = ops,
                      .numeric = options->numeric,
                      .rank_bytes = RANK_SCRATCH_BYTES};
    if (!o->moe_products || !ops_memory_init(&o->known, options->mem, err)) {
        free(o->moe_products);
        free(o);
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory");
    }
    o->known.keeps = sl_state_keeps(false, exact);
    return &o->base;
}

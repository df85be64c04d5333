/* The mixture of experts on a device.
 *
 * The router's choice comes back to the host, which asks the store for the experts; while misses are read, the shared
 * expert and the experts that are there are computed. What is ready is entered into the table and a pass is encoded
 * over all pairs: those whose expert is absent from the table are left to another pass. Each pair has its own row of
 * out, and one combine adds in ascending rank, so nothing depends on the order of arrival. */
#include "ops/ops_gpu.h"

#include <stdio.h>
#include <string.h>

enum {
    READY_MAX = 64,
    GROUP_THREADS = 512,
    GROUP_PAIRS_EACH = 4 /* of a thread of group_pairs, up to GROUP_THREADS */
};

static uint64_t pair_count(const gpu_moe *x) {
    return (uint64_t)x->rows * (uint64_t)x->m->top_k;
}

/* ---- routing ----------------------------------------------------------------------------------------------------- */

static uint32_t router_bits(const sl_moe *m) {
    bool among = m->kind == SL_ROUTER_SOFTMAX_CHOSEN;
    return (m->normalize || among ? 1u << SL_FC_NORMALIZE : 0) | (among ? 1u << SL_FC_BY_LOGIT : 0) |
           (m->kind == SL_ROUTER_SIGMOID ? 1u << SL_FC_SIGMOID : 0) | (m->groups > 1 ? 1u << SL_FC_GROUPS : 0) |
           (has_weight(&m->choice_bias) ? 1u << SL_FC_SELECT_BIAS : 0);
}

/* By how many experts a lane has in registers. */
static const char *router_entry(const sl_moe *m) {
    return m->experts <= 128   ? "router_128"
           : m->experts <= 256 ? "router_256"
           : m->experts <= 512 ? "router_512"
                               : "router_2048";
}

/* Splits of the router's columns for many rows, as far as there is room for partial logits in the place of the experts'
 * outputs; by the layer's sizes alone: the order of sums is theirs. */
static uint32_t router_splits(const gpu_moe *x, uint32_t *units) {
    uint32_t all = gpu_ceil_div(x->m->router.matrix.cols, 32), most = gpu_ceil_div(all, SL_SPLIT_UNITS);
    uint32_t room = (uint32_t)((int64_t)x->m->top_k * x->hidden / x->m->experts);
    most = !x->many || room < 1 ? 1 : most < room ? most : room;
    *units = (gpu_ceil_div(all, most) + 1) / 2 * 2;
    return gpu_ceil_div(all, *units);
}

bool gpu_moe_route(gpu_moe *x) {
    gpu_run *r = x->r;
    const gpu_scratch *s = &r->o->scratch;
    const sl_moe *m = x->m;
    const sl_weight *bias = &m->choice_bias;
    uint64_t pairs = (uint64_t)x->rows * (uint64_t)m->top_k, logits = (uint64_t)x->rows * (uint64_t)m->experts;
    uint32_t units, splits = router_splits(x, &units);
    const sl_weight *own_bias = has_weight(&m->router_bias) ? &m->router_bias : NULL;
    bool bias_here = x->many && own_bias; /* else the product adds it */
    gpu_product p = {.weight = &m->router,
                     .bias = x->many ? NULL : own_bias,
                     .x = gpu_view_at(r, &x->o->src),
                     .y = (float *)(void *)(splits > 1 ? s->out : s->router),
                     .x_stride = x->o->src.stride,
                     .y_stride = m->experts,
                     .rows = x->rows};
    sl_router_args a = {.logits_stride = (uint64_t)m->experts,
                        .experts = (uint32_t)m->experts,
                        .top_k = (uint32_t)m->top_k,
                        .scale = m->weight_scale != 0 ? m->weight_scale : 1.0f,
                        .groups = (uint32_t)m->groups,
                        .top_groups = (uint32_t)m->top_groups,
                        .tiles = (uint32_t)r->o->scratch.extent.tiles,
                        .tile_rows = gpu_batch_moe(x) ? SL_BATCH_PAIRS : gpu_moe_tile(x),
                        .splits = splits,
                        .split_stride = logits};
    if (!(x->many ? gpu_multiply_split(r, &p, splits, units) : gpu_multiply(r, &p)))
        return false;
    uint32_t bits = router_bits(m) | (bias_here ? 1u << SL_FC_BIAS : 0);
    gpu_call c = gpu_call_begin(r, GPU_MOE, bits, &a, sizeof a, router_entry(m));
    gpu_call_bind(&c, 1, p.y, splits * logits * sizeof(float));
    gpu_call_bind(&c, 2, x->chosen, pairs * sizeof(int32_t));
    gpu_call_bind(&c, 3, s->weight, pairs * sizeof(float));
    gpu_call_bind(&c, 4, s->done, pairs);
    gpu_call_bind(&c, 5, has_weight(bias) ? gpu_at(r->o, bias->buffer, bias->offset[0]) : NULL,
                  (uint64_t)m->experts * sizeof(float));
    gpu_bind_step(&c, 6);
    gpu_call_bind(&c, 7, bias_here ? gpu_at(r->o, own_bias->buffer, own_bias->offset[0]) : NULL,
                  (uint64_t)m->experts * sizeof(float));
    gpu_call_threadgroup(&c, 0, m->groups > 1 ? (uint32_t)m->experts * 4 : 16);
    if (!gpu_call_end(&c, (uint32_t)x->rows, 1, 1, SL_SIMD) || !x->many)
        return c.pipeline != NULL;
    c = gpu_call_begin(r, GPU_MOE, 0, &a, sizeof a, "group_pairs");
    gpu_call_bind(&c, 1, x->chosen, pairs * sizeof(int32_t));
    gpu_call_bind(&c, 2, s->pairs, pairs * sizeof(int32_t));
    gpu_call_bind(&c, 3, s->tiles, (uint64_t)a.tiles * sizeof(sl_pair_tile));
    gpu_call_bind(&c, 4, s->tile_count, 2 * sizeof(uint32_t));
    gpu_bind_step(&c, 5);
    gpu_call_threadgroup(&c, 0, (uint32_t)m->experts * 4);
    uint32_t threads = SL_SIMD * gpu_ceil_div((int64_t)pairs, SL_SIMD * GROUP_PAIRS_EACH);
    return gpu_call_end(&c, (uint32_t)m->experts, 1, 1, threads < GROUP_THREADS ? threads : GROUP_THREADS);
}

/* Distinct experts of rows that have not failed, ascending; -1: error. */
int32_t gpu_moe_wanted(gpu_moe *x, int32_t *ids) {
    const int32_t *chosen = (const int32_t *)(const void *)x->chosen;
    const uint8_t *failed = x->r->step->row_failed;
    int32_t n = 0;
    for (int32_t i = 0; i < x->rows * x->m->top_k; i++) {
        if (failed && failed[i / x->m->top_k])
            continue;
        if (chosen[i] < 0 || chosen[i] >= x->m->experts) {
            sl_fail(x->r->err, SL_ERR_NUMERIC, "MoE layer %d: row %d chose expert %d of %d", x->m->layer,
                    i / x->m->top_k, chosen[i], x->m->experts);
            return -1;
        }
        x->asked[chosen[i]] = true;
    }
    for (int32_t e = 0; e < x->m->experts; e++)
        if (x->asked[e])
            ids[n++] = e;
    return n;
}

/* ---- the shared expert ------------------------------------------------------------------------------------------- */

bool gpu_moe_shared(gpu_moe *x) {
    const sl_moe *m = x->m;
    const gpu_scratch *s = &x->r->o->scratch;
    int64_t inner = m->shared[SL_PROJ_GATE].matrix.rows;
    if (!gpu_phase_begin(x->r, GPU_PHASE_SHARED))
        return false;
    gpu_product p = {.x = gpu_view_at(x->r, &x->o->src),
                     .y = (float *)(void *)s->shared_inner,
                     .x_stride = x->o->src.stride,
                     .y_stride = inner,
                     .rows = x->rows};
    gpu_product down = {.weight = &m->shared[SL_PROJ_DOWN],
                        .x = (float *)(void *)s->shared_inner,
                        .y = (float *)(void *)s->shared_out,
                        .x_stride = inner,
                        .y_stride = x->hidden,
                        .rows = x->rows};
    gpu_product gate = p;
    gate.weight = &m->shared_gate;
    gate.y = (float *)(void *)s->shared_gate;
    gate.y_stride = 1;
    return gpu_multiply_gate_up(x->r, &m->shared[SL_PROJ_GATE], &m->shared[SL_PROJ_UP], &p,
                                (float *)(void *)s->shared_up) &&
           gpu_multiply(x->r, &down) && (!has_weight(&m->shared_gate) || gpu_multiply(x->r, &gate));
}

/* Computes n ready experts, in as many passes as their slabs need, and waits for them. */
static bool compute(gpu_moe *x, const sl_expert_view *views, int n) {
    gpu_scratch *s = &x->r->o->scratch;
    for (int i = 0; i < n;) {
        gpu_pass p = {.x = x, .table = s->table};
        bool full = false;
        memset(s->table, 0, gpu_table_bytes(x->m));
        gpu_tier_pass(x->r->o);
        int first = i;
        while (i < n && gpu_pass_enter(&p, &views[i], &full))
            i++;
        if ((i < n && !full) || i == first || !gpu_push(x->r, s->table, gpu_table_bytes(x->m)) ||
            !gpu_pass_encode(&p) || !gpu_finish(x->r))
            return i == first && full
                       ? sl_fail(x->r->err, SL_ERR_UNSUPPORTED, "an expert in more than %d blocks", SL_SLAB_COUNT)
                       : false;
    }
    return true;
}

/* ---- the step's iterator ----------------------------------------------------------------------------------------- */

/* The rows that chose expert id fail; the step goes on for the others, unless it is all of it that was cancelled. */
bool gpu_moe_fail_rows(gpu_moe *x, int32_t id, const sl_error *why) {
    const int32_t *chosen = (const int32_t *)(const void *)x->chosen;
    sl_step *step = x->r->step;
    if (!step->row_failed || why->code == SL_ERR_CANCELLED) {
        if (x->r->err)
            *x->r->err = *why;
        return false;
    }
    if (step->row_error.code == SL_OK)
        step->row_error = *why;
    for (int32_t i = 0; i < x->rows * x->m->top_k; i++)
        if (chosen[i] == id)
            step->row_failed[i / x->m->top_k] = 1;
    return true;
}

/* Is every one of these waited for? Takes them off the list. */
bool gpu_moe_awaited(gpu_moe *x, const sl_expert_view *views, int n) {
    for (int i = 0; i < n; i++) {
        int32_t id = views[i].id;
        if (id < 0 || id >= x->m->experts || !x->asked[id])
            return sl_fail(x->r->err, SL_ERR_IO, "MoE layer %d: expert %d was delivered, which nobody waits for",
                           x->m->layer, id);
        x->asked[id] = false;
        x->wanted--;
    }
    return true;
}

static bool run_experts(gpu_moe *x) {
    sl_ops_gpu *o = x->r->o;
    const sl_expert_source *src = &o->known.experts;
    sl_expert_view views[READY_MAX];
    for (;;) {
        sl_error why = {0};
        uint64_t t0 = sl_now_ns();
        int n = src->next(src->self, views, READY_MAX, &why);
        uint64_t t1 = sl_now_ns();
        o->times.expert_wait += t1 - t0;
        if (n == 0)
            return x->wanted == 0 || sl_fail(x->r->err, SL_ERR_IO, "MoE layer %d: %d experts were never delivered",
                                             x->m->layer, x->wanted);
        if (n > READY_MAX || !gpu_moe_awaited(x, views, n < 0 ? 1 : n))
            return false;
        if (n < 0) {
            if (!gpu_moe_fail_rows(x, views[0].id, &why))
                return false;
            continue;
        }
        if (!compute(x, views, n))
            return false;
        src->done(src->self, views, n);
        o->times.expert_compute += sl_now_ns() - t1;
        if (x->r->step->cancelled && x->r->step->cancelled(x->r->step->user))
            return sl_fail(x->r->err, SL_ERR_CANCELLED, "cancelled in MoE layer %d", x->m->layer);
    }
}

/* Those that are in the device's own memory, in one pass; they are taken off the list. */
static bool run_hits(gpu_moe *x, int32_t *ids, int32_t *n) {
    sl_ops_gpu *o = x->r->o;
    gpu_pass p = {.x = x, .table = o->scratch.table};
    int32_t left = 0, hits = 0;
    gpu_tier_pass(o);
    memset(p.table, 0, gpu_table_bytes(x->m));
    for (int32_t i = 0; i < *n; i++) {
        uint64_t entry[SL_PARTS];
        if (!gpu_tier_find(o, x->m, ids[i], true, entry)) {
            ids[left++] = ids[i];
            continue;
        }
        memcpy(p.table + (uint64_t)ids[i] * sizeof entry, entry, sizeof entry);
        x->asked[ids[i]] = false;
        hits++;
    }
    *n = left;
    if (!hits)
        return true;
    uint64_t t0 = sl_now_ns();
    gpu_pass_aligned(&p);
    bool ok = gpu_push(x->r, p.table, gpu_table_bytes(x->m)) && gpu_pass_encode(&p) && gpu_finish(x->r);
    o->times.expert_compute += sl_now_ns() - t0;
    return ok;
}

/* The list in flight is waited for whatever went wrong: slots must not change under it. */
static bool iterate(gpu_moe *x, const int32_t *ids, int32_t n) {
    sl_ops_gpu *o = x->r->o;
    const sl_expert_source *src = &o->known.experts;
    bool shared = has_weight(&x->m->shared[SL_PROJ_GATE]);
    sl_gpu_ticket ticket = 0;
    uint64_t t0 = sl_now_ns();
    bool ok = src->begin(src->self, x->m->layer, ids, n, x->many ? SL_ORDER_ASCENDING : SL_ORDER_READY, x->r->err);
    o->times.expert_wait += sl_now_ns() - t0;
    x->wanted = n;
    ok = ok && (!shared || (gpu_moe_shared(x) && gpu_submit_now(x->r, &ticket)));
    ok = ok && run_experts(x) && gpu_book(x->r, ticket);
    src->end(src->self);
    return ok;
}

bool gpu_moe_combine(gpu_moe *x) {
    gpu_run *r = x->r;
    const sl_moe *m = x->m;
    const gpu_scratch *s = &r->o->scratch;
    bool shared = has_weight(&m->shared[SL_PROJ_GATE]), gate = shared && has_weight(&m->shared_gate);
    uint32_t bits = (shared ? 1u << SL_FC_SHARED : 0) | (gate ? 1u << SL_FC_SHARED_GATE : 0);
    sl_combine_args a = {.out_stride = (uint64_t)x->hidden,
                         .shared_stride = (uint64_t)x->hidden,
                         .residual_stride = (uint64_t)x->o->dst.stride,
                         .cols = (uint32_t)x->hidden,
                         .top_k = (uint32_t)m->top_k};
    gpu_call c = gpu_call_begin(r, GPU_MOE, bits, &a, sizeof a, "combine");
    gpu_call_bind(&c, 1, s->out, pair_count(x) * (uint64_t)x->hidden * sizeof(float));
    gpu_call_bind(&c, 2, s->weight, pair_count(x) * sizeof(float));
    gpu_call_bind(&c, 3, s->done, pair_count(x));
    gpu_call_bind(&c, 4, shared ? s->shared_out : NULL, (uint64_t)x->rows * (uint64_t)x->hidden * sizeof(float));
    gpu_call_bind(&c, 5, gate ? s->shared_gate : NULL, (uint64_t)x->rows * sizeof(float));
    gpu_call_bind(&c, 6, gpu_view_at(r, &x->o->dst), gpu_rows_bytes(x->rows, x->o->dst.stride, x->hidden));
    gpu_call_bind(&c, 7, x->status, (uint64_t)x->rows * sizeof(int32_t));
    gpu_bind_step(&c, 8);
    r->combined = m->layer;
    return gpu_call_end(&c, gpu_ceil_div(x->hidden, 256), (uint32_t)x->rows, 1, 256);
}

bool gpu_check_status(gpu_run *r, int32_t layer, const uint8_t *status) {
    const int32_t *complaint = (const int32_t *)(const void *)status;
    for (int32_t i = 0; i < r->step->rows; i++)
        if (complaint[i] && !(r->step->row_failed && r->step->row_failed[i]))
            return sl_fail(r->err, SL_ERR_IO, "MoE layer %d: an expert of row %d was never computed", layer, i);
    return true;
}

bool gpu_check_combined(gpu_run *r) {
    int32_t layer = r->combined;
    r->combined = -1;
    return layer < 0 || gpu_check_status(r, layer, r->o->scratch.status);
}

gpu_moe gpu_moe_of(gpu_run *r, const op *o) {
    const sl_moe *m = &o->u.moe;
    return (gpu_moe){.r = r,
                     .o = o,
                     .m = m,
                     .proj = {gpu_moe_matrix(m, 0), gpu_moe_matrix(m, 1), gpu_moe_matrix(m, 2)},
                     .rows = r->step->rows,
                     .hidden = o->dst.cols,
                     .inner = (int32_t)sl_moe_inner(m),
                     .chosen = r->o->scratch.chosen,
                     .status = r->o->scratch.status,
                     .many = r->step->rows >= GPU_MATMUL_ROWS};
}

bool gpu_run_moe(gpu_run *r, const op *o) {
    gpu_moe x = gpu_moe_of(r, o);
    int32_t ids[GPU_EXPERTS];
    uint64_t t0 = sl_now_ns();
    if (!gpu_moe_route(&x) || !gpu_pull(r, x.chosen, pair_count(&x) * sizeof(int32_t)) || !gpu_finish(r) ||
        !gpu_check_combined(r))
        return false;
    r->o->times.router += sl_now_ns() - t0;
    int32_t n = gpu_moe_wanted(&x, ids);
    if (n <= 0) /* 0: every row has failed before */
        return n == 0;
    bool shared = has_weight(&x.m->shared[SL_PROJ_GATE]);
    if (r->o->tier && !run_hits(&x, ids, &n))
        return false;
    return (n > 0 ? iterate(&x, ids, n) : !shared || gpu_moe_shared(&x)) && gpu_moe_combine(&x) &&
           gpu_pull(r, x.status, (uint64_t)x.rows * sizeof(int32_t));
}

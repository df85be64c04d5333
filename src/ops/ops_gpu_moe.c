/* The mixture of experts on a device.
 *
 * The router's choice comes back to the host, which asks the store for the experts; while misses are read, the shared
 * expert and the experts that are there are computed. What is ready is entered into the table and a pass is encoded
 * over all pairs: those whose expert is absent from the table are left to another pass. Each pair has its own row of
 * out, and one combine adds in ascending rank, so nothing depends on the order of arrival. */
#include "ops/ops_gpu.h"

#include <stdio.h>
#include <string.h>

enum { READY_MAX = 64 };

typedef struct moe_run {
    gpu_run *r;
    const op *o;
    const sl_moe *m;
    int32_t rows, hidden, inner;
    bool many; /* rows enough for the matrix units */
    int32_t wanted;
    bool asked[GPU_EXPERTS]; /* experts somebody waits for */
} moe_run;

/* ---- routing ----------------------------------------------------------------------------------------------------- */

static bool route(moe_run *x) {
    gpu_run *r = x->r;
    const gpu_scratch *s = &r->o->scratch;
    const sl_moe *m = x->m;
    uint64_t pairs = (uint64_t)x->rows * (uint64_t)m->top_k;
    gpu_product p = {.weight = &m->router,
                     .x = gpu_view_at(r, &x->o->src),
                     .y = (float *)(void *)s->router,
                     .x_stride = x->o->src.stride,
                     .y_stride = m->experts,
                     .rows = x->rows};
    sl_router_args a = {.logits_stride = (uint64_t)m->experts,
                        .experts = (uint32_t)m->experts,
                        .top_k = (uint32_t)m->top_k,
                        .scale = 1.0f,
                        .tiles = (uint32_t)r->o->scratch.extent.tiles};
    if (!gpu_multiply(r, &p))
        return false;
    gpu_call c = gpu_call_begin(r, GPU_MOE, m->normalize ? 1u << SL_FC_NORMALIZE : 0, &a, sizeof a, "router");
    gpu_call_bind(&c, 1, s->router, (uint64_t)x->rows * (uint64_t)m->experts * sizeof(float));
    gpu_call_bind(&c, 2, s->chosen, pairs * sizeof(int32_t));
    gpu_call_bind(&c, 3, s->weight, pairs * sizeof(float));
    gpu_call_bind(&c, 4, s->done, pairs);
    gpu_call_bind(&c, 5, NULL, 0);
    gpu_bind_step(&c, 6);
    gpu_call_threadgroup(&c, 0, (uint32_t)m->experts * 4);
    gpu_call_threadgroup(&c, 1, 2 * (uint32_t)m->top_k * 4);
    if (!gpu_call_end(&c, (uint32_t)x->rows, 1, 1, SL_SIMD) || !x->many)
        return c.pipeline != NULL;
    c = gpu_call_begin(r, GPU_MOE, 0, &a, sizeof a, "group_pairs");
    gpu_call_bind(&c, 1, s->chosen, pairs * sizeof(int32_t));
    gpu_call_bind(&c, 2, s->pairs, pairs * sizeof(int32_t));
    gpu_call_bind(&c, 3, s->tiles, (uint64_t)a.tiles * sizeof(sl_pair_tile));
    gpu_call_bind(&c, 4, s->tile_count, 2 * sizeof(uint32_t));
    gpu_bind_step(&c, 5);
    gpu_call_threadgroup(&c, 0, 2 * ((uint32_t)m->experts + 1) * 4);
    return gpu_call_end(&c, 1, 1, 1, 128);
}

/* Distinct experts of rows that have not failed, ascending; -1: error. */
static int32_t wanted(moe_run *x, int32_t *ids) {
    const int32_t *chosen = (const int32_t *)(const void *)x->r->o->scratch.chosen;
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

static bool run_shared(moe_run *x) {
    const sl_moe *m = x->m;
    const gpu_scratch *s = &x->r->o->scratch;
    int64_t inner = m->shared[SL_PROJ_GATE].matrix.rows;
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

/* ---- a pass over what is ready ----------------------------------------------------------------------------------- */

/* The slabs of a pass: distinct pieces of memory, at most SL_SLAB_COUNT, each with its number in table entries. */
typedef struct pass {
    moe_run *x;
    gpu_span slab[SL_SLAB_COUNT];
    int slabs;
    kernel_format format[SL_PROJ_COUNT]; /* the variant for all experts in it; align 0: none yet */
} pass;

/* The number of the slab that span s lies in; -1: no room for another. */
static int slab_number(pass *p, const gpu_span *s) {
    for (int i = 0; i < p->slabs; i++)
        if (p->slab[i].buffer == s->buffer)
            return i;
    if (p->slabs == SL_SLAB_COUNT)
        return -1;
    p->slab[p->slabs] = (gpu_span){s->buffer, 0, sl_gpu_buffer_size(s->buffer)};
    return p->slabs++;
}

static uint64_t part_bytes(const sl_matrix *w, int part) {
    return (uint64_t)w->rows * w->row_bytes[part];
}

/* Enters an expert; false without an error (err untouched, *full): its slabs do not fit beside the others'. */
static bool enter(pass *p, const sl_expert_view *v, bool *full) {
    gpu_run *r = p->x->r;
    uint64_t entry[SL_PARTS] = {0};
    int slabs = p->slabs;
    *full = false;
    for (int i = 0; i < SL_PARTS; i++) {
        uint64_t bytes = part_bytes(&p->x->m->proj[i / 3], i % 3);
        if (!bytes || !v->part[i])
            continue;
        gpu_span s = gpu_span_of(r->o, v->part[i], bytes, r->err);
        int number = s.buffer ? slab_number(p, &s) : -1;
        if (number < 0) {
            *full = s.buffer != NULL;
            p->slabs = slabs;
            return false;
        }
        entry[i] = (uint64_t)number << 56 | (s.offset + 1);
    }
    for (int proj = 0; proj < SL_PROJ_COUNT; proj++) {
        const void *part[3] = {v->part[3 * proj], v->part[3 * proj + 1], v->part[3 * proj + 2]};
        kernel_format f = gpu_format_of(&p->x->m->proj[proj], part);
        if (p->format[proj].align == 0 || f.align < p->format[proj].align)
            p->format[proj] = f;
    }
    memcpy(r->o->scratch.table + (uint64_t)v->id * sizeof entry, entry, sizeof entry);
    return true;
}

static void bind_slabs(gpu_call *c, const pass *p) {
    for (int i = 0; i < SL_SLAB_COUNT; i++) {
        const gpu_span *s = &p->slab[i < p->slabs ? i : 0];
        c->binding[c->count++] = (sl_gpu_binding){.slot = SL_SLAB_FIRST + i,
                                                  .buffer = s->buffer,
                                                  .offset = s->offset,
                                                  .length = s->length,
                                                  .access = SL_GPU_READ};
    }
}

static sl_expert_args expert_args(const moe_run *x, int proj, int64_t x_stride, int64_t y_stride, bool per_pair) {
    return (sl_expert_args){.w = gpu_weights_args(&x->m->proj[proj]),
                            .x_stride = (uint64_t)x_stride,
                            .y_stride = (uint64_t)y_stride,
                            .experts = (uint32_t)x->m->experts,
                            .top_k = (uint32_t)x->m->top_k,
                            .projection = (uint32_t)proj,
                            .per_pair = per_pair};
}

static uint64_t pair_count(const moe_run *x) {
    return (uint64_t)x->rows * (uint64_t)x->m->top_k;
}

/* One projection of few rows: x [rows or pairs], y [pairs]. */
static bool few(pass *p, int proj, const float *from, int64_t from_stride, uint64_t from_bytes, float *to,
                int64_t to_stride, bool per_pair) {
    moe_run *x = p->x;
    const gpu_scratch *s = &x->r->o->scratch;
    char entry[64];
    sl_expert_args a = expert_args(x, proj, from_stride, to_stride, per_pair);
    kernel_entry(entry, sizeof entry, "expert_matvec", &p->format[proj]);
    gpu_call c = gpu_call_begin(x->r, GPU_EXPERT, proj == SL_PROJ_DOWN ? 1u << SL_FC_LEAVES : 0, &a, sizeof a, entry);
    gpu_call_bind(&c, 1, s->table, (uint64_t)x->m->experts * SL_PARTS * sizeof(uint64_t));
    gpu_call_bind(&c, 2, s->chosen, pair_count(x) * sizeof(int32_t));
    gpu_call_bind(&c, 3, from, from_bytes);
    gpu_call_bind(&c, 4, to, pair_count(x) * (uint64_t)to_stride * sizeof(float));
    gpu_call_bind(&c, 5, s->done, pair_count(x));
    gpu_bind_step(&c, 6);
    bind_slabs(&c, p);
    return gpu_call_end(&c, gpu_ceil_div(a.w.rows, SL_MATVEC_ROWS), (uint32_t)pair_count(x), 1, SL_MATVEC_THREADS);
}

static bool same_layout(const sl_matrix *a, const sl_matrix *b) {
    return a->format == b->format && a->group == b->group && a->side == b->side && a->rows == b->rows &&
           a->cols == b->cols;
}

static bool few_gate_up(pass *p) {
    moe_run *x = p->x;
    const gpu_scratch *s = &x->r->o->scratch;
    char entry[64];
    const float *src = gpu_view_at(x->r, &x->o->src);
    uint64_t src_bytes = gpu_rows_bytes(x->rows, x->o->src.stride, x->o->src.cols);
    float *inner = (float *)(void *)s->inner, *up = (float *)(void *)s->up;
    if (!same_layout(&x->m->proj[SL_PROJ_GATE], &x->m->proj[SL_PROJ_UP]))
        return few(p, SL_PROJ_GATE, src, x->o->src.stride, src_bytes, inner, x->inner, false) &&
               few(p, SL_PROJ_UP, src, x->o->src.stride, src_bytes, up, x->inner, false) &&
               gpu_silu_mul(x->r, inner, up, x->inner, x->inner, x->m->top_k, false);
    const kernel_format *f = &p->format[SL_PROJ_GATE], *g = &p->format[SL_PROJ_UP];
    sl_expert_args a = expert_args(x, SL_PROJ_GATE, x->o->src.stride, x->inner, false);
    kernel_entry(entry, sizeof entry, "expert_gate_up", f->align < g->align ? f : g);
    gpu_call c = gpu_call_begin(x->r, GPU_EXPERT, 0, &a, sizeof a, entry);
    gpu_call_bind(&c, 1, s->table, (uint64_t)x->m->experts * SL_PARTS * sizeof(uint64_t));
    gpu_call_bind(&c, 2, s->chosen, pair_count(x) * sizeof(int32_t));
    gpu_call_bind(&c, 3, src, src_bytes);
    gpu_call_bind(&c, 4, inner, pair_count(x) * (uint64_t)x->inner * sizeof(float));
    gpu_bind_step(&c, 6);
    bind_slabs(&c, p);
    return gpu_call_end(&c, gpu_ceil_div(a.w.rows, SL_MATVEC_ROWS), (uint32_t)pair_count(x), 1, SL_MATVEC_THREADS);
}

/* One projection grouped by expert; what it reads is in half rows. */
static bool many(pass *p, int proj, float *to, int64_t to_stride, bool per_pair) {
    moe_run *x = p->x;
    const gpu_scratch *s = &x->r->o->scratch;
    char entry[64];
    uint64_t padded = sl_round_up((uint64_t)x->m->proj[proj].cols, SL_HALF_PAD);
    uint64_t from_rows = per_pair ? pair_count(x) : (uint64_t)x->rows;
    sl_expert_args a = expert_args(x, proj, (int64_t)padded, to_stride, per_pair);
    kernel_entry(entry, sizeof entry, "matmul_expert", &p->format[proj]);
    gpu_call c = gpu_call_begin(x->r, GPU_MATMUL, proj == SL_PROJ_DOWN ? 1u << SL_FC_LEAVES : 0, &a, sizeof a, entry);
    gpu_call_bind(&c, 1, s->table, (uint64_t)x->m->experts * SL_PARTS * sizeof(uint64_t));
    gpu_call_bind(&c, 2, s->tiles, (uint64_t)s->extent.tiles * sizeof(sl_pair_tile));
    gpu_call_bind(&c, 3, s->pairs, pair_count(x) * sizeof(int32_t));
    gpu_call_bind(&c, 4, s->half, from_rows * padded * 2);
    gpu_call_bind(&c, 5, s->unscale, from_rows * sizeof(float));
    gpu_call_bind(&c, 6, to, pair_count(x) * (uint64_t)to_stride * sizeof(float));
    gpu_call_bind(&c, 7, s->done, pair_count(x));
    gpu_bind_step(&c, 8);
    gpu_call_bind(&c, 9, s->tile_count, 2 * sizeof(uint32_t));
    bind_slabs(&c, p);
    uint32_t tiles = gpu_ceil_div((int64_t)pair_count(x), SL_MATMUL_TOKENS) + (uint32_t)x->m->experts;
    return gpu_call_end(&c, gpu_ceil_div(a.w.rows, SL_MATMUL_ROWS), tiles, 1, SL_MATMUL_THREADS);
}

static bool encode_pass(pass *p) {
    moe_run *x = p->x;
    const gpu_scratch *s = &x->r->o->scratch;
    float *inner = (float *)(void *)s->inner, *up = (float *)(void *)s->up, *out = (float *)(void *)s->out;
    if (!x->many)
        return few_gate_up(p) && few(p, SL_PROJ_DOWN, inner, x->inner,
                                     pair_count(x) * (uint64_t)x->inner * sizeof(float), out, x->hidden, true);
    return gpu_to_half(x->r, gpu_view_at(x->r, &x->o->src), x->o->src.stride, x->o->src.cols, 1, false) &&
           many(p, SL_PROJ_GATE, inner, x->inner, false) && many(p, SL_PROJ_UP, up, x->inner, false) &&
           gpu_silu_mul(x->r, inner, up, x->inner, x->inner, x->m->top_k, false) &&
           gpu_to_half(x->r, inner, x->inner, x->inner, x->m->top_k, false) &&
           many(p, SL_PROJ_DOWN, out, x->hidden, true);
}

/* Computes n ready experts, in as many passes as their slabs need, and waits for them. */
static bool compute(moe_run *x, const sl_expert_view *views, int n) {
    gpu_scratch *s = &x->r->o->scratch;
    for (int i = 0; i < n;) {
        pass p = {.x = x};
        bool full = false;
        memset(s->table, 0, (size_t)x->m->experts * SL_PARTS * sizeof(uint64_t));
        int first = i;
        while (i < n && enter(&p, &views[i], &full))
            i++;
        if ((i < n && !full) || i == first || !encode_pass(&p) || !gpu_finish(x->r))
            return i == first && full
                       ? sl_fail(x->r->err, SL_ERR_UNSUPPORTED, "an expert in more than %d blocks", SL_SLAB_COUNT)
                       : false;
    }
    return true;
}

/* ---- the step's iterator ----------------------------------------------------------------------------------------- */

/* The rows that chose expert id fail; the step goes on for the others. */
static bool fail_rows(moe_run *x, int32_t id, const sl_error *why) {
    const int32_t *chosen = (const int32_t *)(const void *)x->r->o->scratch.chosen;
    sl_step *step = x->r->step;
    if (!step->row_failed) {
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
static bool all_awaited(moe_run *x, const sl_expert_view *views, int n) {
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

static bool run_experts(moe_run *x) {
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
        if (n > READY_MAX || !all_awaited(x, views, n < 0 ? 1 : n))
            return false;
        if (n < 0) {
            if (!fail_rows(x, views[0].id, &why))
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

/* The list in flight is waited for whatever went wrong: slots must not change under it. */
static bool iterate(moe_run *x, const int32_t *ids, int32_t n) {
    sl_ops_gpu *o = x->r->o;
    const sl_expert_source *src = &o->known.experts;
    bool shared = has_weight(&x->m->shared[SL_PROJ_GATE]);
    sl_gpu_ticket ticket = 0;
    uint64_t t0 = sl_now_ns();
    bool ok = src->begin(src->self, x->m->layer, ids, n, x->many ? SL_ORDER_ASCENDING : SL_ORDER_READY, x->r->err);
    o->times.expert_wait += sl_now_ns() - t0;
    x->wanted = n;
    ok = ok && (!shared || (run_shared(x) && gpu_submit_now(x->r, &ticket)));
    ok = ok && run_experts(x);
    src->end(src->self);
    return ok;
}

static bool combine(moe_run *x) {
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
    gpu_call_bind(&c, 7, s->status, (uint64_t)x->rows * sizeof(int32_t));
    gpu_bind_step(&c, 8);
    r->combined = m->layer;
    return gpu_call_end(&c, gpu_ceil_div(x->hidden, 256), (uint32_t)x->rows, 1, 256);
}

bool gpu_check_combined(gpu_run *r) {
    const int32_t *status = (const int32_t *)(const void *)r->o->scratch.status;
    int32_t layer = r->combined;
    r->combined = -1;
    for (int32_t i = 0; layer >= 0 && i < r->step->rows; i++)
        if (status[i] && !(r->step->row_failed && r->step->row_failed[i]))
            return sl_fail(r->err, SL_ERR_IO, "MoE layer %d: an expert of row %d was never computed", layer, i);
    return true;
}

bool gpu_run_moe(gpu_run *r, const op *o) {
    const sl_moe *m = &o->u.moe;
    int32_t rows = r->step->rows;
    moe_run x = {.r = r,
                 .o = o,
                 .m = m,
                 .rows = rows,
                 .hidden = o->dst.cols,
                 .inner = (int32_t)m->proj[SL_PROJ_GATE].rows,
                 .many = rows >= GPU_MATMUL_ROWS};
    int32_t ids[GPU_EXPERTS];
    uint64_t t0 = sl_now_ns();
    if (!route(&x) || !gpu_finish(r) || !gpu_check_combined(r))
        return false;
    r->o->times.router += sl_now_ns() - t0;
    int32_t n = wanted(&x, ids);
    if (n <= 0) /* 0: every row has failed before */
        return n == 0;
    return iterate(&x, ids, n) && combine(&x);
}

/* The mixture of experts as one operation: route, fetch, expert FFN, combine.
 *
 * Few pairs (decode): experts are computed in the order in which they become ready, all ready ones in one parallel
 * loop; each writes its unweighted output to rank_out[row * top_k + rank]; after the last, rows are combined in
 * ascending rank. Many pairs (prefill): experts come in ascending id and are added to sum at once. An expert's rank is
 * its place in ascending id, so both add the same numbers in the same order. */
#include "ops/ops_cpu.h"

#include "cpu/cpu_math.h"

#include <string.h>

typedef struct moe_run {
    cpu_run *r;
    const sl_moe *m;
    const float *src;
    float *residual;
    int64_t src_stride, residual_stride;
    int32_t hidden, inner; /* inner: rows of an expert's gate */
    int64_t inner_stride;
    bool kept; /* outputs by rank */
} moe_run;

static sl_matrix expert_matrix(const moe_run *x, const sl_expert_view *v, int proj) {
    int from = x->m->alternating && proj == SL_PROJ_UP ? SL_PROJ_GATE : proj;
    sl_matrix w = x->m->proj[from];
    for (int i = 0; i < 3; i++)
        w.part[i] = v->part[from * 3 + i];
    return x->m->alternating && proj != SL_PROJ_DOWN ? sl_matrix_every(&w, proj == SL_PROJ_UP, 2) : w;
}

static int32_t pair_count(const moe_run *x, int32_t id) {
    const cpu_scratch *s = &x->r->o->scratch;
    return s->first[id + 1] - s->first[id];
}

/* ---- expert FFN
 * ------------------------------------------------------------------------------------------------------ */

/* The rows of an expert, as its gate and up read them. */
static cpu_rows pair_rows(const moe_run *x, const sl_expert_view *v) {
    const cpu_scratch *s = &x->r->o->scratch;
    return (cpu_rows){.cols = x->m->proj[SL_PROJ_GATE].cols,
                      .n = pair_count(x, v->id),
                      .x = x->src,
                      .ldx = x->src_stride,
                      .q = s->act,
                      .index = s->pair_row + s->first[v->id]};
}

static const float *expert_bias(const moe_run *x, const sl_expert_view *v, int proj) {
    const float *all = vector_of(x->r->o, &x->m->bias[proj]);
    return all ? all + (int64_t)v->id * x->m->bias[proj].matrix.cols : NULL;
}

/* h[pair] = silu(gate . x[row of pair]) * (up . x); pairs of expert v begin at row `at` of inner. */
static product inner_product(const moe_run *x, const sl_expert_view *v, int32_t at) {
    return (product){.w = expert_matrix(x, v, SL_PROJ_GATE),
                     .up = expert_matrix(x, v, SL_PROJ_UP),
                     .dst = x->r->o->scratch.inner + at * x->inner_stride,
                     .ldd = x->inner_stride,
                     .in = pair_rows(x, v)};
}

/* Gate or up alone, with its bias. */
static product half_product(const moe_run *x, const sl_expert_view *v, int proj, int32_t at) {
    const cpu_scratch *s = &x->r->o->scratch;
    return (product){.w = expert_matrix(x, v, proj),
                     .bias = expert_bias(x, v, proj),
                     .dst = (proj == SL_PROJ_GATE ? s->inner : s->inner_up) + at * x->inner_stride,
                     .ldd = x->inner_stride,
                     .in = pair_rows(x, v)};
}

static product down_product(const moe_run *x, const sl_expert_view *v, int32_t at, float *dst) {
    const cpu_scratch *s = &x->r->o->scratch;
    return (product){.w = expert_matrix(x, v, SL_PROJ_DOWN),
                     .bias = expert_bias(x, v, SL_PROJ_DOWN),
                     .dst = dst,
                     .ldd = x->hidden,
                     .in = cpu_rows_of(s->inner + at * x->inner_stride, x->inner_stride, pair_count(x, v->id), x->inner,
                                       s->act_inner + (uint64_t)at * cpu_act_bytes(x->inner))};
}

static void activate_rows(void *ctx, int64_t begin, int64_t end, int worker) {
    const moe_run *x = ctx;
    const cpu_scratch *s = &x->r->o->scratch;
    for (int64_t i = begin; i < end; i++) {
        float *gate = s->inner + i * x->inner_stride;
        const float *up = s->inner_up + i * x->inner_stride;
        if (x->m->swiglu_limit > 0)
            v16_clamped_swiglu(gate, gate, up, x->inner, x->m->swiglu_alpha, x->m->swiglu_limit);
        else
            v16_silu_mul(gate, gate, up, x->inner);
    }
}

/* The inner rows of n ready experts, their pairs one after the other. */
static void compute_inner(moe_run *x, const sl_expert_view *views, int n) {
    sl_ops_cpu *o = x->r->o;
    product *list = o->moe_products;
    bool apart = cpu_moe_apart(x->m);
    int32_t at = 0, count = 0;
    for (int i = 0; i < n; at += pair_count(x, views[i].id), i++) {
        if (apart) {
            list[count++] = half_product(x, &views[i], SL_PROJ_GATE, at);
            list[count++] = half_product(x, &views[i], SL_PROJ_UP, at);
        } else
            list[count++] = inner_product(x, &views[i], at);
    }
    cpu_products(o, list, count);
    if (apart)
        sl_pool_run(o->pool, at, 4, activate_rows, x);
    if (o->watch.inputs)
        o->watch.inputs(o->watch.self, x->m, true, o->scratch.inner, x->inner_stride, at, x->inner);
    cpu_quantize_into(o, o->scratch.inner, x->inner_stride, at, x->inner, o->scratch.act_inner);
}

/* Computes n ready experts into dst, their pairs one after the other: two parallel loops whatever n is. */
static void compute_experts(moe_run *x, const sl_expert_view *views, int n, float *dst) {
    product *list = x->r->o->moe_products;
    int32_t at = 0;
    compute_inner(x, views, n);
    for (int i = 0; i < n; at += pair_count(x, views[i].id), i++)
        list[i] = down_product(x, &views[i], at, dst + (int64_t)at * x->hidden);
    cpu_products(x->r->o, list, n);
}

/* ---- adding up
 * ---------------------------------------------------------------------------------------------------------- */

/* Where a pair's output went in kept mode: pairs are computed in order of arrival, so their places are recorded. */
static void record_places(moe_run *x, const sl_expert_view *views, int n, int32_t place) {
    cpu_scratch *s = &x->r->o->scratch;
    for (int i = 0; i < n; i++) {
        for (int32_t k = s->first[views[i].id]; k < s->first[views[i].id + 1]; k++) {
            int32_t pair = s->pair_row[k] * x->m->top_k + s->pair_rank[k];
            s->place[pair] = place++;
            s->done[pair] = PAIR_THERE;
        }
    }
}

typedef struct add_job {
    moe_run *x;
    const sl_expert_view *v;
    const float *out;
} add_job;

/* Rows of one expert are distinct, so they may be added in parallel. */
static void add_range(void *ctx, int64_t begin, int64_t end, int worker) {
    const add_job *j = ctx;
    sl_ops_cpu *o = j->x->r->o;
    const cpu_scratch *s = &o->scratch;
    for (int64_t i = begin; i < end; i++) {
        int32_t k = s->first[j->v->id] + (int32_t)i;
        int32_t pair = s->pair_row[k] * j->x->m->top_k + s->pair_rank[k];
        o->ops->axpy(s->sum + (int64_t)s->pair_row[k] * j->x->hidden, j->out + i * j->x->hidden, s->weight[pair],
                     j->x->hidden);
        s->done[pair] = PAIR_THERE;
    }
}

/* sum of a row from its kept outputs, ranks ascending, from zero. */
static void combine_kept(void *ctx, int64_t begin, int64_t end, int worker) {
    const moe_run *x = ctx;
    const sl_ops_cpu *o = x->r->o;
    const cpu_scratch *s = &o->scratch;
    for (int64_t row = begin; row < end; row++) {
        for (int32_t rank = 0; rank < x->m->top_k; rank++) {
            int64_t pair = row * x->m->top_k + rank;
            if (s->done[pair] == PAIR_THERE)
                o->ops->axpy(s->sum + row * x->hidden, s->rank_out + (int64_t)s->place[pair] * x->hidden,
                             s->weight[pair], x->hidden);
        }
    }
}

/* ---- experts that could not be read
 * --------------------------------------------------------------------------------------- */

/* The rows that chose expert id fail; the step goes on for the others, unless it is all of it that was cancelled. A
 * caller who does not look at rows gets no half of a result: the step fails. */
static bool fail_rows(moe_run *x, int32_t id, const sl_error *why) {
    const cpu_scratch *s = &x->r->o->scratch;
    sl_step *step = x->r->step;
    if (!step->row_failed || why->code == SL_ERR_CANCELLED) {
        if (x->r->err)
            *x->r->err = *why;
        return false;
    }
    if (step->row_error.code == SL_OK)
        step->row_error = *why;
    for (int32_t k = s->first[id]; k < s->first[id + 1]; k++) {
        step->row_failed[s->pair_row[k]] = 1;
        s->done[s->pair_row[k] * x->m->top_k + s->pair_rank[k]] = PAIR_FAILED;
    }
    return true;
}

/* A pair without output at combine is an error of the engine, never a skip. */
static bool all_done(moe_run *x) {
    const cpu_scratch *s = &x->r->o->scratch;
    for (int64_t i = 0; i < (int64_t)x->r->step->rows * x->m->top_k; i++)
        if (s->done[i] == PAIR_MISSING)
            return sl_fail(x->r->err, SL_ERR_IO, "MoE layer %d: expert %d of row %lld was never delivered", x->m->layer,
                           s->chosen[i], (long long)(i / x->m->top_k));
    return true;
}

/* Is expert id one that this layer still waits for? What the source hands out twice would be added twice. */
static bool awaited(const moe_run *x, int32_t id, sl_error *err) {
    const cpu_scratch *s = &x->r->o->scratch;
    bool known = id >= 0 && id < x->m->experts && pair_count(x, id) > 0;
    int32_t k = known ? s->first[id] : 0;
    if (!known || s->done[s->pair_row[k] * x->m->top_k + s->pair_rank[k]] != PAIR_MISSING)
        return sl_fail(err, SL_ERR_IO, "MoE layer %d: expert %d was delivered, which nobody waits for", x->m->layer,
                       id);
    return true;
}

static bool all_awaited(const moe_run *x, const sl_expert_view *views, int n, int max) {
    if (n > max)
        return sl_fail(x->r->err, SL_ERR_IO, "MoE layer %d: %d experts were delivered, at most %d expected",
                       x->m->layer, n, max);
    for (int i = 0; i < n; i++) {
        if (!awaited(x, views[i].id, x->r->err))
            return false;
        for (int j = 0; j < i; j++)
            if (views[j].id == views[i].id)
                return sl_fail(x->r->err, SL_ERR_IO, "MoE layer %d: expert %d was delivered twice", x->m->layer,
                               views[i].id);
    }
    return true;
}

/* ---- the step's iterator
 * -------------------------------------------------------------------------------------------------- */

static int32_t wanted(moe_run *x) {
    cpu_scratch *s = &x->r->o->scratch;
    int32_t n = 0;
    for (int32_t e = 0; e < x->m->experts; e++)
        if (s->first[e + 1] > s->first[e])
            s->ids[n++] = e;
    return n;
}

/* Computes what became ready. kept: all of them, their outputs behind `place`. */
static int32_t consume(moe_run *x, const sl_expert_view *views, int n, int32_t place) {
    sl_ops_cpu *o = x->r->o;
    int32_t pairs = 0;
    if (x->kept) {
        compute_experts(x, views, n, o->scratch.rank_out + (int64_t)place * x->hidden);
        record_places(x, views, n, place);
        for (int i = 0; i < n; i++)
            pairs += pair_count(x, views[i].id);
        return pairs;
    }
    for (int i = 0; i < n; i++) {
        compute_experts(x, &views[i], 1, o->scratch.rank_out);
        add_job j = {x, &views[i], o->scratch.rank_out};
        sl_pool_run(o->pool, pair_count(x, views[i].id), 8, add_range, &j);
    }
    return 0;
}

static bool run_experts(moe_run *x) {
    sl_ops_cpu *o = x->r->o;
    const sl_expert_source *src = &o->known.experts;
    sl_expert_view views[MOE_READY];
    int32_t place = 0;
    int max = x->kept ? MOE_READY : 1;
    for (;;) {
        sl_error why = {0};
        uint64_t t0 = sl_now_ns();
        int n = src->next(src->self, views, max, &why);
        uint64_t t1 = sl_now_ns();
        o->times.expert_wait += t1 - t0;
        if (n == 0)
            return true;
        if (!all_awaited(x, views, n < 0 ? 1 : n, max))
            return false;
        if (n < 0) {
            if (!fail_rows(x, views[0].id, &why))
                return false;
            continue;
        }
        place += consume(x, views, n, place);
        src->done(src->self, views, n);
        o->times.expert_compute += sl_now_ns() - t1;
        /* A prefill chunk can want all of a layer's experts: cancellation is looked at here too. */
        if (!x->kept && x->r->step->cancelled && x->r->step->cancelled(x->r->step->user))
            return sl_fail(x->r->err, SL_ERR_CANCELLED, "cancelled in MoE layer %d", x->m->layer);
    }
}

/* ---- the shared expert
 * ------------------------------------------------------------------------------------------------------ */

/* Its inner rows go through the same scratch, so it runs before the routed experts do: while their misses are read.
 * out: [rows][hidden]. */
static void run_shared(moe_run *x) {
    sl_ops_cpu *o = x->r->o;
    cpu_scratch *s = &o->scratch;
    int32_t rows = x->r->step->rows, inner = (int32_t)x->m->shared[SL_PROJ_GATE].matrix.rows;
    int64_t stride = (int64_t)sl_round_up((uint64_t)inner, 16);
    product up = {.w = ops_matrix(o, &x->m->shared[SL_PROJ_GATE]),
                  .up = ops_matrix(o, &x->m->shared[SL_PROJ_UP]),
                  .dst = s->inner,
                  .ldd = stride,
                  .in = cpu_rows_of(x->src, x->src_stride, rows, x->hidden, s->act)};
    cpu_products(o, &up, 1);
    cpu_quantize_into(o, s->inner, stride, rows, inner, s->act_inner);
    product list[2] = {{.w = ops_matrix(o, &x->m->shared[SL_PROJ_DOWN]),
                        .dst = s->shared_out,
                        .ldd = x->hidden,
                        .in = cpu_rows_of(s->inner, stride, rows, inner, s->act_inner)}};
    if (has_weight(&x->m->shared_gate))
        list[1] = (product){.w = ops_matrix(o, &x->m->shared_gate),
                            .dst = s->shared_gate,
                            .ldd = 1,
                            .in = cpu_rows_of(x->src, x->src_stride, rows, x->hidden, s->act)};
    cpu_products(o, list, has_weight(&x->m->shared_gate) ? 2 : 1);
}

/* residual += sum + shared * sigmoid(gate) */
static void add_to_residual(void *ctx, int64_t begin, int64_t end, int worker) {
    const moe_run *x = ctx;
    const sl_ops_cpu *o = x->r->o;
    const cpu_scratch *s = &o->scratch;
    for (int64_t row = begin; row < end; row++) {
        float *sum = s->sum + row * x->hidden;
        if (has_weight(&x->m->shared[SL_PROJ_GATE])) {
            float gate = has_weight(&x->m->shared_gate) ? cpu_sigmoid(s->shared_gate[row]) : 1.0f;
            o->ops->axpy(sum, s->shared_out + row * x->hidden, gate, x->hidden);
        }
        o->ops->add(x->residual + row * x->residual_stride, sum, x->hidden);
    }
}

/* From asking for the layer's n experts to having computed them and the shared one. */
static bool iterate(moe_run *x, const op *moe, int32_t n) {
    sl_ops_cpu *o = x->r->o;
    const sl_expert_source *src = &o->known.experts;
    uint64_t t0 = sl_now_ns();
    bool ok =
        src->begin(src->self, x->m->layer, o->scratch.ids, n, x->kept ? SL_ORDER_READY : SL_ORDER_ASCENDING, x->r->err);
    uint64_t t1 = sl_now_ns();
    o->times.expert_wait += t1 - t0;
    if (ok) {
        cpu_guess_next(x->r, moe);
        uint64_t t2 = sl_now_ns();
        o->times.router += t2 - t1;
        t1 = t2;
    }
    if (ok && has_weight(&x->m->shared[SL_PROJ_GATE])) {
        run_shared(x);
        o->times.shared += sl_now_ns() - t1;
    }
    ok = ok && run_experts(x);
    src->end(src->self);
    return ok;
}

static void tell_watch(const moe_run *x) {
    const sl_moe_watch *w = &x->r->o->watch;
    const cpu_scratch *s = &x->r->o->scratch;
    if (w->routed)
        w->routed(w->self, x->m, x->r->step, s->chosen, s->weight);
    if (w->inputs)
        w->inputs(w->self, x->m, false, x->src, x->src_stride, x->r->step->rows, x->hidden);
}

bool cpu_run_moe(cpu_run *r, const op *o) {
    const sl_moe *m = &o->u.moe;
    cpu_scratch *s = &r->o->scratch;
    int32_t rows = r->step->rows;
    moe_run x = {.r = r,
                 .m = m,
                 .src = view_rows(r->o, &o->src),
                 .residual = view_rows(r->o, &o->dst),
                 .src_stride = o->src.stride,
                 .residual_stride = o->dst.stride,
                 .hidden = o->dst.cols,
                 .inner = (int32_t)sl_moe_inner(m),
                 .kept = (int64_t)rows * m->top_k * o->dst.cols * (int64_t)sizeof(float) <= r->o->rank_bytes};
    x.inner_stride = (int64_t)sl_round_up((uint64_t)x.inner, 16);
    uint64_t t0 = sl_now_ns();
    cpu_quantize_into(r->o, x.src, x.src_stride, rows, x.hidden, s->act);
    cpu_route(r, m, x.src, x.src_stride, s->act);
    memset(s->sum, 0, (size_t)rows * (size_t)x.hidden * sizeof(float));
    int32_t n = wanted(&x);
    tell_watch(&x);
    r->o->times.router += sl_now_ns() - t0;
    if (n == 0) /* every row has failed before */
        return true;
    if (!iterate(&x, o, n) || !all_done(&x))
        return false;
    uint64_t t1 = sl_now_ns();
    if (x.kept)
        sl_pool_run(r->o->pool, rows, 8, combine_kept, &x);
    sl_pool_run(r->o->pool, rows, 8, add_to_residual, &x);
    r->o->times.expert_compute += sl_now_ns() - t1;
    return true;
}

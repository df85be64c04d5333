/* Recording: operations are checked for shape when they are recorded, so that running needs no checks but those of the
 * step. */
#include "ops/program.h"

#include "cpu/cpu_ops.h"

#include <stdlib.h>
#include <string.h>

sl_program *sl_program_new(sl_ops *ops, int32_t max_rows, int32_t max_outs, sl_error *err) {
    if (max_rows < 1 || max_outs < 1 || max_outs > max_rows)
        return sl_fail_null(err, SL_ERR_ARGUMENT,
                            "program over %d rows with %d outputs: 1 or more, and no more outputs than rows, expected",
                            max_rows, max_outs);
    sl_program *p = calloc(1, sizeof *p);
    if (!p)
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory");
    p->ops = ops;
    p->max_rows = max_rows;
    p->max_outs = max_outs;
    return p;
}

void sl_program_free(sl_program *p) {
    if (!p)
        return;
    p->ops->table->discard(p->ops, p);
    for (size_t i = 0; i < p->owned_count; i++)
        free(p->owned[i]);
    free(p->owned);
    free(p->list);
    free(p);
}

bool sl_program_end(sl_program *p, sl_error *err) {
    if (p->error.code != SL_OK) {
        if (err)
            *err = p->error;
        return false;
    }
    if (p->sizes_only)
        return sl_fail(err, SL_ERR_ARGUMENT, "recording attention: no frequencies for its rotation");
    p->ready = p->ops->table->prepare(p->ops, p, err);
    return p->ready;
}

static void record_error(sl_program *p, const char *name, int64_t found, int64_t expected) {
    if (p->error.code == SL_OK)
        sl_fail(&p->error, SL_ERR_ARGUMENT, "recording %s: %lld columns or rows, %lld expected", name, (long long)found,
                (long long)expected);
}

static void expect(sl_program *p, const char *name, int64_t found, int64_t expected) {
    if (found != expected)
        record_error(p, name, found, expected);
}

static void expect_rows(sl_program *p, const char *name, sl_view v, sl_rows rows) {
    if (v.rows != rows && p->error.code == SL_OK)
        sl_fail(&p->error, SL_ERR_ARGUMENT, "recording %s: over %s, %s expected", name,
                v.rows == SL_ROWS_OUT ? "output rows" : "all rows", rows == SL_ROWS_OUT ? "output rows" : "all rows");
}

/* The next op, or NULL after an error. */
static op *append(sl_program *p, op_kind kind) {
    if (p->error.code != SL_OK)
        return NULL;
    void *list = p->list;
    if (!sl_grow(&list, &p->capacity, p->count + 1, sizeof *p->list)) {
        sl_fail(&p->error, SL_ERR_MEMORY, "out of memory while recording");
        return NULL;
    }
    p->list = list;
    op *o = &p->list[p->count++];
    memset(o, 0, sizeof *o);
    o->kind = kind;
    return o;
}

void sl_op_embed(sl_program *p, sl_view dst, const sl_weight *table) {
    expect(p, "embed", table->matrix.cols, dst.cols);
    expect_rows(p, "embed", dst, SL_ROWS_ALL);
    op *o = append(p, OP_EMBED);
    if (!o)
        return;
    o->dst = dst;
    o->u.embed.table = *table;
}

void sl_op_rms_norm(sl_program *p, sl_view dst, sl_view src, const sl_weight *weight, float eps) {
    expect(p, "rms_norm weight", weight->matrix.cols, src.cols);
    expect(p, "rms_norm weight rows", weight->matrix.rows, 1);
    expect(p, "rms_norm", dst.cols, src.cols);
    expect_rows(p, "rms_norm", dst, src.rows);
    op *o = append(p, OP_RMS_NORM);
    if (!o)
        return;
    o->dst = dst;
    o->src = src;
    o->u.norm.weight = *weight;
    o->u.norm.eps = eps;
}

void sl_op_linear(sl_program *p, sl_view src, const sl_linear *out, int n) {
    if (n < 1 || n > MAX_LINEAR)
        record_error(p, "linear outputs", n, MAX_LINEAR);
    for (int i = 0; i < n; i++) {
        expect_rows(p, "linear", out[i].dst, src.rows);
        expect(p, "linear weight", out[i].weight->matrix.cols, src.cols);
        expect(p, "linear dst", out[i].dst.cols, out[i].weight->matrix.rows);
        if (out[i].bias)
            expect(p, "linear bias", out[i].bias->matrix.cols, out[i].dst.cols);
    }
    op *o = append(p, OP_LINEAR);
    if (!o)
        return;
    o->src = src;
    o->u.linear.n = n;
    for (int i = 0; i < n; i++) {
        o->u.linear.out[i].dst = out[i].dst;
        o->u.linear.out[i].weight = *out[i].weight;
        if (out[i].bias)
            o->u.linear.out[i].bias = *out[i].bias;
        o->u.linear.out[i].add = out[i].add;
    }
}

void sl_op_head_linear(sl_program *p, sl_view dst, sl_view src, const sl_head_linear *h) {
    int32_t rows = h->transposed ? h->in_dim : h->out_dim, cols = h->transposed ? h->out_dim : h->in_dim;
    if (h->heads < 1 || h->in_dim < 1 || h->out_dim < 1 || h->tail < 0) {
        record_error(p, "head_linear heads", h->heads, 1);
        return;
    }
    expect(p, "head_linear", src.cols, (int64_t)h->heads * (h->in_dim + h->tail));
    expect(p, "head_linear dst", dst.cols, (int64_t)h->heads * (h->out_dim + h->tail));
    expect_rows(p, "head_linear", dst, src.rows);
    expect(p, "head_linear weight", h->weight->matrix.cols, cols);
    expect(p, "head_linear weight rows", h->weight->matrix.rows, (int64_t)h->heads * h->rows_per_head);
    if (h->first_row < 0 || (int64_t)h->first_row + rows > h->rows_per_head)
        record_error(p, "head_linear rows", (int64_t)h->first_row + rows, h->rows_per_head);
    op *o = append(p, OP_HEAD_LINEAR);
    if (!o)
        return;
    o->dst = dst;
    o->src = src;
    o->u.head_linear.weight = *h->weight;
    o->u.head_linear.h = *h;
    o->u.head_linear.h.weight = NULL;
}

void sl_op_gate_up(sl_program *p, sl_view dst, sl_view src, const sl_weight *gate, const sl_weight *up) {
    expect(p, "gate", gate->matrix.cols, src.cols);
    expect(p, "up", up->matrix.cols, src.cols);
    expect(p, "gate rows", gate->matrix.rows, dst.cols);
    expect(p, "up rows", up->matrix.rows, dst.cols);
    expect_rows(p, "gate_up", dst, src.rows);
    op *o = append(p, OP_GATE_UP);
    if (!o)
        return;
    o->dst = dst;
    o->src = src;
    o->u.gate_up.gate = *gate;
    o->u.gate_up.up = *up;
}

/* The program's own copy of the rope frequencies. */
static const float *own_frequencies(sl_program *p, const sl_rope *rope) {
    void *list = p->owned;
    size_t bytes = (size_t)(rope->dims / 2) * sizeof(float);
    float *copy = malloc(bytes ? bytes : 1);
    if (!copy || !sl_grow(&list, &p->owned_capacity, p->owned_count + 1, sizeof *p->owned)) {
        free(copy);
        sl_fail(&p->error, SL_ERR_MEMORY, "out of memory while recording");
        return NULL;
    }
    p->owned = list;
    if (rope->inv_freq)
        memcpy(copy, rope->inv_freq, bytes);
    else
        memset(copy, 0, bytes);
    p->sizes_only = p->sizes_only || (bytes && !rope->inv_freq);
    return p->owned[p->owned_count++] = copy;
}

void sl_op_attention(sl_program *p, sl_view dst, sl_view q, sl_view k, sl_view v, const sl_attention *a) {
    expect_rows(p, "attention dst", dst, SL_ROWS_ALL);
    expect_rows(p, "attention q", q, SL_ROWS_ALL);
    expect_rows(p, "attention k", k, SL_ROWS_ALL);
    if (!a->value_dim)
        expect_rows(p, "attention v", v, SL_ROWS_ALL);
    if (a->head_dim < 1)
        record_error(p, "attention head_dim", a->head_dim, 1);
    int64_t stride = a->head_stride ? a->head_stride : a->head_dim;
    if (stride < a->head_dim)
        record_error(p, "attention head_stride", stride, a->head_dim);
    expect(p, "attention q", q.cols, (int64_t)(a->heads - 1) * stride + a->head_dim);
    expect(p, "attention k", k.cols, (int64_t)a->kv_heads * a->head_dim);
    if (!a->value_dim)
        expect(p, "attention v", v.cols, (int64_t)a->kv_heads * a->head_dim);
    else if (a->value_dim < 0 || a->value_dim > a->head_dim || a->kv_heads != 1 || a->gate.buffer)
        record_error(p, "attention value_dim (one KV head, no gate)", a->value_dim, a->head_dim);
    expect(p, "attention dst", dst.cols, (int64_t)a->heads * (a->value_dim ? a->value_dim : a->head_dim));
    if (a->gate.buffer) {
        expect_rows(p, "attention gate", a->gate, SL_ROWS_ALL);
        expect(p, "attention gate", a->gate.cols, q.cols);
    }
    if (a->sinks.buffer)
        expect(p, "attention sinks", a->sinks.matrix.cols, a->heads);
    if (a->window < 0)
        record_error(p, "attention window", a->window, 0);
    if (a->q_norm.buffer)
        expect(p, "attention q_norm", a->q_norm.matrix.cols, a->head_dim);
    if (a->k_norm.buffer)
        expect(p, "attention k_norm", a->k_norm.matrix.cols, a->head_dim);
    if (a->kv_heads < 1 || a->heads < 1 || a->heads % a->kv_heads)
        record_error(p, "attention heads", a->heads, a->kv_heads);
    if (a->rope.dims < 0 || a->rope.first < 0 || a->rope.first > a->head_dim ||
        a->rope.dims > a->head_dim - a->rope.first || a->rope.dims % 2)
        record_error(p, "attention rope", a->rope.dims, a->head_dim);
    op *o = append(p, OP_ATTENTION);
    if (!o)
        return;
    o->dst = dst;
    o->src = q;
    o->u.attention.k = k;
    o->u.attention.v = v;
    o->u.attention.a = *a;
    o->u.attention.a.rope.inv_freq = own_frequencies(p, &a->rope);
}

static void expect_vector(sl_program *p, const char *name, const sl_weight *w, int64_t rows, int64_t cols) {
    expect(p, name, w->matrix.cols, cols);
    expect(p, name, w->matrix.rows, rows);
}

static void expect_optional(sl_program *p, const char *name, const sl_weight *w, int64_t rows, int64_t cols) {
    if (w->buffer)
        expect_vector(p, name, w, rows, cols);
}

static void expect_delta_sizes(sl_program *p, const sl_delta *d) {
    if (d->key_heads < 1 || d->value_heads < 1 || d->value_heads % d->key_heads)
        record_error(p, "delta value heads", d->value_heads, d->key_heads);
    if (d->key_dim < 1)
        record_error(p, "delta key_dim", d->key_dim, 1);
    if (d->value_dim < 1)
        record_error(p, "delta value_dim", d->value_dim, 1);
    if (d->kernel < 2 || d->kernel > SL_DELTA_KERNEL)
        record_error(p, "delta width of the convolution", d->kernel, SL_DELTA_KERNEL);
    if (d->layer < 0)
        record_error(p, "delta layer", d->layer, 0);
}

void sl_op_delta(sl_program *p, sl_view dst, sl_view qkv, sl_view z, sl_view beta, sl_view alpha, const sl_delta *d) {
    int64_t values = (int64_t)d->value_heads * d->value_dim;
    int64_t channels = 2 * (int64_t)d->key_heads * d->key_dim + values;
    expect_delta_sizes(p, d);
    expect_rows(p, "delta dst", dst, SL_ROWS_ALL);
    expect_rows(p, "delta qkv", qkv, SL_ROWS_ALL);
    expect_rows(p, "delta z", z, SL_ROWS_ALL);
    expect_rows(p, "delta beta", beta, SL_ROWS_ALL);
    expect_rows(p, "delta alpha", alpha, SL_ROWS_ALL);
    expect(p, "delta dst", dst.cols, values);
    expect(p, "delta qkv", qkv.cols, channels);
    expect(p, "delta z", z.cols, values);
    expect(p, "delta beta", beta.cols, d->value_heads);
    expect(p, "delta alpha", alpha.cols, d->value_heads);
    expect(p, "delta conv channels", d->conv.matrix.rows, channels);
    expect(p, "delta conv width", d->conv.matrix.cols, d->kernel);
    expect_optional(p, "delta conv bias", &d->conv_bias, 1, channels);
    expect_vector(p, "delta decay", &d->decay, 1, d->value_heads);
    expect_vector(p, "delta dt_bias", &d->dt_bias, 1, d->value_heads);
    expect_vector(p, "delta norm", &d->norm, 1, d->value_dim);
    op *o = append(p, OP_DELTA);
    if (!o)
        return;
    o->dst = dst;
    o->src = qkv;
    o->u.delta.z = z;
    o->u.delta.beta = beta;
    o->u.delta.alpha = alpha;
    o->u.delta.d = *d;
}

static void expect_shared(sl_program *p, const sl_moe *m, int32_t hidden) {
    int64_t width = m->shared[SL_PROJ_GATE].matrix.rows;
    expect(p, "shared gate", m->shared[SL_PROJ_GATE].matrix.cols, hidden);
    expect(p, "shared up", m->shared[SL_PROJ_UP].matrix.cols, hidden);
    expect(p, "shared up rows", m->shared[SL_PROJ_UP].matrix.rows, width);
    expect(p, "shared down", m->shared[SL_PROJ_DOWN].matrix.cols, width);
    expect(p, "shared down rows", m->shared[SL_PROJ_DOWN].matrix.rows, hidden);
    if (m->shared_gate.buffer) {
        expect(p, "shared expert's gate", m->shared_gate.matrix.cols, hidden);
        expect(p, "shared expert's gate rows", m->shared_gate.matrix.rows, 1);
    }
}

static void expect_router(sl_program *p, const sl_moe *m) {
    expect(p, "router rows", m->router.matrix.rows, m->experts);
    expect_optional(p, "router bias", &m->router_bias, 1, m->experts);
    expect_optional(p, "choice bias", &m->choice_bias, 1, m->experts);
    if (m->groups > 1 && (m->groups > SL_ROUTER_GROUPS || m->experts % m->groups || m->experts / m->groups < 2))
        record_error(p, "moe groups", m->groups, m->experts);
    else if (m->groups > 1 && (m->top_groups < 1 || m->top_groups > m->groups ||
                               (int64_t)m->experts / m->groups * m->top_groups < m->top_k))
        record_error(p, "moe groups chosen from", m->top_groups, m->groups);
}

static void expect_projections(sl_program *p, const sl_moe *m, int32_t hidden) {
    int64_t inner = sl_moe_inner(m);
    expect(p, "expert gate", m->proj[SL_PROJ_GATE].cols, hidden);
    expect(p, "expert down", m->proj[SL_PROJ_DOWN].cols, inner);
    if (m->alternating) {
        expect(p, "expert gate and up", m->proj[SL_PROJ_GATE].rows, 2 * inner);
        return;
    }
    expect(p, "expert up", m->proj[SL_PROJ_UP].cols, hidden);
    expect(p, "expert up rows", m->proj[SL_PROJ_UP].rows, inner);
}

static void expect_biases(sl_program *p, const sl_moe *m) {
    for (int i = 0; i < SL_PROJ_COUNT; i++) {
        expect_optional(p, "expert bias", &m->bias[i], m->experts,
                        i == SL_PROJ_DOWN ? m->proj[SL_PROJ_DOWN].rows : sl_moe_inner(m));
        expect(p, "expert biases", m->bias[i].buffer != 0, m->bias[0].buffer != 0);
    }
    if (!(m->swiglu_limit >= 0))
        record_error(p, "moe swiglu limit", (int64_t)m->swiglu_limit, 0);
}

void sl_op_moe(sl_program *p, sl_view residual, sl_view src, const sl_moe *m) {
    expect_rows(p, "moe residual", residual, SL_ROWS_ALL);
    expect_rows(p, "moe", src, SL_ROWS_ALL);
    expect(p, "moe residual", residual.cols, src.cols);
    expect_router(p, m);
    expect_biases(p, m);
    expect(p, "router", m->router.matrix.cols, src.cols);
    expect_projections(p, m, src.cols);
    expect(p, "expert down rows", m->proj[SL_PROJ_DOWN].rows, residual.cols);
    if (m->top_k < 1 || m->top_k > m->experts)
        record_error(p, "moe top_k", m->top_k, m->experts);
    else if ((int64_t)p->max_rows * m->top_k > INT32_MAX)
        record_error(p, "moe pairs of row and expert", (int64_t)p->max_rows * m->top_k, INT32_MAX);
    if (m->shared[SL_PROJ_GATE].buffer)
        expect_shared(p, m, src.cols);
    op *o = append(p, OP_MOE);
    if (!o)
        return;
    o->dst = residual;
    o->src = src;
    o->u.moe = *m;
}

void sl_op_gather_outs(sl_program *p, sl_view dst, sl_view src) {
    expect(p, "gather", dst.cols, src.cols);
    expect_rows(p, "gather dst", dst, SL_ROWS_OUT);
    expect_rows(p, "gather", src, SL_ROWS_ALL);
    op *o = append(p, OP_GATHER_OUTS);
    if (!o)
        return;
    o->dst = dst;
    o->src = src;
}

void sl_op_logits(sl_program *p, sl_view src, const sl_weight *head) {
    expect(p, "logits", head->matrix.cols, src.cols);
    expect_rows(p, "logits", src, SL_ROWS_OUT);
    op *o = append(p, OP_LOGITS);
    if (!o)
        return;
    o->src = src;
    o->u.logits.head = *head;
}

void sl_op_checkpoint(sl_program *p, int32_t layer) {
    op *o = append(p, OP_CHECKPOINT);
    if (o)
        o->u.checkpoint.layer = layer;
}

/* ---- calls through the implementation's table -------------------------------------------------------------------- */

bool sl_program_run(sl_program *p, sl_step *step, sl_error *err) {
    if (!p->ready)
        return sl_fail(err, SL_ERR_ARGUMENT, "a program that was not ended, or with an error, cannot run");
    if (step->rows < 1 || step->rows > p->max_rows)
        return sl_fail(err, SL_ERR_ARGUMENT, "step of %d rows, 1 to %d expected", step->rows, p->max_rows);
    if (step->outs < 0 || step->outs > p->max_outs)
        return sl_fail(err, SL_ERR_ARGUMENT, "step with %d outputs, at most %d expected", step->outs, p->max_outs);
    return p->ops->table->run(p->ops, p, step, err);
}

void sl_ops_free(sl_ops *o) {
    if (o)
        o->table->free(o);
}

const char *sl_ops_isa(const sl_ops *o) {
    return o->table->isa(o);
}

sl_buffer sl_ops_wrap(sl_ops *o, void *base, uint64_t bytes, sl_error *err) {
    return o->table->wrap(o, base, bytes, err);
}

void sl_ops_unwrap(sl_ops *o, sl_buffer b) {
    o->table->unwrap(o, b);
}

sl_buffer sl_ops_scratch(sl_ops *o, uint64_t bytes, sl_error *err) {
    return o->table->scratch(o, bytes, err);
}

void sl_ops_scratch_free(sl_ops *o, sl_buffer b) {
    if (b && o->table->scratch_free)
        o->table->scratch_free(o, b);
}

uint64_t sl_program_scratch_bytes(const sl_program *p, sl_error *err) {
    if (p->error.code == SL_OK)
        return sl_round_up(p->ops->table->scratch_bytes(p->ops, p), 4096);
    if (err)
        *err = p->error;
    return 0;
}

bool sl_ops_accepts(const sl_ops *o, const sl_attention *a, const sl_moe *moe, const sl_delta *delta, sl_error *err) {
    return !o->table->accepts || o->table->accepts(a, moe, delta, err);
}

void sl_ops_set_experts(sl_ops *o, const sl_expert_source *source) {
    o->table->set_experts(o, source);
}

bool sl_ops_watch_moe(sl_ops *o, const sl_moe_watch *watch, sl_error *err) {
    if (!o->table->watch_moe)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "the mixture of experts can be watched on the CPU only, not on %s",
                       sl_ops_isa(o));
    o->table->watch_moe(o, watch);
    return true;
}
void sl_ops_set_kv(sl_ops *o, const sl_kv_layout *layout) {
    o->table->set_kv(o, layout);
}

bool sl_ops_add_kv_slab(sl_ops *o, void *slab, sl_error *err) {
    return o->table->add_kv_slab(o, slab, err);
}

void sl_ops_set_state(sl_ops *o, const sl_state_layout *layout) {
    o->table->set_state(o, layout);
}

bool sl_ops_pull(sl_ops *ops, void *p, uint64_t bytes, sl_error *err) {
    return !ops || !ops->table->pull || ops->table->pull(ops, p, bytes, err);
}

bool sl_ops_push(sl_ops *ops, const void *p, uint64_t bytes, sl_error *err) {
    return !ops || !ops->table->push || ops->table->push(ops, p, bytes, err);
}

bool sl_ops_add_state_slab(sl_ops *o, void *slab, sl_error *err) {
    return o->table->add_state_slab(o, slab, err);
}

void sl_ops_times_get(const sl_ops *o, sl_ops_times *out) {
    o->table->times(o, out);
}
void sl_ops_times_reset(sl_ops *o) {
    o->table->times_reset(o);
}

void sl_ops_set_timing(sl_ops *o, bool on) {
    if (o->table->set_timing)
        o->table->set_timing(o, on);
}

void sl_ops_set_vram(sl_ops *o, const sl_ops_vram *v) {
    if (o->table->set_vram)
        o->table->set_vram(o, v);
}

bool sl_kv_layout_init(sl_kv_layout *l, uint64_t slab_bytes, sl_error *err) {
    if (l->layers < 1 || l->kv_heads < 1 || l->head_dim < 1 || l->planes < 0 || l->planes > 2)
        return sl_fail(err, SL_ERR_ARGUMENT, "KV of %d layers, %d heads of %d, %d planes", l->layers, l->kv_heads,
                       l->head_dim, l->planes);
    if (l->format == SL_KV_Q8_0 && l->head_dim % 32)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "kv-type q8_0: head_dim %d is not a multiple of 32", l->head_dim);
    l->head_bytes = l->format == SL_KV_Q8_0  ? (uint64_t)l->head_dim / 32 * 34
                    : l->format == SL_KV_F16 ? (uint64_t)l->head_dim * 2
                                             : (uint64_t)l->head_dim * 4;
    l->planes = l->planes ? l->planes : 2;
    uint64_t bytes;
    if (!sl_mul_u64(l->head_bytes * SL_KV_PAGE_TOKENS, (uint64_t)l->kv_heads, &l->plane_bytes) ||
        !sl_mul_u64(l->plane_bytes, (uint64_t)l->planes * (uint64_t)l->layers, &bytes) || bytes > INT64_MAX / 2)
        return sl_fail(err, SL_ERR_ARGUMENT, "KV of %d layers, %d heads of %d: size overflows", l->layers, l->kv_heads,
                       l->head_dim);
    l->block_bytes = sl_round_up(bytes, 64);
    if (l->block_bytes > slab_bytes)
        return sl_fail(err, SL_ERR_ARGUMENT, "a KV block of %llu bytes does not fit a slab of %llu",
                       (unsigned long long)l->block_bytes, (unsigned long long)slab_bytes);
    l->blocks_per_slab = (int32_t)(slab_bytes / l->block_bytes);
    return true;
}

bool sl_state_layout_init(sl_state_layout *l, uint64_t slab_bytes, sl_error *err) {
    if (l->layers < 1 || l->key_heads < 1 || l->value_heads < 1 || l->key_dim < 1 || l->value_dim < 1 ||
        l->kernel < 2 || l->kernel > SL_DELTA_KERNEL)
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "state of %d layers, %d key heads of %d, %d value heads of %d, a convolution of %d", l->layers,
                       l->key_heads, l->key_dim, l->value_heads, l->value_dim, l->kernel);
    int64_t keys = (int64_t)l->key_heads * l->key_dim, values = (int64_t)l->value_heads * l->value_dim;
    uint64_t delta, conv;
    if (keys > INT32_MAX / 8 || values > INT32_MAX / 8 ||
        !sl_mul_u64((uint64_t)values * sizeof(float), (uint64_t)l->key_dim, &delta) || delta > INT64_MAX / 2)
        return sl_fail(err, SL_ERR_ARGUMENT, "state of %d key heads of %d, %d value heads of %d: size overflows",
                       l->key_heads, l->key_dim, l->value_heads, l->value_dim);
    l->channels = (int32_t)(2 * keys + values);
    conv = (uint64_t)(l->kernel - 1) * (uint64_t)l->channels * sizeof(float);
    l->conv_offset = sl_round_up(delta, 64);
    l->kept_offset = sl_round_up(l->conv_offset + conv, 64);
    l->kept_bytes = l->keeps ? cpu_delta_kept(l->key_dim, l->value_dim) * sizeof(float) : 0;
    l->used_bytes = l->keeps ? l->kept_offset + (uint64_t)l->value_heads * l->kept_bytes : l->conv_offset + conv;
    l->block_bytes = sl_round_up(l->used_bytes, 64);
    if (l->block_bytes > slab_bytes)
        return sl_fail(err, SL_ERR_ARGUMENT, "a block of state of %llu bytes does not fit a slab of %llu",
                       (unsigned long long)l->block_bytes, (unsigned long long)slab_bytes);
    l->blocks_per_slab = (int32_t)(slab_bytes / l->block_bytes);
    return true;
}

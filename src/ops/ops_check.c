/* What is verified once, so that an implementation's loops need not: at the end of recording that every operand
 * lies in its buffer, before a step that what the caller says about rows, sequences and pages fits the program. */
#include "ops/ops_memory.h"

#include <string.h>

/* ---- a program --------------------------------------------------------------------------------------------------- */

typedef struct checker {
    const ops_memory *m;
    const sl_program *p;
    sl_error *err;
} checker;

static bool in_buffer(const checker *c, const char *what, sl_buffer b, uint64_t offset, uint64_t bytes,
                      uint64_t align) {
    const ops_memory *m = c->m;
    uint64_t end;
    if (b == 0 || b >= m->buffer_count || !m->buffers[b].base)
        return sl_fail(c->err, SL_ERR_ARGUMENT, "recording %s: buffer %u does not exist", what, b);
    if (!sl_add_u64(offset, bytes, &end) || end > m->buffers[b].bytes)
        return sl_fail(
            c->err, SL_ERR_ARGUMENT, "recording %s: %llu bytes at offset %llu of buffer %u, which has %llu bytes", what,
            (unsigned long long)bytes, (unsigned long long)offset, b, (unsigned long long)m->buffers[b].bytes);
    if (((uintptr_t)m->buffers[b].base + offset) % align)
        return sl_fail(c->err, SL_ERR_ARGUMENT, "recording %s: offset %llu of buffer %u is not a multiple of %llu",
                       what, (unsigned long long)offset, b, (unsigned long long)align);
    return true;
}

static bool check_view(const checker *c, const char *what, const sl_view *v) {
    int64_t rows = v->rows == SL_ROWS_OUT ? c->p->max_outs : c->p->max_rows;
    uint64_t floats, bytes;
    if (v->cols < 1 || v->stride < v->cols)
        return sl_fail(c->err, SL_ERR_ARGUMENT, "recording %s: %d columns in rows of %lld", what, v->cols,
                       (long long)v->stride);
    if (!sl_mul_u64((uint64_t)(rows - 1), (uint64_t)v->stride, &floats) ||
        !sl_mul_u64(floats + (uint64_t)v->cols, sizeof(float), &bytes))
        return sl_fail(c->err, SL_ERR_ARGUMENT, "recording %s: rows of %lld columns overflow", what,
                       (long long)v->stride);
    return in_buffer(c, what, v->buffer, v->offset, bytes, sizeof(float));
}

static bool check_weight(const checker *c, const char *what, const sl_weight *w) {
    sl_matrix layout = w->matrix;
    if (!sl_matrix_layout(&layout, c->err))
        return sl_fail_prefix(c->err, "recording %s", what);
    for (int i = 0; i < 3; i++) {
        uint64_t bytes = sl_matrix_part_bytes(&layout, i); /* which the layout bounds */
        if (layout.row_bytes[i] != w->matrix.row_bytes[i])
            return sl_fail(c->err, SL_ERR_ARGUMENT, "recording %s: part %d has rows of %llu bytes, %llu expected", what,
                           i, (unsigned long long)w->matrix.row_bytes[i], (unsigned long long)layout.row_bytes[i]);
        if (bytes && !in_buffer(c, what, w->buffer, w->offset[i], bytes, 1))
            return false;
    }
    return true;
}

/* A norm or bias: read as floats. */
static bool check_vector(const checker *c, const char *what, const sl_weight *w) {
    if (w->matrix.format != SL_F32)
        return sl_fail(c->err, SL_ERR_ARGUMENT, "recording %s: a vector of format %s, F32 expected", what,
                       sl_format_get(w->matrix.format)->name);
    return in_buffer(c, what, w->buffer, w->offset[0], (uint64_t)w->matrix.cols * sizeof(float), sizeof(float));
}

/* A matrix that is read as floats: aligned, every row of it there. */
static bool check_floats(const checker *c, const char *what, const sl_weight *w) {
    return check_vector(c, what, w) && check_weight(c, what, w);
}

static bool check_optional_vector(const checker *c, const char *what, const sl_weight *w) {
    return !has_weight(w) || check_vector(c, what, w);
}

static bool check_linear(const checker *c, const op *o) {
    for (int i = 0; i < o->u.linear.n; i++)
        if (!check_view(c, "linear dst", &o->u.linear.out[i].dst) ||
            !check_weight(c, "linear weight", &o->u.linear.out[i].weight) ||
            !check_optional_vector(c, "linear bias", &o->u.linear.out[i].bias))
            return false;
    return true;
}

static bool check_attention(const checker *c, const op *o) {
    return check_view(c, "attention dst", &o->dst) && check_view(c, "attention k", &o->u.attention.k) &&
           (o->u.attention.a.value_dim || check_view(c, "attention v", &o->u.attention.v)) &&
           check_optional_vector(c, "attention q_norm", &o->u.attention.a.q_norm) &&
           check_optional_vector(c, "attention k_norm", &o->u.attention.a.k_norm) &&
           check_optional_vector(c, "attention sinks", &o->u.attention.a.sinks) &&
           (!o->u.attention.a.gate.buffer || check_view(c, "attention gate", &o->u.attention.a.gate));
}

static bool check_delta(const checker *c, const op *o) {
    const sl_delta *d = &o->u.delta.d;
    if (d->conv.matrix.format != SL_F32)
        return sl_fail(c->err, SL_ERR_ARGUMENT, "recording delta conv: a matrix of format %s, F32 expected",
                       sl_format_get(d->conv.matrix.format)->name);
    return check_view(c, "delta dst", &o->dst) && check_view(c, "delta z", &o->u.delta.z) &&
           check_view(c, "delta beta", &o->u.delta.beta) && check_view(c, "delta alpha", &o->u.delta.alpha) &&
           check_weight(c, "delta conv", &d->conv) &&
           in_buffer(c, "delta conv", d->conv.buffer, d->conv.offset[0], sizeof(float), sizeof(float)) &&
           check_optional_vector(c, "delta conv bias", &d->conv_bias) && check_vector(c, "delta decay", &d->decay) &&
           check_vector(c, "delta dt_bias", &d->dt_bias) && check_vector(c, "delta norm", &d->norm);
}

static bool check_moe(const checker *c, const op *o) {
    const sl_moe *m = &o->u.moe;
    for (int i = 0; i < SL_PROJ_COUNT; i++) {
        sl_matrix layout = m->proj[m->alternating && i == SL_PROJ_UP ? SL_PROJ_GATE : i];
        if (!sl_matrix_layout(&layout, c->err))
            return sl_fail_prefix(c->err, "recording an expert's projection");
        if (has_weight(&m->shared[SL_PROJ_GATE]) && !check_weight(c, "shared expert", &m->shared[i]))
            return false;
    }
    for (int i = 0; i < SL_PROJ_COUNT; i++)
        if (has_weight(&m->bias[i]) && !check_floats(c, "expert bias", &m->bias[i]))
            return false;
    return check_view(c, "moe residual", &o->dst) && check_optional_vector(c, "router bias", &m->router_bias) &&
           check_optional_vector(c, "choice bias", &m->choice_bias) && check_weight(c, "router", &m->router) &&
           (!has_weight(&m->shared_gate) || check_weight(c, "shared expert's gate", &m->shared_gate));
}

static bool check_op(const checker *c, const op *o) {
    if (o->kind != OP_EMBED && o->kind != OP_CHECKPOINT && !check_view(c, "source", &o->src))
        return false;
    switch (o->kind) {
    case OP_EMBED:
        return check_view(c, "embed", &o->dst) && check_weight(c, "embedding", &o->u.embed.table);
    case OP_RMS_NORM:
        return check_view(c, "rms_norm", &o->dst) && check_vector(c, "rms_norm weight", &o->u.norm.weight);
    case OP_LINEAR:
        return check_linear(c, o);
    case OP_HEAD_LINEAR:
        return check_view(c, "head_linear dst", &o->dst) &&
               check_weight(c, "head_linear weight", &o->u.head_linear.weight);
    case OP_GATE_UP:
        return check_view(c, "gate_up", &o->dst) && check_weight(c, "gate", &o->u.gate_up.gate) &&
               check_weight(c, "up", &o->u.gate_up.up);
    case OP_ATTENTION:
        return check_attention(c, o);
    case OP_DELTA:
        return check_delta(c, o);
    case OP_MOE:
        return check_moe(c, o);
    case OP_GATHER_OUTS:
        return check_view(c, "gather dst", &o->dst);
    case OP_LOGITS:
        return check_weight(c, "head", &o->u.logits.head);
    case OP_CHECKPOINT:
        return true;
    }
    return false;
}

bool ops_check_program(const ops_memory *m, const sl_program *p, sl_error *err) {
    checker c = {m, p, err};
    for (size_t i = 0; i < p->count; i++)
        if (!check_op(&c, &p->list[i]))
            return false;
    return true;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static bool check_tokens(const sl_step *s, const sl_matrix *table, sl_error *err) {
    for (int32_t i = 0; i < s->rows; i++)
        if (s->token[i] < 0 || s->token[i] >= table->rows)
            return sl_fail(err, SL_ERR_ARGUMENT, "token %d of row %d: ids are 0 to %lld", s->token[i], i,
                           (long long)table->rows - 1);
    return true;
}

static bool check_out_rows(const sl_step *s, sl_error *err) {
    for (int32_t i = 0; i < s->outs; i++)
        if (s->out_rows[i] < 0 || s->out_rows[i] >= s->rows || (i && s->out_rows[i] <= s->out_rows[i - 1]))
            return sl_fail(err, SL_ERR_ARGUMENT, "output %d is row %d of %d: ascending row numbers expected", i,
                           s->out_rows[i], s->rows);
    return true;
}

/* The pages of one sequence up to position `last`. */
static bool check_pages(const ops_memory *m, const sl_step *s, int32_t seq, int32_t last, sl_error *err) {
    const sl_step_seq *q = &s->seqs[seq];
    int32_t pages = last / SL_KV_PAGE_TOKENS + 1;
    if (pages > q->page_count)
        return sl_fail(err, SL_ERR_ARGUMENT, "sequence %d has %d KV pages, position %d needs %d", seq, q->page_count,
                       last, pages);
    int64_t blocks = (int64_t)m->kv_count * m->kv.blocks_per_slab;
    for (int32_t i = 0; i < pages; i++)
        if (q->pages[i] < 0 || q->pages[i] >= blocks)
            return sl_fail(err, SL_ERR_ARGUMENT, "KV page %d of sequence %d is block %d of %lld", i, seq, q->pages[i],
                           (long long)blocks);
    return true;
}

/* The blocks of state of one sequence: within the slabs. That no two sequences share one is the caller's promise. */
static bool check_blocks(const ops_memory *m, const sl_step *s, int32_t seq, sl_error *err) {
    const int32_t *state = s->seqs[seq].state;
    int64_t blocks = (int64_t)m->state_count * m->state.blocks_per_slab;
    if (!state)
        return sl_fail(err, SL_ERR_ARGUMENT, "sequence %d has no blocks of state, %d expected", seq, m->state.layers);
    for (int32_t i = 0; i < m->state.layers; i++)
        if (state[i] < 0 || state[i] >= blocks)
            return sl_fail(err, SL_ERR_ARGUMENT, "state of layer %d of sequence %d is block %d of %lld", i, seq,
                           state[i], (long long)blocks);
    return true;
}

/* A sequence whose rows came in two groups would be continued from a state that lacks the other's. */
static bool check_groups(const sl_step *s, sl_error *err) {
    for (int32_t seq = 0; seq < s->seq_count; seq++) {
        int32_t groups = 0;
        for (int32_t i = 0; i < s->rows; i++)
            groups += s->seq[i] == seq && (i == 0 || s->seq[i - 1] != seq);
        if (groups > 1)
            return sl_fail(err, SL_ERR_ARGUMENT, "rows of sequence %d are in %d places of the step, 1 expected", seq,
                           groups);
    }
    return true;
}

static bool check_states(const ops_memory *m, const sl_step *s, sl_error *err) {
    for (int32_t i = 0; i < s->rows; i++)
        if ((i == 0 || s->seq[i] != s->seq[i - 1]) && !check_blocks(m, s, s->seq[i], err))
            return false;
    return check_groups(s, err);
}

static bool check_positions(const ops_memory *m, const sl_step *s, bool pages, sl_error *err) {
    for (int32_t i = 0; i < s->rows; i++) {
        int32_t seq = s->seq[i];
        if (seq < 0 || seq >= s->seq_count)
            return sl_fail(err, SL_ERR_ARGUMENT, "row %d belongs to sequence %d of %d", i, seq, s->seq_count);
        if (s->position[i] < 0)
            return sl_fail(err, SL_ERR_ARGUMENT, "row %d has position %d", i, s->position[i]);
        bool first = i == 0 || s->seq[i - 1] != seq, last = i + 1 == s->rows || s->seq[i + 1] != seq;
        if (!first && (int64_t)s->position[i] != (int64_t)s->position[i - 1] + 1)
            return sl_fail(err, SL_ERR_ARGUMENT, "row %d of sequence %d has position %d behind position %d", i, seq,
                           s->position[i], s->position[i - 1]);
        if (pages && last && !check_pages(m, s, seq, s->position[i], err))
            return false;
    }
    return true;
}

static bool check_kv(const ops_memory *m, const sl_attention *a, sl_error *err) {
    const sl_kv_layout *l = &m->kv;
    if (l->kv_heads != a->kv_heads || l->head_dim != a->head_dim || l->planes != (a->value_dim ? 1 : 2) ||
        a->layer < 0 || a->layer >= l->layers || l->blocks_per_slab < 1)
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "KV of %d layers, %d heads of %d, %d planes; attention layer %d has %d heads of %d, %d planes",
                       l->layers, l->kv_heads, l->head_dim, l->planes, a->layer, a->kv_heads, a->head_dim,
                       a->value_dim ? 1 : 2);
    return true;
}

static bool check_state(const ops_memory *m, const sl_delta *d, sl_error *err) {
    const sl_state_layout *l = &m->state;
    if (l->key_heads != d->key_heads || l->value_heads != d->value_heads || l->key_dim != d->key_dim ||
        l->value_dim != d->value_dim || l->kernel != d->kernel || d->layer >= l->layers || l->blocks_per_slab < 1)
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "state of %d layers, %d key heads of %d, %d value heads of %d, a convolution of %d; delta layer "
                       "%d has %d of %d, %d of %d, %d",
                       l->layers, l->key_heads, l->key_dim, l->value_heads, l->value_dim, l->kernel, d->layer,
                       d->key_heads, d->key_dim, d->value_heads, d->value_dim, d->kernel);
    if (l->keeps != m->keeps)
        return sl_fail(err, SL_ERR_ARGUMENT, "state that keeps %s rows of a chunk; %s expected",
                       l->keeps ? "the" : "no", m->keeps ? "the rows" : "none");
    return true;
}

bool ops_check_step(const ops_memory *m, const sl_program *p, const sl_step *s, sl_error *err) {
    bool attends = false, recurs = false;
    for (size_t i = 0; i < p->count; i++) {
        const op *x = &p->list[i];
        if (x->kind == OP_EMBED && !check_tokens(s, &x->u.embed.table.matrix, err))
            return false;
        if (x->kind == OP_ATTENTION && !check_kv(m, &x->u.attention.a, err))
            return false;
        if (x->kind == OP_MOE && !m->experts.begin)
            return sl_fail(err, SL_ERR_ARGUMENT, "MoE layer %d: no source of experts was set", x->u.moe.layer);
        if (x->kind == OP_DELTA && !check_state(m, &x->u.delta.d, err))
            return false;
        attends |= x->kind == OP_ATTENTION;
        recurs |= x->kind == OP_DELTA;
    }
    return check_out_rows(s, err) && ((!attends && !recurs) || check_positions(m, s, attends, err)) &&
           (!recurs || check_states(m, s, err));
}

/* A row that failed in a layer below stores keys and values that are not its own: the rows of its sequence behind it
 * fail too. */
void ops_spread_failures(const sl_step *s) {
    for (int32_t i = 1; s->row_failed && i < s->rows; i++)
        if (s->row_failed[i - 1] && s->seq[i] == s->seq[i - 1])
            s->row_failed[i] = 1;
}

bool ops_same_rotation(const sl_rope *a, const sl_rope *b) {
    return a->dims == b->dims && a->scale == b->scale &&
           memcmp(a->inv_freq, b->inv_freq, (size_t)(a->dims / 2) * sizeof(float)) == 0;
}

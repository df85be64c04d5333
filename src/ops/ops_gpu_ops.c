/* Embedding, norms, products and the head as dispatches. */
#include "ops/ops_gpu.h"

#include <stdio.h>
#include <string.h>

enum { ROW_THREADS = 256, ROW_THREADS_MOST = 1024, ROW_COLS = 8 /* of a thread, up to ROW_THREADS_MOST */ };

/* Of a kernel whose threadgroup has a row; by its width alone: the order of sums is theirs. */
static uint32_t row_threads(int64_t cols) {
    uint32_t n = SL_SIMD * gpu_ceil_div(cols, SL_SIMD * ROW_COLS);
    return n < ROW_THREADS_MOST ? n : ROW_THREADS_MOST;
}

static uint32_t outs_bit(bool outs) {
    return outs ? 1u << SL_FC_OUTS : 0;
}

void gpu_bind_step(gpu_call *c, int slot) {
    const gpu_scratch *m = &c->r->o->scratch;
    gpu_call_bind(c, slot, m->step, m->step_bytes);
}

static kernel_format format_of(gpu_run *r, const sl_weight *w) {
    const void *part[3];
    for (int i = 0; i < 3; i++)
        part[i] = w->matrix.row_bytes[i] ? gpu_at(r->o, w->buffer, w->offset[i]) : NULL;
    return gpu_format_of(&w->matrix, part);
}

/* "matvec" -> "matvec_q4_0_a2" for this weight. */
static void entry_of(gpu_run *r, const char *kernel, const sl_weight *w, char out[64]) {
    kernel_format f = format_of(r, w);
    kernel_entry(out, 64, kernel, &f);
}

sl_weights_args gpu_weights_args(const sl_matrix *m) {
    uint32_t shift = m->group == 32 ? 5 : m->group == 64 ? 6 : 7;
    return (sl_weights_args){.row_bytes = m->row_bytes[0],
                             .side_bytes = m->row_bytes[1],
                             .rows = (uint32_t)m->rows,
                             .cols = (uint32_t)m->cols,
                             .group_shift = m->group ? shift : 0,
                             .side_rows = m->format == SL_FP8 ? shift << 16 | (uint32_t)m->row_in_block : 0};
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

bool gpu_run_embed(gpu_run *r, const op *o) {
    char entry[64];
    const sl_weight *w = &o->u.embed.table;
    int32_t rows = r->step->rows;
    sl_embed_args a = {.w = gpu_weights_args(&w->matrix), .dst_stride = (uint64_t)o->dst.stride};
    entry_of(r, "embed", w, entry);
    gpu_call c = gpu_call_begin(r, GPU_ROWS, 0, &a, sizeof a, entry);
    gpu_call_weight(&c, 1, w);
    gpu_call_bind(&c, 4, gpu_view_at(r, &o->dst), gpu_rows_bytes(rows, o->dst.stride, o->dst.cols));
    gpu_bind_step(&c, 5);
    return gpu_call_end(&c, gpu_ceil_div(w->matrix.cols, 32 * 32), (uint32_t)rows, 1, 32);
}

bool gpu_run_norm(gpu_run *r, const op *o) {
    const sl_weight *w = &o->u.norm.weight;
    const gpu_scratch *m = &r->o->scratch;
    int32_t rows = gpu_view_rows(r, &o->src);
    bool half = rows >= GPU_MATMUL_ROWS && o->src.cols <= m->extent.widest; /* a product reads it next */
    sl_rows_args a = {.src_stride = (uint64_t)o->src.stride,
                      .dst_stride = (uint64_t)o->dst.stride,
                      .cols = (uint32_t)o->src.cols,
                      .padded = (uint32_t)sl_round_up((uint64_t)o->src.cols, SL_HALF_PAD),
                      .eps = o->u.norm.eps,
                      .per_row = 1};
    uint32_t bits = outs_bit(o->src.rows == SL_ROWS_OUT) | (half ? 1u << SL_FC_HALF : 0);
    gpu_call c = gpu_call_begin(r, GPU_ROWS, bits, &a, sizeof a, "rms_norm");
    gpu_call_bind(&c, 1, gpu_view_at(r, &o->src), gpu_rows_bytes(rows, o->src.stride, o->src.cols));
    gpu_call_bind(&c, 2, gpu_view_at(r, &o->dst), gpu_rows_bytes(rows, o->dst.stride, o->dst.cols));
    gpu_call_bind(&c, 3, gpu_at(r->o, w->buffer, w->offset[0]), (uint64_t)o->src.cols * sizeof(float));
    gpu_bind_step(&c, 4);
    gpu_call_bind(&c, 5, half ? m->half : NULL, (uint64_t)rows * a.padded * 2);
    gpu_call_bind(&c, 6, half ? m->unscale : NULL, (uint64_t)rows * sizeof(float));
    r->half_of = (struct gpu_halves){half ? gpu_view_at(r, &o->dst) : NULL, o->dst.cols, o->dst.rows == SL_ROWS_OUT};
    return gpu_call_end(&c, (uint32_t)rows, 1, 1, row_threads(o->src.cols));
}

void gpu_half_keep(gpu_run *r, const op *o) {
    if (o->kind != OP_RMS_NORM && (!r->half_of.at || gpu_view_at(r, &o->src) != r->half_of.at))
        r->half_of.at = NULL;
}

bool gpu_run_gather(gpu_run *r, const op *o) {
    sl_rows_args a = {.src_stride = (uint64_t)o->src.stride,
                      .dst_stride = (uint64_t)o->dst.stride,
                      .cols = (uint32_t)o->src.cols,
                      .per_row = 1};
    gpu_call c = gpu_call_begin(r, GPU_ROWS, 0, &a, sizeof a, "gather_outs");
    gpu_call_bind(&c, 1, gpu_view_at(r, &o->src), gpu_rows_bytes(r->step->rows, o->src.stride, o->src.cols));
    gpu_call_bind(&c, 2, gpu_view_at(r, &o->dst), gpu_rows_bytes(r->step->outs, o->dst.stride, o->dst.cols));
    gpu_bind_step(&c, 3);
    return gpu_call_end(&c, (uint32_t)r->step->outs, 1, 1, ROW_THREADS);
}

static sl_rows_args silu_args(const sl_moe *moe, int64_t stride, int32_t cols, int32_t per_row) {
    bool clamp = moe && moe->swiglu_limit > 0;
    return (sl_rows_args){.src_stride = (uint64_t)stride,
                          .dst_stride = (uint64_t)stride,
                          .cols = (uint32_t)cols,
                          .padded = (uint32_t)sl_round_up((uint64_t)cols, SL_HALF_PAD),
                          .per_row = (uint32_t)per_row,
                          .limit = clamp ? moe->swiglu_limit : 0,
                          .alpha = clamp ? moe->swiglu_alpha : 0};
}

bool gpu_silu_mul(gpu_run *r, float *dst, const float *src, int64_t stride, int32_t cols, int32_t per_row, bool outs,
                  const sl_moe *moe) {
    int64_t rows = (int64_t)(outs ? r->step->outs : r->step->rows) * per_row;
    sl_rows_args a = silu_args(moe, stride, cols, per_row);
    uint32_t bits = outs_bit(outs) | (a.limit > 0 ? 1u << SL_FC_CLAMP : 0);
    gpu_call c = gpu_call_begin(r, GPU_ROWS, bits, &a, sizeof a, "silu_mul");
    gpu_call_bind(&c, 1, src, gpu_rows_bytes(rows, stride, cols));
    gpu_call_bind(&c, 2, dst, gpu_rows_bytes(rows, stride, cols));
    gpu_bind_step(&c, 3);
    return gpu_call_end(&c, gpu_ceil_div(cols, ROW_THREADS), (uint32_t)rows, 1, ROW_THREADS);
}

bool gpu_silu_half(gpu_run *r, float *gate, const float *up, int64_t stride, int32_t cols, int32_t per_row,
                   const sl_moe *moe) {
    const gpu_scratch *m = &r->o->scratch;
    int64_t rows = (int64_t)r->step->rows * per_row;
    sl_rows_args a = silu_args(moe, stride, cols, per_row);
    a.dst_stride = a.padded;
    gpu_call c = gpu_call_begin(r, GPU_ROWS, a.limit > 0 ? 1u << SL_FC_CLAMP : 0, &a, sizeof a, "silu_half");
    gpu_call_bind(&c, 1, up, gpu_rows_bytes(rows, stride, cols));
    gpu_call_bind(&c, 2, m->half, (uint64_t)rows * a.padded * 2);
    gpu_call_bind(&c, 3, m->unscale, (uint64_t)rows * sizeof(float));
    gpu_bind_step(&c, 4);
    gpu_call_bind(&c, 5, gate, gpu_rows_bytes(rows, stride, cols));
    r->half_of.at = NULL;
    return gpu_call_end(&c, (uint32_t)rows, 1, 1, row_threads(cols));
}

bool gpu_to_half(gpu_run *r, const float *x, int64_t stride, int32_t cols, int32_t per_row, bool outs) {
    const gpu_scratch *m = &r->o->scratch;
    int64_t rows = (int64_t)(outs ? r->step->outs : r->step->rows) * per_row;
    uint32_t padded = (uint32_t)sl_round_up((uint64_t)cols, SL_HALF_PAD);
    if (per_row == 1 && r->half_of.at == x && r->half_of.cols == cols && r->half_of.outs == outs)
        return true;
    sl_rows_args a = {.src_stride = (uint64_t)stride,
                      .dst_stride = padded,
                      .cols = (uint32_t)cols,
                      .padded = padded,
                      .per_row = (uint32_t)per_row};
    gpu_call c = gpu_call_begin(r, GPU_ROWS, outs_bit(outs), &a, sizeof a, "to_half");
    gpu_call_bind(&c, 1, x, gpu_rows_bytes(rows, stride, cols));
    gpu_call_bind(&c, 2, m->half, (uint64_t)rows * padded * 2);
    gpu_call_bind(&c, 3, m->unscale, (uint64_t)rows * sizeof(float));
    gpu_bind_step(&c, 4);
    r->half_of = (struct gpu_halves){per_row == 1 ? x : NULL, cols, outs};
    return gpu_call_end(&c, (uint32_t)rows, 1, 1, row_threads(cols));
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static uint32_t product_bits(const gpu_product *p) {
    return outs_bit(p->outs) | (p->add ? 1u << SL_FC_ADD : 0) | (p->bias ? 1u << SL_FC_BIAS : 0);
}

static void bind_bias(gpu_call *c, int slot, const sl_weight *bias, int64_t rows) {
    gpu_call_bind(c, slot, bias ? gpu_at(c->r->o, bias->buffer, bias->offset[0]) : NULL,
                  (uint64_t)rows * sizeof(float));
}

/* Of narrow.metal; by the columns alone: the order of sums is theirs. */
static uint32_t narrow_threads(int64_t cols) {
    uint32_t simds = gpu_ceil_div(cols, 32 * SL_NARROW_UNITS);
    return SL_SIMD * (simds < SL_NARROW_SIMDS ? simds : SL_NARROW_SIMDS);
}

static bool multiply_narrow(gpu_run *r, const gpu_product *p) {
    char entry[64];
    const sl_matrix *w = &p->weight->matrix;
    sl_matvec_args a = {.w = gpu_weights_args(w), .x_stride = (uint64_t)p->x_stride, .y_stride = (uint64_t)p->y_stride};
    entry_of(r, "narrow", p->weight, entry);
    gpu_call c = gpu_call_begin(r, GPU_NARROW, product_bits(p), &a, sizeof a, entry);
    gpu_call_weight(&c, 1, p->weight);
    gpu_call_bind(&c, 4, p->x, gpu_rows_bytes(p->rows, p->x_stride, w->cols));
    gpu_call_bind(&c, 5, p->y, gpu_rows_bytes(p->rows, p->y_stride, w->rows));
    bind_bias(&c, 6, p->bias, w->rows);
    gpu_bind_step(&c, 9);
    return gpu_call_end(&c, (uint32_t)w->rows, (uint32_t)p->rows, 1, narrow_threads(w->cols));
}

static bool multiply_few(gpu_run *r, const gpu_product *p) {
    char entry[64];
    const sl_matrix *w = &p->weight->matrix;
    sl_matvec_args a = {.w = gpu_weights_args(w), .x_stride = (uint64_t)p->x_stride, .y_stride = (uint64_t)p->y_stride};
    kernel_format f = format_of(r, p->weight);
    bool few = r->o->few && f.few;
    if (!few && !p->add && w->rows <= GPU_NARROW_ROWS)
        return multiply_narrow(r, p);
    (few ? kernel_few_entry : kernel_entry)(entry, sizeof entry, few ? "few" : "matvec", &f);
    gpu_call c = gpu_call_begin(r, few ? GPU_FEW : GPU_MATVEC, product_bits(p), &a, sizeof a, entry);
    gpu_call_weight(&c, 1, p->weight);
    gpu_call_bind(&c, 4, p->x, gpu_rows_bytes(p->rows, p->x_stride, w->cols));
    gpu_call_bind(&c, 5, p->y, gpu_rows_bytes(p->rows, p->y_stride, w->rows));
    bind_bias(&c, 6, p->bias, w->rows);
    gpu_bind_step(&c, 9);
    if (few)
        return gpu_call_end(&c, gpu_few_groups(w->rows, p->rows), (uint32_t)p->rows, 1, SL_FEW_THREADS);
    return gpu_call_end(&c, gpu_ceil_div(w->rows, SL_MATVEC_ROWS), (uint32_t)p->rows, 1, SL_MATVEC_THREADS);
}

/* x is in half rows already. */
static bool multiply_half(gpu_run *r, const gpu_product *p) {
    char entry[64];
    const sl_matrix *w = &p->weight->matrix;
    const gpu_scratch *m = &r->o->scratch;
    uint64_t padded = sl_round_up((uint64_t)w->cols, SL_HALF_PAD);
    sl_matmul_args a = {.w = gpu_weights_args(w), .x_stride = padded, .y_stride = (uint64_t)p->y_stride};
    bool large = r->o->few, thin = false;
    uint32_t tiles = gpu_ceil_div(p->rows, large ? SL_LARGE_TOKENS : SL_MATMUL_TOKENS);
    if (large)
        thin = tiles * gpu_ceil_div(w->rows, SL_LARGE_ROWS) < GPU_LARGE_GROUPS;
    entry_of(r, thin ? "matmul_thin" : large ? "matmul_large" : "matmul", p->weight, entry);
    gpu_call c = gpu_call_begin(r, large ? GPU_LARGE : GPU_MATMUL, product_bits(p), &a, sizeof a, entry);
    gpu_call_weight(&c, 1, p->weight);
    gpu_call_bind(&c, 4, m->half, (uint64_t)p->rows * padded * 2);
    gpu_call_bind(&c, 5, m->unscale, (uint64_t)p->rows * sizeof(float));
    gpu_call_bind(&c, 6, p->y, gpu_rows_bytes(p->rows, p->y_stride, w->rows));
    bind_bias(&c, 7, p->bias, w->rows);
    gpu_bind_step(&c, 8);
    if (thin)
        return gpu_call_end(&c, gpu_ceil_div(w->rows, SL_THIN_ROWS), tiles, 1, SL_THIN_THREADS);
    if (large)
        return gpu_call_end(&c, gpu_ceil_div(w->rows, SL_LARGE_ROWS), tiles, 1, SL_LARGE_THREADS);
    return gpu_call_end(&c, gpu_ceil_div(w->rows, SL_MATMUL_ROWS), tiles, 1, SL_MATMUL_THREADS);
}

bool gpu_multiply_split(gpu_run *r, const gpu_product *p, uint32_t splits, uint32_t split_units) {
    char entry[64];
    const sl_matrix *w = &p->weight->matrix;
    const gpu_scratch *m = &r->o->scratch;
    uint64_t padded = sl_round_up((uint64_t)w->cols, SL_HALF_PAD), each = (uint64_t)p->rows * (uint64_t)p->y_stride;
    sl_split_args a = {.w = gpu_weights_args(w),
                       .x_stride = padded,
                       .y_stride = (uint64_t)p->y_stride,
                       .split_stride = each,
                       .split_units = split_units};
    if (!gpu_to_half(r, p->x, p->x_stride, (int32_t)w->cols, 1, p->outs))
        return false;
    entry_of(r, "split", p->weight, entry);
    gpu_call c = gpu_call_begin(r, GPU_SPLIT, outs_bit(p->outs), &a, sizeof a, entry);
    gpu_call_weight(&c, 1, p->weight);
    gpu_call_bind(&c, 4, m->half, (uint64_t)p->rows * padded * 2);
    gpu_call_bind(&c, 5, m->unscale, (uint64_t)p->rows * sizeof(float));
    gpu_call_bind(&c, 6, p->y, splits * each * sizeof(float));
    gpu_bind_step(&c, 8);
    return gpu_call_end(&c, gpu_ceil_div(w->rows, SL_MATMUL_ROWS), gpu_ceil_div(p->rows, SL_MATMUL_TOKENS), splits,
                        SL_MATMUL_THREADS);
}

static bool multiply_many(gpu_run *r, const gpu_product *p) {
    if (gpu_batch_takes(r, p))
        return gpu_batch_multiply(r, p);
    return gpu_to_half(r, p->x, p->x_stride, (int32_t)p->weight->matrix.cols, 1, p->outs) && multiply_half(r, p);
}

bool gpu_multiply(gpu_run *r, const gpu_product *p) {
    if (p->rows < GPU_MATMUL_ROWS || (p->weight->matrix.rows <= GPU_NARROW_ALL && !p->add))
        return multiply_few(r, p);
    return multiply_many(r, p);
}

static bool gate_up_few(gpu_run *r, const sl_weight *gate, const sl_weight *up, const gpu_product *p) {
    char entry[64];
    kernel_format f = format_of(r, gate), g = format_of(r, up); /* one alignment for both: the lesser */
    sl_matvec_args a = {
        .w = gpu_weights_args(&gate->matrix), .x_stride = (uint64_t)p->x_stride, .y_stride = (uint64_t)p->y_stride};
    bool few = r->o->few && f.few && g.few;
    (few ? kernel_few_entry : kernel_entry)(entry, sizeof entry, few ? "few_gate_up" : "gate_up",
                                            f.align < g.align ? &f : &g);
    gpu_call c = gpu_call_begin(r, few ? GPU_FEW : GPU_MATVEC, outs_bit(p->outs), &a, sizeof a, entry);
    gpu_call_weight(&c, 1, gate);
    gpu_call_bind(&c, 4, p->x, gpu_rows_bytes(p->rows, p->x_stride, gate->matrix.cols));
    gpu_call_bind(&c, 5, p->y, gpu_rows_bytes(p->rows, p->y_stride, gate->matrix.rows));
    gpu_call_weight(&c, 6, up);
    gpu_bind_step(&c, 9);
    if (few)
        return gpu_call_end(&c, gpu_few_groups(gate->matrix.rows, p->rows), (uint32_t)p->rows, 1, SL_FEW_THREADS);
    return gpu_call_end(&c, gpu_ceil_div(gate->matrix.rows, SL_MATVEC_ROWS), (uint32_t)p->rows, 1, SL_MATVEC_THREADS);
}

bool gpu_multiply_gate_up(gpu_run *r, const sl_weight *gate, const sl_weight *up, const gpu_product *p, float *room) {
    bool few = p->rows < GPU_MATMUL_ROWS;
    if (few && gpu_same_layout(&gate->matrix, &up->matrix))
        return gate_up_few(r, gate, up, p);
    gpu_product g = *p, u = *p;
    g.weight = gate;
    u.weight = up;
    u.y = room;
    int32_t inner = (int32_t)gate->matrix.rows;
    bool ok = few ? multiply_few(r, &g) && multiply_few(r, &u) : multiply_many(r, &g) && multiply_many(r, &u);
    return ok && gpu_silu_mul(r, p->y, room, p->y_stride, inner, 1, p->outs, NULL);
}

bool gpu_run_linear(gpu_run *r, const op *o) {
    bool outs = o->src.rows == SL_ROWS_OUT, few = gpu_view_rows(r, &o->src) < GPU_MATMUL_ROWS;
    for (int i = 0; i < o->u.linear.n; i++) {
        const sl_weight *bias = &o->u.linear.out[i].bias;
        gpu_product p = {.weight = &o->u.linear.out[i].weight,
                         .bias = has_weight(bias) ? bias : NULL,
                         .x = gpu_view_at(r, &o->src),
                         .y = gpu_view_at(r, &o->u.linear.out[i].dst),
                         .x_stride = o->src.stride,
                         .y_stride = o->u.linear.out[i].dst.stride,
                         .rows = gpu_view_rows(r, &o->src),
                         .outs = outs,
                         .add = o->u.linear.out[i].add};
        if (!(few ? multiply_few(r, &p) : multiply_many(r, &p)))
            return false;
    }
    return true;
}

bool gpu_run_gate_up(gpu_run *r, const op *o) {
    gpu_product p = {.x = gpu_view_at(r, &o->src),
                     .y = gpu_view_at(r, &o->dst),
                     .x_stride = o->src.stride,
                     .y_stride = o->dst.stride,
                     .rows = gpu_view_rows(r, &o->src),
                     .outs = o->src.rows == SL_ROWS_OUT};
    return gpu_multiply_gate_up(r, &o->u.gate_up.gate, &o->u.gate_up.up, &p, (float *)(void *)r->o->scratch.shared_up);
}

bool gpu_run_logits(gpu_run *r, const op *o) {
    gpu_product p = {.weight = &o->u.logits.head,
                     .x = gpu_view_at(r, &o->src),
                     .y = r->step->logits,
                     .x_stride = o->src.stride,
                     .y_stride = o->u.logits.head.matrix.rows,
                     .rows = r->step->outs,
                     .outs = true};
    return gpu_multiply(r, &p);
}

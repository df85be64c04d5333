/* Products of a step in which many sequences decode (batch.metal). Such a step has 16 rows or more and no run of a
 * sequence so long: rows of a prompt never come here, so that their bits stay those of tiles, whoever else is served
 * (half tiles and these products add in different orders; a batch of more than 15 is asked for by name). */
#include "ops/ops_gpu.h"

#include <stdio.h>
#include <string.h>

enum {
    BATCH_WIDE = 16384 /* rows of W from which on SIMD-groups have tiles of their own. 32 rows by 2048 columns of Q4_0
                          on an H200, us: 151,936 rows 170 that way, with two tiles each, and 190 or 265 (one tile) by
                          columns; 4096 rows 9.4 by columns, 20.7 else; 512 rows 7.0 and 20.0 */
};

bool gpu_batch_step(const gpu_run *r) {
    const sl_step *s = r->step;
    int32_t run = 0;
    if (!r->o->few || s->rows < GPU_MATMUL_ROWS || s->rows > GPU_BATCH_ROWS)
        return false;
    for (int32_t i = 0; i < s->rows; i++) {
        run = i && s->seq[i] == s->seq[i - 1] ? run + 1 : 1;
        if (run >= GPU_MATMUL_ROWS)
            return false;
    }
    return true;
}

/* Rows as the grid has them: whole blocks of N. */
static int64_t blocks_of(int64_t rows) {
    return rows <= 16 ? 2 : 4;
}
static int64_t padded_rows(int64_t rows) {
    return (int64_t)sl_round_up((uint64_t)rows, 8 * (uint64_t)blocks_of(rows));
}

static uint64_t line_bytes(int64_t rows, int64_t cols, bool low) {
    return (uint64_t)(rows * cols) * (low ? 4 : 2);
}
static uint64_t sum_bytes(int64_t rows, int64_t cols) {
    return (uint64_t)(rows * (cols / 64)) * 2 * sizeof(float);
}

/* Lines lie where half rows do, their sums behind them. */
static bool has_room(const gpu_run *r, int64_t rows, int64_t cols, bool low) {
    const gpu_scratch *m = &r->o->scratch;
    return sl_round_up(line_bytes(rows, cols, low), 256) + sum_bytes(rows, cols) <= m->half_bytes &&
           (uint64_t)rows * sizeof(float) <= m->unscale_bytes;
}

static void bind_lines(gpu_call *c, int slot, int64_t rows, int64_t cols, bool low) {
    const gpu_scratch *m = &c->r->o->scratch;
    gpu_call_bind(c, slot, m->half, line_bytes(rows, cols, low));
    gpu_call_bind(c, slot + 1, m->half + sl_round_up(line_bytes(rows, cols, low), 256), sum_bytes(rows, cols));
    gpu_call_bind(c, slot + 2, m->unscale, (uint64_t)rows * sizeof(float));
}

/* x[rows][stride] as products with this format read it; what is there already stays. per_row: rows of one of the step.
 */
static bool make_lines(gpu_run *r, const kernel_format *f, const float *x, int64_t stride, int64_t cols, int64_t rows,
                       int64_t grid, int32_t per_row, bool outs, bool low) {
    char entry[64];
    int32_t key = -(int32_t)(2 * cols + low); /* no number of columns of half rows */
    if (per_row == 1 && r->half_of.at == x && r->half_of.cols == key && r->half_of.outs == outs &&
        strcmp(r->line_format, f->name) == 0)
        return true;
    sl_rows_args a = {.src_stride = (uint64_t)stride, .cols = (uint32_t)cols, .per_row = (uint32_t)per_row};
    kernel_few_entry(entry, sizeof entry, low ? "batch_lines_low" : "batch_lines", f);
    gpu_call c = gpu_call_begin(r, GPU_BATCH, outs ? 1u << SL_FC_OUTS : 0, &a, sizeof a, entry);
    gpu_call_bind(&c, 1, x, gpu_rows_bytes(rows, stride, cols));
    bind_lines(&c, 2, grid, cols, low);
    gpu_bind_step(&c, 5);
    r->half_of = (struct gpu_halves){per_row == 1 ? x : NULL, key, outs};
    snprintf(r->line_format, sizeof r->line_format, "%s", f->name);
    return gpu_call_end(&c, (uint32_t)grid, 1, 1, SL_BATCH_LINE_THREADS);
}

/* ---- dense ------------------------------------------------------------------------------------------------------- */

static kernel_format format_of(const gpu_run *r, const sl_weight *w) {
    const void *part[3];
    for (int i = 0; i < 3; i++)
        part[i] = w->matrix.row_bytes[i] ? gpu_at(r->o, w->buffer, w->offset[i]) : NULL;
    return gpu_format_of(&w->matrix, part);
}

bool gpu_batch_takes(const gpu_run *r, const gpu_product *p) {
    return p->rows >= GPU_MATMUL_ROWS && gpu_batch_step(r) && format_of(r, p->weight).few &&
           has_room(r, padded_rows(p->rows), p->weight->matrix.cols, false);
}

/* SIMD-groups of which each has tiles of its own, where there are rows or few columns. */
static int64_t lots_of(const sl_matrix *w) {
    return w->rows >= BATCH_WIDE || w->cols == SL_FEW_COLS ? 4 : w->cols == 2 * SL_FEW_COLS ? 2 : 1;
}

bool gpu_batch_multiply(gpu_run *r, const gpu_product *p) {
    char kernel[16], entry[64];
    const sl_matrix *w = &p->weight->matrix;
    kernel_format f = format_of(r, p->weight);
    int64_t n = blocks_of(p->rows), grid = padded_rows(p->rows), t = w->rows >= BATCH_WIDE ? 2 : 1;
    if (!make_lines(r, &f, p->x, p->x_stride, w->cols, p->rows, grid, 1, p->outs, false))
        return false;
    sl_matvec_args a = {.w = gpu_weights_args(w), .y_stride = (uint64_t)p->y_stride};
    snprintf(kernel, sizeof kernel, "batch_t%d_n%d", (int)t, (int)n);
    kernel_few_entry(entry, sizeof entry, kernel, &f);
    uint32_t bits =
        (p->outs ? 1u << SL_FC_OUTS : 0) | (p->add ? 1u << SL_FC_ADD : 0) | (p->bias ? 1u << SL_FC_BIAS : 0);
    gpu_call c = gpu_call_begin(r, GPU_BATCH, bits, &a, sizeof a, entry);
    gpu_call_weight(&c, 1, p->weight);
    bind_lines(&c, 4, grid, w->cols, false);
    gpu_call_bind(&c, 7, p->y, gpu_rows_bytes(p->rows, p->y_stride, w->rows));
    gpu_call_bind(&c, 8, p->bias ? gpu_at(r->o, p->bias->buffer, p->bias->offset[0]) : NULL,
                  (uint64_t)w->rows * sizeof(float));
    gpu_bind_step(&c, 9);
    return gpu_call_end(&c, gpu_ceil_div(w->rows, (uint32_t)(SL_FEW_ROWS * t * lots_of(w))), (uint32_t)(grid / (8 * n)),
                        1, SL_BATCH_THREADS);
}

/* ---- experts ----------------------------------------------------------------------------------------------------- */

static int64_t pair_count(const gpu_moe *x) {
    return (int64_t)x->rows * x->m->top_k;
}

static int64_t whole_blocks(int64_t rows) {
    return (int64_t)sl_round_up((uint64_t)rows, SL_BATCH_PAIRS);
}

/* Asked when pairs are grouped and again when they are computed, so only where the layer's alignment in the device's
 * own slots is known beforehand. */
bool gpu_batch_moe(const gpu_moe *x) {
    sl_ops_gpu *o = x->r->o;
    const sl_expert_source *src = &o->known.experts;
    sl_expert_peek peek;
    if (!x->many || !o->tier || !gpu_batch_step(x->r) || !src->peek || !src->peek(src->self, x->m->layer, &peek) ||
        !peek.align || !gpu_same_layout(&x->proj[SL_PROJ_GATE], &x->proj[SL_PROJ_UP]) ||
        !has_room(x->r, whole_blocks(x->rows), x->proj[SL_PROJ_GATE].cols, true) ||
        !has_room(x->r, whole_blocks(pair_count(x)), x->inner, true))
        return false;
    for (int i = 0; i < SL_PROJ_COUNT; i++)
        if (!gpu_moe_format(x->m, i, gpu_tier_align(o, x->m->layer)).few)
            return false;
    return true;
}

static bool project(gpu_pass *p, int proj, float *to, int64_t to_stride) {
    gpu_moe *x = p->x;
    const gpu_scratch *s = &x->r->o->scratch;
    bool down = proj == SL_PROJ_DOWN;
    int64_t cols = x->proj[proj].cols, rows = down ? pair_count(x) : x->rows;
    const float *from = down ? (float *)(void *)s->inner : gpu_view_at(x->r, &x->o->src);
    int64_t stride = down ? x->inner : x->o->src.stride;
    char entry[64];
    if (!make_lines(x->r, &p->format[proj], from, stride, cols, rows, whole_blocks(rows), down ? x->m->top_k : 1, false,
                    true))
        return false;
    sl_expert_args a = gpu_expert_args(x, proj, 0, to_stride, down);
    kernel_few_entry(entry, sizeof entry, down ? "batch_expert" : "batch_expert_gate_up", &p->format[proj]);
    uint32_t clamp = !down && x->m->swiglu_limit > 0 ? 1u << SL_FC_CLAMP : 0;
    gpu_call c = gpu_call_begin(x->r, GPU_BATCH, gpu_expert_bits(x, proj) | clamp, &a, sizeof a, entry);
    gpu_call_bind(&c, 1, p->table, gpu_table_bytes(x->m));
    gpu_call_bind(&c, 2, s->tiles, (uint64_t)s->extent.tiles * sizeof(sl_pair_tile));
    gpu_call_bind(&c, 3, s->pairs, (uint64_t)pair_count(x) * sizeof(int32_t));
    bind_lines(&c, 4, whole_blocks(rows), cols, true);
    gpu_call_bind(&c, 7, to, (uint64_t)(pair_count(x) * to_stride) * sizeof(float));
    if (down)
        gpu_call_bind(&c, 8, s->done, (uint64_t)pair_count(x));
    gpu_bind_step(&c, 9);
    gpu_call_bind(&c, 10, s->tile_count, 2 * sizeof(uint32_t));
    gpu_expert_bias(&c, 11, x, proj);
    if (!down)
        gpu_expert_bias(&c, 12, x, SL_PROJ_UP);
    gpu_pass_slabs(&c, p);
    int64_t rows_each = down ? 2 * SL_FEW_ROWS : SL_FEW_ROWS, chunks = cols / SL_FEW_COLS;
    return gpu_call_end(&c, gpu_ceil_div(a.w.rows, (uint32_t)(rows_each * (chunks > 2 ? 1 : 4 / chunks))),
                        gpu_ceil_div(pair_count(x), SL_BATCH_PAIRS) + (uint32_t)x->m->experts, 1, SL_BATCH_THREADS);
}

bool gpu_batch_pass(gpu_pass *p) {
    const gpu_scratch *s = &p->x->r->o->scratch;
    return project(p, SL_PROJ_GATE, (float *)(void *)s->inner, p->x->inner) &&
           project(p, SL_PROJ_DOWN, (float *)(void *)s->out, p->x->hidden);
}

/* Products over the thread pool: the rows of one or several matrices are one index space, cut into pieces at multiples
 * of the kernels' grain. */
#include "ops/ops_cpu.h"

#include <string.h>

enum { MAX_PRODUCTS = 256 };

typedef struct product_job {
    const sl_ops_cpu *o;
    const product *list;
    int n;
    int64_t piece_rows;
    int64_t first_piece[MAX_PRODUCTS + 1]; /* pieces before product i */
} product_job;

/* Columns [row0, row1) of y added onto dst, rows ascending. */
static void add_columns(const sl_ops_cpu *o, const product *p, const float *y, int64_t ldy, int64_t row0,
                        int64_t row1) {
    for (int64_t i = 0; i < p->in.n; i++)
        o->ops->add(p->dst + i * p->ldd + row0, y + i * ldy + row0, row1 - row0);
}

static void run_piece(const sl_ops_cpu *o, const product *p, int64_t row0, int64_t row1, void *scratch) {
    if (p->up.rows)
        o->kernels->gate_up(&p->w, &p->up, row0, row1, &p->in, p->dst, p->ldd, scratch);
    else if (p->add) {
        o->kernels->matmul(&p->w, row0, row1, &p->in, p->add, p->w.rows, scratch);
        add_columns(o, p, p->add, p->w.rows, row0, row1);
    } else
        o->kernels->matmul(&p->w, row0, row1, &p->in, p->dst, p->ldd, scratch);
    if (p->bias)
        add_columns(o, p, p->bias, 0, row0, row1);
}

static void run_pieces(void *ctx, int64_t begin, int64_t end, int worker) {
    const product_job *j = ctx;
    void *scratch = cpu_thread_scratch(j->o, worker);
    int i = 0;
    for (int64_t piece = begin; piece < end; piece++) {
        while (piece >= j->first_piece[i + 1])
            i++;
        int64_t row0 = (piece - j->first_piece[i]) * j->piece_rows;
        run_piece(j->o, &j->list[i], row0, sl_min_i64(row0 + j->piece_rows, j->list[i].w.rows), scratch);
    }
}

/* Pieces small enough that the threads end together, large enough that handing them out costs nothing. */
static int64_t piece_rows(const product *list, int n, int threads) {
    int64_t rows = 0;
    for (int i = 0; i < n; i++)
        rows += list[i].w.rows;
    int64_t want = rows / (threads * 8);
    int64_t piece = want / CPU_ROW_GRAIN * CPU_ROW_GRAIN;
    return piece < CPU_ROW_GRAIN ? CPU_ROW_GRAIN : piece > 16 * CPU_ROW_GRAIN ? 16 * CPU_ROW_GRAIN : piece;
}

static void run_products(sl_ops_cpu *o, const product *list, int n) {
    product_job j = {.o = o, .list = list, .n = n, .piece_rows = piece_rows(list, n, sl_pool_threads(o->pool))};
    for (int i = 0; i < n; i++)
        j.first_piece[i + 1] = j.first_piece[i] + (list[i].w.rows + j.piece_rows - 1) / j.piece_rows;
    sl_pool_run(o->pool, j.first_piece[n], 1, run_pieces, &j);
}

void cpu_products(sl_ops_cpu *o, const product *list, int n) {
    for (int i = 0; i < n; i += MAX_PRODUCTS)
        run_products(o, list + i, n - i < MAX_PRODUCTS ? n - i : MAX_PRODUCTS);
}

typedef struct quantize_job {
    const cpu_kernels *k;
    const float *x;
    int64_t ldx, cols;
    uint64_t act_bytes;
    uint8_t *act;
} quantize_job;

static void quantize_rows(void *ctx, int64_t begin, int64_t end, int worker) {
    const quantize_job *j = ctx;
    j->k->quantize(j->x + begin * j->ldx, j->ldx, end - begin, j->cols, j->act + (uint64_t)begin * j->act_bytes);
}

void cpu_quantize_into(sl_ops_cpu *o, const float *x, int64_t ldx, int64_t n, int64_t cols, uint8_t *act) {
    if (o->numeric == SL_NUMERIC_EXACT)
        return;
    quantize_job j = {o->kernels, x, ldx, cols, cpu_act_bytes(cols), act};
    sl_pool_run(o->pool, n, 16, quantize_rows, &j);
}

cpu_rows cpu_rows_of(const float *x, int64_t ldx, int64_t n, int64_t cols, const uint8_t *act) {
    return (cpu_rows){.cols = cols, .n = n, .x = x, .ldx = ldx, .q = act};
}

static cpu_rows quantized_source(cpu_run *r, const sl_view *src) {
    const float *x = view_rows(r->o, src);
    int64_t n = view_count(r->step, src);
    cpu_quantize_into(r->o, x, src->stride, n, src->cols, r->o->scratch.act);
    return cpu_rows_of(x, src->stride, n, src->cols, r->o->scratch.act);
}

void cpu_run_linear(cpu_run *r, const op *o) {
    product list[MAX_LINEAR];
    cpu_rows in = quantized_source(r, &o->src);
    float *sum = r->o->scratch.sum;
    for (int i = 0; i < o->u.linear.n; i++) {
        list[i] = (product){.w = ops_matrix(r->o, &o->u.linear.out[i].weight),
                            .bias = vector_of(r->o, &o->u.linear.out[i].bias),
                            .add = o->u.linear.out[i].add ? sum : NULL,
                            .dst = view_rows(r->o, &o->u.linear.out[i].dst),
                            .ldd = o->u.linear.out[i].dst.stride,
                            .in = in};
        if (list[i].add)
            sum += in.n * list[i].w.rows;
    }
    cpu_products(r->o, list, o->u.linear.n);
}

void cpu_run_gate_up(cpu_run *r, const op *o) {
    product p = {.w = ops_matrix(r->o, &o->u.gate_up.gate),
                 .up = ops_matrix(r->o, &o->u.gate_up.up),
                 .dst = view_rows(r->o, &o->dst),
                 .ldd = o->dst.stride,
                 .in = quantized_source(r, &o->src)};
    cpu_products(r->o, &p, 1);
}

void cpu_run_logits(cpu_run *r, const op *o) {
    product p = {.w = ops_matrix(r->o, &o->u.logits.head),
                 .dst = r->step->logits,
                 .ldd = o->u.logits.head.matrix.rows,
                 .in = quantized_source(r, &o->src)};
    cpu_products(r->o, &p, 1);
}

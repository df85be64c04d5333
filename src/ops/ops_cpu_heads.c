/* A matrix for each head: MLA's way from a query to the latent's space (transposed) and from there to values. */
#include "ops/ops_cpu.h"

#include <string.h>

enum { LIST_HEADS = 64 };

typedef struct heads_job {
    cpu_run *r;
    const sl_head_linear *h;
    sl_matrix w;
    const float *src;
    float *dst;
    int64_t src_stride, dst_stride;
    int32_t rows;
} heads_job;

static sl_matrix head_matrix(const heads_job *j, int32_t head) {
    const sl_head_linear *h = j->h;
    return sl_matrix_rows(&j->w, (int64_t)head * h->rows_per_head + h->first_row,
                          h->transposed ? h->in_dim : h->out_dim);
}

static const float *head_src(const heads_job *j, int32_t head) {
    return j->src + (int64_t)head * (j->h->in_dim + j->h->tail);
}

static float *head_dst(const heads_job *j, int32_t head) {
    return j->dst + (int64_t)head * (j->h->out_dim + j->h->tail);
}

/* dst = W src of heads [first, first + n). */
static void multiply_heads(const heads_job *j, int32_t first, int32_t n) {
    sl_ops_cpu *o = j->r->o;
    uint64_t act_bytes = (uint64_t)j->rows * cpu_act_bytes(j->h->in_dim);
    product list[LIST_HEADS] = {0};
    for (int32_t i = 0; i < n; i++) {
        uint8_t *act = o->scratch.act + (uint64_t)(first + i) * act_bytes;
        cpu_quantize_into(o, head_src(j, first + i), j->src_stride, j->rows, j->h->in_dim, act);
        list[i] = (product){.w = head_matrix(j, first + i),
                            .dst = head_dst(j, first + i),
                            .ldd = j->dst_stride,
                            .in = cpu_rows_of(head_src(j, first + i), j->src_stride, j->rows, j->h->in_dim, act)};
    }
    cpu_products(o, list, n);
}

/* dst = W^T src: the head's matrix as floats, then a sum of its rows. */
static void multiply_transposed(void *ctx, int64_t begin, int64_t end, int worker) {
    const heads_job *j = ctx;
    const sl_head_linear *h = j->h;
    const cpu_ops *ops = j->r->o->ops;
    float *w = cpu_thread_scratch(j->r->o, worker);
    for (int64_t head = begin; head < end; head++) {
        sl_matrix m = head_matrix(j, (int32_t)head);
        for (int32_t k = 0; k < h->in_dim; k++)
            sl_format_get(m.format)->dequantize(&m, k, 0, h->out_dim, w + (int64_t)k * h->out_dim);
        for (int64_t row = 0; row < j->rows; row++) {
            const float *x = head_src(j, (int32_t)head) + row * j->src_stride;
            float *y = head_dst(j, (int32_t)head) + row * j->dst_stride;
            memset(y, 0, (size_t)h->out_dim * sizeof *y);
            for (int32_t k = 0; k < h->in_dim; k++)
                ops->axpy(y, w + (int64_t)k * h->out_dim, x[k], h->out_dim);
        }
    }
}

static void copy_tails(void *ctx, int64_t begin, int64_t end, int worker) {
    const heads_job *j = ctx;
    for (int64_t row = begin; row < end; row++)
        for (int32_t head = 0; head < j->h->heads; head++)
            memcpy(head_dst(j, head) + row * j->dst_stride + j->h->out_dim,
                   head_src(j, head) + row * j->src_stride + j->h->in_dim, (size_t)j->h->tail * sizeof(float));
}

void cpu_run_head_linear(cpu_run *r, const op *o) {
    const sl_head_linear *h = &o->u.head_linear.h;
    heads_job j = {.r = r,
                   .h = h,
                   .w = ops_matrix(r->o, &o->u.head_linear.weight),
                   .src = view_rows(r->o, &o->src),
                   .dst = view_rows(r->o, &o->dst),
                   .src_stride = o->src.stride,
                   .dst_stride = o->dst.stride,
                   .rows = view_count(r->step, &o->src)};
    if (h->transposed)
        sl_pool_run(r->o->pool, h->heads, 1, multiply_transposed, &j);
    else
        for (int32_t first = 0; first < h->heads; first += LIST_HEADS)
            multiply_heads(&j, first, h->heads - first < LIST_HEADS ? h->heads - first : LIST_HEADS);
    if (h->tail)
        sl_pool_run(r->o->pool, j.rows, 4, copy_tails, &j);
}

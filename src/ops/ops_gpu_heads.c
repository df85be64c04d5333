/* A matrix for each head, plain or turned; tails are copied by the same kernels. */
#include "ops/ops_gpu.h"

#include <stdio.h>

/* Many rows share a tile's weights; turned, what few rows need lies in other threads. */
static void entry_of(const gpu_run *r, const op *o, bool few, char out[64]) {
    const sl_head_linear *h = &o->u.head_linear.h;
    const sl_weight *w = &o->u.head_linear.weight;
    const void *part[3];
    for (int i = 0; i < 3; i++)
        part[i] = w->matrix.row_bytes[i] ? gpu_at(r->o, w->buffer, w->offset[i]) : NULL;
    kernel_format f = gpu_format_of(&w->matrix, part);
    const char *kernel = few ? (h->transposed ? "heads_turned" : "heads_matvec")
                             : (h->transposed ? "heads_matmul_turned" : "heads_matmul");
    kernel_entry(out, 64, kernel, &f);
}

bool gpu_run_head_linear(gpu_run *r, const op *o) {
    const sl_head_linear *h = &o->u.head_linear.h;
    const sl_weight *w = &o->u.head_linear.weight;
    int32_t rows = gpu_view_rows(r, &o->src);
    bool few = rows < GPU_MATMUL_ROWS, outs = o->src.rows == SL_ROWS_OUT;
    char entry[64];
    sl_heads_args a = {.w = gpu_weights_args(&w->matrix),
                       .x_stride = (uint64_t)o->src.stride,
                       .y_stride = (uint64_t)o->dst.stride,
                       .in_dim = (uint32_t)h->in_dim,
                       .out_dim = (uint32_t)h->out_dim,
                       .tail = (uint32_t)h->tail,
                       .first_row = (uint32_t)h->first_row,
                       .rows_per_head = (uint32_t)h->rows_per_head};
    entry_of(r, o, few, entry);
    gpu_call c = gpu_call_begin(r, GPU_HEADS, outs ? 1u << SL_FC_OUTS : 0, &a, sizeof a, entry);
    gpu_call_weight(&c, 1, w);
    gpu_call_bind(&c, 4, gpu_view_at(r, &o->src), gpu_rows_bytes(rows, o->src.stride, o->src.cols));
    gpu_call_bind(&c, 5, gpu_view_at(r, &o->dst), gpu_rows_bytes(rows, o->dst.stride, o->dst.cols));
    gpu_bind_step(&c, 6);
    uint32_t units = gpu_ceil_div(h->out_dim, 32), heads = (uint32_t)h->heads;
    if (few && h->transposed)
        return gpu_call_end(&c, gpu_ceil_div(units, SL_TURNED_UNITS), (uint32_t)rows, heads, SL_TURNED_THREADS);
    if (few)
        return gpu_call_end(&c, gpu_ceil_div(h->out_dim, SL_MATVEC_ROWS), (uint32_t)rows, heads, SL_MATVEC_THREADS);
    return gpu_call_end(&c, h->transposed ? gpu_ceil_div(units, 2) : gpu_ceil_div(h->out_dim, SL_MATMUL_ROWS),
                        gpu_ceil_div(rows, SL_MATMUL_TOKENS), heads, SL_MATMUL_THREADS);
}

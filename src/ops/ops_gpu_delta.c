/* Gated DeltaNet: convolution, lengths of q and k, the recurrence over each sequence's rows, the gated norm. */
#include "ops/ops_gpu.h"

#include <stdio.h>

bool gpu_check_delta(const sl_delta *d, sl_error *err) {
    return d->key_dim <= GPU_DELTA_KEY ||
           sl_fail(err, SL_ERR_UNSUPPORTED, "delta layer %d: keys of %d on a GPU: at most %d expected", d->layer,
                   d->key_dim, GPU_DELTA_KEY);
}

static sl_delta_args args_of(const gpu_run *r, const op *o) {
    const sl_delta *d = &o->u.delta.d;
    return (sl_delta_args){.x_stride = (uint64_t)o->src.stride,
                           .z_stride = (uint64_t)o->u.delta.z.stride,
                           .beta_stride = (uint64_t)o->u.delta.beta.stride,
                           .alpha_stride = (uint64_t)o->u.delta.alpha.stride,
                           .dst_stride = (uint64_t)o->dst.stride,
                           .conv_offset = r->o->known.state.conv_offset,
                           .layer = (uint32_t)d->layer,
                           .key_heads = (uint32_t)d->key_heads,
                           .value_heads = (uint32_t)d->value_heads,
                           .key_dim = (uint32_t)d->key_dim,
                           .value_dim = (uint32_t)d->value_dim,
                           .channels = (uint32_t)o->src.cols,
                           .width = (uint32_t)d->kernel,
                           .tiled = d->tiled,
                           .norm_eps = d->norm_eps,
                           .long_rows = d->key_dim <= GPU_CHUNK_KEY ? GPU_CHUNK_ROWS : UINT32_MAX};
}

static void bind_view(gpu_call *c, int slot, const sl_view *v) {
    gpu_call_bind(c, slot, gpu_view_at(c->r, v), gpu_rows_bytes(c->r->step->rows, v->stride, v->cols));
}

static void bind_vector(gpu_call *c, int slot, const sl_weight *w) {
    uint64_t bytes = (uint64_t)w->matrix.rows * w->matrix.row_bytes[0];
    gpu_call_bind(c, slot, has_weight(w) ? gpu_at(c->r->o, w->buffer, w->offset[0]) : NULL, bytes);
}

static void bind_state(gpu_call *c) {
    gpu_call_pieces(c, c->r->o->state.piece, c->r->o->state.pieces, SL_GPU_READ_WRITE);
}

static uint32_t run_count(const gpu_run *r) {
    return (uint32_t)((const sl_step_head *)(const void *)r->o->scratch.step)->runs;
}

static bool convolve(gpu_run *r, const op *o, const sl_delta_args *a) {
    const sl_delta *d = &o->u.delta.d;
    uint32_t bits = has_weight(&d->conv_bias) ? 1u << SL_FC_BIAS : 0;
    gpu_call c = gpu_call_begin(r, GPU_DELTA, bits, a, sizeof *a, "delta_conv");
    bind_view(&c, 1, &o->src);
    bind_vector(&c, 2, &d->conv);
    bind_vector(&c, 3, &d->conv_bias);
    gpu_bind_step(&c, 4);
    bind_state(&c);
    return gpu_call_end(&c, gpu_ceil_div(a->channels, 64), run_count(r), 1, 64);
}

static bool prepare(gpu_run *r, const op *o, const sl_delta_args *a) {
    gpu_call c = gpu_call_begin(r, GPU_DELTA, 0, a, sizeof *a, "delta_prepare");
    bind_view(&c, 1, &o->src);
    gpu_bind_step(&c, 2);
    return gpu_call_end(&c, 2 * a->key_heads, (uint32_t)r->step->rows, 1, SL_SIMD);
}

/* x, the gates and the step in slots 1 to 6. */
static gpu_call begin_gated(gpu_run *r, gpu_file file, const op *o, const sl_delta_args *a, const char *kernel) {
    const sl_delta *d = &o->u.delta.d;
    char entry[64];
    snprintf(entry, sizeof entry, "%s_%d", kernel, d->key_dim);
    gpu_call c = gpu_call_begin(r, file, 0, a, sizeof *a, entry);
    bind_view(&c, 1, &o->src);
    bind_view(&c, 2, &o->u.delta.beta);
    bind_view(&c, 3, &o->u.delta.alpha);
    bind_vector(&c, 4, &d->decay);
    bind_vector(&c, 5, &d->dt_bias);
    gpu_bind_step(&c, 6);
    return c;
}

static bool recur(gpu_run *r, const op *o, const sl_delta_args *a) {
    gpu_call c = begin_gated(r, GPU_DELTA, o, a, "delta");
    bind_state(&c);
    return gpu_call_end(&c, gpu_ceil_div(a->value_dim, SL_SIMD), a->value_heads, run_count(r), 4 * SL_SIMD);
}

/* Chunks [a->place, a->place + n). */
static bool take_chunks(gpu_run *r, const op *o, const sl_delta_args *a, uint32_t n) {
    uint64_t bytes = (uint64_t)n * a->value_heads * SL_DELTA_PAIRS * sizeof(float);
    uint8_t *pairs = r->o->scratch.delta_pairs;
    gpu_call c = begin_gated(r, GPU_DELTA_CHUNK, o, a, "delta_pairs");
    gpu_call_bind(&c, 7, pairs, bytes);
    if (!gpu_call_end(&c, n, a->value_heads, 1, 128))
        return false;
    char entry[64];
    snprintf(entry, sizeof entry, "delta_chunk_%d", o->u.delta.d.key_dim);
    c = gpu_call_begin(r, GPU_DELTA_CHUNK, 0, a, sizeof *a, entry);
    bind_view(&c, 1, &o->src);
    gpu_call_bind(&c, 2, pairs, bytes);
    gpu_bind_step(&c, 3);
    bind_state(&c);
    return gpu_call_end(&c, gpu_ceil_div(a->value_dim, SL_SIMD), a->value_heads, run_count(r), 128);
}

/* Sequences with few rows in the step go row by row, those with many in chunks. */
static bool apply_rule(gpu_run *r, const op *o, sl_delta_args a) {
    const sl_step *s = r->step;
    uint32_t chunks = 0;
    bool few = false;
    for (int32_t row = 0, first = 0; row < s->rows; row++) {
        if (row + 1 < s->rows && s->seq[row + 1] == s->seq[row])
            continue;
        uint32_t rows = (uint32_t)(row + 1 - first);
        if (rows >= a.long_rows)
            chunks += gpu_ceil_div(rows, SL_DELTA_CHUNK);
        else
            few = true;
        first = row + 1;
    }
    if (few && !recur(r, o, &a))
        return false;
    for (; a.place < chunks; a.place += SL_DELTA_PLACES)
        if (!take_chunks(r, o, &a, (uint32_t)sl_min_i64(SL_DELTA_PLACES, chunks - a.place)))
            return false;
    return true;
}

static bool finish(gpu_run *r, const op *o, const sl_delta_args *a) {
    const sl_view *z = &o->u.delta.z;
    bool in_place = z->buffer == o->dst.buffer && z->offset == o->dst.offset;
    gpu_call c = gpu_call_begin(r, GPU_DELTA, in_place ? 1u << SL_FC_IN_PLACE : 0, a, sizeof *a, "delta_finish");
    bind_view(&c, 1, &o->src);
    if (in_place)
        gpu_call_bind(&c, 2, NULL, 0);
    else
        bind_view(&c, 2, z);
    bind_view(&c, 3, &o->dst);
    bind_vector(&c, 4, &o->u.delta.d.norm);
    gpu_bind_step(&c, 5);
    return gpu_call_end(&c, a->value_heads, (uint32_t)r->step->rows, 1, SL_SIMD);
}

bool gpu_run_delta(gpu_run *r, const op *o) {
    sl_delta_args a = args_of(r, o);
    return convolve(r, o, &a) && prepare(r, o, &a) && apply_rule(r, o, a) && finish(r, o, &a);
}

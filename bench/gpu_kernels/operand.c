#include "operand.h"

#include <stdlib.h>
#include <string.h>

const subject bench_subjects[SUBJECTS] = {{"affine4-64", SL_AFFINE4, SL_F16, 64, 16},
                                          {"Q4_0", SL_Q4_0, 0, 0, 16},
                                          {"Q4_K", SL_Q4_K, 0, 0, 16},
                                          {"MXFP4", SL_MXFP4, 0, 0, 16},
                                          {"mxfp4 split", SL_MXFP4_SPLIT, 0, 0, 16}};

/* Bytes of which any two are a half (or bfloat) of ordinary size, so that no format meets NaN or subnormal scales. */
static void fill(uint8_t *p, uint64_t bytes, uint64_t s) {
    for (uint64_t i = 0; i < bytes; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        p[i] = (uint8_t)((s >> 56 & 0x1f) | 0x20 | (i & 1 ? 0 : s >> 40 & 0xc0));
    }
}

/* Scales that are a byte, 2^(e - 127): every `step` bytes. */
static void fill_exponents(uint8_t *p, uint64_t bytes, uint64_t step) {
    for (uint64_t i = 0; i < bytes; i += step)
        p[i] = (uint8_t)(118 + i / step % 5);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static void make_parts(bench *b, operand *o, const subject *s, int64_t rows, int64_t cols) {
    o->m = (sl_matrix){.format = s->format, .side = s->side, .group = s->group, .rows = rows, .cols = cols};
    if (!sl_matrix_layout(&o->m, &b->err))
        bench_fail(b, s->name);
    for (int i = 0; i < 3; i++) {
        uint64_t bytes = sl_matrix_part_bytes(&o->m, i);
        o->at[i] = o->apart;
        o->apart += (bytes + 255) / 256 * 256;
        o->all += bytes;
        o->part[i] = bytes ? malloc(bytes) : NULL;
        if (bytes)
            fill(o->part[i], bytes, 17 + (uint64_t)i);
        if (s->format == SL_MXFP4 && i == 0)
            fill_exponents(o->part[i], bytes, sl_format_get(SL_MXFP4)->block_bytes);
        if (s->format == SL_MXFP4_SPLIT && i == 1)
            fill_exponents(o->part[i], bytes, 1);
        o->m.part[i] = o->part[i];
    }
    o->f = kernel_format_of(&o->m, (uint64_t[3]){s->align, s->align, s->align});
}

operand operand_new(bench *b, const subject *s, int64_t rows, int64_t cols, int n) {
    operand o = {0};
    make_parts(b, &o, s, rows, cols);
    uint64_t least = b->opt.mib << 20;
    o.n = n;
    while ((uint64_t)o.n * o.all < least)
        o.n++;
    o.weights = bench_need(sl_gpu_alloc(b->gpu, (uint64_t)o.n * o.apart, SL_GPU_PRIVATE, &b->err), b, "weights");
    for (int k = 0; k < o.n; k++)
        for (int i = 0; i < 3; i++)
            if (o.part[i] && !sl_gpu_put(o.weights, (uint64_t)k * o.apart + o.at[i], o.part[i],
                                         sl_matrix_part_bytes(&o.m, i), &b->err))
                bench_fail(b, "weights");
    o.x = malloc((size_t)cols * sizeof *o.x);
    for (int64_t i = 0; i < cols; i++)
        o.x[i] = (float)((i * 7919 + 13) % 2003) / 1001.5f - 1.0f;
    o.y = malloc((size_t)rows * sizeof *o.y);
    sl_step_head head = {.rows = 1, .outs = 1, .seqs = 1};
    o.x_at = bench_need(sl_gpu_alloc(b->gpu, (uint64_t)cols * 4, SL_GPU_PRIVATE, &b->err), b, "x");
    o.y_at = bench_need(sl_gpu_alloc(b->gpu, (uint64_t)o.n * (uint64_t)rows * 4, SL_GPU_PRIVATE, &b->err), b, "y");
    o.step_at = bench_need(sl_gpu_alloc(b->gpu, sizeof head, SL_GPU_PRIVATE, &b->err), b, "step");
    if (!sl_gpu_put(o.x_at, 0, o.x, (uint64_t)cols * 4, &b->err) ||
        !sl_gpu_put(o.step_at, 0, &head, sizeof head, &b->err))
        bench_fail(b, "x");
    return o;
}

void operand_bind(const operand *o, int k, sl_gpu_binding bind[3]) {
    for (int i = 0; i < 3; i++) {
        int part = o->part[i] ? i : 0;
        bind[i] = (sl_gpu_binding){.slot = 1 + i,
                                   .buffer = o->weights,
                                   .offset = (uint64_t)k * o->apart + o->at[part],
                                   .length = sl_matrix_part_bytes(&o->m, part)};
    }
}

void operand_free(operand *o) {
    sl_gpu_buffer_free(o->weights);
    sl_gpu_buffer_free(o->x_at);
    sl_gpu_buffer_free(o->y_at);
    sl_gpu_buffer_free(o->step_at);
    for (int i = 0; i < 3; i++)
        free(o->part[i]);
    free(o->x);
    free(o->y);
}

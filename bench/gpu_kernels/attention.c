/* Decode attention: one row over --tokens of keys and values of --matrices layers, paged as the engine's, halves;
 * attention_decode.metal beside attention_few.metal, each with attention_combine. The last layer's heads are compared
 * with float64. */
#include "operand.h"
#include "ops/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILL = (16 << 20) + 4096 - 64 }; /* bytes that all memory is a repetition of: other tokens in every page */

typedef struct heads {
    const char *name;
    int32_t heads, kv_heads, dim;
} heads;

static const heads shapes[] = {
    {"32 of 4 heads of 128", 32, 4, 128}, {"16 of 2 heads of 256", 16, 2, 256}, {"64 of 8 heads of 64", 64, 8, 64}};

typedef struct memory {
    heads h;
    sl_kv_layout kv;
    int32_t tokens, pages;
    uint8_t *fill;
    float *q;
    sl_gpu_buffer *kv_at, *q_at, *partial_at, *dst_at, *step_at;
    sl_attention_args args;
} memory;

static uint64_t step_random(uint64_t *s) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return *s >> 33;
}

static void *filled(uint64_t bytes) {
    uint16_t *p = malloc(bytes);
    uint64_t s = 41;
    for (uint64_t i = 0; p && i < bytes / 2; i++)
        p[i] = sl_f32_to_f16((float)step_random(&s) / (float)(1u << 30) - 1.0f);
    return p;
}

static sl_gpu_buffer *alloc(bench *b, uint64_t bytes) {
    return bench_need(sl_gpu_alloc(b->gpu, bytes, SL_GPU_PRIVATE, &b->err), b, "attention");
}

static void put(bench *b, sl_gpu_buffer *to, uint64_t at, const void *from, uint64_t bytes) {
    if (!sl_gpu_put(to, at, from, bytes, &b->err))
        bench_fail(b, "attention");
}

/* One row at the last token; its pages one after the other. */
static void put_step(bench *b, memory *m) {
    enum { SEQ = sizeof(sl_step_head) / 4, POSITION, FIRST, TABLE };
    uint32_t *words = calloc((size_t)TABLE + 2 * (size_t)m->pages, 4);
    sl_step_head head = {.rows = 1, .outs = 1, .seqs = 1, .seq = SEQ, .position = POSITION, .page_first = FIRST};
    memcpy(words, &head, sizeof head);
    words[POSITION] = (uint32_t)m->tokens - 1;
    words[FIRST] = TABLE;
    for (int32_t i = 0; i < m->pages; i++) {
        uint64_t at = (uint64_t)i * m->kv.block_bytes;
        memcpy(words + TABLE + 2 * i, &at, sizeof at);
    }
    uint64_t bytes = ((uint64_t)TABLE + 2 * (uint64_t)m->pages) * 4;
    m->step_at = alloc(b, bytes);
    put(b, m->step_at, 0, words, bytes);
    free(words);
}

static memory make_memory(bench *b, heads h) {
    memory m = {.h = h, .tokens = b->opt.tokens, .pages = (b->opt.tokens + SL_KV_PAGE - 1) / SL_KV_PAGE};
    m.kv = (sl_kv_layout){.format = SL_KV_F16, .layers = b->opt.matrices, .kv_heads = h.kv_heads, .head_dim = h.dim};
    if (!sl_kv_layout_init(&m.kv, UINT64_MAX / 2, &b->err))
        bench_fail(b, "attention");
    uint64_t all = (uint64_t)m.pages * m.kv.block_bytes, q = (uint64_t)(h.heads * h.dim) * 4;
    uint32_t splits = (uint32_t)((m.tokens - 1) / SL_ATTENTION_SPLIT + 1);
    m.fill = filled(FILL);
    m.kv_at = alloc(b, all);
    for (uint64_t at = 0; at < all; at += FILL)
        put(b, m.kv_at, at, m.fill, all - at < FILL ? all - at : FILL);
    m.q = malloc(q);
    uint64_t s = 5;
    for (int32_t i = 0; i < h.heads * h.dim; i++)
        m.q[i] = 4 * ((float)step_random(&s) / (float)(1u << 30) - 1.0f);
    m.q_at = alloc(b, q);
    put(b, m.q_at, 0, m.q, q);
    m.partial_at = alloc(b, (uint64_t)h.heads * splits * (uint64_t)(h.dim + 2) * 4);
    m.dst_at = alloc(b, (uint64_t)b->opt.matrices * q);
    put_step(b, &m);
    m.args = (sl_attention_args){.q_stride = (uint64_t)(h.heads * h.dim),
                                 .dst_stride = (uint64_t)(h.heads * h.dim),
                                 .head_bytes = m.kv.head_bytes,
                                 .plane_bytes = m.kv.plane_bytes,
                                 .heads = (uint32_t)h.heads,
                                 .kv_heads = (uint32_t)h.kv_heads,
                                 .head_dim = (uint32_t)h.dim,
                                 .head_stride = (uint32_t)h.dim,
                                 .value_dim = (uint32_t)h.dim,
                                 .planes = 2,
                                 .splits = splits,
                                 .scale = 1 / sqrtf((float)h.dim)};
    return m;
}

static void free_memory(memory *m) {
    sl_gpu_buffer_free(m->kv_at);
    sl_gpu_buffer_free(m->q_at);
    sl_gpu_buffer_free(m->partial_at);
    sl_gpu_buffer_free(m->dst_at);
    sl_gpu_buffer_free(m->step_at);
    free(m->fill);
    free(m->q);
}

/* ---- what it should be ------------------------------------------------------------------------------------------- */

static const uint16_t *head_at(const memory *m, int32_t layer, int32_t t, int32_t kv_head, int plane, uint16_t *room) {
    uint64_t at = (uint64_t)(t / SL_KV_PAGE) * m->kv.block_bytes + (uint64_t)(layer * 2 + plane) * m->kv.plane_bytes +
                  ((uint64_t)kv_head * SL_KV_PAGE + (uint64_t)(t % SL_KV_PAGE)) * m->kv.head_bytes;
    for (uint64_t i = 0; i < m->kv.head_bytes; i++)
        ((uint8_t *)room)[i] = m->fill[(at + i) % FILL];
    return room;
}

/* A head's worst error by the root of its mean square. */
static double check_head(const memory *m, int32_t layer, int32_t head, const float *got) {
    uint16_t room[256];
    double *p = calloc((size_t)m->tokens, sizeof *p), out[256] = {0}, top = -INFINITY, sum = 0, size = 0, worst = 0;
    int32_t dim = m->h.dim, kv = head / (m->h.heads / m->h.kv_heads);
    for (int32_t t = 0; t < m->tokens; t++) {
        const uint16_t *k = head_at(m, layer, t, kv, 0, room);
        for (int32_t d = 0; d < dim; d++)
            p[t] += (double)m->q[head * dim + d] * sl_f16_to_f32(k[d]) * m->args.scale;
        top = fmax(top, p[t]);
    }
    for (int32_t t = 0; t < m->tokens; t++) {
        const uint16_t *v = head_at(m, layer, t, kv, 1, room);
        double e = exp(p[t] - top);
        sum += e;
        for (int32_t d = 0; d < dim; d++)
            out[d] += e * sl_f16_to_f32(v[d]);
    }
    for (int32_t d = 0; d < dim; d++)
        size += out[d] / sum * out[d] / sum / dim;
    for (int32_t d = 0; d < dim; d++) {
        double e = fabs(got[d] - out[d] / sum) / sqrt(size);
        worst = operand_worse(worst, e);
    }
    free(p);
    return worst;
}

static double check(bench *b, const memory *m) {
    float got[256];
    double worst = 0;
    for (int k = 0; k < 2; k++) {
        int32_t head = k ? m->h.heads - 1 : 0;
        uint64_t at = (uint64_t)((b->opt.matrices - 1) * m->h.heads + head) * (uint64_t)m->h.dim * 4;
        if (!sl_gpu_get(m->dst_at, at, got, (uint64_t)m->h.dim * 4, &b->err))
            bench_fail(b, "attention");
        double e = check_head(m, b->opt.matrices - 1, head, got);
        worst = operand_worse(worst, e);
    }
    return worst;
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static sl_gpu_pipeline *pipeline_of(bench *b, const heads *h, const char *file, const char *entry) {
    size_t size;
    char *text = bench_need(kernel_source(file, NULL, 0, &size, &b->err), b, file), dim[16];
    snprintf(dim, sizeof dim, "%d", h->dim);
    sl_gpu_define defines[] = {{"SL_ATTENTION_KV", "f16"}, {"SL_ATTENTION_DIM", dim}};
    sl_gpu_compile_options c = SL_GPU_COMPILE_OPTIONS_INIT;
    c.name = file;
    c.defines = defines;
    c.define_count = 2;
    sl_gpu_library *l = bench_need(sl_gpu_library_new(b->gpu, text, size, &c, &b->err), b, file);
    sl_gpu_pipeline *p = bench_need(sl_gpu_pipeline_new(l, entry, NULL, 0, &b->err), b, entry);
    sl_gpu_library_free(l);
    free(text);
    return p;
}

static void encode(bench *b, sl_gpu_list *l, const sl_gpu_dispatch *d) {
    if (!sl_gpu_encode(l, d, &b->err))
        bench_fail(b, "attention");
}

static void add_layer(bench *b, sl_gpu_list *l, memory *m, sl_gpu_pipeline *splits, sl_gpu_pipeline *combine,
                      int32_t layer, int32_t at_once) {
    uint32_t tiles = (uint32_t)((m->h.heads / m->h.kv_heads + at_once - 1) / at_once);
    uint64_t dst = (uint64_t)(m->h.heads * m->h.dim) * 4;
    m->args.layer = (uint32_t)layer;
    sl_gpu_binding bind[4 + SL_SLAB_COUNT] = {{.slot = 0, .bytes = &m->args, .length = sizeof m->args},
                                              {.slot = 1, .buffer = m->q_at},
                                              {.slot = 2, .buffer = m->partial_at},
                                              {.slot = 3, .buffer = m->step_at}};
    for (int i = 0; i < SL_SLAB_COUNT; i++)
        bind[4 + i] = (sl_gpu_binding){.slot = SL_SLAB_FIRST + i, .buffer = m->kv_at};
    encode(b, l,
           &(sl_gpu_dispatch){.pipeline = splits,
                              .groups = {m->args.splits, (uint32_t)m->h.kv_heads * tiles, 1},
                              .threads = {SL_ATTENTION_THREADS, 1, 1},
                              .bindings = bind,
                              .binding_count = 4 + SL_SLAB_COUNT});
    sl_gpu_binding results[] = {{.slot = 0, .bytes = &m->args, .length = sizeof m->args},
                                {.slot = 1, .buffer = m->partial_at},
                                {.slot = 2, .buffer = m->dst_at, .offset = (uint64_t)layer * dst, .length = dst},
                                {.slot = 3, .buffer = m->step_at},
                                {.slot = 4, .buffer = m->q_at},
                                {.slot = 5, .buffer = m->q_at}};
    encode(b, l,
           &(sl_gpu_dispatch){.pipeline = combine,
                              .groups = {(uint32_t)m->h.heads, 1, 1},
                              .threads = {SL_ATTENTION_THREADS, 1, 1},
                              .bindings = results,
                              .binding_count = 6});
}

static bool run_kernel(bench *b, memory *m, double reads, bool few) {
    char entry[64];
    snprintf(entry, sizeof entry, few ? "attention_few_%d" : "attention_decode_f16_%d", m->h.dim);
    sl_gpu_pipeline *splits = pipeline_of(b, &m->h, few ? "attention_few.metal" : "attention_decode.metal", entry);
    sl_gpu_pipeline *combine = pipeline_of(b, &m->h, "attention_decode.metal", "attention_combine");
    sl_gpu_list *l = bench_need(sl_gpu_begin(b->stream, entry, &b->err), b, entry);
    if (!sl_gpu_encode_fill(l, m->dst_at, 0, (uint64_t)b->opt.matrices * (uint64_t)(m->h.heads * m->h.dim) * 4, 0xff,
                            &b->err))
        bench_fail(b, entry);
    for (int32_t i = 0; i < b->opt.matrices; i++)
        add_layer(b, l, m, splits, combine, i, few ? SL_FEW_HEADS : SL_DECODE_HEADS(m->h.dim));
    double seconds = bench_time(b, l) / b->opt.matrices;
    double bytes = 2.0 * m->tokens * m->h.kv_heads * (double)m->kv.head_bytes, e = check(b, m);
    printf("%-20s %-7s %6d tokens    x%-4d %9.2f us %9.1f GB/s %6.1f %% of %.0f  error %.1e%s\n", m->h.name,
           few ? "few" : "decode", m->tokens, b->opt.matrices, seconds * 1e6, bytes / seconds * 1e-9,
           100 * bytes / seconds / reads, reads * 1e-9, e, e <= 1e-4 ? "" : "  WRONG");
    fflush(stdout);
    sl_gpu_pipeline_free(splits);
    sl_gpu_pipeline_free(combine);
    return e <= 1e-4;
}

bool bench_attention(bench *b) {
    bool right = true;
    for (size_t i = 0; i < SL_COUNT(shapes); i++) {
        memory m = make_memory(b, shapes[i]);
        uint64_t layer = (uint64_t)m.pages * 2 * m.kv.plane_bytes;
        double reads = bench_reads(b, m.kv_at, layer, b->opt.matrices, m.dst_at);
        right &= run_kernel(b, &m, reads, false);
        if (strcmp(b->info.device, "metal") != 0)
            right &= run_kernel(b, &m, reads, true);
        free_memory(&m);
    }
    return right;
}

/* Attention over keys and values of many layers, paged as the engine's, halves. Decode: one row over --tokens and over
 * fewer, attention_decode.metal beside attention_few.metal, each with attention_combine. Prefill: rows of one sequence
 * from its beginning on, attention_prefill.metal beside attention_large.metal. The last layer's heads are compared with
 * float64. */
#include "operand.h"
#include "ops/kernels.h"
#include "ops/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS_MOST = 1024, COUNTERS = 16384, SPLITS_MOST = 240 /* of a row */ };
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
    int32_t tokens, pages, layers;
    int32_t rows; /* the last ones */
    uint8_t *fill;
    float *q;
    sl_gpu_buffer *kv_at, *q_at, *partial_at, *dst_at, *step_at, *counters_at;
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

/* Rows of one sequence, whose pages lie one after the other. */
static void put_step(bench *b, memory *m) {
    uint32_t rows = (uint32_t)m->rows, blocks = (rows + SL_ATTENTION_ROWS - 1) / SL_ATTENTION_ROWS;
    sl_step_head head = {.rows = m->rows, .outs = 1, .seqs = 1, .seq = sizeof head / 4, .blocks = (int32_t)blocks};
    head.position = head.seq + rows;
    head.block_row = head.position + rows;
    head.page_first = head.block_row + blocks + 1;
    uint32_t table = head.page_first + 1;
    uint64_t bytes = ((uint64_t)table + 2 * (uint64_t)m->pages) * 4;
    uint32_t *words = calloc(bytes / 4, 4);
    memcpy(words, &head, sizeof head);
    for (uint32_t i = 0; i < rows; i++)
        words[head.position + i] = (uint32_t)m->tokens - rows + i;
    for (uint32_t i = 0; i <= blocks; i++)
        words[head.block_row + i] = i < blocks ? i * SL_ATTENTION_ROWS : rows;
    words[head.page_first] = table;
    for (int32_t i = 0; i < m->pages; i++) {
        uint64_t at = (uint64_t)i * m->kv.block_bytes;
        memcpy(words + table + 2 * i, &at, sizeof at);
    }
    m->step_at = alloc(b, bytes);
    put(b, m->step_at, 0, words, bytes);
    free(words);
}

/* Of one row so many layers that they are --mib MiB together, or LAYERS_MOST; of many, whose keys and values were
 * written just before, a quarter of --matrices. */
static memory make_memory(bench *b, heads h, int32_t tokens, int32_t rows) {
    memory m = {.h = h, .tokens = tokens, .pages = (tokens + SL_KV_PAGE - 1) / SL_KV_PAGE, .rows = rows};
    uint64_t layer = (uint64_t)m.pages * SL_KV_PAGE * (uint64_t)(h.kv_heads * h.dim) * 4;
    uint64_t layers = (b->opt.mib << 20) / layer + 1, most = (uint64_t)b->opt.matrices * LAYERS_MOST / 64;
    m.layers = (int32_t)sl_min_i64((int64_t)layers, (int64_t)most);
    m.layers = rows > 1 ? (b->opt.matrices + 3) / 4 : m.layers < b->opt.matrices ? b->opt.matrices : m.layers;
    m.kv = (sl_kv_layout){.format = SL_KV_F16, .layers = m.layers, .kv_heads = h.kv_heads, .head_dim = h.dim};
    if (!sl_kv_layout_init(&m.kv, UINT64_MAX / 2, &b->err))
        bench_fail(b, "attention");
    uint64_t all = (uint64_t)m.pages * m.kv.block_bytes, q = (uint64_t)(rows * h.heads * h.dim) * 4;
    uint32_t splits = SPLITS_MOST + (uint32_t)((m.tokens - 1) / SL_ATTENTION_SPLIT);
    m.fill = filled(FILL);
    m.kv_at = alloc(b, all);
    for (uint64_t at = 0; at < all; at += FILL)
        put(b, m.kv_at, at, m.fill, all - at < FILL ? all - at : FILL);
    m.q = malloc(q);
    uint64_t s = 5;
    for (int32_t i = 0; i < rows * h.heads * h.dim; i++)
        m.q[i] = 4 * ((float)step_random(&s) / (float)(1u << 30) - 1.0f);
    m.q_at = alloc(b, q);
    put(b, m.q_at, 0, m.q, q);
    m.partial_at = alloc(b, (uint64_t)(rows * h.heads) * splits * (uint64_t)(h.dim + 4) * 4);
    m.counters_at = alloc(b, COUNTERS);
    put(b, m.counters_at, 0, (const uint8_t[COUNTERS]){0}, COUNTERS);
    m.dst_at = alloc(b, (uint64_t)m.layers * q);
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
                                 .scale = 1 / sqrtf((float)h.dim)};
    return m;
}

static void free_memory(memory *m) {
    sl_gpu_buffer_free(m->kv_at);
    sl_gpu_buffer_free(m->q_at);
    sl_gpu_buffer_free(m->partial_at);
    sl_gpu_buffer_free(m->dst_at);
    sl_gpu_buffer_free(m->step_at);
    sl_gpu_buffer_free(m->counters_at);
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

/* The worst error of a row's head by the root of its mean square. */
static double check_head(const memory *m, int32_t layer, int32_t row, int32_t head, const float *got) {
    uint16_t room[256];
    int32_t dim = m->h.dim, kv = head / (m->h.heads / m->h.kv_heads), tokens = m->tokens - m->rows + row + 1;
    double *p = calloc((size_t)tokens, sizeof *p), out[256] = {0}, top = -INFINITY, sum = 0, size = 0, worst = 0;
    for (int32_t t = 0; t < tokens; t++) {
        const uint16_t *k = head_at(m, layer, t, kv, 0, room);
        for (int32_t d = 0; d < dim; d++)
            p[t] += (double)m->q[(row * m->h.heads + head) * dim + d] * sl_f16_to_f32(k[d]) * m->args.scale;
        top = fmax(top, p[t]);
    }
    for (int32_t t = 0; t < tokens; t++) {
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
        int32_t head = k ? m->h.heads - 1 : 0, row = k ? m->rows - 1 : m->rows / 3;
        uint64_t before = (uint64_t)(m->layers - 1) * (uint64_t)m->rows + (uint64_t)row;
        uint64_t at = (before * (uint64_t)m->h.heads + (uint64_t)head) * (uint64_t)m->h.dim * 4;
        if (!sl_gpu_get(m->dst_at, at, got, (uint64_t)m->h.dim * 4, &b->err))
            bench_fail(b, "attention");
        double e = check_head(m, m->layers - 1, row, head, got);
        worst = operand_worse(worst, e);
    }
    return worst;
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static sl_gpu_pipeline *pipeline_of(bench *b, const heads *h, const char *file, const char *entry,
                                    const sl_gpu_constant *constants, size_t count) {
    size_t size;
    char *text = bench_need(kernel_source(file, NULL, 0, &size, &b->err), b, file), dim[16], room[16], simds[16];
    uint32_t most = b->info.max_threadgroup_memory;
    snprintf(dim, sizeof dim, "%d", h->dim);
    snprintf(room, sizeof room, "%u", most < 48 << 10 ? most : 48 << 10);
    kernel_few_attention f = kernel_few_attention_of(h->dim, most);
    snprintf(simds, sizeof simds, "%u", f.simds);
    sl_gpu_define defines[] = {
        {"SL_ATTENTION_KV", "f16"}, {"SL_ATTENTION_DIM", dim}, {"SL_ATTENTION_ROOM", room}, {"SL_FEW_SIMDS", simds}};
    sl_gpu_compile_options c = SL_GPU_COMPILE_OPTIONS_INIT;
    c.name = file;
    c.defines = defines;
    c.define_count = SL_COUNT(defines);
    sl_gpu_library *l = bench_need(sl_gpu_library_new(b->gpu, text, size, &c, &b->err), b, file);
    sl_gpu_pipeline *p = bench_need(sl_gpu_pipeline_new(l, entry, constants, count, &b->err), b, entry);
    sl_gpu_library_free(l);
    free(text);
    return p;
}

static void encode(bench *b, sl_gpu_list *l, const sl_gpu_dispatch *d) {
    if (!sl_gpu_encode(l, d, &b->err))
        bench_fail(b, "attention");
}

/* Threadgroups that share a kv head's queries. */
static uint32_t tiles_of(const heads *h, int32_t at_once) {
    return (uint32_t)((h->heads / h->kv_heads + at_once - 1) / at_once);
}

enum { BINDINGS = 13 + SL_SLAB_COUNT };

/* Slots that all kernels share; n of them so far. */
static size_t bind_slabs(const memory *m, sl_gpu_binding *bind, size_t n) {
    for (int i = 0; i < SL_SLAB_COUNT; i++)
        bind[n++] = (sl_gpu_binding){.slot = SL_SLAB_FIRST + i, .buffer = m->kv_at};
    return n;
}

static void add_decode(bench *b, sl_gpu_list *l, memory *m, sl_gpu_pipeline *splits, sl_gpu_pipeline *combine,
                       int32_t layer) {
    uint32_t tiles = tiles_of(&m->h, SL_DECODE_HEADS(m->h.dim));
    uint64_t dst = (uint64_t)(m->h.heads * m->h.dim) * 4;
    sl_gpu_binding bind[BINDINGS] = {{.slot = 0, .bytes = &m->args, .length = sizeof m->args},
                                     {.slot = 1, .buffer = m->q_at},
                                     {.slot = 2, .buffer = m->partial_at},
                                     {.slot = 3, .buffer = m->step_at}};
    encode(b, l,
           &(sl_gpu_dispatch){.pipeline = splits,
                              .groups = {m->args.splits, (uint32_t)m->h.kv_heads * tiles, 1},
                              .threads = {SL_ATTENTION_THREADS, 1, 1},
                              .bindings = bind,
                              .binding_count = bind_slabs(m, bind, 4)});
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

/* What the kernel does not change is q's memory, whatever it is called. */
static void add_few(bench *b, sl_gpu_list *l, memory *m, sl_gpu_pipeline *p, int32_t layer) {
    uint32_t groups = (uint32_t)m->h.kv_heads * tiles_of(&m->h, SL_FEW_HEADS);
    uint64_t dst = (uint64_t)(m->rows * m->h.heads * m->h.dim) * 4;
    kernel_few_attention f = kernel_few_attention_of(m->h.dim, b->info.max_threadgroup_memory);
    sl_gpu_binding bind[BINDINGS] = {{.slot = 0, .bytes = &m->args, .length = sizeof m->args},
                                     {.slot = 2, .buffer = m->partial_at},
                                     {.slot = 3, .buffer = m->step_at},
                                     {.slot = 11, .buffer = m->dst_at, .offset = (uint64_t)layer * dst, .length = dst},
                                     {.slot = 12, .buffer = m->counters_at}};
    size_t n = 5;
    for (int slot = 1; slot <= 10; slot++)
        if (slot != 2 && slot != 3)
            bind[n++] = (sl_gpu_binding){.slot = slot, .buffer = m->q_at};
    encode(b, l,
           &(sl_gpu_dispatch){.pipeline = p,
                              .groups = {m->args.splits, groups, (uint32_t)m->rows},
                              .threads = {f.simds * SL_SIMD, 1, 1},
                              .bindings = bind,
                              .binding_count = bind_slabs(m, bind, n),
                              .lengths = (sl_gpu_threadgroup_length[]){{0, f.bytes}},
                              .length_count = 1});
}

static void poison(bench *b, sl_gpu_list *l, const memory *m) {
    uint64_t bytes = (uint64_t)m->layers * (uint64_t)(m->rows * m->h.heads * m->h.dim) * 4;
    if (!sl_gpu_encode_fill(l, m->dst_at, 0, bytes, 0xff, &b->err))
        bench_fail(b, "attention");
}

static double time_few(bench *b, memory *m, bool alone) {
    char entry[64];
    snprintf(entry, sizeof entry, "attention_few_%d", m->h.dim);
    static const int ids[] = {SL_FC_PREPARE, SL_FC_NORM_Q, SL_FC_NORM_K};
    sl_gpu_constant c[SL_COUNT(ids)];
    for (size_t i = 0; i < SL_COUNT(ids); i++)
        c[i] = (sl_gpu_constant){.id = ids[i], .type = SL_GPU_BOOL, .value.b = alone};
    sl_gpu_pipeline *p = pipeline_of(b, &m->h, "attention_few.metal", entry, c, SL_COUNT(ids));
    sl_gpu_list *l = bench_need(sl_gpu_begin(b->stream, entry, &b->err), b, entry);
    poison(b, l, m);
    m->args.splits = kernel_few_plan_of(m->rows, m->h.heads, m->h.kv_heads).splits;
    for (int32_t i = 0; i < m->layers; i++) {
        m->args.layer = (uint32_t)i;
        add_few(b, l, m, p, i);
    }
    double seconds = bench_time(b, l) / m->layers;
    sl_gpu_pipeline_free(p);
    return seconds;
}

static double time_decode(bench *b, memory *m) {
    char entry[64];
    snprintf(entry, sizeof entry, "attention_decode_f16_%d", m->h.dim);
    sl_gpu_pipeline *splits = pipeline_of(b, &m->h, "attention_decode.metal", entry, NULL, 0);
    sl_gpu_pipeline *combine = pipeline_of(b, &m->h, "attention_decode.metal", "attention_combine", NULL, 0);
    sl_gpu_list *l = bench_need(sl_gpu_begin(b->stream, entry, &b->err), b, entry);
    poison(b, l, m);
    m->args.splits = (uint32_t)((m->tokens - 1) / SL_ATTENTION_SPLIT + 1);
    for (int32_t i = 0; i < m->layers; i++) {
        m->args.layer = (uint32_t)i;
        add_decode(b, l, m, splits, combine, i);
    }
    double seconds = bench_time(b, l) / m->layers;
    sl_gpu_pipeline_free(splits);
    sl_gpu_pipeline_free(combine);
    return seconds;
}

static bool put_decode(const memory *m, const char *kernel, double seconds, double reads, double error) {
    double bytes = 2.0 * m->tokens * m->rows * m->h.kv_heads * (double)m->kv.head_bytes;
    bool right = error <= 1e-4;
    printf("%-20s %-7s %6d tokens x%-2d x%-4d %9.2f us %9.1f GB/s %6.1f %% of %.0f  error %.1e%s\n", m->h.name, kernel,
           m->tokens, m->rows, m->layers, seconds * 1e6, bytes / seconds * 1e-9, 100 * bytes / seconds / reads,
           reads * 1e-9, error, right ? "" : "  WRONG");
    fflush(stdout);
    return right;
}

/* The kernel that prepares, too, is only timed: it changes what is in the pages. */
static bool decode(bench *b, heads h, int32_t tokens) {
    memory m = make_memory(b, h, tokens, 1);
    uint64_t layer = (uint64_t)m.pages * 2 * m.kv.plane_bytes;
    double reads = bench_reads(b, m.kv_at, layer, m.layers, m.dst_at), seconds = time_decode(b, &m);
    bool right = put_decode(&m, "decode", seconds, reads, check(b, &m));
    if (strcmp(b->info.device, "metal") != 0) {
        seconds = time_few(b, &m, false);
        right &= put_decode(&m, "few", seconds, reads, check(b, &m));
        put_decode(&m, "alone", time_few(b, &m, true), reads, 0);
    }
    free_memory(&m);
    return right;
}
/* ---- blocks of rows ---------------------------------------------------------------------------------------------- */

static bool run_prefill(bench *b, memory *m, bool large) {
    char entry[64];
    uint32_t at_once = large ? kernel_large_attention_of(m->h.heads, m->h.kv_heads).heads : m->h.dim <= 128 ? 2 : 1;
    uint32_t threads = large ? SL_ATTENTION_LARGE_THREADS : SL_ATTENTION_THREADS;
    uint32_t blocks = (uint32_t)((m->rows + SL_ATTENTION_ROWS - 1) / SL_ATTENTION_ROWS);
    uint32_t each = large ? threads / SL_SIMD / at_once : 1;
    if (large)
        snprintf(entry, sizeof entry, "attention_large_f16_%d", m->h.dim);
    else
        snprintf(entry, sizeof entry, "attention_prefill_f16_%d_%u", m->h.dim, at_once);
    sl_gpu_pipeline *p =
        pipeline_of(b, &m->h, large ? "attention_large.metal" : "attention_prefill.metal", entry, NULL, 0);
    sl_gpu_list *l = bench_need(sl_gpu_begin(b->stream, entry, &b->err), b, entry);
    uint64_t dst = (uint64_t)(m->rows * m->h.heads * m->h.dim) * 4;
    poison(b, l, m);
    for (int32_t i = 0; i < m->layers; i++) {
        m->args.layer = (uint32_t)i;
        sl_gpu_binding bind[6 + SL_SLAB_COUNT] = {
            {.slot = 0, .bytes = &m->args, .length = sizeof m->args},
            {.slot = 1, .buffer = m->q_at},
            {.slot = 2, .buffer = m->dst_at, .offset = (uint64_t)i * dst, .length = dst},
            {.slot = 3, .buffer = m->step_at},
            {.slot = 4, .buffer = m->q_at},
            {.slot = 5, .buffer = m->q_at}};
        for (int k = 0; k < SL_SLAB_COUNT; k++)
            bind[6 + k] = (sl_gpu_binding){.slot = SL_SLAB_FIRST + k, .buffer = m->kv_at};
        encode(b, l,
               &(sl_gpu_dispatch){.pipeline = p,
                                  .groups = {(uint32_t)m->h.heads / at_once, (blocks + each - 1) / each, 1},
                                  .threads = {threads, 1, 1},
                                  .bindings = bind,
                                  .binding_count = 6 + SL_SLAB_COUNT});
    }
    double seconds = bench_time(b, l) / m->layers, e = check(b, m);
    double seen = ((double)m->tokens - m->rows + (m->rows + 1) / 2.0) * m->rows;
    printf("%-20s %-7s %6d rows      x%-4d %9.2f us %9.1f TFLOP/s                 error %.1e%s\n", m->h.name,
           large ? "large" : "prefill", m->rows, m->layers, seconds * 1e6,
           4 * seen * m->h.heads * m->h.dim / seconds * 1e-12, e, e <= 2e-2 ? "" : "  WRONG");
    fflush(stdout);
    sl_gpu_pipeline_free(p);
    return e <= 2e-2;
}

static bool prefill(bench *b, heads h, int32_t rows) {
    memory m = make_memory(b, h, rows, rows);
    bool right = run_prefill(b, &m, false);
    if (strcmp(b->info.device, "metal") != 0)
        right &= run_prefill(b, &m, true);
    free_memory(&m);
    return right;
}

bool bench_attention(bench *b) {
    static const int32_t tokens[] = {128, 512, 2048}, rows[] = {512, 2048};
    bool right = true;
    for (size_t i = 0; i < SL_COUNT(shapes); i++) {
        for (size_t k = 0; k < SL_COUNT(tokens) && tokens[k] < b->opt.tokens; k++)
            right &= decode(b, shapes[i], tokens[k]);
        right &= decode(b, shapes[i], b->opt.tokens);
        for (size_t k = 0; k < SL_COUNT(rows) && rows[k] <= b->opt.tokens; k++)
            right &= prefill(b, shapes[i], rows[k]);
    }
    return right;
}

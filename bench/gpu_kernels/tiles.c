/* Products with many rows of x: 4096 of them with one matrix of 4096 x 4096; 512 with those of an attention layer,
 * other matrices every time; and 16, 32, 80 and 256 for each expert of 768 x 2048, also gate and up in one.
 * matmul.metal beside matmul_large.metal, as shares of what fragments that stay in registers reach in the same run.
 * Elements of the result are compared with float64. */
#include "operand.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHECKED = 40, TIMES = 8, TIMES_MANY = 48 };

/* of: bits of what it is for */
enum { DENSE = 1, EXPERTS = 2 };

typedef struct kernel {
    const char *file, *prefix;
    int of, tokens, rows, threads, matrices; /* matrices: of which a threadgroup has rows */
} kernel;

static const kernel known[] = {
    {"matmul.metal", "matmul", DENSE, SL_MATMUL_TOKENS, SL_MATMUL_ROWS, SL_MATMUL_THREADS, 1},
    {"matmul.metal", "matmul_expert", EXPERTS, SL_MATMUL_TOKENS, SL_MATMUL_ROWS, SL_MATMUL_THREADS, 1},
    {"matmul_large.metal", "matmul_large", DENSE, SL_LARGE_TOKENS, SL_LARGE_ROWS, SL_LARGE_THREADS, 1},
    {"matmul_large.metal", "matmul_thin", DENSE, SL_LARGE_TOKENS, SL_THIN_ROWS, SL_THIN_THREADS, 1},
    {"matmul_large.metal", "matmul_expert_large", EXPERTS, SL_LARGE_TOKENS, SL_LARGE_ROWS, SL_LARGE_THREADS, 1},
    {"matmul_large.metal", "matmul_gate_up", EXPERTS, SL_LARGE_TOKENS, SL_LARGE_ROWS / 2, SL_LARGE_THREADS, 2},
};

/* x of all rows as halves, and what goes with it. */
typedef struct rows {
    operand o;
    int experts, each; /* rows of each; experts 1: dense */
    int times;         /* dispatches of a list; dense: with as many matrices, where there are */
    uint16_t *x;
    sl_gpu_buffer *x_at, *unscale_at, *y_at, *step_at, *table_at, *tiles_at, *pairs_at, *count_at, *done_at;
} rows;

static sl_gpu_buffer *put_new(bench *b, const void *from, uint64_t bytes) {
    sl_gpu_buffer *to = bench_need(sl_gpu_alloc(b->gpu, bytes, SL_GPU_PRIVATE, &b->err), b, "tiles");
    if (from && !sl_gpu_put(to, 0, from, bytes, &b->err))
        bench_fail(b, "tiles");
    return to;
}

static void put_lists(bench *b, rows *r) {
    int n = r->experts * r->each;
    uint64_t *table = calloc((size_t)r->experts * SL_PARTS, 8);
    int32_t *pairs = malloc((size_t)n * 4);
    float *ones = malloc((size_t)n * 4);
    for (int e = 0; e < r->experts; e++)
        for (int p = 0; p < 3; p++) /* up is the same matrix as gate */
            table[e * SL_PARTS + p] = table[e * SL_PARTS + 3 + p] =
                r->o.part[p] ? (uint64_t)e * r->o.apart + r->o.at[p] + 1 : 0;
    for (int i = 0; i < n; i++) {
        pairs[i] = i;
        ones[i] = 1;
    }
    sl_step_head head = {.rows = n, .outs = n, .seqs = 1};
    r->table_at = put_new(b, table, (uint64_t)r->experts * SL_PARTS * 8);
    r->pairs_at = put_new(b, pairs, (uint64_t)n * 4);
    r->unscale_at = put_new(b, ones, (uint64_t)n * 4);
    r->step_at = put_new(b, &head, sizeof head);
    r->done_at = put_new(b, NULL, (uint64_t)n);
    free(table);
    free(pairs);
    free(ones);
}

static rows rows_new(bench *b, const subject *s, int64_t out, int64_t cols, int experts, int each) {
    rows r = {.o = operand_new(b, s, out, cols, experts), .experts = experts, .each = each};
    uint64_t n = (uint64_t)experts * (uint64_t)each * (uint64_t)cols, seed = 99;
    r.x = malloc(n * 2);
    for (uint64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        r.x[i] = sl_f32_to_f16((float)(seed >> 40) / (float)(1 << 23) - 1.0f);
    }
    r.x_at = put_new(b, r.x, n * 2);
    r.y_at = put_new(b, NULL, (uint64_t)experts * (uint64_t)each * (uint64_t)out * 4);
    put_lists(b, &r);
    return r;
}

static void rows_free(rows *r) {
    sl_gpu_buffer *all[] = {r->x_at,     r->unscale_at, r->y_at,     r->step_at, r->table_at,
                            r->tiles_at, r->pairs_at,   r->count_at, r->done_at};
    for (size_t i = 0; i < SL_COUNT(all); i++)
        sl_gpu_buffer_free(all[i]);
    operand_free(&r->o);
    free(r->x);
}

static uint32_t put_tiles(bench *b, rows *r, int tokens) {
    uint32_t n = 0, counts[2] = {0};
    sl_pair_tile *t = calloc((size_t)r->experts * (size_t)(r->each / tokens + 1), sizeof *t);
    for (int e = 0; e < r->experts; e++)
        for (int i = 0; i < r->each; i += tokens) {
            uint32_t first = (uint32_t)(e * r->each + i), end = (uint32_t)((e + 1) * r->each);
            t[n++] = (sl_pair_tile){e, first, end - first < (uint32_t)tokens ? end : first + (uint32_t)tokens, 0};
        }
    sl_gpu_buffer_free(r->tiles_at);
    sl_gpu_buffer_free(r->count_at);
    counts[0] = n;
    r->tiles_at = put_new(b, t, (uint64_t)n * sizeof *t);
    r->count_at = put_new(b, counts, sizeof counts);
    free(t);
    return n;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static sl_gpu_pipeline *pipeline_of(bench *b, const kernel *k, const rows *r) {
    size_t size;
    char *text = bench_need(kernel_source(k->file, &r->o.f, 1, &size, &b->err), b, k->file);
    char entry[96];
    sl_gpu_define defines[] = {{"SL_TILE_FRAGMENTS", NULL}};
    sl_gpu_compile_options c = SL_GPU_COMPILE_OPTIONS_INIT;
    c.name = k->file;
    c.defines = defines;
    c.define_count = strcmp(b->info.device, "metal") != 0;
    kernel_entry(entry, sizeof entry, k->prefix, &r->o.f);
    sl_gpu_library *l = bench_need(sl_gpu_library_new(b->gpu, text, size, &c, &b->err), b, k->file);
    sl_gpu_pipeline *p = bench_need(sl_gpu_pipeline_new(l, entry, NULL, 0, &b->err), b, entry);
    sl_gpu_library_free(l);
    free(text);
    return p;
}

static sl_weights_args weights_of(const operand *o) {
    return (sl_weights_args){.row_bytes = o->m.row_bytes[0],
                             .side_bytes = o->m.row_bytes[1],
                             .rows = (uint32_t)o->m.rows,
                             .cols = (uint32_t)o->m.cols,
                             .group_shift = 6};
}

static void encode(bench *b, sl_gpu_list *l, const kernel *k, sl_gpu_pipeline *p, sl_gpu_binding *bind, size_t n,
                   const rows *r, uint32_t tiles) {
    sl_gpu_dispatch d = {.pipeline = p,
                         .groups = {(uint32_t)((r->o.m.rows + k->rows - 1) / k->rows), tiles, 1},
                         .threads = {(uint32_t)k->threads, 1, 1},
                         .bindings = bind,
                         .binding_count = n};
    if (!sl_gpu_encode(l, &d, &b->err))
        bench_fail(b, k->file);
}

/* The matrix-th of those that lie one behind the other. */
static void add_dense(bench *b, sl_gpu_list *l, const kernel *k, sl_gpu_pipeline *p, const rows *r, int matrix) {
    sl_matmul_args a = {.w = weights_of(&r->o), .x_stride = (uint64_t)r->o.m.cols, .y_stride = (uint64_t)r->o.m.rows};
    sl_gpu_binding bind[9] = {{.slot = 0, .bytes = &a, .length = sizeof a}};
    operand_bind(&r->o, matrix, bind + 1);
    sl_gpu_buffer *rest[] = {r->x_at, r->unscale_at, r->y_at, r->unscale_at, r->step_at};
    for (int i = 0; i < 5; i++)
        bind[4 + i] = (sl_gpu_binding){.slot = 4 + i, .buffer = rest[i]};
    encode(b, l, k, p, bind, 9, r, (uint32_t)((r->each + k->tokens - 1) / k->tokens));
}

static void add_grouped(bench *b, sl_gpu_list *l, const kernel *k, sl_gpu_pipeline *p, rows *r, uint32_t tiles) {
    sl_expert_args a = {.w = weights_of(&r->o),
                        .x_stride = (uint64_t)r->o.m.cols,
                        .y_stride = (uint64_t)r->o.m.rows,
                        .experts = (uint32_t)r->experts,
                        .top_k = 1,
                        .per_pair = 1};
    sl_gpu_buffer *rest[] = {r->table_at, r->tiles_at, r->pairs_at, r->x_at,     r->unscale_at,
                             r->y_at,     r->done_at,  r->step_at,  r->count_at, r->unscale_at};
    sl_gpu_binding bind[12 + SL_SLAB_COUNT] = {{.slot = 0, .bytes = &a, .length = sizeof a}};
    size_t n = 1;
    for (int i = 0; i < 10; i++)
        if (k->matrices == 1 || i != 6) /* slot 7: of matmul_expert */
            bind[n++] = (sl_gpu_binding){.slot = 1 + i, .buffer = rest[i]};
    if (k->matrices == 2)
        bind[n++] = (sl_gpu_binding){.slot = 11, .buffer = r->unscale_at};
    for (int i = 0; i < SL_SLAB_COUNT; i++)
        bind[n++] = (sl_gpu_binding){.slot = SL_SLAB_FIRST + i, .buffer = r->o.weights};
    encode(b, l, k, p, bind, n, r, tiles);
}

/* Elements of the last and of other rows against float64; by the size of what is summed. Of gate and up, which are the
 * same matrix here: silu(v) * v. */
static double check(bench *b, const kernel *k, rows *r) {
    float *w = malloc((size_t)r->o.m.cols * 4), got;
    double worst = 0;
    for (int64_t i = 0; i < CHECKED; i++) {
        int64_t n = (int64_t)r->experts * r->each, row = i ? i * 2654435761 % n : n - 1;
        int64_t c = i * 40503 % r->o.m.rows;
        double sum = 0, squares = 0;
        sl_format_get(r->o.m.format)->dequantize(&r->o.m, c, 0, r->o.m.cols, w);
        for (int64_t j = 0; j < r->o.m.cols; j++) {
            double p = (double)w[j] * sl_f16_to_f32(r->x[row * r->o.m.cols + j]);
            sum += p;
            squares += p * p;
        }
        if (!sl_gpu_get(r->y_at, (uint64_t)(row * r->o.m.rows + c) * 4, &got, 4, &b->err))
            bench_fail(b, "tiles");
        if (k->matrices ==
            2) { /* its derivative is 2 v at most, so the error is as large as that of v for |v| >= 1/2 */
            double v = sum;
            sum = v * v / (1 + exp(-v));
            squares *= 4 * fmax(1, v * v);
        }
        worst = operand_worse(worst, fabs(got - sum) / sqrt(squares));
    }
    free(w);
    return worst;
}

static bool run_kernel(bench *b, const kernel *k, const char *format, rows *r, double peak) {
    sl_gpu_pipeline *p = pipeline_of(b, k, r);
    uint32_t tiles = put_tiles(b, r, k->tokens);
    sl_gpu_list *l = bench_need(sl_gpu_begin(b->stream, k->file, &b->err), b, k->file);
    if (!sl_gpu_encode_fill(l, r->y_at, 0, (uint64_t)r->experts * (uint64_t)r->each * (uint64_t)r->o.m.rows * 4, 0xff,
                            &b->err))
        bench_fail(b, k->file);
    for (int i = 0; i < r->times; i++) {
        if (k->of == EXPERTS)
            add_grouped(b, l, k, p, r, tiles);
        else
            add_dense(b, l, k, p, r, i % r->o.n);
    }
    double seconds = bench_time(b, l) / r->times, e = check(b, k, r);
    double flops = 2.0 * k->matrices * r->experts * r->each * (double)r->o.m.rows * (double)r->o.m.cols;
    double bytes = (double)k->matrices * r->experts * (double)r->o.all;
    printf(
        "%-11s %-19s %5lld x %-5lld %4d rows x%-3d %8.2f us %6.1f TFLOP/s %5.1f %% of %.0f %6.0f GB/s  error %.1e%s\n",
        format, k->prefix, (long long)r->o.m.rows, (long long)r->o.m.cols, r->each, r->experts, seconds * 1e6,
        flops / seconds * 1e-12, 100 * flops / seconds / peak, peak * 1e-12, bytes / seconds * 1e-9, e,
        e <= 2e-3 ? "" : "  WRONG");
    fflush(stdout);
    sl_gpu_pipeline_free(p);
    return e <= 2e-3;
}

/* ---- what the matrix units do ------------------------------------------------------------------------------------ */

static const char peak_kernel[] =
    "#include <metal_simdgroup_matrix>\n"
    "using namespace metal;\n"
    "kernel void peak(device float *to [[buffer(0)]], constant uint &times [[buffer(1)]],\n"
    "                 uint at [[thread_position_in_grid]]) {\n"
    "    float4 c[8];\n"
    "    for (uint i = 0; i < 8; i++) c[i] = float4(0.0f);\n"
    "    uint4 a = uint4(at, at * 3, at * 5, at * 7) & 0x3bff3bffu;\n"
    "    uint2 b = uint2(at * 11, at * 13) & 0x3bff3bffu;\n"
    "    for (uint n = 0; n < times; n++) {\n"
    "#pragma unroll\n"
    "        for (uint i = 0; i < 8; i++) c[i] = simdgroup_mma_16x8x16(c[i], a, b);\n"
    "    }\n"
    "    float4 s = c[0];\n"
    "    for (uint i = 1; i < 8; i++) s += c[i];\n"
    "    to[at] = s.x + s.y + s.z + s.w;\n"
    "}\n";

static double peak_rate(bench *b) {
    enum { GROUPS = 528, THREADS = 256, STEPS = 2048 };
    bool small = strcmp(b->info.device, "soft") == 0;
    uint32_t steps = small ? 2 : STEPS, groups = small ? 2 : GROUPS;
    sl_gpu_library *l =
        bench_need(sl_gpu_library_new(b->gpu, peak_kernel, sizeof peak_kernel - 1, NULL, &b->err), b, "peak");
    sl_gpu_pipeline *p = bench_need(sl_gpu_pipeline_new(l, "peak", NULL, 0, &b->err), b, "peak");
    sl_gpu_buffer *to = put_new(b, NULL, (uint64_t)GROUPS * THREADS * 4);
    sl_gpu_list *list = bench_need(sl_gpu_begin(b->stream, "peak", &b->err), b, "peak");
    sl_gpu_binding bind[] = {{.slot = 0, .buffer = to}, {.slot = 1, .bytes = &steps, .length = sizeof steps}};
    sl_gpu_dispatch d = {
        .pipeline = p, .groups = {groups, 1, 1}, .threads = {THREADS, 1, 1}, .bindings = bind, .binding_count = 2};
    if (!sl_gpu_encode(list, &d, &b->err))
        bench_fail(b, "peak");
    double rate = 2.0 * 16 * 8 * 16 * 8 * steps * groups * (THREADS / 32) / bench_time(b, list);
    sl_gpu_buffer_free(to);
    sl_gpu_pipeline_free(p);
    sl_gpu_library_free(l);
    printf("fragments of half in registers: %.1f TFLOP/s\n", rate * 1e-12);
    return rate;
}

/* ---- rows of the table ------------------------------------------------------------------------------------------- */

bool bench_tiles(bench *b) {
    /* rows and columns of W, experts, rows of x */
    static const int shapes[][4] = {{4096, 4096, 1, 4096}, {4096, 2048, 1, 512}, {2048, 4096, 1, 512},
                                    {512, 2048, 1, 512},   {768, 2048, 128, 16}, {768, 2048, 128, 32},
                                    {768, 2048, 64, 80},   {768, 2048, 64, 256}};
    bool right = true, metal = strcmp(b->info.device, "metal") == 0, small = b->opt.rows != 0;
    double peak = metal ? NAN : peak_rate(b);
    for (size_t s = 0; s < SUBJECTS; s++)
        for (size_t i = 0; i < SL_COUNT(shapes); i++) {
            const int *f = shapes[i];
            int experts = small && f[2] > 1 ? 2 : f[2], each = small && f[3] > 256 ? 100 : f[3];
            rows r =
                rows_new(b, &bench_subjects[s], small ? b->opt.rows : f[0], small ? b->opt.cols : f[1], experts, each);
            r.times = f[2] == 1 && f[3] < 4096 ? TIMES_MANY : TIMES;
            for (size_t k = 0; k < SL_COUNT(known); k++)
                if (known[k].of == (experts > 1 ? EXPERTS : DENSE) && (!metal || known[k].file == known[0].file))
                    right &= run_kernel(b, &known[k], bench_subjects[s].name, &r, peak);
            rows_free(&r);
        }
    return right;
}

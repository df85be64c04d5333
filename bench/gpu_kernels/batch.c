/* Products of 16, 32 and 64 rows that decode with matrices of a model of 2048: batch.metal, with as many tiles, blocks
 * and sharing SIMD-groups as it has variants, beside matmul.metal; and the experts of 32 such rows, 8 of 128 each. As
 * shares of what the device reads. Elements are compared with float64. */
#include "operand.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MOST = 64, CHECKED = 48, EXPERTS = 128, TOP_K = 8, EXPERT_ROWS = 32, LAYERS = 3 };

static sl_gpu_buffer *put_new(bench *b, const void *from, uint64_t bytes) {
    sl_gpu_buffer *to = bench_need(sl_gpu_alloc(b->gpu, bytes, SL_GPU_PRIVATE, &b->err), b, "batch");
    if (from && !sl_gpu_put(to, 0, from, bytes, &b->err))
        bench_fail(b, "batch");
    return to;
}

static sl_gpu_library *library_of(bench *b, const operand *o, const char *file) {
    size_t size;
    char *text = bench_need(kernel_source(file, &o->f, 1, &size, &b->err), b, file);
    bool roomy = b->info.max_threadgroup_memory >= 40 << 10;
    sl_gpu_define defines[] = {{"SL_BATCH_LOTS", roomy ? "4" : "3"}, {"SL_TILE_FRAGMENTS", NULL}};
    sl_gpu_compile_options c = SL_GPU_COMPILE_OPTIONS_INIT;
    c.name = file;
    c.defines = defines;
    c.define_count = 2;
    sl_gpu_library *l = bench_need(sl_gpu_library_new(b->gpu, text, size, &c, &b->err), b, file);
    free(text);
    return l;
}

static sl_gpu_pipeline *pipeline_of(bench *b, sl_gpu_library *l, const char *entry, const sl_gpu_constant *constants,
                                    size_t n) {
    return bench_need(sl_gpu_pipeline_new(l, entry, constants, n, &b->err), b, entry);
}

static sl_weights_args weights_of(const operand *o) {
    return (sl_weights_args){.row_bytes = o->m.row_bytes[0],
                             .side_bytes = o->m.row_bytes[1],
                             .rows = (uint32_t)o->m.rows,
                             .cols = (uint32_t)o->m.cols,
                             .group_shift = 6};
}

static float *random_rows(int64_t rows, int64_t cols) {
    float *x = malloc((size_t)(rows * cols) * 4);
    uint64_t s = 99;
    for (int64_t i = 0; i < rows * cols; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(s >> 40) / (float)(1 << 23) - 1.0f;
    }
    return x;
}

/* *squares: of its terms. */
static double product_of(const operand *o, int64_t row, const float *x, double *squares) {
    float *w = malloc((size_t)o->m.cols * 4);
    double sum = 0;
    *squares = 0;
    sl_format_get(o->m.format)->dequantize(&o->m, row, 0, o->m.cols, w);
    for (int64_t k = 0; k < o->m.cols; k++) {
        double p = (double)w[k] * x[k];
        sum += p;
        *squares += p * p;
    }
    free(w);
    return sum;
}

static double error_of(const operand *o, int64_t row, const float *x, float got) {
    double squares, sum = product_of(o, row, x, &squares);
    return fabs(got - sum) / sqrt(squares);
}

/* Of silu(v) * v: gate and up are the same matrix. */
static double gated_error(const operand *o, int64_t row, const float *x, float got) {
    double squares, v = product_of(o, row, x, &squares);
    return fabs(got - v / (1 + exp(-v)) * v) / (1 + v * v + squares);
}

/* ---- x prepared -------------------------------------------------------------------------------------------------- */

typedef struct prepared {
    sl_gpu_buffer *x_at, *lines, *sums, *unscale, *half, *half_unscale, *step;
    float *x;
    int64_t rows, cols;
} prepared;

static void encode(bench *b, sl_gpu_list *l, sl_gpu_pipeline *p, uint32_t gx, uint32_t gy, uint32_t threads,
                   const sl_gpu_binding *bind, size_t n) {
    sl_gpu_dispatch d = {
        .pipeline = p, .groups = {gx, gy, 1}, .threads = {threads, 1, 1}, .bindings = bind, .binding_count = n};
    if (!sl_gpu_encode(l, &d, &b->err))
        bench_fail(b, "batch");
}

static void encode_lines(bench *b, sl_gpu_list *l, sl_gpu_pipeline *p, const prepared *r, int64_t grid) {
    sl_rows_args a = {.src_stride = (uint64_t)r->cols, .cols = (uint32_t)r->cols, .per_row = 1};
    sl_gpu_binding bind[] = {{.slot = 0, .bytes = &a, .length = sizeof a},
                             {.slot = 1, .buffer = r->x_at},
                             {.slot = 2, .buffer = r->lines},
                             {.slot = 3, .buffer = r->sums},
                             {.slot = 4, .buffer = r->unscale},
                             {.slot = 5, .buffer = r->step}};
    encode(b, l, p, (uint32_t)grid, 1, SL_BATCH_LINE_THREADS, bind, 6);
}

/* Microseconds of a preparation. */
static double prepare(bench *b, const operand *o, sl_gpu_library *l, prepared *r, bool low) {
    enum { TIMES = 64 };
    char entry[64];
    snprintf(entry, sizeof entry, "batch_lines_%s%s", low ? "low_" : "", o->f.name);
    sl_gpu_pipeline *p = pipeline_of(b, l, entry, NULL, 0);
    sl_gpu_list *list = bench_need(sl_gpu_begin(b->stream, entry, &b->err), b, entry);
    for (int i = 0; i < TIMES; i++)
        encode_lines(b, list, p, r, (r->rows + 7) / 8 * 8);
    double seconds = bench_time(b, list) / TIMES;
    sl_gpu_pipeline_free(p);
    return seconds * 1e6;
}

static prepared prepared_new(bench *b, int64_t rows, int64_t cols) {
    prepared r = {.rows = rows, .cols = cols, .x = random_rows(rows, cols)};
    int64_t padded = (rows + 31) / 32 * 32;
    sl_step_head head = {.rows = (int32_t)rows, .outs = (int32_t)rows, .seqs = 1};
    uint16_t *half = malloc((size_t)(rows * cols) * 2);
    float *ones = malloc((size_t)rows * 4);
    for (int64_t i = 0; i < rows * cols; i++)
        half[i] = sl_f32_to_f16(r.x[i]);
    for (int64_t i = 0; i < rows; i++)
        ones[i] = 1;
    r.x_at = put_new(b, r.x, (uint64_t)(rows * cols) * 4);
    r.half = put_new(b, half, (uint64_t)(rows * cols) * 2);
    r.half_unscale = put_new(b, ones, (uint64_t)rows * 4);
    r.lines = put_new(b, NULL, (uint64_t)(padded * cols) * 4);
    r.sums = put_new(b, NULL, (uint64_t)(padded * cols) / 8);
    r.unscale = put_new(b, NULL, (uint64_t)padded * 4);
    r.step = put_new(b, &head, sizeof head);
    free(half);
    free(ones);
    return r;
}

static void prepared_free(prepared *r) {
    sl_gpu_buffer *all[] = {r->x_at, r->lines, r->sums, r->unscale, r->half, r->half_unscale, r->step};
    for (size_t i = 0; i < SL_COUNT(all); i++)
        sl_gpu_buffer_free(all[i]);
    free(r->x);
}

/* ---- dense ------------------------------------------------------------------------------------------------------- */

/* batch_<format>_t<t>_n<n> with `each` lots of tiles in a threadgroup; t 0: matmul.metal. */
typedef struct variant {
    int t, n, each;
} variant;

static double time_dense(bench *b, operand *o, sl_gpu_library *l, const prepared *r, const variant *v,
                         sl_gpu_buffer *y) {
    char entry[64];
    if (v->t)
        snprintf(entry, sizeof entry, "batch_t%d_n%d_%s", v->t, v->n, o->f.name);
    else
        kernel_entry(entry, sizeof entry, "matmul", &o->f);
    sl_gpu_pipeline *p = pipeline_of(b, l, entry, NULL, 0);
    sl_matvec_args a = {.w = weights_of(o), .x_stride = (uint64_t)o->m.cols, .y_stride = (uint64_t)o->m.rows};
    sl_gpu_list *list = bench_need(sl_gpu_begin(b->stream, entry, &b->err), b, entry);
    uint64_t y_bytes = (uint64_t)(r->rows * o->m.rows) * 4;
    for (int k = 0; k < o->n; k++) {
        sl_gpu_binding bind[10] = {{.slot = 0, .bytes = &a, .length = sizeof a}};
        operand_bind(o, k, bind + 1);
        sl_gpu_buffer *batch[] = {r->lines, r->sums, r->unscale, y, r->x_at, r->step};
        sl_gpu_buffer *tiles[] = {r->half, r->half_unscale, y, r->x_at, r->step};
        int n = v->t ? 6 : 5, to = v->t ? 3 : 2;
        for (int i = 0; i < n; i++)
            bind[4 + i] = (sl_gpu_binding){.slot = 4 + i,
                                           .buffer = v->t ? batch[i] : tiles[i],
                                           .offset = i == to ? (uint64_t)(k & 7) * y_bytes : 0,
                                           .length = i == to ? y_bytes : 0};
        uint32_t lot = (uint32_t)(v->t ? 16 * v->t * v->each : SL_MATMUL_ROWS);
        uint32_t rows = (uint32_t)(v->t ? 8 * v->n : SL_MATMUL_TOKENS);
        encode(b, list, p, ((uint32_t)o->m.rows + lot - 1) / lot, ((uint32_t)r->rows + rows - 1) / rows,
               v->t ? SL_BATCH_THREADS : SL_MATMUL_THREADS, bind, 4 + (size_t)n);
    }
    double seconds = bench_time(b, list) / o->n;
    sl_gpu_pipeline_free(p);
    return seconds;
}

static double check_dense(bench *b, const operand *o, const prepared *r, sl_gpu_buffer *y) {
    double worst = 0;
    uint64_t base = (uint64_t)((o->n - 1) & 7) * (uint64_t)(r->rows * o->m.rows) * 4;
    for (int64_t i = 0; i < CHECKED; i++) {
        int64_t row = i * 7 % r->rows, out = i ? i * 2654435761 % o->m.rows : o->m.rows - 1;
        float got;
        if (!sl_gpu_get(y, base + (uint64_t)(row * o->m.rows + out) * 4, &got, 4, &b->err))
            bench_fail(b, "y");
        worst = operand_worse(worst, error_of(o, out, r->x + row * r->cols, got));
    }
    return worst;
}

static bool run_dense(bench *b, const subject *s, const char *name, int64_t out, int64_t cols, int64_t rows,
                      const variant *list, size_t n) {
    operand o = operand_new(b, s, out, cols, b->opt.matrices);
    prepared r = prepared_new(b, rows, cols);
    sl_gpu_library *batch = library_of(b, &o, "batch.metal"), *tiles = library_of(b, &o, "matmul.metal");
    sl_gpu_buffer *y = put_new(b, NULL, (uint64_t)(8 * rows * out) * 4);
    double reads = bench_reads(b, o.weights, o.apart, o.n, y), lines = prepare(b, &o, batch, &r, false);
    bool right = true;
    printf("%-11s %-5s %6lldx%-5lld %2lld rows, lines %.1f us, a read %.1f us:", s->name, name, (long long)out,
           (long long)cols, (long long)rows, lines, (double)o.all / reads * 1e6);
    for (size_t i = 0; i < n; i++) {
        double seconds = time_dense(b, &o, list[i].t ? batch : tiles, &r, &list[i], y), e = check_dense(b, &o, &r, y);
        if (list[i].t)
            printf("  t%d n%d x%d %.1f", list[i].t, list[i].n, list[i].each, seconds * 1e6);
        else
            printf("  matmul %.1f", seconds * 1e6);
        right = right && e <= 2e-3;
        if (!(e <= 2e-3))
            printf(" WRONG %.1e", e);
    }
    printf("\n");
    fflush(stdout);
    sl_gpu_library_free(batch);
    sl_gpu_library_free(tiles);
    sl_gpu_buffer_free(y);
    prepared_free(&r);
    operand_free(&o);
    return right;
}

/* ---- experts ----------------------------------------------------------------------------------------------------- */

typedef struct listed {
    int32_t pairs[EXPERT_ROWS * TOP_K], expert[EXPERT_ROWS * TOP_K];
    sl_pair_tile tiles[EXPERT_ROWS * TOP_K];
    uint32_t counts[2];
    int distinct;
} listed;

/* Each row chooses TOP_K distinct experts by chance. */
static void choose(listed *l, int experts) {
    int32_t chosen[EXPERT_ROWS * TOP_K];
    uint64_t s = 5;
    for (int i = 0; i < EXPERT_ROWS * TOP_K; i++) {
        bool again = true;
        while (again) {
            s = s * 6364136223846793005u + 1442695040888963407u;
            chosen[i] = (int32_t)((s >> 33) % (uint64_t)experts);
            again = false;
            for (int j = i / TOP_K * TOP_K; j < i; j++)
                again = again || chosen[j] == chosen[i];
        }
    }
    uint32_t at = 0, tiles = 0;
    for (int32_t e = 0; e < experts; e++) {
        uint32_t first = at;
        for (int32_t i = 0; i < EXPERT_ROWS * TOP_K; i++)
            if (chosen[i] == e) {
                l->expert[at] = e;
                l->pairs[at++] = i;
            }
        l->distinct += at > first;
        for (uint32_t f = first; f < at; f += SL_BATCH_PAIRS)
            l->tiles[tiles++] = (sl_pair_tile){e, f, f + SL_BATCH_PAIRS < at ? f + SL_BATCH_PAIRS : at, 0};
    }
    l->counts[0] = tiles;
    l->counts[1] = at;
}

static bool run_experts(bench *b, const subject *s, bool gate_up, int64_t out, int64_t cols) {
    int experts = b->opt.rows ? TOP_K + 2 : EXPERTS, each = gate_up ? 2 : 1;
    operand o = operand_new(b, s, out, cols, LAYERS * experts * each);
    listed *l = calloc(1, sizeof *l);
    choose(l, experts);
    int64_t n = EXPERT_ROWS * TOP_K;
    prepared r = prepared_new(b, gate_up ? EXPERT_ROWS : n, cols);
    sl_gpu_library *library = library_of(b, &o, "batch.metal");
    double lines = prepare(b, &o, library, &r, true), reads = bench_reads(b, o.weights, o.apart, o.n, r.lines);
    prepare(b, &o, library, &r, true);
    sl_step_head head = {.rows = EXPERT_ROWS, .outs = EXPERT_ROWS, .seqs = 1};
    if (!sl_gpu_put(r.step, 0, &head, sizeof head, &b->err))
        bench_fail(b, "step");
    sl_gpu_buffer *y = put_new(b, NULL, (uint64_t)(n * out) * 4), *done = put_new(b, NULL, (uint64_t)n);
    sl_gpu_buffer *tiles = put_new(b, l->tiles, sizeof l->tiles), *pairs = put_new(b, l->pairs, sizeof l->pairs);
    sl_gpu_buffer *counts = put_new(b, l->counts, sizeof l->counts), *table[LAYERS];
    char entry[64];
    snprintf(entry, sizeof entry, "%s_%s", gate_up ? "batch_expert_gate_up" : "batch_expert", o.f.name);
    sl_gpu_constant leaves = {.id = SL_FC_LEAVES, .type = SL_GPU_BOOL, .value.b = true};
    sl_gpu_pipeline *p = pipeline_of(b, library, entry, &leaves, !gate_up);
    sl_expert_args a = {.w = weights_of(&o),
                        .y_stride = (uint64_t)out,
                        .experts = (uint32_t)experts,
                        .top_k = TOP_K,
                        .projection = gate_up ? 0 : 2,
                        .per_pair = !gate_up};
    sl_gpu_list *list = bench_need(sl_gpu_begin(b->stream, entry, &b->err), b, entry);
    for (int k = 0; k < LAYERS; k++) {
        uint64_t *t = calloc((size_t)experts * SL_PARTS, 8);
        for (int e = 0; e < experts; e++)
            for (int i = 0; i < 3 * each; i++)
                t[e * SL_PARTS + (gate_up ? i : 6 + i)] =
                    o.part[i % 3] ? (uint64_t)((k * experts + e) * each + i / 3) * o.apart + o.at[i % 3] + 1 : 0;
        table[k] = put_new(b, t, (uint64_t)experts * SL_PARTS * 8);
        free(t);
        sl_gpu_buffer *rest[] = {table[k], tiles, pairs,  r.lines, r.sums, r.unscale,
                                 y,        done,  r.step, counts,  r.x_at, r.x_at};
        sl_gpu_binding bind[12 + SL_SLAB_COUNT] = {{.slot = 0, .bytes = &a, .length = sizeof a}};
        size_t bound = 1;
        for (int i = 0; i < 12; i++)
            if (i != (gate_up ? 7 : 11)) /* done, or the bias of up */
                bind[bound++] = (sl_gpu_binding){.slot = 1 + i, .buffer = rest[i]};
        for (int i = 0; i < SL_SLAB_COUNT; i++)
            bind[bound++] = (sl_gpu_binding){.slot = SL_SLAB_FIRST + i, .buffer = o.weights};
        uint32_t lot = (gate_up ? 16 : 32) * (cols == 256 ? 4 : cols == 512 ? 2 : 1);
        encode(b, list, p, ((uint32_t)out + lot - 1) / lot, (uint32_t)(n / SL_BATCH_PAIRS + experts), SL_BATCH_THREADS,
               bind, bound);
    }
    double seconds = bench_time(b, list) / LAYERS, worst = 0;
    for (int64_t i = 0; i < CHECKED; i++) {
        int64_t place = i * 37 % n, row = i * 40503 % out, pair = l->pairs[place];
        float got;
        if (!sl_gpu_get(y, (uint64_t)((gate_up ? place : pair) * out + row) * 4, &got, 4, &b->err))
            bench_fail(b, "y");
        double e =
            gate_up ? gated_error(&o, row, r.x + pair / TOP_K * cols, got) : error_of(&o, row, r.x + place * cols, got);
        worst = operand_worse(worst, e);
    }
    double bytes = (double)l->distinct * each * (double)o.all;
    printf("%-11s experts %s %lldx%lld, %d pairs of %d experts, lines %.1f us: %.1f us, %.0f GB/s, %.1f %% of %.0f%s\n",
           s->name, gate_up ? "gate and up" : "down", (long long)out, (long long)cols, (int)n, l->distinct, lines,
           seconds * 1e6, bytes / seconds * 1e-9, 100 * bytes / seconds / reads, reads * 1e-9,
           worst <= 1e-4 ? "" : "  WRONG");
    fflush(stdout);
    sl_gpu_pipeline_free(p);
    sl_gpu_library_free(library);
    sl_gpu_buffer *all[] = {y, done, tiles, pairs, counts, table[0], table[1], table[2]};
    for (size_t i = 0; i < SL_COUNT(all); i++)
        sl_gpu_buffer_free(all[i]);
    free(l);
    prepared_free(&r);
    operand_free(&o);
    return worst <= 1e-4;
}

/* ---- rows of the table ------------------------------------------------------------------------------------------- */

bool bench_batch(bench *b) {
    static const struct {
        const char *name;
        int64_t out, cols;
    } shapes[] = {{"q", 4096, 2048}, {"k", 512, 2048}, {"o", 2048, 4096}, {"head", 151936, 2048}};
    static const variant thirty_two[] = {{0, 0, 0}, {1, 4, 1}, {2, 4, 1}, {1, 4, 4}, {2, 4, 4}, {1, 4, 2}, {2, 4, 2}};
    static const variant sixteen[] = {{0, 0, 0}, {1, 2, 1}, {2, 2, 1}, {1, 2, 4}, {2, 2, 4}};
    static const variant chosen[] = {{1, 4, 1}, {2, 4, 1}, {2, 4, 4}};
    bool right = true, small = b->opt.rows != 0;
    for (size_t s = 0; s < SUBJECTS; s++) {
        const subject *of = &bench_subjects[s];
        bool full = strcmp(of->name, "Q4_0") == 0;
        for (size_t i = 0; i < (small ? 1 : SL_COUNT(shapes)); i++) {
            int64_t out = small ? b->opt.rows : shapes[i].out, cols = small ? b->opt.cols : shapes[i].cols;
            right &= run_dense(b, of, shapes[i].name, out, cols, 32, full ? thirty_two : chosen,
                               full ? SL_COUNT(thirty_two) : SL_COUNT(chosen));
            if (full) {
                right &= run_dense(b, of, shapes[i].name, out, cols, 16, sixteen, SL_COUNT(sixteen));
                right &= run_dense(b, of, shapes[i].name, out, cols, 64, thirty_two, 5);
            }
        }
        right &= run_experts(b, of, true, small ? b->opt.rows : 768, small ? b->opt.cols : 2048);
        right &= run_experts(b, of, false, small ? b->opt.rows : 2048, small ? b->opt.cols : 768);
    }
    return right;
}

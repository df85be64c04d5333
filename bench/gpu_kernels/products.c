/* Products of one row of x with matrices of 28672 x 4096 and of 4096 x 4096: matvec.metal beside few.metal. */
#include "operand.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHECKED = 32 };

/* ---- products ---------------------------------------------------------------------------------------------------- */

static sl_gpu_library *library_of(bench *b, const operand *o, bool few) {
    size_t size;
    char *text = bench_need(kernel_source(few ? "few.metal" : "matvec.metal", &o->f, 1, &size, &b->err), b, "source");
    sl_gpu_define panel = {"SL_FEW_PANEL", b->info.max_threadgroup_memory >= 48 << 10 ? "128" : "64"};
    sl_gpu_compile_options c = SL_GPU_COMPILE_OPTIONS_INIT;
    c.name = few ? "few.metal" : "matvec.metal";
    c.defines = &panel;
    c.define_count = few;
    sl_gpu_library *l = bench_need(sl_gpu_library_new(b->gpu, text, size, &c, &b->err), b, c.name);
    free(text);
    return l;
}

/* y = x W^T with the last matrix, against float64. */
static double check(bench *b, operand *o) {
    uint64_t bytes = (uint64_t)o->m.rows * 4;
    float *row = malloc((size_t)o->m.cols * sizeof *row);
    double worst = 0;
    if (!sl_gpu_get(o->y_at, (uint64_t)(o->n - 1) * bytes, o->y, bytes, &b->err))
        bench_fail(b, "y");
    for (int64_t k = 0; k < CHECKED; k++) {
        int64_t r = k * 2654435761 % o->m.rows;
        double sum = 0, squares = 0;
        sl_format_get(o->m.format)->dequantize(&o->m, r, 0, o->m.cols, row);
        for (int64_t c = 0; c < o->m.cols; c++) {
            double p = (double)row[c] * o->x[c];
            sum += p;
            squares += p * p;
        }
        double e = fabs(o->y[r] - sum) / sqrt(squares);
        worst = operand_worse(worst, e);
    }
    free(row);
    return worst;
}

static double time_product(bench *b, operand *o, bool few) {
    char entry[64];
    sl_gpu_library *l = library_of(b, o, few);
    (few ? kernel_few_entry : kernel_entry)(entry, sizeof entry, few ? "few" : "matvec", &o->f);
    sl_gpu_pipeline *p = bench_need(sl_gpu_pipeline_new(l, entry, NULL, 0, &b->err), b, entry);
    uint64_t y_bytes = (uint64_t)o->m.rows * 4;
    sl_matvec_args a = {.w = {.row_bytes = o->m.row_bytes[0],
                              .side_bytes = o->m.row_bytes[1],
                              .rows = (uint32_t)o->m.rows,
                              .cols = (uint32_t)o->m.cols,
                              .group_shift = 6},
                        .x_stride = (uint64_t)o->m.cols,
                        .y_stride = (uint64_t)o->m.rows};
    int64_t tiles = o->m.rows / SL_FEW_ROWS, each = (tiles + 395) / 396; /* gpu_few_groups */
    uint32_t groups = (uint32_t)(few ? (tiles + each - 1) / each : (o->m.rows + SL_MATVEC_ROWS - 1) / SL_MATVEC_ROWS);
    sl_gpu_list *list = bench_need(sl_gpu_begin(b->stream, entry, &b->err), b, entry);
    if (!sl_gpu_encode_fill(list, o->y_at, 0, (uint64_t)o->n * y_bytes, 0xff, &b->err))
        bench_fail(b, entry);
    for (int k = 0; k < o->n; k++) {
        sl_gpu_binding bind[8] = {{.slot = 0, .bytes = &a, .length = sizeof a}};
        operand_bind(o, k, bind + 1);
        bind[4] = (sl_gpu_binding){.slot = 4, .buffer = o->x_at};
        bind[5] = (sl_gpu_binding){.slot = 5, .buffer = o->y_at, .offset = (uint64_t)k * y_bytes, .length = y_bytes};
        bind[6] = (sl_gpu_binding){.slot = 6, .buffer = o->x_at, .access = SL_GPU_READ};
        bind[7] = (sl_gpu_binding){.slot = 9, .buffer = o->step_at};
        sl_gpu_dispatch d = {.pipeline = p,
                             .groups = {groups, 1, 1},
                             .threads = {few ? SL_FEW_THREADS : SL_MATVEC_THREADS, 1, 1},
                             .bindings = bind,
                             .binding_count = 8};
        if (!sl_gpu_encode(list, &d, &b->err))
            bench_fail(b, entry);
    }
    double seconds = bench_time(b, list);
    sl_gpu_pipeline_free(p);
    sl_gpu_library_free(l);
    return seconds;
}

static bool run_subject(bench *b, const subject *s, int64_t rows, int64_t cols) {
    operand o = operand_new(b, s, rows, cols, b->opt.matrices);
    double reads = bench_reads(b, o.weights, o.apart, o.n, o.y_at);
    bool right = true;
    for (int few = 0; few < (o.f.few && strcmp(b->info.device, "metal") != 0 ? 2 : 1); few++) {
        double seconds = time_product(b, &o, few) / o.n, rate = (double)o.all / seconds, e = check(b, &o);
        printf("%-12s %-7s %6lld x %-6lld x%-4d %9.2f us %9.1f GB/s %6.1f %% of %.0f  error %.1e%s\n", s->name,
               few ? "few" : "matvec", (long long)rows, (long long)cols, o.n, seconds * 1e6, rate * 1e-9,
               100 * rate / reads, reads * 1e-9, e, e <= 1e-4 ? "" : "  WRONG");
        fflush(stdout);
        right = right && e <= 1e-4;
    }
    operand_free(&o);
    return right;
}

bool bench_products(bench *b) {
    static const int64_t shapes[2][2] = {{28672, 4096}, {4096, 4096}};
    bool right = true;
    for (size_t s = 0; s < SUBJECTS; s++)
        for (int k = 0; k < (b->opt.rows ? 1 : 2); k++)
            right &= run_subject(b, &bench_subjects[s], b->opt.rows ? b->opt.rows : shapes[k][0],
                                 b->opt.cols ? b->opt.cols : shapes[k][1]);
    return right;
}

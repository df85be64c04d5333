/* Small kernels: microseconds of a node in a kept list of --matrices nodes, each on data of its own, one after the
 * other (they write to the same place, so each waits for the one before). What the last node wrote is compared with the
 * same in float64, lists and choices exactly. */
#include "operand.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 12 };

/* A kernel, its operands and what it is to be checked by. Operand 0 of `in` has a copy for each node. */
typedef struct node {
    const char *file, *entry, *note;
    const void *args;
    size_t args_bytes;
    struct operand_at {
        int slot;
        const void *host; /* NULL: written only */
        uint64_t bytes;
        bool apart; /* a copy for each node */
        sl_gpu_buffer *at;
    } op[MOST];
    int ops;
    uint32_t groups[3], threads, shared, constants;
} node;

static void add_operand(bench *b, node *n, int slot, const void *host, uint64_t bytes, bool apart) {
    struct operand_at o = {slot, host, bytes, apart, NULL};
    uint64_t step = sl_round_up(bytes, 256), all = apart ? step * (uint64_t)b->opt.matrices : bytes;
    o.at = bench_need(sl_gpu_alloc(b->gpu, all, SL_GPU_PRIVATE, &b->err), b, n->entry);
    for (uint64_t at = 0; host && at + bytes <= all; at += step)
        if (!sl_gpu_put(o.at, at, host, bytes, &b->err))
            bench_fail(b, n->entry);
    n->op[n->ops++] = o;
}

static sl_gpu_pipeline *pipeline_of(bench *b, const node *n) {
    kernel_format f = {.name = "f32", .align = 16};
    size_t size, count = 0;
    char *text = bench_need(kernel_source(n->file, &f, 1, &size, &b->err), b, n->file);
    sl_gpu_define fragments = {"SL_TILE_FRAGMENTS", NULL};
    sl_gpu_compile_options c = SL_GPU_COMPILE_OPTIONS_INIT;
    c.name = n->file;
    c.defines = &fragments;
    c.define_count = strcmp(b->info.device, "metal") != 0;
    sl_gpu_library *l = bench_need(sl_gpu_library_new(b->gpu, text, size, &c, &b->err), b, n->file);
    sl_gpu_constant constant[32];
    for (int i = 0; i < 32; i++)
        if (n->constants >> i & 1)
            constant[count++] = (sl_gpu_constant){.id = i, .type = SL_GPU_BOOL, .value.b = true};
    sl_gpu_pipeline *p = bench_need(sl_gpu_pipeline_new(l, n->entry, constant, count, &b->err), b, n->entry);
    sl_gpu_library_free(l);
    free(text);
    return p;
}

/* Runs it; copies of what was written are fetched by the caller. */
static double time_node(bench *b, node *n) {
    sl_gpu_pipeline *p = pipeline_of(b, n);
    sl_gpu_list *l = bench_need(sl_gpu_begin(b->stream, n->entry, &b->err), b, n->entry);
    sl_gpu_threadgroup_length length = {0, n->shared};
    for (int i = 0; i < b->opt.matrices; i++) {
        sl_gpu_binding bind[1 + MOST] = {{.slot = 0, .bytes = n->args, .length = n->args_bytes}};
        for (int k = 0; k < n->ops; k++)
            bind[1 + k] =
                (sl_gpu_binding){.slot = n->op[k].slot,
                                 .buffer = n->op[k].at,
                                 .offset = n->op[k].apart ? (uint64_t)i * sl_round_up(n->op[k].bytes, 256) : 0,
                                 .length = n->op[k].bytes,
                                 .access = n->op[k].host ? SL_GPU_READ : SL_GPU_READ | SL_GPU_WRITE};
        sl_gpu_dispatch d = {.pipeline = p,
                             .groups = {n->groups[0], n->groups[1], n->groups[2] ? n->groups[2] : 1},
                             .threads = {n->threads, 1, 1},
                             .bindings = bind,
                             .binding_count = (size_t)n->ops + 1,
                             .lengths = &length,
                             .length_count = n->shared != 0};
        if (!sl_gpu_encode(l, &d, &b->err))
            bench_fail(b, n->entry);
    }
    double seconds = bench_time(b, l) / b->opt.matrices;
    sl_gpu_pipeline_free(p);
    return seconds;
}

static void *fetch(bench *b, const node *n, int slot) {
    for (int i = 0; i < n->ops; i++)
        if (n->op[i].slot == slot) {
            void *p = malloc(n->op[i].bytes);
            if (!p || !sl_gpu_get(n->op[i].at, 0, p, n->op[i].bytes, &b->err))
                bench_fail(b, n->entry);
            return p;
        }
    return NULL;
}

/* Ends a row of the table. */
static bool say(node *n, double seconds, uint64_t bytes, bool right) {
    printf("%-12s %-30s %5u threads %9.2f us %8.1f GB/s%s\n", n->entry, n->note, n->threads, seconds * 1e6,
           (double)bytes / seconds * 1e-9, right ? "" : "  WRONG");
    fflush(stdout);
    for (int i = 0; i < n->ops; i++)
        sl_gpu_buffer_free(n->op[i].at);
    return right;
}

static float *random_floats(uint64_t n) {
    float *p = malloc(n * 4);
    uint64_t s = 7;
    for (uint64_t i = 0; p && i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        p[i] = (float)(s >> 40) / (float)(1 << 23) - 1.0f;
    }
    return p;
}

static sl_step_head step_of(int rows) {
    return (sl_step_head){.rows = rows, .outs = rows, .seqs = 1};
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static double worst_norm(const float *x, const float *w, const float *got, int rows, int cols) {
    double worst = 0;
    for (int i = 0; i<rows; i += rows> 8 ? rows / 8 : 1) {
        double sum = 0;
        for (int c = 0; c < cols; c++)
            sum += (double)x[i * cols + c] * x[i * cols + c];
        for (int c = 0; c < cols; c++)
            worst = operand_worse(worst, fabs(x[i * cols + c] / sqrt(sum / cols + 1e-6) * w[c] - got[i * cols + c]));
    }
    return worst;
}

static bool norm(bench *b, int rows, int cols, uint32_t threads, bool half) {
    char note[40];
    uint64_t n = (uint64_t)rows * (uint64_t)cols;
    sl_step_head head = step_of(rows);
    sl_rows_args a = {.src_stride = (uint64_t)cols,
                      .dst_stride = (uint64_t)cols,
                      .cols = (uint32_t)cols,
                      .padded = (uint32_t)cols,
                      .eps = 1e-6f,
                      .per_row = 1};
    float *x = random_floats(n);
    node d = {.file = "rows.metal",
              .entry = "rms_norm",
              .note = note,
              .args = &a,
              .args_bytes = sizeof a,
              .groups = {(uint32_t)rows, 1},
              .threads = threads,
              .constants = half ? 1u << SL_FC_HALF : 0};
    snprintf(note, sizeof note, "%d x %d%s", rows, cols, half ? " and half" : "");
    add_operand(b, &d, 1, x, n * 4, true);
    add_operand(b, &d, 2, NULL, n * 4, false);
    add_operand(b, &d, 3, x, (uint64_t)cols * 4, false);
    add_operand(b, &d, 4, &head, sizeof head, false);
    add_operand(b, &d, 5, NULL, n * 2, false);
    add_operand(b, &d, 6, NULL, (uint64_t)rows * 4, false);
    double seconds = time_node(b, &d);
    float *got = fetch(b, &d, 2);
    bool right = worst_norm(x, x, got, rows, cols) < 1e-5;
    free(got);
    free(x);
    return say(&d, seconds, n * (half ? 10 : 8), right);
}

/* to_half, or silu_half where per_row is more than 1. */
static bool halves(bench *b, int rows, int per_row, int cols, uint32_t threads) {
    char note[40];
    uint64_t all = (uint64_t)rows * (uint64_t)per_row, n = all * (uint64_t)cols;
    bool gated = per_row > 1, right = true;
    sl_step_head head = step_of(rows);
    sl_rows_args a = {.src_stride = (uint64_t)cols,
                      .dst_stride = (uint64_t)cols,
                      .cols = (uint32_t)cols,
                      .padded = (uint32_t)cols,
                      .per_row = (uint32_t)per_row};
    float *x = random_floats(n);
    node d = {.file = "rows.metal",
              .entry = gated ? "silu_half" : "to_half",
              .note = note,
              .args = &a,
              .args_bytes = sizeof a,
              .groups = {(uint32_t)all, 1},
              .threads = threads};
    snprintf(note, sizeof note, "%llu x %d", (unsigned long long)all, cols);
    add_operand(b, &d, 1, x, n * 4, true);
    add_operand(b, &d, 2, NULL, n * 2, false);
    add_operand(b, &d, 3, NULL, all * 4, false);
    add_operand(b, &d, 4, &head, sizeof head, false);
    if (gated)
        add_operand(b, &d, 5, x, n * 4, true);
    double seconds = time_node(b, &d);
    uint16_t *got = fetch(b, &d, 2);
    float *unscale = fetch(b, &d, 3);
    for (uint64_t i = 0; i<n; i += n> 999 ? n / 999 : 1) {
        double want = gated ? x[i] / (1 + exp(-(double)x[i])) * x[i] : x[i];
        right &= fabs((double)sl_f16_to_f32(got[i]) * unscale[i / (uint64_t)cols] - want) < 1e-3;
    }
    free(got);
    free(unscale);
    free(x);
    return say(&d, seconds, n * (gated ? 10 : 6), right);
}

/* ---- mixture of experts ------------------------------------------------------------------------------------------ */

/* Is it the k best of the row, ascending? */
static bool chosen_right(const float *logits, const int32_t *chosen, int experts, int k) {
    bool right = true;
    for (int i = 0; i < k; i++) {
        int better = 0;
        right &= chosen[i] >= 0 && chosen[i] < experts && (i == 0 || chosen[i] > chosen[i - 1]);
        for (int e = 0; right && e < experts; e++)
            better += logits[e] > logits[chosen[i]] || (logits[e] == logits[chosen[i]] && e < chosen[i]);
        right &= better < k;
    }
    return right;
}

static bool router(bench *b, int rows, int experts, int k) {
    char note[40], entry[16];
    uint64_t n = (uint64_t)rows * (uint64_t)experts, pairs = (uint64_t)rows * (uint64_t)k;
    sl_step_head head = step_of(rows);
    sl_router_args a = {
        .logits_stride = (uint64_t)experts, .experts = (uint32_t)experts, .top_k = (uint32_t)k, .scale = 1};
    float *x = random_floats(n);
    node d = {.file = "moe.metal",
              .entry = entry,
              .note = note,
              .args = &a,
              .args_bytes = sizeof a,
              .groups = {(uint32_t)rows, 1},
              .threads = SL_SIMD,
              .shared = 16,
              .constants = 1u << SL_FC_NORMALIZE};
    snprintf(note, sizeof note, "%d rows, %d of %d", rows, k, experts);
    snprintf(entry, sizeof entry, "router_%d", experts <= 128 ? 128 : experts <= 256 ? 256 : 512);
    add_operand(b, &d, 1, x, n * 4, true);
    add_operand(b, &d, 2, NULL, pairs * 4, false);
    add_operand(b, &d, 3, NULL, pairs * 4, false);
    add_operand(b, &d, 4, NULL, pairs, false);
    add_operand(b, &d, 5, x, (uint64_t)experts * 4, false);
    add_operand(b, &d, 6, &head, sizeof head, false);
    add_operand(b, &d, 7, x, (uint64_t)experts * 4, false);
    double seconds = time_node(b, &d);
    int32_t *got = fetch(b, &d, 2);
    bool right = true;
    for (int i = 0; i < rows; i++)
        right &= chosen_right(x + i * experts, got + i * k, experts, k);
    free(got);
    free(x);
    return say(&d, seconds, n * 4, right);
}

static bool listed(const int32_t *chosen, const int32_t *pairs, uint64_t n) {
    for (uint64_t i = 1; i < n; i++) {
        int32_t e = chosen[pairs[i]], before = chosen[pairs[i - 1]];
        if (e < before || (e == before && pairs[i] <= pairs[i - 1]))
            return false;
    }
    return true;
}

static bool group(bench *b, int rows, int experts, int k, uint32_t threads) {
    enum { TILE = 64 };
    char note[40];
    uint64_t n = (uint64_t)rows * (uint64_t)k, seed = 3, room = n / TILE + (uint64_t)experts;
    int32_t *chosen = malloc(n * 4);
    for (uint64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        chosen[i] = (int32_t)((seed >> 33) % (uint64_t)experts);
    }
    sl_step_head head = step_of(rows);
    sl_router_args a = {.experts = (uint32_t)experts, .top_k = (uint32_t)k, .tiles = (uint32_t)room, .tile_rows = TILE};
    node d = {.file = "moe.metal",
              .entry = "group_pairs",
              .note = note,
              .args = &a,
              .args_bytes = sizeof a,
              .groups = {(uint32_t)experts, 1},
              .threads = threads,
              .shared = (uint32_t)experts * 4};
    snprintf(note, sizeof note, "%llu pairs of %d", (unsigned long long)n, experts);
    add_operand(b, &d, 1, chosen, n * 4, true);
    add_operand(b, &d, 2, NULL, n * 4, false);
    add_operand(b, &d, 3, NULL, room * sizeof(sl_pair_tile), false);
    add_operand(b, &d, 4, NULL, 8, false);
    add_operand(b, &d, 5, &head, sizeof head, false);
    double seconds = time_node(b, &d);
    int32_t *got = fetch(b, &d, 2);
    uint32_t *counts = fetch(b, &d, 4);
    bool right = counts[1] == n && listed(chosen, got, n);
    free(got);
    free(counts);
    free(chosen);
    return say(&d, seconds, n * 4, right);
}

static bool combine(bench *b, int rows, int cols, int k) {
    char note[40];
    uint64_t pairs = (uint64_t)rows * (uint64_t)k, n = pairs * (uint64_t)cols;
    sl_step_head head = step_of(rows);
    sl_combine_args a = {
        .out_stride = (uint64_t)cols, .residual_stride = (uint64_t)cols, .cols = (uint32_t)cols, .top_k = (uint32_t)k};
    float *x = random_floats(n), zero = 0;
    uint8_t *done = malloc(pairs);
    memset(done, 1, pairs);
    node d = {.file = "moe.metal",
              .entry = "combine",
              .note = note,
              .args = &a,
              .args_bytes = sizeof a,
              .groups = {(uint32_t)(cols + 255) / 256, (uint32_t)rows},
              .threads = 256};
    snprintf(note, sizeof note, "%d x %d, %d each", rows, cols, k);
    add_operand(b, &d, 1, x, n * 4, true);
    add_operand(b, &d, 2, x, pairs * 4, false);
    add_operand(b, &d, 3, done, pairs, false);
    add_operand(b, &d, 4, &zero, 4, false);
    add_operand(b, &d, 5, &zero, 4, false);
    add_operand(b, &d, 6, NULL, (uint64_t)rows * (uint64_t)cols * 4, false);
    add_operand(b, &d, 7, NULL, (uint64_t)rows * 4, false);
    add_operand(b, &d, 8, &head, sizeof head, false);
    double seconds = time_node(b, &d);
    int32_t *status = fetch(b, &d, 7);
    bool right = true;
    for (int i = 0; i < rows; i++)
        right &= status[i] == 0;
    free(status);
    free(done);
    free(x);
    return say(&d, seconds, n * 4, right);
}

/* ---- products with few outputs ----------------------------------------------------------------------------------- */

static double worst_product(const float *w, const float *x, const float *y, int out, int cols, int rows) {
    double worst = 0;
    for (int i = 0; i<rows; i += rows> 4 ? rows / 4 : 1)
        for (int r = 0; r < out; r++) {
            double sum = 0, squares = 1e-30;
            for (int c = 0; c < cols; c++) {
                double p = (double)w[r * cols + c] * x[i * cols + c];
                sum += p;
                squares += p * p;
            }
            worst = operand_worse(worst, fabs(sum - y[i * out + r]) / sqrt(squares));
        }
    return worst;
}

static bool narrow(bench *b, const char *kernel, int out, int cols, int rows) {
    char note[40], entry[32];
    bool narrow = strcmp(kernel, "narrow") == 0;
    uint64_t n = (uint64_t)out * (uint64_t)cols;
    uint32_t simds = (uint32_t)(cols + 1023) / 1024;
    sl_step_head head = step_of(rows);
    sl_matvec_args a = {.w = {.row_bytes = (uint64_t)cols * 4, .rows = (uint32_t)out, .cols = (uint32_t)cols},
                        .x_stride = (uint64_t)cols,
                        .y_stride = (uint64_t)out};
    float *w = random_floats(n), *x = random_floats((uint64_t)rows * (uint64_t)cols);
    node d = {.file = narrow ? "narrow.metal" : "matvec.metal",
              .entry = entry,
              .note = note,
              .args = &a,
              .args_bytes = sizeof a,
              .groups = {(uint32_t)(narrow ? out : (out + SL_MATVEC_ROWS - 1) / SL_MATVEC_ROWS), (uint32_t)rows},
              .threads = narrow ? SL_SIMD * (simds < 8 ? simds : 8) : SL_MATVEC_THREADS};
    snprintf(note, sizeof note, "f32 %d x %d, %d rows", out, cols, rows);
    snprintf(entry, sizeof entry, "%s_f32_a16", kernel);
    add_operand(b, &d, 1, w, n * 4, true);
    add_operand(b, &d, 2, w, 256, false);
    add_operand(b, &d, 3, w, 256, false);
    add_operand(b, &d, 4, x, (uint64_t)rows * (uint64_t)cols * 4, true);
    add_operand(b, &d, 5, NULL, (uint64_t)rows * (uint64_t)out * 4, false);
    add_operand(b, &d, 6, w, 256, false);
    add_operand(b, &d, 9, &head, sizeof head, false);
    double seconds = time_node(b, &d);
    float *got = fetch(b, &d, 5);
    bool right = worst_product(w, x, got, out, cols, rows) < 1e-5;
    free(got);
    free(w);
    free(x);
    return say(&d, seconds, n * 4, right);
}

/* Partial products of many rows; what they add up to is checked. */
static bool split(bench *b, int out, int cols, int rows, int units) {
    char note[40];
    uint64_t n = (uint64_t)out * (uint64_t)cols, m = (uint64_t)rows * (uint64_t)cols;
    uint32_t splits = (uint32_t)((cols + 31) / 32 + units - 1) / (uint32_t)units;
    uint64_t each = (uint64_t)rows * (uint64_t)out;
    sl_step_head head = step_of(rows);
    sl_split_args a = {.w = {.row_bytes = (uint64_t)cols * 4, .rows = (uint32_t)out, .cols = (uint32_t)cols},
                       .x_stride = (uint64_t)cols,
                       .y_stride = (uint64_t)out,
                       .split_stride = each,
                       .split_units = (uint32_t)units};
    float *w = random_floats(n), *x = random_floats(m), *ones = malloc((size_t)rows * 4);
    uint16_t *half = malloc(m * 2);
    for (uint64_t i = 0; i < m; i++) {
        half[i] = sl_f32_to_f16(x[i]);
        x[i] = sl_f16_to_f32(half[i]);
    }
    for (int i = 0; i < rows; i++)
        ones[i] = 1;
    node d = {.file = "split.metal",
              .entry = "split_f32_a16",
              .note = note,
              .args = &a,
              .args_bytes = sizeof a,
              .groups = {(uint32_t)(out + 63) / 64, (uint32_t)(rows + 31) / 32, splits},
              .threads = SL_MATMUL_THREADS};
    snprintf(note, sizeof note, "%d x %d, %d rows, by %d", out, cols, rows, 32 * units);
    add_operand(b, &d, 1, w, n * 4, true);
    add_operand(b, &d, 2, w, 256, false);
    add_operand(b, &d, 3, w, 256, false);
    add_operand(b, &d, 4, half, m * 2, true);
    add_operand(b, &d, 5, ones, (uint64_t)rows * 4, false);
    add_operand(b, &d, 6, NULL, splits * each * 4, false);
    add_operand(b, &d, 8, &head, sizeof head, false);
    double seconds = time_node(b, &d);
    float *got = fetch(b, &d, 6);
    for (uint64_t i = 0; i < each; i++)
        for (uint32_t s = 1; s < splits; s++)
            got[i] += got[s * each + i];
    bool right = worst_product(w, x, got, out, cols, rows) < 2e-3;
    free(got);
    free(half);
    free(ones);
    free(w);
    free(x);
    return say(&d, seconds, n * 4, right);
}

bool bench_small(bench *b) {
    bool few = b->opt.rows != 0, right = true; /* few: a device that only tells whether it is right */
    int many = few ? 20 : 512, wide = few ? 320 : 2048;
    for (uint32_t threads = 128; threads <= 1024; threads *= 2)
        right &= norm(b, 1, wide, threads, false);
    right &= norm(b, 1, few ? 500 : 4096, 1024, false);
    for (uint32_t threads = 256; threads <= 512; threads *= 2) {
        right &= norm(b, 32, wide, threads, true);
        right &= norm(b, many, wide, threads, true);
        right &= halves(b, many, 1, few ? 256 : 4096, 2 * threads);
    }
    right &= halves(b, many, 8, few ? 96 : 768, 96);
    right &= halves(b, many, 8, few ? 96 : 768, 192);
    right &= combine(b, 1, wide, 8);
    right &= combine(b, 32, wide, 8);
    right &= combine(b, many, wide, 8);
    for (int units = 2; units <= 8; units *= 2) {
        right &= split(b, 128, wide, 32, units);
        right &= split(b, 128, wide, many, units);
    }
    right &= router(b, 1, 128, 8);
    right &= router(b, 32, 128, 8);
    right &= router(b, many, 128, 8);
    right &= router(b, many, 512, 10);
    right &= group(b, 32, 128, 8, 64);
    for (uint32_t threads = 256; threads <= 1024; threads *= 2)
        right &= group(b, many, 128, 8, threads);
    right &= group(b, 4 * many, 512, 10, 512);
    for (int i = 0; i < 2; i++) {
        const char *kernel = i ? "matvec" : "narrow";
        right &= narrow(b, kernel, 128, wide, 1);
        right &= narrow(b, kernel, few ? 9 : 512, few ? 96 : 4096, 1);
        right &= narrow(b, kernel, 128, wide, 8);
        right &= narrow(b, kernel, 1, wide, 1);
    }
    right &= narrow(b, "narrow", 1, wide, many);
    return right;
}

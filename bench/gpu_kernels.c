/* How fast the kernels are on a device, as shares of what it reads in the same run.
 *
 *   gpu_kernels [--device NAME] [--mib N] [--matrices N] [--rounds N] [--rows N] [--cols N]
 *
 * A row of the table: a kept list of N dispatches over distinct matrices that together are at least --mib MiB (default
 * 512), so that nothing is in a cache; microseconds of a dispatch, GB/s of weights, and the share of what a kernel that
 * only reads reached over as many bytes a dispatch. Products: one row of x times matrices of 28672 x 4096 and of 4096 x
 * 4096, matvec.metal beside few.metal. Random weights; rows of the last matrix are compared with float64, and a wrong
 * one ends the program with 1. Medians of --rounds. On soft give small --rows and --cols: then it says only whether
 * results are right. */
#include "kernels/args.h"
#include "ops/kernels.h"
#include "quant/quant.h"
#include "sluice/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 99, CHECKED = 32, READ_GROUPS = 1056, READ_THREADS = 1024 };
#define TIMEOUT_NS (120ull * 1000 * 1000 * 1000)

typedef struct options {
    const char *device;
    uint64_t mib;
    int matrices, rounds;
    int64_t rows, cols; /* 0: the two shapes above */
} options;

typedef struct subject {
    const char *name;
    sl_format_id format, side;
    int32_t group;
    uint64_t align; /* of what matvec.metal has */
} subject;

static const subject subjects[] = {{"affine4-64", SL_AFFINE4, SL_F16, 64, 16},
                                   {"Q4_0", SL_Q4_0, 0, 0, 16},
                                   {"Q4_K", SL_Q4_K, 0, 0, 16},
                                   {"MXFP4", SL_MXFP4, 0, 0, 16},
                                   {"mxfp4 split", SL_MXFP4_SPLIT, 0, 0, 16}};

typedef struct bench {
    options opt;
    sl_gpu *gpu;
    sl_gpu_stream *stream;
    sl_gpu_info info;
    sl_error err;
} bench;

/* One shape of one format on the device. */
typedef struct operand {
    sl_matrix m;
    kernel_format f;
    uint8_t *part[3];           /* the host's; all matrices hold the same numbers */
    sl_gpu_buffer *weights;     /* n copies, each part of each at a multiple of 256 */
    uint64_t at[3], apart, all; /* a matrix's parts; from a matrix to the next; bytes of weights read for one */
    int n;
    float *x, *y;
    sl_gpu_buffer *x_at, *y_at, *step_at;
} operand;

static void fail(const bench *b, const char *what) {
    fprintf(stderr, "gpu_kernels: %s: %s\n", what, b->err.message);
    exit(1);
}

static void *need(void *p, const bench *b, const char *what) {
    if (!p)
        fail(b, what);
    return p;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

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
        fail(b, s->name);
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

static operand make_operand(bench *b, const subject *s, int64_t rows, int64_t cols) {
    operand o = {0};
    make_parts(b, &o, s, rows, cols);
    uint64_t least = b->opt.mib << 20;
    o.n = b->opt.matrices;
    while ((uint64_t)o.n * o.all < least)
        o.n++;
    o.weights = need(sl_gpu_alloc(b->gpu, (uint64_t)o.n * o.apart, SL_GPU_PRIVATE, &b->err), b, "weights");
    for (int k = 0; k < o.n; k++)
        for (int i = 0; i < 3; i++)
            if (o.part[i] && !sl_gpu_put(o.weights, (uint64_t)k * o.apart + o.at[i], o.part[i],
                                         sl_matrix_part_bytes(&o.m, i), &b->err))
                fail(b, "weights");
    o.x = malloc((size_t)cols * sizeof *o.x);
    for (int64_t i = 0; i < cols; i++)
        o.x[i] = (float)((i * 7919 + 13) % 2003) / 1001.5f - 1.0f;
    o.y = malloc((size_t)rows * sizeof *o.y);
    sl_step_head head = {.rows = 1, .outs = 1, .seqs = 1};
    o.x_at = need(sl_gpu_alloc(b->gpu, (uint64_t)cols * 4, SL_GPU_PRIVATE, &b->err), b, "x");
    o.y_at = need(sl_gpu_alloc(b->gpu, (uint64_t)o.n * (uint64_t)rows * 4, SL_GPU_PRIVATE, &b->err), b, "y");
    o.step_at = need(sl_gpu_alloc(b->gpu, sizeof head, SL_GPU_PRIVATE, &b->err), b, "step");
    if (!sl_gpu_put(o.x_at, 0, o.x, (uint64_t)cols * 4, &b->err) ||
        !sl_gpu_put(o.step_at, 0, &head, sizeof head, &b->err))
        fail(b, "x");
    return o;
}

static void free_operand(operand *o) {
    sl_gpu_buffer_free(o->weights);
    sl_gpu_buffer_free(o->x_at);
    sl_gpu_buffer_free(o->y_at);
    sl_gpu_buffer_free(o->step_at);
    for (int i = 0; i < 3; i++)
        free(o->part[i]);
    free(o->x);
    free(o->y);
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

/* Seconds of a list that is used up. */
static double time_list(bench *b, sl_gpu_list *l) {
    double seconds[ROUNDS_MAX];
    sl_gpu_replay *r = need(sl_gpu_keep(l, &b->err), b, "keep");
    for (int i = -2; i < b->opt.rounds; i++) {
        sl_gpu_ticket t;
        double s;
        if (!sl_gpu_replay_submit(r, &t, &b->err) || !sl_gpu_wait(b->stream, t, TIMEOUT_NS, &s, &b->err))
            fail(b, "run");
        if (i >= 0)
            seconds[i] = s;
    }
    sl_gpu_replay_free(r);
    qsort(seconds, (size_t)b->opt.rounds, sizeof *seconds, by_value);
    return seconds[b->opt.rounds / 2];
}

static const char read_kernel[] =
    "#include <metal_stdlib>\n"
    "using namespace metal;\n"
    "kernel void read_all(device const uint4 *p [[buffer(0)]], device uint *to [[buffer(1)]],\n"
    "                     constant ulong &count [[buffer(2)]], uint group [[threadgroup_position_in_grid]],\n"
    "                     uint groups [[threadgroups_per_grid]], uint l [[thread_index_in_threadgroup]],\n"
    "                     uint threads [[threads_per_threadgroup]]) {\n"
    "    ulong each = (count + groups - 1) / groups, begin = group * each, end = min(count, begin + each);\n"
    "    uint4 a = uint4(0);\n"
    "    for (ulong i = begin + l; i < end; i += 4 * threads) {\n"
    "        uint4 v[4];\n"
    "#pragma unroll\n"
    "        for (uint k = 0; k < 4; k++)\n"
    "            v[k] = p[min(i + k * threads, end - 1)];\n"
    "        a ^= v[0] ^ v[1] ^ v[2] ^ v[3];\n"
    "    }\n"
    "    if ((a.x ^ a.y ^ a.z ^ a.w) == 0x12345679u)\n"
    "        *to = 1;\n"
    "}\n";

/* Bytes a second that a kernel reads in the same pieces. */
static double read_rate(bench *b, const operand *o) {
    sl_gpu_library *l = need(sl_gpu_library_new(b->gpu, read_kernel, sizeof read_kernel - 1, NULL, &b->err), b, "read");
    sl_gpu_pipeline *p = need(sl_gpu_pipeline_new(l, "read_all", NULL, 0, &b->err), b, "read");
    uint64_t count = o->apart / 16;
    uint32_t threads = b->info.max_threads < READ_THREADS ? b->info.max_threads : READ_THREADS;
    double best = 0;
    for (uint32_t groups = READ_GROUPS / 8; groups <= READ_GROUPS; groups *= 2) {
        sl_gpu_list *list = need(sl_gpu_begin(b->stream, "read", &b->err), b, "read");
        for (int k = 0; k < o->n; k++) {
            sl_gpu_binding bind[] = {
                {.slot = 0, .buffer = o->weights, .offset = (uint64_t)k * o->apart, .length = o->apart},
                {.slot = 1, .buffer = o->y_at, .offset = (uint64_t)k * 4, .length = 4},
                {.slot = 2, .bytes = &count, .length = sizeof count}};
            sl_gpu_dispatch d = {.pipeline = p,
                                 .groups = {groups, 1, 1},
                                 .threads = {threads, 1, 1},
                                 .bindings = bind,
                                 .binding_count = 3};
            if (!sl_gpu_encode(list, &d, &b->err))
                fail(b, "read");
        }
        double rate = (double)o->apart * o->n / time_list(b, list);
        best = rate > best ? rate : best;
    }
    sl_gpu_pipeline_free(p);
    sl_gpu_library_free(l);
    return best;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static sl_gpu_library *library_of(bench *b, const operand *o, bool few) {
    size_t size;
    char *text = need(kernel_source(few ? "few.metal" : "matvec.metal", &o->f, 1, &size, &b->err), b, "source");
    sl_gpu_define panel = {"SL_FEW_PANEL", b->info.max_threadgroup_memory >= 48 << 10 ? "128" : "64"};
    sl_gpu_compile_options c = SL_GPU_COMPILE_OPTIONS_INIT;
    c.name = few ? "few.metal" : "matvec.metal";
    c.defines = &panel;
    c.define_count = few;
    sl_gpu_library *l = need(sl_gpu_library_new(b->gpu, text, size, &c, &b->err), b, c.name);
    free(text);
    return l;
}

/* y = x W^T with the last matrix, against float64. */
static double check(bench *b, operand *o) {
    uint64_t bytes = (uint64_t)o->m.rows * 4;
    float *row = malloc((size_t)o->m.cols * sizeof *row);
    double worst = 0;
    if (!sl_gpu_get(o->y_at, (uint64_t)(o->n - 1) * bytes, o->y, bytes, &b->err))
        fail(b, "y");
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
        worst = isnan(worst) || e <= worst ? worst : e; /* a NaN stays */
    }
    free(row);
    return worst;
}

static double time_product(bench *b, operand *o, bool few) {
    char entry[64];
    sl_gpu_library *l = library_of(b, o, few);
    (few ? kernel_few_entry : kernel_entry)(entry, sizeof entry, few ? "few" : "matvec", &o->f);
    sl_gpu_pipeline *p = need(sl_gpu_pipeline_new(l, entry, NULL, 0, &b->err), b, entry);
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
    sl_gpu_list *list = need(sl_gpu_begin(b->stream, entry, &b->err), b, entry);
    if (!sl_gpu_encode_fill(list, o->y_at, 0, (uint64_t)o->n * y_bytes, 0xff, &b->err))
        fail(b, entry);
    for (int k = 0; k < o->n; k++) {
        sl_gpu_binding bind[8] = {{.slot = 0, .bytes = &a, .length = sizeof a}};
        for (int i = 0; i < 3; i++) {
            int part = o->part[i] ? i : 0;
            bind[1 + i] = (sl_gpu_binding){.slot = 1 + i,
                                           .buffer = o->weights,
                                           .offset = (uint64_t)k * o->apart + o->at[part],
                                           .length = sl_matrix_part_bytes(&o->m, part)};
        }
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
            fail(b, entry);
    }
    double seconds = time_list(b, list);
    sl_gpu_pipeline_free(p);
    sl_gpu_library_free(l);
    return seconds;
}

static bool run_subject(bench *b, const subject *s, int64_t rows, int64_t cols) {
    operand o = make_operand(b, s, rows, cols);
    double reads = read_rate(b, &o);
    bool right = true;
    for (int few = 0; few < (o.f.few && strcmp(b->info.device, "metal") != 0 ? 2 : 1); few++) {
        double seconds = time_product(b, &o, few) / o.n, rate = (double)o.all / seconds, e = check(b, &o);
        printf("%-12s %-7s %6lld x %-6lld x%-4d %9.2f us %9.1f GB/s %6.1f %% of %.0f  error %.1e%s\n", s->name,
               few ? "few" : "matvec", (long long)rows, (long long)cols, o.n, seconds * 1e6, rate * 1e-9,
               100 * rate / reads, reads * 1e-9, e, e <= 1e-4 ? "" : "  WRONG");
        fflush(stdout);
        right = right && e <= 1e-4;
    }
    free_operand(&o);
    return right;
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

static options parse(int argc, char **argv) {
    options o = {.device = "cuda", .mib = 512, .matrices = 64, .rounds = 5};
    for (int i = 1; i + 1 < argc; i += 2) {
        long long v = atoll(argv[i + 1]);
        if (strcmp(argv[i], "--device") == 0)
            o.device = argv[i + 1];
        else if (strcmp(argv[i], "--mib") == 0)
            o.mib = (uint64_t)v;
        else if (strcmp(argv[i], "--matrices") == 0)
            o.matrices = (int)v;
        else if (strcmp(argv[i], "--rounds") == 0)
            o.rounds = v < 1 ? 1 : v > ROUNDS_MAX ? ROUNDS_MAX : (int)v;
        else if (strcmp(argv[i], "--rows") == 0)
            o.rows = v;
        else if (strcmp(argv[i], "--cols") == 0)
            o.cols = v;
        else
            fprintf(stderr, "gpu_kernels: %s is no option\n", argv[i]);
    }
    return o;
}

int main(int argc, char **argv) {
    bench b = {.opt = parse(argc, argv), .info = {.size = sizeof(sl_gpu_info)}};
    sl_gpu_options o = SL_GPU_OPTIONS_INIT;
    o.device = b.opt.device;
    b.gpu = need(sl_gpu_open(&o, &b.err), &b, "open");
    sl_gpu_get_info(b.gpu, &b.info);
    b.stream = need(sl_gpu_stream_new(b.gpu, &b.err), &b, "stream");
    printf("%s: %s, %s\n", b.info.device, b.info.name, b.info.family);
    static const int64_t shapes[2][2] = {{28672, 4096}, {4096, 4096}};
    bool right = true;
    for (size_t s = 0; s < SL_COUNT(subjects); s++)
        for (int k = 0; k < (b.opt.rows ? 1 : 2); k++)
            right &= run_subject(&b, &subjects[s], b.opt.rows ? b.opt.rows : shapes[k][0],
                                 b.opt.cols ? b.opt.cols : shapes[k][1]);
    sl_gpu_stream_free(b.stream);
    sl_gpu_close(b.gpu);
    return !right;
}

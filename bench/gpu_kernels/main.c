/* How fast the kernels are on a device, as shares of what it reads in the same run.
 *
 *   gpu_kernels [--device NAME] [--mib N] [--matrices N] [--rounds N] [--rows N] [--cols N] [--tokens N]
 *               [--only products|attention|tiles|small|batch]
 *
 * A row of the table: a kept list of N dispatches over distinct matrices that together are at least --mib MiB (default
 * 512), so that nothing is in a cache; microseconds of a dispatch, GB/s of weights, and the share of what a kernel that
 * only reads reached over as many bytes a dispatch. Products: one row of x times matrices of 28672 x 4096 and of 4096 x
 * 4096, matvec.metal beside few.metal. Random weights; rows of the last matrix are compared with float64, and a wrong
 * one ends the program with 1. Medians of --rounds. On soft give small --rows and --cols: then it says only whether
 * results are right. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 99, READ_GROUPS = 1056, READ_THREADS = 1024 };
#define TIMEOUT_NS (120ull * 1000 * 1000 * 1000)

void bench_fail(const bench *b, const char *what) {
    fprintf(stderr, "gpu_kernels: %s: %s\n", what, b->err.message);
    exit(1);
}

void *bench_need(void *p, const bench *b, const char *what) {
    if (!p)
        bench_fail(b, what);
    return p;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

double bench_time(bench *b, sl_gpu_list *l) {
    double seconds[ROUNDS_MAX];
    sl_gpu_replay *r = bench_need(sl_gpu_keep(l, &b->err), b, "keep");
    for (int i = -2; i < b->opt.rounds; i++) {
        sl_gpu_ticket t;
        double s;
        if (!sl_gpu_replay_submit(r, &t, &b->err) || !sl_gpu_wait(b->stream, t, TIMEOUT_NS, &s, &b->err))
            bench_fail(b, "run");
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

double bench_reads(bench *b, sl_gpu_buffer *from, uint64_t piece, int n, sl_gpu_buffer *to) {
    sl_gpu_library *l =
        bench_need(sl_gpu_library_new(b->gpu, read_kernel, sizeof read_kernel - 1, NULL, &b->err), b, "read");
    sl_gpu_pipeline *p = bench_need(sl_gpu_pipeline_new(l, "read_all", NULL, 0, &b->err), b, "read");
    uint64_t count = piece / 16;
    uint32_t threads = b->info.max_threads < READ_THREADS ? b->info.max_threads : READ_THREADS;
    double best = 0;
    for (uint32_t groups = READ_GROUPS / 8; groups <= READ_GROUPS; groups *= 2) {
        sl_gpu_list *list = bench_need(sl_gpu_begin(b->stream, "read", &b->err), b, "read");
        for (int k = 0; k < n; k++) {
            sl_gpu_binding bind[] = {{.slot = 0, .buffer = from, .offset = (uint64_t)k * piece, .length = piece},
                                     {.slot = 1, .buffer = to, .offset = (uint64_t)k * 4, .length = 4},
                                     {.slot = 2, .bytes = &count, .length = sizeof count}};
            sl_gpu_dispatch d = {.pipeline = p,
                                 .groups = {groups, 1, 1},
                                 .threads = {threads, 1, 1},
                                 .bindings = bind,
                                 .binding_count = 3};
            if (!sl_gpu_encode(list, &d, &b->err))
                bench_fail(b, "read");
        }
        double rate = (double)piece * n / bench_time(b, list);
        best = rate > best ? rate : best;
    }
    sl_gpu_pipeline_free(p);
    sl_gpu_library_free(l);
    return best;
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

static options parse(int argc, char **argv) {
    options o = {.device = "cuda",
                 .mib = 512,
                 .matrices = 64,
                 .rounds = 5,
                 .tokens = 32768,
                 .products = true,
                 .attention = true,
                 .tiles = true,
                 .small = true,
                 .batch = true};
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
        else if (strcmp(argv[i], "--only") == 0) {
            o.products = strcmp(argv[i + 1], "products") == 0;
            o.attention = strcmp(argv[i + 1], "attention") == 0;
            o.tiles = strcmp(argv[i + 1], "tiles") == 0;
            o.small = strcmp(argv[i + 1], "small") == 0;
            o.batch = strcmp(argv[i + 1], "batch") == 0;
        } else if (strcmp(argv[i], "--tokens") == 0)
            o.tokens = v < 1 ? 1 : (int)v;
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
    b.gpu = bench_need(sl_gpu_open(&o, &b.err), &b, "open");
    sl_gpu_get_info(b.gpu, &b.info);
    b.stream = bench_need(sl_gpu_stream_new(b.gpu, &b.err), &b, "stream");
    printf("%s: %s, %s\n", b.info.device, b.info.name, b.info.family);
    bool right = !b.opt.products || bench_products(&b);
    right &= !b.opt.attention || bench_attention(&b);
    right &= !b.opt.tiles || bench_tiles(&b);
    right &= !b.opt.small || bench_small(&b);
    right &= !b.opt.batch || strcmp(b.info.device, "metal") == 0 || bench_batch(&b);
    sl_gpu_stream_free(b.stream);
    sl_gpu_close(b.gpu);
    return !right;
}

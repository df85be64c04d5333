/* What the rows of bench_gpu_kernels share: the device, time of a kept list, the rate of reading. */
#ifndef BENCH_GPU_KERNELS_H
#define BENCH_GPU_KERNELS_H

#include "base/base.h"
#include "sluice/gpu.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct options {
    const char *device;
    uint64_t mib;
    int matrices, rounds, tokens;
    bool products, attention, tiles, small, batch; /* what is timed */
    int64_t rows, cols;                            /* 0: the two shapes of products */
} options;

typedef struct bench {
    options opt;
    sl_gpu *gpu;
    sl_gpu_stream *stream;
    sl_gpu_info info;
    sl_error err;
} bench;

/* Ends the program with the last error. */
void bench_fail(const bench *b, const char *what);
/* p, or the end of the program. */
void *bench_need(void *p, const bench *b, const char *what);
/* Median seconds of a list, which is used up: kept, submitted --rounds times. */
double bench_time(bench *b, sl_gpu_list *l);
/* Bytes a second of a kernel that only reads, of `n` pieces of `piece` bytes one after the other in the buffer, a
 * dispatch each; to: n words to write to. The best of several grids. */
double bench_reads(bench *b, sl_gpu_buffer *from, uint64_t piece, int n, sl_gpu_buffer *to);

/* Rows of the table; false where a result is wrong. */
bool bench_products(bench *b);
bool bench_attention(bench *b);
bool bench_tiles(bench *b);
bool bench_small(bench *b);
bool bench_batch(bench *b);

#endif

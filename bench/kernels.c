/* How fast the matrix products are, as shares of what the machine could do in the same run.
 *
 *   cc -std=gnu17 -O3 -D_GNU_SOURCE -Isrc -Iinclude bench/kernels.c -o kernels <objects of src/base, src/quant,
 * src/cpu> -lm -pthread kernels [--isa NAME] [--format NAME] [--mib N] [--rounds N] [--threads N] [--matmul 0]
 *
 * matvec: one row of activations times matrices that together are N MiB (default 512) of distinct bytes, so that
 * nothing is cached; GB/s of weights, and the share of the read bandwidth measured between the rounds. matmul: n rows
 * of activations times cold matrices of about 8 MiB; 10^9 multiply-adds per second, and per cycle and core at the clock
 * measured in the run. All rounds are interleaved over formats; figures are medians. per weight: time for a weight of
 * the matvec on one thread, of Q4_0's in the same round (with --mib 16 in the cache, so that it is the kernels' time).
 */
#include "cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { COLS = 2048, ROUNDS_MAX = 99, MATMUL_BYTES = 8 << 20 };

typedef struct options {
    const char *isa, *format;
    uint64_t bytes;
    int rounds, threads, matmul;
} options;

typedef struct subject {
    const char *name;
    sl_format_id format, side;
    int32_t group;
} subject;

static const subject subjects[] = {
    {"Q4_0", SL_Q4_0, 0, 0},
    {"Q4_1", SL_Q4_1, 0, 0},
    {"Q5_0", SL_Q5_0, 0, 0},
    {"Q5_1", SL_Q5_1, 0, 0},
    {"Q8_0", SL_Q8_0, 0, 0},
    {"Q4_K", SL_Q4_K, 0, 0},
    {"Q5_K", SL_Q5_K, 0, 0},
    {"Q6_K", SL_Q6_K, 0, 0},
    {"affine4-64", SL_AFFINE4, SL_BF16, 64},
    {"affine4-32", SL_AFFINE4, SL_F16, 32},
    {"affine8-64", SL_AFFINE8, SL_F16, 64},
    {"affine2-64", SL_AFFINE2, SL_BF16, 64},
    {"affine3-64", SL_AFFINE3, SL_BF16, 64},
    {"affine5-64", SL_AFFINE5, SL_BF16, 64},
    {"affine6-64", SL_AFFINE6, SL_BF16, 64},
    {"Q2_K", SL_Q2_K, 0, 0},
    {"Q3_K", SL_Q3_K, 0, 0},
    {"IQ4_NL", SL_IQ4_NL, 0, 0},
    {"IQ4_XS", SL_IQ4_XS, 0, 0},
    {"MXFP4", SL_MXFP4, 0, 0},
    {"mxfp4 split", SL_MXFP4_SPLIT, 0, 0},
    {"IQ2_XXS", SL_IQ2_XXS, 0, 0},
    {"IQ2_XS", SL_IQ2_XS, 0, 0},
    {"IQ2_S", SL_IQ2_S, 0, 0},
    {"IQ3_XXS", SL_IQ3_XXS, 0, 0},
    {"IQ3_S", SL_IQ3_S, 0, 0},
    {"IQ1_S", SL_IQ1_S, 0, 0},
    {"IQ1_M", SL_IQ1_M, 0, 0},
    {"TQ1_0", SL_TQ1_0, 0, 0},
    {"TQ2_0", SL_TQ2_0, 0, 0},
    {"NVFP4", SL_NVFP4, 0, 0},
    {"nvfp4 split", SL_NVFP4_SPLIT, 0, 0},
    {"mxfp8 split", SL_MXFP8_SPLIT, 0, 0},
    {"FP8", SL_FP8, SL_F32, 128},
    {"F16", SL_F16, 0, 0},
    {"BF16", SL_BF16, 0, 0},
    {"F32", SL_F32, 0, 0},
};

static const int64_t batch[] = {2, 4, 8, 16, 32, 128, 512};

enum { SUBJECTS = sizeof subjects / sizeof subjects[0], BATCHES = sizeof batch / sizeof batch[0], BATCH_MAX = 512 };

typedef struct bench {
    options opt;
    const cpu_kernels *k;
    uint8_t *weights;
    float *x, *y;
    void *q;
    void *scratch[64];
    sl_pool *pool[2]; /* one thread, all threads */
    double matvec[2][SUBJECTS][ROUNDS_MAX], cpu[SUBJECTS][ROUNDS_MAX], matmul[2][SUBJECTS][BATCHES][ROUNDS_MAX],
        read[2][2 * ROUNDS_MAX], clock[ROUNDS_MAX];
    int reads;
} bench;

static void *map(uint64_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "kernels: cannot map %llu bytes\n", (unsigned long long)bytes);
        exit(1);
    }
#ifdef MADV_HUGEPAGE
    madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return p;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n ? v[n / 2] : 0;
}

/* Bytes of which any two are a half (or bfloat) of ordinary size, so that no format meets NaN or subnormal scales. */
static void fill(uint8_t *p, uint64_t bytes) {
    uint64_t s = 88172645463325252u;
    for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        uint64_t v = (s & 0x1f1f1f1f1f1f1f1fu) | 0x2020202020202020u;
        memcpy(p + i, &v, sizeof v);
    }
}

/* A matrix over `bytes` bytes of weights from p on. */
static sl_matrix matrix_over(const subject *s, uint8_t *p, uint64_t bytes) {
    sl_matrix m = {.format = s->format, .group = s->group, .side = s->side, .rows = 1, .cols = COLS};
    sl_error err;
    if (!sl_matrix_layout(&m, &err)) {
        fprintf(stderr, "kernels: %s\n", err.message);
        exit(1);
    }
    m.rows = (int64_t)(bytes / (m.row_bytes[0] + m.row_bytes[1] + m.row_bytes[2])) / 64 * 64;
    for (int i = 0; i < 3; i++) {
        m.part[i] = p;
        p += (uint64_t)m.rows * m.row_bytes[i];
    }
    return m;
}

static double matrix_bytes(const sl_matrix *m) {
    return (double)m->rows * (double)(m->row_bytes[0] + m->row_bytes[1] + m->row_bytes[2]);
}

/* ---- what is timed ---- */

typedef struct job {
    bench *b;
    const sl_matrix *m;
    cpu_rows in;
    int64_t ldy;
} job;

static void run_matmul(void *ctx, int64_t begin, int64_t end, int worker) {
    job *j = ctx;
    j->b->k->matmul(j->m, begin, end, &j->in, j->b->y, j->ldy, j->b->scratch[worker]);
}

static double seconds_since(uint64_t start) {
    return (double)(sl_now_ns() - start) * 1e-9;
}

static double time_matmul(bench *b, sl_pool *pool, const sl_matrix *m, int64_t n, int64_t grain) {
    job j = {b, m, {.cols = COLS, .n = n, .x = b->x, .ldx = COLS, .q = b->q}, m->rows};
    uint64_t start = sl_now_ns();
    sl_pool_run(pool, m->rows, grain, run_matmul, &j);
    return seconds_since(start);
}

typedef uint64_t wide __attribute__((vector_size(64), aligned(8)));

/* Reads pages begin .. end - 1 with the widest loads there are. */
static inline __attribute__((always_inline)) uint64_t read_pages(const uint8_t *p, int64_t begin, int64_t end) {
    wide sum[4] = {{0}};
    for (const uint8_t *at = p + 4096 * begin; at < p + 4096 * end; at += sizeof sum) {
        const wide *v = (const wide *)at;
        sum[0] ^= v[0];
        sum[1] ^= v[1];
        sum[2] ^= v[2];
        sum[3] ^= v[3];
    }
    sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
    return sum[0][0] ^ sum[0][7];
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static uint64_t read_512(const uint8_t *p, int64_t begin, int64_t end) {
    return read_pages(p, begin, end);
}

__attribute__((target("avx2"))) static uint64_t read_256(const uint8_t *p, int64_t begin, int64_t end) {
    return read_pages(p, begin, end);
}
#endif

static void run_read(void *ctx, int64_t begin, int64_t end, int worker) {
    const uint8_t *p = ((bench *)ctx)->weights;
    uint64_t sum;
#if defined(__x86_64__)
    sum = __builtin_cpu_supports("avx512f") ? read_512(p, begin, end)
          : __builtin_cpu_supports("avx2")  ? read_256(p, begin, end)
                                            : read_pages(p, begin, end);
#else
    sum = read_pages(p, begin, end);
#endif
    ((volatile float *)((bench *)ctx)->y)[worker] = (float)sum;
}

static double time_read(bench *b, sl_pool *pool) {
    uint64_t start = sl_now_ns();
    sl_pool_run(pool, (int64_t)(b->opt.bytes / 4096), 1024, run_read, b);
    return seconds_since(start);
}

/* Of all threads: what another program takes of the machine does not count. */
static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* GHz: a chain of dependent additions, one per cycle. */
static double measure_clock(void) {
#if defined(__x86_64__) || defined(__aarch64__)
    enum { N = 2000000 };
    uint64_t v = 1, start = sl_now_ns();
    for (int i = 0; i < N; i++) {
#if defined(__x86_64__)
        __asm__ volatile(
            "add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0"
            : "+r"(v));
#else
        __asm__ volatile(
            "add %0, %0, 1\n add %0, %0, 1\n add %0, %0, 1\n add %0, %0, 1\n add %0, %0, 1\n add %0, %0, 1\n"
            "add %0, %0, 1\n add %0, %0, 1"
            : "+r"(v));
#endif
    }
    return 8.0 * N * 1e-9 / seconds_since(start);
#else
    return 0;
#endif
}

/* ---- rounds ---- */

static bool wanted(const bench *b, int s) {
    return !b->opt.format || strcmp(b->opt.format, subjects[s].name) == 0;
}

static void measure_read(bench *b) {
    for (int t = 0; t < 2; t++) {
        b->read[t][b->reads] = (double)b->opt.bytes * 1e-9 / time_read(b, b->pool[t]);
    }
    b->reads++;
}

static void round_matvec(bench *b, int round) {
    for (int s = 0; s < SUBJECTS; s++) {
        if (!wanted(b, s)) {
            continue;
        }
        sl_matrix m = matrix_over(&subjects[s], b->weights, b->opt.bytes);
        for (int t = 0; t < 2; t++) {
            double before = processor_seconds();
            b->matvec[t][s][round] = matrix_bytes(&m) * 1e-9 / time_matmul(b, b->pool[t], &m, 1, 512);
            b->cpu[s][round] = t == 0 ? processor_seconds() - before : b->cpu[s][round];
        }
    }
}

static void round_matmul(bench *b, int round) {
    uint64_t at = 0;
    for (int s = 0; s < SUBJECTS; s++) {
        if (!wanted(b, s)) {
            continue;
        }
        for (int n = 0; n < BATCHES; n++) {
            for (int t = 0; t < 2; t++, at += MATMUL_BYTES) {
                at = at + MATMUL_BYTES > b->opt.bytes ? 0 : at;
                sl_matrix m = matrix_over(&subjects[s], b->weights + at, MATMUL_BYTES);
                double work = (double)m.rows * COLS * (double)batch[n] * 1e-9;
                b->matmul[t][s][n][round] = work / time_matmul(b, b->pool[t], &m, batch[n], 128);
            }
        }
    }
}

/* ---- printing ---- */

static double bytes_per_weight(bench *b, int s) {
    sl_matrix m = matrix_over(&subjects[s], b->weights, MATMUL_BYTES);
    return matrix_bytes(&m) / ((double)m.rows * (double)m.cols);
}

/* Median over rounds of the processor time per weight against that of the first subject, Q4_0. */
static double against_first(bench *b, int s) {
    double ratio[ROUNDS_MAX], bytes = bytes_per_weight(b, s) / bytes_per_weight(b, 0);
    for (int i = 0; i < b->opt.rounds; i++) {
        ratio[i] = b->cpu[s][i] / b->cpu[0][i] * bytes;
    }
    return median(ratio, b->opt.rounds);
}

static void print_results(bench *b) {
    int rounds = b->opt.rounds;
    double read[2] = {median(b->read[0], b->reads), median(b->read[1], b->reads)}, clock = 0;
    for (int i = 0; i < rounds; i++) {
        clock = b->clock[i] > clock ? b->clock[i] : clock; /* the rest is other programs' share */
    }
    printf("set %s, %d columns, clock %.2f GHz, read bandwidth %.1f GB/s with 1 thread, %.1f with %d\n\n", b->k->name,
           COLS, clock, read[0], read[1], b->opt.threads);
    printf("%-12s per weight, matvec GB/s (share of read) 1 and %d threads | matmul GMAC/s (per cycle and core), 1 "
           "thread; all "
           "threads, n =",
           "", b->opt.threads);
    for (int n = 0; n < BATCHES; n++) {
        printf(" %d", (int)batch[n]);
    }
    printf("\n");
    double ratio[SUBJECTS]; /* before medians sort the rounds */
    for (int s = 0; s < SUBJECTS; s++) {
        ratio[s] = wanted(b, s) && wanted(b, 0) ? against_first(b, s) : 0;
    }
    for (int s = 0; s < SUBJECTS; s++) {
        if (!wanted(b, s)) {
            continue;
        }
        printf("%-12s %5.2f", subjects[s].name, ratio[s]);
        for (int t = 0; t < 2; t++) {
            double v = median(b->matvec[t][s], rounds);
            printf(" %6.1f (%3.0f%%)", v, 100 * v / read[t]);
        }
        printf(" |");
        for (int n = 0; n < BATCHES; n++) {
            double v = median(b->matmul[0][s][n], rounds);
            printf(" %5.0f (%3.0f)", v, v / clock);
        }
        printf(" ;");
        for (int n = 0; n < BATCHES; n++) {
            printf(" %5.0f", median(b->matmul[1][s][n], rounds));
        }
        printf("\n");
    }
}

/* ---- main ---- */

static options parse(int argc, char **argv) {
    options o = {.bytes = 512ull << 20, .rounds = 5, .threads = sl_cpu_count(), .matmul = 1};
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *v = argv[i + 1];
        if (strcmp(argv[i], "--isa") == 0) {
            o.isa = v;
        } else if (strcmp(argv[i], "--format") == 0) {
            o.format = v;
        } else if (strcmp(argv[i], "--mib") == 0) {
            o.bytes = (uint64_t)atoi(v) << 20;
        } else if (strcmp(argv[i], "--rounds") == 0) {
            o.rounds = (int)sl_min_i64(atoi(v), ROUNDS_MAX);
        } else if (strcmp(argv[i], "--matmul") == 0) {
            o.matmul = atoi(v);
        } else if (strcmp(argv[i], "--threads") == 0) {
            o.threads = (int)sl_min_i64(atoi(v), 64);
        } else {
            fprintf(stderr, "kernels: unknown option %s\n", argv[i]);
            exit(2);
        }
    }
    return o;
}

int main(int argc, char **argv) {
    static bench b;
    sl_error err;
    b.opt = parse(argc, argv);
    b.k = cpu_kernels_named(b.opt.isa);
    b.pool[0] = sl_pool_new(1, &err);
    b.pool[1] = sl_pool_new(b.opt.threads, &err);
    if (!b.k || !b.pool[0] || !b.pool[1]) {
        fprintf(stderr, "kernels: %s\n", b.k ? err.message : "no such instruction set here");
        return 1;
    }
    b.weights = map(b.opt.bytes);
    fill(b.weights, b.opt.bytes);
    b.x = map(BATCH_MAX * COLS * sizeof(float));
    for (int64_t i = 0; i < BATCH_MAX * COLS; i++) {
        b.x[i] = (float)(i * 7919 % 2003) / 1001.0f - 1.0f;
    }
    b.q = map(BATCH_MAX * cpu_act_bytes(COLS));
    b.k->quantize(b.x, COLS, BATCH_MAX, COLS, b.q);
    b.y = map((uint64_t)BATCH_MAX * 32768 * sizeof(float));
    for (int t = 0; t < b.opt.threads; t++) {
        b.scratch[t] = map(cpu_scratch_bytes(COLS));
    }
    for (int round = 0; round < b.opt.rounds; round++) {
        measure_read(&b);
        round_matvec(&b, round);
        measure_read(&b);
        b.clock[round] = measure_clock();
        if (b.opt.matmul) {
            round_matmul(&b, round);
        }
    }
    print_results(&b);
    sl_pool_free(b.pool[0]);
    sl_pool_free(b.pool[1]);
    return 0;
}

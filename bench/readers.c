/* How fast the readers bring experts from the disk: io_uring by queue depth and piece size, pread by threads, direct
 * and through the page cache.
 *
 *   cc -std=gnu17 -O2 -D_GNU_SOURCE -DSL_HAVE_URING=1 -Isrc -Iinclude bench/readers.c src/experts/reader*.c \
 *      src/experts/{calibrate_disk,mirror}.c src/base/[!.]*.c -o readers -luring -pthread
 *   readers DIRECTORY [--mib N] [--ms N] [--rounds N] [--burst N]
 *
 * Writes a file of N MiB (default 1024, fewer on a slow disk) of random bytes into DIRECTORY, of which nothing stays,
 * and measures as `sluice doctor` does (sl_disk_meter): random extents of 0.5 to 3 MiB for N milliseconds (default
 * 120), in bursts of N (default 24: 8 experts of 3 parts), each burst submitted at once and waited for, as a decode
 * step does. Rounds are interleaved over the settings; figures are medians. cpu is processor time of this process, in
 * milliseconds per GB. */
#include "experts/calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { ROUNDS_MAX = 33, BURST_MAX = CALIBRATE_BURST, LEAST = 512 << 10, MOST = 3 << 20 };

typedef struct setting {
    sl_reader_kind kind;
    bool buffered;
    int depth;
    int piece_kib;
} setting;

static const setting settings[] = {
    {SL_READER_URING, false, 1, 512},   {SL_READER_URING, false, 4, 512},   {SL_READER_URING, false, 8, 512},
    {SL_READER_URING, false, 16, 512},  {SL_READER_URING, false, 32, 512},  {SL_READER_URING, false, 64, 512},
    {SL_READER_URING, false, 128, 512}, {SL_READER_URING, false, 64, 128},  {SL_READER_URING, false, 64, 256},
    {SL_READER_URING, false, 64, 1024}, {SL_READER_URING, false, 64, 4096}, {SL_READER_URING, false, 16, 256},
    {SL_READER_URING, false, 16, 1024}, {SL_READER_PREAD, false, 1, 512},   {SL_READER_PREAD, false, 2, 512},
    {SL_READER_PREAD, false, 4, 512},   {SL_READER_PREAD, false, 8, 512},   {SL_READER_PREAD, false, 16, 512},
    {SL_READER_PREAD, false, 32, 512},  {SL_READER_PREAD, false, 8, 128},   {SL_READER_PREAD, false, 8, 256},
    {SL_READER_PREAD, false, 8, 1024},  {SL_READER_PREAD, false, 8, 4096},  {SL_READER_URING, true, 64, 512},
    {SL_READER_PREAD, true, 1, 512},    {SL_READER_PREAD, true, 4, 512},    {SL_READER_PREAD, true, 8, 512},
    {SL_READER_PREAD, true, 16, 512},   {SL_READER_PREAD, true, 32, 512},
};
enum { SETTINGS = (int)SL_COUNT(settings) };

typedef struct options {
    const char *directory;
    uint64_t file_bytes;
    int rounds, burst, round_ms;
} options;

typedef struct figures {
    double mb_s[ROUNDS_MAX], cpu_ms_gb[ROUNDS_MAX];
    int n;
} figures;

static int fail(const char *what, const sl_error *err) {
    fprintf(stderr, "%s: %s\n", what, err->message);
    return 1;
}

static double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static bool measure(sl_disk_meter *m, const setting *s, figures *out, sl_error *err) {
    sl_reading how = {s->kind, !s->buffered, s->depth, (uint64_t)s->piece_kib << 10};
    uint64_t bytes = m->bytes;
    double cpu = cpu_seconds(), rate;
    if (!sl_disk_meter_measure(m, &how, &rate, err))
        return false;
    out->mb_s[out->n] = rate / 1e6;
    out->cpu_ms_gb[out->n++] = (cpu_seconds() - cpu) * 1000 / ((double)(m->bytes - bytes) * 1e-9);
    return true;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static void print_table(figures *all) {
    printf("%-6s %-9s %6s %7s %8s %15s %9s\n", "reader", "mode", "depth", "piece", "MB/s", "(least, most)",
           "cpu ms/GB");
    for (int i = 0; i < SETTINGS; i++) {
        const setting *s = &settings[i];
        figures *f = &all[i];
        if (f->n == 0)
            continue;
        double m = median(f->mb_s, f->n);
        printf("%-6s %-9s %6d %6dK %8.0f (%6.0f %6.0f) %9.0f\n", s->kind == SL_READER_URING ? "uring" : "pread",
               s->buffered ? "buffered" : "direct", s->depth, s->piece_kib, m, f->mb_s[0], f->mb_s[f->n - 1],
               median(f->cpu_ms_gb, f->n));
    }
}

static bool run(const options *o, const sl_file *f, sl_error *err) {
    static figures all[SETTINGS];
    sl_random_reads reads = {f, LEAST, MOST, 1};
    sl_disk_meter m = {
        .burst = sl_random_reads_burst, .user = &reads, .most = o->burst, .round_ns = (uint64_t)o->round_ms * 1000000};
    if (f->direct_fd < 0)
        printf("no O_DIRECT in %s: all is buffered\n", o->directory);
    bool ok = sl_disk_meter_open(&m, (uint64_t)o->burst * MOST, err);
    for (int round = 0; ok && round < o->rounds; round++)
        for (int i = 0; ok && i < SETTINGS; i++)
            ok = measure(&m, &settings[i], &all[i], err);
    sl_disk_meter_close(&m);
    if (!ok)
        return false;
    printf("%s: %d ms a measurement, of a file of %llu MiB, bursts of %d, %d rounds\n", o->directory, o->round_ms,
           (unsigned long long)(f->size >> 20), o->burst, o->rounds);
    print_table(all);
    return true;
}

static bool take_options(int argc, char **argv, options *o) {
    *o = (options){.file_bytes = 1ull << 30, .rounds = 5, .burst = 24, .round_ms = 120};
    for (int i = 1; i < argc; i++) {
        long v = i + 1 < argc ? strtol(argv[i + 1], NULL, 10) : 0;
        if (strcmp(argv[i], "--mib") == 0 && v > 0)
            o->file_bytes = (uint64_t)v << 20, i++;
        else if (strcmp(argv[i], "--ms") == 0 && v > 0 && v <= 60000)
            o->round_ms = (int)v, i++;
        else if (strcmp(argv[i], "--rounds") == 0 && v > 0 && v <= ROUNDS_MAX)
            o->rounds = (int)v, i++;
        else if (strcmp(argv[i], "--burst") == 0 && v > 0 && v <= BURST_MAX)
            o->burst = (int)v, i++;
        else if (argv[i][0] != '-' && !o->directory)
            o->directory = argv[i];
        else
            return false;
    }
    return o->directory != NULL;
}

int main(int argc, char **argv) {
    options o;
    sl_error err;
    if (!take_options(argc, argv, &o)) {
        fprintf(stderr, "readers DIRECTORY [--mib N] [--ms N] [--rounds N] [--burst N]\n");
        return 2;
    }
    sl_file *f = sl_random_file(o.directory, o.file_bytes, UINT64_MAX / 4, NULL, NULL, &err);
    int status = f && run(&o, f, &err) ? 0 : fail(o.directory, &err);
    sl_file_close(f);
    return status;
}

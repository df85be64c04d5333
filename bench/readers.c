/* How fast the readers bring experts from the disk: io_uring by queue depth and piece size, pread by threads, direct
 * and through the page cache.
 *
 *   cc -std=gnu17 -O2 -D_GNU_SOURCE -DSL_HAVE_URING=1 -Isrc -Iinclude bench/readers.c src/experts/reader*.c \
 *      src/base/[!.]*.c -o readers -luring -pthread
 *   readers DIRECTORY [--gib N] [--mib N] [--rounds N] [--burst N]
 *
 * Writes a file of N GiB (default 4) of random bytes into DIRECTORY and deletes it at the end. A measurement reads
 * random extents of 0.5 to 3 MiB, N MiB in all (default 192), in bursts of N (default 24: 8 experts of 3 parts), each
 * burst submitted at once and waited for, as a decode step does. Rounds are interleaved over the settings; figures are
 * medians. cpu is processor time of this process, in milliseconds per GB. */
#include "experts/experts.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { ROUNDS_MAX = 33, BURST_MAX = 256, LEAST = 512 << 10, MOST = 3 << 20, ALIGN = 4096 };

typedef struct setting {
    sl_reader_kind kind;
    bool buffered;
    int depth;
    int piece_kib;
    bool unregistered;
} setting;

static const setting settings[] = {
    {SL_READER_URING, false, 1, 512, false},   {SL_READER_URING, false, 4, 512, false},
    {SL_READER_URING, false, 8, 512, false},   {SL_READER_URING, false, 16, 512, false},
    {SL_READER_URING, false, 32, 512, false},  {SL_READER_URING, false, 64, 512, false},
    {SL_READER_URING, false, 128, 512, false}, {SL_READER_URING, false, 64, 512, true},
    {SL_READER_URING, false, 64, 128, false},  {SL_READER_URING, false, 64, 256, false},
    {SL_READER_URING, false, 64, 1024, false}, {SL_READER_URING, false, 64, 4096, false},
    {SL_READER_URING, false, 16, 256, false},  {SL_READER_URING, false, 16, 1024, false},
    {SL_READER_PREAD, false, 1, 512, false},   {SL_READER_PREAD, false, 2, 512, false},
    {SL_READER_PREAD, false, 4, 512, false},   {SL_READER_PREAD, false, 8, 512, false},
    {SL_READER_PREAD, false, 16, 512, false},  {SL_READER_PREAD, false, 32, 512, false},
    {SL_READER_PREAD, false, 8, 128, false},   {SL_READER_PREAD, false, 8, 256, false},
    {SL_READER_PREAD, false, 8, 1024, false},  {SL_READER_PREAD, false, 8, 4096, false},
    {SL_READER_URING, true, 64, 512, false},   {SL_READER_PREAD, true, 1, 512, false},
    {SL_READER_PREAD, true, 4, 512, false},    {SL_READER_PREAD, true, 8, 512, false},
    {SL_READER_PREAD, true, 16, 512, false},   {SL_READER_PREAD, true, 32, 512, false},
};
enum { SETTINGS = (int)SL_COUNT(settings) };

typedef struct options {
    const char *directory;
    uint64_t file_bytes, measure_bytes;
    int rounds, burst;
} options;

typedef struct figures {
    double mb_s[ROUNDS_MAX], cpu_ms_gb[ROUNDS_MAX];
    int n;
} figures;

static uint64_t random_state = 1;

static uint64_t random_u64(void) {
    uint64_t x = random_state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static int fail(const char *what, const sl_error *err) {
    fprintf(stderr, "%s: %s\n", what, err->message);
    return 1;
}

/* Random bytes: a disk that compresses or leaves out zeros would flatter itself. */
static char *write_file(const options *o, sl_error *err) {
    char *path = sl_asprintf("%s/sluice-bench-XXXXXX", o->directory);
    int fd = path ? mkstemp(path) : -1;
    uint64_t *block = malloc(1 << 20);
    bool ok = fd >= 0 && block;
    for (uint64_t at = 0; ok && at < o->file_bytes; at += 1 << 20) {
        for (int i = 0; i < (1 << 20) / 8; i++)
            block[i] = random_u64() | 1;
        ok = write(fd, block, 1 << 20) == 1 << 20;
    }
    ok = ok && fsync(fd) == 0;
    if (!ok)
        sl_fail(err, SL_ERR_IO, "cannot write a file of %llu bytes", (unsigned long long)o->file_bytes);
    if (fd >= 0)
        close(fd);
    free(block);
    return ok ? path : NULL;
}

static double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* One burst: random extents, one after the other in memory. Returns its bytes. */
static uint64_t make_burst(const options *o, const sl_file *f, uint8_t *memory, sl_read *reads) {
    uint64_t at = 0;
    for (int i = 0; i < o->burst; i++) {
        uint64_t bytes = sl_round_up(LEAST + random_u64() % (MOST - LEAST), ALIGN);
        uint64_t offset = random_u64() % (f->size - bytes) / ALIGN * ALIGN;
        reads[i] = (sl_read){f, offset, bytes, memory + at, bytes, NULL, 0};
        at += bytes;
    }
    return at;
}

static bool run_burst(const options *o, sl_reader *r, const sl_read *reads, sl_error *err) {
    static sl_read_result got[64];
    if (!r->submit(r, reads, o->burst, err))
        return false;
    for (int left = o->burst; left > 0;) {
        int n = r->collect(r, got, (int)SL_COUNT(got), UINT64_MAX);
        for (int i = 0; i < n; i++) {
            if (!got[i].ok) {
                *err = got[i].error;
                return false;
            }
        }
        left -= n;
    }
    return true;
}

static bool measure(const options *o, const setting *s, const sl_file *f, uint8_t *memory, figures *out,
                    sl_error *err) {
    sl_read reads[BURST_MAX];
    sl_reader_options ro = {
        .kind = s->kind, .buffered = s->buffered, .depth = s->depth, .piece_bytes = (uint64_t)s->piece_kib << 10};
    sl_reader *r = sl_reader_open(&ro, err);
    if (!r)
        return false;
    uint64_t memory_bytes = (uint64_t)o->burst * MOST, bytes = 0;
    if (r->add_memory && !s->unregistered)
        r->add_memory(r, memory, memory_bytes);
    double cpu = cpu_seconds();
    uint64_t begin = sl_now_ns();
    bool ok = true;
    while (ok && bytes < o->measure_bytes) {
        bytes += make_burst(o, f, memory, reads);
        ok = run_burst(o, r, reads, err);
    }
    double seconds = (double)(sl_now_ns() - begin) * 1e-9, gb = (double)bytes * 1e-9;
    out->mb_s[out->n] = gb * 1000 / seconds;
    out->cpu_ms_gb[out->n++] = (cpu_seconds() - cpu) * 1000 / gb;
    r->close(r);
    return ok;
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
    printf("%-6s %-9s %6s %7s %12s %8s %15s %9s\n", "reader", "mode", "depth", "piece", "memory", "MB/s",
           "(least, most)", "cpu ms/GB");
    for (int i = 0; i < SETTINGS; i++) {
        const setting *s = &settings[i];
        figures *f = &all[i];
        if (f->n == 0)
            continue;
        double m = median(f->mb_s, f->n);
        bool uring = s->kind == SL_READER_URING;
        printf("%-6s %-9s %6d %6dK %12s %8.0f (%6.0f %6.0f) %9.0f\n", uring ? "uring" : "pread",
               s->buffered ? "buffered" : "direct", s->depth, s->piece_kib,
               !uring            ? ""
               : s->unregistered ? "unregistered"
                                 : "registered",
               m, f->mb_s[0], f->mb_s[f->n - 1], median(f->cpu_ms_gb, f->n));
    }
}

static int run(const options *o, const sl_file *f) {
    static figures all[SETTINGS];
    sl_error err;
    uint64_t memory_bytes = (uint64_t)o->burst * MOST;
    uint8_t *memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    memset(memory, 1, memory_bytes);
    if (f->direct_fd < 0)
        printf("no O_DIRECT in %s: all is buffered\n", o->directory);
    /* As the store does: the system must not read more than what is asked for. */
    posix_fadvise(f->fd, 0, 0, POSIX_FADV_RANDOM);
    sl_file_drop(f, 0, f->size);
    for (int round = 0; round < o->rounds; round++) {
        for (int i = 0; i < SETTINGS; i++) {
            if (!measure(o, &settings[i], f, memory, &all[i], &err))
                return fail("reader", &err);
        }
    }
    printf("%s: %llu MiB of a file of %llu GiB a measurement, bursts of %d, %d rounds\n", o->directory,
           (unsigned long long)(o->measure_bytes >> 20), (unsigned long long)(o->file_bytes >> 30), o->burst,
           o->rounds);
    print_table(all);
    munmap(memory, memory_bytes);
    return 0;
}

static bool take_options(int argc, char **argv, options *o) {
    *o = (options){.file_bytes = 4ull << 30, .measure_bytes = 192 << 20, .rounds = 5, .burst = 24};
    for (int i = 1; i < argc; i++) {
        long v = i + 1 < argc ? strtol(argv[i + 1], NULL, 10) : 0;
        if (strcmp(argv[i], "--gib") == 0 && v > 0)
            o->file_bytes = (uint64_t)v << 30, i++;
        else if (strcmp(argv[i], "--mib") == 0 && v > 0)
            o->measure_bytes = (uint64_t)v << 20, i++;
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
        fprintf(stderr, "readers DIRECTORY [--gib N] [--mib N] [--rounds N] [--burst N]\n");
        return 2;
    }
    char *path = write_file(&o, &err);
    if (!path)
        return fail(o.directory, &err);
    sl_file *f = sl_file_open(path, &err);
    int status = f ? run(&o, f) : fail(path, &err);
    sl_file_close(f);
    unlink(path);
    free(path);
    return status;
}

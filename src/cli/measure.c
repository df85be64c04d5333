/* What this machine reads per second, from memory and from the disk under a model, measured briefly. */
#include "cli.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- memory ------------------------------------------------------------------------------------------------------ */

enum { MEMORY_MOST = 256 << 20, MEMORY_LEAST = 1 << 20, MEMORY_ROUNDS = 5, GRAIN = 1 << 15 };

uint64_t cli_spare_memory(uint64_t budget) {
    enum { SLACK = 4 << 20 }; /* stacks of threads, page tables, and by how much the measured size is off */
    uint64_t limit = sl_memory_limit(NULL), held = sl_peak_rss() + SLACK;
    if (budget > 0 && budget < limit)
        limit = budget;
    return limit > held ? limit - held : 0;
}

/* Pages of their own, so that all of them go back to the system: an allocator might keep some. */
static void *take_pages(uint64_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void give_pages(void *p, uint64_t bytes) {
    if (p)
        munmap(p, bytes);
}

/* Of the last level, as far as so many threads share it; where the system does not say, what large machines have. Of
 * the system's words the smaller one: C's may count every core's share, the kernel's is that of one group of cores. */
static uint64_t cache_bytes(int threads) {
    unsigned long long group = 0;
    long all = -1;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
    if (f && fscanf(f, "%lluK", &group) != 1)
        group = 0;
    if (f)
        fclose(f);
    group *= 1024 * (unsigned long long)threads;
#ifdef _SC_LEVEL3_CACHE_SIZE
    all = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    if (all > 0 && (group == 0 || (unsigned long long)all < group))
        group = (unsigned long long)all;
    return group > 0 ? group : 32 << 20;
}

typedef struct memory_job {
    const uint64_t *words;
    uint64_t sums[1024];
} memory_job;

/* Four sums, so that additions do not wait for each other: the loop is as fast as loads are. */
static void sum_words(void *ctx, int64_t begin, int64_t end, int worker) {
    memory_job *job = ctx;
    const uint64_t *w = job->words;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (int64_t i = begin; i + 32 <= end; i += 32)
        for (int64_t k = 0; k < 32; k += 4) {
            a += w[i + k];
            b += w[i + k + 1];
            c += w[i + k + 2];
            d += w[i + k + 3];
        }
    job->sums[worker] += a + b + c + d;
}

bool cli_measure_memory_read(int threads, uint64_t spare, cli_machine_rates *out, sl_error *err) {
    uint64_t bytes = spare < MEMORY_MOST ? spare / 4096 * 4096 : MEMORY_MOST, best = UINT64_MAX;
    bytes = bytes < MEMORY_LEAST ? MEMORY_LEAST : bytes;
    memory_job *job = calloc(1, sizeof *job);
    uint64_t *words = take_pages(bytes);
    int64_t n = (int64_t)(bytes / sizeof *words);
    sl_pool *pool = job && words ? sl_pool_new(threads < 1024 ? threads : 1024, err) : NULL;
    if (pool) {
        memset(words, 1, bytes);
        job->words = words;
        for (int i = 0; i < MEMORY_ROUNDS; i++) {
            uint64_t began = sl_now_ns();
            sl_pool_run(pool, n, GRAIN, sum_words, job);
            uint64_t took = sl_now_ns() - began;
            best = took < best ? took : best;
        }
        /* The sums must be wanted, or the loop is none. */
        if (job->sums[0] == 1)
            best++;
    } else if (!job || !words) {
        sl_fail(err, SL_ERR_MEMORY, "out of memory for measuring memory");
    }
    sl_pool_free(pool);
    give_pages(words, bytes);
    free(job);
    out->memory_read = (double)bytes / ((double)best / 1e9);
    out->beyond_caches = bytes >= 2 * cache_bytes(threads);
    return pool != NULL;
}

/* ---- disk -------------------------------------------------------------------------------------------------------- */

enum { HUGE_PAGE = 2 << 20 };

void *cli_read_memory(size_t bytes) {
    void *area = NULL;
    bytes = sl_round_up(bytes, HUGE_PAGE);
    if (posix_memalign(&area, HUGE_PAGE, bytes) != 0)
        return NULL;
#ifdef MADV_HUGEPAGE
    madvise(area, bytes, MADV_HUGEPAGE);
#endif
    memset(area, 1, bytes);
    return area;
}

static bool has_suffix(const char *name, const char *suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

/* The file itself, or the largest weight file of a directory. Allocated. */
static char *largest_weight_file(const char *path, sl_error *err) {
    struct stat st;
    char *best = NULL;
    off_t most = -1;
    if (!sl_path_is_dir(path))
        return sl_strdup(path);
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (!has_suffix(entry->d_name, ".safetensors") && !has_suffix(entry->d_name, ".gguf") &&
            !has_suffix(entry->d_name, ".bin"))
            continue;
        char *file = sl_path_join(path, entry->d_name);
        if (file && stat(file, &st) == 0 && st.st_size > most) {
            most = st.st_size;
            free(best);
            best = file;
        } else {
            free(file);
        }
    }
    if (dir)
        closedir(dir);
    return best ? best : sl_fail_null(err, SL_ERR_IO, "%s: no weight file to measure the disk with", path);
}

typedef struct disk_job {
    const sl_file *file;
    uint64_t piece, end_ns;
    bool huge;          /* buffers of huge pages, as the engine has them */
    atomic_ullong next; /* position of the random sequence */
    atomic_ullong bytes;
    atomic_bool failed;
} disk_job;

/* splitmix64: every number of the sequence from its position. */
static uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static void *read_pieces(void *arg) {
    disk_job *job = arg;
    int fd = job->file->direct_fd >= 0 ? job->file->direct_fd : job->file->fd;
    uint64_t places = (job->file->size - job->piece) / 4096 + 1;
    void *to = job->huge ? cli_read_memory(job->piece) : take_pages(job->piece);
    if (!to) {
        atomic_store(&job->failed, true);
        return NULL;
    }
    while (!atomic_load(&job->failed) && sl_now_ns() < job->end_ns) {
        uint64_t at = mix(atomic_fetch_add(&job->next, 1)) % places * 4096;
        ssize_t got = pread(fd, to, job->piece, (off_t)at);
        if (got != (ssize_t)job->piece)
            atomic_store(&job->failed, true);
        else
            atomic_fetch_add(&job->bytes, (unsigned long long)got);
        if (job->file->direct_fd < 0)
            sl_file_drop(job->file, at, job->piece);
    }
    if (job->huge)
        free(to);
    else
        give_pages(to, job->piece);
    return NULL;
}

/* As many buffers as fit, huge pages where those fit too; a piece that alone is too large is cut. */
static int fit_buffers(disk_job *job, int depth, uint64_t spare) {
    uint64_t huge = sl_round_up(job->piece, HUGE_PAGE);
    job->huge = spare / huge >= (uint64_t)depth;
    if (job->huge)
        return depth;
    if (job->piece > spare)
        job->piece = spare > 2 * 4096 ? spare / 4096 * 4096 : 4096;
    uint64_t fit = spare / job->piece;
    return fit < 1 ? 1 : fit < (uint64_t)depth ? (int)fit : depth;
}

static bool measure_file(const sl_file *file, uint64_t piece, int depth, double seconds, uint64_t spare,
                         cli_machine_rates *out, sl_error *err) {
    enum { MOST = 64 };
    pthread_t threads[MOST];
    int started = 0;
    piece = sl_round_up(piece ? piece : 1, 4096);
    if (piece > file->size)
        piece = file->size / 4096 * 4096;
    if (piece == 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: too small to measure the disk with", file->path);
    uint64_t began = sl_now_ns();
    disk_job job = {.file = file, .piece = piece, .end_ns = began + (uint64_t)(seconds * 1e9)};
    depth = fit_buffers(&job, depth, spare);
    while (started < depth && started < MOST && pthread_create(&threads[started], NULL, read_pieces, &job) == 0)
        started++;
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    double took = (double)(sl_now_ns() - began) / 1e9;
    if (atomic_load(&job.failed) || started == 0)
        return sl_fail(err, SL_ERR_IO, "%s: reading %llu bytes at random places failed", file->path,
                       (unsigned long long)job.piece);
    out->disk_bytes = atomic_load(&job.bytes);
    out->disk_read = (double)out->disk_bytes / took;
    out->disk_direct = file->direct_fd >= 0;
    return true;
}

bool cli_measure_disk_read(const char *model_path, uint64_t piece, int depth, double seconds, uint64_t spare,
                           cli_machine_rates *out, sl_error *err) {
    char *path = largest_weight_file(model_path, err);
    sl_file *file = path ? sl_file_open(path, err) : NULL;
    bool ok = file && measure_file(file, piece, depth, seconds, spare, out, err);
    sl_file_close(file);
    free(path);
    return ok;
}

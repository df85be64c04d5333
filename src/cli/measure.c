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

enum { MEMORY_BYTES = 256 << 20, MEMORY_ROUNDS = 5 };

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

double cli_measure_memory_read(int threads, sl_error *err) {
    memory_job *job = calloc(1, sizeof *job);
    uint64_t *words = aligned_alloc(4096, MEMORY_BYTES), best = UINT64_MAX;
    int64_t n = MEMORY_BYTES / (int64_t)sizeof *words;
    sl_pool *pool = job && words ? sl_pool_new(threads < 1024 ? threads : 1024, err) : NULL;
    if (pool) {
        memset(words, 1, MEMORY_BYTES);
        job->words = words;
        for (int i = 0; i < MEMORY_ROUNDS; i++) {
            uint64_t began = sl_now_ns();
            sl_pool_run(pool, n, 1 << 18, sum_words, job);
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
    free(words);
    free(job);
    return pool ? (double)MEMORY_BYTES / ((double)best / 1e9) : -1;
}

/* ---- disk -------------------------------------------------------------------------------------------------------- */

void *cli_read_memory(size_t bytes) {
    enum { HUGE_PAGE = 2 << 20 };
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
        if (!has_suffix(entry->d_name, ".safetensors") && !has_suffix(entry->d_name, ".gguf"))
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
    void *to = cli_read_memory(job->piece);
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
    }
    free(to);
    return NULL;
}

static bool measure_file(const sl_file *file, uint64_t piece, int depth, double seconds, cli_machine_rates *out,
                         sl_error *err) {
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
    while (started < depth && started < MOST && pthread_create(&threads[started], NULL, read_pieces, &job) == 0)
        started++;
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    double took = (double)(sl_now_ns() - began) / 1e9;
    if (atomic_load(&job.failed) || started == 0)
        return sl_fail(err, SL_ERR_IO, "%s: reading %llu bytes at random places failed", file->path,
                       (unsigned long long)piece);
    out->disk_bytes = atomic_load(&job.bytes);
    out->disk_read = (double)out->disk_bytes / took;
    out->disk_direct = file->direct_fd >= 0;
    return true;
}

bool cli_measure_disk_read(const char *model_path, uint64_t piece, int depth, double seconds, cli_machine_rates *out,
                           sl_error *err) {
    char *path = largest_weight_file(model_path, err);
    sl_file *file = path ? sl_file_open(path, err) : NULL;
    bool ok = file && measure_file(file, piece, depth, seconds, out, err);
    sl_file_close(file);
    free(path);
    return ok;
}

/* Measuring how fast bursts of reads come, with the readers that the engine has. */
#include "experts/calibrate.h"

#include "experts/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { BLOCK = 4096, HUGE_PAGE = 2 << 20, WRITE_STEP = 4 << 20, FLUSH_STEPS = 8, LEAST_FILE = 16 << 20, RESULTS = 8 };
#define ROUND_NS     80000000u
#define DISK_LEFT    (UINT64_C(64) << 20) /* stays free on the disk */
#define BURST_ROUNDS 0.9

/* splitmix64 */
static uint64_t next_random(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* ---- meter ------------------------------------------------------------------------------------------------------- */

bool sl_disk_meter_open(sl_disk_meter *m, uint64_t area_bytes, sl_error *err) {
    void *area = NULL;
    m->area_bytes = sl_round_up(area_bytes, HUGE_PAGE);
    m->most = m->most ? m->most : CALIBRATE_BURST;
    m->round_ns = m->round_ns ? m->round_ns : ROUND_NS;
    if (posix_memalign(&area, HUGE_PAGE, m->area_bytes) != 0)
        return sl_fail(err, SL_ERR_MEMORY, "calibration: out of memory for %llu bytes to read to",
                       (unsigned long long)m->area_bytes);
#ifdef MADV_HUGEPAGE
    madvise(area, m->area_bytes, MADV_HUGEPAGE); /* as the engine's slabs */
#endif
    memset(area, 0, m->area_bytes);
    m->area = area;
    return true;
}

void sl_disk_meter_close(sl_disk_meter *m) {
    free(m->area);
    m->area = NULL;
}

uint64_t sl_disk_meter_now(void *user) {
    return sl_now_ns();
}

bool sl_disk_meter_go_on(void *user) {
    const sl_disk_meter *m = user;
    return !m->go_on || m->go_on(m->go_on_user);
}

void sl_disk_meter_fit(sl_disk_meter *m, double rate) {
    double mean = m->reads ? (double)m->bytes / (double)m->reads : 0,
           fit = mean > 0 ? rate * BURST_ROUNDS * (double)m->round_ns / 1e9 / mean : m->most;
    if (fit < m->most)
        m->most = fit < 1 ? 1 : (int)fit;
}

/* Gives the reads their places, as many as there is room for; returns how many. */
static int place_reads(const sl_disk_meter *m, sl_read *reads, int n) {
    uint64_t at = 0;
    for (int i = 0; i < n; i++) {
        uint64_t bytes = sl_round_up(reads[i].bytes, BLOCK);
        if (at + bytes > m->area_bytes)
            return i;
        reads[i].dst = m->area + at;
        at += bytes;
    }
    return n;
}

/* Bytes of the burst, 0 on failure. */
static uint64_t run_burst(sl_disk_meter *m, sl_reader *r, sl_error *err) {
    sl_read reads[CALIBRATE_BURST];
    sl_read_result got[RESULTS];
    uint64_t bytes = 0;
    int n = place_reads(m, reads, m->burst(m->user, r->direct, reads, m->most));
    if (n <= 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "calibration: no read fits %llu bytes", (unsigned long long)m->area_bytes),
               0;
    for (int i = 0; i < n; i++)
        bytes += reads[i].need;
    if (!r->submit(r, reads, n, err))
        return 0;
    for (int left = n; left > 0;) {
        int k = r->collect(r, got, RESULTS, UINT64_MAX);
        if (k <= 0)
            return sl_fail(err, SL_ERR_IO, "calibration: %d reads never came back", left), 0;
        for (int i = 0; i < k; i++) {
            if (!got[i].ok) {
                *err = got[i].error; /* closing the reader waits for the rest */
                return 0;
            }
        }
        left -= k;
    }
    m->bytes += bytes;
    m->reads += (uint64_t)n;
    return bytes;
}

bool sl_disk_meter_measure(void *user, const sl_reading *how, double *rate, sl_error *err) {
    sl_disk_meter *m = user;
    sl_error ignored, *e = err ? err : &ignored;
    sl_reader_options o = {
        .kind = how->kind, .buffered = !how->direct, .depth = how->depth, .piece_bytes = how->piece_bytes};
    sl_reader *r = sl_reader_open(&o, e);
    if (!r)
        return false;
    if (r->add_memory)
        r->add_memory(r, m->area, m->area_bytes);
    uint64_t began = sl_now_ns(), took = 0, bytes = 0, burst, last;
    do { /* another burst, as long as that brings the time nearer to a round's */
        last = took;
        burst = run_burst(m, r, e);
        bytes += burst;
        took = sl_now_ns() - began;
    } while (burst > 0 && took + (took - last) / 2 < m->round_ns);
    r->close(r);
    *rate = (double)bytes * 1e9 / (double)(took ? took : 1);
    return burst > 0;
}

/* ---- what is read ------------------------------------------------------------------------------------------------ */

int sl_random_reads_burst(void *user, bool direct, sl_read *reads, int max) {
    sl_random_reads *x = user;
    uint64_t size = x->file->size;
    for (int i = 0; i < max; i++) {
        uint64_t bytes = sl_round_up(x->least + next_random(&x->state) % (x->most - x->least + 1), BLOCK);
        if (bytes > size)
            return i;
        uint64_t offset = next_random(&x->state) % (size - bytes + 1) / BLOCK * BLOCK;
        reads[i] = (sl_read){.file = x->file, .offset = offset, .bytes = bytes, .need = bytes};
    }
    return max;
}

static bool has_room(const char *directory, uint64_t bytes, sl_error *err) {
    struct statvfs v;
    if (statvfs(directory, &v) != 0)
        return sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot ask for its free space", directory);
    uint64_t room = (uint64_t)v.f_bavail * (uint64_t)v.f_frsize;
    return room >= bytes + DISK_LEFT ||
           sl_fail(err, SL_ERR_IO, "%s: %llu bytes are free, %llu are needed to measure the disk", directory,
                   (unsigned long long)room, (unsigned long long)(bytes + DISK_LEFT));
}

static bool write_all(int fd, const uint8_t *from, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t w = write(fd, from + done, n - done);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return false;
        done += (size_t)w;
    }
    return true;
}

static bool cannot_write(const char *directory, sl_error *err) {
    return sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot write a file to measure the disk with", directory);
}

/* Whether what was written so far is brought to the disk, so that a slow one is seen in time: after 4, 8, 16 and 32
 * MiB, then every 32. */
static bool flush_now(uint64_t steps) {
    return steps % FLUSH_STEPS == 0 || (steps < FLUSH_STEPS && (steps & (steps - 1)) == 0);
}

/* Random bytes: a disk that compresses or leaves out zeros would flatter itself. */
static bool write_random(int fd, const char *directory, uint64_t bytes, uint64_t limit_ns, bool (*go_on)(void *user),
                         void *user, uint64_t *written, sl_error *err) {
    uint64_t state = sl_now_ns(), end = state + limit_ns;
    uint64_t *block = malloc(WRITE_STEP);
    bool ok = block || sl_fail(err, SL_ERR_MEMORY, "calibration: out of memory");
    for (*written = 0; ok && *written < bytes; *written += WRITE_STEP) {
        uint64_t now = sl_now_ns();
        if ((*written >= LEAST_FILE && now >= end) || (*written > 0 && now >= end + 2 * limit_ns))
            break;
        for (int i = 0; i < WRITE_STEP / 8; i++)
            block[i] = next_random(&state) | 1;
        if (go_on && !go_on(user))
            ok = sl_fail(err, SL_ERR_CANCELLED, "calibration: stopped");
        else if (!write_all(fd, (const uint8_t *)block, WRITE_STEP) ||
                 (flush_now(*written / WRITE_STEP + 1) && fsync(fd) != 0))
            ok = cannot_write(directory, err);
    }
    free(block);
    return ok && (fsync(fd) == 0 || cannot_write(directory, err));
}

/* A file without a name from the beginning, where the file system has such: a kill at any moment leaves nothing. */
static int open_nameless(const char *directory) {
#ifdef O_TMPFILE
    return open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
#else
    return -1;
#endif
}

/* The path at which another descriptor of an open file is had; allocated. */
static char *path_of(int fd) {
    return sl_asprintf("/proc/self/fd/%d", fd);
}

/* *fd: to write; the file: to read. */
static sl_file *open_temporary(const char *directory, int *fd, sl_error *err) {
    char *path = (*fd = open_nameless(directory)) >= 0 ? path_of(*fd) : NULL;
    sl_file *f = path ? sl_file_open(path, NULL) : NULL;
    free(path);
    if (f)
        return f;
    if (*fd >= 0)
        close(*fd);
    path = sl_asprintf("%s/.sluice-doctor-XXXXXX", directory);
    *fd = path ? mkstemp(path) : -1;
    if (*fd >= 0) {
        f = sl_file_open(path, err);
        unlink(path);
        if (!f)
            close(*fd);
    } else {
        sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot create a file to measure the disk with", directory);
    }
    free(path);
    return f;
}

/* In messages it is the directory's file. */
static void name_after(sl_file *f, const char *directory) {
    char *name = sl_asprintf("%s (a file without a name)", directory);
    if (name) {
        free(f->path);
        f->path = name;
    }
}

sl_file *sl_random_file(const char *directory, uint64_t bytes, uint64_t limit_ns, bool (*go_on)(void *user), void *user,
                        sl_error *err) {
    int fd = -1;
    uint64_t written = 0;
    sl_file *f = has_room(directory, bytes, err) ? open_temporary(directory, &fd, err) : NULL;
    if (!f)
        return NULL;
    name_after(f, directory);
    bool ok = write_random(fd, directory, bytes, limit_ns, go_on, user, &written, err);
    close(fd);
    if (!ok) {
        sl_file_close(f);
        return NULL;
    }
    f->size = written;
    experts_file_prepare(f);
    sl_file_drop(f, 0, f->size);
    return f;
}

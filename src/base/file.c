/* Files: exact reads with errors that say what was found. */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* O_NONBLOCK: opening a FIFO must not wait for a writer; regular files ignore it. */
enum { OPEN_FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK };

#ifdef O_DIRECT
/* The alignment O_DIRECT asks for, found by trying: 512 where the device allows it, else 4096. */
static uint32_t probe_direct_align(int fd, uint64_t size) {
    void *page = NULL;
    if (size < 8192 || posix_memalign(&page, 4096, 4096) != 0)
        return 4096;
    uint32_t align = pread(fd, page, 512, 512) == 512 ? 512 : 4096;
    free(page);
    return align;
}

static bool same_file(int fd, const struct stat *as) {
    struct stat st;
    return fstat(fd, &st) == 0 && st.st_dev == as->st_dev && st.st_ino == as->st_ino;
}
#endif

static int64_t change_time(const struct stat *st) {
#ifdef __APPLE__
    return (int64_t)st->st_mtimespec.tv_sec * 1000000000 + st->st_mtimespec.tv_nsec;
#else
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
#endif
}

static void open_direct(sl_file *f, const struct stat *st) {
    f->direct_fd = -1;
    f->direct_align = 4096;
#ifdef O_DIRECT
    int fd = open(f->path, OPEN_FLAGS | O_DIRECT);
    if (fd < 0)
        return;
    /* The path may name another file by now: half the bytes of each would be a model that never was. */
    if (!same_file(fd, st)) {
        close(fd);
        return;
    }
    f->direct_fd = fd;
    f->direct_align = probe_direct_align(fd, f->size);
#endif
}

/* A symbolic link that leads nowhere is there and cannot be opened: that should not sound as if it were not there. */
static bool fail_open(const char *path, int saved, sl_error *err) {
    struct stat st;
    bool link = lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
    if (link && saved == ENOENT)
        return sl_fail(err, SL_ERR_IO, "%s: cannot open: a symbolic link to a file that is not there", path);
    if (saved == ELOOP)
        return sl_fail(err, SL_ERR_IO, "%s: cannot open: symbolic links that lead in a circle", path);
    return sl_fail_errno(err, SL_ERR_IO, saved, "%s: cannot open", path);
}

sl_file *sl_file_open(const char *path, sl_error *err) {
    int fd = open(path, OPEN_FLAGS);
    if (fd < 0)
        return fail_open(path, errno, err), NULL;
    struct stat st;
    if (fstat(fd, &st) != 0) {
        int saved = errno;
        close(fd);
        return sl_fail_errno(err, SL_ERR_IO, saved, "%s: cannot stat", path), NULL;
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return sl_fail_null(err, SL_ERR_IO, "%s: not a regular file", path);
    }
    sl_file *f = calloc(1, sizeof *f);
    char *copy = sl_strdup(path);
    if (!f || !copy) {
        free(f);
        free(copy);
        close(fd);
        return sl_fail_null(err, SL_ERR_MEMORY, "%s: out of memory", path);
    }
    *f = (sl_file){.path = copy, .fd = fd, .size = (uint64_t)st.st_size, .changed_ns = change_time(&st)};
    open_direct(f, &st);
    return f;
}

void sl_file_close(sl_file *f) {
    if (!f)
        return;
    close(f->fd);
    if (f->direct_fd >= 0)
        close(f->direct_fd);
    free(f->path);
    free(f);
}

bool sl_file_unchanged(const sl_file *f, sl_error *err) {
    struct stat st;
    if (fstat(f->fd, &st) != 0)
        return sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot stat", f->path);
    if ((uint64_t)st.st_size != f->size)
        return sl_fail(err, SL_ERR_IO, "%s: changed since it was opened: %lld bytes, it had %llu", f->path,
                       (long long)st.st_size, (unsigned long long)f->size);
    return change_time(&st) == f->changed_ns ||
           sl_fail(err, SL_ERR_IO, "%s: changed since it was opened: it was written to", f->path);
}

uint64_t sl_file_end(const sl_file *f, uint64_t at) {
    struct stat st;
    return fstat(f->fd, &st) == 0 && (uint64_t)st.st_size < at ? (uint64_t)st.st_size : at;
}

bool sl_file_read(const sl_file *f, uint64_t offset, void *out, uint64_t n, sl_error *err) {
    uint64_t got = 0;
    while (got < n) {
        size_t want = n - got > (1u << 30) ? (1u << 30) : (size_t)(n - got);
        ssize_t r = pread(f->fd, (char *)out + got, want, (off_t)(offset + got));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return sl_fail_errno(err, SL_ERR_IO, errno, "%s: read of %llu bytes at offset %llu failed", f->path,
                                 (unsigned long long)n, (unsigned long long)offset);
        if (r == 0)
            return sl_fail(err, SL_ERR_FORMAT, "%s: file ends at %llu, %llu bytes at offset %llu expected", f->path,
                           (unsigned long long)sl_file_end(f, offset + got), (unsigned long long)n,
                           (unsigned long long)offset);
        got += (uint64_t)r;
    }
    return true;
}

/* One piece through O_DIRECT: the block-rounded range goes to the bounce buffer, the wanted bytes are copied out.
 * False: not to be had this way. */
static bool read_direct_piece(const sl_file *f, uint64_t offset, uint8_t *out, uint64_t n, uint8_t *bounce) {
    uint64_t begin = offset / f->direct_align * f->direct_align;
    uint64_t need = offset + n - begin, span = sl_round_up(need, f->direct_align), got = 0;
    while (got < need) {
        ssize_t r = pread(f->direct_fd, bounce + got, span - got, (off_t)(begin + got));
        if (r < 0 && errno == EINTR)
            continue;
        /* A short direct read can only go on at a block boundary. */
        if (r <= 0 || (got + (uint64_t)r < need && (uint64_t)r % f->direct_align))
            return false;
        got += (uint64_t)r;
    }
    memcpy(out, bounce + (offset - begin), n);
    return true;
}

bool sl_file_read_uncached(const sl_file *f, uint64_t offset, void *out, uint64_t n, sl_error *err) {
    enum { PIECE = 4 << 20 };
    void *bounce = NULL;
    bool direct = f->direct_fd >= 0 && posix_memalign(&bounce, 4096, PIECE + 2 * 4096) == 0;
    bool ok = true;
    for (uint64_t at = 0; ok && at < n; at += PIECE) {
        uint64_t piece = n - at < PIECE ? n - at : PIECE;
        if (direct && read_direct_piece(f, offset + at, (uint8_t *)out + at, piece, bounce))
            continue;
        ok = sl_file_read(f, offset + at, (uint8_t *)out + at, piece, err);
        sl_file_drop(f, offset + at, piece);
    }
    free(bounce);
    return ok;
}

void sl_file_drop(const sl_file *f, uint64_t offset, uint64_t n) {
#ifdef POSIX_FADV_DONTNEED
    if (n == 0) /* to the system 0 means: up to the end of the file */
        return;
    /* Whole pages only are dropped by the kernel: round outwards so that the edge pages go too. */
    uint64_t begin = offset & ~(uint64_t)4095;
    posix_fadvise(f->fd, (off_t)begin, (off_t)sl_round_up(offset + n - begin, 4096), POSIX_FADV_DONTNEED);
#endif
}

char *sl_read_text(const char *path, uint64_t limit, size_t *size, sl_error *err) {
    sl_file *f = sl_file_open(path, err);
    if (!f)
        return NULL;
    char *text = NULL;
    if (f->size > limit)
        sl_fail(err, SL_ERR_FORMAT, "%s: %llu bytes, at most %llu expected", path, (unsigned long long)f->size,
                (unsigned long long)limit);
    else if (!(text = malloc((size_t)f->size + 1)))
        sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for %llu bytes", path, (unsigned long long)f->size);
    else if (!sl_file_read(f, 0, text, f->size, err)) {
        free(text);
        text = NULL;
    } else {
        text[f->size] = 0;
        if (size)
            *size = (size_t)f->size;
    }
    sl_file_close(f);
    return text;
}

bool sl_path_exists(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

bool sl_path_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char *sl_path_join(const char *dir, const char *name) {
    size_t n = strlen(dir);
    return sl_asprintf(n && dir[n - 1] == '/' ? "%s%s" : "%s/%s", dir, name);
}

void sl_make_parents(const char *path) {
    char *copy = sl_strdup(path);
    for (char *at = copy && *copy ? strchr(copy + 1, '/') : NULL; at; at = strchr(at + 1, '/')) {
        *at = 0;
        mkdir(copy, 0700);
        *at = '/';
    }
    free(copy);
}

char *sl_cache_dir(void) {
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (base && *base == '/')
        return sl_path_join(base, "sluice");
    return home && *home == '/' ? sl_asprintf("%s/.cache/sluice", home) : NULL;
}

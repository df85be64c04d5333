/* Files: exact reads with errors that say what was found. */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The alignment O_DIRECT asks for, found by trying: 512 where the device allows it, else 4096. */
static uint32_t probe_direct_align(int fd, uint64_t size) {
    void *page = NULL;
    if (size < 8192 || posix_memalign(&page, 4096, 4096) != 0)
        return 4096;
    uint32_t align = pread(fd, page, 512, 512) == 512 ? 512 : 4096;
    free(page);
    return align;
}

static void open_direct(sl_file *f) {
    f->direct_fd = -1;
    f->direct_align = 4096;
#ifdef O_DIRECT
    f->direct_fd = open(f->path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (f->direct_fd >= 0)
        f->direct_align = probe_direct_align(f->direct_fd, f->size);
#endif
}

sl_file *sl_file_open(const char *path, sl_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot open", path), NULL;
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
    *f = (sl_file){.path = copy, .fd = fd, .size = (uint64_t)st.st_size};
    open_direct(f);
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
                           (unsigned long long)(offset + got), (unsigned long long)n, (unsigned long long)offset);
        got += (uint64_t)r;
    }
    return true;
}

void sl_file_drop(const sl_file *f, uint64_t offset, uint64_t n) {
#ifdef POSIX_FADV_DONTNEED
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
    return access(path, F_OK) == 0;
}

bool sl_path_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char *sl_path_join(const char *dir, const char *name) {
    size_t n = strlen(dir);
    return sl_asprintf(n && dir[n - 1] == '/' ? "%s%s" : "%s/%s", dir, name);
}

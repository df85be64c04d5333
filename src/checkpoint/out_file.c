/* A checkpoint file being written. Whoever looks for the file finds the old one or the whole new one, never a part. */
#include "checkpoint/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER (1u << 20)

static bool fail_errno(out_file *o, int saved, const char *what) {
    return o->err.code != SL_OK ? false : sl_fail_errno(&o->err, SL_ERR_IO, saved, "%s: %s", o->part, what);
}

bool out_fail(out_file *o, sl_code code, const char *fmt, ...) {
    if (o->err.code == SL_OK) {
        char text[512];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        sl_fail(&o->err, code, "%s: %s", o->path, text);
    }
    return false;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* The lock is on the file that the name means now, not on one that another writer has just renamed. */
static bool lock(out_file *o) {
    struct stat mine, named;
    if (flock(o->fd, LOCK_EX | LOCK_NB) != 0) {
        return errno == EWOULDBLOCK ? out_fail(o, SL_ERR_IO, "another process is writing it")
                                    : fail_errno(o, errno, "cannot lock its .part");
    }
    if (fstat(o->fd, &mine) != 0 || stat(o->part, &named) != 0 || mine.st_ino != named.st_ino ||
        mine.st_dev != named.st_dev) {
        return out_fail(o, SL_ERR_IO, "another process was writing it");
    }
    return ftruncate(o->fd, 0) == 0 || fail_errno(o, errno, "cannot empty it");
}

/* What a name means now may be replaced if it is a file of ours: no device, pipe or directory. */
static bool check_regular(out_file *o, const char *path) {
    struct stat st;
    return stat(path, &st) != 0 || S_ISREG(st.st_mode) ||
           (o->err.code == SL_OK && sl_fail(&o->err, SL_ERR_ARGUMENT, "%s: is %s, a regular file expected", path,
                                            S_ISDIR(st.st_mode) ? "a directory" : "a device or pipe"));
}

bool out_open(out_file *o, const char *path, uint64_t alignment, sl_error *err) {
    *o = (out_file){.fd = -1, .alignment = alignment};
    o->path = sl_strdup(path);
    o->part = sl_asprintf("%s.part", path);
    o->buf = malloc(BUFFER);
    if (!o->path || !o->part || !o->buf) {
        out_close(o);
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    }
    bool ok = check_regular(o, o->path) && check_regular(o, o->part);
    if (ok) {
        o->fd = open(o->part, O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666);
        ok = o->fd >= 0 ? lock(o) : fail_errno(o, errno, "cannot create");
    }
    if (!ok) {
        if (err) {
            *err = o->err;
        }
        if (o->fd >= 0) { /* another writer's: not to be removed */
            close(o->fd);
            o->fd = -1;
        }
        out_close(o);
    }
    return ok;
}

void out_close(out_file *o) {
    if (o->fd >= 0) {
        unlink(o->part); /* before the lock goes with the descriptor */
        close(o->fd);
    }
    for (size_t i = 0; i < o->count; i++) {
        free(o->tensors[i].name);
    }
    ckpt_names_free(&o->names);
    free(o->tensors);
    free(o->buf);
    free(o->path);
    free(o->part);
    *o = (out_file){.fd = -1};
}

static bool write_all(out_file *o, const char *p, size_t n) {
    while (n > 0) {
        ssize_t w = write(o->fd, p, n);
        if (w < 0 && errno == EINTR) {
            continue;
        }
        if (w <= 0) {
            return fail_errno(o, w < 0 ? errno : EIO, "write failed");
        }
        p += w;
        n -= (size_t)w;
    }
    return true;
}

static bool flush(out_file *o) {
    size_t n = o->used;
    o->used = 0;
    return write_all(o, o->buf, n);
}

bool out_write(out_file *o, const void *bytes, size_t n) {
    if (o->err.code != SL_OK) {
        return false;
    }
    o->at += n;
    if (n > BUFFER - o->used && !flush(o)) {
        return false;
    }
    if (n >= BUFFER) {
        return write_all(o, bytes, n);
    }
    memcpy(o->buf + o->used, bytes, n);
    o->used += n;
    return true;
}

/* ---- tensors ------------------------------------------------------------------------------------------------------
 */

bool out_tensor_bytes(out_file *o, const char *name, sl_format_id format, int dims, const int64_t *shape,
                      uint64_t *bytes) {
    const sl_format *f = sl_format_get(format);
    if (dims < 1 || dims > SL_MAX_DIMS) {
        return out_fail(o, SL_ERR_ARGUMENT, "tensor \"%s\": %d dimensions, expected 1 to %d", name, dims, SL_MAX_DIMS);
    }
    uint64_t elements = 1;
    for (int i = 0; i < dims; i++) {
        if (shape[i] < 1 || !sl_mul_u64(elements, (uint64_t)shape[i], &elements)) {
            return out_fail(o, SL_ERR_ARGUMENT,
                            "tensor \"%s\": dimension %d is %" PRId64 ", expected more than 0 and no overflow", name, i,
                            shape[i]);
        }
    }
    if (shape[dims - 1] % f->block_weights != 0) {
        return out_fail(o, SL_ERR_ARGUMENT,
                        "tensor \"%s\": rows of %" PRId64 ", expected a multiple of %" PRIu32 " for %s", name,
                        shape[dims - 1], f->block_weights, f->name);
    }
    return sl_mul_u64(elements / f->block_weights, f->block_bytes, bytes) ||
           out_fail(o, SL_ERR_ARGUMENT, "tensor \"%s\": shape overflows 64 bits", name);
}

bool out_declare(out_file *o, const char *name, size_t limit, uint64_t bytes) {
    size_t n = strlen(name);
    void *v = o->tensors;
    uint64_t end, offset = sl_round_up(o->data_bytes, o->alignment);
    if (o->err.code != SL_OK) {
        return false;
    }
    if (n == 0 || n > limit || o->in_data || ckpt_names_find(&o->names, name, n) != CKPT_NONE) {
        return out_fail(o, SL_ERR_ARGUMENT, "tensor \"%.100s\": %s", name,
                        o->in_data            ? "declared after the first data"
                        : n == 0 || n > limit ? "name is empty or too long"
                                              : "declared twice");
    }
    if (!sl_add_u64(offset, bytes, &end) || end > INT64_MAX / 2) {
        return out_fail(o, SL_ERR_ARGUMENT, "tensor \"%s\": the file grows beyond 64 bits", name);
    }
    bool room = sl_grow(&v, &o->capacity, o->count + 1, sizeof *o->tensors);
    o->tensors = v;
    char *copy = room ? sl_strdup(name) : NULL;
    if (!copy || !ckpt_names_add(&o->names, copy, n, o->count)) {
        free(copy);
        return out_fail(o, SL_ERR_MEMORY, "out of memory at tensor \"%s\"", name);
    }
    o->tensors[o->count++] = (out_tensor){.name = copy, .offset = offset, .bytes = bytes};
    o->data_bytes = end;
    return true;
}

/* Goes on to the next tensor that has bytes, with zeros up to its offset; after the last one, up to the alignment. */
static bool next_tensor(out_file *o) {
    static const char zeros[64];
    while (o->current < o->count && o->done == o->tensors[o->current].bytes) {
        o->current++;
        o->done = 0;
    }
    uint64_t end = sl_round_up(o->data_bytes, o->alignment);
    uint64_t target = o->data_begin + (o->current < o->count ? o->tensors[o->current].offset : end);
    while (o->done == 0 && o->at < target) {
        uint64_t gap = target - o->at;
        if (!out_write(o, zeros, gap < sizeof zeros ? (size_t)gap : sizeof zeros)) {
            return false;
        }
    }
    return true;
}

bool out_begin_data(out_file *o) {
    o->in_data = true;
    o->data_begin = o->at;
    return next_tensor(o);
}

bool out_data(out_file *o, const void *bytes, size_t n) {
    if (o->err.code != SL_OK) {
        return false;
    }
    if (o->current >= o->count) {
        return n == 0 || out_fail(o, SL_ERR_ARGUMENT, "%zu bytes of data after the last tensor", n);
    }
    const out_tensor *t = &o->tensors[o->current];
    if (n > t->bytes - o->done) {
        return out_fail(o, SL_ERR_ARGUMENT,
                        "tensor \"%s\": %zu bytes of data after %" PRIu64 ", expected %" PRIu64 " in all", t->name, n,
                        o->done, t->bytes);
    }
    if (!out_write(o, bytes, n)) {
        return false;
    }
    o->done += n;
    return next_tensor(o);
}

/* ---- the end
 * ---------------------------------------------------------------------------------------------------------- */

/* The new name is on the disk only when the directory is. */
static void sync_directory(const char *path) {
    const char *slash = strrchr(path, '/');
    char *dir = slash ? sl_strndup(path, (size_t)(slash - path) + 1) : sl_strdup(".");
    int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd); /* not every file system can; the data itself is safe */
        close(fd);
    }
    free(dir);
}

static bool finish(out_file *o) {
    if (o->current < o->count) {
        return out_fail(o, SL_ERR_ARGUMENT, "tensor \"%s\": %" PRIu64 " bytes of data, expected %" PRIu64,
                        o->tensors[o->current].name, o->done, o->tensors[o->current].bytes);
    }
    if (!flush(o)) {
        return false;
    }
    if (fsync(o->fd) != 0) {
        return fail_errno(o, errno, "cannot bring it to the disk");
    }
    if (rename(o->part, o->path) != 0) {
        return fail_errno(o, errno, "cannot rename it");
    }
    sync_directory(o->path);
    close(o->fd);
    o->fd = -1;
    return true;
}

bool out_finish(out_file *o, sl_error *err) {
    if (o->fd < 0) {
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: finished already", o->path);
    }
    bool ok = o->err.code == SL_OK && finish(o);
    if (!ok && err) {
        *err = o->err;
    }
    return ok;
}

/* Where a pack goes: what may be written over, whether it fits, files that appear whole. */
#include "checkpoint/pack_plan.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The directory a path lies in, allocated. */
static char *parent_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return !slash ? sl_strdup(".") : slash == path ? sl_strdup("/") : sl_strndup(path, (size_t)(slash - path));
}

/* The path without links, of something that need not be there yet but whose directory is. */
static char *real_path(const char *path) {
    char *real = realpath(path, NULL);
    if (real) {
        return real;
    }
    const char *slash = strrchr(path, '/');
    char *dir = parent_of(path), *real_dir = dir ? realpath(dir, NULL) : NULL;
    real = real_dir ? sl_path_join(real_dir, slash ? slash + 1 : path) : NULL;
    free(dir);
    free(real_dir);
    return real;
}

/* Is path the directory dir, or below it? */
static bool lies_in(const char *path, const char *dir) {
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && (path[n] == 0 || path[n] == '/' || (n == 1 && dir[0] == '/'));
}

static bool check_apart(const sl_ckpt *source, const char *out, sl_error *err) {
    char *a = realpath(sl_ckpt_path(source), NULL), *b = real_path(out);
    bool ok = true;
    if (!b) {
        ok = sl_fail_errno(err, SL_ERR_IO, errno, "%s: the directory it would lie in", out);
    } else if (a && lies_in(b, a)) {
        ok = sl_fail(err, SL_ERR_ARGUMENT, "%s: %s: a pack does not go into its own source", out,
                     strcmp(a, b) == 0 ? "is the model itself" : "lies inside the model");
    } else if (a && lies_in(a, b)) {
        ok = sl_fail(err, SL_ERR_ARGUMENT, "%s: the model lies in it: a pack does not go around its own source", out);
    }
    free(a);
    free(b);
    return ok;
}

static bool is_empty(const char *dir) {
    DIR *d = opendir(dir);
    int n = 0;
    while (d && n < 3 && readdir(d)) {
        n++;
    }
    if (d) {
        closedir(d);
    }
    return n <= 2; /* "." and ".." */
}

bool pack_target_check(const sl_ckpt *source, const char *target, char **out, sl_error *err) {
    size_t n = strlen(target);
    while (n > 1 && target[n - 1] == '/') {
        n--;
    }
    *out = sl_strndup(target, n);
    if (!*out) {
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", target);
    }
    if (sl_path_exists(*out) && !sl_path_is_dir(*out)) {
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: is there already, and is no directory", *out);
    }
    if (!check_apart(source, *out, err)) {
        return false;
    }
    return !sl_path_exists(*out) || pack_is_dir(*out) || is_empty(*out) ||
           sl_fail(err, SL_ERR_ARGUMENT, "%s: is there already, and is no pack: name a new directory", *out);
}

bool pack_target_make(const char *out, sl_error *err) {
    return mkdir(out, 0777) == 0 || errno == EEXIST || sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot create", out);
}

bool pack_target_space(const char *out, uint64_t need, sl_error *err) {
    struct statvfs fs;
    char *dir = sl_path_is_dir(out) ? sl_strdup(out) : parent_of(out);
    bool known = dir && statvfs(dir, &fs) == 0;
    free(dir);
    uint64_t has = known ? (uint64_t)fs.f_bavail * fs.f_frsize : UINT64_MAX;
    return need <= has || sl_fail(err, SL_ERR_IO, "%s: needs %.2f MiB (%" PRIu64 " bytes), the disk has %.2f MiB free",
                                  out, (double)need / (1 << 20), need, (double)has / (1 << 20));
}

void pack_target_sync(const char *dir) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd); /* not every file system can; the data itself is safe */
        close(fd);
    }
}

static bool write_whole(const char *path, const uint8_t *p, size_t n, sl_error *err) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) {
        return sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot create", path);
    }
    bool ok = true;
    while (ok && n > 0) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR) {
            continue;
        }
        ok = w > 0;
        p += ok ? w : 0;
        n -= ok ? (size_t)w : 0;
    }
    if (!ok || fsync(fd) != 0) {
        ok = sl_fail_errno(err, SL_ERR_IO, errno, "%s: write failed", path);
    }
    close(fd);
    return ok;
}

bool pack_target_put(const char *dir, const char *name, const void *bytes, size_t n, sl_error *err) {
    char *path = sl_path_join(dir, name), *part = path ? sl_asprintf("%s.part", path) : NULL;
    bool ok = part || sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", dir);
    ok = ok && write_whole(part, bytes, n, err);
    if (ok && rename(part, path) != 0) {
        ok = sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot rename it", part);
    }
    free(path);
    free(part);
    return ok;
}

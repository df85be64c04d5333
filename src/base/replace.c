/* Small files that are there whole or as they were: what the program keeps for later runs. */
#include "base/base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void make_directories(const char *path) {
    char *copy = sl_strdup(path);
    for (char *at = copy ? strchr(copy + 1, '/') : NULL; at; at = strchr(at + 1, '/')) {
        *at = 0;
        mkdir(copy, 0700);
        *at = '/';
    }
    free(copy);
}

static bool write_all(int fd, const char *bytes, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t w = write(fd, bytes + done, n - done);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return false;
        done += (size_t)w;
    }
    return fsync(fd) == 0;
}

bool sl_replace_file(const char *path, const void *bytes, size_t n, sl_error *err) {
    make_directories(path);
    char *other = sl_asprintf("%s-XXXXXX", path);
    int fd = other ? mkstemp(other) : -1;
    bool made = fd >= 0, ok = made && write_all(fd, bytes, n) && rename(other, path) == 0;
    int saved = errno;
    if (made)
        close(fd);
    if (made && !ok)
        unlink(other);
    free(other);
    return ok || sl_fail_errno(err, SL_ERR_IO, saved, "%s: cannot write", path);
}

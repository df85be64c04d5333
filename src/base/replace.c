/* Small files that are there whole or as they were: what the program keeps for later runs.
 *
 * Bytes are written under PATH.sluice-part first. There is one such name for a file, and who writes has it locked: what
 * a killed program leaves is taken over by the next one, so that however many are killed there is never more than one.
 */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOCK_TRIES = 300, LOCK_PAUSE_US = 10000 };

/* ---- the file in the making -------------------------------------------------------------------------------------- */

/* Of this user alone: what another can write, or reach by a link, is not written to. */
static bool is_own(const struct stat *st) {
    return S_ISREG(st->st_mode) && st->st_nlink <= 1 && st->st_uid == geteuid();
}

/* Whether the name is still that of the open file: another writer may have renamed it before it let go of the lock. */
static bool has_name(const struct stat *open, const char *part) {
    struct stat st;
    return lstat(part, &st) == 0 && st.st_dev == open->st_dev && st.st_ino == open->st_ino;
}

/* The file, locked. -1 with EBUSY: somebody else has it for seconds already; with another errno: it is not to be used.
 */
static int open_part(const char *part) {
    for (int i = 0; i < LOCK_TRIES; i++) {
        struct stat st;
        int fd = open(part, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
        if (fd < 0)
            return -1;
        bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
        int why = locked ? 0 : errno;
        if (fstat(fd, &st) != 0 || (st.st_nlink > 0 && !is_own(&st)))
            why = EPERM;
        if (locked && why == 0 && has_name(&st, part))
            return fd;
        close(fd);
        if (why != 0 && why != EWOULDBLOCK && why != EINTR) {
            errno = why;
            return -1;
        }
        if (!locked)
            usleep(LOCK_PAUSE_US);
    }
    errno = EBUSY;
    return -1;
}

/* Where locks or that name cannot be had, a name of its own. *part: its name, allocated. */
static int begin(const char *path, char **part) {
    *part = sl_asprintf("%s.sluice-part", path);
    int fd = *part ? open_part(*part) : -1;
    if (fd >= 0 || !*part || errno == EBUSY)
        return fd;
    free(*part);
    *part = sl_asprintf("%s-XXXXXX", path);
    return *part ? mkstemp(*part) : -1;
}

/* ---- replacing --------------------------------------------------------------------------------------------------- */

static bool write_all(int fd, const char *bytes, size_t n) {
    if (ftruncate(fd, 0) != 0)
        return false;
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

/* The file that is replaced, which links may lead to; a device or a directory is not. Allocated. */
static char *find_target(const char *path, sl_error *err) {
    struct stat st;
    char *real = lstat(path, &st) == 0 && S_ISLNK(st.st_mode) ? realpath(path, NULL) : sl_strdup(path);
    if (!real)
        return sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot write", path), NULL;
    if (stat(real, &st) != 0 || S_ISREG(st.st_mode))
        return real;
    free(real);
    return sl_fail_null(err, SL_ERR_IO, "%s: not a plain file: it is not replaced", path);
}

static bool replace(const char *path, const void *bytes, size_t n, sl_error *err) {
    char *part = NULL;
    int fd = begin(path, &part);
    bool ok = fd >= 0 && write_all(fd, bytes, n) && rename(part, path) == 0;
    int saved = errno;
    if (fd >= 0 && !ok)
        unlink(part); /* before the lock goes with the descriptor */
    if (fd >= 0)
        close(fd);
    free(part);
    return ok || sl_fail_errno(err, SL_ERR_IO, saved, "%s: cannot write", path);
}

bool sl_replace_file(const char *path, const void *bytes, size_t n, sl_error *err) {
    sl_make_parents(path);
    char *target = find_target(path, err);
    bool ok = target && replace(target, bytes, n, err);
    free(target);
    return ok;
}

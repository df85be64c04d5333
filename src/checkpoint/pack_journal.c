#include "checkpoint/pack_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* "unit 00001 00000017 0123456789abcdef\n", "file 00001 00000128 0000000000000000\n", "pack 00001 00000000 JOB\n" */
enum { LINE = 37 };

static const char formats[] = "%4.4s %05zu %08zu %016" PRIx64 "\n";

pack_units *pack_file(pack *p, size_t i) {
    return i == 0 ? &p->resident : &p->layers[i - 1].file;
}

static bool fail_errno(const pack_journal *j, const char *what, sl_error *err) {
    return sl_fail_errno(err, SL_ERR_IO, errno, "%s: %s", j->path, what);
}

static bool append(pack_journal *j, const char *word, size_t file, size_t unit, uint64_t value, sl_error *err) {
    char line[80];
    snprintf(line, sizeof line, formats, word, file, unit, value);
    ssize_t n = pwrite(j->fd, line, LINE, (off_t)j->end);
    if (n != LINE) {
        errno = n < 0 ? errno : ENOSPC;
        return fail_errno(j, "write failed", err);
    }
    j->end += LINE;
    return true;
}

/* ---- reading ------------------------------------------------------------------------------------------------------
 */

/* The value of a line that is exactly the one expected here. */
static bool is_line(const char *line, const char *word, size_t file, size_t unit, uint64_t *value) {
    char expected[80], *end;
    if (line[LINE - 1] != '\n' || strspn(line + 20, "0123456789abcdef") != 16) {
        return false;
    }
    *value = strtoull(line + 20, &end, 16);
    snprintf(expected, sizeof expected, formats, word, file, unit, *value);
    return memcmp(line, expected, LINE) == 0;
}

/* Takes lines for as long as they follow each other; what comes after is what a kill or a power cut left. */
static void replay(pack_journal *j, const char *text, size_t n, pack *p) {
    size_t files = p->layer_count + 1;
    uint64_t sum;
    j->end = j->file_begin = LINE;
    for (; j->end + LINE <= n && j->files < files; j->end += LINE) {
        const char *line = text + j->end;
        pack_units *u = pack_file(p, j->files);
        if (j->units < u->count && is_line(line, "unit", j->files, j->units, &sum)) {
            u->v[j->units++].sum = sum;
        } else if (j->units == u->count && is_line(line, "file", j->files, j->units, &sum)) {
            j->files++;
            j->units = 0;
            j->file_begin = j->end + LINE;
        } else {
            return;
        }
    }
}

static bool read_lines(pack_journal *j, uint64_t job, pack *p, sl_error *err) {
    size_t n = 0;
    uint64_t found;
    char *text = sl_read_text(j->path, 1ull << 32, &n, err);
    if (!text) {
        return false;
    }
    bool ok = true;
    if (n >= LINE && is_line(text, "pack", SL_PACK_VERSION, 0, &found)) {
        ok = found == job || sl_fail(err, SL_ERR_ARGUMENT,
                                     "%s: an unfinished pack of another model or with other options: remove its "
                                     "directory, or name another",
                                     j->path);
        if (ok) {
            replay(j, text, n, p);
        }
    } else if (n >= LINE || strncmp(text, "pack 00001 00000000 ", n < 20 ? n : 20) != 0) {
        ok = sl_fail(err, SL_ERR_ARGUMENT, "%s: no journal of a pack of format version %d", j->path, SL_PACK_VERSION);
    }
    free(text);
    return ok;
}

/* ---- opening ------------------------------------------------------------------------------------------------------
 */

static bool lock(pack_journal *j, sl_error *err) {
    struct stat mine, named;
    if (flock(j->fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) {
            return sl_fail(err, SL_ERR_IO, "%s: another process is writing this pack", j->path);
        }
        return fail_errno(j, "cannot lock", err);
    }
    if (fstat(j->fd, &mine) != 0 || stat(j->path, &named) != 0 || mine.st_ino != named.st_ino) {
        return sl_fail(err, SL_ERR_IO, "%s: another process was writing this pack", j->path);
    }
    return true;
}

bool pack_journal_open(pack_journal *j, const char *dir, uint64_t job, pack *p, sl_error *err) {
    *j = (pack_journal){.fd = -1, .path = sl_path_join(dir, PACK_JOURNAL)};
    if (!j->path) {
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", dir);
    }
    j->fd = open(j->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (j->fd < 0) {
        return fail_errno(j, "cannot create", err);
    }
    if (!lock(j, err) || !read_lines(j, job, p, err)) {
        return false;
    }
    if (j->end == 0 && !append(j, "pack", SL_PACK_VERSION, 0, job, err)) {
        return false;
    }
    if (j->file_begin == 0) {
        j->file_begin = j->end;
    }
    return ftruncate(j->fd, (off_t)j->end) == 0 || fail_errno(j, "cannot cut it", err);
}

bool pack_journal_peek(const char *dir, uint64_t *job) {
    sl_error ignored;
    size_t n = 0;
    char *path = sl_path_join(dir, PACK_JOURNAL);
    char *text = path ? sl_read_text(path, 1ull << 32, &n, &ignored) : NULL;
    bool ok = text && n >= LINE && is_line(text, "pack", SL_PACK_VERSION, 0, job);
    free(text);
    free(path);
    return ok;
}

bool pack_journal_cut(pack_journal *j, size_t n, sl_error *err) {
    j->units = n;
    j->end = j->file_begin + n * LINE;
    return ftruncate(j->fd, (off_t)j->end) == 0 || fail_errno(j, "cannot cut it", err);
}

bool pack_journal_unit(pack_journal *j, uint64_t sum, sl_error *err) {
    if (!append(j, "unit", j->files, j->units, sum, err)) {
        return false;
    }
    j->units++;
    return true;
}

bool pack_journal_file(pack_journal *j, sl_error *err) {
    if (!append(j, "file", j->files, j->units, 0, err)) {
        return false;
    }
    j->files++;
    j->units = 0;
    j->file_begin = j->end;
    return fsync(j->fd) == 0 || fail_errno(j, "cannot bring it to the disk", err);
}

void pack_journal_close(pack_journal *j, bool remove) {
    if (j->fd >= 0) {
        if (remove) {
            unlink(j->path); /* before the lock goes with the descriptor */
        }
        close(j->fd);
    }
    free(j->path);
    *j = (pack_journal){.fd = -1};
}

/* Files that a command writes under a name that may be taken: a regular file gives way, but not one that the command
 * reads, nor a device, nor a file of the model. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static bool lies_in(const char *path, const char *directory) {
    const char *slash = strrchr(path, '/');
    char *parent = slash ? sl_asprintf("%.*s/", (int)(slash - path), path) : sl_strdup(".");
    bool in = parent && same_file(parent, directory);
    free(parent);
    return in;
}

bool cli_may_replace(const char *path, const char *const *inputs, size_t n, sl_error *err) {
    struct stat s;
    for (size_t i = 0; i < n; i++) {
        if (!inputs[i])
            continue;
        if (strcmp(path, inputs[i]) == 0 || same_file(path, inputs[i]))
            return sl_fail(err, SL_ERR_ARGUMENT, "%s: this command reads or writes it already, another name expected",
                           path);
        if (lies_in(path, inputs[i]))
            return sl_fail(err, SL_ERR_ARGUMENT, "%s: lies in %s, which this command reads", path, inputs[i]);
    }
    if (lstat(path, &s) != 0)
        return errno == ENOENT || sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot write", path);
    return S_ISREG(s.st_mode) || sl_fail(err, SL_ERR_ARGUMENT, "%s: is %s, a regular file or a new name expected", path,
                                         S_ISDIR(s.st_mode)   ? "a directory"
                                         : S_ISLNK(s.st_mode) ? "a link"
                                                              : "no regular file");
}

bool cli_replace_json(const char *path, const json_t *doc, size_t flags, sl_error *err) {
    char *fresh = sl_asprintf("%s.partial", path);
    if (!fresh)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    errno = 0;
    bool ok = json_dump_file(doc, fresh, flags) == 0 && rename(fresh, path) == 0;
    int saved = errno ? errno : EIO;
    if (!ok)
        unlink(fresh);
    free(fresh);
    return ok || sl_fail_errno(err, SL_ERR_IO, saved, "%s", path);
}

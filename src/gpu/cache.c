/* Compiled libraries on disk: one file each, named by the key of what it was made from. Whatever is wrong with the
 * folder or a file costs a compilation and a warning, never an error. */
#include "gpu/core.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SUFFIX        ".slgpu"
#define TEMPORARY     ".slgpu-new"
#define MOST_BYTES    (UINT64_C(512) << 20) /* of the folder */
#define MOST_ENTRY    (UINT64_C(256) << 20)
#define STALE_SECONDS 3600 /* a temporary file this old was left by a process that died */

char *gpu_cache_dir(const char *dir) {
    if (dir)
        return *dir ? sl_strdup(dir) : NULL;
    return sl_cache_dir();
}

static char *entry_path(const sl_gpu *g, gpu_key key) {
    return sl_asprintf("%s/%016llx%016llx" SUFFIX, g->cache_dir, (unsigned long long)key.high,
                       (unsigned long long)key.low);
}

/* Once per device: a folder that cannot be written would say it for every library. */
static void warn_folder(sl_gpu *g, const char *what, int error) {
    sl_error e;
    if (atomic_exchange(&g->warned_cache, true))
        return;
    sl_fail_errno(&e, SL_ERR_IO, error, "%s: %s", g->cache_dir, what);
    sl_logf(&g->log, SL_LOG_WARN, "%s; compiled kernels are not kept", e.message);
}

/* ---- get --------------------------------------------------------------------------------------------------------- */

static bool read_all(int fd, uint8_t *to, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t got = read(fd, to + at, n - at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += (size_t)got;
    }
    return true;
}

/* What is loaded from here is run: it must be a plain file that nobody else can write. */
static bool trusted(const struct stat *st, sl_error *err) {
    if (!S_ISREG(st->st_mode))
        return sl_fail(err, SL_ERR_FORMAT, "not a plain file");
    if (st->st_uid != geteuid() || (st->st_mode & (S_IWGRP | S_IWOTH)))
        return sl_fail(err, SL_ERR_FORMAT, "others can write it");
    return st->st_size <= (off_t)MOST_ENTRY || sl_fail(err, SL_ERR_FORMAT, "%lld bytes, expected at most %llu",
                                                       (long long)st->st_size, (unsigned long long)MOST_ENTRY);
}

static void *read_entry(const sl_gpu *g, int fd, gpu_key key, size_t *size, sl_error *err) {
    struct stat st;
    gpu_container c;
    if (fstat(fd, &st) != 0)
        return sl_fail_errno(err, SL_ERR_IO, errno, "stat"), NULL;
    if (!trusted(&st, err))
        return NULL;
    *size = (size_t)st.st_size;
    uint8_t *bytes = malloc(*size + 1);
    if (!bytes)
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for %zu bytes", *size);
    if (!read_all(fd, bytes, *size))
        sl_fail(err, SL_ERR_IO, "cannot be read");
    else if (gpu_container_read(g, bytes, *size, &c, err)) {
        if (c.key.low == key.low && c.key.high == key.high)
            return bytes;
        sl_fail(err, SL_ERR_FORMAT, "made from another source");
    }
    free(bytes);
    return NULL;
}

void *gpu_cache_get(sl_gpu *g, gpu_key key, size_t *size) {
    sl_error err = {0};
    void *bytes = NULL;
    char *path = g->cache_dir ? entry_path(g, key) : NULL;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    if (fd >= 0) {
        bytes = read_entry(g, fd, key, size, &err);
        if (bytes) {
            futimens(fd, NULL); /* the least recently used goes first */
        } else {
            sl_logf(&g->log, SL_LOG_WARN, "%s: %s; compiled again", path, err.message);
            unlink(path);
        }
        close(fd);
    }
    free(path);
    return bytes;
}

/* ---- put --------------------------------------------------------------------------------------------------------- */

static bool make_folder(const char *dir) {
    sl_make_parents(dir);
    return mkdir(dir, 0700) == 0 || (errno == EEXIST && sl_path_is_dir(dir));
}

static bool write_all(int fd, const uint8_t *from, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t put = write(fd, from + at, n - at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        at += (size_t)put;
    }
    return true;
}

/* Written beside and renamed: a reader sees all of it or nothing. */
static bool write_entry(const char *path, const char *temporary, const void *bytes, size_t size) {
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    bool ok = write_all(fd, bytes, size);
    int saved = errno;
    if (close(fd) != 0 && ok) {
        ok = false;
        saved = errno;
    }
    if (ok && rename(temporary, path) != 0) {
        ok = false;
        saved = errno;
    }
    if (!ok)
        unlink(temporary);
    errno = saved;
    return ok;
}

void gpu_cache_put(sl_gpu *g, gpu_key key, const void *bytes, size_t size) {
    static atomic_uint number; /* two threads may compile the same source */
    if (!g->cache_dir || size > MOST_ENTRY)
        return;
    if (!make_folder(g->cache_dir)) {
        warn_folder(g, "cannot be made", errno);
        return;
    }
    char *path = entry_path(g, key);
    char *temporary = sl_asprintf("%s/%ld-%u" TEMPORARY, g->cache_dir, (long)getpid(), atomic_fetch_add(&number, 1));
    if (path && temporary) {
        if (write_entry(path, temporary, bytes, size))
            gpu_cache_trim(g->cache_dir, MOST_BYTES);
        else
            warn_folder(g, "cannot be written", errno);
    }
    free(path);
    free(temporary);
}

/* ---- for devices ---------------------------------------------------------------------------------------------------
 */

static bool store_get(void *self, const uint64_t key[2], sl_buf *bytes) {
    sl_gpu *g = self;
    gpu_container c;
    size_t size;
    void *entry = gpu_cache_get(g, (gpu_key){key[0], key[1]}, &size);
    bool ok = entry && gpu_container_read(g, entry, size, &c, NULL) && sl_buf_append(bytes, c.payload, c.payload_size);
    free(entry);
    return ok;
}

static void store_put(void *self, const uint64_t key[2], const void *bytes, size_t size) {
    sl_gpu *g = self;
    sl_buf none = {0}, payload = {.data = (char *)(uintptr_t)bytes, .size = size}, out = {0};
    if (g->cache_dir && gpu_container_write(g, (gpu_key){key[0], key[1]}, &none, &payload, &out))
        gpu_cache_put(g, (gpu_key){key[0], key[1]}, out.data, out.size);
    sl_buf_free(&out);
}

gpu_store gpu_cache_store(sl_gpu *g) {
    return (gpu_store){g, store_get, store_put};
}

/* ---- size -------------------------------------------------------------------------------------------------------- */

typedef struct entry {
    char *path;
    struct timespec used;
    uint64_t bytes;
} entry;

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n > m && strcmp(s + n - m, end) == 0;
}

static int older_first(const void *a, const void *b) {
    const struct timespec *x = &((const entry *)a)->used, *y = &((const entry *)b)->used;
    if (x->tv_sec != y->tv_sec)
        return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

static struct timespec modified(const struct stat *st) {
#ifdef __APPLE__
    return st->st_mtimespec;
#else
    return st->st_mtim;
#endif
}

/* Entries of the folder, and its stale temporary files removed. */
static size_t list_entries(const char *dir, entry **entries, uint64_t *total) {
    size_t count = 0, capacity = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        bool temporary = ends_with(e->d_name, TEMPORARY);
        char *path = temporary || ends_with(e->d_name, SUFFIX) ? sl_path_join(dir, e->d_name) : NULL;
        if (path && lstat(path, &st) == 0 && S_ISREG(st.st_mode)) {
            if (temporary && time(NULL) - st.st_mtime > STALE_SECONDS) {
                unlink(path);
            } else if (!temporary && sl_grow((void **)entries, &capacity, count + 1, sizeof **entries)) {
                (*entries)[count++] = (entry){path, modified(&st), (uint64_t)st.st_size};
                *total += (uint64_t)st.st_size;
                path = NULL;
            }
        }
        free(path);
    }
    if (d)
        closedir(d);
    return count;
}

void gpu_cache_trim(const char *dir, uint64_t limit) {
    entry *entries = NULL;
    uint64_t total = 0;
    size_t n = list_entries(dir, &entries, &total);
    if (n)
        qsort(entries, n, sizeof *entries, older_first);
    for (size_t i = 0; i < n; i++) {
        if (total > limit && unlink(entries[i].path) == 0)
            total -= entries[i].bytes;
        free(entries[i].path);
    }
    free(entries);
}

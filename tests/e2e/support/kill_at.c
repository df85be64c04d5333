/* LD_PRELOAD: ends the program with SIGKILL at its Nth change of a file (KILL_AT, from 1). KILL_COUNT names a file that
 * gets the number of changes if the program ends by itself. A write that is killed has written half of its bytes.
 * KILL_NAME: only changes of files with that in their path count. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static long count;

static int is_last(const char *path) {
    const char *at = getenv("KILL_AT"), *name = getenv("KILL_NAME");
    return (!name || strstr(path, name)) && ++count == (at ? atol(at) : 0);
}

static int is_last_of(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    return is_last(path);
}

static void end(void) {
    raise(SIGKILL);
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *p, size_t n) {
    REAL(write);
    struct stat st;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && is_last_of(fd)) {
        real(fd, p, n / 2);
        end();
    }
    return real(fd, p, n);
}

#define PWRITE(name, offset)                                                                                           \
    ssize_t name(int fd, const void *p, size_t n, offset at) {                                                         \
        REAL(name);                                                                                                    \
        if (is_last_of(fd)) {                                                                                          \
            real(fd, p, n / 2, at);                                                                                    \
            end();                                                                                                     \
        }                                                                                                              \
        return real(fd, p, n, at);                                                                                     \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define BEFORE(result, name, parameters, arguments, last)                                                              \
    result name parameters {                                                                                           \
        REAL(name);                                                                                                    \
        if (last)                                                                                                      \
            end();                                                                                                     \
        return real arguments;                                                                                         \
    }
BEFORE(int, ftruncate, (int fd, off_t n), (fd, n), is_last_of(fd))
BEFORE(int, ftruncate64, (int fd, off64_t n), (fd, n), is_last_of(fd))
BEFORE(int, fsync, (int fd), (fd), is_last_of(fd))
BEFORE(int, rename, (const char *a, const char *b), (a, b), is_last(a))
BEFORE(int, unlink, (const char *a), (a), is_last(a))
BEFORE(int, mkdir, (const char *a, mode_t m), (a, m), is_last(a))

__attribute__((destructor)) static void tell(void) {
    const char *path = getenv("KILL_COUNT");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (f) {
        fprintf(f, "%ld\n", count);
        fclose(f);
    }
}

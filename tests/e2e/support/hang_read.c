/* LD_PRELOAD: from the Nth pread of a .gguf file on (HANG_AT, from 1), pread does not return: as on a network file
 * system whose server is gone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_long count;

static int is_model(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path);
    return n > 5 && memcmp(path + n - 5, ".gguf", 5) == 0;
}

#define HOLD(fd)                                                                                                       \
    if (is_model(fd) && atomic_fetch_add(&count, 1) + 1 >= atol(getenv("HANG_AT")))                                    \
        for (;;)                                                                                                       \
    pause()

ssize_t pread(int fd, void *p, size_t n, off_t at) {
    ssize_t (*real)(int, void *, size_t, off_t) = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread");
    HOLD(fd);
    return real(fd, p, n, at);
}

ssize_t pread64(int fd, void *p, size_t n, off64_t at) {
    ssize_t (*real)(int, void *, size_t, off64_t) =
        (ssize_t(*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
    HOLD(fd);
    return real(fd, p, n, at);
}

/* Linked into every unit test: what the program caches (compiled kernels, what is known of disks) goes to the build
 * directory. A test neither depends on what its user has measured or compiled, nor leaves anything there. */
#include <stdlib.h>

__attribute__((constructor)) static void use_own_cache(void) {
    setenv("XDG_CACHE_HOME", SL_TEST_CACHE, 1);
}

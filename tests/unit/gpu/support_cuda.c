#include "support_cuda.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

cuda_control *cuda;

static bool tests_a_gpu(void) {
    const char *device = getenv("SLUICE_TEST_DEVICE");
    return device && strncmp(device, "cuda", 4) == 0;
}

#ifdef SL_CUDA_STANDIN
static void *library;

static void *symbol(const char *name) {
    void *found = dlsym(library, name);
    assert_non_null(found);
    return found;
}

static void load(void) {
    cuda_control *(*control)(void);
    void (*reset)(void);
    if (!library)
        library = dlopen(SL_CUDA_STANDIN, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail_msg("%s", dlerror());
    setenv("SLUICE_CUDA_LIBRARY", SL_CUDA_STANDIN, 1);
    setenv("SLUICE_NVRTC_LIBRARY", SL_CUDA_STANDIN, 1);
    *(void **)&control = symbol("cuda_standin");
    *(void **)&reset = symbol("cuda_standin_reset");
    reset();
    cuda = control();
}
#endif

int cuda_reset(void **state) {
#ifdef SL_CUDA_STANDIN
    if (!tests_a_gpu())
        load();
#endif
    return 0;
}

int cuda_left_clean(void **state) {
    if (!cuda)
        return 0;
    unsetenv("SLUICE_CUDA_LIBRARY");
    unsetenv("SLUICE_NVRTC_LIBRARY");
    for (int i = 0; i < 2000 && cuda->alive; i++)
        usleep(1000); /* a stream's thread has yet to come to what was given to it last */
    if (cuda->violations)
        fail_msg("%ld rules were broken, the last: %s", cuda->violations, cuda->violation);
    assert_int_equal(cuda->alive, 0);
    return 0;
}

bool cuda_skips(void) {
    if (cuda || tests_a_gpu())
        return false;
    print_message("SKIP: no stand-in for CUDA on this system\n");
    return true;
}

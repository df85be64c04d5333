/* Where the functions of CUDA's driver and of NVRTC come from, and which versions of them will do. */
#include "gpu/cuda/cuda.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static const char *const driver_names[] = {"libcuda.so.1", "libcuda.so", NULL};
/* The loader's own path first; the toolkit does not put itself there. */
static const char *const nvrtc_names[] = {"libnvrtc.so.13",
                                          "libnvrtc.so.12",
                                          "libnvrtc.so",
                                          "/usr/local/cuda/lib64/libnvrtc.so",
                                          "/usr/local/cuda/lib64/libnvrtc.so.13",
                                          "/usr/local/cuda/lib64/libnvrtc.so.12",
                                          NULL};

typedef struct symbol {
    const char *name;
    size_t member;
    bool needed;
} symbol;

#define CUDA_SYMBOL(name, text, needed, parameters) {text, offsetof(cuda_api, name), needed},
static const symbol driver_symbols[] = {CUDA_FUNCTIONS(CUDA_SYMBOL)};
#undef CUDA_SYMBOL
#define CUDA_SYMBOL(name, text, needed, parameters) {text, offsetof(cuda_api, nvrtc.name), needed},
static const symbol nvrtc_symbols[] = {NVRTC_FUNCTIONS(CUDA_SYMBOL)};
#undef CUDA_SYMBOL

/* What the variable names, else the first that there is. NULL: an error that begins with `lacking`. */
static void *open_first(const char *variable, const char *const *names, const char *lacking, const char *nowhere,
                        sl_error *err) {
    const char *named = getenv(variable);
    void *library = NULL;
    if (named && *named) {
        library = dlopen(named, RTLD_NOW | RTLD_LOCAL);
        const char *why = library ? NULL : dlerror();
        if (!library)
            sl_fail(err, SL_ERR_UNSUPPORTED, "%s: %s: %s", lacking, variable, why ? why : named);
        return library;
    }
    for (; *names && !library; names++)
        library = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
    return library ? library : sl_fail_null(err, SL_ERR_UNSUPPORTED, "%s: %s", lacking, nowhere);
}

static bool find_symbols(cuda_api *api, void *library, const symbol *s, size_t n, const char *what, sl_error *err) {
    for (size_t i = 0; i < n; i++) {
        void *found = dlsym(library, s[i].name);
        if (!found && s[i].needed)
            return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: %s has no %s: it is too old", what, s[i].name);
        memcpy((char *)api + s[i].member, &found, sizeof found);
    }
    return true;
}

static bool open_driver(cuda_api *api, sl_error *err) {
    api->driver =
        open_first(CUDA_DRIVER_VARIABLE, driver_names, "no NVIDIA driver here", "libcuda.so.1 is not found", err);
    if (!api->driver)
        return false;
    /* The version first: an old driver is told by its number, not by what it lacks. */
    *(void **)&api->driver_version = dlsym(api->driver, "cuDriverGetVersion");
    if (!api->driver_version || api->driver_version(&api->driver_number) != CUDA_OK)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: the driver's library does not tell its version");
    if (api->driver_number < CUDA_OLDEST_DRIVER)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: the driver is made for CUDA %d.%d, %d.0 or newer is needed",
                       api->driver_number / 1000, api->driver_number % 1000 / 10, CUDA_OLDEST_DRIVER / 1000);
    return find_symbols(api, api->driver, driver_symbols, SL_COUNT(driver_symbols), "the driver", err);
}

static bool open_nvrtc(cuda_api *api, sl_error *err) {
    api->nvrtc_library = open_first(
        CUDA_NVRTC_VARIABLE, nvrtc_names, "cuda: no NVRTC here, which compiles kernels",
        "libnvrtc.so is neither on the loader's path nor in /usr/local/cuda (" CUDA_NVRTC_VARIABLE " may name it)",
        err);
    if (!api->nvrtc_library)
        return false;
    if (!find_symbols(api, api->nvrtc_library, nvrtc_symbols, SL_COUNT(nvrtc_symbols), "NVRTC", err))
        return false;
    if (api->nvrtc.version(&api->nvrtc_major, &api->nvrtc_minor) != 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: NVRTC does not tell its version");
    return api->nvrtc_major >= CUDA_OLDEST_NVRTC ||
           sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: NVRTC is version %d.%d, %d.0 or newer is needed", api->nvrtc_major,
                   api->nvrtc_minor, CUDA_OLDEST_NVRTC);
}

bool cuda_api_open(cuda_api *api, sl_error *err) {
    return open_driver(api, err) && open_nvrtc(api, err);
}

/* The driver's library stays: it has threads of its own, and other users in the process. */
void cuda_api_close(cuda_api *api) {
    api->driver = NULL;
}

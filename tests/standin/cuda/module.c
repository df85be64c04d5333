/* Modules, functions, launches. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct module {
    object o;
    image *image;
    function *function; /* NULL: not asked for */
} module;

#define ENTER(symbol)                                                                                                  \
    cuda_result entered = enter_context(symbol);                                                                       \
    if (entered != CUDA_OK)                                                                                            \
    return entered

EXPORTED cuda_result cuModuleLoadData(cuda_module *out, const void *bytes) {
    ENTER("cuModuleLoadData");
    image *i = image_load(bytes);
    if (!i)
        return INVALID_IMAGE;
    module *m = calloc(1, sizeof *m);
    m->image = i;
    object_add(&m->o, MODULE);
    *out = (cuda_module)(void *)m;
    return CUDA_OK;
}

EXPORTED cuda_result cuModuleUnload(cuda_module handle) {
    cuda_result r = enter("cuModuleUnload");
    module *m = object_take(handle, MODULE);
    if (!m)
        return INVALID_HANDLE;
    if (m->function) {
        object_take(m->function, FUNCTION);
        free(m->function);
    }
    image_free(m->image);
    free(m);
    return r ? r : broken;
}

EXPORTED cuda_result cuModuleGetFunction(cuda_function *out, cuda_module handle, const char *name) {
    ENTER("cuModuleGetFunction");
    module *m = object_find(handle, MODULE);
    if (!m || strcmp(name, m->image->head.entry) != 0)
        return NOT_FOUND;
    m->function = calloc(1, sizeof *m->function);
    m->function->image = m->image;
    object_add(&m->function->o, FUNCTION);
    *out = (cuda_function)(void *)m->function;
    return CUDA_OK;
}

EXPORTED cuda_result cuFuncLoad(cuda_function handle) {
    ENTER("cuFuncLoad");
    return object_find(handle, FUNCTION) ? CUDA_OK : INVALID_HANDLE;
}

EXPORTED cuda_result cuFuncGetAttribute(int *value, int attribute, cuda_function handle) {
    ENTER("cuFuncGetAttribute");
    const function *f = object_find(handle, FUNCTION);
    if (!f)
        return INVALID_HANDLE;
    *value = attribute == CUDA_FUNCTION_MAX_THREADS ? (int)f->image->head.max_threads
             : attribute == CUDA_FUNCTION_SHARED    ? (int)f->image->shared
             : attribute == CUDA_FUNCTION_REGISTERS ? 32
                                                    : 0;
    return CUDA_OK;
}

EXPORTED cuda_result cuFuncSetAttribute(cuda_function handle, int attribute, int value) {
    ENTER("cuFuncSetAttribute");
    function *f = object_find(handle, FUNCTION);
    if (!f || attribute != CUDA_FUNCTION_MAX_DYNAMIC || value < 0 || value + (int)f->image->shared > 32768)
        return CUDA_INVALID_VALUE;
    f->shared_most = value;
    return CUDA_OK;
}

/* Parameters are taken by value at the call, as the driver does. */
EXPORTED cuda_result cuLaunchKernel(cuda_function handle, unsigned gx, unsigned gy, unsigned gz, unsigned tx,
                                    unsigned ty, unsigned tz, unsigned shared, cuda_queue queue_handle,
                                    void **parameters, void **extra) {
    ENTER("cuLaunchKernel");
    function *f = object_find(handle, FUNCTION);
    if (!f || extra || (int)shared > f->shared_most || tx * ty * tz > f->image->head.max_threads || !gx || !gy || !gz ||
        !tx || !ty || !tz || tz > 64 || gx > INT32_MAX || gy > 65535 || gz > 65535)
        return CUDA_INVALID_VALUE;
    work *w = calloc(1, sizeof *w);
    *w = (work){.what = LAUNCH, .image = f->image, .groups = {gx, gy, gz}, .threads = {tx, ty, tz}, .shared = shared};
    uint32_t at = 0;
    for (uint32_t i = 0; i < f->image->head.count; i++) {
        const parameter *p = &f->image->head.parameter[i];
        uint32_t n = p->type == 'v' ? p->bytes : p->type == 't' ? 4 : 8;
        memcpy(w->parameters + at, parameters[i], n);
        at += (n + 15) / 16 * 16;
    }
    control.launches++;
    cuda_result r = queue_put(queue_handle, w);
    free(w);
    return r;
}

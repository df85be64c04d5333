/* Libraries are the generated text, checked; machine code is made for one entry with its constants, since these are
 * compile-time values there, and kept in the cache on disk. */
#include "gpu/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define MARKER "SLUICE-CUDA-1"

/* ---- payloads -----------------------------------------------------------------------------------------------------
 */

/* Everything that a compiler of the whole unit would find wrong is told here; the code is made entry by entry. */
bool cuda_compile(gpu_device *d, const gpu_source *s, sl_buf *payload, sl_error *err) {
    size_t size;
    const char *code = msl_module_code(s->module, &size);
    cuda_unit u = {.name = s->name, .code = code, .fast = s->options->fast_math};
    if (!cuda_usable(d, err) || !cuda_nvrtc(d, &u, NULL, err))
        return false;
    sl_buf_printf(payload, MARKER " %c\n", u.fast ? 'f' : 's');
    sl_buf_append(payload, code, size);
    return !payload->failed || sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for its code", s->name);
}

void *cuda_library_load(gpu_device *d, const void *payload, size_t size, sl_error *err) {
    static const size_t marker = sizeof MARKER - 1;
    const char *p = payload;
    if (!cuda_usable(d, err))
        return NULL;
    if (size < marker + 3 || memcmp(p, MARKER, marker) != 0 || p[marker] != ' ' || p[marker + 2] != '\n' ||
        (p[marker + 1] != 'f' && p[marker + 1] != 's') || memchr(p, 0, size))
        return sl_fail_null(err, SL_ERR_FORMAT, "cuda: %zu bytes that are no library of this device", size);
    cuda_library *l = calloc(1, sizeof *l);
    char *code = l ? sl_strndup(p + marker + 3, size - marker - 3) : NULL;
    if (!code) {
        free(l);
        return sl_fail_null(err, SL_ERR_MEMORY, "cuda: out of memory for a library of %zu bytes", size);
    }
    *l = (cuda_library){.code = code, .size = size - marker - 3, .fast = p[marker + 1] == 'f'};
    return l;
}

void cuda_library_free(gpu_device *d, void *library) {
    cuda_library *l = library;
    if (!l)
        return;
    free(l->code);
    free(l);
}

/* ---- images -------------------------------------------------------------------------------------------------------
 */

static void make_key(const gpu_device *d, const cuda_library *l, const sl_buf *options, uint64_t key[2]) {
    XXH128_hash_t parts[3] = {XXH3_128bits(l->code, l->size), XXH3_128bits(options->data, options->size),
                              XXH3_128bits(d->base.info.system, strlen(d->base.info.system))};
    XXH128_hash_t all = XXH3_128bits(parts, sizeof parts);
    key[0] = all.low64;
    key[1] = all.high64;
}

/* From the cache, or compiled and put there. */
static bool get_image(gpu_device *d, const cuda_library *l, const cuda_unit *u, sl_buf *image, sl_error *err) {
    sl_buf options = {0};
    uint64_t key[2];
    cuda_nvrtc_options(d, u, &options);
    if (options.failed)
        return sl_fail(err, SL_ERR_MEMORY, "kernel %s: out of memory", u->name);
    make_key(d, l, &options, key);
    sl_buf_free(&options);
    if (d->store && d->store->get(d->store->self, key, image))
        return true;
    uint64_t began = sl_now_ns();
    if (!cuda_nvrtc(d, u, image, err))
        return false;
    sl_logf(&d->base.log, SL_LOG_DEBUG, "cuda: kernel %s: compiled in %.0f ms, %zu bytes", u->name,
            (double)(sl_now_ns() - began) * 1e-6, image->size);
    if (d->store)
        d->store->put(d->store->self, key, image->data, image->size);
    return true;
}

/* ---- pipelines ----------------------------------------------------------------------------------------------------
 */

/* The entry's own parameters: one per slot of the argument table, in its order. */
static bool read_parameters(cuda_pipeline *p, const msl_kernel *k, sl_error *err) {
    for (size_t i = 0; i < k->arg_count; i++) {
        const sl_gpu_arg *a = &k->args[i].arg;
        struct cuda_parameter now = {(int8_t)a->slot, a->kind == SL_GPU_ARG_THREADGROUP};
        const struct cuda_parameter *last = p->parameters ? &p->parameter[p->parameters - 1] : NULL;
        if (last && last->slot == now.slot && last->threadgroup == now.threadgroup)
            continue;
        if (p->parameters == CUDA_PARAMETERS || a->slot < 0 || a->slot >= SL_GPU_SLOTS)
            return sl_fail(err, SL_ERR_FORMAT, "kernel %s: slot %d of argument %zu", k->name, a->slot, i);
        p->parameter[p->parameters++] = now;
    }
    return true;
}

static bool get_attribute(gpu_device *d, const cuda_pipeline *p, int which, int *value, sl_error *err) {
    return cuda_check(d, d->api.function_get(value, which, p->function), err, "kernel %s: its limits", p->name);
}

/* Loading is forced here: later it might wait for the device, which may be waiting for the host. */
static bool load_function(gpu_device *d, cuda_pipeline *p, const void *image, const char *entry, sl_error *err) {
    if (!cuda_check(d, d->api.module_load(&p->module, image), err, "kernel %s: loading its code", p->name) ||
        !cuda_check(d, d->api.module_function(&p->function, p->module, entry), err, "kernel %s: entry %s", p->name,
                    entry))
        return false;
    return !d->api.function_load ||
           cuda_check(d, d->api.function_load(p->function), err, "kernel %s: loading it", p->name);
}

static bool set_limits(gpu_device *d, cuda_pipeline *p, gpu_pipeline_limits *limits, sl_error *err) {
    int threads = 0, shared = 0, local = 0, registers = 0;
    if (!get_attribute(d, p, CUDA_FUNCTION_MAX_THREADS, &threads, err) ||
        !get_attribute(d, p, CUDA_FUNCTION_SHARED, &shared, err) ||
        !get_attribute(d, p, CUDA_FUNCTION_LOCAL, &local, err) ||
        !get_attribute(d, p, CUDA_FUNCTION_REGISTERS, &registers, err))
        return false;
    if (shared < 0 || (uint32_t)shared > d->shared_most)
        return sl_fail(err, SL_ERR_DEVICE, "kernel %s: %d bytes of threadgroup memory, the GPU has %u", p->name, shared,
                       d->shared_most);
    if (!cuda_check(d, d->api.function_set(p->function, CUDA_FUNCTION_MAX_DYNAMIC, (int)d->shared_most - shared), err,
                    "kernel %s: its threadgroup memory", p->name))
        return false;
    if (local > 0)
        sl_logf(&d->base.log, SL_LOG_DEBUG, "cuda: kernel %s: %d registers, %d bytes spilled a thread", p->name,
                registers, local);
    *limits = (gpu_pipeline_limits){(uint32_t)threads, 32, (uint32_t)shared};
    return true;
}

static bool make_pipeline(gpu_device *d, const cuda_library *l, cuda_pipeline *p, const msl_kernel *kernel,
                          const sl_gpu_constant *constants, size_t count, gpu_pipeline_limits *limits, sl_error *err) {
    sl_buf image = {0};
    cuda_unit u = {.name = kernel->name,
                   .code = l->code,
                   .fast = l->fast,
                   .entry = kernel->entry,
                   .constants = constants,
                   .constant_count = count};
    p->name = sl_strdup(kernel->name);
    if (!p->name)
        return sl_fail(err, SL_ERR_MEMORY, "kernel %s: out of memory", kernel->name);
    bool ok = read_parameters(p, kernel, err) && get_image(d, l, &u, &image, err) && cuda_enter(d, err);
    if (ok) {
        ok = load_function(d, p, image.data, kernel->entry, err) && set_limits(d, p, limits, err);
        cuda_leave(d);
    }
    sl_buf_free(&image);
    return ok;
}

void *cuda_pipeline_new(gpu_device *d, void *library, const msl_kernel *kernel, const sl_gpu_constant *constants,
                        size_t count, gpu_pipeline_limits *limits, sl_error *err) {
    if (!cuda_usable(d, err))
        return NULL;
    cuda_pipeline *p = calloc(1, sizeof *p);
    if (!p)
        return sl_fail_null(err, SL_ERR_MEMORY, "kernel %s: out of memory", kernel->name);
    if (make_pipeline(d, library, p, kernel, constants, count, limits, err))
        return p;
    cuda_pipeline_free(d, p);
    return NULL;
}

void cuda_pipeline_free(gpu_device *d, void *pipeline) {
    cuda_pipeline *p = pipeline;
    if (!p)
        return;
    pthread_mutex_lock(&d->lock);
    d->pipelines_freed++;
    pthread_mutex_unlock(&d->lock);
    if (p->module && cuda_enter_to_free(d)) {
        cuda_freed(d, d->api.module_unload(p->module), "unloading a kernel");
        cuda_leave(d);
    }
    free(p->name);
    free(p);
}

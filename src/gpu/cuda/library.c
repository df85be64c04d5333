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
        cuda_parameter now = {(int8_t)a->slot, a->kind == SL_GPU_ARG_THREADGROUP, (uint16_t)msl_value_bytes(k, i)};
        const cuda_parameter *last = p->parameters ? &p->parameter[p->parameters - 1] : NULL;
        if (last && last->slot == now.slot && last->threadgroup == now.threadgroup)
            continue;
        if (p->parameters == CUDA_PARAMETERS || a->slot < 0 || a->slot >= SL_GPU_SLOTS)
            return sl_fail(err, SL_ERR_FORMAT, "kernel %s: slot %d of argument %zu", k->name, a->slot, i);
        p->parameter[p->parameters++] = now;
        if (!now.threadgroup)
            p->value[now.slot] = now.value;
    }
    return true;
}

static bool get_attribute(gpu_device *d, const cuda_pipeline *p, int which, int *value, sl_error *err) {
    return cuda_check(d, d->api.function_get(value, which, p->code.function), err, "kernel %s: its limits", p->name);
}

/* Loading is forced here: later it might wait for the device, which may be waiting for the host. */
static bool load_code(gpu_device *d, const cuda_pipeline *p, const void *image, cuda_code *c, sl_error *err) {
    int shared = 0;
    if (!cuda_check(d, d->api.module_load(&c->module, image), err, "kernel %s: loading its code", p->name) ||
        !cuda_check(d, d->api.module_function(&c->function, c->module, p->entry), err, "kernel %s: entry %s", p->name,
                    p->entry) ||
        (d->api.function_load &&
         !cuda_check(d, d->api.function_load(c->function), err, "kernel %s: loading it", p->name)) ||
        !cuda_check(d, d->api.function_get(&shared, CUDA_FUNCTION_SHARED, c->function), err, "kernel %s: its limits",
                    p->name))
        return false;
    if (shared < 0 || (uint32_t)shared > d->shared_most)
        return sl_fail(err, SL_ERR_DEVICE, "kernel %s: %d bytes of threadgroup memory, the GPU has %u", p->name, shared,
                       d->shared_most);
    return cuda_check(d, d->api.function_set(c->function, CUDA_FUNCTION_MAX_DYNAMIC, (int)d->shared_most - shared), err,
                      "kernel %s: its threadgroup memory", p->name);
}

static void unload_code(gpu_device *d, cuda_code *c) {
    if (c->module)
        cuda_freed(d, d->api.module_unload(c->module), "unloading a kernel");
    *c = (cuda_code){0};
}

/* The context is current. */
static bool make_code(gpu_device *d, const cuda_pipeline *p, bool pointers, cuda_code *c, sl_error *err) {
    sl_buf image = {0};
    cuda_unit u = {.name = p->name,
                   .code = p->library->code,
                   .fast = p->library->fast,
                   .entry = p->entry,
                   .constants = p->constants,
                   .constant_count = p->constant_count,
                   .pointers = pointers};
    bool ok = get_image(d, p->library, &u, &image, err) && load_code(d, p, image.data, c, err);
    sl_buf_free(&image);
    if (!ok)
        unload_code(d, c);
    return ok;
}

static bool read_limits(gpu_device *d, const cuda_pipeline *p, gpu_pipeline_limits *limits, sl_error *err) {
    int threads = 0, shared = 0, local = 0, registers = 0;
    if (!get_attribute(d, p, CUDA_FUNCTION_MAX_THREADS, &threads, err) ||
        !get_attribute(d, p, CUDA_FUNCTION_SHARED, &shared, err) ||
        !get_attribute(d, p, CUDA_FUNCTION_LOCAL, &local, err) ||
        !get_attribute(d, p, CUDA_FUNCTION_REGISTERS, &registers, err))
        return false;
    if (local > 0)
        sl_logf(&d->base.log, SL_LOG_DEBUG, "cuda: kernel %s: %d registers, %d bytes of a stack a thread", p->name,
                registers, local);
    *limits = (gpu_pipeline_limits){(uint32_t)threads, 32, (uint32_t)shared};
    return true;
}

static bool copy_names(cuda_pipeline *p, const msl_kernel *k, const sl_gpu_constant *constants, size_t count) {
    p->name = sl_strdup(k->name);
    p->entry = sl_strdup(k->entry);
    p->constants = calloc(count + 1, sizeof *p->constants);
    if (p->constants && count)
        memcpy(p->constants, constants, count * sizeof *constants);
    p->constant_count = count;
    return p->name && p->entry && p->constants;
}

void *cuda_pipeline_new(gpu_device *d, void *library, const msl_kernel *kernel, const sl_gpu_constant *constants,
                        size_t count, gpu_pipeline_limits *limits, sl_error *err) {
    cuda_pipeline *p = calloc(1, sizeof *p);
    if (!p)
        return sl_fail_null(err, SL_ERR_MEMORY, "kernel %s: out of memory", kernel->name);
    p->library = library;
    pthread_mutex_init(&p->lock, NULL);
    bool ok = copy_names(p, kernel, constants, count) ||
              sl_fail(err, SL_ERR_MEMORY, "kernel %s: out of memory", kernel->name);
    ok = ok && read_parameters(p, kernel, err) && cuda_enter(d, err);
    if (ok) {
        ok = make_code(d, p, false, &p->code, err) && read_limits(d, p, limits, err);
        cuda_leave(d);
    }
    if (ok)
        return p;
    cuda_pipeline_free(d, p);
    return NULL;
}

cuda_function cuda_pipeline_pointers(gpu_device *d, cuda_pipeline *p, sl_error *err) {
    pthread_mutex_lock(&p->lock);
    bool ok = p->pointers.function || make_code(d, p, true, &p->pointers, err);
    cuda_function f = ok ? p->pointers.function : NULL;
    pthread_mutex_unlock(&p->lock);
    return f;
}

void cuda_pipeline_free(gpu_device *d, void *pipeline) {
    cuda_pipeline *p = pipeline;
    if (!p)
        return;
    pthread_mutex_lock(&d->lock);
    d->pipelines_freed++;
    pthread_mutex_unlock(&d->lock);
    if (cuda_enter_to_free(d)) {
        unload_code(d, &p->code);
        unload_code(d, &p->pointers);
        cuda_leave(d);
    }
    pthread_mutex_destroy(&p->lock);
    free(p->constants);
    free(p->entry);
    free(p->name);
    free(p);
}

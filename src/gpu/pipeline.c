/* Pipelines: an entry with its constants, limits and argument table. */
#include "gpu/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const type_names[] = {"bool", "int", "uint", "float", "short", "ushort", "half"};

/* ---- entry ------------------------------------------------------------------------------------------------------- */

static const msl_kernel *find_kernel(const gpu_library *l, const char *entry, sl_error *err) {
    const gpu_table *t = &l->table;
    for (size_t i = 0; i < t->kernel_count; i++)
        if (strcmp(t->kernels[i].name, entry) == 0)
            return &t->kernels[i];
    for (size_t i = 0; i < t->refused_count; i++)
        if (strcmp(t->refused[i].host_name, entry) == 0)
            return sl_fail_null(err, SL_ERR_UNSUPPORTED, "no kernel '%s' in the library, it was left out: %s", entry,
                                t->refused[i].message);
    char names[512] = "";
    size_t at = 0;
    for (size_t i = 0; i < t->kernel_count; i++) {
        if (at + strlen(t->kernels[i].name) + 8 > sizeof names) {
            strcpy(names + at, ", ...");
            break;
        }
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", t->kernels[i].name);
    }
    return sl_fail_null(err, SL_ERR_ARGUMENT, "no kernel '%s' in the library, which has %s", entry,
                        *names ? names : "none");
}

/* ---- constants --------------------------------------------------------------------------------------------------- */

static bool check_constant(const gpu_library *l, const char *entry, const sl_gpu_constant *c, sl_error *err) {
    const gpu_table *t = &l->table;
    if ((unsigned)c->type > SL_GPU_HALF)
        return sl_fail(err, SL_ERR_ARGUMENT, "kernel '%s': constant %d has type %d, which is none", entry, c->id,
                       (int)c->type);
    for (size_t i = 0; l->tabled && i < t->constant_count; i++) {
        if (t->constants[i].id != c->id)
            continue;
        return t->constants[i].type == c->type ||
               sl_fail(err, SL_ERR_ARGUMENT, "kernel '%s': constant %d '%s' is given as %s, expected %s", entry, c->id,
                       t->constants[i].name, type_names[c->type], type_names[t->constants[i].type]);
    }
    return !l->tabled || sl_fail(err, SL_ERR_ARGUMENT, "kernel '%s': the library has no constant %d", entry, c->id);
}

static bool check_constants(const gpu_library *l, const char *entry, const sl_gpu_constant *c, size_t n,
                            sl_error *err) {
    if (n > 0 && !c)
        return sl_fail(err, SL_ERR_ARGUMENT, "kernel '%s': %zu constants at NULL", entry, n);
    for (size_t i = 0; i < n; i++) {
        if (!check_constant(l, entry, &c[i], err))
            return false;
        for (size_t k = 0; k < i; k++)
            if (c[k].id == c[i].id)
                return sl_fail(err, SL_ERR_ARGUMENT, "kernel '%s': constant %d is given twice", entry, c[i].id);
    }
    return true;
}

/* Only the device's compiler knows which kernel uses a constant: one that is not given is 0 on soft, and an error of
 * Metal's where the kernel uses it. */
static void tell_missing(const gpu_library *l, const char *entry, const sl_gpu_constant *c, size_t n) {
    for (size_t i = 0; i < l->table.constant_count; i++) {
        const msl_constant *m = &l->table.constants[i];
        bool given = m->optional;
        for (size_t k = 0; k < n && !given; k++)
            given = c[k].id == m->id;
        if (!given)
            sl_logf(
                &l->o.gpu->log, SL_LOG_INFO,
                "kernel '%s': constant %d '%s' is not given: 0 on soft, an error of Metal's where the kernel uses it",
                entry, m->id, m->name);
    }
}

/* An optional argument's condition; a constant that is not given is false. */
static bool is_used(const gpu_table *t, int condition, const sl_gpu_constant *c, size_t n) {
    if (condition < 0)
        return true;
    for (size_t i = 0; i < n; i++)
        if (c[i].id == t->constants[condition].id)
            return c[i].type == SL_GPU_BOOL && c[i].value.b;
    return false;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static bool copy_args(gpu_pipeline *p, const msl_kernel *k, const sl_gpu_constant *c, size_t n, sl_error *err) {
    p->args = calloc(k->arg_count + 1, sizeof *p->args);
    if (!p->args)
        return sl_fail(err, SL_ERR_MEMORY, "kernel '%s': out of memory for %zu arguments", p->entry, k->arg_count);
    p->arg_count = k->arg_count;
    for (size_t i = 0; i < k->arg_count; i++) {
        sl_gpu_arg *a = &p->args[i];
        *a = k->args[i].arg;
        a->unused = !is_used(&p->library->table, k->args[i].condition, c, n);
        if (a->least == 0)
            a->least = 1;
        if (k->args[i].condition == MSL_CONDITION_DERIVED && a->kind != SL_GPU_ARG_THREADGROUP)
            p->perhaps |= UINT32_C(1) << a->slot;
        /* Two arguments may share a slot where constants choose one. */
        if (a->kind != SL_GPU_ARG_THREADGROUP && !(p->by_slot[a->slot] && a->unused))
            p->by_slot[a->slot] = a;
    }
    return true;
}

/* A driver's limits and the source's own, the smaller. */
static bool set_limits(gpu_pipeline *p, const msl_kernel *k, sl_error *err) {
    const sl_gpu_info *info = &p->o.gpu->info;
    gpu_pipeline_limits *l = &p->limits;
    if (l->simd_width == 0)
        l->simd_width = (uint32_t)info->simd_width;
    if (l->max_threads > info->max_threads)
        l->max_threads = info->max_threads;
    if (k->max_threads && k->max_threads < l->max_threads)
        l->max_threads = k->max_threads;
    if (l->max_threads == 0)
        return sl_fail(err, SL_ERR_DEVICE, "kernel '%s': the device allows it 0 threads", p->entry);
    return l->threadgroup_memory <= info->max_threadgroup_memory ||
           sl_fail(err, SL_ERR_ARGUMENT, "kernel '%s' declares %u bytes of threadgroup memory, the device has %u",
                   p->entry, l->threadgroup_memory, info->max_threadgroup_memory);
}

static bool make_pipeline(gpu_pipeline *p, const char *entry, const sl_gpu_constant *c, size_t n, sl_error *err) {
    sl_gpu *g = p->o.gpu;
    gpu_library *l = p->library;
    msl_kernel bare = {.name = entry, .entry = entry}; /* of a .metallib */
    const msl_kernel *k = l->tabled ? find_kernel(l, entry, err) : &bare;
    if (!k || !check_constants(l, entry, c, n, err))
        return false;
    tell_missing(l, entry, c, n);
    p->tabled = l->tabled;
    p->entry = sl_strdup(entry);
    if (!p->entry)
        return sl_fail(err, SL_ERR_MEMORY, "kernel '%s': out of memory", entry);
    if (!copy_args(p, k, c, n, err))
        return false;
    p->driver = g->driver->pipeline_new(g->device, l->driver, k, c, n, &p->limits, err);
    return p->driver && set_limits(p, k, err);
}

sl_gpu_pipeline *sl_gpu_pipeline_new(sl_gpu_library *library, const char *entry, const sl_gpu_constant *constants,
                                     size_t count, sl_error *err) {
    gpu_library *l = gpu_take(library, GPU_LIBRARY, err);
    if (!l)
        return NULL;
    gpu_pipeline *p = NULL;
    if (!entry)
        sl_fail(err, SL_ERR_ARGUMENT, "sl_gpu_pipeline_new: entry is NULL");
    else if (gpu_same_process(l->o.gpu, err))
        p = gpu_object_new(l->o.gpu, GPU_PIPELINE, sizeof *p, err);
    if (!p) {
        gpu_drop(l);
        return NULL;
    }
    p->library = l;
    if (!make_pipeline(p, entry, constants, count, err)) {
        gpu_drop(p);
        return NULL;
    }
    gpu_debug_pipeline(p);
    return gpu_handle_new(p, err);
}

void gpu_pipeline_destroy(gpu_pipeline *p) {
    sl_gpu *g = p->o.gpu;
    if (p->driver)
        g->driver->pipeline_free(g->device, p->driver);
    gpu_drop(p->library);
    free(p->args);
    free(p->entry);
}

void sl_gpu_pipeline_free(sl_gpu_pipeline *p) {
    gpu_drop(gpu_handle_end(p, GPU_PIPELINE));
}

void sl_gpu_pipeline_get_info(const sl_gpu_pipeline *handle, sl_gpu_pipeline_info *info) {
    gpu_pipeline *p = gpu_take(handle, GPU_PIPELINE, NULL);
    if (p && info) {
        sl_gpu_pipeline_info all = {
            .size = sizeof all,
            .entry = p->entry,
            .max_threads = p->limits.max_threads,
            .simd_width = p->limits.simd_width,
            .threadgroup_memory = p->limits.threadgroup_memory,
            .args = p->args,
            .arg_count = p->arg_count,
        };
        gpu_copy_info(info, &all, sizeof all);
    }
    gpu_drop(p);
}

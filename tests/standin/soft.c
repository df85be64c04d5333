/* Kernels of any other source run on the soft device, one dispatch at a time. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static gpu_device *device;
static void *stream;
static sl_error open_error;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void open_device(void) {
    gpu_open o = {.index = -1};
    device = gpu_driver_soft.open(&o, &open_error);
    stream = device ? gpu_driver_soft.stream_new(device, &open_error) : NULL;
}

__attribute__((destructor)) static void close_device(void) {
    if (stream)
        gpu_driver_soft.stream_free(device, stream);
    if (device)
        gpu_driver_soft.close(device);
}

static bool say(const sl_error *e, char *message, size_t size) {
    snprintf(message, size, "%s", e->message);
    return false;
}

/* As Metal's compiler puts it: FILE:LINE:COLUMN: error: what. The translator says FILE:LINE: what, by the source's own
 * #line. */
static bool say_diagnostic(const sl_error *e, char *message, size_t size) {
    const char *colon = e->message, *what = NULL;
    while (!what && (colon = strchr(colon, ':'))) {
        size_t digits = strspn(++colon, "0123456789");
        if (digits && strncmp(colon + digits, ": ", 2) == 0)
            what = colon + digits;
    }
    if (what)
        snprintf(message, size, "Compilation failed: \n\n%.*s:1: error: %s\n", (int)(what - e->message), e->message,
                 what + 2);
    else
        snprintf(message, size, "Compilation failed: \n\nprogram_source:1:1: error: %s\n", e->message);
    return false;
}

static bool soft_load(code *c, char *message, size_t size) {
    sl_error e = {0};
    pthread_once(&once, open_device);
    if (!stream)
        return say_diagnostic(&open_error, message, size);
    msl_options translation = {.name = "program_source", .target = MSL_SOFT, .language = c->language * 10};
    c->module = msl_translate(c->source, strlen(c->source), &translation, &e);
    if (!c->module)
        return say_diagnostic(&e, message, size);
    c->kernels = msl_module_kernels(c->module, &c->kernel_count);
    sl_gpu_compile_options o = SL_GPU_COMPILE_OPTIONS_INIT;
    o.name = "program_source";
    o.fast_math = c->fast_math;
    gpu_source s = {"program_source", c->source, strlen(c->source), &o, c->module};
    sl_buf payload = {0};
    size_t code_size;
    const char *translated = msl_module_code(c->module, &code_size);
    char *path = kept_path(translated, code_size, c->fast_math);
    bool kept = kept_read(path, &payload), ok = kept || gpu_driver_soft.compile(device, &s, &payload, &e);
    if (ok && !kept)
        kept_write(path, &payload);
    if (ok)
        c->library = gpu_driver_soft.library_load(device, payload.data, payload.size, &e);
    free(path);
    sl_buf_free(&payload);
    return c->library || say_diagnostic(&e, message, size);
}

static void soft_unload(code *c) {
    if (c->library)
        gpu_driver_soft.library_free(device, c->library);
    if (c->module)
        msl_module_free(c->module);
}

static sl_gpu_constant constant_of(int id, const constant_value *v) {
    sl_gpu_constant c = {.id = id};
    uint16_t half;
    switch (v->type) {
    case 53:
        c.type = SL_GPU_BOOL;
        c.value.b = v->bytes[0] != 0;
        break;
    case 37:
        c.type = SL_GPU_SHORT;
        memcpy(&half, v->bytes, 2);
        c.value.i = (int16_t)half;
        break;
    case 41:
        c.type = SL_GPU_USHORT;
        memcpy(&half, v->bytes, 2);
        c.value.u = half;
        break;
    case 16:
        c.type = SL_GPU_HALF;
        memcpy(&half, v->bytes, 2);
        c.value.f = (half & 0x8000 ? -1.0f : 1.0f) *
                    (half & 0x7c00 ? __builtin_ldexpf((float)((half & 0x3ff) | 0x400), (half >> 10 & 31) - 25)
                                   : __builtin_ldexpf((float)(half & 0x3ff), -24));
        break;
    default:
        c.type = v->type == 3 ? SL_GPU_FLOAT : v->type == 29 ? SL_GPU_INT : SL_GPU_UINT;
        memcpy(&c.value, v->bytes, 4);
    }
    return c;
}

static bool soft_enter(code *c, entry *e, char *message, size_t size) {
    sl_gpu_constant constants[CONSTANTS];
    size_t n = 0;
    sl_error err = {0};
    gpu_pipeline_limits limits = {0};
    for (int i = 0; i < CONSTANTS; i++)
        if (e->constants[i].set)
            constants[n++] = constant_of(i, &e->constants[i]);
    e->own = gpu_driver_soft.pipeline_new(device, c->library, e->kernel, constants, n, &limits, &err);
    e->static_memory = limits.threadgroup_memory;
    if (limits.max_threads && (!e->max_threads || limits.max_threads < e->max_threads))
        e->max_threads = limits.max_threads;
    return e->own || say(&err, message, size);
}

static void soft_leave(entry *e) {
    gpu_driver_soft.pipeline_free(device, e->own);
}

static bool run_list(const gpu_command *c, char *message, size_t size) {
    sl_error err = {0};
    void *submission;
    gpu_result result = {0};
    if (!gpu_driver_soft.submit(device, stream, "stand-in", c, 1, &submission, &err))
        return say(&err, message, size);
    bool done = gpu_driver_soft.wait(device, submission, 600ull * 1000000000, &result);
    if (!done)
        snprintf(message, size, "the soft device did not end");
    else if (result.failed)
        say(&result.error, message, size);
    gpu_driver_soft.release(device, submission);
    return done && !result.failed;
}

/* A dispatch with what it needs while it runs. */
typedef struct launch {
    gpu_memory memory[SLOTS];
    gpu_bound bound[SLOTS];
    sl_gpu_threadgroup_length lengths[SLOTS];
    gpu_command command;
    size_t bound_count, length_count;
} launch;

static bool bind(launch *l, const entry *e, const call *c, char *message, size_t size) {
    for (size_t i = 0; i < e->kernel->arg_count; i++) {
        const sl_gpu_arg *a = &e->kernel->args[i].arg;
        sl_error err = {0};
        if (entry_argument_unused(e, i))
            continue;
        if (a->kind == SL_GPU_ARG_THREADGROUP) {
            l->lengths[l->length_count++] = (sl_gpu_threadgroup_length){a->slot, c->threadgroup[a->slot]};
            continue;
        }
        gpu_memory *m = &l->memory[l->bound_count];
        if (!gpu_driver_soft.wrap(device, c->slots[a->slot], c->lengths[a->slot], m, &err))
            return say(&err, message, size);
        l->bound[l->bound_count++] = (gpu_bound){
            .slot = a->slot, .memory = m, .length = c->lengths[a->slot], .writes = a->kind == SL_GPU_ARG_WRITE};
    }
    return true;
}

static bool soft_run(entry *e, const call *c, char *message, size_t size) {
    launch l = {.command = {.kind = GPU_DISPATCH, .label = e->kernel->name}};
    pthread_mutex_lock(&lock);
    bool ok = bind(&l, e, c, message, size);
    if (ok) {
        l.command.u.dispatch.pipeline = e->own;
        memcpy(l.command.u.dispatch.groups, c->groups, sizeof c->groups);
        memcpy(l.command.u.dispatch.threads, c->threads, sizeof c->threads);
        l.command.u.dispatch.bound = l.bound;
        l.command.u.dispatch.bound_count = l.bound_count;
        l.command.u.dispatch.lengths = l.lengths;
        l.command.u.dispatch.length_count = l.length_count;
        ok = run_list(&l.command, message, size);
    }
    while (l.bound_count)
        gpu_driver_soft.free(device, &l.memory[--l.bound_count]);
    pthread_mutex_unlock(&lock);
    return ok;
}

const code_kind soft_kind = {soft_load, soft_unload, soft_enter, soft_leave, soft_run};

/* The soft device's place in the table of devices: opening, closing, what it says of itself. */
#include "gpu/soft/soft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>

enum { LIMIT_SECONDS = 120, LIMIT_SECONDS_CHECKING = 600 };

static void name_family(char *out, size_t size) {
    const char *family = "generic";
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    family = v3 ? "x86-64-v3" : "x86-64";
#elif defined(__aarch64__)
    family = "aarch64";
#endif
    snprintf(out, size, "%s", family);
}

/* The compiler by its file: another version is another size or time. */
static void name_system(const soft_device *d, char *out, size_t size) {
    struct utsname u = {0};
    struct stat s = {0};
    uname(&u);
    stat(d->compiler, &s);
    snprintf(out, size, "%.12s clang %llx.%llx.%x%s", u.sysname, (unsigned long long)s.st_size & 0xFFFFFFFF,
             (unsigned long long)s.st_mtime, soft_flags_hash(d->checking), d->checking ? " checks" : "");
}

static void fill_info(soft_device *d) {
    sl_gpu_info *i = &d->base.info;
    uint64_t memory = sl_memory_limit(NULL);
    *i = (sl_gpu_info){.size = sizeof *i,
                       .device = "soft",
                       .simd_width = SOFT_SIMD,
                       .max_threads = SOFT_MAX_THREADS,
                       .max_threadgroup_memory = SOFT_THREADGROUP_BYTES,
                       .max_buffer = memory,
                       .working_set = memory,
                       .unified = true,
                       .bfloat = true,
                       .simdgroup_matrix = true,
                       .language = 31};
    snprintf(i->name, sizeof i->name, "soft, %d thread%s%s", d->worker_count, d->worker_count == 1 ? "" : "s",
             d->checking ? ", checking" : "");
    name_family(i->family, sizeof i->family);
    name_system(d, i->system, sizeof i->system);
}

static int count_workers(const gpu_open *o) {
    int n = o->index > 0 ? o->index : sl_cpu_count();
    if (o->check)
        n = 1;
    return n < 1 ? 1 : n > SOFT_MAX_WORKERS ? SOFT_MAX_WORKERS : n;
}

static void soft_close(gpu_device *device) {
    soft_device *d = soft_of(device);
    soft_workers_close(d);
    pthread_cond_destroy(&d->work);
    pthread_cond_destroy(&d->idle);
    pthread_mutex_destroy(&d->mutex);
    pthread_mutex_destroy(&d->dispatch_mutex);
    free(d->compiler);
    free(d);
}

static gpu_device *soft_open(const gpu_open *o, sl_error *err) {
    char *compiler = soft_find_compiler(err);
    soft_device *d = compiler ? calloc(1, sizeof *d) : NULL;
    if (!d) {
        if (compiler)
            sl_fail(err, SL_ERR_MEMORY, "soft: out of memory");
        free(compiler);
        return NULL;
    }
    d->compiler = compiler;
    d->checking = o->check;
    d->seed = o->seed;
    d->base.driver = &gpu_driver_soft;
    d->base.debug = o->debug;
    d->base.log = o->log;
    d->limit_ns = (uint64_t)(o->check ? LIMIT_SECONDS_CHECKING : LIMIT_SECONDS) * 1000000000u;
    d->worker_count = count_workers(o);
    pthread_mutex_init(&d->dispatch_mutex, NULL);
    pthread_mutex_init(&d->mutex, NULL);
    soft_cond_init(&d->work);
    soft_cond_init(&d->idle);
    fill_info(d);
    soft_faults_install();
    if (!soft_workers_open(d, err)) {
        soft_close((gpu_device *)d);
        return NULL;
    }
    return (gpu_device *)d;
}

const gpu_driver gpu_driver_soft = {
    .name = "soft",
    .target = MSL_SOFT,
    .open = soft_open,
    .close = soft_close,
    .compile = soft_compile,
    .library_load = soft_library_load,
    .library_free = soft_library_free,
    .pipeline_new = soft_pipeline_new,
    .pipeline_free = soft_pipeline_free,
    .alloc = soft_alloc,
    .wrap = soft_wrap,
    .free = soft_memory_free,
    .read = soft_memory_read,
    .write = soft_memory_write,
    .stream_new = soft_stream_new,
    .stream_free = soft_stream_free,
    .event_new = soft_event_new,
    .event_free = soft_event_free,
    .event_signal = soft_event_signal,
    .event_value = soft_event_value,
    .event_wait = soft_event_wait,
    .submit = soft_submit,
    .wait = soft_wait,
    .release = soft_release,
};

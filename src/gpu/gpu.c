/* Opening and closing a device, and what its options mean. */
#include "gpu/core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- option and info structs ------------------------------------------------------------------------------------- */

bool gpu_copy_options(void *to, size_t to_size, const void *from, const char *name, sl_error *err) {
    size_t size = to_size;
    memset(to, 0, to_size);
    if (from) {
        memcpy(&size, from, sizeof size);
        if (size < sizeof size || size > (1 << 16))
            return sl_fail(err, SL_ERR_ARGUMENT, "%s options of %zu bytes, expected %zu: set by the _INIT macro", name,
                           size, to_size);
        memcpy(to, from, size < to_size ? size : to_size);
    }
    memcpy(to, &to_size, sizeof to_size);
    return true;
}

void gpu_copy_info(void *to, const void *from, size_t from_size) {
    size_t size = 0;
    memcpy(&size, to, sizeof size);
    size_t n = size < from_size ? size : from_size;
    if (n <= sizeof size)
        return;
    memcpy((char *)to + sizeof size, (const char *)from + sizeof size, n - sizeof size);
}

/* ---- "metal:0", "soft:4" ----------------------------------------------------------------------------------------- */

typedef struct device_spec {
    const gpu_driver *driver;
    int index; /* -1: not given */
} device_spec;

static const struct {
    const char *name;
    const gpu_driver *driver;
} known[] = {{"metal", &gpu_driver_metal}, {"cuda", &gpu_driver_cuda}, {"soft", &gpu_driver_soft}};

static bool parse_index(const char *spec, const char *digits, int *index, sl_error *err) {
    char *end;
    errno = 0;
    long v = strtol(digits, &end, 10);
    if (errno || *end || end == digits || *digits < '0' || *digits > '9' || v > 1024)
        return sl_fail(err, SL_ERR_ARGUMENT, "device '%s': '%s' after the colon, expected a number from 0 to 1024",
                       spec, digits);
    *index = (int)v;
    return true;
}

static bool parse_spec(const char *spec, device_spec *s, sl_error *err) {
    size_t n = strcspn(spec, ":");
    s->index = -1;
    if (spec[n] && !parse_index(spec, spec + n + 1, &s->index, err))
        return false;
    for (size_t i = 0; i < SL_COUNT(known); i++) {
        if (strlen(known[i].name) != n || memcmp(known[i].name, spec, n) != 0)
            continue;
        s->driver = known[i].driver;
        if (s->driver == &gpu_driver_soft && s->index == 0)
            return sl_fail(err, SL_ERR_ARGUMENT, "device '%s': 0 threads, expected at least 1", spec);
        return true;
    }
    return sl_fail(err, SL_ERR_ARGUMENT, "device '%s' is not known, expected metal[:N], cuda[:N] or soft[:THREADS]",
                   spec);
}

/* Without a wish: the first that there is; never soft, which is slow and would hide that there is no GPU. */
static sl_gpu *open_any(const sl_gpu_options *o, sl_error *err) {
    sl_error metal = {0}, cuda = {0};
    sl_gpu *g = gpu_open_driver(&gpu_driver_metal, -1, o, &metal);
    if (!g)
        g = gpu_open_driver(&gpu_driver_cuda, -1, o, &cuda);
    if (!g)
        sl_fail(err, cuda.code == SL_ERR_UNSUPPORTED ? metal.code : cuda.code,
                "no GPU: %s; %s; \"soft\" runs on the CPU when asked", metal.message, cuda.message);
    return g;
}

sl_gpu *sl_gpu_open(const sl_gpu_options *options, sl_error *err) {
    sl_gpu_options o;
    device_spec s = {0};
    if (!gpu_copy_options(&o, sizeof o, options, "sl_gpu", err))
        return NULL;
    if (!o.device)
        return open_any(&o, err);
    return parse_spec(o.device, &s, err) ? gpu_open_driver(s.driver, s.index, &o, err) : NULL;
}

/* ---- open -------------------------------------------------------------------------------------------------------- */

static void init_locks(sl_gpu *g) {
    pthread_condattr_t a;
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_init(&a);
#ifndef __APPLE__
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
#endif
    pthread_cond_init(&g->changed, &a);
    pthread_condattr_destroy(&a);
}

static void destroy_gpu(sl_gpu *g) {
    gpu_cells_free(&g->cells);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    free(g->cache_dir);
    free(g);
}

/* A level of SLUICE_DEBUG shows without a log level being asked for. */
static sl_log log_of(const sl_gpu_options *o, int debug) {
    return (sl_log){.fn = o->log, .user = o->log_user, .level = debug > 0 ? SL_LOG_DEBUG : o->log_level};
}

sl_gpu *gpu_open_driver(const gpu_driver *driver, int index, const sl_gpu_options *options, sl_error *err) {
    int debug;
    if (!gpu_debug_level(options->debug, &debug, err))
        return NULL;
    sl_gpu *g = calloc(1, sizeof *g);
    if (!g)
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for a device");
    init_locks(g);
    g->driver = driver;
    g->check = options->check;
    g->debug = debug;
    g->log = log_of(options, g->debug);
    g->process = (long)getpid();
    g->cache_dir = gpu_cache_dir(options->cache_dir);
    g->store = gpu_cache_store(g);
    gpu_open o = {
        .index = index,
        .check = options->check,
        .seed = options->seed,
        .debug = g->debug,
        .log = g->log,
        .cache_dir = g->cache_dir,
        .store = &g->store,
    };
    g->device = driver->open(&o, err);
    if (!g->device) {
        destroy_gpu(g);
        return NULL;
    }
    g->info = ((gpu_device_base *)g->device)->info;
    g->info.size = sizeof g->info;
    gpu_debugf(g, 1, "%s: %s, family %s, %s, up to %u threads and %u bytes in a threadgroup", g->info.device,
               g->info.name, g->info.family, g->info.system, g->info.max_threads, g->info.max_threadgroup_memory);
    return g;
}

void sl_gpu_get_info(const sl_gpu *g, sl_gpu_info *info) {
    if (g && info)
        gpu_copy_info(info, &g->info, sizeof g->info);
}

/* ---- close ------------------------------------------------------------------------------------------------------- */

static void complain_of_live(sl_gpu *g) {
    static const char *const names[] = {
        [GPU_LIBRARY] = "libraries", [GPU_PIPELINE] = "pipelines", [GPU_BUFFER] = "buffers", [GPU_STREAM] = "streams",
        [GPU_LIST] = "lists",        [GPU_EVENT] = "events",       [GPU_REPLAY] = "replays",
    };
    for (int k = GPU_LIBRARY; k <= GPU_REPLAY; k++)
        if (g->cells.live[k])
            sl_logf(&g->log, SL_LOG_ERROR, "sl_gpu_close: %zu %s were not freed", g->cells.live[k], names[k]);
}

/* False: something still runs. */
static bool drain(sl_gpu *g) {
    uint64_t deadline = gpu_deadline(GPU_MAP_SECONDS * UINT64_C(1000000000));
    for (;;) {
        pthread_mutex_lock(&g->lock);
        gpu_stream *busy = g->streams;
        while (busy && !(busy->first && gpu_hold_live(busy)))
            busy = busy->next;
        pthread_mutex_unlock(&g->lock);
        if (!busy)
            return true;
        bool ok = gpu_stream_wait(busy, UINT64_MAX, deadline);
        gpu_drop(busy);
        if (!ok)
            return false;
    }
}

void sl_gpu_close(sl_gpu *g) {
    if (!g)
        return;
    bool idle = drain(g);
    size_t live = 0;
    for (int k = GPU_LIBRARY; k <= GPU_REPLAY; k++)
        live += g->cells.live[k];
    complain_of_live(g);
    /* What is alive points here, and a device may still write to memory: lost memory is better than a crash. */
    if (!idle || live) {
        sl_logf(&g->log, SL_LOG_ERROR, "sl_gpu_close: the device stays open, %s",
                idle ? "its objects may still be used" : "its work has not ended");
        return;
    }
    g->driver->close(g->device);
    destroy_gpu(g);
}

uint64_t sl_gpu_allocated(const sl_gpu *g) {
    return g ? atomic_load(&((sl_gpu *)g)->allocated) : 0;
}

/* ---- small things ------------------------------------------------------------------------------------------------ */

bool gpu_same_process(const sl_gpu *g, sl_error *err) {
    return g->process == (long)getpid() ||
           sl_fail(err, SL_ERR_ARGUMENT, "the device was opened by process %ld, before a fork: open it after forking",
                   g->process);
}

uint64_t gpu_deadline(uint64_t timeout_ns) {
    uint64_t at;
    return sl_add_u64(sl_now_ns(), timeout_ns, &at) ? at : GPU_FOREVER;
}

bool gpu_wait_changed(sl_gpu *g, uint64_t deadline) {
    uint64_t now = sl_now_ns();
    if (now >= deadline)
        return false;
    /* In pieces: a clock that jumps cannot make it last. */
    uint64_t wait = deadline - now < 1000000000 ? deadline - now : 1000000000;
    struct timespec t = {.tv_sec = (time_t)(wait / 1000000000), .tv_nsec = (long)(wait % 1000000000)};
#ifdef __APPLE__
    pthread_cond_timedwait_relative_np(&g->changed, &g->lock, &t);
#else
    uint64_t at = now + wait;
    t = (struct timespec){.tv_sec = (time_t)(at / 1000000000), .tv_nsec = (long)(at % 1000000000)};
    pthread_cond_timedwait(&g->changed, &g->lock, &t);
#endif
    return true;
}

void sl_gpu_free(void *p) {
    free(p);
}

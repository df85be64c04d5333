/* Opening a CUDA device: which GPU, what it can do, what code is compiled for. */
#include "gpu/cuda/cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OLDEST_MAJOR = 7 /* Volta: the first with independent threads and half matrices */, SERVICE_SECONDS = 60 };

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

uint64_t cuda_deadline(uint64_t timeout_ns) {
    uint64_t at;
    return sl_add_u64(sl_now_ns(), timeout_ns, &at) ? at : UINT64_MAX;
}

/* Up to 2 ms without a pause, which lasts 50 us at least: a token's list is as long as that. */
static void pause_for(uint64_t waited_ns, uint64_t left_ns) {
    if (waited_ns < 2 * 1000 * 1000)
        return;
    uint64_t ns = waited_ns < 20 * 1000 * 1000 ? 20 * 1000 : 200 * 1000;
    struct timespec t = {.tv_nsec = (long)(ns < left_ns ? ns : left_ns)};
    nanosleep(&t, NULL);
}

cuda_result cuda_poll(gpu_device *d, cuda_mark mark, uint64_t deadline) {
    uint64_t began = sl_now_ns();
    for (;;) {
        cuda_result r = d->api.mark_query(mark);
        uint64_t now = sl_now_ns();
        if (r != CUDA_NOT_READY || now >= deadline)
            return r;
        pause_for(now - began, deadline - now);
    }
}

bool cuda_service_finish(gpu_device *d, const char *what, sl_error *err) {
    if (!cuda_check(d, d->api.mark_record(d->service_done, d->service), err, "%s", what))
        return false;
    cuda_result r = cuda_poll(d, d->service_done, cuda_deadline(SERVICE_SECONDS * UINT64_C(1000000000)));
    if (r == CUDA_NOT_READY)
        return sl_fail(err, SL_ERR_TIMEOUT, "cuda: %s: not done after %d s", what, SERVICE_SECONDS);
    return cuda_check(d, r, err, "%s", what);
}

/* ---- which GPU --------------------------------------------------------------------------------------------------- */

static bool start_driver(const cuda_api *api, sl_error *err) {
    cuda_result r = api->init(0);
    if (r == CUDA_OK)
        return true;
    char meaning[256];
    cuda_describe(api, r, meaning, sizeof meaning);
    if (r == CUDA_NO_DEVICE)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "an NVIDIA driver is here, but no GPU: %s", meaning);
    return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: the driver does not start: %s%s", meaning,
                   r == CUDA_MISMATCH ? "; was it updated without a restart?" : "");
}

static bool pick_device(gpu_device *d, int index, sl_error *err) {
    int count = 0;
    cuda_result r = d->api.device_count(&count);
    if (r != CUDA_OK || count == 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "an NVIDIA driver is here, but no GPU");
    if (index >= count)
        return sl_fail(err, SL_ERR_ARGUMENT, "cuda:%d: this system has %d NVIDIA GPU%s, the first is cuda:0", index,
                       count, count == 1 ? "" : "s");
    return cuda_check(d, d->api.device_get(&d->ordinal, index < 0 ? 0 : index), err, "GPU %d", index);
}

/* ---- what it is ---------------------------------------------------------------------------------------------------
 */

static bool attribute(gpu_device *d, int which, int *value, sl_error *err) {
    return cuda_check(d, d->api.device_attribute(value, which, d->ordinal), err, "attribute %d of the GPU", which);
}

/* The newest architecture that NVRTC knows and the GPU runs: its own, else text which the driver assembles. */
static bool choose_arch(gpu_device *d, int major, int minor, sl_error *err) {
    int count = 0, best = 0, own = major * 10 + minor;
    int archs[64];
    if (d->api.nvrtc.arch_count(&count) != 0 || count < 1 || count > (int)SL_COUNT(archs) ||
        d->api.nvrtc.archs(archs) != 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: NVRTC does not tell which GPUs it compiles for");
    for (int i = 0; i < count; i++)
        if (archs[i] <= own && archs[i] > best)
            best = archs[i];
    if (!best)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: NVRTC %d.%d compiles for no GPU as old as this one (sm_%d)",
                       d->api.nvrtc_major, d->api.nvrtc_minor, own);
    d->assembles = best == own;
    /* sm_90a: with what only this generation has */
    snprintf(d->arch, sizeof d->arch, "%s_%d%s", d->assembles ? "sm" : "compute", best,
             d->assembles && own == 90 ? "a" : "");
    return true;
}

static bool read_architecture(gpu_device *d, sl_error *err) {
    int major = 0, minor = 0;
    if (!attribute(d, CUDA_MAJOR, &major, err) || !attribute(d, CUDA_MINOR, &minor, err))
        return false;
    if (major < OLDEST_MAJOR)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: this GPU is sm_%d%d, sm_%d0 or newer is needed", major, minor,
                       OLDEST_MAJOR);
    snprintf(d->base.info.family, sizeof d->base.info.family, "sm_%d%d", major, minor);
    return choose_arch(d, major, minor, err);
}

/* CUDA_LAUNCH_BLOCKING, and compute-sanitizer, which waits behind each launch. */
static bool runs_serially(void) {
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    void *checker = dlopen("libsanitizer-collection.so", RTLD_LAZY | RTLD_NOLOAD);
    if (checker)
        dlclose(checker);
    return checker || (blocking && strcmp(blocking, "0") != 0 && *blocking);
}

static bool read_abilities(gpu_device *d, sl_error *err) {
    sl_gpu_info *info = &d->base.info;
    int threads = 0, width = 0, shared = 0, integrated = 0, host_pointer = 0, words = 0;
    size_t memory = 0;
    if (!attribute(d, CUDA_MAX_THREADS, &threads, err) || !attribute(d, CUDA_WARP_SIZE, &width, err) ||
        !attribute(d, CUDA_SHARED_OPTIN, &shared, err) || !attribute(d, CUDA_INTEGRATED, &integrated, err) ||
        !attribute(d, CUDA_HOST_POINTER, &host_pointer, err) || !attribute(d, CUDA_STREAM_WORDS, &words, err) ||
        !cuda_check(d, d->api.device_memory(&memory, d->ordinal), err, "size of the GPU's memory") ||
        !cuda_check(d, d->api.device_name(info->name, sizeof info->name, d->ordinal), err, "name of the GPU"))
        return false;
    if (width != 32)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: SIMD-groups of %d threads, expected 32", width);
    if (!host_pointer)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "cuda: this system shows pinned memory to the GPU at other addresses than to the host");
    d->words = words && d->api.queue_wait_word && d->api.queue_write_word;
    d->shared_most = (uint32_t)shared;
    info->size = sizeof *info;
    snprintf(info->device, sizeof info->device, "cuda");
    snprintf(info->system, sizeof info->system, "CUDA %d.%d, NVRTC %d.%d, %s", d->api.driver_number / 1000,
             d->api.driver_number % 1000 / 10, d->api.nvrtc_major, d->api.nvrtc_minor, d->arch);
    info->simd_width = width;
    info->max_threads = (uint32_t)threads;
    info->max_threadgroup_memory = d->shared_most;
    info->max_buffer = memory;
    info->working_set = memory;
    info->bfloat = info->simdgroup_matrix = true;
    info->serial = runs_serially();
    info->language = 31;
    return true;
}

/* ---- open, close --------------------------------------------------------------------------------------------------
 */

/* Pinned host memory may be larger than the GPU's. */
static void widen_buffers(gpu_device *d) {
    uint64_t host = sl_physical_memory();
    if (host > d->base.info.max_buffer)
        d->base.info.max_buffer = host;
}

static bool open_service(gpu_device *d, sl_error *err) {
    cuda_pool pool;
    uint64_t keep = UINT64_C(256) << 20; /* what is freed and asked for again need not go through the system */
    if (!cuda_check(d, d->api.queue_new(&d->service, CUDA_NON_BLOCKING), err, "a stream") ||
        !cuda_check(d, d->api.mark_new(&d->service_done, 0), err, "an event") ||
        !cuda_check(d, d->api.mark_new(&d->origin, 0), err, "an event") ||
        !cuda_check(d, d->api.device_pool(&pool, d->ordinal), err, "the memory pool") ||
        !cuda_check(d, d->api.pool_set(pool, CUDA_POOL_THRESHOLD, &keep), err, "the memory pool") ||
        !cuda_check(d, d->api.mark_record(d->origin, d->service), err, "an event") ||
        !cuda_device_bytes(d, SL_GPU_BYTES_MAX, &d->zeros, err))
        return false;
    pthread_mutex_lock(&d->service_lock);
    bool ok = cuda_check(d, d->api.set_words(d->zeros, 0, SL_GPU_BYTES_MAX / 4, d->service), err, "a fill") &&
              cuda_service_finish(d, "the first list", err);
    pthread_mutex_unlock(&d->service_lock);
    return ok;
}

static bool open_context(gpu_device *d, sl_error *err) {
    cuda_result r = d->api.context_retain(&d->context, d->ordinal);
    if (r == CUDA_OUT_OF_MEMORY)
        return sl_fail(err, SL_ERR_MEMORY, "cuda: %s has no memory left for a context (some 500 MiB)",
                       d->base.info.name);
    if (!cuda_check(d, r, err, "opening %s", d->base.info.name))
        return false;
    if (!cuda_enter(d, err))
        return false;
    bool ok = open_service(d, err);
    cuda_leave(d);
    return ok;
}

static void close_service(gpu_device *d) {
    if (!cuda_enter_to_free(d))
        return;
    cuda_device_free(d, d->zeros);
    if (d->service_done)
        cuda_freed(d, d->api.mark_free(d->service_done), "freeing an event");
    if (d->origin)
        cuda_freed(d, d->api.mark_free(d->origin), "freeing an event");
    if (d->service)
        cuda_freed(d, d->api.queue_free(d->service), "freeing a stream");
    cuda_leave(d);
}

static void cuda_close(gpu_device *d) {
    if (d->context) {
        close_service(d);
        if (d->process == (long)getpid())
            cuda_freed(d, d->api.context_release(d->ordinal), "closing the GPU");
    }
    cuda_api_close(&d->api);
    pthread_mutex_destroy(&d->service_lock);
    pthread_mutex_destroy(&d->page_lock);
    pthread_mutex_destroy(&d->lock);
    free(d->runs);
    free(d);
}

static gpu_device *cuda_open(const gpu_open *o, sl_error *err) {
    gpu_device *d = calloc(1, sizeof *d);
    if (!d)
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for a device");
    pthread_mutex_init(&d->service_lock, NULL);
    pthread_mutex_init(&d->page_lock, NULL);
    pthread_mutex_init(&d->lock, NULL);
    d->base.driver = &gpu_driver_cuda;
    d->base.debug = o->debug;
    d->base.log = o->log;
    d->store = o->store;
    d->process = (long)getpid();
    d->page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (cuda_api_open(&d->api, err) && start_driver(&d->api, err) && pick_device(d, o->index, err) &&
        read_architecture(d, err) && read_abilities(d, err) && open_context(d, err)) {
        widen_buffers(d);
        return d;
    }
    cuda_close(d);
    return NULL;
}

const gpu_driver gpu_driver_cuda = {
    .name = "cuda",
    .target = MSL_CUDA,
    .open = cuda_open,
    .close = cuda_close,
    .compile = cuda_compile,
    .library_load = cuda_library_load,
    .library_free = cuda_library_free,
    .pipeline_new = cuda_pipeline_new,
    .pipeline_free = cuda_pipeline_free,
    .alloc = cuda_alloc,
    .wrap = cuda_wrap,
    .free = cuda_free,
    .read = cuda_read,
    .write = cuda_write,
    .room = cuda_room,
    .stream_new = cuda_stream_new,
    .stream_free = cuda_stream_free,
    .event_new = cuda_event_new,
    .event_free = cuda_event_free,
    .event_signal = cuda_event_signal,
    .event_value = cuda_event_value,
    .event_wait = cuda_event_wait,
    .submit = cuda_submit,
    .wait = cuda_wait,
    .release = cuda_release,
    .replay_new = cuda_replay_new,
    .replay_free = cuda_replay_free,
    .replay_submit = cuda_replay_submit,
};

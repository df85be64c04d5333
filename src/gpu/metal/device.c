/* Opening a Metal device: which GPU, which system, what they can do. */
#include "gpu/metal/metal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { OLDEST_SYSTEM = 13 };

/* Newest shading language of a system: first row whose version is reached. */
static const struct {
    int major, language;
} languages[] = {{27, 41}, {26, 40}, {15, 32}, {14, 31}, {OLDEST_SYSTEM, 30}};

/* ---- which GPU --------------------------------------------------------------------------------------------------- */

/* One of all devices; the array raises where it is empty, as in sandboxes. Owned. */
static metal_id device_at(const metal_api *api, size_t index, size_t *count) {
    metal_id all = api->all_devices();
    *count = all ? METAL_SEND(api, count, all) : 0;
    metal_id device = index < *count ? METAL_SEND(api, objectAtIndex, all, index) : NULL;
    if (device)
        METAL_SEND(api, retain, device);
    metal_release(api, all);
    return device;
}

static bool pick_device(gpu_device *d, int index, sl_error *err) {
    size_t count = 0;
    d->device = index <= 0 ? d->api.default_device() : NULL;
    if (!d->device)
        d->device = device_at(&d->api, index > 0 ? (size_t)index : 0, &count);
    if (d->device)
        return true;
    if (index > 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "metal:%d: this system has %zu Metal devices", index, count);
    return sl_fail(err, SL_ERR_UNSUPPORTED, "Metal is here, but this session has no Metal device");
}

/* ---- what it is ---------------------------------------------------------------------------------------------------
 */

static void system_text(const metal_api *api, const char *name, char *out, size_t size) {
    size_t n = size - 1;
    if (api->sysctl(name, out, &n, NULL, 0) != 0)
        n = 0;
    out[n < size ? n : size - 1] = 0;
}

static bool read_system(gpu_device *d, sl_error *err) {
    char version[24] = "", build[24] = "";
    system_text(&d->api, "kern.osproductversion", version, sizeof version);
    system_text(&d->api, "kern.osversion", build, sizeof build);
    int major = atoi(version);
    if (major < OLDEST_SYSTEM)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "Metal: this is macOS %s, %d or newer is needed",
                       *version ? version : "of unknown version", OLDEST_SYSTEM);
    size_t row = 0;
    while (languages[row].major > major)
        row++;
    d->base.info.language = languages[row].language;
    snprintf(d->base.info.system, sizeof d->base.info.system, "macOS %s %s", version, build);
    return true;
}

/* Highest Apple family, 0 for other makers' GPUs; families after the last one known count too. */
static int read_family(gpu_device *d) {
    int apple = 0;
    for (long f = METAL_FAMILY_APPLE1; f <= METAL_FAMILY_APPLE_LAST; f++)
        if (METAL_SEND(&d->api, supportsFamily, d->device, f))
            apple = (int)(f - METAL_FAMILY_APPLE1) + 1;
    char *family = d->base.info.family;
    size_t size = sizeof d->base.info.family;
    if (apple)
        snprintf(family, size, "apple%d", apple);
    else
        snprintf(family, size, "%s",
                 METAL_SEND(&d->api, supportsFamily, d->device, METAL_FAMILY_MAC2) ? "mac2" : "mac1");
    return apple;
}

static bool holds_word(const char *text, const char *word) {
    for (; *text; text++)
        if (strncasecmp(text, word, strlen(word)) == 0)
            return true;
    return false;
}

static void read_abilities(gpu_device *d) {
    const metal_api *api = &d->api;
    sl_gpu_info *info = &d->base.info;
    int apple = read_family(d);
    bool metal3 = METAL_SEND(api, supportsFamily, d->device, METAL_FAMILY_METAL3) != 0;
    info->size = sizeof *info;
    snprintf(info->device, sizeof info->device, "metal");
    snprintf(info->name, sizeof info->name, "%s", metal_text(api, METAL_SEND(api, name, d->device)));
    info->simd_width = 32;
    info->max_threads = 1024; /* a pipeline may allow fewer, and says so */
    info->max_threadgroup_memory = (uint32_t)METAL_SEND(api, maxThreadgroupMemoryLength, d->device);
    info->max_buffer = METAL_SEND(api, maxBufferLength, d->device);
    info->working_set = METAL_SEND(api, recommendedMaxWorkingSetSize, d->device);
    info->unified = METAL_SEND(api, hasUnifiedMemory, d->device) != 0;
    info->bfloat = (apple >= 6 || metal3) && info->language >= 31;
    info->simdgroup_matrix = apple >= 7;
    info->virtual_device = holds_word(info->name, "virtual");
    info->residency = !info->virtual_device && api->cls.MTLResidencySetDescriptor &&
                      metal_responds(api, d->device, api->sel.newResidencySet);
}

/* A set of all memory, which every queue is told of, so that no list has to name what it uses. */
static void open_residency(gpu_device *d) {
    if (!d->base.info.residency)
        return;
    metal_id error = NULL, descriptor = METAL_SEND(&d->api, new_, d->api.cls.MTLResidencySetDescriptor);
    if (descriptor)
        d->residency = METAL_SEND(&d->api, newResidencySet, d->device, descriptor, &error);
    metal_release(&d->api, descriptor);
    d->base.info.residency = d->residency != NULL;
}

/* ---- open, close --------------------------------------------------------------------------------------------------
 */

static void close_in_pool(gpu_device *d) {
    metal_archive_close(d);
    metal_service_close(d);
    metal_compiled_forget(d);
    if (d->residency)
        METAL_SEND(&d->api, endResidency, d->residency);
    metal_release(&d->api, d->residency);
    metal_release(&d->api, d->device);
}

static void metal_close(gpu_device *d) {
    void *pool = metal_pool_push(&d->api);
    close_in_pool(d);
    metal_pool_pop(&d->api, pool);
    metal_api_close(&d->api);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static bool open_in_pool(gpu_device *d, const gpu_open *o, sl_error *err) {
    if (!pick_device(d, o->index, err) || !read_system(d, err))
        return false;
    read_abilities(d);
    open_residency(d);
    if (!metal_service_open(d, err))
        return false;
    metal_archive_open(d, o->cache_dir);
    return true;
}

static gpu_device *metal_open(const gpu_open *o, sl_error *err) {
    gpu_device *d = calloc(1, sizeof *d);
    if (!d)
        return sl_fail_null(err, SL_ERR_MEMORY, "metal: no memory for a device");
    d->base.driver = &gpu_driver_metal;
    d->base.debug = o->debug;
    d->base.log = o->log;
    d->process = getpid();
    d->page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (!metal_api_open(&d->api, err)) {
        free(d);
        return NULL;
    }
    pthread_mutex_init(&d->lock, NULL);
    void *pool = metal_pool_push(&d->api);
    bool ok = open_in_pool(d, o, err);
    metal_pool_pop(&d->api, pool);
    if (ok)
        return d;
    metal_close(d);
    return NULL;
}

bool metal_in_other_process(const gpu_device *d, sl_error *err) {
    if (d->process == getpid())
        return false;
    sl_fail(err, SL_ERR_DEVICE, "metal: the device was opened before this process was forked; open it in the child");
    return true;
}

const gpu_driver gpu_driver_metal = {
    .name = "metal",
    .target = MSL_TABLE,
    .open = metal_open,
    .close = metal_close,
    .compile = metal_compile,
    .library_load = metal_library_load,
    .library_free = metal_library_free,
    .pipeline_new = metal_pipeline_new,
    .pipeline_free = metal_pipeline_free,
    .alloc = metal_alloc,
    .wrap = metal_wrap,
    .free = metal_free,
    .read = metal_read,
    .write = metal_write,
    .stream_new = metal_stream_new,
    .stream_free = metal_stream_free,
    .event_new = metal_event_new,
    .event_free = metal_event_free,
    .event_signal = metal_event_signal,
    .event_value = metal_event_value,
    .event_wait = metal_event_wait,
    .submit = metal_submit,
    .wait = metal_wait,
    .release = metal_submission_release,
};

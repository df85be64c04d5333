/* Compiled pipelines in a MTLBinaryArchive beside the cache: a first start compiles, later ones only load.
 *
 * One file per GPU family and system build. A file that the system does not take (damaged, of another system) is left
 * out and replaced when the device is closed; nothing here is an error to the caller. */
#include "gpu/metal/metal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* DIR/metal-FAMILY-SYSTEM.archive, allocated. */
static char *archive_path(const gpu_device *d, const char *dir) {
    char name[160];
    snprintf(name, sizeof name, "metal-%s-%s.archive", d->base.info.family, d->base.info.system);
    for (char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '.' && *c != '-')
            *c = '_';
    return sl_path_join(dir, name);
}

static metal_id file_url(const metal_api *api, const char *path) {
    metal_id string = metal_string(api, path);
    return string ? METAL_SEND(api, fileURLWithPath, api->cls.NSURL, string) : NULL;
}

/* path NULL: an empty archive. Owned; nil where the system does not take the file. */
static metal_id new_archive(gpu_device *d, const char *path, metal_id *error) {
    const metal_api *api = &d->api;
    metal_id url = path ? file_url(api, path) : NULL;
    metal_id descriptor = METAL_SEND(api, new_, api->cls.MTLBinaryArchiveDescriptor);
    if (!descriptor)
        return NULL;
    if (url)
        METAL_SEND(api, setUrl, descriptor, url);
    metal_id archive = METAL_SEND(api, newBinaryArchive, d->device, descriptor, error);
    metal_release(api, descriptor);
    return archive;
}

static void log_error(gpu_device *d, const char *what, metal_id error) {
    sl_error e;
    metal_fail(&d->api, &e, SL_ERR_IO, error, "%s", what);
    sl_logf(&d->base.log, SL_LOG_WARN, "metal: %s", e.message);
}

void metal_archive_open(gpu_device *d, const char *cache_dir) {
    metal_archive *a = &d->archive;
    if (!cache_dir || !*cache_dir || !metal_responds(&d->api, d->device, d->api.sel.newBinaryArchive))
        return;
    metal_id error = NULL;
    a->path = archive_path(d, cache_dir);
    if (a->path && sl_path_exists(a->path)) {
        a->archive = new_archive(d, a->path, &error);
        if (!a->archive)
            log_error(d, a->path, error);
    }
    if (a->path && !a->archive)
        a->archive = new_archive(d, NULL, &error);
}

/* The descriptor's functions become part of the archive. */
static void add_to_archive(gpu_device *d, metal_id descriptor) {
    metal_id error = NULL;
    pthread_mutex_lock(&d->lock);
    bool added = METAL_SEND(&d->api, addComputePipelineFunctions, d->archive.archive, descriptor, &error) != 0;
    d->archive.changed |= added;
    pthread_mutex_unlock(&d->lock);
    if (!added)
        log_error(d, "a pipeline cannot be kept", error);
}

/* nil: not in the archive. Nothing says that an archive may be read while it grows. */
static metal_id find_in_archive(gpu_device *d, metal_id descriptor) {
    const metal_api *api = &d->api;
    metal_id missed = NULL;
    pthread_mutex_lock(&d->lock);
    metal_id archives = METAL_SEND(api, arrayWithObject, api->cls.NSArray, d->archive.archive);
    METAL_SEND(api, setBinaryArchives, descriptor, archives);
    metal_id state = METAL_SEND(api, newPipeline, d->device, descriptor, METAL_FAIL_ON_ARCHIVE_MISS, NULL, &missed);
    METAL_SEND(api, setBinaryArchives, descriptor, NULL);
    pthread_mutex_unlock(&d->lock);
    return state;
}

metal_id metal_archive_pipeline(gpu_device *d, metal_id descriptor, metal_id *error) {
    const metal_api *api = &d->api;
    if (!d->archive.archive)
        return METAL_SEND(api, newPipeline, d->device, descriptor, 0, NULL, error);
    metal_id state = find_in_archive(d, descriptor);
    if (state)
        return state;
    state = METAL_SEND(api, newPipeline, d->device, descriptor, 0, NULL, error);
    if (state)
        add_to_archive(d, descriptor);
    return state;
}

/* Written beside its place and renamed, so that a reader meets the old file or the new one, whole. */
static void save(gpu_device *d) {
    metal_archive *a = &d->archive;
    char *draft = sl_asprintf("%s.%ld-%p", a->path, (long)getpid(), (void *)d);
    metal_id error = NULL, url = draft ? file_url(&d->api, draft) : NULL;
    if (!url) {
        free(draft);
        return;
    }
    if (!METAL_SEND(&d->api, serializeToURL, a->archive, url, &error)) {
        log_error(d, a->path, error);
        unlink(draft);
    } else if (rename(draft, a->path) != 0) {
        sl_logf(&d->base.log, SL_LOG_WARN, "metal: %s cannot be replaced", a->path);
        unlink(draft);
    }
    free(draft);
}

void metal_archive_close(gpu_device *d) {
    metal_archive *a = &d->archive;
    if (a->changed && d->process == getpid())
        save(d);
    metal_release(&d->api, a->archive);
    free(a->path);
    *a = (metal_archive){0};
}

/* CUDA's results to errors, and what a broken context means for all that comes after. */
#include "gpu/cuda/cuda.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

void cuda_describe(const cuda_api *api, cuda_result r, char *out, size_t size) {
    const char *name = NULL, *text = NULL;
    if (api->error_name(r, &name) != CUDA_OK)
        name = NULL;
    if (api->error_string(r, &text) != CUDA_OK)
        text = NULL;
    snprintf(out, size, "%s (%d)%s%s", name ? name : "unknown result", r, text ? ": " : "", text ? text : "");
}

/* After these every call of the context fails. */
bool cuda_breaks_context(cuda_result r) {
    static const int breaking[] = {46, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 911, 999};
    for (size_t i = 0; i < SL_COUNT(breaking); i++)
        if (breaking[i] == r)
            return true;
    return false;
}

static void remember_loss(gpu_device *d, const char *message) {
    pthread_mutex_lock(&d->lock);
    bool first = !atomic_load(&d->lost);
    if (first) {
        sl_fail(&d->loss, SL_ERR_DEVICE, "%s", message);
        atomic_store(&d->lost, true);
    }
    pthread_mutex_unlock(&d->lock);
    if (first)
        sl_logf(&d->base.log, SL_LOG_INFO, "%s; the device is lost to this process", message);
}

bool cuda_check(gpu_device *d, cuda_result r, sl_error *err, const char *fmt, ...) {
    char what[512], meaning[256];
    if (r == CUDA_OK)
        return true;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    cuda_describe(&d->api, r, meaning, sizeof meaning);
    sl_error e = {0};
    sl_fail(&e, r == CUDA_OUT_OF_MEMORY ? SL_ERR_MEMORY : SL_ERR_DEVICE, "cuda: %s: %s", what, meaning);
    if (cuda_breaks_context(r))
        remember_loss(d, e.message);
    if (err)
        *err = e;
    return false;
}

void cuda_freed(gpu_device *d, cuda_result r, const char *what) {
    char meaning[256];
    if (r == CUDA_OK || r == CUDA_DEINITIALIZED || atomic_load(&d->lost) || cuda_breaks_context(r))
        return;
    cuda_describe(&d->api, r, meaning, sizeof meaning);
    sl_logf(&d->base.log, SL_LOG_WARN, "cuda: %s: %s", what, meaning);
}

bool cuda_usable(gpu_device *d, sl_error *err) {
    if (d->process != (long)getpid())
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "cuda: the device was opened by process %ld, before a fork: open it after "
                       "forking",
                       d->process);
    if (!atomic_load(&d->lost))
        return true;
    pthread_mutex_lock(&d->lock);
    sl_error loss = d->loss;
    pthread_mutex_unlock(&d->lock);
    return sl_fail(err, SL_ERR_DEVICE, "cuda: the device was lost before: %s", loss.message);
}

bool cuda_enter(gpu_device *d, sl_error *err) {
    return cuda_usable(d, err) && cuda_check(d, d->api.context_push(d->context), err, "making the context current");
}

bool cuda_enter_to_free(gpu_device *d) {
    return d->process == (long)getpid() && d->api.context_push(d->context) == CUDA_OK;
}

void cuda_leave(gpu_device *d) {
    cuda_context ours;
    d->api.context_pop(&ours);
}

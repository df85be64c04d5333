/* Shared events: counters that the host and the GPU raise and wait for. */
#include "gpu/metal/metal.h"

#include <time.h>

uint64_t metal_deadline(uint64_t timeout_ns) {
    uint64_t deadline;
    return sl_add_u64(sl_now_ns(), timeout_ns, &deadline) ? deadline : UINT64_MAX;
}

static void sleep_ns(uint64_t ns) {
    struct timespec t = {.tv_nsec = (long)ns};
    nanosleep(&t, NULL);
}

/* Metal's wait counts in milliseconds and does not wake up for a list that failed: the last bit of time, and the bit
 * between the event and the list's status, are slept in short naps. */
void metal_event_doze(gpu_device *d, metal_id event, uint64_t value, uint64_t deadline) {
    enum { NAP_NS = 20000, DOZE_MS = 4, MS = 1000000 };
    uint64_t now = sl_now_ns(), left = deadline > now ? deadline - now : 0;
    bool wakes = left >= MS && METAL_SEND(&d->api, signaledValue, event) < value &&
                 metal_responds(&d->api, event, d->api.sel.waitUntilSignaledValue);
    if (wakes)
        METAL_SEND(&d->api, waitUntilSignaledValue, event, value, left / MS < DOZE_MS ? left / MS : DOZE_MS);
    else
        sleep_ns(left < NAP_NS ? left : NAP_NS);
}

void *metal_event_new(gpu_device *d, sl_error *err) {
    if (metal_in_other_process(d, err))
        return NULL;
    void *pool = metal_pool_push(&d->api);
    metal_id event = METAL_SEND(&d->api, newSharedEvent, d->device);
    metal_pool_pop(&d->api, pool);
    return event ? event : sl_fail_null(err, SL_ERR_MEMORY, "metal: no shared event to be had");
}

void metal_event_free(gpu_device *d, void *event) {
    void *pool = metal_pool_push(&d->api);
    metal_release(&d->api, event);
    metal_pool_pop(&d->api, pool);
}

bool metal_event_signal(gpu_device *d, void *event, uint64_t value, sl_error *err) {
    if (metal_in_other_process(d, err))
        return false;
    void *pool = metal_pool_push(&d->api);
    METAL_SEND(&d->api, setSignaledValue, event, value);
    metal_pool_pop(&d->api, pool);
    return true;
}

uint64_t metal_event_value(gpu_device *d, void *event) {
    void *pool = metal_pool_push(&d->api);
    uint64_t value = METAL_SEND(&d->api, signaledValue, event);
    metal_pool_pop(&d->api, pool);
    return value;
}

bool metal_event_wait(gpu_device *d, void *event, uint64_t value, uint64_t timeout_ns) {
    uint64_t deadline = metal_deadline(timeout_ns);
    void *pool = metal_pool_push(&d->api);
    bool reached = METAL_SEND(&d->api, signaledValue, event) >= value;
    while (!reached && sl_now_ns() < deadline) {
        metal_event_doze(d, event, value, deadline);
        reached = METAL_SEND(&d->api, signaledValue, event) >= value;
    }
    metal_pool_pop(&d->api, pool);
    return reached;
}

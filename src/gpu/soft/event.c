/* Events: a number that grows, and who waits for it. Waiting with a time limit on the monotonic clock. */
#include "gpu/soft/soft.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

enum { LOOK_NS = 50 * 1000 * 1000 };

void soft_cond_init(pthread_cond_t *c) {
#if defined(__APPLE__)
    pthread_cond_init(c, NULL);
#else
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(c, &a);
    pthread_condattr_destroy(&a);
#endif
}

uint64_t soft_deadline(uint64_t timeout_ns) {
    uint64_t deadline;
    return sl_add_u64(sl_now_ns(), timeout_ns, &deadline) ? deadline : UINT64_MAX;
}

bool soft_cond_wait(pthread_cond_t *c, pthread_mutex_t *m, uint64_t deadline_ns) {
    if (deadline_ns == UINT64_MAX) {
        pthread_cond_wait(c, m);
        return true;
    }
    uint64_t now = sl_now_ns(), left = deadline_ns > now ? deadline_ns - now : 0;
    struct timespec t;
#if defined(__APPLE__)
    t.tv_sec = (time_t)(left / 1000000000u);
    t.tv_nsec = (long)(left % 1000000000u);
    return pthread_cond_timedwait_relative_np(c, m, &t) != ETIMEDOUT;
#else
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t ns = (uint64_t)t.tv_nsec + left % 1000000000u;
    uint64_t seconds = left / 1000000000u;
    if (seconds > 1000000000u)
        seconds = 1000000000u;
    t.tv_sec += (time_t)(seconds + ns / 1000000000u);
    t.tv_nsec = (long)(ns % 1000000000u);
    return pthread_cond_timedwait(c, m, &t) != ETIMEDOUT;
#endif
}

typedef struct event {
    pthread_mutex_t mutex;
    pthread_cond_t grown;
    uint64_t value;
} event;

void *soft_event_new(gpu_device *d, sl_error *err) {
    event *e = calloc(1, sizeof *e);
    (void)d;
    if (!e)
        return sl_fail_null(err, SL_ERR_MEMORY, "soft: out of memory for an event");
    pthread_mutex_init(&e->mutex, NULL);
    soft_cond_init(&e->grown);
    return e;
}

void soft_event_free(gpu_device *d, void *p) {
    event *e = p;
    (void)d;
    if (!e)
        return;
    pthread_cond_destroy(&e->grown);
    pthread_mutex_destroy(&e->mutex);
    free(e);
}

bool soft_event_signal(gpu_device *d, void *p, uint64_t value, sl_error *err) {
    event *e = p;
    (void)d;
    (void)err;
    pthread_mutex_lock(&e->mutex);
    if (value > e->value)
        e->value = value;
    pthread_cond_broadcast(&e->grown);
    pthread_mutex_unlock(&e->mutex);
    return true;
}

uint64_t soft_event_value(gpu_device *d, void *p) {
    event *e = p;
    (void)d;
    pthread_mutex_lock(&e->mutex);
    uint64_t value = e->value;
    pthread_mutex_unlock(&e->mutex);
    return value;
}

bool soft_event_wait(gpu_device *d, void *p, uint64_t value, uint64_t timeout_ns) {
    event *e = p;
    uint64_t deadline = soft_deadline(timeout_ns);
    bool in_time = true;
    (void)d;
    pthread_mutex_lock(&e->mutex);
    while (e->value < value && in_time)
        in_time = soft_cond_wait(&e->grown, &e->mutex, deadline);
    bool reached = e->value >= value;
    pthread_mutex_unlock(&e->mutex);
    return reached;
}

bool soft_event_await(void *p, uint64_t value, const _Atomic bool *cancel) {
    while (!soft_event_wait(NULL, p, value, LOOK_NS))
        if (atomic_load(cancel))
            return false;
    return true;
}

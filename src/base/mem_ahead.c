/* Touching slabs ahead: one thread that runs when a core has nothing else to do.
 *
 * Without it the first read into a slab touches it, in the middle of a step: io_uring pins all of its pages. A slab is
 * touched in pieces of a huge page; between two of them the thread looks whether it should stop or give the slab up, so
 * nobody waits for longer than one piece takes. */
#include "base/mem_ahead.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef __APPLE__
#include <pthread/qos.h>
#endif

enum { PIECE = 2 << 20, PAGE = 4096 };

#if defined(__linux__) && !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23
#endif

static void lower_priority(void) {
#if defined(__linux__)
    struct sched_param p = {0};
    pthread_setschedparam(pthread_self(), SCHED_IDLE, &p);
#elif defined(__APPLE__)
    pthread_set_qos_class_self_np(QOS_CLASS_UTILITY, 0);
#endif
}

/* Zeroed memory stays zeroed. */
static void write_pages(uint8_t *p, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i += PAGE)
        *(volatile uint8_t *)(p + i) = 0;
}

static bool touch_piece(uint8_t *p, uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
    if (madvise(p, bytes, MADV_POPULATE_WRITE) == 0)
        return true;
    if (errno != EINVAL) /* EINVAL: a kernel that does not know it */
        return errno == EINTR || errno == EAGAIN;
#endif
    write_pages(p, bytes);
    return true;
}

/* false: there is no memory for it. */
static bool touch(mem_ahead *a, uint8_t *slab) {
    for (uint64_t at = 0; at < a->bytes && !a->drop && !a->stop; at += PIECE)
        if (!touch_piece(slab + at, a->bytes - at < PIECE ? a->bytes - at : PIECE))
            return false;
    return true;
}

typedef struct start {
    mem_ahead *a;
    pthread_mutex_t *mutex;
} start;

static void *run(void *arg) {
    start s = *(start *)arg;
    mem_ahead *a = s.a;
    free(arg);
    lower_priority();
    pthread_mutex_lock(s.mutex);
    while (!a->stop) {
        void *slab = a->droppers ? NULL : a->begin(a->self);
        if (!slab) {
            pthread_cond_wait(&a->changed, s.mutex);
            continue;
        }
        a->working = true;
        a->drop = false;
        pthread_mutex_unlock(s.mutex);
        bool ok = touch(a, slab);
        pthread_mutex_lock(s.mutex);
        a->working = false;
        a->end(a->self, slab, ok && !a->drop && !a->stop);
        if (!ok)
            a->stop = true;
        pthread_cond_broadcast(&a->changed);
    }
    a->running = false;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(s.mutex);
    return NULL;
}

void mem_ahead_start(mem_ahead *a, pthread_mutex_t *mutex) {
    start *s = malloc(sizeof *s);
    if (!s || a->started) {
        free(s);
        return;
    }
    *s = (start){a, mutex};
    pthread_mutex_lock(mutex);
    a->stop = a->drop = false;
    a->started = a->running = pthread_create(&a->thread, NULL, run, s) == 0;
    if (!a->started)
        free(s);
    pthread_mutex_unlock(mutex);
}

void mem_ahead_stop(mem_ahead *a, pthread_mutex_t *mutex) {
    pthread_mutex_lock(mutex);
    bool join = a->started;
    a->started = false;
    a->stop = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(mutex);
    if (join)
        pthread_join(a->thread, NULL);
}

void mem_ahead_wake(mem_ahead *a) {
    if (a->running)
        pthread_cond_broadcast(&a->changed);
}

bool mem_ahead_drop(mem_ahead *a, pthread_mutex_t *mutex) {
    if (!a->working)
        return false;
    a->droppers++;
    a->drop = true;
    while (a->working)
        pthread_cond_wait(&a->changed, mutex);
    a->droppers--;
    mem_ahead_wake(a);
    return true;
}

bool mem_ahead_await(mem_ahead *a, pthread_mutex_t *mutex) {
    if (!a->working)
        return false;
    pthread_cond_wait(&a->changed, mutex);
    return true;
}

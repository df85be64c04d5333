/* Checking mode: what a dispatch binds, each range under an address of its own with nothing mapped around it. So a
 * kernel that leaves one buffer does not land in another, even where both lie in one allocation. Memory that cannot be
 * mapped twice (wrapped host memory) is bound where it is. */
#include "gpu/soft/soft.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

static bool map_window(soft_window *w, int fd, uint64_t offset, uint64_t length, sl_error *err) {
    uint64_t first = offset / SOFT_GUARD * SOFT_GUARD, span = sl_round_up(offset - first + length, SOFT_GUARD);
    w->mapped = span + 2 * (size_t)SOFT_AROUND;
    w->mapping = mmap(NULL, w->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (w->mapping == MAP_FAILED) {
        w->mapping = NULL;
        return sl_fail_errno(err, SL_ERR_MEMORY, errno, "soft: a window of %llu bytes", (unsigned long long)length);
    }
    int flags = MAP_FIXED | (fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
    uint8_t *at = (uint8_t *)w->mapping + SOFT_AROUND;
    if (mmap(at, span, PROT_READ | PROT_WRITE, flags, fd, fd >= 0 ? (off_t)first : 0) == MAP_FAILED)
        return sl_fail_errno(err, SL_ERR_MEMORY, errno, "soft: a window of %llu bytes", (unsigned long long)length);
    w->begin = (uintptr_t)at + (uintptr_t)(offset - first);
    w->end = w->begin + length;
    return true;
}

static bool open_window(soft_check *c, const gpu_bound *b, sl_error *err) {
    soft_window *w = &c->window[c->windows++];
    *w = (soft_window){.slot = b->slot, .writes = b->writes};
    if (!b->memory) {
        if (!map_window(w, -1, 0, b->length, err))
            return false;
        memcpy((void *)w->begin, b->bytes, b->length);
    } else {
        soft_memory *m = b->memory->handle;
        w->memory = m;
        w->offset = b->offset + (uint64_t)(b->memory->host - m->base);
        if (b->writes)
            m->tracked = c->number;
        if (m->fd >= 0) {
            if (!map_window(w, m->fd, w->offset, b->length, err))
                return false;
        } else {
            w->begin = (uintptr_t)(b->memory->host + b->offset);
            w->end = w->begin + b->length;
        }
    }
    c->job->buffer[b->slot] = (void *)w->begin;
    return true;
}

bool soft_windows_open(soft_check *c, const gpu_command *command, sl_error *err) {
    for (size_t i = 0; i < command->u.dispatch.bound_count && c->windows < SOFT_SLOTS; i++)
        if (!open_window(c, &command->u.dispatch.bound[i], err))
            return false;
    return true;
}

void soft_windows_close(soft_check *c) {
    for (int i = 0; i < c->windows; i++)
        if (c->window[i].mapping)
            munmap(c->window[i].mapping, c->window[i].mapped);
}

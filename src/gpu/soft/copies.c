/* Copies that run ahead (copy_begin of the prelude). They may be made at any time between where a kernel begins and
 * where it waits for them, so the soft device knows both ends: at once, which the prelude does itself, or, with an odd
 * seed, when they are waited for. A kernel that reads too soon, or that lets others read without a barrier, then has
 * other results. What nobody waits for is never made. */
#include "gpu/soft/soft.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 64 };

struct soft_copies {
    struct {
        void *to;
        const void *from;
        uint32_t size, lot;
    } at[MOST];
    uint32_t count, lots; /* lots: that are closed */
};

bool soft_copies_open(soft_worker *w, sl_error *err) {
    if (w->device->seed % 2 == 0)
        return true;
    w->copies = calloc(SOFT_MAX_THREADS, sizeof *w->copies);
    return w->copies || sl_fail(err, SL_ERR_MEMORY, "soft: out of memory for worker %d", w->index);
}

void soft_copies_reset(soft_worker *w, uint32_t thread) {
    if (w->copies)
        w->copies[thread].count = w->copies[thread].lots = 0;
}

static SOFT_ON_FIBER soft_copies *mine(const soft_fiber *f) {
    return f->worker->copies ? &f->worker->copies[f->thread.index] : NULL;
}

SOFT_ON_FIBER bool soft_copy_begin(void *to, const void *from, uint32_t size) {
    soft_copies *c = mine(soft_self());
    if (!c || c->count == MOST)
        return false;
    c->at[c->count].to = to;
    c->at[c->count].from = from;
    c->at[c->count].size = size;
    c->at[c->count++].lot = c->lots;
    return true;
}

SOFT_ON_FIBER void soft_copy_commit(void) {
    soft_copies *c = mine(soft_self());
    if (c)
        c->lots++;
}

SOFT_ON_FIBER void soft_copy_wait(uint32_t but) {
    const soft_fiber *f = soft_self();
    soft_copies *c = mine(f);
    const void *pc = __builtin_return_address(0);
    uint32_t made = 0;
    for (; c && made < c->count && c->at[made].lot + but < c->lots; made++) {
        if (f->worker->job->check) {
            soft_check_access(c->at[made].from, c->at[made].size, SOFT_READS, pc);
            soft_check_access(c->at[made].to, c->at[made].size, SOFT_WRITES, pc);
        }
        __builtin_memcpy(c->at[made].to, c->at[made].from, c->at[made].size);
    }
    if (made)
        __builtin_memmove(c->at, c->at + made, (c->count -= made) * sizeof c->at[0]);
}

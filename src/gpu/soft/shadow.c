/* Checking mode: who touched a byte last, and whether a new access races with it.
 *
 * A page of memory has cells of four bytes each; they are made finer, without loss, when a smaller access comes. A cell
 * keeps the last write and two reads. Two accesses by different threads, not both reads, not both atomic, race unless
 * a barrier that orders this memory lies between them: then the number of such barriers passed (of the threadgroup, or
 * within one SIMD-group) differs. Threadgroups are ordered by fences for the whole device alone: in the earlier one a
 * fence behind its access and then an atomic access, in the later one a later atomic access and then a fence before its
 * own; fence and atomic access are of one thread, which is the access's own or has a barrier between. Of reads the two
 * that are furthest apart are kept (other threadgroup, other SIMD-group, other lane), so that a write that races with a
 * forgotten one races with a kept one too. */
#include "gpu/soft/soft.h"

#include <stdlib.h>
#include <string.h>

enum { COARSEST = 2 };

static inline uint64_t group_of(const soft_access *a) {
    return (a->who - 1) / SOFT_MAX_THREADS;
}

static inline uint32_t simdgroup_of(const soft_access *a) {
    return (uint32_t)((a->who - 1) % SOFT_MAX_THREADS / SOFT_SIMD);
}

/* 0: the same thread; 1: of its SIMD-group; 2: of its threadgroup; 3: of another. */
static int distance(const soft_access *a, const soft_access *b) {
    if (a->who == b->who)
        return 0;
    if (group_of(a) != group_of(b))
        return 3;
    return simdgroup_of(a) == simdgroup_of(b) ? 1 : 2;
}

static bool with_fence(const soft_fence *f, const soft_access *a) {
    return f->who == a->who || f->group_epoch != a->epoch.group;
}

static bool fenced(const soft_check *c, const soft_access *before, const soft_access *now) {
    if (!c->fences)
        return false;
    const soft_fence *left = &c->fences[group_of(before)].release, *taken = &c->fences[group_of(now)].acquire;
    return left->fenced > before->time && taken->told > left->told && with_fence(left, before) &&
           with_fence(taken, now);
}

/* Nothing orders `before` and `now`, which came later. Threadgroup memory is another one in each threadgroup. */
static bool apart(const soft_check *c, const soft_access *before, const soft_access *now, bool threadgroup) {
    if (!before->who)
        return false;
    switch (distance(before, now)) {
    case 0:
        return false;
    case 3:
        return !threadgroup && !fenced(c, before, now);
    case 2:
        return before->epoch.group == now->epoch.group;
    default:
        return before->epoch.group == now->epoch.group && before->epoch.simd == now->epoch.simd;
    }
}

static bool races(const soft_check *c, const soft_access *before, const soft_access *now, bool threadgroup) {
    return apart(c, before, now, threadgroup) && !(before->atomic && now->atomic);
}

static void keep_read(const soft_check *of, soft_cell *c, const soft_access *now, bool threadgroup) {
    bool second = apart(of, &c->read[1], now, threadgroup);
    if (!apart(of, &c->read[0], now, threadgroup)) {
        c->read[0] = *now;
        if (!second)
            c->read[1].who = 0;
    } else if (!second || distance(&c->read[0], now) > distance(&c->read[0], &c->read[1])) {
        c->read[1] = *now;
    }
}

static const soft_access *touch(const soft_check *of, soft_cell *c, const soft_access *now, bool write,
                                bool threadgroup, bool *other_writes) {
    const soft_access *with = NULL;
    *other_writes = true;
    if (races(of, &c->write, now, threadgroup)) {
        with = &c->write;
    } else if (write) {
        for (int i = 0; i < 2 && !with; i++) {
            if (races(of, &c->read[i], now, threadgroup)) {
                with = &c->read[i];
                *other_writes = false;
            }
        }
    }
    return with;
}

static bool prepare(soft_page *p, uint64_t generation) {
    if (!p->cell) {
        p->shift = COARSEST;
        p->cell = calloc(SOFT_PAGE >> COARSEST, sizeof *p->cell);
    } else if (p->generation != generation) {
        memset(p->cell, 0, (size_t)(SOFT_PAGE >> p->shift) * sizeof *p->cell);
    }
    p->generation = generation;
    return p->cell != NULL;
}

static bool refine(soft_page *p, int shift) {
    size_t n = (size_t)SOFT_PAGE >> shift;
    soft_cell *fine = malloc(n * sizeof *fine);
    if (!fine)
        return false;
    for (size_t i = 0; i < n; i++)
        fine[i] = p->cell[i >> (p->shift - shift)];
    free(p->cell);
    p->cell = fine;
    p->shift = shift;
    return true;
}

bool soft_shadow_touch(soft_check *of, soft_page *p, uint32_t offset, uint32_t size, const soft_access *now, bool write,
                       bool threadgroup, soft_access *other, bool *other_writes) {
    uint32_t bits = offset | size | 1u << COARSEST;
    int shift = __builtin_ctz(bits);
    bool raced = false;
    if (!prepare(p, of->number) || (shift < p->shift && !refine(p, shift))) {
        of->out_of_memory = true;
        return false;
    }
    for (uint32_t i = offset >> p->shift, end = (offset + size) >> p->shift; i < end; i++) {
        soft_cell *c = &p->cell[i];
        bool writes;
        const soft_access *with = touch(of, c, now, write, threadgroup, &writes);
        if (with && !raced) {
            raced = true;
            *other = *with;
            *other_writes = writes;
        }
        if (write)
            c->write = *now;
        else
            keep_read(of, c, now, threadgroup);
    }
    return raced;
}

void soft_shadow_free(soft_page *p) {
    free(p->cell);
    *p = (soft_page){0};
}

void soft_memory_forget(soft_memory *m) {
    for (uint64_t i = 0; m->page && i < m->pages; i++) {
        if (m->page[i])
            soft_shadow_free(m->page[i]);
        free(m->page[i]);
    }
    free(m->page);
    m->page = NULL;
    m->pages = 0;
}

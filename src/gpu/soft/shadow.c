/* Checking mode: who touched a byte last, and whether a new access races with it.
 *
 * A page of memory has cells of four bytes each; they are made finer, without loss, when a smaller access comes. A cell
 * keeps the last write and two reads. Two accesses by different threads, not both reads, not both atomic, race unless
 * a barrier that orders this memory lies between them: then the number of such barriers passed (of the threadgroup, or
 * within one SIMD-group) differs. Nothing orders threadgroups among each other. Of reads the two that are furthest
 * apart are kept (other threadgroup, other SIMD-group, other lane), so that a write that races with a forgotten one
 * races with a kept one too. */
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

/* Nothing orders `before` and `now`, which came later. Threadgroup memory is another one in each threadgroup. */
static bool apart(const soft_access *before, const soft_access *now, bool threadgroup) {
    if (!before->who)
        return false;
    switch (distance(before, now)) {
    case 0:
        return false;
    case 3:
        return !threadgroup;
    case 2:
        return before->epoch.group == now->epoch.group;
    default:
        return before->epoch.group == now->epoch.group && before->epoch.simd == now->epoch.simd;
    }
}

static bool races(const soft_access *before, const soft_access *now, bool threadgroup) {
    return apart(before, now, threadgroup) && !(before->atomic && now->atomic);
}

static void keep_read(soft_cell *c, const soft_access *now, bool threadgroup) {
    bool second = apart(&c->read[1], now, threadgroup);
    if (!apart(&c->read[0], now, threadgroup)) {
        c->read[0] = *now;
        if (!second)
            c->read[1].who = 0;
    } else if (!second || distance(&c->read[0], now) > distance(&c->read[0], &c->read[1])) {
        c->read[1] = *now;
    }
}

static const soft_access *touch(soft_cell *c, const soft_access *now, bool write, bool threadgroup,
                                bool *other_writes) {
    const soft_access *with = NULL;
    *other_writes = true;
    if (races(&c->write, now, threadgroup)) {
        with = &c->write;
    } else if (write) {
        for (int i = 0; i < 2 && !with; i++) {
            if (races(&c->read[i], now, threadgroup)) {
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

bool soft_shadow_touch(soft_page *p, uint32_t offset, uint32_t size, const soft_access *now, bool write,
                       bool threadgroup, uint64_t generation, soft_access *other, bool *other_writes, bool *no_memory) {
    uint32_t bits = offset | size | 1u << COARSEST;
    int shift = __builtin_ctz(bits);
    bool raced = false;
    if (!prepare(p, generation) || (shift < p->shift && !refine(p, shift))) {
        *no_memory = true;
        return false;
    }
    for (uint32_t i = offset >> p->shift, end = (offset + size) >> p->shift; i < end; i++) {
        soft_cell *c = &p->cell[i];
        bool writes;
        const soft_access *with = touch(c, now, write, threadgroup, &writes);
        if (with && !raced) {
            raced = true;
            *other = *with;
            *other_writes = writes;
        }
        if (write)
            c->write = *now;
        else
            keep_read(c, now, threadgroup);
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

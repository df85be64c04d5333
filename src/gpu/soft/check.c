/* Checking mode: every access of a kernel comes here first.
 *
 * An access is to the thread's own memory (its stack, the runtime's state: the worker's region), to threadgroup memory
 * (the arena), to a bound range (a window), or to the object's own tables; anything else is out of bounds, and ends the
 * dispatch before it happens. Other reports let the kernel go on. */
#include "gpu/soft/soft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SHADOW_PAGES = 8192 }; /* 0.6 GB of cells, four times as much where bytes are written singly */

soft_check *soft_check_new(soft_device *d, soft_job *job, sl_error *err) {
    soft_check *c = calloc(1, sizeof *c);
    job->check = c;
    if (!c)
        return sl_fail_null(err, SL_ERR_MEMORY, "soft: out of memory for checks");
    c->job = job;
    c->number = d->dispatches;
    c->written = malloc(SOFT_ARENA);
    c->owner = malloc(SOFT_ARENA / 16 * sizeof *c->owner);
    if (!c->written || !c->owner)
        return sl_fail_null(err, SL_ERR_MEMORY, "soft: out of memory for checks");
    return soft_windows_open(c, job->command, err) ? c : NULL;
}

void soft_check_free(soft_check *c) {
    for (int i = 0; i < c->windows; i++)
        if (c->window[i].memory)
            soft_memory_forget(c->window[i].memory);
    soft_windows_close(c);
    for (size_t i = 0; i < SL_COUNT(c->arena); i++)
        soft_shadow_free(&c->arena[i]);
    free(c->written);
    free(c->owner);
    free(c->fences);
    free(c);
}

void soft_check_group(soft_check *c, soft_worker *w) {
    (void)w;
    memset(c->owner, 0, SOFT_ARENA / 16 * sizeof *c->owner);
}

SOFT_ON_FIBER void soft_check_variable(soft_check *c, soft_worker *w, int index) {
    const soft_variable *v = &w->variable[index];
    uint32_t room = (v->size + 15) / 16;
    for (uint32_t i = 0; i < room; i++)
        c->owner[v->offset / 16 + i] = (uint16_t)(index + 1);
    memset(c->written + v->offset, 0, (size_t)room * 16);
}

/* ---- reports ---- */

static uint64_t who(const soft_fiber *f) {
    return f->worker->group * SOFT_MAX_THREADS + f->thread.index;
}

bool soft_report_add(soft_check *c, const soft_report *r) {
    for (int i = 0; i < c->reports; i++) {
        const soft_report *o = &c->report[i];
        if (o->kind == r->kind && o->pc == r->pc && o->line == r->line && o->slot == r->slot)
            return false;
    }
    if (c->reports == SOFT_MAX_REPORTS)
        return false;
    c->report[c->reports++] = *r;
    return true;
}

SOFT_ON_FIBER static _Noreturn void give_up(soft_fiber *f) {
    soft_worker *w = f->worker;
    atomic_store(&w->job->failed, true);
    atomic_store(&w->stop, atomic_load(&w->serial));
    soft_abandon(f);
}

SOFT_ON_FIBER static _Noreturn void end_dispatch(soft_fiber *f, const soft_report *r) {
    soft_worker *w = f->worker;
    soft_report *beyond = f->beyond ? &w->job->check->report[f->beyond - 1] : NULL;
    if (beyond)
        *beyond = *r; /* of the same access, and says more */
    else
        soft_report_add(w->job->check, r);
    give_up(f);
}

void soft_check_apart(soft_worker *w, soft_kind kind, const soft_fiber *here, const soft_fiber *there) {
    soft_report r = {.kind = kind,
                     .slot = -1,
                     .variable = -1,
                     .who = who(here),
                     .other = who(there),
                     .line = here->line,
                     .other_line = there->line,
                     .other_state = there->state};
    soft_report_add(w->job->check, &r);
}

static soft_report new_report(const soft_fiber *f, soft_kind kind, soft_how how, uint32_t size, const void *pc) {
    return (soft_report){.kind = kind, .how = how, .size = size, .pc = pc, .who = who(f), .slot = -1, .variable = -1};
}

/* ---- races ---- */

SOFT_ON_FIBER void soft_check_fence(void) {
    soft_fiber *f = soft_self();
    soft_check *c = f->worker->job->check;
    const uint32_t *groups = c->job->command->u.dispatch.groups;
    if (!c->fences)
        c->fences = calloc((size_t)groups[0] * groups[1] * groups[2], sizeof *c->fences);
    if (!c->fences) {
        c->out_of_memory = true;
        return;
    }
    soft_fences *own = &c->fences[f->worker->group];
    own->latest = (soft_fence){who(f) + 1, f->device_epoch.group, ++c->time, own->told};
    if (own->who == who(f) + 1)
        own->acquire = own->latest;
}

static void note_atomic(soft_fiber *f) {
    soft_check *c = f->worker->job->check;
    if (!c->fences)
        return;
    soft_fences *own = &c->fences[f->worker->group];
    own->who = who(f) + 1;
    own->told = ++c->time;
    if (own->latest.who == own->who) {
        own->release = own->latest;
        own->release.told = own->told;
    }
}

typedef struct place {
    soft_page *page;
    uint32_t offset, size; /* in the page */
} place;

/* One access within one page. */
static void touch(soft_fiber *f, const place *at, soft_how how, const void *pc, bool threadgroup, soft_report *r,
                  bool *found) {
    soft_check *c = f->worker->job->check;
    uintptr_t image = f->worker->job->pipeline->image->begin;
    soft_access now = {.who = who(f) + 1,
                       .epoch = threadgroup ? f->threadgroup_epoch : f->device_epoch,
                       .pc = (uint32_t)((uintptr_t)pc - image) + 1,
                       .time = c->time & 0x7fffffff,
                       .atomic = how == SOFT_ATOMIC};
    soft_access other;
    bool other_writes;
    if (!soft_shadow_touch(c, at->page, at->offset, at->size, &now, how != SOFT_READS, threadgroup, &other,
                           &other_writes) ||
        *found)
        return;
    *found = true;
    r->other = other.who - 1;
    r->other_pc = other.pc;
    r->other_how = other.atomic ? SOFT_ATOMIC : other_writes ? SOFT_WRITES : SOFT_READS;
}

static soft_page *device_page(soft_check *c, soft_memory *m, uint64_t index) {
    if (!m->page) {
        m->pages = m->bytes / SOFT_PAGE + 2;
        m->page = calloc(m->pages, sizeof *m->page);
    }
    if (!m->page || index >= m->pages) {
        c->out_of_memory = true;
        return NULL;
    }
    if (!m->page[index] && c->shadow_pages < MOST_SHADOW_PAGES) {
        m->page[index] = calloc(1, sizeof **m->page);
        c->shadow_pages++;
    }
    c->out_of_memory |= !m->page[index];
    return m->page[index];
}

static bool device_races(soft_fiber *f, soft_memory *m, uint64_t offset, uint32_t size, soft_how how, const void *pc,
                         soft_report *r) {
    bool found = false;
    while (size) {
        uint32_t in_page = (uint32_t)(offset % SOFT_PAGE), n = SOFT_PAGE - in_page < size ? SOFT_PAGE - in_page : size;
        place at = {device_page(f->worker->job->check, m, offset / SOFT_PAGE), in_page, n};
        if (at.page)
            touch(f, &at, how, pc, false, r, &found);
        offset += n;
        size -= n;
    }
    return found;
}

static bool threadgroup_races(soft_fiber *f, uint32_t offset, uint32_t size, soft_how how, const void *pc,
                              soft_report *r) {
    bool found = false;
    while (size) {
        uint32_t in_page = offset % SOFT_PAGE, n = SOFT_PAGE - in_page < size ? SOFT_PAGE - in_page : size;
        place at = {&f->worker->job->check->arena[offset / SOFT_PAGE], in_page, n};
        touch(f, &at, how, pc, true, r, &found);
        offset += n;
        size -= n;
    }
    return found;
}

/* ---- threadgroup memory ---- */

/* The variable an offset outside all of them is nearest to. */
static int nearest_variable(const soft_worker *w, uint32_t offset) {
    int best = -1;
    int64_t least = INT64_MAX;
    for (int i = 0; i < w->variables; i++) {
        int64_t begin = w->variable[i].offset, end = begin + w->variable[i].size;
        int64_t d = offset < begin ? begin - offset : offset >= end ? offset - end : 0;
        if (d < least) {
            least = d;
            best = i;
        }
    }
    return best;
}

static void name_variable(const soft_worker *w, int index, uint32_t offset, soft_report *r) {
    if (index < 0)
        return;
    const soft_variable *v = &w->variable[index];
    r->variable = index;
    r->slot = v->slot;
    r->offset = (int64_t)offset - v->offset;
    r->length = v->size;
    memcpy(r->name, v->name, sizeof r->name);
}

SOFT_ON_FIBER static void check_threadgroup(soft_fiber *f, uint32_t offset, uint32_t size, soft_how how,
                                            const void *pc) {
    soft_worker *w = f->worker;
    soft_check *c = w->job->check;
    int index = c->owner[offset / 16] - 1;
    const soft_variable *v = index >= 0 ? &w->variable[index] : NULL;
    soft_report r = new_report(f, SOFT_OUT_OF_BOUNDS, how, size, pc);
    if (!v || (uint64_t)offset + size > (uint64_t)v->offset + v->size) {
        name_variable(w, v ? index : nearest_variable(w, offset), offset, &r);
        end_dispatch(f, &r);
    }
    name_variable(w, index, offset, &r);
    if (how == SOFT_READS && memchr(c->written + offset, 0, size)) {
        r.kind = SOFT_UNINITIALISED;
        soft_report_add(c, &r);
    } else if (how != SOFT_READS) {
        memset(c->written + offset, 1, size);
    }
    r.kind = SOFT_RACE;
    if (threadgroup_races(f, offset, size, how, pc, &r))
        soft_report_add(c, &r);
}

/* ---- device memory ---- */

static soft_window *find_window(soft_check *c, uintptr_t a) {
    soft_window *w = &c->window[c->last];
    if (c->windows && a >= w->begin && a < w->end)
        return w;
    for (int i = 0; i < c->windows; i++) {
        w = &c->window[i];
        if (a >= w->begin && a < w->end) {
            c->last = i;
            return w;
        }
    }
    return NULL;
}

/* The window an address outside all of them is nearest to, NULL: it is far from each. */
static const soft_window *nearest_window(const soft_check *c, uintptr_t a) {
    const soft_window *best = NULL;
    uintptr_t least = 64u << 20;
    for (int i = 0; i < c->windows; i++) {
        const soft_window *w = &c->window[i];
        uintptr_t d = a < w->begin ? w->begin - a : a >= w->end ? a - w->end : 0;
        if (d < least) {
            least = d;
            best = w;
        }
    }
    return best;
}

static void name_window(const soft_job *job, const soft_window *w, uintptr_t a, soft_report *r) {
    r->address = a;
    if (!w)
        return;
    r->slot = w->slot;
    r->offset = (int64_t)(a - w->begin);
    r->length = w->end - w->begin;
    for (size_t i = 0; i < job->pipeline->arg_count; i++) {
        const sl_gpu_arg *arg = &job->pipeline->args[i];
        if (arg->kind != SL_GPU_ARG_THREADGROUP && arg->slot == w->slot)
            memcpy(r->name, arg->name, sizeof r->name);
    }
}

SOFT_ON_FIBER static void check_device(soft_fiber *f, soft_window *w, uintptr_t a, uint32_t size, soft_how how,
                                       const void *pc) {
    soft_check *c = f->worker->job->check;
    bool beyond = size > w->end - a, forbidden = how != SOFT_READS && !w->writes;
    soft_report r = new_report(f, beyond ? SOFT_OUT_OF_BOUNDS : forbidden ? SOFT_READ_ONLY : SOFT_RACE, how, size, pc);
    if (beyond || forbidden) {
        name_window(c->job, w, a, &r);
        end_dispatch(f, &r);
    }
    if (!w->memory || w->memory->tracked != c->number)
        return;
    if (how == SOFT_ATOMIC)
        note_atomic(f);
    if (device_races(f, w->memory, w->offset + (a - w->begin), size, how, pc, &r)) {
        name_window(c->job, w, a, &r);
        soft_report_add(c, &r);
    }
}

SOFT_ON_FIBER static void check_access(soft_fiber *f, const void *address, uint32_t size, soft_how how,
                                       const void *pc) {
    soft_worker *w = f->worker;
    soft_check *c = w->job->check;
    uintptr_t a = (uintptr_t)address;
    if (a - (uintptr_t)w->region < SOFT_REGION) {
        if (f->beyond)
            give_up(f);
        return;
    }
    if (a - (uintptr_t)w->arena < SOFT_ARENA) {
        check_threadgroup(f, (uint32_t)(a - (uintptr_t)w->arena), size, how, pc);
        return;
    }
    soft_window *window = find_window(c, a);
    if (window) {
        check_device(f, window, a, size, how, pc);
        return;
    }
    const soft_image *image = w->job->pipeline->image;
    if ((a >= image->begin && a < image->end) || a - (uintptr_t)&soft_api_checked < sizeof soft_api_checked)
        return;
    soft_report r = new_report(f, SOFT_OUT_OF_BOUNDS, how, size, pc);
    name_window(w->job, nearest_window(c, a), a, &r);
    end_dispatch(f, &r);
}

SOFT_ON_FIBER void soft_check_access(const void *address, uint32_t size, soft_how how, const void *pc) {
    soft_fiber *f = soft_self();
    check_access(f, address, size, how, pc);
    f->beyond = 0;
}

/* A type as the kernel's author wrote it. */
static void copy_type(char to[64], const char *type) {
    static const char *const names[] = {"msl_unit::", "msl_user::", "metal::"};
    size_t n = 0;
    while (*type && n + 1 < 64) {
        size_t skip = 0;
        for (size_t i = 0; i < SL_COUNT(names) && !skip; i++)
            skip = strncmp(type, names[i], strlen(names[i])) == 0 ? strlen(names[i]) : 0;
        if (!skip)
            to[n++] = *type;
        type += skip ? skip : 1;
    }
    to[n] = 0;
}

/* The access comes next. If it is to memory that is watched, it may be found out of bounds, which says more; it may
 * also stay in memory of its own (a row of a matrix, a member of a struct), and the kernel goes on. */
SOFT_ON_FIBER void soft_check_beyond(int64_t index, const char *type, const void *pc) {
    soft_fiber *f = soft_self();
    soft_check *c = f->worker->job->check;
    soft_report r = new_report(f, SOFT_BEYOND_ARRAY, SOFT_READS, 0, pc);
    r.offset = index;
    copy_type(r.name, type);
    f->beyond = soft_report_add(c, &r) ? c->reports : 0;
}

/* What x86-64 reads anyway, and a GPU gives other bytes for. Ends the dispatch: code that was compiled for an aligned
 * address may fault. */
SOFT_ON_FIBER void soft_check_misaligned(const void *address, uint32_t alignment, const char *type, const void *pc) {
    soft_fiber *f = soft_self();
    soft_worker *w = f->worker;
    soft_check *c = w->job->check;
    uintptr_t a = (uintptr_t)address;
    if (a % alignment == 0) { /* told by the same call: behind the end of an object that the compiler sees whole */
        soft_report r = new_report(f, SOFT_BEYOND_OWN, SOFT_READS, 0, pc);
        end_dispatch(f, &r);
    }
    soft_report r = new_report(f, SOFT_MISALIGNED, SOFT_READS, alignment, pc);
    copy_type(r.type, type);
    if (a - (uintptr_t)w->arena < SOFT_ARENA)
        name_variable(w, nearest_variable(w, (uint32_t)(a - (uintptr_t)w->arena)), (uint32_t)(a - (uintptr_t)w->arena),
                      &r);
    else if (a - (uintptr_t)w->region < SOFT_REGION)
        r.own = true;
    else
        name_window(w->job, nearest_window(c, a), a, &r);
    end_dispatch(f, &r);
}

void soft_check_trap(soft_check *c, const soft_fiber *f, const void *pc) {
    soft_report r = new_report(f, SOFT_BEYOND_OWN, SOFT_READS, 0, pc);
    soft_report_add(c, &r);
}

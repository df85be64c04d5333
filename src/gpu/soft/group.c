/* Runs one threadgroup: who runs, who waits, who goes on.
 *
 * A SIMD-group's lanes run in a chain, each until it waits; then the scheduler looks. Lanes that wait in a SIMD-group
 * function go on together when all lanes that have not returned wait there. Where they wait in different places the
 * SIMD-group has diverged: those at the least line go first, which rejoins the others in structured code. A SIMD-group
 * rests when all its lanes have returned or wait for the threadgroup; when all rest, the barrier opens. */
#include "gpu/soft/soft.h"

#include <string.h>

static uint32_t next_random(soft_worker *w) {
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->random >> 33);
}

/* order[n]: 0..n-1 ascending (seed 0), reversed (1), or shuffled. */
static void make_order(soft_worker *w, uint8_t *order, uint32_t n) {
    uint64_t seed = w->device->seed;
    for (uint32_t i = 0; i < n; i++)
        order[i] = (uint8_t)(seed == 1 ? n - 1 - i : i);
    for (uint32_t i = n; seed > 1 && i > 1; i--) {
        uint32_t j = next_random(w) % i;
        uint8_t swap = order[i - 1];
        order[i - 1] = order[j];
        order[j] = swap;
    }
}

/* Where a fibre begins. */
SOFT_ON_FIBER static void start(void) {
    soft_fiber *f = soft_self();
    f->worker->job->run();
    f->state = SOFT_DONE;
    soft_switch(&f->sp, f->next ? f->next->sp : f->worker->sp);
    soft_abandon(f);
}

/* Links these lanes in the order in which they are to run. */
static void chain_lanes(soft_worker *w, uint32_t simdgroup, uint32_t lanes) {
    soft_fiber *base = &w->region->fiber[(size_t)simdgroup * SOFT_SIMD], *first = NULL, *last = NULL;
    soft_simd *s = &w->region->simd[simdgroup];
    uint8_t order[SOFT_SIMD];
    make_order(w, order, SOFT_SIMD);
    for (int i = 0; i < SOFT_SIMD; i++) {
        if (!(lanes >> order[i] & 1))
            continue;
        soft_fiber *f = &base[order[i]];
        if (last)
            last->next = f;
        else
            first = f;
        last = f;
    }
    last->next = NULL;
    s->first = first;
    s->chained = w->device->seed > 1 ? 0 : lanes; /* another order each time */
}

/* Runs these lanes, one after the other, each until it waits. */
static void run_lanes(soft_worker *w, uint32_t simdgroup, uint32_t lanes) {
    soft_simd *s = &w->region->simd[simdgroup];
    if (s->chained != lanes)
        chain_lanes(w, simdgroup, lanes);
    w->on_fiber = true;
    soft_switch(&w->sp, s->first->sp);
    w->on_fiber = false;
}

/* All lanes that have not returned wait at the same place as this one; NULL: they do not, or none is left. */
static soft_fiber *all_together(soft_worker *w, uint32_t simdgroup) {
    soft_fiber *base = &w->region->fiber[(size_t)simdgroup * SOFT_SIMD], *f = NULL;
    for (uint32_t left = w->region->simd[simdgroup].alive; left; left &= left - 1) {
        soft_fiber *other = &base[__builtin_ctz(left)];
        f = f ? f : other;
        if (other->state == SOFT_DONE || other->state != f->state || other->line != f->line)
            return NULL;
    }
    return f;
}

/* What the lanes of a SIMD-group do after they ran. */
typedef struct census {
    uint32_t at_simd;
    soft_fiber *least; /* of those in a SIMD-group function, at the least line */
} census;

static census look(soft_worker *w, uint32_t simdgroup) {
    soft_simd *s = &w->region->simd[simdgroup];
    soft_fiber *base = &w->region->fiber[(size_t)simdgroup * SOFT_SIMD];
    census c = {0};
    for (uint32_t left = s->alive; left; left &= left - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(left);
        soft_fiber *f = &base[lane];
        if (f->state == SOFT_DONE) {
            s->alive &= ~(1u << lane);
        } else if (f->state != SOFT_AT_BARRIER) {
            c.at_simd |= 1u << lane;
            if (!c.least || f->line < c.least->line)
                c.least = f;
        }
    }
    return c;
}

/* Lanes that go on with the one at the least line. */
static uint32_t together(soft_worker *w, uint32_t simdgroup, const census *c) {
    soft_fiber *base = &w->region->fiber[(size_t)simdgroup * SOFT_SIMD];
    uint32_t lanes = 0;
    for (uint32_t left = c->at_simd; left; left &= left - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(left);
        if (base[lane].line == c->least->line && base[lane].state == c->least->state)
            lanes |= 1u << lane;
    }
    return lanes;
}

static void report_divergence(soft_worker *w, uint32_t simdgroup, uint32_t lanes, const soft_fiber *here) {
    uint32_t others = w->region->simd[simdgroup].alive & ~lanes;
    const soft_fiber *there = &w->region->fiber[(size_t)simdgroup * SOFT_SIMD + (uint32_t)__builtin_ctz(others)];
    soft_check_apart(w, SOFT_DIVERGED, here, there);
}

/* The published values become those that lanes get; values of lanes that still wait move on to the next round. */
static void release(soft_simd *s, uint32_t lanes, uint32_t still_waiting) {
    s->generation++;
    s->active = lanes;
    uint8_t(*now)[SOFT_LANE_BYTES] = s->ring[s->generation % SOFT_RING];
    uint8_t(*next)[SOFT_LANE_BYTES] = s->ring[(s->generation + 1) % SOFT_RING];
    for (; still_waiting; still_waiting &= still_waiting - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(still_waiting);
        memcpy(next[lane], now[lane], SOFT_LANE_BYTES);
    }
}

/* Runs a SIMD-group until it rests. */
static bool run_simdgroup(soft_worker *w, uint32_t simdgroup) {
    soft_simd *s = &w->region->simd[simdgroup];
    uint32_t lanes = s->alive;
    while (lanes) {
        run_lanes(w, simdgroup, lanes);
        if (soft_stopped(w))
            return false;
        const soft_fiber *all = all_together(w, simdgroup);
        if (all && all->state == SOFT_AT_BARRIER)
            return true;
        if (all) {
            lanes = s->alive;
            release(s, lanes, 0);
            continue;
        }
        census c = look(w, simdgroup);
        if (!c.at_simd)
            return true;
        lanes = together(w, simdgroup, &c);
        if (lanes != s->alive && w->job->check)
            report_divergence(w, simdgroup, lanes, c.least);
        release(s, lanes, c.at_simd & ~lanes);
    }
    return true;
}

/* In checking mode a barrier is for all threads, at one place. Threads that returned do not hold up the others. */
static void check_barrier(soft_worker *w) {
    const soft_fiber *waits = NULL, *gone = NULL, *elsewhere = NULL;
    for (uint32_t i = 0; i < w->region->group.thread_count; i++) {
        const soft_fiber *f = &w->region->fiber[i];
        if (f->state == SOFT_DONE)
            gone = gone ? gone : f;
        else if (!waits)
            waits = f;
        else if (f->line != waits->line)
            elsewhere = elsewhere ? elsewhere : f;
    }
    if (waits && gone)
        soft_check_apart(w, SOFT_BARRIER_MISSED, waits, gone);
    else if (elsewhere)
        soft_check_apart(w, SOFT_BARRIER_APART, waits, elsewhere);
}

/* A thread's variables begin as NaN bits: what is read before it is written shows in the results. */
static void poison_stack(const soft_worker *w, uint32_t index) {
    memset((void *)(soft_stack_top(w, index) - SOFT_POISONED), 0xFF, SOFT_POISONED);
}

static void prepare_threads(soft_worker *w) {
    soft_region *r = w->region;
    const uint32_t *size = r->group.threads;
    uint32_t n = r->group.thread_count, x = 0, y = 0, z = 0;
    for (uint32_t i = 0; i < n; i++) {
        soft_fiber *f = &r->fiber[i];
        f->thread.position[0] = x;
        f->thread.position[1] = y;
        f->thread.position[2] = z;
        f->state = SOFT_RUNS;
        f->beyond = 0;
        f->threadgroup_epoch = f->device_epoch = (soft_epoch){0};
        soft_copies_reset(w, i);
        if (w->job->check)
            poison_stack(w, i);
        soft_fiber_reset(w, i, start);
        if (++x == size[0]) {
            x = 0;
            if (++y == size[1]) {
                y = 0;
                z++;
            }
        }
    }
    for (uint32_t i = 0; i < r->group.simdgroups; i++) {
        uint32_t lanes = n - i * SOFT_SIMD;
        r->simd[i].alive = lanes >= SOFT_SIMD ? UINT32_MAX : (1u << lanes) - 1;
        r->simd[i].chained = 0;
    }
}

void soft_group_position(const soft_job *job, uint64_t group, uint32_t out[3]) {
    const uint32_t *groups = job->command->u.dispatch.groups;
    out[0] = (uint32_t)(group % groups[0]);
    out[1] = (uint32_t)(group / groups[0] % groups[1]);
    out[2] = (uint32_t)(group / groups[0] / groups[1]);
}

/* Room in the arena: SOFT_RED_ZONE apart in checking mode. Returns the offset; UINT32_MAX: over the limit. */
static uint32_t place(soft_worker *w, uint32_t size, int slot, const char *name, int line) {
    uint32_t room = (size + 15) & ~15u, gap = w->job->check ? SOFT_RED_ZONE : 0;
    if (size > SOFT_THREADGROUP_BYTES || w->charged + room > SOFT_THREADGROUP_BYTES ||
        w->arena_used + gap + room > SOFT_ARENA || (w->job->check && w->variables == SOFT_MAX_VARIABLES))
        return UINT32_MAX;
    uint32_t offset = (w->arena_used + gap + 63) & ~63u;
    if (!w->job->check)
        offset = w->arena_used;
    w->arena_used = offset + room;
    w->charged += room;
    if (w->job->check) {
        soft_variable *v = &w->variable[w->variables++];
        *v = (soft_variable){.offset = offset, .size = size, .slot = slot, .line = line};
        for (size_t i = 0; name && name[i] && i + 1 < sizeof v->name; i++)
            v->name[i] = name[i];
        soft_check_variable(w->job->check, w, w->variables - 1);
    }
    return offset;
}

/* Called on fibres too: the storage of a static at its first use in a group. */
SOFT_ON_FIBER uint32_t soft_place_static(soft_worker *w, uint32_t size, const char *name, int line) {
    uint32_t offset = place(w, size, -1, name, line);
    if (offset != UINT32_MAX)
        memset(w->arena + offset, 0xFF, (size + 15) & ~15u);
    return offset;
}

static const char *argument_name(const soft_pipeline *p, int slot) {
    for (size_t i = 0; i < p->arg_count; i++)
        if (p->args[i].kind == SL_GPU_ARG_THREADGROUP && p->args[i].slot == slot)
            return p->args[i].name;
    return "";
}

/* Threadgroup memory begins as NaN bits: what a kernel reads before it wrote shows in its results too. */
static bool prepare_memory(soft_worker *w, soft_job *job) {
    w->arena_used = w->charged = 0;
    w->variables = 0;
    memset(w->site, 0, sizeof w->site);
    if (job->check)
        soft_check_group(job->check, w);
    for (int slot = 0; slot < SOFT_SLOTS; slot++) {
        w->region->threadgroup[slot] = NULL;
        if (!job->has_length[slot])
            continue;
        uint32_t offset = place(w, job->length[slot], slot, argument_name(job->pipeline, slot), 0);
        if (offset == UINT32_MAX) {
            soft_job_fail(job, SL_ERR_ARGUMENT, "%s: threadgroup memory above %d bytes", job->label,
                          SOFT_THREADGROUP_BYTES);
            return false;
        }
        memset(w->arena + offset, 0xFF, (job->length[slot] + 15) & ~15u);
        w->region->threadgroup[slot] = w->arena + offset;
    }
    return true;
}

static void prepare_group(soft_worker *w, soft_job *job, uint64_t index) {
    soft_group *g = &w->region->group;
    uint32_t position[3];
    soft_group_position(job, index, position);
    w->group = index;
    w->random = (w->device->seed + 1) * 0x9E3779B97F4A7C15u + index;
    *g = (soft_group){.buffer = w->region->buffer, .threadgroup = w->region->threadgroup};
    memcpy(w->region->buffer, job->buffer, sizeof w->region->buffer);
    memcpy(g->position, position, sizeof g->position);
    memcpy(g->groups, job->command->u.dispatch.groups, sizeof g->groups);
    memcpy(g->threads, job->command->u.dispatch.threads, sizeof g->threads);
    g->thread_count = g->threads[0] * g->threads[1] * g->threads[2];
    g->simdgroups = (g->thread_count + SOFT_SIMD - 1) / SOFT_SIMD;
}

/* Runs every SIMD-group until it rests; *resting: some wait at a barrier. */
static bool run_round(soft_worker *w, bool *resting) {
    uint8_t order[SOFT_MAX_THREADS / SOFT_SIMD];
    uint32_t n = w->region->group.simdgroups;
    make_order(w, order, n);
    *resting = false;
    for (uint32_t i = 0; i < n; i++) {
        soft_simd *s = &w->region->simd[order[i]];
        if (s->alive && !run_simdgroup(w, order[i]))
            return false;
        *resting |= s->alive != 0;
    }
    return true;
}

bool soft_group_run(soft_worker *w, soft_job *job, uint64_t index) {
    bool resting;
    sl_error err = {0};
    prepare_group(w, job, index);
    if (!soft_stacks_ensure(w, w->region->group.thread_count, &err)) {
        soft_job_fail(job, err.code, "%s", err.message);
        return false;
    }
    if (!prepare_memory(w, job))
        return false;
    prepare_threads(w);
    do {
        if (!run_round(w, &resting)) {
            soft_fault_report(w, job);
            soft_job_fail(job, SL_ERR_TIMEOUT, "%s: stopped: a threadgroup took more than %.0f s of processor time",
                          job->label, (double)w->device->limit_ns / 1e9);
            return false;
        }
        if (resting && job->check)
            check_barrier(w);
    } while (resting && !atomic_load_explicit(&job->failed, memory_order_relaxed));
    return !atomic_load(&job->failed);
}

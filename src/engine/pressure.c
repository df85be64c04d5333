/* Memory pressure: when to give expert slabs back and when to take them again. */
#include "engine/internal.h"

#define MIB           (1ull << 20)
#define LOOK_NS       100000000ull   /* a look costs some tens of microseconds */
#define LOOK_OFTEN_NS 20000000ull    /* where little is left */
#define STALL_NS      10000000000ull /* what the kernel says of waits is a mean over so long: heard once in it */
#define CALM_NS       10000000000ull /* no pressure for so long, then memory is taken again, */
#define STEP_NS       1000000000ull  /* a share of it every second */
enum { LOW_SHARE = 32, STALL_SHARE = 16, GROW_SHARE = 16 };
static const double stalled_much = 0.1;

/* Of slabs that are touched before they are needed: what a prompt's reads fill while the next is touched. */
#define AHEAD_BYTES (512 * MIB)

uint64_t engine_pressure_low(uint64_t total, uint64_t slab) {
    uint64_t low = total / LOW_SHARE, least = 2 * slab < 64 * MIB ? 64 * MIB : 2 * slab;
    /* A group of a few hundred MiB cannot leave so much. */
    least = least < total / 8 ? least : total / 8;
    return low > least ? low : least;
}

uint64_t engine_pressure_decide(engine_pressure *p, const sl_memory_state *s, uint64_t held, uint64_t slab,
                                uint64_t now_ns) {
    uint64_t low = engine_pressure_low(s->total, slab);
    bool short_of = s->room < low,
         stalled = s->stalled >= stalled_much && (p->stalled_ns == 0 || now_ns - p->stalled_ns > STALL_NS);
    if (!s->known)
        return p->cap;
    if (stalled)
        p->stalled_ns = now_ns;
    if (short_of || stalled) {
        uint64_t want = short_of ? low + low / 2 - s->room : 0, least = held / STALL_SHARE;
        want = sl_round_up(want > least || !stalled ? want : least, slab);
        p->since_ns = now_ns;
        p->most = p->cap == UINT64_MAX ? held : p->most;
        p->cap = want < held ? held - want : 0;
    } else if (p->cap != UINT64_MAX && s->room > 2 * low + slab && now_ns - p->since_ns > CALM_NS) {
        uint64_t more = sl_round_up(p->most / GROW_SHARE, slab);
        p->cap = held + (more < s->room - 2 * low ? more : slab);
        p->since_ns = now_ns - CALM_NS + STEP_NS;
        if (p->cap >= p->most)
            p->cap = UINT64_MAX;
    }
    return p->cap;
}

void engine_pressure_look(sl_engine *e) {
    engine_pressure *p = &e->pressure;
    uint64_t now = sl_now_ns();
    if (!p->on || now - p->looked_ns < (p->near ? LOOK_OFTEN_NS : LOOK_NS))
        return;
    p->looked_ns = now;
    sl_memory_state s;
    sl_memory_look(p->root, &s);
    sl_experts_stats x;
    sl_experts_stats_get(e->experts, &x);
    uint64_t slab = sl_mem_slab_bytes(e->mem), before = p->cap;
    p->near = s.known && s.room / 4 < engine_pressure_low(s.total, slab);
    uint64_t cap = engine_pressure_decide(p, &s, x.slot_bytes, slab, now);
    if (cap == before)
        return;
    uint64_t given = (uint64_t)sl_experts_cap(e->experts, cap) * slab;
    if (given == 0)
        return;
    sl_mem_trim(e->mem);
    if (atomic_fetch_add(&p->given, given) == 0)
        sl_logf(&e->log, SL_LOG_WARN,
                "memory: only %llu MiB are left to the system or the cgroup: experts give back %llu MiB and are read "
                "more often",
                (unsigned long long)(s.room / MIB), (unsigned long long)(given / MIB));
}

void engine_touch_ahead(sl_engine *e) {
    uint64_t slab = sl_mem_slab_bytes(e->mem), per_slab = e->slot_bytes ? slab / e->slot_bytes : 0;
    if (per_slab) /* and one slab of KV */
        sl_mem_ahead(e->mem, AHEAD_BYTES, ((e->plan.slots + per_slab - 1) / per_slab + 1) * slab);
}

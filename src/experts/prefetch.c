/* Reading ahead while the disk would be idle: the experts that the next layer will probably ask for.
 *
 * That is what the next layer's own router says of the state as it is now (the moe op computes it and tells, see
 * sl_expert_source.guess). What the previous token chose there was tried instead: those experts are in the cache
 * anyway. A guess must cost nothing that was certain: it is made once per layer, only when no read is awaited, into
 * slots that are free or can be had, or those of the least recent experts, never one of the layer it is for or another
 * guess still to be used, and it takes at most a share of the slots. A guess that fails is forgotten; whoever asks for
 * the expert then reads it.
 *
 * Whether guesses pay in decode depends on the disk, the hit rate and the model. AUTO measures: passes over the model
 * with and without them alternate, and the time that steps waited for reads (with what guessing itself cost) decides
 * what the next many passes do. It begins without. A long chunk of a prompt asks for nearly all experts, so its guesses
 * are right, and without them the disk would be idle from a layer's last read until the next layer's attention is over:
 * there AUTO always guesses. */
#include "experts/store.h"

/* A guess pins its slot until it is read: leave most for what is asked for. */
enum { SHARE = 4 };

/* AUTO: passes in a measured phase; phases without and with guesses in turn; passes between measurements; passes before
 * the first (the cache fills); what guesses have to gain to be worth it, in hundredths of the waiting time. */
enum { PHASE_PASSES = 8, PHASES = 6, RUN_PASSES = 512, FIRST_PASSES = 24, GAIN = 3 };

void experts_prefetch_open(sl_experts *e, sl_prefetch kind) {
    e->prefetch = kind;
    e->guess.layer = -1;
    e->trial = (experts_trial){.phase = PHASES, .passes = RUN_PASSES - FIRST_PASSES};
}

/* ---- whether it pays --------------------------------------------------------------------------------------------- */

static uint64_t waited(const sl_experts *e) {
    return atomic_load_explicit(&e->count.wait_ns, memory_order_relaxed);
}

static void start_phase(sl_experts *e, int32_t phase) {
    experts_trial *t = &e->trial;
    t->phase = phase;
    t->passes = 0;
    t->waited = waited(e);
    t->cost = 0;
    if (phase < PHASES)
        t->on = phase % 2;
}

void experts_prefetch_pass(sl_experts *e) {
    experts_trial *t = &e->trial;
    if (e->prefetch != SL_PREFETCH_AUTO)
        return;
    t->passes++;
    if (t->phase == PHASES) {
        if (t->passes < RUN_PASSES)
            return;
        t->sum[0] = t->sum[1] = 0;
        start_phase(e, 0);
    } else if (t->passes == PHASE_PASSES) {
        t->sum[t->on] += waited(e) - t->waited + t->cost;
        start_phase(e, t->phase + 1);
        if (t->phase == PHASES)
            t->on = (double)t->sum[1] < (double)t->sum[0] * (100 - GAIN) / 100;
    }
}

/* ---- guesses ------------------------------------------------------------------------------------------------------
 */

bool experts_wants_guess(void *self) {
    sl_experts *e = self;
    bool wanted = e->it.running && e->it.layer + 1 < e->layers && e->prefetch != SL_PREFETCH_OFF;
    if (e->prefetch == SL_PREFETCH_AUTO && e->it.order == SL_ORDER_READY)
        wanted &= e->trial.on;
    if (wanted)
        e->guess.asked = sl_now_ns();
    return wanted;
}

void experts_take_guess(void *self, const int32_t *ids, int32_t n) {
    sl_experts *e = self;
    experts_guess *g = &e->guess;
    int32_t next = e->it.layer + 1;
    if (!e->it.running || next >= e->layers)
        return;
    g->layer = next;
    g->count = 0;
    for (int32_t i = 0; i < n && g->count < g->max; i++)
        if (ids[i] >= 0 && ids[i] < e->layer[next].experts)
            g->id[g->count++] = ids[i];
    if (e->it.order == SL_ORDER_READY)
        e->trial.cost += sl_now_ns() - g->asked;
    experts_prefetch_run(e);
}

/* ---- reads --------------------------------------------------------------------------------------------------------
 */

static experts_slot *claim_cold(sl_experts *e, int32_t layer) {
    int32_t cls = e->layer[layer].cls;
    experts_slot *s = experts_cache_claim(e, cls, EXPERTS_TAKE_GROWN);
    if (s)
        return s;
    s = experts_policy_victim(e, cls);
    if (!s || s->layer == layer || s->prefetched)
        return NULL;
    experts_cache_evict(e, s);
    return s;
}

/* false: no further guess has a place. */
static bool read_guess(sl_experts *e, int32_t layer, int32_t expert) {
    experts_layer *l = &e->layer[layer];
    experts_layout layout;
    if (!experts_layout_make(&e->files, &l->extent[(size_t)expert * SL_EXPERT_PARTS], &layout, NULL) ||
        !experts_fetch_reserve(e))
        return false;
    experts_slot *s = claim_cold(e, layer);
    if (!s)
        return false;
    experts_fetch_add(e, s, layer, expert, &layout);
    s->prefetched = true;
    experts_trace_guess(&e->trace, s);
    experts_add(&e->count.prefetch_reads, 1);
    experts_add(&l->count.prefetch_reads, 1);
    return true;
}

void experts_prefetch_run(sl_experts *e) {
    experts_iteration *it = &e->it;
    if (it->prefetched || it->waiting > 0 || e->awaited > 0)
        return;
    const experts_guess *g = &e->guess;
    int32_t layer = it->layer + 1, left = e->slots / SHARE;
    if (g->layer != layer || g->count == 0)
        return;
    it->prefetched = true;
    for (int32_t i = 0; i < g->count && left > 0; i++) {
        if (e->layer[layer].slot[g->id[i]])
            continue;
        if (!read_guess(e, layer, g->id[i]))
            break;
        left--;
    }
    experts_fetch_submit(e);
}

#include "engine/vram.h"

#include "engine/units.h"

/* KEEP_SHARE: of what is beside weights and scratch KV is kept so much at most, as on the host. */
enum { KEEP_SHARE = 4, SLAB_SHARE = 64, ROUND = 64 << 10 };

static uint64_t ceil_div(uint64_t a, uint64_t b) {
    return (a + b - 1) / b;
}

/* A sequence's recurrent state. */
static uint64_t state_slabs(const engine_vram_input *in, uint64_t slab) {
    return in->state_block ? ceil_div(in->state_blocks, slab / in->state_block) : 0;
}

static uint64_t fixed_bytes(const engine_vram_input *in) {
    return sl_round_up(in->weights + in->scratch, ROUND);
}

/* KV grows by pieces of 1, 2, 4, ... slabs. */
static uint64_t grown(uint64_t slabs) {
    uint64_t have = 0;
    for (uint64_t piece = 1; have < slabs; piece *= 2)
        have += piece;
    return have;
}

static uint64_t least_bytes(const engine_vram_input *in, uint64_t slab) {
    return fixed_bytes(in) + (1 + state_slabs(in, slab)) * slab + (in->slots ? in->least_slots * in->slot_bytes : 0);
}

static uint64_t limit_of(const engine_vram_input *in) {
    return in->asked ? in->asked : in->share;
}

uint64_t engine_vram_slab(const engine_vram_input *in, uint64_t least, uint64_t most) {
    uint64_t best = 0, limit = limit_of(in);
    for (uint64_t slab = least; slab <= most; slab *= 2)
        if (slab >= in->kv_block && slab >= in->state_block &&
            (!best || (slab <= limit / SLAB_SHARE && least_bytes(in, slab) <= limit)))
            best = slab;
    return best;
}

static bool too_small(const engine_vram_input *in, const engine_vram *p, sl_error *err) {
    char have[32], least[32], weights[32], scratch[32], kv[32], experts[32], slots[96] = "";
    engine_size_text(experts, sizeof experts, in->slot_bytes * in->least_slots);
    if (in->slots)
        snprintf(slots, sizeof slots, ", slots for %llu experts %s", (unsigned long long)in->least_slots, experts);
    return sl_fail(err, SL_ERR_BUDGET,
                   "GPU memory of %llu bytes (%s, %s%s) is too small: at least %llu bytes (%s) are needed: weights %s, "
                   "scratch and logits %s, KV and state %s%s",
                   (unsigned long long)p->limit, engine_size_text(have, sizeof have, p->limit),
                   in->asked ? "vram" : "what may be used of ", in->asked ? "" : in->device,
                   (unsigned long long)p->least, engine_size_text(least, sizeof least, p->least),
                   engine_size_text(weights, sizeof weights, in->weights),
                   engine_size_text(scratch, sizeof scratch, in->scratch),
                   engine_size_text(kv, sizeof kv, (1 + state_slabs(in, in->least_slab)) * in->least_slab), slots);
}

bool engine_vram_plan(const engine_vram_input *in, engine_vram *out, sl_error *err) {
    uint64_t slab = in->slab_bytes, state = state_slabs(in, slab), fixed = fixed_bytes(in),
             least_kv = (1 + state) * slab,
             whole_kv = grown(ceil_div(in->context_blocks, slab / in->kv_block) + state) * slab,
             least_slots = in->slots ? in->least_slots : 0;
    *out = (engine_vram){.limit = limit_of(in), .least = least_bytes(in, in->least_slab)};
    out->full = fixed + (whole_kv > least_kv ? whole_kv : least_kv) + in->slots * in->slot_bytes;
    if (in->asked > in->room)
        return sl_fail(err, SL_ERR_BUDGET, "vram: %llu bytes, %llu are free on %s", (unsigned long long)in->asked,
                       (unsigned long long)in->room, in->device);
    if (out->limit < least_bytes(in, slab))
        return too_small(in, out, err);
    uint64_t rest = out->limit - fixed, most = rest / KEEP_SHARE;
    out->keep = whole_kv < most ? whole_kv : most;
    out->keep = out->keep > least_kv ? out->keep : least_kv;
    uint64_t experts = rest - out->keep;
    if (experts < least_slots * in->slot_bytes)
        experts = rest - least_kv;
    out->slots = in->slots == 0 ? 0 : experts / in->slot_bytes;
    out->slots = out->slots < in->slots ? out->slots : in->slots;
    return true;
}

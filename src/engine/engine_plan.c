/* See plan.h. Slabs are one size for all uses, so that they can change hands; what that size should be depends on the
 * budget: small ones waste little of a small budget, large ones cut few slots short and keep the tables small. */
#include "engine/plan.h"

#include "engine/units.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    MANY_SLABS = 4096,       /* more are not made where a larger size would do */
    KV_STEPS = 16,           /* KV grows by no more than this part of the room, where that costs no slots */
    DENSE_SLAB = 2 << 20,    /* only KV grows by them: one huge page */
    PAGE_TABLE_SHARE = 512,  /* 8 bytes for each page of 4 KiB */
    MEASURE_SLACK = 2 << 20, /* by which the measured size of the process differs from run to run */
};

static uint64_t ceil_div(uint64_t a, uint64_t b) {
    return (a + b - 1) / b;
}

/* With the page tables that map it. */
static uint64_t gross(uint64_t bytes) {
    return bytes + ceil_div(bytes, PAGE_TABLE_SHARE - 1);
}

static uint64_t net(uint64_t budget) {
    return budget - ceil_div(budget, PAGE_TABLE_SHARE);
}

static uint64_t fixed_bytes(const engine_plan_input *in) {
    return in->process + in->later + in->reserve + in->resident + in->scratch;
}

static uint64_t largest_slot(const engine_plan_input *in) {
    uint64_t most = 0;
    for (int32_t i = 0; i < in->layers; i++)
        most = in->slot_bytes[i] > most ? in->slot_bytes[i] : most;
    return most;
}

static uint64_t total_slots(const engine_plan_input *in) {
    return (uint64_t)in->layers * (uint64_t)in->experts;
}

static bool holds_blocks(const engine_plan_input *in, int i) {
    return engine_slab_size(i) >= in->kv_block && engine_slab_size(i) >= in->state_block &&
           (in->layers == 0 || in->least_experts[i] > 0);
}

uint64_t engine_plan_least_slab(const engine_plan_input *in) {
    for (int i = 0; i < ENGINE_SLAB_SIZES; i++)
        if (holds_blocks(in, i))
            return engine_slab_size(i);
    return 0;
}

/* Of those that are larger than most_slab the smallest is possible where no other is. */
static bool possible(const engine_plan_input *in, int i) {
    bool smaller = false;
    for (int k = 0; k < i; k++)
        smaller |= holds_blocks(in, k);
    return holds_blocks(in, i) && (!in->most_slab || !smaller || engine_slab_size(i) <= in->most_slab);
}

/* Slabs that hold every expert: those of one slot size share slabs. */
static uint64_t full_slabs(const engine_plan_input *in, uint64_t slab) {
    uint64_t slabs = 0;
    for (int32_t i = 0; i < in->layers; i++) {
        uint64_t same = 0;
        bool seen = false;
        for (int32_t j = 0; j < in->layers; j++) {
            seen |= j < i && in->slot_bytes[j] == in->slot_bytes[i];
            same += in->slot_bytes[j] == in->slot_bytes[i];
        }
        if (!seen)
            slabs += ceil_div(same * (uint64_t)in->experts, slab / in->slot_bytes[i]);
    }
    return slabs;
}

static uint64_t context_slabs(const engine_plan_input *in, uint64_t slab) {
    return ceil_div((uint64_t)in->context_blocks, slab / in->kv_block);
}

/* Bytes of slabs for the recurrent state of one sequence. */
static uint64_t state_bytes(const engine_plan_input *in, uint64_t slab) {
    return in->state_block ? ceil_div((uint64_t)in->state_blocks, slab / in->state_block) * slab : 0;
}

/* Bytes of slabs below which nothing runs. */
static uint64_t least_bytes(const engine_plan_input *in, int i) {
    uint64_t slab = engine_slab_size(i);
    return (in->whole_context ? context_slabs(in, slab) : 1) * slab + state_bytes(in, slab) + in->least_experts[i];
}

/* Slots in `bytes` beside KV: of a whole context, but of a quarter of the bytes at most, and of one slab at least. */
static uint64_t slots_in(const engine_plan_input *in, int i, uint64_t bytes) {
    uint64_t slab = engine_slab_size(i), kv = context_slabs(in, slab) * slab;
    if (bytes < least_bytes(in, i))
        return 0;
    bytes -= state_bytes(in, slab);
    if (kv > bytes / 4)
        kv = bytes / 4 > slab ? bytes / 4 / slab * slab : slab;
    if (bytes < kv + in->least_experts[i])
        kv = slab;
    if (in->layers == 0)
        return 1;
    uint64_t full = full_slabs(in, slab), have = (bytes - kv) / slab;
    return have >= full ? total_slots(in) : have * total_slots(in) / full;
}

static bool few_slabs(int i, uint64_t bytes) {
    return i == ENGINE_SLAB_SIZES - 1 || bytes / engine_slab_size(i) <= MANY_SLABS;
}

/* Whether slabs of size i with n slots are a better choice than the best so far, a smaller size. Of equals the larger
 * keeps tables small, as long as handing one to KV does not cost a large share of the slots. */
static bool better(const engine_plan_input *in, int i, int best, uint64_t n, uint64_t most, uint64_t bytes) {
    if (best < 0)
        return true;
    if (in->layers == 0)
        return engine_slab_size(i) <= DENSE_SLAB;
    return n > most || (n == most && engine_slab_size(i) <= bytes / KV_STEPS);
}

/* The slab size that gives the most slots in `bytes`; -1: nothing fits. */
static int choose_slab(const engine_plan_input *in, uint64_t bytes, uint64_t *slots) {
    int best = -1;
    *slots = 0;
    for (int pass = 0; pass < 2 && best < 0; pass++) {
        for (int i = 0; i < ENGINE_SLAB_SIZES; i++) {
            if (!possible(in, i) || (pass == 0 && !few_slabs(i, bytes)))
                continue;
            uint64_t n = slots_in(in, i, bytes);
            if (n == 0 || !better(in, i, best, n, *slots, bytes))
                continue;
            best = i;
            *slots = n;
        }
    }
    return best;
}

/* ---- budgets ---------------------------------------------------------------------------------------------------- */

static uint64_t smallest(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t report(const engine_plan_input *in, uint64_t slab_bytes) {
    return sl_round_up(gross(fixed_bytes(in) + MEASURE_SLACK + slab_bytes), 1 << 20);
}

/* The input as it would be under the least budget. */
static engine_plan_input with_least_scratch(const engine_plan_input *in) {
    engine_plan_input least = *in;
    if (in->scratch_least)
        least.scratch = in->scratch_least;
    return least;
}

/* The slab size with which the least bytes do. */
static int least_slab(const engine_plan_input *in) {
    int best = -1;
    for (int i = 0; i < ENGINE_SLAB_SIZES; i++)
        if (possible(in, i) && (best < 0 || least_bytes(in, i) < least_bytes(in, best)))
            best = i;
    return best;
}

static uint64_t least_slab_bytes(const engine_plan_input *in) {
    return least_bytes(in, least_slab(in));
}

/* A third of the experts, or three tokens' demand where that is more: below one token's demand a cache of the most
 * recent hits little. */
static uint64_t suggested_slots(const engine_plan_input *in) {
    uint64_t token = (uint64_t)in->layers * (uint64_t)in->top_k, want = total_slots(in) / 3;
    return smallest(want > 3 * token ? want : 3 * token, total_slots(in));
}

/* Least slab bytes for a whole context and `slots` experts. */
static uint64_t slab_bytes_for(const engine_plan_input *in, uint64_t slots) {
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < ENGINE_SLAB_SIZES; i++) {
        if (!possible(in, i))
            continue;
        uint64_t slab = engine_slab_size(i), kv = context_slabs(in, slab) * slab, experts = 0;
        if (in->layers)
            experts = ceil_div(slots * full_slabs(in, slab), total_slots(in)) * slab;
        if (experts < in->least_experts[i])
            experts = in->least_experts[i];
        uint64_t all = kv + state_bytes(in, slab) + experts;
        if (few_slabs(i, all))
            least = smallest(least, all);
    }
    return least;
}

static bool too_small(const engine_plan_input *in, const engine_plan *p, sl_error *err) {
    engine_plan_input tight = with_least_scratch(in);
    char have[32], least[32], resident[32], scratch[32], slabs[32], process[32], reserve[32], caller[64] = "";
    if (in->reserve)
        snprintf(caller, sizeof caller, ", what it measures with %s",
                 engine_size_text(reserve, sizeof reserve, in->reserve));
    return sl_fail(err, SL_ERR_BUDGET,
                   "memory budget of %llu bytes (%s) is too small: at least %llu bytes (%s) are needed: weights %s, "
                   "scratch %s, KV%s and expert slots %s, the process itself %s%s",
                   (unsigned long long)p->budget, engine_size_text(have, sizeof have, p->budget),
                   (unsigned long long)p->least, engine_size_text(least, sizeof least, p->least),
                   engine_size_text(resident, sizeof resident, in->resident),
                   engine_size_text(scratch, sizeof scratch, tight.scratch), in->state_block ? ", state" : "",
                   engine_size_text(slabs, sizeof slabs, least_slab_bytes(in)),
                   engine_size_text(process, sizeof process, in->process + in->later), caller);
}

bool engine_plan_make(const engine_plan_input *in, uint64_t budget, engine_plan *out, sl_error *err) {
    *out = (engine_plan){.budget = budget};
    if (!holds_blocks(in, ENGINE_SLAB_SIZES - 1))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "an expert of %llu bytes, a KV block of %llu or a block of recurrent state of %llu is larger "
                       "than a slab of %llu bytes",
                       (unsigned long long)largest_slot(in), (unsigned long long)in->kv_block,
                       (unsigned long long)in->state_block,
                       (unsigned long long)engine_slab_size(ENGINE_SLAB_SIZES - 1));
    engine_plan_input tight = with_least_scratch(in);
    out->least = report(&tight, least_slab_bytes(in));
    int least = least_slab(in);
    uint64_t least_state = state_bytes(in, engine_slab_size(least));
    out->least_kv_blocks = (least_bytes(in, least) - in->least_experts[least] - least_state) / in->kv_block;
    out->full = report(in, slab_bytes_for(in, total_slots(in)));
    out->suggested = smallest(report(in, slab_bytes_for(in, suggested_slots(in))), out->full);
    out->charge = in->process + in->later + in->reserve + (budget - net(budget));
    uint64_t fixed = fixed_bytes(in);
    int slab = net(budget) > fixed ? choose_slab(in, net(budget) - fixed, &out->slots) : -1;
    if (slab < 0)
        return too_small(in, out, err);
    out->slab_bytes = engine_slab_size(slab);
    out->slots = in->layers ? out->slots : 0;
    out->least_experts = in->least_experts[slab];
    uint64_t others = out->least_experts + state_bytes(in, out->slab_bytes);
    out->kv_blocks = (net(budget) - fixed - others) / out->slab_bytes * (out->slab_bytes / in->kv_block);
    return true;
}

uint64_t engine_resident_now(void) {
    unsigned long long total, resident;
    FILE *f = fopen("/proc/self/statm", "re");
    bool ok = f && fscanf(f, "%llu %llu", &total, &resident) == 2;
    if (f)
        fclose(f);
    return ok ? resident * (uint64_t)sysconf(_SC_PAGESIZE) : sl_peak_rss();
}

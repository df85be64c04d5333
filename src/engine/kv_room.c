/* What the budget can hold of KV at most, known before a prompt is evaluated: all that is no weights, scratch or
 * charge, less the slabs that experts never give up and those of one sequence's recurrent state. */
#include "engine/internal.h"

#include "engine/units.h"

uint64_t engine_kv_room(const sl_engine *e) {
    if (!e->mem)
        return e->plan.kv_blocks * SL_KV_PAGE_TOKENS;
    const sl_kv_layout *l = engine_kv_layout(e->kv);
    uint64_t slab = sl_mem_slab_bytes(e->mem), budget = sl_mem_budget(e->mem), taken = e->plan.least_experts;
    for (int u = 0; u < SL_USE_COUNT; u++)
        taken += u == SL_USE_SLOTS || u == SL_USE_KV ? 0 : sl_mem_used(e->mem, (sl_use)u);
    taken += (uint64_t)engine_state_slabs(&e->state_layout) * slab;
    return budget > taken ? (budget - taken) / slab * (uint64_t)l->blocks_per_slab * SL_KV_PAGE_TOKENS : 0;
}

/* A budget in which so many more tokens would fit. Where the chunk follows the budget, so does scratch; and the slabs
 * may be larger. */
static uint64_t budget_for(const sl_engine *e, uint64_t more) {
    const sl_kv_layout *l = engine_kv_layout(e->kv);
    uint64_t slab = sl_mem_slab_bytes(e->mem), budget = sl_mem_budget(e->mem);
    uint64_t per_slab = (uint64_t)l->blocks_per_slab * SL_KV_PAGE_TOKENS;
    uint64_t extra = ((more + per_slab - 1) / per_slab + 1) * slab;
    if (!e->options.chunk && !e->gpu)
        extra += extra / 4 + budget / 16;
    return sl_round_up(budget + extra + extra / 256, 1 << 20);
}

bool engine_kv_check(const sl_engine *e, uint64_t tokens, const char *what, sl_error *err) {
    uint64_t room = engine_kv_room(e);
    char budget[32], enough[32];
    return tokens <= room ||
           sl_fail(err, SL_ERR_BUDGET,
                   "%s: KV of %llu tokens is needed, the memory budget of %s holds %llu at most; one of %s would do",
                   what, (unsigned long long)tokens, engine_size_text(budget, sizeof budget, sl_mem_budget(e->mem)),
                   (unsigned long long)room, engine_size_text(enough, sizeof enough, budget_for(e, tokens - room)));
}

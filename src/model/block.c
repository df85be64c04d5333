/* The table of mixers, and what blocks share. */
#include "model/block.h"

const block *const block_mixers[MIXER_COUNT] = {
    [MIXER_ATTENTION] = &block_attention, [MIXER_DELTA] = &block_delta, [MIXER_MLA] = &block_mla};

sl_view area_take(area *a, int64_t cols) {
    sl_view v = {.buffer = a->buffer, .offset = a->bytes, .rows = SL_ROWS_ALL, .cols = (int32_t)cols};
    v.stride = (int64_t)sl_round_up((uint64_t)cols, 16);
    a->bytes += (uint64_t)a->max_rows * (uint64_t)v.stride * sizeof(float);
    return v;
}

const sl_weight *block_optional(const resident *r) {
    return r->tensor ? &r->weight : NULL;
}

/* How much of a device's own memory is taken, and for what there is no more: nothing goes beyond what may be used.
 * Experts take what others leave, and give it back a piece at a time when others need it. */
#include "ops/ops_gpu.h"

enum { MARGIN_SHARE = 32, LEAST_SHARE = 8 };
#define LEAST_MARGIN (UINT64_C(512) << 20)

/* A thirty-second part, half a GiB at least; of little memory an eighth. */
uint64_t sl_ops_vram_share(uint64_t room) {
    uint64_t margin = room / MARGIN_SHARE > LEAST_MARGIN ? room / MARGIN_SHARE : LEAST_MARGIN;
    return room - (margin < room / LEAST_SHARE ? margin : room / LEAST_SHARE);
}

uint64_t gpu_room_left(const sl_ops_gpu *o) {
    if (!o->may.limit)
        return sl_ops_vram_share(sl_gpu_room(o->gpu));
    return o->may.limit > o->taken ? o->may.limit - o->taken : 0;
}

sl_gpu_buffer *gpu_room_try(sl_ops_gpu *o, uint64_t bytes, const char *what, sl_error *err) {
    if (o->may.limit && bytes > gpu_room_left(o))
        return sl_fail_null(
            err, SL_ERR_BUDGET, "%s: %llu bytes of GPU memory are needed, %llu of the %llu that may be used are left",
            what, (unsigned long long)bytes, (unsigned long long)gpu_room_left(o), (unsigned long long)o->may.limit);
    sl_gpu_buffer *b = sl_gpu_alloc(o->gpu, bytes, SL_GPU_PRIVATE, err);
    if (!b) {
        sl_fail_prefix(err, "%s", what);
        return NULL;
    }
    o->taken += sl_gpu_buffer_size(b);
    o->taken_most = o->taken > o->taken_most ? o->taken : o->taken_most;
    return b;
}

sl_gpu_buffer *gpu_room_take(sl_ops_gpu *o, uint64_t bytes, const char *what, sl_error *err) {
    sl_error why = {0};
    sl_gpu_buffer *b;
    do
        b = gpu_room_try(o, bytes, what, &why);
    while (!b && (why.code == SL_ERR_BUDGET || why.code == SL_ERR_MEMORY) && gpu_tier_yield(o));
    if (!b && err)
        *err = why;
    return b;
}

void gpu_room_give(sl_ops_gpu *o, sl_gpu_buffer **b) {
    if (!*b)
        return;
    gpu_kept_drop(o);
    o->taken -= sl_gpu_buffer_size(*b);
    sl_gpu_buffer_free(*b);
    *b = NULL;
}

/* Barriers from declared ranges: a command waits for those before it in its list whose bytes it reads after they wrote,
 * or writes after they read or wrote. */
#include "gpu/core.h"

bool gpu_hazards_conflict(const gpu_hazards *h, const gpu_range *ranges, size_t n) {
    for (size_t i = 0; i < h->count; i++)
        for (size_t k = 0; k < n; k++)
            if (gpu_ranges_conflict(&h->items[i], &ranges[k]))
                return true;
    return false;
}

bool gpu_uses_conflict(const gpu_list *l, const gpu_range *r) {
    for (size_t i = 0; i < l->use_count; i++)
        if (gpu_ranges_conflict(&l->uses[i], r))
            return true;
    return false;
}

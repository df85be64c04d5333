/* Whether an expert's bytes are those that were packed: a disk, a cable or a file that changes under a running program
 * can give other ones without any error. */
#include "experts/store.h"

#include <inttypes.h>

/* Where the expert's bytes lie: a pack's blob is read as one area, or in areas that touch. NULL: they are apart. */
static const uint8_t *blob_of(const experts_slot *s, const sl_extent *ext, uint64_t *bytes, int *first) {
    const sl_extent *low = NULL, *high = NULL;
    for (int p = 0; p < SL_EXPERT_PARTS; p++) {
        if (ext[p].bytes == 0)
            continue;
        if (!low || ext[p].offset < low->offset) {
            low = &ext[p];
            *first = p;
        }
        if (!high || ext[p].offset + ext[p].bytes > high->offset + high->bytes)
            high = &ext[p];
    }
    if (!low || low->file != high->file)
        return NULL;
    *bytes = high->offset + high->bytes - low->offset;
    /* In the slot the last part is as far from the first as in the file. */
    int last = (int)(high - ext);
    bool whole = s->part[last] - s->part[*first] == (int64_t)(high->offset - low->offset);
    return whole ? s->base + s->part[*first] : NULL;
}

bool experts_sum_matches(const sl_experts *e, const experts_slot *s, sl_error *why) {
    const experts_layer *l = &e->layer[s->layer];
    const sl_extent *ext = &l->extent[(size_t)s->expert * SL_EXPERT_PARTS];
    uint64_t bytes = 0;
    int first = 0;
    if (!l->sum)
        return true;
    const uint8_t *blob = blob_of(s, ext, &bytes, &first);
    if (!blob)
        return sl_fail(why, SL_ERR_FORMAT, "%s: its parts are apart: their checksum cannot be told",
                       e->file[ext[first].file]->path);
    uint64_t sum = sl_pack_sum(blob, (size_t)bytes), expected = l->sum[s->expert];
    return sum == expected ||
           sl_fail(why, SL_ERR_FORMAT,
                   "%s: the %" PRIu64 " bytes at offset %" PRIu64 " that were read have checksum %016" PRIx64
                   ", expected %016" PRIx64 ": damaged, or changed since it was packed",
                   e->file[ext[first].file]->path, bytes, ext[first].offset, sum, expected);
}

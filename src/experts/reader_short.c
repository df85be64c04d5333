/* Short reads, for tests: the kernel is asked for a part of a piece, and not all of what it gave is told, so that the
 * reader has to go on from a place it did not choose. What is cut depends on seed and place only: pieces are read by
 * several threads, in any order. */
#include "experts/reader.h"

static bool touches(const sl_fault_place *p, const sl_file *file, uint64_t offset, uint64_t bytes) {
    return p->file == file && offset < p->offset + p->bytes && p->offset < offset + bytes;
}

static bool is_cut(const sl_fault_plan *f, const experts_piece *p, uint64_t *random) {
    const sl_read *r = &p->job->read;
    uint64_t at = r->offset + p->begin + p->done, left = p->bytes - p->done;
    *random = experts_mix(experts_mix(f->seed + 5) + at);
    if ((double)(*random >> 11) < f->short_rate * 0x1p53)
        return true;
    for (int32_t i = 0; i < f->place_count; i++)
        if (f->places[i].kind == SL_FAULT_SHORT && touches(&f->places[i], r->file, at, left))
            return true;
    return false;
}

/* A direct read is asked for in whole blocks, and goes on only if it gained one. */
static bool can_be_cut(const experts_piece *p) {
    return p->bytes - p->done >= 2 * (uint64_t)p->job->align;
}

uint64_t experts_piece_ask(const experts_jobs *q, const experts_piece *p) {
    uint64_t left = p->bytes - p->done, align = p->job->align, random;
    if (!q->faults || !can_be_cut(p) || !is_cut(q->faults, p, &random))
        return left;
    return align * (1 + experts_mix(random) % (left / align - 1));
}

int64_t experts_piece_answer(const experts_jobs *q, const experts_piece *p, int64_t result) {
    int64_t align = p->job->align;
    uint64_t random;
    if (!q->faults || result < 2 * align || !can_be_cut(p) || !is_cut(q->faults, p, &random))
        return result;
    return result - (int64_t)(experts_mix(random + 1) % (uint64_t)align);
}

/* Where an expert's parts go in a slot.
 *
 * Each extent is rounded out to the block that O_DIRECT needs; extents of one file whose rounded areas touch, overlap
 * or nearly touch become one area, which is one read. Areas lie one after the other in the slot, so a part begins at
 * (file offset mod block) past the start of its area's block. The same rounding, to a cache line, is used for buffered
 * files: a part's address modulo 64 is then its file offset modulo 64 everywhere, whatever the reader. */
#include "experts/store.h"

enum {
    /* A gap up to this is read along: one block costs less than a request of its own. */
    MAX_GAP = 4096,
    BUFFERED_ALIGN = 64
};

static uint32_t file_align(const experts_files *files, int32_t file) {
    const sl_file *f = files->file[file];
    return files->direct && f->direct_fd >= 0 ? f->direct_align : BUFFERED_ALIGN;
}

static bool check_extent(const experts_files *files, const sl_extent *x, int part, sl_error *err) {
    uint64_t end;
    if (x->file < 0 || x->file >= files->count)
        return sl_fail(err, SL_ERR_ARGUMENT, "part %d: file %d, the checkpoint has %d", part, x->file, files->count);
    const sl_file *f = files->file[x->file];
    if (!sl_add_u64(x->offset, x->bytes, &end) || end > f->size)
        return sl_fail(err, SL_ERR_FORMAT, "%s: part %d: %llu bytes at offset %llu, the file has %llu", f->path, part,
                       (unsigned long long)x->bytes, (unsigned long long)x->offset, (unsigned long long)f->size);
    return true;
}

static bool lies_before(const sl_extent *a, const sl_extent *b) {
    return a->file != b->file ? a->file < b->file : a->offset < b->offset;
}

/* order[] = the parts there are, by place in the files. Returns how many, or -1. */
static int sort_parts(const experts_files *files, const sl_extent *ext, int order[SL_EXPERT_PARTS], sl_error *err) {
    int n = 0;
    for (int p = 0; p < SL_EXPERT_PARTS; p++) {
        if (ext[p].bytes == 0)
            continue;
        if (!check_extent(files, &ext[p], p, err))
            return -1;
        int i = n++;
        for (; i > 0 && lies_before(&ext[p], &ext[order[i - 1]]); i--)
            order[i] = order[i - 1];
        order[i] = p;
    }
    if (n == 0)
        sl_fail(err, SL_ERR_ARGUMENT, "no parts");
    return n ? n : -1;
}

/* Lets the last area reach to the end of x, if that lies near it. */
static bool extend(experts_layout *l, const sl_extent *x, uint64_t align) {
    if (l->areas == 0)
        return false;
    experts_area *a = &l->area[l->areas - 1];
    if (a->file != x->file || x->offset / align * align > a->offset + a->bytes + MAX_GAP)
        return false;
    uint64_t need = x->offset + x->bytes - a->offset;
    if (need > a->need) {
        a->need = need;
        a->bytes = sl_round_up(need, align);
    }
    return true;
}

static void append(experts_layout *l, const sl_extent *x, uint64_t align) {
    uint64_t begin = x->offset / align * align, need = x->offset + x->bytes - begin;
    l->area[l->areas++] =
        (experts_area){.file = x->file, .offset = begin, .bytes = sl_round_up(need, align), .need = need};
}

/* Gives the areas their places. One alignment for all: the coarsest of the layer's files, so that each area starts on
 * its own file's block. */
static bool place(const experts_files *files, experts_layout *l, sl_error *err) {
    uint64_t at = 0;
    for (int i = 0; i < l->areas; i++) {
        at = sl_round_up(at, file_align(files, l->area[i].file));
        l->area[i].at = (uint32_t)at;
        at += l->area[i].bytes;
        if (at > INT32_MAX)
            return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: %llu bytes of one expert, at most 2 GiB expected",
                           files->file[l->area[i].file]->path, (unsigned long long)at);
    }
    l->bytes = (uint32_t)at;
    return true;
}

static int32_t place_of(const experts_layout *l, const sl_extent *x) {
    for (int i = 0; i < l->areas; i++) {
        const experts_area *a = &l->area[i];
        if (a->file == x->file && x->offset >= a->offset && x->offset < a->offset + a->bytes)
            return (int32_t)(a->at + (x->offset - a->offset));
    }
    return EXPERTS_NO_PART;
}

bool experts_layout_make(const experts_files *files, const sl_extent *ext, experts_layout *out, sl_error *err) {
    int order[SL_EXPERT_PARTS];
    int n = sort_parts(files, ext, order, err);
    if (n < 0)
        return false;
    out->areas = 0;
    for (int i = 0; i < n; i++) {
        const sl_extent *x = &ext[order[i]];
        uint64_t align = file_align(files, x->file);
        if (!extend(out, x, align))
            append(out, x, align);
    }
    if (!place(files, out, err))
        return false;
    for (int p = 0; p < SL_EXPERT_PARTS; p++)
        out->part[p] = ext[p].bytes ? place_of(out, &ext[p]) : EXPERTS_NO_PART;
    return true;
}

bool experts_layer_slot_bytes(const experts_files *files, const sl_expert_layer *layer, uint64_t *bytes,
                              sl_error *err) {
    uint64_t most = 0;
    for (int32_t x = 0; x < layer->experts; x++) {
        experts_layout l;
        if (!experts_layout_make(files, &layer->extent[(size_t)x * SL_EXPERT_PARTS], &l, err))
            return sl_fail_prefix(err, "expert %d", x);
        most = l.bytes > most ? l.bytes : most;
    }
    *bytes = sl_round_up(most, EXPERTS_SLOT_ALIGN);
    return true;
}

/* A slab serves one class at a time, so classes that hardly differ would take slabs from each other for nothing. What
 * differs by a sixteenth, or (small ones) by no more than rounding out to blocks makes, shares a class. */
void sl_experts_share_slots(uint64_t *bytes, int32_t n) {
    enum { ROUNDING = SL_EXPERT_PARTS * EXPERTS_SLOT_ALIGN, SHARE = 16 };
    uint64_t above = UINT64_MAX;
    for (;;) {
        uint64_t most = 0;
        for (int32_t i = 0; i < n; i++)
            if (bytes[i] < above && bytes[i] > most)
                most = bytes[i];
        if (most == 0)
            return;
        uint64_t rounding = most / 3 < ROUNDING ? most / 3 : ROUNDING,
                 least = most - (most / SHARE > rounding ? most / SHARE : rounding);
        for (int32_t i = 0; i < n; i++)
            if (bytes[i] >= least && bytes[i] < most)
                bytes[i] = most;
        above = most;
    }
}

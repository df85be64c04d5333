/* Experts in a device's own memory: slots of one size in at most 16 chunks, over all layers, the least recently used
 * evicted first. An expert's bytes never change, so a slot serves wherever the host's copy is, or whether there is one;
 * what is not there is copied from the host's slot. Parts begin at multiples of 256, so kernels read them as aligned as
 * they can be.
 *
 * Nothing that a running pass reads is evicted: what a pass wants is marked with its number, and a slot with the
 * running number is nobody's victim. */
#include "ops/ops_gpu.h"

#include <stdlib.h>
#include <string.h>

enum { PART_UNIT = 256, WORD = 4, ALIGNED = 16 };

typedef struct tier_slot {
    int32_t layer, id;      /* layer -1: free */
    int32_t next, previous; /* in the order of use, free ones first; -1: none */
    uint64_t pass;
} tier_slot;

typedef struct gpu_tier {
    int32_t layers, experts;
    uint64_t slot_bytes;
    int32_t slots, per_chunk, filled;
    int32_t least; /* slots that are not given back: one token's of a layer */
    sl_gpu_buffer *chunk[SL_SLAB_COUNT];
    int chunks;
    tier_slot *slot;      /* [slots] */
    int32_t *where;       /* [layers][experts] slot, -1: not there */
    uint64_t *generation; /* [layers] */
    uint8_t *align;       /* [layers] */
    uint8_t *shift;       /* [slots][SL_PARTS] bytes between a part's place and its begin */
    int32_t oldest, newest;
    uint64_t pass;
    bool tried; /* to bring everything */
} gpu_tier;

/* Room for a part, and the words around it that are copied with it. */
static uint64_t place_of(const sl_matrix *proj, bool alternating, int part) {
    uint64_t bytes = alternating && part / 3 == SL_PROJ_UP ? 0 : sl_matrix_part_bytes(&proj[part / 3], part % 3);
    return bytes ? sl_round_up(bytes + 2 * WORD, PART_UNIT) : 0;
}

static uint64_t place_of_part(const sl_moe *m, int part) {
    return place_of(m->proj, m->alternating, part);
}

uint64_t sl_ops_vram_slot(const sl_matrix proj[SL_PROJ_COUNT], bool alternating) {
    uint64_t all = 0;
    for (int i = 0; i < SL_PARTS; i++)
        all += place_of(proj, alternating, i);
    return all;
}

/* What is left without the rest of what is kept for KV; but the least in any case, as far as there is so much. */
static uint64_t capacity(const sl_ops_gpu *o, uint64_t least) {
    uint64_t left = gpu_room_left(o), grown = gpu_homes_bytes(o), keep = o->may.keep > grown ? o->may.keep - grown : 0,
             room = left > keep ? left - keep : 0;
    return room > least ? room : left < least ? left : least;
}

static void measure(const sl_program *p, gpu_tier *t) {
    for (size_t i = 0; i < p->count; i++) {
        const sl_moe *m = &p->list[i].u.moe;
        if (p->list[i].kind != OP_MOE)
            continue;
        t->layers = m->layer >= t->layers ? m->layer + 1 : t->layers;
        t->experts = m->experts > t->experts ? m->experts : t->experts;
        uint64_t bytes = sl_ops_vram_slot(m->proj, m->alternating);
        t->slot_bytes = bytes > t->slot_bytes ? bytes : t->slot_bytes;
        t->least = m->top_k > t->least ? m->top_k : t->least;
    }
}

void gpu_tier_free(sl_ops_gpu *o) {
    gpu_tier *t = o->tier;
    if (!t)
        return;
    for (int i = 0; i < t->chunks; i++)
        gpu_room_give(o, &t->chunk[i]);
    free(t->slot);
    free(t->where);
    free(t->generation);
    free(t->align);
    free(t->shift);
    free(t);
    o->tier = NULL;
}

/* All memory at once: kernels are bound it before it is known what comes there. What the device does not give, it does
 * not. */
static void take_chunks(sl_ops_gpu *o, gpu_tier *t) {
    sl_error why;
    int32_t made = 0;
    while (made < t->slots) {
        int32_t now = t->slots - made < t->per_chunk ? t->slots - made : t->per_chunk;
        t->chunk[t->chunks] = gpu_room_try(o, (uint64_t)now * t->slot_bytes, "experts", &why);
        if (!t->chunk[t->chunks])
            break;
        t->chunks++;
        made += now;
    }
    t->slots = made;
}

static bool allocate(sl_ops_gpu *o, gpu_tier *t) {
    uint64_t all = (uint64_t)t->layers * (uint64_t)t->experts,
             most = capacity(o, (uint64_t)t->least * t->slot_bytes) / t->slot_bytes;
    t->slots = (int32_t)(most < all ? most : all);
    t->per_chunk = (t->slots + SL_SLAB_COUNT - 1) / SL_SLAB_COUNT;
    t->slot = calloc((size_t)t->slots + 1, sizeof *t->slot);
    t->where = malloc((size_t)all * sizeof *t->where);
    t->generation = calloc((size_t)t->layers, sizeof *t->generation);
    t->align = malloc((size_t)t->layers);
    t->shift = calloc((size_t)t->slots + 1, SL_PARTS);
    if (!t->slot || !t->where || !t->generation || !t->align || !t->shift)
        return false;
    memset(t->align, ALIGNED, (size_t)t->layers);
    take_chunks(o, t);
    for (int32_t i = 0; i < t->slots; i++)
        t->slot[i] = (tier_slot){.layer = -1, .next = i + 1 < t->slots ? i + 1 : -1, .previous = i - 1};
    t->oldest = t->slots ? 0 : -1;
    t->newest = t->slots - 1;
    for (uint64_t i = 0; i < all; i++)
        t->where[i] = -1;
    return true;
}

bool gpu_tier_open(sl_ops_gpu *o, const sl_program *p, sl_error *err) {
    gpu_tier need = {0}, *old = o->tier;
    if (!o->apart)
        return true;
    if (old)
        need = (gpu_tier){
            .layers = old->layers, .experts = old->experts, .slot_bytes = old->slot_bytes, .least = old->least};
    measure(p, &need);
    if (!need.layers ||
        (old && old->layers == need.layers && old->experts == need.experts && old->slot_bytes == need.slot_bytes))
        return true;
    gpu_tier_free(o);
    gpu_tier *t = calloc(1, sizeof *t);
    if (!t)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory");
    *t = need;
    o->tier = t;
    if (!allocate(o, t)) {
        gpu_tier_free(o);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the table of experts in GPU memory");
    }
    if (t->slots > 0)
        return true;
    uint64_t bytes = t->slot_bytes;
    gpu_tier_free(o);
    return sl_fail(err, SL_ERR_BUDGET, "no room for one expert of %llu bytes in GPU memory, %llu may still be used",
                   (unsigned long long)bytes, (unsigned long long)gpu_room_left(o));
}

int32_t gpu_tier_slots(const sl_ops_gpu *o) {
    return o->tier ? o->tier->slots : 0;
}

bool gpu_tier_complete(const sl_ops_gpu *o) {
    return o->tier && o->tier->filled == o->tier->layers * o->tier->experts;
}

uint64_t gpu_tier_generation(const sl_ops_gpu *o, int32_t layer) {
    return o->tier->generation[layer] + 1;
}

/* What the source says of the whole layer, so that nothing depends on what came first; else of what was seen. */
uint32_t gpu_tier_align(const sl_ops_gpu *o, int32_t layer) {
    const sl_expert_source *src = &o->known.experts;
    sl_expert_peek peek;
    if (!src->peek || !src->peek(src->self, layer, &peek) || peek.align == 0)
        return o->tier->align[layer];
    return peek.align % WORD == 0 ? ALIGNED : peek.align;
}

int gpu_tier_pieces(const sl_ops_gpu *o, gpu_span piece[SL_SLAB_COUNT]) {
    const gpu_tier *t = o->tier;
    for (int i = 0; i < t->chunks; i++)
        piece[i] = (gpu_span){t->chunk[i], 0, sl_gpu_buffer_size(t->chunk[i])};
    return t->chunks;
}

void gpu_tier_pass(sl_ops_gpu *o) {
    if (o->tier)
        o->tier->pass++;
}

/* ---- slots ---------------------------------------------------------------------------------------------------------
 */

static uint64_t offset_of(const gpu_tier *t, int32_t slot) {
    return (uint64_t)(slot % t->per_chunk) * t->slot_bytes;
}

static void unlink_slot(gpu_tier *t, int32_t slot) {
    tier_slot *s = &t->slot[slot];
    *(s->previous < 0 ? &t->oldest : &t->slot[s->previous].next) = s->next;
    *(s->next < 0 ? &t->newest : &t->slot[s->next].previous) = s->previous;
}

static void link_newest(gpu_tier *t, int32_t slot) {
    t->slot[slot].previous = t->newest;
    t->slot[slot].next = -1;
    *(t->newest < 0 ? &t->oldest : &t->slot[t->newest].next) = slot;
    t->newest = slot;
}

/* What the running pass wants was used last: if the oldest is, all are. -1: none. */
static int32_t victim(const gpu_tier *t) {
    const tier_slot *s = &t->slot[t->oldest];
    return s->layer < 0 || s->pass != t->pass ? t->oldest : -1;
}

static void use(gpu_tier *t, int32_t slot) {
    unlink_slot(t, slot);
    link_newest(t, slot);
    t->slot[slot].pass = t->pass;
}

static int32_t *place(gpu_tier *t, int32_t layer, int32_t id) {
    return &t->where[(int64_t)layer * t->experts + id];
}

static void forget(gpu_tier *t, int32_t slot) {
    tier_slot *s = &t->slot[slot];
    if (s->layer < 0)
        return;
    *place(t, s->layer, s->id) = -1;
    t->generation[s->layer]++;
    t->filled--;
    s->layer = -1;
}

void gpu_tier_doubt(sl_ops_gpu *o, bool sound) {
    gpu_tier *t = o->tier;
    for (int32_t i = 0; t && i < t->slots; i++)
        if (!sound || t->slot[i].pass == t->pass)
            forget(t, i);
}

bool gpu_tier_yield(sl_ops_gpu *o) {
    gpu_tier *t = o->tier;
    int32_t left = t ? (t->chunks - 1) * t->per_chunk : 0;
    if (left < 1 || left < t->least)
        return false;
    for (int32_t i = left; i < t->slots; i++) {
        forget(t, i);
        unlink_slot(t, i);
    }
    gpu_room_give(o, &t->chunk[--t->chunks]);
    t->slots = left;
    return true;
}

static void write_entry(const gpu_tier *t, const sl_moe *m, int32_t slot, uint64_t entry[SL_PARTS]) {
    uint64_t at = offset_of(t, slot);
    for (int i = 0; i < SL_PARTS; i++) {
        uint64_t place = place_of_part(m, i), begin = at + t->shift[(int64_t)slot * SL_PARTS + i];
        entry[i] = place ? (uint64_t)(slot / t->per_chunk) << 56 | (begin + 1) : 0;
        at += place;
    }
    for (int i = 0; i < 3 && m->alternating; i++) /* every second row of the gate's matrix */
        if (entry[3 * SL_PROJ_GATE + i])
            entry[3 * SL_PROJ_UP + i] = entry[3 * SL_PROJ_GATE + i] + m->proj[SL_PROJ_GATE].row_bytes[i];
}

bool gpu_tier_find(sl_ops_gpu *o, const sl_moe *m, int32_t id, bool want, uint64_t entry[SL_PARTS]) {
    gpu_tier *t = o->tier;
    int32_t slot = t ? *place(t, m->layer, id) : -1;
    if (slot < 0)
        return false;
    if (want) {
        use(t, slot);
        o->times.vram_hits++;
    }
    write_entry(t, m, slot, entry);
    return true;
}

/* ---- copies --------------------------------------------------------------------------------------------------------
 */

/* Copies are of words: the part's first and last with their neighbours' bytes, which lie in the same slab. */
static bool copy_part(sl_ops_gpu *o, sl_gpu_list *l, const uint8_t *from, sl_gpu_buffer *to, uint64_t at,
                      uint64_t bytes, sl_error *err) {
    uint64_t shift = (uintptr_t)from % WORD, all = sl_round_up(bytes + shift, WORD);
    gpu_span s = gpu_host_span(o, from - shift, all, err); /* words end where pages do: no page more is touched */
    o->times.vram_copied += s.buffer ? all : 0;
    return s.buffer && sl_gpu_encode_copy(l, to, at, s.buffer, s.offset, all, err);
}

static void note_align(gpu_tier *t, int32_t layer, uint64_t shift) {
    uint8_t align = shift == 0 ? ALIGNED : shift % 2 ? 1 : 2;
    t->align[layer] = align < t->align[layer] ? align : t->align[layer];
}

static bool copy_parts(sl_ops_gpu *o, sl_gpu_list *l, const sl_moe *m, const sl_expert_view *v, int32_t slot,
                       sl_error *err) {
    gpu_tier *t = o->tier;
    uint64_t at = offset_of(t, slot);
    for (int i = 0; i < SL_PARTS; i++) {
        uint64_t place = place_of_part(m, i), shift = (uintptr_t)v->part[i] % WORD;
        uint64_t bytes = place ? sl_matrix_part_bytes(&m->proj[i / 3], i % 3) : 0;
        if (place && !v->part[i])
            return sl_fail(err, SL_ERR_IO, "MoE layer %d: expert %d came without part %d", m->layer, v->id, i);
        if (place) {
            if (!copy_part(o, l, v->part[i], t->chunk[slot / t->per_chunk], at, bytes, err))
                return false;
            t->shift[(int64_t)slot * SL_PARTS + i] = (uint8_t)shift;
            note_align(t, m->layer, shift);
        }
        at += place;
    }
    return true;
}

bool gpu_tier_put(sl_ops_gpu *o, sl_gpu_list *l, const sl_moe *m, const sl_expert_view *v, uint64_t entry[SL_PARTS],
                  bool *full, sl_error *err) {
    gpu_tier *t = o->tier;
    *full = false;
    if (gpu_tier_find(o, m, v->id, true, entry))
        return true;
    int32_t slot = victim(t);
    *full = slot < 0;
    if (*full)
        return false;
    gpu_kept_drop(o);
    forget(t, slot);
    if (!copy_parts(o, l, m, v, slot, err))
        return false;
    use(t, slot);
    t->slot[slot].layer = m->layer;
    t->slot[slot].id = v->id;
    o->times.vram_misses++;
    *place(t, m->layer, v->id) = slot;
    t->generation[m->layer]++;
    t->filled++;
    write_entry(t, m, slot, entry);
    return true;
}

/* ---- everything ----------------------------------------------------------------------------------------------------
 */

sl_gpu_list *gpu_tier_list(sl_ops_gpu *o, sl_error *err) {
    if (!o->copies)
        o->copies = sl_gpu_stream_new(o->gpu, err);
    return o->copies ? sl_gpu_begin(o->copies, "experts", err) : NULL;
}

bool gpu_tier_enter(sl_ops_gpu *o, sl_gpu_list *l, const sl_moe *m, const sl_expert_view *views, int n, uint8_t *table,
                    sl_error *err) {
    for (int i = 0; i < n; i++) {
        uint64_t entry[SL_PARTS];
        bool full;
        if (!gpu_tier_put(o, l, m, &views[i], entry, &full, err))
            return full ? sl_fail(err, SL_ERR_MEMORY, "GPU memory holds too few experts for one layer") : false;
        if (table)
            memcpy(table + (uint64_t)views[i].id * sizeof entry, entry, sizeof entry);
    }
    return true;
}

static bool bring(sl_ops_gpu *o, const sl_moe *m, const sl_expert_view *views, int n, sl_error *err) {
    sl_gpu_ticket ticket;
    sl_gpu_list *l = gpu_tier_list(o, err);
    if (!l)
        return false;
    if (!gpu_tier_enter(o, l, m, views, n, NULL, err)) {
        sl_gpu_list_free(l);
        return false;
    }
    return sl_gpu_submit(l, &ticket, err) && sl_gpu_wait(o->copies, ticket, GPU_TIMEOUT_NS, NULL, err);
}

/* One layer's experts that are not there yet; those that cannot be read are asked for again when a row wants them. */
static bool fill_layer(sl_ops_gpu *o, const sl_moe *m, sl_error *err) {
    enum { AT_ONCE = 32 };
    const sl_expert_source *src = &o->known.experts;
    sl_expert_view views[AT_ONCE];
    int32_t ids[GPU_EXPERTS], n = 0;
    bool ok = true;
    int got;
    for (int32_t id = 0; id < m->experts; id++)
        if (*place(o->tier, m->layer, id) < 0)
            ids[n++] = id;
    if (!n)
        return true;
    if (!src->begin(src->self, m->layer, ids, n, SL_ORDER_READY, err)) {
        src->end(src->self);
        return false;
    }
    sl_error unread;
    while (ok && (got = src->next(src->self, views, AT_ONCE, &unread)) != 0) {
        if (got < 0)
            continue;
        ok = bring(o, m, views, got, err);
        if (ok)
            src->done(src->self, views, got);
    }
    src->end(src->self);
    return ok;
}

/* Where every expert has room, all are brought there at once: then a token needs no host from its begin to its end. */
bool gpu_tier_fill(gpu_run *r) {
    sl_ops_gpu *o = r->o;
    gpu_tier *t = o->tier;
    if (!t || t->tried || !o->known.experts.peek || t->slots < t->layers * t->experts)
        return true;
    gpu_tier_pass(o);
    for (size_t i = 0; i < r->p->count; i++) {
        const sl_moe *m = &r->p->list[i].u.moe;
        if (r->p->list[i].kind != OP_MOE)
            continue;
        if (r->step->cancelled && r->step->cancelled(r->step->user))
            return sl_fail(r->err, SL_ERR_CANCELLED, "cancelled while layer %d's experts came to the device", m->layer);
        if (!fill_layer(o, m, r->err)) {
            t->tried = true; /* the next step does without */
            return false;
        }
    }
    gpu_tier_pass(o);
    t->tried = true;
    return true;
}

/* A device with memory of its own. What kernels read again and again lies there: weights are copied once; scratch is
 * there alone, but for the part in which host and device tell each other things, which is copied by commands of the
 * list; slabs of KV and state have a home there each. Everything is found by the host's addresses as on other devices.
 */
#include "ops/ops_gpu.h"

#include <stdlib.h>
#include <string.h>

/* ---- twins ---------------------------------------------------------------------------------------------------------
 */

static bool is_scratch(const sl_ops_gpu *o, const uint8_t *base) {
    for (size_t i = 0; i < o->known.span_count; i++)
        if (o->known.spans[i] == base)
            return true;
    return base == o->scratch.span;
}

static sl_gpu_buffer *zeroed(sl_ops_gpu *o, uint64_t bytes, sl_error *err) {
    sl_gpu_buffer *b = gpu_room_take(o, sl_round_up(bytes, 256), "scratch", err);
    sl_gpu_list *l = b ? sl_gpu_begin(o->stream, "zeros", err) : NULL;
    sl_gpu_ticket ticket;
    if (l && sl_gpu_encode_fill(l, b, 0, sl_round_up(bytes, 256), 0, err) && sl_gpu_submit(l, &ticket, err))
        return b;
    if (l)
        sl_gpu_list_free(l);
    gpu_room_give(o, &b);
    return NULL;
}

bool gpu_twin_make(sl_ops_gpu *o, gpu_region *r, sl_error *err) {
    bool weights = sl_mem_use(o->known.mem, r->base) == SL_USE_WEIGHTS, scratch = is_scratch(o, r->base);
    if (!o->apart || (!weights && !scratch))
        return true;
    r->twin = weights ? gpu_room_take(o, r->bytes, "the model's resident weights", err) : zeroed(o, r->bytes, err);
    if (!r->twin)
        return false;
    r->exchanged = r->base == o->scratch.span ? o->scratch.exchanged : 0;
    if (weights && !sl_gpu_put(r->twin, 0, r->base, r->bytes, err)) {
        gpu_twin_free(o, r);
        return false;
    }
    return true;
}

void gpu_twin_free(sl_ops_gpu *o, gpu_region *r) {
    gpu_room_give(o, &r->twin);
}

static bool bring(sl_ops_gpu *o, const sl_weight *w, sl_error *err) {
    return !has_weight(w) || gpu_span_of(o, gpu_at(o, w->buffer, w->offset[0]), 1, err).buffer != NULL;
}

/* A model's weights lie in one block: those of a few operations bring all. */
static bool bring_weights(sl_ops_gpu *o, const op *x, sl_error *err) {
    switch (x->kind) {
    case OP_EMBED:
        return bring(o, &x->u.embed.table, err);
    case OP_LINEAR:
        return bring(o, &x->u.linear.out[0].weight, err);
    case OP_MOE:
        return bring(o, &x->u.moe.router, err);
    case OP_LOGITS:
        return bring(o, &x->u.logits.head, err);
    default:
        return true;
    }
}

bool gpu_bring_program(sl_ops_gpu *o, const sl_program *p, sl_error *err) {
    bool ok = true;
    for (size_t i = 0; o->apart && ok && i < p->count; i++)
        ok = bring_weights(o, &p->list[i], err);
    for (size_t i = 0; o->apart && ok && i < o->known.span_count; i++)
        ok = gpu_span_of(o, o->known.spans[i], 1, err).buffer != NULL;
    return ok && (!o->apart || gpu_span_of(o, o->scratch.span, 1, err).buffer != NULL);
}

/* ---- told by commands ----------------------------------------------------------------------------------------------
 */

/* Copies are of whole words. */
static bool copy(gpu_run *r, const void *p, uint64_t bytes, bool to_device) {
    sl_ops_gpu *o = r->o;
    if (!o->apart || o->wanted)
        return true;
    bytes = sl_round_up(bytes, 4);
    gpu_span there = gpu_span_of(o, p, bytes, r->err), here = gpu_host_span(o, p, bytes, r->err);
    if (!there.buffer || !here.buffer || !gpu_list_begin(r))
        return false;
    const gpu_span *to = to_device ? &there : &here, *from = to_device ? &here : &there;
    return to->buffer == from->buffer ||
           sl_gpu_encode_copy(o->list, to->buffer, to->offset, from->buffer, from->offset, bytes, r->err);
}

bool gpu_push(gpu_run *r, const void *p, uint64_t bytes) {
    return copy(r, p, bytes, true);
}

bool gpu_pull(gpu_run *r, const void *p, uint64_t bytes) {
    return copy(r, p, bytes, false);
}

/* ---- homes of slabs ------------------------------------------------------------------------------------------------
 */

uint64_t gpu_homes_bytes(const sl_ops_gpu *o) {
    uint64_t all = 0;
    for (int i = 0; i < o->homes.chunks; i++)
        all += sl_gpu_buffer_size(o->homes.chunk[i]);
    return all;
}

/* As many slabs as there are, so that pieces stay few, but no more than is kept for them; behind that half as many. */
static uint64_t next_slabs(const sl_ops_gpu *o) {
    const gpu_homes *h = &o->homes;
    uint64_t doubled = UINT64_C(1) << h->chunks, have = gpu_homes_bytes(o) / h->slab_bytes,
             kept = o->may.keep / h->slab_bytes, most = kept > have ? kept - have : (have + 1) / 2;
    return o->may.keep && most < doubled ? most : doubled;
}

/* Fewer where there is no more. */
static sl_gpu_buffer *take_slabs(sl_ops_gpu *o, uint64_t *slabs, sl_error *err) {
    sl_error why = {0};
    sl_gpu_buffer *b;
    while (!(b = gpu_room_take(o, *slabs * o->homes.slab_bytes, "KV cache and state", &why)) && *slabs > 1 &&
           (why.code == SL_ERR_BUDGET || why.code == SL_ERR_MEMORY))
        *slabs /= 2;
    if (!b && err)
        *err = why;
    return b;
}

static bool add_chunk(sl_ops_gpu *o, sl_error *err) {
    gpu_homes *h = &o->homes;
    uint64_t slabs = next_slabs(o);
    if (h->chunks == SL_SLAB_COUNT)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "KV and state in more than %d pieces of GPU memory", SL_SLAB_COUNT);
    void *list = h->list;
    if (!sl_grow(&list, &h->capacity, h->count + slabs, sizeof *h->list))
        return sl_fail(err, SL_ERR_MEMORY, "out of memory");
    h->list = list;
    sl_gpu_buffer *b = take_slabs(o, &slabs, err);
    if (!b)
        return false;
    for (uint64_t i = 0; i < slabs; i++)
        h->list[h->count++] = (gpu_home){.entry = (uint64_t)h->chunks << 56 | i * h->slab_bytes};
    h->chunk[h->chunks++] = b;
    return true;
}

static gpu_home *find_home(const sl_ops_gpu *o, const gpu_slabs *s, const uint8_t *slab) {
    for (size_t i = 0; i < o->homes.count; i++)
        if (o->homes.list[i].host == slab && (!slab || o->homes.list[i].of == s))
            return &o->homes.list[i];
    return NULL;
}

static sl_gpu_buffer *place_of(const sl_ops_gpu *o, uint64_t entry, uint64_t *offset) {
    *offset = entry & ((UINT64_C(1) << 56) - 1);
    return o->homes.chunk[entry >> 56];
}

/* A free home that becomes the slab's. */
static gpu_home *settle(sl_ops_gpu *o, const gpu_slabs *s, const uint8_t *slab, uint64_t slab_bytes, sl_error *err) {
    gpu_home *h = find_home(o, NULL, NULL);
    uint64_t offset;
    if (!h && !add_chunk(o, err))
        return NULL;
    h = h ? h : find_home(o, NULL, NULL);
    sl_gpu_buffer *b = place_of(o, h->entry, &offset);
    if (!sl_gpu_put(b, offset, slab, slab_bytes, err))
        return NULL;
    h->host = slab;
    h->of = s;
    return h;
}

uint64_t gpu_home_find(sl_ops_gpu *o, const gpu_slabs *s, const uint8_t *slab) {
    pthread_mutex_lock(&o->homes.lock);
    gpu_home *h = find_home(o, s, slab);
    if (h)
        h->told = true;
    uint64_t entry = h ? h->entry : GPU_HOMELESS;
    pthread_mutex_unlock(&o->homes.lock);
    return entry;
}

bool gpu_home_of(sl_ops_gpu *o, const gpu_slabs *s, const uint8_t *slab, uint64_t slab_bytes, uint64_t *entry,
                 sl_error *err) {
    pthread_mutex_lock(&o->homes.lock);
    if (!o->homes.slab_bytes)
        o->homes.slab_bytes = sl_round_up(sl_mem_slab_bytes(o->known.mem), 256);
    gpu_home *h = find_home(o, s, slab);
    h = h ? h : settle(o, s, slab, slab_bytes, err);
    if (h) {
        h->told = true;
        *entry = h->entry;
    }
    pthread_mutex_unlock(&o->homes.lock);
    return h != NULL;
}

void gpu_homes_retell(sl_ops_gpu *o, const gpu_slabs *s) {
    pthread_mutex_lock(&o->homes.lock);
    for (size_t i = 0; i < o->homes.count; i++)
        if (o->homes.list[i].of == s)
            o->homes.list[i].told = false;
    pthread_mutex_unlock(&o->homes.lock);
}

void gpu_homes_sweep(sl_ops_gpu *o, const gpu_slabs *s) {
    pthread_mutex_lock(&o->homes.lock);
    for (size_t i = 0; i < o->homes.count; i++)
        if (o->homes.list[i].of == s && !o->homes.list[i].told)
            o->homes.list[i] = (gpu_home){.entry = o->homes.list[i].entry};
    pthread_mutex_unlock(&o->homes.lock);
}

void gpu_homes_free(sl_ops_gpu *o) {
    for (int i = 0; i < o->homes.chunks; i++)
        gpu_room_give(o, &o->homes.chunk[i]);
    free(o->homes.list);
    pthread_mutex_destroy(&o->homes.lock);
}

/* ---- logits --------------------------------------------------------------------------------------------------------
 */

bool gpu_out_begin(gpu_run *r, const float *logits, uint64_t bytes) {
    gpu_region *out = &r->o->out;
    if (!r->o->apart)
        return true;
    if (bytes > out->bytes || !out->twin) {
        gpu_twin_free(r->o, out);
        out->twin = gpu_room_take(r->o, bytes, "logits", r->err);
        out->bytes = bytes;
    }
    out->base = out->twin ? (const uint8_t *)logits : NULL;
    return out->twin != NULL;
}

void gpu_out_end(sl_ops_gpu *o) {
    o->out.base = NULL;
}

/* ---- for who looks at memory between steps --------------------------------------------------------------------------
 */

/* Where the block at p is on the device; NULL: the host has it. */
static sl_gpu_buffer *find_there(sl_ops_gpu *o, const uint8_t *p, uint64_t *offset) {
    sl_gpu_buffer *b = NULL;
    pthread_mutex_lock(&o->homes.lock);
    for (size_t i = 0; i < o->homes.count && !b; i++) {
        const gpu_home *h = &o->homes.list[i];
        if (!h->host || (uintptr_t)p - (uintptr_t)h->host >= o->homes.slab_bytes)
            continue;
        b = place_of(o, h->entry, offset);
        *offset += (uint64_t)(p - h->host);
    }
    pthread_mutex_unlock(&o->homes.lock);
    return b;
}

bool gpu_ops_pull(sl_ops *ops, void *p, uint64_t bytes, sl_error *err) {
    uint64_t offset;
    sl_gpu_buffer *b = find_there((sl_ops_gpu *)ops, p, &offset);
    return !b || sl_gpu_get(b, offset, p, bytes, err);
}

bool gpu_ops_push(sl_ops *ops, const void *p, uint64_t bytes, sl_error *err) {
    uint64_t offset;
    sl_gpu_buffer *b = find_there((sl_ops_gpu *)ops, p, &offset);
    return !b || sl_gpu_put(b, offset, p, bytes, err);
}

/* Host memory as kernels see it: the allocator's blocks wrapped whole, once, until they are given back. */
#include "ops/ops_gpu.h"

#include "base/mem_block.h"

#include <stdlib.h>

static void drop(sl_ops_gpu *o, size_t i) {
    gpu_kept_drop(o);
    sl_gpu_buffer_free(o->regions[i].buffer);
    gpu_twin_free(o, &o->regions[i]);
    o->regions[i] = o->regions[--o->region_count];
}

/* What stands for a block that is there no more goes; on a device with memory of its own also pinned slabs, whose pages
 * are others. */
static bool stands(const sl_ops_gpu *o, const gpu_region *r, bool unmapped) {
    void *base;
    uint64_t bytes;
    if (r->kind != GPU_ALLOCATED)
        return true;
    if (!o->apart)
        return !unmapped;
    return r->twin && sl_mem_block(o->known.mem, r->base, &base, &bytes) && base == r->base && bytes == r->bytes;
}

void gpu_regions_refresh(sl_ops_gpu *o) {
    uint64_t unmapped = sl_mem_unmapped(o->known.mem), vacated = o->apart ? sl_mem_vacated(o->known.mem) : 0;
    bool gone = unmapped != o->unmapped;
    if (!gone && vacated == o->vacated)
        return;
    o->unmapped = unmapped;
    o->vacated = vacated;
    gpu_slabs_forget(o, &o->kv);
    gpu_slabs_forget(o, &o->state);
    for (size_t i = o->region_count; i-- > 0;)
        if (!stands(o, &o->regions[i], gone))
            drop(o, i);
}

void gpu_regions_free(sl_ops_gpu *o) {
    while (o->region_count)
        drop(o, o->region_count - 1);
    free(o->regions);
    o->regions = NULL;
}

static gpu_region *find(const sl_ops_gpu *o, const uint8_t *p) {
    for (size_t i = 0; i < o->region_count; i++)
        if ((uintptr_t)p - (uintptr_t)o->regions[i].base < o->regions[i].bytes)
            return &o->regions[i];
    return NULL;
}

/* The host's memory is not wrapped where the device has all of it. */
static bool wrap(sl_ops_gpu *o, gpu_region *r, sl_error *err) {
    uint64_t bytes = r->twin ? r->exchanged : r->bytes;
    r->buffer = bytes ? sl_gpu_wrap(o->gpu, (void *)(uintptr_t)r->base, bytes, err) : NULL;
    return !bytes || r->buffer;
}

static gpu_region *add(sl_ops_gpu *o, const void *base, uint64_t bytes, int kind, sl_error *err) {
    void *list = o->regions;
    if (!sl_grow(&list, &o->region_capacity, o->region_count + 1, sizeof *o->regions))
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory");
    o->regions = list;
    gpu_region r = {.base = base, .bytes = bytes, .kind = kind};
    if ((kind == GPU_ALLOCATED && !gpu_twin_make(o, &r, err)) || !wrap(o, &r, err)) {
        gpu_twin_free(o, &r);
        return NULL;
    }
    o->regions[o->region_count] = r;
    return &o->regions[o->region_count++];
}

bool gpu_remember(sl_ops_gpu *o, const void *base, uint64_t bytes, sl_error *err) {
    void *block;
    uint64_t size;
    if (sl_mem_find(o->known.mem, base, &block, &size))
        return true; /* wrapped with its block when it is used */
    return add(o, base, bytes, GPU_REMEMBERED, err) != NULL;
}

void gpu_forget(sl_ops_gpu *o, const void *base) {
    for (size_t i = o->region_count; i-- > 0;)
        if (o->regions[i].kind == GPU_REMEMBERED && o->regions[i].base == base)
            drop(o, i);
}

bool gpu_has_passing(const sl_ops_gpu *o) {
    for (size_t i = 0; i < o->region_count; i++)
        if (o->regions[i].kind == GPU_PASSING)
            return true;
    return false;
}

void gpu_forget_passing(sl_ops_gpu *o) {
    for (size_t i = o->region_count; i-- > 0;)
        if (o->regions[i].kind == GPU_PASSING)
            drop(o, i);
}

static gpu_region *region_of(sl_ops_gpu *o, const void *p, uint64_t bytes, sl_error *err) {
    void *base;
    uint64_t size;
    gpu_region *r = find(o, p);
    if (!r) /* pinning takes what is pinned from the system: slab by slab */
        r = (o->apart ? sl_mem_block(o->known.mem, p, &base, &size) : sl_mem_find(o->known.mem, p, &base, &size))
                ? add(o, base, size, GPU_ALLOCATED, err)
                : add(o, p, bytes, GPU_PASSING, err);
    return r;
}

static gpu_span part_of(sl_gpu_buffer *buffer, uint64_t all, uint64_t offset, uint64_t bytes, sl_error *err) {
    if (offset <= all && bytes <= all - offset)
        return (gpu_span){buffer, offset, bytes};
    sl_fail(err, SL_ERR_ARGUMENT, "%llu bytes at offset %llu of a block of %llu", (unsigned long long)bytes,
            (unsigned long long)offset, (unsigned long long)all);
    return (gpu_span){0};
}

gpu_span gpu_span_of(sl_ops_gpu *o, const void *p, uint64_t bytes, sl_error *err) {
    const gpu_region *out = &o->out;
    if (out->base && (uintptr_t)p - (uintptr_t)out->base < out->bytes)
        return part_of(out->twin, out->bytes, (uint64_t)((const uint8_t *)p - out->base), bytes, err);
    const gpu_region *r = region_of(o, p, bytes, err);
    if (!r)
        return (gpu_span){0};
    return part_of(r->twin ? r->twin : r->buffer, r->bytes, (uint64_t)((const uint8_t *)p - r->base), bytes, err);
}

gpu_span gpu_host_span(sl_ops_gpu *o, const void *p, uint64_t bytes, sl_error *err) {
    const gpu_region *r = region_of(o, p, bytes, err);
    if (!r)
        return (gpu_span){0};
    return part_of(r->buffer, r->twin ? r->exchanged : r->bytes, (uint64_t)((const uint8_t *)p - r->base), bytes, err);
}

/* ---- slabs ------------------------------------------------------------------------------------------------------- */

void gpu_slabs_forget(sl_ops_gpu *o, gpu_slabs *s) {
    s->known = 0;
    s->pieces = 0;
    gpu_homes_retell(o, s);
}

static int piece_of(gpu_slabs *s, const gpu_span *slab) {
    for (int i = 0; i < s->pieces; i++)
        if (s->piece[i].buffer == slab->buffer)
            return i;
    if (s->pieces == SL_SLAB_COUNT)
        return -1;
    s->piece[s->pieces] = (gpu_span){slab->buffer, 0, sl_gpu_buffer_size(slab->buffer)};
    return s->pieces++;
}

/* On a device with memory of its own: all chunks are pieces. */
static void see_homes(const sl_ops_gpu *o, gpu_slabs *s) {
    for (int i = 0; i < o->homes.chunks; i++)
        s->piece[i] = (gpu_span){o->homes.chunk[i], 0, sl_gpu_buffer_size(o->homes.chunk[i])};
    s->pieces = o->homes.chunks;
}

static void resolve_homes(sl_ops_gpu *o, gpu_slabs *s, uint8_t *const *slab, size_t count) {
    bool changed = s->known < count || s->pieces != o->homes.chunks;
    for (; s->known < count; s->known++)
        s->entry[s->known] = gpu_home_find(o, s, slab[s->known]);
    see_homes(o, s);
    if (changed)
        gpu_homes_sweep(o, s);
}

/* Not before a step wants it: what has no room fails the steps that need it, and no others. */
bool gpu_slabs_settle(sl_ops_gpu *o, gpu_slabs *s, uint8_t *const *slab, size_t i, uint64_t bytes, sl_error *err) {
    if (!o->apart || s->entry[i] != GPU_HOMELESS)
        return true;
    if (!gpu_home_of(o, s, slab[i], bytes, &s->entry[i], err)) {
        s->entry[i] = GPU_HOMELESS;
        return false;
    }
    see_homes(o, s);
    return true;
}

bool gpu_slabs_resolve(sl_ops_gpu *o, gpu_slabs *s, uint8_t *const *slab, size_t count, uint64_t bytes,
                       const char *what, sl_error *err) {
    void *list = s->entry;
    if (s->known > count) /* they were told anew */
        gpu_slabs_forget(o, s);
    if (!sl_grow(&list, &s->capacity, count, sizeof *s->entry))
        return sl_fail(err, SL_ERR_MEMORY, "out of memory");
    s->entry = list;
    if (o->apart) {
        resolve_homes(o, s, slab, count);
        return true;
    }
    for (; s->known < count; s->known++) {
        gpu_span at = gpu_span_of(o, slab[s->known], bytes, err);
        int piece = at.buffer ? piece_of(s, &at) : 0;
        if (!at.buffer)
            return false;
        if (piece < 0)
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "%s in more than %d pieces of memory, which is what kernels can see", what, SL_SLAB_COUNT);
        s->entry[s->known] = (uint64_t)piece << 56 | at.offset;
    }
    return true;
}

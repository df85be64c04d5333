/* Handles and reference counts. */
#include "gpu/core.h"

#include <stdlib.h>

enum { CELL_ALIGN = 64, CHUNK_CELLS = 64, QUARANTINE = 512 };

struct gpu_cell {
    _Alignas(CELL_ALIGN) sl_gpu *gpu;
    gpu_object *object; /* NULL: free */
    gpu_cell *next;     /* free ones */
    uint8_t tag;
};

static const char *const kind_names[] = {
    [GPU_LIBRARY] = "library", [GPU_PIPELINE] = "pipeline", [GPU_BUFFER] = "buffer", [GPU_STREAM] = "stream",
    [GPU_LIST] = "list",       [GPU_EVENT] = "event",       [GPU_REPLAY] = "replay",
};

/* ---- objects ----------------------------------------------------------------------------------------------------- */

void *gpu_object_new(sl_gpu *g, gpu_kind kind, size_t size, sl_error *err) {
    gpu_object *o = calloc(1, size);
    if (!o)
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for %zu bytes", size);
    o->gpu = g;
    o->kind = kind;
    atomic_init(&o->refs, 1);
    return o;
}

void *gpu_hold(void *object) {
    gpu_object *o = object;
    if (o)
        atomic_fetch_add_explicit(&o->refs, 1, memory_order_relaxed);
    return object;
}

void *gpu_hold_live(void *object) {
    gpu_object *o = object;
    int refs = atomic_load_explicit(&o->refs, memory_order_relaxed);
    while (refs > 0)
        if (atomic_compare_exchange_weak(&o->refs, &refs, refs + 1))
            return object;
    return NULL;
}

static void destroy(gpu_object *o) {
    switch (o->kind) {
    case GPU_LIBRARY:
        gpu_library_destroy((gpu_library *)o);
        break;
    case GPU_PIPELINE:
        gpu_pipeline_destroy((gpu_pipeline *)o);
        break;
    case GPU_BUFFER:
        gpu_buffer_destroy((gpu_buffer *)o);
        break;
    case GPU_STREAM:
        gpu_stream_destroy((gpu_stream *)o);
        break;
    case GPU_LIST:
        gpu_list_destroy((gpu_list *)o);
        break;
    case GPU_EVENT:
        gpu_event_destroy((gpu_event *)o);
        break;
    case GPU_REPLAY:
        gpu_replay_destroy((gpu_replay *)o);
        break;
    case GPU_MEMORY:
        gpu_root_destroy((gpu_root *)o);
        break;
    case GPU_SUBMISSION:
        gpu_submission_destroy((gpu_submission *)o);
        break;
    case GPU_FAILURE:
        break;
    }
    free(o);
}

void gpu_drop(void *object) {
    gpu_object *o = object;
    if (o && atomic_fetch_sub_explicit(&o->refs, 1, memory_order_acq_rel) == 1)
        destroy(o);
}

/* ---- cells ------------------------------------------------------------------------------------------------------- */

static void cell_put(gpu_cells *c, gpu_cell *cell) {
    cell->object = NULL;
    cell->next = NULL;
    if (c->newest)
        c->newest->next = cell;
    else
        c->oldest = cell;
    c->newest = cell;
    c->free_count++;
}

static bool add_chunk(sl_gpu *g) {
    gpu_cells *c = &g->cells;
    if (!sl_grow((void **)&c->chunks, &c->chunk_capacity, c->chunk_count + 1, sizeof(gpu_cell *)))
        return false;
    gpu_cell *chunk = aligned_alloc(CELL_ALIGN, CHUNK_CELLS * sizeof *chunk);
    if (!chunk)
        return false;
    c->chunks[c->chunk_count++] = chunk;
    for (size_t i = 0; i < CHUNK_CELLS; i++) {
        chunk[i] = (gpu_cell){.gpu = g};
        cell_put(c, &chunk[i]);
    }
    return true;
}

/* The cell that was freed longest ago, and new ones rather than one freed a short while ago. */
static gpu_cell *cell_get(sl_gpu *g) {
    gpu_cells *c = &g->cells;
    if (c->free_count <= QUARANTINE && !add_chunk(g) && c->free_count == 0)
        return NULL;
    gpu_cell *cell = c->oldest;
    c->oldest = cell->next;
    if (!c->oldest)
        c->newest = NULL;
    c->free_count--;
    return cell;
}

void gpu_cells_free(gpu_cells *c) {
    for (size_t i = 0; i < c->chunk_count; i++)
        free(c->chunks[i]);
    free(c->chunks);
    *c = (gpu_cells){0};
}

/* ---- handles ----------------------------------------------------------------------------------------------------- */

static gpu_cell *cell_of(const void *handle) {
    return (gpu_cell *)((uintptr_t)handle & ~(uintptr_t)(CELL_ALIGN - 1));
}

void *gpu_handle_new(void *object, sl_error *err) {
    gpu_object *o = object;
    sl_gpu *g = o->gpu;
    uintptr_t handle = 0;
    pthread_mutex_lock(&g->lock);
    gpu_cell *cell = cell_get(g);
    if (cell) {
        cell->object = o;
        cell->tag = (uint8_t)((cell->tag + 1) & (CELL_ALIGN - 1));
        handle = (uintptr_t)cell | cell->tag;
        g->cells.live[o->kind]++;
    }
    pthread_mutex_unlock(&g->lock);
    if (!cell) {
        gpu_drop(o);
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for a handle");
    }
    return (void *)handle;
}

/* Under the lock. */
static gpu_object *object_of(gpu_cell *cell, const void *handle, gpu_kind kind) {
    bool live = cell->object && cell->tag == ((uintptr_t)handle & (CELL_ALIGN - 1)) && cell->object->kind == kind;
    return live ? cell->object : NULL;
}

void *gpu_take(const void *handle, gpu_kind kind, sl_error *err) {
    if (!handle)
        return sl_fail_null(err, SL_ERR_ARGUMENT, "no %s: the handle is NULL", kind_names[kind]);
    gpu_cell *cell = cell_of(handle);
    pthread_mutex_lock(&cell->gpu->lock);
    gpu_object *o = gpu_hold(object_of(cell, handle, kind));
    pthread_mutex_unlock(&cell->gpu->lock);
    if (o)
        return o;
    if (kind == GPU_LIST)
        return sl_fail_null(err, SL_ERR_ARGUMENT, "the list was submitted, kept or freed before: begin another");
    return sl_fail_null(err, SL_ERR_ARGUMENT, "the %s was freed before", kind_names[kind]);
}

void *gpu_handle_end(void *handle, gpu_kind kind) {
    if (!handle)
        return NULL;
    gpu_cell *cell = cell_of(handle);
    sl_gpu *g = cell->gpu;
    pthread_mutex_lock(&g->lock);
    gpu_object *o = object_of(cell, handle, kind);
    if (o) {
        cell_put(&g->cells, cell);
        g->cells.live[kind]--;
    }
    pthread_mutex_unlock(&g->lock);
    return o;
}

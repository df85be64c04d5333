#include "ops/ops_memory.h"

#include <stdlib.h>

static sl_buffer add_buffer(ops_memory *m, void *base, uint64_t bytes, sl_error *err) {
    for (size_t i = 1; i < m->buffer_count; i++) {
        if (!m->buffers[i].base) {
            m->buffers[i] = (ops_buffer){base, bytes};
            return (sl_buffer)i;
        }
    }
    void *list = m->buffers;
    if (!sl_grow(&list, &m->buffer_capacity, m->buffer_count + 1, sizeof *m->buffers)) {
        sl_fail(err, SL_ERR_MEMORY, "out of memory");
        return 0;
    }
    m->buffers = list;
    m->buffers[m->buffer_count] = (ops_buffer){base, bytes};
    return (sl_buffer)m->buffer_count++;
}

bool ops_memory_init(ops_memory *m, sl_mem *mem, sl_error *err) {
    *m = (ops_memory){.mem = mem};
    add_buffer(m, NULL, 0, err); /* number 0 is none */
    return m->buffer_count == 1;
}

void ops_memory_clear(ops_memory *m) {
    for (size_t i = 0; i < m->span_count; i++)
        sl_mem_span_free(m->mem, m->spans[i]);
    free(m->spans);
    free(m->buffers);
    free(m->kv_slabs);
    free(m->state_slabs);
}

sl_buffer ops_memory_wrap(ops_memory *m, void *base, uint64_t bytes, sl_error *err) {
    if (!base) {
        sl_fail(err, SL_ERR_ARGUMENT, "no memory given to wrap");
        return 0;
    }
    return add_buffer(m, base, bytes, err);
}

void ops_memory_unwrap(ops_memory *m, sl_buffer b) {
    if (b && b < m->buffer_count)
        m->buffers[b] = (ops_buffer){0};
}

sl_buffer ops_memory_scratch(ops_memory *m, uint64_t bytes, sl_error *err) {
    void *list = m->spans;
    if (!sl_grow(&list, &m->span_capacity, m->span_count + 1, sizeof *m->spans)) {
        sl_fail(err, SL_ERR_MEMORY, "out of memory");
        return 0;
    }
    m->spans = list;
    void *p = sl_mem_span(m->mem, bytes, SL_USE_SCRATCH, err);
    if (!p)
        return 0;
    m->spans[m->span_count++] = p;
    return add_buffer(m, p, bytes, err);
}

void ops_memory_scratch_free(ops_memory *m, sl_buffer b) {
    for (size_t i = 0; i < m->span_count; i++) {
        if (m->spans[i] == m->buffers[b].base) {
            sl_mem_span_free(m->mem, m->spans[i]);
            m->spans[i] = m->spans[--m->span_count];
            break;
        }
    }
    ops_memory_unwrap(m, b);
}

void ops_memory_set_kv(ops_memory *m, const sl_kv_layout *layout) {
    m->kv = *layout;
    m->kv_count = 0;
}

void ops_memory_set_state(ops_memory *m, const sl_state_layout *layout) {
    m->state = *layout;
    m->state_count = 0;
}

static bool add_slab(uint8_t ***slabs, size_t *count, size_t *capacity, void *slab, sl_error *err) {
    void *list = *slabs;
    if (!sl_grow(&list, capacity, *count + 1, sizeof **slabs))
        return sl_fail(err, SL_ERR_MEMORY, "out of memory");
    *slabs = list;
    (*slabs)[(*count)++] = slab;
    return true;
}

bool ops_memory_add_kv_slab(ops_memory *m, void *slab, sl_error *err) {
    return add_slab(&m->kv_slabs, &m->kv_count, &m->kv_capacity, slab, err);
}

bool ops_memory_add_state_slab(ops_memory *m, void *slab, sl_error *err) {
    return add_slab(&m->state_slabs, &m->state_count, &m->state_capacity, slab, err);
}

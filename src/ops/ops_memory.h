/* Private to ops: what every implementation knows of memory: buffers by number, scratch it gave out, KV slabs, the
 * source of experts; and the checks of programs and steps against it. */
#ifndef SL_OPS_MEMORY_H
#define SL_OPS_MEMORY_H

#include "ops/program.h"

typedef struct ops_buffer {
    uint8_t *base; /* NULL: free entry */
    uint64_t bytes;
} ops_buffer;

typedef struct ops_memory {
    sl_mem *mem;
    ops_buffer *buffers; /* [0] is none */
    size_t buffer_count, buffer_capacity;
    void **spans; /* scratch given out */
    size_t span_count, span_capacity;
    sl_kv_layout kv;
    uint8_t **kv_slabs;
    size_t kv_count, kv_capacity;
    sl_state_layout state; /* layers 0: none was set */
    bool keeps;            /* what its field of this name must be */
    uint8_t **state_slabs;
    size_t state_count, state_capacity;
    sl_expert_source experts;
} ops_memory;

/* Every implementation begins with these two. */
typedef struct ops_common {
    sl_ops base;
    ops_memory known;
} ops_common;

bool ops_memory_init(ops_memory *m, sl_mem *mem, sl_error *err);
void ops_memory_clear(ops_memory *m);
/* 0: error */
sl_buffer ops_memory_wrap(ops_memory *m, void *base, uint64_t bytes, sl_error *err);
void ops_memory_unwrap(ops_memory *m, sl_buffer b);
sl_buffer ops_memory_scratch(ops_memory *m, uint64_t bytes, sl_error *err);
void ops_memory_scratch_free(ops_memory *m, sl_buffer b);
void ops_memory_set_kv(ops_memory *m, const sl_kv_layout *layout);
bool ops_memory_add_kv_slab(ops_memory *m, void *slab, sl_error *err);
void ops_memory_set_state(ops_memory *m, const sl_state_layout *layout);
bool ops_memory_add_state_slab(ops_memory *m, void *slab, sl_error *err);

static inline bool has_weight(const sl_weight *w) {
    return w->buffer != 0;
}

/* ops_check.c: that every operand of a program lies in its buffer; that what a step says of rows, sequences and pages
 * fits the program. */
bool ops_check_program(const ops_memory *m, const sl_program *p, sl_error *err);
/* Before attention and delta: rows behind a failed one of their sequence fail too. */
void ops_spread_failures(const sl_step *s);
/* Do two layers rotate alike, so that a step's angles serve both? */
bool ops_same_rotation(const sl_rope *a, const sl_rope *b);
bool ops_check_step(const ops_memory *m, const sl_program *p, const sl_step *step, sl_error *err);

#endif

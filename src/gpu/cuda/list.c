/* Commands to a queue. Kernels take pointers and offsets as parameters; arguments that are bytes lie in one block of
 * device memory, in the order of the commands. */
#include "gpu/cuda/cuda.h"

#include <string.h>

enum { ARGUMENT_UNIT = 16, DYNAMIC_UNIT = 16 };

/* ---- bytes ---------------------------------------------------------------------------------------------------------
 */

static uint64_t bytes_of(const gpu_command *c) {
    uint64_t n = 0;
    for (size_t i = 0; c->kind == GPU_DISPATCH && i < c->u.dispatch.bound_count; i++)
        if (!c->u.dispatch.bound[i].memory)
            n += sl_round_up(c->u.dispatch.bound[i].length, ARGUMENT_UNIT);
    return n;
}

uint64_t cuda_argument_bytes(const gpu_command *list, size_t n) {
    uint64_t all = 0;
    for (size_t i = 0; i < n; i++)
        all += bytes_of(&list[i]);
    return all;
}

void cuda_arguments_fill(const gpu_command *list, size_t n, uint8_t *to) {
    for (size_t i = 0; i < n; i++) {
        const gpu_command *c = &list[i];
        for (size_t k = 0; c->kind == GPU_DISPATCH && k < c->u.dispatch.bound_count; k++) {
            const gpu_bound *b = &c->u.dispatch.bound[k];
            if (b->memory)
                continue;
            uint64_t whole = sl_round_up(b->length, ARGUMENT_UNIT);
            memcpy(to, b->bytes, b->length);
            memset(to + b->length, 0, whole - b->length);
            to += whole;
        }
    }
}

/* ---- dispatches ----------------------------------------------------------------------------------------------------
 */

typedef struct call {
    cuda_address address[SL_GPU_SLOTS]; /* by slot; what is not bound shows zeros */
    uint32_t offset[SL_GPU_SLOTS];      /* of threadgroup memory, by slot */
    uint32_t dynamic;
    void *parameter[CUDA_PARAMETERS];
} call;

static void bind(call *x, gpu_device *d, const gpu_command *c, const cuda_arguments *arguments, uint64_t *at) {
    for (int i = 0; i < SL_GPU_SLOTS; i++) {
        x->address[i] = d->zeros;
        x->offset[i] = 0;
    }
    for (size_t i = 0; i < c->u.dispatch.bound_count; i++) {
        const gpu_bound *b = &c->u.dispatch.bound[i];
        if (b->memory) {
            x->address[b->slot] = cuda_at(b->memory, b->offset);
            continue;
        }
        x->address[b->slot] = arguments->device + *at;
        *at += sl_round_up(b->length, ARGUMENT_UNIT);
    }
    x->dynamic = 0;
    for (size_t i = 0; i < c->u.dispatch.length_count; i++) {
        const sl_gpu_threadgroup_length *l = &c->u.dispatch.lengths[i];
        x->offset[l->slot] = x->dynamic;
        x->dynamic += (uint32_t)sl_round_up(l->bytes, DYNAMIC_UNIT);
    }
}

static bool dispatch(gpu_device *d, cuda_queue queue, const gpu_command *c, const cuda_arguments *arguments,
                     uint64_t *at, sl_error *err) {
    call x;
    const cuda_pipeline *p = c->u.dispatch.pipeline;
    const uint32_t *g = c->u.dispatch.groups, *t = c->u.dispatch.threads;
    bind(&x, d, c, arguments, at);
    for (int i = 0; i < p->parameters; i++) {
        int slot = p->parameter[i].slot;
        x.parameter[i] = p->parameter[i].threadgroup ? (void *)&x.offset[slot] : (void *)&x.address[slot];
    }
    cuda_result r = d->api.launch(p->function, g[0], g[1], g[2], t[0], t[1], t[2], x.dynamic, queue, x.parameter, NULL);
    return cuda_check(d, r, err, "launching kernel %s, %u x %u x %u threadgroups of %u x %u x %u", p->name, g[0], g[1],
                      g[2], t[0], t[1], t[2]);
}

/* ---- copies, fills
 * --------------------------------------------------------------------------------------------------- */

/* The driver copies within memory that was pinned in one call. */
static bool copy(gpu_device *d, cuda_queue queue, const gpu_command *c, sl_error *err) {
    cuda_address to = cuda_at(c->u.copy.to, c->u.copy.to_offset);
    cuda_address from = cuda_at(c->u.copy.from, c->u.copy.from_offset);
    for (uint64_t left = c->u.copy.bytes, n; left; left -= n, to += n, from += n) {
        uint64_t a = cuda_pages_run(d, to), b = cuda_pages_run(d, from);
        n = a < left ? a : left;
        n = b < n ? b : n;
        if (!cuda_check(d, d->api.copy(to, from, n, queue), err, "a copy of %llu bytes", (unsigned long long)n))
            return false;
    }
    return true;
}

static bool fill(gpu_device *d, cuda_queue queue, const gpu_command *c, sl_error *err) {
    cuda_address to = cuda_at(c->u.fill.to, c->u.fill.offset);
    uint32_t word = c->u.fill.value * UINT32_C(0x01010101);
    for (uint64_t left = c->u.fill.bytes, n; left; left -= n, to += n) {
        uint64_t run = cuda_pages_run(d, to);
        n = run < left ? run : left;
        if (!cuda_check(d, d->api.set_words(to, word, n / 4, queue), err, "a fill of %llu bytes",
                        (unsigned long long)n))
            return false;
    }
    return true;
}

static bool encode_one(cuda_stream *s, cuda_queue queue, const gpu_command *c, const cuda_arguments *arguments,
                       uint64_t *at, sl_error *err) {
    switch (c->kind) {
    case GPU_DISPATCH:
        return dispatch(s->device, queue, c, arguments, at, err);
    case GPU_COPY:
        return copy(s->device, queue, c, err);
    case GPU_FILL:
        return fill(s->device, queue, c, err);
    case GPU_BARRIER: /* a queue's commands run in their order */
        return true;
    default:
        return sl_fail(err, SL_ERR_ARGUMENT, "cuda: a command of kind %d among those without events", (int)c->kind);
    }
}

bool cuda_encode(cuda_stream *s, cuda_queue queue, const gpu_command *list, size_t n, const cuda_arguments *arguments,
                 uint64_t *at, sl_error *err) {
    for (size_t i = 0; i < n; i++)
        if (!encode_one(s, queue, &list[i], arguments, at, err))
            return false;
    return true;
}

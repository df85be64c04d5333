/* Commands to a queue. Kernels take pointers, offsets of threadgroup memory, and structs of arguments as parameters;
 * other bytes that are bound lie in one block of device memory, in the order of the commands. */
#include "gpu/cuda/cuda.h"

#include <string.h>

enum {
    ARGUMENT_UNIT = 16,
    DYNAMIC_UNIT = 16,
    VALUES = 4096 - 12 * SL_GPU_SLOTS /* bytes of parameters, beside the pointers */
};

/* ---- bytes ---- */

/* Is a buffer bound where the kernel takes a value? Then it is run in the form with pointers. */
static bool wants_pointers(const gpu_command *c) {
    const cuda_pipeline *p = c->u.dispatch.pipeline;
    for (size_t i = 0; i < c->u.dispatch.bound_count; i++)
        if (c->u.dispatch.bound[i].memory && p->value[c->u.dispatch.bound[i].slot])
            return true;
    return false;
}

/* Does it go into the block of arguments? */
static bool in_block(const gpu_command *c, const gpu_bound *b, bool pointers) {
    const cuda_pipeline *p = c->u.dispatch.pipeline;
    return !b->memory && (pointers || !p->value[b->slot]);
}

static uint64_t bytes_of(const gpu_command *c) {
    uint64_t n = 0;
    if (c->kind != GPU_DISPATCH)
        return 0;
    bool pointers = wants_pointers(c);
    for (size_t i = 0; i < c->u.dispatch.bound_count; i++)
        if (in_block(c, &c->u.dispatch.bound[i], pointers))
            n += sl_round_up(c->u.dispatch.bound[i].length, ARGUMENT_UNIT);
    return n;
}

uint64_t cuda_argument_bytes(const gpu_command *list, size_t n) {
    uint64_t all = 0;
    for (size_t i = 0; i < n; i++)
        all += bytes_of(&list[i]);
    return all;
}

static uint8_t *put_bytes(const gpu_command *c, uint8_t *to) {
    bool pointers = wants_pointers(c);
    for (size_t k = 0; k < c->u.dispatch.bound_count; k++) {
        const gpu_bound *b = &c->u.dispatch.bound[k];
        if (!in_block(c, b, pointers))
            continue;
        uint64_t whole = sl_round_up(b->length, ARGUMENT_UNIT);
        memcpy(to, b->bytes, b->length);
        memset(to + b->length, 0, whole - b->length);
        to += whole;
    }
    return to;
}

void cuda_arguments_fill(const gpu_command *list, size_t n, uint8_t *to) {
    for (size_t i = 0; i < n; i++)
        if (list[i].kind == GPU_DISPATCH)
            to = put_bytes(&list[i], to);
}

/* ---- dispatches ---- */

typedef struct call {
    cuda_address address[SL_GPU_SLOTS]; /* by slot; what is not bound shows zeros */
    const void *bytes[SL_GPU_SLOTS];    /* by slot, of those passed by value */
    uint32_t length[SL_GPU_SLOTS];
    uint32_t offset[SL_GPU_SLOTS]; /* of threadgroup memory, by slot */
    uint32_t dynamic;
    void *parameter[CUDA_PARAMETERS];
    _Alignas(16) uint8_t value[VALUES]; /* of all that are passed by value */
} call;

static void bind(call *x, gpu_device *d, const gpu_command *c, bool pointers, const cuda_arguments *arguments,
                 uint64_t *at) {
    for (int i = 0; i < SL_GPU_SLOTS; i++) {
        x->address[i] = d->zeros;
        x->bytes[i] = NULL;
        x->offset[i] = 0;
    }
    for (size_t i = 0; i < c->u.dispatch.bound_count; i++) {
        const gpu_bound *b = &c->u.dispatch.bound[i];
        if (b->memory)
            x->address[b->slot] = cuda_at(b->memory, b->offset);
        if (in_block(c, b, pointers)) {
            x->address[b->slot] = arguments->device + *at;
            *at += sl_round_up(b->length, ARGUMENT_UNIT);
        }
        x->bytes[b->slot] = b->bytes;
        x->length[b->slot] = (uint32_t)b->length;
    }
    x->dynamic = 0;
    for (size_t i = 0; i < c->u.dispatch.length_count; i++) {
        const sl_gpu_threadgroup_length *l = &c->u.dispatch.lengths[i];
        x->offset[l->slot] = x->dynamic;
        x->dynamic += (uint32_t)sl_round_up(l->bytes, DYNAMIC_UNIT);
    }
}

/* The bytes of a value, which may be longer than the kernel's type or missing, at `to`. */
static void put_value(const call *x, const cuda_parameter *p, uint8_t *to) {
    uint32_t n = x->bytes[p->slot] ? x->length[p->slot] : 0;
    n = n < p->value ? n : p->value;
    if (n)
        memcpy(to, x->bytes[p->slot], n);
    memset(to + n, 0, p->value - n);
}

static bool set_parameters(call *x, const cuda_pipeline *p, bool pointers, sl_error *err) {
    uint32_t used = 0;
    for (int i = 0; i < p->parameters; i++) {
        const cuda_parameter *q = &p->parameter[i];
        if (q->threadgroup) {
            x->parameter[i] = &x->offset[q->slot];
        } else if (pointers || !q->value) {
            x->parameter[i] = &x->address[q->slot];
        } else if (used + q->value > VALUES) {
            return sl_fail(err, SL_ERR_UNSUPPORTED, "kernel %s: more than %d bytes of arguments", p->name, VALUES);
        } else {
            x->parameter[i] = x->value + used;
            put_value(x, q, x->value + used);
            used += q->value;
        }
    }
    return true;
}

static bool dispatch(gpu_device *d, cuda_queue queue, const gpu_command *c, const cuda_arguments *arguments,
                     uint64_t *at, sl_error *err) {
    call x;
    cuda_pipeline *p = c->u.dispatch.pipeline;
    const uint32_t *g = c->u.dispatch.groups, *t = c->u.dispatch.threads;
    bool pointers = wants_pointers(c);
    cuda_function f = pointers ? cuda_pipeline_pointers(d, p, err) : p->code.function;
    bind(&x, d, c, pointers, arguments, at);
    if (!f || !set_parameters(&x, p, pointers, err))
        return false;
    cuda_result r = d->api.launch(f, g[0], g[1], g[2], t[0], t[1], t[2], x.dynamic, queue, x.parameter, NULL);
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

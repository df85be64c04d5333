/* A list of commands to the encoders of one command buffer.
 *
 * Dispatches share concurrent compute encoders; copies and fills have blit encoders; events stand between encoders.
 * Buffers are untracked, so a barrier inside an encoder orders its dispatches, and one fence, waited for at the begin
 * and updated at the end of every encoder, orders the encoders of a stream. */
#include "gpu/metal/metal.h"

#include <string.h>

typedef enum encoder_kind { NO_ENCODER, COMPUTE, BLIT } encoder_kind;

typedef struct encoding {
    gpu_device *d;
    const metal_api *api;
    const metal_stream *stream;
    metal_id buffer, encoder; /* borrowed from the pool of the submission */
    encoder_kind kind;
    bool fenced;    /* an encoder of this list has updated the fence */
    bool unordered; /* the encoder has had commands since its begin or the last barrier */
    metal_id pipeline;
    struct {
        metal_id buffer;
        uint64_t offset;
    } slots[SL_GPU_SLOTS]; /* what the compute encoder has bound: buffers only */
    sl_error *err;
} encoding;

/* ---- encoders ---------------------------------------------------------------------------------------------------- */

static void end_encoder(encoding *e) {
    if (e->kind == NO_ENCODER)
        return;
    METAL_SEND(e->api, updateFence, e->encoder, e->stream->fence);
    METAL_SEND(e->api, endEncoding, e->encoder);
    e->fenced = true;
    e->kind = NO_ENCODER;
    e->encoder = NULL;
    e->pipeline = NULL;
    e->unordered = false;
    memset(e->slots, 0, sizeof e->slots);
}

/* Concurrent dispatch gave wrong results on GPUs with memory of their own (others' reports). */
static metal_id new_compute_encoder(encoding *e) {
    metal_uint type = e->d->base.info.unified ? METAL_DISPATCH_CONCURRENT : METAL_DISPATCH_SERIAL;
    return METAL_SEND(e->api, computeCommandEncoder, e->buffer, type);
}

static bool need_encoder(encoding *e, encoder_kind kind) {
    if (e->kind == kind)
        return true;
    end_encoder(e);
    e->encoder = kind == COMPUTE ? new_compute_encoder(e) : METAL_SEND(e->api, blitCommandEncoder, e->buffer);
    if (!e->encoder)
        return sl_fail(e->err, SL_ERR_DEVICE, "metal: no encoder to be had from a command buffer");
    e->kind = kind;
    if (e->fenced || e->stream->fence_updated)
        METAL_SEND(e->api, waitForFence, e->encoder, e->stream->fence);
    return true;
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

static void bind_buffer(encoding *e, const gpu_bound *b) {
    metal_id buffer = b->memory->handle;
    uint64_t offset = b->memory->offset + b->offset;
    if (e->slots[b->slot].buffer != buffer)
        METAL_SEND(e->api, setBuffer, e->encoder, buffer, offset, (metal_uint)b->slot);
    else if (e->slots[b->slot].offset != offset)
        METAL_SEND(e->api, setBufferOffset, e->encoder, offset, (metal_uint)b->slot);
    e->slots[b->slot].buffer = buffer;
    e->slots[b->slot].offset = offset;
}

static void bind_bytes(encoding *e, const gpu_bound *b) {
    METAL_SEND(e->api, setBytes, e->encoder, b->bytes, b->length, (metal_uint)b->slot);
    e->slots[b->slot].buffer = NULL;
}

static metal_size size_of(const uint32_t n[3]) {
    return (metal_size){n[0], n[1], n[2]};
}

static bool encode_dispatch(encoding *e, const gpu_command *c) {
    if (!need_encoder(e, COMPUTE))
        return false;
    if (e->pipeline != c->u.dispatch.pipeline) {
        e->pipeline = c->u.dispatch.pipeline;
        METAL_SEND(e->api, setPipeline, e->encoder, e->pipeline);
    }
    for (size_t i = 0; i < c->u.dispatch.bound_count; i++) {
        const gpu_bound *b = &c->u.dispatch.bound[i];
        if (b->memory)
            bind_buffer(e, b);
        else
            bind_bytes(e, b);
    }
    for (size_t i = 0; i < c->u.dispatch.length_count; i++)
        METAL_SEND(e->api, setThreadgroupMemoryLength, e->encoder, c->u.dispatch.lengths[i].bytes,
                   (metal_uint)c->u.dispatch.lengths[i].slot);
    METAL_SEND(e->api, dispatchThreadgroups, e->encoder, size_of(c->u.dispatch.groups), size_of(c->u.dispatch.threads));
    e->unordered = true;
    return true;
}

static bool encode_copy(encoding *e, const gpu_command *c) {
    const gpu_memory *to = c->u.copy.to, *from = c->u.copy.from;
    if (!need_encoder(e, BLIT))
        return false;
    METAL_SEND(e->api, copyFromBuffer, e->encoder, from->handle, from->offset + c->u.copy.from_offset, to->handle,
               to->offset + c->u.copy.to_offset, c->u.copy.bytes);
    e->unordered = true;
    return true;
}

static bool encode_fill(encoding *e, const gpu_command *c) {
    const gpu_memory *to = c->u.fill.to;
    if (!need_encoder(e, BLIT))
        return false;
    metal_range range = {to->offset + c->u.fill.offset, c->u.fill.bytes};
    METAL_SEND(e->api, fillBuffer, e->encoder, to->handle, range, c->u.fill.value);
    e->unordered = true;
    return true;
}

/* Blit encoders have no barrier of their own: the next one begins at the fence. */
static bool encode_barrier(encoding *e) {
    if (e->kind == BLIT)
        end_encoder(e);
    else if (e->unordered)
        METAL_SEND(e->api, memoryBarrier, e->encoder, METAL_BARRIER_BUFFERS);
    e->unordered = false;
    return true;
}

static bool encode_event(encoding *e, const gpu_command *c) {
    end_encoder(e);
    if (c->kind == GPU_WAIT)
        METAL_SEND(e->api, encodeWaitForEvent, e->buffer, c->u.event.event, c->u.event.value);
    else
        METAL_SEND(e->api, encodeSignalEvent, e->buffer, c->u.event.event, c->u.event.value);
    return true;
}

static bool encode_command(encoding *e, const gpu_command *c) {
    switch (c->kind) {
    case GPU_DISPATCH:
        return encode_dispatch(e, c);
    case GPU_COPY:
        return encode_copy(e, c);
    case GPU_FILL:
        return encode_fill(e, c);
    case GPU_BARRIER:
        return encode_barrier(e);
    case GPU_WAIT:
    case GPU_SIGNAL:
        return encode_event(e, c);
    }
    return sl_fail(e->err, SL_ERR_ARGUMENT, "metal: a command of unknown kind %d", (int)c->kind);
}

bool metal_encode(gpu_device *d, const metal_stream *s, metal_id buffer, const gpu_command *list, size_t n,
                  bool *fenced, sl_error *err) {
    encoding e = {.d = d, .api = &d->api, .stream = s, .buffer = buffer, .err = err};
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++)
        ok = encode_command(&e, &list[i]);
    end_encoder(&e); /* after an error too: Metal ends the process over an open encoder */
    *fenced = e.fenced;
    return ok;
}

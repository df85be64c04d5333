/* Command buffers and encoders: records what is to be done and holds callers to the rules. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

enum { LONGEST_BYTES = 4096, THREADGROUP_BYTES = 32768 };

typedef enum encoder_kind { COMPUTE_ENCODER, BLIT_ENCODER } encoder_kind;

typedef struct encoder {
    object base;
    command_buffer *buffer; /* held */
    encoder_kind kind;
    bool serial, ended, waited; /* waited: for a fence */
    bool begun;                 /* has commands */
    pipeline *pipeline;
    slot slots[SLOTS];
    uint32_t threadgroup[SLOTS];
} encoder;

static class *buffer_class, *compute_class, *blit_class;

/* ---- command buffers
 * ------------------------------------------------------------------------------------------------- */

command *add_command(command_buffer *b, command_kind kind) {
    void *commands = b->commands;
    if (!sl_grow(&commands, &b->capacity, b->count + 1, sizeof *b->commands))
        abort();
    b->commands = commands;
    command *c = &b->commands[b->count++];
    *c = (command){.kind = kind};
    return c;
}

static void command_buffer_gone(object *o) {
    command_buffer *b = (command_buffer *)o;
    if (b->committed && atomic_load(&b->status) < 4)
        violate("a command buffer was freed while it was in flight");
    if (!b->committed)
        atomic_fetch_sub(&b->queue->unfinished, 1);
    for (size_t i = 0; i < b->count; i++)
        for (size_t k = 0; k < SLOTS; k++)
            free(b->commands[i].slots[k].bytes);
    free(b->commands);
    free(b->label);
    release_object(b->error);
    release_object(&b->queue->base);
}

static object *queue_buffer(queue *q, selector s) {
    if (nil_wanted(STANDIN_NIL_COMMAND_BUFFER))
        return NULL;
    if (atomic_fetch_add(&q->unfinished, 1) >= (long)q->limit)
        violate("a queue of %lu command buffers was asked for one more: the call would not return", q->limit);
    command_buffer *b = (command_buffer *)make_object(buffer_class);
    b->queue = (queue *)retain_object(&q->base);
    return autorelease_object(&b->base);
}

static bool may_encode(const command_buffer *b, const char *what) {
    if (b->committed)
        violate("%s on a command buffer that was committed", what);
    else if (b->open)
        violate("%s while another encoder of the command buffer is open", what);
    else
        return true;
    return false;
}

static object *new_encoder(command_buffer *b, class *c, encoder_kind kind, bool serial) {
    if (!may_encode(b, "an encoder"))
        return NULL;
    encoder *e = (encoder *)make_object(c);
    e->buffer = (command_buffer *)retain_object(&b->base);
    e->kind = kind;
    e->serial = serial;
    b->open = e;
    control.encoders++;
    return autorelease_object(&e->base);
}

static object *buffer_compute(command_buffer *b, selector s, uinteger type) {
    return nil_wanted(STANDIN_NIL_COMPUTE_ENCODER) ? NULL : new_encoder(b, compute_class, COMPUTE_ENCODER, type == 0);
}

static object *buffer_blit(command_buffer *b, selector s) {
    return nil_wanted(STANDIN_NIL_BLIT_ENCODER) ? NULL : new_encoder(b, blit_class, BLIT_ENCODER, false);
}

static void add_event(command_buffer *b, command_kind kind, object *event, uinteger value) {
    if (!is_event(event)) {
        violate("an event was encoded that is none");
    } else if (may_encode(b, "an event")) {
        command *c = add_command(b, kind);
        c->event = (shared_event *)event;
        c->value = value;
    }
}

static void buffer_signal(command_buffer *b, selector s, object *event, uinteger value) {
    add_event(b, SIGNAL, event, value);
}

static void buffer_wait(command_buffer *b, selector s, object *event, uinteger value) {
    add_event(b, WAIT, event, value);
}

static void buffer_label(command_buffer *b, selector s, object *label) {
    free(b->label);
    b->label = sl_strdup(label ? string_text(label) : "");
    size_t n = strlen(control.labels);
    if (n + strlen(b->label) + 2 < sizeof control.labels) {
        strcat(control.labels, b->label);
        strcat(control.labels, ",");
    }
}

static void buffer_commit(command_buffer *b, selector s) {
    if (b->committed) {
        violate("commit of a command buffer that was committed");
        return;
    }
    if (b->open) {
        violate("commit with an encoder open");
        return;
    }
    control.commits++;
    queue_commit(b->queue, b);
}

static uinteger buffer_status(command_buffer *b, selector s) {
    return (uinteger)atomic_load(&b->status);
}

static object *buffer_error(command_buffer *b, selector s) {
    return atomic_load(&b->status) == 5 ? b->error : NULL;
}

static double buffer_begin(command_buffer *b, selector s) {
    return b->begin;
}

static double buffer_end(command_buffer *b, selector s) {
    return b->end;
}

/* ---- both encoders
 * --------------------------------------------------------------------------------------------------- */

static void encoder_gone(object *o) {
    encoder *e = (encoder *)o;
    if (!e->ended)
        violate("an encoder was freed that was not ended");
    for (size_t i = 0; i < SLOTS; i++)
        free(e->slots[i].bytes);
    release_object(&e->buffer->base);
}

static bool is_open(const encoder *e, const char *what) {
    if (e->ended)
        violate("%s after endEncoding", what);
    return !e->ended;
}

static void encoder_end(encoder *e, selector s) {
    if (!is_open(e, "endEncoding"))
        return;
    if (e->begun && !e->buffer->fence)
        violate("untracked buffers, and no fence updated at the end of an encoder");
    e->ended = true;
    e->buffer->open = NULL;
    add_command(e->buffer, BARRIER);
}

static void encoder_wait(encoder *e, selector s, object *fence) {
    if (!is_open(e, "waitForFence:"))
        return;
    const command_buffer *b = e->buffer;
    if (!is_fence(fence) || fence != (b->fence ? b->fence : b->queue->fence))
        violate("waitForFence: of a fence that nothing has updated");
    if (e->begun)
        violate("waitForFence: after commands");
    e->waited = true;
}

static void encoder_update(encoder *e, selector s, object *fence) {
    if (!is_open(e, "updateFence:"))
        return;
    if (!is_fence(fence))
        violate("updateFence: of what is no fence");
    e->buffer->fence = fence;
}

/* The first command of an encoder: what earlier encoders did to untracked buffers is ordered by a fence only. */
static bool begin_command(encoder *e, const char *what) {
    if (!is_open(e, what))
        return false;
    if (!e->begun && (e->buffer->any_encoder || e->buffer->queue->any_encoder) && !e->waited)
        violate("untracked buffers, and no fence between the encoders of a queue");
    e->begun = true;
    e->buffer->any_encoder = true;
    return true;
}

/* ---- compute
 * --------------------------------------------------------------------------------------------------------- */

static void compute_pipeline(encoder *e, selector s, object *p) {
    if (!is_open(e, "setComputePipelineState:"))
        return;
    if (!is_pipeline(p))
        violate("setComputePipelineState: of what is none");
    else
        e->pipeline = (pipeline *)p;
}

static bool good_index(const encoder *e, const char *what, uinteger index) {
    if (!is_open(e, what))
        return false;
    if (index >= SLOTS)
        violate("%s: index %lu, the last is %d", what, index, SLOTS - 1);
    return index < SLOTS;
}

static void set_slot(slot *to, slot value) {
    free(to->bytes);
    *to = value;
}

static void compute_buffer(encoder *e, selector s, object *b, uinteger offset, uinteger index) {
    if (!good_index(e, "setBuffer:", index))
        return;
    control.set_buffers++;
    if (!is_buffer(b) || offset >= ((buffer *)b)->length) {
        violate("setBuffer: nil or an offset beyond it, at index %lu", index);
        return;
    }
    set_slot(&e->slots[index], (slot){.buffer = (buffer *)b, .offset = offset});
}

static void compute_offset(encoder *e, selector s, uinteger offset, uinteger index) {
    if (!good_index(e, "setBufferOffset:", index))
        return;
    control.set_offsets++;
    if (!e->slots[index].buffer || offset >= e->slots[index].buffer->length)
        violate("setBufferOffset: without a buffer or beyond it, at index %lu", index);
    else
        e->slots[index].offset = offset;
}

static void compute_bytes(encoder *e, selector s, const void *bytes, uinteger length, uinteger index) {
    if (!good_index(e, "setBytes:", index))
        return;
    control.set_bytes++;
    if (!bytes || length == 0 || length > LONGEST_BYTES) {
        violate("setBytes: of %lu bytes, at most %d", length, LONGEST_BYTES);
        return;
    }
    uint8_t *copy = (uint8_t *)sl_strndup(bytes, length);
    set_slot(&e->slots[index], (slot){.bytes = copy, .length = length});
}

static void compute_threadgroup(encoder *e, selector s, uinteger length, uinteger index) {
    if (!good_index(e, "setThreadgroupMemoryLength:", index))
        return;
    if (length % 16 || length > THREADGROUP_BYTES)
        violate("setThreadgroupMemoryLength: %lu is no multiple of 16 or above %d", length, THREADGROUP_BYTES);
    else
        e->threadgroup[index] = (uint32_t)length;
}

static void compute_barrier(encoder *e, selector s, uinteger scope) {
    if (!is_open(e, "memoryBarrierWithScope:"))
        return;
    if (scope != 1)
        violate("memoryBarrierWithScope: %lu", scope);
    control.barriers++;
    add_command(e->buffer, BARRIER);
}

static bool check_slot(const encoder *e, const sl_gpu_arg *a) {
    const slot *given = &e->slots[a->slot];
    uint64_t have = given->buffer ? given->buffer->length - given->offset : given->length;
    const char *name = entry_kernel(e->pipeline->entry)->name;
    if (!given->buffer && !given->bytes)
        violate("kernel %s: nothing is bound at index %d (%s)", name, a->slot, a->name);
    else if (given->buffer && is_dead(&given->buffer->base))
        violate("kernel %s: the buffer at index %d is gone", name, a->slot);
    else if (have < a->least)
        violate("kernel %s: %llu bytes are bound at index %d (%s), which reads %u", name, (unsigned long long)have,
                a->slot, a->name, a->least);
    else
        return true;
    return false;
}

static bool check_threadgroup(const encoder *e, const sl_gpu_arg *a, uint64_t *sum) {
    *sum += e->threadgroup[a->slot];
    if (e->threadgroup[a->slot])
        return true;
    violate("kernel %s: no length of threadgroup memory %d", entry_kernel(e->pipeline->entry)->name, a->slot);
    return false;
}

static bool check_arguments(const encoder *e) {
    entry *entered = e->pipeline->entry;
    const msl_kernel *k = entry_kernel(entered);
    uint64_t sum = entry_static_memory(entered);
    for (size_t i = 0; i < k->arg_count; i++) {
        const sl_gpu_arg *a = &k->args[i].arg;
        if (entry_argument_unused(entered, i))
            continue;
        if (a->kind == SL_GPU_ARG_THREADGROUP ? !check_threadgroup(e, a, &sum) : !check_slot(e, a))
            return false;
    }
    if (sum > THREADGROUP_BYTES)
        violate("kernel %s: %llu bytes of threadgroup memory, at most %d", k->name, (unsigned long long)sum,
                THREADGROUP_BYTES);
    return sum <= THREADGROUP_BYTES;
}

static bool check_size(const encoder *e, size3 groups, size3 threads) {
    uinteger product = threads.width * threads.height * threads.depth, most = control.pipeline_threads;
    if (e->pipeline->entry->max_threads && e->pipeline->entry->max_threads < most)
        most = e->pipeline->entry->max_threads;
    if (!product || product > most)
        violate("a threadgroup of %lu x %lu x %lu threads, at most %lu", threads.width, threads.height, threads.depth,
                most);
    else if (!groups.width || !groups.height || !groups.depth)
        violate("a grid of %lu x %lu x %lu threadgroups", groups.width, groups.height, groups.depth);
    else
        return true;
    return false;
}

static void copy_size(uint32_t to[3], size3 from) {
    to[0] = (uint32_t)from.width;
    to[1] = (uint32_t)from.height;
    to[2] = (uint32_t)from.depth;
}

static void compute_dispatch(encoder *e, selector s, size3 groups, size3 threads) {
    if (!begin_command(e, "dispatchThreadgroups:"))
        return;
    if (!e->pipeline) {
        violate("a dispatch without a pipeline");
        return;
    }
    if (!check_arguments(e) || !check_size(e, groups, threads))
        return;
    command *c = add_command(e->buffer, DISPATCH);
    c->pipeline = e->pipeline;
    for (size_t i = 0; i < SLOTS; i++) {
        c->slots[i] = e->slots[i];
        if (e->slots[i].bytes)
            c->slots[i].bytes = (uint8_t *)sl_strndup((char *)e->slots[i].bytes, e->slots[i].length);
        c->threadgroup[i] = e->threadgroup[i];
    }
    copy_size(c->groups, groups);
    copy_size(c->threads, threads);
    if (e->serial)
        add_command(e->buffer, BARRIER);
}

/* ---- blit
 * ------------------------------------------------------------------------------------------------------------ */

static bool check_range(const object *o, uint64_t offset, uint64_t bytes, const char *what) {
    const buffer *b = (const buffer *)o;
    if (is_buffer(o) && bytes && bytes <= b->length && offset <= b->length - bytes)
        return true;
    violate("%s: %llu bytes at %llu of a buffer that has less, or nil", what, (unsigned long long)bytes,
            (unsigned long long)offset);
    return false;
}

static void blit_copy(encoder *e, selector s, object *from, uinteger from_offset, object *to, uinteger to_offset,
                      uinteger bytes) {
    if (!begin_command(e, "copyFromBuffer:") || !check_range(from, from_offset, bytes, "copyFromBuffer:") ||
        !check_range(to, to_offset, bytes, "copyFromBuffer:"))
        return;
    command *c = add_command(e->buffer, COPY);
    c->from = (buffer *)from;
    c->from_offset = from_offset;
    c->to = (buffer *)to;
    c->to_offset = to_offset;
    c->bytes = bytes;
}

static void blit_fill(encoder *e, selector s, object *to, range r, uint8_t value) {
    if (!begin_command(e, "fillBuffer:") || !check_range(to, r.location, r.length, "fillBuffer:"))
        return;
    command *c = add_command(e->buffer, FILL);
    c->to = (buffer *)to;
    c->to_offset = r.location;
    c->bytes = r.length;
    c->byte = value;
}

/* ---- registration
 * ---------------------------------------------------------------------------------------------------- */

static void register_encoders(void) {
    static const method_row both[] = {
        {"endEncoding", encoder_end}, {"waitForFence:", encoder_wait}, {"updateFence:", encoder_update}, {0}};
    static const method_row compute[] = {{"setComputePipelineState:", compute_pipeline},
                                         {"setBuffer:offset:atIndex:", compute_buffer},
                                         {"setBufferOffset:atIndex:", compute_offset},
                                         {"setBytes:length:atIndex:", compute_bytes},
                                         {"setThreadgroupMemoryLength:atIndex:", compute_threadgroup},
                                         {"memoryBarrierWithScope:", compute_barrier},
                                         {"dispatchThreadgroups:threadsPerThreadgroup:", compute_dispatch},
                                         {0}};
    static const method_row blit[] = {{"copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:", blit_copy},
                                      {"fillBuffer:range:value:", blit_fill},
                                      {0}};
    compute_class = make_class("MTLComputeCommandEncoder", sizeof(encoder), encoder_gone);
    add_methods(compute_class, both);
    add_methods(compute_class, compute);
    blit_class = make_class("MTLBlitCommandEncoder", sizeof(encoder), encoder_gone);
    add_methods(blit_class, both);
    add_methods(blit_class, blit);
}

void register_commands(void) {
    static const method_row buffer_methods[] = {{"computeCommandEncoderWithDispatchType:", buffer_compute},
                                                {"blitCommandEncoder", buffer_blit},
                                                {"encodeSignalEvent:value:", buffer_signal},
                                                {"encodeWaitForEvent:value:", buffer_wait},
                                                {"setLabel:", buffer_label},
                                                {"commit", buffer_commit},
                                                {"status", buffer_status},
                                                {"error", buffer_error},
                                                {"GPUStartTime", buffer_begin},
                                                {"GPUEndTime", buffer_end},
                                                {0}};
    buffer_class = make_class("MTLCommandBuffer", sizeof(command_buffer), command_buffer_gone);
    add_methods(buffer_class, buffer_methods);
    register_encoders();
}

/* queue.c makes the class of queues. */
void add_queue_methods(class *c) {
    add_methods(c, (const method_row[]){{"commandBufferWithUnretainedReferences", queue_buffer}, {0}});
}

/* Lists: commands being encoded, what they use, what they keep alive. */
#include "gpu/core.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_HAZARDS = 256, /* ranges between barriers: then one more barrier is cheaper than looking through more */
    LOOK_BACK = 16,     /* how far a repeated use or object is looked for */
    MOST_COMMANDS = 1 << 24
};

/* ---- begin, free ------------------------------------------------------------------------------------------------- */

static const char *copy_label(gpu_list *l, const char *label) {
    size_t n = strlen(label);
    char *copy = gpu_arena_take(&l->arena, n + 1);
    if (copy)
        memcpy(copy, label, n);
    return copy;
}

/* The stream's reference goes to the list. */
static sl_gpu_list *begin(gpu_stream *s, const char *label, sl_error *err) {
    gpu_list *l = gpu_object_new(s->o.gpu, GPU_LIST, sizeof *l, err);
    if (!l)
        return NULL;
    l->stream = gpu_hold(s);
    l->label = copy_label(l, label ? label : "list");
    if (!l->label) {
        gpu_drop(l);
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for a list");
    }
    return gpu_handle_new(l, err);
}

sl_gpu_list *sl_gpu_begin(sl_gpu_stream *stream, const char *label, sl_error *err) {
    gpu_stream *s = gpu_take(stream, GPU_STREAM, err);
    sl_gpu_list *l = NULL;
    if (s && gpu_stream_enter(s, err)) {
        l = begin(s, label, err);
        gpu_stream_leave(s);
    }
    gpu_drop(s);
    return l;
}

void gpu_list_destroy(gpu_list *l) {
    gpu_events_release(l);
    for (size_t i = 0; i < l->held_count; i++)
        gpu_drop(l->held[i]);
    free(l->held);
    free(l->commands);
    free(l->uses);
    free(l->hazards.items);
    free(l->events);
    free(l->marks);
    gpu_arena_free(&l->arena);
    gpu_drop(l->stream);
}

void sl_gpu_list_free(sl_gpu_list *l) {
    gpu_drop(gpu_handle_end(l, GPU_LIST));
}

gpu_list *gpu_list_enter(sl_gpu_list *handle, sl_error *err) {
    gpu_list *l = gpu_take(handle, GPU_LIST, err);
    if (l && gpu_stream_enter(l->stream, err))
        return l;
    gpu_drop(l);
    return NULL;
}

void gpu_list_leave(gpu_list *l) {
    gpu_stream_leave(l->stream);
    gpu_drop(l);
}

/* ---- adding ------------------------------------------------------------------------------------------------------ */

static bool covers(const gpu_range *a, const gpu_range *b) {
    return a->space == b->space && a->root == b->root && a->begin <= b->begin && a->end >= b->end &&
           (a->writes || !b->writes);
}

static void add_use(gpu_list *l, const gpu_range *r) {
    size_t least = l->use_count > LOOK_BACK ? l->use_count - LOOK_BACK : 0;
    for (size_t i = l->use_count; i > least; i--)
        if (covers(&l->uses[i - 1], r))
            return;
    l->uses[l->use_count++] = *r;
}

static void add_held(gpu_list *l, void *object) {
    size_t least = l->held_count > LOOK_BACK ? l->held_count - LOOK_BACK : 0;
    for (size_t i = l->held_count; i > least; i--)
        if (l->held[i - 1] == object)
            return;
    l->held[l->held_count++] = gpu_hold(object);
}

static bool reserve(gpu_list *l, size_t ranges, size_t objects, sl_error *err) {
    if (l->count >= MOST_COMMANDS)
        return sl_fail(err, SL_ERR_ARGUMENT, "list '%s' has %zu commands, expected at most %d", l->label, l->count,
                       MOST_COMMANDS);
    bool ok = sl_grow((void **)&l->commands, &l->capacity, l->count + 2, sizeof *l->commands) &&
              sl_grow((void **)&l->uses, &l->use_capacity, l->use_count + ranges, sizeof *l->uses) &&
              sl_grow((void **)&l->hazards.items, &l->hazards.capacity, l->hazards.count + ranges, sizeof(gpu_range)) &&
              sl_grow((void **)&l->held, &l->held_capacity, l->held_count + objects + 1, sizeof *l->held) &&
              sl_grow((void **)&l->events, &l->event_capacity, l->event_count + 1, sizeof *l->events);
    return ok || sl_fail(err, SL_ERR_MEMORY, "list '%s': out of memory for command %zu", l->label, l->count);
}

static void add_barrier(gpu_list *l) {
    l->hazards.count = 0;
    if (l->count && l->commands[l->count - 1].kind != GPU_BARRIER)
        l->commands[l->count++] = (gpu_command){.kind = GPU_BARRIER, .label = "barrier"};
}

bool gpu_list_add(gpu_list *l, const gpu_command *c, const gpu_range *ranges, size_t range_count, void *const *objects,
                  size_t object_count, sl_error *err) {
    if (!reserve(l, range_count, object_count, err))
        return false;
    if (l->hazards.count + range_count > MOST_HAZARDS || gpu_hazards_conflict(&l->hazards, ranges, range_count))
        add_barrier(l);
    for (size_t i = 0; i < range_count; i++) {
        l->hazards.items[l->hazards.count++] = ranges[i];
        add_use(l, &ranges[i]);
    }
    for (size_t i = 0; i < object_count; i++)
        add_held(l, objects[i]);
    l->commands[l->count++] = *c;
    l->dispatches += c->kind == GPU_DISPATCH;
    return true;
}

/* ---- copy, fill, barrier ----------------------------------------------------------------------------------------- */

/* Metal's copies and fills are of whole 4-byte words. */
static bool check_words(const gpu_buffer *b, const char *what, uint64_t offset, uint64_t bytes, sl_error *err) {
    if (bytes == 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: 0 bytes, expected at least 4", what);
    if (!gpu_check_range(b, offset, bytes, what, err))
        return false;
    uint64_t at = b->root->m.offset + b->offset + offset;
    return (at % 4 == 0 && bytes % 4 == 0) ||
           sl_fail(err, SL_ERR_ARGUMENT, "%s: %llu bytes at offset %llu, expected multiples of 4", what,
                   (unsigned long long)bytes, (unsigned long long)at);
}

static bool same_device(const gpu_list *l, const gpu_buffer *b, const char *what, sl_error *err) {
    return b->o.gpu == l->o.gpu || sl_fail(err, SL_ERR_ARGUMENT, "%s: the buffer is of another device", what);
}

static bool encode_copy(gpu_list *l, gpu_buffer *to, uint64_t to_offset, gpu_buffer *from, uint64_t from_offset,
                        uint64_t bytes, sl_error *err) {
    if (!same_device(l, to, "copy to", err) || !same_device(l, from, "copy from", err) ||
        !check_words(to, "copy to", to_offset, bytes, err) || !check_words(from, "copy from", from_offset, bytes, err))
        return false;
    gpu_range r[2] = {gpu_buffer_range(from, from_offset, bytes, false), gpu_buffer_range(to, to_offset, bytes, true)};
    if (gpu_ranges_conflict(&r[0], &r[1]))
        return sl_fail(err, SL_ERR_ARGUMENT, "copy of %llu bytes from offset %llu to %llu: the ranges overlap",
                       (unsigned long long)bytes, (unsigned long long)from_offset, (unsigned long long)to_offset);
    gpu_command c = {.kind = GPU_COPY, .label = "copy"};
    c.u.copy.to = &to->root->m;
    c.u.copy.from = &from->root->m;
    c.u.copy.to_offset = to->offset + to_offset;
    c.u.copy.from_offset = from->offset + from_offset;
    c.u.copy.bytes = bytes;
    return gpu_list_add(l, &c, r, 2, (void *[]){to->root, from->root}, 2, err);
}

bool sl_gpu_encode_copy(sl_gpu_list *list, sl_gpu_buffer *to, uint64_t to_offset, sl_gpu_buffer *from,
                        uint64_t from_offset, uint64_t bytes, sl_error *err) {
    gpu_list *l = gpu_list_enter(list, err);
    if (!l)
        return false;
    gpu_buffer *a = gpu_take(to, GPU_BUFFER, err), *b = a ? gpu_take(from, GPU_BUFFER, err) : NULL;
    bool ok = b && encode_copy(l, a, to_offset, b, from_offset, bytes, err);
    gpu_drop(a);
    gpu_drop(b);
    gpu_list_leave(l);
    return ok;
}

static bool encode_fill(gpu_list *l, gpu_buffer *b, uint64_t offset, uint64_t bytes, uint8_t value, sl_error *err) {
    if (!same_device(l, b, "fill", err) || !check_words(b, "fill", offset, bytes, err))
        return false;
    gpu_range r = gpu_buffer_range(b, offset, bytes, true);
    gpu_command c = {.kind = GPU_FILL, .label = "fill"};
    c.u.fill.to = &b->root->m;
    c.u.fill.offset = b->offset + offset;
    c.u.fill.bytes = bytes;
    c.u.fill.value = value;
    return gpu_list_add(l, &c, &r, 1, (void *[]){b->root}, 1, err);
}

bool sl_gpu_encode_fill(sl_gpu_list *list, sl_gpu_buffer *buffer, uint64_t offset, uint64_t bytes, uint8_t value,
                        sl_error *err) {
    gpu_list *l = gpu_list_enter(list, err);
    if (!l)
        return false;
    gpu_buffer *b = gpu_take(buffer, GPU_BUFFER, err);
    bool ok = b && encode_fill(l, b, offset, bytes, value, err);
    gpu_drop(b);
    gpu_list_leave(l);
    return ok;
}

bool sl_gpu_encode_barrier(sl_gpu_list *list, sl_error *err) {
    gpu_list *l = gpu_list_enter(list, err);
    if (!l)
        return false;
    bool ok = reserve(l, 0, 0, err);
    if (ok)
        add_barrier(l);
    gpu_list_leave(l);
    return ok;
}

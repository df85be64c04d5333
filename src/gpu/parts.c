/* Marked lists: what lies between two marks is handed to the device as a submission of its own, so that it has a time
 * of its own on any device, and a span. */
#include "gpu/core.h"

#include <stdlib.h>
#include <string.h>

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

static bool add_mark(gpu_list *l, const char *label, sl_error *err) {
    size_t n = strlen(label) + 1;
    char *copy = gpu_arena_take(&l->arena, n);
    if (!copy || !sl_grow((void **)&l->marks, &l->mark_capacity, l->mark_count + 1, sizeof *l->marks))
        return sl_fail(err, SL_ERR_MEMORY, "list '%s': out of memory for mark '%s'", l->label, label);
    memcpy(copy, label, n);
    l->marks[l->mark_count++] = (gpu_mark){copy, l->count};
    return true;
}

/* Parts are ordered by the device as submissions are; the barrier is for a list that is kept, which runs whole. */
bool sl_gpu_encode_mark(sl_gpu_list *list, const char *label, sl_error *err) {
    if (!label)
        return sl_fail(err, SL_ERR_ARGUMENT, "sl_gpu_encode_mark: the label is NULL");
    if (!sl_gpu_encode_barrier(list, err))
        return false;
    gpu_list *l = gpu_list_enter(list, err);
    if (!l)
        return false;
    bool ok = add_mark(l, label, err);
    gpu_list_leave(l);
    return ok;
}

/* ---- handing over ------------------------------------------------------------------------------------------------ */

/* Commands [from, to) are a part, if there is anything in them to do. */
static void add_part(gpu_submission *sub, const char *label, size_t from, size_t to) {
    const gpu_list *l = sub->list;
    gpu_part p = {.label = label, .first = from, .count = to - from};
    size_t barriers = 0;
    for (size_t i = from; i < to; i++) {
        p.dispatches += l->commands[i].kind == GPU_DISPATCH;
        barriers += l->commands[i].kind == GPU_BARRIER;
    }
    if (p.count > barriers)
        sub->parts[sub->part_count++] = p;
}

static bool make_parts(gpu_submission *sub, sl_error *err) {
    const gpu_list *l = sub->list;
    sub->parts = calloc(l->mark_count + 1, sizeof *sub->parts);
    if (!sub->parts)
        return sl_fail(err, SL_ERR_MEMORY, "list '%s': out of memory for its parts", l->label);
    add_part(sub, l->label, 0, l->marks[0].at);
    for (size_t i = 0; i < l->mark_count; i++)
        add_part(sub, l->marks[i].label, l->marks[i].at, i + 1 < l->mark_count ? l->marks[i + 1].at : l->count);
    return true;
}

/* A part that the device does not take ends the list there: those before it run, so it fails as one that has run. */
bool gpu_parts_submit(gpu_submission *sub, void *stream, sl_error *err) {
    const sl_gpu *g = sub->o.gpu;
    if (!make_parts(sub, err))
        return false;
    for (size_t i = 0; i < sub->part_count; i++) {
        gpu_part *p = &sub->parts[i];
        sl_error why = {0};
        if (g->driver->submit(g->device, stream, p->label, sub->list->commands + p->first, p->count, &p->driver, &why))
            continue;
        sub->part_count = i;
        if (i == 0) {
            if (err)
                *err = why;
            return false;
        }
        sub->result.failed = true;
        sub->result.error = why;
    }
    return true;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static void take_result(gpu_submission *sub, const gpu_result *r) {
    if (r->failed && !sub->result.failed) {
        sub->result.failed = true;
        sub->result.error = r->error;
    }
    if (sub->result.begin == 0)
        sub->result.begin = r->begin;
    if (r->end > sub->result.end)
        sub->result.end = r->end;
}

bool gpu_parts_wait(gpu_submission *sub, uint64_t deadline) {
    const sl_gpu *g = sub->o.gpu;
    for (; sub->parts_done < sub->part_count; sub->parts_done++) {
        gpu_part *p = &sub->parts[sub->parts_done];
        uint64_t now = sl_now_ns();
        if (!g->driver->wait(g->device, p->driver, deadline > now ? deadline - now : 0, &p->result))
            return false;
        take_result(sub, &p->result);
    }
    return true;
}

void gpu_parts_free(gpu_submission *sub) {
    const sl_gpu *g = sub->o.gpu;
    for (size_t i = 0; i < sub->part_count; i++)
        if (sub->parts[i].driver)
            g->driver->release(g->device, sub->parts[i].driver);
    free(sub->parts);
}

/* One dispatch: its bindings are collected, its pipeline is found, it is encoded into the step's list. */
#include "ops/ops_gpu.h"

gpu_call gpu_call_begin(gpu_run *r, gpu_file file, uint32_t constants, const void *args, size_t size,
                        const char *entry) {
    gpu_call c = {.r = r, .pipeline = gpu_pipeline(r->o, file, entry, constants, r->err)};
    c.binding[c.count++] = (sl_gpu_binding){.slot = 0, .bytes = args, .length = size};
    return c;
}

/* What this variant does not read gets the step's buffer: aligned for any type, and written by the host only. */
void gpu_call_bind(gpu_call *c, int slot, const void *p, uint64_t bytes) {
    const gpu_scratch *m = &c->r->o->scratch;
    if (!c->pipeline || c->r->o->wanted)
        return;
    gpu_span s =
        p ? gpu_span_of(c->r->o, p, bytes, c->r->err) : gpu_span_of(c->r->o, m->step, m->step_bytes, c->r->err);
    if (!s.buffer) {
        c->pipeline = NULL;
        return;
    }
    c->binding[c->count++] = (sl_gpu_binding){
        .slot = slot, .buffer = s.buffer, .offset = s.offset, .length = s.length, .access = p ? 0 : SL_GPU_READ};
}

void gpu_call_bytes(gpu_call *c, int slot, const void *bytes, uint64_t size) {
    c->binding[c->count++] = (sl_gpu_binding){.slot = slot, .bytes = bytes, .length = size};
}

void gpu_call_pieces(gpu_call *c, const gpu_span *piece, int pieces, sl_gpu_access access) {
    for (int i = 0; i < SL_SLAB_COUNT; i++) {
        const gpu_span *s = &piece[i < pieces ? i : 0];
        c->binding[c->count++] = (sl_gpu_binding){
            .slot = SL_SLAB_FIRST + i, .buffer = s->buffer, .offset = s->offset, .length = s->length, .access = access};
    }
}

void gpu_call_threadgroup(gpu_call *c, int slot, uint32_t bytes) {
    c->length[c->length_count++] = (sl_gpu_threadgroup_length){slot, bytes};
}

void gpu_call_weight(gpu_call *c, int slot, const sl_weight *w) {
    for (int i = 0; i < 3; i++) {
        uint64_t bytes = sl_matrix_part_bytes(&w->matrix, i);
        gpu_call_bind(c, slot + i, bytes ? gpu_at(c->r->o, w->buffer, w->offset[i]) : NULL, bytes);
    }
}

/* In whole steps of 4 KiB, so that lists of token after token are the same. */
uint64_t gpu_step_told(const gpu_run *r) {
    const gpu_scratch *m = &r->o->scratch;
    uint64_t bytes = sl_round_up(m->step_used, 4096);
    return bytes < m->step_bytes ? bytes : m->step_bytes;
}

static bool tell_step(gpu_run *r) {
    if (r->o->step_told)
        return true;
    r->o->step_told = true;
    return gpu_push(r, r->o->scratch.counters, GPU_COUNTERS + gpu_step_told(r)); /* they lie together */
}

bool gpu_list_begin(gpu_run *r) {
    if (r->o->list)
        return true;
    r->o->list = sl_gpu_begin(r->o->stream, "step", r->err);
    return r->o->list && gpu_phase_mark(r) && tell_step(r);
}

bool gpu_call_end(gpu_call *c, uint32_t x, uint32_t y, uint32_t z, uint32_t threads) {
    if (!c->pipeline || c->r->o->wanted)
        return c->pipeline != NULL;
    sl_gpu_dispatch d = {.pipeline = c->pipeline,
                         .groups = {x, y, z},
                         .threads = {threads, 1, 1},
                         .bindings = c->binding,
                         .binding_count = c->count,
                         .lengths = c->length,
                         .length_count = c->length_count};
    return gpu_list_begin(c->r) && sl_gpu_encode(c->r->o->list, &d, c->r->err);
}

bool gpu_submit_now(gpu_run *r, sl_gpu_ticket *ticket) {
    sl_gpu_list *l = r->o->list;
    *ticket = 0;
    r->o->list = NULL;
    if (!l)
        return true;
    r->o->times.gpu_lists++;
    return sl_gpu_submit(l, ticket, r->err);
}

bool gpu_book(gpu_run *r, sl_gpu_ticket ticket) {
    double seconds = 0;
    bool ok = !ticket || sl_gpu_wait(r->o->stream, ticket, GPU_TIMEOUT_NS, &seconds, r->err);
    r->o->times.gpu_time += (uint64_t)(seconds * 1e9);
    return ok;
}

bool gpu_await(gpu_run *r, sl_gpu_ticket ticket) {
    if (!ticket)
        return true;
    uint64_t began = sl_now_ns();
    bool ok = gpu_book(r, ticket);
    r->o->times.gpu_waits++;
    r->o->times.gpu_wait_time += sl_now_ns() - began;
    gpu_forget_passing(r->o);
    return ok;
}

bool gpu_finish(gpu_run *r) {
    sl_gpu_ticket ticket;
    return gpu_submit_now(r, &ticket) && gpu_await(r, ticket);
}

/* Checking mode: reports as text. Each is one line that says kernel, source line, what was touched and by whom. */
#include "gpu/soft/soft.h"

#include <stdio.h>
#include <string.h>

enum { LINE = 900 };

void soft_place_of(const soft_pipeline *p, uintptr_t pc, char *out, size_t size) {
    const soft_image *image = p->image;
    const char *file = NULL;
    out[0] = 0;
    if (pc < image->begin || pc >= image->end)
        return;
    soft_lines *l = soft_lines_new(p->library->object, p->library->size);
    int line = l ? soft_lines_find(l, pc - image->begin, &file) : 0;
    if (line > 0)
        snprintf(out, size, "%s:%d", file, line);
    soft_lines_free(l);
}

/* A text that grows, cut at its end. */
typedef struct text {
    char *at;
    size_t left;
} text;

static void put(text *t, const char *fmt, ...) SL_PRINTF(2, 3);
static void put(text *t, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(t->at, t->left, fmt, args);
    va_end(args);
    size_t used = n < 0 ? 0 : (size_t)n < t->left ? (size_t)n : t->left - 1;
    t->at += used;
    t->left -= used;
}

static void put_thread(text *t, const soft_job *job, uint64_t who, bool with_group) {
    const uint32_t *size = job->command->u.dispatch.threads;
    uint32_t i = (uint32_t)(who % SOFT_MAX_THREADS), p[3];
    put(t, "thread (%u,%u,%u)", i % size[0], i / size[0] % size[1], i / size[0] / size[1]);
    if (!with_group)
        return;
    soft_group_position(job, who / SOFT_MAX_THREADS, p);
    put(t, " of threadgroup (%u,%u,%u)", p[0], p[1], p[2]);
}

/* A return address lies behind the call it belongs to. */
static void put_place(text *t, const soft_job *job, const soft_report *r) {
    char place[300];
    soft_place_of(job->pipeline, (uintptr_t)r->pc - 1, place, sizeof place);
    if (r->pc && place[0])
        put(t, "%s: ", place);
    else if (r->line)
        put(t, "line %d: ", r->line);
}

static uint32_t element_size(const soft_job *job, const soft_report *r) {
    const soft_pipeline *p = job->pipeline;
    for (size_t i = 0; i < p->arg_count; i++)
        if (p->args[i].slot == r->slot && (p->args[i].kind == SL_GPU_ARG_THREADGROUP) == (r->variable >= 0) &&
            p->args[i].least > 1)
            return p->args[i].least;
    return r->size ? r->size : 1;
}

static void put_what(text *t, const soft_job *job, const soft_report *r) {
    int64_t element = element_size(job, r);
    int64_t index = r->offset >= 0 ? r->offset / element : -((-r->offset + element - 1) / element);
    if (r->variable >= 0 && r->slot >= 0)
        put(t, "threadgroup memory %d (%s)", r->slot, r->name);
    else if (r->variable >= 0)
        put(t, "threadgroup variable %s", r->name[0] ? r->name : "?");
    else if (r->slot >= 0)
        put(t, "buffer %d%s%s%s", r->slot, r->name[0] ? " (" : "", r->name, r->name[0] ? ")" : "");
    else {
        put(t, "address 0x%llx, which is in nothing that is bound", (unsigned long long)r->address);
        return;
    }
    put(t, " at byte %lld (index %lld) of %llu", (long long)r->offset, (long long)index, (unsigned long long)r->length);
}

static const char *verb(soft_how how) {
    return how == SOFT_READS ? "read" : how == SOFT_WRITES ? "write" : "atomic access";
}

static const char *state_name(soft_state s) {
    switch (s) {
    case SOFT_AT_SIMD:
        return "waits in a SIMD-group function";
    case SOFT_AT_SIMD_BARRIER:
        return "waits at simdgroup_barrier";
    case SOFT_AT_BARRIER:
        return "waits at threadgroup_barrier";
    default:
        return "has returned";
    }
}

static void put_access(text *t, const soft_job *job, const soft_report *r) {
    static const char *const what[] = {
        [SOFT_OUT_OF_BOUNDS] = "out of bounds: ",
        [SOFT_BEYOND_ARRAY] = "out of bounds: ",
        [SOFT_BEYOND_OWN] = "out of bounds: one of the thread's own arrays (or a place that cannot be reached)",
        [SOFT_MISALIGNED] = "misaligned: ",
        [SOFT_READ_ONLY] = "bound for reading only: ",
        [SOFT_UNINITIALISED] = "uninitialised: ",
        [SOFT_RACE] = "race: ",
    };
    put(t, "%s", what[r->kind]);
    if (r->kind == SOFT_MISALIGNED)
        put(t, "%s at an address that is no multiple of %u, ", r->type, r->size);
    if (r->kind == SOFT_BEYOND_ARRAY) {
        put(t, "index %lld of %s", (long long)r->offset, r->name);
    } else if (r->own) {
        put(t, "in the thread's own memory");
    } else if (r->kind != SOFT_BEYOND_OWN) {
        if (r->kind != SOFT_MISALIGNED)
            put(t, "%s of %u bytes, ", verb(r->how), r->size);
        put_what(t, job, r);
    }
    put(t, ", by ");
    put_thread(t, job, r->who, true);
    if (r->kind != SOFT_RACE)
        return;
    char place[300] = "";
    if (r->other_pc)
        soft_place_of(job->pipeline, job->pipeline->image->begin + r->other_pc - 2, place, sizeof place);
    bool groups = r->who / SOFT_MAX_THREADS != r->other / SOFT_MAX_THREADS;
    put(t, ", after a %s%s%s by ", verb(r->other_how), place[0] ? " at " : "", place);
    put_thread(t, job, r->other, groups);
    put(t, groups ? ": nothing orders threadgroups" : ": no barrier between them orders this memory");
}

static void put_apart(text *t, const soft_job *job, const soft_report *r) {
    if (r->kind == SOFT_DIVERGED)
        put(t, "SIMD-group function under divergence: ");
    else
        put(t, r->kind == SOFT_BARRIER_MISSED ? "barrier not reached by all: " : "threads at different barriers: ");
    put_thread(t, job, r->who, true);
    put(t, " is here, ");
    put_thread(t, job, r->other, false);
    put(t, " %s", state_name(r->other_state));
    if (r->other_state != SOFT_DONE)
        put(t, " at line %d", r->other_line);
}

static void write_report(const soft_job *job, const soft_report *r, char *out) {
    text t = {out, LINE};
    put(&t, "%s: ", job->label);
    put_place(&t, job, r);
    if (r->kind <= SOFT_RACE)
        put_access(&t, job, r);
    else
        put_apart(&t, job, r);
}

void soft_report_all(soft_check *c, soft_device *d) {
    char line[LINE];
    if (c->out_of_memory)
        sl_logf(&d->base.log, SL_LOG_WARN, "%s: writes more memory than is watched: races may be missed",
                c->job->label);
    for (int i = 0; i < c->reports; i++) {
        write_report(c->job, &c->report[i], line);
        sl_logf(&d->base.log, SL_LOG_ERROR, "%s", line);
        if (i == 0) {
            sl_fail(&c->job->error, SL_ERR_DEVICE, "%s", line);
            atomic_store(&c->job->failed, true);
        }
    }
}

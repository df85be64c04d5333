/* Kernels compiled side by side. A compiler takes a third of a second for each, a model has dozens, and they are known
 * only when a step encodes them: so the first step of a kind is rehearsed, encoded without a device, and what it asked
 * for is compiled by as many threads as there are cores. What a rehearsal does not meet is compiled when it is wanted.
 */
#include "ops/ops_gpu.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS_MOST = 16 /* a compiler takes some 200 MB */ };

typedef struct gpu_wanted {
    gpu_pipe *list;
    size_t count, capacity;
    bool failed; /* out of memory */
} gpu_wanted;

sl_gpu_pipeline *gpu_want(sl_ops_gpu *o, const gpu_pipe *pipe) {
    static char pending; /* stands for all that will be: nothing looks into it */
    gpu_wanted *w = o->wanted;
    void *list = w->list;
    for (size_t i = 0; i < w->count; i++)
        if (w->list[i].file == pipe->file && w->list[i].constants == pipe->constants &&
            strcmp(w->list[i].entry, pipe->entry) == 0)
            return (sl_gpu_pipeline *)(void *)&pending;
    if (sl_grow(&list, &w->capacity, w->count + 1, sizeof *w->list)) {
        w->list = list;
        w->list[w->count++] = *pipe;
    } else {
        w->failed = true;
    }
    return (sl_gpu_pipeline *)(void *)&pending;
}

/* ---- the rehearsal -------------------------------------------------------------------------------------------------
 */

/* Experts as they will be found: in the device's own slots, or where the store says. */
static bool formats_of(gpu_pass *p) {
    gpu_run *r = p->x->r;
    const sl_expert_source *src = &r->o->known.experts;
    sl_expert_peek peek;
    if (r->o->tier) {
        gpu_pass_aligned(p);
        return true;
    }
    if (!src->peek || !src->peek(src->self, p->x->m->layer, &peek) || !peek.align)
        return false;
    for (int i = 0; i < SL_PROJ_COUNT; i++)
        p->format[i] = gpu_moe_format(p->x->m, i, peek.align);
    return true;
}

static bool rehearse_moe(gpu_run *r, const op *o) {
    gpu_moe x = gpu_moe_of(r, o);
    gpu_pass p = {.x = &x, .table = r->o->scratch.table};
    return gpu_moe_route(&x) && (!has_weight(&x.m->shared[SL_PROJ_GATE]) || gpu_moe_shared(&x)) &&
           (!formats_of(&p) || gpu_pass_encode(&p)) && gpu_moe_combine(&x);
}

static bool rehearse(gpu_run *r) {
    bool ok = true;
    for (size_t i = 0; ok && i < r->p->count; i++) {
        const op *o = &r->p->list[i];
        if (o->kind == OP_CHECKPOINT || gpu_op_is_idle(r, o))
            continue;
        ok = o->kind == OP_MOE ? rehearse_moe(r, o) : gpu_encode_op(r, o);
    }
    return ok;
}

/* ---- compiling ----------------------------------------------------------------------------------------------------
 */

/* First a file's library, for each file; then pipelines. */
typedef struct compiling {
    sl_ops_gpu *o;
    gpu_wanted *w;
    bool libraries;
    atomic_size_t next;
    pthread_mutex_t lock;
    sl_error error; /* the first; code SL_OK: none */
} compiling;

static bool is_first_of_file(const gpu_wanted *w, size_t i) {
    for (size_t k = 0; k < i; k++)
        if (w->list[k].file == w->list[i].file)
            return false;
    return true;
}

static bool compile_one(compiling *c, size_t i, sl_error *err) {
    gpu_pipe *p = &c->w->list[i];
    if (c->libraries)
        return !is_first_of_file(c->w, i) || gpu_library(c->o, p->file, err);
    p->pipeline = gpu_make_pipeline(c->o, p, err);
    return p->pipeline != NULL;
}

static void *compile(void *arg) {
    compiling *c = arg;
    size_t i;
    while ((i = atomic_fetch_add(&c->next, 1)) < c->w->count) {
        sl_error err = {0};
        if (compile_one(c, i, &err))
            continue;
        pthread_mutex_lock(&c->lock);
        if (c->error.code == SL_OK)
            c->error = err;
        pthread_mutex_unlock(&c->lock);
    }
    return NULL;
}

/* This thread is one of them. */
static void compile_all(compiling *c, bool libraries) {
    pthread_t thread[THREADS_MOST];
    int cores = sl_cpu_count(), started = 0;
    size_t most = (size_t)(cores < THREADS_MOST ? cores : THREADS_MOST);
    most = most < c->w->count ? most : c->w->count;
    c->libraries = libraries;
    atomic_store(&c->next, 0);
    while (started + 1 < (int)most && pthread_create(&thread[started], NULL, compile, c) == 0)
        started++;
    compile(c);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
}

static bool compile_wanted(sl_ops_gpu *o, gpu_wanted *w, sl_error *err) {
    compiling c = {.o = o, .w = w, .lock = PTHREAD_MUTEX_INITIALIZER};
    void *list = o->pipes;
    if (w->count == 0)
        return true;
    if (!sl_grow(&list, &o->pipe_capacity, o->pipe_count + w->count, sizeof *o->pipes))
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu kernels", w->count);
    o->pipes = list;
    compile_all(&c, true);
    if (c.error.code == SL_OK)
        compile_all(&c, false);
    for (size_t i = 0; i < w->count; i++)
        if (w->list[i].pipeline)
            o->pipes[o->pipe_count++] = w->list[i];
    if (c.error.code != SL_OK && err)
        *err = c.error;
    return c.error.code == SL_OK;
}

/* Steps of a kind ask for the same kernels, nearly. */
static uint32_t kind_of(const gpu_run *r) {
    const sl_step *s = r->step;
    int32_t last = 0;
    for (int32_t i = 0; i < s->rows; i++)
        last = s->position[i] > last ? s->position[i] : last;
    return 1u << ((s->rows >= GPU_MATMUL_ROWS) + 2 * (s->outs > 0) + 4 * (last >= SL_ATTENTION_SPLIT) +
                  8 * gpu_batch_step(r));
}

bool gpu_warm(const gpu_run *run) {
    gpu_run r = *run;
    sl_ops_gpu *o = r.o;
    gpu_wanted w = {0};
    if (o->warm & kind_of(&r))
        return true;
    o->wanted = &w;
    bool ok = rehearse(&r);
    o->wanted = NULL;
    ok = ok && (!w.failed || sl_fail(r.err, SL_ERR_MEMORY, "out of memory for the list of kernels")) &&
         compile_wanted(o, &w, r.err);
    free(w.list);
    if (ok)
        o->warm |= kind_of(&r);
    return ok;
}

/* Streams: a thread each, which does what it was given in order; events; graphs, which are such work taken down. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- doing ---------------------------------------------------------------------------------------------------------
 */

static void *pointer(uint64_t at) {
    return (void *)(uintptr_t)at;
}

static void break_context(int r) {
    pthread_mutex_lock(&lock);
    if (!broken)
        broken = r;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* A word in memory that host and streams look at: no notice is given of the host's writes. */
static void wait_word(const queue *q, uint64_t at, uint64_t value) {
    const _Atomic uint64_t *word = pointer(at);
    struct timespec t = {.tv_nsec = 50 * 1000};
    while ((int64_t)(atomic_load(word) - value) < 0 && !broken && !q->ending)
        nanosleep(&t, NULL);
}

/* What is asked for holds for the memory that was there then: a copy that is taken down in a graph is none to what is
 * allocated or pinned at the same place later. */
static bool stands(uint64_t at, uint64_t bytes, uint64_t serial) {
    if (!at || memory_serial(at, bytes) == serial)
        return true;
    violate("work uses %llu bytes at %llx, memory that was given back since it was asked for",
            (unsigned long long)bytes, (unsigned long long)at);
    return false;
}

static uint64_t bytes_of(const work *w) {
    return w->what == FILL ? w->bytes * 4 : w->what == COPY ? w->bytes : 8;
}

static bool has_memory(const work *w) {
    return w->what == COPY || w->what == FILL || w->what == WAIT_WORD || w->what == WRITE_WORD;
}

static bool memory_stands(const work *w) {
    return !has_memory(w) || (stands(w->to, bytes_of(w), w->to_serial) && stands(w->from, bytes_of(w), w->from_serial));
}

static uint64_t sum_of(uint64_t at, uint64_t bytes) {
    uint64_t h = 1469598103934665603u;
    for (uint64_t i = 0; i < bytes; i++)
        h = (h ^ ((const uint8_t *)pointer(at))[i]) * 1099511628211u;
    return h | 1;
}

static void check_source(const work *w) {
    if (w->sum && sum_of(w->from, w->bytes) != w->sum)
        violate("%llu bytes of the host changed before they were copied", (unsigned long long)w->bytes);
}

static void run_list(queue *q, const work *w);

static void run(queue *q, const work *w) {
    if (!memory_stands(w)) {
        break_context(LAUNCH_FAILED);
        return;
    }
    switch (w->what) {
    case LAUNCH:
        if (!image_run(w->image, w))
            break_context(ILLEGAL_ADDRESS);
        break;
    case COPY:
        check_source(w);
        memmove(pointer(w->to), pointer(w->from), w->bytes);
        break;
    case FILL:
        for (uint64_t i = 0; i < w->bytes; i++)
            ((uint32_t *)pointer(w->to))[i] = (uint32_t)w->value;
        break;
    case WAIT_WORD:
        wait_word(q, w->to, w->value);
        break;
    case WRITE_WORD:
        atomic_store((_Atomic uint64_t *)pointer(w->to), w->value);
        break;
    case CALL:
        w->call(w->user);
        break;
    case FREE:
        memory_release(w->to);
        break;
    case RUN_GRAPH:
        run_list(q, w->exec->first);
        break;
    case RECORD:
        break;
    }
}

static void run_list(queue *q, const work *w) {
    for (; w && !broken; w = w->next)
        run(q, w);
}

static void free_list(work *w) {
    while (w) {
        work *next = w->next;
        work_free(w);
        w = next;
    }
}

/* With the lock held. */
static void finish(work *w) {
    if (w->what == RECORD) {
        w->mark->time = (double)sl_now_ns() * 1e-6;
        w->mark->pending--;
    }
    if (w->what == RUN_GRAPH && --w->exec->running == 0 && w->exec->dropped) {
        free_list(w->exec->first);
        free(w->exec);
    }
}

static void *queue_main(void *arg) {
    queue *q = arg;
    pthread_mutex_lock(&lock);
    while (!q->ending || q->first) {
        work *w = q->first;
        if (!w || (control.hang && !q->ending)) {
            struct timespec t; /* nobody tells when hang ends */
            clock_gettime(CLOCK_REALTIME, &t);
            t.tv_sec += t.tv_nsec >= 990000000;
            t.tv_nsec = (t.tv_nsec + 10000000) % 1000000000;
            pthread_cond_timedwait(&changed, &lock, &t);
            continue;
        }
        pthread_mutex_unlock(&lock);
        if (!broken || w->what == FREE || w->what == CALL)
            run(q, w);
        pthread_mutex_lock(&lock);
        q->first = w->next;
        if (!q->first)
            q->end = &q->first;
        finish(w);
        work_free(w);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

void work_free(work *w) {
    free(w);
}

static bool waits(const work *w) {
    return w && w->what == WAIT_WORD && (int64_t)(atomic_load((_Atomic uint64_t *)pointer(w->to)) - w->value) < 0;
}

/* CUDA_LAUNCH_BLOCKING=1: whoever launches waits for the end. With the lock held. */
static void wait_for_launch(queue *q) {
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    while (blocking && strcmp(blocking, "1") == 0 && q->first && !broken) {
        if (waits(q->first)) {
            violate("a launch that blocks is given behind a wait for a word that nobody has written");
            break;
        }
        pthread_cond_wait(&changed, &lock);
    }
}

cuda_result queue_put(cuda_queue handle, const work *w) {
    queue *q = object_find(handle, QUEUE);
    work *copy = q ? malloc(sizeof *copy) : NULL;
    if (!copy)
        return q ? CUDA_OUT_OF_MEMORY : INVALID_HANDLE;
    *copy = *w;
    copy->next = NULL;
    if (has_memory(w)) {
        copy->to_serial = memory_serial(w->to, bytes_of(w));
        copy->from_serial = w->from ? memory_serial(w->from, bytes_of(w)) : 0;
    }
    pthread_mutex_lock(&lock);
    work ***end = q->capture ? &q->capture->end : &q->end;
    **end = copy;
    *end = &copy->next;
    if (!q->capture && w->what == RECORD) {
        w->mark->pending++;
        w->mark->recorded = true;
    }
    if (!q->capture && w->what == RUN_GRAPH)
        w->exec->running++;
    pthread_cond_broadcast(&changed);
    if (!q->capture && (w->what == LAUNCH || w->what == RUN_GRAPH))
        wait_for_launch(q);
    pthread_mutex_unlock(&lock);
    return CUDA_OK;
}

static bool within(uint64_t p, uint64_t at, uint64_t bytes) {
    return p - at < bytes;
}

static bool work_uses(const work *w, uint64_t at, uint64_t bytes) {
    uint64_t pointers[CUDA_PARAMETERS];
    if (has_memory(w))
        return within(w->to, at, bytes) || (w->from && within(w->from, at, bytes));
    if (w->what == RUN_GRAPH) {
        for (const work *x = w->exec->first; x; x = x->next)
            if (work_uses(x, at, bytes))
                return true;
    } else if (w->what == LAUNCH) {
        for (uint32_t n = image_pointers(w->image, w, pointers); n--;)
            if (within(pointers[n], at, bytes))
                return true;
    }
    return false;
}

typedef struct search {
    uint64_t at, bytes;
    bool found;
} search;

static void search_queue(object *o, void *user) {
    search *s = user;
    for (const work *w = ((queue *)o)->first; w && !s->found; w = w->next)
        s->found = work_uses(w, s->at, s->bytes);
}

/* In a broken context nothing runs any more. */
bool queues_use(uint64_t at, uint64_t bytes) {
    search s = {at, bytes, false};
    if (!broken)
        object_each(QUEUE, search_queue, &s);
    return s.found;
}

/* ---- streams -------------------------------------------------------------------------------------------------------
 */

#define ENTER(symbol)                                                                                                  \
    cuda_result entered = enter_context(symbol);                                                                       \
    if (entered != CUDA_OK)                                                                                            \
    return entered

EXPORTED cuda_result cuStreamCreate(cuda_queue *out, unsigned flags) {
    ENTER("cuStreamCreate");
    queue *q = calloc(1, sizeof *q);
    q->end = &q->first;
    if (pthread_create(&q->thread, NULL, queue_main, q) != 0) {
        free(q);
        return CUDA_OUT_OF_MEMORY;
    }
    object_add(&q->o, QUEUE);
    *out = (cuda_queue)(void *)q;
    return CUDA_OK;
}

/* What it was given is done first. */
EXPORTED cuda_result cuStreamDestroy_v2(cuda_queue handle) {
    cuda_result r = enter("cuStreamDestroy_v2");
    queue *q = object_take(handle, QUEUE);
    if (!q)
        return INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    q->ending = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(q->thread, NULL);
    free(q);
    return r ? r : broken;
}

static cuda_result put_copy(const char *symbol, uint64_t to, uint64_t from, size_t bytes, cuda_queue handle,
                            bool to_host, bool from_host) {
    ENTER(symbol);
    place target, source;
    if (!memory_within(to, bytes, &target) || !memory_within(from, bytes, &source))
        return CUDA_INVALID_VALUE;
    if ((target == NOWHERE && !to_host) || (source == NOWHERE && !from_host))
        return CUDA_INVALID_VALUE;
    control.copies++;
    work w = {.what = COPY, .to = to, .from = from, .bytes = bytes};
    if (target == NOWHERE || source == NOWHERE) { /* pageable: the driver has what it needs when it returns */
        queue *q = object_find(handle, QUEUE);
        pthread_mutex_lock(&lock);
        while (q && q->first && !broken)
            pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
        memmove(pointer(to), pointer(from), bytes);
        return broken;
    }
    w.sum = from_host && bytes <= 1 << 20 ? sum_of(from, bytes) : 0; /* of copies of the host's, not of a list's */
    return queue_put(handle, &w);
}

EXPORTED cuda_result cuMemcpyAsync(cuda_address to, cuda_address from, size_t bytes, cuda_queue handle) {
    return put_copy("cuMemcpyAsync", to, from, bytes, handle, false, false);
}

EXPORTED cuda_result cuMemcpyHtoDAsync_v2(cuda_address to, const void *from, size_t bytes, cuda_queue handle) {
    return put_copy("cuMemcpyHtoDAsync_v2", to, (uintptr_t)from, bytes, handle, false, true);
}

EXPORTED cuda_result cuMemcpyDtoHAsync_v2(void *to, cuda_address from, size_t bytes, cuda_queue handle) {
    return put_copy("cuMemcpyDtoHAsync_v2", (uintptr_t)to, from, bytes, handle, true, false);
}

EXPORTED cuda_result cuMemsetD32Async(cuda_address to, unsigned value, size_t n, cuda_queue handle) {
    ENTER("cuMemsetD32Async");
    place where;
    work w = {.what = FILL, .to = to, .bytes = n, .value = value};
    return !memory_within(to, n * 4, &where) || where == NOWHERE || to % 4 ? CUDA_INVALID_VALUE : queue_put(handle, &w);
}

static cuda_result put_word(const char *symbol, work_kind what, cuda_queue handle, cuda_address at, uint64_t value) {
    ENTER(symbol);
    place where;
    work w = {.what = what, .to = at, .value = value};
    if (!control.words || !memory_within(at, 8, &where) || where == NOWHERE || at % 8)
        return CUDA_INVALID_VALUE;
    return queue_put(handle, &w);
}

EXPORTED cuda_result cuStreamWaitValue64_v2(cuda_queue handle, cuda_address at, uint64_t value, unsigned flags) {
    return put_word("cuStreamWaitValue64_v2", WAIT_WORD, handle, at, value);
}

EXPORTED cuda_result cuStreamWriteValue64_v2(cuda_queue handle, cuda_address at, uint64_t value, unsigned flags) {
    return put_word("cuStreamWriteValue64_v2", WRITE_WORD, handle, at, value);
}

EXPORTED cuda_result cuLaunchHostFunc(cuda_queue handle, void (*call)(void *), void *user) {
    ENTER("cuLaunchHostFunc");
    work w = {.what = CALL, .call = call, .user = user};
    return queue_put(handle, &w);
}

/* ---- events --------------------------------------------------------------------------------------------------------
 */

EXPORTED cuda_result cuEventCreate(cuda_mark *out, unsigned flags) {
    ENTER("cuEventCreate");
    mark *m = calloc(1, sizeof *m);
    object_add(&m->o, MARK);
    *out = (cuda_mark)(void *)m;
    return CUDA_OK;
}

EXPORTED cuda_result cuEventDestroy_v2(cuda_mark handle) {
    cuda_result r = enter("cuEventDestroy_v2");
    mark *m = object_take(handle, MARK);
    if (!m)
        return INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    while (m->pending) /* the driver keeps it until then */
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    free(m);
    return r ? r : broken;
}

EXPORTED cuda_result cuEventRecord(cuda_mark handle, cuda_queue queue_handle) {
    ENTER("cuEventRecord");
    work w = {.what = RECORD, .mark = object_find(handle, MARK)};
    return w.mark ? queue_put(queue_handle, &w) : INVALID_HANDLE;
}

EXPORTED cuda_result cuEventQuery(cuda_mark handle) {
    ENTER("cuEventQuery");
    mark *m = object_find(handle, MARK);
    if (!m)
        return INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    cuda_result r = broken ? broken : m->pending ? CUDA_NOT_READY : CUDA_OK;
    pthread_mutex_unlock(&lock);
    return r;
}

EXPORTED cuda_result cuEventElapsedTime(float *milliseconds, cuda_mark begin, cuda_mark end) {
    ENTER("cuEventElapsedTime");
    const mark *a = object_find(begin, MARK), *b = object_find(end, MARK);
    if (!a || !b || !a->recorded || !b->recorded)
        return INVALID_HANDLE;
    if (a->pending || b->pending)
        return CUDA_NOT_READY;
    *milliseconds = (float)(b->time - a->time);
    return CUDA_OK;
}

/* ---- graphs --------------------------------------------------------------------------------------------------------
 */

EXPORTED cuda_result cuStreamBeginCapture_v2(cuda_queue handle, int mode) {
    ENTER("cuStreamBeginCapture_v2");
    queue *q = object_find(handle, QUEUE);
    graph *g = q && !q->capture ? calloc(1, sizeof *g) : NULL;
    if (!g)
        return INVALID_HANDLE;
    g->end = &g->first;
    pthread_mutex_lock(&lock);
    q->capture = g;
    pthread_mutex_unlock(&lock);
    return CUDA_OK;
}

/* A capture ends whatever happens. */
EXPORTED cuda_result cuStreamEndCapture(cuda_queue handle, cuda_graph *out) {
    cuda_result r = enter("cuStreamEndCapture");
    queue *q = object_find(handle, QUEUE);
    *out = NULL;
    if (!q || !q->capture)
        return INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    graph *g = q->capture;
    q->capture = NULL;
    pthread_mutex_unlock(&lock);
    if (r != CUDA_OK || broken) {
        free_list(g->first);
        free(g);
        return r ? r : broken;
    }
    object_add(&g->o, GRAPH);
    *out = (cuda_graph)(void *)g;
    control.graphs++;
    return CUDA_OK;
}

EXPORTED cuda_result cuGraphInstantiateWithFlags(cuda_exec *out, cuda_graph handle, unsigned long long flags) {
    ENTER("cuGraphInstantiateWithFlags");
    graph *g = object_find(handle, GRAPH);
    if (!g)
        return INVALID_HANDLE;
    exec *e = calloc(1, sizeof *e);
    work **end = &e->first;
    for (const work *w = g->first; w; w = w->next) {
        work *copy = malloc(sizeof *copy);
        *copy = *w;
        copy->next = NULL;
        *end = copy;
        end = &copy->next;
    }
    object_add(&e->o, EXEC);
    *out = (cuda_exec)(void *)e;
    return CUDA_OK;
}

EXPORTED cuda_result cuGraphDestroy(cuda_graph handle) {
    cuda_result r = enter("cuGraphDestroy");
    graph *g = object_take(handle, GRAPH);
    if (!g)
        return INVALID_HANDLE;
    free_list(g->first);
    free(g);
    return r ? r : broken;
}

EXPORTED cuda_result cuGraphLaunch(cuda_exec handle, cuda_queue queue_handle) {
    ENTER("cuGraphLaunch");
    work w = {.what = RUN_GRAPH, .exec = object_find(handle, EXEC)};
    control.graph_launches++;
    return w.exec ? queue_put(queue_handle, &w) : INVALID_HANDLE;
}

EXPORTED cuda_result cuGraphExecDestroy(cuda_exec handle) {
    cuda_result r = enter("cuGraphExecDestroy");
    exec *e = object_take(handle, EXEC);
    if (!e)
        return INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    bool runs = e->running > 0;
    e->dropped = true;
    pthread_mutex_unlock(&lock);
    if (!runs) {
        free_list(e->first);
        free(e);
    }
    return r ? r : broken;
}

/* Graphs: a graph's node costs a fraction of a launch. A run of commands that was given before word for word (the same
 * kernels, sizes, addresses and bytes, as in the decoding of token after token, where what changes lies in buffers) is
 * made a graph the second time and launched as that from then on. Lists that are kept (gpu.h, sl_gpu_keep) are graphs
 * from the start.
 *
 * A graph has addresses only. They are the same because a list binds them again each time; kernels are another matter:
 * a new one may get a freed one's place, so graphs older than the last freed pipeline are dropped. Memory too: a copy
 * to pages that were unpinned and pinned again at the same address, or to memory freed and allocated again, is not the
 * same to the driver, so all is forgotten when any is given back; memory that is wrapped for one list alone makes no
 * graphs.
 */
#include "gpu/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- keys ----------------------------------------------------------------------------------------------------------
 */

static void hash_dispatch(XXH3_state_t *h, const gpu_command *c) {
    uint64_t head[8] = {(uintptr_t)c->u.dispatch.pipeline,
                        c->u.dispatch.groups[0],
                        (uint64_t)c->u.dispatch.groups[1] << 32 | c->u.dispatch.groups[2],
                        c->u.dispatch.threads[0],
                        (uint64_t)c->u.dispatch.threads[1] << 32 | c->u.dispatch.threads[2],
                        c->u.dispatch.bound_count,
                        c->u.dispatch.length_count,
                        c->kind};
    XXH3_128bits_update(h, head, sizeof head);
    for (size_t i = 0; i < c->u.dispatch.bound_count; i++) {
        const gpu_bound *b = &c->u.dispatch.bound[i];
        uint64_t where[2] = {(uint64_t)b->slot, b->memory ? cuda_at(b->memory, b->offset) : b->length};
        XXH3_128bits_update(h, where, sizeof where);
        if (!b->memory)
            XXH3_128bits_update(h, b->bytes, b->length);
    }
    for (size_t i = 0; i < c->u.dispatch.length_count; i++)
        XXH3_128bits_update(h, &c->u.dispatch.lengths[i], sizeof c->u.dispatch.lengths[i]);
}

static void hash_command(XXH3_state_t *h, const gpu_command *c) {
    uint64_t words[4] = {c->kind};
    if (c->kind == GPU_DISPATCH) {
        hash_dispatch(h, c);
        return;
    }
    if (c->kind == GPU_COPY) {
        words[1] = cuda_at(c->u.copy.to, c->u.copy.to_offset);
        words[2] = cuda_at(c->u.copy.from, c->u.copy.from_offset);
        words[3] = c->u.copy.bytes;
    } else if (c->kind == GPU_FILL) {
        words[1] = cuda_at(c->u.fill.to, c->u.fill.offset);
        words[2] = c->u.fill.bytes;
        words[3] = c->u.fill.value;
    }
    XXH3_128bits_update(h, words, sizeof words);
}

static bool make_key(const gpu_command *list, size_t n, uint64_t key[2]) {
    XXH3_state_t *h = XXH3_createState();
    if (!h)
        return false;
    XXH3_128bits_reset(h);
    for (size_t i = 0; i < n; i++)
        hash_command(h, &list[i]);
    XXH128_hash_t v = XXH3_128bits_digest(h);
    XXH3_freeState(h);
    key[0] = v.low64;
    key[1] = v.high64;
    return true;
}

/* ---- making --------------------------------------------------------------------------------------------------------
 */

/* The commands as the queue would have them, taken down instead of run. */
static bool capture(cuda_stream *s, const gpu_command *list, size_t n, const cuda_arguments *arguments,
                    cuda_graph *graph, sl_error *err) {
    gpu_device *d = s->device;
    uint64_t at = 0;
    if (!cuda_check(d, d->api.queue_capture(s->queue, CUDA_CAPTURE_RELAXED), err, "beginning a graph"))
        return false;
    bool ok = cuda_encode(s, s->queue, list, n, arguments, &at, err);
    cuda_result r = d->api.queue_captured(s->queue, graph);
    return ok && cuda_check(d, r, err, "a graph of %zu commands", n);
}

static cuda_arguments *upload(cuda_stream *s, const gpu_command *list, size_t n, sl_error *err) {
    gpu_device *d = s->device;
    uint64_t bytes = cuda_argument_bytes(list, n);
    cuda_arguments *a = cuda_arguments_take(s, bytes, err);
    if (!a || !bytes)
        return a;
    cuda_arguments_fill(list, n, a->host);
    if (cuda_check(d, d->api.copy_to_device(a->device, a->host, bytes, s->queue), err, "arguments of a graph"))
        return a;
    cuda_arguments_free(d, a);
    return NULL;
}

bool cuda_graph_make(cuda_stream *s, const gpu_command *list, size_t n, cuda_kept *out, sl_error *err) {
    gpu_device *d = s->device;
    cuda_graph graph = NULL;
    pthread_mutex_lock(&d->lock);
    uint64_t freed = d->pipelines_freed;
    pthread_mutex_unlock(&d->lock);
    *out = (cuda_kept){.freed = freed, .arguments = upload(s, list, n, err)};
    if (!out->arguments)
        return false;
    bool ok = capture(s, list, n, out->arguments, &graph, err) &&
              cuda_check(d, d->api.graph_exec(&out->exec, graph, 0), err, "a graph of %zu commands", n);
    if (graph)
        cuda_freed(d, d->api.graph_free(graph), "freeing a graph");
    if (!ok)
        cuda_graph_drop(s, out);
    return ok;
}

/* A graph that runs is freed once it has run. Its arguments may still be on their way: behind a wait of the stream's
 * they are read from the host's memory later, which nobody may write until then. */
void cuda_graph_drop(cuda_stream *s, cuda_kept *k) {
    if (k->exec)
        cuda_freed(s->device, s->device->api.exec_free(k->exec), "freeing a graph");
    if (k->arguments) {
        k->arguments->next = s->retired;
        s->retired = k->arguments;
    }
    *k = (cuda_kept){0};
}

void cuda_graphs_free(cuda_stream *s) {
    for (int i = 0; i < CUDA_GRAPHS; i++)
        cuda_graph_drop(s, &s->kept[i]);
}

/* ---- again ---------------------------------------------------------------------------------------------------------
 */

static void forget_given_back(cuda_stream *s) {
    uint64_t given_back = atomic_load(&s->device->given_back);
    if (s->given_back == given_back)
        return;
    s->given_back = given_back;
    cuda_graphs_free(s);
    memset(s->seen, 0, sizeof s->seen);
}

static cuda_kept *find(cuda_stream *s, const uint64_t key[2]) {
    pthread_mutex_lock(&s->device->lock);
    uint64_t freed = s->device->pipelines_freed;
    pthread_mutex_unlock(&s->device->lock);
    for (int i = 0; i < CUDA_GRAPHS; i++) {
        cuda_kept *k = &s->kept[i];
        if (k->exec && k->freed != freed)
            cuda_graph_drop(s, k);
        if (k->exec && k->key[0] == key[0] && k->key[1] == key[1])
            return k;
    }
    return NULL;
}

/* Was it given lately? Remembers it. */
static bool seen(cuda_stream *s, const uint64_t key[2]) {
    for (int i = 0; i < CUDA_SEEN; i++)
        if (s->seen[i][0] == key[0] && s->seen[i][1] == key[1])
            return true;
    s->seen[s->seen_at][0] = key[0];
    s->seen[s->seen_at][1] = key[1];
    s->seen_at = (s->seen_at + 1) % CUDA_SEEN;
    return false;
}

/* A free place, or that of the graph that was not used for the longest time; NULL: all are in use. Of more runs in turn
 * than there is room for, the first keep theirs: made anew each time, a graph costs more than its launches. */
static cuda_kept *take_place(cuda_stream *s) {
    cuda_kept *k = &s->kept[0];
    for (int i = 0; i < CUDA_GRAPHS && k->exec; i++)
        if (!s->kept[i].exec || s->kept[i].used < k->used)
            k = &s->kept[i];
    if (k->exec && s->clock - k->used < 4 * CUDA_GRAPHS)
        return NULL;
    cuda_graph_drop(s, k);
    return k;
}

static size_t dispatches(const gpu_command *list, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += list[i].kind == GPU_DISPATCH;
    return count;
}

bool cuda_graph_run(cuda_stream *s, const gpu_command *list, size_t n, bool *done, sl_error *err) {
    uint64_t key[2];
    *done = false;
    if (dispatches(list, n) < CUDA_GRAPH_LEAST || !make_key(list, n, key))
        return true;
    forget_given_back(s);
    s->clock++;
    cuda_kept *k = find(s, key);
    if (!k) {
        k = seen(s, key) ? take_place(s) : NULL;
        if (!k)
            return true;
        if (!cuda_graph_make(s, list, n, k, err))
            return false;
        k->key[0] = key[0];
        k->key[1] = key[1];
    }
    k->used = s->clock;
    *done = true;
    return cuda_check(s->device, s->device->api.exec_launch(k->exec, s->queue), err, "launching a graph");
}

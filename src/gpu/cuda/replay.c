/* Lists that are kept: a graph each, with arguments of its own on the device. */
#include "gpu/cuda/cuda.h"

#include <stdlib.h>

typedef struct replay {
    cuda_stream *stream; /* its own, on which the graph was taken down; NULL: none yet */
    cuda_kept kept;
    const gpu_command *list;
    size_t count;
} replay;

void *cuda_replay_new(gpu_device *d, const gpu_command *list, size_t n, sl_error *err) {
    replay *r = calloc(1, sizeof *r);
    if (!r)
        return sl_fail_null(err, SL_ERR_MEMORY, "cuda: out of memory for a kept list");
    *r = (replay){.stream = cuda_stream_new(d, err), .list = list, .count = n};
    if (!r->stream) {
        free(r);
        return NULL;
    }
    bool ok = cuda_enter(d, err);
    if (ok) {
        ok = cuda_graph_make(r->stream, list, n, &r->kept, err) && cuda_stream_finish(r->stream, err);
        cuda_leave(d);
    }
    if (ok)
        return r;
    cuda_replay_free(d, r);
    return NULL;
}

void cuda_replay_free(gpu_device *d, void *kept) {
    replay *r = kept;
    if (r->kept.exec && cuda_enter_to_free(d)) {
        cuda_graph_drop(r->stream, &r->kept);
        cuda_leave(d);
    }
    cuda_stream_free(d, r->stream);
    free(r);
}

/* The list's pipelines live as long as it does. */
bool cuda_replay_submit(gpu_device *d, void *stream, void *kept, void **submission, sl_error *err) {
    replay *r = kept;
    return cuda_submit_exec(d, stream, r->list, r->count, r->kept.exec, submission, err);
}

/* How fast a GPU's own memory is filled from the host's: the limit of experts that are brought there. */
#include "cli.h"

#include "sluice/gpu.h"

#include <string.h>

enum { COPY_BYTES = 32 << 20, COPIES = 8, ROUNDS = 5 };
#define COPY_TIMEOUT_NS (60ull * 1000 * 1000 * 1000)

typedef struct copying {
    sl_gpu *gpu;
    sl_gpu_stream *stream;
    sl_gpu_buffer *from, *to;
} copying;

/* One list of copies; its seconds by the device's clock. */
static bool copy_once(copying *c, double *seconds, sl_error *err) {
    sl_gpu_ticket ticket;
    sl_gpu_list *l = sl_gpu_begin(c->stream, "copies", err);
    bool ok = l != NULL;
    for (int i = 0; ok && i < COPIES; i++)
        ok = sl_gpu_encode_copy(l, c->to, 0, c->from, 0, COPY_BYTES, err);
    if (l && !ok)
        sl_gpu_list_free(l);
    return ok && sl_gpu_submit(l, &ticket, err) && sl_gpu_wait(c->stream, ticket, COPY_TIMEOUT_NS, seconds, err);
}

static bool open_copying(copying *c, const char *device, sl_error *err) {
    sl_gpu_options o = SL_GPU_OPTIONS_INIT;
    o.device = device;
    return (c->gpu = sl_gpu_open(&o, err)) && (c->stream = sl_gpu_stream_new(c->gpu, err)) &&
           (c->from = sl_gpu_alloc(c->gpu, COPY_BYTES, SL_GPU_SHARED, err)) &&
           (c->to = sl_gpu_alloc(c->gpu, COPY_BYTES, SL_GPU_PRIVATE, err));
}

/* The best of some rounds: others may use the same bus. */
bool cli_measure_copy(const char *device, double *rate, sl_error *err) {
    copying c = {0};
    bool ok = open_copying(&c, device, err);
    *rate = 0;
    for (int i = 0; ok && i < ROUNDS; i++) {
        double seconds = 0;
        ok = copy_once(&c, &seconds, err);
        double now = ok && seconds > 0 ? (double)COPY_BYTES * COPIES / seconds : 0;
        *rate = now > *rate ? now : *rate;
    }
    sl_gpu_buffer_free(c.to);
    sl_gpu_buffer_free(c.from);
    sl_gpu_stream_free(c.stream);
    sl_gpu_close(c.gpu);
    return ok;
}

/* Adds two arrays on a GPU: example_gpu_add [DEVICE], DEVICE metal, or soft, which runs kernels on the CPU.
 * SLUICE_DEBUG=3 shows what happens. */
#include <sluice/gpu.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char source[] = "kernel void add(device const float *a [[buffer(0)]], device float *sum [[buffer(1)]],\n"
                             "                constant uint &n [[buffer(2)]], uint i [[thread_position_in_grid]]) {\n"
                             "    if (i < n)\n"
                             "        sum[i] += a[i];\n"
                             "}\n";

static sl_error err;

static void *must(void *result) {
    if (!result) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    return result;
}

static void print_line(void *user, sl_log_level level, const char *line) {
    fprintf(stderr, "%s\n", line);
}

int main(int argc, char **argv) {
    enum { N = 1000, BYTES = N * sizeof(float) };
    sl_gpu_options options = SL_GPU_OPTIONS_INIT;
    options.device = argc > 1 ? argv[1] : NULL;
    options.log = print_line;
    sl_gpu *g = must(sl_gpu_open(&options, &err));
    sl_gpu_library *library = must(sl_gpu_library_new(g, source, strlen(source), NULL, &err));
    sl_gpu_pipeline *add = must(sl_gpu_pipeline_new(library, "add", NULL, 0, &err));
    sl_gpu_buffer *b = must(sl_gpu_alloc(g, 2 * BYTES, SL_GPU_SHARED, &err)); /* a, then sum */
    float *x = must(sl_gpu_map(b, 0, 2 * BYTES, SL_GPU_WRITE, &err));
    for (int i = 0; i < 2 * N; i++)
        x[i] = (float)(i % N);
    bool ok = sl_gpu_unmap(b, &err);
    sl_gpu_binding bindings[] = {{.slot = 0, .buffer = b, .length = BYTES},
                                 {.slot = 1, .buffer = b, .offset = BYTES},
                                 {.slot = 2, .bytes = &(uint32_t){N}, .length = sizeof(uint32_t)}};
    sl_gpu_dispatch dispatch = {add, .groups = {(N + 63) / 64, 1, 1}, .threads = {64, 1, 1}, bindings, 3};
    sl_gpu_stream *stream = must(sl_gpu_stream_new(g, &err));
    sl_gpu_list *list = must(sl_gpu_begin(stream, "example", &err));
    sl_gpu_ticket ticket;
    double seconds = 0;
    ok = ok && sl_gpu_encode(list, &dispatch, &err) && sl_gpu_submit(list, &ticket, &err) &&
         sl_gpu_wait(stream, ticket, 10000000000, &seconds, &err);
    x = must(ok ? sl_gpu_map(b, BYTES, BYTES, SL_GPU_READ, &err) : NULL);
    printf("999 + 999 = %g, in %.1f us\n", (double)x[N - 1], seconds * 1e6);
    sl_gpu_unmap(b, NULL);
    sl_gpu_buffer_free(b);
    sl_gpu_stream_free(stream);
    sl_gpu_pipeline_free(add);
    sl_gpu_library_free(library);
    sl_gpu_close(g);
}

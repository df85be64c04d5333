/* sluice msl trace: one small kernel from its source to its result, each stage with what there is to see. docs/metal.md
 * shows what this prints, and a test compares the two. */
#include "cli.h"

#include "sluice/gpu.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 4, COLUMNS = 5, WIDTH = 8, SIMD = 32 };

static const char source[] =
    "#include <metal_stdlib>\n"
    "using namespace metal;\n"
    "\n"
    "struct Shape { uint rows, columns, width; };\n"
    "\n"
    "/* x[rows][columns] is transposed, each row of that padded with zeros to width and reduced to its sum:\n"
    "   one SIMD-group of 32 threads for each. No thread moves data: transposing is an index, padding a choice. */\n"
    "kernel void transpose_pad_sum(device const float *x [[buffer(0)]], device float *out [[buffer(1)]],\n"
    "                              constant Shape &s [[buffer(2)]], uint row [[threadgroup_position_in_grid]],\n"
    "                              uint lane [[thread_index_in_simdgroup]]) {\n"
    "    float sum = 0;\n"
    "    for (uint i = lane; i < s.width; i += 32)\n"
    "        sum += i < s.rows ? x[i * s.columns + row] : 0.0f;\n"
    "    sum = simd_sum(sum);\n"
    "    if (lane == 0)\n"
    "        out[row] = sum;\n"
    "}\n";

typedef struct shape {
    uint32_t rows, columns, width;
} shape;

/* Everything made on the way; freed together. */
typedef struct trace {
    sl_gpu *g;
    sl_gpu_library *library;
    sl_gpu_pipeline *pipeline;
    sl_gpu_buffer *x, *out;
    sl_gpu_stream *stream;
    sl_gpu_list *list;
    sl_error err;
} trace;

static void print_stage(const char *stage, const char *fmt, ...) SL_PRINTF(2, 3);
static void print_stage(const char *stage, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    printf("%-9s ", stage);
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
}

static void print_source(void) {
    int number = 1;
    print_stage("source", "%zu bytes of Metal Shading Language", sizeof source - 1);
    for (const char *line = source; *line; line = strchr(line, '\n') + 1)
        printf("%5d  %.*s\n", number++, (int)strcspn(line, "\n"), line);
}

/* ---- stages ------------------------------------------------------------------------------------------------------ */

static bool open_device(trace *t, const cli_args *a) {
    sl_gpu_info info = {.size = sizeof info};
    t->g = cli_msl_open(a, &t->err);
    if (!t->g)
        return false;
    sl_gpu_get_info(t->g, &info);
    print_stage("device", "%s: %s, family %s, %s", info.device, info.name, info.family, info.system);
    return true;
}

static bool compile(trace *t) {
    sl_gpu_compile_options o = SL_GPU_COMPILE_OPTIONS_INIT;
    void *bytes;
    size_t size;
    o.name = "trace.metal";
    if (!sl_gpu_compile(t->g, source, sizeof source - 1, &o, &bytes, &size, &t->err))
        return false;
    t->library = sl_gpu_library_load(t->g, bytes, size, &t->err);
    sl_gpu_free(bytes);
    if (t->library)
        print_stage("library", "%zu bytes, kernel %s", size, sl_gpu_library_entry(t->library, 0));
    return t->library != NULL;
}

static bool make_pipeline(trace *t) {
    static const char *const kinds[] = {"read", "written", "bytes", "threadgroup memory"};
    sl_gpu_pipeline_info info = {.size = sizeof info};
    t->pipeline = sl_gpu_pipeline_new(t->library, sl_gpu_library_entry(t->library, 0), NULL, 0, &t->err);
    if (!t->pipeline)
        return false;
    sl_gpu_pipeline_get_info(t->pipeline, &info);
    print_stage("pipeline", "at most %u threads in a threadgroup, SIMD-groups of %u, %u bytes of threadgroup memory",
                info.max_threads, info.simd_width, info.threadgroup_memory);
    for (size_t i = 0; i < info.arg_count; i++)
        printf("          slot %d: %s, %s, at least %u bytes\n", info.args[i].slot, info.args[i].name,
               kinds[info.args[i].kind], info.args[i].least);
    return true;
}

static bool make_buffers(trace *t) {
    const size_t bytes = ROWS * COLUMNS * sizeof(float);
    t->x = sl_gpu_alloc(t->g, bytes, SL_GPU_SHARED, &t->err);
    t->out = t->x ? sl_gpu_alloc(t->g, COLUMNS * sizeof(float), SL_GPU_SHARED, &t->err) : NULL;
    float *x = t->out ? sl_gpu_map(t->x, 0, bytes, SL_GPU_WRITE, &t->err) : NULL;
    if (!x)
        return false;
    print_stage("input", "x[%d][%d], %zu bytes", ROWS, COLUMNS, bytes);
    for (int row = 0; row < ROWS; row++) {
        printf("         ");
        for (int column = 0; column < COLUMNS; column++) {
            x[row * COLUMNS + column] = (float)(row + column + 1);
            printf(" %3g", (double)x[row * COLUMNS + column]);
        }
        printf("\n");
    }
    return sl_gpu_unmap(t->x, &t->err);
}

/* One threadgroup per row of the transposed matrix: a grid counts threadgroups, and its threads are not the elements.
 */
static bool encode(trace *t) {
    const shape s = {ROWS, COLUMNS, WIDTH};
    const sl_gpu_binding bindings[] = {
        {.slot = 0, .buffer = t->x}, {.slot = 1, .buffer = t->out}, {.slot = 2, .bytes = &s, .length = sizeof s}};
    const sl_gpu_dispatch d = {.pipeline = t->pipeline,
                               .groups = {COLUMNS, 1, 1},
                               .threads = {SIMD, 1, 1},
                               .bindings = bindings,
                               .binding_count = SL_COUNT(bindings)};
    t->stream = sl_gpu_stream_new(t->g, &t->err);
    t->list = t->stream ? sl_gpu_begin(t->stream, "trace", &t->err) : NULL;
    if (!t->list || !sl_gpu_encode(t->list, &d, &t->err))
        return false;
    print_stage("dispatch", "%d threadgroups of %d threads = %d threads, for %d elements in, %d padded, %d out",
                COLUMNS, SIMD, COLUMNS * SIMD, ROWS * COLUMNS, COLUMNS * WIDTH, COLUMNS);
    return true;
}

static bool run(trace *t) {
    sl_gpu_ticket ticket;
    double seconds = 0;
    bool ok = sl_gpu_submit(t->list, &ticket, &t->err);
    t->list = NULL;
    if (!ok || !sl_gpu_wait(t->stream, ticket, UINT64_C(60000000000), &seconds, &t->err))
        return false;
    print_stage("time", "%.1f us on the device, ticket %llu", seconds * 1e6, (unsigned long long)ticket);
    return true;
}

static bool show_result(trace *t) {
    float *out = sl_gpu_map(t->out, 0, COLUMNS * sizeof(float), SL_GPU_READ, &t->err);
    if (!out)
        return false;
    printf("result   ");
    for (int i = 0; i < COLUMNS; i++)
        printf(" %g", (double)out[i]);
    printf("\n");
    return sl_gpu_unmap(t->out, &t->err);
}

static void free_all(trace *t) {
    sl_gpu_list_free(t->list);
    sl_gpu_buffer_free(t->x);
    sl_gpu_buffer_free(t->out);
    sl_gpu_stream_free(t->stream);
    sl_gpu_pipeline_free(t->pipeline);
    sl_gpu_library_free(t->library);
    sl_gpu_close(t->g);
}

int cli_msl_trace(const cli_args *a) {
    trace t = {0};
    print_source();
    bool ok = open_device(&t, a) && compile(&t) && make_pipeline(&t) && make_buffers(&t) && encode(&t) && run(&t) &&
              show_result(&t);
    free_all(&t);
    return ok ? CLI_OK : cli_msl_report(&t.err);
}

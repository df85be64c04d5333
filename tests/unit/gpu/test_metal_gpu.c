/* gpu.h on the metal device, whole: the core, the driver, its stand-in, and kernels that run on the soft device. What
 * the soft device gives without Metal in between, bit for bit; and what the core makes of Metal's faults. */
#include "support_metal.h"

#include "sluice/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64];

static bool have_compiler(void) {
    sl_error err = {0};
    gpu_open o = {.index = 1};
    gpu_device *d = gpu_driver_soft.open(&o, &err);
    if (d)
        gpu_driver_soft.close(d);
    else
        print_message("SKIP: %s\n", err.message);
    return d != NULL;
}

static int gpu_reset(void **state) {
    if (metal_reset(state) != 0)
        return 1;
    snprintf(folder, sizeof folder, "/tmp/sluice-gpu-XXXXXX");
    return !mkdtemp(folder);
}

static int gpu_left_clean(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command) || metal_left_clean(state);
}

/* ---- a device with kernels ------------------------------------------------------------------------------------------
 */

typedef struct rig {
    sl_gpu *g;
    sl_gpu_stream *s;
    sl_gpu_library *library;
} rig;

static void check(bool ok, const sl_error *err) {
    if (!ok)
        fail_msg("%s", err->message);
}

static sl_gpu *open_gpu(const char *device) {
    sl_error err = {0};
    sl_gpu_options o = SL_GPU_OPTIONS_INIT;
    o.device = device;
    o.cache_dir = folder;
    sl_gpu *g = sl_gpu_open(&o, &err);
    check(g != NULL, &err);
    return g;
}

static rig rig_open(const char *device, const char *source) {
    sl_error err = {0};
    sl_gpu_define define = {"SCALE", "3"};
    const char *dirs[] = {folder};
    sl_gpu_compile_options o = SL_GPU_COMPILE_OPTIONS_INIT;
    o.name = "rig.metal";
    o.defines = &define;
    o.define_count = 1;
    o.include_dirs = dirs;
    o.include_count = 1;
    rig r = {.g = open_gpu(device)};
    r.s = sl_gpu_stream_new(r.g, &err);
    check(r.s != NULL, &err);
    r.library = sl_gpu_library_new(r.g, source, strlen(source), &o, &err);
    check(r.library != NULL, &err);
    return r;
}

static void rig_close(rig *r) {
    sl_gpu_library_free(r->library);
    sl_gpu_stream_free(r->s);
    sl_gpu_close(r->g);
}

static sl_gpu_pipeline *pipeline(rig *r, const char *entry, const sl_gpu_constant *constants, size_t n) {
    sl_error err = {0};
    sl_gpu_pipeline *p = sl_gpu_pipeline_new(r->library, entry, constants, n, &err);
    check(p != NULL, &err);
    return p;
}

static sl_gpu_buffer *buffer_of(rig *r, const void *bytes, size_t n) {
    sl_error err = {0};
    sl_gpu_buffer *b = sl_gpu_alloc(r->g, n, SL_GPU_SHARED, &err);
    check(b != NULL, &err);
    memcpy(sl_gpu_map(b, 0, n, SL_GPU_WRITE, &err), bytes, n);
    check(sl_gpu_unmap(b, &err), &err);
    return b;
}

static void read_back(sl_gpu_buffer *b, void *bytes, size_t n) {
    sl_error err = {0};
    void *from = sl_gpu_map(b, 0, n, SL_GPU_READ, &err);
    check(from != NULL, &err);
    memcpy(bytes, from, n);
    check(sl_gpu_unmap(b, &err), &err);
}

static sl_gpu_list *begin(rig *r) {
    sl_error err = {0};
    sl_gpu_list *l = sl_gpu_begin(r->s, "list", &err);
    check(l != NULL, &err);
    return l;
}

static void run(rig *r, sl_gpu_list *l) {
    sl_error err = {0};
    sl_gpu_ticket ticket = 0;
    double took = -1;
    check(sl_gpu_submit(l, &ticket, &err), &err);
    check(sl_gpu_wait(r->s, ticket, 60ull * 1000000000, &took, &err), &err);
    assert_true(took >= 0);
}

/* ---- a kernel with everything
 * ----------------------------------------------------------------------------------------- */

static const char everything[] =
    "#include <metal_stdlib>\n"
    "#include \"params.h\"\n"
    "using namespace metal;\n"
    "constant bool add_bias [[function_constant(0)]];\n"
    "constant float bias [[function_constant(1)]];\n"
    "kernel void rows(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],\n"
    "                 constant Params &p [[buffer(2)]], threadgroup float *part [[threadgroup(0)]],\n"
    "                 uint group [[threadgroup_position_in_grid]], uint t [[thread_position_in_threadgroup]],\n"
    "                 uint lane [[thread_index_in_simdgroup]], uint sg [[simdgroup_index_in_threadgroup]]) {\n"
    "    float sum = 0;\n"
    "    for (uint i = t; i < p.columns; i += 64)\n"
    "        sum = fma(x[group * p.columns + i], float(SCALE), sum);\n"
    "    sum = simd_sum(sum);\n"
    "    if (lane == 0)\n"
    "        part[sg] = sum;\n"
    "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "    if (t == 0)\n"
    "        y[group] = part[0] + part[1] + (add_bias ? bias : 0.0f);\n"
    "}\n";

enum { ROWS = 7, COLUMNS = 130 };

static void run_everything(const char *device, float y[ROWS]) {
    char path[128];
    snprintf(path, sizeof path, "%s/params.h", folder);
    FILE *f = fopen(path, "w");
    fputs("#pragma once\nstruct Params { uint columns; };\n", f);
    fclose(f);
    rig r = rig_open(device, everything);
    sl_gpu_constant constants[] = {{0, SL_GPU_BOOL, {.b = true}}, {1, SL_GPU_FLOAT, {.f = 0.25f}}};
    sl_gpu_pipeline *p = pipeline(&r, "rows", constants, 2);
    float x[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++)
        x[i] = (float)((i * 7919) % 1000) / 333.0f - 1.5f;
    uint32_t columns = COLUMNS;
    sl_gpu_buffer *bx = buffer_of(&r, x, sizeof x), *by = buffer_of(&r, y, sizeof(float) * ROWS);
    sl_gpu_binding bindings[] = {
        {.slot = 0, .buffer = bx}, {.slot = 1, .buffer = by}, {.slot = 2, .bytes = &columns, .length = sizeof columns}};
    sl_gpu_threadgroup_length length = {0, 8};
    sl_gpu_dispatch d = {.pipeline = p,
                         .groups = {ROWS, 1, 1},
                         .threads = {64, 1, 1},
                         .bindings = bindings,
                         .binding_count = 3,
                         .lengths = &length,
                         .length_count = 1};
    sl_error err = {0};
    sl_gpu_list *l = begin(&r);
    check(sl_gpu_encode(l, &d, &err), &err);
    run(&r, l);
    read_back(by, y, sizeof(float) * ROWS);
    for (int row = 0; row < ROWS; row++) {
        double sum = 0.25;
        for (int i = 0; i < COLUMNS; i++)
            sum += 3.0 * (double)x[row * COLUMNS + i];
        double off = (double)y[row] - sum;
        assert_true(off < 1e-3 && off > -1e-3);
    }
    sl_gpu_buffer_free(bx);
    sl_gpu_buffer_free(by);
    sl_gpu_pipeline_free(p);
    rig_close(&r);
}

static void kernels_give_what_they_give_without_metal(void **state) {
    float through_metal[ROWS], soft[ROWS];
    memset(through_metal, 0x7f, sizeof soft);
    memset(soft, 0x7e, sizeof soft);
    if (!have_compiler()) {
        skip();
        return;
    }
    run_everything("metal", through_metal);
    run_everything("soft:1", soft);
    assert_memory_equal(through_metal, soft, sizeof soft);
    assert_int_equal(metal->fast_math, false);
    run_everything("metal", through_metal); /* from the caches */
    assert_int_equal(metal->pipelines_compiled, 1);
    assert_int_equal(metal->pipelines_from_archive, 1);
    assert_memory_equal(through_metal, soft, sizeof soft);
}

static void errors_of_the_compiler_name_file_and_line(void **state) {
    static const char source[] = "#include <metal_stdlib>\nusing namespace metal;\n"
                                 "kernel void f(device float *x [[buffer(0)]]) {\n    x[0] = undeclared_name;\n}\n";
    sl_error err = {0};
    if (!have_compiler()) {
        skip();
        return;
    }
    sl_gpu *g = open_gpu("metal");
    sl_gpu_compile_options o = SL_GPU_COMPILE_OPTIONS_INIT;
    o.name = "dir/f.metal";
    assert_null(sl_gpu_library_new(g, source, strlen(source), &o, &err));
    assert_int_equal(err.code, SL_ERR_COMPILE);
    if (strncmp(err.message, "dir/f.metal:4: ", 15) != 0)
        fail_msg("%s", err.message);
    assert_non_null(strstr(err.message, "undeclared_name"));
    sl_gpu_close(g);
}

/* ---- the core on the driver: built-in kernels
 * ------------------------------------------------------------------------- */

static const char simple[] = "// standin: builtin\n"
                             "kernel void add_one(device uint *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {\n"
                             "    x[i] += 1;\n}\n"
                             "kernel void faults(device uint *x [[buffer(0)]]) {\n    x[0] = 1;\n}\n";

static void encode_one(sl_gpu_list *l, sl_gpu_pipeline *p, sl_gpu_buffer *b, uint64_t offset, uint32_t threads) {
    sl_error err = {0};
    sl_gpu_binding binding = {.slot = 0, .buffer = b, .offset = offset, .length = threads * 4};
    sl_gpu_dispatch d = {
        .pipeline = p, .groups = {1, 1, 1}, .threads = {threads, 1, 1}, .bindings = &binding, .binding_count = 1};
    check(sl_gpu_encode(l, &d, &err), &err);
}

/* Commands between which no barrier stands run in reverse order: the core must have put one wherever it matters. */
static void barriers_are_inferred(void **state) {
    rig r = rig_open("metal", simple);
    sl_gpu_pipeline *add = pipeline(&r, "add_one", NULL, 0);
    uint32_t x[16] = {0}, out[16];
    sl_error err = {0};
    sl_gpu_buffer *b = buffer_of(&r, x, sizeof x);
    sl_gpu_list *l = begin(&r);
    encode_one(l, add, b, 0, 8);                               /* 1 in the first half */
    encode_one(l, add, b, 32, 8);                              /* beside it: no barrier */
    check(sl_gpu_encode_copy(l, b, 0, b, 32, 16, &err), &err); /* needs both */
    encode_one(l, add, b, 0, 2);                               /* 2 2 1 1 */
    check(sl_gpu_encode_fill(l, b, 4, 4, 0, &err), &err);      /* 2 0 1 1 */
    encode_one(l, add, b, 0, 4);                               /* 3 1 2 2 */
    check(sl_gpu_encode_copy(l, b, 48, b, 0, 16, &err), &err); /* to the end */
    run(&r, l);
    static const uint32_t expected[16] = {3, 1, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 3, 1, 2, 2};
    read_back(b, out, sizeof out);
    assert_memory_equal(out, expected, sizeof expected);
    sl_gpu_buffer_free(b);
    sl_gpu_pipeline_free(add);
    rig_close(&r);
}

static void a_kept_list_runs_again(void **state) {
    rig r = rig_open("metal", simple);
    sl_gpu_pipeline *add = pipeline(&r, "add_one", NULL, 0);
    uint32_t x[4] = {0};
    sl_error err = {0};
    sl_gpu_buffer *b = buffer_of(&r, x, sizeof x);
    sl_gpu_list *l = begin(&r);
    encode_one(l, add, b, 0, 4);
    encode_one(l, add, b, 0, 2);
    sl_gpu_replay *replay = sl_gpu_keep(l, &err);
    check(replay != NULL, &err);
    sl_gpu_buffer_free(b); /* the kept list holds it */
    b = NULL;
    sl_gpu_ticket ticket = 0;
    for (int i = 0; i < 10; i++)
        check(sl_gpu_replay_submit(replay, &ticket, &err), &err);
    check(sl_gpu_synchronize(r.s, 10ull * 1000000000, &err), &err);
    assert_int_equal(metal->dispatches, 20);
    sl_gpu_replay_free(replay);
    sl_gpu_pipeline_free(add);
    rig_close(&r);
}

static void wrapped_memory_and_views_keep_their_places(void **state) {
    rig r = rig_open("metal", simple);
    sl_gpu_pipeline *add = pipeline(&r, "add_one", NULL, 0);
    sl_error err = {0};
    uint32_t *host = aligned_alloc(65536, 65536);
    memset(host, 0, 65536);
    sl_gpu_buffer *whole = sl_gpu_wrap(r.g, host + 100, 40000, &err);
    check(whole != NULL, &err);
    sl_gpu_buffer *view = sl_gpu_view(whole, 400, 64, &err);
    check(view != NULL, &err);
    sl_gpu_list *l = begin(&r);
    encode_one(l, add, view, 16, 3);
    run(&r, l);
    for (int i = 0; i < 16384; i++)
        assert_int_equal(host[i], i >= 204 && i < 207);
    sl_gpu_buffer_free(view);
    sl_gpu_buffer_free(whole);
    sl_gpu_pipeline_free(add);
    rig_close(&r);
    free(host);
}

static void a_failed_list_stops_its_stream_until_recovered(void **state) {
    rig r = rig_open("metal", simple);
    sl_gpu_pipeline *add = pipeline(&r, "add_one", NULL, 0), *faults = pipeline(&r, "faults", NULL, 0);
    uint32_t x[4] = {0}, out[4];
    sl_error err = {0};
    sl_gpu_ticket ticket = 0;
    sl_gpu_buffer *b = buffer_of(&r, x, sizeof x);
    sl_gpu_list *l = begin(&r);
    encode_one(l, faults, b, 0, 1);
    check(sl_gpu_submit(l, &ticket, &err), &err);
    assert_false(sl_gpu_wait(r.s, ticket, 10ull * 1000000000, NULL, &err));
    assert_int_equal(err.code, SL_ERR_DEVICE);
    assert_non_null(strstr(err.message, "page fault"));
    l = sl_gpu_begin(r.s, "next", &err);
    if (l) {
        encode_one(l, add, b, 0, 1);
        assert_false(sl_gpu_submit(l, &ticket, &err));
    }
    assert_int_equal(err.code, SL_ERR_DEVICE);
    check(sl_gpu_stream_recover(r.s, &err), &err);
    l = begin(&r);
    encode_one(l, add, b, 0, 1);
    run(&r, l);
    read_back(b, out, sizeof out);
    assert_int_equal(out[0], 1);
    sl_gpu_buffer_free(b);
    sl_gpu_pipeline_free(add);
    sl_gpu_pipeline_free(faults);
    rig_close(&r);
}

static void a_wait_has_a_limit_and_memory_outlives_its_handle(void **state) {
    rig r = rig_open("metal", simple);
    sl_gpu_pipeline *add = pipeline(&r, "add_one", NULL, 0);
    uint32_t x[4] = {0};
    sl_error err = {0};
    sl_gpu_ticket ticket = 0;
    sl_gpu_buffer *b = buffer_of(&r, x, sizeof x);
    metal->hang = true;
    sl_gpu_list *l = begin(&r);
    encode_one(l, add, b, 0, 4);
    check(sl_gpu_submit(l, &ticket, &err), &err);
    sl_gpu_buffer_free(b); /* while it is in use: the stand-in sees it if memory went with it */
    sl_gpu_pipeline_free(add);
    assert_false(sl_gpu_wait(r.s, ticket, 3000000, NULL, &err));
    assert_int_equal(err.code, SL_ERR_TIMEOUT);
    metal->hang = false;
    check(sl_gpu_wait(r.s, ticket, 10ull * 1000000000, NULL, &err), &err);
    rig_close(&r);
}

static void a_metallib_is_loaded_without_tables(void **state) {
    sl_gpu *g = open_gpu("metal");
    sl_buf b = {0};
    sl_error err = {0};
    uint32_t n = (uint32_t)strlen(simple);
    sl_buf_append(&b, "MTLB", 4);
    sl_buf_append(&b, &n, 4);
    sl_buf_append(&b, simple, n);
    sl_buf_append(&b, "ENDT", 4);
    sl_gpu_library *library = sl_gpu_library_load(g, b.data, b.size, &err);
    check(library != NULL, &err);
    sl_gpu_pipeline *p = sl_gpu_pipeline_new(library, "add_one", NULL, 0, &err);
    check(p != NULL, &err);
    sl_gpu_pipeline_free(p);
    sl_gpu_library_free(library);
    assert_null(sl_gpu_library_load(g, b.data, b.size - 1, &err));
    assert_int_equal(err.code, SL_ERR_FORMAT);
    sl_buf_free(&b);
    sl_gpu_close(g);
}

int main(void) {
    if (!metal_has_stand_in())
        return METAL_SKIPPED;
#define TEST(f) cmocka_unit_test_setup_teardown(f, gpu_reset, gpu_left_clean)
    const struct CMUnitTest tests[] = {
        TEST(kernels_give_what_they_give_without_metal),
        TEST(errors_of_the_compiler_name_file_and_line),
        TEST(barriers_are_inferred),
        TEST(a_kept_list_runs_again),
        TEST(wrapped_memory_and_views_keep_their_places),
        TEST(a_failed_list_stops_its_stream_until_recovered),
        TEST(a_wait_has_a_limit_and_memory_outlives_its_handle),
        TEST(a_metallib_is_loaded_without_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

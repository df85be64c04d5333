/* tile.h, both of its forms, on the soft device: products of fragments whose factors lie either way, rows scaled, in
 * small whole numbers: exact. */
#include "sluice/gpu.h"
#include "support_ops.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 16, STRIDE = 24 };

static const char kernel_text[] =
    "#include \"tile.h\"\n"
    "struct memory { half a[16 * 24], b[16 * 24]; float c[16 * 20], by[16 * 8]; };\n"
    "kernel void multiply(device const float *a [[buffer(0)]], device const float *b [[buffer(1)]],\n"
    "                     device float *c [[buffer(2)]], constant int &turned [[buffer(3)]],\n"
    "                     uint l [[thread_index_in_threadgroup]]) {\n"
    "    threadgroup memory m;\n"
    "    for (uint i = l; i < 16 * 24; i += 32) {\n"
    "        m.a[i] = half(a[i]);\n"
    "        m.b[i] = half(b[i]);\n"
    "    }\n"
    "    for (uint i = l; i < 16 * 8; i += 32)\n"
    "        m.by[i] = float(i / 8 + 1);\n"
    "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "    tile_half x, w;\n"
    "    tile_float t;\n"
    "    tile_rows by;\n"
    "    tile_zero(t);\n"
    "    tile_load(x, m.a, 24);\n"
    "    if (turned)\n"
    "        tile_load_transposed(w, m.b, 24);\n"
    "    else\n"
    "        tile_load_right(w, m.b, 24);\n"
    "    tile_mma(t, x, w);\n"
    "    tile_rows_load(by, m.by, 8);\n"
    "    tile_scale_rows(t, by);\n"
    "    tile_mma(t, x, w);\n"
    "    tile_store(t, m.c, 20);\n"
    "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "    for (uint i = l; i < 16 * 16; i += 32)\n"
    "        c[i] = m.c[i / 16 * 20 + i % 16];\n"
    "}\n";

static void must(bool ok, const sl_error *err) {
    if (!ok)
        fail_msg("%s", err->message);
}

static sl_gpu_buffer *buffer_of(sl_gpu *g, const float *v, size_t n) {
    sl_error err = {0};
    sl_gpu_buffer *b = sl_gpu_alloc(g, n * sizeof *v, SL_GPU_SHARED, &err);
    must(b != NULL, &err);
    float *to = sl_gpu_map(b, 0, n * sizeof *v, SL_GPU_WRITE, &err);
    must(to != NULL, &err);
    memcpy(to, v, n * sizeof *v);
    must(sl_gpu_unmap(b, &err), &err);
    return b;
}

static void expect(const float *a, const float *b, bool turned, const float *c) {
    for (int r = 0; r < N; r++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int i = 0; i < N; i++)
                sum += a[r * STRIDE + i] * (turned ? b[j * STRIDE + i] : b[i * STRIDE + j]);
            assert_true(c[r * N + j] == sum * (float)(r + 1) + sum);
        }
}

static void multiply(sl_gpu *g, sl_gpu_pipeline *p, int32_t turned) {
    rng r = {20261202 + (uint64_t)turned};
    sl_error err = {0};
    float a[N * STRIDE], b[N * STRIDE], c[N * N];
    for (int i = 0; i < N * STRIDE; i++) {
        a[i] = (float)(rng_below(&r, 33) - 16);
        b[i] = (float)(rng_below(&r, 33) - 16);
    }
    memset(c, 0xff, sizeof c);
    sl_gpu_buffer *buffer[] = {buffer_of(g, a, N * STRIDE), buffer_of(g, b, N * STRIDE), buffer_of(g, c, N * N)};
    sl_gpu_binding list[4] = {{.slot = 3, .bytes = &turned, .length = sizeof turned}};
    for (int i = 0; i < 3; i++)
        list[1 + i] = (sl_gpu_binding){.slot = i, .buffer = buffer[i], .length = sl_gpu_buffer_size(buffer[i])};
    sl_gpu_dispatch d = {
        .pipeline = p, .groups = {1, 1, 1}, .threads = {32, 1, 1}, .bindings = list, .binding_count = 4};
    sl_gpu_stream *s = sl_gpu_stream_new(g, &err);
    must(s != NULL, &err);
    sl_gpu_list *l = sl_gpu_begin(s, "multiply", &err);
    sl_gpu_ticket ticket = 0;
    must(l && sl_gpu_encode(l, &d, &err) && sl_gpu_submit(l, &ticket, &err), &err);
    must(sl_gpu_wait(s, ticket, 60ull * 1000000000, NULL, &err), &err);
    const float *got = sl_gpu_map(buffer[2], 0, sizeof c, SL_GPU_READ, &err);
    must(got != NULL, &err);
    expect(a, b, turned, got);
    must(sl_gpu_unmap(buffer[2], &err), &err);
    for (int i = 0; i < 3; i++)
        sl_gpu_buffer_free(buffer[i]);
    sl_gpu_stream_free(s);
}

static void run(bool fragments, bool check) {
    static const char *const dirs[] = {SL_SOURCE_DIR "/src/kernels"};
    sl_error err = {0};
    sl_gpu_options o = SL_GPU_OPTIONS_INIT;
    o.device = rig_device("soft:2");
    o.cache_dir = "";
    o.check = check;
    sl_gpu *g = sl_gpu_open(&o, &err);
    if (!g && strstr(err.message, "clang"))
        skip();
    must(g != NULL, &err);
    sl_gpu_define define = {"SL_TILE_FRAGMENTS", NULL};
    sl_gpu_compile_options options = SL_GPU_COMPILE_OPTIONS_INIT;
    options.name = "test_tile.metal";
    options.include_dirs = dirs;
    options.include_count = 1;
    options.defines = &define;
    options.define_count = fragments;
    sl_gpu_library *l = sl_gpu_library_new(g, kernel_text, sizeof kernel_text - 1, &options, &err);
    must(l != NULL, &err);
    sl_gpu_pipeline *p = sl_gpu_pipeline_new(l, "multiply", NULL, 0, &err);
    must(p != NULL, &err);
    multiply(g, p, 0);
    multiply(g, p, 1);
    sl_gpu_pipeline_free(p);
    sl_gpu_library_free(l);
    sl_gpu_close(g);
}

static void matrices_of_8_by_8_multiply(void **state) {
    run(false, true);
}

static void fragments_in_registers_multiply_the_same(void **state) {
    run(true, false);
    run(true, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_of_8_by_8_multiply),
        cmocka_unit_test(fragments_in_registers_multiply_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

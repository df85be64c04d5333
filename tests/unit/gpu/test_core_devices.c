/* The runtime as a program sees it, on every device there is here: soft, metal over the stand-in (or the real one). */
#include "support_cuda.h"
#include "support_fake.h"
#include "support_metal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char source[] =
    "#include <metal_stdlib>\n"
    "using namespace metal;\n"
    "constant int times [[function_constant(0)]];\n"
    "constant bool with_bias [[function_constant(1)]];\n"
    "constant bool adds_bias = with_bias && times != 0;\n"
    "kernel void add(device const float *a [[buffer(0)]], device const float *b [[buffer(1)]],\n"
    "                device float *out [[buffer(2)]], constant uint &n [[buffer(3)]],\n"
    "                uint i [[thread_position_in_grid]]) {\n"
    "    if (i < n)\n"
    "        out[i] = a[i] + b[i];\n"
    "}\n"
    "kernel void scale(device float *x [[buffer(0)]], constant uint &n [[buffer(1)]],\n"
    "                  device const float *bias [[buffer(2), function_constant(adds_bias)]],\n"
    "                  uint i [[thread_position_in_grid]]) {\n"
    "    if (i >= n)\n"
    "        return;\n"
    "    float v = x[i] * float(times);\n"
    "    if (adds_bias)\n"
    "        v += bias[i];\n"
    "    x[i] = v;\n"
    "}\n"
    "kernel void total(device const float *x [[buffer(0)]], device float *out [[buffer(1)]],\n"
    "                  constant uint &n [[buffer(2)]], threadgroup float *part [[threadgroup(0)]],\n"
    "                  uint t [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]],\n"
    "                  uint group [[threadgroup_position_in_grid]]) {\n"
    "    float sum = 0;\n"
    "    for (uint i = t; i < n; i += threads)\n"
    "        sum += x[group * n + i];\n"
    "    part[t] = sum;\n"
    "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "    if (t == 0) {\n"
    "        for (uint i = 1; i < threads; i++)\n"
    "            sum += part[i];\n"
    "        out[group] = sum;\n"
    "    }\n"
    "}\n";

typedef struct rig {
    sl_gpu *g;
    sl_gpu_library *library;
    sl_gpu_pipeline *add, *scale, *scale_bias, *total;
    sl_gpu_stream *stream;
    sl_error err;
} rig;

static const char *device;     /* of the running test */
static const char *undeclared; /* as its compiler says it */
static char cache[64];

static void ok(rig *r, bool good) {
    if (!good)
        fail_msg("%s: %s", device, r->err.message);
}

static bool rig_open(rig *r) {
    sl_gpu_options o = SL_GPU_OPTIONS_INIT;
    memset(r, 0, sizeof *r);
    o.device = device;
    o.cache_dir = cache;
    r->g = sl_gpu_open(&o, &r->err);
    if (!r->g)
        print_message("SKIP: %s: %s\n", device, r->err.message);
    return r->g != NULL;
}

static void rig_load(rig *r) {
    sl_gpu_constant c[] = {{.id = 0, .type = SL_GPU_INT, .value.i = 3},
                           {.id = 1, .type = SL_GPU_BOOL, .value.b = true}};
    ok(r, (r->library = sl_gpu_library_new(r->g, source, strlen(source), NULL, &r->err)) != NULL);
    ok(r, (r->add = sl_gpu_pipeline_new(r->library, "add", NULL, 0, &r->err)) != NULL);
    ok(r, (r->scale = sl_gpu_pipeline_new(r->library, "scale", c, 1, &r->err)) != NULL);
    ok(r, (r->scale_bias = sl_gpu_pipeline_new(r->library, "scale", c, 2, &r->err)) != NULL);
    ok(r, (r->total = sl_gpu_pipeline_new(r->library, "total", NULL, 0, &r->err)) != NULL);
    ok(r, (r->stream = sl_gpu_stream_new(r->g, &r->err)) != NULL);
}

static void rig_close(rig *r) {
    sl_gpu_stream_free(r->stream);
    sl_gpu_pipeline_free(r->add);
    sl_gpu_pipeline_free(r->scale);
    sl_gpu_pipeline_free(r->scale_bias);
    sl_gpu_pipeline_free(r->total);
    sl_gpu_library_free(r->library);
    assert_int_equal(sl_gpu_allocated(r->g), 0);
    sl_gpu_close(r->g);
}

static sl_gpu_buffer *floats(rig *r, uint32_t n, float first, float step, sl_gpu_memory kind) {
    sl_gpu_buffer *b = sl_gpu_alloc(r->g, n * sizeof(float), kind, &r->err);
    ok(r, b != NULL);
    float *p = sl_gpu_map(b, 0, n * sizeof(float), SL_GPU_WRITE, &r->err);
    ok(r, p != NULL);
    for (uint32_t i = 0; i < n; i++)
        p[i] = first + step * (float)i;
    ok(r, sl_gpu_unmap(b, &r->err));
    return b;
}

static void expect_floats(rig *r, sl_gpu_buffer *b, uint32_t n, float first, float step) {
    float *p = sl_gpu_map(b, 0, n * sizeof(float), SL_GPU_READ, &r->err);
    ok(r, p != NULL);
    for (uint32_t i = 0; i < n; i++)
        if (p[i] != first + step * (float)i)
            fail_msg("%s: element %u is %g, expected %g", device, i, (double)p[i], (double)(first + step * (float)i));
    ok(r, sl_gpu_unmap(b, &r->err));
}

static void encode(rig *r, sl_gpu_list *l, sl_gpu_pipeline *p, uint32_t groups, uint32_t threads,
                   const sl_gpu_binding *bindings, size_t n, uint32_t part) {
    sl_gpu_threadgroup_length length = {0, part};
    sl_gpu_dispatch d = {.pipeline = p,
                         .groups = {groups, 1, 1},
                         .threads = {threads, 1, 1},
                         .bindings = bindings,
                         .binding_count = n,
                         .lengths = &length,
                         .length_count = part ? 1 : 0};
    ok(r, sl_gpu_encode(l, &d, &r->err));
}

static void encode_add(rig *r, sl_gpu_list *l, sl_gpu_buffer *a, sl_gpu_buffer *b, sl_gpu_buffer *out, uint32_t n) {
    encode(r, l, r->add, (n + 63) / 64, 64,
           (sl_gpu_binding[]){{.slot = 0, .buffer = a},
                              {.slot = 1, .buffer = b},
                              {.slot = 2, .buffer = out},
                              {.slot = 3, .bytes = &n, .length = sizeof n}},
           4, 0);
}

static sl_gpu_list *begin(rig *r) {
    sl_gpu_list *l = sl_gpu_begin(r->stream, "test", &r->err);
    ok(r, l != NULL);
    return l;
}

static void finish(rig *r, sl_gpu_list *l) {
    sl_gpu_ticket t;
    double seconds = -1;
    ok(r, sl_gpu_submit(l, &t, &r->err));
    ok(r, sl_gpu_wait(r->stream, t, 20 * SECOND, &seconds, &r->err));
    assert_true(seconds >= 0 && seconds < 20);
}

/* A chain in which each dispatch needs the one before, with copies and fills between; odd sizes, views. */
static void chains(rig *r) {
    enum { N = 333 };
    uint32_t n = N, part = N / 3;
    sl_gpu_buffer *a = floats(r, N, 1, 1, SL_GPU_SHARED), *b = floats(r, N, 0, 2, SL_GPU_PRIVATE),
                  *c = floats(r, N, -1, 0, SL_GPU_PRIVATE), *sums = floats(r, 3, -1, 0, SL_GPU_SHARED);
    sl_gpu_list *l = begin(r);
    encode_add(r, l, a, b, c, N); /* 1 + 3i */
    encode_add(r, l, c, b, a, N); /* 1 + 5i */
    ok(r, sl_gpu_encode_fill(l, c, 0, N * 4, 0, &r->err));
    encode_add(r, l, a, c, b, N); /* 1 + 5i */
    encode(r, l, r->scale, (N + 31) / 32, 32,
           (sl_gpu_binding[]){{.slot = 0, .buffer = b}, {.slot = 1, .bytes = &n, .length = 4}}, 2, 0); /* 3 + 15i */
    ok(r, sl_gpu_encode_copy(l, c, 0, b, 0, N * 4, &r->err));
    encode(
        r, l, r->scale_bias, (N + 31) / 32, 32,
        (sl_gpu_binding[]){{.slot = 0, .buffer = c}, {.slot = 1, .bytes = &n, .length = 4}, {.slot = 2, .buffer = a}},
        3, 0); /* 10 + 50i */
    encode(r, l, r->total, 3, 64,
           (sl_gpu_binding[]){
               {.slot = 0, .buffer = a}, {.slot = 1, .buffer = sums}, {.slot = 2, .bytes = &part, .length = 4}},
           3, 64 * 4);
    finish(r, l);
    expect_floats(r, a, N, 1, 5);
    expect_floats(r, b, N, 3, 15);
    expect_floats(r, c, N, 10, 50);
    expect_floats(r, sums, 3, 111 + 5 * 110 * 111 / 2, 5 * 111 * 111);
    sl_gpu_buffer_free(a);
    sl_gpu_buffer_free(b);
    sl_gpu_buffer_free(c);
    sl_gpu_buffer_free(sums);
}

/* Handles are given up while the list runs; wrapped host memory at an odd place. */
static void lifetimes(rig *r) {
    enum { N = 5000 };
    float *space = malloc((N + 8) * sizeof *space);
    float *host = space + 3;
    for (int i = 0; i < N; i++)
        host[i] = (float)i;
    sl_gpu_buffer *a = sl_gpu_wrap(r->g, host, N * sizeof(float), &r->err);
    ok(r, a != NULL);
    sl_gpu_buffer *b = floats(r, 2 * N, 0, 1, SL_GPU_SHARED), *upper = sl_gpu_view(b, N * 4, N * 4, &r->err);
    sl_gpu_list *l = begin(r);
    encode_add(r, l, a, upper, a, N);
    sl_gpu_ticket t;
    ok(r, sl_gpu_submit(l, &t, &r->err));
    sl_gpu_buffer_free(upper);
    sl_gpu_buffer_free(b);
    ok(r, sl_gpu_wait(r->stream, t, 20 * SECOND, NULL, &r->err));
    for (int i = 0; i < N; i++)
        assert_true(host[i] == (float)(N + 2 * i));
    sl_gpu_buffer_free(a);
    free(space);
}

static void replays(rig *r) {
    enum { N = 100, TIMES = 5 };
    sl_gpu_buffer *a = floats(r, N, 0, 0, SL_GPU_SHARED), *b = floats(r, N, 1, 1, SL_GPU_SHARED);
    sl_gpu_list *l = begin(r);
    encode_add(r, l, a, b, a, N);
    sl_gpu_replay *replay = sl_gpu_keep(l, &r->err);
    ok(r, replay != NULL);
    sl_gpu_ticket t;
    sl_gpu_spans(r->stream, NULL, 0); /* those of other lists */
    for (int i = 0; i < TIMES; i++)
        ok(r, sl_gpu_replay_submit(replay, &t, &r->err));
    sl_gpu_replay_free(replay);
    expect_floats(r, a, N, TIMES, TIMES);
    sl_gpu_span spans[TIMES + 1];
    assert_int_equal(sl_gpu_spans(r->stream, spans, TIMES + 1), TIMES);
    for (int i = 1; i < TIMES; i++)
        assert_true(spans[i].begin >= spans[i - 1].end && spans[i].end >= spans[i].begin);
    sl_gpu_buffer_free(a);
    sl_gpu_buffer_free(b);
}

/* A list waits for the host in its middle; the second stream waits for the list. */
static void events(rig *r) {
    enum { N = 64 };
    sl_gpu_buffer *a = floats(r, N, 1, 0, SL_GPU_SHARED), *b = floats(r, N, 2, 0, SL_GPU_SHARED);
    sl_gpu_buffer *c = floats(r, N, 0, 0, SL_GPU_SHARED), *d = floats(r, N, 0, 0, SL_GPU_SHARED);
    sl_gpu_event *host = sl_gpu_event_new(r->g, &r->err), *done = sl_gpu_event_new(r->g, &r->err);
    sl_gpu_stream *second = sl_gpu_stream_new(r->g, &r->err);
    ok(r, host && done && second);
    sl_gpu_list *l = begin(r), *m = sl_gpu_begin(second, "second", &r->err);
    ok(r, sl_gpu_encode_wait(l, host, 1, &r->err));
    encode_add(r, l, a, b, c, N);
    ok(r, sl_gpu_encode_signal(l, done, 1, &r->err));
    ok(r, m && sl_gpu_encode_wait(m, done, 1, &r->err));
    encode_add(r, m, c, c, d, N);
    sl_gpu_ticket t = 0, u = 0;
    ok(r, sl_gpu_submit(m, &u, &r->err) && sl_gpu_submit(l, &t, &r->err));
    assert_false(sl_gpu_wait(second, u, 20000000, NULL, &r->err));
    expect_error(&r->err, SL_ERR_TIMEOUT, "still runs");
    assert_int_equal(sl_gpu_event_value(done), 0);
    assert_false(sl_gpu_event_signal(done, 2, &r->err)); /* the list would take it back to 1 */
    expect_error(&r->err, SL_ERR_ARGUMENT, "event: value 2, expected at most 1");
    ok(r, sl_gpu_event_signal(host, 1, &r->err));
    ok(r, sl_gpu_event_wait(done, 1, 20 * SECOND, &r->err));
    ok(r, sl_gpu_wait(second, u, 20 * SECOND, NULL, &r->err));
    ok(r, sl_gpu_wait(r->stream, t, 20 * SECOND, NULL, &r->err));
    expect_floats(r, d, N, 6, 0);
    ok(r, sl_gpu_event_signal(done, 2, &r->err));
    assert_int_equal(sl_gpu_event_value(done), 2);
    sl_gpu_stream_free(second);
    sl_gpu_event_free(host);
    sl_gpu_event_free(done);
    sl_gpu_buffer_free(a);
    sl_gpu_buffer_free(b);
    sl_gpu_buffer_free(c);
    sl_gpu_buffer_free(d);
}

/* A source's other kernels are there. */
static void kernels_left_out(rig *r) {
    const char *text = "kernel void fill(device float *x [[buffer(0)]]) {\n    x[0] = 1;\n}\n"
                       "kernel void blur(metal::texture2d<float> t [[texture(0)]]) {\n}\n";
    sl_gpu_library *l = sl_gpu_library_new(r->g, text, strlen(text), NULL, &r->err);
    ok(r, l != NULL);
    assert_int_equal(sl_gpu_library_count(l), 1);
    assert_null(sl_gpu_pipeline_new(l, "blur", NULL, 0, &r->err));
    expect_error(&r->err, SL_ERR_UNSUPPORTED, "it was left out: ");
    assert_non_null(strstr(r->err.message, ":4: kernel blur: textures are not supported"));
    sl_gpu_library_free(l);
}

/* What never reaches the driver, said the same way on every device. */
static void mistakes(rig *r) {
    uint32_t n = 4;
    sl_gpu_buffer *a = floats(r, 4, 0, 0, SL_GPU_SHARED);
    sl_gpu_binding bindings[] = {{.slot = 0, .buffer = a}, {.slot = 1, .buffer = a}, {.slot = 2, .buffer = a}};
    sl_gpu_dispatch d = {.pipeline = r->add, .groups = {1, 1, 1}, .threads = {32, 1, 1}, bindings, 3};
    sl_gpu_list *l = begin(r);
    assert_false(sl_gpu_encode(l, &d, &r->err));
    expect_error(&r->err, SL_ERR_ARGUMENT, "kernel 'add', slot 3 'n': nothing is bound");
    d.threads[0] = 4096;
    assert_false(sl_gpu_encode(l, &d, &r->err));
    expect_error(&r->err, SL_ERR_ARGUMENT, "4096 threads, this pipeline allows 1024");
    assert_null(sl_gpu_pipeline_new(r->library, "sub", NULL, 0, &r->err));
    expect_error(&r->err, SL_ERR_ARGUMENT, "no kernel 'sub' in the library, which has add, scale, total");
    const char *broken = "kernel void k(device float *x [[buffer(0)]]) {\n    x[0] = y;\n}\n";
    assert_null(sl_gpu_library_new(r->g, broken, strlen(broken), NULL, &r->err));
    expect_error(&r->err, SL_ERR_COMPILE, undeclared);
    assert_non_null(strstr(r->err.message, "kernel.metal:2: "));
    encode_add(r, l, a, a, a, n);
    finish(r, l);
    sl_gpu_buffer_free(a);
}

static void on_device(const char *name) {
    rig r;
    device = name;
    undeclared = strcmp(name, "cuda") == 0 ? ": identifier \"y\" is undefined" : ": use of undeclared identifier 'y'";
    for (int round = 0; round < 2; round++) { /* the second time from the cache */
        if (!rig_open(&r))
            return;
        rig_load(&r);
        chains(&r);
        lifetimes(&r);
        replays(&r);
        events(&r);
        mistakes(&r);
        kernels_left_out(&r);
        rig_close(&r);
    }
}

static void soft(void **state) {
    on_device("soft:2");
}

/* On a Mac the real one; elsewhere the stand-in, which then must hold nothing and have seen no rule broken. */
static void apple(void **state) {
    on_device("metal");
}

/* The GPU where SLUICE_TEST_DEVICE says so; else the stand-in, which then must hold nothing and have seen no rule
 * broken. */
static void nvidia(void **state) {
    on_device("cuda");
}

static int make_cache(void **state) {
    snprintf(cache, sizeof cache, "/tmp/sluice-devices-XXXXXX");
    return mkdtemp(cache) ? 0 : 1;
}

static int remove_cache(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", cache);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(soft),
        cmocka_unit_test_setup_teardown(nvidia, cuda_reset, cuda_left_clean),
#ifdef __APPLE__
        cmocka_unit_test(apple),
#else
        cmocka_unit_test_setup_teardown(apple, metal_reset, metal_left_clean),
#endif
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}

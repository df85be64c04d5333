/* The cuda device on its stand-in: what is missing is said, every call of the driver may fail, a kernel's fault breaks
 * the device once and for good, lists that come again become graphs, and nothing is left behind. */
#include "support_cuda.h"
#include "support_fake.h"

#include "gpu/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char source[] =
    "#include <metal_stdlib>\nusing namespace metal;\n"
    "struct args { uint n; float by; };\n"
    "kernel void scale(constant args &a [[buffer(0)]], device float *x [[buffer(1)]], uint i "
    "[[thread_position_in_grid]]) {\n    if (i < a.n)\n        x[i] *= a.by;\n}\n"
    "kernel void add(constant args &a [[buffer(0)]], device float *x [[buffer(1)]], uint i "
    "[[thread_position_in_grid]]) {\n    if (i < a.n)\n        x[i] += a.by;\n}\n"
    "kernel void more(constant float *v [[buffer(0)]], device float *x [[buffer(1)]], uint i "
    "[[thread_position_in_grid]]) {\n    if (i < 100)\n        x[i] += v[i % 4];\n}\n"
    "kernel void wild(device ulong *where [[buffer(0)]]) {\n    *(device uint *)where[0] = 1;\n}\n";

typedef struct args {
    uint32_t n;
    float by;
} args;

enum { N = 100 };

static char cache[64];

typedef struct rig {
    sl_gpu *g;
    sl_gpu_library *library;
    sl_gpu_pipeline *scale, *add, *more, *wild;
    sl_gpu_stream *stream;
    sl_gpu_buffer *x;
    sl_error err;
} rig;

static sl_gpu *open_cuda(const char *device, sl_error *err) {
    sl_gpu_options o = SL_GPU_OPTIONS_INIT;
    o.device = device;
    o.cache_dir = cache;
    return sl_gpu_open(&o, err);
}

static bool fill(rig *r) {
    float *p = sl_gpu_map(r->x, 0, N * 4, SL_GPU_WRITE, &r->err);
    for (int i = 0; p && i < N; i++)
        p[i] = (float)i;
    return p && sl_gpu_unmap(r->x, &r->err);
}

static bool rig_open(rig *r, sl_gpu_memory kind) {
    *r = (rig){0};
    return (r->g = open_cuda("cuda", &r->err)) &&
           (r->library = sl_gpu_library_new(r->g, source, strlen(source), NULL, &r->err)) &&
           (r->scale = sl_gpu_pipeline_new(r->library, "scale", NULL, 0, &r->err)) &&
           (r->add = sl_gpu_pipeline_new(r->library, "add", NULL, 0, &r->err)) &&
           (r->more = sl_gpu_pipeline_new(r->library, "more", NULL, 0, &r->err)) &&
           (r->wild = sl_gpu_pipeline_new(r->library, "wild", NULL, 0, &r->err)) &&
           (r->stream = sl_gpu_stream_new(r->g, &r->err)) && (r->x = sl_gpu_alloc(r->g, N * 4, kind, &r->err)) &&
           fill(r);
}

static void rig_close(rig *r) {
    sl_gpu_buffer_free(r->x);
    sl_gpu_stream_free(r->stream);
    sl_gpu_pipeline_free(r->scale);
    sl_gpu_pipeline_free(r->add);
    sl_gpu_pipeline_free(r->more);
    sl_gpu_pipeline_free(r->wild);
    sl_gpu_library_free(r->library);
    sl_gpu_close(r->g);
}

static bool encode(rig *r, sl_gpu_list *l, sl_gpu_pipeline *p, float by) {
    args a = {N, by};
    sl_gpu_binding b[] = {{.slot = 0, .bytes = &a, .length = sizeof a}, {.slot = 1, .buffer = r->x}};
    sl_gpu_dispatch d = {.pipeline = p, .groups = {4, 1, 1}, .threads = {32, 1, 1}, .bindings = b, .binding_count = 2};
    return sl_gpu_encode(l, &d, &r->err);
}

/* x = (x * 2 + 1) n times; waits. */
static bool run_steps(rig *r, int n) {
    sl_gpu_list *l = sl_gpu_begin(r->stream, "steps", &r->err);
    bool ok = l != NULL;
    for (int i = 0; ok && i < n; i++)
        ok = encode(r, l, r->scale, 2) && encode(r, l, r->add, 1);
    if (l && !ok)
        sl_gpu_list_free(l);
    sl_gpu_ticket t = 0;
    return ok && sl_gpu_submit(l, &t, &r->err) && sl_gpu_wait(r->stream, t, 20 * SECOND, NULL, &r->err);
}

static bool is_after(rig *r, int n) {
    const float *p = sl_gpu_map(r->x, 0, N * 4, SL_GPU_READ, &r->err);
    bool same = p != NULL;
    for (int i = 0; same && i < N; i++) {
        float want = (float)i;
        for (int k = 0; k < n; k++)
            want = want * 2 + 1;
        same = p[i] == want;
    }
    return same && sl_gpu_unmap(r->x, &r->err);
}

/* ---- what is missing -----------------------------------------------------------------------------------------------
 */

static void expect_missing(sl_code code, const char *words) {
    sl_error err = {0};
    assert_null(open_cuda("cuda", &err));
    expect_error(&err, code, words);
}

static void what_is_missing_is_said(void **state) {
    if (cuda_skips() || !cuda)
        skip();
    cuda->driver_version = 11040;
    expect_missing(SL_ERR_UNSUPPORTED, "the driver is made for CUDA 11.4, 12.0 or newer is needed");
    cuda->driver_version = 13000;
    cuda->nvrtc_major = 11;
    expect_missing(SL_ERR_UNSUPPORTED, "NVRTC is version 11.0, 12.0 or newer is needed");
    cuda->nvrtc_major = 13;
    cuda->devices = 0;
    expect_missing(SL_ERR_UNSUPPORTED, "an NVIDIA driver is here, but no GPU");
    cuda->devices = 1;
    cuda->major = 6;
    expect_missing(SL_ERR_UNSUPPORTED, "this GPU is sm_60, sm_70 or newer is needed");
    cuda->major = 9;
    cuda->no_host_pointer = true;
    expect_missing(SL_ERR_UNSUPPORTED, "shows pinned memory to the GPU at other addresses");
    cuda->no_host_pointer = false;
    setenv("SLUICE_NVRTC_LIBRARY", "/no/such/libnvrtc.so", 1);
    expect_missing(SL_ERR_UNSUPPORTED, "no NVRTC here");
    sl_error err = {0};
    assert_null(open_cuda("cuda:3", &err));
    setenv("SLUICE_NVRTC_LIBRARY", getenv("SLUICE_CUDA_LIBRARY"), 1);
    assert_null(open_cuda("cuda:3", &err));
    expect_error(&err, SL_ERR_ARGUMENT, "cuda:3: this system has 1 NVIDIA GPU, the first is cuda:0");
}

static void too_little_gpu_memory_names_what_is_needed(void **state) {
    if (cuda_skips() || !cuda)
        skip();
    rig r;
    assert_true(rig_open(&r, SL_GPU_PRIVATE));
    cuda->memory = cuda->allocated + 1000;
    assert_null(sl_gpu_alloc(r.g, 1 << 20, SL_GPU_PRIVATE, &r.err));
    expect_error(&r.err, SL_ERR_MEMORY, "1048576 bytes of GPU memory are needed, 1000 of ");
    assert_non_null(strstr(r.err.message, " are free on Stand-in 0"));
    rig_close(&r);
}

/* ---- every call fails once ------------------------------------------------------------------------------------------
 */

/* Whatever happens, it ends, says something where it failed, and leaves nothing. */
static bool scenario(void) {
    rig r;
    bool ok = rig_open(&r, SL_GPU_PRIVATE);
    for (int i = 0; ok && i < 3; i++)
        ok = run_steps(&r, 5);
    sl_gpu_list *l = ok ? sl_gpu_begin(r.stream, "kept", &r.err) : NULL;
    sl_gpu_replay *kept = NULL;
    sl_gpu_ticket t = 0;
    if (l) {
        ok = encode(&r, l, r.add, 0);
        kept = sl_gpu_keep(l, &r.err);
        ok =
            ok && kept && sl_gpu_replay_submit(kept, &t, &r.err) && sl_gpu_wait(r.stream, t, 20 * SECOND, NULL, &r.err);
    }
    ok = ok && is_after(&r, 15);
    if (!ok)
        assert_true(r.err.code != SL_OK && r.err.message[0]);
    sl_gpu_replay_free(kept);
    rig_close(&r);
    return ok;
}

static void every_call_fails_once(void **state) {
    static const char *const symbols[] = {
#define SYMBOL(name, text, needed, parameters) text,
        CUDA_FUNCTIONS(SYMBOL) NVRTC_FUNCTIONS(SYMBOL)
#undef SYMBOL
    };
    static const int results[] = {1, 2, 700};
    int failures = 0, runs = 0;
    if (cuda_skips() || !cuda)
        skip();
    assert_true(scenario()); /* from here on compiled kernels come from the cache */
    for (size_t i = 0; i < SL_COUNT(symbols); i++) {
        if (strcmp(symbols[i], "cuGetErrorName") == 0 || strcmp(symbols[i], "cuGetErrorString") == 0)
            continue; /* asked only where another has failed */
        for (int at = 1; at <= 3; at++) {
            cuda_reset(NULL);
            cuda->fail_call = symbols[i];
            cuda->fail_at = at;
            cuda->fail_result = results[(size_t)at % SL_COUNT(results)];
            failures += !scenario();
            runs++;
            if (cuda->violations)
                fail_msg("%s fails for the %d. time: %s", symbols[i], at, cuda->violation);
            cuda->fail_call = NULL;
            if (strcmp(symbols[i], "cuCtxPushCurrent_v2") == 0)
                cuda->alive = 0; /* without a context nothing can be freed */
            for (int ms = 0; ms < 2000 && cuda->alive; ms++)
                usleep(1000); /* a stream's thread has yet to come to what was given to it last */
            if (cuda->alive)
                fail_msg("%s fails for the %d. time: %ld objects are left", symbols[i], at, cuda->alive);
            assert_int_equal(cuda_left_clean(NULL), 0);
        }
    }
    print_message("%d runs, %d of them failed\n", runs, failures);
    assert_true(failures > 60);
    cuda_reset(NULL);
}

/* ---- a broken device ------------------------------------------------------------------------------------------------
 */

static void a_kernels_fault_is_told_once_and_the_device_is_lost(void **state) {
    if (cuda_skips() || !cuda)
        skip();
    rig r;
    assert_true(rig_open(&r, SL_GPU_SHARED));
    uint64_t *p = sl_gpu_map(r.x, 0, 8, SL_GPU_WRITE, &r.err);
    *p = 64; /* no address */
    assert_true(sl_gpu_unmap(r.x, &r.err));
    sl_gpu_binding b = {.slot = 0, .buffer = r.x};
    sl_gpu_dispatch d = {
        .pipeline = r.wild, .groups = {1, 1, 1}, .threads = {1, 1, 1}, .bindings = &b, .binding_count = 1};
    sl_gpu_list *l = sl_gpu_begin(r.stream, "bad", &r.err);
    sl_gpu_ticket t = 0;
    assert_true(l && sl_gpu_encode(l, &d, &r.err) && sl_gpu_submit(l, &t, &r.err));
    assert_false(sl_gpu_wait(r.stream, t, 20 * SECOND, NULL, &r.err));
    expect_error(&r.err, SL_ERR_DEVICE, "kernel wild, 1 x 1 x 1 threadgroups of 1 x 1 x 1, slot 0: 400 bytes at ");
    assert_non_null(strstr(r.err.message, "CUDA_ERROR_ILLEGAL_ADDRESS"));
    assert_null(sl_gpu_alloc(r.g, 64, SL_GPU_PRIVATE, &r.err));
    expect_error(&r.err, SL_ERR_DEVICE, "the device was lost before: ");
    assert_true(sl_gpu_stream_recover(r.stream, &r.err));
    assert_false(run_steps(&r, 1));
    expect_error(&r.err, SL_ERR_DEVICE, "the device was lost before: ");
    rig_close(&r);
}

/* A fault that is there before the list's end is given to the stream is told by that call. */
static void a_fault_found_at_the_end_of_a_list_names_its_kernel(void **state) {
    if (cuda_skips() || !cuda)
        skip();
    rig r;
    assert_true(rig_open(&r, SL_GPU_SHARED));
    sl_gpu_list *l = sl_gpu_begin(r.stream, "bad", &r.err);
    sl_gpu_ticket t = 0;
    assert_true(l && encode(&r, l, r.add, 1));
    cuda->fail_call = "cuEventRecord";
    cuda->fail_at = 2; /* the first is the list's beginning */
    cuda->fail_result = 700;
    assert_true(sl_gpu_submit(l, &t, &r.err));
    cuda->fail_call = NULL;
    assert_false(sl_gpu_wait(r.stream, t, 20 * SECOND, NULL, &r.err));
    expect_error(&r.err, SL_ERR_DEVICE,
                 "ending list 'bad': kernel add, 4 x 1 x 1 threadgroups of 32 x 1 x 1, slot 0: ");
    assert_non_null(strstr(r.err.message, "CUDA_ERROR_ILLEGAL_ADDRESS"));
    rig_close(&r);
}

static void a_device_that_hangs_times_out(void **state) {
    if (cuda_skips() || !cuda)
        skip();
    rig r;
    assert_true(rig_open(&r, SL_GPU_SHARED));
    cuda->hang = true;
    sl_gpu_list *l = sl_gpu_begin(r.stream, "late", &r.err);
    sl_gpu_ticket t = 0;
    assert_true(l && encode(&r, l, r.add, 1) && sl_gpu_submit(l, &t, &r.err));
    assert_false(sl_gpu_wait(r.stream, t, 20000000, NULL, &r.err));
    expect_error(&r.err, SL_ERR_TIMEOUT, "still runs");
    cuda->hang = false;
    assert_true(run_steps(&r, 1));
    assert_true(sl_gpu_wait(r.stream, t, 20 * SECOND, NULL, &r.err));
    rig_close(&r);
}

/* ---- graphs, values, words ------------------------------------------------------------------------------------------
 */

static void lists_that_come_again_are_graphs(void **state) {
    if (cuda_skips() || !cuda)
        skip();
    rig r;
    assert_true(rig_open(&r, SL_GPU_PRIVATE));
    for (int i = 0; i < 4; i++)
        assert_true(run_steps(&r, 5));
    assert_true(is_after(&r, 20));
    assert_int_equal(cuda->graphs, 1); /* made the second time, launched three times */
    assert_int_equal(cuda->graph_launches, 3);
    assert_true(run_steps(&r, 4)); /* another list */
    assert_int_equal(cuda->graph_launches, 3);
    sl_gpu_pipeline_free(r.wild); /* a graph may hold what is freed */
    r.wild = NULL;
    assert_true(run_steps(&r, 5));
    assert_true(is_after(&r, 29));
    assert_int_equal(cuda->graphs, 2);
    rig_close(&r);
}

/* The same list, whose result is copied to pages that are pinned for it alone. */
static bool copy_out(rig *r, float *to) {
    sl_gpu_buffer *b = sl_gpu_wrap(r->g, to, N * 4, &r->err);
    sl_gpu_list *l = b ? sl_gpu_begin(r->stream, "out", &r->err) : NULL;
    bool ok = l != NULL;
    for (int i = 0; ok && i < 5; i++)
        ok = encode(r, l, r->scale, 2) && encode(r, l, r->add, 1);
    ok = ok && sl_gpu_encode_copy(l, b, 0, r->x, 0, N * 4, &r->err);
    if (l && !ok)
        sl_gpu_list_free(l);
    sl_gpu_ticket t = 0;
    ok = ok && sl_gpu_submit(l, &t, &r->err) && sl_gpu_wait(r->stream, t, 20 * SECOND, NULL, &r->err);
    sl_gpu_buffer_free(b);
    return ok;
}

/* On an H200 a graph that copied to pages which were unpinned and pinned again failed, or brought the program down. */
static void no_graph_outlives_the_pages_it_copies_to(void **state) {
    if (cuda_skips() || !cuda)
        skip();
    rig r;
    float *to = aligned_alloc(4096, 4096);
    assert_true(rig_open(&r, SL_GPU_PRIVATE));
    for (int i = 0; i < 4; i++) {
        memset(to, 0xff, N * 4);
        assert_true(copy_out(&r, to));
        float want = 1;
        for (int k = 0; k < 5 * (i + 1); k++)
            want = want * 2 + 1;
        assert_true(to[1] == want);
    }
    assert_int_equal(cuda->graph_launches, 0);
    for (int i = 0; i < 3; i++)
        assert_true(run_steps(&r, 5)); /* nothing is unpinned: graphs again */
    assert_int_equal(cuda->graph_launches, 2);
    rig_close(&r);
    free(to);
}

/* x += 8 v, once the event has the value. */
static bool submit_more(rig *r, sl_gpu_event *e, uint64_t value, float v, sl_gpu_ticket *t) {
    const float four[4] = {v, v, v, v};
    sl_gpu_binding b[] = {{.slot = 0, .bytes = four, .length = sizeof four}, {.slot = 1, .buffer = r->x}};
    sl_gpu_dispatch d = {
        .pipeline = r->more, .groups = {4, 1, 1}, .threads = {32, 1, 1}, .bindings = b, .binding_count = 2};
    sl_gpu_list *l = sl_gpu_begin(r->stream, "more", &r->err);
    bool ok = l && (!e || sl_gpu_encode_wait(l, e, value, &r->err));
    for (int i = 0; ok && i < 8; i++)
        ok = sl_gpu_encode(l, &d, &r->err);
    if (l && !ok)
        sl_gpu_list_free(l);
    return ok && sl_gpu_submit(l, t, &r->err);
}

/* Behind a wait a graph's arguments are still the host's when the graph is dropped, here since memory was given back.
 */
static void arguments_of_a_dropped_graph_stay_until_they_are_there(void **state) {
    if (cuda_skips() || !cuda)
        skip();
    rig r;
    sl_gpu_ticket t = 0;
    float *other = aligned_alloc(4096, 4096);
    assert_true(rig_open(&r, SL_GPU_PRIVATE));
    sl_gpu_event *e = sl_gpu_event_new(r.g, &r.err);
    assert_true(e && submit_more(&r, NULL, 0, 1, &t) && sl_gpu_wait(r.stream, t, 20 * SECOND, NULL, &r.err));
    assert_true(submit_more(&r, e, 1, 1, &t)); /* the second time: a graph */
    assert_int_equal(cuda->graphs, 1);
    sl_gpu_buffer *b = sl_gpu_wrap(r.g, other, 4096, &r.err);
    assert_non_null(b);
    sl_gpu_buffer_free(b);
    assert_true(submit_more(&r, NULL, 0, 100, &t));
    assert_true(sl_gpu_event_signal(e, 1, &r.err) && sl_gpu_wait(r.stream, t, 20 * SECOND, NULL, &r.err));
    float got[N];
    assert_true(sl_gpu_get(r.x, 0, got, sizeof got, &r.err));
    for (int i = 0; i < N; i++)
        assert_true(got[i] == (float)i + 8 + 8 + 800);
    sl_gpu_event_free(e);
    rig_close(&r);
    free(other);
}

/* Making graphs costs more than they save where none is there still when it is wanted. */
static void more_lists_in_turn_than_there_is_room_for_keep_the_first_ones_graphs(void **state) {
    enum { LISTS = CUDA_GRAPHS + 20, ROUNDS = 4 };
    if (cuda_skips() || !cuda)
        skip();
    rig r;
    sl_gpu_ticket t = 0;
    float got[N], sum = 0;
    assert_true(rig_open(&r, SL_GPU_PRIVATE));
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < LISTS; i++) {
            assert_true(submit_more(&r, NULL, 0, (float)i, &t));
            sum += 8 * (float)i;
        }
    assert_true(sl_gpu_wait(r.stream, t, 60 * SECOND, NULL, &r.err) && sl_gpu_get(r.x, 0, got, sizeof got, &r.err));
    assert_true(got[0] == sum);
    assert_int_equal(cuda->graphs, CUDA_GRAPHS);
    assert_int_equal(cuda->graph_launches, CUDA_GRAPHS * (ROUNDS - 1));
    rig_close(&r);
}

/* What the stand-in is strict about: to the driver a graph's copies are to the memory that was there. */
static void a_graph_that_copies_to_pages_pinned_anew_fails_on_the_stand_in(void **state) {
    if (cuda_skips() || !cuda)
        skip();
    cuda_api a = {0};
    cuda_context context = NULL;
    cuda_queue q = NULL;
    cuda_address x = 0;
    cuda_graph graph = NULL;
    cuda_exec exec = NULL;
    cuda_mark mark = NULL;
    sl_error err;
    void *to = aligned_alloc(4096, 4096);
    assert_true(cuda_api_open(&a, &err) && a.init(0) == CUDA_OK && a.context_retain(&context, 0) == CUDA_OK);
    assert_true(a.context_push(context) == CUDA_OK && a.queue_new(&q, 0) == CUDA_OK && a.mark_new(&mark, 0) == CUDA_OK);
    assert_true(a.memory_alloc(&x, 4096, q) == CUDA_OK && a.host_register(to, 4096, 0) == CUDA_OK);
    assert_true(a.queue_capture(q, CUDA_CAPTURE_RELAXED) == CUDA_OK);
    assert_true(a.copy((uintptr_t)to, x, 64, q) == CUDA_OK && a.queue_captured(q, &graph) == CUDA_OK);
    assert_true(a.graph_exec(&exec, graph, 0) == CUDA_OK && a.graph_free(graph) == CUDA_OK);
    for (int anew = 0; anew < 2; anew++) {
        cuda_result r;
        if (anew)
            assert_true(a.host_unregister(to) == CUDA_OK && a.host_register(to, 4096, 0) == CUDA_OK);
        assert_int_equal(a.exec_launch(exec, q), CUDA_OK);
        r = a.mark_record(mark, q); /* the launch may have failed by now */
        for (bool asked = false; r == CUDA_NOT_READY || (r == CUDA_OK && !asked); asked = true) {
            usleep(100);
            r = a.mark_query(mark);
        }
        assert_int_equal(r, anew ? 719 : CUDA_OK);
    }
    assert_int_equal(cuda->violations, 1);
    cuda->violations = 0;
    a.exec_free(exec);
    a.mark_free(mark);
    a.memory_free(x, q);
    a.host_unregister(to);
    a.queue_free(q);
    a.context_pop(&context);
    a.context_release(0);
    free(to);
}

static void a_buffer_may_be_bound_where_bytes_could_be(void **state) {
    if (cuda_skips() || !cuda)
        skip();
    rig r;
    assert_true(rig_open(&r, SL_GPU_SHARED));
    args a = {N, 3};
    sl_gpu_buffer *b = sl_gpu_alloc(r.g, sizeof a, SL_GPU_PRIVATE, &r.err);
    assert_true(b && sl_gpu_put(b, 0, &a, sizeof a, &r.err));
    sl_gpu_binding bindings[] = {{.slot = 0, .buffer = b}, {.slot = 1, .buffer = r.x}};
    sl_gpu_dispatch d = {
        .pipeline = r.add, .groups = {4, 1, 1}, .threads = {32, 1, 1}, .bindings = bindings, .binding_count = 2};
    sl_gpu_list *l = sl_gpu_begin(r.stream, "pointers", &r.err);
    sl_gpu_ticket t = 0;
    assert_true(l && sl_gpu_encode(l, &d, &r.err) && sl_gpu_submit(l, &t, &r.err) &&
                sl_gpu_wait(r.stream, t, 20 * SECOND, NULL, &r.err));
    float got[N];
    assert_true(sl_gpu_get(r.x, 0, got, sizeof got, &r.err));
    for (int i = 0; i < N; i++)
        assert_true(got[i] == (float)i + 3);
    sl_gpu_buffer_free(b);
    rig_close(&r);
}

/* Where streams have no words, functions on the host serve. */
static void events_without_words(void **state) {
    if (cuda_skips() || !cuda)
        skip();
    rig r;
    cuda->words = false;
    assert_true(rig_open(&r, SL_GPU_SHARED));
    sl_gpu_event *go = sl_gpu_event_new(r.g, &r.err), *done = sl_gpu_event_new(r.g, &r.err);
    sl_gpu_list *l = sl_gpu_begin(r.stream, "events", &r.err);
    sl_gpu_ticket t = 0;
    assert_true(go && done && l && sl_gpu_encode_wait(l, go, 1, &r.err) && encode(&r, l, r.add, 1) &&
                sl_gpu_encode_signal(l, done, 7, &r.err) && sl_gpu_submit(l, &t, &r.err));
    assert_false(sl_gpu_wait(r.stream, t, 20000000, NULL, &r.err));
    assert_true(sl_gpu_event_signal(go, 1, &r.err));
    assert_true(sl_gpu_event_wait(done, 7, 20 * SECOND, &r.err));
    assert_true(sl_gpu_wait(r.stream, t, 20 * SECOND, NULL, &r.err));
    sl_gpu_event_free(go);
    sl_gpu_event_free(done);
    rig_close(&r);
}

/* ---- pinned pages, processes ----------------------------------------------------------------------------------------
 */

/* The driver refuses to pin a page twice; blocks of malloc's share pages. */
static void wraps_may_share_pages(void **state) {
    if (cuda_skips() || !cuda)
        skip();
    rig r;
    assert_true(rig_open(&r, SL_GPU_SHARED));
    uint8_t *space = aligned_alloc(4096, 5 * 4096);
    memset(space, 0, 5 * 4096);
    uint64_t before = cuda->pinned;
    sl_gpu_buffer *a = sl_gpu_wrap(r.g, space + 100, 4096, &r.err), *b = sl_gpu_wrap(r.g, space + 4200, 8192, &r.err),
                  *c = sl_gpu_wrap(r.g, space, 5 * 4096, &r.err);
    assert_true(a && b && c);
    assert_int_equal(cuda->pinned - before, 5 * 4096);
    sl_gpu_list *l = sl_gpu_begin(r.stream, "across", &r.err);
    sl_gpu_ticket t = 0;
    assert_true(l && sl_gpu_encode_fill(l, c, 0, 5 * 4096, 3, &r.err) && sl_gpu_submit(l, &t, &r.err) &&
                sl_gpu_wait(r.stream, t, 20 * SECOND, NULL, &r.err));
    assert_int_equal(space[5 * 4096 - 1], 3);
    sl_gpu_buffer_free(c);
    assert_int_equal(cuda->pinned - before, 4 * 4096);
    sl_gpu_buffer_free(a);
    sl_gpu_buffer_free(b);
    assert_int_equal(cuda->pinned, before);
    free(space);
    rig_close(&r);
}

static void a_forked_child_is_refused(void **state) {
    if (cuda_skips() || !cuda)
        skip();
    rig r;
    assert_true(rig_open(&r, SL_GPU_SHARED));
    pid_t child = fork();
    if (child == 0) {
        bool refused = !sl_gpu_alloc(r.g, 64, SL_GPU_PRIVATE, &r.err) && strstr(r.err.message, "before a fork");
        _exit(refused ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    rig_close(&r);
}

static int make_cache(void **state) {
    snprintf(cache, sizeof cache, "/tmp/sluice-cuda-XXXXXX");
    return mkdtemp(cache) ? 0 : 1;
}

static int remove_cache(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", cache);
    return system(command);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, cuda_reset, cuda_left_clean)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(what_is_missing_is_said),
        TEST(too_little_gpu_memory_names_what_is_needed),
        TEST(a_kernels_fault_is_told_once_and_the_device_is_lost),
        TEST(a_fault_found_at_the_end_of_a_list_names_its_kernel),
        TEST(a_device_that_hangs_times_out),
        TEST(lists_that_come_again_are_graphs),
        TEST(no_graph_outlives_the_pages_it_copies_to),
        TEST(arguments_of_a_dropped_graph_stay_until_they_are_there),
        TEST(more_lists_in_turn_than_there_is_room_for_keep_the_first_ones_graphs),
        TEST(a_graph_that_copies_to_pages_pinned_anew_fails_on_the_stand_in),
        TEST(a_buffer_may_be_bound_where_bytes_could_be),
        TEST(events_without_words),
        TEST(wraps_may_share_pages),
        TEST(a_forked_child_is_refused),
        TEST(every_call_fails_once),
    };
    cmocka_set_test_filter(getenv("ONLY"));
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}

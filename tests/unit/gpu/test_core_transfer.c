/* sl_gpu_put and sl_gpu_get as a program meets them, on every device there is here: any offset and size, ranges that
 * are none, lists in flight, failed lists, handles that are gone, several threads. */
#include "support_cuda.h"
#include "support_lists.h"
#include "support_metal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char source[] = "kernel void add(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],\n"
                             "                constant uint &n [[buffer(2)]], uint i [[thread_position_in_grid]]) {\n"
                             "    if (i < n)\n"
                             "        out[i] = out[i] + a[i];\n"
                             "}\n";

typedef struct rig {
    sl_gpu *g;
    sl_gpu_library *library;
    sl_gpu_pipeline *add;
    sl_gpu_stream *stream;
    sl_error err;
} rig;

static const char *device; /* of the running test */
static char cache[64];

static void ok(const rig *r, bool good) {
    if (!good)
        fail_msg("%s: %s", device, r->err.message);
}

static bool rig_open(rig *r) {
    sl_gpu_options o = SL_GPU_OPTIONS_INIT;
    *r = (rig){0};
    o.device = device;
    o.cache_dir = cache;
    r->g = sl_gpu_open(&o, &r->err);
    if (!r->g) {
        print_message("SKIP: %s: %s\n", device, r->err.message);
        return false;
    }
    ok(r, (r->library = sl_gpu_library_new(r->g, source, strlen(source), NULL, &r->err)) != NULL);
    ok(r, (r->add = sl_gpu_pipeline_new(r->library, "add", NULL, 0, &r->err)) != NULL);
    ok(r, (r->stream = sl_gpu_stream_new(r->g, &r->err)) != NULL);
    return true;
}

static void rig_close(rig *r) {
    sl_gpu_stream_free(r->stream);
    sl_gpu_pipeline_free(r->add);
    sl_gpu_library_free(r->library);
    assert_int_equal(sl_gpu_allocated(r->g), 0);
    sl_gpu_close(r->g);
}

static const sl_gpu_memory kinds[] = {SL_GPU_SHARED, SL_GPU_PRIVATE};

/* ---- ranges ------------------------------------------------------------------------------------------------------ */

enum { BYTES = 10007 };

static void fill(uint8_t *p, size_t n, unsigned seed) {
    srand(seed);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)rand();
}

/* Each put changes its bytes alone; each get brings its bytes and writes no others. `expected` is what b holds. */
static void check_ranges(rig *r, sl_gpu_buffer *b, uint8_t *expected) {
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 63, 64, 65, 255, 1021, 4095, 4096, 4097};
    static uint8_t from[BYTES], to[BYTES + 16], poison[BYTES + 16];
    memset(poison, 0xa5, sizeof poison);
    for (unsigned round = 0; round < 60; round++) {
        fill(from, sizeof from, 100 + round);
        uint64_t n = sizes[(unsigned)rand() % SL_COUNT(sizes)], at = (uint64_t)rand() % (BYTES - n + 1),
                 skew = (uint64_t)rand() % 8;
        at = round == 0 ? 0 : round == 1 ? BYTES - n : at;
        ok(r, sl_gpu_put(b, at, from + skew, n, &r->err));
        memcpy(expected + at, from + skew, n);
        n = sizes[(unsigned)rand() % SL_COUNT(sizes)];
        at = (uint64_t)rand() % (BYTES - n + 1);
        memset(to, 0xa5, sizeof to);
        ok(r, sl_gpu_get(b, at, to + skew, n, &r->err));
        assert_memory_equal(to + skew, expected + at, n);
        assert_memory_equal(to, poison, skew);
        assert_memory_equal(to + skew + n, poison, sizeof to - skew - n);
    }
    ok(r, sl_gpu_get(b, 0, to, BYTES, &r->err));
    assert_memory_equal(to, expected, BYTES);
}

static void any_offset_and_size(rig *r) {
    static uint8_t expected[BYTES], host[BYTES + 3], to[BYTES];
    for (size_t k = 0; k < SL_COUNT(kinds); k++) {
        sl_gpu_buffer *b = sl_gpu_alloc(r->g, BYTES, kinds[k], &r->err);
        ok(r, b != NULL);
        fill(expected, BYTES, 1);
        ok(r, sl_gpu_put(b, 0, expected, BYTES, &r->err));
        check_ranges(r, b, expected);
        sl_gpu_buffer *part = sl_gpu_view(b, 1001, 777, &r->err), *within = sl_gpu_view(part, 5, 700, &r->err);
        ok(r, part && within && sl_gpu_get(within, 3, to, 600, &r->err));
        assert_memory_equal(to, expected + 1001 + 5 + 3, 600);
        ok(r, sl_gpu_put(within, 699, "x", 1, &r->err) && sl_gpu_get(b, 1001 + 5 + 699, to, 1, &r->err));
        assert_int_equal(to[0], 'x');
        sl_gpu_buffer_free(within);
        sl_gpu_buffer_free(part);
        sl_gpu_buffer_free(b);
    }
    fill(host, sizeof host, 2); /* wrapped, at an odd address: the host sees what was put, also of its own bytes */
    sl_gpu_buffer *w = sl_gpu_wrap(r->g, host + 3, BYTES, &r->err);
    memcpy(expected, host + 3, BYTES);
    ok(r, w != NULL);
    check_ranges(r, w, expected);
    assert_memory_equal(host + 3, expected, BYTES);
    ok(r, sl_gpu_put(w, 10, host + 3, 5000, &r->err)); /* overlapping */
    memmove(expected + 10, expected, 5000);
    assert_memory_equal(host + 3, expected, BYTES);
    sl_gpu_buffer_free(w);
}

static void refused(rig *r, bool done, const char *words) {
    assert_false(done);
    expect_error(&r->err, SL_ERR_ARGUMENT, words);
}

/* Each is an error that names the call and the range, and nothing is written: not to the buffer, nor to the host. */
static void ranges_that_are_none(rig *r) {
    uint8_t bytes[256], same[256];
    memset(bytes, 0x5a, sizeof bytes);
    memset(same, 0x5a, sizeof same);
    for (size_t k = 0; k < SL_COUNT(kinds); k++) {
        sl_gpu_buffer *b = sl_gpu_alloc(r->g, 100, kinds[k], &r->err);
        ok(r, b && sl_gpu_put(b, 0, same, 100, &r->err));
        memset(bytes, 1, sizeof bytes);
        refused(r, sl_gpu_put(b, 0, bytes, 101, &r->err),
                "sl_gpu_put: 101 bytes at offset 0 end at 101, the buffer has 100");
        refused(r, sl_gpu_put(b, 100, bytes, 1, &r->err),
                "sl_gpu_put: 1 bytes at offset 100 end at 101, the buffer has 100");
        refused(r, sl_gpu_put(b, UINT64_MAX - 3, bytes, 8, &r->err), "sl_gpu_put: 8 bytes at offset 184467");
        refused(r, sl_gpu_put(b, 8, bytes, UINT64_MAX - 3, &r->err), "the buffer has 100");
        refused(r, sl_gpu_put(b, 0, bytes, 0, &r->err), "sl_gpu_put: 0 bytes, expected at least 1");
        refused(r, sl_gpu_put(b, 0, NULL, 4, &r->err), "sl_gpu_put: 4 bytes at NULL");
        memset(bytes, 0x5a, sizeof bytes);
        refused(r, sl_gpu_get(b, 99, bytes, 2, &r->err),
                "sl_gpu_get: 2 bytes at offset 99 end at 101, the buffer has 100");
        refused(r, sl_gpu_get(b, UINT64_MAX, bytes, 1, &r->err), "sl_gpu_get: 1 bytes at offset 184467");
        refused(r, sl_gpu_get(b, 50, bytes, 0, &r->err), "sl_gpu_get: 0 bytes, expected at least 1");
        refused(r, sl_gpu_get(b, 0, NULL, 4, &r->err), "sl_gpu_get: 4 bytes at NULL");
        sl_gpu_buffer *part = sl_gpu_view(b, 90, 10, &r->err);
        refused(r, sl_gpu_get(part, 5, bytes, 6, &r->err), "6 bytes at offset 5 end at 11, the buffer has 10");
        sl_gpu_buffer_free(part);
        assert_memory_equal(bytes, same, sizeof bytes);
        assert_false(sl_gpu_get(b, 99, bytes, 2, NULL)); /* without an error to fill */
        ok(r, sl_gpu_get(b, 0, bytes, 100, &r->err));
        assert_memory_equal(bytes, same, 100);
        sl_gpu_buffer_free(b);
        refused(r, sl_gpu_put(b, 0, bytes, 4, &r->err), "freed before");
        refused(r, sl_gpu_get(b, 0, bytes, 4, &r->err), "freed before");
    }
    refused(r, sl_gpu_put(NULL, 0, bytes, 4, &r->err), "the handle is NULL");
    refused(r, sl_gpu_get(NULL, 0, bytes, 4, &r->err), "the handle is NULL");
}

static void beside_a_mapping(rig *r) {
    for (size_t k = 0; k < SL_COUNT(kinds); k++) {
        uint32_t word = 7, *p = NULL;
        sl_gpu_buffer *b = sl_gpu_alloc(r->g, 64, kinds[k], &r->err);
        ok(r, b && (p = sl_gpu_map(b, 0, 4, SL_GPU_WRITE, &r->err)));
        refused(r, sl_gpu_put(b, 32, &word, 4, &r->err), "sl_gpu_put: the buffer is mapped already: unmap it first");
        refused(r, sl_gpu_get(b, 32, &word, 4, &r->err), "sl_gpu_get: the buffer is mapped already: unmap it first");
        *p = 8;
        ok(r, sl_gpu_unmap(b, &r->err) && sl_gpu_get(b, 0, &word, 4, &r->err));
        assert_int_equal(word, 8);
        sl_gpu_buffer_free(b);
    }
}

/* ---- lists in flight --------------------------------------------------------------------------------------------- */

enum { N = 1000 };

static void encode_add(rig *r, sl_gpu_list *l, sl_gpu_buffer *a, sl_gpu_buffer *out) {
    uint32_t n = N;
    sl_gpu_dispatch d = {.pipeline = r->add,
                         .groups = {(N + 63) / 64, 1, 1},
                         .threads = {64, 1, 1},
                         .bindings = (sl_gpu_binding[]){{.slot = 0, .buffer = a},
                                                        {.slot = 1, .buffer = out},
                                                        {.slot = 2, .bytes = &n, .length = sizeof n}},
                         .binding_count = 3};
    ok(r, sl_gpu_encode(l, &d, &r->err));
}

static void put_all(rig *r, sl_gpu_buffer *b, float value) {
    float x[N];
    for (int i = 0; i < N; i++)
        x[i] = value;
    ok(r, sl_gpu_put(b, 0, x, sizeof x, &r->err));
}

static void expect_all(rig *r, sl_gpu_buffer *b, float value) {
    float x[N];
    memset(x, 0xff, sizeof x);
    ok(r, sl_gpu_get(b, 0, x, sizeof x, &r->err));
    for (int i = 0; i < N; i++)
        if (x[i] != value)
            fail_msg("%s: element %d is %g, expected %g", device, i, (double)x[i], (double)value);
}

typedef struct late {
    sl_gpu_event *event;
    atomic_bool raised;
} late;

static void *raise_later(void *arg) {
    late *w = arg;
    usleep(30000);
    atomic_store(&w->raised, true);
    return sl_gpu_event_signal(w->event, 1, NULL) ? NULL : w;
}

/* A list that the host holds back uses a, reading, and out. Who puts into what it reads, or gets or puts what it
 * writes, comes after it; who gets what it reads, or has to do with other bytes, does not wait. */
static void lists_in_flight(rig *r, sl_gpu_memory kind, int which) {
    sl_gpu_buffer *a = sl_gpu_alloc(r->g, (N + 8) * 4, kind, &r->err), *out = sl_gpu_alloc(r->g, N * 4, kind, &r->err);
    sl_gpu_buffer *head = sl_gpu_view(a, 0, N * 4, &r->err);
    late w = {.event = sl_gpu_event_new(r->g, &r->err)};
    ok(r, a && out && head && w.event);
    put_all(r, head, 2);
    put_all(r, out, 40);
    sl_gpu_list *l = sl_gpu_begin(r->stream, "held back", &r->err);
    ok(r, l && sl_gpu_encode_wait(l, w.event, 1, &r->err));
    encode_add(r, l, head, out);
    sl_gpu_ticket t;
    ok(r, sl_gpu_submit(l, &t, &r->err));
    float beside[8] = {1, 2, 3, 4, 5, 6, 7, 8}, got[8] = {0};
    expect_all(r, head, 2);
    ok(r, sl_gpu_put(a, N * 4, beside, sizeof beside, &r->err) && sl_gpu_get(a, N * 4, got, sizeof got, &r->err));
    assert_memory_equal(got, beside, sizeof got);
    pthread_t thread;
    void *wrong;
    assert_int_equal(pthread_create(&thread, NULL, raise_later, &w), 0);
    if (which == 0)
        put_all(r, a, 100);
    else if (which == 1)
        expect_all(r, out, 42);
    else
        put_all(r, out, 7);
    assert_true(atomic_load(&w.raised)); /* it waited */
    assert_int_equal(pthread_join(thread, &wrong), 0);
    assert_null(wrong);
    expect_all(r, head, which == 0 ? 100 : 2);
    expect_all(r, out, which == 2 ? 7 : 42);
    l = sl_gpu_begin(r->stream, "after", &r->err); /* lists see what was put */
    ok(r, l != NULL);
    encode_add(r, l, head, out);
    ok(r, sl_gpu_submit(l, &t, &r->err));
    expect_all(r, out, (which == 2 ? 7 : 42) + (which == 0 ? 100.0f : 2.0f));
    sl_gpu_event_free(w.event);
    sl_gpu_buffer_free(head);
    sl_gpu_buffer_free(a);
    sl_gpu_buffer_free(out);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 3, SHARE = 4099, ROUNDS = 60 };

typedef struct worker {
    sl_gpu_buffer *b;
    int index;
    sl_error err;
} worker;

static void *put_and_get(void *arg) {
    worker *w = arg;
    uint8_t x[SHARE], y[SHARE];
    for (int round = 0; round < ROUNDS; round++) {
        size_t n = 1 + (size_t)(round * 1237 + w->index * 71) % SHARE, at = (size_t)w->index * SHARE + (SHARE - n) / 2;
        memset(x, w->index * 80 + round, n);
        memset(y, 0xff, n);
        if (!sl_gpu_put(w->b, at, x, n, &w->err) || !sl_gpu_get(w->b, at, y, n, &w->err))
            return "an error";
        if (memcmp(x, y, n) != 0)
            return "other bytes";
    }
    return NULL;
}

/* Each has bytes of its own, side by side in one buffer, while lists run beside them in the same memory. */
static void threads(rig *r, sl_gpu_memory kind) {
    uint64_t mine = (THREADS * SHARE + 3) / 4 * 4;
    sl_gpu_buffer *b = sl_gpu_alloc(r->g, mine + N * 8, kind, &r->err);
    sl_gpu_buffer *one = sl_gpu_view(b, mine, N * 4, &r->err), *sum = sl_gpu_view(b, mine + N * 4, N * 4, &r->err);
    ok(r, b && one && sum);
    put_all(r, one, 1);
    put_all(r, sum, 0);
    worker w[THREADS];
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++) {
        w[i] = (worker){.b = b, .index = i};
        assert_int_equal(pthread_create(&thread[i], NULL, put_and_get, &w[i]), 0);
    }
    for (int i = 1; i <= 20; i++) {
        sl_gpu_ticket t;
        sl_gpu_list *l = sl_gpu_begin(r->stream, "beside", &r->err);
        ok(r, l != NULL);
        encode_add(r, l, one, sum);
        ok(r, sl_gpu_submit(l, &t, &r->err));
        expect_all(r, sum, (float)i);
    }
    for (int i = 0; i < THREADS; i++) {
        void *wrong;
        assert_int_equal(pthread_join(thread[i], &wrong), 0);
        if (wrong)
            fail_msg("%s: thread %d: %s %s", device, i, (const char *)wrong, w[i].err.message);
    }
    sl_gpu_buffer_free(one);
    sl_gpu_buffer_free(sum);
    sl_gpu_buffer_free(b);
}

static void on_device(const char *name) {
    rig r;
    device = name;
    if (!rig_open(&r))
        return;
    any_offset_and_size(&r);
    ranges_that_are_none(&r);
    beside_a_mapping(&r);
    for (size_t k = 0; k < SL_COUNT(kinds); k++) {
        for (int which = 0; which < 3; which++)
            lists_in_flight(&r, kinds[k], which);
        threads(&r, kinds[k]);
    }
    rig_close(&r);
}

static void soft(void **state) {
    on_device("soft:2");
}

static void apple(void **state) {
    on_device("metal");
}

static void nvidia(void **state) {
    on_device("cuda");
}

/* ---- the recording device ---------------------------------------------------------------------------------------- */

static void memory_of_the_device_is_copied_once_and_not_read_to_be_written(void **state) {
    uint8_t x[64] = {1};
    sl_error err = {0};
    fake.discrete = true;
    bench b = bench_open();
    sl_gpu_buffer *p = sl_gpu_alloc(b.g, 64, SL_GPU_PRIVATE, &err);
    assert_true(p && sl_gpu_put(p, 1, x, 5, &err));
    assert_int_equal(fake_calls("write"), 1);
    assert_int_equal(fake_calls("read"), 0);
    assert_true(sl_gpu_get(p, 1, x, 5, &err));
    assert_int_equal(fake_calls("write"), 1);
    assert_int_equal(fake_calls("read"), 1);
    sl_gpu_buffer_free(p);
    bench_close(&b);
}

static void a_driver_that_fails_is_told(void **state) {
    uint8_t x[64] = {1};
    sl_error err = {0};
    fake.discrete = true;
    bench b = bench_open();
    sl_gpu_buffer *p = sl_gpu_alloc(b.g, 64, SL_GPU_PRIVATE, &err);
    fake.fail_call = "write";
    fake.fail_at = 1;
    assert_false(sl_gpu_put(p, 0, x, 64, &err));
    assert_non_null(strstr(err.message, "write"));
    fake.fail_call = "read";
    fake.fail_at = 2; /* the failed write was the first */
    assert_false(sl_gpu_get(p, 0, x, 64, &err));
    assert_non_null(strstr(err.message, "read"));
    fake.fail_at = 0;
    assert_true(sl_gpu_put(p, 0, x, 64, &err));
    sl_gpu_buffer_free(p);
    bench_close(&b);
}

/* As of a mapping: what a failed list should have written is not handed out until its stream has recovered. */
static void what_a_failed_list_wrote_is_not_got(void **state) {
    float x[16] = {0};
    sl_error err = {0};
    fake.fail_list = "bad";
    bench b = bench_open();
    sl_gpu_list *l = begin(&b, "bad");
    add(l, &b, b.a, b.b, b.out);
    bench_submit(l);
    assert_false(sl_gpu_get(b.out, 0, x, 4, &err));
    expect_error(&err, SL_ERR_DEVICE, "sl_gpu_get: the buffer's contents are not what was asked for: ");
    assert_non_null(strstr(err.message, "injected fault"));
    assert_true(sl_gpu_get(b.a, 0, x, 4, &err)); /* it only read that */
    assert_true(sl_gpu_put(b.out, 0, x, 4, &err));
    assert_true(sl_gpu_stream_recover(b.stream, &err));
    assert_true(sl_gpu_get(b.out, 0, x, 4, &err));
    bench_close(&b);
}

static int make_cache(void **state) {
    snprintf(cache, sizeof cache, "/tmp/sluice-transfer-XXXXXX");
    return mkdtemp(cache) ? 0 : 1;
}

static int remove_cache(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", cache);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(memory_of_the_device_is_copied_once_and_not_read_to_be_written),
        TEST(a_driver_that_fails_is_told),
        TEST(what_a_failed_list_wrote_is_not_got),
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

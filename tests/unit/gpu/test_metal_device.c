/* The metal device: what it says of a machine, memory, lists, events, and that nothing of it stays behind. */
#include "support_metal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const gpu_driver *const driver = &gpu_driver_metal;

/* ---- opening ------------------------------------------------------------------------------------------------------
 */

static const sl_gpu_info *info_of(gpu_device *d) {
    return &((gpu_device_base *)d)->info;
}

static void a_machine_is_described(void **state) {
    static const struct {
        const char *system, *name, *family, *described;
        int apple, language;
        bool metal3, unified, bfloat, matrix, virtual_device, residency;
        const char *missing;
    } cases[] = {
        {"13.6.1", "Apple M1", "apple7", "macOS 13.6.1 22G1", 7, 30, true, true, false, true, false, false,
         "MTLResidencySetDescriptor"},
        {"14.5", "Apple M2", "apple8", "macOS 14.5 22G1", 8, 31, true, true, true, true, false, false,
         "newResidencySetWithDescriptor:error:"},
        {"15.2", "Apple M3 Max", "apple9", "macOS 15.2 22G1", 9, 32, true, true, true, true, false, true, NULL},
        {"26.0", "Apple M5", "apple10", "macOS 26.0 22G1", 10, 40, true, true, true, true, false, true, NULL},
        {"27.1", "Apple M7", "apple21", "macOS 27.1 22G1", 21, 41, true, true, true, true, false, true, NULL},
        {"14.0", "Apple Paravirtual device", "apple5", "macOS 14.0 22G1", 5, 31, false, true, false, false, true, false,
         NULL},
        {"13.0", "AMD Radeon Pro", "mac2", "macOS 13.0 22G1", 0, 30, true, false, false, false, false, true, NULL},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        metal->system = cases[i].system;
        metal->build = "22G1";
        metal->name = cases[i].name;
        metal->apple_family = cases[i].apple;
        metal->metal3 = cases[i].metal3;
        metal->unified = cases[i].unified;
        metal->missing[0] = cases[i].missing;
        gpu_device *d = metal_open_device(NULL);
        const sl_gpu_info *info = info_of(d);
        assert_string_equal(info->device, "metal");
        assert_string_equal(info->name, cases[i].name);
        assert_string_equal(info->family, cases[i].family);
        assert_string_equal(info->system, cases[i].described);
        assert_int_equal(info->language, cases[i].language);
        assert_int_equal(info->unified, cases[i].unified);
        assert_int_equal(info->bfloat, cases[i].bfloat);
        assert_int_equal(info->simdgroup_matrix, cases[i].matrix);
        assert_int_equal(info->virtual_device, cases[i].virtual_device);
        assert_int_equal(info->residency, cases[i].residency);
        assert_int_equal(info->max_threadgroup_memory, 32768);
        assert_int_equal(info->max_buffer, metal->max_buffer);
        assert_int_equal(info->working_set, metal->working_set);
        driver->close(d);
        assert_int_equal(metal->alive, 0);
    }
}

static void expect_no_device(int index, sl_code code, const char *message) {
    gpu_open o = {.index = index};
    sl_error err = {0};
    assert_null(driver->open(&o, &err));
    assert_int_equal(err.code, code);
    if (!strstr(err.message, message))
        fail_msg("\"%s\" is not in: %s", message, err.message);
}

static void a_machine_without_metal_is_an_error(void **state) {
    metal->system = "12.7";
    expect_no_device(-1, SL_ERR_UNSUPPORTED, "this is macOS 12.7, 13 or newer is needed");
    metal->system = "14.0";
    metal->missing[0] = "MTLBinaryArchiveDescriptor";
    expect_no_device(-1, SL_ERR_UNSUPPORTED, "no class MTLBinaryArchiveDescriptor");
    metal->missing[0] = NULL;
    metal->devices = 0;
    expect_no_device(-1, SL_ERR_UNSUPPORTED, "no Metal device");
    metal->devices = 1;
    expect_no_device(3, SL_ERR_ARGUMENT, "metal:3: this system has 1 Metal devices");
    setenv("SLUICE_METAL_LIBRARY", "/nonexistent/library.so", 1);
    expect_no_device(-1, SL_ERR_UNSUPPORTED, "Metal is not on this system: /nonexistent/library.so");
    setenv("SLUICE_METAL_LIBRARY", "libm.so.6", 1);
    expect_no_device(-1, SL_ERR_UNSUPPORTED, "no function objc_msgSend");
    unsetenv("SLUICE_METAL_LIBRARY");
    expect_no_device(-1, SL_ERR_UNSUPPORTED, "Metal is not on this system: /usr/lib/libobjc.A.dylib");
}

static void a_session_without_default_device_takes_the_first(void **state) {
    metal->no_default_device = true;
    driver->close(metal_open_device(NULL));
    metal->no_default_device = false;
    metal->devices = 2;
    driver->close(metal_open_device(&(gpu_open){.index = 1}));
}

/* ---- memory -------------------------------------------------------------------------------------------------------
 */

static void shared_memory_is_seen_by_the_host(void **state) {
    gpu_device *d = metal_open_device(NULL);
    gpu_memory m = metal_memory(d, 12345), p;
    sl_error err = {0};
    assert_int_equal(m.bytes, 12345);
    memset(m.host, 1, 12345);
    assert_true(driver->alloc(d, 100, SL_GPU_PRIVATE, &p, &err));
    assert_non_null(p.host); /* unified memory: private is shared */
    assert_int_equal(metal->residents, 2);
    driver->free(d, &m);
    driver->free(d, &p);
    assert_int_equal(metal->residents, 0);
    driver->close(d);
}

static void wrapped_memory_keeps_its_offset(void **state) {
    metal_rig r = metal_rig_open();
    sl_error err = {0};
    void *pipeline = metal_pipeline(r.d, r.library, "add_one", NULL, &err);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *host = aligned_alloc(page, 4 * page);
    static const size_t offsets[] = {0, 4, 100, 4092};
    for (size_t i = 0; i < SL_COUNT(offsets); i++) {
        gpu_memory m;
        memset(host, 0, 4 * page);
        assert_true(driver->wrap(r.d, host + page + offsets[i], 12, &m, &err));
        assert_ptr_equal(m.host, host + page + offsets[i]);
        assert_int_equal(m.offset, offsets[i]);
        gpu_bound b = {.slot = 0, .memory = &m, .offset = 4, .length = 8};
        gpu_command c = metal_dispatch(pipeline, 1, &b, 1);
        assert_true(metal_run(&r, &c, 1, &err));
        for (size_t k = 0; k < 4 * page; k++)
            assert_int_equal(host[k], k == page + offsets[i] + 4);
        driver->free(r.d, &m);
    }
    free(host);
    driver->pipeline_free(r.d, pipeline);
    metal_rig_close(&r);
}

static void memory_has_limits(void **state) {
    metal->max_buffer = 1 << 20;
    metal->working_set = 3 << 20;
    gpu_device *d = metal_open_device(NULL);
    gpu_memory m[3], more;
    sl_error err = {0};
    for (int i = 0; i < 3; i++)
        m[i] = metal_memory(d, 1 << 20);
    assert_false(driver->alloc(d, (1 << 20) + 1, SL_GPU_SHARED, &more, &err));
    assert_int_equal(err.code, SL_ERR_BUDGET);
    assert_string_equal(err.message, "metal: a buffer of 1048577 bytes; this GPU allows 1048576");
    assert_false(driver->alloc(d, 1, SL_GPU_SHARED, &more, &err));
    assert_string_equal(err.message,
                        "metal: 1 bytes more than the 3145728 held now exceed this GPU's working set of 3145728");
    assert_false(driver->wrap(d, &err, 1, &more, &err));
    assert_int_equal(err.code, SL_ERR_BUDGET);
    assert_false(driver->wrap(d, (void *)UINTPTR_MAX, UINT64_MAX, &more, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    for (int i = 0; i < 3; i++)
        driver->free(d, &m[i]);
    static const struct {
        standin_nil nil;
        sl_code code;
    } nils[] = {{STANDIN_NIL_BUFFER, SL_ERR_MEMORY}, {STANDIN_NIL_CONTENTS, SL_ERR_DEVICE}};
    for (size_t i = 0; i < SL_COUNT(nils); i++) {
        metal->nil = nils[i].nil;
        assert_false(driver->alloc(d, 1, SL_GPU_SHARED, &more, &err));
        assert_int_equal(err.code, nils[i].code);
    }
    metal->nil = STANDIN_NIL_NO_COPY;
    assert_false(driver->wrap(d, &err, 1, &more, &err));
    assert_int_equal(err.code, SL_ERR_MEMORY);
    driver->close(d);
}

static void memory_of_its_own_is_reached_by_copies(void **state) {
    metal->unified = false;
    gpu_device *d = metal_open_device(NULL);
    gpu_memory m;
    sl_error err = {0};
    uint8_t in[3000], out[3000];
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (uint8_t)(i * 7);
    assert_true(driver->alloc(d, 5000, SL_GPU_PRIVATE, &m, &err));
    assert_null(m.host);
    assert_true(driver->write(d, &m, 1111, in, sizeof in, &err));
    memset(out, 0, sizeof out);
    assert_true(driver->read(d, &m, 1111, out, sizeof out, &err));
    assert_memory_equal(in, out, sizeof in);
    assert_true(driver->read(d, &m, 5000, out, 0, &err));
    metal->fail_list = (standin_fault){"MTLCommandBufferErrorDomain", 8, "Insufficient Memory"};
    assert_false(driver->read(d, &m, 0, out, 1, &err));
    assert_int_equal(err.code, SL_ERR_DEVICE);
    driver->free(d, &m);
    driver->close(d);
}

/* ---- lists --------------------------------------------------------------------------------------------------------
 */

static void a_dispatch_runs_with_its_bindings(void **state) {
    metal_rig r = metal_rig_open();
    sl_error err = {0};
    gpu_pipeline_limits limits;
    void *scale = metal_pipeline(r.d, r.library, "scale", &limits, &err);
    assert_non_null(scale);
    assert_int_equal(limits.max_threads, 1024);
    assert_int_equal(limits.simd_width, 32);
    gpu_memory x = metal_memory(r.d, 40);
    float *f = (float *)x.host, by[2] = {3, 0.5f};
    for (int i = 0; i < 10; i++)
        f[i] = (float)i;
    gpu_bound bound[] = {{.slot = 0, .memory = &x, .offset = 8, .length = 32, .writes = true},
                         {.slot = 30, .bytes = by, .length = sizeof by}};
    gpu_command c = metal_dispatch(scale, 7, bound, 2);
    assert_true(metal_run(&r, &c, 1, &err));
    for (int i = 0; i < 10; i++)
        assert_true(f[i] == (i >= 2 && i < 9 ? (float)i * 3 + 0.5f : (float)i));
    assert_string_equal(metal->labels, "run,");
    driver->free(r.d, &x);
    driver->pipeline_free(r.d, scale);
    metal_rig_close(&r);
}

/* What is bound stays bound from dispatch to dispatch: only what changes is sent, and nothing is taken for unchanged.
 */
static void bindings_that_change_and_come_back(void **state) {
    metal_rig r = metal_rig_open();
    sl_error err = {0};
    void *scale = metal_pipeline(r.d, r.library, "scale", NULL, &err);
    gpu_memory x = metal_memory(r.d, 16), by = metal_memory(r.d, 16);
    float *f = (float *)x.host, inline_by[2] = {3, 0};
    static const float values[] = {2, 0, 5, 1};
    memcpy(by.host, values, sizeof values);
    for (int i = 0; i < 4; i++)
        f[i] = 1;
    static const struct {
        uint64_t x_offset, by_offset;
        bool bytes;
    } steps[] = {{0, 0, false}, {4, 0, false},  {0, 8, false}, {8, 0, true},
                 {0, 8, false}, {12, 0, false}, {0, 0, true}};
    gpu_bound bound[SL_COUNT(steps)][2];
    gpu_command list[SL_COUNT(steps) * 2];
    for (size_t i = 0; i < SL_COUNT(steps); i++) {
        bound[i][0] = (gpu_bound){.slot = 0, .memory = &x, .offset = steps[i].x_offset, .length = 4};
        bound[i][1] = (gpu_bound){.slot = 30, .memory = &by, .offset = steps[i].by_offset, .length = 8};
        if (steps[i].bytes)
            bound[i][1] = (gpu_bound){.slot = 30, .bytes = inline_by, .length = 8};
        list[2 * i] = metal_dispatch(scale, 1, bound[i], 2);
        list[2 * i + 1] = (gpu_command){.kind = GPU_BARRIER};
    }
    assert_true(metal_run(&r, list, SL_COUNT(list), &err));
    assert_true(f[0] == ((1.0f * 2 * 5 + 1) * 5 + 1) * 3);
    assert_true(f[1] == 2 && f[2] == 3 && f[3] == 2);
    assert_int_equal(metal->set_buffers, 3); /* x once; by at first and after the bytes that took its place */
    assert_int_equal(metal->set_offsets, 8);
    driver->free(r.d, &x);
    driver->free(r.d, &by);
    driver->pipeline_free(r.d, scale);
    metal_rig_close(&r);
}

static void sizes_arrive_whole(void **state) {
    metal_rig r = metal_rig_open();
    sl_error err = {0};
    void *sizes = metal_pipeline(r.d, r.library, "sizes", NULL, &err);
    gpu_memory x = metal_memory(r.d, 24);
    gpu_bound bound = {.slot = 0, .memory = &x, .length = 24};
    gpu_command c = metal_dispatch(sizes, 1, &bound, 1);
    static const uint32_t given[6] = {70001, 3, 5, 8, 2, 4};
    memcpy(c.u.dispatch.groups, given, 12);
    memcpy(c.u.dispatch.threads, given + 3, 12);
    assert_true(metal_run(&r, &c, 1, &err));
    assert_memory_equal(x.host, given, sizeof given);
    driver->free(r.d, &x);
    driver->pipeline_free(r.d, sizes);
    metal_rig_close(&r);
}

/* move a -> b, barrier, add_one on b, barrier, copy b -> c, barrier, fill a: each needs the one before. */
static void barriers_order_dispatches_copies_and_fills(void **state) {
    metal_rig r = metal_rig_open();
    sl_error err = {0};
    void *move = metal_pipeline(r.d, r.library, "move", NULL, &err);
    void *add = metal_pipeline(r.d, r.library, "add_one", NULL, &err);
    gpu_memory a = metal_memory(r.d, 64), b = metal_memory(r.d, 64), c = metal_memory(r.d, 64);
    for (int i = 0; i < 16; i++)
        ((uint32_t *)a.host)[i] = (uint32_t)(100 + i);
    gpu_bound ab[] = {{.slot = 0, .memory = &a, .length = 64}, {.slot = 1, .memory = &b, .length = 64}};
    gpu_bound of_b = {.slot = 0, .memory = &b, .length = 64};
    sl_gpu_threadgroup_length length = {0, 512};
    gpu_command barrier = {.kind = GPU_BARRIER}, copy = {.kind = GPU_COPY}, fill = {.kind = GPU_FILL};
    copy.u.copy.to = &c;
    copy.u.copy.from = &b;
    copy.u.copy.to_offset = 4;
    copy.u.copy.bytes = 60;
    fill.u.fill.to = &b;
    fill.u.fill.offset = 8;
    fill.u.fill.bytes = 8;
    fill.u.fill.value = 0xee;
    gpu_command list[] = {metal_dispatch(move, 16, ab, 2),
                          barrier,
                          metal_dispatch(add, 16, &of_b, 1),
                          barrier,
                          metal_dispatch(add, 16, &of_b, 1),
                          barrier,
                          copy,
                          barrier,
                          fill};
    list[0].u.dispatch.lengths = &length;
    list[0].u.dispatch.length_count = 1;
    assert_true(metal_run(&r, list, SL_COUNT(list), &err));
    for (uint32_t i = 0; i < 16; i++) {
        assert_int_equal(((uint32_t *)b.host)[i], i == 2 || i == 3 ? 0xeeeeeeee : 102 + i);
        assert_int_equal(((uint32_t *)c.host)[i], i ? 101 + i : 0xa5a5a5a5);
    }
    assert_int_equal(metal->encoders, 3); /* one for all dispatches, one a copy or fill between barriers */
    assert_int_equal(metal->barriers, 3);
    assert_int_equal(metal->set_buffers, 3); /* the second add_one finds its buffer bound */
    driver->free(r.d, &a);
    driver->free(r.d, &b);
    driver->free(r.d, &c);
    driver->pipeline_free(r.d, move);
    driver->pipeline_free(r.d, add);
    metal_rig_close(&r);
}

static void lists_of_a_stream_run_in_order(void **state) {
    metal_rig r = metal_rig_open();
    sl_error err = {0};
    void *add = metal_pipeline(r.d, r.library, "add_one", NULL, &err), *submissions[20];
    gpu_memory x = metal_memory(r.d, 4);
    gpu_result result;
    *(uint32_t *)x.host = 0;
    gpu_bound b = {.slot = 0, .memory = &x, .length = 4};
    gpu_command c = metal_dispatch(add, 1, &b, 1);
    for (int i = 0; i < 20; i++)
        assert_true(driver->submit(r.d, r.stream, "add", &c, 1, &submissions[i], &err));
    for (int i = 20; i-- > 0;) {
        assert_true(driver->wait(r.d, submissions[i], UINT64_MAX, &result));
        driver->release(r.d, submissions[i]);
    }
    assert_int_equal(*(uint32_t *)x.host, 20);
    assert_int_equal(metal->residency_requests, 1); /* memory has not changed since the first list */
    driver->free(r.d, &x);
    driver->pipeline_free(r.d, add);
    metal_rig_close(&r);
}

static void an_empty_list_ends(void **state) {
    metal_rig r = metal_rig_open();
    sl_error err = {0};
    assert_true(metal_run(&r, NULL, 0, &err));
    metal_rig_close(&r);
}

static void gpus_that_are_not_unified_run_dispatches_one_by_one(void **state) {
    metal->unified = false;
    metal_rig r = metal_rig_open();
    sl_error err = {0};
    void *scale = metal_pipeline(r.d, r.library, "scale", NULL, &err);
    gpu_memory x = metal_memory(r.d, 4);
    *(float *)x.host = 1;
    float first[2] = {2, 0}, second[2] = {1, 3};
    gpu_bound one[] = {{.slot = 0, .memory = &x, .length = 4}, {.slot = 30, .bytes = first, .length = 8}};
    gpu_bound two[] = {{.slot = 0, .memory = &x, .length = 4}, {.slot = 30, .bytes = second, .length = 8}};
    gpu_command list[] = {metal_dispatch(scale, 1, one, 2), metal_dispatch(scale, 1, two, 2)};
    assert_true(metal_run(&r, list, 2, &err));
    assert_true(*(float *)x.host == 5);
    driver->free(r.d, &x);
    driver->pipeline_free(r.d, scale);
    metal_rig_close(&r);
}

static void streams_and_lists_in_flight_are_counted(void **state) {
    metal_rig r = metal_rig_open();
    sl_error err = {0};
    static void *submissions[1024];
    void *streams[15], *more;
    gpu_result result;
    for (int i = 0; i < 15; i++)
        assert_non_null(streams[i] = driver->stream_new(r.d, &err));
    assert_null(driver->stream_new(r.d, &err));
    assert_string_equal(err.message, "metal: 16 streams are open, which is the most");
    for (int i = 0; i < 15; i++)
        driver->stream_free(r.d, streams[i]);
    metal->hang = true;
    for (int i = 0; i < 1024; i++)
        assert_true(driver->submit(r.d, r.stream, NULL, NULL, 0, &submissions[i], &err));
    assert_false(driver->submit(r.d, r.stream, NULL, NULL, 0, &more, &err));
    assert_string_equal(err.message, "metal: 1024 lists of one stream are in flight, which is the most: wait for some");
    metal->hang = false;
    for (int i = 0; i < 1024; i++)
        assert_true(driver->wait(r.d, submissions[i], UINT64_MAX, &result));
    assert_true(metal_run(&r, NULL, 0, &err)); /* what is done is no longer in flight */
    for (int i = 0; i < 1024; i++)
        driver->release(r.d, submissions[i]);
    assert_int_equal(metal->signals, 1025); /* each list wakes who waits for it */
    metal_rig_close(&r);
}

/* ---- events -------------------------------------------------------------------------------------------------------
 */

static void events_order_host_and_streams(void **state) {
    metal_rig r = metal_rig_open();
    sl_error err = {0};
    gpu_result result;
    void *event = driver->event_new(r.d, &err), *other = driver->stream_new(r.d, &err), *waiting, *signalling;
    void *add = metal_pipeline(r.d, r.library, "add_one", NULL, &err);
    gpu_memory x = metal_memory(r.d, 4);
    *(uint32_t *)x.host = 5;
    gpu_bound b = {.slot = 0, .memory = &x, .length = 4};
    gpu_command wait = {.kind = GPU_WAIT}, signal = {.kind = GPU_SIGNAL};
    wait.u.event.event = signal.u.event.event = event;
    wait.u.event.value = 7;
    signal.u.event.value = 8;
    gpu_command waits[] = {metal_dispatch(add, 1, &b, 1), wait, metal_dispatch(add, 1, &b, 1), signal};
    assert_true(driver->submit(r.d, r.stream, "waits", waits, SL_COUNT(waits), &waiting, &err));
    assert_false(driver->wait(r.d, waiting, 5000000, &result)); /* nobody has signalled */
    assert_false(driver->event_wait(r.d, event, 8, 0));
    assert_int_equal(driver->event_value(r.d, event), 0);
    wait.u.event.value = 8;
    assert_true(driver->submit(r.d, other, "follows", &wait, 1, &signalling, &err));
    assert_true(driver->event_signal(r.d, event, 7, &err));
    assert_true(driver->event_wait(r.d, event, 8, UINT64_MAX));
    assert_true(driver->wait(r.d, signalling, UINT64_MAX, &result));
    assert_true(driver->wait(r.d, waiting, UINT64_MAX, &result));
    assert_false(result.failed);
    assert_int_equal(*(uint32_t *)x.host, 7);
    assert_int_equal(driver->event_value(r.d, event), 8);
    driver->release(r.d, signalling);
    driver->release(r.d, waiting);
    driver->event_free(r.d, event);
    driver->stream_free(r.d, other);
    driver->free(r.d, &x);
    driver->pipeline_free(r.d, add);
    metal_rig_close(&r);
}

static void a_system_without_timed_waits_is_polled(void **state) {
    metal->missing[0] = "waitUntilSignaledValue:timeoutMS:";
    metal_rig r = metal_rig_open();
    sl_error err = {0};
    void *event = driver->event_new(r.d, &err);
    assert_false(driver->event_wait(r.d, event, 1, 3000000));
    assert_true(metal_run(&r, NULL, 0, &err));
    driver->event_free(r.d, event);
    metal_rig_close(&r);
}

int main(void) {
    if (!metal_has_stand_in())
        return METAL_SKIPPED;
#define TEST(f) cmocka_unit_test_setup_teardown(f, metal_reset, metal_left_clean)
    const struct CMUnitTest tests[] = {
        TEST(a_machine_is_described),
        TEST(a_machine_without_metal_is_an_error),
        TEST(a_session_without_default_device_takes_the_first),
        TEST(shared_memory_is_seen_by_the_host),
        TEST(wrapped_memory_keeps_its_offset),
        TEST(memory_has_limits),
        TEST(memory_of_its_own_is_reached_by_copies),
        TEST(a_dispatch_runs_with_its_bindings),
        TEST(bindings_that_change_and_come_back),
        TEST(sizes_arrive_whole),
        TEST(barriers_order_dispatches_copies_and_fills),
        TEST(lists_of_a_stream_run_in_order),
        TEST(an_empty_list_ends),
        TEST(gpus_that_are_not_unified_run_dispatches_one_by_one),
        TEST(streams_and_lists_in_flight_are_counted),
        TEST(events_order_host_and_streams),
        TEST(a_system_without_timed_waits_is_polled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

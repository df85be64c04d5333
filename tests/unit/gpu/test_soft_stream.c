/* Streams of the soft device: submission returns at once, waits have limits, events order streams and the host, a
 * failed list leaves out its rest but raises its signals. */
#include "support_soft.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MS = 1000000 };
#define LONG (60000ull * MS)

static const gpu_driver *const soft = &gpu_driver_soft;

static gpu_command on_event(gpu_command_kind kind, void *event, uint64_t value) {
    gpu_command c = {.kind = kind};
    c.u.event.event = event;
    c.u.event.value = value;
    return c;
}

static gpu_command fill(gpu_memory *m, uint64_t offset, uint64_t bytes, uint8_t value) {
    gpu_command c = {.kind = GPU_FILL};
    c.u.fill.to = m;
    c.u.fill.offset = offset;
    c.u.fill.bytes = bytes;
    c.u.fill.value = value;
    return c;
}

static gpu_command copy(gpu_memory *to, uint64_t to_offset, gpu_memory *from, uint64_t from_offset, uint64_t bytes) {
    gpu_command c = {.kind = GPU_COPY};
    c.u.copy.to = to;
    c.u.copy.from = from;
    c.u.copy.to_offset = to_offset;
    c.u.copy.from_offset = from_offset;
    c.u.copy.bytes = bytes;
    return c;
}

static gpu_command dispatch(soft_rig *r, const gpu_bound *bound) {
    gpu_command c = {.kind = GPU_DISPATCH, .label = "adds"};
    c.u.dispatch.pipeline = r->pipeline;
    for (int i = 0; i < 3; i++)
        c.u.dispatch.groups[i] = c.u.dispatch.threads[i] = 1;
    c.u.dispatch.bound = bound;
    c.u.dispatch.bound_count = 1;
    return c;
}

static void submit(soft_rig *r, void *stream, const gpu_command *list, size_t n, void **submission) {
    if (!soft->submit(r->device, stream, "list", list, n, submission, &r->error))
        fail_msg("%s", r->error.message);
}

static void finish(soft_rig *r, void *submission, bool well) {
    gpu_result result;
    assert_true(soft->wait(r->device, submission, LONG, &result));
    if (result.failed == well)
        fail_msg("%s", well ? result.error.message : "no error");
    assert_true(result.end >= result.begin && result.begin > 0);
    soft->release(r->device, submission);
}

static void test_asynchronous(void **state) {
    soft_rig r;
    gpu_result result;
    void *submission;
    (void)state;
    if (!soft_rig_open(&r, 2, false, 0))
        return;
    void *e = soft->event_new(r.device, &r.error);
    gpu_memory m = soft_rig_memory(&r, 100);
    memset(m.host, 1, 100);
    gpu_command list[] = {fill(&m, 10, 5, 9), copy(&m, 50, &m, 8, 10), on_event(GPU_WAIT, e, 3), fill(&m, 90, 10, 7),
                          on_event(GPU_SIGNAL, e, 8)};
    submit(&r, r.stream, list, 5, &submission);
    assert_false(soft->wait(r.device, submission, 20 * MS, &result));
    assert_int_equal(m.host[90], 1);
    assert_false(soft->event_wait(r.device, e, 8, 1 * MS));
    assert_true(soft->event_signal(r.device, e, 2, &r.error));
    assert_false(soft->wait(r.device, submission, 5 * MS, &result));
    assert_true(soft->event_signal(r.device, e, 5, &r.error));
    assert_true(soft->event_signal(r.device, e, 1, &r.error)); /* values only grow */
    assert_true(soft->event_wait(r.device, e, 8, LONG));
    finish(&r, submission, true);
    assert_int_equal(soft->event_value(r.device, e), 8);
    for (int i = 0; i < 100; i++) {
        int want = i >= 90 ? 7 : (i >= 10 && i < 15) || (i >= 52 && i < 57) ? 9 : 1;
        assert_int_equal(m.host[i], want);
    }
    soft->event_free(r.device, e);
    soft->free(r.device, &m);
    soft_rig_close(&r);
}

/* Two streams hand a number to and fro. */
static void test_streams_take_turns(void **state) {
    enum { TURNS = 20 };
    soft_rig r;
    void *submission[2];
    (void)state;
    if (!soft_rig_open(&r, 2, false, 0))
        return;
    soft_rig_kernel(&r, "KERNEL { BUFFER(int, 0)[0] = BUFFER(int, 0)[0] * 3 + 1; }\n", NULL, 0);
    void *other = soft->stream_new(r.device, &r.error), *e = soft->event_new(r.device, &r.error);
    gpu_memory m = soft_rig_memory(&r, 4);
    gpu_bound bound = {.slot = 0, .memory = &m, .length = 4, .writes = true};
    gpu_command list[2][3 * TURNS];
    uint32_t want = 0;
    memset(m.host, 0, 4);
    for (uint64_t i = 0; i < 2 * TURNS; i++, want = want * 3 + 1) {
        gpu_command *c = &list[i % 2][i / 2 * 3];
        c[0] = on_event(GPU_WAIT, e, i);
        c[1] = dispatch(&r, &bound);
        c[2] = on_event(GPU_SIGNAL, e, i + 1);
    }
    submit(&r, other, list[1], 3 * TURNS, &submission[1]);
    submit(&r, r.stream, list[0], 3 * TURNS, &submission[0]);
    finish(&r, submission[1], true);
    finish(&r, submission[0], true);
    assert_int_equal(*(uint32_t *)m.host, want);
    soft->stream_free(r.device, other);
    soft->event_free(r.device, e);
    soft->free(r.device, &m);
    soft_rig_close(&r);
}

static void test_after_an_error(void **state) {
    soft_rig r;
    void *submission;
    (void)state;
    if (!soft_rig_open(&r, 1, false, 0))
        return;
    soft_rig_kernel(&r, "KERNEL { api->fail(1, \"on purpose\"); }\n", NULL, 0);
    void *e = soft->event_new(r.device, &r.error);
    gpu_memory m = soft_rig_memory(&r, 4);
    gpu_bound bound = {.slot = 0, .memory = &m, .length = 4, .writes = true};
    gpu_command list[] = {fill(&m, 0, 4, 1), dispatch(&r, &bound), fill(&m, 0, 4, 2), on_event(GPU_SIGNAL, e, 1)};
    submit(&r, r.stream, list, 4, &submission);
    finish(&r, submission, false);
    assert_int_equal(m.host[0], 1);
    assert_int_equal(soft->event_value(r.device, e), 1);
    soft->event_free(r.device, e);
    soft->free(r.device, &m);
    soft_rig_close(&r);
}

/* Freeing a stream gives up what it still runs or waits for. */
static void test_free_while_running(void **state) {
    (void)state;
    for (int i = SUPPORT_STOPS_LOOPS ? 0 : 1; i < 2; i++) {
        soft_rig r;
        void *submission;
        if (!soft_rig_open(&r, 1, false, 0))
            return;
        soft_rig_kernel(&r, "KERNEL { volatile int n = 0; for (;;) n++; }\n", NULL, 0);
        void *e = soft->event_new(r.device, &r.error), *s = soft->stream_new(r.device, &r.error);
        gpu_memory m = soft_rig_memory(&r, 4);
        gpu_bound bound = {.slot = 0, .memory = &m, .length = 4};
        gpu_command list[] = {i ? on_event(GPU_WAIT, e, 1) : dispatch(&r, &bound)};
        submit(&r, s, list, 1, &submission);
        soft->stream_free(r.device, s);
        free(submission);
        soft->event_free(r.device, e);
        soft->free(r.device, &m);
        soft_rig_close(&r);
    }
}

/* Views of one allocation are far apart for a kernel in checking mode, and still the same memory. */
static void test_windows_alias(void **state) {
    soft_rig r;
    (void)state;
    if (!soft_rig_open(&r, 1, true, 0))
        return;
    soft_rig_kernel(&r, "KERNEL { BUFFER(int, 0)[5] = 42; BUFFER(int, 1)[1] = BUFFER(int, 2)[0] + 1; }\n", NULL, 0);
    gpu_memory m = soft_rig_memory(&r, 3 * 16384);
    memset(m.host, 0, m.bytes);
    int host[8] = {0};
    gpu_memory wrapped;
    assert_true(soft->wrap(r.device, host, sizeof host, &wrapped, &r.error));
    soft_run run = {.bound = {{.slot = 0, .memory = &m, .offset = 16384 - 20, .length = 16404, .writes = true},
                              {.slot = 1, .memory = &wrapped, .length = 32, .writes = true},
                              {.slot = 2, .memory = &m, .offset = 16384, .length = 8}},
                    .bound_count = 3};
    if (!soft_rig_run(&r, &run))
        fail_msg("%s", r.error.message);
    assert_int_equal(*(int *)(m.host + 16384), 42);
    assert_int_equal(host[1], 43);
    soft->free(r.device, &wrapped);
    soft->free(r.device, &m);
    soft_rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_asynchronous),   cmocka_unit_test(test_streams_take_turns),
        cmocka_unit_test(test_after_an_error), cmocka_unit_test(test_free_while_running),
        cmocka_unit_test(test_windows_alias),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

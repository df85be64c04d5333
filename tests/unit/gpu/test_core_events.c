/* Events between lists and host, kept lists that are submitted again, what SLUICE_DEBUG shows. */
#include "support_lists.h"

#include <string.h>

/* ---- events ------------------------------------------------------------------------------------------------------ */

static void events_order_lists_and_host(void **state) {
    sl_error err = {0};
    bench b = bench_open();
    sl_gpu_event *e = sl_gpu_event_new(b.g, &err);
    assert_false(sl_gpu_event_signal(e, 0, &err));
    assert_true(sl_gpu_event_signal(e, 3, &err));
    assert_false(sl_gpu_event_signal(e, 2, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "event: value 2, expected at least 3: values only grow");
    assert_int_equal(sl_gpu_event_value(e), 3);
    assert_true(sl_gpu_event_wait(e, 3, 0, &err));
    assert_false(sl_gpu_event_wait(e, 4, 1000000, &err));
    expect_error(&err, SL_ERR_TIMEOUT, "event: value 4 is not reached after 0.001 s, it is at 3");
    sl_gpu_list *l = begin(&b, NULL);
    assert_true(sl_gpu_encode_wait(l, e, 4, &err));
    add(l, &b, b.a, b.b, b.out);
    assert_true(sl_gpu_encode_signal(l, e, 5, &err));
    assert_false(sl_gpu_encode_signal(l, e, 0, &err));
    assert_false(sl_gpu_encode_signal(l, e, 4, &err)); /* on a GPU the event would fall */
    expect_error(&err, SL_ERR_ARGUMENT, "an event signalled with 4, which lists raise to 5: values only grow");
    sl_gpu_ticket t = bench_submit(l);
    assert_string_equal(fake_last_list(), "wait | dispatch add | signal");
    assert_false(sl_gpu_wait(b.stream, t, 30000000, NULL, &err));
    expect_error(&err, SL_ERR_TIMEOUT, "");
    assert_true(sl_gpu_event_signal(e, 4, &err));
    assert_true(sl_gpu_wait(b.stream, t, SECOND, NULL, &err));
    assert_true(sl_gpu_event_wait(e, 5, 0, &err));
    sl_gpu_event_free(e);
    bench_close(&b);
}

/* The list would take the value back, on a GPU: whoever waited would have seen it fall. */
static void the_host_does_not_raise_an_event_above_what_a_list_in_flight_will(void **state) {
    sl_error err = {0};
    bench b = bench_open();
    sl_gpu_event *e = sl_gpu_event_new(b.g, &err), *go = sl_gpu_event_new(b.g, &err);
    sl_gpu_list *never = begin(&b, "never");
    assert_true(sl_gpu_encode_signal(never, e, 5, &err));
    assert_false(sl_gpu_event_signal(e, 6, &err)); /* it may still be submitted */
    expect_error(&err, SL_ERR_ARGUMENT, "event: value 6, expected at most 5: a list in flight raises it to that");
    sl_gpu_list_free(never);
    assert_true(sl_gpu_event_signal(e, 2, &err));
    sl_gpu_list *l = begin(&b, NULL);
    assert_true(sl_gpu_encode_wait(l, go, 1, &err));
    assert_true(sl_gpu_encode_signal(l, e, 4, &err)); /* though one that never was would have raised it to 5 */
    assert_true(sl_gpu_encode_signal(l, e, 4, &err));
    assert_true(sl_gpu_encode_signal(l, e, 7, &err));
    sl_gpu_ticket t = bench_submit(l);
    assert_false(sl_gpu_event_signal(e, 5, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "event: value 5, expected at most 4");
    assert_int_equal(sl_gpu_event_value(e), 2);
    assert_true(sl_gpu_event_signal(e, 3, &err));
    assert_true(sl_gpu_event_signal(e, 4, &err));
    assert_false(sl_gpu_event_signal(e, 8, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "event: value 8, expected at most 7");
    assert_true(sl_gpu_event_signal(go, 1, &err));
    assert_true(sl_gpu_event_wait(e, 7, 10 * SECOND, &err));
    assert_true(sl_gpu_event_signal(e, 8, &err)); /* nobody has waited for the list itself */
    assert_true(sl_gpu_wait(b.stream, t, 10 * SECOND, NULL, &err));
    assert_int_equal(sl_gpu_event_value(e), 8);
    sl_gpu_event_free(e);
    sl_gpu_event_free(go);
    bench_close(&b);
}

/* A device does not signal for a list that failed: the core does, and says why the value came. */
static void waiting_for_a_failed_list_is_an_error(void **state) {
    sl_error err = {0};
    fake.fail_list = "bad";
    bench b = bench_open();
    sl_gpu_stream *second = sl_gpu_stream_new(b.g, &err);
    sl_gpu_event *e = sl_gpu_event_new(b.g, &err);
    sl_gpu_list *l = begin(&b, "bad"), *m = sl_gpu_begin(second, "waits", &err);
    add(l, &b, b.a, b.b, b.out);
    assert_true(sl_gpu_encode_signal(l, e, 1, &err));
    assert_true(sl_gpu_encode_wait(m, e, 1, &err));
    assert_true(sl_gpu_encode_fill(m, b.a, 0, 64, 1, &err));
    bench_submit(l);
    sl_gpu_ticket t = bench_submit(m);
    assert_false(sl_gpu_wait(second, t, 10 * SECOND, NULL, &err));
    expect_error(&err, SL_ERR_DEVICE, "list 'waits' (ticket 1) failed: list 'bad' (ticket 1) failed: injected fault");
    assert_false(sl_gpu_event_wait(e, 1, 10 * SECOND, &err));
    expect_error(&err, SL_ERR_DEVICE, "event: value 1 was not reached: list 'bad'");
    assert_true(sl_gpu_stream_recover(b.stream, &err));
    assert_true(sl_gpu_stream_recover(second, &err));
    assert_true(sl_gpu_event_signal(e, 2, &err));
    assert_true(sl_gpu_event_wait(e, 2, 0, &err));
    sl_gpu_event_free(e);
    sl_gpu_stream_free(second);
    bench_close(&b);
}

/* a fails, b waited for a, c for b: whoever looks at c alone hears of a. */
static void failures_follow_events_through_streams(void **state) {
    sl_error err = {0};
    sl_gpu_stream *streams[3];
    sl_gpu_event *events[3];
    sl_gpu_ticket t = 0;
    fake.fail_list = "bad";
    bench b = bench_open();
    for (int i = 2; i >= 0; i--) {
        streams[i] = sl_gpu_stream_new(b.g, &err);
        events[i] = sl_gpu_event_new(b.g, &err);
    }
    for (int i = 0; i < 3; i++) {
        sl_gpu_list *l = sl_gpu_begin(streams[i], i ? "waits" : "bad", &err);
        if (i)
            assert_true(sl_gpu_encode_wait(l, events[i - 1], 1, &err));
        assert_true(sl_gpu_encode_fill(l, i == 0 ? b.a : i == 1 ? b.b : b.out, 0, 64, 1, &err));
        assert_true(sl_gpu_encode_signal(l, events[i], 1, &err));
        t = bench_submit(l);
    }
    assert_false(sl_gpu_wait(streams[2], t, 10 * SECOND, NULL, &err));
    expect_error(&err, SL_ERR_DEVICE, "injected fault");
    assert_null(sl_gpu_map(b.b, 0, 64, SL_GPU_READ, &err));
    for (int i = 0; i < 3; i++) {
        sl_gpu_stream_free(streams[i]);
        sl_gpu_event_free(events[i]);
    }
    bench_close(&b);
}

/* ---- replay ------------------------------------------------------------------------------------------------------ */

static void replay_twice(const gpu_driver *driver, const char *call) {
    sl_error err = {0};
    sl_gpu_ticket t = 0;
    bench b = bench_open();
    b.g->driver = driver;
    float *p = sl_gpu_map(b.a, 0, 64, SL_GPU_WRITE, &err), *q = sl_gpu_map(b.b, 0, 64, SL_GPU_WRITE, &err);
    p[0] = 0;
    q[0] = 5;
    assert_true(sl_gpu_unmap(b.a, &err) && sl_gpu_unmap(b.b, &err));
    sl_gpu_list *l = begin(&b, "step");
    add(l, &b, b.a, b.b, b.a);
    sl_gpu_replay *r = sl_gpu_keep(l, &err);
    assert_non_null(r);
    assert_false(sl_gpu_submit(l, &t, &err));
    for (int i = 0; i < 3; i++)
        assert_true(sl_gpu_replay_submit(r, &t, &err));
    assert_int_equal(t, 3);
    assert_int_equal(fake_calls(call), 3);
    sl_gpu_replay_free(r); /* while it runs */
    assert_false(sl_gpu_replay_submit(r, &t, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "the replay was freed before");
    p = sl_gpu_map(b.a, 0, 4, SL_GPU_READ, &err);
    assert_true(p[0] == 15);
    bench_close(&b);
}

static void replay_by_the_driver(void **state) {
    replay_twice(&fake_replay_driver, "replay_submit");
}

static void replay_by_submitting_again(void **state) {
    replay_twice(&fake_driver, "submit");
}

static void lists_with_events_are_not_kept(void **state) {
    sl_error err = {0};
    bench b = bench_open();
    sl_gpu_event *e = sl_gpu_event_new(b.g, &err);
    sl_gpu_list *l = begin(&b, "once");
    assert_true(sl_gpu_encode_signal(l, e, 1, &err));
    assert_null(sl_gpu_keep(l, &err));
    expect_error(&err, SL_ERR_UNSUPPORTED, "list 'once' has events, whose values only grow");
    sl_gpu_event_free(e);
    bench_close(&b);
}

/* ---- debugging --------------------------------------------------------------------------------------------------- */

static void debug_levels_show_more(void **state) {
    sl_error err = {0};
    bench b = bench_open();
    b.g->debug = 3;
    b.g->log.level = SL_LOG_DEBUG;
    sl_gpu_list *l = begin(&b, "shown");
    add(l, &b, b.a, b.b, b.out);
    add(l, &b, b.out, b.b, b.a);
    sl_gpu_ticket t = bench_submit(l);
    assert_true(sl_gpu_wait(b.stream, t, SECOND, NULL, &err));
    const char *const lines[] = {
        "gpu: list 'shown' (ticket 1): 3 commands, 2 dispatches",
        "gpu:   add: 1 x 1 x 1 threadgroups of 32 x 1 x 1 threads, 32 threads, 500000.0 us",
        "gpu:   barrier",
        "gpu:     slot 2: 64 bytes at 0 of a buffer of 64, written",
        "gpu:     slot 3: 4 bytes: 01 00 00 00",
        "gpu: list 'shown' (ticket 1) done: 1000000.0 us",
    };
    for (size_t i = 0; i < SL_COUNT(lines); i++)
        if (!strstr(fake_log(), lines[i]))
            fail_msg("no line '%s' in:\n%s", lines[i], fake_log());
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(events_order_lists_and_host),
        TEST(the_host_does_not_raise_an_event_above_what_a_list_in_flight_will),
        TEST(waiting_for_a_failed_list_is_an_error),
        TEST(failures_follow_events_through_streams),
        TEST(replay_by_the_driver),
        TEST(replay_by_submitting_again),
        TEST(lists_with_events_are_not_kept),
        TEST(debug_levels_show_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

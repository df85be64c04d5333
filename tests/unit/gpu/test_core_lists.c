/* Lists: what a list keeps alive, tickets, waits, failures, mapping, spans. */
#include "support_lists.h"

#include <string.h>

/* ---- lifetimes --------------------------------------------------------------------------------------------------- */

static void lists_keep_what_they_use(void **state) {
    sl_error err = {0};
    float *p;
    fake.manual = true;
    bench b = bench_open();
    sl_gpu_buffer *x = sl_gpu_alloc(b.g, 64, SL_GPU_SHARED, &err);
    p = sl_gpu_map(x, 0, 64, SL_GPU_WRITE, &err);
    p[0] = 40;
    assert_true(sl_gpu_unmap(x, &err));
    sl_gpu_pipeline *again = sl_gpu_pipeline_new(b.library, "add", NULL, 0, &err);
    bench other = b;
    other.add = again;
    sl_gpu_list *l = begin(&b, NULL);
    add(l, &other, x, x, b.out);
    sl_gpu_ticket t = bench_submit(l);
    uint64_t held = sl_gpu_allocated(b.g);
    sl_gpu_buffer_free(x);
    sl_gpu_pipeline_free(again);
    assert_int_equal(fake_calls("free"), 0);
    assert_int_equal(fake_calls("pipeline_free"), 0);
    assert_int_equal(sl_gpu_allocated(b.g), held);
    fake_complete(1);
    assert_true(sl_gpu_wait(b.stream, t, SECOND, NULL, &err));
    assert_int_equal(fake_calls("free"), 1);
    assert_int_equal(fake_calls("pipeline_free"), 1);
    assert_int_equal(sl_gpu_allocated(b.g), held - 64);
    p = sl_gpu_map(b.out, 0, 4, SL_GPU_READ, &err);
    assert_true(p[0] == 80);
    sl_gpu_unmap(b.out, &err);
    bench_close(&b);
}

static void a_view_holds_its_parent(void **state) {
    bench b = bench_open();
    sl_gpu_buffer *v = view(b.a, 16, 32), *w = view(v, 8, 8);
    sl_error err = {0};
    sl_gpu_buffer_free(b.a);
    sl_gpu_buffer_free(v);
    assert_int_equal(fake_calls("free"), 0);
    assert_int_equal(sl_gpu_buffer_size(w), 8);
    assert_null(sl_gpu_view(w, 4, 5, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "sl_gpu_view: 5 bytes at offset 4 end at 9, the buffer has 8");
    sl_gpu_buffer_free(w);
    assert_int_equal(fake_calls("free"), 1);
    bench_close(&b);
}

static void a_list_is_used_up(void **state) {
    sl_error err = {0};
    sl_gpu_ticket t = 77;
    bench b = bench_open();
    sl_gpu_list *l = begin(&b, NULL);
    bench_submit(l);
    assert_false(bench_add(l, &b, b.a, b.b, b.out, 1, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "the list was submitted, kept or freed before");
    assert_false(sl_gpu_submit(l, &t, &err));
    assert_int_equal(t, 77);
    assert_null(sl_gpu_keep(l, &err));
    sl_gpu_list_free(l);
    l = begin(&b, NULL);
    add(l, &b, b.a, b.b, b.out);
    fake.fail_call = "submit";
    fake.fail_at = 1;
    assert_false(sl_gpu_submit(l, &t, &err));
    expect_error(&err, SL_ERR_DEVICE, "injected failure of submit");
    assert_false(sl_gpu_submit(l, &t, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "submitted, kept or freed before");
    bench_close(&b);
}

static void memory_limits(void **state) {
    sl_error err = {0};
    bench b = bench_open();
    assert_null(sl_gpu_alloc(b.g, 0, SL_GPU_SHARED, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "sl_gpu_alloc: 0 bytes");
    assert_null(sl_gpu_alloc(b.g, (1 << 20) + 1, SL_GPU_SHARED, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "1048577 bytes, a buffer of this device holds at most 1048576");
    assert_null(sl_gpu_alloc(b.g, 4, (sl_gpu_memory)9, &err));
    assert_null(sl_gpu_wrap(b.g, NULL, 64, &err));
    assert_null(sl_gpu_wrap(b.g, (void *)(UINTPTR_MAX - 3), 64, &err));
    assert_null(sl_gpu_alloc(NULL, 64, SL_GPU_SHARED, &err));
    /* More than the device recommends is a warning. */
    sl_gpu_buffer *big[6];
    for (int i = 0; i < 6; i++)
        big[i] = sl_gpu_alloc(b.g, 1 << 20, SL_GPU_SHARED, &err);
    assert_non_null(strstr(fake_log(), "the device recommends at most 4194304"));
    for (int i = 0; i < 6; i++)
        sl_gpu_buffer_free(big[i]);
    bench_close(&b);
}

/* ---- tickets ----------------------------------------------------------------------------------------------------- */

static void waits_have_limits(void **state) {
    sl_error err = {0};
    double seconds = -1;
    fake.manual = true;
    bench b = bench_open();
    sl_gpu_list *l = begin(&b, "slow");
    add(l, &b, b.a, b.b, b.out);
    sl_gpu_ticket t = bench_submit(l);
    assert_int_equal(t, 1);
    assert_false(sl_gpu_wait(b.stream, t, 2000000, &seconds, &err));
    expect_error(&err, SL_ERR_TIMEOUT, "ticket 1 is not done after 0.002 s");
    assert_false(sl_gpu_synchronize(b.stream, 0, &err));
    assert_false(sl_gpu_wait(b.stream, 2, 0, NULL, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "ticket 2 was never given, the stream's last is 1");
    assert_false(sl_gpu_wait(b.stream, 0, 0, NULL, &err));
    fake_complete(1);
    assert_true(sl_gpu_wait(b.stream, t, SECOND, &seconds, &err));
    assert_true(seconds == 0.5);
    seconds = -1;
    assert_true(sl_gpu_wait(b.stream, t, 0, &seconds, &err)); /* again */
    assert_true(seconds == 0.5);
    assert_int_equal(bench_submit(begin(&b, "empty")), 2);
    assert_true(sl_gpu_synchronize(b.stream, 0, &err));
    bench_close(&b);
}

static void an_empty_list_is_done_in_its_turn(void **state) {
    sl_error err = {0};
    fake.manual = true;
    bench b = bench_open();
    sl_gpu_list *l = begin(&b, NULL);
    add(l, &b, b.a, b.b, b.out);
    bench_submit(l);
    sl_gpu_ticket t = bench_submit(begin(&b, NULL));
    assert_false(sl_gpu_wait(b.stream, t, 1000000, NULL, &err));
    fake_complete(1);
    assert_true(sl_gpu_wait(b.stream, t, SECOND, NULL, &err));
    assert_int_equal(fake_calls("submit"), 1);
    bench_close(&b);
}

/* More submissions than a device has room for, without a wait. */
static void many_lists_are_submitted_without_waiting(void **state) {
    enum { MANY = 1000 };
    sl_error err = {0};
    bench b = bench_open();
    for (int i = 0; i < MANY; i++) {
        sl_gpu_list *l = begin(&b, NULL);
        add(l, &b, b.a, b.b, b.out);
        assert_int_equal(bench_submit(l), i + 1);
        assert_true(fake_running() <= GPU_IN_FLIGHT);
    }
    assert_true(sl_gpu_synchronize(b.stream, SECOND, &err));
    bench_close(&b);
}

static void spans(void **state) {
    sl_error err = {0};
    sl_gpu_span s[4];
    bench b = bench_open();
    for (int i = 0; i < 3; i++) {
        sl_gpu_list *l = begin(&b, i == 1 ? "second" : "other");
        for (int k = 0; k <= i; k++)
            add(l, &b, b.a, b.b, b.out);
        bench_submit(l);
    }
    assert_int_equal(sl_gpu_spans(b.stream, s, 2), 2);
    assert_int_equal(s[0].ticket, 1);
    assert_string_equal(s[1].label, "second");
    assert_int_equal(s[1].dispatches, 2);
    assert_true(s[1].end - s[1].begin == 0.5 && s[1].begin >= s[0].end);
    assert_int_equal(sl_gpu_spans(b.stream, s, 4), 0);
    assert_true(sl_gpu_synchronize(b.stream, SECOND, &err));
    bench_close(&b);
}

/* Three parts of one list: an empty one leaves no span, what comes before the first mark has the list's label. */
static sl_gpu_list *marked(const bench *b, sl_gpu_event *e) {
    sl_error err = {0};
    sl_gpu_list *l = begin(b, "step");
    add(l, b, b->a, b->b, b->out);
    assert_true(sl_gpu_encode_mark(l, "nothing", &err));
    assert_true(sl_gpu_encode_mark(l, "two", &err));
    add(l, b, b->out, b->b, b->a);
    add(l, b, b->a, b->b, b->out);
    if (e)
        assert_true(sl_gpu_encode_signal(l, e, 1, &err));
    assert_true(sl_gpu_encode_mark(l, "last", &err));
    add(l, b, b->out, b->b, b->a);
    return l;
}

static void marked_parts_have_spans_of_their_own(void **state) {
    static const char *const labels[] = {"step", "two", "last"};
    sl_error err = {0};
    sl_gpu_span s[8];
    double seconds = 0, sum = 0;
    bench b = bench_open();
    sl_gpu_list *l = marked(&b, NULL);
    assert_false(sl_gpu_encode_mark(l, NULL, &err));
    sl_gpu_ticket t = bench_submit(l);
    assert_string_equal(fake_last_list(), "dispatch add");
    assert_true(sl_gpu_wait(b.stream, t, SECOND, &seconds, &err));
    assert_int_equal(sl_gpu_spans(b.stream, s, 8), 3);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(s[i].label, labels[i]);
        assert_int_equal(s[i].ticket, t);
        assert_int_equal(s[i].dispatches, i == 1 ? 2 : 1);
        sum += s[i].end - s[i].begin;
    }
    assert_true(sum == seconds && seconds == 1.5);
    bench_close(&b);
    fake_expect_nothing_alive();
}

/* Kept, it is one submission as any other, with barriers where the marks were. */
static void a_marked_list_is_kept_whole(void **state) {
    sl_error err = {0};
    sl_gpu_ticket t;
    bench b = bench_open();
    sl_gpu_replay *r = sl_gpu_keep(marked(&b, NULL), &err);
    assert_true(sl_gpu_replay_submit(r, &t, &err));
    assert_string_equal(fake_last_list(),
                        "dispatch add | barrier | dispatch add | barrier | dispatch add | barrier | dispatch add");
    sl_gpu_replay_free(r);
    bench_close(&b);
}

static void a_part_that_fails_fails_its_list(void **state) {
    sl_error err = {0};
    bench b = bench_open();
    for (int refused = 0; refused < 2; refused++) {
        sl_gpu_event *e = sl_gpu_event_new(b.g, &err);
        fake.fail_list = refused ? NULL : "two";
        fake.fail_call = refused ? "submit" : NULL;
        fake.fail_at = refused ? 2 : 0;
        sl_gpu_ticket t = bench_submit(marked(&b, e));
        assert_false(sl_gpu_wait(b.stream, t, SECOND, NULL, &err));
        expect_error(&err, SL_ERR_DEVICE, "list 'step'");
        assert_true(sl_gpu_event_value(e) == 1); /* nobody waits for it for ever */
        assert_true(sl_gpu_stream_recover(b.stream, &err));
        sl_gpu_event_free(e);
    }
    bench_close(&b);
    fake_expect_nothing_alive();
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static void a_failed_list_stops_its_stream(void **state) {
    sl_error err = {0};
    sl_gpu_ticket t;
    fake.fail_list = "bad";
    fake.manual = true;
    bench b = bench_open();
    sl_gpu_list *l = begin(&b, "bad"), *after = begin(&b, "after"), *refused = begin(&b, "refused");
    add(l, &b, b.a, b.b, b.out);
    add(after, &b, b.out, b.b, b.a);
    sl_gpu_ticket bad = bench_submit(l), late = bench_submit(after);
    fake_complete(100);
    assert_false(sl_gpu_wait(b.stream, bad, SECOND, NULL, &err));
    expect_error(&err, SL_ERR_DEVICE, "list 'bad' (ticket 1) failed: injected fault");
    /* What was under way used what the failed list did not make. */
    assert_false(sl_gpu_wait(b.stream, late, SECOND, NULL, &err));
    expect_error(&err, SL_ERR_DEVICE, "list 'bad' (ticket 1) failed");
    assert_false(sl_gpu_submit(refused, &t, &err));
    expect_error(&err, SL_ERR_DEVICE, "the stream takes no lists until it has recovered: list 'bad'");
    assert_null(sl_gpu_map(b.out, 0, 64, SL_GPU_READ, &err));
    expect_error(&err, SL_ERR_DEVICE, "contents are not what was asked for");
    assert_non_null(sl_gpu_map(b.b, 0, 64, SL_GPU_READ, &err)); /* not written by it */
    assert_true(sl_gpu_unmap(b.b, &err));
    assert_non_null(sl_gpu_map(b.out, 0, 64, SL_GPU_WRITE, &err));
    assert_true(sl_gpu_unmap(b.out, &err));
    assert_false(sl_gpu_synchronize(b.stream, SECOND, &err));
    assert_true(sl_gpu_stream_recover(b.stream, &err));
    assert_true(sl_gpu_synchronize(b.stream, SECOND, &err));
    assert_false(sl_gpu_wait(b.stream, bad, 0, NULL, &err)); /* it did fail */
    assert_non_null(sl_gpu_map(b.out, 0, 64, SL_GPU_READ, &err));
    assert_true(sl_gpu_unmap(b.out, &err));
    l = begin(&b, "good");
    add(l, &b, b.a, b.b, b.out);
    t = bench_submit(l);
    assert_true(sl_gpu_wait(b.stream, t, SECOND, NULL, &err));
    /* And a second time. */
    l = begin(&b, "bad");
    add(l, &b, b.a, b.b, b.out);
    t = bench_submit(l);
    assert_false(sl_gpu_synchronize(b.stream, SECOND, &err));
    expect_error(&err, SL_ERR_DEVICE, "list 'bad' (ticket 4) failed");
    assert_true(sl_gpu_stream_recover(b.stream, &err));
    bench_close(&b);
}

/* Nobody waits for the list: its result is still not taken for good. */
static void mapping_what_a_failed_list_wrote_is_an_error(void **state) {
    sl_error err = {0};
    fake.fail_list = "bad";
    bench b = bench_open();
    sl_gpu_list *l = begin(&b, "bad");
    add(l, &b, b.a, b.b, b.out);
    bench_submit(l);
    assert_null(sl_gpu_map(b.out, 0, 4, SL_GPU_READ, &err));
    expect_error(&err, SL_ERR_DEVICE, "injected fault");
    bench_close(&b);
}

/* Without its stream nobody could ask for recovery. */
static void a_freed_stream_is_forgiven(void **state) {
    sl_error err = {0};
    fake.fail_list = "bad";
    bench b = bench_open();
    sl_gpu_list *l = begin(&b, "bad");
    add(l, &b, b.a, b.b, b.out);
    bench_submit(l);
    sl_gpu_stream_free(b.stream);
    b.stream = sl_gpu_stream_new(b.g, &err);
    assert_non_null(sl_gpu_map(b.out, 0, 4, SL_GPU_READ, &err));
    assert_true(sl_gpu_unmap(b.out, &err));
    bench_close(&b);
}

static void other_streams_go_on(void **state) {
    sl_error err = {0};
    fake.fail_list = "bad";
    bench b = bench_open();
    sl_gpu_stream *second = sl_gpu_stream_new(b.g, &err);
    sl_gpu_list *l = begin(&b, "bad"), *m = sl_gpu_begin(second, "good", &err);
    add(l, &b, b.a, b.b, b.out);
    bench_submit(l);
    assert_true(sl_gpu_encode_fill(m, b.a, 0, 64, 1, &err));
    sl_gpu_ticket t = bench_submit(m);
    assert_true(sl_gpu_wait(second, t, SECOND, NULL, &err));
    sl_gpu_stream_free(second);
    bench_close(&b);
}

/* ---- map --------------------------------------------------------------------------------------------------------- */

static void map_waits_for_users_of_the_range_only(void **state) {
    sl_error err = {0};
    fake.manual = true;
    bench b = bench_open();
    sl_gpu_buffer *low = view(b.out, 0, 32);
    sl_gpu_list *l = begin(&b, NULL);
    add(l, &b, b.a, b.b, low);
    bench_submit(l);
    /* Not used, and only read: at once. */
    assert_non_null(sl_gpu_map(b.out, 32, 32, SL_GPU_READ_WRITE, &err));
    assert_true(sl_gpu_unmap(b.out, &err));
    assert_non_null(sl_gpu_map(b.a, 0, 64, SL_GPU_READ, &err));
    assert_true(sl_gpu_unmap(b.a, &err));
    assert_int_equal(fake_running(), 1);
    fake_complete(1);
    assert_non_null(sl_gpu_map(b.a, 0, 64, SL_GPU_WRITE, &err));
    assert_int_equal(fake_running(), 0);
    assert_true(sl_gpu_unmap(b.a, &err));
    sl_gpu_buffer_free(low);
    bench_close(&b);
}

static void map_and_unmap_pair(void **state) {
    sl_error err = {0};
    bench b = bench_open();
    assert_false(sl_gpu_unmap(b.a, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "sl_gpu_unmap: the buffer is not mapped");
    assert_null(sl_gpu_map(b.a, 32, 33, SL_GPU_READ, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "sl_gpu_map: 33 bytes at offset 32 end at 65, the buffer has 64");
    assert_null(sl_gpu_map(b.a, 0, 0, SL_GPU_READ, &err));
    assert_null(sl_gpu_map(b.a, 0, 4, (sl_gpu_access)0, &err));
    assert_non_null(sl_gpu_map(b.a, 16, 16, SL_GPU_WRITE, &err));
    assert_null(sl_gpu_map(b.a, 0, 4, SL_GPU_READ, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "mapped already");
    sl_gpu_list *l = begin(&b, "uses");
    add(l, &b, b.a, b.b, b.out);
    sl_gpu_ticket t;
    assert_false(sl_gpu_submit(l, &t, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "list 'uses' uses 16 bytes at offset 16 of a buffer that are still mapped");
    l = begin(&b, "uses the rest");
    assert_true(sl_gpu_encode_copy(l, b.b, 0, b.a, 0, 16, &err));
    bench_submit(l);
    assert_true(sl_gpu_unmap(b.a, &err));
    assert_non_null(sl_gpu_map(b.a, 0, 64, SL_GPU_READ, &err));
    bench_close(&b); /* freed while it is mapped: a warning */
    assert_non_null(strstr(fake_log(), "freed while it was mapped"));
}

static void memory_the_host_cannot_see_is_copied(void **state) {
    sl_error err = {0};
    fake.discrete = true;
    bench b = bench_open();
    sl_gpu_buffer *x = sl_gpu_alloc(b.g, 64, SL_GPU_PRIVATE, &err), *v = view(x, 8, 56);
    float *p = sl_gpu_map(v, 8, 8, SL_GPU_WRITE, &err);
    p[0] = 1;
    p[1] = 2;
    assert_true(sl_gpu_unmap(v, &err));
    p = sl_gpu_map(x, 0, 64, SL_GPU_READ, &err);
    assert_true(p[4] == 1 && p[5] == 2);
    uint8_t untouched[4];
    memcpy(untouched, &p[3], 4);
    assert_int_equal(untouched[0], 0xcd);
    p[4] = 9; /* for reading: not written back */
    assert_true(sl_gpu_unmap(x, &err));
    p = sl_gpu_map(x, 16, 4, SL_GPU_READ, &err);
    assert_true(p[0] == 1);
    assert_true(sl_gpu_unmap(x, &err));
    assert_int_equal(fake_calls("write"), 1);
    sl_gpu_buffer_free(v);
    sl_gpu_buffer_free(x);
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(lists_keep_what_they_use),
        TEST(a_view_holds_its_parent),
        TEST(a_list_is_used_up),
        TEST(memory_limits),
        TEST(waits_have_limits),
        TEST(an_empty_list_is_done_in_its_turn),
        TEST(many_lists_are_submitted_without_waiting),
        TEST(spans),
        TEST(marked_parts_have_spans_of_their_own),
        TEST(a_marked_list_is_kept_whole),
        TEST(a_part_that_fails_fails_its_list),
        TEST(a_failed_list_stops_its_stream),
        TEST(mapping_what_a_failed_list_wrote_is_an_error),
        TEST(a_freed_stream_is_forgiven),
        TEST(other_streams_go_on),
        TEST(map_waits_for_users_of_the_range_only),
        TEST(map_and_unmap_pair),
        TEST(memory_the_host_cannot_see_is_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

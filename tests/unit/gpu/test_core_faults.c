/* A driver that fails at each of its calls in turn, and many threads at once: an error each, nothing leaks. */
#include "support_fake.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- one failure anywhere ---------------------------------------------------------------------------------------- */

typedef struct story {
    sl_gpu *g;
    sl_gpu_library *library;
    sl_gpu_pipeline *add;
    sl_gpu_stream *stream;
    sl_gpu_buffer *a, *b, *out, *wrapped;
    sl_gpu_event *event;
    sl_gpu_list *list;
    sl_gpu_replay *replay;
    sl_error err;
} story;

static bool make_objects(story *s, float *host) {
    return (s->g = fake_open("", &s->err)) &&
           (s->library = sl_gpu_library_new(s->g, fake_source, strlen(fake_source), NULL, &s->err)) &&
           (s->add = sl_gpu_pipeline_new(s->library, "add", NULL, 0, &s->err)) &&
           (s->stream = sl_gpu_stream_new(s->g, &s->err)) && (s->a = sl_gpu_alloc(s->g, 64, SL_GPU_PRIVATE, &s->err)) &&
           (s->b = sl_gpu_alloc(s->g, 64, SL_GPU_SHARED, &s->err)) &&
           (s->out = sl_gpu_alloc(s->g, 64, SL_GPU_PRIVATE, &s->err)) &&
           (s->wrapped = sl_gpu_wrap(s->g, host, 64, &s->err)) && (s->event = sl_gpu_event_new(s->g, &s->err));
}

static bool fill(story *s, sl_gpu_buffer *b, float value) {
    float *p = sl_gpu_map(b, 0, 64, SL_GPU_WRITE, &s->err);
    for (int i = 0; p && i < 16; i++)
        p[i] = value;
    return p && sl_gpu_unmap(b, &s->err);
}

static bool encode(story *s) {
    bench b = {.add = s->add};
    s->list = sl_gpu_begin(s->stream, "story", &s->err);
    return s->list && bench_add(s->list, &b, s->a, s->b, s->out, 16, &s->err) &&
           sl_gpu_encode_copy(s->list, s->wrapped, 0, s->out, 0, 64, &s->err);
}

static bool run_list(story *s) {
    sl_gpu_ticket t;
    if (!encode(s) || !sl_gpu_encode_signal(s->list, s->event, 1, &s->err))
        return false;
    bool ok = sl_gpu_submit(s->list, &t, &s->err) && sl_gpu_event_wait(s->event, 1, SECOND, &s->err) &&
              sl_gpu_wait(s->stream, t, SECOND, NULL, &s->err);
    s->list = NULL;
    return ok;
}

static bool run_replay(story *s) {
    sl_gpu_ticket t;
    if (!encode(s))
        return false;
    s->replay = sl_gpu_keep(s->list, &s->err);
    s->list = NULL;
    return s->replay && sl_gpu_replay_submit(s->replay, &t, &s->err) && sl_gpu_replay_submit(s->replay, &t, &s->err) &&
           sl_gpu_synchronize(s->stream, SECOND, &s->err);
}

static bool check_result(story *s, const float *host) {
    float *p = sl_gpu_map(s->out, 0, 64, SL_GPU_READ, &s->err);
    if (!p)
        return false;
    for (int i = 0; i < 16; i++)
        assert_true(p[i] == 42 && host[i] == 42);
    return sl_gpu_unmap(s->out, &s->err);
}

static void end_story(story *s) {
    sl_gpu_list_free(s->list);
    sl_gpu_replay_free(s->replay);
    sl_gpu_event_free(s->event);
    sl_gpu_buffer_free(s->a);
    sl_gpu_buffer_free(s->b);
    sl_gpu_buffer_free(s->out);
    sl_gpu_buffer_free(s->wrapped);
    sl_gpu_stream_free(s->stream);
    sl_gpu_pipeline_free(s->add);
    sl_gpu_library_free(s->library);
    sl_gpu_close(s->g);
}

static bool tell_story(story *s) {
    float host[16] = {0};
    bool ok = make_objects(s, host) && fill(s, s->a, 40) && fill(s, s->b, 2) && run_list(s) && run_replay(s) &&
              check_result(s, host);
    end_story(s);
    fake_expect_nothing_alive();
    return ok;
}

static void every_call_may_fail(void **state) {
    int failed = 0, at;
    for (at = 1; at < 200; at++) {
        story s = {0};
        fake_reset(NULL);
        fake.discrete = true;
        fake.fail_at = at;
        bool ok = tell_story(&s);
        failed += !ok;
        if (!ok && !strstr(s.err.message, "injected"))
            fail_msg("call %d: '%s'", at, s.err.message);
        if (ok && strlen(fake_log()) == 0 && fake_calls("alloc") == 3)
            break; /* nothing was left to fail */
    }
    print_message("%d calls, %d of them an error\n", at - 1, failed);
    assert_int_equal(failed, at - 1 - 3); /* all but those of alloc, which is tried again */
    assert_true(at > 15 && at < 200);
}

static void each_list_may_fail_on_the_device(void **state) {
    story s = {0};
    fake.fail_list = "story";
    assert_false(tell_story(&s));
    expect_error(&s.err, SL_ERR_DEVICE,
                 "event: value 1 was not reached: list 'story' (ticket 1) failed: injected fault");
}

static void memory_returns_before_an_allocation_fails(void **state) {
    sl_error err = {0};
    bench b = bench_open();
    sl_gpu_buffer *x = sl_gpu_alloc(b.g, 64, SL_GPU_SHARED, &err);
    sl_gpu_list *l = sl_gpu_begin(b.stream, NULL, &err);
    assert_true(bench_add(l, &b, b.a, b.b, x, 1, &err));
    bench_submit(l);
    sl_gpu_buffer_free(x);
    assert_int_equal(fake_calls("free"), 0);
    fake.fail_call = "alloc";
    fake.fail_at = 1;
    x = sl_gpu_alloc(b.g, 64, SL_GPU_SHARED, &err);
    assert_non_null(x);
    assert_int_equal(fake_calls("free"), 1);
    sl_gpu_buffer_free(x);
    bench_close(&b);
}

static void open_objects_keep_the_device(void **state) {
    sl_error err = {0};
    bench b = bench_open();
    sl_gpu_close(b.g);
    assert_non_null(strstr(fake_log(), "sl_gpu_close: 3 buffers were not freed"));
    assert_non_null(strstr(fake_log(), "1 streams were not freed"));
    sl_gpu_list *l = sl_gpu_begin(b.stream, NULL, &err); /* and they still work */
    assert_true(bench_add(l, &b, b.a, b.b, b.out, 16, &err));
    assert_true(sl_gpu_wait(b.stream, bench_submit(l), SECOND, NULL, &err));
    bench_close(&b);
}

static void close_waits_for_what_runs(void **state) {
    sl_error err = {0};
    bench b = bench_open();
    sl_gpu_list *l = sl_gpu_begin(b.stream, NULL, &err);
    assert_true(bench_add(l, &b, b.a, b.b, b.out, 16, &err));
    bench_submit(l);
    bench_close(&b);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

static void *wait_long(void *user) {
    bench *b = user;
    sl_error err = {0};
    bool ok = sl_gpu_synchronize(b->stream, 20 * SECOND, &err);
    return ok ? NULL : "failed";
}

static void a_second_thread_in_a_stream_is_an_error(void **state) {
    sl_error err = {0};
    pthread_t thread;
    void *result;
    fake.manual = true;
    bench b = bench_open();
    sl_gpu_list *l = sl_gpu_begin(b.stream, NULL, &err), *m = sl_gpu_begin(b.stream, NULL, &err);
    assert_true(bench_add(l, &b, b.a, b.b, b.out, 16, &err));
    bench_submit(l);
    pthread_create(&thread, NULL, wait_long, &b);
    while (fake_calls("wait") < 1)
        sched_yield();
    assert_null(sl_gpu_begin(b.stream, NULL, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "the stream is in use by another thread: one thread at a time");
    assert_false(bench_add(m, &b, b.a, b.b, b.out, 16, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "in use by another thread");
    /* Buffers are anybody's: what the list does not write can be mapped. */
    assert_non_null(sl_gpu_map(b.a, 0, 64, SL_GPU_READ, &err));
    assert_true(sl_gpu_unmap(b.a, &err));
    fake_complete(1);
    pthread_join(thread, &result);
    assert_null(result);
    assert_true(bench_add(m, &b, b.a, b.b, b.out, 16, &err));
    sl_gpu_list_free(m);
    bench_close(&b);
}

enum { THREADS = 4, ROUNDS = 40 };

typedef struct worker {
    const bench *b;
    int number;
    char failure[1024];
} worker;

static bool work_round(worker *w, sl_gpu_stream *stream, int round, sl_error *err) {
    const bench *b = w->b;
    sl_gpu_ticket t;
    sl_gpu_buffer *x = sl_gpu_alloc(b->g, 64, SL_GPU_SHARED, err), *v = x ? sl_gpu_view(x, 0, 32, err) : NULL;
    sl_gpu_pipeline *p = sl_gpu_pipeline_new(b->library, "add", NULL, 0, err);
    bench mine = {.add = p};
    sl_gpu_list *l = p && v ? sl_gpu_begin(stream, NULL, err) : NULL;
    bool ok = l && bench_add(l, &mine, b->a, b->b, v, 8, err) && sl_gpu_submit(l, &t, err);
    sl_gpu_pipeline_free(p);
    sl_gpu_buffer_free(v);
    if (ok && round % 3 == 0)
        ok = sl_gpu_wait(stream, t, 20 * SECOND, NULL, err);
    float *f = ok ? sl_gpu_map(x, 0, 32, SL_GPU_READ, err) : NULL;
    if (f && (f[0] != 3 || f[7] != 3))
        f = sl_fail_null(err, SL_ERR_NUMERIC, "%g, expected 3", (double)f[0]);
    ok = f && sl_gpu_unmap(x, err);
    sl_gpu_buffer_free(x);
    return ok;
}

static void *work(void *user) {
    worker *w = user;
    sl_error err = {0};
    sl_gpu_stream *stream = sl_gpu_stream_new(w->b->g, &err);
    bool ok = stream != NULL;
    for (int i = 0; i < ROUNDS && ok; i++)
        ok = work_round(w, stream, i, &err);
    sl_gpu_stream_free(stream);
    if (!ok)
        snprintf(w->failure, sizeof w->failure, "%s", err.message);
    return NULL;
}

static void threads_share_a_device(void **state) {
    sl_error err = {0};
    pthread_t threads[THREADS];
    worker workers[THREADS];
    bench b = bench_open();
    float *p = sl_gpu_map(b.a, 0, 64, SL_GPU_WRITE, &err), *q = sl_gpu_map(b.b, 0, 64, SL_GPU_WRITE, &err);
    for (int i = 0; i < 16; i++) {
        p[i] = 1;
        q[i] = 2;
    }
    assert_true(sl_gpu_unmap(b.a, &err) && sl_gpu_unmap(b.b, &err));
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.b = &b, .number = i};
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    for (int i = 0; i < ROUNDS; i++) { /* and the main thread reads what they read */
        p = sl_gpu_map(b.a, 0, 64, SL_GPU_READ, &err);
        assert_true(p && p[15] == 1);
        assert_true(sl_gpu_unmap(b.a, &err));
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_string_equal(workers[i].failure, "");
    }
    bench_close(&b);
}

/* Reading from several threads what one stream computes: each waits, one of them in the driver. */
static void *map_late(void *user) {
    worker *w = user;
    sl_error err = {0};
    sl_gpu_buffer *v = sl_gpu_view(w->b->out, 0, 32, &err);
    float *p = v ? sl_gpu_map(v, 0, 32, SL_GPU_READ, &err) : NULL;
    if (!p || p[0] != 3)
        snprintf(w->failure, sizeof w->failure, "%s", p ? "old contents" : err.message);
    sl_gpu_unmap(v, NULL);
    sl_gpu_buffer_free(v);
    return NULL;
}

static void threads_wait_for_one_list(void **state) {
    sl_error err = {0};
    pthread_t threads[THREADS];
    worker workers[THREADS];
    fake.manual = true;
    bench b = bench_open();
    float *p = sl_gpu_map(b.a, 0, 64, SL_GPU_WRITE, &err), *q = sl_gpu_map(b.b, 0, 64, SL_GPU_WRITE, &err);
    p[0] = 1;
    q[0] = 2;
    assert_true(sl_gpu_unmap(b.a, &err) && sl_gpu_unmap(b.b, &err));
    sl_gpu_list *l = sl_gpu_begin(b.stream, NULL, &err);
    assert_true(bench_add(l, &b, b.a, b.b, b.out, 1, &err));
    bench_submit(l);
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.b = &b, .number = i};
        pthread_create(&threads[i], NULL, map_late, &workers[i]);
    }
    assert_false(sl_gpu_synchronize(b.stream, 5000000, &err)); /* while they wait, a short limit holds */
    fake_complete(1);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_string_equal(workers[i].failure, "");
    }
    bench_close(&b);
}

#define TEST(name) cmocka_unit_test_setup(name, fake_reset)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_call_may_fail),
        TEST(each_list_may_fail_on_the_device),
        TEST(memory_returns_before_an_allocation_fails),
        TEST(open_objects_keep_the_device),
        TEST(close_waits_for_what_runs),
        TEST(a_second_thread_in_a_stream_is_an_error),
        TEST(threads_share_a_device),
        TEST(threads_wait_for_one_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

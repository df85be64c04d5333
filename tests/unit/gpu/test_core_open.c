/* Opening devices, option structs, handles: what a program can do wrong before it computes anything. */
#include "support_fake.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void expect_open_fails(const char *device, sl_code code, const char *words) {
    sl_error err = {0};
    sl_gpu_options o = SL_GPU_OPTIONS_INIT;
    o.device = device;
    assert_null(sl_gpu_open(&o, &err));
    expect_error(&err, code, words);
}

static void unknown_devices_are_named(void **state) {
    expect_open_fails("vulkan", SL_ERR_ARGUMENT, "device 'vulkan' is not known, expected metal[:N]");
    expect_open_fails("", SL_ERR_ARGUMENT, "device '' is not known");
    expect_open_fails("metalx:0", SL_ERR_ARGUMENT, "not known");
    expect_open_fails("soft:", SL_ERR_ARGUMENT, "expected a number from 0 to 1024");
    expect_open_fails("soft:-1", SL_ERR_ARGUMENT, "'-1' after the colon");
    expect_open_fails("soft:1x", SL_ERR_ARGUMENT, "'1x' after the colon");
    expect_open_fails("soft:99999999999999999999", SL_ERR_ARGUMENT, "expected a number");
    expect_open_fails("soft:0", SL_ERR_ARGUMENT, "0 threads, expected at least 1");
}

/* As on a machine without an NVIDIA driver. */
static int no_driver(void **state) {
    setenv("SLUICE_CUDA_LIBRARY", "/no/such/libcuda.so.1", 1);
    return fake_reset(state);
}

static int driver_again(void **state) {
    return unsetenv("SLUICE_CUDA_LIBRARY");
}

static void cuda_says_what_is_missing(void **state) {
    expect_open_fails("cuda", SL_ERR_UNSUPPORTED, "no NVIDIA driver here: SLUICE_CUDA_LIBRARY: /no/such/libcuda.so.1");
    expect_open_fails("cuda:1", SL_ERR_UNSUPPORTED, "no NVIDIA driver here");
}

#ifndef __APPLE__
static void no_gpu_says_what_is_missing(void **state) {
    expect_open_fails(NULL, SL_ERR_UNSUPPORTED, "no GPU: ");
    expect_open_fails(NULL, SL_ERR_UNSUPPORTED, "no NVIDIA driver here");
    expect_open_fails(NULL, SL_ERR_UNSUPPORTED, "\"soft\" runs on the CPU when asked");
}
#endif

static void options_without_their_size_are_refused(void **state) {
    sl_error err = {0};
    sl_gpu_options o = {.device = "soft"};
    assert_null(sl_gpu_open(&o, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "set by the _INIT macro");
    bench b = bench_open();
    sl_gpu_compile_options c = {.name = "x"};
    assert_null(sl_gpu_library_new(b.g, fake_source, strlen(fake_source), &c, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "sl_gpu_compile options of 0 bytes");
    bench_close(&b);
}

static void info_is_filled_as_far_as_its_size_says(void **state) {
    bench b = bench_open();
    struct {
        sl_gpu_info info;
    } space;
    memset(&space, 0x5a, sizeof space);
    space.info.size = offsetof(sl_gpu_info, family);
    sl_gpu_get_info(b.g, &space.info);
    assert_string_equal(space.info.device, "fake");
    assert_string_equal(space.info.name, "Fake device");
    assert_int_equal((unsigned char)space.info.family[0], 0x5a);
    assert_int_equal(space.info.size, offsetof(sl_gpu_info, family));
    space.info.size = sizeof space.info;
    sl_gpu_get_info(b.g, &space.info);
    assert_string_equal(space.info.family, "fake1");
    assert_int_equal(space.info.max_threads, 512);
    bench_close(&b);
}

static void failed_open_leaves_nothing(void **state) {
    sl_error err = {0};
    fake.fail_at = 1;
    assert_null(fake_open("", &err));
    expect_error(&err, SL_ERR_DEVICE, "injected failure of open");
    fake_expect_nothing_alive();
}

static void debug_level_comes_from_the_environment(void **state) {
    static const char *const wrong[] = {"x", "99", "-1", "1 ", "2.5", "6", "abc"};
    sl_error err = {0};
    int level = -1;
    setenv("SLUICE_DEBUG", "1", 1);
    assert_true(gpu_debug_level(0, &level, &err) && level == 1);
    assert_true(gpu_debug_level(3, &level, &err) && level == 3);
    assert_true(gpu_debug_level(9, &level, &err) && level == 5);
    setenv("SLUICE_DEBUG", "", 1);
    assert_true(gpu_debug_level(0, &level, &err) && level == 0);
    for (size_t i = 0; i < SL_COUNT(wrong); i++) {
        setenv("SLUICE_DEBUG", wrong[i], 1);
        assert_true(gpu_debug_level(-1, &level, &err) && level == 0); /* not looked at */
        assert_false(gpu_debug_level(0, &level, &err));
        expect_error(&err, SL_ERR_ARGUMENT, "SLUICE_DEBUG");
        expect_error(&err, SL_ERR_ARGUMENT, "expected a number from 0 to 5");
        assert_null(fake_open("", &err));
        fake_expect_nothing_alive();
    }
    unsetenv("SLUICE_DEBUG");
}

/* ---- handles ----------------------------------------------------------------------------------------------------- */

static void freed_handles_are_errors(void **state) {
    sl_error err = {0};
    bench b = bench_open();
    sl_gpu_buffer *gone = sl_gpu_alloc(b.g, 64, SL_GPU_SHARED, &err);
    sl_gpu_buffer_free(gone);
    sl_gpu_buffer_free(gone);
    assert_int_equal(sl_gpu_buffer_size(gone), 0);
    assert_null(sl_gpu_map(gone, 0, 4, SL_GPU_READ, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "the buffer was freed before");
    assert_null(sl_gpu_view(gone, 0, 4, &err));
    /* As long as other memory came and went. */
    for (int i = 0; i < 2000; i++) {
        sl_gpu_buffer *other = sl_gpu_alloc(b.g, 64, SL_GPU_SHARED, &err);
        assert_ptr_not_equal(other, gone);
        assert_int_equal(sl_gpu_buffer_size(gone), 0);
        sl_gpu_buffer_free(other);
    }
    sl_gpu_list *l = sl_gpu_begin(b.stream, NULL, &err);
    assert_false(bench_add(l, &b, b.a, gone, b.out, 16, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "kernel 'add', slot 1 'b': the buffer was freed before");
    sl_gpu_list_free(l);
    sl_gpu_pipeline_free(b.add);
    l = sl_gpu_begin(b.stream, NULL, &err);
    assert_false(bench_add(l, &b, b.a, b.b, b.out, 16, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "the pipeline was freed before");
    sl_gpu_list_free(l);
    bench_close(&b);
}

static void handles_of_another_kind_are_errors(void **state) {
    sl_error err = {0};
    bench b = bench_open();
    assert_null(sl_gpu_begin((sl_gpu_stream *)b.a, NULL, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "the stream was freed before");
    assert_null(sl_gpu_begin(NULL, NULL, &err));
    expect_error(&err, SL_ERR_ARGUMENT, "no stream: the handle is NULL");
    sl_gpu_buffer_free((sl_gpu_buffer *)b.stream);
    sl_gpu_stream_free(NULL);
    bench_close(&b);
}

static void many_handles_live_at_once(void **state) {
    enum { MANY = 3000 };
    static sl_gpu_buffer *all[MANY];
    sl_error err = {0};
    bench b = bench_open();
    for (size_t i = 0; i < MANY; i++) {
        all[i] = sl_gpu_view(b.a, i % 16, 1 + i % 7, &err);
        assert_non_null(all[i]);
    }
    for (size_t i = 0; i < MANY; i++) {
        assert_int_equal(sl_gpu_buffer_size(all[i]), 1 + i % 7);
        sl_gpu_buffer_free(all[i]);
        assert_int_equal(sl_gpu_buffer_size(all[i]), 0);
    }
    bench_close(&b);
}

static void nothing_runs_in_a_child_process(void **state) {
    bench b = bench_open();
    pid_t child = fork();
    if (child == 0) {
        sl_error err = {0};
        bool refused = !sl_gpu_stream_new(b.g, &err) && strstr(err.message, "before a fork");
        _exit(refused ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(unknown_devices_are_named, fake_reset),
        cmocka_unit_test_setup_teardown(cuda_says_what_is_missing, no_driver, driver_again),
#ifndef __APPLE__
        cmocka_unit_test_setup_teardown(no_gpu_says_what_is_missing, no_driver, driver_again),
#endif
        cmocka_unit_test_setup(options_without_their_size_are_refused, fake_reset),
        cmocka_unit_test_setup(info_is_filled_as_far_as_its_size_says, fake_reset),
        cmocka_unit_test_setup(failed_open_leaves_nothing, fake_reset),
        cmocka_unit_test_setup(debug_level_comes_from_the_environment, fake_reset),
        cmocka_unit_test_setup(freed_handles_are_errors, fake_reset),
        cmocka_unit_test_setup(handles_of_another_kind_are_errors, fake_reset),
        cmocka_unit_test_setup(many_handles_live_at_once, fake_reset),
        cmocka_unit_test_setup(nothing_runs_in_a_child_process, fake_reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

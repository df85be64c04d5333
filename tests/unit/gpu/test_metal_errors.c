/* The metal device when things go wrong: failed lists, time-outs, objects that are not to be had, a forked child; in
 * all of it nothing leaks and no rule is broken. */
#include "support_metal.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const gpu_driver *const driver = &gpu_driver_metal;

static void an_error_of_the_gpu_is_decoded(void **state) {
    static const struct {
        standin_fault fault;
        const char *message;
    } cases[] = {
        {{"MTLCommandBufferErrorDomain", 1, "Internal Error (0000000e:x)"},
         "MTLCommandBufferErrorDomain 1 (internal error): Internal Error (0000000e:x)"},
        {{"MTLCommandBufferErrorDomain", 2, "Caused GPU Timeout Error"}, "2 (ran longer than the system allows"},
        {{"MTLCommandBufferErrorDomain", 3, "Caused GPU Address Fault Error"}, "3 (page fault"},
        {{"MTLCommandBufferErrorDomain", 4, "Ignored"}, "4 (access revoked"},
        {{"MTLCommandBufferErrorDomain", 7, "Insufficient Permission"}, "7 (not permitted"},
        {{"MTLCommandBufferErrorDomain", 8,
          "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"},
         "8 (out of memory)"},
        {{"MTLCommandBufferErrorDomain", 9, "Invalid Resource"}, "9 (invalid resource"},
        {{"MTLCommandBufferErrorDomain", 10, "m"}, "10 (memoryless"},
        {{"MTLCommandBufferErrorDomain", 11, "d"}, "11 (device removed)"},
        {{"MTLCommandBufferErrorDomain", 12, "s"}, "12 (stack overflow"},
        {{"MTLCommandBufferErrorDomain", 1, "GPU Hang (00000003:kIOGPUCommandBufferCallbackErrorHang)"},
         "1 (hang: the work did not end"},
        {{"MTLCommandBufferErrorDomain", 4,
          "Innocent Victim (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)"},
         "4 (victim of another list's fault; may be submitted again)"},
        {{"MTLCommandBufferErrorDomain", 2, "Impacting Interactivity (0000000e)"}, "held up the display"},
        {{"SomethingElse", -7, "two\nlines"}, "SomethingElse -7 (unknown code): two\\x0alines"},
    };
    metal_rig r = metal_rig_open();
    void *add;
    sl_error err = {0};
    gpu_memory x = metal_memory(r.d, 4);
    add = metal_pipeline(r.d, r.library, "add_one", NULL, &err);
    gpu_bound b = {.slot = 0, .memory = &x, .length = 4};
    gpu_command c = metal_dispatch(add, 1, &b, 1);
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        metal->fail_list = cases[i].fault;
        assert_false(metal_run(&r, &c, 1, &err));
        assert_int_equal(err.code, SL_ERR_DEVICE);
        if (strncmp(err.message, "metal: the GPU failed a list: ", 30) != 0 || !strstr(err.message, cases[i].message))
            fail_msg("\"%s\" is not in: %s", cases[i].message, err.message);
        assert_true(metal_run(&r, &c, 1, &err)); /* the next one is not touched by it */
    }
    driver->free(r.d, &x);
    driver->pipeline_free(r.d, add);
    metal_rig_close(&r);
}

static void a_kernel_that_faults_fails_its_list(void **state) {
    metal_rig r = metal_rig_open();
    sl_error err = {0};
    void *faults = metal_pipeline(r.d, r.library, "faults", NULL, &err);
    gpu_memory x = metal_memory(r.d, 4);
    gpu_bound b = {.slot = 0, .memory = &x, .length = 4};
    gpu_command c = metal_dispatch(faults, 1, &b, 1);
    assert_false(metal_run(&r, &c, 1, &err));
    assert_non_null(strstr(err.message, "3 (page fault: an address outside all buffers was used)"));
    driver->free(r.d, &x);
    driver->pipeline_free(r.d, faults);
    metal_rig_close(&r);
}

/* Metal raises no event of a list that failed. */
static void who_waits_for_a_failed_list_goes_on(void **state) {
    metal_rig r = metal_rig_open();
    sl_error err = {0};
    gpu_result result;
    void *event = driver->event_new(r.d, &err), *other = driver->stream_new(r.d, &err), *failed, *waiting;
    gpu_command wait = {.kind = GPU_WAIT}, signal = {.kind = GPU_SIGNAL};
    wait.u.event.event = signal.u.event.event = event;
    wait.u.event.value = signal.u.event.value = 3;
    metal->hang = true;
    assert_true(driver->submit(r.d, r.stream, "fails", &signal, 1, &failed, &err));
    metal->fail_list = (standin_fault){"MTLCommandBufferErrorDomain", 2, "Timeout"};
    metal->hang = false;
    assert_true(driver->wait(r.d, failed, UINT64_MAX, &result));
    assert_true(result.failed);
    assert_true(driver->submit(r.d, other, "waits", &wait, 1, &waiting, &err));
    assert_true(driver->wait(r.d, waiting, UINT64_MAX, &result));
    assert_false(result.failed);
    assert_true(driver->wait(r.d, failed, 0, &result)); /* asked again it says the same */
    assert_true(result.failed);
    driver->release(r.d, failed);
    driver->release(r.d, waiting);
    driver->event_free(r.d, event);
    driver->stream_free(r.d, other);
    metal_rig_close(&r);
}

static void a_list_that_hangs_is_waited_for_so_long_and_no_longer(void **state) {
    metal_rig r = metal_rig_open();
    sl_error err = {0};
    gpu_result result;
    void *submission;
    static const uint64_t limits[] = {0, 1, 50000, 1000000, 7500000};
    metal->hang = true;
    assert_true(driver->submit(r.d, r.stream, "hangs", NULL, 0, &submission, &err));
    for (size_t i = 0; i < SL_COUNT(limits); i++)
        assert_false(driver->wait(r.d, submission, limits[i], &result));
    metal->hang = false;
    assert_true(driver->wait(r.d, submission, UINT64_MAX, &result));
    assert_false(result.failed);
    driver->release(r.d, submission);
    metal_rig_close(&r);
}

/* ---- objects that are not to be had --------------------------------------------------------------------------------
 */

static void a_list_that_cannot_be_encoded_leaves_the_stream_whole(void **state) {
    static const struct {
        standin_nil nil;
        const char *message;
    } cases[] = {
        {STANDIN_NIL_COMMAND_BUFFER, "metal: no command buffer to be had"},
        {STANDIN_NIL_COMPUTE_ENCODER, "metal: no encoder to be had from a command buffer"},
        {STANDIN_NIL_BLIT_ENCODER, "metal: no encoder to be had from a command buffer"},
    };
    metal_rig r = metal_rig_open();
    sl_error err = {0};
    void *add = metal_pipeline(r.d, r.library, "add_one", NULL, &err), *submission = &r;
    gpu_memory x = metal_memory(r.d, 8);
    memset(x.host, 0, 8);
    gpu_bound b = {.slot = 0, .memory = &x, .length = 4};
    gpu_command copy = {.kind = GPU_COPY}, list[4];
    copy.u.copy.to = copy.u.copy.from = &x;
    copy.u.copy.to_offset = 4;
    copy.u.copy.bytes = 4;
    list[0] = list[2] = metal_dispatch(add, 1, &b, 1);
    list[1] = copy;
    list[3] = (gpu_command){.kind = (gpu_command_kind)99};
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        metal->nil = cases[i].nil;
        assert_false(driver->submit(r.d, r.stream, "fails", list, 3, &submission, &err));
        assert_int_equal(err.code, SL_ERR_DEVICE);
        assert_string_equal(err.message, cases[i].message);
    }
    assert_false(driver->submit(r.d, r.stream, "fails", list, 4, &submission, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    assert_ptr_equal(submission, &r);
    assert_int_equal(metal->dispatches, 0);
    assert_true(metal_run(&r, list, 3, &err));
    assert_int_equal(((uint32_t *)x.host)[0], 2);
    assert_int_equal(((uint32_t *)x.host)[1], 1);
    driver->free(r.d, &x);
    driver->pipeline_free(r.d, add);
    metal_rig_close(&r);
}

static void a_stream_or_event_that_is_not_to_be_had_is_an_error(void **state) {
    static const standin_nil nils[] = {STANDIN_NIL_QUEUE, STANDIN_NIL_FENCE, STANDIN_NIL_EVENT};
    gpu_device *d = metal_open_device(NULL);
    sl_error err = {0};
    for (int round = 0; round < 20; round++) /* more than the streams there may be: failed ones do not count */
        for (size_t i = 0; i < SL_COUNT(nils); i++) {
            metal->nil = nils[i];
            assert_null(driver->stream_new(d, &err));
            assert_string_equal(err.message, "metal: no command queue to be had");
        }
    metal->nil = STANDIN_NIL_EVENT;
    assert_null(driver->event_new(d, &err));
    assert_int_equal(err.code, SL_ERR_MEMORY);
    driver->close(d);
}

/* ---- forks ---------------------------------------------------------------------------------------------------------
 */

static bool refused(bool ok, const sl_error *err) {
    return !ok && err->code == SL_ERR_DEVICE && strstr(err->message, "before this process was forked");
}

static void a_forked_child_is_refused(void **state) {
    metal_rig r = metal_rig_open();
    pid_t child = fork();
    if (child == 0) {
        sl_error err = {0};
        gpu_memory m;
        void *submission;
        bool ok = refused(driver->alloc(r.d, 1, SL_GPU_SHARED, &m, &err), &err) &&
                  refused(driver->submit(r.d, r.stream, "child", NULL, 0, &submission, &err), &err) &&
                  refused(driver->stream_new(r.d, &err), &err) && refused(driver->event_new(r.d, &err), &err) &&
                  refused(metal_load(r.d, METAL_BUILTIN, &err), &err) &&
                  refused(metal_pipeline(r.d, r.library, "move", NULL, &err), &err);
        _exit(ok ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    metal_rig_close(&r);
}

int main(void) {
    if (!metal_has_stand_in())
        return METAL_SKIPPED;
#define TEST(f) cmocka_unit_test_setup_teardown(f, metal_reset, metal_left_clean)
    const struct CMUnitTest tests[] = {
        TEST(an_error_of_the_gpu_is_decoded),
        TEST(a_kernel_that_faults_fails_its_list),
        TEST(who_waits_for_a_failed_list_goes_on),
        TEST(a_list_that_hangs_is_waited_for_so_long_and_no_longer),
        TEST(a_list_that_cannot_be_encoded_leaves_the_stream_whole),
        TEST(a_stream_or_event_that_is_not_to_be_had_is_an_error),
        TEST(a_forked_child_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The stand-in sees what a Mac would end the process for, or let pass and leak: each rule is broken once, by messages
 * sent past the driver, and must be named. So a clean run of the other tests means something. */
#include "support_metal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/metal/metal.h"

static metal_api api;
static void *pool;
static metal_id device, library, queue, buffer, fence;

#define SEND(name, ...) METAL_SEND(&api, name, __VA_ARGS__)

/* ---- objects to break rules with -----------------------------------------------------------------------------------
 */

static metal_id new_function(const char *name) {
    metal_id error = NULL, values = SEND(new_, api.cls.MTLFunctionConstantValues);
    metal_id function = SEND(newSpecialised, library, metal_string(&api, name), values, &error);
    SEND(release, values);
    return function;
}

static metal_id new_pipeline(const char *name) {
    metal_id error = NULL, function = new_function(name), d = SEND(new_, api.cls.MTLComputePipelineDescriptor);
    SEND(setComputeFunction, d, function);
    metal_id pipeline = SEND(newPipeline, device, d, 0, NULL, &error);
    SEND(release, d);
    SEND(release, function);
    return pipeline;
}

static int rules_reset(void **state) {
    if (metal_reset(state) != 0)
        return 1;
    sl_error err = {0};
    metal_id error = NULL;
    assert_true(metal_api_open(&api, &err));
    pool = api.pool_push();
    device = api.default_device();
    library = SEND(newLibraryWithSource, device, metal_string(&api, METAL_BUILTIN), NULL, &error);
    queue = SEND(newCommandQueue, device, 4);
    buffer = SEND(newBuffer, device, 64, METAL_HAZARD_UNTRACKED);
    fence = SEND(newFence, device);
    return 0;
}

static int rules_left_clean(void **state) {
    SEND(release, fence);
    SEND(release, buffer);
    SEND(release, queue);
    SEND(release, library);
    SEND(release, device);
    api.pool_pop(pool);
    int bad = metal_left_clean(state);
    metal_api_close(&api);
    return bad;
}

/* Exactly one rule was broken since the last call, and it is this one. */
static void expect_broken(const char *rule) {
    if (metal->violations != 1 || !strstr(metal->violation, rule))
        fail_msg("\"%s\" was not seen: %ld seen, the last: %s", rule, metal->violations, metal->violation);
    metal->violations = 0;
}

/* An encoder with a pipeline and its buffers bound. */
static metal_id ready_encoder(metal_id commands, metal_id pipeline) {
    metal_id e = SEND(computeCommandEncoder, commands, METAL_DISPATCH_CONCURRENT);
    SEND(setPipeline, e, pipeline);
    SEND(setBuffer, e, buffer, 0, 0);
    SEND(setBuffer, e, buffer, 32, 1);
    SEND(setThreadgroupMemoryLength, e, 1024, 0);
    return e;
}

static void end(metal_id encoder) {
    SEND(updateFence, encoder, fence);
    SEND(endEncoding, encoder);
}

static void dispatch(metal_id encoder, metal_uint groups, metal_uint threads) {
    SEND(dispatchThreadgroups, encoder, (metal_size){groups, 1, 1}, (metal_size){threads, 1, 1});
}

/* ---- rules of compute encoders -------------------------------------------------------------------------------------
 */

static void bindings(void **state) {
    metal_id move = new_pipeline("move"), scale = new_pipeline("scale"), e;
    metal_id commands = SEND(commandBuffer, queue);
    uint8_t bytes[4100] = {0};
    e = SEND(computeCommandEncoder, commands, METAL_DISPATCH_CONCURRENT);
    dispatch(e, 1, 1);
    expect_broken("a dispatch without a pipeline");
    SEND(setPipeline, e, buffer);
    expect_broken("setComputePipelineState: of what is none");
    SEND(setPipeline, e, scale);
    SEND(setBuffer, e, buffer, 0, 0);
    dispatch(e, 1, 1);
    expect_broken("kernel scale: nothing is bound at index 30 (by)");
    SEND(setBytes, e, bytes, 4, 30);
    dispatch(e, 1, 1);
    expect_broken("kernel scale: 4 bytes are bound at index 30 (by), which reads 8");
    SEND(setBytes, e, bytes, 4097, 30);
    expect_broken("setBytes: of 4097 bytes, at most 4096");
    SEND(setBytes, e, bytes, 0, 30);
    expect_broken("setBytes: of 0 bytes");
    SEND(setBytes, e, bytes, 4096, 30);
    SEND(setBytes, e, bytes, 8, 31);
    expect_broken("setBytes:: index 31, the last is 30");
    SEND(setBuffer, e, buffer, 0, 31);
    expect_broken("index 31");
    SEND(setThreadgroupMemoryLength, e, 16, 31);
    expect_broken("index 31");
    SEND(setBuffer, e, NULL, 0, 1);
    expect_broken("nil or an offset beyond it");
    SEND(setBuffer, e, buffer, 64, 1);
    expect_broken("nil or an offset beyond it");
    SEND(setBufferOffset, e, 0, 1);
    expect_broken("without a buffer or beyond it");
    SEND(setBufferOffset, e, 64, 0);
    expect_broken("without a buffer or beyond it");
    dispatch(e, 1, 1025);
    expect_broken("a threadgroup of 1025 x 1 x 1 threads, at most 1024");
    dispatch(e, 0, 1);
    expect_broken("a grid of 0 x 1 x 1 threadgroups");
    dispatch(e, 1, 0);
    expect_broken("a threadgroup of 0 x 1 x 1 threads");
    SEND(setPipeline, e, move);
    SEND(setBuffer, e, buffer, 0, 1);
    dispatch(e, 1, 1);
    expect_broken("no length of threadgroup memory 0");
    SEND(setThreadgroupMemoryLength, e, 20, 0);
    expect_broken("20 is no multiple of 16");
    SEND(setThreadgroupMemoryLength, e, 32784, 0);
    expect_broken("above 32768");
    SEND(setThreadgroupMemoryLength, e, 16400, 0);
    dispatch(e, 1, 1);
    expect_broken("kernel move: 32784 bytes of threadgroup memory, at most 32768"); /* 16384 are its own */
    SEND(setThreadgroupMemoryLength, e, 16384, 0);
    dispatch(e, 1, 65);
    expect_broken("at most 64");
    SEND(memoryBarrier, e, 2);
    expect_broken("memoryBarrierWithScope: 2");
    dispatch(e, 1, 1);
    end(e);
    assert_int_equal(metal->violations, 0);
    SEND(release, move);
    SEND(release, scale);
}

static void order_of_calls(void **state) {
    metal_id add = new_pipeline("add_one"), commands = SEND(commandBuffer, queue), e, event;
    event = SEND(newSharedEvent, device);
    e = ready_encoder(commands, add);
    assert_null(SEND(blitCommandEncoder, commands));
    expect_broken("while another encoder of the command buffer is open");
    SEND(encodeSignalEvent, commands, event, 1);
    expect_broken("an event while another encoder");
    SEND(commit, commands);
    expect_broken("commit with an encoder open");
    end(e);
    SEND(setBytes, e, "x", 1, 0);
    expect_broken("setBytes: after endEncoding");
    dispatch(e, 1, 1);
    expect_broken("dispatchThreadgroups: after endEncoding");
    SEND(endEncoding, e);
    expect_broken("endEncoding after endEncoding");
    SEND(encodeWaitForEvent, commands, buffer, 1);
    expect_broken("an event was encoded that is none");
    SEND(commit, commands);
    SEND(commit, commands);
    expect_broken("commit of a command buffer that was committed");
    assert_null(SEND(computeCommandEncoder, commands, 1));
    expect_broken("an encoder on a command buffer that was committed");
    while (SEND(status, commands) < METAL_STATUS_COMPLETED)
        usleep(100);
    SEND(setSignaledValue, event, 5);
    SEND(setSignaledValue, event, 4);
    expect_broken("a shared event falls to 4");
    void *inner = api.pool_push();
    SEND(computeCommandEncoder, SEND(commandBuffer, queue), 1);
    api.pool_pop(inner);
    expect_broken("an encoder was freed that was not ended");
    SEND(release, event);
    SEND(release, add);
}

static void fences(void **state) {
    metal_id add = new_pipeline("add_one"), commands = SEND(commandBuffer, queue), e;
    e = ready_encoder(commands, add);
    SEND(waitForFence, e, fence);
    expect_broken("of a fence that nothing has updated");
    dispatch(e, 1, 1);
    SEND(endEncoding, e);
    expect_broken("no fence updated at the end of an encoder");
    commands = SEND(commandBuffer, queue);
    e = ready_encoder(commands, add);
    dispatch(e, 1, 1);
    SEND(updateFence, e, buffer);
    expect_broken("updateFence: of what is no fence");
    end(e);
    e = SEND(blitCommandEncoder, commands);
    SEND(fillBuffer, e, buffer, ((metal_range){0, 4}), 1);
    expect_broken("no fence between the encoders of a queue");
    SEND(waitForFence, e, fence);
    expect_broken("waitForFence: after commands");
    end(e);
    SEND(release, add);
}

static void copies_and_fills(void **state) {
    metal_id commands = SEND(commandBuffer, queue), e = SEND(blitCommandEncoder, commands);
    SEND(copyFromBuffer, e, buffer, 0, buffer, 33, 32);
    expect_broken("32 bytes at 33 of a buffer that has less");
    SEND(copyFromBuffer, e, buffer, 60, buffer, 0, 5);
    expect_broken("5 bytes at 60");
    SEND(copyFromBuffer, e, NULL, 0, buffer, 0, 5);
    expect_broken("or nil");
    SEND(fillBuffer, e, buffer, ((metal_range){60, 64}), 1); /* begin and end, not length */
    expect_broken("64 bytes at 60");
    SEND(fillBuffer, e, buffer, ((metal_range){0, 0}), 1);
    expect_broken("0 bytes");
    end(e);
}

/* ---- rules of objects ----------------------------------------------------------------------------------------------
 */

static void pipelines_and_libraries(void **state) {
    metal_id error = NULL, d = SEND(new_, api.cls.MTLComputePipelineDescriptor);
    SEND(setComputeFunction, d, NULL);
    expect_broken("setComputeFunction: of nil");
    assert_null(SEND(newPipeline, device, d, 0, NULL, &error));
    expect_broken("a descriptor without a function");
    assert_null(SEND(newLibraryWithSource, device, NULL, NULL, &error));
    expect_broken("without a source");
    assert_null(SEND(newSpecialised, library, NULL, NULL, &error));
    expect_broken("without a name or values");
    assert_null(SEND(newFunction, library, NULL));
    expect_broken("newFunctionWithName: without a name");
    metal_id bare = SEND(newFunction, library, metal_string(&api, "constants"));
    SEND(setComputeFunction, d, bare);
    assert_null(SEND(newPipeline, device, d, 0, NULL, &error));
    expect_broken("a function whose constants were not set");
    SEND(release, bare);
    metal_id values = SEND(new_, api.cls.MTLFunctionConstantValues);
    SEND(setConstantValue, values, "x", 1, 0);
    expect_broken("setConstantValue: 0 of type 1");
    SEND(release, values);
    SEND(release, d);
}

static void buffers(void **state) {
    static char page[3 << 14];
    assert_null(SEND(newBuffer, device, 0, METAL_HAZARD_UNTRACKED));
    expect_broken("a buffer of no bytes");
    assert_null(SEND(newBuffer, device, 17ul << 30, METAL_HAZARD_UNTRACKED));
    expect_broken("larger than maxBufferLength");
    assert_null(SEND(newBuffer, device, 4, 0x10));
    expect_broken("buffer options 10");
    char *aligned = page + (16384 - (uintptr_t)page % 16384) % 16384;
    assert_null(SEND(newBufferNoCopy, device, aligned + 64, 16384, METAL_HAZARD_UNTRACKED, NULL));
    expect_broken("are not whole pages");
    assert_null(SEND(newBufferNoCopy, device, aligned, 16000, METAL_HAZARD_UNTRACKED, NULL));
    expect_broken("are not whole pages");
    metal_id error = NULL, descriptor = SEND(new_, api.cls.MTLResidencySetDescriptor);
    metal_id set = SEND(newResidencySet, device, descriptor, &error);
    metal_id other = SEND(newBuffer, device, 4, METAL_HAZARD_UNTRACKED);
    SEND(removeAllocation, set, other);
    expect_broken("removeAllocation: of what is not in the set");
    SEND(addAllocation, set, other);
    SEND(addAllocation, set, other);
    expect_broken("in the set already");
    SEND(requestResidency, set);
    expect_broken("requestResidency before commit");
    SEND(commit, SEND(commandBuffer, queue));
    expect_broken("a queue that does not know the residency set");
    SEND(release, other);
    expect_broken("freed that is in a residency set");
    SEND(release, set);
    expect_broken("with 1 buffers in it");
    SEND(release, descriptor);
}

static void lifetimes(void **state) {
    metal_id extra = SEND(newSharedEvent, device);
    assert_int_equal(metal->alive, 7); /* with what rules_reset made, one string of it still in the pool */
    SEND(release, extra);
    SEND(release, extra);
    expect_broken("release sent to an object that is gone");
    SEND(signaledValue, extra);
    expect_broken("signaledValue sent to an object that is gone");
    SEND(signaledValue, buffer);
    expect_broken("unrecognised selector signaledValue sent to MTLBuffer");
    SEND(signaledValue, NULL);
    assert_int_equal(metal->nil_messages, 1);
    metal->nil_messages = 0;
    metal_id all = api.all_devices();
    assert_non_null(SEND(objectAtIndex, all, 0));
    assert_null(SEND(objectAtIndex, all, 1));
    expect_broken("objectAtIndex: 1 of an array of 1");
    SEND(release, all);
    api.pool_pop((void *)99);
    expect_broken("pop of an autorelease pool that is not there");
    for (int i = 0; i < 4; i++)
        SEND(commandBuffer, queue);
    SEND(commandBuffer, queue);
    expect_broken("a queue of 4 command buffers was asked for one more");
}

static void *without_pool(void *unused) {
    SEND(retain, device);
    metal_id name = SEND(name, device);
    expect_broken("NSString autoreleased with no pool in place");
    SEND(release, name);
    SEND(release, device);
    return NULL;
}

static void a_thread_without_pool(void **state) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, without_pool, NULL), 0);
    pthread_join(thread, NULL);
}

/* Unretained references: what a list uses must outlive it. */
static void a_buffer_freed_too_soon(void **state) {
    metal_id add = new_pipeline("add_one"), commands = SEND(commandBuffer, queue), e;
    metal_id brief = SEND(newBuffer, device, 4, METAL_HAZARD_UNTRACKED);
    metal->hang = true;
    e = ready_encoder(commands, add);
    SEND(setBuffer, e, brief, 0, 0);
    dispatch(e, 1, 1);
    end(e);
    SEND(commit, commands);
    SEND(release, brief);
    metal->hang = false;
    while (SEND(status, commands) < METAL_STATUS_COMPLETED)
        usleep(100);
    expect_broken("a command buffer runs, and something that it uses is gone");
    SEND(release, add);
}

/* Unless a test records, the process ends at once. */
static void a_broken_rule_ends_the_process(void **state) {
    pid_t child = fork();
    if (child == 0) {
        metal->record = false;
        close(2);
        SEND(signaledValue, buffer);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

int main(void) {
    if (!metal_has_stand_in())
        return METAL_SKIPPED;
#define TEST(f) cmocka_unit_test_setup_teardown(f, rules_reset, rules_left_clean)
    const struct CMUnitTest tests[] = {
        TEST(bindings),
        TEST(order_of_calls),
        TEST(fences),
        TEST(copies_and_fills),
        TEST(pipelines_and_libraries),
        TEST(buffers),
        TEST(lifetimes),
        TEST(a_thread_without_pool),
        TEST(a_buffer_freed_too_soon),
        TEST(a_broken_rule_ends_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

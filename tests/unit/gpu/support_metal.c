#include "support_metal.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

standin_control *metal;
static void *library;

void *metal_symbol(const char *name) {
    void *found = dlsym(library, name);
    assert_non_null(found);
    return found;
}

#ifdef SL_METAL_STANDIN
static void load(void) {
    library = dlopen(SL_METAL_STANDIN, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail_msg("%s", dlerror());
    standin_control *(*control)(void);
    void *found = metal_symbol("standin");
    memcpy(&control, &found, sizeof control);
    metal = control();
}
#endif

bool metal_has_stand_in(void) {
#ifdef SL_METAL_STANDIN
    return true;
#else
    print_message("SKIP: no stand-in for Metal on this system\n");
    return false;
#endif
}

int metal_reset(void **state) {
#ifdef SL_METAL_STANDIN
    if (!library)
        load();
    setenv("SLUICE_METAL_LIBRARY", SL_METAL_STANDIN, 1);
    unsetenv("SLUICE_METAL_SERVICE");
    void (*reset)(void);
    void *found = metal_symbol("standin_reset");
    memcpy(&reset, &found, sizeof reset);
    reset();
    metal->record = true;
#endif
    return 0;
}

int metal_left_clean(void **state) {
    if (!metal)
        return 0;
    if (metal->violations)
        fail_msg("%ld rules were broken, the last: %s", metal->violations, metal->violation);
    assert_int_equal(metal->nil_messages, 0);
    for (int i = 0; i < 2000 && metal->alive; i++)
        usleep(1000); /* a queue's thread lets go of a command buffer after it has said that it is done */
    assert_int_equal(metal->alive, 0);
    return 0;
}

gpu_device *metal_open_device(const gpu_open *o) {
    gpu_open defaults = {.index = -1};
    sl_error err = {0};
    gpu_device *d = gpu_driver_metal.open(o ? o : &defaults, &err);
    if (!d)
        fail_msg("%s", err.message);
    return d;
}

void *metal_load(gpu_device *d, const char *source, sl_error *err) {
    sl_gpu_compile_options o = SL_GPU_COMPILE_OPTIONS_INIT;
    gpu_source s = {.name = "k.metal", .text = source, .size = strlen(source), .options = &o};
    sl_buf payload = {0};
    void *loaded = gpu_driver_metal.compile(d, &s, &payload, err)
                       ? gpu_driver_metal.library_load(d, payload.data, payload.size, err)
                       : NULL;
    sl_buf_free(&payload);
    return loaded;
}

void *metal_pipeline(gpu_device *d, void *from, const char *name, gpu_pipeline_limits *limits, sl_error *err) {
    gpu_pipeline_limits unasked;
    msl_kernel k = {.name = name, .entry = name};
    return gpu_driver_metal.pipeline_new(d, from, &k, NULL, 0, limits ? limits : &unasked, err);
}

metal_rig metal_rig_open(void) {
    sl_error err = {0};
    metal_rig r = {.d = metal_open_device(NULL)};
    r.library = metal_load(r.d, METAL_BUILTIN, &err);
    r.stream = gpu_driver_metal.stream_new(r.d, &err);
    if (!r.library || !r.stream)
        fail_msg("%s", err.message);
    return r;
}

void metal_rig_close(metal_rig *r) {
    gpu_driver_metal.stream_free(r->d, r->stream);
    gpu_driver_metal.library_free(r->d, r->library);
    gpu_driver_metal.close(r->d);
}

gpu_memory metal_memory(gpu_device *d, uint64_t bytes) {
    sl_error err = {0};
    gpu_memory m;
    if (!gpu_driver_metal.alloc(d, bytes, SL_GPU_SHARED, &m, &err))
        fail_msg("%s", err.message);
    return m;
}

bool metal_run(metal_rig *r, const gpu_command *list, size_t n, sl_error *err) {
    void *submission;
    gpu_result result = {0};
    if (!gpu_driver_metal.submit(r->d, r->stream, "run", list, n, &submission, err))
        return false;
    if (!gpu_driver_metal.wait(r->d, submission, 20ull * 1000000000, &result))
        fail_msg("a list does not end");
    gpu_driver_metal.release(r->d, submission);
    if (result.failed)
        *err = result.error;
    else
        assert_true(result.end >= result.begin && result.begin > 0);
    return !result.failed;
}

gpu_command metal_dispatch(void *pipeline, uint32_t threads, const gpu_bound *bound, size_t bounds) {
    gpu_command c = {.kind = GPU_DISPATCH, .label = "dispatch"};
    c.u.dispatch.pipeline = pipeline;
    for (int i = 0; i < 3; i++)
        c.u.dispatch.groups[i] = c.u.dispatch.threads[i] = 1;
    c.u.dispatch.threads[0] = threads;
    c.u.dispatch.bound = bound;
    c.u.dispatch.bound_count = bounds;
    return c;
}

#include "support_soft.h"

#include "gpu/texts.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const char support_soft_prelude[] =
    "#line 1 \"prelude\"\n"
    "static const soft_api *api;\n"
    "#define T (api->self())\n"
    "#define G (T->group)\n"
    "#define BUFFER(type, slot) ((type *)G->buffer[slot])\n"
    "#define LANES(v, active) (const char (*)[64])api->simd_publish(&(v), sizeof(v), __builtin_LINE(), &(active))\n"
    "#define FN static inline __attribute__((always_inline, nodebug))\n"
    "FN float simd_sum(float v, int line = __builtin_LINE()) {\n"
    "  uint32_t active; const char (*p)[64] = (const char (*)[64])api->simd_publish(&v, 4, line, &active);\n"
    "  float s = 0; for (int i = 0; i < 32; i++) if (active >> i & 1) s += *(const float *)p[i]; return s; }\n"
    "FN void barrier(int flags = 2, int line = __builtin_LINE()) { api->barrier(flags, line); }\n"
    "FN void simd_barrier(int flags = 2, int line = __builtin_LINE()) { api->simd_barrier(flags, line); }\n"
    "FN int atomic_add(int *p, int v) { api->atomic_hint(p, 4); return __atomic_fetch_add(p, v, 0); }\n"
    "#define SHARED(site, type, name, n) type (&name)[n] = *(type (*)[n])api->threadgroup_static(site, "
    "sizeof(type[n]), #name, __LINE__)\n"
    "#define KERNEL static void k(void)\n";

static const char entries[] = "\n#line 1 \"entries\"\n"
                              "static const soft_kernel kernels[] = {{\"k\", k, 0}};\n"
                              "#ifndef CONSTANTS\n#define CONSTANTS nullptr\n#define CONSTANT_COUNT 0\n#endif\n"
                              "static const soft_module module = {SOFT_ABI, kernels, 1, CONSTANTS, CONSTANT_COUNT};\n"
                              "extern \"C\" __attribute__((visibility(\"default\")))\n"
                              "const soft_module *soft_init(const soft_api *a) { api = a; return &module; }\n";

static void collect(void *user, sl_log_level level, const char *line) {
    soft_rig *r = user;
    size_t used = strlen(r->log);
    (void)level;
    snprintf(r->log + used, sizeof r->log - used, "%s\n", line);
}

bool soft_rig_open(soft_rig *r, int threads, bool check, uint64_t seed) {
    memset(r, 0, sizeof *r);
    gpu_open o = {.index = threads, .check = check, .seed = seed, .log = {collect, r, SL_LOG_WARN}};
    char *compiler = soft_find_compiler(&r->error);
    if (!compiler) {
        printf("SKIP: %s\n", r->error.message);
        return false;
    }
    free(compiler);
    r->device = gpu_driver_soft.open(&o, &r->error);
    if (!r->device)
        fail_msg("%s", r->error.message);
    r->stream = gpu_driver_soft.stream_new(r->device, &r->error);
    assert_non_null(r->stream);
    return true;
}

static void drop_kernel(soft_rig *r) {
    gpu_driver_soft.pipeline_free(r->device, r->pipeline);
    gpu_driver_soft.library_free(r->device, r->library);
    r->pipeline = r->library = NULL;
}

void soft_rig_close(soft_rig *r) {
    gpu_driver_soft.stream_free(r->device, r->stream);
    drop_kernel(r);
    gpu_driver_soft.close(r->device);
}

static bool compile(soft_rig *r, const char *body, sl_buf *payload) {
    const sl_text *abi = gpu_text("soft_abi.h");
    sl_buf unit = {0};
    assert_non_null(abi);
    sl_buf_puts(&unit, abi->bytes);
    sl_buf_puts(&unit, support_soft_prelude);
    sl_buf_puts(&unit, "#line 1 \"t.metal\"\n");
    sl_buf_puts(&unit, body);
    sl_buf_puts(&unit, entries);
    bool ok = soft_compile_unit(r->device, "t.metal", unit.data, unit.size, false, payload, &r->error);
    sl_buf_free(&unit);
    return ok;
}

/* Compiled once per text and mode: the same kernel runs in many orders. */
static const sl_buf *compile_once(soft_rig *r, const char *body) {
    static struct {
        char *body;
        bool checked;
        sl_buf payload;
    } known[64];
    size_t i = 0;
    bool checked = soft_of(r->device)->checking;
    while (i + 1 < SL_COUNT(known) && known[i].body &&
           (known[i].checked != checked || strcmp(known[i].body, body) != 0))
        i++;
    if (known[i].body && known[i].checked == checked && strcmp(known[i].body, body) == 0)
        return &known[i].payload;
    free(known[i].body);
    sl_buf_free(&known[i].payload);
    known[i].payload = (sl_buf){0};
    known[i].body = sl_strdup(body);
    known[i].checked = checked;
    if (!compile(r, body, &known[i].payload))
        fail_msg("%s", r->error.message);
    return &known[i].payload;
}

bool soft_rig_compiles(soft_rig *r, const char *body) {
    sl_buf payload = {0};
    bool ok = compile(r, body, &payload);
    sl_buf_free(&payload);
    return ok;
}

void soft_rig_kernel(soft_rig *r, const char *body, const msl_arg *args, size_t arg_count) {
    gpu_pipeline_limits limits;
    drop_kernel(r);
    const sl_buf *payload = compile_once(r, body);
    r->library = gpu_driver_soft.library_load(r->device, payload->data, payload->size, &r->error);
    if (!r->library)
        fail_msg("%s", r->error.message);
    r->kernel = (msl_kernel){.name = "k", .entry = "k", .args = args, .arg_count = arg_count};
    r->pipeline = gpu_driver_soft.pipeline_new(r->device, r->library, &r->kernel, NULL, 0, &limits, &r->error);
    if (!r->pipeline)
        fail_msg("%s", r->error.message);
    assert_int_equal(limits.simd_width, 32);
    r->log[0] = 0;
}

bool soft_rig_run(soft_rig *r, const soft_run *run) {
    gpu_command c = {.kind = GPU_DISPATCH};
    gpu_result result;
    void *submission;
    c.u.dispatch.pipeline = r->pipeline;
    for (int i = 0; i < 3; i++) {
        c.u.dispatch.groups[i] = run->groups[i] ? run->groups[i] : 1;
        c.u.dispatch.threads[i] = run->threads[i] ? run->threads[i] : 1;
    }
    c.u.dispatch.bound = run->bound;
    c.u.dispatch.bound_count = run->bound_count;
    c.u.dispatch.lengths = run->lengths;
    c.u.dispatch.length_count = run->length_count;
    r->error = (sl_error){0};
    if (!gpu_driver_soft.submit(r->device, r->stream, "test", &c, 1, &submission, &r->error))
        fail_msg("%s", r->error.message);
    if (!gpu_driver_soft.wait(r->device, submission, 60ull * 1000000000u, &result))
        fail_msg("no result in 60 s");
    gpu_driver_soft.release(r->device, submission);
    if (result.failed)
        r->error = result.error;
    return !result.failed;
}

gpu_memory soft_rig_memory(soft_rig *r, uint64_t bytes) {
    gpu_memory m;
    if (!gpu_driver_soft.alloc(r->device, bytes, SL_GPU_SHARED, &m, &r->error))
        fail_msg("%s", r->error.message);
    return m;
}

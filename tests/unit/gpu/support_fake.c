#include "support_fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

fake_control fake;

const char fake_source[] =
    "#include <metal_stdlib>\n"
    "using namespace metal;\n"
    "constant bool has_bias [[function_constant(0)]];\n"
    "constant int width [[function_constant(1)]];\n"
    "kernel void add(device const float *a [[buffer(0)]], device const float *b [[buffer(1)]],\n"
    "                device float *out [[buffer(2)]], constant uint &n [[buffer(3)]],\n"
    "                uint i [[thread_position_in_grid]]) {\n"
    "    if (i < n)\n"
    "        out[i] = a[i] + b[i];\n"
    "}\n"
    "kernel void tile(device float *x [[buffer(0)]], threadgroup float *t [[threadgroup(0)]],\n"
    "                 uint i [[thread_position_in_grid]], uint k [[thread_index_in_threadgroup]]) {\n"
    "    t[k] = x[i];\n"
    "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "    x[i] = t[k] + float(width);\n"
    "}\n"
    "kernel void optional(device float *x [[buffer(0)]],\n"
    "                     device const float *bias [[buffer(1), function_constant(has_bias)]],\n"
    "                     uint i [[thread_position_in_grid]]) {\n"
    "    if (has_bias)\n"
    "        x[i] += bias[i];\n"
    "}\n"
    "kernel void wide(device const float4 *x [[buffer(0)]], device half *out [[buffer(30)]],\n"
    "                 uint i [[thread_position_in_grid]]) {\n"
    "    out[i] = half(x[i].x);\n"
    "}\n";

/* ---- state ------------------------------------------------------------------------------------------------------- */

enum { MOST_CALLS = 64, LIST_TEXT = 4096 };

typedef struct call_count {
    const char *name;
    int count;
} call_count;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    call_count calls[MOST_CALLS];
    int counted; /* towards fake.fail_at */
    int libraries, pipelines, memories, streams, events, submissions, replays, devices;
    char list[LIST_TEXT];
    const gpu_bound *bound;
    size_t bound_count;
    const sl_gpu_threadgroup_length *lengths;
    int allowed; /* manual mode: submissions that may end */
    struct fake_submission *queue;
    double clock;
    sl_buf log;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

typedef struct fake_device {
    gpu_device_base base;
} fake_device;

typedef struct fake_submission {
    struct fake_submission *next;
    const gpu_command *list;
    size_t n;
    char label[64];
    bool done;
    gpu_result result;
} fake_submission;

typedef struct fake_memory {
    uint8_t *bytes;
    bool wrapped;
} fake_memory;

typedef struct fake_event {
    uint64_t value;
} fake_event;

int fake_reset(void **unused) {
    pthread_condattr_t a;
    pthread_condattr_init(&a);
#ifndef __APPLE__
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
#endif
    pthread_cond_init(&state.changed, &a);
    pthread_condattr_destroy(&a);
    fake = (fake_control){0};
    memset(state.calls, 0, sizeof state.calls);
    state.counted = state.allowed = 0;
    state.list[0] = 0;
    state.queue = NULL;
    sl_buf_clear(&state.log);
    return 0;
}

void fake_expect_nothing_alive(void) {
    assert_int_equal(state.libraries, 0);
    assert_int_equal(state.pipelines, 0);
    assert_int_equal(state.memories, 0);
    assert_int_equal(state.streams, 0);
    assert_int_equal(state.events, 0);
    assert_int_equal(state.submissions, 0);
    assert_int_equal(state.replays, 0);
    assert_int_equal(state.devices, 0);
}

/* Counts a call; true: this one is to fail. */
static bool called(const char *name, int *live, int change) {
    bool fails = false;
    pthread_mutex_lock(&state.lock);
    for (int i = 0; i < MOST_CALLS; i++) {
        if (state.calls[i].name && strcmp(state.calls[i].name, name) != 0)
            continue;
        state.calls[i].name = name;
        state.calls[i].count++;
        break;
    }
    bool can_fail = change >= 0; /* frees cannot */
    if (can_fail && fake.fail_at && (!fake.fail_call || strcmp(fake.fail_call, name) == 0))
        fails = ++state.counted == fake.fail_at;
    if (live && !fails)
        *live += change;
    pthread_mutex_unlock(&state.lock);
    return fails;
}

/* What called() has counted as alive did not come to be. */
static bool no_memory(sl_error *err, int *live) {
    pthread_mutex_lock(&state.lock);
    --*live;
    pthread_mutex_unlock(&state.lock);
    return sl_fail(err, SL_ERR_MEMORY, "fake: out of memory");
}

static void *made(void *object, int *live, sl_error *err) {
    if (!object)
        no_memory(err, live);
    return object;
}

static bool injected(sl_error *err, const char *name) {
    return sl_fail(err, SL_ERR_DEVICE, "injected failure of %s", name);
}

int fake_calls(const char *name) {
    int count = 0;
    pthread_mutex_lock(&state.lock);
    for (int i = 0; i < MOST_CALLS && state.calls[i].name; i++)
        if (strcmp(state.calls[i].name, name) == 0)
            count = state.calls[i].count;
    pthread_mutex_unlock(&state.lock);
    return count;
}

const char *fake_last_list(void) {
    return state.list;
}

const gpu_bound *fake_last_bound(size_t *count) {
    *count = state.bound_count;
    return state.bound;
}

const sl_gpu_threadgroup_length *fake_last_length(void) {
    return state.lengths;
}

/* ---- device, library, pipeline ------------------------------------------------------------------------------------
 */

static gpu_device *fake_driver_open(const gpu_open *o, sl_error *err) {
    if (called("open", &state.devices, 1))
        return injected(err, "open"), NULL;
    fake_device *d = calloc(1, sizeof *d);
    if (!d)
        return no_memory(err, &state.devices), NULL;
    d->base.driver = &fake_driver;
    d->base.log = o->log;
    d->base.info = (sl_gpu_info){
        .simd_width = 32,
        .max_threads = 512,
        .max_threadgroup_memory = 32768,
        .max_buffer = fake.max_buffer ? fake.max_buffer : 1 << 20,
        .working_set = 4 << 20,
        .unified = !fake.discrete,
        .language = 31,
    };
    snprintf(d->base.info.device, sizeof d->base.info.device, "%s", fake.device ? fake.device : "fake");
    snprintf(d->base.info.name, sizeof d->base.info.name, "Fake device");
    snprintf(d->base.info.family, sizeof d->base.info.family, "%s", fake.family ? fake.family : "fake1");
    snprintf(d->base.info.system, sizeof d->base.info.system, "test 1");
    return (gpu_device *)d;
}

static void fake_close(gpu_device *d) {
    called("close", &state.devices, -1);
    free(d);
}

static bool fake_compile(gpu_device *d, const gpu_source *s, sl_buf *payload, sl_error *err) {
    if (called("compile", NULL, 0))
        return sl_fail(err, SL_ERR_COMPILE, "%s:1: injected", s->name);
    return (sl_buf_puts(payload, "code of ") && sl_buf_append(payload, s->text, s->size)) ||
           sl_fail(err, SL_ERR_MEMORY, "fake: out of memory");
}

static void *fake_library_load(gpu_device *d, const void *payload, size_t size, sl_error *err) {
    if (called("library_load", &state.libraries, 1))
        return injected(err, "library_load"), NULL;
    assert_true(size >= 8 && memcmp(payload, fake.device ? "MTLB" : "code of ", fake.device ? 4 : 8) == 0);
    return made(malloc(1), &state.libraries, err);
}

static void fake_library_free(gpu_device *d, void *library) {
    called("library_free", &state.libraries, -1);
    free(library);
}

static void *fake_pipeline_new(gpu_device *d, void *library, const msl_kernel *kernel, const sl_gpu_constant *constants,
                               size_t count, gpu_pipeline_limits *limits, sl_error *err) {
    if (called("pipeline_new", &state.pipelines, 1))
        return injected(err, "pipeline_new"), NULL;
    *limits = (gpu_pipeline_limits){
        .max_threads = fake.max_threads ? fake.max_threads : 256,
        .simd_width = 32,
        .threadgroup_memory = fake.statics,
    };
    return made(sl_strdup(kernel->name), &state.pipelines, err);
}

static void fake_pipeline_free(gpu_device *d, void *pipeline) {
    called("pipeline_free", &state.pipelines, -1);
    free(pipeline);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static bool fake_alloc(gpu_device *d, uint64_t bytes, sl_gpu_memory kind, gpu_memory *out, sl_error *err) {
    if (called("alloc", &state.memories, 1))
        return sl_fail(err, SL_ERR_MEMORY, "injected: no memory on the device");
    fake_memory *m = malloc(sizeof *m);
    uint8_t *p = m ? malloc(bytes) : NULL;
    if (!p) {
        free(m);
        return no_memory(err, &state.memories);
    }
    *m = (fake_memory){p, false};
    memset(m->bytes, 0xcd, bytes);
    *out = (gpu_memory){.handle = m, .bytes = bytes};
    out->host = fake.discrete && kind == SL_GPU_PRIVATE ? NULL : m->bytes;
    return true;
}

static bool fake_wrap(gpu_device *d, void *host, uint64_t bytes, gpu_memory *out, sl_error *err) {
    if (called("wrap", &state.memories, 1))
        return injected(err, "wrap");
    fake_memory *m = malloc(sizeof *m);
    if (!m)
        return no_memory(err, &state.memories);
    *m = (fake_memory){host, true};
    *out = (gpu_memory){.handle = m, .host = host, .bytes = bytes, .offset = fake.align};
    return true;
}

static void fake_free(gpu_device *d, gpu_memory *m) {
    fake_memory *f = m->handle;
    called("free", &state.memories, -1);
    if (!f->wrapped)
        free(f->bytes);
    free(f);
}

static uint8_t *bytes_of(const gpu_memory *m) {
    return ((fake_memory *)m->handle)->bytes;
}

static bool fake_read(gpu_device *d, gpu_memory *m, uint64_t offset, void *to, uint64_t bytes, sl_error *err) {
    if (called("read", NULL, 0))
        return injected(err, "read");
    assert_true(offset + bytes <= m->bytes);
    memcpy(to, bytes_of(m) + offset, bytes);
    return true;
}

static bool fake_write(gpu_device *d, gpu_memory *m, uint64_t offset, const void *from, uint64_t bytes, sl_error *err) {
    if (called("write", NULL, 0))
        return injected(err, "write");
    assert_true(offset + bytes <= m->bytes);
    memcpy(bytes_of(m) + offset, from, bytes);
    return true;
}

/* ---- streams, events --------------------------------------------------------------------------------------------- */

static void *fake_stream_new(gpu_device *d, sl_error *err) {
    if (called("stream_new", &state.streams, 1))
        return injected(err, "stream_new"), NULL;
    return made(malloc(1), &state.streams, err);
}

static void fake_stream_free(gpu_device *d, void *stream) {
    called("stream_free", &state.streams, -1);
    free(stream);
}

static void *fake_event_new(gpu_device *d, sl_error *err) {
    if (called("event_new", &state.events, 1))
        return injected(err, "event_new"), NULL;
    return made(calloc(1, sizeof(fake_event)), &state.events, err);
}

static void fake_event_free(gpu_device *d, void *event) {
    called("event_free", &state.events, -1);
    free(event);
}

static bool fake_event_signal(gpu_device *d, void *event, uint64_t value, sl_error *err) {
    if (called("event_signal", NULL, 0))
        return injected(err, "event_signal");
    pthread_mutex_lock(&state.lock);
    ((fake_event *)event)->value = value;
    pthread_cond_broadcast(&state.changed);
    pthread_mutex_unlock(&state.lock);
    return true;
}

static uint64_t fake_event_value(gpu_device *d, void *event) {
    pthread_mutex_lock(&state.lock);
    uint64_t value = ((fake_event *)event)->value;
    pthread_mutex_unlock(&state.lock);
    return value;
}

/* Under the lock; false: time is over. */
static bool fake_sleep(uint64_t deadline) {
    uint64_t now = sl_now_ns();
    if (now >= deadline)
        return false;
    uint64_t at = deadline - now > SECOND ? now + SECOND : deadline;
    struct timespec t = {.tv_sec = (time_t)(at / SECOND), .tv_nsec = (long)(at % SECOND)};
    pthread_cond_timedwait(&state.changed, &state.lock, &t);
    return true;
}

static bool fake_event_wait(gpu_device *d, void *event, uint64_t value, uint64_t timeout_ns) {
    uint64_t deadline = gpu_deadline(timeout_ns);
    pthread_mutex_lock(&state.lock);
    while (((fake_event *)event)->value < value && fake_sleep(deadline))
        ;
    bool reached = ((fake_event *)event)->value >= value;
    pthread_mutex_unlock(&state.lock);
    return reached;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static const void *bound_at(const gpu_command *c, int slot) {
    for (size_t i = 0; i < c->u.dispatch.bound_count; i++) {
        const gpu_bound *b = &c->u.dispatch.bound[i];
        if (b->slot == slot)
            return b->memory ? bytes_of(b->memory) + b->offset : b->bytes;
    }
    return NULL;
}

static void run_dispatch(const gpu_command *c) {
    if (strcmp(c->u.dispatch.pipeline, "add") != 0)
        return;
    const float *a = bound_at(c, 0), *b = bound_at(c, 1);
    float *out = (float *)(uintptr_t)bound_at(c, 2);
    const uint32_t *n = bound_at(c, 3);
    for (uint32_t i = 0; i < *n; i++)
        out[i] = a[i] + b[i];
}

static void run_command(const gpu_command *c) {
    switch (c->kind) {
    case GPU_DISPATCH:
        run_dispatch(c);
        break;
    case GPU_COPY:
        memcpy(bytes_of(c->u.copy.to) + c->u.copy.to_offset, bytes_of(c->u.copy.from) + c->u.copy.from_offset,
               c->u.copy.bytes);
        break;
    case GPU_FILL:
        memset(bytes_of(c->u.fill.to) + c->u.fill.offset, c->u.fill.value, c->u.fill.bytes);
        break;
    case GPU_SIGNAL:
        ((fake_event *)c->u.event.event)->value = c->u.event.value;
        break;
    case GPU_BARRIER:
    case GPU_WAIT:
        break;
    }
}

/* Under the lock: ends what may end, in order. */
static void run_queue(void) {
    while (state.queue) {
        fake_submission *s = state.queue;
        for (size_t i = 0; i < s->n; i++) {
            const gpu_command *c = &s->list[i];
            if (c->kind == GPU_WAIT && ((fake_event *)c->u.event.event)->value < c->u.event.value)
                return;
        }
        if (fake.manual && state.allowed == 0)
            return;
        state.allowed -= fake.manual;
        s->result.begin = state.clock;
        s->result.end = state.clock += 0.5;
        if (fake.fail_list && strcmp(fake.fail_list, s->label) == 0) {
            s->result.failed = true;
            sl_fail(&s->result.error, SL_ERR_DEVICE, "injected fault");
        } else {
            for (size_t i = 0; i < s->n; i++)
                run_command(&s->list[i]);
        }
        s->done = true;
        state.queue = s->next;
        pthread_cond_broadcast(&state.changed);
    }
}

static void describe(const gpu_command *list, size_t n) {
    static const char *const names[] = {"dispatch", "copy", "fill", "barrier", "wait", "signal"};
    size_t at = 0;
    state.list[0] = 0;
    for (size_t i = 0; i < n && at + 100 < LIST_TEXT; i++) {
        bool dispatch = list[i].kind == GPU_DISPATCH;
        at += (size_t)snprintf(state.list + at, LIST_TEXT - at, "%s%s%s%s", i ? " | " : "", names[list[i].kind],
                               dispatch ? " " : "", dispatch ? (const char *)list[i].u.dispatch.pipeline : "");
        if (dispatch) {
            state.bound = list[i].u.dispatch.bound;
            state.bound_count = list[i].u.dispatch.bound_count;
            state.lengths = list[i].u.dispatch.lengths;
        }
    }
}

static bool fake_submit(gpu_device *d, void *stream, const char *label, const gpu_command *list, size_t n,
                        void **submission, sl_error *err) {
    if (called("submit", &state.submissions, 1))
        return injected(err, "submit");
    fake_submission *s = calloc(1, sizeof *s), **end;
    if (!s)
        return no_memory(err, &state.submissions);
    s->list = list;
    s->n = n;
    snprintf(s->label, sizeof s->label, "%s", label);
    pthread_mutex_lock(&state.lock);
    describe(list, n);
    for (end = &state.queue; *end; end = &(*end)->next)
        ;
    *end = s;
    pthread_mutex_unlock(&state.lock);
    *submission = s;
    return true;
}

static bool fake_wait(gpu_device *d, void *submission, uint64_t timeout_ns, gpu_result *result) {
    fake_submission *s = submission;
    uint64_t deadline = gpu_deadline(timeout_ns);
    called("wait", NULL, -1);
    pthread_mutex_lock(&state.lock);
    do
        run_queue();
    while (!s->done && fake_sleep(deadline));
    bool done = s->done;
    if (done)
        *result = s->result;
    pthread_mutex_unlock(&state.lock);
    return done;
}

static void fake_release(gpu_device *d, void *submission) {
    called("release", &state.submissions, -1);
    free(submission);
}

void fake_complete(int n) {
    pthread_mutex_lock(&state.lock);
    state.allowed += n;
    pthread_cond_broadcast(&state.changed);
    pthread_mutex_unlock(&state.lock);
}

int fake_running(void) {
    return state.submissions;
}

/* ---- replay ------------------------------------------------------------------------------------------------------ */

typedef struct fake_replay {
    const gpu_command *list;
    size_t n;
} fake_replay;

static void *fake_replay_new(gpu_device *d, const gpu_command *list, size_t n, sl_error *err) {
    if (called("replay_new", &state.replays, 1))
        return injected(err, "replay_new"), NULL;
    fake_replay *r = malloc(sizeof *r);
    if (!r)
        return no_memory(err, &state.replays), NULL;
    *r = (fake_replay){list, n};
    return r;
}

static void fake_replay_free(gpu_device *d, void *replay) {
    called("replay_free", &state.replays, -1);
    free(replay);
}

static bool fake_replay_submit(gpu_device *d, void *stream, void *replay, void **submission, sl_error *err) {
    fake_replay *r = replay;
    called("replay_submit", NULL, -1);
    return fake_submit(d, stream, "replay", r->list, r->n, submission, err);
}

#define COMMON                                                                                                         \
    .name = "fake", .target = MSL_TABLE, .open = fake_driver_open, .close = fake_close, .compile = fake_compile,       \
    .library_load = fake_library_load, .library_free = fake_library_free, .pipeline_new = fake_pipeline_new,           \
    .pipeline_free = fake_pipeline_free, .alloc = fake_alloc, .wrap = fake_wrap, .free = fake_free, .read = fake_read, \
    .write = fake_write, .stream_new = fake_stream_new, .stream_free = fake_stream_free, .event_new = fake_event_new,  \
    .event_free = fake_event_free, .event_signal = fake_event_signal, .event_value = fake_event_value,                 \
    .event_wait = fake_event_wait, .submit = fake_submit, .wait = fake_wait, .release = fake_release

const gpu_driver fake_driver = {COMMON};
const gpu_driver fake_replay_driver = {
    COMMON,
    .replay_new = fake_replay_new,
    .replay_free = fake_replay_free,
    .replay_submit = fake_replay_submit,
};

/* ---- bench ------------------------------------------------------------------------------------------------------- */

static void keep_line(void *user, sl_log_level level, const char *line) {
    pthread_mutex_lock(&state.lock);
    sl_buf_printf(&state.log, "%s\n", line);
    pthread_mutex_unlock(&state.lock);
}

const char *fake_log(void) {
    return state.log.data ? state.log.data : "";
}

sl_gpu *fake_open(const char *cache_dir, sl_error *err) {
    sl_gpu_options o = SL_GPU_OPTIONS_INIT;
    o.cache_dir = cache_dir;
    o.log = keep_line;
    o.log_level = SL_LOG_WARN;
    return gpu_open_driver(&fake_driver, -1, &o, err);
}

void expect_error(const sl_error *err, sl_code code, const char *words) {
    if (err->code != code || !strstr(err->message, words))
        fail_msg("error %d '%s', expected %d with '%s'", err->code, err->message, code, words);
}

static void expect_ok(bool ok, const sl_error *err) {
    if (!ok)
        fail_msg("%s", err->message);
}

bench bench_open(void) {
    sl_error err = {0};
    bench b = {0};
    expect_ok((b.g = fake_open("", &err)) != NULL, &err);
    b.library = sl_gpu_library_new(b.g, fake_source, strlen(fake_source), NULL, &err);
    expect_ok(b.library != NULL, &err);
    expect_ok((b.add = sl_gpu_pipeline_new(b.library, "add", NULL, 0, &err)) != NULL, &err);
    expect_ok((b.stream = sl_gpu_stream_new(b.g, &err)) != NULL, &err);
    expect_ok((b.a = sl_gpu_alloc(b.g, 64, SL_GPU_SHARED, &err)) != NULL, &err);
    expect_ok((b.b = sl_gpu_alloc(b.g, 64, SL_GPU_SHARED, &err)) != NULL, &err);
    expect_ok((b.out = sl_gpu_alloc(b.g, 64, SL_GPU_SHARED, &err)) != NULL, &err);
    return b;
}

void bench_close(bench *b) {
    sl_gpu_buffer_free(b->a);
    sl_gpu_buffer_free(b->b);
    sl_gpu_buffer_free(b->out);
    sl_gpu_stream_free(b->stream);
    sl_gpu_pipeline_free(b->add);
    sl_gpu_library_free(b->library);
    sl_gpu_close(b->g);
    fake_expect_nothing_alive();
}

bool bench_add(sl_gpu_list *l, const bench *b, sl_gpu_buffer *a, sl_gpu_buffer *c, sl_gpu_buffer *out, uint32_t n,
               sl_error *err) {
    sl_gpu_binding bindings[] = {{.slot = 0, .buffer = a},
                                 {.slot = 1, .buffer = c},
                                 {.slot = 2, .buffer = out},
                                 {.slot = 3, .bytes = &n, .length = sizeof n}};
    sl_gpu_dispatch d = {.pipeline = b->add,
                         .groups = {(n + 31) / 32, 1, 1},
                         .threads = {32, 1, 1},
                         .bindings = bindings,
                         .binding_count = SL_COUNT(bindings)};
    return sl_gpu_encode(l, &d, err);
}

sl_gpu_ticket bench_submit(sl_gpu_list *l) {
    sl_gpu_ticket t = 0;
    sl_error err = {0};
    expect_ok(sl_gpu_submit(l, &t, &err), &err);
    return t;
}

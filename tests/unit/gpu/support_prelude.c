#include "support_prelude.h"

#include "gpu/soft/soft_abi.h"
#include "gpu/texts.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const prelude_parts[] = {"types.h",       "limits.h", "vector.h", "math.h",     "relational.h",
                                     "integer.h",     "matrix.h", "simd.h",   "atomic.h",   "simdgroup_matrix.h",
                                     "conditional.h", "pack.h",   "log.h",    "builtins.h", "shared.h",
                                     "kernel.h",      NULL};

static void append_text(sl_buf *unit, const char *name) {
    const sl_text *t = gpu_text(name);
    if (!t)
        fail_msg("the text %s is not in the program", name);
    sl_buf_printf(unit, "\n#line 1 \"%s\"\n", name);
    sl_buf_append(unit, t->bytes, t->size);
}

void prelude_begin(sl_buf *unit, bool cuda) {
    sl_buf_puts(unit, cuda ? "#define SL_MSL_CUDA 1\n" : "#define SL_MSL_SOFT 1\n");
    if (!cuda)
        append_text(unit, "soft_abi.h");
    for (size_t i = 0; prelude_parts[i]; i++)
        append_text(unit, prelude_parts[i]);
    sl_buf_puts(unit, "\nMSL_USER_BEGIN\n#line 1 \"body\"\n");
}

/* ---- a SIMD-group of threads ------------------------------------------------------------------------------------- */

typedef struct group {
    pthread_mutex_t lock;
    pthread_cond_t all;
    unsigned char value[2][SOFT_SIMD][SOFT_LANE_BYTES];
    uint32_t active, arrived; /* lanes that have not returned; lanes that wait */
    unsigned generation;
    uint32_t given[2];
    soft_group shared;
} group;

static group g = {.lock = PTHREAD_MUTEX_INITIALIZER, .all = PTHREAD_COND_INITIALIZER};
static _Thread_local soft_thread self = {.group = &g.shared};

static const soft_thread *api_self(void) {
    return &self;
}

/* With the lock held: the last to arrive lets all go on. */
static void release_if_complete(void) {
    if (!g.active || g.arrived != g.active)
        return;
    g.given[g.generation & 1] = g.active;
    g.arrived = 0;
    g.generation++;
    pthread_cond_broadcast(&g.all);
}

static const void *api_publish(const void *value, uint32_t size, int site, uint32_t *active) {
    (void)site;
    pthread_mutex_lock(&g.lock);
    unsigned mine = g.generation;
    memset(g.value[mine & 1][self.lane], 0xee, SOFT_LANE_BYTES);
    memcpy(g.value[mine & 1][self.lane], value, size);
    g.arrived |= 1u << self.lane;
    release_if_complete();
    while (g.generation == mine)
        pthread_cond_wait(&g.all, &g.lock);
    *active = g.given[mine & 1];
    pthread_mutex_unlock(&g.lock);
    return g.value[mine & 1];
}

static void api_barrier(int flags, int line) {
    uint32_t active;
    (void)flags;
    api_publish(&line, sizeof line, line, &active);
}

static void *api_static(uint32_t site, uint32_t size, const char *name, int line) {
    static _Alignas(16) unsigned char memory[4][SOFT_THREADGROUP_BYTES / 4];
    (void)name;
    (void)line;
    assert_true(site < 4 && size <= sizeof memory[0]);
    return memory[site];
}

static void api_fail(int line, const char *message) {
    fail_msg("line %d: %s", line, message);
}

static const soft_api api = {.abi = SOFT_ABI,
                             .self = api_self,
                             .barrier = api_barrier,
                             .simd_barrier = api_barrier,
                             .simd_publish = api_publish,
                             .threadgroup_static = api_static,
                             .fail = api_fail};

typedef struct lane {
    pthread_t thread;
    uint32_t lane;
    void (*f)(void *);
    void *arg;
} lane;

static void *run_lane(void *p) {
    lane *l = p;
    self.lane = self.index = self.position[0] = l->lane;
    self.group = &g.shared;
    l->f(l->arg);
    pthread_mutex_lock(&g.lock);
    g.active &= ~(1u << l->lane);
    release_if_complete();
    pthread_mutex_unlock(&g.lock);
    return NULL;
}

void prelude_run_lanes(void (*f)(void *), void *arg, uint32_t lanes) {
    lane l[SOFT_SIMD];
    g.active = lanes;
    g.arrived = 0;
    g.shared.thread_count = SOFT_SIMD;
    for (uint32_t i = 0; i < SOFT_SIMD; i++) {
        l[i] = (lane){.lane = i, .f = f, .arg = arg};
        if (lanes >> i & 1)
            assert_int_equal(pthread_create(&l[i].thread, NULL, run_lane, &l[i]), 0);
    }
    for (uint32_t i = 0; i < SOFT_SIMD; i++)
        if (lanes >> i & 1)
            pthread_join(l[i].thread, NULL);
}

/* ---- compiling --------------------------------------------------------------------------------------------------- */

static const char after[] = "\nMSL_USER_END\n"
                            "extern \"C\" void prelude_api(const soft_api *api) { msl_api = api; }\n";

void *prelude_load(const char *body) {
    if (system("command -v clang++ >/dev/null 2>&1") != 0) {
        printf("SKIP: no clang++ here: the prelude is not tested\n");
        return NULL;
    }
    char dir[] = "/tmp/sluice-prelude-XXXXXX", command[512], path[64];
    assert_non_null(mkdtemp(dir));
    sl_buf unit = {0};
    prelude_begin(&unit, false);
    sl_buf_puts(&unit, body);
    sl_buf_puts(&unit, after);
    snprintf(path, sizeof path, "%s/unit.cpp", dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(unit.data, 1, unit.size, f), unit.size);
    fclose(f);
    sl_buf_free(&unit);
    snprintf(command, sizeof command,
             "clang++ -std=c++17 -O1 -ffp-contract=off -fPIC -shared -Wall -Wextra -Werror -Wno-unused-function %s "
             "%s/unit.cpp "
             "-o %s/unit.so -lm",
#if defined(__x86_64__)
             "-march=native",
#else
             "",
#endif
             dir, dir);
    int rc = system(command);
    snprintf(path, sizeof path, "%s/unit.so", dir);
    void *library = rc == 0 ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    snprintf(command, sizeof command, "rm -r %s", dir);
    if (rc == 0)
        system(command);
    if (!library)
        fail_msg("%s: %s", dir, rc ? "does not compile" : dlerror());
    void (*set)(const soft_api *);
    *(void **)&set = prelude_function(library, "prelude_api");
    set(&api);
    return library;
}

void *prelude_function(void *library, const char *name) {
    void *f = dlsym(library, name);
    if (!f)
        fail_msg("no function %s", name);
    return f;
}

void prelude_unload(void *library) {
    dlclose(library);
}

/* ---- NVRTC ------------------------------------------------------------------------------------------------------- */

typedef struct nvrtc {
    int (*create)(void **program, const char *source, const char *name, int headers, const char *const *texts,
                  const char *const *names);
    int (*compile)(void *program, int count, const char *const *options);
    int (*log_size)(void *program, size_t *size);
    int (*log)(void *program, char *text);
    int (*destroy)(void **program);
} nvrtc;

static bool load_nvrtc(nvrtc *n) {
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                        "/usr/local/cuda/lib64/libnvrtc.so"};
    void *library = NULL;
    for (size_t i = 0; !library && i < SL_COUNT(names); i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
    *(void **)&n->create = prelude_function(library, "nvrtcCreateProgram");
    *(void **)&n->compile = prelude_function(library, "nvrtcCompileProgram");
    *(void **)&n->log_size = prelude_function(library, "nvrtcGetProgramLogSize");
    *(void **)&n->log = prelude_function(library, "nvrtcGetProgramLog");
    *(void **)&n->destroy = prelude_function(library, "nvrtcDestroyProgram");
    return true;
}

bool prelude_compile_cuda(const char *unit, const char *name, bool syntax) {
    static const char *const options[] = {"-arch=sm_90", "-std=c++17",     "-default-device",
                                          "-fmad=false", "-device-int128", "-fdevice-syntax-only"};
    nvrtc n;
    if (!load_nvrtc(&n)) {
        printf("SKIP: no NVRTC here: %s is not compiled for sm_90\n", name);
        return false;
    }
    void *program;
    size_t size = 0;
    assert_int_equal(n.create(&program, unit, name, 0, NULL, NULL), 0);
    int rc = n.compile(program, (int)SL_COUNT(options) - !syntax, options);
    char *text = n.log_size(program, &size) == 0 ? calloc(1, size + 1) : NULL;
    if (text)
        n.log(program, text);
    n.destroy(&program);
    if (rc)
        fail_msg("%s does not compile for sm_90: %.1500s", name, text ? text : "");
    free(text);
    return true;
}

bool prelude_compile_cuda_body(const char *body, const char *name) {
    sl_buf unit = {0};
    prelude_begin(&unit, true);
    sl_buf_puts(&unit, body);
    sl_buf_puts(&unit, "\nMSL_USER_END\n");
    bool there = prelude_compile_cuda(unit.data, name, false);
    sl_buf_free(&unit);
    return there;
}

/* ---- random ------------------------------------------------------------------------------------------------------ */

uint64_t prelude_random(void) {
    static uint64_t x = 20261130;
    x += 0x9e3779b97f4a7c15ull;
    uint64_t z = x;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

float prelude_random_float(void) {
    static const uint32_t special[] = {0,           0x80000000u, 1,           0x80000001u, 0x007fffffu, 0x00800000u,
                                       0x3f800000u, 0xbf800000u, 0x7f7fffffu, 0xff7fffffu, 0x7f800000u, 0xff800000u,
                                       0x7fc00000u, 0x3f000000u, 0x477fe000u, 0x477ff000u, 0x33800000u, 0x33000000u};
    uint64_t r = prelude_random();
    uint32_t bits = (uint32_t)(r >> 32);
    if (r % 8 == 0)
        bits = special[(r >> 8) % (sizeof special / sizeof *special)];
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

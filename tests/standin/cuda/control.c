/* Settings, counters, faults, and the driver's calls that only ask. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cuda_control defaults = {.driver_version = 13000,
                                      .devices = 1,
                                      .major = 9,
                                      .minor = 0,
                                      .nvrtc_major = 13,
                                      .memory = UINT64_C(64) << 30,
                                      .words = true};
cuda_control control = {.driver_version = 13000,
                        .devices = 1,
                        .major = 9,
                        .minor = 0,
                        .nvrtc_major = 13,
                        .memory = UINT64_C(64) << 30,
                        .words = true};
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
_Atomic int broken;
static _Thread_local int current; /* depth of pushed contexts */
static object *objects;

/* ---- settings of a program's own ----------------------------------------------------------------------------------
 */

static int says; /* at the end, what was seen */

static const struct {
    const char *name;
    int *value;
} numbers[] = {{"driver", &control.driver_version},
               {"devices", &control.devices},
               {"major", &control.major},
               {"nvrtc", &control.nvrtc_major},
               {"at", &control.fail_at},
               {"result", &control.fail_result},
               {"say", &says}};

static void set(char *name, const char *value) {
    for (size_t i = 0; i < SL_COUNT(numbers); i++)
        if (strcmp(name, numbers[i].name) == 0)
            *numbers[i].value = atoi(value);
    if (strcmp(name, "memory") == 0)
        control.memory = strtoull(value, NULL, 10);
    else if (strcmp(name, "fail") == 0)
        control.fail_call = strdup(value);
}

__attribute__((destructor)) static void say(void) {
    if (says)
        fprintf(stderr,
                "the stand-in for CUDA: %ld launches, %ld graphs made, %ld launched, %ld copies, %ld violations\n",
                control.launches, control.graphs, control.graph_launches, control.copies, control.violations);
}

/* SLUICE_STANDIN_CUDA="memory=1000000,fail=cuMemAllocAsync,at=3,result=2", for programs that do not know of us. */
__attribute__((constructor)) static void read_settings(void) {
    const char *given = getenv("SLUICE_STANDIN_CUDA");
    char *text = given ? strdup(given) : NULL, *rest = text;
    for (char *word; rest && (word = strsep(&rest, ","));) {
        char *equals = strchr(word, '=');
        if (equals) {
            *equals = 0;
            set(word, equals + 1);
        }
    }
    free(text);
}

EXPORTED cuda_control *cuda_standin(void) {
    return &control;
}

EXPORTED void cuda_standin_reset(void) {
    pthread_mutex_lock(&lock);
    long alive = control.alive;
    uint64_t allocated = control.allocated, pinned = control.pinned;
    control = defaults;
    control.alive = alive;
    control.allocated = allocated;
    control.pinned = pinned;
    broken = 0;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void violate(const char *fmt, ...) {
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER; /* `lock` may be held */
    va_list ap;
    va_start(ap, fmt);
    pthread_mutex_lock(&one);
    vsnprintf(control.violation, sizeof control.violation, fmt, ap);
    if (!control.violations++ && getenv("SLUICE_STANDIN_CUDA"))
        fprintf(stderr, "the stand-in for CUDA: %s\n", control.violation);
    pthread_mutex_unlock(&one);
    va_end(ap);
}

cuda_result enter(const char *symbol) {
    cuda_result r = CUDA_OK;
    pthread_mutex_lock(&lock);
    if (control.fail_call && strcmp(control.fail_call, symbol) == 0 && ++control.calls == control.fail_at) {
        r = control.fail_result;
        if (cuda_breaks_context(r))
            broken = r;
    }
    pthread_mutex_unlock(&lock);
    return r;
}

cuda_result enter_context(const char *symbol) {
    cuda_result r = enter(symbol);
    if (r != CUDA_OK)
        return r;
    if (current <= 0) {
        violate("%s without a current context", symbol);
        return INVALID_CONTEXT;
    }
    return broken;
}

/* ---- objects -------------------------------------------------------------------------------------------------------
 */

void object_add(object *o, kind what) {
    pthread_mutex_lock(&lock);
    o->what = what;
    o->next = objects;
    objects = o;
    control.alive++;
    pthread_mutex_unlock(&lock);
}

static object **find(const void *handle, kind what) {
    for (object **at = &objects; *at; at = &(*at)->next)
        if (*at == handle && (*at)->what == what)
            return at;
    violate("a handle of kind %d that is none, or was freed", (int)what);
    return NULL;
}

void object_each(kind what, void (*see)(object *o, void *user), void *user) {
    for (object *o = objects; o; o = o->next)
        if (o->what == what)
            see(o, user);
}

void *object_find(const void *handle, kind what) {
    pthread_mutex_lock(&lock);
    object **at = find(handle, what);
    void *o = at ? *at : NULL;
    pthread_mutex_unlock(&lock);
    return o;
}

void *object_take(const void *handle, kind what) {
    pthread_mutex_lock(&lock);
    object **at = find(handle, what);
    object *o = at ? *at : NULL;
    if (o) {
        *at = o->next;
        control.alive--;
    }
    pthread_mutex_unlock(&lock);
    return o;
}

/* ---- the driver asked ----------------------------------------------------------------------------------------------
 */

#define ENTER(symbol)                                                                                                  \
    cuda_result entered = enter(symbol);                                                                               \
    if (entered != CUDA_OK)                                                                                            \
    return entered

EXPORTED cuda_result cuInit(unsigned flags) {
    ENTER("cuInit");
    return control.devices ? CUDA_OK : CUDA_NO_DEVICE;
}

EXPORTED cuda_result cuDriverGetVersion(int *version) {
    ENTER("cuDriverGetVersion");
    *version = control.driver_version;
    return CUDA_OK;
}

EXPORTED cuda_result cuGetErrorName(cuda_result r, const char **name) {
    ENTER("cuGetErrorName");
    *name = r == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : r == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
            : r == 2             ? "CUDA_ERROR_OUT_OF_MEMORY"
                                 : "CUDA_ERROR";
    return CUDA_OK;
}

EXPORTED cuda_result cuGetErrorString(cuda_result r, const char **text) {
    ENTER("cuGetErrorString");
    *text = r == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "as the stand-in was told";
    return CUDA_OK;
}

EXPORTED cuda_result cuDeviceGetCount(int *count) {
    ENTER("cuDeviceGetCount");
    *count = control.devices;
    return CUDA_OK;
}

EXPORTED cuda_result cuDeviceGet(cuda_ordinal *device, int index) {
    ENTER("cuDeviceGet");
    *device = index;
    return index < control.devices ? CUDA_OK : 101;
}

EXPORTED cuda_result cuDeviceGetName(char *name, int size, cuda_ordinal device) {
    ENTER("cuDeviceGetName");
    snprintf(name, (size_t)size, "Stand-in %d", device);
    return CUDA_OK;
}

EXPORTED cuda_result cuDeviceGetAttribute(int *value, int attribute, cuda_ordinal device) {
    ENTER("cuDeviceGetAttribute");
    switch (attribute) {
    case CUDA_MAX_THREADS:
        *value = 1024;
        return CUDA_OK;
    case CUDA_WARP_SIZE:
        *value = 32;
        return CUDA_OK;
    case CUDA_SHARED_OPTIN:
        *value = 32768; /* what the soft device has */
        return CUDA_OK;
    case CUDA_INTEGRATED:
        *value = 0;
        return CUDA_OK;
    case CUDA_HOST_POINTER:
        *value = !control.no_host_pointer;
        return CUDA_OK;
    case CUDA_STREAM_WORDS:
        *value = control.words;
        return CUDA_OK;
    case CUDA_MAJOR:
        *value = control.major;
        return CUDA_OK;
    case CUDA_MINOR:
        *value = control.minor;
        return CUDA_OK;
    default:
        return CUDA_INVALID_VALUE;
    }
}

EXPORTED cuda_result cuDeviceTotalMem_v2(size_t *bytes, cuda_ordinal device) {
    ENTER("cuDeviceTotalMem_v2");
    *bytes = control.memory;
    return CUDA_OK;
}

EXPORTED cuda_result cuDeviceGetDefaultMemPool(cuda_pool *pool, cuda_ordinal device) {
    ENTER("cuDeviceGetDefaultMemPool");
    *pool = (cuda_pool)(void *)&control;
    return CUDA_OK;
}

EXPORTED cuda_result cuMemPoolSetAttribute(cuda_pool pool, int attribute, void *value) {
    ENTER("cuMemPoolSetAttribute");
    return (void *)pool == &control && attribute == CUDA_POOL_THRESHOLD ? CUDA_OK : CUDA_INVALID_VALUE;
}

EXPORTED cuda_result cuDevicePrimaryCtxRetain(cuda_context *context, cuda_ordinal device) {
    ENTER("cuDevicePrimaryCtxRetain");
    *context = (cuda_context)(void *)&broken;
    pthread_mutex_lock(&lock);
    control.alive++;
    pthread_mutex_unlock(&lock);
    return CUDA_OK;
}

EXPORTED cuda_result cuDevicePrimaryCtxRelease_v2(cuda_ordinal device) {
    cuda_result r = enter("cuDevicePrimaryCtxRelease_v2");
    pthread_mutex_lock(&lock);
    control.alive--;
    pthread_mutex_unlock(&lock);
    return r;
}

EXPORTED cuda_result cuCtxPushCurrent_v2(cuda_context context) {
    ENTER("cuCtxPushCurrent_v2");
    current++;
    return (void *)context == &broken ? CUDA_OK : INVALID_CONTEXT;
}

EXPORTED cuda_result cuCtxPopCurrent_v2(cuda_context *context) {
    cuda_result r = enter("cuCtxPopCurrent_v2");
    current--; /* a failed pop would not come back */
    *context = (cuda_context)(void *)&broken;
    return r;
}

/* Private to gpu/metal: the device for Apple GPUs, in plain C over the Objective-C runtime.
 *
 * Everything is found by dlsym, so the files compile on any system; SLUICE_METAL_LIBRARY names a library to take all
 * symbols from instead of the system's (tests: tests/standin).
 *
 * Rules that hold in every file here:
 * - Metal's own checks end the process and C cannot catch them, so nothing wrong may be sent: results are compared with
 *   nil before use, an encoder is ended on every path, a command buffer is committed once.
 * - Every function of the driver runs inside an autorelease pool of its own (metal_pool_push/pop). What is kept beyond
 *   it came from new/copy or was retained.
 * - Buffers are untracked: Metal orders nothing by itself. Inside an encoder the core's barriers do; between encoders,
 *   also of different lists, the stream's fence does.
 * - Command buffers do not retain what they use: the core keeps bound memory until the list is done; the stream keeps
 *   its fence and events.
 *
 * api.c entry points | errors.c NSError to sl_error | device.c open, close | source.c includes made inline | library.c
 * compile, load | service.c the system's compiler called directly | pipeline.c | archive.c pipelines on disk | memory.c
 * | events.c | commands.c a list to a command buffer | submit.c streams, waiting */
#ifndef SL_GPU_METAL_H
#define SL_GPU_METAL_H

#include "gpu/device.h"
#include "gpu/metal/messages.h"

#include <pthread.h>

/* ---- entry points (api.c) ---------------------------------------------------------------------------------------- */

#define METAL_LIBRARY_VARIABLE "SLUICE_METAL_LIBRARY"

typedef struct metal_api {
    void *libraries[4];
    bool stand_in; /* all from one library */
    void (*send)(void);
    metal_sel (*register_name)(const char *name);
    metal_id (*get_class)(const char *name);
    void *(*pool_push)(void);
    void (*pool_pop)(void *pool);
    metal_id (*default_device)(void);
    metal_id (*all_devices)(void);
    metal_id (*data_create)(const void *bytes, size_t size, void *queue, void *destructor); /* copies */
    int (*sysctl)(const char *name, void *old, size_t *old_size, void *set, size_t set_size);
    struct {
#define METAL_MEMBER(proto, name, text) metal_sel name;
        METAL_SELECTORS(METAL_MEMBER)
#undef METAL_MEMBER
    } sel;
    struct {
#define METAL_MEMBER(name, needed) metal_id name;
        METAL_CLASSES(METAL_MEMBER)
#undef METAL_MEMBER
    } cls;
} metal_api;

bool metal_api_open(metal_api *api, sl_error *err);
void metal_api_close(metal_api *api);
/* A system function outside Metal; NULL: there is none. */
void *metal_api_symbol(const metal_api *api, const char *name);

/* nil for nil, and where the bytes are not UTF-8. Borrowed. */
metal_id metal_string(const metal_api *api, const char *text);
/* "" for nil. Borrowed. */
const char *metal_text(const metal_api *api, metal_id string);
bool metal_responds(const metal_api *api, metal_id receiver, metal_sel selector);
void metal_release(const metal_api *api, metal_id object); /* nil: nothing */
static inline void *metal_pool_push(const metal_api *api) {
    return api->pool_push();
}
static inline void metal_pool_pop(const metal_api *api, void *pool) {
    api->pool_pop(pool);
}

/* ---- errors (errors.c) ------------------------------------------------------------------------------------------- */

/* "what: DOMAIN code (meaning): description" with what as a format; returns false. error may be nil. */
bool metal_fail(const metal_api *api, sl_error *err, sl_code code, metal_id error, const char *fmt, ...)
    SL_PRINTF(5, 6);
/* The first diagnostic of a compiler's text as FILE:LINE: what. */
bool metal_fail_diagnostic(sl_error *err, const char *name, const char *text);

/* ---- the device (device.c) --------------------------------------------------------------------------------------- */

enum {
    METAL_STREAMS = 16,          /* queues are a scarce resource of the whole system */
    METAL_LISTS_IN_FLIGHT = 1024 /* of a stream; a queue asked for more than it was made for blocks for good */
};

/* Compiled pipelines on disk. */
typedef struct metal_archive {
    metal_id archive; /* nil: none */
    char *path;
    bool changed;
} metal_archive;

/* The system's compiler called without Metal's library. */
typedef struct metal_service {
    void *handle; /* NULL: not in use */
    void *build;
} metal_service;

/* The library of the last compile, for the load that follows it. */
typedef struct metal_compiled {
    char *payload;
    size_t size;
    metal_id library;
} metal_compiled;

struct gpu_device {
    gpu_device_base base;
    metal_api api;
    metal_id device;
    long process; /* that opened it: a forked child must not use it */
    pthread_mutex_t lock;
    metal_id residency; /* nil: the system has none */
    bool residency_changed;
    int streams;
    uint64_t page;
    metal_archive archive;
    metal_service service;
    metal_compiled compiled;
};

bool metal_in_other_process(const gpu_device *d, sl_error *err);

/* ---- source.c ---------------------------------------------------------------------------------------------------- */

/* The text that Metal's compiler gets: definitions and included files made part of it, since it takes no include paths.
 */
bool metal_source_flatten(const gpu_source *s, sl_buf *out, sl_error *err);

/* ---- libraries, pipelines ---------------------------------------------------------------------------------------- */

bool metal_compile(gpu_device *d, const gpu_source *s, sl_buf *payload, sl_error *err);
void *metal_library_load(gpu_device *d, const void *payload, size_t size, sl_error *err);
void metal_library_free(gpu_device *d, void *library);
/* library.c: from .metallib bytes; owned by the caller. */
metal_id metal_library_from_data(gpu_device *d, const void *bytes, size_t size, sl_error *err);
/* Do the bytes begin and end as a .metallib does? */
bool metal_library_markers(const void *bytes, size_t size);
void metal_compiled_forget(gpu_device *d);

/* Asks the system's compiler directly, only where SLUICE_METAL_SERVICE=1 asks for it and a first compile shows that it
 * works. False: the variable is neither 0 nor 1. */
bool metal_service_open(gpu_device *d, sl_error *err);
void metal_service_close(gpu_device *d);
bool metal_service_compile(gpu_device *d, const char *text, size_t size, bool fast_math, sl_buf *out);

void *metal_pipeline_new(gpu_device *d, void *library, const msl_kernel *kernel, const sl_gpu_constant *constants,
                         size_t count, gpu_pipeline_limits *limits, sl_error *err);
void metal_pipeline_free(gpu_device *d, void *pipeline);

void metal_archive_open(gpu_device *d, const char *cache_dir);
/* Pipeline state of a descriptor, from the archive if it is there; owned. *error is borrowed. */
metal_id metal_archive_pipeline(gpu_device *d, metal_id descriptor, metal_id *error);
void metal_archive_close(gpu_device *d);

/* ---- memory, events ---------------------------------------------------------------------------------------------- */

bool metal_alloc(gpu_device *d, uint64_t bytes, sl_gpu_memory kind, gpu_memory *out, sl_error *err);
bool metal_wrap(gpu_device *d, void *host, uint64_t bytes, gpu_memory *out, sl_error *err);
void metal_free(gpu_device *d, gpu_memory *m);
bool metal_read(gpu_device *d, gpu_memory *m, uint64_t offset, void *to, uint64_t bytes, sl_error *err);
bool metal_write(gpu_device *d, gpu_memory *m, uint64_t offset, const void *from, uint64_t bytes, sl_error *err);
/* Tells the system what was allocated and freed since; before a list is committed. */
void metal_residency_update(gpu_device *d);

void *metal_event_new(gpu_device *d, sl_error *err);
void metal_event_free(gpu_device *d, void *event);
bool metal_event_signal(gpu_device *d, void *event, uint64_t value, sl_error *err);
uint64_t metal_event_value(gpu_device *d, void *event);
bool metal_event_wait(gpu_device *d, void *event, uint64_t value, uint64_t timeout_ns);
/* Time limits: now + timeout without overflow. */
uint64_t metal_deadline(uint64_t timeout_ns);
/* Sleeps until the event has reached value or a few milliseconds have passed, not beyond the deadline. Inside a pool.
 */
void metal_event_doze(gpu_device *d, metal_id event, uint64_t value, uint64_t deadline);

/* ---- lists ------------------------------------------------------------------------------------------------------- */

typedef struct metal_stream {
    metal_id queue, fence;
    metal_id timeline;  /* raised by one at the end of every list */
    uint64_t committed; /* its value when all lists committed so far are done */
    bool fence_updated; /* by a committed list */
    atomic_int in_flight;
} metal_stream;

/* Encodes a whole list; on success *fenced says whether it had an encoder. */
bool metal_encode(gpu_device *d, const metal_stream *s, metal_id buffer, const gpu_command *list, size_t n,
                  bool *fenced, sl_error *err);

void *metal_stream_new(gpu_device *d, sl_error *err);
void metal_stream_free(gpu_device *d, void *stream);
bool metal_submit(gpu_device *d, void *stream, const char *label, const gpu_command *list, size_t n, void **submission,
                  sl_error *err);
bool metal_wait(gpu_device *d, void *submission, uint64_t timeout_ns, gpu_result *result);
void metal_submission_release(gpu_device *d, void *submission);

#endif

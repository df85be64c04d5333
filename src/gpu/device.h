/* Private to gpu: what a device implements, and what the core (gpu.h's functions) promises it.
 *
 * The core owns checks, argument tables, the cache on disk, lifetimes, barriers, tickets, error state and debugging; a
 * device only compiles, allocates and runs. Everything a device is handed has been checked: slots, ranges, sizes, grid.
 * A device may be called from any thread for objects, from one thread at a time for a stream. wait and release are
 * objects' calls: made from any thread, once at a time for a submission, also while its stream is in use. Lists of one
 * stream run in the order of their submission, each after the one before is done. GPU_BARRIER orders all before it in
 * its list, across GPU_WAIT and GPU_SIGNAL too. Blocking calls take time limits. May include: base. */
#ifndef SL_GPU_DEVICE_H
#define SL_GPU_DEVICE_H

#include "base/base.h"
#include "gpu/msl/msl.h"
#include "sluice/gpu.h"

typedef struct gpu_device gpu_device; /* an implementation's own; begins with gpu_device_base */

/* A number of one digit from an environment variable; unset or empty: 0. False: it is no number, or above most. */
bool gpu_env_digit(const char *variable, int most, int *out, sl_error *err);

/* Filled by open. */
typedef struct gpu_device_base {
    const struct gpu_driver *driver;
    sl_gpu_info info;
    int debug;
    sl_log log;
} gpu_device_base;

/* The cache on disk, for what a device makes of a library later: bytes under a key of 128 bits. Both may be called from
 * any thread once the device is open; get appends to *bytes, false: there is none. */
typedef struct gpu_store {
    void *self;
    bool (*get)(void *self, const uint64_t key[2], sl_buf *bytes);
    void (*put)(void *self, const uint64_t key[2], const void *bytes, size_t size);
} gpu_store;

typedef struct gpu_open {
    int index; /* of "metal:N", "cuda:N"; threads of "soft:N"; -1: not given */
    bool check;
    uint64_t seed;
    int debug;
    sl_log log;
    const char *cache_dir;  /* where a device may keep files of its own (metal: compiled pipelines); NULL: nowhere */
    const gpu_store *store; /* lives as long as the device; NULL: none */
} gpu_open;

/* What compile is given: the source with its options, and its translation, which the core has made for the argument
 * table (target: the driver's own). */
typedef struct gpu_source {
    const char *name, *text;
    size_t size;
    const sl_gpu_compile_options *options;
    const msl_module *module;
} gpu_source;

/* Device memory. host: where the host sees it, NULL: it does not (private memory of a device of its own). */
typedef struct gpu_memory {
    void *handle;
    uint8_t *host;
    uint64_t bytes;
    uint64_t offset; /* of the first byte inside handle: wrapped memory that began inside a page */
} gpu_memory;

typedef struct gpu_pipeline_limits {
    uint32_t max_threads, simd_width, threadgroup_memory;
} gpu_pipeline_limits;

/* ---- commands of a list ---- */

typedef struct gpu_bound {
    int slot;
    gpu_memory *memory; /* NULL: bytes */
    uint64_t offset, length;
    const void *bytes; /* lives as long as the list */
    bool writes;
} gpu_bound;

typedef enum gpu_command_kind { GPU_DISPATCH, GPU_COPY, GPU_FILL, GPU_BARRIER, GPU_WAIT, GPU_SIGNAL } gpu_command_kind;

typedef struct gpu_command {
    gpu_command_kind kind;
    const char *label;
    union {
        struct {
            void *pipeline; /* the driver's */
            uint32_t groups[3], threads[3];
            const gpu_bound *bound;
            size_t bound_count;
            const sl_gpu_threadgroup_length *lengths; /* rounded up to 16 */
            size_t length_count;
        } dispatch;
        struct {
            gpu_memory *to, *from;
            uint64_t to_offset, from_offset, bytes;
        } copy;
        struct {
            gpu_memory *to;
            uint64_t offset, bytes;
            uint8_t value;
        } fill;
        struct {
            void *event; /* the driver's */
            uint64_t value;
        } event;
    } u;
} gpu_command;

/* Outcome of a submitted list. */
typedef struct gpu_result {
    bool failed;
    sl_error error;
    double begin, end; /* device clock, seconds */
} gpu_result;

typedef struct gpu_driver {
    const char *name; /* "metal", "cuda", "soft" */
    msl_target target;
    gpu_device *(*open)(const gpu_open *o, sl_error *err);
    void (*close)(gpu_device *d);

    /* Source to a payload, which the core wraps in a container with markers and checksum, and caches. */
    bool (*compile)(gpu_device *d, const gpu_source *s, sl_buf *payload, sl_error *err);
    void *(*library_load)(gpu_device *d, const void *payload, size_t size, sl_error *err);
    void (*library_free)(gpu_device *d, void *library);
    void *(*pipeline_new)(gpu_device *d, void *library, const msl_kernel *kernel, const sl_gpu_constant *constants,
                          size_t count, gpu_pipeline_limits *limits, sl_error *err);
    void (*pipeline_free)(gpu_device *d, void *pipeline);

    bool (*alloc)(gpu_device *d, uint64_t bytes, sl_gpu_memory kind, gpu_memory *out, sl_error *err);
    bool (*wrap)(gpu_device *d, void *host, uint64_t bytes, gpu_memory *out, sl_error *err);
    void (*free)(gpu_device *d, gpu_memory *m);
    /* Memory without host pointer, through a copy; the core has waited for its users. */
    bool (*read)(gpu_device *d, gpu_memory *m, uint64_t offset, void *to, uint64_t bytes, sl_error *err);
    bool (*write)(gpu_device *d, gpu_memory *m, uint64_t offset, const void *from, uint64_t bytes, sl_error *err);

    uint64_t (*room)(gpu_device *d); /* bytes of the device's own memory that are free; NULL: it has none */

    void *(*stream_new)(gpu_device *d, sl_error *err);
    void (*stream_free)(gpu_device *d, void *stream);
    void *(*event_new)(gpu_device *d, sl_error *err);
    void (*event_free)(gpu_device *d, void *event);
    bool (*event_signal)(gpu_device *d, void *event, uint64_t value, sl_error *err);
    uint64_t (*event_value)(gpu_device *d, void *event);
    bool (*event_wait)(gpu_device *d, void *event, uint64_t value,
                       uint64_t timeout_ns); /* false: not reached in time */

    /* Starts the list; *submission is waited for and then released. Commands stay valid until released. */
    bool (*submit)(gpu_device *d, void *stream, const char *label, const gpu_command *list, size_t n, void **submission,
                   sl_error *err);
    /* False: not done within timeout_ns. */
    bool (*wait)(gpu_device *d, void *submission, uint64_t timeout_ns, gpu_result *result);
    void (*release)(gpu_device *d, void *submission);
    /* A list prepared for many submissions; NULL functions: the core submits the list again. */
    void *(*replay_new)(gpu_device *d, const gpu_command *list, size_t n, sl_error *err);
    void (*replay_free)(gpu_device *d, void *replay);
    bool (*replay_submit)(gpu_device *d, void *stream, void *replay, void **submission, sl_error *err);
} gpu_driver;

/* Opens by dlopen what it needs; NULL with a reason where the device does not exist here. */
extern const gpu_driver gpu_driver_metal, gpu_driver_cuda, gpu_driver_soft;

#endif

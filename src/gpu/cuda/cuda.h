/* Private to gpu/cuda: the device for NVIDIA GPUs, over CUDA's driver API and NVRTC, both found by dlopen.
 *
 * Nothing of the toolkit is needed to build: the few types and numbers are declared here. SLUICE_CUDA_LIBRARY and
 * SLUICE_NVRTC_LIBRARY name other files to take the two from (tests: tests/standin).
 *
 * Rules that hold in every file here:
 * - The device's context is made current around every call (cuda_enter, cuda_leave), so that a caller's own is left
 *   alone.
 * - Every result is looked at (cuda_check). Errors that break the context are remembered: what comes after is told of
 *   the first one and nothing else is asked of the driver but to free.
 * - Nothing is called that waits for the whole device (cuMemFree, cuCtxSynchronize): a stream may be waiting for the
 *   host. Memory of the device comes and goes in the order of a stream of the device's own.
 * - A stream's commands run in their order, so barriers are free.
 *
 * api.c entry points | errors.c results to sl_error | device.c open, close | nvrtc.c source to machine code | library.c
 * libraries, pipelines | memory.c, pages.c (pinned pages of others) | event.c | list.c a list to a stream | graph.c
 * lists that come again | replay.c lists that are kept | stream.c streams, submissions, waiting */
#ifndef SL_GPU_CUDA_H
#define SL_GPU_CUDA_H

#include "gpu/device.h"

#include <pthread.h>

/* ---- CUDA's own -------------------------------------------------------------------------------------------------- */

typedef int cuda_result;
typedef int cuda_ordinal;
typedef uint64_t cuda_address;
typedef struct cuda_context_ *cuda_context;
typedef struct cuda_module_ *cuda_module;
typedef struct cuda_function_ *cuda_function;
typedef struct cuda_queue_ *cuda_queue; /* CUstream */
typedef struct cuda_mark_ *cuda_mark;   /* CUevent */
typedef struct cuda_graph_ *cuda_graph;
typedef struct cuda_exec_ *cuda_exec; /* CUgraphExec */
typedef struct cuda_pool_ *cuda_pool;
typedef struct nvrtc_program_ *nvrtc_program;

enum {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_DEINITIALIZED = 4,
    CUDA_STUB_LIBRARY = 34,
    CUDA_NO_DEVICE = 100,
    CUDA_NOT_READY = 600,
    CUDA_ALREADY_REGISTERED = 712,
    CUDA_UNSUPPORTED = 801,
    CUDA_MISMATCH = 803,

    CUDA_MAX_THREADS = 1,
    CUDA_WARP_SIZE = 10,
    CUDA_MULTIPROCESSORS = 16,
    CUDA_INTEGRATED = 18,
    CUDA_COMPUTE_MODE = 20,
    CUDA_MAJOR = 75,
    CUDA_MINOR = 76,
    CUDA_HOST_POINTER = 91, /* registered memory has the host's addresses on the device */
    CUDA_SHARED_OPTIN = 97,
    CUDA_MEMORY_POOLS = 115,
    CUDA_STREAM_WORDS = 122, /* 64-bit stream memory operations */

    CUDA_FUNCTION_MAX_THREADS = 0,
    CUDA_FUNCTION_SHARED = 1,
    CUDA_FUNCTION_LOCAL = 3,
    CUDA_FUNCTION_REGISTERS = 4,
    CUDA_FUNCTION_MAX_DYNAMIC = 8,

    CUDA_NON_BLOCKING = 1,
    CUDA_HOST_PORTABLE = 1,
    CUDA_HOST_MAPPED = 2,
    CUDA_CAPTURE_RELAXED = 2,
    CUDA_WAIT_AT_LEAST = 0,
    CUDA_POOL_THRESHOLD = 4,

    CUDA_OLDEST_DRIVER = 12000,
    CUDA_OLDEST_NVRTC = 12,
};

/* RETURN, NAME, SYMBOL, NEEDED, PARAMETERS */
#define CUDA_FUNCTIONS(X)                                                                                              \
    X(init, "cuInit", true, (unsigned flags))                                                                          \
    X(driver_version, "cuDriverGetVersion", true, (int *version))                                                      \
    X(error_name, "cuGetErrorName", true, (cuda_result r, const char **name))                                          \
    X(error_string, "cuGetErrorString", true, (cuda_result r, const char **text))                                      \
    X(device_count, "cuDeviceGetCount", true, (int *count))                                                            \
    X(device_get, "cuDeviceGet", true, (cuda_ordinal * device, int index))                                             \
    X(device_name, "cuDeviceGetName", true, (char *name, int size, cuda_ordinal device))                               \
    X(device_attribute, "cuDeviceGetAttribute", true, (int *value, int attribute, cuda_ordinal device))                \
    X(device_memory, "cuDeviceTotalMem_v2", true, (size_t * bytes, cuda_ordinal device))                               \
    X(device_pool, "cuDeviceGetDefaultMemPool", true, (cuda_pool * pool, cuda_ordinal device))                         \
    X(pool_set, "cuMemPoolSetAttribute", true, (cuda_pool pool, int attribute, void *value))                           \
    X(context_retain, "cuDevicePrimaryCtxRetain", true, (cuda_context * context, cuda_ordinal device))                 \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", true, (cuda_ordinal device))                                    \
    X(context_push, "cuCtxPushCurrent_v2", true, (cuda_context context))                                               \
    X(context_pop, "cuCtxPopCurrent_v2", true, (cuda_context * context))                                               \
    X(memory_info, "cuMemGetInfo_v2", true, (size_t * free, size_t * total))                                           \
    X(memory_alloc, "cuMemAllocAsync", true, (cuda_address * to, size_t bytes, cuda_queue queue))                      \
    X(memory_free, "cuMemFreeAsync", true, (cuda_address at, cuda_queue queue))                                        \
    X(host_alloc, "cuMemHostAlloc", true, (void **to, size_t bytes, unsigned flags))                                   \
    X(host_free, "cuMemFreeHost", true, (void *at))                                                                    \
    X(host_register, "cuMemHostRegister_v2", true, (void *at, size_t bytes, unsigned flags))                           \
    X(host_unregister, "cuMemHostUnregister", true, (void *at))                                                        \
    X(host_address, "cuMemHostGetDevicePointer_v2", true, (cuda_address * to, void *at, unsigned flags))               \
    X(copy, "cuMemcpyAsync", true, (cuda_address to, cuda_address from, size_t bytes, cuda_queue queue))               \
    X(copy_to_device, "cuMemcpyHtoDAsync_v2", true,                                                                    \
      (cuda_address to, const void *from, size_t bytes, cuda_queue queue))                                             \
    X(copy_to_host, "cuMemcpyDtoHAsync_v2", true, (void *to, cuda_address from, size_t bytes, cuda_queue queue))       \
    X(set_words, "cuMemsetD32Async", true, (cuda_address to, unsigned value, size_t count, cuda_queue queue))          \
    X(queue_new, "cuStreamCreate", true, (cuda_queue * queue, unsigned flags))                                         \
    X(queue_free, "cuStreamDestroy_v2", true, (cuda_queue queue))                                                      \
    X(queue_wait_word, "cuStreamWaitValue64_v2", false,                                                                \
      (cuda_queue queue, cuda_address at, uint64_t value, unsigned flags))                                             \
    X(queue_write_word, "cuStreamWriteValue64_v2", false,                                                              \
      (cuda_queue queue, cuda_address at, uint64_t value, unsigned flags))                                             \
    X(queue_call, "cuLaunchHostFunc", true, (cuda_queue queue, void (*function)(void *), void *user))                  \
    X(queue_capture, "cuStreamBeginCapture_v2", true, (cuda_queue queue, int mode))                                    \
    X(queue_captured, "cuStreamEndCapture", true, (cuda_queue queue, cuda_graph * graph))                              \
    X(graph_exec, "cuGraphInstantiateWithFlags", true, (cuda_exec * exec, cuda_graph graph, unsigned long long flags)) \
    X(graph_free, "cuGraphDestroy", true, (cuda_graph graph))                                                          \
    X(exec_launch, "cuGraphLaunch", true, (cuda_exec exec, cuda_queue queue))                                          \
    X(exec_free, "cuGraphExecDestroy", true, (cuda_exec exec))                                                         \
    X(mark_new, "cuEventCreate", true, (cuda_mark * mark, unsigned flags))                                             \
    X(mark_free, "cuEventDestroy_v2", true, (cuda_mark mark))                                                          \
    X(mark_record, "cuEventRecord", true, (cuda_mark mark, cuda_queue queue))                                          \
    X(mark_query, "cuEventQuery", true, (cuda_mark mark))                                                              \
    X(mark_elapsed, "cuEventElapsedTime", true, (float *milliseconds, cuda_mark begin, cuda_mark end))                 \
    X(module_load, "cuModuleLoadData", true, (cuda_module * module, const void *image))                                \
    X(module_unload, "cuModuleUnload", true, (cuda_module module))                                                     \
    X(module_function, "cuModuleGetFunction", true, (cuda_function * function, cuda_module module, const char *name))  \
    X(function_load, "cuFuncLoad", false, (cuda_function function))                                                    \
    X(function_get, "cuFuncGetAttribute", true, (int *value, int attribute, cuda_function function))                   \
    X(function_set, "cuFuncSetAttribute", true, (cuda_function function, int attribute, int value))                    \
    X(launch, "cuLaunchKernel", true,                                                                                  \
      (cuda_function function, unsigned gx, unsigned gy, unsigned gz, unsigned tx, unsigned ty, unsigned tz,           \
       unsigned shared, cuda_queue queue, void **parameters, void **extra))

#define NVRTC_FUNCTIONS(X)                                                                                             \
    X(version, "nvrtcVersion", true, (int *major, int *minor))                                                         \
    X(arch_count, "nvrtcGetNumSupportedArchs", true, (int *count))                                                     \
    X(archs, "nvrtcGetSupportedArchs", true, (int *archs))                                                             \
    X(create, "nvrtcCreateProgram", true,                                                                              \
      (nvrtc_program * program, const char *source, const char *name, int headers, const char *const *texts,           \
       const char *const *names))                                                                                      \
    X(compile, "nvrtcCompileProgram", true, (nvrtc_program program, int count, const char *const *options))            \
    X(log_size, "nvrtcGetProgramLogSize", true, (nvrtc_program program, size_t * size))                                \
    X(log, "nvrtcGetProgramLog", true, (nvrtc_program program, char *text))                                            \
    X(code_size, "nvrtcGetCUBINSize", true, (nvrtc_program program, size_t * size))                                    \
    X(code, "nvrtcGetCUBIN", true, (nvrtc_program program, char *code))                                                \
    X(text_size, "nvrtcGetPTXSize", true, (nvrtc_program program, size_t * size))                                      \
    X(text, "nvrtcGetPTX", true, (nvrtc_program program, char *text))                                                  \
    X(destroy, "nvrtcDestroyProgram", true, (nvrtc_program * program))

#define CUDA_DRIVER_VARIABLE "SLUICE_CUDA_LIBRARY"
#define CUDA_NVRTC_VARIABLE  "SLUICE_NVRTC_LIBRARY"

typedef struct cuda_api {
    void *driver, *nvrtc_library;
    int driver_number, nvrtc_major, nvrtc_minor;
#define CUDA_MEMBER(name, symbol, needed, parameters) cuda_result(*name) parameters;
    CUDA_FUNCTIONS(CUDA_MEMBER)
#undef CUDA_MEMBER
    struct {
#define CUDA_MEMBER(name, symbol, needed, parameters) int(*name) parameters;
        NVRTC_FUNCTIONS(CUDA_MEMBER)
#undef CUDA_MEMBER
    } nvrtc;
} cuda_api;

bool cuda_api_open(cuda_api *api, sl_error *err);
void cuda_api_close(cuda_api *api);

/* ---- the device (device.c, errors.c) ----------------------------------------------------------------------------- */

typedef struct cuda_page_run cuda_page_run;

struct gpu_device {
    gpu_device_base base;
    cuda_api api;
    const gpu_store *store; /* compiled pipelines on disk */
    cuda_ordinal ordinal;
    cuda_context context;
    long process;   /* that opened it: a forked child must not use it */
    char arch[32];  /* what NVRTC compiles for: "sm_90a", or "compute_90" where it knows no newer one */
    bool assembles; /* machine code, not text for the driver to assemble */
    bool words;     /* streams can wait for and write 64-bit words */
    uint32_t shared_most;
    uint64_t page;
    cuda_queue service; /* memory of the device, copies of the host's */
    cuda_mark service_done;
    cuda_mark origin; /* the device's clock begins here */
    cuda_address zeros;
    pthread_mutex_t service_lock, page_lock, lock;
    cuda_page_run *runs; /* pinned pages of others, ascending */
    size_t run_count, run_capacity;
    uint64_t pipelines_freed;        /* under lock: graphs made before may hold what is gone */
    atomic_uint_fast64_t given_back; /* times that memory was: a graph that copies to or from it may not run again */
    atomic_bool lost;
    sl_error loss; /* under lock, once lost */
};

/* False, with the reason, where the process has forked since, or the context is broken. */
bool cuda_usable(gpu_device *d, sl_error *err);
bool cuda_enter(gpu_device *d, sl_error *err);
/* The same for freeing: also with a broken context. */
bool cuda_enter_to_free(gpu_device *d);
void cuda_leave(gpu_device *d);
/* True where r is success; else "what: CUDA_ERROR_...: text", and a broken context is remembered. */
bool cuda_check(gpu_device *d, cuda_result r, sl_error *err, const char *fmt, ...) SL_PRINTF(4, 5);
/* Of calls that free: errors are logged, but for those that a broken context or the process's end explain. */
void cuda_freed(gpu_device *d, cuda_result r, const char *what);
void cuda_describe(const cuda_api *api, cuda_result r, char *out, size_t size);
bool cuda_breaks_context(cuda_result r);
/* Waits for what was given to the service queue, with a time limit; service_lock is held. */
bool cuda_service_finish(gpu_device *d, const char *what, sl_error *err);
/* Asks again and again, first at once, then in pauses, until `query` is not CUDA_NOT_READY or the time is over. */
cuda_result cuda_poll(gpu_device *d, cuda_mark mark, uint64_t deadline);
uint64_t cuda_deadline(uint64_t timeout_ns);

/* ---- libraries, pipelines (nvrtc.c, library.c) ------------------------------------------------------------------- */

typedef struct cuda_library {
    char *code; /* CUDA C++ */
    size_t size;
    bool fast;
} cuda_library;

enum { CUDA_PARAMETERS = 2 * SL_GPU_SLOTS };

typedef struct cuda_code {
    cuda_module module;
    cuda_function function; /* NULL: not loaded */
} cuda_code;

typedef struct cuda_parameter {
    int8_t slot;
    bool threadgroup;
    uint16_t value; /* bytes passed by value; 0: a pointer */
} cuda_parameter;

typedef struct cuda_pipeline {
    const cuda_library *library; /* lives at least as long: the core sees to it */
    cuda_code code;
    /* The same with pointers where code takes values; made when a buffer is first bound to such a slot. */
    cuda_code pointers;
    pthread_mutex_t lock; /* of making it */
    char *name, *entry;
    sl_gpu_constant *constants;
    size_t constant_count;
    cuda_parameter parameter[CUDA_PARAMETERS];
    int parameters;
    uint16_t value[SL_GPU_SLOTS]; /* by slot */
} cuda_pipeline;

/* What is compiled: all of a unit, or one entry with its constants. */
typedef struct cuda_unit {
    const char *name, *code;
    bool fast;
    const char *entry; /* NULL: syntax only */
    const sl_gpu_constant *constants;
    size_t constant_count;
    bool pointers;
} cuda_unit;
/* image: machine code or text, as the driver takes it; NULL: only errors are of interest. */
bool cuda_nvrtc(gpu_device *d, const cuda_unit *u, sl_buf *image, sl_error *err);
/* The options, joined: part of the key under which an image is kept. */
void cuda_nvrtc_options(const gpu_device *d, const cuda_unit *u, sl_buf *out);

bool cuda_compile(gpu_device *d, const gpu_source *s, sl_buf *payload, sl_error *err);
void *cuda_library_load(gpu_device *d, const void *payload, size_t size, sl_error *err);
void cuda_library_free(gpu_device *d, void *library);
void *cuda_pipeline_new(gpu_device *d, void *library, const msl_kernel *kernel, const sl_gpu_constant *constants,
                        size_t count, gpu_pipeline_limits *limits, sl_error *err);
void cuda_pipeline_free(gpu_device *d, void *pipeline);
/* The code for a dispatch that binds buffers where values could be; the context is current. NULL: error. */
cuda_function cuda_pipeline_pointers(gpu_device *d, cuda_pipeline *p, sl_error *err);

/* ---- memory (memory.c, pages.c) ---------------------------------------------------------------------------------- */

typedef enum cuda_kind { CUDA_PRIVATE, CUDA_PINNED, CUDA_WRAPPED } cuda_kind;

typedef struct cuda_memory {
    cuda_kind kind;
    cuda_address base; /* of the handle's byte 0, as kernels see it */
    void *pages;       /* wrapped: what was pinned */
    uint64_t page_bytes;
} cuda_memory;

static inline cuda_address cuda_at(const gpu_memory *m, uint64_t offset) {
    return ((const cuda_memory *)m->handle)->base + m->offset + offset;
}

bool cuda_alloc(gpu_device *d, uint64_t bytes, sl_gpu_memory kind, gpu_memory *out, sl_error *err);
bool cuda_wrap(gpu_device *d, void *host, uint64_t bytes, gpu_memory *out, sl_error *err);
void cuda_free(gpu_device *d, gpu_memory *m);
bool cuda_read(gpu_device *d, gpu_memory *m, uint64_t offset, void *to, uint64_t bytes, sl_error *err);
bool cuda_write(gpu_device *d, gpu_memory *m, uint64_t offset, const void *from, uint64_t bytes, sl_error *err);
uint64_t cuda_room(gpu_device *d);
bool cuda_device_bytes(gpu_device *d, uint64_t bytes, cuda_address *out, sl_error *err);
void cuda_device_free(gpu_device *d, cuda_address at);

/* Whole pages are pinned, each once however many wraps lie in it. */
bool cuda_pages_pin(gpu_device *d, void *pages, uint64_t bytes, sl_error *err);
void cuda_pages_unpin(gpu_device *d, void *pages, uint64_t bytes);
/* Bytes from `at` to the end of what was pinned in one call; UINT64_MAX: it is no such memory. */
uint64_t cuda_pages_run(gpu_device *d, cuda_address at);

/* ---- events (event.c) -------------------------------------------------------------------------------------------- */

typedef struct cuda_event {
    _Atomic uint64_t *word; /* pinned; the device writes it too */
    cuda_address address;
    _Atomic uint64_t host; /* the greatest value that the host has given */
} cuda_event;

void *cuda_event_new(gpu_device *d, sl_error *err);
void cuda_event_free(gpu_device *d, void *event);
bool cuda_event_signal(gpu_device *d, void *event, uint64_t value, sl_error *err);
uint64_t cuda_event_value(gpu_device *d, void *event);
bool cuda_event_wait(gpu_device *d, void *event, uint64_t value, uint64_t timeout_ns);
/* Device side; calls: the submission's host functions, where streams have no words. */
struct cuda_submission;
bool cuda_event_encode(struct cuda_submission *s, const gpu_command *c, sl_error *err);

/* ---- streams, lists (stream.c, list.c, graph.c) ------------------------------------------------------------------ */

/* Arguments that are bytes: written by the host, copied to the device in one go before the list. */
typedef struct cuda_arguments {
    struct cuda_arguments *next;
    uint8_t *host;
    cuda_address device;
    uint64_t bytes;
} cuda_arguments;

/* Graphs and runs that are remembered: a step that waits for the host in every layer has up to two runs a layer. */
enum { CUDA_GRAPHS = 128, CUDA_GRAPH_LEAST = 8 /* dispatches, below which launches are as fast */, CUDA_SEEN = 256 };

/* A run of commands that was given before, word for word. */
typedef struct cuda_kept {
    uint64_t key[2];
    cuda_exec exec; /* NULL: free */
    cuda_arguments *arguments;
    uint64_t used, freed; /* a clock; pipelines_freed when it was made */
} cuda_kept;

typedef struct cuda_stream {
    gpu_device *device;
    cuda_queue queue;
    pthread_mutex_t lock;      /* of what submissions give back, from any thread */
    cuda_arguments *arguments; /* free ones */
    cuda_mark *marks;          /* free ones */
    size_t mark_count, mark_capacity;
    cuda_kept kept[CUDA_GRAPHS];
    cuda_arguments *retired; /* of dropped graphs: free once what the stream was given so far is done */
    uint64_t seen[CUDA_SEEN][2], clock, given_back; /* the device's, when they were seen */
    int seen_at;
    cuda_mark last;  /* the end of the last submission that was timed; lives in no submission */
    double last_end; /* seconds since origin */
} cuda_stream;

/* Of a wait or signal by the host. */
typedef struct cuda_call {
    struct cuda_call *next;
    gpu_device *device;
    cuda_event *event;
    uint64_t value;
    bool signals;
} cuda_call;

typedef struct cuda_submission {
    cuda_stream *stream;
    const char *label;
    const gpu_command *list;
    size_t count;
    cuda_mark begin, end;      /* NULL: the context broke before */
    cuda_arguments *arguments; /* given back when it is done */
    cuda_call *calls;
    bool done;
    gpu_result result;
} cuda_submission;

/* Commands without events to a queue. */
bool cuda_encode(cuda_stream *s, cuda_queue queue, const gpu_command *list, size_t n, const cuda_arguments *arguments,
                 uint64_t *at, sl_error *err);
/* Bytes that the commands' arguments take. */
uint64_t cuda_argument_bytes(const gpu_command *list, size_t n);
/* Puts the arguments of all commands into memory of the host. */
void cuda_arguments_fill(const gpu_command *list, size_t n, uint8_t *to);
cuda_arguments *cuda_arguments_take(cuda_stream *s, uint64_t bytes, sl_error *err);
void cuda_arguments_give(cuda_stream *s, cuda_arguments *a);
void cuda_arguments_free(gpu_device *d, cuda_arguments *a);
void cuda_arguments_free_all(gpu_device *d, cuda_arguments *first);
/* Runs commands without events: as a graph where they came before, else one by one (*done says whether as a graph). */
bool cuda_graph_run(cuda_stream *s, const gpu_command *list, size_t n, bool *done, sl_error *err);
void cuda_graphs_free(cuda_stream *s);
/* A graph of commands, its arguments on the device. */
bool cuda_graph_make(cuda_stream *s, const gpu_command *list, size_t n, cuda_kept *out, sl_error *err);
void cuda_graph_drop(cuda_stream *s, cuda_kept *k);

void *cuda_stream_new(gpu_device *d, sl_error *err);
void cuda_stream_free(gpu_device *d, void *stream);
bool cuda_submit(gpu_device *d, void *stream, const char *label, const gpu_command *list, size_t n, void **submission,
                 sl_error *err);
bool cuda_wait(gpu_device *d, void *submission, uint64_t timeout_ns, gpu_result *result);
void cuda_release(gpu_device *d, void *submission);
/* A list whose commands are a graph. */
bool cuda_submit_exec(gpu_device *d, void *stream, const gpu_command *list, size_t n, cuda_exec exec, void **submission,
                      sl_error *err);
/* Waits, with a time limit, for what the stream was given outside submissions. */
bool cuda_stream_finish(cuda_stream *s, sl_error *err);

/* ---- replay.c ---------------------------------------------------------------------------------------------------- */

void *cuda_replay_new(gpu_device *d, const gpu_command *list, size_t n, sl_error *err);
void cuda_replay_free(gpu_device *d, void *replay);
bool cuda_replay_submit(gpu_device *d, void *stream, void *replay, void **submission, sl_error *err);

#endif

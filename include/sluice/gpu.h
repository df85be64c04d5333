/* gpu.h: a compute runtime. Kernels are written once, in Metal Shading Language (MSL), and run on Apple GPUs (metal),
 * on NVIDIA GPUs (cuda) and, for tests and tools, on any CPU (soft). Usable alone.
 *
 * The stages are apart, so that each can be looked at and reused: open a device; compile source to bytes; load bytes as
 * a library; make a pipeline of an entry point; allocate memory; encode dispatches into a list; submit it; wait for its
 * ticket. A list can be kept and submitted again.
 *
 * Nothing reaches a driver unchecked: bindings, ranges, grid, threadgroup size and memory are checked when a dispatch
 * is encoded. Functions that can fail return false or NULL and fill *err (which may be NULL).
 *
 * Threads: devices, libraries, pipelines and buffers may be used from any thread. A stream belongs to one thread at a
 * time, with the lists that were begun on it; a call from a second thread while one is inside fails. Never fork after
 * opening a device. Option structs begin with their own size (see sluice.h). */
#ifndef SLUICE_GPU_H
#define SLUICE_GPU_H

#include "sluice/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- device ------------------------------------------------------------------------------------------------------ */

typedef struct sl_gpu sl_gpu;

typedef struct sl_gpu_options {
    size_t size;
    const char *device;    /* "metal[:N]", "cuda[:N]", "soft[:THREADS]"; NULL: metal, else cuda, never soft unasked */
    const char *cache_dir; /* compiled libraries; NULL: $XDG_CACHE_HOME/sluice or ~/.cache/sluice; "": none. A directory
                              that cannot be written is no error: nothing is kept, a warning is logged */
    bool check;    /* soft: checking mode (bounds, uninitialised memory, races, divergence), several times slower */
    uint64_t seed; /* soft: order in which threads run; 0: ascending; odd: copies that run ahead are late */
    int debug; /* 0: as SLUICE_DEBUG says (0 to 5; else it is an error); < 0: none. 1 pipelines and lists, 2 dispatches
                  with GPU time, 3 bound arguments, 4 source, 5 generated code; in lines of the log. From 2 on commands
                  run one by one, and submit waits for them */
    sl_log_fn log;
    sl_log_level log_level;
    void *log_user;
} sl_gpu_options;
#define SL_GPU_OPTIONS_INIT                                                                                            \
    { .size = sizeof(sl_gpu_options) }

/* NULL when there is no such device: the message says what is missing (library, driver, compiler). */
SL_API sl_gpu *sl_gpu_open(const sl_gpu_options *options, sl_error *err);
/* Waits for what runs. Everything made from it must have been freed, but for buffers that only lists in flight hold. */
SL_API void sl_gpu_close(sl_gpu *g);

typedef struct sl_gpu_info {
    size_t size;
    char device[16];                  /* "metal", "cuda", "soft" */
    char name[128];                   /* as the driver calls it */
    char family[32];                  /* "apple8", "sm_90", "x86-64-v4", ...: code is compiled for it */
    char system[64];                  /* operating system or driver and compiler version: part of the cache's key */
    int simd_width;                   /* 32 */
    uint32_t max_threads;             /* of a threadgroup; a pipeline may allow fewer */
    uint32_t max_threadgroup_memory;  /* bytes */
    uint64_t max_buffer, working_set; /* bytes; working set: what the device should be asked to hold */
    bool unified;                     /* host and device share memory: mapping copies nothing */
    bool bfloat, simdgroup_matrix, residency;
    bool virtual_device;
    bool serial;  /* a checker or a setting has every command wait for its end: a list must not wait for the host */
    int language; /* MSL version * 10: 31 is 3.1 */
} sl_gpu_info;
SL_API void sl_gpu_get_info(const sl_gpu *g, sl_gpu_info *info);

/* ---- compile ----------------------------------------------------------------------------------------------------- */

typedef struct sl_gpu_define {
    const char *name, *value; /* value NULL: 1 */
} sl_gpu_define;

typedef struct sl_gpu_compile_options {
    size_t size;
    const char *name; /* file name for messages; NULL: "kernel.metal" */
    const sl_gpu_define *defines;
    size_t define_count;
    const char *const *include_dirs;
    size_t include_count;
    bool fast_math; /* off by default on every device; contraction always off: kernels write fma() */
} sl_gpu_compile_options;
#define SL_GPU_COMPILE_OPTIONS_INIT                                                                                    \
    { .size = sizeof(sl_gpu_compile_options) }

/* MSL source (n bytes, UTF-8) to library bytes, kept in the cache by source, options, system and family. *bytes is
 * allocated (sl_gpu_free). An error's message is the compiler's first diagnostic, as FILE:LINE: what; the whole text is
 * logged. */
SL_API bool sl_gpu_compile(sl_gpu *g, const char *source, size_t n, const sl_gpu_compile_options *options, void **bytes,
                           size_t *size, sl_error *err);
SL_API void sl_gpu_free(void *p);

typedef struct sl_gpu_library sl_gpu_library;
/* Bytes of sl_gpu_compile of the same device kind; foreign or damaged bytes are an error. Also a .metallib on metal,
 * which says nothing of its kernels' arguments: what is bound to them cannot be checked, and a warning says so. */
SL_API sl_gpu_library *sl_gpu_library_load(sl_gpu *g, const void *bytes, size_t size, sl_error *err);
/* Both in one. */
SL_API sl_gpu_library *sl_gpu_library_new(sl_gpu *g, const char *source, size_t n,
                                          const sl_gpu_compile_options *options, sl_error *err);
SL_API void sl_gpu_library_free(sl_gpu_library *l);
SL_API size_t sl_gpu_library_count(const sl_gpu_library *l);
SL_API const char *sl_gpu_library_entry(const sl_gpu_library *l, size_t i); /* names of kernels; borrowed */

/* ---- pipeline ---------------------------------------------------------------------------------------------------- */

typedef enum sl_gpu_type {
    SL_GPU_BOOL,
    SL_GPU_INT,
    SL_GPU_UINT,
    SL_GPU_FLOAT,
    SL_GPU_SHORT,
    SL_GPU_USHORT,
    SL_GPU_HALF
} sl_gpu_type;

/* A function constant. */
typedef struct sl_gpu_constant {
    int id;
    sl_gpu_type type;
    union {
        bool b;
        int32_t i;
        uint32_t u;
        float f; /* also for HALF */
    } value;
} sl_gpu_constant;

typedef enum sl_gpu_arg_kind {
    SL_GPU_ARG_READ,       /* const device pointer, or constant pointer */
    SL_GPU_ARG_WRITE,      /* device pointer that is not const: read and written */
    SL_GPU_ARG_BYTES,      /* constant reference: bytes or a buffer may be bound; least is its size */
    SL_GPU_ARG_THREADGROUP /* threadgroup pointer: its length is given at dispatch */
} sl_gpu_arg_kind;

/* One line of the argument table, which is the same on every device. */
typedef struct sl_gpu_arg {
    sl_gpu_arg_kind kind;
    int slot;       /* buffer or threadgroup index */
    uint32_t least; /* fewest bytes that must be bound: size of the type pointed or referred to, at least 1 */
    uint32_t align; /* what the type's address is a multiple of; 0: not known */
    bool unused;    /* not an argument under this pipeline's constants */
    char name[64];
} sl_gpu_arg;

typedef struct sl_gpu_pipeline sl_gpu_pipeline;
SL_API sl_gpu_pipeline *sl_gpu_pipeline_new(sl_gpu_library *l, const char *entry, const sl_gpu_constant *constants,
                                            size_t count, sl_error *err);
SL_API void sl_gpu_pipeline_free(sl_gpu_pipeline *p);

typedef struct sl_gpu_pipeline_info {
    size_t size;
    const char *entry;           /* borrowed */
    uint32_t max_threads;        /* of a threadgroup for this pipeline */
    uint32_t simd_width;         /* 32 */
    uint32_t threadgroup_memory; /* bytes it declares itself */
    const sl_gpu_arg *args;      /* [arg_count], buffers by slot, then threadgroup memory; borrowed */
    size_t arg_count;
} sl_gpu_pipeline_info;
SL_API void sl_gpu_pipeline_get_info(const sl_gpu_pipeline *p, sl_gpu_pipeline_info *info);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

typedef struct sl_gpu_buffer sl_gpu_buffer;

typedef enum sl_gpu_memory {
    SL_GPU_SHARED, /* host and device see it; on devices that are not unified: pinned host memory */
    SL_GPU_PRIVATE /* device only where the device is not unified; mapping copies */
} sl_gpu_memory;

/* Contents are undefined. */
SL_API sl_gpu_buffer *sl_gpu_alloc(sl_gpu *g, uint64_t bytes, sl_gpu_memory kind, sl_error *err);
/* Host memory used in place; it must outlive the buffer and every list that binds it. Page alignment is dealt with. */
SL_API sl_gpu_buffer *sl_gpu_wrap(sl_gpu *g, void *host, uint64_t bytes, sl_error *err);
/* A part of a buffer as a buffer of its own; holds its parent. */
SL_API sl_gpu_buffer *sl_gpu_view(sl_gpu_buffer *b, uint64_t offset, uint64_t bytes, sl_error *err);
/* Gives up the handle; memory goes when no list in flight holds it. Using a freed handle is undefined, but the
 * library catches it where it can (an error, not a crash). */
SL_API void sl_gpu_buffer_free(sl_gpu_buffer *b);
SL_API uint64_t sl_gpu_buffer_size(const sl_gpu_buffer *b);

typedef enum sl_gpu_access { SL_GPU_READ = 1, SL_GPU_WRITE = 2, SL_GPU_READ_WRITE = 3 } sl_gpu_access;

/* Host pointer to bytes [offset, offset + size) of b, once every submitted list that uses the range against `access`
 * is done; one mapping of a handle at a time. Reading what a failed list should have written is an error, until its
 * stream has recovered. Pair with unmap: a list that uses the range against `access` is refused until then. */
SL_API void *sl_gpu_map(sl_gpu_buffer *b, uint64_t offset, uint64_t size, sl_gpu_access access, sl_error *err);
SL_API bool sl_gpu_unmap(sl_gpu_buffer *b, sl_error *err);
/* Bytes of the host's into the buffer and out of it, as mapping and copying would, without a copy between where the
 * device has memory of its own. Waits for lists as sl_gpu_map does; as there, 0 bytes, and a handle that is mapped, are
 * errors. Any offset and size serve. */
SL_API bool sl_gpu_put(sl_gpu_buffer *b, uint64_t offset, const void *from, uint64_t bytes, sl_error *err);
SL_API bool sl_gpu_get(sl_gpu_buffer *b, uint64_t offset, void *to, uint64_t bytes, sl_error *err);
/* Bytes that the device's own memory has left, for all processes; 0: not known, or it is the host's. */
SL_API uint64_t sl_gpu_room(const sl_gpu *g);
/* Bytes now held on the device for this process. */
SL_API uint64_t sl_gpu_allocated(const sl_gpu *g);

/* ---- encode ------------------------------------------------------------------------------------------------------ */

typedef struct sl_gpu_stream sl_gpu_stream;
SL_API sl_gpu_stream *sl_gpu_stream_new(sl_gpu *g, sl_error *err);
SL_API void sl_gpu_stream_free(sl_gpu_stream *s);

/* A list of commands being encoded. Commands of one list run as if in order: what does not depend on each other by the
 * declared ranges may overlap. */
typedef struct sl_gpu_list sl_gpu_list;

enum { SL_GPU_SLOTS = 31, SL_GPU_BYTES_MAX = 4096 };

typedef struct sl_gpu_binding {
    int slot;
    sl_gpu_buffer *buffer;   /* NULL: bytes */
    uint64_t offset, length; /* length 0: to the end */
    sl_gpu_access access;    /* what the dispatch does with the range; 0: what the argument table says */
    const void *bytes;       /* copied; length <= SL_GPU_BYTES_MAX */
} sl_gpu_binding;

typedef struct sl_gpu_threadgroup_length {
    int slot;
    uint32_t bytes;
} sl_gpu_threadgroup_length;

typedef struct sl_gpu_dispatch {
    sl_gpu_pipeline *pipeline;
    uint32_t groups[3];  /* number of THREADGROUPS, each >= 1 */
    uint32_t threads[3]; /* threads of a threadgroup; product <= the pipeline's max_threads */
    const sl_gpu_binding *bindings;
    size_t binding_count;
    const sl_gpu_threadgroup_length *lengths;
    size_t length_count;
    const char *label; /* for spans and debugging; NULL: the entry's name */
} sl_gpu_dispatch;

/* label: for messages and spans; copied. */
SL_API sl_gpu_list *sl_gpu_begin(sl_gpu_stream *s, const char *label, sl_error *err);
/* An error leaves the list as it was. */
SL_API bool sl_gpu_encode(sl_gpu_list *l, const sl_gpu_dispatch *d, sl_error *err);
/* Of copies and fills offsets, in the memory that was allocated or wrapped, and sizes are multiples of 4. The ranges of
 * a copy do not overlap. */
SL_API bool sl_gpu_encode_copy(sl_gpu_list *l, sl_gpu_buffer *to, uint64_t to_offset, sl_gpu_buffer *from,
                               uint64_t from_offset, uint64_t bytes, sl_error *err);
SL_API bool sl_gpu_encode_fill(sl_gpu_list *l, sl_gpu_buffer *b, uint64_t offset, uint64_t bytes, uint8_t value,
                               sl_error *err);
/* Everything before is done before anything after. Normally not needed: barriers are inferred from the ranges. */
SL_API bool sl_gpu_encode_barrier(sl_gpu_list *l, sl_error *err);

/* For measuring: what comes after, up to the next mark, is a span of its own with this label (copied). Each such part
 * is a command buffer of its own, of which a stream may have 1024 in flight. Not with debug >= 2, where every command
 * is timed; a list that is kept runs whole. */
SL_API bool sl_gpu_encode_mark(sl_gpu_list *l, const char *label, sl_error *err);

/* A counter that the host and lists signal and wait for. Values only grow: while a list that is to raise an event is
 * encoded or in flight, the host may raise it to that value at most, and other lists not below. */
typedef struct sl_gpu_event sl_gpu_event;
SL_API sl_gpu_event *sl_gpu_event_new(sl_gpu *g, sl_error *err);
SL_API void sl_gpu_event_free(sl_gpu_event *e);
SL_API bool sl_gpu_event_signal(sl_gpu_event *e, uint64_t value, sl_error *err);
SL_API uint64_t sl_gpu_event_value(const sl_gpu_event *e);
/* false with SL_ERR_TIMEOUT after timeout_ns. */
SL_API bool sl_gpu_event_wait(sl_gpu_event *e, uint64_t value, uint64_t timeout_ns, sl_error *err);
/* What comes after in the list waits until the event has reached value; signal: it is raised when all before is done.
 * A list that waits for what only the host signals must be signalled even after an error. When a list fails, the values
 * it should have signalled are raised, and waiting for them is an error. */
SL_API bool sl_gpu_encode_wait(sl_gpu_list *l, sl_gpu_event *e, uint64_t value, sl_error *err);
SL_API bool sl_gpu_encode_signal(sl_gpu_list *l, sl_gpu_event *e, uint64_t value, sl_error *err);
/* Throws the list away unsubmitted. */
SL_API void sl_gpu_list_free(sl_gpu_list *l);

/* ---- submit, complete, replay ------------------------------------------------------------------------------------ */

typedef uint64_t sl_gpu_ticket; /* grows by one per submission of a stream; 0 is none */

/* Hands the list to the device and returns at once (when 128 of the stream are in flight: once the oldest is done); the
 * list is used up (also on failure). What it binds stays alive
 * until it is done. After a list has failed its stream refuses further ones with that error, until
 * sl_gpu_stream_recover. */
SL_API bool sl_gpu_submit(sl_gpu_list *l, sl_gpu_ticket *ticket, sl_error *err);
/* True once done. gpu_seconds (may be NULL): the device's own time from its start to its end. SL_ERR_TIMEOUT when it
 * took longer than timeout_ns: it is still running, wait again; SL_ERR_DEVICE when the device failed it, or one before
 * it. Outcome and time are remembered for the last 256 tickets. */
SL_API bool sl_gpu_wait(sl_gpu_stream *s, sl_gpu_ticket ticket, uint64_t timeout_ns, double *gpu_seconds,
                        sl_error *err);
SL_API bool sl_gpu_synchronize(sl_gpu_stream *s, uint64_t timeout_ns, sl_error *err);
SL_API bool sl_gpu_stream_recover(sl_gpu_stream *s, sl_error *err);

/* A list kept for submitting again and again: what changes is read from buffers. At most one submission of it runs at a
 * time; the next waits for it on the device. */
typedef struct sl_gpu_replay sl_gpu_replay;
/* Uses the list up. A list with events cannot be kept: their values only grow. */
SL_API sl_gpu_replay *sl_gpu_keep(sl_gpu_list *l, sl_error *err);
SL_API bool sl_gpu_replay_submit(sl_gpu_replay *r, sl_gpu_ticket *ticket, sl_error *err);
SL_API void sl_gpu_replay_free(sl_gpu_replay *r);

/* What finished lists, or their marked parts, took, oldest first, since the last call; spans beyond max are dropped.
 * Times in seconds on the device's clock. */
typedef struct sl_gpu_span {
    char label[64];
    sl_gpu_ticket ticket;
    double begin, end;
    uint32_t dispatches;
} sl_gpu_span;
SL_API size_t sl_gpu_spans(sl_gpu_stream *s, sl_gpu_span *out, size_t max);

#ifdef __cplusplus
}
#endif
#endif

/* Private to the core of gpu: the objects behind the handles of gpu.h.
 *
 * A handle that a user holds is the address of a cell (64 bytes, aligned to 64) with a tag in its low six bits. A cell
 * outlives its object, and its tag changes when it is used again, so that a handle used after its free is an error.
 * Objects are counted: a handle holds one reference, and so does everything that needs the object longer (a list in
 * flight holds memory, pipelines and events).
 *
 * Locks: sl_gpu.lock guards cells, the queues of streams, mapped ranges, failures. No driver is called under it. */
#ifndef SL_GPU_CORE_H
#define SL_GPU_CORE_H

#include "gpu/device.h"

#include <pthread.h>

#define GPU_FOREVER UINT64_MAX

enum {
    GPU_MAP_SECONDS = 600, /* longest that map, free and close wait for a device */
    GPU_IN_FLIGHT = 128,   /* submissions of a stream that are not done */
    GPU_ROOM_SECONDS = 60, /* longest that a submission waits for room among them */
    GPU_RECORDS = 256,     /* finished tickets whose outcome a stream remembers */
    GPU_SPANS = 4096,      /* spans it keeps for sl_gpu_spans */
};

/* ---- objects and handles (handles.c) ----------------------------------------------------------------------------- */

typedef enum gpu_kind {
    GPU_LIBRARY = 1,
    GPU_PIPELINE,
    GPU_BUFFER,
    GPU_STREAM,
    GPU_LIST,
    GPU_EVENT,
    GPU_REPLAY,
    GPU_MEMORY, /* from here on: without handles */
    GPU_SUBMISSION,
    GPU_FAILURE
} gpu_kind;

/* First member of every object. */
typedef struct gpu_object {
    sl_gpu *gpu;
    gpu_kind kind;
    atomic_int refs;
} gpu_object;

typedef struct gpu_cell gpu_cell;

typedef struct gpu_cells {
    gpu_cell **chunks;
    size_t chunk_count, chunk_capacity;
    gpu_cell *oldest, *newest; /* free ones, in the order they were freed */
    size_t free_count;
    size_t live[GPU_REPLAY + 1]; /* handles not freed, by kind */
} gpu_cells;

/* A zeroed object of `size` bytes with one reference. */
void *gpu_object_new(sl_gpu *g, gpu_kind kind, size_t size, sl_error *err);
void *gpu_hold(void *object);
/* NULL where the last reference is gone already: for what is found in a chain under the lock. */
void *gpu_hold_live(void *object);
void gpu_drop(void *object); /* NULL is allowed */
/* Makes a handle that owns the caller's reference; on failure the reference is dropped. */
void *gpu_handle_new(void *object, sl_error *err);
/* The object of a handle with a reference more; NULL with an error where the handle is NULL, freed, or of another kind.
 */
void *gpu_take(const void *handle, gpu_kind kind, sl_error *err);
/* The object whose handle this was, with the handle's reference; NULL where there is none. */
void *gpu_handle_end(void *handle, gpu_kind kind);
void gpu_cells_free(gpu_cells *c);

/* ---- device (gpu.c) ---------------------------------------------------------------------------------------------- */

typedef struct gpu_mapping {
    struct gpu_buffer *buffer; /* NULL: not mapped */
    uint64_t offset, size;
    sl_gpu_access access;
    void *staging;                   /* where the host does not see the memory */
    struct gpu_mapping *next, *prev; /* of sl_gpu.mapped */
} gpu_mapping;

struct sl_gpu {
    const gpu_driver *driver;
    gpu_device *device;
    sl_gpu_info info;
    int debug;
    bool check;
    sl_log log;
    char *cache_dir; /* NULL: none */
    gpu_store store; /* over it, for the device */
    long process;    /* that opened it */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a queue of a stream is shorter, or nobody waits in the driver for its first any more */
    gpu_cells cells;
    struct gpu_stream *streams;
    gpu_mapping *mapped;
    atomic_uint_fast64_t allocated;
    atomic_bool warned_working_set, warned_cache;
};

/* sl_gpu_open over any driver: for it and for tests. */
sl_gpu *gpu_open_driver(const gpu_driver *driver, int index, const sl_gpu_options *options, sl_error *err);
/* Copies an option struct of a caller who may know fewer or more fields; name is for the error. */
bool gpu_copy_options(void *to, size_t to_size, const void *from, const char *name, sl_error *err);
/* Fills an info struct as far as its size says. */
void gpu_copy_info(void *to, const void *from, size_t from_size);
bool gpu_same_process(const sl_gpu *g, sl_error *err);
/* Waits on changed until deadline (sl_now_ns); false when it is past. The lock is held. */
bool gpu_wait_changed(sl_gpu *g, uint64_t deadline);
uint64_t gpu_deadline(uint64_t timeout_ns);

/* ---- libraries (compile.c, container.c, cache.c, includes.c, pipeline.c) ------------------------------------------
 */

typedef struct gpu_arena {
    struct gpu_arena_chunk *chunk;
} gpu_arena;

/* Zeroed, aligned to 16; NULL: no memory. */
void *gpu_arena_take(gpu_arena *a, size_t bytes);
void gpu_arena_free(gpu_arena *a);

/* The argument tables of a library; the arena owns all. */
typedef struct gpu_table {
    msl_kernel *kernels;
    size_t kernel_count;
    msl_constant *constants;
    size_t constant_count;
    msl_refusal *refused;
    size_t refused_count;
    gpu_arena arena;
} gpu_table;

bool gpu_table_write(const msl_module *m, sl_buf *out);
/* Bytes are hostile. */
bool gpu_table_read(const void *bytes, size_t size, gpu_table *t, sl_error *err);
void gpu_table_free(gpu_table *t);

typedef struct gpu_key {
    uint64_t low, high;
} gpu_key;

/* What a container holds; views into its bytes. */
typedef struct gpu_container {
    gpu_key key;
    const uint8_t *table, *payload;
    size_t table_size, payload_size;
} gpu_container;

bool gpu_container_write(const sl_gpu *g, gpu_key key, const sl_buf *table, const sl_buf *payload, sl_buf *out);
/* Checks markers, sizes, checksum, and that it was made for g's device. */
bool gpu_container_read(const sl_gpu *g, const void *bytes, size_t size, gpu_container *c, sl_error *err);

/* NULL: none. dir as in sl_gpu_options. */
char *gpu_cache_dir(const char *dir);
/* A sound entry's bytes (caller frees), or NULL; a bad one is removed and named in a warning. */
void *gpu_cache_get(sl_gpu *g, gpu_key key, size_t *size);
void gpu_cache_put(sl_gpu *g, gpu_key key, const void *bytes, size_t size);
/* The cache as a device sees it. */
gpu_store gpu_cache_store(sl_gpu *g);
/* Removes the oldest entries until the folder holds at most `limit` bytes. */
void gpu_cache_trim(const char *dir, uint64_t limit);

/* Mixes into the state (XXH3_state_t) every file that the source includes, also indirectly. */
void gpu_includes_hash(void *state, const char *source, size_t n, const sl_gpu_compile_options *o);

typedef struct gpu_library {
    gpu_object o;
    void *driver;
    gpu_table table;
    bool tabled; /* false: a bare .metallib, whose arguments nobody told us */
} gpu_library;

typedef struct gpu_pipeline {
    gpu_object o;
    gpu_library *library;
    void *driver;
    char *entry;
    gpu_pipeline_limits limits;
    sl_gpu_arg *args;
    size_t arg_count;
    const sl_gpu_arg *by_slot[SL_GPU_SLOTS]; /* buffers and bytes */
    uint32_t perhaps; /* slots of arguments whose condition is not known here: they may be bound */
    bool tabled;
} gpu_pipeline;

/* ---- memory (memory.c, map.c) ------------------------------------------------------------------------------------ */

typedef struct gpu_failure {
    gpu_object o;
    sl_error error;
    bool recovered; /* under the lock */
} gpu_failure;

/* What was allocated or wrapped once. */
typedef struct gpu_root {
    gpu_object o;
    gpu_memory m;
    uint64_t counted;     /* bytes of sl_gpu_allocated */
    const void *space;    /* of its ranges: NULL: host addresses, else the root itself */
    uint64_t base;        /* of offset 0 in that space */
    gpu_failure *failure; /* of the last failed list that wrote to it */
} gpu_root;

typedef struct gpu_buffer {
    gpu_object o;
    gpu_root *root;
    uint64_t offset, size;
    gpu_mapping map;
} gpu_buffer;

/* Bytes that are used: wrapped memory may overlap other memory, so ranges of what the host sees are host addresses. */
typedef struct gpu_range {
    const void *space;
    uint64_t begin, end;
    gpu_root *root;
    bool writes;
} gpu_range;

gpu_range gpu_buffer_range(const gpu_buffer *b, uint64_t offset, uint64_t size, bool writes);
static inline bool gpu_ranges_conflict(const gpu_range *a, const gpu_range *b) {
    return (a->writes || b->writes) && a->space == b->space && a->begin < b->end && b->begin < a->end;
}
/* "buffer of 64 bytes: 16 bytes at offset 60 end at 76": the error of a range outside b. */
bool gpu_check_range(const gpu_buffer *b, uint64_t offset, uint64_t size, const char *what, sl_error *err);
/* A failed list's mark on what it wrote; under the lock. */
void gpu_root_poison(gpu_root *r, gpu_failure *f);
/* Ends a mapping, if there is one, without writing back. */
void gpu_mapping_end(gpu_buffer *b);
struct gpu_list;
/* True with an error where the list uses what is mapped. */
bool gpu_mapped_conflict(sl_gpu *g, const struct gpu_list *l, sl_error *err);

/* ---- lists (list.c, dispatch.c, hazards.c) ------------------------------------------------------------------------
 */

/* Ranges used since the last barrier. */
typedef struct gpu_hazards {
    gpu_range *items;
    size_t count, capacity;
} gpu_hazards;

bool gpu_hazards_conflict(const gpu_hazards *h, const gpu_range *ranges, size_t n);

/* Commands from `at` on are timed apart. */
typedef struct gpu_mark {
    const char *label;
    size_t at;
} gpu_mark;

typedef struct gpu_list {
    gpu_object o;
    struct gpu_stream *stream;
    const char *label;
    gpu_arena arena;
    gpu_command *commands;
    size_t count, capacity;
    void **held; /* objects it keeps alive */
    size_t held_count, held_capacity;
    gpu_range *uses; /* by all commands */
    size_t use_count, use_capacity;
    gpu_hazards hazards;
    struct gpu_list_event {
        struct gpu_event *event;
        uint64_t value;
        bool signals;
    } * events;
    size_t event_count, event_capacity;
    gpu_mark *marks;
    size_t mark_count, mark_capacity;
    uint32_t dispatches;
} gpu_list;

/* Appends a command with the ranges it uses and the objects it needs, and a barrier before it where a range demands
 * one. On failure the list is as it was. */
bool gpu_list_add(gpu_list *l, const gpu_command *c, const gpu_range *ranges, size_t range_count, void *const *objects,
                  size_t object_count, sl_error *err);
/* The list of a handle, with its stream entered; gpu_list_leave ends that. */
gpu_list *gpu_list_enter(sl_gpu_list *handle, sl_error *err);
void gpu_list_leave(gpu_list *l);
bool gpu_uses_conflict(const gpu_list *l, const gpu_range *r);

/* ---- streams (stream.c, submit.c, replay.c, event.c) ---------------------------------------------------------------
 */

/* Of a marked list: what lies between two marks, a submission of its own for the driver. */
typedef struct gpu_part {
    const char *label;
    size_t first, count; /* commands */
    uint32_t dispatches;
    void *driver;
    gpu_result result;
} gpu_part;

typedef struct gpu_submission {
    gpu_object o;
    struct gpu_submission *next;
    struct gpu_list *list;
    struct gpu_replay *replay; /* NULL: none */
    void *driver;              /* NULL: nothing to wait for but parts, result is there */
    gpu_part *parts;           /* NULL: not in parts */
    size_t part_count, parts_done;
    gpu_result result;
    sl_gpu_ticket ticket;
    gpu_failure *failure;
} gpu_submission;

typedef struct gpu_record {
    sl_gpu_ticket ticket;
    double seconds;
    gpu_failure *failure;
} gpu_record;

typedef struct gpu_stream {
    gpu_object o;
    struct gpu_stream *next, *prev; /* of sl_gpu.streams */
    void *driver;
    atomic_bool inside; /* a thread is in a call */
    bool polling;       /* a thread waits in the driver for first */
    gpu_submission *first, *last;
    sl_gpu_ticket given, done;
    gpu_failure *failure; /* sticky */
    gpu_failure *spare;   /* so that a failure needs no memory */
    gpu_record records[GPU_RECORDS];
    sl_gpu_span *spans; /* ring of GPU_SPANS */
    size_t span_begin, span_count;
} gpu_stream;

/* One thread at a time. */
bool gpu_stream_enter(gpu_stream *s, sl_error *err);
void gpu_stream_leave(gpu_stream *s);
/* True once every submission up to ticket is done; false at the deadline. From any thread. */
bool gpu_stream_wait(gpu_stream *s, sl_gpu_ticket ticket, uint64_t deadline);
/* Takes what is done off all queues. */
void gpu_reap(sl_gpu *g);
/* Waits for all submissions that use the range against it. */
bool gpu_wait_users(sl_gpu *g, const gpu_range *r, uint64_t deadline);
/* Hands a list (or a replay of it) to the driver. */
bool gpu_stream_submit(gpu_stream *s, gpu_list *l, struct gpu_replay *r, sl_gpu_ticket *ticket, sl_error *err);

typedef struct gpu_replay {
    gpu_object o;
    gpu_list *list;
    void *driver; /* NULL: the list is submitted again */
} gpu_replay;

typedef struct gpu_event {
    gpu_object o;
    void *driver;
    gpu_failure *failure; /* of the list that should have signalled it */
    uint64_t failed_value;
    pthread_mutex_t lock; /* of what follows */
    uint64_t *promised;   /* values that lists which are not over yet are to signal, ascending */
    size_t promised_count, promised_capacity;
} gpu_event;

/* parts.c: a marked list to the driver; whether all of it is done; what is left of it. */
bool gpu_parts_submit(gpu_submission *sub, void *stream, sl_error *err);
bool gpu_parts_wait(gpu_submission *sub, uint64_t deadline);
void gpu_parts_free(gpu_submission *sub);

/* After a list has failed: raises what it would have raised, so that nobody waits for ever. */
void gpu_events_fail(const gpu_submission *s);
/* The list is over, or will never run. */
void gpu_events_release(const gpu_list *l);

/* ---- what the last reference does -------------------------------------------------------------------------------- */

void gpu_library_destroy(gpu_library *l);
void gpu_pipeline_destroy(gpu_pipeline *p);
void gpu_buffer_destroy(gpu_buffer *b);
void gpu_root_destroy(gpu_root *r);
void gpu_stream_destroy(gpu_stream *s);
void gpu_list_destroy(gpu_list *l);
void gpu_submission_destroy(gpu_submission *s);
void gpu_event_destroy(gpu_event *e);
void gpu_replay_destroy(gpu_replay *r);

/* ---- debugging (debug.c) ----------------------------------------------------------------------------------------- */

/* SLUICE_DEBUG, or what the options say; false: it is no level. */
bool gpu_debug_level(int asked, int *level, sl_error *err);
void gpu_debugf(const sl_gpu *g, int level, const char *fmt, ...) SL_PRINTF(3, 4);
void gpu_debug_pipeline(const gpu_pipeline *p);
void gpu_debug_list(const gpu_list *l, const gpu_stream *s);
void gpu_debug_command(const gpu_list *l, const gpu_command *c, double seconds);
void gpu_debug_text(const sl_gpu *g, int level, const char *title, const char *text, size_t n);

#endif

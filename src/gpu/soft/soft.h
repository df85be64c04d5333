/* Private to the soft device: kernels translated to C++ run on the CPU.
 *
 * compiler.c turns a unit into a shared object with clang; library.c loads it and makes pipelines. A stream (stream.c)
 * is a thread that takes submissions in order; a dispatch is handed to the device's workers (worker.c), each of which
 * runs whole threadgroups. A threadgroup's threads are fibres (fiber.c) that hand over to each other at barriers and
 * SIMD-group functions (api.c); group.c decides who runs. A fault in a kernel ends its dispatch, not the process
 * (fault.c).
 *
 * Checking mode: kernels are compiled so that every access calls check.c first, which knows the bound ranges, each
 * under an address of its own (window.c), who touched a byte when (shadow.c), and writes reports (report.c) with lines
 * from the object's debug information (lines.c). One worker then runs all groups, so that a seed repeats a report.
 *
 * Fibres can be stopped in two places: where they wait, and, by a signal, inside the kernel's own code. */
#ifndef SL_SOFT_H
#define SL_SOFT_H

#include "gpu/device.h"
#include "gpu/soft/soft_abi.h"

#include <pthread.h>

enum {
    SOFT_MAX_THREADS = 1024,  /* of a threadgroup */
    SOFT_MAX_SITES = 1024,    /* threadgroup declarations of a unit */
    SOFT_MAX_WORKERS = 24,    /* each has 1024 guard pages, and the system allows some 65,000 mappings */
    SOFT_STACK = 128 << 10,   /* of a fibre, its guard page included */
    SOFT_REGION = 256 << 20,  /* a worker's state and stacks; aligned to its size */
    SOFT_HEADER_STACKS = 4,   /* stacks' room at the region's start, which holds soft_region */
    SOFT_POISONED = 4 << 10,  /* bytes of it that are NaN at first (checking mode) */
    SOFT_GUARD = 16 << 10,    /* a page on every system */
    SOFT_AROUND = 1 << 20,    /* bytes without a mapping around what a kernel may touch */
    SOFT_ARENA = 256 << 10,   /* threadgroup memory with red zones */
    SOFT_RED_ZONE = 64,       /* bytes between threadgroup variables (checking mode) */
    SOFT_MAX_VARIABLES = 512, /* of threadgroup memory in one group */
    SOFT_MAX_REPORTS = 64
};

/* Functions that run on fibres: a sanitizer's notes on stack frames do not survive a fibre that never returns. */
#if defined(__clang__)
#define SOFT_ON_FIBER __attribute__((disable_sanitizer_instrumentation, no_sanitize("address", "thread", "undefined")))
#else
#define SOFT_ON_FIBER __attribute__((no_sanitize("address", "thread", "undefined")))
#endif

typedef struct soft_device soft_device;
typedef struct soft_worker soft_worker;
typedef struct soft_check soft_check;
typedef struct soft_copies soft_copies;

/* ---- fibres and groups ------------------------------------------------------------------------------------------- */

typedef enum soft_state { SOFT_RUNS, SOFT_AT_SIMD, SOFT_AT_SIMD_BARRIER, SOFT_AT_BARRIER, SOFT_DONE } soft_state;

/* How many barriers that order a kind of memory a thread has passed: of its group, of its SIMD-group. */
typedef struct soft_epoch {
    uint32_t group, simd;
} soft_epoch;

typedef struct soft_simd soft_simd;

typedef struct soft_fiber {
    soft_thread thread; /* first: what the kernel sees */
    void *sp;           /* while it does not run */
    soft_worker *worker;
    soft_simd *simd;
    struct soft_fiber *next; /* runs when this one waits; NULL: the scheduler */
    soft_state state;
    int line; /* where it waits */
    int flags;
    int beyond; /* number of its report on an array's index whose access is to come; 0: none */
    soft_epoch threadgroup_epoch, device_epoch;
} soft_fiber;

enum { SOFT_RING = 4 };

/* What lanes publish goes to ring[(generation + 1) % SOFT_RING]; a release of waiting lanes makes that the current
 * one. */
struct soft_simd {
    _Alignas(64) uint8_t ring[SOFT_RING][SOFT_SIMD][SOFT_LANE_BYTES];
    uint32_t generation, alive, active; /* alive: lanes that have not returned; active: that took part last */
    uint32_t chained;                   /* lanes that are linked from first on, in the order of the seed; 0: none */
    struct soft_fiber *first;
};

/* At the start of a worker's region, which also holds the stacks: a kernel's accesses to its own stack or to the
 * runtime's state are told from others by the address's upper bits. */
typedef struct soft_region {
    soft_fiber fiber[SOFT_MAX_THREADS];
    soft_simd simd[SOFT_MAX_THREADS / SOFT_SIMD];
    soft_group group;
    void *buffer[SOFT_SLOTS], *threadgroup[SOFT_SLOTS];
} soft_region;

/* A threadgroup variable of the running group. */
typedef struct soft_variable {
    uint32_t offset, size; /* in the arena */
    int slot;              /* of dynamic memory; -1: a static */
    int line;
    char name[64];
} soft_variable;

typedef struct soft_job soft_job;

struct soft_worker {
    soft_device *device;
    int index;
    pthread_t thread;
    bool started;
    void *mapping; /* the region's, unaligned */
    soft_region *region;
    uint32_t stacks;               /* that have their guard page */
    void *sp;                      /* the scheduler's, while fibres run */
    void *alternate;               /* stack of signal handlers */
    uint8_t *arena;                /* threadgroup memory */
    uint32_t arena_used, charged;  /* bytes; of the limit of 32 KiB */
    uint32_t site[SOFT_MAX_SITES]; /* offset + 1 of a static, 0: not yet */
    soft_variable *variable;       /* [SOFT_MAX_VARIABLES], checking mode */
    soft_copies *copies;           /* [SOFT_MAX_THREADS] copies to be made, with an odd seed */
    int variables;
    soft_job *job;
    uint64_t random;
    uint64_t group; /* number of the running group in the grid */
    volatile bool on_fiber;
    struct {
        int signal; /* 0: none */
        bool misaligned;
        uintptr_t address, pc;
        uint32_t thread;
    } fault;
    _Atomic uint64_t serial;           /* of the running group; 0: none runs */
    _Atomic uint64_t stop;             /* serial of the group that is to end */
    uint64_t groups;                   /* run so far */
    uint64_t seen_serial, seen_cpu_ns; /* the watchdog's */
};

static inline bool soft_stopped(const soft_worker *w) {
    return atomic_load_explicit(&w->stop, memory_order_relaxed) ==
           atomic_load_explicit(&w->serial, memory_order_relaxed);
}

/* Hands over: saves the running context at *save, continues at `to`. */
void soft_switch(void **save, void *to);
bool soft_worker_open(soft_worker *w, soft_device *d, int index, sl_error *err);
void soft_worker_close(soft_worker *w);
/* The fibre whose stack the caller runs on. */
static inline SOFT_ON_FIBER soft_fiber *soft_self(void) {
    uintptr_t a = (uintptr_t)__builtin_frame_address(0);
    soft_region *r = (soft_region *)(a & ~(uintptr_t)(SOFT_REGION - 1));
    return &r->fiber[(a & (SOFT_REGION - 1)) / SOFT_STACK - SOFT_HEADER_STACKS];
}
/* Guard pages for the stacks of n fibres. */
bool soft_stacks_ensure(soft_worker *w, uint32_t n, sl_error *err);
/* Makes the fibre begin at main when it is next switched to. */
void soft_fiber_reset(soft_worker *w, uint32_t index, void (*start)(void));
uintptr_t soft_stack_top(const soft_worker *w, uint32_t index);
/* Gives up the running group from one of its fibres; does not return. */
_Noreturn void soft_abandon(soft_fiber *f);

/* Copies that run ahead (copies.c); reset: a thread begins. */
bool soft_copies_open(soft_worker *w, sl_error *err);
void soft_copies_reset(soft_worker *w, uint32_t thread);
bool soft_copy_begin(void *to, const void *from, uint32_t size);
void soft_copy_commit(void);
void soft_copy_wait(uint32_t but);

/* The functions a kernel is given. */
extern const soft_api soft_api_plain, soft_api_checked;

/* ---- a dispatch -------------------------------------------------------------------------------------------------- */

typedef struct soft_pipeline soft_pipeline;

struct soft_job {
    const soft_pipeline *pipeline;
    const gpu_command *command;
    const char *label;
    void (*run)(void);
    void *buffer[SOFT_SLOTS]; /* addresses the kernel sees */
    uint32_t length[SOFT_SLOTS];
    bool has_length[SOFT_SLOTS];
    uint64_t total;  /* groups */
    uint64_t stride; /* order of groups: position i is group (i * stride + first) % total */
    uint64_t first;
    soft_check *check; /* NULL: not checking */
    uint32_t poison;   /* bytes of threadgroup memory that any group so far used */
    _Atomic uint64_t next;
    _Atomic bool failed;
    pthread_mutex_t mutex; /* of error */
    sl_error error;
    /* set by the device, under its mutex */
    int running; /* workers inside */
};

/* Runs a dispatch; blocks. cancel: gives up when it becomes true. */
bool soft_dispatch(soft_device *d, const gpu_command *c, const _Atomic bool *cancel, sl_error *err);
/* Runs the group number `index`; false: the job has failed. */
bool soft_group_run(soft_worker *w, soft_job *job, uint64_t index);
/* The first error of a job stays. */
void soft_job_fail(soft_job *job, sl_code code, const char *fmt, ...) SL_PRINTF(3, 4);
void soft_group_position(const soft_job *job, uint64_t group, uint32_t out[3]);

/* ---- faults ------------------------------------------------------------------------------------------------------ */

/* Puts the handlers of faults in place. */
void soft_faults_install(void);
/* At the start and at the end of a worker's thread. */
void soft_faults_enter(soft_worker *w);
void soft_faults_leave(soft_worker *w);
/* Makes a fault that ended the running group the job's error. */
void soft_fault_report(soft_worker *w, soft_job *job);
/* Asks a worker to give up its group, wherever its fibre is in the kernel's code. */
void soft_interrupt(soft_worker *w);

/* ---- libraries --------------------------------------------------------------------------------------------------- */

typedef struct soft_image {
    void *handle; /* dlopen's */
    const soft_module *module;
    uintptr_t begin, end; /* addresses it lies at */
} soft_image;

typedef struct soft_library {
    soft_image image;
    uint8_t *object; /* the shared object's bytes */
    size_t size;
    bool checked;
} soft_library;

struct soft_pipeline {
    soft_library *library;
    soft_image own; /* handle NULL: the library's is used */
    const soft_image *image;
    const soft_kernel *kernel;
    char *name;
    uint32_t max_threads;
    sl_gpu_arg *args;
    size_t arg_count;
    uint64_t atomic_slots; /* written by atomics only */
};

void *soft_library_load(gpu_device *d, const void *payload, size_t size, sl_error *err);
void soft_library_free(gpu_device *d, void *library);
void *soft_pipeline_new(gpu_device *d, void *library, const msl_kernel *kernel, const sl_gpu_constant *constants,
                        size_t count, gpu_pipeline_limits *limits, sl_error *err);
void soft_pipeline_free(gpu_device *d, void *pipeline);

/* ---- compiler ---------------------------------------------------------------------------------------------------- */

/* Path of a clang++ on PATH (allocated), NULL: none. */
char *soft_find_compiler(sl_error *err);
/* A unit of C++ to a payload. name: file of the source, in messages. */
bool soft_compile_unit(gpu_device *d, const char *name, const char *code, size_t n, bool fast_math, sl_buf *payload,
                       sl_error *err);
bool soft_compile(gpu_device *d, const gpu_source *s, sl_buf *payload, sl_error *err);
uint32_t soft_flags_hash(bool checked);
/* First error of a compiler's text as "FILE:LINE: what" into out. */
void soft_first_diagnostic(const char *text, const char *name, char *out, size_t size);
/* Definitions appended to a unit in checking mode: the instrumentation's calls, handed to soft_api. */
extern const char soft_hooks_text[];
#define SOFT_HOOKS_INIT "soft_hooks_init"
typedef void (*soft_hooks_init_fn)(const soft_api *api);

typedef struct soft_payload {
    char magic[8];
    uint32_t abi, checked;
    uint64_t size;
} soft_payload;
#define SOFT_MAGIC "SLSOFT01"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

typedef struct soft_page soft_page;

typedef struct soft_memory {
    uint8_t *base;
    uint64_t bytes;  /* asked for */
    uint64_t mapped; /* 0: wrapped */
    int fd;          /* can be mapped again at another address; -1: not */
    /* checking mode: who touched it, in pages; pages of older dispatches count as empty */
    soft_page **page;
    uint64_t pages;
    uint64_t tracked; /* number of the dispatch that may write it */
} soft_memory;

bool soft_alloc(gpu_device *d, uint64_t bytes, sl_gpu_memory kind, gpu_memory *out, sl_error *err);
bool soft_wrap(gpu_device *d, void *host, uint64_t bytes, gpu_memory *out, sl_error *err);
void soft_memory_free(gpu_device *d, gpu_memory *m);
bool soft_memory_read(gpu_device *d, gpu_memory *m, uint64_t offset, void *to, uint64_t bytes, sl_error *err);
bool soft_memory_write(gpu_device *d, gpu_memory *m, uint64_t offset, const void *from, uint64_t bytes, sl_error *err);

/* ---- streams and events ------------------------------------------------------------------------------------------ */

void *soft_stream_new(gpu_device *d, sl_error *err);
void soft_stream_free(gpu_device *d, void *stream);
void *soft_event_new(gpu_device *d, sl_error *err);
void soft_event_free(gpu_device *d, void *event);
bool soft_event_signal(gpu_device *d, void *event, uint64_t value, sl_error *err);
uint64_t soft_event_value(gpu_device *d, void *event);
bool soft_event_wait(gpu_device *d, void *event, uint64_t value, uint64_t timeout_ns);
/* As soft_event_wait, without limit until *cancel. */
bool soft_event_await(void *event, uint64_t value, const _Atomic bool *cancel);
bool soft_submit(gpu_device *d, void *stream, const char *label, const gpu_command *list, size_t n, void **submission,
                 sl_error *err);
bool soft_wait(gpu_device *d, void *submission, uint64_t timeout_ns, gpu_result *result);
void soft_release(gpu_device *d, void *submission);

/* Condition variables on the monotonic clock where there is one. */
void soft_cond_init(pthread_cond_t *c);
/* Waits until sl_now_ns() reaches deadline_ns (UINT64_MAX: for ever); false: it has. */
bool soft_cond_wait(pthread_cond_t *c, pthread_mutex_t *m, uint64_t deadline_ns);
uint64_t soft_deadline(uint64_t timeout_ns);

/* ---- device ------------------------------------------------------------------------------------------------------ */

struct soft_device {
    gpu_device_base base;
    bool checking;
    uint64_t seed;
    char *compiler;
    uint64_t limit_ns; /* processor time a threadgroup may take */
    uint64_t dispatches;
    int worker_count;
    soft_worker *workers;
    pthread_mutex_t dispatch_mutex; /* one dispatch at a time */
    pthread_mutex_t mutex;          /* of what follows */
    pthread_cond_t work, idle;
    soft_job *job;
    uint64_t job_number;
    bool ending;
};

static inline soft_device *soft_of(gpu_device *d) {
    return (soft_device *)d;
}

bool soft_workers_open(soft_device *d, sl_error *err);
void soft_workers_close(soft_device *d);

/* ---- checking mode ----------------------------------------------------------------------------------------------- */

typedef enum soft_kind {
    SOFT_OUT_OF_BOUNDS,
    SOFT_BEYOND_ARRAY, /* an index that its type does not allow */
    SOFT_BEYOND_OWN,   /* a thread's own array, where the optimiser saw it */
    SOFT_MISALIGNED,
    SOFT_READ_ONLY,
    SOFT_UNINITIALISED,
    SOFT_RACE,
    SOFT_BARRIER_MISSED,
    SOFT_BARRIER_APART,
    SOFT_DIVERGED
} soft_kind;

typedef enum soft_how { SOFT_READS, SOFT_WRITES, SOFT_ATOMIC } soft_how;

/* Who: number of the group * SOFT_MAX_THREADS + thread. */
typedef struct soft_report {
    soft_kind kind;
    soft_how how, other_how;
    const void *pc;
    uint32_t other_pc; /* offset in the image + 1; 0: unknown */
    uint64_t who, other;
    int line, other_line; /* where a fibre waited; 0: from pc */
    soft_state other_state;
    uint32_t size;
    int slot;         /* of a buffer; -1 */
    int variable;     /* of threadgroup memory; -1 */
    int64_t offset;   /* from the start of the range or variable */
    uint64_t length;  /* of it */
    uint64_t address; /* when it is in no range */
    bool own;         /* in the thread's own memory */
    char name[64];    /* of the variable */
    char type[64];    /* of a misaligned pointer */
} soft_report;

/* One access of a byte, for races. */
typedef struct soft_access {
    uint64_t who; /* + 1; 0: none */
    soft_epoch epoch;
    uint32_t pc;        /* offset in the image + 1 */
    uint32_t time : 31; /* fences and atomic accesses so far */
    bool atomic : 1;
} soft_access;

/* A fence for the whole device, and the atomic access of the same thread that goes with it. */
typedef struct soft_fence {
    uint64_t who; /* + 1; 0: none */
    uint32_t group_epoch;
    uint32_t fenced, told; /* when */
} soft_fence;

/* What a threadgroup's fences order: what came before one that an atomic access follows, and what comes behind one that
 * follows an atomic access. */
typedef struct soft_fences {
    soft_fence latest, release, acquire;
    uint64_t who; /* of the latest atomic access */
    uint32_t told;
} soft_fences;

typedef struct soft_cell {
    soft_access write, read[2];
} soft_cell;

enum { SOFT_PAGE = 4096 };

/* Cells of 4 KiB, each for 1 << shift bytes: made finer when a smaller access comes. */
struct soft_page {
    uint64_t generation;
    int shift;
    soft_cell *cell;
};

typedef struct soft_window {
    uintptr_t begin, end; /* what is bound, as the kernel sees it */
    void *mapping;
    size_t mapped;
    soft_memory *memory; /* NULL: bytes */
    uint64_t offset;     /* of begin in memory */
    int slot;
    bool writes;
} soft_window;

struct soft_check {
    soft_job *job;
    uint64_t number; /* of the dispatch */
    soft_window window[SOFT_SLOTS];
    int windows, last;
    soft_page arena[SOFT_ARENA / SOFT_PAGE];
    uint8_t *written;    /* [SOFT_ARENA] a byte of threadgroup memory has a value */
    uint16_t *owner;     /* [SOFT_ARENA / 16] variable + 1 */
    soft_fences *fences; /* [threadgroups]; NULL: nobody has made one */
    uint32_t time;
    uint64_t shadow_pages;
    bool out_of_memory;
    soft_report report[SOFT_MAX_REPORTS];
    int reports;
};

/* Windows of a dispatch's bindings; fills job->buffer. */
bool soft_windows_open(soft_check *c, const gpu_command *command, sl_error *err);
void soft_windows_close(soft_check *c);
soft_check *soft_check_new(soft_device *d, soft_job *job, sl_error *err);
void soft_check_free(soft_check *c);
void soft_check_group(soft_check *c, soft_worker *w);
/* A variable was placed in the arena. */
void soft_check_variable(soft_check *c, soft_worker *w, int index);
void soft_check_access(const void *address, uint32_t size, soft_how how, const void *pc);
/* An index that the type of an array does not allow. */
void soft_check_beyond(int64_t index, const char *type, const void *pc);
/* An address that the type of the pointer does not allow. */
void soft_check_misaligned(const void *address, uint32_t alignment, const char *type, const void *pc);
/* A fence of the device's memory for the whole device. */
void soft_check_fence(void);
/* A trap was met at pc. */
void soft_check_trap(soft_check *c, const soft_fiber *f, const void *pc);
/* Where lanes or threads are when they should be together. */
void soft_check_apart(soft_worker *w, soft_kind kind, const soft_fiber *here, const soft_fiber *there);
/* The cell's accesses against a new one; true and *other when they race. */
bool soft_shadow_touch(soft_check *c, soft_page *page, uint32_t offset, uint32_t size, const soft_access *now,
                       bool write, bool threadgroup, soft_access *other, bool *other_writes);
void soft_shadow_free(soft_page *page);
void soft_memory_forget(soft_memory *m);
/* "FILE:LINE" of an address in a pipeline's code, or "". */
void soft_place_of(const soft_pipeline *p, uintptr_t pc, char *out, size_t size);
/* False: such a one is there, or there is no room. */
bool soft_report_add(soft_check *c, const soft_report *r);
/* Logs all reports and makes the first the job's error. */
void soft_report_all(soft_check *c, soft_device *d);

/* Source lines of addresses, from the object's .debug_line. */
typedef struct soft_lines soft_lines;
soft_lines *soft_lines_new(const uint8_t *object, size_t size);
void soft_lines_free(soft_lines *l);
/* 0: unknown. *file is borrowed until the next call. */
int soft_lines_find(soft_lines *l, uint64_t address, const char **file);

#endif

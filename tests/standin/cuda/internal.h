/* Private to the stand-in for CUDA: objects and what its files share. */
#ifndef CUDA_STANDIN_INTERNAL_H
#define CUDA_STANDIN_INTERNAL_H

#include "cuda_standin.h"
#include "gpu/cuda/cuda.h"
#include "gpu/soft/soft.h"

#include <pthread.h>

#define EXPORTED __attribute__((visibility("default")))

enum {
    ILLEGAL_ADDRESS = 700,
    LAUNCH_FAILED = 719,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    INVALID_IMAGE = 200
};

extern cuda_control control;
extern pthread_mutex_t lock; /* of everything here but what runs on streams' threads */
extern pthread_cond_t changed;
extern _Atomic int broken; /* the result that broke the context; 0: it is whole */

/* At the head of every entry point: counts and injects; a result other than CUDA_OK is returned as it is. */
cuda_result enter(const char *symbol);
/* The same for calls that want a current, whole context. */
cuda_result enter_context(const char *symbol);
void violate(const char *fmt, ...) SL_PRINTF(1, 2);

/* ---- objects -------------------------------------------------------------------------------------------------------
 */

typedef enum kind { QUEUE = 1, MARK, MODULE, FUNCTION, GRAPH, EXEC } kind;

/* First member of every object: found again by address, so that stale handles are seen. */
typedef struct object {
    kind what;
    struct object *next;
} object;

void object_add(object *o, kind what);
/* NULL with a violation where it is none of that kind; take: it is taken off the list, to be freed. */
void *object_find(const void *handle, kind what);
void *object_take(const void *handle, kind what);

/* ---- memory --------------------------------------------------------------------------------------------------------
 */

typedef enum place { NOWHERE, DEVICE, PINNED, REGISTERED } place;
/* Where [at, at + bytes) lies; false: not within one allocation or pinned run. */
bool memory_within(uint64_t at, uint64_t bytes, place *where);
/* Which allocation or pinning it is that has all of [at, at + bytes): one that comes later to the same place is
 * another. 0: none. */
uint64_t memory_serial(uint64_t at, uint64_t bytes);
/* Bytes from `at` to the end of what it lies in, or ends; 0: nowhere. */
uint64_t memory_left(uint64_t at);
void memory_release(uint64_t at); /* of the device's own, when its stream comes to it */

/* ---- what streams do -----------------------------------------------------------------------------------------------
 */

typedef struct function {
    object o;
    struct image *image;
    int shared_most;
} function;

typedef enum work_kind { LAUNCH, COPY, FILL, RECORD, WAIT_WORD, WRITE_WORD, CALL, FREE, RUN_GRAPH } work_kind;

typedef struct work {
    struct work *next;
    work_kind what;
    uint64_t to, from, bytes, value;
    uint64_t to_serial, from_serial; /* of the memory as it was when this was asked for */
    uint64_t sum;                    /* of what may not change until it is copied; 0: it may */
    function *function;
    struct image *image;
    uint32_t groups[3], threads[3], shared;
    uint8_t parameters[CUDA_PARAMETERS * 8 + 4096];
    struct mark *mark;
    void (*call)(void *);
    void *user;
    struct exec *exec;
} work;

typedef struct mark {
    object o;
    int pending;
    bool recorded;
    double time;
} mark;

typedef struct graph {
    object o;
    work *first, **end;
} graph;

typedef struct exec {
    object o;
    work *first;
    int running;
    bool dropped;
} exec;

typedef struct queue {
    object o;
    pthread_t thread;
    work *first, **end;
    bool ending;
    graph *capture; /* NULL: none */
} queue;

/* Copies w to the queue, or to the graph that is being taken down. */
cuda_result queue_put(cuda_queue handle, const work *w);
/* Is there work that uses memory in [at, at + bytes)? With the lock held. */
bool queues_use(uint64_t at, uint64_t bytes);
void object_each(kind what, void (*see)(object *o, void *user), void *user); /* with the lock held */
/* The pointers among a launch's parameters; n: how many there are. */
uint32_t image_pointers(const struct image *i, const work *w, uint64_t out[CUDA_PARAMETERS]);
void work_free(work *w);

/* ---- code ----------------------------------------------------------------------------------------------------------
 */

typedef struct parameter {
    char type; /* 'b' a pointer, 'v' a value, 't' an offset of threadgroup memory */
    int slot;
    uint32_t bytes;
} parameter;

/* What the stand-in for NVRTC makes: this, then a payload of the soft device. */
typedef struct image_head {
    char magic[8];
    char entry[32];
    uint32_t max_threads, count;
    uint64_t payload;
    parameter parameter[CUDA_PARAMETERS];
} image_head;
#define IMAGE_MAGIC "STANDCU1"

typedef struct image {
    image_head head;
    void *library, *pipeline; /* the soft device's */
    uint32_t shared;
} image;

/* CUDA C++ to a unit for the soft device. */
bool unit_make(const char *code, const char *const *options, int count, sl_buf *out);
bool image_make(const char *name, const char *code, const char *const *options, int count, sl_buf *out, char *log,
                size_t log_size);
bool unit_check(const char *name, const char *code, const char *const *options, int count, char *log, size_t log_size);
image *image_load(const void *bytes);
void image_free(image *i);
/* false: the kernel was at fault. */
bool image_run(const image *i, const work *w);

#endif

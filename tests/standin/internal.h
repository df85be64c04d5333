/* Private to the stand-in: objects, classes, and what its files give each other. */
#ifndef STANDIN_INTERNAL_H
#define STANDIN_INTERNAL_H

#include "gpu/device.h"
#include "standin.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#define STANDIN_EXPORT __attribute__((visibility("default")))

typedef unsigned long uinteger;
typedef struct size3 {
    uinteger width, height, depth;
} size3;
typedef struct range {
    uinteger location, length;
} range;

typedef const struct selector *selector;
typedef void (*method)(void);
typedef struct class class;
typedef struct object {
    class *isa;
    atomic_int references;
} object;

struct selector {
    const char *name;
};

/* ---- kept.c ------------------------------------------------------------------------------------------------------ */

/* Where the soft device's payload for this generated code is kept; allocated. NULL: nowhere. */
char *kept_path(const char *text, size_t size, bool fast_math);
bool kept_read(const char *path, sl_buf *out);
void kept_write(const char *path, const sl_buf *payload);

/* ---- runtime.c --------------------------------------------------------------------------------------------------- */

extern standin_control control;

/* A rule was broken: ends the process, or is recorded. */
void violate(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* size: of an object; dealloc may be NULL. Methods of super are found too. */
class *make_class(const char *name, size_t size, void (*dealloc)(object *));
typedef struct method_row {
    const char *selector;
    void *function;
} method_row;
void add_methods(class *c, const method_row *rows);       /* ended by a NULL selector */
void add_class_methods(class *c, const method_row *rows); /* the same, of the class itself */

object *make_object(class *c); /* with one reference, zeroed */
object *retain_object(object *o);
void release_object(object *o);
object *autorelease_object(object *o);
bool is_dead(const object *o);
const char *class_name(const object *o);
/* Of a fault: true once. */
bool nil_wanted(standin_nil which);

/* ---- foundation.c ------------------------------------------------------------------------------------------------ */

void register_foundation(void);
object *make_string(const char *text); /* owned */
const char *string_text(const object *string);
const char *url_path(const object *url);
object *make_array(object *const *items, size_t n); /* owned; holds the items */
size_t array_count(const object *array);
object *array_item(const object *array, size_t i);
object *make_error(const char *domain, long code, const char *text);             /* owned */
void set_error(object **error, const char *domain, long code, const char *text); /* autoreleased; error may be NULL */
bool fault_wanted(standin_fault *fault, object **error);
const void *data_bytes(const object *data, size_t *size);

/* ---- device.c ---------------------------------------------------------------------------------------------------- */

void register_device(void);
extern class *device_class; /* library.c adds to it */
typedef struct buffer {
    object base;
    uint8_t *bytes;
    uint64_t length;
    bool owned, shared, resident;
} buffer;
bool is_buffer(const object *o);

typedef struct shared_event {
    object base;
    uint64_t value;
} shared_event;
bool is_event(const object *o);
uint64_t event_value(shared_event *e);
void event_raise(shared_event *e, uint64_t value);
/* False after a few milliseconds. */
bool event_wait_bit(shared_event *e, uint64_t value);
bool is_fence(const object *o);

/* ---- code: what a library holds ---------------------------------------------------------------------------------- */

typedef struct constant_value {
    bool set;
    int type; /* Metal's */
    uint8_t bytes[8];
} constant_value;
enum { CONSTANTS = 64, SLOTS = 31 };

typedef struct call {
    void *slots[SLOTS];
    uint64_t lengths[SLOTS]; /* bytes bound, to the end of the buffer */
    uint32_t threadgroup[SLOTS];
    uint32_t groups[3], threads[3];
    const constant_value *constants;
} call;

typedef struct code code;
typedef struct entry entry;

/* Where line `number` of a text comes from by its #line directives. */
typedef struct origin {
    char file[128];
    int line;
} origin;
origin origin_of(const char *source, int number);
/* NULL with the compiler's text. */
code *code_new(const char *source, bool fast_math, int language, char *message, size_t size);
void code_free(code *c);
size_t code_count(const code *c);
const char *code_name(const code *c, size_t i);
const char *code_source(const code *c);
/* How many function constants a kernel has (of a source for the soft device: those of the source), at most CONSTANTS.
 */
size_t code_constants(const code *c, const char *kernel);
/* constants: [CONSTANTS] */
entry *entry_new(code *c, const char *name, const constant_value *constants, char *message, size_t size);
void entry_free(entry *e);
const msl_kernel *entry_kernel(const entry *e);
bool entry_argument_unused(const entry *e, size_t i);
uint32_t entry_static_memory(const entry *e);
bool entry_run(entry *e, const call *c, char *message, size_t size);

/* The two kinds. */
typedef struct code_kind {
    bool (*load)(code *c, char *message, size_t size);
    void (*unload)(code *c);
    bool (*enter)(code *c, entry *e, char *message, size_t size);
    void (*leave)(entry *e);
    bool (*run)(entry *e, const call *c, char *message, size_t size);
} code_kind;
extern const code_kind builtin_kind, soft_kind;

struct code {
    const code_kind *kind;
    char *source;
    bool fast_math;
    int language;
    msl_module *module; /* soft */
    void *library;      /* soft */
    const msl_kernel *kernels;
    size_t kernel_count;
    msl_kernel *owned; /* builtin */
};
struct entry {
    code *code;
    const msl_kernel *kernel;
    constant_value constants[CONSTANTS];
    void *own; /* of the kind */
    uint32_t static_memory, max_threads;
};

/* ---- library.c, commands.c, queue.c ------------------------------------------------------------------------------ */

void register_library(void);
object *library_from_source(const char *source, bool fast_math, int language, object **error); /* owned */

typedef struct pipeline {
    object base;
    entry *entry;
    object *function; /* held */
    char *label;
} pipeline;
bool is_pipeline(const object *o);

void register_commands(void);

typedef enum command_kind { DISPATCH, COPY, FILL, WAIT, SIGNAL, BARRIER } command_kind;

typedef struct slot {
    buffer *buffer;
    uint64_t offset;
    uint8_t *bytes; /* owned copy of setBytes */
    uint64_t length;
} slot;

typedef struct command {
    command_kind kind;
    pipeline *pipeline;
    slot slots[SLOTS];
    uint32_t threadgroup[SLOTS], groups[3], threads[3];
    buffer *to, *from;
    uint64_t to_offset, from_offset, bytes, value;
    uint8_t byte;
    shared_event *event;
} command;

typedef struct queue queue;
typedef struct command_buffer {
    object base;
    queue *queue; /* held */
    char *label;
    struct encoder *open;
    command *commands;
    size_t count, capacity;
    bool committed, any_encoder;
    object *fence; /* not held: what its last encoder updated */
    atomic_int status;
    object *error; /* held */
    double begin, end;
    struct command_buffer *next; /* committed, waiting to run */
} command_buffer;
command *add_command(command_buffer *b, command_kind kind);

struct queue {
    object base;
    uinteger limit;
    atomic_long unfinished; /* command buffers made and not done */
    object *fence;          /* not held: what the last encoder committed updated */
    bool any_encoder;       /* one was committed */
    bool has_residency;
    pthread_t thread;
    bool started, stopping;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    command_buffer *first, *last;
};
void register_queue(void);
void add_queue_methods(class *c); /* commands.c */
object *make_queue(uinteger limit);
void queue_commit(queue *q, command_buffer *b);
double seconds(void);

#endif

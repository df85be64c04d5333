/* The Objective-C runtime: selectors, classes, reference counts, autorelease pools, and who breaks their rules. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SELECTORS = 512, CLASSES = 64, METHODS = 48, ZOMBIES = 4096 };

struct class {
    class *isa;
    atomic_int references; /* as an object's; never used */
    const char *name;
    size_t size;
    void (*dealloc)(object *);
    struct {
        selector name;
        method function;
    } methods[METHODS];
    size_t count;
};

standin_control control;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- control ------------------------------------------------------------------------------------------------------
 */

STANDIN_EXPORT standin_control *standin(void) {
    return &control;
}

STANDIN_EXPORT void standin_reset(void) {
    long alive = control.alive;
    control = (standin_control){.system = "14.5",
                                .build = "23F79",
                                .name = "Apple stand-in",
                                .apple_family = 8,
                                .metal3 = true,
                                .unified = true,
                                .devices = 1,
                                .max_buffer = 16ull << 30,
                                .working_set = 32ull << 30,
                                .pipeline_threads = 1024,
                                .pipeline_width = 32,
                                .alive = alive};
}

void violate(const char *fmt, ...) {
    char text[sizeof control.violation];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!control.record) {
        fprintf(stderr, "stand-in for Metal: %s\n", text);
        abort();
    }
    pthread_mutex_lock(&lock);
    memcpy(control.violation, text, sizeof text);
    control.violations++;
    pthread_mutex_unlock(&lock);
}

bool nil_wanted(standin_nil which) {
    bool wanted = control.nil == which;
    if (wanted)
        control.nil = STANDIN_NIL_NOTHING;
    return wanted;
}

static bool is_missing(const char *name) {
    for (size_t i = 0; i < STANDIN_MISSING; i++)
        if (control.missing[i] && strcmp(control.missing[i], name) == 0)
            return true;
    return false;
}

/* ---- selectors, classes -------------------------------------------------------------------------------------------
 */

static struct selector selectors[SELECTORS];
static size_t selector_count;
static class *classes[CLASSES];
static size_t class_count;
static class *object_class, *dead_class;

static selector intern(const char *name) {
    for (size_t i = 0; i < selector_count; i++)
        if (strcmp(selectors[i].name, name) == 0)
            return &selectors[i];
    if (selector_count == SELECTORS)
        abort();
    selectors[selector_count].name = sl_strdup(name);
    return &selectors[selector_count++];
}

class *make_class(const char *name, size_t size, void (*dealloc)(object *)) {
    class *c = calloc(1, sizeof *c), *meta = calloc(1, sizeof *meta);
    if (!c || !meta || class_count == CLASSES)
        abort();
    *c = (class){.isa = meta, .name = name, .size = size, .dealloc = dealloc};
    *meta = (class){.name = name};
    classes[class_count++] = c;
    return c;
}

void add_methods(class *c, const method_row *rows) {
    for (; rows->selector; rows++) {
        if (c->count == METHODS)
            abort();
        c->methods[c->count].name = intern(rows->selector);
        memcpy(&c->methods[c->count++].function, &rows->function, sizeof rows->function);
    }
}

void add_class_methods(class *c, const method_row *rows) {
    add_methods(c->isa, rows);
}

static method lookup(const class *c, selector name) {
    for (size_t i = 0; i < c->count; i++)
        if (c->methods[i].name == name)
            return c->methods[i].function;
    return NULL;
}

static bool is_class(const object *o) {
    for (size_t i = 0; i < class_count; i++)
        if ((const void *)classes[i] == (const void *)o)
            return true;
    return false;
}

/* Methods of the class, then those that every object (or every class) has. */
static method find(const object *o, selector name) {
    method found = is_missing(name->name) ? NULL : lookup(o->isa, name);
    return found ? found : lookup(is_class(o) ? object_class->isa : object_class, name);
}

const char *class_name(const object *o) {
    return o->isa->name;
}

__attribute__((visibility("hidden"))) void nil_method(void);

/* Called by objc_msgSend. */
__attribute__((used, visibility("hidden"))) method find_method(object *o, selector name) {
    if (!o) {
        control.nil_messages++;
        return nil_method;
    }
    if (o->isa == dead_class) {
        violate("%s sent to an object that is gone", name->name);
        return nil_method;
    }
    method found = find(o, name);
    if (!found) {
        violate("unrecognised selector %s sent to %s", name->name, class_name(o));
        return nil_method;
    }
    return found;
}

/* ---- objects ------------------------------------------------------------------------------------------------------
 */

/* Freed objects keep their head for a while, so that messages to them are seen. */
static object *zombies[ZOMBIES];
static size_t zombie_next;

static void bury(object *o) {
    o->isa = dead_class;
    pthread_mutex_lock(&lock);
    free(zombies[zombie_next]);
    zombies[zombie_next] = o;
    zombie_next = (zombie_next + 1) % ZOMBIES;
    control.alive--;
    pthread_mutex_unlock(&lock);
}

bool is_dead(const object *o) {
    return o->isa == dead_class;
}

object *make_object(class *c) {
    object *o = calloc(1, c->size);
    if (!o)
        abort();
    o->isa = c;
    atomic_store(&o->references, 1);
    pthread_mutex_lock(&lock);
    control.alive++;
    control.made++;
    pthread_mutex_unlock(&lock);
    return o;
}

object *retain_object(object *o) {
    if (o && is_dead(o))
        violate("retain of an object that is gone");
    else if (o)
        atomic_fetch_add(&o->references, 1);
    return o;
}

void release_object(object *o) {
    if (!o)
        return;
    if (is_dead(o)) {
        violate("an object was released once too often");
        return;
    }
    if (atomic_fetch_sub(&o->references, 1) > 1)
        return;
    if (o->isa->dealloc)
        o->isa->dealloc(o);
    bury(o);
}

/* ---- autorelease pools --------------------------------------------------------------------------------------------
 */

static _Thread_local struct {
    object **items; /* NULL: where a pool begins */
    size_t count, capacity;
} pool;

static void pool_add(object *o) {
    void *items = pool.items;
    if (!sl_grow(&items, &pool.capacity, pool.count + 1, sizeof *pool.items))
        abort();
    pool.items = items;
    pool.items[pool.count++] = o;
}

object *autorelease_object(object *o) {
    if (!o)
        return NULL;
    if (!pool.count)
        violate("%s autoreleased with no pool in place: it leaks", class_name(o));
    else
        pool_add(o);
    return o;
}

STANDIN_EXPORT void *objc_autoreleasePoolPush(void) {
    pool_add(NULL);
    return (void *)(uintptr_t)pool.count;
}

STANDIN_EXPORT void objc_autoreleasePoolPop(void *token) {
    size_t begin = (size_t)(uintptr_t)token;
    if (begin == 0 || begin > pool.count || pool.items[begin - 1]) {
        violate("pop of an autorelease pool that is not there");
        return;
    }
    while (pool.count >= begin)
        release_object(pool.items[--pool.count]);
    if (pool.count)
        return;
    free(pool.items);
    pool.items = NULL;
    pool.capacity = 0;
}

/* ---- methods of all objects ---------------------------------------------------------------------------------------
 */

static object *object_retain(object *o, selector s) {
    return is_class(o) ? o : retain_object(o);
}

static void object_release(object *o, selector s) {
    if (!is_class(o))
        release_object(o);
}

static object *object_autorelease(object *o, selector s) {
    return autorelease_object(o);
}

static signed char object_responds(object *o, selector s, selector asked) {
    return find(o, asked) != NULL;
}

static object *class_new(class *c, selector s) {
    return make_object(c);
}

static void start(void) {
    static const method_row methods[] = {{"retain", object_retain},
                                         {"release", object_release},
                                         {"autorelease", object_autorelease},
                                         {"respondsToSelector:", object_responds},
                                         {0}};
    static const method_row class_methods[] = {{"new", class_new}, {"respondsToSelector:", object_responds}, {0}};
    standin_reset();
    object_class = make_class("NSObject", sizeof(object), NULL);
    dead_class = make_class("(gone)", sizeof(object), NULL);
    add_methods(object_class, methods);
    add_class_methods(object_class, class_methods);
    register_foundation();
    register_device();
    register_library();
    register_commands();
    register_queue();
}

/* As soon as the library is loaded: tests set the machine up before a device is opened. */
__attribute__((constructor)) static void start_once(void) {
    pthread_once(&once, start);
}

/* At the end of the process: what was made and not released. A queue's thread lets go of its last list a moment later
 * than its caller. */
__attribute__((destructor)) static void tell_leaks(void) {
    for (int i = 0; i < 1000 && control.alive; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (control.alive && !control.record)
        fprintf(stderr, "stand-in for Metal: %ld objects were left\n", control.alive);
}

STANDIN_EXPORT selector sel_registerName(const char *name) {
    pthread_mutex_lock(&lock);
    selector found = intern(name);
    pthread_mutex_unlock(&lock);
    return found;
}

STANDIN_EXPORT class *objc_getClass(const char *name) {
    for (size_t i = 0; i < class_count && !is_missing(name); i++)
        if (strcmp(classes[i]->name, name) == 0)
            return classes[i];
    return NULL;
}

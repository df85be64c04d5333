/* The device: what it says of itself, its buffers, events, fences, residency sets. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

class *device_class;
static class *buffer_class, *event_class, *fence_class, *residency_class;
static object *the_device; /* not held: gone with its last reference */
static atomic_ullong allocated;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t raised = PTHREAD_COND_INITIALIZER;

/* ---- finding it ----------------------------------------------------------------------------------------------------
 */

static void device_gone(object *o) {
    the_device = NULL;
}

static object *take_device(void) {
    if (the_device)
        return retain_object(the_device);
    return the_device = make_object(device_class);
}

STANDIN_EXPORT object *MTLCreateSystemDefaultDevice(void) {
    return control.no_default_device || control.devices == 0 ? NULL : take_device();
}

STANDIN_EXPORT object *MTLCopyAllDevices(void) {
    object *items[8], *d = control.devices ? take_device() : NULL;
    size_t n = 0;
    for (; n < (size_t)control.devices && n < 8; n++)
        items[n] = d;
    object *all = make_array(items, n);
    release_object(d);
    return all;
}

/* ---- what it says --------------------------------------------------------------------------------------------------
 */

static object *device_name(object *o, selector s) {
    return autorelease_object(make_string(control.name));
}

static signed char device_family(object *o, selector s, long family) {
    if (family > 1000 && family <= 1000 + control.apple_family)
        return true;
    return (family == 5001 && control.metal3) || (family == 2002 && !control.apple_family);
}

static signed char device_unified(object *o, selector s) {
    return control.unified;
}

static uinteger device_max_buffer(object *o, selector s) {
    return control.max_buffer;
}

static uinteger device_threadgroup(object *o, selector s) {
    return 32768;
}

static uinteger device_working_set(object *o, selector s) {
    return control.working_set;
}

static uinteger device_allocated(object *o, selector s) {
    return atomic_load(&allocated);
}

/* ---- buffers -------------------------------------------------------------------------------------------------------
 */

enum { PRIVATE = 0x20, UNTRACKED = 0x100 };

static void buffer_gone(object *o) {
    buffer *b = (buffer *)o;
    if (b->resident)
        violate("a buffer was freed that is in a residency set");
    atomic_fetch_sub(&allocated, b->length);
    if (b->owned)
        free(b->bytes);
    b->bytes = NULL;
}

bool is_buffer(const object *o) {
    return o && o->isa == buffer_class;
}

static object *new_buffer(uint8_t *bytes, uinteger length, bool owned, uinteger options) {
    buffer *b = (buffer *)make_object(buffer_class);
    b->bytes = bytes;
    b->length = length;
    b->owned = owned;
    b->shared = (options & 0xf0) == 0;
    atomic_fetch_add(&allocated, length);
    return &b->base;
}

static bool check_options(uinteger length, uinteger options) {
    if (length == 0)
        violate("a buffer of no bytes");
    else if (length > control.max_buffer)
        violate("a buffer of %lu bytes is larger than maxBufferLength", length);
    else if (options != UNTRACKED && options != (PRIVATE | UNTRACKED))
        violate("buffer options %lx", options);
    else
        return true;
    return false;
}

/* Contents are undefined: not zero. */
static object *device_buffer(object *o, selector s, uinteger length, uinteger options) {
    enum { POISONED = 64 << 20 };
    if (nil_wanted(STANDIN_NIL_BUFFER) || !check_options(length, options))
        return NULL;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *bytes = aligned_alloc(page, (length + page - 1) / page * page);
    if (bytes)
        memset(bytes, 0xa5, length < POISONED ? length : POISONED);
    return bytes ? new_buffer(bytes, length, true, options) : NULL;
}

static object *device_buffer_no_copy(object *o, selector s, uint8_t *bytes, uinteger length, uinteger options,
                                     object *deallocator) {
    uinteger page = (uinteger)sysconf(_SC_PAGESIZE);
    if (nil_wanted(STANDIN_NIL_NO_COPY) || !check_options(length, options))
        return NULL;
    if ((uintptr_t)bytes % page || length % page) {
        violate("newBufferWithBytesNoCopy: %lu bytes at %p are not whole pages", length, (void *)bytes);
        return NULL;
    }
    return new_buffer(bytes, length, false, options);
}

static void *buffer_contents(buffer *b, selector s) {
    return b->shared && !nil_wanted(STANDIN_NIL_CONTENTS) ? b->bytes : NULL;
}

/* ---- events, fences ------------------------------------------------------------------------------------------------
 */

static object *device_event(object *o, selector s) {
    return nil_wanted(STANDIN_NIL_EVENT) ? NULL : make_object(event_class);
}

bool is_event(const object *o) {
    return o && o->isa == event_class;
}

uint64_t event_value(shared_event *e) {
    pthread_mutex_lock(&lock);
    uint64_t value = e->value;
    pthread_mutex_unlock(&lock);
    return value;
}

void event_raise(shared_event *e, uint64_t value) {
    pthread_mutex_lock(&lock);
    bool falls = value < e->value;
    e->value = value;
    pthread_cond_broadcast(&raised);
    pthread_mutex_unlock(&lock);
    if (falls)
        violate("a shared event falls to %llu", (unsigned long long)value);
}

static bool wait_until(shared_event *e, uint64_t value, uint64_t ms) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + ms % 1000 * 1000000;
    until.tv_sec += (time_t)(ms / 1000 + ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&lock);
    while (e->value < value && pthread_cond_timedwait(&raised, &lock, &until) == 0)
        continue;
    bool reached = e->value >= value;
    pthread_mutex_unlock(&lock);
    return reached;
}

bool event_wait_bit(shared_event *e, uint64_t value) {
    return wait_until(e, value, 2);
}

static uinteger event_signaled(shared_event *e, selector s) {
    return event_value(e);
}

static void event_signal(shared_event *e, selector s, uinteger value) {
    event_raise(e, value);
}

static signed char event_wait(shared_event *e, selector s, uinteger value, uinteger ms) {
    return wait_until(e, value, ms);
}

static object *device_fence(object *o, selector s) {
    return nil_wanted(STANDIN_NIL_FENCE) ? NULL : make_object(fence_class);
}

bool is_fence(const object *o) {
    return o && o->isa == fence_class;
}

static object *device_queue(object *o, selector s, uinteger limit) {
    return nil_wanted(STANDIN_NIL_QUEUE) ? NULL : make_queue(limit);
}

/* ---- residency sets ------------------------------------------------------------------------------------------------
 */

typedef struct residency {
    object base;
    long members;
    bool changed;
} residency;

static void residency_gone(object *o) {
    residency *r = (residency *)o;
    if (r->members)
        violate("a residency set was freed with %ld buffers in it", r->members);
}

static object *device_residency(object *o, selector s, object *descriptor, object **error) {
    if (!descriptor)
        violate("newResidencySetWithDescriptor: of nil");
    return make_object(residency_class);
}

static void residency_add(residency *r, selector s, buffer *b) {
    if (!is_buffer(&b->base) || b->resident) {
        violate("addAllocation: of what is no buffer or in the set already");
        return;
    }
    b->resident = true;
    r->members++;
    control.residents++;
    r->changed = true;
}

static void residency_remove(residency *r, selector s, buffer *b) {
    if (!is_buffer(&b->base) || !b->resident) {
        violate("removeAllocation: of what is not in the set");
        return;
    }
    b->resident = false;
    r->members--;
    control.residents--;
    r->changed = true;
}

static void residency_commit(residency *r, selector s) {
    r->changed = false;
}

static void residency_request(residency *r, selector s) {
    if (r->changed)
        violate("requestResidency before commit");
    control.residency_requests++;
}

static void residency_end(residency *r, selector s) {}

void register_device(void) {
    static const method_row device_methods[] = {
        {"name", device_name},
        {"supportsFamily:", device_family},
        {"hasUnifiedMemory", device_unified},
        {"maxBufferLength", device_max_buffer},
        {"maxThreadgroupMemoryLength", device_threadgroup},
        {"recommendedMaxWorkingSetSize", device_working_set},
        {"currentAllocatedSize", device_allocated},
        {"newBufferWithLength:options:", device_buffer},
        {"newBufferWithBytesNoCopy:length:options:deallocator:", device_buffer_no_copy},
        {"newSharedEvent", device_event},
        {"newFence", device_fence},
        {"newCommandQueueWithMaxCommandBufferCount:", device_queue},
        {"newResidencySetWithDescriptor:error:", device_residency},
        {0}};
    static const method_row event_methods[] = {{"signaledValue", event_signaled},
                                               {"setSignaledValue:", event_signal},
                                               {"waitUntilSignaledValue:timeoutMS:", event_wait},
                                               {0}};
    static const method_row residency_methods[] = {
        {"addAllocation:", residency_add},       {"removeAllocation:", residency_remove}, {"commit", residency_commit},
        {"requestResidency", residency_request}, {"endResidency", residency_end},         {0}};
    device_class = make_class("MTLDevice", sizeof(object), device_gone);
    add_methods(device_class, device_methods);
    buffer_class = make_class("MTLBuffer", sizeof(buffer), buffer_gone);
    add_methods(buffer_class, (const method_row[]){{"contents", buffer_contents}, {0}});
    event_class = make_class("MTLSharedEvent", sizeof(shared_event), NULL);
    add_methods(event_class, event_methods);
    fence_class = make_class("MTLFence", sizeof(object), NULL);
    residency_class = make_class("MTLResidencySet", sizeof(residency), residency_gone);
    add_methods(residency_class, residency_methods);
    make_class("MTLResidencySetDescriptor", sizeof(object), NULL);
}

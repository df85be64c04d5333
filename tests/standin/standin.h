/* The stand-in for the Objective-C runtime and Metal on systems without them: a shared library with the entry points
 * that src/gpu/metal looks up (SLUICE_METAL_LIBRARY names it). Kernels run on the soft device, or, where a source says
 * "// standin: builtin", as C functions of builtin.c.
 *
 * It is stricter than a Mac: what there ends the process, leaks, or goes wrong now and then is here a violation, which
 * ends the process at once (or, while `record` is set, is counted). Dispatches that no barrier separates run in reverse
 * order, so that a missing barrier shows.
 *
 * Tests find the control structure by dlsym: standin_control *standin(void). */
#ifndef STANDIN_H
#define STANDIN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct standin_fault {
    const char *domain; /* NULL: no fault */
    long code;
    const char *text;
} standin_fault;

/* What the next call of a kind returns nil for. */
typedef enum standin_nil {
    STANDIN_NIL_NOTHING,
    STANDIN_NIL_BUFFER,
    STANDIN_NIL_NO_COPY,
    STANDIN_NIL_CONTENTS,
    STANDIN_NIL_QUEUE,
    STANDIN_NIL_FENCE,
    STANDIN_NIL_EVENT,
    STANDIN_NIL_COMMAND_BUFFER,
    STANDIN_NIL_COMPUTE_ENCODER,
    STANDIN_NIL_BLIT_ENCODER,
    STANDIN_NIL_DATA
} standin_nil;

enum { STANDIN_MISSING = 8 };

typedef struct standin_control {
    /* the machine; set before the device is opened */
    const char *system, *build, *name;
    int apple_family; /* 0: not Apple's */
    bool metal3, unified;
    int devices;
    bool no_default_device;
    uint64_t max_buffer, working_set;
    const char *missing[STANDIN_MISSING]; /* selectors and classes that this system does not have */
    uint32_t pipeline_threads, pipeline_width;

    /* faults; each is used up by the first call it meets */
    standin_nil nil;
    standin_fault fail_list, fail_pipeline, fail_library, fail_function, fail_archive;
    _Atomic bool hang;   /* committed lists do not begin while it is set */
    bool service_broken; /* the compiler service answers with no library */

    /* what was seen; violations: rules that were broken */
    bool record;
    _Atomic long alive;                          /* objects not yet released */
    _Atomic long violations, made, nil_messages; /* counted by every thread that calls, as all below */
    char violation[256];
    _Atomic long dispatches, barriers, encoders, commits, set_buffers, set_offsets, set_bytes, residency_requests,
        residents, signals;
    _Atomic long libraries_compiled, pipelines_compiled, pipelines_from_archive, services_used;
    long language;
    bool fast_math, safe_functions;
    char labels[256]; /* of command buffers, joined by commas */
} standin_control;

/* Exported. reset: settings and faults to their defaults, counters to zero (but for alive). */
standin_control *standin(void);
void standin_reset(void);

#endif

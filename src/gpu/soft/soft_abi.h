/* soft_abi: what the soft device's runtime (C) and a translated kernel (C++, a shared object) agree on. The text of
 * this header is part of every generated unit, so it includes nothing of Sluice's.
 *
 * A threadgroup's threads are fibres on one worker thread. A fibre runs until it meets a barrier or a SIMD-group
 * function, where it hands over to the next; so everything between two such points is atomic within its threadgroup.
 * The shared object has no undefined symbols of the runtime: it is given soft_api by soft_init. */
#ifndef SL_SOFT_ABI_H
#define SL_SOFT_ABI_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SOFT_ABI = 5, SOFT_SIMD = 32, SOFT_SLOTS = 31, SOFT_THREADGROUP_BYTES = 32768, SOFT_LANE_BYTES = 64 };

/* What a fibre knows of itself; the runtime's own state lies behind it. */
typedef struct soft_thread {
    const struct soft_group *group;
    uint32_t index, lane, simdgroup; /* in the threadgroup; in the SIMD-group; of it */
    uint32_t position[3];            /* thread_position_in_threadgroup */
} soft_thread;

typedef struct soft_group {
    void *const *buffer;                         /* [SOFT_SLOTS] what the slots are bound to; bytes too */
    void *const *threadgroup;                    /* [SOFT_SLOTS] dynamic threadgroup memory */
    uint32_t position[3], groups[3], threads[3]; /* of the group in the grid; of the grid; of a group */
    uint32_t thread_count, simdgroups;
} soft_group;

/* Flags of a barrier: which memory it orders. */
enum { SOFT_MEM_NONE = 0, SOFT_MEM_DEVICE = 1, SOFT_MEM_THREADGROUP = 2 };

typedef struct soft_api {
    uint32_t abi;
    /* The running fibre. Found from the stack's address, so it costs a mask and a multiplication; may be cached in a
     * local across anything but nothing else. */
    const soft_thread *(*self)(void);
    /* Waits for all threads of the threadgroup; line for reports. */
    void (*barrier)(int flags, int line);
    /* Waits for the SIMD-group. */
    void (*simd_barrier)(int flags, int line);
    /* The one primitive of SIMD-group functions: every active lane gives `size` (<= SOFT_LANE_BYTES) bytes and gets
     * the array [SOFT_SIMD][SOFT_LANE_BYTES] of what all gave, valid until the lane's next call but one; *active: lanes
     * that took part (those that have not returned from the kernel). site: the line, to tell divergent calls apart. */
    const void *(*simd_publish)(const void *value, uint32_t size, int site, uint32_t *active);
    /* Storage of a `threadgroup T name[n]` in a kernel's body: the same for all threads of the group, distinct per
     * site. */
    void *(*threadgroup_static)(uint32_t site, uint32_t size, const char *name, int line);
    /* Atomic access follows (checking mode): not a race. */
    void (*atomic_hint)(const volatile void *address, uint32_t size);
    /* Stops the dispatch with a message: what the kernel asked for cannot be. */
    void (*fail)(int line, const char *message);
    /* Checking mode, from the instrumentation. */
    void (*read)(const void *address, uint32_t size, const void *pc);
    void (*write)(void *address, uint32_t size, const void *pc);
    /* An index outside an array whose length the type says; type: as the compiler names it. */
    void (*beyond)(int64_t index, const char *type, const void *pc);
    /* An address that is no multiple of what the pointer's type asks for. */
    void (*misaligned)(const void *address, uint32_t alignment, const char *type, const void *pc);
    /* Copies that run ahead. false: it has not been taken and is to be made at once. */
    bool (*copy_begin)(void *to, const void *from, uint32_t size);
    void (*copy_commit)(void);
    /* Makes what was taken, but for the latest so many lots. */
    void (*copy_wait)(uint32_t but);
    /* A fence of the device's memory for the whole device (checking mode). */
    void (*fence)(void);
} soft_api;

/* Types of sl_gpu_type. */
typedef struct soft_constant {
    int id, type;
    const char *name;
    void *value;   /* written before a pipeline is used; the source's default lies there until then */
    bool *defined; /* is_function_constant_defined */
} soft_constant;

typedef struct soft_kernel {
    const char *entry;
    void (*run)(void);           /* on a fibre: reads its arguments from self()->group */
    uint32_t threadgroup_memory; /* bytes of its statics */
} soft_kernel;

typedef struct soft_module {
    uint32_t abi;
    const soft_kernel *kernels;
    uint32_t kernel_count;
    const soft_constant *constants;
    uint32_t constant_count;
} soft_module;

/* Exported by the shared object. */
#define SOFT_INIT "soft_init"
typedef const soft_module *(*soft_init_fn)(const soft_api *api);

#ifdef __cplusplus
}
#endif
#endif

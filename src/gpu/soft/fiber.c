/* Fibres: a context switch, and a worker's region of stacks.
 *
 * A region is aligned to its size, so that the address of anything on a stack says whose it is: no thread-local
 * variable is read where a kernel asks for its position. Only what a call must preserve is saved in a switch. Every
 * stack's lowest page is a guard. */
#include "gpu/soft/soft.h"

#include <stdlib.h>
#include <sys/mman.h>

_Static_assert(sizeof(soft_region) <= (size_t)SOFT_HEADER_STACKS * SOFT_STACK, "the header holds the region's state");
_Static_assert((size_t)(SOFT_HEADER_STACKS + SOFT_MAX_THREADS) * SOFT_STACK <= SOFT_REGION,
               "the region holds all stacks");

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

#if defined(__APPLE__)
#define SYMBOL "_soft_switch"
#define HEAD   ".private_extern _soft_switch\n"
#else
#define SYMBOL "soft_switch"
#define HEAD   ".hidden soft_switch\n.type soft_switch,%function\n"
#endif

#if defined(__x86_64__)
enum { FRAME_WORDS = 8, FRAME_RETURN = 6 };
__asm__(".text\n.globl " SYMBOL "\n" HEAD SYMBOL ":\n"
        "pushq %rbx\npushq %rbp\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\n"
        "movq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbp\npopq %rbx\n"
        "ret\n");
#elif defined(__aarch64__)
enum { FRAME_WORDS = 22, FRAME_RETURN = 11 }; /* x19..x28, x29, x30, d8..d15 */
__asm__(".text\n.globl " SYMBOL "\n" HEAD ".p2align 2\n" SYMBOL ":\n"
        "sub sp, sp, #176\n"
        "stp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
        "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
        "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
        "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
        "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
        "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
        "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\n"
        "add sp, sp, #176\n"
        "ret\n");
#else
#error "the soft device needs a context switch for this processor"
#endif

/* The highest address of a fibre's stack. Neighbours begin at different cache sets: else the tops of all stacks would
 * share a few. */
uintptr_t soft_stack_top(const soft_worker *w, uint32_t index) {
    uintptr_t end = (uintptr_t)w->region + (uintptr_t)(SOFT_HEADER_STACKS + index + 1) * SOFT_STACK;
    return (end - 64 - (index * 320 & 4032)) & ~(uintptr_t)63;
}

void soft_fiber_reset(soft_worker *w, uint32_t index, void (*start)(void)) {
    void **frame = (void **)soft_stack_top(w, index) - FRAME_WORDS;
    frame[FRAME_RETURN] = (void *)start;
    frame[FRAME_WORDS - 1] = NULL; /* x86-64: where start would return to */
    w->region->fiber[index].sp = frame;
}

bool soft_stacks_ensure(soft_worker *w, uint32_t n, sl_error *err) {
    for (; w->stacks < n; w->stacks++) {
        uint8_t *low = (uint8_t *)w->region + (size_t)(SOFT_HEADER_STACKS + w->stacks) * SOFT_STACK;
        if (mprotect(low, SOFT_GUARD, PROT_NONE) != 0)
            return sl_fail(err, SL_ERR_MEMORY, "soft: no guard page for the stack of thread %u (too many mappings)",
                           w->stacks);
    }
    return true;
}

SOFT_ON_FIBER _Noreturn void soft_abandon(soft_fiber *f) {
    for (;;)
        soft_switch(&f->sp, f->worker->sp);
}

static bool map_region(soft_worker *w, sl_error *err) {
    size_t size = 2 * (size_t)SOFT_REGION;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return sl_fail(err, SL_ERR_MEMORY, "soft: no address space for the stacks of worker %d", w->index);
    uintptr_t begin = (uintptr_t)p, aligned = (begin + SOFT_REGION - 1) & ~(uintptr_t)(SOFT_REGION - 1);
    if (aligned > begin)
        munmap(p, aligned - begin);
    if (begin + size > aligned + SOFT_REGION)
        munmap((void *)(aligned + SOFT_REGION), begin + size - aligned - SOFT_REGION);
    w->mapping = (void *)aligned;
    w->region = (soft_region *)aligned;
    return true;
}

/* Threadgroup memory with nothing mapped around it: an index that is far off faults instead of writing elsewhere. */
static uint8_t *map_arena(void) {
    size_t size = SOFT_ARENA + 2 * (size_t)SOFT_AROUND;
    uint8_t *p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (mprotect(p + SOFT_AROUND, SOFT_ARENA, PROT_READ | PROT_WRITE) == 0)
        return p + SOFT_AROUND;
    munmap(p, size);
    return NULL;
}

bool soft_worker_open(soft_worker *w, soft_device *d, int index, sl_error *err) {
    w->device = d;
    w->index = index;
    if (!map_region(w, err))
        return false;
    w->arena = map_arena();
    w->alternate = malloc(SOFT_STACK);
    if (d->checking)
        w->variable = calloc(SOFT_MAX_VARIABLES, sizeof *w->variable);
    if (!w->arena || !w->alternate || (d->checking && !w->variable))
        return sl_fail(err, SL_ERR_MEMORY, "soft: out of memory for worker %d", index);
    if (!soft_copies_open(w, err))
        return false;
    for (uint32_t i = 0; i < SOFT_MAX_THREADS; i++) {
        soft_fiber *f = &w->region->fiber[i];
        f->thread.group = &w->region->group;
        f->thread.index = i;
        f->thread.lane = i % SOFT_SIMD;
        f->thread.simdgroup = i / SOFT_SIMD;
        f->worker = w;
        f->simd = &w->region->simd[i / SOFT_SIMD];
    }
    return true;
}

void soft_worker_close(soft_worker *w) {
    if (w->mapping)
        munmap(w->mapping, SOFT_REGION);
    if (w->arena)
        munmap(w->arena - SOFT_AROUND, SOFT_ARENA + 2 * (size_t)SOFT_AROUND);
    free(w->alternate);
    free(w->variable);
    free(w->copies);
}

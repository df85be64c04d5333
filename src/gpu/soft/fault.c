/* Faults of kernels: a bad access, a division by zero, a stack that overflows, an endless loop.
 *
 * The handlers are the process's, put in place by each device that opens; what is not on a fibre goes to whoever had
 * the signal before. On a
 * fibre the handler lets the thread continue in `landing`, which gives the group up: the kernel's frames hold nothing
 * that would have to be released. The same way a group is stopped that runs too long, but only while it is in the
 * kernel's own code: the runtime might hold a lock. */
#include "gpu/soft/soft.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
#define CATCHES 1
#include <ucontext.h>
#endif

#ifdef CATCHES

enum { STOP_SIGNAL = SIGURG }; /* ignored by default: harmless if it comes late */

static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, STOP_SIGNAL};
static struct sigaction before[SL_COUNT(signals)];
static pthread_mutex_t installing = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local soft_worker *here;
static _Thread_local stack_t stack_before;
static _Thread_local bool passing_on; /* to a handler that might pass the signal back */

static uintptr_t program_counter(const ucontext_t *u) {
#if defined(__x86_64__)
    return (uintptr_t)u->uc_mcontext.gregs[REG_RIP];
#else
    return (uintptr_t)u->uc_mcontext.pc;
#endif
}

static uintptr_t stack_pointer(const ucontext_t *u) {
#if defined(__x86_64__)
    return (uintptr_t)u->uc_mcontext.gregs[REG_RSP];
#else
    return (uintptr_t)u->uc_mcontext.sp;
#endif
}

static void continue_at(ucontext_t *u, uintptr_t pc, uintptr_t stack) {
#if defined(__x86_64__)
    u->uc_mcontext.gregs[REG_RIP] = (greg_t)pc;
    u->uc_mcontext.gregs[REG_RSP] = (greg_t)(stack - 8);
    u->uc_mcontext.gregs[REG_RBP] = 0;
#else
    u->uc_mcontext.pc = pc;
    u->uc_mcontext.sp = stack;
#endif
}

/* Where a fibre continues after a fault: it gives its group up. */
SOFT_ON_FIBER static void landing(void) {
    soft_abandon(soft_self());
}

static const char *name_fault(const soft_worker *w) {
    uintptr_t low = (soft_stack_top(w, w->fault.thread) & ~(uintptr_t)(SOFT_STACK - 1));
    switch (w->fault.signal) {
    case SIGFPE:
        return "integer division by zero or overflow";
    case SIGILL:
    case SIGTRAP:
        return "a place that cannot be reached (undefined behaviour)";
    default:
        if (w->fault.misaligned)
            return "access to an address that is not aligned for its type, or wild";
        return w->fault.address - low < SOFT_GUARD ? "stack overflow: a thread's variables take more than 112 KiB"
                                                   : "access to an address that is not mapped";
    }
}

/* Checking mode compiles a trap before what goes beyond an array of the thread's own. */
static void report_trap(soft_worker *w, soft_job *job) {
    const soft_fiber *f = &w->region->fiber[w->fault.thread];
    if (!f->beyond)
        soft_check_trap(job->check, f, (const void *)(w->fault.pc + 1));
    atomic_store(&job->failed, true);
    w->fault.signal = 0;
}

void soft_fault_report(soft_worker *w, soft_job *job) {
    char place[300] = "";
    uint32_t p[3];
    if (job->check && (w->fault.signal == SIGILL || w->fault.signal == SIGTRAP))
        report_trap(w, job);
    if (w->fault.signal == 0)
        return;
    const uint32_t *t = w->region->fiber[w->fault.thread].thread.position;
    soft_group_position(job, w->group, p);
    soft_place_of(job->pipeline, w->fault.pc, place, sizeof place);
    soft_job_fail(job, SL_ERR_DEVICE, "%s: %s%s%s (thread (%u,%u,%u) of threadgroup (%u,%u,%u))", job->label, place,
                  place[0] ? ": " : "", name_fault(w), t[0], t[1], t[2], p[0], p[1], p[2]);
    w->fault.signal = 0;
}

static bool in_kernel(const soft_worker *w, uintptr_t pc) {
    const soft_image *image = w->job->pipeline->image;
    return pc >= image->begin && pc < image->end;
}

static uint32_t fiber_of(const soft_worker *w, uintptr_t address) {
    uintptr_t stack = (address - (uintptr_t)w->region) / SOFT_STACK - SOFT_HEADER_STACKS;
    return stack < SOFT_MAX_THREADS ? (uint32_t)stack : SOFT_MAX_THREADS;
}

/* Not a kernel's. */
static void pass_on(int number, siginfo_t *info, void *context) {
    size_t i = 0;
    while (i + 1 < SL_COUNT(signals) && signals[i] != number)
        i++;
    bool back = passing_on, usual = !(before[i].sa_flags & SA_SIGINFO) && before[i].sa_handler == SIG_DFL;
    if (number != STOP_SIGNAL && (usual || back)) {
        signal(number, SIG_DFL); /* it happens again, and ends the process */
        return;
    }
    passing_on = true;
    if (before[i].sa_flags & SA_SIGINFO)
        before[i].sa_sigaction(number, info, context);
    else if (!usual && before[i].sa_handler != SIG_IGN)
        before[i].sa_handler(number);
    passing_on = back;
}

SOFT_ON_FIBER static void on_signal(int number, siginfo_t *info, void *context) {
    ucontext_t *u = context;
    soft_worker *w = here;
    int saved = errno;
    if (w && w->on_fiber) {
        uintptr_t pc = program_counter(u);
        uint32_t index = fiber_of(w, stack_pointer(u));
        bool stop = number == STOP_SIGNAL;
        if (index < SOFT_MAX_THREADS && (!stop || (in_kernel(w, pc) && soft_stopped(w)))) {
            if (!stop) {
                w->fault.signal = number;
                w->fault.address = (uintptr_t)info->si_addr;
                w->fault.pc = pc;
                w->fault.misaligned = number == SIGBUS || (number == SIGSEGV && info->si_code == SI_KERNEL);
                w->fault.thread = index;
                atomic_store(&w->stop, atomic_load(&w->serial));
            }
            continue_at(u, (uintptr_t)landing, soft_stack_top(w, index));
            errno = saved;
            return;
        }
    }
    pass_on(number, info, context);
    errno = saved;
}

void soft_faults_install(void) {
    struct sigaction a = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART | SA_NODEFER}, now;
    a.sa_sigaction = on_signal;
    sigemptyset(&a.sa_mask);
    pthread_mutex_lock(&installing);
    for (size_t i = 0; i < SL_COUNT(signals); i++) {
        if (sigaction(signals[i], NULL, &now) == 0 && now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_signal)
            continue;
        before[i] = now;
        sigaction(signals[i], &a, NULL);
    }
    pthread_mutex_unlock(&installing);
}

void soft_faults_enter(soft_worker *w) {
    stack_t s = {.ss_sp = w->alternate, .ss_size = SOFT_STACK};
    sigset_t none;
    sigaltstack(&s, &stack_before);
    sigemptyset(&none);
    for (size_t i = 0; i < SL_COUNT(signals); i++)
        sigaddset(&none, signals[i]);
    pthread_sigmask(SIG_UNBLOCK, &none, NULL);
    here = w;
}

void soft_faults_leave(soft_worker *w) {
    (void)w;
    here = NULL;
    sigaltstack(&stack_before, NULL);
}

void soft_interrupt(soft_worker *w) {
    pthread_kill(w->thread, STOP_SIGNAL);
}

#else

void soft_faults_install(void) {}

void soft_faults_enter(soft_worker *w) {
    (void)w;
}

void soft_faults_leave(soft_worker *w) {
    (void)w;
}

void soft_fault_report(soft_worker *w, soft_job *job) {
    (void)w;
    (void)job;
}

void soft_interrupt(soft_worker *w) {
    (void)w;
}

#endif

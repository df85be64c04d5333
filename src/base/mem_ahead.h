/* base: the thread that touches slabs before anybody asks for them. Private to the allocator, whose mutex guards all of
 * this. */
#ifndef SL_MEM_AHEAD_H
#define SL_MEM_AHEAD_H

#include "base/base.h"

#include <pthread.h>

typedef struct mem_ahead {
    /* The allocator's side, with the mutex held: a slab to touch (NULL: none is wanted), and what became of it. */
    void *(*begin)(void *self);
    void (*end)(void *self, void *slab, bool touched);
    void *self;
    uint64_t bytes;       /* of a slab */
    uint64_t slabs, most; /* empty ones to keep, while there are fewer than most in all */
    pthread_t thread;
    pthread_cond_t changed;
    bool running; /* the thread is there and has not given up */
    bool started; /* and is still to be joined */
    bool working; /* a slab is being touched */
    int droppers; /* who waits for it to be given up: no other is begun meanwhile */
    _Atomic bool drop, stop;
} mem_ahead;

/* Without the mutex. Where no thread can be had nothing is touched ahead. */
void mem_ahead_start(mem_ahead *a, pthread_mutex_t *mutex);
void mem_ahead_stop(mem_ahead *a, pthread_mutex_t *mutex);
/* With the mutex held. */
void mem_ahead_wake(mem_ahead *a);
/* Has the slab in work given up / waits until it is touched; false: there is none. */
bool mem_ahead_drop(mem_ahead *a, pthread_mutex_t *mutex);
bool mem_ahead_await(mem_ahead *a, pthread_mutex_t *mutex);

#endif

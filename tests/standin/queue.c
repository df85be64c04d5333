/* Queues: a thread each, which runs committed command buffers in order. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static class *queue_class;
static _Thread_local bool own_queue_gone;

double seconds(void) {
    return (double)sl_now_ns() * 1e-9;
}

/* ---- running a command
 * ----------------------------------------------------------------------------------------------- */

static void fail_buffer(command_buffer *b, const char *domain, long number, const char *text) {
    b->error = make_error(domain, number, text);
}

/* Command buffers do not hold what they use: is all of it still there? */
static bool all_there(const command *c) {
    bool gone = (c->pipeline && is_dead(&c->pipeline->base)) || (c->to && is_dead(&c->to->base)) ||
                (c->from && is_dead(&c->from->base)) || (c->event && is_dead(&c->event->base));
    for (size_t i = 0; i < SLOTS; i++)
        gone |= c->slots[i].buffer && is_dead(&c->slots[i].buffer->base);
    if (gone)
        violate("a command buffer runs, and something that it uses is gone");
    return !gone;
}

static bool run_dispatch(command_buffer *b, const command *c) {
    call run = {.constants = c->pipeline->entry->constants};
    char message[1024] = "";
    for (size_t i = 0; i < SLOTS; i++) {
        const slot *s = &c->slots[i];
        run.slots[i] = s->buffer ? s->buffer->bytes + s->offset : s->bytes;
        run.lengths[i] = s->buffer ? s->buffer->length - s->offset : s->length;
        run.threadgroup[i] = c->threadgroup[i];
    }
    memcpy(run.groups, c->groups, sizeof run.groups);
    memcpy(run.threads, c->threads, sizeof run.threads);
    control.dispatches++;
    if (entry_run(c->pipeline->entry, &run, message, sizeof message))
        return true;
    fail_buffer(b, "MTLCommandBufferErrorDomain", 3, message);
    return false;
}

/* False where the queue ends first. */
static bool run_wait(const queue *q, const command *c) {
    while (!q->stopping)
        if (event_wait_bit(c->event, c->value))
            return true;
    return false;
}

static bool run_command(command_buffer *b, const command *c) {
    if (!all_there(c))
        return true;
    switch (c->kind) {
    case DISPATCH:
        return run_dispatch(b, c);
    case COPY:
        memmove(c->to->bytes + c->to_offset, c->from->bytes + c->from_offset, c->bytes);
        return true;
    case FILL:
        memset(c->to->bytes + c->to_offset, c->byte, c->bytes);
        return true;
    case WAIT:
        return run_wait(b->queue, c);
    case SIGNAL:
        control.signals++;
        event_raise(c->event, c->value);
        return true;
    case BARRIER:
        break;
    }
    return true;
}

/* ---- running a command buffer
 * ---------------------------------------------------------------------------------------- */

static bool is_ordered(const command *c) {
    return c->kind == WAIT || c->kind == SIGNAL || c->kind == BARRIER;
}

/* Commands that nothing orders run last first: who relies on an order that is not there finds out. */
static bool run_commands(command_buffer *b) {
    for (size_t begin = 0; begin < b->count;) {
        size_t end = begin;
        while (end < b->count && !is_ordered(&b->commands[end]))
            end++;
        for (size_t i = end; i-- > begin;)
            if (!run_command(b, &b->commands[i]))
                return false;
        if (end < b->count && !run_command(b, &b->commands[end]))
            return false;
        begin = end + 1;
    }
    return true;
}

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
}

static void run_buffer(queue *q, command_buffer *b) {
    while (control.hang && !q->stopping)
        nap();
    b->begin = seconds();
    if (control.fail_list.domain) {
        fail_buffer(b, control.fail_list.domain, control.fail_list.code, control.fail_list.text);
        control.fail_list = (standin_fault){0};
    } else if (!run_commands(b) && !b->error) {
        fail_buffer(b, "MTLCommandBufferErrorDomain", 1, "the queue ended");
    }
    b->end = seconds();
    atomic_fetch_sub(&q->unfinished, 1);
    atomic_store(&b->status, b->error ? 5 : 4);
}

static command_buffer *next_buffer(queue *q) {
    pthread_mutex_lock(&q->lock);
    while (!q->first && !q->stopping)
        pthread_cond_wait(&q->changed, &q->lock);
    command_buffer *b = q->first;
    if (b)
        q->first = b->next;
    pthread_mutex_unlock(&q->lock);
    return b;
}

static void *run_queue(void *argument) {
    queue *q = argument;
    for (command_buffer *b; (b = next_buffer(q));) {
        run_buffer(q, b);
        release_object(&b->base);
        if (own_queue_gone)
            break;
    }
    return NULL;
}

/* ---- queues
 * ---------------------------------------------------------------------------------------------------------- */

void queue_commit(queue *q, command_buffer *b) {
    if (control.residents && !q->has_residency)
        violate("commit to a queue that does not know the residency set");
    b->committed = true;
    atomic_store(&b->status, 2);
    q->any_encoder |= b->any_encoder;
    if (b->fence)
        q->fence = b->fence;
    retain_object(&b->base);
    pthread_mutex_lock(&q->lock);
    if (q->first)
        q->last->next = b;
    else
        q->first = b;
    q->last = b;
    if (!q->started)
        q->started = pthread_create(&q->thread, NULL, run_queue, q) == 0;
    pthread_cond_signal(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

static void queue_gone(object *o) {
    queue *q = (queue *)o;
    pthread_mutex_lock(&q->lock);
    q->stopping = true;
    pthread_cond_signal(&q->changed);
    pthread_mutex_unlock(&q->lock);
    if (q->started && pthread_equal(q->thread, pthread_self())) {
        own_queue_gone = true;
        pthread_detach(q->thread);
    } else if (q->started) {
        pthread_join(q->thread, NULL);
    }
}

object *make_queue(uinteger limit) {
    queue *q = (queue *)make_object(queue_class);
    q->limit = limit;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    return &q->base;
}

static void queue_residency(queue *q, selector s, object *set) {
    if (!set)
        violate("addResidencySet: of nil");
    q->has_residency = true;
}

void register_queue(void) {
    queue_class = make_class("MTLCommandQueue", sizeof(queue), queue_gone);
    add_queue_methods(queue_class);
    add_methods(queue_class, (const method_row[]){{"addResidencySet:", queue_residency}, {0}});
}

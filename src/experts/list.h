/* Private to experts: an intrusive doubly linked list. The link is the first member of what it links, so a link pointer
 * is cast to its owner; every operation is O(1). */
#ifndef SL_EXPERTS_LIST_H
#define SL_EXPERTS_LIST_H

#include <stddef.h>

typedef struct experts_link {
    struct experts_link *prev, *next;
} experts_link;

typedef struct experts_list {
    experts_link *first, *last;
} experts_list;

static inline void experts_list_push_first(experts_list *l, experts_link *n) {
    n->prev = NULL;
    n->next = l->first;
    if (l->first)
        l->first->prev = n;
    else
        l->last = n;
    l->first = n;
}

static inline void experts_list_push_last(experts_list *l, experts_link *n) {
    n->next = NULL;
    n->prev = l->last;
    if (l->last)
        l->last->next = n;
    else
        l->first = n;
    l->last = n;
}

static inline void experts_list_remove(experts_list *l, experts_link *n) {
    if (n->prev)
        n->prev->next = n->next;
    else
        l->first = n->next;
    if (n->next)
        n->next->prev = n->prev;
    else
        l->last = n->prev;
    n->prev = n->next = NULL;
}

/* Puts what is in `front` before what is in l. */
static inline void experts_list_join(experts_list *l, const experts_list *front) {
    if (!front->first)
        return;
    if (l->first) {
        l->first->prev = front->last;
        front->last->next = l->first;
    } else {
        l->last = front->last;
    }
    l->first = front->first;
}

static inline experts_link *experts_list_pop_first(experts_list *l) {
    experts_link *n = l->first;
    if (n)
        experts_list_remove(l, n);
    return n;
}

#endif

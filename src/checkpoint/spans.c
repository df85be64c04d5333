/* Byte ranges in file order, so that neighbours show overlaps and gaps. */
#include "checkpoint/internal.h"

#include <stdlib.h>

static int compare(const void *a, const void *b) {
    const ckpt_span *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    if (x->end != y->end) { /* empty ranges first */
        return x->end < y->end ? -1 : 1;
    }
    return x->index < y->index ? -1 : x->index > y->index;
}

void ckpt_spans_sort(ckpt_span *v, size_t n) {
    if (n > 1) {
        qsort(v, n, sizeof *v, compare);
    }
}

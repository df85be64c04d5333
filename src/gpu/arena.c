/* Memory that goes all at once: a list's commands, a library's tables. */
#include "gpu/core.h"

#include <stdlib.h>

enum { CHUNK = 16 << 10 };

struct gpu_arena_chunk {
    struct gpu_arena_chunk *next;
    size_t used, size;
    _Alignas(16) uint8_t bytes[];
};

void *gpu_arena_take(gpu_arena *a, size_t bytes) {
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + 15) & ~(size_t)15;
    struct gpu_arena_chunk *c = a->chunk;
    if (!c || c->size - c->used < bytes) {
        size_t size = bytes > CHUNK ? bytes : CHUNK;
        c = calloc(1, sizeof *c + size);
        if (!c)
            return NULL;
        c->size = size;
        c->next = a->chunk;
        a->chunk = c;
    }
    void *p = c->bytes + c->used;
    c->used += bytes;
    return p;
}

void gpu_arena_free(gpu_arena *a) {
    for (struct gpu_arena_chunk *c = a->chunk, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    a->chunk = NULL;
}

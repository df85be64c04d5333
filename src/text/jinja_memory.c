/* Arena, error exit, work and depth limits, growing text. */
#include "text/jinja.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ONE_BLOCK_EACH 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define ONE_BLOCK_EACH 1
#endif
#ifndef ONE_BLOCK_EACH
#define ONE_BLOCK_EACH 0 /* sanitized builds give every object its own block, so that overruns are seen */
#endif

#define BLOCK_BYTES (64u << 10)
#define ALIGN       16u

struct jblock {
    struct jblock *next;
    size_t used, size;
    _Alignas(ALIGN) char bytes[];
};

static struct jblock *new_block(jinja *j, size_t bytes) {
    if (bytes > j->limits.memory || j->arena.used > j->limits.memory - bytes)
        jinja_raise(j, "needs more than %zu MiB of memory", j->limits.memory >> 20);
    struct jblock *b = calloc(1, sizeof *b + bytes);
    if (!b)
        jinja_raise(j, "out of memory");
    b->size = bytes;
    j->arena.used += bytes;
    return b;
}

void *jinja_alloc(jinja *j, size_t bytes) {
    if (bytes > j->limits.memory)
        jinja_raise(j, "needs more than %zu MiB of memory", j->limits.memory >> 20);
    jinja_work(j, bytes);
    if (ONE_BLOCK_EACH) {
        struct jblock *own = new_block(j, bytes);
        own->next = j->arena.blocks;
        j->arena.blocks = own;
        return own->bytes;
    }
    bytes = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    struct jblock *top = j->arena.blocks;
    if (top && top->size - top->used >= bytes) {
        void *p = top->bytes + top->used;
        top->used += bytes;
        return p;
    }
    if (bytes > BLOCK_BYTES / 4) { /* a block of its own, behind the one being filled */
        struct jblock *own = new_block(j, bytes);
        own->used = bytes;
        if (top) {
            own->next = top->next;
            top->next = own;
        } else
            j->arena.blocks = own;
        return own->bytes;
    }
    struct jblock *b = new_block(j, BLOCK_BYTES);
    b->next = top;
    b->used = bytes;
    j->arena.blocks = b;
    return b->bytes;
}

void *jinja_alloc_array(jinja *j, size_t n, size_t size) {
    uint64_t bytes;
    if (!sl_mul_u64(n, size, &bytes) || bytes > j->limits.memory)
        jinja_raise(j, "needs more than %zu MiB of memory", j->limits.memory >> 20);
    return jinja_alloc(j, (size_t)bytes);
}

void jinja_arena_free(jarena *a) {
    for (struct jblock *b = a->blocks; b;) {
        struct jblock *next = b->next;
        free(b);
        b = next;
    }
    *a = (jarena){0};
}

void jinja_grow(jinja *j, void **array, size_t *capacity, size_t n, size_t size) {
    if (n < *capacity)
        return;
    size_t bigger = *capacity ? *capacity * 2 : 4;
    void *p = jinja_alloc_array(j, bigger, size);
    if (n)
        memcpy(p, *array, n * size);
    *array = p;
    *capacity = bigger;
}

_Noreturn void jinja_raise(jinja *j, const char *fmt, ...) {
    char message[768];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    sl_fail(j->err, SL_ERR_TEXT, "chat template, line %d: %s", j->line, message);
    longjmp(j->exit, 1);
}

_Noreturn void jinja_raise_text(jinja *j, const char *p, size_t n) {
    sl_fail(j->err, SL_ERR_TEXT, "%.*s", n > 1000 ? 1000 : (int)n, p);
    longjmp(j->exit, 1);
}

void jinja_work(jinja *j, size_t bytes) {
    j->steps += 1 + bytes / 32;
    if (j->steps > j->limits.steps)
        jinja_raise(j, "takes more than %llu steps", (unsigned long long)j->limits.steps);
}

void jinja_check_depth(jinja *j, int depth) {
    if (depth > JINJA_MAX_DATA_DEPTH)
        jinja_raise(j, "a value is nested more than %d deep", JINJA_MAX_DATA_DEPTH);
}

/* ---- text being built ------------------------------------------------------------------------ */

static void reserve(jtext *t, size_t more) {
    if (t->capacity - t->n >= more)
        return;
    jinja *j = t->j;
    if (more > j->limits.output || t->n > j->limits.output - more)
        jinja_raise(j, "a text longer than %zu MiB", j->limits.output >> 20);
    size_t bigger = t->capacity * 2 > t->n + more ? t->capacity * 2 : t->n + more;
    if (bigger < 64)
        bigger = 64;
    char *p = jinja_alloc(j, bigger);
    if (t->n)
        memcpy(p, t->p, t->n);
    t->p = p;
    t->capacity = bigger;
}

void jinja_put(jtext *t, const char *p, size_t n) {
    if (!n)
        return;
    jinja_work(t->j, n);
    reserve(t, n);
    memcpy(t->p + t->n, p, n);
    t->n += n;
}

void jinja_puts(jtext *t, const char *s) {
    jinja_put(t, s, strlen(s));
}

void jinja_put_str(jtext *t, const jstr *s) {
    jinja_put(t, s->p, s->n);
}

void jinja_put_point(jtext *t, int32_t cp) {
    char bytes[4];
    jinja_put(t, bytes, (size_t)sl_utf8_encode(cp, bytes));
}

void jinja_put_repeat(jtext *t, const jstr *s, int64_t count) {
    uint64_t bytes;
    if (count <= 0 || !s->n)
        return;
    if (!sl_mul_u64(s->n, (uint64_t)count, &bytes) || bytes > t->j->limits.output)
        jinja_raise(t->j, "a text longer than %zu MiB", t->j->limits.output >> 20);
    jinja_work(t->j, (size_t)bytes);
    reserve(t, (size_t)bytes);
    for (int64_t i = 0; i < count; i++, t->n += s->n)
        memcpy(t->p + t->n, s->p, s->n);
}

void jinja_putf(jtext *t, const char *fmt, ...) {
    char small[128];
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    if (n >= 0 && (size_t)n < sizeof small)
        jinja_put(t, small, (size_t)n);
    else if (n > 0) {
        reserve(t, (size_t)n + 1);
        jinja_work(t->j, (size_t)n);
        t->n += (size_t)vsnprintf(t->p + t->n, (size_t)n + 1, fmt, again);
    }
    va_end(again);
    va_end(ap);
}

jval jinja_text(jtext *t) {
    return jinja_str_n(t->j, t->n ? t->p : "", t->n);
}

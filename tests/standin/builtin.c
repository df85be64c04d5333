/* Kernels written in C, for tests of what surrounds them: a source that says "// standin: builtin" has those of the
 * table below that it names as "kernel void NAME(". A line with @error in it does not compile. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct builtin {
    const char *name;
    msl_arg args[4];
    size_t arg_count;
    uint32_t max_threads, static_memory;
    bool (*run)(const call *c);
} builtin;

static uint64_t thread_count(const call *c) {
    uint64_t n = 1;
    for (int i = 0; i < 3; i++)
        n *= (uint64_t)c->groups[i] * c->threads[i];
    return n;
}

/* x[i] += 1 for every thread. */
static bool add_one(const call *c) {
    uint32_t *x = c->slots[0];
    for (uint64_t i = 0; i < thread_count(c) && i < c->lengths[0] / 4; i++)
        x[i] += 1;
    return true;
}

/* x[i] = x[i] * scale + add, from bytes or a buffer at slot 30. */
static bool scale(const call *c) {
    float *x = c->slots[0];
    float by[2];
    memcpy(by, c->slots[30], sizeof by);
    for (uint64_t i = 0; i < thread_count(c) && i < c->lengths[0] / 4; i++)
        x[i] = x[i] * by[0] + by[1];
    return true;
}

/* y[i] = x[i], with threadgroup memory at slot 0. */
static bool move(const call *c) {
    uint64_t n = thread_count(c) * 4;
    if (n > c->lengths[0])
        n = c->lengths[0];
    memcpy(c->slots[1], c->slots[0], n < c->lengths[1] ? n : c->lengths[1]);
    return true;
}

/* out[id] = bits of function constant id, all ones where it is not given: 8 of them. */
static bool constants(const call *c) {
    uint32_t *out = c->slots[0];
    for (int i = 0; i < 8; i++) {
        out[i] = c->constants[i].set ? 0 : UINT32_MAX;
        memcpy(&out[i], c->constants[i].bytes, c->constants[i].set ? 4 : 0);
    }
    return true;
}

/* out[0..5] = the dispatch's groups and threads. */
static bool sizes(const call *c) {
    memcpy(c->slots[0], c->groups, sizeof c->groups);
    memcpy((uint8_t *)c->slots[0] + sizeof c->groups, c->threads, sizeof c->threads);
    return true;
}

static bool faults(const call *c) {
    return false;
}

#define ARG(k, s, n, what)                                                                                             \
    { .arg = {.kind = SL_GPU_ARG_##k, .slot = s, .least = n, .name = what}, .condition = -1 }

static const builtin builtins[] = {
    {"sluice_self_test", {ARG(WRITE, 0, 4, "x")}, 1, 0, 0, add_one},
    {"add_one", {ARG(WRITE, 0, 4, "x")}, 1, 0, 0, add_one},
    {"scale", {ARG(WRITE, 0, 4, "x"), ARG(BYTES, 30, 8, "by")}, 2, 0, 0, scale},
    {"move", {ARG(READ, 0, 4, "x"), ARG(WRITE, 1, 4, "y"), ARG(THREADGROUP, 0, 4, "t")}, 3, 64, 16384, move},
    {"constants", {ARG(WRITE, 0, 32, "out")}, 1, 0, 0, constants},
    {"sizes", {ARG(WRITE, 0, 24, "out")}, 1, 0, 0, sizes},
    {"faults", {ARG(WRITE, 0, 4, "x")}, 1, 0, 0, faults},
};

static bool names(const char *source, const char *kernel) {
    char text[64];
    snprintf(text, sizeof text, "kernel void %s(", kernel);
    return strstr(source, text) != NULL;
}

static void say_error(const char *source, char *message, size_t size) {
    int number = 1;
    for (const char *p = source, *end = strstr(source, "@error"); p < end; p++)
        number += *p == '\n';
    origin at = origin_of(source, number);
    snprintf(message, size,
             "Compilation failed: \n\n%s:%d:3: warning: unused variable 'w'\n  int w;\n%s:%d:9: error: use of "
             "undeclared identifier '@error'\n  @error\n  ^\n%s:%d:1: error: another\n",
             at.file, at.line, at.file, at.line, at.file, at.line + 1);
}

static bool builtin_load(code *c, char *message, size_t size) {
    if (strstr(c->source, "@error")) {
        say_error(c->source, message, size);
        return false;
    }
    c->owned = calloc(SL_COUNT(builtins), sizeof *c->owned);
    c->kernels = c->owned;
    for (size_t i = 0; i < SL_COUNT(builtins); i++) {
        const builtin *b = &builtins[i];
        if (names(c->source, b->name))
            c->owned[c->kernel_count++] = (msl_kernel){.name = b->name,
                                                       .entry = b->name,
                                                       .args = b->args,
                                                       .arg_count = b->arg_count,
                                                       .max_threads = b->max_threads};
    }
    return true;
}

static void builtin_unload(code *c) {
    free(c->owned);
}

static bool builtin_enter(code *c, entry *e, char *message, size_t size) {
    for (size_t i = 0; i < SL_COUNT(builtins); i++)
        if (strcmp(builtins[i].name, e->kernel->name) == 0) {
            e->own = (void *)&builtins[i];
            e->static_memory = builtins[i].static_memory;
        }
    return true;
}

static void builtin_leave(entry *e) {}

static bool builtin_run(entry *e, const call *c, char *message, size_t size) {
    snprintf(message, size, "Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)");
    return ((const builtin *)e->own)->run(c);
}

const code_kind builtin_kind = {builtin_load, builtin_unload, builtin_enter, builtin_leave, builtin_run};

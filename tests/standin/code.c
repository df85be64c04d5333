/* What a library holds: built-in kernels or ones for the soft device, by what the source says. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The driver's trial of the compiler service is small enough to need no soft device. */
static bool is_builtin(const char *source) {
    return strstr(source, "// standin: builtin") || strstr(source, "kernel void sluice_self_test(");
}

origin origin_of(const char *source, int number) {
    origin o = {"program_source", 1};
    for (int i = 1; i < number; i++) {
        int line;
        char file[sizeof o.file];
        if (sscanf(source, "#line %d \"%127[^\"]\"", &line, file) == 2) {
            memcpy(o.file, file, sizeof file);
            o.line = line - 1;
        }
        source = strchr(source, '\n');
        if (!source)
            break;
        source++;
        o.line++;
    }
    return o;
}

code *code_new(const char *source, bool fast_math, int language, char *message, size_t size) {
    code *c = calloc(1, sizeof *c);
    if (!c)
        abort();
    c->kind = is_builtin(source) ? &builtin_kind : &soft_kind;
    c->source = sl_strdup(source);
    c->fast_math = fast_math;
    c->language = language;
    if (c->kind->load(c, message, size))
        return c;
    code_free(c);
    return NULL;
}

void code_free(code *c) {
    c->kind->unload(c);
    free(c->source);
    free(c);
}

size_t code_count(const code *c) {
    return c->kernel_count;
}

const char *code_name(const code *c, size_t i) {
    return c->kernels[i].name;
}

const char *code_source(const code *c) {
    return c->source;
}

size_t code_constants(const code *c, const char *kernel) {
    size_t n = strcmp(kernel, "constants") == 0 && !c->module ? 8 : 0;
    if (c->module)
        msl_module_constants(c->module, &n);
    return n < CONSTANTS ? n : CONSTANTS;
}

entry *entry_new(code *c, const char *name, const constant_value *constants, char *message, size_t size) {
    entry *e = calloc(1, sizeof *e);
    if (!e)
        abort();
    e->code = c;
    for (size_t i = 0; i < c->kernel_count; i++)
        if (strcmp(c->kernels[i].name, name) == 0)
            e->kernel = &c->kernels[i];
    memcpy(e->constants, constants, sizeof e->constants);
    e->max_threads = e->kernel ? e->kernel->max_threads : 0;
    if (e->kernel && c->kind->enter(c, e, message, size))
        return e;
    free(e);
    return NULL;
}

void entry_free(entry *e) {
    e->code->kind->leave(e);
    free(e);
}

const msl_kernel *entry_kernel(const entry *e) {
    return e->kernel;
}

/* An optional argument whose constant is not set or false. */
bool entry_argument_unused(const entry *e, size_t i) {
    size_t count = 0;
    int condition = e->kernel->args[i].condition;
    const msl_constant *constants = e->code->module ? msl_module_constants(e->code->module, &count) : NULL;
    if (condition < 0 || (size_t)condition >= count || constants[condition].id >= CONSTANTS)
        return false;
    const constant_value *v = &e->constants[constants[condition].id];
    return !v->set || !v->bytes[0];
}

uint32_t entry_static_memory(const entry *e) {
    return e->static_memory;
}

bool entry_run(entry *e, const call *c, char *message, size_t size) {
    return e->code->kind->run(e, c, message, size);
}

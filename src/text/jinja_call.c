/* Calling: what can be called, and how arguments meet the parameters of built-in functions. */
#include "text/jinja_tree.h"

#include <string.h>

bool jinja_callable(jval v) {
    return v.kind == J_FUNCTION || v.kind == J_MACRO || v.kind == J_LOOP || v.kind == J_JOINER || v.kind == J_UNDEFINED;
}

/* Position of the parameter `name`, -1: none. */
static int parameter(const char *params, const jstr *name) {
    int at = 0;
    if (*params == '/')
        return -1;
    for (const char *p = params; *p; at++) {
        size_t n = strcspn(p, " ");
        if (n == name->n && memcmp(p, name->p, n) == 0)
            return at;
        p += n;
        p += *p == ' ';
    }
    return -1;
}

static size_t count_parameters(const char *params) {
    size_t n = 0;
    for (const char *p = params + (*params == '/'); *p; n++) {
        p += strcspn(p, " ");
        p += *p == ' ';
    }
    return n;
}

static void bind(jinja *j, const jbuiltin *b, const jargs *args, jval *out) {
    size_t n = count_parameters(b->params);
    if (args->n > n)
        jinja_raise(j, "%s takes at most %zu argument(s), not %zu", b->name, n, args->n);
    for (size_t i = 0; i < JINJA_MAX_ARGS; i++)
        out[i] = i < args->n ? args->at[i] : jinja_missing();
    for (size_t i = 0; i < args->named_n; i++) {
        const jstr *name = args->named[i].key.s;
        int at = parameter(b->params, name);
        if (at < 0)
            jinja_raise(j, "%s takes no argument named '%.*s'", b->name, (int)(name->n > 100 ? 100 : name->n), name->p);
        if (out[at].kind != J_MISSING)
            jinja_raise(j, "%s is given '%.*s' twice", b->name, (int)name->n, name->p);
        out[at] = args->named[i].value;
    }
    for (int i = 0; i < b->required; i++)
        if (out[i].kind == J_MISSING)
            jinja_raise(j, "%s needs %d argument(s)", b->name, b->required);
}

jval jinja_call_builtin(jinja *j, const jbuiltin *b, jval self, const jargs *args) {
    jval bound[JINJA_MAX_ARGS];
    if (b->raw)
        return b->raw(j, self, args);
    bind(j, b, args, bound);
    return b->fn(j, self, bound);
}

static jval call_loop(jinja *j, jloop *l, const jargs *args) {
    if (!l->node)
        jinja_raise(j, "loop(...) needs a loop marked 'recursive'");
    if (args->n + args->named_n != 1 || (args->named_n && !jinja_is(args->named[0].key.s, "iterable")))
        jinja_raise(j, "loop(...) takes one iterable");
    return jinja_run_recursive(j, l->env, l->node, args->n ? args->at[0] : args->named[0].value, l->depth0 + 1);
}

static jval call_joiner(jinja *j, jjoiner *joiner, const jargs *args) {
    if (args->n || args->named_n)
        jinja_raise(j, "a joiner takes no arguments");
    bool first = !joiner->used;
    joiner->used = true;
    return first ? jinja_str(j, "") : joiner->separator;
}

jval jinja_call(jinja *j, jval callee, const jargs *args) {
    switch (callee.kind) {
    case J_FUNCTION:
        return jinja_call_builtin(j, callee.fn->builtin, callee.fn->self, args);
    case J_MACRO:
        return jinja_call_macro(j, callee.macro, args);
    case J_LOOP:
        return call_loop(j, callee.loop, args);
    case J_JOINER:
        return call_joiner(j, callee.joiner, args);
    case J_UNDEFINED:
        jinja_raise_undefined(j, callee.u);
    default:
        jinja_raise(j, "a %s cannot be called", jinja_type(callee));
    }
}

static const jval nothing;
const jargs jinja_no_args = {.at = &nothing};

const jbuiltin *jinja_find_builtin(const jbuiltin *table, size_t n, const jstr *name) {
    for (size_t i = 0; i < n; i++)
        if (jinja_is(name, table[i].name))
            return &table[i];
    return NULL;
}

int64_t jinja_arg_int(jinja *j, jval v, const char *what) {
    if (v.kind == J_UNDEFINED)
        jinja_raise_undefined(j, v.u);
    if (v.kind != J_INT && v.kind != J_BOOL)
        jinja_raise(j, "%s must be an int, not a %s", what, jinja_type(v));
    return v.kind == J_BOOL ? v.b : v.i;
}

jstr *jinja_arg_str(jinja *j, jval v, const char *what) {
    if (v.kind != J_STR)
        jinja_raise(j, "%s must be a str, not a %s", what, jinja_type(v));
    return v.s;
}

bool jinja_given(jval v) {
    return v.kind != J_MISSING && v.kind != J_NONE;
}

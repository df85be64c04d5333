/* Attributes and items as the immutable sandbox gives them: v.name prefers the attribute, v[name] the item; what would
 * change a value, and whatever begins with an underscore, is undefined. */
#include "text/jinja_tree.h"

#include <string.h>

static jval function(jinja *j, const jbuiltin *b, jval self) {
    jfunction *f = jinja_alloc(j, sizeof *f);
    *f = (jfunction){.builtin = b, .self = self};
    return (jval){.kind = J_FUNCTION, .fn = f};
}

static jval number_attribute(jval v, const jstr *name) {
    bool real = jinja_is(name, "real");
    if (v.kind == J_FLOAT)
        return real ? v : jinja_is(name, "imag") ? jinja_float(0) : jinja_missing();
    if (real || jinja_is(name, "numerator"))
        return jinja_int(v.kind == J_BOOL ? v.b : v.i);
    if (jinja_is(name, "imag"))
        return jinja_int(0);
    return jinja_is(name, "denominator") ? jinja_int(1) : jinja_missing();
}

static jval range_attribute(const jrange *r, const jstr *name) {
    if (jinja_is(name, "start"))
        return jinja_int(r->start);
    if (jinja_is(name, "stop"))
        return jinja_int(r->stop);
    return jinja_is(name, "step") ? jinja_int(r->step) : jinja_missing();
}

static jval macro_attribute(jinja *j, const jmacro *m, const jstr *name) {
    const jnode *n = m->node;
    if (jinja_is(name, "name"))
        return n->name ? jinja_of_str(n->name->text) : jinja_none();
    if (jinja_is(name, "catch_kwargs"))
        return jinja_bool(n->st->catch_kwargs);
    if (jinja_is(name, "catch_varargs"))
        return jinja_bool(n->st->catch_varargs);
    if (jinja_is(name, "caller"))
        return jinja_bool(n->st->takes_caller);
    if (!jinja_is(name, "arguments"))
        return jinja_missing();
    jval names = jinja_seq_new(j, J_TUPLE, n->items.n);
    for (size_t i = 0; i < n->items.n; i++)
        jinja_push(j, names, jinja_of_str(n->items.at[i]->name->text));
    return names;
}

static jval cycler_attribute(jinja *j, const jcycler *c, const jstr *name) {
    if (jinja_is(name, "current"))
        return c->items->at[c->at];
    if (jinja_is(name, "pos"))
        return jinja_int((int64_t)c->at);
    return jinja_is(name, "items") ? (jval){.kind = J_TUPLE, .seq = c->items} : jinja_missing();
}

static jval own_attribute(jinja *j, jval v, const jstr *name) {
    switch (v.kind) {
    case J_BOOL:
    case J_INT:
    case J_FLOAT:
        return number_attribute(v, name);
    case J_TUPLE:
        if (v.seq->group && jinja_is(name, "grouper"))
            return v.seq->at[0];
        if (v.seq->group && jinja_is(name, "list"))
            return v.seq->at[1];
        return jinja_missing();
    case J_RANGE:
        return range_attribute(v.range, name);
    case J_NAMESPACE: {
        jval *item = jinja_dict_find_str(j, v.d, name);
        return item ? *item : jinja_missing();
    }
    case J_MACRO:
        return macro_attribute(j, v.macro, name);
    case J_LOOP:
        return jinja_loop_attribute(j, v.loop, name);
    case J_CYCLER:
        return cycler_attribute(j, v.cycler, name);
    case J_FUNCTION: {
        bool mutates, is_dict = strcmp(v.fn->builtin->name, "dict") == 0 && jinja_is(name, "fromkeys");
        return is_dict ? function(j, jinja_find_method(J_DICT, name, &mutates), v) : jinja_missing();
    }
    case J_JOINER:
        if (jinja_is(name, "sep"))
            return v.joiner->separator;
        return jinja_is(name, "used") ? jinja_bool(v.joiner->used) : jinja_missing();
    default:
        return jinja_missing();
    }
}

jval jinja_attribute(jinja *j, jval v, const jstr *name) {
    bool mutates = false;
    if (v.kind == J_UNDEFINED)
        jinja_raise_undefined(j, v.u);
    if (name->n && name->p[0] == '_')
        return jinja_missing();
    jval own = own_attribute(j, v, name);
    if (own.kind != J_MISSING)
        return own;
    const jbuiltin *method = jinja_find_method(v.kind, name, &mutates);
    if (mutates)
        return jinja_unsafe(j, name, v);
    return method ? function(j, method, v) : jinja_missing();
}

/* The item, J_MISSING where there is none. */
static jval item(jinja *j, jval v, jval key) {
    if (v.kind == J_UNDEFINED)
        jinja_raise_undefined(j, v.u);
    if (v.kind == J_DICT) {
        jval *found = jinja_hashable(j, key) ? jinja_dict_find(j, v.d, key) : NULL;
        return found ? *found : jinja_missing();
    }
    if (v.kind != J_STR && v.kind != J_LIST && v.kind != J_TUPLE && v.kind != J_RANGE)
        return jinja_missing();
    if (key.kind != J_INT && key.kind != J_BOOL)
        return jinja_missing();
    int64_t n = jinja_length(j, v), i = key.kind == J_BOOL ? key.b : key.i;
    if (i < 0)
        i += n;
    if (i < 0 || i >= n)
        return jinja_missing();
    if (v.kind == J_STR)
        return jinja_substr(j, v.s, jinja_offset(j, v.s, i), jinja_offset(j, v.s, i + 1));
    return v.kind == J_RANGE ? jinja_int(v.range->start + i * v.range->step) : v.seq->at[i];
}

jval jinja_getattr(jinja *j, jval v, const jstr *name) {
    jval found = jinja_attribute(j, v, name);
    if (found.kind == J_MISSING && v.kind == J_DICT)
        found = item(j, v, jinja_of_str(name));
    return found.kind == J_MISSING ? jinja_undefined(j, name, v) : found;
}

jval jinja_getitem(jinja *j, jval v, jval key) {
    jval found = item(j, v, key);
    if (found.kind == J_MISSING && key.kind == J_STR)
        found = jinja_attribute(j, v, key.s);
    if (found.kind != J_MISSING)
        return found;
    return jinja_undefined(j, jinja_soft_str(j, key), v);
}

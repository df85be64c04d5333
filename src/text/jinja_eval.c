/* Expressions to values. */
#include "text/jinja_tree.h"

#include <string.h>

jval *jinja_slot(jenv *env, jref ref) {
    for (uint32_t i = 0; i < ref.hops; i++)
        env = env->outer;
    return &env->slots[ref.slot];
}

static jval eval_name(jinja *j, jenv *env, const jnode *n) {
    jval v = *jinja_slot(env, n->ref);
    return v.kind == J_MISSING ? jinja_undefined(j, n->name->text, jinja_missing()) : v;
}

static jval eval_items(jinja *j, jenv *env, const jnode *n, jkind kind) {
    jval seq = jinja_seq_new(j, kind, n->items.n);
    for (size_t i = 0; i < n->items.n; i++)
        jinja_push(j, seq, jinja_eval(j, env, n->items.at[i]));
    return seq;
}

static jval eval_dict(jinja *j, jenv *env, const jnode *n) {
    jdict *d = jinja_dict_new(j);
    for (size_t i = 0; i + 1 < n->items.n; i += 2) {
        jval key = jinja_eval(j, env, n->items.at[i]);
        jinja_dict_put(j, d, key, jinja_eval(j, env, n->items.at[i + 1]));
    }
    return jinja_of_dict(d);
}

static jval eval_cond(jinja *j, jenv *env, const jnode *n) {
    if (jinja_truth(j, jinja_eval(j, env, n->a)))
        return jinja_eval(j, env, n->b);
    if (n->c)
        return jinja_eval(j, env, n->c);
    return jinja_undefined_hint(j, "the value of an 'if' without 'else' whose condition is false");
}

static jval eval_concat(jinja *j, jenv *env, const jnode *n) {
    jval *parts = jinja_alloc_array(j, n->items.n, sizeof *parts);
    for (size_t i = 0; i < n->items.n; i++)
        parts[i] = jinja_eval(j, env, n->items.at[i]);
    jstr *all = jinja_to_str(j, parts[0]);
    for (size_t i = 1; i < n->items.n; i++)
        all = jinja_concat(j, all, jinja_to_str(j, parts[i]), false).s;
    return jinja_of_str(all);
}

/* a < b < c: each value once, up to the first that fails. */
static jval eval_compare(jinja *j, jenv *env, const jnode *n) {
    jval left = jinja_eval(j, env, n->a);
    for (size_t i = 0; i < n->items.n; i++) {
        jval right = jinja_eval(j, env, n->items.at[i]->a);
        j->line = n->line;
        if (!jinja_compare(j, n->items.at[i]->op, left, right))
            return jinja_bool(false);
        left = right;
    }
    return jinja_bool(true);
}

static jval eval_or_none(jinja *j, jenv *env, const jnode *n) {
    return n ? jinja_eval(j, env, n) : jinja_none();
}

static jval eval_getitem(jinja *j, jenv *env, const jnode *n) {
    jval v = jinja_eval(j, env, n->a);
    if (n->b->kind != JN_SLICE) {
        jval key = jinja_eval(j, env, n->b);
        j->line = n->line;
        return jinja_getitem(j, v, key);
    }
    jval from = eval_or_none(j, env, n->b->a), to = eval_or_none(j, env, n->b->b), step = eval_or_none(j, env, n->b->c);
    j->line = n->line;
    return jinja_slice(j, v, from, to, step);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void put_named(jinja *j, jdict *named, jval name, jval value) {
    if (name.kind != J_STR)
        jinja_raise(j, "the names in ** must be str, not %s", jinja_type(name));
    if (jinja_dict_find(j, named, name))
        jinja_raise(j, "the argument '%.*s' is given twice", (int)(name.s->n > 100 ? 100 : name.s->n), name.s->p);
    jinja_dict_put(j, named, name, value);
}

static void put_star2(jinja *j, jdict *named, jval from) {
    if (from.kind == J_UNDEFINED)
        jinja_raise_undefined(j, from.u);
    if (from.kind != J_DICT)
        jinja_raise(j, "** needs a mapping, not a %s", jinja_type(from));
    for (size_t i = 0; i < from.d->n; i++)
        put_named(j, named, from.d->at[i].key, from.d->at[i].value);
}

void jinja_eval_args(jinja *j, jenv *env, const jnode *n, jval caller, jargs *out) {
    jval list = eval_items(j, env, n, J_LIST);
    const jcallargs *args = n->args;
    *out = (jargs){.at = list.seq->at, .n = list.seq->n};
    if (!args && caller.kind == J_MISSING)
        return;
    jdict *named = jinja_dict_new(j);
    for (size_t i = 0; args && i < args->named_n; i++)
        jinja_dict_put(j, named, jinja_of_str(args->named[i].name), jinja_eval(j, env, args->named[i].value));
    if (caller.kind != J_MISSING)
        jinja_dict_put(j, named, jinja_str(j, "caller"), caller);
    if (args && args->star) {
        jiter *it = jinja_iter(j, jinja_eval(j, env, args->star));
        for (jval item; jinja_next(j, it, &item);)
            jinja_push(j, list, item);
    }
    if (args && args->star2)
        put_star2(j, named, jinja_eval(j, env, args->star2));
    *out = (jargs){.at = list.seq->at, .n = list.seq->n, .named = named->at, .named_n = named->n};
}

static jval eval_call(jinja *j, jenv *env, const jnode *n) {
    jargs args;
    jval callee = jinja_eval(j, env, n->a);
    jinja_eval_args(j, env, n, jinja_missing(), &args);
    j->line = n->line;
    return jinja_call(j, callee, &args);
}

static jval apply(jinja *j, jenv *env, const jnode *n, jval input) {
    jargs args;
    jinja_eval_args(j, env, n, jinja_missing(), &args);
    j->line = n->line;
    if (!n->builtin)
        jinja_raise(j, "unknown %s '%.*s'", n->kind == JN_FILTER ? "filter" : "test",
                    (int)(n->attr->n > 100 ? 100 : n->attr->n), n->attr->p);
    return jinja_call_builtin(j, n->builtin, input, &args);
}

/* Filters of a block: the innermost one gets its text. */
jval jinja_filter_text(jinja *j, jenv *env, const jnode *n, jval text) {
    if (n->a)
        text = jinja_filter_text(j, env, n->a, text);
    return apply(j, env, n, text);
}

/* ---- all ------------------------------------------------------------------------------------- */

static jval eval_binary(jinja *j, jenv *env, const jnode *n) {
    jval a = jinja_eval(j, env, n->a), b = jinja_eval(j, env, n->b);
    j->line = n->line;
    return jinja_binary(j, n->op, a, b);
}

static jval eval_unary(jinja *j, jenv *env, const jnode *n) {
    jval v = jinja_eval(j, env, n->a);
    j->line = n->line;
    if (n->kind == JN_NOT)
        return jinja_bool(!jinja_truth(j, v));
    return n->kind == JN_NEG ? jinja_negate(j, v) : jinja_positive(j, v);
}

static jval eval_getattr(jinja *j, jenv *env, const jnode *n) {
    jval v = jinja_eval(j, env, n->a);
    j->line = n->line;
    return jinja_getattr(j, v, n->attr);
}

static jval eval_either(jinja *j, jenv *env, const jnode *n) {
    jval v = jinja_eval(j, env, n->a);
    return jinja_truth(j, v) == (n->kind == JN_OR) ? v : jinja_eval(j, env, n->b);
}

static jval eval(jinja *j, jenv *env, const jnode *n) {
    switch (n->kind) {
    case JN_CONST:
        return n->value;
    case JN_NAME:
        return eval_name(j, env, n);
    case JN_TUPLE:
        return eval_items(j, env, n, J_TUPLE);
    case JN_LIST:
        return eval_items(j, env, n, J_LIST);
    case JN_DICT:
        return eval_dict(j, env, n);
    case JN_COND:
        return eval_cond(j, env, n);
    case JN_BINARY:
        return eval_binary(j, env, n);
    case JN_AND:
    case JN_OR:
        return eval_either(j, env, n);
    case JN_NOT:
    case JN_NEG:
    case JN_POS:
        return eval_unary(j, env, n);
    case JN_CONCAT:
        return eval_concat(j, env, n);
    case JN_COMPARE:
        return eval_compare(j, env, n);
    case JN_GETATTR:
        return eval_getattr(j, env, n);
    case JN_GETITEM:
        return eval_getitem(j, env, n);
    case JN_CALL:
        return eval_call(j, env, n);
    case JN_FILTER:
    case JN_TEST:
        return apply(j, env, n, jinja_eval(j, env, n->a));
    default:
        jinja_raise(j, "this is no expression");
    }
}

jval jinja_eval(jinja *j, jenv *env, const jnode *n) {
    jinja_work(j, 0);
    if (n->kind == JN_CONST)
        return n->value;
    j->line = n->line;
    if (++j->depth > JINJA_MAX_DEPTH)
        jinja_raise(j, "evaluation more than %d levels deep", JINJA_MAX_DEPTH);
    jval v = eval(j, env, n);
    j->depth--;
    return v;
}

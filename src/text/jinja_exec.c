/* Statements to text. */
#include "text/jinja_tree.h"

#include <string.h>

/* ---- variables ------------------------------------------------------------------------------- */

jenv *jinja_env(jinja *j, const jfn *fn, jenv *outer) {
    jenv *env = jinja_alloc(j, sizeof *env + fn->slots * sizeof env->slots[0]); /* zeroed: J_MISSING */
    env->outer = outer;
    return env;
}

jval jinja_resolve_name(jinja *j, const jstr *name) {
    jval *v = jinja_dict_find_str(j, j->exported, name);
    if (!v)
        v = jinja_dict_find_str(j, j->globals, name);
    return v ? *v : jinja_global(j, name);
}

void jinja_enter(jinja *j, jenv *env, const jscope *s) {
    for (size_t i = 0; i < s->n; i++) {
        const jload *l = &s->at[i];
        jinja_work(j, 0);
        if (l->kind == JLOAD_RESOLVE)
            env->slots[l->slot] = jinja_resolve_name(j, l->name);
        else if (l->kind == JLOAD_ALIAS)
            env->slots[l->slot] = *jinja_slot(env, l->from);
        else if (l->kind == JLOAD_UNDEFINED)
            env->slots[l->slot] = jinja_missing();
    }
}

void jinja_leave(jenv *env, const jscope *s) {
    for (size_t i = 0; i < s->n; i++)
        env->slots[s->at[i].slot] = jinja_missing();
}

static void unpack(jinja *j, jenv *env, const jnode *target, jval v) {
    jiter *it = jinja_iter(j, v);
    size_t want = target->items.n;
    jval *values = jinja_alloc_array(j, want, sizeof *values), extra;
    for (size_t i = 0; i < want; i++)
        if (!jinja_next(j, it, &values[i]))
            jinja_raise(j, "%zu values for %zu names", i, want);
    if (jinja_next(j, it, &extra))
        jinja_raise(j, "more than %zu values for as many names", want);
    for (size_t i = 0; i < want; i++)
        jinja_assign(j, env, target->items.at[i], values[i]);
}

void jinja_assign(jinja *j, jenv *env, const jnode *target, jval v) {
    if (target->kind == JN_TUPLE) {
        unpack(j, env, target, v);
        return;
    }
    jval *slot = jinja_slot(env, target->ref);
    if (target->kind == JN_NAME) {
        *slot = v;
        return;
    }
    if (slot->kind != J_NAMESPACE)
        jinja_raise(j, "'%.*s' is no namespace: its attribute '%.*s' cannot be set",
                    (int)(target->name->text->n > 100 ? 100 : target->name->text->n), target->name->text->p,
                    (int)(target->attr->n > 100 ? 100 : target->attr->n), target->attr->p);
    if (target->attr->p[0] == '_')
        jinja_raise(j, "a namespace's attribute may not begin with '_'");
    jinja_dict_put(j, slot->d, jinja_of_str(target->attr), v);
}

/* Is every namespace that the target names one? Asked before the value is evaluated. */
static void check_namespaces(jinja *j, jenv *env, const jnode *target) {
    if (target->kind == JN_NSREF && jinja_slot(env, target->ref)->kind != J_NAMESPACE)
        jinja_assign(j, env, target, jinja_none());
    for (size_t i = 0; i < target->items.n; i++)
        check_namespaces(j, env, target->items.at[i]);
}

/* Blocks see what the top level set. */
static void export_names(jinja *j, jenv *env, const jnode *target) {
    if (target->kind == JN_NAME)
        jinja_dict_put(j, j->exported, jinja_of_str(target->name->text), *jinja_slot(env, target->ref));
    for (size_t i = 0; i < target->items.n; i++)
        export_names(j, env, target->items.at[i]);
}

/* ---- output ---------------------------------------------------------------------------------- */

void jinja_out(jinja *j, const char *p, size_t n) {
    jinja_work(j, n);
    if (n > j->limits.output || j->out.size > j->limits.output - n)
        jinja_raise(j, "a text longer than %zu MiB", j->limits.output >> 20);
    if (!sl_buf_append(&j->out, p, n))
        jinja_raise(j, "out of memory");
}

jval jinja_capture(jinja *j, size_t mark) {
    size_t n = j->out.size - mark;
    char *p = jinja_alloc(j, n + 1);
    if (n)
        memcpy(p, j->out.data + mark, n);
    j->out.size = mark;
    if (j->out.data)
        j->out.data[mark] = '\0';
    return jinja_str_n(j, p, n);
}

static void exec_output(jinja *j, jenv *env, const jnode *n) {
    for (size_t i = 0; i < n->items.n; i++) {
        jval v = jinja_eval(j, env, n->items.at[i]);
        const jstr *s = jinja_soft_str(j, v);
        jinja_out(j, s->p, s->n);
    }
}

/* ---- macros ---------------------------------------------------------------------------------- */

jval jinja_make_macro(jinja *j, jenv *env, const jnode *n) {
    jmacro *m = jinja_alloc(j, sizeof *m);
    *m = (jmacro){.node = n, .env = env};
    return (jval){.kind = J_MACRO, .macro = m};
}

/* Named arguments meet the parameters that positional ones left; what remains goes to kwargs or is an error. */
static void bind_named(jinja *j, const jmacro *m, const jargs *args, jenv *env) {
    const jnode *n = m->node;
    const jstatement *st = n->st;
    jdict *rest = jinja_dict_new(j);
    for (size_t i = 0; i < args->named_n; i++)
        jinja_dict_put(j, rest, args->named[i].key, args->named[i].value);
    jdict *kwargs = jinja_dict_new(j);
    jval caller = jinja_missing();
    for (size_t i = 0; i < rest->n; i++) {
        const jstr *name = rest->at[i].key.s;
        jval value = rest->at[i].value;
        size_t at = args->n;
        while (at < n->items.n && !jinja_same(n->items.at[at]->name->text, name)) {
            jinja_work(j, 0);
            at++;
        }
        if (at < n->items.n)
            env->slots[n->items.at[at]->ref.slot] = value;
        else if (st->takes_caller && !st->explicit_caller && jinja_is(name, "caller"))
            caller = value;
        else
            jinja_dict_put(j, kwargs, rest->at[i].key, value);
    }
    if (st->takes_caller && !st->explicit_caller) {
        if (caller.kind == J_MISSING || caller.kind == J_NONE)
            caller = jinja_undefined_hint(j, "no caller defined");
        env->slots[st->caller_slot] = caller;
    }
    if (st->catch_kwargs)
        env->slots[st->kwargs_slot] = jinja_of_dict(kwargs);
    else if (kwargs->n) {
        const jstr *name = kwargs->at[0].key.s;
        jinja_raise(j, "the macro takes no argument named '%.*s'", (int)(name->n > 100 ? 100 : name->n), name->p);
    }
}

static void bind_macro(jinja *j, const jmacro *m, const jargs *args, jenv *env) {
    const jnode *n = m->node;
    size_t parameters = n->items.n, positional = args->n < parameters ? args->n : parameters;
    for (size_t i = 0; i < positional; i++)
        env->slots[n->items.at[i]->ref.slot] = args->at[i];
    bind_named(j, m, args, env);
    if (n->st->catch_varargs)
        env->slots[n->st->varargs_slot] = jinja_tuple(j, args->at + positional, args->n - positional);
    else if (args->n > parameters)
        jinja_raise(j, "the macro takes at most %zu argument(s), not %zu", parameters, args->n);
}

static void put_defaults(jinja *j, const jnode *n, jenv *env) {
    size_t first = n->items.n - n->st->other.n;
    for (size_t i = 0; i < n->items.n; i++) {
        jval *slot = &env->slots[n->items.at[i]->ref.slot];
        if (slot->kind != J_MISSING)
            continue;
        *slot = i >= first ? jinja_eval(j, env, n->st->other.at[i - first])
                           : jinja_undefined(j, n->items.at[i]->name->text, jinja_missing());
    }
}

jval jinja_call_macro(jinja *j, const jmacro *m, const jargs *args) {
    const jnode *n = m->node;
    size_t mark = j->out.size;
    if (++j->calls > JINJA_MAX_CALLS)
        jinja_raise(j, "macros called more than %d deep in each other", JINJA_MAX_CALLS);
    jenv *env = jinja_env(j, n->st->fn, m->env);
    bind_macro(j, m, args, env);
    jinja_enter(j, env, &n->st->scope);
    put_defaults(j, n, env);
    jinja_exec(j, env, &n->st->body);
    j->calls--;
    return jinja_capture(j, mark);
}

static void exec_call_block(jinja *j, jenv *env, const jnode *n) {
    jargs args = jinja_no_args;
    jval body = jinja_make_macro(j, env, n), text;
    if (!n->a) /* {% generation %} */
        text = jinja_call(j, body, &args);
    else {
        jval callee = jinja_eval(j, env, n->a->a);
        jinja_eval_args(j, env, n->a, body, &args);
        j->line = n->line;
        text = jinja_call(j, callee, &args);
    }
    const jstr *s = jinja_soft_str(j, text);
    jinja_out(j, s->p, s->n);
}

/* ---- statements ------------------------------------------------------------------------------ */

static jflow exec_if(jinja *j, jenv *env, const jnode *n) {
    if (jinja_truth(j, jinja_eval(j, env, n->a)))
        return jinja_exec(j, env, &n->st->body);
    for (size_t i = 0; i < n->items.n; i++)
        if (jinja_truth(j, jinja_eval(j, env, n->items.at[i]->a)))
            return jinja_exec(j, env, &n->items.at[i]->st->body);
    return jinja_exec(j, env, &n->st->other);
}

static void exec_set(jinja *j, jenv *env, const jnode *n) {
    check_namespaces(j, env, n->st->target);
    jval v = jinja_eval(j, env, n->a);
    j->line = n->line;
    jinja_assign(j, env, n->st->target, v);
    if (n->st->exported)
        export_names(j, env, n->st->target);
}

static jflow exec_set_block(jinja *j, jenv *env, const jnode *n) {
    size_t mark = j->out.size;
    jinja_enter(j, env, &n->st->scope);
    jflow flow = jinja_exec(j, env, &n->st->body);
    jval text = jinja_capture(j, mark);
    if (flow != JFLOW_NEXT)
        return flow;
    if (n->a)
        text = jinja_filter_text(j, env, n->a, text);
    jinja_assign(j, env, n->st->target, text);
    jinja_leave(env, &n->st->scope);
    if (n->st->exported)
        export_names(j, env, n->st->target);
    return JFLOW_NEXT;
}

static jflow exec_filter_block(jinja *j, jenv *env, const jnode *n) {
    size_t mark = j->out.size;
    jinja_enter(j, env, &n->st->scope);
    jflow flow = jinja_exec(j, env, &n->st->body);
    jval text = jinja_capture(j, mark);
    if (flow != JFLOW_NEXT)
        return flow;
    const jstr *s = jinja_soft_str(j, jinja_filter_text(j, env, n->a, text));
    jinja_out(j, s->p, s->n);
    jinja_leave(env, &n->st->scope);
    return JFLOW_NEXT;
}

static jflow exec_with(jinja *j, jenv *env, const jnode *n) {
    jinja_enter(j, env, &n->st->scope);
    for (size_t i = 0; i < n->items.n; i++)
        jinja_assign(j, env, n->items.at[i], jinja_eval(j, env, n->st->other.at[i]));
    jflow flow = jinja_exec(j, env, &n->st->body);
    jinja_leave(env, &n->st->scope);
    return flow;
}

static void exec_macro(jinja *j, jenv *env, const jnode *n) {
    jval m = jinja_make_macro(j, env, n);
    *jinja_slot(env, n->ref) = m;
    if (n->st->exported)
        jinja_dict_put(j, j->exported, jinja_of_str(n->name->text), m);
}

static void exec_block(jinja *j, const jnode *n) {
    jenv *env = jinja_env(j, n->st->fn, NULL);
    jinja_enter(j, env, &n->st->scope);
    jinja_exec(j, env, &n->st->body);
}

static jflow exec_one(jinja *j, jenv *env, const jnode *n) {
    switch (n->kind) {
    case JN_OUTPUT:
        exec_output(j, env, n);
        return JFLOW_NEXT;
    case JN_IF:
        return exec_if(j, env, n);
    case JN_FOR:
        return jinja_exec_for(j, env, n);
    case JN_SET:
        exec_set(j, env, n);
        return JFLOW_NEXT;
    case JN_SET_BLOCK:
        return exec_set_block(j, env, n);
    case JN_MACRO:
        exec_macro(j, env, n);
        return JFLOW_NEXT;
    case JN_CALL_BLOCK:
        exec_call_block(j, env, n);
        return JFLOW_NEXT;
    case JN_FILTER_BLOCK:
        return exec_filter_block(j, env, n);
    case JN_WITH:
        return exec_with(j, env, n);
    case JN_BLOCK:
        exec_block(j, n);
        return JFLOW_NEXT;
    case JN_BREAK:
        return JFLOW_BREAK;
    default:
        return JFLOW_CONTINUE;
    }
}

jflow jinja_exec(jinja *j, jenv *env, const jnodes *body) {
    jflow flow = JFLOW_NEXT;
    if (++j->depth > JINJA_MAX_DEPTH)
        jinja_raise(j, "evaluation more than %d levels deep", JINJA_MAX_DEPTH);
    for (size_t i = 0; i < body->n && flow == JFLOW_NEXT; i++) {
        jinja_work(j, 0);
        j->line = body->at[i]->line;
        flow = exec_one(j, env, body->at[i]);
    }
    j->depth--;
    return flow;
}

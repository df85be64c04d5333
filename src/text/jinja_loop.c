/* for: iterating, the loop variable, the filter behind the iterable, recursion. */
#include "text/jinja_tree.h"

#include <string.h>

/* ---- the loop variable ----------------------------------------------------------------------- */

static bool peek(jinja *j, jloop *l) {
    if (l->after.kind == J_MISSING && !jinja_next(j, l->it, &l->after))
        l->after = jinja_missing();
    return l->after.kind != J_MISSING;
}

bool jinja_loop_next(jinja *j, jloop *l, jval *out) {
    if (!peek(j, l))
        return false;
    l->index0++;
    l->before = l->current;
    l->current = *out = l->after;
    l->after = jinja_missing();
    return true;
}

/* Of a generator: reads the rest of it. */
int64_t jinja_loop_length(jinja *j, jloop *l) {
    if (l->length >= 0)
        return l->length;
    l->length = l->iterable.kind == J_MISSING ? -1 : jinja_length(j, l->iterable);
    if (l->length < 0) {
        jval rest = jinja_to_list(j, jinja_of_iter(l->it));
        l->it = jinja_iter(j, rest);
        l->length = (int64_t)rest.seq->n + l->index0 + 1 + (l->after.kind != J_MISSING);
    }
    return l->length;
}

jval jinja_loop_attribute(jinja *j, jloop *l, const jstr *name) {
    if (jinja_is(name, "index"))
        return jinja_int(l->index0 + 1);
    if (jinja_is(name, "index0"))
        return jinja_int(l->index0);
    if (jinja_is(name, "first"))
        return jinja_bool(l->index0 == 0);
    if (jinja_is(name, "last"))
        return jinja_bool(!peek(j, l));
    if (jinja_is(name, "length"))
        return jinja_int(jinja_loop_length(j, l));
    if (jinja_is(name, "revindex"))
        return jinja_int(jinja_loop_length(j, l) - l->index0);
    if (jinja_is(name, "revindex0"))
        return jinja_int(jinja_loop_length(j, l) - l->index0 - 1);
    if (jinja_is(name, "depth"))
        return jinja_int(l->depth0 + 1);
    if (jinja_is(name, "depth0"))
        return jinja_int(l->depth0);
    if (jinja_is(name, "previtem"))
        return l->index0 == 0 ? jinja_undefined_hint(j, "there is no previous item") : l->before;
    if (jinja_is(name, "nextitem"))
        return peek(j, l) ? l->after : jinja_undefined_hint(j, "there is no next item");
    return jinja_missing();
}

/* ---- for x in y if test ---------------------------------------------------------------------- */

typedef struct filtered {
    const jnode *loop;
    jenv *env; /* the test's own variables */
} filtered;

static bool next_filtered(jinja *j, jiter *it, jval *out) {
    filtered *f = it->state;
    while (jinja_next(j, it->in, out)) {
        jinja_assign(j, f->env, f->loop->st->test_target, *out);
        if (jinja_truth(j, jinja_eval(j, f->env, f->loop->b)))
            return true;
    }
    return false;
}

static jiter *filter_items(jinja *j, jenv *around, const jnode *n, jval iterable) {
    filtered *f = jinja_alloc(j, sizeof *f);
    *f = (filtered){.loop = n, .env = jinja_env(j, n->st->test_fn, around)};
    jinja_enter(j, f->env, &n->st->test_scope);
    jiter *it = jinja_iter_new(j, "generator", next_filtered, jinja_iter(j, iterable));
    it->state = f;
    return it;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* env: the loop's variables; around: those of the function that it stands in. */
static void run(jinja *j, jenv *env, jenv *around, const jnode *n, jval iterable, int64_t depth0, jflow *flow) {
    const jstatement *st = n->st;
    jloop *l = jinja_alloc(j, sizeof *l);
    bool completed = false; /* a round ran to its end: break and continue are not that, as in jinja2 */
    *l = (jloop){.iterable = n->b ? jinja_missing() : iterable, .index0 = -1, .length = -1, .depth0 = depth0};
    if (st->recursive) {
        l->node = n;
        l->env = around;
    }
    l->it = n->b ? filter_items(j, around, n, iterable) : jinja_iter(j, iterable);
    if (st->extended)
        env->slots[st->loop_slot] = (jval){.kind = J_LOOP, .loop = l};
    for (jval item; jinja_loop_next(j, l, &item);) {
        jinja_assign(j, env, st->target, item);
        jinja_enter(j, env, &st->scope);
        *flow = jinja_exec(j, env, &st->body);
        if (*flow == JFLOW_BREAK)
            break;
        completed |= *flow == JFLOW_NEXT;
    }
    *flow = JFLOW_NEXT;
    jinja_leave(env, &st->scope);
    if (completed || !st->other.n)
        return;
    jinja_enter(j, env, &st->else_scope);
    *flow = jinja_exec(j, env, &st->other);
    jinja_leave(env, &st->else_scope);
}

jval jinja_run_recursive(jinja *j, jenv *around, const jnode *n, jval iterable, int64_t depth0) {
    size_t mark = j->out.size;
    jflow flow;
    if (++j->calls > JINJA_MAX_CALLS)
        jinja_raise(j, "loops more than %d deep in each other", JINJA_MAX_CALLS);
    run(j, jinja_env(j, n->st->fn, around), around, n, iterable, depth0, &flow);
    j->calls--;
    return jinja_capture(j, mark);
}

jflow jinja_exec_for(jinja *j, jenv *env, const jnode *n) {
    jflow flow = JFLOW_NEXT;
    jval iterable = jinja_eval(j, env, n->a);
    j->line = n->line;
    if (n->st->recursive) {
        jval text = jinja_run_recursive(j, env, n, iterable, 0);
        jinja_out(j, text.s->p, text.s->n);
    } else
        run(j, env, env, n, iterable, 0, &flow);
    return flow;
}

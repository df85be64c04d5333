/* Functions that every template can call: range, dict, namespace, cycler, joiner, raise_exception, strftime_now. */
#include "text/jinja.h"

#include <string.h>
#include <time.h>

/* range(stop), range(start, stop[, step]) */
static jval global_range(jinja *j, jval self, const jargs *args) {
    int64_t v[3] = {0, 0, 1};
    if (args->named_n || args->n < 1 || args->n > 3)
        jinja_raise(j, "range takes 1 to 3 arguments, none by name");
    for (size_t i = 0; i < args->n; i++)
        v[args->n == 1 ? 1 : i] = jinja_arg_int(j, args->at[i], "range: an argument");
    if (v[2] == 0)
        jinja_raise(j, "range with step 0");
    jrange *r = jinja_alloc(j, sizeof *r);
    *r = (jrange){.start = v[0], .stop = v[1], .step = v[2]};
    uint64_t span = v[2] > 0 ? (uint64_t)v[1] - (uint64_t)v[0] : (uint64_t)v[0] - (uint64_t)v[1];
    uint64_t step = v[2] > 0 ? (uint64_t)v[2] : -(uint64_t)v[2];
    bool empty = v[2] > 0 ? v[0] >= v[1] : v[0] <= v[1];
    uint64_t n = empty ? 0 : (span - 1) / step + 1;
    if (n > JINJA_MAX_RANGE)
        jinja_raise(j, "range of %llu numbers; the limit is %d", (unsigned long long)n, JINJA_MAX_RANGE);
    r->n = (int64_t)n;
    return (jval){.kind = J_RANGE, .range = r};
}

static void put_pairs(jinja *j, jdict *d, jval pairs) {
    jiter *it = jinja_iter(j, pairs);
    for (jval pair; jinja_next(j, it, &pair);) {
        jval list = jinja_to_list(j, pair);
        if (list.seq->n != 2)
            jinja_raise(j, "dict needs pairs, not %zu values", list.seq->n);
        jinja_dict_put(j, d, list.seq->at[0], list.seq->at[1]);
    }
}

/* What dict(mapping or pairs, name=value...) makes. */
static jdict *make_dict(jinja *j, const jargs *args) {
    jdict *d = jinja_dict_new(j);
    if (args->n > 1)
        jinja_raise(j, "dict takes at most one argument without a name");
    if (args->n && args->at[0].kind == J_UNDEFINED)
        jinja_raise_undefined(j, args->at[0].u);
    if (args->n && args->at[0].kind == J_DICT) {
        const jdict *from = args->at[0].d;
        for (size_t i = 0; i < from->n; i++)
            jinja_dict_put(j, d, from->at[i].key, from->at[i].value);
    } else if (args->n)
        put_pairs(j, d, args->at[0]);
    for (size_t i = 0; i < args->named_n; i++)
        jinja_dict_put(j, d, args->named[i].key, args->named[i].value);
    return d;
}

static jval global_dict(jinja *j, jval self, const jargs *args) {
    return jinja_of_dict(make_dict(j, args));
}

static jval global_namespace(jinja *j, jval self, const jargs *args) {
    jdict *d = make_dict(j, args);
    for (size_t i = 0; i < d->n; i++) {
        jval key = d->at[i].key;
        if (key.kind == J_STR && key.s->n && key.s->p[0] == '_')
            jinja_raise(j, "a namespace's attribute may not begin with '_'");
    }
    return (jval){.kind = J_NAMESPACE, .d = d};
}

static jval global_cycler(jinja *j, jval self, const jargs *args) {
    if (!args->n || args->named_n)
        jinja_raise(j, "cycler needs items, none by name");
    jcycler *c = jinja_alloc(j, sizeof *c);
    c->items = jinja_tuple(j, args->at, args->n).seq;
    return (jval){.kind = J_CYCLER, .cycler = c};
}

static jval global_joiner(jinja *j, jval self, const jval *a) {
    jjoiner *joiner = jinja_alloc(j, sizeof *joiner);
    joiner->separator = a[0].kind == J_MISSING ? jinja_str(j, ", ") : a[0];
    return (jval){.kind = J_JOINER, .joiner = joiner};
}

static jval global_raise_exception(jinja *j, jval self, const jval *a) {
    const jstr *message = jinja_to_str(j, a[0]);
    jinja_raise_text(j, message->p, message->n);
}

static jval global_lipsum(jinja *j, jval self, const jargs *args) {
    jinja_raise(j, "lipsum is random text: not supported");
}

/* One run of strftime; up to 256 bytes a byte of format, as Python allows. */
static void put_time(jtext *t, const struct tm *when, const char *format, size_t n) {
    char *marked = jinja_alloc(t->j, n + 2); /* a mark in front: an empty result differs from one that did not fit */
    memcpy(marked + 1, format, n);
    marked[0] = '.';
    for (size_t room = 1024;; room *= 2) {
        char *out = jinja_alloc(t->j, room + 1);
        size_t got = strftime(out, room + 1, marked, when);
        if (got) {
            jinja_put(t, out + 1, got - 1);
            return;
        }
        if (room >= 256 * n)
            return;
    }
}

/* datetime.now().strftime(format): C's strftime, but microseconds (%f) and the zone of a naive time (%z, %Z: none). */
static jval global_strftime_now(jinja *j, jval self, const jval *a) {
    const jstr *format = jinja_arg_str(j, a[0], "strftime_now: the format");
    time_t now = (time_t)j->now;
    struct tm when;
    if (!localtime_r(&now, &when))
        jinja_raise(j, "strftime_now: the time %lld has no date", (long long)j->now);
    if (memchr(format->p, '\0', format->n))
        jinja_raise(j, "strftime_now: a NUL in the format");
    jtext plain = {.j = j}, out = {.j = j};
    for (size_t i = 0; i < format->n; i++) {
        char c = format->p[i], next = i + 1 < format->n ? format->p[i + 1] : '\0';
        if (c == '%' && next == 'f')
            jinja_puts(&plain, "000000");
        else if (c != '%' || (next != 'z' && next != 'Z'))
            jinja_put(&plain, format->p + i, c == '%' && next ? 2 : 1);
        i += c == '%' && next;
    }
    put_time(&out, &when, plain.n ? plain.p : "", plain.n);
    return jinja_text(&out);
}

static const jbuiltin globals[] = {
    {"range", "", 0, NULL, global_range},
    {"dict", "", 0, NULL, global_dict},
    {"namespace", "", 0, NULL, global_namespace},
    {"cycler", "", 0, NULL, global_cycler},
    {"joiner", "sep", 0, global_joiner, NULL},
    {"raise_exception", "message", 1, global_raise_exception, NULL},
    {"strftime_now", "format", 1, global_strftime_now, NULL},
    {"lipsum", "", 0, NULL, global_lipsum},
};

jval jinja_global(jinja *j, const jstr *name) {
    const jbuiltin *b = jinja_find_builtin(globals, SL_COUNT(globals), name);
    if (!b)
        return jinja_missing();
    jfunction *f = jinja_alloc(j, sizeof *f);
    *f = (jfunction){.builtin = b, .self = jinja_none()};
    return (jval){.kind = J_FUNCTION, .fn = f};
}

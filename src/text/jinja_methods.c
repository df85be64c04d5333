/* Methods of dict, list, tuple, range, numbers, loop and cycler; and the list of those that would change a value, which
 * the immutable sandbox hides. */
#include "text/jinja.h"

#include <math.h>
#include <string.h>

/* ---- dict ------------------------------------------------------------------------------------ */

static jval dict_get(jinja *j, jval self, const jval *a) {
    jval *v = jinja_dict_find(j, self.d, a[0]);
    return v ? *v : a[1].kind == J_MISSING ? jinja_none() : a[1];
}

static jval view(jinja *j, jval self, char what) {
    jview *v = jinja_alloc(j, sizeof *v);
    *v = (jview){.d = self.d, .what = what};
    return (jval){.kind = J_VIEW, .view = v};
}

static jval dict_keys(jinja *j, jval self, const jval *a) {
    return view(j, self, 'k');
}
static jval dict_values(jinja *j, jval self, const jval *a) {
    return view(j, self, 'v');
}
static jval dict_items(jinja *j, jval self, const jval *a) {
    return view(j, self, 'i');
}

static jval dict_copy(jinja *j, jval self, const jval *a) {
    jdict *d = jinja_dict_new(j);
    *d = *self.d; /* neither of the two will change */
    return jinja_of_dict(d);
}

static jval dict_fromkeys(jinja *j, jval self, const jval *a) {
    jdict *d = jinja_dict_new(j);
    jiter *it = jinja_iter(j, a[0]);
    for (jval key; jinja_next(j, it, &key);)
        jinja_dict_put(j, d, key, a[1].kind == J_MISSING ? jinja_none() : a[1]);
    return jinja_of_dict(d);
}

static const jbuiltin dict_methods[] = {
    {"copy", "/", 0, dict_copy, NULL},          {"fromkeys", "/iterable value", 1, dict_fromkeys, NULL},
    {"get", "/key default", 1, dict_get, NULL}, {"items", "/", 0, dict_items, NULL},
    {"keys", "/", 0, dict_keys, NULL},          {"values", "/", 0, dict_values, NULL},
};

/* ---- list, tuple, range ---------------------------------------------------------------------- */

static jval seq_count(jinja *j, jval self, const jval *a) {
    int64_t count = 0;
    jiter *it = jinja_iter(j, self);
    for (jval item; jinja_next(j, it, &item);)
        count += jinja_identical(item, a[0]) || jinja_equal(j, item, a[0]);
    return jinja_int(count);
}

static int64_t clamp_index(jinja *j, jval v, int64_t n, int64_t absent) {
    if (v.kind == J_MISSING)
        return absent;
    int64_t i = jinja_arg_int(j, v, "index: a bound");
    i = i < -n ? 0 : i < 0 ? i + n : i;
    return i > n ? n : i;
}

static jval seq_index(jinja *j, jval self, const jval *a) {
    int64_t n = jinja_length(j, self), from = clamp_index(j, a[1], n, 0), to = clamp_index(j, a[2], n, n), at = 0;
    jiter *it = jinja_iter(j, self);
    for (jval item; at < to && jinja_next(j, it, &item); at++)
        if (at >= from && (jinja_identical(item, a[0]) || jinja_equal(j, item, a[0])))
            return jinja_int(at);
    jinja_raise(j, "index: the value is not in the %s", jinja_type(self));
}

static jval list_copy(jinja *j, jval self, const jval *a) {
    return jinja_list(j, self.seq->at, self.seq->n);
}

static const jbuiltin list_methods[] = {
    {"copy", "/", 0, list_copy, NULL},
    {"count", "/value", 1, seq_count, NULL},
    {"index", "/value start stop", 1, seq_index, NULL},
};

static const jbuiltin tuple_methods[] = {
    {"count", "/value", 1, seq_count, NULL},
    {"index", "/value start stop", 1, seq_index, NULL},
};

static const jbuiltin range_methods[] = {
    {"count", "/value", 1, seq_count, NULL},
    {"index", "/value", 1, seq_index, NULL},
};

/* ---- numbers --------------------------------------------------------------------------------- */

static jval number_self(jinja *j, jval self, const jval *a) {
    return jinja_positive(j, self);
}

static jval int_bit_length(jinja *j, jval self, const jval *a) {
    int64_t i = jinja_arg_int(j, self, "bit_length"), bits = 0;
    for (uint64_t rest = i < 0 ? -(uint64_t)i : (uint64_t)i; rest; rest >>= 1)
        bits++;
    return jinja_int(bits);
}

static jval int_bit_count(jinja *j, jval self, const jval *a) {
    int64_t i = jinja_arg_int(j, self, "bit_count");
    return jinja_int(__builtin_popcountll(i < 0 ? -(uint64_t)i : (uint64_t)i));
}

static const jbuiltin int_methods[] = {
    {"bit_count", "/", 0, int_bit_count, NULL},
    {"bit_length", "/", 0, int_bit_length, NULL},
    {"conjugate", "/", 0, number_self, NULL},
};

static jval float_is_integer(jinja *j, jval self, const jval *a) {
    return jinja_bool(isfinite(self.f) && self.f == floor(self.f));
}

static const jbuiltin float_methods[] = {
    {"conjugate", "/", 0, number_self, NULL},
    {"is_integer", "/", 0, float_is_integer, NULL},
};

/* ---- loop, cycler ---------------------------------------------------------------------------- */

static jval loop_cycle(jinja *j, jval self, const jargs *args) {
    if (!args->n || args->named_n)
        jinja_raise(j, "loop.cycle needs items, none by name");
    return args->at[(uint64_t)self.loop->index0 % args->n];
}

static jval loop_changed(jinja *j, jval self, const jargs *args) {
    if (args->named_n)
        jinja_raise(j, "loop.changed takes no arguments by name");
    jval now = jinja_tuple(j, args->at, args->n);
    bool same = self.loop->changed.kind != J_MISSING && jinja_equal(j, self.loop->changed, now);
    self.loop->changed = now;
    return jinja_bool(!same);
}

static const jbuiltin loop_methods[] = {
    {"changed", "", 0, NULL, loop_changed},
    {"cycle", "", 0, NULL, loop_cycle},
};

static jval cycler_next(jinja *j, jval self, const jval *a) {
    jcycler *c = self.cycler;
    jval v = c->items->at[c->at];
    c->at = (c->at + 1) % c->items->n;
    return v;
}

static jval cycler_reset(jinja *j, jval self, const jval *a) {
    self.cycler->at = 0;
    return jinja_none();
}

static const jbuiltin cycler_methods[] = {
    {"next", "", 0, cycler_next, NULL},
    {"reset", "", 0, cycler_reset, NULL},
};

/* ---- which kind has which -------------------------------------------------------------------- */

static bool is_one_of(const jstr *name, const char *const *names) {
    for (; *names; names++)
        if (jinja_is(name, *names))
            return true;
    return false;
}

const jbuiltin *jinja_find_method(jkind kind, const jstr *name, bool *mutates) {
    static const char *const dict_mutators[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    static const char *const list_mutators[] = {"append", "clear",  "pop",    "reverse", "insert",
                                                "sort",   "extend", "remove", NULL};
    *mutates = false;
    switch (kind) {
    case J_STR:
        return jinja_find_builtin(jinja_str_methods, jinja_str_methods_n, name);
    case J_DICT:
        *mutates = is_one_of(name, dict_mutators);
        return jinja_find_builtin(dict_methods, SL_COUNT(dict_methods), name);
    case J_LIST:
        *mutates = is_one_of(name, list_mutators);
        return jinja_find_builtin(list_methods, SL_COUNT(list_methods), name);
    case J_TUPLE:
        return jinja_find_builtin(tuple_methods, SL_COUNT(tuple_methods), name);
    case J_RANGE:
        return jinja_find_builtin(range_methods, SL_COUNT(range_methods), name);
    case J_INT:
    case J_BOOL:
        return jinja_find_builtin(int_methods, SL_COUNT(int_methods), name);
    case J_FLOAT:
        return jinja_find_builtin(float_methods, SL_COUNT(float_methods), name);
    case J_LOOP:
        return jinja_find_builtin(loop_methods, SL_COUNT(loop_methods), name);
    case J_CYCLER:
        return jinja_find_builtin(cycler_methods, SL_COUNT(cycler_methods), name);
    default:
        return NULL;
    }
}

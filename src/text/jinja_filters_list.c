/* Filters on sequences and mappings. Lazy ones give generators, as in jinja2: evaluated when read, once. */
#include "text/jinja.h"

#include <string.h>

/* ---- attribute paths: "a.b.0" ---------------------------------------------------------------- */

typedef struct path {
    jval parts;    /* list of str and int; empty: the item itself */
    bool fold;     /* lower case */
    jval fallback; /* for what is undefined on the way; J_MISSING: none */
} path;

static bool all_digits(const jstr *s) {
    size_t at = 0;
    while (at < s->n) {
        int32_t cp;
        at += (size_t)sl_utf8_decode(s->p + at, s->n - at, &cp);
        if (!jinja_is_digit(cp))
            return false;
    }
    return s->n > 0;
}

static path make_path(jinja *j, jval attribute, bool fold, jval fallback) {
    path p = {.fold = fold, .fallback = fallback.kind == J_NONE ? jinja_missing() : fallback};
    p.parts = jinja_seq_new(j, J_LIST, 1);
    if (!jinja_given(attribute))
        return p;
    if (attribute.kind != J_STR) {
        jinja_push(j, p.parts, attribute);
        return p;
    }
    jval names = jinja_split(j, attribute.s, jinja_str(j, ".").s, -1);
    for (size_t i = 0; i < names.seq->n; i++) {
        jval part = names.seq->at[i];
        int64_t index;
        if (all_digits(part.s)) {
            if (jinja_parse_int(j, part.s, 10, &index) != 1)
                jinja_raise(j, "'%.*s' is no index", (int)(part.s->n > 100 ? 100 : part.s->n), part.s->p);
            part = jinja_int(index);
        }
        jinja_push(j, p.parts, part);
    }
    return p;
}

static jval follow(jinja *j, const path *p, jval item) {
    for (size_t i = 0; i < p->parts.seq->n; i++) {
        item = jinja_getitem(j, item, p->parts.seq->at[i]);
        if (item.kind == J_UNDEFINED && p->fallback.kind != J_MISSING)
            item = p->fallback;
    }
    return p->fold && item.kind == J_STR ? jinja_lower(j, item.s) : item;
}

static bool is_true(jinja *j, jval v) {
    return v.kind != J_MISSING && jinja_truth(j, v);
}

/* ---- the whole of a sequence ----------------------------------------------------------------- */

static jval filter_length(jinja *j, jval self, const jval *a) {
    int64_t n = jinja_length(j, self);
    if (n < 0)
        jinja_raise(j, "a %s has no length", jinja_type(self));
    return jinja_int(n);
}

static jval filter_list(jinja *j, jval self, const jval *a) {
    return jinja_to_list(j, self);
}

static jval filter_first(jinja *j, jval self, const jval *a) {
    jval v;
    if (jinja_next(j, jinja_iter(j, self), &v))
        return v;
    return jinja_undefined_hint(j, "the first item of an empty sequence");
}

static jval filter_last(jinja *j, jval self, const jval *a) {
    jval v;
    if (!jinja_reversible(self))
        jinja_raise(j, "last: a %s cannot be read backwards", jinja_type(self));
    if (jinja_next(j, jinja_reversed(j, self), &v))
        return v;
    return jinja_undefined_hint(j, "the last item of an empty sequence");
}

static jval filter_reverse(jinja *j, jval self, const jval *a) {
    if (self.kind == J_STR)
        return jinja_slice(j, self, jinja_none(), jinja_none(), jinja_int(-1));
    if (jinja_reversible(self))
        return jinja_of_iter(jinja_reversed(j, self));
    jval list = jinja_to_list(j, self);
    return jinja_slice(j, list, jinja_none(), jinja_none(), jinja_int(-1));
}

/* join(value, d='', attribute=None): plain text whatever was Markup */
static jval filter_join(jinja *j, jval self, const jval *a) {
    const jstr *between = a[0].kind == J_MISSING ? jinja_str(j, "").s : jinja_to_str(j, a[0]);
    path p = make_path(j, a[1], false, jinja_missing());
    jtext t = {.j = j};
    jiter *it = jinja_iter(j, self);
    bool first = true;
    for (jval item; jinja_next(j, it, &item); first = false) {
        if (!first)
            jinja_put_str(&t, between);
        jinja_put_value(&t, follow(j, &p, item));
    }
    return jinja_text(&t);
}

/* sum(iterable, attribute=None, start=0) */
static jval filter_sum(jinja *j, jval self, const jval *a) {
    path p = make_path(j, a[0], false, jinja_missing());
    jval total = a[1].kind == J_MISSING ? jinja_int(0) : a[1];
    jiter *it = jinja_iter(j, self);
    if (total.kind == J_STR)
        jinja_raise(j, "sum: strings are joined with join");
    for (jval item; jinja_next(j, it, &item);)
        total = jinja_binary(j, JOP_ADD, total, follow(j, &p, item));
    return total;
}

static jval extreme(jinja *j, jval self, const jval *a, jop op) {
    path p = make_path(j, a[1], !is_true(j, a[0]), jinja_missing());
    jiter *it = jinja_iter(j, self);
    jval best, item;
    if (!jinja_next(j, it, &best))
        return jinja_undefined_hint(j, "the least or greatest item of an empty sequence");
    jval best_key = follow(j, &p, best);
    while (jinja_next(j, it, &item)) {
        jval key = follow(j, &p, item);
        if (jinja_compare(j, op, key, best_key)) {
            best = item;
            best_key = key;
        }
    }
    return best;
}

/* min(value, case_sensitive=False, attribute=None) */
static jval filter_min(jinja *j, jval self, const jval *a) {
    return extreme(j, self, a, JOP_LT);
}
static jval filter_max(jinja *j, jval self, const jval *a) {
    return extreme(j, self, a, JOP_GT);
}

/* sort(value, reverse=False, case_sensitive=False, attribute=None); attribute may be a list "a,b" */
static jval filter_sort(jinja *j, jval self, const jval *a) {
    jval list = jinja_to_list(j, self), attributes;
    bool fold = !is_true(j, a[1]);
    if (a[2].kind == J_STR)
        attributes = jinja_split(j, a[2].s, jinja_str(j, ",").s, -1);
    else
        attributes = jinja_list(j, &a[2], 1);
    size_t n = list.seq->n, paths = attributes.seq->n;
    path *p = jinja_alloc_array(j, paths, sizeof *p);
    for (size_t i = 0; i < paths; i++)
        p[i] = make_path(j, attributes.seq->at[i], fold, jinja_missing());
    jval *keys = jinja_alloc_array(j, n + 1, sizeof *keys);
    for (size_t i = 0; i < n; i++) {
        keys[i] = jinja_seq_new(j, J_LIST, paths);
        for (size_t k = 0; k < paths; k++)
            jinja_push(j, keys[i], follow(j, &p[k], list.seq->at[i]));
    }
    jinja_sort(j, list.seq->at, keys, n, is_true(j, a[0]));
    return list;
}

/* dictsort(value, case_sensitive=False, by='key', reverse=False) */
static jval filter_dictsort(jinja *j, jval self, const jval *a) {
    bool by_key = a[1].kind == J_MISSING || (a[1].kind == J_STR && jinja_is(a[1].s, "key"));
    if (!by_key && (a[1].kind != J_STR || !jinja_is(a[1].s, "value")))
        jinja_raise(j, "dictsort: by is 'key' or 'value'");
    if (self.kind == J_UNDEFINED)
        jinja_raise_undefined(j, self.u);
    if (self.kind != J_DICT)
        jinja_raise(j, "dictsort needs a dict, not a %s", jinja_type(self));
    path p = make_path(j, jinja_missing(), !is_true(j, a[0]), jinja_missing());
    size_t n = self.d->n;
    jval list = jinja_seq_new(j, J_LIST, n), *keys = jinja_alloc_array(j, n + 1, sizeof *keys);
    for (size_t i = 0; i < n; i++) {
        const jentry *e = &self.d->at[i];
        keys[i] = follow(j, &p, by_key ? e->key : e->value);
        jinja_push(j, list, jinja_tuple(j, (jval[]){e->key, e->value}, 2));
    }
    jinja_sort(j, list.seq->at, keys, n, is_true(j, a[2]));
    return list;
}

/* groupby(value, attribute, default=None, case_sensitive=False) */
static jval filter_groupby(jinja *j, jval self, const jval *a) {
    bool fold = !is_true(j, a[2]);
    path p = make_path(j, a[0], fold, a[1]), real = make_path(j, a[0], false, a[1]);
    jval list = jinja_to_list(j, self), groups = jinja_seq_new(j, J_LIST, 4);
    size_t n = list.seq->n;
    jval *keys = jinja_alloc_array(j, n + 1, sizeof *keys);
    for (size_t i = 0; i < n; i++)
        keys[i] = follow(j, &p, list.seq->at[i]);
    jinja_sort(j, list.seq->at, keys, n, false);
    for (size_t from = 0, to; from < n; from = to) {
        for (to = from + 1; to < n && jinja_equal(j, keys[from], keys[to]);)
            to++;
        jval grouper = fold ? follow(j, &real, list.seq->at[from]) : keys[from];
        jval members = jinja_list(j, list.seq->at + from, to - from);
        jval group = jinja_tuple(j, (jval[]){grouper, members}, 2);
        group.seq->group = true;
        jinja_push(j, groups, group);
    }
    return groups;
}

/* attr(obj, name): the attribute, never an item */
static jval filter_attr(jinja *j, jval self, const jval *a) {
    const jstr *name = jinja_arg_str(j, a[0], "attr: the name");
    jval v = jinja_attribute(j, self, name);
    return v.kind == J_MISSING ? jinja_undefined(j, name, self) : v;
}

/* ---- lazy ------------------------------------------------------------------------------------ */

static jiter *lazy(jinja *j, bool (*next)(jinja *, jiter *, jval *), jval source, void *state) {
    jiter *it = jinja_iter_new(j, "generator", next, source.kind == J_ITER ? source.iter : NULL);
    it->source = source;
    it->state = state;
    return it;
}

/* The iterator of the source, made at the first read. */
static jiter *source(jinja *j, jiter *it) {
    if (!it->in)
        it->in = jinja_iter(j, it->source);
    return it->in;
}

static bool next_pair(jinja *j, jiter *it, jval *out) {
    if (it->source.kind == J_UNDEFINED)
        return false;
    if (it->source.kind != J_DICT)
        jinja_raise(j, "items needs a mapping, not a %s", jinja_type(it->source));
    if (it->at >= it->source.d->n)
        return false;
    const jentry *e = &it->source.d->at[it->at++];
    *out = jinja_tuple(j, (jval[]){e->key, e->value}, 2);
    return true;
}

static jval filter_items(jinja *j, jval self, const jval *a) {
    return jinja_of_iter(lazy(j, next_pair, self, NULL));
}

/* map, select and their kin: a path first, then a filter or a test with the rest of the arguments */
typedef struct each {
    jargs args;
    bool by_attribute, keep; /* keep: what passes the test, else what fails */
    path path;
    const jbuiltin *apply; /* NULL: the path's value itself, or its truth */
} each;

static jargs rest_of(const jargs *args, size_t from) {
    jargs rest = *args;
    rest.at += from;
    rest.n -= from;
    return rest;
}

static const jbuiltin *named(jinja *j, jval name, const jbuiltin *(*find)(const jstr *), const char *what) {
    const jbuiltin *b = name.kind == J_STR ? find(name.s) : NULL;
    if (!b)
        jinja_raise(j, "there is no %s of that name: %s", what, name.kind == J_STR ? "unknown" : jinja_type(name));
    return b;
}

static void prepare_map(jinja *j, each *e) {
    jval attribute = jinja_missing(), fallback = jinja_missing();
    const jargs *args = &e->args;
    size_t known = 0;
    for (size_t i = 0; i < args->named_n; i++) {
        const jstr *name = args->named[i].key.s;
        bool is_attribute = jinja_is(name, "attribute"), is_default = jinja_is(name, "default");
        if (is_attribute)
            attribute = args->named[i].value;
        if (is_default)
            fallback = args->named[i].value;
        known += is_attribute || is_default;
    }
    if (!args->n && attribute.kind != J_MISSING) {
        if (known != args->named_n)
            jinja_raise(j, "map takes attribute and default by name");
        e->path = make_path(j, attribute, false, fallback);
        return;
    }
    if (!args->n)
        jinja_raise(j, "map needs a filter or an attribute");
    e->path = make_path(j, jinja_missing(), false, jinja_missing());
    e->apply = named(j, args->at[0], jinja_find_filter, "filter");
    e->args = rest_of(args, 1);
}

/* The value's truth is asked before anything else, and a falsy value reads as empty. */
static bool begins_empty(jinja *j, jiter *it) {
    return it->at++ == 0 && !jinja_truth(j, it->source);
}

static bool next_mapped(jinja *j, jiter *it, jval *out) {
    each *e = it->state;
    jval item;
    if (it->at == 0) {
        if (begins_empty(j, it)) {
            it->n = 1;
            return false;
        }
        prepare_map(j, e);
    }
    if (it->n || !jinja_next(j, source(j, it), &item))
        return false;
    item = follow(j, &e->path, item);
    *out = e->apply ? jinja_call_builtin(j, e->apply, item, &e->args) : item;
    return true;
}

static each *keep_args(jinja *j, const jargs *args) {
    each *e = jinja_alloc(j, sizeof *e);
    e->args = *args;
    return e;
}

static jval filter_map(jinja *j, jval self, const jargs *args) {
    return jinja_of_iter(lazy(j, next_mapped, self, keep_args(j, args)));
}

static void prepare_select(jinja *j, each *e) {
    size_t off = e->by_attribute ? 1 : 0;
    if (e->args.n < off)
        jinja_raise(j, "selectattr and rejectattr need an attribute");
    e->path = make_path(j, off ? e->args.at[0] : jinja_missing(), false, jinja_missing());
    if (e->args.n > off) {
        e->apply = named(j, e->args.at[off], jinja_find_test, "test");
        e->args = rest_of(&e->args, off + 1);
    }
}

static bool next_selected(jinja *j, jiter *it, jval *out) {
    each *e = it->state;
    if (it->at == 0) {
        if (begins_empty(j, it)) {
            it->n = 1;
            return false;
        }
        prepare_select(j, e);
    }
    while (!it->n && jinja_next(j, source(j, it), out)) {
        jval v = follow(j, &e->path, *out);
        if (e->apply)
            v = jinja_call_builtin(j, e->apply, v, &e->args);
        if (jinja_truth(j, v) == e->keep)
            return true;
    }
    return false;
}

static jval select_by(jinja *j, jval self, const jargs *args, bool by_attribute, bool keep) {
    each *e = keep_args(j, args);
    e->by_attribute = by_attribute;
    e->keep = keep;
    return jinja_of_iter(lazy(j, next_selected, self, e));
}

static jval filter_select(jinja *j, jval self, const jargs *args) {
    return select_by(j, self, args, false, true);
}
static jval filter_reject(jinja *j, jval self, const jargs *args) {
    return select_by(j, self, args, false, false);
}
static jval filter_selectattr(jinja *j, jval self, const jargs *args) {
    return select_by(j, self, args, true, true);
}
static jval filter_rejectattr(jinja *j, jval self, const jargs *args) {
    return select_by(j, self, args, true, false);
}

typedef struct seen {
    path path;
    jdict *keys;
} seen;

static bool next_unique(jinja *j, jiter *it, jval *out) {
    seen *s = it->state;
    while (jinja_next(j, source(j, it), out)) {
        jval key = follow(j, &s->path, *out);
        if (jinja_dict_find(j, s->keys, key))
            continue;
        jinja_dict_put(j, s->keys, key, jinja_none());
        return true;
    }
    return false;
}

/* unique(value, case_sensitive=False, attribute=None) */
static jval filter_unique(jinja *j, jval self, const jval *a) {
    seen *s = jinja_alloc(j, sizeof *s);
    s->path = make_path(j, a[1], !is_true(j, a[0]), jinja_missing());
    s->keys = jinja_dict_new(j);
    return jinja_of_iter(lazy(j, next_unique, self, s));
}

typedef struct portions {
    jval count, fill;
    jval all; /* batch: the row being filled; slice: the whole, once read */
} portions;

static bool next_batch(jinja *j, jiter *it, jval *out) {
    portions *b = it->state;
    jval item;
    if (b->all.kind == J_MISSING)
        b->all = jinja_seq_new(j, J_LIST, 4);
    while (!it->n && jinja_next(j, source(j, it), &item)) {
        *out = b->all;
        bool full = jinja_equal(j, jinja_int((int64_t)out->seq->n), b->count);
        if (full)
            b->all = jinja_seq_new(j, J_LIST, 4);
        jinja_push(j, b->all, item);
        if (full)
            return true;
    }
    *out = b->all;
    if (it->n || !out->seq->n)
        return false;
    it->n = 1;
    bool fill = jinja_given(b->fill) && jinja_less(j, jinja_int((int64_t)out->seq->n), b->count);
    int64_t count = fill ? jinja_arg_int(j, b->count, "batch: the size") : 0;
    while ((int64_t)out->seq->n < count)
        jinja_push(j, *out, b->fill);
    return true;
}

/* batch(value, linecount, fill_with=None) */
static jval filter_batch(jinja *j, jval self, const jval *a) {
    portions *b = jinja_alloc(j, sizeof *b);
    *b = (portions){.count = a[0], .fill = a[1]};
    return jinja_of_iter(lazy(j, next_batch, self, b));
}

static bool next_slice(jinja *j, jiter *it, jval *out) {
    portions *s = it->state;
    if (it->n == 0) {
        s->all = jinja_to_list(j, it->source);
        it->n = 1;
        if (jinja_arg_int(j, s->count, "slice: the number") == 0)
            jinja_raise(j, "division by zero");
    }
    int64_t slices = jinja_arg_int(j, s->count, "slice: the number"), i = (int64_t)it->at;
    if (i >= slices)
        return false;
    int64_t n = (int64_t)s->all.seq->n, each_n = n / slices, more = n % slices;
    int64_t from = i * each_n + (i < more ? i : more), to = from + each_n + (i < more);
    *out = jinja_list(j, s->all.seq->at + from, (size_t)(to - from));
    if (jinja_given(s->fill) && i >= more)
        jinja_push(j, *out, s->fill);
    it->at++;
    return true;
}

/* slice(value, slices, fill_with=None) */
static jval filter_slice(jinja *j, jval self, const jval *a) {
    portions *s = jinja_alloc(j, sizeof *s);
    *s = (portions){.count = a[0], .fill = a[1]};
    return jinja_of_iter(lazy(j, next_slice, self, s));
}

const jbuiltin jinja_list_filters[] = {
    {"attr", "name", 1, filter_attr, NULL},
    {"batch", "linecount fill_with", 1, filter_batch, NULL},
    {"count", "/", 0, filter_length, NULL},
    {"dictsort", "case_sensitive by reverse", 0, filter_dictsort, NULL},
    {"first", "", 0, filter_first, NULL},
    {"groupby", "attribute default case_sensitive", 1, filter_groupby, NULL},
    {"items", "", 0, filter_items, NULL},
    {"join", "d attribute", 0, filter_join, NULL},
    {"last", "", 0, filter_last, NULL},
    {"length", "/", 0, filter_length, NULL},
    {"list", "", 0, filter_list, NULL},
    {"map", "", 0, NULL, filter_map},
    {"max", "case_sensitive attribute", 0, filter_max, NULL},
    {"min", "case_sensitive attribute", 0, filter_min, NULL},
    {"reject", "", 0, NULL, filter_reject},
    {"rejectattr", "", 0, NULL, filter_rejectattr},
    {"reverse", "", 0, filter_reverse, NULL},
    {"select", "", 0, NULL, filter_select},
    {"selectattr", "", 0, NULL, filter_selectattr},
    {"slice", "slices fill_with", 1, filter_slice, NULL},
    {"sort", "reverse case_sensitive attribute", 0, filter_sort, NULL},
    {"sum", "attribute start", 0, filter_sum, NULL},
    {"unique", "case_sensitive attribute", 0, filter_unique, NULL},
};
const size_t jinja_list_filters_n = SL_COUNT(jinja_list_filters);

const jbuiltin *jinja_find_filter(const jstr *name) {
    const jbuiltin *b = jinja_find_builtin(jinja_text_filters, jinja_text_filters_n, name);
    return b ? b : jinja_find_builtin(jinja_list_filters, jinja_list_filters_n, name);
}

/* Values: making them, dicts, truth, equality, order, membership, and JSON into values. */
#include "text/jinja.h"

#include <math.h>
#include <string.h>

/* ---- strings --------------------------------------------------------------------------------- */

jstr *jinja_view_n(jinja *j, const char *p, size_t n) {
    jstr *s = jinja_alloc(j, sizeof *s);
    *s = (jstr){.p = p, .n = n, .points = -1};
    return s;
}

jval jinja_str_n(jinja *j, const char *p, size_t n) {
    return jinja_of_str(jinja_view_n(j, p, n));
}

jval jinja_str(jinja *j, const char *s) {
    return jinja_str_n(j, s, strlen(s));
}

jval jinja_substr(jinja *j, const jstr *s, size_t from, size_t to) {
    jstr *sub = jinja_view_n(j, s->p + from, to - from);
    sub->markup = s->markup;
    sub->tail = s->tail;
    if (s->points == (int64_t)s->n)
        sub->points = (int64_t)sub->n;
    return jinja_of_str(sub);
}

jval jinja_markup(jinja *j, const jstr *s, bool markup) {
    if (s->markup == markup)
        return jinja_of_str(s);
    jstr *copy = jinja_alloc(j, sizeof *copy);
    *copy = *s;
    copy->markup = markup;
    return jinja_of_str(copy);
}

bool jinja_is(const jstr *s, const char *text) {
    return s->n == strlen(text) && memcmp(s->p, text, s->n) == 0;
}

bool jinja_same(const jstr *a, const jstr *b) {
    return a == b || (a->n == b->n && memcmp(a->p, b->p, a->n) == 0);
}

/* ---- undefined ------------------------------------------------------------------------------- */

static jval undefined(jinja *j, jundef u) {
    jundef *copy = jinja_alloc(j, sizeof *copy);
    *copy = u;
    return (jval){.kind = J_UNDEFINED, .u = copy};
}

jval jinja_undefined(jinja *j, const jstr *name, jval owner) {
    return undefined(j, (jundef){.name = name, .owner = owner});
}

jval jinja_undefined_hint(jinja *j, const char *hint) {
    return undefined(j, (jundef){.hint = hint});
}

jval jinja_unsafe(jinja *j, const jstr *name, jval owner) {
    return undefined(j, (jundef){.name = name, .owner = owner, .unsafe = true});
}

_Noreturn void jinja_raise_undefined(jinja *j, const jundef *u) {
    int n = u->name ? (int)(u->name->n > 200 ? 200 : u->name->n) : 0;
    const char *name = u->name ? u->name->p : "";
    if (u->hint)
        jinja_raise(j, "%s", u->hint);
    if (u->unsafe)
        jinja_raise(j, "attribute '%.*s' of a %s is not allowed in a template", n, name, jinja_type(u->owner));
    if (u->owner.kind == J_MISSING)
        jinja_raise(j, "'%.*s' is undefined", n, name);
    if (u->owner.kind == J_NONE)
        jinja_raise(j, "None has no attribute or item '%.*s'", n, name);
    jinja_raise(j, "a %s has no attribute or item '%.*s'", jinja_type(u->owner), n, name);
}

/* ---- lists ----------------------------------------------------------------------------------- */

jval jinja_seq_new(jinja *j, jkind kind, size_t capacity) {
    static jval nothing; /* never written: the capacity is 0 */
    jseq *s = jinja_alloc(j, sizeof *s);
    s->tail = jinja_alloc(j, sizeof *s->tail);
    s->at = capacity ? jinja_alloc_array(j, capacity, sizeof *s->at) : &nothing;
    *s->tail = (jtail){.base = s->at, .capacity = capacity};
    return (jval){.kind = kind, .seq = s};
}

void jinja_push(jinja *j, jval seq, jval v) {
    jseq *s = seq.seq;
    jtail *t = s->tail;
    if (s->n == t->capacity) {
        void *base = s->at;
        jinja_grow(j, &base, &t->capacity, s->n, sizeof *s->at);
        s->at = t->base = base;
    }
    s->at[s->n++] = v;
    t->used = s->n;
}

static jval seq_copy(jinja *j, jkind kind, const jval *at, size_t n) {
    jval v = jinja_seq_new(j, kind, n);
    if (n)
        memcpy(v.seq->at, at, n * sizeof *at);
    v.seq->n = v.seq->tail->used = n;
    return v;
}

jval jinja_list(jinja *j, const jval *at, size_t n) {
    return seq_copy(j, J_LIST, at, n);
}

jval jinja_tuple(jinja *j, const jval *at, size_t n) {
    return seq_copy(j, J_TUPLE, at, n);
}

/* ---- dicts ----------------------------------------------------------------------------------- */

#define INDEX_ABOVE 8

static bool hashable(jinja *j, jval v, int depth) {
    jinja_check_depth(j, depth);
    switch (v.kind) {
    case J_LIST:
    case J_DICT:
    case J_VIEW:
        return false;
    case J_TUPLE:
        for (size_t i = 0; i < v.seq->n; i++)
            if (!hashable(j, v.seq->at[i], depth + 1))
                return false;
        return true;
    default:
        return true;
    }
}

bool jinja_hashable(jinja *j, jval v) {
    return hashable(j, v, 0);
}

static uint64_t hash_bytes(uint64_t h, const void *bytes, size_t n) {
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

/* Equal values have equal hashes: 1, 1.0 and True are one key. */
static uint64_t hash(jinja *j, jval v, int depth) {
    uint64_t h = j->hash_seed;
    jinja_check_depth(j, depth);
    switch (v.kind) {
    case J_STR:
        jinja_work(j, v.s->n);
        return hash_bytes(h, v.s->p, v.s->n);
    case J_BOOL:
        v = jinja_int(v.b);
        break;
    case J_FLOAT:
        if (v.f >= -9.2e18 && v.f <= 9.2e18 && v.f == (double)(int64_t)v.f)
            v = jinja_int((int64_t)v.f);
        break;
    case J_TUPLE:
        for (size_t i = 0; i < v.seq->n; i++) {
            uint64_t part = hash(j, v.seq->at[i], depth + 1);
            h = hash_bytes(h, &part, sizeof part);
        }
        return h;
    case J_LIST:
    case J_DICT:
    case J_VIEW:
        jinja_raise(j, "a %s cannot be a key", jinja_type(v));
    case J_NONE:
    case J_UNDEFINED:
        return h + v.kind;
    default:
        break;
    }
    return hash_bytes(h, &v.i, sizeof v.i);
}

static size_t probe(jinja *j, const jdict *d, jval key, uint64_t h, bool *found) {
    size_t mask = d->index_size - 1, i = (size_t)h & mask;
    for (; d->index[i]; i = (i + 1) & mask) {
        const jentry *e = &d->at[d->index[i] - 1];
        jinja_work(j, 0);
        if (e->hash == h && jinja_equal(j, e->key, key)) {
            *found = true;
            return i;
        }
    }
    *found = false;
    return i;
}

static jentry *find(jinja *j, const jdict *d, jval key, uint64_t h) {
    if (d->index) {
        bool found;
        size_t i = probe(j, d, key, h, &found);
        return found ? &d->at[d->index[i] - 1] : NULL;
    }
    for (size_t i = 0; i < d->n; i++)
        if (d->at[i].hash == h && jinja_equal(j, d->at[i].key, key))
            return &d->at[i];
    return NULL;
}

static void reindex(jinja *j, jdict *d) {
    d->index_size = d->capacity * 2; /* capacity is a power of two */
    d->index = jinja_alloc_array(j, d->index_size, sizeof *d->index);
    for (size_t i = 0; i < d->n; i++) {
        size_t mask = d->index_size - 1, at = (size_t)d->at[i].hash & mask;
        for (; d->index[at]; at = (at + 1) & mask)
            jinja_work(j, 0);
        d->index[at] = (uint32_t)i + 1;
    }
}

jdict *jinja_dict_new(jinja *j) {
    return jinja_alloc(j, sizeof(jdict));
}

jval jinja_of_dict(jdict *d) {
    return (jval){.kind = J_DICT, .d = d};
}

jval *jinja_dict_find(jinja *j, const jdict *d, jval key) {
    uint64_t h = hash(j, key, 0);
    jentry *e = find(j, d, key, h);
    return e ? &e->value : NULL;
}

jval *jinja_dict_find_str(jinja *j, const jdict *d, const jstr *key) {
    return jinja_dict_find(j, d, jinja_of_str(key));
}

void jinja_dict_put(jinja *j, jdict *d, jval key, jval value) {
    uint64_t h = hash(j, key, 0);
    jentry *e = find(j, d, key, h);
    if (e) {
        e->value = value;
        return;
    }
    size_t before = d->capacity;
    void *at = d->at;
    jinja_grow(j, &at, &d->capacity, d->n, sizeof *d->at);
    d->at = at;
    d->at[d->n++] = (jentry){.key = key, .value = value, .hash = h};
    if (d->n <= INDEX_ABOVE)
        return;
    if (!d->index || d->capacity != before) {
        reindex(j, d);
        return;
    }
    bool found;
    d->index[probe(j, d, key, h, &found)] = (uint32_t)d->n;
}

/* ---- truth, equality, order ------------------------------------------------------------------ */

bool jinja_truth(jinja *j, jval v) {
    switch (v.kind) {
    case J_MISSING:
    case J_UNDEFINED:
    case J_NONE:
        return false;
    case J_BOOL:
        return v.b;
    case J_INT:
        return v.i != 0;
    case J_FLOAT:
        return v.f != 0;
    case J_STR:
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_VIEW:
    case J_RANGE:
    case J_LOOP:
        return jinja_length(j, v) != 0;
    default:
        return true;
    }
}

static bool is_number(jval v) {
    return v.kind == J_INT || v.kind == J_FLOAT || v.kind == J_BOOL;
}

static int64_t integer(jval v) {
    return v.kind == J_BOOL ? v.b : v.i;
}

/* -1, 0, 1 as i is below, equal to, above f; 2 where f is NaN. Exact where a conversion of i would round. */
static int compare_int_float(int64_t i, double f) {
    if (isnan(f))
        return 2;
    if (f >= 9223372036854775808.0)
        return -1;
    if (f < -9223372036854775808.0)
        return 1;
    int64_t whole = (int64_t)f;
    if (i != whole)
        return i < whole ? -1 : 1;
    double rest = f - (double)whole;
    return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

/* As above for any two numbers. */
static int compare_numbers(jval a, jval b) {
    if (a.kind == J_FLOAT && b.kind == J_FLOAT)
        return isnan(a.f) || isnan(b.f) ? 2 : a.f < b.f ? -1 : a.f > b.f;
    if (a.kind == J_FLOAT) {
        int c = compare_int_float(integer(b), a.f);
        return c == 2 ? 2 : -c;
    }
    if (b.kind == J_FLOAT)
        return compare_int_float(integer(a), b.f);
    return integer(a) < integer(b) ? -1 : integer(a) > integer(b);
}

static bool equal(jinja *j, jval a, jval b, int depth);

static bool equal_seq(jinja *j, const jseq *a, const jseq *b, int depth) {
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!jinja_identical(a->at[i], b->at[i]) && !equal(j, a->at[i], b->at[i], depth + 1))
            return false;
    return true;
}

static bool equal_dict(jinja *j, const jdict *a, const jdict *b, int depth) {
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const jentry *e = find(j, b, a->at[i].key, a->at[i].hash);
        if (!e || (!jinja_identical(a->at[i].value, e->value) && !equal(j, a->at[i].value, e->value, depth + 1)))
            return false;
    }
    return true;
}

static bool equal_range(const jrange *a, const jrange *b) {
    if (a->n != b->n || !a->n)
        return a->n == b->n;
    return a->start == b->start && (a->n == 1 || a->step == b->step);
}

static bool equal(jinja *j, jval a, jval b, int depth) {
    jinja_work(j, 0);
    jinja_check_depth(j, depth);
    if (is_number(a) && is_number(b))
        return compare_numbers(a, b) == 0;
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case J_UNDEFINED:
    case J_NONE:
        return true;
    case J_STR:
        jinja_work(j, a.s->n == b.s->n ? a.s->n : 0);
        return jinja_same(a.s, b.s);
    case J_LIST:
    case J_TUPLE:
        return equal_seq(j, a.seq, b.seq, depth);
    case J_DICT:
        return equal_dict(j, a.d, b.d, depth);
    case J_RANGE:
        return equal_range(a.range, b.range);
    case J_FUNCTION:
        return a.fn->builtin == b.fn->builtin && jinja_identical(a.fn->self, b.fn->self);
    default:
        return a.p == b.p;
    }
}

bool jinja_equal(jinja *j, jval a, jval b) {
    return equal(j, a, b, 0);
}

/* Python's `is`, as far as values that may or may not be shared allow. */
bool jinja_identical(jval a, jval b) {
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case J_NONE:
    case J_MISSING:
        return true;
    case J_BOOL:
        return a.b == b.b;
    case J_INT:
        return a.i == b.i;
    case J_FLOAT:
        return memcmp(&a.f, &b.f, sizeof a.f) == 0;
    case J_STR:
        return a.s == b.s || (a.s->p == b.s->p && a.s->n == b.s->n && a.s->markup == b.s->markup);
    default:
        return a.p == b.p;
    }
}

static int compare_str(jinja *j, const jstr *a, const jstr *b) {
    size_t n = a->n < b->n ? a->n : b->n;
    jinja_work(j, n);
    int c = memcmp(a->p, b->p, n); /* UTF-8 sorts as code points do */
    return c ? c : a->n < b->n ? -1 : a->n > b->n;
}

static bool ordered(jop op, int c) {
    switch (op) {
    case JOP_LT:
        return c < 0;
    case JOP_LE:
        return c <= 0;
    case JOP_GT:
        return c > 0;
    default:
        return c >= 0;
    }
}

static bool order(jinja *j, jop op, jval a, jval b, int depth) {
    jinja_work(j, 0);
    jinja_check_depth(j, depth);
    if (a.kind == J_UNDEFINED)
        jinja_raise_undefined(j, a.u);
    if (b.kind == J_UNDEFINED)
        jinja_raise_undefined(j, b.u);
    if (is_number(a) && is_number(b)) {
        int c = compare_numbers(a, b);
        return c != 2 && ordered(op, c);
    }
    if (a.kind == J_STR && b.kind == J_STR)
        return ordered(op, compare_str(j, a.s, b.s));
    if (a.kind != b.kind || (a.kind != J_LIST && a.kind != J_TUPLE))
        jinja_raise(j, "a %s and a %s cannot be ordered", jinja_type(a), jinja_type(b));
    const jseq *x = a.seq, *y = b.seq;
    for (size_t i = 0; i < x->n && i < y->n; i++)
        if (!jinja_identical(x->at[i], y->at[i]) && !equal(j, x->at[i], y->at[i], depth + 1))
            return order(j, op, x->at[i], y->at[i], depth + 1);
    return ordered(op, x->n < y->n ? -1 : x->n > y->n);
}

bool jinja_less(jinja *j, jval a, jval b) {
    return order(j, JOP_LT, a, b, 0);
}

bool jinja_compare(jinja *j, jop op, jval a, jval b) {
    switch (op) {
    case JOP_EQ:
        return jinja_equal(j, a, b);
    case JOP_NE:
        return !jinja_equal(j, a, b);
    case JOP_IN:
        return jinja_contains(j, b, a);
    case JOP_NOT_IN:
        return !jinja_contains(j, b, a);
    default:
        return order(j, op, a, b, 0);
    }
}

static bool range_contains(jinja *j, const jrange *r, jval v) {
    if (v.kind == J_FLOAT && v.f >= -9.2e18 && v.f <= 9.2e18 && v.f == (double)(int64_t)v.f)
        v = jinja_int((int64_t)v.f);
    if (v.kind != J_INT && v.kind != J_BOOL)
        return false;
    int64_t i = integer(v);
    for (int64_t k = 0, at = r->start; k < r->n; k++, at += r->step) {
        jinja_work(j, 0);
        if (at == i)
            return true;
    }
    return false;
}

bool jinja_contains(jinja *j, jval container, jval v) {
    switch (container.kind) {
    case J_STR:
        if (v.kind != J_STR)
            jinja_raise(j, "'in' a str needs a str on its left, not a %s", jinja_type(v));
        return jinja_find(j, container.s, v.s, 0) != SIZE_MAX;
    case J_DICT:
        return jinja_dict_find(j, container.d, v) != NULL;
    case J_RANGE:
        return range_contains(j, container.range, v);
    case J_UNDEFINED:
        return false;
    case J_VIEW:
        if (container.view->what == 'k')
            return jinja_dict_find(j, container.view->d, v) != NULL;
        break;
    default:
        break;
    }
    if (!jinja_iterable(container))
        jinja_raise(j, "'in' needs something to search: a %s is none", jinja_type(container));
    jiter *it = jinja_iter(j, container);
    for (jval item; jinja_next(j, it, &item);)
        if (jinja_identical(item, v) || jinja_equal(j, item, v))
            return true;
    return false;
}

int64_t jinja_length(jinja *j, jval v) {
    switch (v.kind) {
    case J_UNDEFINED:
        return 0;
    case J_STR:
        return v.s->n ? jinja_points(j, v.s) : 0;
    case J_LIST:
    case J_TUPLE:
        return (int64_t)v.seq->n;
    case J_DICT:
        return (int64_t)v.d->n;
    case J_VIEW:
        return (int64_t)v.view->d->n;
    case J_RANGE:
        return v.range->n;
    case J_LOOP:
        return jinja_loop_length(j, v.loop);
    default:
        return -1;
    }
}

const char *jinja_type(jval v) {
    static const char *const names[] = {
        [J_MISSING] = "missing value",
        [J_UNDEFINED] = "Undefined",
        [J_NONE] = "NoneType",
        [J_BOOL] = "bool",
        [J_INT] = "int",
        [J_FLOAT] = "float",
        [J_STR] = "str",
        [J_LIST] = "list",
        [J_TUPLE] = "tuple",
        [J_DICT] = "dict",
        [J_RANGE] = "range",
        [J_NAMESPACE] = "Namespace",
        [J_FUNCTION] = "function",
        [J_MACRO] = "macro",
        [J_LOOP] = "loop",
        [J_CYCLER] = "cycler",
        [J_JOINER] = "joiner",
    };
    if (v.kind == J_VIEW)
        return v.view->what == 'k' ? "dict_keys" : v.view->what == 'v' ? "dict_values" : "dict_items";
    if (v.kind == J_ITER)
        return v.iter->type;
    return names[v.kind];
}

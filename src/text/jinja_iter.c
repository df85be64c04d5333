/* Iteration: every iterable as a pull iterator, lazily as in Python, and a stable sort. */
#include "text/jinja.h"

#include <string.h>

bool jinja_iterable(jval v) {
    switch (v.kind) {
    case J_UNDEFINED:
    case J_STR:
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_VIEW:
    case J_RANGE:
    case J_ITER:
    case J_LOOP:
        return true;
    default:
        return false;
    }
}

jiter *jinja_iter_new(jinja *j, const char *type, bool (*next)(jinja *, jiter *, jval *), jiter *in) {
    jiter *it = jinja_alloc(j, sizeof *it);
    it->type = type;
    it->next = next;
    it->in = in;
    it->depth = in ? in->depth + 1 : 0;
    if (it->depth > JINJA_MAX_ITERATORS)
        jinja_raise(j, "more than %d lazy filters in a row", JINJA_MAX_ITERATORS);
    return it;
}

bool jinja_next(jinja *j, jiter *it, jval *out) {
    jinja_work(j, 0);
    return it->next(j, it, out);
}

jval jinja_of_iter(jiter *it) {
    return (jval){.kind = J_ITER, .iter = it};
}

/* ---- sources --------------------------------------------------------------------------------- */

static bool next_nothing(jinja *j, jiter *it, jval *out) {
    return false;
}

static bool next_item(jinja *j, jiter *it, jval *out) {
    const jseq *s = it->source.seq;
    if (it->at >= s->n)
        return false;
    *out = s->at[it->at++];
    return true;
}

/* Characters of a Markup are plain, as in Python. */
static bool next_char(jinja *j, jiter *it, jval *out) {
    const jstr *s = it->source.s;
    int32_t cp;
    if (it->at >= s->n)
        return false;
    size_t bytes = (size_t)sl_utf8_decode(s->p + it->at, s->n - it->at, &cp);
    *out = jinja_str_n(j, s->p + it->at, bytes);
    it->at += bytes;
    return true;
}

static jval entry(jinja *j, const jdict *d, size_t i, char what) {
    const jentry *e = &d->at[i];
    if (what == 'k')
        return e->key;
    if (what == 'v')
        return e->value;
    return jinja_tuple(j, (jval[]){e->key, e->value}, 2);
}

static const jdict *dict_of(jval v, char *what) {
    *what = v.kind == J_VIEW ? v.view->what : 'k';
    return v.kind == J_VIEW ? v.view->d : v.d;
}

static bool next_entry(jinja *j, jiter *it, jval *out) {
    char what;
    const jdict *d = dict_of(it->source, &what);
    if (it->at >= d->n)
        return false;
    *out = entry(j, d, it->at++, what);
    return true;
}

static bool next_number(jinja *j, jiter *it, jval *out) {
    const jrange *r = it->source.range;
    if ((int64_t)it->at >= r->n)
        return false;
    *out = jinja_int(r->start + (int64_t)it->at++ * r->step);
    return true;
}

static bool next_of_loop(jinja *j, jiter *it, jval *out) {
    jval pair[2] = {jinja_missing(), it->source};
    if (!jinja_loop_next(j, it->source.loop, &pair[0]))
        return false;
    *out = jinja_tuple(j, pair, 2);
    return true;
}

jiter *jinja_iter(jinja *j, jval v) {
    static const struct {
        const char *type;
        bool (*next)(jinja *, jiter *, jval *);
    } sources[] = {
        [J_UNDEFINED] = {"generator", next_nothing}, [J_STR] = {"str_iterator", next_char},
        [J_LIST] = {"list_iterator", next_item},     [J_TUPLE] = {"tuple_iterator", next_item},
        [J_DICT] = {"dict_keyiterator", next_entry}, [J_VIEW] = {"dict_itemiterator", next_entry},
        [J_RANGE] = {"range_iterator", next_number}, [J_LOOP] = {"loop", next_of_loop},
    };
    if (v.kind == J_ITER)
        return v.iter;
    if (!jinja_iterable(v))
        jinja_raise(j, "a %s cannot be iterated over", jinja_type(v));
    jiter *it = jinja_iter_new(j, sources[v.kind].type, sources[v.kind].next, NULL);
    it->source = v;
    return it;
}

/* ---- backwards ------------------------------------------------------------------------------- */

bool jinja_reversible(jval v) {
    return jinja_iterable(v) && v.kind != J_ITER && v.kind != J_LOOP;
}

/* it->at counts what is left. */
static bool next_backwards(jinja *j, jiter *it, jval *out) {
    jval v = it->source;
    char what;
    if (it->at == 0)
        return false;
    if (v.kind == J_STR) {
        size_t at = it->at - 1;
        while (((unsigned char)v.s->p[at] & 0xC0) == 0x80)
            at--;
        *out = jinja_substr(j, v.s, at, it->at); /* by index: Markup stays Markup */
        it->at = at;
        return true;
    }
    it->at--;
    if (v.kind == J_LIST || v.kind == J_TUPLE)
        *out = v.seq->at[it->at];
    else if (v.kind == J_RANGE)
        *out = jinja_int(v.range->start + (int64_t)it->at * v.range->step);
    else {
        const jdict *d = dict_of(v, &what);
        *out = entry(j, d, it->at, what);
    }
    return true;
}

jiter *jinja_reversed(jinja *j, jval v) {
    jiter *it = jinja_iter_new(j, v.kind == J_LIST ? "list_reverseiterator" : "reversed", next_backwards, NULL);
    it->source = v;
    it->at = v.kind == J_STR ? v.s->n : (size_t)jinja_length(j, v);
    return it;
}

jval jinja_to_list(jinja *j, jval v) {
    jval list = jinja_seq_new(j, J_LIST, 0);
    jiter *it = jinja_iter(j, v);
    for (jval item; jinja_next(j, it, &item);)
        jinja_push(j, list, item);
    return list;
}

/* ---- sort ------------------------------------------------------------------------------------ */

typedef struct keyed {
    jval key, item;
} keyed;

/* Merge sort: stable, few comparisons, no recursion deeper than log n. */
static void merge_sort(jinja *j, keyed *a, keyed *scratch, size_t n, bool reverse) {
    if (n < 2)
        return;
    size_t half = n / 2;
    merge_sort(j, a, scratch, half, reverse);
    merge_sort(j, a + half, scratch, n - half, reverse);
    memcpy(scratch, a, half * sizeof *a);
    size_t left = 0, right = half, to = 0;
    while (left < half && right < n) {
        /* The right one goes first only if it must: equal keys keep their order in both directions. */
        bool take_right =
            reverse ? jinja_less(j, scratch[left].key, a[right].key) : jinja_less(j, a[right].key, scratch[left].key);
        a[to++] = take_right ? a[right++] : scratch[left++];
    }
    memcpy(a + to, scratch + left, (half - left) * sizeof *a);
}

void jinja_sort(jinja *j, jval *items, jval *keys, size_t n, bool reverse) {
    keyed *both = jinja_alloc_array(j, n + n / 2 + 1, sizeof *both);
    for (size_t i = 0; i < n; i++)
        both[i] = (keyed){keys[i], items[i]};
    merge_sort(j, both, both + n, n, reverse);
    for (size_t i = 0; i < n; i++) {
        items[i] = both[i].item;
        keys[i] = both[i].key;
    }
}

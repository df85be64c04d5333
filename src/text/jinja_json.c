/* JSON in, as values; and out: tojson as transformers has it, Python's json.dumps with ensure_ascii off, nothing
 * escaped for HTML. */
#include "text/jinja.h"

#include <math.h>
#include <string.h>

static jval from_object(jinja *j, json_t *json, int depth) {
    jdict *d = jinja_dict_new(j);
    for (void *it = json_object_iter(json); it; it = json_object_iter_next(json, it)) {
        const char *key = json_object_iter_key(it);
        jinja_dict_put(j, d, jinja_str(j, key), jinja_from_json(j, json_object_iter_value(it), depth + 1));
    }
    return jinja_of_dict(d);
}

/* Strings share the bytes of `json`, which outlives the rendering. */
jval jinja_from_json(jinja *j, const json_t *json, int depth) {
    if (depth > JINJA_MAX_DATA_DEPTH)
        jinja_raise(j, "the data given is nested more than %d deep", JINJA_MAX_DATA_DEPTH);
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return from_object(j, (json_t *)json, depth);
    case JSON_ARRAY: {
        size_t n = json_array_size(json);
        jval list = jinja_seq_new(j, J_LIST, n);
        for (size_t i = 0; i < n; i++)
            jinja_push(j, list, jinja_from_json(j, json_array_get(json, i), depth + 1));
        return list;
    }
    case JSON_STRING:
        return jinja_str_n(j, json_string_value(json), json_string_length(json));
    case JSON_INTEGER:
        return jinja_int(json_integer_value(json));
    case JSON_REAL:
        return jinja_float(json_real_value(json));
    case JSON_TRUE:
    case JSON_FALSE:
        return jinja_bool(json_is_true(json));
    default:
        return jinja_none();
    }
}

/* ---- tojson ---------------------------------------------------------------------------------- */

typedef struct style {
    bool ascii, sort;
    const jstr *indent;     /* NULL: one line */
    const jstr *item, *key; /* separators */
} style;

static void put_json(jtext *t, const style *s, jval v, int depth);

static void put_json_point(jtext *t, int32_t cp, bool ascii) {
    const char *plain = "\"\"\\\\\nn\rr\tt\ff\bb"; /* pairs: character, letter after the backslash */
    for (const char *p = plain; *p; p += 2)
        if (cp == *p) {
            jinja_putf(t, "\\%c", p[1]);
            return;
        }
    if (cp >= 0x20 && (cp < 0x7F || !ascii))
        jinja_put_point(t, cp);
    else if (cp < 0x10000)
        jinja_putf(t, "\\u%04x", (unsigned)cp);
    else
        jinja_putf(t, "\\u%04x\\u%04x", 0xD800 + ((unsigned)cp - 0x10000) / 0x400,
                   0xDC00 + ((unsigned)cp - 0x10000) % 0x400);
}

static void put_json_str(jtext *t, const jstr *s, bool ascii) {
    size_t plain = 0, at = 0;
    int32_t cp;
    jinja_puts(t, "\"");
    while (at < s->n) {
        size_t bytes = (size_t)sl_utf8_decode(s->p + at, s->n - at, &cp);
        bool escape = cp < 0x20 || cp == '"' || cp == '\\' || (ascii && cp >= 0x7F);
        if (escape) {
            jinja_put(t, s->p + plain, at - plain);
            put_json_point(t, cp, ascii);
            plain = at + bytes;
        }
        at += bytes;
    }
    jinja_put(t, s->p + plain, at - plain);
    jinja_puts(t, "\"");
}

static void put_json_number(jtext *t, jval v) {
    if (v.kind == J_FLOAT && isnan(v.f))
        jinja_puts(t, "NaN");
    else if (v.kind == J_FLOAT && isinf(v.f))
        jinja_puts(t, v.f < 0 ? "-Infinity" : "Infinity");
    else
        jinja_put_repr(t, v, 0);
}

static void put_newline(jtext *t, const style *s, int depth) {
    if (!s->indent)
        return;
    jinja_puts(t, "\n");
    jinja_put_repeat(t, s->indent, depth);
}

static void put_json_list(jtext *t, const style *s, const jseq *list, int depth) {
    if (!list->n) {
        jinja_puts(t, "[]");
        return;
    }
    jinja_puts(t, "[");
    for (size_t i = 0; i < list->n; i++) {
        if (i)
            jinja_put_str(t, s->item);
        put_newline(t, s, depth + 1);
        put_json(t, s, list->at[i], depth + 1);
    }
    put_newline(t, s, depth);
    jinja_puts(t, "]");
}

static void put_json_key(jtext *t, const style *s, jval key) {
    switch (key.kind) {
    case J_STR:
        put_json_str(t, key.s, s->ascii);
        return;
    case J_NONE:
    case J_BOOL:
    case J_INT:
    case J_FLOAT:
        jinja_puts(t, "\"");
        put_json(t, s, key, 0);
        jinja_puts(t, "\"");
        return;
    default:
        jinja_raise(t->j, "tojson: a %s cannot be a key", jinja_type(key));
    }
}

/* Entries in the order of their keys: (key, value) pairs compare as in Python's sorted(dict.items()). */
static const jentry *sorted_entries(jinja *j, const jdict *d) {
    jval *keys = jinja_alloc_array(j, d->n, sizeof *keys), *items = jinja_alloc_array(j, d->n, sizeof *items);
    jentry *sorted = jinja_alloc_array(j, d->n, sizeof *sorted);
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = d->at[i].key;
        items[i] = d->at[i].value;
    }
    jinja_sort(j, items, keys, d->n, false);
    for (size_t i = 0; i < d->n; i++)
        sorted[i] = (jentry){.key = keys[i], .value = items[i]};
    return sorted;
}

static void put_json_dict(jtext *t, const style *s, const jdict *d, int depth) {
    if (!d->n) {
        jinja_puts(t, "{}");
        return;
    }
    const jentry *at = s->sort ? sorted_entries(t->j, d) : d->at;
    jinja_puts(t, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            jinja_put_str(t, s->item);
        put_newline(t, s, depth + 1);
        put_json_key(t, s, at[i].key);
        jinja_put_str(t, s->key);
        put_json(t, s, at[i].value, depth + 1);
    }
    put_newline(t, s, depth);
    jinja_puts(t, "}");
}

static void put_json(jtext *t, const style *s, jval v, int depth) {
    jinja_check_depth(t->j, depth);
    switch (v.kind) {
    case J_NONE:
        jinja_puts(t, "null");
        break;
    case J_BOOL:
        jinja_puts(t, v.b ? "true" : "false");
        break;
    case J_INT:
    case J_FLOAT:
        put_json_number(t, v);
        break;
    case J_STR:
        put_json_str(t, v.s, s->ascii);
        break;
    case J_LIST:
    case J_TUPLE:
        put_json_list(t, s, v.seq, depth);
        break;
    case J_DICT:
        put_json_dict(t, s, v.d, depth);
        break;
    default:
        jinja_raise(t->j, "tojson: a %s has no JSON form", jinja_type(v));
    }
}

/* Two strings out of any iterable. */
static void separators(jinja *j, style *s, jval v) {
    jval list = jinja_to_list(j, v);
    if (list.seq->n != 2)
        jinja_raise(j, "tojson: separators are (between items, after keys), not %zu values", list.seq->n);
    s->item = jinja_arg_str(j, list.seq->at[0], "tojson: a separator");
    s->key = jinja_arg_str(j, list.seq->at[1], "tojson: a separator");
}

/* tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) */
jval jinja_filter_tojson(jinja *j, jval self, const jval *a) {
    style s = {.ascii = jinja_truth(j, a[0]), .sort = jinja_truth(j, a[3])};
    bool pretty = jinja_given(a[1]);
    s.item = jinja_str(j, pretty ? "," : ", ").s;
    s.key = jinja_str(j, ": ").s;
    if (pretty && a[1].kind == J_STR)
        s.indent = a[1].s;
    else if (pretty) {
        jtext blanks = {.j = j};
        jstr blank = {.p = " ", .n = 1};
        jinja_put_repeat(&blanks, &blank, jinja_arg_int(j, a[1], "tojson: indent"));
        s.indent = jinja_text(&blanks).s;
    }
    if (jinja_given(a[2]))
        separators(j, &s, a[2]);
    jtext t = {.j = j};
    put_json(&t, &s, self, 0);
    return jinja_text(&t);
}

/* str() and repr() of every value, byte for byte as Python prints it, and pprint. */
#include "text/jinja_tree.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers --------------------------------------------------------------------------------- */

/* Shortest digits that read back as f. If 15 digits do, cutting their zeros gives the shortest; else the nearest 16
 * or 17. */
static int shortest_digits(double f, char *digits, int *exponent) {
    char text[40];
    for (int precision = f < DBL_MIN ? 1 : 15; precision <= 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision - 1, f);
        if (precision == 17 || strtod(text, NULL) == f)
            break;
    }
    int n = 0;
    const char *p = text;
    for (; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    *exponent = atoi(p + 1);
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = '\0';
    return n;
}

void jinja_put_float(jtext *t, double f) {
    char digits[40];
    int exponent, n;
    if (isnan(f) || isinf(f)) {
        jinja_puts(t, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    if (signbit(f))
        jinja_puts(t, "-");
    n = shortest_digits(fabs(f), digits, &exponent);
    if (exponent < -4 || exponent >= 16) {
        jinja_put(t, digits, 1);
        if (n > 1)
            jinja_putf(t, ".%s", digits + 1);
        jinja_putf(t, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0)
        jinja_putf(t, "0.%.*s%s", -exponent - 1, "000", digits);
    else if (n <= exponent + 1)
        jinja_putf(t, "%s%.*s.0", digits, exponent + 1 - n, "0000000000000000");
    else
        jinja_putf(t, "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
}

/* ---- repr ------------------------------------------------------------------------------------ */

static void put_escaped_point(jtext *t, int32_t cp, char quote) {
    if (cp == quote || cp == '\\')
        jinja_putf(t, "\\%c", (int)cp);
    else if (cp == '\n')
        jinja_puts(t, "\\n");
    else if (cp == '\r')
        jinja_puts(t, "\\r");
    else if (cp == '\t')
        jinja_puts(t, "\\t");
    else if (jinja_is_printable(cp))
        jinja_put_point(t, cp);
    else if (cp < 0x100)
        jinja_putf(t, "\\x%02x", (unsigned)cp);
    else if (cp < 0x10000)
        jinja_putf(t, "\\u%04x", (unsigned)cp);
    else
        jinja_putf(t, "\\U%08x", (unsigned)cp);
}

static void put_quoted(jtext *t, const jstr *s) {
    char quote = s->n && memchr(s->p, '\'', s->n) && !memchr(s->p, '"', s->n) ? '"' : '\'';
    int32_t cp;
    if (s->markup)
        jinja_puts(t, "Markup(");
    jinja_put(t, &quote, 1);
    for (size_t at = 0; at < s->n;) {
        at += (size_t)sl_utf8_decode(s->p + at, s->n - at, &cp);
        put_escaped_point(t, cp, quote);
    }
    jinja_put(t, &quote, 1);
    if (s->markup)
        jinja_puts(t, ")");
}

static void put_items(jtext *t, const jval *at, size_t n, int depth) {
    for (size_t i = 0; i < n; i++) {
        if (i)
            jinja_puts(t, ", ");
        jinja_put_repr(t, at[i], depth + 1);
    }
}

static void put_dict(jtext *t, const jdict *d, int depth) {
    jinja_puts(t, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            jinja_puts(t, ", ");
        jinja_put_repr(t, d->at[i].key, depth + 1);
        jinja_puts(t, ": ");
        jinja_put_repr(t, d->at[i].value, depth + 1);
    }
    jinja_puts(t, "}");
}

static void put_view(jtext *t, jval v, int depth) {
    jinja_putf(t, "%s([", jinja_type(v));
    jval list = jinja_to_list(t->j, v);
    put_items(t, list.seq->at, list.seq->n, depth);
    jinja_puts(t, "])");
}

static void put_range(jtext *t, const jrange *r) {
    jinja_putf(t, "range(%lld, %lld", (long long)r->start, (long long)r->stop);
    if (r->step != 1)
        jinja_putf(t, ", %lld", (long long)r->step);
    jinja_puts(t, ")");
}

static void put_macro(jtext *t, const jmacro *m) {
    if (!m->node->name) {
        jinja_puts(t, "<Macro anonymous>");
        return;
    }
    jinja_puts(t, "<Macro ");
    put_quoted(t, m->node->name->text);
    jinja_puts(t, ">");
}

void jinja_put_repr(jtext *t, jval v, int depth) {
    jinja_check_depth(t->j, depth);
    switch (v.kind) {
    case J_MISSING:
    case J_UNDEFINED:
        jinja_puts(t, "Undefined");
        break;
    case J_NONE:
        jinja_puts(t, "None");
        break;
    case J_BOOL:
        jinja_puts(t, v.b ? "True" : "False");
        break;
    case J_INT:
        jinja_putf(t, "%lld", (long long)v.i);
        break;
    case J_FLOAT:
        jinja_put_float(t, v.f);
        break;
    case J_STR:
        put_quoted(t, v.s);
        break;
    case J_LIST:
        jinja_puts(t, "[");
        put_items(t, v.seq->at, v.seq->n, depth);
        jinja_puts(t, "]");
        break;
    case J_TUPLE:
        jinja_puts(t, "(");
        put_items(t, v.seq->at, v.seq->n, depth);
        jinja_puts(t, v.seq->n == 1 ? ",)" : ")");
        break;
    case J_DICT:
        put_dict(t, v.d, depth);
        break;
    case J_VIEW:
        put_view(t, v, depth);
        break;
    case J_RANGE:
        put_range(t, v.range);
        break;
    case J_NAMESPACE:
        jinja_puts(t, "<Namespace ");
        put_dict(t, v.d, depth);
        jinja_puts(t, ">");
        break;
    case J_MACRO:
        put_macro(t, v.macro);
        break;
    case J_LOOP:
        jinja_putf(t, "<LoopContext %lld/%lld>", (long long)v.loop->index0 + 1,
                   (long long)jinja_loop_length(t->j, v.loop));
        break;
    case J_FUNCTION:
        jinja_putf(t, "<built-in function %s>", v.fn->builtin->name);
        break;
    default:
        jinja_putf(t, "<%s object>", jinja_type(v));
        break;
    }
}

void jinja_put_value(jtext *t, jval v) {
    if (v.kind == J_STR)
        jinja_put_str(t, v.s);
    else if (v.kind != J_UNDEFINED)
        jinja_put_repr(t, v, 0);
}

jstr *jinja_to_str(jinja *j, jval v) {
    if (v.kind == J_STR)
        return jinja_markup(j, v.s, false).s;
    jtext t = {.j = j};
    jinja_put_value(&t, v);
    return jinja_text(&t).s;
}

jstr *jinja_soft_str(jinja *j, jval v) {
    return v.kind == J_STR ? v.s : jinja_to_str(j, v);
}

/* ---- pprint: width 80, dicts sorted ---------------------------------------------------------- */

#define PPRINT_WIDTH 80

static bool pretty_less(jinja *j, jval a, jval b) {
    bool numbers = a.kind >= J_BOOL && a.kind <= J_FLOAT && b.kind >= J_BOOL && b.kind <= J_FLOAT;
    if (numbers || (a.kind == J_STR && b.kind == J_STR))
        return jinja_less(j, a, b);
    return strcmp(jinja_type(a), jinja_type(b)) < 0;
}

/* The value with every dict in it sorted by key: what pprint prints. Insertion sort; jinja_work bounds it. */
static jval sorted_dicts(jinja *j, jval v, int depth) {
    jinja_check_depth(j, depth);
    if (v.kind == J_LIST || v.kind == J_TUPLE) {
        jval copy = jinja_seq_new(j, v.kind, v.seq->n);
        for (size_t i = 0; i < v.seq->n; i++)
            jinja_push(j, copy, sorted_dicts(j, v.seq->at[i], depth + 1));
        return copy;
    }
    if (v.kind != J_DICT)
        return v;
    size_t n = v.d->n;
    jentry *at = jinja_alloc_array(j, n + 1, sizeof *at);
    for (size_t i = 0; i < n; i++) {
        size_t to = i;
        for (; to > 0 && pretty_less(j, v.d->at[i].key, at[to - 1].key); to--)
            at[to] = at[to - 1];
        at[to] = v.d->at[i];
    }
    jdict *d = jinja_dict_new(j);
    for (size_t i = 0; i < n; i++)
        jinja_dict_put(j, d, at[i].key, sorted_dicts(j, at[i].value, depth + 1));
    return jinja_of_dict(d);
}

static int64_t repr_width(jinja *j, jval v) {
    jtext t = {.j = j};
    jinja_put_repr(&t, v, 0);
    return jinja_points(j, jinja_text(&t).s);
}

static void put_break(jtext *t, const char *before, int64_t indent) {
    jstr blank = {.p = " ", .n = 1};
    jinja_puts(t, before);
    jinja_puts(t, "\n");
    jinja_put_repeat(t, &blank, indent);
}

static void put_pretty(jtext *t, jval v, int64_t indent, int64_t allowance, int level);

/* Pieces of one line: runs of text with the white space behind them, as many as fit. */
static void split_line(jinja *j, jval chunks, jstr *line, int64_t width, int64_t last_width) {
    size_t from = 0, to = 0;
    while (to < line->n) {
        size_t next = to;
        int32_t cp;
        size_t bytes;
        while (next < line->n &&
               (bytes = (size_t)sl_utf8_decode(line->p + next, line->n - next, &cp), !jinja_is_space(cp)))
            next += bytes;
        while (next < line->n &&
               (bytes = (size_t)sl_utf8_decode(line->p + next, line->n - next, &cp), jinja_is_space(cp)))
            next += bytes;
        int64_t limit = next == line->n ? last_width : width;
        if (repr_width(j, jinja_substr(j, line, from, next)) > limit && to > from) {
            jinja_push(j, chunks, jinja_substr(j, line, from, to));
            from = to;
        }
        to = next;
    }
    if (to > from)
        jinja_push(j, chunks, jinja_substr(j, line, from, to));
}

static void put_pretty_str(jtext *t, jstr *s, int64_t indent, int64_t allowance, int level) {
    jinja *j = t->j;
    jval chunks = jinja_seq_new(j, J_LIST, 4), lines = jinja_splitlines(j, s, true);
    indent += level == 1;
    allowance += level == 1;
    int64_t width = PPRINT_WIDTH - indent;
    for (size_t i = 0; i < lines.seq->n; i++) {
        jval line = lines.seq->at[i];
        int64_t last = i + 1 == lines.seq->n ? width - allowance : width;
        if (repr_width(j, line) <= last)
            jinja_push(j, chunks, line);
        else
            split_line(j, chunks, line.s, width, last);
    }
    bool brackets = level == 1 && chunks.seq->n > 1;
    if (brackets)
        jinja_puts(t, "(");
    for (size_t i = 0; i < chunks.seq->n; i++) {
        if (i)
            put_break(t, "", indent);
        jinja_put_repr(t, chunks.seq->at[i], 0);
    }
    if (brackets)
        jinja_puts(t, ")");
}

static void put_pretty_dict(jtext *t, const jdict *d, int64_t indent, int64_t allowance, int level) {
    jinja_puts(t, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            put_break(t, ",", indent + 1);
        jinja_put_repr(t, d->at[i].key, 0);
        jinja_puts(t, ": ");
        put_pretty(t, d->at[i].value, indent + 1 + repr_width(t->j, d->at[i].key) + 2,
                   i + 1 == d->n ? allowance + 1 : 1, level);
    }
    jinja_puts(t, "}");
}

static void put_pretty_seq(jtext *t, jval v, int64_t indent, int64_t allowance, int level) {
    const char *end = v.kind == J_LIST ? "]" : v.seq->n == 1 ? ",)" : ")";
    jinja_puts(t, v.kind == J_LIST ? "[" : "(");
    for (size_t i = 0; i < v.seq->n; i++) {
        if (i)
            put_break(t, ",", indent + 1);
        put_pretty(t, v.seq->at[i], indent + 1, i + 1 == v.seq->n ? allowance + (int64_t)strlen(end) : 1, level);
    }
    jinja_puts(t, end);
}

static void put_pretty(jtext *t, jval v, int64_t indent, int64_t allowance, int level) {
    jinja_check_depth(t->j, level);
    bool fits = repr_width(t->j, v) <= PPRINT_WIDTH - indent - allowance;
    if (!fits && v.kind == J_DICT)
        put_pretty_dict(t, v.d, indent, allowance, level + 1);
    else if (!fits && (v.kind == J_LIST || v.kind == J_TUPLE))
        put_pretty_seq(t, v, indent, allowance, level + 1);
    else if (!fits && v.kind == J_STR && v.s->n && !v.s->markup)
        put_pretty_str(t, v.s, indent, allowance, level + 1);
    else
        jinja_put_repr(t, v, 0);
}

jval jinja_pformat(jinja *j, jval v) {
    jtext t = {.j = j};
    put_pretty(&t, sorted_dicts(j, v, 0), 0, 0, 0);
    return jinja_text(&t);
}

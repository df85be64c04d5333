/* The two syntaxes of formatting: '%d' % x and '{:>8}'.format(x). */
#include "text/jinja_format.h"

#include <string.h>

/* ---- format % values ------------------------------------------------------------------------- */

typedef struct percent {
    jinja *j;
    const jstr *s;
    size_t at;
    jval args;
    bool mapping, markup;
    size_t next; /* positional values used */
} percent;

static jval next_value(percent *p) {
    if (p->args.kind == J_TUPLE) {
        if (p->next < p->args.seq->n)
            return p->args.seq->at[p->next++];
    } else if (p->next++ == 0)
        return p->args;
    jinja_raise(p->j, "format: more fields than values");
}

/* (key) */
static bool keyed_value(percent *p, jval *out) {
    if (p->at >= p->s->n || p->s->p[p->at] != '(')
        return false;
    if (!p->mapping)
        jinja_raise(p->j, "format: a named field needs a mapping, not a %s", jinja_type(p->args));
    size_t from = ++p->at;
    for (int open = 1; open; p->at++) {
        if (p->at >= p->s->n)
            jinja_raise(p->j, "format: a '(' is not closed");
        open += p->s->p[p->at] == '(' ? 1 : p->s->p[p->at] == ')' ? -1 : 0;
    }
    jval key = jinja_str_n(p->j, p->s->p + from, p->at - 1 - from);
    if (p->args.kind == J_UNDEFINED)
        jinja_raise_undefined(p->j, p->args.u);
    jval *v = p->args.kind == J_DICT ? jinja_dict_find(p->j, p->args.d, key) : NULL;
    if (!v)
        jinja_raise(p->j, "format: no value for '%.*s'", (int)(key.s->n > 100 ? 100 : key.s->n), key.s->p);
    *out = *v;
    return true;
}

static int64_t star_or_number(percent *p, jlayout *l, bool width) {
    char c;
    if (!jinja_take(p->s, &p->at, "*", &c))
        return jinja_number_in(p->j, p->s, &p->at);
    int64_t n = jinja_arg_int(p->j, next_value(p), "format: '*'");
    if (n > INT32_MAX || n < -INT32_MAX)
        jinja_raise(p->j, "format: a width too large");
    if (width && n < 0) {
        l->align = '<';
        return -n;
    }
    return n < 0 ? 0 : n;
}

static void put_percent_int(percent *p, jtext *t, jlayout *l, jval v) {
    if (v.kind == J_UNDEFINED)
        jinja_raise_undefined(p->j, v.u);
    int64_t i = strchr("xXo", l->type) ? jinja_arg_int(p->j, v, "format: %x") : jinja_as_int(p->j, v, "format: %d");
    if (l->precision >= 0) { /* least number of digits */
        jtext digits = {.j = p->j};
        jlayout inner = {.precision = -1, .type = l->type, .width = l->precision, .align = '='};
        inner.fill = jinja_str(p->j, "0").s;
        uint64_t magnitude = i < 0 ? -(uint64_t)i : (uint64_t)i;
        jinja_put_integer(&digits, &inner, (int64_t)magnitude);
        char sign[4];
        strcpy(sign, jinja_sign(i < 0, l->sign));
        if (l->alternate && strchr("xXo", l->type))
            strcat(sign, (const char[]){'0', l->type, '\0'});
        jinja_put_field(t, l, sign, jinja_text(&digits).s, '>');
        return;
    }
    jinja_put_integer(t, l, i);
}

static void put_percent_text(percent *p, jtext *t, jlayout *l, jval v) {
    jstr *s = l->type == 'c' ? jinja_one_character(p->j, v).s : l->type == 's' ? jinja_soft_str(p->j, v) : NULL;
    if (!s)
        s = jinja_repr_of(p->j, v, l->type == 'a');
    if (p->markup)
        s = jinja_escape(p->j, jinja_of_str(s)).s;
    l->fill = NULL;
    if (l->align == '=')
        l->align = '>';
    jinja_put_field(t, l, "", l->type == 'c' ? s : jinja_cut(p->j, s, l->precision), '>');
}

/* Behind a '%'. */
static void put_percent(percent *p, jtext *t) {
    jlayout l = {.precision = -1};
    jval v = jinja_missing();
    char c, flag;
    keyed_value(p, &v);
    bool left = false, zero = false;
    while (jinja_take(p->s, &p->at, "-+ #0", &flag)) {
        left |= flag == '-';
        zero |= flag == '0';
        l.alternate |= flag == '#';
        if (flag == '+' || (flag == ' ' && l.sign != '+'))
            l.sign = flag;
    }
    l.width = star_or_number(p, &l, true);
    if (jinja_take(p->s, &p->at, ".", &c))
        l.precision = star_or_number(p, &l, false);
    jinja_take(p->s, &p->at, "hlL", &c);
    if (p->at >= p->s->n)
        jinja_raise(p->j, "format: a field is not complete");
    l.type = p->s->p[p->at++];
    if (l.type == '%') {
        jinja_puts(t, "%");
        return;
    }
    if (left || l.align == '<')
        l.align = '<';
    else if (zero) {
        l.align = '=';
        l.fill = jinja_str(p->j, "0").s;
    }
    if (!strchr("srcadiuxXoeEfFgG", l.type) || !l.type)
        jinja_raise(p->j, "format: unknown field '%%%c'", l.type >= 0x20 && l.type < 0x7F ? l.type : '?');
    if (v.kind == J_MISSING)
        v = next_value(p);
    if (strchr("srca", l.type))
        put_percent_text(p, t, &l, v);
    else if (strchr("diuxXo", l.type)) {
        if (strchr("diu", l.type))
            l.type = 'd';
        put_percent_int(p, t, &l, v);
    } else {
        if (v.kind == J_UNDEFINED)
            jinja_raise_undefined(p->j, v.u);
        jinja_put_real(t, &l, jinja_as_float(p->j, v));
    }
}

jval jinja_percent_format(jinja *j, const jstr *format, jval args) {
    jtext t = {.j = j};
    percent p = {.j = j, .s = format, .args = args, .markup = format->markup};
    p.mapping = args.kind == J_DICT || args.kind == J_LIST || args.kind == J_UNDEFINED || args.kind == J_RANGE;
    while (p.at < format->n) {
        const char *hit = memchr(format->p + p.at, '%', format->n - p.at);
        size_t to = hit ? (size_t)(hit - format->p) : format->n;
        jinja_put(&t, format->p + p.at, to - p.at);
        p.at = to + 1;
        if (hit)
            put_percent(&p, &t);
    }
    size_t given = args.kind == J_TUPLE ? args.seq->n : 1;
    if (p.next < given && !p.mapping)
        jinja_raise(j, "format: more values than fields");
    jval v = jinja_text(&t);
    v.s->markup = format->markup;
    return v;
}

/* ---- '{}'.format() --------------------------------------------------------------------------- */

typedef struct brace {
    jinja *j;
    const jargs *args;
    int64_t automatic; /* next {}; -1: fields are numbered by hand */
    bool markup;
} brace;

static jval brace_argument(brace *b, const jstr *first) {
    jinja *j = b->j;
    int64_t index;
    bool digits = first->n > 0;
    for (size_t i = 0; i < first->n; i++)
        digits &= first->p[i] >= '0' && first->p[i] <= '9';
    if (!first->n) {
        if (b->automatic < 0)
            jinja_raise(j, "format: fields are numbered both by hand and automatically");
        index = b->automatic++;
    } else if (digits) {
        if (b->automatic > 0)
            jinja_raise(j, "format: fields are numbered both by hand and automatically");
        b->automatic = -1;
        if (jinja_parse_int(j, first, 10, &index) != 1)
            index = INT64_MAX;
    } else {
        for (size_t i = 0; i < b->args->named_n; i++)
            if (jinja_same(b->args->named[i].key.s, first))
                return b->args->named[i].value;
        jinja_raise(j, "format: no value for '%.*s'", (int)(first->n > 100 ? 100 : first->n), first->p);
    }
    if (index >= (int64_t)b->args->n)
        jinja_raise(j, "format: no value number %lld", (long long)index);
    return b->args->at[index];
}

/* name.attr[item]... */
static jval brace_field(brace *b, const jstr *name) {
    jinja *j = b->j;
    size_t at = 0;
    while (at < name->n && name->p[at] != '.' && name->p[at] != '[')
        at++;
    jval v = brace_argument(b, jinja_view_n(j, name->p, at));
    while (at < name->n) {
        bool item = name->p[at++] == '[';
        size_t from = at;
        while (at < name->n && (item ? name->p[at] != ']' : name->p[at] != '.' && name->p[at] != '['))
            at++;
        const jstr *part = jinja_view_n(j, name->p + from, at - from);
        if (!part->n || (item && at == name->n))
            jinja_raise(j, "format: '%.*s' is no field", (int)(name->n > 100 ? 100 : name->n), name->p);
        if (item) {
            int64_t index;
            at++;
            if (at < name->n && name->p[at] != '.' && name->p[at] != '[')
                jinja_raise(j, "format: only '.' or '[' may follow ']'");
            bool number = jinja_parse_int(j, part, 10, &index) == 1 && part->p[0] >= '0' && part->p[0] <= '9';
            v = jinja_getitem(j, v, number ? jinja_int(index) : jinja_of_str(part));
        } else
            v = jinja_getattr(j, v, part);
    }
    return v;
}

static jval brace_text(brace *b, const jstr *s, int depth);

static void put_brace(brace *b, jtext *t, const jstr *inside, int depth) {
    jinja *j = b->j;
    size_t name = 0, at;
    for (int square = 0; name < inside->n; name++) {
        char c = inside->p[name];
        square = c == '[' ? 1 : c == ']' ? 0 : square;
        if (!square && (c == '!' || c == ':'))
            break;
        if (!square && (c == '{' || c == '}'))
            jinja_raise(j, "format: a brace in the name of a field");
    }
    at = name;
    char conversion = 0;
    if (at < inside->n && inside->p[at] == '!') {
        conversion = at + 1 < inside->n ? inside->p[at + 1] : 0;
        at += 2;
        if (!conversion || !strchr("rsa", conversion) || (at < inside->n && inside->p[at] != ':'))
            jinja_raise(j, "format: '!' must be followed by r, s or a");
    }
    jval v = brace_field(b, jinja_view_n(j, inside->p, name));
    if (conversion == 's')
        v = jinja_of_str(jinja_to_str(j, v));
    else if (conversion)
        v = jinja_of_str(jinja_repr_of(j, v, conversion == 'a'));
    jstr *spec = jinja_view_n(j, "", 0);
    if (at < inside->n)
        spec = brace_text(b, jinja_view_n(j, inside->p + at + 1, inside->n - at - 1), depth + 1).s;
    jtext field = {.j = j};
    if (b->markup && v.kind == J_STR && v.s->markup && spec->n)
        jinja_raise(j, "format: Markup takes no format");
    jinja_format_value(&field, v, spec);
    jval text = jinja_text(&field);
    if (b->markup && !(v.kind == J_STR && v.s->markup))
        text = jinja_escape(j, text);
    jinja_put_str(t, text.s);
}

/* End of the field that starts behind a '{' at `at`: its '}'. */
static size_t brace_end(jinja *j, const jstr *s, size_t at) {
    int open = 1;
    for (; at < s->n; at++) {
        open += s->p[at] == '{' ? 1 : s->p[at] == '}' ? -1 : 0;
        if (!open)
            return at;
    }
    jinja_raise(j, "format: a '{' is not closed");
}

static jval brace_text(brace *b, const jstr *s, int depth) {
    jtext t = {.j = b->j};
    if (depth > 2)
        jinja_raise(b->j, "format: fields nested too deep");
    for (size_t at = 0; at < s->n; at++) {
        char c = s->p[at];
        bool twice = at + 1 < s->n && s->p[at + 1] == c;
        if ((c == '{' || c == '}') && twice) {
            jinja_put(&t, &c, 1);
            at++;
        } else if (c == '{') {
            size_t end = brace_end(b->j, s, at + 1);
            put_brace(b, &t, jinja_view_n(b->j, s->p + at + 1, end - at - 1), depth);
            at = end;
        } else if (c == '}')
            jinja_raise(b->j, "format: a '}' without its '{'");
        else
            jinja_put(&t, &c, 1);
    }
    return jinja_text(&t);
}

jval jinja_brace_format(jinja *j, const jstr *format, const jargs *args) {
    brace b = {.j = j, .args = args, .markup = format->markup};
    jval v = brace_text(&b, format, 0);
    v.s->markup = format->markup;
    return v;
}

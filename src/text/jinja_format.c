/* Formatting: '%d' % x, '{:>8}'.format(x). */
#include "text/jinja.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How one value is to look, from either syntax. */
typedef struct layout {
    const jstr *fill;         /* one character; NULL: by default */
    char align;               /* '<' '>' '=' '^', 0: by default */
    char sign;                /* '+' '-' ' ', 0 */
    bool alternate;           /* '#' */
    char group;               /* ',' '_' between digits, 0 */
    int64_t width, precision; /* precision -1: none */
    char type;                /* 0: none */
} layout;

static int64_t as_int(jinja *j, jval v, const char *what) {
    if (v.kind == J_FLOAT && fabs(v.f) < 9.2e18)
        return (int64_t)v.f;
    return jinja_arg_int(j, v, what);
}

static double as_float(jinja *j, jval v) {
    if (v.kind == J_FLOAT)
        return v.f;
    return (double)jinja_arg_int(j, v, "format: a number");
}

/* ---- a field: sign, prefix, digits, padding -------------------------------------------------- */

static void put_field(jtext *t, const layout *l, const char *sign, jstr *body, char default_align) {
    jstr blank = {.p = " ", .n = 1};
    const jstr *fill = l->fill ? l->fill : &blank;
    char align = l->align ? l->align : default_align;
    int64_t pad = l->width - (int64_t)strlen(sign) - jinja_points(t->j, body);
    if (pad < 0)
        pad = 0;
    int64_t left = align == '>' || align == '=' ? pad : align == '^' ? pad / 2 : 0;
    if (align == '=')
        jinja_puts(t, sign);
    jinja_put_repeat(t, fill, left);
    if (align != '=')
        jinja_puts(t, sign);
    jinja_put_str(t, body);
    jinja_put_repeat(t, fill, pad - left);
}

/* Digits of a number with a separator each `every` from the right; with fill '0' and '=', zeros up to the width are
 * grouped too. */
static jstr *group_digits(jinja *j, const char *digits, size_t n, char separator, size_t every, int64_t width) {
    jtext t = {.j = j};
    if (width > (int64_t)j->limits.output)
        jinja_raise(j, "a text longer than %zu MiB", j->limits.output >> 20);
    size_t total = n;
    while (separator && (int64_t)(total + (total - 1) / every) < width)
        total++;
    for (size_t i = 0; i < total; i++) {
        size_t left = total - i;
        if (separator && i && left % every == 0)
            jinja_put(&t, &separator, 1);
        jinja_put(&t, left > n ? "0" : &digits[n - left], 1);
    }
    return jinja_text(&t).s;
}

static bool zero_filled(const layout *l) {
    return l->fill && l->fill->n == 1 && l->fill->p[0] == '0' && (l->align == '=' || l->align == 0);
}

static const char *sign_of(bool negative, char sign) {
    return negative ? "-" : sign == '+' ? "+" : sign == ' ' ? " " : "";
}

static void put_integer(jtext *t, const layout *l, int64_t v) {
    char digits[72], sign[4];
    size_t n = 0;
    int base = l->type == 'x' || l->type == 'X' ? 16 : l->type == 'o' ? 8 : l->type == 'b' ? 2 : 10;
    uint64_t rest = v < 0 ? -(uint64_t)v : (uint64_t)v;
    do {
        digits[n++] = (l->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[rest % (unsigned)base];
        rest /= (unsigned)base;
    } while (rest);
    for (size_t i = 0; i < n / 2; i++) {
        char swap = digits[i];
        digits[i] = digits[n - 1 - i];
        digits[n - 1 - i] = swap;
    }
    strcpy(sign, sign_of(v < 0, l->sign));
    if (l->alternate && base != 10)
        strcat(sign, (const char[]){'0', l->type, '\0'});
    int64_t room = zero_filled(l) ? l->width - (int64_t)strlen(sign) : 0;
    jstr *body = group_digits(t->j, digits, n, l->group, base == 10 ? 3 : 4, room);
    put_field(t, l, sign, body, '>');
}

/* 'g' with at least one digit after the point, for floats with a precision and no type. */
static void add_point_zero(char *text) {
    if (strpbrk(text, ".eEn") == NULL)
        strcat(text, ".0");
}

static char *float_digits(jinja *j, const layout *l, double f, size_t *n) {
    jtext t = {.j = j};
    if (l->precision > (int64_t)j->limits.output / 2)
        jinja_raise(j, "a text longer than %zu MiB", j->limits.output >> 20);
    int precision = l->precision < 0 ? 6 : (int)l->precision;
    char type = l->type;
    if (type == '%') {
        f *= 100;
        type = 'f';
    }
    if (!type && l->precision < 0)
        jinja_put_float(&t, f);
    else {
        if (!type || type == 'n')
            type = 'g';
        char fmt[8] = "%";
        strcat(fmt, l->alternate ? "#.*" : ".*");
        strncat(fmt, &type, 1);
        jinja_putf(&t, fmt, precision, f);
    }
    char *text = jinja_alloc(j, t.n + 4);
    memcpy(text, t.p, t.n);
    if (!l->type && l->precision >= 0 && isfinite(f))
        add_point_zero(text);
    if (l->type == '%')
        strcat(text, "%");
    *n = strlen(text);
    return text;
}

static void put_real(jtext *t, const layout *l, double f) {
    size_t n;
    char *text = float_digits(t->j, l, fabs(f), &n);
    const char *sign = sign_of(signbit(f) && !isnan(f), l->sign);
    size_t whole = strspn(text, "0123456789");
    if (!whole) { /* inf, nan */
        put_field(t, l, sign, jinja_view_n(t->j, text, n), '>');
        return;
    }
    int64_t room = zero_filled(l) ? l->width - (int64_t)strlen(sign) - (int64_t)(n - whole) : 0;
    jstr *grouped = group_digits(t->j, text, whole, l->group, 3, room);
    jtext body = {.j = t->j};
    jinja_put_str(&body, grouped);
    jinja_put(&body, text + whole, n - whole);
    put_field(t, l, sign, jinja_text(&body).s, '>');
}

static jstr *cut(jinja *j, jstr *s, int64_t precision) {
    if (precision < 0 || precision >= jinja_points(j, s))
        return s;
    return jinja_substr(j, s, 0, jinja_offset(j, s, precision)).s;
}

static jval one_character(jinja *j, jval v) {
    if (v.kind == J_STR && jinja_points(j, v.s) == 1)
        return v;
    int64_t cp = jinja_arg_int(j, v, "format: a character");
    if (cp < 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
        jinja_raise(j, "format: %lld is no character", (long long)cp);
    jtext t = {.j = j};
    jinja_put_point(&t, (int32_t)cp);
    return jinja_text(&t);
}

static jstr *repr_of(jinja *j, jval v, bool ascii) {
    jtext t = {.j = j}, plain = {.j = j};
    jinja_put_repr(&t, v, 0);
    jstr *s = jinja_text(&t).s;
    if (!ascii)
        return s;
    for (size_t at = 0; at < s->n;) {
        int32_t cp;
        at += (size_t)sl_utf8_decode(s->p + at, s->n - at, &cp);
        if (cp < 0x80)
            jinja_put_point(&plain, cp);
        else
            jinja_putf(&plain, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)cp);
    }
    return jinja_text(&plain).s;
}

/* ---- format(value, spec) --------------------------------------------------------------------- */

static int64_t number_in(jinja *j, const jstr *s, size_t *at) {
    int64_t n = 0;
    for (; *at < s->n && s->p[*at] >= '0' && s->p[*at] <= '9'; (*at)++) {
        n = n * 10 + (s->p[*at] - '0');
        if (n > INT32_MAX)
            jinja_raise(j, "format: a number too large in '%.*s'", (int)(s->n > 100 ? 100 : s->n), s->p);
    }
    return n;
}

static bool take(const jstr *s, size_t *at, const char *any, char *out) {
    if (*at >= s->n || !strchr(any, s->p[*at]) || !s->p[*at])
        return false;
    *out = s->p[(*at)++];
    return true;
}

/* [[fill]align][sign][#][0][width][,_][.precision][type] */
static layout parse_layout(jinja *j, const jstr *s) {
    layout l = {.precision = -1};
    size_t at = 0;
    int32_t cp;
    char c;
    if (s->n) {
        size_t bytes = (size_t)sl_utf8_decode(s->p, s->n, &cp);
        size_t after = bytes;
        if (take(s, &after, "<>=^", &l.align)) {
            l.fill = jinja_view_n(j, s->p, bytes);
            at = after;
        } else
            take(s, &at, "<>=^", &l.align);
    }
    take(s, &at, "+- ", &l.sign);
    l.alternate = take(s, &at, "#", &c);
    if (at < s->n && s->p[at] == '0' && !l.fill) {
        l.fill = jinja_str(j, "0").s;
        if (!l.align)
            l.align = '=';
    }
    l.width = number_in(j, s, &at);
    take(s, &at, ",_", &l.group);
    if (take(s, &at, ".", &c)) {
        size_t before = at;
        l.precision = number_in(j, s, &at);
        if (at == before)
            jinja_raise(j, "format: no precision after '.'");
    }
    if (at < s->n && (unsigned char)s->p[at] < 0x80)
        l.type = s->p[at++];
    if (at != s->n)
        jinja_raise(j, "format: '%.*s' is no format", (int)(s->n > 100 ? 100 : s->n), s->p);
    return l;
}

static void format_str(jtext *t, jstr *s, layout l, bool zero_align) {
    if (l.align == '=' && zero_align)
        l.align = '<';
    if ((l.type && l.type != 's') || l.align == '=' || l.sign || l.group || l.alternate)
        jinja_raise(t->j, "format: not a format for a str");
    put_field(t, &l, "", cut(t->j, s, l.precision), '<');
}

static void format_number(jtext *t, jval v, layout l) {
    if (l.type == 'c' && v.kind != J_FLOAT) {
        jval c = one_character(t->j, v);
        put_field(t, &l, "", c.s, '>');
    } else if (l.type && strchr("eEfFgG%", l.type))
        put_real(t, &l, as_float(t->j, v));
    else if (v.kind == J_FLOAT && (!l.type || l.type == 'n'))
        put_real(t, &l, v.f);
    else if (v.kind != J_FLOAT && l.precision < 0 && (!l.type || strchr("bdoxXn", l.type)))
        put_integer(t, &l, jinja_arg_int(t->j, v, "format: a number"));
    else
        jinja_raise(t->j, "format: not a format for a %s", jinja_type(v));
}

void jinja_format_value(jtext *t, jval v, const jstr *spec) {
    if (!spec->n) {
        jinja_put_value(t, v);
        return;
    }
    if (v.kind != J_STR && v.kind != J_BOOL && v.kind != J_INT && v.kind != J_FLOAT)
        jinja_raise(t->j, "format: '%.*s' is not a format for a %s", (int)(spec->n > 100 ? 100 : spec->n), spec->p,
                    jinja_type(v));
    layout l = parse_layout(t->j, spec);
    if (v.kind != J_STR) {
        format_number(t, v, l);
        return;
    }
    bool explicit_align = memchr(spec->p, '=', spec->n) != NULL;
    format_str(t, v.s, l, !explicit_align);
}

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

static int64_t star_or_number(percent *p, layout *l, bool width) {
    char c;
    if (!take(p->s, &p->at, "*", &c))
        return number_in(p->j, p->s, &p->at);
    int64_t n = jinja_arg_int(p->j, next_value(p), "format: '*'");
    if (n > INT32_MAX || n < -INT32_MAX)
        jinja_raise(p->j, "format: a width too large");
    if (width && n < 0) {
        l->align = '<';
        return -n;
    }
    return n < 0 ? 0 : n;
}

static void put_percent_int(percent *p, jtext *t, layout *l, jval v) {
    if (v.kind == J_UNDEFINED)
        jinja_raise_undefined(p->j, v.u);
    int64_t i = strchr("xXo", l->type) ? jinja_arg_int(p->j, v, "format: %x") : as_int(p->j, v, "format: %d");
    if (l->precision >= 0) { /* least number of digits */
        jtext digits = {.j = p->j};
        layout inner = {.precision = -1, .type = l->type, .width = l->precision, .align = '='};
        inner.fill = jinja_str(p->j, "0").s;
        uint64_t magnitude = i < 0 ? -(uint64_t)i : (uint64_t)i;
        put_integer(&digits, &inner, (int64_t)magnitude);
        char sign[4];
        strcpy(sign, sign_of(i < 0, l->sign));
        if (l->alternate && strchr("xXo", l->type))
            strcat(sign, (const char[]){'0', l->type, '\0'});
        put_field(t, l, sign, jinja_text(&digits).s, '>');
        return;
    }
    put_integer(t, l, i);
}

static void put_percent_text(percent *p, jtext *t, layout *l, jval v) {
    jstr *s = l->type == 'c' ? one_character(p->j, v).s : l->type == 's' ? jinja_soft_str(p->j, v) : NULL;
    if (!s)
        s = repr_of(p->j, v, l->type == 'a');
    if (p->markup)
        s = jinja_escape(p->j, jinja_of_str(s)).s;
    l->fill = NULL;
    if (l->align == '=')
        l->align = '>';
    put_field(t, l, "", l->type == 'c' ? s : cut(p->j, s, l->precision), '>');
}

/* Behind a '%'. */
static void put_percent(percent *p, jtext *t) {
    layout l = {.precision = -1};
    jval v = jinja_missing();
    char c, flag;
    keyed_value(p, &v);
    bool left = false, zero = false;
    while (take(p->s, &p->at, "-+ #0", &flag)) {
        left |= flag == '-';
        zero |= flag == '0';
        l.alternate |= flag == '#';
        if (flag == '+' || (flag == ' ' && l.sign != '+'))
            l.sign = flag;
    }
    l.width = star_or_number(p, &l, true);
    if (take(p->s, &p->at, ".", &c))
        l.precision = star_or_number(p, &l, false);
    take(p->s, &p->at, "hlL", &c);
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
        put_real(t, &l, as_float(p->j, v));
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
        v = jinja_of_str(repr_of(j, v, conversion == 'a'));
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

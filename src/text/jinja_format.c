/* How numbers and texts are laid out in a field, for both syntaxes of formatting; and format(value, spec). */
#include "text/jinja_format.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t jinja_as_int(jinja *j, jval v, const char *what) {
    if (v.kind == J_FLOAT && fabs(v.f) < 9.2e18)
        return (int64_t)v.f;
    return jinja_arg_int(j, v, what);
}

double jinja_as_float(jinja *j, jval v) {
    if (v.kind == J_FLOAT)
        return v.f;
    return (double)jinja_arg_int(j, v, "format: a number");
}

/* ---- a field: sign, prefix, digits, padding -------------------------------------------------- */

void jinja_put_field(jtext *t, const jlayout *l, const char *sign, jstr *body, char default_align) {
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

static bool zero_filled(const jlayout *l) {
    return l->fill && l->fill->n == 1 && l->fill->p[0] == '0' && (l->align == '=' || l->align == 0);
}

const char *jinja_sign(bool negative, char sign) {
    return negative ? "-" : sign == '+' ? "+" : sign == ' ' ? " " : "";
}

void jinja_put_integer(jtext *t, const jlayout *l, int64_t v) {
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
    strcpy(sign, jinja_sign(v < 0, l->sign));
    if (l->alternate && base != 10)
        strcat(sign, (const char[]){'0', l->type, '\0'});
    int64_t room = zero_filled(l) ? l->width - (int64_t)strlen(sign) : 0;
    jstr *body = group_digits(t->j, digits, n, l->group, base == 10 ? 3 : 4, room);
    jinja_put_field(t, l, sign, body, '>');
}

/* A float with a precision and no type: 'g' but with a digit behind the point, so the exponent comes one digit earlier.
 */
static void put_general(jtext *t, int precision, double f) {
    jtext e = {.j = t->j};
    if (!isfinite(f)) {
        jinja_put_float(t, f);
        return;
    }
    if (precision == 0)
        precision = 1;
    jinja_putf(&e, "%.*e", precision - 1, f);
    size_t mantissa = 0;
    while (e.p[mantissa] != 'e')
        mantissa++;
    jinja_put(&e, "", 1);
    int exponent = atoi(e.p + mantissa + 1);
    if (exponent >= -4 && exponent < precision - 1) {
        size_t before = t->n;
        jinja_putf(t, "%.*g", precision, f);
        if (!memchr(t->p + before, '.', t->n - before))
            jinja_puts(t, ".0");
        return;
    }
    size_t end = mantissa;
    while (memchr(e.p, '.', mantissa) && e.p[end - 1] == '0')
        end--;
    end -= e.p[end - 1] == '.';
    jinja_put(t, e.p, end);
    jinja_puts(t, e.p + mantissa);
}

static char *float_digits(jinja *j, const jlayout *l, double f, size_t *n) {
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
    else if (!type)
        put_general(&t, precision, f);
    else {
        const char fmt[] = {'%', '.', '*', type == 'n' ? 'g' : type, '\0'};
        const char alternate[] = {'%', '#', '.', '*', type == 'n' ? 'g' : type, '\0'};
        jinja_putf(&t, l->alternate ? alternate : fmt, precision, f);
    }
    char *text = jinja_alloc(j, t.n + 4);
    memcpy(text, t.p, t.n);
    if (l->type == '%')
        strcat(text, "%");
    *n = strlen(text);
    return text;
}

void jinja_put_real(jtext *t, const jlayout *l, double f) {
    size_t n;
    char *text = float_digits(t->j, l, fabs(f), &n);
    const char *sign = jinja_sign(signbit(f) && !isnan(f), l->sign);
    size_t whole = strspn(text, "0123456789");
    if (!whole) { /* inf, nan */
        jinja_put_field(t, l, sign, jinja_view_n(t->j, text, n), '>');
        return;
    }
    int64_t room = zero_filled(l) ? l->width - (int64_t)strlen(sign) - (int64_t)(n - whole) : 0;
    jstr *grouped = group_digits(t->j, text, whole, l->group, 3, room);
    jtext body = {.j = t->j};
    jinja_put_str(&body, grouped);
    jinja_put(&body, text + whole, n - whole);
    jinja_put_field(t, l, sign, jinja_text(&body).s, '>');
}

jstr *jinja_cut(jinja *j, jstr *s, int64_t precision) {
    if (precision < 0 || precision >= jinja_points(j, s))
        return s;
    return jinja_substr(j, s, 0, jinja_offset(j, s, precision)).s;
}

jval jinja_one_character(jinja *j, jval v) {
    if (v.kind == J_STR && jinja_points(j, v.s) == 1)
        return v;
    int64_t cp = jinja_arg_int(j, v, "format: a character");
    if (cp < 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
        jinja_raise(j, "format: %lld is no character", (long long)cp);
    jtext t = {.j = j};
    jinja_put_point(&t, (int32_t)cp);
    return jinja_text(&t);
}

jstr *jinja_repr_of(jinja *j, jval v, bool ascii) {
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

int64_t jinja_number_in(jinja *j, const jstr *s, size_t *at) {
    int64_t n = 0;
    for (; *at < s->n && s->p[*at] >= '0' && s->p[*at] <= '9'; (*at)++) {
        n = n * 10 + (s->p[*at] - '0');
        if (n > INT32_MAX)
            jinja_raise(j, "format: a number too large in '%.*s'", (int)(s->n > 100 ? 100 : s->n), s->p);
    }
    return n;
}

bool jinja_take(const jstr *s, size_t *at, const char *any, char *out) {
    if (*at >= s->n || !strchr(any, s->p[*at]) || !s->p[*at])
        return false;
    *out = s->p[(*at)++];
    return true;
}

/* [[fill]align][sign][#][0][width][,_][.precision][type] */
static jlayout parse_layout(jinja *j, const jstr *s) {
    jlayout l = {.precision = -1};
    size_t at = 0;
    int32_t cp;
    char c;
    if (s->n) {
        size_t bytes = (size_t)sl_utf8_decode(s->p, s->n, &cp);
        size_t after = bytes;
        if (jinja_take(s, &after, "<>=^", &l.align)) {
            l.fill = jinja_view_n(j, s->p, bytes);
            at = after;
        } else
            jinja_take(s, &at, "<>=^", &l.align);
    }
    jinja_take(s, &at, "+- ", &l.sign);
    l.alternate = jinja_take(s, &at, "#", &c);
    if (at < s->n && s->p[at] == '0' && !l.fill) {
        l.fill = jinja_str(j, "0").s;
        if (!l.align)
            l.align = '=';
    }
    l.width = jinja_number_in(j, s, &at);
    jinja_take(s, &at, ",_", &l.group);
    if (jinja_take(s, &at, ".", &c)) {
        size_t before = at;
        l.precision = jinja_number_in(j, s, &at);
        if (at == before)
            jinja_raise(j, "format: no precision after '.'");
    }
    if (at < s->n && (unsigned char)s->p[at] < 0x80)
        l.type = s->p[at++];
    if (at != s->n)
        jinja_raise(j, "format: '%.*s' is no format", (int)(s->n > 100 ? 100 : s->n), s->p);
    return l;
}

static void format_str(jtext *t, jstr *s, jlayout l, bool zero_align) {
    if (l.align == '=' && zero_align)
        l.align = '<';
    if ((l.type && l.type != 's') || l.align == '=' || l.sign || l.group || l.alternate)
        jinja_raise(t->j, "format: not a format for a str");
    jinja_put_field(t, &l, "", jinja_cut(t->j, s, l.precision), '<');
}

static void format_number(jtext *t, jval v, jlayout l) {
    if (l.type == 'c' && v.kind != J_FLOAT) {
        jval c = jinja_one_character(t->j, v);
        jinja_put_field(t, &l, "", c.s, '>');
    } else if (l.type && strchr("eEfFgG%", l.type))
        jinja_put_real(t, &l, jinja_as_float(t->j, v));
    else if (v.kind == J_FLOAT && (!l.type || l.type == 'n'))
        jinja_put_real(t, &l, v.f);
    else if (v.kind != J_FLOAT && l.precision < 0 && (!l.type || strchr("bdoxXn", l.type)))
        jinja_put_integer(t, &l, jinja_arg_int(t->j, v, "format: a number"));
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
    jlayout l = parse_layout(t->j, spec);
    if (v.kind != J_STR) {
        format_number(t, v, l);
        return;
    }
    bool explicit_align = memchr(spec->p, '=', spec->n) != NULL;
    format_str(t, v.s, l, !explicit_align);
}

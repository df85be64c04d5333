/* Filters on text and single values. Each comment is the signature in jinja2; self is the value before the '|'. */
#include "text/jinja.h"

#include <math.h>
#include <string.h>

/* ---- defaults and conversions ---------------------------------------------------------------- */

/* default(value, default_value='', boolean=False) */
static jval filter_default(jinja *j, jval self, const jval *a) {
    bool replace =
        self.kind == J_UNDEFINED || (a[1].kind != J_MISSING && jinja_truth(j, a[1]) && !jinja_truth(j, self));
    if (!replace)
        return self;
    return a[0].kind == J_MISSING ? jinja_str(j, "") : a[0];
}

static jval filter_string(jinja *j, jval self, const jval *a) {
    return jinja_of_str(jinja_soft_str(j, self));
}

static jval filter_safe(jinja *j, jval self, const jval *a) {
    return jinja_markup(j, jinja_soft_str(j, self), true);
}

static jval filter_escape(jinja *j, jval self, const jval *a) {
    return jinja_escape(j, self);
}

static jval filter_forceescape(jinja *j, jval self, const jval *a) {
    return jinja_escape(j, jinja_of_str(jinja_to_str(j, self)));
}

static jval float_to_int(jinja *j, double f) {
    if (!(fabs(f) < 9223372036854775808.0))
        jinja_raise(j, "int: the number does not fit in 64 bits");
    return jinja_int((int64_t)f);
}

/* int(value, default=0, base=10) */
static jval filter_int(jinja *j, jval self, const jval *a) {
    jval fallback = a[0].kind == J_MISSING ? jinja_int(0) : a[0];
    int64_t base, value;
    double f;
    switch (self.kind) {
    case J_INT:
    case J_BOOL:
        return jinja_int(self.kind == J_BOOL ? self.b : self.i);
    case J_FLOAT:
        if (isinf(self.f))
            jinja_raise(j, "int: infinity is no int");
        return isnan(self.f) ? fallback : float_to_int(j, self.f);
    case J_UNDEFINED:
        jinja_raise_undefined(j, self.u);
    case J_STR:
        break;
    default:
        return fallback;
    }
    base = a[1].kind == J_MISSING ? 10 : a[1].kind == J_INT ? a[1].i : -1; /* -1: as with a bad base, read as a float */
    if (base == 0 || (base >= 2 && base <= 36)) {
        int ok = jinja_parse_int(j, self.s, (int)base, &value);
        if (ok < 0)
            jinja_raise(j, "int: the number does not fit in 64 bits");
        if (ok)
            return jinja_int(value);
    }
    if (!jinja_parse_float(j, self.s, &f) || isnan(f) || isinf(f))
        return fallback;
    return float_to_int(j, f);
}

/* float(value, default=0.0) */
static jval filter_float(jinja *j, jval self, const jval *a) {
    double f;
    switch (self.kind) {
    case J_FLOAT:
        return self;
    case J_INT:
    case J_BOOL:
        return jinja_float((double)(self.kind == J_BOOL ? self.b : self.i));
    case J_UNDEFINED:
        jinja_raise_undefined(j, self.u);
    case J_STR:
        if (jinja_parse_float(j, self.s, &f))
            return jinja_float(f);
        break;
    default:
        break;
    }
    return a[0].kind == J_MISSING ? jinja_float(0) : a[0];
}

static jval filter_abs(jinja *j, jval self, const jval *a) {
    if (self.kind == J_FLOAT)
        return jinja_float(fabs(self.f));
    int64_t i = jinja_arg_int(j, self, "abs: the value");
    return i < 0 ? jinja_negate(j, self) : jinja_int(i);
}

/* Half to even, as round() does. */
static jval round_int(jinja *j, int64_t i, int64_t digits) {
    if (digits >= 0)
        return jinja_int(i);
    int64_t unit = 1;
    for (; digits < 0; digits++)
        if (__builtin_mul_overflow(unit, 10, &unit))
            return jinja_int(0);
    int64_t rest = i % unit, down = i - rest, result;
    if (rest < 0) {
        rest += unit;
        down -= unit;
    }
    bool up = rest > unit - rest || (rest == unit - rest && (down / unit) % 2 != 0);
    if (__builtin_add_overflow(down, up ? unit : 0, &result))
        jinja_raise(j, "round: the number does not fit in 64 bits");
    return jinja_int(result);
}

/* Correctly rounded decimal, as Python's round(): through the digits, which the C library rounds exactly. */
static jval round_float(jinja *j, double f, int64_t digits) {
    if (!isfinite(f) || digits > 323)
        return jinja_float(f);
    if (digits < -308)
        return jinja_float(copysign(0, f));
    jtext t = {.j = j};
    double rounded = f;
    if (digits >= 0)
        jinja_putf(&t, "%.*f", (int)digits, f);
    else {
        double unit = pow(10, (double)-digits);
        jinja_putf(&t, "%.0fe%d", nearbyint(f / unit), (int)-digits);
    }
    jinja_parse_float(j, jinja_text(&t).s, &rounded);
    return jinja_float(copysign(rounded, f));
}

/* round(value, precision=0, method='common') */
static jval filter_round(jinja *j, jval self, const jval *a) {
    jval precision = a[0].kind == J_MISSING ? jinja_int(0) : a[0];
    const jstr *method = a[1].kind == J_STR ? a[1].s : jinja_str(j, a[1].kind == J_MISSING ? "common" : "?").s;
    if (jinja_is(method, "common")) {
        int64_t digits = jinja_arg_int(j, precision, "round: precision");
        if (self.kind == J_FLOAT)
            return round_float(j, self.f, digits);
        return round_int(j, jinja_arg_int(j, self, "round: the value"), digits);
    }
    if (!jinja_is(method, "ceil") && !jinja_is(method, "floor"))
        jinja_raise(j, "round: the method is 'common', 'ceil' or 'floor'");
    jval unit = jinja_binary(j, JOP_POW, jinja_int(10), precision);
    jval scaled = jinja_binary(j, JOP_MUL, self, unit);
    if (scaled.kind == J_FLOAT)
        scaled = float_to_int(j, jinja_is(method, "ceil") ? ceil(scaled.f) : floor(scaled.f));
    else
        jinja_arg_int(j, scaled, "round: the value");
    return jinja_binary(j, JOP_DIV, scaled, unit);
}

/* filesizeformat(value, binary=False) */
static jval filter_filesizeformat(jinja *j, jval self, const jval *a) {
    static const char letters[] = "kMGTPEZY";
    bool binary = a[0].kind != J_MISSING && jinja_truth(j, a[0]);
    double bytes, base = binary ? 1024 : 1000, unit = base;
    jtext t = {.j = j};
    if (self.kind == J_STR) {
        if (!jinja_parse_float(j, self.s, &bytes))
            jinja_raise(j, "filesizeformat: not a number");
    } else
        bytes = self.kind == J_FLOAT ? self.f : (double)jinja_arg_int(j, self, "filesizeformat: the value");
    if (bytes == 1)
        jinja_puts(&t, "1 Byte");
    else if (bytes < base)
        jinja_putf(&t, "%lld Bytes", (long long)float_to_int(j, bytes).i);
    else {
        int i = 0;
        for (unit *= base; i < 7 && bytes >= unit; i++)
            unit *= base;
        char letter = binary && letters[i] == 'k' ? 'K' : letters[i];
        jinja_putf(&t, "%.1f %c%s", base * bytes / unit, letter, binary ? "iB" : "B");
    }
    return jinja_text(&t);
}

/* ---- case, white space ----------------------------------------------------------------------- */

static jval filter_upper(jinja *j, jval self, const jval *a) {
    return jinja_upper(j, jinja_soft_str(j, self));
}
static jval filter_lower(jinja *j, jval self, const jval *a) {
    return jinja_lower(j, jinja_soft_str(j, self));
}
static jval filter_capitalize(jinja *j, jval self, const jval *a) {
    return jinja_capitalize(j, jinja_soft_str(j, self));
}

static bool begins_word(int32_t cp) {
    return jinja_is_space(cp) || (cp < 0x80 && cp && strchr("-({[<", cp));
}

/* Every word: its first character upper case, the rest lower. Words end before white space and -({[< . */
static jval filter_title(jinja *j, jval self, const jval *a) {
    jstr *s = jinja_soft_str(j, self);
    jtext t = {.j = j};
    for (size_t at = 0, end; at < s->n; at = end) {
        int32_t cp;
        size_t first = (size_t)sl_utf8_decode(s->p + at, s->n - at, &cp);
        bool separator = begins_word(cp);
        for (end = at + first; end < s->n;) {
            size_t bytes = (size_t)sl_utf8_decode(s->p + end, s->n - end, &cp);
            if (begins_word(cp) != separator)
                break;
            end += bytes;
        }
        jinja_put_str(&t, jinja_upper(j, jinja_substr(j, s, at, at + first).s).s);
        jinja_put_str(&t, jinja_lower(j, jinja_substr(j, s, at + first, end).s).s);
    }
    return jinja_text(&t);
}

/* trim(value, chars=None) */
static jval filter_trim(jinja *j, jval self, const jval *a) {
    const jstr *chars = jinja_given(a[0]) ? jinja_arg_str(j, a[0], "trim: chars") : NULL;
    return jinja_strip(j, jinja_soft_str(j, self), chars, true, true);
}

/* center(value, width=80) */
static jval filter_center(jinja *j, jval self, const jval *a) {
    jstr *s = jinja_soft_str(j, self), *blank = jinja_str(j, " ").s;
    int64_t width = a[0].kind == J_MISSING ? 80 : jinja_arg_int(j, a[0], "center: width");
    int64_t n = jinja_points(j, s), pad = width - n;
    if (pad <= 0)
        return jinja_of_str(s);
    int64_t left = pad / 2 + (pad & width & 1);
    return jinja_pad(j, s, left, pad - left, blank);
}

/* indent(s, width=4, first=False, blank=False) */
static jval filter_indent(jinja *j, jval self, const jval *a) {
    jstr *blanks, *newline = jinja_str(j, "\n").s;
    if (a[0].kind == J_STR)
        blanks = a[0].s;
    else {
        jtext t = {.j = j};
        jinja_put_repeat(&t, jinja_str(j, " ").s, a[0].kind == J_MISSING ? 4 : jinja_arg_int(j, a[0], "indent: width"));
        blanks = jinja_text(&t).s;
    }
    bool first = a[1].kind != J_MISSING && jinja_truth(j, a[1]);
    bool blank = a[2].kind != J_MISSING && jinja_truth(j, a[2]);
    jval whole = jinja_binary(j, JOP_ADD, self, jinja_of_str(newline));
    jval lines = jinja_splitlines(j, whole.s, false);
    jtext t = {.j = j};
    for (size_t i = 0; i < lines.seq->n; i++) {
        const jstr *line = lines.seq->at[i].s;
        if (i)
            jinja_put_str(&t, newline);
        if (i == 0 ? first : blank || line->n)
            jinja_put_str(&t, blanks);
        jinja_put_str(&t, line);
    }
    jval out = jinja_text(&t);
    out.s->markup = whole.s->markup;
    return out;
}

/* truncate(s, length=255, killwords=False, end='...', leeway=None) */
static jval filter_truncate(jinja *j, jval self, const jval *a) {
    jval length = a[0].kind == J_MISSING ? jinja_int(255) : a[0];
    jval end = a[2].kind == J_MISSING ? jinja_str(j, "...") : a[2];
    jval leeway = jinja_given(a[3]) ? a[3] : jinja_int(5);
    int64_t end_length = jinja_length(j, end), n = jinja_length(j, self);
    if (end_length < 0 || n < 0 || jinja_less(j, length, jinja_int(end_length)) || jinja_less(j, leeway, jinja_int(0)))
        jinja_raise(j, "truncate: a length less than the end's, a negative leeway, or a value that has no length");
    if (!jinja_less(j, jinja_binary(j, JOP_ADD, length, leeway), jinja_int(n)))
        return self;
    jval to = jinja_binary(j, JOP_SUB, length, jinja_int(end_length));
    jval cut = jinja_slice(j, self, jinja_none(), to, jinja_none());
    if (a[1].kind == J_MISSING || !jinja_truth(j, a[1]))
        cut = jinja_rsplit(j, jinja_arg_str(j, cut, "truncate: the value"), jinja_str(j, " ").s, 1).seq->at[0];
    return jinja_binary(j, JOP_ADD, cut, end);
}

/* Runs of \w. */
static jval filter_wordcount(jinja *j, jval self, const jval *a) {
    jstr *s = jinja_soft_str(j, self);
    int64_t count = 0;
    bool inside = false;
    for (size_t at = 0; at < s->n;) {
        int32_t cp;
        at += (size_t)sl_utf8_decode(s->p + at, s->n - at, &cp);
        bool word = jinja_is_word(cp);
        count += word && !inside;
        inside = word;
    }
    jinja_work(j, s->n);
    return jinja_int(count);
}

/* ---- replace, format, quote ------------------------------------------------------------------ */

/* replace(s, old, new, count=None): plain text whatever was Markup */
static jval filter_replace(jinja *j, jval self, const jval *a) {
    int64_t count = jinja_given(a[2]) ? jinja_arg_int(j, a[2], "replace: count") : -1;
    return jinja_replace(j, jinja_to_str(j, self), jinja_to_str(j, a[0]), jinja_to_str(j, a[1]), count);
}

/* format(value, *args, **kwargs) */
static jval filter_format(jinja *j, jval self, const jargs *args) {
    if (args->n && args->named_n)
        jinja_raise(j, "format: either values or named values");
    jval values = jinja_tuple(j, args->at, args->n);
    if (args->named_n) {
        values = jinja_of_dict(jinja_dict_new(j));
        for (size_t i = 0; i < args->named_n; i++)
            jinja_dict_put(j, values.d, args->named[i].key, args->named[i].value);
    }
    return jinja_percent_format(j, jinja_soft_str(j, self), values);
}

static jval filter_pprint(jinja *j, jval self, const jval *a) {
    return jinja_pformat(j, self);
}

static void put_quoted(jtext *t, const jstr *s, bool query) {
    for (size_t i = 0; i < s->n; i++) {
        unsigned char c = (unsigned char)s->p[i];
        bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                     (c && strchr("_.-~", c)) || (c == '/' && !query);
        if (plain)
            jinja_put(t, (const char *)&c, 1);
        else if (c == ' ' && query)
            jinja_puts(t, "+");
        else
            jinja_putf(t, "%%%02X", c);
    }
}

static jval filter_urlencode(jinja *j, jval self, const jval *a) {
    jtext t = {.j = j};
    if (self.kind == J_STR || !jinja_iterable(self)) {
        put_quoted(&t, jinja_to_str(j, self), false);
        return jinja_text(&t);
    }
    jview view = {.d = self.d, .what = 'i'};
    jval pairs = self.kind == J_DICT ? (jval){.kind = J_VIEW, .view = &view} : self;
    pairs = jinja_to_list(j, pairs);
    for (size_t i = 0; i < pairs.seq->n; i++) {
        jval pair = jinja_to_list(j, pairs.seq->at[i]);
        if (pair.seq->n != 2)
            jinja_raise(j, "urlencode needs pairs, not %zu values", pair.seq->n);
        if (i)
            jinja_puts(&t, "&");
        put_quoted(&t, jinja_to_str(j, pair.seq->at[0]), true);
        jinja_puts(&t, "=");
        put_quoted(&t, jinja_to_str(j, pair.seq->at[1]), true);
    }
    return jinja_text(&t);
}

/* xmlattr(d, autospace=True) */
static jval filter_xmlattr(jinja *j, jval self, const jval *a) {
    jtext t = {.j = j};
    bool space = a[0].kind == J_MISSING || jinja_truth(j, a[0]);
    if (self.kind != J_DICT)
        jinja_raise(j, "xmlattr needs a dict, not a %s", jinja_type(self));
    for (size_t i = 0; i < self.d->n; i++) {
        jval value = self.d->at[i].value;
        if (value.kind == J_NONE || value.kind == J_UNDEFINED)
            continue;
        const jstr *key = jinja_arg_str(j, self.d->at[i].key, "xmlattr: a key");
        for (size_t k = 0; k < key->n; k++)
            if (key->p[k] && strchr(" \t\n\r\f\v/>=", key->p[k]))
                jinja_raise(j, "xmlattr: a character that no attribute name may have");
        if (space || t.n)
            jinja_puts(&t, " ");
        jinja_put_str(&t, jinja_escape(j, self.d->at[i].key).s);
        jinja_puts(&t, "=\"");
        jinja_put_str(&t, jinja_escape(j, value).s);
        jinja_puts(&t, "\"");
    }
    return jinja_text(&t);
}

/* &name; and &#n; as characters; names beyond the usual ones are outside the subset. */
static size_t put_entity(jtext *t, const jstr *s, size_t at) {
    static const struct {
        const char *name, *text;
    } names[] = {{"&amp;", "&"},   {"&lt;", "<"},   {"&gt;", ">"},
                 {"&quot;", "\""}, {"&apos;", "'"}, {"&nbsp;", "\xC2\xA0"}};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        size_t n = strlen(names[i].name);
        if (s->n - at >= n && memcmp(s->p + at, names[i].name, n) == 0) {
            jinja_puts(t, names[i].text);
            return n;
        }
    }
    size_t end = at + 1;
    bool number = end < s->n && s->p[end] == '#', hex = number && end + 1 < s->n && (s->p[end + 1] | 0x20) == 'x';
    end += (size_t)number + (size_t)hex;
    size_t from = end;
    int32_t cp = 0;
    for (; number && end < s->n && cp <= 0x10FFFF; end++) {
        char c = s->p[end], lower = (char)(c | 0x20);
        int d = c >= '0' && c <= '9' ? c - '0' : hex && lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
        if (d < 0)
            break;
        cp = cp * (hex ? 16 : 10) + d;
    }
    bool usual = cp >= 0x20 && cp != 0x7F && (cp < 0x80 || cp >= 0xA0) && cp <= 0xD7FF;
    if (number && end > from && usual && end < s->n && s->p[end] == ';') {
        jinja_put_point(t, cp);
        return end + 1 - at;
    }
    if (at + 1 < s->n && (s->p[at + 1] == '#' || jinja_starts_identifier((unsigned char)s->p[at + 1])))
        jinja_raise(t->j, "striptags: this HTML entity is not supported");
    jinja_puts(t, "&");
    return 1;
}

/* Without comments and tags, white space collapsed, entities read. */
static jval filter_striptags(jinja *j, jval self, const jval *a) {
    jstr *s = jinja_soft_str(j, self);
    jtext bare = {.j = j}, out = {.j = j};
    jstr open = {.p = "<!--", .n = 4}, close = {.p = "-->", .n = 3}, less = {.p = "<", .n = 1},
         more = {.p = ">", .n = 1};
    size_t at = 0, from;
    while ((from = jinja_find(j, s, &less, at)) != SIZE_MAX) {
        bool comment = s->n - from >= 4 && memcmp(s->p + from, open.p, 4) == 0;
        size_t end = comment ? jinja_find(j, s, &close, from + 4) : jinja_find(j, s, &more, from);
        if (end == SIZE_MAX)
            break;
        jinja_put(&bare, s->p + at, from - at);
        at = end + (comment ? 3 : 1);
    }
    jinja_put(&bare, s->p + at, s->n - at);
    jval words = jinja_split(j, jinja_text(&bare).s, NULL, -1);
    for (size_t i = 0; i < words.seq->n; i++) {
        const jstr *word = words.seq->at[i].s;
        if (i)
            jinja_puts(&out, " ");
        for (size_t k = 0; k < word->n;) {
            if (word->p[k] == '&')
                k += put_entity(&out, word, k);
            else
                jinja_put(&out, word->p + k++, 1);
        }
    }
    return jinja_text(&out);
}

static jval filter_random(jinja *j, jval self, const jval *a) {
    jinja_raise(j, "random: not supported");
}

static jval filter_urlize(jinja *j, jval self, const jargs *args) {
    jinja_raise(j, "urlize: not supported");
}

const jbuiltin jinja_text_filters[] = {
    {"abs", "", 0, filter_abs, NULL},
    {"capitalize", "", 0, filter_capitalize, NULL},
    {"center", "width", 0, filter_center, NULL},
    {"d", "default_value boolean", 0, filter_default, NULL},
    {"default", "default_value boolean", 0, filter_default, NULL},
    {"e", "/", 0, filter_escape, NULL},
    {"escape", "/", 0, filter_escape, NULL},
    {"filesizeformat", "binary", 0, filter_filesizeformat, NULL},
    {"float", "default", 0, filter_float, NULL},
    {"forceescape", "", 0, filter_forceescape, NULL},
    {"format", "", 0, NULL, filter_format},
    {"indent", "width first blank", 0, filter_indent, NULL},
    {"int", "default base", 0, filter_int, NULL},
    {"lower", "", 0, filter_lower, NULL},
    {"pprint", "", 0, filter_pprint, NULL},
    {"random", "", 0, filter_random, NULL},
    {"replace", "old new count", 2, filter_replace, NULL},
    {"round", "precision method", 0, filter_round, NULL},
    {"safe", "", 0, filter_safe, NULL},
    {"string", "", 0, filter_string, NULL},
    {"striptags", "", 0, filter_striptags, NULL},
    {"title", "", 0, filter_title, NULL},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, jinja_filter_tojson, NULL},
    {"trim", "chars", 0, filter_trim, NULL},
    {"truncate", "length killwords end leeway", 0, filter_truncate, NULL},
    {"upper", "", 0, filter_upper, NULL},
    {"urlencode", "", 0, filter_urlencode, NULL},
    {"urlize", "", 0, NULL, filter_urlize},
    {"wordcount", "", 0, filter_wordcount, NULL},
    {"wordwrap", "width break_long_words wrapstring break_on_hyphens", 0, jinja_filter_wordwrap, NULL},
    {"xmlattr", "autospace", 0, filter_xmlattr, NULL},
};
const size_t jinja_text_filters_n = SL_COUNT(jinja_text_filters);

/* Methods of str. self is the receiver; optional start and end count code points and may be negative or None. */
#include "text/jinja.h"

#include <string.h>

static jval keep_markup(jinja *j, jval self, jval v) {
    return jinja_markup(j, v.s, self.s->markup);
}

/* An argument that joins a Markup is escaped. */
static jstr *joining(jinja *j, jval self, jval v, const char *what) {
    jstr *s = jinja_arg_str(j, v, what);
    return self.s->markup ? jinja_escape(j, v).s : s;
}

/* ---- find, count, startswith ----------------------------------------------------------------- */

typedef struct part {
    int64_t from, to; /* code points; to < from: before the text's end there is no such part */
    size_t from_byte, to_byte;
} part;

static part part_of(jinja *j, jstr *s, jval from, jval to) {
    int64_t n = jinja_points(j, s);
    part p = {.from = 0, .to = n};
    if (jinja_given(to))
        p.to = jinja_arg_int(j, to, "an end");
    if (jinja_given(from))
        p.from = jinja_arg_int(j, from, "a start");
    if (p.to > n)
        p.to = n;
    if (p.to < 0)
        p.to = p.to < -n ? 0 : p.to + n;
    if (p.from < 0)
        p.from = p.from < -n ? 0 : p.from + n;
    if (p.from <= p.to) {
        p.from_byte = jinja_offset(j, s, p.from);
        p.to_byte = jinja_offset(j, s, p.to);
    }
    return p;
}

/* Code point index of the first or last occurrence, -1: none. */
static int64_t find(jinja *j, jval self, const jval *a, bool last) {
    jstr *what = jinja_arg_str(j, a[0], "what is looked for");
    part p = part_of(j, self.s, a[1], a[2]);
    if (p.from > p.to)
        return -1;
    jstr within = {.p = self.s->p, .n = p.to_byte, .points = -1};
    size_t at = SIZE_MAX;
    if (!last)
        at = jinja_find(j, &within, what, p.from_byte);
    else if (what->n <= p.to_byte - p.from_byte) {
        at = jinja_find_last(j, &within, what, p.to_byte);
        at = at != SIZE_MAX && at < p.from_byte ? SIZE_MAX : at;
    }
    if (at == SIZE_MAX)
        return -1;
    if (self.s->points == (int64_t)self.s->n)
        return (int64_t)at;
    jstr before = {.p = self.s->p, .n = at, .points = -1};
    return jinja_points(j, &before);
}

static jval str_find(jinja *j, jval self, const jval *a) {
    return jinja_int(find(j, self, a, false));
}
static jval str_rfind(jinja *j, jval self, const jval *a) {
    return jinja_int(find(j, self, a, true));
}

static jval found(jinja *j, int64_t at) {
    if (at < 0)
        jinja_raise(j, "index: the text is not in the str");
    return jinja_int(at);
}

static jval str_index(jinja *j, jval self, const jval *a) {
    return found(j, find(j, self, a, false));
}
static jval str_rindex(jinja *j, jval self, const jval *a) {
    return found(j, find(j, self, a, true));
}

static jval str_count(jinja *j, jval self, const jval *a) {
    jstr *what = jinja_arg_str(j, a[0], "what is counted");
    part p = part_of(j, self.s, a[1], a[2]);
    if (p.from > p.to)
        return jinja_int(0);
    if (!what->n)
        return jinja_int(p.to - p.from + 1);
    jstr within = {.p = self.s->p, .n = p.to_byte, .points = -1};
    int64_t count = 0;
    for (size_t at = p.from_byte; (at = jinja_find(j, &within, what, at)) != SIZE_MAX; at += what->n)
        count++;
    return jinja_int(count);
}

static bool has_affix(jinja *j, jstr *s, const part *p, jval affix, bool at_end) {
    const jstr *what = jinja_arg_str(j, affix, "a prefix or suffix");
    if (p->from > p->to || what->n > p->to_byte - p->from_byte)
        return false;
    jinja_work(j, what->n);
    return memcmp(s->p + (at_end ? p->to_byte - what->n : p->from_byte), what->p, what->n) == 0;
}

/* One prefix, or a tuple of them. */
static jval affix(jinja *j, jval self, const jval *a, bool at_end) {
    part p = part_of(j, self.s, a[1], a[2]);
    if (a[0].kind != J_TUPLE)
        return jinja_bool(has_affix(j, self.s, &p, a[0], at_end));
    for (size_t i = 0; i < a[0].seq->n; i++)
        if (has_affix(j, self.s, &p, a[0].seq->at[i], at_end))
            return jinja_bool(true);
    return jinja_bool(false);
}

static jval str_startswith(jinja *j, jval self, const jval *a) {
    return affix(j, self, a, false);
}
static jval str_endswith(jinja *j, jval self, const jval *a) {
    return affix(j, self, a, true);
}

static jval str_removeprefix(jinja *j, jval self, const jval *a) {
    const jstr *what = jinja_arg_str(j, a[0], "removeprefix: the prefix");
    bool has = what->n <= self.s->n && memcmp(self.s->p, what->p, what->n) == 0;
    return has ? jinja_substr(j, self.s, what->n, self.s->n) : self;
}

static jval str_removesuffix(jinja *j, jval self, const jval *a) {
    const jstr *what = jinja_arg_str(j, a[0], "removesuffix: the suffix");
    bool has = what->n <= self.s->n && memcmp(self.s->p + self.s->n - what->n, what->p, what->n) == 0;
    return has ? jinja_substr(j, self.s, 0, self.s->n - what->n) : self;
}

/* ---- split, join, strip, replace ------------------------------------------------------------- */

static jval split(jinja *j, jval self, const jval *a, jval (*by)(jinja *, jstr *, const jstr *, int64_t)) {
    const jstr *sep = jinja_given(a[0]) ? jinja_arg_str(j, a[0], "split: the separator") : NULL;
    return by(j, self.s, sep, a[1].kind == J_MISSING ? -1 : jinja_arg_int(j, a[1], "split: maxsplit"));
}

static jval str_split(jinja *j, jval self, const jval *a) {
    return split(j, self, a, jinja_split);
}
static jval str_rsplit(jinja *j, jval self, const jval *a) {
    return split(j, self, a, jinja_rsplit);
}

static jval str_splitlines(jinja *j, jval self, const jval *a) {
    return jinja_splitlines(j, self.s, a[0].kind != J_MISSING && jinja_arg_int(j, a[0], "splitlines: keepends"));
}

static jval partition(jinja *j, jval self, const jval *a, bool last) {
    const jstr *sep = jinja_arg_str(j, a[0], "partition: the separator");
    if (!sep->n)
        jinja_raise(j, "partition by an empty separator");
    size_t n = self.s->n, at = last ? jinja_find_last(j, self.s, sep, n) : jinja_find(j, self.s, sep, 0);
    size_t from = at != SIZE_MAX ? at : last ? 0 : n, to = at != SIZE_MAX ? at + sep->n : last ? 0 : n;
    jval parts[3] = {jinja_substr(j, self.s, 0, from), jinja_substr(j, self.s, from, to),
                     jinja_substr(j, self.s, to, n)};
    return jinja_tuple(j, parts, 3);
}

static jval str_partition(jinja *j, jval self, const jval *a) {
    return partition(j, self, a, false);
}
static jval str_rpartition(jinja *j, jval self, const jval *a) {
    return partition(j, self, a, true);
}

static jval str_join(jinja *j, jval self, const jval *a) {
    jtext t = {.j = j};
    jiter *it = jinja_iter(j, a[0]);
    bool first = true;
    for (jval item; jinja_next(j, it, &item); first = false) {
        if (!first)
            jinja_put_str(&t, self.s);
        jinja_put_str(&t, self.s->markup ? jinja_escape(j, item).s : jinja_arg_str(j, item, "join: an item"));
    }
    jval v = jinja_text(&t);
    v.s->markup = self.s->markup;
    return v;
}

static jval strip(jinja *j, jval self, const jval *a, bool left, bool right) {
    return jinja_strip(j, self.s, jinja_given(a[0]) ? jinja_arg_str(j, a[0], "strip: chars") : NULL, left, right);
}

static jval str_strip(jinja *j, jval self, const jval *a) {
    return strip(j, self, a, true, true);
}
static jval str_lstrip(jinja *j, jval self, const jval *a) {
    return strip(j, self, a, true, false);
}
static jval str_rstrip(jinja *j, jval self, const jval *a) {
    return strip(j, self, a, false, true);
}

static jval str_replace(jinja *j, jval self, const jval *a) {
    const jstr *from = jinja_arg_str(j, a[0], "replace: the old text"),
               *to = joining(j, self, a[1], "replace: the new text");
    return jinja_replace(j, self.s, from, to, a[2].kind == J_MISSING ? -1 : jinja_arg_int(j, a[2], "replace: count"));
}

/* ---- padding --------------------------------------------------------------------------------- */

static jstr *fill_of(jinja *j, jval self, jval v) {
    if (v.kind == J_MISSING)
        return jinja_str(j, " ").s;
    jstr *fill = joining(j, self, v, "the fill character");
    if (jinja_points(j, fill) != 1)
        jinja_raise(j, "the fill character must be one character");
    return fill;
}

static int64_t missing_width(jinja *j, jval self, jval width) {
    int64_t w = jinja_arg_int(j, width, "the width"), n = jinja_points(j, self.s);
    return w > n ? w - n : 0;
}

static jval str_ljust(jinja *j, jval self, const jval *a) {
    return jinja_pad(j, self.s, 0, missing_width(j, self, a[0]), fill_of(j, self, a[1]));
}

static jval str_rjust(jinja *j, jval self, const jval *a) {
    return jinja_pad(j, self.s, missing_width(j, self, a[0]), 0, fill_of(j, self, a[1]));
}

static jval str_center(jinja *j, jval self, const jval *a) {
    int64_t pad = missing_width(j, self, a[0]);
    int64_t left = pad / 2 + (pad & jinja_arg_int(j, a[0], "the width") & 1);
    return jinja_pad(j, self.s, left, pad - left, fill_of(j, self, a[1]));
}

static jval str_zfill(jinja *j, jval self, const jval *a) {
    int64_t pad = missing_width(j, self, a[0]);
    size_t sign = self.s->n && (self.s->p[0] == '+' || self.s->p[0] == '-');
    jtext t = {.j = j};
    if (!pad)
        return self;
    jinja_put(&t, self.s->p, sign);
    jinja_put_repeat(&t, jinja_str(j, "0").s, pad);
    jinja_put(&t, self.s->p + sign, self.s->n - sign);
    return keep_markup(j, self, jinja_text(&t));
}

static jval str_expandtabs(jinja *j, jval self, const jval *a) {
    int64_t size = a[0].kind == J_MISSING ? 8 : jinja_arg_int(j, a[0], "expandtabs: tabsize"), column = 0;
    jstr *blank = jinja_str(j, " ").s;
    jtext t = {.j = j};
    for (size_t at = 0, bytes; at < self.s->n; at += bytes) {
        int32_t cp;
        bytes = (size_t)sl_utf8_decode(self.s->p + at, self.s->n - at, &cp);
        if (cp == '\t') {
            int64_t blanks = size > 0 ? size - column % size : 0;
            jinja_put_repeat(&t, blank, blanks);
            column += blanks;
            continue;
        }
        jinja_put(&t, self.s->p + at, bytes);
        column = cp == '\n' || cp == '\r' ? 0 : column + 1;
    }
    return keep_markup(j, self, jinja_text(&t));
}

/* ---- case ------------------------------------------------------------------------------------ */

static jval str_upper(jinja *j, jval self, const jval *a) {
    return jinja_upper(j, self.s);
}
static jval str_lower(jinja *j, jval self, const jval *a) {
    return jinja_lower(j, self.s);
}
static jval str_capitalize(jinja *j, jval self, const jval *a) {
    return jinja_capitalize(j, self.s);
}
static jval str_title(jinja *j, jval self, const jval *a) {
    return jinja_title_case(j, self.s);
}
static jval str_swapcase(jinja *j, jval self, const jval *a) {
    return jinja_swapcase(j, self.s);
}
static jval str_casefold(jinja *j, jval self, const jval *a) {
    return jinja_casefold(j, self.s);
}

/* ---- is... ----------------------------------------------------------------------------------- */

static bool is_alnum(int32_t cp) {
    return cp != '_' && jinja_is_word(cp);
}
static bool is_ascii(int32_t cp) {
    return cp < 0x80;
}

static jval every(jinja *j, jval self, bool (*is)(int32_t), bool empty) {
    const jstr *s = self.s;
    jinja_work(j, s->n);
    for (size_t at = 0; at < s->n;) {
        int32_t cp;
        at += (size_t)sl_utf8_decode(s->p + at, s->n - at, &cp);
        if (!is(cp))
            return jinja_bool(false);
    }
    return jinja_bool(s->n > 0 || empty);
}

static jval str_isalnum(jinja *j, jval self, const jval *a) {
    return every(j, self, is_alnum, false);
}
static jval str_isalpha(jinja *j, jval self, const jval *a) {
    return every(j, self, jinja_is_alpha, false);
}
static jval str_isascii(jinja *j, jval self, const jval *a) {
    return every(j, self, is_ascii, true);
}
static jval str_isdecimal(jinja *j, jval self, const jval *a) {
    return every(j, self, jinja_is_decimal, false);
}
static jval str_isdigit(jinja *j, jval self, const jval *a) {
    return every(j, self, jinja_is_digit, false);
}
static jval str_isnumeric(jinja *j, jval self, const jval *a) {
    return every(j, self, jinja_is_numeric, false);
}
static jval str_isprintable(jinja *j, jval self, const jval *a) {
    return every(j, self, jinja_is_printable, true);
}
static jval str_isspace(jinja *j, jval self, const jval *a) {
    return every(j, self, jinja_is_space, false);
}

static jval str_isidentifier(jinja *j, jval self, const jval *a) {
    int32_t cp;
    if (!self.s->n)
        return jinja_bool(false);
    sl_utf8_decode(self.s->p, self.s->n, &cp);
    return jinja_starts_identifier(cp) ? every(j, self, jinja_continues_identifier, false) : jinja_bool(false);
}

static jval run_test(jinja *j, jval self, const char *name) {
    return jinja_call_builtin(j, jinja_find_test(jinja_str(j, name).s), self, &jinja_no_args);
}

static jval str_islower(jinja *j, jval self, const jval *a) {
    return run_test(j, self, "lower");
}
static jval str_isupper(jinja *j, jval self, const jval *a) {
    return run_test(j, self, "upper");
}

/* Upper case letters only behind what has no case, lower case ones only behind letters. */
static jval str_istitle(jinja *j, jval self, const jval *a) {
    bool any = false, inside = false;
    jinja_work(j, self.s->n);
    for (size_t at = 0; at < self.s->n;) {
        int32_t cp;
        at += (size_t)sl_utf8_decode(self.s->p + at, self.s->n - at, &cp);
        bool upper = jinja_is_upper(cp) || jinja_is_title(cp), lower = !upper && jinja_is_lower(cp);
        if ((upper && inside) || (lower && !inside))
            return jinja_bool(false);
        inside = upper || lower;
        any |= inside;
    }
    return jinja_bool(any);
}

/* ---- format ---------------------------------------------------------------------------------- */

static jval str_format(jinja *j, jval self, const jargs *args) {
    return jinja_brace_format(j, self.s, args);
}

static jval str_format_map(jinja *j, jval self, const jval *a) {
    if (a[0].kind != J_DICT)
        jinja_raise(j, "format_map needs a dict, not a %s", jinja_type(a[0]));
    jdict *named = jinja_dict_new(j);
    for (size_t i = 0; i < a[0].d->n; i++)
        if (a[0].d->at[i].key.kind == J_STR)
            jinja_dict_put(j, named, a[0].d->at[i].key, a[0].d->at[i].value);
    jargs args = jinja_no_args;
    args.named = named->at;
    args.named_n = named->n;
    return jinja_brace_format(j, self.s, &args);
}

static jval unsupported(jinja *j, jval self, const jargs *args) {
    jinja_raise(j, "encode, translate and maketrans of a str are not supported");
}

const jbuiltin jinja_str_methods[] = {
    {"capitalize", "/", 0, str_capitalize, NULL},
    {"casefold", "/", 0, str_casefold, NULL},
    {"center", "/width fill", 1, str_center, NULL},
    {"count", "/sub start end", 1, str_count, NULL},
    {"encode", "", 0, NULL, unsupported},
    {"endswith", "/suffix start end", 1, str_endswith, NULL},
    {"expandtabs", "tabsize", 0, str_expandtabs, NULL},
    {"find", "/sub start end", 1, str_find, NULL},
    {"format", "", 0, NULL, str_format},
    {"format_map", "/mapping", 1, str_format_map, NULL},
    {"index", "/sub start end", 1, str_index, NULL},
    {"isalnum", "/", 0, str_isalnum, NULL},
    {"isalpha", "/", 0, str_isalpha, NULL},
    {"isascii", "/", 0, str_isascii, NULL},
    {"isdecimal", "/", 0, str_isdecimal, NULL},
    {"isdigit", "/", 0, str_isdigit, NULL},
    {"isidentifier", "/", 0, str_isidentifier, NULL},
    {"islower", "/", 0, str_islower, NULL},
    {"isnumeric", "/", 0, str_isnumeric, NULL},
    {"isprintable", "/", 0, str_isprintable, NULL},
    {"isspace", "/", 0, str_isspace, NULL},
    {"istitle", "/", 0, str_istitle, NULL},
    {"isupper", "/", 0, str_isupper, NULL},
    {"join", "/iterable", 1, str_join, NULL},
    {"ljust", "/width fill", 1, str_ljust, NULL},
    {"lower", "/", 0, str_lower, NULL},
    {"lstrip", "/chars", 0, str_lstrip, NULL},
    {"maketrans", "", 0, NULL, unsupported},
    {"partition", "/sep", 1, str_partition, NULL},
    {"removeprefix", "/prefix", 1, str_removeprefix, NULL},
    {"removesuffix", "/suffix", 1, str_removesuffix, NULL},
    {"replace", "/old new count", 2, str_replace, NULL},
    {"rfind", "/sub start end", 1, str_rfind, NULL},
    {"rindex", "/sub start end", 1, str_rindex, NULL},
    {"rjust", "/width fill", 1, str_rjust, NULL},
    {"rpartition", "/sep", 1, str_rpartition, NULL},
    {"rsplit", "sep maxsplit", 0, str_rsplit, NULL},
    {"rstrip", "/chars", 0, str_rstrip, NULL},
    {"split", "sep maxsplit", 0, str_split, NULL},
    {"splitlines", "keepends", 0, str_splitlines, NULL},
    {"startswith", "/prefix start end", 1, str_startswith, NULL},
    {"strip", "/chars", 0, str_strip, NULL},
    {"swapcase", "/", 0, str_swapcase, NULL},
    {"title", "/", 0, str_title, NULL},
    {"translate", "", 0, NULL, unsupported},
    {"upper", "/", 0, str_upper, NULL},
    {"zfill", "/width", 1, str_zfill, NULL},
};
const size_t jinja_str_methods_n = SL_COUNT(jinja_str_methods);

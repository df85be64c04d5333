/* Oniguruma's Ruby syntax as PCRE2 syntax.
 *
 * Most of a pattern is the same in both. What differs is rewritten: \h is a hexadecimal digit, \w and \b go by
 * Unicode's word characters, (?m) means that the dot matches a newline, x{2,3}+ repeats again instead of being
 * possessive, and character classes are sets: they nest and intersect. A class that PCRE2 cannot write as one becomes a
 * group that matches one character. What has no translation reaches PCRE2 as it is, and its error is reported. */
#include "text/regex.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CLASS_DEPTH 16
#define MAX_GROUPS      256

/* With what Unicode 16 added to the property, and in \w the Latin-1 numbers that Oniguruma's own table has. */
#define ALPHABETIC "\\p{Alphabetic}\\x{363}-\\x{36f}\\x{c04}\\x{f82}\\x{f83}\\x{1dd3}-\\x{1de6}\\x{11080}\\x{11081}"
#define LOWERCASE  "\\p{Lowercase}\\x{10fc}\\x{a7f2}-\\x{a7f4}\\x{ab69}"
#define WORD       "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\xb2\\xb3\\xb9\\xbc-\\xbe"
#define HEX        "0-9A-Fa-f"

typedef struct translation {
    const char *p;
    size_t n, at;
    sl_buf *out;
    const char *where;
    sl_error *err;
    size_t atom; /* where in out the last atom begins */
    size_t groups[MAX_GROUPS];
    size_t group_count;
} translation;

/* Names of properties and POSIX brackets (lower case, without spaces, '_' and '-') -> members of a PCRE2 class. */
static const struct {
    const char *name, *members;
} properties[] = {
    {"alpha", ALPHABETIC},
    {"alphabetic", ALPHABETIC},
    {"alnum", ALPHABETIC "\\p{Nd}"},
    {"any", "\\x{0}-\\x{10ffff}"},
    {"ascii", "\\x00-\\x7f"},
    {"assigned", "\\P{Cn}"},
    {"blank", "\\t\\p{Zs}"},
    {"cntrl", "\\p{Cc}"},
    {"graph", "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}"},
    {"print", "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}\\p{Zs}"},
    {"digit", "\\p{Nd}"},
    {"lower", LOWERCASE},
    {"punct", "\\p{P}\\p{S}"},
    {"space", "\\s"},
    {"whitespace", "\\s"},
    {"upper", "\\p{Uppercase}"},
    {"word", WORD},
    {"xdigit", HEX},
    {"letter", "\\p{L}"},
    {"uppercaseletter", "\\p{Lu}"},
    {"lowercaseletter", "\\p{Ll}"},
    {"titlecaseletter", "\\p{Lt}"},
    {"casedletter", "\\p{Lu}\\p{Ll}\\p{Lt}"},
    {"lc", "\\p{Lu}\\p{Ll}\\p{Lt}"},
    {"modifierletter", "\\p{Lm}"},
    {"otherletter", "\\p{Lo}"},
    {"mark", "\\p{M}"},
    {"combiningmark", "\\p{M}"},
    {"nonspacingmark", "\\p{Mn}"},
    {"spacingmark", "\\p{Mc}"},
    {"enclosingmark", "\\p{Me}"},
    {"number", "\\p{N}"},
    {"decimalnumber", "\\p{Nd}"},
    {"letternumber", "\\p{Nl}"},
    {"othernumber", "\\p{No}"},
    {"punctuation", "\\p{P}"},
    {"connectorpunctuation", "\\p{Pc}"},
    {"dashpunctuation", "\\p{Pd}"},
    {"openpunctuation", "\\p{Ps}"},
    {"closepunctuation", "\\p{Pe}"},
    {"initialpunctuation", "\\p{Pi}"},
    {"finalpunctuation", "\\p{Pf}"},
    {"otherpunctuation", "\\p{Po}"},
    {"symbol", "\\p{S}"},
    {"mathsymbol", "\\p{Sm}"},
    {"currencysymbol", "\\p{Sc}"},
    {"modifiersymbol", "\\p{Sk}"},
    {"othersymbol", "\\p{So}"},
    {"separator", "\\p{Z}"},
    {"spaceseparator", "\\p{Zs}"},
    {"lineseparator", "\\p{Zl}"},
    {"paragraphseparator", "\\p{Zp}"},
    {"other", "\\p{C}"},
    {"control", "\\p{Cc}"},
    {"format", "\\p{Cf}"},
    {"unassigned", "\\p{Cn}"},
    {"privateuse", "\\p{Co}"},
    {"emoji", "\\p{Emoji}"},
    {"emojipresentation", "\\p{Emoji_Presentation}"},
    {"emojimodifier", "\\p{Emoji_Modifier}"},
    {"extendedpictographic", "\\p{Extended_Pictographic}"},
    {"ideographic", "\\p{Ideographic}"},
    {"lowercase", LOWERCASE},
    {"uppercase", "\\p{Uppercase}"},
};

static const char categories[] =
    " c cc cf cn co cs l ll lm lo lt lu m mc me mn n nd nl no p pc pd pe pf pi po ps s sc sk "
    "sm so z zl zp zs ";

static bool fail(translation *t, const char *what) {
    return sl_fail(t->err, SL_ERR_UNSUPPORTED, "%s: regex '%.*s', byte %zu: %s", t->where,
                   (int)(t->n < 200 ? t->n : 200), t->p, t->at, what);
}

static bool put(translation *t, sl_buf *out, const char *s) {
    return sl_buf_puts(out, s) || fail(t, "out of memory");
}

static bool peek(const translation *t, size_t ahead, char c) {
    return t->at + ahead < t->n && t->p[t->at + ahead] == c;
}

static bool starts(const translation *t, const char *s) {
    size_t n = strlen(s);
    return t->n - t->at >= n && memcmp(t->p + t->at, s, n) == 0;
}

/* ---- properties ------------------------------------------------------------------------------------------------- */

/* Class members for a property name of n bytes. */
static bool property_members(translation *t, const char *name, size_t n, sl_buf *out) {
    char key[48], padded[50];
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (name[i] != ' ' && name[i] != '_' && name[i] != '-') {
            if (k + 1 >= sizeof key || !isalnum((unsigned char)name[i]))
                return fail(t, "unknown property name");
            key[k++] = (char)tolower((unsigned char)name[i]);
        }
    key[k] = 0;
    if (!k)
        return fail(t, "empty property name");
    for (size_t i = 0; i < SL_COUNT(properties); i++)
        if (strcmp(properties[i].name, key) == 0)
            return put(t, out, properties[i].members);
    padded[0] = ' ';
    memcpy(padded + 1, key, k);
    memcpy(padded + 1 + k, " ", 2);
    if (k <= 2 && strstr(categories, padded)) {
        key[0] = (char)toupper((unsigned char)key[0]);
        return sl_buf_printf(out, "\\p{%s}", key) || fail(t, "out of memory");
    }
    /* a script; PCRE2 would otherwise also take characters that other scripts share */
    return sl_buf_printf(out, "\\p{sc:%s}", key) || fail(t, "out of memory");
}

/* At "\p" or "\P": members and whether they are negated; moves behind it. */
static bool parse_property(translation *t, sl_buf *members, bool *negated) {
    *negated = t->p[t->at + 1] == 'P';
    t->at += 2;
    if (!peek(t, 0, '{')) {
        if (t->at >= t->n)
            return fail(t, "\\p without a name");
        return property_members(t, t->p + t->at++, 1, members);
    }
    t->at++;
    if (peek(t, 0, '^')) {
        *negated = !*negated;
        t->at++;
    }
    const char *close = memchr(t->p + t->at, '}', t->n - t->at);
    if (!close)
        return fail(t, "\\p{ without }");
    size_t n = (size_t)(close - (t->p + t->at));
    if (!property_members(t, t->p + t->at, n, members))
        return false;
    t->at += n + 1;
    return true;
}

/* ---- character classes ------------------------------------------------------------------------------------------ */

/* A set of characters: members of a PCRE2 class, and alternatives that are patterns of one character each, joined by
 * '|'. */
typedef struct set {
    sl_buf members, others;
} set;

static void set_free(set *s) {
    sl_buf_free(&s->members);
    sl_buf_free(&s->others);
}

static bool add_other(translation *t, set *s, const char *open, const char *pattern, const char *close) {
    return (!s->others.size || put(t, &s->others, "|")) && put(t, &s->others, open) && put(t, &s->others, pattern) &&
           put(t, &s->others, close);
}

static bool add_members(translation *t, set *s, const char *members, bool negated) {
    return negated ? add_other(t, s, "[^", members, "]") : put(t, &s->members, members);
}

/* Pattern of one character of the set. */
static bool set_pattern(translation *t, const set *s, sl_buf *out) {
    bool members = s->members.size > 0, others = s->others.size > 0;
    if (!members && !others)
        return put(t, out, "(?!)");
    if (!others)
        return put(t, out, "[") && put(t, out, s->members.data) && put(t, out, "]");
    if (members && !(put(t, out, "(?:[") && put(t, out, s->members.data) && put(t, out, "]|")))
        return false;
    return (members || put(t, out, "(?:")) && put(t, out, s->others.data) && put(t, out, ")");
}

/* One character of a class, as its code point; moves behind it. -1: an escape that is no character. */
static bool class_char(translation *t, int32_t *cp) {
    if (t->p[t->at] != '\\') {
        t->at += (size_t)sl_utf8_decode(t->p + t->at, t->n - t->at, cp);
        return *cp >= 0 || fail(t, "invalid UTF-8");
    }
    if (t->at + 1 >= t->n)
        return fail(t, "\\ at the end");
    char c = t->p[t->at + 1];
    static const char letters[] = "ntrfaevb0", values[] = "\n\t\r\f\a\x1b\v\b";
    const char *known = strchr(letters, c);
    size_t digits = 0, first = t->at + 2;
    if (c == 'u' || (c == 'x' && !peek(t, 2, '{'))) {
        while (digits < (c == 'u' ? 4u : 2u) && first + digits < t->n && isxdigit((unsigned char)t->p[first + digits]))
            digits++;
    } else if (c == 'x') {
        first++;
        while (first + digits < t->n && isxdigit((unsigned char)t->p[first + digits]))
            digits++;
        if (!digits || digits > 8 || first + digits >= t->n || t->p[first + digits] != '}')
            return fail(t, "\\x{ without hexadecimal digits and }");
    }
    if (digits) {
        uint32_t v = 0;
        for (size_t i = 0; i < digits; i++)
            v = v << 4 | (uint32_t)(isdigit((unsigned char)t->p[first + i]) ? t->p[first + i] - '0'
                                                                            : (t->p[first + i] | 32) - 'a' + 10);
        if (v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff))
            return fail(t, "not a Unicode character");
        *cp = (int32_t)v;
        t->at = first + digits + (c == 'x' && t->p[t->at + 2] == '{');
        return true;
    }
    if (known && c) {
        *cp = values[known - letters];
        t->at += 2;
        return true;
    }
    if (isalnum((unsigned char)c))
        return fail(t, "unknown escape in a character class");
    t->at++;
    t->at += (size_t)sl_utf8_decode(t->p + t->at, t->n - t->at, cp);
    return *cp >= 0 || fail(t, "invalid UTF-8");
}

static bool put_code(translation *t, sl_buf *out, int32_t cp) {
    return sl_buf_printf(out, "\\x{%x}", (unsigned)cp) || fail(t, "out of memory");
}

static bool add_range(translation *t, set *s) {
    int32_t first, last;
    if (!class_char(t, &first))
        return false;
    last = first;
    if (peek(t, 0, '-') && t->at + 1 < t->n && !peek(t, 1, ']') && !starts(t, "-[") && !starts(t, "-&&")) {
        t->at++;
        if (!class_char(t, &last))
            return false;
        if (last < first)
            return fail(t, "range out of order in a character class");
    }
    return put_code(t, &s->members, first) &&
           (last == first || (put(t, &s->members, "-") && put_code(t, &s->members, last)));
}

static const char *shorthand(char c, bool *negated) {
    *negated = isupper((unsigned char)c);
    switch (tolower((unsigned char)c)) {
    case 'w':
        return WORD;
    case 'd':
        return "\\p{Nd}";
    case 's':
        return "\\s";
    case 'h':
        return HEX;
    default:
        return NULL;
    }
}

static bool add_escape(translation *t, set *s, bool *done) {
    bool negated, ok;
    *done = false;
    if (t->at + 1 >= t->n)
        return fail(t, "\\ at the end");
    char c = t->p[t->at + 1];
    const char *members = shorthand(c, &negated);
    if (members) {
        *done = true;
        t->at += 2;
        return add_members(t, s, members, negated);
    }
    if (c != 'p' && c != 'P')
        return true;
    *done = true;
    sl_buf b = {0};
    ok = parse_property(t, &b, &negated) && add_members(t, s, b.data, negated);
    sl_buf_free(&b);
    return ok;
}

static bool add_posix(translation *t, set *s) {
    size_t from = t->at + 2;
    bool negated = from < t->n && t->p[from] == '^';
    from += negated;
    size_t n = 0;
    while (from + n < t->n && isalpha((unsigned char)t->p[from + n]))
        n++;
    sl_buf b = {0};
    bool ok = property_members(t, t->p + from, n, &b) && add_members(t, s, b.data, negated);
    sl_buf_free(&b);
    t->at = from + n + 2;
    return ok;
}

static bool is_posix(const translation *t) {
    if (!starts(t, "[:"))
        return false;
    size_t i = t->at + 2 + peek(t, 2, '^');
    size_t first = i;
    while (i < t->n && isalpha((unsigned char)t->p[i]))
        i++;
    return i > first && i + 1 < t->n && t->p[i] == ':' && t->p[i + 1] == ']';
}

static bool parse_class(translation *t, set *into, int depth);

static bool add_item(translation *t, set *s, int depth) {
    bool done = false;
    if (is_posix(t))
        return add_posix(t, s);
    if (t->p[t->at] == '[')
        return parse_class(t, s, depth + 1);
    if (t->p[t->at] == '\\' && !add_escape(t, s, &done))
        return false;
    return done || add_range(t, s);
}

/* Adds "one character of operand", as a condition, to a growing intersection. */
static bool intersect(translation *t, sl_buf *conditions, const set *operand) {
    return put(t, conditions, "(?=") && set_pattern(t, operand, conditions) && put(t, conditions, ")");
}

/* At '[': adds the class to a set; moves behind its ']'. */
static bool parse_class(translation *t, set *into, int depth) {
    if (depth > MAX_CLASS_DEPTH)
        return fail(t, "character classes nested too deeply");
    set s = {0};
    sl_buf conditions = {0}, whole = {0};
    bool ok = true;
    t->at++;
    bool negated = peek(t, 0, '^');
    t->at += negated;
    bool first = true;
    while (ok && t->at < t->n && (t->p[t->at] != ']' || first)) {
        if (starts(t, "&&")) {
            t->at += 2;
            ok = intersect(t, &conditions, &s);
            set_free(&s);
            s = (set){0};
        } else {
            ok = add_item(t, &s, depth);
        }
        first = false;
    }
    if (ok && t->at >= t->n)
        ok = fail(t, "character class without ]");
    t->at++;
    if (ok && !conditions.size && !s.others.size) {
        ok = s.members.size ? add_members(t, into, s.members.data, negated) : fail(t, "empty character class");
    } else if (ok) {
        ok = put(t, &whole, negated ? "(?!" : "(?:") && (!conditions.size || put(t, &whole, conditions.data)) &&
             set_pattern(t, &s, &whole) &&
             add_other(t, into, negated ? "(?:" : "", whole.data, negated ? ")(?s:.))" : ")");
    }
    set_free(&s);
    sl_buf_free(&conditions);
    sl_buf_free(&whole);
    return ok;
}

/* ---- outside classes -------------------------------------------------------------------------------------------- */

static bool translate_class(translation *t) {
    set s = {0};
    t->atom = t->out->size;
    bool ok = parse_class(t, &s, 0) && set_pattern(t, &s, t->out);
    set_free(&s);
    return ok;
}

static bool translate_property(translation *t) {
    sl_buf members = {0};
    bool negated, ok = parse_property(t, &members, &negated) && put(t, t->out, negated ? "[^" : "[") &&
                       put(t, t->out, members.data) && put(t, t->out, "]");
    sl_buf_free(&members);
    return ok;
}

static bool translate_escape(translation *t) {
    t->atom = t->out->size;
    if (t->at + 1 >= t->n)
        return fail(t, "\\ at the end");
    char c = t->p[t->at + 1];
    bool negated;
    const char *members = shorthand(c, &negated);
    if (c == 'p' || c == 'P')
        return translate_property(t);
    if (c == 'u' || c == 'x' || c == 'v' || (c & 0x80)) {
        int32_t cp;
        return class_char(t, &cp) && put_code(t, t->out, cp);
    }
    t->at += 2;
    if (members)
        return put(t, t->out, negated ? "[^" : "[") && put(t, t->out, members) && put(t, t->out, "]");
    switch (c) {
    case 'b':
        return put(t, t->out, "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))");
    case 'B':
        return put(t, t->out, "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))");
    case 'O':
        return put(t, t->out, "(?s:.)");
    case 'Q': /* PCRE2 would begin or end a quotation */
    case 'E':
        return sl_buf_append(t->out, &c, 1) || fail(t, "out of memory");
    case 'y':
    case 'Y':
        return fail(t, "text segment boundaries are not supported");
    default:
        return sl_buf_append(t->out, t->p + t->at - 2, 2) || fail(t, "out of memory");
    }
}

/* At "(?": copies the introducer; an option m is PCRE2's s. */
static bool translate_group(translation *t) {
    if (t->group_count == MAX_GROUPS)
        return fail(t, "groups nested too deeply");
    t->groups[t->group_count++] = t->out->size;
    if (starts(t, "(?~"))
        return fail(t, "the absent operator is not supported");
    if (!put(t, t->out, "("))
        return false;
    t->at++;
    if (!peek(t, 0, '?'))
        return true;
    if (peek(t, 1, '#')) {
        const char *close = memchr(t->p + t->at, ')', t->n - t->at);
        if (!close)
            return fail(t, "comment without )");
        t->at = (size_t)(close - t->p);
        return put(t, t->out, "?#");
    }
    while (t->at < t->n && strchr("?imx-", t->p[t->at])) {
        char c = t->p[t->at++] == 'm' ? 's' : t->p[t->at - 1];
        if (!sl_buf_append(t->out, &c, 1))
            return fail(t, "out of memory");
    }
    /* ":", "=", "!", ">", "<name>", "<=", "<!" or ")" follow and need nothing, except that '=' and '!' are no atoms */
    while (t->at < t->n && strchr(":=!><", t->p[t->at])) {
        char c = t->p[t->at++];
        if (!sl_buf_append(t->out, &c, 1))
            return fail(t, "out of memory");
    }
    return true;
}

/* Length of "{n}", "{n,}", "{n,m}" or "{,m}" at the current place; 0: a literal brace. */
static size_t interval(const translation *t, bool *open_start) {
    size_t i = t->at + 1, first = i;
    while (i < t->n && isdigit((unsigned char)t->p[i]))
        i++;
    size_t low = i - first, high = 0;
    if (i < t->n && t->p[i] == ',') {
        size_t from = ++i;
        while (i < t->n && isdigit((unsigned char)t->p[i]))
            i++;
        high = i - from;
    }
    *open_start = !low && high;
    return i < t->n && t->p[i] == '}' && (low || high) ? i + 1 - t->at : 0;
}

/* Puts the last atom, with its quantifier, into a group of its own. */
static bool wrap_atom(translation *t) {
    char *atom = sl_strndup(t->out->data + t->atom, t->out->size - t->atom);
    if (!atom)
        return fail(t, "out of memory");
    t->out->size = t->atom;
    bool ok = put(t, t->out, "(?:") && put(t, t->out, atom) && put(t, t->out, ")");
    free(atom);
    return ok;
}

static bool translate_interval(translation *t) {
    bool open_start;
    size_t n = interval(t, &open_start);
    if (!n) {
        t->atom = t->out->size;
        t->at++;
        return put(t, t->out, "\\{");
    }
    bool fixed = !memchr(t->p + t->at, ',', n);
    if (!(open_start ? put(t, t->out, "{0") && sl_buf_append(t->out, t->p + t->at + 1, n - 1)
                     : sl_buf_append(t->out, t->p + t->at, n)))
        return fail(t, "out of memory");
    t->at += n;
    /* Ruby: "x{2}+" and "x{2}?" quantify x{2} once more */
    return !(peek(t, 0, '+') || (fixed && peek(t, 0, '?'))) || wrap_atom(t);
}

static bool translate_one(translation *t) {
    char c = t->p[t->at];
    switch (c) {
    case '\\':
        return translate_escape(t);
    case '[':
        return translate_class(t);
    case '(':
        return translate_group(t);
    case ')':
        if (!t->group_count)
            return fail(t, "unmatched )");
        t->atom = t->groups[--t->group_count];
        t->at++;
        return put(t, t->out, ")");
    case '{':
        return translate_interval(t);
    case '*':
    case '+':
    case '?':
        t->at++;
        return sl_buf_append(t->out, &c, 1) || fail(t, "out of memory");
    default: {
        int32_t cp;
        int len = sl_utf8_decode(t->p + t->at, t->n - t->at, &cp);
        if (cp <= 0)
            return fail(t, cp ? "invalid UTF-8" : "a NUL character");
        t->atom = t->out->size;
        bool ok = sl_buf_append(t->out, t->p + t->at, (size_t)len) || fail(t, "out of memory");
        t->at += (size_t)len;
        return ok;
    }
    }
}

bool text_regex_translate(const char *pattern, size_t n, sl_buf *out, const char *where, sl_error *err) {
    translation t = {.p = pattern, .n = n, .out = out, .where = where, .err = err};
    while (t.at < n)
        if (!translate_one(&t))
            return false;
    return sl_buf_append(out, "", 0);
}

/* Source to tokens: text between tags with white space control, and what is inside the tags.
 *
 * White space around tags, in the order the reference applies it: a '-' strips all of it on that side; '+' on the left,
 * or before '%}' on the right, keeps it; otherwise blanks between the start of a line and a {% or {# tag are dropped
 * (lstrip_blocks), and one newline right behind %} or #} (trim_blocks). {{ }} is never trimmed by itself. */
#include "text/jinja_tree.h"

#include <stdlib.h>
#include <string.h>

typedef struct lexer {
    jinja *j;
    const char *p; /* newlines are \n */
    size_t n, at;
    int line;
    bool line_start; /* what was read last ended with a newline (or nothing was read) */
    jtokens tokens;
    char open[JINJA_MAX_NESTING]; /* brackets waiting for these */
    int open_n;
} lexer;

static void push(lexer *l, jtoken_kind kind, int line, jstr *text, jval value) {
    void *at = l->tokens.at;
    if (text)
        jinja_points(l->j, text); /* counted now: rendering threads share it */
    jinja_grow(l->j, &at, &l->tokens.capacity, l->tokens.n, sizeof *l->tokens.at);
    l->tokens.at = at;
    l->tokens.at[l->tokens.n++] = (jtoken){.kind = kind, .line = line, .text = text, .value = value};
}

static void push_text(lexer *l, jtoken_kind kind, size_t from, size_t to) {
    push(l, kind, l->line, jinja_view_n(l->j, l->p + from, to - from), jinja_missing());
}

static bool starts(const lexer *l, size_t at, const char *what) {
    size_t n = strlen(what);
    return l->n - at >= n && memcmp(l->p + at, what, n) == 0;
}

static size_t skip_space(const lexer *l, size_t at) {
    while (at < l->n) {
        int32_t cp;
        size_t bytes = (size_t)sl_utf8_decode(l->p + at, l->n - at, &cp);
        if (!jinja_is_space(cp))
            break;
        at += bytes;
    }
    return at;
}

/* Moves on to `to`, counting lines. */
static void advance(lexer *l, size_t to) {
    for (size_t i = l->at; i < to; i++)
        l->line += l->p[i] == '\n';
    if (to > l->at)
        l->line_start = l->p[to - 1] == '\n';
    l->at = to;
    l->j->line = l->line;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Text up to a tag whose sign is `sign`: what remains of it. */
static size_t trimmed_end(lexer *l, size_t from, size_t to, char sign, bool is_variable) {
    if (sign == '-') {
        jstr text = {.p = l->p + from, .n = to - from, .points = -1};
        return from + jinja_strip(l->j, &text, NULL, false, true).s->n;
    }
    if (sign == '+' || is_variable)
        return to;
    size_t start = to;
    while (start > from && l->p[start - 1] != '\n')
        start--;
    if (start == from && !l->line_start)
        return to;
    return skip_space(l, start) >= to ? start : to;
}

static void push_data(lexer *l, size_t from, size_t to) {
    if (to > from)
        push_text(l, JT_DATA, from, to);
}

static char sign_at(const lexer *l, size_t at) {
    return at < l->n && (l->p[at] == '-' || l->p[at] == '+') ? l->p[at] : 0;
}

/* End of a "%}" or "#}" at `at` with its sign and what it swallows; 0: none there. */
static size_t tag_end(const lexer *l, size_t at, const char *close) {
    if (at < l->n && l->p[at] == '-' && starts(l, at + 1, close))
        return skip_space(l, at + 3);
    if (at < l->n && l->p[at] == '+' && starts(l, at + 1, close))
        return at + 3;
    if (!starts(l, at, close))
        return 0;
    return at + 2 + (at + 2 < l->n && l->p[at + 2] == '\n');
}

/* {% raw %} at `at`: where its text begins; 0: another tag. */
static size_t raw_begin(const lexer *l, size_t at) {
    size_t name = skip_space(l, at + 2 + (sign_at(l, at + 2) != 0));
    if (!starts(l, name, "raw"))
        return 0;
    size_t end = skip_space(l, name + 3);
    if (starts(l, end, "-%}"))
        return skip_space(l, end + 3);
    return starts(l, end, "%}") ? end + 2 : 0;
}

/* A {% endraw %} at `at`: its end; 0: none. */
static size_t raw_end(const lexer *l, size_t at) {
    size_t name = skip_space(l, at + 2 + (sign_at(l, at + 2) != 0));
    return starts(l, name, "endraw") ? tag_end(l, skip_space(l, name + 6), "%}") : 0;
}

static void lex_raw(lexer *l, size_t text) {
    advance(l, text);
    for (size_t at = text; at + 1 < l->n; at++) {
        const char *hit = memmem(l->p + at, l->n - at, "{%", 2);
        if (!hit)
            break;
        at = (size_t)(hit - l->p);
        size_t end = raw_end(l, at);
        if (!end)
            continue;
        push_data(l, text, trimmed_end(l, text, at, sign_at(l, at + 2), false));
        advance(l, end);
        return;
    }
    jinja_raise(l->j, "a {%% raw %%} is not closed");
}

static void lex_comment(lexer *l) {
    for (size_t at = l->at; at < l->n; at++) {
        const char *hit = memmem(l->p + at, l->n - at, "#}", 2);
        if (!hit)
            break;
        at = (size_t)(hit - l->p);
        if (at > l->at && (l->p[at - 1] == '-' || l->p[at - 1] == '+'))
            at--;
        advance(l, tag_end(l, at, "#}"));
        return;
    }
    jinja_raise(l->j, "a comment is not closed");
}

/* ---- inside tags ----------------------------------------------------------------------------- */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* End of digits with single underscores between them. */
static size_t digits_end(const lexer *l, size_t at) {
    while (at < l->n && (is_digit(l->p[at]) || (l->p[at] == '_' && at + 1 < l->n && is_digit(l->p[at + 1]))))
        at++;
    return at;
}

/* End of a float at `at`, 0: none. */
static size_t float_end(const lexer *l, size_t at) {
    if (at > 0 && l->p[at - 1] == '.')
        return 0;
    size_t whole = digits_end(l, at), fraction = whole, end;
    if (whole + 1 < l->n && l->p[whole] == '.' && is_digit(l->p[whole + 1]))
        fraction = digits_end(l, whole + 1);
    end = fraction > whole ? fraction : 0;
    if (fraction < l->n && (l->p[fraction] | 0x20) == 'e') {
        size_t exponent = fraction + 1;
        exponent += exponent < l->n && (l->p[exponent] == '+' || l->p[exponent] == '-');
        if (exponent < l->n && is_digit(l->p[exponent]))
            end = digits_end(l, exponent);
    }
    return end;
}

static bool is_digit_of(char c, int base) {
    char lower = (char)(c | 0x20);
    return base == 16 ? is_digit(c) || (lower >= 'a' && lower <= 'f') : c >= '0' && c < '0' + base;
}

/* End of an int and its base. A leading zero stands alone, but for 0x, 0o, 0b. */
static size_t int_end(const lexer *l, size_t at, int *base) {
    *base = 10;
    if (l->p[at] != '0')
        return digits_end(l, at);
    char mark = at + 1 < l->n ? (char)(l->p[at + 1] | 0x20) : 0;
    *base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    size_t end = at + 2;
    while (*base != 10 && end < l->n) {
        size_t digit = end + (l->p[end] == '_');
        if (digit >= l->n || !is_digit_of(l->p[digit], *base))
            break;
        end = digit + 1;
    }
    if (*base != 10 && end > at + 2)
        return end;
    *base = 10;
    for (end = at + 1; end < l->n; end++)
        if (l->p[end] == '_' && end + 1 < l->n && l->p[end + 1] == '0')
            end++;
        else if (l->p[end] != '0')
            break;
    return end;
}

static void lex_number(lexer *l) {
    size_t end = float_end(l, l->at);
    jval value;
    if (end) {
        double f;
        if (!jinja_parse_float(l->j, jinja_view_n(l->j, l->p + l->at, end - l->at), &f))
            jinja_raise(l->j, "a number that is none");
        value = jinja_float(f);
    } else {
        int base;
        int64_t i;
        end = int_end(l, l->at, &base);
        if (jinja_parse_int(l->j, jinja_view_n(l->j, l->p + l->at, end - l->at), base, &i) != 1)
            jinja_raise(l->j, "the number %.*s does not fit in 64 bits", (int)(end - l->at > 60 ? 60 : end - l->at),
                        l->p + l->at);
        value = jinja_int(i);
    }
    push(l, value.kind == J_FLOAT ? JT_FLOAT : JT_INTEGER, l->line, jinja_view_n(l->j, l->p + l->at, end - l->at),
         value);
    advance(l, end);
}

static int32_t hex_escape(lexer *l, size_t at, size_t end, int digits) {
    int32_t cp = 0;
    for (int i = 0; i < digits; i++) {
        char c = at + (size_t)i < end ? l->p[at + (size_t)i] : '\0', lower = (char)(c | 0x20);
        if (!is_digit_of(c, 16))
            jinja_raise(l->j, "a \\x, \\u or \\U escape needs %d hexadecimal digits", digits);
        cp = cp * 16 + (is_digit(c) ? c - '0' : lower - 'a' + 10);
        if (cp > 0x10FFFF)
            jinja_raise(l->j, "an escape beyond U+10FFFF");
    }
    if (cp >= 0xD800 && cp < 0xE000)
        jinja_raise(l->j, "the escape \\u%04x is half a character", (unsigned)cp);
    return cp;
}

/* What follows a backslash at `at`; returns behind it. */
static size_t unescape(lexer *l, jtext *t, size_t at, size_t end) {
    static const char plain[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v"; /* pairs: letter, character */
    char c = l->p[at];
    for (const char *p = plain; *p; p += 2)
        if (c == *p) {
            jinja_put(t, p + 1, 1);
            return at + 1;
        }
    if (c == '\n')
        return at + 1;
    if (c >= '0' && c <= '7') {
        int32_t cp = 0;
        size_t from = at;
        while (at < end && at < from + 3 && l->p[at] >= '0' && l->p[at] <= '7')
            cp = cp * 8 + (l->p[at++] - '0');
        jinja_put_point(t, cp);
        return at;
    }
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits) {
        jinja_put_point(t, hex_escape(l, at + 1, end, digits));
        return at + 1 + (size_t)digits;
    }
    if (c == 'N')
        jinja_raise(l->j, "\\N{...} escapes are not supported");
    int32_t cp;
    size_t bytes = (size_t)sl_utf8_decode(l->p + at, end - at, &cp);
    if (cp < 0x80)
        jinja_putf(t, "\\%c", c);
    else /* the reference turns the character into an escape before it reads escapes */
        jinja_putf(t, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)cp);
    return at + bytes;
}

static void lex_string(lexer *l) {
    char quote = l->p[l->at];
    size_t end = l->at + 1;
    while (end < l->n && l->p[end] != quote)
        end += l->p[end] == '\\' ? 2 : 1;
    if (end >= l->n)
        jinja_raise(l->j, "a string is not closed");
    jtext t = {.j = l->j};
    for (size_t at = l->at + 1; at < end;) {
        const char *slash = memchr(l->p + at, '\\', end - at);
        size_t to = slash ? (size_t)(slash - l->p) : end;
        jinja_put(&t, l->p + at, to - at);
        at = slash ? unescape(l, &t, to + 1, end) : end;
    }
    push(l, JT_STRING, l->line, jinja_text(&t).s, jinja_missing());
    advance(l, end + 1);
}

static void lex_name(lexer *l) {
    size_t end = l->at;
    int32_t cp;
    bool first = true;
    while (end < l->n) {
        size_t bytes = (size_t)sl_utf8_decode(l->p + end, l->n - end, &cp);
        if (!jinja_is_word(cp) && !jinja_continues_identifier(cp))
            break;
        if (first ? !jinja_starts_identifier(cp) : !jinja_continues_identifier(cp))
            jinja_raise(l->j, "a character that no name may have");
        first = false;
        end += bytes;
    }
    push_text(l, JT_NAME, l->at, end);
    advance(l, end);
}

/* Brackets must match; the end of a tag counts only outside of them. */
static void balance(lexer *l, char c) {
    static const char opening[] = "([{", closing[] = ")]}";
    const char *hit = strchr(opening, c);
    if (hit) {
        if (l->open_n == JINJA_MAX_NESTING)
            jinja_raise(l->j, "brackets nested more than %d deep", JINJA_MAX_NESTING);
        l->open[l->open_n++] = closing[hit - opening];
    } else if (strchr(closing, c) && (!l->open_n || l->open[--l->open_n] != c))
        jinja_raise(l->j, "unexpected '%c'", c);
}

static void lex_operator(lexer *l) {
    static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                            "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (size_t i = 0; i < SL_COUNT(operators); i++)
        if (starts(l, l->at, operators[i])) {
            size_t end = l->at + strlen(operators[i]);
            balance(l, l->p[l->at]);
            push_text(l, JT_OPERATOR, l->at, end);
            advance(l, end);
            return;
        }
    int32_t cp;
    int bytes = sl_utf8_decode(l->p + l->at, l->n - l->at, &cp);
    jinja_raise(l->j, "unexpected character '%.*s'", bytes, l->p + l->at);
}

/* End of the tag at `at`, 0: not there. */
static size_t close_at(const lexer *l, bool is_variable) {
    if (l->open_n)
        return 0;
    if (!is_variable)
        return tag_end(l, l->at, "%}");
    if (starts(l, l->at, "-}}"))
        return skip_space(l, l->at + 3);
    return starts(l, l->at, "}}") ? l->at + 2 : 0;
}

static void lex_tag(lexer *l, bool is_variable) {
    push(l, is_variable ? JT_VARIABLE_BEGIN : JT_BLOCK_BEGIN, l->line, NULL, jinja_missing());
    for (;;) {
        size_t end = l->at < l->n ? close_at(l, is_variable) : 0;
        if (end) {
            push(l, is_variable ? JT_VARIABLE_END : JT_BLOCK_END, l->line, NULL, jinja_missing());
            advance(l, end);
            return;
        }
        size_t after = skip_space(l, l->at);
        if (after > l->at) {
            advance(l, after);
            continue;
        }
        if (l->at >= l->n)
            return; /* the parser says what is missing */
        int32_t cp;
        sl_utf8_decode(l->p + l->at, l->n - l->at, &cp);
        if (is_digit((char)cp) && cp < 0x80)
            lex_number(l);
        else if (cp == '\'' || cp == '"')
            lex_string(l);
        else if (jinja_is_word(cp) || jinja_continues_identifier(cp))
            lex_name(l);
        else
            lex_operator(l);
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* \r\n and \r become \n; the last newline is dropped; bytes must be UTF-8. */
static void normalize(lexer *l, const char *source, size_t n) {
    char *p = jinja_alloc(l->j, n + 1);
    for (size_t at = 0; at < n;) {
        int32_t cp;
        size_t bytes = (size_t)sl_utf8_decode(source + at, n - at, &cp);
        if (cp < 0)
            jinja_raise(l->j, "byte %zu is not UTF-8", at);
        if (cp == '\r') {
            bytes += at + 1 < n && source[at + 1] == '\n';
            p[l->n++] = '\n';
        } else {
            memcpy(p + l->n, source + at, bytes);
            l->n += bytes;
        }
        l->j->line += cp == '\n' || cp == '\r';
        at += bytes;
    }
    if (l->n && p[l->n - 1] == '\n')
        l->n--;
    l->p = p;
}

/* The first "{{", "{%" or "{#" at or behind `at`. */
static size_t find_tag(const lexer *l, size_t at) {
    for (; at + 1 < l->n; at++) {
        const char *hit = memchr(l->p + at, '{', l->n - at - 1);
        if (!hit)
            break;
        at = (size_t)(hit - l->p);
        if (hit[1] == '{' || hit[1] == '%' || hit[1] == '#')
            return at;
    }
    return l->n;
}

jtokens jinja_lex(jinja *j, const char *source, size_t n) {
    lexer l = {.j = j, .line = 1, .line_start = true};
    j->line = 1;
    normalize(&l, source, n);
    j->line = 1;
    while (l.at < l.n) {
        size_t tag = find_tag(&l, l.at);
        if (tag == l.n) {
            push_data(&l, l.at, l.n);
            advance(&l, l.n);
            break;
        }
        char kind = l.p[tag + 1], sign = sign_at(&l, tag + 2);
        size_t raw = kind == '%' ? raw_begin(&l, tag) : 0;
        push_data(&l, l.at, trimmed_end(&l, l.at, tag, sign, kind == '{'));
        advance(&l, raw ? tag : tag + 2 + (sign != 0));
        if (raw)
            lex_raw(&l, raw);
        else if (kind == '#')
            lex_comment(&l);
        else
            lex_tag(&l, kind == '{');
    }
    push(&l, JT_EOF, l.line, jinja_view_n(j, "", 0), jinja_missing());
    return l.tokens;
}

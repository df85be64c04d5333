/* Text to numbers as Python's int() and float() read it: white space around, underscores between digits, any script's
 * digits. */
#include "text/jinja.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Value of a decimal digit: Unicode has each script's ten in a row, from 0; -1: none. */
static int decimal_value(int32_t cp) {
    if (cp < 0x80)
        return cp >= '0' && cp <= '9' ? cp - '0' : -1;
    if (!jinja_is_decimal(cp))
        return -1;
    int32_t from = cp;
    while (jinja_is_decimal(from - 1))
        from--;
    return (cp - from) % 10;
}

/* s without white space around, its digits as ASCII; NUL-terminated. NULL: characters that no number has. */
static char *to_ascii(jinja *j, const jstr *s) {
    jstr copy = *s;
    const jstr *bare = jinja_strip(j, &copy, NULL, true, true).s;
    char *out = jinja_alloc(j, bare->n + 1);
    size_t n = 0;
    for (size_t at = 0; at < bare->n;) {
        int32_t cp;
        at += (size_t)sl_utf8_decode(bare->p + at, bare->n - at, &cp);
        int digit = decimal_value(cp);
        if (cp == 0 || (cp >= 0x80 && digit < 0))
            return NULL;
        out[n++] = digit >= 0 ? (char)('0' + digit) : (char)cp;
    }
    return out;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Digits with single underscores between them are copied to *to; false: none, or an underscore out of place. */
static bool copy_digits(const char **from, char **to) {
    const char *p = *from;
    if (!is_digit(*p))
        return false;
    for (;;) {
        while (is_digit(*p))
            *(*to)++ = *p++;
        if (*p != '_')
            break;
        if (!is_digit(*++p))
            return false;
    }
    *from = p;
    return true;
}

static bool is_word(const char *p, const char *word) {
    for (; *word; p++, word++)
        if ((*p | 0x20) != *word)
            return false;
    return *p == '\0';
}

/* [digits][.[digits]][e[sign]digits], digits at least on one side of the point. */
static bool copy_decimal(const char *p, char *to) {
    bool whole = is_digit(*p), fraction = false;
    if (whole && !copy_digits(&p, &to))
        return false;
    if (*p == '.') {
        *to++ = *p++;
        fraction = is_digit(*p);
        if (fraction && !copy_digits(&p, &to))
            return false;
    }
    if (!whole && !fraction)
        return false;
    if ((*p | 0x20) == 'e') {
        *to++ = *p++;
        if (*p == '+' || *p == '-')
            *to++ = *p++;
        if (!copy_digits(&p, &to))
            return false;
    }
    *to = '\0';
    return *p == '\0';
}

bool jinja_parse_float(jinja *j, const jstr *s, double *out) {
    const char *p = to_ascii(j, s);
    if (!p)
        return false;
    bool negative = *p == '-';
    p += *p == '-' || *p == '+';
    if (is_word(p, "inf") || is_word(p, "infinity"))
        *out = HUGE_VAL;
    else if (is_word(p, "nan"))
        *out = NAN;
    else {
        char *plain = jinja_alloc(j, strlen(p) + 1);
        if (!copy_decimal(p, plain))
            return false;
        *out = strtod(plain, NULL);
    }
    if (negative)
        *out = -*out;
    return true;
}

static int digit_value(char c) {
    if (is_digit(c))
        return c - '0';
    int letter = c | 0x20;
    return letter >= 'a' && letter <= 'z' ? letter - 'a' + 10 : 99;
}

/* Skips 0x, 0o, 0b where `base` allows it; base 0 becomes what the prefix says. False: base 0 and a leading zero (only
 * 0 itself). */
static bool skip_prefix(const char **p, int *base) {
    static const struct {
        char letter;
        int base;
    } prefixes[] = {{'x', 16}, {'o', 8}, {'b', 2}};
    for (size_t i = 0; i < SL_COUNT(prefixes); i++)
        if ((*p)[0] == '0' && ((*p)[1] | 0x20) == prefixes[i].letter && (*base == 0 || *base == prefixes[i].base)) {
            *p += 2;
            *p += **p == '_';
            *base = prefixes[i].base;
            return true;
        }
    if (*base != 0)
        return true;
    *base = 10;
    return **p != '0' || strspn(*p, "0_") == strlen(*p);
}

int jinja_parse_int(jinja *j, const jstr *s, int base, int64_t *out) {
    const char *p = to_ascii(j, s);
    if (!p)
        return 0;
    bool negative = *p == '-', big = false, digit = false;
    p += *p == '-' || *p == '+';
    if (!skip_prefix(&p, &base))
        return 0;
    int64_t value = 0;
    for (; *p; p++) {
        if (*p == '_' && digit && p[1] != '_' && p[1] != '\0')
            continue;
        int d = digit_value(*p);
        if (d >= base)
            return 0;
        digit = true;
        if (__builtin_mul_overflow(value, base, &value) || __builtin_sub_overflow(value, d, &value))
            big = true;
    }
    if (!digit)
        return 0;
    /* Gathered as a negative, so that the least int64 fits. */
    if (big || (!negative && value == INT64_MIN))
        return -1;
    *out = negative ? value : -value;
    return 1;
}

/* Python's str operations on UTF-8: indexes count code points, results keep Markup. */
#include "text/jinja.h"

#include <string.h>
#include <utf8proc.h>

static int32_t point_at(const jstr *s, size_t at, size_t *bytes) {
    int32_t cp;
    *bytes = (size_t)sl_utf8_decode(s->p + at, s->n - at, &cp);
    return cp;
}

/* The code point that ends before byte `end`; its length. */
static int32_t point_before(const jstr *s, size_t end, size_t *bytes) {
    size_t at = end - 1;
    while (at > 0 && ((unsigned char)s->p[at] & 0xC0) == 0x80)
        at--;
    int32_t cp = point_at(s, at, bytes);
    *bytes = end - at;
    return cp;
}

int64_t jinja_points(jinja *j, jstr *s) {
    if (s->points < 0) {
        jinja_work(j, s->n);
        int64_t count = 0;
        for (size_t i = 0; i < s->n; i++)
            count += ((unsigned char)s->p[i] & 0xC0) != 0x80;
        s->points = count;
    }
    return s->points;
}

size_t jinja_offset(jinja *j, jstr *s, int64_t index) {
    int64_t points = jinja_points(j, s);
    if (points == (int64_t)s->n)
        return (size_t)index;
    if (index >= points)
        return s->n;
    size_t at = 0;
    for (int64_t i = 0; i < index; i++) {
        at++;
        while (((unsigned char)s->p[at] & 0xC0) == 0x80)
            at++;
    }
    jinja_work(j, at);
    return at;
}

size_t jinja_find(jinja *j, const jstr *s, const jstr *what, size_t from) {
    if (what->n > s->n - from)
        return SIZE_MAX;
    if (!what->n)
        return from;
    const char *hit = memmem(s->p + from, s->n - from, what->p, what->n);
    size_t at = hit ? (size_t)(hit - s->p) : SIZE_MAX;
    jinja_work(j, hit ? at - from : s->n - from);
    return at;
}

size_t jinja_find_last(jinja *j, const jstr *s, const jstr *what, size_t to) {
    if (what->n > to)
        return SIZE_MAX;
    if (!what->n)
        return to;
    for (size_t at = to - what->n + 1; at-- > 0;) {
        if (s->p[at] == what->p[0]) {
            jinja_work(j, what->n);
            if (memcmp(s->p + at, what->p, what->n) == 0)
                return at;
        }
    }
    jinja_work(j, to);
    return SIZE_MAX;
}

/* ---- strip, split ---------------------------------------------------------------------------- */

static bool strippable(jinja *j, int32_t cp, const jstr *chars) {
    if (!chars)
        return jinja_is_space(cp);
    char bytes[4];
    jstr one = {.p = bytes, .n = (size_t)sl_utf8_encode(cp, bytes)};
    return jinja_find(j, chars, &one, 0) != SIZE_MAX;
}

jval jinja_strip(jinja *j, jstr *s, const jstr *chars, bool left, bool right) {
    size_t from = 0, to = s->n, bytes;
    while (left && from < to && strippable(j, point_at(s, from, &bytes), chars))
        from += bytes;
    while (right && to > from && strippable(j, point_before(s, to, &bytes), chars))
        to -= bytes;
    jinja_work(j, s->n - (to - from));
    return from == 0 && to == s->n ? jinja_of_str(s) : jinja_substr(j, s, from, to);
}

static jval split_space(jinja *j, jstr *s, int64_t max) {
    jval list = jinja_seq_new(j, J_LIST, 4);
    size_t at = 0, bytes;
    for (;;) {
        while (at < s->n && jinja_is_space(point_at(s, at, &bytes)))
            at += bytes;
        if (at == s->n)
            return list;
        size_t from = at;
        if (max == 0) { /* the rest as it is */
            jinja_push(j, list, jinja_substr(j, s, from, s->n));
            return list;
        }
        max--;
        while (at < s->n && !jinja_is_space(point_at(s, at, &bytes)))
            at += bytes;
        jinja_work(j, at - from);
        jinja_push(j, list, jinja_substr(j, s, from, at));
    }
}

jval jinja_split(jinja *j, jstr *s, const jstr *sep, int64_t max) {
    if (!sep)
        return split_space(j, s, max);
    if (!sep->n)
        jinja_raise(j, "split() by an empty separator");
    jval list = jinja_seq_new(j, J_LIST, 4);
    size_t from = 0, at;
    while (max != 0 && (at = jinja_find(j, s, sep, from)) != SIZE_MAX) {
        jinja_push(j, list, jinja_substr(j, s, from, at));
        from = at + sep->n;
        max--;
    }
    jinja_push(j, list, jinja_substr(j, s, from, s->n));
    return list;
}

static jval reversed_list(jval list) {
    jseq *s = list.seq;
    for (size_t i = 0; i < s->n / 2; i++) {
        jval swap = s->at[i];
        s->at[i] = s->at[s->n - 1 - i];
        s->at[s->n - 1 - i] = swap;
    }
    return list;
}

static jval rsplit_space(jinja *j, jstr *s, int64_t max) {
    jval list = jinja_seq_new(j, J_LIST, 4);
    size_t to = s->n, bytes;
    for (;;) {
        while (to > 0 && jinja_is_space(point_before(s, to, &bytes)))
            to -= bytes;
        if (to == 0)
            return reversed_list(list);
        size_t from = to;
        if (max == 0) {
            jinja_push(j, list, jinja_substr(j, s, 0, to));
            return reversed_list(list);
        }
        max--;
        while (from > 0 && !jinja_is_space(point_before(s, from, &bytes)))
            from -= bytes;
        jinja_work(j, to - from);
        jinja_push(j, list, jinja_substr(j, s, from, to));
        to = from;
    }
}

jval jinja_rsplit(jinja *j, jstr *s, const jstr *sep, int64_t max) {
    if (!sep)
        return rsplit_space(j, s, max);
    if (!sep->n)
        jinja_raise(j, "rsplit() by an empty separator");
    jval list = jinja_seq_new(j, J_LIST, 4);
    size_t to = s->n, at;
    while (max != 0 && (at = jinja_find_last(j, s, sep, to)) != SIZE_MAX) {
        jinja_push(j, list, jinja_substr(j, s, at + sep->n, to));
        to = at;
        max--;
    }
    jinja_push(j, list, jinja_substr(j, s, 0, to));
    return reversed_list(list);
}

jval jinja_splitlines(jinja *j, jstr *s, bool keep) {
    jval list = jinja_seq_new(j, J_LIST, 4);
    jinja_work(j, s->n);
    for (size_t at = 0, from = 0, bytes; from < s->n; from = at) {
        size_t end = s->n;
        while (at < s->n) {
            int32_t cp = point_at(s, at, &bytes);
            at += bytes;
            if (!jinja_is_line_end(cp))
                continue;
            end = at - bytes;
            at += cp == '\r' && at < s->n && s->p[at] == '\n';
            break;
        }
        jinja_push(j, list, jinja_substr(j, s, from, keep ? at : end));
    }
    return list;
}

/* ---- replace, escape, pad -------------------------------------------------------------------- */

static void replace_empty(jtext *t, const jstr *s, const jstr *to, int64_t count) {
    size_t at = 0, bytes;
    for (;;) {
        if (count == 0)
            break;
        jinja_put_str(t, to);
        count--;
        if (at == s->n)
            break;
        point_at(s, at, &bytes);
        jinja_put(t, s->p + at, bytes);
        at += bytes;
    }
    jinja_put(t, s->p + at, s->n - at);
}

jval jinja_replace(jinja *j, const jstr *s, const jstr *from, const jstr *to, int64_t count) {
    jtext t = {.j = j};
    if (!from->n)
        replace_empty(&t, s, to, count);
    else {
        size_t at = 0, hit = jinja_find(j, s, from, 0);
        if (hit == SIZE_MAX || count == 0)
            return jinja_of_str(s);
        for (; hit != SIZE_MAX && count != 0; count--) {
            jinja_put(&t, s->p + at, hit - at);
            jinja_put_str(&t, to);
            at = hit + from->n;
            hit = jinja_find(j, s, from, at);
        }
        jinja_put(&t, s->p + at, s->n - at);
    }
    jval v = jinja_text(&t);
    v.s->markup = s->markup;
    return v;
}

jval jinja_escape(jinja *j, jval v) {
    jstr *s = jinja_soft_str(j, v);
    if (s->markup)
        return jinja_of_str(s);
    jtext t = {.j = j};
    for (size_t at = 0, plain = 0; at <= s->n; at++) {
        const char *to = NULL;
        switch (at < s->n ? s->p[at] : '\0') {
        case '&':
            to = "&amp;";
            break;
        case '<':
            to = "&lt;";
            break;
        case '>':
            to = "&gt;";
            break;
        case '\'':
            to = "&#39;";
            break;
        case '"':
            to = "&#34;";
            break;
        default:
            break;
        }
        if (at < s->n && !to)
            continue;
        jinja_put(&t, s->p + plain, at - plain);
        if (to)
            jinja_puts(&t, to);
        plain = at + 1;
    }
    jval out = jinja_text(&t);
    out.s->markup = true;
    return out;
}

jval jinja_pad(jinja *j, jstr *s, int64_t left, int64_t right, const jstr *fill) {
    if (left <= 0 && right <= 0)
        return jinja_of_str(s);
    jtext t = {.j = j};
    jinja_put_repeat(&t, fill, left);
    jinja_put_str(&t, s);
    jinja_put_repeat(&t, fill, right);
    jval v = jinja_text(&t);
    v.s->markup = s->markup;
    return v;
}

/* ---- case ------------------------------------------------------------------------------------ */

#define CAPITAL_SIGMA 0x3A3

static bool is_cased(int32_t cp) {
    return jinja_is_lower(cp) || jinja_is_upper(cp) || jinja_is_title(cp);
}

/* Word_Break=MidLetter, MidNumLet or Single_Quote, or category Mn, Me, Cf, Lm, Sk. */
static bool is_case_ignorable(int32_t cp) {
    static const uint16_t others[] = {0x27,   0x2E,   0x3A,   0xB7,   0x387,  0x55F,  0x5F4,  0x2018, 0x2019,
                                      0x2024, 0x2027, 0xFE13, 0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A};
    for (size_t i = 0; i < SL_COUNT(others); i++)
        if (others[i] == cp)
            return true;
    switch (utf8proc_category(cp)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return false;
    }
}

/* A sigma (at byte `at`, 2 bytes) ends a word: a letter before it, none after it. */
static bool is_final_sigma(jinja *j, const jstr *s, size_t at) {
    size_t before = at, after = at + 2, bytes;
    bool letter = false;
    while (before > 0) {
        int32_t cp = point_before(s, before, &bytes);
        before -= bytes;
        if (!is_case_ignorable(cp)) {
            letter = is_cased(cp);
            break;
        }
    }
    jinja_work(j, at - before);
    if (!letter)
        return false;
    while (after < s->n) {
        int32_t cp = point_at(s, after, &bytes);
        after += bytes;
        if (!is_case_ignorable(cp)) {
            letter = !is_cased(cp);
            break;
        }
    }
    jinja_work(j, after - at);
    return letter;
}

static void put_lower(jtext *t, const jstr *s, size_t at, int32_t cp) {
    if (cp == CAPITAL_SIGMA)
        jinja_put_point(t, is_final_sigma(t->j, s, at) ? 0x3C2 : 0x3C3);
    else if (cp == 0x130)
        jinja_puts(t, "i\xCC\x87");
    else
        jinja_put_point(t, utf8proc_tolower(cp));
}

static void put_points(jtext *t, const int32_t *points, int n) {
    for (int i = 0; i < n; i++)
        jinja_put_point(t, points[i]);
}

static void put_upper(jtext *t, int32_t cp) {
    int32_t points[3];
    put_points(t, points, jinja_upper_points(cp, points));
}

static void put_title(jtext *t, int32_t cp) {
    int32_t points[3];
    put_points(t, points, jinja_title_points(cp, points));
}

typedef enum case_rule { UPPER, LOWER, CAPITALIZE, TITLE, SWAP, FOLD } case_rule;

static void put_folded(jtext *t, int32_t cp) {
    int32_t points[8];
    int last = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char(cp, points, 8, UTF8PROC_CASEFOLD, &last);
    put_points(t, points, n > 0 && n <= 8 ? (int)n : 0);
}

static jval change_case(jinja *j, const jstr *s, case_rule rule) {
    jtext t = {.j = j};
    bool in_word = false;
    for (size_t at = 0, bytes; at < s->n; at += bytes) {
        int32_t cp = point_at(s, at, &bytes);
        if (rule == UPPER || (rule == SWAP && !jinja_is_upper(cp) && jinja_is_lower(cp)))
            put_upper(&t, cp);
        else if (rule == FOLD)
            put_folded(&t, cp);
        else if ((rule == CAPITALIZE && at == 0) || (rule == TITLE && !in_word))
            put_title(&t, cp);
        else if (rule == SWAP && !jinja_is_upper(cp))
            jinja_put_point(&t, cp);
        else
            put_lower(&t, s, at, cp);
        in_word = rule == TITLE && is_cased(cp);
    }
    jval v = jinja_text(&t);
    v.s->markup = s->markup;
    return v;
}

jval jinja_upper(jinja *j, const jstr *s) {
    return change_case(j, s, UPPER);
}
jval jinja_lower(jinja *j, const jstr *s) {
    return change_case(j, s, LOWER);
}
jval jinja_capitalize(jinja *j, const jstr *s) {
    return change_case(j, s, CAPITALIZE);
}
jval jinja_title_case(jinja *j, const jstr *s) {
    return change_case(j, s, TITLE);
}
jval jinja_swapcase(jinja *j, const jstr *s) {
    return change_case(j, s, SWAP);
}
jval jinja_casefold(jinja *j, const jstr *s) {
    return change_case(j, s, FOLD);
}

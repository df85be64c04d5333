/* Edits of text, one after the other: the steps of a normalizer, and those of a decoder. Bytes that are no UTF-8 pass
 * unchanged. */
#include "text/tokenizer_internal.h"

#include <utf8proc.h>

#include <stdlib.h>
#include <string.h>

bool text_edits_push(text_edits *e, text_edit edit) {
    text_edits one = {&edit, 1, 0};
    if (sl_grow((void **)&e->at, &e->capacity, e->count + 1, sizeof *e->at)) {
        e->at[e->count++] = edit;
        return true;
    }
    text_regex_free(one.at->regex);
    free(edit.from);
    free(edit.to);
    return false;
}

void text_edits_free(text_edits *e) {
    for (size_t i = 0; i < e->count; i++) {
        text_regex_free(e->at[i].regex);
        free(e->at[i].from);
        free(e->at[i].to);
    }
    free(e->at);
    *e = (text_edits){0};
}

static bool append_char(sl_buf *out, int32_t cp) {
    char c[4];
    return sl_buf_append(out, c, (size_t)sl_utf8_encode(cp, c));
}

/* ---- normal forms ----------------------------------------------------------------------------------------------- */

/* Blocks whose characters every normal form leaves alone, next to each other too. */
static bool never_changes(int32_t cp, bool compatibility) {
    if (cp < (compatibility ? 0xa0 : 0xc0))
        return true;
    return (cp >= 0x3400 && cp <= 0x4dbf) || (cp >= 0x4e00 && cp <= 0x9fff) || (cp >= 0x1f300 && cp <= 0x1faff);
}

/* Characters below U+0300 and kana are composed already; a mark after them is not in this set. */
static bool is_composed(int32_t cp) {
    return cp < 0x300 || (cp >= 0x3041 && cp <= 0x3096) || (cp >= 0x30a0 && cp <= 0x30ff) ||
           (cp >= 0xac00 && cp <= 0xd7a3);
}

/* Length of the longest start of text that the form surely leaves alone and that ends where the next character cannot
 * combine with it. */
static size_t settled(const char *p, size_t n, text_edit_kind kind) {
    size_t i = 0, last = 0;
    bool compatibility = kind == TEXT_NFKC || kind == TEXT_NFKD;
    while (i < n) {
        int32_t cp;
        int len = sl_utf8_decode(p + i, n - i, &cp);
        if (cp >= 0 && !never_changes(cp, compatibility) && !(kind == TEXT_NFC && is_composed(cp)))
            return last;
        last = i;
        i += (size_t)len;
    }
    return n;
}

typedef struct codes {
    int32_t *at;
    size_t count, capacity;
} codes;

static bool codes_room(codes *c, size_t more) {
    return sl_grow((void **)&c->at, &c->capacity, c->count + more, sizeof *c->at);
}

static int combining_class(int32_t cp) {
    return utf8proc_get_property(cp)->combining_class;
}

static void order_short_run(int32_t *run, size_t n) {
    for (size_t i = 1; i < n; i++) {
        int32_t cp = run[i];
        size_t j = i;
        for (; j > 0 && combining_class(run[j - 1]) > combining_class(cp); j--)
            run[j] = run[j - 1];
        run[j] = cp;
    }
}

/* Canonical order of a run of marks: by combining class, equal ones as they stand. Counting, so that a text of nothing
 * but marks costs no square of its length. */
static bool order_run(int32_t *run, size_t n) {
    if (n <= 16) {
        order_short_run(run, n);
        return true;
    }
    size_t first[257] = {0};
    int32_t *copy = malloc(n * sizeof *copy);
    if (!copy)
        return false;
    for (size_t i = 0; i < n; i++)
        first[combining_class(run[i]) + 1]++;
    for (int c = 1; c < 257; c++)
        first[c] += first[c - 1];
    memcpy(copy, run, n * sizeof *copy);
    for (size_t i = 0; i < n; i++)
        run[first[combining_class(copy[i])]++] = copy[i];
    free(copy);
    return true;
}

static bool order_marks(codes *c) {
    for (size_t i = 0; i < c->count;) {
        size_t from = i;
        while (i < c->count && combining_class(c->at[i]) > 0)
            i++;
        if (!order_run(c->at + from, i - from))
            return false;
        i += i == from;
    }
    return true;
}

static bool decompose(codes *c, int32_t cp, utf8proc_option_t options) {
    utf8proc_int32_t parts[32];
    int boundary = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char(cp, parts, 32, options, &boundary);
    if (n < 1 || n > 32 || !codes_room(c, (size_t)n))
        return false;
    memcpy(c->at + c->count, parts, (size_t)n * sizeof *parts);
    c->count += (size_t)n;
    return true;
}

static bool flush_codes(codes *c, bool compose, sl_buf *out) {
    if (!order_marks(c))
        return false;
    utf8proc_ssize_t n = (utf8proc_ssize_t)c->count;
    if (compose && n)
        n = utf8proc_normalize_utf32(c->at, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (utf8proc_ssize_t i = 0; i < n; i++)
        if (!append_char(out, c->at[i]))
            return false;
    c->count = 0;
    return n >= 0;
}

static bool normal_form(text_edit_kind kind, const char *p, size_t n, sl_buf *out) {
    bool compose = kind == TEXT_NFC || kind == TEXT_NFKC;
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    if (kind == TEXT_NFKC || kind == TEXT_NFKD)
        options |= UTF8PROC_COMPAT;
    codes c = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < n;) {
        int32_t cp;
        int len = sl_utf8_decode(p + i, n - i, &cp);
        if (cp < 0 || text_is_inert(cp))
            ok = flush_codes(&c, compose, out) && sl_buf_append(out, p + i, (size_t)len);
        else
            ok = decompose(&c, cp, options);
        i += (size_t)len;
    }
    ok = ok && flush_codes(&c, compose, out);
    free(c.at);
    return ok;
}

/* ---- other edits ------------------------------------------------------------------------------------------------ */

static bool lowercase(const char *p, size_t n, sl_buf *out) {
    for (size_t i = 0; i < n;) {
        int32_t cp;
        int len = sl_utf8_decode(p + i, n - i, &cp);
        bool ok;
        if (cp < 0)
            ok = sl_buf_append(out, p + i, 1);
        else if (cp == 0x130) /* the one letter whose lower case is two characters */
            ok = sl_buf_append(out, "i\xcc\x87", 3);
        else
            ok = append_char(out, utf8proc_tolower(cp));
        if (!ok)
            return false;
        i += (size_t)len;
    }
    return true;
}

static bool drop_marks(const char *p, size_t n, sl_buf *out) {
    for (size_t i = 0; i < n;) {
        int32_t cp;
        int len = sl_utf8_decode(p + i, n - i, &cp);
        if ((cp < 0 || !text_is_mark(cp)) && !sl_buf_append(out, p + i, (size_t)len))
            return false;
        i += (size_t)len;
    }
    return true;
}

static bool strip(const text_edit *e, const char *p, size_t n, sl_buf *out) {
    size_t begin = n, end = 0;
    for (size_t i = 0; i < n;) {
        int32_t cp;
        int len = sl_utf8_decode(p + i, n - i, &cp);
        if (!text_is_space(cp)) {
            if (begin == n)
                begin = i;
            end = i + (size_t)len;
        }
        i += (size_t)len;
    }
    size_t from = e->left ? begin : 0, to = e->right ? end : n;
    return from >= to || sl_buf_append(out, p + from, to - from);
}

/* 0: out of memory, 1: done, -1: the regex failed, err is filled. */
static int replace(const text_edit *e, text_matcher *m, const char *p, size_t n, sl_buf *out, sl_error *err) {
    sl_buf shadow = {0};
    const char *subject = text_regex_is_literal(e->regex) ? p : text_shadow(p, n, &shadow);
    size_t kept = 0, begin, end;
    int found = subject ? 1 : 0;
    bool ok = subject != NULL;
    for (size_t from = 0; ok && from <= n;) {
        found = text_regex_find(e->regex, m, subject, n, from, &begin, &end, err);
        if (found <= 0)
            break;
        ok = sl_buf_append(out, p + kept, begin - kept) && sl_buf_append(out, e->to, e->to_size);
        kept = end;
        from = end;
        if (begin == end) { /* step over one character so that an empty match ends */
            int32_t cp;
            from += from < n ? (size_t)sl_utf8_decode(subject + from, n - from, &cp) : 1;
        }
    }
    ok = ok && found >= 0 && sl_buf_append(out, p + kept, n - kept);
    sl_buf_free(&shadow);
    return ok ? 1 : found < 0 ? -1 : 0;
}

/* A token whose characters are all of the byte alphabet, as bytes; any other as it is. */
static bool char_bytes(const char *p, size_t n, sl_buf *out) {
    size_t before = out->size;
    for (size_t i = 0; i < n;) {
        int32_t cp;
        int len = sl_utf8_decode(p + i, n - i, &cp), byte = text_char_byte(cp);
        char c = (char)byte;
        if (byte < 0) {
            out->size = before;
            return sl_buf_append(out, p, n);
        }
        if (!sl_buf_append(out, &c, 1))
            return false;
        i += (size_t)len;
    }
    return true;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

int text_byte_token(const char *p, size_t n) {
    if (n != 6 || memcmp(p, "<0x", 3) != 0 || p[5] != '>' || hex_digit(p[3]) < 0 || hex_digit(p[4]) < 0)
        return -1;
    return hex_digit(p[3]) * 16 + hex_digit(p[4]);
}

static bool byte_token(const char *p, size_t n, sl_buf *out) {
    int byte = text_byte_token(p, n);
    char c = (char)byte;
    return byte < 0 ? sl_buf_append(out, p, n) : sl_buf_append(out, &c, 1);
}

static bool suffix_space(const text_edit *e, const char *p, size_t n, sl_buf *out) {
    if (n < e->from_size || memcmp(p + n - e->from_size, e->from, e->from_size) != 0)
        return sl_buf_append(out, p, n);
    return sl_buf_append(out, p, n - e->from_size) && sl_buf_append(out, " ", 1);
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

/* Whether the edit certainly changes nothing. */
static bool idle(const text_edit *e, const char *p, size_t n) {
    switch (e->kind) {
    case TEXT_NFC:
    case TEXT_NFD:
    case TEXT_NFKC:
    case TEXT_NFKD:
        return settled(p, n, e->kind) == n;
    case TEXT_PREPEND:
        return n == 0 || e->to_size == 0;
    default:
        return n == 0;
    }
}

static int run_one(const text_edit *e, text_matcher *m, const char *p, size_t n, sl_buf *out, sl_error *err) {
    switch (e->kind) {
    case TEXT_NFC:
    case TEXT_NFD:
    case TEXT_NFKC:
    case TEXT_NFKD: {
        size_t same = settled(p, n, e->kind);
        return sl_buf_append(out, p, same) && normal_form(e->kind, p + same, n - same, out);
    }
    case TEXT_LOWERCASE:
        return lowercase(p, n, out);
    case TEXT_STRIP:
        return strip(e, p, n, out);
    case TEXT_STRIP_ACCENTS:
        return drop_marks(p, n, out);
    case TEXT_PREPEND:
        return sl_buf_append(out, e->to, e->to_size) && sl_buf_append(out, p, n);
    case TEXT_REPLACE:
        return replace(e, m, p, n, out, err);
    case TEXT_BYTE_CHARS:
        return text_append_byte_chars(out, p, n);
    case TEXT_CHAR_BYTES:
        return char_bytes(p, n, out);
    case TEXT_BYTE_TOKEN:
        return byte_token(p, n, out);
    case TEXT_SUFFIX_SPACE:
        return suffix_space(e, p, n, out);
    }
    return 0;
}

bool text_edits_run(const text_edits *e, text_matcher *m, sl_buf *a, sl_buf *b, const char *text, size_t n,
                    const char **out, size_t *out_size, sl_error *err) {
    *out = text;
    *out_size = n;
    for (size_t i = 0; i < e->count; i++) {
        if (idle(&e->at[i], *out, *out_size))
            continue;
        sl_buf_clear(a);
        int done = run_one(&e->at[i], m, *out, *out_size, a, err);
        if (done <= 0)
            return done < 0 ? false : text_no_memory(err);
        *out = a->size ? a->data : "";
        *out_size = a->size;
        sl_buf *swap = a;
        a = b;
        b = swap;
    }
    return true;
}

/* A JSON reader that builds no tree. */
#include "text/json_scan.h"

#include <string.h>

bool text_json_fail(text_json *j, const char *what) {
    return sl_fail(j->err, SL_ERR_FORMAT, "%s: byte %zu: %s", j->name, j->base + j->at, what);
}

char text_json_peek(text_json *j) {
    while (j->at < j->n && (j->p[j->at] == ' ' || j->p[j->at] == '\n' || j->p[j->at] == '\r' || j->p[j->at] == '\t'))
        j->at++;
    return j->at < j->n ? j->p[j->at] : 0;
}

bool text_json_enter(text_json *j, char open) {
    char what[] = "expected '?'";
    if (text_json_peek(j) == open && j->at < j->n) {
        j->at++;
        return true;
    }
    what[10] = open;
    return text_json_fail(j, what);
}

int text_json_more(text_json *j, char close, bool *first) {
    char c = text_json_peek(j);
    if (c == close && j->at < j->n) {
        j->at++;
        return 0;
    }
    if (!*first) {
        if (c != ',')
            return text_json_fail(j, close == '}' ? "expected ',' or '}'" : "expected ',' or ']'") - 1;
        j->at++;
    }
    *first = false;
    return 1;
}

static bool hex4(text_json *j, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 4; i++) {
        char c = j->at < j->n ? j->p[j->at] : 0;
        int v = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (v < 0)
            return text_json_fail(j, "expected four hexadecimal digits after \\u");
        *out = *out << 4 | (uint32_t)v;
        j->at++;
    }
    return true;
}

static bool unicode_escape(text_json *j, sl_buf *out) {
    uint32_t cp, low;
    if (!hex4(j, &cp))
        return false;
    if (cp >= 0xd800 && cp < 0xdc00) {
        if (j->n - j->at < 2 || j->p[j->at] != '\\' || j->p[j->at + 1] != 'u')
            return text_json_fail(j, "a high surrogate without a low one");
        j->at += 2;
        if (!hex4(j, &low))
            return false;
        if (low < 0xdc00 || low > 0xdfff)
            return text_json_fail(j, "a high surrogate without a low one");
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
    } else if (cp >= 0xdc00 && cp <= 0xdfff) {
        return text_json_fail(j, "a low surrogate without a high one");
    }
    char c[4];
    return sl_buf_append(out, c, (size_t)sl_utf8_encode((int32_t)cp, c)) || text_json_fail(j, "out of memory");
}

static bool escape(text_json *j, sl_buf *out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = j->at + 1 < j->n ? j->p[j->at + 1] : 0;
    const char *known = c ? strchr(from, c) : NULL;
    if (c == 'u') {
        j->at += 2;
        return unicode_escape(j, out);
    }
    if (!known)
        return text_json_fail(j, "unknown escape in a string");
    j->at += 2;
    return sl_buf_append(out, &to[known - from], 1) || text_json_fail(j, "out of memory");
}

/* Bytes of a string that stand for themselves. */
static size_t plain_run(text_json *j) {
    size_t i = j->at;
    while (i < j->n && j->p[i] != '"' && j->p[i] != '\\' && (unsigned char)j->p[i] >= 0x20) {
        int32_t cp = 0;
        int len = j->p[i] & 0x80 ? sl_utf8_decode(j->p + i, j->n - i, &cp) : 1;
        if (cp < 0)
            break;
        i += (size_t)len;
    }
    return i - j->at;
}

bool text_json_string(text_json *j, sl_buf *out) {
    sl_buf_clear(out);
    if (!text_json_enter(j, '"'))
        return false;
    for (;;) {
        size_t n = plain_run(j);
        if (!sl_buf_append(out, j->p + j->at, n))
            return text_json_fail(j, "out of memory");
        j->at += n;
        if (j->at >= j->n)
            return text_json_fail(j, "string without an end");
        if (j->p[j->at] == '"') {
            j->at++;
            return true;
        }
        if (j->p[j->at] != '\\')
            return text_json_fail(j, "a control character or invalid UTF-8 in a string");
        if (!escape(j, out))
            return false;
    }
}

bool text_json_key(text_json *j, sl_buf *out) {
    return text_json_string(j, out) && text_json_enter(j, ':');
}

bool text_json_integer(text_json *j, int64_t *out) {
    char c = text_json_peek(j);
    bool minus = c == '-';
    size_t first = j->at + minus, i = first;
    int64_t v = 0;
    while (i < j->n && j->p[i] >= '0' && j->p[i] <= '9' && i - first < 18)
        v = v * 10 + (j->p[i++] - '0');
    char next = i < j->n ? j->p[i] : 0;
    if (i == first || (next >= '0' && next <= '9') || next == '.' || next == 'e' || next == 'E')
        return text_json_fail(j, "expected an integer");
    j->at = i;
    *out = minus ? -v : v;
    return true;
}

static bool skip_string(text_json *j) {
    for (j->at++; j->at < j->n; j->at++) {
        if (j->p[j->at] == '\\')
            j->at++;
        else if (j->p[j->at] == '"') {
            j->at++;
            return true;
        }
    }
    j->at = j->n;
    return text_json_fail(j, "string without an end");
}

bool text_json_skip(text_json *j, text_json_span *out) {
    size_t depth = 0;
    char c = text_json_peek(j);
    size_t begin = j->at;
    do {
        c = text_json_peek(j);
        if (j->at >= j->n || (depth == 0 && strchr(",:]}", c)))
            return text_json_fail(j, "expected a value");
        if (c == '"') {
            if (!skip_string(j))
                return false;
        } else if (c == '{' || c == '[') {
            depth++;
            j->at++;
        } else if (c == '}' || c == ']') {
            depth--;
            j->at++;
        } else if (c == ',' || c == ':') {
            j->at++;
        } else {
            while (j->at < j->n && !strchr(",:]}[{\" \n\r\t", j->p[j->at]))
                j->at++;
            if (j->at < j->n && !j->p[j->at])
                return text_json_fail(j, "a NUL byte");
        }
    } while (depth);
    *out = (text_json_span){j->p + begin, j->at - begin, j->base + begin};
    return true;
}

bool text_json_finish(text_json *j) {
    text_json_peek(j);
    return j->at == j->n || text_json_fail(j, "unexpected text after the value");
}

text_json text_json_at(const text_json *outer, text_json_span span) {
    return (text_json){.p = span.p, .n = span.n, .base = span.base, .name = outer->name, .err = outer->err};
}

json_t *text_json_load(const text_json *outer, text_json_span span) {
    json_error_t e;
    json_t *v = json_loadb(span.p, span.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (!v)
        sl_fail(outer->err, SL_ERR_FORMAT, "%s: byte %zu: %s", outer->name,
                span.base + (size_t)(e.position > 0 ? e.position : 0), e.text);
    return v;
}

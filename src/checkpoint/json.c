/* JSON of side files: what Python's json module writes and reads goes beyond the standard that jansson keeps to, in two
 * ways that occur in published models: NaN and Infinity, and integers beyond 64 bits. */
#include "checkpoint/internal.h"

#include <stdlib.h>
#include <string.h>

static bool is_digit(char ch) {
    return ch >= '0' && ch <= '9';
}

static bool is_real_mark(char ch) {
    return ch == '.' || ch == 'e' || ch == 'E';
}

/* End of the string literal that begins at i (a quote). */
static size_t skip_string(const char *s, size_t n, size_t i) {
    for (i++; i < n && s[i] != '"'; i++) {
        if (s[i] == '\\' && i + 1 < n) {
            i++;
        }
    }
    return i < n ? i + 1 : n;
}

/* Copies the number at i; an integer of more than 18 digits gets ".0", which makes it a real. Returns its end. */
static size_t copy_number(const char *s, size_t n, size_t i, sl_buf *out) {
    size_t begin = i;
    i += s[i] == '-';
    size_t digits = i;
    while (i < n && is_digit(s[i])) {
        i++;
    }
    bool integer = i == n || !is_real_mark(s[i]);
    while (i < n && (is_digit(s[i]) || is_real_mark(s[i]) || s[i] == '+' || s[i] == '-')) {
        i++;
    }
    sl_buf_append(out, s + begin, i - begin);
    if (integer && i - digits > 18) {
        sl_buf_puts(out, ".0");
    }
    return i;
}

/* Length of a word that Python writes for a non-finite number at s, or 0. */
static size_t non_finite(const char *s, size_t n) {
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t w = 0; w < SL_COUNT(words); w++) {
        size_t length = strlen(words[w]);
        if (length <= n && memcmp(s, words[w], length) == 0) {
            return length;
        }
    }
    return 0;
}

/* The same text without what jansson refuses. */
static bool standard_json(const char *s, size_t n, sl_buf *out) {
    size_t i = 0;
    while (i < n && !out->failed) {
        size_t word = non_finite(s + i, n - i);
        size_t begin = i;
        if (word > 0) {
            sl_buf_puts(out, "null");
            i += word;
        } else if (s[i] == '"') {
            i = skip_string(s, n, i);
            sl_buf_append(out, s + begin, i - begin);
        } else if (s[i] == '-' || is_digit(s[i])) {
            i = copy_number(s, n, i, out);
        } else {
            sl_buf_append(out, s + i++, 1);
        }
    }
    return !out->failed;
}

static json_t *load(const char *text, size_t n, size_t flags, const char *path, sl_error *err) {
    json_error_t e = {0};
    json_t *root = json_loadb(text, n, flags, &e);
    if (!root && e.line < 0) { /* it did not begin to parse */
        return sl_fail_null(err, SL_ERR_MEMORY, "%s: out of memory for %zu bytes of JSON", path, n);
    }
    if (!root) {
        return sl_fail_null(err, SL_ERR_FORMAT, "%s: line %d column %d: invalid JSON: %s", path, e.line, e.column,
                            e.text);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return sl_fail_null(err, SL_ERR_FORMAT, "%s: JSON array at the top, expected an object", path);
    }
    return root;
}

json_t *ckpt_json_parse_strict(const char *text, size_t n, const char *path, sl_error *err) {
    return load(text, n, JSON_REJECT_DUPLICATES, path, err);
}

json_t *ckpt_json_parse(const char *text, size_t n, const char *path, sl_error *err) {
    sl_buf standard = {0};
    json_t *root = NULL;
    if (!standard_json(text, n, &standard)) {
        sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for %zu bytes of JSON", path, n);
    } else {
        root = load(standard.data ? standard.data : "", standard.size, JSON_ALLOW_NUL, path, err);
    }
    sl_buf_free(&standard);
    return root;
}

json_t *ckpt_json_load(const char *path, sl_error *err) {
    size_t n;
    char *text = sl_read_text(path, CKPT_SIDE_FILE_LIMIT, &n, err);
    if (!text) {
        return NULL;
    }
    json_t *root = ckpt_json_parse(text, n, path, err);
    free(text);
    return root;
}

/* Growable buffers, small string helpers, UTF-8. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool sl_grow(void **array, size_t *capacity, size_t need, size_t elem) {
    if (need <= *capacity)
        return true;
    size_t cap = *capacity ? *capacity : 16;
    while (cap < need)
        if (__builtin_mul_overflow(cap, 2, &cap))
            return false;
    uint64_t bytes;
    if (!sl_mul_u64(cap, elem, &bytes) || bytes > PTRDIFF_MAX)
        return false;
    void *grown = realloc(*array, (size_t)bytes);
    if (!grown)
        return false;
    *array = grown;
    *capacity = cap;
    return true;
}

static bool reserve(sl_buf *b, size_t extra) {
    size_t need;
    void *data = b->data;
    if (b->failed || __builtin_add_overflow(b->size, extra, &need) || __builtin_add_overflow(need, 1, &need) ||
        !sl_grow(&data, &b->capacity, need, 1)) {
        b->failed = true;
        return false;
    }
    b->data = data;
    return true;
}

bool sl_buf_append(sl_buf *b, const void *bytes, size_t n) {
    if (!reserve(b, n))
        return false;
    if (n)
        memcpy(b->data + b->size, bytes, n);
    b->size += n;
    b->data[b->size] = 0;
    return true;
}

bool sl_buf_puts(sl_buf *b, const char *s) {
    return sl_buf_append(b, s, strlen(s));
}

bool sl_buf_printf(sl_buf *b, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    bool ok = n >= 0 && reserve(b, (size_t)n);
    if (ok) {
        vsnprintf(b->data + b->size, (size_t)n + 1, fmt, again);
        b->size += (size_t)n;
    }
    va_end(again);
    return ok;
}

void sl_buf_clear(sl_buf *b) {
    b->size = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = 0;
}

void sl_buf_free(sl_buf *b) {
    free(b->data);
    *b = (sl_buf){0};
}

char *sl_buf_take(sl_buf *b, size_t *size) {
    if (!b->failed && !b->data)
        sl_buf_append(b, "", 0);
    if (b->failed) {
        sl_buf_free(b);
        return NULL;
    }
    char *data = b->data;
    if (size)
        *size = b->size;
    *b = (sl_buf){0};
    return data;
}

char *sl_strndup(const char *s, size_t n) {
    char *copy = malloc(n + 1);
    if (!copy)
        return NULL;
    memcpy(copy, s, n);
    copy[n] = 0;
    return copy;
}

char *sl_strdup(const char *s) {
    return sl_strndup(s, strlen(s));
}

char *sl_asprintf(const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *s = n >= 0 ? malloc((size_t)n + 1) : NULL;
    if (s)
        vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(again);
    return s;
}

/* Bytes a lead byte announces: 1..4, or 0 for one that cannot begin a sequence. */
static int utf8_length(unsigned char c) {
    if (c < 0x80)
        return 1;
    if (c >= 0xc2 && c <= 0xdf)
        return 2;
    if (c >= 0xe0 && c <= 0xef)
        return 3;
    if (c >= 0xf0 && c <= 0xf4)
        return 4;
    return 0;
}

/* Is byte i of a sequence that begins with `lead` allowed? The second byte's range excludes overlong forms, surrogates
 * and > 10FFFF. */
static bool utf8_continues(unsigned char lead, int i, unsigned char c) {
    unsigned char lo = 0x80, hi = 0xbf;
    if (i == 1) {
        if (lead == 0xe0)
            lo = 0xa0;
        if (lead == 0xed)
            hi = 0x9f;
        if (lead == 0xf0)
            lo = 0x90;
        if (lead == 0xf4)
            hi = 0x8f;
    }
    return c >= lo && c <= hi;
}

int sl_utf8_decode(const char *s, size_t n, int32_t *cp) {
    const unsigned char *u = (const unsigned char *)s;
    int len = utf8_length(u[0]);
    *cp = -1;
    if (len == 0 || (size_t)len > n)
        return 1;
    if (len == 1) {
        *cp = u[0];
        return 1;
    }
    int32_t v = u[0] & (0x7f >> len);
    for (int i = 1; i < len; i++) {
        if (!utf8_continues(u[0], i, u[i]))
            return 1;
        v = v << 6 | (u[i] & 0x3f);
    }
    *cp = v;
    return len;
}

int sl_utf8_encode(int32_t cp, char *out) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    int len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (int i = len - 1; i > 0; i--, cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3f));
    out[0] = (char)(lead[len] | cp);
    return len;
}

size_t sl_utf8_complete(const char *s, size_t n) {
    const unsigned char *u = (const unsigned char *)s;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char lead = u[n - back];
        int len = utf8_length(lead);
        if ((lead & 0xc0) == 0x80)
            continue;
        if (len <= (int)back)
            return n;
        for (size_t i = 1; i < back; i++)
            if (!utf8_continues(lead, (int)i, u[n - back + i]))
                return n;
        return n - back;
    }
    return n;
}

const char *sl_rate_text(double bytes_per_second, char *out) {
    bool slow = bytes_per_second < 1e8;
    snprintf(out, 16, slow ? "%.1f MB/s" : "%.2f GB/s", bytes_per_second / (slow ? 1e6 : 1e9));
    return out;
}

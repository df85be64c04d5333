/* Errors: one printable line, whatever bytes the arguments held. */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

/* Makes text safe for a terminal and a log: control bytes and invalid UTF-8 become \xNN. */
static void escape_line(const char *in, char *out, size_t out_size) {
    size_t n = strlen(in), w = 0;
    for (size_t i = 0; i < n;) {
        int32_t cp;
        int len = sl_utf8_decode(in + i, n - i, &cp);
        bool plain = cp >= 0x20 && cp != 0x7f && !(cp >= 0x80 && cp < 0xa0) && cp != 0x2028 && cp != 0x2029;
        size_t need = plain ? (size_t)len : 4;
        if (w + need + 1 > out_size)
            break;
        if (plain)
            memcpy(out + w, in + i, need);
        else
            snprintf(out + w, 5, "\\x%02x", (unsigned char)in[i]);
        w += need;
        i += plain ? (size_t)len : 1;
    }
    out[w] = 0;
}

static void format_into(sl_error *err, sl_code code, const char *suffix, const char *fmt, va_list ap) {
    char raw[sizeof err->message];
    int n = vsnprintf(raw, sizeof raw, fmt, ap);
    if (suffix && n >= 0 && (size_t)n < sizeof raw)
        snprintf(raw + n, sizeof raw - (size_t)n, ": %s", suffix);
    err->code = code;
    escape_line(raw, err->message, sizeof err->message);
}

bool sl_fail(sl_error *err, sl_code code, const char *fmt, ...) {
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        format_into(err, code, NULL, fmt, ap);
        va_end(ap);
    }
    return false;
}

bool sl_fail_errno(sl_error *err, sl_code code, int saved, const char *fmt, ...) {
    if (err) {
        char text[128] = "";
        /* GNU's strerror_r may return a static string; XSI's fills the buffer. */
        const char *s = strerror_r(saved, text, sizeof text);
        va_list ap;
        va_start(ap, fmt);
        format_into(err, code, s, fmt, ap);
        va_end(ap);
    }
    return false;
}

bool sl_fail_prefix(sl_error *err, const char *fmt, ...) {
    if (err) {
        char head[512], raw[sizeof err->message + sizeof head + 2];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(head, sizeof head, fmt, ap);
        va_end(ap);
        snprintf(raw, sizeof raw, "%s: %s", head, err->message);
        escape_line(raw, err->message, sizeof err->message);
    }
    return false;
}

void sl_logf(const sl_log *log, sl_log_level level, const char *fmt, ...) {
    if (!log || !log->fn || level > log->level)
        return;
    char raw[1024], line[1200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(raw, sizeof raw, fmt, ap);
    va_end(ap);
    escape_line(raw, line, sizeof line);
    log->fn(log->user, level, line);
}

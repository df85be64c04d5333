/* Errors: one printable line, whatever bytes the arguments held. */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

/* Not: control characters, line and paragraph separators, and marks that turn the direction of what follows. */
static bool printable(int32_t cp) {
    return cp >= 0x20 && !(cp >= 0x7f && cp < 0xa0) && !(cp >= 0x2028 && cp <= 0x202e) &&
           !(cp >= 0x2066 && cp <= 0x2069);
}

/* Makes text safe for a terminal and a log: control bytes and invalid UTF-8 become \xNN. */
static void escape_line(const char *in, char *out, size_t out_size) {
    size_t n = strlen(in), w = 0;
    for (size_t i = 0; i < n;) {
        int32_t cp;
        int len = sl_utf8_decode(in + i, n - i, &cp);
        bool plain = printable(cp);
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

/* suffix "" for none: it stands at the end also where the rest had to be cut. */
static void format_into(sl_error *err, sl_code code, const char *suffix, const char *fmt, va_list ap) {
    char raw[sizeof err->message], line[sizeof err->message];
    size_t room = sizeof err->message - strlen(suffix);
    vsnprintf(raw, sizeof raw, fmt, ap);
    escape_line(raw, line, room);
    err->code = code;
    snprintf(err->message, sizeof err->message, "%s%s", line, suffix);
}

bool sl_fail(sl_error *err, sl_code code, const char *fmt, ...) {
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        format_into(err, code, "", fmt, ap);
        va_end(ap);
    }
    return false;
}

/* GNU's strerror_r returns the text, which may not be in the buffer; everybody else's fills the buffer. */
static const char *errno_text(int saved, char *buffer, size_t size) {
#ifdef __GLIBC__
    return strerror_r(saved, buffer, size);
#else
    return strerror_r(saved, buffer, size) == 0 ? buffer : "unknown error";
#endif
}

bool sl_fail_errno(sl_error *err, sl_code code, int saved, const char *fmt, ...) {
    if (err) {
        char text[128] = "", suffix[sizeof text + 2];
        snprintf(suffix, sizeof suffix, ": %s", errno_text(saved, text, sizeof text));
        va_list ap;
        va_start(ap, fmt);
        format_into(err, code, suffix, fmt, ap);
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

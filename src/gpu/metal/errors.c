/* NSError to sl_error: what failed, whose error it is, its number in words, the system's own text. */
#include "gpu/metal/metal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a number means and what to do, where the system's text does not say. */
static const struct {
    const char *domain;
    long code;
    const char *meaning;
} meanings[] = {
    {"MTLCommandBufferErrorDomain", 1, "internal error"},
    {"MTLCommandBufferErrorDomain", 2, "ran longer than the system allows; submit less work per list"},
    {"MTLCommandBufferErrorDomain", 3, "page fault: an address outside all buffers was used"},
    {"MTLCommandBufferErrorDomain", 4, "access revoked after too many faults of this process"},
    {"MTLCommandBufferErrorDomain", 7, "not permitted, as in the background"},
    {"MTLCommandBufferErrorDomain", 8, "out of memory"},
    {"MTLCommandBufferErrorDomain", 9, "invalid resource: freed or not resident"},
    {"MTLCommandBufferErrorDomain", 10, "memoryless resource"},
    {"MTLCommandBufferErrorDomain", 11, "device removed"},
    {"MTLCommandBufferErrorDomain", 12, "stack overflow in a kernel"},
    {"MTLLibraryErrorDomain", 1, "unsupported"},
    {"MTLLibraryErrorDomain", 2, "internal error"},
    {"MTLLibraryErrorDomain", 3, "compile failure"},
    {"MTLLibraryErrorDomain", 4, "compile warning"},
    {"MTLLibraryErrorDomain", 5, "function not found"},
    {"MTLLibraryErrorDomain", 6, "file not found"},
    {"MTLBinaryArchiveDomain", 1, "invalid file"},
    {"MTLBinaryArchiveDomain", 2, "unexpected element"},
    {"MTLBinaryArchiveDomain", 3, "compilation failure"},
};

/* Faults that the system reports in its text only. */
static const struct {
    const char *in_text, *meaning;
} victims[] = {
    {"InnocentVictim", "victim of another list's fault; may be submitted again"},
    {"Innocent Victim", "victim of another list's fault; may be submitted again"},
    {"CallbackErrorHang", "hang: the work did not end; submit less work per list"},
    {"GPU Hang", "hang: the work did not end; submit less work per list"},
    {"ImpactingInteractivity", "ended because it held up the display; submit less work per list"},
    {"Impacting Interactivity", "ended because it held up the display; submit less work per list"},
};

static const char *meaning_of(const char *domain, long code, const char *text) {
    for (size_t i = 0; i < SL_COUNT(victims); i++)
        if (strstr(text, victims[i].in_text))
            return victims[i].meaning;
    for (size_t i = 0; i < SL_COUNT(meanings); i++)
        if (meanings[i].code == code && strcmp(meanings[i].domain, domain) == 0)
            return meanings[i].meaning;
    return "unknown code";
}

bool metal_fail(const metal_api *api, sl_error *err, sl_code code, metal_id error, const char *fmt, ...) {
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (!error)
        return sl_fail(err, code, "%s: the system gives no reason", what);
    const char *domain = metal_text(api, METAL_SEND(api, domain, error));
    long number = (long)METAL_SEND(api, code, error);
    const char *text = metal_text(api, METAL_SEND(api, localizedDescription, error));
    return sl_fail(err, code, "%s: %s %ld (%s): %s", what, domain, number, meaning_of(domain, number, text), text);
}

/* The first line that holds ": error: "; else the first that is not empty. */
static const char *first_diagnostic(const char *text, size_t *length) {
    const char *fallback = NULL;
    size_t fallback_length = 0;
    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        if (memmem(line, n, " error: ", 8)) {
            *length = n;
            return line;
        }
        if (!fallback && n && strncmp(line, "Compilation failed", 18) != 0) {
            fallback = line;
            fallback_length = n;
        }
        line += n + (line[n] == '\n');
    }
    *length = fallback ? fallback_length : strlen(text);
    return fallback ? fallback : text;
}

/* FILE:LINE:COLUMN: error: what, where FILE may hold colons; false where the line has another shape. */
static bool split_diagnostic(const char *line, size_t n, size_t *file, long *number, const char **what) {
    static const char plain[] = ": error: ", fatal[] = ": fatal error: ";
    size_t mark_length = sizeof plain - 1;
    const char *mark = memmem(line, n, plain, mark_length);
    if (!mark) {
        mark_length = sizeof fatal - 1;
        mark = memmem(line, n, fatal, mark_length);
    }
    if (!mark)
        return false;
    size_t at = (size_t)(mark - line), numbers[2], found = 0;
    while (found < 2 && at > 0) {
        size_t begin = at;
        while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9')
            begin--;
        if (begin == at || begin == 0 || line[begin - 1] != ':')
            break;
        numbers[found++] = begin;
        at = begin - 1;
    }
    if (!found)
        return false;
    *file = at;
    *number = strtol(line + numbers[found - 1], NULL, 10);
    *what = mark + mark_length;
    return true;
}

bool metal_fail_diagnostic(sl_error *err, const char *name, const char *text) {
    size_t n, file;
    long number;
    const char *what, *line = first_diagnostic(text, &n);
    if (!split_diagnostic(line, n, &file, &number, &what))
        return sl_fail(err, SL_ERR_COMPILE, "%s: %.*s", name, (int)(n < 800 ? n : 800), line);
    size_t rest = n - (size_t)(what - line);
    return sl_fail(err, SL_ERR_COMPILE, "%.*s:%ld: %.*s", (int)(file < 400 ? file : 400), line, number,
                   (int)(rest < 500 ? rest : 500), what);
}

/* Regular expressions on PCRE2 with JIT. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/regex.h"

#include <stdlib.h>
#include <string.h>

/* Steps and memory after which a match is given up: a pattern from a file may be of exponential cost. Linear patterns
 * over any text stay far below, because a step is a backtracking point, not a character. */
#define MATCH_LIMIT    50000000u
#define HEAP_LIMIT_KIB (1u << 20)
#define STACK_START    (32u << 10)
#define STACK_MAX      (64u << 20)

struct text_regex {
    pcre2_code *code; /* NULL: a literal */
    char *literal;
    size_t literal_size;
    char *where;
};

static text_regex *regex_new(const char *where, sl_error *err) {
    text_regex *r = calloc(1, sizeof *r);
    if (r && (r->where = sl_strdup(where)))
        return r;
    free(r);
    return sl_fail_null(err, SL_ERR_MEMORY, "%s: out of memory for a regex", where);
}

static bool compile(text_regex *r, const char *pattern, size_t n, const char *source, size_t source_size,
                    sl_error *err) {
    int code;
    PCRE2_SIZE at;
    /* MULTILINE: Ruby's ^ and $ are those of lines. The subject is always valid UTF-8 (text_shadow). */
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_UTF_CHECK;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for a regex", r->where);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    r->code = pcre2_compile((PCRE2_SPTR)(n ? pattern : ""), n, options, &code, &at, context);
    pcre2_compile_context_free(context);
    if (!r->code) {
        char message[160] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: regex '%.*s': %s (at byte %zu of its PCRE2 form '%.*s')", r->where,
                       (int)(source_size < 200 ? source_size : 200), source, message, (size_t)at,
                       (int)(n < 200 ? n : 200), pattern);
    }
    /* Without JIT (forbidden by the system) PCRE2 interprets: slower, the same result. */
    pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
    return true;
}

text_regex *text_regex_compile(const char *pattern, size_t n, const char *where, sl_error *err) {
    text_regex *r = regex_new(where, err);
    if (!r)
        return NULL;
    sl_buf translated = {0};
    bool ok = text_regex_translate(pattern, n, &translated, where, err) &&
              compile(r, translated.data, translated.size, pattern, n, err);
    sl_buf_free(&translated);
    if (ok)
        return r;
    text_regex_free(r);
    return NULL;
}

text_regex *text_regex_literal(const char *bytes, size_t n, const char *where, sl_error *err) {
    text_regex *r = regex_new(where, err);
    if (!r)
        return NULL;
    r->literal = sl_strndup(bytes, n);
    r->literal_size = n;
    if (r->literal)
        return r;
    text_regex_free(r);
    return sl_fail_null(err, SL_ERR_MEMORY, "%s: out of memory for a pattern", where);
}

void text_regex_free(text_regex *r) {
    if (!r)
        return;
    pcre2_code_free(r->code);
    free(r->literal);
    free(r->where);
    free(r);
}

bool text_regex_is_literal(const text_regex *r) {
    return !r->code;
}

static bool matcher_ready(text_matcher *m) {
    if (m->data)
        return true;
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    m->data = data;
    m->context = context;
    if (!context || !data) {
        text_matcher_free(m);
        return false;
    }
    pcre2_set_match_limit(context, MATCH_LIMIT);
    pcre2_set_heap_limit(context, HEAP_LIMIT_KIB);
    return true;
}

/* Compiled code begins on the 32 KiB that it finds on the machine's stack; only a pattern that needs more pays for a
 * stack of its own. */
static int match(const text_regex *r, text_matcher *m, const char *subject, size_t n, size_t from) {
    int found = pcre2_match(r->code, (PCRE2_SPTR)subject, n, from, PCRE2_NO_UTF_CHECK, m->data, m->context);
    if (found != PCRE2_ERROR_JIT_STACKLIMIT || m->stack)
        return found;
    m->stack = pcre2_jit_stack_create(STACK_START, STACK_MAX, NULL);
    if (!m->stack)
        return found;
    pcre2_jit_stack_assign(m->context, NULL, m->stack);
    return pcre2_match(r->code, (PCRE2_SPTR)subject, n, from, PCRE2_NO_UTF_CHECK, m->data, m->context);
}

void text_matcher_free(text_matcher *m) {
    pcre2_match_context_free(m->context);
    pcre2_match_data_free(m->data);
    pcre2_jit_stack_free(m->stack);
    *m = (text_matcher){0};
}

static int find_literal(const text_regex *r, const char *subject, size_t n, size_t from, size_t *begin, size_t *end) {
    if (!r->literal_size)
        return 0;
    const char *hit = from < n ? memmem(subject + from, n - from, r->literal, r->literal_size) : NULL;
    if (!hit)
        return 0;
    *begin = (size_t)(hit - subject);
    *end = *begin + r->literal_size;
    return 1;
}

int text_regex_find(const text_regex *r, text_matcher *m, const char *subject, size_t n, size_t from, size_t *begin,
                    size_t *end, sl_error *err) {
    if (!r->code)
        return find_literal(r, subject, n, from, begin, end);
    if (!matcher_ready(m)) {
        sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for matching", r->where);
        return -1;
    }
    int found = match(r, m, subject, n, from);
    if (found == PCRE2_ERROR_NOMATCH)
        return 0;
    if (found < 0) {
        char message[160] = "";
        pcre2_get_error_message(found, (PCRE2_UCHAR *)message, sizeof message);
        sl_fail(err, SL_ERR_TEXT, "%s: regex gave up at byte %zu of %zu: %s", r->where, from, n, message);
        return -1;
    }
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(m->data);
    *begin = at[0];
    *end = at[1];
    if (*end >= *begin && *begin >= from && *end <= n)
        return 1;
    sl_fail(err, SL_ERR_UNSUPPORTED, "%s: regex moves the start of its match (\\K)", r->where);
    return -1;
}

/* Regular expressions of tokenizers: Oniguruma's Ruby syntax (what tokenizer.json holds) on PCRE2. Private to text. */
#ifndef SL_TEXT_REGEX_H
#define SL_TEXT_REGEX_H

#include "base/base.h"

typedef struct text_regex text_regex;

/* Working memory of matching; one per thread of use. Zero-initialise. */
typedef struct text_matcher {
    void *data, *context, *stack;
} text_matcher;

/* `where` names the field in messages. */
text_regex *text_regex_compile(const char *pattern, size_t n, const char *where, sl_error *err);
/* Matches exactly these bytes. */
text_regex *text_regex_literal(const char *bytes, size_t n, const char *where, sl_error *err);
void text_regex_free(text_regex *r);
/* A literal is looked for in the text itself, anything else in its shadow. */
bool text_regex_is_literal(const text_regex *r);

/* Leftmost match at or after `from` in a subject that text_shadow has made valid. 1: found, 0: none, -1: error
 * (limits). */
int text_regex_find(const text_regex *r, text_matcher *m, const char *subject, size_t n, size_t from, size_t *begin,
                    size_t *end, sl_error *err);
void text_matcher_free(text_matcher *m);

/* Appends the PCRE2 form of an Oniguruma pattern (regex_translate.c). */
bool text_regex_translate(const char *pattern, size_t n, sl_buf *out, const char *where, sl_error *err);

#endif

/* A JSON reader that builds no tree: tokenizer.json holds hundreds of thousands of strings, which a tree would make a
 * hundred megabytes of. Private to text. Every function that fails fills err with name and byte. */
#ifndef SL_TEXT_JSON_SCAN_H
#define SL_TEXT_JSON_SCAN_H

#include "base/base.h"

#include <jansson.h>

typedef struct text_json {
    const char *p;
    size_t n, at;
    size_t base; /* of p in the file, for messages */
    const char *name;
    sl_error *err;
} text_json;

/* A value inside the text; p NULL: absent. */
typedef struct text_json_span {
    const char *p;
    size_t n, base;
} text_json_span;

bool text_json_fail(text_json *j, const char *what);
/* The next character that is not white space; 0 at the end. */
char text_json_peek(text_json *j);
/* Expects this character. */
bool text_json_enter(text_json *j, char open);
/* Before each element: 1 another one follows, 0 the closing character was read, -1 error. *first starts true. */
int text_json_more(text_json *j, char close, bool *first);
/* A string, unescaped, as UTF-8; replaces what out holds. */
bool text_json_string(text_json *j, sl_buf *out);
/* A string and the colon after it. */
bool text_json_key(text_json *j, sl_buf *out);
bool text_json_integer(text_json *j, int64_t *out);
/* Steps over one value of any kind; what is inside is not checked. */
bool text_json_skip(text_json *j, text_json_span *out);
/* Nothing but white space may follow. */
bool text_json_finish(text_json *j);
text_json text_json_at(const text_json *outer, text_json_span span);
/* The value as a tree; NULL with error. */
json_t *text_json_load(const text_json *outer, text_json_span span);

#endif

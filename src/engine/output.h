/* From generated tokens to text that can be shown: whole UTF-8 characters, cut before a stop string.
 *
 * What may still change is held back: the first bytes of a character, and text that a stop string may begin with. Bytes
 * that can never become valid turn into U+FFFD, one for each maximal part of a character (as the Unicode standard
 * recommends). The result depends on the bytes alone, not on how they were cut into tokens. */
#ifndef SL_ENGINE_OUTPUT_H
#define SL_ENGINE_OUTPUT_H

#include "base/base.h"
#include "text/text.h"

typedef struct engine_stop {
    char *text;
    size_t size;
    size_t *fallback; /* [size + 1] of Knuth, Morris and Pratt's automaton */
    size_t matched;   /* bytes of text that the output ends with */
} engine_stop;

typedef struct engine_output {
    const sl_tokenizer *tokenizer; /* NULL: tokens have no text */
    bool at_start;                 /* nothing visible came before: a leading space may belong to the tokenizer */
    engine_stop *stop;
    size_t stop_count;
    uint8_t partial[4]; /* first bytes of a character */
    size_t partial_size;
    sl_buf held;  /* clean text not yet given out */
    bool stopped; /* a stop string was found; nothing more comes */
} engine_output;

enum { ENGINE_MAX_STOPS = 64, ENGINE_MAX_STOP_BYTES = 1 << 16 };

/* Copies the stop strings; SL_ERR_ARGUMENT names one that is empty or too long. */
bool engine_output_init(engine_output *o, const sl_tokenizer *t, bool at_start, const char *const *stop,
                        size_t stop_count, sl_error *err);
void engine_output_free(engine_output *o);

/* Appends to text what can be shown after this token (control tokens show nothing) / these bytes. */
bool engine_output_token(engine_output *o, int32_t token, sl_buf *text, sl_error *err);
bool engine_output_bytes(engine_output *o, const char *bytes, size_t n, sl_buf *text, sl_error *err);
/* The end: appends what was held back. */
bool engine_output_finish(engine_output *o, sl_buf *text, sl_error *err);

#endif

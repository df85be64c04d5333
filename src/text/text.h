/* text: tokenizers (byte-level BPE, SentencePiece BPE) and chat templates (the checkpoint's own Jinja).
 *
 * May include: checkpoint (metadata only), base. Called by engine and cli. Objects are immutable after creation and may
 * be used from several threads. */
#ifndef SL_TEXT_H
#define SL_TEXT_H

#include "base/base.h"
#include "checkpoint/checkpoint.h"

#include <jansson.h>

/* ---- tokenizer ----------------------------------------------------------------------------------------------------
 */

typedef struct sl_tokenizer sl_tokenizer;

/* From a checkpoint: HF tokenizer.json (+ tokenizer_config.json, special_tokens_map.json, generation_config.json's
 * eos), or GGUF tokenizer.ggml.*. */
sl_tokenizer *sl_tokenizer_open(const sl_ckpt *c, sl_error *err);
/* From the text of tokenizer.json; `config` is tokenizer_config.json or NULL. `name` is for messages. */
sl_tokenizer *sl_tokenizer_from_json(const char *json, size_t n, const json_t *config, const char *name, sl_error *err);
void sl_tokenizer_free(sl_tokenizer *t);

int32_t sl_tokenizer_size(const sl_tokenizer *t);  /* ids are 0..size-1, holes included */
int32_t sl_tokenizer_bos(const sl_tokenizer *t);   /* -1: none */
int32_t sl_tokenizer_eos(const sl_tokenizer *t);   /* -1: none */
bool sl_tokenizer_adds_bos(const sl_tokenizer *t); /* the checkpoint says that a text begins with BOS */
bool sl_tokenizer_is_stop(const sl_tokenizer *t,
                          int32_t id); /* ends a generation: eos, eot, <|im_end|>, generation_config's list */
bool sl_tokenizer_is_control(const sl_tokenizer *t, int32_t id);             /* special: not shown as text */
int32_t sl_tokenizer_id(const sl_tokenizer *t, const char *piece, size_t n); /* exact piece or added token; -1: none */

typedef struct sl_encode_options {
    bool special; /* control tokens written in the text become their ids; false (a user's text): they are encoded as
                     ordinary text */
    bool bos_eos; /* add what the checkpoint's post-processor or add_bos/add_eos flags add */
} sl_encode_options;

/* Ids of n bytes of text (any bytes, any length; near-linear time). *ids is allocated, caller frees.
 * As in the reference, a character for which the vocabulary has neither tokens nor an unknown token is left out; a byte
 * that is no UTF-8 and has no token is encoded as U+FFFD. */
bool sl_encode(const sl_tokenizer *t, const char *text, size_t n, sl_encode_options opt, int32_t **ids, size_t *count,
               sl_error *err);
/* Appends the bytes of one token as it stands inside a text; control tokens only if `special`. Bytes may be a part of a
 * UTF-8 character. */
bool sl_decode_piece(const sl_tokenizer *t, int32_t id, bool special, sl_buf *out);
/* Bytes of a whole sequence: what encode was given (SentencePiece's leading-space rule undone).
 * (sl_decode is the engine's public call.) */
bool sl_decode_ids(const sl_tokenizer *t, const int32_t *ids, size_t n, bool special, sl_buf *out, sl_error *err);

/* ---- chat templates -------------------------------------------------------------------------------------------------
 */

typedef struct sl_template sl_template;

/* Compiles Jinja source; what is outside the subset is an error with line and construct. */
sl_template *sl_template_compile(const char *source, size_t n, sl_error *err);
void sl_template_free(sl_template *t);

/* Renders with the given globals (a JSON object: messages, tools, add_generation_prompt, bos_token, eos_token,
 * enable_thinking, ...). `now` is what strftime_now sees (seconds since the epoch, local time). Bounded: steps, output
 * size and recursion have limits. raise_exception's text becomes the error's message. */
bool sl_template_render(const sl_template *t, const json_t *globals, int64_t now, sl_buf *out, sl_error *err);

/* The source of a checkpoint's template, allocated: HF chat_template.jinja, else tokenizer_config.json's chat_template
 * (string, or list of {name, template}: "default", or "tool_use" when `tools`); GGUF
 * tokenizer.chat_template(.tool_use). NULL with err->code SL_OK: the model has none. */
char *sl_template_source(const sl_ckpt *c, bool tools, size_t *n, sl_error *err);

#endif

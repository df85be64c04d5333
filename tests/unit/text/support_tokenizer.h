/* Small hand-made tokenizers for the tests of src/text's tokenizer. */
#ifndef SUPPORT_TOKENIZER_H
#define SUPPORT_TOKENIZER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "text/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes 0..255 have the ids 0..255 (as GPT-2's characters); then come these pieces, each with its merge. */
enum { T_HE = 256, T_HEL, T_LO, T_HELLO, T_SPACE_W, T_SPACE_WO, T_FIRST_FREE };

/* tokenizer.json of that vocabulary, byte-level with GPT-2's regex; `model` and `fields` are inserted into the model
 * and the whole, e.g.
 * "\"ignore_merges\": true," or "\"normalizer\": {...},". Fields that are given replace the defaults pre_tokenizer and
 * decoder. */
char *byte_json(const char *model, const char *fields);
/* SentencePiece-like: <unk>, <0x00>..<0xFF> (ids 1..256), characters and some words. */
char *sentencepiece_json(const char *fields);
enum { S_MARK = 257, S_A, S_B, S_C, S_AB, S_MARK_A, S_MARK_AB, S_MARKS, S_FIRST_FREE };

/* Must load. */
sl_tokenizer *load(char *json, const char *config);
/* Frees json. Must not load; the message holds all texts up to NULL and is one line. */
void expect_no_load(char *json, sl_code code, ...);
void expect_message(const sl_error *err, sl_code code, va_list texts);
/* ids ends with -1. */
void expect_ids(const sl_tokenizer *t, const char *text, sl_encode_options opt, ...);
/* Encoding n bytes and decoding gives them back. */
void expect_same_bytes(const sl_tokenizer *t, const char *text, size_t n, bool special);
void expect_text(const sl_tokenizer *t, const int32_t *ids, size_t n, bool special, const char *want);

/* A GGUF file under construction. Keys get "tokenizer.ggml." in front. */
typedef struct meta_file {
    sl_buf body;
    uint32_t keys;
} meta_file;

void meta_text(meta_file *f, const char *key, const char *value);
void meta_u32(meta_file *f, const char *key, uint32_t value);
void meta_bool(meta_file *f, const char *key, bool value);
void meta_texts(meta_file *f, const char *key, const char *const *values, size_t n);
void meta_ints(meta_file *f, const char *key, const int32_t *values, size_t n);
void meta_floats(meta_file *f, const char *key, const float *values, size_t n);
/* Writes the file and opens its tokenizer; NULL with err where that fails. Frees f. */
sl_tokenizer *meta_open(meta_file *f, sl_error *err);

char *make_folder(void); /* freed by remove_folder, which deletes files in it */
void put_file(const char *folder, const char *name, const void *bytes, size_t n);
void remove_folder(char *folder);

#endif

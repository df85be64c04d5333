/* Small hand-made checkpoints for the tests of src/checkpoint. */
#ifndef SUPPORT_CHECKPOINT_H
#define SUPPORT_CHECKPOINT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/internal.h"

/* A fresh directory, whose path ends in no slash; remove_dir deletes all of it. The string is freed by remove_dir. */
char *make_dir(void);
void remove_dir(char *dir);
/* dir/name, in one of 8 static buffers. */
const char *in_dir(const char *dir, const char *name);
/* Writes dir/name, making the directories that name goes through. */
void write_file(const char *dir, const char *name, const void *bytes, size_t n);
void write_text(const char *dir, const char *name, const char *text);

/* The call that filled *err must have failed with this code and a one-line message that holds all texts up to NULL. */
void expect_error(const sl_error *err, sl_code code, ...);
/* An error struct with rubbish in it. */
sl_error poisoned(void);

/* ---- GGUF ---- */
void put(sl_buf *b, const void *bytes, size_t n);
void put_u8(sl_buf *b, uint8_t v);
void put_u32(sl_buf *b, uint32_t v);
void put_u64(sl_buf *b, uint64_t v);
void put_str(sl_buf *b, const char *s); /* u64 length, bytes */
void gguf_begin(sl_buf *b, uint32_t version, uint64_t tensors, uint64_t keys);
void gguf_key(sl_buf *b, const char *key, uint32_t type); /* the value follows */
void gguf_key_u32(sl_buf *b, const char *key, uint32_t v);
void gguf_key_str(sl_buf *b, const char *key, const char *v);
/* Shape innermost first, as in the file; ends with 0. */
void gguf_info(sl_buf *b, const char *name, uint32_t type, uint64_t offset, const uint64_t *shape);
/* Zeros up to a multiple of align, then n bytes 0, 1, 2, ... */
void gguf_data(sl_buf *b, size_t align, size_t n);
sl_gguf *parse_buf(const sl_buf *b, sl_error *err);

/* ---- safetensors ---- */
/* u64 length, header, then data_bytes bytes 0, 1, 2, ... */
void safetensors_file(const char *dir, const char *name, const char *header, size_t data_bytes);

#endif

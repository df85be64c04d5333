/* Writes a GGUF file (version 3, alignment 32) as a stream: metadata and the list of tensors first, then their data in
 * the same order. Nothing appears under the path before sl_gguf_writer_finish; a writer that is freed before leaves
 * nothing.
 *
 * Every call returns false once one has failed, and finish then gives the first error: callers may check only that.
 * May include: checkpoint.h. Called by synth and pack. */
#ifndef SL_GGUF_WRITE_H
#define SL_GGUF_WRITE_H

#include "checkpoint/checkpoint.h"

typedef struct sl_gguf_writer sl_gguf_writer;

sl_gguf_writer *sl_gguf_writer_new(const char *path, sl_error *err);
void sl_gguf_writer_free(sl_gguf_writer *w);

/* Metadata; each key once. type: GGUF's number (sl_gguf_array has the list); int: any integer type or bool, which v
 * must fit; float: f32 or f64. */
bool sl_gguf_writer_str(sl_gguf_writer *w, const char *key, const char *p, size_t n);
bool sl_gguf_writer_int(sl_gguf_writer *w, const char *key, uint32_t type, int64_t v);
bool sl_gguf_writer_float(sl_gguf_writer *w, const char *key, uint32_t type, double v);
bool sl_gguf_writer_strs(sl_gguf_writer *w, const char *key, const sl_str *v, size_t count);
bool sl_gguf_writer_ints(sl_gguf_writer *w, const char *key, uint32_t type, const int64_t *v, size_t count);
bool sl_gguf_writer_floats(sl_gguf_writer *w, const char *key, uint32_t type, const double *v, size_t count);

/* Shape outermost first. The format needs a ggml type. */
bool sl_gguf_writer_tensor(sl_gguf_writer *w, const char *name, sl_format_id format, int dims, const int64_t *shape);
/* The next n bytes of the current tensor; a call does not cross from one tensor to the next. */
bool sl_gguf_writer_data(sl_gguf_writer *w, const void *bytes, size_t n);
/* Checks that all data came, syncs, renames. The writer is still to be freed. */
bool sl_gguf_writer_finish(sl_gguf_writer *w, sl_error *err);

#endif

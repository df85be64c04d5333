/* Writes a safetensors file as a stream: the list of tensors first, then their data in the same order. Nothing appears
 * under the path before sl_safetensors_writer_finish; a writer that is freed before leaves nothing.
 *
 * Every call returns false once one has failed, and finish then gives the first error: callers may check only that.
 * Tensors follow each other without gaps, as the format demands: declare those of wide types first to keep them
 * aligned. May include: checkpoint.h. Called by synth and pack. */
#ifndef SL_SAFETENSORS_WRITE_H
#define SL_SAFETENSORS_WRITE_H

#include "checkpoint/checkpoint.h"

typedef struct sl_safetensors_writer sl_safetensors_writer;

sl_safetensors_writer *sl_safetensors_writer_new(const char *path, sl_error *err);
void sl_safetensors_writer_free(sl_safetensors_writer *w);

/* An entry of __metadata__ ("format": "pt" or "mlx"). */
bool sl_safetensors_writer_meta(sl_safetensors_writer *w, const char *key, const char *value);
/* dtype: "F32", "F16", "BF16", "U32" (MLX's words of codes), ... */
bool sl_safetensors_writer_tensor(sl_safetensors_writer *w, const char *name, const char *dtype, int dims,
                                  const int64_t *shape);
/* The next n bytes of the current tensor; a call does not cross from one tensor to the next. */
bool sl_safetensors_writer_data(sl_safetensors_writer *w, const void *bytes, size_t n);
/* Checks that all data came, syncs, renames. The writer is still to be freed. */
bool sl_safetensors_writer_finish(sl_safetensors_writer *w, sl_error *err);

#endif

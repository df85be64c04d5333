/* Golden checkpoints taken apart, changed and written to a temporary directory, for tests of bad input. */
#ifndef SUPPORT_EDIT_H
#define SUPPORT_EDIT_H

#include "base/base.h"

#include <jansson.h>

enum { EDIT_TENSORS = 256 };

typedef struct edit_tensor {
    char *name, dtype[8];
    int dims;
    int64_t shape[6];
    uint8_t *bytes;
    size_t size;
} edit_tensor;

typedef struct edit {
    char *dir;      /* where it is written */
    json_t *config; /* NULL: none is written */
    edit_tensor tensor[EDIT_TENSORS];
    int count;
} edit;

/* Reads tests/golden/arch/NAME, all its shards. */
edit *edit_open(const char *name);
/* Also removes the directory. */
void edit_close(edit *e);
/* Writes config.json and one model.safetensors; returns the directory. */
const char *edit_write(edit *e);

/* The tensor must be there. */
edit_tensor *edit_find(edit *e, const char *name);
void edit_remove(edit *e, const char *name);
edit_tensor *edit_copy(edit *e, const char *name, const char *new_name);
/* Another shape of as many elements, or of fewer or more: bytes are cut or zeros added. */
void edit_shape(edit_tensor *t, int dims, int64_t a, int64_t b);
/* Element i of a BF16 tensor. */
void edit_bf16(edit_tensor *t, int64_t i, float value);
/* Sets a field of config.json to a JSON text; NULL removes it. */
void edit_config(edit *e, const char *field, const char *json);

#endif

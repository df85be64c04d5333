/* What both checkpoint writers share: a list of declared tensors, and a file that appears under its name only when it
 * is whole.
 *
 * May include: internal.h. Included by the writers. */
#ifndef SL_CHECKPOINT_OUT_FILE_H
#define SL_CHECKPOINT_OUT_FILE_H

#include "checkpoint/internal.h"

typedef struct out_tensor {
    char *name;
    uint64_t offset; /* from the data's beginning */
    uint64_t bytes;
} out_tensor;

/* A file being written to PATH.part, under a lock, so that two writers of one path do not mix and what a killed one
 * left is taken over. The first failure stays in err and makes every later call fail. */
typedef struct out_file {
    char *path, *part;
    int fd;
    sl_error err;
    uint64_t at; /* bytes given to it so far */
    char *buf;
    size_t used;
    uint64_t alignment; /* of each tensor, from the data's beginning */
    out_tensor *tensors;
    size_t count, capacity;
    ckpt_names names;
    uint64_t data_bytes; /* of all declared tensors, with padding between them */
    bool in_data;        /* the header is written */
    uint64_t data_begin;
    size_t current; /* the tensor that the next data belongs to */
    uint64_t done;  /* bytes of it so far */
} out_file;

bool out_open(out_file *o, const char *path, uint64_t alignment, sl_error *err);
/* Closes and frees; an unfinished file is removed. */
void out_close(out_file *o);

/* Records a failure (unless one is recorded), returns false. */
bool out_fail(out_file *o, sl_code code, const char *fmt, ...) SL_PRINTF(3, 4);
/* A tensor of `bytes` bytes, which come in the order of declaration. Name: unique, 1 to `limit` bytes. */
bool out_declare(out_file *o, const char *name, size_t limit, uint64_t bytes);
/* Header bytes. */
bool out_write(out_file *o, const void *bytes, size_t n);
/* The header is complete; data begins here. */
bool out_begin_data(out_file *o);
/* The next n bytes of the current tensor. */
bool out_data(out_file *o, const void *bytes, size_t n);
/* Checks that every tensor has its bytes, brings them to the disk and gives the file its name. */
bool out_finish(out_file *o, sl_error *err);

/* Bytes of a tensor of this format and shape; false: failure recorded. */
bool out_tensor_bytes(out_file *o, const char *name, sl_format_id format, int dims, const int64_t *shape,
                      uint64_t *bytes);

#endif

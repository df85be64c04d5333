/* Arithmetic on one tensor: size, slices of stacked tensors, the view as a matrix. */
#include "checkpoint/checkpoint.h"

#include <inttypes.h>

/* The extents lie inside their files, so the sum of three fits. */
uint64_t sl_tensor_bytes(const sl_tensor *t) {
    uint64_t n = 0;
    for (int32_t i = 0; i < t->parts; i++) {
        n += t->part[i].bytes;
    }
    return n;
}

int64_t sl_tensor_elements(const sl_tensor *t) {
    int64_t n = 1;
    for (int32_t i = 0; i < t->dims; i++) {
        n *= t->shape[i]; /* bounded by the bytes in the file, checked at opening */
    }
    return n;
}

bool sl_tensor_slice(const sl_tensor *t, int64_t index, sl_tensor *out, sl_error *err) {
    if (t->dims < 2) {
        return sl_fail(err, SL_ERR_FORMAT, "tensor \"%s\": %d dimensions, expected at least 2 to take a slice", t->name,
                       (int)t->dims);
    }
    int64_t count = t->shape[0];
    if (index < 0 || index >= count) {
        return sl_fail(err, SL_ERR_ARGUMENT, "tensor \"%s\": slice %" PRId64 ", expected 0 to %" PRId64, t->name, index,
                       count - 1);
    }
    *out = *t;
    out->dims = t->dims - 1;
    for (int32_t i = 0; i < SL_MAX_DIMS; i++) {
        out->shape[i] = i < out->dims ? t->shape[i + 1] : 0;
    }
    for (int32_t i = 0; i < t->parts; i++) {
        uint64_t bytes = t->part[i].bytes / (uint64_t)count;
        if (t->part[i].bytes % (uint64_t)count != 0) {
            return sl_fail(err, SL_ERR_FORMAT, "tensor \"%s\": %" PRIu64 " bytes do not divide into %" PRId64 " slices",
                           t->name, t->part[i].bytes, count);
        }
        out->part[i].bytes = bytes;
        out->part[i].offset = t->part[i].offset + bytes * (uint64_t)index;
    }
    return true;
}

bool sl_tensor_matrix(const sl_tensor *t, sl_matrix *out, sl_error *err) {
    if (t->dims != 1 && t->dims != 2) {
        return sl_fail(err, SL_ERR_FORMAT, "tensor \"%s\": %d dimensions, expected a matrix or a vector", t->name,
                       (int)t->dims);
    }
    *out = (sl_matrix){.format = t->format, .group = t->group, .side = t->side};
    out->rows = t->dims == 2 ? t->shape[0] : 1;
    out->cols = t->shape[t->dims - 1];
    if (!sl_matrix_layout(out, err)) {
        return sl_fail_prefix(err, "tensor \"%s\"", t->name);
    }
    for (int32_t i = 0; i < t->parts; i++) {
        uint64_t expected = sl_matrix_part_bytes(out, i);
        if (t->part[i].bytes != expected) {
            return sl_fail(err, SL_ERR_FORMAT,
                           "tensor \"%s\": part %d has %" PRIu64 " bytes, expected %" PRIu64 " (%" PRId64
                           " rows of %" PRIu64 ")",
                           t->name, (int)i, t->part[i].bytes, expected, out->rows, out->row_bytes[i]);
        }
    }
    return true;
}

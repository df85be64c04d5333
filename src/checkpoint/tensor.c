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

bool sl_tensor_rows(const sl_tensor *t, int64_t row0, int64_t rows, sl_tensor *out, sl_error *err) {
    sl_matrix m, view;
    if (!sl_tensor_matrix(t, &m, err)) {
        return false;
    }
    if (row0 < 0 || rows < 1 || row0 > m.rows - rows) {
        return sl_fail(err, SL_ERR_ARGUMENT, "tensor \"%s\": rows %" PRId64 " to %" PRId64 " of %" PRId64, t->name,
                       row0, row0 + rows - 1, m.rows);
    }
    view = sl_matrix_rows(&m, row0, rows);
    if (view.row_in_block != 0) {
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "tensor \"%s\": %s rows from %" PRId64 ", expected from a multiple of %" PRId32, t->name,
                       sl_format_get(t->format)->name, row0, m.group);
    }
    *out = *t;
    for (int32_t i = 0; i < t->parts; i++) {
        sl_matrix before = sl_matrix_rows(&m, 0, row0);
        out->part[i].offset += sl_matrix_part_bytes(&before, i);
        out->part[i].bytes = sl_matrix_part_bytes(&view, i);
    }
    out->shape[0] = rows;
    return true;
}

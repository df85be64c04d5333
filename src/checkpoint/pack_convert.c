#include "checkpoint/pack_convert.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { ROWS = 4 };

static const char *const proj_names[3] = {"gate", "up", "down"};

/* Of the largest projection of the layer's first expert; all are alike. */
static uint64_t source_bytes(const sl_pack_layer *l) {
    uint64_t most = 0;
    for (int proj = 0; proj < 3; proj++) {
        uint64_t n = 0;
        for (int i = 0; i < 3; i++) {
            n += l->extent[proj * 3 + i].bytes;
        }
        most = n > most ? n : most;
    }
    return most;
}

bool pack_convert_open(pack_convert *c, const sl_pack_job *job, sl_error *err) {
    *c = (pack_convert){.source = job->source, .pool = job->pool};
    for (size_t i = 0; i < job->layer_count; i++) {
        uint64_t n = source_bytes(&job->layers[i]);
        c->bytes_size = n > c->bytes_size ? n : c->bytes_size;
        for (int proj = 0; proj < 3; proj++) {
            c->widest = sl_max_i64(c->widest, job->layers[i].proj[proj].shape[1]);
        }
    }
    c->bytes = malloc((size_t)c->bytes_size + 1);
    c->rows = calloc((size_t)sl_pool_threads(c->pool) * ROWS * (size_t)c->widest, sizeof *c->rows);
    return (c->bytes && c->rows) ||
           sl_fail(err, SL_ERR_MEMORY, "out of memory for an expert of %llu bytes", (unsigned long long)c->bytes_size);
}

void pack_convert_close(pack_convert *c) {
    free(c->bytes);
    free(c->rows);
    *c = (pack_convert){0};
}

/* One matrix: rows are independent, so they are shared out. */
typedef struct rows_job {
    const pack_convert *c;
    sl_matrix from, to;
    uint8_t *part[3];
    const float *importance;
    atomic_bool broken; /* a value that is not finite */
} rows_job;

static void convert_rows(void *ctx, int64_t begin, int64_t end, int worker) {
    rows_job *j = ctx;
    int64_t cols = j->from.cols;
    float *w = j->c->rows + (int64_t)worker * ROWS * j->c->widest;
    for (int64_t row = begin, n; row < end; row += n) {
        n = end - row < ROWS ? end - row : ROWS;
        for (int64_t i = 0; i < n; i++) {
            sl_format_get(j->from.format)->dequantize(&j->from, row + i, 0, cols, w + i * cols);
        }
        double error = sl_requantize(sl_format_get(j->to.format)->bits, j->to.group, j->to.side, n, cols, w,
                                     j->importance, j->part[0] + (uint64_t)row * j->to.row_bytes[0],
                                     j->part[1] + (uint64_t)row * j->to.row_bytes[1],
                                     j->part[2] + (uint64_t)row * j->to.row_bytes[2]);
        if (!isfinite(error)) {
            atomic_store(&j->broken, true);
        }
    }
}

/* Reads the source's parts of a projection to `at` and makes its matrix. */
static bool read_matrix(const pack_convert *c, const sl_tensor *t, const uint64_t stride[3], const sl_extent *x,
                        uint8_t *at, sl_matrix *out, sl_error *err) {
    if (!sl_tensor_matrix(t, out, err)) {
        return false;
    }
    for (int32_t i = 0; i < t->parts; i++) {
        if (!sl_file_read_uncached(sl_ckpt_file(c->source, x[i].file), x[i].offset, at, x[i].bytes, err)) {
            return false;
        }
        out->part[i] = at;
        out->row_bytes[i] = stride[i] ? stride[i] : out->row_bytes[i];
        at += x[i].bytes;
    }
    return true;
}

bool pack_convert_expert(pack_convert *c, const sl_pack_layer *from, int32_t x, const pack_layer *to,
                         const float *importance, uint8_t *blob, sl_error *err) {
    int64_t hidden = from->proj[0].shape[1];
    for (int proj = 0; proj < 3; proj++) {
        const sl_tensor *t = &to->packed.proj[proj];
        rows_job j = {.c = c, .importance = importance ? importance + (proj == 2 ? hidden : 0) : NULL};
        const sl_extent *extent = from->extent + (int64_t)x * SL_PACK_PARTS + proj * 3;
        if (!read_matrix(c, &from->proj[proj], from->stride[proj], extent, c->bytes, &j.from, err) ||
            !sl_tensor_matrix(t, &j.to, err)) {
            return sl_fail_prefix(err, "layer %d expert %d", (int)from->layer, (int)x);
        }
        for (int i = 0; i < 3; i++) {
            j.part[i] = blob + t->part[i].offset;
        }
        sl_pool_run(c->pool, j.from.rows, ROWS, convert_rows, &j);
        if (atomic_load(&j.broken)) {
            return sl_fail(err, SL_ERR_NUMERIC,
                           "%s: layer %d expert %d %s: a weight is not finite, or too large for F16",
                           sl_ckpt_path(c->source), (int)from->layer, (int)x, proj_names[proj]);
        }
    }
    return true;
}

/* safetensors writer: the header is gathered as JSON, and written when the first data comes. */
#include "checkpoint/safetensors_write.h"
#include "checkpoint/out_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { DATA_ALIGNMENT = 8, NAME_LIMIT = 65535 };

struct sl_safetensors_writer {
    out_file out;
    json_t *header, *meta;
};

sl_safetensors_writer *sl_safetensors_writer_new(const char *path, sl_error *err) {
    sl_safetensors_writer *w = calloc(1, sizeof *w);
    if (!w) {
        return sl_fail_null(err, SL_ERR_MEMORY, "%s: out of memory", path);
    }
    if (!out_open(&w->out, path, 1, err)) {
        free(w);
        return NULL;
    }
    w->header = json_object();
    w->meta = json_object();
    if (!w->header || !w->meta) {
        out_fail(&w->out, SL_ERR_MEMORY, "out of memory");
    }
    return w;
}

void sl_safetensors_writer_free(sl_safetensors_writer *w) {
    if (!w) {
        return;
    }
    out_close(&w->out);
    json_decref(w->header);
    json_decref(w->meta);
    free(w);
}

bool sl_safetensors_writer_meta(sl_safetensors_writer *w, const char *key, const char *value) {
    if (w->out.err.code != SL_OK) {
        return false;
    }
    return json_object_set_new(w->meta, key, json_string(value)) == 0 ||
           out_fail(&w->out, SL_ERR_ARGUMENT, "metadata \"%.100s\": not UTF-8, or out of memory", key);
}

/* NULL: out of memory. */
static json_t *json_shape(int dims, const int64_t *shape) {
    json_t *array = json_array();
    for (int i = 0; array && i < dims; i++) {
        if (json_array_append_new(array, json_integer(shape[i])) != 0) {
            json_decref(array);
            array = NULL;
        }
    }
    return array;
}

static bool find_bytes(sl_safetensors_writer *w, const char *name, const char *dtype, int dims, const int64_t *shape,
                       uint64_t *bytes) {
    uint32_t bits = safetensors_dtype_bits(dtype);
    if (bits == 0 || bits % 8 != 0) {
        return out_fail(&w->out, SL_ERR_ARGUMENT, "tensor \"%.100s\": cannot write dtype \"%.20s\"", name, dtype);
    }
    if (dims < 0 || dims > CKPT_RAW_DIMS) {
        return out_fail(&w->out, SL_ERR_ARGUMENT, "tensor \"%.100s\": %d dimensions, expected 0 to %d", name, dims,
                        CKPT_RAW_DIMS);
    }
    *bytes = bits / 8;
    for (int i = 0; i < dims; i++) {
        if (shape[i] < 0 || !sl_mul_u64(*bytes, (uint64_t)shape[i], bytes)) {
            return out_fail(&w->out, SL_ERR_ARGUMENT,
                            "tensor \"%.100s\": dimension %d is %" PRId64 ", negative or overflowing", name, i,
                            shape[i]);
        }
    }
    return true;
}

bool sl_safetensors_writer_tensor(sl_safetensors_writer *w, const char *name, const char *dtype, int dims,
                                  const int64_t *shape) {
    uint64_t bytes = 0;
    if (!find_bytes(w, name, dtype, dims, shape, &bytes) || !out_declare(&w->out, name, NAME_LIMIT, bytes)) {
        return false;
    }
    uint64_t begin = w->out.tensors[w->out.count - 1].offset;
    json_t *entry = json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtype, "shape", json_shape(dims, shape), "data_offsets",
                              (json_int_t)begin, (json_int_t)(begin + bytes));
    return (entry && json_object_set_new(w->header, name, entry) == 0) ||
           out_fail(&w->out, SL_ERR_ARGUMENT, "tensor \"%.100s\": name is not UTF-8, or out of memory", name);
}

/* Length, JSON, and spaces so that the data begins at a multiple of eight. */
static bool write_header(sl_safetensors_writer *w) {
    bool ok = json_object_size(w->meta) == 0 || json_object_set(w->header, "__metadata__", w->meta) == 0;
    char *text = ok ? json_dumps(w->header, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    if (!text) {
        return out_fail(&w->out, SL_ERR_MEMORY, "out of memory for the header");
    }
    size_t n = strlen(text), padded = (size_t)sl_round_up(n, DATA_ALIGNMENT);
    uint8_t length[8];
    for (int i = 0; i < 8; i++) {
        length[i] = (uint8_t)((uint64_t)padded >> 8 * i);
    }
    ok = out_write(&w->out, length, 8) && out_write(&w->out, text, n) && out_write(&w->out, "       ", padded - n) &&
         out_begin_data(&w->out);
    free(text);
    return ok;
}

bool sl_safetensors_writer_data(sl_safetensors_writer *w, const void *bytes, size_t n) {
    return (w->out.in_data || write_header(w)) && out_data(&w->out, bytes, n);
}

bool sl_safetensors_writer_finish(sl_safetensors_writer *w, sl_error *err) {
    if (!w->out.in_data) {
        write_header(w);
    }
    return out_finish(&w->out, err);
}

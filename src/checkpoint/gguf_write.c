/* GGUF writer: the header is gathered in memory, and written when the first data comes. */
#include "checkpoint/gguf_write.h"
#include "checkpoint/out_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 32, NAME_LIMIT = 63, KEY_LIMIT = 65535 };

struct sl_gguf_writer {
    out_file out;
    sl_buf keys, infos; /* their parts of the header */
    uint64_t key_count;
    ckpt_names key_names;
    char **key_copies; /* what key_names borrows */
    size_t key_capacity;
};

sl_gguf_writer *sl_gguf_writer_new(const char *path, sl_error *err) {
    sl_gguf_writer *w = calloc(1, sizeof *w);
    if (!w) {
        return sl_fail_null(err, SL_ERR_MEMORY, "%s: out of memory", path);
    }
    if (!out_open(&w->out, path, ALIGNMENT, err)) {
        free(w);
        return NULL;
    }
    return w;
}

void sl_gguf_writer_free(sl_gguf_writer *w) {
    if (!w) {
        return;
    }
    out_close(&w->out);
    sl_buf_free(&w->keys);
    sl_buf_free(&w->infos);
    ckpt_names_free(&w->key_names);
    for (uint64_t i = 0; i < w->key_count; i++) {
        free(w->key_copies[i]);
    }
    free(w->key_copies);
    free(w);
}

/* ---- pieces -------------------------------------------------------------------------------------------------------
 */

static void put_le(sl_buf *b, uint64_t v, uint32_t size) {
    uint8_t bytes[8];
    for (uint32_t i = 0; i < size; i++) {
        bytes[i] = (uint8_t)(v >> 8 * i);
    }
    sl_buf_append(b, bytes, size);
}

static void put_string(sl_buf *b, const char *p, size_t n) {
    put_le(b, n, 8);
    sl_buf_append(b, p, n);
}

static bool check_memory(sl_gguf_writer *w) {
    return !(w->keys.failed || w->infos.failed) || out_fail(&w->out, SL_ERR_MEMORY, "out of memory for the header");
}

/* ---- metadata -------------------------------------------------------------------------------------------------------
 */

static bool remember_key(sl_gguf_writer *w, const char *key) {
    void *v = w->key_copies;
    bool room = sl_grow(&v, &w->key_capacity, w->key_count + 1, sizeof *w->key_copies);
    w->key_copies = v;
    char *copy = room ? sl_strdup(key) : NULL;
    if (!copy || !ckpt_names_add(&w->key_names, copy, strlen(copy), w->key_count)) {
        free(copy);
        return out_fail(&w->out, SL_ERR_MEMORY, "out of memory at key \"%s\"", key);
    }
    w->key_copies[w->key_count++] = copy;
    return true;
}

/* Key and type; the value follows. */
static bool begin_key(sl_gguf_writer *w, const char *key, uint32_t type) {
    size_t n = strlen(key);
    if (w->out.err.code != SL_OK) {
        return false;
    }
    if (n == 0 || n > KEY_LIMIT || w->out.in_data || ckpt_names_find(&w->key_names, key, n) != CKPT_NONE) {
        return out_fail(&w->out, SL_ERR_ARGUMENT,
                        "key \"%.100s\": empty, too long, given twice or given after the first data", key);
    }
    if (!remember_key(w, key)) {
        return false;
    }
    put_string(&w->keys, key, n);
    put_le(&w->keys, type, 4);
    return true;
}

static bool begin_array(sl_gguf_writer *w, const char *key, uint32_t type, size_t count) {
    if (!begin_key(w, key, GGUF_ARRAY)) {
        return false;
    }
    put_le(&w->keys, type, 4);
    put_le(&w->keys, count, 8);
    return true;
}

static bool is_integer(uint32_t type) {
    return gguf_value_size(type) > 0 && type != GGUF_F32 && type != GGUF_F64;
}

static bool is_signed(uint32_t type) {
    return type == GGUF_I8 || type == GGUF_I16 || type == GGUF_I32 || type == GGUF_I64;
}

static bool fits(uint32_t type, int64_t v) {
    uint32_t bits = 8 * gguf_value_size(type);
    if (type == GGUF_BOOL) {
        return v == 0 || v == 1;
    }
    if (is_signed(type)) {
        return bits == 64 || (v >= -((int64_t)1 << (bits - 1)) && v < (int64_t)1 << (bits - 1));
    }
    return v >= 0 && (bits == 64 || v < (int64_t)1 << bits);
}

static bool put_int(sl_gguf_writer *w, const char *key, uint32_t type, int64_t v) {
    if (!is_integer(type) || !fits(type, v)) {
        return out_fail(&w->out, SL_ERR_ARGUMENT, "key \"%.100s\": %" PRId64 " does not fit type %" PRIu32, key, v,
                        type);
    }
    put_le(&w->keys, (uint64_t)v, gguf_value_size(type));
    return true;
}

static bool put_float(sl_gguf_writer *w, const char *key, uint32_t type, double v) {
    uint64_t bits = 0;
    if (type == GGUF_F64) {
        memcpy(&bits, &v, sizeof v);
    } else if (type == GGUF_F32) {
        float f = (float)v;
        uint32_t b;
        memcpy(&b, &f, sizeof b);
        bits = b;
    } else {
        return out_fail(&w->out, SL_ERR_ARGUMENT, "key \"%.100s\": type %" PRIu32 " is not f32 or f64", key, type);
    }
    put_le(&w->keys, bits, gguf_value_size(type));
    return true;
}

bool sl_gguf_writer_str(sl_gguf_writer *w, const char *key, const char *p, size_t n) {
    if (!begin_key(w, key, GGUF_STRING)) {
        return false;
    }
    put_string(&w->keys, p, n);
    return check_memory(w);
}

bool sl_gguf_writer_int(sl_gguf_writer *w, const char *key, uint32_t type, int64_t v) {
    return begin_key(w, key, type) && put_int(w, key, type, v) && check_memory(w);
}

bool sl_gguf_writer_float(sl_gguf_writer *w, const char *key, uint32_t type, double v) {
    return begin_key(w, key, type) && put_float(w, key, type, v) && check_memory(w);
}

bool sl_gguf_writer_strs(sl_gguf_writer *w, const char *key, const sl_str *v, size_t count) {
    if (!begin_array(w, key, GGUF_STRING, count)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        put_string(&w->keys, v[i].p, v[i].n);
    }
    return check_memory(w);
}

bool sl_gguf_writer_ints(sl_gguf_writer *w, const char *key, uint32_t type, const int64_t *v, size_t count) {
    bool ok = begin_array(w, key, type, count);
    for (size_t i = 0; ok && i < count; i++) {
        ok = put_int(w, key, type, v[i]);
    }
    return ok && check_memory(w);
}

bool sl_gguf_writer_floats(sl_gguf_writer *w, const char *key, uint32_t type, const double *v, size_t count) {
    bool ok = begin_array(w, key, type, count);
    for (size_t i = 0; ok && i < count; i++) {
        ok = put_float(w, key, type, v[i]);
    }
    return ok && check_memory(w);
}

/* ---- tensors
 * ------------------------------------------------------------------------------------------------------------ */

bool sl_gguf_writer_tensor(sl_gguf_writer *w, const char *name, sl_format_id format, int dims, const int64_t *shape) {
    const sl_format *f = sl_format_get(format);
    uint64_t bytes;
    if (f->ggml_type < 0) {
        return out_fail(&w->out, SL_ERR_ARGUMENT, "tensor \"%.100s\": GGUF has no %s", name, f->name);
    }
    if (!out_tensor_bytes(&w->out, name, format, dims, shape, &bytes) ||
        !out_declare(&w->out, name, NAME_LIMIT, bytes)) {
        return false;
    }
    put_string(&w->infos, name, strlen(name));
    put_le(&w->infos, (uint64_t)dims, 4);
    for (int i = dims - 1; i >= 0; i--) { /* GGUF lists the innermost dimension first */
        put_le(&w->infos, (uint64_t)shape[i], 8);
    }
    put_le(&w->infos, (uint64_t)f->ggml_type, 4);
    put_le(&w->infos, w->out.tensors[w->out.count - 1].offset, 8);
    return check_memory(w);
}

static bool write_header(sl_gguf_writer *w) {
    sl_buf head = {0};
    sl_buf_puts(&head, "GGUF");
    put_le(&head, 3, 4);
    put_le(&head, w->out.count, 8);
    put_le(&head, w->key_count, 8);
    sl_buf_append(&head, w->keys.data ? w->keys.data : "", w->keys.size);
    sl_buf_append(&head, w->infos.data ? w->infos.data : "", w->infos.size);
    while (head.size % ALIGNMENT != 0 && !head.failed) {
        sl_buf_append(&head, "", 1);
    }
    bool ok = (!head.failed && check_memory(w)) || out_fail(&w->out, SL_ERR_MEMORY, "out of memory for the header");
    ok = ok && out_write(&w->out, head.data, head.size) && out_begin_data(&w->out);
    sl_buf_free(&head);
    return ok;
}

bool sl_gguf_writer_data(sl_gguf_writer *w, const void *bytes, size_t n) {
    return (w->out.in_data || write_header(w)) && out_data(&w->out, bytes, n);
}

bool sl_gguf_writer_finish(sl_gguf_writer *w, sl_error *err) {
    if (!w->out.in_data) {
        write_header(w);
    }
    return out_finish(&w->out, err);
}

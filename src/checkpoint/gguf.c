/* GGUF's header: "GGUF", u32 version, u64 tensors, u64 keys, the keys with typed values, the tensors' names, shapes,
 * types and offsets; then the data, one tensor after the other, each aligned. Versions 2 and 3, little-endian.
 *
 * Parsed from memory. Each count is checked against what the file could hold before anything is allocated for it, and
 * allocations follow the bytes at hand, so a hostile count costs nothing. */
#include "checkpoint/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIXED_HEADER = 24,  /* magic, version, two counts */
    LEAST_KEY = 14,     /* length, one letter, u32 type, u8 value */
    LEAST_TENSOR = 33,  /* length, one letter, u32 dimensions, one u64, u32 type, u64 offset */
    NAME_LIMIT = 65535, /* the format's own, for keys; for tensors it says 64, which writers exceed */
    NESTING_LIMIT = 4,  /* arrays in arrays */
    DEFAULT_ALIGNMENT = 32,
    ALIGNMENT_LIMIT = 1 << 20
};

/* ---- cursor --------------------------------------------------------------------------------------------------------
 */

/* The error of a read beyond the bytes at hand is formed only when the file has no more either; else `need` says how
 * many bytes from the file's beginning would do. */
typedef struct cursor {
    const uint8_t *bytes;
    uint64_t n, pos, file_size, need;
    const char *path;
    sl_error *err;
} cursor;

/* Bytes of a name that an error shows: a hostile one must not push the rest of the line out. */
static int shown(const sl_str *name) {
    return name->n < 200 ? (int)name->n : 200;
}

/* The next k bytes, or NULL. */
static const uint8_t *take(cursor *c, uint64_t k, const char *what) {
    if (k > c->file_size - c->pos) {
        sl_fail(c->err, SL_ERR_FORMAT,
                "%s: offset %" PRIu64 ": %s needs %" PRIu64 " bytes, but the file ends at %" PRIu64 " (truncated?)",
                c->path, c->pos, what, k, c->file_size);
        return NULL;
    }
    if (k > c->n - c->pos) {
        c->need = c->pos + k;
        return NULL;
    }
    const uint8_t *p = c->bytes + c->pos;
    c->pos += k;
    return p;
}

static uint64_t load(const uint8_t *p, uint32_t size) {
    uint64_t v = 0;
    for (uint32_t i = size; i-- > 0;) {
        v = v << 8 | p[i];
    }
    return v;
}

static bool take_u32(cursor *c, const char *what, uint32_t *out) {
    const uint8_t *p = take(c, 4, what);
    *out = p ? (uint32_t)load(p, 4) : 0;
    return p != NULL;
}

static bool take_u64(cursor *c, const char *what, uint64_t *out) {
    const uint8_t *p = take(c, 8, what);
    *out = p ? load(p, 8) : 0;
    return p != NULL;
}

static bool take_string(cursor *c, const char *what, sl_str *out) {
    uint64_t n;
    const uint8_t *p = take_u64(c, what, &n) ? take(c, n, what) : NULL;
    *out = (sl_str){.p = (const char *)p, .n = (size_t)n};
    return p != NULL;
}

/* A key or tensor name: some bytes, not too many, none of them NUL. */
static bool take_name(cursor *c, const char *what, sl_str *out) {
    uint64_t at = c->pos;
    if (!take_string(c, what, out)) {
        return false;
    }
    if (out->n == 0 || out->n > NAME_LIMIT || memchr(out->p, 0, out->n)) {
        return sl_fail(c->err, SL_ERR_FORMAT,
                       "%s: offset %" PRIu64 ": %s of %zu bytes, expected 1 to %d, none of them zero", c->path, at,
                       what, out->n, NAME_LIMIT);
    }
    return true;
}

/* ---- values --------------------------------------------------------------------------------------------------------
 */

uint32_t gguf_value_size(uint32_t type) {
    static const uint8_t size[GGUF_TYPE_COUNT] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
        [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
    };
    return type < GGUF_TYPE_COUNT ? size[type] : 0;
}

/* "value of key NAME", short enough for an error. */
static const char *value_of(const gguf_kv *kv, char out[96]) {
    size_t n = kv->key.n < 64 ? kv->key.n : 64;
    snprintf(out, 96, "value of key \"%.*s\"", (int)n, kv->key.p);
    return out;
}

static bool fail_value(const cursor *c, uint64_t offset, const gguf_kv *kv, const char *what, uint64_t found) {
    char value[96];
    return sl_fail(c->err, SL_ERR_FORMAT, "%s: offset %" PRIu64 ": %s: %s %" PRIu64, c->path, offset,
                   value_of(kv, value), what, found);
}

static bool check_bools(const cursor *c, const gguf_kv *kv, const uint8_t *p, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if (p[i] > 1) {
            return fail_value(c, (uint64_t)(p - c->bytes) + i, kv, "expected 0 or 1 for a bool, found", p[i]);
        }
    }
    return true;
}

static bool take_numbers(cursor *c, const gguf_kv *kv, uint32_t type, uint64_t count, const uint8_t **out) {
    char value[96];
    uint64_t bytes;
    if (!sl_mul_u64(count, gguf_value_size(type), &bytes)) {
        return fail_value(c, c->pos, kv, "array is too long for any file:", count);
    }
    *out = take(c, bytes, value_of(kv, value));
    return *out && (type != GGUF_BOOL || check_bools(c, kv, *out, count));
}

static bool skip_strings(cursor *c, const gguf_kv *kv, uint64_t count, sl_str *out) {
    char value[96];
    value_of(kv, value);
    sl_str s;
    for (uint64_t i = 0; i < count; i++) {
        if (!take_string(c, value, &s)) {
            return false;
        }
        if (out) {
            out[i] = s;
        }
    }
    return true;
}

/* An array of strings at the top: kept as a table, which is as large as the lengths in the file allow. */
static bool take_string_table(cursor *c, gguf_kv *kv, uint64_t count) {
    char value[96];
    uint64_t least, at = c->pos;
    if (!sl_mul_u64(count, 8, &least)) {
        return fail_value(c, c->pos, kv, "array is too long for any file:", count);
    }
    if (!take(c, least, value_of(kv, value))) { /* each has a length at least: are so many bytes there? */
        return false;
    }
    c->pos = at;
    kv->strings = malloc((size_t)(count + 1) * sizeof *kv->strings);
    if (!kv->strings) {
        return sl_fail(c->err, SL_ERR_MEMORY, "%s: out of memory for %" PRIu64 " strings", c->path, count);
    }
    kv->array.strings = kv->strings;
    return skip_strings(c, kv, count, kv->strings);
}

static bool take_array(cursor *c, gguf_kv *kv, int depth);

/* The elements of an array at `depth` (0: the key's own value). */
static bool take_elements(cursor *c, gguf_kv *kv, uint32_t type, uint64_t count, int depth) {
    const uint8_t *p;
    if (type == GGUF_STRING) {
        return depth == 0 ? take_string_table(c, kv, count) : skip_strings(c, kv, count, NULL);
    }
    if (type != GGUF_ARRAY) {
        return take_numbers(c, kv, type, count, &p);
    }
    for (uint64_t i = 0; i < count; i++) { /* 12 bytes each at least, so this ends with the file */
        if (!take_array(c, kv, depth + 1)) {
            return false;
        }
    }
    return true;
}

static bool take_array(cursor *c, gguf_kv *kv, int depth) {
    char value[96];
    uint32_t type;
    uint64_t count, at = c->pos;
    value_of(kv, value);
    if (!take_u32(c, value, &type) || !take_u64(c, value, &count)) {
        return false;
    }
    if (type >= GGUF_TYPE_COUNT) {
        return fail_value(c, at, kv, "expected an element type from 0 to 12, found", type);
    }
    if (depth >= NESTING_LIMIT) {
        return fail_value(c, at, kv, "arrays in arrays, more than", NESTING_LIMIT);
    }
    if (depth == 0) {
        kv->array = (sl_gguf_array){.type = type, .count = count, .bytes = c->bytes + c->pos};
    }
    return take_elements(c, kv, type, count, depth);
}

static bool take_value(cursor *c, gguf_kv *kv) {
    char value[96];
    if (kv->type == GGUF_STRING) {
        return take_string(c, value_of(kv, value), &kv->string);
    }
    return kv->type == GGUF_ARRAY ? take_array(c, kv, 0) : take_numbers(c, kv, kv->type, 1, &kv->number);
}

/* ---- keys
 * ------------------------------------------------------------------------------------------------------------ */

static bool take_key(cursor *c, sl_gguf *g) {
    uint64_t at = c->pos;
    gguf_kv *kv = &g->kv[g->kv_count];
    *kv = (gguf_kv){0};
    if (!take_name(c, "key", &kv->key) || !take_u32(c, "type of a value", &kv->type)) {
        return false;
    }
    if (kv->type >= GGUF_TYPE_COUNT) {
        return fail_value(c, c->pos - 4, kv, "expected a type from 0 to 12, found", kv->type);
    }
    if (ckpt_names_find(&g->keys, kv->key.p, kv->key.n) != CKPT_NONE) {
        return fail_value(c, at, kv, "duplicate key, number", g->kv_count);
    }
    if (!ckpt_names_add(&g->keys, kv->key.p, kv->key.n, g->kv_count)) {
        return sl_fail(c->err, SL_ERR_MEMORY, "%s: out of memory at key %zu", c->path, g->kv_count);
    }
    g->kv_count++; /* owns what its value allocates */
    return take_value(c, kv);
}

static bool take_keys(cursor *c, sl_gguf *g, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        void *kv = g->kv;
        bool room = sl_grow(&kv, &g->kv_capacity, g->kv_count + 1, sizeof *g->kv);
        g->kv = kv;
        if (!room) {
            return sl_fail(c->err, SL_ERR_MEMORY, "%s: out of memory at key %zu", c->path, g->kv_count);
        }
        if (!take_key(c, g)) {
            return false;
        }
    }
    return true;
}

static bool find_alignment(const cursor *c, sl_gguf *g) {
    const gguf_kv *kv = gguf_find(g, "general.alignment");
    g->alignment = DEFAULT_ALIGNMENT;
    if (!kv) {
        return true;
    }
    uint64_t v = kv->type == GGUF_U32 ? load(kv->number, 4) : 0;
    if (v == 0 || (v & (v - 1)) != 0 || v > ALIGNMENT_LIMIT) {
        return sl_fail(c->err, SL_ERR_FORMAT,
                       "%s: key \"general.alignment\": type %" PRIu32 ", value %" PRIu64
                       ", expected a u32 power of two up to %d",
                       c->path, kv->type, v, ALIGNMENT_LIMIT);
    }
    g->alignment = v;
    return true;
}

/* ---- tensors
 * ---------------------------------------------------------------------------------------------------------- */

static bool fail_tensor(const cursor *c, const gguf_tensor *t, uint64_t at, const char *what, uint64_t found,
                        const char *expected) {
    return sl_fail(c->err, SL_ERR_FORMAT, "%s: offset %" PRIu64 ": tensor \"%.*s\": %s %" PRIu64 ", expected %s",
                   c->path, at, shown(&t->name), t->name.p, what, found, expected);
}

/* GGUF lists the innermost dimension first. */
static bool take_shape(cursor *c, gguf_tensor *t) {
    uint32_t dims;
    uint64_t at = c->pos, size;
    if (!take_u32(c, "number of dimensions", &dims)) {
        return false;
    }
    if (dims < 1 || dims > SL_MAX_DIMS) {
        return fail_tensor(c, t, at, "dimensions:", dims, "1 to 4");
    }
    t->dims = (int32_t)dims;
    for (int32_t i = t->dims - 1; i >= 0; i--) {
        at = c->pos;
        if (!take_u64(c, "shape", &size)) {
            return false;
        }
        if (size < 1 || size > INT64_MAX) {
            return fail_tensor(c, t, at, "dimension of size", size, "1 to 2^63 - 1");
        }
        t->shape[i] = (int64_t)size;
    }
    return true;
}

static bool take_type(cursor *c, gguf_tensor *t) {
    uint32_t type;
    uint64_t at = c->pos;
    if (!take_u32(c, "type of a tensor", &type)) {
        return false;
    }
    int32_t number = type <= INT32_MAX ? (int32_t)type : -1;
    if (sl_format_by_ggml_type(number, &t->format)) {
        return true;
    }
    const char *name = sl_ggml_type_name(number);
    return sl_fail(c->err, SL_ERR_UNSUPPORTED,
                   "%s: offset %" PRIu64 ": tensor \"%.*s\": type %" PRIu32 " (%s) is not built in", c->path, at,
                   shown(&t->name), t->name.p, type, name ? name : "unknown");
}

/* Bytes from shape and format. */
static bool find_bytes(const cursor *c, gguf_tensor *t) {
    const sl_format *f = sl_format_get(t->format);
    uint64_t cols = (uint64_t)t->shape[t->dims - 1], elements = cols;
    if (cols % f->block_weights != 0) {
        return sl_fail(c->err, SL_ERR_FORMAT,
                       "%s: tensor \"%.*s\": rows of %" PRIu64 " weights, expected a multiple of %" PRIu32 " for %s",
                       c->path, shown(&t->name), t->name.p, cols, f->block_weights, f->name);
    }
    for (int32_t i = 0; i < t->dims - 1; i++) {
        if (!sl_mul_u64(elements, (uint64_t)t->shape[i], &elements)) {
            return fail_tensor(c, t, c->pos, "shape overflows 64 bits at dimension", (uint64_t)i, "less");
        }
    }
    if (!sl_mul_u64(elements / f->block_weights, f->block_bytes, &t->bytes) || elements > INT64_MAX) {
        return fail_tensor(c, t, c->pos, "elements overflow 64 bits:", elements, "less");
    }
    return true;
}

static bool take_tensor(cursor *c, sl_gguf *g) {
    uint64_t at = c->pos;
    gguf_tensor *t = &g->tensors[g->tensor_count];
    *t = (gguf_tensor){0};
    if (!take_name(c, "tensor name", &t->name)) {
        return false;
    }
    if (ckpt_names_find(&g->names, t->name.p, t->name.n) != CKPT_NONE) {
        return fail_tensor(c, t, at, "duplicate name, tensor number", g->tensor_count, "each name once");
    }
    if (!ckpt_names_add(&g->names, t->name.p, t->name.n, g->tensor_count)) {
        return sl_fail(c->err, SL_ERR_MEMORY, "%s: out of memory at tensor %zu", c->path, g->tensor_count);
    }
    if (!take_shape(c, t) || !take_type(c, t) || !find_bytes(c, t)) {
        return false;
    }
    at = c->pos;
    if (!take_u64(c, "offset of a tensor", &t->offset)) {
        return false;
    }
    if (t->offset % g->alignment != 0) {
        char expected[48];
        snprintf(expected, sizeof expected, "a multiple of %" PRIu64, g->alignment);
        return fail_tensor(c, t, at, "data offset", t->offset, expected);
    }
    g->tensor_count++;
    return true;
}

static bool take_tensors(cursor *c, sl_gguf *g, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        void *tensors = g->tensors;
        bool room = sl_grow(&tensors, &g->tensor_capacity, g->tensor_count + 1, sizeof *g->tensors);
        g->tensors = tensors;
        if (!room) {
            return sl_fail(c->err, SL_ERR_MEMORY, "%s: out of memory at tensor %zu", c->path, g->tensor_count);
        }
        if (!take_tensor(c, g)) {
            return false;
        }
    }
    return true;
}

/* ---- placing the data
 * -------------------------------------------------------------------------------------------------- */

/* Makes offsets count from the file's beginning; each tensor must end inside the file, which they cover without a gap
 * but for the alignment. */
static bool place_tensor(const cursor *c, const sl_gguf *g, gguf_tensor *t) {
    uint64_t begin, end;
    if (!sl_add_u64(t->offset, g->data_offset, &begin) || !sl_add_u64(begin, t->bytes, &end) || end > c->file_size) {
        return sl_fail(c->err, SL_ERR_FORMAT,
                       "%s: tensor \"%.*s\": %" PRIu64 " bytes at %" PRIu64 " + %" PRIu64
                       ", but the file ends at %" PRIu64 " (truncated?)",
                       c->path, shown(&t->name), t->name.p, t->bytes, g->data_offset, t->offset, c->file_size);
    }
    t->offset = begin;
    return true;
}

/* The tensor after `before` (NULL: the first) begins where that one ends, but for the padding: anything else means that
 * a record's type, shape or offset is not what was written. */
static bool check_follows(const cursor *c, const sl_gguf *g, const gguf_tensor *before, const gguf_tensor *t) {
    uint64_t end = before ? before->offset + before->bytes : g->data_offset;
    if (before && t->offset < end)
        return sl_fail(c->err, SL_ERR_FORMAT,
                       "%s: tensor \"%.*s\": begins at %" PRIu64 ", inside tensor \"%.*s\" that ends at %" PRIu64,
                       c->path, shown(&t->name), t->name.p, t->offset, shown(&before->name), before->name.p, end);
    uint64_t expected = sl_round_up(end, g->alignment);
    if (t->offset != expected)
        return sl_fail(c->err, SL_ERR_FORMAT,
                       "%s: tensor \"%.*s\": begins at %" PRIu64 ", expected %" PRIu64
                       ", where %s%.*s%s ends (a damaged type, shape or offset?)",
                       c->path, shown(&t->name), t->name.p, t->offset, expected, before ? "tensor \"" : "the header",
                       before ? shown(&before->name) : 0, before ? before->name.p : "", before ? "\"" : "");
    return true;
}

/* The file ends with its last tensor, or with the padding behind it. */
static bool check_end(const cursor *c, const sl_gguf *g, const gguf_tensor *last) {
    uint64_t end = last->offset + last->bytes;
    return c->file_size <= sl_round_up(end, g->alignment) ||
           sl_fail(c->err, SL_ERR_FORMAT,
                   "%s: tensor \"%.*s\": the last one, ends at %" PRIu64 ", but the file ends at %" PRIu64
                   " (a damaged type or shape?)",
                   c->path, shown(&last->name), last->name.p, end, c->file_size);
}

static bool check_cover(const cursor *c, const sl_gguf *g, ckpt_span *span) {
    const gguf_tensor *before = NULL;
    for (size_t i = 0; i < g->tensor_count; i++) {
        const gguf_tensor *t = &g->tensors[i];
        span[i] = (ckpt_span){.begin = t->offset, .end = t->offset + t->bytes, .index = i};
    }
    ckpt_spans_sort(span, g->tensor_count);
    for (size_t i = 0; i < g->tensor_count; i++) {
        const gguf_tensor *t = &g->tensors[span[i].index];
        if (!check_follows(c, g, before, t)) {
            return false;
        }
        before = t;
    }
    return !before || check_end(c, g, before);
}

static bool place_tensors(const cursor *c, sl_gguf *g) {
    g->header_bytes = c->pos;
    g->data_offset = sl_round_up(c->pos, g->alignment);
    for (size_t i = 0; i < g->tensor_count; i++) {
        if (!place_tensor(c, g, &g->tensors[i])) {
            return false;
        }
    }
    ckpt_span *span = malloc((g->tensor_count + 1) * sizeof *span);
    if (!span) {
        return sl_fail(c->err, SL_ERR_MEMORY, "%s: out of memory for %zu tensors", c->path, g->tensor_count);
    }
    bool ok = check_cover(c, g, span);
    free(span);
    return ok;
}

/* ---- the whole header
 * ---------------------------------------------------------------------------------------------------- */

static bool take_version(cursor *c, sl_gguf *g) {
    const uint8_t *magic = take(c, 4, "magic");
    if (!magic) {
        return false;
    }
    if (memcmp(magic, "GGUF", 4) != 0) {
        return sl_fail(c->err, SL_ERR_FORMAT,
                       "%s: offset 0: magic %02x %02x %02x %02x, expected 47 47 55 46 (\"GGUF\")", c->path, magic[0],
                       magic[1], magic[2], magic[3]);
    }
    if (!take_u32(c, "version", &g->version)) {
        return false;
    }
    if (g->version != 0 && (g->version & 0xffff) == 0) {
        return sl_fail(c->err, SL_ERR_UNSUPPORTED,
                       "%s: offset 4: version %#" PRIx32 ": a big-endian GGUF file, expected little-endian", c->path,
                       g->version);
    }
    if (g->version != 2 && g->version != 3) {
        return sl_fail(c->err, SL_ERR_UNSUPPORTED, "%s: offset 4: GGUF version %" PRIu32 ", expected 2 or 3", c->path,
                       g->version);
    }
    return true;
}

static bool check_count(const cursor *c, uint64_t offset, const char *what, uint64_t count, uint64_t least) {
    uint64_t most = (c->file_size - FIXED_HEADER) / least;
    return count <= most || sl_fail(c->err, SL_ERR_FORMAT,
                                    "%s: offset %" PRIu64 ": %" PRIu64 " %s, but the file ends at %" PRIu64
                                    " and can hold at most %" PRIu64 " (truncated?)",
                                    c->path, offset, count, what, c->file_size, most);
}

static bool take_counts(cursor *c, uint64_t *tensors, uint64_t *keys) {
    return take_u64(c, "number of tensors", tensors) && take_u64(c, "number of keys", keys) &&
           check_count(c, 8, "tensors", *tensors, LEAST_TENSOR) && check_count(c, 16, "keys", *keys, LEAST_KEY);
}

static bool parse(cursor *c, sl_gguf *g) {
    uint64_t tensors, keys;
    if (!take_version(c, g) || !take_counts(c, &tensors, &keys) || !take_keys(c, g, keys) || !find_alignment(c, g)) {
        return false;
    }
    g->keys_end = c->pos;
    return take_tensors(c, g, tensors) && place_tensors(c, g);
}

sl_gguf *gguf_parse(const uint8_t *bytes, uint64_t n, uint64_t file_size, const char *path, uint64_t *need,
                    sl_error *err) {
    cursor c = {.bytes = bytes, .n = n < file_size ? n : file_size, .file_size = file_size, .path = path, .err = err};
    sl_gguf *g = calloc(1, sizeof *g);
    *need = 0;
    if (!g) {
        return sl_fail_null(err, SL_ERR_MEMORY, "%s: out of memory", path);
    }
    if (!parse(&c, g)) {
        sl_gguf_free(g);
        *need = c.need;
        return NULL;
    }
    return g;
}

sl_gguf *sl_gguf_parse(const uint8_t *bytes, uint64_t n, uint64_t file_size, const char *path, sl_error *err) {
    uint64_t need;
    sl_gguf *g = gguf_parse(bytes, n, file_size, path, &need, err);
    if (!g && need > 0) {
        sl_fail(err, SL_ERR_FORMAT, "%s: header needs at least %" PRIu64 " bytes, %" PRIu64 " given", path, need, n);
    }
    return g;
}

void sl_gguf_free(sl_gguf *g) {
    if (!g) {
        return;
    }
    for (size_t i = 0; i < g->kv_count; i++) {
        free(g->kv[i].strings);
    }
    ckpt_names_free(&g->keys);
    ckpt_names_free(&g->names);
    free(g->kv);
    free(g->tensors);
    free(g->owned);
    free(g);
}

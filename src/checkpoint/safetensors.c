/* safetensors: u64 length, that many bytes of JSON {name: {dtype, shape, data_offsets}}, then the data.
 *
 * As the format demands, the data is covered by tensors without overlap, gap or rest; so a truncated file is found here
 * and not at the first read. Offsets in the JSON count from the data's beginning; ours from the file's. */
#include "checkpoint/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_LIMIT 100000000u /* the format's own */

static const ckpt_dtype dtypes[] = {
    {"F32", 32}, {"F16", 16},    {"BF16", 16},   {"U32", 32},    {"I32", 32},        {"I64", 64},
    {"U8", 8},   {"I8", 8},      {"BOOL", 8},    {"U16", 16},    {"I16", 16},        {"U64", 64},
    {"F64", 64}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
    {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"C64", 64},
};

static const ckpt_dtype *find_dtype(const char *name) {
    for (size_t i = 0; name && i < SL_COUNT(dtypes); i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            return &dtypes[i];
        }
    }
    return NULL;
}

uint32_t safetensors_dtype_bits(const char *dtype) {
    const ckpt_dtype *row = find_dtype(dtype);
    return row ? row->bits : 0;
}

static uint64_t load_u64(const uint8_t *p) {
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) {
        v = v << 8 | p[i];
    }
    return v;
}

uint64_t safetensors_header_size(const uint8_t first[8], uint64_t file_size, const char *path, sl_error *err) {
    uint64_t n = load_u64(first);
    if (n > HEADER_LIMIT) {
        sl_fail(err, SL_ERR_FORMAT,
                "%s: offset 0: header length %" PRIu64 ", expected at most %u (is this a safetensors file?)", path, n,
                HEADER_LIMIT);
        return 0;
    }
    if (n > file_size - 8) {
        sl_fail(err, SL_ERR_FORMAT,
                "%s: offset 8: header of %" PRIu64 " bytes, but the file ends at %" PRIu64 " (truncated?)", path, n,
                file_size);
        return 0;
    }
    return 8 + n;
}

static bool bad_entry(sl_error *err, const char *path, const char *name, const char *what) {
    return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\": %s", path, name, what);
}

static bool parse_dtype(const json_t *entry, const char *path, ckpt_raw *t, sl_error *err) {
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype) {
        return bad_entry(err, path, t->name, "no \"dtype\" string");
    }
    t->dtype = find_dtype(dtype);
    if (!t->dtype) {
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: tensor \"%s\": unknown dtype \"%s\"", path, t->name, dtype);
    }
    return true;
}

static bool parse_shape(const json_t *entry, const char *path, ckpt_raw *t, sl_error *err) {
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape)) {
        return bad_entry(err, path, t->name, "no \"shape\" array");
    }
    if (json_array_size(shape) > CKPT_RAW_DIMS) {
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\": %zu dimensions, expected at most %d", path, t->name,
                       json_array_size(shape), CKPT_RAW_DIMS);
    }
    t->dims = (int32_t)json_array_size(shape);
    for (int32_t i = 0; i < t->dims; i++) {
        const json_t *v = json_array_get(shape, (size_t)i);
        t->shape[i] = json_integer_value(v);
        if (!json_is_integer(v) || t->shape[i] < 0) {
            return bad_entry(err, path, t->name, "\"shape\" holds something other than non-negative integers");
        }
    }
    return true;
}

/* Bytes that dtype and shape ask for. */
static bool shape_bytes(const ckpt_raw *t, const char *path, uint64_t *out, sl_error *err) {
    uint64_t n = t->dtype->bits;
    for (int32_t i = 0; i < t->dims; i++) {
        if (!sl_mul_u64(n, (uint64_t)t->shape[i], &n)) {
            return bad_entry(err, path, t->name, "shape overflows 64 bits");
        }
    }
    if (n % 8 != 0) {
        return bad_entry(err, path, t->name, "shape does not fill whole bytes");
    }
    *out = n / 8;
    return true;
}

static bool parse_offsets(const json_t *entry, uint64_t data_bytes, const char *path, ckpt_raw *t, sl_error *err) {
    const json_t *pair = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(pair, 0), *second = json_array_get(pair, 1);
    int64_t begin = json_integer_value(first), end = json_integer_value(second);
    if (json_array_size(pair) != 2 || !json_is_integer(first) || !json_is_integer(second) || begin < 0 || end < begin) {
        return bad_entry(err, path, t->name, "\"data_offsets\" is not [begin, end] with 0 <= begin <= end");
    }
    if ((uint64_t)end > data_bytes) {
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: tensor \"%s\": ends at data offset %" PRId64 ", but the file has %" PRIu64
                       " bytes of data (truncated?)",
                       path, t->name, end, data_bytes);
    }
    uint64_t expected = 0;
    if (!shape_bytes(t, path, &expected, err)) {
        return false;
    }
    t->at.offset = (uint64_t)begin;
    t->at.bytes = (uint64_t)(end - begin);
    if (t->at.bytes != expected) {
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: tensor \"%s\": %" PRIu64 " bytes at data offset %" PRId64 ", expected %" PRIu64
                       " for its shape as %s",
                       path, t->name, t->at.bytes, begin, expected, t->dtype->name);
    }
    return true;
}

static bool parse_entry(sl_safetensors *s, const char *name, const json_t *entry, uint64_t data_bytes, const char *path,
                        sl_error *err) {
    if (!json_is_object(entry)) {
        return bad_entry(err, path, name, "its entry is not a JSON object");
    }
    ckpt_raw *t = &s->tensors[s->count];
    t->name = sl_strdup(name);
    if (!t->name) {
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory at tensor \"%s\"", path, name);
    }
    s->count++;
    return parse_dtype(entry, path, t, err) && parse_shape(entry, path, t, err) &&
           parse_offsets(entry, data_bytes, path, t, err);
}

/* Puts the tensors in the order of their bytes and makes offsets count from the file's beginning. */
static bool place_tensors(sl_safetensors *s, const ckpt_span *span, sl_error *err, const char *path) {
    ckpt_raw *sorted = calloc(s->count + 1, sizeof *sorted);
    if (!sorted) {
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for %zu tensors", path, s->count);
    }
    for (size_t i = 0; i < s->count; i++) {
        sorted[i] = s->tensors[span[i].index];
        sorted[i].at.offset += s->data_offset;
    }
    free(s->tensors);
    s->tensors = sorted;
    return true;
}

/* Every byte of the data belongs to exactly one tensor. */
static bool check_cover(const sl_safetensors *s, const ckpt_span *span, uint64_t data_bytes, const char *path,
                        sl_error *err) {
    uint64_t end = 0;
    for (size_t i = 0; i < s->count; i++) {
        const char *name = s->tensors[span[i].index].name;
        if (span[i].begin < end) {
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s: tensor \"%s\": begins at data offset %" PRIu64
                           ", inside tensor \"%s\" that ends at %" PRIu64,
                           path, name, span[i].begin, s->tensors[span[i - 1].index].name, end);
        }
        if (span[i].begin > end) {
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s: tensor \"%s\": begins at data offset %" PRIu64 ", expected %" PRIu64 " (a gap)", path,
                           name, span[i].begin, end);
        }
        end = span[i].end;
    }
    if (end != data_bytes) {
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: the tensors end at data offset %" PRIu64 ", but the file has %" PRIu64 " bytes of data",
                       path, end, data_bytes);
    }
    return true;
}

static bool arrange(sl_safetensors *s, uint64_t data_bytes, const char *path, sl_error *err) {
    ckpt_span *span = malloc((s->count + 1) * sizeof *span);
    if (!span) {
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for %zu tensors", path, s->count);
    }
    for (size_t i = 0; i < s->count; i++) {
        const sl_extent *at = &s->tensors[i].at;
        span[i] = (ckpt_span){.begin = at->offset, .end = at->offset + at->bytes, .index = i};
    }
    ckpt_spans_sort(span, s->count);
    bool ok = check_cover(s, span, data_bytes, path, err) && place_tensors(s, span, err, path);
    free(span);
    return ok;
}

static bool parse_tensors(sl_safetensors *s, json_t *root, uint64_t data_bytes, const char *path, sl_error *err) {
    s->tensors = calloc(json_object_size(root) + 1, sizeof *s->tensors);
    if (!s->tensors) {
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for %zu tensors", path, json_object_size(root));
    }
    const char *name;
    json_t *entry;
    json_object_foreach(root, name, entry) {
        if (strcmp(name, "__metadata__") != 0 && !parse_entry(s, name, entry, data_bytes, path, err)) {
            return false;
        }
    }
    return arrange(s, data_bytes, path, err);
}

sl_safetensors *sl_safetensors_parse(const uint8_t *bytes, uint64_t n, uint64_t file_size, const char *path,
                                     sl_error *err) {
    if (n < 8 || file_size < n) {
        return sl_fail_null(err, SL_ERR_FORMAT, "%s: %" PRIu64 " bytes, expected at least 8 (a safetensors header)",
                            path, n);
    }
    uint64_t header = safetensors_header_size(bytes, file_size, path, err);
    if (header == 0) {
        return NULL;
    }
    if (header > n) {
        return sl_fail_null(err, SL_ERR_FORMAT, "%s: %" PRIu64 " bytes of a header of %" PRIu64, path, n, header);
    }
    json_t *root = ckpt_json_parse_strict((const char *)bytes + 8, (size_t)(header - 8), path, err);
    sl_safetensors *s = root ? calloc(1, sizeof *s) : NULL;
    if (root && !s) {
        sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    }
    if (s) {
        s->data_offset = header;
        if (!parse_tensors(s, root, file_size - header, path, err)) {
            sl_safetensors_free(s);
            s = NULL;
        }
    }
    json_decref(root);
    return s;
}

void sl_safetensors_free(sl_safetensors *s) {
    if (!s) {
        return;
    }
    for (size_t i = 0; i < s->count; i++) {
        free(s->tensors[i].name);
    }
    free(s->tensors);
    free(s);
}

sl_safetensors *safetensors_read(const sl_file *f, sl_error *err) {
    uint8_t first[8];
    if (f->size < 8) {
        return sl_fail_null(err, SL_ERR_FORMAT, "%s: %" PRIu64 " bytes, expected at least 8 (a safetensors header)",
                            f->path, f->size);
    }
    uint64_t header = sl_file_read(f, 0, first, 8, err) ? safetensors_header_size(first, f->size, f->path, err) : 0;
    if (header == 0) {
        return NULL;
    }
    uint8_t *bytes = malloc((size_t)header);
    if (!bytes) {
        return sl_fail_null(err, SL_ERR_MEMORY, "%s: out of memory for a header of %" PRIu64 " bytes", f->path, header);
    }
    sl_safetensors *s = NULL;
    if (sl_file_read(f, 0, bytes, header, err)) {
        s = sl_safetensors_parse(bytes, header, f->size, f->path, err);
    }
    free(bytes);
    return s;
}

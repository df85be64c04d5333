/* pack.json: text to struct and back. The text's own checksum makes any change of it an error; the fields are checked
 * all the same, because whoever changes them can compute that, too. */
#include "checkpoint/pack_doc.h"

#define XXH_INLINE_ALL
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define JSON_LIMIT (256ull << 20)
#define FILE_LIMIT ((uint64_t)INT64_MAX / 4)

static const char *const proj_names[3] = {"gate", "up", "down"};
static const struct {
    const char *name;
    sl_ckpt_kind kind;
} kinds[] = {{"huggingface", SL_CKPT_HF}, {"gguf", SL_CKPT_GGUF}};

uint64_t sl_pack_sum(const void *bytes, size_t n) {
    return XXH3_64bits(bytes, n);
}

void pack_doc_note(pack *p) {
    p->note[0] = 0;
    if (p->affine.bits > 0) {
        snprintf(p->note, sizeof p->note, "experts requantised to %d bits in groups of %d%s", (int)p->affine.bits,
                 (int)p->affine.group, p->affine.calibration ? ", calibrated" : "");
    }
}

bool pack_tensor_matrix(const sl_tensor *t, sl_matrix *out, sl_error *err) {
    sl_tensor flat = *t;
    if (t->dims == 1 || t->dims == 2) {
        return sl_tensor_matrix(t, out, err);
    }
    flat.dims = 2;
    flat.shape[0] = 1;
    flat.shape[1] = t->dims ? t->shape[t->dims - 1] : 1;
    for (int32_t i = 0; i + 1 < t->dims; i++) {
        flat.shape[0] *= t->shape[i];
    }
    return sl_tensor_matrix(&flat, out, err);
}

/* ---- writing ------------------------------------------------------------------------------------------------------
 */

#define SUM_ZERO "0000000000000000"

static void put_string(sl_buf *b, const char *s) {
    json_t *j = json_string(s);
    char *text = j ? json_dumps(j, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
    sl_buf_puts(b, text ? text : "null");
    free(text);
    json_decref(j);
}

static void put_sum(sl_buf *b, uint64_t sum) {
    sl_buf_printf(b, "\"%016" PRIx64 "\"", sum);
}

/* What follows "{" or a name: format, shape, parts. */
static void put_layout(sl_buf *b, const sl_tensor *t) {
    sl_buf_printf(b, "\"format\": \"%s\"", sl_format_get(t->format)->name);
    if (t->group) {
        sl_buf_printf(b, ", \"group\": %d, \"side\": \"%s\"", (int)t->group, sl_format_get(t->side)->name);
    }
    sl_buf_puts(b, ", \"shape\": [");
    for (int32_t i = 0; i < t->dims; i++) {
        sl_buf_printf(b, "%s%" PRId64, i ? ", " : "", t->shape[i]);
    }
    sl_buf_puts(b, "], \"parts\": [");
    for (int32_t i = 0; i < t->parts; i++) {
        sl_buf_printf(b, "%s[%" PRIu64 ", %" PRIu64 "]", i ? ", " : "", t->part[i].offset, t->part[i].bytes);
    }
    sl_buf_puts(b, "]");
}

static void put_source(sl_buf *b, const pack *p) {
    const char *kind = kinds[0].kind == p->kind ? kinds[0].name : kinds[1].name;
    sl_buf_printf(b, "\"source\": {\"kind\": \"%s\", \"fingerprint\": ", kind);
    put_sum(b, p->source.fingerprint);
    sl_buf_puts(b, ", \"files\": [");
    for (size_t i = 0; i < p->source.count; i++) {
        sl_buf_puts(b, i ? ", [" : "[");
        put_string(b, p->source.files[i].name);
        sl_buf_printf(b, ", %" PRIu64 "]", p->source.files[i].bytes);
    }
    sl_buf_puts(b, "]},\n");
    if (p->affine.bits) {
        sl_buf_printf(b, "\"requantised\": {\"bits\": %d, \"group\": %d, \"calibration\": ", (int)p->affine.bits,
                      (int)p->affine.group);
        put_sum(b, p->affine.calibration);
        sl_buf_puts(b, "},\n");
    }
}

static void put_sides(sl_buf *b, const pack *p, bool sums) {
    sl_buf_puts(b, "\"files\": [");
    for (size_t i = 0; i < p->side_count; i++) {
        sl_buf_puts(b, i ? ",\n[" : "\n[");
        put_string(b, p->sides[i].name);
        sl_buf_printf(b, ", %" PRIu64 ", ", p->sides[i].bytes);
        put_sum(b, sums ? p->sides[i].sum : 0);
        sl_buf_puts(b, "]");
    }
    sl_buf_puts(b, "],\n");
}

static void put_resident(sl_buf *b, const pack *p, bool sums) {
    sl_buf_printf(b, "\"resident\": {\"bytes\": %" PRIu64 ", \"tensors\": [", p->resident.bytes);
    for (size_t i = 0; i < p->resident.count; i++) {
        sl_buf_puts(b, i ? ",\n{\"name\": " : "\n{\"name\": ");
        put_string(b, p->tensors[i].name);
        sl_buf_puts(b, ", ");
        put_layout(b, &p->tensors[i]);
        sl_buf_puts(b, ", \"xxh3\": ");
        put_sum(b, sums ? p->resident.v[i].sum : 0);
        sl_buf_puts(b, "}");
    }
    sl_buf_puts(b, "]},\n");
}

static void put_layer(sl_buf *b, const pack_layer *l, bool sums) {
    sl_buf_printf(b, "{\"layer\": %d, \"file\": ", (int)l->layer);
    put_string(b, l->file.name);
    sl_buf_printf(b, ", \"bytes\": %" PRIu64, l->file.bytes);
    for (int i = 0; i < 3; i++) {
        sl_buf_printf(b, ",\n\"%s\": {", proj_names[i]);
        put_layout(b, &l->packed.proj[i]);
        sl_buf_puts(b, "}");
    }
    sl_buf_puts(b, ",\n\"blobs\": [");
    for (size_t i = 0; i < l->file.count; i++) {
        const pack_unit *u = &l->file.v[i];
        sl_buf_printf(b, "%s[%" PRIu64 ", %" PRIu64 ", ", i ? "," : "", u->offset, u->bytes);
        put_sum(b, sums ? u->sum : 0);
        sl_buf_puts(b, "]");
    }
    sl_buf_puts(b, "]}");
}

bool pack_doc_seal(char *text, size_t n) {
    static const char field[] = "\"checksum\": \"";
    char digits[sizeof SUM_ZERO];
    char *place = strstr(text, field);
    if (!place || strlen(place) < strlen(field) + strlen(SUM_ZERO)) {
        return false;
    }
    place += strlen(field);
    memcpy(place, SUM_ZERO, strlen(SUM_ZERO));
    snprintf(digits, sizeof digits, "%016" PRIx64, sl_pack_sum(text, n));
    memcpy(place, digits, strlen(SUM_ZERO));
    return true;
}

char *pack_doc_write(const pack *p, bool sums, size_t *size) {
    sl_buf b = {0};
    sl_buf_printf(&b, "{\"sluice_pack\": %d, \"checksum\": \"" SUM_ZERO "\",\n", SL_PACK_VERSION);
    put_source(&b, p);
    put_sides(&b, p, sums);
    put_resident(&b, p, sums);
    sl_buf_puts(&b, "\"layers\": [");
    for (size_t i = 0; i < p->layer_count; i++) {
        sl_buf_puts(&b, i ? ",\n" : "\n");
        put_layer(&b, &p->layers[i], sums);
    }
    sl_buf_puts(&b, "]}\n");
    char *text = sl_buf_take(&b, size);
    if (text) {
        pack_doc_seal(text, *size);
    }
    return text;
}

/* ---- reading: fields ----------------------------------------------------------------------------------------------
 */

/* A document being read; `where` says which object, for messages. */
typedef struct reader {
    const char *path;
    char where[160];
    sl_error *err;
} reader;

static bool bad(const reader *r, const char *field, const char *what) {
    return sl_fail(r->err, SL_ERR_FORMAT, "%s: %s%s%s: %s", r->path, r->where, *r->where && *field ? "." : "", field,
                   what);
}

static bool no_memory(const reader *r) {
    return sl_fail(r->err, SL_ERR_MEMORY, "%s: out of memory", r->path);
}

static bool get_number(const reader *r, const json_t *v, const char *field, uint64_t least, uint64_t most,
                       uint64_t *out) {
    char expected[96];
    json_int_t n = json_integer_value(v);
    if (json_is_integer(v) && n >= 0 && (uint64_t)n >= least && (uint64_t)n <= most) {
        *out = (uint64_t)n;
        return true;
    }
    snprintf(expected, sizeof expected, "%s, an integer from %" PRIu64 " to %" PRIu64 " expected",
             !v                    ? "missing"
             : !json_is_integer(v) ? "not an integer"
                                   : "out of range",
             least, most);
    return bad(r, field, expected);
}

static bool get_i32(const reader *r, const json_t *object, const char *field, int32_t least, int32_t most,
                    int32_t *out) {
    uint64_t v = 0;
    bool ok = get_number(r, json_object_get(object, field), field, (uint64_t)least, (uint64_t)most, &v);
    *out = (int32_t)v;
    return ok;
}

static bool parse_sum(const char *s, uint64_t *out) {
    if (!s || strlen(s) != 16 || strspn(s, "0123456789abcdef") != 16) {
        return false;
    }
    *out = strtoull(s, NULL, 16);
    return true;
}

static bool get_sum(const reader *r, const json_t *v, const char *field, uint64_t *out) {
    return parse_sum(json_string_value(v), out) || bad(r, field, "not a checksum of 16 hexadecimal digits");
}

/* A plain file name, allocated. */
static bool get_name(const reader *r, const json_t *v, const char *field, char **out) {
    const char *s = json_string_value(v);
    if (!ckpt_plain_name(s) || strcmp(s, PACK_JSON) == 0 || strlen(s) > 200) {
        return bad(r, field, "not the plain name of a file");
    }
    *out = sl_strdup(s);
    return *out || no_memory(r);
}

static bool get_array(const reader *r, const json_t *object, const char *field, size_t least, size_t most,
                      json_t **out) {
    char what[80];
    *out = json_object_get(object, field);
    size_t n = json_array_size(*out);
    if (json_is_array(*out) && n >= least && n <= most) {
        return true;
    }
    snprintf(what, sizeof what, "%s, a list of %zu to %zu expected",
             !*out                 ? "missing"
             : json_is_array(*out) ? "of a wrong length"
                                   : "not a list",
             least, most);
    return bad(r, field, what);
}

/* ---- reading: layouts ---------------------------------------------------------------------------------------------
 */

static bool get_format(const reader *r, const json_t *object, const char *field, sl_format_id *out) {
    const char *s = json_string_value(json_object_get(object, field));
    char what[80];
    snprintf(what, sizeof what, "\"%.40s\" is no format that is built in", s ? s : "");
    return (s && sl_format_by_name(s, out)) || bad(r, field, s ? what : "missing");
}

/* Rows and columns together stay below 2^48 weights, so that no product of them overflows. */
static bool get_shape(const reader *r, const json_t *object, sl_tensor *t) {
    json_t *shape;
    uint64_t elements = 1;
    if (!get_array(r, object, "shape", 0, SL_MAX_DIMS, &shape)) {
        return false;
    }
    t->dims = (int32_t)json_array_size(shape);
    for (int32_t i = 0; i < t->dims; i++) {
        uint64_t n;
        if (!get_number(r, json_array_get(shape, (size_t)i), "shape", 1, 1ull << 40, &n)) {
            return false;
        }
        t->shape[i] = (int64_t)n;
        if (!sl_mul_u64(elements, n, &elements) || elements > 1ull << 48) {
            return bad(r, "shape", "more than 2^48 weights");
        }
    }
    return true;
}

/* Parts ascend without overlap from `begin`; *end is where the last one ends. */
static bool get_parts(const reader *r, const json_t *object, uint64_t begin, sl_tensor *t, uint64_t *end) {
    json_t *parts;
    if (!get_array(r, object, "parts", 1, 3, &parts)) {
        return false;
    }
    t->parts = (int32_t)json_array_size(parts);
    for (int32_t i = 0; i < t->parts; i++) {
        json_t *pair = json_array_get(parts, (size_t)i);
        sl_extent *x = &t->part[i];
        if (json_array_size(pair) != 2 ||
            !get_number(r, json_array_get(pair, 0), "parts", begin, FILE_LIMIT, &x->offset) ||
            !get_number(r, json_array_get(pair, 1), "parts", 0, FILE_LIMIT, &x->bytes)) {
            return json_array_size(pair) == 2 ? false : bad(r, "parts", "not pairs of offset and length");
        }
        if (x->offset % SL_PACK_PART_ALIGN) {
            return bad(r, "parts", "an offset is no multiple of 256");
        }
        begin = x->offset + x->bytes;
    }
    *end = begin;
    return true;
}

/* Format, shape and parts that agree. */
static bool get_layout(const reader *r, const json_t *object, uint64_t begin, sl_tensor *t, uint64_t *end) {
    sl_matrix m;
    sl_error why = {0};
    if (!json_is_object(object)) {
        return bad(r, "", "not an object");
    }
    if (!get_format(r, object, "format", &t->format) || !get_shape(r, object, t) ||
        !get_parts(r, object, begin, t, end)) {
        return false;
    }
    if (json_object_get(object, "group") &&
        (!get_i32(r, object, "group", 1, 1 << 20, &t->group) || !get_format(r, object, "side", &t->side))) {
        return false;
    }
    if (t->parts != sl_format_get(t->format)->parts) {
        return bad(r, "parts", "not as many as the format has");
    }
    t->name = t->name ? t->name : "";
    return pack_tensor_matrix(t, &m, &why) || bad(r, "", why.message);
}

static bool check_unit(const reader *r, const pack_units *u, const pack_unit *unit, uint64_t after) {
    uint64_t end;
    if (unit->offset % SL_PACK_BLOB_ALIGN) {
        return bad(r, "", "begins at no multiple of 16384");
    }
    if (unit->offset < after) {
        return bad(r, "", "begins inside the one before it");
    }
    return (sl_add_u64(unit->offset, unit->bytes, &end) && end <= u->bytes) ||
           bad(r, "", "does not end inside its file");
}

/* ---- reading: the parts of the document ---------------------------------------------------------------------------
 */

static bool read_source(reader *r, const json_t *root, pack *p) {
    json_t *source = json_object_get(root, "source"), *files;
    const char *kind = json_string_value(json_object_get(source, "kind"));
    bool known = false;
    snprintf(r->where, sizeof r->where, "source");
    for (size_t i = 0; kind && i < SL_COUNT(kinds); i++) {
        if (strcmp(kind, kinds[i].name) == 0) {
            p->kind = kinds[i].kind;
            known = true;
        }
    }
    if (!known) {
        return bad(r, "kind", "huggingface or gguf expected");
    }
    if (!get_sum(r, json_object_get(source, "fingerprint"), "fingerprint", &p->source.fingerprint) ||
        !get_array(r, source, "files", 0, 1 << 20, &files)) {
        return false;
    }
    p->source.files = calloc(json_array_size(files) + 1, sizeof *p->source.files);
    if (!p->source.files) {
        return no_memory(r);
    }
    for (size_t i = 0; i < json_array_size(files); i++) {
        json_t *pair = json_array_get(files, i);
        pack_side *f = &p->source.files[p->source.count++];
        if (!get_name(r, json_array_get(pair, 0), "files", &f->name) ||
            !get_number(r, json_array_get(pair, 1), "files", 0, INT64_MAX, &f->bytes)) {
            return false;
        }
    }
    return true;
}

static bool read_affine(reader *r, const json_t *root, pack *p) {
    json_t *v = json_object_get(root, "requantised");
    snprintf(r->where, sizeof r->where, "requantised");
    if (v && (!get_i32(r, v, "bits", 2, 8, &p->affine.bits) || !get_i32(r, v, "group", 32, 128, &p->affine.group) ||
              !get_sum(r, json_object_get(v, "calibration"), "calibration", &p->affine.calibration))) {
        return false;
    }
    pack_doc_note(p);
    return true;
}

static bool read_sides(reader *r, const json_t *root, pack *p) {
    json_t *files;
    r->where[0] = 0;
    if (!get_array(r, root, "files", 0, 4096, &files)) {
        return false;
    }
    p->sides = calloc(json_array_size(files) + 1, sizeof *p->sides);
    if (!p->sides) {
        return no_memory(r);
    }
    for (size_t i = 0; i < json_array_size(files); i++) {
        json_t *triple = json_array_get(files, i);
        pack_side *s = &p->sides[p->side_count++];
        snprintf(r->where, sizeof r->where, "files[%zu]", i);
        if (!get_name(r, json_array_get(triple, 0), "", &s->name) ||
            !get_number(r, json_array_get(triple, 1), "", 0, CKPT_SIDE_FILE_LIMIT, &s->bytes) ||
            !get_sum(r, json_array_get(triple, 2), "", &s->sum)) {
            return false;
        }
    }
    return true;
}

static bool read_tensor(reader *r, const json_t *object, pack *p, size_t i) {
    const char *name = json_string_value(json_object_get(object, "name"));
    sl_tensor *t = &p->tensors[i];
    pack_unit *u = &p->resident.v[i];
    uint64_t end, after = i ? u[-1].offset + u[-1].bytes : 0;
    snprintf(r->where, sizeof r->where, "resident.tensors[%zu]", i);
    if (!name || !*name) {
        return bad(r, "name", "missing");
    }
    t->name = sl_strdup(name);
    if (!t->name) {
        return no_memory(r);
    }
    if (!get_layout(r, object, after, t, &end) || !get_sum(r, json_object_get(object, "xxh3"), "xxh3", &u->sum)) {
        return false;
    }
    u->offset = t->part[0].offset;
    u->bytes = end - u->offset;
    return check_unit(r, &p->resident, u, after);
}

static bool read_resident(reader *r, const json_t *root, pack *p) {
    json_t *object = json_object_get(root, "resident"), *list;
    snprintf(r->where, sizeof r->where, "resident");
    if (!get_number(r, json_object_get(object, "bytes"), "bytes", 0, FILE_LIMIT, &p->resident.bytes) ||
        !get_array(r, object, "tensors", 0, 1 << 24, &list)) {
        return false;
    }
    size_t n = json_array_size(list);
    p->resident.name = sl_strdup(PACK_RESIDENT);
    p->resident.v = calloc(n + 1, sizeof *p->resident.v);
    p->tensors = calloc(n + 1, sizeof *p->tensors);
    if (!p->resident.name || !p->resident.v || !p->tensors) {
        return no_memory(r);
    }
    p->resident.count = n;
    for (size_t i = 0; i < n; i++) {
        if (!read_tensor(r, json_array_get(list, i), p, i)) {
            return false;
        }
    }
    return true;
}

static bool read_blobs(reader *r, const json_t *object, pack_layer *l, uint64_t length) {
    json_t *list;
    uint64_t after = 0;
    char layer[64];
    snprintf(layer, sizeof layer, "%.60s", r->where);
    if (!get_array(r, object, "blobs", 1, 1 << 20, &list)) {
        return false;
    }
    l->file.count = json_array_size(list);
    l->file.v = calloc(l->file.count, sizeof *l->file.v);
    if (!l->file.v) {
        return no_memory(r);
    }
    for (size_t i = 0; i < l->file.count; i++) {
        json_t *triple = json_array_get(list, i);
        pack_unit *u = &l->file.v[i];
        snprintf(r->where, sizeof r->where, "%s.blobs[%zu]", layer, i);
        if (!get_number(r, json_array_get(triple, 0), "", 0, FILE_LIMIT, &u->offset) ||
            !get_number(r, json_array_get(triple, 1), "", length, length, &u->bytes) ||
            !get_sum(r, json_array_get(triple, 2), "", &u->sum) || !check_unit(r, &l->file, u, after)) {
            return false;
        }
        after = u->offset + u->bytes;
    }
    l->packed.experts = (int32_t)l->file.count;
    return true;
}

static bool read_layer(reader *r, const json_t *object, pack_layer *l, size_t i) {
    char layer[64];
    uint64_t end = 0;
    snprintf(layer, sizeof layer, "layers[%zu]", i);
    snprintf(r->where, sizeof r->where, "%s", layer);
    if (!get_i32(r, object, "layer", 0, 1 << 20, &l->layer) ||
        !get_name(r, json_object_get(object, "file"), "file", &l->file.name) ||
        !get_number(r, json_object_get(object, "bytes"), "bytes", 0, FILE_LIMIT, &l->file.bytes)) {
        return false;
    }
    for (int proj = 0; proj < 3; proj++) {
        snprintf(r->where, sizeof r->where, "%s.%s", layer, proj_names[proj]);
        if (!get_layout(r, json_object_get(object, proj_names[proj]), end, &l->packed.proj[proj], &end)) {
            return false;
        }
    }
    snprintf(r->where, sizeof r->where, "%s", layer);
    return read_blobs(r, object, l, end);
}

static bool read_layers(reader *r, const json_t *root, pack *p) {
    json_t *list;
    r->where[0] = 0;
    if (!get_array(r, root, "layers", 1, 1 << 16, &list)) {
        return false;
    }
    p->layers = calloc(json_array_size(list), sizeof *p->layers);
    if (!p->layers) {
        return no_memory(r);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        p->layer_count++;
        if (!read_layer(r, json_array_get(list, i), &p->layers[i], i)) {
            return false;
        }
        if (i > 0 && p->layers[i].layer <= p->layers[i - 1].layer) {
            return bad(r, "layer", "not above the one before it");
        }
    }
    return true;
}

/* ---- reading: the document ----------------------------------------------------------------------------------------
 */

/* The checksum of the text with zeros in the checksum's place. */
static bool check_sum(const reader *r, const json_t *root, const char *text, size_t n, pack *p) {
    const char *said = json_string_value(json_object_get(root, "checksum"));
    uint64_t expected, found;
    const char *place = said ? strstr(text, said) : NULL;
    if (!parse_sum(said, &expected) || !place) {
        return bad(r, "checksum", "not a checksum of 16 hexadecimal digits");
    }
    char *copy = malloc(n + 1);
    if (!copy) {
        return no_memory(r);
    }
    memcpy(copy, text, n + 1);
    memcpy(copy + (place - text), SUM_ZERO, sizeof SUM_ZERO - 1);
    found = p->sum = sl_pack_sum(copy, n);
    free(copy);
    return found == expected ||
           sl_fail(r->err, SL_ERR_FORMAT,
                   "%s: its checksum is %016" PRIx64 ", expected %016" PRIx64 ": the file was damaged or changed",
                   r->path, found, expected);
}

static bool check_version(const reader *r, const json_t *root) {
    const json_t *v = json_object_get(root, "sluice_pack");
    if (!json_is_integer(v)) {
        return bad(r, "sluice_pack", "missing, this is no pack");
    }
    return json_integer_value(v) == SL_PACK_VERSION ||
           sl_fail(r->err, SL_ERR_UNSUPPORTED,
                   "%s: a pack of format version %" JSON_INTEGER_FORMAT ", expected %d: pack "
                   "the model again with this program",
                   r->path, json_integer_value(v), SL_PACK_VERSION);
}

pack *pack_doc_parse(const char *text, size_t n, const char *path, sl_error *err) {
    reader r = {.path = path, .err = err};
    json_t *root = ckpt_json_parse_strict(text, n, path, err);
    pack *p = root ? calloc(1, sizeof *p) : NULL;
    if (root && !p) {
        no_memory(&r);
    }
    bool ok = p && check_version(&r, root) && check_sum(&r, root, text, n, p) && read_source(&r, root, p) &&
              read_affine(&r, root, p) && read_sides(&r, root, p) && read_resident(&r, root, p) &&
              read_layers(&r, root, p);
    json_decref(root);
    if (!ok) {
        pack_free(p);
        return NULL;
    }
    return p;
}

pack *pack_doc_load(const char *dir, sl_error *err) {
    char *path = sl_path_join(dir, PACK_JSON);
    size_t n;
    char *text = path ? sl_read_text(path, JSON_LIMIT, &n, err) : NULL;
    pack *p = text ? pack_doc_parse(text, n, path, err) : NULL;
    free(text);
    free(path);
    return p;
}

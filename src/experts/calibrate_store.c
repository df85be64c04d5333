/* Results of calibration on disk: one small JSON file per disk. What is read from there decides how fast experts come,
 * never what they are; still every field is checked, as readers and memory are sized by it. */
#include "experts/calibrate.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { VERSION = 1, MOST_BYTES = 64 << 10, MOST_DEPTH = 4096, MOST_THREADS = 256 };
#define MOST_PIECE (UINT64_C(1) << 30)

char *sl_calibration_path(const char *directory, const sl_disk *disk) {
    return sl_asprintf("%s/disk-%016llx.json", directory, (unsigned long long)XXH3_64bits(disk->id, strlen(disk->id)));
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

static json_t *tried_json(const sl_tried *t) {
    return json_pack("{s:s, s:b, s:i, s:I, s:f, s:f, s:f, s:i}", "reader", sl_reader_kind_name(t->how.kind), "direct",
                     t->how.direct, "depth", t->how.depth, "piece_bytes", (json_int_t)t->how.piece_bytes,
                     "bytes_per_second", t->rate, "least", t->least, "most", t->most, "rounds", t->rounds);
}

static json_t *calibration_json(const sl_disk *d, const sl_calibration *c) {
    json_t *tried = json_array();
    for (int i = 0; i < c->count; i++)
        json_array_append_new(tried, tried_json(&c->tried[i]));
    return json_pack("{s:i, s:I, s:s, s:s, s:s, s:s, s:b, s:I, s:o, s:o, s:o}", "sluice_calibration", VERSION,
                     "measured", (json_int_t)c->measured, "disk", d->id, "source", d->source, "mount", d->mount, "type",
                     d->type, "finished", c->finished, "read_bytes", (json_int_t)c->read_bytes, "usual",
                     tried_json(&c->usual), "chosen", tried_json(&c->chosen), "tried", tried);
}

bool sl_calibration_save(const char *path, const sl_disk *disk, const sl_calibration *c, sl_error *err) {
    json_t *doc = calibration_json(disk, c);
    char *text = doc ? json_dumps(doc, JSON_INDENT(1)) : NULL;
    json_decref(doc);
    if (!text)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    bool ok = sl_replace_file(path, text, strlen(text), err);
    free(text);
    return ok;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

static bool take_int(const json_t *o, const char *name, int64_t least, int64_t most, int64_t *out, sl_error *err) {
    const json_t *v = json_object_get(o, name);
    if (!json_is_integer(v))
        return sl_fail(err, SL_ERR_FORMAT, "%s: a whole number expected", name);
    *out = json_integer_value(v);
    return (*out >= least && *out <= most) || sl_fail(err, SL_ERR_FORMAT, "%s: %lld, expected %lld to %lld", name,
                                                      (long long)*out, (long long)least, (long long)most);
}

static bool take_rate(const json_t *o, const char *name, double *out, sl_error *err) {
    const json_t *v = json_object_get(o, name);
    *out = json_number_value(v);
    return (json_is_number(v) && *out >= 0 && *out < 1e15) ||
           sl_fail(err, SL_ERR_FORMAT, "%s: bytes per second expected", name);
}

static bool take_tried(const json_t *doc, const char *name, sl_tried *t, sl_error *err) {
    const json_t *o = json_object_get(doc, name);
    const char *reader = json_string_value(json_object_get(o, "reader"));
    int64_t depth = 0, piece = 0, rounds = 0;
    if (!reader || (strcmp(reader, "uring") != 0 && strcmp(reader, "pread") != 0))
        return sl_fail(err, SL_ERR_FORMAT, "%s: reader: uring or pread expected", name);
    if (!json_is_boolean(json_object_get(o, "direct")))
        return sl_fail(err, SL_ERR_FORMAT, "%s: direct: true or false expected", name);
    t->how.kind = strcmp(reader, "uring") == 0 ? SL_READER_URING : SL_READER_PREAD;
    t->how.direct = json_is_true(json_object_get(o, "direct"));
    if (!take_int(o, "depth", 1, t->how.kind == SL_READER_URING ? MOST_DEPTH : MOST_THREADS, &depth, err) ||
        !take_int(o, "piece_bytes", 4096, MOST_PIECE, &piece, err) || !take_int(o, "rounds", 0, 1000, &rounds, err) ||
        !take_rate(o, "bytes_per_second", &t->rate, err) || !take_rate(o, "least", &t->least, err) ||
        !take_rate(o, "most", &t->most, err))
        return sl_fail_prefix(err, "%s", name);
    if (piece % 4096)
        return sl_fail(err, SL_ERR_FORMAT, "%s: piece_bytes: %lld, a multiple of 4096 expected", name,
                       (long long)piece);
    t->how.depth = (int)depth;
    t->how.piece_bytes = (uint64_t)piece;
    t->rounds = (int)rounds;
    return true;
}

static bool take_document(const json_t *doc, const sl_disk *disk, sl_calibration *out, sl_error *err) {
    int64_t version = 0, bytes = 0;
    const char *id = json_string_value(json_object_get(doc, "disk"));
    if (!take_int(doc, "sluice_calibration", VERSION, VERSION, &version, err))
        return false;
    if (!id || strcmp(id, disk->id) != 0)
        return sl_fail(err, SL_ERR_FORMAT, "disk: \"%s\" expected, found \"%s\"", disk->id, id ? id : "");
    *out = (sl_calibration){.finished = json_is_true(json_object_get(doc, "finished"))};
    if (!take_int(doc, "measured", 0, INT64_MAX, &out->measured, err) ||
        !take_int(doc, "read_bytes", 0, INT64_MAX, &bytes, err) || !take_tried(doc, "usual", &out->usual, err) ||
        !take_tried(doc, "chosen", &out->chosen, err))
        return false;
    out->read_bytes = (uint64_t)bytes;
    return true;
}

/* The file's text. Not what is no plain file: a FIFO would be waited for. */
static char *read_file(const char *path, size_t *size, sl_error *err) {
    struct stat st;
    if (stat(path, &st) != 0) {
        if (errno != ENOENT && errno != ENOTDIR)
            sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot open", path);
        return NULL;
    }
    if (!S_ISREG(st.st_mode))
        return sl_fail_null(err, SL_ERR_FORMAT, "%s: not a plain file", path);
    return sl_read_text(path, MOST_BYTES, size, err);
}

bool sl_calibration_load(const char *path, const sl_disk *disk, sl_calibration *out, sl_error *err) {
    size_t size = 0;
    json_error_t why;
    *err = (sl_error){0};
    char *text = read_file(path, &size, err);
    if (!text)
        return false;
    json_t *doc = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
    free(text);
    bool ok = json_is_object(doc) && take_document(doc, disk, out, err);
    if (!doc)
        sl_fail(err, SL_ERR_FORMAT, "%s: line %d: %s", path, why.line, why.text);
    else if (!ok && err->code == SL_OK)
        sl_fail(err, SL_ERR_FORMAT, "%s: an object expected", path);
    else if (!ok)
        sl_fail_prefix(err, "%s", path);
    json_decref(doc);
    return ok;
}

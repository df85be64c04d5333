/* Results of calibration on disk: one small JSON file per disk. What is read from there decides how fast experts come,
 * never what they are; still every field is checked, as readers and memory are sized by it. */
#include "experts/calibrate_doc.h"

#include <string.h>
#include <xxhash.h>

enum { VERSION = 1, MOST_DEPTH = 4096, MOST_THREADS = 256 };
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
    return calibrate_doc_save(path, calibration_json(disk, c), err);
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

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
    if (!calibrate_take_int(o, "depth", 1, t->how.kind == SL_READER_URING ? MOST_DEPTH : MOST_THREADS, &depth, err) ||
        !calibrate_take_int(o, "piece_bytes", 4096, MOST_PIECE, &piece, err) ||
        !calibrate_take_int(o, "rounds", 0, 1000, &rounds, err) ||
        !calibrate_take_rate(o, "bytes_per_second", &t->rate, err) ||
        !calibrate_take_rate(o, "least", &t->least, err) || !calibrate_take_rate(o, "most", &t->most, err))
        return sl_fail_prefix(err, "%s", name);
    if (piece % 4096)
        return sl_fail(err, SL_ERR_FORMAT, "%s: piece_bytes: %lld, a multiple of 4096 expected", name,
                       (long long)piece);
    if (t->rate < 1)
        return sl_fail(err, SL_ERR_FORMAT, "%s: bytes_per_second: %g, 1 or more expected", name, t->rate);
    t->how.depth = (int)depth;
    t->how.piece_bytes = (uint64_t)piece;
    t->rounds = (int)rounds;
    return true;
}

static bool take_calibration(const json_t *doc, const void *key, void *result, sl_error *err) {
    const sl_disk *disk = key;
    sl_calibration *out = result;
    int64_t version = 0, bytes = 0;
    const char *id = json_string_value(json_object_get(doc, "disk"));
    if (!calibrate_take_int(doc, "sluice_calibration", VERSION, VERSION, &version, err))
        return false;
    if (!id || strcmp(id, disk->id) != 0)
        return sl_fail(err, SL_ERR_FORMAT, "disk: \"%s\" expected, found \"%s\"", disk->id, id ? id : "");
    *out = (sl_calibration){.finished = json_is_true(json_object_get(doc, "finished"))};
    if (!calibrate_take_int(doc, "measured", 0, INT64_MAX, &out->measured, err) ||
        !calibrate_take_int(doc, "read_bytes", 0, INT64_MAX, &bytes, err) ||
        !take_tried(doc, "usual", &out->usual, err) || !take_tried(doc, "chosen", &out->chosen, err))
        return false;
    out->read_bytes = (uint64_t)bytes;
    return true;
}

bool sl_calibration_load(const char *path, const sl_disk *disk, sl_calibration *out, sl_error *err) {
    return calibrate_doc_load(path, take_calibration, disk, out, err);
}

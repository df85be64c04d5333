/* How experts are read: what is asked for, else as the model's disk was calibrated, else as usual; from one disk, or
 * from two that hold the same files. */
#include "engine/internal.h"

#include "experts/calibrate.h"

#include <stdlib.h>
#include <string.h>

/* ---- the choice ------------------------------------------------------------------------------------------------- */

char *engine_calibrations(const char *asked) {
    if (!asked)
        return sl_cache_dir();
    return *asked ? sl_strdup(asked) : NULL;
}

const sl_file *engine_first_file(const sl_engine *e) {
    int32_t n;
    const sl_model_experts *x = sl_model_expert_layers(e->model, &n);
    for (int32_t i = 0; i < n; i++)
        for (int p = 0; p < SL_EXPERT_PARTS; p++)
            if (x[i].extent[p].bytes)
                return sl_ckpt_file(e->ckpt, x[i].extent[p].file);
    return NULL;
}

/* What was measured of the disk under a file. What is wrong with a stored result is said and costs the defaults;
 * nothing fails for it. */
static bool load_stored(sl_engine *e, const sl_file *f, sl_calibration *out) {
    sl_error err = {0};
    sl_disk disk;
    char *directory = engine_calibrations(e->options.calibration), *path = NULL;
    bool ok = f && directory && sl_disk_of(e->options.system_root, f->path, &disk, &err) &&
              (path = sl_calibration_path(directory, &disk)) && sl_calibration_load(path, &disk, out, &err);
    if (!ok && err.code != SL_OK)
        sl_logf(&e->log, SL_LOG_WARN, "%s; reading as usual ('sluice doctor' measures again)", err.message);
    free(path);
    free(directory);
    return ok;
}

static bool wish_of(const sl_engine_options *o, sl_reader_kind kind, sl_reading_wish *w, sl_error *err) {
    bool on = o->direct && strcmp(o->direct, "on") == 0, off = o->direct && strcmp(o->direct, "off") == 0;
    if (o->direct && !on && !off && strcmp(o->direct, "auto") != 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "direct: \"%s\", expected one of auto, on, off", o->direct);
    if (on && o->buffered)
        return sl_fail(err, SL_ERR_ARGUMENT, "direct on and buffered exclude each other");
    if (o->read_piece % 4096 || o->read_piece > 1 << 30)
        return sl_fail(err, SL_ERR_ARGUMENT, "read_piece: %llu bytes, a multiple of 4096 up to 1 GiB expected",
                       (unsigned long long)o->read_piece);
    *w = (sl_reading_wish){kind, on ? 1 : off || o->buffered ? 0 : -1, o->read_depth, o->read_piece};
    return true;
}

static void choose_disk(sl_engine *e, int disk, const sl_file *f, const sl_reading_wish *wish) {
    engine_reading *r = &e->reading;
    sl_calibration stored;
    bool known = load_stored(e, f, &stored);
    sl_reading_choose(wish, known ? &stored : NULL, &r->disk[disk], r->why[disk], sizeof r->why[disk]);
    r->rate[disk] = known ? stored.chosen.rate : 0;
}

/* ---- a second disk ----------------------------------------------------------------------------------------------- */

static void warn_of_same_disk(sl_engine *e, const sl_file *own, const sl_file *copy) {
    sl_disk a, b;
    if (sl_disk_of(e->options.system_root, own->path, &a, NULL) &&
        sl_disk_of(e->options.system_root, copy->path, &b, NULL) && strcmp(a.id, b.id) == 0)
        sl_logf(&e->log, SL_LOG_WARN, "mirror: %s lies on the model's own disk, which will not be faster for it",
                sl_mirror_directory(e->mirror));
}

static bool open_mirror(sl_engine *e, sl_error *err) {
    int n = sl_ckpt_file_count(e->ckpt);
    const sl_file **file = calloc((size_t)n + 1, sizeof *file);
    if (!file)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a mirror of %d files", n);
    for (int i = 0; i < n; i++)
        file[i] = sl_ckpt_file(e->ckpt, i);
    e->mirror = sl_mirror_open(file, n, e->options.mirror, err);
    free(file);
    return e->mirror != NULL;
}

/* Both disks have the first one's kind of reader: a wait is for both. */
static bool choose_mirror(sl_engine *e, const sl_reading_wish *wish, sl_error *err) {
    const sl_file *own = engine_first_file(e);
    sl_reading_wish second = *wish;
    if (!e->mirror && !open_mirror(e, err)) /* it is there if another device was tried before */
        return false;
    const sl_file *copy = sl_mirror_of(e->mirror, own);
    warn_of_same_disk(e, own, copy);
    second.kind = e->reading.disk[0].kind == SL_READER_PREAD ? SL_READER_PREAD : SL_READER_URING;
    choose_disk(e, 1, copy, &second);
    e->reading.disk[0].second = &e->reading.disk[1];
    return true;
}

bool engine_choose_reading(sl_engine *e, sl_reader_kind kind, sl_error *err) {
    sl_reading_wish wish;
    const sl_file *f = engine_first_file(e);
    if (!wish_of(&e->options, kind, &wish, err))
        return false;
    choose_disk(e, 0, f, &wish);
    e->reading.disk[0].timeout_ns = (uint64_t)(e->options.read_timeout * 1e9);
    return !e->options.mirror || !f || choose_mirror(e, &wish, err);
}

/* ---- the reader -------------------------------------------------------------------------------------------------- */

sl_reader *engine_open_reader(const sl_engine *e, bool faults, engine_wrap_reader wrap, void *user, sl_error *err) {
    sl_reader_options how = e->reading.disk[0];
    if (!faults)
        how.faults = NULL;
    sl_reader *r = sl_reader_open(&how, err);
    if (r && wrap)
        r = wrap(user, r, err);
    if (!r || !e->mirror)
        return r;
    sl_mirror_options o = {.mirror = e->mirror, .name = e->path, .log = e->log};
    memcpy(o.rate, e->reading.rate, sizeof o.rate);
    return sl_mirror_reader(r, &o, err);
}

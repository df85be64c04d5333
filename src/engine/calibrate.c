/* Calibration: how the disk under a model, or under a directory, is read fastest. What is made of it: reading.c. */
#include "engine/internal.h"
#include "engine/random.h"

#include "experts/calibrate.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- what is read ----------------------------------------------------------------------------------------------- */

/* As the engine reads: experts of one layer after the other, chosen at random. */
typedef struct expert_reads {
    const sl_engine *e;
    const sl_mirror *mirror; /* NULL: the model's own files */
    uint64_t random;
    int32_t layer;
} expert_reads;

static int expert_burst(void *user, bool direct, sl_read *reads, int max) {
    expert_reads *x = user;
    const sl_model_config *c = sl_model_config_get(x->e->model);
    const sl_expert_layer *l = &x->e->expert_layers[x->layer++ % c->moe_layers];
    int n = 0;
    for (int32_t k = 0; k < c->top_k; k++) {
        sl_trace_read what[SL_EXPERT_PARTS];
        int32_t expert = (int32_t)(engine_random(&x->random) % (uint64_t)l->experts);
        int32_t parts = sl_experts_reads_of(l, x->e->ckpt, expert, direct, what);
        if (parts > max && n == 0)
            parts = max; /* a very slow disk: part of an expert */
        if (n + parts > max)
            break;
        for (int32_t i = 0; i < parts; i++, n++) {
            const sl_file *own = sl_ckpt_file(x->e->ckpt, what[i].file),
                          *f = x->mirror ? sl_mirror_of(x->mirror, own) : own;
            uint64_t left = f->size - what[i].offset;
            reads[n] = (sl_read){.file = f,
                                 .offset = what[i].offset,
                                 .bytes = what[i].bytes,
                                 .need = what[i].bytes < left ? what[i].bytes : left};
        }
    }
    return n;
}

/* ---- calibration ------------------------------------------------------------------------------------------------ */

enum { AREA = 64 << 20, LEAST_AREA = 8 << 20, TEMPORARY = 256 << 20, CACHED = 32 << 20, LEAST_CACHED = 1 << 20 };
#define DEFAULT_SECONDS 7.0
/* The search takes some 53 rounds, of which some last longer; single sizes take eight. */
enum { SEARCH_ROUNDS = 66, ALL_ROUNDS = 76, ROUND_MOST_NS = 80000000, ROUND_LEAST_NS = 10000000 };
#define WRITE_MOST_NS UINT64_C(1500000000)

typedef struct calibration_run {
    sl_calibrate_options o;
    sl_disk_meter meter;
    expert_reads experts;
    sl_random_reads random;
    sl_file *temporary; /* or NULL */
    const sl_file *file;
    sl_calibration c;
    sl_calibrate_result *r;
    uint64_t limit, end; /* nanoseconds, and when they are over */
    uint64_t search_end;
    double rate; /* of the usual way, for a first idea */
    int rounds;  /* of the search, so far */
} calibration_run;

static uint64_t area_bytes(void) {
    uint64_t share = sl_memory_limit(NULL) / 8;
    return share < LEAST_AREA ? LEAST_AREA : share < AREA ? share : AREA;
}

static bool open_source(calibration_run *x, sl_error *err) {
    enum { LEAST = 512 << 10, MOST = 3 << 20 };
    const sl_engine *e = x->o.engine;
    if (!e) {
        uint64_t writing = x->limit / 5 < WRITE_MOST_NS ? x->limit / 5 : WRITE_MOST_NS;
        x->temporary = sl_random_file(x->o.directory, TEMPORARY, writing, x->o.progress, x->o.progress_user, err);
        if (!x->temporary)
            return false;
        x->file = x->temporary;
        x->random = (sl_random_reads){x->file, LEAST, MOST, 1};
        x->meter.burst = sl_random_reads_burst;
        x->meter.user = &x->random;
        x->meter.most = 24;
        return true;
    }
    if (!e->expert_layers || !(x->file = engine_first_file(e)))
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: a dense model: nothing of it is read while it runs", e->path);
    if (x->o.mirror && !e->mirror)
        return sl_fail(err, SL_ERR_ARGUMENT, "calibrate: %s was opened without a mirror", e->path);
    x->experts = (expert_reads){.e = e, .mirror = x->o.mirror ? e->mirror : NULL, .random = 1};
    if (x->o.mirror)
        x->file = sl_mirror_of(e->mirror, x->file);
    x->meter.burst = expert_burst;
    x->meter.user = &x->experts;
    return true;
}

static sl_read_way public_way(const sl_tried *t) {
    sl_read_way w = {.direct = t->how.direct,
                     .depth = t->how.depth,
                     .piece = t->how.piece_bytes,
                     .rate = t->rate,
                     .least = t->least,
                     .most = t->most,
                     .rounds = t->rounds};
    snprintf(w.reader, sizeof w.reader, "%s", sl_reader_kind_name(t->how.kind));
    return w;
}

static uint64_t time_left(const calibration_run *x) {
    uint64_t now = sl_now_ns();
    return now < x->end ? x->end - now : 0;
}

/* Rounds as long as the time allows, and bursts that end within one. They are grown to it: before a disk is known to be
 * slow it is not asked for what would take it seconds. */
static bool fit_meter(calibration_run *x, sl_error *err) {
    sl_reading first = {SL_READER_PREAD, x->file->direct_fd >= 0, 8, 512 << 10};
    uint64_t round = time_left(x) / ALL_ROUNDS, began, took;
    int most = x->meter.most;
    x->meter.round_ns = 1; /* one burst */
    x->meter.most = 1;
    do {
        x->meter.most = 2 * x->meter.most < most ? 2 * x->meter.most : most;
        began = sl_now_ns();
        if (!sl_disk_meter_measure(&x->meter, &first, &x->rate, err))
            return false;
        took = sl_now_ns() - began;
    } while (x->meter.most < most && took < round);
    x->meter.round_ns = round < ROUND_LEAST_NS ? ROUND_LEAST_NS : round < ROUND_MOST_NS ? round : ROUND_MOST_NS;
    x->meter.most = most;
    sl_disk_meter_fit(&x->meter, x->rate);
    return true;
}

static bool go_on_searching(void *user) {
    return sl_disk_meter_go_on(&((calibration_run *)user)->meter);
}

/* One round of the search; where others took longer than they should have, on a busy machine or a disk with moods, it
 * is shorter, so that all of them find time. */
static bool measure_in_time(void *user, const sl_reading *how, double *rate, sl_error *err) {
    calibration_run *x = user;
    uint64_t now = sl_now_ns(), left = now < x->search_end ? x->search_end - now : 0,
             more = x->rounds < SEARCH_ROUNDS ? (uint64_t)(SEARCH_ROUNDS - x->rounds) : 1, round = left / more;
    x->rounds++;
    if (round < x->meter.round_ns / 5 * 4 && x->meter.round_ns > ROUND_LEAST_NS) {
        x->meter.round_ns = round < ROUND_LEAST_NS ? ROUND_LEAST_NS : round;
        sl_disk_meter_fit(&x->meter, x->rate);
    }
    return sl_disk_meter_measure(&x->meter, how, rate, err);
}

static bool search_ways(calibration_run *x, sl_error *err) {
    sl_calibrator c = {measure_in_time, sl_disk_meter_now, go_on_searching, x};
    x->search_end = sl_now_ns() + time_left(x) * SEARCH_ROUNDS / ALL_ROUNDS;
    if (!fit_meter(x, err))
        return false;
    uint64_t now = sl_now_ns(), limit = now < x->search_end ? x->search_end - now : 0;
    if (!sl_calibrate_search(&c, x->file->direct_fd >= 0, limit, &x->c, err))
        return false;
    x->c.measured = (int64_t)time(NULL);
    x->c.read_bytes = x->meter.reads ? x->meter.bytes / x->meter.reads : 0;
    sl_calibrate_result *r = x->r;
    r->read_bytes = x->c.read_bytes;
    r->finished = x->c.finished;
    r->usual = public_way(&x->c.usual);
    r->chosen = public_way(&x->c.chosen);
    sl_reading_cache_why(&x->c, x->file->direct_fd >= 0, r->cache_why, sizeof r->cache_why);
    for (r->way_count = 0; r->way_count < x->c.count && r->way_count < SL_READ_WAYS; r->way_count++)
        r->ways[r->way_count] = public_way(&x->c.tried[r->way_count]);
    return true;
}

/* Whole reads of one size, alone and as deep as chosen; as many sizes as there is time for. */
static bool measure_sizes(calibration_run *x, sl_error *err) {
    static const uint64_t sizes[SL_READ_SIZES] = {16 << 10, 128 << 10, 1 << 20, 4 << 20};
    sl_burst_fn burst = x->meter.burst;
    void *user = x->meter.user;
    sl_reading how = x->c.chosen.how;
    bool ok = true;
    for (int i = 0; ok && i < SL_READ_SIZES && sizes[i] <= x->file->size / 4 && time_left(x) > 0; i++) {
        sl_random_reads reads = {x->file, sizes[i], sizes[i], 1};
        sl_read_size *s = &x->r->sizes[x->r->size_count++];
        x->meter.burst = sl_random_reads_burst;
        x->meter.user = &reads;
        *s = (sl_read_size){.bytes = sizes[i]};
        how.piece_bytes = sizes[i];
        how.depth = 1;
        ok = sl_disk_meter_measure(&x->meter, &how, &s->alone, err);
        how.depth = x->c.chosen.how.depth;
        ok = ok && sl_disk_meter_measure(&x->meter, &how, &s->deep, err);
        if (ok && !sl_disk_meter_go_on(&x->meter))
            ok = sl_fail(err, SL_ERR_CANCELLED, "calibration: stopped");
    }
    x->meter.burst = burst;
    x->meter.user = user;
    return ok;
}

/* The second of two reads of the same bytes through the page cache; as many as the disk gives in a moment. */
static bool measure_cached(calibration_run *x, sl_error *err) {
    uint64_t n = x->meter.area_bytes < CACHED ? x->meter.area_bytes : CACHED;
    double moment = x->c.chosen.rate * (double)x->limit / 40e9;
    n = moment > LEAST_CACHED && moment < (double)n ? (uint64_t)moment : moment <= LEAST_CACHED ? LEAST_CACHED : n;
    n = x->file->size < n ? x->file->size : n;
    bool ok = sl_file_read(x->file, 0, x->meter.area, n, err);
    uint64_t began = sl_now_ns();
    ok = ok && sl_file_read(x->file, 0, x->meter.area, n, err);
    uint64_t took = sl_now_ns() - began;
    sl_file_drop(x->file, 0, n);
    x->r->cached_rate = (double)n * 1e9 / (double)(took ? took : 1);
    return ok;
}

static bool describe_disk(calibration_run *x, sl_disk *disk, sl_error *err) {
    sl_calibrate_result *r = x->r;
    if (!sl_disk_of(x->o.system_root, x->temporary ? x->o.directory : x->file->path, disk, err))
        return false;
    snprintf(r->source, sizeof r->source, "%s", disk->source);
    snprintf(r->type, sizeof r->type, "%s", disk->type);
    snprintf(r->mount, sizeof r->mount, "%s", disk->mount);
    r->network = disk->network;
    r->in_memory = disk->in_memory;
    r->rotational = disk->rotational;
    r->direct_possible = x->file->direct_fd >= 0;
    return true;
}

/* A place that cannot be written is no failure of measuring. */
static void store(calibration_run *x, const sl_disk *disk) {
    char *directory = engine_calibrations(x->o.store), *path = directory ? sl_calibration_path(directory, disk) : NULL;
    if (!path)
        sl_fail(&x->r->store_error, SL_ERR_ARGUMENT, "no directory to keep the result in (XDG_CACHE_HOME, HOME)");
    else if (sl_calibration_save(path, disk, &x->c, &x->r->store_error))
        snprintf(x->r->stored, sizeof x->r->stored, "%s", path);
    free(path);
    free(directory);
}

static bool run_calibration(calibration_run *x, sl_error *err) {
    sl_disk disk;
    if (!open_source(x, err) || !describe_disk(x, &disk, err) || !sl_disk_meter_open(&x->meter, area_bytes(), err) ||
        !search_ways(x, err) || !measure_sizes(x, err) || !measure_cached(x, err))
        return false;
    store(x, &disk);
    return true;
}

bool sl_calibrate(const sl_calibrate_options *options, sl_calibrate_result *result, sl_error *err) {
    sl_calibrate_result all = {0};
    calibration_run x = {.r = &all};
    if (!engine_copy_options(&x.o, sizeof x.o, options, offsetof(sl_calibrate_options, seconds), "calibrate", err))
        return false;
    if (!x.o.engine == !x.o.directory)
        return sl_fail(err, SL_ERR_ARGUMENT, "calibrate: an engine or a directory expected");
    x.limit = (uint64_t)((x.o.seconds > 0 ? x.o.seconds : DEFAULT_SECONDS) * 1e9);
    x.end = sl_now_ns() + x.limit;
    x.meter.go_on = x.o.progress;
    x.meter.go_on_user = x.o.progress_user;
    bool ok = run_calibration(&x, err);
    sl_disk_meter_close(&x.meter);
    sl_file_close(x.temporary);
    return ok && (engine_give(result, &all, sizeof all) ||
                  sl_fail(err, SL_ERR_ARGUMENT, "calibrate: the result's size is not set"));
}

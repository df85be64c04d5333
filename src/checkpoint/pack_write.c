/* Writes a pack: its files one after the other, each front to back, through one buffer; see pack.h for the promises. */
#include "checkpoint/pack_convert.h"
#include "checkpoint/pack_journal.h"
#include "checkpoint/pack_plan.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define IMPORTANCE "importance.part"

enum { PIECE = 4 << 20 };

struct sl_pack_writer {
    sl_pack_job job;
    pack *plan;
    char *out;
    sl_pack_state state;
    pack_journal journal;
    uint64_t id; /* of the job: what its pack.json says, checksums of contents aside */
    uint64_t total, done;
    uint8_t *buffer; /* [PIECE] */
    size_t used;
    XXH3_state_t *hash;
    /* the file being written */
    char *part; /* its path until it is whole */
    int fd;
    uint64_t at; /* bytes given to it, those in the buffer among them */
    pack_convert convert;
    uint8_t *blob; /* with conversion: one expert */
};

static bool no_memory(const sl_pack_writer *w, sl_error *err) {
    return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", w->out ? w->out : w->job.out);
}

static bool moved(sl_pack_writer *w, uint64_t bytes, sl_error *err) {
    w->done += bytes;
    return !w->job.progress || w->job.progress(w->job.user, w->done / 2, w->total) ||
           sl_fail(err, SL_ERR_CANCELLED, "%s: stopped", w->out);
}

/* ---- opening ------------------------------------------------------------------------------------------------------
 */

/* Bytes of the files that are still to be written. */
static uint64_t missing_bytes(const sl_pack_writer *w) {
    uint64_t n = (uint64_t)1 << 20; /* pack.json, the journal, the side files */
    for (size_t i = w->journal.files; i <= w->plan->layer_count; i++) {
        const pack_units *u = pack_file(w->plan, i);
        uint64_t there = i == w->journal.files && w->journal.units ? u->v[w->journal.units - 1].offset : 0;
        n += u->bytes - there + u->count * 128;
    }
    for (size_t i = 0; i < w->plan->side_count; i++) {
        n += w->plan->sides[i].bytes;
    }
    return n;
}

static bool find_id(sl_pack_writer *w, sl_error *err) {
    size_t n = 0;
    char *text = pack_doc_write(w->plan, false, &n);
    if (!text) {
        return no_memory(w, err);
    }
    w->id = sl_pack_sum(text, n);
    free(text);
    return true;
}

/* A pack.json that is there must be that of this job. */
static bool check_complete(sl_pack_writer *w, sl_error *err) {
    size_t n = 0;
    pack *there = pack_doc_load(w->out, err);
    if (!there) {
        return sl_fail_prefix(err, "%s: is there already", w->out);
    }
    char *text = pack_doc_write(there, false, &n);
    bool same = text && sl_pack_sum(text, n) == w->id;
    bool ok = text ? same || sl_fail(err, SL_ERR_ARGUMENT,
                                     "%s: is there already: a pack of another model, or with other options", w->out)
                   : no_memory(w, err);
    free(text);
    pack_free(there);
    w->state = SL_PACK_COMPLETE;
    return ok;
}

static bool has_file(const char *dir, const char *name) {
    char *path = sl_path_join(dir, name);
    bool there = path && sl_path_exists(path);
    free(path);
    return there;
}

static bool open_target(sl_pack_writer *w, sl_error *err) {
    uint64_t other;
    for (size_t i = 0; i <= w->plan->layer_count; i++) {
        w->total += pack_file(w->plan, i)->bytes;
    }
    if (has_file(w->out, PACK_JSON)) {
        return check_complete(w, err);
    }
    w->state = pack_journal_peek(w->out, &other) ? SL_PACK_RESUMED : SL_PACK_FRESH;
    /* Before anything is made: what a resumed pack has is subtracted below, when its journal was read. */
    if (w->state == SL_PACK_FRESH && !pack_target_space(w->out, missing_bytes(w), err)) {
        return false;
    }
    return pack_target_make(w->out, err) && pack_journal_open(&w->journal, w->out, w->id, w->plan, err) &&
           pack_target_space(w->out, missing_bytes(w), err);
}

sl_pack_writer *sl_pack_writer_open(const sl_pack_job *job, sl_error *err) {
    sl_pack_writer *w = calloc(1, sizeof *w);
    if (!w) {
        return sl_fail_null(err, SL_ERR_MEMORY, "%s: out of memory", job->out);
    }
    w->job = *job;
    w->fd = -1;
    w->journal.fd = -1;
    if (pack_target_check(job->source, job->out, &w->out, err) && (w->plan = pack_plan(job, err)) && find_id(w, err) &&
        open_target(w, err)) {
        return w;
    }
    sl_pack_writer_close(w);
    return NULL;
}

sl_pack_state sl_pack_writer_state(const sl_pack_writer *w) {
    return w->state;
}

uint64_t sl_pack_writer_total(const sl_pack_writer *w) {
    return w->total;
}

void sl_pack_writer_close(sl_pack_writer *w) {
    if (!w) {
        return;
    }
    if (w->fd >= 0) {
        close(w->fd);
    }
    pack_journal_close(&w->journal, false);
    pack_convert_close(&w->convert);
    XXH3_freeState(w->hash);
    pack_free(w->plan);
    free(w->blob);
    free(w->buffer);
    free(w->part);
    free(w->out);
    free(w);
}

/* ---- importance ---------------------------------------------------------------------------------------------------
 */

/* A file of values, then job and checksum. */
bool sl_pack_load_importance(const sl_pack_writer *w, float *values, size_t n, sl_error *err) {
    uint64_t tail[2] = {0};
    char *path = sl_path_join(w->out, IMPORTANCE);
    sl_file *f = NULL;
    *err = (sl_error){0};
    bool ok = path || no_memory(w, err);
    ok = ok && sl_path_exists(path) && (f = sl_file_open(path, err)) && f->size == n * sizeof *values + sizeof tail &&
         sl_file_read(f, 0, values, n * sizeof *values, err) &&
         sl_file_read(f, n * sizeof *values, tail, sizeof tail, err);
    sl_file_close(f);
    free(path);
    return ok && tail[0] == w->id && tail[1] == sl_pack_sum(values, n * sizeof *values);
}

bool sl_pack_save_importance(const sl_pack_writer *w, const float *values, size_t n, sl_error *err) {
    uint64_t tail[2] = {w->id, sl_pack_sum(values, n * sizeof *values)};
    sl_buf b = {0};
    bool ok = sl_buf_append(&b, values, n * sizeof *values) && sl_buf_append(&b, tail, sizeof tail);
    ok = ok ? pack_target_put(w->out, IMPORTANCE, b.data, b.size, err) : no_memory(w, err);
    sl_buf_free(&b);
    return ok;
}

/* ---- the file being written ---------------------------------------------------------------------------------------
 */

static bool fail_write(const sl_pack_writer *w, int saved, sl_error *err) {
    return sl_fail_errno(err, SL_ERR_IO, saved, "%s: write failed", w->part);
}

static bool flush(sl_pack_writer *w, sl_error *err) {
    const uint8_t *p = w->buffer;
    uint64_t at = w->at - w->used;
    while (w->used > 0) {
        ssize_t n = pwrite(w->fd, p, w->used, (off_t)at);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return fail_write(w, n < 0 ? errno : ENOSPC, err);
        }
        p += n;
        at += (uint64_t)n;
        w->used -= (size_t)n;
    }
    return true;
}

/* The next n bytes are in the buffer, behind `used`. */
static bool took(sl_pack_writer *w, size_t n, sl_error *err) {
    XXH3_64bits_update(w->hash, w->buffer + w->used, n);
    w->used += n;
    w->at += n;
    return (w->used < PIECE || flush(w, err)) && moved(w, n, err);
}

static bool put_zeros(sl_pack_writer *w, uint64_t to, sl_error *err) {
    while (w->at < to) {
        size_t n = to - w->at < PIECE - w->used ? (size_t)(to - w->at) : PIECE - w->used;
        memset(w->buffer + w->used, 0, n);
        if (!took(w, n, err)) {
            return false;
        }
    }
    return true;
}

static bool put_bytes(sl_pack_writer *w, const uint8_t *p, uint64_t n, sl_error *err) {
    for (uint64_t k; n > 0; p += k, n -= k) {
        k = n < PIECE - w->used ? n : PIECE - w->used;
        memcpy(w->buffer + w->used, p, (size_t)k);
        if (!took(w, (size_t)k, err)) {
            return false;
        }
    }
    return true;
}

static bool put_extent(sl_pack_writer *w, const sl_extent *x, sl_error *err) {
    const sl_file *f = sl_ckpt_file(w->job.source, x->file);
    for (uint64_t at = 0, k; at < x->bytes; at += k) {
        k = x->bytes - at < PIECE - w->used ? x->bytes - at : PIECE - w->used;
        if (!sl_file_read_uncached(f, x->offset + at, w->buffer + w->used, k, err) || !took(w, (size_t)k, err)) {
            return false;
        }
    }
    return true;
}

/* Rows of `bytes` bytes that lie `stride` apart: whole rows are read with what is between them, and brought together.
 */
static bool put_rows(sl_pack_writer *w, const sl_extent *x, uint64_t bytes, uint64_t stride, uint64_t rows,
                     sl_error *err) {
    const sl_file *f = sl_ckpt_file(w->job.source, x->file);
    uint64_t at_once = PIECE / stride ? PIECE / stride : 1;
    uint8_t *piece = malloc((size_t)(at_once * stride));
    bool ok = piece || no_memory(w, err);
    for (uint64_t row = 0, n; ok && row < rows; row += n) {
        n = rows - row < at_once ? rows - row : at_once;
        ok = sl_file_read_uncached(f, x->offset + row * stride, piece, (n - 1) * stride + bytes, err);
        for (uint64_t i = 0; ok && i < n; i++) {
            ok = put_bytes(w, piece + i * stride, bytes, err);
        }
    }
    free(piece);
    return ok;
}

/* ---- units --------------------------------------------------------------------------------------------------------
 */

/* Parts of t from `from`, each at its place after `begin`. stride: as in sl_pack_layer, NULL: rows follow each other.
 */
static bool put_parts(sl_pack_writer *w, const sl_tensor *t, const sl_extent *from, const uint64_t *stride,
                      uint64_t begin, sl_error *err) {
    for (int32_t i = 0; i < t->parts; i++) {
        uint64_t rows = (uint64_t)t->shape[0];
        if (!put_zeros(w, begin + t->part[i].offset, err) ||
            !(stride && stride[i] ? put_rows(w, &from[i], t->part[i].bytes / rows, stride[i], rows, err)
                                  : put_extent(w, &from[i], err))) {
            return false;
        }
    }
    return true;
}

static bool put_tensor(sl_pack_writer *w, size_t i, sl_error *err) {
    const sl_tensor *from = sl_ckpt_tensor(w->job.source, w->job.tensors[i]);
    return put_parts(w, &w->plan->tensors[i], from->part, NULL, 0, err) ||
           sl_fail_prefix(err, "tensor \"%s\"", from->name);
}

static bool put_expert(sl_pack_writer *w, size_t layer, int32_t x, const float *importance, sl_error *err) {
    const sl_pack_layer *from = &w->job.layers[layer];
    const pack_layer *to = &w->plan->layers[layer];
    const pack_unit *u = &to->file.v[x];
    if (w->job.affine.bits) {
        return pack_convert_expert(&w->convert, from, x, to, importance, w->blob, err) &&
               put_bytes(w, w->blob, u->bytes, err);
    }
    for (int proj = 0; proj < 3; proj++) {
        const sl_extent *extent = from->extent + (int64_t)x * SL_PACK_PARTS + proj * 3;
        if (!put_parts(w, &to->packed.proj[proj], extent, from->stride[proj], u->offset, err)) {
            return sl_fail_prefix(err, "layer %d expert %d", (int)to->layer, (int)x);
        }
    }
    return true;
}

/* Writes unit i of a file (0: resident.bin) and notes it once its bytes are out of our hands. */
static bool write_unit(sl_pack_writer *w, size_t file, size_t i, const float *importance, sl_error *err) {
    pack_unit *u = &pack_file(w->plan, file)->v[i];
    if (!put_zeros(w, u->offset, err)) {
        return false;
    }
    XXH3_64bits_reset(w->hash);
    if (!(file == 0 ? put_tensor(w, i, err) : put_expert(w, file - 1, (int32_t)i, importance, err)) || !flush(w, err)) {
        return false;
    }
    u->sum = XXH3_64bits_digest(w->hash);
    return pack_journal_unit(&w->journal, u->sum, err);
}

/* ---- files --------------------------------------------------------------------------------------------------------
 */

/* The checksum of a unit as it is in the file. */
static bool sum_unit(sl_pack_writer *w, const sl_file *f, const pack_unit *u, bool report, uint64_t *sum,
                     sl_error *err) {
    XXH3_64bits_reset(w->hash);
    for (uint64_t at = 0, n; at < u->bytes; at += n) {
        n = u->bytes - at < PIECE ? u->bytes - at : PIECE;
        if (!sl_file_read_uncached(f, u->offset + at, w->buffer, n, err) || (report && !moved(w, n, err))) {
            return false;
        }
        XXH3_64bits_update(w->hash, w->buffer, (size_t)n);
    }
    *sum = XXH3_64bits_digest(w->hash);
    return true;
}

/* How many of the units that the journal knows are in the file with their bytes. */
static size_t count_good(sl_pack_writer *w, const pack_units *u) {
    sl_error ignored;
    sl_file *f = sl_file_open(w->part, &ignored);
    size_t n = 0;
    uint64_t sum;
    while (f && n < w->journal.units && u->v[n].offset + u->v[n].bytes <= f->size &&
           sum_unit(w, f, &u->v[n], false, &sum, &ignored) && sum == u->v[n].sum) {
        n++;
    }
    sl_file_close(f);
    return n;
}

/* Opens the file that is next to be written, behind what holds of it already. */
static bool begin_file(sl_pack_writer *w, pack_units *u, const char *final, sl_error *err) {
    /* A kill between the renaming and the journal's line. */
    if (!sl_path_exists(w->part) && sl_path_exists(final) && rename(final, w->part) != 0) {
        return fail_write(w, errno, err);
    }
    size_t good = count_good(w, u);
    w->fd = open(w->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (w->fd < 0) {
        return sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot create", w->part);
    }
    w->used = 0;
    w->at = good ? u->v[good - 1].offset + u->v[good - 1].bytes : 0;
    if (ftruncate(w->fd, (off_t)w->at) != 0) {
        return fail_write(w, errno, err);
    }
    return pack_journal_cut(&w->journal, good, err) && moved(w, w->at, err);
}

static bool read_back(sl_pack_writer *w, const pack_units *u, sl_error *err) {
    sl_file *f = sl_file_open(w->part, err);
    bool ok = f != NULL;
    for (size_t i = 0; ok && i < u->count; i++) {
        uint64_t sum = 0;
        ok = sum_unit(w, f, &u->v[i], true, &sum, err);
        if (ok && sum != u->v[i].sum) {
            ok = sl_fail(err, SL_ERR_IO,
                         "%s: %" PRIu64 " bytes at offset %" PRIu64 " read back with checksum %016" PRIx64
                         ", expected %016" PRIx64 ": a faulty disk or memory?",
                         w->part, u->v[i].bytes, u->v[i].offset, sum, u->v[i].sum);
        }
    }
    sl_file_close(f);
    return ok;
}

/* The file is written: to the disk, read from there again, given its name. */
static bool end_file(sl_pack_writer *w, const pack_units *u, const char *final, sl_error *err) {
    if (!put_zeros(w, u->bytes, err) || !flush(w, err)) {
        return false;
    }
    if (fsync(w->fd) != 0) {
        return sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot bring it to the disk", w->part);
    }
#ifdef POSIX_FADV_DONTNEED
    posix_fadvise(w->fd, 0, 0, POSIX_FADV_DONTNEED);
#endif
    uint64_t before = w->done;
    if (!read_back(w, u, err)) {
        return false;
    }
    close(w->fd);
    w->fd = -1;
    if (rename(w->part, final) != 0) {
        return sl_fail_errno(err, SL_ERR_IO, errno, "%s: cannot rename it", w->part);
    }
    pack_target_sync(w->out);
    return pack_journal_file(&w->journal, err) && moved(w, before + u->bytes - w->done, err);
}

static bool write_file(sl_pack_writer *w, size_t file, const float *importance, sl_error *err) {
    pack_units *u = pack_file(w->plan, file);
    char *final = sl_path_join(w->out, u->name);
    free(w->part);
    w->part = final ? sl_asprintf("%s.part", final) : NULL;
    bool ok = w->part ? begin_file(w, u, final, err) : no_memory(w, err);
    for (size_t i = w->journal.units; ok && i < u->count; i++) {
        ok = write_unit(w, file, i, importance, err);
    }
    ok = ok && end_file(w, u, final, err);
    if (w->fd >= 0) {
        close(w->fd);
        w->fd = -1;
    }
    free(final);
    return ok;
}

/* ---- the whole ----------------------------------------------------------------------------------------------------
 */

static bool is_there(const sl_pack_writer *w, const pack_side *s) {
    sl_error ignored;
    size_t n = 0;
    char *path = sl_path_join(w->out, s->name);
    char *text = path && sl_path_exists(path) ? sl_read_text(path, CKPT_SIDE_FILE_LIMIT, &n, &ignored) : NULL;
    bool same = text && n == s->bytes && sl_pack_sum(text, n) == s->sum;
    free(text);
    free(path);
    return same;
}

static bool write_sides(sl_pack_writer *w, sl_error *err) {
    for (size_t i = 0; i < w->plan->side_count; i++) {
        const pack_side *s = &w->plan->sides[i];
        size_t n = 0;
        if (is_there(w, s)) {
            continue;
        }
        uint8_t *bytes = pack_side_bytes(w->job.source, s->name, &n, err);
        bool ok = bytes && (n == s->bytes && sl_pack_sum(bytes, n) == s->sum
                                ? pack_target_put(w->out, s->name, bytes, n, err)
                                : sl_fail(err, SL_ERR_IO, "%s: %s changes while it is packed",
                                          sl_ckpt_path(w->job.source), s->name));
        free(bytes);
        if (!ok) {
            return false;
        }
    }
    return true;
}

static bool write_doc(sl_pack_writer *w, sl_error *err) {
    size_t n = 0;
    char *text = pack_doc_write(w->plan, true, &n);
    bool ok = text ? pack_target_put(w->out, PACK_JSON, text, n, err) : no_memory(w, err);
    free(text);
    pack_target_sync(w->out);
    return ok;
}

/* What only an unfinished pack needs. */
static bool clean_up(sl_pack_writer *w, sl_error *err) {
    char *importance = sl_path_join(w->out, IMPORTANCE);
    if (importance) {
        unlink(importance);
        free(importance);
    }
    if (w->state == SL_PACK_COMPLETE && has_file(w->out, PACK_JOURNAL) &&
        !pack_journal_open(&w->journal, w->out, w->id, w->plan, err)) {
        return false;
    }
    pack_journal_close(&w->journal, true);
    pack_target_sync(w->out);
    return true;
}

static bool make_buffers(sl_pack_writer *w, sl_error *err) {
    uint64_t largest = 0;
    for (size_t i = 0; i < w->plan->layer_count; i++) {
        uint64_t n = w->plan->layers[i].file.v[0].bytes;
        largest = n > largest ? n : largest;
    }
    w->buffer = malloc(PIECE);
    w->hash = XXH3_createState();
    w->blob = w->job.affine.bits ? calloc(1, (size_t)largest) : NULL;
    if (!w->buffer || !w->hash || (w->job.affine.bits && !w->blob)) {
        return no_memory(w, err);
    }
    XXH3_64bits_reset(w->hash);
    return !w->job.affine.bits || pack_convert_open(&w->convert, &w->job, err);
}

/* What the first n files, which were finished before, should be. What somebody took from them since is not made again:
 * nothing says that the rest of them is whole. */
static bool check_finished(sl_pack_writer *w, size_t n, sl_error *err) {
    for (size_t i = 0; i < n; i++) {
        const pack_units *u = pack_file(w->plan, i);
        char *path = sl_path_join(w->out, u->name);
        sl_error ignored;
        sl_file *f = path ? sl_file_open(path, &ignored) : NULL;
        uint64_t size = f ? f->size : 0;
        bool ok = f && size == u->bytes;
        sl_file_close(f);
        if (!ok) {
            sl_fail(err, SL_ERR_FORMAT, "%s: %" PRIu64 " bytes, %" PRIu64 " were written: remove %s and pack again",
                    path ? path : w->out, size, u->bytes, w->out);
        }
        free(path);
        if (!ok) {
            return false;
        }
    }
    return true;
}

bool sl_pack_writer_run(sl_pack_writer *w, const float *importance, sl_error *err) {
    if (w->state == SL_PACK_COMPLETE) {
        return check_finished(w, w->plan->layer_count + 1, err) && clean_up(w, err);
    }
    if (!check_finished(w, w->journal.files, err)) {
        return false;
    }
    if (!make_buffers(w, err) || !write_sides(w, err)) {
        return false;
    }
    for (size_t i = 0; i < w->journal.files; i++) {
        w->done += 2 * pack_file(w->plan, i)->bytes;
    }
    for (size_t i = w->journal.files; i <= w->plan->layer_count; i++) {
        /* Values of the layers before this one. */
        const float *own = importance;
        for (size_t k = 0; own && k + 1 < i; k++) {
            own += w->job.layers[k].proj[0].shape[1] + w->job.layers[k].proj[2].shape[1];
        }
        if (!write_file(w, i, own, err)) {
            return false;
        }
    }
    return write_doc(w, err) && clean_up(w, err);
}

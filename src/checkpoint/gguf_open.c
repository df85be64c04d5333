/* Opens a GGUF checkpoint: reads headers from disk, and finds all shards of a split one from any of them. */
#include "checkpoint/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_READ   (256u << 10)
#define HEADER_LIMIT (1ull << 30) /* the largest vocabularies make about 20 MB */
#define SHARD_LIMIT  99999        /* five digits in the file name */

/* ---- one header -------------------------------------------------------------------------------------------------- */

/* Makes *buf hold the first `want` bytes of the file, of which `have` are there. */
static bool read_more(const sl_file *f, uint8_t **buf, uint64_t have, uint64_t want, sl_error *err) {
    uint8_t *bigger = realloc(*buf, (size_t)want + 1);
    if (!bigger) {
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for a header of %" PRIu64 " bytes", f->path, want);
    }
    *buf = bigger;
    return sl_file_read(f, have, bigger + have, want - have, err);
}

/* Gives back what was read beyond the header. Strings point into the bytes, so they are parsed again. */
static sl_gguf *trim(const sl_file *f, sl_gguf *g, uint8_t *buf, sl_error *err) {
    uint64_t need, n = g->header_bytes;
    uint8_t *exact = realloc(buf, (size_t)n);
    sl_gguf_free(g);
    exact = exact ? exact : buf;
    g = gguf_parse(exact, n, f->size, f->path, &need, err);
    if (!g) {
        free(exact);
        return NULL;
    }
    g->owned = exact;
    return g;
}

/* How far a header reaches is known only when it was parsed: it is tried with twice the bytes until it fits, so that
 * the whole work is linear. */
sl_gguf *gguf_read(const sl_file *f, sl_error *err) {
    uint8_t *buf = NULL;
    uint64_t have = 0, want = f->size < FIRST_READ ? f->size : FIRST_READ;
    while (read_more(f, &buf, have, want, err)) {
        uint64_t need;
        have = want;
        sl_gguf *g = gguf_parse(buf, have, f->size, f->path, &need, err);
        if (g) {
            return trim(f, g, buf, err);
        }
        if (need == 0) {
            break;
        }
        if (need > HEADER_LIMIT) {
            sl_fail(err, SL_ERR_FORMAT, "%s: header needs %" PRIu64 " bytes or more, expected at most %llu", f->path,
                    need, HEADER_LIMIT);
            break;
        }
        want = need > 2 * have ? need : 2 * have;
        want = want < f->size ? want : f->size;
    }
    free(buf);
    return NULL;
}

/* ---- tensors of one file -------------------------------------------------------------------------------------------
 */

static bool add_tensor(sl_ckpt *c, const gguf_tensor *g, int file, sl_error *err) {
    sl_tensor t = {.format = g->format, .dims = g->dims, .parts = 1};
    memcpy(t.shape, g->shape, sizeof t.shape);
    t.part[0] = (sl_extent){.file = file, .offset = g->offset, .bytes = g->bytes};
    t.name = sl_strndup(g->name.p, g->name.n);
    if (!t.name) {
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", c->files[file]->path);
    }
    return ckpt_add_tensor(c, &t, err);
}

static bool add_tensors(sl_ckpt *c, const sl_gguf *g, int file, sl_error *err) {
    for (size_t i = 0; i < g->tensor_count; i++) {
        if (!add_tensor(c, &g->tensors[i], file, err)) {
            return false;
        }
    }
    return true;
}

/* ---- splits
 * ---------------------------------------------------------------------------------------------------------- */

/* What the keys split.no, split.count, split.tensors.count say; a whole file is shard 0 of 1. */
typedef struct split {
    int64_t no, count, tensors; /* tensors: -1 where it is not said */
} split;

static bool find_split(const sl_gguf *g, const char *path, split *out, sl_error *err) {
    *out = (split){.no = 0, .count = 1, .tensors = -1};
    gguf_get_i64(g, "split.no", &out->no);
    gguf_get_i64(g, "split.count", &out->count);
    gguf_get_i64(g, "split.tensors.count", &out->tensors);
    if (out->count == 0) { /* written by some tools into whole files */
        out->count = 1;
    }
    if (out->count < 1 || out->count > SHARD_LIMIT || out->no < 0 || out->no >= out->count) {
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: split.no %" PRId64 ", split.count %" PRId64 ", expected 0 <= no < count <= %d", path,
                       out->no, out->count, SHARD_LIMIT);
    }
    return true;
}

/* Path of shard `no`: PREFIX-00001-of-00003.gguf counts from 1. */
static char *shard_path(const char *prefix, int64_t no, int64_t count) {
    return sl_asprintf("%s-%05" PRId64 "-of-%05" PRId64 ".gguf", prefix, no + 1, count);
}

/* PREFIX of a shard's path, which must be the one that its keys ask for. */
static char *shard_prefix(const char *path, const split *s, sl_error *err) {
    char *tail = shard_path("", s->no, s->count);
    if (!tail) {
        return sl_fail_null(err, SL_ERR_MEMORY, "%s: out of memory", path);
    }
    char *prefix = NULL;
    if (!ckpt_has_suffix(path, tail)) {
        sl_fail(err, SL_ERR_FORMAT,
                "%s: is shard %" PRId64 " of %" PRId64 " by its keys, expected a name that ends in \"%s\"", path,
                s->no + 1, s->count, tail);
    } else if (!(prefix = sl_strndup(path, strlen(path) - strlen(tail)))) {
        sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    }
    free(tail);
    return prefix;
}

/* Adds one shard; keeps the first one's metadata. */
static bool add_shard(sl_ckpt *c, const char *path, int64_t no, const split *whole, sl_error *err) {
    if (!sl_path_exists(path)) {
        return sl_fail(err, SL_ERR_IO, "%s: shard %" PRId64 " of %" PRId64 " is missing; %s needs it", path, no + 1,
                       whole->count, c->path);
    }
    sl_file *f = ckpt_add_file(c, path, err);
    sl_gguf *g = f ? gguf_read(f, err) : NULL;
    if (!g) {
        return false;
    }
    split s;
    bool ok = find_split(g, path, &s, err);
    if (ok && (s.no != no || s.count != whole->count)) {
        ok = sl_fail(err, SL_ERR_FORMAT,
                     "%s: split.no %" PRId64 ", split.count %" PRId64 ", expected %" PRId64 " and %" PRId64, path, s.no,
                     s.count, no, whole->count);
    }
    ok = ok && add_tensors(c, g, (int)c->file_count - 1, err);
    if (no == 0) {
        c->gguf = g;
    } else {
        sl_gguf_free(g);
    }
    return ok;
}

static bool open_split(sl_ckpt *c, const split *whole, sl_error *err) {
    char *prefix = shard_prefix(c->path, whole, err);
    bool ok = prefix != NULL;
    for (int64_t no = 0; ok && no < whole->count; no++) {
        char *path = shard_path(prefix, no, whole->count);
        ok = path ? add_shard(c, path, no, whole, err) : sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", c->path);
        free(path);
    }
    free(prefix);
    if (ok && whole->tensors >= 0 && (uint64_t)whole->tensors != c->tensor_count) {
        ok = sl_fail(err, SL_ERR_FORMAT, "%s: the shards hold %zu tensors, expected split.tensors.count %" PRId64,
                     c->path, c->tensor_count, whole->tensors);
    }
    return ok;
}

/* The given file says whether it is a shard; then all are opened in order, it among them. */
bool gguf_open(sl_ckpt *c, sl_error *err) {
    sl_file *f = ckpt_add_file(c, c->path, err);
    sl_gguf *g = f ? gguf_read(f, err) : NULL;
    split whole;
    if (!g) {
        return false;
    }
    if (!find_split(g, c->path, &whole, err)) {
        sl_gguf_free(g);
        return false;
    }
    if (whole.count == 1) {
        c->gguf = g;
        return add_tensors(c, g, 0, err);
    }
    sl_gguf_free(g);
    sl_file_close(f);
    c->file_count = 0;
    return open_split(c, &whole, err);
}

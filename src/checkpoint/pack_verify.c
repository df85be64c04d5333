/* Reads a pack's every byte and compares it with its checksum. */
#include "checkpoint/pack_plan.h"

#define XXH_INLINE_ALL
#include <inttypes.h>
#include <stdlib.h>
#include <xxhash.h>

enum { PIECE = 4 << 20 };

typedef struct verify {
    sl_ckpt *c;
    uint8_t *buffer;
    XXH3_state_t *hash;
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    uint64_t done, total, damaged;
    sl_error *err; /* the first damage */
} verify;

/* False: stopped, or the file cannot be read. */
static bool sum_range(verify *v, const sl_file *f, uint64_t offset, uint64_t bytes, uint64_t *sum, sl_error *why) {
    XXH3_64bits_reset(v->hash);
    for (uint64_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < PIECE ? bytes - at : PIECE;
        if (!sl_file_read_uncached(f, offset + at, v->buffer, n, why)) {
            return false;
        }
        XXH3_64bits_update(v->hash, v->buffer, (size_t)n);
        v->done += n;
        if (v->progress && !v->progress(v->user, v->done, v->total)) {
            return sl_fail(why, SL_ERR_CANCELLED, "%s: stopped", sl_ckpt_path(v->c));
        }
    }
    *sum = XXH3_64bits_digest(v->hash);
    return true;
}

/* Compares one range; what: as the message names it. Only a stop ends the whole. */
static bool check_range(verify *v, const sl_file *f, uint64_t offset, uint64_t bytes, uint64_t expected,
                        const char *what) {
    sl_error why = {0};
    uint64_t sum = 0;
    bool read = sum_range(v, f, offset, bytes, &sum, &why);
    if (!read && why.code == SL_ERR_CANCELLED) {
        *v->err = why;
        return false;
    }
    if (read && sum == expected) {
        return true;
    }
    if (v->damaged++ > 0) {
        return true;
    }
    if (read) {
        sl_fail(v->err, SL_ERR_FORMAT,
                "%s: %s is damaged: checksum %016" PRIx64 ", expected %016" PRIx64 " (%" PRIu64
                " bytes at offset %" PRIu64 ")",
                f->path, what, sum, expected, bytes, offset);
    } else {
        *v->err = why;
        sl_fail_prefix(v->err, "%s", what);
    }
    return true;
}

static bool check_units(verify *v, const pack_units *u, int file, int32_t layer) {
    const sl_file *f = sl_ckpt_file(v->c, file);
    for (size_t i = 0; i < u->count; i++) {
        char *what = layer < 0 ? sl_asprintf("tensor \"%s\"", v->c->pack->tensors[i].name)
                               : sl_asprintf("layer %d expert %zu", (int)layer, i);
        bool ok = what ? check_range(v, f, u->v[i].offset, u->v[i].bytes, u->v[i].sum, what)
                       : sl_fail(v->err, SL_ERR_MEMORY, "out of memory");
        free(what);
        if (!ok) {
            return false;
        }
    }
    return true;
}

static bool check_sides(verify *v) {
    const pack *p = v->c->pack;
    for (size_t i = 0; i < p->side_count; i++) {
        char *path = sl_path_join(sl_ckpt_path(v->c), p->sides[i].name);
        sl_file *f = path ? sl_file_open(path, v->err) : NULL;
        bool ok = f && check_range(v, f, 0, p->sides[i].bytes, p->sides[i].sum, "the file");
        sl_file_close(f);
        free(path);
        if (!ok) {
            return false;
        }
    }
    return true;
}

static uint64_t units_bytes(const pack_units *u) {
    uint64_t n = 0;
    for (size_t i = 0; i < u->count; i++) {
        n += u->v[i].bytes;
    }
    return n;
}

static bool check_all(verify *v) {
    const pack *p = v->c->pack;
    v->total = units_bytes(&p->resident);
    for (size_t i = 0; i < p->layer_count; i++) {
        v->total += units_bytes(&p->layers[i].file);
    }
    for (size_t i = 0; i < p->side_count; i++) {
        v->total += p->sides[i].bytes;
    }
    bool ok = check_sides(v) && check_units(v, &p->resident, 0, -1);
    for (size_t i = 0; ok && i < p->layer_count; i++) {
        ok = check_units(v, &p->layers[i].file, (int)i + 1, p->layers[i].layer);
    }
    return ok;
}

bool sl_ckpt_verify_pack(const char *path, bool (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                         uint64_t *damaged, sl_error *err) {
    verify v = {.progress = progress, .user = user, .err = err};
    *damaged = 0;
    if (!pack_is_dir(path)) {
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: no pack (a directory with " PACK_JSON " expected)", path);
    }
    v.c = sl_ckpt_open(path, err);
    v.buffer = v.c ? malloc(PIECE) : NULL;
    v.hash = v.c ? XXH3_createState() : NULL;
    bool ok = v.c && ((v.buffer && v.hash) || sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path)) && check_all(&v);
    *damaged = v.damaged;
    XXH3_freeState(v.hash);
    free(v.buffer);
    sl_ckpt_close(v.c);
    return ok && v.damaged == 0;
}

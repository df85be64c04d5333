/* Recorded reads once more, without computing: the disk's part of a bound. With the reader that the engine has, so with
 * both disks where there are two, and as deep; bursts are waited for as layers wait for theirs. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BLOCK = 4096, HUGE_PAGE = 2 << 20, RESULTS = 8, AREA = 16 << 20, STOP_NS = 50000000 };

typedef struct replay {
    const sl_engine *e;
    sl_reader *reader;
    uint8_t *area; /* reads share it: nobody looks at them */
    uint64_t area_bytes, used;
    sl_read *read; /* of one burst */
    size_t capacity;
    int n;
} replay;

static const sl_file *find_file(const sl_engine *e, const char *path) {
    for (int i = 0; i < sl_ckpt_file_count(e->ckpt); i++)
        if (strcmp(sl_ckpt_file(e->ckpt, i)->path, path) == 0)
            return sl_ckpt_file(e->ckpt, i);
    return NULL;
}

/* Rounded out to what O_DIRECT wants, and in as many reads as the area makes of it. */
static bool add_read(replay *r, const sl_trace *t, sl_error *err) {
    const sl_file *f = find_file(r->e, t->path);
    uint64_t end;
    if (!f || !sl_add_u64(t->offset, t->bytes, &end) || t->offset >= f->size)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: no %llu bytes at %llu are there to be read again", t->path,
                       (unsigned long long)t->bytes, (unsigned long long)t->offset);
    uint64_t align = r->reader->direct && f->direct_fd >= 0 ? f->direct_align : 1, at = t->offset / align * align;
    for (uint64_t bytes; at < end; at += bytes) {
        bytes = sl_round_up(end - at, align);
        bytes = bytes < r->area_bytes ? bytes : r->area_bytes;
        if (!sl_grow((void **)&r->read, &r->capacity, (size_t)r->n + 1, sizeof *r->read))
            return sl_fail(err, SL_ERR_MEMORY, "out of memory for a replay");
        if (r->used + bytes > r->area_bytes)
            r->used = 0;
        r->read[r->n++] = (sl_read){.file = f,
                                    .offset = at,
                                    .bytes = bytes,
                                    .need = f->size - at < bytes ? f->size - at : bytes,
                                    .dst = r->area + r->used};
        r->used = sl_round_up(r->used + bytes, BLOCK);
    }
    return true;
}

static bool stopped(const replay *r, sl_error *err) {
    const sl_engine_options *o = &r->e->options;
    return o->stop && o->stop(o->stop_user) && !sl_fail(err, SL_ERR_CANCELLED, "cancelled while reads were replayed");
}

/* -1: stopped. 0: there is nothing to wait for. */
static int collect(replay *r, sl_read_result *got, sl_error *err) {
    for (;;) {
        uint64_t began = sl_now_ns();
        int n = r->reader->collect(r->reader, got, RESULTS, STOP_NS);
        if (n > 0 || sl_now_ns() - began < STOP_NS / 2)
            return n > 0 ? n : 0;
        if (stopped(r, err))
            return -1;
    }
}

static bool run_burst(replay *r, sl_error *err) {
    sl_read_result got[RESULTS];
    bool ok = r->n == 0 || r->reader->submit(r->reader, r->read, r->n, err);
    for (int left = r->n; ok && left > 0;) {
        int n = collect(r, got, err);
        if (n < 0)
            return false;
        if (n == 0)
            return sl_fail(err, SL_ERR_IO, "%d reads of a replay never came back", left);
        for (int i = 0; i < n; i++) {
            left -= !got[i].quarantined;
            if (got[i].ok)
                continue;
            if (err)
                *err = got[i].error;
            return false;
        }
    }
    return ok;
}

static bool run_bursts(replay *r, const sl_trace *t, size_t n, uint64_t *ns, size_t *bursts, sl_error *err) {
    for (size_t i = 0; i < n;) {
        size_t first = i;
        r->n = 0;
        r->used = 0;
        for (; i < n && t[i].burst == t[first].burst; i++)
            if (!add_read(r, &t[i], err))
                return false;
        if (stopped(r, err))
            return false;
        uint64_t began = sl_now_ns();
        if (!run_burst(r, err))
            return false;
        ns[(*bursts)++] = sl_now_ns() - began;
    }
    return true;
}

static bool open_replay(replay *r, uint64_t area, sl_error *err) {
    void *p = NULL;
    r->area_bytes = sl_round_up(area ? area : AREA, BLOCK);
    if (posix_memalign(&p, HUGE_PAGE, sl_round_up(r->area_bytes, HUGE_PAGE)) != 0)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a replay");
#ifdef MADV_HUGEPAGE
    madvise(p, r->area_bytes, MADV_HUGEPAGE); /* as the engine's slabs: reads to small pages are more requests */
#endif
    r->area = p;
    memset(p, 0, r->area_bytes);
    r->reader = engine_open_reader(r->e, false, NULL, NULL, err);
    if (r->reader && r->reader->add_memory)
        r->reader->add_memory(r->reader, r->area, r->area_bytes);
    return r->reader != NULL;
}

bool sl_engine_replay(const sl_engine *e, const sl_trace *reads, size_t n, uint64_t area, uint64_t *ns, size_t *bursts,
                      sl_error *err) {
    replay r = {.e = e};
    *bursts = 0;
    bool ok = open_replay(&r, area, err) && run_bursts(&r, reads, n, ns, bursts, err);
    if (r.reader)
        r.reader->close(r.reader);
    free(r.area);
    free(r.read);
    return ok;
}

/* Replays recorded reads without computing: the disk's part of the causal bound. The reads of one burst are issued
 * together, the next burst begins when they are done, as the engine's layers do. */
#include "cli.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef SL_HAVE_URING
#include <liburing.h>
#endif

enum { PREAD_THREADS = 8, URING_DEPTH = 64, AREA_BYTES = 16 << 20, STREAM_READS = 1024 };

/* One read, rounded out to what O_DIRECT wants. The bytes go to an area that reads share: nobody looks at them. */
typedef struct replay_read {
    int fd;
    uint64_t offset, bytes;
    uint8_t *to;
} replay_read;

typedef struct replay {
    sl_file **files;
    const char **paths;
    size_t file_count, file_capacity, path_capacity;
    bool buffered;
    uint8_t *area;
    uint64_t area_bytes, used;
    replay_read *reads; /* of one burst */
    size_t count, capacity;
} replay;

static sl_file *file_of(replay *r, const char *path, sl_error *err) {
    for (size_t i = 0; i < r->file_count; i++)
        if (strcmp(r->paths[i], path) == 0)
            return r->files[i];
    if (!sl_grow((void **)&r->files, &r->file_capacity, r->file_count + 1, sizeof *r->files) ||
        !sl_grow((void **)&r->paths, &r->path_capacity, r->file_count + 1, sizeof *r->paths))
        return sl_fail_null(err, SL_ERR_MEMORY, "out of memory for the replay's files");
    sl_file *f = sl_file_open(path, err);
    if (f) {
        r->files[r->file_count] = f;
        r->paths[r->file_count++] = path;
    }
    return f;
}

static bool add_read(replay *r, const sl_trace *t, sl_error *err) {
    sl_file *f = file_of(r, t->path, err);
    if (!f)
        return false;
    bool direct = !r->buffered && f->direct_fd >= 0;
    uint64_t align = direct ? f->direct_align : 1, begin = t->offset / align * align,
             bytes = sl_round_up(t->offset + t->bytes - begin, align);
    if (bytes > r->area_bytes)
        return sl_fail(err, SL_ERR_MEMORY, "a read of %llu bytes is larger than the replay's buffer",
                       (unsigned long long)bytes);
    if (r->used + bytes > r->area_bytes)
        r->used = 0;
    if (!sl_grow((void **)&r->reads, &r->capacity, r->count + 1, sizeof *r->reads))
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the replay's reads");
    r->reads[r->count++] = (replay_read){direct ? f->direct_fd : f->fd, begin, bytes, r->area + r->used};
    r->used = sl_round_up(r->used + bytes, 4096);
    return true;
}

/* ---- a pool of preads -------------------------------------------------------------------------------------------- */

typedef struct pread_pool {
    pthread_t threads[PREAD_THREADS];
    int started;
    pthread_mutex_t lock;
    pthread_cond_t begin, end;
    const replay_read *reads;
    size_t count, next, done;
    bool failed, over;
} pread_pool;

static bool read_all(const replay_read *r) {
    for (uint64_t done = 0; done < r->bytes;) {
        ssize_t n = pread(r->fd, r->to + done, r->bytes - done, (off_t)(r->offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n == 0; /* the file's end cuts a rounded read short */
        done += (uint64_t)n;
    }
    return true;
}

static void *serve_reads(void *arg) {
    pread_pool *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->over) {
        if (p->next == p->count) {
            pthread_cond_wait(&p->begin, &p->lock);
            continue;
        }
        const replay_read *r = &p->reads[p->next++];
        pthread_mutex_unlock(&p->lock);
        bool ok = read_all(r);
        pthread_mutex_lock(&p->lock);
        p->failed |= !ok;
        if (++p->done == p->count)
            pthread_cond_signal(&p->end);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static bool pool_start(pread_pool *p) {
    *p = (pread_pool){
        .lock = PTHREAD_MUTEX_INITIALIZER, .begin = PTHREAD_COND_INITIALIZER, .end = PTHREAD_COND_INITIALIZER};
    while (p->started < PREAD_THREADS && pthread_create(&p->threads[p->started], NULL, serve_reads, p) == 0)
        p->started++;
    return p->started > 0;
}

static bool pool_burst(pread_pool *p, const replay_read *reads, size_t n) {
    pthread_mutex_lock(&p->lock);
    p->reads = reads;
    p->count = n;
    p->next = p->done = 0;
    pthread_cond_broadcast(&p->begin);
    while (p->done < n)
        pthread_cond_wait(&p->end, &p->lock);
    p->count = p->next = 0;
    bool ok = !p->failed;
    pthread_mutex_unlock(&p->lock);
    return ok;
}

static void pool_stop(pread_pool *p) {
    pthread_mutex_lock(&p->lock);
    p->over = true;
    pthread_cond_broadcast(&p->begin);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->started; i++)
        pthread_join(p->threads[i], NULL);
}

/* ---- io_uring ---------------------------------------------------------------------------------------------------- */

#ifdef SL_HAVE_URING
static bool uring_burst(struct io_uring *ring, const replay_read *reads, size_t n) {
    size_t issued = 0, done = 0;
    bool ok = true;
    while (done < n) {
        while (issued < n && issued - done < URING_DEPTH) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
            if (!sqe)
                break;
            io_uring_prep_read(sqe, reads[issued].fd, reads[issued].to, (unsigned)reads[issued].bytes,
                               reads[issued].offset);
            issued++;
        }
        struct io_uring_cqe *cqe;
        int rc = io_uring_submit_and_wait(ring, 1);
        if (rc < 0 && rc != -EINTR)
            return false;
        while (io_uring_peek_cqe(ring, &cqe) == 0) {
            ok &= cqe->res >= 0;
            io_uring_cqe_seen(ring, cqe);
            done++;
        }
    }
    return ok;
}
#endif

/* ---- replay ------------------------------------------------------------------------------------------------------ */

typedef struct burst_reader {
#ifdef SL_HAVE_URING
    struct io_uring ring;
#endif
    bool uring;
    pread_pool pool;
} burst_reader;

static bool reader_start(burst_reader *b, bool want_uring, sl_error *err) {
    b->uring = false;
#ifdef SL_HAVE_URING
    b->uring = want_uring && io_uring_queue_init(URING_DEPTH, &b->ring, 0) == 0;
#endif
    return b->uring || pool_start(&b->pool) || sl_fail(err, SL_ERR_MEMORY, "no threads for the replay");
}

static bool reader_burst(burst_reader *b, const replay *r) {
#ifdef SL_HAVE_URING
    if (b->uring)
        return uring_burst(&b->ring, r->reads, r->count);
#endif
    return pool_burst(&b->pool, r->reads, r->count);
}

static void reader_stop(burst_reader *b) {
#ifdef SL_HAVE_URING
    if (b->uring) {
        io_uring_queue_exit(&b->ring);
        return;
    }
#endif
    pool_stop(&b->pool);
}

static bool replay_bursts(replay *r, burst_reader *reader, const sl_trace *trace, size_t n, cli_replay *out,
                          sl_error *err) {
    for (size_t i = 0; i < n;) {
        size_t first = i;
        r->count = 0;
        r->used = 0;
        for (; i < n && trace[i].burst == trace[first].burst; i++) {
            if (!add_read(r, &trace[i], err))
                return false;
            out->bytes += trace[i].bytes;
        }
        uint64_t began = sl_now_ns();
        if (!reader_burst(reader, r))
            return sl_fail(err, SL_ERR_IO, "%s: replaying the reads of layer %d failed", trace[first].path,
                           trace[first].layer);
        uint64_t took = sl_now_ns() - began;
        out->layer[out->bursts] = trace[first].layer;
        out->ns[out->bursts++] = took;
        out->total_ns += took;
    }
    return true;
}

/* The disk without the waits between bursts: some of the same reads as one. */
static bool replay_stream(replay *r, burst_reader *reader, const sl_trace *trace, size_t n, cli_replay *out,
                          sl_error *err) {
    uint64_t bytes = 0;
    size_t some = n < STREAM_READS ? n : STREAM_READS, first = (n - some) / 2;
    r->count = 0;
    r->used = 0;
    for (size_t i = first; i < first + some; i++) {
        if (!add_read(r, &trace[i], err))
            return false;
        bytes += r->reads[r->count - 1].bytes;
    }
    uint64_t began = sl_now_ns();
    if (some > 0 && !reader_burst(reader, r))
        return sl_fail(err, SL_ERR_IO, "%s: replaying reads at once failed", trace[first].path);
    uint64_t took = sl_now_ns() - began;
    out->rate = bytes && took ? (double)bytes * 1e9 / (double)took : 0;
    return true;
}

bool cli_replay_trace(const sl_trace *trace, size_t n, const sl_engine_info *info, bool buffered, int what,
                      uint64_t area_bytes, cli_replay *out, sl_error *err) {
    replay r = {.buffered = buffered, .area_bytes = area_bytes ? area_bytes : AREA_BYTES};
    burst_reader reader;
    void *area = NULL;
    *out = (cli_replay){.ns = calloc(n + 1, sizeof *out->ns), .layer = calloc(n + 1, sizeof *out->layer)};
    bool ok = out->ns && out->layer && (area = cli_read_memory(r.area_bytes)) != NULL;
    r.area = area;
    if (!ok) {
        sl_fail(err, SL_ERR_MEMORY, "out of memory for the replay of %zu reads", n);
    } else {
        ok = reader_start(&reader, strstr(info->reader, "uring") != NULL, err);
        if (ok) {
            out->reader = reader.uring ? "uring" : "pread";
            ok = (!(what & CLI_REPLAY_BURSTS) || replay_bursts(&r, &reader, trace, n, out, err)) &&
                 (!(what & CLI_REPLAY_STREAM) || replay_stream(&r, &reader, trace, n, out, err));
            reader_stop(&reader);
        }
    }
    for (size_t i = 0; i < r.file_count; i++)
        sl_file_close(r.files[i]);
    free(r.files);
    free(r.paths);
    free(r.reads);
    free(area);
    return ok;
}

void cli_replay_free(cli_replay *r) {
    free(r->ns);
    free(r->layer);
    *r = (cli_replay){0};
}

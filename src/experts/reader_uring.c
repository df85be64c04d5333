/* The io_uring reader: reads go to the kernel from the step's own thread, many at once, and come back through a ring
 * in shared memory, so that looking for results costs no system call.
 *
 * At most `depth` pieces of a disk are with the kernel; the rest waits in the job lists and follows as completions are
 * seen. Disks share the ring and nothing else.
 * Slabs are registered one by one, which saves pinning their pages at every read; where RLIMIT_MEMLOCK forbids that
 * the same read is issued unregistered. */
#include "experts/reader.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_DEPTH = 64, MAX_DEPTH = 4096, MAX_REGIONS = 4096, NO_PIECE = -1 };

/* A registered slab. */
typedef struct region {
    uint8_t *base;
    uint64_t bytes;
    int number; /* in the kernel's table */
} region;

typedef struct flight {
    experts_piece piece;
    int next_free;
} flight;

typedef struct lane {
    experts_jobs jobs;
    int depth, flying;
} lane;

typedef struct uring_reader {
    sl_reader base;
    struct io_uring ring;
    lane lane[SL_READER_DISKS];
    int lanes;
    int depth;       /* of all lanes */
    flight *flights; /* [depth] */
    int free_flight;
    int flying;
    bool registers;  /* the table of regions exists in the kernel */
    region *regions; /* [MAX_REGIONS], ascending */
    int region_count;
    int *free_numbers; /* [MAX_REGIONS], a stack */
    int free_number_count;
} uring_reader;

/* user_data of a piece is its flight; a cancel request carries this instead. */
#define CANCEL_DATA UINT64_MAX

static uring_reader *self_of(sl_reader *r) {
    return (uring_reader *)r;
}

/* ---- regions ---------------------------------------------------------------------------------------------------- */

static bool set_region(uring_reader *u, int number, void *base, uint64_t bytes) {
    struct iovec v = {base, (size_t)bytes};
    __u64 tag = 0;
    return io_uring_register_buffers_update_tag(&u->ring, (unsigned)number, &v, &tag, 1) == 1;
}

/* How many regions begin at or below p. */
static int regions_below(const uring_reader *u, const uint8_t *p) {
    int low = 0, high = u->region_count;
    while (low < high) {
        int mid = (low + high) / 2;
        if (u->regions[mid].base <= p)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void uring_add_memory(sl_reader *r, void *base, uint64_t bytes) {
    uring_reader *u = self_of(r);
    if (u->free_number_count == 0)
        return;
    int number = u->free_numbers[u->free_number_count - 1];
    if (!set_region(u, number, base, bytes))
        return;
    u->free_number_count--;
    int at = regions_below(u, base);
    memmove(&u->regions[at + 1], &u->regions[at], (size_t)(u->region_count - at) * sizeof *u->regions);
    u->regions[at] = (region){base, bytes, number};
    u->region_count++;
}

static void uring_remove_memory(sl_reader *r, void *base) {
    uring_reader *u = self_of(r);
    int at = regions_below(u, base) - 1;
    if (at < 0 || u->regions[at].base != base)
        return;
    set_region(u, u->regions[at].number, NULL, 0);
    u->free_numbers[u->free_number_count++] = u->regions[at].number;
    u->region_count--;
    memmove(&u->regions[at], &u->regions[at + 1], (size_t)(u->region_count - at) * sizeof *u->regions);
}

/* The registered region that holds [p, p + n), or NULL. */
static const region *find_region(const uring_reader *u, const uint8_t *p, uint64_t n) {
    int at = regions_below(u, p) - 1;
    if (at < 0)
        return NULL;
    const region *g = &u->regions[at];
    return (uint64_t)(p - g->base) + n <= g->bytes ? g : NULL;
}

/* The kernel's table starts empty; a kernel that refuses it leaves the stack of free numbers empty. */
static bool open_regions(uring_reader *u) {
    u->regions = calloc(MAX_REGIONS, sizeof *u->regions);
    u->free_numbers = calloc(MAX_REGIONS, sizeof *u->free_numbers);
    if (!u->regions || !u->free_numbers)
        return false;
    u->registers = io_uring_register_buffers_sparse(&u->ring, MAX_REGIONS) == 0;
    for (int i = 0; u->registers && i < MAX_REGIONS; i++)
        u->free_numbers[u->free_number_count++] = MAX_REGIONS - 1 - i;
    return true;
}

/* ---- issuing ---------------------------------------------------------------------------------------------------- */

static struct io_uring_sqe *get_sqe(uring_reader *u) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    if (!sqe) {
        io_uring_submit(&u->ring);
        sqe = io_uring_get_sqe(&u->ring);
    }
    return sqe;
}

/* Puts the rest of a piece on the ring; false: the ring is full, which only a kernel that takes nothing causes. */
static bool push_piece(uring_reader *u, flight *f) {
    struct io_uring_sqe *sqe = get_sqe(u);
    if (!sqe)
        return false;
    const experts_piece *p = &f->piece;
    const sl_read *r = &p->job->read;
    uint64_t at = p->begin + p->done;
    uint8_t *dst = r->dst + at;
    unsigned n = (unsigned)experts_piece_ask(&u->lane[r->disk].jobs, p);
    const region *g = find_region(u, dst, n);
    if (g)
        io_uring_prep_read_fixed(sqe, p->job->fd, dst, n, r->offset + at, g->number);
    else
        io_uring_prep_read(sqe, p->job->fd, dst, n, r->offset + at);
    io_uring_sqe_set_data64(sqe, (uint64_t)(f - u->flights));
    return true;
}

static lane *lane_of(uring_reader *u, const flight *f) {
    return &u->lane[f->piece.job->read.disk];
}

static void land(uring_reader *u, flight *f) {
    f->piece.job = NULL;
    f->next_free = u->free_flight;
    u->free_flight = (int)(f - u->flights);
    u->flying--;
}

static void piece_over(uring_reader *u, flight *f) {
    lane *l = lane_of(u, f);
    experts_job *ended = experts_jobs_piece_over(&l->jobs, &f->piece);
    land(u, f);
    l->flying--;
    if (ended) {
        experts_job_drop(ended);
        experts_jobs_finish(&l->jobs, ended);
    }
}

static void issue_piece(uring_reader *u, flight *f) {
    if (!push_piece(u, f)) {
        f->piece.failure = EXPERTS_READ_ERRNO;
        f->piece.saved_errno = EBUSY;
        piece_over(u, f);
    }
}

static void fill_lane(uring_reader *u, lane *l, uint64_t now) {
    while (l->flying < l->depth) { /* then there is a free flight, too */
        flight *f = &u->flights[u->free_flight];
        if (!experts_jobs_next_piece(&l->jobs, now, &f->piece))
            break;
        u->free_flight = f->next_free;
        u->flying++;
        l->flying++;
        issue_piece(u, f);
    }
}

/* Keeps the kernel's queues full. */
static void issue(uring_reader *u) {
    uint64_t now = sl_now_ns();
    for (int i = 0; i < u->lanes; i++)
        fill_lane(u, &u->lane[i], now);
    if (io_uring_sq_ready(&u->ring))
        io_uring_submit(&u->ring);
}

static bool uring_submit(sl_reader *r, const sl_read *reads, int n, sl_error *err) {
    uring_reader *u = self_of(r);
    if (n > 0 && !experts_jobs_add(&u->lane[reads->disk].jobs, reads, n, err))
        return false;
    issue(u);
    return true;
}

/* ---- collecting ------------------------------------------------------------------------------------------------- */

static void land_completion(uring_reader *u, const struct io_uring_cqe *cqe) {
    if (cqe->user_data == CANCEL_DATA)
        return;
    flight *f = &u->flights[cqe->user_data];
    bool over = experts_piece_advance(&f->piece, experts_piece_answer(&lane_of(u, f)->jobs, &f->piece, cqe->res));
    /* A read that was given up must not go on for ever on EAGAIN. */
    if (!over && f->piece.job->failure == EXPERTS_READ_OK)
        issue_piece(u, f);
    else
        piece_over(u, f);
}

static void land_completions(uring_reader *u) {
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        struct io_uring_cqe copy = *cqe;
        io_uring_cqe_seen(&u->ring, cqe);
        land_completion(u, &copy);
    }
}

static void cancel_flight(uring_reader *u, const flight *f) {
    struct io_uring_sqe *sqe = get_sqe(u);
    if (!sqe)
        return;
    io_uring_prep_cancel64(sqe, (uint64_t)(f - u->flights), 0);
    io_uring_sqe_set_data64(sqe, CANCEL_DATA);
}

static void cancel_flights(uring_reader *u, bool all) {
    for (int i = 0; i < u->depth; i++) {
        const flight *f = &u->flights[i];
        if (f->piece.job && (all || f->piece.job->state == EXPERTS_JOB_NOTICE))
            cancel_flight(u, f);
    }
}

static void expire(uring_reader *u) {
    uint64_t now = sl_now_ns();
    int flying = 0;
    for (int i = 0; i < u->lanes; i++)
        flying += experts_jobs_expire(&u->lane[i].jobs, now);
    if (flying > 0)
        cancel_flights(u, false);
}

/* Sleeps until a completion or `ns` have passed. */
static void wait_completion(uring_reader *u, uint64_t ns) {
    struct __kernel_timespec t = {(long long)(ns / 1000000000u), (long long)(ns % 1000000000u)};
    struct io_uring_cqe *cqe;
    int e = io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &t, NULL);
    /* Out of kernel memory or the like: no completion can be waited for, so do not spin. */
    if (e < 0 && e != -ETIME && e != -EINTR)
        experts_sleep(ns < 1000000 ? ns : 1000000);
}

static bool has_work(const uring_reader *u) {
    bool work = u->flying > 0;
    for (int i = 0; i < u->lanes; i++)
        work |= u->lane[i].jobs.waiting.first || u->lane[i].jobs.finished.first || u->lane[i].jobs.notices.first;
    return work;
}

static int take_results(uring_reader *u, sl_read_result *out, int max) {
    int n = 0;
    for (int i = 0; i < u->lanes; i++)
        n += experts_jobs_results(&u->lane[i].jobs, out + n, max - n);
    return n;
}

static uint64_t next_deadline(const uring_reader *u) {
    uint64_t at = UINT64_MAX;
    for (int i = 0; i < u->lanes; i++) {
        uint64_t own = experts_jobs_deadline(&u->lane[i].jobs);
        at = own < at ? own : at;
    }
    return at;
}

static int uring_collect(sl_reader *r, sl_read_result *out, int max, uint64_t timeout_ns) {
    uring_reader *u = self_of(r);
    uint64_t end = experts_end_of_wait(timeout_ns);
    for (;;) {
        land_completions(u);
        expire(u);
        issue(u);
        int n = take_results(u, out, max);
        uint64_t now = sl_now_ns();
        if (n > 0 || now >= end || !has_work(u))
            return n;
        uint64_t deadline = next_deadline(u);
        wait_completion(u, experts_time_left(deadline < end ? deadline : end, now));
    }
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

/* The kernel owns the pieces' memory until their completions are here. Requests it never took are not waited for. */
static void drain(uring_reader *u) {
    for (int i = 0; i < u->lanes; i++)
        experts_jobs_drop_waiting(&u->lane[i].jobs);
    cancel_flights(u, true);
    io_uring_submit(&u->ring);
    while (u->flying > (int)io_uring_sq_ready(&u->ring)) {
        wait_completion(u, 100000000);
        struct io_uring_cqe *cqe;
        while (io_uring_peek_cqe(&u->ring, &cqe) == 0) {
            uint64_t data = cqe->user_data;
            io_uring_cqe_seen(&u->ring, cqe);
            if (data != CANCEL_DATA)
                piece_over(u, &u->flights[data]);
        }
    }
}

static void free_reader(uring_reader *u) {
    for (int i = 0; i < u->lanes; i++)
        experts_jobs_free(&u->lane[i].jobs);
    free(u->flights);
    free(u->regions);
    free(u->free_numbers);
    free(u);
}

static void uring_close(sl_reader *r) {
    uring_reader *u = self_of(r);
    drain(u);
    /* Unpins the slabs now; leaving it to the ring's end would have the kernel do so some time later. */
    if (u->registers)
        io_uring_unregister_buffers(&u->ring);
    io_uring_queue_exit(&u->ring);
    free_reader(u);
}

/* Completions need not interrupt the thread while it computes: they are seen when it next looks. Kernels before 5.19
 * do not know these flags. */
static int open_ring(struct io_uring *ring, unsigned depth) {
    int e = io_uring_queue_init(depth, ring, IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
    return e == -EINVAL ? io_uring_queue_init(depth, ring, 0) : e;
}

static bool open_flights(uring_reader *u) {
    u->flights = calloc((size_t)u->depth, sizeof *u->flights);
    for (int i = 0; u->flights && i < u->depth; i++)
        u->flights[i].next_free = i + 1 < u->depth ? i + 1 : NO_PIECE;
    return u->flights != NULL;
}

static bool open_lanes(uring_reader *u, const experts_reader_setup *s, sl_error *err) {
    for (u->lanes = 0; u->lanes < s->disks; u->lanes++) {
        const experts_disk_setup *d = &s->disk[u->lanes];
        int depth = d->depth ? d->depth : DEFAULT_DEPTH;
        if (depth < 1 || depth > MAX_DEPTH)
            return sl_fail(err, SL_ERR_ARGUMENT, "io_uring: queue depth %d, expected 1 to %d", depth, MAX_DEPTH);
        experts_jobs jobs = {
            .direct = d->direct, .piece_bytes = d->piece_bytes, .timeout_ns = s->timeout_ns, .faults = s->faults};
        u->lane[u->lanes] = (lane){.jobs = jobs, .depth = depth};
        u->depth += depth;
    }
    return true;
}

sl_reader *experts_reader_uring(const experts_reader_setup *s, sl_error *err) {
    uring_reader *u = calloc(1, sizeof *u);
    if (!u)
        return sl_fail_null(err, SL_ERR_MEMORY, "io_uring: out of memory");
    if (!open_lanes(u, s, err)) {
        free_reader(u);
        return NULL;
    }
    int depth = u->depth, e = open_ring(&u->ring, (unsigned)depth);
    if (e < 0) {
        free_reader(u);
        return sl_fail_errno(err, SL_ERR_UNSUPPORTED, -e, "io_uring: cannot set up a ring of %d", depth), NULL;
    }
    if (!open_flights(u) || !open_regions(u)) {
        io_uring_queue_exit(&u->ring);
        free_reader(u);
        return sl_fail_null(err, SL_ERR_MEMORY, "io_uring: out of memory for a queue of %d", depth);
    }
    u->base = (sl_reader){.name = "uring",
                          .direct = s->disk[0].direct,
                          .submit = uring_submit,
                          .collect = uring_collect,
                          .add_memory = uring_add_memory,
                          .remove_memory = uring_remove_memory,
                          .close = uring_close};
    return &u->base;
}

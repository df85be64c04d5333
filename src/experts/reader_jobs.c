/* Jobs and pieces: the bookkeeping under the uring and pread readers. See reader.h for the life of a job. */
#include "experts/reader.h"

#include <errno.h>
#include <stdlib.h>

/* Pieces end on multiples of this from the start of a read, which keeps O_DIRECT's alignment whatever the file's. */
enum { PIECE_ALIGN = 4096 };

static experts_job *first_job(const experts_list *l) {
    return (experts_job *)l->first;
}

static void move_job(experts_job *j, experts_list *from, experts_list *to, experts_job_state state) {
    experts_list_remove(from, &j->link);
    experts_list_push_last(to, &j->link);
    j->state = state;
}

static void free_list(experts_list *l) {
    for (experts_link *n; (n = experts_list_pop_first(l));)
        free(n);
}

void experts_jobs_free(experts_jobs *q) {
    free_list(&q->waiting);
    free_list(&q->active);
    free_list(&q->notices);
    free_list(&q->late);
    free_list(&q->finished);
    free_list(&q->spare);
}

/* Pieces of equal size rather than full ones and a small rest: the rest would be over long before the others. */
static uint64_t piece_step(uint64_t bytes, uint64_t piece_bytes) {
    uint64_t pieces = (bytes + piece_bytes - 1) / piece_bytes;
    return pieces <= 1 ? bytes : sl_round_up((bytes + pieces - 1) / pieces, PIECE_ALIGN);
}

static experts_job *take_spare(experts_jobs *q) {
    experts_job *j = (experts_job *)experts_list_pop_first(&q->spare);
    return j ? j : malloc(sizeof *j);
}

/* Reads are aligned as their model's first disk wants it, which a second one may find too little. */
static bool is_aligned(const sl_read *r) {
    return (r->offset | r->bytes | (uintptr_t)r->dst) % r->file->direct_align == 0;
}

static void init_job(const experts_jobs *q, experts_job *j, const sl_read *r) {
    bool direct = experts_file_direct(r->file, q->direct) && is_aligned(r);
    *j = (experts_job){.read = *r,
                       .fd = direct ? r->file->direct_fd : r->file->fd,
                       .buffered = !direct,
                       .align = direct ? r->file->direct_align : 1,
                       .step = piece_step(r->bytes, q->piece_bytes)};
}

bool experts_jobs_add(experts_jobs *q, const sl_read *reads, int n, sl_error *err) {
    experts_list fresh = {NULL, NULL};
    for (int i = 0; i < n; i++) {
        experts_job *j = take_spare(q);
        if (!j) {
            free_list(&fresh);
            return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for a read", reads[i].file->path);
        }
        init_job(q, j, &reads[i]);
        experts_list_push_last(&fresh, &j->link);
    }
    if (!q->waiting.first)
        q->moved = sl_now_ns();
    for (experts_link *l; (l = experts_list_pop_first(&fresh));)
        experts_list_push_last(&q->waiting, l);
    return true;
}

/* Nothing beyond `need` has to be asked for, and nothing more of a read that is lost. */
static bool all_issued(const experts_job *j) {
    return j->issued >= j->read.need || j->failure != EXPERTS_READ_OK;
}

static experts_job *job_to_split(experts_jobs *q, uint64_t now) {
    if (q->splitting && !all_issued(q->splitting))
        return q->splitting;
    experts_job *j = first_job(&q->waiting);
    q->splitting = j;
    if (!j)
        return NULL;
    move_job(j, &q->waiting, &q->active, EXPERTS_JOB_ACTIVE);
    j->started = now;
    return j;
}

bool experts_jobs_next_piece(experts_jobs *q, uint64_t now, experts_piece *out) {
    experts_job *j = job_to_split(q, now);
    if (!j)
        return false;
    uint64_t left = j->read.bytes - j->issued;
    *out = (experts_piece){.job = j, .begin = j->issued, .bytes = left < j->step ? left : j->step};
    j->issued += out->bytes;
    j->flying++;
    q->moved = now;
    if (all_issued(j))
        q->splitting = NULL;
    return true;
}

static bool fail_piece(experts_piece *p, experts_read_failure failure, int saved_errno) {
    p->failure = failure;
    p->saved_errno = saved_errno;
    return true;
}

bool experts_piece_advance(experts_piece *p, int64_t result) {
    if (result == -EINTR || result == -EAGAIN)
        return false;
    if (result < 0)
        return fail_piece(p, EXPERTS_READ_ERRNO, (int)-result);
    uint64_t before = p->done;
    p->done += (uint64_t)result;
    if (p->done >= p->bytes || p->begin + p->done >= p->job->read.need)
        return true;
    /* A direct read goes on from a block boundary; one that gained no block has met the end of the file. */
    uint64_t whole = p->done - p->done % p->job->align;
    if (whole <= before)
        return fail_piece(p, EXPERTS_READ_END, 0);
    p->done = whole;
    return false;
}

static experts_list *list_of(experts_jobs *q, const experts_job *j) {
    return j->state == EXPERTS_JOB_ACTIVE ? &q->active : j->state == EXPERTS_JOB_NOTICE ? &q->notices : &q->late;
}

experts_job *experts_jobs_piece_over(experts_jobs *q, const experts_piece *p) {
    experts_job *j = p->job;
    j->flying--;
    q->moved = sl_now_ns();
    if (p->failure != EXPERTS_READ_OK && j->failure == EXPERTS_READ_OK) {
        j->failure = p->failure;
        j->saved_errno = p->saved_errno;
        j->failed_at = j->read.offset + p->begin + p->done;
    }
    if (j->flying > 0 || !all_issued(j))
        return NULL;
    if (q->splitting == j)
        q->splitting = NULL;
    experts_list_remove(list_of(q, j), &j->link);
    return j;
}

void experts_job_drop(const experts_job *j) {
    if (j->buffered)
        sl_file_drop(j->read.file, j->read.offset, j->read.bytes);
}

void experts_jobs_finish(experts_jobs *q, experts_job *j) {
    j->state = EXPERTS_JOB_FINISHED;
    experts_list_push_last(&q->finished, &j->link);
}

static uint64_t limit_from(const experts_jobs *q, uint64_t begin) {
    uint64_t at;
    return sl_add_u64(begin, q->timeout_ns, &at) ? at : UINT64_MAX;
}

static uint64_t active_deadline(const experts_jobs *q) {
    return q->active.first ? limit_from(q, first_job(&q->active)->started) : UINT64_MAX;
}

/* A read that waits has its time still to come as long as others move; not when the whole queue is stuck. */
static uint64_t waiting_deadline(const experts_jobs *q) {
    return q->waiting.first ? limit_from(q, q->moved) : UINT64_MAX;
}

uint64_t experts_jobs_deadline(const experts_jobs *q) {
    uint64_t a = active_deadline(q), w = waiting_deadline(q);
    return a < w ? a : w;
}

static void fail_timeout(experts_job *j) {
    if (j->failure == EXPERTS_READ_OK) {
        j->failure = EXPERTS_READ_TIMEOUT;
        j->failed_at = j->read.offset;
    }
}

/* Returns whether the job has pieces in flight. */
static bool expire_active(experts_jobs *q, experts_job *j) {
    if (q->splitting == j)
        q->splitting = NULL;
    fail_timeout(j);
    if (j->flying == 0) {
        move_job(j, &q->active, &q->finished, EXPERTS_JOB_FINISHED);
        return false;
    }
    move_job(j, &q->active, &q->notices, EXPERTS_JOB_NOTICE);
    return true;
}

int experts_jobs_expire(experts_jobs *q, uint64_t now) {
    int flying = 0;
    while (waiting_deadline(q) <= now) {
        fail_timeout(first_job(&q->waiting));
        move_job(first_job(&q->waiting), &q->waiting, &q->finished, EXPERTS_JOB_FINISHED);
    }
    while (active_deadline(q) <= now)
        flying += expire_active(q, first_job(&q->active));
    return flying;
}

static void set_result(const experts_job *j, bool quarantined, sl_read_result *out) {
    out->tag = j->read.tag;
    out->ok = j->failure == EXPERTS_READ_OK;
    out->quarantined = quarantined;
    out->error.code = SL_OK;
    out->error.message[0] = 0;
    if (!out->ok)
        experts_read_error(&j->read, j->failure, j->saved_errno, j->failed_at, &out->error);
}

int experts_jobs_results(experts_jobs *q, sl_read_result *out, int max) {
    int n = 0;
    for (; n < max && q->notices.first; n++) {
        experts_job *j = first_job(&q->notices);
        move_job(j, &q->notices, &q->late, EXPERTS_JOB_LATE);
        set_result(j, true, &out[n]);
    }
    for (; n < max && q->finished.first; n++) {
        experts_job *j = first_job(&q->finished);
        set_result(j, false, &out[n]);
        move_job(j, &q->finished, &q->spare, EXPERTS_JOB_FINISHED);
    }
    return n;
}

void experts_jobs_drop_waiting(experts_jobs *q) {
    free_list(&q->waiting);
    if (q->splitting && q->splitting->flying > 0 && q->splitting->failure == EXPERTS_READ_OK)
        q->splitting->issued = q->splitting->read.need;
    q->splitting = NULL;
}

void experts_read_error(const sl_read *r, experts_read_failure failure, int saved_errno, uint64_t at, sl_error *err) {
    unsigned long long bytes = r->bytes, offset = r->offset;
    switch (failure) {
    case EXPERTS_READ_OK:
        return;
    case EXPERTS_READ_ERRNO:
        sl_fail_errno(err, SL_ERR_IO, saved_errno, "%s: read of %llu bytes at offset %llu failed at %llu",
                      r->file->path, bytes, offset, (unsigned long long)at);
        return;
    case EXPERTS_READ_END:
        sl_fail(err, SL_ERR_IO, "%s: file ends at %llu, %llu bytes at offset %llu expected", r->file->path,
                (unsigned long long)sl_file_end(r->file, at), (unsigned long long)r->need, offset);
        return;
    case EXPERTS_READ_TIMEOUT:
        sl_fail_errno(err, SL_ERR_IO, ETIMEDOUT, "%s: read of %llu bytes at offset %llu", r->file->path, bytes, offset);
        return;
    }
}

/* Private to experts: what the readers share. A read becomes a job; a job is read in pieces, so that one large read
 * keeps several requests in flight; a job's result is given when all its pieces are back.
 *
 * A job is in exactly one list:
 *   waiting -> active (first piece issued; the time limit runs from here) -> finished -> (result) spare
 *   active -> notices (time limit passed with pieces in flight) -> (quarantined result) late -> finished -> (second
 *   result) spare
 * The lists are not locked: uring uses them from one thread, pread under its mutex. */
#ifndef SL_EXPERTS_READER_H
#define SL_EXPERTS_READER_H

#include "experts/experts.h"
#include "experts/list.h"

typedef enum experts_read_failure {
    EXPERTS_READ_OK,
    EXPERTS_READ_ERRNO,
    EXPERTS_READ_END, /* the file ended before `need` */
    EXPERTS_READ_TIMEOUT
} experts_read_failure;

typedef enum experts_job_state {
    EXPERTS_JOB_WAITING,
    EXPERTS_JOB_ACTIVE,
    EXPERTS_JOB_NOTICE,
    EXPERTS_JOB_LATE,
    EXPERTS_JOB_FINISHED
} experts_job_state;

typedef struct experts_job {
    experts_link link;
    sl_read read;
    int fd;
    bool buffered;    /* pages it leaves in the page cache are dropped at its end */
    uint32_t align;   /* that a resumed read must keep */
    uint64_t step;    /* bytes of a piece */
    uint64_t issued;  /* bytes of the read given out as pieces */
    int flying;       /* pieces given out and not back */
    uint64_t started; /* when the first piece was given out */
    experts_job_state state;
    experts_read_failure failure;
    int saved_errno;
    uint64_t failed_at; /* file offset */
} experts_job;

typedef struct experts_piece {
    experts_job *job;
    uint64_t begin, bytes; /* from the start of the read */
    uint64_t done;
    experts_read_failure failure;
    int saved_errno;
} experts_piece;

typedef struct experts_jobs {
    experts_list waiting, active, notices, late, finished, spare;
    experts_job *splitting; /* active job with pieces still to give out */
    uint64_t piece_bytes, timeout_ns;
    uint64_t moved; /* when a piece last went out or came back: a queue that stands still fails what waits in it */
    bool direct;
    const sl_fault_plan *faults; /* or NULL: for short reads */
} experts_jobs;

/* Queues n reads: all, or none and an error. */
bool experts_jobs_add(experts_jobs *q, const sl_read *reads, int n, sl_error *err);
/* Gives out the next piece; false: none is left. */
bool experts_jobs_next_piece(experts_jobs *q, uint64_t now, experts_piece *out);
/* Takes what one read call on the piece returned (bytes, or -errno). true: the piece is over (done or failed); false:
 * read on from piece->done. Touches the piece only. */
bool experts_piece_advance(experts_piece *p, int64_t result);
/* reader_short.c: bytes to ask the kernel for (all that is left of the piece), and its answer as the reader sees it;
 * where short reads are injected, less of either. Touch nothing. */
uint64_t experts_piece_ask(const experts_jobs *q, const experts_piece *p);
int64_t experts_piece_answer(const experts_jobs *q, const experts_piece *p, int64_t result);
/* A piece is back. Returns its job if that was the last one: taken off its list, to be passed to experts_job_drop and
 * experts_jobs_finish. */
experts_job *experts_jobs_piece_over(experts_jobs *q, const experts_piece *p);
/* Drops from the page cache what the job left there. Takes no lock and may be slow. */
void experts_job_drop(const experts_job *job);
void experts_jobs_finish(experts_jobs *q, experts_job *job);
/* Fails what is over its time; returns how many jobs of these have pieces in flight. */
int experts_jobs_expire(experts_jobs *q, uint64_t now);
/* When the next job runs out of time; UINT64_MAX: there is none. */
uint64_t experts_jobs_deadline(const experts_jobs *q);
int experts_jobs_results(experts_jobs *q, sl_read_result *out, int max);
/* Forgets reads of which no piece was given out. */
void experts_jobs_drop_waiting(experts_jobs *q);
void experts_jobs_free(experts_jobs *q);

/* The message of a failed read: file, length, offset, reason. */
void experts_read_error(const sl_read *r, experts_read_failure failure, int saved_errno, uint64_t at, sl_error *err);
/* Whether a reader uses the O_DIRECT descriptor of a file: where asked for and possible. */
static inline bool experts_file_direct(const sl_file *f, bool direct) {
    return direct && f->direct_fd >= 0;
}

/* Makes the page cache hold no more of a file than what is asked for: what is read ahead would never be dropped. */
void experts_file_prepare(const sl_file *f);

/* The moment a wait of timeout_ns that begins now ends; 0 for one that only looks. */
uint64_t experts_end_of_wait(uint64_t timeout_ns);
static inline uint64_t experts_time_left(uint64_t until, uint64_t now) {
    return until > now ? until - now : 0;
}
void experts_sleep(uint64_t ns);

/* splitmix64 */
static inline uint64_t experts_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Options with their defaults filled in. Each disk has its own queue: what waits for one does not wait for the other.
 */
typedef struct experts_disk_setup {
    bool direct;
    int depth; /* 0: the reader's own default */
    uint64_t piece_bytes;
} experts_disk_setup;

typedef struct experts_reader_setup {
    int disks;
    experts_disk_setup disk[SL_READER_DISKS];
    uint64_t timeout_ns;
    const sl_fault_plan *faults;
} experts_reader_setup;

sl_reader *experts_reader_uring(const experts_reader_setup *s, sl_error *err);
sl_reader *experts_reader_pread(const experts_reader_setup *s, sl_error *err);

#endif

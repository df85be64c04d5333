/* A reader that wraps another and injects faults, for tests: errors, late and reordered results, results that never
 * come, a disk that is gone.
 *
 * What happens to a read depends on the plan's seed and on how many reads came before it, never on time. A delayed read
 * reaches the wrapped reader only when its delay is over: one that timed out meanwhile writes into its slot late, as a
 * stuck disk would. One that never comes does not reach it. */
#include "experts/reader.h"

#include <errno.h>
#include <stdlib.h>

typedef struct fault_read {
    experts_link link;
    sl_read read;
    uint64_t due, expiry; /* delayed reads; UINT64_MAX: never */
    bool timed_out;       /* the quarantined result was given */
    bool reorder;
    sl_read_result result;
} fault_read;

typedef struct fault_reader {
    sl_reader base;
    sl_reader *inner;
    sl_fault_plan plan;
    int64_t *times;      /* [place_count] reads that each place had */
    uint64_t count;      /* reads so far that are meant */
    uint64_t busy_until; /* the paced disk has what was asked of it until then */
    experts_list delayed;
    experts_list results; /* to be handed out */
    experts_list held;    /* results that wait for a later one to overtake them */
    int inside;           /* reads the wrapped reader has */
} fault_reader;

static fault_reader *self_of(sl_reader *r) {
    return (fault_reader *)r;
}

/* Whether the share `rate` of reads holds this one; `kind` makes the decisions about one read independent. */
static bool drawn(const fault_reader *f, uint64_t kind, double rate) {
    return (double)(experts_mix(experts_mix(f->plan.seed + kind) + f->count) >> 11) < rate * 0x1p53;
}

/* Whether a place of that kind has this read: one that holds all of it. A direct read also touches the ends of its
 * neighbours. */
static bool placed(fault_reader *f, sl_fault_kind kind, const sl_read *r) {
    for (int32_t i = 0; i < f->plan.place_count; i++) {
        const sl_fault_place *p = &f->plan.places[i];
        if (p->kind != kind || p->file != r->file || p->offset < r->offset ||
            p->offset + p->bytes > r->offset + r->need)
            continue;
        if (p->times == 0 || f->times[i]++ < p->times)
            return true;
    }
    return false;
}

static void fail_read(fault_reader *f, fault_read *r, int why) {
    r->result = (sl_read_result){.tag = r->read.tag};
    experts_read_error(&r->read, EXPERTS_READ_ERRNO, why, r->read.offset, &r->result.error);
    experts_list_push_last(&f->results, &r->link);
}

static bool pass_on(fault_reader *f, fault_read *r, sl_error *err) {
    sl_read inner = r->read;
    inner.tag = r;
    if (!f->inner->submit(f->inner, &inner, 1, err))
        return false;
    f->inside++;
    return true;
}

static void delay_read(fault_reader *f, fault_read *r, uint64_t delay_ns) {
    uint64_t now = sl_now_ns();
    if (!sl_add_u64(now, delay_ns, &r->due))
        r->due = UINT64_MAX;
    r->expiry = f->plan.timeout_ns && f->plan.timeout_ns < delay_ns ? now + f->plan.timeout_ns : UINT64_MAX;
    experts_list_push_last(&f->delayed, &r->link);
}

/* It reaches the wrapped reader when a disk of this rate would have read it. */
static void pace_read(fault_reader *f, fault_read *r) {
    uint64_t now = sl_now_ns(), from = f->busy_until > now ? f->busy_until : now;
    f->busy_until = from + (uint64_t)((double)r->read.need * 1e9 / f->plan.bytes_per_second);
    r->due = f->busy_until;
    r->expiry = UINT64_MAX;
    experts_list_push_last(&f->delayed, &r->link);
}

static bool is_meant(const fault_reader *f, const fault_read *r) {
    return f->plan.disk == 0 || f->plan.disk == r->read.disk + 1;
}

static void pass_on_now(fault_reader *f, fault_read *r) {
    if (!pass_on(f, r, NULL))
        fail_read(f, r, EIO);
}

static void start_read(fault_reader *f, fault_read *r) {
    if (!is_meant(f, r)) {
        pass_on_now(f, r);
        return;
    }
    bool gone = f->plan.fail_after >= 0 && f->count >= (uint64_t)f->plan.fail_after;
    bool error = placed(f, SL_FAULT_EIO, &r->read) || drawn(f, 1, f->plan.error_rate);
    bool delay = placed(f, SL_FAULT_LATE, &r->read) || drawn(f, 2, f->plan.delay_rate);
    bool never = placed(f, SL_FAULT_NEVER, &r->read) || drawn(f, 4, f->plan.never_rate);
    r->reorder = drawn(f, 3, f->plan.reorder_rate);
    f->count++;
    if (gone || error)
        fail_read(f, r, gone ? ENODEV : EIO);
    else if (never || delay)
        delay_read(f, r, never ? UINT64_MAX : f->plan.delay_ns);
    else if (f->plan.bytes_per_second > 0)
        pace_read(f, r);
    else
        pass_on_now(f, r);
}

static bool fault_submit(sl_reader *reader, const sl_read *reads, int n, sl_error *err) {
    fault_reader *f = self_of(reader);
    experts_list fresh = {NULL, NULL};
    for (int i = 0; i < n; i++) {
        fault_read *r = calloc(1, sizeof *r);
        if (!r) {
            while ((r = (fault_read *)experts_list_pop_first(&fresh)))
                free(r);
            return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for a read", reads[i].file->path);
        }
        r->read = reads[i];
        experts_list_push_last(&fresh, &r->link);
    }
    for (experts_link *l; (l = experts_list_pop_first(&fresh));)
        start_read(f, (fault_read *)l);
    return true;
}

/* ---- collecting ------------------------------------------------------------------------------------------------- */

static void pass_on_due(fault_reader *f, uint64_t now) {
    for (experts_link *l = f->delayed.first, *next; l; l = next) {
        fault_read *r = (fault_read *)l;
        next = l->next;
        if (r->due > now)
            continue;
        experts_list_remove(&f->delayed, l);
        if (!pass_on(f, r, NULL))
            fail_read(f, r, EIO);
    }
}

/* The quarantined result of each delayed read that ran out of time. */
static int give_expired(fault_reader *f, uint64_t now, sl_read_result *out, int max) {
    int n = 0;
    for (experts_link *l = f->delayed.first; l && n < max; l = l->next) {
        fault_read *r = (fault_read *)l;
        if (r->timed_out || r->expiry > now)
            continue;
        r->timed_out = true;
        out[n] = (sl_read_result){.tag = r->read.tag, .quarantined = true};
        experts_read_error(&r->read, EXPERTS_READ_TIMEOUT, 0, r->read.offset, &out[n].error);
        n++;
    }
    return n;
}

static uint64_t next_event(const fault_reader *f) {
    uint64_t at = UINT64_MAX;
    for (const experts_link *l = f->delayed.first; l; l = l->next) {
        const fault_read *r = (const fault_read *)l;
        uint64_t event = r->timed_out || r->due < r->expiry ? r->due : r->expiry;
        at = event < at ? event : at;
    }
    return at;
}

/* Takes what the wrapped reader finished, waiting at most ns. */
static void take_inner(fault_reader *f, uint64_t ns) {
    sl_read_result got[8];
    int n = f->inner->collect(f->inner, got, (int)SL_COUNT(got), ns);
    for (int i = 0; i < n; i++) {
        fault_read *r = got[i].tag;
        if (got[i].quarantined) {
            /* Told at once, with a record of its own: the read's record is still with the wrapped reader. */
            fault_read *notice = calloc(1, sizeof *notice);
            if (!notice)
                continue;
            notice->result = got[i];
            notice->result.tag = r->read.tag;
            experts_list_push_last(&f->results, &notice->link);
            continue;
        }
        f->inside--;
        r->result = got[i];
        r->result.tag = r->read.tag;
        experts_list_push_last(r->reorder ? &f->held : &f->results, &r->link);
    }
}

/* Whether there is something to wait for but what is held back. */
static bool others_pending(const fault_reader *f) {
    for (const experts_link *l = f->delayed.first; l; l = l->next)
        if (((const fault_read *)l)->due != UINT64_MAX || !((const fault_read *)l)->timed_out)
            return true;
    return f->inside > 0 || f->results.first;
}

static int give_list(experts_list *l, sl_read_result *out, int max) {
    int n = 0;
    for (fault_read *r; n < max && (r = (fault_read *)experts_list_pop_first(l)); n++) {
        out[n] = r->result;
        free(r);
    }
    return n;
}

/* What is held back follows results that came later, or comes when there are no others to wait for. */
static int give_results(fault_reader *f, sl_read_result *out, int max) {
    int n = give_list(&f->results, out, max);
    if (n > 0 || !others_pending(f))
        n += give_list(&f->held, out + n, max - n);
    return n;
}

static int fault_collect(sl_reader *reader, sl_read_result *out, int max, uint64_t timeout_ns) {
    fault_reader *f = self_of(reader);
    uint64_t end = experts_end_of_wait(timeout_ns), wait = 0;
    for (;;) {
        uint64_t now = sl_now_ns();
        pass_on_due(f, now);
        if (f->inside)
            take_inner(f, wait);
        else if (wait)
            experts_sleep(wait);
        now = sl_now_ns();
        int n = give_expired(f, now, out, max);
        n += give_results(f, out + n, max - n);
        if (n > 0 || now >= end || (!others_pending(f) && !f->held.first))
            return n;
        uint64_t event = next_event(f);
        wait = experts_time_left(event < end ? event : end, now);
    }
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

static void fault_add_memory(sl_reader *reader, void *base, uint64_t bytes) {
    fault_reader *f = self_of(reader);
    if (f->inner->add_memory)
        f->inner->add_memory(f->inner, base, bytes);
}

static void fault_remove_memory(sl_reader *reader, void *base) {
    fault_reader *f = self_of(reader);
    if (f->inner->remove_memory)
        f->inner->remove_memory(f->inner, base);
}

static void free_list(experts_list *l) {
    for (experts_link *n; (n = experts_list_pop_first(l));)
        free(n);
}

static void fault_close(sl_reader *reader) {
    fault_reader *f = self_of(reader);
    while (f->inside > 0)
        take_inner(f, UINT64_MAX);
    f->inner->close(f->inner);
    free_list(&f->delayed);
    free_list(&f->results);
    free_list(&f->held);
    free(f->times);
    free(f);
}

sl_reader *sl_reader_fault(sl_reader *inner, const sl_fault_plan *plan, sl_error *err) {
    fault_reader *f = calloc(1, sizeof *f);
    int64_t *times = calloc((size_t)plan->place_count + 1, sizeof *times);
    if (!f || !times) {
        free(f);
        free(times);
        inner->close(inner);
        return sl_fail_null(err, SL_ERR_MEMORY, "fault reader: out of memory");
    }
    f->inner = inner;
    f->times = times;
    f->plan = *plan;
    f->base = (sl_reader){.name = inner->name,
                          .direct = inner->direct,
                          .submit = fault_submit,
                          .collect = fault_collect,
                          .add_memory = fault_add_memory,
                          .remove_memory = fault_remove_memory,
                          .close = fault_close};
    return &f->base;
}

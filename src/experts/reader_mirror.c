/* The reader that splits reads between a model's files and their copies on a second disk.
 *
 * Reads come in batches, and a batch is over with its last read: so each read goes to the disk that would have it
 * first, and the one that would be last is cut where both disks end together. A disk that seemed slow is asked again
 * now and then: it may have been busy for others. A part that fails is read again from the other disk, into the same
 * place: it would write the same bytes. Where a part timed out the kernel may still write there, and what it writes is
 * not known to be right: then the read fails, as without a mirror. */
#include "experts/mirror.h"
#include "experts/reader.h"

#include <stdlib.h>
#include <string.h>

enum { DISKS = SL_READER_DISKS, CUT_ALIGN = 4096, LEAST_CUT = 64 << 10, RESULTS = 32 };

/* A rate is looked at when a disk has nothing left to do, or has done SAMPLE bytes; about the last MEMORY bytes count
 * (PRIOR: what a calibration counts for; GUESS: two disks of which nothing is known). A wait that was shorter than
 * WAITED may be for what was there already. */
#define SAMPLE (UINT64_C(32) << 20)
#define MEMORY (256.0 * (1 << 20))
#define PRIOR  (64.0 * (1 << 20))
#define GUESS  (1.0 * (1 << 20))
#define PROBE  (UINT64_C(64) << 20) /* bytes that the other disk is asked for meanwhile */
#define WAITED 20000u

typedef struct part {
    struct whole *whole;
    sl_read read; /* of the model's file */
    int disk;
    bool failed_before; /* on the other disk */
} part;

/* One read as it was asked for, in one part or two. */
typedef struct whole {
    experts_link link; /* of one of the reader's lists */
    void *tag;
    int left; /* parts under way */
    bool ok;
    bool told; /* a quarantined result was given */
    sl_error error;
    part part[DISKS];
} whole;

typedef struct disk {
    double bytes, seconds; /* its rate */
    uint64_t outstanding;  /* bytes */
    uint64_t since, done;  /* of the sample under way */
    uint64_t passed_over;  /* bytes asked of the other since this one was asked */
    sl_read *read;         /* of the batch under way */
    size_t capacity;
    int reads;
    _Atomic uint64_t all_reads, all_bytes;
    _Atomic uint64_t seen; /* the rate, for other threads */
    atomic_bool dropped;
} disk;

typedef struct mirror_reader {
    sl_reader base;
    sl_reader *inner;
    const sl_mirror *mirror;
    const char *name;
    sl_log log;
    uint64_t (*now)(void *user);
    void *now_user;
    disk disk[DISKS];
    experts_list busy, failed, spare; /* failed: wholes whose result is still to be given */
    sl_read_result got[RESULTS];      /* of one collect */
} mirror_reader;

static void free_list(experts_list *l) {
    for (experts_link *n; (n = experts_list_pop_first(l));)
        free(n);
}

static mirror_reader *self_of(sl_reader *r) {
    return (mirror_reader *)r;
}

static uint64_t own_now(void *user) {
    return sl_now_ns();
}

static uint64_t now_of(const mirror_reader *m) {
    return m->now(m->now_user);
}

/* ---- rates ------------------------------------------------------------------------------------------------------- */

static double rate_of(const disk *d) {
    return d->bytes / d->seconds;
}

static void publish_rate(disk *d) {
    atomic_store_explicit(&d->seen, (uint64_t)rate_of(d), memory_order_relaxed);
}

/* What is known shall count as if it were of so many bytes, if it is of more. */
static void forget(disk *d, double bytes) {
    if (d->bytes <= bytes)
        return;
    d->seconds *= bytes / d->bytes;
    d->bytes = bytes;
}

/* Where what was known is far off, it counts no more than what is seen now. */
static void add_sample(disk *d, double bytes, double seconds) {
    double seen = bytes / seconds, known = rate_of(d);
    if (seen > 2 * known || known > 2 * seen)
        forget(d, bytes);
    d->bytes += bytes;
    d->seconds += seconds;
    forget(d, MEMORY);
    publish_rate(d);
}

static void set_rates(mirror_reader *m, const double rate[DISKS]) {
    bool known = rate[0] > 0 && rate[1] > 0; /* one measured and one guessed would not compare */
    for (int i = 0; i < DISKS; i++) {
        disk *d = &m->disk[i];
        d->bytes = known ? PRIOR : GUESS;
        d->seconds = known ? PRIOR / rate[i] : GUESS / 1e9;
        publish_rate(d);
    }
}

static void part_began(mirror_reader *m, const part *p) {
    disk *d = &m->disk[p->disk];
    if (d->outstanding == 0) {
        d->since = now_of(m);
        d->done = 0;
    }
    d->outstanding += p->read.need;
    d->passed_over = 0;
    m->disk[1 - p->disk].passed_over += p->read.need;
    atomic_fetch_add_explicit(&d->all_reads, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&d->all_bytes, p->read.bytes, memory_order_relaxed);
}

/* exact: somebody waited for it. Else it may have been there for long, and the disk is at least as fast as it seems. */
static void part_ended(mirror_reader *m, const part *p, bool exact) {
    disk *d = &m->disk[p->disk];
    d->outstanding -= p->read.need;
    d->done += p->read.need;
    if (d->outstanding > 0 && d->done < SAMPLE)
        return;
    uint64_t now = now_of(m);
    double seconds = (double)(now - d->since + 1) / 1e9;
    if (exact || (double)d->done > rate_of(d) * seconds)
        add_sample(d, (double)d->done, seconds);
    d->since = now;
    d->done = 0;
}

/* ---- one disk less ----------------------------------------------------------------------------------------------- */

static bool is_dropped(const mirror_reader *m, int i) {
    return atomic_load_explicit(&m->disk[i].dropped, memory_order_relaxed);
}

/* The last disk stays: what it cannot read is an error. */
static void drop_disk(mirror_reader *m, int i, const sl_error *why) {
    const char *name[DISKS] = {m->name, sl_mirror_directory(m->mirror)};
    if (is_dropped(m, 0) || is_dropped(m, 1))
        return;
    atomic_store(&m->disk[i].dropped, true);
    sl_logf(&m->log, SL_LOG_WARN, "mirror: %s; from now on experts are read from %s alone", why->message, name[1 - i]);
}

/* ---- splitting --------------------------------------------------------------------------------------------------- */

static whole *take_whole(mirror_reader *m, const sl_read *r) {
    whole *w = (whole *)experts_list_pop_first(&m->spare);
    if (!w)
        w = malloc(sizeof *w);
    if (w)
        *w = (whole){.tag = r->tag, .ok = true};
    return w;
}

/* Of a read of `bytes`, those for the first disk so that both end together; all or nothing of it where a disk has more
 * to do than the other would have with all. */
static uint64_t first_share(const mirror_reader *m, uint64_t bytes) {
    const disk *a = &m->disk[0], *b = &m->disk[1];
    double ra = rate_of(a), rb = rate_of(b),
           share = (ra * (double)(b->outstanding + bytes) - rb * (double)a->outstanding) / (ra + rb);
    return share <= 0 ? 0 : share >= (double)bytes ? bytes : (uint64_t)share;
}

static bool first_is_sooner(const mirror_reader *m, uint64_t bytes) {
    const disk *a = &m->disk[0], *b = &m->disk[1];
    return (double)(a->outstanding + bytes) / rate_of(a) <= (double)(b->outstanding + bytes) / rate_of(b);
}

/* Bytes from the read's begin that the first disk is asked for. */
static uint64_t place_read(const mirror_reader *m, const sl_read *r, bool last) {
    if (is_dropped(m, 1) || !sl_mirror_of(m->mirror, r->file))
        return r->bytes;
    if (is_dropped(m, 0))
        return 0;
    for (int i = 0; i < DISKS; i++)
        if (m->disk[i].passed_over >= PROBE)
            return i == 0 ? r->bytes : 0;
    uint64_t cut = (first_share(m, r->need) + CUT_ALIGN / 2) / CUT_ALIGN * CUT_ALIGN;
    if (last && cut >= LEAST_CUT && cut + LEAST_CUT <= r->need)
        return cut;
    return first_is_sooner(m, r->need) ? r->bytes : 0;
}

/* The part's read joins the disk's batch. */
static void add_part(mirror_reader *m, whole *w, int i, const sl_read *r, uint64_t begin, uint64_t bytes) {
    disk *d = &m->disk[i];
    part *p = &w->part[w->left++];
    *p = (part){.whole = w, .disk = i, .read = *r};
    p->read.offset += begin;
    p->read.dst += begin;
    p->read.bytes = bytes;
    p->read.need = r->need - begin < bytes ? r->need - begin : bytes;
    p->read.tag = p;
    part_began(m, p);
    d->read[d->reads] = p->read;
    d->read[d->reads].disk = i;
    if (i)
        d->read[d->reads].file = sl_mirror_of(m->mirror, r->file);
    d->reads++;
}

static void split(mirror_reader *m, whole *w, const sl_read *r, bool last) {
    uint64_t first = place_read(m, r, last);
    if (first > 0)
        add_part(m, w, 0, r, 0, first);
    if (first < r->bytes)
        add_part(m, w, 1, r, first, r->bytes - first);
}

/* ---- submitting -------------------------------------------------------------------------------------------------- */

static void recycle(mirror_reader *m, whole *w, experts_list *from) {
    experts_list_remove(from, &w->link);
    experts_list_push_last(&m->spare, &w->link);
}

/* A part that will not come. */
static void lose_part(mirror_reader *m, part *p, const sl_error *why) {
    whole *w = p->whole;
    w->ok = false;
    w->error = *why;
    if (--w->left > 0)
        return;
    experts_list_remove(&m->busy, &w->link);
    experts_list_push_last(&m->failed, &w->link);
}

static void send_disk(mirror_reader *m, int i) {
    disk *d = &m->disk[i];
    sl_error why;
    if (d->reads > 0 && !m->inner->submit(m->inner, d->read, d->reads, &why))
        for (int k = 0; k < d->reads; k++) {
            part *p = d->read[k].tag;
            d->outstanding -= p->read.need;
            lose_part(m, p, &why);
        }
    d->reads = 0;
}

static bool make_room(mirror_reader *m, int n) {
    for (int i = 0; i < DISKS; i++) {
        disk *d = &m->disk[i];
        if (!sl_grow((void **)&d->read, &d->capacity, (size_t)n, sizeof *d->read))
            return false;
    }
    return true;
}

static bool mirror_submit(sl_reader *reader, const sl_read *reads, int n, sl_error *err) {
    mirror_reader *m = self_of(reader);
    experts_list fresh = {NULL, NULL};
    bool ok = make_room(m, n);
    for (int i = 0; ok && i < n; i++) {
        whole *w = take_whole(m, &reads[i]);
        ok = w != NULL;
        if (w)
            experts_list_push_last(&fresh, &w->link);
    }
    if (!ok) {
        free_list(&fresh);
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for a read", reads->file->path);
    }
    for (int i = 0; i < n; i++) {
        whole *w = (whole *)experts_list_pop_first(&fresh);
        experts_list_push_last(&m->busy, &w->link);
        split(m, w, &reads[i], i + 1 == n);
    }
    for (int i = 0; i < DISKS; i++)
        send_disk(m, i);
    return true;
}

/* ---- collecting -------------------------------------------------------------------------------------------------- */

/* Reads a part that failed again, from the other disk. */
static bool read_elsewhere(mirror_reader *m, part *p) {
    int other = 1 - p->disk;
    const sl_file *copy = sl_mirror_of(m->mirror, p->read.file);
    if (p->failed_before || is_dropped(m, other) || !copy)
        return false;
    p->failed_before = true;
    p->disk = other;
    sl_read r = p->read;
    r.disk = other;
    r.file = other ? copy : r.file;
    if (!m->inner->submit(m->inner, &r, 1, NULL))
        return false;
    part_began(m, p);
    return true;
}

static int give(whole *w, bool quarantined, sl_read_result *out) {
    *out = (sl_read_result){.tag = w->tag, .ok = w->ok, .quarantined = quarantined};
    if (!w->ok)
        out->error = w->error;
    return 1;
}

static int take_timeout(mirror_reader *m, part *p, const sl_error *why, sl_read_result *out) {
    whole *w = p->whole;
    drop_disk(m, p->disk, why);
    if (w->told)
        return 0;
    w->told = true;
    w->ok = false;
    w->error = *why;
    return give(w, true, out);
}

/* A copy that is written to would give another model's bytes without any error; the model's own files are looked at by
 * whoever uses them. */
static bool part_good(const mirror_reader *m, const part *p, const sl_read_result *r, sl_error *why) {
    if (!r->ok)
        *why = r->error;
    return r->ok && (p->disk == 0 || sl_file_unchanged(sl_mirror_of(m->mirror, p->read.file), why));
}

/* What the wrapped reader says of a part; returns the results written to out, 0 or 1. */
static int take_result(mirror_reader *m, const sl_read_result *r, bool exact, sl_read_result *out) {
    part *p = r->tag;
    whole *w = p->whole;
    sl_error why;
    if (r->quarantined)
        return take_timeout(m, p, &r->error, out);
    part_ended(m, p, exact);
    if (!w->told && !part_good(m, p, r, &why)) {
        drop_disk(m, p->disk, &why);
        if (read_elsewhere(m, p))
            return 0;
        w->ok = false;
        w->error = why;
    }
    if (--w->left > 0)
        return 0;
    recycle(m, w, &m->busy);
    return give(w, false, out);
}

static int give_failed(mirror_reader *m, sl_read_result *out, int max) {
    int n = 0;
    for (whole *w; n < max && (w = (whole *)m->failed.first); n++) {
        recycle(m, w, &m->failed);
        give(w, false, &out[n]);
    }
    return n;
}

static int mirror_collect(sl_reader *reader, sl_read_result *out, int max, uint64_t timeout_ns) {
    mirror_reader *m = self_of(reader);
    uint64_t end = experts_end_of_wait(timeout_ns);
    int n = give_failed(m, out, max), came = 1;
    while (n == 0 && came > 0) {
        uint64_t began = now_of(m), real = sl_now_ns();
        came = m->inner->collect(m->inner, m->got, max < RESULTS ? max : RESULTS, experts_time_left(end, real));
        bool exact = now_of(m) - began > WAITED;
        for (int i = 0; i < came; i++)
            n += take_result(m, &m->got[i], exact, &out[n]);
    }
    return n;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void mirror_add_memory(sl_reader *reader, void *base, uint64_t bytes) {
    mirror_reader *m = self_of(reader);
    if (m->inner->add_memory)
        m->inner->add_memory(m->inner, base, bytes);
}

static void mirror_remove_memory(sl_reader *reader, void *base) {
    mirror_reader *m = self_of(reader);
    if (m->inner->remove_memory)
        m->inner->remove_memory(m->inner, base);
}

static void mirror_close(sl_reader *reader) {
    mirror_reader *m = self_of(reader);
    m->inner->close(m->inner);
    free_list(&m->busy);
    free_list(&m->failed);
    free_list(&m->spare);
    for (int i = 0; i < DISKS; i++)
        free(m->disk[i].read);
    free(m);
}

sl_reader *sl_mirror_reader(sl_reader *inner, const sl_mirror_options *o, sl_error *err) {
    mirror_reader *m = calloc(1, sizeof *m);
    if (!m) {
        inner->close(inner);
        return sl_fail_null(err, SL_ERR_MEMORY, "mirror: out of memory");
    }
    m->inner = inner;
    m->mirror = o->mirror;
    m->name = o->name;
    m->log = o->log;
    m->now = o->now ? o->now : own_now;
    m->now_user = o->now_user;
    set_rates(m, o->rate);
    m->base = (sl_reader){.name = inner->name,
                          .direct = inner->direct,
                          .submit = mirror_submit,
                          .collect = mirror_collect,
                          .add_memory = mirror_add_memory,
                          .remove_memory = mirror_remove_memory,
                          .close = mirror_close};
    return &m->base;
}

void sl_mirror_stats_get(const sl_reader *r, int i, sl_mirror_stats *out) {
    const mirror_reader *m = (const mirror_reader *)r;
    const disk *d = &m->disk[i];
    *out = (sl_mirror_stats){atomic_load(&d->all_reads), atomic_load(&d->all_bytes), (double)atomic_load(&d->seen),
                             atomic_load(&d->dropped)};
}

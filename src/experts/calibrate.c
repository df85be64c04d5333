/* The search for the fastest way to read, and the choice that an engine makes from what it found. */
#include "experts/calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    COMPARED = 3,
    CONFIRMED = CALIBRATE_ROUNDS,
    MOST_CANDIDATES = 8,
    URING_DEPTH = 64,
    PREAD_DEPTH = 8,
    PREAD_MOST = 256
};

/* A reading that gains less than this over the usual one is within what a second measurement may say otherwise. */
#define WORTH 1.05

const char *sl_reader_kind_name(sl_reader_kind kind) {
    return kind == SL_READER_URING ? "uring" : kind == SL_READER_PREAD ? "pread" : "auto";
}

static int usual_depth(sl_reader_kind kind) {
    return kind == SL_READER_URING ? URING_DEPTH : PREAD_DEPTH;
}

static bool same_reading(const sl_reading *a, const sl_reading *b) {
    return a->kind == b->kind && a->direct == b->direct && a->depth == b->depth && a->piece_bytes == b->piece_bytes;
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

typedef struct contest {
    sl_reading how[MOST_CANDIDATES]; /* the first is what is used so far */
    double rate[MOST_CANDIDATES][CALIBRATE_ROUNDS];
    bool gone[MOST_CANDIDATES]; /* there is no such way here */
    int n;
} contest;

typedef struct search {
    const sl_calibrator *c;
    sl_calibration *out;
    uint64_t end;
} search;

static void add_candidate(contest *t, const sl_reading *how) {
    for (int i = 0; i < t->n; i++)
        if (same_reading(&t->how[i], how))
            return;
    if (t->n < MOST_CANDIDATES)
        t->how[t->n++] = *how;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static sl_tried summary(const contest *t, int i, int rounds) {
    double v[CALIBRATE_ROUNDS];
    memcpy(v, t->rate[i], sizeof v);
    qsort(v, (size_t)rounds, sizeof *v, by_value);
    return (sl_tried){t->how[i], v[rounds / 2], v[0], v[rounds - 1], rounds};
}

static void remember(sl_calibration *out, const sl_tried *t) {
    int at = 0;
    while (at < out->count && !same_reading(&out->tried[at].how, &t->how))
        at++;
    if (at == CALIBRATE_TRIED)
        return;
    out->tried[at] = *t;
    out->count += at == out->count;
}

/* Where time runs out on the way, the result is not finished. */
static bool measure_round(search *s, contest *t, int round, sl_error *err) {
    for (int k = 0; k < t->n && s->out->finished; k++) {
        int i = (k + round) % t->n; /* nobody is always measured behind the same one */
        sl_error e = {0};
        if (!s->c->go_on(s->c->user))
            return sl_fail(err, SL_ERR_CANCELLED, "calibration: stopped");
        if (s->c->now(s->c->user) >= s->end) {
            s->out->finished = false;
            break;
        }
        if (t->gone[i] || s->c->measure(s->c->user, &t->how[i], &t->rate[i][round], &e))
            continue;
        if (e.code != SL_ERR_UNSUPPORTED) {
            if (err)
                *err = e;
            return false;
        }
        t->gone[i] = true;
    }
    return true;
}

/* Clearly faster: by more than WORTH, mostly than the other ever was, and always than it mostly was. */
static bool beats(const sl_tried *a, const sl_tried *b) {
    return a->rate > WORTH * b->rate && a->rate > b->most && a->least > b->rate;
}

/* Interleaved rounds over the candidates; *winner becomes the fastest of those that clearly beat the first. Where time
 * runs out before all rounds are done, the first stays. */
static bool hold(search *s, contest *t, int rounds, sl_tried *winner, sl_error *err) {
    for (int r = 0; r < rounds && s->out->finished; r++)
        if (!measure_round(s, t, r, err))
            return false;
    if (!s->out->finished)
        return true;
    if (t->gone[0])
        return sl_fail(err, SL_ERR_UNSUPPORTED, "calibration: %s stopped working", sl_reader_kind_name(t->how[0].kind));
    sl_tried first = summary(t, 0, rounds);
    *winner = first;
    remember(s->out, &first);
    for (int i = 1; i < t->n; i++) {
        if (t->gone[i])
            continue;
        sl_tried one = summary(t, i, rounds);
        remember(s->out, &one);
        if (beats(&one, &first) && one.rate > winner->rate)
            *winner = one;
    }
    return true;
}

/* ---- axes -------------------------------------------------------------------------------------------------------- */

static void list_readers(contest *t, sl_reading how, bool direct) {
    static const sl_reader_kind kinds[] = {SL_READER_URING, SL_READER_PREAD};
    for (int d = direct; d >= 0; d--)
        for (size_t k = 0; k < SL_COUNT(kinds); k++) {
            how.kind = kinds[k];
            how.depth = usual_depth(how.kind);
            how.direct = d;
            add_candidate(t, &how);
        }
}

static void list_depths(contest *t, sl_reading how, bool direct) {
    static const int uring[] = {8, 16, 32, 64, 128}, pread[] = {2, 4, 8, 16, 32};
    for (size_t i = 0; i < SL_COUNT(uring); i++) {
        how.depth = how.kind == SL_READER_URING ? uring[i] : pread[i];
        add_candidate(t, &how);
    }
}

static void list_pieces(contest *t, sl_reading how, bool direct) {
    for (uint64_t piece = 128 << 10; piece <= 2 << 20; piece *= 2) {
        how.piece_bytes = piece;
        add_candidate(t, &how);
    }
}

/* The usual reading, io_uring's where the kernel allows it. */
static bool find_usual(search *s, bool direct, sl_tried *usual, sl_error *err) {
    sl_error e = {0};
    *usual = (sl_tried){.how = {SL_READER_URING, direct, URING_DEPTH, 512 << 10}, .rounds = 1};
    if (!s->c->measure(s->c->user, &usual->how, &usual->rate, &e)) {
        if (e.code != SL_ERR_UNSUPPORTED) {
            if (err)
                *err = e;
            return false;
        }
        usual->how.kind = SL_READER_PREAD;
        usual->how.depth = PREAD_DEPTH;
        if (!s->c->measure(s->c->user, &usual->how, &usual->rate, err))
            return false;
    }
    usual->least = usual->most = usual->rate;
    return true;
}

/* What won one axis after the other must also beat the usual reading in one contest: a winner among many is partly
 * luck. */
static bool confirm(search *s, sl_tried *now, sl_error *err) {
    contest t = {0};
    sl_tried winner = s->out->usual;
    add_candidate(&t, &s->out->usual.how);
    add_candidate(&t, &now->how);
    if (!hold(s, &t, CONFIRMED, &winner, err))
        return false;
    for (int i = 0; i < s->out->count; i++)
        if (same_reading(&s->out->tried[i].how, &s->out->usual.how))
            s->out->usual = s->out->tried[i];
    *now = same_reading(&winner.how, &s->out->usual.how) ? s->out->usual : winner;
    return true;
}

bool sl_calibrate_search(const sl_calibrator *c, bool direct, uint64_t limit_ns, sl_calibration *out, sl_error *err) {
    static void (*const axes[])(contest *, sl_reading, bool) = {list_readers, list_depths, list_pieces};
    search s = {c, out, c->now(c->user) + limit_ns};
    *out = (sl_calibration){.finished = true};
    if (!find_usual(&s, direct, &out->usual, err))
        return false;
    remember(out, &out->usual);
    sl_tried now = out->usual;
    for (size_t a = 0; a < SL_COUNT(axes); a++) {
        contest t = {0};
        add_candidate(&t, &now.how);
        axes[a](&t, now.how, direct);
        if (!hold(&s, &t, COMPARED, &now, err))
            return false;
    }
    if (!confirm(&s, &now, err))
        return false;
    out->chosen = now;
    return true;
}

/* ---- the choice -------------------------------------------------------------------------------------------------- */

/* What was measured of one reader says nothing of another's depth. */
static bool applies(const sl_reading_wish *w, const sl_reading *r) {
    return (w->kind == SL_READER_AUTO || w->kind == r->kind) && (w->direct < 0 || (w->direct != 0) == r->direct);
}

void sl_reading_choose(const sl_reading_wish *w, const sl_calibration *stored, sl_reader_options *out, char *why,
                       size_t size) {
    const sl_reading *r = stored && applies(w, &stored->chosen.how) ? &stored->chosen.how : NULL;
    bool open = w->kind == SL_READER_AUTO || w->direct < 0 || !w->depth || !w->piece_bytes;
    *out = (sl_reader_options){.kind = w->kind,
                               .buffered = w->direct >= 0 ? !w->direct : r && !r->direct,
                               .depth = w->depth ? w->depth
                                        : r      ? r->depth
                                                 : 0,
                               .piece_bytes = w->piece_bytes ? w->piece_bytes
                                              : r            ? r->piece_bytes
                                                             : 0};
    /* io_uring may be forbidden by now: then automatic still finds a reader. */
    if (w->kind == SL_READER_AUTO && r && r->kind == SL_READER_PREAD && w->depth <= PREAD_MOST)
        out->kind = SL_READER_PREAD;
    char rate[16];
    if (!open)
        snprintf(why, size, "as asked for");
    else if (r)
        snprintf(why, size, "as calibrated for this disk: %s in reads of %llu KiB",
                 sl_rate_text(stored->chosen.rate, rate), (unsigned long long)(stored->read_bytes + 1023) / 1024);
    else if (stored)
        snprintf(why, size, "defaults: this disk was calibrated for %s with%s O_DIRECT",
                 sl_reader_kind_name(stored->chosen.how.kind), stored->chosen.how.direct ? "" : "out");
    else
        snprintf(why, size, "defaults: this disk is not calibrated, see 'sluice doctor'");
}

/* The best rate that was measured with or without O_DIRECT; 0: none was. */
static double best_rate(const sl_calibration *c, bool direct) {
    double best = 0;
    for (int i = 0; i < c->count; i++)
        if (c->tried[i].how.direct == direct && c->tried[i].rate > best)
            best = c->tried[i].rate;
    return best;
}

/* The page cache never serves as a second cache: what it holds counts within the budget, too, and is a copy of what was
 * just read. So nothing stays there, whichever way reads go. */
void sl_reading_cache_why(const sl_calibration *c, bool direct_possible, char *why, size_t size) {
    static const char dropped[] = "what was read is dropped from it, so that memory holds experts once";
    double past = best_rate(c, true) / 1e9, through = best_rate(c, false) / 1e9;
    if (!direct_possible)
        snprintf(why, size, "through the page cache, because this file system refuses O_DIRECT; %s", dropped);
    else if (!c->chosen.how.direct)
        snprintf(why, size,
                 "through the page cache, because that was clearly faster: %.2f GB/s, at best %.2f with O_DIRECT; %s",
                 c->chosen.rate / 1e9, past, dropped);
    else if (through <= 0)
        snprintf(why, size,
                 "past the page cache (O_DIRECT), as usual: time ran out before the page cache was measured");
    else if (through <= past)
        snprintf(why, size, "past the page cache (O_DIRECT), because through it reads are slower: %.2f GB/s at best",
                 through);
    else
        snprintf(why, size,
                 "past the page cache (O_DIRECT), because through it reads are not clearly faster: %.2f GB/s at best",
                 through);
}

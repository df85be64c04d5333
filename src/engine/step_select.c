/* Which rows a step holds.
 *
 * The CPU computes every row by itself, so whatever is ready comes together: one row of every sequence that decodes
 * and, when prefill has its turn, chunks of prompts.
 *
 * A device computes the rows of a step of few rows (e->few_rows) each by itself, and those of larger steps in half
 * tiles, which give other bits (though a row's do not depend on the others there either). So that nobody's answer
 * depends on who else is being served, a run comes only into a step of the kind that it would be alone in: a step holds
 * either few rows, or runs of many rows each, none of them cut otherwise than it would be alone. The two kinds take
 * turns. Only an engine that was opened for more sequences than few_rows decodes that many in one large step. */
#include "engine/internal.h"

/* Tokens before the run's next one that must be evaluated again, the state having been lost. What a job had evaluated
 * is not committed: it begins again. */
static int32_t past(engine_run *run) {
    int32_t target = run->base + run->done, from = engine_state_next(run->seq, target);
    if (from < target && run->job) {
        run->done = 0;
        target = run->base;
    }
    return from < target ? target - from : 0;
}

int32_t engine_run_remaining(engine_run *run) {
    return past(run) + run->count - run->done;
}

/* Where the logits of row i of a run go: wanted says whether they are at all. */
static float *row_dest(const engine_run *run, int32_t i, bool *wanted) {
    if (run->request) {
        *wanted = i == run->count - 1;
        return NULL;
    }
    *wanted = run->dest[i] != NULL;
    return run->dest[i];
}

/* Takes an output into the step if there is a place for its logits. Outputs of one job that lie one after another go
 * straight to its memory, any number of them; all others need a row of the engine's own. */
static bool take_output(sl_engine *e, engine_step *st, float *dest, int32_t row) {
    bool follows = dest && st->direct && (st->outs == 0 || dest == st->dest[0] + (int64_t)st->outs * e->vocab);
    if (st->outs >= (follows ? e->max_outs : st->out_capacity))
        return false;
    st->direct = follows;
    st->out_rows[st->outs] = row;
    st->dest[st->outs++] = dest;
    return true;
}

static void add_row(engine_step *st, const engine_run *run, int32_t position) {
    bool again = position < run->base + run->done;
    st->token[st->rows] = again ? run->seq->tokens[position] : run->tokens[position - run->base];
    st->seq[st->rows] = st->run_count;
    st->position[st->rows] = position;
    st->rows++;
}

/* An answer that has begun ends where its KV does, as at the end of the context; everything else fails. */
static void no_room(sl_engine *e, engine_run *run, const sl_error *err) {
    if (err->code == SL_ERR_BUDGET && run->request && run->request->completion > 0)
        engine_request_end(run->request, SL_FINISH_LENGTH, err);
    else
        engine_run_fail(e, run, err);
}

/* The rows of a prompt of a sequence that is kept begin with a step of their own, so that the state before them can be
 * marked. */
static bool begins_kept(const engine_run *run) {
    return run->request && !run->request->own_seq && run->request->completion == 0 && run->done == 0;
}

/* Rows of the run's next step if it may have `most`, of which the first `again` were evaluated before. */
static int32_t planned(engine_run *run, int32_t again, int32_t most) {
    int32_t n = engine_run_remaining(run) < most ? engine_run_remaining(run) : most;
    return begins_kept(run) && again > 0 && again < n ? again : n;
}

/* Adds up to `most` rows of a run: fewer where no place is left for logits. Returns how many. */
static int32_t add_run(sl_engine *e, engine_run *run, int32_t most) {
    engine_step *st = &e->sched.step;
    sl_error err = {0};
    int32_t again = past(run), from = run->base + run->done - again;
    int32_t n = planned(run, again, most);
    if (n < 1)
        return 0;
    if (again == 0 && begins_kept(run))
        engine_state_mark(run->seq);
    if (!engine_seq_prepare(run->seq, from, from + n, &err)) {
        no_room(e, run, &err);
        return 0;
    }
    run->first_row = st->rows;
    run->first_out = st->outs;
    run->rows = 0;
    for (; run->rows < n; run->rows++) {
        bool wanted = false;
        float *dest = run->rows < again ? NULL : row_dest(run, run->done + run->rows - again, &wanted);
        if (wanted && !take_output(e, st, dest, st->rows))
            break;
        add_row(st, run, from + run->rows);
    }
    run->past = again < run->rows ? again : run->rows;
    run->outs = st->outs - run->first_out;
    if (run->rows > 0)
        st->runs[st->run_count++] = run;
    return run->rows;
}

static bool takes_part(const engine_run *run) {
    return run->ready && !run->ended;
}

/* A run that must be tried by itself, or NULL. */
static engine_run *find_alone(engine_sched *sc) {
    for (size_t i = 0; i < sc->active_count; i++)
        if (sc->active[i]->alone && takes_part(sc->active[i]))
            return sc->active[i];
    return NULL;
}

static void add_decodes(sl_engine *e) {
    engine_sched *sc = &e->sched;
    for (size_t i = 0; i < sc->active_count && sc->step.decode_rows < e->max_sequences; i++)
        if (takes_part(sc->active[i]) && engine_run_remaining(sc->active[i]) == 1)
            sc->step.decode_rows += add_run(e, sc->active[i], 1);
}

static void add_prefills(sl_engine *e, int32_t chunk) {
    engine_sched *sc = &e->sched;
    for (size_t i = 0; i < sc->active_count && sc->step.prefill_rows < chunk; i++)
        if (takes_part(sc->active[i]) && engine_run_remaining(sc->active[i]) > 1)
            sc->step.prefill_rows += add_run(e, sc->active[i], chunk - sc->step.prefill_rows);
}

/* ---- a device's steps ------------------------------------------------------------------------------------------- */

static int32_t planned_alone(const sl_engine *e, engine_run *run) {
    return planned(run, past(run), e->chunk);
}

/* Adds all rows that the run would have in a step of its own, or none: there may be no place for their logits beside
 * others'. */
static void add_whole(sl_engine *e, engine_run *run, int32_t rows) {
    engine_step *st = &e->sched.step;
    bool direct = st->direct, decodes = engine_run_remaining(run) == 1;
    int32_t added = add_run(e, run, rows);
    if (added > 0 && added < rows && st->run_count > 1) {
        st->run_count--;
        st->rows = run->first_row;
        st->outs = run->first_out;
        st->direct = direct;
        run->rows = added = 0;
    }
    *(decodes ? &st->decode_rows : &st->prefill_rows) += added;
}

/* Runs of one row, if there are more of them than are computed each by itself, and the engine was opened for so many.
 */
static bool add_many_decodes(sl_engine *e) {
    engine_sched *sc = &e->sched;
    int32_t ready = 0;
    for (size_t i = 0; i < sc->active_count; i++)
        ready += takes_part(sc->active[i]) && planned_alone(e, sc->active[i]) == 1;
    if (ready <= e->few_rows || e->max_sequences <= e->few_rows)
        return false;
    for (size_t i = 0; i < sc->active_count && sc->step.rows < e->max_sequences; i++)
        if (takes_part(sc->active[i]) && planned_alone(e, sc->active[i]) == 1)
            add_whole(e, sc->active[i], 1);
    return true;
}

static void add_few(sl_engine *e) {
    engine_sched *sc = &e->sched;
    int32_t most = e->few_rows < e->max_rows ? e->few_rows : e->max_rows;
    if (add_many_decodes(e))
        return;
    for (size_t i = 0; i < sc->active_count; i++) {
        int32_t n = takes_part(sc->active[i]) ? planned_alone(e, sc->active[i]) : 0;
        if (n > 0 && n <= most - sc->step.rows)
            add_whole(e, sc->active[i], n);
    }
}

static void add_many(sl_engine *e) {
    engine_sched *sc = &e->sched;
    for (size_t i = 0; i < sc->active_count; i++) {
        int32_t n = takes_part(sc->active[i]) ? planned_alone(e, sc->active[i]) : 0;
        if (n > e->few_rows && n <= e->chunk - sc->step.rows)
            add_whole(e, sc->active[i], n);
    }
}

static void select_apart(sl_engine *e) {
    engine_sched *sc = &e->sched;
    engine_step *st = &sc->step;
    bool few = false, many = false;
    for (size_t i = 0; i < sc->active_count; i++)
        if (takes_part(sc->active[i]))
            *(planned_alone(e, sc->active[i]) <= e->few_rows ? &few : &many) = true;
    bool turn_of_few = few && (!many || sc->many_last || sc->decode_owed_ns > 0);
    (turn_of_few ? add_few : add_many)(e);
    if (st->rows == 0 && few && many) { /* there was no room for them */
        turn_of_few = !turn_of_few;
        (turn_of_few ? add_few : add_many)(e);
    }
    st->prompt = sc->many_last = !turn_of_few && st->rows > 0;
    st->holds_up = st->prompt && few;
}

/* ---- any step --------------------------------------------------------------------------------------------------- */

static void select_together(sl_engine *e, int32_t chunk) {
    engine_sched *sc = &e->sched;
    engine_step *st = &sc->step;
    add_decodes(e);
    if (st->decode_rows == 0 || sc->decode_owed_ns == 0)
        add_prefills(e, chunk);
    st->prompt = st->prefill_rows > 0;
    st->holds_up = st->prompt && st->decode_rows > 0;
}

void engine_step_select(sl_engine *e) {
    engine_sched *sc = &e->sched;
    engine_step *st = &sc->step;
    st->run_count = st->rows = st->outs = st->decode_rows = st->prefill_rows = 0;
    st->direct = true;
    st->prompt = st->holds_up = false;
    int32_t chunk = engine_wide_chunk(e);
    engine_run *alone = find_alone(sc);
    if (alone) {
        int32_t *rows = engine_run_remaining(alone) > 1 ? &st->prefill_rows : &st->decode_rows;
        *rows = add_run(e, alone, e->chunk);
        st->prompt = st->prefill_rows > 0;
    } else if (e->few_rows) {
        select_apart(e);
    } else {
        select_together(e, chunk);
    }
}

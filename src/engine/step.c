/* One step: running the rows that step_select.c has chosen, handing out what came of it.
 *
 * Nothing is committed before the step succeeded, so a step that failed as a whole is simply made again from what is
 * left:
 *   - cancelled: the cancelled requests end, the others' rows are run again;
 *   - any other error: each of its runs is tried alone, so that the error reaches only its owner;
 *   - rows whose expert could not be read fail their own run, the other rows stand.
 * A model with recurrent state (state.h) loses that of every sequence of a step that failed, and of a run that did:
 * their history is evaluated again, before their own rows, when they are continued.
 * When cancellation interrupts: alone, or while a chunk of the cancelled request's own prompt is being evaluated,
 * within a layer; a decode row that shares the step with others waits for the step's end (one token), because running
 * the others again would delay them by as much. With recurrent state a step is interrupted only where nobody loses by
 * it: all of its runs are cancelled, and none of them is a single token of a sequence that is kept. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

int32_t engine_out_capacity(int32_t max_sequences) {
    /* Every request may want a row; as many more keep sl_decode going beside them. */
    return 2 * max_sequences;
}

bool engine_step_init(sl_engine *e, sl_error *err) {
    engine_step *st = &e->sched.step;
    size_t n = (size_t)(e->wide_most > e->chunk ? e->wide_most + e->max_sequences : e->max_rows);
    st->token = calloc(n, sizeof *st->token);
    st->seq = calloc(n, sizeof *st->seq);
    st->position = calloc(n, sizeof *st->position);
    st->out_rows = calloc(n, sizeof *st->out_rows);
    st->dest = calloc(n, sizeof *st->dest);
    st->row_failed = calloc(n, sizeof *st->row_failed);
    st->seqs = calloc(n, sizeof *st->seqs);
    st->runs = calloc(n, sizeof *st->runs);
    if (!st->token || !st->seq || !st->position || !st->out_rows || !st->dest || !st->row_failed || !st->seqs ||
        !st->runs)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a step of %zu rows", n);
    st->out_capacity = engine_out_capacity(e->max_sequences);
    if (st->out_capacity > e->max_outs)
        st->out_capacity = e->max_outs;
    st->logits =
        sl_mem_span(e->mem, (uint64_t)st->out_capacity * (uint64_t)e->vocab * sizeof(float), SL_USE_SCRATCH, err);
    return st->logits != NULL;
}

void engine_step_free(sl_engine *e) {
    engine_step *st = &e->sched.step;
    free(st->token);
    free(st->seq);
    free(st->position);
    free(st->out_rows);
    free(st->dest);
    free(st->row_failed);
    free(st->seqs);
    free(st->runs);
    sl_mem_span_free(e->mem, st->logits);
    *st = (engine_step){0};
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

/* The callers of jobs wait for nothing any more. */
static bool jobs_stopped(const sl_engine *e) {
    return e->options.stop && e->options.stop(e->options.stop_user);
}

static bool all_jobs(const engine_step *st) {
    for (int32_t i = 0; i < st->run_count; i++)
        if (!st->runs[i]->job)
            return false;
    return true;
}

static bool is_cancelled(const engine_run *run) {
    return run->request && atomic_load_explicit(&run->request->cancelled, memory_order_relaxed);
}

/* A token whose end is waited for, because the sequence goes on from its state. */
static bool worth_waiting(const engine_run *run) {
    return run->rows == 1 && !run->request->own_seq;
}

static bool all_may_stop(const engine_step *st) {
    for (int32_t i = 0; i < st->run_count; i++)
        if (!is_cancelled(st->runs[i]) || worth_waiting(st->runs[i]))
            return false;
    return true;
}

/* Whether the step should stop now: see the top of the file. */
bool engine_step_is_over(void *user) {
    sl_engine *e = user;
    const engine_step *st = &e->sched.step;
    if (atomic_load_explicit(&e->sched.ending, memory_order_relaxed))
        return true;
    if (all_jobs(st))
        return jobs_stopped(e);
    if (e->state)
        return all_may_stop(st);
    int32_t cancelled = 0;
    for (int32_t i = 0; i < st->run_count; i++) {
        if (!is_cancelled(st->runs[i]))
            continue;
        if (st->runs[i]->rows > 1)
            return true;
        cancelled++;
    }
    return cancelled == st->run_count;
}

static bool run_forward(sl_engine *e, sl_error *row_error, sl_error *err) {
    engine_step *st = &e->sched.step;
    for (int32_t i = 0; i < st->run_count; i++)
        st->seqs[i] = (sl_step_seq){.pages = st->runs[i]->seq->pages,
                                    .page_count = st->runs[i]->seq->page_count,
                                    .state = st->runs[i]->seq->state};
    memset(st->row_failed, 0, (size_t)st->rows);
    /* A device with memory of its own copies to the engine's: a job's would be pinned for each step anew. */
    bool direct = st->direct && st->outs > 0 && !(e->vram_apart && st->outs <= st->out_capacity);
    sl_step step = {.rows = st->rows,
                    .token = st->token,
                    .seq = st->seq,
                    .position = st->position,
                    .seq_count = st->run_count,
                    .seqs = st->seqs,
                    .outs = st->outs,
                    .out_rows = st->out_rows,
                    .logits = direct ? st->dest[0] : st->logits,
                    .row_failed = st->row_failed,
                    .cancelled = engine_step_is_over,
                    .user = e};
    bool ok = e->forward.run(e->forward.self, &step, err);
    *row_error = step.row_error;
    for (int32_t i = 0; ok && !direct && i < st->outs; i++)
        if (st->dest[i])
            memcpy(st->dest[i], st->logits + (int64_t)i * e->vocab, (size_t)e->vocab * sizeof(float));
    return ok;
}

/* ---- results ---------------------------------------------------------------------------------------------------- */

void engine_run_fail(sl_engine *e, engine_run *run, const sl_error *error) {
    if (run->ended)
        return;
    if (run->request) {
        bool cancelled = error->code == SL_ERR_CANCELLED;
        engine_request_end(run->request, cancelled ? SL_FINISH_CANCELLED : SL_FINISH_ERROR, error);
        return;
    }
    engine_job *job = run->job;
    if (!job->failed)
        job->error = *error;
    job->failed = true;
    for (int32_t i = 0; i < job->run_count; i++)
        job->runs[i].ended = true;
}

static bool any_row_failed(const engine_step *st, const engine_run *run) {
    for (int32_t i = 0; i < run->rows; i++)
        if (st->row_failed[run->first_row + i])
            return true;
    return false;
}

static void report_prefill(sl_engine *e, const engine_run *run) {
    if (run->request && run->count > 1 && e->options.progress)
        e->options.progress(e->options.progress_user, SL_STAGE_PREFILL, (uint64_t)run->done, (uint64_t)run->count);
}

/* The rows of a run have been evaluated. */
static void advance_run(sl_engine *e, engine_run *run) {
    const engine_step *st = &e->sched.step;
    int32_t own = run->rows - run->past;
    run->alone = false;
    if (run->request && own)
        engine_seq_commit(run->seq, run->tokens + run->done, own);
    run->done += own;
    report_prefill(e, run);
    if (engine_run_remaining(run) > 0)
        return;
    if (run->job)
        run->ended = true;
    else
        engine_request_advance(run->request, st->logits + (int64_t)run->first_out * e->vocab);
}

/* What the states hold after the step. */
static void settle_states(const engine_step *st, bool ok) {
    for (int32_t i = 0; i < st->run_count; i++) {
        const engine_run *run = st->runs[i];
        bool whole = ok && !any_row_failed(st, run);
        if (whole)
            run->seq->state_at = st->position[run->first_row] + run->rows;
        else
            engine_state_lose(run->seq);
    }
}

static void hand_out(sl_engine *e, const sl_error *row_error) {
    engine_step *st = &e->sched.step;
    for (int32_t i = 0; i < st->run_count; i++) {
        engine_run *run = st->runs[i];
        if (run->ended)
            continue; /* its job failed through another run */
        if (any_row_failed(st, run))
            engine_run_fail(e, run, row_error);
        else
            advance_run(e, run);
    }
}

static void step_failed(sl_engine *e, const sl_error *error) {
    engine_step *st = &e->sched.step;
    if (error->code == SL_ERR_CANCELLED && !all_jobs(st))
        return; /* the scheduler ends the cancelled ones before the next step */
    for (int32_t i = 0; error->code == SL_ERR_CANCELLED && i < st->run_count; i++)
        engine_run_fail(e, st->runs[i], error);
    if (error->code == SL_ERR_CANCELLED)
        return;
    if (st->run_count == 1) {
        engine_run_fail(e, st->runs[0], error);
        return;
    }
    for (int32_t i = 0; i < st->run_count; i++)
        st->runs[i]->alone = true;
}

/* Time of a step goes to prefill and decode by their rows. A chunk of prefill that held up decoding owes it a quarter
 * of its time: decode-only steps until then, so that a long prompt cannot stop those who are reading an answer. */
static void account(sl_engine *e, uint64_t ns) {
    engine_sched *sc = &e->sched;
    const engine_step *st = &sc->step;
    uint64_t prompt_ns = ns * (uint64_t)st->prefill_rows / (uint64_t)st->rows;
    if (st->prompt)
        sc->decode_owed_ns = st->holds_up ? ns / 4 : 0;
    else
        sc->decode_owed_ns = sc->decode_owed_ns > ns ? sc->decode_owed_ns - ns : 0;
    pthread_mutex_lock(&sc->mutex);
    e->counters.prompt_tokens += (uint64_t)st->prefill_rows;
    e->counters.prompt_ns += prompt_ns;
    e->counters.decode_tokens += (uint64_t)st->decode_rows;
    e->counters.decode_ns += ns - prompt_ns;
    if (e->ops)
        sl_ops_times_get(e->ops, &e->times);
    pthread_mutex_unlock(&sc->mutex);
}

/* Runs that were served go behind those that were not, so that all get their turn when there are more than fit. */
static void requeue_served(engine_sched *sc) {
    size_t n = 0;
    for (size_t i = 0; i < sc->active_count; i++)
        if (sc->active[i]->rows == 0)
            sc->active[n++] = sc->active[i];
    for (int32_t i = 0; i < sc->step.run_count; i++)
        sc->active[n++] = sc->step.runs[i];
}

void engine_step_run(sl_engine *e) {
    engine_sched *sc = &e->sched;
    engine_step *st = &sc->step;
    sl_error error = {0}, row_error = {0};
    for (size_t i = 0; i < sc->active_count; i++)
        sc->active[i]->rows = 0;
    engine_step_select(e);
    if (st->rows == 0)
        return;
    engine_activity_set(&e->activity, st->prefill_rows ? ENGINE_PREFILL : ENGINE_DECODE, st->rows);
    uint64_t start = sl_now_ns();
    bool ok = run_forward(e, &row_error, &error);
    settle_states(st, ok);
    if (ok) {
        account(e, sl_now_ns() - start);
        hand_out(e, &row_error);
    } else {
        step_failed(e, &error);
    }
    requeue_served(sc);
}

/* Wide steps: a long prompt that is alone comes in larger chunks while experts stream; the answer's bits, the budget
 * and those who decode are as without. On the shipped model, whose context is longer than a chunk. */
#include "support_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PROMPT = 900, SHORT = 300, USUAL = 512, SLOTS = 100, ANSWER = 6, MOST_CHUNKS = 64 };

/* How far a prompt had come after each step. */
typedef struct chunks {
    int n, rows[MOST_CHUNKS];
    int before;
} chunks;

static void note_chunk(void *user, sl_stage stage, uint64_t done, uint64_t total) {
    chunks *c = user;
    if (stage != SL_STAGE_PREFILL)
        return;
    assert_in_range(c->n, 0, MOST_CHUNKS - 1);
    assert_in_range(done, (uint64_t)c->before + 1, total);
    c->rows[c->n++] = (int)done - c->before;
    c->before = done == total ? 0 : (int)done;
}

static int widest(const chunks *c) {
    int most = 0;
    for (int i = 0; i < c->n; i++)
        most = c->rows[i] > most ? c->rows[i] : most;
    return most;
}

static sl_engine_options options_with(uint64_t memory, int slots, chunks *c) {
    sl_engine_options o = model_options_of(SL_SOURCE_DIR "/models/sluice-smol-moe");
    o.context = 1024;
    o.memory = memory;
    o.max_slots = slots;
    o.max_sequences = 4;
    o.progress = c ? note_chunk : NULL;
    o.progress_user = c;
    return o;
}

/* Logits of the last row of a prompt, and of one token more. Returns the chunk that there was scratch for. */
static int long_logits(sl_engine *e, int vocab, float *out) {
    sl_seq *s = model_new_seq(e);
    model_append(e, s, 3, 0, SHORT, out);
    int chunk = e->fitted;
    model_append(e, s, 3, SHORT, SHORT + 1, out + vocab);
    sl_seq_free(s);
    return chunk;
}

static float *expected_logits(int *vocab) {
    sl_engine_options o = options_with(1024 * MIB, 0, NULL);
    o.chunk = 64;
    sl_engine *e = model_must_open(&o);
    *vocab = model_info_of(e).vocab;
    float *out = calloc(2 * (size_t)*vocab, sizeof *out);
    assert_non_null(out);
    long_logits(e, *vocab, out);
    sl_engine_close(e);
    return out;
}

static void test_long_prompt_alone_comes_in_one_chunk(void **state) {
    chunks c = {0};
    model_text t;
    sl_engine_options o = options_with(1024 * MIB, SLOTS, &c);
    sl_engine *e = model_must_open(&o);
    assert_int_equal(model_info_of(e).chunk, USUAL);
    model_collect(model_start(e, 1, PROMPT, ANSWER, 0), &t);
    assert_int_equal(c.n, 1);
    assert_int_equal(c.rows[0], PROMPT);
    assert_int_equal(e->fitted, USUAL); /* the answer's tokens needed no more */
    sl_engine_close(e);
}

/* Where every expert has a slot each is read once whatever the chunk; a chunk that was asked for is kept to. */
static void test_chunk_stays_where_nothing_streams_or_it_was_asked_for(void **state) {
    for (int asked = 0; asked < 2; asked++) {
        chunks c = {0};
        model_text t;
        sl_engine_options o = options_with(1024 * MIB, asked ? SLOTS : 0, &c);
        o.chunk = asked ? 300 : 0;
        sl_engine *e = model_must_open(&o);
        model_collect(model_start(e, 1, PROMPT, ANSWER, 0), &t);
        assert_int_equal(widest(&c), asked ? 300 : USUAL);
        sl_engine_close(e);
    }
}

/* One that decodes would wait for a wide chunk; so would one whose reader is behind, as here. */
static void test_chunk_stays_while_another_decodes(void **state) {
    chunks c = {0};
    model_text first, second;
    sl_engine_options o = options_with(1024 * MIB, SLOTS, &c);
    sl_engine *e = model_must_open(&o);
    sl_event event;
    sl_request *a = model_start(e, 1, 8, 40, 0);
    assert_true(sl_request_next(a, &event, 60000));
    model_collect(model_start(e, 2, PROMPT, ANSWER, 0), &second);
    assert_in_range(widest(&c), 2, USUAL);
    model_collect(a, &first);
    c = (chunks){0};
    model_collect(model_start(e, 2, PROMPT, ANSWER, 0), &first);
    assert_int_equal(widest(&c), PROMPT);
    assert_memory_equal(first.tokens, second.tokens, ANSWER * sizeof *first.tokens);
    sl_engine_close(e);
}

/* Budgets from the least on: scratch comes out of the slots and goes back, counted all the time. */
static void test_wide_chunks_change_no_bit_and_keep_the_budget(void **state) {
    int vocab, wide = 0, usual = 0;
    float *expected = expected_logits(&vocab), *got = calloc(2 * (size_t)vocab, sizeof *got);
    assert_non_null(got);
    sl_engine_options o = options_with(0, 0, NULL);
    o.plan_only = true;
    sl_engine *e = model_must_open(&o);
    uint64_t least = model_info_of(e).least_memory;
#ifdef SANITIZED
    least += 16 * MIB;
#endif
    sl_engine_close(e);
    for (uint64_t more = 20; more <= 32; more += 4) {
        o = options_with(least + more * MIB, 0, NULL);
        e = model_must_open(&o);
        int chunk = model_info_of(e).chunk;
        for (int round = 0; round < 2; round++) {
            memset(got, 0xa5, 2 * (size_t)vocab * sizeof *got);
            int fitted = long_logits(e, vocab, got);
            print_message("%llu MiB: chunk %d, %d of the prompt\n", (unsigned long long)(o.memory / MIB), chunk,
                          fitted);
            *(fitted > chunk ? &wide : &usual) += 1;
            assert_memory_equal(got, expected, 2 * (size_t)vocab * sizeof *got);
        }
        sl_stats s = model_stats_of(e);
        assert_true(s.memory_peak <= o.memory);
        assert_int_equal(e->fitted, chunk);
        sl_engine_close(e);
    }
    assert_true(usual > 0);
#ifndef SANITIZED /* where the process is larger, less of the budget is slots' */
    assert_true(wide > 0);
#endif
    free(expected);
    free(got);
}

static void lose_scratch(void *user) {
    sl_engine *e = user;
    sl_error err = {0};
    assert_false(sl_model_fit_rows(e->model, 1 << 24, 1, &err));
    assert_int_equal(err.code, SL_ERR_BUDGET);
    e->fitted = 0;
}

/* As where what was to be exchanged could not be had. */
static void test_lost_scratch_is_taken_again(void **state) {
    model_text before, after;
    sl_engine_options o = options_with(256 * MIB, SLOTS, NULL);
    sl_engine *e = model_must_open(&o);
    model_collect(model_start(e, 1, 40, ANSWER, 0), &before);
    uint64_t scratch = sl_mem_used(e->mem, SL_USE_SCRATCH);
    assert_true(engine_call_run(e, lose_scratch, e));
    assert_true(sl_mem_used(e->mem, SL_USE_SCRATCH) < scratch);
    model_collect(model_start(e, 1, 40, ANSWER, 0), &after);
    assert_memory_equal(before.tokens, after.tokens, ANSWER * sizeof *after.tokens);
    assert_int_equal(sl_mem_used(e->mem, SL_USE_SCRATCH), scratch);
    sl_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_prompt_alone_comes_in_one_chunk),
        cmocka_unit_test(test_chunk_stays_where_nothing_streams_or_it_was_asked_for),
        cmocka_unit_test(test_chunk_stays_while_another_decodes),
        cmocka_unit_test(test_wide_chunks_change_no_bit_and_keep_the_budget),
        cmocka_unit_test(test_lost_scratch_is_taken_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

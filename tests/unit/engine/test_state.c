/* Recurrent state of sequences: whatever happened to a sequence (forks, truncation, failed and cancelled steps,
 * snapshots, a full budget), it goes on as a straight run would. */
#include "support_fake.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { LAYERS = 4, BAD_ROW = FAKE_VOCAB - 1, BAD_STEP = FAKE_VOCAB - 2 };

static fake *open_fake(int slabs) {
    fake *f = fake_open(&(fake_options){.state_layers = LAYERS, .slabs = slabs, .chunk = 90});
    f->row_error_token = BAD_ROW;
    f->nan_token = BAD_STEP;
    return f;
}

/* A sequence and what is in it. */
typedef struct history {
    sl_seq *s;
    int32_t t[512];
    int n;
} history;

static history begin(fake *f) {
    history h = {.s = sl_seq_new(&f->e, NULL)};
    assert_non_null(h.s);
    return h;
}

static int32_t good_token(void) {
    return rand() % (FAKE_VOCAB - 2);
}

static void check_logits(const history *h, const float *got) {
    float expected[FAKE_VOCAB];
    fake_logits(h->t, h->n, expected);
    assert_memory_equal(got, expected, sizeof expected);
}

static void append(history *h, int n) {
    float got[FAKE_VOCAB];
    for (int i = 0; i < n; i++)
        h->t[h->n + i] = good_token();
    fake_append(h->s, h->t + h->n, n, got);
    h->n += n;
    assert_int_equal(sl_seq_length(h->s), h->n);
    check_logits(h, got);
}

/* n tokens, one of which fails. */
static void append_failing(history *h, int n, int32_t bad) {
    sl_input in[256];
    sl_error err = {0};
    for (int i = 0; i < n; i++)
        in[i] = (sl_input){h->s, good_token(), false};
    in[rand() % n].token = bad;
    assert_false(sl_decode(h->s->e, in, (size_t)n, NULL, &err));
    assert_int_equal(err.code, bad == BAD_ROW ? SL_ERR_IO : SL_ERR_NUMERIC);
    assert_int_equal(sl_seq_length(h->s), h->n);
}

static history fork_of(const history *h) {
    history out = *h;
    sl_error err = {0};
    out.s = sl_seq_fork(h->s, &err);
    if (!out.s)
        fail_msg("%s", err.message);
    return out;
}

static void truncate_to(history *h, int n) {
    assert_true(sl_seq_truncate(h->s, n, NULL));
    h->n = n;
}

/* The sequence is another after it, with the same in it. */
static void save_and_restore(history *h) {
    void *bytes;
    size_t size;
    sl_error err = {0};
    if (!sl_seq_save(h->s, &bytes, &size, &err))
        fail_msg("%s", err.message);
    sl_seq *copy = sl_seq_restore(h->s->e, bytes, size, &err);
    if (!copy)
        fail_msg("%s", err.message);
    sl_seq_free(h->s);
    h->s = copy;
    free(bytes);
}

/* ---- undisturbed ------------------------------------------------------------------------------------------------- */

static void test_nothing_is_evaluated_twice(void **state) {
    fake *f = open_fake(0);
    history a = begin(f), b = begin(f);
    append(&a, 150);
    append(&b, 70);
    for (int i = 0; i < 20; i++) {
        append(&a, 1);
        append(&b, 1 + i % 3);
    }
    history c = fork_of(&a);
    append(&c, 5);
    append(&a, 7);
    save_and_restore(&c);
    append(&c, 1);
    assert_int_equal(f->rows, a.n + b.n + 6);
    sl_seq_free(a.s);
    sl_seq_free(b.s);
    sl_seq_free(c.s);
    fake_close(f);
}

static void test_forks_share_until_they_continue(void **state) {
    fake *f = open_fake(0);
    history a = begin(f), forks[5];
    append(&a, 30);
    for (int i = 0; i < 5; i++)
        forks[i] = fork_of(&a);
    assert_int_equal(engine_kv_stats_get(f->e.state).blocks_used, LAYERS);
    append(&forks[2], 1);
    assert_int_equal(engine_kv_stats_get(f->e.state).blocks_used, 2 * LAYERS);
    append(&a, 3);
    append(&forks[0], 2);
    assert_int_equal(f->rows, 36);
    for (int i = 0; i < 5; i++)
        append(&forks[i], 1);
    sl_seq_free(a.s);
    for (int i = 0; i < 5; i++)
        sl_seq_free(forks[i].s);
    fake_close(f);
}

/* ---- lost and renewed -------------------------------------------------------------------------------------------- */

static void test_truncation_evaluates_the_rest_again(void **state) {
    fake *f = open_fake(0);
    history a = begin(f);
    append(&a, 200);
    truncate_to(&a, 130);
    append(&a, 3);
    assert_int_equal(f->rows, 200 + 130 + 3);
    truncate_to(&a, 133); /* to where it is */
    append(&a, 1);
    assert_int_equal(f->rows, 200 + 130 + 3 + 1);
    history b = fork_of(&a);
    truncate_to(&b, 64);
    append(&a, 1);
    append(&b, 1);
    history c = fork_of(&a); /* its pages are written again, and the origin's stay */
    truncate_to(&c, 80);
    append(&c, 3);
    append(&a, 1);
    sl_seq_free(c.s);
    truncate_to(&a, 0);
    append(&a, 10);
    sl_seq_free(a.s);
    sl_seq_free(b.s);
    fake_close(f);
}

static void test_a_failed_step_is_not_continued(void **state) {
    fake *f = open_fake(0);
    static const int32_t bad[] = {BAD_ROW, BAD_STEP};
    history a = begin(f);
    for (int i = 0; i < 6; i++) {
        append(&a, 1 + i * 13);
        append_failing(&a, i % 3 ? 1 : 150, bad[i % 2]);
        if (i == 3)
            save_and_restore(&a); /* while it is lost */
        if (i == 4)
            truncate_to(&a, a.n - 5);
    }
    append(&a, 2);
    sl_seq_free(a.s);
    fake_close(f);
}

/* The history itself fails while it is evaluated again, in part or as a whole. */
static void test_a_failure_while_renewing(void **state) {
    fake *f = open_fake(0);
    history a = begin(f);
    sl_error err = {0};
    for (int i = 0; i < 4; i++) {
        append(&a, 130);
        truncate_to(&a, a.n - 10);
        _Atomic int32_t *bad = i % 2 ? &f->nan_token : &f->row_error_token;
        *bad = a.t[i < 2 ? 20 : 100]; /* of the first chunk, of the second */
        assert_false(sl_decode(&f->e, &(sl_input){a.s, 1, false}, 1, NULL, &err));
        *bad = i % 2 ? BAD_STEP : BAD_ROW;
        append(&a, 1);
        truncate_to(&a, 110);
    }
    sl_seq_free(a.s);
    fake_close(f);
}

typedef struct decoding {
    history *h;
    int n;
    bool ok;
    float logits[FAKE_VOCAB];
} decoding;

static void *decode_thread(void *arg) {
    decoding *d = arg;
    sl_input in[256];
    for (int i = 0; i < d->n; i++)
        in[i] = (sl_input){d->h->s, d->h->t[d->h->n + i], i == d->n - 1};
    d->ok = sl_decode(d->h->s->e, in, (size_t)d->n, d->logits, NULL);
    return NULL;
}

/* A call of several steps, one of which fails through somebody else: what it had not committed is evaluated again. */
static void test_a_long_call_beside_a_failure(void **state) {
    fake *f = open_fake(0);
    history a = begin(f), b = begin(f);
    append(&a, 10);
    decoding d = {.h = &a, .n = 150};
    for (int i = 0; i < d.n; i++)
        a.t[a.n + i] = good_token();
    f->hold = true;
    pthread_t thread;
    pthread_create(&thread, NULL, decode_thread, &d);
    fake_await(&f->holding);
    int32_t prompt[] = {1, 2, BAD_STEP};
    sl_generate_options o = fake_prompt(prompt, 3, 1);
    o.seq = b.s;
    sl_request *r = fake_start(f, &o);
    f->hold = false;
    fake_result out;
    fake_collect(r, &out);
    sl_request_free(r);
    pthread_join(thread, NULL);
    assert_int_equal(out.last.finish, SL_FINISH_ERROR);
    assert_true(d.ok);
    a.n += d.n;
    check_logits(&a, d.logits);
    append(&a, 1);
    append(&b, 1);
    sl_seq_free(a.s);
    sl_seq_free(b.s);
    fake_close(f);
}

/* A failure costs those who shared the step their state, not their answer. */
static void test_others_of_a_failed_step_go_on(void **state) {
    fake *f = open_fake(0);
    history h[3];
    sl_request *r[3];
    sl_error err = {0};
    for (int i = 0; i < 3; i++) {
        h[i] = begin(f);
        append(&h[i], 40 + i);
    }
    f->hold = true;
    for (int i = 0; i < 3; i++) {
        int32_t next[2] = {good_token(), i == 1 ? BAD_STEP : good_token()};
        memcpy(h[i].t + h[i].n, next, sizeof next);
        sl_generate_options o = fake_prompt(next, 2, 5);
        o.seq = h[i].s;
        r[i] = sl_generate(&f->e, &o, &err);
        assert_non_null(r[i]);
        if (i == 0)
            fake_await(&f->holding);
    }
    f->hold = false;
    for (int i = 0; i < 3; i++) {
        fake_result out;
        fake_collect(r[i], &out);
        sl_request_free(r[i]);
        if (i == 1) {
            assert_int_equal(out.last.finish, SL_FINISH_ERROR);
            continue;
        }
        h[i].n += 2;
        for (int k = 0; k < out.count; k++) {
            assert_int_equal(out.tokens[k], fake_greedy(h[i].t, h[i].n));
            h[i].t[h[i].n++] = out.tokens[k];
        }
        h[i].n = sl_seq_length(h[i].s);
    }
    for (int i = 0; i < 3; i++) {
        append(&h[i], 2);
        sl_seq_free(h[i].s);
    }
    fake_close(f);
}

/* ---- cancelling -------------------------------------------------------------------------------------------------- */

static sl_request *start(fake *f, history *h, int prompt, int most) {
    sl_error err = {0};
    for (int i = 0; i < prompt; i++)
        h->t[h->n + i] = good_token();
    sl_generate_options o = fake_prompt(h->t + h->n, prompt, most);
    o.seq = h->s;
    sl_request *r = sl_generate(&f->e, &o, &err);
    if (!r)
        fail_msg("%s", err.message);
    return r;
}

/* Ends a request; the history follows what was committed. */
static fake_result finish(history *h, sl_request *r) {
    fake_result out;
    fake_collect(r, &out);
    sl_request_free(r);
    h->n = sl_seq_length(h->s);
    if (h->n > 0)
        memcpy(h->t, sl_seq_tokens(h->s), (size_t)h->n * sizeof *h->t);
    return out;
}

static void test_cancelled_prompt(void **state) {
    fake *f = open_fake(0);
    history a = begin(f);
    append(&a, 100);
    f->hold = true;
    sl_request *r = start(f, &a, 90, 5);
    fake_await(&f->holding);
    sl_request_cancel(r);
    assert_int_equal(finish(&a, r).last.finish, SL_FINISH_CANCELLED);
    assert_int_equal(f->cancelled_steps, 1); /* within the step */
    f->hold = false;
    assert_int_equal(a.n, 100);
    append(&a, 1);
    assert_int_equal(f->rows, 100 + 1); /* from where the request began */
    truncate_to(&a, 90);
    append(&a, 1);
    assert_int_equal(f->rows, 100 + 1 + 91);
    sl_seq_free(a.s);
    fake_close(f);
}

/* Whoever cancels an answer does not pay for it with the whole history. */
static void test_cancelled_answer_keeps_its_state(void **state) {
    fake *f = open_fake(0);
    history a = begin(f);
    sl_event e;
    f->row_error_token = f->nan_token = -1;
    f->hold = true;
    f->hold_above = 60;
    sl_request *r = start(f, &a, 60, 200);
    assert_true(sl_request_next(r, &e, -1));
    f->hold_above = 0;
    while (!f->holding) /* a token of it; its reader keeps up */
        sl_request_next(r, &e, 0);
    sl_request_cancel(r);
    usleep(20000); /* the step looks at it meanwhile */
    f->hold = false;
    finish(&a, r);
    assert_int_equal(f->cancelled_steps, 0);
    int rows = f->rows;
    assert_int_equal(rows, a.n);
    append(&a, 1);
    assert_int_equal(f->rows, rows + 1);
    sl_seq_free(a.s);
    fake_close(f);
}

static void test_cancelled_prompt_costs_the_others_nothing(void **state) {
    fake *f = open_fake(0);
    f->row_error_token = f->nan_token = -1;
    history a = begin(f), b = begin(f);
    sl_event e;
    f->hold = true;
    sl_request *answer = start(f, &a, 1, 40);
    fake_await(&f->holding); /* a token of it */
    sl_request *prompt = start(f, &b, 120, 5);
    int steps = f->steps;
    f->hold_above = 1;
    while (f->steps == steps)
        usleep(100);
    while (sl_request_next(answer, &e, 0)) /* whose reader keeps up */
        ;
    fake_await(&f->holding); /* the next one, with a chunk of the prompt */
    sl_request_cancel(prompt);
    usleep(20000);
    f->hold = false;
    finish(&b, prompt);
    assert_int_equal(finish(&a, answer).last.finish, SL_FINISH_LENGTH);
    assert_int_equal(f->cancelled_steps, 0);
    assert_int_equal(f->rows, a.n + b.n); /* nothing twice */
    append(&a, 1);
    append(&b, 1);
    sl_seq_free(a.s);
    sl_seq_free(b.s);
    fake_close(f);
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static void turn(fake *f, history *h, int prompt, int most) {
    assert_int_equal(finish(h, start(f, h, prompt, most)).last.finish, SL_FINISH_LENGTH);
}

/* Rows that a call evaluates. */
#define ROWS_OF(f, call)                                                                                               \
    do {                                                                                                               \
        int before = (f)->rows;                                                                                        \
        call;                                                                                                          \
        rows = (f)->rows - before;                                                                                     \
    } while (0)

/* What was said last is told again in other words: the turns before it are not evaluated again. */
static void test_turns_go_on_from_the_last_one(void **state) {
    fake *f = open_fake(0);
    f->row_error_token = f->nan_token = -1;
    history a = begin(f);
    int rows;
    turn(f, &a, 100, 20);
    ROWS_OF(f, turn(f, &a, 30, 10));
    assert_int_equal(rows, 30 + 9);
    int second = 100 + 19;
    truncate_to(&a, second + 25); /* within the second prompt */
    ROWS_OF(f, turn(f, &a, 7, 4));
    assert_int_equal(rows, 25 + 7 + 3);
    truncate_to(&a, second + 26);
    ROWS_OF(f, append(&a, 1));
    assert_int_equal(rows, 1 + 1);
    truncate_to(&a, second + 20); /* before the last mark */
    ROWS_OF(f, append(&a, 1));
    assert_int_equal(rows, second + 20 + 1);
    f->nan_token = BAD_STEP;
    append_failing(&a, 5, BAD_STEP);
    f->nan_token = -1;
    append(&a, 2);
    turn(f, &a, 3, 3);
    sl_seq_free(a.s);
    fake_close(f);
}

/* Without room for a mark there is none, and nobody notices. */
static void test_turns_without_room_for_a_mark(void **state) {
    fake *f = open_fake(3); /* 1 for KV, 2 for the state of a sequence */
    f->row_error_token = f->nan_token = -1;
    history a = begin(f);
    int rows;
    turn(f, &a, 50, 5);
    ROWS_OF(f, turn(f, &a, 30, 5));
    assert_int_equal(rows, 30 + 4);
    truncate_to(&a, 70);
    ROWS_OF(f, turn(f, &a, 3, 5));
    assert_int_equal(rows, 70 + 3 + 4);
    append(&a, 1);
    assert_int_equal(engine_kv_stats_get(f->e.state).blocks_used, LAYERS);
    sl_seq_free(a.s);
    fake_close(f);
}

/* A mark is worth less than another conversation, and one of those that wait less than that of the one that goes on. */
static void test_marks_make_room_for_others(void **state) {
    fake *f = open_fake(1 + 6); /* KV, and 18 blocks: 4 states, or fewer with marks */
    f->row_error_token = f->nan_token = -1;
    history h[4];
    int rows;
    for (int i = 0; i < 2; i++) {
        h[i] = begin(f);
        turn(f, &h[i], 20, 3);
        turn(f, &h[i], 10, 3); /* two with marks take all */
    }
    assert_int_equal(engine_kv_stats_get(f->e.state).blocks_used, 4 * LAYERS);
    h[2] = begin(f);
    append(&h[2], 30);
    assert_null(h[0].s->mark); /* the oldest went */
    assert_non_null(h[1].s->mark);
    h[3] = begin(f);
    append(&h[3], 30);
    assert_int_equal(engine_kv_stats_get(f->e.state).blocks_used, 4 * LAYERS);
    sl_error err = {0};
    history none = begin(f);
    assert_false(sl_decode(&f->e, &(sl_input){none.s, 1, false}, 1, NULL, &err));
    assert_int_equal(err.code, SL_ERR_BUDGET);
    sl_seq_free(none.s);
    truncate_to(&h[1], 25);
    ROWS_OF(f, append(&h[1], 1));
    assert_int_equal(rows, 26); /* its mark is gone */
    for (int i = 0; i < 4; i++) {
        append(&h[i], 1);
        sl_seq_free(h[i].s);
    }
    assert_null(f->e.marked);
    fake_close(f);
}

/* Nor is a mark worth as much as KV that was said to fit. */
static void test_marks_make_room_for_kv(void **state) {
    fake *f = open_fake(1 + 3); /* 256 tokens; state and mark */
    f->row_error_token = f->nan_token = -1;
    history a = begin(f);
    turn(f, &a, 20, 3);
    turn(f, &a, 10, 3);
    assert_non_null(a.s->mark);
    assert_int_equal(engine_kv_stats_get(f->e.state).slabs, 3);
    append(&a, 240);
    assert_null(a.s->mark);
    append(&a, 100);
    sl_seq_free(a.s);
    fake_close(f);
}

/* ---- memory and snapshots ---------------------------------------------------------------------------------------- */

static void test_memory_for_another_state_runs_out(void **state) {
    enum { SLABS = 6 }; /* 1 for KV, 2 for the state of a sequence: 2 sequences */
    fake *f = open_fake(SLABS);
    history h[4];
    sl_error err = {0};
    int n = 0;
    for (; n < 4; n++) {
        h[n] = begin(f);
        int32_t token = h[n].t[0] = good_token();
        int rows = f->rows;
        if (!sl_decode(&f->e, &(sl_input){h[n].s, token, false}, 1, NULL, &err)) {
            assert_int_equal(f->rows, rows); /* before anything was evaluated */
            break;
        }
        h[n].n = 1;
    }
    assert_in_range(n, 2, 3);
    assert_int_equal(err.code, SL_ERR_BUDGET);
    assert_non_null(strstr(err.message, "recurrent state of one more sequence needs another slab of 64.00 KiB"));
    for (int i = 0; i < n; i++)
        append(&h[i], 1);
    sl_seq_free(h[0].s);
    append(&h[n], 3);
    for (int i = 1; i <= n; i++)
        sl_seq_free(h[i].s);
    fake_close(f);
}

static void test_snapshot_of_another_state_is_refused(void **state) {
    fake *f = open_fake(0);
    history a = begin(f);
    append(&a, 70);
    void *bytes;
    size_t size;
    sl_error err = {0};
    assert_true(sl_seq_save(a.s, &bytes, &size, &err));
    assert_true(size > LAYERS * f->e.state_layout.used_bytes);
    f->e.fingerprint = 0;
    f->e.state_layout.kernel++; /* the same bytes, meaning something else */
    assert_null(sl_seq_restore(&f->e, bytes, size, &err));
    assert_non_null(strstr(err.message, "fingerprint"));
    f->e.fingerprint = 0;
    f->e.state_layout.kernel--;
    ((uint64_t *)bytes)[3]++; /* bytes of state */
    assert_null(sl_seq_restore(&f->e, bytes, size, &err));
    assert_non_null(strstr(err.message, "snapshot: recurrent state of"));
    ((uint64_t *)bytes)[3]--;
    for (size_t at = 0; at < size; at += 997) { /* a damaged one nowhere */
        ((uint8_t *)bytes)[at] ^= 8;
        assert_null(sl_seq_restore(&f->e, bytes, size, &err));
        ((uint8_t *)bytes)[at] ^= 8;
    }
    sl_seq *back = sl_seq_restore(&f->e, bytes, size, &err);
    assert_non_null(back);
    sl_seq_free(back);
    free(bytes);
    sl_seq_free(a.s);
    fake_close(f);
}

/* ---- at random --------------------------------------------------------------------------------------------------- */

static void test_random_lives(void **state) {
    enum { MOST = 5 };
    print_message("seed 7\n");
    srand(7);
    fake *f = open_fake(0);
    history h[MOST];
    for (int i = 0; i < MOST; i++)
        h[i] = begin(f);
    for (int step = 0; step < 1500; step++) {
        history *x = &h[rand() % MOST], *y = &h[rand() % MOST];
        int what = rand() % 12;
        if (x->n > 300)
            truncate_to(x, rand() % 20);
        if (what < 5)
            append(x, rand() % 4 ? 1 + rand() % 3 : 1 + rand() % 90);
        else if (what == 5)
            append_failing(x, rand() % 2 ? 1 : 1 + rand() % 90, rand() % 2 ? BAD_ROW : BAD_STEP);
        else if (what == 6)
            truncate_to(x, rand() % (x->n + 1));
        else if (what == 7)
            save_and_restore(x);
        else if (what >= 10) {
            sl_request *r = start(f, x, 1 + rand() % 60, 1 + rand() % 6);
            if (rand() % 3 == 0)
                sl_request_cancel(r);
            finish(x, r);
        } else if (what == 8 && x != y) {
            sl_seq_free(y->s);
            *y = fork_of(x);
        } else {
            sl_seq_free(x->s);
            *x = begin(f);
        }
    }
    for (int i = 0; i < MOST; i++) {
        append(&h[i], 1);
        sl_seq_free(h[i].s);
    }
    fake_close(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_evaluated_twice),
        cmocka_unit_test(test_forks_share_until_they_continue),
        cmocka_unit_test(test_truncation_evaluates_the_rest_again),
        cmocka_unit_test(test_a_failed_step_is_not_continued),
        cmocka_unit_test(test_a_failure_while_renewing),
        cmocka_unit_test(test_a_long_call_beside_a_failure),
        cmocka_unit_test(test_others_of_a_failed_step_go_on),
        cmocka_unit_test(test_cancelled_prompt),
        cmocka_unit_test(test_cancelled_answer_keeps_its_state),
        cmocka_unit_test(test_cancelled_prompt_costs_the_others_nothing),
        cmocka_unit_test(test_turns_go_on_from_the_last_one),
        cmocka_unit_test(test_turns_without_room_for_a_mark),
        cmocka_unit_test(test_marks_make_room_for_others),
        cmocka_unit_test(test_marks_make_room_for_kv),
        cmocka_unit_test(test_memory_for_another_state_runs_out),
        cmocka_unit_test(test_snapshot_of_another_state_is_refused),
        cmocka_unit_test(test_random_lives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Whole steps: rows of many sequences at once equal each sequence alone, bit for bit; outputs, cancellation, rows that
 * fail, and steps that cannot be. */
#include "support_tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 20240615;

enum { MAX_ROWS = 96, LENGTH = 200 };

/* A step being put together. */
typedef struct batch {
    int32_t rows, outs;
    int32_t token[MAX_ROWS], seq[MAX_ROWS], position[MAX_ROWS], out_rows[MAX_ROWS];
    uint8_t failed[MAX_ROWS];
    float logits[MAX_ROWS][TINY_VOCAB];
} batch;

static void add_row(batch *b, int32_t token, int32_t seq, int32_t position, bool out) {
    if (out)
        b->out_rows[b->outs++] = b->rows;
    b->token[b->rows] = token;
    b->seq[b->rows] = seq;
    b->position[b->rows] = position;
    b->rows++;
}

static sl_step step_of(tiny *t, batch *b) {
    sl_step s = tiny_step(t, b->rows, b->token, b->seq, b->position);
    s.outs = b->outs;
    s.out_rows = b->out_rows;
    s.logits = b->logits[0];
    s.row_failed = b->failed;
    memset(b->failed, 0, sizeof b->failed);
    memset(b->logits, 0xff, sizeof b->logits);
    return s;
}

static void must_run(tiny *t, batch *b) {
    sl_step s = step_of(t, b);
    sl_error err = {0};
    if (!sl_program_run(t->p, &s, &err))
        fail_msg("%s", err.message);
}

static tiny *open_tiny(sl_numeric numeric, sl_kv_format kv, sl_format_id format, const char *isa, int threads,
                       int64_t rank_bytes) {
    return tiny_open(&(tiny_options){.rig = {.numeric = numeric, .isa = isa, .threads = threads},
                                     .kv = kv,
                                     .format = format,
                                     .rank_bytes = rank_bytes,
                                     .max_rows = MAX_ROWS,
                                     .max_outs = MAX_ROWS});
}

static tiny *plain_tiny(void) {
    return open_tiny(SL_NUMERIC_Q8, SL_KV_F16, SL_Q8_0, NULL, 2, 1 << 20);
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

typedef struct story {
    int32_t length[TINY_SEQUENCES], token[TINY_SEQUENCES][LENGTH];
    float (*logits)[LENGTH][TINY_VOCAB]; /* [sequences] */
} story;

/* Token by token, one sequence after the other, one thread, scalar. */
static story tell_alone(rng *r, sl_numeric numeric, sl_kv_format kv, sl_format_id format) {
    story y = {.logits = calloc(TINY_SEQUENCES, sizeof *y.logits)};
    tiny *t = open_tiny(numeric, kv, format, "scalar", 1, 1 << 20);
    for (int32_t s = 0; s < TINY_SEQUENCES; s++) {
        y.length[s] = 1 + rng_below(r, s == 1 ? 20 : LENGTH);
        for (int32_t i = 0; i < y.length[s]; i++) {
            batch b = {0};
            y.token[s][i] = rng_below(r, TINY_VOCAB);
            add_row(&b, y.token[s][i], s, i, true);
            must_run(t, &b);
            memcpy(y.logits[s][i], b.logits[0], sizeof b.logits[0]);
            for (int32_t k = 0; k < TINY_VOCAB; k++)
                assert_true(isfinite(b.logits[0][k]));
        }
    }
    tiny_close(t);
    return y;
}

/* Chunks of random sizes of random sequences, some rows without logits. */
static void tell_together(rng *r, const story *y, tiny *t) {
    int32_t at[TINY_SEQUENCES] = {0};
    for (;;) {
        batch b = {0};
        bool more = false;
        for (int32_t k = 0, first = rng_below(r, TINY_SEQUENCES); k < TINY_SEQUENCES; k++) {
            int32_t s = (first + k) % TINY_SEQUENCES, left = y->length[s] - at[s];
            int32_t n = rng_below(r, 3) ? 1 : rng_below(r, 30);
            for (n = n < left ? n : left; n > 0 && b.rows < MAX_ROWS; n--, at[s]++)
                add_row(&b, y->token[s][at[s]], s, at[s], rng_below(r, 4) > 0);
            more |= at[s] < y->length[s];
        }
        if (b.rows == 0 && !more)
            return;
        if (b.rows == 0)
            continue;
        must_run(t, &b);
        for (int32_t i = 0; i < b.outs; i++) {
            int32_t row = b.out_rows[i];
            if (memcmp(b.logits[i], y->logits[b.seq[row]][b.position[row]], sizeof b.logits[i]))
                fail_msg("sequence %d, position %d, in a step of %d rows: other bits than alone", b.seq[row],
                         b.position[row], b.rows);
        }
    }
}

static void sequences_together_equal_each_alone(void **state) {
    static const struct {
        sl_numeric numeric;
        sl_kv_format kv;
        sl_format_id format;
    } kinds[] = {{SL_NUMERIC_Q8, SL_KV_F16, SL_Q8_0},
                 {SL_NUMERIC_Q8, SL_KV_Q8_0, SL_Q4_0},
                 {SL_NUMERIC_EXACT, SL_KV_F32, SL_F32},
                 {SL_NUMERIC_Q8, SL_KV_F32, SL_F32}};
    static const char *const isas[] = {"scalar", "avx2", "avx512", "neon"};
    rng r = {seed};
    print_message("seed %llu\n", (unsigned long long)seed);
    for (size_t k = 0; k < SL_COUNT(kinds); k++) {
        story y = tell_alone(&r, kinds[k].numeric, kinds[k].kv, kinds[k].format);
        for (size_t i = 0; i < SL_COUNT(isas); i++) {
            for (int way = 0; way < 2; way++) {
                tiny *t = open_tiny(kinds[k].numeric, kinds[k].kv, kinds[k].format, isas[i], 1 + (int)(i + way) % 3,
                                    way ? 0 : 1 << 20);
                if (!t)
                    continue;
                tell_together(&r, &y, t);
                tiny_close(t);
            }
        }
        free(y.logits);
    }
}

/* Nothing that a position holds depends on what its block held before. */
static void a_sequence_may_go_back(void **state) {
    tiny *t = plain_tiny();
    batch a = {0}, b = {0}, c = {0};
    for (int32_t i = 0; i < 70; i++)
        add_row(&a, i % TINY_VOCAB, 0, i, true);
    for (int32_t i = 40; i < 75; i++)
        add_row(&b, (i * 7) % TINY_VOCAB, 0, i, true);
    for (int32_t i = 40; i < 70; i++)
        add_row(&c, i % TINY_VOCAB, 0, i, true);
    must_run(t, &a);
    must_run(t, &b);
    must_run(t, &c);
    assert_memory_equal(c.logits, a.logits[40], 30 * sizeof c.logits[0]);
    assert_memory_not_equal(b.logits, a.logits[40], sizeof b.logits[0]);
    tiny_close(t);
}

static void a_step_without_outputs_only_stores(void **state) {
    tiny *t = plain_tiny(), *u = plain_tiny();
    batch a = {0}, silent = {0}, last = {0}, last_u = {0};
    for (int32_t i = 0; i < 20; i++) {
        add_row(&a, i, 2, i, true);
        add_row(&silent, i, 2, i, false);
    }
    must_run(t, &a);
    sl_step s = step_of(u, &silent);
    s.logits = NULL;
    s.out_rows = NULL;
    assert_true(sl_program_run(u->p, &s, NULL));
    add_row(&last, 33, 2, 20, true);
    add_row(&last_u, 33, 2, 20, true);
    must_run(t, &last);
    must_run(u, &last_u);
    assert_memory_equal(last.logits[0], last_u.logits[0], sizeof last.logits[0]);
    tiny_close(t);
    tiny_close(u);
}

/* ---- cancellation ------------------------------------------------------------------------------------------------ */

typedef struct asked {
    int count, yes_at;
} asked;

static bool cancelled(void *user) {
    asked *a = user;
    return a->count++ == a->yes_at;
}

static void cancelling_is_seen_in_every_layer(void **state) {
    for (int mode = 0; mode < 2; mode++) {
        tiny *t = open_tiny(SL_NUMERIC_Q8, SL_KV_F16, SL_Q8_0, NULL, 2, mode ? 0 : 1 << 20);
        batch b = {0};
        for (int32_t i = 0; i < 12; i++)
            add_row(&b, i, i / 6, i % 6, true);
        asked never = {.yes_at = -1};
        sl_error err = {0};
        sl_step s = step_of(t, &b);
        s.cancelled = cancelled;
        s.user = &never;
        assert_true(sl_program_run(t->p, &s, &err));
        /* at least once a layer; where experts come one by one (a chunk may want all of them) also between them */
        assert_true(mode ? never.count > TINY_LAYERS + 4 : never.count == TINY_LAYERS);
        static float whole[MAX_ROWS][TINY_VOCAB];
        memcpy(whole, b.logits, sizeof whole);
        for (int at = 0; at < never.count; at++) {
            asked then = {.yes_at = at};
            err = (sl_error){0};
            s = step_of(t, &b);
            s.cancelled = cancelled;
            s.user = &then;
            assert_false(sl_program_run(t->p, &s, &err));
            assert_int_equal(err.code, SL_ERR_CANCELLED);
            assert_non_null(strstr(err.message, "layer"));
            assert_int_equal(then.count, at + 1);
            assert_int_equal(t->src.begins, t->src.ends);
            must_run(t, &b); /* the same step again is whole */
            assert_memory_equal(b.logits, whole, (size_t)b.outs * sizeof b.logits[0]);
        }
        tiny_close(t);
    }
}

/* ---- rows that fail ---------------------------------------------------------------------------------------------- */

/* An expert of the first MoE layer fails: rows behind a failed one attend to its keys, so they fail too; rows before it
 * and other sequences keep their bits. */
static void rows_behind_a_failed_row_fail_too(void **state) {
    tiny *t = plain_tiny();
    batch b = {0};
    for (int32_t i = 0; i < 30; i++)
        add_row(&b, (i * 11) % TINY_VOCAB, i / 10, i % 10, true);
    must_run(t, &b);
    static float good[MAX_ROWS][TINY_VOCAB];
    memcpy(good, b.logits, sizeof good);
    int partly = 0;
    for (int layer = 0; layer < 2; layer++) {
        for (int32_t e = 0; e < TINY_EXPERTS; e++) {
            memset(t->src.fate, 0, sizeof t->src.fate);
            t->src.fate[layer][e] = FATE_FAIL;
            must_run(t, &b);
            int failed = 0;
            for (int32_t i = 0; i < b.rows; i++) {
                failed += b.failed[i];
                if (layer == 0 && i && b.seq[i] == b.seq[i - 1])
                    assert_true(b.failed[i] >= b.failed[i - 1]);
                if (!b.failed[i])
                    assert_memory_equal(b.logits[i], good[i], sizeof good[i]);
            }
            partly += failed > 0 && failed < b.rows;
        }
    }
    assert_true(partly > 4);
    tiny_close(t);
}

/* ---- steps that cannot be ---------------------------------------------------------------------------------------- */

static void expect_refusal(tiny *t, const sl_step *s, const char *what) {
    sl_step copy = *s;
    sl_error err = {0};
    if (sl_program_run(t->p, &copy, &err))
        fail_msg("accepted: %s", what);
    if (err.code != SL_ERR_ARGUMENT || !strstr(err.message, what))
        fail_msg("'%s' lacks '%s'", err.message, what);
}

static void absurd_steps_are_errors(void **state) {
    tiny *t = plain_tiny();
    batch b = {0};
    for (int32_t i = 0; i < 6; i++)
        add_row(&b, i, i / 3, i % 3, true);
    const sl_step good = step_of(t, &b);
    sl_step s = good;
    static const int32_t counts[] = {0, -1, MAX_ROWS + 1, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < SL_COUNT(counts); i++) {
        s.rows = counts[i];
        expect_refusal(t, &s, "rows, 1 to 96 expected");
    }
    s = good;
    s.outs = -1;
    expect_refusal(t, &s, "outputs, at most 96");
    s.outs = MAX_ROWS + 1;
    expect_refusal(t, &s, "outputs, at most 96");
    struct {
        int32_t *at, value;
        const char *what;
    } fields[] = {
        {&b.token[2], -1, "token -1 of row 2: ids are 0 to 49"},
        {&b.token[5], TINY_VOCAB, "token 50 of row 5"},
        {&b.seq[0], -1, "row 0 belongs to sequence -1 of 4"},
        {&b.seq[5], TINY_SEQUENCES, "row 5 belongs to sequence 4 of 4"},
        {&b.position[0], -1, "position -1"},
        {&b.position[1], 2, "row 1 of sequence 0 has position 2 behind position 0"},
        {&b.position[1], 0, "row 1 of sequence 0 has position 0 behind position 0"},
        {&b.position[2], INT32_MIN, "position"},
        {&b.position[5], TINY_PAGES * 64, "position"},
        {&b.out_rows[0], -1, "output 0 is row -1"},
        {&b.out_rows[5], 6, "output 5 is row 6 of 6"},
        {&b.out_rows[3], 2, "output 3 is row 2"},
        {&t->pages[1][0], -1, "KV page 0 of sequence 1 is block -1"},
        {&t->pages[1][0], 1 << 20, "KV page 0 of sequence 1 is block 1048576"},
    };
    for (size_t i = 0; i < SL_COUNT(fields); i++) {
        int32_t kept = *fields[i].at;
        *fields[i].at = fields[i].value;
        expect_refusal(t, &good, fields[i].what);
        *fields[i].at = kept;
    }
    batch far = {0};
    add_row(&far, 1, 3, TINY_PAGES * 64, true);
    s = step_of(t, &far);
    expect_refusal(t, &s, "sequence 3 has 4 KV pages, position 256 needs 5");
    far.position[0] = INT32_MAX;
    expect_refusal(t, &s, "position 2147483647");
    t->seqs[1].page_count = 0;
    expect_refusal(t, &good, "sequence 1 has 0 KV pages");
    t->seqs[1].page_count = TINY_PAGES;
    s = good;
    assert_true(sl_program_run(t->p, &s, NULL));
    /* a KV of another shape, or none */
    sl_kv_layout other = t->kv;
    other.head_dim = 16;
    sl_ops_set_kv(t->g.ops, &other);
    expect_refusal(t, &good, "KV of 3 layers, 2 heads of 16");
    sl_ops_set_kv(t->g.ops, &t->kv);
    expect_refusal(t, &good, "is block 15 of 0");
    sl_ops_set_experts(t->g.ops, &(sl_expert_source){0});
    expect_refusal(t, &good, "no source of experts");
    tiny_close(t);
}

static void times_add_up(void **state) {
    tiny *t = plain_tiny();
    batch b = {0};
    for (int32_t i = 0; i < 6; i++)
        add_row(&b, i, 0, i, true);
    must_run(t, &b);
    must_run(t, &b);
    sl_ops_times x;
    sl_ops_times_get(t->g.ops, &x);
    assert_int_equal(x.steps, 2);
    assert_int_equal(x.rows, 12);
    assert_true(x.attention > 0 && x.linear > 0 && x.router > 0 && x.expert_compute > 0 && x.shared > 0 && x.head > 0);
    sl_ops_times_reset(t->g.ops);
    sl_ops_times_get(t->g.ops, &x);
    assert_int_equal(x.steps + x.rows + x.attention, 0);
    tiny_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_together_equal_each_alone),
        cmocka_unit_test(a_sequence_may_go_back),
        cmocka_unit_test(a_step_without_outputs_only_stores),
        cmocka_unit_test(cancelling_is_seen_in_every_layer),
        cmocka_unit_test(rows_behind_a_failed_row_fail_too),
        cmocka_unit_test(absurd_steps_are_errors),
        cmocka_unit_test(times_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

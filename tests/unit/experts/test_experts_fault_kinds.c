/* Every kind of fault on every reader, with guesses under way and without: what is handed out is right, what failed is
 * said, what a guess ran into costs nobody anything, and nothing hangs. */
#include "support_experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, EXPERTS = 16, MS = 1000000 };

typedef struct kind_case {
    const char *name;
    sl_fault_plan plan;
    bool fails; /* else everything has to come */
    const char *why;
} kind_case;

static const kind_case kinds[] = {
    {"eio", {.error_rate = 0.05, .fail_after = -1}, true, "Input/output error"},
    {"short", {.short_rate = 0.8, .fail_after = -1}, false, NULL},
    {"late", {.delay_rate = 0.05, .delay_ns = MS, .reorder_rate = 0.2, .fail_after = -1}, false, NULL},
    {"too late", {.delay_rate = 0.01, .delay_ns = 30 * MS, .timeout_ns = 3 * MS, .fail_after = -1}, true, "timed out"},
    {"never", {.never_rate = 0.004, .timeout_ns = 10 * MS, .fail_after = -1}, true, "timed out"},
    {"gone", {.fail_after = 150}, true, "No such device"},
};

static void make_model(model *m, rng *r) {
    model_make(m, &(model_spec){2, LAYERS, EXPERTS, 3, 3000, 30000, true, false}, r);
}

static void open_store(store *s, const model *m, sl_prefetch prefetch, sl_reader *reader) {
    store_make(s, m,
               &(store_spec){.top_k = 4,
                             .max_slots = 40,
                             .slab_bytes = 1 << 20,
                             .prefetch = prefetch,
                             .guess_same = prefetch != SL_PREFETCH_OFF},
               reader);
}

/* One pass over the model, as a token or (ascending) a prompt makes it; returns how many failed. Each layer's wishes
 * are half those of the layer before, so that guesses are right and wrong. */
static int pass(store *s, rng *r, sl_expert_order order) {
    int failed = 0;
    int32_t ids[EXPERTS], n = 1 + (int32_t)rng_below(r, 6);
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layer == 0 || rng_below(r, 2))
            rng_ids(r, ids, n, EXPERTS);
        failed += store_run(s, layer, ids, n, order, 1 + (int)rng_below(r, 3));
    }
    return failed;
}

static void check_kind(const reader_case *c, const kind_case *k, sl_prefetch prefetch, const model *m, rng *r) {
    sl_fault_plan plan = k->plan;
    plan.seed = rng_next(r);
    sl_reader *reader = reader_faulty(c, &plan);
    if (!reader)
        return;
    store s;
    open_store(&s, m, prefetch, reader);
    int failed = 0;
    for (int i = 0; i < 40; i++) /* the seed may spare what is asked for, not what is read */
        failed += pass(&s, r, i % 4 == 3 ? SL_ORDER_ASCENDING : SL_ORDER_READY);
    for (int i = 0; k->fails && failed == 0 && i < 400; i++)
        failed += pass(&s, r, SL_ORDER_READY);
    if ((failed > 0) != k->fails)
        fail_msg("%s, %s, %s guesses: %d experts failed", c->name, k->name, prefetch ? "with" : "without", failed);
    if (prefetch == SL_PREFETCH_ROUTER)
        assert_true(store_stats(&s).prefetch_reads > 0);
    store_free(&s);
}

static void faults_of_every_kind_on_every_reader(void **state) {
    rng r = rng_start("kinds");
    model m;
    make_model(&m, &r);
    for (int c = 0; c < reader_case_count; c++)
        for (size_t k = 0; k < SL_COUNT(kinds); k++)
            for (int guess = 0; guess < 2; guess++)
                check_kind(&reader_cases[c], &kinds[k], guess ? SL_PREFETCH_ROUTER : SL_PREFETCH_OFF, &m, &r);
    model_free(&m);
}

/* All parts of one expert. */
static int place_expert(const model *m, sl_fault_kind kind, int32_t layer, int32_t expert, int64_t times,
                        sl_fault_place *out) {
    int n = 0;
    for (int p = 0; p < SL_EXPERT_PARTS; p++) {
        const sl_extent *x = &m->extent[layer][expert * SL_EXPERT_PARTS + p];
        if (x->bytes)
            out[n++] = (sl_fault_place){kind, m->file[x->file], x->offset, x->bytes, times};
    }
    return n;
}

static void an_expert_that_is_named_fails_alone_and_says_why(void **state) {
    static const sl_fault_kind wanted[] = {SL_FAULT_EIO, SL_FAULT_NEVER, SL_FAULT_LATE};
    rng r = rng_start("named");
    model m;
    make_model(&m, &r);
    for (int c = 0; c < reader_case_count; c++) {
        for (size_t k = 0; k < SL_COUNT(wanted); k++) {
            sl_fault_place places[SL_EXPERT_PARTS];
            sl_fault_plan plan = {.fail_after = -1, .delay_ns = 20 * MS, .timeout_ns = 5 * MS, .places = places};
            plan.place_count = place_expert(&m, wanted[k], 1, 7, 0, places);
            sl_reader *reader = reader_faulty(&reader_cases[c], &plan);
            if (!reader)
                continue;
            store s;
            open_store(&s, &m, SL_PREFETCH_OFF, reader);
            int32_t ids[EXPERTS];
            for (int32_t i = 0; i < EXPERTS; i++)
                ids[i] = i;
            assert_int_equal(store_run(&s, 0, ids, EXPERTS, SL_ORDER_READY, 4), 0);
            sl_expert_view view;
            sl_error err = {0};
            int failed = 0;
            store_begin(&s, 1, ids, EXPERTS, SL_ORDER_READY);
            for (int n; (n = s.source.next(s.source.self, &view, 1, &err)) != 0;) {
                if (n > 0) {
                    model_check(&m, 1, &view);
                    s.source.done(s.source.self, &view, 1);
                    continue;
                }
                failed++;
                assert_int_equal(view.id, 7);
                const char *why = wanted[k] == SL_FAULT_EIO ? "Input/output error" : "timed out";
                if (strncmp(err.message, "layer 1 expert 7: ", 18) != 0 || !strstr(err.message, why))
                    fail_msg("%s", err.message);
            }
            s.source.end(s.source.self);
            assert_int_equal(failed, 1);
            store_free(&s);
        }
    }
    model_free(&m);
}

/* What a guess ran into is not the fault of who asks for the expert afterwards: it is read again. */
static void a_guess_that_fails_or_never_returns_fails_nobody(void **state) {
    static const sl_fault_kind wanted[] = {SL_FAULT_EIO, SL_FAULT_NEVER, SL_FAULT_LATE};
    rng r = rng_start("guess");
    model m;
    make_model(&m, &r);
    for (int c = 0; c < reader_case_count; c++) {
        for (size_t k = 0; k < SL_COUNT(wanted); k++) {
            sl_fault_place places[2 * SL_EXPERT_PARTS];
            sl_fault_plan plan = {.fail_after = -1, .delay_ns = 20 * MS, .timeout_ns = 5 * MS, .places = places};
            plan.place_count = place_expert(&m, wanted[k], 1, 3, 1, places);
            plan.place_count += place_expert(&m, wanted[k], 1, 9, 1, places + plan.place_count);
            sl_reader *reader = reader_faulty(&reader_cases[c], &plan);
            if (!reader)
                continue;
            store s;
            open_store(&s, &m, SL_PREFETCH_ROUTER, reader);
            s.guess_same = false;
            int32_t a[] = {1, 2}, b[] = {3, 5, 9};
            store_run(&s, 0, a, 2, SL_ORDER_READY, 2);
            store_settle(&s);
            store_guess(&s, b, 3);
            assert_int_equal(store_run(&s, 0, a, 2, SL_ORDER_READY, 2), 0);
            assert_int_equal(store_stats(&s).prefetch_reads, 3);
            assert_int_equal(store_run(&s, 1, b, 3, SL_ORDER_READY, 2), 0);
            assert_int_equal(store_run(&s, 1, b, 3, SL_ORDER_ASCENDING, 2), 0);
            store_free(&s);
        }
    }
    model_free(&m);
}

static bool is_stopped(void *user) {
    int *asked = user;
    return ++*asked >= 2;
}

/* Who asked is gone: what is waited for fails as cancelled, and the reads go on for whoever comes next. */
static void a_wait_that_is_stopped_leaves_its_reads_to_others(void **state) {
    rng r = rng_start("stopped");
    model m;
    make_model(&m, &r);
    for (int order = SL_ORDER_READY; order <= SL_ORDER_ASCENDING; order++) {
        sl_fault_place places[SL_EXPERT_PARTS];
        sl_fault_plan plan = {.fail_after = -1, .delay_ns = 300 * MS, .timeout_ns = 10000ull * MS, .places = places};
        plan.place_count = place_expert(&m, SL_FAULT_LATE, 1, 3, 1, places);
        store s;
        open_store(&s, &m, SL_PREFETCH_OFF, reader_faulty(&reader_cases[reader_case_count - 1], &plan));
        int asked = 0, given = 0, failed = 0;
        s.e->stop = is_stopped;
        s.e->stop_user = &asked;
        int32_t ids[] = {1, 3, 8};
        sl_expert_view view;
        sl_error err = {0};
        store_begin(&s, 1, ids, 3, (sl_expert_order)order);
        for (int n; (n = s.source.next(s.source.self, &view, 1, &err)) != 0;) {
            if (n > 0) {
                model_check(&m, 1, &view);
                s.source.done(s.source.self, &view, 1);
                given++;
                continue;
            }
            assert_int_equal(err.code, SL_ERR_CANCELLED);
            failed++;
        }
        s.source.end(s.source.self);
        assert_int_equal(given + failed, 3);
        assert_true(failed >= 1 && asked == 2);
        s.e->stop = NULL;
        assert_true(store_has(&s, 1, 3));
        uint64_t reads = store_stats(&s).reads;
        assert_int_equal(store_run(&s, 1, ids, 3, (sl_expert_order)order, 2), 0);
        assert_int_equal(store_stats(&s).reads, reads);
        store_free(&s);
    }
    model_free(&m);
}

/* Below what a reader makes of it: what it asks for and what it is told are less than what there is. */
static void short_reads_are_short_below_the_reader(void **state) {
    rng r = rng_start("short");
    uint8_t *bytes;
    sl_file *f = file_make(1 << 20, &bytes, &r);
    for (uint32_t align = 1; align <= 4096; align *= 4096) {
        sl_fault_plan plan = {.short_rate = 1, .seed = rng_next(&r)};
        experts_jobs with = {.faults = &plan}, without = {0};
        experts_job job = {.read = {.file = f, .bytes = 65536, .need = 65536}, .align = align};
        int untold = 0;
        for (uint64_t done = 0; done + 2 * align <= 65536; done += 4096) {
            experts_piece p = {.job = &job, .bytes = 65536, .done = done};
            uint64_t ask = experts_piece_ask(&with, &p);
            assert_in_range(ask, 1, 65536 - done - 1);
            assert_int_equal(ask % align, 0);
            assert_int_equal(experts_piece_ask(&without, &p), 65536 - done);
            int64_t told = experts_piece_answer(&with, &p, (int64_t)ask);
            assert_true(told > 0 && told <= (int64_t)ask && (ask < 2 * align || told >= (int64_t)align));
            untold += told < (int64_t)ask;
            assert_int_equal(experts_piece_answer(&with, &p, -5), -5);
            assert_int_equal(experts_piece_answer(&with, &p, 0), 0);
        }
        assert_true(align == 1 || untold > 3);
    }
    /* One place only. */
    sl_fault_place place = {SL_FAULT_SHORT, f, 10000, 1, 0};
    sl_fault_plan plan = {.places = &place, .place_count = 1};
    experts_jobs with = {.faults = &plan};
    experts_job job = {.read = {.file = f, .bytes = 65536, .need = 65536}, .align = 1};
    assert_true(experts_piece_ask(&with, &(experts_piece){.job = &job, .begin = 8192, .bytes = 8192}) < 8192);
    assert_int_equal(experts_piece_ask(&with, &(experts_piece){.job = &job, .begin = 16384, .bytes = 8192}), 8192);
    assert_int_equal(experts_piece_ask(&with, &(experts_piece){.job = &job, .bytes = 8192}), 8192);
    file_free(f);
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_of_every_kind_on_every_reader),
        cmocka_unit_test(an_expert_that_is_named_fails_alone_and_says_why),
        cmocka_unit_test(a_guess_that_fails_or_never_returns_fails_nobody),
        cmocka_unit_test(a_wait_that_is_stopped_leaves_its_reads_to_others),
        cmocka_unit_test(short_reads_are_short_below_the_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

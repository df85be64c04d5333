/* The iterator: what it hands out is what the files hold, in the order asked for, with any number of slots and with
 * every reader; early ends; hits without system calls. */
#include "support_experts.h"

#include <string.h>

static void all_ids(int32_t *ids, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        ids[i] = i;
}

/* ---- every shape of model, reader and cache --------------------------------------------------------------------- */

/* A few hundred iterations over all layers: random ids, orders, early ends, shrinks. */
static void run_randomly(store *s, rng *r, int rounds) {
    const model_spec *spec = &s->m->spec;
    for (int round = 0; round < rounds; round++) {
        int32_t ids[64], n = 1 + (int32_t)rng_below(r, (uint32_t)spec->experts);
        int32_t layer = round % spec->layers;
        if (rng_below(r, 3))
            n = n > 4 ? 4 : n;
        rng_ids(r, ids, n, spec->experts);
        sl_expert_order order = rng_below(r, 2) ? SL_ORDER_READY : SL_ORDER_ASCENDING;
        if (rng_below(r, 10) == 0)
            sl_experts_shrink(s->e, 1 + (int)rng_below(r, 3));
        if (rng_below(r, 6) == 0) {
            sl_expert_view view[3];
            sl_error err;
            store_begin(s, layer, ids, n, order);
            int got = rng_below(r, 2) ? s->source.next(s->source.self, view, 3, &err) : 0;
            for (int i = 0; i < got; i++)
                model_check(s->m, layer, &view[i]);
            if (rng_below(r, 2))
                s->source.done(s->source.self, view, got > 0 ? 1 : 0);
            s->source.end(s->source.self);
        } else {
            assert_int_equal(store_run(s, layer, ids, n, order, 1 + (int)rng_below(r, 4)), 0);
        }
    }
}

static void every_reader_and_cache_gives_the_files_bytes(void **state) {
    rng r = rng_start("iterate");
    static const model_spec specs[] = {
        {1, 2, 12, 1, 1, 3000, true, false},
        {3, 3, 9, 0, 1, 6000, false, true},
        {2, 4, 7, 9, 300, 2500, false, false},
    };
    for (size_t k = 0; k < SL_COUNT(specs); k++) {
        model m;
        model_make(&m, &specs[k], &r);
        int32_t caches[] = {2, specs[k].layers * specs[k].experts / 2, 0};
        for (int c = 0; c < reader_case_count; c++) {
            for (size_t i = 0; i < SL_COUNT(caches) * 2; i++) {
                sl_reader *reader = reader_make(&reader_cases[c]);
                if (!reader)
                    continue;
                store s;
                store_spec spec = {.top_k = 2,
                                   .max_slots = caches[i / 2],
                                   .prefetch = i % 2 ? SL_PREFETCH_ROUTER : SL_PREFETCH_OFF,
                                   .guess_same = true,
                                   .slab_bytes = 1 << 18};
                store_make(&s, &m, &spec, reader);
                run_randomly(&s, &r, 60);
                store_free(&s);
            }
        }
        model_free(&m);
    }
}

/* ---- more experts than slots ------------------------------------------------------------------------------------ */

static void more_experts_than_slots_in_both_orders(void **state) {
    rng r = rng_start("many");
    model m;
    model_make(&m, &(model_spec){2, 2, 40, 3, 500, 3000, true, false}, &r);
    int32_t ids[40];
    all_ids(ids, 40);
    for (int32_t slots = 2; slots < 7; slots++) {
        for (int order = SL_ORDER_READY; order <= SL_ORDER_ASCENDING; order++) {
            for (int hold = 1; hold <= 3; hold++) {
                store s;
                store_make(&s, &m, &(store_spec){.top_k = 2, .max_slots = slots}, reader_plain());
                for (int round = 0; round < 3; round++) {
                    assert_int_equal(store_run(&s, round % 2, ids, 40, (sl_expert_order)order, hold), 0);
                    assert_int_equal(store_run(&s, round % 2, ids + 10, 30, (sl_expert_order)order, hold), 0);
                }
                store_free(&s);
            }
        }
    }
    model_free(&m);
}

/* The last experts are cached and fill all slots; the first must come before them. */
static void ascending_gives_hits_up_where_they_hold_every_slot(void **state) {
    rng r = rng_start("give up");
    model m;
    model_make(&m, &(model_spec){1, 1, 30, 2, 500, 900, true, true}, &r);
    int32_t ids[30];
    all_ids(ids, 30);
    for (int32_t slots = 2; slots < 9; slots++) {
        store s;
        store_make(&s, &m, &(store_spec){.top_k = 2, .max_slots = slots}, reader_plain());
        assert_int_equal(store_run(&s, 0, ids + 30 - slots, slots, SL_ORDER_READY, 1), 0);
        sl_experts_stats_reset(s.e);
        assert_int_equal(store_run(&s, 0, ids, 30, SL_ORDER_ASCENDING, 1), 0);
        sl_experts_stats st = store_stats(&s);
        /* Two hits are given up for the window of two, no more. */
        assert_int_equal(st.hits, slots - 2);
        assert_int_equal(st.misses, 30 - (slots - 2));
        store_free(&s);
    }
    model_free(&m);
}

/* With two slots the next expert is read while one is computed. */
static void ascending_reads_ahead_with_two_slots(void **state) {
    rng r = rng_start("ahead");
    model m;
    model_make(&m, &(model_spec){1, 1, 12, 1, 500, 900, true, true}, &r);
    store s;
    spy *watch = spy_open(reader_plain());
    store_make(&s, &m, &(store_spec){.top_k = 2, .max_slots = 2}, &watch->base);
    int32_t ids[12];
    sl_expert_view view;
    sl_error err;
    all_ids(ids, 12);
    store_begin(&s, 0, ids, 12, SL_ORDER_ASCENDING);
    for (int i = 0; i < 12; i++) {
        assert_int_equal(s.source.next(s.source.self, &view, 1, &err), 1);
        assert_int_equal(view.id, i);
        assert_int_equal(watch->reads, i + 2 < 12 ? i + 2 : 12);
        s.source.done(s.source.self, &view, 1);
    }
    assert_int_equal(s.source.next(s.source.self, &view, 1, &err), 0);
    s.source.end(s.source.self);
    store_free(&s);
    model_free(&m);
}

static void holding_every_slot_is_an_error_not_a_hang(void **state) {
    rng r = rng_start("held");
    model m;
    model_make(&m, &(model_spec){1, 1, 5, 1, 500, 900, true, true}, &r);
    for (int order = SL_ORDER_READY; order <= SL_ORDER_ASCENDING; order++) {
        store s;
        store_make(&s, &m, &(store_spec){.top_k = 2, .max_slots = 2}, reader_plain());
        int32_t ids[] = {0, 2, 3, 4};
        sl_expert_view view[4];
        sl_error err;
        store_begin(&s, 0, ids, 4, (sl_expert_order)order);
        for (int got = 0; got < 2;)
            got += s.source.next(s.source.self, view + got, 2 - got, &err);
        assert_int_equal(s.source.next(s.source.self, view + 2, 1, &err), -1);
        assert_int_equal(view[2].id, 3);
        assert_non_null(strstr(err.message, "layer 0 expert 3: no slot is free: of 2, 2 are in use"));
        s.source.done(s.source.self, view, 2);
        assert_int_equal(s.source.next(s.source.self, view, 2, &err), 1);
        assert_int_equal(view[0].id, 4);
        model_check(&m, 0, &view[0]);
        assert_int_equal(s.source.next(s.source.self, view + 1, 1, &err), 0);
        s.source.end(s.source.self);
        store_free(&s);
    }
    model_free(&m);
}

/* ---- claims ----------------------------------------------------------------------------------------------------- */

static void what_was_handed_out_stays_until_done(void **state) {
    rng r = rng_start("claims");
    model m;
    model_make(&m, &(model_spec){2, 3, 20, 4, 500, 3000, true, false}, &r);
    store s;
    store_make(&s, &m, &(store_spec){.top_k = 6, .max_slots = 7}, reader_plain());
    for (int round = 0; round < 100; round++) {
        int32_t ids[6], layer = (int32_t)rng_below(&r, 3);
        sl_expert_view view[6];
        sl_error err;
        rng_ids(&r, ids, 6, 20);
        store_begin(&s, layer, ids, 6, round % 2 ? SL_ORDER_READY : SL_ORDER_ASCENDING);
        for (int got = 0; got < 6;) {
            int n = s.source.next(s.source.self, view + got, 6 - got, &err);
            assert_true(n > 0);
            got += n;
        }
        assert_int_equal(s.source.next(s.source.self, view, 1, &err), 0);
        for (int i = 0; i < 6; i++)
            model_check(&m, layer, &view[i]);
        s.source.done(s.source.self, view, 6);
        s.source.done(s.source.self, view, 6); /* twice: ignored */
        s.source.end(s.source.self);
    }
    store_free(&s);
    model_free(&m);
}

static void ready_order_hands_out_hits_first(void **state) {
    rng r = rng_start("hits first");
    model m;
    model_make(&m, &(model_spec){1, 1, 10, 1, 500, 900, true, true}, &r);
    store s;
    spy *watch = spy_open(reader_plain());
    store_make(&s, &m, &(store_spec){.top_k = 6, .max_slots = 10}, &watch->base);
    int32_t warm[] = {3, 8}, ids[] = {0, 2, 3, 7, 8, 9};
    sl_expert_view view[6];
    sl_error err;
    store_run(&s, 0, warm, 2, SL_ORDER_READY, 2);
    watch->hold = true;
    store_begin(&s, 0, ids, 6, SL_ORDER_READY);
    assert_int_equal(watch->in_flight, 4); /* reads go out before the first hit is asked for */
    assert_int_equal(s.source.next(s.source.self, view, 6, &err), 2);
    assert_int_equal(view[0].id, 3);
    assert_int_equal(view[1].id, 8);
    s.source.end(s.source.self);
    store_free(&s);
    model_free(&m);
}

static void hits_make_no_system_call(void **state) {
    rng r = rng_start("all hits");
    model m;
    model_make(&m, &(model_spec){1, 2, 10, 3, 500, 900, true, true}, &r);
    store s;
    spy *watch = spy_open(reader_plain());
    store_make(&s, &m, &(store_spec){.top_k = 6}, &watch->base);
    int32_t ids[] = {0, 2, 3, 7, 8, 9};
    store_run(&s, 1, ids, 6, SL_ORDER_READY, 6);
    int submits = watch->submits, collects = watch->collects;
    uint64_t waited = store_stats(&s).wait_ns;
    for (int order = SL_ORDER_READY; order <= SL_ORDER_ASCENDING; order++)
        assert_int_equal(store_run(&s, 1, ids, 6, (sl_expert_order)order, 6), 0);
    assert_int_equal(watch->submits, submits);
    assert_int_equal(watch->collects, collects);
    assert_true(store_stats(&s).wait_ns == waited);
    assert_int_equal(store_stats(&s).hits, 12);
    store_free(&s);
    model_free(&m);
}

static void misses_go_out_in_one_batch(void **state) {
    rng r = rng_start("batch");
    model m;
    model_make(&m, &(model_spec){1, 1, 10, 3, 5000, 9000, true, false}, &r);
    store s;
    spy *watch = spy_open(reader_plain());
    store_make(&s, &m, &(store_spec){.top_k = 6}, &watch->base);
    int32_t ids[] = {0, 2, 3, 7, 8, 9};
    store_run(&s, 0, ids, 6, SL_ORDER_READY, 6);
    assert_int_equal(watch->submits, 1);
    assert_int_equal(watch->reads, 18);
    store_free(&s);
    model_free(&m);
}

/* ---- early ends ------------------------------------------------------------------------------------------------- */

static void reads_of_an_ended_iteration_are_kept(void **state) {
    rng r = rng_start("early end");
    model m;
    model_make(&m, &(model_spec){1, 1, 12, 2, 500, 5000, true, false}, &r);
    store s;
    spy *watch = spy_open(reader_plain());
    store_make(&s, &m, &(store_spec){.top_k = 8, .max_slots = 8}, &watch->base);
    int32_t ids[] = {0, 1, 2, 5, 6, 7, 8, 11};
    watch->hold = true;
    store_begin(&s, 0, ids, 8, SL_ORDER_READY);
    s.source.end(s.source.self);
    s.source.end(s.source.self); /* twice: nothing */
    assert_true(watch->in_flight > 0);
    int reads = watch->reads;
    /* Asked for again while the reads are still under way: not read twice. */
    assert_int_equal(store_run(&s, 0, ids, 8, SL_ORDER_READY, 3), 0);
    assert_int_equal(watch->reads, reads);
    assert_int_equal(store_stats(&s).hits, 8);
    assert_int_equal(store_stats(&s).misses, 8);
    /* Others that need their slots wait for them. */
    sl_experts_shrink(s.e, 100);
    store_begin(&s, 0, ids, 8, SL_ORDER_ASCENDING);
    s.source.end(s.source.self);
    int32_t others[] = {3, 4, 9, 10};
    assert_int_equal(store_run(&s, 0, others, 4, SL_ORDER_ASCENDING, 1), 0);
    store_free(&s);
    model_free(&m);
}

/* Hits that were still being read when the iteration began hold all slots later. */
static void ascending_gives_up_hits_that_arrive_late(void **state) {
    rng r = rng_start("late hits");
    model m;
    model_make(&m, &(model_spec){1, 1, 12, 1, 500, 5000, true, true}, &r);
    store s;
    spy *watch = spy_open(reader_plain());
    store_make(&s, &m, &(store_spec){.top_k = 2, .max_slots = 3}, &watch->base);
    int32_t late[] = {7, 8, 11}, ids[] = {0, 1, 2, 7, 8, 11};
    watch->hold = true;
    store_begin(&s, 0, late, 3, SL_ORDER_READY);
    s.source.end(s.source.self);
    assert_int_equal(watch->in_flight, 3);
    assert_int_equal(store_run(&s, 0, ids, 6, SL_ORDER_ASCENDING, 1), 0);
    store_free(&s);
    model_free(&m);
}

static void closing_waits_for_reads_in_flight(void **state) {
    rng r = rng_start("close");
    model m;
    model_make(&m, &(model_spec){1, 1, 12, 2, 500, 5000, true, false}, &r);
    for (int c = 0; c < reader_case_count; c++) {
        sl_reader *reader = reader_make(&reader_cases[c]);
        if (!reader)
            continue;
        store s;
        spy *watch = spy_open(reader);
        store_make(&s, &m, &(store_spec){.top_k = 8}, &watch->base);
        watch->mem = s.mem;
        int32_t ids[] = {0, 1, 2, 5, 6, 7, 8, 11};
        store_begin(&s, 0, ids, 8, SL_ORDER_READY);
        if (c % 2)
            s.source.end(s.source.self);
        store_free(&s); /* a late write would hit freed memory */
    }
    model_free(&m);
}

/* ---- misuse ----------------------------------------------------------------------------------------------------- */

static void expect_refused(store *s, int32_t layer, const int32_t *ids, int32_t n, const char *text) {
    sl_error err = {0};
    assert_false(s->source.begin(s->source.self, layer, ids, n, SL_ORDER_READY, &err));
    assert_int_equal(err.code, SL_ERR_ARGUMENT);
    if (!strstr(err.message, text))
        fail_msg("%s", err.message);
}

static void wrong_requests_are_refused(void **state) {
    rng r = rng_start("misuse");
    model m;
    model_make(&m, &(model_spec){1, 2, 6, 1, 500, 900, true, true}, &r);
    store s;
    sl_error err;
    sl_expert_view view[2];
    store_make(&s, &m, &(store_spec){.top_k = 2}, reader_plain());
    int32_t good[] = {1, 5}, twice[] = {1, 1}, falling[] = {4, 2}, beyond[] = {1, 6}, negative[] = {-1, 2};
    expect_refused(&s, 2, good, 2, "2 experts of layer 2");
    expect_refused(&s, -1, good, 2, "layer -1");
    expect_refused(&s, 0, good, -2, "-2 experts");
    expect_refused(&s, 0, twice, 2, "id 1 at 1");
    expect_refused(&s, 0, falling, 2, "id 2 at 1");
    expect_refused(&s, 0, beyond, 2, "id 6 at 1");
    expect_refused(&s, 0, negative, 2, "id -1 at 0");
    assert_int_equal(s.source.next(s.source.self, view, 2, &err), 0);
    store_begin(&s, 0, good, 2, SL_ORDER_READY);
    expect_refused(&s, 1, good, 2, "layer 1 begun before layer 0 was ended");
    s.source.end(s.source.self);
    store_begin(&s, 0, good, 0, SL_ORDER_READY);
    assert_int_equal(s.source.next(s.source.self, view, 2, &err), 0);
    s.source.end(s.source.self);
    assert_int_equal(store_run(&s, 0, good, 2, SL_ORDER_READY, 2), 0);
    store_free(&s);
    model_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_reader_and_cache_gives_the_files_bytes),
        cmocka_unit_test(more_experts_than_slots_in_both_orders),
        cmocka_unit_test(ascending_gives_hits_up_where_they_hold_every_slot),
        cmocka_unit_test(ascending_reads_ahead_with_two_slots),
        cmocka_unit_test(holding_every_slot_is_an_error_not_a_hang),
        cmocka_unit_test(what_was_handed_out_stays_until_done),
        cmocka_unit_test(ready_order_hands_out_hits_first),
        cmocka_unit_test(hits_make_no_system_call),
        cmocka_unit_test(misses_go_out_in_one_batch),
        cmocka_unit_test(reads_of_an_ended_iteration_are_kept),
        cmocka_unit_test(ascending_gives_up_hits_that_arrive_late),
        cmocka_unit_test(closing_waits_for_reads_in_flight),
        cmocka_unit_test(wrong_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

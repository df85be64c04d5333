/* Faults: a failed or late read costs its own expert and nothing else, its error says what and where, and no byte of
 * it ends up in another expert. */
#include "support_experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static const sl_fault_plan no_faults = {.seed = 1, .fail_after = -1, .fail_layer_tag = -1};

static sl_reader *faulty(const sl_fault_plan *plan) {
    sl_error err;
    sl_reader *r = sl_reader_fault(reader_plain(), plan, &err);
    assert_non_null(r);
    return r;
}

/* One read an expert. */
static void make_model(model *m, rng *r) {
    model_make(m, &(model_spec){2, 2, 16, 1, 500, 3000, true, true}, r);
}

static void an_error_names_file_layer_expert_and_offset(void **state) {
    rng r = rng_start("error");
    model m;
    make_model(&m, &r);
    sl_fault_plan plan = no_faults;
    plan.error_rate = 1;
    store s;
    spy *watch = spy_open(faulty(&plan));
    store_make(&s, &m, &(store_spec){.top_k = 4, .max_slots = 4}, &watch->base);
    for (int order = SL_ORDER_READY; order <= SL_ORDER_ASCENDING; order++) {
        int32_t ids[] = {3, 4, 11};
        store_begin(&s, 1, ids, 3, (sl_expert_order)order);
        for (int i = 0; i < 3; i++) {
            sl_expert_view view;
            sl_error err = {0};
            assert_int_equal(s.source.next(s.source.self, &view, 1, &err), -1);
            assert_int_equal(err.code, SL_ERR_IO);
            const sl_extent *x = m.extent[1] + view.id * SL_EXPERT_PARTS;
            while (x->bytes == 0)
                x++;
            uint64_t begin = x->offset / 64 * 64, bytes = sl_round_up(x->offset + x->bytes - begin, 64);
            char *want = sl_asprintf("layer 1 expert %d: %s: read of %llu bytes at offset %llu failed at %llu: "
                                     "Input/output error",
                                     view.id, m.file[x->file]->path, (unsigned long long)bytes,
                                     (unsigned long long)begin, (unsigned long long)begin);
            assert_string_equal(err.message, want);
            free(want);
            assert_int_equal(view.id, ids[i]);
        }
        sl_expert_view view;
        sl_error err;
        assert_int_equal(s.source.next(s.source.self, &view, 1, &err), 0);
        s.source.end(s.source.self);
        assert_int_equal(store_stats(&s).slots_used, 0);
    }
    /* Failing experts used up no slots. */
    for (int i = 0; i < 20; i++) {
        int32_t ids[] = {0, 1, 2, 3, 4, 5, 6, 7};
        assert_int_equal(store_run(&s, 0, ids, 8, SL_ORDER_ASCENDING, 1), 8);
    }
    store_free(&s);
    model_free(&m);
}

static void reads_after_the_file_is_gone_fail_and_cached_experts_stay(void **state) {
    rng r = rng_start("gone");
    model m;
    make_model(&m, &r);
    sl_fault_plan plan = no_faults;
    plan.fail_after = 5;
    store s;
    store_make(&s, &m, &(store_spec){.top_k = 4}, faulty(&plan));
    int32_t ids[] = {0, 1, 2, 3, 4, 5, 6, 7};
    assert_int_equal(store_run(&s, 0, ids, 8, SL_ORDER_READY, 8), 3);
    for (int32_t id = 0; id < 8; id++)
        assert_int_equal(store_has(&s, 0, id), id < 5);
    assert_int_equal(store_run(&s, 0, ids, 5, SL_ORDER_READY, 8), 0);
    assert_int_equal(store_run(&s, 0, ids, 8, SL_ORDER_ASCENDING, 8), 3);
    store_free(&s);
    model_free(&m);
}

static void a_file_truncated_under_the_store_fails_its_experts_only(void **state) {
    rng r = rng_start("truncated");
    for (int c = 0; c < reader_case_count; c++) {
        model m;
        make_model(&m, &r);
        sl_reader *reader = reader_make(&reader_cases[c]);
        if (reader) {
            store s;
            store_make(&s, &m, &(store_spec){.top_k = 4}, reader);
            int32_t ids[16], in_second = 0;
            for (int32_t i = 0; i < 16; i++) {
                ids[i] = i;
                for (int p = 0; p < SL_EXPERT_PARTS; p++) {
                    const sl_extent *x = &m.extent[1][i * SL_EXPERT_PARTS + p];
                    in_second += x->bytes && x->file == 1;
                }
            }
            assert_int_equal(store_run(&s, 0, ids, 16, SL_ORDER_READY, 4), 0);
            assert_int_equal(truncate(m.file[1]->path, 0), 0);
            assert_int_equal(store_run(&s, 1, ids, 16, SL_ORDER_READY, 4), in_second);
            assert_true(in_second > 0 && in_second < 16);
            assert_int_equal(store_run(&s, 0, ids, 16, SL_ORDER_READY, 4), 0);
            store_free(&s);
        }
        model_free(&m);
    }
}

/* Bytes written in place give no error of their own: the file's time does. */
static void a_file_written_to_under_the_store_fails_what_is_read_from_then_on(void **state) {
    rng r = rng_start("written to");
    for (int c = 0; c < reader_case_count; c++) {
        model m;
        make_model(&m, &r);
        sl_reader *reader = reader_make(&reader_cases[c]);
        if (!reader) {
            model_free(&m);
            continue;
        }
        store s;
        store_make(&s, &m, &(store_spec){.top_k = 4}, reader);
        int32_t ids[16], in_second = 0, first = -1;
        for (int32_t i = 0; i < 16; i++) {
            ids[i] = i;
            for (int p = 0; p < SL_EXPERT_PARTS; p++) {
                const sl_extent *x = &m.extent[1][i * SL_EXPERT_PARTS + p];
                if (x->bytes && x->file == 1 && in_second++ == 0)
                    first = i;
            }
        }
        assert_true(in_second > 0 && in_second < 16);
        assert_int_equal(store_run(&s, 0, ids, 16, SL_ORDER_READY, 4), 0);
        struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000000000, .tv_nsec = 5}}, now[2] = {{0}};
        struct stat st;
        assert_int_equal(stat(m.file[1]->path, &st), 0);
        assert_int_equal(utimensat(AT_FDCWD, m.file[1]->path, times, 0), 0);
        sl_expert_view view;
        sl_error err;
        store_begin(&s, 1, &first, 1, SL_ORDER_READY);
        assert_int_equal(s.source.next(s.source.self, &view, 1, &err), -1);
        assert_non_null(strstr(err.message, m.file[1]->path));
        assert_non_null(strstr(err.message, "changed since it was opened"));
        s.source.end(s.source.self);
        assert_int_equal(store_run(&s, 1, ids, 16, SL_ORDER_ASCENDING, 4), in_second);
        assert_int_equal(store_run(&s, 0, ids, 16, SL_ORDER_READY, 4), 0); /* was read before */
        now[0].tv_nsec = UTIME_OMIT;
        now[1] = st.st_mtim;
        assert_int_equal(utimensat(AT_FDCWD, m.file[1]->path, now, 0), 0);
        assert_int_equal(store_run(&s, 1, ids, 16, SL_ORDER_ASCENDING, 4), 0);
        store_free(&s);
        model_free(&m);
    }
}

/* Between two looks at a clock a file can be written to and read: what came after that is never handed out. */
static void bytes_written_just_before_they_are_read_are_not_handed_out(void **state) {
    rng r = rng_start("just before");
    model m;
    make_model(&m, &r);
    store s;
    store_make(&s, &m, &(store_spec){.top_k = 4, .max_slots = 4}, reader_plain());
    int32_t ids[] = {0, 1, 2, 3, 4, 5, 6, 7};
    assert_int_equal(store_run(&s, 0, ids, 8, SL_ORDER_ASCENDING, 2), 0);
    for (int file = 0; file < 2; file++) {
        int fd = open(m.file[file]->path, O_WRONLY);
        uint8_t *junk = calloc(1, m.size[file]);
        assert_int_equal(pwrite(fd, junk, m.size[file], 0), (ssize_t)m.size[file]);
        free(junk);
        close(fd);
    }
    int held = 0;
    for (int32_t id = 0; id < 4; id++)
        held += store_has(&s, 0, id);
    assert_true(held < 4);
    assert_int_equal(store_run(&s, 0, ids, 4, SL_ORDER_ASCENDING, 2), 4 - held);
    store_free(&s);
    model_free(&m);
}

/* Every failed read is one failed expert; asked for again, all come in the end. */
static void failed_experts_can_be_asked_for_again(void **state) {
    rng r = rng_start("again");
    model m;
    make_model(&m, &r);
    sl_fault_plan plan = no_faults;
    plan.error_rate = 0.4;
    plan.reorder_rate = 0.3;
    store s;
    spy *watch = spy_open(faulty(&plan));
    store_make(&s, &m, &(store_spec){.top_k = 4}, &watch->base);
    int32_t ids[16];
    for (int32_t i = 0; i < 16; i++)
        ids[i] = i;
    int failed = 0, last = -1;
    for (int round = 0; last != 0; round++) {
        assert_true(round < 100);
        last = store_run(&s, 0, ids, 16, round % 2 ? SL_ORDER_READY : SL_ORDER_ASCENDING, 3);
        failed += last;
        assert_int_equal(failed, watch->failed);
    }
    assert_true(failed > 0);
    assert_int_equal(store_stats(&s).slots_used, 16);
    store_free(&s);
    model_free(&m);
}

/* Several reads an expert: one failure, whatever the number of failed reads. */
static void an_expert_of_many_reads_fails_once(void **state) {
    rng r = rng_start("many reads");
    model m;
    model_make(&m, &(model_spec){3, 2, 16, 6, 500, 3000, true, false}, &r);
    sl_fault_plan plan = no_faults;
    plan.error_rate = 0.1;
    plan.reorder_rate = 0.2;
    store s;
    store_make(&s, &m, &(store_spec){.top_k = 4, .max_slots = 6}, faulty(&plan));
    int failed = 0;
    for (int round = 0; round < 200; round++) {
        int32_t ids[16], n = 1 + (int32_t)rng_below(&r, 16);
        rng_ids(&r, ids, n, 16);
        failed += store_run(&s, round % 2, ids, n, rng_below(&r, 2) ? SL_ORDER_READY : SL_ORDER_ASCENDING,
                            1 + (int)rng_below(&r, 3));
    }
    assert_true(failed > 100);
    store_settle(&s);
    int64_t free_slots = 0;
    for (experts_link *l = s.e->cls[0].free.first; l; l = l->next)
        free_slots++;
    assert_int_equal(store_stats(&s).slots_used + (uint64_t)free_slots, 6);
    store_free(&s);
    model_free(&m);
}

/* All reads time out. Their slots are out of use until the late writes are over, then come back. */
static void a_timed_out_slot_is_not_used_until_its_read_is_over(void **state) {
    rng r = rng_start("time-out");
    model m;
    make_model(&m, &r);
    sl_fault_plan plan = no_faults;
    plan.delay_rate = 1;
    plan.delay_ns = 60000000;
    plan.timeout_ns = 1000000;
    store s;
    spy *watch = spy_open(faulty(&plan));
    store_make(&s, &m, &(store_spec){.top_k = 4, .max_slots = 4}, &watch->base);
    int32_t ids[] = {0, 3, 7, 9, 12};
    sl_expert_view view;
    sl_error err;
    store_begin(&s, 0, ids, 5, SL_ORDER_ASCENDING);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(s.source.next(s.source.self, &view, 1, &err), -1);
        assert_int_equal(view.id, ids[i]);
        assert_non_null(strstr(err.message, "Connection timed out"));
    }
    /* No slot is left for the fifth, and none will be soon. */
    assert_int_equal(s.source.next(s.source.self, &view, 1, &err), -1);
    assert_int_equal(view.id, 12);
    assert_non_null(strstr(err.message, "no slot is free: of 4, 0 are in use by this step and 4 wait"));
    assert_int_equal(s.source.next(s.source.self, &view, 1, &err), 0);
    s.source.end(s.source.self);
    assert_int_equal(watch->quarantined, 4);
    assert_int_equal(watch->in_flight, 4);
    assert_int_equal(sl_experts_shrink(s.e, 100), 0);
    store_settle(&s);
    assert_int_equal(s.e->timed_out, 0);
    assert_int_equal(store_stats(&s).slots_used, 0);
    store_begin(&s, 0, ids, 4, SL_ORDER_ASCENDING);
    assert_int_equal(watch->in_flight, 4);
    s.source.end(s.source.self);
    store_free(&s);
    model_free(&m);
}

/* Some reads are late, some so late that they time out and write into their slots afterwards: what is handed out is
 * right all the same. */
static void late_reads_never_show_in_other_experts(void **state) {
    rng r = rng_start("late");
    model m;
    model_make(&m, &(model_spec){2, 2, 16, 3, 500, 3000, true, false}, &r);
    sl_fault_plan plan = no_faults;
    plan.delay_rate = 0.1;
    plan.delay_ns = 3000000;
    plan.timeout_ns = 1000000;
    plan.reorder_rate = 0.3;
    plan.error_rate = 0.02;
    for (int prefetch = 0; prefetch < 2; prefetch++) {
        store s;
        store_make(&s, &m,
                   &(store_spec){.top_k = 4,
                                 .max_slots = 10,
                                 .guess_same = true,
                                 .prefetch = prefetch ? SL_PREFETCH_ROUTER : SL_PREFETCH_OFF},
                   faulty(&plan));
        int failed = 0;
        for (int round = 0; round < 150; round++) {
            int32_t ids[16], n = 1 + (int32_t)rng_below(&r, 5);
            rng_ids(&r, ids, n, 16);
            failed += store_run(&s, round % 2, ids, n, rng_below(&r, 2) ? SL_ORDER_READY : SL_ORDER_ASCENDING, 1);
        }
        assert_true(failed > 0);
        store_free(&s);
    }
    model_free(&m);
}

/* Late, but in time: nothing fails. */
static void delayed_and_reordered_reads_are_waited_for(void **state) {
    rng r = rng_start("delayed");
    model m;
    make_model(&m, &r);
    sl_fault_plan plan = no_faults;
    plan.delay_rate = 0.3;
    plan.delay_ns = 200000;
    plan.reorder_rate = 0.5;
    store s;
    store_make(&s, &m, &(store_spec){.top_k = 4, .max_slots = 5}, faulty(&plan));
    for (int round = 0; round < 100; round++) {
        int32_t ids[16], n = 1 + (int32_t)rng_below(&r, 16);
        rng_ids(&r, ids, n, 16);
        assert_int_equal(store_run(&s, round % 2, ids, n, rng_below(&r, 2) ? SL_ORDER_READY : SL_ORDER_ASCENDING, 2),
                         0);
    }
    assert_true(store_stats(&s).wait_ns > 0);
    store_free(&s);
    model_free(&m);
}

static void a_refused_submit_fails_what_it_held(void **state) {
    rng r = rng_start("refused");
    model m;
    make_model(&m, &r);
    store s;
    spy *watch = spy_open(reader_plain());
    store_make(&s, &m, &(store_spec){.top_k = 4, .max_slots = 4}, &watch->base);
    int32_t ids[] = {0, 1, 2, 3, 4, 5};
    assert_int_equal(store_run(&s, 0, ids, 2, SL_ORDER_READY, 2), 0);
    watch->refuse = true;
    for (int order = SL_ORDER_READY; order <= SL_ORDER_ASCENDING; order++)
        assert_int_equal(store_run(&s, 0, ids, 6, (sl_expert_order)order, 2), 4);
    watch->refuse = false;
    assert_int_equal(store_run(&s, 0, ids, 6, SL_ORDER_READY, 2), 0);
    store_free(&s);
    model_free(&m);
}

/* The read was begun by an iteration that ended early; its failure is not the next one's. */
static void a_read_taken_over_is_tried_again(void **state) {
    rng r = rng_start("taken over");
    model m;
    make_model(&m, &r);
    for (int order = SL_ORDER_READY; order <= SL_ORDER_ASCENDING; order++) {
        store s;
        spy *watch = spy_open(reader_plain());
        store_make(&s, &m, &(store_spec){.top_k = 4, .max_slots = 4}, &watch->base);
        int32_t ids[] = {2, 5, 6, 9};
        watch->hold = true;
        store_begin(&s, 0, ids, 4, SL_ORDER_READY);
        s.source.end(s.source.self);
        watch->fail_results = 3;
        assert_int_equal(store_run(&s, 0, ids, 4, (sl_expert_order)order, 1), 0);
        assert_int_equal(watch->failed, 3);
        assert_int_equal(watch->reads, 7);
        assert_int_equal(store_stats(&s).hits, 1);
        assert_int_equal(store_stats(&s).misses, 7);
        store_free(&s);
    }
    model_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_names_file_layer_expert_and_offset),
        cmocka_unit_test(reads_after_the_file_is_gone_fail_and_cached_experts_stay),
        cmocka_unit_test(a_file_truncated_under_the_store_fails_its_experts_only),
        cmocka_unit_test(a_file_written_to_under_the_store_fails_what_is_read_from_then_on),
        cmocka_unit_test(bytes_written_just_before_they_are_read_are_not_handed_out),
        cmocka_unit_test(failed_experts_can_be_asked_for_again),
        cmocka_unit_test(an_expert_of_many_reads_fails_once),
        cmocka_unit_test(a_timed_out_slot_is_not_used_until_its_read_is_over),
        cmocka_unit_test(late_reads_never_show_in_other_experts),
        cmocka_unit_test(delayed_and_reordered_reads_are_waited_for),
        cmocka_unit_test(a_refused_submit_fails_what_it_held),
        cmocka_unit_test(a_read_taken_over_is_tried_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Reading ahead, statistics, the trace, opening over a checkpoint. */
#include "support_experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Takes an expert out of the cache behind the store's back. */
static void drop(store *s, int32_t layer, int32_t expert) {
    experts_slot *slot = s->e->layer[layer].slot[expert];
    assert_non_null(slot);
    experts_cache_evict(s->e, slot);
    experts_cache_free(s->e, slot);
}

static void make_model(model *m, rng *r) {
    model_make(m, &(model_spec){2, 3, 16, 2, 500, 3000, true, true}, r);
}

static void what_the_next_layer_is_guessed_to_want_is_read_ahead(void **state) {
    rng r = rng_start("prefetch");
    model m;
    make_model(&m, &r);
    store s;
    spy *watch = spy_open(reader_plain());
    store_make(&s, &m,
               &(store_spec){.top_k = 4, .max_slots = 24, .slab_bytes = 1 << 18, .prefetch = SL_PREFETCH_ROUTER},
               &watch->base);
    int32_t a[] = {1, 2}, b[] = {3, 9};
    store_run(&s, 0, a, 2, SL_ORDER_READY, 2);
    store_run(&s, 1, b, 2, SL_ORDER_READY, 2);
    store_settle(&s);
    assert_int_equal(store_stats(&s).prefetch_reads, 0);
    drop(&s, 1, 3);
    drop(&s, 1, 9);
    /* All hits: the disk is idle at once. */
    store_guess(&s, b, 2);
    store_run(&s, 0, a, 2, SL_ORDER_READY, 2);
    assert_int_equal(store_stats(&s).prefetch_reads, 2);
    assert_true(store_has(&s, 1, 3) && store_has(&s, 1, 9));
    uint64_t misses = store_stats(&s).misses;
    int reads = watch->reads;
    assert_int_equal(store_run(&s, 1, b, 2, SL_ORDER_READY, 2), 0);
    assert_int_equal(store_stats(&s).prefetch_used, 2);
    assert_int_equal(store_stats(&s).misses, misses);
    assert_int_equal(watch->reads, reads);
    store_free(&s);
    model_free(&m);
}

static void reading_ahead_is_off_unless_asked_for(void **state) {
    static const sl_prefetch kinds[] = {SL_PREFETCH_OFF, SL_PREFETCH_AUTO, SL_PREFETCH_ROUTER};
    rng r = rng_start("prefetch off");
    model m;
    make_model(&m, &r);
    for (int i = 0; i < 6; i++) {
        sl_prefetch kind = kinds[i / 2];
        sl_expert_order order = i % 2 ? SL_ORDER_ASCENDING : SL_ORDER_READY;
        store s;
        store_make(&s, &m, &(store_spec){.top_k = 4, .max_slots = 24, .slab_bytes = 1 << 18, .prefetch = kind},
                   reader_plain());
        int32_t a[] = {1, 2}, b[] = {3, 9};
        store_run(&s, 0, a, 2, order, 2);
        store_guess(&s, b, 2);
        store_run(&s, 0, a, 2, order, 2);
        /* AUTO: in sweeps, and in decode not before it was measured. */
        bool expected = kind == SL_PREFETCH_ROUTER || (kind == SL_PREFETCH_AUTO && order == SL_ORDER_ASCENDING);
        assert_int_equal(store_stats(&s).prefetch_reads, expected ? 2 : 0);
        store_free(&s);
    }
    model_free(&m);
}

/* While a read is awaited no guess goes out; and it never takes a claimed slot or more than its share. */
static void guesses_wait_for_the_disk_and_leave_claims_alone(void **state) {
    rng r = rng_start("prefetch idle");
    model m;
    make_model(&m, &r);
    store s;
    spy *watch = spy_open(reader_plain());
    store_make(&s, &m, &(store_spec){.top_k = 4, .max_slots = 8, .slab_bytes = 1 << 18, .prefetch = SL_PREFETCH_ROUTER},
               &watch->base);
    int32_t next_layer[] = {0, 1, 2, 3}, now[] = {4, 5, 6, 7}, filler[] = {8, 9, 10, 11};
    sl_expert_view view[4];
    sl_error err;
    store_run(&s, 1, next_layer, 4, SL_ORDER_READY, 4);
    store_run(&s, 2, filler, 4, SL_ORDER_READY, 4);
    store_settle(&s);
    /* Layer 0 pushes layer 1 out. */
    watch->hold = true;
    int reads = watch->reads;
    store_guess(&s, next_layer, 4);
    store_begin(&s, 0, now, 4, SL_ORDER_READY);
    int demanded = watch->reads - reads;
    assert_int_equal(store_stats(&s).prefetch_reads, 0);
    int got = 0;
    while (got < 4) {
        int n = s.source.next(s.source.self, view + got, 4 - got, &err);
        assert_true(n > 0);
        got += n;
        if (watch->in_flight > 0 && watch->reads == reads + demanded)
            assert_int_equal(store_stats(&s).prefetch_reads, 0);
    }
    assert_int_equal(store_stats(&s).prefetch_reads, 2); /* a quarter of 8 */
    for (int i = 0; i < 4; i++)
        model_check(&m, 0, &view[i]);
    watch->hold = false;
    store_settle(&s);
    for (int i = 0; i < 4; i++)
        model_check(&m, 0, &view[i]);
    s.source.end(s.source.self);
    store_free(&s);
    model_free(&m);
}

/* The oldest experts are those of the layer the guess is for: they may be asked for as likely as it. */
static void a_guess_never_pushes_out_its_own_layer(void **state) {
    rng r = rng_start("prefetch own layer");
    model m;
    make_model(&m, &r);
    store s;
    store_make(&s, &m, &(store_spec){.top_k = 4, .max_slots = 8, .slab_bytes = 1 << 18, .prefetch = SL_PREFETCH_ROUTER},
               reader_plain());
    int32_t first[] = {4, 5}, next_layer[] = {0, 1, 2, 3}, last[] = {8, 9}, filler[] = {10, 11};
    store_run(&s, 0, first, 2, SL_ORDER_READY, 2);
    store_run(&s, 1, next_layer, 4, SL_ORDER_READY, 4);
    store_run(&s, 2, last, 2, SL_ORDER_READY, 2);
    store_settle(&s);
    drop(&s, 1, 0);
    drop(&s, 1, 1);
    store_run(&s, 2, filler, 2, SL_ORDER_ASCENDING, 2);
    store_guess(&s, next_layer, 4);
    store_run(&s, 0, first, 2, SL_ORDER_READY, 2);
    store_settle(&s);
    assert_int_equal(store_stats(&s).prefetch_reads, 0);
    assert_true(store_has(&s, 1, 2) && store_has(&s, 1, 3));
    store_free(&s);
    model_free(&m);
}

/* For the bound of a run: what it would have read without guesses. */
static void the_trace_tells_guesses_and_whether_they_were_right(void **state) {
    rng r = rng_start("prefetch trace");
    model m;
    make_model(&m, &r);
    store s;
    store_make(&s, &m,
               &(store_spec){.top_k = 4, .max_slots = 24, .slab_bytes = 1 << 18, .prefetch = SL_PREFETCH_ROUTER},
               reader_plain());
    sl_experts_trace(s.e, true);
    int32_t a[] = {1, 2}, guess[] = {3, 9}, b[] = {4, 9};
    store_run(&s, 0, a, 2, SL_ORDER_READY, 2);
    store_guess(&s, guess, 2);
    store_run(&s, 0, a, 2, SL_ORDER_READY, 2);
    store_settle(&s);
    store_run(&s, 1, b, 2, SL_ORDER_READY, 2);
    const sl_trace_read *trace;
    size_t n = sl_experts_trace_get(s.e, &trace), guesses = 0, used = 0, plain = 0;
    for (size_t i = 0; i < n; i++) {
        guesses += trace[i].guess;
        used += trace[i].used;
        plain += !trace[i].guess && trace[i].layer == 1;
    }
    assert_true(guesses > 0 && used > 0 && plain > 0 && used < guesses);
    assert_int_equal(s.e->layer[1].slot[9]->areas, used);
    assert_int_equal(s.e->layer[1].slot[4]->areas, plain);
    store_free(&s);
    model_free(&m);
}

/* Ids that the next layer does not have, or after the last layer, are nobody's. */
static void guesses_outside_the_model_are_ignored(void **state) {
    rng r = rng_start("prefetch outside");
    model m;
    make_model(&m, &r);
    store s;
    store_make(&s, &m,
               &(store_spec){.top_k = 4, .max_slots = 24, .slab_bytes = 1 << 18, .prefetch = SL_PREFETCH_ROUTER},
               reader_plain());
    int32_t a[] = {1, 2}, wild[] = {-1, 16, INT32_MAX, INT32_MIN}, good[] = {5};
    store_guess(&s, wild, 4);
    store_run(&s, 0, a, 2, SL_ORDER_READY, 2);
    store_guess(&s, good, 1);
    store_run(&s, 2, a, 2, SL_ORDER_READY, 2);
    s.source.guess(s.source.self, good, 1); /* no iteration runs */
    assert_int_equal(store_stats(&s).prefetch_reads, 0);
    store_free(&s);
    model_free(&m);
}

/* One pass over a model of three layers. `late`: nanoseconds a step seems to wait for reads in it. */
static void pass(store *s, uint64_t late) {
    int32_t a[] = {1, 2};
    for (int32_t layer = 0; layer < 3; layer++)
        store_run(s, layer, a, 2, SL_ORDER_READY, 2);
    atomic_fetch_add(&s->e->count.wait_ns, late);
}

/* AUTO tries guesses and keeps them only where steps waited less with them. */
static void guesses_are_made_only_where_they_shorten_the_waits(void **state) {
    rng r = rng_start("prefetch trial");
    model m;
    make_model(&m, &r);
    for (int pays = 0; pays < 2; pays++) {
        store s;
        store_make(&s, &m,
                   &(store_spec){.top_k = 4, .slab_bytes = 1 << 18, .prefetch = SL_PREFETCH_AUTO, .guess_same = true},
                   reader_plain());
        bool on[2] = {false, false};
        int tried = 0;
        for (int i = 0; i < 200; i++) {
            bool with = s.e->trial.on;
            tried += with;
            on[i >= 100] |= with && i % 100 > 80;
            pass(&s, with == (pays == 1) ? 1000000000 : 2000000000);
        }
        assert_true(tried > 0);
        assert_int_equal(on[0], pays);
        assert_int_equal(on[1], pays);
        store_free(&s);
    }
    model_free(&m);
}

/* While there is memory for more slots, nothing is pushed out for a guess. */
static void a_guess_takes_new_slots_before_it_takes_anothers(void **state) {
    rng r = rng_start("prefetch grows");
    model m;
    make_model(&m, &r);
    store s;
    store_make(&s, &m, &(store_spec){.top_k = 4, .prefetch = SL_PREFETCH_ROUTER}, reader_plain());
    int32_t first = s.e->cls[0].per_slab, ids[16], guess[] = {0, 1, 2, 3};
    assert_in_range(first, 4, 15);
    for (int32_t i = 0; i < first; i++)
        ids[i] = i;
    store_run(&s, 0, ids, first, SL_ORDER_READY, 4);
    assert_int_equal(store_stats(&s).slots_used, store_stats(&s).slots);
    store_guess(&s, guess, 4);
    store_run(&s, 0, ids, 1, SL_ORDER_READY, 4);
    store_settle(&s);
    assert_true(store_stats(&s).prefetch_reads > 0);
    assert_int_equal(store_stats(&s).evictions, 0);
    store_free(&s);
    model_free(&m);
}

static void a_guess_that_fails_is_forgotten(void **state) {
    rng r = rng_start("prefetch fails");
    model m;
    /* One read an expert: the results turned into failures are those of the guesses. */
    model_make(&m, &(model_spec){2, 3, 16, 1, 500, 3000, true, true}, &r);
    store s;
    spy *watch = spy_open(reader_plain());
    store_make(&s, &m,
               &(store_spec){.top_k = 4, .max_slots = 24, .slab_bytes = 1 << 18, .prefetch = SL_PREFETCH_ROUTER},
               &watch->base);
    int32_t a[] = {1, 2}, b[] = {3, 9};
    for (int settled = 0; settled < 2; settled++) {
        store_run(&s, 0, a, 2, SL_ORDER_READY, 2);
        store_run(&s, 1, b, 2, SL_ORDER_READY, 2);
        store_settle(&s);
        drop(&s, 1, 3);
        drop(&s, 1, 9);
        watch->hold = true; /* what is read ahead stays in flight until its results are to fail */
        store_guess(&s, b, 2);
        store_run(&s, 0, a, 2, SL_ORDER_READY, 2);
        /* Read ahead and failed, before or while it is asked for. */
        watch->fail_results = watch->in_flight;
        watch->hold = !settled;
        if (settled)
            store_settle(&s);
        assert_int_equal(store_run(&s, 1, b, 2, SL_ORDER_READY, 2), 0);
        watch->hold = false;
    }
    store_free(&s);
    model_free(&m);
}

static void statistics_count_what_was_read(void **state) {
    rng r = rng_start("stats");
    model m;
    make_model(&m, &r);
    store s;
    spy *watch = spy_open(reader_plain());
    store_make(&s, &m, &(store_spec){.top_k = 4, .max_slots = 6}, &watch->base);
    sl_experts_trace(s.e, true);
    int32_t asked = 0;
    for (int round = 0; round < 30; round++) {
        int32_t ids[10], n = 1 + (int32_t)rng_below(&r, 10);
        rng_ids(&r, ids, n, 16);
        asked += n;
        store_run(&s, round % 3, ids, n, SL_ORDER_READY, 2);
    }
    sl_experts_stats st = store_stats(&s);
    assert_int_equal(st.hits + st.misses, asked);
    assert_int_equal(st.reads, watch->reads);
    assert_int_equal(st.slots, 6);
    assert_int_equal(st.slots_used, 6);
    const sl_trace_read *trace;
    size_t n = sl_experts_trace_get(s.e, &trace);
    uint64_t bytes = 0;
    assert_int_equal(n, st.reads);
    for (size_t i = 0; i < n; i++) {
        bytes += trace[i].bytes;
        assert_in_range(trace[i].layer, 0, 2);
        assert_in_range(trace[i].file, 0, 1);
        assert_true(trace[i].offset < m.size[trace[i].file]);
        if (i > 0)
            assert_in_range(trace[i].burst - trace[i - 1].burst, 0, 1);
    }
    assert_int_equal(bytes, st.read_bytes);
    assert_int_equal(trace[0].burst, 0);
    assert_int_equal(trace[n - 1].burst + 1, watch->submits);
    sl_experts_trace(s.e, false);
    sl_experts_stats_reset(s.e);
    st = store_stats(&s);
    assert_int_equal(st.hits + st.misses + st.reads + st.read_bytes + st.evictions + st.wait_ns, 0);
    assert_int_equal(st.slots_used, 6);
    store_free(&s);
    model_free(&m);
}

/* ---- over a checkpoint ------------------------------------------------------------------------------------------ */

enum { CKPT_EXPERTS = 5, CKPT_BYTES = 6000 };

static void write_text(const char *dir, const char *name, const char *text, size_t n) {
    char *path = sl_path_join(dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
    free(path);
}

/* model.safetensors with one tensor "x" [5][3000] of f16; returns its bytes. */
static uint8_t *write_checkpoint(const char *dir, rng *r) {
    const char *json = "{\"x\":{\"dtype\":\"F16\",\"shape\":[5,3000],\"data_offsets\":[0,30000]}}";
    uint64_t header = strlen(json);
    sl_buf b = {0};
    sl_buf_append(&b, &header, 8);
    sl_buf_puts(&b, json);
    for (int i = 0; i < CKPT_EXPERTS * CKPT_BYTES; i++) {
        uint8_t byte = (uint8_t)rng_next(r);
        sl_buf_append(&b, &byte, 1);
    }
    write_text(dir, "model.safetensors", b.data, b.size);
    const char *config = "{\"model_type\":\"qwen3_moe\"}";
    write_text(dir, "config.json", config, strlen(config));
    uint8_t *bytes = malloc(CKPT_EXPERTS * CKPT_BYTES);
    assert_non_null(bytes);
    memcpy(bytes, b.data + 8 + header, CKPT_EXPERTS * CKPT_BYTES);
    sl_buf_free(&b);
    return bytes;
}

static void remove_checkpoint(const char *dir) {
    char *a = sl_path_join(dir, "model.safetensors"), *b = sl_path_join(dir, "config.json");
    unlink(a);
    unlink(b);
    rmdir(dir);
    free(a);
    free(b);
}

static void take_extents(const sl_ckpt *c, sl_extent *ext) {
    sl_error err;
    const sl_tensor *t = sl_ckpt_require(c, "x", &err);
    if (!t)
        fail_msg("%s", err.message);
    for (int i = 0; i < CKPT_EXPERTS; i++) {
        sl_tensor one;
        assert_true(sl_tensor_slice(t, i, &one, &err));
        ext[i * SL_EXPERT_PARTS + 4] = one.part[0];
    }
}

static void a_checkpoint_is_streamed_in_place(void **state) {
    rng r = rng_start("checkpoint");
    char dir[] = "/tmp/sluice-experts-XXXXXX";
    assert_non_null(mkdtemp(dir));
    uint8_t *bytes = write_checkpoint(dir, &r);
    sl_error err = {0};
    sl_ckpt *c = sl_ckpt_open(dir, &err);
    if (!c)
        fail_msg("%s", err.message);
    sl_extent ext[CKPT_EXPERTS * SL_EXPERT_PARTS] = {0};
    take_extents(c, ext);
    sl_expert_layer layer = {CKPT_EXPERTS, ext, NULL, 0};
    for (int direct = 0; direct < 2; direct++) {
        sl_reader_options ro = {.kind = SL_READER_AUTO, .buffered = !direct};
        sl_mem *mem = sl_mem_new(1 << 20, 65536, &err);
        sl_experts_options o = {
            .ckpt = c, .layers = &layer, .layer_count = 1, .top_k = 2, .mem = mem, .reader = sl_reader_open(&ro, &err)};
        uint64_t slot = sl_experts_slot_bytes(&layer, c, direct);
        assert_true(slot >= CKPT_BYTES && slot <= 16384);
        assert_int_equal(sl_experts_least_bytes(&layer, 1, c, 2, direct, 65536), 65536);
        assert_int_equal(sl_experts_least_bytes(&layer, 1, c, 50, direct, 65536),
                         (50 + 65536 / slot - 1) / (65536 / slot) * 65536);
        assert_int_equal(sl_experts_least_bytes(&layer, 1, c, 2, direct, 4096), 0);
        sl_experts *e = sl_experts_open(&o, &err);
        if (!e)
            fail_msg("%s", err.message);
        sl_expert_source source = sl_experts_source(e);
        int32_t ids[] = {0, 1, 4};
        sl_expert_view view[3];
        assert_true(source.begin(source.self, 0, ids, 3, SL_ORDER_ASCENDING, &err));
        for (int got = 0; got < 3;)
            got += source.next(source.self, view + got, 3 - got, &err);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(view[i].id, ids[i]);
            assert_memory_equal(view[i].part[4], bytes + ids[i] * CKPT_BYTES, CKPT_BYTES);
        }
        source.end(source.self);
        sl_experts_close(e);
        sl_mem_free(mem);
    }
    ext[4].offset = 1 << 20;
    assert_int_equal(sl_experts_slot_bytes(&layer, c, true), 0);
    sl_ckpt_close(c);
    remove_checkpoint(dir);
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_next_layer_is_guessed_to_want_is_read_ahead),
        cmocka_unit_test(reading_ahead_is_off_unless_asked_for),
        cmocka_unit_test(guesses_wait_for_the_disk_and_leave_claims_alone),
        cmocka_unit_test(a_guess_never_pushes_out_its_own_layer),
        cmocka_unit_test(a_guess_takes_new_slots_before_it_takes_anothers),
        cmocka_unit_test(a_guess_that_fails_is_forgotten),
        cmocka_unit_test(the_trace_tells_guesses_and_whether_they_were_right),
        cmocka_unit_test(guesses_outside_the_model_are_ignored),
        cmocka_unit_test(guesses_are_made_only_where_they_shorten_the_waits),
        cmocka_unit_test(statistics_count_what_was_read),
        cmocka_unit_test(a_checkpoint_is_streamed_in_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

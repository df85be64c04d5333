/* Cache: LRU order, growth within the budget, slot classes and slabs that change hands, shrinking, sweeps larger than
 * the cache. */
#include "support_experts.h"

#include <stdio.h>
#include <string.h>

/* ---- LRU against a list ----------------------------------------------------------------------------------------- */

enum { LRU_LAYERS = 3, LRU_EXPERTS = 20, LRU_TOP = 4, LRU_SLOTS = 17 };

/* The oracle: cached experts, most recent first; what an iteration claims is taken out until it is done with. */
typedef struct lru_model {
    int32_t key[LRU_SLOTS];
    int32_t n;
    uint64_t hits;
} lru_model;

static int32_t key_of(int32_t layer, int32_t expert) {
    return layer * LRU_EXPERTS + expert;
}

static void lru_take(lru_model *l, int32_t key) {
    for (int32_t i = 0; i < l->n; i++) {
        if (l->key[i] == key) {
            memmove(&l->key[i], &l->key[i + 1], (size_t)(--l->n - i) * sizeof *l->key);
            l->hits++;
            return;
        }
    }
}

static void lru_begin(lru_model *l, int32_t layer, const int32_t *ids, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        lru_take(l, key_of(layer, ids[i]));
    /* The misses' slots are free ones, then the oldest. */
    if (l->n + n > LRU_SLOTS)
        l->n = LRU_SLOTS - n;
}

static void lru_done(lru_model *l, int32_t layer, int32_t id) {
    memmove(&l->key[1], &l->key[0], (size_t)l->n++ * sizeof *l->key);
    l->key[0] = key_of(layer, id);
}

static void expect_same(const store *s, const lru_model *l) {
    for (int32_t layer = 0; layer < LRU_LAYERS; layer++) {
        for (int32_t x = 0; x < LRU_EXPERTS; x++) {
            bool held = false;
            for (int32_t i = 0; i < l->n; i++)
                held |= l->key[i] == key_of(layer, x);
            if (store_has(s, layer, x) != held)
                fail_msg("layer %d expert %d: cached %d, expected %d", layer, x, !held, held);
        }
    }
}

/* Takes all experts of an iteration, then gives them back in a random order. */
static void run_shuffled(store *s, lru_model *l, int32_t layer, const int32_t *ids, int32_t n, sl_expert_order order,
                         rng *r) {
    sl_expert_view view[LRU_TOP];
    sl_error err;
    store_begin(s, layer, ids, n, order);
    lru_begin(l, layer, ids, n);
    for (int32_t got = 0; got < n;) {
        int k = s->source.next(s->source.self, view + got, n - got, &err);
        assert_true(k > 0);
        got += k;
    }
    for (int32_t left = n; left > 0; left--) {
        int32_t i = (int32_t)rng_below(r, (uint32_t)left);
        model_check(s->m, layer, &view[i]);
        s->source.done(s->source.self, &view[i], 1);
        lru_done(l, layer, view[i].id);
        view[i] = view[left - 1];
    }
    s->source.end(s->source.self);
}

static void least_recently_used_goes_first(void **state) {
    rng r = rng_start("lru");
    model m;
    model_make(&m, &(model_spec){2, LRU_LAYERS, LRU_EXPERTS, 3, 500, 3000, true, false}, &r);
    store s;
    store_make(&s, &m, &(store_spec){.top_k = LRU_TOP, .max_slots = LRU_SLOTS}, reader_plain());
    lru_model l = {.n = 0};
    for (int round = 0; round < 1500; round++) {
        int32_t ids[LRU_TOP], n = 1 + (int32_t)rng_below(&r, LRU_TOP), layer = (int32_t)rng_below(&r, LRU_LAYERS);
        rng_ids(&r, ids, n, LRU_EXPERTS);
        run_shuffled(&s, &l, layer, ids, n, rng_below(&r, 2) ? SL_ORDER_READY : SL_ORDER_ASCENDING, &r);
        expect_same(&s, &l);
    }
    sl_experts_stats st = store_stats(&s);
    assert_int_equal(st.hits, l.hits);
    assert_int_equal(st.slots, LRU_SLOTS);
    assert_int_equal(st.slots_used, LRU_SLOTS);
    assert_int_equal(st.misses - st.evictions, LRU_SLOTS);
    store_free(&s);
    model_free(&m);
}

/* ---- budget ----------------------------------------------------------------------------------------------------- */

static void slots_grow_as_needed_up_to_the_budget(void **state) {
    rng r = rng_start("budget");
    model m;
    model_make(&m, &(model_spec){1, 4, 30, 3, 2000, 4000, true, true}, &r);
    store s;
    spy *watch = spy_open(reader_plain());
    store_make(&s, &m, &(store_spec){.top_k = 4, .budget = 10 * 65536 + 1234}, &watch->base);
    int32_t few[] = {1, 2, 3}, all[30];
    for (int32_t i = 0; i < 30; i++)
        all[i] = i;
    store_run(&s, 0, few, 3, SL_ORDER_READY, 3);
    uint64_t least = sl_mem_used(s.mem, SL_USE_SLOTS);
    assert_true(least <= 2 * 65536);
    for (int round = 0; round < 3; round++) {
        for (int32_t layer = 0; layer < 4; layer++)
            assert_int_equal(store_run(&s, layer, all, 30, SL_ORDER_ASCENDING, 2), 0);
    }
    assert_int_equal(sl_mem_used(s.mem, SL_USE_SLOTS), 10 * 65536);
    assert_int_equal(watch->regions, 10);
    assert_true(sl_mem_peak(s.mem) <= sl_mem_budget(s.mem));
    assert_int_equal(store_stats(&s).slot_bytes, 10 * 65536);
    store_free(&s);
    model_free(&m);
}

static void max_bytes_is_a_cap_below_the_budget(void **state) {
    rng r = rng_start("max_bytes");
    model m;
    model_make(&m, &(model_spec){1, 2, 40, 2, 3000, 5000, true, true}, &r);
    store s;
    store_make(&s, &m, &(store_spec){.top_k = 2, .max_bytes = 4 * 65536 + 100}, reader_plain());
    int32_t all[40];
    for (int32_t i = 0; i < 40; i++)
        all[i] = i;
    for (int32_t layer = 0; layer < 2; layer++)
        assert_int_equal(store_run(&s, layer, all, 40, SL_ORDER_READY, 3), 0);
    assert_int_equal(sl_mem_used(s.mem, SL_USE_SLOTS), 4 * 65536);
    store_free(&s);
    model_free(&m);
}

static void expect_refused(const model *m, store_spec spec, sl_code code, const char *text) {
    store s;
    sl_error err = {0};
    assert_false(store_try(&s, m, &spec, reader_plain(), &err));
    assert_int_equal(err.code, code);
    if (!strstr(err.message, text))
        fail_msg("%s", err.message);
}

static void what_cannot_run_is_refused_with_the_least(void **state) {
    rng r = rng_start("refused");
    model m;
    /* One slot a slab: 5 slots are 5 slabs. */
    model_make(&m, &(model_spec){1, 1, 6, 1, 40000, 40000, true, true}, &r);
    expect_refused(&m, (store_spec){.top_k = 5, .budget = 4 * 65536}, SL_ERR_BUDGET, "the least are 5 slabs of 65536");
    expect_refused(&m, (store_spec){.top_k = 5, .max_bytes = 4 * 65536}, SL_ERR_BUDGET, "at least 327680");
    expect_refused(&m, (store_spec){.top_k = 5, .max_slots = 4}, SL_ERR_ARGUMENT, "4 slots, at least 5");
    expect_refused(&m, (store_spec){.top_k = 0}, SL_ERR_ARGUMENT, "top_k 0");
    model_free(&m);
    model_make(&m, &(model_spec){1, 1, 2, 1, 70000, 70000, true, true}, &r);
    expect_refused(&m, (store_spec){.top_k = 1}, SL_ERR_UNSUPPORTED, "layer 0: an expert needs a slot of");
    m.extent[0][SL_EXPERT_PARTS * 1 + 0] = m.extent[0][SL_EXPERT_PARTS * 1 + 8] = (sl_extent){7, 0, 1};
    expect_refused(&m, (store_spec){.top_k = 1}, SL_ERR_ARGUMENT, "layer 0: expert 1: part");
    model_free(&m);
}

/* ---- classes ---------------------------------------------------------------------------------------------------- */

/* Two sizes of slots: layers 0 and 2 are small, 1 and 3 large. */
static void make_two_classes(model *m, rng *r) {
    model_make(m, &(model_spec){2, 4, 24, 2, 100, 200, false, true}, r);
    for (int32_t layer = 0; layer < 4; layer++) {
        for (int32_t x = 0; x < 24; x++) {
            for (int p = 0; p < SL_EXPERT_PARTS; p++)
                m->extent[layer][x * SL_EXPERT_PARTS + p] = (sl_extent){0};
            uint64_t bytes = layer % 2 ? 16000 : 5000, at = rng_next(r) % 30000;
            m->extent[layer][x * SL_EXPERT_PARTS + 2] = (sl_extent){0, at, bytes};
        }
    }
    /* Longer files than the small layout wanted. */
    for (int i = 0; i < 2; i++) {
        file_free(m->file[i]);
        free(m->bytes[i]);
        m->file[i] = file_make(50000, &m->bytes[i], r);
    }
}

static int64_t slots_of_class(const store *s, int32_t cls) {
    int64_t n = 0;
    for (size_t i = 0; i < s->e->slab_capacity; i++) {
        if (s->e->slab[i] && s->e->slab[i]->cls == cls)
            n += s->e->slab[i]->slots;
    }
    return n;
}

static void slabs_follow_demand_between_classes(void **state) {
    rng r = rng_start("classes");
    model m;
    make_two_classes(&m, &r);
    store s;
    store_make(&s, &m, &(store_spec){.top_k = 4, .budget = 4 * 65536}, reader_plain());
    assert_int_equal(s.e->classes, 2);
    int32_t all[24];
    for (int32_t i = 0; i < 24; i++)
        all[i] = i;
    assert_int_equal(store_run(&s, 0, all, 24, SL_ORDER_READY, 4), 0);
    assert_int_equal(store_run(&s, 2, all, 24, SL_ORDER_READY, 4), 0);
    assert_true(slots_of_class(&s, 0) >= 24);
    for (int round = 0; round < 80; round++) {
        int32_t ids[4];
        rng_ids(&r, ids, 4, 24);
        assert_int_equal(store_run(&s, 1 + 2 * (round % 2), ids, 4, SL_ORDER_READY, 4), 0);
    }
    /* The small class was not used for long: the large one has all slabs. */
    assert_int_equal(slots_of_class(&s, 0), 0);
    assert_int_equal(slots_of_class(&s, 1), 4 * (65536 / s.e->cls[1].slot_bytes));
    for (int round = 0; round < 200; round++) {
        int32_t ids[6], n = 1 + (int32_t)rng_below(&r, 6);
        rng_ids(&r, ids, n, 24);
        sl_expert_order order = rng_below(&r, 2) ? SL_ORDER_READY : SL_ORDER_ASCENDING;
        assert_int_equal(store_run(&s, (int32_t)rng_below(&r, 4), ids, n, order, 3), 0);
    }
    store_free(&s);
    model_free(&m);
}

/* Reads that nobody waits for any more still go into their slab: another class must not get it. */
static void a_slab_with_reads_in_flight_is_not_stolen(void **state) {
    rng r = rng_start("stolen");
    model m;
    make_two_classes(&m, &r);
    store s;
    spy *watch = spy_open(reader_plain());
    store_make(&s, &m, &(store_spec){.top_k = 4, .budget = 2 * 65536}, &watch->base);
    int32_t ids[4] = {0, 5, 6, 23};
    for (int round = 0; round < 30; round++) {
        int32_t layer = round % 4;
        watch->hold = true;
        store_begin(&s, layer, ids, 4, SL_ORDER_READY);
        s.source.end(s.source.self);
        watch->hold = round % 3 == 0;
        assert_int_equal(store_run(&s, (layer + 1) % 4, ids, 4, SL_ORDER_READY, 2), 0);
        assert_int_equal(store_run(&s, layer, ids, 4, SL_ORDER_ASCENDING, 1), 0);
    }
    store_free(&s);
    model_free(&m);
}

/* ---- shrinking -------------------------------------------------------------------------------------------------- */

static void shrinking_gives_slabs_to_others_down_to_the_least(void **state) {
    rng r = rng_start("shrink");
    model m;
    model_make(&m, &(model_spec){2, 2, 32, 3, 2000, 3000, true, false}, &r);
    store s;
    spy *watch = spy_open(reader_plain());
    store_make(&s, &m, &(store_spec){.top_k = 4, .budget = 8 * 65536}, &watch->base);
    int32_t all[32];
    sl_error err;
    for (int32_t i = 0; i < 32; i++)
        all[i] = i;
    for (int round = 0; round < 2; round++) {
        for (int32_t layer = 0; layer < 2; layer++)
            assert_int_equal(store_run(&s, layer, all, 32, SL_ORDER_READY, 4), 0);
        assert_int_equal(watch->regions, 8);
        assert_null(sl_mem_slab(s.mem, SL_USE_KV, &err));
        assert_int_equal(sl_experts_shrink(s.e, 3), 3);
        assert_int_equal(watch->regions, 5);
        void *kv[3];
        for (int i = 0; i < 3; i++) {
            kv[i] = sl_mem_slab(s.mem, SL_USE_KV, &err);
            assert_non_null(kv[i]);
            memset(kv[i], 0xee, 65536);
        }
        assert_int_equal(store_run(&s, 1, all, 32, SL_ORDER_READY, 4), 0);
        for (int i = 0; i < 3; i++) {
            for (int k = 0; k < 65536; k++)
                assert_int_equal(((uint8_t *)kv[i])[k], 0xee);
            sl_mem_slab_free(s.mem, kv[i]);
        }
    }
    int least = s.e->least_slabs, have = watch->regions;
    assert_true(least < have);
    assert_int_equal(sl_experts_shrink(s.e, 1000), have - least);
    assert_int_equal(sl_mem_used(s.mem, SL_USE_SLOTS), (uint64_t)least * 65536);
    assert_int_equal(sl_experts_shrink(s.e, 1), 0);
    assert_int_equal(store_run(&s, 0, all, 32, SL_ORDER_READY, 4), 0);
    store_free(&s);
    model_free(&m);
}

static void shrinking_takes_the_least_recent_slab_and_waits_for_reads(void **state) {
    rng r = rng_start("shrink order");
    model m;
    /* One slot a slab. */
    model_make(&m, &(model_spec){1, 1, 8, 1, 40000, 40001, true, true}, &r);
    store s;
    spy *watch = spy_open(reader_plain());
    store_make(&s, &m, &(store_spec){.top_k = 2, .budget = 6 * 65536}, &watch->base);
    for (int32_t id = 0; id < 6; id++)
        assert_int_equal(store_run(&s, 0, &id, 1, SL_ORDER_READY, 1), 0);
    int32_t first = 0;
    assert_int_equal(store_run(&s, 0, &first, 1, SL_ORDER_READY, 1), 0);
    assert_int_equal(sl_experts_shrink(s.e, 2), 2);
    for (int32_t id = 0; id < 6; id++)
        assert_int_equal(store_has(&s, 0, id), id != 1 && id != 2);
    watch->hold = true;
    int32_t ids[] = {1, 2, 6, 7};
    store_begin(&s, 0, ids, 4, SL_ORDER_READY);
    s.source.end(s.source.self);
    assert_int_equal(watch->in_flight, 4);
    /* Four slots of the six receive reads: two of these have to be waited for. */
    assert_int_equal(sl_experts_shrink(s.e, 100), 4);
    assert_true(watch->in_flight <= 2);
    store_free(&s);
    model_free(&m);
}

/* ---- sweeps larger than the cache ------------------------------------------------------------------------------- */

static uint64_t hits_of_pass(store *s, int32_t layers, const int32_t *ids, int32_t n, sl_expert_order order) {
    uint64_t before = store_stats(s).hits;
    for (int32_t layer = 0; layer < layers; layer++)
        assert_int_equal(store_run(s, layer, ids, n, order, 1), 0);
    return store_stats(s).hits - before;
}

/* Plain LRU would never hit here: each expert is asked for again just after it was evicted. */
static void a_sweep_larger_than_the_cache_still_hits(void **state) {
    rng r = rng_start("sweep");
    model m;
    model_make(&m, &(model_spec){1, 4, 16, 1, 1000, 2000, true, true}, &r);
    for (int order = SL_ORDER_READY; order <= SL_ORDER_ASCENDING; order++) {
        store s;
        store_make(&s, &m, &(store_spec){.top_k = 4, .max_slots = 32}, reader_plain());
        int32_t ids[16], n = order == SL_ORDER_READY ? 12 : 16;
        for (int32_t i = 0; i < n; i++)
            ids[i] = i;
        hits_of_pass(&s, 4, ids, n, (sl_expert_order)order);
        uint64_t hits = 0;
        for (int pass = 0; pass < 8; pass++)
            hits += hits_of_pass(&s, 4, ids, n, (sl_expert_order)order);
        printf("sweep of %d over 32 slots, %s order: %.1f hits a pass\n", 4 * n, order ? "ascending" : "ready",
               (double)hits / 8);
        /* 32 slots less the window (a quarter; in READY order a layer's experts) and the few that go in hot. */
        assert_true(hits >= 8 * (order == SL_ORDER_READY ? 16 : 20));
        store_free(&s);
    }
    model_free(&m);
}

static void count_line(void *user, sl_log_level level, const char *line) {
    if (level == SL_LOG_WARN && strstr(line, "fewer slots than the 16 experts"))
        ++*(int *)user;
}

static void a_cache_below_one_tokens_demand_is_said_once(void **state) {
    rng r = rng_start("small");
    model m;
    model_make(&m, &(model_spec){1, 4, 10, 1, 1000, 2000, true, true}, &r);
    store s;
    int lines = 0;
    store_make(&s, &m, &(store_spec){.top_k = 4, .max_slots = 8, .log = {count_line, &lines, SL_LOG_WARN}},
               reader_plain());
    int32_t ids[] = {1, 4, 5, 9};
    for (int pass = 0; pass < 3; pass++)
        hits_of_pass(&s, 4, ids, 4, SL_ORDER_READY);
    assert_int_equal(lines, 1);
    store_free(&s);
    model_free(&m);
}

static void check_seen(const store *s, int32_t layer, const sl_expert_peek *peek) {
    static sl_expert_view views[64];
    int32_t n = s->source.resident(s->source.self, layer, views, 64);
    for (int32_t i = 0; i < n; i++)
        for (int p = 0; p < SL_EXPERT_PARTS; p++) {
            bool inside = !views[i].part[p];
            for (int32_t b = 0; b < peek->blocks; b++)
                inside |= (uintptr_t)views[i].part[p] - (uintptr_t)peek->block[b] < peek->block_bytes;
            assert_true(inside);
        }
}

/* However many slabs: a device that is bound 16 pieces of memory sees every slot; and is told when a layer changed. */
static void a_device_sees_all_slots_in_few_pieces(void **state) {
    rng r = rng_start("pieces");
    model m;
    model_make(&m, &(model_spec){1, 2, 40, 1, 35000, 40000, true, true}, &r); /* one slot a slab */
    for (int scattered = 0; scattered < 2; scattered++) {
        store s;
        store_make(&s, &m, &(store_spec){.top_k = 4, .budget = 60 * 65536, .pieces = scattered ? 0 : SL_PEEK_BLOCKS},
                   reader_plain());
        int32_t ids[30];
        for (int32_t i = 0; i < 30; i++)
            ids[i] = i;
        sl_expert_peek peek;
        uint64_t before[2], after[2];
        assert_int_equal(store_run(&s, 0, ids, 30, SL_ORDER_READY, 4), 0);
        assert_int_equal(store_run(&s, 1, ids, 30, SL_ORDER_READY, 4), 0);
        assert_true(s.source.peek(s.source.self, 0, &peek));
        assert_int_equal(peek.blocks > 0, !scattered);
        if (!scattered) {
            check_seen(&s, 0, &peek);
            check_seen(&s, 1, &peek);
        }
        for (int32_t i = 0; i < 2; i++)
            before[i] = s.source.generation(s.source.self, i);
        assert_int_equal(store_run(&s, 1, ids, 30, SL_ORDER_READY, 4), 0); /* all there: nothing moves */
        for (int32_t i = 0; i < 2; i++)
            assert_int_equal(s.source.generation(s.source.self, i), before[i]);
        int32_t other = 35; /* of layer 1; the oldest, one of layer 0's, goes */
        assert_int_equal(store_run(&s, 1, &other, 1, SL_ORDER_READY, 4), 0);
        for (int32_t i = 0; i < 2; i++) {
            after[i] = s.source.generation(s.source.self, i);
            assert_true(after[i] > before[i]);
        }
        assert_true(sl_experts_shrink(s.e, 1) == 1); /* slabs go: every layer's table is another */
        for (int32_t i = 0; i < 2; i++)
            assert_true(s.source.generation(s.source.self, i) > after[i]);
        assert_int_equal(s.source.generation(s.source.self, 2), 0);
        store_free(&s);
    }
    model_free(&m);
}

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* Layers whose experts differ in size: a layer may claim as many at once as peek says, from slabs of the others too,
 * and all of them lie where peek said. Where every expert is in a slot that is the number of slots. */
static void a_device_may_claim_what_peek_says_whatever_the_sizes(void **state) {
    rng r = rng_start("classes");
    for (int round = 0; round < 12; round++) {
        model m;
        bool enough = round % 3 == 0;
        model_make(&m, &(model_spec){1, 5, 20, 1, 3000, 40000, false, true}, &r);
        store s;
        store_make(&s, &m,
                   &(store_spec){
                       .top_k = 4, .budget = (enough ? 200 : 8 + rng_below(&r, 30)) * 65536u, .pieces = SL_PEEK_BLOCKS},
                   reader_plain());
        int32_t ids[20];
        for (int pass = 0; pass < 3; pass++)
            for (int32_t layer = 0; layer < 5; layer++) {
                sl_expert_peek peek;
                assert_true(s.source.peek(s.source.self, layer, &peek));
                assert_true(peek.blocks > 0 && peek.holds >= 4);
                int32_t n = enough && pass == 0 ? 20 : 1 + (int32_t)rng_below(&r, (uint32_t)least(peek.holds, 20));
                rng_ids(&r, ids, n, 20);
                assert_int_equal(store_run(&s, layer, ids, n, SL_ORDER_READY, n), 0);
                check_seen(&s, layer, &peek);
                assert_true(!enough || pass == 0 || peek.all_resident);
            }
        assert_true(s.e->classes > 1);
        store_free(&s);
        model_free(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(least_recently_used_goes_first),
        cmocka_unit_test(slots_grow_as_needed_up_to_the_budget),
        cmocka_unit_test(max_bytes_is_a_cap_below_the_budget),
        cmocka_unit_test(what_cannot_run_is_refused_with_the_least),
        cmocka_unit_test(slabs_follow_demand_between_classes),
        cmocka_unit_test(a_slab_with_reads_in_flight_is_not_stolen),
        cmocka_unit_test(shrinking_gives_slabs_to_others_down_to_the_least),
        cmocka_unit_test(shrinking_takes_the_least_recent_slab_and_waits_for_reads),
        cmocka_unit_test(a_sweep_larger_than_the_cache_still_hits),
        cmocka_unit_test(a_cache_below_one_tokens_demand_is_said_once),
        cmocka_unit_test(a_device_sees_all_slots_in_few_pieces),
        cmocka_unit_test(a_device_may_claim_what_peek_says_whatever_the_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

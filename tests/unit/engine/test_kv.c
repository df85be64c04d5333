/* The pool of KV blocks: counts, growth at the cost of another holder, slabs given back and their numbers used again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/kv_pool.h"

enum { SLAB = 64 << 10, MAX_SLABS = 64 };

/* Stands for the expert cache and for what runs the steps. */
typedef struct world {
    sl_mem *mem;
    engine_kv *kv;
    void *cache[MAX_SLABS]; /* slabs of the other holder */
    int cached, least;
    void *placed[MAX_SLABS];
    int32_t placed_count;
    int reclaims, full_lists;
} world;

static bool place(void *user, void *const *slabs, int32_t count, bool appended, sl_error *err) {
    world *w = user;
    if (appended)
        assert_int_equal(count, w->placed_count + 1);
    w->full_lists += !appended;
    for (int32_t i = 0; i < count; i++) {
        assert_non_null(slabs[i]);
        if (appended && i < count - 1)
            assert_ptr_equal(slabs[i], w->placed[i]);
        w->placed[i] = slabs[i];
    }
    w->placed_count = count;
    return true;
}

static int reclaim(void *user, int slabs) {
    world *w = user;
    int n = 0;
    w->reclaims++;
    for (; n < slabs && w->cached > w->least; n++)
        sl_mem_slab_free(w->mem, w->cache[--w->cached]);
    return n;
}

/* A budget of so many slabs, of which the cache takes all but one. */
static void open_world(world *w, int slabs, int least) {
    *w = (world){.least = least};
    w->mem = sl_mem_new((uint64_t)slabs * SLAB, SLAB, NULL);
    assert_non_null(w->mem);
    engine_kv_options o = {
        .mem = w->mem,
        .layout = {.format = SL_KV_F16, .layers = 2, .kv_heads = 2, .head_dim = 16},
        .place = place,
        .reclaim = reclaim,
        .user = w,
    };
    assert_true(sl_kv_layout_init(&o.layout, SLAB, NULL));
    assert_int_equal(o.layout.blocks_per_slab, 4);
    w->kv = engine_kv_new(&o, NULL);
    assert_non_null(w->kv);
    while (w->cached < slabs - 1)
        assert_non_null(w->cache[w->cached++] = sl_mem_slab(w->mem, SL_USE_SLOTS, NULL));
}

static void close_world(world *w) {
    engine_kv_free(w->kv);
    assert_int_equal(sl_mem_used(w->mem, SL_USE_KV), 0);
    sl_mem_free(w->mem);
}

static void test_take_is_all_or_none(void **state) {
    world w;
    open_world(&w, 4, 1);
    int32_t b[8];
    assert_false(engine_kv_take(w.kv, b, 5));
    assert_true(engine_kv_take(w.kv, b, 4));
    for (int i = 0; i < 4; i++)
        assert_int_equal(b[i], i);
    assert_false(engine_kv_take(w.kv, b + 4, 1));
    engine_kv_unref(w.kv, b + 1, 1);
    assert_true(engine_kv_take(w.kv, b + 4, 1));
    assert_int_equal(b[4], 1);
    close_world(&w);
}

static void test_blocks_do_not_overlap(void **state) {
    world w;
    open_world(&w, 4, 0);
    int32_t b[16];
    assert_true(engine_kv_grow(w.kv, 16, NULL));
    assert_true(engine_kv_take(w.kv, b, 16));
    uint64_t size = engine_kv_layout(w.kv)->block_bytes;
    for (int i = 0; i < 16; i++)
        memset(engine_kv_block(w.kv, b[i]), i + 1, size);
    for (int i = 0; i < 16; i++) {
        const uint8_t *p = engine_kv_block(w.kv, b[i]);
        assert_int_equal(p[0], i + 1);
        assert_int_equal(p[size - 1], i + 1);
        /* Where ops will look for it. */
        assert_ptr_equal(p, (uint8_t *)w.placed[b[i] / 4] + (uint64_t)(b[i] % 4) * size);
    }
    close_world(&w);
}

static void test_growth_takes_from_the_cache_down_to_its_least(void **state) {
    world w;
    open_world(&w, 5, 2);
    int32_t b[16];
    assert_true(engine_kv_grow(w.kv, 9, NULL)); /* 3 slabs */
    assert_int_equal(w.cached, 2);
    sl_error err = {0};
    assert_false(engine_kv_grow(w.kv, 13, &err));
    assert_int_equal(err.code, SL_ERR_BUDGET);
    assert_non_null(strstr(err.message, "320.00 KiB")); /* the budget */
    assert_true(engine_kv_take(w.kv, b, 12));           /* what there was is still good */
    close_world(&w);
}

static void test_empty_slabs_go_back_and_their_numbers_return(void **state) {
    world w;
    open_world(&w, 6, 0);
    int32_t b[20];
    assert_true(engine_kv_grow(w.kv, 20, NULL));
    assert_true(engine_kv_take(w.kv, b, 20));
    engine_kv_unref(w.kv, b + 4, 4);  /* slab 1 */
    engine_kv_unref(w.kv, b + 12, 3); /* slab 3 but for one */
    engine_kv_trim(w.kv, 1);          /* one may stay */
    assert_int_equal(engine_kv_stats_get(w.kv).slabs, 5);
    engine_kv_trim(w.kv, 0);
    engine_kv_stats st = engine_kv_stats_get(w.kv);
    assert_int_equal(st.slabs, 4);
    assert_int_equal(st.blocks_free, 3);
    assert_int_equal(st.blocks_used, 13);
    assert_int_equal(sl_mem_used(w.mem, SL_USE_KV), 4 * SLAB);
    /* Another takes the slab; then the pool grows again: the place is filled by a slab elsewhere. */
    void *other = sl_mem_slab(w.mem, SL_USE_SLOTS, NULL);
    assert_non_null(other);
    assert_true(engine_kv_grow(w.kv, 7, NULL));
    assert_int_equal(w.placed_count, 5);
    assert_ptr_not_equal(w.placed[1], other);
    int32_t again[4];
    assert_true(engine_kv_take(w.kv, again, 4));
    assert_int_equal(again[0], 4);
    assert_ptr_equal(engine_kv_block(w.kv, 4), w.placed[1]);
    close_world(&w);
}

static void test_last_slab_stays(void **state) {
    world w;
    open_world(&w, 3, 2);
    engine_kv_trim(w.kv, 0);
    assert_int_equal(engine_kv_stats_get(w.kv).slabs, 1);
    int32_t b;
    assert_true(engine_kv_take(w.kv, &b, 1));
    close_world(&w);
}

static void test_shared_blocks(void **state) {
    world w;
    open_world(&w, 3, 1);
    int32_t b[2];
    assert_true(engine_kv_take(w.kv, b, 2));
    assert_false(engine_kv_shared(w.kv, b[0]));
    engine_kv_ref(w.kv, b, 2);
    assert_true(engine_kv_shared(w.kv, b[0]));
    engine_kv_unref(w.kv, b, 2);
    assert_false(engine_kv_shared(w.kv, b[0]));
    assert_int_equal(engine_kv_stats_get(w.kv).blocks_used, 2);
    engine_kv_unref(w.kv, b, 2);
    assert_int_equal(engine_kv_stats_get(w.kv).blocks_used, 0);
    close_world(&w);
}

/* Random use against plain counts. */
static void test_random_use(void **state) {
    const unsigned seed = 5;
    print_message("seed %u\n", seed);
    srand(seed);
    world w;
    open_world(&w, 20, 3);
    int refs[128] = {0};
    for (int round = 0; round < 20000; round++) {
        int32_t b[4], n = 1 + rand() % 4, used = 0;
        bool ebb = round / 100 % 2; /* by turns the pool fills and empties */
        int action = ebb ? 3 + rand() % 5 : rand() % 6;
        if (action < 3 && engine_kv_take(w.kv, b, n)) {
            for (int i = 0; i < n; i++) {
                assert_in_range(b[i], 0, SL_COUNT(refs) - 1);
                assert_int_equal(refs[b[i]]++, 0);
            }
        } else if (action == 3 && !ebb) {
            engine_kv_grow(w.kv, 10 * n, NULL);
        } else if (action == 4) {
            engine_kv_trim(w.kv, rand() % 3);
            while (w.cached < 19) { /* the cache takes what it can get */
                void *slab = sl_mem_slab(w.mem, SL_USE_SLOTS, NULL);
                if (!slab)
                    break;
                w.cache[w.cached++] = slab;
            }
        } else {
            int32_t at = rand() % (w.placed_count * 4);
            if (refs[at] > 0 && action == 5 && refs[at] < 3) {
                engine_kv_ref(w.kv, &at, 1);
                refs[at]++;
            } else if (refs[at] > 0) {
                engine_kv_unref(w.kv, &at, 1);
                refs[at]--;
            }
        }
        for (int i = 0; i < 128; i++)
            used += refs[i] > 0;
        engine_kv_stats st = engine_kv_stats_get(w.kv);
        assert_int_equal(st.blocks_used, used);
        assert_int_equal(st.blocks_used + st.blocks_free, st.slabs * 4);
        assert_int_equal(sl_mem_used(w.mem, SL_USE_KV), (uint64_t)st.slabs * SLAB);
    }
    assert_true(w.reclaims > 100 && w.full_lists > 100);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_take_is_all_or_none),
        cmocka_unit_test(test_blocks_do_not_overlap),
        cmocka_unit_test(test_growth_takes_from_the_cache_down_to_its_least),
        cmocka_unit_test(test_empty_slabs_go_back_and_their_numbers_return),
        cmocka_unit_test(test_last_slab_stays),
        cmocka_unit_test(test_shared_blocks),
        cmocka_unit_test(test_random_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

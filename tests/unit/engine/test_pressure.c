/* When expert slabs are given back, and when they are taken again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/pressure.h"

#define MIB(n) ((n)*1048576ull)

enum { SLAB_MIB = 64, LOW_MIB = 512 };

static sl_memory_state left(uint64_t room_mib, double stalled) {
    return (sl_memory_state){true, MIB(16384), MIB(16384), MIB(room_mib), stalled};
}

static engine_pressure start(void) {
    return (engine_pressure){.on = true, .cap = UINT64_MAX};
}

static uint64_t decide(engine_pressure *p, sl_memory_state s, uint64_t held_mib, double at) {
    return engine_pressure_decide(p, &s, MIB(held_mib), MIB(SLAB_MIB), (uint64_t)(at * 1e9));
}

static void with_room_nothing_happens(void **state) {
    engine_pressure p = start();
    assert_int_equal(engine_pressure_low(MIB(16384), MIB(SLAB_MIB)), MIB(LOW_MIB));
    for (int i = 0; i < 100; i++)
        assert_true(decide(&p, left(LOW_MIB + 1, 0.05), 8192, i) == UINT64_MAX);
    sl_memory_state unknown = {.room = 0};
    assert_true(engine_pressure_decide(&p, &unknown, MIB(100), MIB(SLAB_MIB), 1) == UINT64_MAX);
}

static void what_is_short_is_given_back_in_whole_slabs(void **state) {
    engine_pressure p = start();
    /* 768 are wanted, 200 are there. */
    assert_int_equal(decide(&p, left(200, 0), 8192, 1), MIB(8192 - 576));
    /* Waits for memory say the same where the counters do not. */
    engine_pressure q = start();
    assert_int_equal(decide(&q, left(4000, 0.2), 8192, 1), MIB(8192 - 512));
    engine_pressure r = start();
    assert_int_equal(decide(&r, left(0, 0), 100, 1), 0);
}

/* The mean stays high for seconds after one short stall: that must not take everything. */
static void one_stall_is_answered_once(void **state) {
    engine_pressure p = start();
    uint64_t cap = decide(&p, left(4000, 0.5), 8192, 1);
    assert_int_equal(cap, MIB(8192 - 512));
    for (int i = 1; i < 90; i++)
        assert_true(decide(&p, left(4000, 0.3), cap / MIB(1), 1 + i * 0.1) == cap);
    assert_int_equal(decide(&p, left(4000, 0.3), cap / MIB(1), 12), cap - MIB(512)); /* still, or again */
}

static void memory_is_taken_again_slowly_and_only_when_it_is_calm(void **state) {
    engine_pressure p = start();
    uint64_t cap = decide(&p, left(200, 0), 8192, 100);
    assert_true(decide(&p, left(3000, 0), cap / MIB(1), 105) == cap);
    assert_true(decide(&p, left(1000, 0), cap / MIB(1), 120) == cap); /* not twice as much as is low */
    uint64_t more = decide(&p, left(3000, 0), cap / MIB(1), 121);
    assert_true(more > cap && more <= cap + MIB(512));
    assert_true(decide(&p, left(3000, 0), more / MIB(1), 121.5) == more);
    uint64_t all = decide(&p, left(6000, 0), more / MIB(1), 122.6);
    assert_true(all == UINT64_MAX);
    /* New pressure takes it back, and the calm is waited for again. */
    cap = decide(&p, left(100, 0), 8192, 130);
    assert_true(cap < MIB(8192) && decide(&p, left(6000, 0), cap / MIB(1), 139) == cap);
}

static void a_small_group_keeps_little_free(void **state) {
    assert_int_equal(engine_pressure_low(MIB(512), MIB(64)), MIB(64));
    assert_int_equal(engine_pressure_low(MIB(64), MIB(2)), MIB(8));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_room_nothing_happens),
        cmocka_unit_test(what_is_short_is_given_back_in_whole_slabs),
        cmocka_unit_test(one_stall_is_answered_once),
        cmocka_unit_test(memory_is_taken_again_slowly_and_only_when_it_is_calm),
        cmocka_unit_test(a_small_group_keeps_little_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The arithmetic of the budget: what it calls the least suffices and not much less does; slabs hold what they must. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/plan.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static uint64_t slots[256];

/* As experts.h has it: slabs for max(top_k, 2) slots of the largest class. */
static void set_least(engine_plan_input *in) {
    uint64_t most = 0, need = in->top_k > 2 ? (uint64_t)in->top_k : 2;
    for (int i = 0; i < in->layers; i++)
        most = in->slot_bytes[i] > most ? in->slot_bytes[i] : most;
    for (int i = 0; i < ENGINE_SLAB_SIZES; i++) {
        uint64_t per = in->layers ? engine_slab_size(i) / most : 0;
        in->least_experts[i] = per ? (need + per - 1) / per * engine_slab_size(i) : 0;
    }
}

static engine_plan_input moe(int layers, int experts, int top_k, uint64_t slot) {
    engine_plan_input in = {.process = 21 * MIB + 12345,
                            .later = 5 * MIB,
                            .resident = 700 * MIB + 1,
                            .scratch = 60 * MIB,
                            .kv_block = 3 * MIB,
                            .context_blocks = 64,
                            .layers = layers,
                            .experts = experts,
                            .top_k = top_k,
                            .slot_bytes = slots};
    for (int i = 0; i < layers; i++)
        slots[i] = slot;
    set_least(&in);
    return in;
}

/* Bytes the allocator has left for slabs under this plan. */
static uint64_t room(const engine_plan_input *in, const engine_plan *p) {
    uint64_t fixed = p->charge + in->resident + in->scratch;
    return p->budget > fixed ? p->budget - fixed : 0;
}

static int slab_index(uint64_t bytes) {
    for (int i = 0; i < ENGINE_SLAB_SIZES; i++)
        if (engine_slab_size(i) == bytes)
            return i;
    fail_msg("slab of %llu bytes", (unsigned long long)bytes);
    return -1;
}

static void check_fits(const engine_plan_input *in, const engine_plan *p) {
    int i = slab_index(p->slab_bytes);
    assert_true(p->slab_bytes >= in->kv_block);
    assert_true(in->layers == 0 || in->least_experts[i] > 0);
    assert_true(room(in, p) >= p->slab_bytes + in->least_experts[i]);
}

static void test_least_runs_and_less_does_not(void **state) {
    engine_plan_input in = moe(24, 128, 8, 2654208);
    engine_plan p, q;
    sl_error err = {0};
    assert_false(engine_plan_make(&in, 100 * MIB, &p, &err));
    assert_int_equal(err.code, SL_ERR_BUDGET);
    char bytes[32];
    snprintf(bytes, sizeof bytes, "%llu bytes", (unsigned long long)p.least);
    assert_non_null(strstr(err.message, bytes));
    assert_non_null(strstr(err.message, "MiB"));
    assert_true(engine_plan_make(&in, p.least, &q, &err));
    check_fits(&in, &q);
    assert_int_equal(q.least, p.least);
    /* The slack is for what differs between runs: no more than 4 MiB. */
    assert_false(engine_plan_make(&in, p.least - 4 * MIB, &q, &err));
    /* A process that is a little larger next time still runs in what was called the least. */
    in.process += 3 * MIB / 2;
    assert_true(engine_plan_make(&in, p.least, &q, &err));
    check_fits(&in, &q);
}

/* What the caller takes is of the budget: it is in the least and in what the allocator must not hand out. */
static void test_reserve_is_part_of_the_least(void **state) {
    engine_plan_input in = moe(24, 128, 8, 2654208);
    engine_plan p, q;
    sl_error err = {0};
    assert_false(engine_plan_make(&in, 100 * MIB, &p, NULL));
    in.reserve = 20 * MIB;
    assert_false(engine_plan_make(&in, 100 * MIB, &q, &err));
    assert_in_range(q.least, p.least + 20 * MIB, p.least + 22 * MIB);
    assert_non_null(strstr(err.message, "memory budget of 104857600 bytes (100.00 MiB)"));
    assert_true(engine_plan_make(&in, q.least, &p, NULL));
    check_fits(&in, &p);
    assert_true(p.charge >= in.process + in.later + in.reserve);
}

static void test_least_holds_a_whole_context_where_that_is_wanted(void **state) {
    engine_plan_input in = moe(24, 128, 8, 2654208);
    engine_plan p, q;
    assert_false(engine_plan_make(&in, 100 * MIB, &p, NULL));
    assert_true(p.least_kv_blocks < 64);
    in.whole_context = true;
    assert_false(engine_plan_make(&in, p.least, &q, NULL));
    assert_true(q.least > p.least && q.least_kv_blocks >= 64);
    assert_true(engine_plan_make(&in, q.least, &p, NULL));
    check_fits(&in, &p);
    assert_true(p.kv_blocks >= 64);
}

static void test_full_holds_everything(void **state) {
    engine_plan_input in = moe(24, 128, 8, 2654208);
    for (int i = 0; i < 24; i += 3)
        slots[i] = 3 * MIB + 4096; /* two classes */
    set_least(&in);
    engine_plan p;
    assert_true(engine_plan_make(&in, 64 * GIB, &p, NULL));
    assert_int_equal(p.slots, 24 * 128);
    assert_true(p.least < p.suggested && p.suggested < p.full && p.full < 12 * GIB);
    uint64_t full = p.full, suggested = p.suggested;
    assert_true(engine_plan_make(&in, full, &p, NULL));
    assert_int_equal(p.slots, 24 * 128);
    check_fits(&in, &p);
    assert_true(engine_plan_make(&in, suggested, &p, NULL));
    assert_true(p.slots >= 3 * 24 * 8 && p.slots < 24 * 128);
}

static void test_any_budget_gives_a_valid_plan(void **state) {
    const unsigned seed = 99;
    print_message("seed %u\n", seed);
    srand(seed);
    for (int round = 0; round < 300; round++) {
        int layers = rand() % 5 ? 1 + rand() % 90 : 0;
        engine_plan_input in = moe(layers, 2 + rand() % 500, 1 + rand() % 16, 4096 * (1 + (uint64_t)(rand() % 9000)));
        in.kv_block = 64 * (1 + (uint64_t)(rand() % 100000));
        in.resident = (uint64_t)rand() * 3;
        uint64_t last = 0;
        for (uint64_t budget = 200 * MIB; budget < 300 * GIB; budget = budget * 5 / 4 + 4097) {
            engine_plan p;
            sl_error err = {0};
            bool ok = engine_plan_make(&in, budget, &p, &err);
            assert_true(ok == (p.slab_bytes != 0));
            assert_true(ok || (err.code == SL_ERR_BUDGET && budget < p.least));
            assert_true(p.least <= p.suggested && p.suggested <= p.full);
            if (!ok)
                continue;
            check_fits(&in, &p);
            assert_true(p.slots <= (uint64_t)layers * (uint64_t)in.experts);
            assert_true(p.slots + p.slots / 8 + 64 >= last); /* more memory is not much worse: slab sizes change */
            last = p.slots;
            uint64_t slabs = room(&in, &p) / p.slab_bytes;
            assert_true(layers == 0 || slabs <= 4097 || p.slab_bytes == 64 * MIB);
        }
    }
}

static void test_an_expert_larger_than_a_slab(void **state) {
    engine_plan_input in = moe(2, 8, 2, 65 * MIB);
    engine_plan p;
    sl_error err = {0};
    assert_false(engine_plan_make(&in, 64 * GIB, &p, &err));
    assert_int_equal(err.code, SL_ERR_UNSUPPORTED);
    in = moe(0, 0, 0, 0);
    in.kv_block = 65 * MIB;
    assert_false(engine_plan_make(&in, 64 * GIB, &p, &err));
    assert_int_equal(err.code, SL_ERR_UNSUPPORTED);
}

/* Recurrent state of one sequence is part of the least, of what suffices for all, and not of KV's room. */
static void test_recurrent_state(void **state) {
    engine_plan_input in = moe(24, 128, 8, 2654208), plain = in;
    engine_plan p, q;
    sl_error err = {0};
    in.state_block = 4341760; /* 64 value heads of 128 x 128, and a convolution */
    in.state_blocks = 45;
    assert_false(engine_plan_make(&plain, 100 * MIB, &p, &err));
    assert_false(engine_plan_make(&in, 100 * MIB, &q, &err));
    assert_non_null(strstr(err.message, "KV, state and expert slots"));
    uint64_t bytes = in.state_block * 45;
    assert_in_range(q.least - p.least, bytes, bytes + bytes / 2); /* slabs are larger for its sake */
    assert_true(q.full - p.full >= bytes);
    for (uint64_t budget = q.least; budget < q.full + GIB; budget += budget / 3) {
        assert_true(engine_plan_make(&in, budget, &q, &err));
        assert_true(q.slab_bytes >= in.state_block);
        uint64_t per = q.slab_bytes / in.state_block, state_bytes = (45 + per - 1) / per * q.slab_bytes;
        assert_true(room(&in, &q) >= q.slab_bytes + state_bytes + q.least_experts);
        uint64_t kv = q.kv_blocks / (q.slab_bytes / in.kv_block) * q.slab_bytes;
        assert_true(room(&in, &q) >= kv + state_bytes + q.least_experts);
    }
    in.state_block = 65 * MIB;
    assert_false(engine_plan_make(&in, 100 * GIB, &q, &err));
    assert_int_equal(err.code, SL_ERR_UNSUPPORTED);
}

static void test_dense_model(void **state) {
    engine_plan_input in = moe(0, 0, 0, 0);
    in.kv_block = 100 << 10;
    engine_plan p;
    assert_true(engine_plan_make(&in, 8 * GIB, &p, NULL));
    assert_int_equal(p.slots, 0);
    assert_int_equal(p.slab_bytes, 2 * MIB);
    assert_true(engine_plan_make(&in, p.least, &p, NULL));
    check_fits(&in, &p);
}

static void test_process_is_measured(void **state) {
    uint64_t before = engine_resident_now();
    char *p = malloc(32 * MIB);
    assert_non_null(p);
    memset(p, 1, 32 * MIB);
    uint64_t after = engine_resident_now();
    assert_true(before > 256 << 10);
    assert_true(after >= before + 31 * MIB);
    free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_least_runs_and_less_does_not),
        cmocka_unit_test(test_reserve_is_part_of_the_least),
        cmocka_unit_test(test_least_holds_a_whole_context_where_that_is_wanted),
        cmocka_unit_test(test_full_holds_everything),
        cmocka_unit_test(test_any_budget_gives_a_valid_plan),
        cmocka_unit_test(test_an_expert_larger_than_a_slab),
        cmocka_unit_test(test_recurrent_state),
        cmocka_unit_test(test_dense_model),
        cmocka_unit_test(test_process_is_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

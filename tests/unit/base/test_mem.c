/* Budgeted memory against a model of its arithmetic: random spans, slabs, charges, frees and trims. */
#include "support_base.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { HELD = 64 };

/* What is held, and what the allocator must say about it. */
typedef struct model {
    sl_mem *m;
    rng r;
    uint64_t budget, slab_bytes;
    struct {
        uint8_t *p; /* NULL: a charge */
        uint64_t bytes, counted;
        sl_use use;
        enum { SPAN, SLAB, CHARGE } kind;
        uint8_t fill;
    } held[HELD];
    int count;
    uint64_t used[SL_USE_COUNT], empty, peak; /* empty: slabs */
} model;

static uint64_t in_use(const model *x) {
    uint64_t sum = 0;
    for (int i = 0; i < SL_USE_COUNT; i++)
        sum += x->used[i];
    return sum;
}

static uint64_t total(const model *x) {
    return in_use(x) + x->empty * x->slab_bytes;
}

static void check_numbers(const model *x) {
    for (int i = 0; i < SL_USE_COUNT; i++)
        assert_int_equal(sl_mem_used(x->m, (sl_use)i), x->used[i]);
    assert_int_equal(sl_mem_used(x->m, SL_USE_COUNT), total(x));
    assert_int_equal(sl_mem_peak(x->m), x->peak);
    assert_true(total(x) <= x->budget);
}

/* First and last bytes: two blocks that overlap would spoil each other's. */
static void stamp(uint8_t *p, uint64_t bytes, uint8_t fill) {
    uint64_t n = bytes < 256 ? bytes : 256;
    memset(p, fill, n);
    memset(p + bytes - n, fill, n);
}

static void check_stamp(const uint8_t *p, uint64_t bytes, uint8_t fill) {
    uint64_t n = bytes < 256 ? bytes : 256;
    for (uint64_t i = 0; i < n; i++) {
        assert_int_equal(p[i], fill);
        assert_int_equal(p[bytes - 1 - i], fill);
    }
}

/* The model's side of taking: does it fit, and how many empty slabs give way? */
static bool model_take(model *x, uint64_t bytes) {
    while (x->empty && total(x) + bytes > x->budget)
        x->empty--;
    return total(x) + bytes <= x->budget;
}

static void keep(model *x, uint8_t *p, uint64_t bytes, uint64_t counted, sl_use use, int kind) {
    uint8_t fill = (uint8_t)(1 + rng_below(&x->r, 255));
    x->held[x->count].p = p;
    x->held[x->count].bytes = bytes;
    x->held[x->count].counted = counted;
    x->held[x->count].use = use;
    x->held[x->count].kind = kind;
    x->held[x->count].fill = fill;
    x->count++;
    x->used[use] += counted;
    if (total(x) > x->peak)
        x->peak = total(x);
    if (p)
        stamp(p, bytes, fill);
}

static void check_refusal(const model *x, const sl_error *err) {
    assert_int_equal(err->code, SL_ERR_BUDGET);
    char budget[32];
    snprintf(budget, sizeof budget, "%llu", (unsigned long long)x->budget);
    assert_non_null(strstr(err->message, budget));
}

static void take_span(model *x) {
    uint64_t bytes = 1 + rng_below(&x->r, rng_below(&x->r, 8) ? 300000 : 5000000);
    uint64_t counted = sl_round_up(bytes, 4096);
    sl_use use = (sl_use)rng_below(&x->r, SL_USE_COUNT);
    sl_error err = {0};
    bool fits = model_take(x, counted);
    uint8_t *p = sl_mem_span(x->m, bytes, use, &err);
    assert_int_equal(p != NULL, fits);
    if (!p) {
        check_refusal(x, &err);
        return;
    }
    assert_int_equal((uintptr_t)p % (bytes >= 2 << 20 ? 2 << 20 : 4096), 0);
    for (uint64_t i = 0; i < bytes; i++)
        if (p[i])
            fail_msg("byte %llu of a span is not zero", (unsigned long long)i);
    keep(x, p, bytes, counted, use, SPAN);
}

static void take_slab(model *x) {
    sl_use use = (sl_use)rng_below(&x->r, SL_USE_COUNT);
    sl_error err = {0};
    bool reuse = x->empty > 0, fits = reuse || model_take(x, x->slab_bytes);
    uint8_t *p = sl_mem_slab(x->m, use, &err);
    assert_int_equal(p != NULL, fits);
    if (!p) {
        check_refusal(x, &err);
        return;
    }
    assert_int_equal((uintptr_t)p % (x->slab_bytes >= 2 << 20 ? 2 << 20 : 4096), 0);
    x->empty -= reuse;
    keep(x, p, x->slab_bytes, x->slab_bytes, use, SLAB);
}

static void take_charge(model *x) {
    uint64_t bytes = rng_below(&x->r, 700000);
    sl_use use = (sl_use)rng_below(&x->r, SL_USE_COUNT);
    sl_error err = {0};
    bool fits = model_take(x, bytes);
    assert_int_equal(sl_mem_charge(x->m, bytes, use, &err), fits);
    if (fits)
        keep(x, NULL, bytes, bytes, use, CHARGE);
    else
        check_refusal(x, &err);
}

static void give_back(model *x, int i) {
    if (x->held[i].p)
        check_stamp(x->held[i].p, x->held[i].bytes, x->held[i].fill);
    x->used[x->held[i].use] -= x->held[i].counted;
    if (x->held[i].kind == SPAN)
        sl_mem_span_free(x->m, x->held[i].p);
    else if (x->held[i].kind == SLAB) {
        sl_mem_slab_free(x->m, x->held[i].p);
        x->empty++;
    } else
        sl_mem_uncharge(x->m, x->held[i].counted, x->held[i].use);
    x->held[i] = x->held[--x->count];
}

static void random_step(model *x) {
    switch (rng_below(&x->r, x->count == HELD ? 4 : 10)) {
    case 0:
        sl_mem_trim(x->m);
        x->empty = 0;
        break;
    case 1:
    case 2:
    case 3:
        if (x->count)
            give_back(x, (int)rng_below(&x->r, (uint64_t)x->count));
        break;
    case 4:
    case 5:
        take_span(x);
        break;
    case 6:
        take_charge(x);
        break;
    default:
        take_slab(x);
        break;
    }
}

static void the_budget_is_exact(void **state) {
    static const struct {
        uint64_t budget, slab;
    } cases[] = {{4u << 20, 64u << 10}, {(16u << 20) + 12345, 1u << 20}, {(20u << 20) - 1, 4u << 20}, {0, 64u << 10}};
    for (size_t n = 0; n < 2 * SL_COUNT(cases); n++) {
        size_t c = n / 2;
        model x = {.r = {77 + c}, .budget = cases[c].budget, .slab_bytes = cases[c].slab};
        print_message("seed %llu\n", (unsigned long long)x.r.state);
        sl_error err = {0};
        x.m = n % 2 ? sl_mem_new_gathered(x.budget, x.slab_bytes, 3, &err) : sl_mem_new(x.budget, x.slab_bytes, &err);
        assert_non_null(x.m);
        assert_int_equal(sl_mem_budget(x.m), x.budget);
        assert_int_equal(sl_mem_slab_bytes(x.m), x.slab_bytes);
        for (int i = 0; i < 1500; i++) {
            random_step(&x);
            check_numbers(&x);
        }
        while (x.count > 5) /* the rest goes with the allocator */
            give_back(&x, 0);
        check_numbers(&x);
        sl_mem_free(x.m);
    }
}

static void the_whole_budget_can_be_had(void **state) {
    sl_error err = {0};
    sl_mem *m = sl_mem_new(8 * 65536, 65536, &err);
    void *slab[8];
    for (int i = 0; i < 8; i++)
        assert_non_null(slab[i] = sl_mem_slab(m, SL_USE_KV, &err));
    assert_null(sl_mem_slab(m, SL_USE_KV, &err));
    assert_int_equal(err.code, SL_ERR_BUDGET);
    assert_false(sl_mem_charge(m, 1, SL_USE_OTHER, &err));
    assert_true(sl_mem_charge(m, 0, SL_USE_OTHER, &err));
    /* Empty slabs give way to a span. */
    for (int i = 0; i < 8; i++)
        sl_mem_slab_free(m, slab[i]);
    assert_int_equal(sl_mem_used(m, SL_USE_COUNT), 8 * 65536);
    void *span = sl_mem_span(m, 8 * 65536, SL_USE_WEIGHTS, &err);
    assert_non_null(span);
    sl_mem_span_free(m, span);
    assert_int_equal(sl_mem_used(m, SL_USE_COUNT), 0);
    assert_int_equal(sl_mem_peak(m), 8 * 65536);
    sl_mem_free(m);
}

static void absurd_sizes_are_errors(void **state) {
    static const uint64_t slabs[] = {0, 1, 4096, 65535, 65537, 3u << 20, 128u << 20, UINT64_MAX};
    for (size_t i = 0; i < SL_COUNT(slabs); i++) {
        sl_error err = {0};
        assert_null(sl_mem_new(1u << 30, slabs[i], &err));
        assert_int_equal(err.code, SL_ERR_ARGUMENT);
    }
    sl_error err = {0};
    sl_mem *m = sl_mem_new(UINT64_MAX, 65536, &err);
    static const uint64_t spans[] = {0, UINT64_MAX, UINT64_MAX - 4095, UINT64_MAX / 2, UINT64_MAX / 4, 1ull << 60};
    for (size_t i = 0; i < SL_COUNT(spans); i++) {
        err = (sl_error){0};
        assert_null(sl_mem_span(m, spans[i], SL_USE_OTHER, &err));
        assert_true(err.code == SL_ERR_ARGUMENT || err.code == SL_ERR_MEMORY);
    }
    assert_int_equal(sl_mem_used(m, SL_USE_COUNT), 0);
    assert_true(sl_mem_charge(m, UINT64_MAX, SL_USE_OTHER, &err));
    assert_false(sl_mem_charge(m, 1, SL_USE_OTHER, &err));
    sl_mem_uncharge(m, UINT64_MAX, SL_USE_OTHER);
    sl_mem_span_free(m, NULL);
    sl_mem_slab_free(m, NULL);
    sl_mem_free(m);
    sl_mem_free(NULL);
}

typedef struct client {
    sl_mem *m;
    uint64_t seed;
    bool wrong;
} client;

/* Takes and gives back; each block keeps its own stamp while others come and go. */
static void *use_memory(void *arg) {
    client *c = arg;
    rng r = {c->seed};
    uint8_t *slab[4] = {0}, *span[4] = {0};
    for (int i = 0; i < 600; i++) {
        uint64_t k = rng_below(&r, 4);
        uint8_t mark = (uint8_t)(c->seed * 16 + k);
        if (slab[k]) {
            c->wrong |= slab[k][0] != mark || slab[k][65535] != mark;
            sl_mem_slab_free(c->m, slab[k]);
            slab[k] = NULL;
        } else if ((slab[k] = sl_mem_slab(c->m, SL_USE_SLOTS, NULL)))
            slab[k][0] = slab[k][65535] = mark;
        if (span[k]) {
            c->wrong |= span[k][99] != mark;
            sl_mem_span_free(c->m, span[k]);
            span[k] = NULL;
        } else if ((span[k] = sl_mem_span(c->m, 100, SL_USE_SCRATCH, NULL)))
            span[k][99] = mark;
        if (i % 50 == 0)
            sl_mem_trim(c->m);
        if (sl_mem_charge(c->m, 1000, SL_USE_OTHER, NULL))
            sl_mem_uncharge(c->m, 1000, SL_USE_OTHER);
        c->wrong |= sl_mem_used(c->m, SL_USE_COUNT) > sl_mem_budget(c->m);
    }
    for (int k = 0; k < 4; k++) {
        sl_mem_slab_free(c->m, slab[k]);
        sl_mem_span_free(c->m, span[k]);
    }
    return NULL;
}

static void share(sl_mem *m) {
    enum { THREADS = 4 };
    pthread_t t[THREADS];
    client c[THREADS];
    for (int i = 0; i < THREADS; i++) {
        c[i] = (client){m, (uint64_t)i + 1, false};
        assert_int_equal(pthread_create(&t[i], NULL, use_memory, &c[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(t[i], NULL);
        assert_false(c[i].wrong);
    }
    sl_mem_trim(m);
    for (int i = 0; i <= SL_USE_COUNT; i++)
        assert_int_equal(sl_mem_used(m, (sl_use)i), 0);
    assert_in_range(sl_mem_peak(m), 65536, 12 * 65536);
    sl_mem_free(m);
}

static void threads_share_it(void **state) {
    share(sl_mem_new(12 * 65536, 65536, NULL));
    share(sl_mem_new_gathered(12 * 65536, 65536, 4, NULL));
}

static void threads_share_it_while_slabs_are_touched(void **state) {
    enum { THREADS = 3 };
    sl_mem *m = sl_mem_new(7 * (2 << 20), 2 << 20, NULL);
    sl_mem_ahead(m, 2 * (2 << 20), 6 * (2 << 20));
    pthread_t t[THREADS];
    client c[THREADS];
    for (int i = 0; i < THREADS; i++) {
        c[i] = (client){m, (uint64_t)i + 1, false};
        assert_int_equal(pthread_create(&t[i], NULL, use_memory, &c[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(t[i], NULL);
        assert_false(c[i].wrong);
    }
    sl_mem_free(m);
}

/* Whatever the order of taking and giving back: a device that sees 16 pieces of memory sees every slab of the budget.
 */
static void gathered_slabs_lie_in_few_mappings(void **state) {
    enum { SLABS = 1000, MAPPINGS = 16 };
    sl_mem *m = sl_mem_new_gathered(SLABS * 65536, 65536, MAPPINGS, NULL);
    static uint8_t *slab[SLABS];
    rng r = {5};
    void *seen[MAPPINGS + 1];
    int mappings = 0;
    for (int i = 0; i < 5 * SLABS; i++) {
        uint64_t k = rng_below(&r, SLABS);
        if (i < SLABS)
            k = (uint64_t)i;
        if (slab[k]) {
            sl_mem_slab_free(m, slab[k]);
            slab[k] = NULL;
            if (i % 7 == 0)
                sl_mem_trim(m);
            continue;
        }
        assert_non_null(slab[k] = sl_mem_slab(m, SL_USE_SLOTS, NULL));
        void *base;
        uint64_t bytes;
        assert_true(sl_mem_find(m, slab[k] + 65535, &base, &bytes));
        assert_true(slab[k] >= (uint8_t *)base && slab[k] + 65536 <= (uint8_t *)base + bytes);
        int at = 0;
        while (at < mappings && seen[at] != base)
            at++;
        seen[at] = base;
        mappings += at == mappings;
        assert_in_range(mappings, 1, MAPPINGS);
    }
    for (int i = 0; i < SLABS; i++) /* no two share memory */
        if (slab[i])
            memset(slab[i], i % 251, 65536);
    for (int i = 0; i < SLABS; i++)
        assert_true(!slab[i] || (slab[i][0] == i % 251 && slab[i][65535] == i % 251));
    sl_mem_free(m);
}

/* Given back, its pages are gone (they come back as zeros), and the mapping stays for what was wrapped. */
static void a_gathered_slab_given_back_holds_no_memory(void **state) {
    sl_mem *m = sl_mem_new_gathered(8 * 65536, 65536, 2, NULL);
    uint8_t *slab = sl_mem_slab(m, SL_USE_SLOTS, NULL);
    uint64_t before = sl_mem_unmapped(m);
    memset(slab, 7, 65536);
    sl_mem_slab_free(m, slab);
    sl_mem_trim(m);
    assert_int_equal(sl_mem_used(m, SL_USE_COUNT), 0);
    assert_int_equal(sl_mem_unmapped(m), before);
    uint8_t *again = sl_mem_slab(m, SL_USE_KV, NULL);
    assert_ptr_equal(again, slab);
    assert_true(again[0] == 0 && again[65535] == 0);
    sl_mem_free(m);
}

static void a_pointer_is_found_in_its_block_until_that_is_given_back(void **state) {
    sl_mem *m = sl_mem_new(64 << 20, 2 << 20, NULL);
    uint8_t *span = sl_mem_span(m, 10000, SL_USE_SCRATCH, NULL), *slab = sl_mem_slab(m, SL_USE_SLOTS, NULL);
    void *base;
    uint64_t bytes, before = sl_mem_unmapped(m);
    assert_true(sl_mem_find(m, span + 9999, &base, &bytes));
    assert_ptr_equal(base, span);
    assert_int_equal(bytes, 12288);
    assert_true(sl_mem_find(m, slab + (2 << 20) - 1, &base, &bytes));
    assert_ptr_equal(base, slab);
    assert_false(sl_mem_find(m, slab - 1, &base, &bytes) && base == slab);
    assert_false(sl_mem_find(m, &base, &base, &bytes));
    sl_mem_slab_free(m, slab); /* kept for reuse: still mapped */
    assert_int_equal(sl_mem_unmapped(m), before);
    assert_false(sl_mem_find(m, slab, &base, &bytes));
    sl_mem_trim(m);
    assert_int_equal(sl_mem_unmapped(m), before + 1);
    sl_mem_span_free(m, span);
    assert_int_equal(sl_mem_unmapped(m), before + 2);
    sl_mem_free(m);
}

/* ---- slabs touched ahead ---------------------------------------------------------------------------------------- */

enum { LARGE = 2 << 20 };

/* Until the thread has begun what is wanted. */
static void await_bytes(sl_mem *m, uint64_t bytes) {
    for (int i = 0; i < 10000 && sl_mem_used(m, SL_USE_COUNT) != bytes; i++)
        usleep(1000);
    assert_int_equal(sl_mem_used(m, SL_USE_COUNT), bytes);
}

#ifdef __linux__
/* qemu's user mode says yes to populating and does nothing. */
static bool populating_works(void) {
    unsigned char there = 0;
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    int said = madvise(p, 4096, 23 /* MADV_POPULATE_WRITE */);
    assert_int_equal(mincore(p, 4096, &there), 0);
    munmap(p, 4096);
    return said != 0 || (there & 1);
}
#endif

static void expect_resident(void *p, uint64_t bytes) {
#ifdef __linux__
    static unsigned char resident[LARGE / 4096];
    assert_int_equal(mincore(p, bytes, resident), 0);
    bool works = populating_works();
    if (!works)
        printf("SKIP: populating memory does nothing here: whether it was touched is not looked at\n");
    for (size_t i = 0; works && i < bytes / 4096; i++)
        assert_true(resident[i] & 1);
#endif
    for (uint64_t i = 0; i < bytes; i++)
        assert_int_equal(((uint8_t *)p)[i], 0);
}

static void slabs_are_touched_ahead_counted_and_give_way(void **state) {
    sl_mem *m = sl_mem_new(8 * LARGE, LARGE, NULL);
    sl_mem_ahead(m, 3 * LARGE, 5 * LARGE);
    await_bytes(m, 3 * LARGE);
    void *slab[4];
    for (int i = 0; i < 4; i++) { /* more are made, but never more than five in all; one may still be in work */
        slab[i] = sl_mem_slab(m, SL_USE_SLOTS, NULL);
        assert_non_null(slab[i]);
        await_bytes(m, (uint64_t)(i + 4 < 5 ? i + 4 : 5) * LARGE);
        expect_resident(slab[i], LARGE);
    }
    assert_int_equal(sl_mem_used(m, SL_USE_SLOTS), 4 * LARGE);
    void *more[3];
    for (int i = 0; i < 3; i++) /* what is taken beyond is as without it */
        assert_non_null(more[i] = sl_mem_slab(m, SL_USE_KV, NULL));
    sl_mem_slab_free(m, more[1]);
    sl_mem_slab_free(m, more[2]);
    for (int i = 0; i < 4; i++)
        sl_mem_slab_free(m, slab[i]);
    void *span = sl_mem_span(m, 7 * LARGE, SL_USE_WEIGHTS, NULL);
    assert_non_null(span);
    assert_int_equal(sl_mem_used(m, SL_USE_COUNT), 8 * LARGE);
    sl_mem_span_free(m, span);
    await_bytes(m, 4 * LARGE); /* one in use and three ahead */
    sl_mem_trim(m);
    assert_int_equal(sl_mem_used(m, SL_USE_COUNT), LARGE);
    sl_mem_slab_free(m, sl_mem_slab(m, SL_USE_KV, NULL));
    usleep(20000);
    assert_int_equal(sl_mem_used(m, SL_USE_COUNT), 2 * LARGE); /* after a trim no more */
    sl_mem_free(m);
}

/* Whoever asks gets it, also while the last of the budget is being touched. */
static void what_is_touched_ahead_never_refuses_anybody(void **state) {
    rng r = {3};
    for (int round = 0; round < 60; round++) {
        sl_mem *m = sl_mem_new(6 * LARGE, LARGE, NULL);
        sl_mem_ahead(m, 6 * LARGE, 6 * LARGE);
        usleep((unsigned)rng_below(&r, 1500));
        uint64_t spans = rng_below(&r, 7);
        assert_true(!spans || sl_mem_span(m, spans * LARGE, SL_USE_WEIGHTS, NULL));
        for (uint64_t i = spans; i < 6; i++)
            assert_non_null(sl_mem_slab(m, SL_USE_SLOTS, NULL));
        assert_null(sl_mem_slab(m, SL_USE_SLOTS, NULL));
        assert_int_equal(sl_mem_used(m, SL_USE_COUNT), 6 * LARGE);
        assert_int_equal(sl_mem_peak(m), 6 * LARGE);
        sl_mem_free(m); /* also while it is at work */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_budget_is_exact),
        cmocka_unit_test(the_whole_budget_can_be_had),
        cmocka_unit_test(absurd_sizes_are_errors),
        cmocka_unit_test(a_pointer_is_found_in_its_block_until_that_is_given_back),
        cmocka_unit_test(threads_share_it),
        cmocka_unit_test(slabs_are_touched_ahead_counted_and_give_way),
        cmocka_unit_test(what_is_touched_ahead_never_refuses_anybody),
        cmocka_unit_test(threads_share_it_while_slabs_are_touched),
        cmocka_unit_test(gathered_slabs_lie_in_few_mappings),
        cmocka_unit_test(a_gathered_slab_given_back_holds_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

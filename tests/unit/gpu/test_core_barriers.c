/* Barriers inferred from the ranges that lists read and write. */
#include "support_lists.h"

#include <string.h>

/* ---- barriers ---------------------------------------------------------------------------------------------------- */

static void expect_list(sl_gpu_list *l, const char *commands) {
    bench_submit(l);
    assert_string_equal(fake_last_list(), commands);
}

static void a_read_waits_for_the_write_before(void **state) {
    bench b = bench_open();
    sl_gpu_list *l = begin(&b, NULL);
    add(l, &b, b.a, b.b, b.out);
    add(l, &b, b.out, b.b, b.a); /* reads out; and writes a, which was read */
    expect_list(l, "dispatch add | barrier | dispatch add");
    bench_close(&b);
}

static void a_write_waits_for_reads_and_writes(void **state) {
    bench b = bench_open();
    sl_gpu_buffer *low = view(b.out, 0, 16), *high = view(b.out, 16, 16);
    sl_gpu_list *l = begin(&b, NULL);
    add(l, &b, b.a, b.b, low);
    add(l, &b, b.a, b.b, low); /* write after write */
    add(l, &b, b.a, low, high);
    add(l, &b, b.b, b.b, low); /* write after read */
    expect_list(l, "dispatch add | barrier | dispatch add | barrier | dispatch add | barrier | dispatch add");
    sl_gpu_buffer_free(low);
    sl_gpu_buffer_free(high);
    bench_close(&b);
}

static void ranges_apart_may_overlap_in_time(void **state) {
    bench b = bench_open();
    sl_gpu_buffer *parts[4];
    sl_gpu_list *l = begin(&b, NULL);
    for (uint64_t i = 0; i < 4; i++) {
        parts[i] = view(b.out, i * 16, 16);
        add(l, &b, b.a, b.b, parts[i]);
    }
    add(l, &b, b.a, b.a, b.b); /* b was read */
    add(l, &b, parts[0], parts[1], parts[2]);
    expect_list(l, "dispatch add | dispatch add | dispatch add | dispatch add | barrier | dispatch add | dispatch add");
    for (int i = 0; i < 4; i++)
        sl_gpu_buffer_free(parts[i]);
    bench_close(&b);
}

/* Neighbours that touch do not conflict, and one byte in common does. */
static void ranges_are_exact(void **state) {
    bench b = bench_open();
    sl_gpu_buffer *low = view(b.out, 0, 20), *high = view(b.out, 20, 20), *over = view(b.out, 16, 8);
    sl_gpu_list *l = begin(&b, NULL);
    add(l, &b, b.a, b.b, low);
    add(l, &b, b.a, b.b, high);
    add(l, &b, b.a, b.b, over);
    expect_list(l, "dispatch add | dispatch add | barrier | dispatch add");
    sl_gpu_buffer_free(low);
    sl_gpu_buffer_free(high);
    sl_gpu_buffer_free(over);
    bench_close(&b);
}

/* The same bytes through two wraps, and through a view of one. */
static void wrapped_memory_is_known_by_its_address(void **state) {
    static float space[32];
    sl_error err = {0};
    bench b = bench_open();
    sl_gpu_buffer *first = sl_gpu_wrap(b.g, space, 64, &err), *second = sl_gpu_wrap(b.g, space + 8, 64, &err);
    sl_gpu_buffer *apart = view(second, 32, 32);
    sl_gpu_list *l = begin(&b, NULL);
    add(l, &b, b.a, b.b, first);
    add(l, &b, b.a, b.b, apart);
    add(l, &b, second, b.b, b.out);
    expect_list(l, "dispatch add | dispatch add | barrier | dispatch add");
    sl_gpu_buffer_free(first);
    sl_gpu_buffer_free(second);
    sl_gpu_buffer_free(apart);
    bench_close(&b);
}

static void private_memory_is_known_by_itself(void **state) {
    sl_error err = {0};
    fake.discrete = true;
    bench b = bench_open();
    sl_gpu_buffer *x = sl_gpu_alloc(b.g, 64, SL_GPU_PRIVATE, &err), *y = sl_gpu_alloc(b.g, 64, SL_GPU_PRIVATE, &err);
    sl_gpu_list *l = begin(&b, NULL);
    add(l, &b, b.a, b.b, x);
    add(l, &b, b.a, b.b, y);
    add(l, &b, x, b.b, b.out);
    expect_list(l, "dispatch add | dispatch add | barrier | dispatch add");
    sl_gpu_buffer_free(x);
    sl_gpu_buffer_free(y);
    bench_close(&b);
}

static void copies_fills_and_own_barriers(void **state) {
    sl_error err = {0};
    bench b = bench_open();
    sl_gpu_list *l = begin(&b, NULL);
    assert_true(sl_gpu_encode_barrier(l, &err)); /* nothing before */
    assert_true(sl_gpu_encode_fill(l, b.a, 0, 64, 0, &err));
    assert_true(sl_gpu_encode_fill(l, b.b, 0, 64, 0, &err));
    assert_true(sl_gpu_encode_copy(l, b.out, 0, b.a, 0, 64, &err));
    assert_true(sl_gpu_encode_barrier(l, &err));
    assert_true(sl_gpu_encode_barrier(l, &err));
    add(l, &b, b.out, b.b, b.a);
    expect_list(l, "fill | fill | barrier | copy | barrier | dispatch add");
    bench_close(&b);
}

/* Against an oracle: for random lists of copies, each pair in conflict has a barrier between. */
static void random_lists_have_every_barrier(void **state) {
    enum { COPIES = 60, ROUNDS = 40 };
    uint64_t seed = 0x9e3779b97f4a7c15;
    print_message("seed %llx\n", (unsigned long long)seed);
    bench b = bench_open();
    sl_gpu_buffer *buffers[3] = {b.a, b.b, b.out};
    for (int round = 0; round < ROUNDS; round++) {
        struct {
            int to, from;
            uint64_t to_at, from_at, n;
        } done[COPIES];
        sl_gpu_list *l = begin(&b, NULL);
        int count = 0;
        while (count < COPIES) {
            sl_error err = {0};
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            int to = (int)(seed >> 33) % 3, from = (int)(seed >> 40) % 3;
            uint64_t n = 4 + 4 * ((seed >> 45) % 2), to_at = 4 * ((seed >> 50) % 15), from_at = 4 * ((seed >> 55) % 15);
            if (!sl_gpu_encode_copy(l, buffers[to], to_at, buffers[from], from_at, n, &err))
                continue;
            done[count].to = to;
            done[count].from = from;
            done[count].to_at = to_at;
            done[count].from_at = from_at;
            done[count++].n = n;
        }
        bench_submit(l);
        int epoch[COPIES], at = 0, now = 0;
        for (const char *p = fake_last_list(); p; p = strchr(p, '|') ? strchr(p, '|') + 2 : NULL) {
            if (strncmp(p, "barrier", 7) == 0)
                now++;
            else
                epoch[at++] = now;
        }
        assert_int_equal(at, COPIES);
        int needed = 0;
        for (int i = 0; i < COPIES; i++) {
            for (int k = 0; k < i; k++) {
#define MEET(x, xat, y, yat)                                                                                           \
    (done[i].x == done[k].y && done[i].xat < done[k].yat + done[k].n && done[k].yat < done[i].xat + done[i].n)
                bool conflict =
                    MEET(from, from_at, to, to_at) || MEET(to, to_at, from, from_at) || MEET(to, to_at, to, to_at);
                needed += conflict;
                if (conflict && epoch[i] == epoch[k])
                    fail_msg("round %d: copies %d and %d have no barrier between", round, k, i);
            }
        }
        assert_true(needed > 0 && now < COPIES - 1);
    }
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_read_waits_for_the_write_before),      TEST(a_write_waits_for_reads_and_writes),
        TEST(ranges_apart_may_overlap_in_time),       TEST(ranges_are_exact),
        TEST(wrapped_memory_is_known_by_its_address), TEST(private_memory_is_known_by_itself),
        TEST(copies_fills_and_own_barriers),          TEST(random_lists_have_every_barrier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

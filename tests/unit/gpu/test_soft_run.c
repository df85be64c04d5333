/* The soft device: positions, barriers, SIMD-groups, threadgroup memory, order of threads, several workers. */
#include "support_soft.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seeds[] = {0, 1, 2, 12345};

/* Runs `test` in every order of threads, with one worker and with three, with checks and without; no report. */
static void in_every_way(void (*test)(soft_rig *r)) {
    for (int check = 0; check < 2; check++)
        for (size_t i = 0; i < SL_COUNT(seeds); i++) {
            soft_rig r;
            if (!soft_rig_open(&r, i & 1 ? 3 : 1, check, seeds[i]))
                return;
            test(&r);
            if (r.log[0])
                fail_msg("seed %llu, check %d: %s", (unsigned long long)seeds[i], check, r.log);
            soft_rig_close(&r);
        }
}

static void must_run(soft_rig *r, const soft_run *run) {
    if (!soft_rig_run(r, run))
        fail_msg("%s", r->error.message);
}

/* Each thread writes all it knows of itself to its own row. */
static void positions(soft_rig *r) {
    enum { N = 5 * 3 * 2 * 7 * 3 * 2 };
    soft_rig_kernel(r,
                    "KERNEL {\n"
                    "  const soft_thread *t = T; const soft_group *g = t->group;\n"
                    "  uint32_t group = (g->position[2] * g->groups[1] + g->position[1]) * g->groups[0] + "
                    "g->position[0];\n"
                    "  uint32_t *o = BUFFER(uint32_t, 0) + (group * g->thread_count + t->index) * 12;\n"
                    "  for (int i = 0; i < 3; i++) { o[i] = t->position[i]; o[3 + i] = g->position[i]; }\n"
                    "  o[6] = t->index; o[7] = t->lane; o[8] = t->simdgroup; o[9] = g->thread_count;\n"
                    "  o[10] = g->simdgroups; o[11] = g->threads[0] * 100 + g->threads[1] * 10 + g->threads[2];\n"
                    "}\n",
                    NULL, 0);
    gpu_memory m = soft_rig_memory(r, N * 48);
    memset(m.host, 0xEE, N * 48);
    must_run(r, &(soft_run){.groups = {5, 3, 2},
                            .threads = {7, 3, 2},
                            .bound = {{.slot = 0, .memory = &m, .length = N * 48, .writes = true}},
                            .bound_count = 1});
    const uint32_t *o = (const uint32_t *)m.host;
    for (uint32_t g = 0; g < 30; g++)
        for (uint32_t i = 0; i < 42; i++, o += 12) {
            uint32_t want[12] = {i % 7, i / 7 % 3, i / 21, g % 5, g / 5 % 3, g / 15, i, i % 32, i / 32, 42, 2, 732};
            assert_memory_equal(o, want, sizeof want);
        }
    gpu_driver_soft.free(r->device, &m);
}

static void test_positions(void **state) {
    (void)state;
    in_every_way(positions);
}

/* A tree sum in threadgroup memory with a barrier per level, and one through SIMD-groups; 200 threads: the last
 * SIMD-group is short. */
static void sums(soft_rig *r) {
    soft_rig_kernel(r,
                    "KERNEL {\n"
                    "  SHARED(0, float, a, 256); SHARED(1, float, part, 8);\n"
                    "  float *dynamic = (float *)G->threadgroup[0];\n"
                    "  uint32_t i = T->index, g = G->position[0];\n"
                    "  a[i] = BUFFER(const float, 0)[g * 200 + i];\n"
                    "  if (i + 200 < 256) a[i + 200] = 0;\n"
                    "  dynamic[i] = a[i];\n"
                    "  barrier();\n"
                    "  for (uint32_t s = 128; s; s /= 2) { if (i < s) a[i] += a[i + s]; barrier(); }\n"
                    "  float v = simd_sum(dynamic[199 - i]);\n"
                    "  if (T->lane == 0) part[T->simdgroup] = v;\n"
                    "  barrier();\n"
                    "  if (i == 0) { float s = 0; for (uint32_t k = 0; k < G->simdgroups; k++) s += part[k];\n"
                    "    BUFFER(float, 1)[2 * g] = a[0]; BUFFER(float, 1)[2 * g + 1] = s; }\n"
                    "}\n",
                    NULL, 0);
    gpu_memory in = soft_rig_memory(r, 9 * 200 * 4), out = soft_rig_memory(r, 9 * 8);
    float *x = (float *)in.host, *y = (float *)out.host;
    for (int i = 0; i < 1800; i++)
        x[i] = (float)(i * 7 % 101);
    memset(y, 0xFF, 72);
    must_run(r, &(soft_run){.groups = {9},
                            .threads = {200},
                            .bound = {{.slot = 0, .memory = &in, .length = 7200},
                                      {.slot = 1, .memory = &out, .length = 72, .writes = true}},
                            .bound_count = 2,
                            .lengths = {{0, 800}},
                            .length_count = 1});
    for (int g = 0; g < 9; g++) {
        float want = 0;
        for (int i = 0; i < 200; i++)
            want += x[g * 200 + i];
        assert_true(y[2 * g] == want);
        assert_true(y[2 * g + 1] == want);
    }
    gpu_driver_soft.free(r->device, &in);
    gpu_driver_soft.free(r->device, &out);
}

static void test_sums(void **state) {
    (void)state;
    in_every_way(sums);
}

/* Lanes that returned take no part; values published earlier stay valid over the next call. */
static void lanes(soft_rig *r) {
    soft_rig_kernel(r,
                    "KERNEL {\n"
                    "  uint32_t l = T->lane, before, active;\n"
                    "  if (l % 3 == 2) return;\n"
                    "  uint32_t v = l + 1, u = l * 1000;\n"
                    "  auto p = LANES(v, before);\n"
                    "  auto q = LANES(u, active);\n"
                    "  uint32_t a = 0, b = 0;\n"
                    "  for (int i = 0; i < 32; i++) if (active >> i & 1) {\n"
                    "    a += *(const uint32_t *)p[i]; b += *(const uint32_t *)q[i]; }\n"
                    "  uint32_t *o = BUFFER(uint32_t, 0) + 3 * T->index;\n"
                    "  o[0] = active; o[1] = a; o[2] = b;\n"
                    "}\n",
                    NULL, 0);
    gpu_memory m = soft_rig_memory(r, 64 * 12);
    memset(m.host, 0, 64 * 12);
    must_run(r, &(soft_run){.threads = {64},
                            .bound = {{.slot = 0, .memory = &m, .length = 64 * 12, .writes = true}},
                            .bound_count = 1});
    uint32_t mask = 0, a = 0, b = 0;
    for (uint32_t l = 0; l < 32; l++)
        if (l % 3 != 2) {
            mask |= 1u << l;
            a += l + 1;
            b += l * 1000;
        }
    for (uint32_t i = 0; i < 64; i++) {
        const uint32_t *o = (const uint32_t *)m.host + 3 * i;
        bool gone = i % 32 % 3 == 2;
        assert_int_equal(o[0], gone ? 0 : mask);
        assert_int_equal(o[1], gone ? 0 : a);
        assert_int_equal(o[2], gone ? 0 : b);
    }
    gpu_driver_soft.free(r->device, &m);
}

static void test_lanes(void **state) {
    (void)state;
    in_every_way(lanes);
}

/* Without checks a SIMD function in a branch is among the lanes that are there, and the lanes meet again after it. */
static void test_divergence_rejoins(void **state) {
    (void)state;
    for (size_t i = 0; i < SL_COUNT(seeds); i++) {
        soft_rig r;
        if (!soft_rig_open(&r, 1, false, seeds[i]))
            return;
        soft_rig_kernel(&r,
                        "KERNEL {\n"
                        "  uint32_t l = T->lane; float a = -1, b = -1;\n"
                        "  if (l < 8)\n"
                        "    a = simd_sum(1);\n"
                        "  else if (l < 20) {\n"
                        "    a = simd_sum(1);\n"
                        "    a += simd_sum(100);\n"
                        "  }\n"
                        "  for (uint32_t n = 0; n < l % 4; n++)\n"
                        "    b = simd_sum(1);\n"
                        "  float c = simd_sum(1);\n"
                        "  float *o = BUFFER(float, 0) + 3 * l; o[0] = a; o[1] = b; o[2] = c;\n"
                        "}\n",
                        NULL, 0);
        gpu_memory m = soft_rig_memory(&r, 32 * 12);
        must_run(&r, &(soft_run){.threads = {32},
                                 .bound = {{.slot = 0, .memory = &m, .length = 32 * 12, .writes = true}},
                                 .bound_count = 1});
        for (int l = 0; l < 32; l++) {
            const float *o = (const float *)m.host + 3 * l;
            assert_true(o[0] == (l < 8 ? 8 : l < 20 ? 1212 : -1));
            assert_true(o[1] == (l % 4 == 0 ? -1 : l % 4 == 1 ? 24 : l % 4 == 2 ? 16 : 8));
            assert_true(o[2] == 32);
        }
        gpu_driver_soft.free(r.device, &m);
        soft_rig_close(&r);
    }
}

/* Seed 0 runs threads and groups ascending, 1 reversed, another shuffled, each the same every time. */
static void test_order(void **state) {
    (void)state;
    uint32_t seen[4][128];
    for (int i = 0; i < 4; i++) {
        static const uint64_t seed[] = {0, 1, 7, 7};
        soft_rig r;
        if (!soft_rig_open(&r, 1, false, seed[i]))
            return;
        soft_rig_kernel(
            &r, "KERNEL { BUFFER(uint32_t, 0)[1 + BUFFER(uint32_t, 0)[0]++] = G->position[0] * 32 + T->index; }\n",
            NULL, 0);
        gpu_memory m = soft_rig_memory(&r, 129 * 4);
        memset(m.host, 0, 129 * 4);
        must_run(&r, &(soft_run){.groups = {4},
                                 .threads = {32},
                                 .bound = {{.slot = 0, .memory = &m, .length = 129 * 4, .writes = true}},
                                 .bound_count = 1});
        memcpy(seen[i], m.host + 4, sizeof seen[i]);
        gpu_driver_soft.free(r.device, &m);
        soft_rig_close(&r);
    }
    bool all[128] = {false};
    for (uint32_t i = 0; i < 128; i++) {
        assert_int_equal(seen[0][i], i);
        assert_int_equal(seen[1][i], 127 - i);
        all[seen[2][i]] = true;
    }
    for (int i = 0; i < 128; i++)
        assert_true(all[i]);
    assert_true(memcmp(seen[2], seen[0], sizeof seen[0]) != 0);
    assert_memory_equal(seen[2], seen[3], sizeof seen[0]);
}

/* 1024 threads of three dimensions, two thousand groups, atomics over all workers. */
static void test_many(void **state) {
    (void)state;
    soft_rig r;
    if (!soft_rig_open(&r, 4, false, 0))
        return;
    soft_rig_kernel(&r, "KERNEL { barrier(); atomic_add(BUFFER(int, 0) + T->simdgroup, 1); barrier(); }\n", NULL, 0);
    gpu_memory m = soft_rig_memory(&r, 32 * 4);
    memset(m.host, 0, 128);
    must_run(&r, &(soft_run){.groups = {20, 10, 10},
                             .threads = {16, 16, 4},
                             .bound = {{.slot = 0, .memory = &m, .length = 128, .writes = true}},
                             .bound_count = 1});
    for (int i = 0; i < 32; i++)
        assert_int_equal(((int *)m.host)[i], 2000 * 32);
    gpu_driver_soft.free(r.device, &m);
    soft_rig_close(&r);
}

/* Copies that run ahead: at once, or with an odd seed at the wait for their lot; never later. 80 words a thread are
 * more than are kept back. */
static void copies(soft_rig *r) {
    enum { THREADS = 40, WORDS = 80 };
    soft_rig_kernel(
        r,
        "FN void copy(uint32_t *to, const uint32_t *from) { if (!api->copy_begin(to, from, 4)) *to = *from; }\n"
        "KERNEL {\n"
        "  SHARED(0, uint32_t, a, 40 * 80);\n"
        "  const uint32_t *x = BUFFER(const uint32_t, 0) + T->index * 80;\n"
        "  uint32_t *o = BUFFER(uint32_t, 1) + T->index * 80, *mine = a + T->index * 80;\n"
        "  for (int i = 0; i < 80; i++) { mine[i] = 1; }\n"
        "  for (int i = 0; i < 78; i++) { copy(mine + i, x + i); if (i == 1 || i == 3) api->copy_commit(); }\n"
        "  api->copy_commit();\n"
        "  api->copy_wait(2); o[0] = mine[0]; o[1] = mine[1]; o[2] = mine[2];\n"
        "  api->copy_wait(1); o[3] = mine[3]; o[4] = mine[4];\n"
        "  copy(mine + 78, x + 78);\n"
        "  api->copy_wait(0);\n"
        "  for (int i = 5; i < 80; i++) o[i] = mine[i];\n"
        "}\n",
        NULL, 0);
    gpu_memory x = soft_rig_memory(r, THREADS * WORDS * 4), y = soft_rig_memory(r, THREADS * WORDS * 4);
    uint32_t *from = (uint32_t *)x.host, *to = (uint32_t *)y.host;
    for (uint32_t i = 0; i < THREADS * WORDS; i++)
        from[i] = 1000 + i;
    memset(to, 0, THREADS * WORDS * 4);
    must_run(r, &(soft_run){.threads = {THREADS},
                            .bound = {{.slot = 0, .memory = &x, .length = THREADS * WORDS * 4},
                                      {.slot = 1, .memory = &y, .length = THREADS * WORDS * 4, .writes = true}},
                            .bound_count = 2});
    bool late = soft_of(r->device)->seed % 2;
    for (uint32_t i = 0; i < THREADS * WORDS; i++) {
        uint32_t w = i % WORDS;
        bool there = w == 2 || w == 4 || w == 78 ? !late : w != 79; /* 79: nobody copies it */
        assert_int_equal(to[i], there ? from[i] : 1);
    }
    gpu_driver_soft.free(r->device, &x);
    gpu_driver_soft.free(r->device, &y);
}

static void test_copies_that_run_ahead(void **state) {
    (void)state;
    in_every_way(copies);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_divergence_rejoins),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_copies_that_run_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

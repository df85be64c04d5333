/* A kernel that crashes, loops for ever or asks for what cannot be fails its list; the process and the device go on. */
#include "support_soft.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct crash {
    const char *body, *want;
    uint32_t threads;
} crash;

static const crash crashes[] = {
    {"KERNEL {\n  if (G->position[0] == 2 && T->index == 5)\n    *(volatile int *)8 = 1;\n}\n",
     "k: t.metal:3: access to an address that is not mapped (thread (5,0,0) of threadgroup (2,0,0))", 64},
#if defined(__x86_64__)
    {"KERNEL {\n  *(double *)(0x123456789abcdefull << 8) = 1;\n}\n",
     "k: t.metal:2: access to an address that is not aligned", 1},
    /* elsewhere a division by zero is zero */
    {"KERNEL {\n  volatile int zero = 0;\n  if (T->index == 1)\n    BUFFER(int, 0)[0] = 7 / zero;\n}\n",
     "k: t.metal:4: integer division by zero or overflow (thread (1,0,0)", 64},
#endif
    {"__attribute__((noinline)) int deep(int n) {\n  volatile char room[1000]; room[n % 1000] = 1;\n"
     "  return deep(n + 1) + room[5];\n}\nKERNEL {\n  BUFFER(int, 0)[0] = deep(0);\n}\n",
     "stack overflow", 32},
    {"KERNEL {\n  barrier();\n  if (T->index == 9)\n    __builtin_trap();\n  barrier();\n}\n",
     "k: t.metal:4: a place that cannot be reached", 64},
    {"KERNEL {\n  if (T->index == 3) api->fail(77, \"no such tile\");\n}\n", "k: line 77: no such tile (thread (3,0,0)",
     64},
    {"KERNEL {\n  SHARED(0, char, a, 20000); SHARED(1, char, b, 20000); a[0] = b[0] = 1;\n}\n",
     "line 2: threadgroup memory above 32768 bytes", 32},
};

static bool run(soft_rig *r, gpu_memory *m, uint32_t threads) {
    return soft_rig_run(r, &(soft_run){.groups = {4},
                                       .threads = {threads},
                                       .bound = {{.slot = 0, .memory = m, .length = 64, .writes = true}},
                                       .bound_count = 1});
}

static void test_crashes(void **state) {
    (void)state;
    for (size_t i = 0; i < SL_COUNT(crashes); i++) {
        soft_rig r;
        if (!soft_rig_open(&r, 2, false, 0))
            return;
        gpu_memory m = soft_rig_memory(&r, 64);
        soft_rig_kernel(&r, crashes[i].body, NULL, 0);
        for (int again = 0; again < 3; again++) {
            assert_false(run(&r, &m, crashes[i].threads));
            assert_int_equal(r.error.code, SL_ERR_DEVICE);
            if (!strstr(r.error.message, crashes[i].want))
                fail_msg("%s\nwithout: %s", r.error.message, crashes[i].want);
        }
        soft_rig_kernel(&r, "KERNEL { atomic_add(BUFFER(int, 0), 1); }\n", NULL, 0);
        memset(m.host, 0, 64);
        assert_true(run(&r, &m, 64));
        assert_int_equal(*(int *)m.host, 256);
        gpu_driver_soft.free(r.device, &m);
        soft_rig_close(&r);
    }
}

/* What is not a kernel's fault goes to the handler that was there before the device. */
static volatile int seen;
static sigjmp_buf back;

static void jump(int number) {
    seen = number;
    siglongjmp(back, 1);
}

static void test_other_faults_pass(void **state) {
    struct sigaction mine = {.sa_handler = jump}, old, ours;
    soft_rig r;
    (void)state;
    sigemptyset(&mine.sa_mask);
    sigaction(SIGFPE, &mine, &old);
    if (!soft_rig_open(&r, 1, false, 0))
        return;
    sigaction(SIGFPE, NULL, &ours);
    assert_true(ours.sa_flags & SA_SIGINFO);
    if (!sigsetjmp(back, 1))
        raise(SIGFPE);
    assert_int_equal(seen, SIGFPE);
    soft_rig_close(&r);
    sigaction(SIGFPE, &old, NULL);
}

static const char *const endless[] = {
#if SUPPORT_STOPS_LOOPS
    "KERNEL {\n  volatile int n = 0;\n  for (;;) n++;\n}\n",
    "KERNEL {\n  volatile int n = 0;\n  if (T->index == 5)\n    for (;;) n++;\n  barrier();\n}\n",
#endif
    "KERNEL {\n  for (;;) barrier();\n}\n",
    "KERNEL {\n  for (;;) if (simd_sum(1) < 0) break;\n}\n",
};

/* A group that goes on for ever is stopped after the device's limit, wherever it is. */
static void test_endless(void **state) {
    (void)state;
    for (int check = 0; check < 2; check++)
        for (size_t i = 0; i < SL_COUNT(endless); i++) {
            soft_rig r;
            if (!soft_rig_open(&r, 2, check, 0))
                return;
            soft_of(r.device)->limit_ns = 50000000;
            gpu_memory m = soft_rig_memory(&r, 64);
            soft_rig_kernel(&r, endless[i], NULL, 0);
            assert_false(run(&r, &m, 64));
            assert_int_equal(r.error.code, SL_ERR_TIMEOUT);
            assert_non_null(strstr(r.error.message, "k: stopped: a threadgroup took more than"));
            gpu_driver_soft.free(r.device, &m);
            soft_rig_close(&r);
        }
}

/* In checking mode an access is judged before it is made: no signal is needed. */
static void test_wild_pointer_checked(void **state) {
    soft_rig r;
    (void)state;
    if (!soft_rig_open(&r, 1, true, 0))
        return;
    gpu_memory m = soft_rig_memory(&r, 64);
    soft_rig_kernel(&r, "KERNEL {\n  BUFFER(volatile int, 0)[1 << 28] = 1;\n}\n", NULL, 0);
    assert_false(run(&r, &m, 1));
    assert_non_null(strstr(r.error.message, "t.metal:2: out of bounds: write of 4 bytes"));
    gpu_driver_soft.free(r.device, &m);
    soft_rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_crashes), cmocka_unit_test(test_other_faults_pass),
                                       cmocka_unit_test(test_endless), cmocka_unit_test(test_wild_pointer_checked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

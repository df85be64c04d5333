/* Checking mode: each fault is reported with its line, what was touched and by whom, in every order of threads; the
 * sound twin of each kernel is not reported. */
#include "support_soft.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seeds[] = {0, 1, 2, 99};

typedef struct fault {
    const char *name;
    const char *body;    /* line 1 is "KERNEL {" */
    const char *want[4]; /* all in the first report; NULL: none is to be made */
    uint32_t groups, threads;
} fault;

/* Slot 0: 64 floats for reading; 1: 4096 bytes for writing, in the same allocation just behind; 2: bytes; dynamic
 * threadgroup memory 0 of 256 bytes. */
static const fault faults[] = {
    {"read past the end",
     "KERNEL {\n  uint32_t i = T->index;\n  BUFFER(float, 1)[i] =\n    BUFFER(const float, 0)[i + 1];\n}\n",
     {"k: t.metal:4: out of bounds: read of 4 bytes, buffer 0 (in) at byte 256 (index 64) of 256, by thread (63,0,0) "
      "of threadgroup (0,0,0)"},
     1,
     64},
    {"read before the start",
     "KERNEL {\n  int i = (int)T->index;\n  BUFFER(float, 1)[i] = BUFFER(const float, 0)[i - 1];\n}\n",
     {"t.metal:3: out of bounds: read of 4 bytes, buffer 0 (in) at byte -4 (index -1) of 256, by thread (0,0,0)"},
     1,
     32},
    {"write past the end",
     "KERNEL {\n  if (T->index == 7)\n    BUFFER(float, 1)[1024] = 1;\n}\n",
     {"t.metal:3: out of bounds: write of 4 bytes, buffer 1 (out) at byte 4096 (index 1024) of 4096, by thread "
      "(7,0,0)"},
     1,
     32},
    {"straddles the end",
     "struct __attribute__((packed)) loose { float v; };\nKERNEL {\n"
     "  BUFFER(float, 1)[0] = ((const loose *)(BUFFER(const char, 2) + 9))->v;\n}\n",
     {"t.metal:3: out of bounds: read of 4 bytes, buffer 2 (bytes) at byte 9 (index 2) of 12"},
     1,
     1},
    {"slot that is not bound",
     "KERNEL {\n  BUFFER(float, 1)[0] =\n BUFFER(const float, 5)[3];\n}\n",
     {"t.metal:3: out of bounds: read of 4 bytes, address 0xc, which is in nothing that is bound"},
     1,
     1},
    {"copied past the end",
     "KERNEL {\n  struct big { char c[400]; };\n  *BUFFER(big, 1) =\n   *BUFFER(const big, 0);\n}\n",
     {"out of bounds: read of 400 bytes, buffer 0 (in) at byte 0"},
     1,
     1},
    {"written though const",
     "KERNEL {\n  BUFFER(float, 0)[3] = 1;\n}\n",
     {"t.metal:2: bound for reading only: write of 4 bytes, buffer 0 (in) at byte 12 (index 3)"},
     1,
     1},
    {"threadgroup variable past the end",
     "KERNEL {\n  SHARED(0, float, a, 32); SHARED(1, float, b, 32);\n  a[T->index + 1] = 1;\n  b[T->index] = 2;\n}\n",
     {"t.metal:3: out of bounds: write of 4 bytes, threadgroup variable a at byte 128 (index 32) of 128, by thread "
      "(31,0,0)"},
     1,
     32},
    {"dynamic threadgroup memory before the start",
     "KERNEL {\n  SHARED(0, float, a, 32); a[T->index] = 0;\n  ((int *)G->threadgroup[0])[(int)T->index - 1] = 1;\n}\n",
     {"t.metal:3: out of bounds: write of 4 bytes, threadgroup memory 0 (scratch) at byte -4 (index -1) of 256"},
     1,
     32},
    {"uninitialised threadgroup memory",
     "KERNEL {\n  SHARED(0, float, a, 64);\n  a[T->index] = 1;\n  barrier();\n  if (T->index < 32)\n"
     "    BUFFER(float, 1)[T->index] = a[63 - T->index] +\n      a[40 - T->index];\n}\n",
     {"t.metal:6: uninitialised: read of 4 bytes, threadgroup variable a at byte "},
     1,
     32},
    {"uninitialised in the second group only",
     "KERNEL {\n  SHARED(0, float, a, 1);\n  if (G->position[0] == 0 && T->index == 0) a[0] = 1;\n  barrier();\n"
     "  BUFFER(float, 1)[G->position[0] * 32 + T->index] =\n    a[0];\n}\n",
     {"t.metal:6: uninitialised: read of 4 bytes, threadgroup variable a at byte 0 (index 0) of 4",
      "of threadgroup (1,0,0)"},
     2,
     32},
    {"added to before it was set",
     "KERNEL {\n  SHARED(0, float, a, 32);\n  a[T->index] += 1;\n}\n",
     {"t.metal:3: uninitialised: read of 4 bytes, threadgroup variable a"},
     1,
     32},
    {"no barrier between write and read",
     "KERNEL {\n  SHARED(0, float, a, 64); a[T->index] = 0; barrier();\n  a[T->index] = 1;\n  float v =\n    "
     "a[T->index ^ 32];\n"
     "  BUFFER(float, 1)[T->index] = v;\n}\n",
     {": race: ", "threadgroup variable a at byte ", "no barrier between them orders this memory"},
     1,
     64},
    {"no barrier between read and write",
     "KERNEL {\n  SHARED(0, float, a, 64);\n  a[T->index] = 1;\n  barrier();\n  float v = a[T->index ^ 1];\n"
     "  a[T->index] = v;\n}\n",
     {"race: ", "threadgroup variable a", " at t.metal:"},
     1,
     64},
    {"a barrier that orders device memory only",
     "KERNEL {\n  SHARED(0, float, a, 64);\n  a[T->index] = 1;\n  barrier(1);\n"
     "  BUFFER(float, 1)[T->index] = a[T->index ^ 1];\n}\n",
     {"t.metal:5: race: read of 4 bytes, threadgroup variable a", "after a write at t.metal:3"},
     1,
     64},
    {"a barrier of the SIMD-group between SIMD-groups",
     "KERNEL {\n  SHARED(0, float, a, 64); a[T->index] = 0; barrier();\n  a[T->index] = 1;\n  simd_barrier();\n"
     "  BUFFER(float, 1)[T->index] = a[T->index ^ 32];\n}\n",
     {": race: ", "threadgroup variable a"},
     1,
     64},
    {"two threads write one byte of a word",
     "KERNEL {\n  SHARED(0, char, a, 64);\n  a[T->index / 2] = 1;\n}\n",
     {"t.metal:3: race: write of 1 bytes, threadgroup variable a at byte ", "after a write at t.metal:3"},
     1,
     64},
    {"device memory within a group",
     "KERNEL {\n  float *o = BUFFER(float, 1);\n  o[T->index] = 1;\n  barrier(2);\n  o[64 + T->index] = o[T->index ^ "
     "1];\n}\n",
     {"t.metal:5: race: read of 4 bytes, buffer 1 (out) at byte ", "after a write at t.metal:3"},
     1,
     64},
    {"device memory between groups",
     "KERNEL {\n  barrier(3);\n  if (T->index == 3)\n    BUFFER(float, 1)[5] = 1;\n}\n",
     {"t.metal:4: race: write of 4 bytes, buffer 1 (out) at byte 20 (index 5)", "nothing orders threadgroups"},
     2,
     32},
    {"one group reads what another writes",
     "KERNEL {\n  float *o = BUFFER(float, 1);\n  o[G->position[0]] = 1;\n"
     "  o[100 + G->position[0]] =\n    o[3 - G->position[0]];\n}\n",
     {": race: ", "buffer 1 (out)", "nothing orders threadgroups"},
     4,
     1},
    {"an atomic and a plain access",
     "KERNEL {\n  int *o = BUFFER(int, 1);\n  if (T->index == 0)\n    o[0] = 1;\n  else\n    atomic_add(o, 1);\n}\n",
     {": race: ", "buffer 1 (out) at byte 0", "atomic access"},
     1,
     32},
    {"atomic past the end",
     "KERNEL {\n  atomic_add(BUFFER(int, 1) + 1024 + T->index, 1);\n}\n",
     {"out of bounds: atomic access of 4 bytes, buffer 1 (out) at byte 4096"},
     1,
     1},
    {"a barrier some never reach",
     "KERNEL {\n  if (T->index >= 40) return;\n  barrier();\n}\n",
     {"k: line 3: barrier not reached by all: thread (0,0,0) of threadgroup (0,0,0) is here, thread (40,0,0) has "
      "returned"},
     1,
     64},
    {"different barriers",
     "KERNEL {\n  if (T->index < 32)\n    barrier();\n  else\n    barrier();\n}\n",
     {"line 3: threads at different barriers: thread (0,0,0) of threadgroup (0,0,0) is here, thread (32,0,0) waits at "
      "threadgroup_barrier at line 5"},
     1,
     64},
    {"a SIMD function in a branch",
     "KERNEL {\n  if (T->lane < 8)\n    BUFFER(float, 1)[T->lane] = simd_sum(1);\n  barrier();\n}\n",
     {"line 3: SIMD-group function under divergence: thread (0,0,0) of threadgroup (0,0,0) is here, thread (8,0,0) "
      "waits at threadgroup_barrier at line 4"},
     1,
     32},
    {"two SIMD functions at once",
     "KERNEL {\n  float v;\n  if (T->lane & 1)\n    v = simd_sum(1);\n  else\n    v = simd_sum(2);\n"
     "  BUFFER(float, 1)[T->lane] = v;\n}\n",
     {"line 4: SIMD-group function under divergence: ", "waits in a SIMD-group function at line 6"},
     1,
     32},
    {"a thread's own array past its end",
     "KERNEL {\n  int own[4] = {1, 2, 3, 4};\n  int i = (int)T->index;\n  BUFFER(int, 1)[i] =\n"
     "    own[i == 9 ? BUFFER(const int, 2)[1] + 2 : 0];\n}\n",
     {"k: t.metal:5: out of bounds: index 4 of 'int", ", by thread (9,0,0) of threadgroup (0,0,0)"},
     1,
     32},
    {"a thread's own array, written before its start",
     "KERNEL {\n  float own[4] = {};\n  int i = (int)T->index;\n  own[i - 1] =\n    2;\n"
     "  BUFFER(float, 1)[i] = own[1] + own[2];\n}\n",
     {"k: t.metal:4: out of bounds: index -1 of 'float"},
     1,
     1},
    {"from one member of a struct into the next",
     "KERNEL {\n  struct { float a[4], b[4]; } own = {{1, 2, 3, 4}, {5, 6, 7, 8}};\n  float sum = 0;\n"
     "  for (int i = 0; i <= BUFFER(const int, 2)[2] + 1; i++)\n    sum += own.a[i] * own.b[i & 3];\n"
     "  BUFFER(float, 1)[0] = sum;\n}\n",
     {"k: t.metal:5: out of bounds: index 4 of 'float"},
     1,
     1},
    {"from one row of a threadgroup's matrix into the next",
     "typedef float row[4];\nKERNEL {\n  SHARED(0, row, a, 2);\n  if (T->index < 8) a[T->index / 4][T->index % 4] = "
     "1;\n  barrier();\n"
     "  BUFFER(float, 1)[T->index] =\n    a[0][T->index & 7];\n}\n",
     {"k: t.metal:7: out of bounds: index 4 of '"},
     1,
     5},
    {"a thread's own array by a pointer",
     "static float add(const float *v, int n) {\n  float sum = 0;\n  for (int i = 0; i <= n; i++)\n    sum += v[i];\n"
     "  return sum;\n}\nKERNEL {\n  float own[3] = {1, 2, 3};\n  own[T->index % 3] += 1;\n"
     "  BUFFER(float, 1)[T->index] = add(own, BUFFER(const int, 2)[2]);\n}\n",
     {"k: t.metal:4: out of bounds: one of the thread's own arrays", ", by thread (0,0,0) of threadgroup (0,0,0)"},
     1,
     1},
    {"a float at an odd address",
     "KERNEL {\n  BUFFER(float, 1)[T->index] =\n    *(const float *)(BUFFER(const char, 0) + 4 * T->index + (T->index "
     "== "
     "5 ? 2 : 0));\n}\n",
     {"k: t.metal:3: misaligned: 'const float' at an address that is no multiple of 4, buffer 0 (in) at byte 22 (index "
      "5) of 256, by thread (5,0,0) of threadgroup (0,0,0)"},
     1,
     32},
    {"a vector of four where one float may lie",
     "typedef float four __attribute__((ext_vector_type(4)));\nKERNEL {\n  four v = *(const four *)\n"
     "    (BUFFER(const float, 0) + (T->index == 1));\n  BUFFER(float, 1)[T->index] = v.x + v.w;\n}\n",
     {"k: t.metal:3: misaligned: 'const four' (vector of 4 'float' values) at an address that is no multiple of 16, "
      "buffer 0 (in) at byte 4 (index 1) of 256, by thread (1,0,0)"},
     1,
     8},
    {"a half written in the middle of another",
     "KERNEL {\n  SHARED(0, char, a, 64);\n  *(short *)(a + (T->index ? 3 : 0)) = 1;\n}\n",
     {"k: t.metal:3: misaligned: 'short' at an address that is no multiple of 2, threadgroup variable a at byte 3 "
      "(index "
      "1) of 64, by thread (1,0,0)"},
     1,
     2},
    {"a word among a thread's own bytes",
     "KERNEL {\n  struct { int first; char c[12]; } own = {0, {1, 2, 3}};\n  BUFFER(int, 1)[T->index] =\n"
     "    *(int *)(own.c + BUFFER(const int, 2)[0]);\n}\n",
     {"k: t.metal:4: misaligned: 'int' at an address that is no multiple of 4, in the thread's own memory, by thread "
      "(0,0,0)"},
     1,
     1},
    {"a pair stored as a whole",
     "struct alignas(8) pair { float a, b; };\nKERNEL {\n  *BUFFER(pair, 1) = {0, 1};\n"
     "  *(pair *)(BUFFER(float, 1) + 1 + BUFFER(const int, 2)[0] * 2) =\n    *BUFFER(pair, 1);\n}\n",
     {"misaligned: ", "at an address that is no multiple of 8, buffer 1 (out) at byte 12"},
     1,
     1},
    {"an atomic across two words",
     "KERNEL {\n  atomic_add((int *)(BUFFER(char, 1) + 6), 1);\n}\n",
     {"misaligned: ", "at an address that is no multiple of 4, buffer 1 (out) at byte 6 (index 1)"},
     1,
     1},
    {"one past the end of an array of structs",
     "struct four { float v[4]; void add(float x) { for (int i = 0; i < 4; i++) v[i] += x; } };\nKERNEL {\n"
     "  four own[3] = {};\n  for (int i = 0; i <= BUFFER(const int, 2)[2]; i++)\n    own[i].add(1);\n"
     "  BUFFER(float, 1)[T->index] = own[T->index % 3].v[1];\n}\n",
     {"out of bounds: "},
     1,
     1},
    {"a thread's variable read before it was written", /* is NaN */
     "KERNEL {\n  float own[4];\n  own[BUFFER(const int, 2)[0]] = 1;\n  float v = own[BUFFER(const int, 2)[1]];\n"
     "  BUFFER(int, 1)[v != v ? 5000 : 0] = 1;\n}\n",
     {"out of bounds: write of 4 bytes, buffer 1 (out) at byte 20000"},
     1,
     1},
    /* sound ones that resemble the others */
    {"bytes of words, and packed structs anywhere",
     "struct __attribute__((packed)) loose { char c; float v; };\nKERNEL {\n"
     "  const loose *p = (const loose *)BUFFER(const char, 0) + T->index;\n"
     "  BUFFER(float, 1)[T->index] = p->v + ((const char *)BUFFER(const int, 2))[T->index];\n}\n",
     {NULL},
     1,
     12},
    {"a thread's own arrays, all of them",
     "static float add(const float *v, int n) {\n  float sum = 0;\n  for (int i = 0; i < n; i++) sum += v[i];\n"
     "  return sum;\n}\nKERNEL {\n  struct { float a[3], b[3]; } own;\n"
     "  for (int i = 0; i < 3; i++) own.a[i] = own.b[2 - i] = (float)i;\n"
     "  BUFFER(float, 1)[T->index] = add(own.a, 3) + add(&own.b[0], 3) + *(&own.b[3] - 1);\n}\n",
     {NULL},
     1,
     32},
    {"neighbouring bytes",
     "KERNEL {\n  SHARED(0, char, a, 64);\n  a[T->index] = (char)T->index;\n  barrier();\n"
     "  BUFFER(char, 1)[T->index] = a[63 - T->index];\n}\n",
     {NULL},
     1,
     64},
    {"barriers where they belong",
     "KERNEL {\n  SHARED(0, float, a, 64); float *o = BUFFER(float, 1), *s = (float *)G->threadgroup[0];\n"
     "  for (int n = 0; n < 3; n++) {\n    a[T->index] = s[T->index] = n;\n    o[G->position[0] * 64 + T->index] = n;\n"
     "    barrier(3);\n    float v = a[T->index ^ 33] + s[T->index ^ 1] + o[G->position[0] * 64 + (T->index ^ 5)];\n"
     "    barrier(3);\n    o[G->position[0] * 64 + T->index] = v;\n  }\n}\n",
     {NULL},
     4,
     64},
    {"a SIMD-group among itself",
     "KERNEL {\n  SHARED(0, float, a, 64);\n  a[T->index] = 1;\n  simd_barrier();\n  float v = a[T->index ^ 1];\n"
     "  simd_barrier();\n  a[T->index] = v;\n}\n",
     {NULL},
     3,
     64},
    {"atomics of all groups",
     "KERNEL {\n  SHARED(0, int, n, 1);\n  if (T->index == 0) n[0] = 0;\n  barrier();\n  atomic_add(n, 1);\n"
     "  barrier();\n  if (T->index == 0) atomic_add(BUFFER(int, 1), n[0]);\n}\n",
     {NULL},
     5,
     64},
    {"SIMD-groups that branch as a whole",
     "KERNEL {\n  if (T->simdgroup == 1)\n    BUFFER(float, 1)[T->lane] = simd_sum(1);\n  barrier();\n}\n",
     {NULL},
     1,
     64},
    {"lanes that returned before a SIMD function",
     "KERNEL {\n  if (T->index >= 40) return;\n  BUFFER(float, 1)[T->index] = simd_sum(1);\n}\n",
     {NULL},
     1,
     64},
    {"each its own, all bytes of both buffers",
     "KERNEL {\n  uint32_t i = G->position[0] * 64 + T->index;\n"
     "  BUFFER(double, 1)[i] = BUFFER(const float, 0)[T->index] + BUFFER(const int, 2)[2];\n}\n",
     {NULL},
     8,
     64},
};

static const msl_arg args[] = {
    {.arg = {SL_GPU_ARG_READ, 0, 4, 0, false, "in"}, .condition = -1},
    {.arg = {SL_GPU_ARG_WRITE, 1, 4, 0, false, "out"}, .condition = -1},
    {.arg = {SL_GPU_ARG_BYTES, 2, 4, 0, false, "bytes"}, .condition = -1},
    {.arg = {SL_GPU_ARG_THREADGROUP, 0, 4, 0, false, "scratch"}, .condition = -1},
};

static void run_fault(soft_rig *r, const fault *f, uint64_t seed) {
    gpu_memory m = soft_rig_memory(r, 64 + 256 + 4096 + 64);
    memset(m.host, 0, m.bytes);
    int32_t bytes[3] = {1, 2, 3};
    soft_run run = {.groups = {f->groups},
                    .threads = {f->threads},
                    .bound = {{.slot = 0, .memory = &m, .offset = 64, .length = 256},
                              {.slot = 1, .memory = &m, .offset = 320, .length = 4096, .writes = true},
                              {.slot = 2, .bytes = bytes, .length = 12}},
                    .bound_count = 3,
                    .lengths = {{0, 256}},
                    .length_count = 1};
    soft_of(r->device)->seed = seed;
    bool ok = soft_rig_run(r, &run);
    if (ok != !f->want[0])
        fail_msg("%s, seed %llu: %s", f->name, (unsigned long long)seed, ok ? "no report" : r->error.message);
    for (int i = 0; i < 4 && f->want[i]; i++) {
        /* which thread is the first to meet a fault depends on the order */
        char want[300];
        snprintf(want, sizeof want, "%s", f->want[i]);
        char *by = seed && strstr(want, ", by thread") ? strstr(want, ", by thread") : NULL;
        if (by)
            *by = 0;
        if (!strstr(r->error.message, want))
            fail_msg("%s, seed %llu: %s\nwithout: %s", f->name, (unsigned long long)seed, r->error.message, want);
    }
    if (!ok)
        assert_non_null(strstr(r->log, r->error.message));
    gpu_driver_soft.free(r->device, &m);
}

static void test_reports(void **state) {
    soft_rig r;
    (void)state;
    if (!soft_rig_open(&r, 2, true, 0))
        return;
    for (size_t i = 0; i < SL_COUNT(faults); i++) {
        soft_rig_kernel(&r, faults[i].body, args, SL_COUNT(args));
        for (size_t s = 0; s < SL_COUNT(seeds); s++)
            run_fault(&r, &faults[i], seeds[s]);
    }
    soft_rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reports)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

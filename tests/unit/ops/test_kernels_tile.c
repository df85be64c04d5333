/* tile.h, both of its forms: products of fragments whose factors lie either way, rows scaled, in small whole numbers:
 * exact. */
#include "support_kernels.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { N = 16, STRIDE = 24 };

static const uint64_t seed = 20261202;

/* c = by (a b) + a b, where by is a factor for each row. What lies between the rows is no number. */
static const char kernel_text[] =
    "struct memory { half a[16 * 24], b[16 * 24]; float c[16 * 20], by[16 * 12]; };\n"
    "kernel void multiply(device const float *a [[buffer(0)]], device const float *b [[buffer(1)]],\n"
    "                     device float *c [[buffer(2)]], constant int &turned [[buffer(3)]],\n"
    "                     uint l [[thread_index_in_threadgroup]]) {\n"
    "    threadgroup memory m;\n"
    "    for (uint i = l; i < 16 * 24; i += 32) {\n"
    "        m.a[i] = half(i % 24 < 16 ? a[i] : NAN);\n"
    "        m.b[i] = half(i % 24 < 16 ? b[i] : NAN);\n"
    "    }\n"
    "    for (uint i = l; i < 16 * 12; i += 32)\n"
    "        m.by[i] = i % 12 < 8 ? float(i / 12 + 1) : NAN;\n"
    "    for (uint i = l; i < 16 * 20; i += 32)\n"
    "        m.c[i] = -1.0f;\n"
    "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "    tile_half x, w;\n"
    "    tile_float t;\n"
    "    tile_rows by;\n"
    "    tile_zero(t);\n"
    "    tile_load(x, m.a, 24);\n"
    "    if (turned)\n"
    "        tile_load_transposed(w, m.b, 24);\n"
    "    else\n"
    "        tile_load_right(w, m.b, 24);\n"
    "    tile_mma(t, x, w);\n"
    "    tile_rows_load(by, m.by, 12);\n"
    "    tile_scale_rows(t, by);\n"
    "    tile_mma(t, x, w);\n"
    "    tile_store(t, m.c, 20);\n"
    "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "    for (uint i = l; i < 16 * 20; i += 32)\n"
    "        c[i] = m.c[i];\n"
    "}\n";

enum { OUT_STRIDE = 20 };

static void expect(const float *a, const float *b, bool turned, const float *c) {
    for (int r = 0; r < N; r++)
        for (int j = 0; j < OUT_STRIDE; j++) {
            float sum = 0;
            for (int i = 0; i < N && j < N; i++)
                sum += a[r * STRIDE + i] * (turned ? b[j * STRIDE + i] : b[i * STRIDE + j]);
            assert_true(c[r * OUT_STRIDE + j] == (j < N ? sum * (float)(r + 1) + sum : -1));
        }
}

static void multiply(kernels *k, int32_t turned) {
    rng r = {seed + (uint64_t)turned};
    float a[N * STRIDE], b[N * STRIDE], c[N * OUT_STRIDE];
    for (int i = 0; i < N * STRIDE; i++) {
        a[i] = (float)(rng_below(&r, 33) - 16);
        b[i] = (float)(rng_below(&r, 33) - 16);
    }
    memset(c, 0xff, sizeof c);
    const kernel_binding list[] = {in(0, a, sizeof a), in(1, b, sizeof b), out(2, c, sizeof c),
                                   in(3, &turned, sizeof turned)};
    kernels_run(k, &(kernel_call){.entry = "multiply",
                                  .groups = {1, 1, 1},
                                  .threads = {32, 1, 1},
                                  .bindings = list,
                                  .count = SL_COUNT(list)});
    expect(a, b, turned, c);
}

static void run(const char *form) {
    kernels k;
    if (!kernels_open_text(&k, "tile.h", NULL, 0, form, kernel_text))
        skip();
    multiply(&k, 0);
    multiply(&k, 1);
    kernels_close(&k);
}

static void matrices_of_8_by_8_multiply(void **state) {
    run("");
}

static void fragments_in_registers_multiply_the_same(void **state) {
    run("#define SL_TILE_FRAGMENTS\n");
}

int main(void) {
    print_message("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_of_8_by_8_multiply),
        cmocka_unit_test(fragments_in_registers_multiply_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

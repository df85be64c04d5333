/* The prelude's SIMD-group and quad-group functions, atomics and 8 x 8 matrices: 32 threads stand for the lanes. Groups
 * that are full, that began with fewer lanes and that some lanes have left. */
#include "support_prelude.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LANES = 32, SIMD_RESULTS = 40 };

static const char body[] =
    "struct in { float f[32]; int i[32]; uint leave; ushort n; };\n"
    "struct out { float f[32][40]; int i[32][40]; };\n"
    "struct pass { const in *x; out *y; };\n"
    "extern \"C\" void simd(void *p) {\n"
    "    const in &x = *((pass *)p)->x; uint l = MSL_thread_index_in_simdgroup; float *f = ((pass *)p)->y->f[l]; int "
    "*o = ((pass *)p)->y->i[l];\n"
    "    if (x.leave >> l & 1) return;\n"
    "    float v = x.f[l]; int w = x.i[l]; ushort n = x.n;\n"
    "    f[0] = simd_sum(v); f[1] = simd_product(v); f[2] = simd_max(v); f[3] = simd_min(v);\n"
    "    f[4] = simd_prefix_inclusive_sum(v); f[5] = simd_prefix_exclusive_sum(v); f[6] = "
    "simd_prefix_inclusive_product(v); f[7] = simd_prefix_exclusive_product(v);\n"
    "    f[8] = simd_shuffle(v, n); f[9] = simd_shuffle_xor(v, n); f[10] = simd_shuffle_up(v, n); f[11] = "
    "simd_shuffle_down(v, n);\n"
    "    f[12] = simd_shuffle_rotate_up(v, n); f[13] = simd_shuffle_rotate_down(v, n); f[14] = simd_broadcast(v, n); "
    "f[15] = simd_broadcast_first(v);\n"
    "    f[16] = simd_shuffle_and_fill_up(v, -v, n % 8); f[17] = simd_shuffle_and_fill_down(v, -v, n % 8, 8);\n"
    "    f[18] = quad_sum(v); f[19] = quad_max(v); f[20] = quad_shuffle(v, n % 4); f[21] = quad_shuffle_xor(v, n % 4); "
    "f[22] = quad_broadcast(v, n % 4);\n"
    "    f[23] = quad_prefix_exclusive_sum(v); f[24] = simd_sum(half4(v, 1, 2, 3)).z; f[25] = "
    "quad_shuffle_rotate_down(v, 1); f[26] = quad_shuffle_up(v, 1); f[27] = quad_broadcast_first(v);\n"
    "    f[28] = simd_sum(bfloat(w)); f[29] = simd_max(half(w)); f[30] = quad_min(v); f[31] = "
    "quad_prefix_inclusive_product(v);\n"
    "    o[0] = simd_sum(w); o[1] = simd_max(w); o[2] = simd_min(w); o[3] = simd_and(w | 0xffff); o[4] = simd_or(w & "
    "0xffff); o[5] = simd_xor(w);\n"
    "    o[6] = uint(simd_vote::vote_t(simd_ballot(w > 0))); o[7] = simd_any(w > 1000000000); o[8] = simd_all(w > "
    "-2000000000); o[9] = simd_is_first();\n"
    "    o[10] = uint(ulong(simd_active_threads_mask())); o[11] = quad_or(w & 0xff); o[12] = "
    "uint(quad_vote::vote_t(quad_ballot(w > 0))); o[13] = quad_any(w > 0); o[14] = quad_all(w > 0);\n"
    "    o[15] = quad_is_first(); o[16] = int(simd_prefix_exclusive_sum(ulong(1))); o[17] = simd_ballot(true).all(); "
    "o[18] = int(simd_sum(uint(1))); o[19] = int(simd_shuffle(uchar(w), n));\n"
    "    simdgroup_barrier(mem_flags::mem_none); simdgroup_barrier(mem_flags::mem_threadgroup | "
    "mem_flags::mem_device); threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "}\n"
    "struct matrices { float *a, *b, *c, *d; half *ha, *hb, *hd; bfloat *ba, *bb; float *e; int stride; };\n"
    "extern \"C\" void matrix(void *p) {\n"
    "    matrices &m = *(matrices *)p; uint l = MSL_thread_index_in_simdgroup;\n"
    "    simdgroup_float8x8 a, b, c, d; simdgroup_load(a, m.a, m.stride); simdgroup_load(b, m.b, m.stride, ulong2(1, "
    "2)); simdgroup_load(c, m.c, m.stride, ulong2(0), true);\n"
    "    simdgroup_multiply_accumulate(d, a, b, c); simdgroup_store(d, m.d, m.stride);\n"
    "    simdgroup_half8x8 x, y, z; simdgroup_load(x, m.ha, m.stride); simdgroup_load(y, m.hb, m.stride);\n"
    "    simdgroup_multiply(d, x, y); simdgroup_store(d, m.d + 8, m.stride);\n"
    "    simdgroup_multiply_accumulate(z, x, y, make_filled_simdgroup_matrix<half, 8>(half(0.5f))); simdgroup_store(z, "
    "m.hd, m.stride, ulong2(0), true);\n"
    "    simdgroup_bfloat8x8 u, v; simdgroup_load(u, m.ba, m.stride); simdgroup_load(v, m.bb, m.stride);\n"
    "    simdgroup_multiply_accumulate(d, u, v, simdgroup_float8x8(2)); simdgroup_store(d, m.d + 16, m.stride);\n"
    "    simdgroup_float8x8 t; t.thread_elements() = float2(l * 2, l * 2 + 1); simdgroup_store(t, m.e, 8);\n"
    "}\n"
    "struct atomics { atomic_uint u, u2; atomic_int i, i2; atomic_float f; atomic<ulong> w; atomic_bool b; atomic_uint "
    "lock; int sum; int order[32]; };\n"
    "extern \"C\" void atomic_all(void *p) {\n"
    "    atomics &a = *(atomics *)p; uint l = MSL_thread_index_in_simdgroup;\n"
    "    for (int k = 0; k < 100; k++) {\n"
    "        atomic_fetch_add_explicit(&a.u, 1u, memory_order_relaxed); atomic_fetch_sub_explicit(&a.i, 2, "
    "memory_order_relaxed);\n"
    "        atomic_fetch_add_explicit(&a.f, 0.5f, memory_order_relaxed); atomic_fetch_add_explicit(&a.w, 1ul << 32, "
    "memory_order_relaxed);\n"
    "    }\n"
    "    atomic_fetch_or_explicit(&a.u2, 1u << l, memory_order_relaxed); atomic_fetch_max_explicit(&a.i2, int(l) * 7 % "
    "32, memory_order_relaxed);\n"
    "    uint expected = 0; while (!atomic_compare_exchange_weak_explicit(&a.lock, &expected, 1u, "
    "memory_order_relaxed, memory_order_relaxed)) expected = 0;\n"
    "    atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);\n"
    "    int s = *(volatile int *)&a.sum; *(volatile int *)&a.sum = s + int(l);\n"
    "    atomic_store_explicit(&a.lock, 0u, memory_order_seq_cst);\n"
    "    atomic_exchange_explicit(&a.b, true, memory_order_relaxed);\n"
    "}\n"
    "extern \"C\" int atomic_one() {\n"
    "    atomic_int i; atomic_store_explicit(&i, 5, memory_order_relaxed); if (atomic_fetch_add_explicit(&i, 3, "
    "memory_order_relaxed) != 5) return 1;\n"
    "    if (atomic_fetch_min_explicit(&i, 2, memory_order_relaxed) != 8 || atomic_load_explicit(&i, "
    "memory_order_relaxed) != 2) return 2;\n"
    "    if (atomic_fetch_xor_explicit(&i, 3, memory_order_relaxed) != 2 || atomic_fetch_and_explicit(&i, 4, "
    "memory_order_relaxed) != 1) return 3;\n"
    "    atomic_float f; atomic_store_explicit(&f, 1.5f, memory_order_relaxed); if (atomic_exchange_explicit(&f, 2.5f, "
    "memory_order_relaxed) != 1.5f) return 4;\n"
    "    float e = 1; if (atomic_compare_exchange_weak_explicit(&f, &e, 3, memory_order_relaxed, memory_order_relaxed) "
    "|| e != 2.5f) return 5;\n"
    "    atomic_store_explicit(&f, 2.5f, memory_order_relaxed); if (atomic_fetch_sub_explicit(&f, 1.0f, "
    "memory_order_relaxed) != 2.5f || atomic_load_explicit(&f, memory_order_relaxed) != 1.5f) return 7;\n"
    "    atomic<ushort> h; atomic_store_explicit(&h, ushort(65535), memory_order_relaxed); "
    "atomic_fetch_add_explicit(&h, ushort(2), memory_order_relaxed); if (atomic_load_explicit(&h, "
    "memory_order_relaxed) != 1) return 6;\n"
    "    return 0; }\n";

static void *library;

static int build(void **state) {
    (void)state;
    library = prelude_load(body);
    return 0;
}

typedef void (*lane_function)(void *);
static lane_function find(const char *name) {
    lane_function f;
    *(void **)&f = prelude_function(library, name);
    return f;
}

/* ---- SIMD-group functions ---------------------------------------------------------------------------------------- */

typedef struct input {
    float f[LANES];
    int i[LANES];
    uint32_t leave;
    uint16_t n;
} input;
typedef struct output {
    float f[LANES][SIMD_RESULTS];
    int i[LANES][SIMD_RESULTS];
} output;

static float add(float a, float b) {
    return a + b;
}
static float times(float a, float b) {
    return a * b;
}

/* Over lanes [base, base + width) that are in `active`: the butterfly where all 32 are there, else ascending. */
static float reduce(const float *v, uint32_t active, int base, int width, float (*op)(float, float)) {
    float t[LANES], r = 0;
    memcpy(t, v + base, sizeof(float) * (size_t)width);
    if (active == 0xffffffffu) {
        for (int o = width / 2; o; o /= 2)
            for (int i = 0; i < o; i++)
                t[i] = op(t[i], t[i + o]);
        return t[0];
    }
    bool some = false;
    for (int i = base; i < base + width; i++)
        if (active >> i & 1) {
            r = some ? op(r, v[i]) : v[i];
            some = true;
        }
    return r;
}

/* Over the active lanes of [base, end): a doubling scan where all 32 are there, else ascending. */
static float scan(const float *v, uint32_t active, int base, int end, float neutral, float (*op)(float, float)) {
    if (end == base)
        return neutral;
    if (active != 0xffffffffu) {
        uint32_t below = end == LANES ? active : active & ((1u << end) - 1);
        return below >> base ? reduce(v, below, base, end - base, op) : neutral;
    }
    float t[LANES], u[LANES];
    memcpy(t, v, sizeof t);
    for (int o = 1; o < LANES; o *= 2) {
        memcpy(u, t, sizeof u);
        for (int i = base + o; i < LANES; i++)
            u[i] = op(t[i - o], t[i]);
        memcpy(t, u, sizeof t);
    }
    return t[end - 1];
}

static void expect(const output *y, int lane, int k, float want) {
    if (memcmp(&y->f[lane][k], &want, sizeof want) != 0)
        fail_msg("lane %d, result %d: %a, not %a", lane, k, y->f[lane][k], want);
}

static void expect_int(const output *y, int lane, int k, int want) {
    if (y->i[lane][k] != want)
        fail_msg("lane %d, integer result %d: %x, not %x", lane, k, y->i[lane][k], want);
}

static void check_reductions(const input *x, const output *y, uint32_t active, int l, int quad) {
    expect(y, l, 0, reduce(x->f, active, 0, 32, add));
    expect(y, l, 1, reduce(x->f, active, 0, 32, times));
    expect(y, l, 2, reduce(x->f, active, 0, 32, fmaxf));
    expect(y, l, 3, reduce(x->f, active, 0, 32, fminf));
    expect(y, l, 18, reduce(x->f, active, quad, 4, add));
    expect(y, l, 19, reduce(x->f, active, quad, 4, fmaxf));
    expect(y, l, 30, reduce(x->f, active, quad, 4, fminf));
    int sum = 0, most = INT32_MIN, least = INT32_MAX, all = -1, any = 0, odd = 0, positive = 0, count = 0, before = 0;
    int quad_any = 0, first = __builtin_ctz(active);
    for (int i = 0; i < LANES; i++) {
        if (!(active >> i & 1))
            continue;
        sum = (int)((unsigned)sum + (unsigned)x->i[i]);
        most = x->i[i] > most ? x->i[i] : most;
        least = x->i[i] < least ? x->i[i] : least;
        all &= x->i[i] | 0xffff;
        any |= x->i[i] & 0xffff;
        odd ^= x->i[i];
        positive |= (int)((unsigned)(x->i[i] > 0) << i);
        count++;
        before += i < l;
        if (i / 4 == l / 4)
            quad_any |= x->i[i] & 0xff;
    }
    const int want[19] = {sum,
                          most,
                          least,
                          all,
                          any,
                          odd,
                          positive,
                          most > 1000000000,
                          least > -2000000000,
                          l == first,
                          (int)active,
                          quad_any,
                          (int)((unsigned)positive >> quad & 15),
                          ((unsigned)positive >> quad & 15) != 0,
                          ((unsigned)positive >> quad & 15) == (active >> quad & 15),
                          l == quad + __builtin_ctz(active >> quad & 15),
                          before,
                          active == 0xffffffffu,
                          count};
    for (int k = 0; k < 19; k++)
        expect_int(y, l, k, want[k]);
    expect(y, l, 24, (float)(2 * count));
}

/* What lane `from` gave, or else; lanes beyond the group count as gone. */
static float of(const input *x, uint32_t active, int from, float otherwise) {
    return from >= 0 && from < LANES && (active >> from & 1) ? x->f[from] : otherwise;
}

static void check_shuffles(const input *x, const output *y, uint32_t active, int l, int quad) {
    int n = x->n, q = l - quad;
    float v = x->f[l];
    expect(y, l, 8, of(x, active, n, v));
    expect(y, l, 9, of(x, active, l ^ n, v));
    expect(y, l, 10, of(x, active, l - n, v));
    expect(y, l, 11, of(x, active, l + n, v));
    expect(y, l, 12, of(x, active, (l - n) & 31, v));
    expect(y, l, 13, of(x, active, (l + n) & 31, v));
    expect(y, l, 14, of(x, active, n, v));
    expect(y, l, 15, x->f[__builtin_ctz(active)]);
    expect(y, l, 20, of(x, active, quad + n % 4, v));
    expect(y, l, 21, of(x, active, quad + (q ^ n % 4), v));
    expect(y, l, 22, of(x, active, quad + n % 4, v));
    expect(y, l, 25, of(x, active, quad + ((q + 1) & 3), v));
    expect(y, l, 26, of(x, active, q ? l - 1 : -1, v));
    expect(y, l, 27, x->f[quad + __builtin_ctz(active >> quad & 15)]);
    if (active != 0xffffffffu)
        return;
    int m = n % 8, up = l - m, at = l & 7;
    expect(y, l, 16, up >= 0 ? x->f[up] : -x->f[up & 31]);
    expect(y, l, 17, at + m < 8 ? x->f[l + m] : -x->f[(l & ~7) + ((at + m) & 7)]);
}

static void check_prefixes(const input *x, const output *y, uint32_t active, int l, int quad) {
    expect(y, l, 4, scan(x->f, active, 0, l + 1, 0, add));
    expect(y, l, 5, scan(x->f, active, 0, l, 0, add));
    expect(y, l, 6, scan(x->f, active, 0, l + 1, 1, times));
    expect(y, l, 7, scan(x->f, active, 0, l, 1, times));
    expect(y, l, 23, scan(x->f, active, quad, l, 0, add));
    expect(y, l, 31, scan(x->f, active, quad, l + 1, 1, times));
}

static void run_simd(uint32_t begin, uint32_t leave) {
    input x = {.leave = leave, .n = (uint16_t)(prelude_random() % 32)};
    static output y;
    struct {
        const input *x;
        output *y;
    } pass = {&x, &y};
    for (int i = 0; i < LANES; i++) {
        x.f[i] = (float)((double)(int32_t)prelude_random() * 0x1p-30);
        x.i[i] = (int32_t)prelude_random();
    }
    memset(&y, 0xcd, sizeof y);
    prelude_run_lanes(find("simd"), &pass, begin);
    uint32_t active = begin & ~leave;
    for (int l = 0; l < LANES; l++) {
        if (!(active >> l & 1))
            continue;
        int quad = l & ~3;
        check_reductions(&x, &y, active, l, quad);
        check_shuffles(&x, &y, active, l, quad);
        check_prefixes(&x, &y, active, l, quad);
    }
}

static void test_simd_functions_of_a_full_group(void **state) {
    (void)state;
    if (!library)
        skip();
    for (int i = 0; i < 8; i++)
        run_simd(0xffffffffu, 0);
}

static void test_simd_functions_of_a_part_of_a_group(void **state) {
    (void)state;
    if (!library)
        skip();
    run_simd(0x000000ffu, 0);
    run_simd(0x0001ffffu, 0);
    run_simd(1, 0);
}

static void test_simd_functions_after_lanes_have_returned(void **state) {
    (void)state;
    if (!library)
        skip();
    run_simd(0xffffffffu, 0xffff0000u);
    run_simd(0xffffffffu, 0x00000001u);
    run_simd(0xffffffffu, 0x80402211u);
}

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

enum { STRIDE = 27 };

static uint16_t half_of(int v) { /* small integers are exact */
    if (v == 0)
        return 0;
    int e = 31 - __builtin_clz((unsigned)(v < 0 ? -v : v));
    return (uint16_t)((v < 0 ? 0x8000 : 0) | (e + 15) << 10 | (((v < 0 ? -v : v) << (10 - e)) & 1023));
}
static uint16_t bfloat_of(int v) {
    float f = (float)v;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)(u >> 16);
}

static void test_matrices(void **state) {
    (void)state;
    if (!library)
        skip();
    static float a[8 * STRIDE], b[11 * STRIDE], c[8 * STRIDE], d[8 * STRIDE], e[64];
    static uint16_t ha[8 * STRIDE], hb[8 * STRIDE], hd[8 * STRIDE], ba[8 * STRIDE], bb[8 * STRIDE];
    static int ia[8 * STRIDE], ib[8 * STRIDE];
    for (int i = 0; i < 8 * STRIDE; i++) {
        a[i] = (float)(int)(prelude_random() % 17) - 8;
        c[i] = (float)(int)(prelude_random() % 17) - 8;
        ia[i] = (int)(prelude_random() % 17) - 8;
        ib[i] = (int)(prelude_random() % 17) - 8;
        ha[i] = half_of(ia[i]);
        hb[i] = half_of(ib[i]);
        ba[i] = bfloat_of(ia[i]);
        bb[i] = bfloat_of(ib[i]);
        d[i] = -777;
        hd[i] = 0x7e00;
    }
    for (int i = 0; i < 11 * STRIDE; i++)
        b[i] = (float)(int)(prelude_random() % 17) - 8;
    struct {
        void *a, *b, *c, *d, *ha, *hb, *hd, *ba, *bb, *e;
        int stride;
    } pass = {a, b, c, d, ha, hb, hd, ba, bb, e, STRIDE};
    prelude_run_lanes(find("matrix"), &pass, 0xffffffffu);
    for (int r = 0; r < 8; r++)
        for (int q = 0; q < 8; q++) {
            float f = c[q * STRIDE + r];
            int n = 0;
            for (int k = 0; k < 8; k++) {
                f += a[r * STRIDE + k] * b[(k + 2) * STRIDE + q + 1];
                n += ia[r * STRIDE + k] * ib[k * STRIDE + q];
            }
            assert_true(d[r * STRIDE + q] == f);
            assert_true(d[r * STRIDE + 8 + q] == (float)n);
            assert_true(d[r * STRIDE + 16 + q] == (float)(n + (r == q ? 2 : 0)));
            assert_int_equal(hd[q * STRIDE + r] & 0x7fff,
                             half_of(2 * n + 1) == 0 ? 0 : (half_of(2 * n + 1) - 0x400) & 0x7fff);
            /* The lane that holds it. */
            int lane = 16 * (r / 4) + 8 * (q / 4) + 2 * (r % 4) + q / 2 % 2;
            assert_true(e[r * 8 + q] == (float)(2 * lane + q % 2));
        }
    for (int r = 0; r < 8; r++)
        for (int q = 24; q < STRIDE; q++)
            assert_true(d[r * STRIDE + q] == -777);
}

/* ---- atomics ----------------------------------------------------------------------------------------------------- */

static void test_atomics(void **state) {
    (void)state;
    if (!library)
        skip();
    struct {
        uint32_t u, u2;
        int i, i2;
        float f;
        uint64_t w;
        bool b;
        uint32_t lock;
        int sum;
        int order[32];
    } a = {.i2 = -1};
    prelude_run_lanes(find("atomic_all"), &a, 0xffffffffu);
    assert_int_equal(a.u, 3200);
    assert_int_equal(a.u2, 0xffffffffu);
    assert_int_equal(a.i, -6400);
    assert_int_equal(a.i2, 31);
    assert_true(a.f == 1600.0f);
    assert_true(a.w == 3200ull << 32);
    assert_int_equal(a.sum, 31 * 16);
    assert_true(a.b);
    int (*one)(void);
    *(void **)&one = prelude_function(library, "atomic_one");
    assert_int_equal(one(), 0);
}

static void test_all_of_it_compiles_for_sm_90(void **state) {
    (void)state;
    if (!prelude_compile_cuda_body(body, "simd"))
        skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simd_functions_of_a_full_group),
        cmocka_unit_test(test_simd_functions_of_a_part_of_a_group),
        cmocka_unit_test(test_simd_functions_after_lanes_have_returned),
        cmocka_unit_test(test_matrices),
        cmocka_unit_test(test_atomics),
        cmocka_unit_test(test_all_of_it_compiles_for_sm_90),
    };
    return cmocka_run_group_tests(tests, build, NULL);
}

/* attention_few.metal on the soft device: against float64 over what is in the pages; and with norms, rotation and the
 * new keys and values its own, against attention_prepare's. */
#include "support_attention.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SPLITS = 5 };

static const uint64_t seed = 7654321;
/* few: two SIMD-groups, splits from the fifth page on; split: always, of two pages; odd: three SIMD-groups */
static kernels few, split, odd, prepare;

/* What attention_prepare and attention_few with SL_FC_PREPARE share. */
typedef struct fresh {
    int32_t dims, first; /* rotated */
    bool interleaved, norm;
    float *k, *v, *q_norm, *k_norm, *cos_sin;
    size_t kv_bytes, norm_bytes, angles_bytes;
} fresh;

static size_t bind_fresh(kernel_binding *b, const fresh *f, int first, bool written) {
    b[0] = in(first, f->k, f->kv_bytes);
    b[0].out = written;
    b[1] = in(first + 1, f->v, f->kv_bytes);
    b[2] = in(first + 2, f->q_norm, f->norm_bytes);
    b[3] = in(first + 3, f->k_norm, f->norm_bytes);
    b[4] = in(first + 4, f->cos_sin, f->angles_bytes);
    return 5;
}

static size_t fresh_constants(sl_gpu_constant *c, const fresh *f) {
    size_t n = 0;
    if (f->norm) {
        c[n++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_NORM_Q);
        c[n++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_NORM_K);
    }
    if (f->dims)
        c[n++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_ROPE);
    if (f->interleaved)
        c[n++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_INTERLEAVED);
    return n;
}

static sl_attention_args fresh_args(const attention *a, const fresh *f, uint32_t splits) {
    sl_attention_args args = attention_args(a);
    args.rope_dims = (uint32_t)f->dims;
    args.rope_first = (uint32_t)f->first;
    args.splits = splits;
    return args;
}

/* Runs the kernel; alone: it prepares. */
static float *run_few(kernels *with, attention *a, const fresh *f, bool alone, uint32_t splits) {
    const attention_shape *s = &a->s;
    sl_attention_args args = fresh_args(a, f, splits);
    uint32_t groups = (uint32_t)(s->kv_heads * ((s->heads / s->kv_heads + SL_FEW_HEADS - 1) / SL_FEW_HEADS));
    size_t n = (size_t)(a->rows * s->heads * s->dim);
    size_t partials = (size_t)(a->rows * s->heads) * splits * (size_t)(s->dim + 4);
    uint32_t *counters = calloc((size_t)a->rows * groups, 4);
    float *partial = kernel_poison(partials), *dst = kernel_poison(n);
    kernel_binding b[29] = {in(0, &args, sizeof args), in(1, a->q, a->q_count * 4), out(2, partial, partials * 4),
                            in(3, a->step.words, a->step.bytes)};
    size_t count = 4 + attention_result(b + 4, a);
    count += bind_fresh(b + count, f, 6, false);
    b[count++] = out(11, dst, n * 4);
    b[count++] = out(12, counters, (size_t)a->rows * groups * 4);
    count += attention_slabs(b + count, a, true);
    sl_gpu_constant constants[8];
    size_t m = attention_constants(constants, a);
    if (alone) {
        m += fresh_constants(constants + m, f);
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_PREPARE);
    }
    char entry[64];
    snprintf(entry, sizeof entry, "attention_few_%d", s->dim);
    uint32_t simds = with == &odd ? 3 : 2;
    kernels_run(with, &(kernel_call){.entry = entry,
                                     .groups = {splits, groups, (uint32_t)a->rows + 1},
                                     .threads = {simds * SL_SIMD, 1, 1},
                                     .bindings = b,
                                     .count = count,
                                     .constants = constants,
                                     .constant_count = m,
                                     .lengths = {{0, simds * 40 * (uint32_t)s->dim}},
                                     .length_count = 1,
                                     .slabs = true});
    for (size_t i = 0; i < (size_t)a->rows * groups; i++)
        assert_int_equal(counters[i], 0);
    free(counters);
    free(partial);
    return dst;
}

static fresh fresh_new(rng *r, const attention *a, int32_t dims, bool interleaved, bool norm) {
    fresh f = {.dims = dims, .first = dims && dims < a->s.dim ? 8 : 0, .interleaved = interleaved, .norm = norm};
    size_t kv = (size_t)(a->rows * a->s.kv_heads * a->s.dim), angles = (size_t)(a->rows * dims + 1);
    f.kv_bytes = kv * 4;
    f.norm_bytes = (size_t)a->s.dim * 4;
    f.angles_bytes = angles * 4;
    f.k = kernel_floats(r, kv, 1);
    f.v = kernel_floats(r, kv, 1);
    f.q_norm = kernel_floats(r, (size_t)a->s.dim, 1);
    f.k_norm = kernel_floats(r, (size_t)a->s.dim, 1);
    f.cos_sin = kernel_floats(r, angles, 1);
    return f;
}

static void fresh_free(fresh *f) {
    free(f->k);
    free(f->v);
    free(f->q_norm);
    free(f->k_norm);
    free(f->cos_sin);
}

static void check(kernels *with, attention *a, const float *dst, float magnitude) {
    char entry[64];
    snprintf(entry, sizeof entry, "attention_few_%d", a->s.dim);
    kernels_result(with, entry, attention_error(a, dst), magnitude > 1 ? 1e-3 : 1e-5);
}

static void run(kernels *with, rng *r, const attention_shape *s, uint32_t splits, float magnitude) {
    attention a = attention_new(r, s, true, magnitude);
    fresh f = fresh_new(r, &a, 0, false, false);
    if (s->seqs == 1)
        attention_forget(&a, s->position[0] + 1 - s->window);
    float *dst = run_few(with, &a, &f, false, splits);
    check(with, &a, dst, magnitude);
    free(dst);
    fresh_free(&f);
    attention_free(&a);
}

static void rows_are_float64s(void **state) {
    static const attention_shape shapes[] = {
        {SL_KV_F16, 4, 2, 64, 1, {1}, {0}, .window = 0},
        {SL_KV_F16, 6, 2, 64, 3, {1, 1, 1}, {31, 64, 100}, .window = 0},
        {SL_KV_F16, 10, 1, 128, 1, {1}, {77}, .window = 0}, /* more heads than are taken at a time */
        {SL_KV_F16, 8, 1, 128, 1, {1}, {290}, .window = 0}, /* as many, and two splits */
        {SL_KV_F16, 4, 4, 64, 1, {1}, {530}, .window = 0},  /* three */
        {SL_KV_F16, 6, 1, 256, 1, {2}, {69}, .window = 0},
        {SL_KV_F16, 3, 1, 192, 1, {2}, {130}, .window = 0},
        {SL_KV_F16, 4, 2, 64, 2, {1, 2}, {70, 9}, .apart = 64, .gate = true}, /* [q | gate] per head */
        {SL_KV_F16, 3, 1, 128, 1, {2}, {40}, .apart = 3, .sinks = true},
        {SL_KV_F16, 4, 2, 64, 1, {1}, {200}, .window = 70, .sinks = true},
        {SL_KV_F16, 2, 1, 64, 1, {2}, {530}, .window = 40},
        {SL_KV_F16, 2, 1, 64, 1, {1}, {543}, .window = 500, .gate = true}, /* splits begin in the window */
        {SL_KV_F16, 2, 1, 64, 2, {1, 1}, {3, 90}, .window = 1, .gate = true, .sinks = true},
        {SL_KV_F16, 2, 1, 64, 1, {1}, {103}, .window = 40}, /* begins with a block */
        {SL_KV_F16, 2, 1, 64, 1, {1}, {100}, .window = 70}, /* with the last token of a block */
        {SL_KV_F16, 2, 1, 64, 1, {1}, {15}, .window = 0},   /* a whole block, and a token of the next */
        {SL_KV_F16, 2, 1, 64, 1, {1}, {16}, .window = 0},
        {SL_KV_F16, 2, 1, 64, 1, {1}, {20}, .window = 500},
    };
    rng r = {seed};
    for (size_t i = 0; i < SL_COUNT(shapes); i++)
        run(&few, &r, &shapes[i], SPLITS, 1);
}

/* Splits have their least number of pages or as many as their greatest number leaves. */
static void splits_merge(void **state) {
    static const attention_shape shapes[] = {
        {SL_KV_F16, 8, 1, 64, 1, {1}, {511}, .window = 0, .sinks = true}, /* more splits than lanes of a head's share */
        {SL_KV_F16, 12, 1, 64, 2, {1, 1}, {447, 129}, .window = 0},
        {SL_KV_F16, 2, 1, 64, 1, {1}, {300}, .window = 130, .gate = true},
    };
    rng r = {seed + 2};
    for (size_t i = 0; i < SL_COUNT(shapes); i++)
        for (uint32_t splits = 1; splits <= 9; splits += 4) {
            run(&split, &r, &shapes[i], splits, 1);
            run(&odd, &r, &shapes[i], splits, 1);
        }
}

static void queries_of_a_million_stay_finite(void **state) {
    rng r = {seed + 1};
    run(&few, &r, &(attention_shape){SL_KV_F16, 4, 2, 64, 1, {1}, {70}, .window = 0}, SPLITS, 1e6f);
    run(&few, &r, &(attention_shape){SL_KV_F16, 2, 1, 256, 1, {1}, {40}, .window = 3}, SPLITS, 1e6f);
}

/* ---- with its own preparing -------------------------------------------------------------------------------------- */

static void prepare_apart(attention *a, const fresh *f) {
    const attention_shape *s = &a->s;
    sl_attention_args args = fresh_args(a, f, 0);
    kernel_binding b[18] = {in(0, &args, sizeof args), out(1, a->q, a->q_count * 4)};
    size_t count = 2 + bind_fresh(b + 2, f, 2, true);
    b[count++] = in(7, a->step.words, a->step.bytes);
    count += attention_slabs(b + count, a, true);
    sl_gpu_constant constants[4];
    kernels_run(&prepare, &(kernel_call){.entry = "attention_prepare_f16",
                                         .groups = {(uint32_t)(s->heads + 2 * s->kv_heads), (uint32_t)a->rows, 1},
                                         .threads = {SL_SIMD, 1, 1},
                                         .bindings = b,
                                         .count = count,
                                         .constants = constants,
                                         .constant_count = fresh_constants(constants, f),
                                         .slabs = true});
}

static uint8_t *pages_of(const attention *a) {
    uint8_t *all = malloc((size_t)a->slabs * a->slab_bytes);
    for (int32_t i = 0; i < a->slabs; i++)
        memcpy(all + (uint64_t)i * a->slab_bytes, a->slab[i], a->slab_bytes);
    return all;
}

/* The rows' own tokens are NaN before; afterwards the pages are as attention_prepare leaves them, bit for bit, and so
 * is attention over them with its q. */
static void run_alone(rng *r, const attention_shape *s, int32_t dims, bool interleaved, bool norm) {
    attention a = attention_new(r, s, false, 1);
    fresh f = fresh_new(r, &a, dims, interleaved, norm);
    uint8_t *before = pages_of(&a);
    float *dst = run_few(&few, &a, &f, true, SPLITS);
    uint8_t *got = pages_of(&a);
    for (int32_t i = 0; i < a.slabs; i++)
        memcpy(a.slab[i], before + (uint64_t)i * a.slab_bytes, a.slab_bytes);
    prepare_apart(&a, &f);
    uint8_t *expected = pages_of(&a);
    assert_memory_equal(got, expected, (size_t)a.slabs * a.slab_bytes);
    check(&few, &a, dst, 1);
    free(before);
    free(got);
    free(expected);
    free(dst);
    fresh_free(&f);
    attention_free(&a);
}

static void rows_alone_are_prepared_too(void **state) {
    rng r = {seed + 3};
    run_alone(&r, &(attention_shape){SL_KV_F16, 4, 2, 64, 1, {1}, {0}, .window = 0}, 64, false, true);
    run_alone(&r, &(attention_shape){SL_KV_F16, 6, 2, 64, 3, {1, 1, 1}, {31, 64, 320}, .window = 0}, 64, true, false);
    run_alone(&r, &(attention_shape){SL_KV_F16, 10, 1, 128, 1, {1}, {256}, .apart = 128, .gate = true}, 128, false,
              true); /* two tiles, the last split is the row's own token */
    run_alone(&r, &(attention_shape){SL_KV_F16, 3, 1, 192, 1, {1}, {17}, .sinks = true}, 32, false, true);
    run_alone(&r, &(attention_shape){SL_KV_F16, 8, 1, 256, 2, {1, 1}, {260, 5}, .window = 200}, 64, true, true);
    run_alone(&r, &(attention_shape){SL_KV_F16, 2, 1, 64, 2, {1, 1}, {3, 90}, .window = 1}, 0, false, false);
    run_alone(&r, &(attention_shape){SL_KV_F16, 2, 1, 64, 1, {1}, {70}, .window = 2}, 0, false, true);
}

int main(void) {
    if (!kernels_open(&few, "attention_few.metal", NULL, 0) ||
        !kernels_open_with(&split, "attention_few.metal", NULL, 0,
                           "#define SL_ATTENTION_DIM 64\n#define SL_ATTENTION_KV f16\n#define SL_FEW_WHOLE 0\n"
                           "#define SL_FEW_PAGES 2\n") ||
        !kernels_open_with(&odd, "attention_few.metal", NULL, 0,
                           "#define SL_ATTENTION_DIM 64\n#define SL_ATTENTION_KV f16\n#define SL_FEW_SIMDS 3\n") ||
        !kernels_open_with(&prepare, "attention_prepare.metal", NULL, 0,
                           "#define SL_ATTENTION_KV f16\n"
                           "#define SL_ATTENTION_DIM 64\n"))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_float64s),
        cmocka_unit_test(splits_merge),
        cmocka_unit_test(queries_of_a_million_stay_finite),
        cmocka_unit_test(rows_alone_are_prepared_too),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&few);
    kernels_close(&split);
    kernels_close(&odd);
    kernels_close(&prepare);
    return failed;
}

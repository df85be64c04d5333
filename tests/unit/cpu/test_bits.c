/* Promise: the kernels have the same bits on every machine. Each set of this one works on numbers made from a seed, and
 * hashes of what it gives are compared with those in this file, whatever the processor, compiler and options. They
 * change only with the numeric contract (cpu.h, cpu_ops_impl.h). */
#include "support_matrix.h"

#include "cpu/cpu_ops.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 77;

/* FNV-1a, 64 bits. */
static uint64_t hash_of(const void *p, size_t bytes, uint64_t h) {
    for (size_t i = 0; i < bytes; i++) {
        h = (h ^ ((const uint8_t *)p)[i]) * 0x100000001b3u;
    }
    return h;
}

static const uint64_t hash_start = 0xcbf29ce484222325u;

static void check_hash(const char *set, const char *what, uint64_t got, uint64_t expected) {
    if (got != expected) {
        fail_msg("%s: the bits of %s hash to 0x%016llx, expected 0x%016llx", set, what, (unsigned long long)got,
                 (unsigned long long)expected);
    }
}

static void *aligned_new(uint64_t bytes) {
    void *p = aligned_alloc(64, (size_t)sl_round_up(bytes, 64));
    assert_non_null(p);
    memset(p, 0xa5, (size_t)bytes);
    return p;
}

static float *normals(rng *r, int64_t n) {
    float *x = aligned_new((uint64_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        x[i] = rng_normal(r);
    }
    return x;
}

/* ---- matrix products -------------------------------------------------------------------------------------------- */

typedef struct product {
    sl_format_id format, side;
    int32_t group, cols;
    uint64_t hash;
} product;

static const product products[] = {
    {SL_F32, 0, 0, 333, 0x6eb1239d9547757e},           {SL_F16, 0, 0, 333, 0xf7d1feb164bc373c},
    {SL_BF16, 0, 0, 333, 0xa218499f711bc8b0},          {SL_Q4_0, 0, 0, 352, 0xecdcf7d83c0adafd},
    {SL_Q4_1, 0, 0, 352, 0x0419095cc05062ea},          {SL_Q5_0, 0, 0, 352, 0xffd6dcf9357ac558},
    {SL_Q5_1, 0, 0, 352, 0x2cc76e7ef9c0cc64},          {SL_Q8_0, 0, 0, 352, 0x231bdbb83f7983fb},
    {SL_Q4_K, 0, 0, 512, 0xdac68b784dca56e1},          {SL_Q5_K, 0, 0, 512, 0x402c7d7b24ca01e9},
    {SL_Q6_K, 0, 0, 512, 0xe72d9b286b44cb6d},          {SL_AFFINE4, SL_BF16, 64, 320, 0x05b849b6bcbd7209},
    {SL_AFFINE8, SL_F16, 32, 352, 0x3aa96e6346b0b5e7}, {SL_AFFINE2, SL_BF16, 64, 320, 0x2f8a99ebaa3d9b75},
    {SL_AFFINE3, SL_F16, 32, 352, 0x1001fffcab10740c}, {SL_AFFINE5, SL_BF16, 128, 384, 0xce9d31929b00bce1},
    {SL_AFFINE6, SL_F32, 64, 320, 0x1b2554a22dc9f011}, {SL_Q2_K, 0, 0, 512, 0x38201668cf59d03d},
    {SL_Q3_K, 0, 0, 512, 0x44a52bb2e4fa910d},          {SL_IQ4_NL, 0, 0, 352, 0x4413dc4a4a1e5dee},
    {SL_IQ4_XS, 0, 0, 512, 0xd8c0bb44c281c282},        {SL_MXFP4, 0, 0, 352, 0xf651fc8c78770102},
    {SL_MXFP4_SPLIT, 0, 0, 352, 0x572840536b12d13e},   {SL_FP8, SL_F32, 128, 333, 0x75afd008863947de},
    {SL_IQ2_XXS, 0, 0, 512, 0xeba262dbdd04557b},       {SL_IQ2_S, 0, 0, 512, 0x79ddd1170e148174},
    {SL_IQ3_S, 0, 0, 512, 0x803f08c85a793909},         {SL_IQ1_M, 0, 0, 512, 0xd62aec76f141be43},
    {SL_TQ2_0, 0, 0, 512, 0x6b3f150c368e3b0b},         {SL_NVFP4, 0, 0, 320, 0x21701b754335c589},
    {SL_NVFP4_SPLIT, 0, 0, 352, 0x2f96e841e010b504},   {SL_MXFP8_SPLIT, 0, 0, 352, 0xbcd301dc31e442a5},
    {SL_TQ1_0, 0, 0, 512, 0x3ce832fe8dcfc820},
};

enum { ROWS = 37, ACTS = 9 };

/* Quantised activations, a product of one row, one of nine, and gate and up. */
static uint64_t product_hash(const cpu_kernels *k, const product *p) {
    rng r = {seed};
    test_matrix w = test_matrix_new(&r, p->format, ROWS, p->cols, p->group, p->side, SCALES_PLAIN);
    test_matrix up = test_matrix_new(&r, p->format, ROWS, p->cols, p->group, p->side, SCALES_PLAIN);
    float *x = normals(&r, ACTS * p->cols), y[ACTS * ROWS];
    void *q = aligned_new(ACTS * cpu_act_bytes(p->cols)), *scratch = aligned_new(cpu_scratch_bytes(p->cols));
    k->quantize(x, p->cols, ACTS, p->cols, q);
    uint64_t h = hash_of(q, ACTS * cpu_act_bytes(p->cols), hash_start);
    for (int64_t n = 1; n <= ACTS; n += ACTS - 1) {
        cpu_rows in = {.cols = p->cols, .n = n, .x = x, .ldx = p->cols, .q = q};
        k->matmul(&w.m, 0, ROWS, &in, y, ROWS, scratch);
        h = hash_of(y, (size_t)(n * ROWS) * sizeof *y, h);
        k->gate_up(&w.m, &up.m, 0, ROWS, &in, y, ROWS, scratch);
        h = hash_of(y, (size_t)(n * ROWS) * sizeof *y, h);
    }
    free(x);
    free(q);
    free(scratch);
    test_matrix_free(&w);
    test_matrix_free(&up);
    return h;
}

static void products_have_these_bits(void **state) {
    for (int i = 0; i < CPU_ISA_COUNT; i++) {
        const cpu_kernels *k = cpu_kernels_get((cpu_isa)i);
        for (size_t p = 0; k && p < SL_COUNT(products); p++) {
            check_hash(k->name, sl_format_get(products[p].format)->name, product_hash(k, &products[p]),
                       products[p].hash);
        }
    }
}

/* ---- other operations ------------------------------------------------------------------------------------------- */

enum { DIM = 64, GROUP = 3, QUERIES = 5, KEYS = 700, PAGES = (KEYS + CPU_KV_PAGE - 1) / CPU_KV_PAGE, HEAD = 4 * DIM };

typedef struct pages {
    uint8_t k[PAGES][CPU_KV_PAGE * HEAD], v[PAGES][CPU_KV_PAGE * HEAD];
} pages;

static void page_of(const void *ctx, int32_t index, const uint8_t **k, const uint8_t **v) {
    const pages *p = ctx;
    *k = p->k[index];
    *v = p->v[index];
}

static uint64_t head_bytes(cpu_kv_type type) {
    return type == CPU_KV_F32 ? 4 * DIM : type == CPU_KV_F16 ? 2 * DIM : DIM / 32 * 34;
}

/* Attention of five rows behind a sequence longer than one split. */
static uint64_t attention_hash(const cpu_ops *o, cpu_kv_type type) {
    rng r = {seed};
    pages *kv = calloc(1, sizeof *kv);
    float dst[QUERIES * GROUP * DIM], x[DIM], *q = normals(&r, QUERIES * GROUP * DIM);
    assert_non_null(kv);
    for (int t = 0; t < KEYS; t++) {
        for (int side = 0; side < 2; side++) {
            for (int i = 0; i < DIM; i++) {
                x[i] = rng_normal(&r);
            }
            uint8_t *page = (side ? kv->v : kv->k)[t / CPU_KV_PAGE];
            o->kv_store(page + (uint64_t)(t % CPU_KV_PAGE) * head_bytes(type), x, DIM, type);
        }
    }
    float *scratch = aligned_new(cpu_attention_scratch(QUERIES, GROUP, DIM) * sizeof *scratch);
    cpu_attention a = {.q = q,
                       .dst = dst,
                       .q_stride = GROUP * DIM,
                       .dst_stride = GROUP * DIM,
                       .rows = QUERIES,
                       .group = GROUP,
                       .head_dim = DIM,
                       .value_dim = DIM,
                       .position = KEYS - QUERIES,
                       .scale = 0.125f,
                       .type = type,
                       .head_bytes = head_bytes(type),
                       .page = page_of,
                       .ctx = kv,
                       .scratch = scratch};
    o->attention(&a);
    free(scratch);
    free(q);
    free(kv);
    return hash_of(dst, sizeof dst, hash_start);
}

/* Norm, rotation, sums and softmax of an odd number of values. */
static uint64_t vector_hash(const cpu_ops *o) {
    enum { N = 333 };
    rng r = {seed};
    float *x = normals(&r, N), *weight = normals(&r, N), *y = normals(&r, N), *cos = normals(&r, DIM / 2),
          *sin = normals(&r, DIM / 2);
    o->rms_norm(y, x, weight, N, 1e-6f);
    uint64_t h = hash_of(y, N * sizeof *y, hash_start);
    o->rope(y, DIM, false, cos, sin);
    o->rope(y + DIM, DIM, true, cos, sin);
    o->add(y, x, N);
    o->axpy(y, weight, 0.3f, N);
    h = hash_of(y, N * sizeof *y, h);
    float sum = o->softmax_numerators(y, N);
    h = hash_of(y, N * sizeof *y, hash_of(&sum, sizeof sum, h));
    free(x);
    free(weight);
    free(y);
    free(cos);
    free(sin);
    return h;
}

static void operations_have_these_bits(void **state) {
    static const char *const names[] = {"scalar", "avx2", "avx512", "neon"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        const cpu_ops *o = cpu_ops_get(names[i]);
        if (!o) {
            continue;
        }
        check_hash(o->name, "norm, rotation, sums, softmax", vector_hash(o), 0x1f374e1ec110abe4);
        check_hash(o->name, "attention over F16", attention_hash(o, CPU_KV_F16), 0x8b9f90e3550d63d2);
        check_hash(o->name, "attention over Q8_0", attention_hash(o, CPU_KV_Q8_0), 0xf549bcf9416f4119);
        check_hash(o->name, "attention over F32", attention_hash(o, CPU_KV_F32), 0x0344a89a5d8a76cd);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_have_these_bits),
        cmocka_unit_test(operations_have_these_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

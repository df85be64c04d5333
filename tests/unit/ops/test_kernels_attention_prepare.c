/* What comes before attention: how q and k are changed, and what is appended to the pages, against the CPU's
 * operations. */
#include "support_attention.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 1234567;
static kernels prepare;

typedef struct prepare_case {
    attention_shape s;
    int32_t dims; /* rotated, from `first` on */
    bool interleaved, norm;
    float scale;
    int32_t first;
} prepare_case;

static void make_table(const attention *a, const prepare_case *c, const float *inv_freq, float *cos_sin) {
    sl_attention_args args = attention_args(a);
    args.rope_dims = (uint32_t)c->dims;
    args.rope_scale = c->scale;
    kernel_binding b[] = {in(0, &args, sizeof args), in(1, inv_freq, (size_t)c->dims * 2),
                          out(2, cos_sin, (size_t)(a->rows * c->dims) * 4), in(3, a->step.words, a->step.bytes)};
    kernels_run(&prepare, &(kernel_call){.entry = "rope_table",
                                         .groups = {(uint32_t)a->rows + 1, 1, 1},
                                         .threads = {32, 1, 1},
                                         .bindings = b,
                                         .count = 4});
    double worst = 0;
    for (int32_t i = 0; i < a->rows; i++)
        for (int32_t j = 0; j < c->dims / 2; j++) {
            double angle = (float)a->position[i] * inv_freq[j];
            double e = fmax(fabs(cos_sin[i * c->dims + j] - cos(angle) * c->scale),
                            fabs(cos_sin[i * c->dims + c->dims / 2 + j] - sin(angle) * c->scale));
            worst = worse_of(worst, e);
        }
    kernels_result(&prepare, "rope_table", worst, 1e-6);
}

/* One head as the CPU changes it. */
static void prepared(float *x, const prepare_case *c, const float *norm, const float *cos_sin) {
    if (norm)
        cpu_ops_get("scalar")->rms_norm(x, x, norm, c->s.dim, 1e-6f);
    if (c->dims)
        cpu_ops_get("scalar")->rope(x + c->first, c->dims, c->interleaved, cos_sin, cos_sin + c->dims / 2);
}

static double head_error(const float *got, const float *ref, int32_t n) {
    double worst = 0, size = 0;
    for (int32_t i = 0; i < n; i++)
        size += (double)ref[i] * ref[i] / n;
    for (int32_t i = 0; i < n; i++) {
        double e = fabs((double)got[i] - ref[i]) / sqrt(size);
        worst = worse_of(worst, e);
    }
    return worst;
}

/* The page holds what the kernel left in k, and v, as the CPU stores them. */
static void check_pages(const attention *a, const float *k, const float *v) {
    uint8_t stored[4 * SL_ATTENTION_DIM_MAX];
    for (int32_t row = 0; row < a->rows; row++)
        for (int32_t h = 0; h < a->s.kv_heads; h++)
            for (int plane = 0; plane < a->layout.planes; plane++) {
                const float *x = (plane ? v : k) + (row * a->s.kv_heads + h) * a->s.dim;
                cpu_ops_get("scalar")->kv_store(stored, x, a->s.dim, attention_cpu_type(a->s.kv));
                assert_memory_equal(attention_token(a, a->seq[row], a->position[row], h, plane), stored,
                                    a->layout.head_bytes);
            }
}

static void run_prepare(rng *r, const prepare_case *c) {
    const attention_shape *s = &c->s;
    attention a = attention_new(r, s, false, 2);
    size_t nq = a.q_count, nk = (size_t)(a.rows * s->kv_heads * s->dim);
    float *k = kernel_floats(r, nk, 3), *v = kernel_floats(r, nk, 1), *k0 = malloc(nk * 4), *q0 = malloc(nq * 4);
    float *q_norm = kernel_floats(r, (size_t)s->dim, 1), *k_norm = kernel_floats(r, (size_t)s->dim, 1);
    float inv_freq[128], *cos_sin = kernel_poison((size_t)(a.rows * (c->dims + 1)));
    for (int32_t i = 0; i < c->dims / 2; i++)
        inv_freq[i] = powf(10000, -2.0f * (float)i / (float)c->dims);
    memcpy(k0, k, nk * 4);
    memcpy(q0, a.q, nq * 4);
    if (c->dims)
        make_table(&a, c, inv_freq, cos_sin);
    sl_attention_args args = attention_args(&a);
    args.rope_dims = (uint32_t)c->dims;
    args.rope_first = (uint32_t)c->first;
    kernel_binding b[18] = {in(0, &args, sizeof args),
                            out(1, a.q, nq * 4),
                            out(2, k, nk * 4),
                            in(3, v, nk * 4),
                            in(4, q_norm, (size_t)s->dim * 4),
                            in(5, k_norm, (size_t)s->dim * 4),
                            in(6, cos_sin, (size_t)(a.rows * (c->dims + 1)) * 4),
                            in(7, a.step.words, a.step.bytes)};
    size_t count = 8 + attention_slabs(b + 8, &a, true), m = 0;
    sl_gpu_constant constants[4];
    if (c->norm) {
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_NORM_Q);
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_NORM_K);
    }
    if (c->dims)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_ROPE);
    if (c->interleaved)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_INTERLEAVED);
    char entry[64];
    snprintf(entry, sizeof entry, "attention_prepare_%s", attention_kv_names[s->kv]);
    kernels_run(&prepare, &(kernel_call){
                              .entry = entry,
                              .groups = {(uint32_t)(s->heads + a.layout.planes * s->kv_heads), (uint32_t)a.rows + 1, 1},
                              .threads = {32, 1, 1},
                              .bindings = b,
                              .count = count,
                              .constants = constants,
                              .constant_count = m,
                              .slabs = true});
    double worst = 0;
    for (int32_t row = 0; row < a.rows; row++)
        for (int32_t h = 0; h < s->heads + s->kv_heads; h++) {
            bool query = h < s->heads;
            int64_t at = query ? (int64_t)(row * s->heads + h) * attention_stride(&a)
                               : (int64_t)(row * s->kv_heads + h - s->heads) * s->dim;
            float *ref = (query ? q0 : k0) + at;
            prepared(ref, c, c->norm ? (query ? q_norm : k_norm) : NULL, cos_sin + row * c->dims);
            double e = head_error((query ? a.q : k) + at, ref, s->dim);
            worst = worse_of(worst, e);
        }
    check_pages(&a, k, v);
    kernels_result(&prepare, entry, worst, 1e-5);
    free(k);
    free(v);
    free(k0);
    free(q0);
    free(q_norm);
    free(k_norm);
    free(cos_sin);
    attention_free(&a);
}

static void heads_are_prepared_as_the_cpus(void **state) {
    static const prepare_case cases[] = {
        {{SL_KV_F16, 4, 2, 64, 2, {3, 1}, {62, 7}, .window = 0}, 64, false, true, .scale = 1},
        {{SL_KV_F16, 2, 1, 128, 1, {2}, {100}, .window = 0}, 128, true, false, .scale = 1.5f},
        {{SL_KV_F16, 4, 2, 64, 2, {2, 1}, {2, 7}, .apart = 64}, 64, false, true, .scale = 1},
        {{SL_KV_F16, 3, 1, 80, 1, {2}, {1}, .window = 0},
         30,
         false,
         true,
         .scale = 1}, /* partial, a head of no multiple of 32 */
        {{SL_KV_F16, 2, 2, 256, 1, {1}, {63}, .window = 0}, 64, true, true, .scale = 1},
        {{SL_KV_F32, 2, 2, 64, 1, {2}, {63}, .window = 0}, 32, false, false, .scale = 1},
        {{SL_KV_Q8_0, 2, 1, 64, 1, {3}, {0}, .window = 0}, 64, false, true, .scale = 1},
        {{SL_KV_Q8_0, 2, 1, 128, 1, {1}, {65}, .window = 0}, 0, false, false, .scale = 1},
        {{SL_KV_F16, 5, 1, 576, 2, {2, 1}, {62, 5}, .values = 512},
         64,
         true,
         false,
         .scale = 1,
         .first = 512}, /* the end of a head */
        {{SL_KV_F16, 3, 2, 72, 1, {2}, {9}, .apart = 2}, 26, false, true, .scale = 1, .first = 30}, /* its middle,
                                                                                                       normed */
    };
    rng r = {seed + 4};
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        run_prepare(&r, &cases[i]);
}

int main(void) {
    if (!kernels_open(&prepare, "attention_prepare.metal", NULL, 0))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_are_prepared_as_the_cpus),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&prepare);
    return failed;
}

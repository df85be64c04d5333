/* Attention on the soft device, its four kernel files: what is appended to the pages and how q and k are changed
 * against the CPU's operations; decode (split and combined) and prefill against float64 over the pages' own values. */
#include "support_attention.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 1234567;
static kernels prepare, decode, prefill, wide;

/* ---- decode ------------------------------------------------------------------------------------------------------ */

static void run_decode(kernels *with, rng *r, const attention_shape *s, float magnitude) {
    char entry[64];
    snprintf(entry, sizeof entry, "attention_decode_%s_%d", attention_kv_names[s->kv], s->dim);
    attention_decode(with, with, entry, SL_DECODE_HEADS(s->dim), r, s, magnitude);
}

static void decode_is_float64s(void **state) {
    static const attention_shape shapes[] = {
        {SL_KV_F16, 4, 2, 64, 1, {1}, {0}, .window = 0},
        {SL_KV_F16, 6, 2, 64, 3, {1, 1, 1}, {31, 64, 100}, .window = 0},
        {SL_KV_F16, 10, 1, 128, 1, {1}, {77}, .window = 0}, /* more heads than are taken at a time */
        {SL_KV_F16, 4, 4, 64, 1, {1}, {530}, .window = 0},  /* two splits */
        {SL_KV_F16, 6, 1, 256, 1, {2}, {69}, .window = 0},
        {SL_KV_F32, 2, 1, 64, 2, {1, 2}, {5, 126}, .window = 0},
        {SL_KV_F32, 2, 2, 128, 1, {1}, {40}, .window = 0},
        {SL_KV_F32, 4, 1, 256, 1, {1}, {33}, .window = 0},
        {SL_KV_Q8_0, 4, 2, 64, 1, {2}, {80}, .window = 0},
        {SL_KV_Q8_0, 2, 1, 128, 1, {1}, {40}, .window = 0},
        {SL_KV_Q8_0, 5, 1, 256, 1, {1}, {34}, .window = 0},
        {SL_KV_F16, 4, 2, 64, 2, {1, 2}, {70, 9}, .apart = 64, .gate = true}, /* [q | gate] per head */
        {SL_KV_F16, 3, 1, 128, 1, {2}, {40}, .apart = 3, .sinks = true},
        {SL_KV_F16, 4, 2, 64, 1, {1}, {200}, .window = 70, .sinks = true},
        {SL_KV_F16, 2, 1, 64, 1, {2}, {530}, .window = 40}, /* over two splits, which begin before it */
        {SL_KV_F16, 2, 1, 64, 1, {1}, {543}, .window = 16}, /* the first split is before it */
        {SL_KV_F16, 2, 1, 64, 2, {1, 1}, {3, 90}, .window = 1, .gate = true, .sinks = true},
        {SL_KV_F16, 2, 1, 64, 1, {1}, {551}, .window = 40}, /* the window is the second split's first tokens */
        {SL_KV_F16, 2, 1, 64, 1, {1}, {103}, .window = 40}, /* and a whole block's */
        {SL_KV_F16, 2, 1, 64, 1, {1}, {40}, .window = 40},  /* all but the first token */
        {SL_KV_F16, 2, 1, 64, 1, {1}, {39}, .window = 40},
        {SL_KV_F16, 2, 1, 64, 1, {1}, {20}, .window = 500},
        {SL_KV_F16, 9, 1, 576, 2, {1, 1}, {70, 530}, .values = 512}, /* one latent for heads in two tiles, two splits */
        {SL_KV_Q8_0, 3, 1, 576, 1, {2}, {40}, .values = 512, .apart = 4},
        {SL_KV_F32, 2, 1, 576, 1, {1}, {33}, .values = 512, .sinks = true, .window = 20},
        {SL_KV_F16, 8, 1, 64, 1, {1}, {290}, .window = 0},  /* as many heads as at once, several blocks of each */
        {SL_KV_F16, 2, 1, 64, 1, {1}, {100}, .window = 70}, /* begins with the last token of a block */
    };
    rng r = {seed};
    for (size_t i = 0; i < SL_COUNT(shapes); i++)
        run_decode(&decode, &r, &shapes[i], 1);
}

static void decode_of_a_million_stays_finite(void **state) {
    rng r = {seed + 1};
    run_decode(&decode, &r, &(attention_shape){SL_KV_F16, 4, 2, 64, 1, {1}, {70}, .window = 0}, 1e6f);
    run_decode(&decode, &r, &(attention_shape){SL_KV_F16, 2, 1, 576, 1, {1}, {70}, .values = 512}, 1e6f);
}

/* ---- prefill ----------------------------------------------------------------------------------------------------- */

/* at_once 0: the kernel of wide heads and of values within the keys. */
static void run_prefill(kernels *with, rng *r, const attention_shape *s, int32_t at_once, float magnitude) {
    attention a = attention_new(r, s, true, magnitude);
    if (s->seqs == 1)
        attention_forget(&a, (s->position[0] + 1 - s->window) / 32 * 32);
    sl_attention_args args = attention_args(&a);
    size_t n = (size_t)(a.rows * s->heads * attention_values(s));
    float *dst = kernel_poison(n);
    kernel_binding b[18] = {in(0, &args, sizeof args), in(1, a.q, a.q_count * 4), out(2, dst, n * 4),
                            in(3, a.step.words, a.step.bytes)};
    size_t count = 4 + attention_result(b + 4, &a);
    count += attention_slabs(b + count, &a, false);
    sl_gpu_constant constants[2];
    char entry[64];
    if (at_once)
        snprintf(entry, sizeof entry, "attention_prefill_%s_%d_%d", attention_kv_names[s->kv], s->dim, at_once);
    else
        snprintf(entry, sizeof entry, "attention_wide_%s_%d", attention_kv_names[s->kv], s->dim);
    kernels_run(with, &(kernel_call){.entry = entry,
                                     .constants = constants,
                                     .constant_count = attention_constants(constants, &a),
                                     .groups = {(uint32_t)(s->heads / (at_once ? at_once : 1)), (uint32_t)a.rows, 1},
                                     .threads = {SL_ATTENTION_THREADS, 1, 1},
                                     .bindings = b,
                                     .count = count,
                                     .slabs = true});
    /* of values of a million one key has all the weight, and half precision may choose another of two that are near */
    double e = attention_error(&a, dst);
    for (size_t i = 0; i < n; i++)
        assert_true(isfinite(dst[i]));
    if (magnitude == 1)
        kernels_result(with, entry, e, s->kv == SL_KV_F32 ? 3e-3 : 2e-3); /* of which keys and values become half */
    free(dst);
    attention_free(&a);
}

static void prefill_is_float64s(void **state) {
    static const struct {
        attention_shape s;
        int32_t at_once;
    } cases[] = {
        {{SL_KV_F16, 2, 1, 64, 1, {1}, {0}, .window = 0}, 1},
        {{SL_KV_F16, 4, 2, 64, 2, {19, 5}, {0, 33}, .window = 0}, 2},
        {{SL_KV_F16, 2, 2, 128, 1, {17}, {50}, .window = 0}, 1},
        {{SL_KV_F16, 2, 1, 128, 2, {3, 16}, {64, 15}, .window = 0}, 2},
        {{SL_KV_F16, 1, 1, 256, 1, {18}, {40}, .window = 0}, 1},
        {{SL_KV_F32, 1, 1, 64, 1, {7}, {30}, .window = 0}, 1},
        {{SL_KV_Q8_0, 2, 1, 64, 1, {9}, {60}, .window = 0}, 2},
        {{SL_KV_Q8_0, 1, 1, 256, 1, {2}, {31}, .window = 0}, 1},
        {{SL_KV_F16, 4, 2, 64, 2, {19, 5}, {0, 33}, .apart = 64, .gate = true}, 2},
        {{SL_KV_F16, 2, 2, 128, 1, {5}, {50}, .apart = 5, .sinks = true}, 1},
        {{SL_KV_F16, 2, 1, 64, 1, {20}, {100}, .window = 50, .sinks = true}, 2},
        {{SL_KV_F16, 1, 1, 64, 1, {19}, {95}, .window = 3, .gate = true}, 1}, /* rows that see no key of a step */
        {{SL_KV_F16, 1, 1, 64, 1, {16}, {48}, .window = 1}, 1},
        {{SL_KV_F16, 1, 1, 64, 1, {6}, {10}, .window = 100}, 1},
    };
    rng r = {seed + 2};
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        run_prefill(&prefill, &r, &cases[i].s, cases[i].at_once, 1);
}

static void prefill_of_a_million_stays_finite(void **state) {
    rng r = {seed + 3};
    run_prefill(&prefill, &r, &(attention_shape){SL_KV_F16, 2, 1, 64, 1, {5}, {40}, .window = 0}, 2, 1e6f);
    /* a row's own key is the first of a step and far above the one before it, the step's next is far above both */
    run_prefill(&prefill, &r, &(attention_shape){SL_KV_F16, 4, 2, 64, 1, {3}, {31}, .window = 2}, 1, 1e6f);
    run_prefill(&wide, &r, &(attention_shape){SL_KV_F16, 2, 1, 576, 1, {5}, {40}, .values = 512}, 0, 1e6f);
}

static void prefill_over_a_latent_is_float64s(void **state) {
    static const attention_shape shapes[] = {
        {SL_KV_F16, 2, 1, 576, 1, {1}, {0}, .values = 512},
        {SL_KV_F16, 3, 1, 576, 2, {18, 5}, {0, 60}, .values = 512},
        {SL_KV_Q8_0, 1, 1, 576, 1, {9}, {30}, .values = 512, .apart = 8},
        {SL_KV_F32, 1, 1, 576, 1, {17}, {47}, .values = 512, .sinks = true},
        {SL_KV_F16, 1, 1, 576, 1, {19}, {95}, .values = 512, .window = 3}, /* rows that see no key of a step */
        {SL_KV_F16, 1, 1, 576, 1, {16}, {48}, .values = 512, .window = 1},
        {SL_KV_F16, 1, 1, 576, 1, {6}, {90}, .values = 512, .window = 40},
    };
    rng r = {seed + 6};
    for (size_t i = 0; i < SL_COUNT(shapes); i++)
        run_prefill(&wide, &r, &shapes[i], 0, 1);
}

/* ---- what comes before ------------------------------------------------------------------------------------------- */

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
            worst = e <= worst ? worst : e;
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
        worst = e <= worst ? worst : e;
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
            worst = e <= worst ? worst : e;
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

/* ---- heads of other sizes: libraries of their own, as the engine makes them ---------------------------------------
 */

static void heads_of_any_multiple_of_4_are_float64s(void **state) {
    static const attention_shape shapes[] = {
        {SL_KV_F16, 4, 2, 80, 1, {3}, {62}, .window = 0},
        {SL_KV_Q8_0, 3, 1, 96, 2, {2, 1}, {40, 5}, .gate = true, .apart = 96},
        {SL_KV_F16, 2, 1, 192, 1, {2}, {70}, .window = 20, .sinks = true},
        {SL_KV_F32, 1, 1, 16, 1, {2}, {33}, .window = 0},
        {SL_KV_F16, 6, 2, 24, 2, {1, 3}, {70, 4}, .gate = true, .apart = 24},
        {SL_KV_F16, 2, 1, 100, 1, {5}, {31}, .sinks = true},
        {SL_KV_F16, 5, 1, 48, 1, {3}, {61}, .values = 32},
        {SL_KV_F32, 9, 1, 44, 2, {2, 17}, {20, 33}, .values = 20, .window = 9},
        {SL_KV_F16, 3, 1, 320, 1, {4}, {66}, .gate = true, .sinks = true, .apart = 8}, /* wide, of two planes */
        {SL_KV_F16, 1, 1, 576, 1, {2}, {20}, .window = 0},
    };
    rng r = {seed + 5};
    for (size_t i = 0; i < SL_COUNT(shapes); i++) {
        const attention_shape *s = &shapes[i];
        char defines[128];
        kernels few, many;
        snprintf(defines, sizeof defines, "#define SL_ATTENTION_KV %s\n#define SL_ATTENTION_DIM %d\n",
                 attention_kv_names[s->kv], s->dim);
        if (s->values)
            snprintf(defines + strlen(defines), sizeof defines - strlen(defines), "#define SL_ATTENTION_VALUES %d\n",
                     s->values);
        bool whole = !s->values && s->dim <= 256;
        assert_true(
            kernels_open_with(&few, "attention_decode.metal", NULL, 0, defines) &&
            kernels_open_with(&many, whole ? "attention_prefill.metal" : "attention_wide.metal", NULL, 0, defines));
        run_decode(&few, &r, s, 1);
        run_prefill(&many, &r, s, whole, 1);
        if (whole && s->dim <= 128 && s->heads % (2 * s->kv_heads) == 0)
            run_prefill(&many, &r, s, 2, 1);
        kernels_close(&few);
        kernels_close(&many);
    }
}

int main(void) {
    if (!kernels_open(&prepare, "attention_prepare.metal", NULL, 0) ||
        !kernels_open(&decode, "attention_decode.metal", NULL, 0) ||
        !kernels_open(&prefill, "attention_prefill.metal", NULL, 0) ||
        !kernels_open(&wide, "attention_wide.metal", NULL, 0))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_are_prepared_as_the_cpus),          cmocka_unit_test(decode_is_float64s),
        cmocka_unit_test(decode_of_a_million_stays_finite),        cmocka_unit_test(prefill_is_float64s),
        cmocka_unit_test(prefill_of_a_million_stays_finite),       cmocka_unit_test(prefill_over_a_latent_is_float64s),
        cmocka_unit_test(heads_of_any_multiple_of_4_are_float64s),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&prepare);
    kernels_close(&decode);
    kernels_close(&prefill);
    kernels_close(&wide);
    return failed;
}

/* Attention on the soft device, its three kernel files: what is appended to the pages and how q and k are changed
 * against the CPU's operations; decode (split and combined) and prefill against float64 over the pages' own values.
 * Sequences share slabs, their blocks are in no order, and memory behind the last token is NaN. */
#include "support_kernels.h"

#include "cpu/cpu_ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 1234567;
static kernels prepare, decode, prefill;

enum { LAYERS = 2, LAYER = 1, PER_SLAB = 3 };

static const char *const kv_names[] = {[SL_KV_F16] = "f16", [SL_KV_Q8_0] = "q8_0", [SL_KV_F32] = "f32"};

typedef struct shape {
    sl_kv_format kv;
    int32_t heads, kv_heads, dim;
    int32_t seqs, rows[3], position[3]; /* of the first row of each sequence */
} shape;

/* Operands of one step over paged memory. */
typedef struct attention {
    shape s;
    sl_kv_layout layout;
    int32_t rows, pages_per_seq, slabs;
    int32_t *pages, seq[96], position[96];
    uint8_t *slab[4];
    uint64_t slab_bytes;
    kernel_step step;
    float *q;
} attention;

static void lay_out(attention *a) {
    sl_kv_layout *l = &a->layout;
    *l = (sl_kv_layout){.format = a->s.kv, .layers = LAYERS, .kv_heads = a->s.kv_heads, .head_dim = a->s.dim};
    assert_true(sl_kv_layout_init(l, 1 << 26, NULL));
    l->blocks_per_slab = PER_SLAB;
    a->slab_bytes = l->block_bytes * PER_SLAB;
}

static uint8_t *page_of(const attention *a, int32_t seq, int32_t page, int32_t head, int plane) {
    int32_t block = a->pages[seq * a->pages_per_seq + page];
    return a->slab[block / PER_SLAB] + (uint64_t)(block % PER_SLAB) * a->layout.block_bytes +
           (uint64_t)(LAYER * 2 + plane) * a->layout.plane_bytes +
           (uint64_t)head * SL_KV_PAGE_TOKENS * a->layout.head_bytes;
}

static cpu_kv_type cpu_type(sl_kv_format f) {
    return f == SL_KV_F16 ? CPU_KV_F16 : f == SL_KV_F32 ? CPU_KV_F32 : CPU_KV_Q8_0;
}

static void store_token(const attention *a, rng *r, int32_t seq, int32_t position) {
    float *x = kernel_floats(r, (size_t)a->s.dim, 1);
    for (int plane = 0; plane < 2; plane++)
        for (int32_t h = 0; h < a->s.kv_heads; h++) {
            for (int32_t d = 0; d < a->s.dim; d++)
                x[d] = rng_normal(r);
            cpu_ops_get("scalar")->kv_store(page_of(a, seq, position / 64, h, plane) +
                                                (uint64_t)(position % 64) * a->layout.head_bytes,
                                            x, a->s.dim, cpu_type(a->s.kv));
        }
    free(x);
}

/* filled: tokens of every sequence up to its last row are there; else up to its first row's predecessor. */
static attention attention_new(rng *r, const shape *s, bool filled, float magnitude) {
    attention a = {.s = *s};
    lay_out(&a);
    int32_t most = 0;
    for (int32_t i = 0; i < s->seqs; i++) {
        int32_t end = s->position[i] + s->rows[i];
        most = end > most ? end : most;
        for (int32_t j = 0; j < s->rows[i]; j++, a.rows++) {
            a.seq[a.rows] = i;
            a.position[a.rows] = s->position[i] + j;
        }
    }
    a.pages_per_seq = (most + 63) / 64;
    int32_t blocks = a.pages_per_seq * s->seqs;
    a.slabs = (blocks + PER_SLAB - 1) / PER_SLAB;
    assert_true(a.slabs <= (int)SL_COUNT(a.slab));
    a.pages = malloc((size_t)blocks * 4);
    for (int32_t i = 0; i < blocks; i++) /* descending, sequences interleaved */
        a.pages[i] = blocks - 1 - (i % a.pages_per_seq * s->seqs + i / a.pages_per_seq);
    for (int32_t i = 0; i < a.slabs; i++) {
        a.slab[i] = malloc(a.slab_bytes);
        memset(a.slab[i], 0xff, a.slab_bytes);
    }
    for (int32_t i = 0; i < s->seqs; i++)
        for (int32_t t = 0; t < s->position[i] + (filled ? s->rows[i] : 0); t++)
            store_token(&a, r, i, t);
    a.step = kernel_step_new(&(kernel_rows){.rows = a.rows,
                                            .seqs = s->seqs,
                                            .seq = a.seq,
                                            .position = a.position,
                                            .pages_per_seq = a.pages_per_seq,
                                            .pages = a.pages});
    a.q = kernel_floats(r, (size_t)(a.rows * s->heads * s->dim), magnitude);
    return a;
}

static void attention_free(attention *a) {
    for (int32_t i = 0; i < a->slabs; i++)
        free(a->slab[i]);
    free(a->pages);
    free(a->step.words);
    free(a->q);
}

static sl_attention_args args_of(const attention *a) {
    uint64_t q = (uint64_t)(a->s.heads * a->s.dim), kv = (uint64_t)(a->s.kv_heads * a->s.dim);
    return (sl_attention_args){.q_stride = q,
                               .k_stride = kv,
                               .v_stride = kv,
                               .dst_stride = q,
                               .head_bytes = a->layout.head_bytes,
                               .plane_bytes = a->layout.plane_bytes,
                               .block_bytes = a->layout.block_bytes,
                               .layer = LAYER,
                               .blocks_per_slab = PER_SLAB,
                               .heads = (uint32_t)a->s.heads,
                               .kv_heads = (uint32_t)a->s.kv_heads,
                               .head_dim = (uint32_t)a->s.dim,
                               .scale = 1 / sqrtf((float)a->s.dim),
                               .eps = 1e-6f,
                               .rope_scale = 1};
}

static size_t bind_slabs(kernel_binding *b, const attention *a, bool written) {
    for (int32_t i = 0; i < a->slabs; i++) {
        b[i] = in(SL_SLAB_FIRST + i, a->slab[i], a->slab_bytes);
        b[i].out = written;
    }
    return (size_t)a->slabs;
}

/* ---- what attention should give ---------------------------------------------------------------------------------- */

static double kv_value(const attention *a, const uint8_t *p, int32_t d) {
    uint16_t h;
    float f;
    if (a->s.kv == SL_KV_F32) {
        memcpy(&f, p + 4 * d, 4);
        return f;
    }
    bool blocks = a->s.kv == SL_KV_Q8_0;
    memcpy(&h, blocks ? p + d / 32 * 34 : p + 2 * d, 2);
    return blocks ? (double)sl_f16_to_f32(h) * (int8_t)p[d / 32 * 34 + 2 + d % 32] : (double)sl_f16_to_f32(h);
}

static const uint8_t *token_at(const attention *a, int32_t seq, int32_t t, int32_t head, int plane) {
    return page_of(a, seq, t / 64, head, plane) + (uint64_t)(t % 64) * a->layout.head_bytes;
}

/* out[d] and *size, the root of the sum of squares that its rounding errors are measured by, at least */
static void attend(const attention *a, int32_t row, int32_t head, double *out, double *size) {
    int32_t n = a->position[row] + 1, dim = a->s.dim, kv = head / (a->s.heads / a->s.kv_heads);
    double *p = malloc((size_t)n * 8), max = -1e300, sum = 0, scale = args_of(a).scale;
    const float *q = a->q + (row * a->s.heads + head) * dim;
    for (int32_t t = 0; t < n; t++) {
        const uint8_t *k = token_at(a, a->seq[row], t, kv, 0);
        p[t] = 0;
        for (int32_t d = 0; d < dim; d++)
            p[t] += q[d] * kv_value(a, k, d) * scale;
        max = fmax(max, p[t]);
    }
    for (int32_t t = 0; t < n; t++)
        sum += p[t] = exp(p[t] - max);
    *size = 0;
    for (int32_t d = 0; d < dim; d++) {
        out[d] = 0;
        for (int32_t t = 0; t < n; t++)
            out[d] += p[t] / sum * kv_value(a, token_at(a, a->seq[row], t, kv, 1), d);
        *size += out[d] * out[d] / dim;
    }
    *size = sqrt(*size);
    free(p);
}

static double worst_error(const attention *a, const float *dst) {
    double out[256], size, worst = 0;
    for (int32_t row = 0; row < a->rows; row++)
        for (int32_t h = 0; h < a->s.heads; h++) {
            attend(a, row, h, out, &size);
            for (int32_t d = 0; d < a->s.dim; d++) {
                double e = fabs(dst[(row * a->s.heads + h) * a->s.dim + d] - out[d]) / size;
                worst = e <= worst ? worst : e;
            }
        }
    return worst;
}

/* ---- decode ------------------------------------------------------------------------------------------------------ */

static void run_decode(rng *r, const shape *s, float magnitude) {
    attention a = attention_new(r, s, true, magnitude);
    sl_attention_args args = args_of(&a);
    args.splits = (uint32_t)(a.pages_per_seq * 64 / SL_ATTENTION_SPLIT + 1);
    size_t n = (size_t)(a.rows * s->heads * s->dim),
           partials = (size_t)(a.rows * s->heads) * args.splits * (size_t)(s->dim + 2);
    float *partial = kernel_poison(partials), *dst = kernel_poison(n);
    kernel_binding b[10] = {in(0, &args, sizeof args), in(1, a.q, n * 4), out(2, partial, partials * 4),
                            in(3, a.step.words, a.step.bytes)};
    size_t count = 4 + bind_slabs(b + 4, &a, false);
    char entry[64];
    snprintf(entry, sizeof entry, "attention_decode_%s_%d", kv_names[s->kv], s->dim);
    kernels_run(&decode, &(kernel_call){.entry = entry,
                                        .groups = {args.splits, (uint32_t)s->kv_heads, (uint32_t)a.rows + 1},
                                        .threads = {SL_ATTENTION_THREADS, 1, 1},
                                        .bindings = b,
                                        .count = count,
                                        .slabs = true});
    kernel_binding c[] = {in(0, &args, sizeof args), in(1, partial, partials * 4), out(2, dst, n * 4),
                          in(3, a.step.words, a.step.bytes)};
    kernels_run(&decode, &(kernel_call){.entry = "attention_combine",
                                        .groups = {(uint32_t)s->heads, (uint32_t)a.rows + 1, 1},
                                        .threads = {64, 1, 1},
                                        .bindings = c,
                                        .count = 4});
    kernels_result(&decode, entry, worst_error(&a, dst), magnitude > 1 ? 1e-3 : 1e-5);
    free(partial);
    free(dst);
    attention_free(&a);
}

static void decode_is_float64s(void **state) {
    static const shape shapes[] = {
        {SL_KV_F16, 4, 2, 64, 1, {1}, {0}},    {SL_KV_F16, 6, 2, 64, 3, {1, 1, 1}, {31, 64, 100}},
        {SL_KV_F16, 10, 1, 128, 1, {1}, {77}}, /* more heads than are taken at a time */
        {SL_KV_F16, 4, 4, 64, 1, {1}, {530}},  /* two splits */
        {SL_KV_F16, 6, 1, 256, 1, {2}, {69}},  {SL_KV_F32, 2, 1, 64, 2, {1, 2}, {5, 126}},
        {SL_KV_F32, 2, 2, 128, 1, {1}, {40}},  {SL_KV_F32, 4, 1, 256, 1, {1}, {33}},
        {SL_KV_Q8_0, 4, 2, 64, 1, {2}, {80}},  {SL_KV_Q8_0, 2, 1, 128, 1, {1}, {40}},
        {SL_KV_Q8_0, 5, 1, 256, 1, {1}, {34}},
    };
    rng r = {seed};
    for (size_t i = 0; i < SL_COUNT(shapes); i++)
        run_decode(&r, &shapes[i], 1);
}

static void decode_of_a_million_stays_finite(void **state) {
    rng r = {seed + 1};
    run_decode(&r, &(shape){SL_KV_F16, 4, 2, 64, 1, {1}, {70}}, 1e6f);
}

/* ---- prefill ----------------------------------------------------------------------------------------------------- */

static void run_prefill(rng *r, const shape *s, int32_t at_once, float magnitude) {
    attention a = attention_new(r, s, true, magnitude);
    sl_attention_args args = args_of(&a);
    size_t n = (size_t)(a.rows * s->heads * s->dim);
    float *dst = kernel_poison(n);
    kernel_binding b[10] = {in(0, &args, sizeof args), in(1, a.q, n * 4), out(2, dst, n * 4),
                            in(3, a.step.words, a.step.bytes)};
    size_t count = 4 + bind_slabs(b + 4, &a, false);
    char entry[64];
    snprintf(entry, sizeof entry, "attention_prefill_%s_%d_%d", kv_names[s->kv], s->dim, at_once);
    kernels_run(&prefill, &(kernel_call){.entry = entry,
                                         .groups = {(uint32_t)(s->heads / at_once), (uint32_t)a.rows, 1},
                                         .threads = {SL_ATTENTION_THREADS, 1, 1},
                                         .bindings = b,
                                         .count = count,
                                         .slabs = true});
    /* of values of a million one key has all the weight, and half precision may choose another of two that are near */
    double e = worst_error(&a, dst);
    for (size_t i = 0; i < n; i++)
        assert_true(isfinite(dst[i]));
    if (magnitude == 1)
        kernels_result(&prefill, entry, e, 2e-3);
    free(dst);
    attention_free(&a);
}

static void prefill_is_float64s(void **state) {
    static const struct {
        shape s;
        int32_t at_once;
    } cases[] = {
        {{SL_KV_F16, 2, 1, 64, 1, {1}, {0}}, 1},    {{SL_KV_F16, 4, 2, 64, 2, {19, 5}, {0, 33}}, 2},
        {{SL_KV_F16, 2, 2, 128, 1, {17}, {50}}, 1}, {{SL_KV_F16, 2, 1, 128, 2, {3, 16}, {64, 15}}, 2},
        {{SL_KV_F16, 1, 1, 256, 1, {18}, {40}}, 1}, {{SL_KV_F32, 1, 1, 64, 1, {7}, {30}}, 1},
        {{SL_KV_Q8_0, 2, 1, 64, 1, {9}, {60}}, 2},  {{SL_KV_Q8_0, 1, 1, 256, 1, {2}, {31}}, 1},
    };
    rng r = {seed + 2};
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        run_prefill(&r, &cases[i].s, cases[i].at_once, 1);
}

static void prefill_of_a_million_stays_finite(void **state) {
    rng r = {seed + 3};
    run_prefill(&r, &(shape){SL_KV_F16, 2, 1, 64, 1, {5}, {40}}, 2, 1e6f);
}

/* ---- what comes before ------------------------------------------------------------------------------------------- */

typedef struct prepare_case {
    shape s;
    int32_t dims; /* rotated */
    bool interleaved, norm;
    float scale;
} prepare_case;

static void make_table(const attention *a, const prepare_case *c, const float *inv_freq, float *cos_sin) {
    sl_attention_args args = args_of(a);
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
        cpu_ops_get("scalar")->rope(x, c->dims, c->interleaved, cos_sin, cos_sin + c->dims / 2);
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
    uint8_t stored[1024];
    for (int32_t row = 0; row < a->rows; row++)
        for (int32_t h = 0; h < a->s.kv_heads; h++)
            for (int plane = 0; plane < 2; plane++) {
                const float *x = (plane ? v : k) + (row * a->s.kv_heads + h) * a->s.dim;
                cpu_ops_get("scalar")->kv_store(stored, x, a->s.dim, cpu_type(a->s.kv));
                assert_memory_equal(token_at(a, a->seq[row], a->position[row], h, plane), stored, a->layout.head_bytes);
            }
}

static void run_prepare(rng *r, const prepare_case *c) {
    const shape *s = &c->s;
    attention a = attention_new(r, s, false, 2);
    size_t nq = (size_t)(a.rows * s->heads * s->dim), nk = (size_t)(a.rows * s->kv_heads * s->dim);
    float *k = kernel_floats(r, nk, 3), *v = kernel_floats(r, nk, 1), *k0 = malloc(nk * 4), *q0 = malloc(nq * 4);
    float *q_norm = kernel_floats(r, (size_t)s->dim, 1), *k_norm = kernel_floats(r, (size_t)s->dim, 1);
    float inv_freq[128], *cos_sin = kernel_poison((size_t)(a.rows * (c->dims + 1)));
    for (int32_t i = 0; i < c->dims / 2; i++)
        inv_freq[i] = powf(10000, -2.0f * (float)i / (float)c->dims);
    memcpy(k0, k, nk * 4);
    memcpy(q0, a.q, nq * 4);
    if (c->dims)
        make_table(&a, c, inv_freq, cos_sin);
    sl_attention_args args = args_of(&a);
    args.rope_dims = (uint32_t)c->dims;
    kernel_binding b[12] = {in(0, &args, sizeof args),
                            out(1, a.q, nq * 4),
                            out(2, k, nk * 4),
                            in(3, v, nk * 4),
                            in(4, q_norm, (size_t)s->dim * 4),
                            in(5, k_norm, (size_t)s->dim * 4),
                            in(6, cos_sin, (size_t)(a.rows * (c->dims + 1)) * 4),
                            in(7, a.step.words, a.step.bytes)};
    size_t count = 8 + bind_slabs(b + 8, &a, true), m = 0;
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
    snprintf(entry, sizeof entry, "attention_prepare_%s", kv_names[s->kv]);
    kernels_run(&prepare, &(kernel_call){.entry = entry,
                                         .groups = {(uint32_t)(s->heads + 2 * s->kv_heads), (uint32_t)a.rows + 1, 1},
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
            int64_t at =
                query ? (int64_t)(row * s->heads + h) * s->dim : (int64_t)(row * s->kv_heads + h - s->heads) * s->dim;
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
        {{SL_KV_F16, 4, 2, 64, 2, {3, 1}, {62, 7}}, 64, false, true, 1},
        {{SL_KV_F16, 2, 1, 128, 1, {2}, {100}}, 128, true, false, 1.5f},
        {{SL_KV_F16, 3, 1, 80, 1, {2}, {1}}, 30, false, true, 1}, /* partial, a head of no multiple of 32 */
        {{SL_KV_F16, 2, 2, 256, 1, {1}, {63}}, 64, true, true, 1},
        {{SL_KV_F32, 2, 2, 64, 1, {2}, {63}}, 32, false, false, 1},
        {{SL_KV_Q8_0, 2, 1, 64, 1, {3}, {0}}, 64, false, true, 1},
        {{SL_KV_Q8_0, 2, 1, 128, 1, {1}, {65}}, 0, false, false, 1},
    };
    rng r = {seed + 4};
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        run_prepare(&r, &cases[i]);
}

int main(void) {
    if (!kernels_open(&prepare, "attention_prepare.metal", NULL, 0) ||
        !kernels_open(&decode, "attention_decode.metal", NULL, 0) ||
        !kernels_open(&prefill, "attention_prefill.metal", NULL, 0))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_are_prepared_as_the_cpus),    cmocka_unit_test(decode_is_float64s),
        cmocka_unit_test(decode_of_a_million_stays_finite),  cmocka_unit_test(prefill_is_float64s),
        cmocka_unit_test(prefill_of_a_million_stays_finite),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&prepare);
    kernels_close(&decode);
    kernels_close(&prefill);
    return failed;
}

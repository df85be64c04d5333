/* Operands of attention and its answer by float64. */
#include "support_attention.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 2, PER_SLAB = 3 };

const char *const attention_kv_names[] = {[SL_KV_F16] = "f16", [SL_KV_Q8_0] = "q8_0", [SL_KV_F32] = "f32"};

int32_t attention_values(const attention_shape *s) {
    return s->values ? s->values : s->dim;
}

int32_t attention_stride(const attention *a) {
    return a->s.dim + a->s.apart;
}

static void lay_out(attention *a) {
    sl_kv_layout *l = &a->layout;
    *l = (sl_kv_layout){.format = a->s.kv,
                        .layers = LAYERS,
                        .kv_heads = a->s.kv_heads,
                        .head_dim = a->s.dim,
                        .planes = a->s.values ? 1 : 2};
    assert_true(sl_kv_layout_init(l, 1 << 26, NULL));
    l->blocks_per_slab = PER_SLAB;
    a->slab_bytes = l->block_bytes * PER_SLAB;
}

static uint8_t *attention_page(const attention *a, int32_t seq, int32_t page, int32_t head, int plane) {
    int32_t block = a->pages[seq * a->pages_per_seq + page];
    return a->slab[block / PER_SLAB] + (uint64_t)(block % PER_SLAB) * a->layout.block_bytes +
           (uint64_t)(ATTENTION_LAYER * a->layout.planes + plane) * a->layout.plane_bytes +
           (uint64_t)head * SL_KV_PAGE_TOKENS * a->layout.head_bytes;
}

cpu_kv_type attention_cpu_type(sl_kv_format f) {
    return f == SL_KV_F16 ? CPU_KV_F16 : f == SL_KV_F32 ? CPU_KV_F32 : CPU_KV_Q8_0;
}

static void store_token(const attention *a, rng *r, int32_t seq, int32_t position) {
    float *x = kernel_floats(r, (size_t)a->s.dim, 1);
    for (int plane = 0; plane < a->layout.planes; plane++)
        for (int32_t h = 0; h < a->s.kv_heads; h++) {
            for (int32_t d = 0; d < a->s.dim; d++)
                x[d] = rng_normal(r);
            cpu_ops_get("scalar")->kv_store(attention_page(a, seq, position / 64, h, plane) +
                                                (uint64_t)(position % 64) * a->layout.head_bytes,
                                            x, a->s.dim, attention_cpu_type(a->s.kv));
        }
    free(x);
}

attention attention_new(rng *r, const attention_shape *s, bool filled, float magnitude) {
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
                                            .pages = a.pages,
                                            .per_slab = PER_SLAB,
                                            .block_bytes = a.layout.block_bytes});
    a.q_count = (size_t)(a.rows * s->heads * attention_stride(&a));
    a.q = kernel_floats(r, a.q_count, magnitude);
    a.gate = kernel_floats(r, a.q_count, 2);
    a.sinks = kernel_floats(r, (size_t)s->heads, 3);
    return a;
}

void attention_free(attention *a) {
    for (int32_t i = 0; i < a->slabs; i++)
        free(a->slab[i]);
    free(a->pages);
    free(a->step.words);
    free(a->q);
    free(a->gate);
    free(a->sinks);
}

sl_attention_args attention_args(const attention *a) {
    uint64_t q = (uint64_t)(a->s.heads * attention_stride(a)), kv = (uint64_t)(a->s.kv_heads * a->s.dim);
    return (sl_attention_args){.q_stride = q,
                               .k_stride = kv,
                               .v_stride = kv,
                               .gate_stride = q,
                               .dst_stride = (uint64_t)(a->s.heads * attention_values(&a->s)),
                               .window = (uint32_t)a->s.window,
                               .head_bytes = a->layout.head_bytes,
                               .plane_bytes = a->layout.plane_bytes,
                               .layer = ATTENTION_LAYER,
                               .heads = (uint32_t)a->s.heads,
                               .kv_heads = (uint32_t)a->s.kv_heads,
                               .head_dim = (uint32_t)a->s.dim,
                               .head_stride = (uint32_t)attention_stride(a),
                               .scale = 1 / sqrtf((float)a->s.dim),
                               .eps = 1e-6f,
                               .rope_scale = 1,
                               .planes = (uint32_t)a->layout.planes,
                               .value_dim = (uint32_t)attention_values(&a->s)};
}

size_t attention_slabs(kernel_binding *b, const attention *a, bool written) {
    for (int32_t i = 0; i < a->slabs; i++) {
        b[i] = in(SL_SLAB_FIRST + i, a->slab[i], a->slab_bytes);
        b[i].out = written;
    }
    return (size_t)a->slabs;
}

size_t attention_result(kernel_binding *b, const attention *a) {
    b[0] = in(4, a->gate, a->q_count * 4);
    b[1] = in(5, a->sinks, (size_t)a->s.heads * 4);
    return 2;
}

size_t attention_constants(sl_gpu_constant *c, const attention *a) {
    size_t n = 0;
    if (a->s.gate)
        c[n++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_GATE);
    if (a->s.sinks)
        c[n++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_SINKS);
    return n;
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

const uint8_t *attention_token(const attention *a, int32_t seq, int32_t t, int32_t head, int plane) {
    return attention_page(a, seq, t / 64, head, plane) + (uint64_t)(t % 64) * a->layout.head_bytes;
}

/* out[d] and *size, the root of the sum of squares that its rounding errors are measured by, at least */
static void attend(const attention *a, int32_t row, int32_t head, double *out, double *size) {
    int32_t n = a->position[row] + 1, dim = a->s.dim, values = attention_values(&a->s);
    int32_t kv = head / (a->s.heads / a->s.kv_heads), plane = a->layout.planes - 1;
    int32_t first = a->s.window && n > a->s.window ? n - a->s.window : 0;
    double *p = calloc((size_t)n, 8), max = a->s.sinks ? a->sinks[head] : -1e300, sum = 0,
           scale = attention_args(a).scale;
    const float *q = a->q + (row * a->s.heads + head) * attention_stride(a), *gate = a->gate + (q - a->q);
    for (int32_t t = first; t < n; t++) {
        const uint8_t *k = attention_token(a, a->seq[row], t, kv, 0);
        p[t] = 0;
        for (int32_t d = 0; d < dim; d++)
            p[t] += q[d] * kv_value(a, k, d) * scale;
        max = fmax(max, p[t]);
    }
    for (int32_t t = first; t < n; t++)
        sum += p[t] = exp(p[t] - max);
    sum += a->s.sinks ? exp(a->sinks[head] - max) : 0;
    *size = 0;
    for (int32_t d = 0; d < values; d++) {
        out[d] = 0;
        for (int32_t t = first; t < n; t++)
            out[d] += p[t] / sum * kv_value(a, attention_token(a, a->seq[row], t, kv, plane), d);
        out[d] *= a->s.gate ? 1 / (1 + exp(-gate[d])) : 1;
        *size += out[d] * out[d] / values;
    }
    *size = sqrt(*size);
    free(p);
}

double attention_error(const attention *a, const float *dst) {
    double out[SL_ATTENTION_DIM_MAX], size, worst = 0;
    int32_t values = attention_values(&a->s);
    for (int32_t row = 0; row < a->rows; row++)
        for (int32_t h = 0; h < a->s.heads; h++) {
            attend(a, row, h, out, &size);
            for (int32_t d = 0; d < values; d++) {
                double e = fabs(dst[(row * a->s.heads + h) * values + d] - out[d]) / size;
                worst = worse_of(worst, e);
            }
        }
    return worst;
}

void attention_forget(const attention *a, int32_t keep_from) {
    for (int32_t seq = 0; seq < a->s.seqs; seq++)
        for (int32_t t = 0; t < keep_from && a->s.window; t++)
            for (int32_t h = 0; h < a->s.kv_heads; h++)
                for (int plane = 0; plane < a->layout.planes; plane++)
                    memset((uint8_t *)attention_token(a, seq, t, h, plane), 0xff, a->layout.head_bytes);
}

/* ---- splits ------------------------------------------------------------------------------------------------------ */

void attention_decode(kernels *with, kernels *combine, const char *entry, int32_t at_once, rng *r,
                      const attention_shape *s, float magnitude) {
    attention a = attention_new(r, s, true, magnitude);
    if (s->seqs == 1)
        attention_forget(&a, (s->position[0] + 1 - s->window) / 32 * 32);
    sl_attention_args args = attention_args(&a);
    args.splits = (uint32_t)(a.pages_per_seq * 64 / SL_ATTENTION_SPLIT + 1);
    size_t n = (size_t)(a.rows * s->heads * attention_values(s)),
           partials = (size_t)(a.rows * s->heads) * args.splits * (size_t)(attention_values(s) + 2);
    float *partial = kernel_poison(partials), *dst = kernel_poison(n);
    kernel_binding b[14] = {in(0, &args, sizeof args), in(1, a.q, a.q_count * 4), out(2, partial, partials * 4),
                            in(3, a.step.words, a.step.bytes)};
    size_t count = 4 + attention_slabs(b + 4, &a, false);
    sl_gpu_constant constants[2];
    int32_t tiles = (s->heads / s->kv_heads + at_once - 1) / at_once;
    kernels_run(with, &(kernel_call){.entry = entry,
                                     .groups = {args.splits, (uint32_t)(s->kv_heads * tiles), (uint32_t)a.rows + 1},
                                     .threads = {SL_ATTENTION_THREADS, 1, 1},
                                     .bindings = b,
                                     .count = count,
                                     .slabs = true});
    kernel_binding c[6] = {in(0, &args, sizeof args), in(1, partial, partials * 4), out(2, dst, n * 4),
                           in(3, a.step.words, a.step.bytes)};
    kernels_run(combine, &(kernel_call){.entry = "attention_combine",
                                        .groups = {(uint32_t)s->heads, (uint32_t)a.rows + 1, 1},
                                        .threads = {64, 1, 1},
                                        .bindings = c,
                                        .count = 4 + attention_result(c + 4, &a),
                                        .constants = constants,
                                        .constant_count = attention_constants(constants, &a)});
    kernels_result(with, entry, attention_error(&a, dst), magnitude > 1 ? 1e-3 : 1e-5);
    free(partial);
    free(dst);
    attention_free(&a);
}

/* ---- blocks of rows ---------------------------------------------------------------------------------------------- */

/* Query heads of a kv head that a threadgroup of attention_large.metal takes. */
static int32_t large_heads(const attention_shape *s) {
    int32_t h = 8;
    while (s->heads / s->kv_heads % h != 0)
        h--;
    return h;
}

void attention_prefill(kernels *with, rng *r, const attention_shape *s, int32_t at_once, float magnitude) {
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
    bool large = at_once == ATTENTION_LARGE;
    int32_t heads = large ? large_heads(s) : at_once ? at_once : 1;
    if (large)
        snprintf(entry, sizeof entry, "attention_large_%s_%d", attention_kv_names[s->kv], s->dim);
    else if (at_once)
        snprintf(entry, sizeof entry, "attention_prefill_%s_%d_%d", attention_kv_names[s->kv], s->dim, at_once);
    else
        snprintf(entry, sizeof entry, "attention_wide_%s_%d", attention_kv_names[s->kv], s->dim);
    kernels_run(with, &(kernel_call){.entry = entry,
                                     .constants = constants,
                                     .constant_count = attention_constants(constants, &a),
                                     .groups = {(uint32_t)(s->heads / heads), (uint32_t)a.rows, 1},
                                     .threads = {large ? SL_ATTENTION_LARGE_THREADS : SL_ATTENTION_THREADS, 1, 1},
                                     .bindings = b,
                                     .count = count,
                                     .slabs = true});
    /* of values of a million one key has all the weight, and half precision may choose another of two that are near */
    double e = attention_error(&a, dst);
    for (size_t i = 0; i < n; i++)
        assert_true(isfinite(dst[i]));
    if (magnitude == 1)
        kernels_result(with, entry, e, s->kv == SL_KV_F16 ? 2e-3 : 3e-3); /* of others keys and values become half */
    free(dst);
    attention_free(&a);
}

bool attention_open(kernels *k, const char *file, const attention_shape *s) {
    char defines[128];
    int n = snprintf(defines, sizeof defines, "#define SL_ATTENTION_KV %s\n#define SL_ATTENTION_DIM %d\n",
                     attention_kv_names[s->kv], s->dim);
    if (s->values)
        snprintf(defines + n, sizeof defines - (size_t)n, "#define SL_ATTENTION_VALUES %d\n", s->values);
    return kernels_open_with(k, file, NULL, 0, defines);
}

/* cpu_ops: the operations of the forward pass that are not matrix products: norms, rotation, KV pages, attention, sums.
 *
 * One source (cpu_ops_impl.h, 16-wide vectors, separate multiply and add, no contraction) is compiled once per
 * instruction set, so that every set gives the same bits. May include: quant, base. Called by ops. */
#ifndef SL_CPU_OPS_H
#define SL_CPU_OPS_H

#include "base/base.h"

typedef enum cpu_kv_type { CPU_KV_F16, CPU_KV_Q8_0, CPU_KV_F32 } cpu_kv_type;

enum { CPU_KV_PAGE = 64, CPU_KV_SPLIT = 512 };

/* Causal attention of `rows` consecutive rows of one sequence for one kv head.
 * q(row r, head g) = q + r * q_stride + g * head_dim; dst alike. Row r attends positions 0..position + r, or the last
 * `window` of them. A sink is a score beside the keys' that takes its share of the softmax and has no value.
 * page(ctx, i, &k, &v): K and V of the kv head in page i, [64][head_bytes]. */
typedef struct cpu_attention {
    const float *q;
    float *dst;
    int64_t q_stride, dst_stride;
    int32_t rows, group, head_dim;
    int32_t position;
    int32_t window;     /* 0: all positions */
    const float *sinks; /* [group]; NULL: none */
    float scale;
    cpu_kv_type type;
    uint64_t head_bytes;
    void (*page)(const void *ctx, int32_t index, const uint8_t **k, const uint8_t **v);
    const void *ctx;
    float *scratch; /* cpu_attention_scratch floats */
} cpu_attention;

/* Floats of scratch for one call. */
static inline uint64_t cpu_attention_scratch(int32_t rows, int32_t group, int32_t head_dim) {
    return 2ull * CPU_KV_PAGE * (uint64_t)head_dim +
           (uint64_t)rows * (uint64_t)group * (2ull * (uint64_t)head_dim + 16) + (uint64_t)group * CPU_KV_PAGE;
}

typedef struct cpu_ops {
    const char *name;
    /* dst = src / sqrt(mean(src^2) + eps) * weight */
    void (*rms_norm)(float *dst, const float *src, const float *weight, int32_t n, float eps);
    /* x (one head) rotated in place: pairs by `interleaved`; cos, sin [dims/2] */
    void (*rope)(float *x, int32_t dims, bool interleaved, const float *cos, const float *sin);
    void (*add)(float *dst, const float *src, int64_t n);
    /* dst += src * w */
    void (*axpy)(float *dst, const float *src, float w, int64_t n);
    /* one head of one token into a page */
    void (*kv_store)(uint8_t *dst, const float *x, int32_t head_dim, cpu_kv_type type);
    void (*attention)(const cpu_attention *a);
    /* x[i] = exp(x[i] - max x); returns the sum in the documented order */
    float (*softmax_numerators)(float *x, int32_t n);
    bool (*all_finite)(const float *x, int64_t n);
} cpu_ops;

/* name: NULL for the best of this machine, or scalar, avx2, avx512, neon; NULL if this machine or build has none of
 * that name. */
const cpu_ops *cpu_ops_get(const char *name);

#endif

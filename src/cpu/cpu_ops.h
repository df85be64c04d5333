/* cpu_ops: the operations of the forward pass that are not matrix products: norms, rotation, KV pages, attention, the
 * delta rule, sums.
 *
 * One source (cpu_ops_impl.h, 16-wide vectors, separate multiply and add, no contraction) is compiled once per
 * instruction set, so that every set gives the same bits. May include: quant, base. Called by ops. */
#ifndef SL_CPU_OPS_H
#define SL_CPU_OPS_H

#include "base/base.h"

typedef enum cpu_kv_type { CPU_KV_F16, CPU_KV_Q8_0, CPU_KV_F32 } cpu_kv_type;

enum { CPU_KV_PAGE = 64, CPU_KV_SPLIT = 512 };

/* Causal attention of `rows` consecutive rows of one sequence for one kv head.
 * q(row r, head g) = q + r * q_stride + g * q_head; dst alike, g * value_dim. With a gate, dst is multiplied with
 * sigmoid(gate), which lies as q does. Row r attends positions 0..position + r, or the last
 * `window` of them. A sink is a score beside the keys' that takes its share of the softmax and has no value.
 * page(ctx, i, &k, &v): K and V of the kv head in page i, [64][head_bytes]. */
typedef struct cpu_attention {
    const float *q;
    float *dst;
    int64_t q_stride, dst_stride;
    int64_t q_head;    /* 0: head_dim */
    const float *gate; /* NULL: none */
    int64_t gate_stride;
    int32_t rows, group, head_dim;
    int32_t
        value_dim; /* columns of a value and of dst's head; below head_dim where page gives K as V (its head_bytes) */
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

/* Causal convolution of each channel by itself over consecutive rows of one sequence, then SiLU, in place:
 *   x[r][c] = silu(sum over t ascending of weight[c][t] * x[r - (kernel - 1) + t][c] + bias[c])
 * where rows before the first are those of state, which is left with the last kernel - 1 rows of the input. Order: a
 * product, then fma by fma, then the bias. */
typedef struct cpu_conv {
    float *x; /* [rows][channels], row stride x_stride */
    int64_t x_stride;
    float *state; /* [kernel - 1][channels], row stride state_stride, oldest first */
    int64_t state_stride;
    const float *weight; /* [channels][kernel] */
    const float *bias;   /* [channels]; NULL: none */
    int32_t rows, channels, kernel;
    bool fresh; /* the sequence begins: state counts as zeros */
} cpu_conv;

enum { CPU_CONV_KERNEL = 8 /* widest */, CPU_DELTA_ROWS = 16 /* of a chunk */ };

/* The gated delta rule of one value head over consecutive rows of one sequence (ops.h, sl_delta), from the output of
 * the convolution to the gated norm. Row r: q + r * x_stride and so on.
 *
 * In chunks of CPU_DELTA_ROWS positions that begin at multiples of it (cpu_delta_impl.h): state is that at the start of
 * the chunk of the last row, kept what this chunk's rows added. Order, the same everywhere and for one row as for many:
 * sums of squares as in rms_norm; products of two keys in 16 partial sums by dimension mod 16; a row times the state
 * fma by fma with key dimensions ascending; then the chunk's rows before it, fma by fma, ascending; decays multiplied
 * one by one from the older row on. Gates in double, rounded once. The oracle goes row by row: its state is that after
 * the last row, and nothing is kept. */
typedef struct cpu_delta {
    const float *q, *k, *v; /* key_dim, key_dim, value_dim */
    int64_t x_stride;
    const float *z; /* value_dim; may be dst */
    int64_t z_stride;
    const float *beta, *alpha; /* one number per row */
    int64_t beta_stride, alpha_stride;
    float *dst; /* value_dim */
    int64_t dst_stride;
    float *state; /* [key_dim][value_dim] */
    float *kept;  /* cpu_delta_kept floats; NULL: for the oracle */
    float decay, dt_bias;
    const float *norm; /* [value_dim] */
    float norm_eps;
    int32_t rows, key_dim, value_dim;
    int32_t position; /* of the first row; 0: the sequence begins, and state and kept may be anything */
    float *scratch;   /* cpu_delta_scratch floats */
} cpu_delta;

/* Keys, padded to sixteens, updates and decays of a chunk's rows. */
static inline uint64_t cpu_delta_kept(int32_t key_dim, int32_t value_dim) {
    return (uint64_t)CPU_DELTA_ROWS * (sl_round_up((uint64_t)key_dim, 16) + (uint64_t)value_dim + 1);
}

static inline uint64_t cpu_delta_scratch(int32_t key_dim, int32_t value_dim) {
    return (uint64_t)CPU_DELTA_ROWS * (sl_round_up((uint64_t)key_dim, 16) + (uint64_t)value_dim) +
           2 * (uint64_t)value_dim + 2 * CPU_DELTA_ROWS * CPU_DELTA_ROWS;
}

/* g = exp(decay * softplus(alpha + dt_bias)), b = sigmoid(beta) */
void cpu_delta_gates(float decay, float dt_bias, float alpha, float beta, double *g, double *b);

/* The oracle, on any machine: state and results are floats, everything between is double. */
void cpu_conv_exact(const cpu_conv *c);
void cpu_delta_exact(const cpu_delta *d);

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
    void (*conv)(const cpu_conv *c);
    void (*delta)(const cpu_delta *d);
    /* x[i] = exp(x[i] - max x); returns the sum in the documented order */
    float (*softmax_numerators)(float *x, int32_t n);
    bool (*all_finite)(const float *x, int64_t n);
} cpu_ops;

/* name: NULL for the best of this machine, or scalar, avx2, avx512, neon; NULL if this machine or build has none of
 * that name. */
const cpu_ops *cpu_ops_get(const char *name);

#endif

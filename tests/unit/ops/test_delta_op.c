/* The delta op and what attention gained with it: heads of keys and values, several sequences in a step, state blocks
 * in slabs, against float64; the same bits in any chunks, on any threads and instruction set; a gate and heads of q
 * apart from each other; steps that do not fit are refused. */
#include "support_ops.h"

#include <math.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 20261130;

enum { LAYERS = 2, SEQS = 3, LENGTH = 40, MAX_ROWS = 64, SLAB = 1 << 17 };

/* A program of one delta op, its operands' rows for every position of three sequences, and its state. */
typedef struct delta_rig {
    rig g;
    sl_delta d;
    sl_view dst, qkv, z, beta, alpha;
    sl_program *p;
    sl_state_layout layout;
    uint8_t *slabs[16];
    int32_t blocks[SEQS][LAYERS];
    sl_step_seq seqs[SEQS];
    float *in[SEQS][LENGTH]; /* qkv | z | beta | alpha */
} delta_rig;

static sl_weight floats(rig *g, rng *r, int64_t rows, int64_t cols, float shift, float magnitude) {
    float *x = rig_memory(g, (size_t)(rows * cols) * sizeof *x);
    for (int64_t i = 0; i < rows * cols; i++)
        x[i] = shift + magnitude * rng_normal(r);
    sl_matrix m = {.format = SL_F32, .rows = rows, .cols = cols, .part = {(const uint8_t *)x}};
    sl_error err = {0};
    if (!sl_matrix_layout(&m, &err))
        fail_msg("%s", err.message);
    return rig_weight(g, &m);
}

static const float *values_of(const sl_weight *w) {
    return (const float *)(const void *)w->matrix.part[0];
}

static int32_t channels(const sl_delta *d) {
    return 2 * d->key_heads * d->key_dim + d->value_heads * d->value_dim;
}

static int32_t values(const sl_delta *d) {
    return d->value_heads * d->value_dim;
}

/* Blocks dealt out backwards over as many slabs as it takes, filled with NaN. */
static void make_state(delta_rig *x, bool exact) {
    sl_error err = {0};
    x->layout = (sl_state_layout){.layers = LAYERS,
                                  .key_heads = x->d.key_heads,
                                  .value_heads = x->d.value_heads,
                                  .key_dim = x->d.key_dim,
                                  .value_dim = x->d.value_dim,
                                  .kernel = x->d.kernel,
                                  .keeps = sl_state_keeps(false, exact)};
    assert_true(sl_state_layout_init(&x->layout, SLAB, &err));
    assert_int_equal(x->layout.channels, channels(&x->d));
    sl_ops_set_state(x->g.ops, &x->layout);
    for (int32_t b = 0, s = 0; b < LAYERS * SEQS; b += x->layout.blocks_per_slab, s++) {
        x->slabs[s] = aligned_alloc(64, SLAB);
        memset(x->slabs[s], 0xff, SLAB);
        assert_true(sl_ops_add_state_slab(x->g.ops, x->slabs[s], &err));
    }
    for (int32_t i = 0; i < LAYERS * SEQS; i++)
        x->blocks[i % SEQS][i / SEQS] = LAYERS * SEQS - 1 - i;
    for (int32_t i = 0; i < SEQS; i++)
        x->seqs[i] = (sl_step_seq){.state = x->blocks[i]};
}

static delta_rig *delta_open(const rig_options *o, const sl_delta *like, bool biased) {
    delta_rig *x = calloc(1, sizeof *x);
    rng r = {seed};
    sl_error err = {0};
    if (!rig_open(&x->g, o)) {
        free(x);
        return NULL;
    }
    x->d = *like;
    x->d.layer = 1;
    x->d.norm_eps = 1e-6f;
    x->d.conv = floats(&x->g, &r, channels(like), like->kernel, 0, 0.5f);
    if (biased)
        x->d.conv_bias = floats(&x->g, &r, 1, channels(like), 0, 0.3f);
    x->d.decay = floats(&x->g, &r, 1, like->value_heads, -0.5f, 0.1f);
    x->d.dt_bias = floats(&x->g, &r, 1, like->value_heads, 0, 1);
    x->d.norm = floats(&x->g, &r, 1, like->value_dim, 1, 0.2f);
    x->qkv = rig_view(&x->g, SL_ROWS_ALL, MAX_ROWS, channels(like), 5);
    x->z = rig_view(&x->g, SL_ROWS_ALL, MAX_ROWS, values(like), 3);
    x->dst = rig_view(&x->g, SL_ROWS_ALL, MAX_ROWS, values(like), 1);
    x->beta = rig_view(&x->g, SL_ROWS_ALL, MAX_ROWS, like->value_heads, 0);
    x->alpha = rig_view(&x->g, SL_ROWS_ALL, MAX_ROWS, like->value_heads, 2);
    x->p = sl_program_new(x->g.ops, MAX_ROWS, 1, &err);
    sl_op_delta(x->p, x->dst, x->qkv, x->z, x->beta, x->alpha, &x->d);
    if (!sl_program_end(x->p, &err))
        fail_msg("%s", err.message);
    make_state(x, o->numeric == SL_NUMERIC_EXACT);
    int32_t n = channels(like) + values(like) + 2 * like->value_heads;
    for (int s = 0; s < SEQS; s++)
        for (int i = 0; i < LENGTH; i++) {
            x->in[s][i] = rig_memory(&x->g, (size_t)n * sizeof(float));
            for (int k = 0; k < n; k++)
                x->in[s][i][k] = rng_normal(&r) * 1.5f;
        }
    return x;
}

static void delta_close(delta_rig *x) {
    sl_program_free(x->p);
    rig_close(&x->g);
    for (size_t i = 0; i < SL_COUNT(x->slabs); i++)
        free(x->slabs[i]);
    free(x);
}

static void put_row(delta_rig *x, int32_t row, const float *in) {
    const sl_view *views[] = {&x->qkv, &x->z, &x->beta, &x->alpha};
    for (int i = 0; i < 4; in += views[i++]->cols)
        memcpy(rig_row(&x->g, views[i], row), in, (size_t)views[i]->cols * sizeof *in);
}

/* Runs n[s] further rows of each sequence, in a rotating order of sequences; results to out[s][position]. */
static void run_rows(delta_rig *x, int32_t *at, const int32_t *n, int first, float *out) {
    int32_t token[MAX_ROWS] = {0}, seq[MAX_ROWS], position[MAX_ROWS], rows = 0;
    for (int k = 0; k < SEQS; k++) {
        int s = (first + k) % SEQS;
        for (int i = 0; i < n[s]; i++, rows++) {
            seq[rows] = s;
            position[rows] = at[s] + i;
            put_row(x, rows, x->in[s][at[s] + i]);
        }
    }
    sl_step step = {.rows = rows, .token = token, .seq = seq, .position = position, .seq_count = SEQS, .seqs = x->seqs};
    sl_error err = {0};
    if (rows && !sl_program_run(x->p, &step, &err))
        fail_msg("%s", err.message);
    size_t width = (size_t)x->dst.cols;
    for (int32_t i = 0; i < rows; i++)
        memcpy(out + ((size_t)seq[i] * LENGTH + (size_t)position[i]) * width, rig_row(&x->g, &x->dst, i),
               width * sizeof *out);
    for (int s = 0; s < SEQS; s++)
        at[s] += n[s];
}

/* All positions of all sequences, in steps cut at random; pieces 1: a row of each at a time, 0: random. */
static float *run_all(delta_rig *x, rng *r, int pieces) {
    float *out = malloc((size_t)SEQS * LENGTH * (size_t)x->dst.cols * sizeof *out);
    int32_t at[SEQS] = {0};
    for (int step = 0; at[0] < LENGTH || at[1] < LENGTH || at[2] < LENGTH; step++) {
        int32_t n[SEQS];
        for (int s = 0; s < SEQS; s++)
            n[s] = (int32_t)sl_min_i64(LENGTH - at[s], pieces ? pieces : rng_below(r, 20));
        run_rows(x, at, n, step, out);
    }
    return out;
}

/* ---- float64 ----------------------------------------------------------------------------------------------------- */

static double silu(double x) {
    return x / (1 + exp(-x));
}

/* The convolution's output of one channel at a position. */
static double convolved(const delta_rig *x, int s, int position, int channel) {
    const float *w = values_of(&x->d.conv), *bias = values_of(&x->d.conv_bias);
    double sum = x->d.conv_bias.buffer ? bias[channel] : 0;
    for (int t = 0; t < x->d.kernel; t++) {
        int at = position - (x->d.kernel - 1) + t;
        sum += at < 0 ? 0 : (double)w[channel * x->d.kernel + t] * x->in[s][at][channel];
    }
    return silu(sum);
}

static void head_rows(const delta_rig *x, int s, int head, double *out) {
    const sl_delta *d = &x->d;
    int K = d->key_dim, V = d->value_dim, kh = d->tiled ? head % d->key_heads : head * d->key_heads / d->value_heads;
    int z0 = channels(d), b0 = z0 + values(d), a0 = b0 + d->value_heads;
    double *S = calloc((size_t)(K * V), sizeof *S), *q = calloc((size_t)K, sizeof *q),
           *k = calloc((size_t)K, sizeof *k);
    for (int i = 0; i < LENGTH; i++) {
        const float *in = x->in[s][i];
        double qq = 1e-6, kk = 1e-6, sum = 0;
        for (int a = 0; a < K; a++) {
            q[a] = convolved(x, s, i, kh * K + a);
            k[a] = convolved(x, s, i, d->key_heads * K + kh * K + a);
            qq += q[a] * q[a];
            kk += k[a] * k[a];
        }
        double g = exp(values_of(&d->decay)[head] * log1p(exp((double)in[a0 + head] + values_of(&d->dt_bias)[head])));
        double beta = 1 / (1 + exp(-(double)in[b0 + head]));
        double *o = out + ((size_t)s * LENGTH + (size_t)i) * (size_t)values(d) + head * V;
        for (int c = 0; c < V; c++) {
            double seen = 0, v = convolved(x, s, i, 2 * d->key_heads * K + head * V + c);
            for (int a = 0; a < K; a++)
                seen += (S[a * V + c] *= g) * k[a] / sqrt(kk);
            o[c] = 0;
            for (int a = 0; a < K; a++) {
                S[a * V + c] += k[a] / sqrt(kk) * beta * (v - seen);
                o[c] += q[a] / sqrt(qq) / sqrt(K) * S[a * V + c];
            }
            sum += o[c] * o[c];
        }
        for (int c = 0; c < V; c++)
            o[c] = o[c] / sqrt(sum / V + 1e-6) * values_of(&d->norm)[c] * silu(in[z0 + head * V + c]);
    }
    free(S);
    free(q);
    free(k);
}

static void compare(const delta_rig *x, const float *got, double bound) {
    size_t n = (size_t)SEQS * LENGTH * (size_t)values(&x->d);
    double *expected = malloc(n * sizeof *expected);
    for (int s = 0; s < SEQS; s++)
        for (int head = 0; head < x->d.value_heads; head++)
            head_rows(x, s, head, expected);
    for (size_t i = 0; i < n; i++)
        if (!(fabs(got[i] - expected[i]) <= bound * (fabs(expected[i]) + 2)))
            fail_msg("position %zu, value %zu: %.9g, expected %.9g", i / (size_t)values(&x->d) % LENGTH,
                     i % (size_t)values(&x->d), got[i], expected[i]);
    free(expected);
}

static const sl_delta shapes[] = {
    {.key_heads = 2, .value_heads = 6, .key_dim = 5, .value_dim = 7, .kernel = 4},
    {.key_heads = 2, .value_heads = 6, .key_dim = 5, .value_dim = 7, .kernel = 4, .tiled = true},
    {.key_heads = 3, .value_heads = 3, .key_dim = 16, .value_dim = 33, .kernel = 2},
    {.key_heads = 1, .value_heads = 4, .key_dim = 32, .value_dim = 16, .kernel = 8, .tiled = true},
    {.key_heads = 4, .value_heads = 8, .key_dim = 12, .value_dim = 64, .kernel = 3},
};

static void it_is_the_formula(void **state) {
    for (size_t i = 0; i < SL_COUNT(shapes); i++) {
        for (int exact = 0; exact < 2; exact++) {
            rng r = {seed + i};
            rig_options o = {.numeric = exact ? SL_NUMERIC_EXACT : SL_NUMERIC_Q8, .threads = 2};
            delta_rig *x = delta_open(&o, &shapes[i], i % 2);
            float *out = run_all(x, &r, 0);
            compare(x, out, exact ? 1e-6 : 3e-5);
            free(out);
            delta_close(x);
        }
    }
}

static void nothing_shows_in_a_bit(void **state) {
    static const char *const isas[] = {"scalar", "avx2", "avx512", "neon"};
    for (size_t i = 0; i < SL_COUNT(shapes); i++) {
        float *first = NULL;
        size_t bytes = (size_t)SEQS * LENGTH * (size_t)values(&shapes[i]) * sizeof(float);
        for (size_t k = 0; k < 2 * SL_COUNT(isas); k++) {
            rng r = {seed + k};
            rig_options o = {.isa = isas[k % SL_COUNT(isas)], .threads = 1 + (int)(k % 3)};
            delta_rig *x = delta_open(&o, &shapes[i], true);
            if (!x)
                continue;
            float *out = run_all(x, &r, k == 0 ? 1 : k == 1 ? 20 : 0);
            if (!first)
                first = out;
            else if (memcmp(out, first, bytes))
                fail_msg("%s, %d threads: other bits", o.isa, o.threads);
            if (out != first)
                free(out);
            delta_close(x);
        }
        free(first);
    }
}

/* ---- steps that do not fit --------------------------------------------------------------------------------------- */

static void refused(delta_rig *x, sl_step step, const char *message) {
    sl_error err = {0};
    if (sl_program_run(x->p, &step, &err))
        fail_msg("accepted: %s", message);
    if (!strstr(err.message, message))
        fail_msg("'%s' lacks '%s'", err.message, message);
}

static void steps_without_their_state_are_refused(void **state) {
    delta_rig *x = delta_open(&(rig_options){.numeric = SL_NUMERIC_EXACT}, &shapes[0], false);
    int32_t token[4] = {0}, seq[4] = {0, 0, 1, 0}, position[4] = {0, 1, 0, 2}, one[4] = {0, 0, 0, 0};
    sl_step step = {.rows = 3, .token = token, .seq = seq, .position = position, .seq_count = SEQS, .seqs = x->seqs};
    sl_error err = {0};
    for (int i = 0; i < 3; i++)
        put_row(x, i, x->in[0][i]);
    assert_true(sl_program_run(x->p, &step, &err));
    step.rows = 4;
    refused(x, step, "rows of sequence 0 are in 2 places of the step, 1 expected");
    step.rows = 2;
    step.position = one;
    refused(x, step, "row 1 of sequence 0 has position 0 behind position 0");
    step.position = position;
    x->blocks[0][1] = 1000;
    refused(x, step, "state of layer 1 of sequence 0 is block 1000 of");
    x->blocks[0][1] = -1;
    refused(x, step, "is block -1 of");
    x->seqs[0].state = NULL;
    refused(x, step, "sequence 0 has no blocks of state, 2 expected");
    x->seqs[0].state = x->blocks[0];
    x->layout.key_dim++;
    sl_ops_set_state(x->g.ops, &x->layout);
    refused(x, step, "2 key heads of 6, 6 value heads of 7, a convolution of 4; delta layer 1 has 2 of 5");
    delta_close(x);
}

static void layouts_of_state(void **state) {
    sl_error err = {0};
    sl_state_layout real = {
        .layers = 45, .key_heads = 16, .value_heads = 64, .key_dim = 128, .value_dim = 128, .kernel = 4};
    assert_true(sl_state_layout_init(&real, 64 << 20, &err));
    assert_int_equal(real.channels, 12288);
    assert_int_equal(real.conv_offset, 4 << 20);
    assert_int_equal(real.block_bytes, (4 << 20) + 3 * 12288 * 4);
    assert_int_equal(real.blocks_per_slab, 15);
    sl_state_layout bad = real;
    assert_false(sl_state_layout_init(&bad, 4 << 20, &err));
    assert_non_null(strstr(err.message, "does not fit a slab"));
    bad = real;
    bad.value_heads = INT32_MAX;
    assert_false(sl_state_layout_init(&bad, 64 << 20, &err));
    assert_non_null(strstr(err.message, "overflows"));
    bad = real;
    bad.kernel = 9;
    assert_false(sl_state_layout_init(&bad, 64 << 20, &err));
    bad = real;
    bad.key_heads = 0;
    assert_false(sl_state_layout_init(&bad, 64 << 20, &err));
}

/* ---- recording --------------------------------------------------------------------------------------------------- */

static void what_does_not_fit_is_not_recorded(void **state) {
    static const struct {
        size_t field;
        int32_t value;
        const char *message;
    } cases[] = {
        {offsetof(sl_delta, key_heads), 4, "delta value heads: 6"},
        {offsetof(sl_delta, key_heads), 0, "delta value heads: 6"},
        {offsetof(sl_delta, key_heads), 1, "delta qkv: 62 columns or rows, 52 expected"},
        {offsetof(sl_delta, key_dim), 0, "delta key_dim: 0"},
        {offsetof(sl_delta, value_dim), 8, "delta dst: 42 columns or rows, 48 expected"},
        {offsetof(sl_delta, value_heads), 4, "delta dst: 42 columns or rows, 28 expected"},
        {offsetof(sl_delta, kernel), 1, "delta width of the convolution: 1"},
        {offsetof(sl_delta, kernel), 9, "delta width of the convolution: 9"},
        {offsetof(sl_delta, kernel), 5, "delta conv width: 4"},
        {offsetof(sl_delta, layer), -1, "delta layer: -1"},
        {offsetof(sl_delta, decay.matrix.rows), 2, "delta decay: 2"},
        {offsetof(sl_delta, norm.matrix.format), SL_F16, "delta norm: a vector of format F16"},
        {offsetof(sl_delta, conv.matrix.format), SL_BF16, "delta conv: a matrix of format BF16, F32 expected"},
        {offsetof(sl_delta, dt_bias.buffer), 0, "delta dt_bias: buffer 0 does not exist"},
        {offsetof(sl_delta, conv.buffer), 0, "delta conv: buffer 0 does not exist"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        delta_rig *x = delta_open(&(rig_options){.numeric = SL_NUMERIC_EXACT}, &shapes[0], true);
        sl_delta d = x->d;
        sl_error err = {0};
        memcpy((char *)&d + cases[i].field, &cases[i].value, sizeof cases[i].value);
        sl_program *p = sl_program_new(x->g.ops, MAX_ROWS, 1, &err);
        sl_op_delta(p, x->dst, x->qkv, x->z, x->beta, x->alpha, &d);
        if (sl_program_end(p, &err))
            fail_msg("accepted: %s", cases[i].message);
        if (!strstr(err.message, cases[i].message))
            fail_msg("'%s' lacks '%s'", err.message, cases[i].message);
        sl_program_free(p);
        delta_close(x);
    }
}

/* ---- attention's gate and heads apart ---------------------------------------------------------------------------- */

enum { HEADS = 6, KV_HEADS = 2, DIM = 20, ROWS = 9 };

/* Attention over the same q, k and v; apart: q and gate lie as one product gives them, [q | gate] for each head. */
static void attend(const rig_options *o, bool apart, bool gated, float *out) {
    rig g;
    rng r = {seed};
    sl_error err = {0};
    assert_true(rig_open(&g, o));
    int32_t stride = apart ? 2 * DIM : DIM;
    sl_view both = rig_view(&g, SL_ROWS_ALL, ROWS, HEADS * 2 * DIM, 3), q = both, gate = both;
    q.cols = (HEADS - 1) * stride + DIM;
    gate.cols = q.cols;
    gate.offset += (apart ? DIM : HEADS * DIM) * sizeof(float);
    sl_view k = rig_view(&g, SL_ROWS_ALL, ROWS, KV_HEADS * DIM, 0),
            v = rig_view(&g, SL_ROWS_ALL, ROWS, KV_HEADS * DIM, 1);
    sl_view dst = rig_view(&g, SL_ROWS_ALL, ROWS, HEADS * DIM, 2);
    float freq[4] = {1, 0.3f, 0.1f, 0.03f};
    sl_attention a = {.heads = HEADS,
                      .kv_heads = KV_HEADS,
                      .head_dim = DIM,
                      .scale = 0.2f,
                      .q_norm = floats(&g, &r, 1, DIM, 1, 0.3f),
                      .k_norm = floats(&g, &r, 1, DIM, 1, 0.3f),
                      .norm_eps = 1e-6f,
                      .rope = {.dims = 8, .inv_freq = freq, .scale = 1},
                      .head_stride = apart ? stride : 0};
    if (gated)
        a.gate = gate;
    sl_program *p = sl_program_new(g.ops, ROWS, 1, &err);
    sl_op_attention(p, dst, q, k, v, &a);
    if (!sl_program_end(p, &err))
        fail_msg("%s", err.message);
    sl_kv_layout kv = {.format = SL_KV_F32, .layers = 1, .kv_heads = KV_HEADS, .head_dim = DIM};
    assert_true(sl_kv_layout_init(&kv, SLAB, &err));
    sl_ops_set_kv(g.ops, &kv);
    void *slab = aligned_alloc(64, SLAB);
    assert_true(sl_ops_add_kv_slab(g.ops, slab, &err));
    int32_t token[ROWS] = {0}, seq[ROWS] = {0}, position[ROWS], page = 0;
    for (int row = 0; row < ROWS; row++) {
        position[row] = row;
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < DIM; i++) {
                rig_row(&g, &q, row)[h * stride + i] = rng_normal(&r);
                rig_row(&g, &gate, row)[h * stride + i] = rng_normal(&r) * 3;
            }
        for (int i = 0; i < KV_HEADS * DIM; i++) {
            rig_row(&g, &k, row)[i] = rng_normal(&r);
            rig_row(&g, &v, row)[i] = rng_normal(&r);
        }
    }
    sl_step_seq one = {.pages = &page, .page_count = 1};
    sl_step step = {.rows = ROWS, .token = token, .seq = seq, .position = position, .seq_count = 1, .seqs = &one};
    if (!sl_program_run(p, &step, &err))
        fail_msg("%s", err.message);
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < HEADS * DIM; i++, out += 2) {
            out[0] = rig_row(&g, &dst, row)[i];
            out[1] = rig_row(&g, &gate, row)[i / DIM * stride + i % DIM];
        }
    free(slab);
    sl_program_free(p);
    rig_close(&g);
}

static void attention_with_a_gate_and_heads_apart(void **state) {
    enum { N = ROWS * HEADS * DIM };
    static float plain[2 * N], gated[2 * N], apart[2 * N];
    for (int exact = 0; exact < 2; exact++) {
        rig_options o = {.numeric = exact ? SL_NUMERIC_EXACT : SL_NUMERIC_Q8, .threads = 2};
        attend(&o, false, false, plain);
        attend(&o, false, true, gated);
        attend(&o, true, true, apart);
        assert_memory_equal(apart, gated, sizeof gated);
        for (int i = 0; i < N; i++) {
            double expected = plain[2 * i] / (1 + exp(-(double)plain[2 * i + 1]));
            assert_true(fabs(gated[2 * i] - expected) <= 1e-6 * fabs(expected) + 1e-9);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_the_formula),
        cmocka_unit_test(nothing_shows_in_a_bit),
        cmocka_unit_test(steps_without_their_state_are_refused),
        cmocka_unit_test(layouts_of_state),
        cmocka_unit_test(what_does_not_fit_is_not_recorded),
        cmocka_unit_test(attention_with_a_gate_and_heads_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

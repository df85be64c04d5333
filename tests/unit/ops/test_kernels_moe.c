/* Routing, grouping and combining of experts: the choice and the sums of the CPU, ties, NaN, any k; pairs by expert;
 * pairs that were never computed. */
#include "support_kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 99;
static kernels k;

/* ---- router ------------------------------------------------------------------------------------------------------ */

typedef struct router_case {
    int32_t rows, experts, top_k;
    bool sigmoid, normalize, bias;
    float scale, magnitude;
    enum { PLAIN, TIES, EQUAL, WITH_NAN } kind;
    int32_t groups, top_groups; /* 0: all experts are of one group */
    bool by_logit;
    int32_t splits; /* partial logits and a bias of them; 0: whole ones */
} router_case;

/* All but the groups with the highest sums of two keys are left out, of equals the later ones. */
static void expected_groups(const router_case *c, const double *key, bool *used) {
    int32_t size = c->experts / c->groups;
    double score[64];
    bool in[64] = {false};
    for (int32_t g = 0; g < c->groups; g++) {
        score[g] = -1e300;
        for (int32_t i = g * size; i < (g + 1) * size; i++)
            for (int32_t j = g * size; j < i; j++) /* as the kernel adds them */
                score[g] = fmax(score[g], (float)key[i] + (float)key[j]);
    }
    for (int32_t n = 0; n < c->top_groups; n++) {
        int32_t best = -1;
        for (int32_t g = 0; g < c->groups; g++)
            if (!in[g] && (best < 0 || score[g] > score[best]))
                best = g;
        in[best] = true;
    }
    for (int32_t e = 0; e < c->experts; e++)
        used[e] = !in[e / size];
}

/* As the CPU does it, in doubles: key descending, ties to the lower id; then ascending id. */
static void expected_choice(const router_case *c, const float *logits, const float *bias, int32_t *chosen,
                            double *weight) {
    double score[600], key[600], total = 0, sum = 0, largest = -1e300;
    bool used[600] = {false}, out[600] = {false};
    for (int32_t e = 0; e < c->experts; e++)
        largest = fmax(largest, logits[e]);
    for (int32_t e = 0; e < c->experts; e++) {
        score[e] = c->sigmoid ? 1 / (1 + exp(-(double)logits[e])) : exp(logits[e] - largest);
        total += score[e];
    }
    for (int32_t e = 0; e < c->experts; e++) {
        double share = c->bias && !c->sigmoid ? score[e] / total : score[e]; /* a bias adds to probabilities */
        key[e] = (c->by_logit ? logits[e] : share) + (c->bias ? bias[e] : 0);
    }
    if (c->groups)
        expected_groups(c, key, out);
    for (int32_t i = 0; i < c->top_k; i++) {
        int32_t best = -1;
        for (int32_t e = 0; e < c->experts; e++)
            if (!used[e] && !out[e] && (best < 0 || key[e] > key[best]))
                best = e;
        used[best] = true;
        sum += score[best];
    }
    double norm = c->normalize ? sum : c->sigmoid ? 1 : total;
    int32_t n = 0;
    for (int32_t e = 0; e < c->experts; e++)
        if (used[e]) {
            chosen[n] = e;
            weight[n++] = score[e] / norm * c->scale;
        }
}

static void fill_logits(rng *r, const router_case *c, float *logits) {
    for (int32_t i = 0; i < c->rows * c->experts; i++) {
        float v = rng_normal(r) * c->magnitude;
        logits[i] = c->kind == EQUAL ? 0.5f * c->magnitude : c->kind == TIES ? (float)rng_below(r, 3) : v;
    }
}

static void check_row(const router_case *c, const float *logits, const float *bias, const int32_t *chosen,
                      const float *weight, double *worst) {
    int32_t want[600];
    double w[600];
    expected_choice(c, logits, bias, want, w);
    for (int32_t j = 0; j < c->top_k; j++) {
        assert_int_equal(chosen[j], want[j]);
        double e = fabs(weight[j] - w[j]) / (w[j] + 1e-30);
        e = w[j] < 1e-35 ? 0 : e; /* below float's normal numbers */
        *worst = worse_of(*worst, e);
    }
}

static void route(rng *r, const router_case *c) {
    size_t n = (size_t)(c->rows * c->experts), pairs = (size_t)(c->rows * c->top_k);
    int32_t splits = c->splits ? c->splits : 1;
    float *parts = kernel_floats(r, (n + 5) * (size_t)splits, 1),
          *own_bias = kernel_floats(r, (size_t)c->experts, c->splits ? 1 : 0);
    float *logits = malloc(n * 4), *bias = kernel_floats(r, (size_t)c->experts, 0.3f),
          *weight = kernel_poison(pairs + 1);
    int32_t *chosen = malloc((pairs + 1) * 4);
    uint8_t *done = malloc(pairs + 1);
    memset(chosen, 0xff, (pairs + 1) * 4);
    memset(done, 0xff, pairs + 1);
    fill_logits(r, c, logits);
    if (c->kind == WITH_NAN)
        logits[c->experts > 64 ? 3 : c->experts / 2] = NAN; /* 3: a lane's first of several */
    for (size_t i = 0; i < n; i++) { /* as the kernel adds them; the last part makes them what they are to be */
        float sum = splits > 1 ? parts[i] : logits[i];
        parts[i] = sum;
        for (int32_t s = 1; s < splits; s++)
            sum += parts[(size_t)s * (n + 5) + i];
        logits[i] = c->splits ? sum + own_bias[i % (size_t)c->experts] : sum;
    }
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = c->rows});
    sl_router_args args = {.logits_stride = (uint64_t)c->experts,
                           .experts = (uint32_t)c->experts,
                           .top_k = (uint32_t)c->top_k,
                           .scale = c->scale,
                           .groups = (uint32_t)c->groups,
                           .top_groups = (uint32_t)c->top_groups,
                           .splits = (uint32_t)splits,
                           .split_stride = n + 5};
    kernel_binding b[] = {in(0, &args, sizeof args),       in(1, parts, (n + 5) * (size_t)splits * 4),
                          out(2, chosen, (pairs + 1) * 4), out(3, weight, (pairs + 1) * 4),
                          out(4, done, pairs + 1),         in(5, bias, (size_t)c->experts * 4),
                          in(6, step.words, step.bytes),   in(7, own_bias, (size_t)c->experts * 4)};
    sl_gpu_constant constants[6];
    size_t m = 0;
    if (c->groups)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_GROUPS);
    if (c->splits)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_BIAS);
    if (c->by_logit)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_BY_LOGIT);
    if (c->sigmoid)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_SIGMOID);
    if (c->normalize)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_NORMALIZE);
    if (c->bias)
        constants[m++] = (sl_gpu_constant)KERNEL_TRUE(SL_FC_SELECT_BIAS);
    char entry[16];
    int widest = c->experts <= 128 ? 128 : c->experts <= 256 ? 256 : c->experts <= 512 ? 512 : 2048;
    snprintf(entry, sizeof entry, "router_%d", widest);
    kernels_run(&k, &(kernel_call){.entry = entry,
                                   .groups = {(uint32_t)c->rows + 1, 1, 1},
                                   .threads = {32, 1, 1},
                                   .bindings = b,
                                   .count = 8,
                                   .constants = constants,
                                   .constant_count = m,
                                   .lengths = {{0, (uint32_t)c->experts * 4}},
                                   .length_count = 1});
    double worst = 0;
    for (int32_t i = 0; i < c->rows; i++) {
        int32_t *ids = chosen + i * c->top_k;
        if (c->kind == WITH_NAN && i == 0) {
            for (int32_t j = 0; j < c->top_k; j++) {
                assert_true(isnan(weight[j]));
                assert_in_range(ids[j], j ? ids[j - 1] + 1 : 0, c->experts - 1);
            }
            continue;
        }
        check_row(c, logits + i * c->experts, bias, ids, weight + i * c->top_k, &worst);
    }
    for (size_t i = 0; i < pairs; i++)
        assert_int_equal(done[i], 0);
    assert_int_equal(done[pairs], 0xff);
    assert_int_equal(chosen[pairs], -1);
    kernels_result(&k, c->sigmoid ? "router (sigmoid)" : "router (softmax)", worst, 1e-5);
    free(logits);
    free(parts);
    free(own_bias);
    free(bias);
    free(weight);
    free(chosen);
    free(done);
    free(step.words);
}

static void the_router_chooses_as_the_cpu(void **state) {
    static const router_case cases[] = {
        {3, 128, 8, false, true, false, 1, 2, .kind = PLAIN},
        {2, 61, 1, false, true, false, 1, 2, .kind = PLAIN},
        {3, 7, 3, false, false, false, 1, 1, .kind = PLAIN},
        {2, 33, 33, false, true, false, 1, 1, .kind = PLAIN},
        {2, 40, 39, false, true, false, 1, 1, .kind = PLAIN},
        {2, 512, 10, false, true, false, 1, 3, .kind = PLAIN},
        {4, 50, 6, false, true, false, 1, 1, .kind = TIES},
        {2, 64, 5, false, true, false, 1, 1, .kind = EQUAL},
        {2, 30, 4, false, true, false, 1, 1e6f, .kind = PLAIN},
        {2, 45, 4, false, true, false, 1, 1, .kind = WITH_NAN},
        {3, 64, 6, true, true, false, 1, 2, .kind = PLAIN},
        {2, 160, 8, true, true, true, 2.5f, 1, .kind = PLAIN},
        {2, 19, 2, true, false, true, 1, 1, .kind = PLAIN},
        {2, 24, 5, true, true, false, 1, 1, .kind = TIES},
        {2, 1, 1, false, true, false, 1, 1, .kind = PLAIN},
        {2, 70, 4, false, true, false, 1, 1, .kind = WITH_NAN},
        {2, 20, 4, true, false, false, 1, -400, .kind = EQUAL}, /* all scores are zero */
        {3, 70, 5, false, true, true, 1, 2, .kind = PLAIN},
        {3, 64, 6, true, true, true, 2.5f, 1, .kind = PLAIN, .groups = 8, .top_groups = 3},
        {3, 32, 4, true, true, false, 1, 1, .kind = PLAIN, .groups = 4, .top_groups = 2},
        {2, 144, 5, true, true, true, 1, 2, .kind = PLAIN, .groups = 48,
         .top_groups = 7}, /* lanes with a second group */
        {2, 128, 8, true, false, true, 1, 1, .kind = PLAIN, .groups = 64, .top_groups = 4},
        {4, 132, 9, true, true, false, 1, 1, .kind = TIES, .groups = 33, .top_groups = 5},
        {2, 128, 6, true, true, false, 1, 1, .kind = EQUAL, .groups = 64, .top_groups = 40},
        {2, 24, 8, true, true, true, 1, 1, .kind = PLAIN, .groups = 4, .top_groups = 4}, /* all groups */
        {2, 18, 3, true, true, true, 1, 1, .kind = WITH_NAN, .groups = 6, .top_groups = 2},
        {3, 40, 4, false, true, false, 1, 2, .kind = PLAIN, .by_logit = true},
        {2, 33, 3, false, true, true, 1, 1, .kind = PLAIN, .by_logit = true},
        {3, 45, 5, false, true, false, 1, 1, .kind = PLAIN, .splits = 3},
        {2, 130, 6, true, true, true, 1, 1, .kind = PLAIN, .splits = 8},
        {3, 20, 3, false, true, false, 1, 1, .kind = PLAIN, .splits = 1}, /* a bias alone */
        {2, 128, 70, true, false, true, 1, 1, .kind = PLAIN},
        {2, 256, 256, true, true, false, 1, 1, .kind = TIES},
        {2, 257, 8, false, true, false, 1, 2, .kind = PLAIN},
        {2, 513, 11, false, false, false, 1, 1, .kind = TIES},
        {2, 590, 70, true, true, true, 1, 1, .kind = PLAIN},
        {2, 512, 8, true, true, true, 2.5f, 1, .kind = PLAIN, .groups = 8, .top_groups = 4},
    };
    rng r = {seed};
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        route(&r, &cases[i]);
}

/* ---- pairs by expert --------------------------------------------------------------------------------------------- */

/* short_of: tiles for which there is no room: they are left out, and nothing is written behind the list. */
static void group(rng *r, int32_t rows, int32_t experts, int32_t top_k, uint32_t threads, int32_t short_of) {
    int32_t n = rows * top_k, room = short_of ? short_of : n / SL_MATMUL_TOKENS + experts;
    int32_t *chosen = malloc((size_t)n * 4), *pairs = malloc((size_t)(n + 1) * 4);
    sl_pair_tile *tiles = malloc((size_t)(room + 1) * sizeof *tiles);
    uint32_t counts[2] = {77, 77};
    memset(pairs, 0xff, (size_t)(n + 1) * 4);
    memset(tiles, 0xff, (size_t)(room + 1) * sizeof *tiles);
    for (int32_t i = 0; i < rows; i++) {
        int32_t first = rng_below(r, experts - top_k + 1);
        for (int32_t j = 0; j < top_k; j++)
            chosen[i * top_k + j] = first + j;
    }
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = rows});
    sl_router_args args = {
        .experts = (uint32_t)experts, .top_k = (uint32_t)top_k, .tiles = (uint32_t)room, .tile_rows = SL_MATMUL_TOKENS};
    kernel_binding b[] = {in(0, &args, sizeof args),          in(1, chosen, (size_t)n * 4),
                          out(2, pairs, (size_t)(n + 1) * 4), out(3, tiles, (size_t)(room + 1) * sizeof *tiles),
                          out(4, counts, sizeof counts),      in(5, step.words, step.bytes)};
    kernels_run(&k, &(kernel_call){.entry = "group_pairs",
                                   .groups = {(uint32_t)experts + 1, 1, 1},
                                   .threads = {threads, 1, 1},
                                   .bindings = b,
                                   .count = 6,
                                   .lengths = {{0, (uint32_t)experts * 4}},
                                   .length_count = 1});
    uint32_t at = 0, tile = 0;
    for (int32_t e = 0; e < experts; e++) {
        uint32_t first = at;
        for (int32_t i = 0; i < n; i++)
            if (chosen[i] == e)
                assert_int_equal(pairs[at++], i);
        uint32_t own = at - first, need = (own + SL_MATMUL_TOKENS - 1) / SL_MATMUL_TOKENS, size = 8;
        while (size * need < own)
            size += 8;
        for (uint32_t f = first; f < at && tile < (uint32_t)room; f += size, tile++, need--) {
            assert_int_equal(tiles[tile].expert, e);
            assert_int_equal(tiles[tile].first, f);
            assert_int_equal(tiles[tile].end, at < f + size ? at : f + size);
        }
        assert_true(need == 0 || tile == (uint32_t)room);
    }
    assert_int_equal(counts[0], tile);
    assert_int_equal(counts[1], n);
    assert_int_equal(pairs[n], -1);
    assert_int_equal(tiles[tile].expert, -1);
    kernels_result(&k, "group_pairs", 0, 0);
    free(chosen);
    free(pairs);
    free(tiles);
    free(step.words);
}

static void pairs_are_listed_by_expert(void **state) {
    rng r = {seed + 1};
    group(&r, 1, 5, 2, 32, 0);
    group(&r, 37, 9, 4, 64, 0);
    group(&r, 70, 3, 3, 32, 0);
    group(&r, 20, 70, 8, 64, 0);
    group(&r, 70, 3, 2, 32, 2);
    group(&r, 33, 40, 5, 128, 0);
    group(&r, 17, 70, 3, 32, 9);
    group(&r, 150, 6, 2, 96, 0);
    group(&r, 1, 3, 1, 1024, 0);
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

static void add_up(rng *r, int32_t rows, int32_t cols, int32_t top_k, bool shared, bool gated, int missing,
                   float size) {
    size_t pairs = (size_t)(rows * top_k), n = (size_t)(rows * cols);
    float *o = kernel_floats(r, pairs * (size_t)cols, size), *w = kernel_floats(r, pairs, 1);
    float *s = kernel_floats(r, n, size), *gate = kernel_floats(r, (size_t)rows, 1),
          *residual = kernel_floats(r, n, size);
    float *before = malloc(n * 4);
    memcpy(before, residual, n * 4);
    uint8_t *done = malloc(pairs);
    memset(done, 1, pairs);
    if (missing >= 0)
        done[missing] = 0;
    int32_t *status = malloc((size_t)(rows + 1) * 4);
    memset(status, 0xff, (size_t)(rows + 1) * 4);
    kernel_step step = kernel_step_new(&(kernel_rows){.rows = rows});
    sl_combine_args args = {.out_stride = (uint64_t)cols,
                            .shared_stride = (uint64_t)cols,
                            .residual_stride = (uint64_t)cols,
                            .cols = (uint32_t)cols,
                            .top_k = (uint32_t)top_k};
    kernel_binding b[] = {in(0, &args, sizeof args),
                          in(1, o, pairs * (size_t)cols * 4),
                          in(2, w, pairs * 4),
                          in(3, done, pairs),
                          in(4, s, n * 4),
                          in(5, gate, (size_t)rows * 4),
                          out(6, residual, n * 4),
                          out(7, status, (size_t)(rows + 1) * 4),
                          in(8, step.words, step.bytes)};
    sl_gpu_constant constants[] = {KERNEL_TRUE(SL_FC_SHARED), KERNEL_TRUE(SL_FC_SHARED_GATE)};
    kernels_run(&k, &(kernel_call){.entry = "combine",
                                   .groups = {2, (uint32_t)rows + 1, 1},
                                   .threads = {32, 1, 1},
                                   .bindings = b,
                                   .count = 9,
                                   .constants = constants,
                                   .constant_count = (size_t)(shared + gated)});
    double worst = 0;
    for (int32_t i = 0; i < rows; i++) {
        bool lost = missing >= 0 && missing / top_k == i;
        assert_int_equal(status[i], lost);
        float g = gated ? (float)(1 / (1 + exp(-(double)gate[i]))) : 1;
        for (int32_t c = 0; c < cols; c++) {
            float sum = 0; /* the CPU's order and roundings */
            for (int32_t j = 0; j < top_k; j++)
                sum = sum + o[(i * top_k + j) * cols + c] * w[i * top_k + j];
            if (shared)
                sum = sum + s[i * cols + c] * g;
            float ref = lost ? before[i * cols + c] : before[i * cols + c] + sum, got = residual[i * cols + c];
            if (!gated || lost)
                assert_true(got == ref);
            double e = fabs((double)got - ref) / (fabs(before[i * cols + c]) + fabs(sum) + 1e-30);
            worst = worse_of(worst, e);
        }
    }
    assert_int_equal(status[rows], -1);
    kernels_result(&k, "combine", worst, 1e-6);
    free(o);
    free(w);
    free(s);
    free(gate);
    free(residual);
    free(before);
    free(done);
    free(status);
    free(step.words);
}

static void combine_adds_in_rank_order(void **state) {
    rng r = {seed + 2};
    add_up(&r, 3, 77, 4, false, false, -1, 1);
    add_up(&r, 2, 130, 8, true, false, -1, 1);
    add_up(&r, 3, 33, 2, true, true, -1, 1e6f);
    add_up(&r, 2, 50, 9, true, true, -1, 1);
    add_up(&r, 2, 40, 35, false, false, -1, 1);
    add_up(&r, 2, 40, 35, false, false, 69, 1); /* the last of more than a SIMD-group has lanes */
    add_up(&r, 3, 33, 5, true, true, 7, 1);     /* one pair never came: its row is left alone and marked */
}

int main(void) {
    if (!kernels_open(&k, "moe.metal", NULL, 0))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_router_chooses_as_the_cpu),
        cmocka_unit_test(pairs_are_listed_by_expert),
        cmocka_unit_test(combine_adds_in_rank_order),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(&k);
    return failed;
}

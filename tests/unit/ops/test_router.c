/* Routers and experts other than a softmax over SiLU experts, against float64: sigmoid scores with a bias for choosing,
 * groups, softmax among the chosen, biases, clamped SwiGLU. */
#include "support_ops.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const uint64_t seed = 20261130;
static char cache[] = "/tmp/sluice-router-XXXXXX"; /* compiled once for all tests here */

static int make_cache(void **state) {
    return mkdtemp(cache) ? 0 : -1;
}

static int remove_cache(void **state) {
    DIR *d = opendir(cache);
    for (struct dirent *e; d && (e = readdir(d));)
        unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    return rmdir(cache);
}

enum { HIDDEN = 24, INNER = 20, ROWS = 9 };

typedef struct layer {
    sl_moe moe;
    sl_view residual, src;
    double *router, *router_bias, *choice_bias, *proj[MAX_EXPERTS][SL_PROJ_COUNT], *bias[SL_PROJ_COUNT];
    float x[ROWS][HIDDEN];
} layer;

static sl_weight random_weight(rig *g, rng *r, int64_t rows, int64_t cols, float magnitude, double **values) {
    sl_matrix m = rig_matrix(g, r, SL_F32, rows, cols, magnitude, values);
    return rig_weight(g, &m);
}

/* Vectors that are read as floats are aligned, as loaded ones are. */
static sl_weight random_vector(rig *g, rng *r, int64_t rows, int64_t cols, float magnitude, double **values) {
    size_t n = (size_t)(rows * cols);
    float *x = rig_memory(g, n * sizeof *x);
    *values = rig_memory(g, n * sizeof **values);
    for (size_t i = 0; i < n; i++)
        (*values)[i] = x[i] = magnitude * rng_normal(r);
    sl_matrix m = {.format = SL_F32, .rows = rows, .cols = cols, .part = {(const uint8_t *)x}};
    sl_error err = {0};
    if (!sl_matrix_layout(&m, &err))
        fail_msg("%s", err.message);
    return rig_weight(g, &m);
}

static layer *layer_new(rig *g, source *src, rng *r, const sl_moe *like, bool biased) {
    layer *l = rig_memory(g, sizeof *l);
    l->moe = *like;
    l->moe.router = random_weight(g, r, like->experts, HIDDEN, 0.4f, &l->router);
    if (biased && rng_below(r, 2))
        l->moe.router_bias = random_vector(g, r, 1, like->experts, 0.5f, &l->router_bias);
    if (biased && like->kind != SL_ROUTER_SOFTMAX_CHOSEN)
        l->moe.choice_bias = random_vector(g, r, 1, like->experts, 0.3f, &l->choice_bias);
    static const int64_t rows[] = {INNER, INNER, HIDDEN}, cols[] = {HIDDEN, HIDDEN, INNER};
    for (int i = 0; i < SL_PROJ_COUNT; i++) {
        for (int32_t e = 0; e < like->experts; e++)
            src->matrix[0][e][i] = rig_matrix(g, r, SL_F32, rows[i], cols[i], 0.5f, &l->proj[e][i]);
        l->moe.proj[i] = src->matrix[0][0][i];
        l->moe.proj[i].part[0] = NULL;
        if (biased)
            l->moe.bias[i] = random_vector(g, r, like->experts, rows[i], 0.6f, &l->bias[i]);
    }
    l->residual = rig_view(g, SL_ROWS_ALL, ROWS, HIDDEN, 3);
    l->src = rig_view(g, SL_ROWS_ALL, ROWS, HIDDEN, 5);
    for (int i = 0; i < ROWS; i++)
        for (int c = 0; c < HIDDEN; c++)
            l->x[i][c] = rng_normal(r);
    src->experts = like->experts;
    return l;
}

/* ---- float64 ----------------------------------------------------------------------------------------------------- */

static double dot(const double *w, const double *x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += w[i] * x[i];
    return sum;
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* p of all experts; among the chosen: the logits. */
static void scores(const layer *l, const double *x, double *p) {
    double all = 0;
    for (int32_t e = 0; e < l->moe.experts; e++) {
        p[e] = dot(l->router + e * HIDDEN, x, HIDDEN) + (l->router_bias ? l->router_bias[e] : 0);
        all += exp(p[e]);
    }
    for (int32_t e = 0; e < l->moe.experts; e++)
        p[e] = l->moe.kind == SL_ROUTER_SIGMOID   ? sigmoid(p[e])
               : l->moe.kind == SL_ROUTER_SOFTMAX ? exp(p[e]) / all
                                                  : p[e];
}

static double group_score(const double *key, int32_t size) {
    double best = -INFINITY;
    for (int32_t i = 0; i < size; i++)
        for (int32_t j = 0; j < i; j++)
            best = fmax(best, key[i] + key[j]);
    return best;
}

static void forbid_groups(const sl_moe *m, double *key) {
    int32_t size = m->experts / m->groups;
    bool in[SL_ROUTER_GROUPS] = {0};
    double score[SL_ROUTER_GROUPS];
    for (int32_t g = 0; g < m->groups; g++)
        score[g] = group_score(key + g * size, size);
    for (int32_t k = 0; k < m->top_groups; k++) {
        int32_t best = -1;
        for (int32_t g = 0; g < m->groups; g++)
            if (!in[g] && (best < 0 || score[g] > score[best]))
                best = g;
        in[best] = true;
    }
    for (int32_t e = 0; e < m->experts; e++)
        key[e] = in[e / size] ? key[e] : -INFINITY;
}

static void route(const layer *l, const double *x, double *weight) {
    const sl_moe *m = &l->moe;
    double p[MAX_EXPERTS], key[MAX_EXPERTS], norm = 0;
    scores(l, x, p);
    for (int32_t e = 0; e < m->experts; e++) {
        key[e] = p[e] + (l->choice_bias ? l->choice_bias[e] : 0);
        weight[e] = 0;
    }
    if (m->groups > 1)
        forbid_groups(m, key);
    for (int32_t k = 0; k < m->top_k; k++) {
        int32_t best = 0;
        for (int32_t e = 1; e < m->experts; e++)
            best = key[e] > key[best] ? e : best;
        key[best] = -INFINITY;
        weight[best] = m->kind == SL_ROUTER_SOFTMAX_CHOSEN ? exp(p[best]) : p[best];
        norm += weight[best];
    }
    if (!m->normalize && m->kind != SL_ROUTER_SOFTMAX_CHOSEN)
        norm = 1;
    for (int32_t e = 0; e < m->experts; e++)
        weight[e] *= (m->weight_scale != 0 ? m->weight_scale : 1) / norm;
}

static double bias_of(const layer *l, int proj, int32_t e, int32_t row, int32_t rows) {
    return l->bias[proj] ? l->bias[proj][e * rows + row] : 0;
}

static void add_expert(const layer *l, int32_t e, const double *x, double weight, double *out) {
    const sl_moe *m = &l->moe;
    double h[INNER];
    for (int i = 0; i < INNER; i++) {
        double gate = dot(l->proj[e][SL_PROJ_GATE] + i * HIDDEN, x, HIDDEN) + bias_of(l, SL_PROJ_GATE, e, i, INNER);
        double up = dot(l->proj[e][SL_PROJ_UP] + i * HIDDEN, x, HIDDEN) + bias_of(l, SL_PROJ_UP, e, i, INNER);
        if (m->swiglu_limit > 0) {
            gate = fmin(gate, m->swiglu_limit);
            up = fmax(fmin(up, m->swiglu_limit), -m->swiglu_limit);
            h[i] = gate * sigmoid(m->swiglu_alpha * gate) * (up + 1);
        } else
            h[i] = gate * sigmoid(gate) * up;
    }
    for (int i = 0; i < HIDDEN; i++)
        out[i] +=
            weight * (dot(l->proj[e][SL_PROJ_DOWN] + i * INNER, h, INNER) + bias_of(l, SL_PROJ_DOWN, e, i, HIDDEN));
}

static double row_error(const rig *g, const layer *l, int row) {
    double x[HIDDEN], out[HIDDEN] = {0}, weight[MAX_EXPERTS], worst = 0, scale = 1e-9;
    for (int i = 0; i < HIDDEN; i++)
        x[i] = l->x[row][i];
    route(l, x, weight);
    for (int32_t e = 0; e < l->moe.experts; e++)
        if (weight[e] != 0)
            add_expert(l, e, x, weight[e], out);
    const float *got = rig_row(g, &l->residual, row);
    for (int i = 0; i < HIDDEN; i++) {
        if (!isfinite(got[i]))
            return INFINITY;
        worst = fmax(worst, fabs(got[i] - out[i]));
        scale = fmax(scale, fabs(out[i]));
    }
    return worst / scale;
}

/* ---- the cases --------------------------------------------------------------------------------------------------- */

static sl_moe random_moe(rng *r, sl_router kind) {
    sl_moe m = {.kind = kind, .normalize = rng_below(r, 2), .weight_scale = rng_below(r, 2) ? 2.5f : 0};
    m.groups = kind == SL_ROUTER_SIGMOID && rng_below(r, 3) ? 2 + rng_below(r, 4) : 0;
    m.experts = m.groups ? m.groups * (2 + rng_below(r, 5)) : 2 + rng_below(r, 30);
    m.top_groups = m.groups ? 1 + rng_below(r, m.groups) : 0;
    m.top_k = 1 + rng_below(r, m.groups ? m.experts / m.groups * m.top_groups : m.experts);
    if (rng_below(r, 2)) {
        m.swiglu_limit = 0.8f;
        m.swiglu_alpha = 1.702f;
    }
    return m;
}

static void run_rows(rig *g, sl_program *p, layer *l, int first, int n) {
    sl_error err = {0};
    for (int i = 0; i < n; i++) {
        memcpy(rig_row(g, &l->src, i), l->x[first + i], sizeof l->x[0]);
        memset(rig_row(g, &l->residual, i), 0, sizeof l->x[0]);
    }
    static const int32_t zeros[ROWS];
    sl_step s = {.rows = n, .token = zeros, .seq = zeros, .position = zeros};
    if (!sl_program_run(p, &s, &err))
        fail_msg("%s", err.message);
}

static void check_layer(rng *r, sl_router kind, int i, const char *device, double *worst) {
    source src = {.r = {r->state}};
    rig g;
    sl_error err = {0};
    rig_options o = {.numeric = SL_NUMERIC_EXACT, .threads = 1 + i % 3, .device = device, .cache_dir = cache};
    if (!rig_open(&g, &o))
        skip();
    sl_moe m = random_moe(r, kind);
    layer *l = layer_new(&g, &src, r, &m, i % 4 > 0);
    rig_rank_bytes(&g, i % 2 ? 0 : 1 << 20);
    sl_expert_source s = source_of(&src);
    sl_ops_set_experts(g.ops, &s);
    sl_program *p = sl_program_new(g.ops, ROWS, 1, &err);
    sl_op_moe(p, l->residual, l->src, &l->moe);
    if (!sl_program_end(p, &err))
        fail_msg("%s", err.message);
    run_rows(&g, p, l, 0, ROWS);
    float together[ROWS][HIDDEN];
    for (int row = 0; row < ROWS; row++) {
        double error = row_error(&g, l, row);
        *worst = fmax(*worst, error);
        if (!(error < (device ? 2e-5 : 5e-6)))
            fail_msg("router %d, %d experts, top %d of %d of %d groups, clamped %d, row %d: relative error %.2e", kind,
                     m.experts, m.top_k, m.top_groups, m.groups, m.swiglu_limit > 0, row, error);
        memcpy(together[row], rig_row(&g, &l->residual, row), sizeof together[0]);
    }
    for (int row = 0; row < ROWS; row++) { /* a row alone has the same bits */
        run_rows(&g, p, l, row, 1);
        assert_memory_equal(together[row], rig_row(&g, &l->residual, 0), sizeof together[0]);
    }
    if (*src.wrong)
        fail_msg("the source says: %s", src.wrong);
    sl_program_free(p);
    rig_close(&g);
}

static void check_kind(sl_router kind, const char *device) {
    rng r = {seed + kind};
    double worst = 0;
    print_message("seed %llu\n", (unsigned long long)(seed + kind));
    for (int i = 0; i < (device ? 12 : 60); i++)
        check_layer(&r, kind, i, device, &worst);
    print_message("largest relative error %.1e\n", worst);
}

static void sigmoid_with_groups_and_biases(void **state) {
    check_kind(SL_ROUTER_SIGMOID, NULL);
}

static void softmax_among_the_chosen(void **state) {
    check_kind(SL_ROUTER_SOFTMAX_CHOSEN, NULL);
}

static void softmax_with_biases(void **state) {
    check_kind(SL_ROUTER_SOFTMAX, NULL);
}

/* With the kernels on the software device: the same formulas in float. */
static void a_device_routes_alike(void **state) {
    for (int kind = 0; kind < 3; kind++)
        check_kind((sl_router)kind, "soft:2");
}

/* A logit that is NaN makes its row NaN, never a plausible number, whatever the router. */
static void a_nan_logit_is_not_hidden(void **state) {
    for (int kind = 0; kind < 3; kind++) {
        rng r = {seed};
        source src = {.r = {1}};
        rig g;
        sl_error err = {0};
        assert_true(rig_open(&g, &(rig_options){.numeric = SL_NUMERIC_EXACT, .threads = 1}));
        sl_moe m = {.kind = (sl_router)kind, .experts = 8, .top_k = 3, .normalize = kind != 2};
        layer *l = layer_new(&g, &src, &r, &m, false);
        float *router = (float *)(void *)(uintptr_t)l->moe.router.matrix.part[0];
        float nan_value = NAN;
        memcpy((uint8_t *)router + 5 * HIDDEN * sizeof(float), &nan_value, sizeof nan_value);
        sl_expert_source s = source_of(&src);
        sl_ops_set_experts(g.ops, &s);
        sl_program *p = sl_program_new(g.ops, ROWS, 1, &err);
        sl_op_moe(p, l->residual, l->src, &l->moe);
        assert_true(sl_program_end(p, &err));
        run_rows(&g, p, l, 0, 1);
        assert_true(isnan(rig_row(&g, &l->residual, 0)[3]));
        sl_program_free(p);
        rig_close(&g);
    }
}

/* What cannot be computed is refused when it is recorded. */
static void impossible_routers_are_refused(void **state) {
    static const struct {
        sl_moe moe;
        const char *message;
    } cases[] = {
        {{.experts = 12, .top_k = 2, .groups = 5, .top_groups = 2}, "moe groups: 5"},
        {{.experts = 12, .top_k = 2, .groups = 12, .top_groups = 2}, "moe groups: 12"},
        {{.experts = 12, .top_k = 2, .groups = 3, .top_groups = 4}, "moe groups chosen from: 4"},
        {{.experts = 12, .top_k = 5, .groups = 3, .top_groups = 1}, "moe groups chosen from: 1"},
        {{.experts = 12, .top_k = 2, .swiglu_limit = -1}, "swiglu limit: -1"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        rng r = {seed};
        source src = {.r = {1}};
        rig g;
        sl_error err = {0};
        assert_true(rig_open(&g, &(rig_options){.numeric = SL_NUMERIC_EXACT, .threads = 1}));
        layer *l = layer_new(&g, &src, &r, &cases[i].moe, false);
        sl_program *p = sl_program_new(g.ops, ROWS, 1, &err);
        sl_op_moe(p, l->residual, l->src, &l->moe);
        assert_false(sl_program_end(p, &err));
        if (!strstr(err.message, cases[i].message))
            fail_msg("\"%s\" expected in \"%s\"", cases[i].message, err.message);
        sl_program_free(p);
        rig_close(&g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sigmoid_with_groups_and_biases),
        cmocka_unit_test(softmax_among_the_chosen),
        cmocka_unit_test(softmax_with_biases),
        cmocka_unit_test(a_device_routes_alike),
        cmocka_unit_test(a_nan_logit_is_not_hidden),
        cmocka_unit_test(impossible_routers_are_refused),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}

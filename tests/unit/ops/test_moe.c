/* The mixture of experts as one operation: against float64; the same bits whatever the order of arrival, the mode, the
 * threads and the other rows; what happens when experts do not come. */
#include "support_ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 20240614;

enum { MAX_ROWS = 40 };

typedef struct shape {
    int32_t experts, top_k, hidden, inner, shared, rows; /* shared 0: none */
    bool normalize, shared_gate;
    sl_format_id format;
} shape;

/* The operands of one layer and what they mean. */
typedef struct layer {
    shape s;
    sl_moe moe;
    sl_view residual, src;
    double *router, *proj[MAX_EXPERTS][SL_PROJ_COUNT], *shared[SL_PROJ_COUNT], *shared_gate;
    float x[MAX_ROWS][512], before[MAX_ROWS][512]; /* rows of src and residual */
} layer;

static void make_shared(rig *g, rng *r, layer *l) {
    const shape *s = &l->s;
    sl_matrix m[SL_PROJ_COUNT] = {
        rig_matrix(g, r, s->format, s->shared, s->hidden, 0.3f, &l->shared[SL_PROJ_GATE]),
        rig_matrix(g, r, s->format, s->shared, s->hidden, 0.3f, &l->shared[SL_PROJ_UP]),
        rig_matrix(g, r, s->format, s->hidden, s->shared, 0.3f, &l->shared[SL_PROJ_DOWN]),
    };
    for (int i = 0; i < SL_PROJ_COUNT; i++)
        l->moe.shared[i] = rig_weight(g, &m[i]);
    if (s->shared_gate) {
        sl_matrix gate = rig_matrix(g, r, SL_F32, 1, s->hidden, 0.2f, &l->shared_gate);
        l->moe.shared_gate = rig_weight(g, &gate);
    }
}

/* The same seed gives the same numbers. */
static layer *layer_new(rig *g, source *src, uint64_t from, const shape *s, int32_t index) {
    rng r = {from};
    layer *l = rig_memory(g, sizeof *l);
    l->s = *s;
    l->moe = (sl_moe){.layer = index, .experts = s->experts, .top_k = s->top_k, .normalize = s->normalize};
    sl_matrix router = rig_matrix(g, &r, SL_F32, s->experts, s->hidden, 0.5f, &l->router);
    l->moe.router = rig_weight(g, &router);
    for (int32_t e = 0; e < s->experts; e++) {
        sl_matrix *m = src->matrix[index][e];
        m[SL_PROJ_GATE] = rig_matrix(g, &r, s->format, s->inner, s->hidden, 0.3f, &l->proj[e][SL_PROJ_GATE]);
        m[SL_PROJ_UP] = rig_matrix(g, &r, s->format, s->inner, s->hidden, 0.3f, &l->proj[e][SL_PROJ_UP]);
        m[SL_PROJ_DOWN] = rig_matrix(g, &r, s->format, s->hidden, s->inner, 0.3f, &l->proj[e][SL_PROJ_DOWN]);
    }
    for (int i = 0; i < SL_PROJ_COUNT; i++) {
        l->moe.proj[i] = src->matrix[index][0][i];
        l->moe.proj[i].part[0] = NULL;
    }
    if (s->shared)
        make_shared(g, &r, l);
    l->residual = rig_view(g, SL_ROWS_ALL, s->rows, s->hidden, 3);
    l->src = rig_view(g, SL_ROWS_ALL, s->rows, s->hidden, 5);
    for (int32_t i = 0; i < s->rows; i++)
        for (int32_t c = 0; c < s->hidden; c++) {
            l->x[i][c] = rng_normal(&r);
            l->before[i][c] = rng_normal(&r);
        }
    src->experts = s->experts;
    return l;
}

/* Puts the rows first .. first + n into the views. */
static void set_rows(const rig *g, const layer *l, int32_t first, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        memcpy(rig_row(g, &l->src, i), l->x[first + i], (size_t)l->s.hidden * sizeof(float));
        memcpy(rig_row(g, &l->residual, i), l->before[first + i], (size_t)l->s.hidden * sizeof(float));
    }
}

/* ---- float64 ----------------------------------------------------------------------------------------------------- */

static double dot(const double *w, const double *x, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += w[i] * x[i];
    return sum;
}

static void add_ffn(double *out, const double *x, double *const w[SL_PROJ_COUNT], int32_t hidden, int32_t inner,
                    double weight) {
    double h[512];
    for (int32_t i = 0; i < inner; i++) {
        double gate = dot(w[SL_PROJ_GATE] + i * hidden, x, hidden);
        h[i] = gate / (1 + exp(-gate)) * dot(w[SL_PROJ_UP] + i * hidden, x, hidden);
    }
    for (int32_t i = 0; i < hidden; i++)
        out[i] += weight * dot(w[SL_PROJ_DOWN] + i * inner, h, inner);
}

/* chosen: the k largest, of equal ones the lowest ids. */
static void reference_route(const layer *l, const double *x, bool chosen[MAX_EXPERTS], double weight[MAX_EXPERTS]) {
    double logit[MAX_EXPERTS], max = -INFINITY, all = 0, norm = 0;
    for (int32_t e = 0; e < l->s.experts; e++) {
        logit[e] = dot(l->router + e * l->s.hidden, x, l->s.hidden);
        max = fmax(max, logit[e]);
        chosen[e] = false;
    }
    for (int32_t e = 0; e < l->s.experts; e++)
        all += exp(logit[e] - max);
    for (int32_t k = 0; k < l->s.top_k; k++) {
        int32_t best = -1;
        for (int32_t e = 0; e < l->s.experts; e++)
            if (!chosen[e] && (best < 0 || logit[e] > logit[best]))
                best = e;
        chosen[best] = true;
        norm += exp(logit[best] - max) / all;
    }
    for (int32_t e = 0; e < l->s.experts; e++)
        weight[e] = exp(logit[e] - max) / all / (l->s.normalize ? norm : 1);
}

static void reference_row(const layer *l, int32_t row, double *out) {
    double x[512], weight[MAX_EXPERTS];
    bool chosen[MAX_EXPERTS];
    for (int32_t i = 0; i < l->s.hidden; i++) {
        x[i] = l->x[row][i];
        out[i] = l->before[row][i];
    }
    reference_route(l, x, chosen, weight);
    for (int32_t e = 0; e < l->s.experts; e++)
        if (chosen[e])
            add_ffn(out, x, l->proj[e], l->s.hidden, l->s.inner, weight[e]);
    double gate = l->s.shared_gate ? 1 / (1 + exp(-dot(l->shared_gate, x, l->s.hidden))) : 1;
    if (l->s.shared)
        add_ffn(out, x, l->shared, l->s.hidden, l->s.shared, gate);
}

/* Largest difference of a row from float64, over the row's largest number. */
static double row_error(const rig *g, const layer *l, int32_t row) {
    double expected[512], worst = 0, scale = 0;
    const float *got = rig_row(g, &l->residual, row);
    reference_row(l, row, expected);
    for (int32_t i = 0; i < l->s.hidden; i++) {
        if (!isfinite(got[i]))
            return INFINITY;
        worst = fmax(worst, fabs(got[i] - expected[i]));
        scale = fmax(scale, fabs(expected[i]));
    }
    return worst / scale;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static sl_program *record(rig *g, const layer *l, source *src) {
    sl_error err = {0};
    sl_expert_source s = source_of(src);
    sl_ops_set_experts(g->ops, &s);
    sl_program *p = sl_program_new(g->ops, l->s.rows, 1, &err);
    sl_op_moe(p, l->residual, l->src, &l->moe);
    if (!sl_program_end(p, &err))
        fail_msg("%s", err.message);
    return p;
}

static bool run(sl_program *p, int32_t rows, uint8_t *failed, sl_error *row_error_out, sl_error *err) {
    sl_step step = {.rows = rows, .row_failed = failed};
    *err = (sl_error){0};
    bool ok = sl_program_run(p, &step, err);
    if (row_error_out)
        *row_error_out = step.row_error;
    return ok;
}

static void must_run(sl_program *p, int32_t rows) {
    sl_error err;
    if (!run(p, rows, NULL, NULL, &err))
        fail_msg("%s", err.message);
}

static void check_source(const source *s) {
    if (*s->wrong)
        fail_msg("the source says: %s", s->wrong);
    assert_int_equal(s->begins, s->ends);
    assert_false(s->begun);
}

static shape random_shape(rng *r) {
    static const sl_format_id formats[] = {SL_F32, SL_Q8_0, SL_Q4_0};
    shape s = {.format = formats[rng_below(r, 3)], .experts = 1 + rng_below(r, 40), .rows = 1 + rng_below(r, 20)};
    s.hidden = s.format == SL_F32 ? 1 + rng_below(r, 70) : 32 * (1 + rng_below(r, 3));
    s.inner = s.format == SL_F32 ? 1 + rng_below(r, 50) : 32 * (1 + rng_below(r, 2));
    s.shared = rng_below(r, 2) ? (s.format == SL_F32 ? 1 + rng_below(r, 80) : 64) : 0;
    s.shared_gate = s.shared && rng_below(r, 2);
    s.normalize = rng_below(r, 2);
    int32_t ks[] = {1, s.experts, 1 + rng_below(r, s.experts),
                    s.experts < 9 ? s.experts : 9 + rng_below(r, s.experts - 8)};
    s.top_k = ks[rng_below(r, 4)];
    return s;
}

static void exact_mode_is_near_float64(void **state) {
    rng r = {seed};
    double worst = 0;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 120; i++) {
        shape s = random_shape(&r);
        source src = {.r = {r.state}};
        rig g;
        assert_true(rig_open(&g, &(rig_options){.numeric = SL_NUMERIC_EXACT, .threads = 1 + i % 3}));
        layer *l = layer_new(&g, &src, r.state, &s, 0);
        rig_rank_bytes(&g, i % 2 ? 0 : 1 << 20);
        sl_program *p = record(&g, l, &src);
        set_rows(&g, l, 0, s.rows);
        must_run(p, s.rows);
        check_source(&src);
        for (int32_t row = 0; row < s.rows; row++) {
            double error = row_error(&g, l, row);
            worst = fmax(worst, error);
            if (!(error < 3e-6))
                fail_msg("%d experts, top %d, hidden %d, inner %d, shared %d, row %d of %d: relative error %.2e",
                         s.experts, s.top_k, s.hidden, s.inner, s.shared, row, s.rows, error);
        }
        sl_program_free(p);
        rig_close(&g);
    }
    print_message("largest relative error %.1e\n", worst);
}

static const char *const isas[] = {"scalar", "avx2", "avx512", "neon"};

/* Bits of a run with the first settings; every other way of running must give them. */
static void check_invariance(rng *r, const shape *s, sl_numeric numeric) {
    uint64_t from = r->state;
    size_t bytes = (size_t)s->hidden * sizeof(float);
    float(*first)[512] = calloc(MAX_ROWS, sizeof *first);
    int runs = 0;
    for (int k = 0; k < (numeric == SL_NUMERIC_EXACT ? 1 : (int)SL_COUNT(isas)); k++) {
        for (int way = 0; way < 6; way++) {
            rig g;
            source src = {.r = {from + (uint64_t)way}, .reverse = way == 1, .most = way == 2 ? 1 : way == 3 ? 64 : 0};
            if (!rig_open(&g, &(rig_options){.numeric = numeric, .isa = isas[k], .threads = 1 + way % 3}))
                continue;
            layer *l = layer_new(&g, &src, from, s, 0);
            rig_rank_bytes(&g, way % 2 ? 1 << 24 : 0);
            sl_program *p = record(&g, l, &src);
            int32_t step = way == 5 ? 1 : way == 4 ? 1 + s->rows / 2 : s->rows;
            for (int32_t row = 0; row < s->rows; row += step) {
                int32_t n = s->rows - row < step ? s->rows - row : step;
                set_rows(&g, l, row, n);
                must_run(p, n);
                assert_int_equal(src.last_order, way % 2 ? SL_ORDER_READY : SL_ORDER_ASCENDING);
                for (int32_t i = 0; i < n; i++) {
                    if (runs == 0)
                        memcpy(first[row + i], rig_row(&g, &l->residual, i), bytes);
                    if (memcmp(first[row + i], rig_row(&g, &l->residual, i), bytes))
                        fail_msg("%s, way %d, %d experts, top %d, hidden %d, inner %d: row %d has other bits", isas[k],
                                 way, s->experts, s->top_k, s->hidden, s->inner, row + i);
                }
            }
            check_source(&src);
            sl_program_free(p);
            rig_close(&g);
            runs++;
        }
    }
    free(first);
}

static void the_same_bits_whatever_comes_when(void **state) {
    rng r = {seed + 1};
    for (int i = 0; i < 16; i++) {
        shape s = random_shape(&r);
        check_invariance(&r, &s, i % 2 ? SL_NUMERIC_EXACT : SL_NUMERIC_Q8);
    }
    /* more experts than are taken at once */
    shape many = {
        .experts = 100, .top_k = 80, .hidden = 32, .inner = 32, .rows = 3, .normalize = true, .format = SL_Q8_0};
    check_invariance(&r, &many, SL_NUMERIC_Q8);
}

/* Kept outputs up to the limit and not above it. */
static void the_mode_follows_the_bytes_of_the_outputs(void **state) {
    shape s = {.experts = 8, .top_k = 3, .hidden = 16, .inner = 8, .rows = 10, .format = SL_F32};
    for (int32_t limit = 0; limit <= 12; limit++) { /* in rows */
        rig g;
        source src = {.r = {1}};
        assert_true(rig_open(&g, &(rig_options){.numeric = SL_NUMERIC_EXACT}));
        layer *l = layer_new(&g, &src, seed, &s, 0);
        rig_rank_bytes(&g, (int64_t)limit * s.top_k * s.hidden * 4);
        sl_program *p = record(&g, l, &src);
        for (int32_t rows = 1; rows <= s.rows; rows++) {
            set_rows(&g, l, 0, rows);
            must_run(p, rows);
            assert_int_equal(src.last_order, rows <= limit ? SL_ORDER_READY : SL_ORDER_ASCENDING);
            for (int32_t row = 0; row < rows; row++)
                assert_true(row_error(&g, l, row) < 3e-6);
        }
        sl_program_free(p);
        rig_close(&g);
    }
}

/* ---- ties -------------------------------------------------------------------------------------------------------- */

static void of_equal_experts_the_lower_ids_are_chosen(void **state) {
    rng r = {seed + 2};
    for (int i = 0; i < 40; i++) {
        shape s = {.experts = 2 + rng_below(&r, 30), .hidden = 16, .inner = 4, .rows = 1, .normalize = i % 2};
        s.top_k = 1 + rng_below(&r, s.experts - 1);
        rig g;
        source src = {.r = {r.state}};
        assert_true(rig_open(&g, &(rig_options){.numeric = i % 4 < 2 ? SL_NUMERIC_EXACT : SL_NUMERIC_Q8}));
        layer *l = layer_new(&g, &src, r.state, &s, 0);
        /* three kinds of rows in the router, so that ties lie at every place */
        float *router = (float *)(void *)(uintptr_t)l->moe.router.matrix.part[0];
        int kinds[MAX_EXPERTS];
        for (int32_t e = 0; e < s.experts; e++) {
            kinds[e] = rng_below(&r, 3);
            for (int32_t c = 0; c < s.hidden; c++) {
                router[e * s.hidden + c] = (float)(kinds[e] + 1) * 0.25f * l->x[0][c];
                l->router[e * s.hidden + c] = router[e * s.hidden + c];
            }
        }
        sl_program *p = record(&g, l, &src);
        set_rows(&g, l, 0, 1);
        must_run(p, 1);
        assert_int_equal(src.n, s.top_k);
        int32_t expected[MAX_EXPERTS], n = 0; /* all of kind 2, then of 1, then of 0 */
        bool want[MAX_EXPERTS] = {0};
        for (int kind = 2; kind >= 0; kind--)
            for (int32_t e = 0; e < s.experts && n < s.top_k; e++)
                if (kinds[e] == kind)
                    want[e] = true, n++;
        n = 0;
        for (int32_t e = 0; e < s.experts; e++)
            if (want[e])
                expected[n++] = e;
        assert_memory_equal(src.ids, expected, (size_t)n * sizeof *expected);
        sl_program_free(p);
        rig_close(&g);
    }
}

/* ---- experts that do not come ------------------------------------------------------------------------------------ */

/* Does row want expert e? By the reference. */
static bool wants(const layer *l, int32_t row, int32_t e) {
    double x[512], weight[MAX_EXPERTS];
    bool chosen[MAX_EXPERTS];
    for (int32_t i = 0; i < l->s.hidden; i++)
        x[i] = l->x[row][i];
    reference_route(l, x, chosen, weight);
    return chosen[e];
}

static void a_failed_expert_fails_the_rows_that_chose_it(void **state) {
    rng r = {seed + 3};
    for (int i = 0; i < 40; i++) {
        shape s = random_shape(&r);
        s.experts = 10 + rng_below(&r, 20);
        s.top_k = 1 + rng_below(&r, 4);
        rig g;
        source src = {.r = {r.state}};
        assert_true(rig_open(&g, &(rig_options){.numeric = i % 3 ? SL_NUMERIC_Q8 : SL_NUMERIC_EXACT}));
        layer *l = layer_new(&g, &src, r.state, &s, 0);
        rig_rank_bytes(&g, i % 2 ? 0 : 1 << 20);
        sl_program *p = record(&g, l, &src);
        size_t bytes = (size_t)s.hidden * sizeof(float);
        float(*good)[512] = calloc(MAX_ROWS, sizeof *good);
        set_rows(&g, l, 0, s.rows);
        must_run(p, s.rows);
        for (int32_t row = 0; row < s.rows; row++)
            memcpy(good[row], rig_row(&g, &l->residual, row), bytes);
        int32_t bad[2] = {rng_below(&r, s.experts), rng_below(&r, s.experts)};
        src.fate[0][bad[0]] = src.fate[0][bad[1]] = FATE_FAIL;
        uint8_t failed[MAX_ROWS] = {0};
        sl_error row_error_seen = {0}, err;
        set_rows(&g, l, 0, s.rows);
        assert_true(run(p, s.rows, failed, &row_error_seen, &err));
        bool any = false;
        for (int32_t row = 0; row < s.rows; row++) {
            bool hit = wants(l, row, bad[0]) || wants(l, row, bad[1]);
            assert_int_equal(failed[row], hit);
            if (!hit)
                assert_memory_equal(rig_row(&g, &l->residual, row), good[row], bytes);
            any |= hit;
        }
        assert_int_equal(row_error_seen.code, any ? SL_ERR_IO : SL_OK);
        if (any)
            assert_non_null(strstr(row_error_seen.message, "told to fail"));
        check_source(&src);
        /* A caller who does not look at rows must not get numbers. */
        set_rows(&g, l, 0, s.rows);
        assert_int_equal(run(p, s.rows, NULL, NULL, &err), !any);
        if (any)
            assert_non_null(strstr(err.message, "told to fail"));
        check_source(&src);
        free(good);
        sl_program_free(p);
        rig_close(&g);
    }
}

/* Two layers: a row that failed in the first asks for nothing in the second. */
static void failed_rows_want_no_more_experts(void **state) {
    rng r = {seed + 4};
    shape s = {.experts = 12, .top_k = 2, .hidden = 24, .inner = 8, .rows = 6, .shared = 9, .format = SL_F32};
    for (int mode = 0; mode < 2; mode++) {
        rig g;
        source src = {.r = {r.state}};
        assert_true(rig_open(&g, &(rig_options){.numeric = SL_NUMERIC_EXACT}));
        rig_rank_bytes(&g, mode ? 0 : 1 << 20);
        layer *a = layer_new(&g, &src, seed, &s, 0), *b = layer_new(&g, &src, seed + 9, &s, 1);
        sl_expert_source x = source_of(&src);
        sl_ops_set_experts(g.ops, &x);
        sl_error err = {0};
        sl_program *p = sl_program_new(g.ops, s.rows, 1, &err);
        sl_op_moe(p, a->residual, a->src, &a->moe);
        sl_op_moe(p, b->residual, b->src, &b->moe);
        assert_true(sl_program_end(p, &err));
        for (int32_t bad = 0; bad < s.experts; bad++) {
            memset(src.fate, 0, sizeof src.fate);
            src.fate[0][bad] = FATE_FAIL;
            set_rows(&g, a, 0, s.rows);
            set_rows(&g, b, 0, s.rows);
            uint8_t failed[MAX_ROWS] = {0};
            assert_true(run(p, s.rows, failed, NULL, &err));
            int32_t expected = 0;
            for (int32_t e = 0; e < s.experts; e++) {
                bool wanted = false;
                for (int32_t row = 0; row < s.rows; row++)
                    wanted |= !wants(a, row, bad) && wants(b, row, e);
                expected += wanted;
            }
            assert_int_equal(src.n, expected);
            for (int32_t row = 0; row < s.rows; row++)
                if (!wants(a, row, bad))
                    assert_true(row_error(&g, b, row) < 3e-6);
            check_source(&src);
        }
        /* all rows: the second layer is not even asked */
        for (int32_t e = 0; e < s.experts; e++)
            src.fate[0][e] = FATE_FAIL;
        uint8_t failed[MAX_ROWS] = {0};
        int begins = src.begins;
        assert_true(run(p, s.rows, failed, NULL, &err));
        assert_int_equal(src.begins, begins + 1);
        for (int32_t row = 0; row < s.rows; row++)
            assert_int_equal(failed[row], 1);
        sl_program_free(p);
        rig_close(&g);
    }
}

static void a_source_that_errs_fails_the_step(void **state) {
    shape s = {.experts = 6, .top_k = 6, .hidden = 20, .inner = 8, .rows = 3, .format = SL_F32};
    static const struct {
        int fate;
        bool begin_fails, too_many;
        int32_t extra;
        const char *message;
    } cases[] = {
        {FATE_DROP, false, false, 0, "expert 4 of row 0 was never delivered"},
        {FATE_TWICE, false, false, 0, "expert 4 was delivered"},
        {FATE_DELIVER, true, false, 0, "begin was told to fail"},
        {FATE_DELIVER, false, true, 0, "experts were delivered, at most"},
        {FATE_DELIVER, false, false, 6, "expert 6 was delivered, which nobody waits for"},
        {FATE_DELIVER, false, false, INT32_MAX, "which nobody waits for"},
    };
    for (size_t c = 0; c < SL_COUNT(cases); c++) {
        for (int mode = 0; mode < 2; mode++) {
            rig g;
            source src = {.r = {1}};
            assert_true(rig_open(&g, &(rig_options){.numeric = SL_NUMERIC_EXACT}));
            rig_rank_bytes(&g, mode ? 0 : 1 << 20);
            layer *l = layer_new(&g, &src, seed, &s, 0);
            src.fate[0][4] = (uint8_t)cases[c].fate;
            src.begin_fails = cases[c].begin_fails;
            src.too_many = cases[c].too_many;
            src.extra = cases[c].extra;
            sl_program *p = record(&g, l, &src);
            set_rows(&g, l, 0, s.rows);
            uint8_t failed[MAX_ROWS] = {0};
            sl_error err;
            assert_false(run(p, s.rows, failed, NULL, &err));
            if (err.code != SL_ERR_IO || !strstr(err.message, cases[c].message))
                fail_msg("'%s' lacks '%s'", err.message, cases[c].message);
            check_source(&src);
            /* and the next step is well */
            memset(src.fate, 0, sizeof src.fate);
            src.begin_fails = src.too_many = false;
            set_rows(&g, l, 0, s.rows);
            must_run(p, s.rows);
            assert_true(row_error(&g, l, 2) < 3e-6);
            sl_program_free(p);
            rig_close(&g);
        }
    }
}

/* A row whose router says NaN or whose input is one: NaN, never a number; its neighbours are as ever. */
static void a_nan_row_stays_alone(void **state) {
    shape s = {.experts = 9,
               .top_k = 3,
               .hidden = 32,
               .inner = 32,
               .rows = 5,
               .shared = 32,
               .shared_gate = true,
               .normalize = true,
               .format = SL_Q8_0};
    for (int mode = 0; mode < 4; mode++) {
        rig g;
        source src = {.r = {1}};
        assert_true(rig_open(&g, &(rig_options){.numeric = mode % 2 ? SL_NUMERIC_Q8 : SL_NUMERIC_EXACT}));
        rig_rank_bytes(&g, mode / 2 ? 0 : 1 << 20);
        layer *l = layer_new(&g, &src, seed, &s, 0);
        sl_program *p = record(&g, l, &src);
        size_t bytes = (size_t)s.hidden * sizeof(float);
        float good[5][32];
        set_rows(&g, l, 0, s.rows);
        must_run(p, s.rows);
        for (int32_t row = 0; row < s.rows; row++)
            memcpy(good[row], rig_row(&g, &l->residual, row), bytes);
        set_rows(&g, l, 0, s.rows);
        rig_row(&g, &l->src, 2)[7] = mode ? NAN : INFINITY;
        must_run(p, s.rows);
        for (int32_t row = 0; row < s.rows; row++) {
            if (row != 2)
                assert_memory_equal(rig_row(&g, &l->residual, row), good[row], bytes);
            for (int32_t i = 0; row == 2 && i < s.hidden; i++)
                assert_true(isnan(rig_row(&g, &l->residual, row)[i]));
        }
        sl_program_free(p);
        rig_close(&g);
    }
}

/* One expert's row of the router is damaged: no row may be computed as if that expert did not exist. */
static void a_nan_in_the_router_is_seen_by_every_row(void **state) {
    static const float bad[] = {NAN, INFINITY, -NAN};
    for (int mode = 0; mode < 12; mode++) {
        shape s = {.experts = 9,
                   .top_k = mode % 2 ? 3 : 9,
                   .hidden = 32,
                   .inner = 32,
                   .rows = 4,
                   .normalize = mode % 4 < 2,
                   .format = SL_F32};
        for (int32_t e = 0; e < s.experts; e++) {
            rig g;
            source src = {.r = {1}};
            assert_true(rig_open(&g, &(rig_options){.numeric = mode / 6 ? SL_NUMERIC_Q8 : SL_NUMERIC_EXACT}));
            layer *l = layer_new(&g, &src, seed, &s, 0);
            float *router = (float *)(void *)(uintptr_t)l->moe.router.matrix.part[0];
            router[e * s.hidden + 4] = bad[mode % 3];
            sl_program *p = record(&g, l, &src);
            set_rows(&g, l, 0, s.rows);
            must_run(p, s.rows);
            for (int32_t row = 0; row < s.rows; row++) {
                bool minus = bad[mode % 3] * l->x[row][4] == -INFINITY; /* rightly never chosen */
                for (int32_t i = 0; i < s.hidden; i++)
                    assert_true(isnan(rig_row(&g, &l->residual, row)[i]) || minus);
            }
            sl_program_free(p);
            rig_close(&g);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_mode_is_near_float64),
        cmocka_unit_test(the_same_bits_whatever_comes_when),
        cmocka_unit_test(the_mode_follows_the_bytes_of_the_outputs),
        cmocka_unit_test(of_equal_experts_the_lower_ids_are_chosen),
        cmocka_unit_test(a_failed_expert_fails_the_rows_that_chose_it),
        cmocka_unit_test(failed_rows_want_no_more_experts),
        cmocka_unit_test(a_source_that_errs_fails_the_step),
        cmocka_unit_test(a_nan_row_stays_alone),
        cmocka_unit_test(a_nan_in_the_router_is_seen_by_every_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A matrix for each head, plain and transposed, against float64; a row alone has the same bits; tails are copied. */
#include "support_ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 20261201;

typedef struct shape {
    sl_head_linear h;
    sl_format_id format;
    int32_t rows;
} shape;

static shape random_shape(rng *r) {
    static const sl_format_id formats[] = {SL_F32, SL_BF16, SL_Q8_0, SL_Q4_0};
    shape s = {.format = formats[rng_below(r, 4)], .rows = 1 + rng_below(r, 9)};
    bool blocks = s.format == SL_Q8_0 || s.format == SL_Q4_0;
    s.h = (sl_head_linear){.heads = 1 + rng_below(r, 70), .tail = rng_below(r, 2) ? 1 + rng_below(r, 20) : 0};
    s.h.transposed = rng_below(r, 2);
    int32_t cols = blocks ? 32 * (1 + rng_below(r, 3)) : 1 + rng_below(r, 70), rows = 1 + rng_below(r, 40);
    s.h.in_dim = s.h.transposed ? rows : cols;
    s.h.out_dim = s.h.transposed ? cols : rows;
    s.h.first_row = rng_below(r, 5);
    s.h.rows_per_head = s.h.first_row + rows + rng_below(r, 5);
    return s;
}

/* Element (o, i) of the head's W, whichever way it lies. */
static double element(const sl_head_linear *h, const double *w, int32_t head, int32_t o, int32_t i) {
    int64_t row = (int64_t)head * h->rows_per_head + h->first_row + (h->transposed ? i : o);
    return h->transposed ? w[row * h->out_dim + o] : w[row * h->in_dim + i];
}

static void check_row(const shape *s, const double *w, const float *x, const float *y, double *worst) {
    const sl_head_linear *h = &s->h;
    for (int32_t head = 0; head < h->heads; head++) {
        const float *in = x + head * (h->in_dim + h->tail), *out = y + head * (h->out_dim + h->tail);
        for (int32_t o = 0; o < h->out_dim; o++) {
            double sum = 0, size = 1e-9;
            for (int32_t i = 0; i < h->in_dim; i++) {
                sum += element(h, w, head, o, i) * in[i];
                size += fabs(element(h, w, head, o, i) * in[i]);
            }
            double error = fabs(out[o] - sum) / size;
            *worst = fmax(*worst, error);
            if (!(error < 1e-6))
                fail_msg("head %d of %d, %d to %d%s: %g, %g expected", head, h->heads, h->in_dim, h->out_dim,
                         h->transposed ? ", transposed" : "", out[o], sum);
        }
        assert_memory_equal(in + h->in_dim, out + h->out_dim, (size_t)h->tail * sizeof *in);
    }
}

static void run_rows(rig *g, sl_program *p, int32_t n) {
    sl_error err = {0};
    if (!sl_program_run(p, &(sl_step){.rows = n}, &err))
        fail_msg("%s", err.message);
}

static void check_shape(rng *r, const shape *s, const rig_options *options, bool near, double *worst) {
    const sl_head_linear *h = &s->h;
    rig g;
    sl_error err = {0};
    if (!rig_open(&g, options))
        return;
    double *w;
    sl_matrix m = rig_matrix(&g, r, s->format, (int64_t)h->heads * h->rows_per_head,
                             h->transposed ? h->out_dim : h->in_dim, 0.5f, &w);
    sl_weight weight = rig_weight(&g, &m);
    sl_view src = rig_view(&g, SL_ROWS_ALL, s->rows, h->heads * (h->in_dim + h->tail), 3);
    sl_view dst = rig_view(&g, SL_ROWS_ALL, s->rows, h->heads * (h->out_dim + h->tail), 5);
    sl_program *p = sl_program_new(g.ops, s->rows, 1, &err);
    sl_head_linear op = *h;
    op.weight = &weight;
    sl_op_head_linear(p, dst, src, &op);
    if (!sl_program_end(p, &err))
        fail_msg("%s", err.message);
    for (int32_t row = 0; row < s->rows; row++)
        for (int32_t i = 0; i < src.cols; i++)
            rig_row(&g, &src, row)[i] = rng_normal(r);
    run_rows(&g, p, s->rows);
    size_t bytes = (size_t)dst.cols * sizeof(float);
    float *together = rig_memory(&g, bytes * (size_t)s->rows);
    for (int32_t row = 0; row < s->rows; row++) {
        if (near)
            check_row(s, w, rig_row(&g, &src, row), rig_row(&g, &dst, row), worst);
        memcpy(together + (int64_t)row * dst.cols, rig_row(&g, &dst, row), bytes);
    }
    for (int32_t row = 0; row < s->rows; row++) {
        memmove(rig_row(&g, &src, 0), rig_row(&g, &src, row), (size_t)src.cols * sizeof(float));
        run_rows(&g, p, 1);
        assert_memory_equal(together + (int64_t)row * dst.cols, rig_row(&g, &dst, 0), bytes);
    }
    sl_program_free(p);
    rig_close(&g);
}

static void exact_mode_is_near_float64(void **state) {
    rng r = {seed};
    double worst = 0;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 80; i++) {
        shape s = random_shape(&r);
        check_shape(&r, &s, &(rig_options){.numeric = SL_NUMERIC_EXACT, .threads = 1 + i % 3}, true, &worst);
    }
    print_message("largest error %.1e of the sum of magnitudes\n", worst);
}

static void a_row_alone_has_the_same_bits(void **state) {
    static const char *const isas[] = {"scalar", "avx2", "avx512", "neon"};
    rng r = {seed + 1};
    for (int i = 0; i < 40; i++) {
        shape s = random_shape(&r);
        check_shape(&r, &s, &(rig_options){.numeric = SL_NUMERIC_Q8, .isa = isas[i % 4], .threads = 2}, false, NULL);
    }
}

static void what_does_not_fit_together_is_refused(void **state) {
    static const struct {
        sl_head_linear h;
        const char *message;
    } cases[] = {
        {{.heads = 0, .in_dim = 4, .out_dim = 4, .rows_per_head = 4}, "head_linear heads: 0"},
        {{.heads = 2, .in_dim = 5, .out_dim = 4, .rows_per_head = 4}, "head_linear: 8 columns or rows, 10 expected"},
        {{.heads = 2, .in_dim = 4, .out_dim = 3, .rows_per_head = 4}, "head_linear dst: 8 columns or rows, 6 expected"},
        {{.heads = 2, .in_dim = 4, .out_dim = 4, .rows_per_head = 5}, "weight rows: 8 columns or rows, 10 expected"},
        {{.heads = 2, .in_dim = 4, .out_dim = 4, .rows_per_head = 4, .first_row = 1}, "head_linear rows: 5"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        rng r = {seed};
        rig g;
        sl_error err = {0};
        assert_true(rig_open(&g, &(rig_options){.numeric = SL_NUMERIC_EXACT}));
        sl_matrix m = rig_matrix(&g, &r, SL_F32, 8, 4, 1, NULL);
        sl_weight weight = rig_weight(&g, &m);
        sl_view src = rig_view(&g, SL_ROWS_ALL, 1, 8, 0), dst = rig_view(&g, SL_ROWS_ALL, 1, 8, 0);
        sl_head_linear h = cases[i].h;
        h.weight = &weight;
        sl_program *p = sl_program_new(g.ops, 1, 1, &err);
        sl_op_head_linear(p, dst, src, &h);
        assert_false(sl_program_end(p, &err));
        if (!strstr(err.message, cases[i].message))
            fail_msg("\"%s\" expected in \"%s\"", cases[i].message, err.message);
        sl_program_free(p);
        rig_close(&g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_mode_is_near_float64),
        cmocka_unit_test(a_row_alone_has_the_same_bits),
        cmocka_unit_test(what_does_not_fit_together_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

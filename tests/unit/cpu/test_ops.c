/* Promise: norms, rotation, sums and softmax have the same bits on every instruction set, stay within float's rounding
 * of float64, and let a NaN through. Attention: test_attention.c. */
#include "support_matrix.h"

#include "cpu/cpu_ops.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t seed = 20240612;

/* Those of this machine; the first is scalar. */
static const cpu_ops *isas[4];
static int isa_count;

static int set_up(void **state) {
    static const char *const names[] = {"scalar", "avx2", "avx512", "neon"};
    for (size_t i = 0; i < SL_COUNT(names); i++)
        if (cpu_ops_get(names[i]))
            isas[isa_count++] = cpu_ops_get(names[i]);
    print_message("seed %llu, %d instruction sets, best %s\n", (unsigned long long)seed, isa_count,
                  cpu_ops_get(NULL)->name);
    return 0;
}

static void sets_by_name(void **state) {
    assert_string_equal(cpu_ops_get("scalar")->name, "scalar");
    assert_null(cpu_ops_get("sse9"));
    assert_null(cpu_ops_get(""));
    assert_ptr_equal(cpu_ops_get(NULL), isas[isa_count - 1]);
}

/* n floats that end where reading traps. */
static float *floats_new(rng *r, int64_t n, float magnitude) {
    float *x = guarded_new((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = rng_normal(r) * magnitude;
    return x;
}

static void floats_free(float *x, int64_t n) {
    guarded_free(x, (size_t)n * sizeof *x);
}

static void fill_nan(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] = NAN;
}

static void same_bits(const float *a, const float *b, int64_t n, const char *what, const char *isa) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a))
            fail_msg("%s of %lld, %s: element %lld is %a, scalar has %a", what, (long long)n, isa, (long long)i, a[i],
                     b[i]);
}

static void near(double got, double expected, double bound, const char *what) {
    if (!(fabs(got - expected) <= bound))
        fail_msg("%s: %.9g, expected %.9g within %.3g", what, got, expected, bound);
}

/* ---- rms_norm ---------------------------------------------------------------------------------------------------- */

static void check_norm(const float *x, const float *w, int32_t n, float eps) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    double inv = 1 / sqrt(sum / n + eps);
    float *first = malloc((size_t)n * sizeof *first), *out = floats_new(&(rng){1}, n, 1);
    for (int k = 0; k < isa_count; k++) {
        fill_nan(out, n);
        isas[k]->rms_norm(out, x, w, n, eps);
        for (int32_t i = 0; i < n; i++)
            near(out[i], x[i] * inv * w[i], fabs(x[i] * inv * w[i]) * (4 + n / 16) * FLT_EPSILON, "rms_norm");
        if (k == 0)
            memcpy(first, out, (size_t)n * sizeof *first);
        same_bits(out, first, n, "rms_norm", isas[k]->name);
        memcpy(out, x, (size_t)n * sizeof *out); /* in place */
        isas[k]->rms_norm(out, out, w, n, eps);
        same_bits(out, first, n, "rms_norm in place", isas[k]->name);
    }
    floats_free(out, n);
    free(first);
}

static void rms_norm_is_right(void **state) {
    rng r = {seed};
    static const float magnitudes[] = {1, 1e-3f, 1e4f, 1e-30f, 1e18f, 1e30f, 3e37f};
    for (int32_t n = 1; n < 2000; n += n < 70 ? 1 : 37) {
        for (size_t m = 0; m < (n < 70 ? SL_COUNT(magnitudes) : 2); m++) {
            float *x = floats_new(&r, n, magnitudes[m]), *w = floats_new(&r, n, 1);
            check_norm(x, w, n, 1e-6f);
            floats_free(x, n);
            floats_free(w, n);
        }
    }
}

static void rms_norm_of_extremes(void **state) {
    float w[20], x[20];
    for (int i = 0; i < 20; i++)
        w[i] = 2;
    for (int i = 0; i < 20; i++)
        x[i] = i % 2 ? 1e30f : -1e30f;
    check_norm(x, w, 20, 1e-6f);
    x[3] = FLT_MAX;
    check_norm(x, w, 20, 1e-6f);
    memset(x, 0, sizeof x);
    check_norm(x, w, 20, 1e-6f);
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int k = 0; k < isa_count; k++) {
        for (int at = 0; at < 20; at++) {
            float out[20];
            for (int i = 0; i < 20; i++)
                x[i] = at % 3 ? 1 : 1e30f;
            x[at] = bad[at % 4];
            isas[k]->rms_norm(out, x, w, 20, 1e-6f);
            assert_true(isnan(out[at]));
            /* an infinity turns the others into 0 or NaN, never into a number that looks well */
            for (int i = 0; i < 20; i++)
                assert_true(isnan(out[i]));
        }
    }
}

/* ---- rotation ---------------------------------------------------------------------------------------------------- */

static void check_rope(rng *r, int32_t dims, bool interleaved) {
    int32_t half = dims / 2, n = dims + 3;
    float *x = floats_new(r, n, 1), *c = floats_new(r, half, 1), *s = floats_new(r, half, 1);
    float *first = malloc((size_t)n * sizeof *first), *out = floats_new(r, n, 1);
    for (int32_t i = 0; i < half; i++) {
        double angle = rng_normal(r) * 100;
        c[i] = (float)cos(angle);
        s[i] = (float)sin(angle);
    }
    for (int k = 0; k < isa_count; k++) {
        memcpy(out, x, (size_t)n * sizeof *out);
        isas[k]->rope(out, dims, interleaved, c, s);
        if (k == 0)
            memcpy(first, out, (size_t)n * sizeof *first);
        same_bits(out, first, n, "rope", isas[k]->name);
        for (int32_t i = 0; i < half; i++) {
            int32_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
            double size = hypot(x[a], x[b]) * 2 * FLT_EPSILON;
            near(out[a], (double)x[a] * c[i] - (double)x[b] * s[i], size, "rope");
            near(out[b], (double)x[a] * s[i] + (double)x[b] * c[i], size, "rope");
        }
        same_bits(out + dims, x + dims, 3, "rope beyond the rotated dimensions", isas[k]->name);
    }
    floats_free(x, n);
    floats_free(c, half);
    floats_free(s, half);
    floats_free(out, n);
    free(first);
}

static void rope_rotates_both_layouts(void **state) {
    rng r = {seed + 1};
    for (int32_t dims = 0; dims <= 258; dims += 2)
        for (int interleaved = 0; interleaved < 2; interleaved++)
            check_rope(&r, dims, interleaved);
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

static void sums_are_single_operations(void **state) {
    rng r = {seed + 2};
    for (int64_t n = 0; n < 300; n += n < 70 ? 1 : 13) {
        float *a = floats_new(&r, n, 1), *b = floats_new(&r, n, 1e3f), *out = floats_new(&r, n, 1);
        float w = rng_normal(&r);
        for (int k = 0; k < isa_count; k++) {
            memcpy(out, a, (size_t)n * sizeof *out);
            isas[k]->add(out, b, n);
            for (int64_t i = 0; i < n; i++)
                assert_true(out[i] == a[i] + b[i]);
            memcpy(out, a, (size_t)n * sizeof *out);
            isas[k]->axpy(out, b, w, n);
            for (int64_t i = 0; i < n; i++) {
                volatile float product = b[i] * w; /* two roundings, no fma */
                assert_true(out[i] == a[i] + product);
            }
        }
        floats_free(a, n);
        floats_free(b, n);
        floats_free(out, n);
    }
}

/* ---- softmax ----------------------------------------------------------------------------------------------------- */

static void check_softmax(const float *x, int32_t n) {
    float *out = floats_new(&(rng){1}, n, 1), *first = malloc((size_t)n * sizeof *first), first_sum = 0;
    double max = x[0];
    for (int32_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max; /* not fmax: gcc 12 for aarch64 crashes vectorising it */
    for (int k = 0; k < isa_count; k++) {
        memcpy(out, x, (size_t)n * sizeof *out);
        float sum = isas[k]->softmax_numerators(out, n);
        double total = 0;
        for (int32_t i = 0; i < n; i++) {
            /* the difference is a float; below e^-87 is 0 */
            double e = exp((double)(x[i] - (float)max));
            near(out[i], e, e * 3 * FLT_EPSILON + 2e-38, "softmax numerator");
            total += out[i];
        }
        near(sum, total, total * (n / 16 + 5) * FLT_EPSILON, "softmax sum");
        if (k == 0) {
            memcpy(first, out, (size_t)n * sizeof *first);
            first_sum = sum;
        }
        same_bits(out, first, n, "softmax", isas[k]->name);
        same_bits(&sum, &first_sum, 1, "softmax sum", isas[k]->name);
    }
    floats_free(out, n);
    free(first);
}

static void softmax_is_right(void **state) {
    rng r = {seed + 3};
    for (int32_t n = 1; n < 400; n += n < 70 ? 1 : 29) {
        static const float magnitudes[] = {1, 10, 1e-6f, 1000, 1e30f};
        for (size_t m = 0; m < SL_COUNT(magnitudes); m++) {
            float *x = floats_new(&r, n, magnitudes[m]);
            check_softmax(x, n);
            floats_free(x, n);
        }
    }
}

/* Every exponent and many fractions: the exponential itself. */
static void exponential_over_its_range(void **state) {
    enum { N = 1000 };
    float x[N];
    for (int from = 0; from < 90; from++) {
        for (int i = 0; i < N; i++)
            x[i] = -(float)from - (float)i / N;
        x[0] = 0;
        check_softmax(x, N);
    }
}

static void softmax_of_extremes(void **state) {
    static const float values[] = {0, 1, -1, 1e30f, -1e30f, FLT_MAX, -FLT_MAX, 88, -88, 1e-45f};
    for (size_t v = 0; v < SL_COUNT(values); v++) {
        for (int32_t n = 1; n < 40; n += 3) {
            float x[40];
            for (int32_t i = 0; i < n; i++)
                x[i] = values[v];
            check_softmax(x, n); /* all equal: every numerator is 1 */
            x[n / 2] = -1e30f;
            check_softmax(x, n);
            x[n - 1] = 1e30f;
            check_softmax(x, n);
        }
    }
}

static void softmax_lets_a_nan_through(void **state) {
    for (int k = 0; k < isa_count; k++) {
        for (int32_t n = 1; n < 70; n++) {
            for (int32_t at = 0; at < n; at++) {
                float x[70];
                for (int32_t i = 0; i < n; i++)
                    x[i] = (float)i;
                x[at] = NAN;
                assert_true(isnan(isas[k]->softmax_numerators(x, n)));
                assert_true(isnan(x[at]));
                for (int32_t i = 0; i < n; i++)
                    x[i] = (float)i;
                x[at] = INFINITY;
                assert_true(isnan(isas[k]->softmax_numerators(x, n)));
            }
        }
    }
}

static void all_finite_sees_every_element(void **state) {
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int k = 0; k < isa_count; k++) {
        for (int64_t n = 0; n < 100; n++) {
            float *x = floats_new(&(rng){seed}, n, 1);
            if (n)
                x[n / 2] = n % 2 ? FLT_MAX : -FLT_MAX;
            assert_true(isas[k]->all_finite(x, n));
            for (int64_t at = 0; at < n; at++) {
                float kept = x[at];
                x[at] = bad[at % 4];
                assert_false(isas[k]->all_finite(x, n));
                x[at] = kept;
            }
            floats_free(x, n);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_by_name),
        cmocka_unit_test(rms_norm_is_right),
        cmocka_unit_test(rms_norm_of_extremes),
        cmocka_unit_test(rope_rotates_both_layouts),
        cmocka_unit_test(sums_are_single_operations),
        cmocka_unit_test(softmax_is_right),
        cmocka_unit_test(exponential_over_its_range),
        cmocka_unit_test(softmax_of_extremes),
        cmocka_unit_test(softmax_lets_a_nan_through),
        cmocka_unit_test(all_finite_sees_every_element),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}

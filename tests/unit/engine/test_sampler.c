/* The sampler against a plain reference that sorts everything, and its promises one by one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/sampler.h"

enum { VOCAB = 101 };

static engine_sampler *sampler;

static int make_sampler(void **state) {
    sampler = engine_sampler_new(VOCAB, NULL);
    return sampler ? 0 : -1;
}

static int free_sampler(void **state) {
    engine_sampler_free(sampler);
    return 0;
}

static void random_logits(engine_rng *rng, float *logits, double spread, int distinct) {
    for (int i = 0; i < VOCAB; i++) {
        double v = (engine_rng_uniform(rng) - 0.5) * spread;
        logits[i] = (float)(distinct ? v : round(v)); /* rounded: many ties */
    }
}

static engine_choice pick(const sl_sampling *p, engine_rng *rng, const float *logits, const engine_history *h) {
    engine_choice c;
    sl_error err = {0};
    engine_history none = {0};
    if (!engine_sample(sampler, p, rng, logits, h ? h : &none, &c, &err))
        fail_msg("%s", err.message);
    return c;
}

/* ---- reference -------------------------------------------------------------------------------------------------- */

typedef struct entry {
    float logit;
    int32_t id;
    double p;
} entry;

static int by_logit(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id - y->id;
}

static int by_id(const void *a, const void *b) {
    return ((const entry *)a)->id - ((const entry *)b)->id;
}

/* Everything by one sort, then each rule as the header says it. */
static int32_t reference(const sl_sampling *p, double u, const float *logits) {
    entry e[VOCAB];
    float max = logits[0];
    for (int i = 1; i < VOCAB; i++)
        max = logits[i] > max ? logits[i] : max;
    int n = 0;
    for (int i = 0; i < VOCAB; i++) {
        float v = (logits[i] - max) / p->temperature;
        if (p->min_p > 0 && v < logf(p->min_p))
            continue;
        e[n++] = (entry){v, i, exp(v)};
    }
    int ranked = p->top_k > 0 || (p->top_p > 0 && p->top_p < 1);
    double whole = 0;
    for (int i = 0; i < n; i++)
        whole += e[i].p;
    qsort(e, (size_t)n, sizeof *e, by_logit);
    if (p->top_k > 0 && p->top_k < n) {
        n = p->top_k;
        whole = 0;
        for (int i = 0; i < n; i++)
            whole += e[i].p;
    }
    if (p->top_p > 0 && p->top_p < 1) {
        double sum = 0;
        int k = 0;
        while (k < n && (k == 0 || sum < p->top_p * whole))
            sum += e[k++].p;
        n = k;
    }
    if (!ranked)
        qsort(e, (size_t)n, sizeof *e, by_id);
    double total = 0, sum = 0;
    for (int i = 0; i < n; i++)
        total += e[i].p;
    for (int i = 0; i < n; i++)
        if ((sum += e[i].p) > u * total)
            return e[i].id;
    return e[n - 1].id;
}

static void test_equals_reference(void **state) {
    const uint64_t seed = 20240611;
    print_message("seed %llu\n", (unsigned long long)seed);
    engine_rng rng, draw, same;
    engine_rng_seed(&rng, seed);
    float logits[VOCAB];
    for (int round = 0; round < 4000; round++) {
        random_logits(&rng, logits, 1 + 20 * engine_rng_uniform(&rng), round % 3);
        sl_sampling p = SL_SAMPLING_INIT;
        p.temperature = (float)(0.05 + 2 * engine_rng_uniform(&rng));
        p.top_k = round % 2 ? (int)(engine_rng_uniform(&rng) * 130) : 0;
        p.top_p = round % 5 ? (float)engine_rng_uniform(&rng) : 0;
        p.min_p = round % 7 == 0 ? (float)engine_rng_uniform(&rng) : 0;
        engine_rng_seed(&draw, (uint64_t)round);
        same = draw;
        int32_t expected = reference(&p, engine_rng_uniform(&same), logits);
        assert_int_equal(pick(&p, &draw, logits, NULL).token, expected);
        assert_memory_equal(&draw, &same, sizeof draw); /* one draw per token */
    }
}

/* ---- promises --------------------------------------------------------------------------------------------------- */

static void test_greedy_takes_lowest_of_equals(void **state) {
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = -2;
    logits[17] = logits[40] = logits[99] = 3;
    sl_sampling p = SL_SAMPLING_INIT;
    engine_rng rng;
    engine_rng_seed(&rng, 1);
    assert_int_equal(pick(&p, &rng, logits, NULL).token, 17);
    p.temperature = 1;
    p.top_k = 1;
    for (int i = 0; i < 50; i++)
        assert_int_equal(pick(&p, &rng, logits, NULL).token, 17);
}

static void test_frequencies_follow_probabilities(void **state) {
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = -INFINITY;
    logits[3] = logf(0.5f);
    logits[50] = logf(0.3f);
    logits[100] = logf(0.2f);
    int counts[VOCAB] = {0};
    engine_rng rng;
    engine_rng_seed(&rng, 7);
    sl_sampling p = SL_SAMPLING_INIT;
    p.temperature = 1;
    for (int i = 0; i < 20000; i++)
        counts[pick(&p, &rng, logits, NULL).token]++;
    assert_int_equal(counts[3] + counts[50] + counts[100], 20000);
    assert_true(abs(counts[3] - 10000) < 300 && abs(counts[50] - 6000) < 300 && abs(counts[100] - 4000) < 300);
}

static void test_temperature_sharpens(void **state) {
    float logits[VOCAB] = {[5] = 1};
    engine_rng rng;
    engine_rng_seed(&rng, 3);
    sl_sampling p = SL_SAMPLING_INIT;
    p.temperature = 1e-6f;
    for (int i = 0; i < 100; i++)
        assert_int_equal(pick(&p, &rng, logits, NULL).token, 5);
    p.temperature = 1e-44f; /* its reciprocal is infinite */
    assert_int_equal(pick(&p, &rng, logits, NULL).token, 5);
}

static void test_repetition_penalty(void **state) {
    float logits[VOCAB] = {[1] = 4, [2] = 3, [3] = 2.5f};
    int32_t seen[] = {1, 9, 2, 1};
    engine_history h = {seen, 4, 4};
    sl_sampling p = SL_SAMPLING_INIT;
    engine_rng rng;
    engine_rng_seed(&rng, 1);
    p.repeat_penalty = 1.3f; /* 4/1.3 = 3.08, 3/1.3 = 2.3: once each, however often seen */
    assert_int_equal(pick(&p, &rng, logits, &h).token, 1);
    p.repeat_penalty = 2; /* 2, 1.5 */
    assert_int_equal(pick(&p, &rng, logits, &h).token, 3);
    p.repeat_last_n = 2; /* only 2 and 1 are looked at */
    h.count = 3;         /* 9, 2 */
    assert_int_equal(pick(&p, &rng, logits, &h).token, 1);
    float negative[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        negative[i] = -5;
    negative[1] = -1;
    p.repeat_penalty = 6;
    p.repeat_last_n = 0;
    h.count = 4;
    assert_int_equal(pick(&p, &rng, negative, &h).token, 0); /* -1 * 6 is below the rest */
}

static void test_presence_and_frequency(void **state) {
    float logits[VOCAB] = {[1] = 4, [2] = 3.9f, [3] = 3.5f};
    int32_t seen[] = {1, 1, 1, 2, 2, 1};
    engine_history h = {seen, 6, 3}; /* generated: 2 2 1 */
    sl_sampling p = SL_SAMPLING_INIT;
    engine_rng rng;
    engine_rng_seed(&rng, 1);
    p.frequency_penalty = 0.3f; /* 1: 3.7, 2: 3.3 */
    assert_int_equal(pick(&p, &rng, logits, &h).token, 1);
    p.frequency_penalty = 0;
    p.presence_penalty = 0.6f; /* 1: 3.4, 2: 3.3 */
    assert_int_equal(pick(&p, &rng, logits, &h).token, 3);
    p.presence_penalty = -0.6f; /* 1: 4.6 */
    assert_int_equal(pick(&p, &rng, logits, &h).token, 1);
    /* What the penalties counted is gone: the next call starts clean. */
    p.presence_penalty = 0;
    engine_history none = {0};
    p.repeat_penalty = 1.5f;
    assert_int_equal(pick(&p, &rng, logits, &none).token, 1);
}

static void test_bias(void **state) {
    float logits[VOCAB] = {[1] = 4};
    sl_logit_bias bias[] = {{1, -INFINITY}, {70, 2}, {70, 3}, {71, 4}};
    sl_sampling p = SL_SAMPLING_INIT;
    p.logit_bias = bias;
    p.logit_bias_count = 4;
    engine_rng rng;
    engine_rng_seed(&rng, 1);
    assert_int_equal(pick(&p, &rng, logits, NULL).token, 70);
    p.temperature = 100;
    for (int i = 0; i < 500; i++)
        assert_int_not_equal(pick(&p, &rng, logits, NULL).token, 1);
}

static void test_logprobs_are_of_the_model(void **state) {
    float logits[VOCAB];
    engine_rng rng;
    engine_rng_seed(&rng, 99);
    random_logits(&rng, logits, 12, 0);
    sl_logit_bias bias = {60, 50};
    sl_sampling p = SL_SAMPLING_INIT;
    p.logit_bias = &bias;
    p.logit_bias_count = 1;
    p.logprobs = SL_MAX_LOGPROBS;
    engine_choice c = pick(&p, &rng, logits, NULL);
    double sum = 0;
    for (int i = 0; i < VOCAB; i++)
        sum += exp(logits[i]);
    assert_int_equal(c.token, 60);
    assert_float_equal(c.logprob, logits[60] - log(sum), 1e-5);
    assert_int_equal(c.top_count, SL_MAX_LOGPROBS);
    entry e[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        e[i] = (entry){logits[i], i, 0};
    qsort(e, VOCAB, sizeof *e, by_logit);
    for (int i = 0; i < c.top_count; i++) {
        assert_int_equal(c.top[i].token, e[i].id);
        assert_float_equal(c.top[i].logprob, e[i].logit - log(sum), 1e-5);
    }
}

static void test_bad_logits_are_errors(void **state) {
    sl_sampling p = SL_SAMPLING_INIT;
    engine_rng rng;
    engine_rng_seed(&rng, 1);
    const float bad[] = {NAN, INFINITY};
    for (int i = 0; i < 2; i++) {
        float logits[VOCAB] = {0};
        logits[77] = bad[i];
        engine_choice c;
        engine_history none = {0};
        sl_error err = {0};
        assert_false(engine_sample(sampler, &p, &rng, logits, &none, &c, &err));
        assert_int_equal(err.code, SL_ERR_NUMERIC);
        assert_non_null(strstr(err.message, "77"));
    }
    float none_left[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        none_left[i] = -INFINITY;
    engine_choice c;
    engine_history none = {0};
    sl_error err = {0};
    p.temperature = 1;
    assert_false(engine_sample(sampler, &p, &rng, none_left, &none, &c, &err));
    assert_int_equal(err.code, SL_ERR_NUMERIC);
}

static void test_parameters_are_checked(void **state) {
    sl_logit_bias outside = {VOCAB, 1}, nan_bias = {0, NAN};
    sl_sampling good = SL_SAMPLING_INIT;
    assert_true(engine_sampling_check(&good, VOCAB, NULL));
    struct {
        const char *name;
        sl_sampling p;
    } bad[] = {{"temperature", {.temperature = -1}},
               {"temperature", {.temperature = NAN}},
               {"top_k", {.top_k = -1}},
               {"top_p", {.top_p = 1.5f}},
               {"min_p", {.min_p = -0.1f}},
               {"repeat_penalty", {.repeat_penalty = -2}},
               {"repeat_last_n", {.repeat_last_n = -1}},
               {"presence_penalty", {.presence_penalty = NAN}},
               {"frequency_penalty", {.frequency_penalty = INFINITY}},
               {"logprobs", {.logprobs = 21}},
               {"logit_bias", {.logit_bias = &outside, .logit_bias_count = 1}},
               {"logit_bias", {.logit_bias = &nan_bias, .logit_bias_count = 1}},
               {"logit_bias", {.logit_bias_count = 1}}};
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        sl_error err = {0};
        assert_false(engine_sampling_check(&bad[i].p, VOCAB, &err));
        assert_int_equal(err.code, SL_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, bad[i].name));
    }
}

/* The generator is part of what a seed means: these numbers must not change. */
static void test_generator_is_fixed(void **state) {
    engine_rng rng, other;
    engine_rng_seed(&rng, 42);
    double first = engine_rng_uniform(&rng), second = engine_rng_uniform(&rng);
    engine_rng_seed(&other, 43);
    assert_true(first != second && first != engine_rng_uniform(&other));
    assert_float_equal(first, 0.8143051451229099, 1e-15);
    assert_float_equal(second, 0.3188210400616611, 1e-15);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_reference),
        cmocka_unit_test(test_greedy_takes_lowest_of_equals),
        cmocka_unit_test(test_frequencies_follow_probabilities),
        cmocka_unit_test(test_temperature_sharpens),
        cmocka_unit_test(test_repetition_penalty),
        cmocka_unit_test(test_presence_and_frequency),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_logprobs_are_of_the_model),
        cmocka_unit_test(test_bad_logits_are_errors),
        cmocka_unit_test(test_parameters_are_checked),
        cmocka_unit_test(test_generator_is_fixed),
    };
    return cmocka_run_group_tests(tests, make_sampler, free_sampler);
}

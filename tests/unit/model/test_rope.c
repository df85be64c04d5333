/* Rotation frequencies against transformers', for every kind of scaling. */
#include "support_edit.h"

#include "model/model_internal.h"
#include "rope_table.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A model of which only the configuration was read. */
static sl_model *configured(edit *e, const char *fields, sl_ckpt **ckpt) {
    sl_error err = {0};
    json_t *f = json_loads(fields, 0, NULL);
    assert_non_null(f);
    assert_int_equal(json_object_update(e->config, f), 0);
    json_decref(f);
    *ckpt = sl_ckpt_open(edit_write(e), &err);
    assert_non_null(*ckpt);
    sl_model *m = calloc(1, sizeof *m);
    m->ckpt = *ckpt;
    if (!model_read_config(m, &err))
        fail_msg("%s", err.message);
    return m;
}

static void near(const char *name, const char *what, double got, double expected) {
    if (!(fabs(got - expected) <= 4e-7 * fabs(expected)))
        fail_msg("%s: %s is %.9g, transformers has %.9g", name, what, got, expected);
}

static void frequencies_are_those_of_transformers(void **state) {
    for (size_t i = 0; i < SL_COUNT(rope_table); i++) {
        edit *e = edit_open("llama");
        sl_ckpt *c;
        sl_error err = {0};
        sl_model *m = configured(e, rope_table[i].fields, &c);
        assert_true(model_rope_frequencies(m, NULL, &err));
        int32_t half = rope_table[i].dims / 2;
        assert_int_equal(m->config.rope_dims, rope_table[i].dims);
        for (int k = 0; k < 8; k++)
            near(rope_table[i].name, "a frequency", m->inv_freq[half * k / 8], rope_table[i].inv_freq[k]);
        near(rope_table[i].name, "the last frequency", m->inv_freq[half - 1], rope_table[i].inv_freq[8]);
        near(rope_table[i].name, "the scale", m->rope_scale, rope_table[i].scale);
        sl_model_free(m);
        sl_ckpt_close(c);
        edit_close(e);
    }
}

/* GGUF's rope_freqs: divisors that came out of the same scaling. */
static void divisors_divide(void **state) {
    edit *e = edit_open("llama");
    sl_ckpt *c;
    sl_error err = {0};
    sl_model *m = configured(e, "{}", &c);
    assert_true(model_rope_frequencies(m, NULL, &err));
    int32_t half = m->config.rope_dims / 2;
    float plain[64], factors[64];
    for (int32_t i = 0; i < half; i++) {
        plain[i] = m->inv_freq[i];
        factors[i] = 1.0f + (float)i;
    }
    assert_true(model_rope_frequencies(m, factors, &err));
    for (int32_t i = 0; i < half; i++)
        near("rope_freqs", "a frequency", m->inv_freq[i], plain[i] / factors[i]);
    factors[3] = 0;
    assert_false(model_rope_frequencies(m, factors, &err));
    assert_int_equal(err.code, SL_ERR_FORMAT);
    assert_non_null(strstr(err.message, "frequency 3 of"));
    sl_model_free(m);
    sl_ckpt_close(c);
    edit_close(e);
}

/* Numbers that make no sense together give an error or finite frequencies, never a NaN. */
static void absurd_scalings_stay_finite(void **state) {
    static const char *const fields[] = {
        "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":1e6,\"original_max_position_embeddings\":1}}",
        "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":0.001,\"beta_fast\":1e6,\"beta_slow\":1e6}}",
        "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,\"beta_fast\":1,\"beta_slow\":32}}",
        "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,\"beta_fast\":0,\"beta_slow\":0}}",
        "{\"rope_theta\":1.0001,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2}}",
        "{\"rope_theta\":1e12,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":1e6}}",
        "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":1e6,\"low_freq_factor\":1e-6,\"high_freq_factor\":9}}",
    };
    for (size_t i = 0; i < SL_COUNT(fields); i++) {
        edit *e = edit_open("llama");
        sl_ckpt *c;
        sl_error err = {0};
        sl_model *m = configured(e, fields[i], &c);
        if (!model_rope_frequencies(m, NULL, &err))
            fail_msg("%s: %s", fields[i], err.message);
        for (int32_t k = 0; k < m->config.rope_dims / 2; k++)
            assert_true(isfinite(m->inv_freq[k]) && m->inv_freq[k] >= 0);
        assert_true(isfinite(m->rope_scale) && m->rope_scale > 0);
        sl_model_free(m);
        sl_ckpt_close(c);
        edit_close(e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_are_those_of_transformers),
        cmocka_unit_test(divisors_divide),
        cmocka_unit_test(absurd_scalings_stay_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
